//! Residents of one shard: which block is on which medium, as one ordered table.
//!
//! An entry exists exactly while its block has a DRAM copy, an SSD copy or a fill on the way.
//! DRAM copies are objects of their own: a copy that a reader or the device still uses outlives
//! the entry that it was withdrawn from, and its slot is freed by its last user.

use std::collections::BTreeMap;

use hashbrown::HashTable;
use orbitkv_wire::identity::{Incarnation, KeyHash, Medium, Sequence};

use crate::key::{EntryId, StateKey};
use crate::retention::Usage;
use crate::segment_log::{Origin, Placement};
use crate::slab::Slot;
use crate::time::Moment;

/// Index of a DRAM copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CopyId(pub u32);

/// Names one life of an entry: the index may be reused, the birth number is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRef {
    /// Index in the table.
    pub id: EntryId,
    /// Number of the entry's creation.
    pub birth: u64,
}

/// One block's bytes in an arena slot.
#[derive(Debug)]
pub struct DramCopy {
    /// The slot.
    pub slot: Slot,
    /// Leases, grants and device operations that use the bytes.
    pub pins: u32,
    /// The entry that shows this copy; `None` once withdrawn.
    pub owner: Option<EntryId>,
}

/// DRAM side of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dram {
    /// No copy.
    Absent,
    /// A copy is being read from SSD; it is no residence yet.
    Filling(CopyId),
    /// A residence.
    Resident {
        /// The copy.
        copy: CopyId,
        /// Residency sequence.
        sequence: Sequence,
    },
}

/// SSD side of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ssd {
    /// No copy, and none is wanted or possible.
    Absent,
    /// Waits for its write-back.
    Queued,
    /// Being written; it is no residence yet.
    Writing(Placement),
    /// A residence.
    Resident {
        /// Where the bytes are.
        placement: Placement,
        /// Residency sequence.
        sequence: Sequence,
    },
    /// A residence whose bytes are being written elsewhere in the log.
    Moving {
        /// Where the bytes are.
        placement: Placement,
        /// Residency sequence.
        sequence: Sequence,
        /// Where they will be.
        target: Placement,
    },
}

impl Ssd {
    /// Placement and sequence, if there is a residence.
    #[must_use]
    pub fn residence(&self) -> Option<(Placement, Sequence)> {
        match *self {
            Ssd::Resident { placement, sequence } | Ssd::Moving { placement, sequence, .. } => {
                Some((placement, sequence))
            }
            Ssd::Absent | Ssd::Queued | Ssd::Writing(_) => None,
        }
    }
}

/// Where the bytes of an entry have come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provenance {
    /// An engine of this node has saved them.
    Own,
    /// A peer has sent them, and had them then.
    Peer,
}

/// Counts the registration lives of a shard. It tells whether a residence has a sequence of the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LifeNumber(pub u32);

/// One block that this shard holds.
#[derive(Debug)]
pub struct Entry {
    /// Its name.
    pub key: StateKey,
    /// Its placement hash.
    pub hash: KeyHash,
    /// Payload bytes.
    pub bytes: u64,
    /// `xxh3_64` of the payload, once it has been computed.
    pub checksum: Option<u64>,
    /// DRAM side.
    pub dram: Dram,
    /// SSD side.
    pub ssd: Ssd,
    /// Used since it was written to SSD: what the log reinserts.
    pub hot: bool,
    /// Where its bytes have come from.
    pub provenance: Provenance,
    /// How it was used since it came into DRAM; means nothing without a residence there.
    pub usage: Usage,
    /// Write-backs that failed.
    pub write_failures: u8,
    /// What its SSD record was written as; means nothing without an SSD residence.
    pub origin: Origin,
    /// By medium, the shard's life that the residence there has its sequence of.
    pub lives: [LifeNumber; 2],
    birth: u64,
}

impl Entry {
    /// Residency sequence on a medium, if there is a residence.
    #[must_use]
    pub fn sequence(&self, medium: Medium) -> Option<Sequence> {
        match (medium, self.dram) {
            (Medium::Dram, Dram::Resident { sequence, .. }) => Some(sequence),
            (Medium::Dram, Dram::Absent | Dram::Filling(_)) => None,
            (Medium::Ssd, _) => self.ssd.residence().map(|(_, sequence)| sequence),
        }
    }
    /// Gives a residence its sequence of another life.
    ///
    /// # Panics
    /// If there is none on that medium.
    pub fn renumber(&mut self, medium: Medium, new: Sequence) {
        match (medium, &mut self.dram, &mut self.ssd) {
            (Medium::Dram, Dram::Resident { sequence, .. }, _)
            | (Medium::Ssd, _, Ssd::Resident { sequence, .. } | Ssd::Moving { sequence, .. }) => {
                *sequence = new
            }
            _ => panic!("only a residence has a sequence"),
        }
    }
}

