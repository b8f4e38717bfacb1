//! What a shard lends to other nodes, seen from the source: who may read what, for how long, and when its
//! memory is free again (chapters 3.2 and 3.3).
//!
//! A request names exact residences; the shard pins those that are there, and this room charges them to the
//! requester. A grant ends by time, by the requester, or because either side's membership ends; from then on
//! nothing more is told. Memory that was told of comes back only by proof: over QUIC when the connection has
//! dropped its last reference ([`Grants::on_loan_drained`]), over shared memory by the requester's word
//! ([`Grants::on_released`]) or its process's death ([`Grants::on_reader_dead`]). What stays without proof
//! after its time is quarantined: charged, counted, and soon the end of that transport to that node.
//!
//! The room performs nothing. The driver names connections and streams, hands the shard in, takes effects
//! after every input, and calls [`Grants::step`] once a turn.

mod egress;
mod ends;
mod figures;
mod operation;
mod settings;
mod window;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use orbitkv_wire::bounds::OPERATION_ORIGINS_MAX;
use orbitkv_wire::identity::{Incarnation, NodeId, key_hash};
use orbitkv_wire::inventory::{Requester, ResourceSummary};
use orbitkv_wire::payload::{Answer, Authorize, FromSource, OperationId, Refusal, StopCause, Tag, Transport};

use crate::admission::{Permit, Pool};
use crate::flow::egress::Urgency;
use crate::flow::pressure::UNMEASURED;
use crate::payload_streams::{PayloadConnection, StreamAt};
use crate::shard::{GrantBatch, GrantOutcome, PinEvent, PinId, Shard};
use crate::time::Moment;

pub use figures::GrantFigures;
use operation::{Operation, PinUse, Progress, Use};
pub use settings::GrantSettings;
use window::Window;

/// The life of this node as its membership has it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Registered, with a lease that has not run out.
    Serving {
        /// Its epoch.
        epoch: u64,
        /// Its incarnation.
        incarnation: Incarnation,
    },
    /// It may not serve other nodes.
    Fenced,
}

/// A process on this host that reads in our arena, proved to be of a node by the peer socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reader {
    /// The node.
    pub node: NodeId,
    /// The boot of its host.
    pub boot: [u8; 16],
    /// The process, as the driver numbers them. Never used again.
    pub process: u64,
}

/// What the driver is to do, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send a frame on a stream.
    Say {
        /// Where.
        at: StreamAt,
        /// Tag of its header.
        tag: Tag,
        /// The operation of its header.
        operation: OperationId,
        /// What it says.
        message: FromSource,
    },
    /// Send a Bytes frame and, behind it, these bytes of the arena, which are lent until
    /// [`Grants::on_loan_drained`].
    Lend {
        /// Where.
        at: StreamAt,
        /// Tag of the frame's header.
        tag: Tag,
        /// The operation of its header.
        operation: OperationId,
        /// Position of the residence.
        index: u16,
        /// Names the loan.
        loan: PinId,
        /// Offset in the arena.
        offset: u64,
        /// Payload bytes.
        bytes: u32,
        /// Their checksum.
        checksum: u64,
    },
    /// Everything has been sent: FIN.
    Finish {
        /// Where.
        at: StreamAt,
    },
    /// Send no more of what is queued: a reset with this cause, or where a stream has none a Stopped frame.
    Stop {
        /// Where.
        at: StreamAt,
        /// Tag of the frame's header.
        tag: Tag,
        /// The operation of its header.
        operation: OperationId,
        /// Why.
        cause: StopCause,
    },
    /// A member believes in a later epoch of this node than the one that serves: read membership anew; the room waits for
    /// nothing.
    Behind {
        /// This node.
        node: NodeId,
        /// The life that may be over.
        incarnation: Incarnation,
    },
    /// Answer a Released on the peer socket that it came from.
    Drained {
        /// Whose socket.
        reader: Reader,
        /// The operation.
        operation: OperationId,
    },
}

/// Names an operation for the life of this process: origins are drawn at random.
type OperationKey = (NodeId, OperationId);

struct Connection {
    requester: Requester,
    operations: BTreeSet<OperationKey>,
}

/// What one node has of this shard.
struct Account {
    /// The life that may ask now; `None` once it is no member any more.
    incarnation: Option<Incarnation>,
    windows: BTreeMap<u64, Window>,
    connections: usize,
    operations: usize,
    pins: Pool,
    bytes: Pool,
    /// Of those, what goes over the network.
    network_bytes: Pool,
    quarantined_pins: u64,
    quarantined_bytes: u64,
}

