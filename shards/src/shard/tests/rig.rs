//! A shard with the arena and the SSD file around it. A page is kept as one word, its stamp: enough
//! to see any page that is not what its owner wrote, and fast enough for hundreds of thousands of steps.
//!
//! The device is played as it may behave at worst: what an order will overwrite is garbage from the
//! moment the order is given, and nothing else happens until the test says that it has completed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use orbitkv_wire::engine::answers::{
    BlockRecord, CommitOutcome, EvictOutcome, Place, PrefetchOutcome, SlotRecord,
};
use orbitkv_wire::identity::{
    BlockHash, GroupId, Incarnation, KeyHash, NamespaceDigest, Sequence, ShardIndex,
};

use super::super::command::{Holder, Media, Resident};
use super::super::{
    Command, Counters, DeviceGuardSettings, FetchEffect, FetchOrder, Key, Order, OrderKind, Outcome, Places,
    PrefetchSettings, Shard, ShardSettings, Tag,
};
use crate::inventory::publisher::Residences;
use crate::journal::{Interval, JournalSettings, Record};
use crate::key::StateKey;
use crate::leases::{ConnectionId, InstanceId, LeaseSettings, LeaseToken};
use crate::reservations::ReservationId;
use crate::retention::Retention;
use crate::segment_log::{SegmentLogSettings, TableWrite, decode_table};
use crate::slab::{CHUNK_BYTES, SlabSettings};
use crate::time::Moment;

pub const PAGE: u64 = 4096;
pub const KIB: u64 = 1024;
pub const BOTH: u8 = 3;
pub const DRAM: u8 = 1;
pub const SSD: u8 = 2;

/// When an engine waits no longer that has all the time there is.
pub const FOREVER: Moment = Moment(u64::MAX);

const FILE_BASE: u64 = 3 * PAGE;
const GARBAGE: u64 = 0xdead_dead_dead_dead;
const EIO: i32 = 5;

/// How a device operation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    Error,
    /// Half of it was done; the reactor reports that as an error.
    Short,
    /// One page on the device is not what was written there.
    Flipped,
}

/// A device operation that has been given and has not completed.
pub struct Flight {
    pub order: Order,
    /// Writes: checksum of the bytes when the order was given.
    given: u64,
}

/// A shard, its slice of the arena, its part of the SSD file, and what its engines have been told.
pub struct Rig {
    pub shard: Shard,
    pub now: Moment,
    pub flights: Vec<Flight>,
    pub tables: Vec<TableWrite>,
    pub answers: BTreeMap<Tag, Vec<Outcome>>,
    pub flips: u64,
    /// The life that the shard was told to serve.
    pub incarnation: Incarnation,
    /// By place in the file, the life in which the device was given what lies there.
    writers: BTreeMap<u64, Incarnation>,
    arena: Vec<u64>,
    arena_base: u64,
    file: Vec<u64>,
    tags: u64,
}

/// Small bounds, so that everything that can run out does.
pub fn settings(arena_chunks: u64, ssd_bytes: u64) -> ShardSettings {
    let bytes = arena_chunks * CHUNK_BYTES;
    let incarnation = Incarnation([7; 16]);
    let shard = ShardIndex(0);
    let log = (ssd_bytes > 0).then_some(SegmentLogSettings {
        base: FILE_BASE,
        bytes: ssd_bytes,
        segment_bytes: 1024 * KIB,
        largest_block_bytes: 300 * KIB,
        smallest_block_bytes: 16 * KIB,
        incarnation,
        shard,
    });
    ShardSettings {
        shard,
        incarnation,
        slab: SlabSettings { base: CHUNK_BYTES, bytes, region_bytes: 1 << 30 },
        log,
        journal: JournalSettings { interval_records_max: 1, ..JournalSettings::with_capacity(1 << 20) },
        drop_memory_entries: 64,
        leases: LeaseSettings {
            leases_per_connection_max: 6,
            blocks_per_lease_max: 1_000,
            bytes_per_connection_max: bytes / 2,
            hold_time: Duration::from_nanos(1_000),
        },
        reserved_bytes_max: bytes,
        lent_bytes_max: bytes / 4,
        write_backs_max: 4,
        waiting_max: 6,
        waiting_for_peers_max: 6,
        blocks_max: 4_096,
        read_failures_in_a_row_max: 16,
        write_failures_in_a_row_max: 16,
        device_guard: DeviceGuardSettings { failed_percent: 0, ..DeviceGuardSettings::default() },
        life_slice_entries: 2,
        prefetch: PrefetchSettings { wishes_max: 12, active_max: 4, reads_max: 2, bytes_max: bytes / 4 },
        namespace_rate: None,
        retention: Retention::Weigh,
        audit_interval: None,
    }
}

