//! The plan of a drill: what is started, what is saved, what breaks, and how long each step back may take. Read from
//! a file and checked whole before anything starts.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use orbitkv_shards::resilience::objectives::Objectives;
use serde::Deserialize;
use thiserror::Error;

use crate::cluster::{Fault, NODES_MAX, Target};
use crate::quantity::{ByteSize, KIB, MIB, Span};
use crate::replay::PAYLOAD_BYTES_MIN;

/// Largest plan file: a longer one is another file given by mistake.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Most steps of a plan.
const STEPS_MAX: usize = 1_000;
/// Most blocks saved on one node.
const BLOCKS_MAX: u64 = 10_000_000;
/// How long a step is waited for unless the plan says so, at least.
const PATIENCE_MIN: Duration = Duration::from_secs(60);
/// The same in times of what is planned.
const PATIENCE_TIMES: u32 = 4;

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// Nodes that are started, `node-1` first.
    pub managers: u16,
    /// Host memory for blocks of each.
    pub dram: ByteSize,
    /// SSD space for blocks of each; 0 for none.
    pub ssd: ByteSize,
    /// Blocks saved on each node before the first step.
    pub blocks: u64,
    /// Bytes of each.
    pub block_bytes: u64,
    /// What was promised.
    pub objectives: Objectives,
    /// One after the other.
    pub steps: Vec<Step>,
}

/// One step: something is done, or nothing, and then something has to become true.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Its name.
    pub name: String,
    /// What is done first.
    pub action: Option<Action>,
    /// What ends it; none if it is over as soon as that is done.
    pub until: Option<Condition>,
    /// What the plan gives it.
    pub planned: Duration,
    /// When it is given up.
    pub patience: Duration,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A fault of a process, or its end.
    Strike(Fault, Target),
    /// As many bytes as all media of a node have are saved on it, so that it has to give up older blocks.
    Fill(usize),
}

/// What ends a step, seen on the pages of the nodes that run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// No other node lists it as a member.
    Dropped(usize),
    /// It says that it has no life.
    Fenced(usize),
    /// It and every other node say that it is a member, with the same epoch.
    Member(usize),
    /// It does not answer.
    Silent(usize),
    /// It takes engines: a block is saved on it and comes back as it was.
    Serves(usize),
    /// Every node knows all the others that run and has what they hold.
    Complete,
}

