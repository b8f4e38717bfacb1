//! How sessions come and go, and what leaves them from this end.

use orbitkv_wire::identity::{Incarnation, NodeId, Sequence, SessionId, SnapshotId};
use orbitkv_wire::inventory::{Binding, FromRequester, Open, Requester, append_open};

use super::close::CloseCause;
use super::dialing::pause;
use super::session::{Phase, Session};
use super::snapshot::Bootstrap;
use super::stream::Link;
use super::{StreamId, Subscriber, SubscriberEffect};
use crate::inventory::ConnectionId;
use crate::time::Moment;

/// Streams whose deadline is met in one turn.
const DEADLINES_PER_TURN: usize = 64;

/// How a session ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ending {
    /// This end closes it.
    Ours(CloseCause),
    /// It is closed already; the number spreads the redials.
    Theirs { jitter: u64 },
}

impl Subscriber {
    /// The dial of a stream has made a connection; `session` is drawn at random for it.
    pub fn on_connected(&mut self, id: StreamId, connection: ConnectionId, session: SessionId, now: Moment) {
        self.dials.end(id);
        let (valid, scope_digest) = (self.membership.is_valid(), self.scope_digest);
        let stream = self.streams.get_mut(&id).filter(|stream| matches!(stream.link, Link::Dialing));
        let Some(stream) = stream.filter(|_| valid) else {
            if let Some(stream) = self.streams.get_mut(&id)
                && matches!(stream.link, Link::Dialing)
            {
                stream.link = Link::Resting { due: now };
            }
            self.effects.push_back(SubscriberEffect::Close { connection, cause: CloseCause::NotWanted });
            return self.settle(id);
        };
        stream.attempt += 1;
        let requester = Requester { node: self.local.node, incarnation: self.local.incarnation };
        let (cluster, source) = (self.local.cluster, stream.source);
        let binding = Binding { cluster, source, requester, scope: scope_digest, session };
        let resume = stream.resume();
        let open = Open {
            binding,
            attempt: stream.attempt,
            scope: self.scope.clone(),
            window_bytes: self.settings.window_bytes,
            frame_bytes_max: self.settings.frame_bytes_max,
            resume,
        };
        let mut bytes = Vec::new();
        append_open(&mut bytes, &open);
        let phase = resume.map_or(Phase::Bootstrapping(Bootstrap::Idle), Phase::Resuming);
        stream.link = Link::Open(Box::new(Session::new(connection, binding.tag(), phase, now)));
        let before = self.connections.insert(connection, id);
        assert!(before.is_none(), "a connection carries one session");
        self.effects.push_back(SubscriberEffect::Send { connection, bytes });
        self.figures.sessions_opened += 1;
        self.settle(id);
    }

    /// The dial of a stream has failed; `jitter` is drawn at random.
    pub fn on_dial_failed(&mut self, id: StreamId, jitter: u64, now: Moment) {
        self.dials.end(id);
        if let Some(stream) = self.streams.get_mut(&id)
            && matches!(stream.link, Link::Dialing)
        {
            stream.link = Link::Resting { due: now + pause(&self.settings, stream.failures, jitter) };
            stream.failures = stream.failures.saturating_add(1);
            self.settle(id);
        }
    }

    /// A connection is gone; `jitter` is drawn at random. What was closed from this end is unknown by now.
    pub fn on_closed(&mut self, connection: ConnectionId, jitter: u64, now: Moment) {
        if let Some(&id) = self.connections.get(&connection) {
            self.end_session(id, Ending::Theirs { jitter }, now);
            self.settle(id);
        }
    }

    /// A barrier waits for these sequences of a source, one a shard: sources are asked not to hold back what
    /// is below.
    pub fn flush_through(&mut self, node: NodeId, incarnation: Incarnation, sequences: &[Sequence]) {
        let Some(peer) = self.peers.get(&node).filter(|peer| peer.member.incarnation == incarnation) else {
            return;
        };
        for id in &peer.streams {
            let stream = self.streams.get_mut(id).expect("a peer's streams are expected");
            let (shard, applied) = (stream.source.shard, stream.applied());
            let wanted = sequences.get(usize::from(shard.0)).filter(|sequence| **sequence > applied);
            if let (Some(&sequence), Some(session)) = (wanted, stream.session_mut()) {
                let connection = session.connection;
                let bytes = session.say(&FromRequester::FlushThrough { sequence });
                self.effects.push_back(SubscriberEffect::Send { connection, bytes });
            }
        }
    }

