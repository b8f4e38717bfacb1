//! Bytes in order and whole, back-pressure, windows, priorities, loans that drain.

use super::*;
use crate::arena::{Arena, PagePreference};

const MIB: usize = 1 << 20;

fn blocked(outcome: Result<(), WriteRefusal>) -> Option<Bytes> {
    match outcome {
        Ok(()) => None,
        Err(WriteRefusal::Blocked(bytes)) => Some(bytes),
        Err(other) => panic!("{other}"),
    }
}

fn split(bytes: &[u8]) -> Result<Option<usize>, ()> {
    let Some(prefix) = bytes.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*prefix) as usize;
    assert!((4..=MIB).contains(&length));
    Ok((bytes.len() >= length).then_some(length))
}

fn frames(seed: u64, count: usize) -> Vec<Bytes> {
    let mut seeded = Seeded(seed);
    let mut frame = || {
        let bits = 3 + seeded.below(15);
        let length = 4 + seeded.below(1 << bits) as usize;
        let mut frame = seeded.bytes(length);
        frame[..4].copy_from_slice(&(length as u32).to_le_bytes());
        Bytes::from(frame)
    };
    (0..count).map(|_| frame()).collect()
}

#[test]
fn frames_arrive_whole_and_in_order_behind_a_slow_reader() {
    let mut narrow = settings();
    narrow.inventory.receive_window_bytes = 64 * 1024;
    narrow.inventory.stream_window_bytes = 64 * 1024;
    narrow.inventory.send_window_bytes = 64 * 1024;
    let (mut near, mut far, dialled, accepted) = pair(narrow, Purpose::Inventory);
    let stream = near.endpoint.open(dialled, Priority::Ordinary).unwrap();
    near.endpoint.write(dialled, stream, &b"open"[..]).unwrap();
    run(&mut [&mut near, &mut far], |nodes| !nodes[1].opened(accepted).is_empty());
    let answer = far.opened(accepted)[0];
    assert_eq!(far.read((accepted, answer), 100), (b"open".to_vec(), ReadState::Blocked));

    let sent = frames(5, 300);
    let (mut next, mut refusals, mut received, mut reader) = (0, 0, Vec::new(), FrameReader::new());
    let mut ended = false;
    run(&mut [&mut near, &mut far], |nodes| {
        // The source writes until it is refused, and again when it is told to.
        let far = &mut nodes[1];
        let told = far
            .heard
            .iter()
            .any(|event| matches!(event, Event::Writable { stream, .. } if *stream == answer));
        if refusals == 0 || told {
            far.heard.clear();
            while next < sent.len() {
                match blocked(far.endpoint.write(accepted, answer, sent[next].clone())) {
                    None => next += 1,
                    Some(returned) => {
                        assert_eq!(returned, sent[next]);
                        refusals += 1;
                        break;
                    }
                }
            }
            if next == sent.len() {
                far.endpoint.finish(accepted, answer);
                assert_eq!(far.endpoint.write(accepted, answer, &b"late"[..]), Err(WriteRefusal::Closed));
            }
        }
        let state = nodes[0].endpoint.read(dialled, stream, 10_000, |chunk| {
            reader.on_chunk(chunk, split, |frame| {
                received.push(Bytes::copy_from_slice(frame));
                Ok(())
            })
        });
        ended |= state == Ok(ReadState::Ended);
        ended
    });
    assert_eq!((received.len(), reader.partial_bytes()), (sent.len(), 0));
    assert!(received == sent, "bytes differ");
    assert!(refusals > 10, "{refusals} refusals");
    run(&mut [&mut near, &mut far], |nodes| {
        nodes[1]
            .heard
            .iter()
            .any(|event| matches!(event, Event::Delivered { stream, .. } if *stream == answer))
    });
}

