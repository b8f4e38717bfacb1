//! Operations begin: what waits for one source is asked for together, who has least time first, within the
//! bytes that may be on their way.

use std::collections::BTreeSet;

use orbitkv_wire::bounds::DEADLINE_MS_MAX;
use orbitkv_wire::inventory::Requester;
use orbitkv_wire::payload::{Attempt, Authorize, Binding, ExactResidence, Transport};

use super::effect::FetcherEffect;
use super::lines::{Line, LineId, Reach};
use super::operation::{Operation, Part, Stage};
use super::order::{Place, Turn};
use super::{Fetcher, FetcherSettings, Timer};
use crate::time::Moment;

impl Fetcher {
    /// Begins operations; true if more could begin.
    pub(super) fn ask(&mut self, now: Moment) -> bool {
        for _ in 0..self.settings.operations_per_turn {
            let Some(line) = self.next_to_ask() else { return false };
            self.begin_operation(line, now);
        }
        self.next_to_ask().is_some()
    }

    /// The source whose first fetch goes before those of all others. If the window has no room for it
    /// nothing goes: smaller ones would pass it for ever.
    fn next_to_ask(&self) -> Option<LineId> {
        let may_ask = |line: &Line| {
            let is_open = matches!(line.reach, Reach::Open(_));
            is_open && line.operations.len() < self.settings.operations_max
        };
        let FetcherSettings { bytes_max, source_bytes_max, .. } = self.settings;
        let first = |(id, line): (&LineId, &Line)| {
            let turn = line.queue.first().copied().filter(|_| may_ask(line))?;
            let is_due = self.is_worth_asking(line, source_bytes_max.saturating_sub(line.bytes));
            (is_due && self.fits_source(line.bytes, self.bytes_of(turn))).then_some((turn, *id))
        };
        let (turn, line) = self.lines.iter().filter_map(first).min()?;
        let room = bytes_max.saturating_sub(self.bytes_outstanding);
        let is_due = self.is_worth_asking(&self.lines[&line], room);
        (is_due && self.fits_core(self.bytes_outstanding, self.bytes_of(turn))).then_some(line)
    }

    /// Whether there is room for all that waits, or for half a source's window. Room comes back block by block; asked
    /// for so, each block would cost a request, an answer and a release of its own.
    fn is_worth_asking(&self, line: &Line, room: u64) -> bool {
        line.queued_bytes <= room || room >= self.settings.source_bytes_max / 2
    }

    pub(super) fn bytes_of(&self, turn: Turn) -> u64 {
        self.fetches[&turn.2].order.bytes
    }

    fn fits_core(&self, outstanding: u64, bytes: u64) -> bool {
        outstanding == 0 || outstanding.saturating_add(bytes) <= self.settings.bytes_max
    }

    fn fits_source(&self, outstanding: u64, bytes: u64) -> bool {
        outstanding == 0 || outstanding.saturating_add(bytes) <= self.settings.source_bytes_max
    }

    /// How the bytes of a fetch come.
    fn transport_of(&self, line: &Line, turn: Turn, now: Moment) -> Transport {
        let may_share = line.is_shared && line.shares_from <= now;
        if may_share && !self.fetches[&turn.2].needs_quic { Transport::Shm } else { Transport::Quic }
    }

    /// Which ask for its block the next one of a fetch is.
    fn attempt_of(&self, turn: Turn) -> Attempt {
        match self.fetches[&turn.2].tried {
            0 => Attempt::First,
            1 => Attempt::Second,
            _ => Attempt::Third,
        }
    }

    /// What goes into one operation: the queue in its order as far as one transport brings it, of one attempt, no
    /// block twice on one medium.
    fn batch(
        &self,
        line: &Line,
        transport: Transport,
        attempt: Attempt,
        now: Moment,
    ) -> Vec<(Turn, ExactResidence)> {
        let (mut core, mut source) = (self.bytes_outstanding, line.bytes);
        let mut named = BTreeSet::new();
        let mut batch = Vec::new();
        for turn in line.queue.iter().filter(|turn| self.attempt_of(**turn) == attempt) {
            let bytes = self.bytes_of(*turn);
            let is_full = batch.len() == self.settings.residences_max;
            let fits = self.fits_core(core, bytes) && self.fits_source(source, bytes);
            if is_full || !fits || self.transport_of(line, *turn, now) != transport {
                break;
            }
            let wanted = self.fetches[&turn.2].residence();
            if named.insert((wanted.block, wanted.medium, wanted.group, wanted.namespace)) {
                (core, source) = (core + bytes, source + bytes);
                batch.push((*turn, wanted));
            }
        }
        batch
    }

    fn begin_operation(&mut self, id: LineId, now: Moment) {
        let line = &self.lines[&id];
        let Reach::Open(connection) = line.reach else { panic!("who is asked is connected") };
        let local = self.local.as_ref().expect("who asks has a life");
        let requester = Requester { node: local.node, incarnation: local.incarnation };
        let binding = Binding { cluster: local.cluster, source: line.source, requester };
        let first = *line.queue.first().expect("who is asked has something to be asked for");
        let transport = self.transport_of(line, first, now);
        let attempt = self.attempt_of(first);
        let batch = self.batch(line, transport, attempt, now);

        self.operations_made += 1;
        let number = self.operations_made;
        let mut parts = Vec::with_capacity(batch.len());
        let mut deadline = now;
        for (index, (turn, wanted)) in batch.iter().enumerate() {
            let fetch = self.fetches.get_mut(&turn.2).expect("a queued fetch");
            deadline = deadline.max(fetch.deadline);
            fetch.place = Place::Asked { operation: number, index: index as u16 };
            let (copy, bytes) = (Some(turn.2), fetch.order.bytes);
            parts.push(Part { copy, sequence: wanted.sequence, bytes, stage: Stage::Asked });
        }
        let bytes: u64 = parts.iter().map(|part| part.bytes).sum();
        let mut carried = batch.iter().map(|(turn, _)| turn.2);
        let probe =
            carried.find_map(|copy| self.fetches.get_mut(&copy).expect("a queued fetch").probe.take());
        let call = Some(self.call(self.lines[&id].source, probe, now));
        let line = self.lines.get_mut(&id).expect("just seen");
        for (turn, _) in &batch {
            line.queue.remove(turn);
        }
        line.queued_bytes -= bytes;
        line.operations.insert(number);
        line.bytes += bytes;
        line.used = now;
        self.bytes_outstanding += bytes;
        self.figures.bytes_outstanding_peak = self.figures.bytes_outstanding_peak.max(self.bytes_outstanding);
        self.figures.operations += 1;
        self.figures.residences += parts.len() as u64;

        let stall_due = now + self.settings.stall_wait;
        self.timers.insert((stall_due, Timer::Stall(number)));
        let (wanted, open) = (parts.len(), parts.len());
        let (is_answered, is_granted) = (false, false);
        let operation = Operation {
            line: id,
            connection,
            call,
            transport,
            asked: now,
            readable_until: now,
            parts,
            gone: 0,
            is_answered,
            is_granted,
            wanted,
            open,
            progressed: now,
            stall_due,
        };
        self.operations.insert(number, operation);
        let deadline_ms = (deadline - now).as_millis().clamp(1, u128::from(DEADLINE_MS_MAX)) as u32;
        let authorize = Authorize {
            binding,
            operation: self.operation_id(number),
            deadline_ms,
            transport,
            attempt,
            residences: batch.into_iter().map(|(_, wanted)| wanted).collect(),
        };
        self.effects.push_back(FetcherEffect::Authorize { connection, authorize });
    }
}
