//! What is remembered of a batch for an operator (chapter 3.8), and how it is judged when it has ended.

use std::time::Duration;

use super::alternatives::PlanKind;
use super::route::{Route, TrialOutcome};
use super::told::OwnerEvidence;
use crate::time::Moment;

/// Why a batch has the plan it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Nothing is priced in this mode.
    FixedMode,
    /// No block has two ways.
    OneRoute,
    /// Too little was seen of a route.
    FewSuccesses,
    /// A route would do more than it was seen to do.
    BeyondReach,
    /// There are more plans than are priced.
    Exhausted,
    /// No plan is better by more than uncertainty and hysteresis.
    NotBetter,
    /// The last batch with these routes was changed, and going back would be no better.
    Kept,
    /// This plan is better by more than uncertainty and hysteresis.
    Better,
}

impl Reason {
    /// A word for tables.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Reason::FixedMode => "fixed-mode",
            Reason::OneRoute => "one-route",
            Reason::FewSuccesses => "few-successes",
            Reason::BeyondReach => "beyond-reach",
            Reason::Exhausted => "exhausted",
            Reason::NotBetter => "not-better",
            Reason::Kept => "kept",
            Reason::Better => "better",
        }
    }
}

/// A plan that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedPlan {
    /// How it is made.
    pub kind: PlanKind,
    /// Predicted time to usable.
    pub predicted: Duration,
    /// What is added to it so that it is seldom too short.
    pub margin: Duration,
}

/// A route that blocks of the batch were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedRoute {
    /// Owner and medium.
    pub route: Route,
    /// Blocks.
    pub blocks: u32,
    /// Bytes of those.
    pub bytes: u64,
    /// Successes that its price rests on; none if it has no price.
    pub successes: Option<u32>,
    /// Time since the newest outcome of that route, a failure too; none if it has no price.
    pub age: Option<Duration>,
    /// What its owner had said.
    pub told: OwnerEvidence,
}

/// A batch: what could have been done, what was, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteTrace {
    /// Its number.
    pub batch: u64,
    /// When it was planned.
    pub at: Moment,
    /// Blocks wanted.
    pub wanted: u32,
    /// Of those, blocks with an eligible way.
    pub eligible: u32,
    /// Plans that were not dominated, the fixed one first; none if nothing was priced.
    pub alternatives: Vec<TracedPlan>,
    /// The plan.
    pub planned: PlanKind,
    /// Why that one.
    pub reason: Reason,
    /// Whether it was followed, or the fixed one instead.
    pub is_followed: bool,
    /// Where its blocks were sent.
    pub routes: Vec<TracedRoute>,
    /// Blocks that are there.
    pub usable: u32,
    /// Blocks that did not come.
    pub failed: u32,
    /// When the last one was there, since it was planned.
    pub ready: Duration,
    /// What blocks met before they went another way, in the order of [`REPLANS`].
    pub replans: [u32; REPLANS.len()],
}

/// Reasons for another plan.
pub const REPLANS: [TrialOutcome; 5] = [
    TrialOutcome::Busy,
    TrialOutcome::Missing,
    TrialOutcome::DeviceError,
    TrialOutcome::Corrupt,
    TrialOutcome::TimedOut,
];

impl RouteTrace {
    /// Whether everything has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.usable + self.failed == self.wanted
    }

    /// What was predicted of a kind of plan.
    #[must_use]
    pub fn predicted(&self, kind: PlanKind) -> Option<TracedPlan> {
        self.alternatives.iter().copied().find(|plan| plan.kind == kind)
    }

    /// The plan that was followed.
    #[must_use]
    pub fn followed(&self) -> PlanKind {
        if self.is_followed { self.planned } else { PlanKind::Fixed }
    }

    pub(super) fn on_replan(&mut self, outcome: TrialOutcome) {
        if let Some(at) = REPLANS.iter().position(|known| *known == outcome) {
            self.replans[at] += 1;
        }
    }
}