#[test]
fn a_peer_that_never_reads_costs_its_windows_and_one_frame() {
    let (mut near, mut far, dialled, accepted) = pair(settings(), Purpose::Payload);
    let window_bytes = settings().accepted_window_bytes as usize;
    let arena = Arena::create(4 * MIB as u64, PagePreference::Small).unwrap().0;
    let mut payloads = Payloads::new(arena, 4);
    let stream = near.endpoint.open(dialled, Priority::Ordinary).unwrap();
    let payload = payloads.lend(1, 0, MIB as u64).unwrap();
    near.endpoint.write(dialled, stream, payload).unwrap();
    let before = far.counters().bytes_received as usize;
    run(&mut [&mut near, &mut far], |nodes| {
        nodes[1].counters().bytes_received as usize - before >= window_bytes
    });
    run_for(&mut [&mut near, &mut far], Duration::from_millis(200));
    let payload = payloads.lend(2, MIB as u64, MIB as u64).unwrap();
    assert!(blocked(near.endpoint.write(dialled, stream, payload)).is_some());
    assert_eq!(payloads.poll_drained(), Some(2), "what was refused is not kept");
    let received = far.counters().bytes_received as usize - before;
    assert!(received < window_bytes + 32 * 1024, "{received} bytes for the window");

    // It reads after all: everything comes, and the loan ends.
    let at = (accepted, far.opened(accepted)[0]);
    let mut total = 0;
    run(&mut [&mut near, &mut far], |nodes| {
        total += nodes[1].read(at, usize::MAX).0.len();
        total == MIB
    });
    run(&mut [&mut near, &mut far], |_| payloads.poll_drained() == Some(1));
}

#[test]
fn loans_drain_by_acknowledgement_abandoning_and_closing() {
    let (mut near, mut far, dialled, accepted) = pair(settings(), Purpose::Payload);
    let arena = Arena::create(4 * MIB as u64, PagePreference::Small).unwrap().0;
    arena.copy_in(0, &noise(9, 4 * MIB));
    let mut payloads = Payloads::new(arena.clone(), 8);

    // Acknowledged: read into another place of the receiver, byte for byte.
    let stream = near.endpoint.open(dialled, Priority::Ordinary).unwrap();
    near.endpoint.write(dialled, stream, payloads.lend(1, 0, MIB as u64).unwrap()).unwrap();
    near.endpoint.finish(dialled, stream);
    let target = Arena::create(MIB as u64, PagePreference::Small).unwrap().0;
    let mut offset = 0;
    run(&mut [&mut near, &mut far], |nodes| {
        let far = &mut nodes[1];
        let Some(stream) = far.opened(accepted).first().copied() else { return false };
        let state = far.endpoint.read(accepted, stream, 64 * 1024, |chunk| {
            target.copy_in(offset, chunk);
            offset += chunk.len() as u64;
            Ok::<(), ()>(())
        });
        assert!(payloads.lent() == 1);
        state == Ok(ReadState::Ended)
    });
    assert_eq!(target.checksum(0, MIB as u64), arena.checksum(0, MIB as u64));
    run(&mut [&mut near, &mut far], |_| payloads.poll_drained() == Some(1));

    // Abandoned: at once, although the peer has read nothing.
    let stream = near.endpoint.open(dialled, Priority::Ordinary).unwrap();
    near.endpoint.write(dialled, stream, payloads.lend(2, 0, MIB as u64).unwrap()).unwrap();
    run_for(&mut [&mut near, &mut far], Duration::from_millis(20));
    assert_eq!(payloads.poll_drained(), None);
    near.endpoint.abandon(dialled, stream, 3);
    assert_eq!(payloads.poll_drained(), Some(2));
    let theirs = far.opened(accepted)[1];
    run(&mut [&mut near, &mut far], |nodes| {
        let outcome = nodes[1].endpoint.read(accepted, theirs, usize::MAX, |_| Ok::<(), ()>(()));
        outcome == Err(ReadError::Reset { code: 3 })
    });

    // Stopped by the peer.
    let stream = near.endpoint.open(dialled, Priority::Ordinary).unwrap();
    near.endpoint.write(dialled, stream, payloads.lend(3, 0, MIB as u64).unwrap()).unwrap();
    run(&mut [&mut near, &mut far], |nodes| nodes[1].opened(accepted).len() == 3);
    let theirs = far.opened(accepted)[2];
    far.endpoint.abandon(accepted, theirs, 4);
    run(&mut [&mut near, &mut far], |_| payloads.poll_drained() == Some(3));
    assert!(near.heard.contains(&Event::Stopped { connection: dialled, stream, code: 4 }));
    assert_eq!(near.endpoint.write(dialled, stream, &b"late"[..]), Err(WriteRefusal::Closed));

    // Closed: at once.
    let stream = near.endpoint.open(dialled, Priority::Ordinary).unwrap();
    near.endpoint.write(dialled, stream, payloads.lend(4, 0, MIB as u64).unwrap()).unwrap();
    run_for(&mut [&mut near, &mut far], Duration::from_millis(20));
    near.endpoint.close(dialled, 5, monotonic_ns());
    assert_eq!((payloads.poll_drained(), payloads.lent()), (Some(4), 0));
    run(&mut [&mut near, &mut far], |nodes| nodes.iter().all(|node| node.counters().connections_now == 0));
    assert_eq!(far.loss(accepted), Some(Loss::Closed { code: 5 }));
    assert_eq!(near.endpoint.open(dialled, Priority::Ordinary), Err(OpenRefusal::Closed));
    assert_eq!(near.endpoint.write(dialled, stream, &b"late"[..]), Err(WriteRefusal::Closed));
    near.endpoint.close(dialled, 6, monotonic_ns());
}

