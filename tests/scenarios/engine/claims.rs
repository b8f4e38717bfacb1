//! Reservations and leases: whose they are, who may join them, and when their memory comes back.

use orbitkv::client::{
    BlockHash, BlockOutcome, ClientError, CommitOutcome, EvictOutcome, Media, Medium, Place, PrefixList,
    Status,
};
use orbitkv_wire::engine::Operation;
use orbitkv_wire::engine::answers::{Answer, SlotOutcome};
use orbitkv_wire::engine::requests::{HashRecord, LeaseBody};

use crate::harness::raw::{hello_body, prefix_request};
use crate::harness::saver::{BLOCK_BYTES, GROUP, block, payload, registration};
use crate::harness::{EngineProcess, Node, Raw, Saver, WAIT};

const COMMITTED: u8 = CommitOutcome::Committed as u8;
const NOT_YOURS: u8 = CommitOutcome::NotYours as u8;
const ABORTED: u8 = CommitOutcome::Aborted as u8;

/// A registered connection, and the arena's generation.
fn registered(node: &Node, instance: &str) -> (Raw, u64) {
    let mut raw = Raw::connect(&node.socket());
    let generation = raw.hello(&hello_body(0)).arena_generation;
    raw.register(&registration(instance));
    (raw, generation)
}

/// Reserves slots and returns their numbers.
fn reserve(raw: &mut Raw, keys: std::ops::Range<u64>) -> Vec<u64> {
    let blocks: Vec<[u8; 32]> = keys.map(|key| block(key).0).collect();
    let frame = raw.reserve(&blocks, BLOCK_BYTES);
    let Answer::Reserve(records) = frame.answer() else { panic!("{frame:?}") };
    let records = records.to_vec().unwrap();
    assert!(records.iter().all(|record| record.outcome == SlotOutcome::Slot as u8), "{records:?}");
    records.iter().map(|record| record.reservation).collect()
}

fn release(raw: &mut Raw, lease: [u8; 16]) -> Status {
    raw.ask(Operation::Release, &LeaseBody { lease }, &[] as &[HashRecord]).status()
}

#[test]
fn only_the_connection_that_reserved_may_commit_or_abort_and_only_once() {
    let node = Node::start();
    let (mut owner, generation) = registered(&node, "owner");
    let (mut thief, _) = registered(&node, "thief");
    let (mut sibling, _) = registered(&node, "owner");
    let slots = reserve(&mut owner, 0..3);
    for other in [&mut thief, &mut sibling] {
        for operation in [Operation::Commit, Operation::Abort] {
            assert_eq!(other.settle(operation, generation, &slots), [NOT_YOURS; 3]);
        }
    }
    let invented = [0, u64::MAX, slots[0] + 1000, 7 << 48 | slots[0], u64::MAX >> 16];
    assert_eq!(owner.settle(Operation::Commit, generation, &invented), [NOT_YOURS; 5]);
    assert_eq!(node.held().reservations, 3, "none of that touched the slots");

    // One list may mix; each slot is answered for itself, and a slot named twice is done once.
    let mixed = [slots[0], slots[0], u64::MAX, slots[1]];
    assert_eq!(
        owner.settle(Operation::Commit, generation, &mixed),
        [COMMITTED, NOT_YOURS, NOT_YOURS, COMMITTED]
    );
    assert_eq!(owner.settle(Operation::Commit, generation, &slots[..2]), [NOT_YOURS; 2]);
    assert_eq!(owner.settle(Operation::Abort, generation, &slots[..2]), [NOT_YOURS; 2]);
    assert_eq!(owner.settle(Operation::Abort, generation, &slots[2..]), [ABORTED]);
    assert_eq!(owner.settle(Operation::Commit, generation, &slots[2..]), [NOT_YOURS]);
    node.await_nothing_held();
    let page = node.metadata();
    assert_eq!(page.shards[0].residents.dram, 2);
    assert_eq!(page.shards[0].arena.allocated_bytes, 2 * BLOCK_BYTES);
    node.assert_serves();
}

#[test]
fn a_release_is_done_once_and_never_for_somebody_else() {
    let node = Node::start();
    Saver::connect(&node.socket(), "owner").save(&[1]);
    let (mut owner, _) = registered(&node, "owner");
    let (mut other, _) = registered(&node, "owner");
    owner.send(&prefix_request(Operation::Acquire, 900, 0, false, [0; 16], &[block(1).0]));
    let frame = owner.answers_to(900).pop().expect("at least one");
    let Answer::Acquire(answer, _) = frame.answer() else { panic!("{frame:?}") };
    assert_eq!(node.held().leased_bytes, BLOCK_BYTES);

    // Releasing what one has no share of is done already.
    assert_eq!(release(&mut other, answer.lease), Status::Ok);
    assert_eq!(node.held().leases, 1, "another connection ended the lease");
    assert_eq!(release(&mut owner, [0; 16]), Status::Ok);
    assert_eq!(release(&mut owner, [0xab; 16]), Status::Ok);
    assert_eq!(node.held().leases, 1);

    for _ in 0..3 {
        assert_eq!(release(&mut owner, answer.lease), Status::Ok);
        node.await_nothing_held();
    }
    node.assert_serves();
}

