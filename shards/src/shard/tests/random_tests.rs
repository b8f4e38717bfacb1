//! Random lives of a tiny shard, checked against the model after every step. A failing case prints
//! its number; `one_case` with that number repeats it exactly. `ORBITKV_MODEL_CASES` asks for more.

use std::collections::BTreeMap;

use orbitkv_wire::engine::answers::{BlockOutcome, CommitOutcome, EvictOutcome, Place, SlotOutcome};
use orbitkv_wire::identity::Medium;

use super::super::command::{Holder, Media};
use super::super::{Command, Key, OrderKind, Outcome, ShardSettings, Tag};
use super::model::{Held, Life, Model, Name, Pending};
use super::rig::{BOTH, Fault, KIB, Rig, digest, key, settings};
use crate::leases::{ConnectionId, InstanceId, LeaseToken};
use crate::reservations::ReservationId;
use crate::residents::{EntryRef, Ssd};

const CASES: u64 = 2_000;
const STEPS: u64 = 400;
const KEYS: u8 = 24;
const SIZES: [u64; 6] = [64 * KIB, 64 * KIB, 100_001, 192 * KIB + 1, 300 * KIB, 4_096];

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }

    fn pick<T: Copy>(&mut self, from: impl Iterator<Item = T>) -> Option<T> {
        let all: Vec<T> = from.collect();
        (!all.is_empty()).then(|| all[self.below(all.len() as u64) as usize])
    }
}

struct Case {
    random: Random,
    settings: ShardSettings,
    rig: Rig,
    model: Model,
    connections: Vec<(ConnectionId, InstanceId)>,
    connections_made: u64,
    tokens: u128,
    errors_per_mille: u64,
    flips_per_mille: u64,
    keys: u8,
    draining: bool,
}

/// Says which case failed.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the failing case is one_case({})", self.0);
        }
    }
}

fn one_case(number: u64) -> (BTreeMap<&'static str, u64>, BTreeMap<&'static str, u64>) {
    let _named = Named(number);
    let mut random = Random(number.wrapping_mul(0x51_7c_c1_b7_27_22_0a_95));
    let ssd_bytes =
        [0, 2 * 1024 * KIB, 3 * 1024 * KIB, 6 * 1024 * KIB, 12 * 1024 * KIB][random.below(5) as usize];
    let mut settings = settings(2 + random.below(3), ssd_bytes);
    settings.write_backs_max = 1 + random.below(5) as usize;
    settings.slab.region_bytes = [1 << 30, 4 * 1024 * KIB][random.below(2) as usize];
    if random.one_in(3) {
        settings.leases.bytes_per_connection_max = 600 * KIB;
        settings.reserved_bytes_max = 700 * KIB;
    }
    let (errors_per_mille, flips_per_mille) =
        [(0, 0), (0, 0), (30, 0), (0, 40), (60, 10), (500, 0), (950, 0)][random.below(7) as usize];
    let mut case = Case {
        rig: Rig::new(settings.clone()),
        settings,
        model: Model::default(),
        connections: Vec::new(),
        connections_made: 0,
        tokens: 0,
        errors_per_mille,
        flips_per_mille,
        keys: 4 + random.below(u64::from(KEYS)) as u8,
        draining: false,
        random,
    };
    for instance in [1, 1, 2, 2] {
        let connection = case.new_connection();
        case.connections.push((connection, InstanceId(instance)));
    }
    for step in 0..STEPS {
        case.step();
        case.model.take_answers(&mut case.rig);
        if step % 8 == 0 {
            case.model.assert_promises(&case.rig);
        }
        if step % 16 == 0 {
            case.model.assert_figures(&mut case.rig, case.settings.leases.bytes_per_connection_max);
        }
    }
    case.finish()
}

impl Case {
    fn new_connection(&mut self) -> ConnectionId {
        self.connections_made += 1;
        ConnectionId(self.connections_made)
    }

    fn connection(&mut self) -> (ConnectionId, InstanceId) {
        let index = self.random.below(self.connections.len() as u64) as usize;
        self.connections[index]
    }

