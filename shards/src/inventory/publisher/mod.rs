//! The source's side of inventory streams: all subscribers of one shard (chapters 2.3 to 2.5).
//!
//! A subscriber is a cursor into the journal. Nothing is queued ahead for it: a frame is built when its
//! receiver has credit, the transport takes bytes and pacing lets it go, so one that reads slowly costs
//! the others nothing, and falls behind the journal's ring into a snapshot when it reads too slowly.
//! What is built and not consumed is charged to a pool, shared bodies once.
//!
//! Parts: `requests` takes what peers say, `turn` decides what leaves, `session` is the state of one
//! session, `intervals` encodes deltas and shares them, `scan` makes snapshots, `outlet` is the way out.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use orbitkv_wire::identity::{Incarnation, NodeId, Sequence, ShardIndex};
use orbitkv_wire::inventory::{FrameError, HEADER_BYTES, OpenRefusal, ResourceSummary};
use thiserror::Error;

use super::{ConnectionId, PermitTicket};
use crate::flow::pressure::UNMEASURED;
use crate::members::{Local, MemberMap};
use crate::time::Moment;

mod figures;
mod frame;
mod intervals;
mod ledger;
mod outlet;
mod pacing;
mod requests;
mod residences;
mod scan;
mod scopes;
mod session;
mod settings;
mod slice;
mod turn;

pub use figures::{Figures, Standing, Traffic};
pub use residences::{Residence, Residences, Source};
pub use settings::{BoundsRefused, COALESCING_WINDOW_MAX, LIVENESS_INTERVAL, NodeBounds, PublisherSettings};

use intervals::Intervals;
use outlet::{Outlet, Pending};
use scopes::Scopes;
use session::{Connection, Phase, Session, Stage, State};
use settings::OPEN_TIMEOUT;

/// What a publisher wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublisherEffect {
    /// A frame leaves: the header, then the body.
    Send {
        /// On which connection.
        connection: ConnectionId,
        /// Its header.
        header: [u8; HEADER_BYTES],
        /// Its body, shared by subscribers.
        body: Rc<[u8]>,
    },
    /// A connection ends, after what was sent on it.
    Close {
        /// Which one.
        connection: ConnectionId,
        /// Why.
        cause: CloseCause,
    },
    /// A member believes in a later epoch of this node than this one: read membership anew; the room waits for nothing.
    Behind {
        /// This node.
        node: NodeId,
        /// The life that may be over.
        incarnation: Incarnation,
    },
    /// A snapshot permit is wanted from the pool on shard 0.
    WantPermit(PermitTicket),
    /// A wish for a permit has ended, granted or not.
    ReturnPermit(PermitTicket),
}

/// Why a source ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CloseCause {
    /// The session is not to be; the requester was told.
    #[error("the session was refused: {0:?}")]
    Refused(OpenRefusal),
    /// It sent no frame of the protocol.
    #[error("a frame is broken: {0}")]
    Frame(FrameError),
    /// It broke the protocol.
    #[error("the protocol is broken: {0}")]
    Protocol(Violation),
    /// It never said what it wants.
    #[error("nothing was asked in time")]
    Silent,
    /// Its requester left the cluster, or has another life.
    #[error("the requester is no longer a member")]
    Removed,
    /// Its requester opened a later session.
    #[error("a later session took its place")]
    Replaced,
    /// It reads too slowly while others need the room.
    #[error("it holds the queue pool and consumes nothing")]
    Stalled,
    /// There are too many connections.
    #[error("there are too many connections")]
    Busy,
    /// This node is not, or no longer, a member.
    #[error("this node's own life has ended")]
    Fenced,
}

/// What a peer may not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Violation {
    /// Bytes that are not exactly one frame.
    #[error("not one whole frame")]
    NotWhole,
    /// A frame has another number than comes next.
    #[error("frame {found} where {expected} comes next")]
    Number {
        /// What comes next.
        expected: u64,
        /// What came.
        found: u64,
    },
    /// A frame is of another session.
    #[error("a frame of another session")]
    OtherSession,
    /// An Open for another cluster.
    #[error("another cluster")]
    OtherCluster,
    /// An Open in the name of another node than the one whose key the connection has.
    #[error("the name of another node")]
    OtherNode,
    /// A frame bound or window without room for one change.
    #[error("no frame of {bytes} bytes carries a change")]
    FrameBound {
        /// The bound.
        bytes: usize,
    },
    /// A sequence that this journal has not reached.
    #[error("sequence {} is beyond the head {}", found.0, head.0)]
    BeyondHead {
        /// What was named.
        found: Sequence,
        /// The head.
        head: Sequence,
    },
    /// An acknowledgement of changes that were not sent.
    #[error("sequence {} is acknowledged, but only {} was sent", found.0, sent.0)]
    BeyondSent {
        /// What was acknowledged.
        found: Sequence,
        /// What was sent.
        sent: Sequence,
    },
}