/// No room to serve another node; only members are served, so a driver that checks never sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{limit} nodes are served or have something of this shard")]
pub struct NodesFull {
    /// The bound.
    pub limit: usize,
}

/// The grants of one shard.
pub struct Grants {
    settings: GrantSettings,
    connections: BTreeMap<PayloadConnection, Connection>,
    accounts: BTreeMap<NodeId, Account>,
    readers: BTreeMap<NodeId, Reader>,
    operations: BTreeMap<OperationKey, Operation>,
    /// When operations end by time, or what is left of them comes into quarantine.
    deadlines: BTreeSet<(Moment, OperationKey)>,
    pins: BTreeMap<PinId, OperationKey>,
    bytes: Pool,
    shm_bytes: Pool,
    quarantined_bytes: u64,
    /// What answers say of how busy this shard is.
    summary: ResourceSummary,
    effects: VecDeque<Effect>,
    figures: GrantFigures,
}

impl Grants {
    /// No grants; slots are charged to `bytes`, the shard's pool for them.
    #[must_use]
    pub fn new(settings: GrantSettings, bytes: Pool) -> Grants {
        Grants {
            connections: BTreeMap::new(),
            accounts: BTreeMap::new(),
            readers: BTreeMap::new(),
            operations: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            pins: BTreeMap::new(),
            bytes,
            shm_bytes: Pool::new("bytes lent over shared memory", settings.shm_bytes_max),
            quarantined_bytes: 0,
            summary: UNMEASURED,
            effects: VecDeque::new(),
            figures: GrantFigures::default(),
            settings,
        }
    }

    /// A member's connection is authenticated. If it is of another life than was served before, that life
    /// has ended.
    ///
    /// # Errors
    /// [`NodesFull`]; the connection is not known then.
    ///
    /// # Panics
    /// If the connection's number has been used.
    pub fn on_connected(
        &mut self,
        connection: PayloadConnection,
        requester: Requester,
        shard: &mut Shard,
    ) -> Result<(), NodesFull> {
        let Requester { node, incarnation } = requester;
        let earlier = self.accounts.get(&node).and_then(|account| account.incarnation);
        if let Some(earlier) = earlier.filter(|&earlier| earlier != incarnation) {
            self.on_requester_gone(Requester { node, incarnation: earlier }, shard);
        }
        let limit = self.settings.nodes_max;
        if !self.accounts.contains_key(&node) && self.accounts.len() >= limit {
            return Err(NodesFull { limit });
        }
        let settings = &self.settings;
        let account = self.accounts.entry(node).or_insert_with(|| Account::new(settings));
        account.incarnation = Some(incarnation);
        account.connections += 1;
        let operations = BTreeSet::new();
        let used = self.connections.insert(connection, Connection { requester, operations });
        assert!(used.is_none(), "a connection's number is used once");
        Ok(())
    }

    /// How busy this shard is: what the next answers say.
    pub fn on_summary(&mut self, summary: ResourceSummary) {
        self.summary = summary;
    }

    /// A process on this host has proved on the peer socket that it is this reader: its node may read over
    /// shared memory.
    pub fn on_reader_joined(&mut self, reader: Reader) {
        self.readers.insert(reader.node, reader);
    }

