//! `orbitkv-bench bootstrap`: how long a node that joins late takes until it has all that the others have, and what they
//! send it for that (chapter 6.1).
//!
//! Node after node joins a cluster of owners that stand still, is compared key by key, is stopped until an owner's journal
//! has gone on without it and its view has to be repaired, is compared again, and leaves; then as many join while the owners
//! make changes, and are compared when those have ended. Named a baseline, the `orbitkv` of an earlier commit, clusters of
//! either take turns, and each p99 is held against the baseline's. Without one the times inform only; that every join and
//! every repair ends in exactly what the owners have is a gate in any case.

mod join;
mod plan;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use orbitkv::cli::table::Table;
use orbitkv::control::signals::StopSignals;
use orbitkv::exit::Exit;
use orbitkv::quantity::ByteSize;
use orbitkv::settings::JOURNAL_SLICE_BYTES_MIN;
use serde_json::{Value, json};

use crate::ending::conclude;
use crate::pace::Pace;
use crate::report::{Gate, Report};
use crate::streams::RunArgs;
use crate::streams::background::Rhythm;
use crate::streams::convergence::Convergence;
use crate::streams::distribution::Distribution;
use crate::streams::outlet::Outlet;
use crate::streams::owner::Mix;
use crate::streams::owners::{Owners, StartOrder};
use crate::{Failure, fail, machine, progress};
use join::Joined;
use plan::{CHURN_CHANGES, Case, RATIO_MAX, Side};

/// Owners at most: with the one that joins they are as many as a cluster may have.
const OWNERS_MAX: u16 = 63;
/// Joins between two words of progress.
const JOINS_PER_WORD: usize = 10;
/// Gates of ratios, each with the time of ours and that of the baseline.
const RATIOS: [(&str, &str, &str); 3] = [
    ("bootstrap", "bootstrap", "baseline_bootstrap"),
    ("bootstrap_repair", "repair", "baseline_repair"),
    ("bootstrap_churn", "bootstrap_churn", "baseline_bootstrap_churn"),
];

/// What to measure.
#[derive(Args)]
pub struct BootstrapArgs {
    #[command(flatten)]
    run: RunArgs,
    /// `orbitkv` of an earlier commit, built in the same way, whose clusters take turns with ours.
    #[arg(long, value_name = "PROGRAM")]
    baseline: Option<PathBuf>,
    /// Changes a second that the owners make together while nodes of the second case join; 0 leaves that case out.
    #[arg(long, value_name = "CHANGES", default_value_t = plan::CHURN_RATE, value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    churn: u64,
}

/// All joins of a side in a case.
struct Joins {
    case: Case,
    side: Side,
    joined: Vec<Joined>,
}

/// Measures, prints, and says by its exit code whether the gates are met.
pub fn run(args: &BootstrapArgs) -> ExitCode {
    if let Err(refused) = refuse(args) {
        return fail(Exit::Usage, &*Failure::from(refused));
    }
    let measured = Outlet::of("bootstrap", &args.run).and_then(|outlet| measure(args, &outlet));
    conclude(measured, args.run.json)
}

fn refuse(args: &BootstrapArgs) -> Result<(), String> {
    let managers = args.run.managers;
    if managers > OWNERS_MAX {
        return Err(format!(
            "--managers {managers}: must be at most {OWNERS_MAX}, because one more joins; lower --managers to {OWNERS_MAX}"
        ));
    }
    match &args.baseline {
        Some(program) if !program.is_file() => Err(format!(
            "--baseline {}: there is no such program; build the earlier commit and name its `orbitkv`",
            program.display()
        )),
        _ => Ok(()),
    }
}

fn measure(args: &BootstrapArgs, outlet: &Outlet) -> Result<Report, Failure> {
    let (common, machine) = (&args.run, machine::describe());
    let load = machine::Pressure::now();
    let signals = StopSignals::watch()?;
    let legs = plan::legs(args.baseline.is_some());
    let joins_per_leg = plan::joins(common.profile, legs.len());
    let mut all: Vec<Joins> = (plan::cases(args.churn).iter())
        .flat_map(|&case| [Side::Ours, Side::Baseline].map(|side| Joins { case, side, joined: Vec::new() }))
        .collect();
    let mut pace = Pace::over(legs.len() * plan::cases(args.churn).len() * joins_per_leg);
    for side in legs {
        let program = args.baseline.clone().filter(|_| *side == Side::Baseline);
        let cases = all.iter_mut().filter(|joins| joins.side == *side);
        leg(args, program, joins_per_leg, cases, &mut pace, &signals)?;
    }
    let report = Report {
        name: "bootstrap",
        profile: common.profile.into(),
        seed: common.seed,
        machine,
        figures: figures(common, &all),
        gates: gates(common, &all),
        settings: json!({
            "managers": common.managers,
            "residences": common.residences,
            "legs": legs,
            "joins_per_leg": joins_per_leg,
            "baseline": args.baseline,
            "changes_per_second": args.churn,
            "sides": all.iter().filter(|joins| !joins.joined.is_empty()).map(Joins::json).collect::<Vec<_>>(),
            "pressure": load.until_now(),
        }),
    };
    let distributions: Vec<_> = all.iter().flat_map(Joins::distributions).collect();
    outlet.write(&report, &distributions.iter().collect::<Vec<_>>())?;
    Ok(report)
}

