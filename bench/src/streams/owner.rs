//! An engine at a node that saves and drops blocks of its own, a burst at a time, in one namespace or several.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use orbitkv::client::{
    BlockHash, Client, ClientSettings, CommitOutcome, EvictOutcome, Media, Namespace, Place, PrefixList,
    Registration, SaveKey,
};
use orbitkv_native::clock::monotonic_ns;
use serde::Serialize;

use super::keys::Keys;
use super::{WAIT, failure};
use crate::Failure;
use crate::payload::{GROUP, Source, registration, slot};

/// Bytes of a block: the least that a slot has, because nothing is measured of payload.
pub const BLOCK_BYTES: u64 = 4_096;
/// Number of the first block that is saved and dropped over and over: beyond all keys.
const REPEATED: u64 = 1 << 40;
/// Blocks of one request.
const REQUEST_BLOCKS: u64 = 128;
/// Blocks that follow each other in one namespace, if there are several.
const STRIPE_BLOCKS: u64 = 16;
/// Contents of other owners that are kept for comparing.
const CONTENTS_MAX: usize = 16;

/// An engine and what it has saved.
pub struct Owner {
    /// A connection for each namespace: it is registered as one instance.
    engines: Vec<(Client, Namespace)>,
    seed: u64,
    source: Source,
    /// What blocks of other owners have in them, by owner.
    contents: BTreeMap<u64, Source>,
    keys: Keys,
    /// Head of the node's journal, as this engine's changes make it.
    sequence: u64,
}

/// What a burst is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Mix {
    /// Changes of keys that never come back: half of them puts of new ones, half deletes of the oldest.
    pub own: u64,
    /// Blocks that are saved and dropped over and over.
    pub repeated_blocks: u64,
    /// How often a burst does so.
    pub rounds: u64,
}

