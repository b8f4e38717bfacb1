//! What one shard says about itself, as plain integers: the one source of `/metrics`, `/cache/metadata`
//! and `orbitkv doctor`.
//!
//! Counters (`*_total` in `/metrics`) grow for the life of the process; everything else is a level.
//! Unknown fields are ignored and missing ones read as zero, so a client of another version still works.

use std::collections::BTreeMap;

use orbitkv_shards::coverage::CoreCoverage;
use serde::{Deserialize, Serialize};

use super::routes::{PlanningReport, RouteRow};

/// Levels and counters of one shard at one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShardReport {
    /// Which shard, from 0.
    pub shard: u16,
    /// Registration life these sequences belong to, as UUID text.
    pub incarnation: String,
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
    /// Engines and what they hold.
    pub engine: EngineReport,
    /// Saves and lookups, counters.
    pub service: ServiceReport,
    /// Most that was ever waiting, since start.
    pub queue_peaks: QueuePeaks,
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
    /// Blocks that engines announced.
    pub prefetch: PrefetchReport,
    /// Blocks that peers have sent.
    pub retention: RetentionReport,
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
}

/// A core's part in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeersReport {
    /// Sessions in which peers subscribe to this core.
    pub sessions_served: u64,
    /// Of those, past their snapshot.
    pub sessions_following: u64,
    /// Sessions in which this core subscribes to peers.
    pub sessions_received: u64,
    /// Rows of the index partition, hidden and retired ones included.
    pub index_rows: u64,
    /// Of those, rows of views that are gone and not swept yet.
    pub index_retired_rows: u64,
    /// Bytes charged to the index.
    pub index_bytes: u64,
    /// Most ever.
    pub index_bytes_peak: u64,
    /// Bytes allowed.
    pub index_budget_bytes: u64,
    /// Journal records read for peers, before coalescing, counter.
    pub records_read: u64,
    /// Records left of them after coalescing, counter.
    pub records_coalesced: u64,
    /// Inventory frames sent, counters.
    pub frames_sent: PeerFrames,
    /// Of those, deltas.
    pub deltas_sent: PeerFrames,
    /// Of those, snapshot pages.
    pub pages_sent: PeerFrames,
    /// Of the deltas, bytes of replays, counter.
    pub replay_bytes_sent: u64,
    /// Bytes of frames built and not consumed.
    pub queue_bytes: u64,
    /// Most ever.
    pub queue_bytes_peak: u64,
    /// Records by which the rearmost acknowledged view is behind the journal.
    pub lag_records_max: u64,
    /// Time that changes waited for others on purpose, in microseconds, counter.
    pub intentional_wait_us: u64,
    /// Longest such wait.
    pub intentional_wait_us_max: u64,
    /// Inventory frames received, counters.
    pub frames_received: PeerFrames,
    /// Changes applied to installed views, counter.
    pub changes_applied: u64,
    /// Changes applied to stagings, counter.
    pub changes_staged: u64,
    /// Sessions opened, counter.
    pub sessions_opened: u64,
    /// Sessions that ended from elsewhere, counter.
    pub sessions_lost: u64,
    /// Views that went on after a reconnect, counter.
    pub sessions_resumed: u64,
    /// Snapshots installed, counter.
    pub snapshots_installed: u64,
    /// Offers refused because the index had no room, counter.
    pub snapshots_refused: u64,
    /// Views given up to make room for their successors, counter.
    pub views_withdrawn: u64,
    /// Owner streams excluded because their source left or was replaced, counter.
    pub streams_excluded: u64,
    /// Longest time to a first view in microseconds.
    pub bootstrap_us_max: u64,
    /// Longest time from a reset to the next view in microseconds.
    pub repair_us_max: u64,
    /// Sessions that peers asked for and this core refused, by cause, counters.
    pub sessions_refused: BTreeMap<String, u64>,
    /// Resets that sources asked for, by cause, counters.
    pub resets: BTreeMap<String, u64>,
    /// Sessions closed because a requester broke the protocol, counter.
    pub protocol_errors: u64,
    /// What this core lends to peers.
    pub lending: LendingReport,
    /// What it fetches from them.
    pub fetching: FetchingReport,
    /// How it is chosen who is asked.
    pub planning: PlanningReport,
    /// The latest batches of that; a page of their own.
    #[serde(skip)]
    pub routes: Vec<RouteRow>,
    /// Shards of peers that this core leaves alone, or has.
    pub breakers: Vec<BreakerReport>,
    /// QUIC connections, closing ones included.
    pub connections: u64,
    /// Datagrams received, counter.
    pub datagrams_received: u64,
    /// Datagrams dropped because nobody known sent them, counter.
    pub datagrams_dropped: u64,
    /// Handshakes with peers, by how they ended.
    pub handshakes: HandshakesReport,
    /// Turns in which a handshake was worked on, counter.
    pub handshake_turns: u64,
}

