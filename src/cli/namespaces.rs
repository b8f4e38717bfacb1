//! `orbitkv namespaces`: which namespaces engines have registered, and the model behind each; or the
//! namespace of given properties.

use std::process::ExitCode;

use clap::Args;
use serde::Deserialize;

use super::derive::DeriveArgs;
use super::http_client::{ClientError, HttpClient, query_text};
use super::table::Table;
use super::{NodeAddress, fail, fail_client, say};
use crate::control::report::NamespaceRow;
use crate::exit::Exit;

/// Arguments of `orbitkv namespaces`.
#[derive(Clone, Debug, Args)]
pub struct NamespacesArgs {
    #[command(flatten)]
    node: NodeAddress,
    /// Print the namespace of the properties below instead of asking a node
    #[arg(long)]
    derive: bool,
    #[command(flatten)]
    pub(super) derive_from: DeriveArgs,
}

/// Pages followed at most: a node interns 4,096 namespaces, and a page has 1,000.
const PAGES_MAX: usize = 16;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Page {
    namespaces: Vec<NamespaceRow>,
    next: Option<String>,
}

fn list(client: &HttpClient) -> Result<Vec<NamespaceRow>, ClientError> {
    let mut rows = Vec::new();
    let mut after = String::new();
    for _ in 0..PAGES_MAX {
        let path = format!("/cache/namespaces?after={}", query_text(&after));
        let (page, _) = client.get_as::<Page>(&path)?;
        rows.extend(page.namespaces);
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    Ok(rows)
}

fn table(rows: &[NamespaceRow]) -> String {
    let mut table =
        Table::new(["model", "weights", "adapter", "dtype", "block tokens", "rank", "engine", "namespace"]);
    for row in rows.iter().cloned() {
        let adapter = if row.adapter.is_empty() { "none".to_owned() } else { row.adapter };
        let tokens = row.block_tokens.to_string();
        table.row([
            row.model,
            row.weights_revision,
            adapter,
            row.dtype,
            tokens,
            row.rank,
            row.engine,
            row.namespace,
        ]);
    }
    table.to_string()
}

fn derive(args: &NamespacesArgs) -> ExitCode {
    match args.derive_from.digest() {
        Ok(digest) if args.node.json => {
            say(&serde_json::json!({"namespace": digest.to_string()}).to_string());
            Exit::Done.into()
        }
        Ok(digest) => {
            say(&digest.to_string());
            Exit::Done.into()
        }
        Err(text) => fail(Exit::Usage, &text),
    }
}

/// Runs the command.
#[must_use]
pub fn run(args: &NamespacesArgs) -> ExitCode {
    if args.derive {
        return derive(args);
    }
    match args.node.client().and_then(|client| list(&client)) {
        Ok(rows) if args.node.json => say(&serde_json::json!({"namespaces": rows}).to_string()),
        Ok(rows) if rows.is_empty() => say("no namespace is registered: no engine is connected"),
        Ok(rows) => say(&table(&rows)),
        Err(error) => return fail_client(&error),
    }
    Exit::Done.into()
}
