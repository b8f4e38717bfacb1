//! What a core has to do with its peers: one QUIC endpoint, both ends of the inventory streams, and this
//! core's partition of the index of what others hold.
//!
//! The rooms decide and the endpoint carries; what is here moves frames between them and keeps count of
//! which connection belongs to which session. Nothing waits: a [`Peers::turn`] takes what has come, lets
//! each room do one slice, and sends what they say.
//!
//! After the admission deadline of this node's life nothing a peer says is taken in, though it may have
//! arrived before: it stays unread until control has prolonged the life or ended it.

mod doubts;
mod life;
mod links;
mod lookup;
mod lookups;
mod payload;
mod permits;
mod report;
mod samples;
mod settings;
mod zones;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use orbitkv_native::arena::Arena;
use orbitkv_native::entropy;
use orbitkv_native::quic::{self, Endpoint, Event, Origin, Purpose};
use orbitkv_shards::coverage::{CoreCoverage, Standing, Unavailable};
use orbitkv_shards::flow::pressure::{Level, Pressure};
use orbitkv_shards::index::Partition;
use orbitkv_shards::inventory::permits::Permits;
use orbitkv_shards::inventory::publisher::{CloseCause, Publisher, PublisherEffect};
use orbitkv_shards::inventory::subscriber::{Index, StreamId, Subscriber, SubscriberEffect};
use orbitkv_shards::members::Local;
use orbitkv_shards::membership::{LookupDone, LookupPurpose, LookupWish, RefreshPolicy};
use orbitkv_shards::planner::ZonePreference;
use orbitkv_shards::shard::Shard;
use orbitkv_shards::time::Moment;
use orbitkv_wire::config::place_hash;
use orbitkv_wire::identity::{NamespaceDigest, NodeId, Sequence, SessionId, ShardIndex};

use crate::core::mail::{Answer, Letter};
use crate::settings::PeerGuard;
use crate::turns::What;
use crate::turns::recorder::Trace;
use doubts::Doubts;
use life::Life;
use links::{Links, Side};
use lookup::LookupBuffer;
use lookups::LookupQueue;
use payload::{Payload, PayloadSettings, Surroundings};
use samples::Samples;

pub use life::{LifeLetter, Neighbours};
pub use payload::{PEER_DESCRIPTORS_PER_CORE, PayloadReport, PeerSockets, bind_peer_socket, socket_path};
pub use permits::{PermitLetter, Pool};
pub use report::{OwnerRow, OwnersPage, PeersReport, ReadingsAnswer, ReadingsQuestion};
pub use samples::{Excerpt, Installed, Published, SamplesAnswer, SamplesQuestion, samples_bytes};
pub use settings::{PeersSettings, RECEIVE_SLICE_BYTES_MIN, SettingsRefused};

/// Bytes of streams that a turn reads. What is left waits for the next one.
const READ_BYTES_PER_TURN: usize = 64 * 1024;

/// Codes with which this node closes connections.
mod close_code {
    /// The session is over.
    pub const ENDED: u32 = 1;
    /// What was sent is no frame of the protocol.
    pub const BROKEN: u32 = 2;
    /// Nobody here speaks to the holder of this key.
    pub const NOT_A_MEMBER: u32 = 3;
    /// A connection of this purpose is of no use here.
    pub const NOT_SERVED: u32 = 4;
}

/// A dial of the subscriber's.
#[derive(Clone, Copy, Debug)]
struct Dial {
    stream: StreamId,
    node: NodeId,
    address: SocketAddr,
}

/// What a core has to do with its peers.
pub struct Peers {
    shard: ShardIndex,
    local: Local,
    life: Life,
    neighbours: Neighbours,
    /// Whose zone is asked first.
    zones: ZonePreference,
    failover_checks: u32,
    endpoint: Endpoint,
    publisher: Publisher,
    subscriber: Subscriber,
    partition: Partition,
    payload: Payload,
    /// On core 0: permits for snapshots served and received.
    pools: Option<[Permits; 2]>,
    links: Links,
    dials: HashMap<quic::ConnectionId, StreamId>,
    /// Dials whose source is looked up first, if that is the policy.
    record_lookups: Option<LookupQueue<Dial>>,
    lookup: LookupBuffer,
    doubts: Doubts,
    /// For other cores and control, in order.
    letters: VecDeque<(usize, Letter)>,
    answers: VecDeque<Answer>,
    /// Random once; a snapshot's id is this and how many were offered the chance before.
    draws: u128,
    head_seen: Sequence,
    due: bool,
    deadline: Option<Moment>,
    handshake_turns: u64,
    /// Whether who is a member is not known: nobody is admitted.
    is_suspended: bool,
    /// Whether some member's shards are other ranges of the hash than ours.
    streams_elsewhere: bool,
    /// For whoever measures how soon changes are seen.
    samples: Option<Samples>,
    /// How busy this core is, for others.
    pressure: Pressure,
}

