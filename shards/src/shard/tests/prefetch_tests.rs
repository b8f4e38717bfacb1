//! Blocks that are announced: brought while nobody waits, found by whoever announced them, and in nobody's way.

use orbitkv_wire::engine::answers::{BlockOutcome, EvictOutcome, Place, PrefetchOutcome};
use orbitkv_wire::identity::Medium;

use super::super::command::Media;
use super::super::recover::FillPurpose;
use super::super::{Command, FetchEffect, FetchOrder, OrderKind, Outcome};
use super::rig::{BOTH, DRAM, Fault, KIB, Rig, SSD, digest, holder, settings};
use crate::fetcher::FETCH_TIME_MAX;
use crate::leases::ConnectionId;
use crate::resilience::gate::Class;
use crate::time::Moment;

const BYTES: u64 = 256 * KIB;
const LATE: Moment = Moment(1_000_000_000);

/// Sixteen slots, and these blocks on SSD alone.
fn rig(on_ssd: &[u8]) -> Rig {
    let mut rig = Rig::new(settings(2, 16 * 1024 * KIB));
    on_ssd.iter().for_each(|&number| rig.save_to_ssd(number, BYTES));
    rig
}

/// A shard whose peers have what it has not.
fn rig_with_peers() -> Rig {
    let mut rig = rig(&[]);
    rig.save(0, BYTES);
    rig.settle();
    rig.shard.seek_peers(true);
    rig
}

fn arrive(rig: &mut Rig, order: &FetchOrder, value: u64) {
    rig.fill(order.arena_offset, BYTES, value);
    let checksum = rig.sum(order.arena_offset, BYTES);
    rig.shard.on_fetched(order.copy, Medium::Dram, checksum);
}

#[test]
fn what_was_announced_is_in_dram_when_it_is_acquired() {
    let mut rig = rig(&[1, 2]);
    use PrefetchOutcome::{Absent, Coming, Present, Taken};
    assert_eq!(rig.prefetch(1, &[1, 2, 9], LATE), [Taken, Taken, Absent]);
    assert_eq!(rig.prefetch(2, &[1, 2], LATE), [Coming, Coming], "wanting it twice is wanting it once");
    rig.settle();
    assert_eq!(rig.prefetch(1, &[1], LATE), [Present]);
    let reads = rig.counters().ssd_reads;
    let blocks = rig.acquire(holder(1, 1, 1), &[1, 2]);
    for (block, value) in blocks.iter().zip([1, 2]) {
        assert_eq!((block.outcome, block.source), (BlockOutcome::Ready as u8, Place::Dram as u8));
        assert!(rig.holds(block.offset, BYTES, value));
    }
    let counters = rig.counters();
    assert_eq!((counters.ssd_reads - reads, counters.prefetch_arrived, counters.prefetch_used), (0, 2, 2));
    assert_eq!(rig.shard.figures().prefetch_bytes, 0, "what was acquired is not charged any more");
}

#[test]
fn an_acquire_joins_the_read_under_way_and_goes_before_those_that_wait() {
    let mut rig = rig(&[1, 2, 3, 4, 5]);
    rig.prefetch(1, &[1, 2, 3], LATE);
    assert!(rig.start_one(), "one is read while nobody waits");
    let tag = rig.submit_acquire(holder(1, 1, 1), &[5, 1, 3]);
    rig.start_all();
    // The one under way, then what the Acquire wants in its order, and nothing else.
    let read: Vec<u64> = (rig.flights.iter())
        .map(|flight| (1..=5).find(|&value| rig.file_holds(flight.order.file_offset, BYTES, value)).unwrap())
        .collect();
    assert_eq!(read, [1, 5, 3]);
    while !rig.flights.is_empty() {
        rig.complete(0, Fault::None);
    }
    let (blocks, done) = rig.blocks(tag);
    assert!(done && blocks.iter().all(|block| block.outcome == BlockOutcome::Ready as u8));
    assert_eq!(rig.counters().ssd_reads, 3);
    rig.settle();
    assert_eq!(rig.place(2), Place::Dram, "once nobody waits it goes on");
}

