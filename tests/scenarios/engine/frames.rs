//! Bytes that are no protocol: each is answered or dropped by the letter of the protocol, holds
//! nothing, and disturbs nobody.

use std::io::Write;
use std::net::Shutdown;
use std::time::Duration;

use orbitkv_wire::bounds::FRAME_BYTES_MAX;
use orbitkv_wire::engine::answers::Answer;
use orbitkv_wire::engine::requests::{
    CancelBody, ClearBody, EvictBody, GroupRecord, HashRecord, HelloBody, KeyRecord, LeaseBody, ListBody,
    ReservationRecord, ReservationsBody, ReserveBody, ReserveRecord,
};
use orbitkv_wire::engine::{Operation, Status, VERSION, VERSION_MIN};

use crate::harness::raw::{bare_request, hello_body, prefix_request, register_body, request, words};
use crate::harness::saver::{BLOCK_BYTES, block, registration};
use crate::harness::{EngineProcess, Node, Raw};

const NONE: &[HashRecord] = &[];

/// One valid frame of every operation that may follow Hello and Register, Drain left out.
fn valid_frames(generation: u64) -> Vec<(Operation, Vec<u8>)> {
    let hash = block(1).0;
    let group = GroupRecord { group: 0, kind: 0, tokens: 0, sink_tokens: 0, block_bytes: BLOCK_BYTES };
    let key = ReserveRecord { block: hash, group: 0, bytes: BLOCK_BYTES };
    let slots = ReservationsBody { arena_generation: generation };
    let slot = ReservationRecord { reservation: 1 };
    let list = ListBody { namespace: [1; 32], media: 3, limit: 10, cursor: [0; 40] };
    let id = 77;
    vec![
        (Operation::Ping, bare_request(Operation::Ping, id)),
        (Operation::Register, request(Operation::Register, id, &register_body(&registration("a")), &[group])),
        (Operation::Reserve, request(Operation::Reserve, id, &ReserveBody { namespace: 0, race: 0 }, &[key])),
        (Operation::Commit, request(Operation::Commit, id, &slots, &[slot])),
        (Operation::Abort, request(Operation::Abort, id, &slots, &[slot])),
        (Operation::Query, prefix_request(Operation::Query, id, 0, true, [0; 16], &[hash])),
        (Operation::Acquire, prefix_request(Operation::Acquire, id, 0, false, [0; 16], &[hash])),
        (Operation::Prefetch, prefix_request(Operation::Prefetch, id, 0, false, [0; 16], &[hash])),
        (Operation::Attach, request(Operation::Attach, id, &LeaseBody { lease: [5; 16] }, NONE)),
        (Operation::Release, request(Operation::Release, id, &LeaseBody { lease: [5; 16] }, NONE)),
        (Operation::Cancel, request(Operation::Cancel, id, &CancelBody { request_id: 3 }, NONE)),
        (
            Operation::Evict,
            request(
                Operation::Evict,
                id,
                &EvictBody { namespace: 0, media: 3 },
                &[KeyRecord { block: hash, group: 0 }],
            ),
        ),
        (Operation::Clear, request(Operation::Clear, id, &ClearBody { namespace: [1; 32], media: 3 }, NONE)),
        (Operation::List, request(Operation::List, id, &list, NONE)),
        (Operation::Sync, bare_request(Operation::Sync, id)),
    ]
}

fn malformed_frames(node: &Node) -> u64 {
    node.metadata().shards.iter().map(|shard| shard.engine.malformed_frames).sum()
}

/// Ends our side and reads until the node has ended its own.
fn leave(raw: &mut Raw) {
    // Fails if the node has closed already, which is what we are after.
    let _ = raw.stream.shutdown(Shutdown::Write);
    while raw.next().is_some() {}
}

#[test]
fn a_frame_cut_at_any_byte_by_the_end_of_the_connection_is_nothing() {
    let node = Node::start();
    for (operation, frame) in valid_frames(1) {
        let cuts = (0..frame.len()).filter(|cut| *cut < 64 || cut % 37 == 0 || cut + 4 > frame.len());
        for cut in cuts {
            let mut raw = node.raw();
            raw.send(&frame[..cut]);
            raw.stream.shutdown(Shutdown::Write).expect("our own socket");
            assert!(raw.next().is_none(), "{operation:?} was answered after {cut} bytes");
        }
    }
    let hello = request(Operation::Hello, 1, &hello_body(0), NONE);
    for cut in 0..hello.len() {
        let mut raw = Raw::connect(&node.socket());
        raw.send(&hello[..cut]);
        raw.stream.shutdown(Shutdown::Write).expect("our own socket");
        raw.expect_end();
        assert!(raw.fds.is_empty(), "half a Hello got the arena");
    }
    assert_eq!(malformed_frames(&node), 0);
    node.await_held("everybody is gone", |held| held.is_nothing() && held.connections == 0);
    node.assert_serves();
}

