//! Blocks that engines say they will acquire, brought into DRAM before (chapter 3.7): from SSD, or from peers.
//!
//! A *wish* is one block that open connections want ahead. It waits while an Acquire does, then has a slot and is
//! filled like any other block; an Acquire that comes meanwhile joins that one read or fetch. Nobody is told what
//! became of a wish, and one that meets anything but room is given up: an Acquire will find the block where it is.

use std::time::Duration;

use orbitkv_wire::engine::answers::{BlockOutcome, PrefetchOutcome};
use orbitkv_wire::identity::{KeyHash, NamespaceDigest};

use super::fetch::{Seek, Seeker};
use super::recover::{FillPurpose, FillStage};
use super::save::{is_evictable, slot_bytes};
use super::throttle::SlotPurpose;
use super::tiers::Order;
use super::wishes::{Wish, WishEnd, WishStage};
use super::{Key, Outcome, Shard, Tag};
use crate::admission::Permit;
use crate::key::{EntryId, NamespaceId, StateKey};
use crate::leases::ConnectionId;
use crate::residents::{CopyId, Dram, Provenance};
use crate::resilience::gate::Class;
use crate::retention::Retention;
use crate::slab::{AllocateError, Slot};
use crate::time::Moment;

/// Marks places in the queue for the device behind all that somebody waits for.
pub(super) const AHEAD: u64 = 1 << 63;

/// Blocks that leave DRAM for one that is brought ahead, at most.
const AHEAD_EVICTIONS_MAX: usize = 2;

impl Shard {
    pub(super) fn prefetch(
        &mut self,
        tag: Tag,
        connection: ConnectionId,
        (namespaces, keys): (&[NamespaceDigest], &[Key]),
        until: Moment,
    ) {
        if self.draining {
            return self.answer(tag, Outcome::Draining);
        }
        let ids = self.known(namespaces);
        // As Acquire does, the deepest block first: what is there already is to stay until then.
        for key in keys.iter().rev() {
            if let Some(id) = self.find(key.hash, self.state_key(&ids, key)) {
                self.touch(id);
            }
        }
        let mut outcomes = Vec::with_capacity(keys.len());
        for key in keys {
            let sought = self.state_key(&ids, key);
            let outcome = sought
                .map_or(PrefetchOutcome::Absent, |sought| self.wish(connection, sought, key.hash, until));
            match outcome {
                PrefetchOutcome::Full => self.counters.prefetch_full += 1,
                PrefetchOutcome::NoRoom => self.counters.prefetch_refused_room += 1,
                _ => {}
            }
            outcomes.push((key.index, outcome));
        }
        self.answer(tag, Outcome::Prefetched(outcomes));
    }

    fn wish(
        &mut self,
        connection: ConnectionId,
        key: StateKey,
        hash: KeyHash,
        until: Moment,
    ) -> PrefetchOutcome {
        if let Some(&number) = self.prefetches.by_key.get(&key) {
            return self.join_wish(number, connection, until);
        }
        let found = self.residents.find(hash, &key).map(|id| self.residents.entry(id));
        if let Some(Dram::Resident { copy, .. }) = found.map(|entry| entry.dram) {
            self.prefetches.keep_longer(copy, until);
            return PrefetchOutcome::Present;
        }
        let slot_bytes = match found {
            Some(entry) if entry.dram != Dram::Absent => return PrefetchOutcome::Coming,
            Some(entry) if entry.ssd.residence().is_some() => slot_bytes(entry.bytes),
            // What is written without a copy in DRAM cannot be read before it is there.
            Some(_) => return PrefetchOutcome::Absent,
            None if self.fetches.peers => 0,
            None => return PrefetchOutcome::Absent,
        };
        let bounds = self.settings.prefetch;
        if self.prefetches.wishes.len() >= bounds.wishes_max {
            return PrefetchOutcome::Full;
        }
        let wanted_bytes = self.prefetches.promised_bytes + slot_bytes;
        if wanted_bytes > self.prefetches.room.room() {
            self.prefetches.room.refuse(wanted_bytes);
            return PrefetchOutcome::NoRoom;
        }
        let horizon = until.since(self.now);
        let ahead = &mut self.prefetches;
        ahead.made += 1;
        let number = ahead.made;
        let (connections, stage) = (vec![connection], WishStage::Waiting);
        let wish = Wish { key, hash, connections, until, horizon, slot_bytes, stage };
        ahead.wishes.insert(number, wish);
        ahead.by_key.insert(key, number);
        ahead.waiting.insert(number);
        ahead.deadlines.insert((until, number));
        ahead.promised_bytes += slot_bytes;
        self.counters.prefetch_taken += 1;
        PrefetchOutcome::Taken
    }

