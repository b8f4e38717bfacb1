//! The save path: Reserve, Commit, Abort, and the eviction that makes room for them.

use orbitkv_wire::bounds::EXTENT_ALIGN_BYTES;
use orbitkv_wire::engine::answers::{CommitOutcome, Place, SlotOutcome, SlotRecord};
use orbitkv_wire::identity::{BlockHash, GroupId, Medium, NamespaceDigest};

use super::throttle::SlotPurpose;
use super::{Key, Outcome, Shard, Tag};
use crate::eviction::EvictionPolicy;
use crate::key::{EntryId, NamespaceId, StateKey};
use crate::leases::ConnectionId;
use crate::reservations::{Reservation, ReservationId};
use crate::residents::{CopyId, Dram, Provenance, Ssd};
use crate::retention::{FetchedBlock, Leaves, OwnBlock, Retention, Usage};
use crate::slab::{AllocateError, Slot, SlotId};

/// Searches in vain after which a command takes only what is free: some 4,000 entries, a slice of a
/// turn.
const VICTIM_SEARCHES_MAX: usize = 16;

/// Entries one victim search looks at.
const VICTIM_SEARCH_ENTRIES: usize = 256;

/// Victims whose neighbourhood is tried when slots of another size must be merged.
const MERGE_TRIES: usize = 8;

/// Why there is no slot.
pub(super) enum NoSlot {
    Busy,
    TooLarge { limit_bytes: u64 },
}

/// Whether one command may still look for victims. Where a search finds that everything is in use, the
/// rest of a command of thousands of keys would search in vain: it takes what is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Eviction {
    Allowed,
    GivenUp,
}

impl Shard {
    pub(super) fn reserve(
        &mut self,
        tag: Tag,
        connection: ConnectionId,
        namespace: &NamespaceDigest,
        race: bool,
        keys: &[(Key, u64)],
    ) {
        if self.draining {
            self.counters.saves_draining += keys.len() as u64;
            return self.answer(tag, Outcome::Draining);
        }
        let Ok(namespace) = self.namespaces.intern(namespace) else {
            return self.answer(tag, Outcome::NamespacesFull);
        };
        let mut slots = Vec::with_capacity(keys.len());
        let mut eviction = Eviction::Allowed;
        for (key, bytes) in keys {
            let state_key = StateKey { namespace, group: key.group, block: key.block };
            let slot = self.reserve_one(connection, key, state_key, race, *bytes, &mut eviction);
            slots.push((key.index, slot));
        }
        self.answer(tag, Outcome::Slots(slots));
    }

    fn reserve_one(
        &mut self,
        connection: ConnectionId,
        key: &Key,
        state_key: StateKey,
        race: bool,
        bytes: u64,
        eviction: &mut Eviction,
    ) -> SlotRecord {
        let refused = |outcome: SlotOutcome, offset| SlotRecord {
            outcome: outcome as u8,
            reservation: 0,
            offset,
            bytes: 0,
        };
        let found = self.residents.find(key.hash, &state_key);
        if let Some(id) = found {
            self.touch(id);
        }
        if found.is_some_and(|id| self.place(id) != Place::None) {
            self.counters.saves_present += 1;
            return refused(SlotOutcome::Present, 0);
        }
        // An entry that shows nothing yet: its only bytes are still on their way to a medium. What a peer may
        // send does not count.
        let is_coming = found.is_some_and(|id| self.fetch_of(id).is_none());
        if !race && (is_coming || self.reservations.is_being_saved(&state_key)) {
            self.counters.saves_being_saved += 1;
            return refused(SlotOutcome::BeingSaved, 0);
        }
        let limit_bytes = self.largest_block_bytes();
        if bytes > limit_bytes {
            self.counters.saves_too_large += 1;
            return refused(SlotOutcome::TooLarge, limit_bytes);
        }
        let namespace = state_key.namespace;
        if !self.admits_namespace(namespace, bytes, SlotPurpose::Save) {
            self.counters.saves_busy += 1;
            return refused(SlotOutcome::Busy, 0);
        }
        let permit = self.pools.saves.take(slot_bytes(bytes));
        let permit = permit.filter(|_| self.make_entry_room(eviction));
        let slot =
            permit.ok_or(NoSlot::Busy).and_then(|permit| Ok((permit, self.allocate(bytes, eviction)?)));
        match slot {
            Ok((permit, slot)) => {
                self.namespaces.retain(namespace);
                self.charge_namespace(namespace, bytes);
                let reservation =
                    Reservation { connection, key: state_key, hash: key.hash, bytes, slot, permit };
                let id = self.reservations.insert(reservation);
                self.counters.slots_reserved += 1;
                let outcome = SlotOutcome::Slot as u8;
                SlotRecord { outcome, reservation: id.0, offset: slot.offset, bytes }
            }
            Err(NoSlot::Busy) => {
                self.counters.saves_busy += 1;
                refused(SlotOutcome::Busy, 0)
            }
            Err(NoSlot::TooLarge { limit_bytes }) => {
                self.counters.saves_too_large += 1;
                refused(SlotOutcome::TooLarge, limit_bytes)
            }
        }
    }

