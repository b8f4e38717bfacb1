//! A namespace that saves as fast as it can beside one that has what it needs in DRAM.

use std::time::Duration;

use orbitkv::control::signals::StopSignals;
use serde_json::json;

use super::Given;
use super::figures::{Days, Figure};
use super::rows::{DEADLINE, Row, blocks, quiet, switched};
use super::stage::{BATCH_BLOCKS, BLOCK_BYTES, DRAM_BYTES, READER, Scene, Stage};
use crate::Failure;
use crate::streams::pause;

/// What a namespace may have: the burst is all that is asked for on a quiet day and [`HELD_BLOCKS`] more, so that the
/// rate is never reached then.
const RATE: &str = "--namespace-rate 8mib --namespace-burst 40mib";
/// Blocks that the neighbour has in DRAM: 8 MiB.
const HELD_BLOCKS: usize = 256;
/// Blocks that are offered: twice what DRAM holds.
const FLOOD_BLOCKS: usize = (2 * DRAM_BYTES / BLOCK_BYTES) as usize;
/// Part of what the neighbour had that has to be there after the flood.
const KEPT_MIN: f64 = 0.99;

/// What a flood does to a neighbour.
#[derive(Clone, Copy)]
struct Flood {
    /// Blocks of it that were taken.
    taken: usize,
    /// Blocks of the neighbour that came afterwards.
    kept: usize,
}

fn flood(stage: &mut Stage, signals: &StopSignals) -> Result<Flood, Failure> {
    stage.save(READER, 2, HELD_BLOCKS, signals)?;
    let taken = stage.stranger(READER)?.offer(3, FLOOD_BLOCKS, signals)?;
    let mut kept = 0;
    for first in (0..HELD_BLOCKS).step_by(BATCH_BLOCKS) {
        pause(Duration::ZERO, signals)?;
        kept += stage.ask(2, first as u64..(first + BATCH_BLOCKS) as u64, DEADLINE)?.ready;
    }
    Ok(Flood { taken, kept })
}

/// Another namespace offers twice what DRAM holds: how much of what a neighbour had, and nobody else has, it still gets.
pub fn throttle(given: &Given<'_>) -> Result<Row, Failure> {
    let (count, signals) = (blocks(given.profile), given.signals);
    let mut floods = Vec::new();
    let days = switched([Scene::of(2, &[RATE]), Scene::of(2, &[])], signals, |stage| {
        stage.save(1, 1, count, signals)?;
        let quiet_us = quiet(stage, 1, count, signals)?;
        let seen = flood(stage, signals)?;
        floods.push(seen);
        Ok((quiet_us, seen.kept as f64 / HELD_BLOCKS as f64))
    })?;
    let taken: Vec<usize> = floods.iter().map(|flood| flood.taken).collect();
    Ok(Row {
        pattern: "throttle and shed",
        cost: Some(days.cost("throttle_cost")),
        gain: kept(&days, &taken),
    })
}

/// The gain; `taken` is in the order of the days: with it, without, without, with it.
fn kept(days: &Days, taken: &[usize]) -> Figure {
    let [on, off] = Days::means(&days.failing);
    let of_both = |way: [usize; 2]| way.iter().map(|&day| taken[day]).sum::<usize>();
    let (let_in, without) = (of_both([0, 3]), of_both([1, 2]));
    let figure = Figure {
        name: "throttle_neighbour_kept",
        value: on,
        target: KEPT_MIN,
        at_most: false,
        against: "blocks in DRAM that come though another namespace has offered twice what DRAM holds",
        words: format!(
            "{:.1} % of {HELD_BLOCKS} blocks come beside a namespace that offers {FLOOD_BLOCKS}, {:.1} % without; {let_in} of \
             {} were taken, {without} without",
            100.0 * on,
            100.0 * off,
            2 * FLOOD_BLOCKS
        ),
        details: json!({ "on": days.failing[0], "off": days.failing[1], "taken_on_off_off_on": taken }),
        why_invalid: None,
    };
    let why = if off >= KEPT_MIN {
        Some("as many came without it: the flood took nothing".to_owned())
    } else if let_in >= 2 * FLOOD_BLOCKS {
        Some("all that was offered was taken with it, too".to_owned())
    } else {
        None
    };
    figure.proves_nothing(why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;

    #[test]
    fn a_throttle_is_judged_only_if_it_held_something_back_that_does_harm() {
        let of = |on: f64, off: f64, taken: usize| {
            let days = Days { quiet_us: [vec![1.0; 2], vec![1.0; 2]], failing: [vec![on; 2], vec![off; 2]] };
            let figure = kept(&days, &[taken, FLOOD_BLOCKS, FLOOD_BLOCKS, taken]);
            let why = figure.why_invalid.clone();
            (why, figure.gate(Profile::Full).is_met())
        };
        assert_eq!(of(1.0, 0.0, 900), (None, true));
        assert_eq!(of(0.5, 0.0, 900), (None, false));
        assert!(of(1.0, 1.0, 900).0.expect("invalid").contains("took nothing"));
        assert!(of(1.0, 0.0, FLOOD_BLOCKS).0.expect("invalid").contains("all that was offered"));
    }
}