#[test]
fn loans_drain_when_the_peer_is_gone() {
    let (mut near, mut far, dialled, accepted) = pair(settings(), Purpose::Payload);
    let mut payloads = Payloads::new(Arena::create(MIB as u64, PagePreference::Small).unwrap().0, 1);
    let stream = near.endpoint.open(dialled, Priority::Ordinary).unwrap();
    near.endpoint.write(dialled, stream, &b"ask"[..]).unwrap();
    run(&mut [&mut near, &mut far], |nodes| !nodes[1].opened(accepted).is_empty());
    let theirs = far.opened(accepted)[0];
    far.endpoint.write(accepted, theirs, payloads.lend(1, 0, MIB as u64).unwrap()).unwrap();
    drop(near);
    let started = Instant::now();
    run(&mut [&mut far], |nodes| nodes[0].loss(accepted).is_some());
    assert_eq!((far.loss(accepted), payloads.poll_drained()), (Some(Loss::Idle), Some(1)));
    assert!(started.elapsed() < 2 * settings().idle_timeout);
    assert_eq!((far.counters().idle_timeouts, far.counters().connections_now), (1, 0));
}

#[test]
fn an_urgent_stream_passes_bulk_that_fills_the_send_window() {
    let mut narrow = settings();
    narrow.payload.send_window_bytes = 256 * 1024;
    narrow.payload.stream_window_bytes = 1 << 20;
    let (mut near, mut far, dialled, accepted) = pair(narrow, Purpose::Payload);
    let mut streams = Vec::new();
    for priority in [Priority::Ordinary, Priority::Urgent] {
        let stream = near.endpoint.open(dialled, priority).unwrap();
        near.endpoint.write(dialled, stream, &b"go"[..]).unwrap();
        streams.push(stream);
    }
    run(&mut [&mut near, &mut far], |nodes| nodes[1].opened(accepted).len() == 2);
    let (bulk, urgent) = (far.opened(accepted)[0], far.opened(accepted)[1]);
    far.endpoint.prioritise(accepted, urgent, Priority::Urgent);
    // All of the bulk's window is taken by bytes that nobody acknowledges, because the peer is not driven.
    far.endpoint.write(accepted, bulk, noise(3, 4 * MIB)).unwrap();
    while far.endpoint.flush(monotonic_ns()).more {}
    assert!(blocked(far.endpoint.write(accepted, bulk, &b"more"[..])).is_some());
    assert_eq!(blocked(far.endpoint.write(accepted, urgent, &b"release"[..])), None);
    assert_eq!(blocked(far.endpoint.write(accepted, urgent, &b"another"[..])), None, "it did not wait here");
    let (mut bulk_bytes, mut urgent_bytes) = (0, Vec::new());
    run(&mut [&mut near, &mut far], |nodes| {
        bulk_bytes += nodes[0].read((dialled, streams[0]), usize::MAX).0.len();
        urgent_bytes.extend(nodes[0].read((dialled, streams[1]), usize::MAX).0);
        urgent_bytes.len() == 14
    });
    assert_eq!(urgent_bytes, b"releaseanother");
    assert!(bulk_bytes < MIB, "{bulk_bytes} bytes of bulk went first");
}

