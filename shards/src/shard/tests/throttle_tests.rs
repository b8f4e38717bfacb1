//! What a namespace may put into slots in time: it alone is refused what is more, as busy, and what is here is its own.

use std::time::Duration;

use orbitkv_wire::engine::answers::{BlockOutcome, Place, PrefetchOutcome, SlotOutcome};
use orbitkv_wire::identity::Medium;

use super::super::{Command, FetchEffect, FetchOrder, NamespaceRate, Outcome, ShardSettings};
use super::rig::{DRAM, KIB, Rig, digest, holder, key, settings};
use crate::flow::pacing::Rate;
use crate::leases::ConnectionId;
use crate::time::Moment;

const BYTES: u64 = 256 * KIB;
const LATE: Moment = Moment(100_000_000_000);

/// One block a second, and so many at once.
fn rig(burst_blocks: u64) -> Rig {
    with_burst(burst_blocks * BYTES)
}

fn with_burst(burst_bytes: u64) -> Rig {
    let rate = Rate::new(BYTES).expect("more than none");
    let namespace_rate = Some(NamespaceRate { rate, burst_bytes });
    Rig::new(ShardSettings { namespace_rate, ..settings(2, 16 * 1024 * KIB) })
}

fn pass(rig: &mut Rig, milliseconds: u64) {
    rig.now = rig.now + Duration::from_millis(milliseconds);
}

/// Whether namespace `namespace` gets a slot.
fn reserves(rig: &mut Rig, namespace: u8, number: u8) -> bool {
    let connection = ConnectionId(1);
    let (namespace, keys) = (digest(namespace), vec![(key(number), BYTES)]);
    let Outcome::Slots(slots) = rig.call(Command::Reserve { connection, namespace, race: false, keys })
    else {
        panic!("not slots")
    };
    let outcome = slots[0].1.outcome;
    assert!(outcome == SlotOutcome::Slot as u8 || outcome == SlotOutcome::Busy as u8, "{outcome}");
    outcome == SlotOutcome::Slot as u8
}

fn fetch(rig: &mut Rig) -> Option<FetchOrder> {
    match rig.shard.poll_fetch()? {
        FetchEffect::Fetch(order) => Some(order),
        other => panic!("no fetch but {other:?}"),
    }
}

fn throttled(rig: &Rig) -> [u64; 6] {
    let of = rig.counters();
    [
        of.throttled_saves,
        of.throttled_save_bytes / BYTES,
        of.throttled_acquires,
        of.throttled_acquire_bytes / BYTES,
        of.throttled_prefetches,
        of.throttled_prefetch_bytes / BYTES,
    ]
}

#[test]
fn a_namespace_that_saves_faster_is_refused_and_another_is_not() {
    let mut rig = rig(3);
    let taken: Vec<bool> = (1..=5).map(|number| reserves(&mut rig, 0, number)).collect();
    assert_eq!(taken, [true, true, true, false, false]);
    assert!((1..=3).all(|number| reserves(&mut rig, 1, number)), "another has its own");
    assert_eq!((throttled(&rig), rig.counters().saves_busy), ([2, 2, 0, 0, 0, 0], 2));
    // What was refused was not accepted: nothing is being saved.
    assert_eq!(rig.shard.figures().reservations, 6);
    pass(&mut rig, 999);
    assert!(!reserves(&mut rig, 0, 4));
    pass(&mut rig, 1);
    assert!(reserves(&mut rig, 0, 4) && !reserves(&mut rig, 0, 5));
    // A pause brings a burst back and no more.
    pass(&mut rig, 60_000);
    let taken = (10..20).filter(|&number| reserves(&mut rig, 0, number)).count();
    assert_eq!(taken, 3);
}

#[test]
fn what_is_not_given_for_want_of_room_is_not_charged() {
    let mut rig = rig(40);
    // Sixteen slots in all.
    let taken = (1..=30).filter(|&number| reserves(&mut rig, 0, number)).count();
    assert_eq!((taken, throttled(&rig)), (16, [0; 6]));
    rig.gone(1);
    let taken = (1..=16).filter(|&number| reserves(&mut rig, 0, number)).count();
    assert_eq!(taken, 16, "24 were left of 40");
    rig.gone(1);
    let taken = (1..=16).filter(|&number| reserves(&mut rig, 0, number)).count();
    assert_eq!((taken, throttled(&rig)[0]), (8, 8));
}