    fn name(&mut self) -> Name {
        // A few keys are used far more often than the rest.
        let range = if self.random.one_in(2) { 6 } else { u64::from(self.keys) };
        (u8::from(self.random.one_in(4)), self.random.below(range.min(u64::from(self.keys))) as u8)
    }

    fn names(&mut self, most: u64) -> Vec<Name> {
        (0..=self.random.below(most)).map(|_| self.name()).collect()
    }

    fn step(&mut self) {
        match self.random.below(120) {
            0..18 => self.reserve(),
            18..32 => self.end_reservations(),
            32..36 => self.query(),
            36..40 => self.hold(),
            40..54 => self.acquire(),
            54..57 => self.attach(),
            57..67 => self.release(),
            67..70 => self.cancel(),
            70..73 => self.evict(),
            73 => self.clear(),
            74 => self.sync(),
            75..77 => self.pass_time(),
            77..96 => self.complete(),
            96..100 => self.work_tables(),
            100..117 => self.start(),
            117 => self.gone(),
            118 => self.disconnect(),
            _ => self.drain(),
        }
    }

    fn reserve(&mut self) {
        let (connection, _) = self.connection();
        let race = self.random.one_in(3);
        let namespace = u8::from(self.random.one_in(4));
        let mut wanted: Vec<(Key, u64)> = Vec::new();
        for index in 0..=self.random.below(4) as u32 {
            let bytes = match self.random.below(60) {
                0 => 40 * 1024 * KIB,
                1 => 1,
                2 => 1024 * KIB,
                choice => SIZES[choice as usize % SIZES.len()],
            };
            let (_, number) = self.name();
            wanted.push((Key { index, ..key(number) }, bytes));
        }
        let before = self.rig.counters().dram_evictions;
        let keys = wanted.clone();
        let outcome =
            self.rig.call(Command::Reserve { connection, namespace: digest(namespace), race, keys });
        if self.draining {
            assert!(matches!(outcome, Outcome::Draining));
            return;
        }
        let Outcome::Slots(slots) = outcome else { panic!("not slots: {outcome:?}") };
        assert_eq!(slots.len(), wanted.len());
        for ((index, slot), (key, bytes)) in slots.into_iter().zip(wanted) {
            assert_eq!(index, key.index);
            let name = (namespace, key.block.0[0]);
            match SlotOutcome::from_wire(slot.outcome).expect("a known outcome") {
                SlotOutcome::Slot => {
                    let offset = slot.offset;
                    assert_eq!(slot.bytes, bytes);
                    let range = offset..offset + super::rig::padded(bytes);
                    self.model.assert_unpromised(&range, "a new slot");
                    for flight in &self.rig.flights {
                        assert!(!super::rig::overlap(&range, &flight.arena_range()), "the device uses it");
                    }
                    self.model.values += 1;
                    let value = self.model.values;
                    self.rig.fill(offset, bytes, value);
                    let held = Held { connection, name, bytes, offset, value };
                    assert!(self.model.held.insert(ReservationId(slot.reservation), held).is_none());
                }
                SlotOutcome::Present => {
                    let life = self.model.lives.get(&name);
                    assert!(life.is_some_and(|life| life.dram || life.ssd), "{name:?} was never here");
                    self.model.count("present");
                }
                SlotOutcome::BeingSaved => self.model.count("being saved"),
                SlotOutcome::Busy => self.model.count("reserve busy"),
                SlotOutcome::TooLarge => {
                    assert!(bytes > slot.offset, "the limit is below what was asked");
                    self.model.count("too large");
                }
            }
        }
        if self.rig.counters().dram_evictions > before + 5 {
            self.model.count("merged");
        }
    }

