//! What peers say: opening a session, credit and progress, answers to a snapshot, a barrier's wish.
//!
//! Nothing here may panic on what a peer sent. What is wrong with it is named, and ends the connection;
//! nothing of a wrong frame is applied.

use std::time::Duration;

use orbitkv_wire::bounds::{INVENTORY_FRAME_BYTES_MAX, INVENTORY_FRAME_BYTES_MIN, WINDOW_FRAMES_MIN};
use orbitkv_wire::identity::{Sequence, SnapshotId};
use orbitkv_wire::inventory::{
    FromRequester, FromSource, Header, Open, OpenRefusal, Tag, decode_from_requester, decode_open,
    header_bytes, source_body, split_frame,
};

use super::ledger::Ledger;
use super::session::{Phase, Session, Stage, State};
use super::settings::{REFUSAL_REST_MAX, RETRY_REST_MIN};
use super::{Attempts, CloseCause, Life, Publisher, PublisherEffect, Violation};
use crate::inventory::{ConnectionId, PermitTicket};
use crate::time::Moment;

impl Publisher {
    /// One whole frame came on a connection; `head` is the journal's. A frame on a connection that has
    /// ended changes nothing.
    pub fn on_frame(&mut self, id: ConnectionId, frame: &[u8], head: Sequence, now: Moment) {
        self.due = true;
        if !self.connections.contains_key(&id) {
            return;
        }
        if let Err(cause) = self.take_frame(id, frame, head, now) {
            self.close(id, cause);
        }
        self.assert_invariants();
    }

    fn take_frame(
        &mut self,
        id: ConnectionId,
        frame: &[u8],
        head: Sequence,
        now: Moment,
    ) -> Result<(), CloseCause> {
        let split = split_frame(frame, INVENTORY_FRAME_BYTES_MAX).map_err(CloseCause::Frame)?;
        let (header, body) = split
            .filter(|(_, body)| body.end == frame.len())
            .ok_or(CloseCause::Protocol(Violation::NotWhole))?;
        let body = &frame[body];
        let connection = self.connections.get_mut(&id).expect("asked before");
        let State::Open(session) = &mut connection.state else {
            let open = decode_open(&header, body).map_err(CloseCause::Frame)?;
            return self.take_open(id, &header, open, head, now);
        };
        if header.tag != session.tag.0 {
            return Err(CloseCause::Protocol(Violation::OtherSession));
        }
        let expected = session.frames_received + 1;
        if header.frame != expected {
            return Err(CloseCause::Protocol(Violation::Number { expected, found: header.frame }));
        }
        let message = decode_from_requester(&header, body).map_err(CloseCause::Frame)?;
        session.frames_received = expected;
        match message {
            FromRequester::Ack { consumed_frame, view, applied } => {
                self.on_ack(id, consumed_frame, view, applied).map_err(CloseCause::Protocol)?;
            }
            FromRequester::SnapshotAccept { snapshot } => self.on_accept(id, snapshot),
            FromRequester::SnapshotRefuse { snapshot, retry_after_ms } => {
                let rest = Duration::from_millis(u64::from(retry_after_ms));
                self.on_refuse(id, snapshot, rest.clamp(RETRY_REST_MIN, REFUSAL_REST_MAX), now);
            }
            FromRequester::FlushThrough { sequence } => {
                self.on_flush(id, sequence, head).map_err(CloseCause::Protocol)?;
            }
        }
        Ok(())
    }

