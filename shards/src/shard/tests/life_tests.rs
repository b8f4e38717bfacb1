//! A new registration life: the journal begins again, every resident is put again, and neither the cache nor
//! its users notice.

use orbitkv_wire::engine::answers::{EvictOutcome, Place};
use orbitkv_wire::identity::{Incarnation, Medium, Sequence};

use super::super::{Command, Outcome, Shard, Tag};
use super::rig::{BOTH, DRAM, Fault, KIB, Rig, SSD, holder, key, settings};
use crate::drop_memory::Verdict;
use crate::journal::{Change, Record};
use crate::key::{EntryId, NamespaceId, StateKey};
use crate::residents::Entry;
use crate::segment_log::decode_table;

const BLOCK: u64 = 64 * KIB;

fn state_key(number: u8) -> StateKey {
    StateKey { namespace: NamespaceId(0), group: key(number).group, block: key(number).block }
}

fn id(shard: &Shard, number: u8) -> EntryId {
    shard.residents.find(key(number).hash, &state_key(number)).expect("a resident")
}

fn entry(rig: &Rig, number: u8) -> &Entry {
    rig.shard.residents.entry(id(&rig.shard, number))
}

/// Number, medium and whether it is a put: the history in short.
fn told(rig: &Rig) -> Vec<(u8, Medium, bool)> {
    let short =
        |record: Record| (record.key.block.0[0], record.medium, matches!(record.change, Change::Put { .. }));
    rig.history().into_iter().map(short).collect()
}

fn put(number: u8, medium: Medium) -> (u8, Medium, bool) {
    (number, medium, true)
}

fn is_begun(rig: &mut Rig, tag: Tag) -> bool {
    match &rig.take(tag)[..] {
        [] => false,
        [Outcome::LifeBegun] => true,
        other => panic!("no answer to BeginLife: {other:?}"),
    }
}

/// Blocks 0, 2, 4 and 6 in DRAM; there is no SSD. One step puts two of them again.
fn four() -> Rig {
    let mut rig = Rig::new(settings(2, 0));
    [0, 2, 4, 6].into_iter().for_each(|number| rig.save(number, BLOCK));
    rig
}

#[test]
fn every_resident_is_put_again_once_in_the_order_of_the_keys() {
    let mut rig = Rig::small();
    for number in [5, 4, 3, 2] {
        rig.save(number, BLOCK);
    }
    rig.settle();
    rig.evict(4, DRAM);
    rig.evict(5, SSD);
    let lease = rig.acquire(holder(1, 1, 1), &[2]);
    let reserved = rig.reserve(1, 9, BLOCK);
    let tag = rig.begin_life(8);
    let figures = rig.shard.figures();
    assert_eq!((figures.incarnation, figures.is_settled), (Incarnation([8; 16]), false));
    assert_eq!((figures.head, figures.oldest), (Sequence(0), Sequence(1)));
    assert!(rig.shard.has_work() && told(&rig).is_empty());
    rig.step();
    // Even numbers are of group 0, odd ones of group 1.
    let mut expected = vec![put(2, Medium::Dram), put(2, Medium::Ssd), put(4, Medium::Ssd)];
    assert_eq!(told(&rig), expected);
    assert!(!is_begun(&mut rig, tag) && !rig.shard.is_settled());
    rig.step();
    expected.extend([put(3, Medium::Dram), put(3, Medium::Ssd), put(5, Medium::Dram)]);
    assert_eq!(told(&rig), expected);
    // A full slice may have been the last.
    rig.step();
    assert!(is_begun(&mut rig, tag) && rig.shard.is_settled() && !rig.shard.has_work());
    let bytes = rig.history().into_iter().map(|record| record.change);
    assert!(bytes.into_iter().all(|change| change == Change::Put { bytes: BLOCK as u32 }));
    let source = rig.shard.source();
    assert_eq!((source.journal.head(), source.namespaces.len()), (Sequence(6), 1));
    assert!(rig.holds(lease[0].offset, BLOCK, 2), "a lease outlives lives");
    rig.fill(reserved.offset, BLOCK, 9);
    rig.commit(1, reserved.reservation);
    assert_eq!(told(&rig).last(), Some(&put(9, Medium::Dram)));
    assert!(matches!(rig.release(1, 1), Outcome::Done));
}

