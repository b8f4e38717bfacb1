//! `orbitkv-bench routing`: how soon a request is ready at a node whose peers have what it lacks, asked in the fixed
//! order and as the planner says, while one of the two peers is held back, and while none is.
//!
//! Two sources have the same blocks, of a trace of conversations; each was the first to save half of them, and is asked
//! first for those in the fixed order. The reader keeps what it has fetched, so that a request needs what its conversation
//! has grown by. A source is held back by the kernel: by a limit on what its process reads from the disk, or on what
//! leaves its port. Requests come one after the other, so what is measured is a time of service.
//!
//! A run of either policy has its own nodes and the same trace; who goes first changes from run to run. The first requests
//! of a run are not measured: routes get their prices there. Runs, not requests, are the units of the
//! interval.
//!
//! It makes itself a network namespace, so that the limit is of nobody else; that needs root.

mod contention;
mod conversations;
pub mod plan;
pub mod trial;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use orbitkv::cli::table::Table;
use orbitkv::control::signals::StopSignals;
use orbitkv::exit::Exit;
use orbitkv_native::affinity;
use serde_json::{Value, json};

use crate::ending::conclude;
use crate::pace::Pace;
use crate::profile::Profile;
use crate::report::{Gate, Report};
use crate::resampling::{Mean, mean_of};
use crate::statistics::Latencies;
use crate::{Failure, fail, machine, own_network, progress};
use plan::Plan;
use trial::{Ground, Trial};

/// Least improvement of p95 or p99 while a source is held back (chapter 6.1).
const IMPROVEMENT_MIN: f64 = 0.10;
/// Of either bound, so that 95 % of all resamples lie between them.
const CONFIDENCE: f64 = 0.975;
/// Most that either may be worse while none is.
const WORSE_MAX: f64 = 1.05;
/// A source of which the fixed order asks less than this share was not in its way.
const EXPOSURE_MIN: f64 = 0.25;

/// What to measure.
#[derive(Args)]
pub struct RoutingArgs {
    /// `full` qualifies; `ci` runs the same on small sizes and qualifies nothing.
    #[arg(long, value_enum, default_value_t = Profile::Full)]
    profile: Profile,
    /// Directory on a disk, for the SSD files [default: beside the build's output].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Seed of traces and payloads.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// This process has a network namespace of its own already.
    #[arg(long, hide = true)]
    inside: bool,
}

/// What is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// What one source reads from its disk.
    SlowSsd,
    /// What it sends.
    Egress,
    /// Nothing; blocks are in memory.
    UncontendedDram,
    /// Nothing; blocks are on SSD.
    UncontendedSsd,
}

impl Case {
    const ALL: [Case; 4] = [Case::SlowSsd, Case::Egress, Case::UncontendedDram, Case::UncontendedSsd];

    fn gate(self) -> &'static str {
        match self {
            Case::SlowSsd => "routing_slow_ssd",
            Case::Egress => "routing_egress",
            Case::UncontendedDram => "routing_uncontended_dram",
            Case::UncontendedSsd => "routing_uncontended_ssd",
        }
    }

    /// Whether the sources have the blocks on SSD alone.
    fn reads_ssd(self) -> bool {
        matches!(self, Case::SlowSsd | Case::UncontendedSsd)
    }

    fn is_contended(self) -> bool {
        matches!(self, Case::SlowSsd | Case::Egress)
    }
}

/// Which policy the reader has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The order of the index.
    Fixed,
    /// The same, while routes are planned and nobody follows them.
    Shadow,
    /// As planned.
    Executed,
}

impl Policy {
    fn name(self) -> &'static str {
        match self {
            Policy::Fixed => "fixed",
            Policy::Shadow => "shadow",
            Policy::Executed => "executed",
        }
    }
}

/// Measures, prints, and says by its exit code whether the gates are met: 4 if not in the full profile, or if
/// wrong bytes were seen in any.
pub fn run(args: &RoutingArgs) -> ExitCode {
    if !args.inside {
        return fail(Exit::Environment, &*own_network::enter());
    }
    conclude(measure(args), args.json)
}

/// A run of both policies on the same trace.
struct Pair {
    fixed: Trial,
    executed: Trial,
}

impl Pair {
    /// The time at a quantile, executed over fixed.
    fn ratio(&self, quantile: f64) -> f64 {
        microseconds(&self.executed, quantile) / microseconds(&self.fixed, quantile)
    }
}

fn latencies(trial: &Trial) -> Latencies {
    let mut latencies = Latencies::new();
    trial.ready.iter().for_each(|time| latencies.record(*time));
    latencies
}

