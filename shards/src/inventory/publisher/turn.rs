//! A turn of a publisher: what leaves now, in which order, and how much of it.
//!
//! First what is due by time, then signs of life, all of a core in one turn; then answers; then deltas,
//! the session served least first, a frame each; then, if no delta waits for pacing, snapshots likewise.
//! A turn reads and encodes a bounded slice and says whether more is due.

use std::rc::Rc;
use std::time::Duration;

use orbitkv_wire::identity::{Sequence, SnapshotId};
use orbitkv_wire::inventory::{FromSource, HEADER_BYTES, ResetCause, Resume};

use super::frame::{MESSAGE_BYTES_MAX, SharedBody};
use super::intervals::{Next, Place, Reading};
use super::outlet::Stamp;
use super::residences::{Residences, Source};
use super::scan::{PageBounds, Scan, Step};
use super::session::{Class, Phase, Stage, State, View};
use super::settings::{PERMIT_IDLE, STALL_AFTER};
use super::slice::Slice;
use super::{CloseCause, Life, Publisher, PublisherEffect, Violation, session_of};
use crate::inventory::ConnectionId;
use crate::time::Moment;

/// What serving one session came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Served {
    /// A frame left, or its state moved: it may have more.
    Moved,
    /// Nothing can leave for it now.
    Idle,
    /// It waits for pacing, and so does everybody behind it.
    Paced,
}

/// What a turn passes around.
struct Turn<'a, 's, R> {
    source: &'a Source<'s, R>,
    slice: Slice,
    head: Sequence,
    now: Moment,
    /// Something became due that this turn has passed already.
    more: bool,
}

impl<R> Turn<'_, '_, R> {
    fn stamp(&self) -> Stamp {
        Stamp { head: self.head, now: self.now }
    }
}

impl Publisher {
    /// Does what is due now, as far as one slice goes; returns whether more is. Wants to be called after
    /// the journal has grown, after any input, and at [`Publisher::next_deadline`]. `draw` is randomness
    /// for the id of at most one snapshot.
    ///
    /// # Panics
    /// If the journal restarted without [`Publisher::on_fenced`].
    pub fn turn<R: Residences>(&mut self, source: &Source<'_, R>, draw: u128, now: Moment) -> bool {
        if self.life == Life::Fenced {
            return false;
        }
        let head = source.journal.head();
        // Every connection is looked at in a turn: only when something can come of it.
        if !self.due && head == self.head_seen && self.deadline.is_none_or(|deadline| now < deadline) {
            let missed = self.earliest_deadline().filter(|deadline| *deadline <= now);
            debug_assert_eq!(missed, None, "what changes a deadline makes a turn due");
            return false;
        }
        let slice = Slice::new(self.settings.slice_records, self.settings.slice_bytes);
        let mut turn = Turn { source, slice, head, now, more: false };
        self.paced_until = None;
        self.pool_waits_until = None;
        self.expose_through(head, now);
        self.expire(now);
        self.beat(turn.stamp());
        self.answer(&mut turn, draw);
        if !self.serve_class(Class::Deltas, &mut turn) {
            self.serve_class(Class::Snapshots, &mut turn);
        }
        self.forget_passed();
        self.assert_invariants();
        self.due = turn.more;
        self.head_seen = head;
        self.deadline = self.earliest_deadline();
        turn.more
    }

    /// Lets what waits for others be encoded once it has waited long enough, fills a delta, or is wanted.
    fn expose_through(&mut self, head: Sequence, now: Moment) {
        assert!(head >= self.exposed, "the journal restarted in the midst of a life");
        let wanted = std::mem::take(&mut self.expose_now);
        if head == self.exposed {
            return;
        }
        let since = *self.waits_since.get_or_insert(now);
        let is_full = head.0 - self.exposed.0 >= self.settings.delta_records_max as u64;
        if wanted || is_full || now >= since + self.settings.coalescing_window {
            self.exposed = head;
            self.waits_since = None;
            self.outlet.figures.on_exposed(now.since(since));
        }
    }

    /// What ends by time: greetings, rests, idle permits.
    fn expire(&mut self, now: Moment) {
        let ids: Vec<_> = (self.connections.iter())
            .filter(|(_, connection)| match &connection.state {
                State::Greeting { until } => *until <= now,
                State::Open(session) => match session.phase {
                    Phase::Resting { until } => until <= now,
                    Phase::Permitted { idle_since, .. } => idle_since + PERMIT_IDLE <= now,
                    _ => false,
                },
            })
            .map(|(&id, _)| id)
            .collect();
        for id in ids {
            match self.connections.get_mut(&id).map(|connection| &mut connection.state) {
                Some(State::Open(session)) if matches!(session.phase, Phase::Resting { .. }) => {
                    let phase = self.bootstrap(Duration::ZERO, now);
                    self.session(id).phase = phase;
                }
                Some(State::Open(_)) => self.fail_snapshot(id, ResetCause::SnapshotExpired),
                _ => self.close(id, CloseCause::Silent),
            }
        }
    }

