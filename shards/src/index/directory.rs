//! The way from a key's hash to its place in the heap: groups of slots, one cache line each, in chunks of a store.
//!
//! A slot holds fifteen bits of a key's hash and a medium (its *mark*) and the first place of that key on
//! that medium. A mark's home is proportional to it, so growing moves slots without looking at a key.
//! Whoever searches compares the marks of a line all at once, and looks at the next line only if a slot
//! once went past this one.

use std::mem;

use orbitkv_wire::identity::{KeyHash, Medium};

use super::place::PlaceIndex;
use super::prefetch::Prefetch;
use super::store::{ChunkIndex, Store, chunk_bytes};

/// Slots of a group: what one cache line holds.
const SLOTS: usize = 15;

/// A directory grows when more than this share of its slots would be taken: at three quarters, one
/// search in fourteen looks at a second line.
const LOAD_NUMERATOR: usize = 3;
const LOAD_DENOMINATOR: usize = 4;

/// Groups of a chunk.
const CHUNK_GROUPS: usize = 8;

type Chunk = [Group; CHUNK_GROUPS];

/// All groups of a partition.
pub(super) type Groups = Store<Chunk>;

/// It grows by one part in so many: a slot moves five times on the way, and a row costs half a byte
/// more than with one part in sixteen.
const GROWTH: usize = 5;

/// Fifteen bits of a key's hash, and a medium. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark(u16);

impl Mark {
    /// Takes bits that chose neither the shard (the upper ones) nor the directory (the lower ones).
    pub fn new(hash: KeyHash, medium: Medium) -> Mark {
        Mark(((hash.0 >> 32) as u16 & !1).max(2) | medium as u16)
    }
}

/// Which marks are searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The very mark.
    OneMedium,
    /// Its hash bits with either medium.
    EitherMedium,
}

/// The lowest bit of each of the four marks in a word, and the highest.
const LOWEST: u64 = 0x0001_0001_0001_0001;
const HIGHEST: u64 = LOWEST << 15;

#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Group {
    /// The mark of slot `s` is in word `s % 4`, at bit `s / 4 * 16`. Zero where no slot is used.
    marks: [u64; 4],
    places: [u16; SLOTS],
    /// Slots in use: the first ones.
    used: u8,
    /// How many slots whose home is here or before lie behind this group; saturates.
    passed: u8,
}

const _: () = assert!(size_of::<Group>() == 64);

impl Group {
    fn mark(&self, slot: usize) -> Mark {
        Mark((self.marks[slot % 4] >> (slot / 4 * 16)) as u16)
    }

    fn set_mark(&mut self, slot: usize, mark: u16) {
        let (word, shift) = (&mut self.marks[slot % 4], slot / 4 * 16);
        *word = *word & !(0xffff << shift) | u64::from(mark) << shift;
    }

    /// Slots with the wanted mark, as bits that [`number_of`] understands: all are compared at once,
    /// without a branch on what is there.
    fn matches(&self, mark: Mark, wanted: Wanted) -> u64 {
        let ignored = if wanted == Wanted::EitherMedium { LOWEST } else { 0 };
        let mark = (LOWEST * u64::from(mark.0)) | ignored;
        let mut matches = 0;
        for (word, marks) in self.marks.iter().enumerate() {
            let difference = (marks | ignored) ^ mark;
            // The sum carries into the highest bit unless all lower ones are zero.
            let differs = ((difference & !HIGHEST) + !HIGHEST) | difference;
            matches |= (!differs & HIGHEST) >> (15 - word);
        }
        matches
    }
}

/// The slot that the lowest bit of some matches stands for.
fn number_of(matches: u64) -> usize {
    let bit = matches.trailing_zeros() as usize;
    bit / 16 * 4 + bit % 4
}

/// Names a slot until one of its group is removed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    group: usize,
    number: usize,
}

/// The slots of one hash prefix.
#[derive(Debug, Default)]
pub(super) struct Directory {
    chunks: Vec<ChunkIndex>,
    used: usize,
}

impl Directory {
    fn group_count(&self) -> usize {
        self.chunks.len() * CHUNK_GROUPS
    }

