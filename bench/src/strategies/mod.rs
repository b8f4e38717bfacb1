//! `orbitkv-bench strategies`: what it costs a node to find out that owners are other lives than it takes them for, when
//! one, eight or all of them are killed and started again (chapter 4, *wrong guesses*).
//!
//! Engines at one reader ask every owner for blocks, steadily. Readers differ in their strategy alone: look an owner up in
//! etcd before it is asked; ask, and look up who refuses; or ask, and read the whole map once when some refuse. The watch
//! of those three is held back for the whole trial, so that they learn from what they read; a fourth reader is the node
//! as it ships, which is told by the watch, too. Each trial has a reader of its own, on the same owners.

mod asker;
mod plan;
mod stage;
mod trial;

use std::process::ExitCode;

use clap::Args;
use orbitkv::cli::table::Table;
use orbitkv::control::signals::StopSignals;
use serde_json::{Value, json};

use crate::ending::conclude;
use crate::pace::Pace;
use crate::profile::FormalProfile;
use crate::report::{Gate, Report};
use crate::statistics::Figures;
use crate::streams::RunArgs;
use crate::streams::outlet::Outlet;
use crate::{Failure, machine, progress};
use plan::{HYBRID_QUIET_MAX, HYBRID_READS_MAX, Plan, Strategy, moves, order};
use stage::Stage;
use trial::Trial;

/// What to measure.
#[derive(Args)]
pub struct StrategiesArgs {
    #[command(flatten)]
    run: RunArgs,
}

/// Measures, prints, and says by its exit code whether the gates are met.
pub fn run(args: &StrategiesArgs) -> ExitCode {
    let args = &args.run;
    let measured = Outlet::of("strategies", args).and_then(|outlet| measure(args, &outlet));
    conclude(measured, args.json)
}

fn measure(args: &RunArgs, outlet: &Outlet) -> Result<Report, Failure> {
    let machine = machine::describe();
    let signals = StopSignals::watch()?;
    let plan = Plan::of(args.profile);
    let moves = moves(usize::from(args.managers));
    progress(&format!("starting etcd and {} owners", args.managers));
    let mut stage = Stage::start(args, &signals)?;
    let load = machine::Pressure::now();
    let mut trials = Vec::new();
    let mut pace = Pace::over(plan.repeats * moves.len() * order(args.seed, 0).len());
    for repeat in 0..plan.repeats {
        for &moved in &moves {
            for strategy in order(args.seed, repeat) {
                let trial = trial::run(&mut stage, &plan, strategy, moved, &signals)?;
                pace.done();
                progress(&format!("{}{}", words(&trial, repeat, plan.repeats), pace.left()));
                trials.push(trial);
            }
        }
    }
    let report = Report {
        name: "strategies",
        profile: args.profile.into(),
        seed: args.seed,
        machine,
        figures: figures(&moves, &trials),
        gates: gates(args.profile, args.seed, &moves, &trials),
        settings: json!({
            "managers": args.managers,
            "moves": moves,
            "sizes": plan,
            "residences": args.residences,
            "build": if cfg!(debug_assertions) { "debug" } else { "release" },
            "pressure": load.until_now(),
            "trials": trials,
        }),
    };
    outlet.write(&report, &[])?;
    Ok(report)
}

fn words(trial: &Trial, repeat: usize, repeats: usize) -> String {
    let outcome = match &trial.why_invalid {
        Some(why) => why.clone(),
        None => format!(
            "quiet after {:.0} ms, {} refusals, {} reads of etcd",
            trial.quiet_ms,
            trial.counts.refusals(),
            trial.counts.reads()
        ),
    };
    format!("{} of {repeats}: {} moved, {}: {outcome}", repeat + 1, trial.moved, trial.strategy.words())
}

/// The trials of a cell.
fn cell(trials: &[Trial], strategy: Strategy, moved: usize) -> impl Iterator<Item = &Trial> {
    trials.iter().filter(move |trial| trial.strategy == strategy && trial.moved == moved)
}

/// The middle one of what a cell's trials say.
fn middle(trials: &[Trial], strategy: Strategy, moved: usize, of: impl Fn(&Trial) -> f64) -> f64 {
    Figures(cell(trials, strategy, moved).map(of).collect()).median()
}

fn figures(moves: &[usize], trials: &[Trial]) -> String {
    let mut table = Table::new([
        "owners moved",
        "strategy",
        "refusals",
        "round trips to owners",
        "round trips to etcd",
        "bytes to and from etcd",
        "missed requests",
        "until back, ms",
        "until quiet, ms",
    ]);
    for &moved in moves {
        for strategy in Strategy::ALL {
            let shown = |of: fn(&Trial) -> f64| format!("{:.0}", middle(trials, strategy, moved, of));
            table.row([
                moved.to_string(),
                strategy.words().to_owned(),
                shown(|trial| trial.counts.refusals() as f64),
                shown(|trial| trial.counts.batches as f64),
                shown(|trial| trial.counts.reads() as f64),
                shown(|trial| trial.counts.etcd_bytes as f64),
                shown(|trial| trial.asks_missed as f64),
                shown(|trial| trial.outage_ms),
                shown(|trial| trial.quiet_ms),
            ]);
        }
    }
    table.to_string()
}

