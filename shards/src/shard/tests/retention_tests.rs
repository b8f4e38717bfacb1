//! Blocks that peers have sent, when room runs out: which of them and of a node's own leave, and what that is worth over
//! a whole trace on two nodes, compared with a plain least-recently-used list of all their room.

use std::collections::VecDeque;

use orbitkv_wire::engine::answers::{BlockOutcome, BlockRecord, Place};
use orbitkv_wire::identity::{KeyHash, Medium};
use orbitkv_wire::payload::ExactResidence;

use super::super::{FetchEffect, GrantBatch, GrantOutcome, ShardSettings, Tag};
use super::rig::{KIB, Rig, digest, holder, settings};
use crate::dice::Dice;
use crate::retention::Retention;
use crate::time::Moment;

const BYTES: u64 = 256 * KIB;
/// Slots of a node.
const SLOTS: usize = 16;
/// Blocks of the longest conversation.
const TURNS_MAX: usize = 8;

fn rig(retention: Retention, ssd_bytes: u64) -> Rig {
    let mut bounds = ShardSettings { retention, ..settings(2, ssd_bytes) };
    // A whole conversation is under one lease.
    bounds.leases.bytes_per_connection_max = bounds.slab.bytes;
    let mut rig = Rig::new(bounds);
    rig.shard.seek_peers(true);
    // So that the namespace has a number.
    rig.save(255, BYTES);
    rig.settle();
    rig.evict(255, 3);
    rig
}

/// Brings what an Acquire waits for from peers that have it.
fn serve_fetches(rig: &mut Rig, mut has: impl FnMut(u8) -> bool) {
    while let Some(seek) = rig.shard.poll_seek() {
        let bytes = has(seek.key.block.0[0]).then_some(BYTES);
        rig.shard.on_sought(seek, bytes);
    }
    while let Some(effect) = rig.shard.poll_fetch() {
        let FetchEffect::Fetch(order) = effect else { panic!("nobody gives up") };
        rig.fill(order.arena_offset, BYTES, u64::from(order.key.block.0[0]));
        let checksum = rig.sum(order.arena_offset, BYTES);
        rig.shard.on_fetched(order.copy, Medium::Dram, checksum);
    }
}

fn take(rig: &mut Rig, tag: Tag) -> Vec<BlockRecord> {
    rig.collect();
    let (blocks, done) = rig.blocks(tag);
    assert!(done);
    let ready = blocks.iter().filter(|block| block.outcome == BlockOutcome::Ready as u8);
    ready.for_each(|block| assert!(block.offset > 0));
    blocks
}

/// Acquires keys that peers have, and lets go of them.
fn fetch(rig: &mut Rig, numbers: &[u8]) {
    let tag = rig.submit_acquire(holder(1, 1, 1), numbers);
    serve_fetches(rig, |_| true);
    assert!(take(rig, tag).iter().all(|block| block.outcome == BlockOutcome::Ready as u8));
    rig.release(1, 1);
}

#[test]
fn a_block_of_a_peer_leaves_before_one_that_is_nowhere_else() {
    for (retention, ssd_bytes, leaves) in [
        (Retention::Weigh, 0, 7),
        // As ours are on SSD as well, the least recently used one leaves.
        (Retention::Weigh, 16 * 1024 * KIB, 20),
        (Retention::Keep, 0, 20),
    ] {
        let mut rig = rig(retention, ssd_bytes);
        (20..20 + SLOTS as u8 - 1).for_each(|number| rig.save(number, BYTES));
        fetch(&mut rig, &[7]);
        rig.settle();
        rig.save(40, BYTES);
        let there: Vec<bool> = [7, 20].iter().map(|&number| rig.place(number) == Place::Dram).collect();
        assert_eq!(there, [leaves != 7, leaves != 20], "{retention:?} with an SSD of {ssd_bytes}");
        assert_eq!(rig.counters().fetched_dropped, u64::from(leaves == 7));
    }
}

#[test]
fn what_is_used_again_and_again_stays() {
    let mut rig = rig(Retention::Weigh, 0);
    (20..20 + SLOTS as u8 - 1).for_each(|number| rig.save(number, BYTES));
    rig.now = Moment(1_000_000);
    fetch(&mut rig, &[7]);
    for _ in 0..40 {
        rig.now = Moment(rig.now.0 + 10_000);
        fetch(&mut rig, &[7]);
    }
    rig.save(40, BYTES);
    assert_eq!((rig.place(7), rig.place(20)), (Place::Dram, Place::None));
    let counters = rig.counters();
    assert_eq!((counters.fetched_reused, counters.fetched_kept, counters.fetched_dropped), (40, 1, 0));
}

#[test]
fn a_block_that_is_dropped_leaves_with_its_last_user() {
    let mut rig = rig(Retention::Drop, 0);
    let first = rig.submit_acquire(holder(1, 1, 1), &[7]);
    let second = rig.submit_acquire(holder(2, 1, 1), &[7]);
    serve_fetches(&mut rig, |_| true);
    let blocks = [take(&mut rig, first), take(&mut rig, second)].concat();
    assert!(blocks.iter().all(|block| rig.holds(block.offset, BYTES, 7)));
    rig.release(1, 1);
    assert_eq!(rig.place(7), Place::Dram);
    rig.release(2, 1);
    assert_eq!((rig.place(7), rig.counters().fetched_dropped), (Place::None, 1));
    assert_eq!(rig.shard.figures().allocated_bytes, 0);
}

