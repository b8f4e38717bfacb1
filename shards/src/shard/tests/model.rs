//! What a correct cache may answer, as plain maps, and the checks of every answer against it.
//!
//! The model does not know what the shard evicts to make room. It knows which value each key was last
//! committed with, on which media that value can still be, who holds which extents, and what was
//! asked and not answered yet.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use orbitkv_wire::engine::answers::{BlockOutcome, BlockRecord, Place};
use orbitkv_wire::identity::{BlockHash, GroupId, Medium, Sequence};

use super::super::{Counters, Outcome, Tag};
use super::rig::{BOTH, Rig, overlap, padded};
use crate::journal::Change;
use crate::key::StateKey;
use crate::leases::{ConnectionId, InstanceId, LeaseError, LeaseToken};
use crate::reservations::ReservationId;
use crate::residents::{EntryRef, Ssd};
use crate::time::Moment;

/// Namespace and number of a key.
pub type Name = (u8, u8);

/// A committed value, and where it may be.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    pub value: u64,
    pub bytes: u64,
    pub dram: bool,
    pub ssd: bool,
}

/// A slot in an engine's hands.
#[derive(Clone, Debug)]
pub struct Held {
    pub connection: ConnectionId,
    pub name: Name,
    pub bytes: u64,
    pub offset: u64,
    pub value: u64,
}

/// Bytes that a lease promises to keep.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    pub name: Name,
    pub offset: u64,
    pub bytes: u64,
    pub value: u64,
}

/// A lease as its engines know it.
#[derive(Clone, Debug)]
pub struct Lease {
    pub instance: InstanceId,
    pub charged: ConnectionId,
    /// Of a hold; `None` once acquired.
    pub expires: Option<Moment>,
    pub attachments: BTreeMap<ConnectionId, u32>,
    pub extents: Vec<Extent>,
    /// What a hold pins: names, values and bytes.
    pub pinned: Vec<(Name, u64, u64)>,
}

impl Lease {
    fn new(instance: InstanceId, charged: ConnectionId, expires: Option<Moment>) -> Lease {
        let attachments = BTreeMap::from([(charged, 1)]);
        Lease { instance, charged, expires, attachments, extents: Vec::new(), pinned: Vec::new() }
    }

    fn bytes(&self) -> u64 {
        let extents: u64 = self.extents.iter().map(|extent| padded(extent.bytes)).sum();
        extents + self.pinned.iter().map(|(_, _, bytes)| padded(*bytes)).sum::<u64>()
    }
}

/// A command that may be answered later.
pub enum Pending {
    /// Undecided blocks with the slot bytes that the lease keeps room for.
    Acquire {
        token: LeaseToken,
        names: Vec<Name>,
        undecided: BTreeMap<u32, u64>,
        sure: BTreeSet<u32>,
    },
    Sync {
        unsettled: Vec<EntryRef>,
        since: Sequence,
    },
    Life,
}

#[derive(Default)]
pub struct Model {
    pub lives: BTreeMap<Name, Life>,
    pub held: BTreeMap<ReservationId, Held>,
    pub leases: BTreeMap<LeaseToken, Lease>,
    pub pending: BTreeMap<Tag, Pending>,
    /// What the command in hand says about blocks that it ends: a cancel's outcome.
    pub cancelling: Option<BlockOutcome>,
    pub values: u64,
    pub removed: [u64; 2],
    /// Residences that may have ended when the present life began, by medium; none before the second life.
    pub ended_before: Option<[u64; 2]>,
    pub answered: BTreeMap<&'static str, u64>,
}

impl Model {
    pub fn count(&mut self, what: &'static str) {
        *self.answered.entry(what).or_default() += 1;
    }

    /// Whether the shard has begun another life under a tag: nothing of the journal before it counts.
    pub fn begin_life(&mut self, tag: Tag, counters: Counters) {
        for pending in self.pending.values_mut() {
            if let Pending::Sync { since, .. } = pending {
                *since = Sequence(0);
            }
        }
        self.ended_before = Some(self.may_have_ended(counters));
        self.pending.insert(tag, Pending::Life);
    }

    /// Residences that ended, or may have, by medium.
    fn may_have_ended(&self, counters: Counters) -> [u64; 2] {
        let faults = counters.checksum_failures + counters.ssd_read_errors;
        [counters.dram_evictions + self.removed[0], counters.ssd_evictions + self.removed[1] + faults]
    }

    pub fn charged(&self, connection: ConnectionId) -> (usize, u64) {
        let leases = self.leases.values().filter(|lease| lease.charged == connection);
        leases.fold((0, 0), |(count, bytes), lease| (count + 1, bytes + lease.bytes()))
    }