/// All joins in one cluster, case after case.
fn leg<'a>(
    args: &BootstrapArgs,
    program: Option<PathBuf>,
    joins: usize,
    cases: impl Iterator<Item = &'a mut Joins>,
    pace: &mut Pace,
    signals: &StopSignals,
) -> Result<(), Failure> {
    let common = &args.run;
    // The least of a journal, which an owner fills in a moment.
    let journal = Some(ByteSize(JOURNAL_SLICE_BYTES_MIN));
    let start =
        StartOrder { coalesce: common.coalesce, program, joiner: true, journal, ..StartOrder::default() };
    let mut owners = Owners::start_as(common, &start, signals)?;
    let mix = Mix { own: CHURN_CHANGES, ..Mix::default() };
    let mut joiners = 1..;
    for Joins { case, joined, .. } in cases {
        let churn = (*case == Case::Churn).then(|| Rhythm::of(mix, owners.len(), args.churn));
        for (number, joiner) in (1..=joins).zip(&mut joiners) {
            let to_repair = (*case == Case::Quiet).then_some(number % owners.len());
            let (name, what) = (format!("joiner-{joiner}"), (churn, to_repair));
            joined.push(join::once(&mut owners, name, common.seed, what, signals)?);
            pace.done();
            if number % JOINS_PER_WORD == 0 {
                progress(&format!("{number} of {joins} nodes have joined{}", pace.left()));
            }
        }
    }
    owners.require_alive()
}

impl Joins {
    /// Time to the last first view, from process start to all of it, and of a repair: those that were made.
    fn distributions(&self) -> Vec<Distribution> {
        let names = match (self.side, self.case) {
            (Side::Ours, Case::Quiet) => ["bootstrap", "start_complete", "repair"],
            (Side::Ours, Case::Churn) => ["bootstrap_churn", "start_complete_churn", "repair_churn"],
            (Side::Baseline, Case::Quiet) => {
                ["baseline_bootstrap", "baseline_start_complete", "baseline_repair"]
            }
            (Side::Baseline, Case::Churn) => {
                ["baseline_bootstrap_churn", "baseline_start_complete_churn", "baseline_repair_churn"]
            }
        };
        let mut all = names.map(Distribution::of);
        let [bootstrap, complete, repair] = &mut all;
        for joined in &self.joined {
            bootstrap.record(joined.bootstrap_us * 1_000);
            complete.record(joined.complete_ns);
            joined.repair_us.into_iter().for_each(|repair_us| repair.record(repair_us * 1_000));
        }
        all.into_iter().filter(|distribution| distribution.len() > 0).collect()
    }

    fn convergence(&self) -> Convergence {
        let mut all = Convergence::default();
        self.joined.iter().for_each(|joined| all += joined.convergence);
        all
    }

    fn json(&self) -> Value {
        let distributions = self.distributions();
        json!({
            "case": self.case,
            "side": self.side,
            "histograms": distributions.iter().map(|one| (one.name.to_owned(), one.json())).collect::<serde_json::Map<_, _>>(),
            "raw": self.joined,
        })
    }
}

fn figures(args: &RunArgs, all: &[Joins]) -> String {
    let mut table = Table::new(["milliseconds", "p50", "p90", "p99", "p99.9", "max", "count"]);
    let distributions = all.iter().flat_map(Joins::distributions);
    distributions.for_each(|distribution| table.row(distribution.cells()));
    let rows = u64::from(args.managers) * args.residences;
    let mut bytes: Vec<u64> = all[0].joined.iter().map(|joined| joined.sent.page_bytes).collect();
    bytes.sort_unstable();
    let (least, most) = (bytes.first().copied().unwrap_or(0), bytes.last().copied().unwrap_or(0));
    let words = format!(
        "{table}\neach joins {} owners of {} residences: {least} to {most} bytes of snapshot pages while they stand still, {:.1} a row",
        args.managers,
        args.residences,
        most as f64 / rows as f64
    );
    match has_baseline(all) {
        false => {
            words + "\ntimes inform only: they are judged against an earlier commit, with --baseline PROGRAM"
        }
        true => words,
    }
}

fn has_baseline(all: &[Joins]) -> bool {
    all.iter().any(|joins| joins.side == Side::Baseline && !joins.joined.is_empty())
}

fn gates(args: &RunArgs, all: &[Joins]) -> Vec<Gate> {
    let mut gates = Vec::new();
    for (name, ours, theirs) in RATIOS {
        let p99_ms = |of: &str| {
            let distributions = all.iter().flat_map(Joins::distributions);
            distributions.into_iter().find(|one| one.name == of).map(|one| one.milliseconds(0.99))
        };
        if let (Some(ours_ms), Some(theirs_ms)) = (p99_ms(ours), p99_ms(theirs)) {
            let ratio = Gate::new(name, args.profile, args.seed)
                .at_most(RATIO_MAX)
                .against("p99 of the baseline, ms", Some(theirs_ms))
                .value(ours_ms / theirs_ms)
                .details(json!({ "p99_ms": ours_ms, "baseline_p99_ms": theirs_ms }));
            gates.push(ratio);
        }
    }
    let faults = all.iter().map(|joins| joins.convergence().faults()).sum::<u64>();
    let convergence = Gate::new("bootstrap_convergence", args.profile, args.seed)
        .against("faults, key by key after each join", None)
        .none_ever(faults);
    gates.push(convergence);
    gates
}

