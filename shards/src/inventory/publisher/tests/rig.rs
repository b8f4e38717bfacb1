//! A shard, its publisher, a pool of permits and receivers, with time that only moves when told.

use std::collections::BTreeMap;
use std::time::Duration;

use orbitkv_wire::identity::{
    BlockHash, ClusterUuid, GroupId, Incarnation, Medium, NamespaceDigest, NodeId, Sequence, SessionId,
    ShardIndex,
};
use orbitkv_wire::inventory::{Binding, Open, Requester, SourceStream};
use orbitkv_wire::scope::Scope;

use super::super::*;
use super::receiver::{Heard, Receiver, Rows, View};
use crate::inventory::permits::{Applicant, PermitEffect, Permits};
use crate::journal::{Change, Journal, JournalSettings, RECORD_BYTES, Record};
use crate::key::StateKey;
use crate::members::Member;
use crate::namespaces::Namespaces;

pub const SHARD: ShardIndex = ShardIndex(0);

pub fn node(number: u8) -> NodeId {
    NodeId::new(&format!("node-{number}")).unwrap()
}

pub fn digest(number: u8) -> NamespaceDigest {
    NamespaceDigest([number; 32])
}

pub fn local() -> Local {
    Local {
        cluster: ClusterUuid([9; 16]),
        node: node(0),
        epoch: 1,
        incarnation: Incarnation([100; 16]),
        shards: 1,
    }
}

/// The member numbered `number` in its `life`th life.
pub fn member(number: u8, life: u8) -> Member {
    Member {
        node: node(number),
        epoch: u64::from(life),
        incarnation: Incarnation([number.wrapping_add(100 * life); 16]),
        shards: 1,
        address: "10.0.0.1:7000".parse().unwrap(),
    }
}

/// A shard's truth: everything that ever happened.
pub struct Shard {
    pub journal: Journal,
    pub table: Table,
    pub namespaces: Namespaces,
    log: Vec<Record>,
}

#[derive(Default)]
pub struct Table(BTreeMap<(StateKey, Medium), (u32, Sequence)>);

impl Residences for Table {
    fn after(&self, cursor: Option<(StateKey, Medium)>) -> impl Iterator<Item = Residence> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = cursor.map_or(Unbounded, Excluded);
        let residences = self.0.range((from, Unbounded));
        residences.map(|(&(key, medium), &(bytes, sequence))| Residence { key, medium, bytes, sequence })
    }

    fn len_max(&self) -> u64 {
        self.0.len() as u64
    }
}

impl Shard {
    pub fn new(journal: JournalSettings) -> Shard {
        Shard {
            journal: Journal::new(journal),
            table: Table::default(),
            namespaces: Namespaces::default(),
            log: Vec::new(),
        }
    }

    fn key(&mut self, namespace: u8, number: u16) -> StateKey {
        let mut block = [0; 32];
        block[..2].copy_from_slice(&(number / 2).to_be_bytes());
        let namespace = self.namespaces.intern(&digest(namespace)).unwrap();
        StateKey { namespace, group: GroupId(number % 2), block: BlockHash(block) }
    }

    pub fn put(&mut self, namespace: u8, number: u16, medium: Medium) -> Sequence {
        let key = self.key(namespace, number);
        let bytes = 1 + u32::from(number);
        let sequence = self.journal.append_put(key, medium, bytes);
        if self.table.0.insert((key, medium), (bytes, sequence)).is_none() {
            self.namespaces.retain(key.namespace);
        }
        self.log.push(Record { sequence, key, medium, change: Change::Put { bytes } });
        sequence
    }

    /// Ends a residence if there is one.
    pub fn delete(&mut self, namespace: u8, number: u16, medium: Medium) {
        let key = self.key(namespace, number);
        if self.table.0.remove(&(key, medium)).is_some() {
            self.namespaces.release(key.namespace);
            let sequence = self.journal.append_delete(key, medium);
            self.log.push(Record { sequence, key, medium, change: Change::Delete });
        }
    }

    pub fn puts(&mut self, namespace: u8, numbers: std::ops::Range<u16>) {
        for number in numbers {
            self.put(namespace, number, Medium::Dram);
        }
    }

    /// What was resident at a cut, in a scope.
    pub fn truth(&self, through: Sequence, scope: &Scope) -> Rows {
        let mut rows = Rows::new();
        for record in &self.log[..usize::try_from(through.0).unwrap()] {
            let namespace = *self.namespaces.digest(record.key.namespace);
            if scope.contains(&namespace) {
                let name = (namespace, record.key.group, record.key.block, record.medium);
                match record.change {
                    Change::Put { .. } => drop(rows.insert(name, record.sequence)),
                    Change::Delete => drop(rows.remove(&name)),
                }
            }
        }
        rows
    }

