//! The room against sources that grant, refuse, die, break off, send wrong bytes and answer late, in seeded
//! random orders. The driver has a real arena whose slots are given to the next fetch as soon as one ends: a
//! write that comes too late shows as a wrong byte of somebody else.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use orbitkv_wire::engine::answers::BlockOutcome;
use orbitkv_wire::identity::{BlockHash, GroupId, Incarnation, Medium, NamespaceDigest, Sequence};
use orbitkv_wire::inventory::SourceStream;
use orbitkv_wire::payload::{
    Answer, Authorize, FailureCause, FromSource, OperationId, Refusal, StopCause, Transport,
};

use super::rig::{ORIGIN, local, member, node};
use super::streams::*;
use crate::dice::Dice;
use crate::fetcher::*;
use crate::flow::pressure::UNMEASURED;
use crate::members::MemberMap;
use crate::residents::CopyId;
use crate::time::Moment;

const SLOTS: usize = 48;
const KEYS: u64 = 40;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

struct Begun {
    key: u64,
    slot: usize,
    deadline: Moment,
    candidates: Vec<Candidate>,
    cancelled: bool,
}

struct World {
    dice: Dice,
    settings: FetcherSettings,
    room: Fetcher,
    now: Moment,
    /// The life of each source, and whether it is a member.
    lives: BTreeMap<&'static str, (u8, bool)>,
    revision: u64,
    admits: bool,
    honest: bool,
    arena: Vec<u8>,
    free: Vec<usize>,
    begun: BTreeMap<CopyId, Begun>,
    dials: BTreeMap<DialId, SourceStream>,
    connections: BTreeMap<ConnectionId, SourceStream>,
    streams: BTreeMap<u64, Stream>,
    copies_made: u32,
    connections_made: u64,
    fetched: u64,
    ended: u64,
    /// Operations over shared memory.
    shared: BTreeSet<u64>,
    /// Those that are released: their source may have anything else there by now.
    released: BTreeSet<u64>,
    out_of_time: u64,
}

impl World {
    fn new(seed: u64, honest: bool) -> World {
        let mut dice = Dice(seed);
        let settings = FetcherSettings {
            fetches_max: 40,
            connections_max: 3 + dice.roll(3) as usize,
            dials_max: 2,
            residences_max: 1 + dice.roll(6) as usize,
            operations_max: 1 + dice.roll(3) as usize,
            bytes_max: 40 + dice.roll(400),
            source_bytes_max: 40,
            placed_per_turn: 4,
            operations_per_turn: 1,
            stall_wait: Duration::from_millis(if honest { 600_000 } else { 400 }),
            idle_wait: Duration::from_millis(300),
            guard: GuardSettings {
                window_calls: 6,
                open_for: Duration::from_millis(60),
                ..GuardSettings::default()
            },
            ..FetcherSettings::default()
        };
        let mut world = World {
            dice,
            settings,
            room: Fetcher::new(settings, ORIGIN),
            now: Moment(1),
            lives: NAMES.map(|name| (name, (1, true))).into(),
            revision: 0,
            admits: false,
            honest,
            arena: vec![0; SLOT * SLOTS],
            free: (0..SLOTS).collect(),
            begun: BTreeMap::new(),
            dials: BTreeMap::new(),
            connections: BTreeMap::new(),
            streams: BTreeMap::new(),
            copies_made: 0,
            connections_made: 0,
            fetched: 0,
            ended: 0,
            shared: BTreeSet::new(),
            released: BTreeSet::new(),
            out_of_time: 0,
        };
        world.room.on_registered(local());
        world.announce_members();
        world
    }

    fn announce_members(&mut self) {
        self.revision += 1;
        let known = self.lives.iter().filter(|(_, (_, is_member))| *is_member);
        let members = known.map(|(name, (life, _))| member(name, *life)).collect();
        self.room.on_members(&MemberMap::new(self.revision, members));
        self.admits = true;
    }

