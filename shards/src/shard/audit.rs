//! A sampling audit: residences on SSD that were accepted are read again, one at a time, and compared with what was
//! written.
//!
//! A block that nobody asks for would otherwise be found lost by whoever needs it. The audit walks the keys in their
//! order and wraps around; it reads one block an interval, into a slot that nothing shows, and only while the device
//! has nothing else to do. Whoever finds a lost write, the audit or a reader, it is told in the same way: with its
//! name and its sequence.

use std::collections::VecDeque;
use std::time::Duration;

use orbitkv_wire::identity::{BlockHash, GroupId, Sequence};

use super::save::Eviction;
use super::tiers::Purpose;
use super::{Order, OrderKind, Shard};
use crate::key::{EntryId, NamespaceId, StateKey};
use crate::residents::{CopyId, EntryRef};
use crate::segment_log::{BlockName, Placement};
use crate::time::Moment;

/// Entries that one look passes over in search of the next residence on SSD: a bounded slice of a turn.
const ENTRIES_PER_LOOK: usize = 256;

/// No key is before it.
const FIRST_KEY: StateKey =
    StateKey { namespace: NamespaceId(0), group: GroupId(0), block: BlockHash([0; 32]) };

/// Lost writes that wait to be told. Those beyond it are counted, and not named.
const LOST_MAX: usize = 64;

/// Why a residence is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostCause {
    /// What was read is not what was written.
    WrongBytes,
    /// The device does not give it back.
    Unreadable,
}

/// Who has found that a residence is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finder {
    /// Somebody who wanted the block.
    Reader,
    /// The audit.
    Audit,
}

/// A residence that was accepted, was not ended by anybody, and is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostWrite {
    /// The block.
    pub block: BlockName,
    /// Sequence of its residence.
    pub sequence: Sequence,
    /// What was found in its place.
    pub cause: LostCause,
    /// Who found it.
    pub finder: Finder,
}

/// A residence that is being read again.
pub(super) struct Reread {
    entry: EntryRef,
    placement: Placement,
    copy: CopyId,
}

/// Where the audit is.
pub(super) struct Audit {
    /// Between two blocks; none if nothing is audited.
    interval: Option<Duration>,
    /// The next block is not read before.
    due: Moment,
    /// When a block was last read again, or the first came that can be.
    pub progressed: Moment,
    /// The key after which the search goes on.
    after: Option<StateKey>,
    reread: Option<Reread>,
    lost: VecDeque<LostWrite>,
}

impl Audit {
    pub fn new(interval: Option<Duration>) -> Audit {
        Audit {
            interval,
            due: Moment(0),
            progressed: Moment(0),
            after: None,
            reread: None,
            lost: VecDeque::new(),
        }
    }

    /// Copies that it uses.
    pub fn uses(&self) -> usize {
        usize::from(self.reread.is_some())
    }
}

impl Shard {
    /// The next residence that was found lost.
    pub fn poll_lost(&mut self) -> Option<LostWrite> {
        self.audit.lost.pop_front()
    }

    /// How long no block was read again; none if there is nothing to audit.
    pub(super) fn audit_age(&self) -> Option<Duration> {
        let has_some = self.audit.interval.is_some() && self.counters.ssd_residents > 0 && self.writes_back();
        has_some.then(|| self.now.since(self.audit.progressed))
    }

    /// Another pause between two blocks from now on; none reads none again.
    pub fn set_audit_interval(&mut self, interval: Option<Duration>, now: Moment) {
        self.audit.interval = interval;
        if let Some(interval) = interval {
            self.audit.due = self.audit.due.min(now + interval);
        }
    }

    /// When the next block is to be read again, if there is any.
    pub(super) fn audit_deadline(&self) -> Option<Moment> {
        let may = self.audit.interval.is_some() && self.audit.reread.is_none();
        (may && self.counters.ssd_residents > 0 && self.writes_back()).then_some(self.audit.due)
    }

