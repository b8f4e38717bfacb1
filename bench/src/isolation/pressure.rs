//! The pressure: an engine of another node that puts and deletes keys in bursts. Their blocks hold a stamp and nobody
//! ever asks for them, so that all that reaches the foreground's node is metadata.
//!
//! A burst that is late is made up for, so that the rate holds, but never sooner than half a period after the one before:
//! what comes closer is another pressure than the declared one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use orbitkv::client::{
    BlockHash, Client, CommitOutcome, EvictOutcome, Media, Namespace, Place, PrefixList, SaveKey,
};
use orbitkv_native::clock::monotonic_ns;
use serde::{Deserialize, Serialize};

use super::exposure::Burst;
use super::plan::{BURST_CHANGES, BURST_PERIOD, LIVE_KEYS, Plan};
use super::stage::{Seat, Sight, WAIT};
use crate::Failure;
use crate::clock::sleep_until;
use crate::payload::{GROUP, block_hash, registration, slot};

/// Puts of a burst, and as many deletes.
const HALF: u64 = BURST_CHANGES / 2;
/// Deleted keys that are looked for at the end, the newest ones.
const DELETED_KEPT: usize = 512;
/// Tells its keys from those of the foreground.
const GENERATION: u64 = u64::MAX;
/// Keys saved at once where the node is filled.
const FILL_KEYS: u64 = 128;

/// The engine, and which of its keys are there.
pub struct Pressure {
    client: Client,
    namespace: Namespace,
    block_bytes: u64,
    seed: u64,
    next: u64,
    live: VecDeque<BlockHash>,
    deleted: VecDeque<BlockHash>,
}

/// What was found of its keys on the foreground's node when all was over, key by key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinalCheck {
    /// Head of the pressure node's journal before the first burst.
    pub head_before: u64,
    /// Changes that were made since.
    pub changes: u64,
    /// Its head at last.
    pub head: u64,
    /// What the foreground's node had applied of it.
    pub applied: u64,
    /// Rows it had of it.
    pub rows: u64,
    /// Keys that are there.
    pub live: usize,
    /// Of those, keys that the foreground's node shows at the peer.
    pub live_shown: usize,
    /// Keys that were deleted last.
    pub deleted: usize,
    /// Of those, keys that it shows nowhere.
    pub deleted_hidden: usize,
    /// Blocks that crossed between the two nodes, in either direction: none may.
    pub payload_blocks: u64,
}

impl FinalCheck {
    /// What is wrong, if something is.
    pub fn wrong(&self) -> Option<String> {
        let FinalCheck {
            head_before,
            changes,
            head,
            applied,
            rows,
            live,
            live_shown,
            deleted,
            deleted_hidden,
            ..
        } = *self;
        if head != head_before + changes {
            return Some(format!("the journal grew from {head_before} to {head} by {changes} changes"));
        }
        if applied != head {
            return Some(format!("{applied} of {head} changes were applied at last"));
        }
        if live_shown != live || rows != live as u64 {
            return Some(format!("{live} keys are there, {live_shown} are shown, in {rows} rows"));
        }
        if deleted_hidden != deleted {
            return Some(format!(
                "{deleted} keys were deleted, {deleted_hidden} of them are not shown any more"
            ));
        }
        (self.payload_blocks > 0).then(|| format!("{} blocks crossed between the nodes", self.payload_blocks))
    }
}

impl Pressure {
    /// Connects and fills the node.
    ///
    /// # Errors
    /// If the node refuses something.
    pub fn begin(seat: &Seat, plan: &Plan) -> Result<Pressure, Failure> {
        let mut client = seat.connect()?;
        let namespace = client.register(&registration(plan.pressure_block_bytes), WAIT)?;
        let mut pressure = Pressure {
            client,
            namespace,
            block_bytes: plan.pressure_block_bytes,
            seed: seat.seed,
            next: 0,
            live: VecDeque::new(),
            deleted: VecDeque::new(),
        };
        while pressure.next < LIVE_KEYS {
            pressure.put(FILL_KEYS.min(LIVE_KEYS - pressure.next))?;
        }
        Ok(pressure)
    }

    /// Bursts from `first_ns` on until `stop` is set.
    ///
    /// # Errors
    /// If the node refuses something.
    pub fn run(&mut self, first_ns: u64, stop: &AtomicBool) -> Result<Vec<Burst>, Failure> {
        let period = BURST_PERIOD.as_nanos() as u64;
        let mut bursts: Vec<Burst> = Vec::new();
        let mut intended_ns = first_ns;
        while !stop.load(Ordering::Relaxed) {
            let soonest = bursts.last().map_or(0, |before| before.began_ns + period / 2);
            sleep_until(intended_ns.max(soonest));
            let began_ns = monotonic_ns();
            self.put(HALF)?;
            self.delete(HALF)?;
            let changes = (bursts.len() as u64 + 1) * BURST_CHANGES;
            bursts.push(Burst { intended_ns, began_ns, ended_ns: monotonic_ns(), changes });
            intended_ns += period;
        }
        Ok(bursts)
    }

