//! What a shard can say about itself: counters and levels, as plain numbers.

use std::time::Duration;

use orbitkv_wire::identity::{Incarnation, Sequence, ShardIndex};

use super::{DeviceStanding, PoolFigures, Shard};
use crate::segment_log::{LogState, OffReason};

/// Counters of a shard's life. Names say what is counted; none ever goes down but the levels of
/// residents and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // Each name is its own description; units are in the suffix.
pub struct Counters {
    pub queries: u64,
    pub hits_dram: u64,
    pub hits_ssd: u64,
    pub hits_peer_dram: u64,
    pub hits_peer_ssd: u64,
    pub misses: u64,
    pub acquires_busy: u64,
    /// Blocks that came whole and right, from a peer or the SSD, and that nothing refers to: their entry has ended
    /// meanwhile, or is of other bytes. Their slot is free at once.
    pub orphans: u64,
    pub slots_reserved: u64,
    pub saves_committed: u64,
    pub saved_bytes: u64,
    pub saves_draining: u64,
    pub saves_present: u64,
    pub saves_being_saved: u64,
    pub saves_busy: u64,
    pub saves_too_large: u64,
    pub saves_lost_race: u64,
    pub dram_residents: u64,
    pub dram_bytes: u64,
    pub dram_evictions: u64,
    pub ssd_residents: u64,
    pub ssd_bytes: u64,
    pub ssd_evictions: u64,
    pub ssd_moves: u64,
    pub ssd_reads: u64,
    pub ssd_read_errors: u64,
    pub ssd_write_errors: u64,
    pub checksum_failures: u64,
    pub lost_writes: u64,
    pub audited: u64,
    pub write_backs_done: u64,
    pub write_backs_given_up: u64,
    pub write_queue_peak: u64,
    /// Blocks of a Prefetch that were taken; each ends as one of those down to `prefetch_failed`.
    pub prefetch_taken: u64,
    pub prefetch_arrived: u64,
    pub prefetch_met: u64,
    pub prefetch_missing: u64,
    pub prefetch_no_room: u64,
    pub prefetch_expired: u64,
    pub prefetch_cancelled: u64,
    pub prefetch_yielded: u64,
    pub prefetch_failed: u64,
    /// Blocks of a Prefetch that were refused at once.
    pub prefetch_full: u64,
    pub prefetch_refused_room: u64,
    /// Blocks brought ahead that an Acquire found in DRAM in time, and those that none did.
    pub prefetch_used: u64,
    pub prefetch_unused: u64,
    /// Blocks for which there was no slot because their namespace had used up its rate, and their payload bytes.
    pub throttled_saves: u64,
    pub throttled_save_bytes: u64,
    pub throttled_acquires: u64,
    pub throttled_acquire_bytes: u64,
    pub throttled_prefetches: u64,
    pub throttled_prefetch_bytes: u64,
    /// Payload bytes in DRAM of blocks that peers have sent, now.
    pub fetched_bytes: u64,
    /// Blocks of peers that an Acquire found in DRAM again.
    pub fetched_reused: u64,
    /// Blocks of our own that left DRAM although one of a peer could have.
    pub fetched_kept: u64,
    /// Blocks of peers that left DRAM to make room, or with their last user.
    pub fetched_dropped: u64,
}

/// State of the SSD tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SsdFigures {
    /// Why the tier takes nothing any more; `None` while it works.
    pub off: Option<OffReason>,
    /// Bytes of the shard's part of the file.
    pub capacity_bytes: u64,
    /// Bytes of live blocks, padded to pages.
    pub live_bytes: u64,
    /// Bytes that can be written without reclaiming anything.
    pub free_bytes: u64,
    /// Bytes retired because what was read there proved wrong.
    pub quarantined_bytes: u64,
    /// Whether its device is left alone.
    pub device: DeviceStanding,
}

