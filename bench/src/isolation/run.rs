//! One run: nodes of its own, three threads that do what was agreed, and what they saw put together.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use orbitkv::control::signals::StopSignals;
use orbitkv_native::clock::monotonic_ns;

use super::exposure::{Burst, Look, Window};
use super::foreground::{self, Round};
use super::plan::{BURST_PERIOD, Plan};
use super::pressure::Pressure;
use super::record::{DeviceReads, Measured};
use super::sampler;
use super::schedule::{Cell, Medium};
use super::stage::{Cores, Nodes, Placed, Stage};
use crate::payload::WrongBytes;
use crate::{Failure, machine};

/// From the last preparation to the first round, so that every thread is there.
const BEFORE_ROUNDS: Duration = Duration::from_millis(300);
/// How often somebody looks whether a signal came, or the rounds are over.
const LOOK: Duration = Duration::from_millis(50);

/// What a thread failed with: a [`Failure`] does not leave its thread.
struct ThreadFailure {
    wrong_bytes: bool,
    words: String,
}

impl From<Failure> for ThreadFailure {
    fn from(failure: Failure) -> ThreadFailure {
        ThreadFailure { wrong_bytes: failure.is::<WrongBytes>(), words: failure.to_string() }
    }
}

/// Why a run has no result.
pub enum Unmade {
    /// A signal came.
    Stopped(&'static str),
    /// A block came back wrong.
    WrongBytes(String),
    /// Something else.
    Failed(Failure),
}

impl<F: Into<Failure>> From<F> for Unmade {
    fn from(failure: F) -> Unmade {
        Unmade::Failed(failure.into())
    }
}

/// What the three threads saw.
struct Seen {
    rounds: Result<Vec<Round>, ThreadFailure>,
    bursts: Result<Vec<Burst>, ThreadFailure>,
    looks: Vec<Look>,
    cost: sampler::Cost,
    placement: Result<Vec<Placed>, Failure>,
    signal: Option<&'static str>,
}

/// Makes the run of a cell.
///
/// # Errors
/// See [`Unmade`].
pub fn make(
    cell: &Cell,
    plan: &Plan,
    cores: Cores,
    seed: u64,
    data_parent: &Path,
    signals: &StopSignals,
) -> Result<Measured, Unmade> {
    let load = machine::Pressure::now();
    let stage = Stage::start(plan, cell.medium, cores, seed, data_parent, signals)?;
    let sight = stage.sight()?;
    let mut pressure = Pressure::begin(&stage.pressure(), plan)?;
    let head_before = sight.await_applied()?.0;
    let at_rest = sampler::cost_at_rest(&sight)?;
    let (reads_before, used_before) = (sight.device_reads()?, sight.used()?);

    let epoch_ns = monotonic_ns() + BEFORE_ROUNDS.as_nanos() as u64;
    // Bursts begin at another phase of the rounds in each run.
    let phase_ns = seed.wrapping_add(cell.number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        % BURST_PERIOD.as_nanos() as u64;
    let (stop, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let seat = stage.foreground();
    let first_ns = epoch_ns - BURST_PERIOD.as_nanos() as u64 + phase_ns;
    let seen = thread::scope(|scope| {
        let rounds = scope.spawn(|| {
            let rounds = foreground::run(&seat, plan, cell.medium, epoch_ns, &stop);
            over.store(true, Ordering::Relaxed);
            rounds.map_err(ThreadFailure::from)
        });
        let bursts = scope.spawn(|| match cell.is_under_pressure() {
            true => pressure.run(first_ns, &stop).map_err(ThreadFailure::from),
            false => Ok(Vec::new()),
        });
        let looks = scope.spawn(|| sampler::run(&sight, epoch_ns, at_rest, &stop));
        let mut signal = None;
        let mut placement = None;
        while !over.load(Ordering::Relaxed) && signal.is_none() {
            signal = signals.wait(LOOK);
            if placement.is_none() && monotonic_ns() > epoch_ns {
                placement = Some(stage.placement());
            }
        }
        stop.store(true, Ordering::Relaxed);
        let rounds = rounds.join().expect("a thread says its errors");
        let (looks, cost) = looks.join().expect("a thread says its errors");
        let bursts = bursts.join().expect("a thread says its errors");
        let placement = placement.unwrap_or_else(|| stage.placement());
        Seen { rounds, bursts, looks, cost, placement, signal }
    });
    if let Some(signal) = seen.signal {
        return Err(Unmade::Stopped(signal));
    }
    let failed = |failure: ThreadFailure| match failure.wrong_bytes {
        true => Unmade::WrongBytes(failure.words),
        false => Unmade::Failed(failure.words.into()),
    };
    let mut warm_up = seen.rounds.map_err(failed)?;
    let bursts = seen.bursts.map_err(failed)?;
    let used = sight.used()?;
    let reads = sight.device_reads()?;
    let changes = bursts.last().map_or(0, |burst| burst.changes);
    let final_check = pressure.check(&stage.foreground(), &sight, head_before, changes)?;
    let rounds = warm_up.split_off(plan.warm_up_rounds.min(warm_up.len()));
    let restored = (warm_up.len() + rounds.len()) as u64;
    let (Some(first), Some(last)) = (rounds.first(), rounds.last()) else {
        return Err(Unmade::Failed("no round was made".into()));
    };
    let window = Window { began_ns: first.intended_ns, ended_ns: last.restored_ns };
    let names = |columns: &[&str]| columns.iter().map(|&name| name.to_owned()).collect();
    Ok(Measured {
        window,
        placement: worst(seen.placement?, stage.placement()?),
        processor_seconds: Nodes {
            foreground: used.foreground.saturating_sub(used_before.foreground).as_secs_f64(),
            pressure: used.pressure.saturating_sub(used_before.pressure).as_secs_f64(),
        },
        sampler: seen.cost,
        final_check,
        device: (cell.medium == Medium::Ssd).then(|| DeviceReads {
            blocks: restored * plan.blocks as u64,
            bytes: restored * plan.round_bytes(),
            node_blocks: reads.0.saturating_sub(reads_before.0),
            kernel_bytes: reads.1.saturating_sub(reads_before.1),
        }),
        core_turns: sight.core_turns()?,
        bytes_by_kind: sight.bytes_by_kind()?,
        machine_load: load.until_now(),
        round_columns: names(&Round::COLUMNS),
        warm_up,
        rounds,
        burst_columns: names(&Burst::COLUMNS),
        bursts,
        look_columns: names(&Look::COLUMNS),
        looks: seen.looks,
    })
}

/// Where everything was at first, with whatever had left its core by the end.
fn worst(first: Vec<Placed>, last: Vec<Placed>) -> Vec<Placed> {
    let late = |placed: Placed| {
        let later = last.iter().find(|later| later.process == placed.process);
        let astray = later.map_or(0, |later| later.astray).max(placed.astray);
        Placed { astray, ..placed }
    };
    first.into_iter().map(late).collect()
}
