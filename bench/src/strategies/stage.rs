//! A cluster whose owners have blocks, and a reader that comes and goes; owners are killed and started again.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use orbitkv::cluster::{Cluster, Fault, NodeOrder, Target};
use orbitkv::control::metadata::MetadataPage;
use orbitkv::control::report::PeersReport;
use orbitkv::control::signals::StopSignals;
use orbitkv_native::clock::monotonic_ns;
use serde::Serialize;

use super::plan::Strategy;
use crate::Failure;
use crate::streams::keys::Keys;
use crate::streams::owner::Owner;
use crate::streams::owners::{StartOrder, order};
use crate::streams::{RunArgs, WAIT, failure, pause};

/// Time the nodes may take to know each other.
const COMPLETE_WAIT: Duration = Duration::from_secs(180);
/// How often nodes that were started again are looked at.
const LOOK: Duration = Duration::from_millis(5);

/// What a reader has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Requests for blocks that were answered by another life than was asked.
    pub refused_asks: u64,
    /// Requests for inventory that were.
    pub refused_sessions: u64,
    /// Requests to owners for blocks: each is a batch.
    pub batches: u64,
    /// Reads of all member records.
    pub map_reads: u64,
    /// Reads of one record.
    pub record_reads: u64,
    /// Bytes of keys and values that went to and from etcd.
    pub etcd_bytes: u64,
}

impl Counts {
    fn of(page: &MetadataPage) -> Counts {
        let peers = || page.shards.iter().filter_map(|shard| shard.peers.as_ref());
        let sum = |of: fn(&PeersReport) -> u64| -> u64 { peers().map(of).sum() };
        let membership = &page.membership;
        Counts {
            refused_asks: sum(|peers| peers.fetching.stale_epoch),
            refused_sessions: sum(|peers| peers.sessions_superseded),
            batches: sum(|peers| peers.fetching.operations),
            map_reads: membership.rereads,
            record_reads: membership.lookups,
            etcd_bytes: membership.etcd_sent_bytes + membership.etcd_received_bytes,
        }
    }

    /// What came to it since `before`.
    pub fn since(&self, before: &Counts) -> Counts {
        Counts {
            refused_asks: self.refused_asks - before.refused_asks,
            refused_sessions: self.refused_sessions - before.refused_sessions,
            batches: self.batches - before.batches,
            map_reads: self.map_reads - before.map_reads,
            record_reads: self.record_reads - before.record_reads,
            etcd_bytes: self.etcd_bytes - before.etcd_bytes,
        }
    }

    /// Refusals of either kind.
    pub fn refusals(&self) -> u64 {
        self.refused_asks + self.refused_sessions
    }

    /// Reads of either kind.
    pub fn reads(&self) -> u64 {
        self.map_reads + self.record_reads
    }
}

/// The cluster. Its processes end when it is dropped.
pub struct Stage {
    // Before the cluster, which they are connected to. None while its node is down.
    owners: Vec<Option<Owner>>,
    cluster: Cluster,
    reader: NodeOrder,
    readers_made: usize,
    seed: u64,
    residences: u64,
}

impl Stage {
    /// Starts etcd and the owners, each with its blocks.
    ///
    /// # Errors
    /// If they do not start, do not come to know each other, or do not take the blocks.
    pub fn start(args: &RunArgs, signals: &StopSignals) -> Result<Stage, Failure> {
        let start = StartOrder { coalesce: args.coalesce, ..StartOrder::default() };
        let mut order = order(args.managers + 1, args.residences, &start)?;
        let reader = order.nodes.pop().expect("one more than there are owners");
        let mut cluster = Cluster::start(&order, signals)?;
        cluster.await_complete(COMPLETE_WAIT, signals)?;
        let owners = (0..usize::from(args.managers)).map(|_| None).collect();
        let (seed, residences) = (args.seed, args.residences);
        let mut stage = Stage { owners, cluster, reader, readers_made: 0, seed, residences };
        (0..stage.owners.len()).try_for_each(|at| stage.fill(at))?;
        Ok(stage)
    }

    /// Owners.
    pub fn len(&self) -> usize {
        self.owners.len()
    }

    /// An owner's blocks.
    ///
    /// # Panics
    /// If its node is down.
    pub fn keys(&self, at: usize) -> &Keys {
        self.owners[at].as_ref().expect("it is up").keys()
    }

    /// An engine saves the blocks of an owner whose node has none.
    fn fill(&mut self, at: usize) -> Result<(), Failure> {
        // Generation 0 would be the bytes of a block that nobody wrote.
        let keys = Keys::none(self.seed, at as u64 + 1);
        let owner = Owner::start(self.cluster.nodes()[at].socket(), keys, self.seed, self.residences)?;
        self.owners[at] = Some(owner);
        Ok(())
    }

    /// Starts a reader and waits until all nodes know each other; its engine socket.
    ///
    /// # Errors
    /// If it does not start.
    pub fn add_reader(&mut self, strategy: Strategy, signals: &StopSignals) -> Result<PathBuf, Failure> {
        self.readers_made += 1;
        let mut order = NodeOrder { name: format!("reader-{}", self.readers_made), ..self.reader.clone() };
        order.flags.extend(strategy.flags());
        let socket = self.cluster.add(order, signals)?.socket().to_owned();
        self.cluster.await_complete(COMPLETE_WAIT, signals)?;
        Ok(socket)
    }

    /// Lets the reader go again.
    pub fn remove_reader(&mut self) {
        self.cluster.remove(self.owners.len());
    }

    /// What the reader has counted.
    ///
    /// # Errors
    /// If it does not answer, or has begun another life.
    pub fn counts(&self) -> Result<Counts, Failure> {
        let page = self.cluster.nodes()[self.owners.len()].page().ok_or("the reader does not answer")?;
        match page.membership.fences {
            0 => Ok(Counts::of(&page)),
            _ => Err(failure("the reader's own life has ended: the machine is too busy to measure")),
        }
    }

    /// Kills the first owners, all at once, starts them again at their addresses and saves their blocks; when each was a
    /// member again that has them, in nanoseconds of the clock.
    ///
    /// # Errors
    /// If one does not come back.
    pub fn move_owners(&mut self, moved: usize, signals: &StopSignals) -> Result<Vec<u64>, Failure> {
        for at in 0..moved {
            self.cluster.strike(Target::Node(at), Fault::Kill, signals)?;
            self.owners[at] = None;
        }
        self.cluster.restart_nodes(0..moved, signals)?;
        (0..moved).try_for_each(|at| self.fill(at))?;
        let mut back_ns = vec![None; moved];
        let began = Instant::now();
        while back_ns.contains(&None) {
            for (at, back_ns) in back_ns.iter_mut().enumerate().filter(|(_, back_ns)| back_ns.is_none()) {
                let page = self.cluster.nodes()[at].page();
                if page.is_some_and(|page| page.membership.validity == "member") {
                    *back_ns = Some(monotonic_ns());
                }
            }
            if began.elapsed() > 3 * WAIT {
                return Err(failure("an owner that was started again is no member"));
            }
            pause(LOOK, signals)?;
        }
        Ok(back_ns.into_iter().flatten().collect())
    }

    /// Refuses to go on if a node has ended by itself.
    ///
    /// # Errors
    /// With its last words.
    pub fn require_alive(&mut self) -> Result<(), Failure> {
        match self.cluster.obituaries().into_iter().next() {
            Some(words) => Err(failure(words)),
            None => Ok(()),
        }
    }
}
