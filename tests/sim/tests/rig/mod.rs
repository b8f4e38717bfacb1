//! Sources and requesters of one shard each, wired frame by frame and without chance, for tests that need
//! both ends. What is delivered can be held back, dropped and forged.

#![allow(dead_code, reason = "each test file uses its part")]

mod answers;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use orbitkv_shards::index::{IndexSettings, Partition};
use orbitkv_shards::inventory::ConnectionId;
use orbitkv_shards::inventory::permits::{Applicant, PermitEffect, Permits, SNAPSHOTS_MAX};
use orbitkv_shards::inventory::publisher::{
    CloseCause as SourceClose, Publisher, PublisherEffect, PublisherSettings, Residence, Residences, Source,
};
use orbitkv_shards::inventory::subscriber::{
    CloseCause, Index, StreamId, Subscriber, SubscriberEffect, SubscriberSettings,
};
use orbitkv_shards::journal::{Journal, JournalSettings, RECORD_BYTES};
use orbitkv_shards::key::StateKey;
use orbitkv_shards::members::{Local, Member, MemberMap};
use orbitkv_shards::namespaces::Namespaces;
use orbitkv_shards::time::Moment;
use orbitkv_wire::bounds::INVENTORY_FRAME_BYTES_MAX;
use orbitkv_wire::identity::{
    BlockHash, ClusterUuid, GroupId, Incarnation, Medium, NamespaceDigest, NodeId, Sequence, SessionId,
    ShardIndex,
};
use orbitkv_wire::inventory::{HEADER_BYTES, Header, Kind, split_frame};
use orbitkv_wire::scope::Scope;

/// A block as tests name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub namespace: u8,
    pub group: u16,
    pub block: u64,
}

/// A block of the first namespace in group zero.
pub fn key(block: u64) -> Key {
    Key { namespace: 0, group: 0, block }
}

pub fn digest(namespace: u8) -> NamespaceDigest {
    NamespaceDigest([namespace + 1; 32])
}

impl Key {
    pub fn hash(&self) -> BlockHash {
        let mut block = [0; 32];
        block[..8].copy_from_slice(&self.block.to_be_bytes());
        BlockHash(block)
    }
}

/// What is shrunk or narrowed in a test.
#[derive(Clone)]
pub struct Settings {
    pub journal_records: usize,
    pub interval_records: usize,
    pub body_bytes: usize,
    pub window_frames: usize,
    pub page_records: usize,
    pub step_records: usize,
    pub index_bytes: u64,
    pub scope: Scope,
    pub coalesce: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            journal_records: 1_000,
            interval_records: 64,
            body_bytes: 8_192,
            window_frames: 4,
            page_records: 256,
            step_records: 256,
            index_bytes: 1 << 20,
            scope: Scope::All,
            coalesce: Duration::ZERO,
        }
    }
}

impl Settings {
    fn publisher(&self) -> PublisherSettings {
        let frame_bytes_max = self.body_bytes + HEADER_BYTES;
        let stream_bytes_max = frame_bytes_max * self.window_frames;
        PublisherSettings {
            coalescing_window: self.coalesce,
            journal: self.journal(),
            delta_records_max: self.interval_records,
            page_records_max: self.page_records,
            page_bytes_max: self.body_bytes,
            frame_bytes_max,
            stream_bytes_max,
            stream_frames_max: 64,
            queue_bytes_max: 8 * stream_bytes_max,
            bytes_per_second: 1 << 30,
            burst_bytes: 1 << 30,
            connections_max: 64,
            sessions_max: 64,
            slice_records: 256,
            slice_bytes: 64 << 10,
        }
    }

    fn journal(&self) -> JournalSettings {
        JournalSettings {
            capacity_bytes: self.journal_records * RECORD_BYTES,
            interval_records_max: self.interval_records,
            interval_bytes_max: self.interval_records * RECORD_BYTES,
        }
    }

    fn subscriber(&self) -> SubscriberSettings {
        let frame_bytes_max = (self.body_bytes + HEADER_BYTES) as u32;
        SubscriberSettings {
            window_bytes: frame_bytes_max * self.window_frames as u32,
            frame_bytes_max,
            ack_bytes: frame_bytes_max / 2,
            changes_per_step: self.step_records,
            ..SubscriberSettings::default()
        }
    }
}

/// What a source holds.
#[derive(Default)]
pub struct Table(BTreeMap<(StateKey, Medium), (u32, Sequence)>);

