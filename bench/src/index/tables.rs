//! The table under test and the bare hash map beside it, driven alike.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use orbitkv_native::huge_pages;
use orbitkv_native::prefetch::prefetch;
use orbitkv_shards::index::{IndexSettings, Owner, Partition, ROW_BYTES_PLANNED, Replicas, ViewId};
use orbitkv_shards::inventory::subscriber::SubscriberSettings;
use orbitkv_shards::key::StateKey;
use orbitkv_wire::identity::{Medium, Sequence, ShardIndex, key_hash};
use orbitkv_wire::inventory::WireChange;

use super::rows::{Change, Key, NAMESPACE};

/// Keys of one lookup.
pub const LOOKUP_KEYS: usize = 128;

/// Changes of one step, before which the index asks for all of their memory: as many as a node applies in one go.
pub fn step_changes() -> usize {
    SubscriberSettings::default().changes_per_step
}

/// A table of rows.
pub trait Table {
    /// Applies a frame of an owner.
    fn apply(&mut self, owner: u32, frame: &[Change]);

    /// Looks up at most [`LOOKUP_KEYS`] keys and says how many have a row.
    fn look_up(&mut self, keys: &[Key]) -> usize;

    /// Rows it has.
    fn rows(&self) -> u64;

    /// Bytes it takes by its own account.
    fn accounted_bytes(&self) -> u64;
}

/// An owner partition with one installed view an owner.
pub struct Index {
    /// The partition.
    pub partition: Partition,
    views: Vec<ViewId>,
    found: Vec<Replicas>,
}

impl Index {
    /// An empty one, for so many rows.
    pub fn new(owners: u32, rows: u64) -> Index {
        let partition = Partition::new(IndexSettings { budget_bytes: rows * ROW_BYTES_PLANNED });
        let mut index = Index {
            partition: partition.with_prefetch(prefetch).with_advice(huge_pages::advise),
            views: Vec::with_capacity(owners as usize),
            found: vec![Replicas::default(); LOOKUP_KEYS],
        };
        for owner in 0..owners {
            let view = index.open(owner);
            index.views.push(view);
        }
        index
    }

    fn open(&mut self, owner: u32) -> ViewId {
        let owner = Owner { peer: owner, shard: ShardIndex(0) };
        let view = self.partition.open_view(owner).expect("there are fewer owners than views");
        self.partition.install(view);
        view
    }

    /// Excludes the view of an owner and installs an empty one.
    pub fn replace(&mut self, owner: u32) {
        self.partition.retire(self.views[owner as usize]);
        self.views[owner as usize] = self.open(owner);
    }

    /// Room for a whole frame.
    pub fn reserve(&mut self, frame: &[Change]) {
        let puts = frame.iter().filter(|change| change.change != WireChange::Delete);
        self.partition.reserve(puts.map(|change| change.hash)).expect("the budget is for these rows");
    }

    /// Applies at most [`step_changes`] changes of a frame there is room for.
    pub fn step(&mut self, owner: u32, changes: &[Change]) {
        let view = self.views[owner as usize];
        self.partition.prefetch(view, changes.iter().map(|change| (change.hash, change.medium)));
        for Change { key, hash, medium, change, sequence } in changes {
            match *change {
                WireChange::Put { bytes } => {
                    let put = self.partition.put(view, key, *hash, *medium, bytes, *sequence);
                    put.expect("room was asked for");
                }
                WireChange::Delete => {
                    assert!(
                        self.partition.delete(view, key, *hash, *medium),
                        "a row that is deleted was there"
                    );
                }
            }
        }
    }
}

impl Table for Index {
    fn apply(&mut self, owner: u32, frame: &[Change]) {
        self.reserve(frame);
        frame.chunks(step_changes()).for_each(|changes| self.step(owner, changes));
    }

    fn look_up(&mut self, keys: &[Key]) -> usize {
        self.partition.lookup(keys, &mut self.found);
        self.found[..keys.len()].iter().filter(|replicas| !replicas.is_empty()).count()
    }

    fn rows(&self) -> u64 {
        self.partition.accounting().rows
    }

