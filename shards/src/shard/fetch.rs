//! Blocks that peers have: an Acquire, or a wish, seeks what is not here, and what is found is fetched into a slot.
//!
//! The shard knows of no peer. It says what it seeks, is told whether anybody may have it and how large it is,
//! takes a slot, and is told at the end whether the bytes are there and right. A fetched block becomes a
//! resident like one that was read from SSD; it is not written back, because its source has it.

use std::collections::VecDeque;

use orbitkv_wire::engine::answers::{BlockOutcome, Place};
use orbitkv_wire::identity::{KeyHash, Medium};

use super::recover::{AcquireJob, Fill, FillPurpose, FillStage, Means, Waiter, Waiting};
use super::save::{Eviction, slot_bytes};
use super::throttle::SlotPurpose;
use super::wishes::WishEnd;
use super::{Shard, Tag};
use crate::fetcher::FETCH_TIME_MAX;
use crate::key::{EntryId, StateKey};
use crate::leases::LeaseToken;
use crate::residents::{CopyId, Dram, Provenance, Ssd};
use crate::resilience::gate::Class;
use crate::slab::Slot;
use crate::time::Moment;

/// Who wants a block that is not here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seeker {
    /// An Acquire, at this position of it.
    Acquire { tag: Tag, index: u32, token: LeaseToken },
    /// A wish, by its number.
    Prefetch(u64),
}

/// A block that is wanted and that is not here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seek {
    /// The block.
    pub key: StateKey,
    /// Its placement hash.
    pub hash: KeyHash,
    pub(super) by: Seeker,
}

/// A block to be brought into a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchOrder {
    /// Names the fetch until it is reported, once.
    pub copy: CopyId,
    /// The block.
    pub key: StateKey,
    /// Its placement hash.
    pub hash: KeyHash,
    /// Where its bytes go in the arena.
    pub arena_offset: u64,
    /// How many they are.
    pub bytes: u64,
    /// Demand, or what nobody waits for.
    pub class: Class,
    /// When it is of no use any more: [`FETCH_TIME_MAX`] from now at the latest.
    pub until: Moment,
}

/// What a shard wants of whoever speaks to peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchEffect {
    /// Bring this; report it with [`Shard::on_fetched`] or [`Shard::on_fetch_failed`].
    Fetch(FetchOrder),
    /// Nobody wants it any more: report it as soon as nothing writes into its slot.
    Cancel(CopyId),
    /// The same, because the time of the last who waited for it is over.
    Expire(CopyId),
    /// Somebody waits for it, until then at least: if nobody did, it is demand from now on.
    Await {
        /// The fetch.
        copy: CopyId,
        /// When that one waits no longer.
        until: Moment,
    },
}

/// What is sought and fetched.
#[derive(Default)]
pub(super) struct Fetches {
    /// Whether there is anybody to ask.
    pub peers: bool,
    pub seeks: VecDeque<Seek>,
    pub effects: VecDeque<FetchEffect>,
}

impl Shard {
    /// Whether blocks that are not here are sought at peers from now on.
    pub fn seek_peers(&mut self, peers: bool) {
        self.fetches.peers = peers;
    }

    /// The next block that is sought; to be answered once with [`Shard::on_sought`].
    pub fn poll_seek(&mut self) -> Option<Seek> {
        while let Some(seek) = self.fetches.seeks.pop_front() {
            if let Seeker::Acquire { tag, .. } = seek.by
                && self.acquires.contains_key(&tag)
            {
                return Some(seek);
            }
        }
        self.poll_seek_ahead()
    }

    /// Whether something is sought.
    #[must_use]
    pub fn has_seeks(&self) -> bool {
        !self.fetches.seeks.is_empty() || self.has_seeks_ahead()
    }

    /// Whether whoever speaks to peers has something to do for the shard.
    #[must_use]
    pub fn has_peer_work(&self) -> bool {
        self.has_seeks() || !self.fetches.effects.is_empty() || self.pins.has_news()
    }

    /// The next thing to do about a fetch.
    pub fn poll_fetch(&mut self) -> Option<FetchEffect> {
        self.fetches.effects.pop_front()
    }

    /// Makes an Acquire wait for the answer of those who know of peers.
    pub(super) fn seek(&mut self, tag: Tag, index: u32, key: StateKey, hash: KeyHash, token: LeaseToken) {
        self.fetches.seeks.push_back(Seek { key, hash, by: Seeker::Acquire { tag, index, token } });
    }

