//! `orbitkv-bench soak`: hours of what a cluster has to bear, ending in exact convergence with bounded memory (chapter 6.6).
//!
//! A live cell saves, queries and restores on DRAM and SSD with every byte compared, here and at a peer, while other nodes
//! change their inventory. A cell of faults strikes a cluster under load in a seeded order: partitions, slow subscribers,
//! overflowing journals, restarts, expired leases, a coordinator that stands still. Each fault has to leave something in the
//! nodes' counters; in the end every key is compared, and memory is held against the printed bill.

mod faults;
mod gates;
mod growth;
mod live;
mod load;
mod plan;
mod sampler;
mod schedule;
mod seats;
mod strike;
mod traces;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use clap::Args;
use orbitkv::control::signals::StopSignals;
use orbitkv::exit::Exit;
use orbitkv_native::ssd_file::DataDirLock;
use rustix::process::geteuid;

use crate::campaign::new_directory;
use crate::ending::conclude;
use crate::profile::FormalProfile;
use crate::report::Report;
use crate::{Failure, fail, machine, own_network, progress};
use gates::Soak;
use plan::{Part, Plan};
use strike::Means;

/// What to make.
#[derive(Args)]
pub struct SoakArgs {
    /// `formal` takes two and a half hours, `dense` twenty minutes; `ci` makes each fault once in three minutes and
    /// qualifies nothing.
    #[arg(long, value_enum)]
    profile: FormalProfile,
    /// Which part.
    #[arg(long, value_enum, default_value_t = Part::Both)]
    cell: Part,
    /// Seed of payload and of all faults.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// New directory on a disk, for samples and the report; the SSD file lies there while the run lasts.
    #[arg(long, value_name = "DIR", default_value = "orbitkv-soak")]
    out: PathBuf,
    /// This process has a network namespace of its own already.
    #[arg(long, hide = true)]
    inside: bool,
}

/// Makes it, prints, and says by its exit code whether every gate is met: 4 if not in a profile that qualifies, if bytes
/// were wrong, lost or not converged in any, or if a signal came.
pub fn run(args: &SoakArgs) -> ExitCode {
    let faults = args.cell != Part::Live;
    if faults && !args.inside && geteuid().is_root() {
        progress(&format!(
            "no network namespace, so partitioned nodes are stopped instead: {}",
            own_network::enter()
        ));
    }
    let instead = "name another, because a soak is made in one go";
    let directory = match new_directory(&args.out, instead) {
        Ok(directory) => directory,
        Err(error) => return fail(Exit::Usage, &*error),
    };
    conclude(measure(args, &directory), args.json)
}

fn measure(args: &SoakArgs, directory: &Path) -> Result<Report, Failure> {
    let _lock = DataDirLock::acquire(directory)?;
    let (machine, plan) = (machine::describe(), Plan::of(args.profile));
    let (load, began) = (machine::Pressure::now(), SystemTime::now());
    let signals = StopSignals::watch()?;
    let means = if args.inside { Means::Network } else { Means::Stopping };
    let live = match args.cell {
        Part::Faults => None,
        Part::Live | Part::Both => {
            let file = directory.join("live-samples.jsonl");
            Some(live::run(&plan, args.seed, directory, &file, &signals)?)
        }
    };
    let faults = match args.cell {
        Part::Live => None,
        Part::Faults | Part::Both => {
            let file = directory.join("faults-samples.jsonl");
            let cell = faults::run(&plan, args.seed, means, &file, &signals)?;
            fs::write(directory.join("faults.json"), format!("{:#}\n", serde_json::to_value(&cell.done)?))?;
            Some(cell)
        }
    };
    let soak = Soak { profile: args.profile, plan: &plan, seed: args.seed, live, faults };
    let report = soak.report(machine, load.until_now());
    let lasted = began.elapsed().unwrap_or_default();
    for distribution in soak.distributions() {
        fs::write(directory.join(format!("{}.hlog", distribution.name)), distribution.log(began, lasted))?;
    }
    fs::write(directory.join("report.json"), format!("{:#}\n", report.json()))?;
    progress(&format!("written: {}", directory.display()));
    Ok(report)
}
