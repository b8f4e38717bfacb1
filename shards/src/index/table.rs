//! One table of the index: a few hundred rows under one hash prefix, and the way to find them.
//!
//! A group is one cache line of sixteen slots. A slot holds sixteen bits of the key's hash and the
//! index of the first row of the key. Homes are proportional to the hash bits, so growing by a sixteenth
//! re-homes slots without looking at a row. Rows lie in chunks that never move.

use super::row::{Row, RowIndex};

/// Slots of a group: one cache line.
const SLOTS: usize = 16;

/// Rows of a chunk.
const CHUNK_ROWS: usize = 32;

/// Rows one table may have; its index fits sixteen bits with one value to spare.
pub(super) const TABLE_ROWS_MAX: usize = u16::MAX as usize;

/// A table grows when more than this share of its slots is taken: 27 of 32.
const LOAD_NUMERATOR: usize = 27;
const LOAD_DENOMINATOR: usize = 32;

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    hash: u16,
    row: u16,
}

#[derive(Clone, Debug)]
#[repr(align(64))]
struct Group {
    slots: [Slot; SLOTS],
}

/// Slots in use and keys that had to go on to the next group, apart from the lines that hold slots.
#[derive(Clone, Copy, Debug, Default)]
struct Fill {
    used: u8,
    passed: u8,
}

const _: () = assert!(size_of::<Group>() == 64);

/// Rows under one hash prefix.
#[derive(Debug, Default)]
pub(super) struct Table {
    groups: Vec<Group>,
    fills: Vec<Fill>,
    #[expect(clippy::vec_box, reason = "growing moves pointers, not rows")]
    chunks: Vec<Box<[Row; CHUNK_ROWS]>>,
    /// First of the rows that are free; they are linked like rows of a key.
    free: Option<RowIndex>,
    rows_made: u16,
    rows: u16,
    keys: u16,
}

impl Table {
    fn home(&self, hash: u16) -> usize {
        (usize::from(hash) * self.groups.len()) >> 16
    }

    pub fn rows(&self) -> usize {
        usize::from(self.rows)
    }

    /// Places of rows, taken or free.
    pub fn places(&self) -> u64 {
        (self.chunks.len() * CHUNK_ROWS) as u64
    }

    pub fn row(&self, index: RowIndex) -> &Row {
        &self.chunks[usize::from(index.0) / CHUNK_ROWS][usize::from(index.0) % CHUNK_ROWS]
    }

    pub fn row_mut(&mut self, index: RowIndex) -> &mut Row {
        &mut self.chunks[usize::from(index.0) / CHUNK_ROWS][usize::from(index.0) % CHUNK_ROWS]
    }

    /// The first row of the key that `is_key` recognises among those with these hash bits.
    pub fn find(&self, hash: u16, mut is_key: impl FnMut(&Row) -> bool) -> Option<RowIndex> {
        self.locate(hash, |row| is_key(row)).map(|(group, slot)| RowIndex(self.groups[group].slots[slot].row))
    }

    fn locate(&self, hash: u16, mut is_key: impl FnMut(&Row) -> bool) -> Option<(usize, usize)> {
        if self.groups.is_empty() {
            return None;
        }
        let mut group = self.home(hash);
        for _ in 0..self.groups.len() {
            let mut matches = self.matches(group, hash);
            while matches != 0 {
                let slot = matches.trailing_zeros() as usize;
                if is_key(self.row(RowIndex(self.groups[group].slots[slot].row))) {
                    return Some((group, slot));
                }
                matches &= matches - 1;
            }
            if self.fills[group].passed == 0 {
                return None;
            }
            group = if group + 1 == self.groups.len() { 0 } else { group + 1 };
        }
        None
    }

    /// Slots of a group with these hash bits, as a mask: without a branch on what is there.
    fn matches(&self, group: usize, hash: u16) -> u32 {
        let slots = &self.groups[group].slots;
        let mut matches = 0;
        for (slot, entry) in slots.iter().enumerate() {
            matches |= u32::from(entry.hash == hash) << slot;
        }
        matches & ((1 << self.fills[group].used) - 1)
    }

    /// The row that is most likely the first of a key with these hash bits, to be checked.
    pub fn likely(&self, hash: u16) -> Option<RowIndex> {
        if self.groups.is_empty() {
            return None;
        }
        let group = self.home(hash);
        let matches = self.matches(group, hash);
        (matches != 0).then(|| RowIndex(self.groups[group].slots[matches.trailing_zeros() as usize].row))
    }

    /// Adds a row; `after` is the key's first row, if it has one.
    pub fn insert(&mut self, hash: u16, mut row: Row, after: Option<RowIndex>) {
        assert!(self.rows() < TABLE_ROWS_MAX, "asked for room before");
        match after {
            Some(first) => {
                row.set_next(self.row(first).next());
                let index = self.place(row);
                self.row_mut(first).set_next(Some(index));
            }
            None => {
                let index = self.place(row);
                self.grow_for(usize::from(self.keys) + 1);
                self.keys += 1;
                self.add_slot(Slot { hash, row: index.0 });
            }
        }
    }

    fn place(&mut self, row: Row) -> RowIndex {
        self.rows += 1;
        if let Some(index) = self.free {
            self.free = self.row(index).next();
            *self.row_mut(index) = row;
            return index;
        }
        let index = RowIndex(self.rows_made);
        if usize::from(self.rows_made).is_multiple_of(CHUNK_ROWS) {
            self.chunks.reserve_exact(1);
            self.chunks.push(Box::new([row; CHUNK_ROWS]));
        } else {
            *self.row_mut(index) = row;
        }
        self.rows_made += 1;
        index
    }