    /// Signs of life for sessions in which nothing else left.
    fn beat(&mut self, stamp: Stamp) {
        for (&id, connection) in &mut self.connections {
            if let State::Open(session) = &mut connection.state
                && !connection.blocked
                && session.outbox.is_empty()
                && session.beat_at() <= stamp.now
            {
                self.outlet.send_liveness(id, session, self.summary, stamp);
            }
        }
    }

    /// Serves everybody to whom an answer is due. Only one snapshot can be begun with one draw.
    fn answer<R: Residences>(&mut self, turn: &mut Turn<'_, '_, R>, draw: u128) {
        let mut draw = Some(draw);
        let due: Vec<_> = (self.sessions())
            .filter(|(id, session)| {
                session.class(self.exposed) == Some(Class::Answers) && !self.connections[id].blocked
            })
            .map(|(id, _)| id)
            .collect();
        for id in due {
            if !self.connections.contains_key(&id) {
                continue; // it gave way to one before it
            }
            match &self.session(id).phase {
                &Phase::Resuming(resume) => self.resume(id, resume, turn),
                &Phase::Resetting { cause, rest } => self.tell_reset(id, cause, rest, turn),
                &Phase::Waiting { ticket, untold: Some(position) } => {
                    if self.send_message(id, &FromSource::SnapshotQueued { position }, turn) {
                        self.session(id).phase = Phase::Waiting { ticket, untold: None };
                    }
                }
                Phase::Permitted { stage: Stage::Granted, .. } if draw.is_some() => {
                    if self.begin_snapshot(id, draw.expect("asked before"), turn) {
                        draw = None;
                    }
                }
                Phase::Permitted { .. } => turn.more = true,
                Phase::Following { .. } | Phase::Resting { .. } | Phase::Waiting { .. } => {}
            }
        }
    }

    fn resume<R: Residences>(&mut self, id: ConnectionId, resume: Resume, turn: &mut Turn<'_, '_, R>) {
        let Resume { view, sequence } = resume;
        if sequence > turn.head {
            let violation = Violation::BeyondHead { found: sequence, head: turn.head };
            self.close(id, CloseCause::Protocol(violation));
        } else if sequence.0 + 1 < turn.source.journal.oldest().0 {
            let (cause, rest) = (ResetCause::HistoryGone, Duration::ZERO);
            self.session(id).phase = Phase::Resetting { cause, rest };
            self.tell_reset(id, cause, rest, turn);
        } else if self.send_message(id, &FromSource::Resumed { view, sequence }, turn) {
            self.outlet.figures.sessions_resumed += 1;
            let session = self.session(id);
            session.view = Some(View { id: view, sent: sequence, applied: sequence });
            session.follow(sequence, turn.now);
        }
    }

    fn tell_reset<R: Residences>(
        &mut self,
        id: ConnectionId,
        cause: ResetCause,
        rest: Duration,
        turn: &mut Turn<'_, '_, R>,
    ) {
        if self.send_message(id, &FromSource::ResetRequired { cause }, turn) {
            *self.outlet.figures.resets.entry(cause).or_default() += 1;
            let phase = self.bootstrap(rest, turn.now);
            self.session(id).phase = phase;
        }
    }

    fn begin_snapshot<R: Residences>(
        &mut self,
        id: ConnectionId,
        draw: u128,
        turn: &mut Turn<'_, '_, R>,
    ) -> bool {
        let scope = self.session(id).scope();
        let filter = self.scopes.filter(scope, turn.source.namespaces);
        let scan = Scan::new(SnapshotId(draw.to_be_bytes()), filter, turn.source);
        let message = FromSource::SnapshotBegin {
            snapshot: scan.snapshot,
            after: scan.after,
            rows_max: scan.rows_max,
            bytes: scan.bytes_max(),
        };
        let has_left = self.send_message(id, &message, turn);
        if has_left {
            self.outlet.figures.snapshots_begun += 1;
            if let Phase::Permitted { stage, .. } = &mut self.session(id).phase {
                *stage = Stage::Offered(Box::new(scan));
            }
        }
        has_left
    }

