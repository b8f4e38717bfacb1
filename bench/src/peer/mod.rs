//! `orbitkv-bench peer`: blocks that a node reads from a peer, over QUIC against a bulk stream of stock `quinn` with as
//! many bytes, and over shared memory against a plain copy with the same checksum; in turns in one run.
//!
//! Over QUIC either side is two processes over loopback, one busy thread and one core each: the source on the first core, the
//! reader on the second. Either side stays connected from pass to pass, has its bytes in memory that has been touched,
//! and brings the same number of blocks of the same sizes to a place of its own for each, which is compared byte for
//! byte when the clock has stopped. The cipher is the same.
//!
//! Ours does more: an engine asks for the blocks in batches over its socket, the reader looks up who has them and asks
//! for them, the source pins and sums each, and the reader sums it again before the engine hears of it. Every pass has
//! new blocks, so that no sum is there before. The stock side has one stream, and its defaults.
//!
//! Over shared memory our side does the same and the other is one thread on the reader's core, which copies and sums.
//! It is done twice: with blocks that nobody has summed, where the source's core reads all of them beside the reader's,
//! and with blocks that the source has written to its SSD as well, and summed for that.
//! At last a source is asked to end while it is read from over QUIC: how long that takes is a gate, too.

mod copies;
pub mod ends;
mod nodes;
pub mod plan;
mod rival;
mod stock;
mod tls;

use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use orbitkv::cli::table::Table;
use orbitkv::control::report::{FetchingReport, LendingReport};
use orbitkv::control::signals::StopSignals;
use orbitkv::exit::Exit;
use serde_json::json;

use crate::cores::two_cores;
use crate::ending::conclude;
use crate::pace::Pace;
use crate::profile::Profile;
use crate::report::{Gate, Report};
use crate::statistics::{Figures, gigabytes_per_second};
use crate::{Failure, fail, machine, progress};
use copies::Copies;
use ends::Ends;
use nodes::{Ending, Nodes};
use plan::Plan;
use rival::Rival;

/// Seconds from SIGTERM to the end of a process with active streams (chapter 6.2).
const RESTART_SECONDS: f64 = 0.42;

/// What to measure.
#[derive(Args)]
pub struct PeerArgs {
    /// `full` qualifies; `ci` runs the same on small sizes and qualifies nothing.
    #[arg(long, value_enum, default_value_t = Profile::Full)]
    profile: Profile,
    /// Two cores, e.g. `0,1`: where the bytes are, and where they are read, on either side [default: the first, the last].
    #[arg(long, value_name = "SOURCE,READER")]
    cores: Option<String>,
    /// Seed of payloads and keys.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// One end of the stock side.
#[derive(Args)]
pub struct BulkArgs {
    /// Core of the process.
    #[arg(long)]
    core: usize,
    /// Seed of the payload.
    #[arg(long)]
    seed: u64,
    /// Blocks of a pass.
    #[arg(long)]
    blocks: usize,
    /// Bytes of a block.
    #[arg(long)]
    block_bytes: usize,
    /// Read from the source there; without it, be the source.
    #[arg(long)]
    from: Option<SocketAddr>,
}

/// Measures, prints, and says by its exit code whether the gate is met: 4 if not in the full profile, or if
/// wrong bytes were seen in any.
pub fn run(args: &PeerArgs) -> ExitCode {
    let cores = match cores(args.cores.as_deref()) {
        Ok(cores) => cores,
        Err(error) => return fail(Exit::Usage, &*error),
    };
    conclude(measure(args, cores), args.json)
}

/// Runs one end of the stock side.
pub fn bulk(args: &BulkArgs) -> Result<(), Box<dyn Error>> {
    stock::run(args)
}

/// Repeated passes of one side.
#[derive(Default)]
pub struct Passes {
    /// Of each.
    pub gbps: Figures,
    /// Processor time of all.
    pub used: Ends<Duration>,
    /// Bytes of all.
    pub bytes: u64,
}

impl Passes {
    fn add(&mut self, bytes: u64, time: Duration, used: &Ends<Duration>) {
        self.gbps.0.push(gigabytes_per_second(bytes, time));
        self.used.add(used);
        self.bytes += bytes;
    }
}

/// How the bytes of our side come, and what they are held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Over QUIC, against stock `quinn`.
    Quic,
    /// Over shared memory, against a copy and a checksum.
    Shm,
    /// The same, of blocks that are on the source's SSD, too.
    Settled,
}

impl Way {
    const ALL: [Way; 3] = [Way::Quic, Way::Shm, Way::Settled];

    fn gate(self) -> &'static str {
        match self {
            Way::Quic => "peer_quic",
            Way::Shm => "peer_shm",
            Way::Settled => "peer_shm_settled",
        }
    }

    /// What the design asks of the path (chapter 6.2).
    fn target(self) -> f64 {
        match self {
            Way::Quic => 1.0,
            Way::Shm | Way::Settled => 0.8,
        }
    }

    fn other(self) -> &'static str {
        match self {
            Way::Quic => "stock quinn",
            Way::Shm | Way::Settled => "memcpy and checksum",
        }
    }
}

