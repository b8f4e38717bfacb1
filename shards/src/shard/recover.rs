//! The recovery path of one shard: Query, Acquire, Attach, and the SSD reads behind an Acquire.
//!
//! A block that several Acquires want is read once; each gets its own pin before anybody else can
//! take the slot.

use orbitkv_wire::engine::answers::{BlockOutcome, BlockRecord, Place};
use orbitkv_wire::identity::NamespaceDigest;
use orbitkv_wire::payload::FailureCause;

use super::command::{Attached, Holder};
use super::fetch::Seeker;
use super::grant::PinId;
use super::prefetch::AHEAD;
use super::save::{Eviction, NoSlot, slot_bytes};
use super::throttle::SlotPurpose;
use super::wishes::WishEnd;
use super::{Key, Outcome, Places, Reply, Shard, Tag};
use crate::admission::Permit;
use crate::key::{EntryId, StateKey};
use crate::leases::{LeaseToken, LeasedBlock, ReservedShare};
use crate::residents::{CopyId, Dram, EntryRef, Ssd};
use crate::resilience::gate::Class;
use crate::segment_log::Placement;
use crate::slab::Slot;
use crate::time::Moment;

/// An unanswered Acquire.
pub(super) struct AcquireJob {
    /// Blocks that are not decided.
    remaining: u32,
    /// Decided and not told yet: blocks of one turn travel together.
    decided: Vec<BlockRecord>,
    /// Every fill it ever waited for, so that giving it up looks at no others.
    pub fills: Vec<CopyId>,
    /// When its engine waits no longer.
    pub until: Moment,
    _permit: Permit,
}

impl AcquireJob {
    /// Whether any of its blocks is not decided.
    pub fn waits(&self) -> bool {
        self.remaining > 0
    }
}

/// How far a fill has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FillStage {
    /// Waits for the device, at this place of the queue. A fill that nobody wants any more is not read.
    Queued(u64),
    /// The device has it: it ends when the device says so.
    Reading,
}

/// What becomes of the bytes of a fill beside the DRAM residence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FillPurpose {
    /// Engines wait for them, and nobody else.
    Recover,
    /// The log itself wants them, to write them again.
    Reinsert,
}

/// An Acquire that waits for a fill.
pub(super) struct Waiter {
    pub tag: Tag,
    /// Position of the block in the Acquire.
    pub index: u32,
    /// What the block will be charged to.
    pub share: ReservedShare,
}

/// What one Acquire has taken and may still take.
pub(super) struct Means {
    pub permit: Option<Permit>,
    pub eviction: Eviction,
    pub fills: Vec<CopyId>,
    /// What it may wait for.
    pub waiting: Waiting,
    /// When its engine waits no longer.
    pub until: Moment,
}

/// What an Acquire may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    /// The SSD, once it has a permit: one that waits for other nodes has another pool.
    ForDevice,
    /// The SSD and other nodes, with the permit that it has.
    ForPeers,
    /// Both: it waits already, with the permit of its job.
    AsBefore,
}

/// A block on its way from SSD, or from a peer, into a slot.
pub(super) struct Fill {
    /// The entry that will show the copy, if it is still the same one by then.
    pub entry: EntryRef,
    /// Where on SSD the bytes come from; none if a peer sends them.
    pub placement: Option<Placement>,
    /// What its waiters are told of where it was.
    pub place: Place,
    /// How far it has come.
    pub stage: FillStage,
    /// What it is for.
    pub purpose: FillPurpose,
    /// Demand, or what was begun ahead and nobody has come to wait for: so whoever brings it knows it.
    pub class: Class,
    /// If a peer sends them: how long whoever brings them has been told that it may take.
    pub until: Option<Moment>,
    /// Acquires that wait.
    pub waiters: Vec<Waiter>,
    /// Grants that wait.
    pub pins: Vec<PinId>,
}

