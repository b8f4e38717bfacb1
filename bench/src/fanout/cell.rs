//! One source with blocks in several namespaces, and nodes that follow it for all of them or for one.

use std::time::{Duration, Instant};

use orbitkv::cli::http_client::HttpClient;
use orbitkv::cluster::{Cluster, NodeOrder};
use orbitkv::control::metadata::MetadataPage;
use orbitkv::control::owners::{Owner as Stream, OwnersPage};
use orbitkv::control::signals::StopSignals;
use orbitkv_native::clock::monotonic_ns;
use serde::Serialize;

use super::plan::{CHANGES, Cell, NAMESPACES, PERIOD, changes_of};
use crate::processes::processor_time;
use crate::streams::cadence::rotation;
use crate::streams::keys::Keys;
use crate::streams::owner::{Owner, engine};
use crate::streams::owners::{StartOrder, dram_of, order};
use crate::streams::{RunArgs, WAIT, failure, pause};
use crate::{Failure, progress};

/// Longest wait until the source is a member.
const COMPLETE_WAIT: Duration = Duration::from_secs(60);
/// How often receivers are looked at.
const LOOK: Duration = Duration::from_millis(20);

/// What one cluster came to.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Measured {
    /// Which.
    pub cell: Cell,
    /// Changes of the source, of all its namespaces.
    pub changes: u64,
    /// Changes that its receivers applied, all together.
    pub delivered: u64,
    /// Changes that they were to apply, by their scope.
    pub delivered_expected: u64,
    /// The largest difference of the two at one receiver: too many here do not make up for too few there.
    pub delivered_wrong: u64,
    /// Rows of the source that receivers have too many or too few at the end, all together.
    pub rows_wrong: u64,
    /// Delta frames that the source sent.
    pub delta_frames: u64,
    /// Their bytes.
    pub delta_bytes: u64,
    /// Processor time of the source, in nanoseconds.
    pub source_ns: u64,
    /// How long it took.
    pub elapsed_ms: u64,
}

/// The counters of a node that matter here.
pub struct Counters {
    /// Delta frames sent.
    pub delta_frames: u64,
    /// Their bytes.
    pub delta_bytes: u64,
    /// Changes of others applied.
    pub changes_applied: u64,
}

/// The cluster of a cell.
pub struct Nodes {
    // Before the cluster, which they are connected to.
    source: Vec<Owner>,
    source_http: HttpClient,
    source_name: String,
    receivers: Vec<HttpClient>,
    cluster: Cluster,
}

/// Measures one cluster.
///
/// # Errors
/// If a node fails or does not come to have what it is to have, or a signal comes.
pub fn measure(
    args: &RunArgs,
    cell: Cell,
    bursts: usize,
    signals: &StopSignals,
) -> Result<Measured, Failure> {
    let start = StartOrder { coalesce: args.coalesce, ..StartOrder::default() };
    let mut nodes = Nodes::start(args, cell, &start, signals)?;
    nodes.await_applied(signals)?;
    let before = nodes.counters()?;
    let process = nodes.cluster.nodes()[0].process_id();
    let (used_before, began, began_ns) = (processor_time(process)?, Instant::now(), monotonic_ns());
    for (number, planned) in rotation(args.seed, 1, bursts, PERIOD).into_iter().enumerate() {
        let left_ns = (began_ns + planned.offset_ns).saturating_sub(monotonic_ns());
        pause(Duration::from_nanos(left_ns), signals)?;
        nodes.source[number % NAMESPACES].burst(0, CHANGES, began_ns + planned.offset_ns)?;
    }
    nodes.await_applied(signals)?;
    let (used, elapsed) = (processor_time(process)? - used_before, began.elapsed());
    let after = nodes.counters()?;
    let rows_wrong = nodes.rows_wrong(cell)?;
    if let Some(words) = nodes.cluster.obituaries().into_iter().next() {
        return Err(failure(words));
    }
    let each = changes_of(cell.subscription, bursts);
    let applied = || {
        let pairs = after[1..].iter().zip(&before[1..]);
        pairs.map(|(after, before)| after.changes_applied - before.changes_applied)
    };
    Ok(Measured {
        cell,
        changes: bursts as u64 * CHANGES,
        delivered: applied().sum(),
        delivered_expected: each * u64::from(cell.receivers),
        delivered_wrong: applied().map(|applied| applied.abs_diff(each)).max().unwrap_or(0),
        rows_wrong,
        delta_frames: after[0].delta_frames - before[0].delta_frames,
        delta_bytes: after[0].delta_bytes - before[0].delta_bytes,
        source_ns: used.as_nanos() as u64,
        elapsed_ms: elapsed.as_millis() as u64,
    })
}

