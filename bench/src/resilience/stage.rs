//! Nodes of a cluster as processes, one that reads and others that have the blocks, and what fails: a process is
//! stopped and goes on, or the reader's SSD file is cut off.

use std::fs::{File, read_dir, read_link};
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use orbitkv::cli::http_client::HttpClient;
use orbitkv::client::{
    Client, ClientSettings, CommitOutcome, EvictOutcome, Lease, Medium, Namespace, Place, PrefixList,
    Registration, Reserved, SaveKey,
};
use orbitkv::cluster::{Cluster, ClusterOrder, Coordination, MemberOrder, NodeOrder};
use orbitkv::control::health::answer::DeepChecks;
use orbitkv::control::metadata::MetadataPage;
use orbitkv::control::report::{PeersReport, ShardReport};
use orbitkv::control::signals::StopSignals;
use orbitkv::quantity::{ByteSize, MIB};
use orbitkv_shards::resilience::configuration::Rollout;
use orbitkv_wire::config::{PLACES, place_hash};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::payload::{GROUP, Source, block_hashes, registration, require_stamp, slot};
use crate::streams::pause;
use crate::{Failure, processes};

/// Bytes of a block: smaller ones would fill the tables of an arena before the arena.
pub const BLOCK_BYTES: u64 = 32 * 1024;
/// Arena of a node.
pub const DRAM_BYTES: u64 = 128 * MIB;
/// Blocks that are saved or asked for at once at most: what one call to a peer carries.
pub const BATCH_BLOCKS: usize = 128;
/// The node that reads.
pub const READER: usize = 0;
/// SSD space of a reader that has one: all that is saved there, twice.
const SSD_BYTES: u64 = 256 * MIB;
const WAIT: Duration = Duration::from_secs(10);
const COMPLETE_WAIT: Duration = Duration::from_secs(60);

/// What is started.
#[derive(Clone, Copy)]
pub struct Scene<'a> {
    /// Nodes, of which the first reads.
    pub nodes: usize,
    /// Flags of each beside the usual ones; one may be of several words.
    pub settings: &'a [&'a str],
    /// Zone of each; none if it is empty.
    pub zones: &'a [&'a str],
    /// Directory on a disk for the reader's SSD file; without one it has none.
    pub ssd: Option<&'a Path>,
}

impl<'a> Scene<'a> {
    /// Nodes without zones and without an SSD.
    pub fn of(nodes: usize, settings: &'a [&'a str]) -> Scene<'a> {
        Scene { nodes, settings, zones: &[], ssd: None }
    }

    fn flags(&self, number: usize) -> Vec<String> {
        let zone = self.zones.get(number).into_iter().flat_map(|zone| ["--zone", zone]);
        let settings = self.settings.iter().flat_map(|setting| setting.split(' '));
        settings.chain(zone).map(str::to_owned).collect()
    }
}

/// Running nodes, and an engine at each.
pub struct Stage {
    // Before the cluster, which they are connected to.
    engines: Vec<Engine>,
    cluster: Cluster,
}

/// A connected engine.
pub struct Engine {
    client: Client,
    namespace: Namespace,
}

/// How an Acquire went.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// From the request to the last answer.
    pub time: Duration,
    /// Blocks that came, each with the bytes that were saved.
    pub ready: usize,
}

/// A process that is stopped, and goes on when this is dropped.
pub struct Stopped(Pid);

