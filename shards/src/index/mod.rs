//! An owner partition of the GlobalIndex: what every peer said it holds, as rows that one core owns
//! (chapter 2.7).
//!
//! A row is evidence, never a pointer and never a permission. Rows name their *view*; a view is
//! filled hidden, installed by one change of state, and excluded by another, after which a bounded
//! sweep removes its rows. Memory is charged as it is taken and never doubles by copying.

mod room;
mod row;
mod table;
mod view;

#[cfg(test)]
mod tests;

pub use room::ROW_BYTES_LEFT;
pub use view::{Owner, VIEWS_MAX, ViewId, ViewState};

use orbitkv_wire::identity::{KeyHash, Medium, Sequence};

use crate::key::StateKey;
use room::Wanted;
use row::{Row, RowIndex};
use table::{TABLE_ROWS_MAX, Table};
use view::Views;

/// Replicas of one medium that a lookup returns (chapter 2.10).
pub const REPLICAS_MAX: usize = 4;

/// Charged bytes a row is planned with; the count of tables follows from it.
pub const ROW_BYTES_PLANNED: u64 = 64;

/// Rows a table is planned for at a full budget: enough that a half-filled chunk is a small share.
const TABLE_ROWS_PLANNED: u64 = 2_048;

/// Keys looked up together.
const LOOKUP_BATCH_KEYS: usize = 128;

/// Bounds of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexSettings {
    /// Charged bytes it may take: active, staging and retired rows together.
    pub budget_bytes: u64,
}

/// What a put has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// A new row.
    Added,
    /// The residence key had a row, which now stands for the newer residence.
    Renewed,
}

/// There is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexFull {
    /// The budget is spent.
    #[error(
        "the index holds {charged_bytes} of {budget_bytes} bytes: raise --index-budget or narrow the scope"
    )]
    Budget {
        /// Bytes charged.
        charged_bytes: u64,
        /// Bytes allowed.
        budget_bytes: u64,
    },
    /// One hash prefix has all the rows it can name. Needs a key with tens of thousands of owners.
    #[error("one hash prefix has {TABLE_ROWS_MAX} rows, the most it can name")]
    Prefix,
    /// There are as many views as there may be.
    #[error("{VIEWS_MAX} views are open, the most there may be")]
    Views,
}

/// One replica that a lookup found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Whose.
    pub owner: Owner,
    /// Where.
    pub medium: Medium,
    /// Payload bytes.
    pub bytes: u32,
    /// Residency sequence, for the owner to check.
    pub sequence: Sequence,
}

/// What a lookup found of one key. Truncated lists are still positive evidence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replicas {
    found: [Option<Replica>; 2 * REPLICAS_MAX],
    counts: [u8; 2],
    /// Whether any medium has more replicas than are listed.
    pub truncated: bool,
}

impl Replicas {
    /// The listed replicas, DRAM first.
    pub fn iter(&self) -> impl Iterator<Item = Replica> + '_ {
        self.found.iter().flatten().copied()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts == [0, 0]
    }

    fn clear(&mut self) {
        *self = Replicas::default();
    }

    fn add(&mut self, replica: Replica) {
        let medium = replica.medium as usize;
        let count = usize::from(self.counts[medium]);
        if count == REPLICAS_MAX {
            self.truncated = true;
        } else {
            self.found[medium * REPLICAS_MAX + count] = Some(replica);
            self.counts[medium] += 1;
        }
    }
}

/// Where every byte of the budget is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexAccounting {
    /// Rows, those of staging and retired views included.
    pub rows: u64,
    /// Rows of retired views.
    pub retired_rows: u64,
    /// Bytes charged.
    pub charged_bytes: u64,
    /// Most bytes ever charged.
    pub charged_bytes_peak: u64,
    /// Bytes allowed.
    pub budget_bytes: u64,
}

/// One partition.
#[derive(Debug)]
pub struct Partition {
    settings: IndexSettings,
    tables: Vec<Table>,
    views: Views,
    rows: u64,
    /// Places of rows, taken or free.
    places: u64,
    charged_bytes: u64,
    charged_bytes_peak: u64,
    sweep_table: usize,
    sweep_group: usize,
    scratch: Vec<RowIndex>,
    wanted: Wanted,
}