    /// A peer may have a block of so many bytes; or none does, as far as is known.
    pub fn on_sought(&mut self, seek: Seek, bytes: Option<u64>) {
        let Seek { key, hash, by } = seek;
        let (tag, index, token) = match by {
            Seeker::Acquire { tag, index, token } => (tag, index, token),
            Seeker::Prefetch(number) => {
                self.on_sought_ahead(number, bytes);
                self.begin_prefetches();
                return self.assert_invariants();
            }
        };
        let Some(job) = self.acquires.get(&tag) else { return };
        let mut means = Means::held(job.until);
        let found = self.residents.find(hash, &key);
        let record = match (found, bytes) {
            (Some(id), Some(bytes)) if self.is_barred(id) && self.residents.entry(id).bytes == bytes => {
                self.count_barred();
                self.begin_fetch((tag, index, token), key, hash, found, bytes, &mut means)
            }
            // It has come meanwhile, or is here and nobody else has it.
            (Some(id), _) => self.acquire_one(tag, token, index, Some(id), &mut means),
            (None, None) => self.acquire_one(tag, token, index, None, &mut means),
            (None, Some(bytes)) => self.begin_fetch((tag, index, token), key, hash, None, bytes, &mut means),
        };
        let job = self.acquires.get_mut(&tag).expect("just seen");
        job.wait_also_for(means);
        if let Some(record) = record {
            self.decide(tag, record);
        }
        self.begin_prefetches();
        self.assert_invariants();
    }

    /// Takes a slot for a block of a peer; `barred` is its entry if it is here and not read now.
    fn begin_fetch(
        &mut self,
        (tag, index, token): (Tag, u32, LeaseToken),
        key: StateKey,
        hash: KeyHash,
        barred: Option<EntryId>,
        bytes: u64,
        means: &mut Means,
    ) -> Option<orbitkv_wire::engine::answers::BlockRecord> {
        if bytes == 0 || !self.leases.fits(token, slot_bytes(bytes)) {
            return Some(self.busy(index));
        }
        if !self.admits_namespace(key.namespace, bytes, SlotPurpose::Acquire) {
            return Some(self.busy(index));
        }
        let mut eviction = Eviction::Allowed;
        if barred.is_none() && !self.make_entry_room(&mut eviction) {
            return Some(self.busy(index));
        }
        let Ok(slot) = self.allocate(bytes, &mut eviction) else { return Some(self.busy(index)) };
        self.charge_namespace(key.namespace, bytes);
        let id = barred.unwrap_or_else(|| self.insert_of_peer(key, hash, bytes));
        let copy = self.start_fetch(id, key, hash, slot, (Class::Demand, means.until));
        self.wait_for(copy, (tag, index, token), bytes, means)
    }

    /// Somebody waits for a fill, until then. Whoever brings a peer's block hears of it, unless it has been told of one
    /// who waits as long.
    pub(super) fn await_fill(&mut self, copy: CopyId, until: Moment) {
        let until = until.min(self.now + FETCH_TIME_MAX);
        let fill = self.fills.get_mut(&copy).expect("what is waited for is under way");
        let was_ahead = fill.class == Class::Background;
        if let Some(known) = fill.until.as_mut().filter(|known| was_ahead || **known < until) {
            *known = until.max(*known);
            self.fetches.effects.push_back(FetchEffect::Await { copy, until });
        }
        self.hurry(copy);
    }

    /// An entry for a block that a peer may have.
    pub(super) fn insert_of_peer(&mut self, key: StateKey, hash: KeyHash, bytes: u64) -> EntryId {
        self.namespaces.retain(key.namespace);
        let id = self.residents.insert(key, hash, bytes);
        self.residents.entry_mut(id).provenance = Provenance::Peer;
        id
    }

    /// Orders the block of an entry, which a peer may have, into this slot.
    pub(super) fn start_fetch(
        &mut self,
        id: EntryId,
        key: StateKey,
        hash: KeyHash,
        slot: Slot,
        (class, until): (Class, Moment),
    ) -> CopyId {
        let until = until.min(self.now + FETCH_TIME_MAX);
        let bytes = self.residents.entry(id).bytes;
        let copy = self.residents.insert_copy(slot, Some(id));
        self.slot_owners.insert(slot.id, copy);
        self.residents.pin(copy);
        self.residents.entry_mut(id).dram = Dram::Filling(copy);
        let entry = self.residents.reference(id);
        let fill = Fill {
            entry,
            placement: None,
            stage: FillStage::Reading,
            purpose: FillPurpose::Recover,
            class,
            until: Some(until),
            waiters: Vec::new(),
            pins: Vec::new(),
            place: Place::PeerDram,
        };
        self.fills.insert(copy, fill);
        let order = FetchOrder { copy, key, hash, arena_offset: slot.offset, bytes, class, until };
        self.fetches.effects.push_back(FetchEffect::Fetch(order));
        copy
    }

