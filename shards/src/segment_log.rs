//! Where blocks lie on SSD: the shard's part of the file as a log of large segments.
//!
//! It exists so that the device sees long sequential writes and no small overwrites, and so that
//! room comes back a whole segment at a time. It performs nothing: [`SegmentLog::append`] says
//! where a block goes and the owner writes it there straight from its arena slot, once.
//!
//! A segment is open, then sealed; when room runs low the owner is asked to empty the best victim
//! ([`SegmentLog::poll_reclaim`]). A segment with a live block, a write in flight or a reader is
//! never used again before that has ended. Wrong bytes retire their segment for good.

mod crc64;
mod geometry;
mod placement;
mod reclaim;
mod segment;
mod table;
mod tables;

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use orbitkv_wire::bounds::EXTENT_ALIGN_BYTES;
use orbitkv_wire::identity::{Incarnation, Sequence};

pub use self::geometry::{
    Geometry, GeometryError, LOW_WATER_SEGMENTS, OFFERED_SEGMENTS_MAX, SEGMENT_BYTES, SMALLEST_BLOCK_BYTES,
    SegmentLogSettings, TABLES_AWAITING_MAX, padded_bytes, table_memory_bytes,
};
pub use self::placement::{
    AppendError, BlockName, LogAccounting, LogCounts, LogState, OffReason, Origin, Placement, SegmentId,
    Settled, Standing,
};
pub use self::segment::Shares;
pub use self::table::{SegmentTable, TABLE_VERSION, TableBlock, TableError, decode_table};
pub use self::tables::TableWrite;

use self::geometry::REINSERTION_SEGMENTS;
use self::segment::{BlockState, Offer, Phase, Segment, TableState, pages};
use crate::key::EntryId;

/// Quarantined segments turn the log off when they are more than one in this many, and more than one.
const QUARANTINE_SHARE: usize = 10;

/// Who asks for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    NewBlock,
    Reinsertion,
}

/// The log. See the module.
pub struct SegmentLog {
    settings: SegmentLogSettings,
    geometry: Geometry,
    state: LogState,
    segments: Vec<Segment>,
    open: Option<u32>,
    /// In the order in which they became free, so that wear spreads.
    free: VecDeque<u32>,
    /// Sealed and not offered, oldest first.
    sealed: VecDeque<u32>,
    /// Offered and not drained.
    offered: Vec<u32>,
    /// Sealed, with a table due; oldest first.
    awaiting_table: VecDeque<u32>,
    /// A new block was refused since the last segment was opened.
    refused: bool,
    shares: Shares,
    counts: LogCounts,
}

impl SegmentLog {
    /// An empty log over the part. Nothing on the device is read or cleared.
    ///
    /// # Errors
    /// As [`SegmentLogSettings::geometry`].
    pub fn new(settings: SegmentLogSettings) -> Result<SegmentLog, GeometryError> {
        let geometry = settings.geometry()?;
        let segments: Vec<Segment> = (0..geometry.segments).map(|_| Segment::new()).collect();
        let mut shares = Shares::default();
        segments.iter().for_each(|segment| shares.add(segment.shares(geometry.segment_bytes)));
        let log = SegmentLog {
            settings,
            geometry,
            state: LogState::On,
            segments,
            open: None,
            free: (0..geometry.segments).collect(),
            sealed: VecDeque::new(),
            offered: Vec::new(),
            awaiting_table: VecDeque::new(),
            refused: false,
            shares,
            counts: LogCounts::default(),
        };
        log.assert_invariants();
        Ok(log)
    }

    /// A new registration life: what is written from now on is written under its name. The open segment is
    /// sealed, so that a segment, and its table, is of one life; what lies there stays readable.
    pub fn begin_life(&mut self, incarnation: Incarnation) {
        self.settings.incarnation = incarnation;
        // A log that is off writes nothing more, and no tables either.
        if let (Some(open), LogState::On) = (self.open, self.state) {
            self.seal(open as usize);
        }
        self.assert_invariants();
    }

