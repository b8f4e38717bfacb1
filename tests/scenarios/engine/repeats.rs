//! Requests that come twice are done once.

use std::time::Duration;

use orbitkv::client::CommitOutcome;
use orbitkv_wire::engine::answers::{Answer, SlotOutcome};
use orbitkv_wire::engine::requests::{
    GroupRecord, HashRecord, LeaseBody, ReservationRecord, ReservationsBody, ReserveBody, ReserveRecord,
};
use orbitkv_wire::engine::{Operation, Status};

use crate::harness::raw::{bare_request, hello_body, prefix_request, register_body, request, words};
use crate::harness::saver::{BLOCK_BYTES, block, registration};
use crate::harness::{Node, Raw, Saver};

fn reserve_frame(id: u64, keys: std::ops::Range<u64>) -> Vec<u8> {
    let records: Vec<ReserveRecord> =
        keys.map(|key| ReserveRecord { block: block(key).0, group: 0, bytes: BLOCK_BYTES }).collect();
    request(Operation::Reserve, id, &ReserveBody { namespace: 0, race: 0 }, &records)
}

fn commit_frame(id: u64, operation: Operation, arena_generation: u64, slots: &[u64]) -> Vec<u8> {
    let records: Vec<ReservationRecord> =
        slots.iter().map(|&reservation| ReservationRecord { reservation }).collect();
    request(operation, id, &ReservationsBody { arena_generation }, &records)
}

fn registered(node: &Node) -> (Raw, u64) {
    let mut raw = Raw::connect(&node.socket());
    let generation = raw.hello(&hello_body(0)).arena_generation;
    raw.register(&registration("engine"));
    (raw, generation)
}

fn slots(raw: &mut Raw, frame: &[u8]) -> (Vec<u64>, Vec<u8>) {
    let answer = raw.ask_bytes(frame);
    let Answer::Reserve(records) = answer.answer() else { panic!("{answer:?}") };
    let numbers = records.iter().map(|record| {
        let record = record.unwrap();
        assert_eq!(record.outcome, SlotOutcome::Slot as u8);
        record.reservation
    });
    (numbers.collect(), answer.body.clone())
}

#[test]
fn a_repeated_request_is_answered_as_before_and_done_once() {
    let node = Node::start();
    let (mut raw, generation) = registered(&node);
    let reserve = reserve_frame(100, 0..3);
    let (numbers, first) = slots(&mut raw, &reserve);
    for _ in 0..3 {
        assert_eq!(raw.ask_bytes(&reserve).body, first, "the same slots, not others");
    }
    assert_eq!(node.held().reservations, 3);

    let commit = commit_frame(101, Operation::Commit, generation, &numbers);
    for _ in 0..3 {
        let answer = raw.ask_bytes(&commit);
        assert_eq!(answer.body, [CommitOutcome::Committed as u8; 3], "the first answer, every time");
    }
    assert_eq!(node.metadata().shards[0].service.saves_committed, 3);

    // A repeat of the Reserve still says what it said, though the slots are published by now.
    assert_eq!(raw.ask_bytes(&reserve).body, first);
    assert_eq!(node.held().reservations, 0);

    // Release: taken once, ended once.
    raw.send(&prefix_request(Operation::Acquire, 102, 0, false, [0; 16], &[block(0).0]));
    let frame = raw.answers_to(102).pop().unwrap();
    let Answer::Acquire(answer, _) = frame.answer() else { panic!("{frame:?}") };
    let release = request(Operation::Release, 103, &LeaseBody { lease: answer.lease }, &[] as &[HashRecord]);
    for _ in 0..3 {
        assert_eq!(raw.ask_bytes(&release).status(), Status::Ok);
    }
    node.await_nothing_held();
    let engine = &node.metadata().shards[0].engine;
    assert_eq!((engine.repeats_suppressed, engine.repeats_too_late), (3 + 2 + 1 + 2, 0));
    // Another connection's ids are its own.
    let (mut other, _) = registered(&node);
    let (others, _) = slots(&mut other, &reserve_frame(100, 10..12));
    assert!(others.iter().all(|number| !numbers.contains(number)));
}

