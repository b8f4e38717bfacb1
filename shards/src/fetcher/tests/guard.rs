//! Sources that fail are left alone, as a law says that is read off a log; and what is asked again has a budget.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use orbitkv_wire::engine::answers::BlockOutcome;
use orbitkv_wire::identity::{Medium, Sequence};
use orbitkv_wire::payload::{Answer, Attempt, Refusal};

use super::rig::*;
use crate::fetcher::*;
use crate::resilience::breaker::{Change, Phase};
use crate::resilience::gate::Class;
use crate::time::Moment;

const RESET: StreamEnd = StreamEnd::Reset { code: 1 };

fn guarded(window_calls: u32, pause_ms: u64) -> FetcherSettings {
    let open_for = Duration::from_millis(pause_ms);
    let guard = GuardSettings { window_calls, open_for, ..GuardSettings::default() };
    let stall_wait = Duration::from_millis(100);
    FetcherSettings { guard, stall_wait, ..FetcherSettings::default() }
}

fn standing(rig: &Rig, name: &str) -> Option<(Phase, u64)> {
    let all: Vec<_> = rig.room.breakers(rig.now).collect();
    all.iter().find(|of| of.source.node == node(name)).map(|of| (of.phase, of.opens))
}

/// Copies that ended, and how, since this was asked last.
fn ended(rig: &mut Rig) -> Vec<(u32, Result<Medium, BlockOutcome>)> {
    std::mem::take(&mut rig.ended).into_iter().map(|(copy, how)| (copy.0, how.map(|(at, _)| at))).collect()
}

/// Fails calls to `a` until it is left alone.
fn left_alone(rig: &mut Rig, copies: std::ops::Range<u32>) {
    for copy in copies {
        rig.begin(copy, &[at("a")]);
        rig.connect();
        rig.stream_over(rig.operation("a"), RESET);
    }
    assert_eq!(standing(rig, "a").map(|(phase, _)| phase), Some(Phase::Open));
    ended(rig);
}

#[test]
fn who_exceeds_every_budget_is_left_alone_within_twenty_calls_and_probed_once_a_pause() {
    let mut rig = Rig::with(guarded(20, 1_000));
    let mut copies = 0;
    let (mut opened_at, mut others) = (None, 0);
    rig.begin(1_000_000, &[at("a"), at("b")]);
    rig.begin(1_000_001, &[at("b")]);
    rig.connect();
    rig.grant_all(rig.operation("b"));
    rig.serve(rig.operation("b"), 0);
    ended(&mut rig);
    let begun = rig.now;
    while rig.now.since(begun) < Duration::from_secs(10) {
        rig.pass(10);
        copies += 1;
        rig.begin(copies, &[at("a")]);
        rig.begin(2_000_000 + copies, &[at("b")]);
        rig.step();
        // The other one works all the while.
        for number in rig.operations("b") {
            rig.grant_all(number);
            for index in 0..rig.asked[&number].authorize.residences.len() {
                rig.serve(number, index as u16);
            }
        }
        others += rig.ended.iter().filter(|(_, how)| how.is_ok()).count();
        let at_once = rig.ended.iter().filter(|(copy, how)| copy.0 == copies && how.is_err()).count();
        if opened_at.is_none() && !rig.changes.is_empty() {
            opened_at = Some(rig.now.since(begun));
            assert!(rig.room.figures().calls_failed <= 20);
        } else if opened_at.is_some() && rig.operations("a").is_empty() {
            assert_eq!(at_once, 1, "what nobody else has is a miss at once");
        }
        rig.ended.clear();
    }
    let figures = rig.room.figures();
    let open_ms = (Duration::from_secs(10) - opened_at.expect("it was left alone")).as_millis() as u64;
    // A probe takes its budget, and then there is another pause.
    assert!(figures.breaker_probes <= open_ms / 1_100 + 1, "{figures:?}");
    assert!(figures.breaker_probes >= open_ms / 1_100 - 1, "{figures:?}");
    // Three more were out when the twentieth ended.
    assert!((20..=23).contains(&(figures.calls_failed - figures.breaker_probes)), "{figures:?}");
    // The one that waited at the slow one came from there, too.
    assert_eq!(others, copies as usize + 1, "nobody else was refused");
    assert!(figures.breaker_refusals > 500);
    assert_eq!(rig.changes.iter().filter(|(.., is_probe)| !is_probe).count(), 1, "{:?}", rig.changes);
}