pub fn digest(namespace: u8) -> NamespaceDigest {
    NamespaceDigest([namespace; 32])
}

/// Key `number` of a namespace. Placement hashes collide on purpose.
pub fn key(number: u8) -> Key {
    let block = BlockHash([number; 32]);
    let hash = KeyHash(u64::from(number % 11) << 60 | u64::from(number % 3));
    Key { index: 0, namespace: 0, group: GroupId(u16::from(number % 2)), block, hash }
}

pub fn keys(numbers: &[u8]) -> Vec<Key> {
    numbers.iter().zip(0..).map(|(&number, index)| Key { index, ..key(number) }).collect()
}

pub fn holder(token: u128, instance: u64, connection: u64) -> Holder {
    let (token, instance) = (LeaseToken(token), InstanceId(instance));
    Holder { token, instance, connection: ConnectionId(connection) }
}

fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

fn stamp(value: u64, page: u64) -> u64 {
    mix(value << 20 | page)
}

fn checksum(pages: &[u64], payload_bytes: u64) -> u64 {
    pages.iter().fold(payload_bytes, |sum, page| mix(sum ^ page))
}

pub fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE)
}

pub fn overlap(left: &Range<u64>, right: &Range<u64>) -> bool {
    left.start < right.end && right.start < left.end
}

impl Flight {
    pub fn arena_range(&self) -> Range<u64> {
        self.order.arena_offset..self.order.arena_offset + padded(self.order.payload_bytes)
    }

    fn file_range(&self) -> Range<u64> {
        self.order.file_offset..self.order.file_offset + padded(self.order.payload_bytes)
    }
}

impl Rig {
    pub fn new(settings: ShardSettings) -> Rig {
        let arena_base = settings.slab.base;
        let arena = vec![GARBAGE; (settings.slab.bytes / PAGE) as usize];
        let file = vec![GARBAGE; (settings.log.map_or(0, |log| log.bytes) / PAGE) as usize];
        let shard = Shard::new(settings).expect("the settings of tests fit");
        Rig {
            shard,
            now: Moment(0),
            flights: Vec::new(),
            tables: Vec::new(),
            answers: BTreeMap::new(),
            flips: 0,
            incarnation: Incarnation([7; 16]),
            writers: BTreeMap::new(),
            arena,
            arena_base,
            file,
            tags: 0,
        }
    }

    pub fn small() -> Rig {
        Rig::new(settings(2, 4 * 1024 * KIB))
    }

    /// Gives a command and keeps what is answered.
    pub fn submit(&mut self, command: Command) -> Tag {
        self.tags += 1;
        if let Command::BeginLife(incarnation) = command {
            self.incarnation = incarnation;
        }
        let tag = Tag { origin: ShardIndex(3), number: self.tags };
        self.shard.execute(tag, command, self.now);
        self.collect();
        tag
    }

    pub fn collect(&mut self) {
        while let Some(reply) = self.shard.poll_reply() {
            assert_eq!(reply.incarnation, self.incarnation);
            self.answers.entry(reply.tag).or_default().push(reply.outcome);
        }
    }

    /// What has been answered under a tag since it was last asked for.
    pub fn take(&mut self, tag: Tag) -> Vec<Outcome> {
        self.answers.remove(&tag).unwrap_or_default()
    }

