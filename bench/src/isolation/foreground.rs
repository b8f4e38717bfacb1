//! The engine that is to be isolated: save, query and restore of new blocks on one node, in rounds of a fixed cadence,
//! the same whatever else happens.
//!
//! A round begins at its intended time, and its save is counted from then, so that a stall before it is not hidden. On
//! the medium SSD the blocks are written back and DRAM is cleared before they are asked for: that is not counted,
//! and each of them must then come from the device.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use orbitkv::client::{
    BlockHash, Client, CommitOutcome, EvictOutcome, Media, Medium as StoredOn, Namespace, Place, PrefixList,
    RequestMoments, SaveKey,
};
use orbitkv_native::affinity;
use orbitkv_native::clock::monotonic_ns;
use orbitkv_native::ssd_transfer::AlignedBuffer;
use serde::{Deserialize, Serialize};

use super::plan::Plan;
use super::schedule::Medium;
use super::stage::{Seat, WAIT};
use crate::Failure;
use crate::clock::sleep_until;
use crate::payload::{GROUP, Source, block_hashes, registration, slot};

/// From the last preparation to the first round, so that every thread is there.
pub const BEFORE_ROUNDS: Duration = Duration::from_millis(300);

/// One round, in nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "[u64; 6]", from = "[u64; 6]")]
pub struct Round {
    /// When it should have begun.
    pub intended_ns: u64,
    /// When it began.
    pub began_ns: u64,
    /// When all its blocks were committed.
    pub saved_ns: u64,
    /// When they were where they are to be restored from.
    pub settled_ns: u64,
    /// When the query was answered.
    pub queried_ns: u64,
    /// When all bytes were copied out.
    pub restored_ns: u64,
}

impl Round {
    /// What its numbers are, in order.
    pub const COLUMNS: [&str; 6] =
        ["intended_ns", "began_ns", "saved_ns", "settled_ns", "queried_ns", "restored_ns"];
}

impl From<Round> for [u64; 6] {
    fn from(round: Round) -> [u64; 6] {
        let Round { intended_ns, began_ns, saved_ns, settled_ns, queried_ns, restored_ns } = round;
        [intended_ns, began_ns, saved_ns, settled_ns, queried_ns, restored_ns]
    }
}

impl From<[u64; 6]> for Round {
    fn from(numbers: [u64; 6]) -> Round {
        let [intended_ns, began_ns, saved_ns, settled_ns, queried_ns, restored_ns] = numbers;
        Round { intended_ns, began_ns, saved_ns, settled_ns, queried_ns, restored_ns }
    }
}

/// What of a round is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// From the intended start until all blocks are committed: reserve, copy in, commit.
    Save,
    /// A query of all blocks of the round.
    Query,
    /// Acquire and copy out.
    Restore,
}

impl Operation {
    /// All of them.
    pub const ALL: [Operation; 3] = [Operation::Save, Operation::Query, Operation::Restore];
    /// Those that have a gate.
    pub const GATED: [Operation; 2] = [Operation::Save, Operation::Query];

    /// Its stable name.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Save => "save",
            Operation::Query => "query",
            Operation::Restore => "restore",
        }
    }

    /// How long it took in a round.
    pub fn of(self, round: &Round) -> u64 {
        let (from, until) = match self {
            Operation::Save => (round.intended_ns, round.saved_ns),
            Operation::Query => (round.settled_ns, round.queried_ns),
            Operation::Restore => (round.queried_ns, round.restored_ns),
        };
        until.saturating_sub(from)
    }
}

/// The engine, connected and with its memory touched.
struct Foreground<'a> {
    client: Client,
    namespace: Namespace,
    plan: &'a Plan,
    medium: Medium,
    seed: u64,
    source: Source,
    target: AlignedBuffer,
}

/// What an engine did.
pub struct Served {
    /// Its rounds, those of the warm-up first.
    pub rounds: Vec<Round>,
    /// When it submitted each request and had its answer, if its seat says so.
    pub moments: Vec<RequestMoments>,
}

/// All rounds, those of the warm-up first, on the node's core. Ends early if `stop` is set.
///
/// # Errors
/// If the node refuses something, or [`WrongBytes`](crate::payload::WrongBytes).
pub fn run(
    seat: &Seat,
    plan: &Plan,
    medium: Medium,
    epoch_ns: u64,
    stop: &AtomicBool,
) -> Result<Served, Failure> {
    affinity::pin_current_thread(seat.core)?;
    let mut client = seat.connect()?;
    let namespace = client.register(&registration(plan.block_bytes), WAIT)?;
    let mut foreground = Foreground {
        client,
        namespace,
        plan,
        medium,
        seed: seat.seed,
        source: Source::seeded(seat.seed, plan.blocks, plan.block_bytes),
        target: AlignedBuffer::zeroed(plan.round_bytes() as usize),
    };
    let mut rounds = Vec::with_capacity(plan.warm_up_rounds + plan.rounds);
    let cadence = plan.cadence().as_nanos() as u64;
    'rounds: for number in 0..(plan.warm_up_rounds + plan.rounds) as u64 {
        let intended_ns = epoch_ns + number * cadence;
        // In steps, so that a signal does not wait for the cadence.
        while monotonic_ns() < intended_ns {
            if stop.load(Ordering::Relaxed) {
                break 'rounds;
            }
            sleep_until(intended_ns.min(monotonic_ns() + Duration::from_millis(100).as_nanos() as u64));
        }
        rounds.push(foreground.round(number, intended_ns)?);
    }
    match foreground.client.take_moments() {
        (moments, 0) => Ok(Served { rounds, moments }),
        (_, lost) => Err(format!("{lost} requests more than expected were answered").into()),
    }
}

