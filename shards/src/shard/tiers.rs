//! Between DRAM and SSD: write-backs, fills, reclaim of log segments, and what the device reports.
//!
//! The driver pulls: [`Shard::poll_order`] gives the next device operation, reads first, and takes
//! a write from the queue only when the device has room, so nothing is placed before it can start.

use orbitkv_wire::engine::answers::BlockOutcome;
use orbitkv_wire::identity::{Medium, Sequence};

use super::audit::{Finder, LostCause};
use super::prefetch::AHEAD;
use super::recover::{FillPurpose, FillStage};
use super::save::Eviction;
use super::stages::Stage;
use super::{Outcome, Shard, Tag};
use crate::admission::Permit;
use crate::key::EntryId;
use crate::residents::{CopyId, Dram, EntryRef, Ssd};
use crate::segment_log::{
    AppendError, LogState, OffReason, Placement, SegmentId, Settled, Standing, TableWrite,
};

/// Times one block's write-back is tried before it stays in DRAM alone.
const WRITE_ATTEMPTS_MAX: u8 = 3;

/// Live blocks of a reclaimed segment that one turn looks at: a bounded slice of work.
const RECLAIM_SLICE_BLOCKS: usize = 64;

/// Dead write-backs that a queue may hold beyond twice the residents before it is swept.
const WRITE_QUEUE_SLACK: usize = 64;

/// Names a device operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransferId(pub u64);

/// Direction of an [`Order`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderKind {
    /// File to arena.
    Read,
    /// Arena to file.
    Write,
}

/// One device operation between arena and SSD file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// To be named on completion.
    pub id: TransferId,
    /// Direction.
    pub kind: OrderKind,
    /// Offset in the arena.
    pub arena_offset: u64,
    /// Offset in the SSD file.
    pub file_offset: u64,
    /// Payload bytes; the device moves whole pages.
    pub payload_bytes: u64,
    /// Writes: the payload's checksum, if it is known already. Reads: `None`.
    pub checksum: Option<u64>,
}

/// Why a device operation is under way.
pub(super) enum Purpose {
    Fill(CopyId),
    Stage(CopyId),
    Audit,
    WriteBack { entry: EntryRef, copy: CopyId, placement: Placement, ticket: u64 },
    Move { entry: EntryRef, copy: CopyId, target: Placement },
}

/// A Sync that waits for write-backs.
pub(super) struct SyncJob {
    tag: Tag,
    through: u64,
    _permit: Permit,
}

impl Shard {
    pub(super) fn queue_write_back(&mut self, id: EntryId) {
        if !self.writes_back() {
            return;
        }
        let ticket = self.next_write_back;
        self.next_write_back += 1;
        self.residents.entry_mut(id).ssd = Ssd::Queued;
        self.write_backs.insert(ticket);
        self.stages.on_write_back_queued(ticket);
        self.write_queue.push_back((self.residents.reference(id), ticket));
        if self.write_queue.len() > 2 * self.residents.len() + WRITE_QUEUE_SLACK {
            self.forget_dead_write_backs();
        }
        self.counters.write_queue_peak = self.counters.write_queue_peak.max(self.write_queue.len() as u64);
    }

    /// Blocks that are withdrawn while their write-back waits leave it in the queue. A device that takes
    /// nothing must not let them pile up: at most half of a full queue is dead.
    fn forget_dead_write_backs(&mut self) {
        let residents = &self.residents;
        let mut dead = Vec::new();
        self.write_queue.retain(|&(reference, ticket)| {
            let id = residents.resolve(reference);
            let is_live = id.is_some_and(|id| residents.entry(id).ssd == Ssd::Queued);
            if !is_live {
                dead.push(ticket);
            }
            is_live
        });
        dead.into_iter().for_each(|ticket| self.finish_write_back(ticket));
    }

    /// The next device operation. The driver asks only while the device has room.
    pub fn poll_order(&mut self) -> Option<Order> {
        self.reclaimed = false;
        self.reclaim();
        while let Some(first) = self.fill_queue.first_entry().filter(|first| first.key() & AHEAD == 0) {
            let copy = first.remove();
            if let Some(order) = self.order_read(copy) {
                return Some(order);
            }
        }
        if self.device_guard.takes_write(self.now)
            && let Some(order) = self.moves.pop_front()
        {
            self.device_guard.begin_write(order.id, self.now);
            return Some(order);
        }
        self.poll_write_back().or_else(|| self.poll_order_ahead())
    }

