//! `/cache/metadata/owners`: what this node has installed of each peer's shards, in pages over its cores.

use std::future::Future;

use orbitkv_shards::inventory::subscriber::{OwnerState, StreamId};
use serde::{Deserialize, Serialize};

use super::http::PortError;
use super::routes::LoadRow;
use super::sources::mode_name;
use crate::peers::OwnerRow;

/// One owner stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Owner {
    /// Name of the source.
    pub node_id: String,
    /// Its epoch.
    pub epoch: u64,
    /// Its registration life, as UUID text.
    pub incarnation: String,
    /// Its shard.
    pub shard: u16,
    /// The core of this node that has the rows.
    pub core: u16,
    /// `resting`, `dialing`, `resuming`, `bootstrapping`, `staging` or `live`.
    pub state: String,
    /// Whether a view is installed.
    pub installed: bool,
    /// Sequence through which it is applied; 0 without one.
    pub applied: u64,
    /// Newest head of the source's journal that it named.
    pub source_head: u64,
    /// Rows of the view.
    pub rows: u32,
    /// Time since the view was fresh, in milliseconds by receipt; none if it never was.
    pub age_ms: Option<u64>,
    /// Time since the view is missing or beyond repair, in milliseconds; none while it is there.
    pub lacking_ms: Option<u64>,
    /// Whether there was no room for what the source has.
    pub misfit: bool,
    /// What the last 20 calls for its blocks look like: `healthy`, `partial`, `stale`, `slow-or-cut` or `down`; empty
    /// before there were as many.
    pub mode: String,
    /// How busy it said that it is, if it did lately.
    pub load: Option<LoadRow>,
}

/// A page of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OwnersPage {
    /// In the order of cores.
    pub owners: Vec<Owner>,
    /// Where the next page begins; none after the last.
    pub next: Option<String>,
}

/// The place after which a page begins: a core, and a stream of it.
fn place(text: &str) -> Option<(usize, Option<StreamId>)> {
    if text.is_empty() {
        return Some((0, None));
    }
    let (core, stream) = text.split_once('.')?;
    Some((core.parse().ok()?, Some(StreamId(stream.parse().ok()?))))
}

/// Collects a page from `cores` cores; `of_core` gives rows of one of them. A place that is not one of ours
/// begins at the first.
pub(super) async fn page<F>(
    after: &str,
    limit: usize,
    cores: usize,
    of_core: impl Fn(usize, Option<StreamId>, usize) -> F,
) -> Result<OwnersPage, PortError>
where
    F: Future<Output = Result<Vec<OwnerRow>, PortError>>,
{
    let (first, mut from) = place(after).unwrap_or((0, None));
    let mut page = OwnersPage::default();
    for core in first..cores {
        let wanted = limit - page.owners.len();
        let rows = of_core(core, from.take(), wanted).await?;
        page.owners.extend(rows.iter().map(|row| owner(core as u16, row)));
        if page.owners.len() == limit {
            let last = rows.last().map_or(StreamId(0), |row| row.detail.stream);
            page.next = Some(format!("{core}.{}", last.0));
            break;
        }
    }
    Ok(page)
}

fn owner(core: u16, OwnerRow { detail, age, lacking, mode, load }: &OwnerRow) -> Owner {
    let source = detail.source;
    Owner {
        node_id: source.node.to_string(),
        epoch: source.epoch,
        incarnation: source.incarnation.to_string(),
        shard: source.shard.0,
        core,
        state: match detail.state {
            OwnerState::Resting => "resting",
            OwnerState::Dialing => "dialing",
            OwnerState::Resuming => "resuming",
            OwnerState::Bootstrapping => "bootstrapping",
            OwnerState::Staging => "staging",
            OwnerState::Live => "live",
        }
        .to_owned(),
        installed: detail.view.is_some(),
        applied: detail.view.map_or(0, |(_, applied)| applied.0),
        source_head: detail.source_head.0,
        rows: detail.rows,
        age_ms: age.map(|age| age.as_millis() as u64),
        lacking_ms: lacking.map(|lacking| lacking.as_millis() as u64),
        misfit: detail.misfit,
        mode: mode_name(*mode),
        load: load.map(LoadRow::new),
    }
}
