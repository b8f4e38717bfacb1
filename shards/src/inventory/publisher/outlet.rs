//! What every frame passes on its way out: number, head, ledger, pacing, order, figures.

use std::collections::VecDeque;
use std::rc::Rc;

use orbitkv_wire::identity::Sequence;
use orbitkv_wire::inventory::{
    FromSource, HEADER_BYTES, Header, Kind, ResourceSummary, header_bytes, source_body,
};

use super::figures::Figures;
use super::frame::{Frame, MESSAGE_BYTES_MAX, SharedBody};
use super::pacing::Pacing;
use super::session::Session;
use super::{PublisherEffect, PublisherSettings};
use crate::admission::Pool;
use crate::inventory::ConnectionId;
use crate::time::Moment;

/// Something that waits to be taken.
#[derive(Debug)]
pub enum Pending {
    /// The next frame of this connection's outbox.
    Frame(ConnectionId),
    /// An effect as it is.
    Effect(PublisherEffect),
}

/// When a frame is built.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    /// The journal's head then.
    pub head: Sequence,
    /// The moment.
    pub now: Moment,
}

/// The way out of a shard's publisher.
#[derive(Debug)]
pub struct Outlet {
    /// Bytes of bodies that are built and not yet consumed, shared ones once.
    pub pool: Pool,
    /// How fast bytes leave.
    pub pacing: Pacing,
    /// What waits to be taken, in order; a connection is in it at most once.
    pub order: VecDeque<Pending>,
    /// Counters.
    pub figures: Figures,
}

impl Outlet {
    /// Nothing has left.
    #[must_use]
    pub fn new(settings: &PublisherSettings) -> Outlet {
        Outlet {
            pool: Pool::new("queued inventory frames", settings.queue_bytes_max as u64),
            pacing: Pacing::new(settings.bytes_per_second, settings.burst_bytes),
            order: VecDeque::new(),
            figures: Figures::default(),
        }
    }

    /// A charged frame leaves.
    ///
    /// # Panics
    /// If the session has no credit for it, or it is larger than its receiver takes.
    pub fn send(&mut self, id: ConnectionId, session: &mut Session, body: Rc<SharedBody>, stamp: Stamp) {
        let frame_bytes = body.frame_bytes();
        assert!(frame_bytes <= session.frame_bytes_max, "no frame is larger than its receiver takes");
        self.pacing.charge(frame_bytes, stamp.now);
        self.figures.on_sent(body.kind(), frame_bytes);
        session.served_bytes += frame_bytes as u64;
        self.push(id, session, body.kind(), body.count(), Rc::clone(body.bytes()), stamp);
        session.ledger.record(session.frames_sent, body, stamp.now);
    }

    /// A message without changes leaves, if there is credit and room for it.
    #[must_use]
    pub fn send_message(
        &mut self,
        id: ConnectionId,
        session: &mut Session,
        message: &FromSource<'_>,
        stamp: Stamp,
    ) -> bool {
        let body = source_body(message);
        let frame_bytes = HEADER_BYTES + body.bytes.len();
        debug_assert!(frame_bytes <= MESSAGE_BYTES_MAX);
        if !session.ledger.has_credit(frame_bytes) {
            return false;
        }
        self.figures.on_encoded(&body);
        let Some(body) = SharedBody::charge(body, &self.pool) else { return false };
        self.send(id, session, body, stamp);
        true
    }

    /// A sign of life leaves. It costs no credit and does not wait for pacing, which is charged for it.
    pub fn send_liveness(
        &mut self,
        id: ConnectionId,
        session: &mut Session,
        summary: ResourceSummary,
        stamp: Stamp,
    ) {
        let body = source_body(&FromSource::Liveness { summary });
        let frame_bytes = HEADER_BYTES + body.bytes.len();
        self.figures.on_encoded(&body);
        self.figures.on_sent(Kind::Liveness, frame_bytes);
        self.pacing.charge(frame_bytes, stamp.now);
        self.push(id, session, Kind::Liveness, 0, body.bytes.into(), stamp);
    }

    fn push(
        &mut self,
        id: ConnectionId,
        session: &mut Session,
        kind: Kind,
        count: u32,
        body: Rc<[u8]>,
        stamp: Stamp,
    ) {
        session.frames_sent += 1;
        session.left_at = stamp.now;
        let header = Header::new(kind, session.tag, session.frames_sent, stamp.head, count, body.len());
        session.outbox.push_back(Frame { header: header_bytes(&header), body });
        self.list(id, session);
    }

    /// Puts a connection with frames to take into the order, once.
    pub fn list(&mut self, id: ConnectionId, session: &mut Session) {
        if !session.is_listed && !session.outbox.is_empty() {
            session.is_listed = true;
            self.order.push_back(Pending::Frame(id));
        }
    }
}