impl Fill {
    /// Acquires that wait, once for each block.
    pub fn awaited_by(&self) -> impl Iterator<Item = Tag> {
        self.waiters.iter().map(|waiter| waiter.tag)
    }
}

impl Shard {
    pub(super) fn query(
        &mut self,
        tag: Tag,
        namespaces: Vec<NamespaceDigest>,
        keys: Vec<Key>,
        hold: Option<Holder>,
        now: Moment,
    ) {
        let ids = self.known(&namespaces);
        // A drain waits for leases to end: a draining shard says where blocks are and pins none.
        let hold = hold.filter(|_| !self.draining);
        if let Some(holder) = hold {
            let held = self.leases.hold(holder.token, holder.instance, holder.connection, now);
            if let Err(error) = held {
                return self.answer(tag, Outcome::LeaseRefused(error));
            }
        }
        let mut places = Vec::with_capacity(keys.len());
        for key in &keys {
            let found = self.find(key.hash, self.state_key(&ids, key));
            let place = found.map_or(Place::None, |id| self.place(id));
            if let (Some(holder), Some(id)) = (hold, found) {
                self.hold_one(holder, id);
            }
            places.push((key.index, place));
        }
        self.counters.queries += 1;
        self.answer(tag, Outcome::Places(Places { found: places, namespaces, keys, peers: None }));
    }

    pub(super) fn place(&self, id: EntryId) -> Place {
        let entry = self.residents.entry(id);
        match (entry.dram, entry.ssd.residence()) {
            (Dram::Resident { .. }, _) => Place::Dram,
            (_, Some(_)) => Place::Ssd,
            (Dram::Absent | Dram::Filling(_), None) => Place::None,
        }
    }

    fn hold_one(&mut self, holder: Holder, id: EntryId) {
        let entry = self.residents.entry_mut(id);
        // An SSD residence cannot be pinned; being hot, the log moves it rather than drops it.
        entry.hot = true;
        if let Dram::Resident { copy, .. } = entry.dram {
            let (key, bytes) = (entry.key, entry.bytes);
            if self.leases.fits(holder.token, slot_bytes(bytes)) {
                self.lease(holder.token, copy, key, bytes);
            }
        }
    }

    /// Pins a copy under a lease that it fits.
    fn lease(&mut self, token: LeaseToken, copy: CopyId, key: StateKey, bytes: u64) -> u64 {
        let block = self.leased_block(copy, key, bytes);
        self.residents.pin(copy);
        self.leases.add(token, block);
        block.offset
    }

    fn leased_block(&self, copy: CopyId, key: StateKey, bytes: u64) -> LeasedBlock {
        let slot = self.residents.copy(copy).slot;
        LeasedBlock { copy, key, bytes, slot_bytes: slot.bytes, offset: slot.offset }
    }

    pub(super) fn acquire(
        &mut self,
        tag: Tag,
        holder: Holder,
        (namespaces, keys): (&[NamespaceDigest], &[Key]),
        until: Moment,
    ) {
        if self.draining {
            return self.answer(tag, Outcome::Draining);
        }
        let ids = self.known(namespaces);
        let mut held = Vec::new();
        let opened = self.leases.open(holder.token, holder.instance, holder.connection, &mut held);
        if let Err(error) = opened {
            return self.answer(tag, Outcome::LeaseRefused(error));
        }
        // The deepest block first: the policy then sees the head of the prefix as the most recent, and
        // a fill for one block does not evict another of the same prefix while anything else is left.
        let mut needs_peers = false;
        for key in keys.iter().rev() {
            let state_key = self.state_key(&ids, key);
            let found = self.find(key.hash, state_key);
            needs_peers |= state_key.is_some() && self.needs_peers(found);
            if let Some(id) = found {
                self.touch(id);
            }
        }
        let mut blocks = Vec::with_capacity(keys.len());
        let mut remaining = 0;
        let mut means = self.means(needs_peers, until);
        // The head first: where the lease bound or the arena ends, it is the tail that is refused.
        for key in keys {
            let state_key = self.state_key(&ids, key);
            let found = self.find(key.hash, state_key);
            let is_sought = found.is_none_or(|id| self.is_barred(id));
            if let (true, Waiting::ForPeers, Some(sought)) = (is_sought, means.waiting, state_key)
                && self.fetches.peers
            {
                self.seek(tag, key.index, sought, key.hash, holder.token);
                remaining += 1;
                continue;
            }
            match self.acquire_one(tag, holder.token, key.index, found, &mut means) {
                Some(record) => blocks.push(record),
                None => remaining += 1,
            }
        }
        for block in held {
            self.unpin(block.copy);
        }
        if let Some(permit) = means.permit.filter(|_| remaining > 0) {
            let (decided, fills) = (Vec::new(), means.fills);
            self.acquires.insert(tag, AcquireJob { remaining, decided, fills, until, _permit: permit });
        }
        self.answer(tag, Outcome::Blocks { blocks, done: remaining == 0 });
    }

