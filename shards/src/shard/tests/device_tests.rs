//! Write-backs, reads, moves inside the log, and every way in which the device can fail.

use orbitkv_wire::engine::answers::{BlockOutcome, EvictOutcome, Place, SlotOutcome};

use super::super::tiers::Purpose;
use super::super::{Command, OrderKind, Outcome};
use super::rig::{BOTH, DRAM, Fault, KIB, Rig, SSD, holder, settings};

const BLOCK: u64 = 64 * KIB;

/// Lets every write in flight end as `fault` says, until none is left.
fn write_all(rig: &mut Rig, fault: Fault) {
    rig.start_all();
    while !rig.flights.is_empty() {
        assert_eq!(rig.flights[0].order.kind, OrderKind::Write);
        rig.complete(0, fault);
        rig.start_all();
    }
}

fn off_reason(rig: &Rig) -> Option<String> {
    rig.shard.figures().ssd.expect("a tier").off.map(|reason| reason.to_string())
}

/// A tier that sixteen failed writes have turned off; the blocks 0..6 stay in DRAM.
fn turned_off() -> Rig {
    let mut rig = Rig::small();
    for number in 0..6 {
        rig.save(number, BLOCK);
    }
    write_all(&mut rig, Fault::Error);
    rig
}

#[test]
fn a_block_goes_to_ssd_and_comes_back() {
    let mut rig = Rig::small();
    rig.save_to_ssd(1, 100_001);
    let tag = rig.submit_acquire(holder(1, 1, 1), &[1, 9]);
    let (blocks, done) = rig.blocks(tag);
    assert_eq!((blocks.len(), blocks[0].outcome, done), (1, BlockOutcome::Missing as u8, false));
    rig.settle();
    let (blocks, done) = rig.blocks(tag);
    assert_eq!((blocks[0].index, blocks[0].source, done), (0, Place::Ssd as u8, true));
    assert!(rig.holds(blocks[0].offset, 100_001, 1));
    assert_eq!(rig.place(1), Place::Dram, "read once, then in DRAM");
}

#[test]
fn acquires_of_one_block_share_its_read() {
    let mut rig = Rig::small();
    rig.save_to_ssd(1, BLOCK);
    let first = rig.submit_acquire(holder(1, 1, 1), &[1, 1]);
    let second = rig.submit_acquire(holder(2, 2, 2), &[1]);
    rig.start_all();
    assert_eq!(rig.flights.len(), 1);
    rig.complete(0, Fault::None);
    let (blocks, done) = rig.blocks(first);
    assert_eq!((blocks.len(), done), (2, true));
    let (others, done) = rig.blocks(second);
    assert_eq!((others[0].offset, done), (blocks[0].offset, true));
    assert_eq!(rig.shard.figures().leased_blocks, 3);
}

#[test]
fn flipped_bytes_are_corrupt_once_then_missing_and_their_room_is_retired() {
    let mut rig = Rig::small();
    rig.save_to_ssd(1, BLOCK);
    let tag = rig.submit_acquire(holder(1, 1, 1), &[1]);
    rig.start_all();
    rig.complete(0, Fault::Flipped);
    let (blocks, done) = rig.blocks(tag);
    assert_eq!((blocks[0].outcome, done), (BlockOutcome::Corrupt as u8, true));
    assert_eq!(rig.acquire(holder(2, 1, 1), &[1])[0].outcome, BlockOutcome::Missing as u8);
    let figures = rig.shard.figures();
    assert_eq!((figures.counters.checksum_failures, figures.counters.ssd_residents), (1, 0));
    assert!(figures.ssd.expect("a tier").quarantined_bytes > 0);
    assert_eq!((figures.leased_bytes, figures.allocated_bytes), (0, 0));
    rig.save(1, BLOCK);
    rig.settle();
    assert_eq!(rig.list(0, SSD, 10).len(), 1, "the tier goes on elsewhere");
}

#[test]
fn a_failed_or_short_read_is_a_device_error_and_the_block_is_dropped() {
    for fault in [Fault::Error, Fault::Short] {
        let mut rig = Rig::small();
        rig.save_to_ssd(1, BLOCK);
        let tag = rig.submit_acquire(holder(1, 1, 1), &[1]);
        rig.start_all();
        rig.complete(0, fault);
        let (blocks, done) = rig.blocks(tag);
        assert_eq!((blocks[0].outcome, done), (BlockOutcome::DeviceError as u8, true));
        assert_eq!((rig.place(1), rig.counters().ssd_read_errors), (Place::None, 1));
        assert_eq!(rig.shard.figures().ssd.expect("a tier").live_bytes, 0);
    }
}

