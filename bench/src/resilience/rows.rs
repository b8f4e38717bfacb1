//! The measured patterns, each with its cost and its gain: here those whose failing day is a peer that stands still.

use std::time::{Duration, Instant};

use orbitkv::control::signals::StopSignals;
use serde_json::{Value, json};

use super::figures::{
    Days, Figure, GivenUp, LOCAL_ASKS, Neighbour, Outage, PINS_WAIT, ROUNDS, Series, amplification,
};
use super::health::health;
use super::rollout::configuration;
use super::stage::{BATCH_BLOCKS, BLOCK_BYTES, DRAM_BYTES, READER, Scene, Stage};
use super::{Given, failover, guards, throttle};
use crate::Failure;
use crate::profile::Profile;
use crate::statistics::Latencies;
use crate::streams::pause;

/// Blocks that an engine wants one by one of a source that is stopped: without a breaker they take less time than its
/// lease lives, which is 10 s.
pub const RECOVERIES_FAILING: u64 = 40;
/// Longest silence in a call, for every node here.
pub const CALL_BUDGET: &str = "--call-budget 100ms";
/// What engines give a recovery.
pub const DEADLINE: Duration = Duration::from_secs(1);
/// Time between two looks at a source's pins.
const LOOK: Duration = Duration::from_millis(1);

/// A pattern with its two figures.
pub struct Row {
    pub pattern: &'static str,
    /// None if it cannot be switched off.
    pub cost: Option<Figure>,
    pub gain: Figure,
}

