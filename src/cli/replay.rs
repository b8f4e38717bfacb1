//! `orbitkv replay`: drive nodes with a trace and check every byte.

use std::fs::File;
use std::io::BufReader;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use orbitkv_wire::bounds::EXTENT_ALIGN_BYTES;

use super::cluster::default_data_parent;
use super::{fail, say};
use crate::client::ClientError;
use crate::cluster::{
    Cluster, ClusterFailure, ClusterOrder, Coordination, Division, DivisionOrder, NODES_MAX, NodeOrder,
};
use crate::control::signals::StopSignals;
use crate::exit::Exit;
use crate::quantity::{ByteSize, GIB, MIB};
use crate::replay::{
    PAYLOAD_BYTES_MIN, ReplayError, ReplaySettings, Spread, TraceRequest, TraceShape, generate,
    intended_starts, read_trace, replay,
};
use crate::settings::Machine;

/// How long a given node may take to answer.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// How often the spinner moves while a node starts.
const SPINNER_INTERVAL: Duration = Duration::from_millis(100);
/// How long started nodes may take to know each other completely.
const COMPLETE_WAIT: Duration = Duration::from_secs(60);
/// Below this a started node cannot have several shards: it gets one.
const ONE_SHARD_BYTES: u64 = GIB;
/// Largest block that is replayed: larger than any engine's, and small enough that sums of many can be told.
const BLOCK_BYTES_MAX: u64 = GIB;
/// The least a started node gets, of DRAM and of SSD.
const SHARE_BYTES_MIN: u64 = 64 * MIB;
/// What a share of the SSD gets on top: the log keeps free and fills segments of up to 32 MiB.
const SSD_EXTRA_OF: u64 = 32;
/// Smallest such extra.
const SSD_EXTRA_BYTES_MIN: u64 = 4 * 32 * MIB;

/// Arguments of `orbitkv replay`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Exit codes: 0 all bytes right; 2 bad usage or trace; 3 the node cannot start here; \
                        4 wrong bytes or unaccounted blocks, or stopped before the end; 5 node unreachable.")]
pub struct ReplayArgs {
    /// Trace to drive: JSON lines with `timestamp` (ms) and `hash_ids`, as Mooncake publishes them
    #[arg(value_name = "TRACE", required_unless_present = "generate", conflicts_with = "generate")]
    trace: Option<PathBuf>,

    /// Instead of a file, make a trace of conversations with this many requests
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    generate: Option<u32>,

    /// Seed of --generate; the same seed is the same trace
    #[arg(long, value_name = "N", default_value_t = 1, requires = "generate")]
    seed: u64,

    /// Engine socket of a running node; repeat for several nodes. Without it a standalone node is
    /// started for the run and stopped afterwards
    #[arg(long, value_name = "PATH")]
    socket: Vec<PathBuf>,

    /// Nodes to start: one is standalone, several are a cluster of one shard each with an etcd of their own
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "socket",
          value_parser = clap::value_parser!(u16).range(1..=i64::from(NODES_MAX)))]
    managers: u16,

    /// Payload bytes of a block, at most 1gib
    #[arg(long, value_name = "SIZE", default_value = "64kib")]
    block_bytes: ByteSize,

    /// Use only the first requests of the trace
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,

    /// Pace: 1 is the trace's own, 10 ten times as fast, 0 as fast as possible. When paced,
    /// latencies count from when a request was due
    #[arg(long, value_name = "FACTOR", default_value_t = 0.0)]
    speed: f64,

    /// Engines of each node, a thread with a connection each
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    engines: u16,

    /// How requests are spread over nodes and engines
    #[arg(long, value_enum, value_name = "HOW", default_value = "sticky")]
    spread: Spread,

    /// Requests that each engine announces before it serves them, so that their blocks may be in DRAM by then
    #[arg(long, value_name = "REQUESTS", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=1024))]
    prefetch: u16,

    /// Host memory of each started node: a size, or a share of the trace's distinct blocks
    #[arg(long, value_name = "SIZE|N%", default_value = "20%", conflicts_with = "socket")]
    dram: Share,

    /// SSD space of each started node: a size (0 for none), or a share of the trace's distinct
    /// blocks, with what the log itself needs on top
    #[arg(long, value_name = "SIZE|N%", default_value = "100%", conflicts_with = "socket")]
    ssd: Share,

    /// Directory for the SSD files of started nodes; a temporary one is made in it and removed.
    /// Must lie on a real disk  [default: `target` below the current directory, else that directory]
    #[arg(long, value_name = "DIR", conflicts_with = "socket")]
    data_dir: Option<PathBuf>,

    /// Print JSON with stable names instead of a table
    #[arg(long)]
    json: bool,
}