/// The life this shard speaks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// It may have sessions as far as the map says so.
    Registered,
    /// It is over; another one begins with `on_registered`.
    Fenced,
}

/// The highest attempt of a node's life.
#[derive(Clone, Copy, Debug)]
struct Attempts {
    incarnation: Incarnation,
    highest: u64,
}

/// The subscribers of one shard.
#[derive(Debug)]
pub struct Publisher {
    settings: PublisherSettings,
    local: Local,
    shard: ShardIndex,
    life: Life,
    members: MemberMap,
    /// Whether what is known of members holds.
    admits: bool,
    connections: BTreeMap<ConnectionId, Connection>,
    /// Per member that opened a session, for as long as that life is a member.
    attempts: BTreeMap<NodeId, Attempts>,
    scopes: Scopes,
    intervals: Intervals,
    outlet: Outlet,
    summary: ResourceSummary,
    tickets: u64,
    /// The history through here may be encoded; what is after it still waits for others.
    exposed: Sequence,
    /// Since when something waits.
    waits_since: Option<Moment>,
    expose_now: bool,
    /// When pacing lets the next frame go, if one waits for that.
    paced_until: Option<Moment>,
    /// When a subscriber that holds the pool has to give way, if somebody waits for that.
    pool_waits_until: Option<Moment>,
    /// Per class of sessions: how much the one served last had been served.
    served_floor: [u64; 3],
    /// Whether something came in since the last turn, or that turn left something over.
    due: bool,
    /// The journal's head as the last turn saw it.
    head_seen: Sequence,
    /// When the next turn is due if nothing comes in before, as of the last one.
    deadline: Option<Moment>,
}

impl Publisher {
    /// A publisher without subscribers for `shard` of `local`.
    ///
    /// # Panics
    /// If the settings contradict each other, or there is no such shard.
    #[must_use]
    pub fn new(settings: PublisherSettings, local: Local, shard: ShardIndex) -> Publisher {
        settings.assert_consistent();
        assert!(shard.0 < local.shards, "shard {} of {}", shard.0, local.shards);
        let body_bytes_max = settings.frame_bytes_max - HEADER_BYTES;
        Publisher {
            settings,
            local,
            shard,
            life: Life::Registered,
            members: MemberMap::default(),
            admits: true,
            connections: BTreeMap::new(),
            attempts: BTreeMap::new(),
            scopes: Scopes::default(),
            intervals: Intervals::new(&settings.journal, settings.delta_records_max, body_bytes_max),
            outlet: Outlet::new(&settings),
            summary: UNMEASURED,
            tickets: 0,
            exposed: Sequence(0),
            waits_since: None,
            expose_now: false,
            paced_until: None,
            pool_waits_until: None,
            served_floor: [0; 3],
            due: true,
            head_seen: Sequence(0),
            deadline: None,
        }
    }

    /// Who is a member now. Sessions of lives that are not end at once; so do all of them if this node's
    /// own life is not one. An older map than the last one changes nothing.
    pub fn on_members(&mut self, members: &MemberMap, _now: Moment) {
        if members.revision < self.members.revision {
            return;
        }
        self.members = members.clone();
        self.admits = true;
        self.due = true;
        self.attempts.retain(|&node, attempts| members.has(node, attempts.incarnation));
        let own = members.has(self.local.node, self.local.incarnation);
        let ended: Vec<_> = (self.connections.iter())
            .filter_map(|(&id, connection)| match &connection.state {
                State::Greeting { .. } => {
                    members.get(connection.node).is_none().then_some((id, CloseCause::Removed))
                }
                State::Open(_) if !own => Some((id, CloseCause::Fenced)),
                State::Open(session) => {
                    let requester = session.binding.requester;
                    let is_member = members.has(requester.node, requester.incarnation);
                    (!is_member).then_some((id, CloseCause::Removed))
                }
            })
            .collect();
        for (id, cause) in ended {
            self.close(id, cause);
        }
        self.assert_invariants();
    }

