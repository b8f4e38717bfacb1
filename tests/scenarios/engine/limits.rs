//! The bounds of one request and of one connection.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Write};
use std::time::{Duration, Instant};

use orbitkv::client::{Group, Place, Registration, Retention};
use orbitkv_wire::bounds::QUERY_HASHES_MAX;
use orbitkv_wire::engine::answers::{Answer, SlotOutcome};
use orbitkv_wire::engine::requests::{HashRecord, HelloBody, ListBody};
use orbitkv_wire::engine::{Operation, Status};

use crate::harness::raw::{hello_body, prefix_request, request, words};
use crate::harness::saver::{GROUP, block, registration};
use crate::harness::{Node, NodeOrder, Raw, Saver};

/// Small blocks, so that as many as a query may name fit a small node.
const SMALL_BYTES: u64 = 4096;

fn small_blocks(instance: &str) -> Registration {
    let groups = vec![Group { group: GROUP, retention: Retention::Full, block_bytes: SMALL_BYTES }];
    Registration { groups, ..registration(instance) }
}

/// Saves `keys` as they are in the arena: their bytes do not matter here.
fn save_small(raw: &mut Raw, generation: u64, keys: std::ops::Range<u64>) {
    let blocks: Vec<[u8; 32]> = keys.map(|key| block(key).0).collect();
    for chunk in blocks.chunks(4096) {
        let frame = raw.reserve(chunk, SMALL_BYTES);
        let Answer::Reserve(records) = frame.answer() else { panic!("{frame:?}") };
        let slots: Vec<u64> = records
            .iter()
            .map(|record| {
                let record = record.unwrap();
                assert_eq!(record.outcome, SlotOutcome::Slot as u8);
                record.reservation
            })
            .collect();
        let outcomes = raw.settle(Operation::Commit, generation, &slots);
        assert!(outcomes.iter().all(|&outcome| outcome == 0), "not all committed");
    }
}

fn small_node(blocks: u64) -> (Node, Raw) {
    let node = NodeOrder::default().dram("640mib").start();
    let mut raw = Raw::connect(&node.socket());
    let generation = raw.hello(&hello_body(0)).arena_generation;
    raw.register(&small_blocks("small"));
    save_small(&mut raw, generation, 0..blocks);
    (node, raw)
}

#[test]
fn a_query_of_16384_hashes_is_answered_whole_and_one_more_names_the_limit() {
    let limit = QUERY_HASHES_MAX as u64;
    let (node, mut raw) = small_node(limit);
    let hashes: Vec<[u8; 32]> = (0..=limit).map(|key| block(key).0).collect();
    raw.send(&prefix_request(Operation::Query, 100, 0, false, [0; 16], &hashes[..QUERY_HASHES_MAX]));
    let frame = raw.answer_to(100);
    let Answer::Query(answer, places) = frame.answer() else { panic!("{frame:?}") };
    assert_eq!((answer.boundary_blocks, answer.examined_blocks), (16_384, 16_384));
    assert_eq!(places.len(), 16_384);
    assert!(places.iter().all(|place| place.unwrap().place == Place::Dram as u8));

    raw.send(&prefix_request(Operation::Query, 101, 0, false, [0; 16], &hashes));
    let frame = raw.answer_to(101);
    let (status, refusal) = frame.refusal();
    assert_eq!((status, refusal.detail), (Status::OverLimit, limit));
    assert!(words(&refusal).contains("16384"), "{}", words(&refusal));
    // The connection goes on, and the frame after the refused one is understood.
    raw.ping();
    raw.send(&prefix_request(Operation::Query, 102, 0, false, [0; 16], &hashes[16_000..]));
    let frame = raw.answer_to(102);
    let Answer::Query(answer, _) = frame.answer() else { panic!("{frame:?}") };
    assert_eq!(answer.boundary_blocks, 384);

    // Acquire, Reserve, Commit and Evict take 4,096.
    raw.send(&prefix_request(Operation::Acquire, 103, 0, false, [0; 16], &hashes[..4097]));
    assert_eq!(raw.answer_to(103).refusal().1.detail, 4096);
    assert_eq!(raw.reserve(&hashes[..4097], SMALL_BYTES).refusal().1.detail, 4096);
    raw.ping();
    node.await_nothing_held();
    node.assert_serves();
}