    /// Decides one key, or makes the Acquire wait for a fill.
    pub(super) fn acquire_one(
        &mut self,
        tag: Tag,
        token: LeaseToken,
        index: u32,
        found: Option<EntryId>,
        means: &mut Means,
    ) -> Option<BlockRecord> {
        let Some(id) = found else {
            self.counters.misses += 1;
            return Some(refusal(index, BlockOutcome::Missing));
        };
        let entry = self.residents.entry(id);
        let (key, bytes) = (entry.key, entry.bytes);
        let (dram, ssd) = (entry.dram, entry.ssd);
        if !self.leases.fits(token, slot_bytes(bytes)) {
            return Some(self.busy(index));
        }
        match (dram, ssd) {
            (Dram::Resident { copy, .. }, _) => {
                self.counters.hits_dram += 1;
                self.note_use(id, copy);
                let offset = self.lease(token, copy, key, bytes);
                Some(ready(index, Place::Dram, offset, bytes))
            }
            (Dram::Absent, Ssd::Resident { .. } | Ssd::Moving { .. }) if self.is_barred(id) => {
                self.count_barred();
                self.counters.misses += 1;
                Some(refusal(index, BlockOutcome::Missing))
            }
            (Dram::Filling(_), _) | (Dram::Absent, Ssd::Resident { .. } | Ssd::Moving { .. })
                if !self.may_wait(id, means) =>
            {
                Some(self.busy(index))
            }
            (Dram::Filling(copy), _) => self.wait_for(copy, (tag, index, token), bytes, means),
            (Dram::Absent, Ssd::Resident { placement, .. } | Ssd::Moving { placement, .. }) => {
                if !self.admits_namespace(key.namespace, bytes, SlotPurpose::Acquire) {
                    return Some(self.busy(index));
                }
                match self.begin_fill(id, placement, FillPurpose::Recover, &mut means.eviction) {
                    Ok(copy) => {
                        self.charge_namespace(key.namespace, bytes);
                        self.wait_for(copy, (tag, index, token), bytes, means)
                    }
                    Err(_) => Some(self.busy(index)),
                }
            }
            (Dram::Absent, Ssd::Absent | Ssd::Queued | Ssd::Writing(_)) => {
                // Its last DRAM copy has been withdrawn and the write on its way is not readable yet.
                self.counters.misses += 1;
                Some(refusal(index, BlockOutcome::Missing))
            }
        }
    }

    pub(super) fn busy(&mut self, index: u32) -> BlockRecord {
        self.counters.acquires_busy += 1;
        refusal(index, BlockOutcome::Busy)
    }

    /// Makes an Acquire wait for a fill, with what it will be charged reserved: reads that end later find
    /// the room that was there when they began.
    pub(super) fn wait_for(
        &mut self,
        copy: CopyId,
        (tag, index, token): (Tag, u32, LeaseToken),
        bytes: u64,
        means: &mut Means,
    ) -> Option<BlockRecord> {
        let share = self.leases.reserve(token, slot_bytes(bytes)).expect("asked whether it fits");
        means.fills.push(copy);
        self.await_fill(copy, means.until);
        let fill = self.fills.get_mut(&copy).expect("a filling copy has its fill");
        fill.waiters.push(Waiter { tag, index, share });
        if fill.placement.is_some() {
            self.stages.on_read_awaited(tag, fill.stage == FillStage::Reading);
        }
        None
    }

