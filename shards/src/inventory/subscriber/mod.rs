//! The requester's end of inventory streams: one room for all owner streams of a core (chapter 2.6).
//!
//! Which streams are expected follows from the member map. Each is dialed, opened, resumed or
//! bootstrapped on its own; what it says is checked whole before anything of it is applied, and a view
//! is only ever a source's own words up to its watermark. Nothing here waits: what takes longer than a
//! slice is done in steps by [`Subscriber::turn`].

mod batch;
mod census;
mod close;
mod dialing;
mod figures;
mod fit;
mod frames;
mod freshness;
mod installs;
mod links;
mod membership;
mod session;
mod snapshot;
mod staging;
mod stream;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::ops::Bound;
use std::time::Duration;

use orbitkv_wire::bounds;
use orbitkv_wire::identity::{Incarnation, NamespaceDigest, NodeId, ShardIndex};
use orbitkv_wire::inventory::{ResourceSummary, SourceStream};
use orbitkv_wire::scope::{Scope, ScopeDigest};

use crate::coverage::{CoreCoverage, Standing, Unavailable};
use crate::fence::Reading;
use crate::flow::pressure::SUMMARY_AGE_MAX;
use crate::index::{Owner, Partition, ViewId};
use crate::inventory::{ConnectionId, PermitTicket};
use crate::members::{Local, Member};
use crate::namespaces::Namespaces;
use crate::resilience::degradation::{Degrader, FRESHNESS_BOUND};
use crate::time::Moment;

use batch::{Applying, Batch};
use census::Census;
use dialing::Dials;
use installs::Installs;
use membership::Membership;
use session::Phase;
use snapshot::Bootstrap;
use stream::Stream;

pub use close::CloseCause;
pub use figures::{OwnerDetail, OwnerState, Spans, SubscriberFigures, Traffic};
pub use installs::Install;
pub use stream::StreamId;

/// Bounds of the room; chapter 2.10 says why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriberSettings {
    /// Bytes of unacknowledged pages and deltas a session takes, at least two of the largest frame.
    pub window_bytes: u32,
    /// Largest frame a session takes, header included.
    pub frame_bytes_max: u32,
    /// Frames of a session that may wait.
    pub backlog_frames_max: usize,
    /// Consumed bytes that are acknowledged at once.
    pub ack_bytes: u32,
    /// Longest time that progress is not acknowledged, and least time between two ACKs that give little credit.
    pub ack_wait: Duration,
    /// Changes that are applied in one go; a frame with more is applied in steps of as many.
    pub changes_per_step: usize,
    /// Rows looked at in one step of a sweep.
    pub sweep_rows: usize,
    /// Dials not answered at a time.
    pub dials_max: usize,
    /// Shortest pause before a stream is dialed again.
    pub redial_min: Duration,
    /// Longest pause before a stream is dialed again.
    pub redial_max: Duration,
    /// Longest time without a page after a snapshot was accepted.
    pub page_wait: Duration,
    /// Age beyond which a view proves no absence.
    pub freshness: Duration,
    /// Shortest time before what did not fit is tried again.
    pub misfit_wait: Duration,
    /// When an offer is wanted again that will fit once rows are swept.
    pub sweep_wait: Duration,
}

impl Default for SubscriberSettings {
    fn default() -> Self {
        let frame_bytes_max = bounds::INVENTORY_FRAME_BYTES_MAX as u32;
        SubscriberSettings {
            window_bytes: 2 * frame_bytes_max,
            frame_bytes_max,
            backlog_frames_max: 1_024,
            ack_bytes: frame_bytes_max / 2,
            ack_wait: Duration::from_millis(10),
            // Deltas of so many apply whole (chapter 2.10).
            changes_per_step: 256,
            // As many as a lookup has keys: whoever waits for a step waits about as long as for a lookup.
            sweep_rows: 128,
            dials_max: 8,
            redial_min: Duration::from_millis(100),
            redial_max: Duration::from_secs(3),
            page_wait: Duration::from_secs(5),
            freshness: FRESHNESS_BOUND,
            misfit_wait: Duration::from_secs(30),
            sweep_wait: Duration::from_millis(100),
        }
    }
}

