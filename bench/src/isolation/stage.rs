//! What a run is made on: two nodes and their etcd, each process on its core, and how both are looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use orbitkv::cli::http_client::HttpClient;
use orbitkv::client::{Client, ClientSettings, ViewPopulate};
use orbitkv::cluster::{Cluster, ClusterOrder, Coordination, MemberOrder, NodeOrder};
use orbitkv::control::metadata::MetadataPage;
use orbitkv::control::owners::{Owner, OwnersPage};
use orbitkv::control::signals::StopSignals;
use orbitkv::quantity::{ByteSize, MIB};
use orbitkv::settings::CoreList;
use orbitkv_native::affinity;
use orbitkv_native::clock::monotonic_ns;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::{Deserialize, Serialize};

use super::exposure::Look;
use super::plan::Plan;
use super::schedule::Medium;
use crate::{Failure, processes};

/// Longest wait for anything a node is asked.
pub const WAIT: Duration = Duration::from_secs(10);
/// Time two nodes may take to know each other.
const COMPLETE_WAIT: Duration = Duration::from_secs(60);
/// Longest silence of a node that is looked at.
const ANSWER_WAIT: Duration = Duration::from_secs(2);
/// Passes over a process's threads until none is found elsewhere.
const PIN_PASSES: usize = 16;

const FOREGROUND: &str = "foreground";
const PRESSURE: &str = "pressure";

/// Two cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cores {
    /// Of the foreground and its node.
    pub node: usize,
    /// Of everything else.
    pub other: usize,
}

/// Where a process was found to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// Which process.
    pub process: String,
    /// The core it shall run on.
    pub core: usize,
    /// Its threads.
    pub threads: usize,
    /// Threads that may run elsewhere: none may.
    pub astray: usize,
}

/// Something of both nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Nodes<T> {
    /// Of the foreground's.
    pub foreground: T,
    /// Of the pressure's.
    pub pressure: T,
}

/// How the core of the foreground's node ran its turns: whether it was held up itself, or nobody woke it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CoreTurns {
    /// Turns since its start.
    pub turns: u64,
    /// Of those, turns that held the core for more than 100 µs.
    pub stalls: u64,
    /// The longest turn, in milliseconds.
    pub longest_ms: f64,
}

/// Where an engine sits.
#[derive(Clone, Debug)]
pub struct Seat {
    socket: PathBuf,
    /// Core it runs on.
    pub core: usize,
    /// Seed of its keys and payload.
    pub seed: u64,
    /// Requests whose moments the engine keeps.
    moments_max: usize,
}

impl Seat {
    /// At the socket of a node, on a core.
    pub fn at(socket: PathBuf, core: usize, seed: u64) -> Seat {
        Seat { socket, core, seed, moments_max: 0 }
    }

    /// The same, for an engine that keeps the moments of so many requests.
    pub fn with_moments(self, moments_max: usize) -> Seat {
        Seat { moments_max, ..self }
    }

    /// Connects, with the arena mapped whole.
    ///
    /// # Errors
    /// As the client says.
    pub fn connect(&self) -> Result<Client, Failure> {
        let settings = ClientSettings::new(&self.socket);
        let moments_max = self.moments_max;
        Ok(Client::connect(ClientSettings { populate: ViewPopulate::AtMap, moments_max, ..settings })?)
    }
}

/// Running nodes.
pub struct Stage {
    cluster: Cluster,
    cores: Cores,
    seed: u64,
}

impl Stage {
    /// Starts etcd and both nodes and puts each process on its core; this thread ends up on the other one. `flags` are
    /// further ones of the foreground's node.
    ///
    /// # Errors
    /// If they do not start or do not come to know each other, or a thread cannot be moved.
    pub fn start(
        plan: &Plan,
        medium: Medium,
        cores: Cores,
        seed: u64,
        data_parent: &Path,
        flags: &[&str],
        signals: &StopSignals,
    ) -> Result<Stage, Failure> {
        let (journal, index, receive) = (ByteSize(16 * MIB), ByteSize(64 * MIB), ByteSize(64 * MIB));
        let node = |name: &str, core, ssd| NodeOrder {
            name: name.to_owned(),
            dram: ByteSize(plan.dram_bytes),
            ssd: ByteSize(ssd),
            shards: Some(1),
            cores: Some(CoreList(vec![core])),
            member: Some(MemberOrder { journal, index, receive, shares_memory: false }),
            flags: Vec::new(),
        };
        let ssd_bytes = if medium == Medium::Ssd { plan.ssd_bytes } else { 0 };
        let order = ClusterOrder {
            nodes: vec![
                NodeOrder {
                    flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
                    ..node(FOREGROUND, cores.node, ssd_bytes)
                },
                node(PRESSURE, cores.other, 0),
            ],
            coordination: Coordination::Started,
            name: "bench".to_owned(),
            data_parent: data_parent.to_owned(),
            program: Some(processes::program()?),
        };
        // A child inherits the mask of the thread that makes it, and a node refuses cores outside of it.
        unpin(cores)?;
        let mut cluster = Cluster::start(&order, signals)?;
        affinity::pin_current_thread(cores.other)?;
        cluster.await_complete(COMPLETE_WAIT, signals)?;
        let stage = Stage { cluster, cores, seed };
        for (_, process, core) in stage.processes() {
            pin(process, core)?;
        }
        pin(std::process::id(), cores.other)?;
        Ok(stage)
    }

