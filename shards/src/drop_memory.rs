//! What a source still knows about residences that have ended, so that it can tell "it was here and
//! is gone" from "it never was" (chapter 2.2).
//!
//! A bounded ring in the order of ending. `forgotten` is the delete sequence of the newest entry that
//! it has dropped, 0 if none: a residence that began after it cannot have been dropped, since it
//! ended later than it began. So absence from ring and residents proves *never* exactly there, and
//! nowhere else.

use orbitkv_wire::identity::{Medium, Sequence};

use crate::key::StateKey;

/// Bytes that one remembered residence takes, its place in the index included.
pub const ENTRY_BYTES: usize = size_of::<Ended>() + size_of::<u32>();

/// End of a chain, and an empty bucket.
const NONE: u32 = u32::MAX;

/// What the source can say of one exact residence (key, medium, residency sequence).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is here.
    Resident,
    /// It provably never was.
    NeverHeld,
    /// It is of a sequence this journal has not reached: from a valid peer an alarm.
    BeyondHead,
    /// It was here and ended; the sequence is that of its delete.
    Ended(Sequence),
    /// It ended longer ago than is remembered, or never was: no longer provable.
    EndedUnknown,
}

#[derive(Clone, Copy, Debug)]
struct Ended {
    put: Sequence,
    delete: Sequence,
    key: StateKey,
    /// The next entry of the same bucket.
    next: u32,
    medium: Medium,
}

/// The residences that ended most recently in one shard and incarnation.
#[derive(Debug)]
pub struct DropMemory {
    entries_max: usize,
    /// Grows to `entries_max`, then `oldest` goes round.
    ring: Vec<Ended>,
    oldest: usize,
    /// First entry per bucket, by put sequence: within a shard no two residences share one.
    buckets: Vec<u32>,
    forgotten: Sequence,
    entries_dropped: u64,
}

/// Bytes of a memory for `entries_max` residences, for the memory bill.
#[must_use]
pub fn table_bytes(entries_max: usize) -> usize {
    entries_max * size_of::<Ended>() + entries_max.next_power_of_two() * size_of::<u32>()
}

impl DropMemory {
    /// Remembers the last `entries_max` residences; 0 remembers none and proves less.
    ///
    /// # Panics
    /// If `entries_max` is not below 2³² − 1.
    #[must_use]
    pub fn new(entries_max: usize) -> Self {
        assert!(entries_max < NONE as usize, "entries are numbered with 32 bits");
        DropMemory {
            entries_max,
            ring: Vec::with_capacity(entries_max),
            oldest: 0,
            buckets: vec![NONE; entries_max.next_power_of_two()],
            forgotten: Sequence(0),
            entries_dropped: 0,
        }
    }

    /// The residence that began with the put at `put` ended with the delete at `delete`.
    ///
    /// # Panics
    /// If it ended before it began, or not after every residence that ended before.
    pub fn on_ended(&mut self, key: StateKey, medium: Medium, put: Sequence, delete: Sequence) {
        assert!(Sequence(0) < put && put < delete, "a residence ends after it began");
        let newest = self.newest().map_or(self.forgotten, |entry| entry.delete);
        assert!(newest < delete, "residences are told in the order of their ending");
        let bucket = self.bucket(put);
        let entry = Ended { put, delete, key, next: self.buckets[bucket], medium };
        if self.ring.len() < self.entries_max {
            self.buckets[bucket] = self.ring.len() as u32;
            self.ring.push(entry);
        } else if self.entries_max == 0 {
            self.forgotten = delete;
            self.entries_dropped += 1;
        } else {
            let slot = self.oldest;
            self.forgotten = self.ring[slot].delete;
            self.entries_dropped += 1;
            self.unlink(slot);
            // Read again: the dropped entry may have been the first of this very bucket.
            self.ring[slot] = Ended { next: self.buckets[bucket], ..entry };
            self.buckets[bucket] = slot as u32;
            self.oldest = (slot + 1) % self.entries_max;
        }
        self.assert_invariants();
    }

    /// What can be said of the residence (`key`, `medium`, `asked`) in a journal whose head is `head`.
    /// `is_resident` says whether the residents have exactly that residence.
    ///
    /// # Panics
    /// If a resident is beyond the head, or both resident and ended.
    #[must_use]
    pub fn verdict(
        &self,
        asked: Sequence,
        head: Sequence,
        key: &StateKey,
        medium: Medium,
        is_resident: bool,
    ) -> Verdict {
        if asked > head {
            assert!(!is_resident, "a resident began at a put of this journal");
            return Verdict::BeyondHead;
        }
        let ended = self.find(asked).filter(|entry| entry.key == *key && entry.medium == medium);
        match ended {
            _ if is_resident => {
                assert!(ended.is_none(), "a residence does not go on after its end");
                Verdict::Resident
            }
            Some(entry) => Verdict::Ended(entry.delete),
            None if asked > self.forgotten => Verdict::NeverHeld,
            None => Verdict::EndedUnknown,
        }
    }

    /// A new registration life: nothing of it has ended yet.
    pub fn restart(&mut self) {
        self.ring.clear();
        self.oldest = 0;
        self.buckets.fill(NONE);
        self.forgotten = Sequence(0);
        self.assert_invariants();
    }

    /// Residences remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// Whether none is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Delete sequence of the newest residence it has dropped; 0 if none.
    #[must_use]
    pub fn forgotten(&self) -> Sequence {
        self.forgotten
    }

    /// Residences dropped since the process started.
    #[must_use]
    pub fn entries_dropped(&self) -> u64 {
        self.entries_dropped
    }

    fn newest(&self) -> Option<&Ended> {
        let last = self.ring.len().checked_sub(1)?;
        Some(&self.ring[if self.oldest == 0 { last } else { self.oldest - 1 }])
    }

    fn bucket(&self, put: Sequence) -> usize {
        // Sequences are consecutive, so their low bits spread them already; the fold takes in the
        // high ones of residences that are far apart.
        let folded = put.0 ^ put.0 >> 32 ^ put.0 >> 16;
        folded as usize & (self.buckets.len() - 1)
    }

    fn find(&self, put: Sequence) -> Option<&Ended> {
        let mut at = self.buckets[self.bucket(put)];
        while at != NONE {
            let entry = &self.ring[at as usize];
            if entry.put == put {
                return Some(entry);
            }
            at = entry.next;
        }
        None
    }

    fn unlink(&mut self, slot: usize) {
        let Ended { put, next, .. } = self.ring[slot];
        let bucket = self.bucket(put);
        let mut at = self.buckets[bucket];
        if at == slot as u32 {
            self.buckets[bucket] = next;
            return;
        }
        loop {
            let entry = &mut self.ring[at as usize];
            if entry.next == slot as u32 {
                entry.next = next;
                return;
            }
            at = entry.next;
        }
    }

    fn assert_invariants(&self) {
        assert!(self.ring.len() <= self.entries_max, "the ring keeps its bound");
        if let Some(oldest) = self.ring.get(self.oldest) {
            assert!(self.forgotten < oldest.delete, "the ring continues where it forgot");
        }
        if cfg!(debug_assertions) && self.ring.len() <= 64 {
            let linked: usize = (self.buckets.iter())
                .map(|&first| {
                    std::iter::successors(Some(first), |&at| Some(self.ring.get(at as usize)?.next))
                        .take_while(|&at| at != NONE)
                        .take(self.ring.len() + 1)
                        .count()
                })
                .sum();
            assert_eq!(linked, self.ring.len(), "every entry is in one chain");
        }
    }
}

#[cfg(test)]
mod tests;
