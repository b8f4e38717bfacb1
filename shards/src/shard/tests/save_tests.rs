//! Reserve, Commit and Abort: who gets a slot, whose value wins, and that eviction goes on.

use orbitkv_wire::engine::answers::{BlockOutcome, CommitOutcome, EvictOutcome, Place, SlotOutcome};
use orbitkv_wire::identity::Medium;

use super::super::{Command, Outcome};
use super::rig::{BOTH, DRAM, KIB, Rig, SSD, digest, holder, key, settings};

const SLOT: u8 = SlotOutcome::Slot as u8;
const PRESENT: u8 = SlotOutcome::Present as u8;
const BEING_SAVED: u8 = SlotOutcome::BeingSaved as u8;
const BUSY: u8 = SlotOutcome::Busy as u8;
const TOO_LARGE: u8 = SlotOutcome::TooLarge as u8;

#[test]
fn of_two_engines_that_save_one_key_the_second_is_told() {
    let mut rig = Rig::small();
    let first = rig.reserve(1, 1, 64 * KIB);
    assert_eq!(first.outcome, SLOT);
    assert_eq!(rig.reserve(2, 1, 64 * KIB).outcome, BEING_SAVED);
    assert_eq!(rig.place(1), Place::None, "not published yet");
    rig.fill(first.offset, 64 * KIB, 11);
    assert_eq!(rig.commit(1, first.reservation), CommitOutcome::Committed);
    assert_eq!(rig.reserve(2, 1, 64 * KIB).outcome, PRESENT);
    let blocks = rig.acquire(holder(1, 1, 1), &[1]);
    assert!(rig.holds(blocks[0].offset, 64 * KIB, 11));
}

#[test]
fn of_two_racing_engines_the_first_commit_wins_whole() {
    let mut rig = Rig::small();
    let first = rig.reserve_many(1, true, &[(1, 64 * KIB)])[0];
    let second = rig.reserve_many(2, true, &[(1, 100 * KIB)])[0];
    assert_eq!((first.outcome, second.outcome), (SLOT, SLOT));
    rig.fill(second.offset, 100 * KIB, 22);
    assert_eq!(rig.commit(2, second.reservation), CommitOutcome::Committed);
    rig.fill(first.offset, 64 * KIB, 11);
    assert_eq!(rig.commit(1, first.reservation), CommitOutcome::Lost);
    let blocks = rig.acquire(holder(1, 1, 1), &[1]);
    assert_eq!(blocks[0].bytes, 100 * KIB);
    assert!(rig.holds(blocks[0].offset, 100 * KIB, 22));
    assert_eq!(rig.shard.figures().reservations, 0);
}

#[test]
fn only_the_owner_ends_a_reservation_and_only_once() {
    let mut rig = Rig::small();
    let slot = rig.reserve(1, 1, 64 * KIB);
    assert_eq!(rig.commit(2, slot.reservation), CommitOutcome::NotYours);
    assert_eq!(rig.abort(2, slot.reservation), CommitOutcome::NotYours);
    assert_eq!(rig.abort(1, slot.reservation), CommitOutcome::Aborted);
    assert_eq!(rig.commit(1, slot.reservation), CommitOutcome::NotYours);
    assert_eq!(rig.commit(1, 77), CommitOutcome::NotYours, "never made");
    assert_eq!((rig.place(1), rig.shard.figures().allocated_bytes), (Place::None, 0));
}

#[test]
fn a_save_larger_than_can_ever_be_leased_is_told_the_limit() {
    let mut rig = Rig::small();
    for bytes in [2 * 1024 * KIB + 1, 5 * 1024 * KIB, u64::MAX] {
        let slot = rig.reserve(1, 1, bytes);
        assert_eq!((slot.outcome, slot.offset), (TOO_LARGE, 2 * 1024 * KIB), "half of the slice");
    }
    assert_eq!(rig.reserve(1, 3, 2 * 1024 * KIB).outcome, SLOT, "the limit itself fits");
}