#[test]
fn a_source_left_alone_is_passed_over_and_nothing_waits_for_it() {
    let settings = FetcherSettings { operations_max: 2, residences_max: 1, ..guarded(4, 1_000) };
    let mut rig = Rig::with(settings);
    left_alone(&mut rig, 0..3 + 1);
    rig.begin(10, &[at("a"), at("b")]);
    rig.begin(11, &[at("a")]);
    rig.step();
    assert_eq!(ended(&mut rig), [(11, Err(BlockOutcome::Missing))]);
    rig.connect();
    assert_eq!(rig.blocks(rig.operation("b")), [10]);
    rig.grant_all(rig.operation("b"));
    rig.serve(rig.operation("b"), 0);
    ended(&mut rig);
    // The pause is over: one block goes, the others not.
    rig.pass(1_000);
    (20..23).for_each(|copy| rig.begin(copy, &[at("a")]));
    rig.step();
    assert_eq!(rig.blocks(rig.operation("a")), [20]);
    assert_eq!(ended(&mut rig), [(21, Err(BlockOutcome::Missing)), (22, Err(BlockOutcome::Missing))]);
    assert_eq!(standing(&rig, "a"), Some((Phase::HalfOpen, 1)));
    rig.grant_all(rig.operation("a"));
    rig.serve(rig.operation("a"), 0);
    rig.step();
    assert_eq!(standing(&rig, "a"), Some((Phase::Closed, 1)));
    assert_eq!(rig.changes.last().map(|(_, change, probe)| (*change, *probe)), Some((Change::Closed, true)));
    // What waited behind calls in flight goes on elsewhere when they fail.
    ended(&mut rig);
    for copy in 30..36 {
        rig.begin(copy, &[at("a"), at("b")]);
    }
    rig.step();
    while let Some(number) = rig.operations("a").first().copied() {
        rig.stream_over(number, RESET);
    }
    assert_eq!(standing(&rig, "a"), Some((Phase::Open, 2)));
    assert!(rig.ended.is_empty(), "{:?}", rig.ended);
    assert!(rig.operations("b").len() == 2, "it is asked for all of them");
}

#[test]
fn answers_are_no_failures_and_neither_is_who_gives_up_early() {
    let mut rig = Rig::with(guarded(4, 1_000));
    let mut copy = 0;
    let mut next = |rig: &mut Rig| {
        copy += 1;
        rig.begin(copy, &[at("a")]);
        rig.connect();
        (copy, rig.operation("a"))
    };
    for _ in 0..6 {
        let (copy, number) = next(&mut rig);
        rig.answer(number, &[Answer::NeverHeld { head: Sequence(9) }]);
        let _ = copy;
        let (_, number) = next(&mut rig);
        rig.answer(number, &[Answer::Ended { sequence: Some(Sequence(5)) }]);
        let (copy, number) = next(&mut rig);
        rig.answer(number, &[Answer::Busy { retry_after_ms: 1 }]);
        rig.cancel(copy);
        let (_, number) = next(&mut rig);
        rig.say(number, orbitkv_wire::payload::FromSource::Refused(Refusal::LeaseExpired));
    }
    assert_eq!((standing(&rig, "a"), rig.room.figures().calls_failed), (None, 0));
    assert_eq!(rig.room.figures().calls_answered, 24);
    for _ in 0..6 {
        let (copy, _) = next(&mut rig);
        rig.pass(9);
        rig.cancel(copy);
    }
    assert_eq!((standing(&rig, "a"), rig.room.figures().calls_failed), (None, 0));
    // A tenth of the budget without a word is long enough to blame it.
    for _ in 0..2 {
        let (copy, _) = next(&mut rig);
        rig.pass(10);
        rig.cancel(copy);
    }
    assert_eq!(standing(&rig, "a"), Some((Phase::Open, 1)));
}