    #[inline]
    fn at<'a>(&self, groups: &'a Groups, group: usize) -> &'a Group {
        &groups.get(self.chunks[group / CHUNK_GROUPS])[group % CHUNK_GROUPS]
    }

    #[inline]
    fn at_mut<'a>(&self, groups: &'a mut Groups, group: usize) -> &'a mut Group {
        &mut groups.get_mut(self.chunks[group / CHUNK_GROUPS])[group % CHUNK_GROUPS]
    }

    fn home(&self, mark: Mark) -> usize {
        (usize::from(mark.0 >> 1) * self.group_count()) >> 15
    }

    fn after(&self, group: usize) -> usize {
        if group + 1 == self.group_count() { 0 } else { group + 1 }
    }

    /// Asks for the line on which a mark's slot most likely is.
    pub fn prefetch(&self, groups: &Groups, mark: Mark, prefetch: Prefetch) {
        if !self.chunks.is_empty() {
            prefetch.ask(self.at(groups, self.home(mark)));
        }
    }

    /// Shows the places behind the wanted marks until one `is_it`, and says which slot led there.
    #[inline]
    pub fn search(
        &self,
        groups: &Groups,
        mark: Mark,
        wanted: Wanted,
        mut is_it: impl FnMut(PlaceIndex) -> bool,
    ) -> Option<(Slot, PlaceIndex)> {
        let mut at = self.home(mark);
        for _ in 0..self.group_count() {
            let group = self.at(groups, at);
            let mut matches = group.matches(mark, wanted);
            while matches != 0 {
                let number = number_of(matches);
                let place = PlaceIndex(group.places[number]);
                if is_it(place) {
                    return Some((Slot { group: at, number }, place));
                }
                matches &= matches - 1;
            }
            if group.passed == 0 {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    /// Adds a slot, for which there is room.
    pub fn insert(&mut self, groups: &mut Groups, mark: Mark, place: PlaceIndex) {
        self.add(groups, mark, place.0);
        self.used += 1;
    }

    fn add(&self, groups: &mut Groups, mark: Mark, place: u16) {
        let mut at = self.home(mark);
        loop {
            let group = self.at_mut(groups, at);
            let used = usize::from(group.used);
            if used < SLOTS {
                group.set_mark(used, mark.0);
                group.places[used] = place;
                group.used += 1;
                return;
            }
            // A saturated count stays: the way past this group is then never forgotten.
            group.passed = group.passed.saturating_add(1);
            at = self.after(at);
        }
    }

    /// Removes a slot; the last one of its group takes its number.
    pub fn remove(&mut self, groups: &mut Groups, slot: Slot) {
        let group = self.at_mut(groups, slot.group);
        let (mark, last) = (group.mark(slot.number), usize::from(group.used) - 1);
        group.set_mark(slot.number, group.mark(last).0);
        group.set_mark(last, 0);
        group.places[slot.number] = group.places[last];
        group.used -= 1;
        self.used -= 1;
        let mut passed = self.home(mark);
        while passed != slot.group {
            let count = &mut self.at_mut(groups, passed).passed;
            if *count < u8::MAX {
                *count -= 1;
            }
            passed = self.after(passed);
        }
    }

    /// The slots of a group and where they lead, last one first, so that removing one leaves those to come
    /// as they are. `None` behind the last group.
    pub fn group(
        &self,
        groups: &Groups,
        group: usize,
    ) -> Option<impl Iterator<Item = (Slot, PlaceIndex)> + use<>> {
        if group >= self.group_count() {
            return None;
        }
        let Group { places, used, .. } = *self.at(groups, group);
        let slot = move |number| (Slot { group, number }, PlaceIndex(places[number]));
        Some((0..usize::from(used)).rev().map(slot))
    }

    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Whether so many more slots fit what it has.
    pub fn has_room(&self, slots: usize) -> bool {
        self.chunks.len() >= self.chunks_for(slots)
    }

    /// Chunks that so many more slots need, at least.
    fn chunks_for(&self, slots: usize) -> usize {
        ((self.used + slots) * LOAD_DENOMINATOR).div_ceil(CHUNK_GROUPS * SLOTS * LOAD_NUMERATOR)
    }

    /// What growing by one step takes, before what was there is given back.
    pub fn step_bytes(&self) -> u64 {
        bytes_of(grown(self.chunks.len()))
    }

    /// What the directory takes once it has grown for so many more slots.
    pub fn grown_bytes(&self, slots: usize) -> u64 {
        let (mut chunks, needed) = (self.chunks.len(), self.chunks_for(slots));
        while chunks < needed {
            chunks = grown(chunks);
        }
        bytes_of(chunks)
    }

    /// Grows by one step.
    pub fn grow(&mut self, groups: &mut Groups) {
        let count = grown(self.chunks.len());
        let chunks = (0..count).map(|_| groups.take([Group::default(); CHUNK_GROUPS])).collect();
        for old in mem::replace(&mut self.chunks, chunks) {
            for group in *groups.get(old) {
                for slot in 0..usize::from(group.used) {
                    self.add(groups, group.mark(slot), group.places[slot]);
                }
            }
            groups.give_back(old);
        }
    }

    /// Gives all chunks back; no slot is in use.
    pub fn release(&mut self, groups: &mut Groups) {
        debug_assert!(self.is_empty());
        mem::take(self).chunks.into_iter().for_each(|chunk| groups.give_back(chunk));
    }

    pub fn charged_bytes(&self) -> u64 {
        bytes_of(self.chunks.len())
    }
}

fn grown(chunks: usize) -> usize {
    chunks + (chunks / GROWTH).max(1)
}

/// What chunks cost.
fn bytes_of(chunks: usize) -> u64 {
    (chunks * chunk_bytes::<Chunk>()) as u64
}