    /// Who is a member is not known until the next [`Publisher::on_members`]: nobody is admitted. Sessions go on.
    pub fn on_membership_invalid(&mut self) {
        self.admits = false;
    }

    /// This node's life has ended: every session does.
    pub fn on_fenced(&mut self, _now: Moment) {
        self.life = Life::Fenced;
        self.end_life();
    }

    /// A new life begins, whose journal starts at 1 again. Whoever listened to the old one does so no more.
    ///
    /// # Panics
    /// If it has no such shard.
    pub fn on_registered(&mut self, local: Local, _now: Moment) {
        assert!(self.shard.0 < local.shards, "shard {} of {}", self.shard.0, local.shards);
        self.end_life();
        self.local = local;
        self.life = Life::Registered;
        // An etcd restored from an old copy counts anew; until a map comes nobody is known.
        self.members = MemberMap::default();
    }

    fn end_life(&mut self) {
        while let Some((&id, _)) = self.connections.first_key_value() {
            self.close(id, CloseCause::Fenced);
        }
        self.attempts.clear();
        self.intervals.clear();
        self.exposed = Sequence(0);
        self.waits_since = None;
        self.expose_now = false;
        self.paced_until = None;
        self.pool_waits_until = None;
        self.due = true;
        self.assert_invariants();
    }

    /// A peer connected that proved to have the key of `node`.
    ///
    /// # Panics
    /// If there is such a connection.
    pub fn on_connected(&mut self, id: ConnectionId, node: NodeId, now: Moment) {
        assert!(!self.connections.contains_key(&id), "connection {} exists", id.0);
        self.due = true;
        if self.connections.len() == self.settings.connections_max {
            self.effect(PublisherEffect::Close { connection: id, cause: CloseCause::Busy });
            return;
        }
        let state = State::Greeting { until: now + OPEN_TIMEOUT };
        self.connections.insert(id, Connection { node, blocked: false, state });
    }

    /// The transport lost a connection. One that we closed is not known any more, which is fine.
    pub fn on_closed(&mut self, id: ConnectionId, _now: Moment) {
        self.due = true;
        self.forget(id);
        self.assert_invariants();
    }

