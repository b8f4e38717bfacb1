//! `orbitkv drill`: a recovery exercise by plan, and whether it kept what was promised.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::cluster::default_data_parent;
use super::{fail, say};
use crate::control::signals::StopSignals;
use crate::drill::{Plan, exercise};
use crate::exit::Exit;

/// Arguments of `orbitkv drill`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "A plan names the nodes to start, blocks to save on each, objectives, and steps: what is done (kill, pause, restart, …)\n\
                        and what has to be seen on the nodes' pages before the step is over, with the time planned for it.\n\
                        Exit codes: 0 every step was reached and every objective kept; 2 bad usage, or a plan that cannot be;\n\
                        3 memory, a port, a device or etcd is missing; 4 an objective was not kept, a step was given up,\n\
                        a process ended by itself, or bytes came back wrong."
)]
pub struct DrillArgs {
    /// Plan file: TOML, or JSON if its name ends in .json
    #[arg(value_name = "PLAN")]
    plan: PathBuf,
    /// Directory for the SSD files; a temporary one is made in it and removed. Must lie on a real disk
    /// [default: `target` below the current directory, else that directory]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Print the report as JSON; everything else goes to standard error
    #[arg(long)]
    json: bool,
}

/// Something about the drill; standard output is the report's.
fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Runs the command.
#[must_use]
pub fn run(args: &DrillArgs) -> ExitCode {
    let plan = match Plan::read(&args.plan) {
        Ok(plan) => plan,
        Err(error) => return fail(Exit::Usage, &error.to_string()),
    };
    let signals = match StopSignals::watch() {
        Ok(signals) => signals,
        Err(error) => return fail(Exit::Environment, &format!("watching for signals: {error}")),
    };
    note(&format!("{plan}; starting"));
    let told = |step: &str, planned: Duration, measured: Duration| {
        note(&format!("{step}: {:.2} s, planned {:.2} s", measured.as_secs_f64(), planned.as_secs_f64()));
    };
    let data_parent = args.data_dir.clone().unwrap_or_else(default_data_parent);
    match exercise(&plan, data_parent, &signals, told) {
        Ok(report) => {
            let text = if args.json { report.json().to_string() } else { report.text() };
            say(&text);
            report.exit().into()
        }
        Err(failure) => fail(failure.exit(), &failure.to_string()),
    }
}
