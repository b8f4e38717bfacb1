//! Payload connections: one to each source shard, dialed when something is to be asked, closed when nothing was
//! for a while, and left alone for a pause after they were lost.

use std::collections::BTreeSet;

use orbitkv_wire::inventory::SourceStream;
use orbitkv_wire::payload::Transport;

use super::effect::{CloseCause, ConnectionId, DialId, FetcherEffect, Violation};
use super::guard::Fate;
use super::operation::Ending;
use super::order::{Place, Route, Setback, Turn};
use super::{Fetcher, Timer};
use crate::resilience::retry::{Backoff, SCATTER_STEP, scatter};
use crate::time::Moment;

/// Number of a line, unique in the life of the room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LineId(pub u64);

/// How a source is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Not, and not to be dialed before that moment.
    Closed(Moment),
    /// It is to be dialed.
    Wanted,
    Dialing(DialId),
    Open(ConnectionId),
}

/// One source shard of which something is or was wanted lately.
#[derive(Debug)]
pub(super) struct Line {
    pub source: SourceStream,
    pub reach: Reach,
    /// Whether we read in the source's arena: the driver has mapped it.
    pub is_shared: bool,
    /// Until when the source is not asked over shared memory: it has said that that is off.
    pub shares_from: Moment,
    /// What waits to be asked for.
    pub queue: BTreeSet<Turn>,
    /// Bytes of what waits.
    pub queued_bytes: u64,
    /// Operations that have not ended.
    pub operations: BTreeSet<u64>,
    /// Bytes asked for and not come.
    pub bytes: u64,
    /// Losses in a row, without an answer between.
    pub failures: u32,
    /// When it was last of use.
    pub used: Moment,
    /// When its timer looks whether it is idle.
    pub idle_due: Moment,
}

impl Line {
    fn new(source: SourceStream, now: Moment, idle_due: Moment) -> Line {
        let (queue, operations) = (BTreeSet::new(), BTreeSet::new());
        let reach = Reach::Closed(Moment(0));
        Line {
            source,
            reach,
            is_shared: false,
            shares_from: Moment(0),
            queue,
            queued_bytes: 0,
            operations,
            bytes: 0,
            failures: 0,
            used: now,
            idle_due,
        }
    }

    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.operations.is_empty()
    }

    /// Bytes that are asked for, or wait to be.
    pub fn ahead_bytes(&self) -> u64 {
        self.bytes + self.queued_bytes
    }

    /// Until when it is left alone.
    pub fn rests_until(&self, now: Moment) -> Option<Moment> {
        match self.reach {
            Reach::Closed(until) if until > now => Some(until),
            _ => None,
        }
    }
}

impl Fetcher {
    /// The line to a source. `None` if all places are taken by lines of use.
    pub(super) fn line_to(&mut self, source: SourceStream, now: Moment) -> Option<LineId> {
        if let Some(id) = self.by_source.get(&source) {
            return Some(*id);
        }
        // A dial whose line is gone is a connection to be.
        let orphans = self.dials.values().filter(|id| !self.lines.contains_key(id)).count();
        if self.lines.len() + orphans >= self.settings.connections_max {
            let spare = |(id, line): (&LineId, &Line)| {
                let is_spare = line.is_idle() && !matches!(line.reach, Reach::Dialing(_));
                is_spare.then_some((line.used, *id))
            };
            let (_, oldest) = self.lines.iter().filter_map(spare).min()?;
            self.drop_line(oldest, CloseCause::Displaced);
        }
        self.lines_made += 1;
        let id = LineId(self.lines_made);
        let idle_due = now + self.settings.idle_wait;
        self.lines.insert(id, Line::new(source, now, idle_due));
        self.by_source.insert(source, id);
        self.timers.insert((idle_due, Timer::Idle(id)));
        Some(id)
    }

    /// Puts a fetch in the queue of a line, which is dialed if it has to be.
    pub(super) fn join_queue(&mut self, id: LineId, turn: Turn, now: Moment) {
        let bytes = self.bytes_of(turn);
        let line = self.lines.get_mut(&id).expect("a line that was just found");
        line.queue.insert(turn);
        line.queued_bytes += bytes;
        line.used = now;
        if matches!(line.reach, Reach::Closed(_)) {
            line.reach = Reach::Wanted;
            self.to_dial.push_back(id);
        }
    }

