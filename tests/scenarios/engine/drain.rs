//! The operator drains a node under engines that still have something of it.

use std::io::{ErrorKind, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use orbitkv::client::SaveKey;
use orbitkv::control::metadata::Phase;
use orbitkv_wire::engine::answers::Answer;
use orbitkv_wire::engine::{Operation, Status};
use rustix::process::Signal;

use crate::faults::{Said, orbitkv};
use crate::harness::raw::{Frame, bare_request, prefix_request};
use crate::harness::saver::{BLOCK_BYTES, GROUP, block, registration};
use crate::harness::{Node, Raw, Saver, WAIT, eventually};

fn refused_as_draining(saver: &mut Saver, key: u64) -> bool {
    let key = SaveKey { block: block(key), group: GROUP, bytes: BLOCK_BYTES };
    match saver.client.reserve(saver.namespace, &[key], false, WAIT) {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.status(), Some(Status::Draining), "{error}");
            true
        }
    }
}

/// Asks for a hold of `key`; the lease of the answer.
fn hold(raw: &mut Raw, id: u64, key: u64) -> [u8; 16] {
    raw.send(&prefix_request(Operation::Query, id, 0, true, [0; 16], &[block(key).0]));
    let frame: Frame = raw.answer_to(id);
    let Answer::Query(answer, _) = frame.answer() else { panic!("{frame:?}") };
    assert_eq!(answer.boundary_blocks, 1);
    answer.lease
}

/// `orbitkv drain` of a node, watched for so long.
fn drain(node: &Node, timeout: &str) -> Said {
    let socket = node.socket();
    let socket = socket.to_str().expect("text");
    orbitkv(&["drain", "--engine-socket", socket, "--timeout", timeout])
}

#[test]
fn a_drain_is_watched_for_longer_than_any_request_may_take() {
    let mut node = Node::start();
    let said = drain(&node, "11m");
    assert_eq!(said.code, Some(0), "{said:#?}");
    assert!(said.stdout.contains("drained: the node ends now"), "{said:#?}");
    assert!(node.await_end().success(), "{}", node.stderr());
}

#[test]
fn only_a_node_that_drains_is_said_to_go_on_draining() {
    let mut node = Node::start();
    let mut saver = Saver::connect(&node.socket(), "a");
    saver.save(&[1]);
    let _lease = saver.acquire_checked(&[1]);
    drain(&node, "100ms").refused(5, &["not drained within 100ms: the node goes on draining"]);
    assert_eq!(node.metadata().phase, Phase::Draining);
    // Watched again, it is cut short.
    let said = std::thread::scope(|scope| {
        let watched = scope.spawn(|| drain(&node, "11m"));
        std::thread::sleep(Duration::from_millis(500));
        node.signal(Signal::TERM);
        watched.join().expect("no panics")
    });
    said.refused(5, &["ended before the answer to Drain came"]);
    assert!(said.stdout.contains("1 leases of engines") && !said.stderr.contains("goes on"), "{said:#?}");
    assert!(node.await_end().success(), "{}", node.stderr());
    // One that does not answer has not said that it drains.
    let mut node = Node::start();
    node.freeze();
    let said = drain(&node, "100ms");
    assert!(said.code == Some(5) && !said.stderr.contains("goes on"), "{said:#?}");
    node.kill();
}

#[test]
fn a_drain_waits_for_what_engines_have_and_then_ends_the_node() {
    let mut node = Node::start();
    let mut saver = Saver::connect(&node.socket(), "a");
    saver.save(&[1, 2, 3]);
    let lease = saver.acquire_checked(&[1, 2]);
    let mut holder = node.raw();
    holder.register(&registration("holder"));
    assert_ne!(hold(&mut holder, 100, 3), [0; 16]);

    let mut command = Command::new(env!("CARGO_BIN_EXE_orbitkv"));
    command.arg("drain").arg("--engine-socket").arg(node.socket());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut drain = command.spawn().expect("the program starts");
    // A block that is there asks for no slot, so that nothing is taken before the drain begins.
    eventually("saves are refused", || refused_as_draining(&mut saver, 1).then_some(()));
    assert!(refused_as_draining(&mut saver, 9));
    assert_eq!(hold(&mut holder, 101, 2), [0; 16], "nothing new is held");
    assert_eq!(node.metadata().phase, Phase::Draining);
    std::thread::sleep(Duration::from_millis(300));
    assert!(node.ended().is_none(), "a lease is outstanding");
    assert!(drain.try_wait().expect("our child").is_none());

    saver.client.release(&lease, WAIT).expect("what is outstanding may end");
    let status = node.await_end();
    assert!(status.success(), "{status}: {}", node.stderr());
    let said = drain.wait_with_output().expect("our child");
    let words = String::from_utf8_lossy(&said.stdout);
    assert!(said.status.success(), "{said:?}");
    assert!(words.contains("remaining: 0 reservations and 1 leases of engines"), "{words}");
    assert!(words.contains("drained: the node ends now"), "{words}");
    holder.expect_end();
}

#[test]
fn ten_thousand_drains_of_an_engine_that_never_reads_do_not_grow_the_node() {
    let mut node = Node::start();
    let mut saver = Saver::connect(&node.socket(), "a");
    saver.save(&[1, 2]);
    let lease = saver.acquire_checked(&[1]);
    node.assert_serves();
    let before = node.resident_bytes();
    let mut raw = node.raw();
    let frames: Vec<u8> = (1_000..11_000).flat_map(|id| bare_request(Operation::Drain, id)).collect();
    raw.stream.set_write_timeout(Some(Duration::from_millis(500))).expect("a timeout");
    match raw.stream.write_all(&frames) {
        Ok(()) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
    }
    eventually("the node drains", || refused_as_draining(&mut saver, 1).then_some(()));
    // Thirty looks at what is left, each of which is told to those who read.
    std::thread::sleep(Duration::from_millis(1_500));
    let grown = node.resident_bytes().saturating_sub(before);
    assert!(grown < 8 << 20, "an engine that does not read costs {} KiB", grown / 1024);
    saver.client.release(&lease, WAIT).expect("others are served");
    let status = node.await_end();
    assert!(status.success(), "{status}: {}", node.stderr());
}
