//! Each answer, and what follows from it.

use orbitkv_wire::engine::answers::BlockOutcome;
use orbitkv_wire::identity::{Incarnation, Medium, Sequence};
use orbitkv_wire::payload::{Answer, FailureCause, FromSource, Kind, Refusal, StopCause};

use super::rig::*;
use crate::fetcher::*;
use crate::flow::pressure::UNMEASURED;

/// A fetch that `a` was asked for, and that `b` has too.
fn asked() -> (Rig, u64) {
    let mut rig = Rig::new();
    rig.begin(1, &[at("a"), at("b")]);
    rig.connect();
    let number = rig.operation("a");
    (rig, number)
}

/// The fetch went on to `b`, which serves it.
fn goes_on(rig: &mut Rig) {
    assert!(rig.ended.is_empty(), "{:?}", rig.ended);
    rig.connect();
    let number = rig.operation("b");
    assert_eq!(rig.blocks(number), [1]);
    rig.grant_all(number);
    rig.serve(number, 0);
    assert_eq!(rig.outcome(), Ok(Medium::Dram));
    assert_eq!(rig.room.figures().rerouted, 1);
}

#[test]
fn what_is_granted_comes_and_is_released() {
    let (mut rig, number) = asked();
    rig.grant_all(number);
    assert_eq!(rig.destination(number, 0), None, "nothing is announced");
    rig.announce(number, 0);
    let place = Destination { arena_offset: 4096, bytes: BYTES };
    assert_eq!(rig.destination(number, 0), Some(place));
    assert_eq!(rig.room.bytes_outstanding(), u64::from(BYTES));
    rig.arrive(number, 0, 4711);
    assert_eq!(rig.ended[0].1, Ok((Medium::Dram, 4711)));
    assert_eq!(rig.ending(number), "release");
    assert_eq!((rig.room.bytes_outstanding(), rig.room.fetches()), (0, 0));
    let figures = rig.room.figures();
    assert_eq!((figures.granted, figures.fetched, figures.bytes_fetched), (1, 1, u64::from(BYTES)));
    assert_eq!((figures.operations, figures.residences, figures.rerouted), (1, 1, 0));
}

#[test]
fn what_has_ended_is_sought_elsewhere() {
    let (mut rig, number) = asked();
    rig.answer(number, &[Answer::Ended { sequence: Some(Sequence(9)) }]);
    assert_eq!(rig.ending(number), "forget");
    assert_eq!(rig.room.figures().ended, 1);
    let asked = at("a").sequence.0;
    assert_eq!(rig.range_ended, [(node("a"), asked, Some(9))], "with its key and both sequences");
    goes_on(&mut rig);
    assert_eq!((rig.range_ended.len(), rig.room.figures().stale_epoch), (1, 0));
}

#[test]
fn what_nobody_has_is_missing() {
    let mut rig = Rig::new();
    rig.begin(1, &[at("a")]);
    rig.connect();
    rig.answer(rig.operation("a"), &[Answer::NeverHeld { head: Sequence(5) }]);
    assert_eq!(rig.outcome(), Err(BlockOutcome::Missing));
    let figures = rig.room.figures();
    assert_eq!((figures.never_held, figures.beyond_head, figures.missing), (1, 0, 1));
}

#[test]
fn a_residence_beyond_the_head_is_an_alarm() {
    let (mut rig, number) = asked();
    rig.answer(number, &[Answer::NeverHeld { head: Sequence(4) }]);
    assert_eq!((rig.room.figures().never_held, rig.room.figures().beyond_head), (1, 1));
    goes_on(&mut rig);
}

#[test]
fn who_is_busy_is_asked_again_after_all_others() {
    let (mut rig, number) = asked();
    rig.answer(number, &[Answer::Busy { retry_after_ms: 50 }]);
    rig.connect();
    rig.answer(rig.operation("b"), &[Answer::Ended { sequence: None }]);
    assert!(rig.ended.is_empty() && rig.asked.is_empty(), "it waits");
    rig.pass(49);
    assert!(rig.asked.is_empty());
    rig.pass(1);
    let again = rig.operation("a");
    rig.grant_all(again);
    rig.serve(again, 0);
    assert_eq!(rig.outcome(), Ok(Medium::Dram));
    assert_eq!(rig.room.figures().answered_busy, 1);
}

