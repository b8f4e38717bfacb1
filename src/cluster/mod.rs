//! Nodes on this machine as processes of ours, with an etcd if they are to be a cluster: what `orbitkv cluster`
//! and `orbitkv replay` start, look at, and leave nothing behind of.

mod child;
mod directory;
mod etcd;
mod fault;
mod layout;
mod node;
mod ports;
mod sight;

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::control::signals::StopSignals;
use crate::exit::Exit;
use child::{ChildProcess, end_all};
use directory::OwnDirectory;
use etcd::EtcdProcess;
use node::Seat;
use ports::Ports;

pub use child::end_child;
pub use fault::{Fault, Target};
pub use layout::{Division, DivisionOrder, DivisionRefused, MEMORY_PERCENT, NODES_MAX};
pub use node::{MemberOrder, NodeOrder, NodeProcess};
pub use sight::{COMPLETE, NodeSight, table};

/// How often a process that starts is looked at.
const START_LOOK: Duration = Duration::from_millis(10);
/// How often nodes are asked whether they know each other completely.
const COMPLETE_LOOK: Duration = Duration::from_millis(100);

/// Who tells the nodes of each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Coordination {
    /// Nobody: they are standalone.
    Standalone,
    /// An etcd of the run.
    Started,
    /// An etcd that runs already, by its URLs.
    Running(String),
}

/// What to start.
#[derive(Clone, Debug)]
pub struct ClusterOrder {
    /// The nodes; names differ.
    pub nodes: Vec<NodeOrder>,
    /// Who tells them of each other.
    pub coordination: Coordination,
    /// Name of the cluster.
    pub name: String,
    /// Directory below which a temporary one is made for SSD files.
    pub data_parent: PathBuf,
    /// The program of a node; none for the one that runs here.
    pub program: Option<PathBuf>,
}

/// Why there is no cluster.
#[derive(Debug, Error)]
pub enum ClusterFailure {
    /// A directory or a program could not be had.
    #[error("{what} {path:?}: {error}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The kernel's answer.
        error: io::Error,
    },
    /// There is no etcd to start.
    #[error(
        "there is no `etcd` in PATH: install it (Debian: etcd-server), or name a running one with --etcd URL"
    )]
    NoEtcd,
    /// Somebody has every port.
    #[error(
        "no {count} free ports that follow each other on 127.0.0.1 between {} and {}: end what holds them, or start fewer \
         nodes or shards", .searched.start, .searched.end
    )]
    Ports {
        /// Ports wanted.
        count: u16,
        /// Where they were looked for.
        searched: Range<u16>,
    },
    /// A process ended by itself.
    #[error("{}", obituary(.name, *.status, .log))]
    Ended {
        /// Which.
        name: String,
        /// How.
        status: ExitStatus,
        /// The end of its output.
        log: String,
    },
    /// A process runs and does not answer.
    #[error("{name} did not answer within {waited:?}; it said:\n{log}")]
    Silent {
        /// Which.
        name: String,
        /// How long it was waited for.
        waited: Duration,
        /// The end of its output.
        log: String,
    },
    /// The nodes run and do not know each other.
    #[error("after {waited:?} the nodes do not know each other completely:\n{table}")]
    Incomplete {
        /// How long it was waited for.
        waited: Duration,
        /// What was seen last.
        table: String,
    },
    /// A signal came first.
    #[error("stopped by {signal}")]
    Stopped {
        /// Which.
        signal: &'static str,
    },
}

impl ClusterFailure {
    /// Exit code of a command that ends with it.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            // A node says itself that its settings were at fault.
            ClusterFailure::Ended { status, .. } if status.code() == Some(Exit::Usage as i32) => Exit::Usage,
            ClusterFailure::Silent { .. } => Exit::Unreachable,
            ClusterFailure::Incomplete { .. } | ClusterFailure::Stopped { .. } => Exit::Unmet,
            _ => Exit::Environment,
        }
    }
}

/// That a process has ended, and what it said at last.
fn obituary(name: &str, status: ExitStatus, words: &str) -> String {
    match words {
        "" => format!("{name} ended with {status} and said nothing"),
        words => format!("{name} ended with {status}; its last words:\n{words}"),
    }
}

/// Waiting for a process that starts.
struct Wait<'a> {
    signals: &'a StopSignals,
    began: Instant,
    longest: Duration,
}

