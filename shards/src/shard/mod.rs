//! A shard: one core's private part of the node, composed of its rooms.
//!
//! Commands come in through [`Shard::execute`], device completions through
//! [`Shard::on_transfer_done`] and [`Shard::on_table_written`]; answers and device orders go out
//! through `poll_*`. The shard performs nothing itself: offsets go out, outcomes come back. Work too
//! long for one turn goes on in [`Shard::step`] as long as [`Shard::has_work`].

mod audit;
pub mod command;
mod device_guard;
pub mod fetch;
mod figures;
pub mod grant;
mod life;
mod pools;
pub mod prefetch;
mod recover;
mod save;
mod stages;
mod throttle;
mod tiers;
mod wishes;
mod withdraw;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use hashbrown::HashMap;
use orbitkv_wire::bounds::QUERY_HASHES_MAX;
use orbitkv_wire::identity::{Incarnation, KeyHash, Medium, NamespaceDigest, ShardIndex};

use crate::admission::Pool;
use crate::drop_memory::DropMemory;
use crate::eviction::{DramPolicy, EvictionPolicy, Lru};
use crate::journal::{Journal, JournalSettings};
use crate::key::{EntryId, StateKey};
use crate::leases::{LeaseSettings, LeasedBlock, Leases};
use crate::namespaces::Namespaces;
use crate::reservations::Reservations;
use crate::residents::{CopyId, Dram, EntryRef, LifeNumber, Provenance, Residents, Ssd};
use crate::retention::Retention;
use crate::segment_log::{BlockName, GeometryError, LogState, Placement, SegmentLog, SegmentLogSettings};
use crate::slab::{Slab, SlabSettings, SlotId};
use crate::time::Moment;

pub use audit::{Finder, LostCause, LostWrite};
pub use command::{Command, Key, Outcome, PeersPart, Places, Reply, Tag};
pub use device_guard::{DeviceGuardSettings, DeviceStanding, READ_BUDGET};
pub use fetch::{FetchEffect, FetchOrder, Seek};
pub use figures::{Counters, Figures, SsdFigures};
pub use grant::{CHECKSUM_STEP_BYTES, ChecksumId, ChecksumOrder, GrantBatch, GrantOutcome, PinEvent, PinId};
pub use life::LIFE_SLICE_ENTRIES;
pub use pools::PoolFigures;
pub use stages::{Stage, StageNote};
pub use throttle::{NamespaceRate, throttle_bytes};
pub use tiers::{Order, OrderKind, TransferId};
pub use wishes::PrefetchSettings;

/// Copies of ended leases that one command or step unpins: as many as one lease has at most. A process that dies
/// may have had half of a large slice under leases, and its end is no reason to hold the core for so long.
const UNPINS_PER_SLICE: usize = QUERY_HASHES_MAX;

/// Bounds and places of one shard.
#[derive(Clone, Debug)]
pub struct ShardSettings {
    /// Its index.
    pub shard: ShardIndex,
    /// The life it serves first.
    pub incarnation: Incarnation,
    /// Its slice of the arena.
    pub slab: SlabSettings,
    /// Its part of the SSD file; `None` without an SSD tier.
    pub log: Option<SegmentLogSettings>,
    /// Its journal.
    pub journal: JournalSettings,
    /// Ended residences it remembers.
    pub drop_memory_entries: usize,
    /// Leases.
    pub leases: LeaseSettings,
    /// Slot bytes that engines may hold unpublished, over all connections.
    pub reserved_bytes_max: u64,
    /// Slot bytes of all pins of other nodes.
    pub lent_bytes_max: u64,
    /// Write-backs on the device at once.
    pub write_backs_max: usize,
    /// Acquires that wait for the SSD alone, Syncs and Clears unanswered at once.
    pub waiting_max: u64,
    /// Acquires that wait for other nodes unanswered at once.
    pub waiting_for_peers_max: u64,
    /// Blocks the tables are made for: as many entries, reservations included, and as many slots.
    pub blocks_max: u64,
    /// Failed reads in a row, over all blocks, after which the SSD tier is turned off.
    pub read_failures_in_a_row_max: u32,
    /// Failed writes in a row, over all blocks, after which it is.
    pub write_failures_in_a_row_max: u32,
    /// When the device is left alone for a while.
    pub device_guard: DeviceGuardSettings,
    /// Entries that one step puts again in a new life, at least 1. [`LIFE_SLICE_ENTRIES`].
    pub life_slice_entries: usize,
    /// What is brought into DRAM before it is asked for.
    pub prefetch: PrefetchSettings,
    /// What one namespace may save and have brought in time; as much as there is room for if none.
    pub namespace_rate: Option<NamespaceRate>,
    /// What becomes of blocks that peers have sent.
    pub retention: Retention,
    /// Between two blocks on SSD that are read again to see whether they are what was written; none if none is.
    pub audit_interval: Option<Duration>,
}