#[test]
fn nothing_gives_way_that_is_used_or_used_again_sooner_or_nowhere_else() {
    let mut rig = rig(&[1]);
    // Sixteen slots full of blocks that are on SSD too.
    (20..36).for_each(|number| rig.save(number, BYTES));
    rig.settle();
    rig.now = Moment(1_000);
    let soon = Moment(1_500);
    rig.prefetch(1, &[1], Moment(3_000));
    assert_eq!(
        (rig.place(1), rig.counters().prefetch_no_room),
        (Place::Ssd, 1),
        "they are used within that time"
    );
    let lease = rig.acquire(holder(1, 1, 1), &[20])[0];
    rig.prefetch(1, &[1], soon);
    rig.settle();
    assert_eq!((rig.place(1), rig.place(21)), (Place::Dram, Place::Ssd), "the one that was idle for longest");
    assert!(rig.holds(lease.offset, BYTES, 20));
    // What is not on SSD is nowhere else.
    rig.evict(1, DRAM);
    rig.save(40, BYTES);
    for number in (20..36).filter(|&number| number != 21) {
        assert_eq!(rig.evict(number, SSD), EvictOutcome::Evicted);
    }
    rig.now = Moment(100_000);
    rig.prefetch(1, &[1], Moment(100_010));
    rig.settle();
    assert_eq!(rig.place(1), Place::Ssd);
}

#[test]
fn what_is_wanted_ahead_has_bounds() {
    let mut rig = rig(&[1, 2, 3, 4, 5, 6, 7, 8]);
    use PrefetchOutcome::{Full, NoRoom, Taken};
    let room = 4 * 1024 * KIB / 4 / BYTES;
    let outcomes = rig.prefetch(1, &[1, 2, 3, 4, 5, 6], LATE);
    assert_eq!(outcomes, [Taken, Taken, Taken, Taken, NoRoom, NoRoom]);
    rig.start_all();
    assert_eq!(rig.flights.len(), 2, "reads at a time");
    rig.settle();
    assert_eq!(rig.shard.figures().prefetch_bytes, room * BYTES);
    assert_eq!(rig.prefetch(1, &[7], LATE), [NoRoom], "until they are acquired");
    rig.acquire(holder(1, 1, 1), &[1]);
    assert_eq!(rig.prefetch(1, &[7], LATE), [Taken]);
    let mut rig = rig_with_peers();
    let many: Vec<u8> = (100..113).collect();
    let outcomes = rig.prefetch(1, &many, LATE);
    assert_eq!((outcomes[11], outcomes[12]), (Taken, Full));
    assert_eq!(rig.answer_seeks(Some(BYTES)), 4, "sought at a time");
}

#[test]
fn what_is_not_acquired_in_time_is_a_resident_like_any_other() {
    let mut rig = rig(&[1, 2, 3, 4, 5, 6]);
    use PrefetchOutcome::{NoRoom, Present, Taken};
    assert_eq!(rig.prefetch(1, &[1, 2, 3, 4], Moment(1_000)), [Taken; 4]);
    rig.settle();
    assert_eq!(rig.prefetch(1, &[5], LATE), [NoRoom]);
    assert_eq!(rig.prefetch(1, &[4], Moment(5_000)), [Present], "and announced once more");
    assert_eq!(rig.shard.next_deadline(), Some(Moment(1_000)));
    rig.now = Moment(1_000);
    rig.shard.on_time(rig.now);
    assert_eq!((rig.shard.figures().prefetch_bytes, rig.counters().prefetch_unused), (BYTES, 3));
    assert_eq!(rig.shard.next_deadline(), Some(Moment(5_000)));
    assert_eq!(rig.prefetch(1, &[5, 6], LATE), [Taken; 2], "it has given its room back");
    let blocks = rig.acquire(holder(1, 1, 1), &[1, 4]);
    assert!(blocks.iter().all(|block| block.source == Place::Dram as u8));
    assert_eq!((rig.counters().prefetch_used, rig.counters().prefetch_unused), (1, 3));
}

#[test]
fn a_block_of_a_peer_is_fetched_as_what_nobody_waits_for_until_somebody_does() {
    let mut rig = rig_with_peers();
    rig.prefetch(1, &[7], LATE);
    rig.answer_seeks(Some(BYTES));
    let fetch = rig.fetch_order();
    assert_eq!((fetch.class, fetch.until), (Class::Background, LATE));
    assert!(rig.shard.is_wanted(fetch.copy));
    let until = Moment(LATE.0 / 2);
    let tag = rig.submit_acquire_until(holder(1, 1, 1), &[7], until);
    assert_eq!(rig.shard.poll_fetch(), Some(FetchEffect::Await { copy: fetch.copy, until }));
    arrive(&mut rig, &fetch, 7);
    rig.collect();
    let (blocks, done) = rig.blocks(tag);
    assert!(done && rig.holds(blocks[0].offset, BYTES, 7));
    assert_eq!(blocks[0].source, Place::PeerDram as u8);
    assert_eq!((rig.counters().prefetch_arrived, rig.counters().prefetch_used), (1, 1));
}