    /// Slot bytes that a connection's leases keep room for.
    pub fn reserved(&self, connection: ConnectionId) -> u64 {
        let acquires = self.pending.values().filter_map(|pending| match pending {
            Pending::Acquire { token, undecided, .. } => Some((token, undecided)),
            Pending::Sync { .. } | Pending::Life => None,
        });
        let ours = acquires
            .filter(|(token, _)| self.leases.get(token).is_some_and(|lease| lease.charged == connection));
        ours.flat_map(|(_, undecided)| undecided.values()).sum()
    }

    /// Nobody but the device and its owner may touch an extent that somebody was promised.
    pub fn assert_unpromised(&self, range: &Range<u64>, what: &str) {
        for held in self.held.values() {
            let other = held.offset..held.offset + padded(held.bytes);
            assert!(!overlap(range, &other), "{what} {range:?} overlaps the slot {held:?}");
        }
        for lease in self.leases.values() {
            for extent in &lease.extents {
                let other = extent.offset..extent.offset + padded(extent.bytes);
                assert!(!overlap(range, &other), "{what} {range:?} overlaps the leased {extent:?}");
            }
        }
    }

    /// Every promised byte is what was promised.
    pub fn assert_promises(&self, rig: &Rig) {
        for held in self.held.values() {
            assert!(rig.holds(held.offset, held.bytes, held.value), "somebody wrote into {held:?}");
        }
        self.leases.values().for_each(|lease| assert_extents(rig, lease));
    }

    pub fn check_place(&self, name: Name, place: Place) {
        let life = self.lives.get(&name);
        match place {
            Place::None => {}
            Place::Dram => assert!(life.is_some_and(|life| life.dram), "{name:?} in DRAM, but {life:?}"),
            Place::Ssd => assert!(life.is_some_and(|life| life.ssd), "{name:?} on SSD, but {life:?}"),
            other => panic!("a shard knows no {other:?}"),
        }
    }

    /// Opens or takes over a lease as Acquire does.
    pub fn open(
        &mut self,
        token: LeaseToken,
        instance: InstanceId,
        connection: ConnectionId,
        leases_max: usize,
    ) -> Result<(), LeaseError> {
        let full = self.charged(connection).0 >= leases_max;
        let too_many = LeaseError::TooMany { limit: leases_max };
        match self.leases.get_mut(&token) {
            Some(lease) if lease.instance != instance => return Err(LeaseError::Foreign),
            Some(lease) if lease.expires.is_none() => {
                *lease.attachments.entry(connection).or_default() += 1;
                return Ok(());
            }
            Some(lease) if lease.charged != connection && full => return Err(too_many),
            None if full => return Err(too_many),
            _ => {}
        }
        self.leases.insert(token, Lease::new(instance, connection, None));
        Ok(())
    }

    /// Opens or goes on with a hold as Query does.
    pub fn hold(
        &mut self,
        token: LeaseToken,
        instance: InstanceId,
        connection: ConnectionId,
        leases_max: usize,
        expires: Moment,
    ) -> Result<(), LeaseError> {
        match self.leases.get(&token) {
            Some(lease) if lease.expires.is_some() && lease.charged == connection => return Ok(()),
            Some(_) => return Err(LeaseError::Unknown),
            None if self.charged(connection).0 >= leases_max => {
                return Err(LeaseError::TooMany { limit: leases_max });
            }
            None => {}
        }
        self.leases.insert(token, Lease::new(instance, connection, Some(expires)));
        Ok(())
    }

    pub fn release(
        &mut self,
        rig: &Rig,
        token: LeaseToken,
        connection: ConnectionId,
    ) -> Result<(), LeaseError> {
        let lease = self.leases.get_mut(&token).ok_or(LeaseError::Unknown)?;
        let count = lease.attachments.get_mut(&connection).ok_or(LeaseError::Unknown)?;
        *count -= 1;
        if *count == 0 {
            lease.attachments.remove(&connection);
        }
        assert_extents(rig, lease);
        if lease.attachments.is_empty() {
            self.leases.remove(&token);
        }
        Ok(())
    }