    pub(super) fn leave_queue(&mut self, id: LineId, turn: Turn) {
        let bytes = self.bytes_of(turn);
        let line = self.lines.get_mut(&id).expect("a queue has its line");
        assert!(line.queue.remove(&turn), "a fetch that is queued is in its queue");
        line.queued_bytes -= bytes;
        // Otherwise it was we who had no room to ask, or to dial.
        let is_dialed = matches!(line.reach, Reach::Dialing(_));
        self.end_probe(turn.2, |probe| match is_dialed {
            true => Fate::GivenUp { quiet_since: probe.since, has_answered: false },
            false => Fate::Ours,
        });
    }

    /// Dials who waits for it, as far as dials may be pending.
    pub(super) fn dial(&mut self, now: Moment) {
        while self.dials.len() < self.settings.dials_max {
            let Some(id) = self.to_dial.pop_front() else { return };
            let line = self.lines.get_mut(&id).expect("who waits for a dial is there");
            if line.queue.is_empty() {
                line.reach = Reach::Closed(now);
                continue;
            }
            let member = self.members.get(line.source.node).expect("a line leads to a member");
            self.dials_made += 1;
            let dial = DialId(self.dials_made);
            line.reach = Reach::Dialing(dial);
            let (source, address) = (line.source, member.shard_address(line.source.shard));
            self.dials.insert(dial, id);
            self.figures.dials += 1;
            self.effects.push_back(FetcherEffect::Dial { dial, source, address });
        }
    }

    /// A dial has led to a connection. A dial that is not pending is not expected: its connection is closed.
    pub fn on_connected(&mut self, dial: DialId, connection: ConnectionId, now: Moment) {
        self.is_due = true;
        let line = self.dials.remove(&dial).and_then(|id| Some((id, self.lines.get_mut(&id)?)));
        let Some((id, line)) = line else {
            self.effects.push_back(FetcherEffect::Close { connection, cause: CloseCause::NotWanted });
            return;
        };
        assert_eq!(line.reach, Reach::Dialing(dial), "a line is dialed once at a time");
        line.reach = Reach::Open(connection);
        line.is_shared = false;
        line.used = now;
        let former = self.by_connection.insert(connection, id);
        assert!(former.is_none(), "a connection has a number of its own");
    }

    /// A dial has failed: what waited for it goes on.
    pub fn on_dial_failed(&mut self, dial: DialId, now: Moment) {
        self.is_due = true;
        self.figures.dials_failed += 1;
        let Some(id) = self.dials.remove(&dial).filter(|id| self.lines.contains_key(id)) else { return };
        self.rest_line(id, now);
        for turn in self.take_queue(id) {
            self.reroute(turn, Setback::Lost);
        }
        self.on_unreachable(self.lines[&id].source, now);
    }

    /// A dial was not made, because there was no room for it here. That says nothing of its source: what waited for
    /// it goes on, and nobody is judged.
    pub fn on_dial_given_up(&mut self, dial: DialId, now: Moment) {
        self.is_due = true;
        self.figures.dials_failed += 1;
        let Some(id) = self.dials.remove(&dial).filter(|id| self.lines.contains_key(id)) else { return };
        let line = self.lines.get_mut(&id).expect("just seen");
        line.reach = Reach::Closed(now + self.settings.redial_min);
        line.used = now;
        for turn in self.take_queue(id) {
            self.end_probe(turn.2, |_| Fate::Ours);
            self.fetches.get_mut(&turn.2).expect("a queued fetch").fail(Setback::Busy);
            self.unplace(turn.2);
        }
    }

    /// The source of a connection lets us read in its arena: what is asked from now on comes that way.
    pub fn on_shared(&mut self, connection: ConnectionId) {
        if let Some(line) = self.line_of(connection) {
            line.is_shared = true;
        }
    }

    /// The source's arena is ours to read no more: what was asked that way is asked over QUIC.
    pub fn on_unshared(&mut self, connection: ConnectionId) {
        let Some(line) = self.line_of(connection) else { return };
        line.is_shared = false;
        for number in line.operations.clone() {
            if self.operations[&number].transport == Transport::Shm {
                let parts = self.operations[&number].parts.len();
                (0..parts).for_each(|index| self.ask_over_quic(number, index));
                self.finish(number, Ending::Forget);
            }
        }
    }

    fn line_of(&mut self, connection: ConnectionId) -> Option<&mut Line> {
        self.lines.get_mut(self.by_connection.get(&connection)?)
    }

