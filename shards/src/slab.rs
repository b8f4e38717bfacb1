//! Where the blocks of one shard lie in its slice of the arena. Engines of one node mix a few block
//! sizes, so a slice is cut into 2 MiB chunks (one huge page each), runs of chunks are given to a
//! size as it is asked for, and a run without slots goes back at once: no size owns memory that it
//! does not use, and nothing is cut beforehand. The allocator deals in offsets only.

mod pool;
mod room;
#[cfg(test)]
mod tests;

use orbitkv_wire::bounds::EXTENT_ALIGN_BYTES;

use pool::{ChunkPool, Regions};

/// Granularity of a slot, in bytes.
pub const PAGE_BYTES: u64 = EXTENT_ALIGN_BYTES;

/// Granularity of a span, in bytes: one huge page.
pub const CHUNK_BYTES: u64 = 2 * 1024 * 1024;

/// Longest span that is made longer than its slots need, to waste less of it.
const SPAN_CHUNKS_MAX: usize = 8;

/// A span may waste one part in so many without looking for a longer one.
const WASTE_PARTS: u64 = 8;

const PAGES_PER_CHUNK: usize = (CHUNK_BYTES / PAGE_BYTES) as usize;
const WORD_BITS: usize = u64::BITS as usize;
const WORDS_PER_CHUNK: usize = PAGES_PER_CHUNK / WORD_BITS;
const NONE: u32 = u32::MAX;

const _: () = assert!(CHUNK_BYTES.is_multiple_of(PAGE_BYTES));
const _: () = assert!(PAGES_PER_CHUNK.is_multiple_of(WORD_BITS));

/// The slice an allocator deals out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabSettings {
    /// Arena offset of the slice in bytes; a multiple of [`CHUNK_BYTES`].
    pub base: u64,
    /// Bytes of the slice; a positive multiple of [`CHUNK_BYTES`].
    pub bytes: u64,
    /// No slot lies across a multiple of this arena offset, because registered I/O buffers are that
    /// long (1 GiB). A positive multiple of [`CHUNK_BYTES`].
    pub region_bytes: u64,
}

/// Arena offset divided by [`PAGE_BYTES`]: names a slot as long as it is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// An allocated extent of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its name.
    pub id: SlotId,
    /// Arena offset of its first byte.
    pub offset: u64,
    /// Usable bytes: what was asked, rounded up to [`PAGE_BYTES`].
    pub bytes: u64,
}

/// Why there is no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// No eviction can help: the slice never has a slot this large.
    #[error("larger than the largest slot of this shard, {limit} bytes")]
    TooLarge {
        /// Bytes of the largest slot.
        limit: u64,
    },
    /// Something has to be released first; see [`Slab::make_room`].
    #[error("no room in this shard's slice")]
    Full,
}

/// Where the bytes of a slice are. `capacity = allocated + idle + tail + free chunks`, always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlabAccounting {
    /// Bytes of the slice.
    pub capacity_bytes: u64,
    /// Bytes of allocated slots.
    pub allocated_bytes: u64,
    /// Bytes of spans that are slots of their size, but not allocated.
    pub idle_bytes: u64,
    /// Bytes of spans that no slot of their size can use.
    pub tail_bytes: u64,
    /// Allocated slots.
    pub slots: u64,
    /// Spans with at least one allocated slot (there are no others).
    pub spans: u64,
    /// Chunks of no span.
    pub free_chunks: u64,
}

/// A run of chunks cut into slots of one size. At least one slot is allocated.
#[derive(Clone, Copy, Debug)]
struct Span {
    pages: u32,
    chunks: u32,
    slots: u32,
    used: u32,
    /// Neighbours among the spans of this size with an idle slot; meaningless when full.
    previous: u32,
    next: u32,
}

#[derive(Clone, Copy, Debug)]
enum Chunk {
    Free,
    Head(Span),
    /// A later chunk of the span whose head is named.
    Tail(u32),
}

