//! What `/cache/metadata` says of engines' claims on a node, summed over its shards.

use orbitkv::control::metadata::MetadataPage;

/// Everything engines can hold, in counts and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub connections: u64,
    pub requests_in_flight: u64,
    pub reservations: u64,
    pub leases: u64,
    pub holds: u64,
    pub waiting: u64,
    pub reserved_bytes: u64,
    pub leased_bytes: u64,
}

impl Held {
    pub fn of(page: &MetadataPage) -> Held {
        page.shards.iter().fold(Held::default(), |sum, shard| Held {
            connections: sum.connections + shard.engine.connections,
            requests_in_flight: sum.requests_in_flight + shard.engine.requests_in_flight,
            reservations: sum.reservations + shard.engine.reservations,
            leases: sum.leases + shard.engine.leases,
            holds: sum.holds + shard.engine.holds,
            waiting: sum.waiting + shard.engine.waiting,
            reserved_bytes: sum.reserved_bytes + shard.arena.reserved_bytes,
            leased_bytes: sum.leased_bytes + shard.arena.leased_bytes,
        })
    }

    /// Whether no engine has any claim; connections aside.
    pub fn is_nothing(&self) -> bool {
        Held { connections: 0, ..*self } == Held::default()
    }
}
