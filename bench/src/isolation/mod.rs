//! `orbitkv-bench isolation`: whether what other nodes tell a node slows down the engines of that node.
//!
//! An engine saves, queries and restores new blocks on one node, in rounds. In half of the runs the engine of another node
//! puts and deletes keys meanwhile, in a burst each 17 ms, of which the first node hears and has to keep its index.
//! Runs come in pairs, quiet and under pressure, and before them in pairs of two quiet ones, which say how much
//! runs on this machine differ anyway. What counts is the p99 of save and query, a pair's ratio, and the geometric mean
//! of all pairs with its bootstrap bound. Whether a run was under the declared pressure is proved or it does not count.
//!
//! Every run is a file, raw, and a campaign that was interrupted goes on with `--resume`.

mod campaign;
pub mod exposure;
pub mod foreground;
mod gates;
pub mod plan;
mod pressure;
pub mod record;
mod run;
mod sampler;
pub mod schedule;
pub mod stage;
#[cfg(test)]
pub mod tests;
mod traced;
pub mod verdict;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use orbitkv::exit::Exit;

use crate::campaign::Campaign;
use crate::cores::two_cores;
use crate::ending::tell;
use crate::profile::FormalProfile;
use crate::{Failure, fail};
use campaign::IsolationOrder;
use plan::Plan;
use schedule::Medium;
use stage::Cores;

/// What to measure.
#[derive(Args)]
pub struct IsolationArgs {
    /// `formal` and `dense` qualify and take 12 hours and 80 minutes; `ci` takes minutes and qualifies nothing.
    #[arg(long, value_enum)]
    profile: FormalProfile,
    /// Where blocks are restored from.
    #[arg(long, value_enum, default_value_t = Media::Both)]
    medium: Media,
    /// Rounds of a run that count, more than the profile's own.
    #[arg(long)]
    rounds: Option<usize>,
    /// Two cores, e.g. `1,0`: of the foreground and its node, then of everything else [default: the last, the first].
    #[arg(long, value_name = "NODE,OTHER")]
    cores: Option<String>,
    /// Seed of keys, payload and phases.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Make one run under pressure with the stage timeline on instead of a campaign, and show what the node's core was
    /// doing while the slowest requests waited. Counts for no gate.
    #[arg(long, conflicts_with = "resume")]
    trace_turns: bool,
    /// With --trace-turns: requests to show.
    #[arg(long, value_name = "N", default_value_t = 5)]
    slowest: usize,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// New directory on a disk for one file a run; the nodes' SSD file lies there, too.
    #[arg(long, value_name = "DIR", default_value = "orbitkv-isolation", conflicts_with = "resume")]
    out: PathBuf,
    /// Go on with the campaign of this directory: runs that are there are not made again.
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,
}

/// Media to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Media {
    /// Memory.
    Dram,
    /// SSD.
    Ssd,
    /// Both, one after the other.
    Both,
}

impl Media {
    fn list(self) -> Vec<Medium> {
        match self {
            Media::Dram => vec![Medium::Dram],
            Media::Ssd => vec![Medium::Ssd],
            Media::Both => vec![Medium::Dram, Medium::Ssd],
        }
    }
}

/// Measures, prints, and says by its exit code whether every gate is met: 4 if not in a profile that qualifies, if wrong
/// bytes were seen in any, or if a signal came.
pub fn run(args: &IsolationArgs) -> ExitCode {
    let usage = |error: Failure| fail(Exit::Usage, &*error);
    let plan = match Plan::of(args.profile, args.rounds) {
        Ok(plan) => plan,
        Err(words) => return usage(words.into()),
    };
    let cores = match cores(args.cores.as_deref()) {
        Ok(cores) => cores,
        Err(error) => return usage(error),
    };
    if args.trace_turns {
        return traced::run(&plan, args, cores);
    }
    let wanted = Campaign::new(IsolationOrder { plan, media: args.medium.list(), seed: args.seed, cores });
    let shelf = match wanted.open(args.resume.as_deref(), &args.out) {
        Ok(shelf) => shelf,
        Err(error) => return usage(error),
    };
    match wanted.work(&shelf) {
        Ok(report) => tell(&report, args.json),
        Err(ended) => ended.tell(),
    }
}

/// Core of the foreground and its node, and core of everything else.
fn cores(list: Option<&str>) -> Result<Cores, Failure> {
    let whose = "the node's and the one of everything else";
    let [node, other] = two_cores(list, |available| [available.last(), available.first()], whose)?;
    Ok(Cores { node, other })
}
