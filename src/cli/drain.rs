//! `orbitkv drain`: the node takes no new work, finishes what it has, and ends.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::{fail, say};
use crate::client::{Client, ClientError, ClientSettings, DrainAnswer};
use crate::exit::Exit;
use crate::quantity::Span;
use crate::settings::Machine;

/// Which node to drain, and how long to watch.
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Engine socket of the node; the uid at it is checked. Default: as `orbitkv node`
    #[arg(long, value_name = "PATH", env = "ORBITKV_ENGINE_SOCKET")]
    pub engine_socket: Option<PathBuf>,
    /// Stop waiting after this time; the node goes on draining
    #[arg(long, value_name = "TIME", default_value = "10m")]
    pub timeout: Span,
}

/// Asks for the drain and prints what remains until the node has ended.
#[must_use]
pub fn run(args: &DrainArgs) -> ExitCode {
    let socket = args
        .engine_socket
        .clone()
        .unwrap_or_else(|| crate::settings::default_engine_socket(&Machine::observe()));
    let mut client = match Client::connect(ClientSettings::new(&socket)) {
        Ok(client) => client,
        Err(error) => return fail(Exit::Unreachable, &error.to_string()),
    };
    let mut shown = None;
    let drained = client.drain(args.timeout.0.max(Duration::from_millis(1)), |left| {
        if shown != Some(left) {
            shown = Some(left);
            say(&remaining(left));
        }
    });
    match drained {
        Ok(()) => {
            say("drained: the node ends now");
            Exit::Done.into()
        }
        Err(ClientError::DeadlineExceeded { .. }) if shown.is_some() => {
            let text = format!("not drained within {}: the node goes on draining", args.timeout);
            fail(Exit::Unreachable, &format!("{text}; `orbitkv drain` watches it again"))
        }
        Err(error) => fail(Exit::Unreachable, &error.to_string()),
    }
}

fn remaining(left: DrainAnswer) -> String {
    format!(
        "remaining: {} reservations and {} leases of engines, {} write-backs waiting, {} device operations",
        left.reservations, left.leases, left.write_backs, left.transfers
    )
}
