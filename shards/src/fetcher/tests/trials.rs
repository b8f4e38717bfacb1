//! What whoever compares sources is told of each candidate that was tried.

use orbitkv_wire::engine::answers::BlockOutcome;
use orbitkv_wire::payload::Answer;

use super::rig::*;
use crate::fetcher::FetcherSettings;
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

#[test]
fn what_waited_at_a_source_that_was_lost_meanwhile_compares_with_nothing() {
    let mut rig = Rig::with(FetcherSettings { residences_max: 1, operations_max: 1, ..Default::default() });
    let serve = |rig: &mut Rig| {
        let number = rig.operation("a");
        rig.grant_all(number);
        rig.serve(number, 0);
    };
    rig.begin(1, &[at("a")]);
    rig.connect();
    serve(&mut rig);
    (2..4).for_each(|copy| rig.begin(copy, &[at("a")]));
    rig.step();
    // The first is asked for and the second waits, both at a source that is connected.
    rig.lose("a");
    rig.pass(3_000);
    rig.connect();
    serve(&mut rig);
    rig.begin(4, &[at("a")]);
    rig.step();
    serve(&mut rig);
    let (copies, outcomes): (Vec<u32>, Vec<_>) = rig.trials.iter().map(|trial| (trial.0, trial.3)).unzip();
    assert_eq!(copies, [1, 2, 3, 4]);
    assert_eq!(outcomes[2], TrialOutcome::Usable);
    assert_eq!(rig.warm, [false, true, false, true]);
}
