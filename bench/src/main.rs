//! `orbitkv-bench`: measures OrbitKV against something named, in one run.

mod eviction;
mod local;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    /// One node against the physics of this machine: memcpy, fio, a bare ring loop, an empty round trip.
    Local(local::LocalArgs),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().measurement {
        Measurement::Eviction(args) => eviction::run(args),
        Measurement::Local(args) => return local::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("orbitkv-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
