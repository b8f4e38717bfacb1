//! A room with its index, a clock, and sources whose frames are written by hand.

use std::collections::BTreeMap;

use orbitkv_wire::identity::{
    BlockHash, ClusterUuid, GroupId, Incarnation, Medium, NamespaceDigest, NodeId, Sequence, SessionId,
    ShardIndex, SnapshotId, key_hash,
};
use orbitkv_wire::inventory::{
    Body, ChangesWriter, FromRequester, FromSource, Header, Kind, Open, Tag, Transcript, WireChange,
    decode_from_requester, decode_open, header_bytes, source_body, split_frame,
};
use orbitkv_wire::scope::Scope;

use crate::index::{IndexSettings, Partition, Replicas};
use crate::inventory::subscriber::*;
use crate::key::StateKey;
use crate::members::{Local, Member, MemberMap};
use crate::namespaces::Namespaces;
use crate::time::Moment;

pub const NAMESPACE: NamespaceDigest = NamespaceDigest([7; 32]);
pub const SNAPSHOT: SnapshotId = SnapshotId([9; 16]);

/// A change as a test writes it: key number, medium, payload bytes (0 is a delete), sequence.
pub type Said = (u64, Medium, u32, u64);

pub fn put(key: u64, sequence: u64) -> Said {
    (key, Medium::Dram, 100 + key as u32, sequence)
}

pub fn delete(key: u64, sequence: u64) -> Said {
    (key, Medium::Dram, 0, sequence)
}

pub fn block(key: u64) -> BlockHash {
    let mut block = [0; 32];
    block[..8].copy_from_slice(&key.to_le_bytes());
    BlockHash(block)
}

pub fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

pub fn local(life: u8) -> Local {
    let cluster = ClusterUuid([1; 16]);
    Local {
        cluster,
        node: node("self"),
        epoch: u64::from(life),
        incarnation: Incarnation([life; 16]),
        shards: 1,
    }
}

pub fn member(name: &str, life: u8) -> Member {
    let address = "10.0.0.1:7000".parse().unwrap();
    Member {
        node: node(name),
        epoch: u64::from(life),
        incarnation: Incarnation([life; 16]),
        shards: 1,
        address,
    }
}

/// A body of changes.
pub fn changes_body(
    begin: impl FnOnce(&mut ChangesWriter),
    namespace: NamespaceDigest,
    changes: &[Said],
) -> Body {
    let mut writer = ChangesWriter::new(1 << 16);
    begin(&mut writer);
    for &(key, medium, bytes, sequence) in changes {
        let change = if bytes == 0 { WireChange::Delete } else { WireChange::Put { bytes } };
        writer.push(&namespace, GroupId(0), &block(key), medium, change, Sequence(sequence)).unwrap();
    }
    writer.finish()
}

pub fn page_body(snapshot: SnapshotId, number: u32, changes: &[Said]) -> Body {
    changes_body(|writer| writer.page(snapshot, number), NAMESPACE, changes)
}

pub fn delta_body(from: u64, through: u64, changes: &[Said]) -> Body {
    changes_body(|writer| writer.delta(Sequence(from), Sequence(through)), NAMESPACE, changes)
}

/// The source's end of one connection.
#[derive(Clone, Debug)]
pub struct Link {
    pub open: Open,
    tag: Tag,
    frame: u64,
    pub heard: Vec<FromRequester>,
    pub closed: Option<CloseCause>,
}

pub struct Rig {
    pub room: Subscriber,
    pub partition: Partition,
    pub namespaces: Namespaces,
    pub now: Moment,
    pub links: BTreeMap<ConnectionId, Link>,
    pub dials: Vec<StreamId>,
    pub doubts: Vec<(NodeId, Incarnation)>,
    pub wishes: Vec<PermitTicket>,
    pub returned: Vec<PermitTicket>,
    connections_made: u64,
}

pub const SETTINGS: fn() -> SubscriberSettings =
    || SubscriberSettings { changes_per_step: 4, sweep_rows: 8, ..SubscriberSettings::default() };

impl Rig {
    pub fn new() -> Rig {
        Rig::with(SETTINGS(), 4 << 20, Scope::All)
    }

    pub fn with(settings: SubscriberSettings, budget_bytes: u64, scope: Scope) -> Rig {
        Rig {
            room: Subscriber::new(settings, local(1), ShardIndex(0), scope),
            partition: Partition::new(IndexSettings { budget_bytes }),
            namespaces: Namespaces::new(8),
            now: Moment(1_000_000_000),
            links: BTreeMap::new(),
            dials: Vec::new(),
            doubts: Vec::new(),
            wishes: Vec::new(),
            returned: Vec::new(),
            connections_made: 0,
        }
    }

