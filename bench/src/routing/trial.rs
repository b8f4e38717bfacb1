//! One run: a reader and two sources that have the same blocks, one of them held back or none, and the requests of a
//! trace, one after the other.

use std::path::Path;
use std::time::{Duration, Instant};

use orbitkv::cli::http_client::HttpClient;
use orbitkv::client::{
    Client, ClientSettings, CommitOutcome, Medium, Namespace, PrefixList, SaveKey, ViewPopulate,
};
use orbitkv::cluster::{Cluster, ClusterOrder, Coordination, MemberOrder, NodeOrder};
use orbitkv::control::metadata::MetadataPage;
use orbitkv::control::report::PeersReport;
use orbitkv::control::routes::PlanningReport;
use orbitkv::control::signals::StopSignals;
use orbitkv::quantity::{ByteSize, MIB};
use orbitkv::settings::CoreList;
use serde_json::json;

use super::contention::Contention;
use super::conversations::{Conversations, RUN_BLOCKS_MAX};
use super::plan::Plan;
use super::{Case, Policy};
use crate::payload::{GROUP, Source, registration, slot};
use crate::{Failure, processes};

const WAIT: Duration = Duration::from_secs(10);
/// Time nodes may take to know each other.
const COMPLETE_WAIT: Duration = Duration::from_secs(60);
/// Longest wait for a fence.
const FENCE_WAIT: Duration = Duration::from_secs(30);

/// The source that is held back.
const CONTENDED: usize = 0;
const READER: usize = 2;

/// Where nodes run and keep their files.
pub struct Ground<'a> {
    /// A directory on a disk.
    pub directory: &'a Path,
    /// Core of the sources.
    pub sources_core: usize,
    /// Core of the reader.
    pub reader_core: usize,
}

/// What a run has shown.
pub struct Trial {
    /// From the request to the last block that is ready, of each measured request in order.
    pub ready: Vec<Duration>,
    /// Of the blocks that came from peers while it was measured, the share of the source that is held back.
    pub contended_share: f64,
    /// What the reader's planner has counted, warm-up included.
    pub planning: PlanningReport,
}

struct Engine {
    client: Client,
    namespace: Namespace,
}

struct Nodes {
    // Before the cluster, which they are connected to; sources first.
    engines: Vec<Engine>,
    cluster: Cluster,
    // After it: a control group goes when its process has ended.
    contention: Contention,
}

/// Runs it.
///
/// # Errors
/// If nodes do not start, the contention cannot be had, or a block does not come or is wrong.
pub fn run(
    plan: &Plan,
    case: Case,
    policy: Policy,
    seed: u64,
    ground: &Ground<'_>,
    signals: &StopSignals,
) -> Result<Trial, Failure> {
    let trace = Conversations::new(plan.all_requests(), seed);
    let mut nodes = Nodes::start(plan, case, policy, ground, signals)?;
    nodes.save(plan, case, &trace, seed)?;
    nodes.contention = nodes.contend(plan, case, ground)?;
    let payload = Source::seeded(seed, RUN_BLOCKS_MAX, plan.block_bytes);
    let mut ready = Vec::with_capacity(plan.requests);
    let mut before = [0, 0];
    for (number, (blocks, new)) in trace.requests.iter().zip(&trace.new_blocks).enumerate() {
        if number == plan.warm_up {
            before = nodes.granted()?;
        }
        if let Some(signal) = signals.wait(Duration::ZERO) {
            return Err(format!("stopped by {signal}").into());
        }
        let time = nodes.request(&trace, &payload, blocks, *new)?;
        if number >= plan.warm_up {
            ready.push(time);
        }
    }
    let after = nodes.granted()?;
    let [contended, other] = [0, 1].map(|at| after[at] - before[at]);
    let planning = nodes.peers(READER)?.planning;
    let contended_share = contended as f64 / (contended + other).max(1) as f64;
    Ok(Trial { ready, contended_share, planning })
}

impl Nodes {
    fn start(
        plan: &Plan,
        case: Case,
        policy: Policy,
        ground: &Ground<'_>,
        signals: &StopSignals,
    ) -> Result<Nodes, Failure> {
        let node = |name: &str, core, ssd| NodeOrder {
            name: name.to_owned(),
            dram: ByteSize(plan.dram_bytes),
            ssd: ByteSize(ssd),
            shards: Some(1),
            cores: Some(CoreList(vec![core])),
            member: Some(MemberOrder {
                journal: ByteSize(16 * MIB),
                index: ByteSize(64 * MIB),
                receive: ByteSize(64 * MIB),
                // What is limited is the network.
                shares_memory: false,
            }),
            flags: vec!["--route-policy".to_owned(), policy.name().to_owned()],
        };
        let ssd = if case.reads_ssd() { plan.ssd_bytes } else { 0 };
        let order = ClusterOrder {
            nodes: vec![
                node("source-a", ground.sources_core, ssd),
                node("source-b", ground.sources_core, ssd),
                node("reader", ground.reader_core, 0),
            ],
            coordination: Coordination::Started,
            name: "bench".to_owned(),
            data_parent: ground.directory.to_owned(),
            program: Some(processes::program()?),
        };
        let mut cluster = Cluster::start(&order, signals)?;
        cluster.await_complete(COMPLETE_WAIT, signals)?;
        let engine = |at: usize| -> Result<Engine, Failure> {
            let settings = ClientSettings::new(cluster.nodes()[at].socket());
            let settings = ClientSettings { populate: ViewPopulate::AtMap, ..settings };
            let mut client = Client::connect(settings)?;
            let namespace = client.register(&registration(plan.block_bytes), WAIT)?;
            Ok(Engine { client, namespace })
        };
        let engines = (0..=READER).map(engine).collect::<Result<Vec<_>, _>>()?;
        Ok(Nodes { engines, cluster, contention: Contention::Nothing })
    }

