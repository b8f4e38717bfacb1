//! Room: what is charged, who may grow, and room for a whole frame, asked for before its first change is
//! applied, so that a frame is applied whole or not at all (chapter 2.6).

use orbitkv_wire::identity::KeyHash;

use super::directory::Directory;
use super::heap::{HEAP_PLACES_MAX, Heap};
use super::place::Place;
use super::view::VIEWS_MAX;
use super::{HEAP_DIRECTORIES, Partition};

/// Bytes that a row leaves to others when it is removed, if its key has no other owner.
const ROW_BYTES_LEFT: u64 = size_of::<Place>() as u64;

/// There is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexFull {
    /// The budget is spent.
    #[error(
        "the index holds {charged_bytes} of {budget_bytes} bytes: raise --index-budget or narrow the scope"
    )]
    Budget {
        /// Bytes charged.
        charged_bytes: u64,
        /// Bytes allowed.
        budget_bytes: u64,
    },
    /// One hash prefix has as many places as it can name. Needs keys that collide, or keys with more owners than
    /// there can be.
    #[error("one hash prefix has {HEAP_PLACES_MAX} places, the most it can name")]
    Prefix,
    /// There are as many views as there may be.
    #[error("{VIEWS_MAX} views are open, the most there may be")]
    Views,
}

/// Rows asked for.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// One count a directory, one a heap.
    by_directory: Vec<usize>,
    by_heap: Vec<usize>,
    /// Those of which the count is not zero.
    directories: Vec<usize>,
    heaps: Vec<usize>,
}

impl Wanted {
    fn count(&mut self, directory: usize) {
        if self.by_directory[directory] == 0 {
            self.directories.push(directory);
        }
        self.by_directory[directory] += 1;
        let heap = directory / HEAP_DIRECTORIES;
        if self.by_heap[heap] == 0 {
            self.heaps.push(heap);
        }
        self.by_heap[heap] += 1;
    }
}

impl Partition {
    /// Asks for room for a put of each hash, whatever rows there are. If it is granted, these puts will
    /// not be refused, in any order and with any deletes, retirements and sweeps between them, as long
    /// as no others come between.
    ///
    /// # Errors
    /// [`IndexFull`], by a bound that is at most a few kilobytes short of what would fit.
    pub fn reserve(&mut self, hashes: impl Iterator<Item = KeyHash>) -> Result<(), IndexFull> {
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.by_directory.resize(self.directories.len(), 0);
        wanted.by_heap.resize(self.heaps.len(), 0);
        hashes.for_each(|hash| wanted.count(self.directory_of(hash)));
        let (mut growth_bytes, mut transient_bytes, mut prefix_full) = (0, 0, false);
        for at in wanted.directories.drain(..) {
            let directory = &self.directories[at];
            let grown_bytes = directory.grown_bytes(std::mem::take(&mut wanted.by_directory[at]));
            growth_bytes += grown_bytes - directory.charged_bytes();
            // One directory grows at a time, and is there twice while it does.
            transient_bytes = grown_bytes.max(transient_bytes);
        }
        for at in wanted.heaps.drain(..) {
            let (heap, places) = (&self.heaps[at], std::mem::take(&mut wanted.by_heap[at]));
            prefix_full |= heap.would_overflow(places);
            growth_bytes += heap.growth_bytes(places);
        }
        self.wanted = wanted;
        match prefix_full {
            true => Err(IndexFull::Prefix),
            false => self.check_budget(growth_bytes + transient_bytes),
        }
    }

    fn check_budget(&self, bytes: u64) -> Result<(), IndexFull> {
        let (charged_bytes, budget_bytes) = (self.charged_bytes, self.settings.budget_bytes);
        match charged_bytes + bytes <= budget_bytes {
            true => Ok(()),
            false => Err(IndexFull::Budget { charged_bytes, budget_bytes }),
        }
    }

    /// Makes room for so many slots and places: for none or one of each.
    #[inline]
    pub(super) fn make_room(&mut self, at: usize, slots: usize, places: usize) -> Result<(), IndexFull> {
        let (directory, heap) = (&self.directories[at], &self.heaps[at / HEAP_DIRECTORIES]);
        match directory.has_room(slots) && heap.free_places() >= places {
            true => Ok(()),
            false => self.grow(at, slots, places),
        }
    }

    #[cold]
    fn grow(&mut self, at: usize, slots: usize, places: usize) -> Result<(), IndexFull> {
        let (directory, heap) = (&self.directories[at], &self.heaps[at / HEAP_DIRECTORIES]);
        if heap.would_overflow(places) {
            return Err(IndexFull::Prefix);
        }
        let directory_bytes = if directory.has_room(slots) { 0 } else { directory.step_bytes() };
        let heap_bytes = heap.growth_bytes(places);
        self.check_budget(directory_bytes + heap_bytes)?;
        self.charged_bytes += directory_bytes + heap_bytes;
        self.charged_bytes_peak = self.charged_bytes_peak.max(self.charged_bytes);
        if directory_bytes > 0 {
            let directory = &mut self.directories[at];
            self.charged_bytes -= directory.charged_bytes();
            directory.grow(&mut self.groups);
        }
        if heap_bytes > 0 {
            self.heaps[at / HEAP_DIRECTORIES].grow(&mut self.places);
        }
        Ok(())
    }

    /// What has no rows costs nothing.
    pub(super) fn release_if_empty(&mut self, at: usize) {
        let directory = &mut self.directories[at];
        if directory.is_empty() {
            self.charged_bytes -= directory.charged_bytes();
            directory.release(&mut self.groups);
        }
        let heap = &mut self.heaps[at / HEAP_DIRECTORIES];
        if heap.is_empty() {
            self.charged_bytes -= heap.charged_bytes();
            heap.release(&mut self.places);
        }
    }

    /// Bytes of the budget that rows may still take: what nothing is charged for, and places that rows
    /// have left.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        let free_places: usize = self.heaps.iter().map(Heap::free_places).sum();
        let uncharged_bytes = self.settings.budget_bytes.saturating_sub(self.charged_bytes);
        uncharged_bytes + (free_places * size_of::<Place>()) as u64
    }

    /// The same if so many of the rows there are were removed, at least.
    #[must_use]
    pub fn free_bytes_without(&self, rows: u64) -> u64 {
        if rows < self.rows {
            return self.free_bytes() + rows * ROW_BYTES_LEFT;
        }
        self.settings.budget_bytes.saturating_sub(empty_bytes(self.directories.len(), self.heaps.len()))
    }
}

/// What a partition without rows is charged for.
pub(super) fn empty_bytes(directories: usize, heaps: usize) -> u64 {
    (directories * size_of::<Directory>() + heaps * size_of::<Heap>()) as u64
}
