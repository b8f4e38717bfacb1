//! Bounds of a core's payload.

use orbitkv_shards::fetcher::FetcherSettings;
use orbitkv_shards::planner::Mode;
use orbitkv_shards::shard::ShardSettings;
use orbitkv_wire::bounds::EXTENT_ALIGN_BYTES;

use crate::peers::settings::PAYLOAD_CONNECTIONS_PLANNED;
use crate::settings::{PeerGuard, PeerRates};

/// Bounds of a core's payload, and how it is asked for.
#[derive(Clone, Copy, Debug)]
pub struct PayloadSettings {
    /// Its slice of the arena in bytes.
    pub slice_bytes: u64,
    /// Payload bytes that are asked for and may still come.
    pub window_bytes: u64,
    /// As much of what nobody waits for.
    pub background_bytes_max: u64,
    /// How fast it may go over the network.
    pub rates: PeerRates,
    /// How it is chosen who is asked.
    pub routing: Mode,
    /// How peers that fail are treated.
    pub guard: PeerGuard,
}

impl PayloadSettings {
    /// Blocks that may be lent at a time: no slot is smaller than an extent.
    pub fn loans_max(&self) -> usize {
        usize::try_from(ShardSettings::lent_bytes_max(self.slice_bytes) / EXTENT_ALIGN_BYTES)
            .unwrap_or(usize::MAX)
    }

    /// Bounds of what is brought.
    pub fn fetcher(&self) -> FetcherSettings {
        let PeerGuard { call_budget, guard } = self.guard;
        FetcherSettings {
            // As many as have room at once; a source that is needed more takes the place of an idle one.
            connections_max: PAYLOAD_CONNECTIONS_PLANNED as usize,
            bytes_max: self.window_bytes,
            source_bytes_max: self.window_bytes / 2,
            rate: self.rates.receive,
            background_bytes_max: self.background_bytes_max,
            stall_wait: call_budget,
            guard,
            ..FetcherSettings::default()
        }
    }
}
