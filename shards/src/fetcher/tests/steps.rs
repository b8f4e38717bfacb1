//! Which step is blamed when a fetch is out of time, and who does not wait for an answer.

use std::time::Duration;

use orbitkv_wire::engine::answers::BlockOutcome;
use orbitkv_wire::payload::{Answer, FailureCause, FromSource, Refusal};

use super::rig::*;
use crate::fetcher::*;
use crate::residents::CopyId;
use crate::resilience::claim_check::Dangling;
use crate::resilience::deadline::Step;
use crate::resilience::gate::Class;

fn counted(rig: &Rig, step: Step) -> u64 {
    let by_step = rig.room.figures().out_of_time;
    assert_eq!(by_step.iter().sum::<u64>(), by_step[step as usize], "one step has the blame: {by_step:?}");
    by_step[step as usize]
}

/// A fetch with so many milliseconds that is asked of `a` after 10.
fn asked(millis: u64) -> (Rig, u64) {
    let mut rig = Rig::new();
    rig.begin_within(order(1, u64::from(BYTES)), &[at("a")], millis);
    rig.step();
    rig.pass(10);
    rig.connect();
    let number = rig.operation("a");
    (rig, number)
}

#[test]
fn the_step_that_used_the_time_is_blamed_wherever_the_fetch_is_by_then() {
    // Nobody was asked.
    let mut rig = Rig::new();
    rig.begin_within(order(1, u64::from(BYTES)), &[at("a")], 500);
    rig.step();
    rig.pass(500);
    assert_eq!(rig.out_of_time, [(1, Step::Wait, 500, Step::Wait)]);
    assert_eq!(counted(&rig, Step::Wait), 1);
    // Nobody answered.
    let (mut rig, _) = asked(500);
    rig.pass(490);
    assert_eq!(rig.out_of_time, [(1, Step::Authorize, 490, Step::Authorize)]);
    assert_eq!(counted(&rig, Step::Authorize), 1);
    // The answer took nearly all of it, and a transfer had just begun.
    let (mut rig, number) = asked(500);
    rig.pass(400);
    rig.grant_all(number);
    rig.pass(20);
    rig.announce(number, 0);
    rig.pass(70);
    assert_eq!(rig.out_of_time, [(1, Step::Authorize, 400, Step::Transfer)]);
    // It was read for too long, or came too slowly.
    for (prepare, transfer, blamed) in [(300, 185, Step::Prepare), (185, 300, Step::Transfer)] {
        let (mut rig, number) = asked(500);
        rig.pass(5);
        rig.grant_all(number);
        rig.pass(prepare);
        rig.announce(number, 0);
        rig.pass(transfer);
        assert_eq!(rig.out_of_time, [(1, blamed, 300, Step::Transfer)]);
        assert_eq!((counted(&rig, blamed), rig.outcome()), (1, Err(BlockOutcome::DeadlineExceeded)));
    }
}

#[test]
fn time_at_several_sources_is_that_of_the_same_step() {
    let mut rig = Rig::new();
    rig.begin_within(order(1, u64::from(BYTES)), &[at("a"), at("b")], 500);
    rig.connect();
    rig.pass(150);
    rig.answer(rig.operation("a"), &[Answer::Ended { sequence: None }]);
    rig.connect();
    rig.pass(100);
    let number = rig.operation("b");
    rig.grant_all(number);
    rig.announce(number, 0);
    rig.pass(250);
    assert_eq!(
        rig.out_of_time,
        [(1, Step::Authorize, 250, Step::Transfer)],
        "the earlier of two that are equal"
    );
}

#[test]
fn an_engine_whose_time_is_over_blames_a_step_and_one_that_gives_up_does_not() {
    let (mut rig, number) = asked(60_000);
    rig.grant_all(number);
    rig.pass(200);
    rig.room.expire(CopyId(1), rig.now);
    rig.step();
    assert_eq!(rig.out_of_time, [(1, Step::Prepare, 200, Step::Prepare)]);
    assert_eq!((rig.outcome(), rig.ending(number)), (Err(BlockOutcome::Cancelled), "cancel"));
    rig.room.expire(CopyId(1), rig.now);
    rig.begin(2, &[at("a")]);
    rig.step();
    rig.cancel(2);
    assert_eq!(counted(&rig, Step::Prepare), 1, "once, and not for who has left");
}

#[test]
fn what_nobody_waits_for_blames_nobody_until_somebody_does() {
    let mut rig = Rig::new();
    let ahead = |copy| Order { class: Class::Background, ..order(copy, u64::from(BYTES)) };
    rig.begin_within(ahead(1), &[at("a")], 300);
    rig.begin_within(ahead(2), &[at("a")], 300);
    rig.connect();
    rig.pass(200);
    rig.room.on_awaited(CopyId(2), rig.now + Duration::from_millis(400), rig.now);
    rig.step();
    rig.pass(100);
    assert_eq!((rig.ended.len(), rig.out_of_time.len()), (1, 0));
    rig.pass(300);
    assert_eq!(rig.out_of_time, [(2, Step::Authorize, 400, Step::Authorize)], "since somebody waited");
}