impl Wait<'_> {
    fn new(signals: &StopSignals, longest: Duration) -> Wait<'_> {
        Wait { signals, began: Instant::now(), longest }
    }

    /// Waits a little; an error if there is nothing to wait for any more.
    fn turn(&self, process: &mut ChildProcess) -> Result<(), ClusterFailure> {
        let name = process.name().to_owned();
        if let Some(status) = process.ended() {
            return Err(ClusterFailure::Ended { name, status, log: process.last_words() });
        }
        if self.began.elapsed() > self.longest {
            let (waited, log) = (self.longest, process.last_words());
            return Err(ClusterFailure::Silent { name, waited, log });
        }
        self.signals.wait(START_LOOK).map_or(Ok(()), |signal| Err(ClusterFailure::Stopped { signal }))
    }
}

/// Running nodes. When dropped they are stopped, then their etcd, and their directories are removed.
pub struct Cluster {
    order: ClusterOrder,
    nodes: Vec<NodeProcess>,
    /// First UDP port of each node, if it has peers.
    seats: Vec<Option<u16>>,
    url: Option<String>,
    etcd: Option<EtcdProcess>,
    etcd_told: bool,
    ports: Ports,
    // Dropped last: processes are gone then.
    run: OwnDirectory,
    data: Option<OwnDirectory>,
}

impl Cluster {
    /// Starts everything and waits until each node serves. Only one of a process at a time. To be called on a thread
    /// that lives as long as the cluster: its processes are asked to end with it.
    ///
    /// # Errors
    /// [`ClusterFailure`], with a process's own words; nothing is left behind.
    pub fn start(order: &ClusterOrder, signals: &StopSignals) -> Result<Cluster, ClusterFailure> {
        let run = OwnDirectory::below(&std::env::temp_dir())?;
        let wants_data = order.nodes.iter().any(|node| node.ssd.0 > 0);
        let data = wants_data.then(|| OwnDirectory::below(&order.data_parent)).transpose()?;
        let mut cluster = Cluster {
            order: order.clone(),
            nodes: Vec::new(),
            seats: Vec::new(),
            url: None,
            etcd: None,
            etcd_told: false,
            ports: Ports::new(),
            run,
            data,
        };
        cluster.url = match &order.coordination {
            Coordination::Standalone => None,
            Coordination::Running(url) => Some(url.clone()),
            Coordination::Started => {
                let etcd = EtcdProcess::spawn(&cluster.run, &mut cluster.ports)?;
                let etcd = cluster.etcd.insert(etcd);
                etcd.await_healthy(signals)?;
                Some(etcd.url())
            }
        };
        for at in 0..order.nodes.len() {
            cluster.seat(at)?;
        }
        for node in &mut cluster.nodes {
            node.await_ready(signals)?;
        }
        Ok(cluster)
    }

    /// Gives the next node of the order its port, and starts it.
    fn seat(&mut self, at: usize) -> Result<(), ClusterFailure> {
        let shards = self.order.nodes[at].shards.unwrap_or(1);
        let port = self.url.is_some().then(|| self.ports.datagrams(shards)).transpose()?;
        self.seats.push(port);
        let process = self.spawn(at)?;
        self.nodes.push(process);
        Ok(())
    }

    fn spawn(&self, at: usize) -> Result<NodeProcess, ClusterFailure> {
        let seat = self.url.as_ref().zip(self.seats[at]);
        let seat = seat.map(|(etcd, port)| Seat { etcd, cluster: &self.order.name, port });
        NodeProcess::spawn(&self.order, &self.order.nodes[at], seat, &self.run, self.data.as_ref())
    }

    /// Starts one more node beside those of the order, and waits until it serves. Its name is one that the cluster
    /// has not had.
    ///
    /// # Errors
    /// [`ClusterFailure`], with the node's own words; the cluster is as it was before.
    pub fn add(&mut self, node: NodeOrder, signals: &StopSignals) -> Result<&NodeProcess, ClusterFailure> {
        let at = self.nodes.len();
        self.order.nodes.push(node);
        if let Err(failure) = self.seat(at).and_then(|()| self.nodes[at].await_ready(signals)) {
            // A node is found by its place in all three.
            self.nodes.truncate(at);
            self.seats.truncate(at);
            self.order.nodes.truncate(at);
            return Err(failure);
        }
        Ok(&self.nodes[at])
    }