impl Mix {
    /// Changes of a burst.
    pub fn changes(&self) -> u64 {
        self.own + 2 * self.repeated_blocks * self.rounds
    }
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
        Owner::start_as(socket, &[registration(BLOCK_BYTES)], keys, seed, residences)
    }

    /// The same as other engines, whose blocks are each of a namespace of its own and are saved in turn.
    ///
    /// # Errors
    /// If the node does not take them.
    pub fn start_as(
        socket: &Path,
        engines: &[Registration],
        keys: Keys,
        seed: u64,
        residences: u64,
    ) -> Result<Owner, Failure> {
        let engines = engines.iter().map(|engine| {
            let mut client = Client::connect(ClientSettings::new(socket))?;
            let namespace = client.register(engine, WAIT)?;
            Ok((client, namespace))
        });
        let engines = engines.collect::<Result<Vec<_>, Failure>>()?;
        let source = content(seed, keys.owner);
        let contents = BTreeMap::new();
        let mut owner = Owner { engines, seed, source, contents, keys, sequence: 0 };
        owner.save(residences)?;
        Ok(owner)
    }

    /// What it has.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The text form of its first namespace.
    ///
    /// # Errors
    /// If the node has not named it.
    pub fn namespace_text(&self) -> Result<String, Failure> {
        let (client, namespace) = &self.engines[0];
        Ok(client.digest(*namespace)?.to_string())
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
        self.mixed_burst(owner, &Mix { own: changes, ..Mix::default() }, intended_ns)
    }

    /// The same, and saves and drops repeated blocks.
    ///
    /// # Errors
    /// If the node does not do so.
    pub fn mixed_burst(&mut self, owner: usize, mix: &Mix, intended_ns: u64) -> Result<Burst, Failure> {
        let terminal = self.sequence + mix.changes();
        let began_ns = monotonic_ns();
        self.save(mix.own / 2)?;
        self.drop_oldest(mix.own / 2)?;
        self.repeat(mix.repeated_blocks, mix.rounds)?;
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
        for (namespace, piece) in pieces(numbers, self.engines.len()) {
            let key = |block: BlockHash| SaveKey { block, group: GROUP, bytes: BLOCK_BYTES };
            let wanted: Vec<_> = self.keys.names(piece.clone()).into_iter().map(key).collect();
            let (client, namespace) = &mut self.engines[namespace];
            let reserved = client.reserve(*namespace, &wanted, false, WAIT)?;
            let mut slots = reserved.into_iter().map(slot).collect::<Result<Vec<_>, _>>()?;
            for (number, slot) in piece.clone().zip(&mut slots) {
                self.source.stamp_one(position(number), self.keys.owner, number);
                slot.copy_in(0, self.source.block(position(number)))?;
            }
            let outcomes = client.commit(&mut slots, WAIT)?;
            if outcomes.iter().any(|outcome| *outcome != CommitOutcome::Committed) {
                return Err(failure(format!("blocks were not committed: {outcomes:?}")));
            }
            self.sequence += piece.end - piece.start;
        }
        Ok(())
    }

    fn drop_blocks(&mut self, numbers: Range<u64>) -> Result<(), Failure> {
        for (namespace, piece) in pieces(numbers, self.engines.len()) {
            let count = piece.end - piece.start;
            let outcomes = self.evict(namespace, &self.keys.names(piece))?;
            // One that a peer reads is dropped as well: its memory follows.
            if outcomes.contains(&EvictOutcome::Absent) {
                return Err(failure(format!("blocks were not there to be dropped: {outcomes:?}")));
            }
            self.sequence += count;
        }
        Ok(())
    }

    fn evict(&mut self, namespace: usize, names: &[BlockHash]) -> Result<Vec<EvictOutcome>, Failure> {
        let keys: Vec<_> = names.iter().map(|&block| (block, GROUP)).collect();
        let (client, namespace) = &mut self.engines[namespace];
        Ok(client.evict(*namespace, &keys, Media::ALL, WAIT)?)
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
        self.not_at(Place::PeerDram, of)
    }

    /// Own blocks that the node does not show in its memory.
    ///
    /// # Errors
    /// If the node does not answer.
    pub fn lost(&mut self) -> Result<u64, Failure> {
        let own = self.keys;
        self.not_at(Place::Dram, &own)
    }

    fn not_at(&mut self, place: Place, keys: &Keys) -> Result<u64, Failure> {
        let mut names = vec![Vec::new(); self.engines.len()];
        for (namespace, piece) in pieces(keys.live(), self.engines.len()) {
            names[namespace].extend(keys.names(piece));
        }
        let mut others = 0;
        for ((client, namespace), names) in self.engines.iter_mut().zip(&names) {
            for blocks in names.chunks(4 * REQUEST_BLOCKS as usize) {
                let lists = [PrefixList { namespace: *namespace, group: GROUP, blocks }];
                let view = client.query(&lists, false, WAIT)?;
                others += view.places.iter().filter(|found| **found != place).count() as u64;
            }
        }
        Ok(others)
    }

    /// Brings the newest blocks of another owner here and compares every byte; how many came.
    ///
    /// # Errors
    /// If a block has other bytes than were saved, or the node does not answer.
    pub fn bring(&mut self, of: &Keys, count: u64) -> Result<u64, Failure> {
        let mut came = 0;
        for (namespace, piece) in pieces(newest(of, count), self.engines.len()) {
            came += self.bring_piece(namespace, piece, of)?;
        }
        Ok(came)
    }

    /// Brings them and drops them here again: afterwards this node has what it had before.
    ///
    /// # Errors
    /// As [`Owner::bring`].
    pub fn visit(&mut self, of: &Keys, count: u64) -> Result<u64, Failure> {
        let mut came = 0;
        for (namespace, piece) in pieces(newest(of, count), self.engines.len()) {
            came += self.bring_piece(namespace, piece.clone(), of)?;
            // Those that did not come are not here, and that is no fault.
            self.evict(namespace, &of.names(piece))?;
        }
        Ok(came)
    }

    fn bring_piece(&mut self, namespace: usize, numbers: Range<u64>, of: &Keys) -> Result<u64, Failure> {
        let blocks = of.names(numbers.clone());
        let (client, namespace) = &mut self.engines[namespace];
        let lists = [PrefixList { namespace: *namespace, group: GROUP, blocks: &blocks }];
        let acquired = client.acquire(&lists, None, WAIT)?;
        if self.contents.len() == CONTENTS_MAX && !self.contents.contains_key(&of.owner) {
            self.contents.clear();
        }
        let right = self.contents.entry(of.owner).or_insert_with(|| content(self.seed, of.owner));
        let mut came = 0;
        for (number, block) in numbers.zip(&acquired.blocks) {
            if let Ok(block) = block {
                right.require(position(number), of.owner, number, block.bytes()?)?;
                came += 1;
            }
        }
        if let Some(lease) = &acquired.lease {
            client.release(lease, WAIT)?;
        }
        Ok(came)
    }
}