    fn accounted_bytes(&self) -> u64 {
        self.partition.accounting().charged_bytes
    }
}

/// What the bare map keeps of a row.
#[derive(Clone, Copy)]
struct Row {
    key: StateKey,
    medium: Medium,
    owner: u16,
    bytes: u32,
    sequence: Sequence,
}

impl Row {
    /// Its key's hash, which is not kept: it is needed only when the map grows.
    fn hash(&self) -> u64 {
        key_hash(&NAMESPACE, self.key.group, &self.key.block).0
    }
}

/// A hash map of rows, each found by the hash that the index is given, too. It knows one owner of a key, which is
/// enough for these rows, and can neither hide nor exclude an owner.
#[derive(Default)]
pub struct BareMap {
    rows: HashTable<Row>,
    found: Vec<Option<(u16, u32, Sequence)>>,
}

impl Table for BareMap {
    fn apply(&mut self, owner: u32, frame: &[Change]) {
        for &Change { key, hash, medium, change, sequence } in frame {
            let is_it = |row: &Row| row.key == key && row.medium == medium;
            match change {
                WireChange::Put { bytes } => {
                    let row = Row { key, medium, owner: owner as u16, bytes, sequence };
                    match self.rows.entry(hash.0, is_it, Row::hash) {
                        Entry::Occupied(mut entry) => *entry.get_mut() = row,
                        Entry::Vacant(entry) => drop(entry.insert(row)),
                    }
                }
                WireChange::Delete => {
                    let entry = self.rows.find_entry(hash.0, is_it);
                    let entry = entry.ok().expect("a row that is deleted was there");
                    let _ = entry.remove();
                }
            }
        }
    }

    fn look_up(&mut self, keys: &[Key]) -> usize {
        self.found.clear();
        // Either medium: these keys have a row on one of them.
        self.found.extend(keys.iter().map(|(key, hash)| {
            let row = self.rows.find(hash.0, |row| row.key == *key)?;
            Some((row.owner, row.bytes, row.sequence))
        }));
        self.found.iter().filter(|found| found.is_some()).count()
    }

    fn rows(&self) -> u64 {
        self.rows.len() as u64
    }

    fn accounted_bytes(&self) -> u64 {
        self.rows.allocation_size() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::Population;
    use super::*;

    #[test]
    fn both_tables_have_the_rows_of_the_population() {
        let mut population = Population::new(3, 5);
        let (mut index, mut map) = (Index::new(5, 10_000), BareMap::default());
        let mut frame = Vec::new();
        for turn in 0..50 {
            let owner = turn % 5;
            match turn < 20 {
                true => population.grow(owner, 300, &mut frame),
                false => population.churn(owner, 200, &mut frame),
            }
            index.apply(owner, &frame);
            map.apply(owner, &frame);
        }
        assert_eq!((index.rows(), map.rows()), (population.count(), population.count()));
        let mut keys = Vec::new();
        population.draw(0..5, LOOKUP_KEYS, &mut keys);
        assert_eq!((index.look_up(&keys), map.look_up(&keys)), (LOOKUP_KEYS, LOOKUP_KEYS));
        let mut unknown = Population::new(4, 1);
        unknown.grow(0, 200, &mut frame);
        unknown.draw(0..1, LOOKUP_KEYS, &mut keys);
        assert_eq!((index.look_up(&keys), map.look_up(&keys)), (0, 0));
    }

    #[test]
    fn a_replaced_owner_has_no_rows_that_are_seen() {
        let mut population = Population::new(3, 2);
        let mut index = Index::new(2, 1_000);
        let (mut frame, mut keys) = (Vec::new(), Vec::new());
        for owner in 0..2 {
            population.grow(owner, 300, &mut frame);
            index.apply(owner, &frame);
        }
        population.draw(0..1, LOOKUP_KEYS, &mut keys);
        assert_eq!(index.look_up(&keys), LOOKUP_KEYS);
        index.replace(0);
        assert_eq!(index.look_up(&keys), 0);
        while index.partition.sweep(64) {}
        assert_eq!(index.rows(), 300);
    }
}
