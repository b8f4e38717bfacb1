//! A recovery exercise on a cluster of this machine: real processes are broken as a plan says, and each step back is
//! timed by what the nodes say of themselves.

mod plan;
pub mod promises;
mod report;
mod watch;

use std::time::{Duration, Instant};

use orbitkv_shards::resilience::drill::DrillReport;
use orbitkv_shards::resilience::objectives::at_risk;
use thiserror::Error;

use crate::cluster::{Cluster, ClusterFailure, ClusterOrder, Coordination, Division, DivisionOrder, Target};
use crate::control::signals::StopSignals;
use crate::exit::Exit;
use crate::replay::{ReplayError, ReplaySettings, Saves, Spread, TraceRequest, replay};
use crate::settings::Machine;

pub use plan::{Action, Condition, Plan, PlanError, Step};
pub use report::{Losses, Outcome, Report};
pub use watch::Transition;

use watch::{Look, Record};

/// Between two looks at the nodes: the resolution of what is measured.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// How long nodes may take to know each other before the first step, and after the last one.
const COMPLETE_WAIT: Duration = Duration::from_secs(120);
/// How long to try to reach a node's engine socket.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// Steps are told in seconds.
const UNIT_S: f64 = 1.0;

/// Why there is no report.
#[derive(Debug, Error)]
pub enum DrillFailure {
    /// The machine does not carry the cluster.
    #[error("{0}")]
    Division(#[from] crate::cluster::DivisionRefused),
    /// The cluster did not start.
    #[error(transparent)]
    Cluster(#[from] ClusterFailure),
    /// A node took no blocks while nothing was broken.
    #[error("saving blocks before the first step: {0}")]
    Load(#[from] ReplayError),
    /// A node did not keep all blocks while nothing was broken: what is missing later would not have been lost.
    #[error(
        "saving blocks before the first step: {node} took {} of {blocks}, {} found no room and {} failed; lower `blocks`, or \
         raise `dram` or `ssd`", .saves.committed, .saves.refused, .saves.failed
    )]
    Unsaved {
        /// Which.
        node: String,
        /// Blocks of the plan.
        blocks: u64,
        /// What became of them.
        saves: Saves,
    },
}

impl DrillFailure {
    /// Exit code of a command that ends with it.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            DrillFailure::Division(refused) => refused.exit(),
            DrillFailure::Cluster(failure) => failure.exit(),
            DrillFailure::Load(_) => Exit::Unreachable,
            DrillFailure::Unsaved { .. } => Exit::Unmet,
        }
    }
}

/// One drill under way.
struct Exercise<'a> {
    plan: &'a Plan,
    signals: &'a StopSignals,
    cluster: Cluster,
    /// Whether each node runs and is not paused, as far as the drill has left it.
    runs: Vec<bool>,
    began: Instant,
    /// When the last step ended.
    mark: Instant,
    record: Record,
    steps: DrillReport,
    /// Number of a block that nobody has saved yet.
    next_block: u64,
    faults: Vec<String>,
}

/// How waiting has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waited {
    Held,
    GivenUp,
    Stopped(&'static str),
}

/// Makes the drill that a plan describes. `told` hears each step when it has ended, with its planned and its measured
/// seconds.
///
/// # Errors
/// [`DrillFailure`]: there was nothing to measure. What goes wrong during the drill is in the report.
pub fn exercise(
    plan: &Plan,
    data_parent: std::path::PathBuf,
    signals: &StopSignals,
    mut told: impl FnMut(&str, Duration, Duration),
) -> Result<Report, DrillFailure> {
    let order = DivisionOrder { nodes: plan.managers, shards: 1, dram: Some(plan.dram), ssd: plan.ssd };
    let division = Division::of(&order, &Machine::observe())?;
    let order = ClusterOrder {
        nodes: division.nodes,
        coordination: Coordination::Started,
        name: "drill".to_owned(),
        data_parent,
        program: None,
    };
    let mut cluster = Cluster::start(&order, signals)?;
    cluster.await_complete(COMPLETE_WAIT, signals)?;
    let now = Instant::now();
    let mut exercise = Exercise {
        plan,
        signals,
        runs: vec![true; cluster.nodes().len()],
        cluster,
        began: now,
        mark: now,
        record: Record::default(),
        steps: DrillReport::new(UNIT_S),
        next_block: 0,
        faults: Vec::new(),
    };
    let at_risk_blocks = exercise.load()?;
    exercise.cluster.await_complete(COMPLETE_WAIT, signals)?;
    exercise.begin();
    let outcome = exercise.steps(&mut told);
    let losses = if outcome == Outcome::Recovered { exercise.losses() } else { None };
    let Exercise { steps, record, faults, .. } = exercise;
    Ok(Report {
        plan: plan.clone(),
        steps,
        outcome,
        transitions: record.transitions,
        losses,
        at_risk_blocks,
        faults,
    })
}