    fn join_wish(&mut self, number: u64, connection: ConnectionId, until: Moment) -> PrefetchOutcome {
        let latest = self.now;
        let ahead = &mut self.prefetches;
        let wish = ahead.wishes.get_mut(&number).expect("a key has a live wish");
        if !wish.connections.contains(&connection) {
            wish.connections.push(connection);
        }
        if until > wish.until && ahead.deadlines.remove(&(wish.until, number)) {
            ahead.deadlines.insert((until, number));
        }
        wish.until = wish.until.max(until);
        wish.horizon = wish.horizon.min(until.since(latest));
        match wish.stage {
            WishStage::Waiting | WishStage::Sought => PrefetchOutcome::Taken,
            WishStage::Filling(_) => PrefetchOutcome::Coming,
        }
    }

    /// Whether an Acquire waits for anything.
    pub(super) fn demand_waits(&self) -> bool {
        self.acquires.values().any(super::recover::AcquireJob::waits)
    }

    /// Begins what is wanted ahead, as far as bounds allow and nobody waits.
    pub(super) fn begin_prefetches(&mut self) {
        while !self.prefetches.waiting.is_empty()
            && self.prefetches.active() < self.settings.prefetch.active_max
            && !self.demand_waits()
        {
            let number = *self.prefetches.waiting.first().expect("just seen");
            self.begin_prefetch(number);
        }
    }

    fn begin_prefetch(&mut self, number: u64) {
        let Wish { key, hash, horizon, slot_bytes, .. } = self.prefetches.wishes[&number];
        let Some(id) = self.residents.find(hash, &key) else {
            if !self.fetches.peers {
                return self.end_wish(number, WishEnd::Missing);
            }
            self.prefetches.waiting.remove(&number);
            self.prefetches.promised_bytes -= slot_bytes;
            let wish = self.prefetches.wishes.get_mut(&number).expect("just seen");
            (wish.slot_bytes, wish.stage) = (0, WishStage::Sought);
            self.prefetches.to_seek.push_back(number);
            return;
        };
        let entry = self.residents.entry(id);
        let bytes = entry.bytes;
        match (entry.dram, entry.ssd.residence()) {
            (Dram::Resident { .. } | Dram::Filling(_), _) => self.end_wish(number, WishEnd::Met),
            (Dram::Absent, None) => self.end_wish(number, WishEnd::Missing),
            // What nobody waits for tries no device that is left alone.
            (Dram::Absent, Some(_)) if !self.device_guard.is_closed(self.now) => {
                self.count_barred();
                self.end_wish(number, WishEnd::Missing);
            }
            (Dram::Absent, Some((placement, _))) => {
                match self.allocate_ahead(key.namespace, bytes, horizon) {
                    None => self.end_wish(number, WishEnd::NoRoom),
                    Some((slot, permit)) => {
                        let copy =
                            self.fill_from_ssd(id, placement, FillPurpose::Recover, slot, Class::Background);
                        self.fill_wish(number, copy, slot, permit);
                    }
                }
            }
        }
    }