impl Peers {
    /// A core that knows nobody and is nobody's member yet.
    ///
    /// # Errors
    /// If the socket cannot be set up.
    pub fn new(
        settings: &PeersSettings,
        shard: ShardIndex,
        port: std::net::UdpSocket,
        arena: Arena,
        sockets: Option<PeerSockets<quic::ConnectionId>>,
        now: Moment,
    ) -> Result<Peers, quic::EndpointError> {
        let local = settings.local;
        let endpoint = Endpoint::new(settings.endpoint.clone(), port, &settings.key, now.0)?;
        let mut publisher = Publisher::new(settings.publisher, local, shard);
        let mut subscriber = Subscriber::new(settings.subscriber, local, shard, settings.scope.clone());
        // Until a life is registered there is none to speak for, though members may be known before.
        publisher.on_fenced(now);
        subscriber.on_fenced(now);
        let samples = Samples::with_room(settings.visibility_samples);
        if samples.is_some() {
            subscriber.watch_installs();
        }
        let partition = Partition::new(settings.index)
            .with_prefetch(orbitkv_native::prefetch::prefetch)
            .with_advice(orbitkv_native::huge_pages::advise);
        let rates = settings.rates.of_shard(shard.0, local.shards);
        let mut payload = Payload::new(
            shard,
            arena,
            sockets,
            PayloadSettings {
                slice_bytes: settings.slice_bytes,
                window_bytes: settings.endpoint.payload.receive_pool_bytes,
                background_bytes_max: settings.background_bytes_max,
                rates,
                routing: settings.routing,
                guard: PeerGuard {
                    guard: settings.guard.guard.of_core(shard.0, local.shards),
                    ..settings.guard
                },
            },
        );
        let looks_up_first = settings.refresh == RefreshPolicy::Lookup;
        if looks_up_first {
            payload.look_up_first();
        }
        Ok(Peers {
            shard,
            local,
            life: Life::Unregistered,
            neighbours: Neighbours::default(),
            zones: ZonePreference::new(&settings.zone, place_hash(local.node), settings.failover_checks),
            failover_checks: settings.failover_checks,
            endpoint,
            publisher,
            subscriber,
            partition,
            payload,
            record_lookups: looks_up_first
                .then(|| LookupQueue::new(shard, LookupPurpose::Inventory, settings.subscriber.dials_max)),
            pools: (shard.0 == 0).then(|| permits::pools(settings.sessions_max * usize::from(local.shards))),
            links: Links::default(),
            dials: HashMap::new(),
            lookup: LookupBuffer::default(),
            doubts: Doubts::default(),
            letters: VecDeque::new(),
            answers: VecDeque::new(),
            draws: entropy::random_u128(),
            head_seen: Sequence(0),
            due: true,
            deadline: None,
            handshake_turns: 0,
            is_suspended: true,
            streams_elsewhere: false,
            samples,
            pressure: Pressure::new(rates.egress, now),
        })
    }