#[test]
fn a_length_out_of_bounds_is_answered_by_the_bounds_and_the_end() {
    let node = Node::start();
    let lengths = [0, 1, 23, FRAME_BYTES_MAX as u32 + 1, 1 << 31, u32::MAX];
    for length in lengths {
        for greeted in [false, true] {
            let mut raw = if greeted { node.raw() } else { Raw::connect(&node.socket()) };
            // Four bytes are enough to judge it.
            let frame = raw.ask_bytes(&length.to_le_bytes());
            let (status, refusal) = frame.refusal();
            assert_eq!(status, Status::Malformed);
            let text = words(&refusal);
            assert!(text.contains(&length.to_string()) && text.contains("532480"), "{text}");
            raw.expect_end();
        }
    }
    assert_eq!(malformed_frames(&node), 2 * lengths.len() as u64);
    node.assert_serves();
}

#[test]
fn a_frame_as_large_as_the_bound_is_read_whole() {
    let node = Node::start();
    let mut raw = node.raw();
    // Nothing of this size is valid; that it is judged at its end shows that it was read.
    let mut frame = bare_request(Operation::Ping, 9);
    frame[..4].copy_from_slice(&(FRAME_BYTES_MAX as u32).to_le_bytes());
    frame.resize(FRAME_BYTES_MAX - 1, 0);
    raw.send(&frame);
    assert!(raw.next_within(Duration::from_millis(200)).is_none(), "judged before its last byte");
    let frame = raw.ask_bytes(&[0]);
    assert_eq!((frame.status(), frame.header.request_id), (Status::Malformed, 9));
    raw.expect_end();
    node.assert_serves();
}

#[test]
fn random_bytes_end_their_own_connection_and_nothing_else() {
    let node = Node::start();
    let mut bystander = node.raw();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..400 {
        let mut raw = if round % 2 == 0 { node.raw() } else { Raw::connect(&node.socket()) };
        let length = 1 + random() as usize % 4096;
        let mut bytes: Vec<u8> = (0..length).map(|_| random() as u8).collect();
        if round % 4 < 2 && length > 4 {
            // A believable length: the rest of the header is judged, too.
            let frame = 24 + random() as u32 % length as u32;
            bytes[..4].copy_from_slice(&frame.to_le_bytes());
        }
        let _ = raw.stream.write_all(&bytes);
        leave(&mut raw);
    }
    bystander.ping();
    assert!(malformed_frames(&node) > 100, "most of it is judged malformed");
    node.await_held("nobody else is left", |held| held.is_nothing() && held.connections == 1);
    node.assert_serves();
}

#[test]
fn a_flipped_bit_in_a_valid_frame_is_survived() {
    let node = Node::start();
    let generation = node.client().node().expect("connected").arena_generation;
    for (operation, frame) in valid_frames(generation) {
        // A process for each kind of frame, so that what its connections held ends with it.
        let mut process = EngineProcess::start(&node);
        let bits = (0..frame.len() * 8).filter(|bit| *bit < 24 * 8 || bit % 23 == 0);
        for bit in bits {
            let mut raw = process.raw();
            raw.register(&registration(&format!("flip {operation:?}")));
            let mut flipped = frame.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let _ = raw.stream.write_all(&flipped);
            leave(&mut raw);
        }
        process.kill();
        node.await_held("the process is gone with all it held", |held| {
            held.is_nothing() && held.connections == 0
        });
    }
    node.assert_serves();
}

#[test]
fn frames_may_arrive_in_any_pieces() {
    let node = Node::start();
    let mut raw = Raw::connect(&node.socket());
    let mut conversation = request(Operation::Hello, 1, &hello_body(0), NONE);
    conversation.extend(valid_frames(1)[1].1.clone());
    for &byte in &conversation {
        raw.send(&[byte]);
    }
    assert!(matches!(raw.answer_to(1).answer(), Answer::Hello(_)));
    assert!(matches!(raw.answer_to(77).answer(), Answer::Register(_)));

    let mut other = node.raw();
    for cut in 1.. {
        let query = prefix_request(Operation::Query, 1000 + cut as u64, 0, false, [0; 16], &[block(1).0]);
        if cut == query.len() {
            break;
        }
        raw.send(&query[..cut]);
        // Whoever is answered now proves that the node has taken its turn with the first piece.
        other.ping();
        raw.send(&query[cut..]);
        assert!(matches!(raw.answer_to(1000 + cut as u64).answer(), Answer::Query(..)));
    }
    // Several frames and the front of the next one in one piece.
    let mut pieces: Vec<u8> = (5000..5010).flat_map(|id| bare_request(Operation::Ping, id)).collect();
    let tail = pieces.split_off(pieces.len() - 7);
    raw.send(&pieces);
    (5000..5009).for_each(|id| assert_eq!(raw.answer_to(id).status(), Status::Ok));
    raw.send(&tail);
    assert_eq!(raw.answer_to(5009).status(), Status::Ok);
    assert_eq!(malformed_frames(&node), 0);
}

