//! `/cache/visibility`: when changes were published here and when those of peers became visible, for whoever measures
//! the time in between (chapter 6.3). Only a node that was started with room for samples has the page.
//!
//! A sample is bound to node, epoch, incarnation, shard, scope and an exact sequence. Moments are of `CLOCK_MONOTONIC`, so they
//! can be compared with another node's only under the same kernel boot and time namespace, which the page names.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use orbitkv_wire::identity::Incarnation;
use orbitkv_wire::inventory::SourceStream;
use serde::{Deserialize, Serialize};

use super::http::{Answer, Failure, NodePort, Shared, failure, soon};
use crate::peers::SamplesAnswer;

const NONE_KEPT: Failure = failure(
    StatusCode::NOT_FOUND,
    "no-samples",
    "this node keeps no samples of visibility; start it in a cluster with --visibility-samples COUNT",
);
const BAD_AFTER: Failure = failure(
    StatusCode::BAD_REQUEST,
    "bad-query",
    "after is PUBLISHED.INSTALLED of each shard, joined by commas",
);

/// Whose clock moments are of: equal ones can be compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockPlace {
    /// The boot of the kernel, as it names it.
    pub boot_id: String,
    /// The time namespace of the process, as the kernel names it.
    pub time_namespace: String,
}

impl ClockPlace {
    /// Of this process; empty where the kernel does not say.
    #[must_use]
    pub fn here() -> ClockPlace {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
        ClockPlace {
            boot_id: boot_id.trim().to_owned(),
            time_namespace: namespace.to_string_lossy().into_owned(),
        }
    }

    /// Whether moments of both can be compared.
    #[must_use]
    pub fn is_shared_with(&self, other: &ClockPlace) -> bool {
        self == other && !self.boot_id.is_empty() && !self.time_namespace.is_empty()
    }
}

/// The page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VisibilityPage {
    /// Whose clock all moments are of.
    pub clock: ClockPlace,
    /// Name of the node.
    pub node_id: String,
    /// Digest of the namespaces it subscribes to: what its installs cover.
    pub scope_digest: Option<String>,
    /// Its shards, in order.
    pub shards: Vec<ShardSamples>,
}

/// Samples of a shard after those that were named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardSamples {
    /// Number of the first publication below. If it is not the one after the last that was had, the ones between are
    /// lost.
    pub published_first: u64,
    /// Publications, by the life they are of.
    pub published: Vec<LifePublished>,
    /// Number of the first install below, likewise.
    pub installed_first: u64,
    /// Installs, by the stream they are of.
    pub installed: Vec<StreamInstalled>,
}

/// Publications of a life of the shard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifePublished {
    /// Its epoch.
    pub epoch: u64,
    /// Its incarnation, as UUID text.
    pub incarnation: String,
    /// Head of the journal, and since when it stands there, in nanoseconds.
    pub samples: Vec<(u64, u64)>,
}

/// Installs of an owner stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamInstalled {
    /// Name of the source.
    pub node_id: String,
    /// Its epoch.
    pub epoch: u64,
    /// Its incarnation, as UUID text.
    pub incarnation: String,
    /// Its shard.
    pub shard: u16,
    /// From exclusive, through inclusive, and since when that is visible, in nanoseconds.
    pub samples: Vec<(u64, u64, u64)>,
}

impl ShardSamples {
    /// A core's samples as told.
    #[must_use]
    pub fn of(answer: &SamplesAnswer) -> ShardSamples {
        let mut published: BTreeMap<(u64, Incarnation), Vec<_>> = BTreeMap::new();
        for sample in &answer.published.samples {
            let of_life = published.entry((sample.epoch, sample.incarnation)).or_default();
            of_life.push((sample.sequence.0, sample.at_ns));
        }
        let mut installed: BTreeMap<SourceStream, Vec<_>> = BTreeMap::new();
        for sample in &answer.installed.samples {
            let install = sample.install;
            let of_stream = installed.entry(install.source).or_default();
            of_stream.push((install.from.0, install.through.0, sample.at_ns));
        }
        let lives = published.into_iter().map(|((epoch, incarnation), samples)| LifePublished {
            epoch,
            incarnation: incarnation.to_string(),
            samples,
        });
        let streams = installed.into_iter().map(|(source, samples)| StreamInstalled {
            node_id: source.node.to_string(),
            epoch: source.epoch,
            incarnation: source.incarnation.to_string(),
            shard: source.shard.0,
            samples,
        });
        ShardSamples {
            published_first: answer.published.first,
            published: lives.collect(),
            installed_first: answer.installed.first,
            installed: streams.collect(),
        }
    }

