//! Histories of calls, and every window of them counted by brute force.

use super::*;
use crate::dice::Dice;
use crate::fetcher::GuardSettings;

const SECOND: u64 = 1_000_000_000;
const LONGEST: Duration = Duration::from_secs(10);

/// A call as it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    First,
    Extra,
}

/// Calls in the order in which they were made, by time.
type History = Vec<(u64, Call)>;

/// Whether the bound of a window is kept: the share, or the burst if that is more.
fn keeps(permille: u64, burst: u64, first: u64, extra: u64) -> bool {
    1_000 * extra <= (permille * first).max(1_000 * burst)
}

/// The first window of a history, by its ends, that breaks a bound on `(first, extra)`. Windows are all stretches of
/// the history that are shorter than `longest`; one that begins with a first call breaks nothing that the same without it
/// keeps.
fn broken(
    history: &History,
    longest: Duration,
    keeps: impl Fn(u64, u64) -> bool,
) -> Option<(usize, usize, u64, u64)> {
    for from in (0..history.len()).filter(|&from| history[from].1 == Call::Extra) {
        let (mut first, mut extra) = (0, 0);
        for (to, (at, call)) in history.iter().enumerate().skip(from) {
            if u128::from(at - history[from].0) >= longest.as_nanos() {
                break;
            }
            match call {
                Call::First => first += 1,
                Call::Extra => extra += 1,
            }
            if !keeps(first, extra) {
                return Some((from, to, first, extra));
            }
        }
    }
    None
}

/// Whether a window that ends with the last call breaks the bound.
fn breaks_at_end(history: &History, longest: Duration, permille: u64, burst: u64) -> bool {
    let (mut first, mut extra) = (0, 0);
    let end = history.last().expect("a call").0;
    let within = history.iter().rev().take_while(|(at, _)| u128::from(end - at) < longest.as_nanos());
    within.into_iter().any(|(_, call)| {
        match call {
            Call::First => first += 1,
            Call::Extra => extra += 1,
        }
        !keeps(permille, burst, first, extra)
    })
}

/// Busy and quiet stretches, outages in which all is called again, twice, and pauses that are longer than a window.
fn history(dice: &mut Dice, budget: &mut EveryWindow) -> (History, u64) {
    let (mut history, mut refused, mut now) = (Vec::new(), 0, 0);
    for _ in 0..12 {
        let (calls, gap) = match dice.roll(4) {
            0 => (dice.roll(400), SECOND / 200),
            1 => (dice.roll(40), SECOND / 3),
            2 => (dice.roll(200), 1),
            _ => (dice.roll(3), 7 * SECOND),
        };
        let failing = [0, 0, 30, 100][dice.roll(4) as usize];
        for _ in 0..calls {
            now += dice.roll(2 * gap);
            budget.on_first();
            history.push((now, Call::First));
            for _ in 0..2 {
                if dice.roll(100) >= failing {
                    break;
                }
                now += dice.roll(gap);
                if !budget.allow(Moment(now)) {
                    refused += 1;
                    break;
                }
                history.push((now, Call::Extra));
            }
        }
    }
    (history, refused)
}

#[test]
fn every_window_of_every_history_keeps_the_share_or_the_burst() {
    let (mut extras, mut refused) = (0, 0);
    for seed in 0..120 {
        let mut dice = Dice(seed);
        let permille = [0, 5, 100, 333, 1_000][dice.roll(5) as usize];
        let burst = [1, 2, 7, 32, 64][dice.roll(5) as usize];
        let mut budget = EveryWindow::new(permille, burst, LONGEST);
        let (history, no) = history(&mut dice, &mut budget);
        let broken = broken(&history, LONGEST, |first, extra| {
            keeps(u64::from(permille), u64::from(burst), first, extra)
        });
        assert_eq!(broken, None, "seed {seed}: {permille} of a thousand or {burst}");
        extras += history.iter().filter(|(_, call)| *call == Call::Extra).count();
        refused += no;
    }
    assert!(extras > 5_000 && refused > 2_000, "{extras} extra calls, {refused} refused");
}

#[test]
fn nothing_is_refused_that_would_keep_it() {
    // Windows longer by a part of a hundred may have been counted, too.
    let longer = LONGEST + LONGEST / 100;
    let mut refused = 0;
    for seed in 0..40 {
        let mut dice = Dice(1_000 + seed);
        let (permille, burst) = (100, [1, 5, 16][dice.roll(3) as usize]);
        let mut budget = EveryWindow::new(permille as u32, burst as u32, LONGEST);
        let (mut history, mut now) = (History::new(), 0);
        for _ in 0..600 {
            let gap = [1, SECOND / 50, SECOND / 2][dice.roll(3) as usize];
            now += dice.roll(gap);
            if dice.roll(3) > 0 {
                budget.on_first();
                history.push((now, Call::First));
                continue;
            }
            let is_allowed = budget.allow(Moment(now));
            let mut tried = history.clone();
            tried.push((now, Call::Extra));
            if is_allowed {
                history = tried;
            } else {
                refused += 1;
                let breaks = breaks_at_end(&tried, longer, permille, burst);
                assert!(breaks, "seed {seed}: refused at {now} though all windows keep it");
            }
        }
    }
    assert!(refused > 1_000, "{refused}");
}