    fn source(&mut self) -> SourceStream {
        let name = NAMES[self.dice.roll(4) as usize];
        let life = self.lives[name].0 - u8::from(!self.honest && self.dice.one_in(8));
        let shard = orbitkv_wire::identity::ShardIndex(self.dice.roll(2) as u16);
        let (epoch, incarnation) = (u64::from(life), Incarnation([life; 16]));
        SourceStream { node: node(name), epoch, incarnation, shard }
    }

    fn begin(&mut self) {
        let Some(slot) = self.free.pop() else { return };
        let key = self.dice.roll(KEYS);
        let count = if self.honest { 1 } else { self.dice.roll(6) };
        let candidates: Vec<_> = (0..count)
            .map(|_| {
                let medium = if self.dice.one_in(3) { Medium::Ssd } else { Medium::Dram };
                let bytes = length(key) as u32 + u32::from(!self.honest && self.dice.one_in(20));
                let (source, sequence) = (self.source(), Sequence(1 + self.dice.roll(50)));
                Candidate { source, medium, sequence, bytes }
            })
            .collect();
        self.copies_made += 1;
        // Numbers of copies come again.
        let mut copy = CopyId(self.copies_made % 60);
        while self.begun.contains_key(&copy) {
            copy.0 += 1;
        }
        let mut block = [0; 32];
        block[..8].copy_from_slice(&key.to_le_bytes());
        let order = Order {
            copy,
            namespace: NamespaceDigest([3; 32]),
            group: GroupId(0),
            block: BlockHash(block),
            arena_offset: (slot * SLOT) as u64,
            bytes: length(key),
            class: [Class::Demand, Class::Background][self.dice.roll(4) as usize / 3],
        };
        // A slot shows what it held before until it is written.
        let rest = if self.honest { 600_000 } else { self.dice.roll(900) };
        let deadline = self.now + Duration::from_millis(rest);
        self.room.begin(order, &candidates, deadline, self.now);
        self.begun.insert(copy, Begun { key, slot, deadline, candidates, cancelled: false });
    }

    fn take_effects(&mut self) {
        while let Some(effect) = self.room.poll_effect() {
            match effect {
                FetcherEffect::Dial { dial, source, .. } => {
                    assert!(self.is_member(&source));
                    assert!(self.dials.insert(dial, source).is_none());
                    assert!(self.dials.len() <= self.settings.dials_max);
                }
                FetcherEffect::Authorize { connection, authorize } => {
                    self.on_authorize(connection, authorize)
                }
                FetcherEffect::Release { connection, operation } => {
                    let stream = self.over(connection, operation);
                    assert!(stream.due.is_empty() && stream.flow.is_none(), "everything granted has come");
                }
                FetcherEffect::Cancel { connection, operation } => {
                    self.over(connection, operation);
                    self.streams.get_mut(&operation.number).expect("just seen").is_cancelled = true;
                }
                FetcherEffect::Forget { connection, operation } => {
                    self.over(connection, operation);
                }
                FetcherEffect::Close { connection, .. } => {
                    assert!(self.connections.remove(&connection).is_some(), "closed once");
                    self.streams.retain(|_, stream| stream.connection != connection);
                }
                FetcherEffect::Fetched { copy, checksum: told, .. } => {
                    let begun = self.end(copy);
                    let bytes = &self.arena[begun.slot * SLOT..][..length(begun.key) as usize];
                    assert_eq!(bytes, truth(begun.key), "no wrong byte is installed");
                    assert_eq!(told, checksum(bytes));
                    assert!(!begun.cancelled);
                    self.fetched += 1;
                }
                FetcherEffect::Failed { copy, outcome } => {
                    let begun = self.end(copy);
                    assert_eq!(outcome == BlockOutcome::Cancelled, begun.cancelled);
                    assert!(outcome != BlockOutcome::DeadlineExceeded || begun.deadline <= self.now);
                    assert!(outcome != BlockOutcome::Ready);
                }
                FetcherEffect::Exclude { node, incarnation } => {
                    let name = NAMES.iter().find(|name| super::rig::node(name) == node).unwrap();
                    assert!(self.lives[name].0 > incarnation.0[0], "only an older life is excluded");
                }
                FetcherEffect::CancelAgain { connection, operation } => {
                    let stream = &self.streams[&operation.number];
                    assert!(stream.is_cancelled && stream.connection == connection, "it was said once");
                }
                FetcherEffect::OutOfTime { copy, used, .. } => {
                    assert!(self.begun.contains_key(&copy) && used <= self.now - Moment(0));
                    self.out_of_time += 1;
                }
                FetcherEffect::Refresh { .. }
                | FetcherEffect::Breaker { .. }
                | FetcherEffect::RangeEnded { .. } => {}
                FetcherEffect::Tried { copy, candidate, since, .. } => {
                    let begun = &self.begun[&copy];
                    assert!(begun.candidates.contains(&candidate), "a candidate of the fetch");
                    assert!(since <= self.now);
                }
                // The driver reads when its turn comes: see `flow`.
                FetcherEffect::Read { operation, .. } => assert!(self.shared.contains(&operation.number)),
                FetcherEffect::Released { operation, .. } => {
                    assert!(self.shared.contains(&operation.number));
                    assert!(self.released.insert(operation.number), "an operation is released once");
                }
            }
        }
    }

