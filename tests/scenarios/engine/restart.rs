//! The daemon dies and comes back: nothing old is taken for new, and clients come back by themselves.

use std::time::{Duration, Instant};

use orbitkv::client::{BlockHash, BlockOutcome, ClientError, CompletionTarget, PrefixList, Reserved};
use orbitkv_wire::engine::requests::{HashRecord, LeaseBody};
use orbitkv_wire::engine::{Operation, Status};

use crate::harness::raw::hello_body;
use crate::harness::saver::{BLOCK_BYTES, GROUP, block, payload, registration};
use crate::harness::{Node, NodeOrder, Raw, Saver, WAIT, eventually};

#[test]
fn extents_of_an_earlier_daemon_are_refused_and_never_read_as_new_ones() {
    for with_ssd in [false, true] {
        let order = NodeOrder::default();
        let mut node = if with_ssd { order.ssd("128mib").start() } else { order.start() };
        let mut saver = Saver::connect(&node.socket(), "engine");
        saver.save(&[1, 2, 3]);
        let acquired = saver.acquire(&[1, 2, 3]);
        let lease = acquired.lease.clone().expect("ready");
        let slots = saver.fill(&[4], 0);
        let blocks: Vec<BlockHash> = (1..=3).map(block).collect();
        let namespace = saver.namespace;
        let lists = [PrefixList { namespace, group: GROUP, blocks: &blocks }];
        let before = saver.client.node().expect("connected");

        node.kill();
        node.restart();

        // Until it connects again the client still maps the old arena: the old bytes, and right ones.
        for (key, result) in [1, 2, 3].iter().zip(&acquired.blocks) {
            let ready = result.as_ref().unwrap();
            assert!(ready.bytes().unwrap() == payload(*key, 0, BLOCK_BYTES as usize));
        }
        // The next call connects by itself, with the namespace it had.
        let outcomes = saver.check_never_wrong(&[1, 2, 3]);
        assert!(outcomes.iter().all(|outcome| matches!(outcome, None | Some(BlockOutcome::Missing))));
        let after = saver.client.node().expect("connected again");
        assert_ne!(before.arena_generation, after.arena_generation);
        assert_ne!(before.incarnation, after.incarnation);

        let stale = |result: Result<(), ClientError>| match result {
            Err(ClientError::StaleGeneration { held, current }) => {
                assert_eq!((held, current), (before.arena_generation, after.arena_generation));
            }
            other => panic!("not stale: {other:?}"),
        };
        acquired.blocks.iter().for_each(|ready| stale(ready.as_ref().unwrap().bytes().map(|_| ())));
        stale(lease.check());
        let mut slots = slots;
        stale(slots[0].copy_in(0, &[1]));
        stale(saver.client.commit(&mut slots, WAIT).map(|_| ()));
        assert_eq!(slots.len(), 1, "a refused slot stays with its owner");

        // The same blocks are saved and read anew, and an old lease keeps nothing of them.
        saver.save(&[1, 2, 3, 4]);
        saver.check_ready(&[1, 2, 3, 4]);
        let view = saver.client.query(&lists, false, WAIT).unwrap();
        assert_eq!(view.boundary_blocks, 3);
        node.await_nothing_held();
    }
}

#[test]
fn the_node_itself_refuses_slots_and_leases_of_an_earlier_daemon() {
    let mut node = Node::start();
    let mut raw = Raw::connect(&node.socket());
    let old = raw.hello(&hello_body(0));
    raw.register(&registration("engine"));
    let frame = raw.reserve(&[block(1).0], BLOCK_BYTES);
    assert_eq!(frame.status(), Status::Ok);
    node.kill();
    raw.expect_end();
    node.restart();

    let mut raw = Raw::connect(&node.socket());
    // A connection number of the earlier daemon means nothing to this one.
    let new = raw.hello(&hello_body(old.connection));
    assert_ne!(old.arena_generation, new.arena_generation);
    raw.register(&registration("engine"));
    // The numbers of slots start over: without its generation this one would be somebody's.
    let mut other = Saver::connect(&node.socket(), "engine");
    let held = other.fill(&[1], 0);
    for operation in [Operation::Commit, Operation::Abort] {
        let body =
            orbitkv_wire::engine::requests::ReservationsBody { arena_generation: old.arena_generation };
        let record = orbitkv_wire::engine::requests::ReservationRecord { reservation: 1 };
        let frame = raw.ask(operation, &body, &[record]);
        let (status, refusal) = frame.refusal();
        assert_eq!((status, refusal.detail), (Status::StaleGeneration, new.arena_generation));
    }
    let frame = raw.ask(Operation::Attach, &LeaseBody { lease: [3; 16] }, &[] as &[HashRecord]);
    assert_eq!(frame.status(), Status::UnknownLease);
    let page = node.metadata();
    assert_eq!(page.shards[0].engine.stale_generation_rejections, 2);
    assert_eq!(page.shards[0].engine.reservations, 1);
    let mut held = held;
    other.client.abort(&mut held, WAIT).unwrap();
    node.await_nothing_held();
}

#[test]
fn a_client_waits_for_a_daemon_that_is_being_restarted() {
    let mut node = Node::start();
    let mut saver = Saver::connect(&node.socket(), "engine");
    saver.save(&[1]);
    let blocks = [block(1)];
    let lists = [PrefixList { namespace: saver.namespace, group: GROUP, blocks: &blocks }];
    for round in 0..4 {
        let unanswered = if round % 2 == 0 {
            node.signal(rustix::process::Signal::STOP);
            let ticket = saver.client.submit_query(&lists, CompletionTarget::Host, false, WAIT).unwrap();
            node.kill();
            Some(ticket)
        } else {
            assert!(node.terminate().success(), "SIGTERM ends it in order");
            None
        };
        // While nobody listens a call says so, in its own time.
        if let Some(ticket) = unanswered {
            let lost = eventually("the loss is told", || saver.client.poll());
            assert_eq!((lost.ticket, lost.last), (ticket, true));
            assert!(matches!(lost.result, Err(ClientError::ConnectionLost { .. })), "{lost:?}");
        }
        let began = Instant::now();
        let nobody = saver.client.query(&lists, false, Duration::from_millis(200));
        assert!(nobody.as_ref().is_err_and(ClientError::is_connection), "{nobody:?}");
        assert!(began.elapsed() < Duration::from_secs(3), "it waited {:?}", began.elapsed());

        let socket = node.socket();
        let waiting = std::thread::spawn(move || {
            let reserved = saver.reserve(&[1], false);
            assert!(matches!(reserved[..], [Reserved::Slot(_)]), "{reserved:?}");
            saver
        });
        std::thread::sleep(Duration::from_millis(100));
        node.restart();
        assert_eq!(socket, node.socket());
        saver = waiting.join().expect("the call outlasted the restart");
    }
    node.await_held("the last slot is held", |held| held.reservations == 1);
    node.assert_serves();
}
