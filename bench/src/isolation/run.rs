//! One run: nodes of its own, three threads that do what was agreed, and what they saw put together.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread;

use orbitkv::client::RequestMoments;
use orbitkv::control::signals::StopSignals;
use orbitkv_native::clock::monotonic_ns;

use super::exposure::{Burst, Look, Window};
use super::foreground::{self, BEFORE_ROUNDS, Round, Served};
use super::plan::{BURST_PERIOD, Plan};
use super::pressure::Pressure;
use super::record::{DeviceReads, Measured};
use super::sampler;
use super::schedule::{Cell, Medium};
use super::stage::{Cores, Nodes, Placed, Stage};
use crate::attempt::{SentFailure, Unmade, attend, received, sent};
use crate::recording::{self, Recording};
use crate::{Failure, machine};

/// What was recorded beside a run.
pub struct Traced {
    /// What the foreground's node recorded of its core.
    pub recording: Recording,
    /// What its engine did when.
    pub moments: Vec<RequestMoments>,
}

/// What the threads saw.
struct Seen {
    served: Result<Served, Unmade>,
    recording: Option<Result<Recording, SentFailure>>,
    bursts: Result<Vec<Burst>, SentFailure>,
    looks: Vec<Look>,
    cost: sampler::Cost,
    placement: Result<Vec<Placed>, Failure>,
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
    work(cell, plan, cores, seed, data_parent, signals, Recorded::Nothing).map(|(measured, _)| measured)
}

/// Makes the run of a cell with the stage timeline on, and gives that too. It counts for no gate: what the timeline costs
/// is in it.
///
/// # Errors
/// See [`Unmade`].
pub fn make_traced(
    cell: &Cell,
    plan: &Plan,
    cores: Cores,
    seed: u64,
    data_parent: &Path,
    signals: &StopSignals,
) -> Result<(Measured, Traced), Unmade> {
    let (measured, traced) = work(cell, plan, cores, seed, data_parent, signals, Recorded::Turns)?;
    Ok((measured, traced.ok_or_else(|| Failure::from("nothing was recorded"))?))
}

/// Whether the stage timeline is on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Recorded {
    Nothing,
    Turns,
}

fn work(
    cell: &Cell,
    plan: &Plan,
    cores: Cores,
    seed: u64,
    data_parent: &Path,
    signals: &StopSignals,
    recorded: Recorded,
) -> Result<(Measured, Option<Traced>), Unmade> {
    let load = machine::Pressure::now();
    let records = recorded == Recorded::Turns;
    let flags: &[&str] = if records { &["--trace-turns"] } else { &[] };
    let stage = Stage::start(plan, cell.medium, cores, seed, data_parent, flags, signals)?;
    let sight = stage.sight()?;
    let mut pressure = Pressure::begin(&stage.pressure(), plan)?;
    let head_before = sight.await_applied()?.0;
    let at_rest = sampler::cost_at_rest(&sight)?;
    let (reads_before, used_before) = (sight.device_reads()?, sight.used()?);

    let epoch_ns = monotonic_ns() + BEFORE_ROUNDS.as_nanos() as u64;
    // Bursts begin at another phase of the rounds in each run.
    let phase_ns = seed.wrapping_add(cell.number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        % BURST_PERIOD.as_nanos() as u64;
    let stop = AtomicBool::new(false);
    let seat = stage.foreground().with_moments(if records { plan.requests_max() } else { 0 });
    let first_ns = epoch_ns - BURST_PERIOD.as_nanos() as u64 + phase_ns;
    let seen = thread::scope(|scope| {
        let recording = match recorded {
            Recorded::Nothing => None,
            Recorded::Turns => {
                Some(scope.spawn(|| recording::follow(sight.foreground(), &stop).map_err(sent)))
            }
        };
        let bursts = scope.spawn(|| match cell.is_under_pressure() {
            true => pressure.run(first_ns, &stop).map_err(sent),
            false => Ok(Vec::new()),
        });
        let looks = scope.spawn(|| sampler::run(&sight, epoch_ns, at_rest, &stop));
        let rounds = || foreground::run(&seat, plan, cell.medium, epoch_ns, &stop);
        let mut placement = None;
        let served = attend(scope, &stop, signals, rounds, || {
            if placement.is_none() && monotonic_ns() > epoch_ns {
                placement = Some(stage.placement());
            }
        });
        let recording = recording.map(|thread| thread.join().expect("a thread says its errors"));
        let (looks, cost) = looks.join().expect("a thread says its errors");
        let bursts = bursts.join().expect("a thread says its errors");
        let placement = placement.unwrap_or_else(|| stage.placement());
        Seen { served, recording, bursts, looks, cost, placement }
    });
    let Served { rounds: mut warm_up, moments } = seen.served?;
    let recording = seen.recording.transpose().map_err(received)?;
    let traced = recording.map(|recording| Traced { recording, moments });
    let bursts = seen.bursts.map_err(received)?;
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
    let measured = Measured {
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
    };
    Ok((measured, traced))
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
