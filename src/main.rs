//! `orbitkv`: the node daemon and its operator commands.

use std::process::ExitCode;

use clap::Parser;
use orbitkv::cli::{self, Cli};

fn main() -> ExitCode {
    cli::run(Cli::parse())
}