impl ShardSettings {
    /// Half of the slice for the leases of one connection (chapter 1.3).
    #[must_use]
    pub fn lease_settings(slice_bytes: u64) -> LeaseSettings {
        LeaseSettings {
            leases_per_connection_max: 4_096,
            bytes_per_connection_max: slice_bytes / 2,
            blocks_per_lease_max: QUERY_HASHES_MAX,
            hold_time: Duration::from_secs(30),
        }
    }
}

/// One core's private part of the node.
pub struct Shard {
    settings: ShardSettings,
    /// The latest moment that it was told.
    now: Moment,
    residents: Residents,
    slab: Slab,
    slot_owners: HashMap<SlotId, CopyId>,
    policy: DramPolicy,
    /// Of those that the policy knows, blocks that peers have sent and that are weighed, by their last use.
    fetched: Lru,
    journal: Journal,
    drops: DropMemory,
    namespaces: Namespaces,
    reservations: Reservations,
    leases: Leases,
    log: Option<SegmentLog>,
    pools: pools::ShardPools,
    acquires: BTreeMap<Tag, recover::AcquireJob>,
    fills: BTreeMap<CopyId, recover::Fill>,
    pins: grant::Pins,
    /// Fills and stages that the device has not been given, by turn.
    fill_queue: BTreeMap<u64, CopyId>,
    next_fill: u64,
    device_guard: device_guard::DeviceGuard,
    fetches: fetch::Fetches,
    prefetches: wishes::Prefetches,
    throttles: throttle::Throttles,
    /// Acquires of which something is decided and not told.
    decided: VecDeque<Tag>,
    write_queue: VecDeque<(EntryRef, u64)>,
    write_backs: BTreeSet<u64>,
    next_write_back: u64,
    syncs: Vec<tiers::SyncJob>,
    transfers: HashMap<TransferId, tiers::Purpose>,
    next_transfer: u64,
    writes_in_flight: usize,
    write_failures_in_a_row: u32,
    read_failures_in_a_row: u32,
    reclaims: VecDeque<(EntryId, Placement)>,
    /// Something was reclaimed since the last order was asked for.
    reclaimed: bool,
    reclaim_progressed: Moment,
    clears: VecDeque<withdraw::ClearJob>,
    audit: audit::Audit,
    /// The present life.
    life: LifeNumber,
    beginning: Option<life::Beginning>,
    /// Where the search for a cold block on SSD alone goes on.
    cold_hand: Option<StateKey>,
    moves: VecDeque<Order>,
    stages: stages::Stages,
    replies: VecDeque<Reply>,
    ended: Vec<LeasedBlock>,
    draining: bool,
    counters: Counters,
    #[cfg(test)]
    searches: u64,
}