    /// Commits or aborts some slots, not all of them this connection's, some of them twice.
    fn end_reservations(&mut self) {
        let (connection, _) = self.connection();
        let abort = self.random.one_in(5);
        let mut chosen = Vec::new();
        for (&id, held) in &self.model.held {
            let odds = if held.connection == connection { 2 } else { 40 };
            if self.random.one_in(odds) {
                chosen.push(id);
            }
        }
        if self.random.one_in(10) {
            chosen.push(chosen.first().copied().unwrap_or(ReservationId(1 << 40)));
        }
        let reservations: Vec<_> = (0..).zip(chosen.iter().copied()).collect();
        let mut places = BTreeMap::new();
        for id in &chosen {
            if let Some(held) = self.model.held.get(id) {
                let name = held.name;
                let place = self.place(name);
                places.insert(name, place);
            }
        }
        let outcome = self.rig.call(if abort {
            Command::Abort { connection, reservations }
        } else {
            Command::Commit { connection, reservations }
        });
        let Outcome::Committed(outcomes) = outcome else { panic!("not outcomes: {outcome:?}") };
        assert_eq!(outcomes.len(), chosen.len());
        for ((_, outcome), id) in outcomes.into_iter().zip(chosen) {
            let ours = self.model.held.get(&id).is_some_and(|held| held.connection == connection);
            if !ours {
                assert_eq!(outcome, CommitOutcome::NotYours);
                self.model.count("not yours");
                continue;
            }
            let held = self.model.held.remove(&id).expect("just found");
            let Held { name, bytes, value, .. } = held;
            match outcome {
                CommitOutcome::Aborted => assert!(abort),
                CommitOutcome::Lost => {
                    assert!(!abort && self.model.lives.contains_key(&name), "{name:?} lost to nobody");
                }
                CommitOutcome::Committed => {
                    assert_eq!((abort, places[&name]), (false, Place::None), "the first commit wins");
                    assert!(self.rig.holds(held.offset, bytes, value), "somebody wrote into {held:?}");
                    let ssd = self.settings.log.is_some();
                    self.model.lives.insert(name, Life { value, bytes, dram: true, ssd });
                    places.insert(name, Place::Dram);
                }
                CommitOutcome::NotYours => panic!("{held:?} was ours"),
            }
        }
        for (name, place) in places {
            if place == Place::Dram && !abort {
                assert_eq!(self.place(name), Place::Dram, "a committed block is there");
            }
        }
    }

    fn wire(&self, names: &[Name]) -> Vec<Key> {
        let wire = |(&(namespace, number), index): (&Name, u32)| Key {
            index,
            namespace: namespace.into(),
            ..key(number)
        };
        names.iter().zip(0..).map(wire).collect()
    }

    fn ask(&mut self, names: &[Name], hold: Option<Holder>) -> Outcome {
        let keys = self.wire(names);
        self.rig.call(Command::Query { namespaces: vec![digest(0), digest(1)], keys, hold })
    }

    fn place(&mut self, name: Name) -> Place {
        let Outcome::Places(places) = self.ask(&[name], None) else { panic!("not places") };
        self.model.check_place(name, places[0].1);
        places[0].1
    }

    fn query(&mut self) {
        for name in self.names(8) {
            self.place(name);
        }
    }

    fn holder(&mut self, token: Option<LeaseToken>) -> Holder {
        let (connection, instance) = self.connection();
        let token = token.unwrap_or_else(|| {
            self.tokens += 1;
            LeaseToken(self.tokens)
        });
        Holder { token, instance, connection }
    }

    fn some_token(&mut self) -> Option<LeaseToken> {
        self.random.pick(self.model.leases.keys().copied())
    }

    fn hold(&mut self) {
        let token = if self.random.one_in(4) { self.some_token() } else { None };
        let holder = self.holder(token);
        let names = self.names(6);
        let bounds = self.settings.leases;
        let expires = self.rig.now + bounds.hold_time;
        let (token, connection) = (holder.token, holder.connection);
        let most = bounds.leases_per_connection_max;
        let expected = self.model.hold(token, holder.instance, connection, most, expires);
        let outcome = self.ask(&names, Some(holder));
        match (outcome, expected) {
            (Outcome::Places(places), Ok(())) => {
                for (name, (_, place)) in names.into_iter().zip(places) {
                    self.model.check_place(name, place);
                    let life = self.model.lives.get(&name).copied();
                    let (Place::Dram, Some(Life { value, bytes, .. })) = (place, life) else { continue };
                    if self.model.charged(connection).1 + bytes <= bounds.bytes_per_connection_max {
                        let lease = self.model.leases.get_mut(&token).expect("a hold");
                        lease.pinned.push((name, value, bytes));
                    }
                }
            }
            (Outcome::LeaseRefused(error), Err(expected)) => assert_eq!(error, expected),
            (outcome, expected) => panic!("{outcome:?}, not {expected:?}"),
        }
    }

