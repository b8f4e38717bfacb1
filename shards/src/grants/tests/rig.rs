//! The driver's part, played: connections, streams, loans, checksums, readers. Everything a peer was told of
//! is watched until the test itself lets go of it: its bytes must stay what they were.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use orbitkv_wire::engine::answers::{CommitOutcome, SlotOutcome};
use orbitkv_wire::identity::*;
use orbitkv_wire::inventory::{Requester, SourceStream};
use orbitkv_wire::payload::*;

use super::super::{Effect, GrantSettings, Grants, Life, Reader};
use crate::journal::Change;
use crate::leases::ConnectionId;
use crate::payload_streams::{PayloadConnection, StreamAt};
use crate::reservations::ReservationId;
use crate::shard::tests::rig::{KIB, PAGE, Rig, digest, padded, settings};
use crate::shard::{ChecksumOrder, Command, Key, Outcome, PinId, Shard, ShardSettings};
use crate::time::Moment;

pub const EPOCH: u64 = 4;
/// Ended residences that the shard of tests remembers.
pub const REMEMBERED: usize = 24;

/// What a peer was told of and may still read.
#[derive(Clone, Copy, Debug)]
pub struct Exposed {
    pub node: NodeId,
    pub transport: Transport,
    pub offset: u64,
    pub bytes: u64,
    pub value: u64,
}

/// One residence as the journal tells it.
#[derive(Clone, Copy, Debug)]
pub struct Stay {
    pub residence: ExactResidence,
    pub bytes: u64,
    pub value: u64,
    pub ended: Option<Sequence>,
}

pub struct GrantRig {
    pub rig: Rig,
    pub grants: Grants,
    pub life: Life,
    pub effects: Vec<Effect>,
    /// By loan over QUIC; by operation and position over shared memory.
    pub loans: BTreeMap<PinId, Exposed>,
    pub extents: BTreeMap<(OperationId, u16), Exposed>,
    pub sums: Vec<ChecksumOrder>,
    /// By put sequence.
    pub stays: BTreeMap<Sequence, Stay>,
    /// Deletes in their order.
    pub deletes: Vec<Sequence>,
    /// What each key was committed with last.
    pub values: BTreeMap<(NamespaceDigest, BlockHash), u64>,
    pub values_made: u64,
    /// Namespaces that an engine has named.
    pub interned: BTreeSet<NamespaceDigest>,
    pub operations: BTreeMap<OperationId, (NodeId, Transport, Vec<ExactResidence>)>,
    pub numbers: u64,
}

pub fn node(number: u8) -> NodeId {
    NodeId::new(&format!("peer-{number}")).unwrap()
}

pub fn requester(number: u8, life: u8) -> Requester {
    Requester { node: node(number), incarnation: Incarnation([life; 16]) }
}

pub fn reader(number: u8, process: u64) -> Reader {
    Reader { node: node(number), boot: [9; 16], process }
}

pub fn at(connection: u64, stream: u64) -> StreamAt {
    StreamAt { connection: PayloadConnection(connection), stream }
}

pub fn source() -> SourceStream {
    SourceStream {
        node: NodeId::new("source").unwrap(),
        epoch: EPOCH,
        incarnation: Incarnation([7; 16]),
        shard: ShardIndex(0),
    }
}

pub fn block(namespace: u8, number: u8) -> (NamespaceDigest, GroupId, BlockHash) {
    (digest(namespace), GroupId(u16::from(number % 2)), BlockHash([number; 32]))
}

pub fn grant_settings(slice_bytes: u64) -> GrantSettings {
    let cluster = ClusterUuid([3; 16]);
    let bounds = GrantSettings::new(cluster, source().node, ShardIndex(0), 1, slice_bytes);
    GrantSettings { grant_time_max: Duration::from_millis(10_000), ..bounds }
}

