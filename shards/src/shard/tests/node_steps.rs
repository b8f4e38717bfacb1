//! What befalls a node in a random life: operators, time, the device, and connections that end.

use std::collections::BTreeMap;

use orbitkv_wire::engine::answers::EvictOutcome;
use orbitkv_wire::identity::{BlockHash, GroupId, Incarnation, Medium, Sequence};

use super::super::command::Media;
use super::super::{Command, OrderKind, Outcome};
use super::model::{Name, Pending};
use super::random_tests::Case;
use super::rig::{Fault, digest, key};
use crate::key::{NamespaceId, StateKey};
use crate::leases::ConnectionId;
use crate::residents::{EntryRef, Ssd};

impl Case {
    /// Residences by name: in DRAM, on SSD.
    pub(super) fn residences(&mut self, namespace: u8) -> BTreeMap<u8, [bool; 2]> {
        let mut residences: BTreeMap<u8, [bool; 2]> = BTreeMap::new();
        // Looked at, and not listed: to list is to put again.
        for (of, resident) in self.rig.residents() {
            if of == namespace {
                residences.entry(resident.block.0[0]).or_default()[resident.medium as usize] = true;
            }
        }
        residences
    }

    pub(super) fn begin_life(&mut self) {
        self.lives += 1;
        let incarnation = Incarnation(self.lives.to_be_bytes());
        let counters = self.rig.counters();
        let tag = self.rig.submit(Command::BeginLife(incarnation));
        self.model.begin_life(tag, counters);
        assert_eq!(self.rig.shard.journal.head(), Sequence(0), "a life begins with no history");
    }

    pub(super) fn work(&mut self) {
        if self.rig.shard.has_work() {
            self.rig.step();
        }
    }

    /// Takes note that a name has been withdrawn from media; gives the residences that ended.
    pub(super) fn withdrawn(&mut self, name: Name, media: Media, before: [bool; 2], after: [bool; 2]) -> u64 {
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

    pub(super) fn evict(&mut self) {
        let (namespace, number) = self.name();
        let mask = self.dice.roll(4) as u8;
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

    pub(super) fn clear(&mut self) {
        let namespace = self.dice.roll(2) as u8;
        let mask = self.dice.roll(4) as u8;
        let media = Media::from_mask(mask);
        let before = self.residences(namespace);
        let command = Command::Clear { namespace: digest(namespace), media };
        let outcome = self.rig.call(command);
        let after = self.residences(namespace);
        let Outcome::Cleared { removed, in_use } = outcome else {
            let waiting = self.rig.shard.figures().waiting[0];
            assert!(matches!(outcome, Outcome::Cancelled) && waiting == self.settings.waiting_max);
            assert_eq!(before, after, "a refused Clear does nothing");
            return;
        };
        let mut ended = 0;
        for number in 0..self.keys {
            let before = before.get(&number).copied().unwrap_or_default();
            let after = after.get(&number).copied().unwrap_or_default();
            ended += self.withdrawn((namespace, number), media, before, after);
        }
        assert_eq!(removed, ended);
        assert!(in_use <= removed);
    }

    pub(super) fn sync(&mut self) {
        let shard = &self.rig.shard;
        let mut unsettled: Vec<EntryRef> = Vec::new();
        let first = StateKey { namespace: NamespaceId(0), group: GroupId(0), block: BlockHash([0; 32]) };
        for (id, entry) in shard.residents.scan_from(&first) {
            if matches!(entry.ssd, Ssd::Queued | Ssd::Writing(_)) {
                unsettled.push(shard.residents.reference(id));
            }
        }
        let since = shard.journal.head();
        let tag = self.rig.submit(Command::Sync);
        self.model.pending.insert(tag, Pending::Sync { unsettled, since });
    }

    pub(super) fn pass_time(&mut self) {
        self.rig.now.0 += self.dice.roll(600);
        let now = self.rig.now;
        self.rig.shard.on_time(now);
        self.rig.shard.on_device_seen();
        self.rig.collect();
        self.model.leases.retain(|_, lease| lease.expires.is_none_or(|expires| expires > now));
        assert!(self.rig.shard.next_deadline().is_none_or(|deadline| deadline > now));
    }

    pub(super) fn fault(&mut self) -> Fault {
        let roll = self.dice.roll(1000);
        if roll < self.errors_permille {
            if self.dice.one_in(2) { Fault::Error } else { Fault::Short }
        } else if roll < self.errors_permille + self.flips_permille {
            Fault::Flipped
        } else {
            Fault::None
        }
    }

    pub(super) fn complete(&mut self) {
        for _ in 0..=self.dice.roll(3) {
            if self.rig.flights.is_empty() {
                return;
            }
            let index = self.dice.roll(self.rig.flights.len() as u64) as usize;
            let fault = self.fault();
            self.rig.complete(index, fault);
        }
    }

    pub(super) fn start(&mut self) {
        for _ in 0..=self.dice.roll(4) {
            if !self.rig.start_one() {
                return;
            }
            let flight = self.rig.flights.last().expect("just started");
            if flight.order.kind == OrderKind::Read {
                self.model.assert_unpromised(&flight.arena_range(), "a read");
            }
        }
    }

    pub(super) fn work_tables(&mut self) {
        self.rig.start_table();
        if !self.rig.tables.is_empty() && self.dice.one_in(2) {
            let written = self.errors_permille == 0 || self.dice.one_in(2);
            self.rig.complete_table(0, written);
        }
    }

    pub(super) fn gone(&mut self) {
        let index = self.dice.roll(self.connections.len() as u64) as usize;
        let fresh = self.new_connection();
        let gone = std::mem::replace(&mut self.connections[index].0, fresh);
        self.end_connection(gone);
    }

    pub(super) fn end_connection(&mut self, gone: ConnectionId) {
        self.model.assert_promises(&self.rig);
        assert!(matches!(self.rig.call(Command::Gone { connection: gone }), Outcome::Done));
        self.model.held.retain(|_, held| held.connection != gone);
        self.model.leases.retain(|_, lease| {
            lease.attachments.remove(&gone);
            !lease.attachments.is_empty()
        });
    }

    pub(super) fn disconnect(&mut self) {
        let (connection, _) = self.connection();
        let Outcome::Disconnected { claims } = self.rig.call(Command::Disconnected { connection }) else {
            panic!("not an answer to Disconnected")
        };
        self.model.leases.retain(|_, lease| lease.expires.is_none() || lease.charged != connection);
        let holds_slots = self.model.held.values().any(|held| held.connection == connection);
        let has_leases = self.model.leases.values().any(|lease| lease.attachments.contains_key(&connection));
        assert_eq!(claims, holds_slots || has_leases, "a process is waited for if it may use memory");
    }

    pub(super) fn drain(&mut self) {
        if self.dice.one_in(40) {
            self.draining = true;
            assert!(matches!(self.rig.call(Command::Drain), Outcome::Done));
        }
    }
}