    /// Begins to read the next block again, if it is time and nobody else needs the device.
    pub(super) fn step_audit(&mut self, now: Moment) {
        let Some(interval) = self.audit.interval else { return };
        if self.audit_deadline().is_none_or(|due| due > now) {
            return;
        }
        self.audit.due = now + interval;
        let is_idle = self.transfers.is_empty() && self.fill_queue.is_empty() && self.write_queue.is_empty();
        if self.draining || !self.is_settled() || !is_idle || !self.device_guard.is_closed(self.now) {
            return;
        }
        let Some((entry, placement, bytes)) = self.next_audited() else { return };
        let Ok(slot) = self.allocate(bytes, &mut Eviction::Allowed) else { return };
        let copy = self.residents.insert_copy(slot, None);
        self.slot_owners.insert(slot.id, copy);
        self.residents.pin(copy);
        self.log.as_mut().expect("an SSD residence lies in a log").begin_read(&placement);
        self.queue_read(copy, 0);
        self.audit.reread = Some(Reread { entry, placement, copy });
    }

    /// The next residence on SSD in the order of keys, among as many entries as one look may pass over.
    fn next_audited(&mut self) -> Option<(EntryRef, Placement, u64)> {
        let first = self.audit.after.unwrap_or(FIRST_KEY);
        let skipped = |key: &StateKey| Some(*key) == self.audit.after;
        let entries = self.residents.scan_from(&first).filter(|(_, entry)| !skipped(&entry.key));
        let mut last = None;
        for (id, entry) in entries.take(ENTRIES_PER_LOOK) {
            last = Some(entry.key);
            if let Some((placement, _)) = entry.ssd.residence() {
                let found = (self.residents.reference(id), placement, entry.bytes);
                self.audit.after = last;
                return Some(found);
            }
        }
        // At the end it begins again.
        self.audit.after = last;
        None
    }

    /// Whether a copy is what the audit reads into.
    pub(super) fn is_audited(&self, copy: CopyId) -> bool {
        self.audit.reread.as_ref().is_some_and(|reread| reread.copy == copy)
    }

    /// The order to read the block again; none if it has ended meanwhile.
    pub(super) fn order_audit(&mut self) -> Option<Order> {
        let reread = self.audit.reread.as_ref().expect("asked about its copy");
        let (file_offset, entry, copy) = (reread.placement.offset, reread.entry, reread.copy);
        let payload_bytes = match self.residents.resolve(entry) {
            Some(id) => self.residents.entry(id).bytes,
            None => {
                self.end_audit();
                return None;
            }
        };
        let arena_offset = self.residents.copy(copy).slot.offset;
        let id = self.begin_transfer(Purpose::Audit);
        self.device_guard.begin_read(id, self.now);
        Some(Order { id, kind: OrderKind::Read, arena_offset, file_offset, payload_bytes, checksum: None })
    }

    pub(super) fn on_audited(&mut self, outcome: Result<u64, i32>) {
        let Reread { entry, placement, .. } = self.end_audit();
        let shown = self.residents.resolve(entry).filter(|&id| {
            self.residents.entry(id).ssd.residence().is_some_and(|(present, _)| present == placement)
        });
        self.counters.audited += 1;
        self.audit.progressed = self.now;
        match outcome {
            Err(errno) => {
                self.on_read_error(errno);
                self.lose_ssd(shown, placement, LostCause::Unreadable, Finder::Audit);
            }
            Ok(found) => {
                self.read_failures_in_a_row = 0;
                self.counters.ssd_reads += 1;
                let expected = shown.and_then(|id| self.residents.entry(id).checksum);
                if shown.is_some() && expected != Some(found) {
                    self.counters.checksum_failures += 1;
                    self.lose_ssd(shown, placement, LostCause::WrongBytes, Finder::Audit);
                }
            }
        }
        if let Some(id) = shown {
            self.end_if_bare(id);
        }
    }

    /// Gives back what the audit held.
    pub(super) fn end_audit(&mut self) -> Reread {
        let reread = self.audit.reread.take().expect("one block is read again at a time");
        self.log.as_mut().expect("it reads from a log").end_read(&reread.placement);
        self.unpin(reread.copy);
        reread
    }

    /// Remembers a residence that was found lost.
    pub(super) fn note_lost(&mut self, id: EntryId, cause: LostCause, finder: Finder) {
        self.counters.lost_writes += 1;
        let entry = self.residents.entry(id);
        let (_, sequence) = entry.ssd.residence().expect("what is lost was a residence");
        if self.audit.lost.len() < LOST_MAX {
            let block = self.block_name(&entry.key);
            self.audit.lost.push_back(LostWrite { block, sequence, cause, finder });
        }
    }
}