    fn is_member(&self, source: &SourceStream) -> bool {
        let name = NAMES.iter().find(|name| node(name) == source.node).unwrap();
        self.lives[name].0 == source.incarnation.0[0] || self.revision_is_late(name)
    }

    /// Whether the room cannot know yet that the source has another life.
    fn revision_is_late(&self, name: &str) -> bool {
        !self.lives[name].1
    }

    fn on_authorize(&mut self, connection: ConnectionId, authorize: Authorize) {
        assert!(self.admits, "nobody is asked by who may not");
        assert_eq!(Some(&authorize.binding.source), self.connections.get(&connection));
        let mut named = BTreeSet::new();
        for wanted in &authorize.residences {
            assert!(named.insert((wanted.block, wanted.medium)), "no residence twice");
            let is_candidate = |candidate: &Candidate| {
                let of_it = (candidate.source, candidate.medium, candidate.sequence);
                of_it == (authorize.binding.source, wanted.medium, wanted.sequence)
            };
            let is_of = |begun: &Begun| {
                begun.key == key_of(&wanted.block) && begun.candidates.iter().any(is_candidate)
            };
            assert!(self.begun.values().any(is_of), "only candidates are asked for");
        }
        assert!(authorize.residences.len() <= self.settings.residences_max);
        let count = authorize.residences.len();
        let stream = Stream {
            connection,
            authorize,
            due: Vec::new(),
            granted: vec![false; count],
            is_answered: false,
            flow: None,
            is_over: false,
            is_cancelled: false,
        };
        let number = stream.authorize.operation.number;
        if stream.authorize.transport == Transport::Shm {
            self.shared.insert(number);
        }
        assert!(self.streams.insert(number, stream).is_none());
        let live = |stream: &&Stream| stream.connection == connection && !stream.is_over;
        assert!(self.streams.values().filter(live).count() <= self.settings.operations_max);
        // What is charged, and what may really come: of operations that nobody wants, too.
        let coming: u64 = self.streams.values().map(Stream::may_send).sum();
        assert!(coming <= self.room.bytes_outstanding(), "{coming} bytes may come");
        assert!(self.room.bytes_outstanding() <= self.settings.bytes_max.max(SLOT as u64));
    }

    fn over(&mut self, connection: ConnectionId, operation: OperationId) -> &Stream {
        let stream = self.streams.get_mut(&operation.number).expect("an operation that is known");
        assert!(!stream.is_over && stream.connection == connection, "an operation ends once");
        stream.is_over = true;
        let is_shared = self.shared.contains(&operation.number);
        assert_eq!(is_shared, self.released.contains(&operation.number), "what is read there is released");
        stream
    }