    fn put(&mut self, count: u64) -> Result<(), Failure> {
        let numbers = self.next..self.next + count;
        let blocks: Vec<_> = numbers.map(|number| block_hash(self.seed, GENERATION, number)).collect();
        let key = |&block| SaveKey { block, group: GROUP, bytes: self.block_bytes };
        let keys: Vec<SaveKey> = blocks.iter().map(key).collect();
        let reserved = self.client.reserve(self.namespace, &keys, false, WAIT)?;
        let mut slots = reserved.into_iter().map(slot).collect::<Result<Vec<_>, _>>()?;
        for (slot, block) in slots.iter_mut().zip(&blocks) {
            slot.copy_in(0, &block.0)?;
        }
        let outcomes = self.client.commit(&mut slots, WAIT)?;
        if let Some(other) = outcomes.iter().find(|outcome| **outcome != CommitOutcome::Committed) {
            return Err(format!("a key was not put: {other:?}").into());
        }
        self.next += count;
        self.live.extend(blocks);
        Ok(())
    }

    fn delete(&mut self, count: u64) -> Result<(), Failure> {
        let blocks: Vec<BlockHash> = self.live.drain(..count as usize).collect();
        let keys: Vec<_> = blocks.iter().map(|&block| (block, GROUP)).collect();
        let outcomes = self.client.evict(self.namespace, &keys, Media::ALL, WAIT)?;
        if let Some(other) = outcomes.iter().find(|outcome| **outcome != EvictOutcome::Evicted) {
            return Err(format!("a key was not deleted: {other:?}").into());
        }
        self.deleted.extend(blocks);
        let kept = self.deleted.len().min(DELETED_KEPT);
        self.deleted.drain(..self.deleted.len() - kept);
        Ok(())
    }

    /// Compares the foreground's node with what was done, once it has applied all of it.
    ///
    /// # Errors
    /// If a node gives no answer.
    pub fn check(
        &self,
        observer: &Seat,
        sight: &Sight,
        head_before: u64,
        changes: u64,
    ) -> Result<FinalCheck, Failure> {
        let (head, owner) = sight.await_applied()?;
        let mut client = observer.connect()?;
        let namespace = client.register(&registration(self.block_bytes), WAIT)?;
        let mut places = |blocks: &[BlockHash]| {
            client
                .query(&[PrefixList { namespace, group: GROUP, blocks }], false, WAIT)
                .map(|view| view.places)
        };
        let live: Vec<BlockHash> = self.live.iter().copied().collect();
        let shown = places(&live)?.iter().filter(|place| **place == Place::PeerDram).count();
        let mut hidden = 0;
        // Each alone: a query looks no further than the first key that nobody has.
        for &block in &self.deleted {
            hidden += usize::from(places(&[block])? == [Place::None]);
        }
        Ok(FinalCheck {
            head_before,
            changes,
            head,
            applied: owner.applied,
            rows: u64::from(owner.rows),
            live: live.len(),
            live_shown: shown,
            deleted: self.deleted.len(),
            deleted_hidden: hidden,
            payload_blocks: sight.payload_blocks()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_the_final_check_counts() {
        let right = FinalCheck {
            head_before: 512,
            changes: 6_400,
            head: 6_912,
            applied: 6_912,
            rows: 512,
            live: 512,
            live_shown: 512,
            deleted: 512,
            deleted_hidden: 512,
            payload_blocks: 0,
        };
        assert_eq!(right.wrong(), None);
        type Spoil = fn(&mut FinalCheck);
        let wrong: [(&str, Spoil); 7] = [
            ("grew from 512", |check| check.changes -= 64),
            ("grew from 512", |check| (check.head, check.applied) = (6_911, 6_911)),
            ("were applied", |check| check.applied -= 1),
            ("511 are shown", |check| check.live_shown -= 1),
            ("in 513 rows", |check| check.rows += 1),
            ("511 of them", |check| check.deleted_hidden -= 1),
            ("1 blocks crossed", |check| check.payload_blocks += 1),
        ];
        for (words, change) in wrong {
            let mut check = right.clone();
            change(&mut check);
            let why = check.wrong().expect(words);
            assert!(why.contains(words), "{why}");
        }
    }
}
