//! What one shard says about itself, as plain integers: the one source of `/metrics`, `/cache/metadata`
//! and `orbitkv doctor`.
//!
//! Counters (`*_total` in `/metrics`) grow for the life of the process; everything else is a level.
//! Unknown fields are ignored and missing ones read as zero, so a client of another version still works.

mod peers;

use orbitkv_shards::coverage::CoreCoverage;
use serde::{Deserialize, Serialize};

use crate::core::report::{DURATION_BOUNDS_NS, Durations};

pub use peers::{
    BreakerReport, FetchingReport, HandshakesReport, LendingReport, PacketsReport, PeerFrames, PeersReport,
    ReferencesReport, StepsReport,
};

/// Levels and counters of one shard at one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShardReport {
    /// Which shard, from 0.
    pub shard: u16,
    /// Registration life these sequences belong to, as UUID text.
    pub incarnation: String,
    /// Version of the settings that hold on this core; 0 is what the flags say.
    pub config_version: u64,
    /// Residents on each medium.
    pub residents: PerMedium,
    /// Payload bytes of the residents on each medium.
    pub resident_bytes: PerMedium,
    /// Residences ended by eviction, counter.
    pub evictions: PerMedium,
    /// The journal.
    pub journal: JournalReport,
    /// The arena slice.
    pub arena: ArenaReport,
    /// The SSD slice.
    pub ssd: SsdReport,
    /// How long what goes on in the background has made no progress.
    pub jobs: JobsReport,
    /// Engines and what they hold.
    pub engine: EngineReport,
    /// Saves and lookups, counters.
    pub service: ServiceReport,
    /// Most that was ever waiting, since start.
    pub queue_peaks: QueuePeaks,
    /// What each class of work may have at once, has, and was refused.
    pub pools: Vec<PoolReport>,
    /// How long the core's turns took.
    pub turns: TurnReport,
    /// How far its owner streams are; what the page makes of it is the merge over all cores.
    #[serde(skip)]
    pub coverage: Option<CoreCoverage>,
    /// Its part in the cluster; none standalone.
    pub peers: Option<PeersReport>,
}

/// A figure for each medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PerMedium {
    /// Host memory.
    pub dram: u64,
    /// SSD.
    pub ssd: u64,
}

/// The journal of a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JournalReport {
    /// Sequence of the newest record; 0 before the first.
    pub head_sequence: u64,
    /// Sequence of the oldest record still held; 0 while empty.
    pub oldest_sequence: u64,
    /// Bytes of the records held.
    pub used_bytes: u64,
    /// Most bytes ever held.
    pub peak_bytes: u64,
    /// Bytes of the ring.
    pub capacity_bytes: u64,
}

/// The arena slice of a shard, in bytes. `leased` and `pinned` are parts of `allocated`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ArenaReport {
    /// The slice.
    pub capacity_bytes: u64,
    /// In slots of any kind, rounding of the slots included.
    pub allocated_bytes: u64,
    /// In slots reserved by an engine and not yet committed.
    pub reserved_bytes: u64,
    /// Under leases and holds of engines.
    pub leased_bytes: u64,
    /// Pinned by anything: leases, holds, write-backs, reads.
    pub pinned_bytes: u64,
}

/// A pool of a shard's bulkhead; all of one unit stand side by side, and none takes anything of another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolReport {
    /// Class and unit: `dram_bytes`, `peer_bytes`, `background_bytes`, `ssd_waits` or `peer_waits`.
    pub name: String,
    /// Class of work that it is for: `dram`, `ssd`, `peer` or `background`.
    pub class: String,
    /// Places there are.
    pub capacity: u64,
    /// Places taken now.
    pub taken: u64,
    /// Most ever taken at once.
    pub peak: u64,
    /// Times that more was asked for than was left, counter.
    pub refused: u64,
    /// Of those, how often one pool for all of the same unit would have had room, counter.
    pub refused_beside_idle: u64,
}

/// How long background jobs have made no progress, in milliseconds; none for a job that has nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobsReport {
    /// The audit: since a block on SSD was last read again.
    pub audit_age_ms: Option<u64>,
    /// Emptying a segment of the SSD: since a block of it was last moved or dropped.
    pub reclaim_age_ms: Option<u64>,
    /// Taking in a peer's inventory as a whole: since a page last came of the one that waits longest.
    pub bootstrap_age_ms: Option<u64>,
}