impl GrantRig {
    pub fn new(shard: ShardSettings, grants: GrantSettings) -> GrantRig {
        let incarnation = source().incarnation;
        let rig = Rig::new(ShardSettings { drop_memory_entries: REMEMBERED, ..shard });
        GrantRig {
            grants: Grants::new(grants, rig.shard.lent_pool()),
            rig,
            life: Life::Serving { epoch: EPOCH, incarnation },
            effects: Vec::new(),
            loans: BTreeMap::new(),
            extents: BTreeMap::new(),
            sums: Vec::new(),
            stays: BTreeMap::new(),
            deletes: Vec::new(),
            values: BTreeMap::new(),
            values_made: 0,
            interned: BTreeSet::new(),
            operations: BTreeMap::new(),
            numbers: 0,
        }
    }

    /// Four chunks of DRAM, four segments of SSD, a quarter of it to be lent.
    pub fn small() -> GrantRig {
        let shard = settings(4, 4 * 1024 * KIB);
        let grants = grant_settings(shard.slab.bytes);
        GrantRig::new(shard, grants)
    }

    pub fn connect(&mut self, connection: u64, requester: Requester) {
        let shard = &mut self.rig.shard;
        self.grants.on_connected(PayloadConnection(connection), requester, shard).expect("room for it");
        self.take_effects();
    }

    /// An engine saves a new value, if it can.
    pub fn save(&mut self, namespace: u8, number: u8, bytes: u64) -> bool {
        let (digest, group, block) = block(namespace, number);
        self.interned.insert(digest);
        let hash = key_hash(&digest, group, &block);
        let keys = vec![(Key { index: 0, namespace: 0, group, block, hash }, bytes)];
        let connection = ConnectionId(1);
        let reserve = Command::Reserve { connection, namespace: digest, race: false, keys };
        let Outcome::Slots(slots) = self.rig.call(reserve) else { panic!("not slots") };
        let slot = slots[0].1;
        if slot.outcome != SlotOutcome::Slot as u8 {
            return false;
        }
        // Eviction comes before the value changes.
        self.learn();
        self.values_made += 1;
        let value = self.values_made;
        self.rig.fill(slot.offset, bytes, value);
        let reservations = vec![(0, ReservationId(slot.reservation))];
        let commit = Command::Commit { connection, reservations };
        let Outcome::Committed(outcomes) = self.rig.call(commit) else { panic!("not outcomes") };
        assert_eq!(outcomes[0].1, CommitOutcome::Committed);
        self.values.insert((digest, block), value);
        self.learn();
        true
    }

    pub fn evict(&mut self, namespace: u8, number: u8, media: u8) {
        let (digest, group, block) = block(namespace, number);
        let hash = key_hash(&digest, group, &block);
        let keys = vec![Key { index: 0, namespace: 0, group, block, hash }];
        let media = crate::shard::command::Media::from_mask(media);
        self.rig.call(Command::Evict { namespace: digest, media, keys });
        self.learn();
    }

    /// Takes in what the journal says since it was read last.
    pub fn learn(&mut self) {
        let next = self.stays.keys().next_back().copied().max(self.deletes.last().copied());
        for (namespace, record) in self.rig.history_from(Sequence(next.map_or(1, |last| last.0 + 1))) {
            let (group, block, medium) = (record.key.group, record.key.block, record.medium);
            let sequence = record.sequence;
            match record.change {
                Change::Put { bytes } => {
                    let residence = ExactResidence { namespace, group, block, medium, sequence };
                    let value = self.values[&(namespace, block)];
                    let bytes = u64::from(bytes);
                    self.stays.insert(sequence, Stay { residence, bytes, value, ended: None });
                }
                Change::Delete => {
                    let live = self.stays.values_mut().rev().find(|stay| {
                        let ExactResidence { namespace: n, group: g, block: b, medium: m, .. } =
                            stay.residence;
                        stay.ended.is_none() && (n, g, b, m) == (namespace, group, block, medium)
                    });
                    live.expect("what ends has begun").ended = Some(sequence);
                    self.deletes.push(sequence);
                }
            }
        }
    }

    /// The live residence of a block on a medium.
    pub fn live(&self, namespace: u8, number: u8, medium: Medium) -> Option<ExactResidence> {
        let (digest, group, block) = block(namespace, number);
        let stays = self.stays.values().map(|stay| (stay.residence, stay.ended));
        let live = stays.filter(|(at, ended)| {
            ended.is_none() && (at.namespace, at.group, at.block, at.medium) == (digest, group, block, medium)
        });
        live.map(|(at, _)| at).next_back()
    }