/// What the room fills: the core's own partition and namespace table.
#[derive(Debug)]
pub struct Index<'a> {
    /// The rows.
    pub partition: &'a mut Partition,
    /// The numbers of namespaces.
    pub namespaces: &'a mut Namespaces,
}

/// What the room wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubscriberEffect {
    /// Connect. To be answered once, by [`Subscriber::on_connected`] or [`Subscriber::on_dial_failed`],
    /// even if the stream has ended meanwhile.
    Dial {
        /// For which stream.
        stream: StreamId,
        /// Where the source's shard listens.
        address: SocketAddr,
        /// Who must answer there.
        node: NodeId,
        /// Its shard.
        shard: ShardIndex,
    },
    /// Send these bytes, in the order of the effects.
    Send {
        /// On which connection.
        connection: ConnectionId,
        /// One whole frame.
        bytes: Vec<u8>,
    },
    /// Close the connection; the room has forgotten it already.
    Close {
        /// Which.
        connection: ConnectionId,
        /// Why.
        cause: CloseCause,
    },
    /// Whoever holds the key of a node says that it is another life than this one: read membership anew; the room waits
    /// for nothing.
    Doubt {
        /// The node.
        node: NodeId,
        /// Its life, as far as known.
        incarnation: Incarnation,
    },
    /// A snapshot wants to be received; [`Subscriber::on_permit`] allows it.
    WantPermit(PermitTicket),
    /// A wish or a permit ends. Comes once for every wish.
    ReturnPermit(PermitTicket),
}

/// A member whose streams are expected.
#[derive(Debug)]
struct Peer {
    member: Member,
    number: u32,
    streams: Vec<StreamId>,
}

/// All owner streams of one core.
#[derive(Debug)]
pub struct Subscriber {
    settings: SubscriberSettings,
    local: Local,
    core: ShardIndex,
    scope: Scope,
    scope_digest: ScopeDigest,
    scope_generation: u64,
    membership: Membership,
    revision: u64,
    peers: BTreeMap<NodeId, Peer>,
    /// Peers by their numbers, which rows carry.
    numbers: BTreeMap<u32, NodeId>,
    numbers_made: u32,
    streams: BTreeMap<StreamId, Stream>,
    streams_made: u64,
    connections: BTreeMap<ConnectionId, StreamId>,
    census: Census,
    deadlines: BTreeSet<(Moment, StreamId)>,
    dials: Dials,
    /// Streams with frames that wait, in the order of their turns.
    ready: VecDeque<StreamId>,
    batch: Batch,
    applying: Option<Applying>,
    /// Who waits for a permit.
    tickets: BTreeMap<PermitTicket, StreamId>,
    tickets_made: u64,
    granted: VecDeque<PermitTicket>,
    stagings: BTreeSet<StreamId>,
    /// Whose offers wait until stagings end, in the order in which they came.
    held: VecDeque<StreamId>,
    /// Whether a staging or a wish for one has ended since they were looked at.
    has_room_come: bool,
    /// Hidden views that nobody fills any more.
    orphans: Vec<ViewId>,
    generations: u64,
    effects: VecDeque<SubscriberEffect>,
    figures: SubscriberFigures,
    installs: Installs,
}

