//! A room with a clock, and a driver that does what the effects say and no more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use orbitkv_wire::engine::answers::BlockOutcome;
use orbitkv_wire::identity::{
    BlockHash, ClusterUuid, GroupId, Incarnation, Medium, NamespaceDigest, NodeId, Sequence, ShardIndex,
};
use orbitkv_wire::inventory::SourceStream;
use orbitkv_wire::payload::{Answer, Authorize, FromSource, OperationId, Transport, append_authorize};

use crate::fetcher::*;
use crate::flow::pressure::UNMEASURED;
use crate::members::{Local, Member, MemberMap};
use crate::planner::TrialOutcome;
use crate::residents::CopyId;
use crate::resilience::breaker::Change;
use crate::resilience::deadline::Step;
use crate::time::Moment;

pub const ORIGIN: u64 = 77;
pub const BYTES: u32 = 100;

pub fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

pub fn member(name: &str, life: u8) -> Member {
    let address = "10.0.0.1:7000".parse().unwrap();
    let (epoch, incarnation) = (u64::from(life), Incarnation([life; 16]));
    Member { node: node(name), epoch, incarnation, shards: 2, address }
}

pub fn local() -> Local {
    let (cluster, incarnation) = (ClusterUuid([1; 16]), Incarnation([200; 16]));
    Local { cluster, node: node("self"), epoch: 9, incarnation, shards: 1 }
}

pub fn source(name: &str, life: u8) -> SourceStream {
    let (epoch, incarnation) = (u64::from(life), Incarnation([life; 16]));
    SourceStream { node: node(name), epoch, incarnation, shard: ShardIndex(0) }
}

pub fn at(name: &str) -> Candidate {
    Candidate { source: source(name, 1), medium: Medium::Dram, sequence: Sequence(5), bytes: BYTES }
}

pub fn order(copy: u32, bytes: u64) -> Order {
    let mut block = [0; 32];
    block[..4].copy_from_slice(&copy.to_le_bytes());
    Order {
        copy: CopyId(copy),
        namespace: NamespaceDigest([7; 32]),
        group: GroupId(0),
        block: BlockHash(block),
        arena_offset: u64::from(copy) * 4096,
        bytes,
        class: Class::Demand,
    }
}

/// How a fetch ended: the medium and the checksum of what came, or why nothing did.
pub type Ended = Result<(Medium, u64), BlockOutcome>;

/// An operation that the driver reads.
#[derive(Clone, Debug)]
pub struct Asked {
    pub connection: ConnectionId,
    pub authorize: Authorize,
}

pub struct Rig {
    pub room: Fetcher,
    pub now: Moment,
    pub dials: BTreeMap<DialId, SourceStream>,
    pub connections: BTreeMap<ConnectionId, SourceStream>,
    /// Operations that have not ended.
    pub asked: BTreeMap<u64, Asked>,
    pub begun: BTreeMap<CopyId, Order>,
    pub ended: Vec<(CopyId, Ended)>,
    pub closed: Vec<CloseCause>,
    /// How operations ended, in words.
    pub endings: Vec<(u64, &'static str)>,
    pub excluded: Vec<(NodeId, Incarnation)>,
    pub refreshes: Vec<(NodeId, Incarnation)>,
    /// What became of candidates, in order.
    pub trials: Vec<(u32, NodeId, u64, TrialOutcome)>,
    /// Whether each of those compares with others.
    pub warm: Vec<bool>,
    /// Residences whose end was told: by whom, sequence and the end's.
    pub range_ended: Vec<(NodeId, u64, Option<u64>)>,
    /// Whether more has come than the driver has read.
    pub is_behind: bool,
    /// What the driver is to read, and which operations it has said to read no more.
    pub reads: Vec<(u64, u16, u64)>,
    pub released: Vec<u64>,
    shared_with: BTreeMap<u64, NodeId>,
    pub revision: u64,
    /// What is said of sources that fail, and whether a probe decided.
    pub changes: Vec<(SourceStream, Change, bool)>,
    /// Who was out of time: by which step, for how many milliseconds, and at which one.
    pub out_of_time: Vec<(u32, Step, u128, Step)>,
    /// Operations whose cancel was said again.
    pub said_again: Vec<u64>,
    /// Whether sources go on with what was cancelled: its streams end when the test says so.
    pub keeps_cancelled: bool,
    pub cancelled: BTreeMap<u64, ConnectionId>,
    /// Milliseconds that sources grant.
    pub grant_ms: u32,
    /// Streams of those that have ended.
    streams_ended: u64,
    settings: FetcherSettings,
    connections_made: u64,
}

impl Rig {
    pub fn new() -> Rig {
        Rig::with(FetcherSettings::default())
    }

