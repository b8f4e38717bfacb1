//! Operations begin: what waits for one source is asked for together, who has least time first, within the
//! bytes that may be on their way.

use std::collections::BTreeSet;
use std::time::Duration;

use orbitkv_wire::bounds::DEADLINE_MS_MAX;
use orbitkv_wire::inventory::Requester;
use orbitkv_wire::payload::{Attempt, Authorize, Binding, ExactResidence, Transport};

use super::background::is_background;
use super::effect::FetcherEffect;
use super::lines::{Line, LineId, Reach};
use super::operation::{Operation, Part, Stage, Talk};
use super::order::{Place, Turn};
use super::settings::SOURCE_GRACE;
use super::{FETCH_TIME_MAX, Fetcher, FetcherSettings, Timer};
use crate::resilience::deadline::Step;
use crate::resilience::gate::Class;
use crate::time::Moment;

/// Part of a burst that is saved up before anything is asked for: each request has its answer and its release.
const SAVED_PART: u64 = 2;

/// Whether something can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Of this source.
    Of(LineId),
    /// Not before that moment, for the rate alone.
    Paced(Moment),
    Nothing,
}

impl Fetcher {
    /// Begins operations; true if more could begin.
    pub(super) fn ask(&mut self, now: Moment) -> bool {
        let mut next = self.next_to_ask(now);
        for _ in 0..self.settings.operations_per_turn {
            let Next::Of(line) = next else { break };
            self.begin_operation(line, now);
            next = self.next_to_ask(now);
        }
        match next {
            Next::Paced(until) => {
                self.paced_until = Some(until);
                // While somebody waits the rate holds back nothing else.
                if self.demand_waits() {
                    self.paced.begin(now);
                } else {
                    self.paced.end(now);
                }
            }
            Next::Of(_) | Next::Nothing => {
                self.paced_until = None;
                self.paced.end(now);
            }
        }
        matches!(next, Next::Of(_))
    }

    /// The source whose first fetch goes before those of all others. If the window has no room for it
    /// nothing goes: smaller ones would pass it for ever. What the rate holds back holds up nothing that comes over
    /// shared memory.
    fn next_to_ask(&self, now: Moment) -> Next {
        let may_ask = |line: &Line| {
            let is_open = matches!(line.reach, Reach::Open(_));
            is_open && line.operations.len() < self.settings.operations_max
        };
        let FetcherSettings { bytes_max, source_bytes_max, .. } = self.settings;
        let mut paced_until: Option<Moment> = None;
        let first = |(id, line): (&LineId, &Line)| {
            let turn = line.queue.first().copied().filter(|_| may_ask(line))?;
            if is_background(turn) && !self.may_ask_background(line, turn) {
                return None;
            }
            let is_due = self.is_worth_asking(line, turn, source_bytes_max.saturating_sub(line.bytes));
            if !is_due || !self.fits_source(line.bytes, self.bytes_of(turn)) {
                return None;
            }
            if let Some(until) = self.paced_until(line, turn, now) {
                paced_until = Some(paced_until.map_or(until, |other| other.min(until)));
                return None;
            }
            Some((turn, *id))
        };
        let Some((turn, line)) = self.lines.iter().filter_map(first).min() else {
            return paced_until.map_or(Next::Nothing, Next::Paced);
        };
        let outstanding = self.window.in_use_bytes();
        let room = bytes_max.saturating_sub(outstanding);
        let is_due = self.is_worth_asking(&self.lines[&line], turn, room);
        if is_due && self.fits_core(outstanding, self.bytes_of(turn)) {
            Next::Of(line)
        } else {
            Next::Nothing
        }
    }

    /// Until when the rate keeps a source from being asked, if it does.
    fn paced_until(&self, line: &Line, turn: Turn, now: Moment) -> Option<Moment> {
        let pacer = self.pacer.as_ref()?;
        if self.transport_of(line, turn, now) == Transport::Shm {
            return None;
        }
        let wanted = if is_background(turn) { line.queued_bytes } else { self.demanded_bytes(line) };
        let saved = wanted.min(pacer.burst_bytes() / SAVED_PART);
        let until = pacer.ready_at(saved.max(self.bytes_of(turn)));
        (until > now).then_some(until)
    }

