//! The SSD is left alone while it fails or is too slow: what is asked of it then, and by whom it is tried again. A model
//! of its own, which keeps whole histories and counts them anew, says what may go out.

use std::collections::BTreeMap;
use std::time::Duration;

use orbitkv_wire::engine::answers::{BlockOutcome, Place, SlotOutcome};
use orbitkv_wire::identity::{Medium, NamespaceDigest};
use orbitkv_wire::payload::{ExactResidence, FailureCause};

use super::super::recover::FillPurpose;
use super::super::save::Eviction;
use super::super::{
    Command, DeviceGuardSettings, FetchEffect, FetchOrder, GrantBatch, GrantOutcome, OrderKind, Outcome,
    PinEvent, ShardSettings, Tag, TransferId,
};
use super::rig::{DRAM, Fault, KIB, Rig, SSD, holder, key, settings};
use crate::resilience::breaker::{Change, Phase};
use crate::time::Moment;

const BLOCK: u64 = 16 * KIB;
const PAUSE: Duration = Duration::from_secs(1);
const BUDGET: Duration = Duration::from_secs(2);
const WINDOW: usize = 4;

/// A shard whose device is left alone once two of the last four operations failed, and is never turned off.
fn guarded() -> ShardSettings {
    let device_guard = DeviceGuardSettings {
        failed_percent: 50,
        window_calls: WINDOW as u32,
        open_for: PAUSE,
        read_budget: BUDGET,
    };
    let never = u32::MAX;
    ShardSettings {
        device_guard,
        read_failures_in_a_row_max: never,
        write_failures_in_a_row_max: never,
        ..settings(2, 4 * 1024 * KIB)
    }
}

/// Blocks 0..8 on SSD alone, and the device left alone because the reads of two others failed.
fn left_alone(peers: bool) -> Rig {
    let mut rig = Rig::new(guarded());
    (0..8).for_each(|number| rig.save_to_ssd(number, BLOCK));
    [100, 101].into_iter().for_each(|number| rig.save_to_ssd(number, BLOCK));
    for number in [100, 101] {
        let tag = rig.submit_acquire(holder(1, 1, 1), &[number]);
        rig.start_all();
        rig.complete(0, Fault::Error);
        assert_eq!(outcomes(&mut rig, tag), [BlockOutcome::DeviceError as u8]);
    }
    assert_eq!(phase(&rig), Phase::Open);
    assert_eq!(rig.shard.poll_device_change(), Some(Change::Opened { until: Moment(0) + PAUSE }));
    rig.shard.seek_peers(peers);
    rig
}

fn phase(rig: &Rig) -> Phase {
    rig.shard.device_standing().phase
}

fn outcomes(rig: &mut Rig, tag: Tag) -> Vec<u8> {
    rig.collect();
    let (blocks, done) = rig.blocks(tag);
    assert!(done, "all is decided");
    blocks.iter().map(|block| block.outcome).collect()
}

fn acquire(rig: &mut Rig, token: u128, numbers: &[u8]) -> Tag {
    rig.submit_acquire(holder(token, 1, 1), numbers)
}

fn pass(rig: &mut Rig, time: Duration) {
    rig.now = rig.now + time;
    rig.shard.on_time(rig.now);
    rig.shard.on_device_seen();
    rig.collect();
}

/// Only one operation goes out, of this kind.
fn probe(rig: &mut Rig, kind: OrderKind) {
    assert!(rig.start_one(), "the probe goes out");
    assert_eq!(rig.flights.last().expect("just begun").order.kind, kind);
    assert!(!rig.start_one(), "alone");
}