impl Residences for Table {
    fn after(&self, cursor: Option<(StateKey, Medium)>) -> impl Iterator<Item = Residence> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = cursor.map_or(Unbounded, Excluded);
        self.0.range((from, Unbounded)).map(|(&(key, medium), &(bytes, sequence))| Residence {
            key,
            medium,
            bytes,
            sequence,
        })
    }

    fn len_max(&self) -> u64 {
        self.0.len() as u64
    }
}

pub struct SourceEnd {
    pub local: Local,
    pub address: SocketAddr,
    pub journal: Journal,
    pub table: Table,
    pub namespaces: Namespaces,
    pub publisher: Publisher,
    permits: Permits,
    settings: Settings,
    /// Why it has ended connections, by its own will.
    pub closed: Vec<SourceClose>,
    /// What it has, by the names of tests.
    pub truth: BTreeMap<(Key, Medium), (Sequence, u32)>,
}

pub struct RequesterEnd {
    pub local: Local,
    pub subscriber: Subscriber,
    pub partition: Partition,
    pub namespaces: Namespaces,
    permits: Permits,
    settings: Settings,
    /// Why it has ended connections, by its own will.
    pub closed: Vec<CloseCause>,
    /// Whether frames for it wait in the transport.
    pub held: bool,
    /// Bytes that the transport takes for it before it says stop.
    pub transport_bytes: usize,
}

/// What becomes of a frame on its way to a requester.
pub type Forger = Box<dyn FnMut(&Header, Vec<u8>) -> Vec<Vec<u8>>>;

struct Wire {
    source: usize,
    requester: usize,
    to_requester: VecDeque<Vec<u8>>,
    to_source: VecDeque<Vec<u8>>,
    blocked: bool,
}

/// All ends, and what is between them.
pub struct Rig {
    pub now: Moment,
    pub sources: Vec<SourceEnd>,
    pub requesters: Vec<RequesterEnd>,
    pub map: MemberMap,
    pub forger: Option<Forger>,
    /// After so many more frames of this kind have been delivered, the first requester is held.
    pub hold_after: Option<(Kind, usize)>,
    /// Whether dials are answered.
    pub reachable: bool,
    /// Frames that sources sent, by their kind's number.
    pub sent: BTreeMap<u8, u64>,
    wires: BTreeMap<ConnectionId, Wire>,
    connections: u64,
    draws: u128,
}

const CLUSTER: ClusterUuid = ClusterUuid([7; 16]);

fn local(name: &str, life: u8) -> Local {
    let node = NodeId::new(name).expect("a legal name");
    let mut incarnation = [life; 16];
    incarnation[0] = name.len() as u8;
    incarnation[1] = name.as_bytes()[name.len() - 1];
    Local { cluster: CLUSTER, node, epoch: u64::from(life), incarnation: Incarnation(incarnation), shards: 1 }
}

impl Rig {
    /// One source and one requester, which know of each other.
    pub fn new(settings: Settings) -> Rig {
        Rig::of(1, 1, settings)
    }

    /// So many of each, which all know of each other.
    pub fn of(sources: usize, requesters: usize, settings: Settings) -> Rig {
        let mut rig = Rig {
            now: Moment(1_000_000_000),
            sources: Vec::new(),
            requesters: Vec::new(),
            map: MemberMap::default(),
            forger: None,
            hold_after: None,
            reachable: true,
            sent: BTreeMap::new(),
            wires: BTreeMap::new(),
            connections: 0,
            draws: 0,
        };
        for number in 0..sources {
            let address = SocketAddr::from(([10, 0, 0, number as u8], 7_000));
            rig.sources.push(SourceEnd::new(
                local(&format!("source-{number}"), 1),
                address,
                settings.clone(),
            ));
        }
        for number in 0..requesters {
            rig.requesters
                .push(RequesterEnd::new(local(&format!("requester-{number}"), 1), settings.clone()));
        }
        rig.publish();
        rig
    }

    /// Everybody that is here is a member, and all are told.
    pub fn publish(&mut self) {
        let all: Vec<Member> = self.members();
        self.publish_members(all);
    }

    /// Who is here, as members.
    pub fn members(&self) -> Vec<Member> {
        let member = |local: &Local, address| Member {
            node: local.node,
            epoch: local.epoch,
            incarnation: local.incarnation,
            shards: 1,
            address,
        };
        let sources = self.sources.iter().map(|end| member(&end.local, end.address));
        let requesters = self
            .requesters
            .iter()
            .enumerate()
            .map(|(number, end)| member(&end.local, SocketAddr::from(([10, 0, 1, number as u8], 7_000))));
        sources.chain(requesters).collect()
    }

