//! Random lives with announcements, against a plain model of what they may do: nothing that is pinned, used sooner or
//! nowhere else gives way, bounds hold, who waits goes first, bytes are right, and what nobody wants is not brought.
//! A failing case prints its number.

use std::collections::{BTreeMap, BTreeSet};

use orbitkv_wire::engine::answers::{BlockOutcome, CommitOutcome, Place, PrefetchOutcome};
use orbitkv_wire::identity::Medium;

use super::super::command::Media;
use super::super::{
    Command, FetchEffect, FetchOrder, OrderKind, Outcome, PrefetchSettings, ShardSettings, Tag,
};
use super::rig::{BOTH, DRAM, Fault, KIB, Rig, SSD, digest, holder, settings};
use crate::dice::Dice;
use crate::leases::ConnectionId;
use crate::residents::CopyId;
use crate::resilience::gate::Class;
use crate::time::Moment;

const CASES: u64 = 400;
const STEPS: u64 = 300;
const BYTES: u64 = 256 * KIB;
/// How far ahead every block is announced.
const HORIZON: u64 = 1_000;
/// Blocks of this shard; those from here on are of peers.
const OWN_KEYS: u8 = 26;
const KEYS: u8 = 34;
const BOUNDS: PrefetchSettings =
    PrefetchSettings { wishes_max: 10, active_max: 4, reads_max: 2, bytes_max: 5 * BYTES };

struct Leased {
    key: u8,
    offset: u64,
    value: u64,
    /// Whether it is still the copy that the shard shows.
    is_shown: bool,
}

struct Lease {
    connection: u64,
    blocks: Vec<Leased>,
}

struct Life {
    dice: Dice,
    rig: Rig,
    connections: Vec<u64>,
    made: u64,
    values: BTreeMap<u8, u64>,
    /// Keys that an Acquire waits for, by the Acquire: its token, its connection, and what of it is undecided.
    pending: BTreeMap<Tag, (u128, u64, Vec<u8>, BTreeSet<u32>)>,
    leases: BTreeMap<u128, Lease>,
    /// Until when connections want keys ahead.
    wanted: BTreeMap<u8, BTreeMap<u64, Moment>>,
    /// What anybody has brought about to be in DRAM since it was last evicted from there.
    may_be_there: BTreeSet<u8>,
    used: BTreeMap<u8, Moment>,
    /// Until when keys were announced last.
    announced: BTreeMap<u8, Moment>,
    /// Brought ahead and not acquired in time yet.
    ahead: BTreeSet<u8>,
    fetches: BTreeMap<CopyId, (FetchOrder, bool)>,
    reads_ahead: BTreeSet<u64>,
    seen: BTreeMap<&'static str, u64>,
}

struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the failing case is number {}", self.0);
        }
    }
}