impl Partition {
    /// An empty partition.
    #[must_use]
    pub fn new(settings: IndexSettings) -> Partition {
        let planned = settings.budget_bytes / ROW_BYTES_PLANNED / TABLE_ROWS_PLANNED;
        let count = (planned.max(1) as usize).next_power_of_two();
        let mut tables = Vec::with_capacity(count);
        tables.resize_with(count, Table::default);
        let charged_bytes = tables.iter().map(Table::charged_bytes).sum();
        Partition {
            settings,
            tables,
            views: Views::default(),
            rows: 0,
            places: 0,
            charged_bytes,
            charged_bytes_peak: charged_bytes,
            sweep_table: 0,
            sweep_group: 0,
            scratch: Vec::new(),
            wanted: Wanted::default(),
        }
    }

    /// The table of a key, and what its slot says of the hash. The upper hash bits chose the shard.
    fn place(&self, hash: KeyHash) -> (usize, u16) {
        (hash.0 as usize & (self.tables.len() - 1), (hash.0 >> 32) as u16)
    }

    /// Opens a hidden view of an owner stream.
    ///
    /// # Errors
    /// [`IndexFull::Views`].
    pub fn open_view(&mut self, owner: Owner) -> Result<ViewId, IndexFull> {
        self.views.open(owner).ok_or(IndexFull::Views)
    }

    /// Installs a hidden view: lookups see its rows from now on.
    pub fn install(&mut self, view: ViewId) {
        self.views.activate(view);
    }

    /// Excludes a view at once; [`Partition::sweep`] removes its rows. It must not be named again.
    pub fn retire(&mut self, view: ViewId) {
        self.views.retire(view);
    }

    /// Whose view it is.
    #[must_use]
    pub fn owner(&self, view: ViewId) -> Owner {
        self.views.owner(view)
    }

    /// Rows of a view.
    #[must_use]
    pub fn view_rows(&self, view: ViewId) -> u32 {
        self.views.rows(view)
    }

    /// Applies a put of the view's owner.
    ///
    /// # Errors
    /// [`IndexFull`]; nothing changed.
    pub fn put(
        &mut self,
        view: ViewId,
        key: &StateKey,
        hash: KeyHash,
        medium: Medium,
        bytes: u32,
        sequence: Sequence,
    ) -> Result<Put, IndexFull> {
        let (index, bits) = self.place(hash);
        let table = &mut self.tables[index];
        let first = table.find(bits, |row| row.is_of(key));
        let mut next = first;
        while let Some(row) = next {
            if table.row(row).is_by(view, medium) {
                table.row_mut(row).renew(bytes, sequence);
                return Ok(Put::Renewed);
            }
            next = table.row(row).next();
        }
        if table.rows() == TABLE_ROWS_MAX {
            return Err(IndexFull::Prefix);
        }
        let (charged_bytes, budget_bytes) = (self.charged_bytes, self.settings.budget_bytes);
        if charged_bytes + table.growth_bytes_max() > budget_bytes && !table.has_room() {
            return Err(IndexFull::Budget { charged_bytes, budget_bytes });
        }
        let (before, places) = (table.charged_bytes(), table.places());
        table.insert(bits, Row::new(key, view, medium, bytes, sequence), first);
        self.charged_bytes = self.charged_bytes - before + table.charged_bytes();
        self.places = self.places - places + table.places();
        self.charged_bytes_peak = self.charged_bytes_peak.max(self.charged_bytes);
        self.rows += 1;
        self.views.add_row(view);
        Ok(Put::Added)
    }

    /// Applies a delete of the view's owner; false if the view had no such row.
    pub fn delete(&mut self, view: ViewId, key: &StateKey, hash: KeyHash, medium: Medium) -> bool {
        let (index, bits) = self.place(hash);
        let table = &self.tables[index];
        let mut previous = None;
        let mut next = table.find(bits, |row| row.is_of(key));
        while let Some(row) = next {
            if table.row(row).is_by(view, medium) {
                self.remove(index, bits, row, previous);
                return true;
            }
            previous = Some(row);
            next = table.row(row).next();
        }
        false
    }

