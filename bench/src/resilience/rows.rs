//! The measured patterns, each with its cost and its gain.

use std::time::{Duration, Instant};

use orbitkv::control::signals::StopSignals;
use serde_json::{Value, json};

use super::stage::{BATCH_BLOCKS, BLOCK_BYTES, DRAM_BYTES, READER, Stage};
use crate::Failure;
use crate::profile::Profile;
use crate::report::Gate;
use crate::statistics::Latencies;

/// What a pattern may cost, as a ratio of latencies: a shared machine's own noise is twice that.
const COST_MAX: f64 = 1.10;
/// Blocks that an engine wants one by one of a source that is stopped: without a breaker they take less time than its
/// lease lives, which is 10 s.
const RECOVERIES_FAILING: u64 = 40;
/// Longest silence in a call, for every node here.
const CALL_BUDGET: &str = "--call-budget 100ms";
/// What engines give a recovery.
const DEADLINE: Duration = Duration::from_secs(1);

/// One figure of a pattern, which is a gate.
pub struct Figure {
    name: &'static str,
    value: f64,
    target: f64,
    at_most: bool,
    against: &'static str,
    pub words: String,
    details: Value,
}

impl Figure {
    pub fn gate(self, profile: Profile) -> Gate {
        let gate = Gate::new(self.name, profile, 0);
        let gate = if self.at_most { gate.at_most(self.target) } else { gate.at_least(self.target) };
        gate.against(self.against, None).value(self.value).details(self.details)
    }
}

/// A pattern with its two figures.
pub struct Row {
    pub pattern: &'static str,
    /// None if it cannot be switched off.
    pub cost: Option<Figure>,
    pub gain: Figure,
}

type Measured = fn(Profile, &StopSignals) -> Result<Row, Failure>;

/// Every measured pattern.
pub const ALL: &[(&str, Measured)] = &[
    ("circuit breaker", breaker),
    ("retry budget", retry_budget),
    ("deadline and cancel", cancel),
    ("bulkhead", bulkhead),
];

fn blocks(profile: Profile) -> usize {
    if profile == Profile::Full { 1_024 } else { 256 }
}

/// Blocks asked for one by one while nothing fails: microseconds of the median.
fn quiet(stage: &mut Stage, generation: u64, count: usize) -> Result<f64, Failure> {
    let mut latencies = Latencies::new();
    for index in 0..count as u64 {
        let asked = stage.ask(generation, index..index + 1, DEADLINE)?;
        if asked.ready != 1 {
            return Err("a block does not come though nothing fails".into());
        }
        latencies.record(asked.time);
    }
    Ok(latencies.microseconds(0.5))
}

fn mean(figures: [f64; 2]) -> f64 {
    f64::midpoint(figures[0], figures[1])
}

/// What both ways of a switch showed: the median of a recovery on a quiet day, and a figure of a failing one.
struct Days {
    quiet_us: [Vec<f64>; 2],
    failing: [Vec<f64>; 2],
}

/// Measures with a switch on, off, off, on.
fn switched(
    settings: [&[&str]; 2],
    nodes: usize,
    signals: &StopSignals,
    mut day: impl FnMut(&mut Stage) -> Result<(f64, f64), Failure>,
) -> Result<Days, Failure> {
    let mut days = Days { quiet_us: [vec![], vec![]], failing: [vec![], vec![]] };
    for way in [0, 1, 1, 0] {
        let mut stage = Stage::start(nodes, settings[way], signals)?;
        let (quiet_us, failing) = day(&mut stage)?;
        days.quiet_us[way].push(quiet_us);
        days.failing[way].push(failing);
    }
    Ok(days)
}

impl Days {
    fn means(of: &[Vec<f64>; 2]) -> [f64; 2] {
        [0, 1].map(|way| mean([of[way][0], of[way][1]]))
    }

    fn cost(&self, name: &'static str) -> Figure {
        let [on, off] = Days::means(&self.quiet_us);
        Figure {
            name,
            value: on / off,
            target: COST_MAX,
            at_most: true,
            against: "median recovery of a block without it",
            words: format!("a block in {on:.0} us with it, {off:.0} us without: {:.3}", on / off),
            details: json!({ "on_us": self.quiet_us[0], "off_us": self.quiet_us[1] }),
        }
    }
}

