//! One contiguous piece of history, coalesced: what a reader gets and reuses.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use orbitkv_wire::identity::Sequence;

use super::{JournalSettings, ReadError, Record, mix};

/// Marks a record that a newer one of the same key and medium has replaced; no record has it.
const REPLACED: Sequence = Sequence(0);

/// The interval `(after, through]` of a journal with the newest record per (key, medium) in it.
///
/// The covered cursor is of the *input*: `through` may lie beyond the last record that is left. A
/// reader keeps one interval and has it filled again and again.
#[derive(Debug)]
pub struct Interval {
    after: Sequence,
    through: Sequence,
    records: Vec<Record>,
    /// Positions in `records` by (key, medium).
    newest: HashTable<u32>,
}

impl Interval {
    /// An empty interval with room for the largest read under these settings, so that reads do not
    /// allocate.
    #[must_use]
    pub fn new(settings: &JournalSettings) -> Self {
        let records_max = settings.input_records_max();
        Interval {
            after: Sequence(0),
            through: Sequence(0),
            records: Vec::with_capacity(records_max),
            newest: HashTable::with_capacity(records_max),
        }
    }

    /// Bytes that one interval allocates under these settings, for the memory bill.
    #[must_use]
    pub fn table_bytes(settings: &JournalSettings) -> usize {
        // The table keeps one control byte a bucket and fills at most 7/8 of a power of two.
        let records_max = settings.input_records_max();
        let buckets = (records_max * 8 / 7 + 1).next_power_of_two().max(4);
        records_max * size_of::<Record>() + buckets * (size_of::<u32>() + 1) + 16
    }

    /// The cursor that was read from; exclusive.
    #[must_use]
    pub fn after(&self) -> Sequence {
        self.after
    }

    /// The cursor to read from next; inclusive. Every change up to here is covered.
    #[must_use]
    pub fn through(&self) -> Sequence {
        self.through
    }

    /// The records left, in the order of their sequences.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Input records that it covers.
    #[must_use]
    pub fn input_records(&self) -> u64 {
        self.through.0 - self.after.0
    }

    /// Covers `input`, which follows `after` without a gap, as far as the coalesced output stays
    /// within `encoded_bytes_max`. One pass: a record that would overflow the output ends the
    /// interval before itself, which is what shortening the input and coalescing again arrives at.
    pub(super) fn fill(
        &mut self,
        after: Sequence,
        input: impl Iterator<Item = Record>,
        encoded_bytes_max: usize,
        encoded_bytes: impl Fn(&Record) -> usize,
    ) -> Result<(), ReadError> {
        let mut input = input.peekable();
        if let Some(first) = input.peek() {
            let first_bytes = encoded_bytes(first);
            if first_bytes > encoded_bytes_max {
                return Err(ReadError::RecordTooLarge {
                    sequence: first.sequence,
                    encoded_bytes: first_bytes,
                    encoded_bytes_max,
                });
            }
        }
        self.after = after;
        self.through = after;
        self.records.clear();
        self.newest.clear();
        let mut total_bytes = 0usize;
        for record in input {
            let records = &self.records;
            let entry = self.newest.entry(
                mix(&record.key),
                |&position| {
                    let other = &records[position as usize];
                    other.key == record.key && other.medium == record.medium
                },
                |&position| mix(&records[position as usize].key),
            );
            let replaced_bytes = match &entry {
                Entry::Occupied(old) => encoded_bytes(&records[*old.get() as usize]),
                Entry::Vacant(_) => 0,
            };
            let new_bytes = total_bytes - replaced_bytes + encoded_bytes(&record);
            if new_bytes > encoded_bytes_max {
                break;
            }
            total_bytes = new_bytes;
            let position = u32::try_from(self.records.len()).expect("an interval is small");
            match entry {
                Entry::Occupied(mut old) => {
                    let old = std::mem::replace(old.get_mut(), position);
                    self.records[old as usize].sequence = REPLACED;
                }
                Entry::Vacant(vacant) => {
                    vacant.insert(position);
                }
            }
            self.records.push(record);
            self.through = record.sequence;
        }
        self.records.retain(|record| record.sequence != REPLACED);
        self.assert_invariants();
        Ok(())
    }

    fn assert_invariants(&self) {
        assert_eq!(self.records.len(), self.newest.len(), "one record is left per key and medium");
        debug_assert!(self.records.is_sorted_by(|left, right| left.sequence < right.sequence));
        debug_assert!(
            self.records.iter().all(|record| self.after < record.sequence && record.sequence <= self.through),
            "every record lies in the interval"
        );
    }
}
