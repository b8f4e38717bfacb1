//! Guards beside those against one silent peer: an SSD that fails, a zone that stands still, and the name that calls have.

use std::time::{Duration, Instant};

use orbitkv::control::signals::StopSignals;
use serde_json::json;

use super::Given;
use super::figures::{Days, Figure};
use super::rows::{CALL_BUDGET, DEADLINE, RECOVERIES_FAILING, Row, blocks, quiet, switched};
use super::stage::{READER, Scene, Stage};
use crate::Failure;
use crate::streams::pause;

/// Part of the blocks that has to come though the SSD fails: all but those by which that is noticed.
const CAME_MIN: f64 = 0.9;
/// Calls that are looked back on.
const WINDOW_CALLS: u64 = 20;

/// Blocks asked for one by one: how many come.
///
/// # Errors
/// As [`super::stage::Engine::ask`], or if a signal came.
pub fn come(
    stage: &mut Stage,
    blocks: std::ops::Range<u64>,
    signals: &StopSignals,
) -> Result<usize, Failure> {
    let mut came = 0;
    for index in blocks {
        pause(Duration::ZERO, signals)?;
        came += stage.ask(1, index..index + 1, DEADLINE)?.ready;
    }
    Ok(came)
}

/// The SSD of a reader fails whose blocks a peer has, too: how many of them an engine gets at the first try.
pub fn ssd_breaker(given: &Given<'_>) -> Result<Row, Failure> {
    let (count, signals) = (blocks(given.profile), given.signals);
    // Nobody but the engine is to find that the device fails.
    let settings: [&[&str]; 2] = [&["--audit 0s"], &["--audit 0s", "--ssd-breaker 0"]];
    let scenes = settings.map(|settings| Scene { ssd: Some(given.directory), ..Scene::of(2, settings) });
    let days = switched(scenes, signals, |stage| {
        stage.save(1, 1, 2 * count, signals)?;
        stage.save(READER, 1, 2 * count, signals)?;
        stage.leave_dram(1, 2 * count, signals)?;
        let quiet_us = quiet(stage, 1, count, signals)?;
        stage.cut_ssd()?;
        let came = come(stage, count as u64..2 * count as u64, signals)?;
        Ok((quiet_us, came as f64 / count as f64))
    })?;
    let [on, off] = Days::means(&days.failing);
    let gain = Figure {
        name: "ssd_breaker_gain",
        value: on,
        target: CAME_MIN,
        at_most: false,
        against: "blocks on an SSD of which every read fails, and at a peer",
        words: format!(
            "{:.1} % of {count} blocks come from the peer with it, {:.1} % without",
            100.0 * on,
            100.0 * off
        ),
        details: json!({ "on": days.failing[0], "off": days.failing[1] }),
        why_invalid: None,
    };
    let why = (off >= CAME_MIN).then(|| "as many came without it: no read failed".to_owned());
    let (cost, gain) = (Some(days.cost("ssd_breaker_cost")), gain.proves_nothing(why));
    Ok(Row { pattern: "circuit breaker of the SSD", cost, gain })
}

/// One of two sources is in another zone, which stands still: how long an engine waits for blocks that both have. Each
/// of the two is the one in turn, so that it does not matter whom the index lists first.
pub fn zones(given: &Given<'_>) -> Result<Row, Failure> {
    let (count, signals) = (blocks(given.profile), given.signals);
    let settings = [CALL_BUDGET, "--route-policy fixed"];
    let mut days = Days { quiet_us: [vec![], vec![]], failing: [vec![], vec![]] };
    let mut crossed = [0, 0];
    for (way, far) in [(0, 2), (1, 2), (1, 1), (0, 1)] {
        let zones: &[&str] = match (way, far) {
            (1, _) => &[],
            (_, 1) => &["east", "west", "east"],
            _ => &["east", "east", "west"],
        };
        let mut stage = Stage::start(&Scene { zones, ..Scene::of(3, &settings) }, signals)?;
        let all = count + RECOVERIES_FAILING as usize;
        stage.save(1, 1, all, signals)?;
        stage.save(2, 1, all, signals)?;
        days.quiet_us[way].push(quiet(&mut stage, 1, count, signals)?);
        crossed[way] += stage.report(far)?.0.lending.granted;
        let stopped = stage.stop(far)?;
        let began = Instant::now();
        come(&mut stage, count as u64..all as u64, signals)?;
        days.failing[way].push(began.elapsed().as_secs_f64() * 1e3);
        drop(stopped);
    }
    let [on, off] = Days::means(&days.failing);
    let gain = Figure {
        name: "zones_gain",
        value: off / on,
        target: 2.0,
        at_most: false,
        against: "as many recoveries without zones while one of two sources is stopped",
        words: format!(
            "{RECOVERIES_FAILING} blocks in {on:.0} ms with them, {off:.0} ms without: {:.1} times; {} of {} crossed zones on \
             quiet days, {} without",
            off / on,
            crossed[0],
            2 * count,
            crossed[1]
        ),
        details: json!({ "on_ms": days.failing[0], "off_ms": days.failing[1], "crossed_on_off": crossed }),
        why_invalid: None,
    };
    let why = (crossed[1] == 0).then(|| "without zones nobody asked the other source either".to_owned());
    Ok(Row { pattern: "zones", cost: Some(days.cost("zones_cost")), gain: gain.proves_nothing(why) })
}

/// A source stops: after how many calls what they look like has its name.
pub fn failure_modes(given: &Given<'_>) -> Result<Row, Failure> {
    let signals = given.signals;
    let mut stage = Stage::start(&Scene::of(2, &[CALL_BUDGET, "--breaker 0"]), signals)?;
    stage.save(1, 1, 5 * WINDOW_CALLS as usize, signals)?;
    quiet(&mut stage, 1, WINDOW_CALLS as usize, signals)?;
    let mut next = WINDOW_CALLS;
    let mut calls_until = |stage: &mut Stage, name: &str| -> Result<u64, Failure> {
        let first = next;
        while stage.report(READER)?.0.sources.iter().all(|source| source.mode != name)
            && next < first + 2 * WINDOW_CALLS
        {
            come(stage, next..next + 1, signals)?;
            next += 1;
        }
        Ok(next - first)
    };
    if calls_until(&mut stage, "healthy")? > 0 {
        return Err("calls to a source that answers are not called healthy".into());
    }
    let stopped = stage.stop(1)?;
    let failing = calls_until(&mut stage, "slow-or-cut")?;
    drop(stopped);
    let well = calls_until(&mut stage, "healthy")?;
    let gain = Figure {
        name: "failure_modes_calls",
        value: failing as f64,
        target: WINDOW_CALLS as f64,
        at_most: true,
        against: "calls to a stopped source until they are called slow or cut",
        words: format!("named after {failing} calls to a stopped source, and healthy again after {well}"),
        details: json!({ "calls": failing, "calls_until_healthy": well }),
        why_invalid: None,
    };
    Ok(Row { pattern: "failure modes", cost: None, gain })
}