impl Foreground<'_> {
    fn round(&mut self, generation: u64, intended_ns: u64) -> Result<Round, Failure> {
        let began_ns = monotonic_ns();
        let blocks = block_hashes(self.seed, generation, 0..self.plan.blocks as u64);
        self.source.stamp(generation, 0);
        self.save(&blocks)?;
        let saved_ns = monotonic_ns();
        let settled_ns = match self.medium {
            Medium::Dram => saved_ns,
            Medium::Ssd => {
                self.client.sync(WAIT)?;
                self.evict(&blocks, Media::from(StoredOn::Dram))?;
                monotonic_ns()
            }
        };
        self.query(&blocks)?;
        let queried_ns = monotonic_ns();
        let lease = self.restore(&blocks)?;
        let restored_ns = monotonic_ns();

        let restored = self.target.chunks_exact(self.plan.block_bytes as usize).enumerate();
        for (position, block) in restored {
            self.source.require(position, generation, position as u64, block)?;
        }
        self.client.release(&lease, WAIT)?;
        self.evict(&blocks, Media::ALL)?;
        Ok(Round { intended_ns, began_ns, saved_ns, settled_ns, queried_ns, restored_ns })
    }

    fn save(&mut self, blocks: &[BlockHash]) -> Result<(), Failure> {
        let key = |&block| SaveKey { block, group: GROUP, bytes: self.plan.block_bytes };
        let keys: Vec<SaveKey> = blocks.iter().map(key).collect();
        let reserved = self.client.reserve(self.namespace, &keys, false, WAIT)?;
        let mut slots = reserved.into_iter().map(slot).collect::<Result<Vec<_>, _>>()?;
        for (position, slot) in slots.iter_mut().enumerate() {
            slot.copy_in(0, self.source.block(position))?;
        }
        let outcomes = self.client.commit(&mut slots, WAIT)?;
        match outcomes.iter().find(|outcome| **outcome != CommitOutcome::Committed) {
            None => Ok(()),
            Some(other) => Err(format!("a block was not committed: {other:?}").into()),
        }
    }

    /// Where the blocks must be found.
    fn place(&self) -> Place {
        match self.medium {
            Medium::Dram => Place::Dram,
            Medium::Ssd => Place::Ssd,
        }
    }

    fn query(&mut self, blocks: &[BlockHash]) -> Result<(), Failure> {
        let lists = [PrefixList { namespace: self.namespace, group: GROUP, blocks }];
        let view = self.client.query(&lists, false, WAIT)?;
        let place = self.place();
        match view.places.iter().find(|found| **found != place) {
            None if view.boundary_blocks as usize == blocks.len() => Ok(()),
            None => Err(format!("only {} blocks of a query are there", view.boundary_blocks).into()),
            Some(other) => Err(format!("a query shows a block at {other:?}, not at {place:?}").into()),
        }
    }

    fn restore(&mut self, blocks: &[BlockHash]) -> Result<orbitkv::client::Lease, Failure> {
        let lists = [PrefixList { namespace: self.namespace, group: GROUP, blocks }];
        let acquired = self.client.acquire(&lists, None, WAIT)?;
        let place = self.place();
        let targets = self.target.chunks_exact_mut(self.plan.block_bytes as usize);
        for (block, target) in acquired.blocks.iter().zip(targets) {
            let ready = block.as_ref().map_err(|outcome| format!("a block just saved is {outcome:?}"))?;
            if ready.place() != place {
                return Err(format!("a block came from {:?}, not from {place:?}", ready.place()).into());
            }
            target.copy_from_slice(ready.bytes()?);
        }
        acquired.lease.ok_or_else(|| "blocks came without a lease".into())
    }

    fn evict(&mut self, blocks: &[BlockHash], media: Media) -> Result<(), Failure> {
        let keys: Vec<_> = blocks.iter().map(|&block| (block, GROUP)).collect();
        let outcomes = self.client.evict(self.namespace, &keys, media, WAIT)?;
        match outcomes.iter().find(|outcome| **outcome != EvictOutcome::Evicted) {
            None => Ok(()),
            Some(other) => Err(format!("a block could not be evicted: {other:?}").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_start_counts_against_the_save_and_settling_against_nobody() {
        let round = Round::from([1_000, 1_400, 2_000, 9_000, 9_050, 9_950]);
        assert_eq!(Operation::ALL.map(|operation| operation.of(&round)), [1_000, 50, 900]);
        assert_eq!(<[u64; 6]>::from(round), [1_000, 1_400, 2_000, 9_000, 9_050, 9_950]);
    }
}