    /// A wish has a slot from now on, which is charged.
    fn fill_wish(&mut self, number: u64, copy: CopyId, slot: Slot, permit: Permit) {
        let ahead = &mut self.prefetches;
        let wish = ahead.wishes.get_mut(&number).expect("a wish that begins is live");
        if ahead.waiting.remove(&number) {
            ahead.promised_bytes -= wish.slot_bytes;
        }
        (wish.slot_bytes, wish.stage) = (slot.bytes, WishStage::Filling(copy));
        ahead.by_copy.insert(copy, number);
        ahead.charge(copy, permit);
    }

    /// A slot that costs nothing which is worth as much: a free one, or that of the block whose turn it is to leave
    /// DRAM, if it has been idle for longer than this one will be, and is not lost with it. It is charged to its namespace.
    fn allocate_ahead(
        &mut self,
        namespace: NamespaceId,
        bytes: u64,
        horizon: Duration,
    ) -> Option<(Slot, Permit)> {
        if !self.admits_namespace(namespace, bytes, SlotPurpose::Prefetch) {
            return None;
        }
        let permit = self.prefetches.room.take(slot_bytes(bytes))?;
        let slot = self.find_slot_ahead(bytes, horizon)?;
        self.charge_namespace(namespace, bytes);
        Some((slot, permit))
    }

    fn find_slot_ahead(&mut self, bytes: u64, horizon: Duration) -> Option<Slot> {
        let slot_bytes = slot_bytes(bytes);
        for evictions_left in (0..=AHEAD_EVICTIONS_MAX).rev() {
            let has_place = self.slab.accounting().slots < self.settings.blocks_max;
            match self.slab.allocate(bytes) {
                Ok(slot) if has_place => return Some(slot),
                Ok(slot) => self.slab.release(slot.id),
                Err(AllocateError::TooLarge { .. }) => return None,
                Err(AllocateError::Full) => {}
            }
            if evictions_left == 0 {
                break;
            }
            let victim = self.policy.oldest().filter(|&id| self.gives_way(id, slot_bytes, horizon))?;
            self.evict_one(victim);
        }
        None
    }

    /// Whether a resident may leave for a block that will be used within `horizon`.
    fn gives_way(&self, id: EntryId, wanted_bytes: u64, horizon: Duration) -> bool {
        let entry = self.residents.entry(id);
        let Dram::Resident { copy, .. } = entry.dram else { panic!("the policy holds residences") };
        let is_elsewhere = entry.ssd.residence().is_some() || entry.provenance == Provenance::Peer;
        is_elsewhere
            && !self.prefetches.unused.contains_key(&copy)
            && self.now.since(entry.usage.last) > horizon
            && self.residents.copy(copy).slot.bytes == wanted_bytes
            && is_evictable(&self.residents, self.writes_back(), id)
    }

    /// The next block of a wish to be looked up, if nobody waits.
    pub(super) fn poll_seek_ahead(&mut self) -> Option<Seek> {
        if self.demand_waits() {
            return None;
        }
        let number = self.prefetches.to_seek.pop_front()?;
        let wish = &self.prefetches.wishes[&number];
        Some(Seek { by: Seeker::Prefetch(number), key: wish.key, hash: wish.hash })
    }

    pub(super) fn has_seeks_ahead(&self) -> bool {
        !self.prefetches.to_seek.is_empty() && !self.demand_waits()
    }

    /// A peer may have the block of a wish, of so many bytes; or none does.
    pub(super) fn on_sought_ahead(&mut self, number: u64, bytes: Option<u64>) {
        let Some(wish) = self.prefetches.wishes.get(&number) else { return };
        let (key, hash, until, horizon) = (wish.key, wish.hash, wish.until, wish.horizon);
        if self.residents.find(hash, &key).is_some() {
            // It has come meanwhile, or comes.
            return self.end_wish(number, WishEnd::Met);
        }
        let Some(bytes) = bytes else { return self.end_wish(number, WishEnd::Missing) };
        let has_entry = ((self.residents.len() + self.reservations.len()) as u64) < self.settings.blocks_max;
        let slot =
            (bytes > 0 && has_entry).then(|| self.allocate_ahead(key.namespace, bytes, horizon)).flatten();
        let Some((slot, permit)) = slot else { return self.end_wish(number, WishEnd::NoRoom) };
        let id = self.insert_of_peer(key, hash, bytes);
        let copy = self.start_fetch(id, key, hash, slot, (Class::Background, until));
        self.fill_wish(number, copy, slot, permit);
    }

