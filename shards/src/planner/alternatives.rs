//! The few plans of a batch that are priced: the fixed one, one for each route, and earliest finish first.

use super::cost::{Assignment, Problem, Time};
use super::route::Route;
use super::settings::PlannerSettings;

/// How a plan is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanKind {
    /// Each block goes the first way in order.
    Fixed,
    /// Each block goes this way, if it has it.
    Single(Route),
    /// Each block, one after the other, goes where it is usable first.
    EarliestFinish,
}

/// A plan with its price.
#[derive(Clone, Debug)]
pub(super) struct Alternative {
    pub kind: PlanKind,
    pub assignment: Assignment,
    pub time: Time,
}

/// Why there is nothing to choose between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoAlternative {
    /// There are more plans than are priced.
    Exhausted,
    /// The fixed plan gives a route more than it was seen to do.
    BeyondReach,
}

impl Problem {
    /// The fixed plan first, then what is not dominated: at most as many as are allowed. `keep` is not left out.
    pub fn alternatives(
        &self,
        settings: &PlannerSettings,
        keep: PlanKind,
    ) -> Result<Vec<Alternative>, NoAlternative> {
        let candidates = self.lanes.iter().filter(|lane| lane.cost.is_some()).count();
        if candidates + 2 > settings.evaluated_max {
            return Err(NoAlternative::Exhausted);
        }
        let fixed: Assignment = vec![0; self.blocks.len()];
        let time = self.time(&fixed).ok_or(NoAlternative::BeyondReach)?;
        let mut found = vec![Alternative { kind: PlanKind::Fixed, assignment: fixed, time }];
        for lane in 0..self.lanes.len() {
            self.add(&mut found, PlanKind::Single(self.lanes[lane].route), self.single(lane), keep);
        }
        if let Some(assignment) = self.earliest_finish() {
            self.add(&mut found, PlanKind::EarliestFinish, assignment, keep);
        }
        Ok(best_of(found, settings.alternatives_max, keep))
    }

    fn add(&self, found: &mut Vec<Alternative>, kind: PlanKind, assignment: Assignment, keep: PlanKind) {
        let is_known = found.iter().any(|known| known.assignment == assignment);
        if is_known && kind != keep {
            return;
        }
        if let Some(time) = self.time(&assignment) {
            found.push(Alternative { kind, assignment, time });
        }
    }

    fn single(&self, lane: usize) -> Assignment {
        let way = |block: &super::cost::Block| {
            let at = block.ways.iter().position(|way| way.lane == lane);
            let may_move = block.is_movable && self.lanes[lane].cost.is_some();
            at.filter(|_| may_move).unwrap_or_default() as u8
        };
        self.blocks.iter().map(way).collect()
    }

    fn earliest_finish(&self) -> Option<Assignment> {
        let mut progress = self.begin();
        let mut assignment = Assignment::with_capacity(self.blocks.len());
        for block in &self.blocks {
            let mut best: Option<(f64, usize)> = None;
            for (at, way) in block.ways.iter().enumerate().take_while(|(at, _)| block.is_movable || *at == 0)
            {
                let Some(time) = self.finish(&progress, block, *way) else { continue };
                // The first in order, if they end together.
                if best.is_none_or(|(earliest, _)| time.predicted_ns < earliest) {
                    best = Some((time.predicted_ns, at));
                }
            }
            let at = best.map_or(0, |(_, at)| at);
            if let Some(way) = block.ways.get(at) {
                self.give(&mut progress, block, *way)?;
            }
            assignment.push(at as u8);
        }
        Some(assignment)
    }
}

fn dominates(one: &Time, other: &Time) -> bool {
    let is_no_worse = one.predicted_ns <= other.predicted_ns && one.upper_ns <= other.upper_ns;
    is_no_worse && one != other
}

/// Leaves out what another plan is better than in every way, and then the latest until there are few.
fn best_of(found: Vec<Alternative>, most: usize, keep: PlanKind) -> Vec<Alternative> {
    let is_kept = |plan: &Alternative| plan.kind == PlanKind::Fixed || plan.kind == keep;
    let times: Vec<Time> = found.iter().map(|plan| plan.time).collect();
    let is_dominated = |plan: &Alternative| times.iter().any(|time| dominates(time, &plan.time));
    let (kept, mut rest): (Vec<_>, Vec<_>) =
        found.into_iter().filter(|plan| is_kept(plan) || !is_dominated(plan)).partition(is_kept);
    rest.sort_by(|one, other| one.time.upper_ns.total_cmp(&other.time.upper_ns));
    rest.truncate(most.saturating_sub(kept.len()));
    kept.into_iter().chain(rest).collect()
}
