//! Blocks between nodes: what this shard lends to peers, and what it fetches from them.
//!
//! The rooms decide who gets what (`Grants` for what is lent, `Fetcher` for what is brought); what is here
//! owns the payload connections and their streams. Bytes that leave are handles to the arena, bytes that
//! come are written into their slot as they arrive: nothing is collected in between but one frame.
//!
//! A connection has one direction: who dialled it asks, who accepted it lends. Each operation has a stream;
//! releases and cancels have one of their own, which is more urgent. Between nodes of one host the bytes themselves
//! are read where their source has them, and peer sockets carry the word that they are read no more.

mod fetching;
mod lending;
mod lent_stream;
mod links;
mod planning;
mod settings;
mod sharing;
mod sockets;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use orbitkv_native::arena::{Arena, Checksum};
use orbitkv_native::entropy;
use orbitkv_native::quic::{self, Endpoint, Payloads, StreamId};
use orbitkv_shards::fetcher::{self, BreakerStanding, DialId, Fetcher, FetcherFigures, SourceStanding};
use orbitkv_shards::flow::egress::{Egress, EgressFigures};
use orbitkv_shards::flow::pacing::Rate;
use orbitkv_shards::grants::{GrantFigures, GrantSettings, Grants, Life};
use orbitkv_shards::index::Partition;
use orbitkv_shards::inventory::subscriber::Subscriber;
use orbitkv_shards::members::Local;
use orbitkv_shards::membership::{LookupDone, LookupPurpose, LookupWish};
use orbitkv_shards::payload_streams::PayloadConnection;
use orbitkv_shards::planner::{Mode, Planner, PlannerFigures, PlannerSettings, RouteTrace};
use orbitkv_shards::resilience::signature;
use orbitkv_shards::shard::{ChecksumId, Shard};
use orbitkv_shards::time::Moment;
use orbitkv_wire::identity::{Incarnation, NodeId, ShardIndex};
use orbitkv_wire::inventory::{ResourceSummary, SourceStream};
use orbitkv_wire::payload::OperationId;

use super::life::Neighbours;
use super::lookups::LookupQueue;
use crate::settings::PeerGuard;
use links::Link;
use sharing::Reading;

pub(super) use settings::PayloadSettings;

pub use sockets::{PEER_DESCRIPTORS_PER_CORE, PeerSockets, bind as bind_peer_socket, socket_path};

/// Bytes of payload streams that a turn reads: with their checksum some 40 µs of it.
const READ_BYTES_PER_TURN: usize = 128 * 1024;

/// How often dials and operations that wait for the endpoint look again.
const WAITING_LOOK: Duration = Duration::from_millis(5);

/// What the rest of the core's peers lends for a turn.
pub(super) struct Surroundings<'a> {
    pub endpoint: &'a mut Endpoint,
    pub partition: &'a Partition,
    pub subscriber: &'a mut Subscriber,
    pub neighbours: &'a Neighbours,
    /// Whether peers may be asked: this node is a member and knows the others.
    pub may_ask: bool,
    pub life: Life,
    pub now: Moment,
}

/// A dial that waits for room in the endpoint.
struct WaitingDial {
    dial: DialId,
    source: SourceStream,
    address: SocketAddr,
    /// When it has waited long enough: others may have what is wanted.
    until: Moment,
}

/// A dial that has not become a line of the fetcher.
#[derive(Clone, Copy)]
struct PendingDial {
    dial: DialId,
    source: SourceStream,
}

/// An operation that is not written yet: on which connection, what will be read of it, and its frame.
type Unasked = (fetcher::ConnectionId, Asked, Vec<u8>);

/// What a peer has said of a life of a node.
pub(super) enum Heard {
    /// It is over.
    Exclude { node: NodeId, incarnation: Incarnation },
    /// It is not what it is taken for.
    Doubt { node: NodeId, incarnation: Incarnation },
    /// It is ours, and has a successor.
    Behind { node: NodeId, incarnation: Incarnation },
}