impl Subscriber {
    /// A core that has not heard of any member yet.
    ///
    /// # Panics
    /// If the window does not hold two frames, or a step applies nothing.
    #[must_use]
    pub fn new(settings: SubscriberSettings, local: Local, core: ShardIndex, scope: Scope) -> Subscriber {
        assert!(settings.window_bytes / 2 >= settings.frame_bytes_max, "a window holds two frames");
        assert!(settings.changes_per_step > 0 && settings.sweep_rows > 0, "a step does something");
        assert!(settings.dials_max > 0 && settings.backlog_frames_max > 0, "a queue has room");
        assert!(settings.redial_min <= settings.redial_max, "pauses grow");
        assert!(core.0 < local.shards, "a core of this node");
        Subscriber {
            settings,
            local,
            core,
            scope_digest: scope.digest(),
            scope,
            scope_generation: 1,
            membership: Membership::Invalid,
            revision: 0,
            peers: BTreeMap::new(),
            numbers: BTreeMap::new(),
            numbers_made: 0,
            streams: BTreeMap::new(),
            streams_made: 0,
            connections: BTreeMap::new(),
            census: Census::new(Degrader { bound: settings.freshness, ..Degrader::default() }),
            deadlines: BTreeSet::new(),
            dials: Dials::default(),
            ready: VecDeque::new(),
            batch: Batch::default(),
            applying: None,
            tickets: BTreeMap::new(),
            tickets_made: 0,
            granted: VecDeque::new(),
            stagings: BTreeSet::new(),
            held: VecDeque::new(),
            has_room_come: false,
            orphans: Vec::new(),
            generations: 0,
            effects: VecDeque::new(),
            figures: SubscriberFigures::default(),
            installs: Installs::default(),
        }
    }

    /// One bounded slice of what is due: a step of a large frame or the next frame that waits, a step of
    /// the sweep, and deadlines. True if more is due now. A turn is due after every input, too: what inputs
    /// leave behind for the sweep is seen here only.
    pub fn turn(&mut self, index: &mut Index<'_>, now: Moment) -> bool {
        self.note_time(now);
        self.retire_orphans(index);
        if self.membership.is_valid() {
            self.reconsider_held(index, now);
            self.accept_granted(index, now);
        }
        self.advance(index, now);
        let sweeping = index.partition.sweep(self.settings.sweep_rows);
        let late = self.meet_deadlines(now);
        self.dial();
        self.assert_invariants();
        sweeping || late || self.has_work()
    }

    /// Whether a turn has something to do whatever the time is, the sweep apart.
    fn has_work(&self) -> bool {
        let admitting = self.membership.is_valid();
        !self.orphans.is_empty()
            || self.applying.is_some()
            || (admitting && !(self.granted.is_empty() && self.ready.is_empty()))
            || (admitting && self.has_room_come && !self.held.is_empty())
            || (admitting && self.dials.is_due(self.settings.dials_max))
    }

    /// The next thing to do outside.
    pub fn poll_effect(&mut self) -> Option<SubscriberEffect> {
        self.effects.pop_front()
    }

