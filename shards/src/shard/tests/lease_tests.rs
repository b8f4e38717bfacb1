//! Acquire, Attach, Release and holds: what is pinned, for whom, and until when.

use orbitkv_wire::engine::answers::{BlockOutcome, CommitOutcome, EvictOutcome, Place, SlotOutcome};

use super::super::{Command, Outcome};
use super::rig::{BOTH, DRAM, Fault, KIB, Rig, holder, settings};
use crate::leases::{ConnectionId, LeaseError};
use crate::time::Moment;

const READY: u8 = BlockOutcome::Ready as u8;
const MISSING: u8 = BlockOutcome::Missing as u8;
const BUSY: u8 = BlockOutcome::Busy as u8;
const DEVICE_ERROR: u8 = BlockOutcome::DeviceError as u8;

fn refused(outcome: Outcome) -> LeaseError {
    let Outcome::LeaseRefused(error) = outcome else { panic!("not refused: {outcome:?}") };
    error
}

fn attach(rig: &mut Rig, token: u128, instance: u64, connection: u64) -> Outcome {
    rig.call(Command::Attach { holder: holder(token, instance, connection) })
}

/// Every slot of a slice without SSD under leases of three connections; the blocks are 0..64.
fn exhausted() -> Rig {
    let mut rig = Rig::new(settings(2, 0));
    for number in 0..64 {
        rig.save(number, 64 * KIB);
    }
    for (token, range) in [(1u128, 0..21), (2, 21..42), (3, 42..64)] {
        let numbers: Vec<u8> = range.collect();
        let blocks = rig.acquire(holder(token, 1, token as u64), &numbers);
        assert!(blocks.iter().all(|block| block.outcome == READY));
    }
    rig
}

#[test]
fn a_lease_is_used_by_another_process_of_the_instance_and_survives_either() {
    for first_gone in [1, 2] {
        let mut rig = Rig::small();
        rig.save(1, 64 * KIB);
        let ready = rig.acquire(holder(7, 1, 1), &[1])[0];
        let Outcome::Attached(blocks) = attach(&mut rig, 7, 1, 2) else { panic!("not attached") };
        assert_eq!((blocks[0].offset, blocks[0].bytes), (ready.offset, 64 * KIB));
        rig.settle();
        assert_eq!(rig.evict(1, BOTH), EvictOutcome::InUse);
        rig.gone(first_gone);
        assert_eq!(rig.shard.figures().leases, 1);
        assert!(rig.holds(ready.offset, 64 * KIB, 1));
        assert_eq!(rig.shard.figures().allocated_bytes, 64 * KIB);
        rig.gone(3 - first_gone);
        let figures = rig.shard.figures();
        assert_eq!((figures.leases, figures.leased_bytes, figures.allocated_bytes), (0, 0, 0));
    }
}

#[test]
fn attachments_are_counted_and_a_release_too_many_is_unknown() {
    let mut rig = Rig::small();
    rig.save(1, 64 * KIB);
    rig.acquire(holder(7, 1, 1), &[1]);
    assert!(matches!(attach(&mut rig, 7, 1, 2), Outcome::Attached(_)));
    assert!(matches!(attach(&mut rig, 7, 1, 2), Outcome::Attached(_)));
    assert!(matches!(rig.release(7, 1), Outcome::Done));
    assert_eq!(refused(rig.release(7, 1)), LeaseError::Unknown, "it has left already");
    assert!(matches!(rig.release(7, 2), Outcome::Done));
    assert_eq!(rig.shard.figures().leases, 1);
    assert!(matches!(rig.release(7, 2), Outcome::Done));
    assert_eq!(rig.shard.figures().leases, 0);
    assert_eq!(refused(rig.release(7, 2)), LeaseError::Unknown, "the lease has ended");
}

#[test]
fn another_instance_gets_no_part_of_a_lease() {
    let mut rig = Rig::small();
    rig.save(1, 64 * KIB);
    rig.acquire(holder(7, 1, 1), &[1]);
    assert_eq!(refused(attach(&mut rig, 7, 2, 3)), LeaseError::Foreign);
    assert_eq!(refused(attach(&mut rig, 8, 2, 3)), LeaseError::Unknown);
    assert_eq!(refused(rig.release(7, 3)), LeaseError::Unknown);
    let acquire = rig.submit_acquire(holder(7, 2, 3), &[1]);
    assert_eq!(refused(rig.outcome(acquire)), LeaseError::Foreign);
    assert_eq!(rig.shard.figures().leased_blocks, 1);
}