#[test]
fn a_lease_is_used_by_another_process_of_its_instance_and_outlives_the_one_that_took_it() {
    for taker_dies_first in [true, false] {
        let node = Node::start();
        let (mut scheduler, mut worker) = (EngineProcess::start(&node), EngineProcess::start(&node));
        let keys = [1, 2, 3];
        let mut taker = Saver::connect(&scheduler.socket(), "engine");
        taker.save(&keys);
        let lease = taker.acquire_checked(&keys);
        let mut joiner = Saver::connect(&worker.socket(), "engine");
        let attached = joiner.client.attach(lease.token(), WAIT).expect("the same instance");
        assert_eq!(attached.blocks.len(), keys.len());
        let leased = Held { leases: 1, leased_bytes: 3 * BLOCK_BYTES, ..Held::default() };
        let only_leased = |held: &Held| Held { connections: 0, ..*held } == leased;

        if taker_dies_first {
            scheduler.kill();
        } else {
            worker.kill();
        }
        // One process is left, and with it the lease: no save may take its memory.
        node.await_held("one process is left", |held| held.connections == 1 && only_leased(held));
        let mut others = Saver::connect(&node.socket(), "others");
        for chunk in (1000..2500).collect::<Vec<u64>>().chunks(100) {
            others.save(chunk);
        }
        assert!(only_leased(&node.held()));
        if taker_dies_first {
            for attached in &attached.blocks {
                let key = keys.iter().find(|key| block(**key) == attached.block).expect("a key of the lease");
                assert!(attached.ready.bytes().unwrap() == payload(*key, 0, BLOCK_BYTES as usize));
            }
            joiner.client.release(&attached.lease, WAIT).expect("released");
        } else {
            taker.check_ready(&keys);
            taker.client.release(&lease, WAIT).expect("released");
        }
        node.await_nothing_held();
        node.assert_serves();
    }
}

use crate::harness::Held;

#[test]
fn a_lease_ends_with_the_last_of_its_processes() {
    let node = Node::start();
    let (mut scheduler, mut worker) = (EngineProcess::start(&node), EngineProcess::start(&node));
    let mut taker = Saver::connect(&scheduler.socket(), "engine");
    taker.save(&[1]);
    let lease = taker.acquire_checked(&[1]);
    let mut joiner = Saver::connect(&worker.socket(), "engine");
    joiner.client.attach(lease.token(), WAIT).expect("the same instance");
    scheduler.kill();
    node.await_held("the taker is gone", |held| held.connections == 1 && held.leases == 1);
    worker.kill();
    node.await_nothing_held();
    node.assert_serves();
}

#[test]
fn another_instance_may_neither_join_nor_take_over_a_lease() {
    let node = Node::start();
    let mut owner = Saver::connect(&node.socket(), "owner");
    owner.save(&[1]);
    let lease = owner.acquire_checked(&[1]);
    let mut stranger = Saver::connect(&node.socket(), "stranger");
    let status = |result: Result<_, ClientError>| result.expect_err("refused").status();
    let attached = |result: Result<orbitkv::client::AttachPart, _>| status(result.map(|_| ()));
    assert_eq!(attached(stranger.client.attach(lease.token(), WAIT)), Some(Status::ForeignLease));
    assert_eq!(attached(stranger.client.attach([9; 16], WAIT)), Some(Status::UnknownLease));

    let blocks = [block(1)];
    let lists = [PrefixList { namespace: owner.namespace, group: GROUP, blocks: &blocks }];
    let held = owner.client.query(&lists, true, WAIT).unwrap().lease.expect("a hold");
    // Nobody reads under a hold, so nobody joins it, not even the instance itself.
    assert_eq!(attached(owner.client.attach(held.token(), WAIT)), Some(Status::UnknownLease));
    let (mut raw, _) = registered(&node, "stranger");
    for token in [held.token(), lease.token()] {
        let id = raw.fresh_id();
        raw.send(&prefix_request(Operation::Acquire, id, 0, false, token, &[block(1).0]));
        assert_eq!(raw.answer_to(id).status(), Status::ForeignLease);
    }
    assert_eq!((node.held().leases, node.held().holds), (2, 1));
    owner.client.release(&held, WAIT).unwrap();
    owner.client.release(&lease, WAIT).unwrap();
    node.await_nothing_held();
}

