//! Requests that are given up: every block is still decided, and what was taken comes back.

use orbitkv::client::BlockOutcome;
use orbitkv_native::arena::{ArenaView, ViewPopulate};
use orbitkv_wire::engine::Operation;
use orbitkv_wire::engine::answers::Answer;
use orbitkv_wire::engine::requests::{CancelBody, HashRecord, LeaseBody};

use crate::harness::raw::{Frame, hello_body, prefix_request, request};
use crate::harness::saver::{BLOCK_BYTES, block, payload, registration};
use crate::harness::{Node, NodeOrder, Raw, Saver, WAIT};

const SAVED: u64 = 1_600;
const WANTED: std::ops::Range<u64> = 0..300;

fn node_with_ssd_blocks() -> Node {
    let node = NodeOrder::default().ssd("256mib").start();
    let mut saver = Saver::connect(&node.socket(), "preparer");
    for chunk in (0..SAVED).collect::<Vec<u64>>().chunks(100) {
        saver.save(chunk);
    }
    saver.client.sync(WAIT).expect("flushed");
    node
}

struct Reader {
    raw: Raw,
    view: ArenaView,
}

fn reader(node: &Node) -> Reader {
    let mut raw = Raw::connect(&node.socket());
    let hello = raw.hello(&hello_body(0));
    raw.register(&registration("reader"));
    let fd = raw.fds.pop().expect("the arena came with Hello");
    let view = ArenaView::map(fd, hello.arena_bytes, ViewPopulate::Lazy).expect("a sealed memfd");
    Reader { raw, view }
}

impl Reader {
    /// Checks that each block of `WANTED` is decided exactly once, and the bytes of the ready ones;
    /// releases. Counts of ready blocks and of those that ended as `given_up`.
    fn settle(&mut self, frames: &[Frame], given_up: BlockOutcome) -> (usize, usize) {
        let (mut decided, mut ready, mut stopped) = (vec![false; WANTED.count()], 0, 0);
        let mut lease = [0; 16];
        for frame in frames {
            let Answer::Acquire(answer, records) = frame.answer() else { panic!("{frame:?}") };
            lease = answer.lease;
            for record in records.iter() {
                let record = record.expect("valid");
                let index = record.index as usize;
                assert!(!std::mem::replace(&mut decided[index], true), "block {index} is decided twice");
                if record.outcome == BlockOutcome::Ready as u8 {
                    let bytes = self.view.bytes(record.offset, record.bytes).expect("inside the arena");
                    let right = payload(WANTED.start + index as u64, 0, BLOCK_BYTES as usize);
                    assert!(bytes == right, "block {index} has wrong bytes");
                    ready += 1;
                } else {
                    assert_eq!(record.outcome, given_up as u8, "block {index}");
                    stopped += 1;
                }
            }
        }
        assert!(decided.iter().all(|decided| *decided), "a block was never decided");
        let none: &[HashRecord] = &[];
        let released = self.raw.ask(Operation::Release, &LeaseBody { lease }, none);
        assert!(matches!(released.answer(), Answer::Done), "{released:?}");
        (ready, stopped)
    }
}

fn wanted() -> Vec<[u8; 32]> {
    WANTED.map(|key| block(key).0).collect()
}

#[test]
fn an_acquire_past_its_deadline_decides_every_block() {
    let node = node_with_ssd_blocks();
    let mut reader = reader(&node);
    let mut given_up = 0;
    for round in 0..5 {
        let id = 500 + round;
        reader.raw.send(&prefix_request(Operation::Acquire, id, 1, false, [0; 16], &wanted()));
        let frames = reader.raw.answers_to(id);
        let (ready, stopped) = reader.settle(&frames, BlockOutcome::DeadlineExceeded);
        assert_eq!(ready + stopped, WANTED.count());
        given_up += stopped;
        node.await_nothing_held();
    }
    assert!(given_up > 0, "300 blocks of 64 KiB were read from SSD within a millisecond, five times");
    node.assert_serves();
}

#[test]
fn a_cancelled_acquire_decides_every_block_and_the_cancel_is_answered() {
    let node = node_with_ssd_blocks();
    let mut reader = reader(&node);
    let mut cancelled = 0;
    for round in 0..5 {
        let id = 500 + 2 * round;
        let mut frames = prefix_request(Operation::Acquire, id, 0, false, [0; 16], &wanted());
        let body = CancelBody { request_id: id };
        frames.extend(request(Operation::Cancel, id + 1, &body, &[] as &[HashRecord]));
        reader.raw.send(&frames);
        let (mut of_acquire, mut of_cancel) = (Vec::new(), 0);
        let over = |frames: &[Frame]| frames.last().is_some_and(|frame: &Frame| frame.header.flags == 0);
        while of_cancel == 0 || !over(&of_acquire) {
            let frame = reader.raw.next().expect("both are answered");
            if frame.header.request_id == id {
                of_acquire.push(frame);
            } else {
                assert!(matches!(frame.answer(), Answer::Done), "{frame:?}");
                of_cancel += 1;
            }
        }
        assert_eq!(of_cancel, 1);
        cancelled += reader.settle(&of_acquire, BlockOutcome::Cancelled).1;
        node.await_nothing_held();
    }
    assert!(cancelled > 0, "a cancel that comes with its Acquire stops reads");
    // Cancelling what is not there is no fault.
    let body = CancelBody { request_id: 4 };
    let frame = reader.raw.ask(Operation::Cancel, &body, &[] as &[HashRecord]);
    assert!(matches!(frame.answer(), Answer::Done));
    node.assert_serves();
}