#[test]
fn busy_is_what_only_busy_ones_make_of_it() {
    let mut rig = Rig::new();
    rig.begin(1, &[at("a")]);
    rig.connect();
    for tried in 1..=3 {
        assert!(rig.ended.is_empty());
        rig.answer(rig.operation("a"), &[Answer::Busy { retry_after_ms: 10 }]);
        assert_eq!(rig.room.figures().answered_busy, tried);
        rig.pass(10);
    }
    assert_eq!(rig.outcome(), Err(BlockOutcome::Busy));
}

#[test]
fn nobody_waits_for_who_is_busy_beyond_the_deadline() {
    let mut rig = Rig::new();
    rig.begin_within(order(1, u64::from(BYTES)), &[at("a")], 500);
    rig.connect();
    rig.answer(rig.operation("a"), &[Answer::Busy { retry_after_ms: 500 }]);
    assert_eq!(rig.outcome(), Err(BlockOutcome::Busy));
}

#[test]
fn a_successor_excludes_the_older_life_and_admits_nobody() {
    let mut rig = Rig::new();
    rig.begin(1, &[at("a"), at("b")]);
    rig.begin(2, &[at("a")]);
    rig.connect();
    let number = rig.operation("a");
    let successor = Refusal::StaleEpoch { epoch: 2, incarnation: Incarnation([2; 16]) };
    rig.say(number, FromSource::Refused(successor));
    assert_eq!(rig.ending(number), "forget");
    assert_eq!(rig.excluded, [(node("a"), Incarnation([1; 16]))]);
    assert_eq!((rig.refreshes.len(), rig.closed.as_slice()), (1, &[CloseCause::MemberGone][..]));
    assert_eq!(rig.outcome(), Err(BlockOutcome::Missing), "the second had no other");
    rig.ended.clear();
    goes_on(&mut rig);
    // Neither life is asked until members show the new one.
    rig.ended.clear();
    let new = Candidate { source: source("a", 2), ..at("a") };
    rig.begin(3, &[at("a"), new]);
    rig.step();
    assert_eq!(rig.outcome(), Err(BlockOutcome::Missing));
    rig.ended.clear();
    rig.members(vec![member("a", 2), member("b", 1)]);
    rig.begin(4, &[at("a"), new]);
    rig.connect();
    assert!(rig.sources().contains(&source("a", 2)) && !rig.sources().contains(&source("a", 1)));
    assert_eq!((rig.room.figures().stale_epoch, rig.room.figures().epoch_conflicts), (1, 0));
}

#[test]
fn a_life_is_doubted_once_whoever_contradicts_it() {
    let mut rig = Rig::new();
    for copy in 1..=3 {
        rig.begin(copy, &[at("a")]);
        rig.connect();
        rig.say(rig.operation("a"), FromSource::Refused(Refusal::Misdirected));
    }
    let of = |name| (node(name), Incarnation([1; 16]));
    assert_eq!((rig.refreshes.as_slice(), rig.room.figures().misdirected), (&[of("a")][..], 3));
    // However much later; and another one of its own.
    rig.pass(10_000);
    for (copy, name) in [(4, "a"), (5, "b")] {
        rig.begin(copy, &[at(name)]);
        rig.connect();
        rig.say(rig.operation(name), FromSource::Refused(Refusal::Misdirected));
    }
    assert_eq!(rig.refreshes, [of("a"), of("b")]);
}

#[test]
fn an_earlier_life_or_one_of_our_epoch_excludes_nobody() {
    for (epoch, conflicts) in [(0, 0), (1, 1)] {
        let (mut rig, number) = asked();
        let other = Refusal::StaleEpoch { epoch, incarnation: Incarnation([99; 16]) };
        rig.say(number, FromSource::Refused(other));
        assert!(rig.excluded.is_empty() && rig.closed.is_empty());
        assert_eq!((rig.refreshes.len(), rig.room.figures().epoch_conflicts), (1, conflicts));
        goes_on(&mut rig);
    }
}

