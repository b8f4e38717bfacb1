//! `orbitkv cluster`: a whole cluster on this machine, one table of its state, and nothing left of it.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use super::{fail, say};
use crate::cluster::{
    Cluster, ClusterFailure, ClusterOrder, Coordination, Division, DivisionOrder, NODES_MAX, NodeSight, table,
};
use crate::control::signals::StopSignals;
use crate::exit::Exit;
use crate::quantity::{ByteSize, Span};
use crate::settings::{Machine, SHARDS_MAX, is_node_id};

/// How often the nodes are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How often, once every one of them has what the others hold: a look costs each node as much as some seconds of
/// knowing its peers.
const REST_LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// How often, if the run ends as soon as they know each other.
const SHORT_LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// How often a table is appended where none can be refreshed in place.
const APPEND_INTERVAL: Duration = Duration::from_secs(10);

/// Arguments of `orbitkv cluster`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Runs until Ctrl-C or SIGTERM, then stops the nodes, then etcd, and removes their directories.\n\
                        75 % of the available memory is divided among the nodes; the sum is printed before they start.\n\
                        Exit codes: 0 done; 2 bad usage or settings; 3 memory, a port, a device or etcd is missing;\n\
                        4 a process died, or --for passed before --until-complete was met."
)]
pub struct ClusterArgs {
    /// Nodes to start, `node-1` and so on
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(NODES_MAX)))]
    managers: u16,

    /// Shards of each node, pinned to the machine's cores in turn
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=i64::from(SHARDS_MAX)))]
    shards: u16,

    /// Host memory for blocks of each node  [default: what its part of the memory leaves beside the rest of its bill]
    #[arg(long, value_name = "SIZE")]
    dram: Option<ByteSize>,

    /// SSD space for blocks of each node; 0 for none
    #[arg(long, value_name = "SIZE", default_value = "0")]
    ssd: ByteSize,

    /// Directory for the SSD files; a temporary one is made in it and removed. Must lie on a real disk
    /// [default: `target` below the current directory, else that directory]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// Use an etcd that runs already instead of starting one: its URLs, without TLS. What nodes leave there for good
    /// stays: the cluster's format and their epochs
    #[arg(long, value_name = "URL,URL")]
    etcd: Option<String>,

    /// Name of the cluster in etcd, 1 to 64 of a-z 0-9 -
    #[arg(long, value_name = "NAME", default_value = "local")]
    cluster: String,

    /// Stop by itself after that long
    #[arg(long = "for", value_name = "SPAN")]
    span: Option<Span>,

    /// Stop as soon as every node knows all the others and has what they hold
    #[arg(long)]
    until_complete: bool,

    /// Print one line of JSON at each look instead of a table; everything else goes to standard error
    #[arg(long)]
    json: bool,
}

/// Why the command ends early.
struct Refusal(Exit, String);

impl From<ClusterFailure> for Refusal {
    fn from(failure: ClusterFailure) -> Refusal {
        Refusal(failure.exit(), failure.to_string())
    }
}

/// Where SSD files go unless told otherwise: a build folder is on a real disk, and nobody backs it up.
#[must_use]
pub(super) fn default_data_parent() -> PathBuf {
    let target = PathBuf::from("target");
    if target.is_dir() { target } else { PathBuf::from(".") }
}

/// Runs the command.
#[must_use]
pub fn run(args: &ClusterArgs) -> ExitCode {
    match start_and_watch(args) {
        Ok(exit) => exit.into(),
        Err(Refusal(exit, text)) => fail(exit, &text),
    }
}

fn start_and_watch(args: &ClusterArgs) -> Result<Exit, Refusal> {
    if !is_node_id(&args.cluster) {
        let text =
            format!("--cluster {:?}: must be 1 to 64 bytes of a-z, 0-9 and -; rename it", args.cluster);
        return Err(Refusal(Exit::Usage, text));
    }
    let order = DivisionOrder { nodes: args.managers, shards: args.shards, dram: args.dram, ssd: args.ssd };
    let division = Division::of(&order, &Machine::observe())
        .map_err(|refused| Refusal(refused.exit(), refused.to_string()))?;
    let signals = StopSignals::watch()
        .map_err(|error| Refusal(Exit::Environment, format!("watching for signals: {error}")))?;
    let screen = Screen::of(args.json);
    screen.note(&division.to_string());
    let bill_bytes = division.total_bytes();
    let order = ClusterOrder {
        nodes: division.nodes,
        coordination: args.etcd.clone().map_or(Coordination::Started, Coordination::Running),
        name: args.cluster.clone(),
        data_parent: args.data_dir.clone().unwrap_or_else(default_data_parent),
        program: None,
    };
    let mut cluster = match Cluster::start(&order, &signals) {
        // Asked to stop before there was anything to see: it was, and nothing is left.
        Err(ClusterFailure::Stopped { .. }) => return Ok(Exit::Done),
        started => started?,
    };
    if let Some(url) = cluster.etcd_url() {
        screen.note(&format!("etcd {url}"));
    }
    for node in cluster.nodes() {
        screen.note(&format!(
            "{}: engine socket {}, http on {}",
            node.name(),
            node.socket().display(),
            node.http_address()
        ));
    }
    let (exit, why) = watch(args, &mut cluster, &signals, &screen, bill_bytes);
    screen.note(&format!("stopping: {why}"));
    drop(cluster);
    screen.note("stopped");
    Ok(exit)
}

