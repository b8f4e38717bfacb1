//! `orbitkv-bench index`: the index of other nodes' blocks on one core, beside a bare hash map and the indexers of
//! others on the same rows, in one run.

mod cell;
mod frames;
mod gates;
mod plan;
mod retirement;
mod rows;
mod tables;
mod throughput;
mod trace;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use orbitkv::exit::Exit;
use orbitkv_native::affinity;
use serde_json::{Value, json};

use crate::ending::conclude;
use crate::pace::Pace;
use crate::profile::Profile;
use crate::report::Report;
use crate::{Failure, fail, machine, progress};
use cell::{Cell, What};
use gates::{Beside, Context};
use plan::Plan;
use throughput::Throughput;

/// Indexers of others that the program of `--rivals` has.
const RIVALS: &[&str] = &["dynamo-concurrent-radix", "dynamo-positional", "dynamo-radix"];

/// What to measure.
#[derive(Args)]
pub struct IndexArgs {
    /// `full` qualifies; `ci` runs the same on small sizes and qualifies nothing.
    #[arg(long, value_enum, default_value_t = Profile::Full)]
    profile: Profile,
    /// Measure one part alone.
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// Trace in Mooncake's JSONL: one request a line, with `hash_ids`. Without it nothing is compared with
    /// the indexers of others.
    #[arg(long, value_name = "PATH")]
    trace: Option<PathBuf>,
    /// The program that has the indexers of others, built in `bench/rivals`.
    #[arg(long, value_name = "PROGRAM")]
    rivals: Option<PathBuf>,
    /// The core to measure on [default: the last one].
    #[arg(long)]
    core: Option<usize>,
    /// Seed of rows, keys and owners.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Measure this alone, for a run that waits for it.
    #[arg(long, hide = true, value_name = "JSON")]
    cell: Option<String>,
}

/// A part of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Changes, lookups and bytes at several numbers of owners.
    Throughput,
    /// Lookups while rows are removed.
    Retirement,
    /// Frames written, checked and applied.
    Frames,
    /// The trace, and indexers of others on it.
    Trace,
}

/// Measures, prints, and says by its exit code whether every gate is met: 4 if not in the full profile.
pub fn run(args: &IndexArgs) -> ExitCode {
    if let Some(cell) = &args.cell {
        let cell = serde_json::from_str(cell).map_err(Failure::from);
        return match cell.and_then(|cell: Cell| cell.run()) {
            Ok(()) => Exit::Done.into(),
            Err(error) => fail(Exit::Environment, &*error),
        };
    }
    let core = match core(args.core) {
        Ok(core) => core,
        Err(error) => return fail(Exit::Usage, &*error),
    };
    conclude(measure(args, core), args.json)
}

fn core(named: Option<usize>) -> Result<usize, Failure> {
    let available = affinity::available_cores()?;
    let core = named.or(available.last().copied()).ok_or("there is no core")?;
    affinity::check_cores(&[core], &available)?;
    Ok(core)
}

fn measure(args: &IndexArgs, core: usize) -> Result<Report, Failure> {
    let machine = machine::describe();
    let at_start = machine::Pressure::now();
    let plan = Plan::of(args.profile);
    let cell = |what| Cell { what, ci: args.profile == Profile::Ci, seed: args.seed, core };
    let context = Context { profile: args.profile, seed: args.seed };
    let wanted = |part| args.only.is_none_or(|only| only == part);
    progress(&format!("{} profile on core {core}, {} rows", args.profile.name(), plan.rows));
    let mut pace = Pace::over(cells(args, &plan));

    let (mut gates, mut figures) = (Vec::new(), Vec::new());
    let mut details = json!({});
    if wanted(Part::Throughput) {
        let mut all: Vec<Throughput> = Vec::new();
        for &owners in plan.owners {
            pace.tell(&format!("throughput, {owners} owners"));
            all.push(cell(What::Throughput { owners }).measure()?);
            pace.done();
        }
        gates.extend(gates::throughput(&context, &all));
        figures.push(gates::throughput_table(&all).to_string());
        details["throughput"] = serde_json::to_value(&all)?;
    }
    if wanted(Part::Retirement) {
        pace.tell("retirement");
        let found: retirement::Retirement = cell(What::Retirement).measure()?;
        pace.done();
        gates.push(gates::retirement(&context, &found));
    }
    if wanted(Part::Frames) {
        pace.tell("frames");
        let found: frames::Frames = cell(What::Frames).measure()?;
        pace.done();
        figures.push(gates::frames_table(&found).to_string());
        details["frames"] = serde_json::to_value(&found)?;
    }
    if wanted(Part::Trace) {
        let mut all = Vec::new();
        if let Some(path) = &args.trace {
            for &owners in plan.owners {
                let cell = cell(What::Trace { owners, path: path.clone() });
                all.push(beside(&plan, owners, &cell, path, args.rivals.as_deref(), &mut pace)?);
            }
            figures.push(gates::trace_table(&all).to_string());
        }
        gates.extend(gates::trace(&context, &all));
        details["trace"] = all.iter().map(Beside::json).collect();
    }
    let settings =
        json!({ "core": core, "sizes": plan, "pressure": at_start.until_now(), "figures": details });
    Ok(Report {
        name: "index",
        profile: args.profile.into(),
        seed: args.seed,
        machine,
        figures: figures.join("\n\n"),
        gates,
        settings,
    })
}

/// What is measured in a process of its own each; a turn on the trace is one, with all indexers of others in it.
fn cells(args: &IndexArgs, plan: &Plan) -> usize {
    let parts = [
        (Part::Throughput, plan.owners.len()),
        (Part::Retirement, 1),
        (Part::Frames, 1),
        (Part::Trace, if args.trace.is_some() { plan.owners.len() * plan.trace_turns } else { 0 }),
    ];
    parts
        .into_iter()
        .filter(|(part, _)| args.only.is_none_or(|only| only == *part))
        .map(|(_, cells)| cells)
        .sum()
}

/// The index and every indexer of others on the trace, in turn.
fn beside(
    plan: &Plan,
    owners: u32,
    cell: &Cell,
    path: &Path,
    rivals: Option<&Path>,
    pace: &mut Pace,
) -> Result<Beside, Failure> {
    let names = if rivals.is_some() { RIVALS } else { &[] };
    let mut beside =
        Beside { owners, index: Vec::new(), rivals: names.iter().map(|&name| (name, Vec::new())).collect() };
    for turn in 1..=plan.trace_turns {
        pace.tell(&format!("trace, {owners} owners, turn {turn}"));
        let ours: Value = cell.measure()?;
        for (name, found) in &mut beside.rivals {
            let program = rivals.expect("there are names of rivals if there is a program");
            let theirs = cell::rival(program, name, owners, path, plan, cell.seed)?;
            if theirs["rows"] != ours["rows"] || theirs["blocks_a_query"].is_null() {
                return Err(format!(
                    "{name} was given other rows: {} and not {}",
                    theirs["rows"], ours["rows"]
                )
                .into());
            }
            found.push(theirs);
        }
        beside.index.push(ours);
        pace.done();
    }
    Ok(beside)
}