/// The SSD slice of a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SsdReport {
    /// Whether it serves.
    pub state: SsdState,
    /// Space of the slice in bytes.
    pub capacity_bytes: u64,
    /// Bytes of residents on it.
    pub live_bytes: u64,
    /// Bytes that can be written without cleaning.
    pub free_bytes: u64,
    /// Write-backs waiting.
    pub write_backs_queued: u64,
    /// Write-backs submitted and not completed.
    pub write_backs_in_flight: u64,
    /// Write-backs completed, counter.
    pub write_backs_done: u64,
    /// Write-backs that failed; their blocks stay in DRAM until evicted, counter.
    pub write_backs_failed: u64,
    /// Blocks read back, counter.
    pub reads: u64,
    /// Reads that failed or were short, counter.
    pub read_errors: u64,
    /// Blocks whose checksum was wrong at a read; each was a miss, counter.
    pub checksum_failures: u64,
    /// Blocks read again by the audit, counter.
    pub audited: u64,
    /// Accepted residences that nobody ended and that are not there, found by the audit or by whoever wanted them;
    /// each is in the log with its sequence. Counter.
    pub lost_writes: u64,
    /// Bytes never used again because a checksum in them was wrong.
    pub quarantined_bytes: u64,
    /// Whether the device is left alone.
    pub breaker: SsdBreakerReport,
}

/// The breaker in front of a shard's part of the SSD.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SsdBreakerReport {
    /// `closed`: the SSD is used; `half-open`: one operation tries it; `open`: it is left alone. Empty without an SSD.
    pub state: String,
    /// How often it was left alone, counter.
    pub opens: u64,
    /// Operations that tried it, counter.
    pub probes: u64,
    /// Blocks on SSD that were asked for and not read meanwhile, counter.
    pub barred: u64,
    /// Reads that took longer than `--ssd-read-budget`, counter.
    pub late_reads: u64,
}

/// Whether the SSD tier serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum SsdState {
    /// Not configured.
    #[default]
    Off,
    /// Serving.
    On,
    /// In trouble. But for a deleted file it is no longer written; residents on it are served while they can
    /// be read.
    Degraded {
        /// What kind of trouble it is: decides the remedy.
        fault: SsdFault,
        /// What was seen, in words.
        detail: String,
    },
}

/// Why an SSD tier is degraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SsdFault {
    /// The file system is full.
    DeviceFull,
    /// The file was unlinked under us.
    FileDeleted,
    /// Writes fail.
    WriteErrors,
    /// Reads fail.
    ReadErrors,
    /// Too many wrong checksums.
    WrongChecksums,
}

impl SsdFault {
    /// What a person reads.
    #[must_use]
    pub fn in_words(self) -> &'static str {
        match self {
            SsdFault::DeviceFull => "the file system is full",
            SsdFault::FileDeleted => "the SSD file was deleted",
            SsdFault::WriteErrors => "writes fail",
            SsdFault::ReadErrors => "reads fail",
            SsdFault::WrongChecksums => "too many wrong checksums",
        }
    }
}

/// Engines of a shard and what they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EngineReport {
    /// Connections served by this core.
    pub connections: u64,
    /// Requests taken and not answered.
    pub requests_in_flight: u64,
    /// Reservations not yet committed or aborted.
    pub reservations: u64,
    /// Leases not yet released, holds included.
    pub leases: u64,
    /// Of those, holds of queries.
    pub holds: u64,
    /// Holds that ended by time, counter.
    pub holds_expired: u64,
    /// Acquires, Syncs and Clears that wait.
    pub waiting: u64,
    /// Connections whose process was proved dead; without claims they may have been forgotten
    /// before, when their socket closed. Counter.
    pub process_deaths: u64,
    /// Extents of an earlier daemon that were refused, counter.
    pub stale_generation_rejections: u64,
    /// Frames that could not be understood, counter.
    pub malformed_frames: u64,
    /// Queries whose answer said that it leaves out owner streams, counter.
    pub queries_left_out: u64,
    /// Requests that came again and were answered as before, or told to wait, counter.
    pub repeats_suppressed: u64,
    /// Requests that came again when their answer had been forgotten, and were done again, counter.
    pub repeats_too_late: u64,
}

/// Saves and lookups of a shard, counters in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceReport {
    /// Queries worked.
    pub queries: u64,
    /// Blocks acquired, by the place they were found.
    pub hits: PerMedium,
    /// Blocks acquired from peers, by the place they were found there.
    pub peer_hits: PerMedium,
    /// Blocks asked for and found nowhere.
    pub misses: u64,
    /// Blocks that came whole and right, from a peer or the SSD, and that nothing refers to: they were saved or evicted
    /// meanwhile.
    pub orphans: u64,
    /// Blocks of an Acquire that were refused for want of room.
    pub acquires_busy: u64,
    /// Blocks committed.
    pub saves_committed: u64,
    /// Bytes of the blocks committed.
    pub saved_bytes: u64,
    /// Blocks offered that were resident already.
    pub saves_present: u64,
    /// Blocks committed after another engine's commit of the same key; the first one stays.
    pub saves_lost_race: u64,
    /// Blocks refused a slot, by reason.
    pub saves_refused: SaveRefusals,
    /// Blocks for which there was no slot because their namespace had used up its rate; parts of those refused for want of
    /// room.
    pub throttled: ThrottledReport,
    /// Blocks that engines announced.
    pub prefetch: PrefetchReport,
    /// Blocks that peers have sent.
    pub retention: RetentionReport,
}

