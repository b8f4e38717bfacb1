//! One segment: its phase, its blocks, and the shares into which its bytes fall. Everything that
//! changes a count goes through here, so that counts and blocks cannot drift apart.

use std::collections::BTreeMap;

use orbitkv_wire::bounds::EXTENT_ALIGN_BYTES;
use orbitkv_wire::identity::{BlockHash, GroupId, Incarnation, NamespaceDigest, Sequence};

use super::BlockName;
use super::table::table_bytes;
use crate::key::EntryId;

/// Memory of one namespace of a segment that awaits its table: its digest twice, its index, and
/// the same again for a half-empty tree node.
pub(super) const NAMESPACE_MEMORY_BYTES: u64 = 2 * (2 * 32 + 4);

/// Where a segment is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Free,
    Open,
    Sealed(Offer),
    /// Bytes in it proved wrong; when drained it is never used again.
    Retiring(Offer),
    Retired,
}

/// Whether the owner has been asked to empty a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offer {
    NotYet,
    /// With the bytes of it that may still be reinserted.
    Made {
        reinsertion_bytes: u64,
    },
}

/// Where a segment's table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableState {
    /// Not there: not sealed, skipped or failed.
    Absent,
    /// Due as soon as the last block has settled.
    Due,
    Writing,
    Written,
}

/// Where a block is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockState {
    InFlight,
    /// Removed while its write is in flight.
    Abandoned,
    Live,
    Dead,
    /// Its bytes proved wrong.
    Bad,
}

/// What is kept of a block until its segment is free.
pub(super) struct Record {
    pub owner: EntryId,
    pub first_page: u32,
    pub pages: u32,
    pub state: BlockState,
}

/// What is kept of a block besides until its segment's table is made.
pub(super) struct Detail {
    namespace: u32,
    group: GroupId,
    block: BlockHash,
    payload_bytes: u32,
    /// Of the residence in the life of the segment; 0 if it was none there.
    sequence: Sequence,
    checksum: u64,
}

/// What the table of a segment will say.
#[derive(Default)]
pub(super) struct Details {
    blocks: Vec<Detail>,
    pub digests: Vec<NamespaceDigest>,
    indices: BTreeMap<NamespaceDigest, u32>,
}

/// One segment.
pub(super) struct Segment {
    pub phase: Phase,
    pub table: TableState,
    pub generation: u32,
    /// The life in which it was opened: all its blocks are written under that one.
    pub incarnation: Incarnation,
    pub filled_pages: u32,
    pub live_pages: u32,
    pub in_flight_pages: u32,
    pub in_flight_writes: u32,
    pub readers: u32,
    pub table_pages: u32,
    pub live_blocks: u32,
    pub records: Vec<Record>,
    /// Present while open, and while a table is due. Boxed: nearly every segment has none.
    pub details: Option<Box<Details>>,
}

/// How the bytes and the counts of segments fall: of one segment, or summed over all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Bytes of readable blocks.
    pub live_bytes: u64,
    /// Bytes of blocks whose write has not settled, removed or not.
    pub in_flight_bytes: u64,
    /// Bytes in used segments that hold nothing and come back when the segment is free:
    /// ended blocks, failed writes, rests at the end.
    pub dead_bytes: u64,
    /// Bytes of tables of sealed segments.
    pub table_bytes: u64,
    /// Bytes of the open segment that are not taken yet, room for its table included.
    pub unwritten_bytes: u64,
    /// Bytes of free segments.
    pub free_bytes: u64,
    /// Bytes of segments that are never used again.
    pub quarantined_bytes: u64,
    /// Readable blocks.
    pub live_blocks: u64,
    /// Block writes that have not settled.
    pub in_flight_writes: u64,
    /// Reads that have not ended.
    pub readers: u64,
    /// Free segments.
    pub free_segments: u64,
    /// Segments that are never used again.
    pub quarantined_segments: u64,
    /// Segments in which bytes proved wrong and that are not drained yet.
    pub retiring_segments: u64,
}

impl Shares {
    /// The sum of all bytes: conserved.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.live_bytes
            + self.in_flight_bytes
            + self.dead_bytes
            + self.table_bytes
            + self.unwritten_bytes
            + self.free_bytes
            + self.quarantined_bytes
    }

    fn fields(&mut self) -> [&mut u64; 13] {
        [
            &mut self.live_bytes,
            &mut self.in_flight_bytes,
            &mut self.dead_bytes,
            &mut self.table_bytes,
            &mut self.unwritten_bytes,
            &mut self.free_bytes,
            &mut self.quarantined_bytes,
            &mut self.live_blocks,
            &mut self.in_flight_writes,
            &mut self.readers,
            &mut self.free_segments,
            &mut self.quarantined_segments,
            &mut self.retiring_segments,
        ]
    }

    /// Takes the shares of one segment in.
    pub(super) fn add(&mut self, mut of: Shares) {
        self.fields().into_iter().zip(of.fields()).for_each(|(sum, part)| *sum += *part);
    }

    /// Takes the shares of one segment out.
    pub(super) fn subtract(&mut self, mut of: Shares) {
        self.fields().into_iter().zip(of.fields()).for_each(|(sum, part)| {
            *sum = sum.checked_sub(*part).expect("a share of a part was counted in the sum");
        });
    }
}

