//! How a part of the file is cut into segments: decided once, before anything is allocated,
//! so that a bad setting is refused with its bound and the memory bill can name a figure.

use orbitkv_wire::bounds::EXTENT_ALIGN_BYTES;
use orbitkv_wire::identity::{Incarnation, ShardIndex};

use super::segment::{Detail, NAMESPACE_MEMORY_BYTES, Record, Segment};
use super::table::table_bytes;

/// Data bytes of a segment unless the part is small: long enough that the device sees one
/// sequential stream and that its own erase units die together.
pub const SEGMENT_BYTES: u64 = 32 * 1024 * 1024;

/// The smallest block that the memory bill counts with; see [`SegmentLogSettings::smallest_block_bytes`].
pub const SMALLEST_BLOCK_BYTES: u64 = 16 * 1024;

/// Free segments below which [`super::SegmentLog::poll_reclaim`] asks for one.
pub const LOW_WATER_SEGMENTS: usize = 2;

/// Free segments that only a reinsertion may open, so that a burst of new blocks cannot take
/// the room that what is still hot needs to move.
pub(super) const REINSERTION_SEGMENTS: usize = 1;

/// Segments that await an answer from the owner at a time.
pub const OFFERED_SEGMENTS_MAX: usize = 2;

/// Sealed segments that wait for their table at a time. One more costs the oldest its table:
/// a table only serves re-adoption, so it is never worth holding up a write or growing memory.
pub const TABLES_AWAITING_MAX: usize = 8;

/// A part is cut into about this many segments where [`SEGMENT_BYTES`] allows it: the low water
/// and the open segment are then under 1 % of the part.
const SEGMENTS_WANTED: u64 = 384;

/// Below this a segment shrinks only to keep [`SEGMENTS_FEW`] of them.
const SEGMENT_BYTES_FLOOR: u64 = 1024 * 1024;

/// What even a small part is cut into, if the largest block allows it.
const SEGMENTS_FEW: u64 = 8;

/// Fewer cannot run: one open, the low water free, one to reclaim.
const SEGMENTS_MIN: u64 = 4;

/// Segments get room for the table of blocks of this size beside their data, so that a whole
/// number of the usual blocks fits. Smaller blocks take table room from the data.
const USUAL_BLOCK_BYTES: u64 = 64 * 1024;

/// Namespaces in the table of a usual segment.
const USUAL_NAMESPACES: u64 = 4;

const _: () = assert!(LOW_WATER_SEGMENTS > REINSERTION_SEGMENTS);
const _: () = assert!(SEGMENTS_MIN as usize > LOW_WATER_SEGMENTS + 1);
const _: () = assert!(SEGMENTS_FEW >= SEGMENTS_MIN);
const _: () = assert!(SEGMENT_BYTES.is_multiple_of(EXTENT_ALIGN_BYTES));

/// The shard's part of the file and what will be kept there.
#[derive(Clone, Copy, Debug)]
pub struct SegmentLogSettings {
    /// File offset of the part, a multiple of 4,096.
    pub base: u64,
    /// Bytes of the part.
    pub bytes: u64,
    /// Data bytes of a segment at most, unless a larger block needs more. [`SEGMENT_BYTES`].
    pub segment_bytes: u64,
    /// The largest block that must fit; payload bytes.
    pub largest_block_bytes: u64,
    /// A segment holds no more blocks than its data divided by this: smaller blocks are kept, but
    /// waste room. It bounds the memory of the log. [`SMALLEST_BLOCK_BYTES`].
    pub smallest_block_bytes: u64,
    /// The life of the node that writes these segments, until the log is told of another.
    pub incarnation: Incarnation,
    /// The shard that writes these segments.
    pub shard: ShardIndex,
}

/// Why a part cannot be a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// The part does not begin on a page of the file.
    #[error("part of the SSD file begins at byte {base}, which is not a multiple of 4096")]
    Misaligned {
        /// The offset given.
        base: u64,
    },
    /// The part ends beyond the largest file offset.
    #[error("part of the SSD file at byte {base} with {bytes} bytes ends beyond the largest offset")]
    BeyondFile {
        /// The offset given.
        base: u64,
        /// The bytes given.
        bytes: u64,
    },
    /// Too few segments would fit.
    #[error("{bytes} bytes of SSD for a shard are too few: blocks this large need at least {least_bytes}")]
    PartTooSmall {
        /// Bytes of the part given.
        bytes: u64,
        /// The least that would do, for the same largest block.
        least_bytes: u64,
    },
    /// A segment would not be addressable.
    #[error("segments of {bytes} bytes are too large: segment and largest block stay below {limit_bytes}")]
    SegmentTooLarge {
        /// Bytes that a segment would have.
        bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
}

/// The cut that follows from the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Segments of the part.
    pub segments: u32,
    /// Bytes of a segment, its table included; a multiple of 4,096.
    pub segment_bytes: u64,
    /// Blocks that a segment holds at most.
    pub blocks_per_segment: u32,
    /// The largest payload that a segment takes.
    pub block_bytes_max: u64,
    /// What of one reclaimed segment may be written again; see
    /// [`super::SegmentLog::append_reinsert`].
    pub reinsertion_bytes: u64,
    /// What a reinserted block costs at least, so that tiny blocks cannot fill a segment by count.
    pub reinsertion_bytes_min: u64,
}