    fn processes(&self) -> Vec<(&'static str, u32, usize)> {
        let nodes = self.cluster.nodes();
        let etcd = self.cluster.etcd_process_id().map(|process| ("etcd", process, self.cores.other));
        [
            (FOREGROUND, nodes[0].process_id(), self.cores.node),
            (PRESSURE, nodes[1].process_id(), self.cores.other),
        ]
        .into_iter()
        .chain(etcd)
        .collect()
    }

    /// Where all of them are now, and where the threads of this process are: the foreground's engine beside its node, the
    /// others on the other core.
    ///
    /// # Errors
    /// If one is gone.
    pub fn placement(&self) -> Result<Vec<Placed>, Failure> {
        let mut all = Vec::new();
        for (name, process, core) in self.processes() {
            let masks = masks(process)?;
            let astray = masks.iter().filter(|mask| **mask != core.to_string()).count();
            let process = if name == "etcd" { name.to_owned() } else { format!("{name} node") };
            all.push(Placed { process, core, threads: masks.len(), astray });
        }
        let Cores { node, other } = self.cores;
        let own = masks(std::process::id())?;
        let on = |core: usize| own.iter().filter(|mask| **mask == core.to_string()).count();
        let (engine, harness) = (on(node), on(other));
        all.push(Placed { process: "foreground engine".to_owned(), core: node, threads: engine, astray: 0 });
        let astray = own.len() - engine - harness;
        all.push(Placed { process: "harness".to_owned(), core: other, threads: harness + astray, astray });
        Ok(all)
    }

    /// Where the engine of the foreground sits.
    pub fn foreground(&self) -> Seat {
        Seat::at(self.cluster.nodes()[0].socket().to_owned(), self.cores.node, self.seed)
    }

    /// Where that of the pressure sits.
    pub fn pressure(&self) -> Seat {
        Seat::at(self.cluster.nodes()[1].socket().to_owned(), self.cores.other, self.seed)
    }

    /// How both are looked at.
    ///
    /// # Errors
    /// If they have no address.
    pub fn sight(&self) -> Result<Sight, Failure> {
        let client = |at: usize| -> Result<HttpClient, Failure> {
            Ok(HttpClient::new(self.cluster.nodes()[at].http_address())?.with_patience(ANSWER_WAIT))
        };
        let process = |at: usize| self.cluster.nodes()[at].process_id();
        Ok(Sight {
            clients: Nodes { foreground: client(0)?, pressure: client(1)? },
            processes: Nodes { foreground: process(0), pressure: process(1) },
        })
    }
}

/// Looks at both nodes from outside.
#[derive(Clone, Debug)]
pub struct Sight {
    clients: Nodes<HttpClient>,
    processes: Nodes<u32>,
}

impl Sight {
    /// The HTTP API of the foreground's node.
    pub fn foreground(&self) -> &HttpClient {
        &self.clients.foreground
    }

    /// One look at both sides.
    ///
    /// # Errors
    /// If one gives no answer.
    pub fn look(&self, intended_ns: u64) -> Result<Look, Failure> {
        let source_head = self.head()?;
        let source_ns = monotonic_ns();
        let observer_applied = self.owner()?.applied;
        Ok(Look { intended_ns, source_ns, source_head, observer_ns: monotonic_ns(), observer_applied })
    }

    /// Head of the pressure node's journal.
    ///
    /// # Errors
    /// If it gives no answer.
    pub fn head(&self) -> Result<u64, Failure> {
        let page = self.clients.pressure.get("/cache/metadata")?;
        page["inventory_sequence"][0].as_u64().ok_or_else(|| "a node without a journal".into())
    }

    /// What the foreground's node has of the pressure's.
    fn owner(&self) -> Result<Owner, Failure> {
        let page: OwnersPage = self.clients.foreground.get_as("/cache/metadata/owners")?.0;
        let owner = page.owners.into_iter().find(|owner| owner.node_id == PRESSURE);
        owner.ok_or_else(|| "the foreground's node knows no pressure".into())
    }

    /// Waits until the foreground's node has applied all that the other has in its journal, and says both.
    ///
    /// # Errors
    /// If a node gives no answer.
    pub fn await_applied(&self) -> Result<(u64, Owner), Failure> {
        let began = Instant::now();
        loop {
            let (head, owner) = (self.head()?, self.owner()?);
            if owner.applied == head || began.elapsed() > WAIT {
                return Ok((head, owner));
            }
            sleep(Duration::from_millis(5));
        }
    }