    /// Serves the sessions of a class, a frame each and the one served least first, until nothing can
    /// leave; returns whether pacing stopped it.
    fn serve_class<R: Residences>(&mut self, class: Class, turn: &mut Turn<'_, '_, R>) -> bool {
        loop {
            let mut due = self.due(class);
            due.sort_unstable();
            let mut has_moved = false;
            for (served_bytes, id) in due {
                if turn.slice.is_spent() {
                    turn.more = true;
                    return false;
                }
                if !self.connections.contains_key(&id) {
                    continue; // it gave way to one before it
                }
                let floor = &mut self.served_floor[class as usize];
                *floor = served_bytes.max(*floor);
                self.session(id).served_bytes = served_bytes;
                let served = match class {
                    Class::Deltas => self.serve_delta(id, turn),
                    Class::Snapshots => self.serve_snapshot(id, turn),
                    Class::Answers => unreachable!("answers are not served in turns"),
                };
                match served {
                    Served::Moved => has_moved = true,
                    Served::Idle => {}
                    Served::Paced => return true,
                }
            }
            if !has_moved {
                turn.more |= turn.slice.is_spent();
                return false;
            }
        }
    }

    /// Sessions of a class to which something is due, with how much they were served. One that was idle
    /// does not save up: it counts as served as much as the one served last.
    fn due(&mut self, class: Class) -> Vec<(u64, ConnectionId)> {
        let floor = self.served_floor[class as usize];
        let mut due = Vec::new();
        for (&id, connection) in &mut self.connections {
            if let State::Open(session) = &mut connection.state
                && session.class(self.exposed) == Some(class)
            {
                // Found again when it is served; until then another deadline brings the turn.
                session.quiet_through = None;
                if connection.blocked {
                    session.held_through = self.exposed;
                } else {
                    due.push((session.served_bytes.max(floor), id));
                }
            }
        }
        due
    }

    /// The next delta, or progress over nothing.
    fn serve_delta<R: Residences>(&mut self, id: ConnectionId, turn: &mut Turn<'_, '_, R>) -> Served {
        let Phase::Following { told } = self.session(id).phase else { return Served::Idle };
        match self.next_interval(id, told, turn) {
            Next::Delta { through, body } => {
                let served = self.send_shared(id, &body, turn);
                if served == Served::Moved {
                    self.session(id).tell(through, turn.now);
                }
                served
            }
            Next::Quiet { through } if through > told => {
                let session = self.session(id);
                let is_due = session.is_progress_due(through, turn.now);
                // One that is due and cannot leave waits for credit or room, not for a time.
                session.quiet_through = (!is_due).then_some(through);
                if is_due && self.send_message(id, &FromSource::Progress { through }, turn) {
                    self.session(id).tell(through, turn.now);
                }
                Served::Idle
            }
            Next::Quiet { .. } | Next::NoCredit | Next::NoRoom => Served::Idle,
            Next::HistoryGone => {
                let session = self.session(id);
                let cause = if told < session.held_through {
                    ResetCause::SlowSubscriber
                } else {
                    ResetCause::HistoryGone
                };
                session.phase = Phase::Resetting { cause, rest: Duration::ZERO };
                session.quiet_through = None;
                self.tell_reset(id, cause, Duration::ZERO, turn);
                Served::Idle
            }
        }
    }

    /// The next page, replay delta, or the commit.
    fn serve_snapshot<R: Residences>(&mut self, id: ConnectionId, turn: &mut Turn<'_, '_, R>) -> Served {
        let session = self.session(id);
        let Phase::Permitted { stage, .. } = &session.phase else { return Served::Idle };
        match stage {
            Stage::Scanning(scan) if scan.after.0 + 1 < turn.source.journal.oldest().0 => {
                self.abort_snapshot(id, ResetCause::HistoryGone, turn);
                Served::Idle
            }
            Stage::Scanning(_) => self.serve_page(id, turn),
            &Stage::Replaying { cursor, target, .. } if cursor >= target => self.commit(id, cursor, turn),
            &Stage::Replaying { cursor, target, .. } => self.serve_replay(id, cursor, target, turn),
            Stage::Granted | Stage::Offered(_) => Served::Idle,
        }
    }