/// Payload connections of one core.
pub(super) struct Payload {
    shard: ShardIndex,
    arena: Arena,
    slice_bytes: u64,
    egress_rate: Option<Rate>,
    loans: Payloads,
    /// There from the first life on.
    grants: Option<Grants>,
    /// What of it goes next.
    egress: Egress,
    fetcher: Fetcher,
    /// Whom the fetcher asks first.
    planner: Planner,
    links: HashMap<quic::ConnectionId, Link>,
    made: u64,
    /// By the numbers that the rooms know.
    lending: HashMap<PayloadConnection, quic::ConnectionId>,
    fetching: HashMap<fetcher::ConnectionId, quic::ConnectionId>,
    dials: HashMap<quic::ConnectionId, PendingDial>,
    /// Connections that wait for their source to let us read in its arena, or not.
    greeted: HashMap<quic::ConnectionId, PendingDial>,
    /// With nodes of this host, if memory is shared at all.
    sockets: Option<PeerSockets<quic::ConnectionId>>,
    /// Whether something has happened on them.
    sockets_readable: bool,
    /// What is read in other nodes' arenas, one after the other.
    readings: VecDeque<Reading>,
    /// Dials for which the endpoint has no room yet.
    waiting: VecDeque<WaitingDial>,
    /// Operations for which their connection has no stream yet.
    unasked: VecDeque<Unasked>,
    /// Operations that are not over, at most.
    unasked_max: usize,
    /// Operations whose source is looked up first, if that is the policy.
    record_lookups: Option<LookupQueue<Unasked>>,
    /// Streams that may have bytes to read, in turn.
    readable: VecDeque<(quic::ConnectionId, StreamId)>,
    /// Places that are not told yet.
    held: lending::HeldExtents,
    /// What sources have said of lives, for other cores and for control.
    heard: VecDeque<Heard>,
    /// Checksums under way.
    sums: VecDeque<(ChecksumId, Checksum)>,
    /// Whether there are more of them than the turn had time for.
    is_summing: bool,
}

/// What payload connections say of themselves.
#[derive(Clone, Debug)]
pub struct PayloadReport {
    /// What is lent.
    pub grants: GrantFigures,
    /// What of it waits to be sent.
    pub egress: EgressFigures,
    /// What is fetched.
    pub fetcher: FetcherFigures,
    /// How it is chosen who is asked.
    pub planner: PlannerFigures,
    /// The latest batches of it.
    pub traces: Vec<RouteTrace>,
    /// Sources that are left alone, or have been.
    pub breakers: Vec<BreakerStanding>,
    /// What the last calls to each source look like.
    pub sources: Vec<SourceStanding>,
    /// Connections on which this core lends.
    pub lending: usize,
    /// Connections on which it fetches.
    pub fetching: usize,
    /// Processes that read in our arena.
    pub readers: usize,
    /// Who wanted to and was not let in.
    pub readers_refused: u64,
}

impl Payload {
    /// No connections yet.
    pub fn new(
        shard: ShardIndex,
        arena: Arena,
        sockets: Option<PeerSockets<quic::ConnectionId>>,
        settings: PayloadSettings,
    ) -> Payload {
        let (egress_rate, fetcher) = (settings.rates.egress, settings.fetcher());
        Payload {
            shard,
            loans: Payloads::new(arena.clone(), settings.loans_max()),
            arena,
            slice_bytes: settings.slice_bytes,
            egress_rate,
            grants: None,
            egress: Egress::new(egress_rate),
            fetcher: Fetcher::new(fetcher, entropy::random_u64()),
            planner: Planner::new(PlannerSettings { mode: settings.routing, ..PlannerSettings::default() }),
            links: HashMap::new(),
            made: 0,
            lending: HashMap::new(),
            fetching: HashMap::new(),
            dials: HashMap::new(),
            greeted: HashMap::new(),
            sockets,
            sockets_readable: true,
            readings: VecDeque::new(),
            waiting: VecDeque::new(),
            unasked: VecDeque::new(),
            unasked_max: fetcher.connections_max * fetcher.operations_max,
            record_lookups: None,
            readable: VecDeque::new(),
            held: lending::HeldExtents::default(),
            heard: VecDeque::new(),
            sums: VecDeque::new(),
            is_summing: false,
        }
    }

