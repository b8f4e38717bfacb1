//! Room for a whole frame: asked for before its first change is applied, so that a frame is applied
//! whole or not at all (chapter 2.6).

use orbitkv_wire::identity::{KeyHash, Medium, Sequence};

use super::row::Row;
use super::table::TABLE_ROWS_MAX;
use super::{IndexFull, Partition, ViewId};
use crate::key::StateKey;

/// Bytes that a row leaves to others when it is removed, at least.
pub const ROW_BYTES_LEFT: u64 = size_of::<Row>() as u64;

impl Partition {
    /// Asks for room for a put of each hash, whatever rows there are. If it is granted, these puts will
    /// not be refused, in any order and with any deletes, retirements and sweeps between them, as long
    /// as no others come between.
    ///
    /// # Errors
    /// [`IndexFull`], by a bound that is at most a few kilobytes short of what would fit.
    pub fn reserve(&mut self, hashes: impl Iterator<Item = KeyHash>) -> Result<(), IndexFull> {
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.rows.resize(self.tables.len(), 0);
        for hash in hashes {
            let (table, _) = self.place(hash);
            if wanted.rows[table] == 0 {
                wanted.tables.push(table);
            }
            wanted.rows[table] += 1;
        }
        let (mut growth_bytes, mut last_bytes_max, mut prefix_full) = (0, 0, false);
        for table in wanted.tables.drain(..) {
            let rows = std::mem::take(&mut wanted.rows[table]);
            let table = &self.tables[table];
            prefix_full |= table.rows() + rows > TABLE_ROWS_MAX;
            let (bytes, next_bytes_max) = table.growth_bytes(rows);
            growth_bytes += bytes;
            last_bytes_max = last_bytes_max.max(next_bytes_max);
        }
        self.wanted = wanted;
        let (charged_bytes, budget_bytes) = (self.charged_bytes, self.settings.budget_bytes);
        if prefix_full {
            Err(IndexFull::Prefix)
        } else if charged_bytes + growth_bytes + last_bytes_max > budget_bytes {
            Err(IndexFull::Budget { charged_bytes, budget_bytes })
        } else {
            Ok(())
        }
    }

    /// What a view says about a key on a medium: payload bytes and residency sequence.
    #[must_use]
    pub fn row(
        &self,
        view: ViewId,
        key: &StateKey,
        hash: KeyHash,
        medium: Medium,
    ) -> Option<(u32, Sequence)> {
        let (index, bits) = self.place(hash);
        let table = &self.tables[index];
        let mut next = table.find(bits, |row| row.is_of(key));
        while let Some(at) = next {
            let row = table.row(at);
            if row.is_by(view, medium) {
                return Some((row.bytes(), row.sequence()));
            }
            next = row.next();
        }
        None
    }

    /// Bytes of the budget that rows may still take: what nothing is charged for, and places that rows
    /// have left.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        let left = self.places - self.rows;
        self.settings.budget_bytes.saturating_sub(self.charged_bytes) + left * ROW_BYTES_LEFT
    }
}

/// Rows asked for, by table. Kept between calls and empty then.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// One count a table.
    rows: Vec<usize>,
    /// Those that are not zero.
    tables: Vec<usize>,
}