fn microseconds(trial: &Trial, quantile: f64) -> f64 {
    latencies(trial).microseconds(quantile)
}

fn measure(args: &RoutingArgs) -> Result<Report, Failure> {
    let machine = machine::describe();
    let at_start = machine::Pressure::now();
    let plan = Plan::of(args.profile);
    let signals = StopSignals::watch()?;
    let directory = directory(args.dir.as_deref())?;
    let available = affinity::available_cores()?;
    let [sources_core, .., reader_core] = available[..] else {
        return Err("nodes need two cores, one for the sources and one for the reader".into());
    };
    let ground = Ground { directory: &directory, sources_core, reader_core };
    progress(&format!(
        "{} profile; sources on core {sources_core}, reader on core {reader_core}",
        args.profile.name()
    ));
    let mut table =
        Table::new(["case", "policy", "p50 us", "p95 us", "p99 us", "max us", "of the source held back"]);
    let mut gates = Vec::new();
    let mut pace = Pace::over(Case::ALL.len());
    for case in Case::ALL {
        pace.tell(case.gate());
        let pairs = pairs(&plan, case, args.seed, &ground, &signals)?;
        pace.done();
        for policy in [Policy::Fixed, Policy::Executed] {
            row(&mut table, case, policy, &pairs);
        }
        gates.push(gate(&plan, case, args.seed, &pairs));
    }
    Ok(Report {
        name: "routing",
        profile: args.profile.into(),
        seed: args.seed,
        machine,
        figures: table.to_string(),
        gates,
        settings: json!({
            "cores": { "sources": sources_core, "reader": reader_core },
            "disk": machine::disk_of(&directory),
            "transport": "quic",
            "sizes": plan,
            "pressure": at_start.until_now(),
        }),
    })
}

/// Where the SSD files go.
///
/// # Errors
/// If there can be no such directory.
pub fn directory(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let directory = match given {
        Some(directory) => directory.to_owned(),
        None => {
            let program = std::env::current_exe()?;
            let output = program.parent().and_then(Path::parent);
            output.ok_or("this program lies in no directory; give --dir")?.join("bench-routing")
        }
    };
    std::fs::create_dir_all(&directory)
        .map_err(|error| format!("--dir {}: {error}; choose another", directory.display()))?;
    Ok(directory.canonicalize()?)
}

fn pairs(
    plan: &Plan,
    case: Case,
    seed: u64,
    ground: &Ground<'_>,
    signals: &StopSignals,
) -> Result<Vec<Pair>, Failure> {
    let pair = |number: usize| -> Result<Pair, Failure> {
        let one = |policy| trial::run(plan, case, policy, seed + number as u64, ground, signals);
        let (fixed, executed) = match number % 2 {
            0 => {
                let fixed = one(Policy::Fixed)?;
                (fixed, one(Policy::Executed)?)
            }
            _ => {
                let executed = one(Policy::Executed)?;
                (one(Policy::Fixed)?, executed)
            }
        };
        let pair = Pair { fixed, executed };
        progress(&format!(
            "{}, run {number}: executed over fixed {:.3} at p95, {:.3} at p99; {:.0} and {:.0} % of the source held back",
            case.gate(),
            pair.ratio(0.95),
            pair.ratio(0.99),
            pair.executed.contended_share * 100.0,
            pair.fixed.contended_share * 100.0,
        ));
        Ok(pair)
    };
    (0..plan.runs).map(pair).collect()
}

fn of(pairs: &[Pair], policy: Policy) -> impl Iterator<Item = &Trial> {
    pairs.iter().map(move |pair| if policy == Policy::Executed { &pair.executed } else { &pair.fixed })
}

/// All runs of a policy, for people.
fn row(table: &mut Table, case: Case, policy: Policy, pairs: &[Pair]) {
    let mut all = Latencies::new();
    of(pairs, policy).flat_map(|trial| &trial.ready).for_each(|time| all.record(*time));
    let shares: Vec<f64> = of(pairs, policy).map(|trial| trial.contended_share).collect();
    let share = shares.iter().sum::<f64>() / shares.len() as f64;
    let figure = |quantile| format!("{:.0}", all.microseconds(quantile));
    table.row([
        case.gate().to_owned(),
        policy.name().to_owned(),
        figure(0.5),
        figure(0.95),
        figure(0.99),
        figure(1.0),
        format!("{:.0} %", share * 100.0),
    ]);
}

