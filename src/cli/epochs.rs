//! `orbitkv epochs`: how often each node of a cluster has registered, and cleaning up after one that will not come
//! back.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use orbitkv_shards::membership::coordinator::{Failure, Snapshot};
use orbitkv_shards::membership::{NotRetired, retire};
use orbitkv_wire::identity::NodeId;
use orbitkv_wire::membership::{Key, MemberRecord, decode_epoch};
use serde_json::{Value, json};

use super::cluster_keys::{ClusterKeys, Refusal, same_format};
use super::table::{Table, UNKNOWN};
use super::{fail, say};
use crate::exit::Exit;

/// Arguments of `orbitkv epochs`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "`orbitkv epochs` lists. `orbitkv epochs retire NODE` removes the epoch of a node that is no member and \
                  raises epoch_floor to it, in one transaction: whoever has that name again begins above the floor.\n\
                  Exit codes: 0 done; 2 bad usage or settings; 3 etcd refuses; 4 the node is a member, has no epoch, or \
                  something has changed meanwhile: nothing was written; 5 etcd does not answer."
)]
pub struct EpochsArgs {
    /// What to do with the epoch of NODE
    #[arg(requires = "node")]
    action: Option<Action>,
    /// The node
    #[arg(value_name = "NODE")]
    node: Option<String>,
    #[command(flatten)]
    keys: ClusterKeys,
    /// Say what would be done, and write nothing
    #[arg(long, requires = "node")]
    dry_run: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Action {
    /// Remove it and raise the floor
    Retire,
}

/// Runs the command.
#[must_use]
pub fn run(args: &EpochsArgs) -> ExitCode {
    let done = match (&args.action, &args.node) {
        (Some(Action::Retire), Some(node)) => remove(args, node),
        _ => list(args),
    };
    match done {
        Ok(()) => Exit::Done.into(),
        Err(Refusal(exit, text)) => {
            if args.json {
                say(&json!({"done": false, "why": text}).to_string());
            }
            fail(exit, &text)
        }
    }
}

/// What a key holds, for people.
fn shown(value: Option<&[u8]>) -> String {
    match value {
        None => UNKNOWN.to_owned(),
        Some(value) => {
            decode_epoch(value).map_or_else(|| value.escape_ascii().to_string(), |epoch| epoch.to_string())
        }
    }
}

fn list(args: &EpochsArgs) -> Result<(), Refusal> {
    let (_, snapshot) = args.keys.open()?;
    let value = |key| snapshot.get(key).map(|entry| entry.value.as_slice());
    let mut nodes: Vec<NodeId> = snapshot
        .entries
        .iter()
        .filter_map(|entry| match entry.key {
            Key::Epoch(node) | Key::Member(node) => Some(node),
            Key::Format | Key::EpochFloor | Key::Config => None,
        })
        .collect();
    nodes.sort_unstable();
    nodes.dedup();
    let member = |node| value(Key::Member(node)).map(MemberRecord::decode);
    let floor = value(Key::EpochFloor);
    if args.json {
        let row = |node: &NodeId| {
            let epoch = value(Key::Epoch(*node)).and_then(decode_epoch);
            json!({"node_id": node.as_str(), "epoch": epoch, "is_member": member(*node).is_some()})
        };
        let nodes: Vec<Value> = nodes.iter().map(row).collect();
        let floor = floor.and_then(decode_epoch).unwrap_or(0);
        say(&json!({"epoch_floor": floor, "revision": snapshot.revision, "nodes": nodes}).to_string());
        return Ok(());
    }
    let mut table = Table::new(["node", "epoch", "member"]);
    for node in nodes {
        let life = match member(node) {
            None => "no".to_owned(),
            Some(Ok(record)) => format!("at {}", record.contact.address),
            Some(Err(error)) => format!("a record that is none: {error}"),
        };
        table.row([node.to_string(), shown(value(Key::Epoch(node))), life]);
    }
    let floor = floor.map_or("0, nothing was cleaned up yet".to_owned(), |floor| shown(Some(floor)));
    say(&format!("epoch floor {floor}\n\n{table}"));
    Ok(())
}

/// Whether the epoch is gone and the floor at least what it was.
fn is_retired(snapshot: &Snapshot, node: NodeId, epoch: u64) -> bool {
    let floor = snapshot.get(Key::EpochFloor).and_then(|entry| decode_epoch(&entry.value));
    snapshot.get(Key::Epoch(node)).is_none() && floor.is_some_and(|floor| floor >= epoch)
}

fn remove(args: &EpochsArgs, name: &str) -> Result<(), Refusal> {
    let node = NodeId::new(name).map_err(|error| Refusal(Exit::Usage, format!("NODE {name:?}: {error}")))?;
    let (mut keys, snapshot) = args.keys.open()?;
    let unmet = |why: NotRetired| Refusal(Exit::Unmet, why.to_string());
    let mut transaction = retire(node, &snapshot).map_err(unmet)?;
    transaction.compares.push(same_format(&snapshot));
    let epoch = snapshot.get(Key::Epoch(node)).and_then(|entry| decode_epoch(&entry.value));
    let epoch = epoch.expect("what is retired has an epoch");
    let held = snapshot.get(Key::EpochFloor).and_then(|entry| decode_epoch(&entry.value)).unwrap_or(0);
    let floor = held.max(epoch);
    if !args.dry_run {
        match keys.transact(transaction) {
            Ok(true) => {}
            Ok(false) => {
                let text =
                    format!("{node} or the floor has changed meanwhile: nothing was written; try again");
                return Err(Refusal(Exit::Unmet, text));
            }
            // It may have happened.
            Err(Failure::Unanswered(why)) => {
                if !keys.read().is_ok_and(|snapshot| is_retired(&snapshot, node, epoch)) {
                    let text = format!(
                        "etcd did not answer ({why}): `orbitkv epochs` tells whether it has happened"
                    );
                    return Err(Refusal(Exit::Unreachable, text));
                }
            }
            Err(failure) => return Err(failure.into()),
        }
    }
    if args.json {
        let document = json!({"done": !args.dry_run, "node_id": name, "epoch": epoch, "epoch_floor": floor});
        say(&document.to_string());
        return Ok(());
    }
    let word = if args.dry_run { "would be" } else { "is" };
    say(&format!("epoch {epoch} of {node} {word} removed, and the floor {word} {floor}"));
    Ok(())
}