/// The allocator of one slice.
#[derive(Debug)]
pub struct Slab {
    settings: SlabSettings,
    pool: ChunkPool,
    chunks: Vec<Chunk>,
    /// One bit a slot, in the words of its span's head chunk and those after; set means allocated.
    bits: Vec<u64>,
    /// By size in pages: the first span with an idle slot.
    partial: Vec<u32>,
    pages_max: usize,
    accounting: SlabAccounting,
}

impl Slab {
    /// An empty slice.
    ///
    /// # Panics
    /// If the settings are not aligned as [`SlabSettings`] says, or the slice ends beyond what a
    /// [`SlotId`] can name.
    #[must_use]
    pub fn new(settings: SlabSettings) -> Slab {
        let SlabSettings { base, bytes, region_bytes } = settings;
        assert!(base.is_multiple_of(CHUNK_BYTES), "the slice starts at a chunk");
        assert!(bytes > 0 && bytes.is_multiple_of(CHUNK_BYTES), "the slice is whole chunks");
        assert!(region_bytes > 0 && region_bytes.is_multiple_of(CHUNK_BYTES), "a region is whole chunks");
        assert!((base + bytes) / PAGE_BYTES <= u64::from(NONE), "a slot id names every page of the arena");
        let regions = regions_of(&settings);
        let chunks = regions.chunks;
        let pages_max = regions.longest_run() * PAGES_PER_CHUNK;
        let slab = Slab {
            settings,
            pool: ChunkPool::new(regions),
            chunks: vec![Chunk::Free; chunks],
            bits: vec![0; chunks * WORDS_PER_CHUNK],
            partial: vec![NONE; pages_max + 1],
            pages_max,
            accounting: SlabAccounting {
                capacity_bytes: bytes,
                free_chunks: chunks as u64,
                ..SlabAccounting::default()
            },
        };
        slab.assert_invariants();
        slab
    }

    /// Bytes of the allocator's own tables for such a slice; all of them are made by `new`.
    #[must_use]
    pub fn table_bytes(settings: &SlabSettings) -> u64 {
        let regions = regions_of(settings);
        let chunks = regions.chunks;
        let pages_max = regions.longest_run() * PAGES_PER_CHUNK;
        let bytes = ChunkPool::table_bytes(chunks)
            + chunks * (size_of::<Chunk>() + WORDS_PER_CHUNK * size_of::<u64>())
            + (pages_max + 1) * size_of::<u32>();
        bytes as u64
    }

    /// Bytes of the largest slot the empty slice has: the longest part of it inside one region.
    #[must_use]
    pub fn largest_slot_bytes(&self) -> u64 {
        self.pages_max as u64 * PAGE_BYTES
    }

    /// A slot of at least `bytes`.
    ///
    /// # Errors
    /// [`AllocateError::TooLarge`] if no slot of this slice can be that large,
    /// [`AllocateError::Full`] if something has to be released first.
    ///
    /// # Panics
    /// If `bytes` is 0: a block without bytes is refused where it enters.
    pub fn allocate(&mut self, bytes: u64) -> Result<Slot, AllocateError> {
        let pages = self.pages_for(bytes)?;
        let head = match self.partial[pages] {
            NONE => self.begin_span(pages)?,
            head => head as usize,
        };
        let index = self.first_idle(head);
        let bit = head * WORDS_PER_CHUNK * WORD_BITS + index;
        self.bits[bit / WORD_BITS] |= 1 << (bit % WORD_BITS);
        let span = self.span_mut(head);
        span.used += 1;
        if span.used == span.slots {
            self.leave_partial(head);
        }
        let slot_bytes = pages as u64 * PAGE_BYTES;
        self.accounting.slots += 1;
        self.accounting.allocated_bytes += slot_bytes;
        self.accounting.idle_bytes -= slot_bytes;
        self.assert_invariants();
        Ok(self.slot_at(head, index))
    }

