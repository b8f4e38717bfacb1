//! Bounds of a core's part in the cluster: the node's, split over its shards (chapter 2.10).

use std::time::Duration;

use orbitkv_native::quic::{EndpointSettings, NodeKey, PurposeSettings};
use orbitkv_shards::flow::pacing::Rate;
use orbitkv_shards::index::IndexSettings;
use orbitkv_shards::inventory::publisher::{BoundsRefused, NodeBounds, PublisherSettings};
use orbitkv_shards::inventory::subscriber::SubscriberSettings;
use orbitkv_shards::journal::JournalSettings;
use orbitkv_shards::members::Local;
use orbitkv_shards::membership::RefreshPolicy;
use orbitkv_shards::planner::Mode;
use orbitkv_wire::scope::Scope;

use super::Peers;
use crate::settings::{ClusterSettings, NodeSettings, PeerGuard, PeerRates, Policy};

/// Sessions a core shares its windows out for: the design point of 64 nodes with as many shards each. More
/// find no room and are reported as missing coverage.
pub const SESSIONS_PLANNED: u64 = 64;

/// Receive window in bytes of a connection that a peer has begun: on it come only requests.
const ACCEPTED_WINDOW_BYTES: u32 = 16 * 1024;

/// Windows are shared out in steps of this many bytes.
const WINDOW_GRAIN_BYTES: u64 = 1_024;

/// Least receive budget of a shard in bytes, metadata and payload together: windows of 48 KiB, in which a
/// frame of hundreds of changes fits, and queues in which each subscriber's share holds two of the largest record.
pub const RECEIVE_SLICE_BYTES_MIN: u64 = 8 * 1024 * 1024;

/// Largest receive window of a payload connection in bytes: what is on its way on a fast network.
const PAYLOAD_WINDOW_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Payload connections that a core fetches on at once.
pub(super) const PAYLOAD_CONNECTIONS_PLANNED: u64 = 8;

/// Time whose worth of a core's egress rate a connection may have in the transport: what a reader that stood still lets
/// go at once, beside the rate.
const SEND_WINDOW_TIME: Duration = Duration::from_millis(100);

/// Least send window of a payload connection in bytes.
const SEND_WINDOW_BYTES_MIN: u64 = 256 * 1024;

/// The bounds do not fit together.
pub type SettingsRefused = BoundsRefused;

/// What the cores are told of the cluster at boot.
#[derive(Clone)]
pub struct PeersSettings {
    /// Name and shards of this node; the rest follows when it registers.
    pub local: Local,
    /// What it proves itself with.
    pub key: NodeKey,
    /// What it subscribes to.
    pub scope: Scope,
    /// The endpoint.
    pub endpoint: EndpointSettings,
    /// The source's end of inventory streams.
    pub publisher: PublisherSettings,
    /// The requester's end.
    pub subscriber: SubscriberSettings,
    /// The index partition.
    pub index: IndexSettings,
    /// A shard's slice of the arena in bytes.
    pub slice_bytes: u64,
    /// Payload bytes on their way that nobody waits for.
    pub background_bytes_max: u64,
    /// How it is chosen who is asked for a block.
    pub routing: Mode,
    /// How peers that fail are treated.
    pub guard: PeerGuard,
    /// Its zone; empty if it names none.
    pub zone: String,
    /// Checks in a row that the preferred zone misses before another one is.
    pub failover_checks: u32,
    /// How fast the node's payload may go; a core has its share.
    pub rates: PeerRates,
    /// Inventory sessions of a core in either direction.
    pub sessions_max: usize,
    /// What is read in etcd when a peer is not what it was taken for.
    pub refresh: RefreshPolicy,
    /// Samples of each kind a core has room for, for whoever measures visibility; 0 for none.
    pub visibility_samples: u32,
}