    fn acquire(&mut self) {
        let token = if self.random.one_in(3) { self.some_token() } else { None };
        let mut holder = self.holder(token);
        let lease = self.model.leases.get(&holder.token);
        let pinned = lease.map(|lease| lease.pinned.clone()).unwrap_or_default();
        let mut names = self.names(6);
        let mut sure = Vec::new();
        if let Some(lease) = self.model.leases.get(&holder.token).filter(|_| !pinned.is_empty()) {
            if self.random.one_in(2) {
                (holder.connection, holder.instance) = (lease.charged, lease.instance);
            }
            names = pinned.iter().map(|(name, ..)| *name).collect();
            for (name, value, _) in pinned {
                let life = self.model.lives.get(&name);
                // Unless it was withdrawn on demand since.
                let held = life.is_some_and(|life| life.value == value);
                sure.push(held && self.place(name) == Place::Dram);
            }
            self.model.count("hold acquired");
        }
        let sure = (0..).zip(sure).filter(|(_, sure)| *sure).map(|(index, _)| index).collect();
        let (token, keys) = (holder.token, self.wire(&names));
        let most = self.settings.leases.leases_per_connection_max;
        let tag = self.rig.submit(Command::Acquire { holder, namespaces: vec![digest(0), digest(1)], keys });
        if self.draining {
            assert!(matches!(self.rig.take(tag)[..], [Outcome::Draining]));
            return;
        }
        if let Err(expected) = self.model.open(token, holder.instance, holder.connection, most) {
            let answers = self.rig.take(tag);
            let [Outcome::LeaseRefused(error)] = answers[..] else { panic!("not refused: {answers:?}") };
            assert_eq!(error, expected);
            self.model.count("lease refused");
            return;
        }
        let undecided = (0..names.len() as u32).collect();
        self.model.pending.insert(tag, Pending::Acquire { token, names, undecided, sure });
    }

    fn attach(&mut self) {
        let Some(token) = self.some_token() else { return };
        let holder = self.holder(Some(token));
        let outcome = self.rig.call(Command::Attach { holder });
        let lease = self.model.leases.get_mut(&token).expect("just chosen");
        match outcome {
            Outcome::Attached(blocks) => {
                assert_eq!((lease.instance, lease.expires), (holder.instance, None));
                assert_eq!(blocks.len(), lease.extents.len());
                let mut shown: Vec<_> =
                    blocks.iter().map(|block| (block.offset, block.bytes, block.block)).collect();
                let mut promised: Vec<_> = (lease.extents.iter())
                    .map(|extent| (extent.offset, extent.bytes, key(extent.name.1).block))
                    .collect();
                shown.sort_unstable();
                promised.sort_unstable();
                assert!(shown == promised, "an attached lease shows its blocks");
                *lease.attachments.entry(holder.connection).or_default() += 1;
                self.model.count("attached");
            }
            Outcome::LeaseRefused(_) => {
                assert!(lease.instance != holder.instance || lease.expires.is_some());
            }
            outcome => panic!("not an answer to Attach: {outcome:?}"),
        }
    }

    fn release(&mut self) {
        let Some(token) = self.some_token() else { return };
        let (mut connection, _) = self.connection();
        if !self.random.one_in(5) {
            let attached: Vec<_> = self.model.leases[&token].attachments.keys().copied().collect();
            connection = self.random.pick(attached.into_iter()).expect("a lease has an attachment");
        }
        let expected = self.model.release(&self.rig, token, connection);
        match self.rig.call(Command::Release { token, connection }) {
            Outcome::Done => assert_eq!(expected, Ok(())),
            Outcome::LeaseRefused(error) => assert_eq!(expected, Err(error)),
            outcome => panic!("not an answer to Release: {outcome:?}"),
        }
    }

