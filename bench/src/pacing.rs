//! `orbitkv-bench pacing`: what a bound on a source's egress does for a reader that wants a block now and then, while
//! another reads all that it can get.
//!
//! An ablation (chapter 6.8). Three nodes: a source, a reader of single blocks, and one whose engines ask for batches
//! of 128. Without a bound the source gives the transport what it has windows for, and the network shares it out by
//! connection; with one, nodes share the rate in pieces. Runs go in the order off, on, on, off. The only gate is that
//! all bytes came: how long a block takes and what the other gets are figures to choose a rate by.

use std::error::Error;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use orbitkv::cli::table::Table;
use orbitkv::cluster::ClusterFailure;
use orbitkv::control::signals::StopSignals;
use orbitkv::exit::Exit;
use orbitkv::quantity::{ByteSize, MIB};
use serde_json::{Value, json};

use crate::payload::WrongBytes;
use crate::profile::Profile;
use crate::report::{Gate, Report};
use crate::resampling::{Mean, mean_of};
use crate::resilience::stage::{BATCH_BLOCKS, BLOCK_BYTES, Engine, Scene, Stage};
use crate::statistics::{Figures, Latencies, gigabytes_per_second};
use crate::{Failure, fail, machine, progress};

const SOURCE: usize = 1;
const BULK_READER: usize = 2;
/// Engines that ask for batches at once: more than a window holds.
const BULK_ENGINES: usize = 4;
/// Generations of blocks: what is asked for one by one, and in batches.
const SINGLE: u64 = 1;
const BULK: u64 = 2;
const WAIT: Duration = Duration::from_secs(10);
/// Between two single blocks.
const REST: Duration = Duration::from_millis(3);

/// Of each bound of a ratio: together they leave the middle 95 % of all drawings of runs.
const CONFIDENCE: f64 = 0.975;

/// What to measure.
#[derive(Args)]
pub struct PacingArgs {
    /// `full` has the sizes to choose by; `ci` runs the same on small ones.
    #[arg(long, value_enum, default_value_t = Profile::Full)]
    profile: Profile,
    /// The bound on the source's egress, in bytes a second: below what it sends without one.
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize(64 * MIB))]
    egress_rate: ByteSize,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Sizes of a profile.
#[derive(Clone, Copy, Debug)]
struct Plan {
    rounds: usize,
    single_blocks: usize,
    bulk_blocks: usize,
}

impl Plan {
    fn of(profile: Profile) -> Plan {
        match profile {
            Profile::Full => Plan { rounds: 5, single_blocks: 600, bulk_blocks: 16 * BATCH_BLOCKS },
            Profile::Ci => Plan { rounds: 1, single_blocks: 200, bulk_blocks: 4 * BATCH_BLOCKS },
        }
    }
}

/// What runs of one variant have shown.
struct Variant {
    name: &'static str,
    flags: Vec<String>,
    waits: Latencies,
    p99_us: Figures,
    bulk_gbps: Figures,
    missed: usize,
}

impl Variant {
    fn new(name: &'static str, flags: Vec<String>) -> Variant {
        let (p99_us, bulk_gbps) = (Figures::default(), Figures::default());
        Variant { name, flags, waits: Latencies::new(), p99_us, bulk_gbps, missed: 0 }
    }

    fn json(&self) -> Value {
        json!({
            "variant": self.name,
            "flags": self.flags,
            "single_block_us": self.waits.json(),
            "single_block_p99_us": self.p99_us.json(),
            "bulk_gbps": self.bulk_gbps.json(),
            "missed": self.missed,
        })
    }
}

/// Measures, prints, and says by its exit code whether all bytes came.
pub fn run(args: &PacingArgs) -> ExitCode {
    let report = match measure(args) {
        Ok(report) => report,
        Err(error) => {
            let exit = match error.downcast_ref::<ClusterFailure>() {
                Some(failure) => failure.exit(),
                None if error.is::<WrongBytes>() => Exit::Unmet,
                None => Exit::Environment,
            };
            return fail(exit, &*error);
        }
    };
    if args.json {
        println!("{:#}", report.json());
    } else {
        println!("{}", report.text());
    }
    match report.is_accepted() {
        true => Exit::Done.into(),
        false => Exit::Unmet.into(),
    }
}

fn measure(args: &PacingArgs) -> Result<Report, Failure> {
    let machine = machine::describe();
    let load = machine::Pressure::now();
    let signals = StopSignals::watch()?;
    let plan = Plan::of(args.profile);
    let bound = format!("--egress-rate {}", args.egress_rate);
    let mut variants = [Variant::new("off", Vec::new()), Variant::new("on", vec![bound])];
    for round in 0..plan.rounds {
        // Off, on, on, off: what drifts meets both alike.
        for at in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            progress(&format!("round {} of {}, pacing {}", round + 1, plan.rounds, variants[at].name));
            measure_once(plan, &mut variants[at], &signals)?;
        }
    }
    let missed: usize = variants.iter().map(|variant| variant.missed).sum();
    let gate = Gate::new("pacing_missed", args.profile, 0)
        .against("blocks that came", None)
        .none_ever(missed as u64)
        .details(json!({
            "variants": variants.iter().map(Variant::json).collect::<Vec<_>>(),
            "on_over_off": {
                "single_block_p99": ratio_json(&variants, |variant| &variant.p99_us),
                "bulk": ratio_json(&variants, |variant| &variant.bulk_gbps),
            },
        }));
    Ok(Report {
        name: "pacing",
        profile: args.profile.into(),
        seed: 0,
        machine,
        figures: figures(&variants),
        gates: vec![gate],
        settings: json!({
            "egress_rate": args.egress_rate.0,
            "rounds": plan.rounds,
            "single_blocks": plan.single_blocks,
            "bulk_blocks": plan.bulk_blocks,
            "block_bytes": BLOCK_BYTES,
            "build": if cfg!(debug_assertions) { "debug" } else { "release" },
            "pressure": load.until_now(),
        }),
    })
}

