//! What is wanted ahead of demand, and what has come of it and was not acquired: the tables of `prefetch.rs` and
//! what must hold of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use orbitkv_wire::identity::KeyHash;

use super::Shard;
use crate::admission::{Permit, Pool};
use crate::key::StateKey;
use crate::leases::ConnectionId;
use crate::residents::CopyId;
use crate::time::Moment;

/// Bounds of what a shard brings ahead of demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefetchSettings {
    /// Blocks wanted and not there; 0 turns it off.
    pub wishes_max: usize,
    /// Of those, sought, read or fetched at a time: the jobs of a core.
    pub active_max: usize,
    /// Of those, reads that the device has at a time.
    pub reads_max: usize,
    /// Slot bytes of what is on its way or has come and was not acquired yet.
    pub bytes_max: u64,
}

impl PrefetchSettings {
    /// A core's bounds for a share of its slice, in percent; 0 turns it off.
    #[must_use]
    pub fn of_slice(slice_bytes: u64, percent: u32) -> PrefetchSettings {
        let wishes_max = if percent == 0 { 0 } else { 1_024 };
        PrefetchSettings {
            wishes_max,
            active_max: 16,
            reads_max: 4,
            bytes_max: slice_bytes / 100 * u64::from(percent),
        }
    }
}

/// How far a wish is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WishStage {
    /// Nothing has been done for it.
    Waiting,
    /// It is looked up whether a peer has it.
    Sought,
    /// It has a slot, and its bytes are due.
    Filling(CopyId),
}

/// A block that is wanted ahead.
pub(super) struct Wish {
    pub key: StateKey,
    pub hash: KeyHash,
    /// Open connections that want it, none twice.
    pub connections: Vec<ConnectionId>,
    pub until: Moment,
    /// How soon it will be used at the latest, from when it was wished for.
    pub horizon: Duration,
    /// Slot bytes, as far as known before it has a slot.
    pub slot_bytes: u64,
    pub stage: WishStage,
}

/// How a wish ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WishEnd {
    /// It was brought.
    Arrived,
    /// The block came another way.
    Met,
    /// Nobody has it.
    Missing,
    /// There was no room that it may take.
    NoRoom,
    /// Its deadline passed first.
    Expired,
    /// Nobody wants it any more.
    Cancelled,
    /// Demand needed its place.
    Yielded,
    /// It was not read, not sent, or wrong.
    Failed,
}

/// Everything that is wanted ahead.
pub(super) struct Prefetches {
    pub wishes: BTreeMap<u64, Wish>,
    pub by_key: BTreeMap<StateKey, u64>,
    pub waiting: BTreeSet<u64>,
    /// Sought and not asked about yet.
    pub to_seek: VecDeque<u64>,
    pub by_copy: BTreeMap<CopyId, u64>,
    pub deadlines: BTreeSet<(Moment, u64)>,
    /// Copies that the device reads ahead, whoever waits for them by now.
    pub reading: BTreeSet<CopyId>,
    pub made: u64,
    /// Slot bytes of wishes that wait, as far as known.
    pub promised_bytes: u64,
    /// Residents that were brought ahead and not acquired: until when they are waited for.
    pub unused: BTreeMap<CopyId, Moment>,
    /// The same by time.
    pub lapses: BTreeSet<(Moment, CopyId)>,
    /// The slot bytes of each copy that is filled for a wish, and of each resident that was brought ahead and not acquired.
    pub charges: BTreeMap<CopyId, Permit>,
    /// What they are charged to.
    pub room: Pool,
}

impl Prefetches {
    /// Nothing; what comes is charged to this pool.
    pub fn new(room: Pool) -> Prefetches {
        Prefetches {
            wishes: BTreeMap::new(),
            by_key: BTreeMap::new(),
            waiting: BTreeSet::new(),
            to_seek: VecDeque::new(),
            by_copy: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            reading: BTreeSet::new(),
            made: 0,
            promised_bytes: 0,
            unused: BTreeMap::new(),
            lapses: BTreeSet::new(),
            charges: BTreeMap::new(),
            room,
        }
    }

    /// Slot bytes that are charged.
    pub fn charged_bytes(&self) -> u64 {
        self.room.in_use()
    }

    /// Whether a copy is filled for a wish.
    pub fn has(&self, copy: CopyId) -> bool {
        self.by_copy.contains_key(&copy)
    }

