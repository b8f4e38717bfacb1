//! How room comes back: which segment is emptied next, and how much of it may be written again.

use super::geometry::{LOW_WATER_SEGMENTS, OFFERED_SEGMENTS_MAX};
use super::segment::{BlockState, Offer, Phase, Segment};
use super::{
    AppendError, BlockName, LogState, Placement, Purpose, SegmentId, SegmentLog, Standing, padded_bytes,
};
use crate::key::EntryId;
use orbitkv_wire::bounds::EXTENT_ALIGN_BYTES;

/// A segment of which at most one part in this many is live is almost dead.
const ALMOST_DEAD_SHARE: u64 = 8;

impl SegmentLog {
    /// Asks the owner to empty a segment when room is low: `out` is cleared and takes its readable blocks in their order on
    /// the device. Each is answered by [`Self::remove`], or by [`Self::append_reinsert`] and `remove` once the
    /// copy is readable. The segment is free by itself when nothing is left in it, and is not
    /// offered again before.
    pub fn poll_reclaim(&mut self, out: &mut Vec<(EntryId, Placement)>) -> Option<SegmentId> {
        out.clear();
        if self.state != LogState::On || self.free.len() >= LOW_WATER_SEGMENTS {
            return None;
        }
        let offered = |test: fn(&Segment) -> bool| {
            self.offered.iter().filter(|offered| test(&self.segments[**offered as usize])).count()
        };
        let unanswered = offered(|segment| segment.live_blocks > 0);
        let coming = offered(|segment| matches!(segment.phase, Phase::Sealed(_)));
        // What has been offered will be free: asking for more would drop blocks for nothing. But if a
        // block is refused meanwhile and the owner has answered all, only readers hold that room back.
        let is_held_back = self.refused && unanswered == 0;
        if unanswered >= OFFERED_SEGMENTS_MAX
            || (self.free.len() + coming >= LOW_WATER_SEGMENTS && !is_held_back)
        {
            return None;
        }
        let position = self.victim()?;
        let index = self.sealed.remove(position)? as usize;
        self.offered.push(index as u32);
        self.cancel_table(index);
        let offer = Offer::Made { reinsertion_bytes: self.geometry.reinsertion_bytes };
        self.change(index, |segment| {
            segment.phase = match segment.phase {
                Phase::Sealed(Offer::NotYet) => Phase::Sealed(offer),
                Phase::Retiring(Offer::NotYet) => Phase::Retiring(offer),
                phase => panic!("a segment is offered once, this one is {phase:?}"),
            };
        });
        let (segment, offset) = (&self.segments[index], self.segment_offset(index));
        let live = |(_, record): &(usize, &super::segment::Record)| record.state == BlockState::Live;
        out.extend(segment.records.iter().enumerate().filter(live).map(|(ordinal, record)| {
            let placement = Placement {
                segment: SegmentId(index as u32),
                generation: segment.generation,
                ordinal: ordinal as u32,
                offset: offset + u64::from(record.first_page) * EXTENT_ALIGN_BYTES,
                bytes: u64::from(record.pages) * EXTENT_ALIGN_BYTES,
            };
            (record.owner, placement)
        }));
        self.counts.offered_segments += 1;
        self.assert_invariants();
        Some(SegmentId(index as u32))
    }

    /// Takes room for a copy of a readable block of an offered segment, for the same owner. The copy is in flight like any
    /// other; the old block stays readable until it is removed.
    ///
    /// At most half of a segment is reinserted, and a block costs at least the smallest block size. Hence
    /// every reclaim gains at least half a segment, in bytes and in blocks, and an owner that finds everything hot
    /// cannot keep the log busy with itself.
    ///
    /// # Errors
    /// As [`Self::append`], and [`AppendError::BudgetSpent`]: drop the block instead.
    ///
    /// # Panics
    /// If the block is not readable, its segment is not offered, or it had another size.
    pub fn append_reinsert(
        &mut self,
        from: &Placement,
        name: &BlockName,
        payload_bytes: u64,
    ) -> Result<Placement, AppendError> {
        assert_eq!(self.standing(from), Standing::Readable, "only a readable block is reinserted");
        assert_eq!(padded_bytes(payload_bytes), from.bytes, "a block keeps its size");
        let index = from.segment.0 as usize;
        assert!(self.offer(index).is_some(), "only an offered segment is reinserted");
        let left = self.reinsert_budget(from.segment);
        let cost = from.bytes.max(self.geometry.reinsertion_bytes_min);
        let Some(reinsertion_bytes) = left.checked_sub(cost) else {
            return Err(AppendError::BudgetSpent);
        };
        let owner = self.segments[index].records[from.ordinal as usize].owner;
        let placement = self.place(owner, name, payload_bytes, Purpose::Reinsertion)?;
        let offer = Offer::Made { reinsertion_bytes };
        self.change(index, |segment| {
            segment.phase = match segment.phase {
                Phase::Retiring(_) => Phase::Retiring(offer),
                _ => Phase::Sealed(offer),
            };
        });
        self.counts.reinserted_blocks += 1;
        self.counts.reinserted_bytes += placement.bytes;
        self.assert_invariants();
        Ok(placement)
    }

    /// Bytes of a segment that may still be reinserted: 0 unless it is offered.
    #[must_use]
    pub fn reinsert_budget(&self, segment: SegmentId) -> u64 {
        self.offer(segment.0 as usize).unwrap_or(0)
    }

    fn offer(&self, index: usize) -> Option<u64> {
        match self.segments[index].phase {
            Phase::Sealed(Offer::Made { reinsertion_bytes })
            | Phase::Retiring(Offer::Made { reinsertion_bytes }) => Some(reinsertion_bytes),
            _ => None,
        }
    }

    /// Position in `sealed` of the segment to empty next.
    ///
    /// The oldest: in a cache the oldest write is the likeliest to be cold, what is not is reinserted, and going round
    /// wears the device evenly. But a segment of the older half that is almost dead goes first: it gives the same
    /// room for an eighth of the drops at most. Not one of the younger half: its few blocks are recent, and it is still
    /// dying by itself. One with a write in flight cannot be emptied, and one with only readers left needs no asking.
    fn victim(&self) -> Option<usize> {
        let is_candidate = |segment: &Segment| segment.in_flight_writes == 0 && segment.live_blocks > 0;
        let candidates = || {
            let sealed = self.sealed.iter().map(|sealed| &self.segments[*sealed as usize]).enumerate();
            sealed.filter(|(_, segment)| is_candidate(segment))
        };
        let almost_dead = candidates()
            .take_while(|(position, _)| *position < self.sealed.len().div_ceil(2))
            .filter(|(_, segment)| {
                u64::from(segment.live_pages) * ALMOST_DEAD_SHARE <= u64::from(segment.filled_pages)
            })
            .min_by_key(|(position, segment)| (segment.live_pages, *position));
        almost_dead.or_else(|| candidates().next()).map(|(position, _)| position)
    }
}