    /// A request has been read off a stream. `life` is that of this very moment.
    ///
    /// # Panics
    /// If the connection is not known.
    pub fn on_authorize(
        &mut self,
        at: StreamAt,
        authorize: &Authorize,
        life: Life,
        now: Moment,
        shard: &mut Shard,
    ) {
        let tag = authorize.binding.tag();
        let operation = authorize.operation;
        self.figures.asked[usize::from(authorize.attempt as u8)] += authorize.residences.len() as u64;
        if let Err(refusal) = self.admit(at.connection, authorize, life) {
            self.figures.on_refused(refusal);
            if let Refusal::StaleEpoch { epoch, incarnation } = refusal
                && authorize.binding.source.epoch > epoch
            {
                self.effects.push_back(Effect::Behind { node: self.settings.node, incarnation });
            }
            self.say(at, tag, operation, FromSource::Refused(refusal));
            self.effects.push_back(Effect::Finish { at });
            return self.assert_invariants();
        }
        let requester = self.connections[&at.connection].requester;
        let key = (requester.node, operation);
        let asked = Duration::from_millis(u64::from(authorize.deadline_ms));
        let time = asked.min(self.settings.grant_time_max);
        let mut pins = BTreeMap::new();
        let mut batch = GrantBatch::default();
        let mut answers = Vec::with_capacity(authorize.residences.len());
        let egress = self.egress_for(requester.node, authorize.transport, time);
        for (wanted, index) in authorize.residences.iter().zip(0u16..) {
            let hash = key_hash(&wanted.namespace, wanted.group, &wanted.block);
            // Asked even if it is 0: what has ended is not busy.
            let bytes_max = self.allowance(requester.node, authorize.transport);
            let sendable = egress.map_or(u64::MAX, |egress| self.sendable_bytes(requester.node, egress));
            let outcome = shard.grant(wanted, hash, bytes_max.min(sendable), &mut batch);
            let answer = match outcome {
                GrantOutcome::Pinned { pin, bytes, slot_bytes } => {
                    let permits = self.charge(requester.node, authorize.transport, slot_bytes);
                    pins.insert(pin, PinUse { index, slot_bytes, state: Use::Awaited, _permits: permits });
                    self.pins.insert(pin, key);
                    Answer::Granted { bytes }
                }
                GrantOutcome::Ended(sequence) => Answer::Ended { sequence },
                GrantOutcome::NeverHeld | GrantOutcome::BeyondHead => {
                    Answer::NeverHeld { head: shard.head() }
                }
                GrantOutcome::Busy | GrantOutcome::BeyondAllowance { .. } => {
                    self.count_refused(outcome);
                    let egress = egress.filter(|_| sendable < bytes_max);
                    self.figures.busy_for_egress[Urgency::of(time) as usize] += u64::from(egress.is_some());
                    Answer::Busy { retry_after_ms: self.retry_after_ms(requester.node, egress) }
                }
                GrantOutcome::DeviceRests(rest) => {
                    let rest_ms = u32::try_from(rest.as_millis()).unwrap_or(u32::MAX);
                    Answer::Busy { retry_after_ms: rest_ms.max(self.settings.retry_after_ms) }
                }
            };
            self.figures.on_answer(outcome);
            answers.push(answer);
        }
        let grant_ms = u32::try_from(time.as_millis()).expect("a grant is at most a few seconds");
        let summary = self.summary;
        self.say(at, tag, operation, FromSource::Answers { grant_ms, summary, answers });
        if pins.is_empty() {
            self.effects.push_back(Effect::Finish { at });
            return self.assert_invariants();
        }
        let (transport, expires) = (authorize.transport, now + time);
        let reader = match transport {
            Transport::Quic => None,
            Transport::Shm => Some(self.readers[&requester.node]),
        };
        let progress = Progress::Running { untold: pins.len() };
        let lent = Operation { at, tag, requester, transport, reader, expires, progress, pins };
        self.operations.insert(key, lent);
        self.deadlines.insert((expires, key));
        self.connections.get_mut(&at.connection).expect("admitted").operations.insert(key);
        self.accounts.get_mut(&requester.node).expect("admitted").operations += 1;
        self.assert_invariants();
    }

    /// Why nothing of this request is granted. Its number is used up in any case but that of a request which
    /// is not the connection's.
    fn admit(
        &mut self,
        connection: PayloadConnection,
        authorize: &Authorize,
        life: Life,
    ) -> Result<(), Refusal> {
        let requester = self.connections[&connection].requester;
        let binding = &authorize.binding;
        let (settings, source) = (&self.settings, &binding.source);
        let is_ours = binding.cluster == settings.cluster
            && (source.node, source.shard) == (settings.node, settings.shard)
            && binding.requester == requester;
        let account = self.accounts.get_mut(&requester.node).expect("a connection has its account");
        if !is_ours || account.incarnation != Some(requester.incarnation) {
            return Err(Refusal::Misdirected);
        }
        if !account.use_up(authorize.operation)
            || self.operations.contains_key(&(requester.node, authorize.operation))
        {
            return Err(Refusal::Repeated);
        }
        match life {
            Life::Fenced => return Err(Refusal::LeaseExpired),
            Life::Serving { epoch, incarnation }
                if (epoch, incarnation) != (source.epoch, source.incarnation) =>
            {
                return Err(Refusal::StaleEpoch { epoch, incarnation });
            }
            Life::Serving { .. } => {}
        }
        let is_off = !self.readers.contains_key(&requester.node) || self.is_shm_off(&requester.node);
        if authorize.transport == Transport::Shm && is_off {
            return Err(Refusal::TransportOff);
        }
        Ok(())
    }

