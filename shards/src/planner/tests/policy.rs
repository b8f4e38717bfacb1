//! When the fixed plan is left, and when it is not.

use std::time::Duration;

use super::rig::*;
use crate::planner::*;

const SLOW: u64 = 9_000;
const FAST: u64 = 1_000;

fn careful(mode: Mode) -> PlannerSettings {
    PlannerSettings { mode, ..PlannerSettings::default() }
}

/// A batch of one block that both have, the slow one first.
fn both() -> Vec<Vec<Choice>> {
    vec![vec![choice(dram(0)), choice(dram(1))]]
}

fn taught(settings: PlannerSettings) -> Rig {
    let mut rig = Rig::new(settings);
    rig.teach(dram(0), SLOW, 1, 40);
    rig.teach(dram(1), FAST, 1, 40);
    rig
}

#[test]
fn a_slow_source_is_avoided_once_enough_was_seen_of_both() {
    let mut rig = taught(careful(Mode::Executed));
    assert_eq!(rig.routes(&both()), [dram(1)]);
    let trace = rig.latest();
    assert_eq!((trace.reason, trace.planned), (Reason::Better, PlanKind::Single(dram(1))));
    assert_eq!(trace.alternatives[0].kind, PlanKind::Fixed);
    assert_eq!(trace.alternatives[0].predicted, Duration::from_nanos(SLOW * 1_000 + BYTES));
    assert_eq!((trace.routes[0].route, trace.routes[0].successes), (dram(1), Some(40)));
    let figures = rig.room.figures();
    assert_eq!((figures.changed, figures.differing, figures.followed), (1, 1, 1));
    assert_eq!(figures.predicted_gain_us, SLOW - FAST);
}

#[test]
fn another_mode_is_that_of_the_next_batch() {
    let mut rig = taught(careful(Mode::Shadow));
    assert_eq!(rig.routes(&both()), [dram(0)]);
    rig.room.set_mode(Mode::Executed);
    assert_eq!(rig.routes(&both()), [dram(1)]);
    assert!(rig.latest().is_followed);
    // The batch of before ends as it began, though it was not followed and the present one is.
    let judged = rig.room.figures().judged;
    rig.arrive(2, Duration::from_micros(SLOW));
    assert_eq!(rig.room.figures().judged, judged + 2);
    rig.room.set_mode(Mode::Fixed);
    let traces = rig.room.traces().count();
    assert_eq!(rig.routes(&both()), [dram(0)]);
    assert_eq!(rig.room.traces().count(), traces, "nothing is priced");
    rig.room.set_mode(Mode::Executed);
    assert_eq!(rig.routes(&both()), [dram(1)], "what was seen is not forgotten");
}

#[test]
fn fewer_than_32_successes_of_either_leave_the_order_as_it_is() {
    for (slow, fast, expected) in [(32, 32, dram(1)), (31, 64, dram(0)), (64, 31, dram(0)), (0, 0, dram(0))] {
        let mut rig = Rig::new(careful(Mode::Executed));
        rig.teach(dram(0), SLOW, 1, slow);
        rig.teach(dram(1), FAST, 1, fast);
        assert_eq!(rig.routes(&both()), [expected], "{slow} and {fast} successes");
        let reason = if expected == dram(1) { Reason::Better } else { Reason::FewSuccesses };
        assert_eq!(rig.latest().reason, reason);
        assert_eq!(rig.room.figures().few_successes, u64::from(reason == Reason::FewSuccesses));
    }
}

