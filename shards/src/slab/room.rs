//! What has to go when a size has no slot. With one size the victim's own slot will do; with several,
//! the victim lies in a span of another size, and only a whole window of chunks can change hands.

use super::{Chunk, NONE, Slab, SlotId};

impl Slab {
    /// After [`super::AllocateError::Full`]: the slots whose release makes `allocate(bytes)` succeed, near
    /// the allocated slot `near` (a victim of the eviction policy). `occupied` is replaced: empty if
    /// there is room already; `near` alone if it has the size; otherwise every slot of the spans
    /// under the window around `near` that holds the fewest slots. False if no window there is long
    /// enough; ask again with another victim, as after finding one of `occupied` pinned.
    ///
    /// # Panics
    /// If `near` is not allocated, or `bytes` is 0.
    pub fn make_room(&self, bytes: u64, near: SlotId, occupied: &mut Vec<SlotId>) -> bool {
        occupied.clear();
        let (near_head, _) = self.locate(near).expect("room is made near an allocated slot");
        let Ok(pages) = self.pages_for(bytes) else { return false };
        let count = self.span_chunks(pages);
        if self.partial[pages] != NONE || self.pool.find_run(count).is_some() {
            return true;
        }
        let near_span = self.span(near_head);
        if near_span.pages as usize == pages {
            occupied.push(near);
            return true;
        }
        let (from, to) = self.pool.region_of(near_head);
        if to - from < count {
            return false;
        }
        let first = near_head.saturating_sub(count - 1).max(from);
        let last = (near_head + near_span.chunks as usize - 1).min(to - count);
        let start = self.emptiest_window(first, last, count);
        let mut chunk = self.head_of(start).unwrap_or(start);
        while chunk < start + count {
            chunk += match self.chunks[chunk] {
                Chunk::Free => 1,
                Chunk::Head(span) => {
                    self.list_slots(chunk, occupied);
                    span.chunks as usize
                }
                Chunk::Tail(_) => unreachable!("a walk over whole spans meets no tail"),
            };
        }
        debug_assert!(occupied.contains(&near));
        true
    }

    /// The window `[start, start + count)` with `first <= start <= last` whose spans have the fewest
    /// allocated slots, the lowest of equals.
    fn emptiest_window(&self, first: usize, last: usize, count: usize) -> usize {
        let begun = |chunk: usize| match self.chunks[chunk] {
            Chunk::Head(span) => u64::from(span.used),
            _ => 0,
        };
        // Slots of the spans that begin inside the window, behind its first chunk.
        let mut inside: u64 = (first + 1..first + count).map(begun).sum();
        let mut best = (u64::MAX, first);
        for start in first..=last {
            let cost = inside + self.head_of(start).map_or(0, begun);
            best = best.min((cost, start));
            if start < last {
                inside += begun(start + count);
                inside -= begun(start + 1);
            }
        }
        best.1
    }

    fn list_slots(&self, head: usize, slots: &mut Vec<SlotId>) {
        let span = self.span(head);
        for index in 0..span.slots as usize {
            if self.is_allocated(head, index) {
                slots.push(self.slot_at(head, index).id);
            }
        }
    }
}