    pub fn operation(&mut self) -> OperationId {
        self.numbers += 1;
        OperationId { origin: 5, number: self.numbers }
    }

    pub fn authorize_as(
        &mut self,
        at: StreamAt,
        requester: Requester,
        operation: OperationId,
        transport: Transport,
        deadline_ms: u32,
        residences: &[ExactResidence],
    ) {
        let binding = Binding { cluster: ClusterUuid([3; 16]), source: source(), requester };
        let residences = residences.to_vec();
        self.operations.insert(operation, (requester.node, transport, residences.clone()));
        let attempt = Attempt::First;
        let authorize = Authorize { binding, operation, deadline_ms, transport, attempt, residences };
        self.submit(at, &authorize);
    }

    pub fn submit(&mut self, at: StreamAt, authorize: &Authorize) {
        let (life, now) = (self.life, self.rig.now);
        self.grants.on_authorize(at, authorize, life, now, &mut self.rig.shard);
        self.rig.collect();
        self.learn();
        self.take_effects();
    }

    /// Asks under a new number, and says what was answered.
    pub fn ask(
        &mut self,
        connection: u64,
        transport: Transport,
        wanted: &[ExactResidence],
    ) -> (OperationId, FromSource) {
        let operation = self.operation();
        let requester = self.grants.connections[&PayloadConnection(connection)].requester;
        self.effects.clear();
        self.authorize_as(at(connection, operation.number), requester, operation, transport, 10_000, wanted);
        let answer = self.effects.iter().find_map(|effect| match effect {
            Effect::Say { operation: of, message, .. } if *of == operation => Some(message.clone()),
            _ => None,
        });
        (operation, answer.expect("every request is answered"))
    }

    pub fn answers(
        &mut self,
        connection: u64,
        transport: Transport,
        wanted: &[ExactResidence],
    ) -> (OperationId, Vec<Answer>) {
        match self.ask(connection, transport, wanted) {
            (operation, FromSource::Answers { answers, .. }) => (operation, answers),
            (_, other) => panic!("not answers: {other:?}"),
        }
    }

    /// A turn of the room.
    pub fn step(&mut self) {
        self.grants.step(self.rig.now, &mut self.rig.shard);
        self.rig.collect();
        self.learn();
        self.take_effects();
    }

    /// Computes every checksum that is asked for, and tells what has become readable.
    pub fn turn(&mut self) {
        while let Some(order) = self.rig.shard.poll_checksum() {
            self.sums.push(order);
        }
        while !self.sums.is_empty() {
            self.finish_sum(0);
        }
        self.step();
    }

    pub fn finish_sum(&mut self, index: usize) {
        let order = self.sums.remove(index);
        if self.rig.shard.is_checksum_wanted(order.id) {
            let sum = self.rig.sum(order.arena_offset, order.payload_bytes);
            self.rig.shard.on_checksum(order.id, sum);
        } else {
            self.rig.shard.on_checksum_dropped(order.id);
        }
    }

    /// Lets the device work without faults until it is done, then a turn.
    pub fn settle(&mut self) {
        self.rig.settle();
        self.learn();
        self.turn();
    }

    pub fn on<T>(&mut self, input: impl FnOnce(&mut Grants, &mut Shard) -> T) -> T {
        let outcome = input(&mut self.grants, &mut self.rig.shard);
        self.take_effects();
        outcome
    }

    /// A reader lets go of an operation's extents, and says so.
    pub fn released(&mut self, reader: &Reader, operation: OperationId) {
        self.extents.retain(|&(of, _), _| of != operation);
        self.on(|grants, shard| grants.on_released(reader, operation, shard));
    }

    pub fn drain(&mut self, loan: PinId) {
        self.loans.remove(&loan).expect("a loan of ours");
        self.on(|grants, shard| grants.on_loan_drained(loan, shard));
    }

    pub fn drain_all(&mut self) {
        while let Some(&loan) = self.loans.keys().next() {
            self.drain(loan);
        }
    }