/// A node has such a budget a core. Whatever is asked of which core, the node keeps one of them in every window.
#[test]
fn the_budgets_of_cores_are_one_of_the_node() {
    let mut extras = 0;
    for seed in 0..120 {
        let mut dice = Dice(seed);
        let cores = [1, 2, 2, 3, 5, 8][dice.roll(6) as usize];
        let node =
            GuardSettings { extra_burst: [1, 7, 64][dice.roll(3) as usize], ..GuardSettings::default() };
        let histories = (0..cores).map(|core| {
            let GuardSettings { extra_permille, extra_burst, .. } = node.of_core(core, cores);
            assert!(extra_burst > 0, "no core is without any");
            let mut budget = EveryWindow::new(extra_permille, extra_burst, LONGEST);
            history(&mut dice, &mut budget).0
        });
        let mut all: History = histories.flatten().collect();
        all.sort_by_key(|(at, _)| *at);
        let burst = if cores == 1 { node.extra_burst } else { node.extra_burst.max(2 * u32::from(cores)) };
        let broken = broken(&all, LONGEST, |first, extra| {
            keeps(u64::from(node.extra_permille), u64::from(burst), first, extra)
        });
        assert_eq!(broken, None, "seed {seed} of {cores} cores with {burst}");
        extras += all.iter().filter(|(_, call)| *call == Call::Extra).count();
    }
    assert!(extras > 3_000, "{extras}");
}

#[test]
fn an_outage_of_a_second_after_a_busy_while_has_its_own_share_alone() {
    let mut budget = EveryWindow::new(100, 64, LONGEST);
    let mut history = History::new();
    for tick in 0..30_000u64 {
        let now = tick * SECOND / 2_000;
        budget.on_first();
        history.push((now, Call::First));
        let is_out = (20_000..22_000).contains(&tick);
        if is_out && budget.allow(Moment(now)) {
            history.push((now, Call::Extra));
        }
    }
    let outage = history.iter().filter(|(at, _)| (10 * SECOND..11 * SECOND).contains(at));
    let extra = outage.filter(|(_, call)| *call == Call::Extra).count();
    assert!((195..=200).contains(&extra), "a tenth of 2,000 first calls, and nearly all of it: {extra}");
    // Within any 64 first calls there may be as many extra ones; from ten times that on there is no more than a tenth.
    let extras: Vec<usize> = (0..history.len()).filter(|&at| history[at].1 == Call::Extra).collect();
    for (nth, &from) in extras.iter().enumerate() {
        for (more, &to) in extras[nth..].iter().enumerate() {
            let (extra, first) = (more + 1, to - from - more);
            assert!(10 * extra <= first.max(640), "{extra} extra calls for {first}");
        }
    }
}

#[test]
fn a_quiet_node_has_its_burst_again_after_the_window() {
    let mut budget = EveryWindow::new(100, 5, LONGEST);
    let mut allowed = |now: u64| (0..100).filter(|_| budget.allow(Moment(now))).count();
    assert_eq!(allowed(0), 5);
    assert_eq!(allowed(9 * SECOND), 0);
    assert_eq!(allowed(10 * SECOND + SECOND / 10), 5, "with the grain of a hundredth");
    let mut none = EveryWindow::new(100, 0, LONGEST);
    (0..1_000).for_each(|_| none.on_first());
    assert!(!none.allow(Moment(0)), "without a burst nobody is asked again");
}

#[test]
fn a_first_call_counts_with_the_share_it_was_made_under() {
    let mut budget = EveryWindow::new(500, 1, LONGEST);
    // First calls that it takes until another extra one is allowed.
    let needed = |budget: &mut EveryWindow| {
        let mut calls = 0;
        while !budget.allow(Moment(1)) {
            budget.on_first();
            calls += 1;
        }
        calls
    };
    assert_eq!(needed(&mut budget), 0, "the burst");
    assert_eq!(needed(&mut budget), 4, "two of four are half");
    budget.on_first();
    budget.set_share(100);
    assert_eq!(needed(&mut budget), 15, "half of one and a tenth of fifteen are two");
}