    /// Takes room for a block. Its write is in flight until [`Self::on_written`] or
    /// [`Self::on_write_failed`], even if it is removed before.
    ///
    /// # Errors
    /// [`AppendError::NoRoom`], [`AppendError::TooLarge`] or [`AppendError::Off`]; nothing changed.
    ///
    /// # Panics
    /// If the block is empty.
    pub fn append(
        &mut self,
        owner: EntryId,
        name: &BlockName,
        payload_bytes: u64,
    ) -> Result<Placement, AppendError> {
        let placed = self.place(owner, name, payload_bytes, Purpose::NewBlock);
        self.refused |= placed == Err(AppendError::NoRoom);
        self.assert_invariants();
        placed
    }

    /// The write of a block has completed whole: it is readable now, unless it has been removed.
    /// `sequence`, of the present life, and `checksum` are what the table will say; they are ignored if it was
    /// removed. In a segment of an earlier life the block was no residence: its table leaves it out.
    ///
    /// # Panics
    /// If the write was not in flight.
    pub fn on_written(&mut self, placement: &Placement, sequence: Sequence, checksum: u64) -> Settled {
        let origin = self.origin(placement, sequence);
        let state = self.settle(placement, Some((origin.sequence, checksum)));
        assert!(state != BlockState::Live || sequence > Sequence(0), "a residence has a sequence");
        if state == BlockState::Live { Settled::Readable } else { Settled::Abandoned }
    }

    /// The write of a block has failed: its space is dead.
    ///
    /// # Panics
    /// If the write was not in flight.
    pub fn on_write_failed(&mut self, placement: &Placement) {
        self.counts.failed_writes += 1;
        self.settle(placement, None);
    }

    /// The residence of a block has ended. In flight, its write still has to settle; being read, its
    /// bytes stay until the last reader has ended.
    ///
    /// # Panics
    /// If the block has ended before.
    pub fn remove(&mut self, placement: &Placement) {
        let segment = self.segment_of(placement);
        self.change(segment, |segment| segment.remove(placement.ordinal));
        self.free_if_drained(segment);
    }

    /// Somebody reads the block: its segment is not reused before the matching [`Self::end_read`].
    ///
    /// # Panics
    /// If the block is not readable.
    pub fn begin_read(&mut self, placement: &Placement) {
        assert_eq!(self.standing(placement), Standing::Readable, "only a readable block is read");
        let segment = self.segment_of(placement);
        self.change(segment, |segment| segment.readers += 1);
        self.assert_invariants();
    }

    /// A read has ended, whatever became of the block meanwhile.
    ///
    /// # Panics
    /// If no read had begun.
    pub fn end_read(&mut self, placement: &Placement) {
        let segment = self.segment_of(placement);
        self.change(segment, |segment| {
            segment.readers = segment.readers.checked_sub(1).expect("a read ends once");
        });
        self.free_if_drained(segment);
    }

    /// The bytes of a block proved wrong: the block has ended (do not [`Self::remove`] it as well), and its segment is
    /// retired for good once it has drained. Call it before the read ends. What else lives in the segment
    /// stays readable, since every read is checked, until it is removed or its turn to be reclaimed comes.
    ///
    /// # Panics
    /// If the write is still in flight, or the segment has been emptied.
    pub fn quarantine(&mut self, placement: &Placement) {
        let index = self.segment_of(placement);
        let is_news = self.change(index, |segment| segment.condemn(placement.ordinal));
        self.counts.quarantined_blocks += u64::from(is_news);
        match self.segments[index].phase {
            Phase::Open => {
                self.open = None;
                self.sealed.push_back(index as u32);
                self.change(index, |segment| {
                    segment.phase = Phase::Retiring(Offer::NotYet);
                    segment.details = None;
                });
            }
            Phase::Sealed(offer) => {
                self.cancel_table(index);
                self.change(index, |segment| segment.phase = Phase::Retiring(offer));
            }
            Phase::Retiring(_) => {}
            phase @ (Phase::Free | Phase::Retired) => panic!("a {phase:?} segment has no blocks"),
        }
        let quarantined = (self.shares.quarantined_segments + self.shares.retiring_segments) as usize;
        // One bad segment of a small part is no reason to give up the rest.
        if self.state == LogState::On
            && quarantined > 1
            && quarantined * QUARANTINE_SHARE > self.segments.len()
        {
            self.turn_off(OffReason::Quarantine { segments: quarantined as u32, of: self.geometry.segments });
        }
        self.free_if_drained(index);
    }