#[test]
fn a_repeat_that_comes_before_the_answer_is_done_once() {
    let node = Node::start();
    let (mut raw, generation) = registered(&node);
    let reserve = reserve_frame(100, 0..3);
    raw.send(&[reserve.clone(), reserve.clone(), reserve].concat());
    let first = raw.answer_to(100);
    while let Some(Some(again)) = raw.next_within(Duration::from_millis(300)) {
        assert_eq!((again.header.request_id, &again.body), (100, &first.body));
    }
    assert_eq!(node.held().reservations, 3);
    let Answer::Reserve(records) = first.answer() else { panic!("{first:?}") };
    let numbers: Vec<u64> = records.iter().map(|record| record.unwrap().reservation).collect();
    let commit = commit_frame(101, Operation::Commit, generation, &numbers);
    raw.send(&[commit.clone(), commit].concat());
    let first = raw.answer_to(101);
    assert_eq!(first.body, [CommitOutcome::Committed as u8; 3]);
    while let Some(Some(again)) = raw.next_within(Duration::from_millis(300)) {
        assert_eq!((again.header.request_id, &again.body), (101, &first.body));
    }
    node.await_nothing_held();
    node.assert_serves();
}

#[test]
fn an_id_used_for_something_else_is_a_duplicate_and_changes_nothing() {
    let node = Node::start();
    let (mut raw, generation) = registered(&node);
    let (numbers, _) = slots(&mut raw, &reserve_frame(100, 0..2));
    let commit_part = commit_frame(101, Operation::Commit, generation, &numbers[..1]);
    assert_eq!(raw.ask_bytes(&commit_part).body, [CommitOutcome::Committed as u8]);
    let others = [
        reserve_frame(100, 0..3),
        reserve_frame(100, 5..7),
        reserve_frame(101, 0..2),
        commit_frame(100, Operation::Commit, generation, &numbers),
        commit_frame(101, Operation::Commit, generation, &numbers),
        commit_frame(101, Operation::Abort, generation, &numbers[..1]),
    ];
    for frame in others {
        let answer = raw.ask_bytes(&frame);
        let (status, refusal) = answer.refusal();
        assert_eq!(status, Status::DuplicateRequest, "{answer:?}");
        assert_eq!(refusal.detail, answer.header.request_id);
        assert!(words(&refusal).contains(&refusal.detail.to_string()), "{}", words(&refusal));
    }
    assert_eq!(node.held().reservations, 1, "nothing of it was done");
    // The connection and the old answers are untouched.
    raw.ping();
    assert_eq!(raw.ask_bytes(&commit_part).body, [CommitOutcome::Committed as u8]);
    assert_eq!(raw.ask_bytes(&bare_request(Operation::Ping, 999)).status(), Status::Ok);
}

#[test]
fn an_acquire_or_a_register_that_comes_twice_is_done_once() {
    let node = Node::start();
    let mut saver = Saver::connect(&node.socket(), "engine");
    saver.save(&[0]);
    let (mut raw, _) = registered(&node);
    let groups = [GroupRecord { group: 0, kind: 0, tokens: 0, sink_tokens: 0, block_bytes: BLOCK_BYTES }];
    let register = request(Operation::Register, 99, &register_body(&registration("engine")), &groups);
    let first = raw.ask_bytes(&register);
    assert!(matches!(first.answer(), Answer::Register(answer) if answer.namespace == 1), "{first:?}");
    assert_eq!(raw.ask_bytes(&register).body, first.body, "the same handle");

    let acquire = prefix_request(Operation::Acquire, 100, 0, false, [0; 16], &[block(0).0]);
    raw.send(&acquire);
    let frame = raw.answers_to(100).pop().unwrap();
    let Answer::Acquire(answer, _) = frame.answer() else { panic!("{frame:?}") };
    assert_eq!(raw.ask_bytes(&acquire).status(), Status::DuplicateRequest);
    assert_eq!(node.held().leases, 1, "a repeat takes nothing");
    let release = request(Operation::Release, 101, &LeaseBody { lease: answer.lease }, &[] as &[HashRecord]);
    assert_eq!(raw.ask_bytes(&release).status(), Status::Ok);
    assert_eq!(raw.ask_bytes(&acquire).status(), Status::DuplicateRequest);
    node.await_nothing_held();
}
