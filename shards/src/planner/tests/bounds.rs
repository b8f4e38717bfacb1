//! Everything the room remembers and does is bounded, and lives that are over leave nothing.

use std::time::Duration;

use super::rig::*;
use crate::members::MemberMap;
use crate::planner::*;

#[test]
fn more_plans_than_are_priced_leave_the_order_and_say_so() {
    let settings = PlannerSettings { routes_max: 200, ..eager() };
    let batch = |count: u8| -> Vec<Vec<Choice>> {
        (0..count / 7).map(|at| (0..7).map(|way| choice(dram(at * 7 + way))).collect()).collect()
    };
    for (count, expected) in [(126, Reason::Better), (133, Reason::Exhausted)] {
        let mut rig = Rig::new(settings);
        for number in 0..count {
            rig.teach(dram(number), 1_000 - u64::from(number % 7), 1, 32);
        }
        let picks = rig.plan(&batch(count));
        let trace = rig.latest();
        assert_eq!(trace.reason, expected, "{count} routes");
        assert!(trace.alternatives.len() <= 8);
        assert_eq!(picks.iter().all(Option::is_none), expected == Reason::Exhausted);
        assert_eq!(rig.room.figures().exhausted, u64::from(expected == Reason::Exhausted));
    }
}

#[test]
fn work_that_no_route_was_seen_to_do_is_not_priced() {
    let mut rig = Rig::new(eager());
    for route in [dram(0), dram(1)] {
        for _ in 0..40 {
            let micros = if route == dram(0) { 900 } else { 100 };
            rig.tried(route, BYTES, Duration::from_micros(micros), TrialOutcome::Usable);
        }
    }
    let batch = |blocks: usize| vec![vec![choice(dram(0)), choice(dram(1))]; blocks];
    assert_eq!(rig.routes(&batch(2)), [dram(1), dram(1)]);
    assert_eq!(rig.routes(&batch(3)), [dram(0); 3], "three blocks in a row were never seen");
    assert_eq!(rig.latest().reason, Reason::BeyondReach);
}

#[test]
fn what_is_remembered_is_bounded_and_the_latest() {
    let mut rig = Rig::new(eager());
    for number in 0..140 {
        rig.pass(Duration::from_millis(1));
        rig.teach(dram(number), 1_000, 1, 80);
    }
    assert_eq!(rig.room.figures().routes, 128);
    let one_of = |number| vec![vec![choice(dram(number)), choice(dram(139))]];
    rig.plan(&one_of(11));
    assert_eq!(rig.latest().reason, Reason::FewSuccesses, "the routes of longest ago are forgotten");
    rig.plan(&one_of(12));
    assert_eq!(rig.latest().reason, Reason::NotBetter);
    for number in 0..100 {
        // Each changes to another plan, and none is ever reported.
        rig.teach(dram(number), 2_000, 1, 64);
        rig.plan(&one_of(number));
    }
    assert_eq!(rig.room.traces().len(), 32);
}

#[test]
fn evidence_expires_and_goes_with_its_life() {
    let batch = vec![vec![choice(dram(0)), choice(dram(1))]];
    let taught = || {
        let mut rig = Rig::new(eager());
        rig.teach(dram(0), 9_000, 1, 40);
        rig.teach(dram(1), 1_000, 1, 40);
        rig
    };
    let mut rig = taught();
    rig.pass(Duration::from_secs(120));
    assert_eq!(rig.routes(&batch), [dram(1)]);
    assert_eq!(rig.latest().routes[0].age, Some(Duration::from_secs(120)));
    rig.pass(Duration::from_nanos(1));
    assert_eq!(rig.routes(&batch), [dram(0)]);
    assert_eq!(rig.latest().reason, Reason::FewSuccesses);

    let over = source(1, 1);
    let mut rig = taught();
    rig.room.on_excluded(over.node, over.incarnation);
    assert_eq!(rig.room.figures().routes, 1);
    assert_eq!(rig.routes(&batch), [dram(0)]);
    rig.teach(dram(1), 1_000, 1, 40);
    assert_eq!(rig.room.figures().routes, 1, "a life that is over teaches nothing");
    rig.room.on_excluded(over.node, source(1, 99).incarnation);
    rig.teach(dram(1), 1_000, 1, 40);
    assert_eq!(rig.room.figures().routes, 1, "who is late with another life changes nothing");

    let mut rig = taught();
    rig.room.on_members(&members(1, 2));
    assert_eq!(rig.room.figures().routes, 1, "who is no member is forgotten");
    rig.room.on_fenced();
    assert_eq!(rig.room.figures().routes, 0);
    rig.teach(dram(0), 1_000, 1, 40);
    assert_eq!(rig.room.figures().routes, 0, "what ends with our own life says nothing of others");
    assert_eq!(rig.plan(&batch), [None]);
    rig.room.on_members(&MemberMap::default());
    rig.room.assert_invariants();
}
