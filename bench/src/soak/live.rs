//! The live cell: an engine that saves, queries and restores on DRAM, another one on SSD, both in rounds, every byte
//! compared here and at a peer, while other nodes change their inventory all the time.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use orbitkv::client::{
    BlockHash, Client, ClientSettings, CommitOutcome, EvictOutcome, Media, Medium as StoredOn, Namespace,
    Place, PrefixList, Registration, SaveKey,
};
use orbitkv::cluster::{Cluster, ClusterOrder, Coordination, MemberOrder, NodeOrder};
use orbitkv::control::signals::StopSignals;
use orbitkv::quantity::{ByteSize, MIB};
use orbitkv_native::clock::monotonic_ns;
use serde::Serialize;

use super::load;
use super::plan::{Live, Plan};
use super::sampler::{self, Sample};
use super::seats::{Seat, Told, Trouble};
use crate::payload::{GROUP, Source, block_hashes, registration, slot, splitmix64};
use crate::streams::distribution::Distribution;
use crate::streams::keys::Keys;
use crate::streams::owner::Owner;
use crate::streams::{WAIT, pause};
use crate::{Failure, processes, progress};

/// Time the nodes may take to know each other.
const COMPLETE_WAIT: Duration = Duration::from_secs(120);
/// How long a peer may take to show what was just saved.
const SHOWN_WAIT: Duration = Duration::from_secs(60);
const SHOWN_LOOK: Duration = Duration::from_millis(2);
const LOOK: Duration = Duration::from_millis(100);
/// Time between two words of progress.
const WORD: Duration = Duration::from_secs(60);
// The node whose blocks are in DRAM, the one whose blocks are on SSD, and the one that brings from both.
const DRAM: usize = 0;
const SSD: usize = 1;
const PEER: usize = 2;
/// Residences of each owner that only changes its inventory.
const RESIDENCES: u64 = 512;

/// What a foreground did, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Rounds.
    pub rounds: u64,
    /// Saved.
    pub saved: u64,
    /// Restored from memory.
    pub from_dram: u64,
    /// Restored from SSD.
    pub from_ssd: u64,
    /// Brought to a peer.
    pub at_peer: u64,
    /// Not brought there, which is a miss and no fault.
    pub missed_at_peer: u64,
    /// Bytes compared.
    pub bytes: u64,
    /// Accepted, not dropped, and not there.
    pub lost: u64,
}

/// What a foreground came to.
pub struct Foreground {
    /// `dram` or `ssd`.
    pub medium: &'static str,
    /// Its work.
    pub tally: Tally,
    /// How long its steps took.
    pub times: Vec<Distribution>,
}

/// What the cell came to.
pub struct LiveCell {
    /// DRAM, then SSD.
    pub foregrounds: Vec<Foreground>,
    /// How long it lasted, in seconds.
    pub seconds: f64,
    /// Changes of the owners beside.
    pub changes: u64,
    /// All looks.
    pub samples: Vec<Sample>,
    /// What ended it early.
    pub trouble: Option<Told>,
}

