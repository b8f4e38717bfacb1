//! A zone that comes and goes: what its second silence costs who prefers it still, and who has left it.

use std::time::{Duration, Instant};

use orbitkv::control::signals::StopSignals;
use serde_json::json;

use super::Given;
use super::figures::{Days, Figure};
use super::guards::come;
use super::rows::{CALL_BUDGET, RECOVERIES_FAILING, Row, blocks, quiet, switched};
use super::stage::{READER, Scene, Stage};
use crate::Failure;
use crate::streams::pause;

/// The reader and its near source, and the far one.
const ZONES: [&str; 3] = ["east", "east", "west"];
const NEAR: usize = 1;
/// A zone is left after one missed check, or not within any silence here.
const SETTINGS: [[&str; 3]; 2] = [
    [CALL_BUDGET, "--route-policy fixed", "--failover-checks 1"],
    [CALL_BUDGET, "--route-policy fixed", "--failover-checks 300"],
];
/// Shortest first silence: until what was heard is too old, and one check. A lease lives for longer.
const SILENCE_MIN: Duration = Duration::from_secs(7);
/// Longest, until the zone has to be left.
const SILENCE_MAX: Duration = Duration::from_secs(9);
/// Time in which everybody is heard again: one beat, and another.
const HEARD: Duration = Duration::from_secs(4);
const LOOK: Duration = Duration::from_millis(20);

fn has_left(stage: &Stage) -> Result<bool, Failure> {
    Ok(stage.report(READER)?.0.zones.preferred.as_deref() == Some(ZONES[2]))
}

/// The near source is silent for so long that its zone is left, if it ever is, and is heard again.
fn first_silence(stage: &Stage, leaves: bool, rows: u64, signals: &StopSignals) -> Result<(), Failure> {
    let stopped = stage.stop(NEAR)?;
    let began = Instant::now();
    while began.elapsed() < SILENCE_MIN || (leaves && !has_left(stage)? && began.elapsed() < SILENCE_MAX) {
        pause(LOOK, signals)?;
    }
    drop(stopped);
    pause(HEARD, signals)?;
    let again = Instant::now();
    while stage.report(READER)?.0.index_rows < rows {
        if again.elapsed() > SILENCE_MAX {
            return Err("the near source is not known again".into());
        }
        pause(LOOK, signals)?;
    }
    match (leaves, has_left(stage)?) {
        (true, false) => Err("a zone that was silent was not left".into()),
        (false, true) => Err("a zone was left that was to be preferred".into()),
        _ => Ok(()),
    }
}

/// The near source stops for the second time: how long an engine waits for blocks that the far one has, too.
pub fn failover(given: &Given<'_>) -> Result<Row, Failure> {
    let (count, signals) = (blocks(given.profile), given.signals);
    let all = count + RECOVERIES_FAILING as usize;
    let mut ways = [true, false, false, true].into_iter();
    let scenes = [0, 1].map(|way| Scene { zones: &ZONES, ..Scene::of(3, &SETTINGS[way]) });
    let days = switched(scenes, signals, |stage| {
        let leaves = ways.next().expect("four days");
        for source in [NEAR, 2] {
            stage.save(source, 1, all, signals)?;
        }
        let quiet_us = quiet(stage, 1, count, signals)?;
        first_silence(stage, leaves, 2 * all as u64, signals)?;
        let stopped = stage.stop(NEAR)?;
        let began = Instant::now();
        come(stage, count as u64..all as u64, signals)?;
        let failing_ms = began.elapsed().as_secs_f64() * 1e3;
        drop(stopped);
        Ok((quiet_us, failing_ms))
    })?;
    let [on, off] = Days::means(&days.failing);
    let gain = Figure {
        name: "failover_gain",
        value: off / on,
        target: 2.0,
        at_most: false,
        against: "as many recoveries in a zone's second silence where it is preferred still",
        words: format!(
            "{RECOVERIES_FAILING} blocks in {on:.0} ms while a zone is silent for the second time, {off:.0} ms where it is preferred \
             still: {:.1} times",
            off / on
        ),
        details: json!({ "on_ms": days.failing[0], "off_ms": days.failing[1] }),
        why_invalid: None,
    };
    Ok(Row { pattern: "failover", cost: Some(days.cost("failover_cost")), gain })
}