#[test]
fn a_request_that_is_kept_back_is_waited_for_and_not_held_against_its_source() {
    let (mut rig, number) = asked(500);
    let connection = rig.connection("a");
    rig.room.on_held_back(connection, Rig::id(number));
    rig.pass(300);
    rig.room.on_sent(connection, Rig::id(number), rig.now);
    rig.step();
    rig.pass(190);
    assert_eq!(rig.out_of_time, [(1, Step::Wait, 310, Step::Authorize)]);
}

/// A budget of a call of 5 s, and fetches with 10 s: the share of an answer is 1 s.
fn patient(guard: GuardSettings) -> Rig {
    let stall_wait = Duration::from_secs(5);
    let mut rig = Rig::with(FetcherSettings { stall_wait, guard, ..FetcherSettings::default() });
    rig.begin_within(order(1, u64::from(BYTES)), &[at("a"), at("b")], 10_000);
    rig.begin_within(order(2, u64::from(BYTES)), &[at("a")], 10_000);
    rig.connect();
    rig
}

#[test]
fn who_has_another_route_does_not_wait_longer_than_its_share_for_an_answer() {
    let mut rig = patient(GuardSettings::default());
    let silent = rig.operation("a");
    rig.pass(999);
    assert_eq!(rig.room.figures().left_silent, 0);
    rig.pass(1);
    rig.connect();
    assert_eq!(rig.blocks(rig.operation("b")), [1]);
    assert_eq!(rig.ending(silent), "none", "the other one has nobody else to ask");
    let figures = rig.room.figures();
    assert_eq!((figures.left_silent, figures.extra_asks, figures.stalled), (1, 1, 0));
    rig.pass(1_500);
    // Who has answered is not left, however long the bytes take.
    rig.grant_all(rig.operation("b"));
    rig.pass(2_000);
    assert_eq!(rig.room.figures().left_silent, 1);
    rig.serve(rig.operation("b"), 0);
    rig.pass(500);
    assert_eq!((rig.room.figures().stalled, rig.ending(silent)), (1, "cancel"), "the budget of a call");
}

#[test]
fn who_comes_to_wait_longer_gives_every_step_its_share_of_that() {
    let stall_wait = Duration::from_secs(5);
    let mut rig = Rig::with(FetcherSettings { stall_wait, ..FetcherSettings::default() });
    rig.begin_within(order(1, u64::from(BYTES)), &[at("a"), at("b")], 6_000);
    rig.connect();
    rig.room.on_awaited(CopyId(1), rig.now + Duration::from_secs(10), rig.now);
    rig.step();
    rig.pass(999);
    assert_eq!(rig.room.figures().left_silent, 0);
    rig.pass(1);
    assert_eq!(rig.room.figures().left_silent, 1);
}

#[test]
fn a_source_that_everybody_leaves_is_told_and_its_call_has_failed() {
    let mut rig = patient(GuardSettings::default());
    rig.cancel(2);
    let silent = rig.operation("a");
    rig.pass(1_000);
    assert_eq!((rig.ending(silent), rig.room.figures().calls_failed), ("cancel", 1));
}

#[test]
fn nobody_leaves_for_who_may_not_be_asked() {
    let mut rig = patient(GuardSettings { extra_burst: 0, ..GuardSettings::default() });
    rig.pass(1_000);
    assert_eq!((rig.operations("b").len(), rig.dials.len()), (0, 0), "no extra ask is left: it waits on");
    rig.grant_all(rig.operation("a"));
    rig.serve(rig.operation("a"), 0);
    assert_eq!(rig.outcome().map(drop), Ok(()));

    let mut rig = patient(GuardSettings::default());
    rig.members(vec![member("a", 1)]);
    rig.pass(1_000);
    assert_eq!(rig.room.figures().left_silent, 0, "the other one is no member");

    let mut rig = patient(GuardSettings::default());
    rig.is_behind = true;
    rig.pass(1_000);
    assert_eq!(rig.room.figures().left_silent, 0, "the answer may be here and not read yet");
    rig.is_behind = false;
    rig.pass(500);
    assert_eq!(rig.room.figures().left_silent, 1);
}

#[test]
fn what_the_index_told_of_is_counted_by_what_was_there() {
    let mut rig = Rig::new();
    (1..=5).for_each(|copy| rig.begin(copy, &[at("a")]));
    rig.connect();
    let number = rig.operation("a");
    let granted = Answer::Granted { bytes: BYTES };
    let never = Answer::NeverHeld { head: orbitkv_wire::identity::Sequence(9) };
    let busy = Answer::Busy { retry_after_ms: 1 };
    rig.answer(number, &[granted, granted, Answer::Ended { sequence: None }, never, busy]);
    rig.serve(number, 0);
    rig.say(number, FromSource::Failed { index: 1, cause: FailureCause::Ended });
    rig.pass(2);
    let again = rig.operation("a");
    assert_eq!(rig.blocks(again), [5]);
    let incarnation = orbitkv_wire::identity::Incarnation([7; 16]);
    rig.say(again, FromSource::Refused(Refusal::StaleEpoch { epoch: 7, incarnation }));
    let claims = rig.room.figures().claims;
    let reasons = [Dangling::RangeEnded, Dangling::Superseded, Dangling::NeverHeld];
    assert_eq!((claims.found(), reasons.map(|why| claims.dangling_for(why))), (1, [2, 1, 1]));
}
