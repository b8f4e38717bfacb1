//! What the last twenty calls look like, as their ends spell it out.

use std::time::Duration;

use orbitkv_wire::payload::Answer;

use super::rig::*;
use crate::dice::Dice;
use crate::fetcher::*;
use crate::resilience::signature::Mode;

const BUDGET_MS: u64 = 100;
const RESET: StreamEnd = StreamEnd::Reset { code: 1 };

/// How a call is made to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Served,
    Gone,
    Reset,
    Silent,
}

/// A room without breakers, so that everybody is called whatever happens.
fn rig() -> Rig {
    let guard = GuardSettings { failed_percent: 0, ..GuardSettings::default() };
    let stall_wait = Duration::from_millis(BUDGET_MS);
    Rig::with(FetcherSettings { guard, stall_wait, ..FetcherSettings::default() })
}

fn call(rig: &mut Rig, copy: u32, end: End) {
    rig.begin(copy, &[at("a")]);
    rig.connect();
    let number = rig.operation("a");
    match end {
        End::Served => {
            rig.grant_all(number);
            rig.serve(number, 0);
        }
        End::Gone => rig.answer(number, &[Answer::Ended { sequence: None }]),
        End::Reset => rig.stream_over(number, RESET),
        End::Silent => rig.pass(2 * BUDGET_MS),
    }
    rig.step();
}

/// The name of twenty ends: nearly all broke off; half or more were silent; a tenth or more went wrong; less than half of
/// the answers found what was told of; or nothing of that.
fn name(ends: &[End]) -> Option<Mode> {
    let last = &ends[ends.len().checked_sub(20)?..];
    let count = |of: End| last.iter().filter(|end| **end == of).count();
    let (served, gone, broken, silent) =
        (count(End::Served), count(End::Gone), count(End::Reset), count(End::Silent));
    Some(match () {
        () if broken >= 18 => Mode::Down,
        () if silent >= 10 => Mode::SlowOrCut,
        () if broken + silent >= 2 => Mode::Partial,
        () if served < gone => Mode::Stale,
        () => Mode::Healthy,
    })
}

fn mode(rig: &Rig) -> Option<Mode> {
    rig.room.mode_of(&source("a", 1))
}

#[test]
fn twenty_calls_of_a_kind_have_its_name() {
    for (end, expected) in [
        (End::Served, Mode::Healthy),
        (End::Gone, Mode::Stale),
        (End::Reset, Mode::Down),
        (End::Silent, Mode::SlowOrCut),
    ] {
        let mut rig = rig();
        for copy in 0..20 {
            assert_eq!(mode(&rig), None, "before the {copy}. call");
            call(&mut rig, copy, end);
        }
        assert_eq!(mode(&rig), Some(expected), "{end:?}");
    }
}

#[test]
fn every_mix_has_the_name_that_its_ends_spell() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..12u64 {
        let (mut rig, mut ends) = (rig(), Vec::new());
        let mut dice = Dice(seed);
        for stretch in 0..6u32 {
            let usual = [End::Served, End::Gone, End::Reset, End::Silent][dice.roll(4) as usize];
            for copy in 0..20 {
                let other = [End::Served, End::Gone, End::Reset, End::Silent][dice.roll(4) as usize];
                let end = if dice.roll(6) == 0 { other } else { usual };
                call(&mut rig, 20 * stretch + copy, end);
                ends.push(end);
                assert_eq!(mode(&rig), name(&ends), "after {ends:?}");
                seen.insert(format!("{:?}", mode(&rig)));
            }
        }
    }
    assert_eq!(seen.len(), 6, "every name, and none: {seen:?}");
}

#[test]
fn what_says_nothing_of_a_source_leaves_no_trace_and_a_later_life_begins_anew() {
    let mut rig = rig();
    for copy in 0..20 {
        call(&mut rig, copy, End::Silent);
    }
    // Given up at once: nobody knows what would have come.
    for copy in 20..60 {
        rig.begin(copy, &[at("a")]);
        rig.connect();
        rig.cancel(copy);
        rig.step();
    }
    let standing: Vec<SourceStanding> = rig.room.sources().collect();
    assert_eq!(standing.len(), 1);
    assert_eq!((standing[0].mode, standing[0].sums.timeouts), (Some(Mode::SlowOrCut), 20));
    assert!(standing[0].sums.held >= 20 * BUDGET_MS, "{:?}", standing[0].sums);
    rig.members(vec![member("a", 2)]);
    assert_eq!((mode(&rig), rig.room.sources().count()), (None, 0), "no member, no name");
}