    /// Takes every answer that has come for a waiting command.
    pub fn take_answers(&mut self, rig: &mut Rig) {
        let (mut begun, mut replaced) = (None, None);
        for (tag, outcomes) in std::mem::take(&mut rig.answers) {
            for outcome in outcomes {
                let pending = self.pending.get_mut(&tag).expect("only what waits is answered later");
                let finished = match (pending, outcome) {
                    (Pending::Acquire { .. }, Outcome::Blocks { blocks, done }) => {
                        self.take_blocks(rig, tag, &blocks);
                        let Some(Pending::Acquire { undecided, .. }) = self.pending.get(&tag) else {
                            unreachable!("just matched")
                        };
                        assert_eq!(done, undecided.is_empty(), "the last answer says so");
                        done
                    }
                    (Pending::Sync { unsettled, since }, Outcome::Synced(head)) => {
                        assert!(rig.shard.is_settled(), "a fence covers every resident");
                        assert!(*since <= head && head <= rig.shard.journal.head());
                        for &reference in &*unsettled {
                            let settled = rig.shard.residents.resolve(reference).is_none_or(|id| {
                                !matches!(rig.shard.residents.entry(id).ssd, Ssd::Queued | Ssd::Writing(_))
                            });
                            assert!(settled, "a Sync waits for what was committed before it");
                        }
                        self.count("synced");
                        true
                    }
                    (Pending::Sync { .. }, Outcome::Cancelled) => {
                        self.count("sync cancelled");
                        true
                    }
                    (Pending::Life, Outcome::LifeBegun) => {
                        assert!(rig.shard.is_settled() && begun.replace(tag).is_none());
                        true
                    }
                    (Pending::Life, Outcome::Cancelled) => {
                        replaced = replaced.max(Some(tag));
                        true
                    }
                    (_, other) => panic!("not an answer to what was asked: {other:?}"),
                };
                if finished {
                    self.pending.remove(&tag);
                }
            }
        }
        let awaited = self.lives_awaited();
        assert!(awaited.len() <= 1, "one life begins at a time");
        assert_eq!(awaited.is_empty(), rig.shard.is_settled());
        if begun.is_some() {
            self.count("life begun");
            self.assert_journal(rig);
        }
        if let Some(replaced) = replaced {
            assert!(awaited.iter().all(|later| *later > replaced), "only a later life replaces one");
            self.count("life replaced");
        }
    }

    fn lives_awaited(&self) -> Vec<Tag> {
        let awaited = self.pending.iter().filter(|(_, pending)| matches!(pending, Pending::Life));
        awaited.map(|(tag, _)| *tag).collect()
    }

    fn take_blocks(&mut self, rig: &Rig, tag: Tag, blocks: &[BlockRecord]) {
        for block in blocks {
            let Some(Pending::Acquire { token, names, undecided, sure }) = self.pending.get_mut(&tag) else {
                unreachable!("blocks answer an Acquire")
            };
            assert!(undecided.remove(&block.index).is_some(), "each block is decided once");
            let (token, name) = (*token, names[block.index as usize]);
            let is_sure = sure.contains(&block.index);
            match BlockOutcome::from_wire(block.outcome).expect("a known outcome") {
                BlockOutcome::Ready => self.take_ready(rig, token, name, block),
                BlockOutcome::Missing => {
                    assert!(!is_sure, "{name:?} was held, so it cannot be missing");
                    self.count("missing");
                }
                BlockOutcome::Busy => self.count("acquire busy"),
                BlockOutcome::Corrupt => {
                    assert!(rig.flips > 0, "nothing on the device is wrong");
                    self.count("corrupt");
                }
                BlockOutcome::DeviceError => self.count("device error"),
                outcome @ (BlockOutcome::Cancelled | BlockOutcome::DeadlineExceeded) => {
                    assert_eq!(self.cancelling, Some(outcome), "nobody cancelled it");
                    self.count("acquire cancelled");
                }
            }
        }
    }

    fn take_ready(&mut self, rig: &Rig, token: LeaseToken, name: Name, block: &BlockRecord) {
        let place = Place::from_wire(block.source).expect("a known place");
        self.check_place(name, place);
        self.count(if place == Place::Ssd { "ready from SSD" } else { "ready from DRAM" });
        let life = self.lives.get_mut(&name).expect("checked with its place");
        life.dram = true;
        assert_eq!(block.bytes, life.bytes);
        let (value, bytes, offset) = (life.value, life.bytes, block.offset);
        assert!(rig.holds(offset, bytes, value), "{name:?} is ready with wrong bytes");
        let lease = self.leases.get_mut(&token).expect("a ready block has a lease");
        lease.extents.push(Extent { name, offset, bytes, value });
    }

