//! `orbitkv routes`: from whom a node fetched its latest blocks, why from there, and what came of it.

use std::process::ExitCode;

use clap::Args;
use serde::Deserialize;

use super::table::Table;
use super::{NodeAddress, fail_client, say};
use crate::control::routes::RouteRow;
use crate::exit::Exit;

/// Arguments of `orbitkv routes`.
#[derive(Clone, Debug, Args)]
pub struct RoutesArgs {
    #[command(flatten)]
    node: NodeAddress,
}

/// The page.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RoutesPage {
    standalone: bool,
    cores: Vec<CoreRoutes>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CoreRoutes {
    core: u16,
    batches: Vec<RouteRow>,
}

/// A line for each batch.
fn screen(page: &RoutesPage) -> String {
    if page.standalone {
        return "no routes: the node is standalone and fetches nothing".to_owned();
    }
    if page.cores.iter().all(|core| core.batches.is_empty()) {
        return "no routes: nothing was fetched from peers, or --route-policy is fixed".to_owned();
    }
    let mut table = Table::new([
        "core",
        "batch",
        "blocks",
        "from",
        "plan",
        "why",
        "followed",
        "predicted",
        "margin",
        "ready",
        "failed",
        "replans",
    ]);
    for core in &page.cores {
        for batch in &core.batches {
            let from = batch.routes.iter().map(|owner| format!("{} x{}", owner.route, owner.blocks));
            // What is compared with what came is the plan that was followed.
            let followed = if batch.followed { &batch.planned } else { "fixed" };
            let priced = batch.alternatives.iter().find(|plan| plan.plan == followed);
            let micros = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |us| format!("{us} us"));
            let replans = batch.replans.iter().map(|(why, count)| format!("{why} x{count}"));
            table.row([
                core.core.to_string(),
                batch.batch.to_string(),
                format!("{} of {}", batch.usable, batch.wanted),
                from.collect::<Vec<_>>().join(", "),
                batch.planned.clone(),
                batch.reason.clone(),
                if batch.followed { "yes" } else { "no" }.to_owned(),
                micros(priced.map(|plan| plan.predicted_us)),
                micros(priced.map(|plan| plan.margin_us)),
                micros((batch.usable > 0).then_some(batch.ready_us)),
                batch.failed.to_string(),
                replans.collect::<Vec<_>>().join(", "),
            ]);
        }
    }
    table.to_string()
}

/// Runs the command.
#[must_use]
pub fn run(args: &RoutesArgs) -> ExitCode {
    match args.node.client().and_then(|client| client.get_as::<RoutesPage>("/cache/routes")) {
        Ok((_, value)) if args.node.json => say(&value.to_string()),
        Ok((page, _)) => say(&screen(&page)),
        Err(error) => return fail_client(&error),
    }
    Exit::Done.into()
}