    /// Numbers of the last publication and the last install that whoever has this page has.
    #[must_use]
    pub fn had(&self) -> (u64, u64) {
        let published: usize = self.published.iter().map(|life| life.samples.len()).sum();
        let installed: usize = self.installed.iter().map(|stream| stream.samples.len()).sum();
        (self.published_first - 1 + published as u64, self.installed_first - 1 + installed as u64)
    }
}

/// `?after=` of the page.
#[derive(Deserialize)]
pub(super) struct After {
    #[serde(default)]
    after: String,
}

/// Numbers of what the asker has, shard by shard; those that are not named have nothing.
fn had(text: &str) -> Option<Vec<(u64, u64)>> {
    let of_shard = |text: &str| {
        let (published, installed) = text.split_once('.')?;
        Some((published.parse().ok()?, installed.parse().ok()?))
    };
    if text.is_empty() { Some(Vec::new()) } else { text.split(',').map(of_shard).collect() }
}

pub(super) async fn page<P: NodePort>(
    State(api): Shared<P>,
    after: Result<Query<After>, QueryRejection>,
) -> Answer {
    let Query(After { after }) = after.map_err(|_| BAD_AFTER)?;
    let had = had(&after).ok_or(BAD_AFTER)?;
    let answers = soon(api.port.samples(&had)).await?.ok_or(NONE_KEPT)?;
    let identity = api.port.identity();
    let page = VisibilityPage {
        clock: ClockPlace::here(),
        node_id: identity.node_id.clone(),
        scope_digest: identity.scope_digest.clone(),
        shards: answers.iter().map(ShardSamples::of).collect(),
    };
    Ok(Json(page).into_response())
}

#[cfg(test)]
mod tests {
    use orbitkv_shards::inventory::subscriber::Install;
    use orbitkv_wire::identity::{NodeId, Sequence, ShardIndex};

    use super::*;
    use crate::peers::{Excerpt, Installed, Published};

    #[test]
    fn samples_are_told_by_life_and_stream_and_counted() {
        let source = |name: &str, epoch| SourceStream {
            node: NodeId::new(name).expect("a name"),
            epoch,
            incarnation: Incarnation([epoch as u8; 16]),
            shard: ShardIndex(0),
        };
        let installed = |source, from, through, at_ns| {
            let install = Install { source, from: Sequence(from), through: Sequence(through) };
            Installed { install, at_ns }
        };
        let published = |epoch, sequence, at_ns| Published {
            epoch,
            incarnation: Incarnation([epoch as u8; 16]),
            sequence: Sequence(sequence),
            at_ns,
        };
        let (a, b) = (source("a", 3), source("b", 4));
        let answer = SamplesAnswer {
            published: Excerpt { first: 5, samples: vec![published(1, 9, 20), published(2, 1, 30)] },
            installed: Excerpt {
                first: 8,
                samples: vec![installed(b, 0, 4, 21), installed(a, 2, 3, 22), installed(b, 4, 6, 23)],
            },
        };
        let shard = ShardSamples::of(&answer);
        assert_eq!(shard.had(), (6, 10));
        let lives: Vec<_> = shard.published.iter().map(|life| (life.epoch, &life.samples[..])).collect();
        assert_eq!(lives, [(1, &[(9, 20)][..]), (2, &[(1, 30)])]);
        let streams: Vec<_> =
            shard.installed.iter().map(|of| (of.node_id.as_str(), of.epoch, &of.samples[..])).collect();
        assert_eq!(streams, [("a", 3, &[(2, 3, 22)][..]), ("b", 4, &[(0, 4, 21), (4, 6, 23)])]);
    }

    #[test]
    fn what_the_asker_has_is_read_or_refused() {
        assert_eq!(had(""), Some(vec![]));
        assert_eq!(had("3.4,0.9"), Some(vec![(3, 4), (0, 9)]));
        for odd in ["3", "3.x", "3.4,", ".4", "-1.0"] {
            assert_eq!(had(odd), None, "{odd}");
        }
    }

    #[test]
    fn clocks_of_another_boot_or_namespace_are_not_compared() {
        let here = ClockPlace::here();
        assert!(here.is_shared_with(&ClockPlace::here()), "{here:?}");
        let reboot = ClockPlace { boot_id: "another".to_owned(), ..here.clone() };
        let namespace = ClockPlace { time_namespace: "time:[1]".to_owned(), ..here.clone() };
        assert!(!here.is_shared_with(&reboot) && !here.is_shared_with(&namespace));
        assert!(!ClockPlace::default().is_shared_with(&ClockPlace::default()), "nothing is known of either");
    }
}