    /// Whether a block is, or will be, another node's to send.
    fn needs_peers(&self, found: Option<EntryId>) -> bool {
        let is_sought = self.fetches.peers && found.is_none_or(|id| self.is_barred(id));
        is_sought || found.is_some_and(|id| self.fetch_of(id).is_some())
    }

    /// What a new Acquire may take. If any of its blocks is another node's to send, all of its wait is one for peers:
    /// places for those that the SSD alone serves are never held by what waits for a node that is silent. With as many
    /// waits for peers as there may be, it has what is here.
    fn means(&self, needs_peers: bool, until: Moment) -> Means {
        let permit = if needs_peers { self.pools.peer_waits.take(1) } else { None };
        let waiting = if permit.is_some() { Waiting::ForPeers } else { Waiting::ForDevice };
        Means { permit, eviction: Eviction::Allowed, fills: Vec::new(), waiting, until }
    }

    /// Whether an Acquire may wait for the block of `id`: it needs a permit before the first begins.
    fn may_wait(&self, id: EntryId, means: &mut Means) -> bool {
        match means.waiting {
            Waiting::ForPeers | Waiting::AsBefore => true,
            Waiting::ForDevice if self.fetch_of(id).is_some() => false,
            Waiting::ForDevice => {
                means.permit = means.permit.take().or_else(|| self.pools.device_waits.take(1));
                means.permit.is_some()
            }
        }
    }

    /// Takes a slot for the block of `id` and queues the read.
    pub(super) fn begin_fill(
        &mut self,
        id: EntryId,
        placement: Placement,
        purpose: FillPurpose,
        eviction: &mut Eviction,
    ) -> Result<CopyId, NoSlot> {
        let bytes = self.residents.entry(id).bytes;
        let slot = self.allocate(bytes, eviction)?;
        Ok(self.fill_from_ssd(id, placement, purpose, slot, Class::Demand))
    }

    /// Queues the read of a block into its slot.
    pub(super) fn fill_from_ssd(
        &mut self,
        id: EntryId,
        placement: Placement,
        purpose: FillPurpose,
        slot: Slot,
        class: Class,
    ) -> CopyId {
        let copy = self.residents.insert_copy(slot, Some(id));
        self.slot_owners.insert(slot.id, copy);
        self.residents.pin(copy);
        self.residents.entry_mut(id).dram = Dram::Filling(copy);
        let log = self.log.as_mut().expect("an SSD residence lies in a log");
        let origin = self.residents.entry(id).origin;
        assert_eq!(
            log.life_of(&placement),
            origin.incarnation,
            "what is read is what was written for this block"
        );
        log.begin_read(&placement);
        let entry = self.residents.reference(id);
        let (until, waiters, pins) = (None, Vec::new(), Vec::new());
        let mark = if class == Class::Background { AHEAD } else { 0 };
        let stage = FillStage::Queued(self.queue_read(copy, mark));
        let (placement, place) = (Some(placement), Place::Ssd);
        let fill = Fill { entry, placement, place, stage, purpose, class, until, waiters, pins };
        self.fills.insert(copy, fill);
        copy
    }

    /// Makes a copy wait for the device; returns its turn, behind all those of lower marks.
    pub(super) fn queue_read(&mut self, copy: CopyId, mark: u64) -> u64 {
        let turn = mark | self.next_fill;
        self.next_fill += 1;
        self.fill_queue.insert(turn, copy);
        turn
    }