    /// The read of a copy whose turn it is, if anything is to be read into it.
    pub(super) fn order_read(&mut self, copy: CopyId) -> Option<Order> {
        if self.is_audited(copy) {
            return self.order_audit();
        }
        if let Some(order) = self.order_stage(copy) {
            return Some(order);
        }
        let Some(entry) = self.filling_entry(&self.fills[&copy], copy) else {
            // Withdrawn before it was read: nothing to show, so nothing to read.
            self.abandon_fill(copy, BlockOutcome::Missing);
            return None;
        };
        let payload_bytes = self.residents.entry(entry).bytes;
        let fill = self.fills.get_mut(&copy).expect("queued fills exist");
        fill.stage = FillStage::Reading;
        self.stages.note(fill.awaited_by(), Stage::DeviceTaken);
        let placement = fill.placement.expect("what is queued for the device lies on it");
        let arena_offset = self.residents.copy(copy).slot.offset;
        let id = self.begin_transfer(Purpose::Fill(copy));
        self.device_guard.begin_read(id, self.now);
        let (kind, file_offset, checksum) = (OrderKind::Read, placement.offset, None);
        Some(Order { id, kind, arena_offset, file_offset, payload_bytes, checksum })
    }

    fn poll_write_back(&mut self) -> Option<Order> {
        while self.writes_in_flight < self.settings.write_backs_max && self.device_guard.takes_write(self.now)
        {
            let (entry, ticket) = self.write_queue.pop_front()?;
            match self.begin_write_back(entry, ticket) {
                Begun::Order(order) => {
                    self.device_guard.begin_write(order.id, self.now);
                    return Some(order);
                }
                Begun::NotNeeded => self.finish_write_back(ticket),
                Begun::NoRoom => {
                    self.write_queue.push_front((entry, ticket));
                    return None;
                }
            }
        }
        None
    }

    pub(super) fn begin_transfer(&mut self, purpose: Purpose) -> TransferId {
        let id = TransferId(self.next_transfer);
        self.next_transfer += 1;
        if !matches!(purpose, Purpose::Fill(_) | Purpose::Stage(_) | Purpose::Audit) {
            self.writes_in_flight += 1;
        }
        self.transfers.insert(id, purpose);
        id
    }

    fn begin_write_back(&mut self, reference: EntryRef, ticket: u64) -> Begun {
        let Some(id) = self.residents.resolve(reference) else { return Begun::NotNeeded };
        let entry = self.residents.entry(id);
        let (Dram::Resident { copy, .. }, Ssd::Queued) = (entry.dram, entry.ssd) else {
            return Begun::NotNeeded;
        };
        let (key, bytes, checksum) = (entry.key, entry.bytes, entry.checksum);
        let name = self.block_name(&key);
        let log = self.log.as_mut().expect("write-backs are queued with a log");
        let placement = match log.append(id, &name, bytes) {
            Ok(placement) => placement,
            Err(AppendError::NoRoom) => return Begun::NoRoom,
            Err(AppendError::TooLarge { .. } | AppendError::Off(_) | AppendError::BudgetSpent) => {
                self.residents.entry_mut(id).ssd = Ssd::Absent;
                self.counters.write_backs_given_up += 1;
                return Begun::NotNeeded;
            }
        };
        self.residents.entry_mut(id).ssd = Ssd::Writing(placement);
        self.residents.pin(copy);
        self.stages.on_write_back_taken(ticket);
        let purpose = Purpose::WriteBack { entry: reference, copy, placement, ticket };
        Begun::Order(self.write_order(purpose, copy, placement, bytes, checksum))
    }

    fn write_order(
        &mut self,
        purpose: Purpose,
        copy: CopyId,
        placement: Placement,
        payload_bytes: u64,
        checksum: Option<u64>,
    ) -> Order {
        let arena_offset = self.residents.copy(copy).slot.offset;
        let id = self.begin_transfer(purpose);
        let file_offset = placement.offset;
        Order { id, kind: OrderKind::Write, arena_offset, file_offset, payload_bytes, checksum }
    }

