//! What a drill has shown: planned against measured, steps that nobody planned, and whether what was promised holds.

use std::fmt::Write;

use orbitkv_shards::resilience::drill::DrillReport;
use orbitkv_shards::resilience::objectives::Verdict;
use serde::Serialize;
use serde_json::{Value, json};

use super::plan::Plan;
use super::watch::Transition;
use crate::cli::table::Table;
use crate::exit::Exit;

/// How the drill has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every step was reached, and every node that runs is complete.
    Recovered,
    /// A step was not reached in time.
    GivenUp {
        /// Its name.
        step: String,
    },
    /// Every step was reached, and these nodes do not know all the others.
    NotWhole {
        /// Their names.
        nodes: Vec<String>,
    },
    /// A signal came.
    Stopped {
        /// Which.
        signal: &'static str,
    },
}

/// What became of the blocks that were saved before the first step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Losses {
    /// Blocks that were saved.
    pub saved_blocks: u64,
    /// Blocks of those that no node brought back.
    pub lost_blocks: u64,
    /// Bytes that came back other than they were.
    pub wrong_bytes: u64,
}

/// All of it.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was done.
    pub plan: Plan,
    /// Steps, in seconds.
    pub steps: DrillReport,
    /// How it has ended.
    pub outcome: Outcome,
    /// What nodes said, and when.
    pub transitions: Vec<Transition>,
    /// What was lost; none if nothing was saved or it was not asked.
    pub losses: Option<Losses>,
    /// Blocks at risk while they were saved, at most: saves a second × age of the least fresh view.
    pub at_risk_blocks: Option<f64>,
    /// What went wrong beside the plan: processes that ended by themselves, requests that failed.
    pub faults: Vec<String>,
}

pub(super) fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Holds => "holds",
        Verdict::Breaks => "breaks",
        Verdict::Unknown => "unknown",
    }
}

impl Report {
    fn recovery(&self) -> Verdict {
        match self.outcome {
            Outcome::Recovered => self.steps.by_drill(&self.plan.objectives),
            // There is no time after which it had recovered.
            _ => self.plan.objectives.recovery(None),
        }
    }

    fn loss(&self) -> Verdict {
        self.plan.objectives.loss(self.losses.map(|losses| losses.lost_blocks as f64))
    }

