//! Whether the SSD is asked at all: a breaker in front of this shard's part of it (chapter 5, pattern 2).
//!
//! A read is a call. It has failed if the device says so or has not answered within the budget of a read; whoever looks
//! at the device says when that was ([`Shard::on_device_seen`]), so a core that stood still itself blames nobody for
//! it. A write is a call, too, and fails by an error alone: nobody waits for one. Wrong bytes are an answer; their
//! place is retired by the log.
//!
//! While the breaker is open no read is ordered, and none waits: what an Acquire wants goes to a peer or is a miss, a peer
//! hears busy at once. Write-backs wait, which saves feel when DRAM is full of what is not written yet. After the pause
//! the first operation that is wanted is the probe, alone: a read; or a write-back once no read was wanted for as long
//! again, for a node that only saves would else wait for ever. A probe that does not come back is a failed one, and
//! there is no other before it has.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use orbitkv_wire::engine::answers::BlockOutcome;

use super::recover::{FillPurpose, Waiter, refusal};
use super::{Shard, TransferId};
use crate::key::EntryId;
use crate::residents::{CopyId, Dram};
use crate::resilience::breaker::{
    Admission, Breaker, Change, OPEN_FOR, Outcome, Phase, Rule, Ticket, WINDOW_CALLS, WINDOW_CALLS_MAX,
};
use crate::time::Moment;

/// What a read may take: some hundred times what a loaded device needs for one, and less than engines wait.
pub const READ_BUDGET: Duration = Duration::from_secs(2);

/// When the device of a shard is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceGuardSettings {
    /// Percentage of the last operations that must have failed, at most 100. With 0 it is never left alone.
    pub failed_percent: u32,
    /// Operations that are looked back on, 1 to [`WINDOW_CALLS_MAX`].
    pub window_calls: u32,
    /// How long it is left alone before it is probed.
    pub open_for: Duration,
    /// How long a read may take.
    pub read_budget: Duration,
}

impl Default for DeviceGuardSettings {
    fn default() -> DeviceGuardSettings {
        DeviceGuardSettings {
            failed_percent: 50,
            window_calls: WINDOW_CALLS,
            open_for: OPEN_FOR,
            read_budget: READ_BUDGET,
        }
    }
}

/// How the breaker of a device stands, and what it has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceStanding {
    /// How it stands.
    pub phase: Phase,
    /// How often it has opened.
    pub opens: u64,
    /// Operations that went out as the only one.
    pub probes: u64,
    /// Blocks on SSD that were asked for and not read because of it.
    pub barred: u64,
    /// Reads that took longer than their budget.
    pub late_reads: u64,
}

/// A read that the device has.
#[derive(Debug)]
struct OutRead {
    since: Moment,
    /// None once it is judged.
    ticket: Option<Ticket>,
}

/// The breaker of a shard's part of the SSD and what it has let out.
#[derive(Debug)]
pub(super) struct DeviceGuard {
    read_budget: Duration,
    open_for: Duration,
    /// None if the device is never left alone.
    breaker: Option<Breaker>,
    /// The latest moment that was told.
    heard: Moment,
    /// When the pause after the last opening ends.
    until: Moment,
    reads: BTreeMap<TransferId, OutRead>,
    writes: BTreeMap<TransferId, Ticket>,
    /// The last probe, until the device gives it back.
    probe: Option<TransferId>,
    probes: u64,
    barred: u64,
    late_reads: u64,
    /// Changes that nobody has been told of; the oldest go first.
    news: VecDeque<Change>,
}

/// Changes that are kept for whoever tells them; with the shortest pause, those of the last second.
const NEWS_MAX: usize = 200;

impl DeviceGuard {
    /// # Panics
    /// If a bound is not kept.
    pub fn new(settings: DeviceGuardSettings) -> DeviceGuard {
        let DeviceGuardSettings { failed_percent, window_calls, open_for, read_budget } = settings;
        assert!(failed_percent <= 100, "a percentage");
        assert!((1..=WINDOW_CALLS_MAX).contains(&window_calls), "a window of operations");
        let threshold = f64::from(failed_percent) / 100.0;
        let breaker =
            (failed_percent > 0).then(|| Breaker::new(Rule::Share { window_calls, threshold }, open_for));
        DeviceGuard {
            read_budget,
            open_for,
            breaker,
            heard: Moment(0),
            until: Moment(0),
            reads: BTreeMap::new(),
            writes: BTreeMap::new(),
            probe: None,
            probes: 0,
            barred: 0,
            late_reads: 0,
            news: VecDeque::new(),
        }
    }