#[test]
fn as_many_requests_as_agreed_may_be_unanswered_and_one_more_is_refused() {
    for agreed in [64, 256] {
        let node = Node::start();
        let mut saver = Saver::connect(&node.socket(), "saver");
        saver.save(&(0..40).collect::<Vec<u64>>());
        let mut raw = Raw::connect(&node.socket());
        let hello = HelloBody { in_flight: agreed, ..hello_body(0) };
        assert_eq!(raw.hello(&hello).in_flight, agreed);
        raw.register(&registration("saver"));
        // In one piece, so that the node has read them all before it answers any.
        let ids: Vec<u64> = (0..u64::from(agreed) + 1).map(|index| 10_000 + index * 7).collect();
        let frames: Vec<u8> = ids
            .iter()
            .enumerate()
            .flat_map(|(index, &id)| {
                let keys: Vec<[u8; 32]> = (0..index as u64 % 40 + 1).map(|key| block(key).0).collect();
                let keys = &keys[keys.len().saturating_sub(3)..];
                prefix_request(Operation::Query, id, 0, false, [0; 16], keys)
            })
            .collect();
        raw.send(&frames);
        let mut unanswered: BTreeSet<u64> = ids.iter().copied().collect();
        let mut refused = Vec::new();
        while !unanswered.is_empty() {
            let frame = raw.next().expect("all are answered");
            assert!(unanswered.remove(&frame.header.request_id), "answered twice: {frame:?}");
            match frame.answer() {
                Answer::Query(answer, _) => assert!(answer.boundary_blocks > 0),
                Answer::Refused(status, refusal) => {
                    assert_eq!((status, refusal.detail), (Status::TooManyInFlight, u64::from(agreed)));
                    refused.push(frame.header.request_id);
                }
                answer => panic!("{answer:?}"),
            }
        }
        assert_eq!(refused, ids[usize::from(agreed)..], "the one over the limit, and no other");
        raw.ping();
        node.await_nothing_held();
    }
}

#[test]
fn more_requests_than_the_node_has_seats_for_are_not_granted() {
    let node = Node::start();
    let mut raw = Raw::connect(&node.socket());
    assert_eq!(raw.hello(&HelloBody { in_flight: u16::MAX, ..hello_body(0) }).in_flight, 256);
    let mut raw = Raw::connect(&node.socket());
    assert_eq!(raw.hello(&HelloBody { in_flight: 0, ..hello_body(0) }).in_flight, 1);
    raw.ping();
}

