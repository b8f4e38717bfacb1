//! The reservation table alone: owners, keys being saved, bytes.

use orbitkv_wire::identity::{BlockHash, GroupId};

use super::*;
use crate::admission::Pool;
use crate::key::NamespaceId;
use crate::slab::SlotId;

fn key(number: u8) -> StateKey {
    StateKey { namespace: NamespaceId(0), group: GroupId(0), block: BlockHash([number; 32]) }
}

fn reservation(pool: &Pool, connection: u64, number: u8) -> Reservation {
    Reservation {
        connection: ConnectionId(connection),
        key: key(number),
        hash: KeyHash(0),
        bytes: 100,
        slot: Slot { id: SlotId(u32::from(number)), offset: 0, bytes: 4096 },
        permit: pool.take(4096).expect("the pool is large"),
    }
}

#[test]
fn a_reservation_ends_once_by_its_owner_and_gives_its_permit_back() {
    let pool = Pool::new("test", 1 << 20);
    let mut table = Reservations::new(ShardIndex(3));
    let first = table.insert(reservation(&pool, 1, 1));
    let second = table.insert(reservation(&pool, 2, 1));
    assert_eq!((first.shard(), second.shard()), (ShardIndex(3), ShardIndex(3)));
    assert_ne!(first, second);
    assert!(table.take(first, ConnectionId(2)).is_none());
    assert_eq!(table.take(first, ConnectionId(1)).expect("its owner").bytes, 100);
    assert!(table.take(first, ConnectionId(1)).is_none());
    assert!(table.is_being_saved(&key(1)), "by the other");
    assert!(table.take(second, ConnectionId(2)).is_some());
    assert!(!table.is_being_saved(&key(1)));
    assert_eq!((table.len(), table.is_empty(), table.bytes(), pool.in_use()), (0, true, 0, 0));
}

#[test]
fn a_dead_connection_loses_its_reservations_and_no_others() {
    let pool = Pool::new("test", 1 << 20);
    let mut table = Reservations::new(ShardIndex(0));
    for (connection, number) in [(1, 1), (2, 2), (1, 3), (1, 2)] {
        table.insert(reservation(&pool, connection, number));
    }
    let taken: Vec<u8> =
        table.take_all(ConnectionId(1)).iter().map(|reservation| reservation.key.block.0[0]).collect();
    assert_eq!(taken, [1, 3, 2], "in the order in which they were made");
    assert_eq!((table.len(), table.bytes(), pool.in_use()), (1, 4096, 4096));
    assert!(table.is_being_saved(&key(2)) && !table.is_being_saved(&key(1)));
    assert!(table.take_all(ConnectionId(7)).is_empty());
}