#[test]
fn a_block_evicted_between_query_and_acquire_is_missing() {
    let mut rig = Rig::small();
    rig.save(1, 64 * KIB);
    rig.save(2, 64 * KIB);
    assert_eq!(rig.places(&[1, 2], None), [Place::Dram, Place::Dram]);
    rig.evict(1, BOTH);
    let blocks = rig.acquire(holder(1, 1, 1), &[1, 2]);
    let outcomes: Vec<(u32, u8)> = blocks.iter().map(|block| (block.index, block.outcome)).collect();
    assert_eq!(outcomes, [(0, MISSING), (1, READY)]);
}

#[test]
fn an_evicted_block_stays_readable_under_its_lease_while_its_key_is_saved_again() {
    let mut rig = Rig::small();
    rig.save_value(1, 64 * KIB, 11);
    let old = rig.acquire(holder(7, 1, 1), &[1])[0];
    assert_eq!(rig.evict(1, BOTH), EvictOutcome::InUse);
    assert_eq!(rig.place(1), Place::None);
    rig.save_value(1, 64 * KIB, 12);
    let new = rig.acquire(holder(8, 1, 1), &[1])[0];
    assert_ne!(old.offset, new.offset);
    assert!(rig.holds(old.offset, 64 * KIB, 11) && rig.holds(new.offset, 64 * KIB, 12));
    rig.settle();
    assert_eq!(rig.shard.figures().allocated_bytes, 128 * KIB);
    rig.release(7, 1);
    assert_eq!(rig.shard.figures().allocated_bytes, 64 * KIB);
    assert_eq!(rig.evict(1, DRAM), EvictOutcome::InUse, "the new one is leased, too");
    rig.release(8, 1);
    assert_eq!(rig.shard.figures().allocated_bytes, 0);
}

#[test]
fn an_arena_full_of_leases_is_busy_and_recovers() {
    let mut rig = exhausted();
    assert_eq!(rig.reserve(9, 100, 64 * KIB).outcome, SlotOutcome::Busy as u8);
    assert_eq!(rig.counters().dram_evictions, 0, "nothing leased is evicted");
    rig.release(2, 2);
    let slot = rig.reserve(9, 100, 64 * KIB);
    assert_eq!(slot.outcome, SlotOutcome::Slot as u8);
    assert_eq!(rig.commit(9, slot.reservation), CommitOutcome::Committed);
}

#[test]
fn an_acquire_that_finds_no_slot_is_busy_and_recovers() {
    let mut rig = Rig::new(settings(2, 12 * 1024 * KIB));
    rig.save_to_ssd(200, 64 * KIB);
    for number in 0..64 {
        rig.save(number, 64 * KIB);
        rig.settle();
    }
    for (token, range) in [(1u128, 0..21), (2, 21..42), (3, 42..64)] {
        let numbers: Vec<u8> = range.collect();
        rig.acquire(holder(token, 1, token as u64), &numbers);
    }
    assert_eq!(rig.acquire(holder(9, 1, 9), &[200])[0].outcome, BUSY);
    rig.release(1, 1);
    let tag = rig.submit_acquire(holder(9, 1, 9), &[200]);
    rig.settle();
    let (blocks, done) = rig.blocks(tag);
    assert_eq!((blocks[0].outcome, blocks[0].source, done), (READY, Place::Ssd as u8, true));
    assert!(rig.holds(blocks[0].offset, 64 * KIB, 200));
}