    /// Ends a fill whose bytes never arrived or must not be shown. Its waiters get `outcome`.
    pub(super) fn abandon_fill(&mut self, copy: CopyId, outcome: BlockOutcome) {
        let fill = self.fills.remove(&copy).expect("a fill is abandoned once");
        self.end_fill_read(&fill);
        self.end_wish_of(copy, WishEnd::Failed);
        if let Some(id) = self.filling_entry(&fill, copy) {
            self.residents.entry_mut(id).dram = Dram::Absent;
            let freed = self.residents.withdraw(copy);
            assert!(freed.is_none(), "the fill still pins its copy");
            self.end_if_bare(id);
        }
        let cause = match outcome {
            BlockOutcome::DeviceError => FailureCause::DeviceError,
            BlockOutcome::Corrupt => FailureCause::Corrupt,
            _ => FailureCause::Ended,
        };
        self.decide_filled(copy, fill.pins, Err(cause));
        self.unpin(copy);
        for Waiter { tag, index, share } in fill.waiters {
            self.leases.unreserve(share);
            self.decide(tag, refusal(index, outcome));
        }
    }

    /// Gives one who waited the copy that an entry shows, found at this place.
    pub(super) fn serve(&mut self, waiter: Waiter, copy: CopyId, place: Place) {
        let Waiter { tag, index, share } = waiter;
        let id = self.residents.copy(copy).owner.expect("the copy is shown");
        let (key, bytes) = (self.residents.entry(id).key, self.residents.entry(id).bytes);
        let block = self.leased_block(copy, key, bytes);
        let is_added = if block.slot_bytes == share.bytes() {
            self.leases.add_reserved(share, block)
        } else {
            // A peer's block of another length was waited for.
            self.leases.unreserve(share);
            false
        };
        let record = if is_added {
            self.residents.pin(copy);
            self.count_hit(place);
            self.note_use(id, copy);
            ready(index, place, block.offset, bytes)
        } else {
            // Or the lease ended while its block was read.
            self.busy(index)
        };
        self.decide(tag, record);
    }

    fn end_fill_read(&mut self, fill: &Fill) {
        if let Some(placement) = &fill.placement {
            self.log.as_mut().expect("it reads from a log").end_read(placement);
        }
    }

    fn count_hit(&mut self, place: Place) {
        match place {
            Place::Dram => self.counters.hits_dram += 1,
            Place::PeerDram => self.counters.hits_peer_dram += 1,
            Place::PeerSsd => self.counters.hits_peer_ssd += 1,
            _ => self.counters.hits_ssd += 1,
        }
    }

    /// The entry that shows this filling copy, unless it was evicted or cleared meanwhile.
    pub(super) fn filling_entry(&self, fill: &Fill, copy: CopyId) -> Option<EntryId> {
        let id = self.residents.resolve(fill.entry)?;
        (self.residents.entry(id).dram == Dram::Filling(copy)).then_some(id)
    }

    /// The bytes of a fill are in the slot and proved right.
    pub(super) fn finish_fill(&mut self, copy: CopyId) {
        let Some(id) = self.filling_entry(&self.fills[&copy], copy) else {
            // Evicted while it was read: right bytes, but no residence to show.
            self.counters.orphans += 1;
            return self.abandon_fill(copy, BlockOutcome::Missing);
        };
        let fill = self.fills.remove(&copy).expect("a fill is finished once");
        self.end_fill_read(&fill);
        self.begin_dram(id, copy);
        self.arrive_ahead(copy);
        for waiter in fill.waiters {
            self.serve(waiter, copy, fill.place);
        }
        self.decide_filled(copy, fill.pins, Ok(()));
        self.unpin(copy);
        if fill.purpose == FillPurpose::Reinsert {
            self.move_or_drop(id);
        }
    }

    /// Decides one block of a waiting Acquire.
    pub(super) fn decide(&mut self, tag: Tag, record: BlockRecord) {
        let job = self.acquires.get_mut(&tag).expect("waiters wait in live jobs");
        job.remaining = job.remaining.checked_sub(1).expect("a block is decided once");
        if job.decided.is_empty() {
            self.decided.push_back(tag);
        }
        job.decided.push(record);
    }