    fn cancel(&mut self) {
        let waiting: Vec<Tag> = self.model.pending.keys().copied().collect();
        let Some(target) = self.random.pick(waiting.into_iter()) else { return };
        let deadline = self.random.one_in(2);
        let outcome = if deadline { BlockOutcome::DeadlineExceeded } else { BlockOutcome::Cancelled };
        self.model.cancelling = Some(outcome);
        let outcome = self.rig.call(Command::Cancel { tag: target, deadline });
        assert!(matches!(outcome, Outcome::Done));
        self.model.take_answers(&mut self.rig);
        self.model.cancelling = None;
        assert!(!self.model.pending.contains_key(&target), "a cancelled command is answered whole");
    }

    /// Residences by name: in DRAM, on SSD.
    fn residences(&mut self, namespace: u8) -> BTreeMap<u8, [bool; 2]> {
        let mut residences: BTreeMap<u8, [bool; 2]> = BTreeMap::new();
        for resident in self.rig.list(namespace, BOTH, 1000) {
            residences.entry(resident.block.0[0]).or_default()[resident.medium as usize] = true;
        }
        residences
    }

    /// Takes note that a name has been withdrawn from media; gives the residences that ended.
    fn withdrawn(&mut self, name: Name, media: Media, before: [bool; 2], after: [bool; 2]) -> u64 {
        let mut ended = 0;
        for medium in [Medium::Dram, Medium::Ssd] {
            let index = medium as usize;
            if media.contains(medium) {
                assert!(!after[index], "{name:?} is withdrawn from {medium:?}");
                ended += u64::from(before[index]);
                self.model.removed[index] += u64::from(before[index]);
            } else {
                assert_eq!(before[index], after[index], "{name:?} stays on {medium:?}");
            }
        }
        if let Some(life) = self.model.lives.get_mut(&name) {
            if media.contains(Medium::Ssd) {
                (life.dram, life.ssd) = (after[0], false);
            } else if media.contains(Medium::Dram) {
                life.dram = life.ssd;
            }
        }
        ended
    }

    fn evict(&mut self) {
        let (namespace, number) = self.name();
        let mask = self.random.below(4) as u8;
        let media = Media::from_mask(mask);
        let before = self.residences(namespace).get(&number).copied().unwrap_or_default();
        let command = Command::Evict { namespace: digest(namespace), media, keys: vec![key(number)] };
        let Outcome::Evicted(outcomes) = self.rig.call(command) else { panic!("not outcomes") };
        let after = self.residences(namespace).get(&number).copied().unwrap_or_default();
        let ended = self.withdrawn((namespace, number), media, before, after);
        match outcomes[0].1 {
            EvictOutcome::Absent => assert_eq!(ended, 0),
            EvictOutcome::Evicted => assert!(ended > 0),
            EvictOutcome::InUse => {
                assert!(before[0] && media.contains(Medium::Dram));
                self.model.count("in use");
            }
        }
    }

    fn clear(&mut self) {
        let namespace = self.random.below(2) as u8;
        let mask = self.random.below(4) as u8;
        let media = Media::from_mask(mask);
        let before = self.residences(namespace);
        let command = Command::Clear { namespace: digest(namespace), media };
        let Outcome::Cleared { removed, in_use } = self.rig.call(command) else { panic!("not a clear") };
        let after = self.residences(namespace);
        let mut ended = 0;
        for number in 0..self.keys {
            let before = before.get(&number).copied().unwrap_or_default();
            let after = after.get(&number).copied().unwrap_or_default();
            ended += self.withdrawn((namespace, number), media, before, after);
        }
        assert_eq!(removed, ended);
        assert!(in_use <= removed);
    }

    fn sync(&mut self) {
        let shard = &self.rig.shard;
        let mut unsettled: Vec<EntryRef> = Vec::new();
        let first = crate::key::StateKey {
            namespace: crate::key::NamespaceId(0),
            group: orbitkv_wire::identity::GroupId(0),
            block: orbitkv_wire::identity::BlockHash([0; 32]),
        };
        for (id, entry) in shard.residents.scan_from(&first) {
            if matches!(entry.ssd, Ssd::Queued | Ssd::Writing(_)) {
                unsettled.push(shard.residents.reference(id));
            }
        }
        let since = shard.journal.head();
        let tag = self.rig.submit(Command::Sync);
        self.model.pending.insert(tag, Pending::Sync { unsettled, since });
    }

