//! Reservations of one shard: slots that engines are filling and have not published yet.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;
use orbitkv_wire::identity::{KeyHash, ShardIndex};

use crate::admission::Permit;
use crate::key::StateKey;
use crate::leases::ConnectionId;
use crate::slab::Slot;

/// Number of a reservation: the shard in the top 16 bits, a counter below. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReservationId(pub u64);

const COUNTER_BITS: u32 = 48;

impl ReservationId {
    /// The shard that made the reservation.
    #[must_use]
    pub fn shard(self) -> ShardIndex {
        ShardIndex((self.0 >> COUNTER_BITS) as u16)
    }
}

/// One slot in an engine's hands.
#[derive(Debug)]
pub struct Reservation {
    /// Whose it is.
    pub connection: ConnectionId,
    /// What it is for.
    pub key: StateKey,
    /// The key's placement hash.
    pub hash: KeyHash,
    /// Payload bytes.
    pub bytes: u64,
    /// Where they go.
    pub slot: Slot,
    /// The share of the reservation pool that it holds.
    pub permit: Permit,
}

/// The table.
pub struct Reservations {
    shard: ShardIndex,
    next: u64,
    live: BTreeMap<ReservationId, Reservation>,
    saving: HashMap<StateKey, u32>,
    /// Reservations of a connection, so that its end looks at no others.
    owned: HashMap<ConnectionId, BTreeSet<ReservationId>>,
    bytes: u64,
}

impl Reservations {
    /// An empty table of `shard`.
    #[must_use]
    pub fn new(shard: ShardIndex) -> Reservations {
        Reservations {
            shard,
            next: 1,
            live: BTreeMap::new(),
            saving: HashMap::new(),
            owned: HashMap::new(),
            bytes: 0,
        }
    }

    /// Whether some connection holds a slot for `key`.
    #[must_use]
    pub fn is_being_saved(&self, key: &StateKey) -> bool {
        self.saving.contains_key(key)
    }

    /// Adds a reservation.
    pub fn insert(&mut self, reservation: Reservation) -> ReservationId {
        assert!(self.next < 1 << COUNTER_BITS, "2^48 reservations outlast any process");
        let id = ReservationId(u64::from(self.shard.0) << COUNTER_BITS | self.next);
        self.next += 1;
        *self.saving.entry(reservation.key).or_insert(0) += 1;
        self.owned.entry(reservation.connection).or_default().insert(id);
        self.bytes += reservation.slot.bytes;
        self.live.insert(id, reservation);
        id
    }

    /// Ends a reservation of `connection`; `None` if it is not a live one of that connection.
    pub fn take(&mut self, id: ReservationId, connection: ConnectionId) -> Option<Reservation> {
        if self.live.get(&id)?.connection != connection {
            return None;
        }
        Some(self.remove(id))
    }

    fn remove(&mut self, id: ReservationId) -> Reservation {
        let reservation = self.live.remove(&id).expect("only live reservations are removed");
        let savers = self.saving.get_mut(&reservation.key).expect("every reservation is counted by key");
        *savers -= 1;
        if *savers == 0 {
            self.saving.remove(&reservation.key);
        }
        let owned = self.owned.get_mut(&reservation.connection).expect("every reservation has an owner");
        assert!(owned.remove(&id), "every reservation is with its owner");
        if owned.is_empty() {
            self.owned.remove(&reservation.connection);
        }
        self.bytes -= reservation.slot.bytes;
        reservation
    }

    /// Ends every reservation of a connection.
    pub fn take_all(&mut self, connection: ConnectionId) -> Vec<Reservation> {
        let ids = self.owned.get(&connection).cloned().unwrap_or_default();
        ids.into_iter().map(|id| self.remove(id)).collect()
    }

    /// Whether the connection has any.
    #[must_use]
    pub fn has_any(&self, connection: ConnectionId) -> bool {
        self.owned.contains_key(&connection)
    }

    /// Reservations now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// Slot bytes in engines' hands now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests;
