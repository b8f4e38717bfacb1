//! Namespaces as one shard calls them: 32-byte digests interned to 16-bit numbers.
//!
//! A number is given once and never given to another namespace in the life of the process: journal
//! records, drop memory and SSD segments go on naming it after its last resident has left. What ends
//! with a process is bounded, so the table is too (chapter 2.7), and a full table is an answer, not a
//! crash.

use orbitkv_wire::bounds::NAMESPACES_MAX;
use orbitkv_wire::identity::NamespaceDigest;

use crate::key::NamespaceId;

/// Bytes that are charged for one namespace.
pub const NAMESPACE_BYTES: usize = size_of::<Interned>() + size_of::<NamespaceId>();

/// The table is full: this many namespaces are interned, and one more is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room for another namespace: the limit is {limit}")]
pub struct NamespacesFull {
    /// The bound that was met.
    pub limit: usize,
}

#[derive(Debug)]
struct Interned {
    digest: NamespaceDigest,
    residents: u64,
}

/// The namespaces of one shard.
#[derive(Debug)]
pub struct Namespaces {
    namespaces_max: usize,
    /// By number.
    interned: Vec<Interned>,
    /// Numbers in the order of their digests.
    sorted: Vec<NamespaceId>,
}

/// Bytes of a table for `namespaces_max` namespaces, for the memory bill.
#[must_use]
pub fn table_bytes(namespaces_max: usize) -> usize {
    namespaces_max * NAMESPACE_BYTES
}

impl Default for Namespaces {
    fn default() -> Self {
        Namespaces::new(NAMESPACES_MAX)
    }
}

impl Namespaces {
    /// An empty table.
    ///
    /// # Panics
    /// If `namespaces_max` is beyond [`NAMESPACES_MAX`].
    #[must_use]
    pub fn new(namespaces_max: usize) -> Self {
        const { assert!(NAMESPACES_MAX <= u16::MAX as usize + 1, "numbers have 16 bits") };
        assert!(namespaces_max <= NAMESPACES_MAX, "a node interns at most {NAMESPACES_MAX} namespaces");
        Namespaces { namespaces_max, interned: Vec::new(), sorted: Vec::new() }
    }

    /// The most namespaces it takes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.namespaces_max
    }

    /// The number of `digest`, given now if it had none.
    ///
    /// # Errors
    /// [`NamespacesFull`] if it had none and the table is full.
    pub fn intern(&mut self, digest: &NamespaceDigest) -> Result<NamespaceId, NamespacesFull> {
        match self.search(digest) {
            Ok(place) => Ok(self.sorted[place]),
            Err(_) if self.interned.len() == self.namespaces_max => {
                Err(NamespacesFull { limit: self.namespaces_max })
            }
            Err(place) => {
                let id = NamespaceId(u16::try_from(self.interned.len()).expect("below the bound"));
                self.interned.push(Interned { digest: *digest, residents: 0 });
                self.sorted.insert(place, id);
                self.assert_invariants();
                Ok(id)
            }
        }
    }

    /// The number of `digest`, if it has one.
    #[must_use]
    pub fn get(&self, digest: &NamespaceDigest) -> Option<NamespaceId> {
        self.search(digest).ok().map(|place| self.sorted[place])
    }

    /// The namespace with this number.
    ///
    /// # Panics
    /// If the number was not given by this table.
    #[must_use]
    pub fn digest(&self, id: NamespaceId) -> &NamespaceDigest {
        &self.interned[usize::from(id.0)].digest
    }

    /// A residence in this namespace began.
    ///
    /// # Panics
    /// If the number was not given by this table.
    pub fn retain(&mut self, id: NamespaceId) {
        self.interned[usize::from(id.0)].residents += 1;
    }

    /// A residence in this namespace ended.
    ///
    /// # Panics
    /// If the number was not given by this table, or more residences end than began.
    pub fn release(&mut self, id: NamespaceId) {
        let residents = &mut self.interned[usize::from(id.0)].residents;
        *residents = residents.checked_sub(1).expect("more residences ended than began");
    }

    /// Residences in this namespace now.
    ///
    /// # Panics
    /// If the number was not given by this table.
    #[must_use]
    pub fn residents(&self, id: NamespaceId) -> u64 {
        self.interned[usize::from(id.0)].residents
    }

    /// Every namespace with its number and residences, in the order of the digests.
    pub fn iter(&self) -> impl Iterator<Item = (&NamespaceDigest, NamespaceId, u64)> {
        self.sorted.iter().map(|&id| {
            let Interned { digest, residents } = &self.interned[usize::from(id.0)];
            (digest, id, *residents)
        })
    }

    /// Namespaces that can still be interned.
    #[must_use]
    pub fn room(&self) -> usize {
        self.namespaces_max - self.interned.len()
    }

    /// Namespaces interned.
    #[must_use]
    pub fn len(&self) -> usize {
        self.interned.len()
    }

    /// Whether none is interned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.interned.is_empty()
    }

    /// Bytes charged for what is interned.
    #[must_use]
    pub fn charged_bytes(&self) -> usize {
        self.interned.len() * NAMESPACE_BYTES
    }

    fn search(&self, digest: &NamespaceDigest) -> Result<usize, usize> {
        self.sorted.binary_search_by(|id| self.interned[usize::from(id.0)].digest.cmp(digest))
    }

    fn assert_invariants(&self) {
        assert!(self.interned.len() <= self.namespaces_max, "the table keeps its bound");
        assert_eq!(self.interned.len(), self.sorted.len(), "every number is in the order");
        debug_assert!(self.iter().is_sorted_by(|left, right| left.0 < right.0), "each digest once, in order");
    }
}

#[cfg(test)]
mod tests;