    /// These are the members, and all are told.
    pub fn publish_members(&mut self, members: Vec<Member>) {
        self.map = MemberMap::new(self.map.revision + 1, members);
        let (map, now) = (self.map.clone(), self.now);
        for end in &mut self.sources {
            end.publisher.on_members(&map, now);
        }
        for number in 0..self.requesters.len() {
            self.lower(number);
        }
        self.settle();
    }

    /// A requester is told of the newest map, the other requesters left out, and may raise.
    pub fn lower(&mut self, number: usize) {
        let own = self.requesters[number].local.node;
        let others: Vec<_> =
            self.requesters.iter().map(|end| end.local.node).filter(|node| *node != own).collect();
        let mut members = self.map.members().to_vec();
        members.retain(|member| !others.contains(&member.node));
        let map = MemberMap::new(self.map.revision, members);
        let RequesterEnd { subscriber, partition, namespaces, .. } = &mut self.requesters[number];
        subscriber.on_lower(&map, &mut Index { partition, namespaces }, self.now);
        subscriber.on_may_raise(self.map.revision);
    }

    /// Everything that can happen now happens, then time moves on, until `span` has passed.
    pub fn advance(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            self.settle();
            let ends = (self.sources.iter().filter_map(|end| end.publisher.next_deadline()))
                .chain(self.requesters.iter().filter_map(|end| end.subscriber.next_deadline()));
            let next = ends.filter(|due| *due > self.now).min().unwrap_or(end).min(end);
            if self.now == end {
                return;
            }
            self.now = next.max(self.now + Duration::from_micros(100)).min(end);
        }
    }

    /// A second, in which everything should become right.
    pub fn converge(&mut self) {
        self.advance(Duration::from_secs(1));
        self.assert_equal();
    }

    /// Everything that can happen without time passing.
    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            let mut more = false;
            for number in 0..self.sources.len() {
                more |= self.turn_source(number);
            }
            for number in 0..self.requesters.len() {
                more |= self.turn_requester(number);
            }
            more |= self.deliver();
            if !more {
                return;
            }
        }
        panic!("the ends never come to rest");
    }

    fn turn_source(&mut self, number: usize) -> bool {
        self.draws += 1;
        let end = &mut self.sources[number];
        let source = Source { journal: &end.journal, residences: &end.table, namespaces: &end.namespaces };
        let mut more = end.publisher.turn(&source, self.draws, self.now);
        while let Some(effect) = self.sources[number].publisher.poll_effect() {
            more = true;
            let end = &mut self.sources[number];
            match effect {
                PublisherEffect::Send { connection, header, body } => {
                    *self.sent.entry(header[4]).or_default() += 1;
                    let wire = self.wires.get_mut(&connection).expect("it sends on what is open");
                    assert!(!wire.blocked, "nothing is sent while the transport takes nothing");
                    wire.to_requester.push_back([&header[..], &body].concat());
                    let waiting: usize = wire.to_requester.iter().map(Vec::len).sum();
                    if waiting > self.requesters[wire.requester].transport_bytes {
                        wire.blocked = true;
                        end.publisher.on_blocked(connection);
                    }
                }
                PublisherEffect::Close { connection, cause } => {
                    end.closed.push(cause);
                    self.cut(connection);
                }
                // Members are told by the test.
                PublisherEffect::Behind { .. } => {}
                PublisherEffect::WantPermit(ticket) => {
                    end.permits.request(Applicant { shard: ShardIndex(0), ticket }).expect("there is room");
                }
                PublisherEffect::ReturnPermit(ticket) => {
                    end.permits.give_back(Applicant { shard: ShardIndex(0), ticket });
                }
            }
            let end = &mut self.sources[number];
            while let Some(effect) = end.permits.poll_effect() {
                match effect {
                    PermitEffect::Granted(applicant) => end.publisher.on_permit(applicant.ticket, self.now),
                    PermitEffect::Waits { applicant, position } => {
                        end.publisher.on_permit_waits(applicant.ticket, position, self.now);
                    }
                }
            }
        }
        more
    }

    fn turn_requester(&mut self, number: usize) -> bool {
        let now = self.now;
        let RequesterEnd { subscriber, partition, namespaces, .. } = &mut self.requesters[number];
        let mut more = subscriber.turn(&mut Index { partition, namespaces }, now);
        while let Some(effect) = self.requesters[number].subscriber.poll_effect() {
            more = true;
            let end = &mut self.requesters[number];
            match effect {
                SubscriberEffect::Dial { stream, address, node, .. } => {
                    self.dial(number, stream, address, node);
                }
                SubscriberEffect::Send { connection, bytes } => {
                    if let Some(wire) = self.wires.get_mut(&connection) {
                        wire.to_source.push_back(bytes);
                    }
                }
                SubscriberEffect::Close { connection, cause } => {
                    end.closed.push(cause);
                    self.cut(connection);
                }
                // Members are told by the test.
                SubscriberEffect::Doubt { .. } => {}
                SubscriberEffect::WantPermit(ticket) => {
                    end.permits.request(Applicant { shard: ShardIndex(0), ticket }).expect("there is room");
                }
                SubscriberEffect::ReturnPermit(ticket) => {
                    end.permits.give_back(Applicant { shard: ShardIndex(0), ticket });
                }
            }
            let end = &mut self.requesters[number];
            while let Some(effect) = end.permits.poll_effect() {
                if let PermitEffect::Granted(applicant) = effect {
                    end.subscriber.on_permit(applicant.ticket, now);
                }
            }
        }
        more
    }

    fn dial(&mut self, requester: usize, stream: StreamId, address: SocketAddr, node: NodeId) {
        let found = self.sources.iter().position(|end| end.address == address && end.local.node == node);
        let (Some(source), true) = (found, self.reachable) else {
            let RequesterEnd { subscriber, .. } = &mut self.requesters[requester];
            return subscriber.on_dial_failed(stream, 0, self.now);
        };
        self.connections += 1;
        let connection = ConnectionId(self.connections);
        let wire = Wire {
            source,
            requester,
            to_requester: VecDeque::new(),
            to_source: VecDeque::new(),
            blocked: false,
        };
        self.wires.insert(connection, wire);
        let name = self.requesters[requester].local.node;
        self.sources[source].publisher.on_connected(connection, name, self.now);
        let session = SessionId(u128::from(self.connections).to_le_bytes());
        self.requesters[requester].subscriber.on_connected(stream, connection, session, self.now);
    }

    fn deliver(&mut self) -> bool {
        let mut more = false;
        for connection in self.wires.keys().copied().collect::<Vec<_>>() {
            while let Some(frame) = self.wires.get_mut(&connection).and_then(|it| it.to_source.pop_front()) {
                more = true;
                let end = &mut self.sources[self.wires[&connection].source];
                let head = end.journal.head();
                end.publisher.on_frame(connection, &frame, head, self.now);
            }
            let Some(wire) = self.wires.get_mut(&connection) else { continue };
            if self.requesters[wire.requester].held {
                continue;
            }
            while let Some(wire) = self.wires.get_mut(&connection) {
                if self.requesters[wire.requester].held {
                    break;
                }
                let Some(frame) = wire.to_requester.pop_front() else { break };
                more = true;
                let (header, _) =
                    split_frame(&frame, INVENTORY_FRAME_BYTES_MAX).expect("a frame").expect("whole");
                let frames = match &mut self.forger {
                    Some(forger) => forger(&header, frame),
                    None => vec![frame],
                };
                let number = self.wires[&connection].requester;
                for frame in frames {
                    let RequesterEnd { subscriber, partition, namespaces, .. } = &mut self.requesters[number];
                    subscriber.on_frame(connection, &frame, &mut Index { partition, namespaces }, self.now);
                }
                if let Some((kind, count)) = &mut self.hold_after
                    && *kind as u8 == header.kind
                {
                    *count -= 1;
                    if *count == 0 {
                        self.hold_after = None;
                        self.requesters[0].held = true;
                    }
                }
            }
            if let Some(wire) = self.wires.get_mut(&connection)
                && wire.blocked
                && wire.to_requester.is_empty()
            {
                wire.blocked = false;
                more = true;
                self.sources[wire.source].publisher.on_writable(connection);
            }
        }
        more
    }

    /// Takes a connection away from both ends.
    pub fn cut(&mut self, connection: ConnectionId) {
        if let Some(wire) = self.wires.remove(&connection) {
            self.sources[wire.source].publisher.on_closed(connection, self.now);
            self.requesters[wire.requester].subscriber.on_closed(connection, 0, self.now);
        }
    }

    /// Takes every connection away from both ends, with what is on it.
    pub fn cut_all(&mut self) {
        for connection in self.wires.keys().copied().collect::<Vec<_>>() {
            self.cut(connection);
        }
    }

    /// Connections.
    pub fn connections(&self) -> Vec<ConnectionId> {
        self.wires.keys().copied().collect()
    }

    /// Frames that wait for a requester in the transport.
    pub fn waiting(&self) -> usize {
        self.wires.values().map(|wire| wire.to_requester.len()).sum()
    }

    /// The first source puts a block.
    pub fn put(&mut self, key: Key, medium: Medium, bytes: u32) -> Sequence {
        self.sources[0].put(key, medium, bytes)
    }

    /// The first source deletes a block.
    pub fn delete(&mut self, key: Key, medium: Medium) -> Sequence {
        self.sources[0].delete(key, medium)
    }

    /// The first source ends its life and begins another, with everything it holds put again.
    pub fn restart_source(&mut self, number: usize) {
        let end = &mut self.sources[number];
        let name = end.local.node;
        let life = end.local.epoch as u8 + 1;
        end.publisher.on_fenced(self.now);
        end.local = local(name.as_str(), life);
        end.journal.restart();
        let truth = std::mem::take(&mut end.truth);
        end.table.0.clear();
        for ((key, medium), (_, bytes)) in truth {
            end.namespaces.release(end.namespaces.get(&digest(key.namespace)).expect("it was interned"));
            end.put(key, medium, bytes);
        }
        end.publisher.on_registered(end.local, self.now);
        let dead: Vec<_> =
            self.wires.iter().filter(|(_, wire)| wire.source == number).map(|(id, _)| *id).collect();
        dead.into_iter().for_each(|connection| self.cut(connection));
    }

    /// A process of the first requester ends, and another one of a new life begins with nothing.
    pub fn restart_requester(&mut self, number: usize) {
        let dead: Vec<_> =
            self.wires.iter().filter(|(_, wire)| wire.requester == number).map(|(id, _)| *id).collect();
        dead.into_iter().for_each(|connection| self.cut(connection));
        let end = &mut self.requesters[number];
        let life = end.local.epoch as u8 + 1;
        *end = RequesterEnd::new(local(end.local.node.as_str(), life), end.settings.clone());
    }

    /// The lease of a requester ends, and the sessions with it.
    pub fn fence_requester(&mut self, number: usize) {
        self.requesters[number].subscriber.on_fenced(self.now);
        self.settle();
    }

    /// A requester that was fenced lives again.
    pub fn register_requester(&mut self, number: usize) {
        let end = &mut self.requesters[number];
        end.local = local(end.local.node.as_str(), end.local.epoch as u8 + 1);
        end.subscriber.on_registered(end.local, self.now);
        self.publish();
    }

    /// Another source comes to be; nobody is told.
    pub fn add_source(&mut self, name: &str, address: SocketAddr, settings: Settings) -> usize {
        self.sources.push(SourceEnd::new(local(name, 1), address, settings));
        self.sources.len() - 1
    }
}