    /// A connection is gone, whoever ended it; one that the room closed is not known any more.
    pub fn on_closed(&mut self, connection: ConnectionId, now: Moment) {
        let Some(id) = self.by_connection.remove(&connection) else { return };
        self.figures.connections_lost += 1;
        self.lose_line(id, now);
    }

    /// Bytes of a stream are no frame of its operation: the connection ends.
    pub fn on_bad_frame(&mut self, connection: ConnectionId, violation: Violation, now: Moment) {
        self.close_broken(connection, violation, now);
    }

    /// Closes a connection on which the source broke the protocol.
    pub(super) fn close_broken(&mut self, connection: ConnectionId, violation: Violation, now: Moment) {
        let Some(id) = self.by_connection.remove(&connection) else { return };
        self.figures.violations += 1;
        self.effects.push_back(FetcherEffect::Close { connection, cause: violation.into() });
        self.lose_line(id, now);
    }

    /// A line whose connection is gone: it rests, what was asked on it goes on elsewhere, and what was not
    /// asked looks for a route again.
    fn lose_line(&mut self, id: LineId, now: Moment) {
        self.rest_line(id, now);
        for number in self.lines[&id].operations.clone() {
            self.judge(number, Fate::Broken);
        }
        self.end_operations(id);
        for turn in self.take_queue(id) {
            self.put_back(turn);
        }
    }

    fn rest_line(&mut self, id: LineId, now: Moment) {
        let backoff = Backoff { base: self.settings.redial_min, cap: self.settings.redial_max };
        let seed = self.origin ^ id.0;
        let line = self.lines.get_mut(&id).expect("a line that is lost");
        line.failures = line.failures.saturating_add(1);
        // Another for each core and each loss in a row, so that those of many nodes do not dial together.
        let random = scatter(seed.wrapping_add(u64::from(line.failures).wrapping_mul(SCATTER_STEP)));
        let pause = backoff.pause_after(line.failures, random);
        line.reach = Reach::Closed(now + pause);
        line.used = now;
        self.is_due = true;
    }

    /// Forgets a line, and what was asked on it with it. What waited for it looks for a route again.
    pub(super) fn drop_line(&mut self, id: LineId, cause: CloseCause) {
        if let Reach::Open(connection) = self.lines[&id].reach {
            self.by_connection.remove(&connection);
            self.effects.push_back(FetcherEffect::Close { connection, cause });
        }
        self.end_operations(id);
        for turn in self.take_queue(id) {
            self.put_back(turn);
        }
        let line = self.lines.remove(&id).expect("a line is dropped once");
        self.by_source.remove(&line.source);
        self.timers.remove(&(line.idle_due, Timer::Idle(id)));
        if line.reach == Reach::Wanted {
            self.to_dial.retain(|waiting| *waiting != id);
        }
        self.is_due = true;
    }

    /// Empties a queue. The fetches of it are nowhere until the caller has placed them.
    pub(super) fn take_queue(&mut self, id: LineId) -> BTreeSet<Turn> {
        let line = self.lines.get_mut(&id).expect("a line with a queue");
        line.queued_bytes = 0;
        std::mem::take(&mut line.queue)
    }

    /// A line may have been of no use for a while.
    pub(super) fn on_idle(&mut self, id: LineId, now: Moment) {
        let Some(line) = self.lines.get_mut(&id) else { return };
        if !line.is_idle() || matches!(line.reach, Reach::Dialing(_)) {
            line.used = now;
        }
        let due = line.used + self.settings.idle_wait;
        if due <= now {
            self.drop_line(id, CloseCause::Idle);
        } else {
            line.idle_due = due;
            self.timers.insert((due, Timer::Idle(id)));
        }
    }

    /// A fetch that was not asked for yet looks for a route again, and what it waited for is still one.
    pub(super) fn put_back(&mut self, turn: Turn) {
        self.end_probe(turn.2, |_| Fate::Ours);
        let fetch = self.fetches.get_mut(&turn.2).expect("a queued fetch");
        debug_assert!(matches!(fetch.place, Place::Queued(_)));
        let candidate = fetch.current.take().expect("a fetch that is queued has a route");
        fetch.routes.push_front(Route { candidate, not_before: Moment(0) });
        self.unplace(turn.2);
    }

    /// A fetch whose route has failed before it was asked for.
    fn reroute(&mut self, turn: Turn, setback: Setback) {
        self.report_trial(turn.2, setback.into());
        self.end_probe(turn.2, |_| Fate::Silent);
        self.fetches.get_mut(&turn.2).expect("a queued fetch").fail(setback);
        self.unplace(turn.2);
    }
}
