//! A cluster of nodes of one shard each on this machine, with an engine at each: all of them owners, all observers.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use orbitkv::cli::http_client::HttpClient;
use orbitkv::cluster::{
    Cluster, ClusterOrder, Coordination, Division, DivisionOrder, Fault, NodeOrder, NodeProcess, Target,
};
use orbitkv::control::metadata::MetadataPage;
use orbitkv::control::owners::{Owner as Stream, OwnersPage};
use orbitkv::control::signals::StopSignals;
use orbitkv::node::BILLED_BLOCK_BYTES;
use orbitkv::quantity::{ByteSize, MIB, Span};
use orbitkv::settings::Machine;
use serde::Serialize;
use serde_json::json;

use super::coordinator::Coordinator;
use super::keys::Keys;
use super::owner::{Owner, engine};
use super::{RunArgs, WAIT, failure, overflow, pause};
use crate::processes;
use crate::{Failure, progress};

/// Time the nodes may take to know each other.
const COMPLETE_WAIT: Duration = Duration::from_secs(180);
/// How often streams are looked at until they stand at their heads.
const APPLIED_LOOK: Duration = Duration::from_millis(20);
/// Samples of each kind that a node keeps: as many as it may.
pub const SAMPLES: u32 = 65_536;
/// Blocks that a node has for a while beside its residences: of a burst before its oldest end, and brought ones.
const BLOCKS_BESIDE: u64 = 512;
/// Least arena of a node.
const DRAM_BYTES_MIN: u64 = 64 * MIB;

/// Who speaks for a node, as it was told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Identity {
    /// Its name.
    pub node_id: String,
    /// Its epoch.
    pub epoch: u64,
    /// Its incarnation, as UUID text.
    pub incarnation: String,
    /// Digest of what it subscribes to.
    pub scope_digest: String,
}

/// What a node has that owns blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Its name.
    pub node_id: String,
    /// Its live keys.
    pub keys: Keys,
}

/// What all sessions of a cluster have come to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sessions {
    /// Owner streams that are live and whole, over all nodes.
    pub live: u64,
    /// Sessions that ended, counter.
    pub lost: u64,
    /// Resets, counter.
    pub resets: u64,
    /// Registration lives that ended, counter.
    pub fences: u64,
}

/// What a phase has used of the processors, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Used {
    /// All nodes together.
    pub nodes: f64,
    /// This program.
    pub bench: f64,
}

/// The cluster. Its processes end when it is dropped.
pub struct Owners {
    // Before the cluster, which they are connected to.
    owners: Vec<Owner>,
    http: Vec<HttpClient>,
    identities: Vec<Identity>,
    coordinator: Coordinator,
    cluster: Cluster,
    joiner: Option<NodeOrder>,
}

/// Which cluster to start.
#[derive(Clone, Debug, Default)]
pub struct StartOrder {
    /// A coalescing window other than the nodes' own.
    pub coalesce: Option<Span>,
    /// Samples of each kind that a node keeps; 0 for none.
    pub samples: u32,
    /// The `orbitkv` of all nodes; none for the one of the same build.
    pub program: Option<PathBuf>,
    /// Whether there is to be memory for one more node, which joins late.
    pub joiner: bool,
    /// Namespaces of each owner; 0 for the one that owners have otherwise.
    pub namespaces: usize,
    /// Another arena than one that has room for the residences.
    pub dram: Option<ByteSize>,
    /// Another index budget than a node of such a cluster gets.
    pub index: Option<ByteSize>,
    /// Another receive budget.
    pub receive: Option<ByteSize>,
    /// Another journal.
    pub journal: Option<ByteSize>,
}

impl Owners {
    /// Starts etcd and nodes that keep samples, with a coalescing window other than their own if one is given, waits
    /// until they know each other, and saves the first blocks of each owner.
    ///
    /// # Errors
    /// If they do not start, do not come to know each other, or do not take the blocks.
    pub fn start(args: &RunArgs, coalesce: Option<Span>, signals: &StopSignals) -> Result<Owners, Failure> {
        let start = StartOrder { coalesce, samples: SAMPLES, ..StartOrder::default() };
        Owners::start_as(args, &start, signals)
    }

