//! Where the chunks of one kind lie, of which the heaps and the directories of a partition are made: in segments so
//! large that the driver can have them mapped by huge pages. Without these, a lookup in a table of a hundred
//! megabytes waits for the processor's tables of pages as much as for the rows.
//!
//! Chunks never move. What is given back is handed out first; its memory stays with the store. A segment costs memory
//! as far as it was ever in use.

/// Bytes of a segment: what huge pages lose at its ends is a small share.
const SEGMENT_BYTES: usize = 32 << 20;

/// Says that so many bytes from an address are best mapped by huge pages. A hint: it changes nothing that can be
/// seen, whatever the address.
pub type AdviseBytes = fn(address: *const u8, bytes: usize);

/// Names a chunk of its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkIndex(u32);

/// What a chunk of some size costs: itself, its name where it is used, and its name among those given back.
pub(super) const fn chunk_bytes<C>() -> usize {
    size_of::<C>() + 2 * size_of::<ChunkIndex>()
}

/// Chunks of one kind.
#[derive(Debug)]
pub(super) struct Store<C> {
    /// All but the last are full. None grows beyond what it was made with, which would move its chunks.
    segments: Vec<Vec<C>>,
    returned: Vec<ChunkIndex>,
    /// Chunks for which a segment has room.
    segment_chunks: usize,
    advise: AdviseBytes,
}

impl<C: Copy> Store<C> {
    const SEGMENT_CHUNKS: usize = {
        let chunks = SEGMENT_BYTES / size_of::<C>();
        assert!(chunks > 0, "a segment has a chunk");
        chunks.next_power_of_two()
    };

    /// Without any chunk, for a budget of so many bytes.
    pub fn new(budget_bytes: u64) -> Store<C> {
        let paid_for = usize::try_from(budget_bytes / chunk_bytes::<C>() as u64).unwrap_or(usize::MAX);
        Store {
            segments: Vec::new(),
            returned: Vec::new(),
            segment_chunks: paid_for.clamp(1, Self::SEGMENT_CHUNKS),
            advise: |_, _| {},
        }
    }

    /// Lets the driver know of segments to come.
    pub fn set_advice(&mut self, advise: AdviseBytes) {
        self.advise = advise;
    }

    /// Hands out a chunk with this in it.
    pub fn take(&mut self, content: C) -> ChunkIndex {
        if let Some(chunk) = self.returned.pop() {
            *self.get_mut(chunk) = content;
            return chunk;
        }
        if self.segments.last().is_none_or(|segment| segment.len() == self.segment_chunks) {
            let segment: Vec<C> = Vec::with_capacity(self.segment_chunks);
            (self.advise)(segment.as_ptr().cast(), self.segment_chunks * size_of::<C>());
            // Names count as if every segment had all it may have: only the only one has less.
            assert!(self.segments.is_empty() || self.segment_chunks == Self::SEGMENT_CHUNKS);
            self.segments.push(segment);
        }
        let full = (self.segments.len() - 1) * Self::SEGMENT_CHUNKS;
        let segment = self.segments.last_mut().expect("there is one with room");
        segment.push(content);
        ChunkIndex(u32::try_from(full + segment.len() - 1).expect("a budget pays for fewer"))
    }

    /// Takes a chunk back.
    pub fn give_back(&mut self, chunk: ChunkIndex) {
        self.returned.push(chunk);
    }

    /// What is in a chunk.
    #[inline]
    pub fn get(&self, chunk: ChunkIndex) -> &C {
        let chunk = chunk.0 as usize;
        &self.segments[chunk / Self::SEGMENT_CHUNKS][chunk % Self::SEGMENT_CHUNKS]
    }

    /// The same.
    #[inline]
    pub fn get_mut(&mut self, chunk: ChunkIndex) -> &mut C {
        let chunk = chunk.0 as usize;
        &mut self.segments[chunk / Self::SEGMENT_CHUNKS][chunk % Self::SEGMENT_CHUNKS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_apart_stay_where_they_are_and_are_handed_out_again() {
        // A hundred thousand of them are several segments.
        let mut store = Store::<[u64; 128]>::new(1 << 30);
        let chunks: Vec<_> = (0..100_000u64).map(|number| store.take([number; 128])).collect();
        assert!(store.segments.len() > 2);
        let first = std::ptr::from_ref(store.get(chunks[0]));
        for (number, &chunk) in (0..).zip(&chunks) {
            assert_eq!(*store.get(chunk), [number; 128]);
            store.get_mut(chunk)[7] = 1;
            assert_eq!(store.get(chunk)[6..9], [number, 1, number]);
        }
        assert_eq!(std::ptr::from_ref(store.get(chunks[0])), first);
        store.give_back(chunks[70_000]);
        store.give_back(chunks[5]);
        assert_eq!([store.take([3; 128]), store.take([4; 128])], [chunks[5], chunks[70_000]]);
        assert_eq!([*store.get(chunks[5]), *store.get(chunks[70_000])], [[3; 128], [4; 128]]);
    }

    #[test]
    fn a_small_budget_has_one_small_segment() {
        let mut store = Store::<[u8; 512]>::new(5_200);
        let chunks: Vec<_> = (0..10).map(|number| store.take([number; 512])).collect();
        assert_eq!(store.segments[0].capacity(), 10);
        assert!((0..).zip(chunks).all(|(number, chunk)| *store.get(chunk) == [number; 512]));
    }
}