#[test]
fn who_cannot_be_dialed_or_sends_wrong_bytes_fails_too() {
    let mut rig = Rig::with(guarded(3, 10_000));
    for copy in 0..3 {
        rig.begin(copy, &[at("a")]);
        rig.step();
        rig.fail_dials();
        rig.pass(3_000);
    }
    assert_eq!(standing(&rig, "a"), Some((Phase::Open, 1)));
    for copy in 10..13 {
        rig.begin(copy, &[at("b")]);
        rig.connect();
        rig.grant_all(rig.operation("b"));
        rig.announce(rig.operation("b"), 0);
        rig.arrive(rig.operation("b"), 0, 4712);
    }
    rig.step();
    assert_eq!(standing(&rig, "b"), Some((Phase::Open, 1)));
}

#[test]
fn who_has_not_read_all_that_came_blames_nobody_for_silence_but_not_for_ever() {
    let mut rig = Rig::with(guarded(4, 1_000));
    let next = |rig: &mut Rig, copy| {
        rig.begin(copy, &[at("a")]);
        rig.connect();
        rig.operation("a")
    };
    let blamed = |rig: &Rig| (rig.room.figures().calls_failed, rig.room.figures().stalled);
    // The core stands still for longer than a call may take; what has come is read after that.
    let number = next(&mut rig, 1);
    rig.grant_all(number);
    rig.is_behind = true;
    rig.pass(150);
    rig.serve(number, 0);
    assert_eq!(ended(&mut rig), [(1, Ok(Medium::Dram))]);
    // So does it while a call is given up.
    rig.is_behind = false;
    next(&mut rig, 2);
    rig.is_behind = true;
    rig.pass(50);
    rig.cancel(2);
    assert_eq!(blamed(&rig), (0, 0));
    // It never gets to the end of it: after the budget of a call it counts.
    rig.is_behind = false;
    next(&mut rig, 3);
    rig.is_behind = true;
    rig.pass(150);
    rig.pass(99);
    assert_eq!(blamed(&rig), (0, 0));
    rig.pass(10);
    assert_eq!(blamed(&rig), (1, 1));
    // All is read.
    next(&mut rig, 4);
    rig.pass(100);
    rig.is_behind = false;
    rig.pass(10);
    assert_eq!(blamed(&rig), (2, 2));
}

#[test]
fn a_dial_that_there_is_no_room_for_here_is_held_against_nobody() {
    let mut rig = Rig::with(guarded(1, 10_000));
    for copy in 0..3 {
        rig.begin(copy, &[at("a"), at("b")]);
        rig.step();
        rig.give_up_dials();
        rig.give_up_dials();
        assert_eq!(ended(&mut rig), [(copy, Err(BlockOutcome::Busy))], "it went on to the other one");
        rig.pass(100);
    }
    let figures = rig.room.figures();
    assert_eq!((standing(&rig, "a"), standing(&rig, "b")), (None, None));
    assert_eq!((figures.calls_failed, figures.extra_asks, figures.dials_failed), (0, 0, 6));
    assert!(rig.trials.is_empty(), "{:?}", rig.trials);
    rig.begin(10, &[at("a")]);
    rig.connect();
    assert_eq!(rig.blocks(rig.operation("a")), [10]);
    // A probe for which there was no room is the next one's.
    let mut rig = Rig::with(guarded(3, 1_000));
    left_alone(&mut rig, 0..3);
    rig.lose("a");
    rig.pass(1_000);
    rig.begin(10, &[at("a")]);
    rig.step();
    rig.give_up_dials();
    rig.pass(100);
    rig.begin(11, &[at("a")]);
    rig.connect();
    assert_eq!(rig.blocks(rig.operation("a")), [11]);
    assert_eq!(standing(&rig, "a"), Some((Phase::HalfOpen, 1)));
}