type Measured = fn(&Given<'_>) -> Result<Row, Failure>;

/// Every measured pattern.
pub const ALL: &[(&str, Measured)] = &[
    ("circuit breaker", breaker),
    ("retry budget", retry_budget),
    ("deadline and cancel", cancel),
    ("bulkhead", bulkhead),
    ("circuit breaker of the SSD", guards::ssd_breaker),
    ("zones", guards::zones),
    ("failover", failover::failover),
    ("failure modes", guards::failure_modes),
    ("configuration", configuration),
    ("throttle and shed", throttle::throttle),
    ("health", health),
];

/// Blocks that are asked for on a quiet day.
pub fn blocks(profile: Profile) -> usize {
    if profile == Profile::Full { 1_024 } else { 256 }
}

/// Blocks asked for one by one while nothing fails: microseconds of the median.
///
/// # Errors
/// If one does not come.
pub fn quiet(
    stage: &mut Stage,
    generation: u64,
    count: usize,
    signals: &StopSignals,
) -> Result<f64, Failure> {
    let mut latencies = Latencies::new();
    for index in 0..count as u64 {
        pause(Duration::ZERO, signals)?;
        let asked = stage.ask(generation, index..index + 1, DEADLINE)?;
        if asked.ready != 1 {
            return Err("a block does not come though nothing fails".into());
        }
        latencies.record(asked.time);
    }
    Ok(latencies.microseconds(0.5))
}

/// Measures with a switch on, off, off, on.
pub fn switched(
    scenes: [Scene<'_>; 2],
    signals: &StopSignals,
    mut day: impl FnMut(&mut Stage) -> Result<(f64, f64), Failure>,
) -> Result<Days, Failure> {
    let mut days = Days { quiet_us: [vec![], vec![]], failing: [vec![], vec![]] };
    for way in [0, 1, 1, 0] {
        let mut stage = Stage::start(&scenes[way], signals)?;
        let (quiet_us, failing) = day(&mut stage)?;
        days.quiet_us[way].push(quiet_us);
        days.failing[way].push(failing);
    }
    Ok(days)
}

/// A source stops: how long an engine waits for each block that only it has.
fn breaker(&Given { profile, signals, .. }: &Given<'_>) -> Result<Row, Failure> {
    let count = blocks(profile);
    let mut last_us = Latencies::new();
    let scenes = [Scene::of(2, &[CALL_BUDGET]), Scene::of(2, &[CALL_BUDGET, "--breaker 0"])];
    let days = switched(scenes, signals, |stage| {
        stage.save(1, 1, 2 * count, signals)?;
        let quiet_us = quiet(stage, 1, count, signals)?;
        let stopped = stage.stop(1)?;
        let began = Instant::now();
        for index in count as u64..count as u64 + RECOVERIES_FAILING {
            pause(Duration::ZERO, signals)?;
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
        why_invalid: None,
    };
    Ok(Row { pattern: "circuit breaker", cost: Some(days.cost("breaker_cost")), gain })
}

/// A source of two stops for a second: how much is asked in all, over what is asked for the first time.
fn retry_budget(&Given { profile, signals, .. }: &Given<'_>) -> Result<Row, Failure> {
    let count = 2_048;
    let settings: [&[&str]; 2] = [
        &["--call-budget 20ms", "--breaker 0"],
        &["--call-budget 20ms", "--breaker 0", "--retry-percent 100"],
    ];
    let mut outages = Vec::new();
    let days = switched(settings.map(|settings| Scene::of(3, settings)), signals, |stage| {
        stage.save(1, 1, count, signals)?;
        stage.save(2, 1, count, signals)?;
        let quiet_us = quiet(stage, 1, blocks(profile) / 8, signals)?;
        let lent = |stage: &Stage, at: usize| Ok::<u64, Failure>(stage.report(at)?.0.lending.granted);
        let preferred = if lent(stage, 1)? >= lent(stage, 2)? { 1 } else { 2 };
        let mut series = Series::default();
        let mut look = |stage: &Stage| -> Result<_, Failure> {
            let fetching = stage.report(READER)?.0.fetching;
            series.note(fetching.first_asks, fetching.extra_asks);
            Ok(fetching)
        };
        let before = look(stage)?;
        let stopped = stage.stop(preferred)?;
        let mut batches = (BATCH_BLOCKS..count).step_by(BATCH_BLOCKS);
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(1)
            && let Some(first) = batches.next()
        {
            pause(Duration::ZERO, signals)?;
            stage.ask(1, first as u64..(first + BATCH_BLOCKS) as u64, DEADLINE)?;
            look(stage)?;
        }
        drop(stopped);
        let after = look(stage)?;
        outages.push(Outage {
            first_asks: after.first_asks - before.first_asks,
            extra_asks: after.extra_asks - before.extra_asks,
            refused: after.extra_asks_refused - before.extra_asks_refused,
        });
        Ok((quiet_us, series.worst_window()))
    })?;
    let gain = amplification(&days, &outages, count);
    Ok(Row { pattern: "retry budget", cost: Some(days.cost("retry_budget_cost")), gain })
}

/// A reader gives up: how long its source keeps the blocks pinned after the deadline.
fn cancel(&Given { profile, signals, .. }: &Given<'_>) -> Result<Row, Failure> {
    let count = blocks(profile);
    let mut stage = Stage::start(&Scene::of(2, &[]), signals)?;
    stage.save(1, 1, 2 * count, signals)?;
    quiet(&mut stage, 1, count, signals)?;
    let cancelled_on_quiet_day = stage.report(1)?.0.lending.cancelled;
    let mut seen = GivenUp::default();
    let blocks_a_round = count as u64 / ROUNDS;
    for round in 0..ROUNDS {
        let first = count as u64 + round * blocks_a_round;
        let deadline = Duration::from_millis(1 + round % 4);
        let asked = stage.ask(1, first..first + blocks_a_round, deadline)?;
        let has_pins = || {
            let lending = stage.report(1)?.0.lending;
            Ok((lending.pins, lending.operations) != (0, 0))
        };
        let waited = while_pinned(has_pins, signals)?;
        let late = asked.time.saturating_sub(deadline) + waited;
        if !seen.note(asked.ready as u64 == blocks_a_round, late, waited) {
            break;
        }
    }
    seen.cancelled = stage.report(1)?.0.lending.cancelled - cancelled_on_quiet_day;
    let cost = Figure {
        name: "cancel_cost",
        value: cancelled_on_quiet_day as f64,
        target: 0.0,
        at_most: true,
        against: "cancels on a day without failures",
        words: format!("{cancelled_on_quiet_day} cancels among {count} recoveries"),
        details: Value::Null,
        why_invalid: None,
    };
    Ok(Row { pattern: "deadline and cancel", cost: Some(cost), gain: seen.figure() })
}

/// How long a source still has pins, or a little more than [`PINS_WAIT`] if it has them longer than that.
fn while_pinned(
    mut has_pins: impl FnMut() -> Result<bool, Failure>,
    signals: &StopSignals,
) -> Result<Duration, Failure> {
    let began = Instant::now();
    while has_pins()? && began.elapsed() <= PINS_WAIT {
        pause(LOOK, signals)?;
    }
    Ok(began.elapsed())
}

/// A source stops while one engine wants more of it than its share of leases, and another what is here.
fn bulkhead(&Given { signals, .. }: &Given<'_>) -> Result<Row, Failure> {
    // More than half of the slice, which is one connection's share.
    let count = (DRAM_BYTES / BLOCK_BYTES / 2 + 1_024) as usize;
    let mut stage = Stage::start(&Scene::of(2, &["--breaker 0"]), signals)?;
    stage.save(1, 1, count, signals)?;
    stage.save(READER, 2, BATCH_BLOCKS, signals)?;
    let mut local = stage.engine(READER)?;
    let mut here = |refused: &mut u64| -> Result<f64, Failure> {
        let mut latencies = Latencies::new();
        for round in 0..LOCAL_ASKS {
            pause(Duration::ZERO, signals)?;
            let index = round % BATCH_BLOCKS as u64;
            let asked = local.ask(2, index..index + 1, DEADLINE)?;
            *refused += 1 - asked.ready as u64;
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
        pause(Duration::from_millis(50), signals)?;
        let amid_us = here(&mut refused)?;
        let asked = waiting.join().expect("no panic")?;
        Ok((amid_us, asked.time))
    })?;
    drop(stopped);
    let busy = stage.report(READER)?.1;
    let neighbour = Neighbour { refused, busy, quiet_us, amid_us, waited };
    // Places are counted with it or without: there is no day without it to compare.
    Ok(Row { pattern: "bulkhead", cost: None, gain: neighbour.figure() })
}

#[cfg(test)]
mod tests {
    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    // One test: a signal is told to everybody in the process who watches.
    #[test]
    fn waiting_for_pins_ends_when_they_are_back_or_too_late_or_with_a_signal() {
        let signals = StopSignals::watch().expect("signals");
        let mut looks = 0..3;
        let short = while_pinned(|| Ok(looks.next().is_some()), &signals).expect("it ends");
        assert!(looks.is_empty() && short < PINS_WAIT);
        assert!(while_pinned(|| Ok(true), &signals).expect("it ends") > PINS_WAIT);
        let raise = || {
            kill_process(getpid(), Signal::HUP)?;
            Ok(true)
        };
        let stopped = while_pinned(raise, &signals).expect_err("it was stopped");
        assert_eq!(stopped.to_string(), "stopped by SIGHUP");
    }
}
