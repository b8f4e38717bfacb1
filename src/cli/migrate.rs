//! `orbitkv migrate`: moves a cluster's keys in etcd from the format of another program to this one's, while every
//! node is stopped, and back; and plans the order in which operations move between two layouts.

pub mod archive;
pub mod plan;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use orbitkv_native::entropy;
use orbitkv_shards::membership::coordinator::Failure;
use orbitkv_shards::membership::cutover::{Archive, Change, Direction, Fate, Obstacle, Stand};
use orbitkv_wire::identity::ClusterUuid;
use serde_json::{Value, json};

use super::cluster_keys::{ClusterKeys, Refusal};
use super::table::Table;
use super::{fail, say};
use crate::control::etcd::cutover::{CutoverFailure, Keys};
use crate::exit::Exit;
use archive::ArchiveError;

/// Most bytes of a value that a listing shows.
const SHOWN_BYTES_MAX: usize = 60;

/// Arguments of `orbitkv migrate`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "In this order: `dry-run`; stop every node; `apply --archive FILE`; start nodes of this version. `rollback` with the\n\
                        same file leads back, and lowers no epoch. Either can be interrupted anywhere and run again.\n\
                        Exit codes: 0 done, or the format is this program's already; 2 bad usage or settings; 3 a file, or etcd refuses;\n\
                        4 the cluster has no format, nodes are registered, or a key is not what it has to be: nothing more was changed;\n\
                        5 etcd does not answer."
)]
pub struct MigrateArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Clone, Debug, Subcommand)]
enum Action {
    /// List every key of the cluster and what would become of it; changes nothing
    DryRun(DryRunArgs),
    /// Archive every key, then move them; goes on with a migration whose archive is there
    Apply(ArchivedArgs),
    /// Put back what the archive has; epochs that have grown since stay
    Rollback(RollbackArgs),
    /// From a file of operations and the state they share: in which order to move them, and what that costs
    Plan(plan::PlanArgs),
}

#[derive(Clone, Debug, Args)]
struct Where {
    #[command(flatten)]
    cluster_keys: ClusterKeys,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug, Args)]
struct DryRunArgs {
    #[command(flatten)]
    place: Where,
    /// Archive of a migration that is under way: lists what is left of it
    #[arg(long, value_name = "FILE")]
    archive: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
struct ArchivedArgs {
    #[command(flatten)]
    place: Where,
    /// File for every key as it stands (mode 0600); never overwritten. Keep it: it is the way back
    #[arg(long, value_name = "FILE")]
    archive: PathBuf,
}

#[derive(Clone, Debug, Args)]
struct RollbackArgs {
    #[command(flatten)]
    of: ArchivedArgs,
    /// List what would become of every key, and change nothing
    #[arg(long)]
    dry_run: bool,
}

impl From<ArchiveError> for Refusal {
    fn from(error: ArchiveError) -> Refusal {
        Refusal(error.exit(), error.to_string())
    }
}

impl From<CutoverFailure> for Refusal {
    fn from(failure: CutoverFailure) -> Refusal {
        let exit = match &failure {
            CutoverFailure::Obstacle(_) | CutoverFailure::Name(_) => Exit::Unmet,
            CutoverFailure::Etcd(Failure::Unanswered(_)) => Exit::Unreachable,
            CutoverFailure::Etcd(_) | CutoverFailure::Runtime(_) => Exit::Environment,
        };
        Refusal(exit, failure.to_string())
    }
}

impl From<Obstacle> for Refusal {
    fn from(obstacle: Obstacle) -> Refusal {
        CutoverFailure::from(obstacle).into()
    }
}

/// Runs the command.
#[must_use]
pub fn run(args: &MigrateArgs) -> ExitCode {
    let (json, done) = match &args.action {
        Action::DryRun(args) => (args.place.json, dry_run(args)),
        Action::Apply(args) => (args.place.json, apply(args)),
        Action::Rollback(args) => (args.of.place.json, rollback(args)),
        Action::Plan(args) => return plan::run(args),
    };
    match done {
        Ok(()) => Exit::Done.into(),
        Err(Refusal(exit, text)) => {
            if json {
                say(&json!({"done": false, "why": text}).to_string());
            }
            fail(exit, &text)
        }
    }
}

impl Where {
    fn keys(&self) -> Result<Keys, Refusal> {
        let (access, space) = self.cluster_keys.access()?;
        Ok(Keys::new(access, space)?)
    }

