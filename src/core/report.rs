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
    /// How long turns took, whole.
    pub whole: Durations,
    /// How long the peers' part of them took, where there was one.
    pub peers: Durations,
}

/// Upper bounds of the buckets of [`Durations`] in nanoseconds, each included; one more has all that is longer. Around the
/// bound of a slice they are close, and then reach to what a scheduler takes away.
pub const DURATION_BOUNDS_NS: [u64; 15] = [
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
];

/// How often something took how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    /// How many fell into each bucket.
    pub counts: [u64; DURATION_BOUNDS_NS.len() + 1],
    /// All of them together, in nanoseconds.
    pub sum_ns: u64,
}

impl Durations {
    /// Counts one of `ns`.
    pub fn record(&mut self, ns: u64) {
        self.counts[DURATION_BOUNDS_NS.partition_point(|bound| *bound < ns)] += 1;
        self.sum_ns += ns;
    }
}

/// A turn longer than this is a stall, in nanoseconds: the bound of chapter 2.10.
pub const STALL_NS: u64 = 100_000;

impl TurnCounters {
    /// Counts a turn of `ns`.
    pub fn record(&mut self, ns: u64) {
        self.turns += 1;
        self.stalls += u64::from(ns > STALL_NS);
        self.ns_max = self.ns_max.max(ns);
        self.whole.record(ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_falls_into_one_bucket_and_a_bound_into_its_own() {
        let mut durations = Durations::default();
        for (place, bound) in DURATION_BOUNDS_NS.into_iter().enumerate() {
            durations.record(bound);
            durations.record(bound + 1);
            let expected = if place == 0 { [1, 1] } else { [2, 1] };
            assert_eq!(durations.counts[place..place + 2], expected, "around {bound}");
        }
        assert_eq!(durations.counts.iter().sum::<u64>(), 2 * DURATION_BOUNDS_NS.len() as u64);
        durations.record(u64::MAX / 2);
        assert_eq!(durations.counts[DURATION_BOUNDS_NS.len()], 2);
        assert!(DURATION_BOUNDS_NS.is_sorted() && DURATION_BOUNDS_NS.contains(&STALL_NS));
    }

    #[test]
    fn a_stall_is_counted_by_the_bound_and_by_its_bucket() {
        let mut turns = TurnCounters::default();
        [10, STALL_NS, STALL_NS + 1].into_iter().for_each(|ns| turns.record(ns));
        let beyond: u64 = turns.whole.counts[5..].iter().sum();
        assert_eq!((turns.turns, turns.stalls, beyond, turns.ns_max), (3, 1, 1, STALL_NS + 1));
    }
}