    pub fn next_deadline(&self) -> Option<Moment> {
        let wished = self.deadlines.first().map(|&(until, _)| until);
        let lapse = self.lapses.first().map(|&(until, _)| until);
        wished.into_iter().chain(lapse).min()
    }

    /// A read of the device has ended.
    pub fn on_read(&mut self, copy: CopyId) {
        self.reading.remove(&copy);
    }

    pub fn charge(&mut self, copy: CopyId, permit: Permit) {
        assert!(self.charges.insert(copy, permit).is_none(), "room is charged once");
    }

    pub fn uncharge(&mut self, copy: CopyId) {
        let permit = self.charges.remove(&copy).expect("what is charged comes back once");
        drop(permit);
    }

    /// A resident was brought ahead and is waited for until then.
    pub fn keep_until(&mut self, copy: CopyId, until: Moment) {
        self.unused.insert(copy, until);
        self.lapses.insert((until, copy));
    }

    /// A resident that was brought ahead is announced again; of any other nothing happens.
    pub fn keep_longer(&mut self, copy: CopyId, until: Moment) {
        let Some(before) = self.unused.get(&copy).copied().filter(|before| *before < until) else { return };
        self.lapses.remove(&(before, copy));
        self.keep_until(copy, until);
    }

    /// A resident is not one that was brought ahead any more; whether it was.
    pub fn settle(&mut self, copy: CopyId) -> bool {
        let until = self.unused.remove(&copy);
        until.is_some_and(|until| self.lapses.remove(&(until, copy)))
    }

    pub fn active(&self) -> usize {
        self.wishes.len() - self.waiting.len()
    }

    pub fn of_connection(&self, connection: ConnectionId) -> Vec<u64> {
        let wanted = self.wishes.iter().filter(|(_, wish)| wish.connections.contains(&connection));
        wanted.map(|(number, _)| *number).collect()
    }
}

impl Shard {
    /// What is wanted ahead keeps its bounds, and every wish ends once.
    pub(super) fn assert_prefetches(&self) {
        let (ahead, bounds, counters) = (&self.prefetches, &self.settings.prefetch, &self.counters);
        assert!(ahead.wishes.len() <= bounds.wishes_max, "wishes keep their bound");
        assert!(ahead.active() <= bounds.active_max, "and so do those that are worked at");
        assert!(ahead.reading.len() <= bounds.reads_max, "and reads");
        assert_eq!(
            ahead.charges.len(),
            ahead.by_copy.len() + ahead.unused.len(),
            "and room is charged for each"
        );
        assert_eq!(ahead.by_key.len(), ahead.wishes.len(), "every wish is found by its block");
        assert!(ahead.by_copy.len() <= ahead.active(), "a wish has one slot");
        let given_up = counters.prefetch_expired + counters.prefetch_cancelled + counters.prefetch_yielded;
        let not_brought = counters.prefetch_missing + counters.prefetch_no_room + counters.prefetch_failed;
        let ended = counters.prefetch_arrived + counters.prefetch_met + given_up + not_brought;
        assert_eq!(counters.prefetch_taken, ended + ahead.wishes.len() as u64, "every wish ends once");
        #[cfg(test)]
        self.assert_charged();
    }

    #[cfg(test)]
    fn assert_charged(&self) {
        use crate::residents::Dram;
        let ahead = &self.prefetches;
        let filling: u64 = ahead.by_copy.keys().map(|&copy| self.residents.copy(copy).slot.bytes).sum();
        let unused: u64 = (ahead.unused.iter())
            .map(|(&copy, until)| {
                let shown = self.residents.copy(copy);
                let id = shown.owner.expect("what was brought ahead is shown");
                assert!(
                    matches!(self.residents.entry(id).dram, Dram::Resident { copy: of, .. } if of == copy)
                );
                assert!(ahead.lapses.contains(&(*until, copy)), "and has its time");
                shown.slot.bytes
            })
            .sum();
        assert_eq!(ahead.lapses.len(), ahead.unused.len());
        assert_eq!(ahead.charged_bytes(), filling + unused, "room is charged once");
        let promised = ahead.waiting.iter().map(|number| ahead.wishes[number].slot_bytes).sum::<u64>();
        assert_eq!(ahead.promised_bytes, promised);
        assert!(ahead.by_copy.iter().all(|(copy, number)| {
            self.fills.contains_key(copy) && ahead.wishes[number].stage == WishStage::Filling(*copy)
        }));
    }
}