    /// A device operation has ended. `outcome` carries the checksum of the payload as it was
    /// written or read.
    ///
    /// # Errors
    /// The device's error number, for the log; a read that came short is an error too.
    pub fn on_transfer_done(&mut self, id: TransferId, outcome: Result<u64, i32>) {
        let purpose = self.transfers.remove(&id).expect("the device reports what it was given, once");
        let is_probe = self.device_guard.is_probe(id);
        match purpose {
            Purpose::Fill(copy) => {
                self.prefetches.on_read(copy);
                self.on_read(copy, outcome);
            }
            Purpose::Stage(copy) => self.on_staged(copy, outcome),
            Purpose::Audit => self.on_audited(outcome),
            Purpose::WriteBack { entry, copy, placement, ticket } => {
                self.writes_in_flight -= 1;
                self.stages.on_write_back_done(ticket);
                let written = self.on_written(entry, placement, outcome, is_probe);
                self.unpin(copy);
                match written {
                    Written::Settled => self.finish_write_back(ticket),
                    // Under the same ticket: a Sync waits for all the tries.
                    Written::Again => self.write_queue.push_back((entry, ticket)),
                }
            }
            Purpose::Move { entry, copy, target } => {
                self.writes_in_flight -= 1;
                self.on_moved(entry, target, outcome);
                self.unpin(copy);
            }
        }
        self.on_device_done(id, outcome.is_err());
        self.begin_prefetches();
        self.assert_invariants();
    }

    fn on_read(&mut self, copy: CopyId, outcome: Result<u64, i32>) {
        let fill = &self.fills[&copy];
        self.stages.note(fill.awaited_by(), Stage::DeviceEnded);
        let shown = self.filling_entry(fill, copy);
        let placement = fill.placement.expect("the device reads what lies on it");
        match outcome {
            Err(errno) => {
                self.on_read_error(errno);
                self.lose_ssd(shown, placement, LostCause::Unreadable, Finder::Reader);
                self.abandon_fill(copy, BlockOutcome::DeviceError);
            }
            Ok(found) => {
                self.read_failures_in_a_row = 0;
                self.counters.ssd_reads += 1;
                let expected = shown.and_then(|id| self.residents.entry(id).checksum);
                if shown.is_some() && expected != Some(found) {
                    self.counters.checksum_failures += 1;
                    self.lose_ssd(shown, placement, LostCause::WrongBytes, Finder::Reader);
                    self.abandon_fill(copy, BlockOutcome::Corrupt);
                } else {
                    self.finish_fill(copy);
                }
            }
        }
    }

    /// Ends an SSD residence that could not be read, or whose bytes proved wrong. The entry itself
    /// is left to the caller, who abandons its filling copy next or ends it if it is bare.
    pub(super) fn lose_ssd(
        &mut self,
        shown: Option<EntryId>,
        placement: Placement,
        cause: LostCause,
        finder: Finder,
    ) {
        let lost = shown
            .filter(|&id| self.residents.entry(id).ssd.residence().is_some_and(|(at, _)| at == placement));
        if let Some(id) = lost {
            self.note_lost(id, cause, finder);
            self.end_ssd_residence(id);
        }
        let log = self.log.as_mut().expect("reads come from a log");
        if cause == LostCause::WrongBytes {
            log.quarantine(&placement);
        } else if lost.is_some() {
            log.remove(&placement);
        }
    }

    fn on_written(
        &mut self,
        reference: EntryRef,
        placement: Placement,
        outcome: Result<u64, i32>,
        is_probe: bool,
    ) -> Written {
        // Only the very write that this entry waits for makes it a residence.
        let waiting = self
            .residents
            .resolve(reference)
            .filter(|&id| self.residents.entry(id).ssd == Ssd::Writing(placement));
        let log = self.log.as_mut().expect("write-backs go to a log");
        match outcome {
            Ok(checksum) => {
                self.write_failures_in_a_row = 0;
                self.counters.write_backs_done += 1;
                let Some(id) = waiting else {
                    self.settle_abandoned(&placement, checksum);
                    return Written::Settled;
                };
                let sequence = self.put(id, Medium::Ssd);
                let log = self.log.as_mut().expect("write-backs go to a log");
                log.on_written(&placement, sequence, checksum);
                let origin = log.origin(&placement, sequence);
                let entry = self.residents.entry_mut(id);
                let bytes = entry.bytes;
                entry.origin = origin;
                entry.checksum = Some(checksum);
                entry.hot = false;
                entry.ssd = Ssd::Resident { placement, sequence };
                if self.counters.ssd_residents == 0 {
                    self.audit.progressed = self.now;
                }
                self.counters.ssd_residents += 1;
                self.counters.ssd_bytes += bytes;
            }
            Err(errno) => {
                log.on_write_failed(&placement);
                self.on_write_error(errno);
                let Some(id) = waiting else { return Written::Settled };
                let writes_back = self.writes_back();
                let entry = self.residents.entry_mut(id);
                entry.ssd = Ssd::Absent;
                // Where the device is known to fail it is no fault of the block.
                entry.write_failures += u8::from(!is_probe);
                if entry.dram == Dram::Absent {
                    self.end_if_bare(id);
                } else if writes_back && entry.write_failures < WRITE_ATTEMPTS_MAX {
                    entry.ssd = Ssd::Queued;
                    return Written::Again;
                }
                self.counters.write_backs_given_up += 1;
            }
        }
        Written::Settled
    }

