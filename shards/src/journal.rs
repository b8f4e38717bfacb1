//! A shard's journal: the bounded, contiguous, ordered history of its puts and deletes.
//!
//! A reader is nothing but a cursor that its owner keeps: there may be any number of them, the ring
//! does not know them, and a put never waits for one. The ring drops its oldest record when it is
//! full; a reader whose cursor has fallen behind what is left is told so and starts over from a
//! snapshot (chapter 2.2).
//!
//! What is charged: every record costs [`RECORD_BYTES`], put or delete, and the ring is one
//! allocation of exactly `capacity_bytes / RECORD_BYTES` records that never grows. The sequence of a
//! record is not stored; its place in the ring says it.

use std::collections::VecDeque;

use orbitkv_wire::bounds::{INTERVAL_BYTES_MAX, INTERVAL_RECORDS_MAX};
use orbitkv_wire::identity::{GroupId, Medium, Sequence};

use crate::key::StateKey;

mod interval;

pub use interval::Interval;

/// Journal bytes of a node unless the operator says otherwise (chapter 2.10).
pub const JOURNAL_BYTES_DEFAULT: usize = 16 * 1024 * 1024;

/// Ring bytes of one record, whatever it says.
pub const RECORD_BYTES: usize = size_of::<Slot>();

const _: () = assert!(RECORD_BYTES == 44, "the guide and the memory bill quote this");

/// One change of a shard's inventory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its place in the history; of a put, the residency sequence it begins.
    pub sequence: Sequence,
    /// The block.
    pub key: StateKey,
    /// The medium that changed.
    pub medium: Medium,
    /// What happened there.
    pub change: Change,
}

/// What a record says about its key on its medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A residence began.
    Put {
        /// Payload bytes of the block.
        bytes: u32,
    },
    /// The residence ended.
    Delete,
}

/// Bounds of a journal. Parameters, so that tests can shrink them until every branch runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalSettings {
    /// Bytes of the ring, at least one record's.
    pub capacity_bytes: usize,
    /// Input records of one read.
    pub interval_records_max: usize,
    /// Input bytes of one read, counted at [`RECORD_BYTES`] a record; at least one record's.
    pub interval_bytes_max: usize,
}

impl JournalSettings {
    /// A ring of `capacity_bytes` with the intervals of chapter 2.10.
    #[must_use]
    pub fn with_capacity(capacity_bytes: usize) -> Self {
        JournalSettings {
            capacity_bytes,
            interval_records_max: INTERVAL_RECORDS_MAX,
            interval_bytes_max: INTERVAL_BYTES_MAX,
        }
    }

    /// Records the ring holds.
    #[must_use]
    pub fn capacity_records(&self) -> usize {
        self.capacity_bytes / RECORD_BYTES
    }

    /// Input records that one read covers at most: the tighter of both bounds.
    #[must_use]
    pub fn input_records_max(&self) -> usize {
        self.interval_records_max.min(self.interval_bytes_max / RECORD_BYTES)
    }
}

impl Default for JournalSettings {
    fn default() -> Self {
        JournalSettings::with_capacity(JOURNAL_BYTES_DEFAULT)
    }
}

/// Bytes that a journal of these settings allocates, for the memory bill. Intervals are the readers'
/// own; see [`Interval::table_bytes`].
#[must_use]
pub fn table_bytes(settings: &JournalSettings) -> usize {
    settings.capacity_records() * RECORD_BYTES
}

/// Why a read gave nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The record after the cursor has left the ring: the reader needs a snapshot.
    #[error("history is gone: the oldest record left is {}", oldest.0)]
    HistoryGone {
        /// Sequence of the oldest record left, or the one the next record will get.
        oldest: Sequence,
    },
    /// The cursor is of a future or of another incarnation: a protocol error of whoever sent it.
    #[error("the cursor is beyond the head {}", head.0)]
    BeyondHead {
        /// Sequence of the newest record.
        head: Sequence,
    },
    /// The first record alone is larger than the output may be, so no interval is short enough.
    #[error("record {} takes {encoded_bytes} bytes, but the output may take {encoded_bytes_max}", sequence.0)]
    RecordTooLarge {
        /// The record.
        sequence: Sequence,
        /// What it takes.
        encoded_bytes: usize,
        /// What was allowed.
        encoded_bytes_max: usize,
    },
}

