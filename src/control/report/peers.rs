//! What one shard says about its peers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::control::routes::{PlanningReport, RouteRow};
use crate::control::sources::SourceReport;
use crate::control::zones::ZonesReport;

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
    /// Sessions that a source refused because it is another life than was asked, counter.
    pub sessions_superseded: u64,
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
    /// What the last calls to each shard of a peer look like.
    pub sources: Vec<SourceReport>,
    /// Whose zone is asked first.
    pub zones: ZonesReport,
    /// QUIC connections, closing ones included.
    pub connections: u64,
    /// Datagrams received, counter.
    pub datagrams_received: u64,
    /// Datagrams dropped because nobody known sent them, counter.
    pub datagrams_dropped: u64,
    /// QUIC packets to peers, and how many were lost.
    pub packets: PacketsReport,
    /// Handshakes with peers, by how they ended.
    pub handshakes: HandshakesReport,
    /// Turns in which a handshake was worked on, counter.
    pub handshake_turns: u64,
}

/// QUIC packets of all connections that a core has or had with peers, counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PacketsReport {
    /// Sent, handshakes included.
    pub sent: u64,
    /// Of those, declared lost: what they carried was sent again.
    pub lost: u64,
    /// Times that a connection sent less at once because its path seemed full: packets were lost, or marked.
    pub congestion_events: u64,
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
    /// Blocks that peers asked for the first time, the second and the third, here or elsewhere, counters.
    pub asked: [u64; 3],
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
    /// What this core may send to peers over the network in bytes a second; 0 is as fast as the line takes it.
    pub egress_rate: u64,
    /// Bytes given to the network, counter.
    pub egress_bytes: u64,
    /// Bytes that wait to be.
    pub egress_waiting_bytes: u64,
    /// Microseconds in which bytes waited for the rate alone, counter.
    pub egress_paced_us: u64,
    /// Pieces that went before others because they had waited too long, counter.
    pub egress_aged: u64,
    /// Of the blocks refused as busy, those that would not have been sent in time: due within 100 ms, counter.
    pub egress_refused_urgent: u64,
    /// The same, due within a second.
    pub egress_refused_soon: u64,
    /// The same, due later.
    pub egress_refused_later: u64,
}

impl LendingReport {
    /// Blocks that would not have been sent in time.
    #[must_use]
    pub fn egress_refused(&self) -> u64 {
        self.egress_refused_urgent + self.egress_refused_soon + self.egress_refused_later
    }
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
    /// Blocks that engines waited for when their time was over, by the step that had used most of it.
    pub out_of_time: StepsReport,
    /// Blocks that were asked for elsewhere because their source had not answered in their share of the time for that.
    pub left_silent: u64,
    /// Fetches given up while their bytes came.
    pub transfers_left: u64,
    /// Cancelled requests whose peer ended them when it was told.
    pub cancels_confirmed: u64,
    /// Those that had to be told again.
    pub cancels_repeated: u64,
    /// Those that only the end of the connection ended.
    pub cancels_closed: u64,
    /// What was there of what the inventories of peers had told.
    pub references: ReferencesReport,
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
    /// Requests to peers, each for as many blocks as waited for the same peer.
    pub operations: u64,
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
    /// What may be asked for over the network in bytes a second; 0 is as fast as peers answer.
    pub receive_rate: u64,
    /// Payload bytes that may be asked for and not come at a time.
    pub window_bytes: u64,
    /// Payload bytes that are asked for and may still come, wanted or not, a level.
    pub outstanding_bytes: u64,
    /// Payload bytes that wait to be asked for, a level.
    pub queued_bytes: u64,
    /// Payload bytes that nobody wants any more and that may still come, a level.
    pub draining_bytes: u64,
    /// Microseconds in which something waited to be asked for because of the rate alone.
    pub paced_us: u64,
    /// Blocks that an engine waits for, given up as busy because as many were to be brought as may be.
    pub shed_demand_length: u64,
    /// Blocks that nobody waits for, given up because half as many were.
    pub shed_background_length: u64,
    /// Blocks that nobody waits for, given up because what engines wait for had waited too long.
    pub shed_background_age: u64,
}

/// Steps of bringing a block from a peer, counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepsReport {
    /// Nobody was asked yet: for want of a route, a connection, or room in this node's own window or rate.
    pub wait: u64,
    /// The peer had not answered.
    pub authorize: u64,
    /// It had granted the block, and its bytes had not begun to come.
    pub prepare: u64,
    /// They came.
    pub transfer: u64,
    /// They were checked and shown.
    pub install: u64,
}

/// Residences that peers had told of and that were asked for, counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReferencesReport {
    /// Their bytes began to come.
    pub found: u64,
    /// They had ended.
    pub range_ended: u64,
    /// They were of a life that was over.
    pub superseded: u64,
    /// They never were.
    pub never_held: u64,
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