    /// The same, as it is ordered.
    ///
    /// # Errors
    /// As [`Owners::start`].
    pub fn start_as(args: &RunArgs, start: &StartOrder, signals: &StopSignals) -> Result<Owners, Failure> {
        let mut order = order(args.managers + u16::from(start.joiner), args.residences, start)?;
        let joiner = start.joiner.then(|| order.nodes.pop()).flatten();
        progress(&format!("starting etcd and {} nodes", args.managers));
        let began = Instant::now();
        let mut cluster = Cluster::start(&order, signals)?;
        cluster.await_complete(COMPLETE_WAIT, signals)?;
        let url = cluster.etcd_url().ok_or("an etcd was started")?;
        let coordinator = Coordinator::at(&url)?;
        let http = cluster.nodes().iter().map(|node| HttpClient::new(node.http_address()));
        let http = http.collect::<Result<Vec<_>, _>>()?;
        let identities = http.iter().map(identity).collect::<Result<Vec<_>, _>>()?;
        let owner = |(at, node): (usize, &NodeProcess)| {
            // Generation 0 would be the bytes of a block that nobody wrote.
            let keys = Keys::none(args.seed, at as u64 + 1);
            if start.namespaces < 2 {
                return Owner::start(node.socket(), keys, args.seed, args.residences);
            }
            let engines: Vec<_> = (0..start.namespaces).map(engine).collect();
            Owner::start_as(node.socket(), &engines, keys, args.seed, args.residences)
        };
        let owners = cluster.nodes().iter().enumerate().map(owner).collect::<Result<Vec<_>, _>>()?;
        let owners = Owners { owners, http, identities, coordinator, cluster, joiner };
        owners.require_heads()?;
        progress(&format!("{} nodes know each other after {:.1?}", args.managers, began.elapsed()));
        Ok(owners)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.identities.len()
    }

    /// Gives the engines away, to whoever lets them work meanwhile.
    ///
    /// # Panics
    /// If they are away.
    pub fn lend(&mut self) -> Vec<Owner> {
        assert_eq!(self.owners.len(), self.len(), "engines are lent once");
        std::mem::take(&mut self.owners)
    }

    /// Takes them back.
    ///
    /// # Panics
    /// If they are not all of them.
    pub fn take_back(&mut self, owners: Vec<Owner>) {
        assert_eq!(owners.len(), self.len(), "every engine comes back");
        self.owners = owners;
    }

    /// The engine at a node.
    pub fn owner(&mut self, at: usize) -> &mut Owner {
        &mut self.owners[at]
    }

    /// All engines.
    pub fn all(&mut self) -> &mut [Owner] {
        &mut self.owners
    }

    /// The keys of an owner.
    pub fn keys(&self, at: usize) -> Keys {
        *self.owners[at].keys()
    }

    /// The HTTP API of each node.
    pub fn http(&self) -> &[HttpClient] {
        &self.http
    }

    /// Who speaks for each node.
    pub fn identities(&self) -> &[Identity] {
        &self.identities
    }