#[test]
fn an_empty_shard_begins_a_life_in_one_step() {
    let mut rig = Rig::small();
    let tag = rig.begin_life(8);
    rig.step();
    assert!(is_begun(&mut rig, tag) && rig.shard.figures().is_settled);
}

#[test]
fn what_ends_before_its_turn_leaves_no_word() {
    let mut rig = four();
    rig.begin_life(8);
    rig.step();
    assert_eq!(rig.evict(6, BOTH), EvictOutcome::Evicted);
    assert_eq!(rig.evict(0, BOTH), EvictOutcome::Evicted);
    rig.settle();
    let expected =
        [put(0, Medium::Dram), put(2, Medium::Dram), (0, Medium::Dram, false), put(4, Medium::Dram)];
    assert_eq!(told(&rig), expected);
    let verdict = |rig: &Rig, asked, number| {
        let head = rig.shard.journal.head();
        rig.shard.drops.verdict(Sequence(asked), head, &state_key(number), Medium::Dram, false)
    };
    assert_eq!(verdict(&rig, 1, 0), Verdict::Ended(Sequence(3)));
    // It was put at 4 in the life before, which means nothing now.
    assert_eq!(verdict(&rig, 4, 6), Verdict::NeverHeld);
}

#[test]
fn sequences_of_the_life_before_are_forgotten() {
    let mut rig = four();
    assert_eq!(rig.evict(0, BOTH), EvictOutcome::Evicted);
    assert_eq!(rig.shard.drops.len(), 1);
    rig.begin_life(8);
    rig.settle();
    let head = rig.shard.journal.head();
    assert_eq!((head, rig.shard.drops.len()), (Sequence(3), 0));
    let verdict = rig.shard.drops.verdict(Sequence(1), head, &state_key(0), Medium::Dram, false);
    assert_eq!(verdict, Verdict::NeverHeld, "its history is whole");
}

#[test]
fn what_is_saved_meanwhile_is_put_once() {
    let mut rig = four();
    rig.begin_life(8);
    rig.step();
    // Behind the cursor, and ahead of it.
    rig.save(1, BLOCK);
    rig.evict(0, BOTH);
    rig.save(0, BLOCK);
    rig.save(5, BLOCK);
    rig.settle();
    let numbers: Vec<u8> = told(&rig).iter().map(|(number, _, _)| *number).collect();
    assert_eq!(numbers, [0, 2, 1, 0, 0, 5, 4, 6]);
    assert_eq!(rig.history().len(), 8);
}

#[test]
fn a_write_back_that_ends_meanwhile_is_put_once() {
    let mut rig = Rig::small();
    [0, 2, 4, 6].into_iter().for_each(|number| rig.save(number, BLOCK));
    rig.start_all();
    assert_eq!(rig.flights.len(), 4);
    rig.begin_life(8);
    rig.step();
    // Block 0 has had its turn, block 6 has not.
    rig.complete(0, Fault::None);
    rig.complete(2, Fault::None);
    let expected = [put(0, Medium::Dram), put(2, Medium::Dram), put(0, Medium::Ssd), put(6, Medium::Ssd)];
    assert_eq!(told(&rig), expected);
    rig.settle();
    let mut all = told(&rig);
    assert_eq!(all.len(), 8);
    all.sort_unstable_by_key(|(number, medium, _)| (*number, *medium as u8));
    all.dedup();
    assert_eq!(all.len(), 8, "each once");
    // They were begun in a life in which they became no residence, and can be read all the same.
    assert_eq!(entry(&rig, 6).origin.incarnation, Incarnation([7; 16]));
    assert_eq!(entry(&rig, 6).origin.sequence, Sequence(0));
    rig.evict(6, DRAM);
    let tag = rig.submit_acquire(holder(1, 1, 1), &[6]);
    rig.settle();
    let (blocks, done) = rig.blocks(tag);
    assert!(done && rig.holds(blocks[0].offset, BLOCK, 6));
}

