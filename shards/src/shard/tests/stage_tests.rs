//! What a watched shard tells of the device work for its commands, against what the played device was given.

use orbitkv_wire::engine::answers::{BlockOutcome, EvictOutcome};

use super::super::{Command, Outcome, Stage, StageNote, Tag};
use super::rig::{DRAM, Fault, KIB, Rig, holder};
use crate::leases::ConnectionId;
use crate::reservations::ReservationId;

const BLOCK: u64 = 64 * KIB;

fn watched() -> Rig {
    let mut rig = Rig::small();
    rig.shard.watch_stages();
    rig
}

/// Saves blocks with one Commit, whose tag it gives.
fn commit(rig: &mut Rig, numbers: &[u8]) -> Tag {
    let blocks: Vec<(u8, u64)> = numbers.iter().map(|&number| (number, BLOCK)).collect();
    let slots = rig.reserve_many(1, false, &blocks);
    for (&number, slot) in numbers.iter().zip(&slots) {
        rig.fill(slot.offset, BLOCK, u64::from(number));
    }
    let reservations = (0..).zip(slots.iter().map(|slot| ReservationId(slot.reservation))).collect();
    let tag = rig.submit(Command::Commit { connection: ConnectionId(1), reservations });
    let committed = rig.take(tag);
    assert!(matches!(committed[..], [Outcome::Committed(_)]), "{committed:?}");
    tag
}

/// What was told since it was last asked for, each tag with its stages in order.
fn told(rig: &mut Rig, tags: &[Tag]) -> Vec<Vec<Stage>> {
    let notes: Vec<StageNote> = std::iter::from_fn(|| rig.shard.poll_stage()).collect();
    let strangers: Vec<_> = notes.iter().filter(|note| !tags.contains(&note.tag)).collect();
    assert!(strangers.is_empty(), "{strangers:?}");
    let of = |tag: &Tag| notes.iter().filter(|note| note.tag == *tag).map(|note| note.stage).collect();
    tags.iter().map(of).collect()
}

#[test]
fn write_backs_are_told_by_the_commit_they_are_for_and_by_no_later_command() {
    let mut rig = watched();
    let first = commit(&mut rig, &[1]);
    let second = commit(&mut rig, &[2, 3]);
    let one = vec![Stage::WriteBackQueued];
    assert_eq!(told(&mut rig, &[first, second]), [one.clone(), [one.clone(), one].concat()]);
    rig.place(1);
    rig.start_all();
    let taken = vec![Stage::WriteBackTaken, Stage::DeviceQueued, Stage::DeviceTaken];
    assert_eq!(told(&mut rig, &[first, second]), [taken.clone(), [taken.clone(), taken].concat()]);
    rig.complete(0, Fault::None);
    let ended = vec![Stage::DeviceEnded, Stage::WriteBackEnded];
    assert_eq!(told(&mut rig, &[first, second]), [ended.clone(), vec![]]);
    rig.settle();
    assert_eq!(told(&mut rig, &[first, second]), [vec![], [ended.clone(), ended].concat()]);
}

#[test]
fn a_write_that_is_tried_again_ends_once() {
    let mut rig = watched();
    let tag = commit(&mut rig, &[1]);
    let mut stages = Vec::new();
    for fault in [Fault::Error, Fault::None] {
        rig.start_all();
        rig.complete(0, fault);
        stages.extend(told(&mut rig, &[tag]).remove(0));
    }
    let tried = [Stage::WriteBackTaken, Stage::DeviceQueued, Stage::DeviceTaken, Stage::DeviceEnded];
    let expected = [&[Stage::WriteBackQueued][..], &tried, &tried, &[Stage::WriteBackEnded]].concat();
    assert_eq!(stages, expected);
}

#[test]
fn a_block_that_is_withdrawn_before_its_write_ends_without_the_device() {
    let mut rig = watched();
    let tag = commit(&mut rig, &[1]);
    assert_eq!(rig.evict(1, DRAM), EvictOutcome::Evicted);
    rig.start_all();
    assert!(rig.flights.is_empty());
    assert_eq!(told(&mut rig, &[tag]), [[Stage::WriteBackQueued, Stage::WriteBackEnded]]);
}

#[test]
fn whoever_waits_for_one_read_is_told_of_it_once_for_each_block() {
    let mut rig = Rig::small();
    rig.save_to_ssd(1, BLOCK);
    rig.shard.watch_stages();
    let twice = rig.submit_acquire(holder(1, 1, 1), &[1, 1]);
    let queued = vec![Stage::DeviceQueued; 2];
    assert_eq!(told(&mut rig, &[twice]), [queued]);
    rig.start_all();
    assert_eq!(told(&mut rig, &[twice]), [[Stage::DeviceTaken; 2]]);
    let late = rig.submit_acquire(holder(2, 2, 2), &[1, 9]);
    assert_eq!(told(&mut rig, &[twice, late]), [vec![], vec![Stage::DeviceQueued, Stage::DeviceTaken]]);
    rig.complete(0, Fault::Error);
    assert_eq!(told(&mut rig, &[twice, late]), [vec![Stage::DeviceEnded; 2], vec![Stage::DeviceEnded]]);
    assert_eq!(rig.blocks(twice).0[0].outcome, BlockOutcome::DeviceError as u8);
}

#[test]
fn nobody_is_told_unless_somebody_asked() {
    let mut rig = Rig::small();
    let tag = commit(&mut rig, &[1]);
    rig.settle();
    rig.submit_acquire(holder(1, 1, 1), &[1]);
    assert_eq!(told(&mut rig, &[tag]), [vec![]]);
}