    /// Its etcd.
    pub fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }

    /// What each node says of itself.
    ///
    /// # Errors
    /// If one does not answer.
    pub fn pages(&self) -> Result<Vec<MetadataPage>, Failure> {
        self.http.iter().map(|http| Ok(http.get_as("/cache/metadata")?.0)).collect()
    }

    /// The owner streams of a node.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn streams(&self, at: usize) -> Result<OwnersPage, Failure> {
        Ok(self.http[at].get_as("/cache/metadata/owners")?.0)
    }

    /// Which owner's changes a node that is told of them does not have all of yet, by the streams it shows; `itself` is
    /// not asked for.
    pub fn behind(&self, streams: &[Stream], itself: Option<usize>) -> Option<usize> {
        (0..self.len()).filter(|owner| Some(*owner) != itself).find(|&owner| {
            let name = &self.identities[owner].node_id;
            let stream = streams.iter().find(|stream| stream.node_id == *name);
            stream.is_none_or(|stream| !stream.installed || stream.applied != self.owners[owner].sequence())
        })
    }

    /// The name of an owner's node and its keys.
    pub fn holding(&self, owner: usize) -> Holding {
        Holding { node_id: self.identities[owner].node_id.clone(), keys: self.keys(owner) }
    }

    /// Starts one more node, which has nothing.
    ///
    /// # Errors
    /// If it does not start.
    ///
    /// # Panics
    /// If the cluster was started without a place for one.
    pub fn add(&mut self, name: String, signals: &StopSignals) -> Result<&NodeProcess, Failure> {
        let node = NodeOrder { name, ..self.joiner.clone().expect("there is a place for one") };
        Ok(self.cluster.add(node, signals)?)
    }

    /// Does this to the node that was added.
    ///
    /// # Errors
    /// If it does not start again.
    pub fn strike_added(&mut self, fault: Fault, signals: &StopSignals) -> Result<(), Failure> {
        Ok(self.cluster.strike(Target::Node(self.len()), fault, signals)?)
    }

    /// Lets an owner's journal overflow ([`overflow::until`]).
    ///
    /// # Errors
    /// If its node does not take the changes, or a signal comes.
    pub fn overflow(
        &mut self,
        at: usize,
        applied: u64,
        longest: Duration,
        signals: &StopSignals,
    ) -> Result<bool, Failure> {
        overflow::until((at, &mut self.owners[at]), &self.http[at], applied, longest, |_, _| (), signals)
    }

    /// Lets the node that was added go again.
    pub fn remove_added(&mut self) {
        self.cluster.remove(self.len());
    }

    /// What the sessions have come to.
    ///
    /// # Errors
    /// If a node does not answer, or has begun another life.
    pub fn sessions(&self) -> Result<Sessions, Failure> {
        let mut all = Sessions::default();
        for (at, page) in self.pages()?.iter().enumerate() {
            if page.incarnation != self.identities[at].incarnation {
                return Err(failure(format!("{} has begun another life", self.identities[at].node_id)));
            }
            let peers = page.shards.iter().filter_map(|shard| shard.peers.as_ref());
            all.lost += peers.map(|peers| peers.sessions_lost).sum::<u64>();
            all.resets += page.resets.iter().map(|reset| reset.count).sum::<u64>();
            all.fences += page.membership.fences;
            let streams = self.streams(at)?.owners;
            all.live +=
                streams.iter().filter(|owner| owner.state == "live" && owner.installed).count() as u64;
        }
        Ok(all)
    }

    /// Sessions of a cluster in which every node follows every other one.
    pub fn sessions_expected(&self) -> u64 {
        (self.len() * (self.len() - 1)) as u64
    }

    /// Processor time so far.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn used(&self) -> Result<Used, Failure> {
        let mut nodes = Duration::ZERO;
        for node in self.cluster.nodes() {
            nodes += processes::processor_time(node.process_id())?;
        }
        let bench = processes::processor_time(std::process::id())?;
        Ok(Used { nodes: nodes.as_secs_f64(), bench: bench.as_secs_f64() })
    }

    /// Refuses to go on if a node has ended.
    ///
    /// # Errors
    /// With its last words.
    pub fn require_alive(&mut self) -> Result<(), Failure> {
        match self.cluster.obituaries().into_iter().next() {
            Some(words) => Err(failure(words)),
            None => Ok(()),
        }
    }

    /// Changes are counted from the first: the journals must stand where the engines' changes put them.
    fn require_heads(&self) -> Result<(), Failure> {
        for (owner, page) in self.owners.iter().zip(self.pages()?) {
            if page.inventory_sequence != [owner.sequence()] {
                let (name, heads) = (page.identity.node_id, page.inventory_sequence);
                return Err(failure(format!(
                    "{name} stands at {heads:?} after {} changes",
                    owner.sequence()
                )));
            }
        }
        Ok(())
    }
}

impl Sessions {
    /// Refuses a span of time at both ends of which not all sessions were up, or in which one has ended: who was reset
    /// has seen a snapshot, which says nothing of how soon changes are seen or what they cost.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn stayed_up(before: &Sessions, after: &Sessions, expected: u64) -> Result<(), String> {
        if before.live != expected || after.live != expected {
            return Err(format!("{} and {} of {expected} sessions were up", before.live, after.live));
        }
        match before == after {
            true => Ok(()),
            false => Err(format!("sessions did not stay up: {before:?}, then {after:?}")),
        }
    }
}

impl Used {
    /// What came to it since `before`.
    pub fn since(&self, before: &Used) -> Used {
        Used { nodes: self.nodes - before.nodes, bench: self.bench - before.bench }
    }