    /// A new life: everything that is resident is put again.
    pub fn restart(&mut self) {
        self.journal.restart();
        self.log.clear();
        for (&(key, medium), (bytes, sequence)) in &mut self.table.0 {
            *sequence = self.journal.append_put(key, medium, *bytes);
            self.log.push(Record { sequence: *sequence, key, medium, change: Change::Put { bytes: *bytes } });
        }
    }
}

/// Settings so small that every bound is met: frames of a few changes, a window of a few frames.
pub fn small() -> PublisherSettings {
    let journal = JournalSettings {
        capacity_bytes: 64 * RECORD_BYTES,
        interval_records_max: 8,
        interval_bytes_max: 8 * RECORD_BYTES,
    };
    PublisherSettings {
        coalescing_window: Duration::ZERO,
        journal,
        delta_records_max: 8,
        page_records_max: 4,
        page_bytes_max: 400,
        frame_bytes_max: 500,
        stream_bytes_max: 1_500,
        stream_frames_max: 12,
        queue_bytes_max: 12_000,
        bytes_per_second: 1_000_000,
        burst_bytes: 20_000,
        connections_max: 8,
        sessions_max: 6,
        slice_records: 16,
        slice_bytes: 2_000,
    }
}

/// Settings under which nothing is scarce.
pub fn ample() -> PublisherSettings {
    let journal = JournalSettings::with_capacity(1 << 20);
    PublisherSettings::of_node(&NodeBounds::default(), 1, journal, Duration::ZERO).unwrap()
}

pub struct Rig {
    pub publisher: Publisher,
    pub shard: Shard,
    pub members: MemberMap,
    pub permits: Permits,
    pub receivers: BTreeMap<ConnectionId, Receiver>,
    /// Frames on their way to receivers; held while it is not `prompt`.
    pub transit: Vec<(ConnectionId, Vec<u8>)>,
    pub closed: Vec<(ConnectionId, CloseCause)>,
    /// How often it was said that a member knows a later epoch.
    pub behind: u32,
    pub now: Moment,
    /// Receivers acknowledge at once what they hear.
    pub prompt_acks: bool,
    draws: u128,
    attempts: u64,
    connections: u64,
}

impl Rig {
    pub fn new(settings: PublisherSettings) -> Rig {
        let shard = Shard::new(settings.journal);
        let members = MemberMap::new(1, (0..20).map(|number| member(number, 1)).collect());
        let mut publisher = Publisher::new(settings, local(), SHARD);
        publisher.on_members(&members, Moment(0));
        Rig {
            publisher,
            shard,
            members,
            permits: Permits::new(2, 64),
            receivers: BTreeMap::new(),
            transit: Vec::new(),
            closed: Vec::new(),
            behind: 0,
            now: Moment(1_000_000_000),
            prompt_acks: true,
            draws: 0,
            attempts: 0,
            connections: 0,
        }
    }

    /// What member `number` would open with.
    pub fn opening(&mut self, number: u8, scope: &Scope) -> Open {
        self.attempts += 1;
        let requester = member(number, 1);
        let source = member(0, 1);
        let (stream, frame) = (1_500, 500);
        let ample = self.publisher.settings.frame_bytes_max > 10_000;
        Open {
            binding: Binding {
                cluster: local().cluster,
                source: SourceStream {
                    node: source.node,
                    epoch: source.epoch,
                    incarnation: self.publisher.local.incarnation,
                    shard: SHARD,
                },
                requester: Requester { node: requester.node, incarnation: requester.incarnation },
                scope: scope.digest(),
                session: SessionId([self.attempts as u8; 16]),
            },
            attempt: self.attempts,
            scope: scope.clone(),
            window_bytes: if ample { 256 * 1024 } else { stream },
            frame_bytes_max: if ample { 128 * 1024 } else { frame },
            resume: None,
        }
    }

    pub fn connect(&mut self, number: u8, open: Open, view: Option<View>) -> ConnectionId {
        self.connections += 1;
        let id = ConnectionId(self.connections);
        self.receivers.insert(id, Receiver::new(open, view));
        self.publisher.on_connected(id, node(number), self.now);
        id
    }

    /// Opens a session of member `number` without a view.
    pub fn open(&mut self, number: u8, scope: &Scope) -> ConnectionId {
        let open = self.opening(number, scope);
        self.connect(number, open, None)
    }