impl Life {
    fn new(number: u64) -> Life {
        let mut bounds = ShardSettings { prefetch: BOUNDS, waiting_max: 1, ..settings(2, 128 * 1024 * KIB) };
        bounds.leases.leases_per_connection_max = 1_000;
        let mut rig = Rig::new(bounds);
        rig.shard.seek_peers(true);
        let dice = Dice(number.wrapping_mul(0x9e37_79b9_97f4_a7c1));
        Life {
            dice,
            rig,
            connections: vec![1, 2, 3],
            made: 3,
            values: BTreeMap::new(),
            pending: BTreeMap::new(),
            leases: BTreeMap::new(),
            wanted: BTreeMap::new(),
            may_be_there: BTreeSet::new(),
            used: BTreeMap::new(),
            announced: BTreeMap::new(),
            ahead: BTreeSet::new(),
            fetches: BTreeMap::new(),
            reads_ahead: BTreeSet::new(),
            seen: BTreeMap::new(),
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn connection(&mut self) -> u64 {
        self.connections[self.dice.roll(3) as usize]
    }

    fn names(&mut self, most: u64) -> Vec<u8> {
        let count = 1 + self.dice.roll(most);
        let drawn: BTreeSet<u8> = (0..count).map(|_| self.dice.roll(u64::from(KEYS)) as u8).collect();
        drawn.into_iter().collect()
    }

    fn value(&self, key: u8) -> Option<u64> {
        if key >= OWN_KEYS { Some(1_000_000 + u64::from(key)) } else { self.values.get(&key).copied() }
    }

    fn in_dram(&mut self) -> BTreeSet<u8> {
        self.rig.list(0, DRAM, 1_000).iter().map(|resident| resident.block.0[0]).collect()
    }

    /// Keys that somebody waits for.
    fn demanded(&self) -> BTreeSet<u8> {
        let of = |(_, _, names, open): &(u128, u64, Vec<u8>, BTreeSet<u32>)| {
            open.iter().map(|&index| names[index as usize]).collect::<Vec<_>>()
        };
        self.pending.values().flat_map(of).collect()
    }

    fn is_wanted(&self, key: u8) -> bool {
        self.wanted.get(&key).is_some_and(|wanted| wanted.values().any(|until| *until > self.rig.now))
    }

    fn step(&mut self) {
        let before = self.in_dram();
        let demanded = self.demanded();
        // Whether only what was announced may make room.
        let is_ahead = match self.dice.roll(32) {
            0..4 => self.save(),
            4..9 => self.prefetch(),
            9..12 => self.acquire(),
            12..15 => self.release(),
            15 => self.evict(),
            16 if self.dice.one_in(6) => self.clear(),
            16 | 17 if self.dice.one_in(3) => self.leave(),
            16..19 => self.pass_time(),
            19..24 => self.start(),
            24..27 => self.complete(),
            27..30 => self.seek(),
            _ => self.arrive(),
        };
        self.take_answers();
        let after = self.in_dram();
        for &key in after.difference(&before) {
            self.used.insert(key, self.rig.now);
            if !demanded.contains(&key) && is_ahead {
                self.ahead.insert(key);
                self.count("brought ahead");
            }
        }
        for &key in before.difference(&after) {
            self.ahead.remove(&key);
            if is_ahead {
                self.check_gave_way(key);
            }
            let leased = self.leases.values_mut().flat_map(|lease| &mut lease.blocks);
            leased.filter(|leased| leased.key == key).for_each(|leased| leased.is_shown = false);
        }
        let before = self.ahead.len();
        let (announced, now) = (&self.announced, self.rig.now);
        self.ahead.retain(|key| announced[key] > now);
        if self.ahead.len() < before {
            self.count("lapsed");
        }
        assert!(after.is_subset(&self.may_be_there), "nobody wanted all of {after:?}");
        assert!(self.ahead.len() as u64 * BYTES <= BOUNDS.bytes_max, "room for {:?}", self.ahead);
        let background =
            self.fetches.values().filter(|(order, promoted)| order.class == Class::Background && !promoted);
        assert!(background.count() <= BOUNDS.active_max, "jobs at a time");
        assert!(self.reads_ahead.len() <= BOUNDS.reads_max, "reads at a time");
        for lease in self.leases.values() {
            for &Leased { key, offset, value, .. } in &lease.blocks {
                assert!(self.rig.holds(offset, BYTES, value), "leased bytes of {key} changed");
            }
        }
    }

    fn check_gave_way(&mut self, key: u8) {
        let idle = self.rig.now.since(self.used[&key]).as_nanos() as u64;
        assert!(idle > HORIZON, "{key} gave way after {idle} ns");
        let is_elsewhere = key >= OWN_KEYS || self.rig.place(key) == Place::Ssd;
        assert!(is_elsewhere, "{key} was nowhere else");
        let is_leased =
            |lease: &Lease| lease.blocks.iter().any(|leased| leased.key == key && leased.is_shown);
        assert!(!self.leases.values().any(is_leased), "{key} was leased");
        self.count("gave way");
    }

    fn save(&mut self) -> bool {
        let key = self.dice.roll(u64::from(OWN_KEYS)) as u8;
        let connection = self.connection();
        let slot = self.rig.reserve(connection, key, BYTES);
        self.used.insert(key, self.rig.now);
        if slot.outcome == 0 {
            self.made += 1;
            let value = self.made;
            self.rig.fill(slot.offset, BYTES, value);
            assert_eq!(self.rig.commit(connection, slot.reservation), CommitOutcome::Committed);
            self.values.insert(key, value);
            self.may_be_there.insert(key);
        }
        false
    }

    fn prefetch(&mut self) -> bool {
        let (connection, names) = (self.connection(), self.names(6));
        let until = Moment(self.rig.now.0 + HORIZON);
        // What is there is used by being announced.
        for &key in &names {
            self.used.insert(key, self.rig.now);
        }
        for (key, outcome) in names.iter().zip(self.rig.prefetch(connection, &names, until)) {
            match outcome {
                PrefetchOutcome::Taken | PrefetchOutcome::Coming => {
                    self.wanted.entry(*key).or_default().insert(connection, until);
                    self.announced.insert(*key, until);
                    self.may_be_there.insert(*key);
                }
                PrefetchOutcome::Full => self.count("full"),
                PrefetchOutcome::NoRoom => self.count("no room"),
                PrefetchOutcome::Present => {
                    self.announced.insert(*key, until);
                }
                PrefetchOutcome::Absent => {}
            }
        }
        true
    }

    fn acquire(&mut self) -> bool {
        let (connection, names) = (self.connection(), self.names(3));
        self.made += 1;
        let token = u128::from(self.made);
        for &key in &names {
            self.used.insert(key, self.rig.now);
            self.may_be_there.insert(key);
        }
        let tag = self.rig.submit_acquire(holder(token, 1, connection), &names);
        self.leases.insert(token, Lease { connection, blocks: Vec::new() });
        let open = (0..names.len() as u32).collect();
        self.pending.insert(tag, (token, connection, names, open));
        false
    }

    fn take_answers(&mut self) {
        self.rig.collect();
        for tag in self.pending.keys().copied().collect::<Vec<_>>() {
            let (blocks, done) = self.rig.blocks(tag);
            for block in blocks {
                let (token, _, names, open) = self.pending.get_mut(&tag).expect("listed");
                assert!(open.remove(&block.index), "a block is decided once");
                let (token, key) = (*token, names[block.index as usize]);
                self.ahead.remove(&key);
                if block.outcome == BlockOutcome::Ready as u8 {
                    let value = self.value(key).expect("what is ready has a value");
                    assert!(self.rig.holds(block.offset, BYTES, value), "{key} has wrong bytes");
                    self.leases.get_mut(&token).expect("its lease").blocks.push(Leased {
                        key,
                        offset: block.offset,
                        value,
                        is_shown: true,
                    });
                    self.count("acquired");
                }
            }
            if done {
                self.pending.remove(&tag);
            }
        }
    }

    fn release(&mut self) -> bool {
        let waits: BTreeSet<u128> = self.pending.values().map(|(token, ..)| *token).collect();
        let free = self.leases.iter().filter(|(token, _)| !waits.contains(token));
        let chosen = free.map(|(token, lease)| (*token, lease.connection)).collect::<Vec<_>>();
        if let Some((token, connection)) = self.dice.pick(chosen) {
            self.rig.release(token, connection);
            self.leases.remove(&token);
        }
        false
    }

    fn forget(&mut self, key: u8, media: u8, in_dram: &BTreeSet<u8>) {
        self.wanted.remove(&key);
        let goes = media & DRAM != 0 || !in_dram.contains(&key);
        if goes && !self.demanded().contains(&key) {
            self.may_be_there.remove(&key);
        }
    }

    fn evict(&mut self) -> bool {
        let media = [DRAM, SSD, BOTH][self.dice.roll(3) as usize];
        let in_dram = self.in_dram();
        for key in self.names(4) {
            self.rig.evict(key, media);
            self.forget(key, media, &in_dram);
        }
        false
    }

    fn clear(&mut self) -> bool {
        let media = [DRAM, BOTH][self.dice.roll(2) as usize];
        let in_dram = self.in_dram();
        let command = Command::Clear { namespace: digest(0), media: Media::from_mask(media) };
        if matches!(self.rig.call(command), Outcome::Cancelled) {
            // As many Acquires wait for the SSD as may.
            self.count("not cleared");
            return false;
        }
        (0..KEYS).for_each(|key| self.forget(key, media, &in_dram));
        self.count("cleared");
        false
    }

    /// A process is gone, and another one comes.
    fn leave(&mut self) -> bool {
        let index = self.dice.roll(3) as usize;
        let gone = self.connections[index];
        if self.pending.values().any(|(_, connection, ..)| *connection == gone) {
            return false;
        }
        self.rig.call(Command::Disconnected { connection: ConnectionId(gone) });
        self.rig.gone(gone);
        self.leases.retain(|_, lease| lease.connection != gone);
        for wanted in self.wanted.values_mut() {
            wanted.remove(&gone);
        }
        self.made += 1;
        self.connections[index] = self.made + 1_000;
        self.count("left");
        false
    }

    fn pass_time(&mut self) -> bool {
        self.rig.now = Moment(self.rig.now.0 + self.dice.roll(1_500));
        self.rig.shard.on_time(self.rig.now);
        true
    }

    /// The device takes an operation: a read is for whoever waits, or, if nobody does, for a block that is wanted.
    fn start(&mut self) -> bool {
        let demanded = self.demanded();
        if !self.rig.start_one() {
            return true;
        }
        let order = self.rig.flights.last().expect("it was just given").order;
        if order.kind == OrderKind::Read {
            let holds =
                |key: &u8| self.value(*key).is_some_and(|v| self.rig.file_holds(order.file_offset, BYTES, v));
            let key = (0..OWN_KEYS).find(holds);
            match (demanded.is_empty(), key) {
                (false, Some(key)) => assert!(demanded.contains(&key), "{key} is read while others wait"),
                (true, Some(key)) => {
                    assert!(self.is_wanted(key), "nobody wants {key}");
                    self.reads_ahead.insert(order.id.0);
                    self.count("read ahead");
                }
                // The device has lost it since.
                (_, None) => {}
            }
        }
        true
    }

    fn complete(&mut self) -> bool {
        if self.rig.flights.is_empty() {
            return true;
        }
        let index = self.dice.roll(self.rig.flights.len() as u64) as usize;
        let fault = match self.dice.roll(24) {
            0 => Fault::Error,
            1 => Fault::Flipped,
            _ => Fault::None,
        };
        self.reads_ahead.remove(&self.rig.flights[index].order.id.0);
        self.rig.complete(index, fault);
        true
    }

    /// Whoever speaks to peers looks up what is sought and takes what is wanted.
    fn seek(&mut self) -> bool {
        let demands_nothing = self.demanded().is_empty();
        while let Some(seek) = self.rig.shard.poll_seek() {
            let is_there = seek.key.block.0[0] >= OWN_KEYS && !self.dice.one_in(8);
            self.rig.shard.on_sought(seek, is_there.then_some(BYTES));
        }
        while let Some(effect) = self.rig.shard.poll_fetch() {
            match effect {
                FetchEffect::Fetch(order) => {
                    let key = order.key.block.0[0];
                    match order.class {
                        Class::Background => {
                            // It may have been ordered before somebody came to wait.
                            assert!(
                                self.is_wanted(key) || self.demanded().contains(&key),
                                "nobody wants {key}"
                            );
                            self.count("fetched ahead");
                        }
                        _ => assert!(self.demanded().contains(&key), "nobody waits for {key}"),
                    }
                    self.fetches.insert(order.copy, (order, false));
                }
                FetchEffect::Await { copy, .. } => {
                    // It may have come since.
                    self.fetches.get_mut(&copy).into_iter().for_each(|(_, promoted)| *promoted = true);
                    self.count("promoted");
                }
                FetchEffect::Cancel(copy) | FetchEffect::Expire(copy) => {
                    if !self.rig.shard.is_wanted(copy) && self.fetches.remove(&copy).is_some() {
                        self.rig.shard.on_fetch_failed(copy, BlockOutcome::Cancelled);
                        self.count("given up");
                    }
                }
            }
        }
        demands_nothing
    }

    fn arrive(&mut self) -> bool {
        let Some(copy) = self.dice.pick(self.fetches.keys().copied()) else { return true };
        let (order, _) = self.fetches.remove(&copy).expect("just listed");
        if self.dice.one_in(8) {
            self.rig.shard.on_fetch_failed(copy, BlockOutcome::Missing);
            return true;
        }
        let value = self.value(order.key.block.0[0]).expect("a peer has it");
        self.rig.fill(order.arena_offset, BYTES, value);
        let checksum = self.rig.sum(order.arena_offset, BYTES);
        self.rig.shard.on_fetched(copy, Medium::Dram, checksum);
        true
    }

    /// Everybody leaves, and nothing is left over.
    fn finish(mut self) -> BTreeMap<&'static str, u64> {
        self.connections
            .iter()
            .for_each(|&gone| drop(self.rig.call(Command::Disconnected { connection: ConnectionId(gone) })));
        loop {
            self.seek();
            for copy in std::mem::take(&mut self.fetches).into_keys() {
                self.rig.shard.on_fetch_failed(copy, BlockOutcome::Missing);
            }
            self.rig.settle();
            self.take_answers();
            if self.pending.is_empty() {
                break;
            }
        }
        self.connections.iter().for_each(|&gone| self.rig.gone(gone));
        self.rig.settle();
        let figures = self.rig.shard.figures();
        assert_eq!((figures.leased_blocks, figures.prefetch_waiting), (0, 0));
        self.rig.call(Command::Clear { namespace: digest(0), media: Media::from_mask(BOTH) });
        self.rig.settle();
        let figures = self.rig.shard.figures();
        assert_eq!((figures.prefetch_bytes, figures.allocated_bytes), (0, 0), "everything came back");
        let counters = figures.counters;
        assert_eq!(counters.fetched_bytes, 0);
        let seen = [
            ("used", counters.prefetch_used),
            ("unused", counters.prefetch_unused),
            ("met", counters.prefetch_met),
            ("missing", counters.prefetch_missing),
            ("no room then", counters.prefetch_no_room),
            ("expired", counters.prefetch_expired),
            ("cancelled", counters.prefetch_cancelled),
            ("failed", counters.prefetch_failed),
        ];
        self.seen.into_iter().chain(seen).collect()
    }
}

#[test]
fn announcements_are_in_nobodys_way() {
    let mut totals: BTreeMap<&'static str, u64> = BTreeMap::new();
    let cases = std::env::var("ORBITKV_MODEL_CASES").map_or(CASES, |cases| cases.parse().expect("a number"));
    for number in 0..cases {
        let _named = Named(number);
        let mut life = Life::new(number);
        for _ in 0..STEPS {
            life.step();
        }
        for (what, count) in life.finish() {
            *totals.entry(what).or_default() += count;
        }
    }
    for what in [
        "brought ahead",
        "gave way",
        "full",
        "no room",
        "acquired",
        "cleared",
        "not cleared",
        "left",
        "read ahead",
        "fetched ahead",
        "promoted",
        "given up",
        "used",
        "unused",
        "lapsed",
        "met",
        "missing",
        "no room then",
        "expired",
        "cancelled",
        "failed",
    ] {
        assert!(totals.get(what).is_some_and(|count| *count > 0), "no case had {what}: {totals:?}");
    }
}
