//! Bytes on their way: wrong ones, ones that stop coming, and ones that nobody wants any more.

use orbitkv_wire::engine::answers::BlockOutcome;
use orbitkv_wire::identity::Medium;
use orbitkv_wire::payload::{Answer, FromSource};

use super::rig::*;
use crate::fetcher::*;

/// Two fetches in one operation at `a`, which has granted both; `b` has them too.
fn granted() -> (Rig, u64) {
    let mut rig = Rig::new();
    rig.begin(1, &[at("a"), at("b")]);
    rig.begin(2, &[at("a"), at("b")]);
    rig.connect();
    let number = rig.operation("a");
    rig.grant_all(number);
    (rig, number)
}

#[test]
fn what_has_another_checksum_is_not_installed() {
    let (mut rig, number) = granted();
    rig.announce(number, 0);
    rig.arrive(number, 0, 4712);
    assert!(rig.ended.is_empty());
    assert_eq!((rig.room.figures().wrong_checksums, rig.room.figures().bytes_wasted), (1, 100));
    rig.connect();
    rig.answer(rig.operation("b"), &[Answer::Ended { sequence: None }]);
    assert_eq!(rig.outcome(), Err(BlockOutcome::Corrupt));
    rig.ended.clear();
    rig.serve(number, 1);
    assert_eq!(rig.outcome(), Ok(Medium::Dram), "the other one is none the worse");
}

#[test]
fn a_grant_of_another_length_has_no_destination() {
    let mut rig = Rig::new();
    rig.begin(1, &[at("a"), at("b")]);
    rig.begin(2, &[at("a")]);
    rig.connect();
    let number = rig.operation("a");
    rig.answer(number, &[Answer::Granted { bytes: BYTES + 1 }, Answer::Granted { bytes: BYTES }]);
    assert_eq!(rig.room.figures().wrong_lengths, 1);
    rig.say(number, FromSource::Bytes { index: 0, bytes: BYTES + 1, checksum: 4711 });
    assert_eq!(rig.destination(number, 0), None);
    rig.arrive(number, 0, 4711);
    assert!(rig.ended.is_empty());
    rig.serve(number, 1);
    assert_eq!(rig.ending(number), "release");
}

#[test]
fn a_stream_that_breaks_off_leaves_the_rest_to_others() {
    for end in [StreamEnd::Reset { code: 2 }, StreamEnd::Finished] {
        let (mut rig, number) = granted();
        rig.serve(number, 1);
        rig.announce(number, 0);
        assert!(rig.destination(number, 0).is_some());
        rig.stream_over(number, end);
        assert_eq!(rig.ending(number), "forget");
        assert_eq!(rig.destination(number, 0), None);
        let is_reset = end != StreamEnd::Finished;
        let figures = rig.room.figures();
        assert_eq!((figures.reset, figures.cut_short), (u64::from(is_reset), u64::from(!is_reset)));
        rig.connect();
        assert_eq!(rig.blocks(rig.operation("b")), [1]);
        assert_eq!(rig.outcome(), Ok(Medium::Dram));
    }
}

#[test]
fn a_connection_that_is_lost_leaves_everything_to_others() {
    let (mut rig, number) = granted();
    rig.announce(number, 0);
    let connection = rig.connection("a");
    rig.lose("a");
    assert_eq!(rig.room.destination(connection, Rig::id(number), 0, rig.now), None);
    rig.connect();
    assert_eq!(rig.blocks(rig.operation("b")), [1, 2]);
}

#[test]
fn who_is_cancelled_has_no_destination_and_the_operation_goes_on() {
    let (mut rig, number) = granted();
    rig.announce(number, 0);
    assert!(rig.destination(number, 0).is_some());
    rig.cancel(1);
    assert_eq!(rig.outcome(), Err(BlockOutcome::Cancelled));
    assert_eq!(rig.destination(number, 0), None);
    rig.arrive(number, 0, 4711);
    assert_eq!(rig.room.figures().bytes_wasted, 100);
    rig.ended.clear();
    rig.serve(number, 1);
    assert_eq!((rig.outcome(), rig.ending(number)), (Ok(Medium::Dram), "release"));
}