#[test]
fn what_is_on_ssd_is_a_miss_at_once_and_one_read_tries_it_after_the_pause() {
    let mut rig = left_alone(false);
    let missing = BlockOutcome::Missing as u8;
    let tag = acquire(&mut rig, 1, &[0, 1]);
    assert_eq!(outcomes(&mut rig, tag), [missing; 2]);
    assert!(!rig.start_one());
    assert_eq!(rig.place(0), Place::Ssd, "it is there all the same");
    pass(&mut rig, PAUSE - Duration::from_nanos(1));
    let tag = acquire(&mut rig, 2, &[0]);
    assert_eq!(outcomes(&mut rig, tag), [missing]);
    pass(&mut rig, Duration::from_nanos(1));
    assert_eq!(phase(&rig), Phase::HalfOpen);
    let tried = acquire(&mut rig, 3, &[0, 1]);
    let other = acquire(&mut rig, 4, &[2]);
    assert_eq!(outcomes(&mut rig, other), [missing], "the probe is alone");
    probe(&mut rig, OrderKind::Read);
    rig.complete(0, Fault::None);
    let mut of_tried = outcomes(&mut rig, tried);
    of_tried.sort_unstable();
    assert_eq!(of_tried, [BlockOutcome::Ready as u8, missing]);
    assert_eq!((phase(&rig), rig.shard.poll_device_change()), (Phase::Closed, Some(Change::Closed)));
    let tag = acquire(&mut rig, 5, &[1, 2, 3]);
    rig.start_all();
    assert_eq!(rig.flights.len(), 3, "all as before");
    rig.settle();
    assert_eq!(outcomes(&mut rig, tag), [BlockOutcome::Ready as u8; 3]);
    let standing = rig.shard.device_standing();
    assert_eq!((standing.opens, standing.probes, standing.barred, standing.late_reads), (1, 1, 5, 0));
}

#[test]
fn a_probe_that_fails_is_another_pause_and_one_nobody_wants_any_more_makes_room() {
    let mut rig = left_alone(false);
    pass(&mut rig, PAUSE);
    let given_up = acquire(&mut rig, 1, &[0]);
    rig.call(Command::Cancel { tag: given_up, deadline: true });
    let tag = acquire(&mut rig, 2, &[1]);
    probe(&mut rig, OrderKind::Read);
    rig.complete(0, Fault::Error);
    assert_eq!(outcomes(&mut rig, tag), [BlockOutcome::DeviceError as u8]);
    assert_eq!((phase(&rig), rig.shard.device_standing().opens), (Phase::Open, 2));
    let tag = acquire(&mut rig, 3, &[0]);
    assert_eq!(outcomes(&mut rig, tag), [BlockOutcome::Missing as u8]);
}

#[test]
fn reads_that_take_too_long_open_it_and_a_probe_that_hangs_has_no_second() {
    let mut rig = Rig::new(guarded());
    (0..8).for_each(|number| rig.save_to_ssd(number, BLOCK));
    let slow = acquire(&mut rig, 1, &[0, 1]);
    rig.start_all();
    let queued = acquire(&mut rig, 2, &[2]);
    assert_eq!(rig.shard.next_deadline(), Some(rig.now + BUDGET), "the core wakes though nothing completes");
    pass(&mut rig, BUDGET - Duration::from_nanos(1));
    assert_eq!(phase(&rig), Phase::Closed);
    pass(&mut rig, Duration::from_nanos(1));
    assert_eq!((phase(&rig), rig.shard.device_standing().late_reads), (Phase::Open, 2));
    assert_eq!(outcomes(&mut rig, queued), [BlockOutcome::Missing as u8], "nothing waits for it");
    assert_eq!(rig.shard.next_deadline(), None, "nothing else is to be judged");
    // What the device had is awaited all the same: it writes there.
    pass(&mut rig, PAUSE);
    let tried = acquire(&mut rig, 3, &[2]);
    probe(&mut rig, OrderKind::Read);
    pass(&mut rig, BUDGET);
    assert_eq!((phase(&rig), rig.shard.device_standing().opens), (Phase::Open, 2));
    for _ in 0..5 {
        pass(&mut rig, PAUSE);
        let tag = acquire(&mut rig, 4, &[3]);
        assert_eq!(outcomes(&mut rig, tag), [BlockOutcome::Missing as u8], "the last probe is still out");
    }
    rig.complete(2, Fault::None);
    assert_eq!(outcomes(&mut rig, tried), [BlockOutcome::Ready as u8], "late, and right");
    assert_eq!(phase(&rig), Phase::HalfOpen, "what comes too late closes nothing");
    let tried = acquire(&mut rig, 5, &[3]);
    probe(&mut rig, OrderKind::Read);
    rig.complete(2, Fault::None);
    assert_eq!((outcomes(&mut rig, tried).len(), phase(&rig)), (1, Phase::Closed));
    rig.complete(0, Fault::None);
    rig.complete(0, Fault::None);
    assert_eq!(outcomes(&mut rig, slow), [BlockOutcome::Ready as u8; 2]);
}