/// Makes the cell; the SSD file lies below a directory, and samples go into a file.
///
/// # Errors
/// If the cluster does not start, or a signal comes. What fails later is in the cell.
pub fn run(
    plan: &Plan,
    seed: u64,
    data_parent: &Path,
    file: &Path,
    signals: &StopSignals,
) -> Result<LiveCell, Failure> {
    let live = &plan.live;
    progress(&format!("live: starting etcd and {} nodes", live.nodes));
    let mut cluster = Cluster::start(&order(live, data_parent)?, signals)?;
    cluster.await_complete(COMPLETE_WAIT, signals)?;
    let seats = cluster.nodes().iter().enumerate().map(|(at, node)| {
        let owner = match at {
            DRAM | SSD => None,
            _ => Some(Owner::start(node.socket(), Keys::none(seed, at as u64 + 1), seed, RESIDENCES)?),
        };
        Ok(Seat::new(node, owner))
    });
    let seats = seats.collect::<Result<Vec<Seat>, Failure>>()?;
    let mut workers = Vec::new();
    for (at, place) in [(DRAM, Place::Dram), (SSD, Place::Ssd)] {
        let (own, peer) = (Engine::at(&seats[at], live)?, Engine::at(&seats[PEER], live)?);
        workers.push(Worker::new(live, seed ^ at as u64, place, own, peer));
    }

    let (stop, trouble, began) = (AtomicBool::new(false), Trouble::default(), Instant::now());
    let (waited, foregrounds, samples) = thread::scope(|scope| {
        let (stop, trouble, seats) = (&stop, &trouble, &seats[..]);
        for (at, seat) in seats.iter().enumerate().skip(PEER) {
            scope.spawn(move || load::change(at, seat, plan, seed, stop, trouble));
        }
        let period = Duration::from_millis(plan.sample_ms);
        let sampler = scope.spawn(move || sampler::watch(seats, period, file, stop, trouble));
        let workers: Vec<_> =
            workers.into_iter().map(|worker| scope.spawn(move || worker.work(stop, trouble))).collect();
        let waited = wait(live, &mut cluster, trouble, signals);
        stop.store(true, Ordering::Relaxed);
        let foregrounds =
            workers.into_iter().map(|worker| worker.join().expect("a foreground does not panic"));
        let foregrounds = foregrounds.collect();
        (waited, foregrounds, sampler.join().expect("the sampler does not panic"))
    });
    waited?;
    Ok(LiveCell {
        foregrounds,
        seconds: began.elapsed().as_secs_f64(),
        changes: seats.iter().map(Seat::changes).sum(),
        samples,
        trouble: trouble.take(),
    })
}

/// Until the time is over, or something went wrong.
fn wait(live: &Live, cluster: &mut Cluster, trouble: &Trouble, signals: &StopSignals) -> Result<(), Failure> {
    let (began, mut word) = (Instant::now(), WORD);
    while began.elapsed() < Duration::from_secs(live.seconds) && !trouble.is_there() {
        pause(LOOK, signals)?;
        if let Some(words) = cluster.obituaries().into_iter().next() {
            trouble.tell(Told { wrong_bytes: false, words });
        }
        if began.elapsed() >= word {
            progress(&format!("live: {} of {} s", word.as_secs(), live.seconds));
            word += WORD;
        }
    }
    Ok(())
}

fn order(live: &Live, data_parent: &Path) -> Result<ClusterOrder, Failure> {
    let (journal, index, receive) = (ByteSize(16 * MIB), ByteSize(64 * MIB), ByteSize(64 * MIB));
    let node = |at: usize| NodeOrder {
        name: match at {
            DRAM => "dram".to_owned(),
            SSD => "ssd".to_owned(),
            _ => format!("owner-{at}"),
        },
        dram: ByteSize(live.dram_bytes),
        ssd: ByteSize(if at == SSD { live.ssd_bytes } else { 0 }),
        shards: Some(1),
        cores: None,
        flags: Vec::new(),
        member: Some(MemberOrder { journal, index, receive, shares_memory: false }),
    };
    Ok(ClusterOrder {
        nodes: (0..usize::from(live.nodes)).map(node).collect(),
        coordination: Coordination::Started,
        name: "soak".to_owned(),
        data_parent: data_parent.to_owned(),
        program: Some(processes::program()?),
    })
}

/// A connected engine.
struct Engine {
    client: Client,
    namespace: Namespace,
}

impl Engine {
    fn at(seat: &Seat, live: &Live) -> Result<Engine, Failure> {
        let mut client = Client::connect(ClientSettings::new(seat.place().socket))?;
        let common = registration(live.block_bytes);
        // Owners at the same node have blocks of another size, and an instance has one layout.
        let instance = format!("{}-live", common.instance);
        let namespace = client.register(&Registration { instance, ..common }, WAIT)?;
        Ok(Engine { client, namespace })
    }

