//! Lookups while an owner with half of all rows is removed, against lookups while nothing else happens.
//!
//! Stalls of a shared machine are longer than what is measured here. So both are taken in many short windows, in
//! turn, and the medians of the windows' 99th percentiles are compared; two halves of the quiet windows, compared
//! with each other, say what such a comparison can tell apart.

use std::time::{Duration, Instant};

use orbitkv_shards::inventory::subscriber::SubscriberSettings;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::plan::Plan;
use super::rows::{Change, Population};
use super::tables::{Index, LOOKUP_KEYS, Table};
use crate::statistics::{Figures, Latencies};

/// Owners. The first one has half of the rows.
const OWNERS: u32 = 64;

/// Lookups that are drawn ahead.
const LOOKUPS_AHEAD: usize = 16;

/// How far the halves of the quiet windows may be apart, either way.
const RESOLUTION: f64 = 1.25;

/// The 99th percentiles of windows, in microseconds.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Retirement {
    /// While nothing else happens.
    pub quiet: Figures,
    /// While rows are removed; from when a slice of that begins, which is the longest a lookup can wait.
    pub retiring: Figures,
    /// The same without the wait.
    pub retiring_alone: Figures,
    /// All quiet lookups together.
    pub quiet_us: Value,
    /// All lookups while rows were removed, together.
    pub retiring_us: Value,
    /// Rows that were removed each time.
    pub rows: u64,
}

/// Measures.
pub fn measure(plan: &Plan, seed: u64) -> Retirement {
    let mut population = Population::new(seed, OWNERS);
    let mut index = Index::new(OWNERS, plan.rows);
    let mut frame = Vec::new();
    let others = u64::from(OWNERS - 1);
    // What a core looks at between two lookups.
    let slice_rows = SubscriberSettings::default().sweep_rows;
    for owner in 1..OWNERS {
        let count = plan.rows / 2 / others;
        fill(&mut index, &mut population, plan, owner, count, &mut frame);
    }
    let mut found = Retirement { rows: plan.rows / 2, ..Retirement::default() };
    let (mut quiet, mut retiring) = (Latencies::new(), Latencies::new());
    for _ in 0..plan.retirements {
        fill(&mut index, &mut population, plan, 0, plan.rows / 2, &mut frame);
        index.replace(0);
        population.forget(0);
        loop {
            let nothing = window(plan, &mut population, &mut index, |_| true);
            let removing =
                window(plan, &mut population, &mut index, |index| index.partition.sweep(slice_rows));
            // The window in which the last row goes is not one of removing.
            if !removing.is_complete {
                break;
            }
            nothing.alone.iter().for_each(|&ns| quiet.record(Duration::from_nanos(ns)));
            removing.whole.iter().for_each(|&ns| retiring.record(Duration::from_nanos(ns)));
            found.quiet.0.push(p99_us(nothing.alone));
            found.retiring.0.push(p99_us(removing.whole));
            found.retiring_alone.0.push(p99_us(removing.alone));
        }
        assert_eq!(index.rows(), population.count(), "the owner's rows are gone, and no others");
    }
    (found.quiet_us, found.retiring_us) = (quiet.json(), retiring.json());
    found
}

fn fill(
    index: &mut Index,
    population: &mut Population,
    plan: &Plan,
    owner: u32,
    mut count: u64,
    frame: &mut Vec<Change>,
) {
    while count > 0 {
        let changes = count.min(plan.frame_changes);
        population.grow(owner, changes, frame);
        index.apply(owner, frame);
        count -= changes;
    }
}

/// Latencies of one window, in nanoseconds.
#[derive(Default)]
struct Window {
    alone: Vec<u64>,
    whole: Vec<u64>,
    is_complete: bool,
}

