//! What the log says to its owner: where a block lies, why it has no place, what has become of it.

use orbitkv_wire::identity::{BlockHash, GroupId, Incarnation, NamespaceDigest, Sequence};

use super::segment::Shares;

/// A segment of one log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentId(pub u32);

/// What a block is called outside its shard, for the segment's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockName {
    /// The namespace's digest.
    pub namespace: NamespaceDigest,
    /// The layer group.
    pub group: GroupId,
    /// The engine's hash of the block.
    pub block: BlockHash,
}

/// Where a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Placement {
    /// Its segment.
    pub segment: SegmentId,
    /// The segment's generation when the block was placed; another one is another life of the segment.
    pub generation: u32,
    /// The block's position among the blocks of its segment.
    pub ordinal: u32,
    /// Absolute file offset, 4,096-aligned.
    pub offset: u64,
    /// Bytes there, padded to 4,096.
    pub bytes: u64,
}

/// What a block was written as: its record on the device keeps saying so, whatever its residence is called
/// in a later life of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The life in which its place was taken.
    pub incarnation: Incarnation,
    /// Its residency sequence on SSD in that life; 0 if that life ended before the write did.
    pub sequence: Sequence,
}

/// Why a block got no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// No segment is free. Room comes back when reclaimed segments drain.
    #[error("no free segment")]
    NoRoom,
    /// The block is larger than a segment takes.
    #[error("the largest block that a segment takes has {limit_bytes} bytes")]
    TooLarge {
        /// The largest payload.
        limit_bytes: u64,
    },
    /// A reinsertion beyond what its segment may reinsert: drop the block.
    #[error("the segment's reinsertion budget is spent")]
    BudgetSpent,
    /// The log is off for good.
    #[error("the log is off: {0}")]
    Off(OffReason),
}

/// Why a log is off. Blocks that are there can still be read and removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OffReason {
    /// Too many segments held wrong bytes.
    #[error("{segments} of {of} segments held wrong bytes")]
    Quarantine {
        /// Segments in quarantine.
        segments: u32,
        /// Segments of the part.
        of: u32,
    },
    /// Its owner saw too many writes fail in a row.
    #[error("{in_a_row} writes in a row failed, the last with error {errno}")]
    WriteFailures {
        /// How many.
        in_a_row: u32,
        /// The device's error number for the last.
        errno: i32,
    },
    /// Its owner saw too many reads fail in a row.
    #[error("{in_a_row} reads in a row failed, the last with error {errno}")]
    ReadFailures {
        /// How many.
        in_a_row: u32,
        /// The device's error number for the last.
        errno: i32,
    },
}

/// Whether the log takes blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogState {
    /// It does.
    On,
    /// It does not, and never will again.
    Off(OffReason),
}

/// What a settled write has become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The block is readable.
    Readable,
    /// The block had been removed while the write was in flight; its space is dead.
    Abandoned,
}

/// What a placement stands for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its write has not settled.
    InFlight,
    /// Its write has not settled, and it has been removed.
    Abandoned,
    /// It can be read.
    Readable,
    /// It is gone; its segment still stands.
    Ended,
    /// Its segment has been emptied since.
    Stale,
}

/// Events since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogCounts {
    /// Blocks placed, reinsertions included.
    pub appended_blocks: u64,
    /// Padded bytes placed, reinsertions included.
    pub appended_bytes: u64,
    /// Blocks that moved out of a reclaimed segment.
    pub reinserted_blocks: u64,
    /// Padded bytes that moved out of a reclaimed segment.
    pub reinserted_bytes: u64,
    /// Writes of blocks that failed.
    pub failed_writes: u64,
    /// Segments offered for reclaim.
    pub offered_segments: u64,
    /// Times a segment became free again.
    pub freed_segments: u64,
    /// Tables written.
    pub written_tables: u64,
    /// Tables that failed or were not attempted because too many waited.
    pub lost_tables: u64,
    /// Blocks whose bytes proved wrong.
    pub quarantined_blocks: u64,
}

/// Where every byte of the part is, and what has happened so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogAccounting {
    /// Bytes of all segments: the sum of all bytes of `shares`.
    pub capacity_bytes: u64,
    /// Bytes at the end of the part that are no whole segment.
    pub unused_bytes: u64,
    /// Segments of the part.
    pub segments: u32,
    /// How bytes and counts fall now.
    pub shares: Shares,
    /// Events since the start.
    pub counts: LogCounts,
}