/// The engine of one of several namespaces: a model of its own.
pub fn engine(number: usize) -> Registration {
    let common = registration(BLOCK_BYTES);
    Registration {
        instance: format!("{}-{number}", common.instance),
        model: format!("{}-{number}", common.model),
        ..common
    }
}

/// What the blocks of an owner have behind their stamps.
fn content(seed: u64, owner: u64) -> Source {
    Source::seeded(seed ^ owner, REQUEST_BLOCKS as usize, BLOCK_BYTES)
}

/// Which of an owner's contents the block with a number has.
fn position(number: u64) -> usize {
    (number % REQUEST_BLOCKS) as usize
}

/// Numbers of the newest blocks.
fn newest(of: &Keys, count: u64) -> Range<u64> {
    let live = of.live();
    live.end.saturating_sub(count).max(live.start)..live.end
}

/// Numbers in pieces of one request at most, each of one of so many namespaces.
fn pieces(numbers: Range<u64>, namespaces: usize) -> Vec<(usize, Range<u64>)> {
    let mut pieces = Vec::new();
    let mut first = numbers.start;
    while first < numbers.end {
        let until = match namespaces {
            1 => first + REQUEST_BLOCKS,
            _ => (first / STRIPE_BLOCKS + 1) * STRIPE_BLOCKS,
        };
        let piece = first..until.min(numbers.end);
        first = piece.end;
        pieces.push(((piece.start / STRIPE_BLOCKS % namespaces as u64) as usize, piece));
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The namespace of each number by itself, by counting stripes.
    fn namespace_of(number: u64, namespaces: usize) -> usize {
        (0..number / 16).fold(0, |namespace, _| (namespace + 1) % namespaces)
    }

    #[test]
    fn each_number_is_in_one_piece_of_its_namespace() {
        for namespaces in [1, 4, 16] {
            for numbers in [0..0, 0..1, 5..300, 16..32, 127..129, 1_000..1_513] {
                let pieces = pieces(numbers.clone(), namespaces);
                let all: Vec<u64> = pieces.iter().flat_map(|(_, piece)| piece.clone()).collect();
                assert_eq!(all, numbers.collect::<Vec<_>>(), "in order, none twice");
                for (namespace, piece) in &pieces {
                    assert!(piece.end - piece.start <= REQUEST_BLOCKS && *namespace < namespaces);
                    for number in piece.clone() {
                        assert_eq!(*namespace, namespace_of(number, namespaces) % namespaces, "{number}");
                    }
                }
            }
        }
        assert_eq!(pieces(5..300, 1), [(0, 5..133), (0, 133..261), (0, 261..300)]);
        assert_eq!(pieces(30..50, 4), [(1, 30..32), (2, 32..48), (3, 48..50)]);
    }

    #[test]
    fn a_burst_has_the_changes_of_both_kinds_of_keys() {
        assert_eq!(Mix { own: 80, repeated_blocks: 8, rounds: 5 }.changes(), 160);
        assert_eq!(Mix { own: 64, ..Mix::default() }.changes(), 64);
    }

    #[test]
    fn blocks_of_one_request_differ_in_content() {
        let numbers = 1_000..1_000 + REQUEST_BLOCKS;
        let positions: std::collections::BTreeSet<_> = numbers.map(position).collect();
        assert_eq!(positions.len() as u64, REQUEST_BLOCKS);
    }
}