    /// The descriptor that is readable when datagrams have come.
    #[must_use]
    pub fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.endpoint.fd()
    }

    /// The descriptor that is readable when something has happened on peer sockets, if memory is shared at all.
    #[must_use]
    pub fn sockets_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.payload.sockets_fd()
    }

    /// Notes that something has happened on peer sockets.
    pub fn wake_sockets(&mut self) {
        self.payload.note_sockets();
        self.due = true;
    }

    /// Notes how busy the core is as a turn ends; until the next one it stays so.
    pub fn observe(&mut self, shard: &Shard, now: Moment) {
        let level = Level {
            device_operations: shard.transfers() as u64,
            reads: shard.pins() as u64,
            sent_bytes: self.payload.sent_bytes(),
        };
        if let Some(summary) = self.pressure.look(level, now) {
            self.publisher.on_summary(summary);
            self.payload.on_summary(summary);
        }
    }

    /// Notes that a turn has something to do.
    pub fn wake(&mut self) {
        self.due = true;
    }

    /// Whether a turn has something to do, given the head of the journal.
    #[must_use]
    pub fn is_due(&self, head: Sequence, now: Moment) -> bool {
        self.due || head != self.head_seen || self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// When a turn is due if nothing happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        self.deadline
    }

    /// One bounded slice of everything; true if more is to be done at once. `boot` is of `CLOCK_BOOTTIME`.
    pub fn turn(&mut self, shard: &mut Shard, trace: &mut Trace, now: Moment, boot: Moment) -> bool {
        self.due = false;
        let before = self.endpoint.turn(now.0);
        self.handshake_turns += u64::from(before.shook_hands);
        let (payload, mut around) = self.payload_around(now, boot);
        payload.attend(shard, &mut around);
        if self.life.is_overdue(boot) {
            self.deadline = before.deadline_ns.map(Moment);
            return before.more;
        }
        let head = shard.head();
        self.head_seen = head;
        while let Some(event) = self.endpoint.poll_event() {
            self.on_event(event, shard, now, boot);
        }
        trace.lap(What::Datagrams);
        let mut more = before.more | self.read_links(shard, head, now);
        trace.lap(What::Frames);
        self.draws = self.draws.wrapping_add(1);
        more |= self.publisher.turn(&shard.source(), self.draws, now);
        trace.lap(What::Publisher);
        let mut index = Index { partition: &mut self.partition, namespaces: shard.namespaces_mut() };
        more |= self.subscriber.turn(&mut index, now);
        samples::note_installs(&mut self.samples, &mut self.subscriber);
        trace.lap(What::Subscriber);
        self.interpret(now);
        self.check_zones(now, boot);
        trace.lap(What::Departures);
        let (payload, mut around) = self.payload_around(now, boot);
        more |= payload.turn(!before.is_behind, shard, &mut around);
        trace.lap(What::Payload);
        self.gather_doubts();
        let after = self.endpoint.flush(now.0);
        let deadlines = [
            after.deadline_ns.map(Moment),
            self.publisher.next_deadline(),
            self.subscriber.next_deadline(),
            self.links.next_deadline(),
            self.payload.next_deadline(now),
            self.zones.next_check(),
        ];
        self.deadline = deadlines.into_iter().flatten().min();
        trace.lap(What::Departures);
        more | after.more
    }

    /// Whether bytes are left to be read where other nodes of this host have them. A life whose time is over reads none.
    #[must_use]
    pub fn is_reading(&self, boot: Moment) -> bool {
        self.payload.is_reading() && !self.life.is_overdue(boot)
    }

    /// Reads on, and nothing else: what a turn comes down to that has no other reason. A whole turn is due when a block
    /// has come.
    pub fn read_on(&mut self) {
        self.due |= self.payload.read_on();
    }

    /// Lets what is in the journal be told at once: somebody took a fence.
    pub fn expose(&mut self) {
        self.publisher.expose();
        self.due = true;
    }

    /// The next letter to another core.
    pub fn poll_letter(&mut self) -> Option<(usize, Letter)> {
        self.letters.pop_front()
    }

    /// Gives a letter back that found its lane full.
    pub fn return_letter(&mut self, to: usize, letter: Letter) {
        self.letters.push_front((to, letter));
    }

    /// The next word to control.
    pub fn poll_answer(&mut self) -> Option<Answer> {
        self.answers.pop_front()
    }

    /// How far this core's owner streams are, whatever the namespace.
    #[must_use]
    pub fn coverage(&self, now: Moment, boot: Moment) -> CoreCoverage {
        let coverage = self.subscriber.coverage(now);
        match self.life.is_member(boot) {
            true => coverage,
            false => coverage.unavailable(Unavailable::LeaseExpired),
        }
    }

    /// The same, for the worst of some namespaces.
    #[must_use]
    pub fn coverage_of(&self, namespaces: &[NamespaceDigest], now: Moment, boot: Moment) -> CoreCoverage {
        let mut coverage = self.coverage(now, boot);
        let out_of_scope = |namespace| self.subscriber.is_out_of_scope(namespace);
        if !matches!(coverage.standing, Standing::Unavailable(_)) && namespaces.iter().any(out_of_scope) {
            coverage = coverage.unavailable(Unavailable::OutOfScope);
        }
        if self.streams_elsewhere && matches!(coverage.standing, Standing::NoneExpected | Standing::Complete)
        {
            // Rows of nodes with another number of shards are on another core, which is not asked.
            coverage.standing = Standing::Partial;
        }
        coverage
    }

    /// The payload connections, and what they need of the rest.
    fn payload_around(&mut self, now: Moment, boot: Moment) -> (&mut Payload, Surroundings<'_>) {
        let coverage = self.coverage(now, boot);
        let may_ask = !matches!(coverage.standing, Standing::Unavailable(_));
        let life = match self.life {
            life if life.is_member(boot) && !self.is_suspended => {
                let Local { epoch, incarnation, .. } = self.local;
                orbitkv_shards::grants::Life::Serving { epoch, incarnation }
            }
            _ => orbitkv_shards::grants::Life::Fenced,
        };
        let Peers { payload, endpoint, partition, subscriber, neighbours, .. } = self;
        (payload, Surroundings { endpoint, partition, subscriber, neighbours, may_ask, life, now })
    }

    fn on_event(&mut self, event: Event, shard: &mut Shard, now: Moment, boot: Moment) {
        let (Event::Connected { connection, .. }
        | Event::Lost { connection, .. }
        | Event::StreamOpened { connection, .. }
        | Event::Readable { connection, .. }
        | Event::Writable { connection, .. }
        | Event::Delivered { connection, .. }
        | Event::Stopped { connection, .. }
        | Event::StreamsAvailable { connection }) = event;
        if let Event::Connected { peer, purpose: Purpose::Payload, origin, .. } = event {
            let node = self.neighbours.holder(peer);
            let (payload, mut around) = self.payload_around(now, boot);
            return payload.on_connected(connection, origin, node, shard, &mut around);
        }
        if self.payload.has(connection) {
            let (payload, mut around) = self.payload_around(now, boot);
            return payload.on_event(&event, shard, &mut around);
        }
        match event {
            Event::Connected { connection, peer, origin, .. } => match origin {
                Origin::Dialled => self.on_dialled(connection, now),
                Origin::Accepted => match self.neighbours.holder(peer) {
                    Some(node) => {
                        let id = self.links.add(connection, Side::Source);
                        self.publisher.on_connected(id, node, now);
                    }
                    None => self.endpoint.close(connection, close_code::NOT_A_MEMBER, now.0),
                },
            },
            Event::Lost { connection, loss } => {
                if let Some(stream) = self.dials.remove(&connection) {
                    tracing::debug!(core = self.shard.0, ?loss, "a dial has failed");
                    self.subscriber.on_dial_failed(stream, entropy::random_u64(), now);
                } else if let Some((id, side)) = self.links.remove(connection) {
                    tracing::debug!(core = self.shard.0, ?loss, ?side, "an inventory connection is lost");
                    self.on_closed(id, side, now);
                }
            }
            Event::StreamOpened { connection, stream } => {
                if !self.links.attach(connection, stream) {
                    // One stream is all that a session has.
                    self.endpoint.abandon(connection, stream, close_code::NOT_SERVED);
                }
            }
            Event::Readable { connection, .. } => self.links.note_readable(connection),
            Event::Writable { connection, .. } => {
                if let Some(id) = self.links.flush(connection, &mut self.endpoint) {
                    self.publisher.on_writable(id);
                }
            }
            Event::Delivered { connection, .. } | Event::Stopped { connection, .. } => {
                // Either we were done with it, or the peer is.
                self.endpoint.close(connection, close_code::ENDED, now.0);
                if let Some((id, side)) = self.links.remove(connection) {
                    self.on_closed(id, side, now);
                }
            }
            Event::StreamsAvailable { .. } => {}
        }
    }

    fn on_dialled(&mut self, connection: quic::ConnectionId, now: Moment) {
        let Some(stream) = self.dials.remove(&connection) else {
            return self.endpoint.close(connection, close_code::ENDED, now.0);
        };
        match self.endpoint.open(connection, quic::Priority::Ordinary) {
            Ok(opened) => {
                let id = self.links.add(connection, Side::Requester);
                self.links.attach(connection, opened);
                let session = SessionId(entropy::random_bytes());
                self.subscriber.on_connected(stream, id, session, now);
            }
            Err(_) => {
                self.endpoint.close(connection, close_code::ENDED, now.0);
                self.subscriber.on_dial_failed(stream, entropy::random_u64(), now);
            }
        }
    }

    fn on_closed(&mut self, id: orbitkv_shards::inventory::ConnectionId, side: Side, now: Moment) {
        match side {
            Side::Source => self.publisher.on_closed(id, now),
            Side::Requester => self.subscriber.on_closed(id, entropy::random_u64(), now),
        }
    }

    /// Reads what has come, a bounded part of it, and hands each whole frame to its room.
    fn read_links(&mut self, shard: &mut Shard, head: Sequence, now: Moment) -> bool {
        let Peers { links, endpoint, publisher, subscriber, partition, samples, .. } = self;
        let mut index = Index { partition, namespaces: shard.namespaces_mut() };
        let ended = links.read(endpoint, READ_BYTES_PER_TURN, |id, side, frame| match side {
            Side::Source => publisher.on_frame(id, frame, head, now),
            Side::Requester => {
                subscriber.on_frame(id, frame, &mut index, now);
                samples::note_installs(samples, subscriber);
            }
        });
        for (connection, code) in ended {
            self.endpoint.close(connection, code, now.0);
            if let Some((id, side)) = self.links.remove(connection) {
                self.on_closed(id, side, now);
            }
        }
        self.links.has_unread()
    }

    /// Does what the rooms want done.
    fn interpret(&mut self, now: Moment) {
        while let Some(effect) = self.publisher.poll_effect() {
            match effect {
                PublisherEffect::Send { connection, header, body } => {
                    let frame = [&header[..], &body].concat();
                    if !self.links.send(connection, frame.into(), &mut self.endpoint) {
                        self.publisher.on_blocked(connection);
                    }
                }
                PublisherEffect::Close { connection, cause: CloseCause::Refused(refusal) } => {
                    tracing::debug!(core = self.shard.0, ?refusal, "a session was refused");
                    // It hears why before the connection ends.
                    self.links.finish(connection, &mut self.endpoint, now);
                }
                PublisherEffect::Close { connection, cause } => {
                    tracing::debug!(core = self.shard.0, %cause, "an inventory session ends at its source");
                    self.close(connection, now);
                }
                PublisherEffect::Behind { node, incarnation } => self.on_behind(node, incarnation),
                PublisherEffect::WantPermit(ticket) => self.ask_permit(Pool::Served, ticket, true, now),
                PublisherEffect::ReturnPermit(ticket) => self.ask_permit(Pool::Served, ticket, false, now),
            }
        }
        while let Some(effect) = self.subscriber.poll_effect() {
            match effect {
                SubscriberEffect::Dial { stream, address, node, .. } => {
                    let wanted = Dial { stream, node, address };
                    match &mut self.record_lookups {
                        Some(lookups) => lookups.park(node, wanted),
                        None => self.dial(wanted, now),
                    }
                }
                SubscriberEffect::Doubt { node, incarnation } => self.on_another_life(node, incarnation),
                SubscriberEffect::Send { connection, bytes } => {
                    self.links.send(connection, bytes.into(), &mut self.endpoint);
                    if self.links.is_stuck(connection) {
                        self.close(connection, now);
                        self.subscriber.on_closed(connection, entropy::random_u64(), now);
                    }
                }
                SubscriberEffect::Close { connection, cause } => {
                    tracing::debug!(core = self.shard.0, %cause, "an inventory session ends at its requester");
                    self.close(connection, now);
                }
                SubscriberEffect::WantPermit(ticket) => self.ask_permit(Pool::Received, ticket, true, now),
                SubscriberEffect::ReturnPermit(ticket) => {
                    self.ask_permit(Pool::Received, ticket, false, now);
                }
            }
        }
        for connection in self.links.overdue(now) {
            self.endpoint.close(connection, close_code::ENDED, now.0);
            self.links.remove(connection);
        }
    }

    fn dial(&mut self, Dial { stream, node, address }: Dial, now: Moment) {
        let dialled = self.neighbours.key_of(node).map(|key| {
            self.endpoint.dial(address, key, Purpose::Inventory, now.0).map_err(|refusal| {
                tracing::debug!(core = self.shard.0, %node, %refusal, "no dial");
            })
        });
        match dialled {
            Some(Ok(connection)) => {
                self.dials.insert(connection, stream);
            }
            Some(Err(())) | None => self.subscriber.on_dial_failed(stream, entropy::random_u64(), now),
        }
    }

    /// The next record that is to be read before its node is asked.
    pub fn poll_lookup(&mut self) -> Option<LookupWish> {
        self.record_lookups.as_mut().and_then(LookupQueue::poll_wish).or_else(|| self.payload.poll_lookup())
    }

    /// A record has been read: what waited for it goes on.
    fn on_looked_up(&mut self, done: &LookupDone, now: Moment) {
        let released = self.record_lookups.as_mut().map(|lookups| lookups.release(done)).unwrap_or_default();
        released.into_iter().for_each(|wanted| self.dial(wanted, now));
        self.payload.on_looked_up(done);
    }

    /// Ends a connection whose room has forgotten it.
    fn close(&mut self, id: orbitkv_shards::inventory::ConnectionId, now: Moment) {
        if let Some(connection) = self.links.forget(id) {
            self.endpoint.close(connection, close_code::ENDED, now.0);
        }
    }
}
