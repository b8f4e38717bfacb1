//! `orbitkv-bench ablation`: what was chosen against what was not, side by side in one run (chapter 6.8).
//!
//! Every ablation has sides that do the same work in turns, a run after the other. A run is the unit: of each, the ratio of
//! what is built to what it is held against is taken, and the interval of their mean comes from drawing runs, never
//! requests. A rule that was fixed before says what follows, also where it is that nothing can be said.

mod coalesce;
mod device;
mod etcd;
mod idle;
mod judgement;
mod pacing;
mod plan;
mod quic;
mod routing;
mod shards;
mod work;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use orbitkv::cli::table::Table;
use orbitkv::cluster::ClusterFailure;
use orbitkv::control::signals::StopSignals;
use orbitkv::exit::Exit;
use orbitkv::quantity::{ByteSize, MIB};
use serde_json::{Value, json};

use crate::ending::conclude;
use crate::pace::Pace;
use crate::payload::WrongBytes;
use crate::profile::FormalProfile;
use crate::report::{Gate, Report};
use crate::statistics::Figures;
use crate::streams::outlet::Outlet;
use crate::streams::{RunArgs, pause};
use crate::{Failure, fail, machine, progress};
use judgement::{Question, Trial};
use plan::Plan;

/// What to compare.
#[derive(Args)]
pub struct AblationArgs {
    /// What to compare.
    #[arg(value_enum)]
    which: Which,
    /// Runs, each with every side [default: 7 formal, 5 dense, 1 ci].
    #[arg(long, value_name = "N")]
    runs: Option<usize>,
    /// `formal` and `dense` qualify; `ci` runs the same for seconds and qualifies nothing.
    #[arg(long, value_enum, default_value_t = FormalProfile::Formal)]
    profile: FormalProfile,
    /// Seed of payloads, keys and offsets.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// `etcd`: who follows the one source.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=63))]
    observers: u16,
    /// `etcd`: changes of a burst, half of them puts and half deletes; there is a burst each 17 ms.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = even_changes)]
    changes: u64,
    /// `coalesce`: nodes, all of which save and observe.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=64))]
    managers: u16,
    /// `idle`, `shards`, `device`, `quic`: two different cores, e.g. `0,1` [default: the first, the last].
    #[arg(long, value_name = "ONE,OTHER")]
    cores: Option<String>,
    /// `device`, `routing`: directory on a disk [default: beside the build's output].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// `pacing`: the bound on the source's egress, in bytes a second: below what it sends without one.
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize(64 * MIB))]
    egress_rate: ByteSize,
    /// Directory for the report.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// This process has a network namespace of its own already.
    #[arg(long, hide = true)]
    inside: bool,
}

/// An ablation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Which {
    /// Streams from node to node, against block records in etcd that everybody watches.
    Etcd,
    /// Waiting 2 ms for other changes before they are told, against 0 and 5 ms.
    Coalesce,
    /// Cores that park while nothing is to be done, against cores that spin.
    Idle,
    /// Two shards of a node on two cores, against one.
    Shards,
    /// A raw io_uring under the SSD, against glommio.
    Device,
    /// An own QUIC loop on each core, against stock `quinn`.
    Quic,
    /// Routes as planned, against the fixed order, and what planning in the shadow costs. Needs root.
    Routing,
    /// A bound on what a source sends, against none: how soon a single block comes while another reads all it can.
    Pacing,
}

/// A column of the table of sides.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Which figure.
    pub figure: &'static str,
    /// Its heading.
    pub title: &'static str,
    /// Digits behind the point.
    pub digits: usize,
}

/// Several ways to do the same work.
pub trait Ablation {
    /// Their names.
    fn sides(&self) -> &[&'static str];
    /// What is shown of each.
    fn columns(&self) -> &[Column];
    /// What is asked of them, fixed before anything runs.
    fn questions(&self) -> Vec<Question>;
    /// Sizes and places, for the report.
    fn settings(&self) -> Value;
    /// One run: a trial of every side, in the order of [`Ablation::sides`].
    ///
    /// # Errors
    /// If it cannot be made.
    fn run(&mut self, number: usize, signals: &StopSignals) -> Result<Vec<Trial>, Failure>;
}

fn even_changes(text: &str) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(changes) if changes.is_multiple_of(2) && (2..=1_024).contains(&changes) => Ok(changes),
        _ => Err("write an even number from 2 to 1024".to_owned()),
    }
}