impl Shard {
    /// An empty shard.
    ///
    /// # Errors
    /// If its part of the SSD file cannot be cut into segments.
    pub fn new(settings: ShardSettings) -> Result<Shard, GeometryError> {
        // The tables as the memory bill has them, so that none is moved by growing inside a turn.
        let blocks = usize::try_from(settings.blocks_max).expect("a machine addresses what it bills");
        let pools = pools::ShardPools::new(&settings);
        let ahead = pools.ahead.clone();
        Ok(Shard {
            now: Moment(0),
            residents: Residents::with_capacity(blocks),
            slab: Slab::new(settings.slab),
            slot_owners: HashMap::with_capacity(blocks),
            policy: DramPolicy::new(blocks),
            fetched: Lru::new(if settings.retention == Retention::Weigh { blocks } else { 0 }),
            journal: Journal::new(settings.journal),
            drops: DropMemory::new(settings.drop_memory_entries),
            namespaces: Namespaces::new(orbitkv_wire::bounds::NAMESPACES_MAX),
            reservations: Reservations::new(settings.shard),
            leases: Leases::new(settings.leases),
            log: settings.log.map(SegmentLog::new).transpose()?,
            pools,
            acquires: BTreeMap::new(),
            fills: BTreeMap::new(),
            pins: grant::Pins::default(),
            fill_queue: BTreeMap::new(),
            next_fill: 0,
            device_guard: device_guard::DeviceGuard::new(settings.device_guard),
            fetches: fetch::Fetches::default(),
            prefetches: wishes::Prefetches::new(ahead),
            throttles: throttle::Throttles::new(settings.namespace_rate),
            decided: VecDeque::new(),
            write_queue: VecDeque::new(),
            write_backs: BTreeSet::new(),
            next_write_back: 1,
            syncs: Vec::new(),
            transfers: HashMap::new(),
            next_transfer: 1,
            writes_in_flight: 0,
            write_failures_in_a_row: 0,
            read_failures_in_a_row: 0,
            reclaims: VecDeque::new(),
            reclaimed: false,
            reclaim_progressed: Moment(0),
            clears: VecDeque::new(),
            audit: audit::Audit::new(settings.audit_interval),
            life: LifeNumber(0),
            beginning: None,
            cold_hand: None,
            moves: VecDeque::new(),
            stages: stages::Stages::default(),
            replies: VecDeque::new(),
            ended: Vec::new(),
            draining: false,
            counters: Counters::default(),
            #[cfg(test)]
            searches: 0,
            settings,
        })
    }

    /// What is charged for slots that other nodes may read; whoever grants them takes from it.
    #[must_use]
    pub fn lent_pool(&self) -> Pool {
        self.pools.lent.clone()
    }

    /// Its index.
    #[must_use]
    pub fn index(&self) -> ShardIndex {
        self.settings.shard
    }

