//! `orbitkv owners`: what a node has installed of other nodes, in pages.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::http_client::query_text;
use super::{NodeAddress, fail_client, say};
use crate::exit::Exit;

/// Arguments of `orbitkv owners`.
#[derive(Clone, Debug, Args)]
pub struct OwnersArgs {
    #[command(flatten)]
    node: NodeAddress,
    /// Start after this owner, as printed at the end of a page
    #[arg(long, value_name = "OWNER", default_value = "")]
    after: String,
    /// Rows of a page
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    limit: u16,
}

/// Runs the command.
#[must_use]
pub fn run(args: &OwnersArgs) -> ExitCode {
    let path = format!("/cache/metadata/owners?after={}&limit={}", query_text(&args.after), args.limit);
    let page = match args.node.client().and_then(|client| client.get(&path)) {
        Ok(page) => page,
        Err(error) => return fail_client(&error),
    };
    let rows = page.get("owners").and_then(Value::as_array).map_or(0, Vec::len);
    match (args.node.json, rows) {
        (true, _) => say(&page.to_string()),
        (false, 0) => say("no owners: the node is standalone and installs no other node's inventory"),
        (false, _) => say(&format!("{page:#}")),
    }
    Exit::Done.into()
}