    /// Saves everything at both sources, each run first at the one that is to be first in the reader's index.
    fn save(&mut self, plan: &Plan, case: Case, trace: &Conversations, seed: u64) -> Result<(), Failure> {
        let mut payload = Source::seeded(seed, RUN_BLOCKS_MAX, plan.block_bytes);
        for is_first in [true, false] {
            for run in &trace.runs {
                let at = if is_first { run.first } else { 1 - run.first };
                let Engine { client, namespace } = &mut self.engines[at];
                let key = |block| SaveKey { block: trace.hash(block), group: GROUP, bytes: plan.block_bytes };
                let keys: Vec<SaveKey> = run.blocks.clone().map(key).collect();
                let reserved = client.reserve(*namespace, &keys, false, WAIT)?;
                let mut slots = reserved.into_iter().map(slot).collect::<Result<Vec<_>, _>>()?;
                payload.stamp(0, run.blocks.start);
                for (position, slot) in slots.iter_mut().enumerate() {
                    slot.copy_in(0, payload.block(position))?;
                }
                let outcomes = client.commit(&mut slots, WAIT)?;
                if outcomes.iter().any(|outcome| *outcome != CommitOutcome::Committed) {
                    return Err(format!("blocks were not committed: {outcomes:?}").into());
                }
            }
            self.await_installed()?;
        }
        if !case.reads_ssd() {
            return Ok(());
        }
        for Engine { client, namespace } in &mut self.engines[..READER] {
            for run in &trace.runs {
                let keys: Vec<_> = run.blocks.clone().map(|block| (trace.hash(block), GROUP)).collect();
                client.evict(*namespace, &keys, Medium::Dram.into(), WAIT)?;
            }
        }
        self.await_installed()
    }

    /// Everything is written, and the reader has heard of it.
    fn await_installed(&self) -> Result<(), Failure> {
        for source in 0..READER {
            let fence = self.http(source)?.post("/cache/sync", &json!({}))?;
            let wait = json!({ "fence": fence, "timeout_ms": FENCE_WAIT.as_millis() as u64 });
            self.http(READER)?.post("/cache/metadata/await", &wait)?;
        }
        Ok(())
    }

    fn contend(&self, plan: &Plan, case: Case, ground: &Ground<'_>) -> Result<Contention, Failure> {
        let node = &self.cluster.nodes()[CONTENDED];
        match case {
            Case::UncontendedDram | Case::UncontendedSsd => Ok(Contention::Nothing),
            Case::SlowSsd => {
                let rate = plan.slow_ssd_bytes_per_second;
                Contention::slow_disk(node.process_id(), ground.directory, rate)
            }
            Case::Egress => {
                let page = self.page(CONTENDED)?;
                let row = page.membership.members.iter().find(|row| row.node_id == node.name());
                let address = &row.ok_or("a node does not name itself as a member")?.address;
                let port = address.rsplit(':').next().and_then(|port| port.parse().ok());
                let port = port.ok_or_else(|| format!("{address} has no port"))?;
                Contention::egress(port, plan.egress_bits_per_second)
            }
        }
    }

    /// Acquires all blocks of a request at the reader; how long that took. Those that no request had before, the last
    /// ones, are compared byte for byte after that.
    fn request(
        &mut self,
        trace: &Conversations,
        payload: &Source,
        blocks: &[u64],
        new: usize,
    ) -> Result<Duration, Failure> {
        let hashes: Vec<_> = blocks.iter().map(|&block| trace.hash(block)).collect();
        let Engine { client, namespace } = &mut self.engines[READER];
        let lists = [PrefixList { namespace: *namespace, group: GROUP, blocks: &hashes }];
        let began = Instant::now();
        let came = client.acquire(&lists, None, WAIT)?;
        let time = began.elapsed();
        let first_new = blocks.len() - new;
        for (at, (&block, result)) in blocks.iter().zip(&came.blocks).enumerate() {
            let ready = result.as_ref().map_err(|why| format!("block {block} is {why:?}"))?;
            if at >= first_new {
                payload.require(trace.position(block), 0, block, ready.bytes()?)?;
            }
        }
        if let Some(lease) = &came.lease {
            client.release(lease, WAIT)?;
        }
        Ok(time)
    }

    /// Blocks that each source has lent.
    fn granted(&self) -> Result<[u64; 2], Failure> {
        Ok([self.peers(0)?.lending.granted, self.peers(1)?.lending.granted])
    }

    fn peers(&self, at: usize) -> Result<PeersReport, Failure> {
        let page = self.page(at)?;
        let peers = page.shards.first().and_then(|shard| shard.peers.clone());
        peers.ok_or_else(|| "a node is in no cluster".into())
    }

    fn page(&self, at: usize) -> Result<MetadataPage, Failure> {
        Ok(self.http(at)?.get_as("/cache/metadata")?.0)
    }

    fn http(&self, at: usize) -> Result<HttpClient, Failure> {
        Ok(HttpClient::new(self.cluster.nodes()[at].http_address())?.with_patience(2 * FENCE_WAIT))
    }
}