impl Drop for Stopped {
    fn drop(&mut self) {
        // It may have ended.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

fn name(at: usize) -> String {
    if at == READER { "reader".to_owned() } else { format!("source-{at}") }
}

impl Stage {
    /// Starts the nodes.
    ///
    /// # Errors
    /// If they do not start or do not come to know each other.
    pub fn start(scene: &Scene<'_>, signals: &StopSignals) -> Result<Stage, Failure> {
        let nodes = scene.nodes;
        let (journal, index, receive) = (ByteSize(16 * MIB), ByteSize(16 * MIB), ByteSize(64 * MIB));
        let node = |number: usize| NodeOrder {
            name: name(number),
            dram: ByteSize(DRAM_BYTES),
            ssd: ByteSize(if number == READER && scene.ssd.is_some() { SSD_BYTES } else { 0 }),
            shards: Some(1),
            cores: None,
            flags: scene.flags(number),
            member: Some(MemberOrder { journal, index, receive, shares_memory: false }),
        };
        let order = ClusterOrder {
            nodes: (0..nodes).map(node).collect(),
            coordination: Coordination::Started,
            name: "bench".to_owned(),
            data_parent: scene.ssd.map_or_else(std::env::temp_dir, Path::to_owned),
            program: Some(processes::program()?),
        };
        let mut cluster = Cluster::start(&order, signals)?;
        cluster.await_complete(COMPLETE_WAIT, signals)?;
        let mut stage = Stage { engines: Vec::new(), cluster };
        stage.engines = (0..nodes).map(|at| stage.engine(at)).collect::<Result<_, _>>()?;
        Ok(stage)
    }

    /// Another engine at a node.
    ///
    /// # Errors
    /// If it is not let in.
    pub fn engine(&self, at: usize) -> Result<Engine, Failure> {
        self.engine_of(at, &registration(BLOCK_BYTES))
    }

    /// An engine at a node in a namespace of its own, which no other engine here has.
    ///
    /// # Errors
    /// If it is not let in.
    pub fn stranger(&self, at: usize) -> Result<Engine, Failure> {
        let registration = registration(BLOCK_BYTES);
        let [instance, model] =
            [&registration.instance, &registration.model].map(|name| format!("{name}-stranger"));
        self.engine_of(at, &Registration { instance, model, ..registration })
    }

    fn engine_of(&self, at: usize, registration: &Registration) -> Result<Engine, Failure> {
        let mut client = Client::connect(ClientSettings::new(self.cluster.nodes()[at].socket()))?;
        let namespace = client.register(registration, WAIT)?;
        Ok(Engine { client, namespace })
    }

    /// Saves the first blocks of a generation at a node, and waits until the reader has them, or knows of all of them
    /// there.
    ///
    /// # Errors
    /// If one is not taken, or not shown in time, or a signal came.
    pub fn save(
        &mut self,
        at: usize,
        generation: u64,
        blocks: usize,
        signals: &StopSignals,
    ) -> Result<(), Failure> {
        let rows_before = self.report(READER)?.0.index_rows;
        let taken = self.engines[at].offer(generation, blocks, signals)?;
        if taken < blocks {
            return Err(format!("{} of {blocks} blocks got no slot", blocks - taken).into());
        }
        self.await_shown(READER, generation, blocks, signals)?;
        let began = Instant::now();
        // Another node may have been shown for them.
        while at != READER && self.report(READER)?.0.index_rows < rows_before + blocks as u64 {
            if began.elapsed() > WAIT {
                return Err(
                    format!("the reader does not know of {blocks} blocks there within {WAIT:?}").into()
                );
            }
            pause(Duration::from_millis(2), signals)?;
        }
        Ok(())
    }

    /// Waits until a node shows the first blocks of a generation at another, or has them.
    ///
    /// # Errors
    /// If it does not in time, or a signal came.
    pub fn await_shown(
        &mut self,
        at: usize,
        generation: u64,
        blocks: usize,
        signals: &StopSignals,
    ) -> Result<(), Failure> {
        let hashes = block_hashes(0, generation, 0..blocks as u64);
        let began = Instant::now();
        let Engine { client, namespace } = &mut self.engines[at];
        let lists = [PrefixList { namespace: *namespace, group: GROUP, blocks: &hashes }];
        let has_all =
            |places: &[Place]| places.iter().all(|place| [Place::Dram, Place::PeerDram].contains(place));
        while !has_all(&client.query(&lists, false, WAIT)?.places) {
            if began.elapsed() > WAIT {
                let name = name(at);
                return Err(format!("{name} does not show all of {blocks} blocks within {WAIT:?}").into());
            }
            pause(Duration::from_millis(2), signals)?;
        }
        Ok(())
    }

    /// Waits until the first blocks of a generation are on the reader's SSD, and withdraws them from its DRAM.
    ///
    /// # Errors
    /// If they are not there in time or are in use, or a signal came.
    pub fn leave_dram(
        &mut self,
        generation: u64,
        blocks: usize,
        signals: &StopSignals,
    ) -> Result<(), Failure> {
        let began = Instant::now();
        while self.shard(READER)?.ssd.write_backs_done < blocks as u64 {
            if began.elapsed() > WAIT {
                return Err(format!("not all of {blocks} blocks are on SSD within {WAIT:?}").into());
            }
            pause(Duration::from_millis(2), signals)?;
        }
        let hashes = block_hashes(0, generation, 0..blocks as u64);
        let keys: Vec<_> = hashes.into_iter().map(|block| (block, GROUP)).collect();
        let Engine { client, namespace } = &mut self.engines[READER];
        for keys in keys.chunks(BATCH_BLOCKS) {
            let outcomes = client.evict(*namespace, keys, Medium::Dram.into(), WAIT)?;
            if outcomes.iter().any(|outcome| *outcome != EvictOutcome::Evicted) {
                return Err(format!("blocks were not evicted: {outcomes:?}").into());
            }
        }
        Ok(())
    }

    /// Cuts the reader's SSD file off: every read of what was in it fails from now on.
    ///
    /// # Errors
    /// If it has none, or the system refuses.
    pub fn cut_ssd(&self) -> Result<(), Failure> {
        Ok(self.ssd_file()?.set_len(0)?)
    }

    /// The reader's SSD file, to be written.
    ///
    /// # Errors
    /// If it has none, or the system refuses.
    pub fn ssd_file(&self) -> Result<File, Failure> {
        let process = self.cluster.nodes()[READER].process_id();
        for descriptor in read_dir(format!("/proc/{process}/fd"))? {
            let descriptor = descriptor?.path();
            // A descriptor may be closed meanwhile.
            if read_link(&descriptor).is_ok_and(|file| file.ends_with("blocks.ssd")) {
                return Ok(File::options().write(true).open(descriptor)?);
            }
        }
        Err("the reader has no SSD file".into())
    }

    /// Waits until each node's cores have the version of the settings that `orbitkv config` says is for it.
    ///
    /// # Errors
    /// If they do not in time, or a signal came.
    pub fn await_settings(&self, said: &Value, signals: &StopSignals) -> Result<(), Failure> {
        let rows = said["nodes"].as_array().ok_or("`orbitkv config` names nodes")?;
        let wanted = |name: &str| rows.iter().find(|row| row["node_id"] == name)?["version"].as_u64();
        let began = Instant::now();
        for node in self.cluster.nodes() {
            let wanted = wanted(node.name()).ok_or("`orbitkv config` names every node")?;
            let has_it = |page: MetadataPage| {
                page.config.version == wanted
                    && page.shards.iter().all(|shard| shard.config_version == wanted)
            };
            while !node.page().is_some_and(has_it) {
                if began.elapsed() > WAIT {
                    return Err(
                        format!("{} does not have settings {wanted} within {WAIT:?}", node.name()).into()
                    );
                }
                pause(Duration::from_millis(2), signals)?;
            }
        }
        Ok(())
    }

    /// The place of a node among a hundred, when settings are rolled out.
    pub fn place(at: usize) -> u32 {
        let node = name(at).parse().expect("a legal name");
        Rollout::place(place_hash(node), PLACES)
    }

    /// The nodes.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The engine at a node.
    pub fn engine_at(&mut self, at: usize) -> &mut Engine {
        &mut self.engines[at]
    }

    /// Asks for blocks at the reader, compares what comes and gives it back.
    ///
    /// # Errors
    /// As [`Engine::ask`].
    pub fn ask(&mut self, generation: u64, blocks: Range<u64>, deadline: Duration) -> Result<Asked, Failure> {
        self.engines[READER].ask(generation, blocks, deadline)
    }

    /// Stops a node's process.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn stop(&self, at: usize) -> Result<Stopped, Failure> {
        let pid = i32::try_from(self.cluster.nodes()[at].process_id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or("a process has a number")?;
        kill_process(pid, Signal::STOP)?;
        Ok(Stopped(pid))
    }

    /// What a node says of its peers, and how many blocks it refused to engines for want of room.
    ///
    /// # Errors
    /// If it gives no answer.
    pub fn report(&self, at: usize) -> Result<(PeersReport, u64), Failure> {
        let shard = self.shard(at)?;
        Ok((shard.peers.ok_or("a node is in no cluster")?, shard.service.acquires_busy))
    }

    /// The HTTP API of a node.
    ///
    /// # Errors
    /// If its address is none.
    pub fn http(&self, at: usize) -> Result<HttpClient, Failure> {
        Ok(HttpClient::new(self.cluster.nodes()[at].http_address())?)
    }

    /// Deep checks of a node.
    ///
    /// # Errors
    /// If it gives no answer.
    pub fn deep_checks(&self, at: usize) -> Result<DeepChecks, Failure> {
        Ok(self.page(at)?.deep_checks)
    }

    fn page(&self, at: usize) -> Result<MetadataPage, Failure> {
        Ok(self.http(at)?.get_as("/cache/metadata")?.0)
    }

    fn shard(&self, at: usize) -> Result<ShardReport, Failure> {
        Ok(self.page(at)?.shards.into_iter().next().ok_or("a node has a shard")?)
    }
}

impl Engine {
    /// Offers the first blocks of a generation once, and saves those that the node takes; how many they are.
    ///
    /// # Errors
    /// If a slot is neither given nor busy, a block is not committed, or a signal came.
    pub fn offer(&mut self, generation: u64, blocks: usize, signals: &StopSignals) -> Result<usize, Failure> {
        let mut source = Source::seeded(generation, BATCH_BLOCKS, BLOCK_BYTES);
        let hashes = block_hashes(0, generation, 0..blocks as u64);
        let mut taken = 0;
        for (number, batch) in hashes.chunks(BATCH_BLOCKS).enumerate() {
            pause(Duration::ZERO, signals)?;
            let key = |&block| SaveKey { block, group: GROUP, bytes: BLOCK_BYTES };
            let keys: Vec<SaveKey> = batch.iter().map(key).collect();
            let reserved = self.client.reserve(self.namespace, &keys, false, WAIT)?;
            source.stamp(generation, (number * BATCH_BLOCKS) as u64);
            let mut slots = Vec::with_capacity(keys.len());
            for (position, reserved) in reserved.into_iter().enumerate() {
                if matches!(reserved, Reserved::Busy) {
                    continue;
                }
                let mut slot = slot(reserved)?;
                slot.copy_in(0, source.block(position))?;
                slots.push(slot);
            }
            taken += slots.len();
            let outcomes = self.client.commit(&mut slots, WAIT)?;
            if outcomes.iter().any(|outcome| *outcome != CommitOutcome::Committed) {
                return Err(format!("blocks were not committed: {outcomes:?}").into());
            }
        }
        Ok(taken)
    }

    /// Asks for blocks of a generation and compares what comes.
    ///
    /// # Errors
    /// [`crate::payload::WrongBytes`], or if the node does not answer at all.
    pub fn ask(&mut self, generation: u64, blocks: Range<u64>, deadline: Duration) -> Result<Asked, Failure> {
        let first = blocks.start;
        let hashes = block_hashes(0, generation, blocks);
        let lists = [PrefixList { namespace: self.namespace, group: GROUP, blocks: &hashes }];
        let began = Instant::now();
        let acquired = self.client.acquire(&lists, None, deadline)?;
        let time = began.elapsed();
        let mut ready = 0;
        for (index, block) in (first..).zip(&acquired.blocks) {
            if let Ok(block) = block {
                require_stamp(block.bytes()?, generation, index)?;
                ready += 1;
            }
        }
        if let Some(lease) = &acquired.lease {
            self.release(lease)?;
        }
        Ok(Asked { time, ready })
    }

    fn release(&mut self, lease: &Lease) -> Result<(), Failure> {
        Ok(self.client.release(lease, WAIT)?)
    }
}