    /// A write that nobody waits for any more has completed: its place is dead.
    fn settle_abandoned(&mut self, placement: &Placement, checksum: u64) {
        let log = self.log.as_mut().expect("writes go to a log");
        // Removed first, so that it never looks readable and needs no sequence.
        log.remove(placement);
        let settled = log.on_written(placement, Sequence(0), checksum);
        assert_eq!(settled, Settled::Abandoned, "a removed block is not readable");
    }

    fn on_write_error(&mut self, errno: i32) {
        self.counters.ssd_write_errors += 1;
        self.write_failures_in_a_row += 1;
        let in_a_row = self.write_failures_in_a_row;
        if in_a_row >= self.settings.write_failures_in_a_row_max {
            let reason = OffReason::WriteFailures { in_a_row, errno };
            self.log.as_mut().expect("writes go to a log").turn_off(reason);
        }
    }

    pub(super) fn on_read_error(&mut self, errno: i32) {
        self.counters.ssd_read_errors += 1;
        self.read_failures_in_a_row += 1;
        let in_a_row = self.read_failures_in_a_row;
        if in_a_row >= self.settings.read_failures_in_a_row_max {
            let reason = OffReason::ReadFailures { in_a_row, errno };
            self.log.as_mut().expect("reads come from a log").turn_off(reason);
        }
    }

    fn finish_write_back(&mut self, ticket: u64) {
        assert!(self.write_backs.remove(&ticket), "a write-back is finished once");
        self.stages.on_write_back_ended(ticket);
        self.answer_syncs();
    }

    pub(super) fn answer_syncs(&mut self) {
        if !self.is_settled() {
            // The head does not cover every resident yet.
            return;
        }
        let oldest = self.write_backs.first().copied().unwrap_or(u64::MAX);
        let head = self.journal.head();
        let mut index = 0;
        while index < self.syncs.len() {
            if self.syncs[index].through < oldest {
                let job = self.syncs.swap_remove(index);
                self.answer(job.tag, Outcome::Synced(head));
            } else {
                index += 1;
            }
        }
    }

    pub(super) fn sync(&mut self, tag: Tag) {
        match self.pools.device_waits.take(1) {
            Some(permit) => {
                let through = self.next_write_back - 1;
                self.syncs.push(SyncJob { tag, through, _permit: permit });
                self.answer_syncs();
            }
            None => self.answer(tag, Outcome::Cancelled),
        }
    }

    pub(super) fn cancel_sync(&mut self, target: Tag) {
        if let Some(index) = self.syncs.iter().position(|job| job.tag == target) {
            let job = self.syncs.swap_remove(index);
            self.answer(job.tag, Outcome::Cancelled);
        }
    }

    /// Makes room in the log: drops what is cold in the segment it gave up, moves what is hot.
    pub(super) fn reclaim(&mut self) {
        let Some(log) = self.log.as_mut() else { return };
        if log.state() != LogState::On {
            // Nothing will be written any more, so what is there stays readable.
            self.reclaims.clear();
            return;
        }
        if !self.device_guard.takes_write(self.now) {
            return;
        }
        if self.reclaims.is_empty() {
            let mut live = Vec::new();
            if log.poll_reclaim(&mut live).is_none() {
                return;
            }
            self.reclaims.extend(live);
            self.reclaim_progressed = self.now;
        }
        let mut eviction = Eviction::Allowed;
        for _ in 0..RECLAIM_SLICE_BLOCKS {
            let Some((id, placement)) = self.reclaims.pop_front() else { break };
            self.reclaimed = true;
            self.reclaim_progressed = self.now;
            if self.log.as_ref().expect("checked above").standing(&placement) != Standing::Readable {
                continue;
            }
            let entry = self.residents.entry(id);
            match (entry.hot, entry.dram) {
                (true, Dram::Resident { .. }) => self.move_or_drop(id),
                // For one write that tries the device nothing is read, so what is hot there goes, too.
                (true, Dram::Absent) if self.device_guard.is_closed(self.now) => {
                    if self.begin_fill(id, placement, FillPurpose::Reinsert, &mut eviction).is_err() {
                        self.drop_from_log(id);
                    }
                }
                // What a peer may send is no reason to keep it.
                (_, Dram::Filling(copy)) if self.fills[&copy].placement.is_none() => self.drop_from_log(id),
                (_, Dram::Filling(copy)) => {
                    let fill = self.fills.get_mut(&copy).expect("a filling copy has its fill");
                    fill.purpose = FillPurpose::Reinsert;
                    // Room in the log waits for it, and saves for that.
                    self.hurry(copy);
                }
                (_, Dram::Absent | Dram::Resident { .. }) => self.drop_from_log(id),
            }
        }
    }