#[test]
fn one_connection_leases_half_of_the_slice_and_the_tail_is_refused() {
    let mut rig = Rig::new(settings(2, 0));
    let numbers: Vec<u8> = (0..40).collect();
    for &number in &numbers {
        rig.save(number, 64 * KIB);
    }
    let blocks = rig.acquire(holder(1, 1, 1), &numbers);
    let ready: Vec<u32> =
        blocks.iter().filter(|block| block.outcome == READY).map(|block| block.index).collect();
    assert_eq!(ready, (0..32).collect::<Vec<u32>>(), "the head of the prefix, to half of the slice");
    assert!(blocks[32..].iter().all(|block| block.outcome == BUSY));
    assert_eq!(rig.acquire(holder(2, 1, 1), &[39])[0].outcome, BUSY, "whatever the lease");
    assert_eq!(rig.acquire(holder(3, 1, 2), &[39])[0].outcome, READY, "another connection");
    rig.release(1, 1);
    assert_eq!(rig.acquire(holder(2, 1, 1), &[39])[0].outcome, READY);
}

#[test]
fn a_fill_evicts_blocks_outside_its_own_prefix_first() {
    let mut rig = Rig::new(settings(2, 12 * 1024 * KIB));
    rig.save_to_ssd(200, 64 * KIB);
    // The head of the prefix is the least recently used block of a full slice.
    for number in 0..64 {
        rig.save(number, 64 * KIB);
        rig.settle();
    }
    let tag = rig.submit_acquire(holder(1, 1, 1), &[0, 200, 1]);
    rig.settle();
    let (blocks, _) = rig.blocks(tag);
    let sources: Vec<u8> = blocks.iter().map(|block| block.source).collect();
    assert_eq!(sources, [Place::Dram as u8, Place::Ssd as u8, Place::Dram as u8]);
    assert_eq!(rig.place(2), Place::Ssd, "the oldest of the others went");
}

#[test]
fn a_hold_pins_what_is_here_until_it_is_acquired() {
    let mut rig = Rig::new(settings(2, 0));
    for number in 0..64 {
        rig.save(number, 64 * KIB);
    }
    let numbers: Vec<u8> = (0..5).collect();
    assert_eq!(rig.places(&numbers, Some(holder(7, 1, 1))), [Place::Dram; 5]);
    for number in 64..120 {
        rig.save(number, 64 * KIB);
    }
    assert_eq!(refused(attach(&mut rig, 7, 1, 2)), LeaseError::Unknown, "nobody reads under a hold");
    let blocks = rig.acquire(holder(7, 1, 2), &numbers);
    assert!(blocks.iter().all(|block| block.outcome == READY));
    let figures = rig.shard.figures();
    assert_eq!((figures.holds, figures.leases, figures.leased_blocks), (0, 1, 5));
    rig.call(Command::Disconnected { connection: ConnectionId(1) });
    rig.call(Command::Disconnected { connection: ConnectionId(2) });
    assert_eq!(rig.shard.figures().leases, 1, "a lease outlives the socket");
}

#[test]
fn a_hold_ends_by_time_by_release_and_with_its_connection() {
    let mut rig = Rig::small();
    rig.save(1, 64 * KIB);
    for token in [1, 2, 3] {
        rig.places(&[1], Some(holder(token, 1, token as u64)));
    }
    assert_eq!(rig.shard.figures().leased_blocks, 3);
    assert!(matches!(rig.release(1, 1), Outcome::Done));
    rig.call(Command::Disconnected { connection: ConnectionId(2) });
    assert_eq!((rig.shard.figures().holds, rig.shard.next_deadline()), (1, Some(Moment(1_000))));
    rig.shard.on_time(Moment(999));
    assert_eq!(rig.shard.figures().holds, 1);
    rig.shard.on_time(Moment(1_000));
    let figures = rig.shard.figures();
    assert_eq!((figures.holds, figures.holds_expired, figures.leased_bytes), (0, 1, 0));
    assert_eq!(rig.shard.next_deadline(), None);
}

#[test]
fn taking_over_a_hold_at_the_lease_bound_changes_nothing() {
    let mut rig = Rig::small();
    rig.save(1, 64 * KIB);
    rig.places(&[1], Some(holder(7, 1, 1)));
    for token in 20..26 {
        rig.acquire(holder(token, 1, 2), &[]);
    }
    let acquire = rig.submit_acquire(holder(7, 1, 2), &[1]);
    assert_eq!(refused(rig.outcome(acquire)), LeaseError::TooMany { limit: 6 });
    assert_eq!((rig.shard.figures().holds, rig.shard.figures().leased_blocks), (1, 1));
    rig.gone(1);
    rig.settle();
    assert_eq!(rig.evict(1, BOTH), EvictOutcome::Evicted, "no pin is left behind");
}

