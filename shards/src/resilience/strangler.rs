//! Moving operations between two layouts (chapter 5, row 20): in which order, and what that costs on the way.
//!
//! Each operation is moved by itself. State that is touched by moved and unmoved operations alike is *split*: it
//! is written in both layouts until the last of them has moved. It never has two truths: the old layout's copy is
//! the truth as long as anything reads or writes it there, and the new one's from then on.

use std::collections::{BTreeMap, BTreeSet};

/// Seconds of a day.
const SECONDS_PER_DAY: f64 = 86_400.0;

/// An operation that is moved as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Its name.
    pub name: String,
    /// Requests a day.
    pub volume: u64,
    /// State that it reads or writes.
    pub touches: BTreeSet<String>,
}

/// One of the two layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The one that is left.
    Old,
    /// The one that is moved to.
    New,
}

/// What decides the order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MoveOrder {
    /// The busiest first.
    Volume,
    /// Next, always, what leaves the fewest writes to be made twice; among equals the busiest.
    #[default]
    State,
}

/// Operations, the state they share, and how often it is written.
#[derive(Clone, Debug)]
pub struct MigrationPlan {
    routes: Vec<Route>,
    writes_per_day: BTreeMap<String, u64>,
}

impl MigrationPlan {
    /// State that is not in `writes_per_day` is not written.
    #[must_use]
    pub fn new(routes: Vec<Route>, writes_per_day: BTreeMap<String, u64>) -> MigrationPlan {
        MigrationPlan { routes, writes_per_day }
    }

    /// The operations, in the order given.
    #[must_use]
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// Requests a day over all of them.
    #[must_use]
    pub fn volume(&self) -> u64 {
        self.routes.iter().map(|route| route.volume).sum()
    }

    /// State that both moved and unmoved operations touch.
    #[must_use]
    pub fn split(&self, moved: &BTreeSet<usize>) -> BTreeSet<&str> {
        let touched = |is_moved: bool| -> BTreeSet<&str> {
            let routes =
                self.routes.iter().enumerate().filter(|(place, _)| moved.contains(place) == is_moved);
            routes.flat_map(|(_, route)| route.touches.iter().map(String::as_str)).collect()
        };
        touched(true).intersection(&touched(false)).copied().collect()
    }

    /// Writes a day that are made twice.
    #[must_use]
    pub fn dual_writes_per_day(&self, moved: &BTreeSet<usize>) -> u64 {
        self.split(moved).iter().filter_map(|entity| self.writes_per_day.get(*entity)).sum()
    }

    /// The same a second.
    #[must_use]
    pub fn dual_writes_per_s(&self, moved: &BTreeSet<usize>) -> f64 {
        self.dual_writes_per_day(moved) as f64 / SECONDS_PER_DAY
    }

    /// Part of all requests that moved operations have.
    #[must_use]
    pub fn moved_share(&self, moved: &BTreeSet<usize>) -> f64 {
        let volume: u64 = moved.iter().map(|place| self.routes[*place].volume).sum();
        volume as f64 / self.volume() as f64
    }

    /// Operations by place, in the order in which they are moved.
    #[must_use]
    pub fn order(&self, mode: MoveOrder) -> Vec<usize> {
        let mut remaining: Vec<usize> = (0..self.routes.len()).collect();
        if mode == MoveOrder::Volume {
            remaining.sort_by_key(|place| std::cmp::Reverse(self.routes[*place].volume));
            return remaining;
        }
        let mut moved = BTreeSet::new();
        let mut order = Vec::new();
        while !remaining.is_empty() {
            let merit = |place: &usize| {
                let with = moved.iter().copied().chain([*place]).collect();
                (self.dual_writes_per_day(&with), std::cmp::Reverse(self.routes[*place].volume))
            };
            let next = remaining.iter().copied().min_by_key(merit).expect("some remain");
            remaining.retain(|place| *place != next);
            moved.insert(next);
            order.push(next);
        }
        order
    }

    /// What each step of an order leaves.
    #[must_use]
    pub fn steps(&self, order: &[usize]) -> Vec<MigrationStep> {
        let mut moved = BTreeSet::new();
        let mut steps = Vec::new();
        for place in order {
            moved.insert(*place);
            steps.push(MigrationStep {
                route: *place,
                moved_share: self.moved_share(&moved),
                split_entities: self.split(&moved).len(),
                dual_writes_per_s: self.dual_writes_per_s(&moved),
            });
        }
        steps
    }
}

/// What there is after a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MigrationStep {
    /// The operation it moved, by place.
    pub route: usize,
    /// Part of all requests that moved operations have now.
    pub moved_share: f64,
    /// How much state is split.
    pub split_entities: usize,
    /// Writes a second that are made twice.
    pub dual_writes_per_s: f64,
}

/// What taking a move back takes once its state is written in the new layout alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Revert {
    /// Records to bring back.
    pub backfill: f64,
    /// Seconds that takes.
    pub seconds: f64,
}

impl Revert {
    /// After `after_s` seconds at `writes_per_day`, brought back at `scan_per_s` records a second.
    #[must_use]
    pub fn after(after_s: f64, writes_per_day: f64, scan_per_s: f64) -> Revert {
        let backfill = writes_per_day / SECONDS_PER_DAY * after_s;
        Revert { backfill, seconds: backfill / scan_per_s }
    }
}

/// What a flip changed for state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flip {
    /// State that is written twice from now on.
    pub became_split: Vec<String>,
    /// State whose truth is in the new layout from now on.
    pub truth_moved: Vec<String>,
    /// State whose truth is in the old layout again: what was written since must be brought back *before* the
    /// flip takes effect.
    pub needs_backfill: Vec<String>,
}

