//! What the last calls to peers look like, for an operator: a name for each shard of a peer, beside what they came to.

use orbitkv_shards::fetcher::SourceStanding;
use orbitkv_shards::resilience::signature::Mode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::{Deserialize, Serialize};

use super::report::ShardReport;

/// The last calls of a core to a shard of a peer, at most 20.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SourceReport {
    /// The peer.
    pub node_id: String,
    /// Its shard.
    pub shard: u16,
    /// `healthy`, `partial`, `stale`, `slow-or-cut` or `down`; empty before there were 20 calls.
    pub mode: String,
    /// Calls that were answered.
    pub answers: u64,
    /// Of those, calls that found most of what they asked for.
    pub fresh: u64,
    /// Calls that broke off, or brought wrong bytes.
    pub errors: u64,
    /// Calls on which nothing came.
    pub timeouts: u64,
    /// How long a call took on average, in milliseconds.
    pub ms_mean: u64,
}

/// Names of modes, from the best to the worst.
const NAMES: [(Mode, &str); 5] = [
    (Mode::Healthy, "healthy"),
    (Mode::Partial, "partial"),
    (Mode::Stale, "stale"),
    (Mode::SlowOrCut, "slow-or-cut"),
    (Mode::Down, "down"),
];

/// The name of a mode; empty if there is none.
pub(super) fn mode_name(mode: Option<Mode>) -> String {
    NAMES.iter().find(|(of, _)| Some(*of) == mode).map_or("", |(_, name)| name).to_owned()
}

/// How bad a mode is, 0 for the best; none without one.
#[must_use]
pub fn badness(name: &str) -> Option<usize> {
    NAMES.iter().position(|(_, of)| *of == name)
}

/// The worst mode in which any core of a node sees any shard of a peer; empty if none has called it often enough.
#[must_use]
pub fn worst<'a>(shards: &'a [ShardReport], node_id: &str) -> &'a str {
    let sources = shards.iter().flat_map(|shard| &shard.peers).flat_map(|peers| &peers.sources);
    let modes = sources.filter(|source| source.node_id == node_id).map(|source| source.mode.as_str());
    modes.max_by_key(|mode| badness(mode)).unwrap_or("")
}

/// What an operator reads of a source.
pub(super) fn row(standing: &SourceStanding) -> SourceReport {
    let SourceStanding { source, mode, sums } = *standing;
    SourceReport {
        node_id: source.node.to_string(),
        shard: source.shard.0,
        mode: mode_name(mode),
        answers: sums.answers,
        fresh: sums.fresh,
        errors: sums.errors,
        timeouts: sums.timeouts,
        ms_mean: sums.held_mean() as u64,
    }
}

/// The mode of each shard of a peer as a number.
pub(super) fn register(registry: &mut Registry, shards: &[ShardReport]) {
    let family = Family::<Vec<(&'static str, String)>, Gauge>::default();
    for report in shards {
        for source in report.peers.iter().flat_map(|peers| &peers.sources) {
            let Some(badness) = badness(&source.mode) else { continue };
            let labels = vec![
                ("shard", report.shard.to_string()),
                ("peer", format!("{}/{}", source.node_id, source.shard)),
            ];
            family.get_or_create(&labels).set(badness as i64);
        }
    }
    let help = "What the last 20 calls to a shard of a peer look like: 0 healthy, 1 partial, 2 stale, 3 slow or cut, 4 down";
    registry.register("orbitkv_peer_mode", help, family);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::report::PeersReport;

    #[test]
    fn the_worst_of_all_cores_and_shards_is_shown_beside_a_member() {
        let source = |node_id: &str, mode: Option<Mode>| SourceReport {
            node_id: node_id.to_owned(),
            mode: mode_name(mode),
            ..SourceReport::default()
        };
        let core = |sources| ShardReport {
            peers: Some(PeersReport { sources, ..PeersReport::default() }),
            ..ShardReport::default()
        };
        let shards = [
            core(vec![source("a", Some(Mode::Healthy)), source("b", None)]),
            core(vec![source("a", Some(Mode::SlowOrCut)), source("c", Some(Mode::Down))]),
            ShardReport::default(),
        ];
        assert_eq!(["a", "b", "c", "d"].map(|node| worst(&shards, node)), ["slow-or-cut", "", "down", ""]);
        let all: Vec<_> = NAMES.iter().map(|(mode, _)| badness(&mode_name(Some(*mode)))).collect();
        assert_eq!(all, [0, 1, 2, 3, 4].map(Some));
    }
}