#[test]
fn a_waiting_acquire_whose_engine_dies_pins_nothing() {
    let mut rig = Rig::small();
    rig.save_to_ssd(1, 64 * KIB);
    let tag = rig.submit_acquire(holder(7, 1, 1), &[1]);
    rig.start_all();
    rig.gone(1);
    rig.complete(0, Fault::None);
    let (blocks, done) = rig.blocks(tag);
    assert_eq!((blocks[0].outcome, done), (BUSY, true));
    let figures = rig.shard.figures();
    assert_eq!((figures.leases, figures.leased_bytes, figures.waiting[0]), (0, 0, 0));
    assert_eq!(rig.evict(1, BOTH), EvictOutcome::Evicted);
}

#[test]
fn blocks_under_way_count_among_what_a_connection_leases() {
    let mut rig = Rig::new(settings(2, 12 * 1024 * KIB));
    let numbers: Vec<u8> = (0..40).collect();
    for &number in &numbers {
        rig.save_to_ssd(number, 64 * KIB);
    }
    let tag = rig.submit_acquire(holder(1, 1, 1), &numbers);
    let (refused, done) = rig.blocks(tag);
    let busy: Vec<u32> = refused.iter().map(|block| block.index).collect();
    assert_eq!((busy, done), ((32..40).collect(), false), "refused before it is read");
    assert_eq!(rig.shard.leases.reserved_bytes(), 2 * 1024 * KIB);
    // What is here cannot take the share of what was promised.
    rig.save(100, 64 * KIB);
    assert_eq!(rig.acquire(holder(2, 1, 1), &[100])[0].outcome, BUSY);
    rig.settle();
    let (blocks, done) = rig.blocks(tag);
    assert!(done && blocks.iter().all(|block| block.outcome == READY), "all that was read is leased");
    assert_eq!((blocks.len(), rig.counters().ssd_reads), (32, 32));
    assert_eq!((rig.shard.leases.reserved_bytes(), rig.shard.figures().leased_bytes), (0, 2 * 1024 * KIB));
}

#[test]
fn a_cancelled_or_failed_acquire_gives_its_share_back() {
    let mut rig = Rig::small();
    rig.save_to_ssd(1, 64 * KIB);
    rig.save_to_ssd(2, 64 * KIB);
    let tag = rig.submit_acquire(holder(1, 1, 1), &[1, 2]);
    assert_eq!(rig.shard.leases.reserved_bytes(), 128 * KIB);
    assert!(rig.start_one());
    rig.call(Command::Cancel { tag, deadline: false });
    assert_eq!(rig.shard.leases.reserved_bytes(), 0);
    rig.settle();
    let tag = rig.submit_acquire(holder(2, 1, 1), &[2]);
    rig.start_all();
    rig.complete(0, Fault::Error);
    assert_eq!((rig.blocks(tag).0[0].outcome, rig.shard.leases.reserved_bytes()), (DEVICE_ERROR, 0));
}

#[test]
fn a_lease_is_charged_with_whole_slots() {
    let mut settings = settings(2, 0);
    settings.leases.bytes_per_connection_max = 40 * KIB;
    let mut rig = Rig::new(settings);
    let numbers: Vec<u8> = (0..12).collect();
    for &number in &numbers {
        rig.save(number, 100);
    }
    let blocks = rig.acquire(holder(1, 1, 1), &numbers);
    let ready = blocks.iter().filter(|block| block.outcome == READY).count();
    assert_eq!((ready, rig.shard.figures().leased_bytes), (10, 40 * KIB), "4 KiB each");
    assert_eq!(blocks[0].bytes, 100);
}

#[test]
fn a_draining_shard_answers_a_holding_query_without_a_hold() {
    let mut rig = Rig::small();
    rig.save(1, 64 * KIB);
    rig.call(Command::Drain);
    assert_eq!(rig.places(&[1, 2], Some(holder(7, 1, 1))), [Place::Dram, Place::None]);
    let figures = rig.shard.figures();
    assert_eq!((figures.leases, figures.holds, figures.leased_blocks), (0, 0, 0));
    assert_eq!(rig.shard.next_deadline(), None);
}
