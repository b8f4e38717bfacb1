//! `orbitkv-bench`: measures OrbitKV against something named, in one run.

mod ablation;
mod attempt;
mod bootstrap;
mod campaign;
mod churn;
mod clock;
mod coalescing;
mod cores;
mod ending;
mod eviction;
mod fanout;
mod index;
mod isolation;
mod local;
mod machine;
mod own_network;
mod pace;
mod page;
mod payload;
mod peer;
mod processes;
mod profile;
mod recording;
mod report;
mod resampling;
mod resilience;
mod routing;
mod scale;
mod soak;
mod statistics;
mod strategies;
mod streams;
mod timeline;
mod visibility;

use std::error::Error;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use orbitkv::exit::Exit;

/// What went wrong where nothing could be measured.
type Failure = Box<dyn Error>;

#[derive(Parser)]
#[command(name = "orbitkv-bench", version, about)]
struct Arguments {
    #[command(subcommand)]
    measurement: Measurement,
}

#[derive(Subcommand)]
enum Measurement {
    /// What was chosen against what was not: the same work by several means in turns, and what a rule fixed before says.
    Ablation(ablation::AblationArgs),
    /// How long a node that joins late takes until it has all that the others have, and what they send it for that.
    Bootstrap(bootstrap::BootstrapArgs),
    /// Changes of all owners of a cluster at a sustained rate: how soon each is seen, what waits, and that all ends alike.
    Churn(churn::ChurnArgs),
    /// What waiting for others spares the streams when the same keys change over and over, and what it costs.
    Coalescing(coalescing::CoalescingArgs),
    /// Hit ratio and cost of each DRAM eviction policy on a trace, against an infinite cache.
    Eviction(eviction::EvictionArgs),
    /// What a source's streams cost it by the number of nodes that follow it, for all of its namespaces or one.
    Fanout(fanout::FanoutArgs),
    /// The index of other nodes' blocks against a bare hash map and the indexers of others, on the same rows.
    Index(index::IndexArgs),
    /// Whether what other nodes tell a node slows down that node's engines: pairs of quiet runs and runs under pressure.
    Isolation(isolation::IsolationArgs),
    /// One node against the physics of this machine: memcpy, fio, a bare ring loop, an empty round trip.
    Local(local::LocalArgs),
    /// Blocks of 1 MiB read from a peer over QUIC against a bulk stream of stock `quinn`, in turns.
    Peer(peer::PeerArgs),
    /// How soon a request is ready whose blocks two peers have, one of which is held back: routes as planned against the
    /// fixed order.
    Routing(routing::RoutingArgs),
    /// What each pattern against failing peers costs on a quiet day and gains on a failing one, on real processes.
    Resilience(resilience::ResilienceArgs),
    /// What the stage timeline of requests and turns costs the node that records it.
    Timeline(timeline::TimelineArgs),
    /// What it costs to find out that owners have begun other lives: look them up first, be redirected, or read the map again.
    Strategies(strategies::StrategiesArgs),
    /// One page a person can read, with its drawings, from the results in a directory.
    Report(page::ReportArgs),
    /// How far a cluster goes: nodes, residences, bursts, repeated keys and namespaces, one at a time, and what is beyond.
    Scale(scale::ScaleArgs),
    /// Hours of saving and restoring with every byte compared, and of faults in a seeded order, in bounded memory.
    Soak(soak::SoakArgs),
    /// How soon a change at one node is visible at all others: clusters of real nodes, exact sequences, one clock.
    Visibility(visibility::VisibilityArgs),
    /// One end of a bulk stream of stock `quinn`: what `peer` starts and is measured against.
    #[command(hide = true)]
    QuinnBulk(peer::BulkArgs),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().measurement {
        Measurement::Ablation(args) => return ablation::run(&args),
        Measurement::Bootstrap(args) => return bootstrap::run(&args),
        Measurement::Churn(args) => return churn::run(&args),
        Measurement::Coalescing(args) => return coalescing::run(&args),
        Measurement::Eviction(args) => eviction::run(args),
        Measurement::Fanout(args) => return fanout::run(&args),
        Measurement::Index(args) => return index::run(&args),
        Measurement::Isolation(args) => return isolation::run(&args),
        Measurement::Local(args) => return local::run(&args),
        Measurement::Peer(args) => return peer::run(&args),
        Measurement::Routing(args) => return routing::run(&args),
        Measurement::Resilience(args) => return resilience::run(&args),
        Measurement::Timeline(args) => return timeline::run(&args),
        Measurement::Strategies(args) => return strategies::run(&args),
        Measurement::Report(args) => return page::run(&args),
        Measurement::Scale(args) => return scale::run(&args),
        Measurement::Soak(args) => return soak::run(&args),
        Measurement::Visibility(args) => return visibility::run(&args),
        Measurement::QuinnBulk(args) => peer::bulk(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("orbitkv-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn fail(exit: Exit, error: &dyn Error) -> ExitCode {
    eprintln!("orbitkv-bench: {error}");
    exit.into()
}

/// A line for whoever waits.
fn progress(line: &str) {
    eprintln!("bench: {line}");
}