#[cfg(test)]
mod tests {
    use super::join::Sent;
    use super::*;
    use crate::profile::FormalProfile;

    fn args() -> RunArgs {
        RunArgs {
            managers: 16,
            profile: FormalProfile::Formal,
            seed: 1,
            coalesce: None,
            residences: 512,
            out: None,
            json: false,
        }
    }

    fn joins((case, side): (Case, Side), bootstrap_us: &[u64], faults: u64) -> Joins {
        let convergence = Convergence { keys_missing: faults, ..Convergence::default() };
        let joined = |&bootstrap_us: &u64| Joined {
            bootstrap_us,
            complete_ns: 1,
            sent: Sent::default(),
            repair_us: None,
            convergence,
        };
        Joins { case, side, joined: bootstrap_us.iter().map(joined).collect() }
    }

    fn judged(all: &[Joins]) -> Vec<(&'static str, bool)> {
        gates(&args(), all).iter().map(|gate| (gate.name(), gate.is_met())).collect()
    }

    #[test]
    fn the_gate_is_the_ratio_to_the_baseline_and_there_is_none_without() {
        let met = |ours: &[u64], theirs: &[u64], faults| {
            let quiet = |side| (Case::Quiet, side);
            judged(&[joins(quiet(Side::Ours), ours, faults), joins(quiet(Side::Baseline), theirs, 0)])
        };
        assert_eq!(met(&[1_000], &[], 0), [("bootstrap_convergence", true)]);
        assert_eq!(met(&[1_000], &[], 1), [("bootstrap_convergence", false)]);
        assert_eq!(met(&[1_090], &[1_000], 0), [("bootstrap", true), ("bootstrap_convergence", true)]);
        assert_eq!(met(&[1_110], &[1_000], 1), [("bootstrap", false), ("bootstrap_convergence", false)]);
        // One in a hundred is no p99, two are.
        let slow = |count| [vec![1_000; 100 - count], vec![9_000; count]].concat();
        assert!(met(&slow(1), &[1_000], 0)[0].1 && !met(&slow(2), &[1_000], 0)[0].1);
    }

    #[test]
    fn each_case_is_held_against_the_same_case_of_the_baseline() {
        let all = |quiet: [u64; 2], churn: [u64; 2], faults| {
            let of = |case, [ours, theirs]: [u64; 2], faults| {
                [joins((case, Side::Ours), &[ours], faults), joins((case, Side::Baseline), &[theirs], 0)]
            };
            let all = of(Case::Quiet, quiet, 0).into_iter().chain(of(Case::Churn, churn, faults));
            judged(&all.collect::<Vec<_>>())
        };
        let names = ["bootstrap", "bootstrap_churn", "bootstrap_convergence"];
        for (quiet, churn, faults, met) in [
            ([1_000, 1_000], [3_000, 3_000], 0, [true, true, true]),
            ([1_000, 1_000], [3_000, 2_000], 0, [true, false, true]),
            ([2_000, 1_000], [2_000, 3_000], 0, [false, true, true]),
            ([1_000, 1_000], [3_000, 3_000], 1, [true, true, false]),
        ] {
            let judged = all(quiet, churn, faults);
            assert_eq!(judged, names.into_iter().zip(met).collect::<Vec<_>>(), "{quiet:?} {churn:?}");
        }
    }

    #[test]
    fn repairs_are_held_against_repairs() {
        let met = |ours: u64, theirs: u64| {
            let of = |side, repair_us| {
                let mut joins = joins((Case::Quiet, side), &[1_000], 0);
                joins.joined[0].repair_us = Some(repair_us);
                joins
            };
            judged(&[of(Side::Ours, ours), of(Side::Baseline, theirs)])
        };
        let names = ["bootstrap", "bootstrap_repair", "bootstrap_convergence"];
        assert_eq!(met(5_400, 5_000), names.map(|name| (name, true)));
        assert_eq!(met(5_600, 5_000), names.map(|name| (name, name != "bootstrap_repair")));
    }

    #[test]
    fn what_cannot_be_measured_is_refused_with_a_remedy() {
        let refused = |managers, baseline: Option<&str>| {
            let run = RunArgs { managers, ..args() };
            refuse(&BootstrapArgs { run, baseline: baseline.map(PathBuf::from), churn: plan::CHURN_RATE })
                .err()
                .unwrap_or_default()
        };
        assert_eq!(refused(63, None), "");
        assert!(refused(64, None).contains("lower --managers to 63"));
        assert!(refused(4, Some("/nowhere/orbitkv")).contains("there is no such program"));
    }
}