enum Cell<T> {
    Free { next: Option<u32> },
    Used(T),
}

/// A dense table with reused indices.
struct Dense<T> {
    cells: Vec<Cell<T>>,
    free: Option<u32>,
    used: usize,
}

impl<T> Dense<T> {
    fn with_capacity(cells: usize) -> Dense<T> {
        Dense { cells: Vec::with_capacity(cells), free: None, used: 0 }
    }

    fn insert(&mut self, value: T) -> u32 {
        self.used += 1;
        match self.free {
            Some(index) => {
                let cell = &mut self.cells[index as usize];
                let Cell::Free { next } = *cell else { unreachable!("the free list holds free cells") };
                self.free = next;
                *cell = Cell::Used(value);
                index
            }
            None => {
                self.cells.push(Cell::Used(value));
                u32::try_from(self.cells.len() - 1).expect("fewer than 2^32 entries fit any arena")
            }
        }
    }

    fn remove(&mut self, index: u32) -> T {
        let cell = std::mem::replace(&mut self.cells[index as usize], Cell::Free { next: self.free });
        let Cell::Used(value) = cell else { panic!("cell {index} is not in use") };
        self.free = Some(index);
        self.used -= 1;
        value
    }

    fn get(&self, index: u32) -> Option<&T> {
        match self.cells.get(index as usize) {
            Some(Cell::Used(value)) => Some(value),
            _ => None,
        }
    }

    fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        match self.cells.get_mut(index as usize) {
            Some(Cell::Used(value)) => Some(value),
            _ => None,
        }
    }
}

/// The table.
pub struct Residents {
    entries: Dense<Entry>,
    copies: Dense<DramCopy>,
    by_key: HashTable<EntryId>,
    ordered: BTreeMap<StateKey, EntryId>,
    births: u64,
    pinned_bytes: u64,
    pins: u64,
}

impl Default for Residents {
    fn default() -> Self {
        Self::new()
    }
}

impl Residents {
    /// An empty table that grows.
    #[must_use]
    pub fn new() -> Residents {
        Residents::with_capacity(0)
    }

    /// An empty table with room for `blocks` entries and as many copies: up to there it never moves what
    /// it holds, which would be a long turn.
    #[must_use]
    pub fn with_capacity(blocks: usize) -> Residents {
        Residents {
            entries: Dense::with_capacity(blocks),
            copies: Dense::with_capacity(blocks),
            by_key: HashTable::with_capacity(blocks),
            ordered: BTreeMap::new(),
            births: 0,
            pinned_bytes: 0,
            pins: 0,
        }
    }

    /// Bytes that tables for `blocks` entries take, for the memory bill: the dense cells with as much
    /// again for the indices that others keep of them, the hash index and the ordered index at half-full
    /// nodes.
    #[must_use]
    pub fn table_bytes(blocks: u64) -> u64 {
        let dense = (size_of::<Cell<Entry>>() + size_of::<Cell<DramCopy>>()) as u64 * 2;
        let hashed = 3 * (size_of::<EntryId>() as u64 + 1);
        let ordered = 2 * (size_of::<(StateKey, EntryId)>() as u64 + 8);
        blocks * (dense + hashed + ordered)
    }