    /// Whether a node has so much in quarantine that it reads no more over shared memory: a tenth of what it
    /// may have pinned at all. All nodes together cannot exceed a tenth of the slice.
    #[must_use]
    pub fn is_shm_off(&self, node: &NodeId) -> bool {
        const TENTH: u64 = 10;
        self.accounts.get(node).is_some_and(|account| {
            account.quarantined_bytes * TENTH >= self.settings.bytes_per_node_max
                || account.quarantined_pins * TENTH >= self.settings.pins_per_node_max
        })
    }

    /// Bytes that the next pin of a node may have; 0 if it may have none.
    fn allowance(&self, node: NodeId, transport: Transport) -> u64 {
        let account = &self.accounts[&node];
        let bytes = account.bytes.room().min(self.bytes.room());
        let bytes = if transport == Transport::Shm { bytes.min(self.shm_bytes.room()) } else { bytes };
        if account.pins.room() > 0 { bytes } else { 0 }
    }

    /// A node's own share may be used up as well; the shard's pool counts what it had no room for itself.
    fn count_refused(&self, outcome: GrantOutcome) {
        if let GrantOutcome::BeyondAllowance { slot_bytes } = outcome
            && slot_bytes > self.bytes.room()
        {
            self.bytes.refuse(slot_bytes);
        }
    }

    fn charge(&self, node: NodeId, transport: Transport, slot_bytes: u64) -> Vec<Permit> {
        let account = &self.accounts[&node];
        let way = match transport {
            Transport::Quic => &account.network_bytes,
            Transport::Shm => &self.shm_bytes,
        };
        let shares =
            [(&account.pins, 1), (&account.bytes, slot_bytes), (&self.bytes, slot_bytes), (way, slot_bytes)];
        let permits = shares.into_iter().map(|(pool, amount)| pool.take(amount));
        permits.map(|permit| permit.expect("asked for room before")).collect()
    }

    /// A turn: what is past its time ends first, so that nothing is told of it; then what has become
    /// readable is told.
    pub fn step(&mut self, now: Moment, shard: &mut Shard) {
        self.on_time(now, shard);
        while let Some(event) = shard.poll_pin() {
            match event {
                PinEvent::Ready { pin, offset, bytes, checksum } => {
                    let key = self.pins[&pin];
                    let lent = self.tell(pin);
                    let used = lent.pins.get_mut(&pin).expect("a pin is with its operation");
                    used.state = Use::Told;
                    let (at, tag, operation, index) = (lent.at, lent.tag, key.1, used.index);
                    let effect = match lent.transport {
                        Transport::Quic => {
                            Effect::Lend { at, tag, operation, index, loan: pin, offset, bytes, checksum }
                        }
                        Transport::Shm => {
                            let message = FromSource::Extent { index, bytes, checksum, offset };
                            Effect::Say { at, tag, operation, message }
                        }
                    };
                    let shared_bytes = if lent.transport == Transport::Shm { u64::from(bytes) } else { 0 };
                    self.figures.lent_bytes += u64::from(bytes);
                    self.figures.lent_shm_bytes += shared_bytes;
                    self.effects.push_back(effect);
                    self.finish_if_told(key);
                }
                PinEvent::Failed { pin, cause } => {
                    let key = self.pins[&pin];
                    let operation = self.tell(pin);
                    let (at, tag, index) = (operation.at, operation.tag, operation.pins[&pin].index);
                    self.figures.failed += 1;
                    self.say(at, tag, key.1, FromSource::Failed { index, cause });
                    self.give_back(pin, shard);
                    self.finish_if_told(key);
                    self.end_if_drained(key);
                }
            }
        }
        assert_eq!(self.pins.len(), shard.pins(), "every pin of the shard has its operation");
        self.assert_invariants();
    }

    /// The operation of a pin of which something is told now.
    fn tell(&mut self, pin: PinId) -> &mut Operation {
        let operation = self.operations.get_mut(&self.pins[&pin]).expect("a pin has its operation");
        let Progress::Running { untold } = &mut operation.progress else {
            panic!("an operation that ended has given back what it had not told")
        };
        *untold = untold.checked_sub(1).expect("each pin is told once");
        operation
    }

    fn finish_if_told(&mut self, key: OperationKey) {
        let operation = self.operations.get_mut(&key).expect("it has just been told of");
        if let Progress::Running { untold: 0 } = operation.progress {
            operation.progress = Progress::Sent;
            self.effects.push_back(Effect::Finish { at: operation.at });
        }
    }