    /// Frees a slot; its id may name another slot from now on.
    ///
    /// # Panics
    /// If no allocated slot has this id.
    pub fn release(&mut self, id: SlotId) {
        let (head, index) = self.locate(id).expect("a released slot was allocated");
        let bit = head * WORDS_PER_CHUNK * WORD_BITS + index;
        self.bits[bit / WORD_BITS] &= !(1 << (bit % WORD_BITS));
        let span = self.span_mut(head);
        let was_full = span.used == span.slots;
        span.used -= 1;
        let (used, pages) = (span.used, span.pages);
        let slot_bytes = u64::from(pages) * PAGE_BYTES;
        self.accounting.slots -= 1;
        self.accounting.allocated_bytes -= slot_bytes;
        self.accounting.idle_bytes += slot_bytes;
        if was_full {
            self.join_partial(head);
        }
        if used == 0 {
            self.end_span(head);
        }
        self.assert_invariants();
    }

    /// The allocated slot with this id, if there is one.
    #[must_use]
    pub fn slot(&self, id: SlotId) -> Option<Slot> {
        self.locate(id).map(|(head, index)| self.slot_at(head, index))
    }

    /// Where the bytes of the slice are.
    #[must_use]
    pub fn accounting(&self) -> SlabAccounting {
        self.accounting
    }

    fn pages_for(&self, bytes: u64) -> Result<usize, AllocateError> {
        assert!(bytes > 0, "a slot has bytes");
        match bytes.div_ceil(PAGE_BYTES) {
            pages if pages <= self.pages_max as u64 => Ok(pages as usize),
            _ => Err(AllocateError::TooLarge { limit: self.largest_slot_bytes() }),
        }
    }

    /// Chunks of a span for this size: the fewest that waste at most one part in [`WASTE_PARTS`];
    /// if no short span does, the short one that wastes least; if none is long enough, as many as
    /// one slot needs.
    fn span_chunks(&self, pages: usize) -> usize {
        let least = pages.div_ceil(PAGES_PER_CHUNK);
        let longest = SPAN_CHUNKS_MAX.min(self.pages_max / PAGES_PER_CHUNK);
        let waste = |chunks: usize| (chunks * PAGES_PER_CHUNK % pages) as u64;
        (least..=longest)
            .find(|&chunks| waste(chunks) * WASTE_PARTS <= (chunks * PAGES_PER_CHUNK) as u64)
            // Compared as fractions of their spans, without division.
            .or_else(|| (least..=longest).min_by(|&a, &b| (waste(a) * b as u64).cmp(&(waste(b) * a as u64))))
            .unwrap_or(least)
    }

    fn begin_span(&mut self, pages: usize) -> Result<usize, AllocateError> {
        let count = self.span_chunks(pages);
        let head = self.pool.take_run(count).ok_or(AllocateError::Full)?;
        let slots = count * PAGES_PER_CHUNK / pages;
        self.chunks[head] = Chunk::Head(Span {
            pages: pages as u32,
            chunks: count as u32,
            slots: slots as u32,
            used: 0,
            previous: NONE,
            next: NONE,
        });
        self.chunks[head + 1..head + count].fill(Chunk::Tail(head as u32));
        self.join_partial(head);
        let slot_bytes = (slots * pages) as u64 * PAGE_BYTES;
        self.accounting.spans += 1;
        self.accounting.free_chunks -= count as u64;
        self.accounting.idle_bytes += slot_bytes;
        self.accounting.tail_bytes += count as u64 * CHUNK_BYTES - slot_bytes;
        Ok(head)
    }

    fn end_span(&mut self, head: usize) {
        let span = *self.span(head);
        assert_eq!(span.used, 0, "a span ends without slots");
        self.leave_partial(head);
        let count = span.chunks as usize;
        self.chunks[head..head + count].fill(Chunk::Free);
        self.pool.give_back(head, count);
        let slot_bytes = u64::from(span.slots) * u64::from(span.pages) * PAGE_BYTES;
        self.accounting.spans -= 1;
        self.accounting.free_chunks += count as u64;
        self.accounting.idle_bytes -= slot_bytes;
        self.accounting.tail_bytes -= count as u64 * CHUNK_BYTES - slot_bytes;
    }

