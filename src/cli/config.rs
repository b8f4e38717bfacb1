//! `orbitkv config`: settings of a cluster's nodes that are changed while they run, in one record in etcd.

pub mod change;
mod rows;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use orbitkv_shards::membership::coordinator::{Compare, Failure, Snapshot, Transaction, Write};
use orbitkv_wire::bounds::CONFIG_NUMBER_MAX;
use orbitkv_wire::config::{ConfigRecord, PLACES};
use orbitkv_wire::membership::Key;
use serde_json::json;

use super::cluster_keys::{ClusterKeys, Refusal, same_format};
use super::http_client::HttpClient;
use super::{fail, say};
use crate::exit::Exit;
use crate::settings::rollouts;
use change::{Change, Unchanged, apply, next_number};

/// Arguments of `orbitkv config`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "What can be changed: audit, breaker, breaker-calls, breaker-pause, call-budget, coalesce, log, \
                  retry-percent, route-policy. Everything else needs a restart. Nodes follow within 30 s, as a rule at \
                  once.\n\
                  Exit codes: 0 done; 2 bad usage or settings; 3 etcd refuses; 4 the record forbids it, or somebody else \
                  has changed it meanwhile: nothing was written; 5 etcd or a named node does not answer."
)]
pub struct ConfigArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Clone, Debug, Subcommand)]
enum Action {
    /// Show the record, and which version is for which node; with --nodes also which one runs there
    Show(ShowArgs),
    /// Make a version with other settings, for all nodes or for a share of them
    Set(SetArgs),
    /// Give what is staged to a larger share of the nodes, or to all
    Promote(PromoteArgs),
    /// Take back what is staged; if nothing is, what held before it comes again
    Revert(RevertArgs),
}

#[derive(Clone, Debug, Args)]
struct ShowArgs {
    #[command(flatten)]
    keys: ClusterKeys,
    /// HTTP addresses of nodes that are asked which version they run
    #[arg(long, value_name = "HOST:PORT,…", value_delimiter = ',')]
    nodes: Vec<String>,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug, Args)]