/// One shard's figures at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figures {
    /// The shard.
    pub shard: ShardIndex,
    /// The life it serves.
    pub incarnation: Incarnation,
    /// Whether every resident has been put in that life.
    pub is_settled: bool,
    /// Counters.
    pub counters: Counters,
    /// Journal head.
    pub head: Sequence,
    /// Oldest sequence the journal still has.
    pub oldest: Sequence,
    /// Journal bytes: now, most ever, bound.
    pub journal_bytes: [u64; 3],
    /// Bytes of the arena slice.
    pub arena_bytes: u64,
    /// Bytes of allocated slots.
    pub allocated_bytes: u64,
    /// Slot bytes in engines' hands: now, most ever.
    pub reserved_bytes: [u64; 2],
    /// Reservations.
    pub reservations: u64,
    /// Leases, holds included.
    pub leases: u64,
    /// Holds.
    pub holds: u64,
    /// Holds that ended by time.
    pub holds_expired: u64,
    /// Slot bytes under leases; a block under two leases counts twice.
    pub leased_bytes: u64,
    /// Pins of leases.
    pub leased_blocks: u64,
    /// Slot bytes of copies that anything uses.
    pub pinned_bytes: u64,
    /// Pins of blocks that other nodes read.
    pub grant_pins: u64,
    /// Acquires, Syncs and Clears that wait: now, and no fewer than the most ever.
    pub waiting: [u64; 2],
    /// What each class of work may have at once, has, and was refused.
    pub pools: [PoolFigures; 5],
    /// Write-backs that wait.
    pub write_backs_queued: u64,
    /// Write-backs and moves that the device has.
    pub write_backs_in_flight: u64,
    /// Device operations under way.
    pub transfers: u64,
    /// Slot bytes of blocks that are brought ahead, or were and are not acquired yet.
    pub prefetch_bytes: u64,
    /// Blocks wanted ahead that have not come.
    pub prefetch_waiting: u64,
    /// Namespaces with something in them.
    pub namespaces: u64,
    /// How long the audit has read no block; none if it has nothing to read.
    pub audit_age: Option<Duration>,
    /// How long nothing of the segment that is being emptied was moved or dropped; none if none is.
    pub reclaim_age: Option<Duration>,
    /// SSD tier, if there is one.
    pub ssd: Option<SsdFigures>,
}

impl Shard {
    /// Device operations under way.
    #[must_use]
    pub fn transfers(&self) -> usize {
        self.transfers.len()
    }

    /// Its figures now.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let slab = self.slab.accounting();
        Figures {
            shard: self.settings.shard,
            incarnation: self.settings.incarnation,
            is_settled: self.is_settled(),
            counters: self.counters,
            head: self.journal.head(),
            oldest: self.journal.oldest(),
            journal_bytes: [
                self.journal.bytes_used() as u64,
                self.journal.bytes_peak() as u64,
                self.journal.capacity_bytes() as u64,
            ],
            arena_bytes: slab.capacity_bytes,
            allocated_bytes: slab.allocated_bytes,
            reserved_bytes: [self.pools.saves.in_use(), self.pools.saves.peak()],
            reservations: self.reservations.len() as u64,
            leases: self.leases.len() as u64,
            holds: self.leases.holds() as u64,
            holds_expired: self.leases.holds_expired(),
            leased_bytes: self.leases.bytes(),
            leased_blocks: self.leases.blocks(),
            pinned_bytes: self.residents.pinned_bytes(),
            grant_pins: self.pins() as u64,
            waiting: self.pools.waiting(),
            pools: self.pools.figures(),
            write_backs_queued: self.write_queue.len() as u64,
            write_backs_in_flight: self.writes_in_flight as u64,
            transfers: self.transfers.len() as u64,
            prefetch_bytes: self.prefetches.charged_bytes(),
            prefetch_waiting: self.prefetches.wishes.len() as u64,
            namespaces: self.namespaces.iter().filter(|(_, _, residents)| *residents > 0).count() as u64,
            audit_age: self.audit_age(),
            reclaim_age: (!self.reclaims.is_empty()).then(|| self.now.since(self.reclaim_progressed)),
            ssd: self.log.as_ref().map(|log| {
                let accounting = log.accounting();
                SsdFigures {
                    off: match log.state() {
                        LogState::On => None,
                        LogState::Off(reason) => Some(reason),
                    },
                    capacity_bytes: accounting.capacity_bytes,
                    live_bytes: accounting.shares.live_bytes,
                    free_bytes: accounting.shares.free_bytes + accounting.shares.unwritten_bytes,
                    quarantined_bytes: accounting.shares.quarantined_bytes,
                    device: self.device_standing(),
                }
            }),
        }
    }
}