    /// Whether a command that is answered in parts has been answered whole.
    pub fn answered(&self, tag: Tag) -> bool {
        let last = self.answers.get(&tag).and_then(|answers| answers.last());
        matches!(last, Some(Outcome::Blocks { done: true, .. }))
    }

    /// Gives a command that is answered at once, and only once.
    pub fn call(&mut self, command: Command) -> Outcome {
        let tag = self.submit(command);
        self.outcome(tag)
    }

    /// The answer of a command that was answered at once, and only once.
    pub fn outcome(&mut self, tag: Tag) -> Outcome {
        let mut outcomes = self.take(tag);
        assert_eq!(outcomes.len(), 1, "one answer, at once: {outcomes:?}");
        outcomes.remove(0)
    }

    /// Tells the shard to serve life `number`.
    pub fn begin_life(&mut self, number: u8) -> Tag {
        self.submit(Command::BeginLife(Incarnation([number; 16])))
    }

    pub fn step(&mut self) {
        self.shard.step();
        self.collect();
    }

    pub fn counters(&self) -> Counters {
        self.shard.figures().counters
    }

    fn arena_pages(&self, offset: u64, bytes: u64) -> Range<usize> {
        let first = ((offset - self.arena_base) / PAGE) as usize;
        first..first + (padded(bytes) / PAGE) as usize
    }

    fn file_pages(&self, offset: u64, bytes: u64) -> Range<usize> {
        let first = ((offset - FILE_BASE) / PAGE) as usize;
        first..first + (padded(bytes) / PAGE) as usize
    }

    /// An engine writes a value into its slot.
    pub fn fill(&mut self, offset: u64, bytes: u64, value: u64) {
        let pages = self.arena_pages(offset, bytes);
        for (page, word) in self.arena[pages].iter_mut().enumerate() {
            *word = stamp(value, page as u64);
        }
    }

    /// The checksum of what lies in the arena, as the device would give it.
    pub fn sum(&self, offset: u64, bytes: u64) -> u64 {
        checksum(&self.arena[self.arena_pages(offset, bytes)], bytes)
    }

    /// The records of the journal from `next` on.
    pub fn history_from(&self, next: Sequence) -> Vec<(NamespaceDigest, Record)> {
        let journal = &self.shard.journal;
        let mut interval = Interval::new(journal.settings());
        let mut records = Vec::new();
        let mut through = Sequence(next.0 - 1);
        while through < journal.head() {
            journal.read(through, &mut interval).expect("nothing was dropped");
            let [record] = interval.records() else { panic!("tests read one record at a time") };
            records.push((*self.shard.namespaces.digest(record.key.namespace), *record));
            through = interval.through();
        }
        records
    }

    pub fn holds(&self, offset: u64, bytes: u64, value: u64) -> bool {
        let pages = &self.arena[self.arena_pages(offset, bytes)];
        pages.iter().enumerate().all(|(page, word)| *word == stamp(value, page as u64))
    }

    /// Whether a value lies at a place of the file.
    pub fn file_holds(&self, offset: u64, bytes: u64, value: u64) -> bool {
        let pages = &self.file[self.file_pages(offset, bytes)];
        pages.iter().enumerate().all(|(page, word)| *word == stamp(value, page as u64))
    }

