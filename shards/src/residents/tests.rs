//! The resident table alone: identity of entries, and the last user of a copy.

use orbitkv_wire::identity::{BlockHash, GroupId};

use super::*;
use crate::key::NamespaceId;
use crate::slab::SlotId;

fn key(number: u8) -> StateKey {
    StateKey { namespace: NamespaceId(0), group: GroupId(0), block: BlockHash([number; 32]) }
}

fn slot(number: u32) -> Slot {
    Slot { id: SlotId(number), offset: u64::from(number) * 4096, bytes: 4096 }
}

#[test]
fn colliding_hashes_name_different_entries() {
    let mut residents = Residents::new();
    let hash = KeyHash(7);
    let ids: Vec<EntryId> = (0..40).map(|number| residents.insert(key(number), hash, 1)).collect();
    for (number, &id) in (0..).zip(&ids) {
        assert_eq!(residents.find(hash, &key(number)), Some(id));
    }
    assert_eq!(residents.find(hash, &key(99)), None);
    residents.remove(ids[3]);
    assert_eq!(residents.find(hash, &key(3)), None);
    assert_eq!(residents.find(hash, &key(4)), Some(ids[4]));
    assert_eq!((residents.len(), residents.is_empty()), (39, false));
}

#[test]
fn a_reference_dies_with_its_entry_though_the_index_lives_on() {
    let mut residents = Residents::new();
    let first = residents.insert(key(1), KeyHash(1), 1);
    let reference = residents.reference(first);
    assert_eq!(residents.resolve(reference), Some(first));
    residents.remove(first);
    assert_eq!(residents.resolve(reference), None);
    let second = residents.insert(key(1), KeyHash(1), 1);
    assert_eq!(second, first, "the index is reused");
    assert_eq!(residents.resolve(reference), None);
    assert_eq!(residents.resolve(residents.reference(second)), Some(second));
}

#[test]
fn the_last_user_of_a_withdrawn_copy_gets_the_slot() {
    let mut residents = Residents::new();
    let id = residents.insert(key(1), KeyHash(1), 1);
    let copy = residents.insert_copy(slot(5), Some(id));
    residents.pin(copy);
    residents.pin(copy);
    assert_eq!(residents.unpin(copy), None, "still shown");
    assert_eq!(residents.withdraw(copy), None, "still used");
    assert_eq!(residents.copies(), 1);
    assert_eq!(residents.unpin(copy), Some(slot(5)));
    assert_eq!(residents.copies(), 0);
    let unused = residents.insert_copy(slot(6), Some(id));
    assert_eq!(residents.withdraw(unused), Some(slot(6)));
}

#[test]
#[should_panic(expected = "a copy is withdrawn once")]
fn a_copy_is_not_withdrawn_twice() {
    let mut residents = Residents::new();
    let id = residents.insert(key(1), KeyHash(1), 1);
    let copy = residents.insert_copy(slot(5), Some(id));
    residents.pin(copy);
    assert_eq!(residents.withdraw(copy), None);
    let _ = residents.withdraw(copy);
}

#[test]
fn a_scan_goes_through_the_keys_in_order_from_anywhere() {
    let mut residents = Residents::new();
    for number in [9, 3, 7, 1] {
        residents.insert(key(number), KeyHash(u64::from(number)), 1);
    }
    let from = |first: u8| -> Vec<u8> {
        residents.scan_from(&key(first)).map(|(_, entry)| entry.key.block.0[0]).collect()
    };
    assert_eq!((from(0), from(4), from(9), from(10)), (vec![1, 3, 7, 9], vec![7, 9], vec![9], vec![]));
}