/// A source stops: how long an engine waits for each block that only it has.
fn breaker(profile: Profile, signals: &StopSignals) -> Result<Row, Failure> {
    let count = blocks(profile);
    let mut last_us = Latencies::new();
    let days = switched([&[CALL_BUDGET], &[CALL_BUDGET, "--breaker 0"]], 2, signals, |stage| {
        stage.save(1, 1, 2 * count)?;
        let quiet_us = quiet(stage, 1, count)?;
        let stopped = stage.stop(1)?;
        let began = Instant::now();
        for index in count as u64..count as u64 + RECOVERIES_FAILING {
            let asked = stage.ask(1, index..index + 1, DEADLINE)?;
            last_us.record(asked.time);
        }
        let all_ms = began.elapsed().as_secs_f64() * 1e3;
        drop(stopped);
        Ok((quiet_us, all_ms))
    })?;
    let [on, off] = Days::means(&days.failing);
    let gain = Figure {
        name: "breaker_gain",
        value: off / on,
        target: 2.0,
        at_most: false,
        against: "as many recoveries from a stopped source without it",
        words: format!(
            "{RECOVERIES_FAILING} blocks that do not come in {on:.0} ms with it, {off:.0} ms without: {:.1} times",
            off / on
        ),
        details: json!({ "on_ms": days.failing[0], "off_ms": days.failing[1], "fastest_us": last_us.microseconds(0.01) }),
    };
    Ok(Row { pattern: "circuit breaker", cost: Some(days.cost("breaker_cost")), gain })
}

/// A source of two stops for a second: how much is asked in all, over what is asked for the first time.
fn retry_budget(profile: Profile, signals: &StopSignals) -> Result<Row, Failure> {
    // The least that is always allowed is less than a tenth of them.
    let count = 2_048;
    let settings: [&[&str]; 2] = [
        &["--call-budget 20ms", "--breaker 0"],
        &["--call-budget 20ms", "--breaker 0", "--retry-percent 100"],
    ];
    let mut alone = Vec::new();
    let days = switched(settings, 3, signals, |stage| {
        stage.save(1, 1, count)?;
        stage.save(2, 1, count)?;
        let quiet_us = quiet(stage, 1, blocks(profile) / 8)?;
        let lent = |stage: &Stage, at: usize| Ok::<u64, Failure>(stage.report(at)?.0.lending.granted);
        let preferred = if lent(stage, 1)? >= lent(stage, 2)? { 1 } else { 2 };
        let before = stage.report(READER)?.0.fetching;
        let stopped = stage.stop(preferred)?;
        let mut batches = (BATCH_BLOCKS..count).step_by(BATCH_BLOCKS);
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(1)
            && let Some(first) = batches.next()
        {
            stage.ask(1, first as u64..(first + BATCH_BLOCKS) as u64, DEADLINE)?;
        }
        drop(stopped);
        let after = stage.report(READER)?.0.fetching;
        let first = (after.first_asks - before.first_asks).max(1) as f64;
        alone.push(1.0 + (after.extra_asks - before.extra_asks) as f64 / first);
        // All of it lies in one window of the budget.
        Ok((quiet_us, 1.0 + after.extra_asks as f64 / after.first_asks as f64))
    })?;
    let [on, off] = Days::means(&days.failing);
    let gain = Figure {
        name: "retry_budget_amplification",
        value: on,
        target: 1.1,
        at_most: true,
        against: "asks over first asks in the budget's 10 s with a second without the source asked first",
        words: format!("{on:.3} asks a block with it, {off:.3} without"),
        details: json!({
            "on": days.failing[0],
            "off": days.failing[1],
            "outage_alone_on_off_off_on": alone,
            "first_asks_max": count,
        }),
    };
    Ok(Row { pattern: "retry budget", cost: Some(days.cost("retry_budget_cost")), gain })
}