/// A record as the ring keeps it, without its sequence.
#[derive(Clone, Copy)]
struct Slot {
    key: StateKey,
    bytes: u32,
    medium: Medium,
    tag: Tag,
}

#[derive(Clone, Copy)]
enum Tag {
    Put,
    Delete,
}

impl Slot {
    fn record(&self, sequence: Sequence) -> Record {
        let change = match self.tag {
            Tag::Put => Change::Put { bytes: self.bytes },
            Tag::Delete => Change::Delete,
        };
        Record { sequence, key: self.key, medium: self.medium, change }
    }
}

/// The history of one shard in one incarnation.
pub struct Journal {
    settings: JournalSettings,
    ring: VecDeque<Slot>,
    head: Sequence,
    records_peak: usize,
    records_appended: u64,
    records_dropped: u64,
    records_cleared: u64,
}

impl Journal {
    /// An empty journal whose first record will have sequence 1.
    ///
    /// # Panics
    /// If the settings leave no room for one record in the ring or in an interval: the driver has
    /// refused such settings by name before.
    #[must_use]
    pub fn new(settings: JournalSettings) -> Self {
        assert!(settings.capacity_records() >= 1, "a journal holds at least one record");
        assert!(settings.input_records_max() >= 1, "an interval covers at least one record");
        Journal {
            settings,
            ring: VecDeque::with_capacity(settings.capacity_records()),
            head: Sequence(0),
            records_peak: 0,
            records_appended: 0,
            records_dropped: 0,
            records_cleared: 0,
        }
    }

    /// A residence of `bytes` payload bytes began; the answer is its residency sequence.
    ///
    /// # Panics
    /// If the sequence overflows.
    pub fn append_put(&mut self, key: StateKey, medium: Medium, bytes: u32) -> Sequence {
        self.append(Slot { key, bytes, medium, tag: Tag::Put })
    }

    /// The residence of `key` on `medium` ended.
    ///
    /// # Panics
    /// If the sequence overflows.
    pub fn append_delete(&mut self, key: StateKey, medium: Medium) -> Sequence {
        self.append(Slot { key, bytes: 0, medium, tag: Tag::Delete })
    }

    fn append(&mut self, slot: Slot) -> Sequence {
        self.head = Sequence(self.head.0.checked_add(1).expect("the journal's sequence overflowed"));
        if self.ring.len() == self.settings.capacity_records() {
            self.ring.pop_front();
            self.records_dropped += 1;
        }
        self.ring.push_back(slot);
        self.records_appended += 1;
        self.records_peak = self.records_peak.max(self.ring.len());
        self.assert_invariants();
        self.head
    }

    /// Sequence of the newest record; 0 before the first.
    #[must_use]
    pub fn head(&self) -> Sequence {
        self.head
    }

    /// Sequence of the oldest record left; while there is none, the sequence the next one will get. A
    /// cursor can be resumed if and only if `oldest − 1 ≤ cursor ≤ head`.
    #[must_use]
    pub fn oldest(&self) -> Sequence {
        Sequence(self.head.0 - self.ring.len() as u64 + 1)
    }

    /// Covers as much of the history after `after` as one interval may, coalesced, into `out`. At
    /// the head the interval is empty.
    ///
    /// # Errors
    /// [`ReadError::HistoryGone`] and [`ReadError::BeyondHead`]; `out` is then as it was.
    pub fn read(&self, after: Sequence, out: &mut Interval) -> Result<(), ReadError> {
        self.read_through(after, self.head, out)
    }

    /// As [`Journal::read`], but covers nothing beyond `through` (a replay to a snapshot's end, or an
    /// interval cut short).
    ///
    /// # Errors
    /// As [`Journal::read`].
    ///
    /// # Panics
    /// If `through` is before `after` or beyond the head.
    pub fn read_through(
        &self,
        after: Sequence,
        through: Sequence,
        out: &mut Interval,
    ) -> Result<(), ReadError> {
        self.cover(after, through, usize::MAX, |_| 0, out)
    }

    /// As [`Journal::read`], but covers only so much input that the coalesced records together take
    /// at most `encoded_bytes_max` by `encoded_bytes`. A record the reader leaves out of its output
    /// takes 0: it still lies in the interval, and is covered.
    ///
    /// # Errors
    /// As [`Journal::read`], and [`ReadError::RecordTooLarge`].
    pub fn read_encoded(
        &self,
        after: Sequence,
        encoded_bytes_max: usize,
        encoded_bytes: impl Fn(&Record) -> usize,
        out: &mut Interval,
    ) -> Result<(), ReadError> {
        self.read_encoded_through(after, self.head, encoded_bytes_max, encoded_bytes, out)
    }