    fn end(&mut self, copy: CopyId) -> Begun {
        let begun = self.begun.remove(&copy).expect("a fetch ends once");
        self.free.push(begun.slot);
        self.ended += 1;
        begun
    }

    fn step(&mut self) {
        self.room.on_read(true, self.now);
        let more = self.room.turn(self.now);
        self.take_effects();
        self.room.assert_invariants();
        if !more {
            assert!(self.room.next_deadline().is_none_or(|due| due > self.now));
        }
    }

    fn say(&mut self, number: u64, message: FromSource) {
        let connection = self.streams[&number].connection;
        let operation = OperationId { origin: ORIGIN, number };
        self.room.on_message(connection, operation, &message, self.now);
        self.room.assert_invariants();
        self.take_effects();
    }

    fn answer(&mut self, number: u64) {
        let stream = &self.streams[&number];
        // What was answered twice would be sent twice, if anybody listened.
        let may_repeat = !self.honest && !stream.is_over && self.dice.one_in(50);
        if stream.is_answered && !may_repeat {
            return;
        }
        let wanted = stream.authorize.residences.clone();
        let mut granted = Vec::new();
        let answers: Vec<_> = (0..)
            .zip(&wanted)
            .map(|(index, wanted)| {
                let bytes = length(key_of(&wanted.block)) as u32;
                let retry_after_ms = self.dice.roll(200) as u32;
                match if self.honest { 9 } else { self.dice.roll(10) } {
                    0 => Answer::Ended { sequence: None },
                    1 => Answer::NeverHeld { head: Sequence(self.dice.roll(60)) },
                    2 => Answer::Busy { retry_after_ms },
                    3 if self.dice.one_in(4) => {
                        granted.push(index);
                        Answer::Granted { bytes: bytes + 1 }
                    }
                    _ => {
                        granted.push(index);
                        Answer::Granted { bytes }
                    }
                }
            })
            .collect();
        let stream = self.streams.get_mut(&number).unwrap();
        stream.is_answered = true;
        granted.iter().for_each(|index| stream.granted[usize::from(*index)] = true);
        stream.due = granted;
        self.say(number, FromSource::Answers { grant_ms: 100, summary: UNMEASURED, answers });
    }

    fn refuse(&mut self, number: u64) {
        let asked = self.streams[&number].authorize.binding.source;
        let name = NAMES.iter().find(|name| node(name) == asked.node).unwrap();
        let life = self.lives[name].0;
        let refusal = match self.dice.roll(5) {
            0 if life > asked.incarnation.0[0] => {
                Refusal::StaleEpoch { epoch: u64::from(life), incarnation: Incarnation([life; 16]) }
            }
            1 => Refusal::StaleEpoch { epoch: 0, incarnation: Incarnation([250; 16]) },
            2 => Refusal::LeaseExpired,
            3 => Refusal::Repeated,
            _ => Refusal::TransportOff,
        };
        self.say(number, FromSource::Refused(refusal));
    }

    /// Begins the payload of a position, or goes on with it.
    fn flow(&mut self, number: u64) {
        let stream = self.streams.get_mut(&number).unwrap();
        let Some(flow) = &mut stream.flow else { return self.begin_flow(number) };
        let piece = 1 + self.dice.roll(24) as usize;
        let range = flow.come..(flow.come + piece).min(flow.sends.len());
        flow.come = range.end;
        let (index, is_last) = (flow.index, flow.come == flow.sends.len());
        let (connection, operation) = (stream.connection, OperationId { origin: ORIGIN, number });
        let piece = flow.sends[range.clone()].to_vec();
        let is_shared = self.shared.contains(&number);
        let place = self.room.destination(connection, operation, index, self.now);
        if is_shared && place.is_none() {
            // A reader stops at the first step that it may not do.
            stream.flow = None;
            self.room.on_unread(connection, operation, index);
            self.room.assert_invariants();
            return self.take_effects();
        }
        if let Some(place) = place {
            assert!(!self.released.contains(&number), "nothing is read after it was said to be released");
            let wanted = stream.authorize.residences[usize::from(index)];
            let start = place.arena_offset as usize;
            let owner = self.begun.values().find(|begun| begun.slot * SLOT == start);
            assert_eq!(owner.map(|owner| owner.key), Some(key_of(&wanted.block)), "it is still its slot");
            self.arena[start..][range].copy_from_slice(&piece);
        }
        if is_last {
            let computed = checksum(&stream.flow.take().unwrap().sends);
            self.room.on_bytes(connection, operation, index, computed);
            self.room.assert_invariants();
            self.take_effects();
        }
    }