    /// The largest block that can be saved and acquired: one connection may neither reserve nor lease more,
    /// so that what is larger would be busy for ever.
    fn largest_block_bytes(&self) -> u64 {
        let settings = &self.settings;
        let share = settings.reserved_bytes_max.min(settings.leases.bytes_per_connection_max);
        self.slab.largest_slot_bytes().min(share)
    }

    /// Publishes what an engine filled.
    pub(super) fn commit(&mut self, tag: Tag, of: ConnectionId, reservations: &[(u32, ReservationId)]) {
        self.settle(tag, of, reservations, Self::publish);
    }

    /// Takes back what an engine gave up.
    pub(super) fn abort(&mut self, tag: Tag, of: ConnectionId, reservations: &[(u32, ReservationId)]) {
        self.settle(tag, of, reservations, |shard, reservation| {
            shard.give_back(reservation);
            CommitOutcome::Aborted
        });
    }

    /// A reservation named twice is ended by its first mention. Of those that are ended the last of the list
    /// goes first: engines list a prefix from its root, and what is deepest in it is to leave DRAM first
    /// (ADR 0003).
    fn settle(
        &mut self,
        tag: Tag,
        connection: ConnectionId,
        reservations: &[(u32, ReservationId)],
        end: impl Fn(&mut Self, Reservation) -> CommitOutcome,
    ) {
        let taken = reservations.iter().map(|&(index, id)| (index, self.reservations.take(id, connection)));
        let taken: Vec<(u32, Option<Reservation>)> = taken.collect();
        let outcomes = taken.into_iter().rev().map(|(index, reservation)| {
            (index, reservation.map_or(CommitOutcome::NotYours, |reservation| end(self, reservation)))
        });
        let outcomes = outcomes.collect();
        self.answer(tag, Outcome::Committed(outcomes));
    }

    fn publish(&mut self, reservation: Reservation) -> CommitOutcome {
        let found = self.residents.find(reservation.hash, &reservation.key);
        let fetch = found.and_then(|id| self.fetch_of(id));
        if found.is_some() && fetch.is_none() {
            self.counters.saves_lost_race += 1;
            self.give_back(reservation);
            return CommitOutcome::Lost;
        }
        // What a peer may send is no residence: a save never waits for it, nor loses against it.
        let waiters = fetch.map_or_else(Vec::new, |copy| self.overtake_fetch(copy));
        let Reservation { key, hash, bytes, slot, .. } = reservation;
        // The entry takes over the reservation's share of its namespace.
        let id = self.residents.insert(key, hash, bytes);
        let copy = self.residents.insert_copy(slot, Some(id));
        self.slot_owners.insert(slot.id, copy);
        self.begin_dram(id, copy);
        self.counters.saves_committed += 1;
        self.counters.saved_bytes += bytes;
        self.queue_write_back(id);
        self.serve_waiters(waiters, copy);
        CommitOutcome::Committed
    }

    /// Makes a copy the DRAM residence of its entry.
    pub(super) fn begin_dram(&mut self, id: EntryId, copy: CopyId) {
        let entry = self.residents.entry(id);
        let (hash, bytes) = (entry.hash, entry.bytes);
        let is_weighed = self.settings.retention == Retention::Weigh && entry.provenance == Provenance::Peer;
        let sequence = self.put(id, Medium::Dram);
        let entry = self.residents.entry_mut(id);
        entry.dram = Dram::Resident { copy, sequence };
        entry.usage = Usage::new(self.now);
        self.policy.insert(id, hash);
        if is_weighed {
            self.fetched.insert(id, hash);
        }
        self.counters.dram_residents += 1;
        self.counters.dram_bytes += bytes;
        if self.residents.entry(id).provenance == Provenance::Peer {
            self.counters.fetched_bytes += bytes;
        }
    }