/// The gate of a case.
fn gate(plan: &Plan, case: Case, seed: u64, pairs: &[Pair]) -> Gate {
    let ratios =
        [0.95, 0.99].map(|quantile| -> Vec<f64> { pairs.iter().map(|pair| pair.ratio(quantile)).collect() });
    let [p95, p99] = ratios.each_ref().map(|ratios| mean_of(ratios, CONFIDENCE).mean);
    let fixed_us: Vec<f64> = pairs.iter().map(|pair| microseconds(&pair.fixed, 0.95)).collect();
    let gate = Gate::new(case.gate(), plan.profile, seed)
        .against("p95 of the fixed order, us", Some(mean_of(&fixed_us, CONFIDENCE).mean))
        .details(json!({
            "executed_over_fixed": { "p95": told(&ratios[0]), "p99": told(&ratios[1]) },
            "fixed": trials(pairs, Policy::Fixed),
            "executed": trials(pairs, Policy::Executed),
        }));
    let gate = match case.is_contended() {
        true => gate.at_least(IMPROVEMENT_MIN).value(1.0 - p95.min(p99)),
        false => gate.at_most(WORSE_MAX).value(p95.max(p99)),
    };
    let exposure = of(pairs, Policy::Fixed).map(|trial| trial.contended_share).fold(1.0, f64::min);
    if case.is_contended() && exposure < EXPOSURE_MIN {
        return gate.invalid(format!(
            "in the fixed order {:.0} % of the blocks came from the source held back: that was not measured",
            exposure * 100.0
        ));
    }
    let strays = of(pairs, Policy::Fixed).any(|trial| trial.planning.followed > 0);
    if strays { gate.invalid("the fixed order was left") } else { gate }
}

/// Ratios of pairs: their mean, its interval, and all of them.
fn told(ratios: &[f64]) -> Value {
    let Mean { mean, lower, upper } = mean_of(ratios, CONFIDENCE);
    json!({ "geometric_mean": mean, "interval_95": [lower, upper], "raw": ratios })
}

fn trials(pairs: &[Pair], policy: Policy) -> Vec<Value> {
    let told = |trial: &Trial| {
        json!({
            "ready_us": latencies(trial).json(),
            "p95_us": microseconds(trial, 0.95),
            "contended_share": trial.contended_share,
            "planning": trial.planning,
        })
    };
    of(pairs, policy).map(told).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn trial(micros: impl Iterator<Item = u64>, contended_share: f64) -> Trial {
        Trial {
            ready: micros.map(Duration::from_micros).collect(),
            contended_share,
            planning: Default::default(),
        }
    }

    fn pairs(executed_percent: u64, share: f64) -> Vec<Pair> {
        let fixed = || trial((1..=200).map(|at| at * 1_000), share);
        let executed = || trial((1..=200).map(|at| at * 10 * executed_percent), 0.0);
        (0..5).map(|_| Pair { fixed: fixed(), executed: executed() }).collect()
    }

    #[test]
    fn contention_asks_for_a_tenth_and_its_absence_for_no_more_than_a_twentieth() {
        let plan = Plan::of(Profile::Full);
        let is_met = |case, percent, share| gate(&plan, case, 1, &pairs(percent, share)).is_met();
        for case in [Case::SlowSsd, Case::Egress] {
            assert!(is_met(case, 89, 0.5) && !is_met(case, 91, 0.5));
            assert!(!is_met(case, 50, 0.2), "it was not in the way");
        }
        for case in [Case::UncontendedDram, Case::UncontendedSsd] {
            assert!(is_met(case, 104, 0.0) && !is_met(case, 106, 0.0));
        }
        let mut strays = pairs(50, 0.5);
        strays[3].fixed.planning.followed = 1;
        assert!(!gate(&plan, Case::Egress, 1, &strays).is_met());
    }

    #[test]
    fn one_of_p95_and_p99_is_enough_to_be_better_and_too_much_to_be_worse() {
        let plan = Plan::of(Profile::Full);
        let tail = |tenths: u64| {
            let of = |last| trial((1..=200).map(move |at| if at > 195 { last } else { 1_000 }), 0.5);
            vec![Pair { fixed: of(10_000), executed: of(1_000 * tenths) }]
        };
        assert!(gate(&plan, Case::Egress, 1, &tail(8)).is_met(), "p99 is better");
        assert!(!gate(&plan, Case::Egress, 1, &tail(10)).is_met());
        assert!(gate(&plan, Case::UncontendedDram, 1, &tail(10)).is_met());
        assert!(!gate(&plan, Case::UncontendedDram, 1, &tail(11)).is_met(), "p99 is worse");
    }
}
