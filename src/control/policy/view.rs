//! What an operator sees of the policy on one node: on its page, in its metrics.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::{Deserialize, Serialize};

/// The policy of a node; standalone there is none, and all of this is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConfigView {
    /// Version that holds on this node; 0 is what its flags say.
    pub version: u64,
    /// Number of the record that says so; 0 if none was ever known.
    pub record: u64,
    /// Where that is from: `flags`, `disk` (the copy of the last record known to be good) or `etcd`.
    pub origin: String,
    /// A version that is being rolled out; none if none is.
    pub staged: Option<StagedView>,
    /// Every setting that can be changed, as it is.
    pub settings: Vec<SettingView>,
    /// Why what etcd has is not taken; empty if it is.
    pub refused: String,
    /// Why etcd could not be read last time; empty if it could.
    pub unread: String,
    /// Time without having read it in milliseconds, as of the last try; 0 if that read it.
    pub unread_ms: u64,
    /// Why the copy on disk was not used or not kept; empty if nothing is wrong with it.
    pub copy: String,
    /// Times that etcd was asked, counter.
    pub reads: u64,
    /// Times that it did not answer, counter.
    pub unreachable: u64,
    /// Times that it had no record of the schema, counter.
    pub malformed: u64,
    /// Times that it had an older one, or none any more, counter.
    pub older: u64,
}

/// A version that is being rolled out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StagedView {
    /// Its number.
    pub version: u64,
    /// Percentage of the nodes that it is for.
    pub share: u32,
    /// This node's place among a hundred: it has the version at every share above.
    pub place: u32,
    /// Whether it is for this node.
    pub is_here: bool,
}

/// A setting that can be changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SettingView {
    /// Its name.
    pub name: String,
    /// Its value now.
    pub value: String,
    /// What the flags say, if the record says something else.
    pub flag: Option<String>,
}

/// Adds the policy to the metrics of a node.
pub(in crate::control) fn register(registry: &mut Registry, view: &ConfigView) {
    let staged = view.staged.as_ref();
    for (name, help, value) in [
        (
            "orbitkv_config_version",
            "Version of the settings that holds; 0 is what the flags say",
            view.version,
        ),
        ("orbitkv_config_record", "Number of the record in etcd that says so", view.record),
        (
            "orbitkv_config_staged_version",
            "Version that is being rolled out; 0 if none is",
            staged.map_or(0, |staged| staged.version),
        ),
        ("orbitkv_config_refused", "1 while what etcd has is not taken", u64::from(!view.refused.is_empty())),
    ] {
        let gauge = Gauge::<i64>::default();
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        registry.register(name, help, gauge);
    }
    let reads = Family::<Vec<(&'static str, &'static str)>, Counter<u64, AtomicU64>>::default();
    let read = view.reads - (view.unreachable + view.malformed + view.older).min(view.reads);
    for (kind, count) in [
        ("good", read),
        ("unreachable", view.unreachable),
        ("malformed", view.malformed),
        ("older", view.older),
    ] {
        reads.get_or_create(&vec![("kind", kind)]).inc_by(count);
    }
    registry.register("orbitkv_config_reads", "Times that the record in etcd was asked for", reads);
}