#[test]
fn blocks_of_the_life_before_are_read_and_new_ones_are_written_under_the_new() {
    let mut rig = Rig::small();
    rig.save_to_ssd(2, BLOCK);
    let (_, before) = entry(&rig, 2).ssd.residence().expect("on SSD");
    rig.begin_life(8);
    let table = decode_table(&rig.shard.poll_table().expect("the segment is sealed").bytes).expect("one");
    assert_eq!((table.incarnation, table.blocks.len()), (Incarnation([7; 16]), 1));
    assert_eq!(table.blocks[0].sequence, before);
    rig.shard.on_table_written(crate::segment_log::SegmentId(table.segment), true);
    rig.settle();
    let origin = entry(&rig, 2).origin;
    assert_eq!((origin.incarnation, origin.sequence), (Incarnation([7; 16]), before));
    assert_eq!(entry(&rig, 2).sequence(Medium::Ssd), Some(Sequence(1)));
    assert_ne!(before, Sequence(1));
    let tag = rig.submit_acquire(holder(1, 1, 1), &[2]);
    rig.settle();
    let (blocks, done) = rig.blocks(tag);
    assert!(done && blocks[0].source == Place::Ssd as u8 && rig.holds(blocks[0].offset, BLOCK, 2));
    rig.save(4, BLOCK);
    rig.settle();
    let origin = entry(&rig, 4).origin;
    assert_eq!(origin.incarnation, Incarnation([8; 16]));
    assert_eq!(Some(origin.sequence), entry(&rig, 4).sequence(Medium::Ssd));
}

#[test]
fn a_sync_waits_for_every_resident() {
    let mut rig = four();
    let life = rig.begin_life(8);
    let sync = rig.submit(Command::Sync);
    rig.step();
    assert!(rig.take(sync).is_empty(), "the head does not cover 4 and 6");
    let later = rig.submit(Command::Sync);
    rig.shard.execute(Tag { number: 99, ..later }, Command::Cancel { tag: later, deadline: false }, rig.now);
    rig.collect();
    assert!(matches!(rig.take(later)[..], [Outcome::Cancelled]));
    rig.settle();
    assert!(is_begun(&mut rig, life));
    assert!(matches!(rig.take(sync)[..], [Outcome::Synced(Sequence(4))]));
}

#[test]
fn a_sync_of_the_life_before_is_answered_in_the_new_one() {
    let mut rig = Rig::small();
    rig.save(2, BLOCK);
    rig.start_all();
    let sync = rig.submit(Command::Sync);
    rig.begin_life(8);
    rig.complete(0, Fault::None);
    assert!(rig.take(sync).is_empty(), "its block is on SSD, but 2 is not yet told");
    rig.settle();
    assert!(matches!(rig.take(sync)[..], [Outcome::Synced(Sequence(2))]));
}

#[test]
fn a_second_life_takes_the_place_of_one_that_is_beginning() {
    let mut rig = four();
    let first = rig.begin_life(8);
    rig.step();
    rig.save(1, BLOCK);
    let second = rig.begin_life(9);
    assert!(matches!(rig.take(first)[..], [Outcome::Cancelled]));
    assert!(told(&rig).is_empty());
    rig.settle();
    assert!(is_begun(&mut rig, second) && rig.take(first).is_empty());
    let numbers: Vec<u8> = told(&rig).iter().map(|(number, _, _)| *number).collect();
    assert_eq!(numbers, [0, 2, 4, 6, 1]);
    assert_eq!(rig.shard.incarnation(), Incarnation([9; 16]));
}

#[test]
fn a_list_speaks_for_the_life_it_is_answered_in() {
    let mut rig = four();
    // Sequences before are others than those after.
    rig.evict(0, BOTH);
    rig.save(0, BLOCK);
    rig.begin_life(8);
    let listed = rig.list(0, BOTH, 3);
    assert_eq!(listed.iter().map(|resident| resident.sequence.0).collect::<Vec<_>>(), [1, 2, 3, 4]);
    rig.settle();
    assert_eq!(rig.history().len(), 4, "what is listed is not put again");
}

#[test]
#[should_panic(expected = "a life that is over never comes back")]
fn a_life_does_not_follow_itself() {
    Rig::small().begin_life(7);
}