    fn places(&mut self, blocks: &[BlockHash]) -> Result<Vec<Place>, Failure> {
        let lists = [PrefixList { namespace: self.namespace, group: GROUP, blocks }];
        Ok(self.client.query(&lists, false, WAIT)?.places)
    }

    fn evict(&mut self, blocks: &[BlockHash], media: Media) -> Result<Vec<EvictOutcome>, Failure> {
        let keys: Vec<_> = blocks.iter().map(|&block| (block, GROUP)).collect();
        Ok(self.client.evict(self.namespace, &keys, media, WAIT)?)
    }

    /// Acquires blocks and compares those that come; where each came from.
    fn compare(
        &mut self,
        blocks: &[BlockHash],
        generation: u64,
        right: &Source,
    ) -> Result<Vec<Option<Place>>, Failure> {
        let lists = [PrefixList { namespace: self.namespace, group: GROUP, blocks }];
        let acquired = self.client.acquire(&lists, None, WAIT)?;
        let mut came = Vec::with_capacity(blocks.len());
        for (position, block) in acquired.blocks.iter().enumerate() {
            came.push(match block {
                Ok(ready) => {
                    right.require(position, generation, position as u64, ready.bytes()?)?;
                    Some(ready.place())
                }
                Err(_) => None,
            });
        }
        if let Some(lease) = &acquired.lease {
            self.client.release(lease, WAIT)?;
        }
        Ok(came)
    }
}

/// A foreground at work.
struct Worker<'a> {
    live: &'a Live,
    seed: u64,
    /// Where its blocks have to be when they are restored first.
    place: Place,
    own: Engine,
    peer: Engine,
    source: Source,
    /// Generations that are there, the oldest first.
    kept: VecDeque<u64>,
    state: u64,
    tally: Tally,
    save: Distribution,
    query: Distribution,
    restore: Distribution,
    bring: Distribution,
}

