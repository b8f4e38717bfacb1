//! Blocks of peers: what is sought, fetched, given up, and overtaken by an engine's own save.

use orbitkv_wire::engine::answers::{BlockOutcome, BlockRecord, CommitOutcome, Place};
use orbitkv_wire::identity::Medium;

use super::super::{Command, FetchEffect, Tag};
use super::rig::{BOTH, KIB, Rig, holder};
use crate::time::Moment;

const BYTES: u64 = 64 * KIB;

/// A shard with peers to ask, and one block of its own so that the namespace has a number.
fn rig() -> Rig {
    let mut rig = Rig::small();
    rig.save(0, BYTES);
    rig.settle();
    rig.shard.seek_peers(true);
    rig
}

/// What an Acquire has been told since.
fn told(rig: &mut Rig, tag: Tag) -> (Vec<BlockRecord>, bool) {
    rig.collect();
    rig.blocks(tag)
}

/// An Acquire of key 7, with what it was told at once.
fn acquire(rig: &mut Rig, token: u128) -> (Tag, Vec<BlockRecord>, bool) {
    let tag = rig.submit_acquire(holder(token, 1, 1), &[7]);
    let (blocks, done) = told(rig, tag);
    (tag, blocks, done)
}

#[test]
fn a_block_of_a_peer_becomes_a_resident_and_is_pinned_for_whoever_waited() {
    let mut rig = rig();
    let (tag, blocks, done) = acquire(&mut rig, 1);
    assert_eq!((blocks.len(), done), (0, false));
    assert!(rig.shard.has_peer_work());
    assert_eq!(rig.answer_seeks(Some(BYTES)), 1);
    let order = rig.fetch_order();
    assert_eq!(order.bytes, BYTES);
    assert_eq!(rig.place(7), Place::None, "it shows nothing yet");
    rig.fill(order.arena_offset, BYTES, 7);
    let checksum = rig.sum(order.arena_offset, BYTES);
    rig.shard.on_fetched(order.copy, Medium::Ssd, checksum);
    let (blocks, done) = told(&mut rig, tag);
    assert!(done);
    assert_eq!((blocks[0].outcome, blocks[0].source), (BlockOutcome::Ready as u8, Place::PeerSsd as u8));
    assert_eq!(rig.place(7), Place::Dram);
    assert!(rig.holds(blocks[0].offset, BYTES, 7));
    rig.settle();
    assert_eq!(rig.counters().hits_peer_ssd, 1);
    assert_eq!(rig.counters().write_backs_done, 1, "its source has it: only our own block is written");
}

#[test]
fn what_nobody_has_is_missing_and_leaves_nothing() {
    let mut rig = rig();
    let before = rig.shard.figures().allocated_bytes;
    let (tag, ..) = acquire(&mut rig, 1);
    rig.answer_seeks(None);
    assert!(rig.shard.has_replies(), "nothing else wakes the core");
    let (blocks, done) = told(&mut rig, tag);
    assert_eq!((blocks[0].outcome, done), (BlockOutcome::Missing as u8, true));
    let (tag, ..) = acquire(&mut rig, 2);
    rig.answer_seeks(Some(BYTES));
    let order = rig.fetch_order();
    rig.shard.on_fetch_failed(order.copy, BlockOutcome::Missing);
    let (blocks, done) = told(&mut rig, tag);
    assert_eq!((blocks[0].outcome, done), (BlockOutcome::Missing as u8, true));
    let figures = rig.shard.figures();
    assert_eq!((figures.allocated_bytes, figures.leased_bytes), (before, 0));
}

#[test]
fn a_fetch_that_nobody_wants_is_given_up_and_may_be_wanted_again() {
    let mut rig = rig();
    let (tag, ..) = acquire(&mut rig, 1);
    rig.answer_seeks(Some(BYTES));
    let order = rig.fetch_order();
    rig.call(Command::Cancel { tag, deadline: false });
    assert_eq!(rig.shard.poll_fetch(), Some(FetchEffect::Cancel(order.copy)));
    assert!(!rig.shard.is_wanted(order.copy));
    // Another one wants it before it has ended.
    let (tag, blocks, done) = acquire(&mut rig, 2);
    assert_eq!((blocks.len(), done), (0, false));
    assert!(rig.shard.is_wanted(order.copy), "who gives it up asks first");
    rig.fill(order.arena_offset, BYTES, 7);
    let checksum = rig.sum(order.arena_offset, BYTES);
    rig.shard.on_fetched(order.copy, Medium::Dram, checksum);
    let (blocks, _) = told(&mut rig, tag);
    assert_eq!(blocks[0].source, Place::PeerDram as u8);
}