    /// What has been decided of the next Acquire since it was told last.
    pub(super) fn poll_decided(&mut self) -> Option<Reply> {
        let tag = self.decided.pop_front()?;
        let job = self.acquires.get_mut(&tag).expect("an Acquire ends when it has been told all");
        let blocks = std::mem::take(&mut job.decided);
        let done = job.remaining == 0;
        if done {
            self.acquires.remove(&tag);
        }
        Some(self.reply(tag, Outcome::Blocks { blocks, done }))
    }

    pub(super) fn cancel(&mut self, target: Tag, deadline: bool) {
        if self.acquires.contains_key(&target) {
            let outcome = if deadline { BlockOutcome::DeadlineExceeded } else { BlockOutcome::Cancelled };
            let mut undecided = Vec::new();
            self.fetches.seeks.retain(|seek| match seek.by {
                Seeker::Acquire { tag, index, .. } if tag == target => {
                    undecided.push(index);
                    false
                }
                _ => true,
            });
            self.forget_waiters(target, outcome, |index| undecided.push(index));
            undecided.into_iter().for_each(|index| self.decide(target, refusal(index, outcome)));
            assert_eq!(self.acquires[&target].remaining, 0, "a cancelled Acquire is decided whole");
        }
        self.cancel_sync(target);
    }

    /// Takes a tag out of every fill; fills that nobody wants any more are not read.
    fn forget_waiters(&mut self, tag: Tag, outcome: BlockOutcome, mut forgotten: impl FnMut(u32)) {
        let job = self.acquires.get_mut(&tag).expect("a waiting Acquire");
        for copy in std::mem::take(&mut job.fills) {
            // A fill that has ended has no waiters, and another one under its number none of this tag.
            let Some(fill) = self.fills.get_mut(&copy) else { continue };
            let before = fill.waiters.len();
            for waiter in fill.waiters.extract_if(.., |waiter| waiter.tag == tag) {
                self.leases.unreserve(waiter.share);
                forgotten(waiter.index);
            }
            if fill.waiters.len() < before && fill.purpose == FillPurpose::Recover {
                self.drop_unwanted_fill(copy, outcome);
            }
        }
    }

    /// A fill for readers that has not begun and has lost the last of them, who was told this, is not read.
    pub(super) fn drop_unwanted_fill(&mut self, copy: CopyId, outcome: BlockOutcome) {
        let fill = &self.fills[&copy];
        if !fill.waiters.is_empty() || !fill.pins.is_empty() || self.prefetches.has(copy) {
            return;
        }
        match fill.stage {
            FillStage::Queued(turn) => {
                self.fill_queue.remove(&turn);
                self.abandon_fill(copy, BlockOutcome::Cancelled);
            }
            // A peer stops when it is told; the device ends when it says so.
            FillStage::Reading if fill.placement.is_none() => self.cancel_fetch(copy, outcome),
            FillStage::Reading => {}
        }
    }

    pub(super) fn attach(&mut self, tag: Tag, holder: Holder) {
        let outcome = match self.leases.attach(holder.token, holder.instance, holder.connection) {
            Ok(blocks) => Outcome::Attached(
                blocks
                    .iter()
                    .map(|block| Attached {
                        group: block.key.group,
                        block: block.key.block,
                        offset: block.offset,
                        bytes: block.bytes,
                    })
                    .collect(),
            ),
            Err(error) => Outcome::LeaseRefused(error),
        };
        self.answer(tag, outcome);
    }
}

fn ready(index: u32, source: Place, offset: u64, bytes: u64) -> BlockRecord {
    BlockRecord { index, outcome: BlockOutcome::Ready as u8, source: source as u8, offset, bytes }
}

pub(super) fn refusal(index: u32, outcome: BlockOutcome) -> BlockRecord {
    BlockRecord { index, outcome: outcome as u8, source: Place::None as u8, offset: 0, bytes: 0 }
}