    /// Ends a session, if there is one, with everything that is only of that session: its staging, its
    /// permit, and the frames that wait.
    pub(super) fn end_session(&mut self, id: StreamId, ending: Ending, now: Moment) {
        let stream = self.streams.get_mut(&id).expect("a stream that is expected");
        if stream.session().is_none() {
            return;
        }
        let due = Link::Resting { due: now };
        let Link::Open(session) = std::mem::replace(&mut stream.link, due) else { unreachable!() };
        let Session { connection, tag, opened, phase, .. } = *session;
        // A session that lasted was none of the failures that pauses grow with.
        if now - opened >= self.settings.redial_max {
            stream.failures = 0;
        }
        let jitter = match ending {
            Ending::Theirs { jitter } => jitter,
            // The tag hashes the session's random id, so it spreads as well.
            Ending::Ours(_) => u64::from_le_bytes(*tag.0.first_chunk().expect("a tag has 16 bytes")),
        };
        stream.link = Link::Resting { due: now + pause(&self.settings, stream.failures, jitter) };
        stream.failures = stream.failures.saturating_add(1);
        self.connections.remove(&connection);
        self.applying.take_if(|applying| applying.stream == id);
        self.ready.retain(|ready| *ready != id);
        if let Phase::Bootstrapping(bootstrap) = phase {
            self.drop_bootstrap(id, bootstrap);
        }
        match ending {
            Ending::Theirs { .. } => self.figures.sessions_lost += 1,
            Ending::Ours(cause) => {
                *self.figures.sessions_closed.entry(cause.label()).or_default() += 1;
                self.effects.push_back(SubscriberEffect::Close { connection, cause });
            }
        }
    }

    /// Dials as many streams as may be pending.
    pub(super) fn dial(&mut self) {
        while self.membership.is_valid() {
            let Some(id) = self.dials.pop(self.settings.dials_max) else { return };
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            assert!(matches!(stream.link, Link::Queued), "what is queued waits for its dial");
            stream.link = Link::Dialing;
            self.dials.begin(id);
            let (address, node, shard) = (stream.address, stream.source.node, stream.source.shard);
            self.effects.push_back(SubscriberEffect::Dial { stream: id, address, node, shard });
        }
    }

    /// Does what is due of streams. True if some had to be left for the next turn.
    pub(super) fn meet_deadlines(&mut self, now: Moment) -> bool {
        for _ in 0..DEADLINES_PER_TURN {
            let Some(&(due, id)) = self.deadlines.first() else { return false };
            if due > now {
                return false;
            }
            let stream = self.streams.get_mut(&id).expect("only expected streams have deadlines");
            match &mut stream.link {
                Link::Resting { .. } => {
                    stream.link = Link::Queued;
                    self.dials.push(id);
                }
                Link::Open(session) if session.ack_due().is_some_and(|due| due <= now) => {
                    self.acknowledge(id, now)
                }
                Link::Open(_) => self.end_session(id, Ending::Ours(CloseCause::PageTimeout), now),
                Link::Queued | Link::Dialing => unreachable!("these wait for others"),
            }
            self.settle(id);
        }
        true
    }

    /// Sends the ACK of everything consumed.
    pub(super) fn acknowledge(&mut self, id: StreamId, now: Moment) {
        let stream = self.streams.get_mut(&id).expect("a stream that is expected");
        let (view, applied) = match stream.view {
            Some(view) => (view.snapshot, view.applied),
            None => (SnapshotId([0; 16]), Sequence(0)),
        };
        let session = stream.session_mut().expect("only sessions acknowledge");
        let (connection, bytes) =
            (session.connection, session.acknowledge(view, applied, now + self.settings.ack_wait));
        self.effects.push_back(SubscriberEffect::Send { connection, bytes });
        self.figures.acks += 1;
    }
}
