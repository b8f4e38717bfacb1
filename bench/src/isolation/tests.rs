//! A campaign put together from runs that were never made: files, what is missing, and what all of them say.

use serde_json::json;

use super::campaign::IsolationOrder;
use super::exposure::{Burst, Look, Window};
use super::foreground::{Operation, Round};
use super::gates;
use super::plan::{BURST_CHANGES, Plan};
use super::pressure::FinalCheck;
use super::record::{DeviceReads, Measured, Outcome, Record, put, take};
use super::sampler::Cost;
use super::schedule::{Cell, Kind, Medium, Side, schedule};
use super::stage::{CoreTurns, Cores, Nodes, Placed};
use crate::campaign::{Campaign, Shelf};
use crate::profile::FormalProfile;

const MS: u64 = 1_000_000;
/// Makes a run wrong in one way.
type Spoil = fn(&mut Measured);

const CORES: Cores = Cores { node: 1, other: 0 };

fn plan() -> Plan {
    Plan::of(FormalProfile::Ci, None).expect("its own sizes")
}

fn order() -> IsolationOrder {
    IsolationOrder { plan: plan(), media: vec![Medium::Dram, Medium::Ssd], seed: 1, cores: CORES }
}

fn campaign() -> Campaign<IsolationOrder> {
    Campaign::new(order())
}

/// A run of a cell in which every save takes `save_us` and all else is as it should be.
fn measured(cell: &Cell, save_us: u64) -> Measured {
    let plan = plan();
    let began = 1_000 * MS;
    let round = |number: usize| {
        let at = began + number as u64 * 25 * MS;
        let saved = at + save_us * 1_000;
        Round::from([at, at + 1_000, saved, saved, saved + 50_000, saved + 150_000])
    };
    let mut warm_up: Vec<Round> = (0..plan.warm_up_rounds + plan.rounds).map(round).collect();
    let rounds = warm_up.split_off(plan.warm_up_rounds);
    let window = Window { began_ns: rounds[0].intended_ns, ended_ns: rounds[rounds.len() - 1].restored_ns };
    let bursts = if cell.is_under_pressure() { 170 } else { 0 };
    let burst = |number: u64| {
        let at = began + number * 17 * MS;
        Burst { intended_ns: at, began_ns: at, ended_ns: at + MS, changes: (number + 1) * BURST_CHANGES }
    };
    let bursts: Vec<Burst> = (0..bursts).map(burst).collect();
    let look = |number: u64| {
        let at = began + number * 25 * MS;
        let made = bursts.iter().filter(|burst| burst.ended_ns <= at).count() as u64;
        let sequence = 512 + made * BURST_CHANGES;
        Look {
            intended_ns: at,
            source_ns: at,
            source_head: sequence,
            observer_ns: at,
            observer_applied: sequence,
        }
    };
    let looks = (0..120).map(look).collect();
    let changes = bursts.len() as u64 * BURST_CHANGES;
    let blocks = ((plan.warm_up_rounds + plan.rounds) * plan.blocks) as u64;
    let bytes = blocks * plan.block_bytes;
    Measured {
        window,
        placement: vec![Placed { process: "foreground node".into(), core: 1, threads: 2, astray: 0 }],
        processor_seconds: Nodes::default(),
        sampler: Cost::default(),
        final_check: FinalCheck {
            head_before: 512,
            changes,
            head: 512 + changes,
            applied: 512 + changes,
            rows: 512,
            live: 512,
            live_shown: 512,
            ..FinalCheck::default()
        },
        device: (cell.medium == Medium::Ssd).then_some(DeviceReads {
            blocks,
            bytes,
            node_blocks: blocks,
            kernel_bytes: bytes,
        }),
        core_turns: CoreTurns::default(),
        bytes_by_kind: Default::default(),
        machine_load: json!({}),
        round_columns: Vec::new(),
        warm_up,
        rounds,
        burst_columns: Vec::new(),
        bursts,
        look_columns: Vec::new(),
        looks,
    }
}

fn record(campaign: &Campaign<IsolationOrder>, cell: &Cell, save_us: u64) -> Record {
    campaign.record(cell, 1).with_measured(measured(cell, save_us))
}