impl SourceEnd {
    fn new(local: Local, address: SocketAddr, settings: Settings) -> SourceEnd {
        SourceEnd {
            local,
            address,
            journal: Journal::new(settings.journal()),
            table: Table::default(),
            namespaces: Namespaces::default(),
            publisher: Publisher::new(settings.publisher(), local, ShardIndex(0)),
            permits: Permits::new(SNAPSHOTS_MAX, 64),
            settings,
            closed: Vec::new(),
            truth: BTreeMap::new(),
        }
    }

    pub fn put(&mut self, key: Key, medium: Medium, bytes: u32) -> Sequence {
        let namespace = self.namespaces.intern(&digest(key.namespace)).expect("few namespaces");
        let state = StateKey { namespace, group: GroupId(key.group), block: key.hash() };
        let sequence = self.journal.append_put(state, medium, bytes);
        self.namespaces.retain(namespace);
        let before = self.table.0.insert((state, medium), (bytes, sequence));
        assert_eq!(before, None, "a test puts what is absent");
        self.truth.insert((key, medium), (sequence, bytes));
        sequence
    }

    pub fn delete(&mut self, key: Key, medium: Medium) -> Sequence {
        let namespace = self.namespaces.get(&digest(key.namespace)).expect("it was put");
        let state = StateKey { namespace, group: GroupId(key.group), block: key.hash() };
        self.table.0.remove(&(state, medium)).expect("a test deletes what is there");
        self.namespaces.release(namespace);
        self.truth.remove(&(key, medium));
        self.journal.append_delete(state, medium)
    }
}

impl RequesterEnd {
    fn new(local: Local, settings: Settings) -> RequesterEnd {
        let subscriber = Subscriber::new(settings.subscriber(), local, ShardIndex(0), settings.scope.clone());
        RequesterEnd {
            local,
            subscriber,
            partition: Partition::new(IndexSettings { budget_bytes: settings.index_bytes }),
            namespaces: Namespaces::default(),
            permits: Permits::new(SNAPSHOTS_MAX, 64),
            settings,
            closed: Vec::new(),
            held: false,
            transport_bytes: usize::MAX,
        }
    }
}