    pub fn with(settings: FetcherSettings) -> Rig {
        let mut rig = Rig {
            room: Fetcher::new(settings, ORIGIN),
            now: Moment(1_000_000_000),
            dials: BTreeMap::new(),
            connections: BTreeMap::new(),
            asked: BTreeMap::new(),
            begun: BTreeMap::new(),
            ended: Vec::new(),
            closed: Vec::new(),
            endings: Vec::new(),
            excluded: Vec::new(),
            refreshes: Vec::new(),
            trials: Vec::new(),
            warm: Vec::new(),
            range_ended: Vec::new(),
            is_behind: false,
            reads: Vec::new(),
            released: Vec::new(),
            shared_with: BTreeMap::new(),
            revision: 0,
            changes: Vec::new(),
            out_of_time: Vec::new(),
            said_again: Vec::new(),
            keeps_cancelled: false,
            cancelled: BTreeMap::new(),
            grant_ms: 1_000,
            streams_ended: 0,
            settings,
            connections_made: 0,
        };
        rig.room.on_registered(local());
        rig.members(vec![member("a", 1), member("b", 1), member("c", 1), member("d", 1)]);
        rig
    }

    pub fn members(&mut self, members: Vec<Member>) {
        self.revision += 1;
        self.room.on_members(&MemberMap::new(self.revision, members));
        self.step();
    }

    /// Begins a fetch of the usual length with a minute of time.
    pub fn begin(&mut self, copy: u32, candidates: &[Candidate]) {
        self.begin_within(order(copy, u64::from(BYTES)), candidates, 60_000);
    }

    pub fn begin_within(&mut self, order: Order, candidates: &[Candidate], millis: u64) {
        assert!(self.begun.insert(order.copy, order).is_none());
        self.room.begin(order, candidates, self.now + Duration::from_millis(millis), self.now);
    }

    pub fn cancel(&mut self, copy: u32) {
        self.room.cancel(CopyId(copy));
        self.step();
    }

    pub fn pass(&mut self, millis: u64) {
        self.now = self.now + Duration::from_millis(millis);
        self.step();
    }

    /// Turns until nothing is due, and does what the room says.
    pub fn step(&mut self) {
        for round in 0.. {
            assert!(round < 10_000, "turns come to an end");
            self.room.on_read(!self.is_behind, self.now);
            let more = self.room.turn(self.now);
            let ended = self.streams_ended;
            self.take_effects();
            self.room.assert_invariants();
            // What has ended by what was done is news for the room.
            if !more && self.streams_ended == ended {
                break;
            }
        }
        let due = self.room.next_deadline();
        assert!(due.is_none_or(|due| due > self.now), "what is due was done");
    }

    pub fn take_effects(&mut self) {
        while let Some(effect) = self.room.poll_effect() {
            match effect {
                FetcherEffect::Dial { dial, source, address } => {
                    assert_eq!(address.port(), 7000 + source.shard.0);
                    assert!(self.dials.insert(dial, source).is_none());
                }
                FetcherEffect::Authorize { connection, authorize } => {
                    self.on_authorize(connection, authorize)
                }
                FetcherEffect::Release { connection, operation } => {
                    self.end(connection, operation, "release")
                }
                FetcherEffect::Cancel { connection, operation } => self.end(connection, operation, "cancel"),
                FetcherEffect::Forget { connection, operation } => self.end(connection, operation, "forget"),
                FetcherEffect::Close { connection, cause } => {
                    assert!(self.connections.remove(&connection).is_some(), "a connection is closed once");
                    self.asked.retain(|_, asked| asked.connection != connection);
                    self.closed.push(cause);
                }
                FetcherEffect::Fetched { copy, medium, checksum } => {
                    self.finish(copy, Ok((medium, checksum)))
                }
                FetcherEffect::Failed { copy, outcome } => self.finish(copy, Err(outcome)),
                FetcherEffect::Exclude { node, incarnation } => self.excluded.push((node, incarnation)),
                FetcherEffect::Refresh { node, incarnation } => self.refreshes.push((node, incarnation)),
                FetcherEffect::Tried { copy, candidate, ahead_bytes, since, is_warm, outcome } => {
                    assert!(
                        self.begun.contains_key(&copy) && since <= self.now,
                        "a fetch that has not ended"
                    );
                    self.trials.push((copy.0, candidate.source.node, ahead_bytes, outcome));
                    self.warm.push(is_warm);
                }
                FetcherEffect::RangeEnded { source, residence, ended } => {
                    let ended = ended.map(|sequence| sequence.0);
                    self.range_ended.push((source.node, residence.sequence.0, ended));
                }
                FetcherEffect::OutOfTime { copy, block, consumer, used, at, .. } => {
                    assert_eq!(self.begun[&copy].block, block, "before the fetch has ended");
                    self.out_of_time.push((copy.0, consumer, used.as_millis(), at));
                }
                FetcherEffect::CancelAgain { connection, operation } => {
                    assert_eq!(self.cancelled.get(&operation.number), Some(&connection), "it was said once");
                    self.said_again.push(operation.number);
                }
                FetcherEffect::Breaker { source, change, is_probe } => {
                    self.changes.push((source, change, is_probe));
                }
                FetcherEffect::Read { operation, index, offset, bytes, .. } => {
                    assert_eq!(bytes, BYTES);
                    self.reads.push((operation.number, index, offset));
                }
                FetcherEffect::Released { source, operation } => {
                    assert_eq!(source.node, self.shared_with[&operation.number], "whoever lent it hears it");
                    self.released.push(operation.number);
                }
            }
        }
        self.asked.keys().for_each(|number| assert!(*number > 0));
    }