/// Measures, prints, and says by its exit code whether every rule keeps what is built.
pub fn run(args: &AblationArgs) -> ExitCode {
    let runs = match plan::runs(args.runs, args.profile) {
        Ok(runs) => runs,
        Err(refused) => return fail(Exit::Usage, &*Failure::from(refused)),
    };
    let plan = Plan::of(args.profile);
    let ablation: Result<Box<dyn Ablation>, Failure> = match args.which {
        Which::Etcd => Ok(Box::new(etcd::Etcd::new(args, plan))),
        Which::Coalesce => Ok(Box::new(coalesce::Coalesce::new(args))),
        Which::Idle => idle::Idle::new(args, plan).map(|one| Box::new(one) as _),
        Which::Shards => shards::Shards::new(args, plan).map(|one| Box::new(one) as _),
        Which::Device => device::Device::new(args, plan).map(|one| Box::new(one) as _),
        Which::Quic => quic::Quic::new(args, plan).map(|one| Box::new(one) as _),
        Which::Routing if !args.inside => return fail(Exit::Environment, &*crate::own_network::enter()),
        Which::Routing => routing::Routing::new(args).map(|one| Box::new(one) as _),
        Which::Pacing => Ok(Box::new(pacing::Pacing::new(args))),
    };
    let ablation = match ablation {
        Ok(ablation) => ablation,
        Err(error) => return fail(Exit::Usage, &*error),
    };
    conclude(measure(args, runs, ablation), args.json)
}

/// All runs of an ablation and what they say.
fn measure(args: &AblationArgs, runs: usize, mut ablation: Box<dyn Ablation>) -> Result<Report, Failure> {
    let name = args.which.to_possible_value().expect("each has a name").get_name().to_owned();
    let outlet = Outlet::named(args.out.as_deref(), &format!("ablation-{name}"), args.profile, args.seed)?;
    let (machine, load) = (machine::describe(), machine::Pressure::now());
    let signals = StopSignals::watch()?;
    let mut measured = Vec::with_capacity(runs);
    let mut pace = Pace::over(runs);
    for number in 0..runs {
        pause(Duration::ZERO, &signals)?;
        pace.tell(&format!("ablation {name}, run"));
        measured.push(match ablation.run(number, &signals) {
            Ok(trials) => trials,
            Err(error) if number == 0 || ends_all(&*error) => return Err(error),
            // What went wrong is kept, and what was measured before.
            Err(error) => {
                progress(&format!("run {} failed: {error}", number + 1));
                vec![Trial::failed(&error.to_string()); ablation.sides().len()]
            }
        });
        pace.done();
    }
    let settings = ablation.settings();
    let report = Report {
        name: "ablation",
        profile: args.profile.into(),
        seed: args.seed,
        machine,
        figures: figures(&*ablation, &measured),
        gates: gates(args, &*ablation, &measured),
        settings: json!({
            "which": name,
            "runs": runs,
            "sides": ablation.sides(),
            "trials": measured,
            "disk": settings["disk"],
            "settings": settings,
            "pressure": load.until_now(),
        }),
    };
    outlet.write(&report, &[])?;
    Ok(report)
}