    /// What a migration of these keys begins with; none if there is nothing to migrate, which is said:
    /// all is done then, if the command `writes`.
    fn begin(&self, writes: bool, stand: &Stand) -> Result<Option<Archive>, Refusal> {
        let draft = ClusterUuid(entropy::uuid_v4_bytes());
        match Archive::of(&self.cluster_keys.cluster, stand, entropy::uuid_v4_bytes(), draft) {
            Ok(archive) => Ok(Some(archive)),
            Err(Obstacle::Current) => {
                self.tell(writes, "nothing to migrate: the format is this program's already", stand, &[]);
                Ok(None)
            }
            Err(obstacle) => Err(obstacle.into()),
        }
    }

    /// Reads an archive, which must be of this cluster.
    fn archive(&self, file: &std::path::Path) -> Result<Archive, Refusal> {
        let archive = archive::read(file)?;
        if archive.cluster != self.cluster_keys.cluster {
            let text = format!(
                "--archive {}: it is of the cluster {:?}, and --cluster names {:?}; name the archive of this cluster",
                file.display(),
                archive.cluster,
                self.cluster_keys.cluster
            );
            return Err(Refusal(Exit::Usage, text));
        }
        Ok(archive)
    }

    /// Every key and what becomes of it, or has become of it.
    fn tell(&self, done: bool, title: &str, stand: &Stand, changes: &[Change]) {
        if self.json {
            let keys: Vec<Value> = changes.iter().map(document).collect();
            let document = json!({
                "done": done, "what": title, "cluster": self.cluster_keys.cluster, "revision": stand.revision, "keys": keys,
            });
            return say(&document.to_string());
        }
        if changes.is_empty() {
            return say(title);
        }
        let mut table = Table::new(["key", "becomes", "now", "then or why"]);
        for change in changes {
            let now = stand.get(&change.name).map_or("absent".to_owned(), |key| shown(&key.value));
            let (word, then) = words(&change.fate);
            table.row([change.name.clone(), word.to_owned(), now, then]);
        }
        say(&format!("{title}, {} keys at revision {}\n{table}", changes.len(), stand.revision));
    }
}

fn dry_run(args: &DryRunArgs) -> Result<(), Refusal> {
    let archive = args.archive.as_deref().map(|file| args.place.archive(file)).transpose()?;
    let stand = args.place.keys()?.read()?;
    let archive = match archive {
        Some(archive) => archive,
        None => match args.place.begin(false, &stand)? {
            Some(archive) => archive,
            None => return Ok(()),
        },
    };
    let changes = archive.changes(Direction::Onward, &stand)?;
    args.place.tell(false, "would be migrated", &stand, &changes);
    Ok(())
}

fn apply(args: &ArchivedArgs) -> Result<(), Refusal> {
    let place = &args.place;
    let mut keys = place.keys()?;
    let known = args.archive.try_exists().unwrap_or(true);
    let earlier = known.then(|| place.archive(&args.archive)).transpose()?;
    let stand = keys.read()?;
    let archive = match earlier {
        Some(archive) => archive,
        None => {
            let Some(archive) = place.begin(true, &stand)? else { return Ok(()) };
            archive::write(&args.archive, &archive)?;
            archive
        }
    };
    let changes = archive.changes(Direction::Onward, &stand)?;
    keys.migrate(&archive, Direction::Onward, |_| {})?;
    place.tell(true, &format!("migrated, archived in {}", args.archive.display()), &stand, &changes);
    Ok(())
}

fn rollback(args: &RollbackArgs) -> Result<(), Refusal> {
    let place = &args.of.place;
    let archive = place.archive(&args.of.archive)?;
    let mut keys = place.keys()?;
    let stand = keys.read()?;
    let changes = archive.changes(Direction::Back, &stand)?;
    if args.dry_run {
        place.tell(false, "would be rolled back", &stand, &changes);
        return Ok(());
    }
    keys.migrate(&archive, Direction::Back, |_| {})?;
    place.tell(true, "rolled back", &stand, &changes);
    Ok(())
}

/// A fate in a word, and what it leads to.
fn words(fate: &Fate) -> (&'static str, String) {
    match fate {
        Fate::Replaced(text) => ("replaced", shown(text)),
        Fate::Removed => ("removed", String::new()),
        Fate::PutBack(text) => ("put back", shown(text)),
        Fate::Raised(epoch) => ("raised", epoch.to_string()),
        Fate::Stays(why) => ("stays", (*why).to_owned()),
    }
}

fn document(change: &Change) -> Value {
    let (word, then) = match &change.fate {
        Fate::Replaced(text) | Fate::PutBack(text) => {
            (words(&change.fate).0, String::from_utf8_lossy(text).into_owned())
        }
        fate => words(fate),
    };
    json!({"key": change.name, "becomes": word, "then_or_why": then})
}

/// A value on one line, shortened.
fn shown(value: &[u8]) -> String {
    let text = value[..value.len().min(SHOWN_BYTES_MAX)].escape_ascii().to_string();
    if value.len() > SHOWN_BYTES_MAX { format!("{text}…") } else { text }
}
