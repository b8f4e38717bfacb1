//! Two engines that save one key at once: the block is one engine's value, whole.

use orbitkv::client::{BlockOutcome, CommitOutcome, Reserved, ReservedSlot};

use crate::harness::saver::{BLOCK_BYTES, payload};
use crate::harness::{Node, Saver};

fn two(node: &Node) -> (Saver, Saver) {
    (Saver::connect(&node.socket(), "one"), Saver::connect(&node.socket(), "two"))
}

fn slot(reserved: Vec<Reserved>) -> ReservedSlot {
    match <[Reserved; 1]>::try_from(reserved) {
        Ok([Reserved::Slot(slot)]) => slot,
        other => panic!("no slot: {other:?}"),
    }
}

/// Which of two writers the block is of, every byte of it.
fn writer_of(saver: &mut Saver, key: u64) -> u64 {
    let acquired = saver.acquire(&[key]);
    let ready = acquired.blocks[0].as_ref().expect("it was saved");
    let bytes = ready.bytes().expect("leased").to_vec();
    saver.client.release(&acquired.lease.expect("ready"), crate::harness::WAIT).expect("released");
    let is_of = |writer: &u64| bytes == payload(key, *writer, BLOCK_BYTES as usize);
    [1, 2].into_iter().find(is_of).expect("the block is a mixture of two values")
}

#[test]
fn without_race_the_second_engine_is_told_and_waits() {
    let node = Node::start();
    let (mut one, mut two) = two(&node);
    let mut first = one.fill(&[1], 1);
    assert!(matches!(two.reserve(&[1], false)[..], [Reserved::BeingSaved]));
    // Not visible before it is committed, and the second engine may not take it.
    assert_eq!(two.check_never_wrong(&[1]), [Some(BlockOutcome::Missing)]);
    assert_eq!(one.client.commit(&mut first, crate::harness::WAIT).unwrap(), [CommitOutcome::Committed]);
    assert!(matches!(two.reserve(&[1], false)[..], [Reserved::Present]));
    assert_eq!(writer_of(&mut two, 1), 1);

    // An engine that gives up makes room for the other.
    let mut given_up = one.fill(&[2], 1);
    assert_eq!(one.client.abort(&mut given_up, crate::harness::WAIT).unwrap(), [CommitOutcome::Aborted]);
    let mut second = two.fill(&[2], 2);
    two.client.commit(&mut second, crate::harness::WAIT).unwrap();
    assert_eq!(writer_of(&mut one, 2), 2);
    node.await_nothing_held();
}

#[test]
fn with_race_the_first_commit_wins_whole_and_the_other_slot_comes_back() {
    let node = Node::start();
    let (mut one, mut two) = two(&node);
    for first_wins in [true, false] {
        let key = 10 + u64::from(first_wins);
        let mut of_one = one.fill(&[key], 1);
        let mut of_two = slot(two.reserve(&[key], true));
        assert_ne!(of_one[0].offset(), of_two.offset(), "each writes memory of its own");
        of_two.copy_in(0, &payload(key, 2, BLOCK_BYTES as usize)).unwrap();
        let mut of_two = vec![of_two];
        let wait = crate::harness::WAIT;
        let (won, lost) = if first_wins {
            (one.client.commit(&mut of_one, wait).unwrap(), two.client.commit(&mut of_two, wait).unwrap())
        } else {
            (two.client.commit(&mut of_two, wait).unwrap(), one.client.commit(&mut of_one, wait).unwrap())
        };
        assert_eq!((&won[..], &lost[..]), (&[CommitOutcome::Committed][..], &[CommitOutcome::Lost][..]));
        assert_eq!(writer_of(&mut one, key), if first_wins { 1 } else { 2 });
    }
    let page = node.metadata();
    assert_eq!(page.shards[0].service.saves_lost_race, 2);
    node.await_nothing_held();
    let page = node.metadata();
    assert_eq!(page.shards[0].arena.allocated_bytes, page.shards[0].resident_bytes.dram, "no slot is lost");
}

#[test]
fn engines_racing_from_two_threads_leave_whole_values() {
    let node = Node::start();
    let keys: Vec<u64> = (100..300).collect();
    for race in [false, true] {
        let saving = |writer: u64| {
            let mut saver = Saver::connect(&node.socket(), "racer");
            let keys = keys.clone();
            std::thread::spawn(move || {
                let mut committed = 0;
                for chunk in keys.chunks(7) {
                    let reserved = saver.reserve(chunk, race);
                    let mut slots = Vec::new();
                    for (&key, reserved) in chunk.iter().zip(reserved) {
                        if let Reserved::Slot(mut slot) = reserved {
                            slot.copy_in(0, &payload(key, writer, BLOCK_BYTES as usize)).unwrap();
                            slots.push(slot);
                        }
                    }
                    let outcomes = saver.client.commit(&mut slots, crate::harness::WAIT).unwrap();
                    committed +=
                        outcomes.iter().filter(|outcome| **outcome == CommitOutcome::Committed).count();
                    let settled = |outcome: &CommitOutcome| {
                        *outcome == CommitOutcome::Committed || (race && *outcome == CommitOutcome::Lost)
                    };
                    assert!(outcomes.iter().all(settled), "race {race}: {outcomes:?}");
                }
                committed
            })
        };
        let (one, two) = (saving(1), saving(2));
        let committed = one.join().unwrap() + two.join().unwrap();
        assert_eq!(committed, keys.len(), "each key is published once");
        let mut reader = Saver::connect(&node.socket(), "reader");
        keys.iter().for_each(|&key| _ = writer_of(&mut reader, key));
        node.await_nothing_held();
        let digest = reader.client.digest(reader.namespace).unwrap();
        let cleared = reader.client.clear(digest, orbitkv::client::Media::ALL, crate::harness::WAIT).unwrap();
        assert_eq!((cleared.removed, cleared.in_use), (keys.len() as u64, 0));
        let after = reader.check_never_wrong(&keys);
        assert!(after.iter().all(|outcome| *outcome == Some(BlockOutcome::Missing)));
    }
    let page = node.metadata();
    assert_eq!(page.shards[0].arena.allocated_bytes, 0, "every slot came back");
}