    fn remove(&mut self, table: usize, bits: u16, row: RowIndex, previous: Option<RowIndex>) {
        let table = &mut self.tables[table];
        let view = table.row(row).view();
        let (before, places) = (table.charged_bytes(), table.places());
        table.remove(bits, row, previous);
        self.charged_bytes = self.charged_bytes - before + table.charged_bytes();
        self.places = self.places - places + table.places();
        self.rows -= 1;
        self.views.remove_row(view);
    }

    /// Looks keys up, each into its place of `out`. Rows of installed views only.
    ///
    /// # Panics
    /// If `out` is shorter than `keys`.
    pub fn lookup(&self, keys: &[(StateKey, KeyHash)], out: &mut [Replicas]) {
        assert!(out.len() >= keys.len(), "every key has its place");
        for (keys, out) in keys.chunks(LOOKUP_BATCH_KEYS).zip(out.chunks_mut(LOOKUP_BATCH_KEYS)) {
            self.lookup_batch(keys, out);
        }
    }

    /// Step by step over the whole batch, so that the memory each key waits for is waited for together:
    /// first the groups, then the rows' lines, then the comparison.
    fn lookup_batch(&self, keys: &[(StateKey, KeyHash)], out: &mut [Replicas]) {
        let mut likely = [None; LOOKUP_BATCH_KEYS];
        for ((_, hash), likely) in keys.iter().zip(&mut likely) {
            let (index, bits) = self.place(*hash);
            *likely = self.tables[index].likely(bits);
        }
        // Nothing is done with what is read here: the reads themselves are the purpose.
        let mut touched = 0;
        for (&(_, hash), likely) in keys.iter().zip(likely) {
            if let Some(row) = likely {
                touched ^= self.tables[self.place(hash).0].row(row).view().0;
            }
        }
        std::hint::black_box(touched);
        for (((key, hash), replicas), likely) in keys.iter().zip(out).zip(likely) {
            replicas.clear();
            let (index, bits) = self.place(*hash);
            let table = &self.tables[index];
            let found = likely.filter(|&row| table.row(row).is_of(key));
            let mut next = found.or_else(|| table.find(bits, |row| row.is_of(key)));
            while let Some(at) = next {
                let row = table.row(at);
                if self.views.state(row.view()) == ViewState::Active {
                    replicas.add(Replica {
                        owner: self.views.owner(row.view()),
                        medium: row.medium(),
                        bytes: row.bytes(),
                        sequence: row.sequence(),
                    });
                }
                next = row.next();
            }
        }
    }

    /// Removes rows of retired views, looking at about `budget` rows. Returns whether any are left.
    pub fn sweep(&mut self, hash_of: impl Fn(&StateKey) -> KeyHash, budget: usize) -> bool {
        let mut looked_at = 0;
        while self.views.retired_rows() > 0 && looked_at < budget {
            let mut scratch = std::mem::take(&mut self.scratch);
            scratch.clear();
            let table = &self.tables[self.sweep_table];
            match table.visit(self.sweep_group, &mut scratch) {
                Some(group) => self.sweep_group = group,
                None => {
                    self.sweep_group = 0;
                    self.sweep_table = (self.sweep_table + 1) % self.tables.len();
                }
            }
            looked_at += scratch.len().max(1);
            let table = self.sweep_table;
            for &row in &scratch {
                let row = self.tables[table].row(row);
                if self.views.state(row.view()) == ViewState::Retired {
                    let (key, view, medium) = (row.key(), row.view(), row.medium());
                    let removed = self.delete(view, &key, hash_of(&key), medium);
                    assert!(removed, "the row was just there");
                }
            }
            self.scratch = scratch;
        }
        self.views.retired_rows() > 0
    }

    /// Where every byte is.
    #[must_use]
    pub fn accounting(&self) -> IndexAccounting {
        IndexAccounting {
            rows: self.rows,
            retired_rows: self.views.retired_rows(),
            charged_bytes: self.charged_bytes + self.views.charged_bytes(),
            charged_bytes_peak: self.charged_bytes_peak + self.views.charged_bytes(),
            budget_bytes: self.settings.budget_bytes,
        }
    }
}