    fn begin_flow(&mut self, number: u64) {
        let stream = self.streams.get_mut(&number).unwrap();
        if stream.due.is_empty() {
            return;
        }
        let at = self.dice.roll(stream.due.len() as u64) as usize;
        let index = stream.due.remove(at);
        let key = key_of(&stream.authorize.residences[usize::from(index)].block);
        if !self.honest && self.dice.one_in(12) {
            let cause =
                self.dice.pick([FailureCause::Corrupt, FailureCause::DeviceError, FailureCause::Ended]);
            return self.say(number, FromSource::Failed { index, cause: cause.unwrap() });
        }
        let mut sends = truth(key);
        let mut told = checksum(&sends);
        if !self.honest && self.dice.one_in(6) {
            let at = self.dice.roll(sends.len() as u64) as usize;
            sends[at] ^= 1 << self.dice.roll(8);
        } else if !self.honest && self.dice.one_in(10) {
            told ^= 1;
        }
        let bytes = sends.len() as u32;
        stream.flow = Some(Flow { index, sends, come: 0 });
        self.say(
            number,
            match self.shared.contains(&number) {
                true => FromSource::Extent { index, bytes, checksum: told, offset: key },
                false => FromSource::Bytes { index, bytes, checksum: told },
            },
        );
    }

    /// Something that no source of ours says.
    fn violate(&mut self, number: u64) {
        let count = self.streams[&number].granted.len() as u16;
        let index = self.dice.roll(u64::from(count) + 2) as u16;
        let message = match self.dice.roll(4) {
            0 => FromSource::Bytes { index, bytes: 1 + self.dice.roll(64) as u32, checksum: 1 },
            1 => FromSource::Failed { index, cause: FailureCause::Ended },
            2 => FromSource::Drained,
            _ => FromSource::Answers {
                grant_ms: 1,
                summary: UNMEASURED,
                answers: vec![Answer::Granted { bytes: 9 }; 129],
            },
        };
        let is_due = self.streams[&number].due.contains(&index);
        let is_legal = is_due
            && match message {
                FromSource::Bytes { .. } => !self.shared.contains(&number),
                FromSource::Failed { .. } => true,
                _ => false,
            };
        if !is_legal {
            self.say(number, message);
        }
    }

    fn end_stream(&mut self, number: u64) {
        let stream = self.streams.remove(&number).unwrap();
        let end = match self.dice.roll(4) {
            0 => StreamEnd::Reset { code: StopCause::Deadline as u64 },
            1 => StreamEnd::Reset { code: StopCause::Fenced as u64 },
            _ => StreamEnd::Finished,
        };
        let operation = OperationId { origin: ORIGIN, number };
        // What was over before is so now without another effect.
        let is_over = stream.is_over;
        let connection = stream.connection;
        self.streams.insert(number, stream);
        self.room.on_stream_over(connection, operation, end, self.now);
        self.room.assert_invariants();
        self.take_effects();
        // What is told over shared memory is read on when the stream has ended.
        let reads_on = |stream: &Stream| self.shared.contains(&number) && stream.flow.is_some();
        let known = self.streams.get_mut(&number);
        match known {
            Some(stream) if !stream.is_over && reads_on(stream) => stream.due.clear(),
            known => {
                assert!(known.is_none_or(|stream| stream.is_over), "{is_over}");
                self.streams.remove(&number);
            }
        }
    }