    fn take_open(
        &mut self,
        id: ConnectionId,
        header: &Header,
        open: Open,
        head: Sequence,
        now: Moment,
    ) -> Result<(), CloseCause> {
        if header.frame != 1 {
            return Err(CloseCause::Protocol(Violation::Number { expected: 1, found: header.frame }));
        }
        let frame_bytes_max = self.check_open(id, &open, head).map_err(CloseCause::Protocol)?;
        if let Some(refusal) = self.refusal(&open) {
            self.tell_behind(&open);
            self.refuse(id, Tag(header.tag), refusal, head);
            return Err(CloseCause::Refused(refusal));
        }
        let requester = open.binding.requester;
        let attempts = Attempts { incarnation: requester.incarnation, highest: open.attempt };
        self.attempts.insert(requester.node, attempts);
        let earlier = self.sessions().find(|(_, session)| session.binding.requester.node == requester.node);
        if let Some((earlier, _)) = earlier {
            self.close(earlier, CloseCause::Replaced);
        }
        let window_bytes = (open.window_bytes as usize).min(self.settings.stream_bytes_max);
        let ledger = Ledger::new(window_bytes, self.settings.stream_frames_max);
        let phase = match open.resume {
            Some(resume) => Phase::Resuming(resume),
            None => self.bootstrap(Duration::ZERO, now),
        };
        self.scopes.retain(open.binding.scope, open.scope);
        self.outlet.figures.sessions_opened += 1;
        let session = Session::new(open.binding, frame_bytes_max, ledger, phase, now);
        let connection = self.connections.get_mut(&id).expect("it just spoke");
        connection.state = State::Open(Box::new(session));
        Ok(())
    }

    /// What no honest requester asks, whatever it has heard of the cluster; else its frame bound.
    fn check_open(&self, id: ConnectionId, open: &Open, head: Sequence) -> Result<usize, Violation> {
        let binding = &open.binding;
        // Before its first life a source has no cluster, and a member that was quicker to know it may ask already.
        if self.life == Life::Registered && binding.cluster != self.local.cluster {
            return Err(Violation::OtherCluster);
        }
        if binding.requester.node != self.connections[&id].node {
            return Err(Violation::OtherNode);
        }
        let half_window = open.window_bytes as usize / WINDOW_FRAMES_MIN;
        let bytes = self.settings.frame_bytes_max.min(open.frame_bytes_max as usize).min(half_window);
        if bytes < INVENTORY_FRAME_BYTES_MIN {
            return Err(Violation::FrameBound { bytes });
        }
        match open.resume {
            // After a fence the journal is already that of the next life.
            Some(resume) if self.life == Life::Registered && self.is_own(open) && resume.sequence > head => {
                Err(Violation::BeyondHead { found: resume.sequence, head })
            }
            _ => Ok(bytes),
        }
    }

    /// Whether it asks for this very life of this node.
    fn is_own(&self, open: &Open) -> bool {
        let source = &open.binding.source;
        source.node == self.local.node
            && source.epoch == self.local.epoch
            && source.incarnation == self.local.incarnation
    }

    /// Whoever believes in a later epoch of a node that has one may know more than the node itself.
    fn tell_behind(&mut self, open: &Open) {
        let (source, own) = (&open.binding.source, &self.local);
        if self.life == Life::Registered && source.node == own.node && source.epoch > own.epoch {
            let (node, incarnation) = (own.node, own.incarnation);
            self.effect(PublisherEffect::Behind { node, incarnation });
        }
    }

    /// Why the session is not to be, if so. Both memberships are checked.
    fn refusal(&self, open: &Open) -> Option<OpenRefusal> {
        let requester = open.binding.requester;
        let known = self.attempts.get(&requester.node);
        let highest = known.filter(|known| known.incarnation == requester.incarnation);
        let own = self.members.has(self.local.node, self.local.incarnation);
        if self.life == Life::Fenced {
            Some(OpenRefusal::Fenced)
        } else if !self.is_own(open) {
            Some(OpenRefusal::WrongSource)
        } else if open.binding.source.shard != self.shard {
            Some(OpenRefusal::WrongShard)
        } else if !self.admits || !own || !self.members.has(requester.node, requester.incarnation) {
            Some(OpenRefusal::NotInMap)
        } else if highest.is_some_and(|highest| open.attempt <= highest.highest) {
            Some(OpenRefusal::StaleAttempt)
        } else {
            let others =
                self.sessions().filter(|(_, session)| session.binding.requester.node != requester.node);
            (others.count() >= self.settings.sessions_max).then_some(OpenRefusal::Busy)
        }
    }

