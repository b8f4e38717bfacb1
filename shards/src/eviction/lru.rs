//! Least recently used: the baseline. A pinned resident that the scan meets is in use, so it becomes
//! the most recent and is not met again before all others.

use orbitkv_wire::identity::KeyHash;

use super::EvictionPolicy;
use super::queue::{Links, Queue};
use crate::key::EntryId;

/// Residents by last use.
#[derive(Debug)]
pub struct Lru {
    links: Links,
    recency: Queue,
    present: Vec<bool>,
    /// Pinned residents met since the last victim. Once all have been met, touches wait until there is
    /// a victim: otherwise the ones that may go could stay ahead of the scan by being used.
    pinned_run: usize,
}

impl Lru {
    /// Empty, with tables for ids below `entries`.
    #[must_use]
    pub fn new(entries: usize) -> Lru {
        Lru {
            links: Links::new(entries),
            recency: Queue::new(),
            present: vec![false; entries],
            pinned_run: 0,
        }
    }

    /// The resident that the next search looks at first: whoever may take no other asks for it.
    #[must_use]
    pub fn oldest(&self) -> Option<EntryId> {
        self.recency.oldest()
    }

    /// Ids below this need no larger tables.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.present.len()
    }

    /// Bytes of the tables for ids below `entries`.
    #[must_use]
    pub const fn table_bytes(entries: usize) -> usize {
        entries * (Links::BYTES_PER_ENTRY + size_of::<bool>())
    }
}

impl EvictionPolicy for Lru {
    fn insert(&mut self, id: EntryId, _hash: KeyHash) {
        self.links.cover(id);
        if id.0 as usize >= self.present.len() {
            self.present.resize(id.0 as usize + 1, false);
        }
        assert!(!self.contains(id), "an entry is inserted once");
        self.present[id.0 as usize] = true;
        self.recency.push(&mut self.links, id);
    }

    fn touch(&mut self, id: EntryId) {
        assert!(self.contains(id), "only residents are touched");
        if self.pinned_run < self.len() {
            self.recency.renew(&mut self.links, id);
        }
    }

    fn remove(&mut self, id: EntryId) {
        assert!(self.contains(id), "only residents are removed");
        self.present[id.0 as usize] = false;
        self.recency.remove(&mut self.links, id);
    }

    fn victim(&mut self, budget: usize, evictable: &mut dyn FnMut(EntryId) -> bool) -> Option<EntryId> {
        for _ in 0..budget.min(self.len()) {
            let oldest = self.recency.oldest()?;
            if evictable(oldest) {
                self.pinned_run = 0;
                return Some(oldest);
            }
            self.pinned_run += 1;
            self.recency.renew(&mut self.links, oldest);
        }
        None
    }

    fn len(&self) -> usize {
        self.recency.len()
    }

    fn contains(&self, id: EntryId) -> bool {
        self.present.get(id.0 as usize).is_some_and(|present| *present)
    }
}