#[test]
fn write_backs_wait_and_the_first_tries_it_where_nobody_reads() {
    let mut rig = left_alone(false);
    for number in 10..14 {
        rig.save(number, BLOCK);
    }
    let sync = rig.submit(Command::Sync);
    assert!(!rig.start_one() && !rig.shard.has_work(), "nothing is written, and nothing spins");
    assert_eq!(rig.shard.next_deadline(), Some(rig.now + 2 * PAUSE));
    pass(&mut rig, 2 * PAUSE - Duration::from_nanos(1));
    assert!(!rig.start_one(), "a read would go first");
    pass(&mut rig, Duration::from_nanos(1));
    // Four failures that are the device's: the block is tried again, though three would do for a bad place.
    for _ in 0..4 {
        probe(&mut rig, OrderKind::Write);
        rig.complete(0, Fault::Error);
        assert!(!rig.start_one());
        pass(&mut rig, 2 * PAUSE);
    }
    assert_eq!(rig.counters().write_backs_given_up, 0);
    probe(&mut rig, OrderKind::Write);
    rig.complete(0, Fault::None);
    assert_eq!(phase(&rig), Phase::Closed);
    assert!(rig.take(sync).is_empty(), "three are not written yet");
    rig.settle();
    assert!(matches!(rig.take(sync)[..], [Outcome::Synced(_)]));
    assert_eq!((rig.shard.figures().write_backs_queued, rig.list(0, SSD, 100).len()), (0, 12));
}

#[test]
fn saves_are_not_accepted_rather_than_accepted_and_lost() {
    let mut rig = left_alone(false);
    let large = 256 * KIB;
    let mut accepted = Vec::new();
    let refused = loop {
        let number = 10 + accepted.len() as u8;
        let slot = rig.reserve(1, number, large);
        if slot.outcome != 0 {
            break slot.outcome;
        }
        rig.fill(slot.offset, large, u64::from(number));
        rig.commit(1, slot.reservation);
        accepted.push(number);
    };
    assert_eq!((refused, accepted.len()), (SlotOutcome::Busy as u8, 16), "all of DRAM waits to be written");
    assert!(accepted.iter().all(|&number| rig.place(number) == Place::Dram));
    pass(&mut rig, 2 * PAUSE);
    probe(&mut rig, OrderKind::Write);
    rig.complete(0, Fault::None);
    rig.settle();
    assert!(
        accepted.iter().all(|&number| rig.place(number) != Place::None),
        "each came to SSD or is in DRAM"
    );
    assert_eq!(rig.reserve(1, 99, large).outcome, 0);
}

