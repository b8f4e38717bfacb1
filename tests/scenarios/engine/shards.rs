//! The same story on one shard and on two: what a node promises does not depend on how many cores
//! carry it.

use std::collections::{BTreeMap, BTreeSet};

use orbitkv::client::{
    BlockHash, BlockOutcome, CompletionTarget, EvictOutcome, Media, Medium, Outcome, Place, PrefixList,
    SyncOutcome,
};
use orbitkv_wire::engine::Operation;

use crate::harness::raw::prefix_request;
use crate::harness::saver::{BLOCK_BYTES, GROUP, block, registration};
use crate::harness::{EngineProcess, Held, Node, NodeOrder, Saver, WAIT};

const KEYS: u64 = 300;

fn blocks(keys: std::ops::Range<u64>) -> Vec<BlockHash> {
    keys.map(block).collect()
}

fn story(node: &Node, shards: usize) {
    let page = node.metadata();
    assert_eq!(page.shards.len(), shards);
    let mut saver = Saver::connect(&node.socket(), "engine");
    let keys: Vec<u64> = (0..KEYS).collect();
    saver.save(&keys);
    let page = node.metadata();
    let of_shards: Vec<u64> = page.shards.iter().map(|shard| shard.residents.dram).collect();
    assert_eq!(of_shards.iter().sum::<u64>(), KEYS);
    assert!(of_shards.iter().all(|&count| count > KEYS / 4), "keys are spread: {of_shards:?}");

    // Query: whole, with a hole, and beyond the end.
    let all = blocks(0..KEYS + 10);
    let lists = [PrefixList { namespace: saver.namespace, group: GROUP, blocks: &all }];
    let view = saver.client.query(&lists, true, WAIT).unwrap();
    assert_eq!(view.boundary_blocks, KEYS as u32);
    assert!(view.places[..KEYS as usize].iter().all(|place| *place == Place::Dram));
    let hold = view.lease.expect("held");
    node.await_held("every block is held", |held| {
        held.leased_bytes == KEYS * BLOCK_BYTES && held.leases == held.holds && held.holds > 0
    });

    // Acquire takes the hold over, Release ends it.
    let acquired = saver.client.acquire(&lists, Some(&hold), WAIT).unwrap();
    assert_eq!(acquired.boundary_blocks, KEYS as u32);
    assert!(acquired.blocks[KEYS as usize..].iter().all(|block| matches!(block, Err(BlockOutcome::Missing))));
    node.await_held("the hold became a lease", |held| {
        held.leased_bytes == KEYS * BLOCK_BYTES && held.holds == 0
    });
    // A hold over blocks of every shard is ended by an Acquire of one block.
    let hold = saver.client.query(&lists, true, WAIT).unwrap().lease.expect("held");
    let one = [PrefixList { namespace: saver.namespace, group: GROUP, blocks: &all[..1] }];
    let of_one = saver.client.acquire(&one, Some(&hold), WAIT).unwrap();
    node.await_held("one more block is leased", |held| {
        held.leased_bytes == (KEYS + 1) * BLOCK_BYTES && held.holds == 0
    });
    saver.client.release(&of_one.lease.unwrap(), WAIT).unwrap();
    saver.client.release(&acquired.lease.unwrap(), WAIT).unwrap();
    node.await_nothing_held();
    saver.check_ready(&keys);

    // Sync: everything is on SSD, and each shard says how far it is.
    let synced = saver.client.sync(WAIT).unwrap();
    assert_eq!((synced.outcome, synced.sequences.len()), (SyncOutcome::LocalFlushComplete, shards));
    let page = node.metadata();
    let heads: Vec<u64> = synced.sequences.iter().map(|sequence| sequence.0).collect();
    assert!(page.inventory_sequence.iter().zip(&heads).all(|(now, then)| now >= then));
    assert_eq!(page.shards.iter().map(|shard| shard.residents.ssd).sum::<u64>(), KEYS);

    // List: both media, in pages, each resident once.
    let digest = saver.client.digest(saver.namespace).unwrap();
    let mut seen = BTreeSet::new();
    let mut cursor = None;
    loop {
        let page = saver.client.list(digest, Media::ALL, 7, cursor, WAIT).unwrap();
        for resident in page.residents {
            assert_eq!((resident.bytes, resident.group), (BLOCK_BYTES, GROUP));
            assert!(seen.insert((resident.block.0, resident.medium as u8)), "listed twice");
        }
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    let expected = blocks(0..KEYS).into_iter().flat_map(|block| [(block.0, 0), (block.0, 1)]);
    assert_eq!(seen, expected.collect());

    // Evict from DRAM: the bytes come from SSD, the same ones.
    let named: Vec<_> = blocks(0..100).into_iter().map(|block| (block, GROUP)).collect();
    let outcomes = saver.client.evict(saver.namespace, &named, Media::from(Medium::Dram), WAIT).unwrap();
    assert_eq!(outcomes, vec![EvictOutcome::Evicted; 100]);
    let acquired = saver.acquire(&keys);
    let from_ssd = acquired.blocks.iter().filter(|block| block.as_ref().unwrap().place() == Place::Ssd);
    assert_eq!(from_ssd.count(), 100);
    saver.client.release(&acquired.lease.unwrap(), WAIT).unwrap();
    saver.check_ready(&keys);

    // A process with slots, a lease and a hold is killed.
    let mut process = EngineProcess::start(node);
    let mut raws: Vec<_> = (0..4).map(|_| process.raw()).collect();
    for (index, raw) in raws.iter_mut().enumerate() {
        raw.register(&registration("victim"));
        let own: Vec<[u8; 32]> = blocks(10_000 + 10 * index as u64..10_010 + 10 * index as u64)
            .iter()
            .map(|block| block.0)
            .collect();
        raw.reserve(&own, BLOCK_BYTES);
        let wanted: Vec<[u8; 32]> = blocks(0..50).iter().map(|block| block.0).collect();
        raw.send(&prefix_request(Operation::Acquire, 900, 0, false, [0; 16], &wanted));
        raw.answers_to(900);
        raw.send(&prefix_request(Operation::Query, 901, 0, true, [0; 16], &wanted));
        raw.answer_to(901);
    }
    let held = node.held();
    assert_eq!((held.reservations, held.leased_bytes), (40, 4 * 2 * 50 * BLOCK_BYTES));
    process.kill();
    node.await_nothing_held();

    // Clear: everything, everywhere.
    let cleared = saver.client.clear(digest, Media::ALL, WAIT).unwrap();
    assert_eq!((cleared.removed, cleared.in_use), (2 * KEYS, 0));
    assert!(saver.client.list(digest, Media::ALL, 10, None, WAIT).unwrap().residents.is_empty());
    let page = node.await_metadata("the arena is empty", |page| {
        page.shards.iter().all(|shard| shard.arena.allocated_bytes == 0)
    });
    assert!(page.shards.iter().all(|shard| shard.residents.dram + shard.residents.ssd == 0));
    assert_eq!(Held { connections: 0, ..node.held() }, Held::default());
    node.assert_serves();
}

/// Nothing waits for an answer: what was sent behind a Commit finds its blocks, what was sent behind an Evict
/// does not.
fn in_the_order_they_were_sent(node: &Node) {
    let mut saver = Saver::connect(&node.socket(), "engine");
    for round in 0..40 {
        let keys: Vec<u64> = (round * 100..round * 100 + 64).collect();
        let blocks = blocks(round * 100..round * 100 + 64);
        let mut slots = saver.fill(&keys, 1);
        let lists = [PrefixList { namespace: saver.namespace, group: GROUP, blocks: &blocks }];
        let named: Vec<_> = blocks.iter().map(|&block| (block, GROUP)).collect();
        let commit = saver.client.submit_commit(&mut slots, WAIT).unwrap();
        let query = saver.client.submit_query(&lists, CompletionTarget::Host, false, WAIT).unwrap();
        let evict = saver.client.submit_evict(saver.namespace, &named, Media::ALL, WAIT).unwrap();
        let after = saver.client.submit_query(&lists, CompletionTarget::Host, false, WAIT).unwrap();
        let mut boundaries = BTreeMap::new();
        let mut waiting = BTreeSet::from([commit, query, evict, after]);
        while !waiting.is_empty() {
            let Some(completion) = saver.client.poll() else {
                std::thread::yield_now();
                continue;
            };
            if let Outcome::Query(view) = completion.result.expect("answered") {
                boundaries.insert(completion.ticket, view.boundary_blocks);
            }
            waiting.remove(&completion.ticket);
        }
        assert_eq!(boundaries, BTreeMap::from([(query, 64), (after, 0)]), "round {round}");
    }
}

#[test]
fn requests_reach_a_shard_in_the_order_they_were_sent() {
    in_the_order_they_were_sent(&NodeOrder::default().start());
}

#[test]
fn requests_reach_two_shards_in_the_order_they_were_sent() {
    in_the_order_they_were_sent(&NodeOrder::default().two_shards().start());
}

#[test]
fn one_shard_tells_the_whole_story() {
    let node = NodeOrder::default().ssd("128mib").start();
    story(&node, 1);
}

#[test]
fn two_shards_tell_the_same_story() {
    let node = NodeOrder::default().two_shards().ssd("256mib").start();
    story(&node, 2);
}

#[test]
fn two_shards_end_the_claims_of_a_lost_connection_wherever_it_was_served() {
    let node = NodeOrder::default().two_shards().start();
    let process = EngineProcess::start(&node);
    for round in 0..20 {
        let mut lost = crate::harness::Raw::connect(&process.socket());
        let number = lost.hello(&crate::harness::raw::hello_body(0)).connection;
        lost.register(&registration("returner"));
        let own: Vec<[u8; 32]> = blocks(20 * round..20 * round + 20).iter().map(|block| block.0).collect();
        lost.reserve(&own, BLOCK_BYTES);
        drop(lost);
        let mut back = crate::harness::Raw::connect(&process.socket());
        back.hello(&crate::harness::raw::hello_body(number));
        node.await_held("the old claims ended", |held| held.is_nothing() && held.connections == 1);
        back.ping();
    }
    node.assert_serves();
}