    /// Looks sources up before they are asked.
    pub fn look_up_first(&mut self) {
        self.record_lookups = Some(LookupQueue::new(self.shard, LookupPurpose::Payload, self.unasked_max));
    }

    /// The next record that is to be read.
    pub fn poll_lookup(&mut self) -> Option<LookupWish> {
        self.record_lookups.as_mut()?.poll_wish()
    }

    /// A record has been read: what waited for it is asked.
    pub fn on_looked_up(&mut self, done: &LookupDone) {
        let released = self.record_lookups.as_mut().map(|lookups| lookups.release(done));
        self.unasked.extend(released.unwrap_or_default());
    }

    /// Settings that hold from now on, for what is under way, too.
    pub fn take_policy(&mut self, PeerGuard { call_budget, guard }: PeerGuard, routing: Mode) {
        self.fetcher.retune(call_budget, guard);
        self.planner.set_mode(routing);
    }

    /// Whether a connection, or a dial, is one of payload.
    pub fn has(&self, connection: quic::ConnectionId) -> bool {
        self.links.contains_key(&connection)
            || self.dials.contains_key(&connection)
            || self.greeted.contains_key(&connection)
    }

    /// Readable when something has happened on peer sockets.
    pub fn sockets_fd(&self) -> Option<BorrowedFd<'_>> {
        self.sockets.as_ref().map(PeerSockets::fd)
    }

    /// Notes that something has.
    pub fn note_sockets(&mut self) {
        self.sockets_readable = true;
    }

    /// When a turn is due if nothing happens before.
    pub fn next_deadline(&self, now: Moment) -> Option<Moment> {
        let grants = self.grants.as_ref().and_then(Grants::next_deadline);
        // What waits for the endpoint looks again soon.
        let waits = !self.waiting.is_empty() || !self.unasked.is_empty();
        let again = waits.then(|| now + WAITING_LOOK);
        let sockets = self.sockets.as_ref().and_then(|sockets| sockets.next_deadline(now));
        let rooms = grants.into_iter().chain(self.fetcher.next_deadline()).chain(self.egress.next_deadline());
        rooms.chain(again).chain(sockets).min()
    }

    /// How busy this core is: what its answers say.
    pub fn on_summary(&mut self, summary: ResourceSummary) {
        if let Some(grants) = &mut self.grants {
            grants.on_summary(summary);
        }
    }

    /// Bytes that it has given to the network.
    pub fn sent_bytes(&self) -> u64 {
        self.egress.figures().sent_bytes
    }

    /// What it says of itself.
    pub fn report(&self, now: Moment) -> PayloadReport {
        PayloadReport {
            grants: self.grants.as_ref().map(Grants::figures).unwrap_or_default(),
            egress: self.egress.figures(),
            fetcher: self.fetcher.figures(),
            planner: *self.planner.figures(),
            traces: self.planner.traces().cloned().collect(),
            breakers: self.fetcher.breakers(now).collect(),
            sources: self.fetcher.sources().collect(),
            lending: self.lending.len(),
            fetching: self.fetching.len(),
            readers: self.sockets.as_ref().map_or(0, PeerSockets::readers),
            readers_refused: self.sockets.as_ref().map_or(0, PeerSockets::refused),
        }
    }

    /// What the last calls to a source look like, if there were enough.
    pub fn mode_of(&self, source: &SourceStream) -> Option<signature::Mode> {
        self.fetcher.mode_of(source)
    }

    /// This node lives, under this name.
    pub fn on_registered(&mut self, local: Local, shard: &Shard) {
        let bounds =
            GrantSettings::new(local.cluster, local.node, self.shard, local.shards, self.slice_bytes);
        let settings = GrantSettings { egress: self.egress_rate, ..bounds };
        self.grants.get_or_insert_with(|| Grants::new(settings, shard.lent_pool()));
        self.fetcher.on_registered(local);
    }

    /// This node's life is over: nothing more is lent, and nothing is asked for.
    pub fn on_fenced(&mut self, shard: &mut Shard) {
        if let Some(grants) = &mut self.grants {
            grants.on_fence(shard);
        }
        self.fetcher.on_fenced();
        self.planner.on_fenced();
        if let Some(lookups) = &mut self.record_lookups {
            // Their connections are closed.
            lookups.give_back();
        }
    }

    /// Who is a member has changed: connections of lives that are over end.
    pub fn on_members(
        &mut self,
        neighbours: &Neighbours,
        endpoint: &mut Endpoint,
        shard: &mut Shard,
        now: Moment,
    ) {
        self.fetcher.on_members(&neighbours.map);
        self.planner.on_members(&neighbours.map);
        if let Some(grants) = &mut self.grants {
            grants.on_members(&neighbours.map, shard);
        }
        let gone: Vec<_> = (self.links.iter())
            .filter_map(|(&connection, link)| match link {
                Link::Lending { requester, .. } => {
                    let is_member = neighbours.map.has(requester.node, requester.incarnation);
                    (!is_member).then_some(connection)
                }
                Link::Fetching { .. } => None,
            })
            .collect();
        for connection in gone {
            self.end(connection, shard, now);
            endpoint.close(connection, super::close_code::NOT_A_MEMBER, now.0);
        }
    }

    /// What a source has said that others should know.
    pub fn poll_heard(&mut self) -> Option<Heard> {
        self.heard.pop_front()
    }

    /// Another core has heard that this life of a node is over.
    pub fn on_excluded(&mut self, node: NodeId, incarnation: Incarnation) {
        self.fetcher.on_excluded(node, incarnation);
        self.planner.on_excluded(node, incarnation);
    }

    /// Who is a member is not known.
    pub fn on_membership_invalid(&mut self) {
        self.fetcher.on_membership_invalid();
    }

    /// One slice of everything; true if more is to be done at once, beside what [`Payload::is_reading`]. `is_received`
    /// says whether the endpoint has taken in all that had come.
    pub fn turn(&mut self, is_received: bool, shard: &mut Shard, around: &mut Surroundings<'_>) -> bool {
        self.share(around);
        let mut more = self.read(shard, around);
        self.read_shared(sharing::STEPS_TIME);
        self.fetcher.on_read(is_received && !more && !self.is_reading(), around.now);
        more |= self.seek(shard, around);
        self.is_summing = self.sum(shard);
        self.drain(shard);
        if let Some(grants) = &mut self.grants {
            grants.step(around.now, shard);
        }
        more |= self.fetcher.turn(around.now);
        self.lend(shard, around);
        self.fetch(shard, around);
        // What has come may have made room for what is wanted ahead.
        more |= shard.has_seeks();
        self.drain(shard);
        if let Some(sockets) = &mut self.sockets {
            sockets.forget_sources();
        }
        more || self.is_summing
    }

    /// Reads streams in turn, a bounded part of what has come.
    fn read(&mut self, shard: &mut Shard, around: &mut Surroundings<'_>) -> bool {
        let mut left_bytes = READ_BYTES_PER_TURN;
        while left_bytes > 0
            && let Some((connection, stream)) = self.readable.pop_front()
        {
            let read_bytes = match self.links.get(&connection) {
                Some(Link::Lending { .. }) => {
                    self.read_request(connection, stream, left_bytes, shard, around)
                }
                Some(Link::Fetching { .. }) => self.read_answer(connection, stream, left_bytes, around),
                None => 0,
            };
            left_bytes = left_bytes.saturating_sub(read_bytes);
        }
        !self.readable.is_empty()
    }
}

/// The operation of a stream that we read answers from, and the tag of its frames.
#[derive(Clone, Copy, Debug)]
struct Asked {
    operation: OperationId,
    tag: orbitkv_wire::payload::Tag,
}