impl Segment {
    pub(super) fn new() -> Segment {
        Segment {
            phase: Phase::Free,
            table: TableState::Absent,
            generation: 0,
            incarnation: Incarnation([0; 16]),
            filled_pages: 0,
            live_pages: 0,
            in_flight_pages: 0,
            in_flight_writes: 0,
            readers: 0,
            table_pages: 0,
            live_blocks: 0,
            records: Vec::new(),
            details: None,
        }
    }

    /// Begins a new generation, in this life of the node.
    pub(super) fn open(&mut self, incarnation: Incarnation) {
        assert_eq!(self.phase, Phase::Free, "only a free segment is opened");
        let generation = self.generation.checked_add(1).expect("2^32 generations outlast any device");
        *self = Segment {
            phase: Phase::Open,
            generation,
            incarnation,
            details: Some(Box::default()),
            records: std::mem::take(&mut self.records),
            ..Segment::new()
        };
    }

    /// Pages of the table with one more block of this namespace.
    pub(super) fn table_pages_with(&self, namespace: &NamespaceDigest) -> u32 {
        let details = self.details.as_ref().expect("an open segment knows its blocks");
        let known = details.indices.contains_key(namespace);
        pages(table_bytes(self.records.len() as u64 + 1, details.digests.len() as u64 + u64::from(!known)))
    }

    /// Pages of the table as the segment stands.
    pub(super) fn table_pages_now(&self) -> u32 {
        let details = self.details.as_ref().expect("an open segment knows its blocks");
        pages(table_bytes(self.records.len() as u64, details.digests.len() as u64))
    }

    /// Takes the next pages for a block whose write begins now. Gives its ordinal and first page.
    pub(super) fn push(&mut self, owner: EntryId, name: &BlockName, payload_bytes: u32) -> (u32, u32) {
        assert_eq!(self.phase, Phase::Open, "blocks go to the open segment");
        let block_pages = pages(u64::from(payload_bytes));
        let (ordinal, first_page) = (self.records.len() as u32, self.filled_pages);
        self.records.push(Record { owner, first_page, pages: block_pages, state: BlockState::InFlight });
        self.filled_pages += block_pages;
        self.in_flight_pages += block_pages;
        self.in_flight_writes += 1;
        self.details.as_mut().expect("an open segment knows its blocks").push(name, payload_bytes);
        (ordinal, first_page)
    }

    /// The write of a block has settled; what it is now.
    pub(super) fn settle(&mut self, ordinal: u32, readable: Option<(Sequence, u64)>) -> BlockState {
        let record = &mut self.records[ordinal as usize];
        let state = match (record.state, readable) {
            (BlockState::InFlight, Some(_)) => BlockState::Live,
            (BlockState::InFlight | BlockState::Abandoned, _) => BlockState::Dead,
            (state, _) => panic!("a write settles once, this block is {state:?}"),
        };
        record.state = state;
        self.in_flight_writes -= 1;
        self.in_flight_pages -= record.pages;
        if state == BlockState::Live {
            self.live_pages += record.pages;
            self.live_blocks += 1;
            if let (Some(details), Some((sequence, checksum))) = (&mut self.details, readable) {
                let detail = &mut details.blocks[ordinal as usize];
                (detail.sequence, detail.checksum) = (sequence, checksum);
            }
        }
        state
    }

    /// The residence of a block has ended.
    pub(super) fn remove(&mut self, ordinal: u32) {
        match self.records[ordinal as usize].state {
            BlockState::InFlight => self.records[ordinal as usize].state = BlockState::Abandoned,
            BlockState::Live => self.end(ordinal, BlockState::Dead),
            state => panic!("a residence ends once, this block is {state:?}"),
        }
    }

    /// The bytes of a block are wrong. Whether that is news.
    pub(super) fn condemn(&mut self, ordinal: u32) -> bool {
        match self.records[ordinal as usize].state {
            BlockState::Live => self.end(ordinal, BlockState::Bad),
            BlockState::Dead => self.records[ordinal as usize].state = BlockState::Bad,
            BlockState::Bad => return false,
            state => panic!("only bytes that were read are wrong, this block is {state:?}"),
        }
        true
    }

    fn end(&mut self, ordinal: u32, state: BlockState) {
        let record = &mut self.records[ordinal as usize];
        record.state = state;
        self.live_pages -= record.pages;
        self.live_blocks -= 1;
    }

