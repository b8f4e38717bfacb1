//! Our side: two nodes of a cluster, which share memory or do not. Blocks are saved at one, and read by an engine at the other.

use std::thread::sleep;
use std::time::{Duration, Instant};

use orbitkv::cli::http_client::HttpClient;
use orbitkv::client::{
    BlockHash, BlockOutcome, Client, ClientSettings, CommitOutcome, Completion, CompletionTarget, Lease,
    Media, Namespace, Outcome, Place, PrefixList, ReadyBlock, SaveKey, Ticket, ViewPopulate,
};
use orbitkv::cluster::{Cluster, ClusterOrder, Coordination, MemberOrder, NodeOrder};
use orbitkv::control::metadata::MetadataPage;
use orbitkv::control::report::{FetchingReport, LendingReport, PeersReport};
use orbitkv::control::signals::StopSignals;
use orbitkv::quantity::{ByteSize, MIB};
use orbitkv::settings::CoreList;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Way;
use super::ends::Ends;
use super::plan::Plan;
use crate::payload::{GROUP, Source, block_hashes, registration, slot};
use crate::{Failure, processes};

const WAIT: Duration = Duration::from_secs(10);
/// Time two nodes may take to know each other.
const COMPLETE_WAIT: Duration = Duration::from_secs(60);
/// Time a pass may take to its SSD, and how often the source is asked.
const WRITTEN_WAIT: Duration = Duration::from_secs(60);
const WRITTEN_LOOK: Duration = Duration::from_millis(20);
/// Arenas that the source's SSD holds, so that nothing of a pass is evicted from it.
const SSD_ARENAS: u64 = 2;
/// How often the reading node is asked for what the other has saved.
const SHOWN_LOOK: Duration = Duration::from_millis(2);

/// Bounds of a member: a node's own defaults, but for an index of a few hundred rows.
fn member(shares_memory: bool) -> MemberOrder {
    let (journal, index, receive) = (ByteSize(16 * MIB), ByteSize(64 * MIB), ByteSize(64 * MIB));
    MemberOrder { journal, index, receive, shares_memory }
}

/// Two nodes that know each other, and an engine at each.
pub struct Nodes {
    plan: Plan,
    seed: u64,
    way: Way,
    // Before the cluster, which they are connected to.
    saving: Engine,
    reading: Engine,
    source: Source,
    cluster: Cluster,
}

struct Engine {
    client: Client,
    namespace: Namespace,
}

/// Blocks of one pass as they came.
pub struct Read {
    /// From the first request to the last answer.
    pub time: Duration,
    /// Blocks that the reading node had from its peer's DRAM: only these count.
    pub from_peer: usize,
    /// Processor time of both nodes meanwhile.
    pub used: Ends<Duration>,
    blocks: Vec<ReadyBlock>,
    leases: Vec<Lease>,
}

/// How the source ended while blocks were read from it.
pub struct Ending {
    /// From SIGTERM to the end of the process.
    pub time: Duration,
    /// Blocks that were asked for.
    pub asked: usize,
    /// Of those, blocks that had come when the signal was sent.
    pub come: usize,
}

