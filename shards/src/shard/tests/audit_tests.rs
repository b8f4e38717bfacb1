//! The audit: it finds what nobody asks for, one block at a time, and gets in nobody's way.

use std::time::Duration;

use orbitkv_wire::identity::Sequence;

use super::super::{Finder, LostCause, OrderKind, ShardSettings};
use super::rig::{Fault, KIB, Rig, SSD, holder, settings};
use crate::time::Moment;

const BLOCK: u64 = 64 * KIB;
const INTERVAL: Duration = Duration::from_secs(1);

/// A shard that audits, with these blocks on SSD alone.
fn audited(numbers: std::ops::Range<u8>) -> Rig {
    let settings = ShardSettings { audit_interval: Some(INTERVAL), ..settings(2, 4 * 1024 * KIB) };
    let mut rig = Rig::new(settings);
    numbers.for_each(|number| rig.save_to_ssd(number, BLOCK));
    rig.now = Moment(1);
    rig
}

/// Lets an interval pass; whether a block is read again now.
fn pass(rig: &mut Rig) -> bool {
    rig.now = rig.now + INTERVAL;
    rig.shard.on_time(rig.now);
    let begun = rig.start_one();
    assert!(!rig.start_one(), "one block at a time");
    begun
}

#[test]
fn every_block_is_read_again_in_turn_and_nothing_comes_of_it() {
    let mut rig = audited(1..6);
    let before = rig.shard.figures();
    let mut places = std::collections::BTreeSet::new();
    // The sixth look is the end of the keys; then it begins again.
    for round in 0..12 {
        assert_eq!(pass(&mut rig), round % 6 != 5, "round {round}");
        while let Some(flight) = rig.flights.first() {
            assert_eq!(flight.order.kind, OrderKind::Read);
            places.insert(flight.order.file_offset);
            rig.complete(0, Fault::None);
        }
    }
    let after = rig.shard.figures();
    assert_eq!((places.len(), after.counters.audited, after.counters.lost_writes), (5, 10, 0));
    assert_eq!((after.head, after.allocated_bytes), (before.head, before.allocated_bytes));
    assert!(rig.shard.poll_lost().is_none());
}

#[test]
fn another_pause_is_that_before_the_next_block() {
    let mut rig = audited(1..4);
    assert!(pass(&mut rig));
    rig.complete(0, Fault::None);
    // The next one would be due in a second.
    rig.shard.set_audit_interval(Some(INTERVAL / 10), rig.now);
    assert_eq!(rig.shard.next_deadline(), Some(rig.now + INTERVAL / 10));
    rig.now = rig.now + INTERVAL / 10;
    rig.shard.on_time(rig.now);
    assert!(rig.start_one());
    // One that is being read is read to its end.
    rig.shard.set_audit_interval(None, rig.now);
    rig.complete(0, Fault::None);
    assert_eq!((rig.counters().audited, rig.shard.next_deadline()), (2, None));
    assert!(!pass(&mut rig), "there is no audit any more");
    rig.shard.set_audit_interval(Some(INTERVAL), rig.now);
    assert!(pass(&mut rig));
}

#[test]
fn a_block_that_is_not_what_was_written_is_named_once_and_ended() {
    for (fault, cause) in [(Fault::Flipped, LostCause::WrongBytes), (Fault::Error, LostCause::Unreadable)] {
        let mut rig = audited(1..2);
        // The last record is the end of its copy in DRAM.
        let sequence = Sequence(rig.shard.head().0 - 1);
        assert!(pass(&mut rig));
        rig.complete(0, fault);
        let lost = rig.shard.poll_lost().expect("it is named");
        assert_eq!((lost.block.block.0, lost.sequence), ([1; 32], sequence));
        assert_eq!((lost.cause, lost.finder), (cause, Finder::Audit));
        assert!(rig.shard.poll_lost().is_none());
        let counters = rig.counters();
        assert_eq!((counters.lost_writes, counters.ssd_residents), (1, 0));
        assert_eq!(rig.shard.head(), Sequence(sequence.0 + 2), "peers are told that it has ended");
        assert_eq!(rig.shard.next_deadline(), None, "there is nothing left to audit");
    }
}

#[test]
fn a_reader_that_finds_it_first_names_it_in_the_same_way() {
    let mut rig = audited(1..2);
    rig.submit_acquire(holder(1, 1, 1), &[1]);
    rig.start_all();
    rig.complete(0, Fault::Flipped);
    let lost = rig.shard.poll_lost().expect("it is named");
    assert_eq!(
        (lost.finder, lost.cause, rig.counters().lost_writes),
        (Finder::Reader, LostCause::WrongBytes, 1)
    );
}

#[test]
fn whoever_needs_the_device_goes_first() {
    let mut rig = audited(1..3);
    let tag = rig.submit_acquire(holder(1, 1, 1), &[1]);
    rig.now = rig.now + INTERVAL;
    rig.shard.on_time(rig.now);
    rig.start_all();
    assert_eq!(rig.flights.len(), 1, "the engine's read alone");
    rig.complete(0, Fault::None);
    assert!(rig.blocks(tag).1);
    assert!(pass(&mut rig));
    // What is being read again ends meanwhile: nobody has lost it.
    rig.evict(2, SSD);
    rig.evict(1, SSD);
    rig.complete(0, Fault::Flipped);
    assert_eq!((rig.counters().lost_writes, rig.counters().audited), (0, 1));
}

#[test]
fn nothing_is_audited_unless_it_is_wanted() {
    let mut rig = Rig::small();
    rig.save_to_ssd(1, BLOCK);
    assert_eq!(rig.shard.next_deadline(), None);
    assert!(!pass(&mut rig));
}