#[test]
fn a_block_that_cannot_be_written_stays_in_dram_and_is_readable() {
    let mut rig = Rig::small();
    rig.save(1, BLOCK);
    write_all(&mut rig, Fault::Error);
    let counters = rig.counters();
    assert_eq!((counters.ssd_write_errors, counters.write_backs_given_up), (3, 1));
    assert_eq!((rig.place(1), off_reason(&rig)), (Place::Dram, None));
    let block = rig.acquire(holder(1, 1, 1), &[1])[0];
    assert!(rig.holds(block.offset, BLOCK, 1));
    rig.release(1, 1);
    for number in 2..66 {
        rig.save(number, BLOCK);
        rig.settle();
    }
    assert_eq!(rig.place(1), Place::None, "it may be evicted like any other");
}

#[test]
fn sixteen_failed_writes_turn_the_tier_off_and_saves_go_on() {
    let mut rig = turned_off();
    let errors = rig.counters().ssd_write_errors;
    assert!((16..20).contains(&errors), "sixteen, and what was in flight by then: {errors}");
    assert_eq!(off_reason(&rig).as_deref(), Some("16 writes in a row failed, the last with error 5"));
    let Outcome::Synced(_) = rig.call(Command::Sync) else { panic!("nothing to wait for") };
    for number in 6..200 {
        rig.save(number, BLOCK);
    }
    assert!(!rig.start_one(), "nothing is written any more");
    assert_eq!(rig.counters().dram_evictions, 200 - 64, "what was never written is evicted");
    assert_eq!((rig.shard.figures().write_backs_queued, rig.place(199)), (0, Place::Dram));
}

/// Reads of `count` blocks, which all fail but the one at `success`.
fn failed_reads(count: u8, success: Option<u8>) -> Rig {
    let mut rig = Rig::small();
    for number in 0..count {
        rig.save_to_ssd(number, 16 * KIB);
    }
    for number in 0..count {
        let tag = rig.submit_acquire(holder(1, 1, 1), &[number]);
        rig.start_all();
        rig.complete(0, if success == Some(number) { Fault::None } else { Fault::Error });
        assert!(rig.blocks(tag).1);
    }
    rig
}

#[test]
fn sixteen_failed_reads_turn_the_tier_off_and_say_the_last_error() {
    let rig = failed_reads(15, None);
    assert_eq!((rig.counters().ssd_read_errors, off_reason(&rig)), (15, None));
    let rig = failed_reads(16, None);
    assert_eq!(off_reason(&rig).as_deref(), Some("16 reads in a row failed, the last with error 5"));
    let rig = failed_reads(30, Some(15));
    assert_eq!((rig.counters().ssd_read_errors, off_reason(&rig)), (29, None), "a success ends the row");
}

#[test]
fn a_segment_of_many_small_blocks_makes_room_for_a_large_one_without_another_wake() {
    let mut settings = settings(4, 4 * 1024 * KIB);
    let log = settings.log.as_mut().expect("a tier");
    (log.smallest_block_bytes, log.largest_block_bytes) = (4 * KIB, 900 * KIB);
    let mut rig = Rig::new(settings);
    for number in 0..200 {
        rig.save(number, 4 * KIB);
    }
    rig.settle();
    rig.save(250, 900 * KIB);
    rig.settle();
    assert_eq!(rig.list(0, SSD, 1000).len(), 201, "two segments of four");
    // Each large block takes a segment: the second waits for the one with the small blocks.
    rig.save(251, 900 * KIB);
    rig.save(252, 900 * KIB);
    // As the core does: it waits for the device where the shard says that there is nothing else to do.
    loop {
        rig.start_all();
        if !rig.flights.is_empty() {
            rig.complete(0, Fault::None);
        } else if rig.shard.has_work() {
            rig.shard.step();
        } else {
            break;
        }
    }
    assert_eq!(rig.shard.figures().write_backs_queued, 0, "every block was written");
    let left: Vec<u8> = rig.list(0, SSD, 1000).iter().map(|resident| resident.block.0[0]).collect();
    assert!(left.contains(&251) && left.contains(&252), "{left:?}");
    assert!(rig.counters().ssd_evictions >= 200, "the whole segment made room");
}

#[test]
fn a_success_of_any_write_ends_the_row_of_failures() {
    let mut rig = Rig::small();
    for number in 0..20 {
        rig.save(number, BLOCK);
    }
    let mut failed = 0;
    rig.start_all();
    while !rig.flights.is_empty() {
        let fails = failed % 16 != 15;
        rig.complete(0, if fails { Fault::Error } else { Fault::None });
        failed += 1;
        rig.start_all();
    }
    assert!(rig.counters().ssd_write_errors > 32);
    assert_eq!(off_reason(&rig), None);
}

