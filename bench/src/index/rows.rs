//! Rows that are made up: each owner has a range of numbers, and a number is a block of that owner alone.

use std::ops::Range;

use orbitkv_shards::key::{NamespaceId, StateKey};
use orbitkv_wire::identity::{BlockHash, GroupId, KeyHash, Medium, NamespaceDigest, Sequence, key_hash};
use orbitkv_wire::inventory::WireChange;

use super::trace::stream::mix;

/// The namespace of all rows.
pub const NAMESPACE: NamespaceDigest = NamespaceDigest([7; 32]);

/// The group of all rows.
pub const GROUP: GroupId = GroupId(0);

/// Payload of all rows.
pub const PAYLOAD_BYTES: u32 = 65_536;

/// A key and its hash, as lookups take them.
pub type Key = (StateKey, KeyHash);

/// The key of a block.
pub fn key_of(block: BlockHash) -> Key {
    let key = StateKey { namespace: NamespaceId(0), group: GROUP, block };
    (key, key_hash(&NAMESPACE, GROUP, &block))
}

/// Thirty-two bytes out of a number.
pub fn block_of(number: u64) -> BlockHash {
    let mut block = [0; 32];
    for (word, bytes) in (0..).zip(block.chunks_exact_mut(8)) {
        bytes.copy_from_slice(&mix(number ^ mix(word)).to_le_bytes());
    }
    BlockHash(block)
}

/// A change of an owner, with everything the index is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which block.
    pub key: StateKey,
    /// Its hash.
    pub hash: KeyHash,
    /// On which medium.
    pub medium: Medium,
    /// What happened there.
    pub change: WireChange,
    /// In the owner's journal.
    pub sequence: Sequence,
}

/// Who has which rows.
#[derive(Clone, Debug)]
pub struct Population {
    seed: u64,
    /// By owner: the numbers of its rows.
    rows: Vec<Range<u64>>,
    /// By owner: changes so far.
    sequences: Vec<u64>,
    drawn: u64,
}

impl Population {
    /// Owners without rows.
    pub fn new(seed: u64, owners: u32) -> Population {
        let owners = owners as usize;
        Population { seed, rows: vec![0..0; owners], sequences: vec![0; owners], drawn: 0 }
    }

    /// How many owners.
    pub fn owners(&self) -> u32 {
        self.rows.len() as u32
    }

    /// Rows of all owners.
    pub fn count(&self) -> u64 {
        self.rows.iter().map(|rows| rows.end - rows.start).sum()
    }

    fn key(&self, owner: u32, number: u64) -> Key {
        key_of(block_of(mix(self.seed ^ u64::from(owner) << 32) ^ number))
    }

    fn change(&mut self, owner: u32, number: u64, change: WireChange) -> Change {
        let ((key, hash), sequence) = (self.key(owner, number), &mut self.sequences[owner as usize]);
        *sequence += 1;
        // A quarter of the rows are on SSD.
        let medium = if number % 4 == 3 { Medium::Ssd } else { Medium::Dram };
        Change { key, hash, medium, change, sequence: Sequence(*sequence) }
    }

    fn put(&mut self, owner: u32) -> Change {
        let rows = &mut self.rows[owner as usize];
        rows.end += 1;
        let number = rows.end - 1;
        self.change(owner, number, WireChange::Put { bytes: PAYLOAD_BYTES })
    }

    fn delete(&mut self, owner: u32) -> Change {
        let rows = &mut self.rows[owner as usize];
        assert!(!rows.is_empty(), "an owner deletes what it has");
        rows.start += 1;
        let number = rows.start - 1;
        self.change(owner, number, WireChange::Delete)
    }

    /// So many new rows of an owner.
    pub fn grow(&mut self, owner: u32, count: u64, out: &mut Vec<Change>) {
        out.clear();
        out.extend((0..count).map(|_| self.put(owner)));
    }

    /// So many changes of an owner: in turn its oldest row goes and a new one comes.
    pub fn churn(&mut self, owner: u32, count: u64, out: &mut Vec<Change>) {
        out.clear();
        for at in 0..count {
            let change = if at % 2 == 0 { self.delete(owner) } else { self.put(owner) };
            out.push(change);
        }
    }

    /// Forgets the rows of an owner.
    pub fn forget(&mut self, owner: u32) {
        let rows = &mut self.rows[owner as usize];
        rows.start = rows.end;
    }

    /// So many keys of rows, of owners from `owners` and of numbers drawn evenly; each of them has a row.
    ///
    /// # Panics
    /// If one of those owners has no row.
    pub fn draw(&mut self, owners: Range<u32>, count: usize, out: &mut Vec<Key>) {
        out.clear();
        for _ in 0..count {
            self.drawn += 1;
            let drawn = mix(!self.seed ^ mix(self.drawn));
            let owner = owners.start + (drawn >> 32) as u32 % (owners.end - owners.start);
            let rows = &self.rows[owner as usize];
            let number = rows.start + u64::from(drawn as u32) % (rows.end - rows.start);
            out.push(self.key(owner, number));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Keys and media that are left once all changes have happened.
    fn replay(changes: &[Change]) -> BTreeSet<(StateKey, Medium)> {
        let mut rows = BTreeSet::new();
        for change in changes {
            let row = (change.key, change.medium);
            match change.change {
                WireChange::Put { bytes } => assert!(bytes > 0 && rows.insert(row), "{change:?}"),
                WireChange::Delete => assert!(rows.remove(&row), "{change:?}"),
            }
        }
        rows
    }

    fn some_changes(seed: u64) -> (Population, Vec<Change>) {
        let mut population = Population::new(seed, 3);
        let (mut all, mut frame) = (Vec::new(), Vec::new());
        for (owner, rows, churned) in [(0, 500, 64), (1, 100, 400), (2, 7, 0), (0, 20, 2)] {
            population.grow(owner, rows, &mut frame);
            all.extend(frame.iter().copied());
            population.churn(owner, churned, &mut frame);
            all.extend(frame.iter().copied());
        }
        (population, all)
    }

    #[test]
    fn changes_leave_as_many_rows_as_are_counted() {
        let (population, changes) = some_changes(1);
        assert_eq!((population.count(), replay(&changes).len()), (627, 627));
    }

    #[test]
    fn what_is_drawn_has_a_row_and_the_hash_of_the_protocol() {
        let (mut population, changes) = some_changes(1);
        let keys: BTreeSet<_> = replay(&changes).into_iter().map(|(key, _)| key).collect();
        let mut drawn = Vec::new();
        population.draw(0..3, 2_000, &mut drawn);
        for (key, hash) in &drawn {
            assert!(keys.contains(key));
            assert_eq!(*hash, key_hash(&NAMESPACE, GROUP, &key.block));
        }
        let different: BTreeSet<_> = drawn.iter().map(|(key, _)| key).collect();
        assert!(different.len() > 400, "{} keys of 627", different.len());
    }

    #[test]
    fn the_seed_decides() {
        assert_eq!(some_changes(5).1, some_changes(5).1);
        assert_ne!(some_changes(5).1, some_changes(6).1);
    }

    #[test]
    fn sequences_of_an_owner_ascend_by_one() {
        let mut population = Population::new(1, 2);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        population.grow(1, 5, &mut first);
        population.churn(1, 4, &mut second);
        let sequences = first.iter().chain(&second).map(|change| change.sequence.0);
        assert!(sequences.eq(1..=9));
        population.forget(1);
        assert_eq!(population.count(), 0);
    }
}