#[test]
fn in_shadow_plans_are_judged_and_not_followed_and_when_fixed_there_are_none() {
    let mut rig = taught(careful(Mode::Shadow));
    assert_eq!(rig.plan(&both()), [None]);
    rig.arrive(1, Duration::from_micros(SLOW));
    let (trace, figures) = (rig.latest(), *rig.room.figures());
    assert!(!trace.is_followed && trace.planned == PlanKind::Single(dram(1)));
    assert_eq!(trace.routes[0].route, dram(0), "what is traced is where it went");
    assert_eq!((figures.differing, figures.followed), (1, 0));
    assert_eq!(figures.regret_us, SLOW - FAST - 1, "against the microsecond of the block itself");
    assert_eq!((figures.judged, figures.within_margin), (1, 1));

    let mut rig = taught(careful(Mode::Fixed));
    assert_eq!(rig.plan(&both()), [None]);
    assert_eq!((rig.room.traces().len(), rig.room.figures().routes), (0, 0));
}

#[test]
fn an_improvement_within_uncertainty_or_hysteresis_changes_nothing() {
    // A tenth less than it has to be.
    let mut rig = Rig::new(careful(Mode::Executed));
    rig.teach(dram(0), 10_000, 1, 40);
    rig.teach(dram(1), 9_100, 1, 40);
    assert_eq!(rig.routes(&both()), [dram(0)]);
    assert_eq!(rig.latest().reason, Reason::NotBetter);
    // Much better on average, and now and then far worse: what is gained is less than what is not known.
    let mut rig = Rig::new(careful(Mode::Executed));
    rig.teach(dram(0), SLOW, 1, 40);
    for number in 0..64u64 {
        let micros = if number % 6 == 5 { 20_000 } else { 500 };
        rig.tried(dram(1), BYTES, Duration::from_micros(micros), TrialOutcome::Usable);
    }
    assert_eq!(rig.routes(&both()), [dram(0)]);
    let trace = rig.latest();
    assert_eq!(trace.reason, Reason::NotBetter);
    let other = trace.predicted(PlanKind::Single(dram(1))).expect("it was looked at");
    assert!(other.predicted < trace.alternatives[0].predicted && other.margin > Duration::from_millis(8));
}

#[test]
fn a_plan_whose_worst_is_better_is_not_taken_for_less_than_its_own_uncertainty() {
    let mut rig = Rig::new(careful(Mode::Executed));
    for number in 0..64u64 {
        let is_late = number % 6 == 5;
        for (route, often, late) in [(dram(0), 10_000, 13_000), (dram(1), 7_300, 11_500)] {
            let micros = if is_late { late } else { often };
            rig.tried(route, BYTES, Duration::from_micros(micros), TrialOutcome::Usable);
        }
    }
    assert_eq!(rig.routes(&both()), [dram(0)]);
    let trace = rig.latest();
    let (fixed, other) = (trace.alternatives[0], trace.predicted(PlanKind::Single(dram(1))).unwrap());
    let improvement = fixed.predicted - other.predicted;
    assert!(improvement > fixed.predicted / 5 && improvement < other.margin, "{trace:?}");
    assert!(other.predicted + other.margin < fixed.predicted + fixed.margin, "{trace:?}");
}

#[test]
fn two_routes_that_take_turns_being_better_are_not_taken_in_turns() {
    let mut rig = Rig::new(careful(Mode::Executed));
    rig.teach(dram(0), 10_000, 1, 64);
    rig.teach(dram(1), 5_000, 1, 64);
    assert_eq!(rig.routes(&both()), [dram(1)]);
    let mut last = dram(1);
    let mut changes = 0;
    for round in 0..40u64 {
        // Now one is ahead by a twentieth, now the other.
        let (one, other) = if round % 2 == 0 { (10_000, 10_500) } else { (10_500, 10_000) };
        rig.teach(dram(0), one, 1, 64);
        rig.teach(dram(1), other, 1, 64);
        let now = rig.routes(&both())[0];
        changes += u32::from(now != last);
        last = now;
    }
    assert_eq!((changes, last), (0, dram(1)));
    assert_eq!(rig.latest().reason, Reason::Kept);
    // A clear difference is a reason to go back.
    rig.teach(dram(0), 2_000, 1, 64);
    assert_eq!(rig.routes(&both()), [dram(0)]);
    assert_eq!(rig.latest().planned, PlanKind::Fixed);
}