    pub(super) fn give_back(&mut self, reservation: Reservation) {
        self.slab.release(reservation.slot.id);
        self.namespaces.release(reservation.key.namespace);
    }

    pub(super) fn touch(&mut self, id: EntryId) {
        let entry = self.residents.entry_mut(id);
        entry.hot = true;
        if matches!(entry.dram, Dram::Resident { .. }) {
            entry.usage.last = self.now;
            self.policy.touch(id);
            if self.fetched.contains(id) {
                self.fetched.touch(id);
            }
        }
    }

    /// An Acquire is given a resident.
    pub(super) fn note_use(&mut self, id: EntryId, copy: CopyId) {
        if self.settle_ahead(copy) {
            self.counters.prefetch_used += 1;
        }
        let entry = self.residents.entry_mut(id);
        let is_reused = entry.provenance == Provenance::Peer && entry.usage.uses > 0;
        entry.usage.uses = entry.usage.uses.saturating_add(1);
        self.counters.fetched_reused += u64::from(is_reused);
    }

    /// Whether the tables take another entry; if they are full, one block is given up, on all media.
    pub(super) fn make_entry_room(&mut self, eviction: &mut Eviction) -> bool {
        let blocks = (self.residents.len() + self.reservations.len()) as u64;
        if blocks < self.settings.blocks_max {
            return true;
        }
        if *eviction == Eviction::GivenUp {
            return false;
        }
        // What is on SSD alone has left DRAM before: it is colder than anything there.
        if let Some(id) = self.cold_on_ssd_alone() {
            self.drop_from_log(id);
            return true;
        }
        let Some(victim) = self.victim(eviction) else { return false };
        let reference = self.residents.reference(victim);
        self.evict_one(victim);
        if let Some(id) = self.residents.resolve(reference) {
            self.drop_from_log(id);
        }
        true
    }

    /// A block on SSD alone, found by a clock over the keys that passes over what is hot once.
    fn cold_on_ssd_alone(&mut self) -> Option<EntryId> {
        let first = StateKey { namespace: NamespaceId(0), group: GroupId(0), block: BlockHash([0; 32]) };
        let hand = self.cold_hand.unwrap_or(first);
        let (mut hot, mut last, mut cold) = (Vec::new(), hand, None);
        let looked_at = VICTIM_SEARCH_ENTRIES.min(self.residents.len());
        let round = self.residents.scan_from(&hand).chain(self.residents.scan_from(&first));
        for (id, entry) in round.take(looked_at) {
            last = entry.key;
            if entry.dram == Dram::Absent && matches!(entry.ssd, Ssd::Resident { .. }) {
                if !entry.hot {
                    cold = Some(id);
                    break;
                }
                hot.push(id);
            }
        }
        self.cold_hand = Some(last);
        hot.iter().for_each(|&id| self.residents.entry_mut(id).hot = false);
        cold.or(hot.first().copied())
    }

    /// The next DRAM residence to go.
    fn victim(&mut self, eviction: &mut Eviction) -> Option<EntryId> {
        if *eviction == Eviction::GivenUp {
            return None;
        }
        let writes_back = self.writes_back();
        let residents = &self.residents;
        let mut evictable = |id: EntryId| is_evictable(residents, writes_back, id);
        // The policy finds a victim within two rounds if there is one; a large table is looked through a
        // part at a time, and the next command goes on where this one gave up.
        let searches = (2 * self.policy.len() / VICTIM_SEARCH_ENTRIES + 1).min(VICTIM_SEARCHES_MAX);
        for _ in 0..searches {
            #[cfg(test)]
            {
                self.searches += 1;
            }
            let victim = self.policy.victim(VICTIM_SEARCH_ENTRIES, &mut evictable);
            if let Some(victim) = victim {
                return Some(self.weigh(victim));
            }
        }
        *eviction = Eviction::GivenUp;
        None
    }