    /// What the block at a placement was written as, if its write ends as the residence `sequence` of the
    /// present life.
    ///
    /// # Panics
    /// If its segment has been emptied.
    #[must_use]
    pub fn origin(&self, placement: &Placement, sequence: Sequence) -> Origin {
        let incarnation = self.life_of(placement);
        let is_present = incarnation == self.settings.incarnation;
        Origin { incarnation, sequence: if is_present { sequence } else { Sequence(0) } }
    }

    /// The life in which the place of a block was taken.
    ///
    /// # Panics
    /// If its segment has been emptied.
    #[must_use]
    pub fn life_of(&self, placement: &Placement) -> Incarnation {
        self.segments[self.segment_of(placement)].incarnation
    }

    /// What a placement stands for now.
    #[must_use]
    pub fn standing(&self, placement: &Placement) -> Standing {
        let segment = self.segments.get(placement.segment.0 as usize);
        let Some(segment) = segment.filter(|segment| segment.generation == placement.generation) else {
            return Standing::Stale;
        };
        match segment.records.get(placement.ordinal as usize).map(|record| record.state) {
            None => Standing::Stale,
            Some(BlockState::InFlight) => Standing::InFlight,
            Some(BlockState::Abandoned) => Standing::Abandoned,
            Some(BlockState::Live) => Standing::Readable,
            Some(BlockState::Dead | BlockState::Bad) => Standing::Ended,
        }
    }

    /// Where every byte is.
    #[must_use]
    pub fn accounting(&self) -> LogAccounting {
        let capacity_bytes = self.capacity_bytes();
        LogAccounting {
            capacity_bytes,
            unused_bytes: self.settings.bytes - capacity_bytes,
            segments: self.geometry.segments,
            shares: self.shares,
            counts: self.counts,
        }
    }

    /// How the part is cut.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Takes no blocks any more. What is there can still be read and removed.
    pub fn turn_off(&mut self, reason: OffReason) {
        if self.state == LogState::On {
            self.state = LogState::Off(reason);
            while let Some(&segment) = self.awaiting_table.front() {
                self.cancel_table(segment as usize);
            }
        }
    }

    /// Whether it takes blocks.
    #[must_use]
    pub fn state(&self) -> LogState {
        self.state
    }

    fn place(
        &mut self,
        owner: EntryId,
        name: &BlockName,
        payload_bytes: u64,
        purpose: Purpose,
    ) -> Result<Placement, AppendError> {
        assert!(payload_bytes > 0, "a block has bytes");
        if let LogState::Off(reason) = self.state {
            return Err(AppendError::Off(reason));
        }
        if payload_bytes > self.geometry.block_bytes_max {
            return Err(AppendError::TooLarge { limit_bytes: self.geometry.block_bytes_max });
        }
        let payload_bytes = payload_bytes as u32;
        let index = match self.open {
            Some(open) if self.fits(open as usize, name, payload_bytes) => open as usize,
            _ => self.open_next(purpose)?,
        };
        assert!(self.fits(index, name, payload_bytes), "an empty segment takes every block up to the limit");
        let (ordinal, first_page) = self.change(index, |segment| segment.push(owner, name, payload_bytes));
        let placement = Placement {
            segment: SegmentId(index as u32),
            generation: self.segments[index].generation,
            ordinal,
            offset: self.segment_offset(index) + u64::from(first_page) * EXTENT_ALIGN_BYTES,
            bytes: padded_bytes(u64::from(payload_bytes)),
        };
        self.counts.appended_blocks += 1;
        self.counts.appended_bytes += placement.bytes;
        Ok(placement)
    }

    fn fits(&self, index: usize, name: &BlockName, payload_bytes: u32) -> bool {
        let segment = &self.segments[index];
        let pages_with = segment.filled_pages
            + pages(u64::from(payload_bytes))
            + segment.table_pages_with(&name.namespace);
        (segment.records.len() as u32) < self.geometry.blocks_per_segment
            && pages_with <= self.segment_pages()
    }

