//! What one core says about itself when control asks.

use orbitkv_shards::shard::Figures;

use super::mail::Peaks;
use crate::engine::EngineCounters;
use crate::peers::PeersReport;

/// Figures of one core: its shard, its engine channel and its turns.
#[derive(Debug)]
pub struct CoreReport {
    /// The shard.
    pub figures: Figures,
    /// The engine channel.
    pub engine: EngineCounters,
    /// Turns and slices.
    pub turns: TurnCounters,
    /// Version of the settings that hold; 0 is what the flags say.
    pub policy_version: u64,
    /// The outgoing mail.
    pub mail: Peaks,
    /// Device operations at once, most ever.
    pub device_peak: u64,
    /// Whether the SSD file has lost its name.
    pub file_deleted: bool,
    /// Its part in the cluster; none standalone.
    pub peers: Option<PeersReport>,
}

/// How long the core's turns take.
#[derive(Clone, Copy, Debug, Default)]
pub struct TurnCounters {
    /// Turns.
    pub turns: u64,
    /// Turns of more than [`STALL_NS`].
    pub stalls: u64,
    /// Longest turn in nanoseconds.
    pub ns_max: u64,
}

/// A turn longer than this is a stall, in nanoseconds: the bound of chapter 2.10.
pub const STALL_NS: u64 = 100_000;

impl TurnCounters {
    /// Counts a turn of `ns`.
    pub fn record(&mut self, ns: u64) {
        self.turns += 1;
        self.stalls += u64::from(ns > STALL_NS);
        self.ns_max = self.ns_max.max(ns);
    }
}
