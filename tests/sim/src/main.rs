//! `sim`: runs seeds and says what became of them.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use orbitkv_sim::counters::Counters;
use orbitkv_sim::report::Visibility;
use orbitkv_sim::{Canary, Log, Plan, Report, World};

const USAGE: &str = "usage: sim [--seed N | --seeds A..B | --soak SECONDS] [--quiet] [--canary NAME]
           [--nodes N --residences N]

  --seed N          one seed, with a log of what happens
  --seeds A..B      all of them; every counter has to be met by 200 seeds or more
  --soak SECONDS    seed after seed for so long, beginning with --seed
  --nodes N         a cluster of N equal nodes without faults instead of the seed's own plan
  --residences N    blocks that each of those nodes holds
  --canary NAME     plants a bug, which has to be found
  --quiet           the verdict only
  --json            the verdict of one seed as one line of JSON
  --counters        what was met, in the end

Exit status: 0 nothing found, 2 bad usage, 4 a violation.";

/// So many seeds have to meet everything that can be met.
const SEEDS_FOR_COUNTERS: u64 = 200;

struct Arguments {
    seeds: std::ops::Range<u64>,
    soak: Option<Duration>,
    quiet: bool,
    json: bool,
    counters: bool,
    canary: Option<Canary>,
    scale: Option<(usize, u64)>,
}

fn main() -> ExitCode {
    match arguments(std::env::args().skip(1)) {
        Ok(arguments) => run(&arguments),
        Err(what) => {
            eprintln!("{what}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn arguments(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut parsed = Arguments {
        seeds: 0..1,
        soak: None,
        quiet: false,
        json: false,
        counters: false,
        canary: None,
        scale: None,
    };
    let mut nodes = None;
    let mut residences = 32_768;
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|_| format!("{text} is no number"));
        match word.as_str() {
            "--seed" => {
                let seed = number(value()?)?;
                parsed.seeds = seed..seed + 1;
            }
            "--seeds" => {
                let text = value()?;
                let (first, end) = text.split_once("..").ok_or("--seeds takes A..B")?;
                parsed.seeds = number(first.into())?..number(end.into())?;
            }
            "--soak" => parsed.soak = Some(Duration::from_secs(number(value()?)?)),
            "--nodes" => nodes = Some(number(value()?)? as usize),
            "--residences" => residences = number(value()?)?,
            "--canary" => {
                let name = value()?;
                let known = Canary::ALL.iter().map(|canary| canary.name()).collect::<Vec<_>>().join(", ");
                let canary =
                    Canary::from_name(&name).ok_or(format!("no canary {name}; there are {known}"))?;
                parsed.canary = Some(canary);
            }
            "--quiet" => parsed.quiet = true,
            "--json" => parsed.json = true,
            "--counters" => parsed.counters = true,
            "--help" => return Err(String::new()),
            other => return Err(format!("{other} is no argument")),
        }
    }
    parsed.scale = nodes.map(|nodes| (nodes, residences));
    Ok(parsed)
}

fn run(arguments: &Arguments) -> ExitCode {
    let begun = Instant::now();
    let many = arguments.soak.is_some() || arguments.seeds.end - arguments.seeds.start > 1;
    let mut counters = Counters::default();
    let mut visibility = Visibility::default();
    let (mut seeds, mut events) = (0, 0);
    let mut seed = arguments.seeds.start;
    loop {
        let done = match arguments.soak {
            Some(soak) => begun.elapsed() >= soak,
            None => seed >= arguments.seeds.end,
        };
        if done {
            break;
        }
        let report = one(arguments, seed, many);
        if let Some(violation) = &report.violation {
            println!("seed {seed}: violation after {} events: {violation}", report.events);
            println!("reproduce with: sim --seed {seed}{}", again(arguments));
            return ExitCode::from(4);
        }
        match (many, arguments.json) {
            (true, _) => {}
            (false, true) => json(&report, begun.elapsed()),
            (false, false) => verdict(&report, begun.elapsed()),
        }
        counters.absorb(&report.counters);
        visibility.absorb(&report.visibility);
        seeds += 1;
        events += report.events;
        seed += 1;
    }
    if many {
        let (seconds, p99) = (begun.elapsed().as_secs_f64(), visibility.quantile(990));
        println!(
            "{seeds} seeds, {events} events, no violation, {seconds:.1} s; modelled visibility p99 {p99:?}"
        );
    }
    if arguments.counters {
        print!("{}", Report::table(&counters));
    }
    let missing = counters.missing();
    if seeds >= SEEDS_FOR_COUNTERS && !missing.is_empty() {
        println!("never met in {seeds} seeds: {missing:?}");
        return ExitCode::from(4);
    }
    ExitCode::SUCCESS
}

fn again(arguments: &Arguments) -> String {
    let scale = arguments
        .scale
        .map_or(String::new(), |(nodes, residences)| format!(" --nodes {nodes} --residences {residences}"));
    let canary = arguments.canary.map_or(String::new(), |canary| format!(" --canary {}", canary.name()));
    scale + &canary
}

fn one(arguments: &Arguments, seed: u64, many: bool) -> Report {
    let plan = match arguments.scale {
        Some((nodes, residences)) => Plan::of_scale(seed, nodes, residences),
        None => Plan::of_seed(seed),
    };
    let suffix = again(arguments);
    std::panic::set_hook(Box::new(move |panic| {
        println!("seed {seed}: a room's assertion failed: {panic}");
        println!("reproduce with: sim --seed {seed}{suffix}");
        std::process::exit(4);
    }));
    let log = if arguments.quiet || many { Log::Quiet } else { Log::Print };
    World::new(plan, arguments.canary, log).run()
}

fn verdict(report: &Report, took: Duration) {
    println!(
        "seed {}: no violation in {} events, {:.1} s of virtual time, {:.1} s of real time, history {:016x}",
        report.seed,
        report.events,
        report.virtual_time.as_secs_f64(),
        took.as_secs_f64(),
        report.history
    );
    println!(
        "{} frames, {} bytes of frames, {} bytes on the network, modelled visibility p50 {:?} p99 {:?}",
        report.frames,
        report.frame_bytes,
        report.network_bytes,
        report.visibility.quantile(500),
        report.visibility.quantile(990)
    );
}

/// The same for programs; times in microseconds.
fn json(report: &Report, took: Duration) {
    let numbers = [
        ("seed", u128::from(report.seed)),
        ("events", u128::from(report.events)),
        ("virtual_us", report.virtual_time.as_micros()),
        ("real_us", took.as_micros()),
        ("frames", u128::from(report.frames)),
        ("frame_bytes", u128::from(report.frame_bytes)),
        ("network_bytes", u128::from(report.network_bytes)),
        ("visibility_p50_us", report.visibility.quantile(500).as_micros()),
        ("visibility_p99_us", report.visibility.quantile(990).as_micros()),
    ];
    let fields: Vec<String> = numbers.iter().map(|(name, number)| format!("\"{name}\":{number}")).collect();
    println!("{{{}}}", fields.join(","));
}