    /// When [`Grants::step`] has something to end.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        self.deadlines.first().map(|&(expires, _)| expires)
    }

    /// What the driver is to do next.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// What it says of itself.
    #[must_use]
    pub fn figures(&self) -> GrantFigures {
        GrantFigures {
            operations: self.operations.len() as u64,
            pins: self.pins.len() as u64,
            pinned_bytes: self.bytes.in_use(),
            quarantined_bytes: self.quarantined_bytes,
            nodes_without_shm: self.accounts.keys().filter(|node| self.is_shm_off(node)).count() as u64,
            ..self.figures
        }
    }

    fn say(&mut self, at: StreamAt, tag: Tag, operation: OperationId, message: FromSource) {
        self.effects.push_back(Effect::Say { at, tag, operation, message });
    }

    /// Conservation laws. The first ones cost nothing; the rest walks over everything.
    fn assert_invariants(&self) {
        assert!(self.quarantined_bytes <= self.shm_bytes.in_use(), "only shared memory is quarantined");
        assert!(self.bytes.in_use() <= self.bytes.capacity(), "a quarter is lent at most");
        if cfg!(debug_assertions) {
            self.assert_sums();
        }
    }

    fn assert_sums(&self) {
        let (mut pins, mut bytes, mut quarantined) = (0, 0, 0);
        for (key, operation) in &self.operations {
            assert!(!operation.pins.is_empty(), "an operation ends with its last pin");
            pins += operation.pins.len();
            assert!(operation.pins.keys().all(|pin| self.pins.get(pin) == Some(key)));
            bytes += operation.slot_bytes();
            let awaited = operation.pins.values().filter(|used| used.state == Use::Awaited).count();
            match operation.progress {
                Progress::Running { untold } => assert_eq!(awaited, untold, "what is untold is awaited"),
                Progress::Sent | Progress::Ended | Progress::Quarantined => assert_eq!(awaited, 0),
            }
            if operation.progress == Progress::Quarantined {
                assert_eq!(operation.transport, Transport::Shm, "QUIC drains by itself");
                quarantined += operation.slot_bytes();
            }
            let waits_for_time = match (operation.progress, operation.transport) {
                (Progress::Running { .. } | Progress::Sent, _) => true,
                (Progress::Ended, transport) => transport == Transport::Shm,
                (Progress::Quarantined, _) => false,
            };
            assert_eq!(self.deadlines.contains(&(operation.expires, *key)), waits_for_time);
        }
        assert_eq!((pins, bytes), (self.pins.len(), self.bytes.in_use()), "pins and bytes are conserved");
        assert_eq!(quarantined, self.quarantined_bytes, "quarantine is conserved");
        let of_nodes = self.accounts.values();
        assert_eq!(of_nodes.clone().map(|account| account.bytes.in_use()).sum::<u64>(), bytes);
        assert_eq!(of_nodes.clone().map(|account| account.pins.in_use()).sum::<u64>(), pins as u64);
        assert_eq!(of_nodes.clone().map(|account| account.quarantined_bytes).sum::<u64>(), quarantined);
        assert_eq!(of_nodes.clone().map(|account| account.operations).sum::<usize>(), self.operations.len());
        assert_eq!(of_nodes.map(|account| account.connections).sum::<usize>(), self.connections.len());
        let streams: usize = self.connections.values().map(|connection| connection.operations.len()).sum();
        assert!(streams <= self.operations.len(), "an operation has one connection at most");
        assert!(self.deadlines.len() <= self.operations.len());
    }
}

impl Account {
    fn new(settings: &GrantSettings) -> Account {
        Account {
            incarnation: None,
            windows: BTreeMap::new(),
            connections: 0,
            operations: 0,
            pins: Pool::new("pins of a node", settings.pins_per_node_max),
            bytes: Pool::new("bytes lent to a node", settings.bytes_per_node_max),
            network_bytes: Pool::new("bytes sent to a node", settings.bytes_per_node_max),
            quarantined_pins: 0,
            quarantined_bytes: 0,
        }
    }

    /// Uses an operation's number. False if it has been used, or its origin is one too many.
    fn use_up(&mut self, operation: OperationId) -> bool {
        let OperationId { origin, number } = operation;
        if !self.windows.contains_key(&origin) && self.windows.len() >= OPERATION_ORIGINS_MAX {
            return false;
        }
        self.windows.entry(origin).or_insert_with(Window::new).use_up(number)
    }
}

#[cfg(test)]
mod tests;
