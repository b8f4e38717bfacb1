//! `orbitkv-bench resilience`: what each pattern against failing peers costs on a day without failures, and what it gains
//! on a failing one, on real processes.
//!
//! A pattern that has a switch is measured with it on and off, in the order on, off, off, on. The failing day is a source
//! whose process is stopped, for less time than its lease lives: it neither answers nor refuses; for the SSD it is a
//! file that is cut off, once or as often as it is written. What a node does not have is listed with the reason, and is no gate.

mod failover;
mod figures;
mod guards;
mod health;
mod rollout;
mod rows;
pub mod stage;
mod throttle;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use orbitkv::cli::table::Table;
use orbitkv::control::signals::StopSignals;
use serde_json::{Value, json};

use crate::ending::conclude;
use crate::pace::Pace;
use crate::profile::Profile;
use crate::report::{Gate, Report};
use crate::{Failure, machine, routing};
use rows::Row;

/// Patterns that nothing of a node asks, or that are not measured, and why; the others are.
const UNUSED: &[(&str, &str)] = &[
    (
        "degradation",
        "a Query tells prefix, coverage, age of its hints and what it left out, and old hints rank last; no switch",
    ),
    ("objectives", "a command, `orbitkv drill --objectives`; nothing a node asks"),
    (
        "stamps",
        "a command, `orbitkv doctor --etcd`, counts what crosses to other clusters; nothing a node asks",
    ),
    ("drill", "a command, `orbitkv drill`; nothing a node asks"),
    ("strangler", "a command, `orbitkv migrate plan`; nothing a node asks"),
    (
        "compensation",
        "what a recovery has begun is taken back in reverse, a cancel in three attempts, and counted; without a switch",
    ),
    (
        "idempotency",
        "a ledger of its own answers repeats of Commit and Release; it has no switch to measure against",
    ),
    (
        "backpressure",
        "a save that its pool has no room for is refused at the boundary, and none is queued; without a switch",
    ),
    (
        "claim check, valet key",
        "the protocol's shape: references on streams, grants for exact extents; what dangles is counted; without a switch",
    ),
];

/// What to measure.
#[derive(Args)]
pub struct ResilienceArgs {
    /// `full` qualifies; `ci` runs the same for a shorter time and qualifies nothing.
    #[arg(long, value_enum, default_value_t = Profile::Full)]
    profile: Profile,
    /// Directory on a disk for an SSD file  [default: beside this program's build]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// With what a pattern is measured.
struct Given<'a> {
    profile: Profile,
    signals: &'a StopSignals,
    /// On a disk.
    directory: &'a Path,
}

/// Measures, prints, and says by its exit code whether every gate is met: 4 if not in the full profile, or if wrong
/// bytes were seen in any.
pub fn run(args: &ResilienceArgs) -> ExitCode {
    conclude(measure(args), args.json)
}

fn measure(args: &ResilienceArgs) -> Result<Report, Failure> {
    let machine = machine::describe();
    let at_start = machine::Pressure::now();
    let signals = StopSignals::watch()?;
    let directory = routing::directory(args.dir.as_deref())?;
    let given = Given { profile: args.profile, signals: &signals, directory: &directory };
    let (mut rows, mut pace) = (Vec::new(), Pace::over(rows::ALL.len()));
    for (name, measured) in rows::ALL {
        pace.tell(name);
        rows.push(measured(&given)?);
        pace.done();
    }
    let unused: Vec<Value> =
        UNUSED.iter().map(|(name, why)| json!({ "pattern": name, "why": why })).collect();
    Ok(Report {
        name: "resilience",
        profile: args.profile.into(),
        seed: 0,
        machine,
        figures: figures(&rows),
        settings: json!({
            "pressure": at_start.until_now(),
            "build": if cfg!(debug_assertions) { "debug" } else { "release" },
            "unused": unused,
        }),
        gates: rows.into_iter().flat_map(|row| gates(row, args.profile)).collect(),
    })
}

fn gates(row: Row, profile: Profile) -> Vec<Gate> {
    let Row { cost, gain, .. } = row;
    cost.into_iter().chain([gain]).map(|figure| figure.gate(profile)).collect()
}

fn figures(rows: &[Row]) -> String {
    let mut table = Table::new(["pattern", "a day without failures costs", "a failing day gains"]);
    for row in rows {
        table.row([
            row.pattern.to_owned(),
            row.cost.as_ref().map_or("no switch".to_owned(), |cost| cost.words.clone()),
            row.gain.words.clone(),
        ]);
    }
    for (pattern, why) in UNUSED {
        table.row([
            (*pattern).to_owned(),
            "not used by the node, or without a switch:".to_owned(),
            (*why).to_owned(),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory};
    use orbitkv::cli::Cli;

    use super::*;

    /// Whether a program has such a subcommand, or such a flag of one.
    fn has(command: &Command, words: &[&str]) -> bool {
        match words {
            [] => true,
            [flag] if flag.starts_with("--") => {
                command.get_arguments().any(|argument| argument.get_long() == flag.strip_prefix("--"))
            }
            [name, rest @ ..] => command.find_subcommand(name).is_some_and(|command| has(command, rest)),
        }
    }

    #[test]
    fn commands_that_reasons_name_are_there() {
        let reason = |pattern| UNUSED.iter().find(|(name, _)| *name == pattern).expect("it is listed").1;
        let mut named = Vec::new();
        for pattern in ["objectives", "drill", "strangler"] {
            let command = reason(pattern).split('`').nth(1).expect("it names a command");
            let words: Vec<&str> = command.split(' ').skip(1).collect();
            assert!(!words.is_empty() && has(&Cli::command(), &words), "there is no {command}");
            named.push(command);
        }
        assert_eq!(named, ["orbitkv drill --objectives", "orbitkv drill", "orbitkv migrate plan"]);
        let absent: [&[&str]; 2] = [&["migrate", "nothing"], &["drill", "--nothing"]];
        assert!(absent.iter().all(|words| !has(&Cli::command(), words)));
        assert!(UNUSED.iter().all(|(_, why)| !why.contains("not in this version")));
    }
}