    /// The bytes of a fetch are in its slot and proved right.
    ///
    /// # Panics
    /// If there is no such fetch.
    pub fn on_fetched(&mut self, copy: CopyId, from: Medium, checksum: u64) {
        let fill = self.fills.get_mut(&copy).expect("a fetch is reported once");
        assert!(fill.placement.is_none(), "a fill from SSD is the device's to report");
        fill.place = match from {
            Medium::Dram => Place::PeerDram,
            Medium::Ssd => Place::PeerSsd,
        };
        let fill = &self.fills[&copy];
        let shown = self.filling_entry(fill, copy);
        // What is on both media is the same bytes: a peer that has others under this name has not this block.
        let is_ours = shown.is_none_or(|id| {
            let entry = self.residents.entry(id);
            entry.ssd.residence().is_none() || entry.checksum == Some(checksum)
        });
        if !is_ours {
            self.counters.orphans += 1;
            return self.on_fetch_failed(copy, BlockOutcome::Missing);
        }
        if let Some(id) = shown {
            self.residents.entry_mut(id).checksum = Some(checksum);
        }
        self.finish_fill(copy);
        self.begin_prefetches();
        self.assert_invariants();
    }

    /// A fetch brought nothing, and nothing writes into its slot any more.
    ///
    /// # Panics
    /// If there is no such fetch.
    pub fn on_fetch_failed(&mut self, copy: CopyId, outcome: BlockOutcome) {
        assert!(self.fills[&copy].placement.is_none(), "a fill from SSD is the device's to report");
        if outcome == BlockOutcome::Missing {
            self.counters.misses += self.fills[&copy].waiters.len() as u64;
        }
        self.abandon_fill(copy, outcome);
        self.begin_prefetches();
        self.assert_invariants();
    }

    /// Whether anybody waits for a fetch, or wants it ahead: one that was given up may be wanted again.
    #[must_use]
    pub fn is_wanted(&self, copy: CopyId) -> bool {
        self.fills.get(&copy).is_some_and(|fill| !fill.waiters.is_empty()) || self.prefetches.has(copy)
    }

    /// The fetch that is all there is of an entry.
    pub(super) fn fetch_of(&self, id: EntryId) -> Option<CopyId> {
        let entry = self.residents.entry(id);
        match entry.dram {
            Dram::Filling(copy) if self.fills[&copy].placement.is_none() && entry.ssd == Ssd::Absent => {
                Some(copy)
            }
            _ => None,
        }
    }

    /// Ends an entry that is nothing but a fetch: its block has come from an engine. The fetch goes on until
    /// it is reported, for nobody; its waiters are handed out.
    pub(super) fn overtake_fetch(&mut self, copy: CopyId) -> Vec<Waiter> {
        let fill = self.fills.get_mut(&copy).expect("a filling copy has its fill");
        let waiters = std::mem::take(&mut fill.waiters);
        let id = self.filling_entry(&self.fills[&copy], copy).expect("the entry shows the fetch");
        self.residents.entry_mut(id).dram = Dram::Absent;
        let freed = self.residents.withdraw(copy);
        assert!(freed.is_none(), "the fill pins its copy");
        self.end_if_bare(id);
        // The end of a wish gives up what was fetched for it alone.
        let was_ahead = self.end_wish_of(copy, WishEnd::Met);
        if !was_ahead {
            self.cancel_fetch(copy, BlockOutcome::Cancelled);
        }
        waiters
    }

    /// Gives those who waited for a block the copy that has come another way.
    pub(super) fn serve_waiters(&mut self, waiters: Vec<Waiter>, copy: CopyId) {
        for waiter in waiters {
            self.serve(waiter, copy, Place::Dram);
        }
    }

    /// A fetch has lost its last waiter, for this reason.
    pub(super) fn cancel_fetch(&mut self, copy: CopyId, outcome: BlockOutcome) {
        self.fetches.effects.push_back(match outcome {
            BlockOutcome::DeadlineExceeded => FetchEffect::Expire(copy),
            _ => FetchEffect::Cancel(copy),
        });
    }
}

impl Means {
    /// Of an Acquire that waits already: it has its permit.
    fn held(until: Moment) -> Means {
        let (eviction, waiting) = (Eviction::Allowed, Waiting::AsBefore);
        Means { permit: None, eviction, fills: Vec::new(), waiting, until }
    }
}

impl AcquireJob {
    fn wait_also_for(&mut self, means: Means) {
        self.fills.extend(means.fills);
    }
}