fn fetched(rig: &mut Rig, bytes: Option<u64>) -> Option<FetchOrder> {
    let seek = rig.shard.poll_seek().expect("peers are asked");
    rig.shard.on_sought(seek, bytes);
    match rig.shard.poll_fetch() {
        Some(FetchEffect::Fetch(order)) => Some(order),
        None => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_peer_is_the_next_route_and_brings_the_same_bytes_or_none() {
    let mut rig = left_alone(true);
    // Nobody else has it.
    let tag = acquire(&mut rig, 1, &[0]);
    assert!(fetched(&mut rig, None).is_none());
    assert_eq!(outcomes(&mut rig, tag), [BlockOutcome::Missing as u8]);
    // A block of that name and of another length is another one.
    let tag = acquire(&mut rig, 2, &[0]);
    assert!(fetched(&mut rig, Some(2 * BLOCK)).is_none());
    assert_eq!(outcomes(&mut rig, tag), [BlockOutcome::Missing as u8]);
    // So is one with other bytes.
    let tag = acquire(&mut rig, 3, &[0]);
    let order = fetched(&mut rig, Some(BLOCK)).expect("a fetch");
    rig.fill(order.arena_offset, BLOCK, 77);
    let sum = rig.sum(order.arena_offset, BLOCK);
    rig.shard.on_fetched(order.copy, Medium::Dram, sum);
    assert_eq!(outcomes(&mut rig, tag), [BlockOutcome::Missing as u8]);
    assert_eq!((rig.place(0), rig.counters().checksum_failures), (Place::Ssd, 0));
    // The same is shown, beside what is on SSD.
    let first = acquire(&mut rig, 4, &[0]);
    let order = fetched(&mut rig, Some(BLOCK)).expect("a fetch");
    let second = acquire(&mut rig, 5, &[0]);
    assert_eq!(rig.reserve(2, 0, BLOCK).outcome, SlotOutcome::Present as u8, "it is on SSD");
    rig.fill(order.arena_offset, BLOCK, 0);
    let sum = rig.sum(order.arena_offset, BLOCK);
    rig.shard.on_fetched(order.copy, Medium::Dram, sum);
    for tag in [first, second] {
        rig.collect();
        let (blocks, done) = rig.blocks(tag);
        assert!(done && rig.holds(blocks[0].offset, BLOCK, 0));
        assert_eq!(blocks[0].source, Place::PeerDram as u8);
    }
    assert_eq!(rig.list(0, DRAM | SSD, 100).iter().filter(|one| one.block == key(0).block).count(), 2);
    for token in [4, 5] {
        rig.release(token, 1);
    }
    assert_eq!(rig.evict(0, DRAM), orbitkv_wire::engine::answers::EvictOutcome::Evicted);
    pass(&mut rig, PAUSE);
    let tag = acquire(&mut rig, 6, &[0]);
    rig.settle();
    let (blocks, _) = rig.blocks(tag);
    assert!(rig.holds(blocks[0].offset, BLOCK, 0), "the residence on SSD is as it was");
}

#[test]
fn reads_that_wait_when_it_opens_go_to_peers_too() {
    let mut rig = Rig::new(guarded());
    (0..8).for_each(|number| rig.save_to_ssd(number, BLOCK));
    rig.shard.seek_peers(true);
    let out = acquire(&mut rig, 1, &[0, 1]);
    rig.start_all();
    let waits = acquire(&mut rig, 2, &[2, 3]);
    rig.complete(0, Fault::Error);
    assert_eq!(phase(&rig), Phase::Closed);
    rig.complete(0, Fault::Error);
    assert_eq!(outcomes(&mut rig, out), [BlockOutcome::DeviceError as u8; 2]);
    assert!(!rig.start_one() && rig.blocks(waits).0.is_empty());
    let order = fetched(&mut rig, Some(BLOCK)).expect("a fetch");
    assert!(fetched(&mut rig, None).is_none());
    rig.fill(order.arena_offset, BLOCK, u64::from(order.key.block.0[0]));
    let sum = rig.sum(order.arena_offset, BLOCK);
    rig.shard.on_fetched(order.copy, Medium::Ssd, sum);
    let mut told = outcomes(&mut rig, waits);
    told.sort_unstable();
    assert_eq!(told, [BlockOutcome::Ready as u8, BlockOutcome::Missing as u8]);
    assert_eq!(rig.shard.figures().allocated_bytes, BLOCK, "slots of reads that never began are free");
}

fn residence(rig: &mut Rig, number: u8) -> ExactResidence {
    let listed = rig.list(0, SSD, 100).into_iter().find(|one| one.block == key(number).block);
    let (group, block) = (key(number).group, key(number).block);
    let sequence = listed.expect("it is on SSD").sequence;
    ExactResidence { namespace: NamespaceDigest([0; 32]), group, block, medium: Medium::Ssd, sequence }
}

fn grant(rig: &mut Rig, number: u8) -> GrantOutcome {
    let wanted = residence(rig, number);
    rig.shard.grant(&wanted, key(number).hash, 1 << 30, &mut GrantBatch::default())
}

#[test]
fn a_peer_hears_busy_and_when_to_come_back() {
    let mut rig = left_alone(false);
    pass(&mut rig, PAUSE / 4);
    assert_eq!(grant(&mut rig, 0), GrantOutcome::DeviceRests(PAUSE * 3 / 4));
    pass(&mut rig, PAUSE * 3 / 4);
    let GrantOutcome::Pinned { pin, .. } = grant(&mut rig, 0) else { panic!("the probe") };
    assert_eq!(grant(&mut rig, 1), GrantOutcome::DeviceRests(Duration::ZERO), "one at a time");
    probe(&mut rig, OrderKind::Read);
    rig.complete(0, Fault::None);
    assert!(matches!(rig.shard.poll_pin(), Some(PinEvent::Ready { .. })));
    rig.shard.unpin_grant(pin);
    assert_eq!(phase(&rig), Phase::Closed);
}

#[test]
fn a_stage_that_waits_when_it_opens_fails_and_leaves_nothing() {
    let mut rig = Rig::new(guarded());
    (0..8).for_each(|number| rig.save_to_ssd(number, BLOCK));
    acquire(&mut rig, 1, &[0, 1]);
    rig.start_all();
    let GrantOutcome::Pinned { pin, .. } = grant(&mut rig, 2) else { panic!("it is staged") };
    rig.complete(0, Fault::Error);
    rig.complete(0, Fault::Error);
    assert_eq!(rig.shard.poll_pin(), Some(PinEvent::Failed { pin, cause: FailureCause::DeviceError }));
    rig.shard.unpin_grant(pin);
    assert_eq!((rig.shard.figures().allocated_bytes, rig.place(2)), (0, Place::Ssd));
}

#[test]
fn what_the_log_wants_again_may_be_lost_by_the_read_that_opens_it() {
    let mut rig = Rig::new(guarded());
    (0..8).for_each(|number| rig.save_to_ssd(number, BLOCK));
    let failed = acquire(&mut rig, 1, &[1]);
    rig.start_all();
    rig.complete(0, Fault::Error);
    assert_eq!(outcomes(&mut rig, failed), [BlockOutcome::DeviceError as u8]);
    let GrantOutcome::Pinned { pin, .. } = grant(&mut rig, 0) else { panic!("it is staged") };
    assert!(rig.start_one());
    // The log gives its segment up: it reads it once more, to write it again.
    let ids = rig.shard.known(&[NamespaceDigest([0; 32])]);
    let id = rig.shard.find(key(0).hash, rig.shard.state_key(&ids, &key(0))).expect("it is there");
    let (placement, _) = rig.shard.residents.entry(id).ssd.residence().expect("on SSD");
    assert!(rig.shard.begin_fill(id, placement, FillPurpose::Reinsert, &mut Eviction::Allowed).is_ok());
    rig.complete(0, Fault::Error);
    assert_eq!(phase(&rig), Phase::Open);
    assert_eq!(rig.shard.poll_pin(), Some(PinEvent::Failed { pin, cause: FailureCause::DeviceError }));
    rig.shard.unpin_grant(pin);
    assert_eq!((rig.place(0), rig.shard.figures().allocated_bytes), (Place::None, 0));
}

#[test]
fn what_is_fetched_from_a_peer_is_lent_to_none() {
    // Both would wait for each other, were the other one left alone, too.
    let mut rig = left_alone(true);
    let tag = acquire(&mut rig, 1, &[0]);
    let order = fetched(&mut rig, Some(BLOCK)).expect("a fetch");
    assert_eq!(grant(&mut rig, 0), GrantOutcome::DeviceRests(PAUSE));
    // The device may be asked again: it is read there, beside the fetch.
    pass(&mut rig, PAUSE);
    let GrantOutcome::Pinned { pin, .. } = grant(&mut rig, 0) else { panic!("the probe") };
    probe(&mut rig, OrderKind::Read);
    rig.complete(0, Fault::None);
    assert!(matches!(rig.shard.poll_pin(), Some(PinEvent::Ready { .. })));
    rig.shard.unpin_grant(pin);
    assert_eq!(phase(&rig), Phase::Closed);
    let GrantOutcome::Pinned { pin, .. } = grant(&mut rig, 0) else { panic!("it is staged") };
    rig.settle();
    assert!(matches!(rig.shard.poll_pin(), Some(PinEvent::Ready { .. })));
    rig.shard.unpin_grant(pin);
    rig.shard.on_fetch_failed(order.copy, BlockOutcome::Missing);
    assert_eq!(outcomes(&mut rig, tag), [BlockOutcome::Missing as u8]);
    assert_eq!((rig.place(0), rig.shard.figures().allocated_bytes), (Place::Ssd, 0));
}

#[test]
fn without_a_share_nothing_is_ever_left_alone() {
    let mut rig = Rig::new(ShardSettings {
        device_guard: DeviceGuardSettings { failed_percent: 0, ..guarded().device_guard },
        ..guarded()
    });
    (0..20).for_each(|number| rig.save_to_ssd(number, BLOCK));
    for number in 0..20 {
        let tag = acquire(&mut rig, 1, &[number]);
        rig.start_all();
        pass(&mut rig, BUDGET);
        rig.complete(0, Fault::Error);
        assert_eq!(outcomes(&mut rig, tag), [BlockOutcome::DeviceError as u8]);
    }
    assert_eq!((phase(&rig), rig.shard.device_standing().opens), (Phase::Closed, 0));
}

/// An operation as the model sees it.
struct Out {
    kind: OrderKind,
    since: Moment,
    /// How many changes there had been when it went out.
    period: u64,
    is_judged: bool,
}

/// The rule in words: half of the last four since the last change open it; it stays so for a pause; then one operation is
/// out at a time until one of them says how the device is.
#[derive(Default)]
struct Model {
    history: Vec<bool>,
    until: Option<Moment>,
    period: u64,
    out: BTreeMap<TransferId, Out>,
    probe: Option<TransferId>,
    opens: u64,
    closes: u64,
}

impl Model {
    fn takes(&self, kind: OrderKind, now: Moment) -> bool {
        match (self.until, kind) {
            (None, _) => true,
            (Some(until), OrderKind::Read) => now >= until && self.probe.is_none(),
            (Some(until), OrderKind::Write) => now >= until + PAUSE && self.probe.is_none(),
        }
    }

    fn begin(&mut self, id: TransferId, kind: OrderKind, now: Moment) {
        assert!(self.takes(kind, now), "{kind:?} goes out at {now:?}, left alone until {:?}", self.until);
        if self.until.is_some() {
            self.probe = Some(id);
        }
        self.out.insert(id, Out { kind, since: now, period: self.period, is_judged: false });
    }

    fn judge(&mut self, period: u64, failed: bool, now: Moment) {
        if period != self.period {
            return;
        }
        let opens = match self.until {
            Some(_) => failed,
            None => {
                self.history.push(failed);
                let last: Vec<_> = self.history.iter().rev().take(WINDOW).collect();
                last.len() == WINDOW && 2 * last.iter().filter(|failed| ***failed).count() >= WINDOW
            }
        };
        if opens {
            self.until = Some(now + PAUSE);
            self.opens += 1;
        } else if self.until.take().is_none() {
            return;
        } else {
            self.closes += 1;
        }
        self.period += 1;
        self.history.clear();
    }

    fn done(&mut self, id: TransferId, failed: bool, now: Moment) {
        let out = self.out.remove(&id).expect("it was out");
        self.probe = self.probe.filter(|probe| *probe != id);
        if !out.is_judged {
            self.judge(out.period, failed, now);
        }
        self.look(now);
    }

    fn look(&mut self, now: Moment) {
        let late: Vec<TransferId> = (self.out.iter())
            .filter(|(_, out)| {
                out.kind == OrderKind::Read && !out.is_judged && now.since(out.since) >= BUDGET
            })
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            let out = self.out.get_mut(&id).expect("just seen");
            out.is_judged = true;
            let period = out.period;
            self.judge(period, true, now);
        }
    }
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

fn start(rig: &mut Rig, model: &mut Model) -> bool {
    let begun = rig.start_one();
    if begun {
        let order = rig.flights.last().expect("just begun").order;
        model.begin(order.id, order.kind, rig.now);
    }
    begun
}

/// One random life; how often it was left alone and used again.
fn live(seed: u64) -> (u64, u64) {
    let (mut rig, mut model, mut dice) = (Rig::new(guarded()), Model::default(), Dice(seed));
    let mut waiting: BTreeMap<Tag, u128> = BTreeMap::new();
    let (mut tokens, mut is_bad) = (0, false);
    for _ in 0..4_000 {
        let number = dice.roll(40) as u8;
        match dice.roll(100) {
            0..20 => {
                let slot = rig.reserve(1, number, BLOCK);
                if slot.outcome == 0 {
                    rig.fill(slot.offset, BLOCK, u64::from(number));
                    rig.commit(1, slot.reservation);
                }
            }
            20..35 => {
                rig.evict(number, DRAM);
            }
            35..60 if waiting.len() < 5 => {
                let is_on_ssd = rig.place(number) == Place::Ssd;
                let admits = model.takes(OrderKind::Read, rig.now);
                tokens += 1;
                let tag = rig.submit_acquire(holder(tokens, 1, 1), &[number]);
                if is_on_ssd && !admits && !waits_already(&rig, number) {
                    assert_eq!(
                        outcomes(&mut rig, tag),
                        [BlockOutcome::Missing as u8],
                        "nothing waits for it"
                    );
                    rig.release(tokens, 1);
                } else if is_on_ssd && model.until.is_none() {
                    start_all(&mut rig, &mut model);
                    assert!(rig.shard.fill_queue.is_empty(), "what may be read is read");
                    waiting.insert(tag, tokens);
                } else {
                    waiting.insert(tag, tokens);
                }
            }
            60..75 => {
                start(&mut rig, &mut model);
            }
            75..95 if !rig.flights.is_empty() => {
                let index = dice.roll(rig.flights.len() as u64) as usize;
                let fails = dice.roll(100) < if is_bad { 80 } else { 5 };
                let id = rig.flights[index].order.id;
                // The shard judges what completes before it looks at what has not.
                rig.complete(index, if fails { Fault::Error } else { Fault::None });
                model.done(id, fails, rig.now);
            }
            95 => is_bad = !is_bad,
            _ => {
                rig.now = rig.now + Duration::from_millis(dice.roll(600));
                rig.shard.on_time(rig.now);
                rig.shard.on_device_seen();
                rig.collect();
                model.look(rig.now);
            }
        }
        let expected = match model.until {
            None => Phase::Closed,
            Some(until) if rig.now < until => Phase::Open,
            Some(_) => Phase::HalfOpen,
        };
        rig.shard.hear(rig.now);
        assert_eq!(phase(&rig), expected);
        let ended: Vec<Tag> = waiting.keys().copied().filter(|tag| rig.answered(*tag)).collect();
        for tag in ended {
            rig.take(tag);
            let token = waiting.remove(&tag).expect("it waited");
            rig.release(token, 1);
        }
    }
    assert_eq!(rig.shard.device_standing().opens, model.opens);
    (model.opens, model.closes)
}

/// Whether the block is on its way already: then it is waited for, whatever has happened since it began.
fn waits_already(rig: &Rig, number: u8) -> bool {
    rig.shard.fills.values().any(|fill| {
        rig.shard.residents.resolve(fill.entry).is_some_and(|id| {
            let entry = rig.shard.residents.entry(id);
            entry.key.block == key(number).block && entry.key.group == key(number).group
        })
    })
}

fn start_all(rig: &mut Rig, model: &mut Model) {
    while start(rig, model) {}
}

#[test]
fn what_goes_out_is_what_the_model_lets_out() {
    let totals = (1..=24).map(live).fold((0, 0), |(opens, closes), (o, c)| (opens + o, closes + c));
    assert!(totals.0 > 100 && totals.1 > 40, "it was left alone and came back often: {totals:?}");
}
