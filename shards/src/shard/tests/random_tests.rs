//! Random lives of a tiny shard, checked against the model after every step. A failing case prints
//! its number; `one_case` with that number repeats it exactly. `ORBITKV_MODEL_CASES` asks for more.

use std::collections::BTreeMap;
use std::time::Duration;

use orbitkv_wire::engine::answers::SlotOutcome;

use super::super::command::Media;
use super::super::{Command, DeviceGuardSettings, Outcome, ShardSettings};
use super::model::{Model, Name};
use super::rig::{BOTH, KIB, Rig, digest, key, settings};
use crate::dice::Dice;
use crate::leases::{ConnectionId, InstanceId};

const CASES: u64 = 2_000;
const STEPS: u64 = 400;
const KEYS: u8 = 24;
pub(super) const SIZES: [u64; 6] = [64 * KIB, 64 * KIB, 100_001, 192 * KIB + 1, 300 * KIB, 4_096];

pub(super) struct Case {
    pub(super) dice: Dice,
    pub(super) settings: ShardSettings,
    pub(super) rig: Rig,
    pub(super) model: Model,
    pub(super) connections: Vec<(ConnectionId, InstanceId)>,
    pub(super) connections_made: u64,
    pub(super) tokens: u128,
    pub(super) errors_permille: u64,
    pub(super) flips_permille: u64,
    pub(super) keys: u8,
    pub(super) draining: bool,
    /// Lives begun.
    pub(super) lives: u128,
}

/// Says which case failed.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the failing case is one_case({})", self.0);
        }
    }
}

fn one_case(number: u64) -> (BTreeMap<&'static str, u64>, BTreeMap<&'static str, u64>) {
    let _named = Named(number);
    let mut dice = Dice(number.wrapping_mul(0x51_7c_c1_b7_27_22_0a_95));
    let ssd_bytes =
        [0, 2 * 1024 * KIB, 3 * 1024 * KIB, 6 * 1024 * KIB, 12 * 1024 * KIB][dice.roll(5) as usize];
    let mut settings = settings(2 + dice.roll(3), ssd_bytes);
    settings.write_backs_max = 1 + dice.roll(5) as usize;
    settings.slab.region_bytes = [1 << 30, 4 * 1024 * KIB][dice.roll(2) as usize];
    if dice.one_in(3) {
        settings.leases.bytes_per_connection_max = 600 * KIB;
        settings.reserved_bytes_max = 700 * KIB;
    }
    if dice.one_in(4) {
        settings.blocks_max = 8 + dice.roll(24);
    }
    settings.life_slice_entries = 1 + dice.roll(6) as usize;
    if dice.one_in(2) {
        settings.device_guard = DeviceGuardSettings {
            failed_percent: 50,
            window_calls: 4,
            open_for: Duration::from_nanos(2_000),
            read_budget: Duration::from_nanos(500),
        };
    }
    let (errors_permille, flips_permille) =
        [(0, 0), (0, 0), (30, 0), (0, 40), (60, 10), (500, 0), (950, 0)][dice.roll(7) as usize];
    let mut case = Case {
        rig: Rig::new(settings.clone()),
        settings,
        model: Model::default(),
        connections: Vec::new(),
        connections_made: 0,
        tokens: 0,
        errors_permille,
        flips_permille,
        keys: 4 + dice.roll(u64::from(KEYS)) as u8,
        draining: false,
        lives: 0,
        dice,
    };
    for instance in [1, 1, 2, 2] {
        let connection = case.new_connection();
        case.connections.push((connection, InstanceId(instance)));
    }
    for step in 0..STEPS {
        case.step();
        case.model.take_answers(&mut case.rig);
        if step % 8 == 0 {
            case.model.assert_promises(&case.rig);
        }
        if step % 16 == 0 {
            case.model.assert_figures(&mut case.rig, case.settings.leases.bytes_per_connection_max);
        }
    }
    case.finish()
}

impl Case {
    pub(super) fn new_connection(&mut self) -> ConnectionId {
        self.connections_made += 1;
        ConnectionId(self.connections_made)
    }

    pub(super) fn connection(&mut self) -> (ConnectionId, InstanceId) {
        let index = self.dice.roll(self.connections.len() as u64) as usize;
        self.connections[index]
    }

    pub(super) fn name(&mut self) -> Name {
        // A few keys are used far more often than the rest.
        let range = if self.dice.one_in(2) { 6 } else { u64::from(self.keys) };
        (u8::from(self.dice.one_in(4)), self.dice.roll(range.min(u64::from(self.keys))) as u8)
    }

    pub(super) fn names(&mut self, most: u64) -> Vec<Name> {
        (0..=self.dice.roll(most)).map(|_| self.name()).collect()
    }

    pub(super) fn step(&mut self) {
        match self.dice.roll(124) {
            0..18 => self.reserve(),
            18..32 => self.end_reservations(),
            32..36 => self.query(),
            36..40 => self.hold(),
            40..54 => self.acquire(),
            54..57 => self.attach(),
            57..67 => self.release(),
            67..70 => self.cancel(),
            70..73 => self.evict(),
            73 => self.clear(),
            74 => self.sync(),
            75..77 => self.pass_time(),
            77..96 => self.complete(),
            96..100 => self.work_tables(),
            100..117 => self.start(),
            117 => self.gone(),
            118 => self.disconnect(),
            119 => self.begin_life(),
            120..123 => self.work(),
            _ => self.drain(),
        }
    }