/// Whether a node has taken all blocks that were saved on it before the first step.
fn all_saved(at: usize, blocks: u64, saves: Saves) -> Result<(), DrillFailure> {
    if saves.committed == blocks {
        return Ok(());
    }
    Err(DrillFailure::Unsaved { node: format!("node-{}", at + 1), blocks, saves })
}

/// How a step ends whose action has failed, and what is said of that.
fn broken_off(step: &str, failure: &ClusterFailure) -> (Waited, Option<String>) {
    match failure {
        ClusterFailure::Stopped { signal } => (Waited::Stopped(signal), None),
        failure => (Waited::GivenUp, Some(format!("step `{step}`: {failure}"))),
    }
}

impl Exercise<'_> {
    /// The clock of the steps begins, with what the nodes say before the first of them.
    fn begin(&mut self) {
        (self.began, self.record) = (Instant::now(), Record::default());
        self.look(None);
        self.mark = Instant::now();
    }

    /// Saves the plan's blocks on each node; blocks that only one node had at any moment, at most.
    fn load(&mut self) -> Result<Option<f64>, DrillFailure> {
        let mut worst: Option<f64> = None;
        for at in 0..self.runs.len() {
            if self.plan.blocks == 0 {
                break;
            }
            let first = self.next_block;
            self.next_block += self.plan.blocks;
            let began = Instant::now();
            let tally = self.drive(at, first..self.next_block)?;
            all_saved(at, self.plan.blocks, tally.saves)?;
            let rate_per_s = self.plan.blocks as f64 / began.elapsed().as_secs_f64();
            let risk = at_risk(rate_per_s, self.look(None).behind_s_max());
            worst = Some(worst.unwrap_or(0.0).max(risk));
        }
        Ok(worst)
    }

    /// Asks a node for blocks, one by one, and saves those that nobody has.
    fn drive(&self, at: usize, blocks: std::ops::Range<u64>) -> Result<crate::replay::Tally, ReplayError> {
        let request =
            |block| TraceRequest { timestamp: 0.0, input_length: 0, output_length: 0, hash_ids: vec![block] };
        let requests: Vec<TraceRequest> = blocks.map(request).collect();
        let settings = ReplaySettings {
            sockets: vec![self.cluster.nodes()[at].socket().to_owned()],
            engines: 1,
            block_bytes: self.plan.block_bytes,
            speed: 0.0,
            spread: Spread::RoundRobin,
            announced: 0,
            connect_wait: CONNECT_WAIT,
        };
        let report = replay(&requests, &settings, &mut |_| std::ops::ControlFlow::Continue(()))?;
        Ok(report.tally)
    }

    /// Looks at the nodes that run, and at whoever a condition wants to be silent.
    fn look(&mut self, condition: Option<Condition>) -> Look {
        let mut asked = self.runs.clone();
        if let Some(Condition::Silent(at)) = condition {
            asked[at] = true;
        }
        let look = Look::at(&self.cluster, &asked);
        self.record.add(&look, self.began.elapsed());
        self.faults.extend(self.cluster.obituaries());
        look
    }

    fn steps(&mut self, told: &mut impl FnMut(&str, Duration, Duration)) -> Outcome {
        for step in &self.plan.steps {
            let waited = match (self.act(step), step.until) {
                (Ok(()), None) => Waited::Held,
                (Ok(()), Some(condition)) => self.wait(condition, step.patience),
                (Err(failure), _) => {
                    let (waited, fault) = broken_off(&step.name, &failure);
                    self.faults.extend(fault);
                    waited
                }
            };
            let measured = self.end_step(&step.name, step.planned);
            told(&step.name, step.planned, measured);
            match waited {
                Waited::Held => {}
                Waited::GivenUp => return Outcome::GivenUp { step: step.name.clone() },
                Waited::Stopped(signal) => return Outcome::Stopped { signal },
            }
        }
        self.rest(told)
    }

    fn act(&mut self, step: &Step) -> Result<(), ClusterFailure> {
        match step.action {
            None => {}
            Some(Action::Strike(fault, target)) => {
                if let Target::Node(at) = target {
                    self.runs[at] =
                        matches!(fault, crate::cluster::Fault::Resume | crate::cluster::Fault::Restart);
                }
                self.cluster.strike(target, fault, self.signals)?;
            }
            Some(Action::Fill(at)) => {
                let bytes = self.plan.dram.0.saturating_add(self.plan.ssd.0);
                let first = self.next_block;
                self.next_block += bytes.div_ceil(self.plan.block_bytes);
                if let Err(error) = self.drive(at, first..self.next_block) {
                    self.faults.push(format!("step `{}`: filling node-{}: {error}", step.name, at + 1));
                }
            }
        }
        Ok(())
    }

    fn wait(&mut self, condition: Condition, patience: Duration) -> Waited {
        let began = Instant::now();
        loop {
            let look = self.look(Some(condition));
            let holds = match condition {
                Condition::Serves(at) => self.serves(at),
                seen => look.holds(seen),
            };
            if holds {
                return Waited::Held;
            }
            if began.elapsed() > patience {
                return Waited::GivenUp;
            }
            if let Some(signal) = self.signals.wait(LOOK_INTERVAL) {
                return Waited::Stopped(signal);
            }
        }
    }

    /// Whether a block saved on a node comes back as it was.
    fn serves(&mut self, at: usize) -> bool {
        let block = self.next_block;
        self.next_block += 1;
        let saved = self.drive(at, block..block + 1).is_ok_and(|tally| tally.saves.committed == 1);
        saved
            && self
                .drive(at, block..block + 1)
                .is_ok_and(|tally| tally.hits.total() == 1 && tally.wrong_bytes == 0)
    }

    /// A step has ended: takes its time down.
    fn end_step(&mut self, name: &str, planned: Duration) -> Duration {
        let measured = self.mark.elapsed();
        self.mark = Instant::now();
        self.steps.step(name, planned.as_secs_f64(), measured.as_secs_f64());
        measured
    }

    /// Recovery is over when every node that runs knows the others and has what they hold. What the plan does not wait
    /// for of that is a step that it does not know.
    fn rest(&mut self, told: &mut impl FnMut(&str, Duration, Duration)) -> Outcome {
        let began = Instant::now();
        let mut waited_for: Vec<usize> = (0..self.runs.len()).filter(|&at| self.runs[at]).collect();
        let mut is_first = true;
        loop {
            let look = self.look(None);
            let (done, left): (Vec<usize>, Vec<usize>) =
                waited_for.iter().partition(|&&at| look.is_complete(at));
            // What was so at the first look was not waited for.
            if !is_first && !done.is_empty() {
                let names: Vec<String> = done.iter().map(|at| format!("node-{}", at + 1)).collect();
                let name = format!("{} complete again", names.join(", "));
                let measured = self.end_step(&name, Duration::ZERO);
                told(&name, Duration::ZERO, measured);
            }
            if left.is_empty() {
                return Outcome::Recovered;
            }
            (waited_for, is_first) = (left, false);
            if began.elapsed() > COMPLETE_WAIT {
                return Outcome::NotWhole {
                    nodes: waited_for.iter().map(|at| format!("node-{}", at + 1)).collect(),
                };
            }
            if let Some(signal) = self.signals.wait(LOOK_INTERVAL) {
                return Outcome::Stopped { signal };
            }
        }
    }

    /// What of the plan's blocks no node has any more, by asking one that runs for each of them.
    fn losses(&mut self) -> Option<Losses> {
        let blocks = self.plan.blocks * self.runs.len() as u64;
        let at = self.runs.iter().position(|runs| *runs).filter(|_| blocks > 0)?;
        match self.drive(at, 0..blocks) {
            Ok(tally) => Some(Losses {
                saved_blocks: blocks,
                lost_blocks: tally.misses,
                wrong_bytes: tally.wrong_bytes,
            }),
            Err(error) => {
                self.faults.push(format!("asking node-{} for all blocks: {error}", at + 1));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_a_node_did_not_take_are_no_drill() {
        let saves = |committed, refused| Saves { committed, refused, ..Saves::default() };
        assert!(all_saved(1, 60, saves(60, 0)).is_ok());
        let failure = all_saved(1, 60, saves(59, 1)).expect_err("one has no room");
        assert_eq!(failure.exit(), Exit::Unmet);
        assert!(failure.to_string().contains("node-2 took 59 of 60, 1 found no room"), "{failure}");
    }

    #[test]
    fn an_action_that_fails_gives_its_step_up_and_a_signal_stops() {
        let failure = ClusterFailure::NoEtcd;
        let (waited, fault) = broken_off("comes", &failure);
        assert_eq!(waited, Waited::GivenUp);
        assert_eq!(fault, Some(format!("step `comes`: {failure}")));
        let stopped = broken_off("comes", &ClusterFailure::Stopped { signal: "SIGTERM" });
        assert_eq!(stopped, (Waited::Stopped("SIGTERM"), None));
    }
}