#[test]
fn what_was_announced_is_not_dropped_before_its_first_user_or_its_time() {
    let mut rig = rig(Retention::Drop, 0);
    rig.prefetch(1, &[7, 8], Moment(1_000));
    serve_fetches(&mut rig, |_| true);
    assert_eq!(
        (rig.place(7), rig.place(8), rig.counters().fetched_bytes),
        (Place::Dram, Place::Dram, 2 * BYTES)
    );
    fetch(&mut rig, &[7]);
    assert_eq!((rig.place(7), rig.place(8), rig.counters().fetched_bytes), (Place::None, Place::Dram, BYTES));
    rig.now = Moment(1_000);
    rig.shard.on_time(rig.now);
    let counters = rig.counters();
    assert_eq!((rig.place(8), counters.fetched_dropped, counters.fetched_bytes), (Place::None, 2, 0));
    assert_eq!((counters.prefetch_used, counters.prefetch_unused), (1, 1));
    assert_eq!(rig.shard.figures().allocated_bytes, 0);
}

/// One request of a trace: at which node it is served, and its blocks from the root.
struct Request {
    node: usize,
    blocks: Vec<u8>,
}

/// Conversations over a common first block that grow by a block a turn and move to the other node now and then.
fn conversations(seed: u64) -> Vec<Request> {
    let mut dice = Dice(seed);
    let mut live: Vec<(usize, Vec<u8>)> = Vec::new();
    let mut requests = Vec::new();
    for name in 1..u8::MAX {
        if live.len() < 7 || dice.one_in(6) {
            let node = dice.roll(2) as usize;
            live.push((node, vec![0]));
        }
        if live.len() > 9 {
            live.remove(0);
        }
        // Mostly one that has just had its turn.
        let index = live.len() - 1 - (dice.roll(9).min(dice.roll(9)) as usize).min(live.len() - 1);
        let (node, blocks) = &mut live[index];
        if dice.one_in(4) {
            *node = 1 - *node;
        }
        blocks.push(name);
        requests.push(Request { node: *node, blocks: blocks.clone() });
        if blocks.len() == TURNS_MAX {
            live.remove(index);
        }
    }
    requests
}

/// Blocks that one list of the most recently used ones would find, with room for all that both nodes have: the oracle.
fn hits_of_one_list(requests: &[Request], room: usize) -> usize {
    let mut recent: VecDeque<u8> = VecDeque::new();
    let mut hits = 0;
    for request in requests {
        let found = request.blocks.iter().take_while(|block| recent.contains(block)).count();
        hits += found;
        for block in request.blocks.iter().rev() {
            recent.retain(|other| other != block);
            recent.push_back(*block);
        }
        recent.drain(..recent.len().saturating_sub(room));
    }
    hits
}

/// Blocks that two nodes find together, each its own or the other's.
fn hits_of_two_nodes(requests: &[Request], retention: Retention) -> usize {
    let mut nodes = [rig(retention, 0), rig(retention, 0)];
    let mut hits = 0;
    for (request, turn) in requests.iter().zip(1u64..) {
        let now = Moment(turn * 1_000_000);
        let [first, second] = &mut nodes;
        let (here, there) = if request.node == 0 { (first, second) } else { (second, first) };
        (here.now, there.now) = (now, now);
        there.shard.on_time(now);
        let token = u128::from(turn);
        let tag = here.submit_acquire(holder(token, 1, 1), &request.blocks);
        serve_fetches(here, |number| lend(there, number));
        let blocks = take(here, tag);
        let found = blocks.iter().take_while(|block| block.outcome == BlockOutcome::Ready as u8).count();
        hits += found;
        here.release(token, 1);
        // The deepest first, as a Commit has them.
        for &number in request.blocks[found..].iter().rev() {
            let slot = here.reserve(1, number, BYTES);
            if slot.outcome == 0 {
                here.fill(slot.offset, BYTES, u64::from(number));
                here.commit(1, slot.reservation);
            }
        }
    }
    hits
}

/// Whether a node has a block in DRAM; it is lent, which is a use of it.
fn lend(node: &mut Rig, number: u8) -> bool {
    let residents = node.list(0, 1, 1_000);
    let Some(found) = residents.iter().find(|resident| resident.block.0[0] == number) else { return false };
    let wanted = ExactResidence {
        namespace: digest(0),
        group: found.group,
        block: found.block,
        medium: Medium::Dram,
        sequence: found.sequence,
    };
    let hash: KeyHash = super::rig::key(number).hash;
    let granted = node.shard.grant(&wanted, hash, u64::MAX, &mut GrantBatch::default());
    let GrantOutcome::Pinned { pin, .. } = granted else { panic!("{number} is there: {granted:?}") };
    node.shard.unpin_grant(pin);
    true
}

#[test]
fn two_nodes_find_what_one_with_their_room_would_and_keeping_all_finds_less() {
    let (mut kept, mut weighed, mut one) = (0, 0, 0);
    for seed in 1..=20 {
        let requests = conversations(seed);
        one += hits_of_one_list(&requests, 2 * SLOTS);
        kept += hits_of_two_nodes(&requests, Retention::Keep);
        weighed += hits_of_two_nodes(&requests, Retention::default());
    }
    let found =
        format!("weighing finds {weighed} blocks, keeping all {kept}, one node with all their room {one}");
    assert!(weighed > kept, "{found}");
    assert!(weighed * 100 >= one * 94, "{found}");
}