    /// A source hears of a cancel.
    fn end_cancelled(&mut self) {
        let cancelled = self.streams.iter().filter(|(_, stream)| stream.is_cancelled);
        let cancelled: Vec<u64> = cancelled.map(|(number, _)| *number).collect();
        if let Some(number) = self.dice.pick(cancelled) {
            self.end_stream(number);
        }
    }

    fn change_members(&mut self) {
        let name = NAMES[self.dice.roll(4) as usize];
        match self.dice.roll(6) {
            0 => self.lives.get_mut(name).unwrap().1 ^= true,
            1 => self.lives.get_mut(name).unwrap().0 += 1,
            2 => {
                self.room.on_membership_invalid();
                self.admits = false;
            }
            3 if self.dice.one_in(3) => {
                self.room.on_fenced();
                self.admits = false;
                self.take_effects();
                assert!(self.connections.is_empty() && self.begun.is_empty(), "nothing outlives a fence");
                self.room.on_registered(local());
            }
            4 => {
                let (life, _) = self.lives[name];
                self.lives.get_mut(name).unwrap().0 = life + 1;
                self.room.on_excluded(node(name), Incarnation([life; 16]));
            }
            _ => {}
        }
        self.take_effects();
        if self.lives.values().any(|(life, _)| *life > 240) {
            self.lives = NAMES.map(|name| (name, (1, true))).into();
        }
        self.announce_members();
        self.take_effects();
    }

    fn answer_dial(&mut self) {
        let Some((&dial, &source)) = self.dials.iter().next() else { return };
        self.dials.remove(&dial);
        if !self.honest && self.dice.one_in(6) {
            self.room.on_dial_failed(dial, self.now);
        } else if !self.honest && self.dice.one_in(12) {
            self.room.on_dial_given_up(dial, self.now);
        } else {
            self.connections_made += 1;
            let connection = ConnectionId(self.connections_made);
            self.connections.insert(connection, source);
            self.room.on_connected(dial, connection, self.now);
            if self.dice.one_in(2) {
                self.room.on_shared(connection);
            }
        }
        self.take_effects();
        assert!(self.connections.len() + self.dials.len() <= self.settings.connections_max);
    }

    fn lose_connection(&mut self) {
        let connections: Vec<_> = self.connections.keys().copied().collect();
        let Some(connection) = self.dice.pick(connections) else { return };
        self.connections.remove(&connection);
        self.streams.retain(|_, stream| stream.connection != connection);
        self.room.on_closed(connection, self.now);
    }

    /// A peer socket breaks, or is there again.
    fn change_sharing(&mut self) {
        let connections: Vec<_> = self.connections.keys().copied().collect();
        let Some(connection) = self.dice.pick(connections) else { return };
        match self.dice.one_in(2) {
            true => self.room.on_unshared(connection),
            false => self.room.on_shared(connection),
        }
        self.take_effects();
    }

    fn cancel(&mut self) {
        let begun: Vec<_> = self.begun.keys().copied().collect();
        let Some(copy) = self.dice.pick(begun) else { return };
        // It may have ended by an effect that nobody took yet: effects are taken first.
        self.take_effects();
        if let Some(begun) = self.begun.get_mut(&copy) {
            begun.cancelled = true;
            match copy.0 % 2 {
                0 => self.room.cancel(copy),
                _ => self.room.expire(copy, self.now),
            }
            self.take_effects();
            assert!(!self.begun.contains_key(&copy), "a cancel is at once");
        }
    }

    fn act(&mut self) {
        let streams: Vec<_> = self.streams.keys().copied().collect();
        let stream = self.dice.pick(streams);
        match (self.dice.roll(40), stream) {
            (0..8, _) => self.begin(),
            (8..11, _) => self.answer_dial(),
            (11..16, Some(number)) => self.answer(number),
            (16..28, Some(number)) => self.flow(number),
            (28, _) => self.now = self.now + Duration::from_millis(self.dice.roll(60)),
            (29, _) if !self.honest => self.cancel(),
            (30, Some(number)) if !self.honest => self.refuse(number),
            (31, Some(number)) if !self.honest => self.end_stream(number),
            (32, _) if !self.honest && self.dice.one_in(4) => self.lose_connection(),
            (33, Some(number)) if !self.honest && self.dice.one_in(4) => self.violate(number),
            (34, _) if !self.honest && self.dice.one_in(4) => self.change_members(),
            (35, _) if self.dice.one_in(4) => self.change_sharing(),
            (36..38, _) => self.end_cancelled(),
            _ => self.step(),
        }
        self.room.assert_invariants();
    }
}