#[test]
fn who_refuses_its_own_life_breaks_the_protocol() {
    let (mut rig, number) = asked();
    let own = Refusal::StaleEpoch { epoch: 2, incarnation: Incarnation([1; 16]) };
    rig.say(number, FromSource::Refused(own));
    assert_eq!(rig.closed, [CloseCause::Violation(Violation::OwnLife)]);
    assert!(rig.excluded.is_empty());
    goes_on(&mut rig);
}

#[test]
fn other_refusals_are_counted_apart_and_go_on() {
    for refusal in [Refusal::LeaseExpired, Refusal::TransportOff, Refusal::Repeated, Refusal::Misdirected] {
        let (mut rig, number) = asked();
        rig.say(number, FromSource::Refused(refusal));
        assert_eq!(rig.ending(number), "forget");
        let figures = rig.room.figures();
        let counted = [figures.lease_expired, figures.transport_off, figures.repeated, figures.misdirected];
        let expected =
            [Refusal::LeaseExpired, Refusal::TransportOff, Refusal::Repeated, Refusal::Misdirected]
                .map(|other| u64::from(other == refusal));
        assert_eq!(counted, expected);
        assert!(rig.excluded.is_empty() && rig.closed.is_empty());
        goes_on(&mut rig);
    }
}

#[test]
fn a_read_that_fails_there_is_a_block_somewhere_else() {
    let cases = [
        (FailureCause::DeviceError, BlockOutcome::DeviceError),
        (FailureCause::Corrupt, BlockOutcome::Corrupt),
        (FailureCause::Ended, BlockOutcome::Missing),
    ];
    for (cause, outcome) in cases {
        let (mut rig, number) = asked();
        rig.grant_all(number);
        rig.say(number, FromSource::Failed { index: 0, cause });
        assert_eq!((rig.ending(number), rig.room.figures().failed_reads), ("release", 1));
        rig.connect();
        rig.answer(rig.operation("b"), &[Answer::Ended { sequence: None }]);
        assert_eq!(rig.outcome(), Err(outcome));
    }
}

#[test]
fn messages_that_do_not_belong_close_the_connection() {
    let grant = FromSource::Answers {
        grant_ms: 1,
        summary: UNMEASURED,
        answers: vec![Answer::Granted { bytes: BYTES }],
    };
    let two = FromSource::Answers {
        grant_ms: 1,
        summary: UNMEASURED,
        answers: vec![Answer::Granted { bytes: BYTES }; 2],
    };
    let bytes = |index, bytes| FromSource::Bytes { index, bytes, checksum: 1 };
    let failed = |index| FromSource::Failed { index, cause: FailureCause::Ended };
    let refused = FromSource::Refused(Refusal::LeaseExpired);
    let extent = FromSource::Extent { index: 0, bytes: BYTES, checksum: 1, offset: 0 };
    let stopped = FromSource::Stopped { cause: StopCause::Fenced };
    let of = Violation::Unexpected;
    let cases = [
        (vec![two], Violation::AnswerCount { asked: 1, answered: 2 }),
        (vec![grant.clone(), grant.clone()], of(Kind::Answers)),
        (vec![grant.clone(), refused], of(Kind::Refused)),
        (vec![bytes(0, BYTES)], Violation::NotGranted { index: 0 }),
        (vec![failed(0)], Violation::NotGranted { index: 0 }),
        (vec![grant.clone(), bytes(1, BYTES)], Violation::NotGranted { index: 1 }),
        (vec![grant.clone(), failed(1)], Violation::NotGranted { index: 1 }),
        (vec![grant.clone(), bytes(0, BYTES), bytes(0, BYTES)], Violation::NotGranted { index: 0 }),
        (vec![grant.clone(), bytes(0, BYTES), failed(0)], Violation::NotGranted { index: 0 }),
        (vec![grant, bytes(0, 99)], Violation::Length { index: 0, granted: BYTES, sent: 99 }),
        (vec![extent], of(Kind::Extent)),
        (vec![stopped], of(Kind::Stopped)),
        (vec![FromSource::Drained], of(Kind::Drained)),
    ];
    for (messages, violation) in cases {
        let (mut rig, number) = asked();
        messages.into_iter().for_each(|message| rig.say(number, message));
        assert_eq!(rig.closed, [CloseCause::Violation(violation)]);
        assert_eq!((rig.ending(number), rig.room.figures().violations), ("none", 1));
        goes_on(&mut rig);
    }
}