    /// Blocks that were brought from one node to the other, or lent.
    ///
    /// # Errors
    /// If one gives no answer.
    pub fn payload_blocks(&self) -> Result<u64, Failure> {
        let of = |client: &HttpClient| -> Result<u64, Failure> {
            let page: MetadataPage = client.get_as("/cache/metadata")?.0;
            let peers = page.shards.iter().filter_map(|shard| shard.peers.as_ref());
            Ok(peers.map(|peers| peers.fetching.begun + peers.lending.granted).sum())
        };
        Ok(of(&self.clients.foreground)? + of(&self.clients.pressure)?)
    }

    /// Bytes of inventory that the pressure node has sent so far, by kind.
    ///
    /// # Errors
    /// If it gives no answer.
    pub fn bytes_by_kind(&self) -> Result<BTreeMap<String, u64>, Failure> {
        let page: MetadataPage = self.clients.pressure.get_as("/cache/metadata")?.0;
        let peers =
            page.shards.iter().find_map(|shard| shard.peers.as_ref()).ok_or("a node in no cluster")?;
        let (all, deltas, pages) = (peers.frames_sent.bytes, peers.deltas_sent.bytes, peers.pages_sent.bytes);
        let kinds = [
            ("changes (deltas)", deltas),
            ("snapshot pages", pages),
            ("other inventory frames", all.saturating_sub(deltas + pages)),
        ];
        Ok(kinds.into_iter().map(|(kind, bytes)| (kind.to_owned(), bytes)).collect())
    }

    /// The turns of the foreground's core so far.
    ///
    /// # Errors
    /// If the node gives no answer.
    pub fn core_turns(&self) -> Result<CoreTurns, Failure> {
        let page: MetadataPage = self.clients.foreground.get_as("/cache/metadata")?.0;
        let turns = page.shards.first().map(|shard| shard.turns).ok_or("a node without shards")?;
        let longest_ms = turns.slice_ns_max as f64 / 1e6;
        Ok(CoreTurns { turns: turns.turns, stalls: turns.stalls, longest_ms })
    }

    /// Blocks the foreground's node has read from its device, and bytes the kernel has read for it.
    ///
    /// # Errors
    /// If it gives no answer.
    pub fn device_reads(&self) -> Result<(u64, u64), Failure> {
        let page: MetadataPage = self.clients.foreground.get_as("/cache/metadata")?.0;
        let blocks = page.shards.iter().map(|shard| shard.ssd.reads).sum();
        let text = fs::read_to_string(format!("/proc/{}/io", self.processes.foreground))?;
        let bytes = text.lines().find_map(|line| line.strip_prefix("read_bytes: ")?.parse().ok());
        Ok((blocks, bytes.unwrap_or(0)))
    }

    /// Processor time of both so far.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn used(&self) -> Result<Nodes<Duration>, Failure> {
        Ok(Nodes {
            foreground: processes::processor_time(self.processes.foreground)?,
            pressure: processes::processor_time(self.processes.pressure)?,
        })
    }
}

/// Lets this thread run on both cores.
///
/// # Errors
/// If the kernel refuses.
pub fn unpin(cores: Cores) -> Result<(), Failure> {
    let mut mask = CpuSet::new();
    [cores.node, cores.other].into_iter().for_each(|core| mask.set(core));
    Ok(sched_setaffinity(None, &mask)?)
}

fn threads(process: u32) -> Result<BTreeSet<i32>, Failure> {
    let entries = fs::read_dir(format!("/proc/{process}/task"))?.flatten();
    Ok(entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// Cores that each thread of a process may run on.
fn masks(process: u32) -> Result<Vec<String>, Failure> {
    Ok(threads(process)?.into_iter().filter_map(|thread| allowed(process, thread)).collect())
}

/// Cores a thread may run on, as the kernel writes them; none if it has ended.
fn allowed(process: u32, thread: i32) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{process}/task/{thread}/status")).ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(list.trim().to_owned())
}

/// Moves all threads of a process to a core. Those that come later inherit it.
///
/// # Errors
/// If it is gone, or makes threads faster than they can be moved.
pub fn pin(process: u32, core: usize) -> Result<(), Failure> {
    let mut mask = CpuSet::new();
    mask.set(core);
    let mut done = BTreeSet::new();
    for _ in 0..PIN_PASSES {
        let new: Vec<i32> = threads(process)?.difference(&done).copied().collect();
        if new.is_empty() {
            return Ok(());
        }
        for thread in new {
            match sched_setaffinity(Pid::from_raw(thread), &mask) {
                // It may have ended in between.
                Ok(()) | Err(rustix::io::Errno::SRCH) => _ = done.insert(thread),
                Err(error) => return Err(error.into()),
            }
        }
    }
    Err(format!("process {process} makes threads faster than they can be moved to core {core}").into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn every_thread_of_a_process_is_moved_and_found_there() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("there is sleep");
        let core = *affinity::available_cores().expect("cores").first().expect("a core");
        let moved = pin(child.id(), core);
        let found = masks(child.id()).expect("it runs");
        child.kill().expect("it runs");
        child.wait().expect("it was started here");
        moved.expect("it may be moved");
        assert_eq!(found, [core.to_string()]);
        assert!(pin(u32::MAX, core).is_err(), "there is no such process");
    }
}
