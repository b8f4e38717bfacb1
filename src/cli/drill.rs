//! `orbitkv drill`: a recovery exercise by plan, and whether it kept what was promised.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::cluster::default_data_parent;
use super::http_client::HttpClient;
use super::{fail, fail_client, say};
use crate::control::signals::StopSignals;
use crate::drill::promises::{PromisesFailure, Standing, at_risk_now, last_drill};
use crate::drill::{Plan, exercise};
use crate::exit::Exit;
use crate::quantity::Span;

/// Arguments of `orbitkv drill`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "A plan names the nodes to start, blocks to save on each, objectives, and steps: what is done (kill, pause, restart, …)\n\
                        and what has to be seen on the nodes' pages before the step is over, with the time planned for it.\n\
                        Exit codes: 0 every step was reached and every objective kept; 2 bad usage, or a plan that cannot be;\n\
                        3 memory, a port, a device or etcd is missing; 4 an objective was not kept, a step was given up,\n\
                        a process ended by itself or did not start again, or bytes came back wrong; with --objectives also if\n\
                        the last drill was not met, or what the named nodes have at risk cannot be told; 5 a node does not answer."
)]
pub struct DrillArgs {
    /// Plan file: TOML, or JSON if its name ends in .json
    #[arg(value_name = "PLAN", required_unless_present = "objectives")]
    plan: Option<PathBuf>,
    /// Break nothing: hold what was promised against the report of the last drill (what --json has printed) and, with
    /// --http, against what nodes have at risk now
    #[arg(long, value_name = "REPORT", conflicts_with = "plan")]
    objectives: Option<PathBuf>,
    /// HTTP address of a node (repeatable): saves a second × age of the least fresh view are blocks at risk
    #[arg(long, value_name = "HOST:PORT", requires = "objectives")]
    http: Vec<String>,
    /// How long the nodes are watched
    #[arg(long, value_name = "SPAN", default_value = "5s", requires = "objectives")]
    over: Span,
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
    let file = match (&args.objectives, &args.plan) {
        (Some(report), _) => return hold(report, args),
        (None, Some(file)) => file,
        (None, None) => unreachable!("clap wants one of the two"),
    };
    let plan = match Plan::read(file) {
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

/// Holds what was promised against the last drill and the nodes.
fn hold(report: &Path, args: &DrillArgs) -> ExitCode {
    let standing = || -> Result<Standing, PromisesFailure> {
        let standing = last_drill(report)?;
        let nodes =
            args.http.iter().map(|address| HttpClient::new(address)).collect::<Result<Vec<_>, _>>()?;
        if nodes.is_empty() {
            return Ok(standing);
        }
        Ok(Standing { at_risk: at_risk_now(&nodes, args.over.0)?, ..standing })
    };
    match standing() {
        Ok(standing) => {
            say(&if args.json { standing.json().to_string() } else { standing.text() });
            if standing.is_kept() { Exit::Done.into() } else { Exit::Unmet.into() }
        }
        Err(PromisesFailure::Node(error)) => fail_client(&error),
        Err(error) => fail(Exit::Usage, &error.to_string()),
    }
}