    /// The life it serves.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.settings.incarnation
    }

    /// Tells what time it is: before the device's completions of a turn, and before anything is asked of it.
    pub fn hear(&mut self, now: Moment) {
        self.now = self.now.max(now);
    }

    /// Carries a command out, as far as it goes now. Every command is answered through
    /// [`Shard::poll_reply`], exactly once but for the parts of an Acquire.
    pub fn execute(&mut self, tag: Tag, command: Command, now: Moment) {
        self.stages.on_command(tag);
        self.hear(now);
        match command {
            Command::Query { namespaces, keys, hold } => self.query(tag, namespaces, keys, hold, now),
            Command::Reserve { connection, namespace, race, keys } => {
                self.reserve(tag, connection, &namespace, race, &keys);
            }
            Command::Commit { connection, reservations } => self.commit(tag, connection, &reservations),
            Command::Abort { connection, reservations } => self.abort(tag, connection, &reservations),
            Command::Acquire { holder, namespaces, keys, until } => {
                self.acquire(tag, holder, (&namespaces, &keys), until);
            }
            Command::Prefetch { connection, namespaces, keys, until } => {
                self.prefetch(tag, connection, (&namespaces, &keys), until);
            }
            Command::Cancel { tag: target, deadline } => {
                self.cancel(target, deadline);
                self.answer(tag, Outcome::Done);
            }
            Command::Attach { holder } => self.attach(tag, holder),
            Command::Release { token, connection } => {
                let outcome = match self.leases.release(token, connection, &mut self.ended) {
                    Ok(()) => Outcome::Done,
                    Err(error) => Outcome::LeaseRefused(error),
                };
                self.unpin_ended();
                self.answer(tag, outcome);
            }
            Command::Evict { namespace, media, keys } => self.evict(tag, &namespace, media, &keys),
            Command::Clear { namespace, media } => self.clear(tag, &namespace, media),
            Command::List { namespace, media, after, limit } => {
                self.list(tag, &namespace, media, after, limit)
            }
            Command::Sync => self.sync(tag),
            Command::Disconnected { connection } => {
                self.forget_wishes_of(connection);
                self.leases.on_disconnected(connection, &mut self.ended);
                self.unpin_ended();
                let claims = self.reservations.has_any(connection) || self.leases.has_share(connection);
                self.answer(tag, Outcome::Disconnected { claims });
            }
            Command::Gone { connection } => {
                self.forget_wishes_of(connection);
                for reservation in self.reservations.take_all(connection) {
                    self.give_back(reservation);
                }
                self.leases.on_gone(connection, &mut self.ended);
                self.unpin_ended();
                self.answer(tag, Outcome::Done);
            }
            Command::Drain => {
                self.draining = true;
                self.forget_wishes();
                self.answer(tag, Outcome::Done);
            }
            Command::BeginLife(incarnation) => self.begin_life(tag, incarnation),
            Command::Report => {
                let figures = Box::new(self.figures());
                self.answer(tag, Outcome::Figures(figures));
            }
        }
        self.begin_prefetches();
        self.assert_invariants();
    }

    /// Whether there is work that no completion and no command will come for: the core calls
    /// [`Shard::step`] and asks for orders again before it waits.
    #[must_use]
    pub fn has_work(&self) -> bool {
        // With a transfer under way its completion makes the core ask anyway.
        let may_write = self.reclaimed && !self.write_queue.is_empty() && self.transfers.is_empty();
        !self.clears.is_empty()
            || self.beginning.is_some()
            || !self.ended.is_empty()
            || self.has_orders_ahead()
            || self.writes_flow() && (!self.reclaims.is_empty() || may_write)
    }

    /// A bounded slice of the work that is too long for one turn.
    pub fn step(&mut self) {
        self.unpin_ended();
        self.step_clear();
        self.step_life();
        if !self.reclaims.is_empty() {
            self.reclaim();
        }
        self.assert_invariants();
    }

    /// Lets time pass: holds expire, and the audit may have its turn.
    pub fn on_time(&mut self, now: Moment) {
        self.hear(now);
        self.expire_wishes(now);
        self.lapse_unused(now);
        self.leases.on_time(now, &mut self.ended);
        self.unpin_ended();
        self.step_audit(now);
        self.begin_prefetches();
    }

    /// When [`Shard::on_time`] has something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        let wishes = self.prefetches.next_deadline();
        let device = self.device_deadline();
        self.leases.next_deadline().into_iter().chain(self.audit_deadline()).chain(device).chain(wishes).min()
    }

    /// Whether there is an answer to be fetched.
    #[must_use]
    pub fn has_replies(&self) -> bool {
        !self.replies.is_empty() || !self.decided.is_empty()
    }

    /// The next answer.
    pub fn poll_reply(&mut self) -> Option<Reply> {
        self.replies.pop_front().or_else(|| self.poll_decided())
    }

    fn answer(&mut self, tag: Tag, outcome: Outcome) {
        self.replies.push_back(self.reply(tag, outcome));
    }

    fn reply(&self, tag: Tag, outcome: Outcome) -> Reply {
        Reply { tag, shard: self.settings.shard, incarnation: self.settings.incarnation, outcome }
    }

    fn state_key(&self, namespaces: &[Option<crate::key::NamespaceId>], key: &Key) -> Option<StateKey> {
        let namespace = (*namespaces.get(key.namespace as usize)?)?;
        Some(StateKey { namespace, group: key.group, block: key.block })
    }

    fn known(&self, digests: &[NamespaceDigest]) -> Vec<Option<crate::key::NamespaceId>> {
        digests.iter().map(|digest| self.namespaces.get(digest)).collect()
    }

    fn find(&self, hash: KeyHash, key: Option<StateKey>) -> Option<EntryId> {
        self.residents.find(hash, &key?)
    }

    /// Unpins copies of leases that have ended: those of any one lease at once, those of a process that had
    /// many a slice at a time.
    fn unpin_ended(&mut self) {
        let mut ended = std::mem::take(&mut self.ended);
        let slice = ended.len().saturating_sub(UNPINS_PER_SLICE);
        for block in ended.drain(slice..) {
            self.unpin(block.copy);
        }
        self.ended = ended;
    }

    fn unpin(&mut self, copy: CopyId) {
        if let Some(slot) = self.residents.unpin(copy) {
            self.slot_owners.remove(&slot.id);
            self.slab.release(slot.id);
        } else if self.settings.retention == Retention::Drop {
            self.drop_fetched(copy);
        }
    }

    /// A block that a peer has sent leaves with its last user; one that was brought ahead has not had its first yet.
    fn drop_fetched(&mut self, copy: CopyId) {
        let shown = self.residents.copy(copy);
        let Some(id) = shown.owner.filter(|_| shown.pins == 0) else { return };
        let entry = self.residents.entry(id);
        let is_shown = matches!(entry.dram, Dram::Resident { .. });
        if is_shown && entry.provenance == Provenance::Peer && !self.prefetches.unused.contains_key(&copy) {
            self.counters.fetched_dropped += 1;
            self.end_dram(id);
        }
    }

    /// Ends the DRAM residence of an entry; its memory follows when its last user ends.
    /// Returns whether the memory is still in use.
    fn end_dram(&mut self, id: EntryId) -> bool {
        let Dram::Resident { copy, sequence } = self.residents.entry(id).dram else {
            panic!("only a residence ends")
        };
        if self.settle_ahead(copy) {
            self.counters.prefetch_unused += 1;
        }
        let entry = self.residents.entry_mut(id);
        entry.dram = Dram::Absent;
        if entry.ssd == Ssd::Queued {
            entry.ssd = Ssd::Absent;
        }
        self.policy.remove(id);
        if self.fetched.contains(id) {
            self.fetched.remove(id);
        }
        self.tell_ended(id, Medium::Dram, sequence);
        let entry = self.residents.entry(id);
        self.counters.dram_bytes -= entry.bytes;
        if entry.provenance == Provenance::Peer {
            self.counters.fetched_bytes -= entry.bytes;
        }
        self.counters.dram_residents -= 1;
        let freed = self.residents.withdraw(copy);
        if let Some(slot) = freed {
            self.slot_owners.remove(&slot.id);
            self.slab.release(slot.id);
        }
        self.end_if_bare(id);
        freed.is_none()
    }

    /// Ends the SSD residence of an entry; its place in the log is free to be reclaimed.
    fn end_ssd(&mut self, id: EntryId) {
        let placement = self.end_ssd_residence(id);
        self.log.as_mut().expect("an SSD residence lies in a log").remove(&placement);
        self.end_if_bare(id);
    }

    /// Ends the SSD residence of an entry, leaving its place and the entry itself to the caller.
    fn end_ssd_residence(&mut self, id: EntryId) -> Placement {
        let entry = self.residents.entry_mut(id);
        let (placement, sequence) = entry.ssd.residence().expect("only a residence ends");
        // The write of a move goes on alone: its completion finds that the residence has ended.
        entry.ssd = Ssd::Absent;
        let bytes = entry.bytes;
        self.tell_ended(id, Medium::Ssd, sequence);
        self.counters.ssd_residents -= 1;
        self.counters.ssd_bytes -= bytes;
        placement
    }

    /// Whether the SSD tier takes blocks.
    fn writes_back(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.state() == LogState::On)
    }

    /// What the block of an entry is called outside this shard.
    fn block_name(&self, key: &StateKey) -> BlockName {
        BlockName { namespace: *self.namespaces.digest(key.namespace), group: key.group, block: key.block }
    }

    fn end_if_bare(&mut self, id: EntryId) {
        let entry = self.residents.entry(id);
        if entry.dram == Dram::Absent && entry.ssd == Ssd::Absent {
            let entry = self.residents.remove(id);
            self.namespaces.release(entry.key.namespace);
        }
    }

    /// Conservation laws that are cheap enough to check after every command.
    fn assert_invariants(&self) {
        assert_eq!(
            self.policy.len() as u64,
            self.counters.dram_residents,
            "the policy knows every residence"
        );
        assert!(self.pools.saves.in_use() >= self.reservations.bytes(), "every reservation has its permit");
        assert_eq!(
            self.slot_owners.len() + self.reservations.len(),
            self.slab.accounting().slots as usize,
            "every slot has one owner"
        );
        assert_eq!(self.slot_owners.len(), self.residents.copies(), "every copy has its slot");
        let blocks = (self.residents.len() + self.reservations.len()) as u64;
        assert!(blocks <= self.settings.blocks_max, "no more entries than the tables are made for");
        assert!(self.slab.accounting().slots <= self.settings.blocks_max, "nor more slots");
        let leased = self.leases.blocks() + self.ended.len() as u64;
        let moved = self.fills.len() + self.writes_in_flight + self.pins.uses() + self.audit.uses();
        assert_eq!(self.residents.pins(), leased + moved as u64, "every pin has its user");
        self.pins.assert_invariants();
        self.assert_prefetches();
        let waits = !self.acquires.is_empty();
        assert!(waits || self.leases.reserved_bytes() == 0, "lease shares are reserved by waiting Acquires");
        #[cfg(test)]
        self.residents.assert_indices();
        #[cfg(test)]
        self.assert_numbered();
    }
}

#[cfg(test)]
pub(crate) mod tests;