#[test]
fn a_dead_engine_gives_its_slots_back() {
    let mut rig = Rig::small();
    rig.reserve_many(1, false, &[(1, 64 * KIB), (2, 300 * KIB)]);
    let other = rig.reserve(2, 3, 64 * KIB);
    rig.gone(1);
    let figures = rig.shard.figures();
    assert_eq!((figures.reservations, figures.allocated_bytes), (1, 64 * KIB));
    assert_eq!(rig.reserve(2, 1, 64 * KIB).outcome, SLOT, "nobody saves it any more");
    assert_eq!(rig.commit(2, other.reservation), CommitOutcome::Committed);
    for (connection, expected) in [(1, false), (2, true)] {
        let connection = crate::leases::ConnectionId(connection);
        let Outcome::Disconnected { claims } = rig.call(Command::Disconnected { connection }) else {
            panic!("not an answer to Disconnected")
        };
        assert_eq!(claims, expected, "a slot is still in the hands of the second alone");
    }
}

#[test]
fn reservations_are_bounded_and_come_back() {
    let mut settings = settings(2, 0);
    settings.reserved_bytes_max = 200 * KIB;
    let mut rig = Rig::new(settings);
    let slots = rig.reserve_many(1, false, &[(1, 100 * KIB), (2, 100 * KIB), (3, 100 * KIB)]);
    assert_eq!([slots[0].outcome, slots[1].outcome, slots[2].outcome], [SLOT, SLOT, BUSY]);
    assert_eq!(rig.abort(1, slots[0].reservation), CommitOutcome::Aborted);
    assert_eq!(rig.reserve(1, 3, 100 * KIB).outcome, SLOT);
}

#[test]
fn draining_refuses_new_saves_and_publishes_old_ones() {
    let mut rig = Rig::small();
    let slot = rig.reserve(1, 1, 64 * KIB);
    assert!(matches!(rig.call(Command::Drain), Outcome::Done));
    let connection = crate::leases::ConnectionId(1);
    let namespace = super::rig::digest(0);
    let reserve = Command::Reserve { connection, namespace, race: false, keys: vec![(key(2), 4096)] };
    assert!(matches!(rig.call(reserve), Outcome::Draining));
    assert_eq!(rig.commit(1, slot.reservation), CommitOutcome::Committed);
    let acquire = rig.submit_acquire(holder(1, 1, 1), &[1]);
    assert!(matches!(rig.outcome(acquire), Outcome::Draining));
    assert_eq!(rig.place(1), Place::Dram);
}

#[test]
fn ten_thousand_uses_between_evictions_do_not_stop_eviction() {
    let mut rig = Rig::new(settings(2, 0));
    let mut saved: Vec<u8> = Vec::new();
    for number in 0..100 {
        rig.save(number, 64 * KIB);
        saved.push(number);
        let hot: Vec<u8> = saved.iter().rev().take(40).copied().collect();
        for _ in 0..10_000 / (100 * hot.len()) + 1 {
            rig.places(&hot, None);
            for &number in &hot {
                rig.reserve(2, number, 64 * KIB);
            }
        }
    }
    // Everything pinned but one block, and that one is used all the time.
    for (connection, pinned) in [(1, 36..68), (2, 68..99)] {
        let pinned: Vec<u8> = pinned.collect();
        let blocks = rig.acquire(holder(u128::from(connection), 1, connection), &pinned);
        assert!(blocks.iter().all(|block| block.outcome == BlockOutcome::Ready as u8));
    }
    assert_eq!(rig.place(99), Place::Dram);
    for _ in 0..10_000 {
        assert_eq!(rig.reserve(2, 99, 64 * KIB).outcome, PRESENT);
    }
    assert_eq!(rig.counters().dram_evictions, 100 - 64);
    rig.save(100, 64 * KIB);
    rig.save(101, 64 * KIB);
    assert_eq!(rig.counters().dram_evictions, 100 - 64 + 2);
}

#[test]
fn one_size_takes_the_room_of_others() {
    let mut settings = settings(2, 0);
    settings.leases.bytes_per_connection_max = settings.slab.bytes;
    let mut rig = Rig::new(settings);
    for number in 0..64 {
        rig.save(number, 64 * KIB);
    }
    rig.save(100, 300 * KIB);
    assert_eq!(rig.place(100), Place::Dram);
    rig.save(101, 4 * 1024 * KIB);
    assert_eq!((rig.place(100), rig.place(101)), (Place::None, Place::Dram));
    assert_eq!(rig.counters().dram_residents, 1);
}

#[test]
fn a_block_not_on_ssd_yet_is_not_evicted_while_the_tier_works() {
    let mut rig = Rig::small();
    let blocks = 64;
    for number in 0..blocks {
        rig.save(number, 64 * KIB);
    }
    assert_eq!(rig.reserve(1, 200, 64 * KIB).outcome, BUSY, "all of it is still to be written");
    assert!(rig.start_one());
    rig.complete(0, super::rig::Fault::None);
    rig.save(200, 64 * KIB);
    assert_eq!(rig.place(0), Place::Ssd, "the one that was written made room");
}

