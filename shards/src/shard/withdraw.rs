//! Evict, Clear and List: what operators and engines take out of the cache, and see of it.

use orbitkv_wire::engine::answers::EvictOutcome;
use orbitkv_wire::identity::{BlockHash, GroupId, Medium, NamespaceDigest};

use super::command::{Media, Resident};
use super::recover::FillPurpose;
use super::{Key, Outcome, Shard, Tag};
use crate::admission::Permit;
use crate::key::{EntryId, NamespaceId, StateKey};
use crate::residents::{CopyId, Dram, Ssd};

/// Entries of a namespace that one turn clears.
pub(super) const CLEAR_SLICE_ENTRIES: usize = 128;

/// An unanswered Clear.
pub(super) struct ClearJob {
    tag: Tag,
    namespace: NamespaceId,
    media: Media,
    /// The last key looked at; what is saved before it meanwhile stays.
    cursor: Option<StateKey>,
    total: Withdrawn,
    _permit: Permit,
}

impl Shard {
    pub(super) fn evict(&mut self, tag: Tag, namespace: &NamespaceDigest, media: Media, keys: &[Key]) {
        let ids = self.known(std::slice::from_ref(namespace));
        let mut outcomes = Vec::with_capacity(keys.len());
        for key in keys {
            if let Some(named) = self.state_key(&ids, key) {
                self.forget_wish(&named);
            }
            let outcome = match self.find(key.hash, self.state_key(&ids, key)) {
                None => EvictOutcome::Absent,
                Some(id) => match self.withdraw(id, media) {
                    Withdrawn { residences: 0, .. } => EvictOutcome::Absent,
                    Withdrawn { in_use: 0, .. } => EvictOutcome::Evicted,
                    Withdrawn { .. } => EvictOutcome::InUse,
                },
            };
            outcomes.push((key.index, outcome));
        }
        self.answer(tag, Outcome::Evicted(outcomes));
    }

    pub(super) fn clear(&mut self, tag: Tag, namespace: &NamespaceDigest, media: Media) {
        let Some(namespace) = self.namespaces.get(namespace) else {
            return self.answer(tag, Outcome::Cleared { removed: 0, in_use: 0 });
        };
        let Some(permit) = self.pools.device_waits.take(1) else {
            return self.answer(tag, Outcome::Cancelled);
        };
        self.forget_wishes_in(namespace);
        let is_first = self.clears.is_empty();
        let total = Withdrawn::default();
        self.clears.push_back(ClearJob { tag, namespace, media, cursor: None, total, _permit: permit });
        if is_first {
            self.step_clear();
        }
    }

    /// A slice of the oldest Clear, which is answered with its last.
    pub(super) fn step_clear(&mut self) {
        let Some(mut job) = self.clears.pop_front() else { return };
        let namespace = job.namespace;
        let first = StateKey { namespace, group: GroupId(0), block: BlockHash([0; 32]) };
        let from = job.cursor.unwrap_or(first);
        let slice: Vec<(EntryId, StateKey)> = self
            .residents
            .scan_from(&from)
            .map(|(id, entry)| (id, entry.key))
            .filter(|(_, key)| Some(*key) != job.cursor)
            .take_while(|(_, key)| key.namespace == namespace)
            .take(CLEAR_SLICE_ENTRIES)
            .collect();
        for &(id, key) in &slice {
            self.forget_wish(&key);
            let withdrawn = self.withdraw(id, job.media);
            job.total.residences += withdrawn.residences;
            job.total.in_use += withdrawn.in_use;
        }
        match slice.last() {
            Some(&(_, key)) if slice.len() == CLEAR_SLICE_ENTRIES => {
                job.cursor = Some(key);
                self.clears.push_front(job);
            }
            _ => {
                let Withdrawn { residences: removed, in_use } = job.total;
                self.answer(job.tag, Outcome::Cleared { removed, in_use });
            }
        }
    }

    /// Ends the residences of an entry on `media`. The entry may be gone afterwards.
    fn withdraw(&mut self, id: EntryId, media: Media) -> Withdrawn {
        let mut withdrawn = Withdrawn::default();
        let entry = self.residents.entry(id);
        let (dram, ssd) = (entry.dram, entry.ssd);
        if media.contains(Medium::Ssd) {
            match ssd {
                Ssd::Resident { .. } | Ssd::Moving { .. } => {
                    withdrawn.residences += 1;
                    let bare = dram == Dram::Absent;
                    self.end_ssd(id);
                    if bare {
                        return withdrawn;
                    }
                }
                // What waits for its write-back, or is being written, does not become a residence.
                Ssd::Queued | Ssd::Writing(_) if dram != Dram::Absent => {
                    self.residents.entry_mut(id).ssd = Ssd::Absent;
                }
                Ssd::Writing(_) => {
                    self.residents.entry_mut(id).ssd = Ssd::Absent;
                    self.end_if_bare(id);
                    return withdrawn;
                }
                Ssd::Absent | Ssd::Queued => {}
            }
        }
        match dram {
            Dram::Resident { .. } if media.contains(Medium::Dram) => {
                withdrawn.residences += 1;
                withdrawn.in_use += u64::from(self.end_dram(id));
            }
            // A fill shows nothing yet; without its SSD residence it must not show anything later, nor if nobody waits.
            Dram::Filling(copy) if media.contains(Medium::Ssd) || self.is_unwanted(copy) => {
                self.residents.entry_mut(id).dram = Dram::Absent;
                let freed = self.residents.withdraw(copy);
                assert!(freed.is_none(), "the fill pins its copy");
                self.end_if_bare(id);
            }
            _ => {}
        }
        withdrawn
    }

    /// Whether a fill that the device or a peer is at will be of use to nobody.
    fn is_unwanted(&self, copy: CopyId) -> bool {
        self.fills[&copy].purpose == FillPurpose::Recover && !self.is_wanted(copy)
    }

    pub(super) fn list(
        &mut self,
        tag: Tag,
        namespace: &NamespaceDigest,
        media: Media,
        after: Option<(GroupId, BlockHash)>,
        limit: u32,
    ) {
        // A page without entries would never end.
        let limit = limit.max(1);
        let mut page = Vec::new();
        let mut next = None;
        if let Some(namespace) = self.namespaces.get(namespace) {
            let first = StateKey { namespace, group: GroupId(0), block: BlockHash([0; 32]) };
            let after = after.map(|(group, block)| StateKey { namespace, group, block });
            let mut looked_at = 0;
            for (id, entry) in self.residents.scan_from(after.as_ref().unwrap_or(&first)) {
                if entry.key.namespace != namespace {
                    next = None;
                    break;
                }
                if after == Some(entry.key) {
                    continue;
                }
                if looked_at == limit {
                    break;
                }
                looked_at += 1;
                next = Some((entry.key.group, entry.key.block));
                page.push(id);
            }
            if looked_at < limit {
                next = None;
            }
        }
        let mut residents = Vec::new();
        for id in page {
            for medium in [Medium::Dram, Medium::Ssd].into_iter().filter(|medium| media.contains(*medium)) {
                // The answer speaks for the present life.
                self.put_again(id, medium);
                let entry = self.residents.entry(id);
                if let Some(sequence) = entry.sequence(medium) {
                    let (group, block) = (entry.key.group, entry.key.block);
                    residents.push(Resident { group, block, medium, bytes: entry.bytes, sequence });
                }
            }
        }
        self.answer(tag, Outcome::Listed { residents, next });
    }
}

/// What [`Shard::withdraw`] did.
#[derive(Default)]
struct Withdrawn {
    residences: u64,
    in_use: u64,
}
