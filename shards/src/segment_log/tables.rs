//! When tables are written: once a sealed segment's last block has settled. A segment that is
//! already being emptied gets none.

use super::segment::TableState;
use super::table::{TableHeader, encode_table};
use super::{SegmentId, SegmentLog};
use orbitkv_wire::bounds::EXTENT_ALIGN_BYTES;

/// A table to write. Its segment is not reused before [`SegmentLog::on_table_written`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableWrite {
    /// The segment that it describes.
    pub segment: SegmentId,
    /// Absolute file offset, 4,096-aligned.
    pub offset: u64,
    /// Whole pages. The memory itself is not aligned.
    pub bytes: Vec<u8>,
}

impl SegmentLog {
    /// The next table to write, if one is ready.
    pub fn poll_table(&mut self) -> Option<TableWrite> {
        let ready = |index: &u32| self.segments[*index as usize].in_flight_writes == 0;
        let position = self.awaiting_table.iter().position(ready)?;
        let index = self.awaiting_table.remove(position)? as usize;
        let segment_bytes = self.geometry.segment_bytes;
        let segment_offset = self.segment_offset(index);
        let header = TableHeader {
            incarnation: self.segments[index].incarnation,
            shard: self.settings.shard,
            segment: index as u32,
            generation: self.segments[index].generation,
            segment_offset,
            segment_bytes,
        };
        let bytes = self.change(index, |segment| {
            let details = segment.details.take().expect("a due table has its details");
            segment.table = TableState::Writing;
            let table_bytes = u64::from(segment.table_pages) * EXTENT_ALIGN_BYTES;
            encode_table(&header, &details.digests, details.entries(&segment.records), table_bytes)
        });
        self.assert_invariants();
        let offset = segment_offset + segment_bytes - bytes.len() as u64;
        Some(TableWrite { segment: SegmentId(index as u32), offset, bytes })
    }

    /// The write of a table has completed; `is_whole` if all of it is on the device.
    ///
    /// # Panics
    /// If it was not in flight.
    pub fn on_table_written(&mut self, segment: SegmentId, is_whole: bool) {
        let index = segment.0 as usize;
        assert_eq!(self.segments[index].table, TableState::Writing, "a table write settles once");
        self.change(index, |segment| {
            segment.table = if is_whole { TableState::Written } else { TableState::Absent };
            if !is_whole {
                segment.table_pages = 0;
            }
        });
        self.counts.written_tables += u64::from(is_whole);
        self.counts.lost_tables += u64::from(!is_whole);
        self.free_if_drained(index);
    }

    /// A due table is not wanted any more.
    pub(super) fn cancel_table(&mut self, index: usize) {
        if self.segments[index].table != TableState::Due {
            return;
        }
        self.awaiting_table.retain(|awaiting| *awaiting != index as u32);
        self.change(index, |segment| {
            segment.table = TableState::Absent;
            segment.table_pages = 0;
            segment.details = None;
        });
    }
}