    /// Bytes that the rate lets an operation ask for beside its first block.
    fn paced_room(&self, transport: Transport, now: Moment) -> u64 {
        let pacer = self.pacer.as_ref().filter(|_| transport == Transport::Quic);
        pacer.map_or(u64::MAX, |pacer| pacer.room(now))
    }

    /// Whether there is room for all that waits, or for half a source's window. Room comes back block by block; asked
    /// for so, each block would cost a request, an answer and a release of its own.
    fn is_worth_asking(&self, line: &Line, first: Turn, room: u64) -> bool {
        // What nobody waits for goes as it can, and holds nobody up.
        is_background(first)
            || self.demanded_bytes(line) <= room
            || room >= self.settings.source_bytes_max / 2
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
        let (mut core, mut source) = (self.window.in_use_bytes(), line.bytes);
        let (paced_room, mut taken) = (self.paced_room(transport, now), 0);
        let mut background = self.background_bytes;
        let class = line.queue.first().map(|turn| turn.0.0);
        let mut named = BTreeSet::new();
        let mut batch = Vec::new();
        for turn in line.queue.iter().filter(|turn| self.attempt_of(**turn) == attempt) {
            let bytes = self.bytes_of(*turn);
            let is_full = batch.len() == self.settings.residences_max;
            let is_paced = taken > 0 && taken + bytes > paced_room;
            let fits = self.fits_core(core, bytes) && self.fits_source(source, bytes) && !is_paced;
            let is_same = Some(turn.0.0) == class && self.transport_of(line, *turn, now) == transport;
            if is_background(*turn) {
                background += bytes;
            }
            let has_share = !is_background(*turn) || background <= self.settings.background_bytes_max;
            if is_full || !fits || !is_same || !has_share {
                break;
            }
            let wanted = self.fetches[&turn.2].residence();
            if named.insert((wanted.block, wanted.medium, wanted.group, wanted.namespace)) {
                (core, source, taken) = (core + bytes, source + bytes, taken + bytes);
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
        let class = first.0.0;
        // A source serves first who has least time: what nobody waits for names as much as anybody, and ends here in
        // its own.
        let mut deadline = if class == Class::Background { now + FETCH_TIME_MAX } else { now };
        for (index, (turn, wanted)) in batch.iter().enumerate() {
            let fetch = self.fetches.get_mut(&turn.2).expect("a queued fetch");
            deadline = deadline.max(fetch.deadline);
            fetch.place = Place::Asked { operation: number, index: index as u16 };
            fetch.clock.enter(Step::Authorize, now);
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
        self.window.issue(number, bytes);
        if let Some(pacer) = self.pacer.as_mut().filter(|_| transport == Transport::Quic) {
            pacer.take(bytes, now);
        }
        if class == Class::Background {
            self.background_bytes += bytes;
            self.figures.background_bytes_peak =
                self.figures.background_bytes_peak.max(self.background_bytes);
        }
        self.figures.bytes_outstanding_peak =
            self.figures.bytes_outstanding_peak.max(self.window.in_use_bytes());
        self.figures.operations += 1;
        self.figures.residences += parts.len() as u64;

        let stall_due = now + self.settings.stall_wait;
        // Rounded up and with something more: it ends here before its source says that it has, and what was read of
        // its memory is let go in time.
        let deadline_ms = (deadline - now + SOURCE_GRACE).as_nanos().div_ceil(1_000_000);
        let deadline_ms = deadline_ms.clamp(1, u128::from(DEADLINE_MS_MAX)) as u32;
        let (wanted, open) = (parts.len(), parts.len());
        let operation = Operation {
            line: id,
            connection,
            call,
            class,
            transport,
            asked: now,
            over_at: now + Duration::from_millis(u64::from(deadline_ms)),
            parts,
            gone: 0,
            talk: Talk::Asked,
            is_granted: false,
            wanted,
            open,
            progressed: now,
            stall_due,
        };
        self.operations.insert(number, operation);
        let stall_due = self.next_limit(number, now).map_or(stall_due, |limit| limit.min(stall_due));
        self.operations.get_mut(&number).expect("just inserted").stall_due = stall_due;
        self.timers.insert((stall_due, Timer::Stall(number)));
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