    /// Asks one node to end, waits until it has, and knows it no more; its status, unless the system keeps that.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn remove(&mut self, at: usize) -> Option<ExitStatus> {
        let status = self.terminate(at);
        self.nodes.remove(at);
        self.seats.remove(at);
        self.order.nodes.remove(at);
        status
    }

    /// The nodes, in the order they were given.
    #[must_use]
    pub fn nodes(&self) -> &[NodeProcess] {
        &self.nodes
    }

    /// Engine sockets of the nodes.
    #[must_use]
    pub fn sockets(&self) -> Vec<PathBuf> {
        self.nodes.iter().map(|node| node.socket().to_owned()).collect()
    }

    /// URL of the etcd that was started.
    #[must_use]
    pub fn etcd_url(&self) -> Option<String> {
        self.etcd.as_ref().map(EtcdProcess::url)
    }

    /// Number of the process of the etcd that was started.
    #[must_use]
    pub fn etcd_process_id(&self) -> Option<u32> {
        self.etcd.as_ref().map(|etcd| etcd.process.id())
    }

    /// Asks one node to end, as an operator does, and waits until it has; its status, unless the system keeps that.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn terminate(&mut self, at: usize) -> Option<ExitStatus> {
        let process = &mut self.nodes[at].process;
        end_all(std::iter::once(&mut *process));
        process.ended()
    }

    /// Looks at every node, all at once, so that one that is silent delays the others' rows only once.
    pub fn look(&mut self) -> Vec<NodeSight> {
        let ended: Vec<_> = self.nodes.iter_mut().map(NodeProcess::ended).collect();
        let names: Vec<&str> = self.nodes.iter().map(NodeProcess::name).collect();
        thread::scope(|scope| {
            let asked: Vec<_> = self
                .nodes
                .iter()
                .zip(&ended)
                .map(|(node, &ended)| {
                    let names = &names;
                    scope.spawn(move || match node.page().filter(|_| ended.is_none()) {
                        Some(page) => NodeSight::of(&page, names),
                        None => NodeSight::dark(node.name(), ended),
                    })
                })
                .collect();
            asked.into_iter().map(|row| row.join().expect("a row is made without panics")).collect()
        })
    }

    /// What has ended by itself since this was asked last, each with its last words.
    pub fn obituaries(&mut self) -> Vec<String> {
        let mut all: Vec<String> = self.nodes.iter_mut().filter_map(NodeProcess::obituary).collect();
        if let Some(etcd) = &mut self.etcd
            && !self.etcd_told
            && let Some(status) = etcd.process.ended()
        {
            self.etcd_told = true;
            all.push(obituary("etcd", status, &etcd.process.last_words()));
        }
        all
    }

    /// Whether no node runs any more.
    pub fn is_over(&mut self) -> bool {
        self.nodes.iter_mut().all(|node| node.ended().is_some())
    }

    /// Waits until every node knows all the others and has what they hold.
    ///
    /// # Errors
    /// If a node ends, the wait is over, or a signal comes.
    pub fn await_complete(&mut self, longest: Duration, signals: &StopSignals) -> Result<(), ClusterFailure> {
        let began = Instant::now();
        loop {
            let sights = self.look();
            if sights.iter().all(|sight| sight.complete) {
                return Ok(());
            }
            for node in &mut self.nodes {
                if let Some(status) = node.ended() {
                    let (name, log) = (node.name().to_owned(), node.process.last_words());
                    return Err(ClusterFailure::Ended { name, status, log });
                }
            }
            if began.elapsed() > longest {
                return Err(ClusterFailure::Incomplete { waited: longest, table: table(&sights) });
            }
            if let Some(signal) = signals.wait(COMPLETE_LOOK) {
                return Err(ClusterFailure::Stopped { signal });
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Nodes withdraw from etcd, so it goes last.
        end_all(self.nodes.iter_mut().map(|node| &mut node.process));
        end_all(self.etcd.iter_mut().map(|etcd| &mut etcd.process));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_does_not_start_leaves_no_place_behind() {
        let signals = StopSignals::watch().expect("handlers");
        let order = ClusterOrder {
            nodes: Vec::new(),
            coordination: Coordination::Standalone,
            name: "test".to_owned(),
            data_parent: std::env::temp_dir(),
            program: None,
        };
        let mut cluster = Cluster::start(&order, &signals).expect("nothing is to be started");
        // One is not there, the other ends at once.
        for program in ["/nowhere/program", "/bin/false"] {
            cluster.order.program = Some(program.into());
            let node = NodeOrder { name: "late".to_owned(), ..NodeOrder::default() };
            let failure = cluster.add(node, &signals).err().expect("it does not serve");
            let places = (cluster.nodes.len(), cluster.seats.len(), cluster.order.nodes.len());
            assert_eq!(places, (0, 0, 0), "{failure}");
        }
    }
}