/// Why a plan is none.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{file}: {why}")]
pub struct PlanError {
    file: String,
    why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    name: String,
    cluster: ClusterPart,
    #[serde(default)]
    load: LoadPart,
    #[serde(default)]
    objectives: ObjectivesPart,
    step: Vec<StepPart>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterPart {
    managers: u16,
    #[serde(default = "dram_default")]
    dram: ByteSize,
    #[serde(default)]
    ssd: ByteSize,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LoadPart {
    #[serde(default)]
    blocks: u64,
    block: Option<ByteSize>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ObjectivesPart {
    recovery: Option<Span>,
    blocks_lost: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StepPart {
    name: String,
    #[serde(rename = "do")]
    action: Option<String>,
    until: Option<String>,
    planned: Span,
    give_up: Option<Span>,
}

fn dram_default() -> ByteSize {
    ByteSize(64 * MIB)
}

const ACTIONS: &str =
    "`kill`, `terminate`, `pause`, `resume` or `restart` with a node or `etcd`, or `fill` with a node";
const CONDITIONS: &str = "`dropped`, `fenced`, `member`, `silent` or `serves` with a node, or `complete`";

/// Whether a process runs, while the plan is gone through in thought.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Run {
    Up,
    Paused,
    Down,
}

impl Plan {
    /// Reads a plan: TOML, or JSON if the name ends so.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn read(file: &Path) -> Result<Plan, PlanError> {
        let error = |why: String| PlanError { file: file.display().to_string(), why };
        let size = std::fs::metadata(file).map_err(|failed| error(failed.to_string()))?.len();
        if size > FILE_BYTES_MAX {
            return Err(error(format!("{size} bytes, and a plan has at most {FILE_BYTES_MAX}")));
        }
        let text = std::fs::read_to_string(file).map_err(|failed| error(failed.to_string()))?;
        let is_json = file.extension().is_some_and(|extension| extension == "json");
        Plan::parse(&text, is_json).map_err(error)
    }

    fn parse(text: &str, is_json: bool) -> Result<Plan, String> {
        let document: Document = if is_json {
            serde_json::from_str(text).map_err(|error| error.to_string())?
        } else {
            toml::from_str(text).map_err(|error| error.to_string())?
        };
        let Document { name, cluster, load, objectives, step } = document;
        if !(2..=NODES_MAX).contains(&cluster.managers) {
            return Err(format!(
                "`managers = {}`: a cluster has 2 to {NODES_MAX} nodes here",
                cluster.managers
            ));
        }
        if step.is_empty() || step.len() > STEPS_MAX {
            return Err(format!("{} steps, and a plan has 1 to {STEPS_MAX}: add a [[step]]", step.len()));
        }
        if load.blocks > BLOCKS_MAX {
            return Err(format!("`blocks = {}`: at most {BLOCKS_MAX} are saved on a node", load.blocks));
        }
        let block_bytes = load.block.map_or(64 * KIB, |size| size.0);
        if !(PAYLOAD_BYTES_MIN..=cluster.dram.0 / 4).contains(&block_bytes) {
            return Err(format!(
                "`block` of {}: must be {PAYLOAD_BYTES_MIN} bytes to a quarter of `dram`",
                ByteSize(block_bytes)
            ));
        }
        let (bytes, room) =
            (load.blocks.saturating_mul(block_bytes), cluster.dram.0.saturating_add(cluster.ssd.0));
        if bytes > room {
            return Err(format!(
                "`blocks = {}` of {}: {} in all, and a node has room for {}; lower `blocks` or `block`, or raise \
                 `dram` or `ssd`",
                load.blocks,
                ByteSize(block_bytes),
                ByteSize(bytes),
                ByteSize(room)
            ));
        }
        let steps = step.into_iter().map(|part| Step::of(part, cluster.managers));
        let plan = Plan {
            name,
            managers: cluster.managers,
            dram: cluster.dram,
            ssd: cluster.ssd,
            blocks: load.blocks,
            block_bytes,
            objectives: Objectives {
                recovery_s_max: objectives.recovery.map(|span| span.0.as_secs_f64()),
                loss_max: objectives.blocks_lost.map(|blocks| blocks as f64),
            },
            steps: steps.collect::<Result<_, _>>()?,
        };
        plan.check()?;
        Ok(plan)
    }

    /// Goes through it in thought: what is not paused is not resumed, what does not run is not asked.
    fn check(&self) -> Result<(), String> {
        let mut runs = vec![Run::Up; usize::from(self.managers)];
        let mut etcd = Run::Up;
        for step in &self.steps {
            let wrong = |why: &str| Err(format!("step `{}`: {why}", step.name));
            match step.action {
                None if step.until.is_none() => return wrong("it does nothing and waits for nothing"),
                None => {}
                Some(Action::Fill(at)) if runs[at] != Run::Up => return wrong("that node does not run"),
                Some(Action::Fill(_)) => {}
                Some(Action::Strike(fault, target)) => {
                    let run = match target {
                        Target::Node(at) => &mut runs[at],
                        Target::Etcd => &mut etcd,
                    };
                    *run = match (fault, *run) {
                        (Fault::Kill, Run::Up | Run::Paused) | (Fault::Terminate, Run::Up) => Run::Down,
                        (Fault::Pause, Run::Up) => Run::Paused,
                        (Fault::Resume, Run::Paused) | (Fault::Restart, Run::Down) => Run::Up,
                        (Fault::Restart, _) => {
                            return wrong("what is restarted was killed or terminated before");
                        }
                        (Fault::Resume, _) => return wrong("what is resumed was paused before"),
                        _ => return wrong("it does not run at that point"),
                    };
                }
            }
            match step.until {
                Some(Condition::Member(at) | Condition::Fenced(at) | Condition::Serves(at))
                    if runs[at] != Run::Up =>
                {
                    return wrong("it waits for a node that does not run at that point");
                }
                Some(Condition::Silent(at)) if runs[at] == Run::Up => {
                    return wrong("it waits for the silence of a node that runs");
                }
                Some(Condition::Dropped(at))
                    if !runs.iter().enumerate().any(|(other, run)| other != at && *run == Run::Up) =>
                {
                    return wrong("no other node runs at that point, so nobody can drop it");
                }
                _ if runs.iter().all(|run| *run != Run::Up) => return wrong("no node runs at that point"),
                _ => {}
            }
        }
        Ok(())
    }
}

impl Step {
    fn of(part: StepPart, managers: u16) -> Result<Step, String> {
        let wrong = |why: String| format!("step `{}`: {why}", part.name);
        let action = part.action.as_deref().map(|text| Action::parse(text, managers));
        let until = part.until.as_deref().map(|text| Condition::parse(text, managers));
        let planned = part.planned.0;
        Ok(Step {
            action: action.transpose().map_err(wrong)?,
            until: until.transpose().map_err(wrong)?,
            planned,
            patience: part
                .give_up
                .map_or((planned * PATIENCE_TIMES).max(PATIENCE_MIN), |span| span.0.max(planned)),
            name: part.name,
        })
    }
}

/// The number of the node of this name.
fn node(name: &str, managers: u16) -> Option<usize> {
    (1..=managers).find(|number| name == format!("node-{number}")).map(|number| usize::from(number) - 1)
}

impl Action {
    fn parse(text: &str, managers: u16) -> Result<Action, String> {
        let refused = || format!("`do = \"{text}\"`: must be {ACTIONS}; nodes are node-1 to node-{managers}");
        let (word, name) = text.split_once(' ').ok_or_else(refused)?;
        let target = match name {
            "etcd" => Target::Etcd,
            name => Target::Node(node(name, managers).ok_or_else(refused)?),
        };
        let fault = match (word, target) {
            ("fill", Target::Node(at)) => return Ok(Action::Fill(at)),
            ("kill", _) => Fault::Kill,
            ("terminate", _) => Fault::Terminate,
            ("pause", _) => Fault::Pause,
            ("resume", _) => Fault::Resume,
            ("restart", _) => Fault::Restart,
            _ => return Err(refused()),
        };
        Ok(Action::Strike(fault, target))
    }
}

impl Condition {
    fn parse(text: &str, managers: u16) -> Result<Condition, String> {
        let refused =
            || format!("`until = \"{text}\"`: must be {CONDITIONS}; nodes are node-1 to node-{managers}");
        if text == "complete" {
            return Ok(Condition::Complete);
        }
        let (word, name) = text.split_once(' ').ok_or_else(refused)?;
        let at = node(name, managers).ok_or_else(refused)?;
        match word {
            "dropped" => Ok(Condition::Dropped(at)),
            "fenced" => Ok(Condition::Fenced(at)),
            "member" => Ok(Condition::Member(at)),
            "silent" => Ok(Condition::Silent(at)),
            "serves" => Ok(Condition::Serves(at)),
            _ => Err(refused()),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} nodes, {} steps", self.name, self.managers, self.steps.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = r#"
        name = "one dies"
        [cluster]
        managers = 3
        dram = "64mib"
        [load]
        blocks = 100
        block = "16kib"
        [objectives]
        recovery = "30s"
        blocks_lost = 100
        [[step]]
        name = "dies"
        do = "kill node-2"
        until = "dropped node-2"
        planned = "12s"
        [[step]]
        name = "comes"
        do = "restart node-2"
        until = "member node-2"
        planned = "1s"
        give_up = "5s"
    "#;

    #[test]
    fn the_plans_to_begin_with_are_plans() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/drills");
        let files = std::fs::read_dir(folder).expect("the folder of plans");
        let names: Vec<String> = files
            .map(|file| {
                let text = std::fs::read_to_string(file.expect("a file").path()).expect("a plan's text");
                Plan::parse(&text, false).expect("a plan").name
            })
            .collect();
        assert!(names.len() >= 2, "plans to begin with: {names:?}");
    }

    #[test]
    fn a_plan_is_read_whole() {
        let plan = Plan::parse(PLAN, false).expect("a plan");
        assert_eq!((plan.managers, plan.blocks, plan.block_bytes), (3, 100, 16 * KIB));
        assert_eq!(plan.objectives, Objectives { recovery_s_max: Some(30.0), loss_max: Some(100.0) });
        let first = &plan.steps[0];
        assert_eq!(first.action, Some(Action::Strike(Fault::Kill, Target::Node(1))));
        assert_eq!(first.until, Some(Condition::Dropped(1)));
        assert_eq!((first.planned, first.patience), (Duration::from_secs(12), Duration::from_secs(60)));
        assert_eq!(plan.steps[1].patience, Duration::from_secs(5));
        let table: toml::Table = toml::from_str(PLAN).expect("TOML");
        let json = serde_json::to_string(&table).expect("JSON");
        assert_eq!(Plan::parse(&json, true).expect("the same"), plan);
    }

    #[test]
    fn what_cannot_be_done_is_refused_before_anything_starts() {
        for (from, to, word) in [
            ("managers = 3", "managers = 1", "2 to 64"),
            ("kill node-2", "kill node-4", "node-1 to node-3"),
            ("kill node-2", "slay node-2", "`terminate`"),
            ("kill node-2", "fill etcd", "`fill` with a node"),
            ("kill node-2", "resume node-2", "was paused before"),
            ("kill node-2", "pause node-2", "was killed or terminated before"),
            ("restart node-2", "kill node-2", "does not run"),
            ("restart node-2", "restart etcd", "was killed"),
            ("restart node-2", "fill node-2", "does not run"),
            ("dropped node-2", "gone node-2", "`dropped`"),
            ("dropped node-2", "member node-2", "does not run at that point"),
            ("dropped node-2", "silent node-1", "silence of a node that runs"),
            ("block = \"16kib\"", "block = \"8b\"", "quarter of `dram`"),
            ("blocks = 100", "blocks = 4097", "a node has room for 64mib"),
            ("planned = \"12s\"", "planed = \"12s\"", "planed"),
            ("planned = \"12s\"", "planned = \"soon\"", "soon"),
        ] {
            let text = PLAN.replacen(from, to, 1);
            assert_ne!(text, PLAN, "{from}");
            let error = Plan::parse(&text, false).expect_err(to);
            assert!(error.contains(word), "{to}: {error}");
        }
        let idle = PLAN.replace("do = \"kill node-2\"\n        until = \"dropped node-2\"", "");
        let error = Plan::parse(&idle, false).expect_err("nothing is done");
        assert!(error.contains("waits for nothing"), "{error}");
        let alone = PLAN.replace("do = \"restart node-2\"", "").replace("member node-2", "dropped node-1");
        Plan::parse(&alone, false).expect("node-3 can drop it");
        let error =
            Plan::parse(&alone.replace("managers = 3", "managers = 2"), false).expect_err("nobody can");
        assert!(error.contains("step `comes`: no other node runs"), "{error}");
    }

    #[test]
    fn as_many_blocks_are_saved_as_a_node_has_room_for() {
        let plan = |blocks: u64, ssd: &str| {
            let text = PLAN.replace("blocks = 100", &format!("blocks = {blocks}"));
            Plan::parse(
                &text.replace("dram = \"64mib\"", &format!("dram = \"64mib\"\nssd = \"{ssd}\"")),
                false,
            )
        };
        assert!(plan(4_096, "0").is_ok());
        assert!(plan(4_097, "0").is_err());
        assert!(plan(8_192, "64mib").is_ok());
        assert!(plan(8_193, "64mib").is_err());
    }
}