    /// The next read for a wish: only while no Acquire waits, and so many at a time.
    pub(super) fn poll_order_ahead(&mut self) -> Option<Order> {
        while !self.fill_queue.is_empty()
            && self.prefetches.reading.len() < self.settings.prefetch.reads_max
            && !self.demand_waits()
        {
            let (_, copy) = self.fill_queue.pop_first()?;
            if let Some(order) = self.order_read(copy) {
                self.prefetches.reading.insert(copy);
                return Some(order);
            }
        }
        None
    }

    /// Whether a read for a wish could be ordered and nothing else will make the driver ask.
    pub(super) fn has_orders_ahead(&self) -> bool {
        let is_queued = self.fill_queue.last_key_value().is_some_and(|(turn, _)| turn & AHEAD != 0);
        is_queued && self.transfers.is_empty() && !self.demand_waits()
    }

    /// Somebody waits for a fill: what was begun ahead is demand from now on, whether or not its wish still is.
    pub(super) fn hurry(&mut self, copy: CopyId) {
        let fill = self.fills.get_mut(&copy).expect("what is waited for is under way");
        if fill.class == Class::Demand {
            return;
        }
        fill.class = Class::Demand;
        if let FillStage::Queued(turn) = fill.stage {
            self.fill_queue.remove(&turn);
            let turn = self.queue_read(copy, 0);
            self.fills.get_mut(&copy).expect("just seen").stage = FillStage::Queued(turn);
        }
    }

    /// A wish has ended; what is on its way for it alone is given up.
    pub(super) fn end_wish(&mut self, number: u64, end: WishEnd) {
        let ahead = &mut self.prefetches;
        let wish = ahead.wishes.remove(&number).expect("a wish ends once");
        ahead.by_key.remove(&wish.key);
        ahead.deadlines.remove(&(wish.until, number));
        if ahead.waiting.remove(&number) {
            ahead.promised_bytes -= wish.slot_bytes;
        }
        self.count_end(end);
        match wish.stage {
            WishStage::Waiting => {}
            WishStage::Sought => self.prefetches.to_seek.retain(|other| *other != number),
            WishStage::Filling(copy) => {
                self.prefetches.by_copy.remove(&copy);
                self.prefetches.uncharge(copy);
                // One that has just ended is not there any more; the log wants some of them for itself.
                if self.fills.get(&copy).is_some_and(|fill| fill.purpose == FillPurpose::Recover) {
                    self.drop_unwanted_fill(copy, BlockOutcome::Cancelled);
                }
            }
        }
    }

    fn count_end(&mut self, end: WishEnd) {
        let counters = &mut self.counters;
        *match end {
            WishEnd::Arrived => &mut counters.prefetch_arrived,
            WishEnd::Met => &mut counters.prefetch_met,
            WishEnd::Missing => &mut counters.prefetch_missing,
            WishEnd::NoRoom => &mut counters.prefetch_no_room,
            WishEnd::Expired => &mut counters.prefetch_expired,
            WishEnd::Cancelled => &mut counters.prefetch_cancelled,
            WishEnd::Yielded => &mut counters.prefetch_yielded,
            WishEnd::Failed => &mut counters.prefetch_failed,
        } += 1;
    }

    /// A fill has ended, for whatever wish it was; whether there was one.
    pub(super) fn end_wish_of(&mut self, copy: CopyId, end: WishEnd) -> bool {
        let wish = self.prefetches.by_copy.get(&copy).copied();
        wish.into_iter().for_each(|number| self.end_wish(number, end));
        wish.is_some()
    }