#[test]
fn a_probe_that_is_not_made_is_the_next_ones() {
    let mut rig = Rig::with(guarded(3, 1_000));
    left_alone(&mut rig, 0..3);
    rig.lose("a");
    rig.pass(1_000);
    rig.begin(10, &[at("a")]);
    rig.begin(11, &[at("a")]);
    rig.step();
    assert_eq!(ended(&mut rig), [(11, Err(BlockOutcome::Missing))], "one waits for the dial");
    rig.cancel(10);
    rig.begin(12, &[at("a")]);
    rig.step();
    // A dial that takes a tenth of the budget was the probe.
    rig.pass(50);
    rig.cancel(12);
    assert_eq!(standing(&rig, "a"), Some((Phase::Open, 2)));
    rig.pass(1_000);
    rig.begin(13, &[at("a")]);
    rig.connect();
    assert_eq!(rig.blocks(rig.operation("a")), [13]);
    rig.room.on_fenced();
    rig.step();
    rig.room.on_registered(local());
    rig.members(vec![member("a", 1)]);
    // We ended that probe ourselves: another may be.
    rig.begin(14, &[at("a")]);
    rig.connect();
    assert_eq!(rig.blocks(rig.operation("a")), [14]);
}

#[test]
fn what_nobody_waits_for_is_no_probe() {
    let mut rig = Rig::with(guarded(3, 1_000));
    left_alone(&mut rig, 0..3);
    rig.pass(1_000);
    let ahead = |copy| Order { class: Class::Background, ..order(copy, u64::from(BYTES)) };
    rig.begin_within(ahead(10), &[at("a")], 60_000);
    rig.begin_within(ahead(11), &[at("a"), at("b")], 60_000);
    rig.connect();
    assert_eq!(ended(&mut rig), [(10, Err(BlockOutcome::Missing))]);
    assert_eq!((rig.operations("a").len(), rig.blocks(rig.operation("b"))), (0, vec![11]));
    rig.begin(12, &[at("a")]);
    rig.step();
    assert_eq!(rig.blocks(rig.operation("a")), [12]);
    rig.begin_within(ahead(13), &[at("a")], 60_000);
    rig.step();
    assert_eq!(ended(&mut rig), [(13, Err(BlockOutcome::Missing))]);
    rig.grant_all(rig.operation("a"));
    rig.serve(rig.operation("a"), 0);
    rig.step();
    rig.begin_within(ahead(14), &[at("a")], 60_000);
    rig.step();
    assert_eq!(rig.blocks(rig.operation("a")), [14], "once it is asked as before");
}

#[test]
fn a_probe_that_waits_for_our_own_window_blames_nobody() {
    let stall_wait = Duration::from_secs(1);
    let bounds = FetcherSettings { bytes_max: 100, source_bytes_max: 100, stall_wait, ..guarded(3, 1_000) };
    let mut rig = Rig::with(bounds);
    left_alone(&mut rig, 0..3);
    rig.pass(1_000);
    rig.begin(10, &[at("b")]);
    rig.connect();
    rig.begin(11, &[at("a")]);
    rig.step();
    assert_eq!((rig.operations("a").len(), rig.operations("b").len()), (0, 1), "there is room for one");
    rig.pass(200);
    rig.cancel(11);
    assert_eq!(standing(&rig, "a"), Some((Phase::HalfOpen, 1)));
    rig.grant_all(rig.operation("b"));
    rig.serve(rig.operation("b"), 0);
    rig.begin(12, &[at("a")]);
    rig.step();
    assert_eq!(rig.blocks(rig.operation("a")), [12], "the next one is the probe");
}

