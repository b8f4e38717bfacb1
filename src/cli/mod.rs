//! The commands of `orbitkv`: what is parsed here is dispatched to the `run` of one file each.

pub mod await_fence;
pub mod cluster;
pub mod cluster_keys;
pub mod config;
pub mod derive;
pub mod doctor;
pub mod drain;
pub mod drill;
pub mod epochs;
pub mod failback;
pub mod http_client;
pub mod lab;
pub mod migrate;
pub mod namespaces;
pub mod node;
pub mod owners;
pub mod replay;
pub mod routes;
pub mod status;
pub mod sync;
pub mod table;
pub mod turns;

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::console::say;
use crate::exit::Exit;
use http_client::{ClientError, HttpClient};

/// KV-cache blocks of inference engines in host memory and on SSD.
#[derive(Debug, Parser)]
#[command(name = "orbitkv", version, propagate_version = true, arg_required_else_help = true)]
#[command(
    after_help = "Exit codes: 0 done; 2 bad usage or settings; 3 environment (memory, io_uring, device);\n\
                        4 a check found wrong bytes, a fault or an unmet gate; 5 node unreachable.\n\
                        Sizes: 8gb (10^9), 8gib or 8g (2^30), 65536. Durations: 2ms, 5s."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a node: the daemon that keeps blocks in DRAM and on SSD
    Node(Box<crate::settings::NodeArgs>),
    /// Run a whole cluster on this machine, for trying and for measuring: etcd, nodes, one table of their state
    Cluster(cluster::ClusterArgs),
    /// Drive nodes with a trace through the engine channel and check every byte
    Replay(replay::ReplayArgs),
    /// Stop a node: take no new work, finish, exit; prints what remains while it waits
    Drain(drain::DrainArgs),
    /// Show what a node is, holds and is doing
    Status(status::StatusArgs),
    /// Wait until a node has flushed, and print its fence
    Sync(sync::SyncArgs),
    /// List what a node has installed of other nodes' inventories
    Owners(owners::OwnersArgs),
    /// List from whom the latest blocks were fetched, why from there, and what came of it
    Routes(routes::RoutesArgs),
    /// Show what a node's cores did while its slowest requests waited; the node runs with --trace-turns
    Turns(turns::TurnsArgs),
    /// Wait until a node has installed another node's inventory up to a fence
    Await(await_fence::AwaitArgs),
    /// Ask the nodes of a node's own zone first again, after it had left that zone for another
    Failback(failback::FailbackArgs),
    /// List registered namespaces with the model each stands for
    Namespaces(namespaces::NamespacesArgs),
    /// Say what is wrong with a node, why, and the remedy
    Doctor(doctor::DoctorArgs),
    /// Try a resilience policy on a model's load: breakers, retry budgets, deadlines and so on
    Lab(lab::LabArgs),
    /// Break a cluster of this machine as a plan says, and measure its way back against what was promised
    Drill(drill::DrillArgs),
    /// Show and change settings of a cluster's nodes while they run, in stages if need be
    Config(config::ConfigArgs),
    /// List the epochs of a cluster's nodes, or clean up after a node that will not come back
    Epochs(epochs::EpochsArgs),
    /// Move a cluster's keys in etcd from another format to this one while its nodes are stopped, or back
    Migrate(migrate::MigrateArgs),
}

/// Which node to ask, and how to show its answer.
#[derive(Clone, Debug, Args)]
pub struct NodeAddress {
    /// HTTP address of the node
    #[arg(long, value_name = "HOST:PORT", env = "ORBITKV_HTTP", default_value = "127.0.0.1:7070")]
    pub http: String,
    /// Print the node's JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Runs a parsed command to its end.
#[must_use]
pub fn run(cli: Cli) -> ExitCode {
    match cli.command {
        Command::Node(args) => node::run(*args),
        Command::Cluster(args) => cluster::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Drain(args) => drain::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Sync(args) => sync::run(&args),
        Command::Owners(args) => owners::run(&args),
        Command::Routes(args) => routes::run(&args),
        Command::Turns(args) => turns::run(&args),
        Command::Await(args) => await_fence::run(&args),
        Command::Failback(args) => failback::run(&args),
        Command::Namespaces(args) => namespaces::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Lab(args) => lab::run(&args),
        Command::Drill(args) => drill::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Epochs(args) => epochs::run(&args),
        Command::Migrate(args) => migrate::run(&args),
    }
}

/// Writes why a command ends to standard error, and gives its exit code.
pub(crate) fn fail(exit: Exit, text: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr().lock(), "orbitkv: {text}");
    exit.into()
}

/// Ends a command whose question failed.
pub(crate) fn fail_client(error: &ClientError) -> ExitCode {
    fail(error.exit(), &error.to_string())
}

impl NodeAddress {
    /// A client of that node.
    ///
    /// # Errors
    /// An address that cannot be one.
    pub fn client(&self) -> Result<HttpClient, ClientError> {
        HttpClient::new(&self.http)
    }
}