    fn serve_page<R: Residences>(&mut self, id: ConnectionId, turn: &mut Turn<'_, '_, R>) -> Served {
        let session = self.session(id);
        let scope = session.scope();
        let frame_bytes_max = session.frame_bytes_max.min(HEADER_BYTES + self.settings.page_bytes_max);
        match self.may_leave(id, frame_bytes_max, turn.now) {
            Served::Moved => {}
            other => return other,
        }
        if !self.has_room(frame_bytes_max, id, turn.now) {
            return Served::Idle;
        }
        let bounds = PageBounds {
            records_max: self.settings.page_records_max,
            body_bytes_max: frame_bytes_max - HEADER_BYTES,
        };
        let filter = self.scopes.filter(scope, turn.source.namespaces);
        let session = session_of(&mut self.connections, id);
        let Phase::Permitted { idle_since, stage, .. } = &mut session.phase else { return Served::Idle };
        let Stage::Scanning(scan) = stage else { return Served::Idle };
        match scan.step(filter, turn.source, bounds, self.intervals.writer()) {
            Step::Page(body) => {
                *idle_since = turn.now;
                turn.slice.charge_records(body.count as usize);
                turn.slice.charge_bytes(body.bytes.len());
                self.outlet.figures.on_encoded(&body);
                let body = SharedBody::charge(body, &self.outlet.pool).expect("there was room");
                self.outlet.send(id, session, body, turn.stamp());
            }
            Step::Whole => {
                if let Stage::Scanning(scan) = std::mem::replace(stage, Stage::Granted) {
                    let cursor = scan.after;
                    *stage = Stage::Replaying { scan, cursor, target: turn.head };
                }
                turn.slice.charge_records(1);
            }
            Step::Overgrown => self.abort_snapshot(id, ResetCause::Overload, turn),
        }
        Served::Moved
    }

    fn serve_replay<R: Residences>(
        &mut self,
        id: ConnectionId,
        cursor: Sequence,
        target: Sequence,
        turn: &mut Turn<'_, '_, R>,
    ) -> Served {
        let (body, through) = match self.next_interval(id, cursor, turn) {
            Next::Delta { through, body } => (body, through),
            Next::Quiet { through } if through >= target => {
                // The rest of the replay is empty; the receiver is to see that nothing is missing.
                let body = self.intervals.empty_delta(cursor, through);
                let Some(body) = SharedBody::charge(body, &self.outlet.pool) else { return Served::Idle };
                (body, through)
            }
            Next::Quiet { .. } | Next::NoCredit | Next::NoRoom => return Served::Idle,
            Next::HistoryGone => {
                self.abort_snapshot(id, ResetCause::HistoryGone, turn);
                return Served::Idle;
            }
        };
        let served = self.send_shared(id, &body, turn);
        if served == Served::Moved {
            self.outlet.figures.replay_bytes_sent += body.frame_bytes() as u64;
            if let Phase::Permitted { idle_since, stage, .. } = &mut self.session(id).phase
                && let Stage::Replaying { scan, cursor, .. } = stage
            {
                *idle_since = turn.now;
                *cursor = through;
                scan.transcript.absorb(body.bytes());
            }
        }
        served
    }

    fn commit<R: Residences>(
        &mut self,
        id: ConnectionId,
        through: Sequence,
        turn: &mut Turn<'_, '_, R>,
    ) -> Served {
        let session = self.session(id);
        let Phase::Permitted { ticket, stage: Stage::Replaying { scan, .. }, .. } = &session.phase else {
            return Served::Idle;
        };
        let (ticket, snapshot) = (*ticket, scan.snapshot);
        let (pages, digest) = (scan.pages, scan.transcript.digest());
        let message = FromSource::SnapshotCommit { snapshot, through, pages, digest };
        if !self.send_message(id, &message, turn) {
            return Served::Idle;
        }
        self.outlet.figures.snapshots_committed += 1;
        self.effect(PublisherEffect::ReturnPermit(ticket));
        let session = self.session(id);
        session.view = Some(View { id: snapshot, sent: through, applied: Sequence(0) });
        session.failures = 0;
        session.served_bytes = 0;
        session.follow(through, turn.now);
        turn.more = true; // deltas were served before
        Served::Moved
    }

    /// A snapshot is not to be committed: its permit comes back, and after a rest there is another one.
    fn fail_snapshot(&mut self, id: ConnectionId, cause: ResetCause) {
        let session = self.session(id);
        let ticket = session.ticket().expect("a snapshot has a permit");
        session.phase = Phase::Resetting { cause, rest: session.rest() };
        session.failures += 1;
        self.outlet.figures.snapshots_failed += 1;
        self.effect(PublisherEffect::ReturnPermit(ticket));
    }

