//! Settings that change while fetches are under way.

use std::time::Duration;

use orbitkv_wire::engine::answers::BlockOutcome;

use super::rig::*;
use crate::dice::Dice;
use crate::fetcher::*;
use crate::resilience::breaker::Phase;

const RESET: StreamEnd = StreamEnd::Reset { code: 1 };

fn milliseconds(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn guard(failed_percent: u32, window_calls: u32) -> GuardSettings {
    GuardSettings {
        failed_percent,
        window_calls,
        open_for: Duration::from_secs(10),
        ..GuardSettings::default()
    }
}

fn with(call_budget_ms: u64, guard: GuardSettings) -> Rig {
    let settings =
        FetcherSettings { stall_wait: milliseconds(call_budget_ms), guard, ..FetcherSettings::default() };
    Rig::with(settings)
}

/// How the breaker of `a` stands, and how often it has opened.
fn standing(rig: &Rig) -> Option<(Phase, u64)> {
    rig.room.breakers(rig.now).find(|of| of.source.node == node("a")).map(|of| (of.phase, of.opens))
}

fn fail(rig: &mut Rig, copies: std::ops::Range<u32>) {
    for copy in copies {
        rig.begin(copy, &[at("a")]);
        rig.connect();
        rig.stream_over(rig.operation("a"), RESET);
    }
}

#[test]
fn another_call_budget_is_that_of_calls_under_way() {
    for (before, after) in [(5_000, 100), (100, 700)] {
        let mut rig = with(before, guard(50, 20));
        rig.begin(1, &[at("a")]);
        rig.connect();
        rig.pass(50);
        rig.room.retune(milliseconds(after), guard(50, 20));
        rig.pass(after - 51);
        assert_eq!(rig.ended, [], "{before} ms, then {after} ms");
        rig.pass(1);
        assert_eq!(rig.outcome(), Err(BlockOutcome::Missing));
    }
}

#[test]
fn another_threshold_looks_back_anew_and_a_pause_that_has_begun_stays() {
    let mut rig = with(1_000, guard(100, 20));
    fail(&mut rig, 0..19);
    rig.room.retune(milliseconds(1_000), guard(50, 4));
    fail(&mut rig, 20..23);
    assert_eq!(standing(&rig), None, "what was before does not count");
    fail(&mut rig, 23..24);
    assert_eq!(standing(&rig), Some((Phase::Open, 1)));
    let short = GuardSettings { open_for: milliseconds(10), ..guard(50, 4) };
    rig.room.retune(milliseconds(1_000), short);
    rig.pass(9_000);
    assert_eq!(standing(&rig), Some((Phase::Open, 1)));
    rig.pass(1_000);
    fail(&mut rig, 30..31);
    assert_eq!(standing(&rig), Some((Phase::Open, 2)), "the probe has failed");
    rig.pass(10);
    assert_eq!(standing(&rig), Some((Phase::HalfOpen, 2)), "and the next pause is the new one");
}

#[test]
fn without_breakers_who_was_left_alone_is_asked_at_once() {
    let mut rig = with(1_000, guard(50, 3));
    fail(&mut rig, 0..3);
    rig.room.retune(milliseconds(1_000), guard(0, 3));
    rig.ended.clear();
    rig.begin(10, &[at("a")]);
    rig.connect();
    assert_eq!(rig.blocks(rig.operation("a")), [10]);
    assert_eq!(standing(&rig).map(|(phase, _)| phase), Some(Phase::Closed));
    // With breakers again, nothing of before is held against it, and what is out is not, either.
    rig.room.retune(milliseconds(1_000), guard(50, 3));
    rig.stream_over(rig.operation("a"), RESET);
    fail(&mut rig, 20..22);
    assert_eq!(standing(&rig).map(|(phase, _)| phase), Some(Phase::Closed));
    fail(&mut rig, 22..23);
    assert_eq!(standing(&rig).map(|(phase, _)| phase), Some(Phase::Open));
}

#[test]
fn a_probe_that_waits_goes_with_the_others_once_there_are_no_breakers() {
    let settings = FetcherSettings { operations_max: 1, guard: guard(50, 3), ..FetcherSettings::default() };
    let mut rig = Rig::with(settings);
    fail(&mut rig, 0..3);
    // The connection is gone when the pause is over, so that the probe waits for a dial.
    rig.lose("a");
    rig.pass(10_000);
    rig.begin(10, &[at("a")]);
    rig.step();
    assert!(rig.operations("a").is_empty() && !rig.dials.is_empty(), "{:?}", rig.asked);
    rig.room.retune(settings.stall_wait, guard(0, 3));
    rig.ended.clear();
    rig.begin(11, &[at("a")]);
    rig.connect();
    assert_eq!(rig.blocks(rig.operation("a")), [10, 11]);
}

/// The room asserts its laws at every step, whatever is changed between them.
#[test]
fn no_change_of_settings_breaks_a_law() {
    let (mut changes, mut opens) = (0, 0);
    for seed in 0..200u64 {
        let mut dice = Dice(seed);
        let mut rig = with(100, guard(50, 3));
        for copy in 0..150 {
            match dice.roll(8) {
                0 | 1 => rig.begin(copy, &[at("a"), at("b")]),
                2 => rig.pass(1 + dice.roll(40)),
                3 => rig.connect(),
                4 if rig.connections.values().any(|source| source.node == node("a")) && dice.roll(4) == 0 => {
                    rig.lose("a")
                }
                5 => {
                    let off = [0, 50, 80][dice.roll(3) as usize];
                    let open_for = milliseconds(1 + dice.roll(60));
                    let guard = GuardSettings { open_for, ..guard(off, 1 + dice.roll(4) as u32) };
                    rig.room.retune(milliseconds(10 + dice.roll(200)), guard);
                    rig.step();
                    changes += 1;
                }
                _ => {
                    let out = rig.operations("a");
                    let Some(&call) = out.first() else { continue };
                    match dice.roll(3) {
                        0 => {
                            rig.grant_all(call);
                            rig.serve_if_due(call, 0);
                        }
                        _ => rig.stream_over(call, RESET),
                    }
                }
            }
        }
        opens += standing(&rig).map_or(0, |(_, opens)| opens);
    }
    assert!(changes > 1_000 && opens > 100, "{changes} {opens}");
}