/// All runs of a campaign, and one that does not count, for who makes something of them.
pub fn runs_with_one_failed() -> Vec<Record> {
    let campaign = campaign();
    let mut records = all(&campaign, |_| 500);
    let failed = campaign.record(&records[0].cell, 2);
    records.push(Record { why: Some("it rained".into()), ..failed });
    records
}

fn cell(medium: Medium, kind: Kind, pair: usize, side: Side) -> Cell {
    let cells = schedule(&[Medium::Dram, Medium::Ssd], plan().pairs);
    let wanted = |cell: &&Cell| (cell.medium, cell.kind, cell.pair, cell.side) == (medium, kind, pair, side);
    *cells.iter().find(wanted).expect("it is scheduled")
}

fn all(campaign: &Campaign<IsolationOrder>, save_us: impl Fn(&Cell) -> u64) -> Vec<Record> {
    let cells = schedule(&[Medium::Dram, Medium::Ssd], plan().pairs);
    cells.iter().map(|cell| record(campaign, cell, save_us(cell))).collect()
}

#[test]
fn a_run_counts_only_if_every_part_of_it_is_right() {
    let (dram, ssd) = (
        cell(Medium::Dram, Kind::QuietPressure, 1, Side::Compared),
        cell(Medium::Ssd, Kind::QuietPressure, 1, Side::Compared),
    );
    for cell in [dram, ssd, cell(Medium::Ssd, Kind::QuietQuiet, 2, Side::Compared)] {
        assert_eq!(measured(&cell, 500).judge(&cell, &plan()), (Outcome::Counts, None));
    }
    let wrong: [(Cell, &str, Spoil); 8] = [
        (dram, "10 and 99 rounds", |run| run.rounds.truncate(99)),
        (dram, "9 and 100 rounds", |run| run.warm_up.truncate(9)),
        (dram, "left core 1", |run| run.placement[0].astray = 1),
        (dram, "exposure rejected", |run| run.bursts.truncate(20)),
        (dram, "are shown", |run| run.final_check.live_shown -= 1),
        (dram, "blocks crossed", |run| run.final_check.payload_blocks = 1),
        (ssd, "the node counts 1759 reads", |run| run.device.as_mut().expect("SSD").node_blocks -= 1),
        (ssd, "nobody looked at the device", |run| run.device = None),
    ];
    for (cell, words, change) in wrong {
        let mut run = measured(&cell, 500);
        change(&mut run);
        let (outcome, why) = run.judge(&cell, &plan());
        assert_eq!(outcome, Outcome::Rejected, "{words}");
        assert!(why.as_ref().is_some_and(|why| why.contains(words)), "{words}: {why:?}");
    }
    let mut kernel = measured(&ssd, 500);
    kernel.device.as_mut().expect("SSD").kernel_bytes -= 1;
    assert_eq!(kernel.judge(&ssd, &plan()).0, Outcome::Rejected, "the page cache is no device");
    let mut blind = measured(&dram, 500);
    blind.looks.clear();
    assert_eq!(blind.judge(&dram, &plan()).0, Outcome::Unknown);
}

#[test]
fn p99_and_histogram_are_those_of_the_rounds_that_count() {
    let campaign = campaign();
    let cell = cell(Medium::Dram, Kind::QuietQuiet, 1, Side::Base);
    let mut run = measured(&cell, 500);
    // 100 rounds: the 99th of them is the p99. The warm-up counts for nothing.
    run.warm_up.iter_mut().for_each(|round| round.saved_ns += 900 * MS);
    run.rounds[10].saved_ns += 3 * MS;
    assert_eq!(run.p99(Operation::Save), 500_000);
    run.rounds[11].saved_ns += 2 * MS;
    assert_eq!(run.p99(Operation::Save), 2_500_000);
    let record = campaign.record(&cell, 1).with_measured(run);
    assert_eq!(record.p99_us["save"], 2_500.0);
    let last = record.histograms["save"].last().expect("points");
    assert!(last.percentile == 100.0 && (last.value_us / 3_500.0 - 1.0).abs() < 2e-3, "{last:?}");
}