/// Handshakes of a core, begun by either end, counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HandshakesReport {
    /// Completed: each end holds the key that its member record publishes.
    pub completed: u64,
    /// Ended otherwise, for whatever reason.
    pub failed: u64,
    /// Of those, with a peer that showed another key than the member record of its address.
    pub wrong_keys: u64,
    /// Of those, with a peer that showed the right key and does not hold it.
    pub wrong_signatures: u64,
}

/// Grants of a shard. Each answer is another signal (chapter 3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LendingReport {
    /// Connections on which it lends.
    pub connections: u64,
    /// Operations now, those that only wait to drain included.
    pub operations: u64,
    /// Blocks pinned now.
    pub pins: u64,
    /// Slot bytes of those.
    pub pinned_bytes: u64,
    /// Of those, bytes that cannot be proved free.
    pub quarantined_bytes: u64,
    /// Nodes of this host that read in this core's arena.
    pub readers: u64,
    /// Who wanted to and was another user's or could not prove itself, counter.
    pub readers_refused: u64,
    /// Blocks granted, counter.
    pub granted: u64,
    /// Payload bytes lent, counter.
    pub lent_bytes: u64,
    /// Of those, bytes that were read over shared memory, counter.
    pub lent_shm_bytes: u64,
    /// Operations of which bytes came into quarantine, counter.
    pub quarantines: u64,
    /// Blocks that had ended, counter.
    pub ended: u64,
    /// Blocks that never were here, counter.
    pub never_held: u64,
    /// Of a sequence beyond the journal's head, counter: an alarm.
    pub beyond_head: u64,
    /// Blocks refused for want of pins or bytes, counter.
    pub busy: u64,
    /// Requests to another life of this node, counter.
    pub stale_epoch: u64,
    /// Requests while this node might not serve, counter.
    pub lease_expired: u64,
    /// Requests with a used number, counter.
    pub repeated: u64,
    /// Requests for somebody else, counter.
    pub misdirected: u64,
    /// Granted blocks whose bytes could not be read, counter.
    pub failed: u64,
    /// Operations that ended by time, counter.
    pub expired: u64,
    /// Operations that were cancelled, counter.
    pub cancelled: u64,
    /// Operations that ended with a connection, a member or our lease, counter.
    pub cut_off: u64,
}

/// Fetches of a core from peers, counters unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FetchingReport {
    /// Connections on which it fetches, a level.
    pub connections: u64,
    /// Fetches begun.
    pub begun: u64,
    /// Blocks brought.
    pub fetched: u64,
    /// Payload bytes of those.
    pub bytes: u64,
    /// Of the blocks: read over shared memory.
    pub fetched_shm: u64,
    /// Payload bytes of those.
    pub shm_bytes: u64,
    /// Blocks that were to be read over shared memory and were not, or not in time.
    pub unread: u64,
    /// Payload bytes that came for nothing.
    pub wasted_bytes: u64,
    /// Fetches that found nobody with the block.
    pub missing: u64,
    /// Fetches that found everybody busy.
    pub busy: u64,
    /// Fetches of wrong bytes.
    pub corrupt: u64,
    /// Fetches whose deadline passed.
    pub deadline: u64,
    /// Fetches that went on with another source.
    pub rerouted: u64,
    /// Payloads without the checksum their source told: never shown.
    pub wrong_checksums: u64,
    /// Residences that had ended at their source when they were asked for: the index was behind.
    pub range_ended: u64,
    /// Answers of another life.
    pub stale_epoch: u64,
    /// Answers of sources that no longer share memory with this node.
    pub transport_off: u64,
    /// Answers of a source whose lease had expired.
    pub lease_expired: u64,
    /// Dials that failed.
    pub dials_failed: u64,
    /// Connections closed because a source broke the protocol.
    pub violations: u64,
    /// Blocks asked for.
    pub first_asks: u64,
    /// Blocks asked for again after a call had failed, or was answered that they cannot be read.
    pub extra_asks: u64,
    /// Blocks that were not, because there had been too many.
    pub extra_asks_refused: u64,
    /// Calls that were answered.
    pub calls_answered: u64,
    /// Calls that failed or took too long.
    pub calls_failed: u64,
    /// Times a peer was left alone from then on.
    pub breaker_opens: u64,
    /// Calls that tried whether such a peer answers.
    pub breaker_probes: u64,
    /// Routes passed over because their peer is left alone.
    pub breaker_refusals: u64,
}

/// Whether a core asks a shard of a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BreakerReport {
    /// The peer.
    pub node_id: String,
    /// Its shard.
    pub shard: u16,
    /// `closed`: it is asked; `half-open`: one call tries it; `open`: it is left alone.
    pub state: String,
    /// How often it was left alone, counter.
    pub opens: u64,
}

/// Frames of one kind, counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerFrames {
    /// How many.
    pub frames: u64,
    /// How many bytes, headers included.
    pub bytes: u64,
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
