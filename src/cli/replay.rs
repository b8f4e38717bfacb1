//! `orbitkv replay`: drive nodes with a trace and check every byte.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use orbitkv_wire::bounds::EXTENT_ALIGN_BYTES;

use super::{fail, say};
use crate::client::ClientError;
use crate::exit::Exit;
use crate::quantity::{ByteSize, MIB};
use crate::replay::{
    ChildNode, NodeFailure, NodeOrder, PAYLOAD_BYTES_MIN, ReplaySettings, Spread, TraceRequest, TraceShape,
    generate, read_trace, replay,
};

/// How long a given node may take to answer.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// How often the spinner moves while a node starts.
const SPINNER_INTERVAL: Duration = Duration::from_millis(100);
/// The least a started node gets, of DRAM and of SSD.
const SHARE_BYTES_MIN: u64 = 64 * MIB;
/// What a share of the SSD gets on top: the log keeps free and fills segments of up to 32 MiB.
const SSD_EXTRA_OF: u64 = 32;
/// Smallest such extra.
const SSD_EXTRA_BYTES_MIN: u64 = 4 * 32 * MIB;

/// Arguments of `orbitkv replay`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Exit codes: 0 all bytes right; 2 bad usage or trace; 3 the node cannot start here; \
                        4 wrong bytes or unaccounted blocks; 5 node unreachable.")]
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

    /// Nodes to start; more than one needs peers, which this version does not have
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "socket")]
    managers: u16,

    /// Payload bytes of a block
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

    /// Host memory of a started node: a size, or a share of the trace's distinct blocks
    #[arg(long, value_name = "SIZE|N%", default_value = "20%", conflicts_with = "socket")]
    dram: Share,

    /// SSD space of a started node: a size (0 for none), or a share of the trace's distinct
    /// blocks, with what the log itself needs on top
    #[arg(long, value_name = "SIZE|N%", default_value = "100%", conflicts_with = "socket")]
    ssd: Share,

    /// Directory for the SSD file of a started node; a temporary one is made in it and removed.
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
        ByteSize((part + extra(part)).max(SHARE_BYTES_MIN).next_multiple_of(2 * MIB))
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
    if args.managers != 1 {
        return Err(usage(format!(
            "--managers {}: several nodes need peers, which this version does not have; leave it at 1, or start \
             nodes yourself and name each with --socket",
            args.managers
        )));
    }
    if args.block_bytes.0 < PAYLOAD_BYTES_MIN {
        return Err(usage(format!(
            "--block-bytes {}: a block has at least {PAYLOAD_BYTES_MIN} bytes, to hold its own number",
            args.block_bytes
        )));
    }
    if !(args.speed.is_finite() && args.speed >= 0.0) {
        return Err(usage(format!("--speed {}: give 0 or a positive factor", args.speed)));
    }
    let requests = trace(args)?;
    let shape = TraceShape::of(&requests);
    let node = match args.socket.is_empty() {
        true => Some(start_node(args, &shape)?),
        false => None,
    };
    let settings = ReplaySettings {
        sockets: node.as_ref().map_or_else(|| args.socket.clone(), |node| vec![node.socket().to_owned()]),
        engines: args.engines.into(),
        block_bytes: args.block_bytes.0,
        speed: args.speed,
        spread: args.spread,
        connect_wait: CONNECT_WAIT,
    };
    let bar = progress_bar(requests.len() as u64);
    let report = replay(&requests, &settings, &mut |done| bar.set_position(done));
    bar.finish_and_clear();
    let report = report.map_err(|error| Refusal(exit_of(&error), error.to_string()))?;
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

fn start_node(args: &ReplayArgs, shape: &TraceShape) -> Result<ChildNode, Refusal> {
    let block_bytes = args.block_bytes.0;
    let log_extra = |bytes: u64| (bytes / SSD_EXTRA_OF).max(SSD_EXTRA_BYTES_MIN);
    let below_target = || {
        let target = PathBuf::from("target");
        if target.is_dir() { target } else { PathBuf::from(".") }
    };
    let order = NodeOrder {
        dram: args.dram.bytes(shape, block_bytes, |_| 0),
        ssd: args.ssd.bytes(shape, block_bytes, log_extra),
        data_parent: args.data_dir.clone().unwrap_or_else(below_target),
    };
    let spinner = ProgressBar::new_spinner().with_message(format!(
        "starting a node with {} of DRAM and {} of SSD (it allocates both)",
        order.dram, order.ssd
    ));
    spinner.enable_steady_tick(SPINNER_INTERVAL);
    let started = ChildNode::start(&order);
    spinner.finish_and_clear();
    started.map_err(|failure| {
        let exit = match &failure {
            NodeFailure::Ended { status, .. } if status.code() == Some(Exit::Usage as i32) => Exit::Usage,
            NodeFailure::Client(error) => exit_of(error),
            NodeFailure::Silent { .. } => Exit::Unreachable,
            _ => Exit::Environment,
        };
        let text = format!("a node with --dram {} --ssd {} did not start: {failure}", order.dram, order.ssd);
        Refusal(exit, text)
    })
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
        assert_eq!(bytes("20"), 20, "a bare number is bytes, not a share");
        for bad in ["-1%", "x%", "nan%", "inf%", "10001%", "%", "20%%"] {
            let error = bad.parse::<Share>().expect_err(bad);
            assert!(error.contains(&format!("`{bad}`")) && error.contains("like 20%"), "{error}");
        }
    }
}