    /// Writes a block that is in DRAM to a new place in the log, if the log still takes it.
    pub(super) fn move_or_drop(&mut self, id: EntryId) {
        let entry = self.residents.entry(id);
        let (Dram::Resident { copy, .. }, Ssd::Resident { placement, sequence }) = (entry.dram, entry.ssd)
        else {
            return;
        };
        let (key, bytes, checksum) = (entry.key, entry.bytes, entry.checksum);
        let name = self.block_name(&key);
        let log = self.log.as_mut().expect("an SSD residence lies in a log");
        let target = match log.append_reinsert(&placement, &name, bytes) {
            Ok(target) => target,
            Err(AppendError::Off(_)) => return,
            Err(_) => return self.drop_from_log(id),
        };
        self.residents.entry_mut(id).ssd = Ssd::Moving { placement, sequence, target };
        self.residents.pin(copy);
        let reference = self.residents.reference(id);
        let purpose = Purpose::Move { entry: reference, copy, target };
        let order = self.write_order(purpose, copy, target, bytes, checksum);
        self.moves.push_back(order);
    }

    fn on_moved(&mut self, reference: EntryRef, target: Placement, outcome: Result<u64, i32>) {
        let moving = self.residents.resolve(reference).and_then(|id| match self.residents.entry(id).ssd {
            Ssd::Moving { target: to, .. } if to == target => Some(id),
            _ => None,
        });
        if let Some(id) = moving {
            // What is written is named by a sequence of the present life.
            self.put_again(id, Medium::Ssd);
        }
        let moving = moving.map(|id| {
            let residence = self.residents.entry(id).ssd.residence();
            let (placement, sequence) = residence.expect("what moves is a residence");
            (id, placement, sequence)
        });
        let log = self.log.as_mut().expect("moves go to a log");
        match (outcome, moving) {
            (Ok(checksum), Some((id, placement, sequence))) => {
                self.write_failures_in_a_row = 0;
                log.on_written(&target, sequence, checksum);
                log.remove(&placement);
                let origin = log.origin(&target, sequence);
                let entry = self.residents.entry_mut(id);
                entry.origin = origin;
                entry.ssd = Ssd::Resident { placement: target, sequence };
                entry.hot = false;
                self.counters.ssd_moves += 1;
            }
            (Ok(checksum), None) => {
                self.write_failures_in_a_row = 0;
                self.settle_abandoned(&target, checksum);
            }
            (Err(errno), moving) => {
                log.on_write_failed(&target);
                self.on_write_error(errno);
                if let Some((id, placement, sequence)) = moving {
                    self.residents.entry_mut(id).ssd = Ssd::Resident { placement, sequence };
                    if self.writes_back() {
                        self.drop_from_log(id);
                    }
                }
            }
        }
    }

    pub(super) fn drop_from_log(&mut self, id: EntryId) {
        self.counters.ssd_evictions += 1;
        self.end_ssd(id);
    }

    /// The next segment table to be written beside the blocks.
    pub fn poll_table(&mut self) -> Option<TableWrite> {
        self.log.as_mut()?.poll_table()
    }

    /// A segment table has been written, or not.
    pub fn on_table_written(&mut self, segment: SegmentId, written: bool) {
        if !written {
            self.counters.ssd_write_errors += 1;
        }
        self.log.as_mut().expect("tables come from a log").on_table_written(segment, written);
    }
}

enum Begun {
    Order(Order),
    NotNeeded,
    NoRoom,
}

/// What a completed write of a write-back has come to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Written {
    Settled,
    /// It failed and waits for another try.
    Again,
}
