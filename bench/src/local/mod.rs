//! `orbitkv-bench local`: what one node makes of this machine's memory, disk and sockets, as ratios
//! against the same work done barely, measured in turns in one run.

pub mod directory;
mod dram;
mod fio;
mod node;
mod plan;
mod query;
mod rest;
mod ssd;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use orbitkv::exit::Exit;
use orbitkv_native::affinity;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::ending::conclude;
use crate::pace::Pace;
use crate::profile::Profile;
use crate::report::{Gate, Report};
use crate::{Failure, fail, machine, progress};
use directory::Workplace;
use plan::Plan;

/// What to measure.
#[derive(Args)]
pub struct LocalArgs {
    /// `full` qualifies; `ci` runs the same on small sizes and qualifies nothing.
    #[arg(long, value_enum, default_value_t = Profile::Full)]
    profile: Profile,
    /// Measure one part alone.
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// Directory on the disk to be measured; files of some gigabytes are made in it and removed
    /// [default: bench-local beside the build's output].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Two cores, e.g. `1,0`: the node's, then the one of this program [default: the last, the first].
    #[arg(long, value_name = "NODE,BENCH")]
    cores: Option<String>,
    /// Seed of payloads and keys.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// A part of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Save and acquire through DRAM against two memcpys.
    Dram,
    /// Write-back to SSD and read from it against fio and a bare ring loop.
    Ssd,
    /// A query of 128 resident keys against an empty round trip.
    Query,
    /// CPU and memory of a node at rest.
    Rest,
}

/// What every part is told.
struct Context {
    plan: Plan,
    workplace: Workplace,
    node_core: usize,
    bench_core: usize,
    /// Cores of this process.
    cores: Vec<usize>,
    seed: u64,
}

impl Context {
    /// Runs `spawn` on all cores of this process: a child inherits the mask of the thread that makes it.
    fn unpinned<T>(&self, spawn: impl FnOnce() -> T) -> std::io::Result<T> {
        let mut mask = CpuSet::new();
        self.cores.iter().for_each(|&core| mask.set(core));
        sched_setaffinity(None, &mask)?;
        let outcome = spawn();
        affinity::pin_current_thread(self.bench_core)?;
        Ok(outcome)
    }

    /// A gate of this run.
    fn gate(&self, name: &'static str) -> Gate {
        Gate::new(name, self.plan.profile, self.seed)
    }
}

/// Measures, prints, and says by its exit code whether every gate is met: 4 if not in the full profile,
/// or if wrong bytes were seen in any.
pub fn run(args: &LocalArgs) -> ExitCode {
    let (node_core, bench_core) = match cores(args.cores.as_deref()) {
        Ok(cores) => cores,
        Err(error) => return fail(Exit::Usage, &*error),
    };
    conclude(measure(args, node_core, bench_core), args.json)
}

fn measure(args: &LocalArgs, node_core: usize, bench_core: usize) -> Result<Report, Failure> {
    let machine = machine::describe();
    let at_start = machine::Pressure::now();
    let context = Context {
        plan: Plan::of(args.profile),
        workplace: Workplace::take(args.dir.clone())?,
        node_core,
        bench_core,
        cores: affinity::available_cores()?,
        seed: args.seed,
    };
    affinity::pin_current_thread(bench_core)?;
    progress(&format!(
        "{} profile; node on core {node_core}, bench on core {bench_core}; files in {}",
        args.profile.name(),
        context.workplace.path().display()
    ));
    let wanted = |part: &Part| args.only.is_none_or(|only| only == *part);
    let parts: Vec<Part> = Part::value_variants().iter().copied().filter(wanted).collect();
    let (mut gates, mut pace) = (Vec::new(), Pace::over(parts.len()));
    for part in parts {
        pace.tell(part.to_possible_value().expect("each has a name").get_name());
        gates.extend(match part {
            Part::Dram => dram::measure(&context)?,
            Part::Ssd => ssd::measure(&context)?,
            Part::Query => query::measure(&context)?,
            Part::Rest => rest::measure(&context)?,
        });
        pace.done();
    }
    let disk = machine::disk_of(context.workplace.path());
    let settings = serde_json::json!({
        "cores": { "node": node_core, "bench": bench_core },
        "disk": disk,
        "sizes": context.plan,
        "pressure": at_start.until_now(),
    });
    Ok(Report {
        name: "local",
        profile: args.profile.into(),
        seed: args.seed,
        machine,
        figures: String::new(),
        gates,
        settings,
    })
}

/// Core of the node and core of this thread.
fn cores(list: Option<&str>) -> Result<(usize, usize), Failure> {
    let available = affinity::available_cores()?;
    let named = match list {
        Some(list) => affinity::parse_core_list(list)?,
        None => [available.last(), available.first()].into_iter().flatten().copied().collect(),
    };
    affinity::check_cores(&named, &available)?;
    match named[..] {
        [node, bench] if node != bench => Ok((node, bench)),
        _ => Err(format!(
            "--cores {}: name two different cores, the node's and this program's; available are {}",
            list.unwrap_or("(default)"),
            affinity::format_core_list(&available)
        )
        .into()),
    }
}