#[test]
fn a_source_that_has_answered_may_pause_for_half_of_the_budget() {
    let with = |is_granted: bool, silent_ms: u64| {
        let mut rig = Rig::with(FetcherSettings { stall_wait: Duration::from_secs(1), ..Default::default() });
        for copy in 0..20 {
            rig.begin(copy, &[at("a")]);
            rig.connect();
            if is_granted {
                rig.grant_all(rig.operation("a"));
            }
            rig.pass(silent_ms);
            rig.cancel(copy);
        }
        standing(&rig, "a").map_or(0, |(_, opens)| opens)
    };
    assert_eq!([with(true, 200), with(true, 499), with(true, 500)], [0, 0, 1]);
    assert_eq!([with(false, 99), with(false, 200)], [0, 1]);
}

#[test]
fn nothing_is_held_against_a_source_before_its_request_goes_out() {
    let mut rig = Rig::with(guarded(2, 1_000));
    let held_back = |rig: &mut Rig, copy| {
        rig.begin(copy, &[at("a")]);
        rig.connect();
        let (number, connection) = (rig.operation("a"), rig.connection("a"));
        rig.room.on_held_back(connection, Rig::id(number));
        (number, connection)
    };
    for copy in 0..3 {
        held_back(&mut rig, copy);
        rig.pass(50);
        rig.cancel(copy);
    }
    // Nor when it is given up here for good.
    held_back(&mut rig, 10);
    rig.pass(100);
    assert_eq!(rig.room.figures().stalled, 1);
    ended(&mut rig);
    assert_eq!((standing(&rig, "a"), rig.room.figures().calls_failed), (None, 0));
    for copy in 20..22 {
        let (number, connection) = held_back(&mut rig, copy);
        rig.pass(50);
        rig.room.on_sent(connection, Rig::id(number), rig.now);
        rig.pass(9);
        assert_eq!(rig.room.figures().calls_failed, u64::from(copy) - 20);
        rig.pass(1);
        rig.cancel(copy);
    }
    assert_eq!(standing(&rig, "a"), Some((Phase::Open, 1)), "then it counts");
}

#[test]
fn another_life_begins_without_the_failures_of_the_last() {
    let mut rig = Rig::with(guarded(3, 60_000));
    left_alone(&mut rig, 0..3);
    rig.members(vec![member("a", 2)]);
    assert_eq!(standing(&rig, "a"), None);
    rig.begin(10, &[Candidate { source: source("a", 2), ..at("a") }]);
    rig.connect();
    assert_eq!(rig.blocks(rig.operation("a")), [10]);
}

#[test]
fn without_breakers_everybody_is_asked_whatever_happens() {
    let guard = GuardSettings { failed_percent: 0, ..GuardSettings::default() };
    let mut rig = Rig::with(FetcherSettings { guard, ..FetcherSettings::default() });
    for copy in 0..60 {
        rig.begin(copy, &[at("a")]);
        rig.connect();
        rig.stream_over(rig.operation("a"), RESET);
    }
    assert_eq!((standing(&rig, "a"), rig.room.figures().operations), (None, 60));
}