impl Nodes {
    /// Starts a source and those that follow it, and saves the first blocks.
    ///
    /// # Errors
    /// If they do not start, or do not take the blocks.
    pub fn start(
        args: &RunArgs,
        cell: Cell,
        start: &StartOrder,
        signals: &StopSignals,
    ) -> Result<Nodes, Failure> {
        let mut order = order(cell.receivers + 1, args.residences, start)?;
        order.nodes[0].dram = dram_of(args.residences * NAMESPACES as u64);
        let joining = order.nodes.split_off(1);
        let wanted = cell.subscription.name();
        progress(&format!("starting a source and {} nodes that want {wanted}", cell.receivers));
        let mut cluster = Cluster::start(&order, signals)?;
        // What is published before the source is a member is of no epoch.
        cluster.await_complete(COMPLETE_WAIT, signals)?;
        let node = &cluster.nodes()[0];
        let source_http = HttpClient::new(node.http_address())?;
        let source_name = node.name().to_owned();
        let owner = |number: usize| {
            let keys = Keys::none(args.seed, number as u64 + 1);
            Owner::start_as(node.socket(), &[engine(number)], keys, args.seed, args.residences)
        };
        let source = (0..NAMESPACES).map(owner).collect::<Result<Vec<_>, _>>()?;
        let scope = match cell.subscription.namespaces() {
            NAMESPACES => Vec::new(),
            count => source[..count].iter().map(Owner::namespace_text).collect::<Result<Vec<_>, _>>()?,
        };
        let flags: Vec<String> =
            scope.into_iter().flat_map(|text| ["--metadata-namespace".to_owned(), text]).collect();
        let mut receivers = Vec::new();
        for node in joining {
            let node = NodeOrder { flags: [node.flags.clone(), flags.clone()].concat(), ..node };
            receivers.push(HttpClient::new(cluster.add(node, signals)?.http_address())?);
        }
        Ok(Nodes { source, source_http, source_name, receivers, cluster })
    }

    /// The engine of a namespace at the source.
    pub fn owner(&mut self, namespace: usize) -> &mut Owner {
        &mut self.source[namespace]
    }

    /// Every node's HTTP API, the source's first.
    pub fn http(&self) -> Vec<HttpClient> {
        std::iter::once(&self.source_http).chain(&self.receivers).cloned().collect()
    }

    /// All processes.
    pub fn cluster(&mut self) -> &mut Cluster {
        &mut self.cluster
    }

    /// Head of the source's journal: all engines make the one journal of its one shard.
    pub fn head(&self) -> u64 {
        self.source.iter().map(Owner::sequence).sum()
    }

    fn stream(&self, receiver: &HttpClient) -> Result<Option<Stream>, Failure> {
        let (page, _): (OwnersPage, _) = receiver.get_as("/cache/metadata/owners")?;
        Ok(page.owners.into_iter().find(|stream| stream.node_id == self.source_name && stream.installed))
    }

    /// Waits until every receiver stands at the head of the source.
    ///
    /// # Errors
    /// If one does not in time, or a signal comes.
    pub fn await_applied(&self, signals: &StopSignals) -> Result<(), Failure> {
        let began = Instant::now();
        for (at, receiver) in self.receivers.iter().enumerate() {
            while self.stream(receiver)?.is_none_or(|stream| stream.applied != self.head()) {
                if began.elapsed() > 6 * WAIT {
                    let stream = self.stream(receiver)?;
                    return Err(failure(format!(
                        "receiver {} does not stand at {}: {stream:?}",
                        at + 1,
                        self.head()
                    )));
                }
                pause(LOOK, signals)?;
            }
        }
        Ok(())
    }

    /// Of the source, then of each receiver.
    ///
    /// # Errors
    /// If a node does not answer.
    pub fn counters(&self) -> Result<Vec<Counters>, Failure> {
        let all = std::iter::once(&self.source_http).chain(&self.receivers);
        all.map(|http| {
            let (page, _): (MetadataPage, _) = http.get_as("/cache/metadata")?;
            let of_shards = || page.shards.iter().filter_map(|shard| shard.peers.as_ref());
            Ok(Counters {
                delta_frames: of_shards().map(|peers| peers.deltas_sent.frames).sum(),
                delta_bytes: of_shards().map(|peers| peers.deltas_sent.bytes).sum(),
                changes_applied: of_shards().map(|peers| peers.changes_applied).sum(),
            })
        })
        .collect()
    }

    /// Rows of the source at all receivers against the live keys of what they want.
    ///
    /// # Errors
    /// If a receiver does not answer.
    pub fn rows_wrong(&self, cell: Cell) -> Result<u64, Failure> {
        let wanted = self.source[..cell.subscription.namespaces()].iter();
        let keys: u64 = wanted.map(|owner| owner.keys().len()).sum();
        let wrong = self.receivers.iter().map(|receiver| {
            let rows = self.stream(receiver)?.map_or(0, |stream| u64::from(stream.rows));
            Ok(rows.abs_diff(keys))
        });
        wrong.sum()
    }
}