    /// What the shard says about itself is what can be counted from outside.
    pub fn assert_figures(&mut self, rig: &mut Rig, bytes_per_connection_max: u64) {
        let mut counted = [[0u64; 2]; 2];
        let residents = if rig.shard.is_settled() {
            let pages = (0..2).map(|namespace| (namespace, rig.list(namespace, BOTH, 3)));
            let listed = pages.flat_map(|(of, page)| page.into_iter().map(move |resident| (of, resident)));
            listed.collect()
        } else {
            // To list is to put again, and each is to have its turn.
            rig.residents()
        };
        for (namespace, resident) in residents {
            let place = if resident.medium == Medium::Dram { Place::Dram } else { Place::Ssd };
            let name = (namespace, resident.block.0[0]);
            self.check_place(name, place);
            assert_eq!(resident.bytes, self.lives[&name].bytes);
            counted[resident.medium as usize][0] += 1;
            counted[resident.medium as usize][1] += resident.bytes;
        }
        let figures = rig.shard.figures();
        let counters = figures.counters;
        assert_eq!(counted[0], [counters.dram_residents, counters.dram_bytes], "DRAM is counted right");
        assert_eq!(counted[1], [counters.ssd_residents, counters.ssd_bytes], "SSD is counted right");
        assert_eq!(figures.reservations, self.held.len() as u64);
        assert_eq!(figures.leases, self.leases.len() as u64);
        assert_eq!(figures.leased_bytes, self.leases.values().map(Lease::bytes).sum::<u64>());
        let holds = self.leases.values().filter(|lease| lease.expires.is_some()).count();
        assert_eq!(figures.holds, holds as u64);
        assert_eq!(figures.waiting[0] as usize, self.pending.len() - self.lives_awaited().len());
        let reserved: u64 = self.held.values().map(|held| padded(held.bytes)).sum();
        assert_eq!(figures.reserved_bytes[0], reserved);
        let charged: BTreeSet<ConnectionId> = self.leases.values().map(|lease| lease.charged).collect();
        let mut reserved = 0;
        for connection in charged {
            reserved += self.reserved(connection);
            let bytes = self.charged(connection).1 + self.reserved(connection);
            assert!(bytes <= bytes_per_connection_max, "leases are bounded");
        }
        assert_eq!(rig.shard.leases.reserved_bytes(), reserved, "waiting blocks have their share");
        self.assert_slots(rig);
    }

    /// No two users of the slice have the same byte.
    fn assert_slots(&self, rig: &Rig) {
        let copies = rig.shard.slot_owners.values().map(|&copy| rig.shard.residents.copy(copy).slot);
        let mut ranges: Vec<Range<u64>> = copies.map(|slot| slot.offset..slot.offset + slot.bytes).collect();
        ranges.extend(self.held.values().map(|held| held.offset..held.offset + padded(held.bytes)));
        ranges.sort_by_key(|range| range.start);
        assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "slots overlap");
        let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        assert_eq!(bytes, rig.shard.figures().allocated_bytes, "every allocated slot has a user");
    }

    /// The journal from its first record on says what List says, and every residence that ended did
    /// so by what the counters admit to.
    pub fn assert_journal(&mut self, rig: &mut Rig) {
        let mut residences: BTreeMap<(StateKey, Medium), (Sequence, u64)> = BTreeMap::new();
        let mut deletes = [0u64; 2];
        for record in rig.history() {
            let residence = (record.key, record.medium);
            match record.change {
                Change::Put { bytes } => {
                    let old = residences.insert(residence, (record.sequence, u64::from(bytes)));
                    assert!(old.is_none(), "a residence begins once");
                }
                Change::Delete => {
                    assert!(residences.remove(&residence).is_some(), "a residence ends once");
                    deletes[record.medium as usize] += 1;
                }
            }
        }
        let mut replayed: Vec<(u8, GroupId, BlockHash, Medium, u64, Sequence)> = (residences.into_iter())
            .map(|((key, medium), (sequence, bytes))| {
                let namespace = rig.shard.namespaces.digest(key.namespace).0[0];
                (namespace, key.group, key.block, medium, bytes, sequence)
            })
            .collect();
        replayed.sort_unstable();
        let mut listed = Vec::new();
        for namespace in 0..2 {
            listed.extend(rig.list(namespace, BOTH, 1000).into_iter().map(|resident| {
                let super::super::command::Resident { group, block, medium, bytes, sequence } = resident;
                (namespace, group, block, medium, bytes, sequence)
            }));
        }
        listed.sort_unstable();
        assert!(replayed == listed, "journal and List agree");
        let counters = rig.counters();
        let ended = self.may_have_ended(counters);
        let before = self.ended_before.unwrap_or_default();
        assert!(deletes[0] <= ended[0] - before[0], "DRAM residences lost");
        assert!(deletes[1] <= ended[1] - before[1], "SSD residences lost");
        if self.ended_before.is_none() {
            assert_eq!(deletes[0], ended[0], "every DRAM residence that ended is told");
            assert!(deletes[1] >= counters.ssd_evictions + self.removed[1], "and every one on SSD");
        } else if deletes[0] < ended[0] - before[0] {
            self.count("ended before its turn");
        }
    }
}

fn assert_extents(rig: &Rig, lease: &Lease) {
    for extent in &lease.extents {
        assert!(rig.holds(extent.offset, extent.bytes, extent.value), "leased bytes changed: {extent:?}");
    }
}