impl Nodes {
    /// Starts etcd and both nodes, of one shard each on its core. The source has an SSD tier if blocks shall be on it.
    ///
    /// # Errors
    /// If they do not start or do not come to know each other.
    pub fn start(
        plan: Plan,
        cores: Ends<usize>,
        seed: u64,
        way: Way,
        signals: &StopSignals,
    ) -> Result<Nodes, Failure> {
        let ssd = |name: &str| {
            if (name, way) == ("source", Way::Settled) { SSD_ARENAS * plan.dram_bytes } else { 0 }
        };
        let node = |name: &str, core| NodeOrder {
            name: name.to_owned(),
            dram: ByteSize(plan.dram_bytes),
            ssd: ByteSize(ssd(name)),
            shards: Some(1),
            cores: Some(CoreList(vec![core])),
            member: Some(member(way != Way::Quic)),
            flags: Vec::new(),
        };
        let order = ClusterOrder {
            nodes: vec![node("source", cores.source), node("reader", cores.reader)],
            coordination: Coordination::Started,
            name: "bench".to_owned(),
            data_parent: std::env::temp_dir(),
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
        let (saving, reading) = (engine(0)?, engine(1)?);
        let source = Source::seeded(seed, plan.batch_blocks, plan.block_bytes);
        Ok(Nodes { plan, seed, way, saving, reading, source, cluster })
    }

    /// Saves the blocks of a generation at the source and waits until the reader shows all of them there.
    ///
    /// # Errors
    /// If a block is not taken, or not shown in time.
    pub fn save(&mut self, generation: u64) -> Result<(), Failure> {
        let plan = self.plan;
        let blocks = self.hashes(generation);
        let mut first_index = 0;
        let saving = &mut self.saving;
        for batch in blocks.chunks(plan.batch_blocks) {
            let key = |&block| SaveKey { block, group: GROUP, bytes: plan.block_bytes };
            let keys: Vec<SaveKey> = batch.iter().map(key).collect();
            let reserved = saving.client.reserve(saving.namespace, &keys, false, WAIT)?;
            let mut slots = reserved.into_iter().map(slot).collect::<Result<Vec<_>, _>>()?;
            self.source.stamp(generation, first_index);
            for (position, slot) in slots.iter_mut().enumerate() {
                slot.copy_in(0, self.source.block(position))?;
            }
            let outcomes = saving.client.commit(&mut slots, WAIT)?;
            if outcomes.iter().any(|outcome| *outcome != CommitOutcome::Committed) {
                return Err(format!("blocks were not committed: {outcomes:?}").into());
            }
            first_index += batch.len() as u64;
        }
        self.await_shown(&blocks)?;
        if self.way == Way::Settled { self.await_written(generation) } else { Ok(()) }
    }

    /// Waits until all blocks up to a generation have been written to the source's SSD.
    fn await_written(&self, generation: u64) -> Result<(), Failure> {
        let wanted = (generation + 1) * self.plan.blocks as u64;
        let http = HttpClient::new(self.cluster.nodes()[0].http_address())?;
        let began = Instant::now();
        loop {
            let page: MetadataPage = http.get_as("/cache/metadata")?.0;
            let written: u64 = page.shards.iter().map(|shard| shard.ssd.write_backs_done).sum();
            if written >= wanted {
                return Ok(());
            }
            if began.elapsed() > WRITTEN_WAIT {
                return Err(format!("{written} of {wanted} blocks are on SSD within {WRITTEN_WAIT:?}").into());
            }
            sleep(WRITTEN_LOOK);
        }
    }

    fn await_shown(&mut self, blocks: &[BlockHash]) -> Result<(), Failure> {
        let Engine { client, namespace } = &mut self.reading;
        let lists = [PrefixList { namespace: *namespace, group: GROUP, blocks }];
        let began = Instant::now();
        loop {
            let view = client.query(&lists, false, WAIT)?;
            let shown = view.places.iter().filter(|place| **place == Place::PeerDram).count();
            if shown == blocks.len() {
                return Ok(());
            }
            if began.elapsed() > WAIT {
                let all = blocks.len();
                return Err(format!("after {WAIT:?} the reader shows {shown} of {all} blocks").into());
            }
            sleep(SHOWN_LOOK);
        }
    }

    /// Reads the blocks of a generation at the reader. This is what is measured.
    ///
    /// # Errors
    /// If a block does not come.
    pub fn read(&mut self, generation: u64) -> Result<Read, Failure> {
        let blocks = self.hashes(generation);
        let plan = self.plan;
        let used_before = self.used()?;
        let Engine { client, namespace } = &mut self.reading;
        let mut ready: Vec<Option<ReadyBlock>> = vec![None; blocks.len()];
        let mut leases = Vec::new();
        let mut batches = blocks.chunks(plan.batch_blocks).enumerate();
        // Requests in flight, with the position of each one's first block.
        let mut asked: Vec<(Ticket, usize)> = Vec::new();
        let began = Instant::now();
        loop {
            while asked.len() < plan.requests
                && let Some((number, blocks)) = batches.next()
            {
                let lists = [PrefixList { namespace: *namespace, group: GROUP, blocks }];
                let ticket = client.submit_acquire(&lists, CompletionTarget::Host, None, WAIT)?;
                asked.push((ticket, number * plan.batch_blocks));
            }
            if asked.is_empty() {
                break;
            }
            let Completion { ticket, result, last } = next(client)?;
            let at = asked.iter().position(|asked| asked.0 == ticket).ok_or("an answer nobody asked for")?;
            let first = asked[at].1;
            let Outcome::Acquire(part) = result? else {
                return Err("an Acquire was answered by something else".into());
            };
            for block in part.blocks {
                let came = match block.result {
                    Ok(came) => came,
                    Err(outcome) => return Err(self.not_come(outcome)),
                };
                ready[first + block.index] = Some(came);
            }
            leases.extend(part.lease);
            if last {
                asked.swap_remove(at);
            }
        }
        let time = began.elapsed();
        let used = self.used()?.since(&used_before);
        let count = ready.len();
        let blocks: Vec<ReadyBlock> = ready.into_iter().flatten().collect();
        if blocks.len() != count {
            return Err(format!("{} of {count} blocks came", blocks.len()).into());
        }
        let from_peer = blocks.iter().filter(|block| block.place() == Place::PeerDram).count();
        Ok(Read { time, from_peer, used, blocks, leases })
    }

    /// Compares every byte of what was read, then ends the generation at both nodes.
    ///
    /// # Errors
    /// [`WrongBytes`](crate::payload::WrongBytes) for the first block that is not as it was saved.
    pub fn check(&mut self, generation: u64, read: Read) -> Result<(), Failure> {
        let batch_blocks = self.plan.batch_blocks;
        for (index, block) in read.blocks.iter().enumerate() {
            self.source.require(index % batch_blocks, generation, index as u64, block.bytes()?)?;
        }
        for lease in &read.leases {
            self.reading.client.release(lease, WAIT)?;
        }
        let keys: Vec<_> = self.hashes(generation).into_iter().map(|block| (block, GROUP)).collect();
        for engine in [&mut self.saving, &mut self.reading] {
            engine.client.evict(engine.namespace, &keys, Media::ALL, WAIT)?;
        }
        Ok(())
    }

    /// Lets the source end while the reader brings blocks of a new generation from it, and the inventory stream of the
    /// two is open.
    ///
    /// # Errors
    /// If the blocks cannot be saved or asked for, or the source does not end by itself with success.
    pub fn end_source(mut self, generation: u64) -> Result<Ending, Failure> {
        self.save(generation)?;
        let (plan, blocks) = (self.plan, self.hashes(generation));
        let Engine { client, namespace } = &mut self.reading;
        let asked = &blocks[..blocks.len().min(plan.batch_blocks * plan.requests)];
        for blocks in asked.chunks(plan.batch_blocks) {
            let lists = [PrefixList { namespace: *namespace, group: GROUP, blocks }];
            client.submit_acquire(&lists, CompletionTarget::Host, None, WAIT)?;
        }
        let mut came = Some(next(client)?);
        let mut come = 0;
        while let Some(Completion { result, .. }) = came {
            if let Outcome::Acquire(part) = result? {
                come += part.blocks.iter().filter(|block| block.result.is_ok()).count();
            }
            came = client.poll();
        }
        let asked = asked.len();
        let began = Instant::now();
        let status = self.cluster.terminate(0);
        let time = began.elapsed();
        match status {
            Some(status) if status.success() => Ok(Ending { time, asked, come }),
            Some(status) => Err(format!("the source was asked to end, and ended with {status}").into()),
            None => Err("how the source ended is not known".into()),
        }
    }

    /// What the source has lent, and what the reader has fetched.
    ///
    /// # Errors
    /// If one gives no answer.
    pub fn counters(&self) -> Result<(LendingReport, FetchingReport), Failure> {
        let of = |at: usize| -> Result<PeersReport, Failure> {
            let http = HttpClient::new(self.cluster.nodes()[at].http_address())?;
            let page: MetadataPage = http.get_as("/cache/metadata")?.0;
            let peers = page.shards.first().and_then(|shard| shard.peers.clone());
            Ok(peers.ok_or("a node is in no cluster")?)
        };
        Ok((of(0)?.lending, of(1)?.fetching))
    }

    fn not_come(&self, outcome: BlockOutcome) -> Failure {
        let counters = self.counters().map(|counters| format!("{counters:?}"));
        let counters = counters.unwrap_or_else(|error| error.to_string());
        format!("a block that the reader shows at its peer is {outcome:?}; the nodes say: {counters}").into()
    }

    fn hashes(&self, generation: u64) -> Vec<BlockHash> {
        block_hashes(self.seed, generation, 0..self.plan.blocks as u64)
    }

    fn used(&self) -> Result<Ends<Duration>, Failure> {
        let of = |at: usize| processes::processor_time(self.cluster.nodes()[at].process_id());
        Ok(Ends { source: of(0)?, reader: of(1)? })
    }
}

/// The next answer of any request.
fn next(client: &mut Client) -> Result<Completion, Failure> {
    let patience = Timespec { tv_sec: WAIT.as_secs() as i64, tv_nsec: 0 };
    loop {
        if let Some(completion) = client.poll() {
            return Ok(completion);
        }
        if poll(&mut [PollFd::new(&client.fd(), PollFlags::IN)], Some(&patience))? == 0 {
            return Err(format!("the reader said nothing for {WAIT:?}").into());
        }
    }
}