    /// Takes the next device operation, as the device does when it has room.
    pub fn start_one(&mut self) -> bool {
        self.shard.hear(self.now);
        let Some(order) = self.shard.poll_order() else {
            self.collect();
            return false;
        };
        self.collect();
        assert!(order.arena_offset.is_multiple_of(PAGE) && order.file_offset.is_multiple_of(PAGE));
        let mut flight = Flight { order, given: 0 };
        let arena_pages = self.arena_pages(order.arena_offset, order.payload_bytes);
        let file_pages = self.file_pages(order.file_offset, order.payload_bytes);
        for other in &self.flights {
            let both_read = order.kind == OrderKind::Read && other.order.kind == OrderKind::Read;
            let both_write = order.kind == OrderKind::Write && other.order.kind == OrderKind::Write;
            let same_memory = overlap(&flight.arena_range(), &other.arena_range());
            let same_place = overlap(&flight.file_range(), &other.file_range());
            assert!(!same_memory || both_write, "a slot is read into while the device uses it");
            assert!(!same_place || both_read, "a place is written while the device uses it");
        }
        for table in &self.tables {
            let range = table.offset..table.offset + table.bytes.len() as u64;
            assert!(!overlap(&flight.file_range(), &range), "a table is where a block is");
        }
        match order.kind {
            OrderKind::Read => self.arena[arena_pages].fill(GARBAGE),
            OrderKind::Write => {
                flight.given = checksum(&self.arena[arena_pages], order.payload_bytes);
                assert!(
                    order.checksum.is_none_or(|known| known == flight.given),
                    "a known checksum is right"
                );
                self.file[file_pages].fill(GARBAGE);
                self.writers.insert(order.file_offset, self.incarnation);
            }
        }
        self.flights.push(flight);
        true
    }

    pub fn start_all(&mut self) {
        while self.start_one() {}
    }

    /// One device operation completes.
    pub fn complete(&mut self, index: usize, fault: Fault) {
        let Flight { order, given } = self.flights.remove(index);
        let arena_pages = self.arena_pages(order.arena_offset, order.payload_bytes);
        let file_pages = self.file_pages(order.file_offset, order.payload_bytes);
        let done = match fault {
            Fault::None | Fault::Flipped => arena_pages.len(),
            Fault::Short => arena_pages.len() / 2,
            Fault::Error => 0,
        };
        let flipped = file_pages.start;
        if fault == Fault::Flipped {
            self.flips += 1;
        }
        let sum = match order.kind {
            OrderKind::Read => {
                if fault == Fault::Flipped {
                    self.file[flipped] ^= 1 << 17;
                }
                let pages = self.file[file_pages][..done].to_vec();
                self.arena[arena_pages.clone()][..done].copy_from_slice(&pages);
                checksum(&self.arena[arena_pages], order.payload_bytes)
            }
            OrderKind::Write => {
                let pages = self.arena[arena_pages].to_vec();
                assert_eq!(
                    checksum(&pages, order.payload_bytes),
                    given,
                    "bytes stay as they are while the device reads them"
                );
                self.file[file_pages][..done].copy_from_slice(&pages[..done]);
                if fault == Fault::Flipped {
                    self.file[flipped] ^= 1 << 17;
                }
                given
            }
        };
        let outcome = match fault {
            Fault::None | Fault::Flipped => Ok(sum),
            Fault::Error | Fault::Short => Err(EIO),
        };
        self.shard.hear(self.now);
        self.shard.on_transfer_done(order.id, outcome);
        self.shard.on_device_seen();
        self.collect();
    }

    pub fn start_table(&mut self) -> bool {
        let Some(table) = self.shard.poll_table() else { return false };
        let said = decode_table(&table.bytes).expect("a table is one");
        for block in &said.blocks {
            assert_eq!(said.incarnation, self.writers[&block.offset], "a table is of one life");
            assert!(block.sequence > Sequence(0), "a table names residences");
        }
        let range = table.offset..table.offset + table.bytes.len() as u64;
        for flight in &self.flights {
            assert!(!overlap(&flight.file_range(), &range), "a table is where a block is");
        }
        let pages = self.file_pages(table.offset, table.bytes.len() as u64);
        self.file[pages].fill(GARBAGE);
        self.tables.push(table);
        true
    }

    pub fn complete_table(&mut self, index: usize, written: bool) {
        let table = self.tables.remove(index);
        self.shard.on_table_written(table.segment, written);
        self.collect();
    }

    /// Lets the device work, without faults, until nothing is left to do.
    pub fn settle(&mut self) {
        loop {
            while self.start_table() {}
            self.start_all();
            if !self.tables.is_empty() {
                self.complete_table(0, true);
            } else if !self.flights.is_empty() {
                self.complete(0, Fault::None);
            } else if self.shard.has_work() {
                self.step();
            } else {
                return;
            }
        }
    }
}