    fn on_authorize(&mut self, connection: ConnectionId, authorize: Authorize) {
        // Panics if there is anything wrong with it, a residence twice among it.
        append_authorize(&mut Vec::new(), &authorize);
        assert_eq!(authorize.operation.origin, ORIGIN);
        assert_eq!(
            Some(&authorize.binding.source),
            self.connections.get(&connection),
            "it is asked who it is"
        );
        assert_eq!(authorize.binding.requester.incarnation, local().incarnation);
        assert!(authorize.residences.len() <= self.settings.residences_max);
        let number = authorize.operation.number;
        assert!(self.asked.insert(number, Asked { connection, authorize }).is_none(), "a number is new");
        self.shared_with.insert(number, self.asked[&number].authorize.binding.source.node);
        let of_it = self.asked.values().filter(|asked| asked.connection == connection).count();
        assert!(of_it <= self.settings.operations_max, "operations keep their bound");
    }

    fn end(&mut self, connection: ConnectionId, operation: OperationId, how: &'static str) {
        let asked = self.asked.remove(&operation.number).expect("an operation ends once");
        assert_eq!(asked.connection, connection);
        self.endings.push((operation.number, how));
        if how == "cancel" {
            self.cancelled.insert(operation.number, connection);
            if !self.keeps_cancelled {
                self.end_cancelled(operation.number);
            }
        }
    }

    /// The source has heard of a cancel: its end of the stream has come.
    pub fn end_cancelled(&mut self, number: u64) {
        let connection = self.cancelled.remove(&number).expect("a stream that was cancelled");
        self.streams_ended += 1;
        self.room.on_stream_over(connection, Rig::id(number), StreamEnd::Reset { code: 1 }, self.now);
    }

    fn finish(&mut self, copy: CopyId, outcome: Result<(Medium, u64), BlockOutcome>) {
        assert!(self.begun.remove(&copy).is_some(), "a fetch ends once");
        self.ended.push((copy, outcome));
    }

    /// Answers all dials with connections.
    pub fn connect(&mut self) {
        self.step();
        for (dial, source) in std::mem::take(&mut self.dials) {
            self.connections_made += 1;
            let connection = ConnectionId(self.connections_made);
            self.connections.insert(connection, source);
            self.room.on_connected(dial, connection, self.now);
        }
        self.step();
    }

    pub fn fail_dials(&mut self) {
        for dial in std::mem::take(&mut self.dials).into_keys() {
            self.room.on_dial_failed(dial, self.now);
        }
        self.step();
    }

    /// There is no room for what is dialed.
    pub fn give_up_dials(&mut self) {
        for dial in std::mem::take(&mut self.dials).into_keys() {
            self.room.on_dial_given_up(dial, self.now);
        }
        self.step();
    }

    /// A connection ends from elsewhere.
    pub fn lose(&mut self, name: &str) {
        let connection = self.connection(name);
        self.lose_connection(connection);
        self.step();
    }

    pub fn lose_connection(&mut self, connection: ConnectionId) {
        self.connections.remove(&connection);
        self.asked.retain(|_, asked| asked.connection != connection);
        self.room.on_closed(connection, self.now);
    }

