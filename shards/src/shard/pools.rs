//! The bulkhead of a shard: what work of each class may have at once, and what was refused for it.
//!
//! Two rows of pools stand side by side, one of bytes of the arena slice and one of commands that wait. Whatever gives
//! something back or keeps the node known ([`Class::Control`]: Commit, Abort, Release, Cancel, the end of a connection,
//! what peers acknowledge or release, membership) asks none of them, so that it goes on however full all of them are.

use super::ShardSettings;
use crate::admission::Pool;
use crate::resilience::bulkhead::{Account, Class};

/// Share of a slice that engines may hold unpublished, over all connections: half, so that recoveries find slots too.
const SAVES_SHARE: u64 = 2;

/// Share of a slice that is lent to other nodes at most: a quarter (chapter 3.2).
const LENT_SHARE: u64 = 4;

/// The pools of one shard.
pub(super) struct ShardPools {
    /// Slot bytes that engines hold unpublished.
    pub saves: Pool,
    /// Slot bytes that other nodes may read.
    pub lent: Pool,
    /// Slot bytes of what is brought ahead of demand and was not acquired.
    pub ahead: Pool,
    /// Acquires that wait for the SSD alone, Syncs and Clears.
    pub device_waits: Pool,
    /// Acquires that wait for other nodes, whatever else they wait for.
    pub peer_waits: Pool,
}

/// What one pool of a shard has, and what has happened in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolFigures {
    /// Its class and its unit.
    pub name: &'static str,
    /// Whose it is.
    pub class: Class,
    /// The rest.
    pub account: Account,
}

impl ShardSettings {
    /// Slot bytes of a slice that engines may hold unpublished.
    #[must_use]
    pub const fn reserved_bytes_max(slice_bytes: u64) -> u64 {
        slice_bytes / SAVES_SHARE
    }

    /// Slot bytes of a slice that other nodes may have pinned.
    #[must_use]
    pub const fn lent_bytes_max(slice_bytes: u64) -> u64 {
        slice_bytes / LENT_SHARE
    }
}

impl ShardPools {
    pub fn new(settings: &ShardSettings) -> ShardPools {
        let [saves, lent, ahead] = Pool::side_by_side([
            ("dram_bytes", settings.reserved_bytes_max),
            ("peer_bytes", settings.lent_bytes_max),
            ("background_bytes", settings.prefetch.bytes_max),
        ]);
        let [device_waits, peer_waits] = Pool::side_by_side([
            ("ssd_waits", settings.waiting_max),
            ("peer_waits", settings.waiting_for_peers_max),
        ]);
        ShardPools { saves, lent, ahead, device_waits, peer_waits }
    }

    /// Commands that wait: now, and most ever, at which both pools may not have been at once.
    pub fn waiting(&self) -> [u64; 2] {
        let both = [&self.device_waits, &self.peer_waits];
        [both.map(Pool::in_use).iter().sum(), both.map(Pool::peak).iter().sum()]
    }

    pub fn figures(&self) -> [PoolFigures; 5] {
        [
            (&self.saves, Class::Dram),
            (&self.lent, Class::Peer),
            (&self.ahead, Class::Background),
            (&self.device_waits, Class::Ssd),
            (&self.peer_waits, Class::Peer),
        ]
        .map(|(pool, class)| PoolFigures { name: pool.name(), class, account: pool.account() })
    }
}