#[test]
fn what_is_on_ssd_stays_readable_when_the_tier_is_off() {
    let mut rig = Rig::small();
    rig.save_to_ssd(100, BLOCK);
    for number in 0..6 {
        rig.save(number, BLOCK);
    }
    write_all(&mut rig, Fault::Error);
    assert!(off_reason(&rig).is_some());
    let tag = rig.submit_acquire(holder(1, 1, 1), &[100]);
    rig.settle();
    let (blocks, _) = rig.blocks(tag);
    assert!(rig.holds(blocks[0].offset, BLOCK, 100));
}

#[test]
fn a_sync_waits_for_every_try_of_what_was_committed_before_it() {
    let mut rig = Rig::small();
    rig.save(1, BLOCK);
    let sync = rig.submit(Command::Sync);
    rig.start_all();
    rig.complete(0, Fault::Error);
    assert!(rig.take(sync).is_empty(), "it will be tried again");
    rig.save(2, BLOCK);
    rig.start_all();
    assert_eq!(rig.flights.len(), 2);
    rig.complete(0, Fault::None);
    assert!(matches!(rig.take(sync)[..], [Outcome::Synced(_)]), "later saves are not its business");
    assert_eq!(rig.list(0, SSD, 10).len(), 1);
}

#[test]
fn a_sync_is_answered_when_what_it_waits_for_is_withdrawn() {
    let mut rig = Rig::small();
    rig.save(1, BLOCK);
    let sync = rig.submit(Command::Sync);
    rig.evict(1, BOTH);
    rig.start_all();
    assert!(matches!(rig.take(sync)[..], [Outcome::Synced(_)]));
    let second = rig.submit(Command::Sync);
    assert!(matches!(rig.take(second)[..], [Outcome::Synced(_)]));
}

#[test]
fn a_cancelled_acquire_reads_nothing_that_only_it_wanted() {
    let mut rig = Rig::small();
    rig.save_to_ssd(1, BLOCK);
    rig.save_to_ssd(2, BLOCK);
    let first = rig.submit_acquire(holder(1, 1, 1), &[1, 2]);
    let second = rig.submit_acquire(holder(2, 1, 1), &[2]);
    rig.call(Command::Cancel { tag: first, deadline: true });
    let (blocks, done) = rig.blocks(first);
    assert!(done && blocks.iter().all(|block| block.outcome == BlockOutcome::DeadlineExceeded as u8));
    rig.start_all();
    assert_eq!(rig.flights.len(), 1, "the block that the other wants");
    rig.complete(0, Fault::None);
    assert_eq!(rig.blocks(second).0[0].outcome, BlockOutcome::Ready as u8);
    assert_eq!((rig.place(1), rig.place(2)), (Place::Ssd, Place::Dram));
    assert_eq!(rig.shard.figures().allocated_bytes, BLOCK);
}

#[test]
fn a_read_that_the_device_has_goes_on_after_its_acquire_is_cancelled() {
    let mut rig = Rig::small();
    rig.save_to_ssd(1, BLOCK);
    let tag = rig.submit_acquire(holder(1, 1, 1), &[1]);
    rig.start_all();
    rig.call(Command::Cancel { tag, deadline: false });
    assert_eq!(rig.blocks(tag).0[0].outcome, BlockOutcome::Cancelled as u8);
    assert_eq!(rig.shard.figures().allocated_bytes, BLOCK, "the device still writes there");
    rig.complete(0, Fault::None);
    assert_eq!(rig.place(1), Place::Dram);
    assert!(rig.blocks(tag).0.is_empty());
}

#[test]
fn a_block_withdrawn_before_its_read_begins_is_not_read() {
    let mut rig = Rig::small();
    rig.save_to_ssd(1, BLOCK);
    let tag = rig.submit_acquire(holder(1, 1, 1), &[1]);
    assert_eq!(rig.evict(1, SSD), EvictOutcome::Evicted);
    rig.start_all();
    assert!(rig.flights.is_empty());
    assert_eq!(rig.blocks(tag).0[0].outcome, BlockOutcome::Missing as u8);
    assert_eq!(rig.shard.figures().allocated_bytes, 0);
}

#[test]
fn a_block_withdrawn_while_it_is_read_is_missing_and_its_key_is_free() {
    let mut rig = Rig::small();
    rig.save_value(1, BLOCK, 11);
    rig.settle();
    rig.evict(1, DRAM);
    let tag = rig.submit_acquire(holder(1, 1, 1), &[1]);
    rig.start_all();
    rig.evict(1, BOTH);
    rig.save_value(1, BLOCK, 12);
    rig.complete(0, Fault::None);
    assert_eq!(rig.blocks(tag).0[0].outcome, BlockOutcome::Missing as u8);
    let block = rig.acquire(holder(2, 1, 1), &[1])[0];
    assert!(rig.holds(block.offset, BLOCK, 12));
}

