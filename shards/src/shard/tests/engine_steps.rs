//! What engines do in a random life: save, look up, lease, and misuse all of it.

use std::collections::BTreeMap;

use orbitkv_wire::engine::answers::{BlockOutcome, CommitOutcome, Place, SlotOutcome};

use super::super::command::Holder;
use super::super::{Command, Key, Outcome, Places, Tag};
use super::model::{Held, Life, Name, Pending};
use super::random_tests::{Case, SIZES};
use super::rig::{FOREVER, KIB, digest, key, overlap, padded};
use crate::leases::LeaseToken;
use crate::reservations::ReservationId;

impl Case {
    pub(super) fn reserve(&mut self) {
        let (connection, _) = self.connection();
        let race = self.dice.one_in(3);
        let namespace = u8::from(self.dice.one_in(4));
        let mut wanted: Vec<(Key, u64)> = Vec::new();
        for index in 0..=self.dice.roll(4) as u32 {
            let bytes = match self.dice.roll(60) {
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
                    let range = offset..offset + padded(bytes);
                    self.model.assert_unpromised(&range, "a new slot");
                    for flight in &self.rig.flights {
                        assert!(!overlap(&range, &flight.arena_range()), "the device uses it");
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
    pub(super) fn end_reservations(&mut self) {
        let (connection, _) = self.connection();
        let abort = self.dice.one_in(5);
        let mut chosen = Vec::new();
        for (&id, held) in &self.model.held {
            let odds = if held.connection == connection { 2 } else { 40 };
            if self.dice.one_in(odds) {
                chosen.push(id);
            }
        }
        if self.dice.one_in(10) {
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
        let from_the_deepest = (0..chosen.len()).rev().eq(outcomes.iter().map(|&(index, _)| index as usize));
        assert!(from_the_deepest, "what is deepest in a prefix leaves first: {outcomes:?}");
        for (index, outcome) in outcomes {
            let id = chosen[index as usize];
            let ours = self.model.held.get(&id).is_some_and(|held| held.connection == connection);
            let named_before = chosen[..index as usize].contains(&id);
            if !ours || named_before {
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

    pub(super) fn wire(&self, names: &[Name]) -> Vec<Key> {
        let wire = |(&(namespace, number), index): (&Name, u32)| Key {
            index,
            namespace: namespace.into(),
            ..key(number)
        };
        names.iter().zip(0..).map(wire).collect()
    }

    pub(super) fn ask(&mut self, names: &[Name], hold: Option<Holder>) -> Outcome {
        let keys = self.wire(names);
        self.rig.call(Command::Query { namespaces: vec![digest(0), digest(1)], keys, hold })
    }

    pub(super) fn place(&mut self, name: Name) -> Place {
        let Outcome::Places(Places { found: places, .. }) = self.ask(&[name], None) else {
            panic!("not places")
        };
        self.model.check_place(name, places[0].1);
        places[0].1
    }

    pub(super) fn query(&mut self) {
        for name in self.names(8) {
            self.place(name);
        }
    }

    pub(super) fn holder(&mut self, token: Option<LeaseToken>) -> Holder {
        let (connection, instance) = self.connection();
        let token = token.unwrap_or_else(|| {
            self.tokens += 1;
            LeaseToken(self.tokens)
        });
        Holder { token, instance, connection }
    }

    pub(super) fn some_token(&mut self) -> Option<LeaseToken> {
        self.dice.pick(self.model.leases.keys().copied())
    }

    pub(super) fn hold(&mut self) {
        let token = if self.dice.one_in(4) { self.some_token() } else { None };
        let holder = self.holder(token);
        let names = self.names(6);
        let bounds = self.settings.leases;
        let expires = self.rig.now + bounds.hold_time;
        let (token, connection) = (holder.token, holder.connection);
        let most = bounds.leases_per_connection_max;
        if self.draining {
            // Places, and no hold: `assert_figures` counts the leases.
            assert!(matches!(self.ask(&names, Some(holder)), Outcome::Places(_)));
            return;
        }
        let expected = self.model.hold(token, holder.instance, connection, most, expires);
        let outcome = self.ask(&names, Some(holder));
        match (outcome, expected) {
            (Outcome::Places(Places { found: places, .. }), Ok(())) => {
                for (name, (_, place)) in names.into_iter().zip(places) {
                    self.model.check_place(name, place);
                    let life = self.model.lives.get(&name).copied();
                    let (Place::Dram, Some(Life { value, bytes, .. })) = (place, life) else { continue };
                    let charged = self.model.charged(connection).1 + self.model.reserved(connection);
                    if charged + padded(bytes) <= bounds.bytes_per_connection_max {
                        let lease = self.model.leases.get_mut(&token).expect("a hold");
                        lease.pinned.push((name, value, bytes));
                    }
                }
            }
            (Outcome::LeaseRefused(error), Err(expected)) => assert_eq!(error, expected),
            (outcome, expected) => panic!("{outcome:?}, not {expected:?}"),
        }
    }

    pub(super) fn acquire(&mut self) {
        let token = if self.dice.one_in(3) { self.some_token() } else { None };
        let mut holder = self.holder(token);
        let lease = self.model.leases.get(&holder.token);
        let pinned = lease.map(|lease| lease.pinned.clone()).unwrap_or_default();
        let mut names = self.names(6);
        let mut sure = Vec::new();
        if let Some(lease) = self.model.leases.get(&holder.token).filter(|_| !pinned.is_empty()) {
            if self.dice.one_in(2) {
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
        let tag = self.rig.submit(Command::Acquire {
            holder,
            namespaces: vec![digest(0), digest(1)],
            keys,
            until: FOREVER,
        });
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
        let bytes = |name| self.model.lives.get(name).map_or(0, |life| padded(life.bytes));
        let undecided = (0..).zip(names.iter().map(bytes)).collect();
        self.model.pending.insert(tag, Pending::Acquire { token, names, undecided, sure });
    }

    pub(super) fn attach(&mut self) {
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

    pub(super) fn release(&mut self) {
        let Some(token) = self.some_token() else { return };
        let (mut connection, _) = self.connection();
        if !self.dice.one_in(5) {
            let attached: Vec<_> = self.model.leases[&token].attachments.keys().copied().collect();
            connection = self.dice.pick(attached).expect("a lease has an attachment");
        }
        let expected = self.model.release(&self.rig, token, connection);
        match self.rig.call(Command::Release { token, connection }) {
            Outcome::Done => assert_eq!(expected, Ok(())),
            Outcome::LeaseRefused(error) => assert_eq!(expected, Err(error)),
            outcome => panic!("not an answer to Release: {outcome:?}"),
        }
    }

    pub(super) fn cancel(&mut self) {
        // A life is not cancelled; another one takes its place.
        let waiting = self.model.pending.iter().filter(|(_, pending)| !matches!(pending, Pending::Life));
        let waiting: Vec<Tag> = waiting.map(|(tag, _)| *tag).collect();
        let Some(target) = self.dice.pick(waiting) else { return };
        let deadline = self.dice.one_in(2);
        let outcome = if deadline { BlockOutcome::DeadlineExceeded } else { BlockOutcome::Cancelled };
        self.model.cancelling = Some(outcome);
        let outcome = self.rig.call(Command::Cancel { tag: target, deadline });
        assert!(matches!(outcome, Outcome::Done));
        self.model.take_answers(&mut self.rig);
        self.model.cancelling = None;
        assert!(!self.model.pending.contains_key(&target), "a cancelled command is answered whole");
    }
}
