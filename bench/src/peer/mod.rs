//! `orbitkv-bench peer`: blocks that a node reads from a peer over QUIC, against a bulk stream of stock `quinn` with as
//! many bytes, in turns in one run.
//!
//! Either side is two processes over loopback, one busy thread and one core each: the source on the first core, the
//! reader on the second. Either side stays connected from pass to pass, has its bytes in memory that has been touched,
//! and brings the same number of blocks of the same sizes to a place of its own for each, which is compared byte for
//! byte when the clock has stopped. The cipher is the same.
//!
//! Ours does more: an engine asks for the blocks in batches over its socket, the reader looks up who has them and asks
//! for them, the source pins and sums each, and the reader sums it again before the engine hears of it. Every pass has
//! new blocks, so that no sum is there before. The stock side has one stream, and its defaults.
//!
//! At last the source is asked to end while it is read from: how long that takes is the second gate.

mod ends;
mod nodes;
mod plan;
mod rival;
mod stock;
mod tls;

use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use orbitkv::cli::table::Table;
use orbitkv::cluster::ClusterFailure;
use orbitkv::control::signals::StopSignals;
use orbitkv::exit::Exit;
use orbitkv_native::affinity;
use serde_json::json;

use crate::payload::WrongBytes;
use crate::profile::Profile;
use crate::report::{Gate, Report};
use crate::statistics::{Figures, gigabytes_per_second};
use crate::{Failure, fail, machine, progress};
use ends::Ends;
use nodes::{Ending, Nodes};
use plan::Plan;
use rival::Rival;

/// What the design asks of the path (chapter 6.2).
const TARGET: f64 = 1.0;

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
    let report = match measure(args, cores) {
        Ok(report) => report,
        Err(error) => return fail(exit_of(&*error), &*error),
    };
    if args.json {
        println!("{:#}", report.json());
    } else {
        println!("{}", report.text());
    }
    match report.is_met() || args.profile == Profile::Ci {
        true => Exit::Done.into(),
        false => Exit::Unmet.into(),
    }
}

/// Runs one end of the stock side.
pub fn bulk(args: &BulkArgs) -> Result<(), Box<dyn Error>> {
    stock::run(args)
}

fn exit_of(error: &(dyn Error + 'static)) -> Exit {
    match error.downcast_ref::<ClusterFailure>() {
        Some(failure) => failure.exit(),
        None if error.is::<WrongBytes>() => Exit::Unmet,
        None => Exit::Environment,
    }
}

/// Repeated passes of one side.
#[derive(Default)]
struct Passes {
    gbps: Figures,
    used: Ends<Duration>,
    bytes: u64,
}

impl Passes {
    fn add(&mut self, bytes: u64, time: Duration, used: &Ends<Duration>) {
        self.gbps.0.push(gigabytes_per_second(bytes, time));
        self.used.add(used);
        self.bytes += bytes;
    }
}

fn measure(args: &PeerArgs, cores: Ends<usize>) -> Result<Report, Failure> {
    let machine = machine::describe();
    let at_start = machine::Pressure::now();
    let plan = Plan::of(args.profile);
    let signals = StopSignals::watch()?;
    let name = args.profile.name();
    progress(&format!("{name} profile; sources on core {}, readers on core {}", cores.source, cores.reader));
    let mut nodes = Nodes::start(plan, cores, args.seed, &signals)?;
    let mut rival = Rival::start(&plan, cores, args.seed)?;
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
                let (time, used) = rival.read()?;
                if counts {
                    theirs.add(plan.pass_bytes(), time, &used);
                }
                rival.check()?;
            }
        }
        if let (Some(own), Some(stock)) = (ours.gbps.0.last(), theirs.gbps.0.last()) {
            progress(&format!("pair {generation}: {own:.3} against {stock:.3} GB/s, {:.3}", own / stock));
        }
    }
    let (lending, fetching) = nodes.counters()?;
    let ending = nodes.end_source(plan.pairs as u64 + 1)?;
    progress(&format!("the source ended {:.0} ms after SIGTERM", ending.time.as_secs_f64() * 1e3));
    Ok(Report {
        name: "peer",
        profile: args.profile,
        seed: args.seed,
        machine,
        figures: figures(&ours, &theirs),
        gates: vec![gate(&plan, args.seed, &ours, &theirs), restart(&plan, args.seed, &ending)],
        settings: json!({
            "cores": cores,
            "sizes": plan,
            "pressure": at_start.until_now(),
            "source_lending": lending,
            "reader_fetching": fetching,
        }),
    })
}

fn gate(plan: &Plan, seed: u64, ours: &Passes, theirs: &Passes) -> Gate {
    let ratios = ours.gbps.over(&theirs.gbps);
    let gate = Gate::new("peer_quic", plan.profile, seed)
        .at_least(TARGET)
        .against("stock quinn bulk stream, GB/s", Some(theirs.gbps.median()))
        .value(ratios.median())
        .details(json!({
            "ratios": ratios.json(),
            "node_gbps": ours.gbps.json(),
            "quinn_gbps": theirs.gbps.json(),
            "node_cpu_seconds_per_gib": ours.used.per_gib(ours.bytes),
            "quinn_cpu_seconds_per_gib": theirs.used.per_gib(theirs.bytes),
        }));
    match ours.bytes == theirs.bytes {
        true => gate,
        false => {
            gate.invalid(format!("only {} of {} bytes came from the peer's DRAM", ours.bytes, theirs.bytes))
        }
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

fn figures(ours: &Passes, theirs: &Passes) -> String {
    let mut table = Table::new(["", "GB/s", "source CPU s/GiB", "reader CPU s/GiB"]);
    for (name, passes) in [("nodes", ours), ("stock quinn", theirs)] {
        let Ends { source, reader } = passes.used.per_gib(passes.bytes);
        let gbps = passes.gbps.median();
        table.row([name.to_owned(), format!("{gbps:.3}"), format!("{source:.3}"), format!("{reader:.3}")]);
    }
    table.to_string()
}

/// Cores of source and reader.
fn cores(list: Option<&str>) -> Result<Ends<usize>, Failure> {
    let available = affinity::available_cores()?;
    let named = match list {
        Some(list) => affinity::parse_core_list(list)?,
        None => [available.first(), available.last()].into_iter().flatten().copied().collect(),
    };
    affinity::check_cores(&named, &available)?;
    match named[..] {
        [source, reader] if source != reader => Ok(Ends { source, reader }),
        _ => Err(format!(
            "--cores {}: name two different cores, the source's and the reader's; available are {}",
            list.unwrap_or("(default)"),
            affinity::format_core_list(&available)
        )
        .into()),
    }
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
        let stock = || passes(&plan, &[1.0, 2.0, 4.0], 0);
        let of = |gbps: &[f64], missing| gate(&plan, 1, &passes(&plan, gbps, missing), &stock());
        assert!(of(&[1.0, 2.2, 3.0], 0).is_met(), "1.0 is the median");
        assert!(!of(&[0.9, 1.9, 9.0], 0).is_met());
        assert!(!of(&[2.0, 4.0, 8.0], 1).is_met(), "a block came from elsewhere");
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

    #[test]
    fn failures_have_the_exit_codes_of_every_command() {
        assert_eq!(exit_of(&WrongBytes::of(1, 2)) as u8, Exit::Unmet as u8);
        assert_eq!(exit_of(&ClusterFailure::NoEtcd) as u8, Exit::Environment as u8);
        assert_eq!(exit_of(&std::fmt::Error) as u8, Exit::Environment as u8);
    }
}