    fn join_partial(&mut self, head: usize) {
        let pages = self.span(head).pages as usize;
        let next = std::mem::replace(&mut self.partial[pages], head as u32);
        if next != NONE {
            self.span_mut(next as usize).previous = head as u32;
        }
        let span = self.span_mut(head);
        (span.previous, span.next) = (NONE, next);
    }

    fn leave_partial(&mut self, head: usize) {
        let Span { pages, previous, next, .. } = *self.span(head);
        match previous {
            NONE => self.partial[pages as usize] = next,
            previous => self.span_mut(previous as usize).next = next,
        }
        if next != NONE {
            self.span_mut(next as usize).previous = previous;
        }
    }

    /// The first idle slot of a span in which one is; at most [`WORDS_PER_CHUNK`] words are looked at,
    /// because spans of more than a chunk have few slots.
    fn first_idle(&self, head: usize) -> usize {
        let first = head * WORDS_PER_CHUNK;
        let words = (self.span(head).slots as usize).div_ceil(WORD_BITS);
        let word =
            (0..words).find(|word| self.bits[first + word] != u64::MAX).expect("a partial span has room");
        let index = word * WORD_BITS + self.bits[first + word].trailing_ones() as usize;
        assert!(index < self.span(head).slots as usize, "a partial span has an idle slot");
        index
    }

    fn is_allocated(&self, head: usize, index: usize) -> bool {
        let bit = head * WORDS_PER_CHUNK * WORD_BITS + index;
        self.bits[bit / WORD_BITS] >> (bit % WORD_BITS) & 1 == 1
    }

    fn slot_at(&self, head: usize, index: usize) -> Slot {
        let bytes = u64::from(self.span(head).pages) * PAGE_BYTES;
        let offset = self.settings.base + head as u64 * CHUNK_BYTES + index as u64 * bytes;
        Slot { id: SlotId((offset / PAGE_BYTES) as u32), offset, bytes }
    }

    /// Head chunk and index of the allocated slot that starts at this id.
    fn locate(&self, id: SlotId) -> Option<(usize, usize)> {
        let page = u64::from(id.0).checked_sub(self.settings.base / PAGE_BYTES)? as usize;
        let chunk = page / PAGES_PER_CHUNK;
        if chunk >= self.chunks.len() {
            return None;
        }
        let head = self.head_of(chunk)?;
        let span = self.span(head);
        let page = page - head * PAGES_PER_CHUNK;
        let index = page / span.pages as usize;
        let starts_slot = page.is_multiple_of(span.pages as usize) && index < span.slots as usize;
        (starts_slot && self.is_allocated(head, index)).then_some((head, index))
    }

    fn head_of(&self, chunk: usize) -> Option<usize> {
        match self.chunks[chunk] {
            Chunk::Free => None,
            Chunk::Head(_) => Some(chunk),
            Chunk::Tail(head) => Some(head as usize),
        }
    }

    fn span(&self, head: usize) -> &Span {
        match &self.chunks[head] {
            Chunk::Head(span) => span,
            other => unreachable!("chunk {head} heads a span, not {other:?}"),
        }
    }

    fn span_mut(&mut self, head: usize) -> &mut Span {
        match &mut self.chunks[head] {
            Chunk::Head(span) => span,
            other => unreachable!("chunk {head} heads a span, not {other:?}"),
        }
    }

    fn assert_invariants(&self) {
        let SlabAccounting { capacity_bytes, allocated_bytes, idle_bytes, tail_bytes, free_chunks, .. } =
            self.accounting;
        assert_eq!(
            capacity_bytes,
            allocated_bytes + idle_bytes + tail_bytes + free_chunks * CHUNK_BYTES,
            "every byte of the slice is in one place"
        );
        assert_eq!(free_chunks, self.pool.free() as u64, "the pool and the account agree");
    }
}

fn regions_of(settings: &SlabSettings) -> Regions {
    Regions {
        chunks: (settings.bytes / CHUNK_BYTES) as usize,
        phase: (settings.base % settings.region_bytes / CHUNK_BYTES) as usize,
        region_chunks: (settings.region_bytes / CHUNK_BYTES) as usize,
    }
}