#[test]
fn a_shelf_gives_back_what_counts_and_keeps_what_does_not() {
    let directory = tempfile::tempdir().expect("a directory");
    let (campaign, shelf) = (campaign(), Shelf::new(directory.path().to_owned()));
    let cell = cell(Medium::Dram, Kind::QuietPressure, 1, Side::Compared);
    assert_eq!(take(&shelf, &cell).expect("nothing there"), None);

    let mut blind = measured(&cell, 500);
    blind.looks.clear();
    let failed = campaign.record(&cell, 1).with_measured(blind);
    put(&shelf, &failed).expect("it is kept");
    let unmade = Record { attempt: 2, why: Some("no etcd".into()), ..campaign.record(&cell, 2) };
    put(&shelf, &unmade).expect("it is kept, too");
    assert_eq!(take(&shelf, &cell).expect("nothing that counts"), None);
    let names = [1, 2].map(|attempt| format!("{}.failed-{attempt}.json", cell.name()));
    assert_eq!(shelf.failed(&cell.name()), names);

    let right = record(&campaign, &cell, 500);
    put(&shelf, &right).expect("it is kept");
    assert_eq!(take(&shelf, &cell).expect("it can be read"), Some(right.clone()));
    assert_eq!(shelf.failed(&cell.name()), names, "they stay");

    // What a file says of itself is not believed: its raw numbers are judged.
    let mut changed = right;
    changed.measured.as_mut().expect("it was measured").final_check.rows += 1;
    shelf.write(&format!("{}.json", cell.name()), &changed).expect("written");
    assert_eq!(take(&shelf, &cell).expect("it can be read"), None);
    std::fs::write(directory.path().join(format!("{}.json", cell.name())), "{").expect("written");
    assert!(take(&shelf, &cell).is_err(), "a broken file is no missing one");
}

#[test]
fn a_campaign_goes_on_only_as_what_it_was() {
    let directory = tempfile::tempdir().expect("a directory");
    let (place, campaign) = (directory.path().join("new"), campaign());
    campaign.begin(&place).expect("a new one");
    assert!(campaign.resume(&place).is_ok());
    let others = [
        ("--seed", IsolationOrder { seed: 2, ..order() }),
        ("--medium", IsolationOrder { media: vec![Medium::Dram], ..order() }),
        ("--cores", IsolationOrder { cores: Cores { node: 0, other: 1 }, ..order() }),
        ("size", IsolationOrder { plan: Plan { rounds: 101, ..plan() }, ..order() }),
    ];
    for (words, other) in others {
        let error = Campaign::new(other).resume(&place).expect_err(words).to_string();
        assert!(error.contains(words) && error.ends_with("runs would not compare"), "{error}");
    }
}

#[test]
fn gates_say_what_runs_say() {
    let campaign = campaign();
    let verdicts = |records: &[Record]| -> Vec<String> {
        let report = gates::report(&campaign, records, &[], json!({}));
        assert_eq!(report.gates.len(), 8);
        let findings = report.settings["findings"].as_array().expect("findings").clone();
        findings.iter().map(|finding| finding["verdict"].as_str().expect("a verdict").to_owned()).collect()
    };
    let is_under_pressure = Cell::is_under_pressure;
    let steady = all(&campaign, |_| 500);
    assert_eq!(verdicts(&steady), ["passed"; 4]);
    assert!(gates::report(&campaign, &steady, &[], json!({})).is_met());

    // Only saves on DRAM are slower, by 6 %.
    let slower =
        all(&campaign, |cell| if is_under_pressure(cell) && cell.medium == Medium::Dram { 530 } else { 500 });
    assert_eq!(verdicts(&slower), ["failed", "passed", "passed", "passed"]);
    assert!(!gates::report(&campaign, &slower, &[], json!({})).is_met());

    let noisy = all(&campaign, |cell| {
        let is_odd = cell.kind == Kind::QuietQuiet && cell.side == Side::Compared && cell.pair == 2;
        if is_odd && cell.medium == Medium::Ssd { 530 } else { 500 }
    });
    assert_eq!(verdicts(&noisy), ["passed", "passed", "not resolvable here", "passed"]);
    let report = gates::report(&campaign, &noisy, &[], json!({}));
    assert!(!report.is_met() && report.json()["gates"][4]["valid"] == false);

    let mut missing = steady;
    let lost = missing.remove(6).name;
    assert_eq!(verdicts(&missing), ["unknown", "unknown", "passed", "passed"]);
    let report = gates::report(&campaign, &missing, &[], json!({}));
    assert!(report.json()["gates"][0]["why_invalid"].as_str().is_some_and(|why| why.contains(&lost)));
}
