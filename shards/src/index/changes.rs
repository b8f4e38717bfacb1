//! Puts and deletes of owners.

use orbitkv_wire::identity::{KeyHash, Medium, Sequence};

use super::directory::{Directory, Mark, Slot, Wanted};
use super::heap::{Heap, Removed};
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
            self.directories[self.directory_of(hash)].prefetch(Mark::new(hash, medium), self.prefetch);
        }
        let mut walks = Vec::with_capacity(BATCH);
        for (hash, medium) in changes {
            self.begin_walks(0, hash, Mark::new(hash, medium), Wanted::OneMedium, &mut walks);
        }
        // Keys with many owners: whoever goes along the claims of all together waits for all together.
        while !walks.is_empty() {
            walks.retain_mut(|walk| {
                let place = self.heaps[usize::from(walk.heap)].place(walk.place);
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
        let (directory, heap) = self.part(at);
        directory.search(mark, wanted, |place| {
            self.prefetch.ask(heap.place(place));
            walks.push(Walk { position, heap: (at / HEAP_DIRECTORIES) as u16, place });
            false
        });
    }

    /// Goes on to the next place and asks for it; false if there is none.
    #[inline]
    pub(super) fn step(&self, walk: &mut Walk, next: Option<PlaceIndex>) -> bool {
        let Some(next) = next else { return false };
        self.prefetch.ask(self.heaps[usize::from(walk.heap)].place(next));
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
        let (directory, heap) = self.part_mut(at);
        if let Some((_, first)) = find(directory, heap, mark, key) {
            if let Some(old) = heap.find(first, view) {
                heap.set_claim(old, claim);
                return Ok(Put::Renewed);
            }
            let places = heap.places_for_claim(first);
            self.make_room(at, 0, places)?;
            self.part_mut(at).1.add_claim(first, claim, prefetch);
        } else {
            self.make_room(at, 1, 1)?;
            let (directory, heap) = self.part_mut(at);
            let place = heap.add(Place::of_key(key, claim), prefetch);
            directory.insert(mark, place);
        }
        self.rows += 1;
        self.views.add_row(view);
        Ok(Put::Added)
    }

    /// Applies a delete of the view's owner; false if the view had no such row.
    pub fn delete(&mut self, view: ViewId, key: &StateKey, hash: KeyHash, medium: Medium) -> bool {
        let at = self.directory_of(hash);
        let (directory, heap) = self.part_mut(at);
        let Some((slot, first)) = find(directory, heap, Mark::new(hash, medium), key) else { return false };
        let Some(claim) = heap.find(first, view) else { return false };
        if heap.remove_claim(first, claim) == Removed::LastOfKey {
            directory.remove(slot);
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
        let (directory, heap) = self.part(self.directory_of(hash));
        let (_, first) = find(directory, heap, Mark::new(hash, medium), key)?;
        let claim = heap.claim(heap.find(first, view)?);
        Some((claim.bytes(), claim.sequence()))
    }
}

/// The first place of a key, and the slot that leads to it.
fn find(directory: &Directory, heap: &Heap, mark: Mark, key: &StateKey) -> Option<(Slot, PlaceIndex)> {
    directory.search(mark, Wanted::OneMedium, |place| heap.place(place).is_of(key))
}