/// A size, or a part of the trace's distinct blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Share {
    Size(ByteSize),
    Percent(f64),
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Share, String> {
        let Some(number) = text.strip_suffix('%') else {
            return text.parse().map(Share::Size).map_err(|error: crate::quantity::QuantityError| {
                format!("{error}, or a share of the trace's distinct blocks like 20%")
            });
        };
        match number.trim().parse::<f64>() {
            Ok(percent) if (0.0..=10_000.0).contains(&percent) => Ok(Share::Percent(percent)),
            _ => Err(format!("`{text}` is no share: write it like 20%, at most 10000%")),
        }
    }
}

impl Share {
    /// Bytes for a trace; `extra` is what the medium needs beside the blocks.
    fn bytes(self, shape: &TraceShape, block_bytes: u64, extra: fn(u64) -> u64) -> ByteSize {
        let percent = match self {
            Share::Size(size) => return size,
            Share::Percent(percent) => percent,
        };
        let whole = shape.distinct_blocks.saturating_mul(block_bytes.next_multiple_of(EXTENT_ALIGN_BYTES));
        let part = (whole as f64 * percent / 100.0).ceil() as u64;
        if part == 0 {
            return ByteSize(0);
        }
        // What no machine has is refused by the node, by its name.
        let bytes = part.saturating_add(extra(part)).max(SHARE_BYTES_MIN);
        ByteSize(bytes.checked_next_multiple_of(2 * MIB).unwrap_or(u64::MAX / (2 * MIB) * (2 * MIB)))
    }
}

/// Why the command ends early.
struct Refusal(Exit, String);

/// Runs the command.
#[must_use]
pub fn run(args: &ReplayArgs) -> ExitCode {
    match prepare_and_replay(args) {
        Ok(exit) => exit.into(),
        Err(Refusal(exit, text)) => fail(exit, &text),
    }
}

