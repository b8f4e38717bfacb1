//! Puts and deletes of owners.

use orbitkv_wire::identity::{KeyHash, Medium, Sequence};

use super::directory::{Mark, Slot, Wanted};
use super::heap::Removed;
use super::place::{Claim, Place, PlaceIndex};
use super::room::IndexFull;
use super::view::ViewId;
use super::{BATCH, HEAP_DIRECTORIES, Partition, Walk};
use crate::key::StateKey;

/// What a put has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// A new row.
    Added,
    /// The residence key had a row, which now stands for the newer residence.
    Renewed,
}

impl Partition {
    /// Asks for the memory of changes that a view is going to make, best of 128 at a time.
    pub fn prefetch(&self, view: ViewId, changes: impl Iterator<Item = (KeyHash, Medium)> + Clone) {
        for (hash, medium) in changes.clone() {
            self.prefetch_slot(hash, Mark::new(hash, medium));
        }
        let mut walks = Vec::with_capacity(BATCH);
        for (hash, medium) in changes {
            self.begin_walks(0, hash, Mark::new(hash, medium), Wanted::OneMedium, &mut walks);
        }
        // Keys with many owners: whoever goes along the claims of all together waits for all together.
        while !walks.is_empty() {
            walks.retain_mut(|walk| {
                let place = self.place_of(walk);
                // A delete needs the next place, too: a claim from there takes the place of its own.
                let goes_on = self.step(walk, place.next());
                goes_on && place.claims().all(|claim| claim.view() != view)
            });
        }
    }

    /// Begins a walk at each place behind the wanted marks, and asks for it.
    #[inline]
    pub(super) fn begin_walks(
        &self,
        position: u16,
        hash: KeyHash,
        mark: Mark,
        wanted: Wanted,
        walks: &mut Vec<Walk>,
    ) {
        let at = self.directory_of(hash);
        let heap = &self.heaps[at / HEAP_DIRECTORIES];
        self.directories[at].search(&self.groups, mark, wanted, |place| {
            self.prefetch.ask(heap.place(&self.places, place));
            walks.push(Walk { position, heap: (at / HEAP_DIRECTORIES) as u16, place });
            false
        });
    }

    /// Goes on to the next place and asks for it; false if there is none.
    #[inline]
    pub(super) fn step(&self, walk: &mut Walk, next: Option<PlaceIndex>) -> bool {
        let Some(next) = next else { return false };
        self.prefetch.ask(self.heaps[usize::from(walk.heap)].place(&self.places, next));
        walk.place = next;
        true
    }

    /// Applies a put of the view's owner.
    ///
    /// # Errors
    /// [`IndexFull`]; nothing changed.
    pub fn put(
        &mut self,
        view: ViewId,
        key: &StateKey,
        hash: KeyHash,
        medium: Medium,
        bytes: u32,
        sequence: Sequence,
    ) -> Result<Put, IndexFull> {
        let (at, mark, prefetch) = (self.directory_of(hash), Mark::new(hash, medium), self.prefetch);
        let claim = Claim::new(view, medium, bytes, sequence);
        let heap = at / HEAP_DIRECTORIES;
        if let Some((_, first)) = self.find(at, mark, key) {
            if let Some(old) = self.heaps[heap].find(&self.places, first, view) {
                self.heaps[heap].set_claim(&mut self.places, old, claim);
                return Ok(Put::Renewed);
            }
            let places = self.heaps[heap].places_for_claim(&self.places, first);
            self.make_room(at, 0, places)?;
            self.heaps[heap].add_claim(&mut self.places, first, claim, prefetch);
        } else {
            self.make_room(at, 1, 1)?;
            let place = self.heaps[heap].add(&mut self.places, Place::of_key(key, claim), prefetch);
            self.directories[at].insert(&mut self.groups, mark, place);
        }
        self.rows += 1;
        self.views.add_row(view);
        Ok(Put::Added)
    }

    /// Applies a delete of the view's owner; false if the view had no such row.
    pub fn delete(&mut self, view: ViewId, key: &StateKey, hash: KeyHash, medium: Medium) -> bool {
        let at = self.directory_of(hash);
        let Some((slot, first)) = self.find(at, Mark::new(hash, medium), key) else { return false };
        let heap = &mut self.heaps[at / HEAP_DIRECTORIES];
        let Some(claim) = heap.find(&self.places, first, view) else { return false };
        if heap.remove_claim(&mut self.places, first, claim) == Removed::LastOfKey {
            self.directories[at].remove(&mut self.groups, slot);
            self.release_if_empty(at);
        }
        self.rows -= 1;
        self.views.remove_row(view);
        true
    }

    /// What a view says about a key on a medium: payload bytes and residency sequence.
    #[must_use]
    pub fn row(
        &self,
        view: ViewId,
        key: &StateKey,
        hash: KeyHash,
        medium: Medium,
    ) -> Option<(u32, Sequence)> {
        let at = self.directory_of(hash);
        let (_, first) = self.find(at, Mark::new(hash, medium), key)?;
        let heap = &self.heaps[at / HEAP_DIRECTORIES];
        let claim = heap.claim(&self.places, heap.find(&self.places, first, view)?);
        Some((claim.bytes(), claim.sequence()))
    }

    /// The first place of a key, and the slot that leads to it.
    fn find(&self, at: usize, mark: Mark, key: &StateKey) -> Option<(Slot, PlaceIndex)> {
        let heap = &self.heaps[at / HEAP_DIRECTORIES];
        let is_it = |place| heap.place(&self.places, place).is_of(key);
        self.directories[at].search(&self.groups, mark, Wanted::OneMedium, is_it)
    }
}