    pub fn index(&mut self) -> (&mut Subscriber, Index<'_>) {
        (&mut self.room, Index { partition: &mut self.partition, namespaces: &mut self.namespaces })
    }

    pub fn pass(&mut self, milliseconds: u64) {
        self.now = self.now + Duration::from_millis(milliseconds);
    }

    /// `lower` and `may raise` of a map with these members.
    pub fn members(&mut self, revision: u64, members: &[Member]) {
        self.lower(revision, members);
        self.room.on_may_raise(revision);
        self.run();
    }

    pub fn lower(&mut self, revision: u64, members: &[Member]) {
        let now = self.now;
        let map = MemberMap::new(revision, members.to_vec());
        let (room, mut index) = self.index();
        room.on_lower(&map, &mut index, now);
    }

    /// One turn; true if more is due.
    pub fn turn(&mut self) -> bool {
        let now = self.now;
        let (room, mut index) = self.index();
        let more = room.turn(&mut index, now);
        self.effects();
        more
    }

    /// Turns until nothing is due now.
    pub fn run(&mut self) {
        while self.turn() {}
    }

    fn effects(&mut self) {
        while let Some(effect) = self.room.poll_effect() {
            match effect {
                SubscriberEffect::Dial { stream, .. } => self.dials.push(stream),
                SubscriberEffect::Send { connection, bytes } => self.hear(connection, &bytes),
                SubscriberEffect::Close { connection, cause } => {
                    if let Some(link) = self.links.get_mut(&connection) {
                        link.closed = Some(cause);
                    }
                }
                SubscriberEffect::Doubt { node, incarnation } => self.doubts.push((node, incarnation)),
                SubscriberEffect::WantPermit(ticket) => self.wishes.push(ticket),
                SubscriberEffect::ReturnPermit(ticket) => {
                    assert!(!self.returned.contains(&ticket), "a permit ends once");
                    self.returned.push(ticket);
                }
            }
        }
    }

    fn hear(&mut self, connection: ConnectionId, bytes: &[u8]) {
        let (header, body) = split_frame(bytes, 1 << 20).unwrap().unwrap();
        let link = self.links.get_mut(&connection).expect("only known connections are sent to");
        assert_eq!(header.frame, link.heard.len() as u64 + 2, "frames are numbered one by one");
        assert_eq!(header.tag, link.tag.0);
        link.heard.push(decode_from_requester(&header, &bytes[body]).unwrap());
    }

    /// Answers the oldest dial with a connection and reads its Open.
    pub fn connect(&mut self) -> ConnectionId {
        self.run();
        let stream = self.dials.remove(0);
        self.connections_made += 1;
        let connection = ConnectionId(self.connections_made);
        let session = SessionId([self.connections_made as u8; 16]);
        self.room.on_connected(stream, connection, session, self.now);
        let Some(SubscriberEffect::Send { connection: to, bytes }) = self.room.poll_effect() else {
            panic!("a connection begins with an Open")
        };
        assert_eq!(to, connection);
        let (header, body) = split_frame(&bytes, 1 << 20).unwrap().unwrap();
        let open = decode_open(&header, &bytes[body]).unwrap();
        let tag = open.binding.tag();
        self.links.insert(connection, Link { open, tag, frame: 0, heard: Vec::new(), closed: None });
        self.effects();
        connection
    }

    /// Waits until the stream is dialed again, and connects.
    pub fn reconnect(&mut self) -> ConnectionId {
        for _ in 0..100 {
            self.run();
            if !self.dials.is_empty() {
                return self.connect();
            }
            self.pass(100);
        }
        panic!("the stream is not dialed again")
    }

    pub fn link(&self, connection: ConnectionId) -> &Link {
        &self.links[&connection]
    }

    /// The bytes of a frame, numbered as the next one.
    pub fn frame(&mut self, connection: ConnectionId, head: u64, body: &Body) -> Vec<u8> {
        let link = self.links.get_mut(&connection).unwrap();
        link.frame += 1;
        let bytes = body.bytes.len();
        let header = Header::new(body.kind, link.tag, link.frame, Sequence(head), body.count, bytes);
        [&header_bytes(&header)[..], &body.bytes].concat()
    }

    /// Takes the number of the newest frame back: it was none of this session.
    pub fn unsend(&mut self, connection: ConnectionId) {
        self.links.get_mut(&connection).unwrap().frame -= 1;
    }

    pub fn send_bytes(&mut self, connection: ConnectionId, bytes: &[u8]) {
        let now = self.now;
        let (room, mut index) = self.index();
        room.on_frame(connection, bytes, &mut index, now);
        self.effects();
    }

