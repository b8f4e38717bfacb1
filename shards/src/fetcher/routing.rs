//! Which candidate is next: the first that is a member's, does not rest and is not left alone ([`super::guard`]).
//! Whoever begins a fetch may have put another one first ([`crate::planner`]); what is left keeps its order (chapter 3.5).

use orbitkv_wire::engine::answers::BlockOutcome;
use orbitkv_wire::inventory::SourceStream;

use super::lines::{Line, Reach};
use super::order::{Attempt, Place, Route};
use super::{Fetcher, Timer};
use crate::planner::Load;
use crate::residents::CopyId;
use crate::resilience::deadline::Step;
use crate::resilience::gate::Class;
use crate::resilience::retry;
use crate::time::Moment;

impl Fetcher {
    /// Whether anybody may be asked.
    pub(super) fn admits(&self) -> bool {
        self.local.is_some() && self.is_valid
    }

    /// Whether this very life of a node is a member, as far as is known, and has the shard.
    pub(super) fn is_usable(&self, source: &SourceStream) -> bool {
        let SourceStream { node, epoch, incarnation, shard } = *source;
        let is_over = self.excluded.get(&node) == Some(&incarnation);
        self.members.get(node).is_some_and(|member| {
            let is_same = (member.epoch, member.incarnation) == (epoch, incarnation);
            is_same && shard.0 < member.shards && !is_over
        })
    }

    /// What a source has to do for this core already.
    #[must_use]
    pub fn load(&self, source: &SourceStream, now: Moment) -> Load {
        let is_left_alone = !self.guard.admits(source, Class::Demand, now);
        let line = self.by_source.get(source).map(|id| &self.lines[id]);
        Load {
            ahead_bytes: line.map_or(0, Line::ahead_bytes),
            rests: is_left_alone || line.is_some_and(|line| line.rests_until(now).is_some()),
        }
    }

    /// Gives routes to fetches that look for one.
    pub(super) fn place(&mut self, now: Moment) {
        for _ in 0..self.settings.placed_per_turn {
            let Some((_, _, copy)) = self.unplaced.pop_first() else { return };
            self.route(copy, now);
        }
    }

    fn route(&mut self, copy: CopyId, now: Moment) {
        let mut fetch = self.fetches.remove(&copy).expect("a fetch that looks for a route");
        fetch.clock.enter(Step::Wait, now);
        fetch.routes.retain(|route| self.is_usable(&route.candidate.source));
        let class = fetch.order.class;
        let may_try = self.admits() && self.routes(class).allows(retry::Attempt(fetch.tried));
        let rests = |route: &Route| self.rests_until(route, now);
        let is_asked = |route: &Route| self.guard.admits(&route.candidate.source, class, now);
        let next = (fetch.routes.iter().position(|route| is_asked(route) && rests(route).is_none()))
            .filter(|_| may_try);
        let asked = fetch.routes.iter().filter(|route| is_asked(route));
        let wake = asked.clone().filter_map(rests).min().filter(|_| may_try);
        self.figures.breaker_refusals += (fetch.routes.len() - asked.count()) as u64;

        let placed = next.and_then(|at| Some((at, self.line_to(fetch.routes[at].candidate.source, now)?)));
        let turn = fetch.turn();
        let wake = match (placed, next) {
            (Some((at, line)), _) if self.may_ask(&mut fetch, now) => {
                let candidate = fetch.routes.remove(at).expect("just found").candidate;
                fetch.current = Some(candidate);
                fetch.probe = self.guard.enter(&candidate.source, now);
                let to = &self.lines[&line];
                let (ahead_bytes, is_warm) = (to.ahead_bytes(), matches!(to.reach, Reach::Open(_)));
                // One that is tried again another way, or was put back, goes on.
                let same = fetch.attempt.filter(|attempt| attempt.candidate == candidate);
                let new = Attempt { candidate, since: now, ahead_bytes, is_warm };
                // It compares with nothing if its source was lost meanwhile.
                fetch.attempt =
                    Some(same.map_or(new, |same| Attempt { is_warm: same.is_warm && is_warm, ..same }));
                fetch.place = Place::Queued(line);
                self.figures.rerouted += u64::from(fetch.tried > 0);
                self.fetches.insert(copy, fetch);
                self.join_queue(line, turn, now);
                return;
            }
            (Some(_), _) => None,
            // All connections are of use to somebody.
            (None, Some(_)) => Some(now + self.settings.redial_min),
            (None, None) => wake,
        };
        let is_crowded = next.is_some() && wake.is_some();
        // Whose sources rest for longer than it has time is out of time then, and has missed nothing.
        let is_known = is_crowded || fetch.outcome() != BlockOutcome::Missing;
        match wake.filter(|wake| *wake < fetch.deadline || !is_known) {
            Some(wake) => {
                fetch.place = Place::Resting(wake);
                self.timers.insert((wake, Timer::Retry(copy)));
                self.fetches.insert(copy, fetch);
            }
            None => {
                let outcome = if is_crowded { BlockOutcome::Busy } else { fetch.outcome() };
                self.fetches.insert(copy, fetch);
                self.fail(copy, outcome);
            }
        }
    }

    /// Until when a route is not to be tried.
    pub(super) fn rests_until(&self, route: &Route, now: Moment) -> Option<Moment> {
        let line = self.by_source.get(&route.candidate.source).map(|id| &self.lines[id]);
        let asked = (route.not_before > now).then_some(route.not_before);
        asked.max(line.and_then(|line| line.rests_until(now)))
    }
}