    /// Entries now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.used
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.used == 0
    }

    /// DRAM copies now, withdrawn ones included.
    #[must_use]
    pub fn copies(&self) -> usize {
        self.copies.used
    }

    /// The entry of a key.
    #[must_use]
    pub fn find(&self, hash: KeyHash, key: &StateKey) -> Option<EntryId> {
        self.by_key.find(hash.0, |&id| self.entry(id).key == *key).copied()
    }

    /// Adds an entry for a key that has none.
    pub fn insert(&mut self, key: StateKey, hash: KeyHash, bytes: u64) -> EntryId {
        debug_assert!(self.find(hash, &key).is_none(), "one entry a key");
        self.births += 1;
        let entry = Entry {
            key,
            hash,
            bytes,
            checksum: None,
            dram: Dram::Absent,
            ssd: Ssd::Absent,
            hot: false,
            provenance: Provenance::Own,
            usage: Usage::new(Moment(0)),
            write_failures: 0,
            origin: Origin { incarnation: Incarnation([0; 16]), sequence: Sequence(0) },
            lives: [LifeNumber(0); 2],
            birth: self.births,
        };
        let id = EntryId(self.entries.insert(entry));
        let entries = &self.entries;
        self.by_key.insert_unique(hash.0, id, |&id| entries.get(id.0).expect("indexed entries exist").hash.0);
        self.ordered.insert(key, id);
        id
    }

    /// Removes an entry that has neither copy.
    ///
    /// # Panics
    /// If a copy or a fill is left: an entry ends with its last residence.
    pub fn remove(&mut self, id: EntryId) -> Entry {
        let entry = self.entries.remove(id.0);
        assert_eq!(entry.dram, Dram::Absent, "an entry with a DRAM copy does not end");
        assert_eq!(entry.ssd, Ssd::Absent, "an entry with an SSD copy does not end");
        match self.by_key.find_entry(entry.hash.0, |&candidate| candidate == id) {
            Ok(found) => drop(found.remove()),
            Err(_) => panic!("every entry is in the hash index"),
        }
        assert_eq!(self.ordered.remove(&entry.key), Some(id), "every entry is in the ordered index");
        entry
    }

    /// An entry that exists.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn entry(&self, id: EntryId) -> &Entry {
        self.entries.get(id.0).expect("entry ids are held only while the entry exists")
    }

    /// An entry that exists.
    ///
    /// # Panics
    /// If it does not.
    pub fn entry_mut(&mut self, id: EntryId) -> &mut Entry {
        self.entries.get_mut(id.0).expect("entry ids are held only while the entry exists")
    }

    /// A reference that survives the entry.
    #[must_use]
    pub fn reference(&self, id: EntryId) -> EntryRef {
        EntryRef { id, birth: self.entry(id).birth }
    }

    /// The entry behind a reference, if that very life still goes on.
    #[must_use]
    pub fn resolve(&self, reference: EntryRef) -> Option<EntryId> {
        self.entries.get(reference.id.0).filter(|entry| entry.birth == reference.birth).map(|_| reference.id)
    }

    /// Adds a copy in `slot`, shown by `owner`.
    pub fn insert_copy(&mut self, slot: Slot, owner: Option<EntryId>) -> CopyId {
        CopyId(self.copies.insert(DramCopy { slot, pins: 0, owner }))
    }

    /// A copy that exists.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn copy(&self, id: CopyId) -> &DramCopy {
        self.copies.get(id.0).expect("copy ids are held only while the copy exists")
    }

    /// Adds a user of a copy.
    pub fn pin(&mut self, id: CopyId) {
        let copy = self.copies.get_mut(id.0).expect("copy ids are held only while the copy exists");
        if copy.pins == 0 {
            self.pinned_bytes += copy.slot.bytes;
        }
        copy.pins = copy.pins.checked_add(1).expect("pins are bounded by leases, grants and transfers");
        self.pins += 1;
    }

    /// Ends one use of a copy. If it was the last one of a withdrawn copy, the copy ends and its
    /// slot is returned, to be released.
    #[must_use]
    pub fn unpin(&mut self, id: CopyId) -> Option<Slot> {
        let copy = self.copies.get_mut(id.0).expect("copy ids are held only while the copy exists");
        copy.pins = copy.pins.checked_sub(1).expect("every unpin has its pin");
        self.pins -= 1;
        if copy.pins == 0 {
            self.pinned_bytes -= copy.slot.bytes;
        }
        (copy.pins == 0 && copy.owner.is_none()).then(|| self.copies.remove(id.0).slot)
    }

    /// Uses of copies, counted one by one.
    #[must_use]
    pub fn pins(&self) -> u64 {
        self.pins
    }

    /// Slot bytes of copies that anything uses.
    #[must_use]
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes
    }

    /// Withdraws a copy from its entry. If nobody uses it, it ends and its slot is returned.
    #[must_use]
    pub fn withdraw(&mut self, id: CopyId) -> Option<Slot> {
        let copy = self.copies.get_mut(id.0).expect("copy ids are held only while the copy exists");
        assert!(copy.owner.take().is_some(), "a copy is withdrawn once");
        (copy.pins == 0).then(|| self.copies.remove(id.0).slot)
    }

    /// Entries in key order from `first` on: a monotone scan that may be interrupted anywhere.
    pub fn scan_from<'a>(&'a self, first: &StateKey) -> impl Iterator<Item = (EntryId, &'a Entry)> + use<'a> {
        self.ordered.range(*first..).map(|(_, &id)| (id, self.entry(id)))
    }

    /// Entries and copies for which nothing has to grow.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        let dense = self.entries.cells.capacity().min(self.copies.cells.capacity());
        dense.min(self.by_key.capacity())
    }

    /// Checks that the indices agree; linear in the table.
    #[cfg(test)]
    pub(crate) fn assert_indices(&self) {
        assert_eq!(self.by_key.len(), self.entries.used, "hash index and table agree");
        assert_eq!(self.ordered.len(), self.entries.used, "ordered index and table agree");
        for (key, &id) in &self.ordered {
            let entry = self.entry(id);
            assert_eq!(*key, entry.key);
            assert!(
                entry.dram != Dram::Absent || !matches!(entry.ssd, Ssd::Absent | Ssd::Queued),
                "an entry has a copy or a fill"
            );
            if let Dram::Filling(copy) | Dram::Resident { copy, .. } = entry.dram {
                assert_eq!(self.copy(copy).owner, Some(id), "a shown copy knows its entry");
            }
        }
    }
}

#[cfg(test)]
mod tests;