#[test]
fn an_operation_that_nobody_wants_is_cancelled() {
    let (mut rig, number) = granted();
    rig.cancel(2);
    assert_eq!(rig.ending(number), "none");
    rig.announce(number, 0);
    rig.cancel(1);
    assert_eq!(rig.ending(number), "cancel");
    assert_eq!((rig.room.bytes_outstanding(), rig.room.fetches()), (0, 0));
    // Cancelled before it is answered: nothing but a number is burnt.
    rig.begin(3, &[at("a")]);
    rig.step();
    let unanswered = rig.operation("a");
    rig.cancel(3);
    assert_eq!(rig.ending(unanswered), "cancel");
}

#[test]
fn a_copy_begun_again_after_its_cancel_is_another_fetch() {
    let (mut rig, number) = granted();
    rig.announce(number, 0);
    rig.cancel(1);
    rig.ended.clear();
    rig.begin(1, &[at("a")]);
    rig.step();
    let again = *rig.operations("a").last().unwrap();
    assert_ne!(again, number);
    assert_eq!(rig.destination(number, 0), None, "the former operation does not write for it");
    rig.arrive(number, 0, 4711);
    assert!(rig.ended.is_empty());
    rig.grant_all(again);
    rig.serve(again, 0);
    assert_eq!(rig.outcome(), Ok(Medium::Dram));
}

#[test]
fn a_deadline_ends_a_fetch_wherever_it_is() {
    for stage in 0..5 {
        let mut rig = Rig::new();
        rig.begin_within(order(1, u64::from(BYTES)), &[at("a")], 500);
        rig.step();
        if stage > 0 {
            rig.connect();
        }
        let number = rig.asked.keys().next().copied();
        match (stage, number) {
            (2, Some(number)) => rig.answer(number, &[Answer::Busy { retry_after_ms: 499 }]),
            (3.., Some(number)) => rig.grant_all(number),
            _ => {}
        }
        if stage == 4 {
            rig.announce(number.unwrap(), 0);
        }
        rig.pass(499);
        assert!(rig.ended.is_empty(), "{stage}");
        rig.pass(1);
        assert_eq!(rig.outcome(), Err(BlockOutcome::DeadlineExceeded), "{stage}");
        assert!(rig.asked.is_empty());
        assert_eq!(rig.room.figures().deadline, 1);
    }
}

#[test]
fn what_comes_late_changes_nothing() {
    let (mut rig, number) = granted();
    let connection = rig.connection("a");
    rig.cancel(1);
    rig.cancel(2);
    let late = FromSource::Bytes { index: 0, bytes: BYTES, checksum: 4711 };
    rig.room.on_message(connection, Rig::id(number), &late, rig.now);
    rig.room.on_bytes(connection, Rig::id(number), 0, 4711);
    rig.room.on_stream_over(connection, Rig::id(number), StreamEnd::Finished, rig.now);
    rig.step();
    assert_eq!((rig.room.figures().late, rig.room.figures().fetched), (2, 0));
    assert!(rig.closed.is_empty());
}

#[test]
fn an_operation_that_stands_still_is_given_up() {
    let (mut rig, number) = granted();
    rig.pass(9_000);
    rig.announce(number, 0);
    rig.pass(9_000);
    assert!(rig.destination(number, 0).is_some());
    rig.pass(9_999);
    assert_eq!(rig.room.figures().stalled, 0);
    rig.pass(1);
    assert_eq!((rig.room.figures().stalled, rig.ending(number)), (1, "cancel"));
    rig.connect();
    assert_eq!(rig.blocks(rig.operation("b")), [1, 2]);
}