    /// The bytes of a wish have become a resident that nobody has acquired.
    pub(super) fn arrive_ahead(&mut self, copy: CopyId) {
        let Some(&number) = self.prefetches.by_copy.get(&copy) else { return };
        let until = self.prefetches.wishes[&number].until;
        self.end_wish(number, WishEnd::Arrived);
        let room = self.prefetches.room.take(self.residents.copy(copy).slot.bytes);
        self.prefetches.charge(copy, room.expect("the wish has just given back as much"));
        self.prefetches.keep_until(copy, until);
    }

    /// A resident is not what was brought ahead any more: it has been acquired, has ended, or its time has.
    pub(super) fn settle_ahead(&mut self, copy: CopyId) -> bool {
        let was_ahead = self.prefetches.settle(copy);
        if was_ahead {
            self.prefetches.uncharge(copy);
        }
        was_ahead
    }

    /// Nobody has acquired by their time what was brought ahead: it is a resident like any other.
    pub(super) fn lapse_unused(&mut self, now: Moment) {
        while let Some(&(_, copy)) = self.prefetches.lapses.first().filter(|(until, _)| *until <= now) {
            assert!(self.settle_ahead(copy), "it has its time while it is ahead");
            self.counters.prefetch_unused += 1;
            if self.settings.retention == Retention::Drop {
                self.drop_fetched(copy);
            }
        }
    }

    /// Nobody is to be given this block: it was evicted or cleared.
    pub(super) fn forget_wish(&mut self, key: &StateKey) {
        let wish = self.prefetches.by_key.get(key).copied();
        wish.into_iter().for_each(|number| self.end_wish(number, WishEnd::Cancelled));
    }

    /// As [`Shard::forget_wish`] for a whole namespace.
    pub(super) fn forget_wishes_in(&mut self, namespace: NamespaceId) {
        let wishes = self.prefetches.wishes.iter().filter(|(_, wish)| wish.key.namespace == namespace);
        let numbers: Vec<u64> = wishes.map(|(number, _)| *number).collect();
        numbers.into_iter().for_each(|number| self.end_wish(number, WishEnd::Cancelled));
    }

    /// A connection is closed: what it alone wanted is wanted no more.
    pub(super) fn forget_wishes_of(&mut self, connection: ConnectionId) {
        for number in self.prefetches.of_connection(connection) {
            let wish = self.prefetches.wishes.get_mut(&number).expect("just found");
            wish.connections.retain(|other| *other != connection);
            if wish.connections.is_empty() {
                self.end_wish(number, WishEnd::Cancelled);
            }
        }
    }

    /// The shard drains: nothing is brought ahead any more.
    pub(super) fn forget_wishes(&mut self) {
        while let Some(&number) = self.prefetches.wishes.keys().next() {
            self.end_wish(number, WishEnd::Cancelled);
        }
    }

    /// Gives up what has not begun by its deadline. What a device or a peer is at has its time there.
    pub(super) fn expire_wishes(&mut self, now: Moment) {
        while let Some(&(until, number)) =
            self.prefetches.deadlines.first().filter(|(until, _)| *until <= now)
        {
            self.prefetches.deadlines.remove(&(until, number));
            let has_begun = match self.prefetches.wishes[&number].stage {
                WishStage::Waiting | WishStage::Sought => false,
                WishStage::Filling(copy) => self.fills[&copy].stage == FillStage::Reading,
            };
            if !has_begun {
                self.end_wish(number, WishEnd::Expired);
            }
        }
    }

    /// Demand finds no room: gives up what is on its way for wishes alone. Whether a slot has come back at once; what
    /// a device or a peer writes into comes back later.
    pub(super) fn yield_to_demand(&mut self) -> bool {
        let slots = self.slab.accounting().slots;
        let copies: Vec<CopyId> = self.prefetches.by_copy.keys().copied().collect();
        for copy in copies {
            let fill = &self.fills[&copy];
            let is_under_way = fill.stage == FillStage::Reading && fill.placement.is_some();
            if fill.waiters.is_empty() && fill.pins.is_empty() && !is_under_way {
                self.end_wish_of(copy, WishEnd::Yielded);
            }
        }
        self.slab.accounting().slots < slots
    }
}
