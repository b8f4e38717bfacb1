//! Reads in a source's arena: until when, what ends them, and that the source hears of every end.

use orbitkv_wire::engine::answers::BlockOutcome;
use orbitkv_wire::identity::Medium;
use orbitkv_wire::payload::{Answer, FromSource, Refusal, Transport};

use super::rig::*;
use crate::fetcher::*;

/// Two fetches over shared memory in one operation at `a`, which has granted both for a second.
fn granted() -> (Rig, u64) {
    let mut rig = Rig::new();
    rig.begin(9, &[at("a")]);
    rig.connect();
    let first = rig.operation("a");
    assert_eq!(rig.transport(first), Transport::Quic, "nobody shares memory unasked");
    rig.answer(first, &[Answer::Ended { sequence: None }]);
    rig.ended.clear();
    rig.share("a", true);
    rig.begin(1, &[at("a")]);
    rig.begin(2, &[at("a")]);
    rig.step();
    let number = rig.operation("a");
    assert_eq!(rig.transport(number), Transport::Shm);
    rig.grant_all(number);
    (rig, number)
}

#[test]
fn what_is_told_is_read_and_released_with_the_last_of_it() {
    let (mut rig, number) = granted();
    rig.tell(number, 1);
    assert_eq!(rig.reads, [(number, 1, 7)]);
    assert!(rig.destination(number, 1).is_some());
    assert_eq!(rig.destination(number, 0), None, "nobody has said where it lies");
    rig.arrive(number, 1, 4711);
    assert_eq!(rig.outcome(), Ok(Medium::Dram));
    assert!(rig.released.is_empty(), "the other one may still be read");
    rig.tell(number, 0);
    // All is told: the stream's end is no end of what is read.
    rig.stream_over(number, StreamEnd::Finished);
    assert!(rig.destination(number, 0).is_some());
    rig.arrive(number, 0, 4711);
    assert_eq!((rig.ended.len(), &rig.released[..], rig.ending(number)), (2, &[number][..], "forget"));
    let figures = rig.room.figures();
    assert_eq!((figures.fetched_shm, figures.bytes_fetched_shm, figures.cut_short), (2, 200, 0));
}

#[test]
fn nothing_is_read_past_the_end_of_a_grant() {
    let (mut rig, number) = granted();
    rig.tell(number, 0);
    rig.pass(999);
    assert!(rig.destination(number, 0).is_some());
    rig.pass(1);
    assert_eq!(rig.destination(number, 0), None);
    rig.unread(number, 0);
    assert!(rig.released.is_empty() && rig.ended.is_empty());
    // The same source may still send it.
    let again = *rig.operations("a").last().unwrap();
    assert_eq!((rig.transport(again), rig.blocks(again)), (Transport::Quic, vec![1]));
    rig.stream_over(number, StreamEnd::Reset { code: 0 });
    assert_eq!(rig.released, [number]);
    rig.answer(again, &[Answer::Granted { bytes: BYTES }]);
    rig.serve(again, 0);
    assert_eq!(rig.room.figures().unread, 1);
}

#[test]
fn a_grant_counts_from_when_it_was_asked_for() {
    let mut rig = Rig::new();
    rig.begin(9, &[at("a")]);
    rig.connect();
    rig.answer(rig.operation("a"), &[Answer::Ended { sequence: None }]);
    rig.share("a", true);
    rig.begin(1, &[at("a")]);
    rig.step();
    let number = rig.operation("a");
    rig.pass(600);
    rig.grant_all(number);
    rig.tell(number, 0);
    rig.pass(399);
    assert!(rig.destination(number, 0).is_some());
    rig.pass(1);
    assert_eq!(rig.destination(number, 0), None, "the source has counted for as long, or longer");
}

#[test]
fn every_end_is_told_to_the_source_once() {
    type End = fn(&mut Rig, u64);
    let ends: [(&str, End); 7] = [
        ("lost", |rig, _| rig.lose("a")),
        ("fenced", |rig, _| {
            rig.room.on_fenced();
            rig.take_effects();
        }),
        ("gone", |rig, _| rig.members(vec![member("b", 1)])),
        ("successor", |rig, _| {
            rig.room.on_excluded(node("a"), source("a", 1).incarnation);
            rig.step();
        }),
        ("unshared", |rig, _| rig.share("a", false)),
        ("unwanted", |rig, _| {
            rig.cancel(1);
            rig.cancel(2);
        }),
        ("violation", |rig, number| rig.tell(number, 0)),
    ];
    for (name, end) in ends {
        let (mut rig, number) = granted();
        let connection = rig.connection("a");
        rig.tell(number, 0);
        end(&mut rig, number);
        assert_eq!(rig.released, [number], "{name}");
        let destination = rig.room.destination(connection, Rig::id(number), 0, rig.now);
        assert_eq!(destination, None, "{name}: nothing is read after that");
        // A step that was under way is not believed.
        rig.room.on_bytes(connection, Rig::id(number), 0, 4711);
        rig.step();
        assert_eq!(rig.room.figures().fetched, 0, "{name}");
    }
}

#[test]
fn a_broken_peer_socket_leaves_quic() {
    let (mut rig, number) = granted();
    rig.tell(number, 0);
    rig.share("a", false);
    let again = rig.operation("a");
    assert_eq!((rig.transport(again), rig.blocks(again)), (Transport::Quic, vec![1, 2]));
    rig.grant_all(again);
    rig.serve(again, 0);
    rig.serve(again, 1);
    assert_eq!((rig.ended.len(), rig.room.figures().fetched_shm), (2, 0));
    // What begins after it is there again comes that way again.
    rig.share("a", true);
    rig.begin(3, &[at("a")]);
    rig.step();
    assert_eq!(rig.transport(rig.operation("a")), Transport::Shm);
}

#[test]
fn a_source_without_room_for_readers_is_asked_over_quic_at_once() {
    for is_off in [true, false] {
        let (mut rig, first) = granted();
        rig.stream_over(first, StreamEnd::Finished);
        rig.ended.clear();
        rig.begin(3, &[at("a")]);
        rig.step();
        let number = rig.operation("a");
        match is_off {
            true => rig.say(number, FromSource::Refused(Refusal::TransportOff)),
            false => rig.answer(number, &[Answer::Busy { retry_after_ms: 500 }]),
        }
        let again = rig.operation("a");
        assert_eq!((rig.transport(again), rig.blocks(again)), (Transport::Quic, vec![3]));
        rig.begin(4, &[at("a")]);
        rig.step();
        let transport = rig.transport(*rig.operations("a").last().unwrap());
        assert_eq!(transport, if is_off { Transport::Quic } else { Transport::Shm });
        rig.answer(again, &[Answer::Ended { sequence: None }]);
        assert_eq!(rig.outcome(), Err(BlockOutcome::Missing));
    }
}

#[test]
fn bytes_come_the_way_they_were_asked_for() {
    let (mut rig, number) = granted();
    rig.announce(number, 0);
    assert_eq!(rig.room.figures().violations, 1);
    let mut rig = Rig::new();
    rig.begin(1, &[at("a")]);
    rig.connect();
    let number = rig.operation("a");
    rig.grant_all(number);
    rig.tell(number, 0);
    assert_eq!(rig.room.figures().violations, 1);
    assert!(rig.reads.is_empty() && rig.released.is_empty());
}
