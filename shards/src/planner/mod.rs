//! Chooses from whom each block of a batch is asked first (chapter 3.5): a pure room beside the fetcher,
//! which it knows nothing of.
//!
//! A batch comes with the ways of each block in their fixed order, and with what each way has to do already. The
//! room prices a few plans by what it has seen of the routes, and leaves the plan that it would have by
//! default only for one that is better by more than its uncertainty and a hysteresis. In shadow it does all of
//! that and is not obeyed. Nothing is ever sent two ways at once: a plan is an order of candidates.
//!
//! A route of which too little was seen lately has no price. Blocks that would go it go it; nothing is tried
//! out on a route only to learn of it.

mod alternatives;
mod cost;
mod evidence;
mod figures;
mod preference;
mod route;
mod settings;
mod told;
mod trace;
mod zone_preference;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use orbitkv_wire::identity::{Incarnation, NodeId};
use orbitkv_wire::inventory::SourceStream;

use crate::members::MemberMap;
use crate::residents::CopyId;
use crate::time::Moment;

use alternatives::{Alternative, NoAlternative};
use cost::{Cost, Problem};
use evidence::Evidence;

pub use alternatives::PlanKind;
pub use figures::PlannerFigures;
pub use preference::Preference;
pub use route::{Choice, Load, Route, Trial, TrialOutcome, Want};
pub use settings::{Mode, PlannerSettings};
pub use told::{AGE_BOUNDS, AgeFigures, ByAge, OwnerEvidence};
pub use trace::{REPLANS, Reason, RouteTrace, TracedPlan, TracedRoute};
pub use zone_preference::{CHECK_INTERVAL, ZoneChange, ZonePreference, ZoneStanding};

/// The planner of one core.
#[derive(Debug)]
pub struct Planner {
    settings: PlannerSettings,
    evidence: BTreeMap<Route, Evidence>,
    members: MemberMap,
    /// Lives that are over, while members do not show it.
    excluded: BTreeMap<NodeId, Incarnation>,
    /// Which plan was last for a set of routes, the latest last.
    incumbents: VecDeque<(Vec<Route>, PlanKind)>,
    batches_made: u64,
    traces: VecDeque<RouteTrace>,
    /// Blocks of traced batches that have not ended.
    awaited: BTreeMap<CopyId, u64>,
    figures: PlannerFigures,
}

/// What was decided about a batch.
struct Decision {
    kind: PlanKind,
    assignment: Option<Vec<u8>>,
    reason: Reason,
    alternatives: Vec<Alternative>,
}

impl Decision {
    fn fixed(reason: Reason) -> Decision {
        Decision { kind: PlanKind::Fixed, assignment: None, reason, alternatives: Vec::new() }
    }
}

impl Planner {
    /// A room that has seen nothing, and knows no member.
    ///
    /// # Panics
    /// If a bound leaves no room for anything.
    #[must_use]
    pub fn new(settings: PlannerSettings) -> Planner {
        settings.assert_valid();
        Planner {
            settings,
            evidence: BTreeMap::new(),
            members: MemberMap::default(),
            excluded: BTreeMap::new(),
            incumbents: VecDeque::new(),
            batches_made: 0,
            traces: VecDeque::new(),
            awaited: BTreeMap::new(),
            figures: PlannerFigures::default(),
        }
    }

    /// What is done with plans from now on; batches that were planned before end as they began.
    pub fn set_mode(&mut self, mode: Mode) {
        self.settings.mode = mode;
    }

