//! Which chunks of the slice are free. A bitmap, because a slice can have 50,000 chunks and the
//! question is always the same: the lowest run of n free chunks that stays inside one region.

/// Bits of one word of the bitmap.
const WORD_BITS: usize = u64::BITS as usize;

/// How the chunks of a slice lie in regions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Regions {
    /// Chunks of the slice.
    pub chunks: usize,
    /// Chunks between the region boundary below the slice and the slice itself.
    pub phase: usize,
    /// Chunks of a region.
    pub region_chunks: usize,
}

impl Regions {
    /// The chunks `[from, to)` of the region that holds `chunk`, clipped to the slice.
    fn region_of(self, chunk: usize) -> (usize, usize) {
        let first = (chunk + self.phase) / self.region_chunks * self.region_chunks;
        let end = first + self.region_chunks - self.phase;
        (first.saturating_sub(self.phase), end.min(self.chunks))
    }

    /// Chunks of the longest run an empty slice has.
    pub(super) fn longest_run(self) -> usize {
        let (first, last) = (self.region_of(0), self.region_of(self.chunks - 1));
        // A third region between the two is whole.
        let middle = if first.1 < last.0 { self.region_chunks } else { 0 };
        (first.1 - first.0).max(last.1 - last.0).max(middle)
    }
}

/// The free chunks of one slice; bit set means free.
#[derive(Debug)]
pub(super) struct ChunkPool {
    words: Vec<u64>,
    regions: Regions,
    free: usize,
    /// No chunk below this one is free.
    lowest_free: usize,
    /// No run this long exists; holds until the next `give_back`.
    run_absent: usize,
}

impl ChunkPool {
    /// All of the chunks free; chunk `i` is chunk `phase + i` of its regions.
    pub(super) fn new(regions: Regions) -> ChunkPool {
        let Regions { chunks, phase, region_chunks } = regions;
        assert!(region_chunks > 0 && phase < region_chunks, "a phase lies inside a region");
        let mut words = vec![0; words_for(chunks)];
        for chunk in 0..chunks {
            words[chunk / WORD_BITS] |= 1 << (chunk % WORD_BITS);
        }
        ChunkPool { words, regions, free: chunks, lowest_free: 0, run_absent: usize::MAX }
    }

    /// Bytes of the bitmap of so many chunks.
    pub(super) fn table_bytes(chunks: usize) -> usize {
        words_for(chunks) * size_of::<u64>()
    }

    pub(super) fn free(&self) -> usize {
        self.free
    }

    pub(super) fn is_free(&self, chunk: usize) -> bool {
        self.words[chunk / WORD_BITS] >> (chunk % WORD_BITS) & 1 == 1
    }

    /// The chunks `[from, to)` of the region that holds `chunk`, clipped to the slice.
    pub(super) fn region_of(&self, chunk: usize) -> (usize, usize) {
        self.regions.region_of(chunk)
    }

    /// The lowest run of `count` free chunks inside one region. Costs one step a word for single
    /// chunks and one a run of free chunks for longer ones.
    pub(super) fn find_run(&self, count: usize) -> Option<usize> {
        if self.free < count || count >= self.run_absent {
            return None;
        }
        let mut chunk = self.next(self.lowest_free, true);
        while chunk < self.regions.chunks {
            let end = self.next(chunk, false);
            let mut start = chunk;
            while start < end {
                let part_end = self.region_of(start).1.min(end);
                if part_end - start >= count {
                    return Some(start);
                }
                start = part_end;
            }
            chunk = self.next(end, true);
        }
        None
    }

    /// As [`find_run`](Self::find_run), and takes the run.
    pub(super) fn take_run(&mut self, count: usize) -> Option<usize> {
        let Some(start) = self.find_run(count) else {
            self.run_absent = self.run_absent.min(count);
            return None;
        };
        for chunk in start..start + count {
            self.words[chunk / WORD_BITS] &= !(1 << (chunk % WORD_BITS));
        }
        self.free -= count;
        if count == 1 {
            // A run of one is the lowest free chunk, so everything up to it is now taken.
            self.lowest_free = start + 1;
        }
        Some(start)
    }

    /// Frees a run that was taken.
    pub(super) fn give_back(&mut self, start: usize, count: usize) {
        for chunk in start..start + count {
            assert!(!self.is_free(chunk), "a chunk is given back once");
            self.words[chunk / WORD_BITS] |= 1 << (chunk % WORD_BITS);
        }
        self.free += count;
        self.lowest_free = self.lowest_free.min(start);
        self.run_absent = usize::MAX;
    }

    /// The first chunk at or after `from` that is free, or taken; `chunks` if there is none.
    fn next(&self, from: usize, free: bool) -> usize {
        let mut word = from / WORD_BITS;
        let mut mask = u64::MAX << (from % WORD_BITS);
        while word < self.words.len() {
            let bits = if free { self.words[word] } else { !self.words[word] };
            if bits & mask != 0 {
                let found = word * WORD_BITS + (bits & mask).trailing_zeros() as usize;
                return found.min(self.regions.chunks);
            }
            mask = u64::MAX;
            word += 1;
        }
        self.regions.chunks
    }
}

fn words_for(chunks: usize) -> usize {
    chunks.div_ceil(WORD_BITS)
}