    fn phase(&self) -> Phase {
        self.breaker.as_ref().map_or(Phase::Closed, |breaker| breaker.phase(self.heard))
    }

    pub fn is_closed(&self) -> bool {
        self.phase() == Phase::Closed
    }

    /// Whether the next operation may be the probe.
    fn takes_probe(&self) -> bool {
        let is_probing = self.breaker.as_ref().is_some_and(Breaker::is_probing);
        self.phase() == Phase::HalfOpen && !is_probing && self.probe.is_none()
    }

    /// From when on a write may be the probe.
    fn write_probe_at(&self) -> Moment {
        self.until + self.open_for
    }

    /// Whether a write may be ordered that no read goes before.
    pub fn takes_write(&self) -> bool {
        self.is_closed() || self.takes_probe() && self.heard >= self.write_probe_at()
    }

    /// The ticket of an operation that is ordered now; none if nothing is judged.
    fn ticket_of(&mut self, id: TransferId) -> Option<Ticket> {
        match self.breaker.as_mut()?.admit(self.heard) {
            Admission::Pass(ticket) => Some(ticket),
            Admission::Probe(ticket) => {
                self.probe = Some(id);
                self.probes += 1;
                Some(ticket)
            }
            Admission::Reject { .. } => panic!("asked before whether it may be ordered"),
        }
    }

    /// A read is ordered that was asked about.
    pub fn begin_read(&mut self, id: TransferId) {
        if let Some(ticket) = self.ticket_of(id) {
            self.reads.insert(id, OutRead { since: self.heard, ticket: Some(ticket) });
        }
    }

    /// A write is ordered that was asked about.
    pub fn begin_write(&mut self, id: TransferId) {
        if let Some(ticket) = self.ticket_of(id) {
            self.writes.insert(id, ticket);
        }
    }

    /// Whether this is the operation that was let out to see how the device is.
    pub fn is_probe(&self, id: TransferId) -> bool {
        self.probe == Some(id)
    }

    /// The device has given an operation back.
    fn on_done(&mut self, id: TransferId, failed: bool) -> Option<Change> {
        if self.is_probe(id) {
            self.probe = None;
        }
        let read = self.reads.remove(&id).and_then(|read| read.ticket);
        let ticket = read.or_else(|| self.writes.remove(&id))?;
        self.record(ticket, if failed { Outcome::Failure } else { Outcome::Success })
    }

    /// Judges a read that is out for longer than its budget; none is left when it says so.
    fn judge_late(&mut self) -> Option<Option<Change>> {
        let (heard, budget) = (self.heard, self.read_budget);
        let mut late = self.reads.values_mut().filter(|read| heard.since(read.since) >= budget);
        let ticket = late.find_map(|read| read.ticket.take())?;
        self.late_reads += 1;
        Some(self.record(ticket, Outcome::Failure))
    }

    fn record(&mut self, ticket: Ticket, outcome: Outcome) -> Option<Change> {
        let change = self.breaker.as_mut()?.record(ticket, outcome, self.heard)?;
        if let Change::Opened { until } = change {
            self.until = until;
        }
        if self.news.len() == NEWS_MAX {
            self.news.pop_front();
        }
        self.news.push_back(change);
        Some(change)
    }

    /// When something is to be judged, or a write may be the probe though nothing else happens.
    fn next_deadline(&self, writes_wait: bool) -> Option<Moment> {
        let late = self.reads.values().find(|read| read.ticket.is_some());
        let late = late.map(|read| read.since + self.read_budget);
        let probe = (writes_wait && !self.is_closed()).then(|| self.write_probe_at());
        // One that has passed waits for the device or for a probe, and those wake the core by themselves.
        late.into_iter().chain(probe.filter(|probe| *probe > self.heard)).min()
    }

    fn standing(&self) -> DeviceStanding {
        DeviceStanding {
            phase: self.phase(),
            opens: self.breaker.as_ref().map_or(0, Breaker::opens),
            probes: self.probes,
            barred: self.barred,
            late_reads: self.late_reads,
        }
    }
}

