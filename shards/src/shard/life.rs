//! A new registration life: the shard begins its journal again and keeps its cache (chapter 1.1).
//!
//! At once the history is empty and what ended in an earlier life is forgotten. Then every resident is put
//! again, in slices of [`Shard::step`] and in the order of the keys. What begins meanwhile is put as always,
//! and not again when its turn comes; what ends before its turn was never put in this life, so nothing is
//! written of its end. Who reads the copies, and what the device has in hand, is untouched.

use orbitkv_wire::identity::{BlockHash, GroupId, Incarnation, Medium, Sequence};

use super::save::journal_bytes;
use super::{Outcome, Shard, Tag};
use crate::inventory::publisher::Source;
use crate::key::{EntryId, NamespaceId, StateKey};
use crate::namespaces::Namespaces;
use crate::residents::{LifeNumber, Residents};

/// Entries that one step puts again, on both media: a slice of a turn like that of a Clear.
pub const LIFE_SLICE_ENTRIES: usize = 256;

/// An unanswered BeginLife.
pub(super) struct Beginning {
    tag: Tag,
    /// The last key looked at.
    cursor: Option<StateKey>,
}

impl Shard {
    pub(super) fn begin_life(&mut self, tag: Tag, incarnation: Incarnation) {
        assert_ne!(incarnation, self.settings.incarnation, "a life that is over never comes back");
        self.settings.incarnation = incarnation;
        self.life = LifeNumber(self.life.0.checked_add(1).expect("a process has fewer than 2^32 lives"));
        self.journal.restart();
        self.drops.restart();
        if let Some(log) = &mut self.log {
            log.begin_life(incarnation);
        }
        if let Some(replaced) = self.beginning.replace(Beginning { tag, cursor: None }) {
            self.answer(replaced.tag, Outcome::Cancelled);
        }
    }

    /// Whether every resident has a sequence of the present life. Until then the shard's [`Source`] is not
    /// whole: no session may be opened on it, nothing granted, and no fence given.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.beginning.is_none()
    }

    /// A slice of the residents; the last one ends the beginning.
    pub(super) fn step_life(&mut self) {
        let Some(beginning) = &self.beginning else { return };
        let cursor = beginning.cursor;
        let first = StateKey { namespace: NamespaceId(0), group: GroupId(0), block: BlockHash([0; 32]) };
        let slice_max = self.settings.life_slice_entries;
        let slice: Vec<(EntryId, StateKey)> = (self.residents)
            .scan_from(cursor.as_ref().unwrap_or(&first))
            .map(|(id, entry)| (id, entry.key))
            .filter(|(_, key)| Some(*key) != cursor)
            .take(slice_max)
            .collect();
        for &(id, _) in &slice {
            self.put_again(id, Medium::Dram);
            self.put_again(id, Medium::Ssd);
        }
        if slice.len() == slice_max {
            let (_, last) = slice[slice_max - 1];
            self.beginning.as_mut().expect("just seen").cursor = Some(last);
            return;
        }
        let tag = self.beginning.take().expect("just seen").tag;
        self.answer(tag, Outcome::LifeBegun);
        // They were not told a head that does not cover everything.
        self.answer_syncs();
    }

    /// Puts a residence into the present life, if it is of an earlier one.
    pub(super) fn put_again(&mut self, id: EntryId, medium: Medium) {
        let entry = self.residents.entry(id);
        if entry.lives[medium as usize] != self.life && entry.sequence(medium).is_some() {
            let sequence = self.put(id, medium);
            self.residents.entry_mut(id).renumber(medium, sequence);
        }
    }

    /// Tells the journal that a residence begins.
    pub(super) fn put(&mut self, id: EntryId, medium: Medium) -> Sequence {
        let entry = self.residents.entry_mut(id);
        entry.lives[medium as usize] = self.life;
        self.journal.append_put(entry.key, medium, journal_bytes(entry.bytes))
    }

    /// Tells the journal and the drop memory that the residence with this sequence has ended, unless no put
    /// of this life began it.
    pub(super) fn tell_ended(&mut self, id: EntryId, medium: Medium, sequence: Sequence) {
        let entry = self.residents.entry(id);
        if entry.lives[medium as usize] == self.life {
            let ended = self.journal.append_delete(entry.key, medium);
            self.drops.on_ended(entry.key, medium, sequence, ended);
        }
    }

    /// What an inventory publisher reads of this shard. Whole only while it [is settled](Shard::is_settled).
    #[must_use]
    pub fn source(&self) -> Source<'_, Residents> {
        Source { journal: &self.journal, residences: &self.residents, namespaces: &self.namespaces }
    }

    /// Its namespaces.
    #[must_use]
    pub fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }

    /// Its namespaces, to give a number to one that a peer names.
    pub fn namespaces_mut(&mut self) -> &mut Namespaces {
        &mut self.namespaces
    }

    /// A residence without a sequence of the present life still waits for its turn.
    #[cfg(test)]
    pub(super) fn assert_numbered(&self) {
        let cursor = self.beginning.as_ref().map(|beginning| beginning.cursor);
        let first = StateKey { namespace: NamespaceId(0), group: GroupId(0), block: BlockHash([0; 32]) };
        for (_, entry) in self.residents.scan_from(&first) {
            let waits = cursor.is_some_and(|cursor| cursor.is_none_or(|cursor| entry.key > cursor));
            for medium in [Medium::Dram, Medium::Ssd] {
                let is_numbered = entry.lives[medium as usize] == self.life;
                assert!(waits || is_numbered || entry.sequence(medium).is_none(), "a residence is left out");
            }
        }
    }
}