    /// The transport takes no bytes for this connection until [`Publisher::on_writable`].
    pub fn on_blocked(&mut self, id: ConnectionId) {
        self.due = true;
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.blocked = true;
        }
    }

    /// The transport takes bytes again.
    pub fn on_writable(&mut self, id: ConnectionId) {
        self.due = true;
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.blocked = false;
            if let State::Open(session) = &mut connection.state {
                self.outlet.list(id, session);
            }
        }
    }

    /// A permit was granted. One whose wish has ended meanwhile was given back already.
    pub fn on_permit(&mut self, granted: PermitTicket, now: Moment) {
        self.due = true;
        if let Some(phase @ Phase::Waiting { .. }) = self.phase_of(granted) {
            *phase = Phase::Permitted { ticket: granted, idle_since: now, stage: Stage::Granted };
        }
    }

    /// A wish for a permit waits at this place; 1 is next.
    pub fn on_permit_waits(&mut self, waiting: PermitTicket, position: u32, _now: Moment) {
        self.due = true;
        if let Some(Phase::Waiting { untold, .. }) = self.phase_of(waiting) {
            *untold = Some(position);
        }
    }

    fn phase_of(&mut self, ticket: PermitTicket) -> Option<&mut Phase> {
        self.connections.values_mut().find_map(|connection| match &mut connection.state {
            State::Open(session) if session.ticket() == Some(ticket) => Some(&mut session.phase),
            _ => None,
        })
    }

    /// How busy this shard is: what the next signs of life say.
    pub fn on_summary(&mut self, summary: ResourceSummary) {
        self.summary = summary;
    }

    /// What is in the journal now is encoded in the next turn, without waiting for others.
    pub fn expose(&mut self) {
        self.expose_now = true;
        self.due = true;
    }

    /// What to do next.
    pub fn poll_effect(&mut self) -> Option<PublisherEffect> {
        while let Some(pending) = self.outlet.order.pop_front() {
            let id = match pending {
                Pending::Effect(effect) => return Some(effect),
                Pending::Frame(id) => id,
            };
            let Some(Connection { state: State::Open(session), blocked, .. }) = self.connections.get_mut(&id)
            else {
                continue;
            };
            session.is_listed = false;
            if *blocked {
                continue;
            }
            let frame = session.outbox.pop_front().expect("a connection is listed for its frames");
            self.outlet.list(id, session);
            return Some(PublisherEffect::Send { connection: id, header: frame.header, body: frame.body });
        }
        None
    }

    /// How long a change may wait for others from now on, those that wait already included.
    ///
    /// # Panics
    /// If that is longer than [`COALESCING_WINDOW_MAX`].
    pub fn set_coalescing_window(&mut self, window: Duration) {
        self.settings.coalescing_window = window;
        self.settings.assert_consistent();
        self.due = true;
    }

    /// When a turn is due if nothing happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        if self.due { self.earliest_deadline() } else { self.deadline }
    }

    /// The same, by asking every connection.
    fn earliest_deadline(&self) -> Option<Moment> {
        let window = self.waits_since.map(|since| since + self.settings.coalescing_window);
        let connections = self.connections.values().filter_map(|connection| match &connection.state {
            State::Greeting { until } => Some(*until),
            State::Open(session) => session.next_deadline(connection.blocked),
        });
        connections.chain(window).chain(self.paced_until).chain(self.pool_waits_until).min()
    }

    /// Counters since the process started.
    #[must_use]
    pub fn figures(&self) -> &Figures {
        &self.outlet.figures
    }

    /// What it is at, given the journal's head.
    #[must_use]
    pub fn standing(&self, head: Sequence) -> Standing {
        let mut standing = Standing {
            connections: self.connections.len(),
            queue_bytes: self.outlet.pool.in_use(),
            queue_bytes_peak: self.outlet.pool.peak(),
            intervals: self.intervals.len(),
            ..Standing::default()
        };
        for (_, session) in self.sessions() {
            standing.sessions += 1;
            match session.phase {
                Phase::Following { .. } | Phase::Resuming(_) => standing.following += 1,
                _ => standing.bootstrapping += 1,
            }
            let lag = session.view.map_or(0, |view| head.0.saturating_sub(view.applied.0));
            standing.lag_records_max = standing.lag_records_max.max(lag);
        }
        standing
    }

    fn sessions(&self) -> impl Iterator<Item = (ConnectionId, &Session)> {
        self.connections.iter().filter_map(|(&id, connection)| match &connection.state {
            State::Open(session) => Some((id, &**session)),
            State::Greeting { .. } => None,
        })
    }

    fn session(&mut self, id: ConnectionId) -> &mut Session {
        session_of(&mut self.connections, id)
    }

    fn effect(&mut self, effect: PublisherEffect) {
        self.outlet.order.push_back(Pending::Effect(effect));
    }

    /// Ends a connection of our own will. What was built for it and not taken is dropped with it.
    fn close(&mut self, id: ConnectionId, cause: CloseCause) {
        if let CloseCause::Frame(_) | CloseCause::Protocol(_) = cause {
            self.outlet.figures.protocol_errors += 1;
        }
        self.forget(id);
        self.effect(PublisherEffect::Close { connection: id, cause });
    }

    /// A connection is no more: its ledger's bytes, its permit and its scope come back.
    fn forget(&mut self, id: ConnectionId) {
        if let Some(Connection { state: State::Open(session), .. }) = self.connections.remove(&id) {
            if let Some(ticket) = session.ticket() {
                self.effect(PublisherEffect::ReturnPermit(ticket));
            }
            self.scopes.release(session.scope());
        }
    }

    fn assert_invariants(&self) {
        assert!(self.connections.len() <= self.settings.connections_max);
        debug_assert_eq!(self.scopes.sessions(), self.sessions().count(), "every session holds its scope");
        debug_assert!(
            self.life == Life::Registered
                || self
                    .connections
                    .values()
                    .all(|connection| { matches!(connection.state, State::Greeting { .. }) })
        );
        debug_assert!(
            self.sessions().all(|(_, session)| {
                session.ledger.outstanding_bytes() <= self.settings.stream_bytes_max
                    && self.members.has(session.binding.requester.node, session.binding.requester.incarnation)
            }),
            "a session is a member's and holds its share at most"
        );
    }
}

/// The session of a connection that has one, borrowing nothing else of the room.
fn session_of(connections: &mut BTreeMap<ConnectionId, Connection>, id: ConnectionId) -> &mut Session {
    match connections.get_mut(&id).map(|connection| &mut connection.state) {
        Some(State::Open(session)) => session,
        _ => panic!("connection {} has a session", id.0),
    }
}

#[cfg(test)]
mod tests;