    /// Everybody leaves, the device finishes, and nothing may be left over.
    pub(super) fn finish(mut self) -> (BTreeMap<&'static str, u64>, BTreeMap<&'static str, u64>) {
        for (connection, _) in self.connections.clone() {
            self.end_connection(connection);
        }
        self.rig.settle();
        // What waits for a device that is left alone is tried after two pauses.
        while !self.rig.shard.write_queue.is_empty() || !self.rig.shard.moves.is_empty() {
            self.rig.now.0 += 4_000;
            self.rig.settle();
        }
        self.model.take_answers(&mut self.rig);
        assert!(self.model.pending.is_empty(), "everything is answered once the device is done");
        let figures = self.rig.shard.figures();
        assert_eq!((figures.reservations, figures.leases, figures.holds), (0, 0, 0));
        assert_eq!((figures.leased_bytes, figures.leased_blocks, figures.reserved_bytes[0]), (0, 0, 0));
        assert_eq!((figures.transfers, figures.waiting[0], figures.write_backs_queued), (0, 0, 0));
        self.model.assert_figures(&mut self.rig, self.settings.leases.bytes_per_connection_max);
        self.model.assert_journal(&mut self.rig);
        if self.errors_permille == 0 {
            assert_eq!((figures.counters.ssd_read_errors, figures.counters.ssd_write_errors), (0, 0));
        }
        if self.rig.flips == 0 {
            assert_eq!(figures.counters.checksum_failures, 0, "right bytes are not refused");
        }
        let log = self.rig.shard.log.as_ref().map(|log| (log.accounting(), log.state()));
        self.assert_all_can_go();
        let counters = figures.counters;
        let waits = figures.pools.iter().filter(|pool| pool.name.ends_with("_waits"));
        let mut seen = BTreeMap::from([
            ("DRAM evictions", counters.dram_evictions),
            ("SSD evictions", counters.ssd_evictions),
            ("moves", counters.ssd_moves),
            ("SSD reads", counters.ssd_reads),
            ("read errors", counters.ssd_read_errors),
            ("write errors", counters.ssd_write_errors),
            ("wrong bytes", counters.checksum_failures),
            ("write-backs", counters.write_backs_done),
            ("write-backs given up", counters.write_backs_given_up),
            ("lost races", counters.saves_lost_race),
            ("holds expired", figures.holds_expired),
            ("waiting refused", waits.map(|pool| pool.account.refused).sum()),
            ("device left alone", self.rig.shard.device_standing().opens),
            ("late reads", self.rig.shard.device_standing().late_reads),
            ("blocks not read", self.rig.shard.device_standing().barred),
        ]);
        if let Some((accounting, state)) = log {
            assert_eq!((accounting.shares.in_flight_writes, accounting.shares.readers), (0, 0));
            seen.insert("reinsertions", accounting.counts.reinserted_blocks);
            seen.insert("segments freed", accounting.counts.freed_segments);
            seen.insert("segments quarantined", accounting.shares.quarantined_segments);
            seen.insert("tier off", u64::from(state != crate::segment_log::LogState::On));
        }
        (seen, self.model.answered)
    }

    /// Nothing holds on to memory: one engine can have all of it, and then nothing is left.
    pub(super) fn assert_all_can_go(&mut self) {
        let bounds = &self.settings;
        let is_bounded = bounds.reserved_bytes_max < bounds.slab.bytes || bounds.blocks_max < 4_096;
        if !self.draining && !is_bounded {
            let block_bytes = 64 * KIB;
            let count = (self.settings.slab.bytes / block_bytes) as u8;
            let connection = ConnectionId(u64::MAX);
            for number in 0..count {
                let keys = vec![(key(number), block_bytes)];
                let command = Command::Reserve { connection, namespace: digest(9), race: false, keys };
                let Outcome::Slots(slots) = self.rig.call(command) else { panic!("not slots") };
                assert_eq!(slots[0].1.outcome, SlotOutcome::Slot as u8, "slot {number} of {count}");
            }
            self.rig.call(Command::Gone { connection });
        }
        for namespace in 0..2 {
            self.rig.call(Command::Clear { namespace: digest(namespace), media: Media::from_mask(BOTH) });
        }
        let figures = self.rig.shard.figures();
        assert_eq!((figures.counters.dram_residents, figures.counters.ssd_residents), (0, 0));
        assert_eq!((figures.allocated_bytes, figures.namespaces), (0, 0));
        assert_eq!((self.rig.shard.residents.len(), self.rig.shard.residents.copies()), (0, 0));
        assert!(figures.ssd.is_none_or(|ssd| ssd.live_bytes == 0));
    }
}

#[test]
fn random_lives_keep_every_promise() {
    let mut totals: BTreeMap<&'static str, u64> = BTreeMap::new();
    let cases = std::env::var("ORBITKV_MODEL_CASES").map_or(CASES, |cases| cases.parse().expect("a number"));
    for number in 0..cases {
        let (seen, answered) = one_case(number);
        for (what, count) in seen.into_iter().chain(answered) {
            *totals.entry(what).or_default() += count;
        }
    }
    for what in [
        "DRAM evictions",
        "SSD evictions",
        "moves",
        "SSD reads",
        "read errors",
        "write errors",
        "wrong bytes",
        "write-backs",
        "write-backs given up",
        "lost races",
        "holds expired",
        "waiting refused",
        "device left alone",
        "late reads",
        "blocks not read",
        "reinsertions",
        "segments freed",
        "segments quarantined",
        "tier off",
        "present",
        "being saved",
        "reserve busy",
        "too large",
        "merged",
        "not yours",
        "missing",
        "acquire busy",
        "corrupt",
        "device error",
        "acquire cancelled",
        "sync cancelled",
        "life begun",
        "life replaced",
        "ended before its turn",
        "synced",
        "ready from DRAM",
        "ready from SSD",
        "hold acquired",
        "lease refused",
        "attached",
        "in use",
    ] {
        assert!(totals.get(what).is_some_and(|count| *count > 0), "no case had {what}: {totals:?}");
    }
}