    /// Why it was not good enough; empty if it was.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        match &self.outcome {
            Outcome::Recovered => {}
            Outcome::GivenUp { step } => complaints.push(format!("step `{step}` was given up")),
            Outcome::NotWhole { nodes } => {
                complaints.push(format!("not complete again: {}", nodes.join(", ")))
            }
            Outcome::Stopped { signal } => complaints.push(format!("stopped by {signal}")),
        }
        let Plan { objectives, .. } = &self.plan;
        if self.recovery() == Verdict::Breaks {
            let promised = objectives.recovery_s_max.unwrap_or_default();
            let measured = self.steps.measured_s();
            complaints.push(format!("recovery took {measured:.2} s, and {promised:.2} s were promised"));
        }
        if self.loss() == Verdict::Breaks {
            let promised = objectives.loss_max.unwrap_or_default();
            let lost = self.losses.map_or(0, |losses| losses.lost_blocks);
            complaints.push(format!("{lost} blocks were lost, and at most {promised} were promised"));
        }
        if let Some(Losses { wrong_bytes: wrong @ 1.., .. }) = self.losses {
            complaints.push(format!("{wrong} bytes came back other than they were saved"));
        }
        complaints.extend(self.faults.iter().cloned());
        complaints
    }

    /// Exit code of the command.
    #[must_use]
    pub fn exit(&self) -> Exit {
        if self.complaints().is_empty() { Exit::Done } else { Exit::Unmet }
    }

    /// The report as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let objectives = &self.plan.objectives;
        let steps: Vec<Value> = self
            .steps
            .steps()
            .iter()
            .map(|step| {
                json!({
                    "name": step.name, "planned_s": step.planned, "measured_s": step.measured,
                    "deviation_s": step.deviation(), "is_unplanned": step.is_unplanned(),
                })
            })
            .collect();
        let unplanned: Vec<&str> = self.steps.unplanned().map(|step| step.name.as_str()).collect();
        json!({
            "plan": self.plan.name,
            "met": self.exit() == Exit::Done,
            "recovered": self.outcome == Outcome::Recovered,
            "complaints": self.complaints(),
            "planned_s": self.steps.planned_s(),
            "measured_s": self.steps.measured_s(),
            "steps": steps,
            "unplanned": unplanned,
            "recovery": {
                "promised_s": objectives.recovery_s_max,
                "by_plan": word(self.steps.by_plan(objectives)),
                "by_drill": word(self.recovery()),
            },
            "loss": {
                "promised_blocks": objectives.loss_max,
                "verdict": word(self.loss()),
                "measured": self.losses,
                "at_risk_blocks": self.at_risk_blocks,
            },
            "nodes": self.transitions,
        })
    }

    /// The report as people read it.
    #[must_use]
    pub fn text(&self) -> String {
        let mut table = Table::new(["step", "planned", "measured", "deviation", "note"]);
        let total = self.steps.total();
        for step in self.steps.steps().iter().chain([&total]) {
            table.row([
                step.name.clone(),
                format!("{:.2} s", step.planned),
                format!("{:.2} s", step.measured),
                format!("{:+.2} s", step.deviation()),
                if step.is_unplanned() { "not planned".to_owned() } else { String::new() },
            ]);
        }
        let objectives = &self.plan.objectives;
        let mut text = format!("{}\n\n{table}\n\n", self.plan);
        let promised = |promised: Option<f64>, unit: &str| {
            promised.map_or("nothing promised".to_owned(), |value| format!("{value} {unit} promised"))
        };
        _ = writeln!(
            text,
            "recovery: {}; by plan {}, by drill {}",
            promised(objectives.recovery_s_max, "s"),
            word(self.steps.by_plan(objectives)),
            word(self.recovery())
        );
        if let Some(losses) = self.losses {
            _ = writeln!(
                text,
                "loss: {}; {} of {} blocks lost, {} wrong bytes: {}",
                promised(objectives.loss_max, "blocks"),
                losses.lost_blocks,
                losses.saved_blocks,
                losses.wrong_bytes,
                word(self.loss())
            );
        }
        if let Some(blocks) = self.at_risk_blocks {
            _ = writeln!(
                text,
                "at risk while saving: {blocks:.0} blocks at most (saves a second × age of views)"
            );
        }
        text.push_str("\nwhat nodes said\n");
        for Transition { at_s, node, says } in &self.transitions {
            _ = writeln!(text, "{at_s:>8.2} s  {node}  {says}");
        }
        for complaint in self.complaints() {
            _ = writeln!(text, "not met: {complaint}");
        }
        text.trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use orbitkv_shards::resilience::objectives::Objectives;

    use super::*;
    use crate::quantity::{ByteSize, KIB};

    fn report(recovery_s_max: f64, loss_max: f64) -> Report {
        let mut steps = DrillReport::new(1.0);
        steps.step("noticed", 10.0, 12.5);
        steps.step("node-1 complete again", 0.0, 1.5);
        Report {
            plan: Plan {
                name: "one dies".to_owned(),
                managers: 3,
                dram: ByteSize(64 * KIB),
                ssd: ByteSize(0),
                blocks: 10,
                block_bytes: 1024,
                objectives: Objectives { recovery_s_max: Some(recovery_s_max), loss_max: Some(loss_max) },
                steps: Vec::new(),
            },
            steps,
            outcome: Outcome::Recovered,
            transitions: Vec::new(),
            losses: Some(Losses { saved_blocks: 30, lost_blocks: 10, wrong_bytes: 0 }),
            at_risk_blocks: Some(3.0),
            faults: Vec::new(),
        }
    }

    #[test]
    fn exactly_what_was_promised_is_met_and_more_is_not() {
        assert_eq!(report(14.0, 10.0).exit(), Exit::Done);
        assert_eq!(report(13.9, 10.0).exit(), Exit::Unmet);
        assert_eq!(report(14.0, 9.0).exit(), Exit::Unmet);
        let json = report(13.9, 10.0).json();
        let verdicts = (&json["recovery"]["by_plan"], &json["recovery"]["by_drill"]);
        assert_eq!(verdicts, (&"holds".into(), &"breaks".into()));
        assert_eq!(json["unplanned"], json!(["node-1 complete again"]));
        assert!(report(13.9, 10.0).text().contains("not met: recovery took 14.00 s"), "{json}");
    }

    #[test]
    fn a_drill_that_did_not_end_or_gave_wrong_bytes_is_never_met() {
        let mut wrong = report(100.0, 100.0);
        wrong.losses = Some(Losses { saved_blocks: 30, lost_blocks: 0, wrong_bytes: 1 });
        let mut given_up = report(100.0, 100.0);
        given_up.outcome = Outcome::GivenUp { step: "noticed".to_owned() };
        let mut dead = report(100.0, 100.0);
        dead.faults = vec!["node-3 ended with signal 11".to_owned()];
        for report in [wrong, given_up, dead] {
            assert_eq!(report.exit(), Exit::Unmet, "{:?}", report.complaints());
        }
    }
}