#[test]
fn an_outage_of_a_second_adds_a_tenth_to_what_is_asked() {
    // No breaker: the budget alone.
    let guard = GuardSettings { failed_percent: 0, ..GuardSettings::default() };
    let mut rig = Rig::with(FetcherSettings { guard, ..FetcherSettings::default() });
    let mut asks: Vec<(Moment, bool)> = Vec::new();
    let mut known = BTreeMap::new();
    for tick in 0..1_300u32 {
        rig.pass(10);
        (0..10).for_each(|of| rig.begin(tick * 10 + of, &[at("a"), at("b"), at("c")]));
        rig.connect();
        let is_out = (1_000..1_100).contains(&tick);
        for name in ["a", "b", "c"] {
            for number in rig.operations(name) {
                for block in rig.blocks(number) {
                    let before = known.entry(block).or_insert(0);
                    asks.push((rig.now, *before > 0));
                    *before += 1;
                }
                if is_out {
                    rig.stream_over(number, RESET);
                } else {
                    rig.grant_all(number);
                    (0..10).for_each(|index| rig.serve_if_due(number, index));
                }
            }
        }
    }
    // Every window of the outage and around it, of whatever length: those that begin and end with an extra ask.
    let extras: Vec<Moment> = asks.iter().filter(|(_, again)| *again).map(|(at, _)| *at).collect();
    let ends: BTreeSet<Moment> = extras.iter().copied().collect();
    asks.retain(|(at, _)| ends.first().is_some_and(|first| at >= first));
    for from in &ends {
        for to in ends.range(from..) {
            let within = asks.iter().filter(|(at, _)| (from..=to).contains(&at));
            let first = within.clone().filter(|(_, again)| !again).count();
            let extra = within.count() - first;
            assert!(10 * extra <= first.max(10 * EXTRA_BURST as usize), "{extra} extra asks for {first}");
        }
    }
    assert!(extras.len() > EXTRA_BURST as usize, "it is used: {}", extras.len());
    assert!(rig.room.figures().extra_asks_refused > 0);
    assert!(known.values().all(|times| *times <= 3), "two more at most");
}

#[test]
fn the_head_of_what_one_call_carried_goes_on_elsewhere_on_a_quiet_node() {
    let mut rig = Rig::new();
    (0..128).for_each(|copy| rig.begin(copy, &[at("a"), at("b")]));
    rig.connect();
    rig.lose("a");
    rig.connect();
    let head: Vec<u32> = (0..EXTRA_BURST).collect();
    assert_eq!(rig.blocks(rig.operation("b")), head);
    assert_eq!(ended(&mut rig).len(), 128 - head.len(), "the others are misses");
    (200..202).for_each(|copy| rig.begin(copy, &[at("c"), at("d")]));
    rig.connect();
    rig.lose("c");
    assert_eq!(ended(&mut rig), [200, 201].map(|copy| (copy, Err(BlockOutcome::Missing))));
}

/// What is asked of a source: which ask it is, and for which copies.
fn asked(rig: &Rig, name: &str) -> Vec<(Attempt, Vec<u32>)> {
    let operations = rig.operations(name).into_iter();
    operations.map(|number| (rig.asked[&number].authorize.attempt, rig.blocks(number))).collect()
}

#[test]
fn a_request_says_which_ask_it_is_and_carries_no_other() {
    let mut rig = Rig::new();
    (0..2).for_each(|copy| rig.begin(copy, &[at("a"), at("b"), at("c")]));
    rig.connect();
    assert_eq!(asked(&rig, "a"), [(Attempt::First, vec![0, 1])]);
    rig.lose("a");
    (2..4).for_each(|copy| rig.begin(copy, &[at("b"), at("c")]));
    rig.connect();
    assert_eq!(asked(&rig, "b"), [(Attempt::Second, vec![0, 1]), (Attempt::First, vec![2, 3])]);
    rig.lose("b");
    rig.connect();
    assert_eq!(asked(&rig, "c"), [(Attempt::Third, vec![0, 1]), (Attempt::Second, vec![2, 3])]);
}

/// What happened to calls of one source, oldest first.
enum Event {
    Out { call: u64 },
    Over { call: u64, is_failure: bool },
}

/// How a breaker stands after a log, by its law: it opens when of the last `window` outcomes of calls that went out
/// since it closed at least half are failures, and when a probe fails; a pause later the next call is the probe.
#[derive(Debug, PartialEq, Eq)]
enum Stand {
    Asks,
    Leaves,
    Probes,
}