    /// For each block of a batch, the position of the choice that is to be asked before the others; none if their
    /// order stays. All of these blocks are asked for from now on, and reported with [`Planner::on_ended`].
    pub fn plan(
        &mut self,
        wants: &[Want<'_>],
        load: impl Fn(&Route) -> Load,
        now: Moment,
    ) -> Vec<Option<usize>> {
        self.figures.batches += 1;
        self.figures.blocks += wants.len() as u64;
        let problem = self.problem(wants, load, now);
        let decision = self.decide(&problem);
        self.count(&decision);
        let is_followed = self.settings.mode == Mode::Executed;
        self.figures.followed += u64::from(is_followed && decision.kind != PlanKind::Fixed);
        let assignment = decision.assignment.as_ref().filter(|_| is_followed);
        let way = |at: usize| assignment.map_or(0, |assignment| usize::from(assignment[at]));
        let pick = |at: usize| problem.blocks[at].ways.get(way(at)).map(|way| way.choice);
        let picks: Vec<Option<usize>> = (0..wants.len()).map(pick).collect();
        if self.settings.mode != Mode::Fixed {
            self.trace(wants, &problem, &decision, &picks, is_followed, now);
        }
        (0..).zip(picks).map(|(at, pick)| pick.filter(|_| way(at) > 0)).collect()
    }

    fn problem(&mut self, wants: &[Want<'_>], load: impl Fn(&Route) -> Load, now: Moment) -> Problem {
        let Planner { settings, evidence, members, excluded, .. } = self;
        let is_eligible = |choice: &Choice| match choice.route {
            Route::Peer { source, .. } => is_alive(members, excluded, &source),
            Route::Local(_) => true,
            Route::Recompute => choice.declared.is_some(),
        };
        Problem::new(wants, load, is_eligible, |choice| {
            if let (Route::Recompute, Some(declared)) = (choice.route, choice.declared) {
                return Some(Cost::Declared(declared));
            }
            let seen = evidence.get_mut(&choice.route)?;
            seen.expire(settings, now);
            seen.used = now;
            seen.price(settings, now).ok().map(Cost::Seen)
        })
    }

    fn decide(&mut self, problem: &Problem) -> Decision {
        if self.settings.mode == Mode::Fixed {
            return Decision::fixed(Reason::FixedMode);
        }
        if !problem.blocks.iter().any(|block| block.is_movable) {
            let reason = if problem.has_unpriced { Reason::FewSuccesses } else { Reason::OneRoute };
            return Decision::fixed(reason);
        }
        let mut routes: Vec<Route> = problem.lanes.iter().map(|lane| lane.route).collect();
        routes.sort_unstable();
        let known = self.incumbents.iter().position(|(known, _)| *known == routes);
        let former = known.map_or(PlanKind::Fixed, |at| self.incumbents[at].1);
        let alternatives = match problem.alternatives(&self.settings, former) {
            Ok(alternatives) => alternatives,
            Err(NoAlternative::Exhausted) => return Decision::fixed(Reason::Exhausted),
            Err(NoAlternative::BeyondReach) => return Decision::fixed(Reason::BeyondReach),
        };
        let incumbent = alternatives.iter().find(|plan| plan.kind == former).unwrap_or(&alternatives[0]);
        let by_upper = |one: &&Alternative, other: &&Alternative| {
            let upper = one.time.upper_ns.total_cmp(&other.time.upper_ns);
            upper.then(one.time.predicted_ns.total_cmp(&other.time.predicted_ns))
        };
        let best = alternatives.iter().min_by(by_upper).expect("the fixed plan is one");
        let improvement_ns = incumbent.time.predicted_ns - best.time.predicted_ns;
        let uncertainty_ns = best.time.upper_ns - best.time.predicted_ns;
        let (chosen, reason) = match improvement_ns > uncertainty_ns + self.hysteresis_ns(incumbent) {
            true => (best, Reason::Better),
            false if incumbent.kind == PlanKind::Fixed => (incumbent, Reason::NotBetter),
            false => (incumbent, Reason::Kept),
        };
        let (kind, assignment) = (chosen.kind, Some(chosen.assignment.clone()));
        known.map(|at| self.incumbents.remove(at));
        if kind != PlanKind::Fixed {
            if self.incumbents.len() == self.settings.incumbents_max {
                self.incumbents.pop_front();
            }
            self.incumbents.push_back((routes, kind));
        }
        Decision { kind, assignment, reason, alternatives }
    }

    fn hysteresis_ns(&self, incumbent: &Alternative) -> f64 {
        let share = incumbent.time.predicted_ns * self.settings.hysteresis_percent as f64 / 100.0;
        share.max(self.settings.hysteresis_min.as_nanos() as f64)
    }

    fn count(&mut self, decision: &Decision) {
        let figures = &mut self.figures;
        match decision.reason {
            Reason::FixedMode => {}
            Reason::OneRoute => figures.one_route += 1,
            Reason::FewSuccesses => figures.few_successes += 1,
            Reason::BeyondReach => figures.beyond_reach += 1,
            Reason::Exhausted => figures.exhausted += 1,
            Reason::NotBetter => figures.not_better += 1,
            Reason::Kept => figures.kept += 1,
            Reason::Better => figures.changed += 1,
        }
        if decision.kind != PlanKind::Fixed {
            figures.differing += 1;
            let time = |kind| {
                let plan = decision.alternatives.iter().find(|plan| plan.kind == kind);
                plan.expect("what was chosen was an alternative").time.predicted_ns
            };
            let gain_ns = time(PlanKind::Fixed) - time(decision.kind);
            figures.predicted_gain_us += (gain_ns / 1e3).max(0.0).round() as u64;
        }
    }

    fn trace(
        &mut self,
        wants: &[Want<'_>],
        problem: &Problem,
        decision: &Decision,
        picks: &[Option<usize>],
        is_followed: bool,
        now: Moment,
    ) {
        self.batches_made += 1;
        let batch = self.batches_made;
        let mut routes: Vec<TracedRoute> = Vec::new();
        for (want, choice) in wants.iter().zip(picks).filter_map(|(want, pick)| Some((want, (*pick)?))) {
            let route = want.choices[choice].route;
            let known = routes.iter_mut().find(|known| known.route == route);
            if let Some(known) = known {
                known.blocks += 1;
                known.bytes += want.bytes;
                continue;
            }
            let lane = problem.lanes.iter().find(|lane| lane.route == route);
            let price = lane.and_then(|lane| match lane.cost {
                Some(Cost::Seen(price)) => Some(price),
                _ => None,
            });
            let successes = price.map(|price| price.successes as u32);
            let (age, bytes, told) = (price.map(|price| price.age), want.bytes, want.choices[choice].told);
            routes.push(TracedRoute { route, blocks: 1, bytes, successes, age, told });
        }
        let traced = |plan: &Alternative| TracedPlan {
            kind: plan.kind,
            predicted: duration(plan.time.predicted_ns),
            margin: duration(plan.time.upper_ns - plan.time.predicted_ns),
        };
        if self.traces.len() == self.settings.traces_max {
            let oldest = self.traces.pop_front().expect("full");
            self.awaited.retain(|_, of| *of != oldest.batch);
        }
        self.traces.push_back(RouteTrace {
            batch,
            at: now,
            wanted: wants.len() as u32,
            eligible: picks.iter().flatten().count() as u32,
            alternatives: decision.alternatives.iter().map(traced).collect(),
            planned: decision.kind,
            reason: decision.reason,
            is_followed,
            routes,
            usable: 0,
            failed: 0,
            ready: Duration::ZERO,
            replans: [0; REPLANS.len()],
        });
        self.awaited.extend(wants.iter().map(|want| (want.copy, batch)));
    }

    /// A block was asked for, and that has ended, whatever comes next.
    pub fn on_trial(&mut self, trial: &Trial, now: Moment) {
        self.figures.outcomes += 1;
        self.figures.failures += u64::from(trial.outcome != TrialOutcome::Usable);
        if let Some(trace) = self.trace_of(trial.copy) {
            trace.on_replan(trial.outcome);
            let told =
                trace.routes.iter().find(|traced| traced.route == trial.route).map(|traced| traced.told);
            if let Some(told) = told {
                self.figures.ages.on_asked(&told, trial.outcome);
            }
        }
        let says_something = match trial.route {
            Route::Peer { source, .. } => is_alive(&self.members, &self.excluded, &source),
            Route::Local(_) => true,
            // Its cost is declared.
            Route::Recompute => false,
        };
        if self.settings.mode == Mode::Fixed || !says_something {
            return;
        }
        if !self.evidence.contains_key(&trial.route) && self.evidence.len() == self.settings.routes_max {
            let oldest = self.evidence.iter().min_by_key(|(route, seen)| (seen.used, **route));
            let oldest = *oldest.expect("full").0;
            self.evidence.remove(&oldest);
        }
        self.evidence.entry(trial.route).or_default().take(trial, &self.settings, now);
        self.figures.routes = self.evidence.len() as u64;
    }

    /// A block is there, or does not come.
    pub fn on_ended(&mut self, copy: CopyId, is_usable: bool, now: Moment) {
        let Some(batch) = self.awaited.remove(&copy) else { return };
        let trace = self.traces.iter_mut().find(|trace| trace.batch == batch).expect("awaited is traced");
        match is_usable {
            true => {
                trace.usable += 1;
                trace.ready = now - trace.at;
            }
            false => trace.failed += 1,
        }
        if trace.usable < trace.wanted {
            return;
        }
        // All of it came: it can be compared with what was predicted.
        let figures = &mut self.figures;
        let micros = |duration: Duration| duration.as_micros() as u64;
        if let Some(followed) = trace.predicted(trace.followed()) {
            figures.judged += 1;
            figures.within_margin += u64::from(trace.ready <= followed.predicted + followed.margin);
            figures.ages.on_judged(trace, followed.predicted);
        }
        if !trace.is_followed && trace.planned != PlanKind::Fixed {
            let planned = trace.predicted(trace.planned).expect("what was planned was priced");
            figures.regret_us += micros(trace.ready.saturating_sub(planned.predicted));
        }
    }

    fn trace_of(&mut self, copy: CopyId) -> Option<&mut RouteTrace> {
        let batch = *self.awaited.get(&copy)?;
        self.traces.iter_mut().find(|trace| trace.batch == batch)
    }

    /// A life of a node is over: what was seen of it says nothing any more. One that is no member's is late.
    pub fn on_excluded(&mut self, node: NodeId, incarnation: Incarnation) {
        if self.members.has(node, incarnation) {
            self.excluded.insert(node, incarnation);
            self.forget();
        }
    }

    /// This node's own life is over: what is asked now ends by that, which says nothing of anybody.
    pub fn on_fenced(&mut self) {
        self.members = MemberMap::default();
        self.forget();
    }

    /// Who is a member: what was seen of lives that are over is forgotten.
    pub fn on_members(&mut self, members: &MemberMap) {
        self.members = members.clone();
        self.excluded.retain(|node, incarnation| members.has(*node, *incarnation));
        self.forget();
    }

    /// Forgets what is of lives that are over.
    fn forget(&mut self) {
        let Planner { evidence, incumbents, members, excluded, .. } = self;
        let lives = |route: &Route| match route {
            Route::Peer { source, .. } => is_alive(members, excluded, source),
            Route::Local(_) | Route::Recompute => true,
        };
        evidence.retain(|route, _| lives(route));
        incumbents.retain(|(routes, _)| routes.iter().all(lives));
        self.figures.routes = self.evidence.len() as u64;
    }

    /// What the room has counted.
    #[must_use]
    pub fn figures(&self) -> &PlannerFigures {
        &self.figures
    }

    /// The latest batches, oldest first.
    pub fn traces(&self) -> impl ExactSizeIterator<Item = &RouteTrace> {
        self.traces.iter()
    }

    /// Bounds that hold between any two calls.
    ///
    /// # Panics
    /// If one does not.
    pub fn assert_invariants(&self) {
        let settings = &self.settings;
        assert!(self.evidence.len() <= settings.routes_max, "routes keep their bound");
        assert!(self.evidence.values().all(|seen| seen.len() <= settings.samples_max), "rings keep theirs");
        assert!(self.incumbents.len() <= settings.incumbents_max, "incumbents keep their bound");
        assert!(self.traces.len() <= settings.traces_max, "traces keep their bound");
        let most = settings.alternatives_max;
        assert!(self.traces.iter().all(|trace| trace.alternatives.len() <= most), "so do alternatives");
        let open: u32 = self.traces.iter().map(|trace| trace.wanted - trace.usable - trace.failed).sum();
        assert_eq!(
            open as usize,
            self.awaited.len(),
            "each block of a traced batch is awaited until it ends"
        );
        let lives = |route: &Route| match route {
            Route::Peer { source, .. } => is_alive(&self.members, &self.excluded, source),
            Route::Local(_) | Route::Recompute => true,
        };
        assert!(self.evidence.keys().all(lives), "nothing is remembered of a life that is over");
    }
}

/// Whether a source's life goes on, as far as is known.
fn is_alive(members: &MemberMap, excluded: &BTreeMap<NodeId, Incarnation>, source: &SourceStream) -> bool {
    let SourceStream { node, incarnation, .. } = *source;
    members.has(node, incarnation) && excluded.get(&node) != Some(&incarnation)
}

fn duration(nanoseconds: f64) -> Duration {
    Duration::from_nanos(nanoseconds.max(0.0).round() as u64)
}
