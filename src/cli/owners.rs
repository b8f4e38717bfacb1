//! `orbitkv owners`: what a node has installed of other nodes, in pages.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::http_client::query_text;
use super::table::Table;
use super::{NodeAddress, fail, fail_client, say};
use crate::control::owners::OwnersPage;
use crate::control::routes::LoadRow;
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

/// A line for each owner stream, and where the next page begins.
fn table(page: &OwnersPage) -> String {
    let mut table = Table::new([
        "owner", "shard", "core", "state", "applied", "head", "rows", "age", "calls", "load", "note",
    ]);
    for owner in &page.owners {
        let note = match (owner.installed, owner.misfit) {
            (true, _) => "",
            (false, true) => "no room in the index: raise --index-budget",
            (false, false) => "not installed",
        };
        table.row([
            owner.node_id.clone(),
            owner.shard.to_string(),
            owner.core.to_string(),
            owner.state.clone(),
            owner.applied.to_string(),
            owner.source_head.to_string(),
            owner.rows.to_string(),
            owner.age_ms.map_or_else(|| "never".to_owned(), |ms| format!("{ms} ms")),
            if owner.mode.is_empty() { "-".to_owned() } else { owner.mode.clone() },
            owner.load.map_or_else(|| "-".to_owned(), |load| load_text(&load)),
            note.to_owned(),
        ]);
    }
    match &page.next {
        Some(next) => format!("{table}\n\nmore: orbitkv owners --after {next}"),
        None => table.to_string(),
    }
}

/// How busy it said that it is.
fn load_text(load: &LoadRow) -> String {
    let percent = |permille: u16| (u32::from(permille) + 5) / 10;
    let (ssd, egress) = (percent(load.ssd_permille), percent(load.egress_permille));
    format!("{} read, ssd {ssd} %, egress {egress} %", load.reads)
}

/// Runs the command.
#[must_use]
pub fn run(args: &OwnersArgs) -> ExitCode {
    let path = format!("/cache/metadata/owners?after={}&limit={}", query_text(&args.after), args.limit);
    let page = match args.node.client().and_then(|client| client.get(&path)) {
        Ok(page) => page,
        Err(error) => return fail_client(&error),
    };
    if args.node.json {
        say(&page.to_string());
        return Exit::Done.into();
    }
    let standalone = page.get("standalone") == Some(&Value::Bool(true));
    match serde_json::from_value::<OwnersPage>(page) {
        Ok(page) if page.owners.is_empty() && standalone => {
            say("no owners: the node is standalone and installs no other node's inventory");
        }
        Ok(page) if page.owners.is_empty() => say("no owners: no other node is a member"),
        Ok(page) => say(&table(&page)),
        Err(error) => return fail(Exit::Unmet, &format!("the node's answer is of another version: {error}")),
    }
    Exit::Done.into()
}