    /// When the next turn has something to do; the beginning of time if it is now.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        if self.has_work() {
            return Some(Moment(0));
        }
        self.deadlines.first().map(|(due, _)| *due)
    }

    /// Notes which views are too old by now, so that [`Subscriber::coverage`] need not look at them again.
    pub fn note_time(&mut self, now: Moment) {
        self.census.note_time(now);
    }

    /// How far this core's streams are, whatever the namespace. Looks only at views that have become too old since
    /// [`Subscriber::note_time`].
    #[must_use]
    pub fn coverage(&self, now: Moment) -> CoreCoverage {
        let left_out = self.census.left_out(now);
        let coverage = CoreCoverage {
            revision: self.revision,
            scope_generation: self.scope_generation,
            raised: self.membership == Membership::Raised,
            standing: self.census.standing(left_out),
            oldest_age: self.census.oldest().map_or(Duration::ZERO, |oldest| now - oldest),
            expected: count(self.census.expected()),
            left_out: count(left_out),
        };
        match self.membership {
            Membership::Invalid => coverage.unavailable(Unavailable::MembershipInvalid),
            Membership::Fenced => coverage.unavailable(Unavailable::LeaseExpired),
            Membership::Lowered | Membership::Raised => coverage,
        }
    }

    /// Whether the scope leaves a namespace out.
    #[must_use]
    pub fn is_out_of_scope(&self, namespace: &NamespaceDigest) -> bool {
        !self.scope.contains(namespace)
    }

    /// A number that differs whenever the installed views do: equal numbers, equal views.
    #[must_use]
    pub fn view_generation(&self) -> u64 {
        self.generations + self.figures.streams_excluded + self.figures.views_withdrawn
    }

    /// How far this core's streams are for one namespace.
    #[must_use]
    pub fn coverage_of(&self, namespace: &NamespaceDigest, now: Moment) -> CoreCoverage {
        let coverage = self.coverage(now);
        match coverage.standing {
            Standing::Unavailable(_) => coverage,
            _ if self.scope.contains(namespace) => coverage,
            _ => coverage.unavailable(Unavailable::OutOfScope),
        }
    }

    /// What is installed of one life of a node on this core, for an await.
    #[must_use]
    pub fn readings(&self, node: NodeId, incarnation: Incarnation) -> Vec<Reading> {
        let peer = self.peers.get(&node).filter(|peer| peer.member.incarnation == incarnation);
        let streams = peer.map_or(&[][..], |peer| &peer.streams).iter().map(|id| &self.streams[id]);
        streams
            .filter_map(|stream| {
                let view = stream.view?;
                let (shard, generation) = (stream.source.shard, view.generation);
                Some(Reading { shard, generation, applied: view.applied })
            })
            .collect()
    }

    /// The member whose number a row's owner carries, if it is still one.
    #[must_use]
    pub fn member(&self, owner: Owner) -> Option<&Member> {
        self.numbers.get(&owner.peer).map(|node| &self.peers[node].member)
    }

    /// How long ago the inventory that a row is of was last known to be whole; none if it never was.
    #[must_use]
    pub fn age_of(&self, owner: Owner, now: Moment) -> Option<Duration> {
        let peer = &self.peers[self.numbers.get(&owner.peer)?];
        let mut streams = peer.streams.iter().map(|id| &self.streams[id]);
        let stream = streams.find(|stream| stream.source.shard == owner.shard)?;
        Some(now.since(stream.freshness.fresh_at()?))
    }

    /// How long ago the inventory of a source was last known to be whole; none if it never was.
    #[must_use]
    pub fn view_age(&self, source: &SourceStream, now: Moment) -> Option<Duration> {
        let fresh_at = self.streams[&self.stream_of(source)?].freshness.fresh_at()?;
        Some(now.since(fresh_at))
    }

    /// Whether anything was heard of a member lately: a view of one of its streams is fresh, or a session has begun that
    /// is to bring one.
    #[must_use]
    pub fn hears(&self, node: NodeId, now: Moment) -> bool {
        let streams = self.peers.get(&node).into_iter().flat_map(|peer| &peer.streams);
        streams.map(|id| &self.streams[id]).any(|stream| {
            let fresh_at = stream.freshness.fresh_at();
            let phase = stream.session().map(|session| &session.phase);
            fresh_at.is_some_and(|fresh_at| now.since(fresh_at) <= self.settings.freshness)
                || matches!(phase, Some(Phase::Bootstrapping(_)))
        })
    }

    /// How busy a source said that it is, and how long ago; none if that is too long ago to say anything, or of
    /// another life.
    #[must_use]
    pub fn summary_of(&self, source: &SourceStream, now: Moment) -> Option<(ResourceSummary, Duration)> {
        let (summary, received) = self.streams[&self.stream_of(source)?].summary?;
        let age = now.since(received);
        // Before its first window has ended it has measured nothing.
        (summary.window_ms > 0 && age <= SUMMARY_AGE_MAX).then_some((summary, age))
    }

    /// A source has said elsewhere how busy it is.
    pub fn on_summary(&mut self, source: &SourceStream, summary: ResourceSummary, now: Moment) {
        if let Some(id) = self.stream_of(source) {
            self.streams.get_mut(&id).expect("just found").summary = Some((summary, now));
        }
    }

    fn stream_of(&self, source: &SourceStream) -> Option<StreamId> {
        let mut streams = self.peers.get(&source.node)?.streams.iter();
        streams.find(|id| self.streams[id].source == *source).copied()
    }

    /// Up to `count` owner streams after `after`, in the order of their numbers.
    pub fn owners<'a>(
        &'a self,
        after: Option<StreamId>,
        count: usize,
        partition: &'a Partition,
    ) -> impl Iterator<Item = OwnerDetail> + 'a {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.streams
            .range((from, Bound::Unbounded))
            .take(count)
            .map(|(&id, stream)| stream.detail(id, partition))
    }

    /// How long no page has come of the bootstrap that waits longest; none if no stream lacks its view.
    #[must_use]
    pub fn bootstrap_age(&self, now: Moment) -> Option<Duration> {
        self.streams.values().filter_map(|stream| stream.bootstrap_age(self.settings.page_wait, now)).max()
    }

    /// Counters.
    #[must_use]
    pub fn figures(&self) -> &SubscriberFigures {
        &self.figures
    }

    /// Streams that wait for an answer to their dial.
    #[must_use]
    pub fn dials_pending(&self) -> usize {
        self.dials.pending()
    }

    /// Brings what is derived from a stream up to date: counts and deadline.
    fn settle(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let tally = stream.count();
        self.census.change(id, Some(stream.tally), Some(tally));
        stream.tally = tally;
        let deadline = stream.next_deadline(self.membership.is_valid());
        if deadline != stream.deadline {
            if let Some(before) = stream.deadline {
                self.deadlines.remove(&(before, id));
            }
            if let Some(after) = deadline {
                self.deadlines.insert((after, id));
            }
            stream.deadline = deadline;
        }
        let applied = stream.applied();
        self.installs.note(stream.source, &mut stream.told, applied);
    }

    fn settle_all(&mut self) {
        for id in self.streams.keys().copied().collect::<Vec<_>>() {
            self.settle(id);
        }
    }

    fn assert_invariants(&self) {
        assert_eq!(self.census.expected(), self.streams.len(), "every expected stream is counted");
        assert!(self.dials.pending() <= self.settings.dials_max, "dials keep their bound");
        let others = self.has_room_come || !(self.stagings.is_empty() && self.tickets.is_empty());
        assert!(self.held.is_empty() || others, "who waits for others has others to wait for");
        if cfg!(debug_assertions) {
            for (id, stream) in &self.streams {
                assert_eq!(stream.tally, stream.count(), "what is counted of {id:?} is so");
                assert_eq!(stream.deadline, stream.next_deadline(self.membership.is_valid()));
                let connection = stream.connection();
                assert!(connection.is_none_or(|connection| self.connections[&connection] == *id));
            }
            let waits = |id: &StreamId| {
                let session = self.streams.get(id).and_then(Stream::session);
                session.is_some_and(|session| session.backlog().0 > 0)
            };
            assert!(self.ready.iter().all(waits), "who is ready has frames that wait");
            let is_held = |stream: &&Stream| {
                let phase = stream.session().map(|session| &session.phase);
                matches!(phase, Some(Phase::Bootstrapping(Bootstrap::Held(_))))
            };
            let held = self.streams.values().filter(is_held).count();
            assert_eq!(held, self.held.len(), "every held offer is a session's");
            let permits = self.streams.values().filter(|stream| stream.holds_ticket()).count();
            assert_eq!(permits, self.tickets.len() + self.stagings.len(), "every wish is a session's");
            let sessions = self.streams.values().filter(|stream| stream.session().is_some()).count();
            assert_eq!(sessions, self.connections.len(), "every connection is of a session");
        }
    }
}

/// So many streams, as answers say it.
fn count(streams: usize) -> u32 {
    u32::try_from(streams).unwrap_or(u32::MAX)
}