/// Commands in the shortest form that direct tests need; namespace 0 and connections by number.
impl Rig {
    pub fn reserve_many(&mut self, connection: u64, race: bool, wanted: &[(u8, u64)]) -> Vec<SlotRecord> {
        let keys = wanted.iter().zip(0..).map(|(&(number, bytes), index)| {
            let key = Key { index, ..key(number) };
            (key, bytes)
        });
        let command = Command::Reserve {
            connection: ConnectionId(connection),
            namespace: digest(0),
            race,
            keys: keys.collect(),
        };
        let Outcome::Slots(slots) = self.call(command) else { panic!("not slots") };
        assert!(slots.iter().zip(0..).all(|((index, _), wanted)| *index == wanted));
        slots.into_iter().map(|(_, slot)| slot).collect()
    }

    pub fn reserve(&mut self, connection: u64, number: u8, bytes: u64) -> SlotRecord {
        self.reserve_many(connection, false, &[(number, bytes)])[0]
    }

    pub fn commit(&mut self, connection: u64, reservation: u64) -> CommitOutcome {
        let reservations = vec![(0, ReservationId(reservation))];
        let command = Command::Commit { connection: ConnectionId(connection), reservations };
        let Outcome::Committed(outcomes) = self.call(command) else { panic!("not outcomes") };
        outcomes[0].1
    }

    pub fn abort(&mut self, connection: u64, reservation: u64) -> CommitOutcome {
        let reservations = vec![(0, ReservationId(reservation))];
        let command = Command::Abort { connection: ConnectionId(connection), reservations };
        let Outcome::Committed(outcomes) = self.call(command) else { panic!("not outcomes") };
        outcomes[0].1
    }

    /// Saves a value whole; its number is that of the key unless said otherwise.
    pub fn save(&mut self, number: u8, bytes: u64) {
        self.save_value(number, bytes, u64::from(number));
    }

    pub fn save_value(&mut self, number: u8, bytes: u64, value: u64) {
        let slot = self.reserve(1, number, bytes);
        assert_eq!((slot.outcome, slot.bytes), (0, bytes), "a slot for key {number}");
        self.fill(slot.offset, bytes, value);
        assert_eq!(self.commit(1, slot.reservation), CommitOutcome::Committed);
    }

    /// Saves a block and leaves it on SSD alone.
    pub fn save_to_ssd(&mut self, number: u8, bytes: u64) {
        self.save(number, bytes);
        self.settle();
        assert_eq!(self.evict(number, DRAM), EvictOutcome::Evicted);
        assert_eq!(self.place(number), Place::Ssd);
    }

    pub fn places(&mut self, numbers: &[u8], hold: Option<Holder>) -> Vec<Place> {
        let command = Command::Query { namespaces: vec![digest(0)], keys: keys(numbers), hold };
        let Outcome::Places(Places { found: places, .. }) = self.call(command) else { panic!("not places") };
        places.into_iter().map(|(_, place)| place).collect()
    }

    pub fn place(&mut self, number: u8) -> Place {
        self.places(&[number], None)[0]
    }

    pub fn submit_acquire(&mut self, holder: Holder, numbers: &[u8]) -> Tag {
        self.submit_acquire_until(holder, numbers, FOREVER)
    }

    pub fn submit_acquire_until(&mut self, holder: Holder, numbers: &[u8], until: Moment) -> Tag {
        self.submit(Command::Acquire { holder, namespaces: vec![digest(0)], keys: keys(numbers), until })
    }

    /// Acquires what can be answered at once, in the order of the request.
    pub fn acquire(&mut self, holder: Holder, numbers: &[u8]) -> Vec<BlockRecord> {
        let tag = self.submit_acquire(holder, numbers);
        let (blocks, done) = self.blocks(tag);
        assert!(done, "an Acquire without reads is answered at once");
        blocks
    }