    /// As [`Publisher::fail_snapshot`], and tells so at once if it can.
    fn abort_snapshot<R: Residences>(
        &mut self,
        id: ConnectionId,
        cause: ResetCause,
        turn: &mut Turn<'_, '_, R>,
    ) {
        self.fail_snapshot(id, cause);
        if let Phase::Resetting { cause, rest } = self.session(id).phase {
            self.tell_reset(id, cause, rest, turn);
        }
    }

    /// What comes next for a session at `from`; makes room in the pool once if there is none.
    fn next_interval<R: Residences>(
        &mut self,
        id: ConnectionId,
        from: Sequence,
        turn: &mut Turn<'_, '_, R>,
    ) -> Next {
        let session = self.session(id);
        let place = Place {
            scope: session.scope(),
            from,
            frame_bytes_max: session.frame_bytes_max,
            credit_bytes: session.ledger.credit_bytes(),
        };
        let Source { journal, namespaces, .. } = *turn.source;
        for is_last_try in [false, true] {
            let filter = self.scopes.filter(place.scope, namespaces);
            let pool = &self.outlet.pool;
            let reading = Reading { journal, namespaces, exposed: self.exposed, filter, pool };
            let figures = &mut self.outlet.figures;
            let next = self.intervals.next(&place, &reading, &mut turn.slice, figures);
            if let Next::NoCredit = next {
                self.session(id).held_through = self.exposed;
            }
            let is_final = !matches!(next, Next::NoRoom) || is_last_try;
            if is_final || !self.has_room(place.frame_bytes_max, id, turn.now) {
                return next;
            }
        }
        unreachable!("the last try returns")
    }

    /// A shared body leaves, if there is credit and pacing lets it.
    fn send_shared<R: Residences>(
        &mut self,
        id: ConnectionId,
        body: &Rc<SharedBody>,
        turn: &mut Turn<'_, '_, R>,
    ) -> Served {
        match self.may_leave(id, body.frame_bytes(), turn.now) {
            Served::Moved => {}
            other => return other,
        }
        // A frame costs a turn something even if another session had it encoded.
        turn.slice.charge_records(1);
        let session = session_of(&mut self.connections, id);
        self.outlet.send(id, session, Rc::clone(body), turn.stamp());
        Served::Moved
    }

    /// Whether a frame of `bytes` may leave: its receiver has credit, and pacing lets it go.
    fn may_leave(&mut self, id: ConnectionId, bytes: usize, now: Moment) -> Served {
        let exposed = self.exposed;
        let session = self.session(id);
        if !session.ledger.has_credit(bytes) {
            session.held_through = exposed;
            return Served::Idle;
        }
        let ready_at = self.outlet.pacing.ready_at(bytes);
        if ready_at > now {
            self.paced_until = Some(ready_at);
            return Served::Paced;
        }
        Served::Moved
    }

    /// Whether the pool has room for `bytes`. If not, pieces that only we keep are forgotten; then the
    /// subscriber that has held the pool longest gives way, unless that is the asking one or it had too
    /// little time.
    fn has_room(&mut self, bytes: usize, asking: ConnectionId, now: Moment) -> bool {
        let has_room = |publisher: &Publisher| {
            let pool = &publisher.outlet.pool;
            pool.in_use() + bytes as u64 <= pool.capacity()
        };
        if !has_room(self) {
            self.intervals.evict_unheld();
        }
        while !has_room(self) {
            let oldest = self
                .sessions()
                .filter_map(|(id, session)| Some((session.ledger.oldest_left_at()?, id)))
                .min();
            match oldest.filter(|(_, id)| *id != asking) {
                Some((left_at, id)) if now >= left_at + STALL_AFTER => {
                    self.outlet.figures.stalled_closed += 1;
                    self.close(id, CloseCause::Stalled);
                    self.intervals.evict_unheld();
                }
                Some((left_at, _)) => {
                    self.pool_waits_until = Some(left_at + STALL_AFTER);
                    return false;
                }
                None => return false,
            }
        }
        true
    }

    fn send_message<R: Residences>(
        &mut self,
        id: ConnectionId,
        message: &FromSource<'_>,
        turn: &Turn<'_, '_, R>,
    ) -> bool {
        if !self.has_room(MESSAGE_BYTES_MAX, id, turn.now) {
            return false;
        }
        let session = session_of(&mut self.connections, id);
        self.outlet.send_message(id, session, message, turn.stamp())
    }

    fn forget_passed(&mut self) {
        if self.intervals.is_empty() {
            return;
        }
        let mut places: Vec<_> =
            (self.sessions()).filter_map(|(_, session)| Some((session.scope(), session.place()?))).collect();
        self.intervals.forget_passed(&mut places);
    }
}