#[test]
fn inventory_is_sent_before_payload() {
    let (mut near, mut far) = (Node::new(), Node::new());
    acquaint(&mut [&mut near, &mut far]);
    let payload = near.dial(&far, Purpose::Payload);
    let inventory = near.dial(&far, Purpose::Inventory);
    run(&mut [&mut near, &mut far], |nodes| nodes.iter().all(|node| node.connected().len() == 2));
    // The congestion window opens until a turn's budget cannot empty it.
    let bulk = near.endpoint.open(payload, Priority::Urgent).unwrap();
    let stream = near.endpoint.open(inventory, Priority::Ordinary).unwrap();
    near.endpoint.write(payload, bulk, noise(3, 8 * MIB)).unwrap();
    near.endpoint.write(inventory, stream, &b"delta"[..]).unwrap();
    let before = near.counters().datagrams_sent;
    let mut heard_after = None;
    run(&mut [&mut near, &mut far], |nodes| {
        let opened = nodes[1].heard.iter().position(|event| matches!(event, Event::StreamOpened { .. }));
        heard_after = opened.map(|at| nodes[1].heard[at].clone());
        heard_after.is_some()
    });
    let Some(Event::StreamOpened { connection, .. }) = heard_after else { panic!() };
    let first = far.heard.iter().find_map(|event| match event {
        Event::Connected { connection: found, purpose, .. } if *found == connection => Some(*purpose),
        _ => None,
    });
    assert_eq!(first, Some(Purpose::Inventory), "{} datagrams", near.counters().datagrams_sent - before);
}

#[test]
fn streams_are_bounded_and_come_back() {
    let mut narrow = settings();
    narrow.streams_max = 2;
    let (mut near, mut far, dialled, accepted) = pair(narrow, Purpose::Payload);
    let mut open = || near.endpoint.open(dialled, Priority::Ordinary);
    let (first, second) = (open().unwrap(), open().unwrap());
    assert_eq!(open(), Err(OpenRefusal::NoneLeft));
    assert_eq!(
        far.endpoint.open(accepted, Priority::Ordinary),
        Err(OpenRefusal::NoneLeft),
        "who is dialled opens none"
    );
    for stream in [first, second] {
        near.endpoint.write(dialled, stream, &b"ask"[..]).unwrap();
        near.endpoint.finish(dialled, stream);
    }
    run(&mut [&mut near, &mut far], |nodes| nodes[1].opened(accepted).len() == 2);
    for stream in far.opened(accepted) {
        assert_eq!(far.read((accepted, stream), 100), (b"ask".to_vec(), ReadState::Ended));
        far.endpoint.finish(accepted, stream);
    }
    run(&mut [&mut near, &mut far], |nodes| {
        nodes[0].heard.contains(&Event::StreamsAvailable { connection: dialled })
    });
    near.endpoint.open(dialled, Priority::Ordinary).unwrap();
    assert_eq!(near.read((dialled, first), 100).1, ReadState::Ended);
}

#[test]
fn a_reader_that_refuses_stops_the_read() {
    let (mut near, mut far, dialled, accepted) = pair(settings(), Purpose::Inventory);
    let stream = near.endpoint.open(dialled, Priority::Ordinary).unwrap();
    near.endpoint.write(dialled, stream, noise(4, 10_000)).unwrap();
    run(&mut [&mut near, &mut far], |nodes| !nodes[1].opened(accepted).is_empty());
    let theirs = far.opened(accepted)[0];
    let mut calls = 0;
    let outcome = far.endpoint.read(accepted, theirs, usize::MAX, |_| {
        calls += 1;
        Err("no")
    });
    assert_eq!((outcome, calls), (Err(ReadError::Reader("no")), 1));
    assert_eq!(far.read((accepted, theirs), 0).1, ReadState::More);
}
