//! `orbitkv sync`: wait until the node has flushed, and print the fence.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::{NodeAddress, fail, fail_client, say};
use crate::exit::Exit;
use crate::settings::Token;

/// Arguments of `orbitkv sync`.
#[derive(Clone, Debug, Args)]
pub struct SyncArgs {
    #[command(flatten)]
    node: NodeAddress,
    /// File (mode 0600) with the node's token, if it wants one
    #[arg(long, value_name = "FILE", env = "ORBITKV_HTTP_TOKEN_FILE")]
    http_token_file: Option<PathBuf>,
}

/// Runs the command. With `--json` the fence can be given to `orbitkv await` as it is.
#[must_use]
pub fn run(args: &SyncArgs) -> ExitCode {
    let token = match args.http_token_file.as_deref().map(Token::read).transpose() {
        Ok(token) => token,
        Err(error) => return fail(Exit::Usage, &error.to_string()),
    };
    let asked =
        args.node.client().and_then(|client| client.with_token(token).post("/cache/sync", &json!({})));
    let fence = match asked {
        Ok(fence) => fence,
        Err(error) => return fail_client(&error),
    };
    if args.node.json {
        say(&fence.to_string());
    } else {
        let text = |name: &str| fence.get(name).and_then(Value::as_str).unwrap_or("unknown").to_owned();
        let sequences = fence.get("inventory_sequence").map(Value::to_string).unwrap_or_default();
        let of = match fence.get("epoch").and_then(Value::as_u64) {
            None => "the node is standalone".to_owned(),
            Some(epoch) => format!("epoch {epoch} of cluster {}", text("cluster_uuid")),
        };
        say(&format!(
            "local flush complete ({of})\nnode         {}\nincarnation  {}\nsequences    {}",
            text("node_id"),
            text("incarnation"),
            sequences
        ));
    }
    match fence.get("local_flush_complete") {
        Some(Value::Bool(true)) => Exit::Done.into(),
        _ => fail(Exit::Unmet, "the node did not say that its local flush is complete"),
    }
}