/// `payload_bytes` rounded up to whole pages.
#[must_use]
pub fn padded_bytes(payload_bytes: u64) -> u64 {
    payload_bytes.div_ceil(EXTENT_ALIGN_BYTES).saturating_mul(EXTENT_ALIGN_BYTES)
}

impl SegmentLogSettings {
    /// Settings with the default segment and smallest block sizes.
    #[must_use]
    pub fn new(
        base: u64,
        bytes: u64,
        largest_block_bytes: u64,
        incarnation: Incarnation,
        shard: ShardIndex,
    ) -> SegmentLogSettings {
        SegmentLogSettings {
            base,
            bytes,
            segment_bytes: SEGMENT_BYTES,
            largest_block_bytes,
            smallest_block_bytes: SMALLEST_BLOCK_BYTES,
            incarnation,
            shard,
        }
    }

    /// The cut of the part.
    ///
    /// # Errors
    /// A [`GeometryError`] that names the value and its bound.
    pub fn geometry(&self) -> Result<Geometry, GeometryError> {
        let SegmentLogSettings { base, bytes, .. } = *self;
        if !base.is_multiple_of(EXTENT_ALIGN_BYTES) {
            return Err(GeometryError::Misaligned { base });
        }
        if base.checked_add(bytes).is_none_or(|end| end > i64::MAX as u64) {
            return Err(GeometryError::BeyondFile { base, bytes });
        }
        let limit_bytes = u64::from(u32::MAX);
        let ceiling = padded_bytes(self.segment_bytes.clamp(EXTENT_ALIGN_BYTES, limit_bytes));
        if self.largest_block_bytes > limit_bytes {
            return Err(GeometryError::SegmentTooLarge { bytes: self.largest_block_bytes, limit_bytes });
        }
        let largest = padded_bytes(self.largest_block_bytes.max(1));
        let usual = largest.min(USUAL_BLOCK_BYTES);
        let usual_table = |data: u64| table_bytes(data.div_ceil(usual), USUAL_NAMESPACES);

        let share = bytes / SEGMENTS_FEW;
        let wanted = (bytes / SEGMENTS_WANTED)
            .clamp(SEGMENT_BYTES_FLOOR.min(ceiling), ceiling)
            .min(share.saturating_sub(usual_table(share)));
        // Whole largest blocks: with one size of block nothing is left over at a segment's end.
        let data = (wanted / largest).max(1) * largest;
        let segment_bytes = data + usual_table(data);
        if segment_bytes > limit_bytes {
            return Err(GeometryError::SegmentTooLarge { bytes: segment_bytes, limit_bytes });
        }
        let least_bytes = segment_bytes * SEGMENTS_MIN;
        if bytes < least_bytes {
            return Err(GeometryError::PartTooSmall { bytes, least_bytes });
        }
        let segments = bytes / segment_bytes;
        let Ok(segments) = u32::try_from(segments) else {
            return Err(GeometryError::BeyondFile { base, bytes });
        };

        let smallest = padded_bytes(self.smallest_block_bytes.clamp(1, largest));
        let blocks_per_segment = data / smallest;
        let table_bytes_max = table_bytes(blocks_per_segment, blocks_per_segment);
        // Two reclaims' worth of reinsertion fit one segment with any table, in bytes and in
        // count. So reinsertion opens at most one segment per two that it frees.
        let reinsertion = (segment_bytes - table_bytes_max).min(blocks_per_segment * smallest) / 2;
        Ok(Geometry {
            segments,
            segment_bytes,
            blocks_per_segment: u32::try_from(blocks_per_segment).expect("a segment is below 4 GiB"),
            block_bytes_max: segment_bytes - table_bytes(1, 1),
            reinsertion_bytes: reinsertion,
            reinsertion_bytes_min: smallest,
        })
    }
}

/// Memory that the log of these settings uses at most, in bytes: a record for every block of every segment,
/// what a table says about each block of the segments that still wait for theirs, and one table.
///
/// # Errors
/// As [`SegmentLogSettings::geometry`].
pub fn table_memory_bytes(settings: &SegmentLogSettings) -> Result<u64, GeometryError> {
    let geometry = settings.geometry()?;
    let blocks = u64::from(geometry.blocks_per_segment);
    let segments = u64::from(geometry.segments);
    // Queues of segment numbers: free, sealed; each may have grown to twice its length.
    let segment = size_of::<Segment>() as u64 + 2 * 2 * size_of::<u32>() as u64;
    let record = size_of::<Record>() as u64;
    let detail = size_of::<Detail>() as u64 + NAMESPACE_MEMORY_BYTES;
    // The open segment's vectors may have grown to twice their length; a seal trims them.
    let detailed = TABLES_AWAITING_MAX as u64 + 2;
    Ok(segments * (segment + blocks * record)
        + blocks * record
        + detailed * blocks * detail
        + table_bytes(blocks, blocks))
}