impl Worker<'_> {
    fn new(live: &Live, seed: u64, place: Place, own: Engine, peer: Engine) -> Worker<'_> {
        let [save, query, restore, bring] = match place {
            Place::Ssd => ["live_ssd_save", "live_ssd_query", "live_ssd_restore", "live_ssd_peer"],
            _ => ["live_dram_save", "live_dram_query", "live_dram_restore", "live_dram_peer"],
        }
        .map(Distribution::of);
        let source = Source::seeded(seed, live.blocks, live.block_bytes);
        let (kept, tally) = (VecDeque::new(), Tally::default());
        Worker { live, seed, place, own, peer, source, kept, state: seed, tally, save, query, restore, bring }
    }

    /// Rounds at their cadence until everybody is to stop.
    fn work(mut self, stop: &AtomicBool, trouble: &Trouble) -> Foreground {
        let cadence_ns = self.live.cadence().as_nanos() as u64;
        let medium = if self.place == Place::Ssd { "ssd" } else { "dram" };
        let mut intended_ns = monotonic_ns();
        // Generation 0 would be the bytes of a block that nobody wrote.
        for generation in 1.. {
            if !load::rest_until(intended_ns, stop, trouble) {
                break;
            }
            if let Err(failure) = self.round(generation, intended_ns) {
                trouble.tell(Told::of(&format!("the engine on {medium}, round {generation}"), &failure));
                break;
            }
            // What was late is not made up for: blocks are compared, no rate is.
            intended_ns = (intended_ns + cadence_ns).max(monotonic_ns());
        }
        Foreground { medium, tally: self.tally, times: vec![self.save, self.query, self.restore, self.bring] }
    }

    fn names(&self, generation: u64) -> Vec<BlockHash> {
        block_hashes(self.seed, generation, 0..self.live.blocks as u64)
    }

    fn round(&mut self, generation: u64, intended_ns: u64) -> Result<(), Failure> {
        let blocks = self.names(generation);
        self.save_all(generation, &blocks)?;
        self.save.record(monotonic_ns() - intended_ns);
        if self.place == Place::Ssd {
            self.own.client.sync(WAIT)?;
            self.own.evict(&blocks, Media::from(StoredOn::Dram))?;
        }
        let asked_ns = monotonic_ns();
        let places = self.own.places(&blocks)?;
        let queried_ns = monotonic_ns();
        self.query.record(queried_ns - asked_ns);
        if let Some(other) = places.iter().find(|place| **place != self.place) {
            return Err(format!("a block just saved is at {other:?} and not at {:?}", self.place).into());
        }
        let came = self.own.compare(&blocks, generation, &self.source)?;
        self.restore.record(monotonic_ns() - queried_ns);
        self.count(&came);
        self.at_peer(generation, &blocks)?;
        self.kept.push_back(generation);
        let again = self.kept[(splitmix64(&mut self.state) % self.kept.len() as u64) as usize];
        let came = self.own.compare(&self.names(again), again, &self.source)?;
        self.count(&came);
        if self.kept.len() > self.live.window
            && let Some(oldest) = self.kept.pop_front()
        {
            let outcomes = self.own.evict(&self.names(oldest), Media::ALL)?;
            let gone = outcomes.iter().filter(|outcome| **outcome == EvictOutcome::Absent).count();
            self.tally.lost += gone as u64;
        }
        self.tally.rounds += 1;
        Ok(())
    }

    fn save_all(&mut self, generation: u64, blocks: &[BlockHash]) -> Result<(), Failure> {
        self.source.stamp(generation, 0);
        let key = |&block| SaveKey { block, group: GROUP, bytes: self.live.block_bytes };
        let keys: Vec<SaveKey> = blocks.iter().map(key).collect();
        let reserved = self.own.client.reserve(self.own.namespace, &keys, false, WAIT)?;
        let mut slots = reserved.into_iter().map(slot).collect::<Result<Vec<_>, _>>()?;
        for (position, slot) in slots.iter_mut().enumerate() {
            slot.copy_in(0, self.source.block(position))?;
        }
        let outcomes = self.own.client.commit(&mut slots, WAIT)?;
        match outcomes.iter().find(|outcome| **outcome != CommitOutcome::Committed) {
            None => self.tally.saved += blocks.len() as u64,
            Some(other) => return Err(format!("a block was not committed: {other:?}").into()),
        }
        Ok(())
    }

    fn count(&mut self, came: &[Option<Place>]) {
        let of = |wanted: Option<Place>| came.iter().filter(|place| **place == wanted).count() as u64;
        let (dram, ssd) = (of(Some(Place::Dram)), of(Some(Place::Ssd)));
        self.tally.from_dram += dram;
        self.tally.from_ssd += ssd;
        // What has to come from a peer is not here any more.
        self.tally.lost += came.len() as u64 - dram - ssd;
        self.tally.bytes += (came.len() as u64 - of(None)) * self.live.block_bytes;
    }

    /// Brings the blocks to a peer and drops them there again.
    fn at_peer(&mut self, generation: u64, blocks: &[BlockHash]) -> Result<(), Failure> {
        let began_ns = monotonic_ns();
        let is_shown = |place: &Place| matches!(place, Place::PeerDram | Place::PeerSsd);
        while !self.peer.places(blocks)?.iter().all(is_shown) {
            if monotonic_ns() - began_ns > SHOWN_WAIT.as_nanos() as u64 {
                return Err(format!("a peer does not show what was saved {SHOWN_WAIT:?} ago").into());
            }
            thread::sleep(SHOWN_LOOK);
        }
        let shown_ns = monotonic_ns();
        let came = self.peer.compare(blocks, generation, &self.source)?;
        self.bring.record(monotonic_ns() - shown_ns);
        let count = came.iter().flatten().count() as u64;
        self.tally.at_peer += count;
        self.tally.missed_at_peer += came.len() as u64 - count;
        self.tally.bytes += count * self.live.block_bytes;
        self.peer.evict(blocks, Media::ALL)?;
        Ok(())
    }
}
