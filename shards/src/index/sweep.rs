//! Removing the rows of views that are excluded already, a slice at a time.

use super::directory::Slot;
use super::heap::{ClaimAt, Removed};
use super::place::PlaceIndex;
use super::view::ViewState;
use super::{HEAP_DIRECTORIES, Partition};

impl Partition {
    /// Removes rows of retired views, looking at about `budget` rows. Returns whether any are left.
    pub fn sweep(&mut self, budget: usize) -> bool {
        let mut looked_at = 0;
        while self.views.retired_rows() > 0 && looked_at < budget {
            looked_at += self.sweep_group().max(1);
        }
        self.views.retired_rows() > 0
    }

    /// Sweeps the next group and says how many rows it had.
    fn sweep_group(&mut self) -> usize {
        let (at, group) = self.sweep_at;
        self.prefetch_group(at, group + 1);
        let Some(slots) = self.directories[at].group(&self.groups, group) else {
            self.sweep_at = ((at + 1) % self.directories.len(), 0);
            self.prefetch_group(self.sweep_at.0, 0);
            return 0;
        };
        self.sweep_at.1 += 1;
        let looked_at = slots.map(|(slot, first)| self.sweep_key(at, slot, first)).sum();
        self.release_if_empty(at);
        looked_at
    }

    /// Sweeps the rows of one key and says how many there were.
    fn sweep_key(&mut self, at: usize, slot: Slot, first: PlaceIndex) -> usize {
        let directory = &mut self.directories[at];
        let (heap, places) = (&mut self.heaps[at / HEAP_DIRECTORIES], &mut self.places);
        let mut looked_at = 0;
        let mut next = Some(first);
        'places: while let Some(index) = next {
            let mut number = 0;
            while number < heap.place(places, index).count() {
                looked_at += 1;
                let claim = ClaimAt { place: index, number };
                let view = heap.claim(places, claim).view();
                if self.views.state(view) != ViewState::Retired {
                    number += 1;
                    continue;
                }
                let behind = heap.place(places, index).next();
                let removed = heap.remove_claim(places, first, claim);
                self.rows -= 1;
                self.views.remove_row(view);
                match removed {
                    Removed::Replaced => {}
                    Removed::LastOfPlace => {
                        // It may be free now, and lead elsewhere.
                        next = behind;
                        continue 'places;
                    }
                    Removed::LastOfKey => {
                        directory.remove(&mut self.groups, slot);
                        return looked_at;
                    }
                }
            }
            next = heap.place(places, index).next();
        }
        looked_at
    }

    /// Asks for the keys of a group.
    fn prefetch_group(&self, directory: usize, group: usize) {
        let heap = &self.heaps[directory / HEAP_DIRECTORIES];
        for (_, place) in self.directories[directory].group(&self.groups, group).into_iter().flatten() {
            self.prefetch.ask(heap.place(&self.places, place));
        }
    }
}