/// Shows the cluster until the run is over: how it ended, and why.
fn watch(
    args: &ClusterArgs,
    cluster: &mut Cluster,
    signals: &StopSignals,
    screen: &Screen,
    bill_bytes: u64,
) -> (Exit, String) {
    let began = Instant::now();
    let mut shown: Option<Instant> = None;
    let mut exit = Exit::Done;
    loop {
        let sights = cluster.look();
        for death in cluster.obituaries() {
            screen.news(&death);
            exit = Exit::Unmet;
        }
        let elapsed = began.elapsed();
        let complete = sights.iter().all(|sight| sight.complete);
        let end = if args.until_complete && complete {
            Some((exit, "every node knows all the others and has what they hold".to_owned()))
        } else if cluster.is_over() {
            Some((Exit::Unmet, "no node is left".to_owned()))
        } else if args.until_complete && exit != Exit::Done {
            Some((exit, "without what has ended it can not become complete".to_owned()))
        } else if let Some(span) = args.span.filter(|span| elapsed >= span.0) {
            let exit = if args.until_complete { Exit::Unmet } else { exit };
            Some((exit, format!("--for {span} has passed")))
        } else {
            None
        };
        if end.is_some() || shown.is_none_or(|at| at.elapsed() >= screen.interval()) {
            shown = Some(Instant::now());
            screen.show(&sights, elapsed, complete, bill_bytes);
        }
        if let Some(end) = end {
            return end;
        }
        let interval = match complete {
            _ if args.until_complete => SHORT_LOOK_INTERVAL,
            true => REST_LOOK_INTERVAL,
            false => LOOK_INTERVAL,
        };
        let left = args.span.map_or(interval, |span| span.0.saturating_sub(began.elapsed()));
        if let Some(signal) = signals.wait(interval.min(left)) {
            return (exit, signal.to_owned());
        }
    }
}

/// Where the state is shown, and how.
enum Screen {
    /// A table, refreshed in place.
    Terminal(ProgressBar),
    /// A table from time to time.
    Lines,
    /// A line of JSON at each look.
    Json,
}

impl Screen {
    fn of(json: bool) -> Screen {
        if json {
            return Screen::Json;
        }
        if !io::stdout().is_terminal() {
            return Screen::Lines;
        }
        let style = ProgressStyle::with_template("{msg}").expect("a constant template is valid");
        Screen::Terminal(ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout()).with_style(style))
    }

    fn interval(&self) -> Duration {
        match self {
            Screen::Terminal(_) | Screen::Json => Duration::ZERO,
            Screen::Lines => APPEND_INTERVAL,
        }
    }

    /// Something about the run.
    fn note(&self, text: &str) {
        match self {
            Screen::Json => _ = writeln!(io::stderr().lock(), "{text}"),
            Screen::Lines => say(text),
            // Above the table, which stays.
            Screen::Terminal(bar) => bar.suspend(|| say(text)),
        }
    }

    /// Something that went wrong.
    fn news(&self, text: &str) {
        let tell = || _ = writeln!(io::stderr().lock(), "orbitkv: {text}");
        match self {
            Screen::Terminal(bar) => bar.suspend(tell),
            Screen::Lines | Screen::Json => tell(),
        }
    }

    fn show(&self, sights: &[NodeSight], elapsed: Duration, complete: bool, bill_bytes: u64) {
        let whole = if complete { ", complete" } else { "" };
        let text = || format!("\nafter {:.1} s{whole}\n{}", elapsed.as_secs_f64(), table(sights));
        match self {
            Screen::Terminal(bar) => bar.set_message(text()),
            Screen::Lines => say(&text()),
            Screen::Json => say(&json!({
                "elapsed_ms": elapsed.as_millis() as u64,
                "complete": complete,
                "bill_bytes": bill_bytes,
                "nodes": sights,
            })
            .to_string()),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Screen::Terminal(bar) = self {
            bar.abandon();
        }
    }
}