/// What our side is held against.
enum Other {
    Quinn(Rival),
    Copies(Copies),
}

impl Other {
    fn start(way: Way, plan: &Plan, cores: Ends<usize>, seed: u64) -> Result<Other, Failure> {
        Ok(match way {
            Way::Quic => Other::Quinn(Rival::start(plan, cores, seed)?),
            Way::Shm | Way::Settled => Other::Copies(Copies::start(plan, cores, seed)?),
        })
    }

    fn read(&mut self) -> Result<(Duration, Ends<Duration>), Failure> {
        match self {
            Other::Quinn(rival) => rival.read(),
            Other::Copies(copies) => copies.read(),
        }
    }

    fn check(&mut self) -> Result<(), Failure> {
        match self {
            Other::Quinn(rival) => rival.check(),
            Other::Copies(copies) => copies.check(),
        }
    }
}

/// Both sides of one way, and what the nodes have counted.
pub struct Run {
    way: Way,
    /// The nodes'.
    pub ours: Passes,
    /// What they are held against.
    pub theirs: Passes,
    lending: LendingReport,
    fetching: FetchingReport,
    /// How a source ended that was read from.
    ending: Option<Ending>,
}

fn measure(args: &PeerArgs, cores: Ends<usize>) -> Result<Report, Failure> {
    let machine = machine::describe();
    let at_start = machine::Pressure::now();
    let plan = Plan::of(args.profile);
    let signals = StopSignals::watch()?;
    let name = args.profile.name();
    progress(&format!("{name} profile; sources on core {}, readers on core {}", cores.source, cores.reader));
    let (mut runs, mut pace) = (Vec::new(), Pace::over(Way::ALL.len()));
    for way in Way::ALL {
        pace.tell(way.gate());
        runs.push(compare(way, &plan, cores, args.seed, &signals)?);
        pace.done();
    }
    let counters: serde_json::Map<_, _> = (runs.iter())
        .map(|run| {
            let counted = json!({ "source_lending": run.lending, "reader_fetching": run.fetching });
            (run.way.gate().to_owned(), counted)
        })
        .collect();
    let exits = runs.iter().filter_map(|run| run.ending.as_ref());
    let gates = (runs.iter().map(|run| gate(&plan, args.seed, run)))
        .chain(exits.map(|ending| restart(&plan, args.seed, ending)));
    Ok(Report {
        name: "peer",
        profile: args.profile.into(),
        seed: args.seed,
        machine,
        figures: figures(&runs),
        gates: gates.collect(),
        settings: json!({
            "cores": cores,
            "sizes": plan,
            "pressure": at_start.until_now(),
            "counters": counters,
        }),
    })
}

/// Both sides in turns, pair by pair.
///
/// # Errors
/// If a process fails, a block is wrong, or a signal comes.
pub fn compare(
    way: Way,
    plan: &Plan,
    cores: Ends<usize>,
    seed: u64,
    signals: &StopSignals,
) -> Result<Run, Failure> {
    let mut nodes = Nodes::start(*plan, cores, seed, way, signals)?;
    let mut other = Other::start(way, plan, cores, seed)?;
    let (mut ours, mut theirs) = (Passes::default(), Passes::default());
    // Generation 0 of either side is not counted: connections are made and pages touched.
    for generation in 0..=plan.pairs as u64 {
        if let Some(signal) = signals.wait(Duration::ZERO) {
            return Err(format!("stopped by {signal}").into());
        }
        // Who goes first changes from pair to pair.
        for is_ours in [generation % 2 == 0, generation % 2 != 0] {
            let counts = generation > 0;
            if is_ours {
                nodes.save(generation)?;
                let read = nodes.read(generation)?;
                if counts {
                    ours.add(read.from_peer as u64 * plan.block_bytes, read.time, &read.used);
                }
                nodes.check(generation, read)?;
            } else {
                let (time, used) = other.read()?;
                if counts {
                    theirs.add(plan.pass_bytes(), time, &used);
                }
                other.check()?;
            }
        }
        if let (Some(own), Some(held)) = (ours.gbps.0.last(), theirs.gbps.0.last()) {
            let (name, against) = (way.gate(), way.other());
            progress(&format!(
                "{name}, pair {generation}: {own:.3} against {held:.3} GB/s of {against}, {:.3}",
                own / held
            ));
        }
    }
    let (lending, fetching) = nodes.counters()?;
    let ending = match way {
        Way::Quic => {
            let ending = nodes.end_source(plan.pairs as u64 + 1)?;
            progress(&format!("the source ended {:.0} ms after SIGTERM", ending.time.as_secs_f64() * 1e3));
            Some(ending)
        }
        Way::Shm | Way::Settled => None,
    };
    Ok(Run { way, ours, theirs, lending, fetching, ending })
}