    /// As shares of one core.
    pub fn json(&self, elapsed: Duration) -> serde_json::Value {
        let seconds = elapsed.as_secs_f64();
        json!({ "node_cores": self.nodes / seconds, "bench_cores": self.bench / seconds })
    }
}

/// Who speaks for a node, as it says.
///
/// # Errors
/// If it does not answer, or is no member.
pub fn identity(http: &HttpClient) -> Result<Identity, Failure> {
    let (page, _): (MetadataPage, _) = http.get_as("/cache/metadata")?;
    Ok(Identity {
        node_id: page.identity.node_id,
        epoch: page.epoch.ok_or("a member has an epoch")?,
        incarnation: page.incarnation,
        scope_digest: page.scope_digest.ok_or("a member has a scope")?,
    })
}

/// An arena for so many blocks of an owner, so that none of them is evicted: a node keeps track of as many as fit there if
/// they are of its own measure, however small they are.
pub fn dram_of(residences: u64) -> ByteSize {
    let bytes = (residences + BLOCKS_BESIDE) * BILLED_BLOCK_BYTES;
    ByteSize(bytes.max(DRAM_BYTES_MIN).next_multiple_of(2 * MIB))
}

/// The order of so many nodes with room for so many blocks each.
///
/// # Errors
/// If they do not fit on this machine, or there is no program.
pub fn order(count: u16, residences: u64, start: &StartOrder) -> Result<ClusterOrder, Failure> {
    let dram = dram_of(residences);
    let machine = Machine::observe();
    let division = DivisionOrder { nodes: count, shards: 1, dram: Some(dram), ssd: ByteSize(0) };
    let mut nodes = Division::of(&division, &machine)?.nodes;
    for node in &mut nodes {
        if start.samples > 0 {
            node.flags = vec!["--visibility-samples".to_owned(), start.samples.to_string()];
        }
        if let Some(span) = start.coalesce {
            node.flags.extend(["--coalesce".to_owned(), span.to_string()]);
        }
        node.dram = start.dram.unwrap_or(node.dram);
        if let Some(member) = &mut node.member {
            member.index = start.index.unwrap_or(member.index);
            member.receive = start.receive.unwrap_or(member.receive);
            member.journal = start.journal.unwrap_or(member.journal);
        }
    }
    Ok(ClusterOrder {
        nodes,
        coordination: Coordination::Started,
        name: "bench".to_owned(),
        data_parent: std::env::temp_dir(),
        program: Some(start.program.clone().map_or_else(processes::program, Ok)?),
    })
}

/// Waits until every node has all that every owner has changed, without a barrier: streams bring it by themselves.
///
/// # Errors
/// If it takes too long, or a signal comes.
pub fn await_applied(owners: &Owners, signals: &StopSignals) -> Result<(), Failure> {
    let began = Instant::now();
    for at in 0..owners.len() {
        loop {
            let streams = owners.streams(at)?.owners;
            let behind = owners.behind(&streams, Some(at));
            let Some(behind) = behind else { break };
            if began.elapsed() > 6 * WAIT {
                let (here, there) = (&owners.identities[at].node_id, &owners.identities[behind].node_id);
                return Err(failure(format!("{here} does not have all of {there}: {streams:?}")));
            }
            pause(APPLIED_LOOK, signals)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_has_room_for_all_blocks_and_for_those_of_a_burst() {
        for residences in [64, 512, 4_096, 32_768] {
            let blocks = dram_of(residences).0 / BILLED_BLOCK_BYTES;
            assert!(blocks >= residences + 128, "{residences}: {blocks}");
        }
        assert_eq!(dram_of(512), ByteSize(64 * MIB));
    }

    #[test]
    fn a_run_counts_only_with_all_sessions_up_from_beginning_to_end() {
        let up = Sessions { live: 6, lost: 2, resets: 1, fences: 0 };
        assert_eq!(Sessions::stayed_up(&up, &up, 6), Ok(()));
        let down = Sessions::stayed_up(&up, &up, 12).expect_err("half are missing");
        assert!(down.contains("6 and 6 of 12"), "{down}");
        for other in [
            Sessions { lost: 3, ..up.clone() },
            Sessions { resets: 2, ..up.clone() },
            Sessions { fences: 1, ..up.clone() },
            Sessions { live: 5, ..up.clone() },
        ] {
            assert!(Sessions::stayed_up(&up, &other, 6).is_err(), "{other:?}");
        }
    }
}