#[test]
fn a_key_whose_only_bytes_are_being_written_is_being_saved() {
    let mut rig = Rig::small();
    rig.save(1, 64 * KIB);
    assert!(rig.start_one());
    assert_eq!(rig.evict(1, DRAM), EvictOutcome::InUse, "the device reads it");
    assert_eq!(rig.place(1), Place::None);
    assert_eq!(rig.reserve(1, 1, 64 * KIB).outcome, BEING_SAVED);
    let slot = rig.reserve_many(1, true, &[(1, 64 * KIB)])[0];
    assert_eq!(slot.outcome, SLOT);
    rig.complete(0, super::rig::Fault::None);
    assert_eq!((rig.place(1), rig.commit(1, slot.reservation)), (Place::Ssd, CommitOutcome::Lost));
    assert_eq!(rig.reserve(1, 1, 64 * KIB).outcome, PRESENT);
}

#[test]
fn evict_clear_and_list_speak_of_the_media_asked_for() {
    let mut rig = Rig::small();
    for number in [1, 2, 3] {
        rig.save(number, 64 * KIB);
    }
    rig.settle();
    assert_eq!(rig.list(0, BOTH, 1).len(), 6);
    assert_eq!(rig.list(0, SSD, 2).len(), 3);
    assert_eq!(rig.evict(1, 0), EvictOutcome::Absent, "no medium");
    assert_eq!(rig.evict(1, SSD), EvictOutcome::Evicted);
    assert_eq!(rig.evict(1, SSD), EvictOutcome::Absent);
    assert_eq!(rig.place(1), Place::Dram);
    assert_eq!(rig.evict(2, DRAM), EvictOutcome::Evicted);
    assert_eq!(rig.place(2), Place::Ssd);
    assert_eq!(rig.evict(9, BOTH), EvictOutcome::Absent);
    let left: Vec<(u8, Medium)> =
        rig.list(0, BOTH, 10).iter().map(|resident| (resident.block.0[0], resident.medium)).collect();
    assert_eq!(left, [(2, Medium::Ssd), (1, Medium::Dram), (3, Medium::Dram), (3, Medium::Ssd)]);
    let media = super::super::command::Media::from_mask(BOTH);
    let clear = Command::Clear { namespace: super::rig::digest(0), media };
    let Outcome::Cleared { removed, in_use } = rig.call(clear) else { panic!("not a clear") };
    assert_eq!((removed, in_use), (4, 0));
    assert!(rig.list(0, BOTH, 10).is_empty());
    assert_eq!(rig.shard.figures().namespaces, 0);
}

#[test]
fn an_acquire_of_nothing_here_says_missing() {
    let mut rig = Rig::small();
    let blocks = rig.acquire(holder(1, 1, 1), &[1, 2]);
    assert!(blocks.iter().all(|block| block.outcome == BlockOutcome::Missing as u8));
    assert!(rig.acquire(holder(2, 1, 1), &[]).is_empty());
    assert_eq!(rig.shard.figures().leases, 2, "until released");
}

#[test]
fn a_clear_goes_on_in_slices_and_is_answered_once() {
    let mut rig = Rig::new(settings(2, 0));
    for number in 0..=254 {
        rig.save(number, 4 * KIB);
    }
    rig.acquire(holder(1, 1, 1), &[9]);
    let media = super::super::command::Media::from_mask(BOTH);
    let tag = rig.submit(Command::Clear { namespace: digest(0), media });
    let second = rig.submit(Command::Clear { namespace: digest(0), media });
    assert!(rig.take(tag).is_empty() && rig.shard.has_work());
    assert_eq!(rig.counters().dram_residents, 255 - 128, "a turn clears so many");
    assert_eq!(rig.list(0, BOTH, 1000).len(), 255 - 128, "others see how far it is");
    // The cursor's entry may end by itself, and what is saved behind it stays.
    rig.save(0, 4 * KIB);
    let removed_meanwhile = (0..=254).rev().find(|&number| rig.evict(number, BOTH) == EvictOutcome::Evicted);
    assert!(removed_meanwhile.is_some());
    rig.shard.step();
    rig.collect();
    let [Outcome::Cleared { removed, in_use }] = rig.take(tag)[..] else { panic!("not answered once") };
    assert_eq!((removed, in_use), (254, 1));
    assert!(rig.take(second).is_empty() && rig.shard.has_work(), "one slice a turn");
    rig.shard.step();
    rig.collect();
    let [Outcome::Cleared { removed, in_use }] = rig.take(second)[..] else { panic!("not answered once") };
    assert_eq!((removed, in_use), (1, 0));
    assert!(!rig.shard.has_work());
}