    pub fn connection(&self, name: &str) -> ConnectionId {
        let mut of_it = self.connections.iter().filter(|(_, source)| source.node == node(name));
        *of_it.next().unwrap_or_else(|| panic!("no connection to {name}")).0
    }

    /// The only operation at a source.
    pub fn operation(&self, name: &str) -> u64 {
        let operations = self.operations(name);
        assert_eq!(operations.len(), 1, "{operations:?}");
        operations[0]
    }

    pub fn operations(&self, name: &str) -> Vec<u64> {
        let is_of = |asked: &&Asked| asked.authorize.binding.source.node == node(name);
        self.asked.values().filter(is_of).map(|asked| asked.authorize.operation.number).collect()
    }

    pub fn id(number: u64) -> OperationId {
        OperationId { origin: ORIGIN, number }
    }

    pub fn say(&mut self, number: u64, message: FromSource) {
        let connection = self.asked[&number].connection;
        self.room.on_message(connection, Rig::id(number), &message, self.now);
        self.step();
    }

    pub fn answer(&mut self, number: u64, answers: &[Answer]) {
        let (grant_ms, answers) = (self.grant_ms, answers.to_vec());
        self.say(number, FromSource::Answers { grant_ms, summary: UNMEASURED, answers });
    }

    pub fn grant_all(&mut self, number: u64) {
        let count = self.asked[&number].authorize.residences.len();
        self.answer(number, &vec![Answer::Granted { bytes: BYTES }; count]);
    }

    pub fn announce(&mut self, number: u64, index: u16) {
        self.say(number, FromSource::Bytes { index, bytes: BYTES, checksum: 4711 });
    }

    pub fn destination(&mut self, number: u64, index: u16) -> Option<Destination> {
        let connection = self.asked.get(&number)?.connection;
        self.room.destination(connection, Rig::id(number), index, self.now)
    }

    pub fn arrive(&mut self, number: u64, index: u16, computed: u64) {
        let connection = self.asked[&number].connection;
        self.room.on_bytes(connection, Rig::id(number), index, computed);
        self.step();
    }

    /// The source lets us read in its arena, or no more.
    pub fn share(&mut self, name: &str, shares: bool) {
        let connection = self.connection(name);
        match shares {
            true => self.room.on_shared(connection),
            false => self.room.on_unshared(connection),
        }
        self.step();
    }

    pub fn tell(&mut self, number: u64, index: u16) {
        self.say(number, FromSource::Extent { index, bytes: BYTES, checksum: 4711, offset: 7 });
    }

    pub fn unread(&mut self, number: u64, index: u16) {
        let connection = self.asked[&number].connection;
        self.room.on_unread(connection, Rig::id(number), index);
        self.step();
    }

    pub fn transport(&self, number: u64) -> Transport {
        self.asked[&number].authorize.transport
    }

    /// Bytes of one residence, whole and right.
    pub fn serve(&mut self, number: u64, index: u16) {
        self.announce(number, index);
        self.arrive(number, index, 4711);
    }

    /// As [`Rig::serve`], if the operation has such a residence and goes on.
    pub fn serve_if_due(&mut self, number: u64, index: u16) {
        let residences = self.asked.get(&number).map_or(0, |asked| asked.authorize.residences.len());
        if usize::from(index) < residences {
            self.serve(number, index);
        }
    }

    pub fn stream_over(&mut self, number: u64, end: StreamEnd) {
        let connection = self.asked[&number].connection;
        self.room.on_stream_over(connection, Rig::id(number), end, self.now);
        self.step();
    }

    /// How the only fetch that has ended did.
    pub fn outcome(&self) -> Result<Medium, BlockOutcome> {
        assert_eq!(self.ended.len(), 1, "{:?}", self.ended);
        self.ended[0].1.map(|(medium, _)| medium)
    }

    pub fn ending(&self, number: u64) -> &'static str {
        self.endings.iter().find(|(ended, _)| *ended == number).map_or("none", |(_, how)| how)
    }

    /// Copies by their numbers, in the order in which they are asked for in an operation.
    pub fn blocks(&self, number: u64) -> Vec<u32> {
        let residences = &self.asked[&number].authorize.residences;
        residences.iter().map(|wanted| u32::from_le_bytes(*wanted.block.0.first_chunk().unwrap())).collect()
    }

    pub fn sources(&self) -> BTreeSet<SourceStream> {
        self.connections.values().copied().collect()
    }
}