fn law(log: &[(Moment, Event)], window: usize, pause: Duration, now: Moment) -> (Stand, u64) {
    let (mut from, mut opens) = (0, 0);
    loop {
        let out: Vec<u64> = (log[from..].iter())
            .filter_map(|(_, event)| match event {
                Event::Out { call } => Some(*call),
                Event::Over { .. } => None,
            })
            .collect();
        let overs = (from..log.len()).filter_map(|at| match log[at].1 {
            Event::Over { call, is_failure } if out.contains(&call) => Some((at, is_failure)),
            _ => None,
        });
        let overs: Vec<(usize, bool)> = overs.collect();
        let opened = overs
            .windows(window)
            .find(|last| last.iter().filter(|(_, is_failure)| *is_failure).count() * 2 >= window);
        let Some(opened) = opened else { return (Stand::Asks, opens) };
        let mut at = opened[window - 1].0;
        // Pause and probe, until one succeeds.
        loop {
            opens += 1;
            let until = log[at].0 + pause;
            let probe = (at..log.len()).find_map(|at| match log[at] {
                (when, Event::Out { call }) if when >= until => Some((at, call)),
                _ => None,
            });
            let Some((_, probe)) = probe else {
                return (if now < until { Stand::Leaves } else { Stand::Probes }, opens);
            };
            let over = (at..log.len()).find_map(|at| match log[at].1 {
                Event::Over { call, is_failure } if call == probe => Some((at, is_failure)),
                _ => None,
            });
            let Some((when, is_failure)) = over else { return (Stand::Leaves, opens) };
            at = when;
            if !is_failure {
                break;
            }
        }
        from = at + 1;
    }
}

#[test]
fn a_source_is_left_alone_as_the_law_says() {
    let (mut opens, mut leaves) = (0, 0);
    for seed in 0..60u64 {
        let mut state = seed;
        let mut roll = |sides: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % sides
        };
        let window = 2 + roll(6) as usize;
        let settings =
            FetcherSettings { residences_max: 1, operations_max: 64, ..guarded(window as u32, 50) };
        let settings = FetcherSettings { stall_wait: Duration::from_secs(60), ..settings };
        let mut rig = Rig::with(settings);
        let mut log = Vec::new();
        rig.begin(1_000_000, &[at("b")]);
        rig.connect();
        let mut is_connected = false;
        for copy in 0..400 {
            rig.pass(1 + roll(9));
            match roll(3) {
                0 => {
                    let (stand, expected) = law(&log, window, Duration::from_millis(50), rig.now);
                    let before = rig.operations("a").len();
                    rig.begin(copy, &[at("a"), at("b")]);
                    if is_connected {
                        rig.step()
                    } else {
                        rig.connect()
                    };
                    is_connected = true;
                    let mut now = rig.operations("a");
                    let is_asked = now.len() > before;
                    assert_eq!(is_asked, stand != Stand::Leaves, "seed {seed}, copy {copy}: {stand:?}");
                    leaves += u64::from(!is_asked);
                    if is_asked {
                        now.sort_unstable();
                        log.push((rig.now, Event::Out { call: *now.last().unwrap() }));
                    }
                    let seen = standing(&rig, "a").map_or(0, |(_, opens)| opens);
                    assert_eq!(seen, expected, "seed {seed}, copy {copy}");
                }
                _ => {
                    let out = rig.operations("a");
                    if out.is_empty() {
                        continue;
                    }
                    let call = out[roll(out.len() as u64) as usize];
                    let is_failure = roll(10) < 3 + 4 * (copy as u64 / 60 % 2);
                    match is_failure {
                        true => rig.stream_over(call, RESET),
                        false => {
                            rig.grant_all(call);
                            rig.serve(call, 0);
                        }
                    }
                    log.push((rig.now, Event::Over { call, is_failure }));
                }
            }
        }
        opens += standing(&rig, "a").map_or(0, |(_, opens)| opens);
    }
    assert!(opens > 200 && leaves > 1_000, "{opens} {leaves}");
}