#[test]
fn a_block_larger_than_a_burst_goes_alone_and_is_paid_for() {
    let mut rig = with_burst(BYTES / 4);
    assert!(reserves(&mut rig, 0, 1));
    pass(&mut rig, 999);
    assert!(!reserves(&mut rig, 0, 2), "a second for what it had, beside the burst");
    pass(&mut rig, 1);
    assert!(reserves(&mut rig, 0, 2) && !reserves(&mut rig, 0, 3));
}

#[test]
fn reads_from_ssd_count_and_what_is_in_dram_does_not() {
    let mut rig = rig(4);
    (1..=2).for_each(|number| rig.save_to_ssd(number, BYTES));
    assert_eq!(rig.place(1), Place::Ssd);
    // Two of four are left.
    let tag = rig.submit_acquire(holder(1, 1, 1), &[1, 2]);
    rig.settle();
    let (blocks, done) = rig.blocks(tag);
    assert!(done && blocks.iter().all(|block| block.outcome == BlockOutcome::Ready as u8));
    rig.release(1, 1);
    for _ in 0..5 {
        let blocks = rig.acquire(holder(2, 1, 1), &[1, 2]);
        assert!(blocks.iter().all(|block| block.outcome == BlockOutcome::Ready as u8), "they are here");
        rig.release(2, 1);
    }
    assert_eq!(throttled(&rig), [0; 6]);
    rig.evict(1, DRAM);
    let blocks = rig.acquire(holder(3, 1, 1), &[1, 2]);
    let outcomes: Vec<u8> = blocks.iter().map(|block| block.outcome).collect();
    assert_eq!(outcomes, [BlockOutcome::Busy as u8, BlockOutcome::Ready as u8], "no absence is claimed");
    assert_eq!((throttled(&rig), rig.counters().misses), ([0, 0, 1, 1, 0, 0], 0));
    assert_eq!(rig.place(1), Place::Ssd);
    rig.release(3, 1);
    assert_eq!(rig.prefetch(1, &[1], LATE), [PrefetchOutcome::Taken]);
    assert_eq!((throttled(&rig), rig.counters().prefetch_no_room), ([0, 0, 1, 1, 1, 1], 1));
    pass(&mut rig, 1_000);
    assert_eq!(rig.prefetch(1, &[1], LATE), [PrefetchOutcome::Taken]);
    rig.settle();
    assert_eq!(rig.place(1), Place::Dram);
}

#[test]
fn what_peers_have_counts_as_it_is_ordered() {
    let mut rig = rig(2);
    rig.save(0, BYTES);
    rig.settle();
    rig.shard.seek_peers(true);
    let tag = rig.submit_acquire(holder(1, 1, 1), &[1, 2]);
    while let Some(seek) = rig.shard.poll_seek() {
        rig.shard.on_sought(seek, Some(BYTES));
    }
    let order = fetch(&mut rig).expect("one of two");
    assert_eq!((fetch(&mut rig), throttled(&rig)), (None, [0, 0, 1, 1, 0, 0]));
    rig.fill(order.arena_offset, BYTES, 1);
    let checksum = rig.sum(order.arena_offset, BYTES);
    rig.shard.on_fetched(order.copy, Medium::Dram, checksum);
    rig.collect();
    let (blocks, done) = rig.blocks(tag);
    let outcomes: Vec<u8> = blocks.iter().map(|block| block.outcome).collect();
    assert_eq!((outcomes, done), (vec![BlockOutcome::Ready as u8, BlockOutcome::Busy as u8], true));
}

#[test]
fn the_shares_of_shards_are_no_more_than_the_nodes() {
    let node = NamespaceRate { rate: Rate::new(1_000_003).expect("a rate"), burst_bytes: 2_000_003 };
    let shares: Vec<NamespaceRate> = (0..4).map(|index| node.share(index, 4).expect("a share")).collect();
    assert_eq!(shares.iter().map(|share| share.rate.bytes_a_second()).sum::<u64>(), 1_000_003);
    assert!(shares.iter().map(|share| share.burst_bytes).sum::<u64>() <= 2_000_003);
    assert!(shares.iter().all(|share| share.burst_bytes == 500_000));
    assert_eq!(NamespaceRate { rate: Rate::new(3).expect("a rate"), ..node }.share(3, 4), None);
}