    /// Seals the open segment and opens a free one; without one, the open segment stays for smaller blocks.
    fn open_next(&mut self, purpose: Purpose) -> Result<usize, AppendError> {
        if let Some(open) = self.open.filter(|open| self.segments[*open as usize].is_drained()) {
            self.seal(open as usize);
        }
        let kept = if purpose == Purpose::NewBlock { REINSERTION_SEGMENTS } else { 0 };
        if self.free.len() <= kept {
            return Err(AppendError::NoRoom);
        }
        if let Some(open) = self.open {
            self.seal(open as usize);
        }
        let next = self.free.pop_front().ok_or(AppendError::NoRoom)?;
        let incarnation = self.settings.incarnation;
        self.change(next as usize, |segment| segment.open(incarnation));
        self.open = Some(next);
        self.refused = false;
        Ok(next as usize)
    }

    fn seal(&mut self, index: usize) {
        assert_eq!(self.open, Some(index as u32));
        self.open = None;
        self.change(index, |segment| {
            segment.phase = Phase::Sealed(Offer::NotYet);
            segment.table = TableState::Due;
            segment.table_pages = segment.table_pages_now();
            segment.records.shrink_to_fit();
            segment.details.iter_mut().for_each(|details| details.shrink());
        });
        self.sealed.push_back(index as u32);
        self.awaiting_table.push_back(index as u32);
        if self.awaiting_table.len() > TABLES_AWAITING_MAX {
            self.counts.lost_tables += 1;
            self.cancel_table(self.awaiting_table[0] as usize);
        }
        self.free_if_drained(index);
    }

    fn settle(&mut self, placement: &Placement, readable: Option<(Sequence, u64)>) -> BlockState {
        let segment = self.segment_of(placement);
        let state = self.change(segment, |segment| segment.settle(placement.ordinal, readable));
        self.free_if_drained(segment);
        state
    }

    /// A sealed or retiring segment without anything in it becomes free, or retired, by itself.
    fn free_if_drained(&mut self, index: usize) {
        let segment = &self.segments[index];
        if segment.is_drained() && matches!(segment.phase, Phase::Sealed(_) | Phase::Retiring(_)) {
            self.cancel_table(index);
            self.sealed.retain(|sealed| *sealed != index as u32);
            self.offered.retain(|offered| *offered != index as u32);
            self.change(index, Segment::clear);
            if self.segments[index].phase == Phase::Free {
                self.free.push_back(index as u32);
                self.counts.freed_segments += 1;
            }
        }
        self.assert_invariants();
    }

    /// The only way to change a segment: keeps the sums in step and checks what came out.
    fn change<T>(&mut self, index: usize, act: impl FnOnce(&mut Segment) -> T) -> T {
        let segment_pages = self.segment_pages();
        let segment = &mut self.segments[index];
        self.shares.subtract(segment.shares(self.geometry.segment_bytes));
        let outcome = act(segment);
        segment.assert_invariants(segment_pages);
        self.shares.add(segment.shares(self.geometry.segment_bytes));
        outcome
    }

    fn segment_of(&self, placement: &Placement) -> usize {
        assert_ne!(self.standing(placement), Standing::Stale, "a stale placement: {placement:?}");
        placement.segment.0 as usize
    }

    fn segment_offset(&self, index: usize) -> u64 {
        self.settings.base + index as u64 * self.geometry.segment_bytes
    }

    fn segment_pages(&self) -> u32 {
        pages(self.geometry.segment_bytes)
    }

    fn capacity_bytes(&self) -> u64 {
        u64::from(self.geometry.segments) * self.geometry.segment_bytes
    }

    /// Every byte is in exactly one share and every segment in exactly one place.
    fn assert_invariants(&self) {
        assert_eq!(self.shares.total_bytes(), self.capacity_bytes(), "bytes are conserved");
        assert_eq!(self.free.len() as u64, self.shares.free_segments);
        let placed =
            self.free.len() + self.sealed.len() + self.offered.len() + usize::from(self.open.is_some());
        let placed = placed + self.shares.quarantined_segments as usize;
        assert_eq!(placed, self.segments.len(), "segments are conserved");
        assert!(self.awaiting_table.len() <= TABLES_AWAITING_MAX);
    }
}