#[test]
fn nothing_is_sought_for_a_prefetch_while_an_acquire_waits() {
    let mut rig = rig_with_peers();
    let tag = rig.submit_acquire(holder(1, 1, 1), &[7]);
    rig.prefetch(2, &[8], LATE);
    assert_eq!(rig.answer_seeks(Some(BYTES)), 1);
    let fetch = rig.fetch_order();
    assert_eq!((fetch.class, rig.shard.poll_fetch()), (Class::Demand, None));
    arrive(&mut rig, &fetch, 7);
    rig.collect();
    assert!(rig.blocks(tag).1);
    assert_eq!(rig.answer_seeks(Some(BYTES)), 1, "then it is");
    assert_eq!(rig.fetch_order().class, Class::Background);
}

#[test]
fn what_is_evicted_cleared_or_wanted_by_nobody_is_not_brought() {
    type End = fn(&mut Rig);
    let ends: [(&str, End); 6] = [
        ("evicted from DRAM", |rig| {
            rig.evict(7, DRAM);
        }),
        ("evicted from SSD", |rig| {
            rig.evict(7, SSD);
        }),
        ("cleared", |rig| {
            drop(rig.call(Command::Clear { namespace: digest(0), media: Media::from_mask(BOTH) }))
        }),
        ("disconnected", |rig| {
            drop(rig.call(Command::Disconnected { connection: ConnectionId(1) }));
        }),
        ("drained", |rig| drop(rig.call(Command::Drain))),
        ("late", |rig| {
            rig.now = LATE;
            rig.shard.on_time(LATE);
        }),
    ];
    for (what, end) in ends {
        // Before its read has begun.
        let mut rig = rig(&[7]);
        rig.prefetch(1, &[7], LATE);
        end(&mut rig);
        rig.settle();
        assert_eq!((rig.counters().ssd_reads, rig.place(7) == Place::Dram), (0, false), "{what}");
        assert_eq!(rig.shard.figures().allocated_bytes, 0, "{what}");
        // While it is under way at a peer.
        let mut rig = rig_with_peers();
        rig.prefetch(1, &[7], LATE);
        rig.answer_seeks(Some(BYTES));
        let fetch = rig.fetch_order();
        end(&mut rig);
        if what != "late" {
            assert_eq!(rig.shard.poll_fetch(), Some(FetchEffect::Cancel(fetch.copy)), "{what}");
        }
        rig.shard.on_fetch_failed(fetch.copy, BlockOutcome::Cancelled);
        assert_eq!((rig.place(7), rig.shard.figures().prefetch_waiting), (Place::None, 0), "{what}");
    }
    // While the device is at it: what it reads is shown to nobody.
    let mut rig = rig(&[7]);
    rig.prefetch(1, &[7], LATE);
    rig.start_all();
    rig.evict(7, DRAM);
    rig.settle();
    assert_eq!(rig.place(7), Place::Ssd);
    // Another connection still wants it.
    rig.prefetch(1, &[7], LATE);
    rig.prefetch(2, &[7], LATE);
    rig.call(Command::Disconnected { connection: ConnectionId(1) });
    rig.settle();
    assert_eq!(rig.place(7), Place::Dram);
}

#[test]
fn wrong_bytes_do_not_become_a_resident() {
    let mut rig = rig(&[1]);
    rig.prefetch(1, &[1], LATE);
    rig.start_all();
    assert_eq!(rig.flights[0].order.kind, OrderKind::Read);
    rig.complete(0, Fault::Flipped);
    let counters = rig.counters();
    assert_eq!((counters.checksum_failures, counters.prefetch_failed, rig.place(1)), (1, 1, Place::None));
}

#[test]
fn a_save_overtakes_what_is_fetched_ahead() {
    let mut rig = rig_with_peers();
    rig.prefetch(1, &[7], LATE);
    rig.answer_seeks(Some(BYTES));
    let fetch = rig.fetch_order();
    rig.save(7, BYTES);
    assert_eq!(rig.shard.poll_fetch(), Some(FetchEffect::Cancel(fetch.copy)));
    assert_eq!(rig.shard.poll_fetch(), None);
    rig.shard.on_fetch_failed(fetch.copy, BlockOutcome::Cancelled);
    assert_eq!((rig.place(7), rig.counters().prefetch_met), (Place::Dram, 1));
}