#[test]
fn an_unknown_operation_is_malformed() {
    let node = Node::start();
    for number in [0, 18, 255] {
        let mut raw = node.raw();
        let mut frame = bare_request(Operation::Ping, 5);
        frame[4] = number;
        let answer = raw.ask_bytes(&frame);
        let (status, refusal) = answer.refusal();
        assert_eq!((status, answer.header.request_id), (Status::Malformed, 5));
        assert!(words(&refusal).contains(&format!("operation {number}")), "{}", words(&refusal));
        raw.expect_end();
    }
    node.assert_serves();
}

#[test]
fn hello_comes_first_and_once() {
    let node = Node::start();
    for (operation, frame) in valid_frames(1) {
        let mut raw = Raw::connect(&node.socket());
        let answer = raw.ask_bytes(&frame);
        assert_eq!(answer.refusal().0, Status::OutOfOrder, "{operation:?} before Hello");
        assert!(raw.fds.is_empty(), "{operation:?} got the arena before Hello");
        // It may still introduce itself.
        raw.hello(&hello_body(0));
        assert_eq!(raw.fds.len(), 1);
        raw.ping();
        let again = raw.ask(Operation::Hello, &hello_body(0), NONE);
        assert_eq!(again.refusal().0, Status::OutOfOrder, "a second Hello");
        raw.ping();
    }
    node.await_nothing_held();
}

#[test]
fn a_hello_of_another_build_is_refused_with_the_reason_and_without_the_arena() {
    let node = Node::start();
    let right = hello_body(0);
    let newer = HelloBody { version_min: VERSION + 1, version_max: VERSION + 3, ..hello_body(0) };
    let older = HelloBody { version_min: 0, version_max: VERSION_MIN - 1, ..hello_body(0) };
    let layout = HelloBody { layout_hash: right.layout_hash ^ 1, ..hello_body(0) };
    for (hello, names) in [(newer, "versions 4 to 6"), (older, "versions 0 to 2"), (layout, "layout")] {
        let mut raw = Raw::connect(&node.socket());
        let frame = raw.ask(Operation::Hello, &hello, NONE);
        let (status, refusal) = frame.refusal();
        assert_eq!((status, refusal.detail), (Status::Incompatible, u64::from(VERSION)));
        assert!(words(&refusal).contains(names), "{}", words(&refusal));
        assert!(raw.fds.is_empty(), "an incompatible engine got the arena");
    }
    // A range that holds our version is enough.
    let wide = HelloBody { version_min: 0, version_max: 9, ..hello_body(0) };
    assert_eq!(Raw::connect(&node.socket()).hello(&wide).version, VERSION);

    let mut raw = Raw::connect(&node.socket());
    let frame = raw.ask(Operation::Hello, &HelloBody { magic: *b"NOTORBIT", ..right }, NONE);
    assert_eq!(frame.refusal().0, Status::Malformed);
    raw.expect_end();
    assert!(raw.fds.is_empty());
    node.assert_serves();
}

#[test]
fn a_burst_of_refused_frames_is_answered_to_the_last_one() {
    let node = Node::start();
    let mut raw = node.raw();
    // Each is refused with more bytes than it has: the answers outgrow what may wait to be read.
    let wave = 20_000;
    let frames: Vec<u8> = (0..wave)
        .flat_map(|id| request(Operation::Attach, 10 + id, &LeaseBody { lease: [1; 16] }, NONE))
        .collect();
    let mut writer = raw.stream.try_clone().expect("a second handle");
    let writing = std::thread::spawn(move || writer.write_all(&frames).expect("the node takes them all"));
    for id in 0..wave {
        assert_eq!(raw.answer_to(10 + id).refusal().0, Status::NotRegistered);
    }
    writing.join().expect("all was written");
    raw.ping();
}

#[test]
fn a_process_may_come_and_go_as_often_as_it_likes() {
    let node = Node::start();
    for round in 0..2_100 {
        let mut raw = node.raw();
        if round % 3 == 0 {
            raw.register(&registration("visitor"));
        }
        leave(&mut raw);
    }
    node.await_held("everybody has left", |held| held.connections == 0);
    node.assert_serves();
}