fn gate(plan: &Plan, seed: u64, run: &Run) -> Gate {
    let Run { way, ours, theirs, fetching, .. } = run;
    let ratios = ours.gbps.over(&theirs.gbps);
    let against = match way {
        Way::Quic => "stock quinn bulk stream, GB/s",
        Way::Shm | Way::Settled => "memcpy and the same checksum on one core, GB/s",
    };
    let gate = Gate::new(way.gate(), plan.profile, seed)
        .at_least(way.target())
        .against(against, Some(theirs.gbps.median()))
        .value(ratios.median())
        .details(json!({
            "ratios": ratios.json(),
            "node_gbps": ours.gbps.json(),
            "other_gbps": theirs.gbps.json(),
            "node_cpu_seconds_per_gib": ours.used.per_gib(ours.bytes),
            "other_cpu_seconds_per_gib": theirs.used.per_gib(theirs.bytes),
        }));
    // Those of generation 0 are among them.
    let otherwise = match way {
        Way::Quic => fetching.fetched_shm,
        Way::Shm | Way::Settled => fetching.fetched - fetching.fetched_shm,
    };
    if ours.bytes != theirs.bytes {
        gate.invalid(format!("only {} of {} bytes came from the peer's DRAM", ours.bytes, theirs.bytes))
    } else if otherwise > 0 {
        gate.invalid(format!("{otherwise} blocks came over another transport"))
    } else {
        gate
    }
}

fn restart(plan: &Plan, seed: u64, ending: &Ending) -> Gate {
    let Ending { time, asked, come } = *ending;
    let gate = Gate::new("restart", plan.profile, seed)
        .at_most(RESTART_SECONDS)
        .against("best known, s", Some(RESTART_SECONDS))
        .value(time.as_secs_f64())
        .details(json!({ "blocks_asked": asked, "blocks_come_before": come }));
    match come < asked {
        true => gate,
        false => gate.invalid("every block had come before the source was asked to end"),
    }
}

fn figures(runs: &[Run]) -> String {
    let mut table = Table::new(["", "GB/s", "source CPU s/GiB", "reader CPU s/GiB"]);
    for run in runs {
        let ours = match run.way {
            Way::Quic => "nodes over QUIC",
            Way::Shm => "nodes over shared memory",
            Way::Settled => "the same, blocks on SSD, too",
        };
        for (name, passes) in [(ours, &run.ours), (run.way.other(), &run.theirs)] {
            let Ends { source, reader } = passes.used.per_gib(passes.bytes);
            let gbps = passes.gbps.median();
            table.row([
                name.to_owned(),
                format!("{gbps:.3}"),
                format!("{source:.3}"),
                format!("{reader:.3}"),
            ]);
        }
    }
    table.to_string()
}

/// Cores of source and reader.
///
/// # Errors
/// If they are not two different cores.
pub fn cores(list: Option<&str>) -> Result<Ends<usize>, Failure> {
    let whose = "the source's and the reader's";
    let [source, reader] = two_cores(list, |available| [available.first(), available.last()], whose)?;
    Ok(Ends { source, reader })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(plan: &Plan, gbps: &[f64], missing_blocks: u64) -> Passes {
        let bytes = plan.pass_bytes() * gbps.len() as u64 - missing_blocks * plan.block_bytes;
        Passes { gbps: Figures(gbps.to_vec()), used: Ends::default(), bytes }
    }

    #[test]
    fn the_gate_is_the_median_of_pairs_and_counts_only_whole_passes_from_the_peer() {
        let plan = Plan::of(Profile::Full);
        let of = |way, gbps: &[f64], missing, fetched_shm| {
            let (ours, theirs) = (passes(&plan, gbps, missing), passes(&plan, &[1.0, 2.0, 4.0], 0));
            let fetching = FetchingReport { fetched: 9, fetched_shm, ..FetchingReport::default() };
            let lending = LendingReport::default();
            gate(&plan, 1, &Run { way, ours, theirs, lending, fetching, ending: None }).is_met()
        };
        assert!(of(Way::Quic, &[1.0, 2.2, 3.0], 0, 0), "1.0 is the median");
        assert!(!of(Way::Quic, &[0.9, 1.9, 9.0], 0, 0));
        assert!(!of(Way::Quic, &[2.0, 4.0, 8.0], 1, 0), "a block came from elsewhere");
        assert!(!of(Way::Quic, &[2.0, 4.0, 8.0], 0, 1), "a block came over shared memory");
        assert!(of(Way::Shm, &[0.8, 1.7, 3.0], 0, 9), "0.8 is the median");
        assert!(!of(Way::Shm, &[0.7, 1.5, 9.0], 0, 9));
        assert!(!of(Way::Shm, &[2.0, 4.0, 8.0], 0, 8), "a block came over QUIC");
    }

    #[test]
    fn an_exit_counts_only_amid_reads() {
        let plan = Plan::of(Profile::Full);
        let of = |milliseconds, come| {
            restart(&plan, 1, &Ending { time: Duration::from_millis(milliseconds), asked: 64, come })
        };
        assert!(of(419, 63).is_met());
        assert!(!of(421, 63).is_met());
        assert!(!of(1, 64).is_met());
    }
}