#[test]
fn demand_takes_the_slots_of_what_is_fetched_ahead() {
    let mut rig = rig_with_peers();
    rig.evict(0, BOTH);
    rig.prefetch(1, &[7, 8], LATE);
    rig.answer_seeks(Some(BYTES));
    let ahead = [rig.fetch_order(), rig.fetch_order()];
    // Fourteen slots are left; two are written by peers, until they are told to stop.
    let slots: Vec<_> = (20..36).map(|number| rig.reserve(1, number, BYTES)).collect();
    assert_eq!(slots.iter().filter(|slot| slot.outcome == 0).count(), 14);
    for fetch in ahead {
        assert_eq!(rig.shard.poll_fetch(), Some(FetchEffect::Cancel(fetch.copy)));
        rig.shard.on_fetch_failed(fetch.copy, BlockOutcome::Cancelled);
    }
    assert_eq!(rig.counters().prefetch_yielded, 2);
    assert_eq!((rig.reserve(1, 34, BYTES).outcome, rig.reserve(1, 35, BYTES).outcome), (0, 0));
}

#[test]
fn who_joins_a_fetch_that_was_given_up_a_moment_ago_makes_it_demand() {
    let mut rig = rig_with_peers();
    rig.evict(0, BOTH);
    rig.prefetch(1, &[7, 8], LATE);
    rig.answer_seeks(Some(BYTES));
    let ahead = [rig.fetch_order(), rig.fetch_order()];
    // More than there is room for: the wishes end.
    (20..36).for_each(|number| _ = rig.reserve(1, number, BYTES));
    assert_eq!(rig.counters().prefetch_yielded, 2);
    let tag = rig.submit_acquire(holder(1, 1, 2), &[7]);
    let effects: Vec<FetchEffect> = std::iter::from_fn(|| rig.shard.poll_fetch()).collect();
    assert!(
        effects.contains(&FetchEffect::Await { copy: ahead[0].copy, until: rig.now + FETCH_TIME_MAX }),
        "{effects:?}"
    );
    assert!(rig.shard.is_wanted(ahead[0].copy) && !rig.shard.is_wanted(ahead[1].copy));
    // Once is enough.
    rig.submit_acquire(holder(2, 1, 2), &[7]);
    assert_eq!(rig.shard.poll_fetch(), None);
    arrive(&mut rig, &ahead[0], 7);
    rig.collect();
    let (blocks, done) = rig.blocks(tag);
    assert!(done && rig.holds(blocks[0].offset, BYTES, 7));
}

/// Lets the device write all that is to be written. What it reads stays under way.
fn write_all(rig: &mut Rig) {
    loop {
        while rig.start_table() {
            rig.complete_table(0, true);
        }
        rig.start_all();
        let write = rig.flights.iter().position(|flight| flight.order.kind == OrderKind::Write);
        let Some(write) = write else { return };
        rig.complete(write, Fault::None);
    }
}

#[test]
fn what_the_log_wants_to_keep_of_a_segment_waits_for_no_acquire() {
    let mut rig = rig(&[1, 2]);
    rig.prefetch(1, &[1], LATE);
    let other = rig.submit_acquire(holder(1, 1, 1), &[2]);
    assert!(rig.start_one() && !rig.start_one(), "what is announced waits for the Acquire");
    // Saves fill the log until it gives up the segment of both.
    let is_given_up = |rig: &Rig| rig.shard.fills.values().all(|fill| fill.purpose == FillPurpose::Reinsert);
    let mut numbers = 10..=255;
    while !is_given_up(&rig) {
        rig.save(numbers.next().expect("the log is smaller"), BYTES);
        write_all(&mut rig);
    }
    assert_eq!(rig.shard.fills.len(), 2);
    let reads = |rig: &Rig| {
        let of_one = rig.flights.iter().filter(|flight| {
            let order = &flight.order;
            order.kind == OrderKind::Read && rig.file_holds(order.file_offset, BYTES, 1)
        });
        of_one.count()
    };
    assert_eq!(reads(&rig), 1, "nothing is free in the log before it is read");
    // Its time passes, and what it waited for comes.
    rig.now = LATE;
    rig.shard.on_time(LATE);
    rig.complete(0, Fault::None);
    assert!(rig.blocks(other).1);
    let tag = rig.submit_acquire(holder(2, 1, 1), &[1]);
    rig.start_all();
    assert_eq!(reads(&rig), 1, "one read for both");
    write_all(&mut rig);
    while !rig.flights.is_empty() {
        rig.complete(0, Fault::None);
    }
    let (blocks, done) = rig.blocks(tag);
    assert!(done && rig.holds(blocks[0].offset, BYTES, 1));
}

#[test]
fn a_draining_shard_takes_no_announcement() {
    let mut rig = rig(&[1]);
    rig.call(Command::Drain);
    let (connection, namespaces) = (ConnectionId(1), vec![digest(0)]);
    let keys = super::rig::keys(&[1]);
    let outcome = rig.call(Command::Prefetch { connection, namespaces, keys, until: LATE });
    assert!(matches!(outcome, Outcome::Draining));
}