    /// Sends a body and does what is due.
    pub fn send(&mut self, connection: ConnectionId, head: u64, body: &Body) {
        let bytes = self.frame(connection, head, body);
        self.send_bytes(connection, &bytes);
        self.run();
    }

    pub fn say(&mut self, connection: ConnectionId, head: u64, message: &FromSource<'_>) {
        self.send(connection, head, &source_body(message));
    }

    pub fn delta(&mut self, connection: ConnectionId, from: u64, through: u64, changes: &[Said]) {
        self.send(connection, through, &delta_body(from, through, changes));
    }

    pub fn beat(&mut self, connection: ConnectionId, head: u64) {
        let summary = orbitkv_wire::inventory::ResourceSummary {
            window_ms: 1_000,
            reads_queued: 0,
            ssd_busy_permille: 0,
            egress_busy_permille: 0,
        };
        self.say(connection, head, &FromSource::Liveness { summary });
    }

    pub fn offer(&mut self, connection: ConnectionId, snapshot: SnapshotId, after: u64, rows_max: u64) {
        let (after, bytes) = (Sequence(after), rows_max * 49);
        self.say(connection, after.0, &FromSource::SnapshotBegin { snapshot, after, rows_max, bytes });
    }

    /// Grants the newest wish.
    pub fn grant(&mut self) {
        let ticket = *self.wishes.last().expect("somebody wishes");
        self.room.on_permit(ticket, self.now);
        self.run();
    }

    pub fn commit(&mut self, connection: ConnectionId, snapshot: SnapshotId, through: u64, bodies: &[Body]) {
        let mut transcript = Transcript::new(snapshot);
        bodies.iter().for_each(|body| transcript.absorb(&body.bytes));
        let pages = bodies.iter().filter(|body| body.kind == Kind::SnapshotPage).count() as u32;
        let (digest, through) = (transcript.digest(), Sequence(through));
        self.say(connection, through.0, &FromSource::SnapshotCommit { snapshot, through, pages, digest });
    }

    /// A whole snapshot of these residences, at `through`, from offer to commit.
    pub fn bootstrap(
        &mut self,
        connection: ConnectionId,
        snapshot: SnapshotId,
        through: u64,
        residences: &[Said],
    ) {
        self.offer(connection, snapshot, through, residences.len() as u64);
        self.grant();
        let accepted = FromRequester::SnapshotAccept { snapshot };
        assert!(self.link(connection).heard.contains(&accepted), "{:?}", self.link(connection));
        let mut bodies = Vec::new();
        if !residences.is_empty() {
            bodies.push(page_body(snapshot, 0, residences));
            self.send(connection, through, &bodies[0]);
        }
        self.commit(connection, snapshot, through, &bodies);
    }

    /// A room with one member, connected and bootstrapped at `through`.
    pub fn live(through: u64, residences: &[Said]) -> (Rig, ConnectionId) {
        let mut rig = Rig::new();
        rig.members(1, &[member("a", 1)]);
        let connection = rig.connect();
        rig.bootstrap(connection, SNAPSHOT, through, residences);
        assert_eq!(rig.standing(), Standing::Complete);
        (rig, connection)
    }

    /// What a lookup shows of a key: owner's peer number, medium, bytes and sequence of each replica.
    pub fn look(&self, key: u64) -> Vec<(u32, Medium, u32, u64)> {
        let Some(namespace) = self.namespaces.get(&NAMESPACE) else { return Vec::new() };
        let (group, block) = (GroupId(0), block(key));
        let hash = key_hash(&NAMESPACE, group, &block);
        let mut out = [Replicas::default()];
        self.partition.lookup(&[(StateKey { namespace, group, block }, hash)], &mut out);
        let mut found: Vec<_> = out[0]
            .iter()
            .map(|replica| (replica.owner.peer, replica.medium, replica.bytes, replica.sequence.0))
            .collect();
        found.sort();
        found
    }

    /// Sequences under which a key is found in DRAM.
    pub fn found(&self, key: u64) -> Vec<u64> {
        self.look(key).into_iter().map(|(_, _, _, sequence)| sequence).collect()
    }

    pub fn standing(&self) -> Standing {
        self.room.coverage(self.now).standing
    }

    pub fn applied(&self, name: &str, life: u8) -> Option<u64> {
        let readings = self.room.readings(node(name), Incarnation([life; 16]));
        readings.first().map(|reading| reading.applied.0)
    }

    /// Every connection that was closed from this end, with the label of its cause.
    pub fn closed(&self, connection: ConnectionId) -> Option<&'static str> {
        self.link(connection).closed.map(|cause| cause.label())
    }
}