    /// Both bounds at once: as [`Journal::read_encoded`], but nothing beyond `through`.
    ///
    /// # Errors
    /// As [`Journal::read_encoded`].
    ///
    /// # Panics
    /// As [`Journal::read_through`].
    pub fn read_encoded_through(
        &self,
        after: Sequence,
        through: Sequence,
        encoded_bytes_max: usize,
        encoded_bytes: impl Fn(&Record) -> usize,
        out: &mut Interval,
    ) -> Result<(), ReadError> {
        self.cover(after, through, encoded_bytes_max, encoded_bytes, out)
    }

    fn cover(
        &self,
        after: Sequence,
        through: Sequence,
        encoded_bytes_max: usize,
        encoded_bytes: impl Fn(&Record) -> usize,
        out: &mut Interval,
    ) -> Result<(), ReadError> {
        if after > self.head {
            return Err(ReadError::BeyondHead { head: self.head });
        }
        if after.0 + 1 < self.oldest().0 {
            return Err(ReadError::HistoryGone { oldest: self.oldest() });
        }
        assert!(after <= through && through <= self.head, "an interval ends inside the history");
        let wanted = usize::try_from(through.0 - after.0).unwrap_or(usize::MAX);
        let count = wanted.min(self.settings.input_records_max());
        let start = usize::try_from(after.0 + 1 - self.oldest().0).expect("an index of the ring");
        let records = (self.ring.range(start..start + count).zip(after.0 + 1..))
            .map(|(slot, sequence)| slot.record(Sequence(sequence)));
        out.fill(after, records, encoded_bytes_max, encoded_bytes)
    }

    /// A new registration life: the history is empty and starts at 1 again. Counters go on.
    pub fn restart(&mut self) {
        self.records_cleared += self.ring.len() as u64;
        self.ring.clear();
        self.head = Sequence(0);
        self.assert_invariants();
    }

    /// The bounds it was made with.
    #[must_use]
    pub fn settings(&self) -> &JournalSettings {
        &self.settings
    }

    /// Bytes that the ring may take.
    #[must_use]
    pub fn capacity_bytes(&self) -> usize {
        self.settings.capacity_bytes
    }

    /// Bytes of the records in the ring.
    #[must_use]
    pub fn bytes_used(&self) -> usize {
        self.ring.len() * RECORD_BYTES
    }

    /// The most bytes that were ever in the ring.
    #[must_use]
    pub fn bytes_peak(&self) -> usize {
        self.records_peak * RECORD_BYTES
    }

    /// Records appended since the process started.
    #[must_use]
    pub fn records_appended(&self) -> u64 {
        self.records_appended
    }

    /// Records that a newer one pushed out of the full ring.
    #[must_use]
    pub fn records_dropped(&self) -> u64 {
        self.records_dropped
    }

    /// Records that left with their incarnation.
    #[must_use]
    pub fn records_cleared(&self) -> u64 {
        self.records_cleared
    }

    fn assert_invariants(&self) {
        assert!(self.bytes_used() <= self.settings.capacity_bytes, "the ring keeps its bound");
        assert!(self.ring.len() as u64 <= self.head.0, "no record from before this incarnation");
        assert_eq!(
            self.records_appended,
            self.records_dropped + self.records_cleared + self.ring.len() as u64,
            "every record is in the ring, dropped or cleared"
        );
        debug_assert!(
            self.ring.capacity() == self.settings.capacity_records(),
            "the ring is one allocation that never grows"
        );
    }
}

/// Coalescing looks records up by this, both media of a key in one place. Block hashes are the engines'
/// choice and need not be random, so all of the key is mixed; a set of colliding keys costs one reader
/// at most one interval's comparisons, which is bounded.
fn mix(key: &StateKey) -> u64 {
    let GroupId(group) = key.group;
    let seed = u64::from(key.namespace.0) << 16 | u64::from(group);
    let (words, _) = key.block.0.as_chunks::<8>();
    words.iter().fold(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), |hash, word| {
        let mixed = (hash ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 29
    })
}

#[cfg(test)]
mod tests;