#[test]
fn a_reserve_that_finds_everything_in_use_searches_once() {
    let mut rig = Rig::small();
    for number in 0..64 {
        rig.save(number, 64 * KIB);
    }
    let wanted: Vec<(u8, u64)> = (100..200).map(|number| (number, 64 * KIB)).collect();
    // Nothing is on SSD yet. A search passes over all of it, which makes the first one the oldest again.
    let slots = rig.reserve_many(1, false, &wanted);
    assert!(slots.iter().all(|slot| slot.outcome == BUSY));
    assert_eq!(rig.shard.searches, 1);
    rig.settle();
    let slots = rig.reserve_many(1, false, &wanted[..3]);
    assert!(slots.iter().all(|slot| slot.outcome == SLOT), "the next one searches again");
}

#[test]
fn an_acquire_that_finds_everything_in_use_searches_once() {
    let mut rig = Rig::new(settings(2, 12 * 1024 * KIB));
    for number in 100..110 {
        rig.save_to_ssd(number, 64 * KIB);
    }
    for number in 0..64 {
        rig.save(number, 64 * KIB);
    }
    let before = rig.shard.searches;
    let wanted: Vec<u8> = (100..110).collect();
    let blocks = rig.acquire(holder(1, 1, 1), &wanted);
    assert!(blocks.iter().all(|block| block.outcome == BlockOutcome::Busy as u8));
    assert_eq!(rig.shard.searches - before, 1);
}

#[test]
fn small_blocks_are_bounded_by_number_and_eviction_goes_on() {
    let mut bounded = settings(2, 0);
    bounded.blocks_max = 10;
    let mut rig = Rig::new(bounded);
    for number in 0..40 {
        rig.save(number, 4 * KIB);
    }
    let counters = rig.counters();
    assert_eq!((counters.dram_residents, counters.dram_evictions), (10, 30), "the oldest made room");
    let held: Vec<u8> = (30..40).collect();
    rig.acquire(holder(1, 1, 1), &held);
    assert_eq!(rig.reserve(1, 100, 4 * KIB).outcome, BUSY, "all of it is in use");
    // Withdrawn copies under a lease have slots, but no entries.
    for &number in &held {
        assert_eq!(rig.evict(number, BOTH), EvictOutcome::InUse);
    }
    assert_eq!(rig.reserve(1, 100, 4 * KIB).outcome, BUSY, "ten slots are in use");
    rig.release(1, 1);
    let slots = rig.reserve_many(1, false, &(100..111).map(|number| (number, 100)).collect::<Vec<_>>());
    let given = slots.iter().filter(|slot| slot.outcome == SLOT).count();
    assert_eq!((given, slots[10].outcome), (10, BUSY), "slots in engines' hands count");
}

#[test]
fn a_table_full_of_blocks_on_ssd_gives_up_the_coldest_of_them() {
    let mut bounded = settings(2, 12 * 1024 * KIB);
    bounded.blocks_max = 10;
    let mut rig = Rig::new(bounded);
    for number in 0..10 {
        rig.save_to_ssd(number, 64 * KIB);
    }
    assert_eq!(rig.counters().dram_residents, 0);
    for number in 0..9 {
        rig.reserve(2, number, 64 * KIB);
    }
    rig.save(100, 64 * KIB);
    assert_eq!((rig.place(9), rig.place(100)), (Place::None, Place::Dram), "the only one not used since");
    for number in 101..120 {
        rig.save(number, 64 * KIB);
        rig.settle();
    }
    let counters = rig.counters();
    assert_eq!(counters.dram_residents, 10, "on both media by then: {counters:?}");
    assert_eq!(rig.list(0, BOTH, 1000).len(), 20);
}

#[test]
fn the_tables_are_as_large_as_they_will_be() {
    let rig = Rig::new(settings(2, 0));
    assert!(rig.shard.residents.capacity() >= 4_096 && rig.shard.policy.capacity() >= 4_096);
}