/// Which layout serves each operation.
#[derive(Clone, Debug)]
pub struct RouteTable {
    plan: MigrationPlan,
    moved: BTreeSet<usize>,
}

impl RouteTable {
    /// All operations are in the old layout.
    #[must_use]
    pub fn new(plan: MigrationPlan) -> RouteTable {
        RouteTable { plan, moved: BTreeSet::new() }
    }

    /// Who serves an operation.
    #[must_use]
    pub fn layout(&self, route: usize) -> Layout {
        if self.moved.contains(&route) { Layout::New } else { Layout::Old }
    }

    /// Where the truth of some state is: never in both.
    #[must_use]
    pub fn truth(&self, entity: &str) -> Layout {
        let mut touching = self
            .plan
            .routes
            .iter()
            .enumerate()
            .filter(|(_, route)| route.touches.contains(entity))
            .peekable();
        let is_touched = touching.peek().is_some();
        let all_moved = touching.all(|(place, _)| self.moved.contains(&place));
        if is_touched && all_moved { Layout::New } else { Layout::Old }
    }

    /// Moves an operation to the other layout.
    ///
    /// # Panics
    /// If there is no such operation.
    pub fn flip(&mut self, route: usize) -> Flip {
        let touches = self.plan.routes[route].touches.clone();
        let state = |table: &RouteTable| -> Vec<(bool, Layout)> {
            let split = table.plan.split(&table.moved);
            touches.iter().map(|entity| (split.contains(entity.as_str()), table.truth(entity))).collect()
        };
        let before = state(self);
        if !self.moved.remove(&route) {
            self.moved.insert(route);
        }
        let mut flip = Flip::default();
        for ((entity, before), after) in touches.iter().zip(before).zip(state(self)) {
            if !before.0 && after.0 {
                flip.became_split.push(entity.clone());
            }
            match (before.1, after.1) {
                (Layout::Old, Layout::New) => flip.truth_moved.push(entity.clone()),
                (Layout::New, Layout::Old) => flip.needs_backfill.push(entity.clone()),
                _ => {}
            }
        }
        flip
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> MigrationPlan {
        let route = |name: &str, volume, touches: &[&str]| Route {
            name: name.into(),
            volume,
            touches: touches.iter().map(|entity| (*entity).to_owned()).collect(),
        };
        let routes = vec![
            route("query", 900, &["blocks"]),
            route("save", 90, &["blocks", "journal"]),
            route("audit", 5, &["journal"]),
            route("scope", 5, &["scopes"]),
        ];
        let writes = [("blocks", 8_640_000), ("journal", 86_400), ("scopes", 1)];
        MigrationPlan::new(routes, writes.map(|(name, count)| (name.to_owned(), count)).into())
    }

    #[test]
    fn the_default_order_leaves_fewer_writes_to_be_made_twice() {
        let plan = plan();
        assert_eq!(plan.order(MoveOrder::Volume), [0, 1, 2, 3]);
        assert_eq!(plan.order(MoveOrder::default()), [3, 2, 1, 0]);
        let area =
            |mode| -> f64 { plan.steps(&plan.order(mode)).iter().map(|step| step.dual_writes_per_s).sum() };
        assert!(area(MoveOrder::default()) <= area(MoveOrder::Volume));
        let last = *plan.steps(&plan.order(MoveOrder::State)).last().unwrap();
        assert_eq!((last.moved_share, last.split_entities, last.dual_writes_per_s), (1.0, 0, 0.0));
    }

    #[test]
    fn among_equals_the_busier_is_moved_first_and_then_the_one_named_first() {
        let route = |name: &str, volume, touches: &str| Route {
            name: name.into(),
            volume,
            touches: [touches.to_owned()].into(),
        };
        let routes = vec![route("a", 1, "x"), route("b", 2, "y"), route("c", 2, "z"), route("d", 1, "v")];
        let plan = MigrationPlan::new(routes, BTreeMap::new());
        assert_eq!(plan.order(MoveOrder::State), [1, 2, 0, 3]);
        assert_eq!(plan.order(MoveOrder::Volume), [1, 2, 0, 3]);
    }

    #[test]
    fn state_has_one_truth_at_every_moment_of_a_move_and_of_its_return() {
        let mut table = RouteTable::new(plan());
        assert_eq!(table.truth("journal"), Layout::Old);
        let flip = table.flip(1);
        assert_eq!(flip.became_split, ["blocks", "journal"]);
        assert_eq!((table.truth("blocks"), table.truth("journal")), (Layout::Old, Layout::Old));
        let flip = table.flip(2);
        assert_eq!((flip.truth_moved, flip.became_split), (vec!["journal".to_owned()], vec![]));
        assert_eq!((table.layout(2), table.truth("journal")), (Layout::New, Layout::New));
        let flip = table.flip(1);
        assert_eq!(flip.needs_backfill, ["journal"]);
        assert_eq!((table.layout(1), table.truth("journal")), (Layout::Old, Layout::Old));
        assert_eq!(table.truth("nothing"), Layout::Old);
    }

    #[test]
    fn going_back_takes_as_long_as_what_was_written_since() {
        assert_eq!(Revert::after(0.0, 86_400.0, 10.0), Revert { backfill: 0.0, seconds: 0.0 });
        assert_eq!(Revert::after(3_600.0, 86_400.0, 10.0), Revert { backfill: 3_600.0, seconds: 360.0 });
    }
}