#[test]
fn an_engine_that_has_not_registered_can_lease_nothing() {
    let node = Node::start();
    let mut raw = node.raw();
    for (operation, hold) in [(Operation::Query, true), (Operation::Acquire, false)] {
        let id = raw.fresh_id();
        raw.send(&prefix_request(operation, id, 0, hold, [0; 16], &[block(1).0]));
        assert_eq!(raw.answer_to(id).status(), Status::NotRegistered);
    }
    let id = raw.fresh_id();
    raw.send(&prefix_request(Operation::Query, id, 0, false, [0; 16], &[block(1).0]));
    assert_eq!(raw.answer_to(id).status(), Status::UnknownNamespace);
    let frame = raw.reserve(&[block(1).0], BLOCK_BYTES);
    assert_eq!(frame.status(), Status::UnknownNamespace);
    node.await_nothing_held();
}

#[test]
fn blocks_lost_between_query_and_acquire_are_missing_one_by_one() {
    let node = Node::start();
    let mut saver = Saver::connect(&node.socket(), "engine");
    let keys: Vec<u64> = (0..6).collect();
    saver.save(&keys);
    let blocks: Vec<BlockHash> = keys.iter().map(|&key| block(key)).collect();
    let lists = [PrefixList { namespace: saver.namespace, group: GROUP, blocks: &blocks }];
    let view = saver.client.query(&lists, false, WAIT).unwrap();
    assert_eq!((view.boundary_blocks, view.places.clone()), (6, vec![Place::Dram; 6]));
    let gone = [(block(2), GROUP), (block(5), GROUP)];
    let outcomes = saver.client.evict(saver.namespace, &gone, Media::ALL, WAIT).unwrap();
    assert_eq!(outcomes, [EvictOutcome::Evicted; 2]);
    let acquired = saver.client.acquire(&lists, None, WAIT).unwrap();
    assert_eq!(acquired.boundary_blocks, 2, "a boundary ends where the first block is missing");
    for (key, result) in keys.iter().zip(&acquired.blocks) {
        match (key, result) {
            (2 | 5, Err(BlockOutcome::Missing)) => {}
            (_, Ok(ready)) => assert!(ready.bytes().unwrap() == payload(*key, 0, BLOCK_BYTES as usize)),
            (_, Err(outcome)) => panic!("key {key} is {outcome:?}"),
        }
    }
    saver.client.release(&acquired.lease.expect("four are ready"), WAIT).unwrap();
    node.await_nothing_held();

    // Under a hold nothing is lost: eviction waits for whoever asked first.
    let view = saver.client.query(&lists[..], true, WAIT).unwrap();
    let hold = view.lease.expect("a hold");
    let outcomes = saver.client.evict(saver.namespace, &[(block(0), GROUP)], Media::ALL, WAIT).unwrap();
    assert_eq!(outcomes, [EvictOutcome::InUse]);
    saver.client.release(&hold, WAIT).unwrap();
    node.await_nothing_held();
}

#[test]
fn an_evicted_block_keeps_its_bytes_until_its_lease_ends() {
    let node = Node::start();
    let mut saver = Saver::connect(&node.socket(), "engine");
    saver.save(&[1, 2]);
    let acquired = saver.acquire(&[1, 2]);
    let keys = [(block(1), GROUP), (block(2), GROUP), (block(3), GROUP)];
    let dram = Media::from(Medium::Dram);
    let outcomes = saver.client.evict(saver.namespace, &keys, dram, WAIT).unwrap();
    assert_eq!(outcomes, [EvictOutcome::InUse, EvictOutcome::InUse, EvictOutcome::Absent]);
    let again = saver.client.evict(saver.namespace, &keys, dram, WAIT).unwrap();
    assert_eq!(again, [EvictOutcome::Absent; 3], "it has left the lookups at once");
    assert_eq!(saver.acquire(&[1]).blocks[0].as_ref().err(), Some(&BlockOutcome::Missing));

    // More saves than the arena holds go through it, the keys themselves among them, with other bytes.
    let mut others = Saver::connect(&node.socket(), "others");
    let mut slots = others.fill(&[1], 7);
    others.client.commit(&mut slots, WAIT).unwrap();
    for chunk in (1000..3000).collect::<Vec<u64>>().chunks(100) {
        others.save(chunk);
    }
    for (key, result) in [1, 2].iter().zip(&acquired.blocks) {
        let bytes = result.as_ref().unwrap().bytes().unwrap();
        assert!(bytes == payload(*key, 0, BLOCK_BYTES as usize), "key {key} changed under its lease");
    }
    let before = node.held();
    assert_eq!(
        (before.leases, before.leased_bytes),
        (2, 2 * BLOCK_BYTES),
        "one lease is of the missing block"
    );
    saver.client.release(&acquired.lease.expect("ready"), WAIT).unwrap();
    node.await_held("the bytes came back", |held| held.leased_bytes == 0);
}