    fn pass_time(&mut self) {
        self.rig.now.0 += self.random.below(600);
        let now = self.rig.now;
        self.rig.shard.on_time(now);
        self.model.leases.retain(|_, lease| lease.expires.is_none_or(|expires| expires > now));
        assert!(self.rig.shard.next_deadline().is_none_or(|deadline| deadline > now));
    }

    fn fault(&mut self) -> Fault {
        let roll = self.random.below(1000);
        if roll < self.errors_per_mille {
            if self.random.one_in(2) { Fault::Error } else { Fault::Short }
        } else if roll < self.errors_per_mille + self.flips_per_mille {
            Fault::Flipped
        } else {
            Fault::None
        }
    }

    fn complete(&mut self) {
        for _ in 0..=self.random.below(3) {
            if self.rig.flights.is_empty() {
                return;
            }
            let index = self.random.below(self.rig.flights.len() as u64) as usize;
            let fault = self.fault();
            self.rig.complete(index, fault);
        }
    }

    fn start(&mut self) {
        for _ in 0..=self.random.below(4) {
            if !self.rig.start_one() {
                return;
            }
            let flight = self.rig.flights.last().expect("just started");
            if flight.order.kind == OrderKind::Read {
                self.model.assert_unpromised(&flight.arena_range(), "a read");
            }
        }
    }

    fn work_tables(&mut self) {
        self.rig.start_table();
        if !self.rig.tables.is_empty() && self.random.one_in(2) {
            let written = self.errors_per_mille == 0 || self.random.one_in(2);
            self.rig.complete_table(0, written);
        }
    }

    fn gone(&mut self) {
        let index = self.random.below(self.connections.len() as u64) as usize;
        let fresh = self.new_connection();
        let gone = std::mem::replace(&mut self.connections[index].0, fresh);
        self.end_connection(gone);
    }

    fn end_connection(&mut self, gone: ConnectionId) {
        self.model.assert_promises(&self.rig);
        assert!(matches!(self.rig.call(Command::Gone { connection: gone }), Outcome::Done));
        self.model.held.retain(|_, held| held.connection != gone);
        self.model.leases.retain(|_, lease| {
            lease.attachments.remove(&gone);
            !lease.attachments.is_empty()
        });
    }

    fn disconnect(&mut self) {
        let (connection, _) = self.connection();
        assert!(matches!(self.rig.call(Command::Disconnected { connection }), Outcome::Done));
        self.model.leases.retain(|_, lease| lease.expires.is_none() || lease.charged != connection);
    }

    fn drain(&mut self) {
        if self.random.one_in(40) {
            self.draining = true;
            assert!(matches!(self.rig.call(Command::Drain), Outcome::Done));
        }
    }