    /// Tells why the session is not to be; the connection ends behind it.
    fn refuse(&mut self, id: ConnectionId, tag: Tag, cause: OpenRefusal, head: Sequence) {
        let message = FromSource::OpenRefused {
            cause,
            revision: self.members.revision,
            epoch: self.local.epoch,
            incarnation: self.local.incarnation,
        };
        let body = source_body(&message);
        let header = Header::new(body.kind, tag, 1, head, 0, body.bytes.len());
        *self.outlet.figures.refusals.entry(cause).or_default() += 1;
        self.effect(PublisherEffect::Send {
            connection: id,
            header: header_bytes(&header),
            body: body.bytes.into(),
        });
    }

    /// The way to a snapshot: a wish for a permit, at once or after a rest.
    pub(super) fn bootstrap(&mut self, rest: Duration, now: Moment) -> Phase {
        if !rest.is_zero() {
            return Phase::Resting { until: now + rest };
        }
        self.tickets += 1;
        let ticket = PermitTicket(self.tickets);
        self.effect(PublisherEffect::WantPermit(ticket));
        Phase::Waiting { ticket, untold: None }
    }

    fn on_ack(
        &mut self,
        id: ConnectionId,
        consumed_frame: u64,
        view: SnapshotId,
        applied: Sequence,
    ) -> Result<(), Violation> {
        let session = self.session(id);
        if let Some(installed) = session.view.as_mut().filter(|installed| installed.id == view) {
            if applied > installed.sent {
                return Err(Violation::BeyondSent { found: applied, sent: installed.sent });
            }
            installed.applied = installed.applied.max(applied);
        }
        // An invented acknowledgement returns nothing; it does not even return what did leave.
        let is_invented = consumed_frame > session.frames_sent;
        let returned = if is_invented { 0 } else { session.ledger.on_ack(consumed_frame) };
        let figures = &mut self.outlet.figures;
        figures.bytes_acknowledged += returned as u64;
        figures.acks_invented += u64::from(is_invented);
        figures.acks_repeated += u64::from(!is_invented && returned == 0);
        Ok(())
    }

    fn on_accept(&mut self, id: ConnectionId, snapshot: SnapshotId) {
        if let Phase::Permitted { stage, .. } = &mut self.session(id).phase {
            match std::mem::replace(stage, Stage::Granted) {
                Stage::Offered(scan) if scan.snapshot == snapshot => {
                    *stage = Stage::Scanning(scan);
                    return;
                }
                other => *stage = other,
            }
        }
        self.outlet.figures.answers_late += 1;
    }

    /// A refusal may cross the commit: then the view it would have become is not there, and another offer
    /// has to follow all the same. The receiver discards what comes before that.
    fn on_refuse(&mut self, id: ConnectionId, snapshot: SnapshotId, rest: Duration, now: Moment) {
        let session = self.session(id);
        let is_committed = session.view.is_some_and(|view| view.id == snapshot);
        if !session.scans(snapshot) && !is_committed {
            self.outlet.figures.answers_late += 1;
            return;
        }
        let ticket = session.ticket();
        session.phase = Phase::Resting { until: now + rest };
        session.view = session.view.filter(|_| !is_committed);
        session.quiet_through = None;
        self.outlet.figures.snapshots_refused += 1;
        if let Some(ticket) = ticket {
            self.effect(PublisherEffect::ReturnPermit(ticket));
        }
    }

    fn on_flush(&mut self, id: ConnectionId, sequence: Sequence, head: Sequence) -> Result<(), Violation> {
        if sequence > head {
            return Err(Violation::BeyondHead { found: sequence, head });
        }
        if sequence > self.exposed {
            self.expose_now = true;
        }
        let session = self.session(id);
        let is_told = matches!(session.phase, Phase::Following { told } if sequence <= told);
        if !is_told {
            session.flush_through = session.flush_through.max(Some(sequence));
        }
        Ok(())
    }
}
