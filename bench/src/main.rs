//! `orbitkv-bench`: measures OrbitKV against something named, in one run.

mod eviction;
mod index;
mod local;
mod machine;
mod payload;
mod peer;
mod processes;
mod profile;
mod report;
mod resilience;
mod statistics;

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
    /// Hit ratio and cost of each DRAM eviction policy on a trace, against an infinite cache.
    Eviction(eviction::EvictionArgs),
    /// The index of other nodes' blocks against a bare hash map and the indexers of others, on the same rows.
    Index(index::IndexArgs),
    /// One node against the physics of this machine: memcpy, fio, a bare ring loop, an empty round trip.
    Local(local::LocalArgs),
    /// Blocks of 1 MiB read from a peer over QUIC against a bulk stream of stock `quinn`, in turns.
    Peer(peer::PeerArgs),
    /// What each pattern against failing peers costs on a quiet day and gains on a failing one, on real processes.
    Resilience(resilience::ResilienceArgs),
    /// One end of a bulk stream of stock `quinn`: what `peer` starts and is measured against.
    #[command(hide = true)]
    QuinnBulk(peer::BulkArgs),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().measurement {
        Measurement::Eviction(args) => eviction::run(args),
        Measurement::Index(args) => return index::run(&args),
        Measurement::Local(args) => return local::run(&args),
        Measurement::Peer(args) => return peer::run(&args),
        Measurement::Resilience(args) => return resilience::run(&args),
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