/// A window in which something is done before each lookup, until that returns false.
fn window(
    plan: &Plan,
    population: &mut Population,
    index: &mut Index,
    mut before: impl FnMut(&mut Index) -> bool,
) -> Window {
    let (mut window, mut drawn) = (Window::default(), Vec::new());
    while window.alone.len() < plan.window_lookups {
        population.draw(1..OWNERS, LOOKUPS_AHEAD * LOOKUP_KEYS, &mut drawn);
        for keys in drawn.chunks(LOOKUP_KEYS) {
            let begun = Instant::now();
            let goes_on = before(index);
            let started = Instant::now();
            let found = index.look_up(keys);
            let ended = Instant::now();
            assert_eq!(found, keys.len(), "every key has a row");
            window.alone.push((ended - started).as_nanos() as u64);
            window.whole.push((ended - begun).as_nanos() as u64);
            if !goes_on {
                return window;
            }
        }
    }
    Window { is_complete: true, ..window }
}

fn p99_us(mut latencies: Vec<u64>) -> f64 {
    latencies.sort_unstable();
    latencies[(latencies.len() - 1) * 99 / 100] as f64 / 1e3
}

/// What the windows say.
#[derive(Debug, PartialEq)]
pub struct Verdict {
    /// Median while rows are removed over median of the quiet ones.
    pub ratio: f64,
    /// Median of the even quiet windows over that of the odd ones.
    pub quiet_over_quiet: f64,
    /// Why that does not count.
    pub why_invalid: Option<String>,
}

impl Retirement {
    /// Compares the windows.
    pub fn verdict(&self) -> Option<Verdict> {
        if self.quiet.0.len() < 4 {
            return None;
        }
        let half = |from| Figures(self.quiet.0.iter().skip(from).step_by(2).copied().collect()).median();
        let quiet_over_quiet = half(0) / half(1);
        let is_resolved = (1.0 / RESOLUTION..=RESOLUTION).contains(&quiet_over_quiet);
        let why_invalid = (!is_resolved).then(|| {
            format!("not resolvable here: quiet windows differ from quiet windows by {quiet_over_quiet:.2}")
        });
        Some(Verdict { ratio: self.retiring.median() / self.quiet.median(), quiet_over_quiet, why_invalid })
    }

    /// All of it.
    pub fn json(&self) -> Value {
        json!({
            "rows_removed_each_time": self.rows,
            "windows": self.quiet.0.len(),
            "quiet_p99_us": self.quiet.json(),
            "retiring_p99_us": self.retiring.json(),
            "retiring_p99_us_without_the_wait": self.retiring_alone.json(),
            "quiet_lookups_us": self.quiet_us,
            "retiring_lookups_us": self.retiring_us,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(quiet: &[f64], retiring: &[f64]) -> Retirement {
        Retirement {
            quiet: Figures(quiet.into()),
            retiring: Figures(retiring.into()),
            ..Retirement::default()
        }
    }

    #[test]
    fn a_stall_in_some_windows_decides_nothing() {
        let verdict =
            windows(&[10.0, 10.0, 11.0, 10.0, 9000.0, 10.0], &[15.0, 15.0, 15.0, 8000.0, 15.0, 15.0]);
        let verdict = verdict.verdict().unwrap();
        assert_eq!((verdict.ratio, verdict.why_invalid), (1.5, None));
    }

    #[test]
    fn quiet_windows_that_differ_from_each_other_resolve_nothing() {
        for quiet in [[10.0, 20.0, 10.0, 20.0], [20.0, 10.0, 20.0, 10.0]] {
            let verdict = windows(&quiet, &[15.0; 4]).verdict().unwrap();
            assert!(verdict.why_invalid.is_some(), "{verdict:?}");
        }
        assert_eq!(windows(&[1.0; 3], &[1.0; 3]).verdict(), None);
    }

    #[test]
    fn an_owner_is_removed_while_others_are_looked_up() {
        let plan = Plan {
            rows: 40_000,
            retirements: 2,
            window_lookups: 20,
            ..Plan::of(crate::profile::Profile::Ci)
        };
        let found = measure(&plan, 1);
        assert!(found.quiet.0.len() >= 4 && found.quiet.0.len() == found.retiring.0.len());
    }
}