    /// What an Acquire has been answered since it was last asked for, by position, and whether it is done.
    pub fn blocks(&mut self, tag: Tag) -> (Vec<BlockRecord>, bool) {
        let mut all = Vec::new();
        let mut finished = false;
        for outcome in self.take(tag) {
            let Outcome::Blocks { blocks, done } = outcome else { panic!("not blocks: {outcome:?}") };
            assert!(!finished, "nothing follows the last answer");
            all.extend(blocks);
            finished = done;
        }
        all.sort_by_key(|block| block.index);
        (all, finished)
    }

    /// Says that keys will be acquired by `until`; what is done about each.
    pub fn prefetch(&mut self, connection: u64, numbers: &[u8], until: Moment) -> Vec<PrefetchOutcome> {
        let (connection, namespaces) = (ConnectionId(connection), vec![digest(0)]);
        let command = Command::Prefetch { connection, namespaces, keys: keys(numbers), until };
        let Outcome::Prefetched(outcomes) = self.call(command) else { panic!("not outcomes") };
        assert!(outcomes.iter().zip(0..).all(|((index, _), wanted)| *index == wanted));
        outcomes.into_iter().map(|(_, outcome)| outcome).collect()
    }

    /// Answers all that is sought, a peer may have it or nobody does; how much that was.
    pub fn answer_seeks(&mut self, bytes: Option<u64>) -> usize {
        let mut sought = 0;
        while let Some(seek) = self.shard.poll_seek() {
            self.shard.on_sought(seek, bytes);
            sought += 1;
        }
        sought
    }

    /// The fetch that is wanted next.
    pub fn fetch_order(&mut self) -> FetchOrder {
        match self.shard.poll_fetch() {
            Some(FetchEffect::Fetch(order)) => order,
            other => panic!("no fetch but {other:?}"),
        }
    }

    pub fn release(&mut self, token: u128, connection: u64) -> Outcome {
        self.call(Command::Release { token: LeaseToken(token), connection: ConnectionId(connection) })
    }

    pub fn evict(&mut self, number: u8, media: u8) -> EvictOutcome {
        let media = Media::from_mask(media);
        let Outcome::Evicted(outcomes) =
            self.call(Command::Evict { namespace: digest(0), media, keys: vec![key(number)] })
        else {
            panic!("not outcomes")
        };
        outcomes[0].1
    }

    pub fn gone(&mut self, connection: u64) {
        let outcome = self.call(Command::Gone { connection: ConnectionId(connection) });
        assert!(matches!(outcome, Outcome::Done));
    }

    pub fn list(&mut self, namespace: u8, media: u8, limit: u32) -> Vec<Resident> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let media = Media::from_mask(media);
            let command = Command::List { namespace: digest(namespace), media, after, limit };
            let Outcome::Listed { residents, next } = self.call(command) else { panic!("not a list") };
            assert!(residents.len() <= 2 * limit as usize, "a page keeps its limit");
            all.extend(residents);
            assert!(next.is_none() || next > after, "pages go on");
            after = next;
            if after.is_none() {
                return all;
            }
        }
    }

    /// Every residence with its namespace, as the tables have them.
    pub fn residents(&self) -> Vec<(u8, Resident)> {
        let all = self.shard.residents.after(None).map(|residence| {
            let namespace = self.shard.namespaces.digest(residence.key.namespace).0[0];
            let StateKey { group, block, .. } = residence.key;
            let (medium, sequence) = (residence.medium, residence.sequence);
            (namespace, Resident { group, block, medium, bytes: u64::from(residence.bytes), sequence })
        });
        all.collect()
    }

    /// The journal of the present life, whole.
    pub fn history(&self) -> Vec<Record> {
        let journal = &self.shard.journal;
        assert_eq!(journal.oldest(), Sequence(1), "the ring of tests is large enough");
        let (mut interval, mut history) = (Interval::new(journal.settings()), Vec::new());
        while interval.through() < journal.head() {
            journal.read(interval.through(), &mut interval).expect("nothing was dropped");
            let [record] = interval.records() else { panic!("tests read one record at a time") };
            history.push(*record);
        }
        history
    }
}
