//! Drills (chapter 5, row 14): a recovery plan held against what happened, and what becomes of work that a
//! failure caught half way.
//!
//! A plan that was never tried is a guess. The report takes each step as it was planned and as it was
//! measured, names the steps that nobody had planned, and judges the sum. It says by plan and by drill
//! separately, because a plan that holds and a drill that does not is what drills are for.

use super::objectives::{Objectives, Verdict};

/// One step of a recovery.
#[derive(Clone, Debug, PartialEq)]
pub struct DrillStep {
    /// Its name.
    pub name: String,
    /// What the plan gives it; 0 if the plan does not know it. In the unit of the report.
    pub planned: f64,
    /// What it took.
    pub measured: f64,
}

impl DrillStep {
    /// What it took longer than planned.
    #[must_use]
    pub fn deviation(&self) -> f64 {
        self.measured - self.planned
    }

    /// Whether the plan does not know it.
    #[must_use]
    pub fn is_unplanned(&self) -> bool {
        self.planned == 0.0 && self.measured > 0.0
    }
}

/// The steps of one drill, one after the other.
#[derive(Clone, Debug)]
pub struct DrillReport {
    /// Seconds in a unit of the steps.
    unit_s: f64,
    steps: Vec<DrillStep>,
}

impl DrillReport {
    /// No steps yet; each will be told in units of `unit_s` seconds.
    #[must_use]
    pub fn new(unit_s: f64) -> DrillReport {
        DrillReport { unit_s, steps: Vec::new() }
    }

    /// A step was done.
    pub fn step(&mut self, name: &str, planned: f64, measured: f64) {
        self.steps.push(DrillStep { name: name.into(), planned, measured });
    }

    /// All steps, in their order.
    #[must_use]
    pub fn steps(&self) -> &[DrillStep] {
        &self.steps
    }

    /// All of them as one.
    #[must_use]
    pub fn total(&self) -> DrillStep {
        let sum = |part: fn(&DrillStep) -> f64| self.steps.iter().map(part).sum();
        DrillStep {
            name: "total".into(),
            planned: sum(|step| step.planned),
            measured: sum(|step| step.measured),
        }
    }

    /// Steps that took another time than planned.
    pub fn deviating(&self) -> impl Iterator<Item = &DrillStep> {
        self.steps.iter().filter(|step| step.deviation() != 0.0)
    }

    /// Steps that the plan does not know.
    pub fn unplanned(&self) -> impl Iterator<Item = &DrillStep> {
        self.steps.iter().filter(|step| step.is_unplanned())
    }

    /// What the plan says recovery takes, in seconds.
    #[must_use]
    pub fn planned_s(&self) -> f64 {
        self.total().planned * self.unit_s
    }

    /// What it took, in seconds.
    #[must_use]
    pub fn measured_s(&self) -> f64 {
        self.total().measured * self.unit_s
    }

    /// How many times longer than planned it took.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        let total = self.total();
        total.measured / total.planned
    }

    /// Whether the plan promises what was declared.
    #[must_use]
    pub fn by_plan(&self, objectives: &Objectives) -> Verdict {
        objectives.recovery(Some(self.planned_s()))
    }

    /// Whether the drill kept it; this one decides.
    #[must_use]
    pub fn by_drill(&self, objectives: &Objectives) -> Verdict {
        objectives.recovery(Some(self.measured_s()))
    }
}

/// What becomes of work that a failover caught between its first step and its last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestartPolicy {
    /// It begins again: nothing is lost, and steps with an effect outside may have it twice. This is what a
    /// requester does with a recovery whose source failed: each step is known by a key, so twice is once.
    #[default]
    AtLeastOnce,
    /// It is given up: nothing happens twice, and effects outside may stay without the rest.
    AtMostOnce,
}

/// How far a piece of work has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkProgress {
    /// Steps done.
    pub done: u32,
    /// Steps it has.
    pub steps: u32,
    /// Steps done that have an effect outside.
    pub effects: u32,
}

/// What to do with a piece of work at a failover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartAction {
    /// It had not begun, or it was complete: nothing.
    Keep,
    /// Begin again.
    Restart {
        /// Effects outside that will be had a second time.
        duplicated_effects: u32,
    },
    /// Give it up.
    Discard {
        /// Whether an effect outside stays without the rest.
        is_orphan: bool,
    },
}

impl RestartPolicy {
    /// Work of this progress was under way when its node was left.
    #[must_use]
    pub fn on_failover(self, progress: WorkProgress) -> RestartAction {
        if progress.done == 0 || progress.done >= progress.steps {
            return RestartAction::Keep;
        }
        match self {
            RestartPolicy::AtLeastOnce => RestartAction::Restart { duplicated_effects: progress.effects },
            RestartPolicy::AtMostOnce => RestartAction::Discard { is_orphan: progress.effects > 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_that_holds_and_a_drill_that_does_not_are_told_apart() {
        let mut report = DrillReport::new(2.0);
        report.step("notice", 1.0, 3.0);
        report.step("warm", 0.0, 8.0);
        report.step("check", 2.0, 2.0);
        report.step("ready", 2.0, 1.0);
        let objectives = |recovery_s| Objectives { recovery_s_max: Some(recovery_s), loss_max: None };
        assert_eq!((report.planned_s(), report.measured_s(), report.ratio()), (10.0, 28.0, 2.8));
        assert_eq!(report.by_plan(&objectives(20.0)), Verdict::Holds);
        assert_eq!(report.by_drill(&objectives(20.0)), Verdict::Breaks);
        assert_eq!(report.by_drill(&objectives(28.0)), Verdict::Holds);
        assert_eq!(report.by_drill(&Objectives::default()), Verdict::Unknown);
        let names = |steps: Vec<&DrillStep>| steps.iter().map(|step| step.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(report.deviating().collect()), ["notice", "warm", "ready"]);
        assert_eq!(names(report.unplanned().collect()), ["warm"]);
    }

    #[test]
    fn only_work_under_way_is_touched() {
        for policy in [RestartPolicy::AtLeastOnce, RestartPolicy::AtMostOnce] {
            for done in [0, 8] {
                let progress = WorkProgress { done, steps: 8, effects: done };
                assert_eq!(policy.on_failover(progress), RestartAction::Keep);
            }
        }
    }

    #[test]
    fn once_more_has_effects_twice_and_giving_up_leaves_them_behind() {
        let progress = WorkProgress { done: 5, steps: 8, effects: 2 };
        let (twice, never) = (RestartPolicy::default(), RestartPolicy::AtMostOnce);
        assert_eq!(twice.on_failover(progress), RestartAction::Restart { duplicated_effects: 2 });
        assert_eq!(never.on_failover(progress), RestartAction::Discard { is_orphan: true });
        let quiet = WorkProgress { effects: 0, ..progress };
        assert_eq!(never.on_failover(quiet), RestartAction::Discard { is_orphan: false });
    }
}