#[test]
fn a_block_withdrawn_while_it_is_written_does_not_come_back() {
    for fault in [Fault::None, Fault::Error] {
        let mut rig = Rig::small();
        rig.save(1, BLOCK);
        rig.start_all();
        assert_eq!(rig.evict(1, BOTH), EvictOutcome::InUse);
        rig.save_value(1, BLOCK, 2);
        rig.complete(0, fault);
        assert!(rig.list(0, SSD, 10).is_empty());
        rig.settle();
        rig.evict(1, DRAM);
        let tag = rig.submit_acquire(holder(1, 1, 1), &[1]);
        rig.settle();
        let (blocks, _) = rig.blocks(tag);
        assert!(rig.holds(blocks[0].offset, BLOCK, 2));
    }
}

#[test]
fn waiting_acquires_are_bounded_before_a_read_begins() {
    let mut settings = settings(2, 4 * 1024 * KIB);
    settings.waiting_max = 1;
    let mut rig = Rig::new(settings);
    rig.save_to_ssd(1, BLOCK);
    rig.save_to_ssd(2, BLOCK);
    rig.save(3, BLOCK);
    rig.settle();
    let waiting = rig.submit_acquire(holder(1, 1, 1), &[1]);
    let blocks = rig.acquire(holder(2, 1, 1), &[2, 1, 3]);
    let outcomes: Vec<u8> = blocks.iter().map(|block| block.outcome).collect();
    let (busy, ready) = (BlockOutcome::Busy as u8, BlockOutcome::Ready as u8);
    assert_eq!(outcomes, [busy, busy, ready]);
    assert!(matches!(rig.call(Command::Sync), Outcome::Cancelled));
    rig.start_all();
    assert_eq!(rig.flights.len(), 1);
    rig.complete(0, Fault::None);
    assert!(rig.blocks(waiting).1);
    assert_eq!(rig.shard.figures().waiting[0], 0);
}

#[test]
fn withdrawn_write_backs_do_not_pile_up_behind_a_stuck_device() {
    let mut rig = Rig::small();
    for number in 0..8 {
        rig.save(number, BLOCK);
    }
    rig.start_all();
    let sync = rig.submit(Command::Sync);
    for _ in 0..5_000 {
        rig.save(100, BLOCK);
        rig.evict(100, BOTH);
    }
    assert!(rig.counters().write_queue_peak < 200, "{}", rig.counters().write_queue_peak);
    rig.settle();
    assert!(matches!(rig.take(sync)[..], [Outcome::Synced(_)]));
    assert_eq!(rig.list(0, SSD, 10).len(), 8);
}

#[test]
fn hot_blocks_outlive_the_segments_they_were_written_to() {
    let mut rig = Rig::small();
    rig.save(0, BLOCK);
    rig.settle();
    for number in 1..200 {
        rig.save(number, BLOCK);
        rig.settle();
        assert_eq!(rig.reserve(2, 0, BLOCK).outcome, SlotOutcome::Present as u8, "after {number}");
    }
    let counters = rig.counters();
    assert!(counters.ssd_moves > 1 && counters.ssd_evictions > 50, "{counters:?}");
    assert_eq!(rig.evict(0, DRAM), EvictOutcome::Evicted);
    let tag = rig.submit_acquire(holder(1, 1, 1), &[0]);
    rig.settle();
    let (blocks, _) = rig.blocks(tag);
    assert!(rig.holds(blocks[0].offset, BLOCK, 0));
}

#[test]
fn a_move_that_succeeds_ends_the_row_of_failures() {
    let mut rig = Rig::small();
    for number in 0..200 {
        rig.save(number, BLOCK);
        rig.reserve(2, 0, BLOCK);
        while rig.start_one() {
            let flight = rig.flights.pop().expect("just started");
            let is_move = matches!(rig.shard.transfers[&flight.order.id], Purpose::Move { .. });
            rig.flights.push(flight);
            if is_move {
                rig.shard.write_failures_in_a_row = 15;
            }
            rig.complete(rig.flights.len() - 1, Fault::None);
            if is_move {
                assert_eq!(rig.shard.write_failures_in_a_row, 0);
            }
        }
    }
    assert!(rig.counters().ssd_moves > 1);
}

#[test]
fn a_node_without_ssd_writes_nothing_and_syncs_at_once() {
    let mut rig = Rig::new(settings(2, 0));
    rig.save(1, BLOCK);
    assert!(!rig.start_one() && !rig.start_table());
    assert!(matches!(rig.call(Command::Sync), Outcome::Synced(_)));
    assert!(rig.shard.figures().ssd.is_none());
}