impl PeersSettings {
    /// A core's share of the node's bounds.
    ///
    /// # Errors
    /// If the node has so many shards that one record does not fit a frame.
    pub fn of(
        settings: &NodeSettings,
        cluster: &ClusterSettings,
        local: Local,
        key: NodeKey,
    ) -> Result<PeersSettings, SettingsRefused> {
        let journal = JournalSettings::with_capacity(settings.journal_slice_bytes as usize);
        let bounds = bounds(settings.shards, cluster.receive_slice_bytes);
        let publisher = PublisherSettings::of_node(&bounds, settings.shards, journal, cluster.coalesce)?;
        let pool_bytes = cluster.receive_slice_bytes / 2;
        let window_bytes = session_window(pool_bytes);
        let subscriber = SubscriberSettings {
            window_bytes,
            frame_bytes_max: (window_bytes / 2).min(SubscriberSettings::default().frame_bytes_max),
            ack_bytes: window_bytes / 4,
            ..SubscriberSettings::default()
        };
        // What peers begin has its room beside.
        let lending_bytes = SESSIONS_PLANNED * u64::from(ACCEPTED_WINDOW_BYTES);
        let payload_share = (pool_bytes - lending_bytes) / PAYLOAD_CONNECTIONS_PLANNED;
        let payload_window = PAYLOAD_WINDOW_BYTES_MAX.min(payload_share) as u32;
        let defaults = EndpointSettings::default();
        let endpoint = EndpointSettings {
            inventory: PurposeSettings {
                receive_window_bytes: window_bytes,
                stream_window_bytes: window_bytes,
                receive_pool_bytes: pool_bytes,
                ..defaults.inventory
            },
            payload: PurposeSettings {
                receive_window_bytes: payload_window,
                stream_window_bytes: payload_window,
                receive_pool_bytes: pool_bytes,
                send_window_bytes: send_window(
                    defaults.payload.send_window_bytes,
                    cluster.rates.of_shard(0, settings.shards).egress,
                ),
                ..defaults.payload
            },
            accepted_window_bytes: ACCEPTED_WINDOW_BYTES,
            ..defaults
        };
        Ok(PeersSettings {
            local,
            key,
            scope: cluster.scope.clone(),
            sessions_max: endpoint.inventory.connections_max,
            endpoint,
            publisher,
            subscriber,
            slice_bytes: settings.dram_slice_bytes,
            background_bytes_max: pool_bytes / 100 * u64::from(settings.prefetch_percent),
            guard: cluster.guard,
            zone: cluster.zone.clone(),
            failover_checks: cluster.failover_checks,
            rates: cluster.rates,
            refresh: cluster.refresh,
            visibility_samples: cluster.visibility_samples,
            routing: cluster.routing,
            index: IndexSettings { budget_bytes: cluster.index_slice_bytes },
        })
    }

    /// Bytes of frames that one shard may have built and not yet brought to their receivers, twice: in the rooms
    /// and on their way in the transport.
    #[must_use]
    pub fn queue_bytes(shards: u16, receive_slice_bytes: u64) -> u64 {
        2 * bounds(shards, receive_slice_bytes).queue_bytes as u64 / u64::from(shards)
    }
}

/// The receive window of an inventory session out of a pool, as large as a window can be at most.
fn session_window(pool_bytes: u64) -> u32 {
    let share = pool_bytes / SESSIONS_PLANNED - u64::from(ACCEPTED_WINDOW_BYTES);
    let share = share.min(u64::from(u32::MAX));
    (share - share % WINDOW_GRAIN_BYTES) as u32
}

/// The send window of a payload connection: no more than it takes to keep to a rate.
fn send_window(most_bytes: u64, egress: Option<Rate>) -> u64 {
    egress.map_or(most_bytes, |rate| {
        rate.bytes_in(SEND_WINDOW_TIME).clamp(SEND_WINDOW_BYTES_MIN.min(most_bytes), most_bytes)
    })
}

impl Peers {
    /// Settings that hold from now on, for what is under way, too.
    pub fn take_policy(&mut self, policy: &Policy) {
        self.publisher.set_coalescing_window(policy.coalesce);
        let guard = policy.guard.guard.of_core(self.shard.0, self.local.shards);
        let guard = PeerGuard { guard, ..policy.guard };
        self.payload.take_policy(guard, policy.routing);
        self.wake();
    }
}

/// What a node may spend on publishing. A node that takes little in at a time has little under way, too.
fn bounds(shards: u16, receive_slice_bytes: u64) -> NodeBounds {
    let defaults = NodeBounds::default();
    let receive_bytes = receive_slice_bytes * u64::from(shards);
    let queue_bytes = usize::try_from(receive_bytes / 2).unwrap_or(usize::MAX).min(defaults.queue_bytes);
    NodeBounds { queue_bytes, ..defaults }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_grows_with_its_pool_up_to_what_a_window_can_be() {
        let pools = [32 << 20, 1 << 30, 1 << 40, SESSIONS_PLANNED << 33, u64::MAX];
        assert!(pools.map(session_window).is_sorted());
        assert_eq!(session_window(u64::MAX), u32::MAX - u32::MAX % WINDOW_GRAIN_BYTES as u32);
    }
}