    /// Goes on with the view of an earlier session.
    pub fn reopen(&mut self, number: u8, earlier: ConnectionId) -> ConnectionId {
        let earlier = self.receivers.remove(&earlier).unwrap();
        let mut open = self.opening(number, &earlier.open.scope);
        open.resume = earlier.resume();
        self.connect(number, open, earlier.view)
    }

    pub fn lose(&mut self, id: ConnectionId) {
        self.transit.retain(|(other, _)| *other != id);
        self.publisher.on_closed(id, self.now);
    }

    /// What receivers say arrives.
    pub fn hear(&mut self) {
        for (&id, receiver) in &mut self.receivers {
            for frame in std::mem::take(&mut receiver.says) {
                self.publisher.on_frame(id, &frame, self.shard.journal.head(), self.now);
            }
        }
    }

    /// One turn, and what it wants done. Returns whether more is due.
    pub fn turn(&mut self) -> bool {
        self.draws += 1;
        let source = Source {
            journal: &self.shard.journal,
            residences: &self.shard.table,
            namespaces: &self.shard.namespaces,
        };
        let more = self.publisher.turn(&source, self.draws, self.now);
        self.take_effects();
        more
    }

    pub fn take_effects(&mut self) {
        while let Some(effect) = self.publisher.poll_effect() {
            match effect {
                PublisherEffect::Send { connection, header, body } => {
                    self.transit.push((connection, [&header[..], &body].concat()));
                }
                PublisherEffect::Close { connection, cause } => self.closed.push((connection, cause)),
                PublisherEffect::Behind { node, incarnation } => {
                    assert_eq!((node, incarnation), (local().node, local().incarnation));
                    self.behind += 1;
                }
                PublisherEffect::WantPermit(ticket) => {
                    self.permits.request(Applicant { shard: SHARD, ticket }).unwrap();
                }
                PublisherEffect::ReturnPermit(ticket) => {
                    self.permits.give_back(Applicant { shard: SHARD, ticket });
                }
            }
        }
    }

    /// Permits that can be given are; whether the publisher heard anything.
    pub fn grant(&mut self) -> bool {
        let mut has_heard = false;
        while let Some(effect) = self.permits.poll_effect() {
            match effect {
                PermitEffect::Granted(applicant) => self.publisher.on_permit(applicant.ticket, self.now),
                PermitEffect::Waits { applicant, position } => {
                    self.publisher.on_permit_waits(applicant.ticket, position, self.now);
                }
            }
            has_heard = true;
        }
        has_heard
    }

    /// Frames arrive at receivers.
    pub fn deliver(&mut self) {
        for (id, frame) in std::mem::take(&mut self.transit) {
            let Some(receiver) = self.receivers.get_mut(&id) else { continue };
            receiver.on_frame(&frame, &self.shard);
            if self.prompt_acks {
                receiver.ack(usize::MAX);
            }
        }
    }

    /// Everything that happens without time passing.
    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            self.hear();
            let more = self.turn();
            let granted = self.grant();
            let is_quiet = self.transit.is_empty();
            self.deliver();
            let is_silent = self.receivers.values().all(|receiver| receiver.says.is_empty());
            let waits = self.publisher.outlet.order.is_empty();
            if is_quiet && is_silent && waits && !more && !granted {
                return;
            }
        }
        panic!("it never settles");
    }

    /// Time passes, with a turn at each deadline.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.settle();
            match self.publisher.next_deadline() {
                Some(deadline) if deadline <= end => {
                    assert!(deadline > self.now, "a deadline that has passed makes the core spin");
                    self.now = deadline;
                }
                _ => break,
            }
        }
        self.now = end;
        self.settle();
    }

    pub fn receiver(&mut self, id: ConnectionId) -> &mut Receiver {
        self.receivers.get_mut(&id).unwrap()
    }

    /// What was heard since last asked.
    pub fn heard(&mut self, id: ConnectionId) -> Vec<Heard> {
        std::mem::take(&mut self.receiver(id).heard)
    }

    pub fn watermark(&self, id: ConnectionId) -> Option<u64> {
        self.receivers[&id].view.as_ref().map(|view| view.applied.0)
    }

    /// Closes everything and looks whether anything is left.
    pub fn assert_nothing_left(&mut self) {
        let ids: Vec<_> = self.publisher.connections.keys().copied().collect();
        ids.into_iter().for_each(|id| self.lose(id));
        self.turn();
        assert_eq!(self.publisher.outlet.pool.in_use(), 0, "every byte came back");
        assert_eq!((self.permits.held(), self.permits.waiting()), (0, 0), "every permit came back");
        assert_eq!((self.publisher.scopes.sessions(), self.publisher.intervals.len()), (0, 0));
    }
}