#[test]
fn a_fetch_is_out_of_time_with_the_last_who_waited_for_it() {
    let mut rig = rig();
    let (first, ..) = acquire(&mut rig, 1);
    rig.answer_seeks(Some(BYTES));
    let order = rig.fetch_order();
    let (second, ..) = acquire(&mut rig, 2);
    rig.call(Command::Cancel { tag: first, deadline: true });
    assert_eq!(rig.shard.poll_fetch(), None, "somebody waits for it");
    rig.call(Command::Cancel { tag: second, deadline: true });
    assert_eq!(rig.shard.poll_fetch(), Some(FetchEffect::Expire(order.copy)));
    assert!(!rig.shard.is_wanted(order.copy));
}

#[test]
fn a_fetch_has_the_time_of_who_waits_longest() {
    let mut rig = rig();
    rig.submit_acquire_until(holder(1, 1, 1), &[7], Moment(500));
    rig.answer_seeks(Some(BYTES));
    let order = rig.fetch_order();
    assert_eq!(order.until, Moment(500));
    let mut told_of = |token: u128, until: u64| {
        rig.submit_acquire_until(holder(token, 1, 1), &[7], Moment(until));
        rig.shard.poll_fetch()
    };
    assert_eq!(told_of(2, 300), None);
    let longer = FetchEffect::Await { copy: order.copy, until: Moment(900) };
    assert_eq!(told_of(3, 900), Some(longer));
    assert_eq!((told_of(4, 900), told_of(5, 600)), (None, None), "once is enough");
}

#[test]
fn bytes_that_come_for_an_entry_that_has_ended_are_orphans_and_keep_no_slot() {
    let mut rig = rig();
    let (tag, ..) = acquire(&mut rig, 1);
    rig.answer_seeks(Some(BYTES));
    let order = rig.fetch_order();
    let slot = rig.reserve(2, 7, BYTES);
    rig.fill(slot.offset, BYTES, 7);
    assert_eq!(rig.commit(2, slot.reservation), CommitOutcome::Committed);
    told(&mut rig, tag);
    let before = rig.shard.figures().allocated_bytes;
    rig.fill(order.arena_offset, BYTES, 7);
    let checksum = rig.sum(order.arena_offset, BYTES);
    rig.shard.on_fetched(order.copy, Medium::Dram, checksum);
    let figures = rig.shard.figures();
    assert_eq!((figures.counters.orphans, before - figures.allocated_bytes), (1, BYTES));
}

#[test]
fn a_save_neither_waits_for_a_fetch_nor_loses_against_it() {
    let mut rig = rig();
    let (tag, ..) = acquire(&mut rig, 1);
    rig.answer_seeks(Some(BYTES));
    let order = rig.fetch_order();
    // Reserved and committed while a peer may be sending it.
    let slot = rig.reserve(2, 7, BYTES);
    assert_eq!((slot.outcome, slot.bytes), (0, BYTES), "a slot");
    rig.fill(slot.offset, BYTES, 7);
    assert_eq!(rig.commit(2, slot.reservation), CommitOutcome::Committed);
    let (waited, _) = told(&mut rig, tag);
    assert_eq!(waited.len(), 1);
    assert_eq!((waited[0].outcome, waited[0].source), (BlockOutcome::Ready as u8, Place::Dram as u8));
    assert!(rig.holds(waited[0].offset, BYTES, 7));
    assert_eq!(rig.shard.poll_fetch(), Some(FetchEffect::Cancel(order.copy)));
    // Its bytes come too late and are nobody's; the save stays.
    rig.shard.on_fetch_failed(order.copy, BlockOutcome::Cancelled);
    assert_eq!(rig.place(7), Place::Dram);
    rig.settle();
    rig.gone(1);
    rig.evict(7, BOTH);
    rig.evict(0, BOTH);
    assert_eq!(rig.shard.figures().allocated_bytes, 0, "every slot came back");
}