    pub fn pass(&mut self, milliseconds: u64) {
        self.rig.now = Moment(self.rig.now.0 + milliseconds * 1_000_000);
        self.step();
    }

    /// Notes what peers are told of; it has to be what they asked for.
    pub fn take_effects(&mut self) {
        while let Some(effect) = self.grants.poll_effect() {
            match &effect {
                Effect::Lend { operation, index, loan, offset, bytes, checksum, .. } => {
                    let exposed = self.expose(*operation, *index, *offset, *bytes, *checksum);
                    assert_eq!(exposed.transport, Transport::Quic);
                    assert!(self.loans.insert(*loan, exposed).is_none(), "a loan is lent once");
                }
                Effect::Say {
                    operation,
                    message: FromSource::Extent { index, bytes, checksum, offset },
                    ..
                } => {
                    let exposed = self.expose(*operation, *index, *offset, *bytes, *checksum);
                    assert_eq!(exposed.transport, Transport::Shm);
                    assert!(self.extents.insert((*operation, *index), exposed).is_none());
                }
                _ => {}
            }
            self.effects.push(effect);
        }
    }

    fn expose(&self, operation: OperationId, index: u16, offset: u64, bytes: u32, checksum: u64) -> Exposed {
        let (node, transport, residences) = &self.operations[&operation];
        let stay = self.stays[&residences[usize::from(index)].sequence];
        assert_eq!(stay.residence, residences[usize::from(index)], "only what was is granted");
        let (bytes, value) = (u64::from(bytes), stay.value);
        assert_eq!(bytes, stay.bytes);
        assert!(self.rig.holds(offset, bytes, value), "told of wrong bytes: {stay:?}");
        assert_eq!(self.rig.sum(offset, bytes), checksum, "a checksum is that of the bytes");
        Exposed { node: *node, transport: *transport, offset, bytes, value }
    }

    pub fn exposed(&self) -> impl Iterator<Item = &Exposed> {
        self.loans.values().chain(self.extents.values())
    }

    /// Nobody has touched what a peer may read, and no more is out than may be.
    pub fn assert_kept(&self) {
        let bounds = self.grants.settings;
        let (mut nodes, mut total, mut shm) = (BTreeMap::<NodeId, (u64, u64)>::new(), 0, 0);
        for exposed in self.exposed() {
            let Exposed { offset, bytes, value, .. } = *exposed;
            assert!(self.rig.holds(offset, bytes, value), "freed before it drained: {exposed:?}");
            let of_node = nodes.entry(exposed.node).or_default();
            (of_node.0, of_node.1) = (of_node.0 + 1, of_node.1 + padded(bytes));
            total += padded(bytes);
            shm += if exposed.transport == Transport::Shm { padded(bytes) } else { 0 };
        }
        assert!(
            nodes.values().all(|of| of.0 <= bounds.pins_per_node_max && of.1 <= bounds.bytes_per_node_max)
        );
        assert!(total <= self.grants.bytes.capacity() && shm <= bounds.shm_bytes_max);
        let figures = self.grants.figures();
        assert!(figures.pinned_bytes >= total && figures.pins >= self.exposed().count() as u64);
        assert!(figures.quarantined_bytes <= bounds.shm_bytes_max && PAGE > 0);
    }

    /// What has to be answered of a residence, by what the journal has said; `None` if it is here.
    pub fn truth(&self, wanted: &ExactResidence) -> Option<Answer> {
        let head = self.rig.shard.head();
        let never = Some(Answer::NeverHeld { head });
        if wanted.sequence > head || !self.interned.contains(&wanted.namespace) {
            return never;
        }
        let forgotten = self.deletes.len().saturating_sub(REMEMBERED);
        let forgotten = forgotten.checked_sub(1).map_or(Sequence(0), |last| self.deletes[last]);
        let stay = self.stays.get(&wanted.sequence).filter(|stay| stay.residence == *wanted);
        match stay.map(|stay| stay.ended) {
            Some(None) => None,
            Some(Some(ended)) => Some(Answer::Ended { sequence: (ended > forgotten).then_some(ended) }),
            None if wanted.sequence > forgotten => never,
            None => Some(Answer::Ended { sequence: None }),
        }
    }
}