fn figures(variants: &[Variant; 2]) -> String {
    let mut table = Table::new(["pacing", "one block p50", "p90", "p99", "the other reads"]);
    for variant in variants {
        let us = |quantile| format!("{:.0} us", variant.waits.microseconds(quantile));
        table.row([
            variant.name.to_owned(),
            us(0.5),
            us(0.9),
            us(0.99),
            format!("{:.3} GB/s", variant.bulk_gbps.median()),
        ]);
    }
    let line = |name: &str, of: fn(&Variant) -> &Figures| {
        let Mean { mean, lower, upper } = ratio(variants, of);
        match runs(variants) {
            1 => format!("{name}, on over off: {mean:.3} (one pair of runs has no interval)"),
            pairs => format!(
                "{name}, on over off: {mean:.3} ({lower:.3} to {upper:.3} by drawing from {pairs} pairs of runs)"
            ),
        }
    };
    let waits = line("p99 of one block", |variant: &Variant| &variant.p99_us);
    let bulk = line("what the other reads", |variant: &Variant| &variant.bulk_gbps);
    format!("{table}\n\n{waits}\n{bulk}")
}

fn runs(variants: &[Variant; 2]) -> usize {
    variants[0].p99_us.0.len()
}

/// What the bound does to a figure: each run with it over the one without it that was its neighbour.
fn ratio(variants: &[Variant; 2], of: fn(&Variant) -> &Figures) -> Mean {
    let [off, on] = variants;
    mean_of(&of(on).over(of(off)).0, CONFIDENCE)
}

fn ratio_json(variants: &[Variant; 2], of: fn(&Variant) -> &Figures) -> Value {
    let Mean { mean, lower, upper } = ratio(variants, of);
    json!({ "mean": mean, "lower": lower, "upper": upper, "runs": runs(variants) })
}

/// What went wrong in a thread.
type SentFailure = Box<dyn Error + Send + Sync>;

fn sent(failure: Failure) -> SentFailure {
    match failure.downcast::<WrongBytes>() {
        Ok(wrong) => wrong,
        Err(other) => other.to_string().into(),
    }
}

/// One run with nodes of its own.
fn measure_once(plan: Plan, variant: &mut Variant, signals: &StopSignals) -> Result<(), Failure> {
    let flags: Vec<&str> = variant.flags.iter().map(String::as_str).collect();
    let mut stage = Stage::start(&Scene::of(3, &flags), signals)?;
    stage.save(SOURCE, SINGLE, plan.single_blocks, signals)?;
    stage.save(SOURCE, BULK, plan.bulk_blocks, signals)?;
    let engines = (0..BULK_ENGINES).map(|_| stage.engine(BULK_READER)).collect::<Result<Vec<_>, _>>()?;
    let (taken, running) = (AtomicU64::new(0), AtomicUsize::new(engines.len()));
    let mut waits = Latencies::new();
    let began = Instant::now();
    let bulk = thread::scope(|scope| -> Result<Duration, Failure> {
        let threads: Vec<_> = engines
            .into_iter()
            .map(|engine| scope.spawn(|| read_batches(engine, &taken, plan.bulk_blocks as u64, &running)))
            .collect();
        let mut outcome = Ok(());
        for block in 0..plan.single_blocks as u64 {
            if running.load(Ordering::Relaxed) == 0 || outcome.is_err() {
                break;
            }
            outcome = stage.ask(SINGLE, block..block + 1, WAIT).map(|asked| {
                waits.record(asked.time);
                variant.waits.record(asked.time);
                variant.missed += usize::from(asked.ready == 0);
            });
            thread::sleep(REST);
        }
        let mut longest = Duration::ZERO;
        for thread in threads {
            let ended = thread.join().expect("a thread says its errors");
            longest = longest.max(ended.map_err(|error| -> Failure { error })? - began);
        }
        outcome.map(|()| longest)
    })?;
    variant.p99_us.0.push(waits.microseconds(0.99));
    variant.bulk_gbps.0.push(gigabytes_per_second(plan.bulk_blocks as u64 * BLOCK_BYTES, bulk));
    Ok(())
}

/// Reads batches until all are read; when it was done. A batch that did not come whole is asked for again.
fn read_batches(
    mut engine: Engine,
    taken: &AtomicU64,
    blocks: u64,
    running: &AtomicUsize,
) -> Result<Instant, SentFailure> {
    let outcome = loop {
        let first = taken.fetch_add(BATCH_BLOCKS as u64, Ordering::Relaxed);
        if first >= blocks {
            break Ok(Instant::now());
        }
        let range = first..blocks.min(first + BATCH_BLOCKS as u64);
        if let Err(error) = read_batch(&mut engine, range) {
            break Err(error);
        }
    };
    running.fetch_sub(1, Ordering::Relaxed);
    outcome
}

fn read_batch(engine: &mut Engine, range: Range<u64>) -> Result<(), SentFailure> {
    let until = Instant::now() + WAIT;
    let wanted = (range.end - range.start) as usize;
    loop {
        let asked = engine.ask(BULK, range.clone(), WAIT).map_err(sent)?;
        if asked.ready == wanted {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(format!("{} of {wanted} blocks came within {WAIT:?}", asked.ready).into());
        }
        thread::sleep(REST);
    }
}
