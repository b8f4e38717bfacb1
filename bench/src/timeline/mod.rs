//! `orbitkv-bench timeline`: what the stage timeline costs (chapter 6.7): one node and one engine, quiet, with
//! `--trace-turns` and the engine's own moments on and off by turns.
//!
//! Runs are the units that are drawn, never requests. A mean whose bounds lie on both sides of its limit proves neither: then
//! this machine cannot tell, and the gate says so instead of passing.

mod gates;
mod plan;
mod run;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use orbitkv::control::signals::StopSignals;
use orbitkv::exit::Exit;

use crate::attempt::Unmade;
use crate::campaign::new_directory;
use crate::cores::two_cores;
use crate::ending::tell;
use crate::isolation::stage::Cores;
use crate::pace::Pace;
use crate::profile::FormalProfile;
use crate::report::Report;
use crate::{fail, machine, progress};
use plan::{Plan, order};
use run::Run;

/// What to measure.
#[derive(Args)]
pub struct TimelineArgs {
    /// `dense` has a round each 100 ms, `formal` one each second; `ci` takes half a minute and qualifies nothing.
    #[arg(long, value_enum)]
    profile: FormalProfile,
    /// Two cores, e.g. `1,0`: of the engine and its node, then of everything else [default: the last, the first].
    #[arg(long, value_name = "NODE,OTHER")]
    cores: Option<String>,
    /// Seed of keys and payload.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// New directory for one file a run, with all rounds and all pages.
    #[arg(long, value_name = "DIR", default_value = "orbitkv-timeline")]
    out: PathBuf,
}

/// Measures, prints, and says by its exit code whether every gate is met: 4 if not in a profile that qualifies, or if any
/// request could not be followed.
pub fn run(args: &TimelineArgs) -> ExitCode {
    let whose = "the node's and the one of everything else";
    let cores = two_cores(args.cores.as_deref(), |available| [available.last(), available.first()], whose);
    let [node, other] = match cores {
        Ok(cores) => cores,
        Err(error) => return fail(Exit::Usage, &*error),
    };
    if let Err(error) = new_directory(&args.out, "name another") {
        return fail(Exit::Usage, &*error);
    }
    match work(args, Cores { node, other }) {
        Ok(report) => tell(&report, args.json),
        Err(why) => why.tell(),
    }
}

fn work(args: &TimelineArgs, cores: Cores) -> Result<Report, Unmade> {
    let plan = Plan::of(args.profile);
    let shown = args.out.display();
    let signals = StopSignals::watch()?;
    let load = machine::Pressure::now();
    let order = order(plan.pairs);
    progress(&format!("{} runs of {:.0} s each; files in {shown}", order.len(), plan.seconds()));
    let (mut runs, mut pace): (Vec<Run>, _) = (Vec::new(), Pace::over(order.len()));
    for (number, side) in (1..).zip(order) {
        let name = format!("{number:02}-{}", side.name());
        pace.tell(&name);
        let run = run::make(&plan, side, cores, args.seed, &args.out, &signals)?;
        pace.done();
        progress(&format!("{name}: {}", run.told()));
        fs::write(args.out.join(format!("{name}.json")), serde_json::to_vec(&run)?)?;
        runs.push(run);
    }
    let report = gates::report(args.profile, args.seed, &plan, cores, &runs, load.until_now());
    fs::write(args.out.join("report.json"), format!("{:#}", report.json()))?;
    Ok(report)
}
