//! Looks at both sides while a run is on, and says what the looking itself has cost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use orbitkv_native::clock::monotonic_ns;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::exposure::Look;
use super::plan::SAMPLE_PERIOD;
use super::stage::Sight;
use crate::Failure;
use crate::clock::sleep_until;
use crate::statistics::nearest_rank;

/// Looks at nodes at rest that the cost to them is told from.
const LOOKS_AT_REST: u32 = 40;

/// What looking costs, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Processor time of the looking thread, a look.
    pub sampler_cpu_us: f64,
    /// Processor time of the foreground's node that a look takes when nothing else happens.
    pub foreground_cpu_us: f64,
    /// That of the pressure's node.
    pub pressure_cpu_us: f64,
    /// Median time until both have answered.
    pub answer_us_p50: f64,
    /// The 99th percentile of it.
    pub answer_us_p99: f64,
    /// Looks that one side did not answer.
    pub unanswered: usize,
}

/// Measures what a look costs nodes that do nothing else, on this core's processes.
///
/// # Errors
/// If a node does not answer.
pub fn cost_at_rest(sight: &Sight) -> Result<Cost, Failure> {
    sight.look(monotonic_ns())?;
    let before = sight.used()?;
    for _ in 0..LOOKS_AT_REST {
        sight.look(monotonic_ns())?;
    }
    let after = sight.used()?;
    let each = |used: Duration| used.as_secs_f64() * 1e6 / f64::from(LOOKS_AT_REST);
    Ok(Cost {
        foreground_cpu_us: each(after.foreground.saturating_sub(before.foreground)),
        pressure_cpu_us: each(after.pressure.saturating_sub(before.pressure)),
        ..Cost::default()
    })
}

/// Looks each period from `epoch_ns` until `stop` is set. What comes too late is left out.
pub fn run(sight: &Sight, epoch_ns: u64, at_rest: Cost, stop: &AtomicBool) -> (Vec<Look>, Cost) {
    let period = SAMPLE_PERIOD.as_nanos() as u64;
    let cpu = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default();
    let (mut looks, mut answers, mut unanswered) = (Vec::new(), Vec::new(), 0);
    let before = cpu();
    let mut intended_ns = epoch_ns;
    while !stop.load(Ordering::Relaxed) {
        sleep_until(intended_ns);
        let asked_ns = monotonic_ns();
        match sight.look(intended_ns) {
            Ok(look) => {
                answers.push(look.observer_ns - asked_ns);
                looks.push(look);
            }
            Err(_) => unanswered += 1,
        }
        let missed = monotonic_ns().saturating_sub(intended_ns) / period;
        intended_ns += period * missed.max(1);
    }
    let taken = (answers.len() + unanswered).max(1) as f64;
    let rank = |share| if answers.is_empty() { 0.0 } else { nearest_rank(&answers, share) as f64 / 1e3 };
    let cost = Cost {
        sampler_cpu_us: (cpu() - before).as_secs_f64() * 1e6 / taken,
        answer_us_p50: rank(0.5),
        answer_us_p99: rank(0.99),
        unanswered,
        ..at_rest
    };
    (looks, cost)
}