    /// Everybody leaves, the device finishes, and nothing may be left over.
    fn finish(mut self) -> (BTreeMap<&'static str, u64>, BTreeMap<&'static str, u64>) {
        for (connection, _) in self.connections.clone() {
            self.end_connection(connection);
        }
        self.rig.settle();
        self.model.take_answers(&mut self.rig);
        assert!(self.model.pending.is_empty(), "everything is answered once the device is done");
        let figures = self.rig.shard.figures();
        assert_eq!((figures.reservations, figures.leases, figures.holds), (0, 0, 0));
        assert_eq!((figures.leased_bytes, figures.leased_blocks, figures.reserved_bytes[0]), (0, 0, 0));
        assert_eq!((figures.transfers, figures.waiting[0], figures.write_backs_queued), (0, 0, 0));
        self.model.assert_figures(&mut self.rig, self.settings.leases.bytes_per_connection_max);
        self.model.assert_journal(&mut self.rig);
        if self.errors_per_mille == 0 {
            assert_eq!((figures.counters.ssd_read_errors, figures.counters.ssd_write_errors), (0, 0));
        }
        if self.rig.flips == 0 {
            assert_eq!(figures.counters.checksum_failures, 0, "right bytes are not refused");
        }
        let log = self.rig.shard.log.as_ref().map(|log| (log.accounting(), log.state()));
        self.assert_all_can_go();
        let counters = figures.counters;
        let mut seen = BTreeMap::from([
            ("DRAM evictions", counters.dram_evictions),
            ("SSD evictions", counters.ssd_evictions),
            ("moves", counters.ssd_moves),
            ("SSD reads", counters.ssd_reads),
            ("read errors", counters.ssd_read_errors),
            ("write errors", counters.ssd_write_errors),
            ("wrong bytes", counters.checksum_failures),
            ("write-backs", counters.write_backs_done),
            ("write-backs given up", counters.write_backs_given_up),
            ("lost races", counters.saves_lost_race),
            ("holds expired", figures.holds_expired),
            ("waiting refused", figures.waiting[2]),
        ]);
        if let Some((accounting, state)) = log {
            assert_eq!((accounting.shares.in_flight_writes, accounting.shares.readers), (0, 0));
            seen.insert("reinsertions", accounting.counts.reinserted_blocks);
            seen.insert("segments freed", accounting.counts.freed_segments);
            seen.insert("segments quarantined", accounting.shares.quarantined_segments);
            seen.insert("tier off", u64::from(state != crate::segment_log::LogState::On));
        }
        (seen, self.model.answered)
    }

    /// Nothing holds on to memory: one engine can have all of it, and then nothing is left.
    fn assert_all_can_go(&mut self) {
        if !self.draining && self.settings.reserved_bytes_max == self.settings.slab.bytes {
            let block_bytes = 64 * KIB;
            let count = (self.settings.slab.bytes / block_bytes) as u8;
            let connection = ConnectionId(u64::MAX);
            for number in 0..count {
                let keys = vec![(key(number), block_bytes)];
                let command = Command::Reserve { connection, namespace: digest(9), race: false, keys };
                let Outcome::Slots(slots) = self.rig.call(command) else { panic!("not slots") };
                assert_eq!(slots[0].1.outcome, SlotOutcome::Slot as u8, "slot {number} of {count}");
            }
            self.rig.call(Command::Gone { connection });
        }
        for namespace in 0..2 {
            self.rig.call(Command::Clear { namespace: digest(namespace), media: Media::from_mask(BOTH) });
        }
        let figures = self.rig.shard.figures();
        assert_eq!((figures.counters.dram_residents, figures.counters.ssd_residents), (0, 0));
        assert_eq!((figures.allocated_bytes, figures.namespaces), (0, 0));
        assert_eq!((self.rig.shard.residents.len(), self.rig.shard.residents.copies()), (0, 0));
        assert!(figures.ssd.is_none_or(|ssd| ssd.live_bytes == 0));
    }
}

#[test]
fn random_lives_keep_every_promise() {
    let mut totals: BTreeMap<&'static str, u64> = BTreeMap::new();
    let cases = std::env::var("ORBITKV_MODEL_CASES").map_or(CASES, |cases| cases.parse().expect("a number"));
    for number in 0..cases {
        let (seen, answered) = one_case(number);
        for (what, count) in seen.into_iter().chain(answered) {
            *totals.entry(what).or_default() += count;
        }
    }
    for what in [
        "DRAM evictions",
        "SSD evictions",
        "moves",
        "SSD reads",
        "read errors",
        "write errors",
        "wrong bytes",
        "write-backs",
        "write-backs given up",
        "lost races",
        "holds expired",
        "waiting refused",
        "reinsertions",
        "segments freed",
        "segments quarantined",
        "tier off",
        "present",
        "being saved",
        "reserve busy",
        "too large",
        "merged",
        "not yours",
        "missing",
        "acquire busy",
        "corrupt",
        "device error",
        "acquire cancelled",
        "sync cancelled",
        "synced",
        "ready from DRAM",
        "ready from SSD",
        "hold acquired",
        "lease refused",
        "attached",
        "in use",
    ] {
        assert!(totals.get(what).is_some_and(|count| *count > 0), "no case had {what}: {totals:?}");
    }
}