    fn add_slot(&mut self, slot: Slot) {
        let mut group = self.home(slot.hash);
        loop {
            let fill = &mut self.fills[group];
            if usize::from(fill.used) < SLOTS {
                self.groups[group].slots[usize::from(fill.used)] = slot;
                fill.used += 1;
                return;
            }
            // A saturated count stays: the way past this group is then never forgotten.
            fill.passed = fill.passed.saturating_add(1);
            group = if group + 1 == self.groups.len() { 0 } else { group + 1 };
        }
    }

    /// Removes the row at `index`; `previous` is the row of the same key before it.
    pub fn remove(&mut self, hash: u16, index: RowIndex, previous: Option<RowIndex>) {
        let next = self.row(index).next();
        match (previous, next) {
            (Some(previous), next) => self.row_mut(previous).set_next(next),
            (None, Some(next)) => {
                let (group, slot) = self.slot_of(hash, index);
                self.groups[group].slots[slot].row = next.0;
            }
            (None, None) => self.remove_slot(hash, index),
        }
        let free = self.free;
        self.row_mut(index).set_next(free);
        self.free = Some(index);
        self.rows -= 1;
        if self.rows == 0 {
            // An empty table costs nothing.
            *self = Table::default();
        }
    }

    fn slot_of(&self, hash: u16, index: RowIndex) -> (usize, usize) {
        let mut group = self.home(hash);
        for _ in 0..self.groups.len() {
            let used = usize::from(self.fills[group].used);
            if let Some(slot) = self.groups[group].slots[..used].iter().position(|slot| slot.row == index.0) {
                return (group, slot);
            }
            group = if group + 1 == self.groups.len() { 0 } else { group + 1 };
        }
        panic!("every first row has its slot")
    }

    fn remove_slot(&mut self, hash: u16, index: RowIndex) {
        let (group, slot) = self.slot_of(hash, index);
        let last = usize::from(self.fills[group].used) - 1;
        self.groups[group].slots.swap(slot, last);
        self.fills[group].used -= 1;
        self.keys -= 1;
        let mut passed = self.home(hash);
        while passed != group {
            let count = &mut self.fills[passed].passed;
            if *count < u8::MAX {
                *count -= 1;
            }
            passed = if passed + 1 == self.groups.len() { 0 } else { passed + 1 };
        }
    }

    fn grow_for(&mut self, keys: usize) {
        if !self.must_grow(keys) {
            return;
        }
        let count = self.groups.len() + (self.groups.len() / 16).max(1);
        let empty = Group { slots: [Slot::default(); SLOTS] };
        let groups = std::mem::replace(&mut self.groups, vec![empty; count]);
        let fills = std::mem::replace(&mut self.fills, vec![Fill::default(); count]);
        for (group, fill) in groups.iter().zip(fills) {
            group.slots[..usize::from(fill.used)].iter().for_each(|&slot| self.add_slot(slot));
        }
    }

    /// Whether another row fits what is allocated.
    pub fn has_room(&self) -> bool {
        let row = self.free.is_some() || !usize::from(self.rows_made).is_multiple_of(CHUNK_ROWS);
        row && !self.must_grow(usize::from(self.keys) + 1)
    }

    /// What one more row may cost at most.
    pub fn growth_bytes_max(&self) -> u64 {
        let groups = (self.groups.len() / 16).max(1) * (size_of::<Group>() + size_of::<Fill>());
        let chunk = size_of::<[Row; CHUNK_ROWS]>() + 16 + size_of::<usize>();
        (groups + chunk) as u64
    }

    /// What that many rows of new keys may cost, the groups that move included; and what one more row
    /// may cost after that.
    pub fn growth_bytes(&self, rows: usize) -> (u64, u64) {
        let keys = usize::from(self.keys) + rows;
        let (mut count, mut moving) = (self.groups.len(), 0);
        while keys * LOAD_DENOMINATOR > count * SLOTS * LOAD_NUMERATOR {
            moving = count;
            count += (count / 16).max(1);
        }
        let group = size_of::<Group>() + size_of::<Fill>();
        let chunk = size_of::<[Row; CHUNK_ROWS]>() + 16 + size_of::<usize>();
        let made = (self.rows() + rows).max(usize::from(self.rows_made));
        let chunks = made.div_ceil(CHUNK_ROWS) - self.chunks.len();
        let bytes = (count - self.groups.len() + moving) * group + chunks * chunk;
        (bytes as u64, ((count / 16).max(1) * group + chunk) as u64)
    }

    fn must_grow(&self, keys: usize) -> bool {
        keys * LOAD_DENOMINATOR > self.groups.len() * SLOTS * LOAD_NUMERATOR
    }

    /// Appends the rows of one group's keys: what a sweep looks at. `from` is the group; returns the
    /// next one, `None` after the last.
    pub fn visit(&self, from: usize, rows: &mut Vec<RowIndex>) -> Option<usize> {
        let group = from;
        let fill = self.fills.get(group)?;
        for slot in &self.groups[group].slots[..usize::from(fill.used)] {
            let mut next = Some(RowIndex(slot.row));
            while let Some(index) = next {
                rows.push(index);
                next = self.row(index).next();
            }
        }
        Some(group + 1)
    }

    pub fn charged_bytes(&self) -> u64 {
        let groups = self.groups.capacity() * size_of::<Group>() + self.fills.capacity() * size_of::<Fill>();
        // An allocation costs its header, too.
        let chunk = size_of::<[Row; CHUNK_ROWS]>() + 16;
        let chunks = self.chunks.len() * chunk + self.chunks.capacity() * size_of::<usize>();
        (groups + chunks + size_of::<Table>()) as u64
    }
}
