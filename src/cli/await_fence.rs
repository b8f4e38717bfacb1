//! `orbitkv await`: wait until a node has installed what another node's fence covers.

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::{NodeAddress, fail, fail_client, say};
use crate::control::http::{BARRIER_WAIT_MAX, BODY_BYTES_MAX};
use crate::exit::Exit;
use crate::quantity::Span;
use crate::settings::Token;

/// Arguments of `orbitkv await`.
#[derive(Clone, Debug, Args)]
pub struct AwaitArgs {
    #[command(flatten)]
    node: NodeAddress,
    /// File with the fence that `orbitkv sync --json` printed; `-` is standard input
    #[arg(long, value_name = "FILE", default_value = "-")]
    fence: PathBuf,
    /// Longest wait, at most 30s
    #[arg(long, value_name = "SPAN", default_value = "30s")]
    timeout: Span,
    /// Scope the node must have; unset takes the scope it has
    #[arg(long, value_name = "DIGEST")]
    scope_digest: Option<String>,
    /// File (mode 0600) with the node's token, if it wants one
    #[arg(long, value_name = "FILE", env = "ORBITKV_HTTP_TOKEN_FILE")]
    http_token_file: Option<PathBuf>,
}

fn read_fence(args: &AwaitArgs) -> Result<Value, String> {
    let mut text = String::new();
    let bound = BODY_BYTES_MAX as u64;
    let read = match args.fence.to_str() {
        Some("-") => std::io::stdin().lock().take(bound).read_to_string(&mut text),
        _ => std::fs::File::open(&args.fence).and_then(|file| file.take(bound).read_to_string(&mut text)),
    };
    let name = args.fence.display();
    read.map_err(|error| format!("--fence {name}: cannot be read ({error})"))?;
    match serde_json::from_str(&text) {
        Ok(fence @ Value::Object(_)) => Ok(fence),
        _ => Err(format!("--fence {name}: it is not a fence; make one with `orbitkv sync --json`")),
    }
}

/// Runs the command. Exit code 4 if the barrier was not met.
#[must_use]
pub fn run(args: &AwaitArgs) -> ExitCode {
    if args.timeout.0 > BARRIER_WAIT_MAX || args.timeout.0 < Duration::from_millis(1) {
        let text = format!("--timeout {}: must be 1ms to 30s; choose within that", args.timeout);
        return fail(Exit::Usage, &text);
    }
    let token = match args.http_token_file.as_deref().map(Token::read).transpose() {
        Ok(token) => token,
        Err(error) => return fail(Exit::Usage, &error.to_string()),
    };
    let fence = match read_fence(args) {
        Ok(fence) => fence,
        Err(text) => return fail(Exit::Usage, &text),
    };
    let body = json!({
        "fence": fence,
        "scope_digest": args.scope_digest,
        "timeout_ms": args.timeout.0.as_millis() as u64,
    });
    let asked =
        args.node.client().and_then(|client| client.with_token(token).post("/cache/metadata/await", &body));
    match asked {
        Ok(answer) => {
            say(&if args.node.json {
                answer.to_string()
            } else {
                "installed: this node has all that the fence covers".to_owned()
            });
            Exit::Done.into()
        }
        Err(error) => fail_client(&error),
    }
}
