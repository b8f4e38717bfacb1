//! An engine at a node that saves and drops blocks of its own, a burst at a time.

use std::ops::Range;
use std::path::Path;

use orbitkv::client::{
    BlockHash, Client, ClientSettings, CommitOutcome, EvictOutcome, Media, Namespace, Place, PrefixList,
    Registration, SaveKey,
};
use orbitkv_native::clock::monotonic_ns;

use super::keys::Keys;
use super::{WAIT, failure};
use crate::Failure;
use crate::payload::{GROUP, Source, registration, require_stamp, slot};

/// Bytes of a block: the least that a slot has, because nothing is measured of payload.
pub const BLOCK_BYTES: u64 = 4_096;
/// Number of the first block that is saved and dropped over and over: beyond all keys.
const REPEATED: u64 = 1 << 40;
/// Blocks of one request.
const REQUEST_BLOCKS: u64 = 128;

/// An engine and what it has saved.
pub struct Owner {
    client: Client,
    namespace: Namespace,
    source: Source,
    keys: Keys,
    /// Head of the node's journal, as this engine's changes make it.
    sequence: u64,
}

/// One burst, its times in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Whose.
    pub owner: usize,
    /// When it was to begin.
    pub intended_ns: u64,
    /// When its first request was sent.
    pub began_ns: u64,
    /// When its last change was answered.
    pub ended_ns: u64,
    /// Sequence of its last change, known before it began.
    pub terminal: u64,
}

impl Owner {
    /// Connects to a node whose journal is empty and saves the first blocks.
    ///
    /// # Errors
    /// If the node does not take them.
    pub fn start(socket: &Path, keys: Keys, seed: u64, residences: u64) -> Result<Owner, Failure> {
        Owner::start_as(socket, &registration(BLOCK_BYTES), keys, seed, residences)
    }

    /// The same as another engine, whose blocks are of another namespace.
    ///
    /// # Errors
    /// If the node does not take them.
    pub fn start_as(
        socket: &Path,
        engine: &Registration,
        keys: Keys,
        seed: u64,
        residences: u64,
    ) -> Result<Owner, Failure> {
        let mut client = Client::connect(ClientSettings::new(socket))?;
        let namespace = client.register(engine, WAIT)?;
        let source = Source::seeded(seed ^ keys.owner, REQUEST_BLOCKS as usize, BLOCK_BYTES);
        let mut owner = Owner { client, namespace, source, keys, sequence: 0 };
        owner.save(residences)?;
        Ok(owner)
    }

    /// What it has.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The text form of its namespace.
    ///
    /// # Errors
    /// If the node has not named it.
    pub fn namespace_text(&self) -> Result<String, Failure> {
        Ok(self.client.digest(self.namespace)?.to_string())
    }

    /// Head of the node's journal, if no other engine changes it.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Saves half as many new blocks as there are changes, and drops as many of its oldest.
    ///
    /// # Errors
    /// If the node does not do so.
    pub fn burst(&mut self, owner: usize, changes: u64, intended_ns: u64) -> Result<Burst, Failure> {
        let terminal = self.sequence + changes;
        let began_ns = monotonic_ns();
        self.save(changes / 2)?;
        self.drop_oldest(changes / 2)?;
        assert_eq!(self.sequence, terminal, "a burst has as many changes as it was to have");
        Ok(Burst { owner, intended_ns, began_ns, ended_ns: monotonic_ns(), terminal })
    }

    fn save(&mut self, count: u64) -> Result<(), Failure> {
        let numbers = self.keys.begin(count);
        self.save_blocks(numbers)
    }

    fn drop_oldest(&mut self, count: u64) -> Result<(), Failure> {
        let numbers = self.keys.end(count);
        self.drop_blocks(numbers)
    }

    fn save_blocks(&mut self, numbers: Range<u64>) -> Result<(), Failure> {
        let mut first = numbers.start;
        while first < numbers.end {
            let batch = first..numbers.end.min(first + REQUEST_BLOCKS);
            let key = |block: BlockHash| SaveKey { block, group: GROUP, bytes: BLOCK_BYTES };
            let wanted: Vec<_> = self.keys.names(batch.clone()).into_iter().map(key).collect();
            let reserved = self.client.reserve(self.namespace, &wanted, false, WAIT)?;
            let mut slots = reserved.into_iter().map(slot).collect::<Result<Vec<_>, _>>()?;
            self.source.stamp(self.keys.owner, batch.start);
            for (position, slot) in slots.iter_mut().enumerate() {
                slot.copy_in(0, self.source.block(position))?;
            }
            let outcomes = self.client.commit(&mut slots, WAIT)?;
            if outcomes.iter().any(|outcome| *outcome != CommitOutcome::Committed) {
                return Err(failure(format!("blocks were not committed: {outcomes:?}")));
            }
            self.sequence += batch.end - batch.start;
            first = batch.end;
        }
        Ok(())
    }

    fn drop_blocks(&mut self, numbers: Range<u64>) -> Result<(), Failure> {
        let named: Vec<_> = self.keys.names(numbers).into_iter().map(|block| (block, GROUP)).collect();
        for batch in named.chunks(REQUEST_BLOCKS as usize) {
            let outcomes = self.client.evict(self.namespace, batch, Media::ALL, WAIT)?;
            if outcomes.iter().any(|outcome| *outcome != EvictOutcome::Evicted) {
                return Err(failure(format!("blocks were not dropped: {outcomes:?}")));
            }
            self.sequence += batch.len() as u64;
        }
        Ok(())
    }

    /// Saves and drops the same blocks, which are none of its keys, over and over.
    ///
    /// # Errors
    /// If the node does not do so.
    pub fn repeat(&mut self, blocks: u64, rounds: u64) -> Result<(), Failure> {
        for _ in 0..rounds {
            self.save_blocks(REPEATED..REPEATED + blocks)?;
            self.drop_blocks(REPEATED..REPEATED + blocks)?;
        }
        Ok(())
    }

    /// Blocks of another owner that this node does not show at it.
    ///
    /// # Errors
    /// If the node does not answer.
    pub fn missing(&mut self, of: &Keys) -> Result<u64, Failure> {
        let blocks = of.names(of.live());
        let mut missing = 0;
        for blocks in blocks.chunks(4 * REQUEST_BLOCKS as usize) {
            let lists = [PrefixList { namespace: self.namespace, group: GROUP, blocks }];
            let view = self.client.query(&lists, false, WAIT)?;
            missing += view.places.iter().filter(|place| **place != Place::PeerDram).count() as u64;
        }
        Ok(missing)
    }

    /// Brings the newest blocks of another owner here and compares their stamps; how many came.
    ///
    /// # Errors
    /// If a block has another stamp, or the node does not answer.
    pub fn bring(&mut self, of: &Keys, count: u64) -> Result<u64, Failure> {
        let live = of.live();
        let numbers = live.end.saturating_sub(count).max(live.start)..live.end;
        let blocks = of.names(numbers.clone());
        let lists = [PrefixList { namespace: self.namespace, group: GROUP, blocks: &blocks }];
        let acquired = self.client.acquire(&lists, None, WAIT)?;
        let mut came = 0;
        for (number, block) in numbers.zip(&acquired.blocks) {
            if let Ok(block) = block {
                require_stamp(block.bytes()?, of.owner, number)?;
                came += 1;
            }
        }
        if let Some(lease) = &acquired.lease {
            self.client.release(lease, WAIT)?;
        }
        Ok(came)
    }
}