#[test]
fn no_wrong_byte_and_each_fetch_ends_once_among_bad_sources() {
    let mut sum = FetcherFigures::default();
    for seed in 0..150 {
        let mut world = World::new(seed, false);
        (0..1_500).for_each(|_| world.act());
        world.now = world.now + Duration::from_secs(2);
        for _ in 0..200 {
            world.step();
        }
        assert!(world.begun.is_empty(), "seed {seed}: every fetch has ended");
        while world.streams.values().any(|stream| stream.is_cancelled) {
            world.end_cancelled();
        }
        assert_eq!(world.room.bytes_outstanding(), 0);
        assert!(world.streams.values().all(|stream| stream.is_over), "every operation has ended");
        assert_eq!(world.shared, world.released, "however it ended, its source has been told");
        let figures = world.room.figures();
        assert_eq!(figures.begun, world.ended);
        assert_eq!(figures.fetched, world.fetched);
        assert_eq!(figures.out_of_time.iter().sum::<u64>(), world.out_of_time);
        sum.transfers_left += figures.transfers_left;
        sum.cancels_confirmed += figures.cancels_confirmed;
        sum.cancels_closed += figures.cancels_closed;
        sum.left_silent += figures.left_silent;
        sum.fetched += figures.fetched;
        sum.rerouted += figures.rerouted;
        sum.wrong_checksums += figures.wrong_checksums;
        sum.violations += figures.violations;
        sum.stale_epoch += figures.stale_epoch;
        sum.stalled += figures.stalled;
        sum.busy += figures.busy;
        sum.late += figures.late;
        sum.cut_short += figures.cut_short;
        sum.bytes_wasted += figures.bytes_wasted;
        sum.fetched_shm += figures.fetched_shm;
        sum.unread += figures.unread;
        sum.breaker_opens += figures.breaker_opens;
        sum.breaker_probes += figures.breaker_probes;
        sum.breaker_refusals += figures.breaker_refusals;
        sum.extra_asks += figures.extra_asks;
    }
    // What is tested has happened, and often.
    let least = [sum.fetched / 50, sum.rerouted, sum.wrong_checksums, sum.violations, sum.stale_epoch]
        .into_iter()
        .chain([sum.stalled, sum.busy, sum.late, sum.cut_short, sum.bytes_wasted])
        .chain([sum.fetched_shm / 10, sum.unread, sum.breaker_opens, sum.breaker_probes])
        .chain([sum.breaker_refusals, sum.extra_asks, sum.transfers_left, sum.left_silent])
        .chain([sum.cancels_confirmed, sum.cancels_closed])
        .min();
    assert!(least >= Some(20), "{sum:?}");
}

#[test]
fn everything_comes_from_good_sources() {
    for seed in 0..40 {
        let mut world = World::new(seed, true);
        (0..600).for_each(|_| world.act());
        for _ in 0..20_000 {
            if world.begun.is_empty() {
                break;
            }
            let streams: Vec<_> = world.streams.keys().copied().collect();
            for number in streams {
                world.answer(number);
                world.flow(number);
            }
            world.answer_dial();
            world.now = world.now + Duration::from_micros(100);
            world.step();
        }
        let figures = world.room.figures();
        let refused = figures.busy;
        assert!(world.begun.is_empty(), "seed {seed}");
        assert_eq!(figures.fetched + refused, figures.begun, "seed {seed}: {figures:?}");
        // How many are refused says how many were begun at once, and nothing of sources.
        assert!(figures.fetched >= 30, "{figures:?}");
    }
}