impl Shard {
    /// Tells what time it is: before the device's completions of a turn, and before anything is asked of it.
    pub fn hear(&mut self, now: Moment) {
        self.device_guard.heard = self.device_guard.heard.max(now);
    }

    /// The latest moment that was told.
    pub(super) fn heard(&self) -> Moment {
        self.device_guard.heard
    }

    /// All that the device had completed by the last moment told has been reported: what it still has of before
    /// then is late.
    pub fn on_device_seen(&mut self) {
        while let Some(change) = self.device_guard.judge_late() {
            self.on_device_change(change);
        }
    }

    /// What became of the device's breaker, oldest first.
    pub fn poll_device_change(&mut self) -> Option<Change> {
        self.device_guard.news.pop_front()
    }

    /// How the device's breaker stands.
    #[must_use]
    pub fn device_standing(&self) -> DeviceStanding {
        self.device_guard.standing()
    }

    /// An operation is over, whatever came of it for the block.
    pub(super) fn on_device_done(&mut self, id: TransferId, failed: bool) {
        let change = self.device_guard.on_done(id, failed);
        self.on_device_change(change);
    }

    pub(super) fn device_deadline(&self) -> Option<Moment> {
        self.device_guard.next_deadline(!self.write_queue.is_empty() || !self.moves.is_empty())
    }

    /// Whether the device is given a read that is wanted now. With the breaker half-open one read may wait to be
    /// the probe.
    pub(super) fn admits_reads(&self) -> bool {
        self.device_guard.is_closed() || self.device_guard.takes_probe() && self.fill_queue.is_empty()
    }

    /// Whether room is made in the log, and written to: the tier takes blocks, and its device is not left alone or may
    /// be tried by a write.
    pub(super) fn writes_flow(&self) -> bool {
        self.writes_back() && self.device_guard.takes_write()
    }

    /// Whether a block is on SSD alone, and that is not read now.
    pub(super) fn is_barred(&self, id: EntryId) -> bool {
        let entry = self.residents.entry(id);
        entry.dram == Dram::Absent && entry.ssd.residence().is_some() && !self.admits_reads()
    }

    pub(super) fn count_barred(&mut self) {
        self.device_guard.barred += 1;
    }

    /// When a peer that wants a block on SSD alone should ask again.
    pub(super) fn device_rest(&self) -> Duration {
        self.device_guard.until.since(self.device_guard.heard)
    }

    fn on_device_change(&mut self, change: Option<Change>) {
        if let Some(Change::Opened { .. }) = change {
            self.clear_reads();
        }
    }

    /// Reads that the device has not been given go on elsewhere, or end.
    fn clear_reads(&mut self) {
        for (_, copy) in std::mem::take(&mut self.fill_queue) {
            if self.is_audited(copy) {
                self.end_audit();
            } else if !self.fail_stage(copy) {
                self.clear_fill(copy);
            }
        }
    }

    fn clear_fill(&mut self, copy: CopyId) {
        let fill = self.fills.get_mut(&copy).expect("what is queued is read for a stage or a fill");
        let (waiters, purpose) = (std::mem::take(&mut fill.waiters), fill.purpose);
        let shown = self.filling_entry(&self.fills[&copy], copy);
        let wanted = shown.map(|id| (self.residents.entry(id).key, self.residents.entry(id).hash));
        let entry = shown.map(|id| self.residents.reference(id));
        self.abandon_fill(copy, BlockOutcome::DeviceError);
        // The very failure that opened it may have ended the residence, and with the fill the entry.
        let left = entry.and_then(|entry| self.residents.resolve(entry));
        let left = left.filter(|&id| self.residents.entry(id).ssd.residence().is_some());
        if let (Some(id), FillPurpose::Reinsert) = (left, purpose) {
            // The log gives up the segment it lies in.
            self.drop_from_log(id);
        }
        for Waiter { tag, index, share } in waiters {
            self.count_barred();
            let token = share.token();
            self.leases.unreserve(share);
            match wanted.filter(|_| self.fetches.peers) {
                Some((key, hash)) => self.seek(tag, index, key, hash, token),
                None => {
                    self.counters.misses += 1;
                    self.decide(tag, refusal(index, BlockOutcome::Missing));
                }
            }
        }
    }
}
