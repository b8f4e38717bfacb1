//! How long turns took, as a Prometheus histogram with fixed buckets: from counts that the cores keep anyway.

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::report::{DurationsReport, ShardReport};
use crate::core::report::DURATION_BOUNDS_NS;

type Labels = Vec<(&'static str, String)>;

/// Histograms of one name.
#[derive(Debug)]
struct Histograms(Vec<(Labels, DurationsReport)>);

impl EncodeMetric for Histograms {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (labels, durations) in &self.0 {
            let seconds = |ns: u64| ns as f64 / 1e9;
            let bounds = DURATION_BOUNDS_NS.iter().map(|&bound| seconds(bound)).chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(durations.counts).collect();
            let count = durations.counts.iter().sum();
            let sum = seconds(durations.sum_ns);
            encoder.encode_family(labels)?.encode_histogram::<Labels>(sum, count, &buckets, None)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// Turns of each core, whole and the peers' part of them.
pub(super) fn register(registry: &mut Registry, shards: &[ShardReport]) {
    let of_shard = |report: &ShardReport| {
        let labels = |part: &str| vec![("shard", report.shard.to_string()), ("part", part.to_owned())];
        let whole = (labels("whole"), report.turns.whole);
        let peers = report.peers.as_ref().map(|_| (labels("peers"), report.turns.peers));
        [Some(whole), peers].into_iter().flatten()
    };
    let help = "How long the core was held by a turn, and of that by the peers' part, seconds";
    registry.register("orbitkv_turn_seconds", help, Histograms(shards.iter().flat_map(of_shard).collect()));
}
