//! `orbitkv-bench scale`: how far a cluster goes, one dimension at a time around a base: nodes, residences, bursts, repeated
//! keys, namespaces, and what lies beyond (chapter 6.5).
//!
//! Each cell is a cluster of real nodes at the rate of the best known system and then as fast as the machine goes, compared
//! key by key. What this machine does not hold as processes is carried by the deterministic simulator and labelled so. What
//! nodes are not made for has to be refused: a refusal is a result, a failure is not. A cell is a file, so that a campaign
//! goes on where it was interrupted.

mod beyond;
mod campaign;
mod gates;
mod measure;
mod plan;
pub mod record;
mod simulated;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use orbitkv::exit::Exit;

use crate::campaign::Campaign;
use crate::ending::tell;
use crate::fail;
use crate::profile::FormalProfile;
use campaign::ScaleOrder;

/// What to measure.
#[derive(Args)]
pub struct ScaleArgs {
    /// `formal` takes an hour, `dense` a third of it; `ci` makes small clusters for two minutes and qualifies nothing.
    #[arg(long, value_enum)]
    profile: FormalProfile,
    /// Seed of keys, payload and moments.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// New directory for one file a cell and the report.
    #[arg(long, value_name = "DIR", default_value = "orbitkv-scale", conflicts_with = "resume")]
    out: PathBuf,
    /// Go on with the campaign of this directory: cells that are there are not measured again.
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,
}

/// Measures, prints, and says by its exit code whether every gate is met: 4 if not in a profile that qualifies, if keys
/// differed or etcd was written to in any, or if a signal came.
pub fn run(args: &ScaleArgs) -> ExitCode {
    let wanted = Campaign::new(ScaleOrder::of(args.profile, args.seed));
    let shelf = match wanted.open(args.resume.as_deref(), &args.out) {
        Ok(shelf) => shelf,
        Err(error) => return fail(Exit::Usage, &*error),
    };
    match wanted.work(args.profile, &shelf) {
        Ok(report) => tell(&report, args.json),
        Err(ended) => ended.tell(),
    }
}
