//! What is given up when there is too much: first what nobody waits for, when more than half of the fetches that there
//! may be have not ended or demand has waited too long; demand only when there are as many as there may be, for its
//! own deadline ends it. What frees, releases and cancels, passes no queue here: it is an effect at once.

use std::time::Duration;

use orbitkv_wire::engine::answers::BlockOutcome;

use super::Fetcher;
use super::background::is_background;
use super::order::Turn;
use crate::residents::CopyId;
use crate::resilience::gate::{Class, Verdict};
use crate::time::Moment;

impl Fetcher {
    /// Whether one more fetch is not taken.
    pub(super) fn is_shed(&mut self, class: Class) -> bool {
        let verdict = self.shedder.admit(class, 1, self.fetches.len() as u64, Duration::ZERO);
        self.count_shed(class, verdict);
        verdict != Verdict::Admit
    }

    /// Gives up what nobody waits for and has not been asked for, if it would not be taken now; true if more of it is to
    /// be given up now. What rests waits for its sources, not behind demand.
    pub(super) fn shed_waiting(&mut self, now: Moment) -> bool {
        self.sheds_at = None;
        if !self.background_waits() {
            return false;
        }
        let Some(since) = self.demand_waits_since() else { return false };
        let (class, queued) = (Class::Background, self.fetches.len() as u64);
        let verdict = self.shedder.admit(class, 0, queued, now.since(since));
        if verdict == Verdict::Admit {
            let longest = self.shedder.age_max(class);
            self.sheds_at = longest.map(|longest| since + longest + Duration::from_nanos(1));
            return false;
        }
        let queues = self.lines.values().map(|line| &line.queue).chain([&self.unplaced]);
        let waiting = queues.flat_map(|queue| queue.iter().rev().take_while(|turn| is_background(**turn)));
        let waiting: Vec<CopyId> = waiting.map(|turn| turn.2).take(self.settings.placed_per_turn).collect();
        for copy in waiting {
            self.count_shed(class, verdict);
            self.fail(copy, BlockOutcome::Busy);
        }
        self.background_waits()
    }

    /// Since when the head of a queue waits that somebody waits for; the one that waits for longest.
    fn demand_waits_since(&self) -> Option<Moment> {
        let heads = self.lines.values().map(|line| line.queue.first()).chain([self.unplaced.first()]);
        let demand = heads.flatten().filter(|turn| !is_background(**turn));
        demand.map(|turn| self.fetches[&turn.2].since).min()
    }

    fn background_waits(&self) -> bool {
        let waits = |turn: Option<&Turn>| turn.is_some_and(|turn| is_background(*turn));
        let in_a_queue =
            || waits(self.unplaced.last()) || self.lines.values().any(|line| waits(line.queue.last()));
        self.background > 0 && in_a_queue()
    }

    fn count_shed(&mut self, class: Class, verdict: Verdict) {
        let figures = &mut self.figures;
        *match (class, verdict) {
            (_, Verdict::Admit) => return,
            (Class::Background, Verdict::ShedForLength) => &mut figures.shed_background_length,
            (Class::Background, Verdict::ShedForAge) => &mut figures.shed_background_age,
            (Class::Release | Class::Demand, _) => &mut figures.shed_demand_length,
        } += 1;
    }
}