/// What a rate of namespaces held back: counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ThrottledReport {
    /// Blocks that were not taken in.
    pub saves: u64,
    /// Payload bytes of those.
    pub save_bytes: u64,
    /// Blocks of an Acquire that were not read from SSD or brought from a peer.
    pub acquires: u64,
    /// Payload bytes of those.
    pub acquire_bytes: u64,
    /// Announced blocks that were not.
    pub prefetches: u64,
    /// Payload bytes of those.
    pub prefetch_bytes: u64,
}

/// Blocks that engines announced: counters but for the last two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PrefetchReport {
    /// Taken; each ends as one of the following, down to failed.
    pub taken: u64,
    /// Brought into DRAM.
    pub arrived: u64,
    /// Came there another way.
    pub met: u64,
    /// Nobody had them.
    pub missing: u64,
    /// No room that they may take.
    pub no_room: u64,
    /// Not begun by their deadline.
    pub expired: u64,
    /// Evicted, cleared, or wanted by no open connection any more.
    pub cancelled: u64,
    /// Given up because an engine that waits needed the room.
    pub yielded: u64,
    /// Not read, not sent, or wrong.
    pub failed: u64,
    /// Refused at once: as many are wanted as may be, or have all the room.
    pub refused: u64,
    /// Acquired after they were brought.
    pub used: u64,
    /// Left DRAM, or stayed there past their deadline, without.
    pub unused: u64,
    /// Slot bytes of those on their way or not acquired yet, now.
    pub bytes: u64,
    /// Wanted and not there, now.
    pub waiting: u64,
}

/// What became of blocks that peers have sent: counters but for the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RetentionReport {
    /// Acquired again while they were here.
    pub reused: u64,
    /// Times one stayed and a block of this node left in its place.
    pub kept: u64,
    /// Left DRAM to make room, or with their last user.
    pub dropped: u64,
    /// Payload bytes of those in DRAM, now.
    pub bytes: u64,
}

/// Why blocks were refused a slot, counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SaveRefusals {
    /// No room in the arena slice, or no permit.
    pub busy: u64,
    /// Larger than the arena slice can hold.
    pub too_large: u64,
    /// Another engine is saving the same block.
    pub being_saved: u64,
    /// The node is draining.
    pub draining: u64,
}

/// Most entries that ever waited in each bounded queue of a core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueuePeaks {
    /// Requests of one connection.
    pub connection_requests: u64,
    /// Mails of the request lane.
    pub mail_requests: u64,
    /// Mails of the reply lane.
    pub mail_replies: u64,
    /// Write-backs waiting.
    pub write_backs: u64,
    /// Requests on the SSD ring.
    pub ssd_requests: u64,
    /// Acquires, Syncs and Clears waiting.
    pub waiting: u64,
}

/// How long a core's turns took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TurnReport {
    /// Turns run, counter.
    pub turns: u64,
    /// Slices of one task that held the core for more than 100 µs, counter.
    pub stalls: u64,
    /// Longest slice in nanoseconds.
    pub slice_ns_max: u64,
    /// How long turns took.
    pub whole: DurationsReport,
    /// How long the peers' part of them took, where there was one.
    pub peers: DurationsReport,
}

/// How often something took how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DurationsReport {
    /// How many took at most as long as each of the bounds of `orbitkv_turn_seconds`, and longer than the one before; the
    /// last of them longer than all. Counters.
    pub counts: [u64; DURATION_BOUNDS_NS.len() + 1],
    /// All of them together in nanoseconds, counter.
    pub sum_ns: u64,
}

impl From<Durations> for DurationsReport {
    fn from(Durations { counts, sum_ns }: Durations) -> DurationsReport {
        DurationsReport { counts, sum_ns }
    }
}

/// A namespace and the model it stands for; one row of `/cache/namespaces`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamespaceRow {
    /// `orbitkv:v2:` and 64 hex digits.
    pub namespace: String,
    /// Kind of engine.
    pub engine: String,
    /// Model.
    pub model: String,
    /// Revision of the weights.
    pub weights_revision: String,
    /// Adapter; empty for none.
    pub adapter: String,
    /// Element type.
    pub dtype: String,
    /// Memory layout of a block.
    pub layout: String,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Rank the bytes belong to, or what says that they are rank-invariant.
    pub rank: String,
    /// Layer groups.
    pub groups: u32,
}