struct Writing {
    #[command(flatten)]
    keys: ClusterKeys,
    /// Write only if the record still has this number; 0 if there shall be none
    #[arg(long, value_name = "NUMBER")]
    if_record: Option<u64>,
    /// Number the record above this one, also if it says the same: etcd was restored from an old copy or has lost the
    /// record, and nodes have a newer one
    #[arg(long, value_name = "NUMBER", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..CONFIG_NUMBER_MAX))]
    above: u64,
    /// Show the record that would be written and for which nodes, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug, Args)]
struct SetArgs {
    /// Settings and their values; `default` leaves a setting to the flags of each node
    #[arg(value_name = "KEY=VALUE", required = true)]
    settings: Vec<String>,
    /// Percentage of the nodes that have it first, chosen by their names
    #[arg(long, value_name = "PERCENT", default_value_t = PLACES, value_parser = clap::value_parser!(u32).range(1..=i64::from(PLACES)))]
    stage: u32,
    #[command(flatten)]
    writing: Writing,
}

#[derive(Clone, Debug, Args)]
struct PromoteArgs {
    /// Percentage of the nodes that have it
    #[arg(long, value_name = "PERCENT", default_value_t = PLACES, value_parser = clap::value_parser!(u32).range(1..=i64::from(PLACES)))]
    stage: u32,
    #[command(flatten)]
    writing: Writing,
}

#[derive(Clone, Debug, Args)]
struct RevertArgs {
    #[command(flatten)]
    writing: Writing,
}

/// Runs the command.
#[must_use]
pub fn run(args: &ConfigArgs) -> ExitCode {
    let (json, done) = match &args.action {
        Action::Show(args) => (args.json, show(args)),
        Action::Set(args) => (args.writing.json, set(args)),
        Action::Promote(args) => {
            (args.writing.json, args.writing.write(&Change::Promote { share: args.stage }))
        }
        Action::Revert(args) => (args.writing.json, args.writing.write(&Change::Revert)),
    };
    match done {
        Ok(exit) => exit,
        Err(Refusal(exit, text)) => {
            if json {
                say(&json!({"done": false, "why": text}).to_string());
            }
            fail(exit, &text)
        }
    }
}

/// The record as it stands; none if there is none.
fn record_of(snapshot: &Snapshot) -> Result<Option<ConfigRecord>, Refusal> {
    let Some(entry) = snapshot.get(Key::Config) else { return Ok(None) };
    let wrong = |why: String| {
        let remedy = "nodes go on with what they have; remove it (`etcdctl del`) and set anew what shall hold, `--above` the number \
             of the record that they have";
        Refusal(Exit::Unmet, format!("what stands under config/node is not taken: {why}; {remedy}"))
    };
    let record = ConfigRecord::decode(&entry.value).map_err(|error| wrong(error.to_string()))?;
    rollouts(&record).map_err(|error| wrong(error.to_string()))?;
    Ok(Some(record))
}

fn show(args: &ShowArgs) -> Result<ExitCode, Refusal> {
    let clients = args.nodes.iter().map(|address| HttpClient::given_with("--nodes", address));
    let clients = clients.collect::<Result<Vec<_>, _>>();
    let clients = clients.map_err(|error| Refusal(error.exit(), error.to_string()))?;
    let (_, snapshot) = args.keys.open()?;
    let record = record_of(&snapshot)?;
    let sights = clients.iter().map(rows::look).collect::<Vec<_>>();
    let nodes = rows::nodes(record.as_ref(), &snapshot, &sights);
    // What is known of the others is shown, too.
    let silent = sights.iter().find_map(|sight| sight.as_ref().err());
    if args.json {
        let mut document = rows::document(record.as_ref(), &nodes);
        document["done"] = json!(silent.is_none());
        document["why"] = json!(silent.map(|Refusal(_, why)| why));
        say(&document.to_string());
    } else {
        say(&rows::screen(record.as_ref(), &nodes));
    }
    Ok(silent.map_or(Exit::Done.into(), |Refusal(exit, why)| fail(*exit, why)))
}

fn set(args: &SetArgs) -> Result<ExitCode, Refusal> {
    let usage = |text: String| Refusal(Exit::Usage, text);
    let pair = |text: &String| {
        let (name, value) = text.split_once('=').ok_or_else(|| {
            usage(format!("{text:?} is no setting with a value: write it like coalesce=1ms"))
        })?;
        Ok((name.to_owned(), (value != "default").then(|| value.to_owned())))
    };
    let settings = args.settings.iter().map(pair).collect::<Result<_, Refusal>>()?;
    args.writing.write(&Change::Set { settings, share: args.stage })
}

impl Writing {
    /// Makes a change of what stands there, by compare-and-swap.
    fn write(&self, change: &Change) -> Result<ExitCode, Refusal> {
        let (mut keys, snapshot) = self.keys.open()?;
        let before = record_of(&snapshot)?;
        let number = before.as_ref().map_or(0, |before| before.number);
        if let Some(wanted) = self.if_record.filter(|wanted| *wanted != number) {
            return Err(changed(format!("the record is number {number} and not {wanted}")));
        }
        let refusal = |unchanged: Unchanged| {
            let exit = if unchanged.is_usage() { Exit::Usage } else { Exit::Unmet };
            Refusal(exit, unchanged.to_string())
        };
        let next = next_number(before.as_ref(), snapshot.revision, self.above).map_err(refusal)?;
        let record = apply(before.as_ref(), next, self.above, change).map_err(refusal)?;
        let text = record.encode();
        if !self.dry_run {
            let written = keys.transact(Transaction {
                compares: vec![
                    same_format(&snapshot),
                    Compare::Revision(Key::Config, snapshot.revision_of(Key::Config)),
                ],
                writes: vec![Write::Put(Key::Config, text.clone().into_bytes(), None)],
            });
            let is_ours = |snapshot: &Snapshot| {
                snapshot.get(Key::Config).is_some_and(|entry| entry.value == text.as_bytes())
            };
            match written {
                Ok(true) => {}
                Ok(false) => {
                    let now = record_of(&keys.read()?)?.map_or(0, |record| record.number);
                    return Err(changed(format!("somebody else has made it record {now} meanwhile")));
                }
                // It may have happened.
                Err(Failure::Unanswered(why)) => match keys.read() {
                    Ok(snapshot) if is_ours(&snapshot) => {}
                    _ => {
                        let text = format!(
                            "etcd did not answer ({why}): whether record {next} was written is not known; `orbitkv config \
                             show` tells"
                        );
                        return Err(Refusal(Exit::Unreachable, text));
                    }
                },
                Err(failure) => return Err(failure.into()),
            }
        }
        let nodes = rows::nodes(Some(&record), &snapshot, &[]);
        if self.json {
            let mut document = rows::document(Some(&record), &nodes);
            document["done"] = json!(!self.dry_run);
            document["text"] = json!(text);
            say(&document.to_string());
            return Ok(Exit::Done.into());
        }
        let title = if self.dry_run { "would be written" } else { "written" };
        say(&format!("{title}:\n{text}\n{}", rows::screen(Some(&record), &nodes)));
        Ok(Exit::Done.into())
    }
}

/// Two operators at once.
fn changed(what: String) -> Refusal {
    let remedy = "nothing was written; look at it with `orbitkv config show`, then try again";
    Refusal(Exit::Unmet, format!("{what}: {remedy}"))
}