/// Writes frames until the node takes no more; how many went in whole, and the rest of the last one.
fn write_until_full(raw: &mut Raw, mut frame: impl FnMut(u64) -> Vec<u8>) -> (u64, Vec<u8>) {
    raw.stream.set_nonblocking(true).expect("our own socket");
    let mut quiet_since = Instant::now();
    for count in 0.. {
        let bytes = frame(count);
        let mut sent = 0;
        while sent < bytes.len() {
            match raw.stream.write(&bytes[sent..]) {
                Ok(more) => {
                    sent += more;
                    quiet_since = Instant::now();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if quiet_since.elapsed() > Duration::from_millis(500) {
                        raw.stream.set_nonblocking(false).expect("our own socket");
                        return (count, bytes[sent..].to_vec());
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => panic!("the node broke off: {error}"),
            }
        }
        assert!(count < 200_000, "the node takes requests without end");
    }
    unreachable!("counted above")
}

#[test]
fn a_client_that_never_reads_is_paused_and_recovers_when_it_reads() {
    let (node, mut raw) = small_node(4096);
    let digest = Saver::with(orbitkv::client::ClientSettings::new(node.socket()), &small_blocks("digest"));
    let namespace = digest.client.digest(digest.namespace).unwrap().0;
    node.assert_serves();
    let before = node.resident_bytes();
    let hashes: Vec<[u8; 32]> = (0..128).map(|key| block(key).0).collect();
    // Pages are small questions with large answers, and queries come by the thousand.
    let list = ListBody { namespace, media: 3, limit: 4096, cursor: [0; 40] };
    let (whole, rest) = write_until_full(&mut raw, |count| {
        if count % 2 == 0 {
            request(Operation::List, 50_000 + count, &list, &[] as &[HashRecord])
        } else {
            prefix_request(Operation::Query, 50_000 + count, 0, false, [0; 16], &hashes)
        }
    });
    node.assert_serves();
    let grown = node.resident_bytes().saturating_sub(before);
    assert!(grown < 4 << 20, "a client that does not read costs {} KiB", grown / 1024);

    // It reads again: every request that was taken is answered, and it is served like any other.
    // The rest of its last frame has room once answers are read, so another thread writes it.
    let mut writer = raw.stream.try_clone().expect("a descriptor");
    let writer = std::thread::spawn(move || writer.write_all(&rest).expect("the node takes our bytes"));
    let mut unanswered: BTreeSet<u64> = (50_000..=50_000 + whole).collect();
    while !unanswered.is_empty() {
        let frame = raw.next().expect("all are answered");
        assert!(unanswered.remove(&frame.header.request_id), "answered twice");
        match frame.answer() {
            Answer::List(_, residents) => assert_eq!(residents.len(), 4096),
            Answer::Query(answer, _) => assert_eq!(answer.boundary_blocks, 128),
            Answer::Refused(Status::TooManyInFlight, _) => {}
            answer => panic!("{answer:?}"),
        }
    }
    writer.join().expect("written");
    raw.ping();
    node.await_nothing_held();
    node.assert_serves();
}

#[test]
fn clients_that_never_read_and_die_leave_nothing() {
    let (node, _raw) = small_node(4096);
    let mut process = crate::harness::EngineProcess::start(&node);
    let hashes: Vec<[u8; 32]> = (0..128).map(|key| block(key).0).collect();
    let mut silent = Vec::new();
    for index in 0..4 {
        let mut raw = process.raw();
        raw.register(&small_blocks("silent"));
        write_until_full(&mut raw, |count| {
            prefix_request(Operation::Query, 100 + count, 0, index % 2 == 0, [0; 16], &hashes)
        });
        silent.push(raw);
        node.assert_serves();
    }
    process.kill();
    node.await_nothing_held();
    node.assert_serves();
}

#[test]
fn many_small_blocks_and_many_connections_stay_within_the_printed_bill() {
    // Far more than the bill has busy buffers for, and blocks that fill the tables before the media.
    const ENGINES: u64 = 600;
    const BLOCKS_EACH: u64 = 16;
    let node = NodeOrder::default().ssd("64mib").start();
    let hashes: Vec<[u8; 32]> = (0..QUERY_HASHES_MAX as u64).map(|key| block(key).0).collect();
    let largest = prefix_request(Operation::Query, 1_000, 0, false, [0; 16], &hashes);
    let mut engines = Vec::new();
    for engine in 0..ENGINES {
        let mut raw = Raw::connect(&node.socket());
        let generation = raw.hello(&hello_body(0)).arena_generation;
        raw.register(&small_blocks(&format!("engine-{engine}")));
        let blocks: Vec<[u8; 32]> =
            (0..BLOCKS_EACH).map(|key| block(1_000_000 + engine * BLOCKS_EACH + key).0).collect();
        let frame = raw.reserve(&blocks, SMALL_BYTES);
        let Answer::Reserve(records) = frame.answer() else { panic!("{frame:?}") };
        let slots = records.iter().map(|record| record.expect("valid"));
        let slots = slots.filter(|record| record.outcome == SlotOutcome::Slot as u8);
        let slots: Vec<u64> = slots.map(|record| record.reservation).collect();
        raw.settle(Operation::Commit, generation, &slots);
        // Leases that stay, and the largest request there is.
        if engine % 4 == 0 {
            raw.send(&prefix_request(Operation::Acquire, 999, 0, false, [0; 16], &blocks));
            raw.answers_to(999);
        }
        raw.send(&largest);
        raw.answer_to(1_000);
        engines.push(raw);
    }
    let page = node.metadata();
    assert_eq!(page.shards[0].engine.connections, ENGINES);
    assert!(page.shards[0].engine.leases > 0 && page.shards[0].evictions.dram > 0, "{page:#?}");
    let memory = page.memory;
    assert!(memory.rss_peak_bytes <= memory.bill_bytes, "{memory:?}");
    engines.iter_mut().for_each(Raw::ping);
}
