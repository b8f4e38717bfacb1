//! What one shard may lend, and to whom it belongs.

use std::time::Duration;

use orbitkv_wire::bounds::{GRANT_MS_MAX, MEMBERS_MAX, REQUESTER_BYTES_MAX, REQUESTER_PINS_MAX};
use orbitkv_wire::identity::{ClusterUuid, NodeId, ShardIndex};

use crate::flow::pacing::Rate;

/// Share of an arena slice that readers on the same host, who alone can leave anything in quarantine, hold
/// at most: a tenth (chapter 3.2).
const QUARANTINE_SHARE: u64 = 10;

/// Milliseconds after which a refused requester may try again: about what a full egress of 256 MiB takes.
const RETRY_AFTER_MS: u32 = 100;

/// Bounds and identity of one shard's grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantSettings {
    /// The cluster.
    pub cluster: ClusterUuid,
    /// The node.
    pub node: NodeId,
    /// The shard.
    pub shard: ShardIndex,
    /// Pins of one node.
    pub pins_per_node_max: u64,
    /// Slot bytes of one node's pins.
    pub bytes_per_node_max: u64,
    /// Slot bytes of all pins for shared memory, so that no more can come into quarantine.
    pub shm_bytes_max: u64,
    /// Nodes that are served or have something of this shard.
    pub nodes_max: usize,
    /// How long a grant lasts at most.
    pub grant_time_max: Duration,
    /// What a requester is told to wait when it is refused.
    pub retry_after_ms: u32,
    /// What this shard may send over the network; as fast as the line takes it if none.
    pub egress: Option<Rate>,
}

impl GrantSettings {
    /// The bounds of chapter 3.2 for a slice of `slice_bytes`, one of `shards`.
    ///
    /// # Panics
    /// If `shards` is 0.
    #[must_use]
    pub fn new(
        cluster: ClusterUuid,
        node: NodeId,
        shard: ShardIndex,
        shards: u16,
        slice_bytes: u64,
    ) -> GrantSettings {
        let split = |bound: u64| (bound / u64::from(shards)).max(1);
        GrantSettings {
            cluster,
            node,
            shard,
            pins_per_node_max: split(REQUESTER_PINS_MAX),
            bytes_per_node_max: split(REQUESTER_BYTES_MAX),
            shm_bytes_max: slice_bytes / QUARANTINE_SHARE,
            nodes_max: MEMBERS_MAX,
            grant_time_max: Duration::from_millis(u64::from(GRANT_MS_MAX)),
            retry_after_ms: RETRY_AFTER_MS,
            egress: None,
        }
    }
}