fn gates(profile: FormalProfile, seed: u64, moves: &[usize], trials: &[Trial]) -> Vec<Gate> {
    let gate = |name| Gate::new(name, profile, seed);
    let invalid = trials.iter().find_map(|trial| {
        let why = trial.why_invalid.as_ref()?;
        Some(format!("{} owners moved, {}: {why}", trial.moved, trial.strategy.words()))
    });
    let judged = |gate: Gate| match &invalid {
        Some(why) => gate.invalid(why.clone()),
        None => gate,
    };
    let all = moves.last().copied().unwrap_or(0);
    let hybrid = trials.iter().filter(|trial| trial.strategy == Strategy::Hybrid);
    let reads = hybrid.map(|trial| trial.counts.reads()).max().unwrap_or(0);
    let by_move = |of: fn(&Trial) -> f64| -> Value {
        let of_move = |&moved: &usize| {
            let cells = Strategy::ALL.map(|strategy| {
                let name = serde_json::to_value(strategy).expect("a name");
                (name.as_str().unwrap_or_default().to_owned(), middle(trials, strategy, moved, of).into())
            });
            (moved.to_string(), Value::Object(cells.into_iter().collect()))
        };
        Value::Object(moves.iter().map(of_move).collect())
    };
    let bytes = |strategy| middle(trials, strategy, all, |trial| trial.counts.etcd_bytes as f64);
    let quiet = |strategy| middle(trials, strategy, all, |trial| trial.quiet_ms);
    let quicker = quiet(Strategy::Lookup).min(quiet(Strategy::Redirect));
    // What is over at once has no ratio.
    let ratio = quiet(Strategy::Hybrid).max(1.0) / quicker.max(1.0);
    vec![
        gate("strategies_wrong")
            .against("blocks with other bytes than were saved", None)
            .none_ever(trials.iter().map(|trial| trial.wrong).sum()),
        judged(
            gate("strategies_hybrid_reads")
                .at_most(HYBRID_READS_MAX)
                .against("however many owners move", Some(HYBRID_READS_MAX))
                .value(reads as f64)
                .details(json!({ "middle": by_move(|trial| trial.counts.reads() as f64) })),
        ),
        judged(
            gate("strategies_hybrid_bytes")
                .at_most(1.0)
                .against("looking up first while all owners move, bytes", Some(bytes(Strategy::Lookup)))
                .value(bytes(Strategy::Hybrid) / bytes(Strategy::Lookup).max(1.0))
                .details(json!({ "middle": by_move(|trial| trial.counts.etcd_bytes as f64) })),
        ),
        judged(
            gate("strategies_hybrid_quiet")
                .at_most(HYBRID_QUIET_MAX)
                .against("the quicker of the other two while all owners move, ms", Some(quicker))
                .value(ratio)
                .details(json!({ "middle_ms": by_move(|trial| trial.quiet_ms) })),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::stage::Counts;
    use super::*;

    fn trial(strategy: Strategy, moved: usize, reads: u64, bytes: u64, quiet_ms: f64) -> Trial {
        Trial {
            strategy,
            moved,
            outage_ms: 400.0,
            quiet_ms,
            counts: Counts { map_reads: reads, etcd_bytes: bytes, ..Counts::default() },
            observed_ms: 9_000.0,
            asks: 100,
            asks_missed: 9,
            asks_missed_elsewhere: 0,
            wrong: 0,
            why_invalid: None,
        }
    }

    /// A trial of each cell; the hybrid's as given.
    fn trials(reads: u64, bytes: u64, quiet_ms: f64) -> Vec<Trial> {
        let of_move = |moved: usize| {
            vec![
                trial(Strategy::Lookup, moved, 900, 100_000, 700.0),
                trial(Strategy::Redirect, moved, moved as u64, 3_000, 600.0),
                trial(Strategy::Hybrid, moved, reads, bytes, quiet_ms),
                trial(Strategy::Watched, moved, 0, 900, 300.0),
            ]
        };
        [1, 8, 16].into_iter().flat_map(of_move).collect()
    }

    fn met(trials: &[Trial]) -> Vec<bool> {
        gates(FormalProfile::Formal, 1, &[1, 8, 16], trials).iter().map(Gate::is_met).collect()
    }

    #[test]
    fn each_gate_has_its_limit_on_its_own_side() {
        assert_eq!(met(&trials(4, 100_000, 1_200.0)), [true; 4]);
        assert_eq!(met(&trials(5, 100_000, 1_200.0)), [true, false, true, true]);
        assert_eq!(met(&trials(4, 100_001, 1_200.0)), [true, true, false, true]);
        assert_eq!(met(&trials(4, 100_000, 1_201.0)), [true, true, true, false]);
        let mut wrong = trials(4, 9, 1.0);
        wrong[0].wrong = 1;
        assert_eq!(met(&wrong), [false, true, true, true]);
        let mut invalid = trials(4, 9, 1.0);
        invalid[3].why_invalid = Some("not quiet".to_owned());
        assert_eq!(
            met(&invalid),
            [true, false, false, false],
            "a trial that does not count spoils what it is compared with"
        );
    }

    #[test]
    fn the_table_has_a_row_for_each_cell_and_its_middle() {
        let mut all = trials(1, 9, 1.0);
        all.extend(trials(3, 9, 3.0));
        all.extend(trials(2, 9, 7.0));
        let text = figures(&[1, 8, 16], &all);
        assert_eq!(text.lines().count(), 1 + 12, "{text}");
        let hybrid =
            text.lines().find(|line| line.contains("16") && line.contains("hybrid  ")).expect("a row");
        let cells: Vec<&str> = hybrid.split_whitespace().collect();
        assert_eq!((cells[4], cells.last()), ("2", Some(&"3")), "{hybrid}");
    }
}
