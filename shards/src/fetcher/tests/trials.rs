//! What whoever compares sources is told of each candidate that was tried.

use orbitkv_wire::engine::answers::BlockOutcome;
use orbitkv_wire::payload::Answer;

use super::rig::*;
use crate::planner::TrialOutcome;

/// Trials so far: which block, of whom, behind how many bytes, and what became of it.
fn told(rig: &Rig) -> Vec<(u32, &str, u64, TrialOutcome)> {
    let trial = |(copy, node, ahead, outcome): &(u32, _, u64, TrialOutcome)| {
        (*copy, if *node == super::rig::node("a") { "a" } else { "b" }, *ahead, *outcome)
    };
    rig.trials.iter().map(trial).collect()
}

#[test]
fn every_refusal_and_every_success_is_told_with_what_was_ahead() {
    let mut rig = Rig::new();
    for copy in [1, 2] {
        rig.begin(copy, &[at("a"), at("b")]);
    }
    rig.connect();
    let behind = u64::from(BYTES);
    rig.answer(rig.operation("a"), &[Answer::Busy { retry_after_ms: 50 }, Answer::Ended { sequence: None }]);
    let refused = [(1, "a", 0, TrialOutcome::Busy), (2, "a", behind, TrialOutcome::Missing)];
    assert_eq!(told(&rig), refused);
    rig.connect();
    let number = rig.operation("b");
    rig.grant_all(number);
    rig.serve(number, 0);
    rig.serve(number, 1);
    let usable = [(1, "b", 0, TrialOutcome::Usable), (2, "b", behind, TrialOutcome::Usable)];
    assert_eq!(told(&rig), [refused, usable].concat());
}

#[test]
fn a_deadline_is_held_against_who_was_asked_and_a_cancellation_against_nobody() {
    let mut rig = Rig::new();
    rig.begin_within(order(1, u64::from(BYTES)), &[at("a")], 1_000);
    rig.connect();
    rig.pass(1_000);
    assert_eq!(rig.outcome(), Err(BlockOutcome::DeadlineExceeded));
    assert_eq!(told(&rig), [(1, "a", 0, TrialOutcome::TimedOut)]);
    rig.begin(2, &[at("a")]);
    rig.connect();
    rig.cancel(2);
    assert_eq!(rig.trials.len(), 1);
}