    /// Nothing in it is wanted and nobody touches its bytes.
    pub(super) fn is_drained(&self) -> bool {
        self.live_blocks == 0
            && self.in_flight_writes == 0
            && self.readers == 0
            && self.table != TableState::Writing
    }

    /// Forgets its blocks: it becomes free, or retired for good.
    pub(super) fn clear(&mut self) {
        assert!(self.is_drained(), "a segment in use is never reused");
        let phase = match self.phase {
            Phase::Sealed(_) => Phase::Free,
            Phase::Retiring(_) => Phase::Retired,
            phase => panic!("a segment that is {phase:?} does not become free"),
        };
        *self = Segment { phase, generation: self.generation, ..Segment::new() };
    }

    /// How its bytes and counts fall.
    pub(super) fn shares(&self, segment_bytes: u64) -> Shares {
        let bytes = |pages: u32| u64::from(pages) * EXTENT_ALIGN_BYTES;
        let mut shares = Shares::default();
        match self.phase {
            Phase::Free => (shares.free_bytes, shares.free_segments) = (segment_bytes, 1),
            Phase::Retired => (shares.quarantined_bytes, shares.quarantined_segments) = (segment_bytes, 1),
            Phase::Open | Phase::Sealed(_) | Phase::Retiring(_) => {
                shares.live_bytes = bytes(self.live_pages);
                shares.in_flight_bytes = bytes(self.in_flight_pages);
                shares.table_bytes = bytes(self.table_pages);
                shares.live_blocks = u64::from(self.live_blocks);
                shares.in_flight_writes = u64::from(self.in_flight_writes);
                shares.readers = u64::from(self.readers);
                shares.retiring_segments = u64::from(matches!(self.phase, Phase::Retiring(_)));
                if self.phase == Phase::Open {
                    shares.unwritten_bytes = segment_bytes - bytes(self.filled_pages);
                }
                shares.dead_bytes = segment_bytes - shares.total_bytes();
            }
        }
        shares
    }

    /// Every counted page and block is there; the counts fit the phase.
    pub(super) fn assert_invariants(&self, segment_pages: u32) {
        assert!(self.filled_pages + self.table_pages <= segment_pages, "blocks and table share a segment");
        assert!(self.live_pages + self.in_flight_pages <= self.filled_pages);
        if matches!(self.phase, Phase::Free | Phase::Retired) {
            assert!(
                self.is_drained() && self.records.is_empty(),
                "nobody touches a {:?} segment",
                self.phase
            );
        }
        if self.details.is_none() {
            assert!(
                self.phase != Phase::Open && self.table != TableState::Due,
                "a due table has its details"
            );
        }
        if cfg!(debug_assertions) {
            let (mut live, mut blocks, mut in_flight, mut writes, mut next) = (0, 0, 0, 0, 0);
            for record in &self.records {
                assert_eq!(record.first_page, next, "blocks follow each other without a gap");
                next += record.pages;
                match record.state {
                    BlockState::Live => (live, blocks) = (live + record.pages, blocks + 1),
                    BlockState::InFlight | BlockState::Abandoned => {
                        (in_flight, writes) = (in_flight + record.pages, writes + 1);
                    }
                    BlockState::Dead | BlockState::Bad => {}
                }
            }
            assert_eq!((live, blocks), (self.live_pages, self.live_blocks));
            assert_eq!((in_flight, writes), (self.in_flight_pages, self.in_flight_writes));
            assert_eq!(next, self.filled_pages);
        }
    }
}

impl Details {
    fn push(&mut self, name: &BlockName, payload_bytes: u32) {
        let next = self.digests.len() as u32;
        let namespace = *self.indices.entry(name.namespace).or_insert(next);
        if namespace == next {
            self.digests.push(name.namespace);
        }
        self.blocks.push(Detail {
            namespace,
            group: name.group,
            block: name.block,
            payload_bytes,
            sequence: Sequence(0),
            checksum: 0,
        });
    }

    /// The readable blocks, in their order on the device; but not those that were no residence in the life
    /// that the table speaks of.
    pub(super) fn entries(&self, records: &[Record]) -> impl Iterator<Item = super::table::TableEntry> {
        let live = records.iter().zip(&self.blocks).filter(|(record, _)| record.state == BlockState::Live);
        let live = live.filter(|(_, detail)| detail.sequence > Sequence(0));
        live.map(|(record, detail)| super::table::TableEntry {
            namespace: detail.namespace,
            group: detail.group,
            block: detail.block,
            sequence: detail.sequence,
            first_page: record.first_page,
            payload_bytes: detail.payload_bytes,
            checksum: detail.checksum,
        })
    }

    /// Gives back what growth left over.
    pub(super) fn shrink(&mut self) {
        self.blocks.shrink_to_fit();
        self.digests.shrink_to_fit();
    }
}

/// Pages that hold these bytes; a segment is below 4 GiB.
pub(super) fn pages(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(EXTENT_ALIGN_BYTES)).expect("a segment has fewer pages")
}