/// A reader gives up: how long its source keeps the blocks pinned after the deadline.
fn cancel(profile: Profile, signals: &StopSignals) -> Result<Row, Failure> {
    let count = blocks(profile);
    let mut stage = Stage::start(2, &[], signals)?;
    stage.save(1, 1, 2 * count)?;
    quiet(&mut stage, 1, count)?;
    let cancelled_on_quiet_day = stage.report(1)?.0.lending.cancelled;
    let (mut longest, mut given_up) = (Duration::ZERO, 0);
    for round in 0..20u64 {
        let first = count as u64 + round * (count as u64 / 20);
        let deadline = Duration::from_millis(1 + round % 4);
        let asked = stage.ask(1, first..first + count as u64 / 20, deadline)?;
        let ended = Instant::now();
        let is_given_up = asked.ready < count / 20;
        given_up += usize::from(is_given_up);
        loop {
            let lending = stage.report(1)?.0.lending;
            if (lending.pins, lending.operations) == (0, 0) {
                break;
            }
        }
        if is_given_up {
            longest = longest.max(asked.time.saturating_sub(deadline) + ended.elapsed());
        }
    }
    let cancelled = stage.report(1)?.0.lending.cancelled - cancelled_on_quiet_day;
    let cost = Figure {
        name: "cancel_cost",
        value: cancelled_on_quiet_day as f64,
        target: 0.0,
        at_most: true,
        against: "cancels on a day without failures",
        words: format!("{cancelled_on_quiet_day} cancels among {count} recoveries"),
        details: Value::Null,
    };
    let longest_ms = longest.as_secs_f64() * 1e3;
    let gain = Figure {
        name: "cancel_pins_ms",
        value: longest_ms,
        target: 100.0,
        at_most: true,
        against: "pins after the deadline, ms; a grant lasts 10,000",
        words: format!(
            "pins are back within {longest_ms:.1} ms of the deadline, in place of 10,000 ({given_up} of 20 given up, {cancelled} calls cancelled)"
        ),
        details: json!({ "rounds": 20, "given_up": given_up, "cancelled": cancelled }),
    };
    Ok(Row { pattern: "deadline and cancel", cost: Some(cost), gain })
}

/// A source stops while one engine wants more of it than its share of leases, and another what is here.
fn bulkhead(_: Profile, signals: &StopSignals) -> Result<Row, Failure> {
    // More than half of the slice, which is one connection's share.
    let count = (DRAM_BYTES / BLOCK_BYTES / 2 + 1_024) as usize;
    let mut stage = Stage::start(2, &["--breaker 0"], signals)?;
    stage.save(1, 1, count)?;
    stage.save(READER, 2, BATCH_BLOCKS)?;
    let mut local = stage.engine(READER)?;
    let mut here = |refused: &mut usize| -> Result<f64, Failure> {
        let mut latencies = Latencies::new();
        for round in 0..400u64 {
            let index = round % BATCH_BLOCKS as u64;
            let asked = local.ask(2, index..index + 1, DEADLINE)?;
            *refused += 1 - asked.ready;
            latencies.record(asked.time);
        }
        Ok(latencies.microseconds(0.5))
    };
    let mut refused = 0;
    let quiet_us = here(&mut refused)?;
    let stopped = stage.stop(1)?;
    // It holds slots, leases and places until its deadline.
    let (amid_us, waited) = std::thread::scope(|scope| -> Result<(f64, Duration), Failure> {
        let remote = &mut stage;
        let waiting = scope.spawn(move || {
            let asked = remote.ask(1, 0..count as u64, 3 * DEADLINE);
            asked.map_err(|error| error.to_string())
        });
        std::thread::sleep(Duration::from_millis(50));
        let amid_us = here(&mut refused)?;
        let asked = waiting.join().expect("no panic")?;
        Ok((amid_us, asked.time))
    })?;
    drop(stopped);
    let busy = stage.report(READER)?.1;
    let gain = Figure {
        name: "bulkhead_refused",
        value: refused as f64,
        target: 0.0,
        at_most: true,
        against: "recoveries of what is here, refused while a source is stopped",
        words: format!(
            "{refused} of 800 refused to the neighbour of who had {busy} refused; a block here in {amid_us:.0} us meanwhile ({} \
             ms), {quiet_us:.0} us else",
            waited.as_millis()
        ),
        details: json!({ "quiet_us": quiet_us, "amid_us": amid_us, "acquires_busy": busy }),
    };
    // Places are counted with it or without: there is no day without it to compare.
    Ok(Row { pattern: "bulkhead", cost: None, gain })
}