/// Whether an error is no fault of one run: somebody wants an end, or bytes were wrong.
fn ends_all(error: &(dyn Error + 'static)) -> bool {
    let is_stopped = matches!(error.downcast_ref(), Some(ClusterFailure::Stopped { .. }));
    is_stopped || error.is::<WrongBytes>()
}

/// What the sides came to, the middle one of all runs, and what follows.
fn figures(ablation: &dyn Ablation, runs: &[Vec<Trial>]) -> String {
    let (sides, columns) = (ablation.sides(), ablation.columns());
    let titles = std::iter::once("median of runs").chain(columns.iter().map(|one| one.title));
    let mut shown = Table::with_heading(titles.map(str::to_owned).collect());
    for (side, name) in sides.iter().enumerate() {
        let cell = |column: &Column| {
            let values = runs.iter().filter_map(|trials| trials[side].figures.get(column.figure).copied());
            match values.collect::<Vec<_>>() {
                values if values.is_empty() => "-".to_owned(),
                values => format!("{:.*}", column.digits, Figures(values).median()),
            }
        };
        shown.row(std::iter::once((*name).to_owned()).chain(columns.iter().map(cell)));
    }
    let mut judged =
        Table::new(["figure", "built", "against", "times better", "95 % interval", "rule", "decision"]);
    for question in ablation.questions() {
        let (built, other) = (sides[question.built], sides[question.other]);
        let (mean, interval, decision) = match question.judge(runs) {
            Ok(judged) => (
                format!("{:.3}", judged.mean.mean),
                format!("{:.3} to {:.3}", judged.mean.lower, judged.mean.upper),
                judged.decision.words(built, other),
            ),
            Err(why) => ("-".to_owned(), "-".to_owned(), format!("not known: {why}")),
        };
        let rule = question.rule(sides);
        judged.row([
            question.figure.to_owned(),
            built.to_owned(),
            other.to_owned(),
            mean,
            interval,
            rule,
            decision,
        ]);
    }
    format!("{shown}\n\n{judged}\n\n{} runs; the value of a gate is the lower bound", runs.len())
}

/// A gate for each rule, whose value is the lower bound of the mean, and one for whatever was wrong.
fn gates(args: &AblationArgs, ablation: &dyn Ablation, runs: &[Vec<Trial>]) -> Vec<Gate> {
    let sides = ablation.sides();
    let gate = |name| Gate::new(name, args.profile, args.seed);
    let wrong = runs.iter().flatten().map(|trial| trial.wrong).sum();
    let asked = ablation.questions().into_iter().map(|question| {
        let against = format!("{} over {}, times better", sides[question.built], sides[question.other]);
        let gate = gate(question.gate).at_least(question.least);
        match question.judge(runs) {
            Ok(judged) => {
                let details = judged.json();
                gate.against(against, Some(judged.mean.mean)).value(judged.mean.lower).details(details)
            }
            Err(why) => gate.against(against, None).invalid(why),
        }
    });
    let none = gate("ablation_faults").against("wrong blocks, keys and rows", None).none_ever(wrong);
    asked.chain([none]).collect()
}

/// What benchmarks of streams are told, for a cluster of so many nodes.
fn run_args(args: &AblationArgs, managers: u16, residences: u64) -> RunArgs {
    RunArgs {
        managers,
        profile: args.profile,
        seed: args.seed,
        coalesce: None,
        residences,
        out: None,
        json: args.json,
    }
}

#[cfg(test)]
mod tests {
    use super::judgement::Sense;
    use super::*;
    use crate::payload::require_stamp;

    struct Two;

    impl Ablation for Two {
        fn sides(&self) -> &[&'static str] {
            &["ours", "theirs"]
        }
        fn columns(&self) -> &[Column] {
            &[Column { figure: "rate", title: "a second", digits: 1 }]
        }
        fn questions(&self) -> Vec<Question> {
            let (sense, least) = (Sense::Higher, 1.0);
            vec![Question { gate: "ablation_idle_rate", built: 0, other: 1, figure: "rate", sense, least }]
        }
        fn settings(&self) -> Value {
            Value::Null
        }
        fn run(&mut self, _: usize, _: &StopSignals) -> Result<Vec<Trial>, Failure> {
            Ok(Vec::new())
        }
    }

    fn args() -> AblationArgs {
        AblationArgs {
            which: Which::Idle,
            runs: None,
            profile: FormalProfile::Formal,
            seed: 1,
            observers: 4,
            changes: 64,
            managers: 4,
            cores: None,
            dir: None,
            egress_rate: ByteSize(64 * MIB),
            out: None,
            json: false,
            inside: false,
        }
    }

    fn runs(pairs: &[(f64, f64)]) -> Vec<Vec<Trial>> {
        let trial = |value| Trial::of([("rate", value)]);
        pairs.iter().map(|(ours, theirs)| vec![trial(*ours), trial(*theirs)]).collect()
    }

    fn met(runs: &[Vec<Trial>]) -> Vec<bool> {
        gates(&args(), &Two, runs).iter().map(Gate::is_met).collect()
    }

    #[test]
    fn a_gate_asks_for_the_lower_bound_and_a_wrong_block_is_never_met() {
        assert_eq!(met(&runs(&[(2.0, 1.0), (3.0, 1.0)])), [true, true]);
        assert_eq!(
            met(&runs(&[(9.0, 1.0), (0.9, 1.0)])),
            [false, true],
            "the mean is 2.8, the bound below 1"
        );
        let mut wrong = runs(&[(2.0, 1.0), (3.0, 1.0)]);
        wrong[1][0].wrong = 1;
        assert_eq!(met(&wrong), [true, false]);
        let mut failed = runs(&[(2.0, 1.0), (3.0, 1.0)]);
        failed[1] = vec![Trial::failed("it rained"), Trial::failed("it rained")];
        assert_eq!(met(&failed), [false, true]);
    }

    #[test]
    fn the_table_has_medians_and_what_follows() {
        let text = figures(&Two, &runs(&[(2.0, 1.0), (4.0, 1.0), (3.0, 1.5)]));
        let row = |name: &str| text.lines().find(|line| line.starts_with(name)).expect("a row").to_owned();
        assert!(row("ours").ends_with("3.0") && row("theirs").ends_with("1.0"), "{text}");
        assert!(row("rate").contains("keep ours") && row("rate").contains("2.520"), "2 × 4 × 2 = 16: {text}");
    }

    #[test]
    fn a_run_that_fails_ends_itself_alone_unless_all_are_to_end() {
        let silent = ClusterFailure::Silent { name: "a".into(), waited: Duration::ZERO, log: "b".into() };
        let failures: [(Failure, bool); 4] = [
            (silent.into(), false),
            ("it rained".into(), false),
            (ClusterFailure::Stopped { signal: "SIGINT" }.into(), true),
            (require_stamp(&[0; 16], 1, 1).expect_err("another stamp").into(), true),
        ];
        for (failure, is_end) in failures {
            assert_eq!(ends_all(&*failure), is_end, "{failure}");
        }
    }

    #[test]
    fn bursts_are_halves_of_puts_and_deletes() {
        assert_eq!(even_changes("64"), Ok(64));
        for odd in ["63", "0", "1026", "-2", "x"] {
            assert!(even_changes(odd).expect_err("refused").contains("even number from 2 to 1024"));
        }
    }
}