    /// The one that leaves: the block whose turn it is, or one that a peer has sent in its place.
    fn weigh(&mut self, victim: EntryId) -> EntryId {
        let entry = self.residents.entry(victim);
        if self.fetched.is_empty() || entry.provenance == Provenance::Peer {
            return victim;
        }
        let own =
            OwnBlock { idle: self.now.since(entry.usage.last), is_safe: entry.ssd.residence().is_some() };
        let (residents, writes_back) = (&self.residents, self.writes_back());
        let mut evictable = |id: EntryId| is_evictable(residents, writes_back, id);
        let Some(fetched) = self.fetched.victim(VICTIM_SEARCH_ENTRIES, &mut evictable) else { return victim };
        let usage = self.residents.entry(fetched).usage;
        let sent = FetchedBlock { age: self.now.since(usage.since), reuses: usage.uses.saturating_sub(1) };
        match self.settings.retention.leaves(own, sent) {
            Leaves::Own => {
                self.counters.fetched_kept += 1;
                victim
            }
            Leaves::Fetched => fetched,
        }
    }

    /// A slot for `bytes`, evicting what the policy gives up.
    pub(super) fn allocate(&mut self, bytes: u64, eviction: &mut Eviction) -> Result<Slot, NoSlot> {
        if self.slab.accounting().slots >= self.settings.blocks_max {
            let victim = self.victim(eviction).ok_or(NoSlot::Busy)?;
            self.evict_one(victim);
        }
        let mut tries = 0;
        loop {
            match self.slab.allocate(bytes) {
                Ok(slot) => return Ok(slot),
                Err(AllocateError::TooLarge { limit }) => {
                    return Err(NoSlot::TooLarge { limit_bytes: limit });
                }
                Err(AllocateError::Full) => {}
            }
            tries += 1;
            let has_room = tries <= MERGE_TRIES && self.make_room(bytes, eviction);
            if !has_room && !self.yield_to_demand() {
                return Err(NoSlot::Busy);
            }
        }
    }

    /// Evicts so that a slot for `bytes` may fit; false if nothing can be evicted.
    fn make_room(&mut self, bytes: u64, eviction: &mut Eviction) -> bool {
        let Some(victim) = self.victim(eviction) else { return false };
        let Dram::Resident { copy, .. } = self.residents.entry(victim).dram else {
            panic!("the policy holds residences")
        };
        let near = self.residents.copy(copy).slot.id;
        let mut occupied: Vec<SlotId> = Vec::new();
        let mergeable = self.slab.make_room(bytes, near, &mut occupied);
        let owners: Vec<EntryId> = occupied.iter().filter_map(|slot| self.evictable_owner(*slot)).collect();
        if mergeable && owners.len() == occupied.len() {
            owners.into_iter().for_each(|id| self.evict_one(id));
        } else {
            // The neighbourhood is in use: give up the victim alone, so that the next try sees another.
            self.evict_one(victim);
        }
        true
    }

    fn evictable_owner(&self, slot: SlotId) -> Option<EntryId> {
        let copy = self.residents.copy(*self.slot_owners.get(&slot)?);
        let owner = copy.owner?;
        let writes_back = self.writes_back();
        let shown = matches!(self.residents.entry(owner).dram, Dram::Resident { .. });
        (shown && is_evictable(&self.residents, writes_back, owner)).then_some(owner)
    }

    pub(super) fn evict_one(&mut self, id: EntryId) {
        self.counters.dram_evictions += 1;
        if self.residents.entry(id).provenance == Provenance::Peer {
            self.counters.fetched_dropped += 1;
        }
        let in_use = self.end_dram(id);
        assert!(!in_use, "only unpinned copies are evicted");
    }
}

/// Bytes of the slot of a payload.
pub(super) fn slot_bytes(bytes: u64) -> u64 {
    bytes.next_multiple_of(EXTENT_ALIGN_BYTES)
}

/// Payload bytes as the journal has them: no slot is larger than an I/O region of 1 GiB.
pub(super) fn journal_bytes(bytes: u64) -> u32 {
    u32::try_from(bytes).expect("a slot is at most one I/O region")
}

/// Unpinned, and not the only copy of what is still to be written back.
pub(super) fn is_evictable(residents: &crate::residents::Residents, writes_back: bool, id: EntryId) -> bool {
    let entry = residents.entry(id);
    let Dram::Resident { copy, .. } = entry.dram else { return false };
    residents.copy(copy).pins == 0 && !(writes_back && entry.ssd == Ssd::Queued)
}