#[test]
fn parallel_sources_overlap_and_a_queue_that_is_long_is_passed() {
    let mut rig = Rig::new(eager());
    rig.teach(dram(0), 100, 1_000, 64);
    rig.teach(dram(1), 100, 1_000, 64);
    let batch: Vec<Vec<Choice>> = (0..10).map(|_| both().remove(0)).collect();
    let sent = rig.routes(&batch);
    assert_eq!(sent.iter().filter(|route| **route == dram(0)).count(), 5, "{sent:?}");
    let trace = rig.latest();
    let planned = trace.predicted(trace.planned).expect("it is priced");
    assert!(
        planned.predicted.abs_diff(Duration::from_micros(5_100)) < Duration::from_micros(1),
        "{planned:?}"
    );
    // Twenty blocks wait at the first.
    rig.loads.insert(dram(0), Load { ahead_bytes: 20 * BYTES, rests: false });
    assert!(rig.routes(&batch).iter().all(|route| *route == dram(1)));
}

#[test]
fn a_source_that_only_fails_now_is_avoided_and_is_no_unknown_one() {
    let mut rig = taught(careful(Mode::Executed));
    rig.teach(dram(0), FAST / 2, 1, 64);
    assert_eq!(rig.routes(&both()), [dram(0)]);
    for _ in 0..64 {
        rig.tried(dram(0), BYTES, Duration::from_millis(5), TrialOutcome::TimedOut);
    }
    assert_eq!(rig.routes(&both()), [dram(1)]);
    assert_eq!(rig.room.figures().failures, 64);
}

#[test]
fn what_was_declared_or_is_here_competes_with_peers() {
    let mut rig = taught(careful(Mode::Executed));
    let declared =
        |micros| Choice { declared: Some(Duration::from_micros(micros)), ..choice(Route::Recompute) };
    let with = |more: Choice| vec![vec![choice(dram(0)), choice(dram(1)), more]];
    assert_eq!(rig.routes(&with(declared(100))), [Route::Recompute]);
    let mut rig = taught(careful(Mode::Executed));
    assert_eq!(rig.routes(&with(declared(50_000))), [dram(1)]);
    let here = Route::Local(orbitkv_wire::identity::Medium::Ssd);
    let mut rig = taught(careful(Mode::Executed));
    rig.teach(here, 50, 1, 40);
    assert_eq!(rig.routes(&with(choice(here))), [here]);
}

#[test]
fn what_blocks_met_on_their_way_is_traced() {
    use crate::residents::CopyId;
    let mut rig = taught(careful(Mode::Executed));
    let batch = [both(), both(), both()].concat();
    rig.plan(&batch);
    let trial = |copy, outcome| Trial {
        copy: CopyId(copy),
        route: dram(1),
        bytes: BYTES,
        ahead_bytes: 0,
        elapsed: Duration::from_millis(1),
        is_comparable: true,
        outcome,
    };
    rig.room.on_trial(&trial(0, TrialOutcome::Busy), rig.now);
    rig.room.on_trial(&trial(1, TrialOutcome::Missing), rig.now);
    rig.room.on_trial(&trial(1, TrialOutcome::Missing), rig.now);
    rig.pass(Duration::from_millis(7));
    rig.room.on_ended(CopyId(0), true, rig.now);
    rig.room.on_ended(CopyId(1), false, rig.now);
    let trace = rig.latest();
    assert!(!trace.is_over());
    assert_eq!((trace.usable, trace.failed, trace.ready), (1, 1, Duration::from_millis(7)));
    assert_eq!(trace.replans, [1, 2, 0, 0, 0]);
    rig.room.on_ended(CopyId(2), true, rig.now);
    assert!(rig.latest().is_over());
    assert_eq!(rig.room.figures().judged, 0, "one that lacks a block has no time");
    rig.room.on_ended(CopyId(2), true, rig.now);
    rig.room.assert_invariants();
}