fn prepare_and_replay(args: &ReplayArgs) -> Result<Exit, Refusal> {
    let usage = |text: String| Refusal(Exit::Usage, text);
    if args.block_bytes.0 < PAYLOAD_BYTES_MIN {
        return Err(usage(format!(
            "--block-bytes {}: a block has at least {PAYLOAD_BYTES_MIN} bytes, to hold its own number",
            args.block_bytes
        )));
    }
    if args.block_bytes.0 > BLOCK_BYTES_MAX {
        return Err(usage(format!(
            "--block-bytes {}: a block has at most {}; give the size of an engine's blocks, like 64kib",
            args.block_bytes,
            ByteSize(BLOCK_BYTES_MAX)
        )));
    }
    if !(args.speed.is_finite() && args.speed >= 0.0) {
        return Err(usage(format!("--speed {}: give 0 or a positive factor", args.speed)));
    }
    let requests = trace(args)?;
    // Before a node is started for it.
    intended_starts(&requests, args.speed).map_err(|error| usage(error.to_string()))?;
    let shape = TraceShape::of(requests.iter());
    let mut started = match args.socket.is_empty() {
        true => Some(start(args, &shape)?),
        false => None,
    };
    let settings = ReplaySettings {
        sockets: started.as_ref().map_or_else(|| args.socket.clone(), |started| started.nodes.sockets()),
        engines: args.engines.into(),
        block_bytes: args.block_bytes.0,
        speed: args.speed,
        spread: args.spread,
        announced: args.prefetch.into(),
        connect_wait: CONNECT_WAIT,
    };
    let bar = progress_bar(requests.len() as u64);
    let report = replay(&requests, &settings, &mut |done| {
        bar.set_position(done);
        match started.as_ref().and_then(|started| started.signals.wait(Duration::ZERO)) {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    });
    bar.finish_and_clear();
    let deaths = started.as_mut().map_or_else(Vec::new, |started| started.nodes.obituaries());
    let report = report.map_err(|error| {
        let exit = match &error {
            ReplayError::Client(error) => exit_of(error),
            ReplayError::Pace(_) => Exit::Usage,
            ReplayError::Stopped => Exit::Unmet,
        };
        // A node that has died explains what its engines saw.
        Refusal(exit, [deaths, vec![error.to_string()]].concat().join("\n"))
    })?;
    if args.json {
        say(&report.json().to_string());
    } else {
        say(&report.text());
    }
    Ok(if report.is_right() { Exit::Done } else { Exit::Unmet })
}

fn trace(args: &ReplayArgs) -> Result<Vec<TraceRequest>, Refusal> {
    let limit = args.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let Some(path) = &args.trace else {
        let requests = args.generate.expect("clap wants one of the two") as usize;
        return Ok(generate(requests.min(limit), args.seed));
    };
    let refuse = |error: &dyn std::fmt::Display| Refusal(Exit::Usage, format!("{}: {error}", path.display()));
    let file = File::open(path).map_err(|error| refuse(&error))?;
    read_trace(BufReader::new(file), limit).map_err(|error| refuse(&error))
}

/// Nodes of the run, and the signals that end it.
struct Started {
    nodes: Cluster,
    signals: StopSignals,
}

fn start(args: &ReplayArgs, shape: &TraceShape) -> Result<Started, Refusal> {
    let block_bytes = args.block_bytes.0;
    let log_extra = |bytes: u64| (bytes / SSD_EXTRA_OF).max(SSD_EXTRA_BYTES_MIN);
    let dram = args.dram.bytes(shape, block_bytes, |_| 0);
    let ssd = args.ssd.bytes(shape, block_bytes, log_extra);
    let order = ClusterOrder {
        nodes: nodes(args.managers, dram, ssd)?,
        coordination: if args.managers == 1 { Coordination::Standalone } else { Coordination::Started },
        name: "replay".to_owned(),
        data_parent: args.data_dir.clone().unwrap_or_else(default_data_parent),
        program: None,
    };
    let signals = StopSignals::watch()
        .map_err(|error| Refusal(Exit::Environment, format!("watching for signals: {error}")))?;
    let what = match args.managers {
        1 => "a node".to_owned(),
        count => format!("{count} nodes, each"),
    };
    let spinner = ProgressBar::new_spinner()
        .with_message(format!("starting {what} with {dram} of DRAM and {ssd} of SSD (allocated whole)"));
    spinner.enable_steady_tick(SPINNER_INTERVAL);
    let started = Cluster::start(&order, &signals).and_then(|mut nodes| {
        if args.managers > 1 {
            nodes.await_complete(COMPLETE_WAIT, &signals)?;
        }
        Ok(nodes)
    });
    spinner.finish_and_clear();
    let nodes = started.map_err(|failure| match &failure {
        ClusterFailure::Ended { .. } | ClusterFailure::Silent { .. } => {
            let text = format!("{what} with --dram {dram} --ssd {ssd} did not start: {failure}");
            Refusal(failure.exit(), text)
        }
        _ => Refusal(failure.exit(), failure.to_string()),
    })?;
    Ok(Started { nodes, signals })
}

/// What each node gets: a standalone one its media and its own defaults, members what the machine has for each.
fn nodes(count: u16, dram: ByteSize, ssd: ByteSize) -> Result<Vec<NodeOrder>, Refusal> {
    if count > 1 {
        let order = DivisionOrder { nodes: count, shards: 1, dram: Some(dram), ssd };
        let division = Division::of(&order, &Machine::observe());
        return division
            .map(|division| division.nodes)
            .map_err(|refused| Refusal(refused.exit(), refused.to_string()));
    }
    let smallest = if ssd.0 == 0 { dram } else { dram.min(ssd) };
    let shards = (smallest.0 < ONE_SHARD_BYTES).then_some(1);
    Ok(vec![NodeOrder { name: "replay".to_owned(), dram, ssd, shards, ..NodeOrder::default() }])
}

fn exit_of(error: &ClientError) -> Exit {
    match error {
        ClientError::OverLimit { .. } => Exit::Usage,
        ClientError::Protocol { .. } => Exit::Unmet,
        ClientError::Arena(_) | ClientError::System { .. } | ClientError::UntrustedNode { .. } => {
            Exit::Environment
        }
        _ => Exit::Unreachable,
    }
}

/// Hidden by itself unless standard error is a terminal.
fn progress_bar(requests: u64) -> ProgressBar {
    let template = "{bar:40} {pos}/{len} requests, {per_sec}, {eta} left";
    let style = ProgressStyle::with_template(template).expect("a constant template is valid");
    ProgressBar::new(requests).with_style(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_size_or_a_part_of_the_distinct_blocks() {
        let shape = TraceShape { distinct_blocks: 100_000, ..TraceShape::default() };
        let bytes = |text: &str| text.parse::<Share>().unwrap().bytes(&shape, 65_536, |_| 0).0;
        assert_eq!(bytes("1gib"), 1 << 30);
        assert_eq!(bytes("100%"), 6_553_600_000u64.next_multiple_of(2 * MIB));
        assert_eq!(bytes("20 %"), 1_310_720_000u64.next_multiple_of(2 * MIB));
        assert_eq!(bytes("0%"), 0);
        assert_eq!(bytes("0.1%"), SHARE_BYTES_MIN);
        assert_eq!(bytes("200%"), 13_107_200_000u64.next_multiple_of(2 * MIB));
        let all = TraceShape { distinct_blocks: u64::MAX, ..shape };
        let most = "10000%".parse::<Share>().unwrap().bytes(&all, BLOCK_BYTES_MAX, |bytes| bytes).0;
        assert_eq!(most, u64::MAX - (2 * MIB - 1), "more than there is");
        assert_eq!(bytes("20"), 20, "a bare number is bytes, not a share");
        for bad in ["-1%", "x%", "nan%", "inf%", "10001%", "%", "20%%"] {
            let error = bad.parse::<Share>().expect_err(bad);
            assert!(error.contains(&format!("`{bad}`")) && error.contains("like 20%"), "{error}");
        }
    }
}
