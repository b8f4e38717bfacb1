//! Which step of its recovery a fetch is at, what each has used of its time, and which is blamed when that is over
//! (chapter 5, pattern 5).
//!
//! The time of a fetch is divided over authorize, prepare, transfer and install. What is waited before anybody is asked
//! (for a route, a connection, our own window or rate) has no share and is counted apart, so that no source is blamed
//! for it. Two limits end a step early: the budget of a call, which is that of every step, and the share of authorize,
//! if it is shorter and somebody else may be asked: an answer is a look into a table, and who does not give it in its
//! share of the time is not waited for. A share of the others gives nothing up: their work is under way, and would be
//! begun anew elsewhere. Installing takes no time of its own, for the checksum is computed as the bytes come.

use std::time::Duration;

use orbitkv_wire::inventory::SourceStream;

use super::Fetcher;
use super::effect::FetcherEffect;
use super::guard::PATIENCE_PART;
use super::operation::Talk;
use super::order::{Fetch, Setback};
use crate::residents::CopyId;
use crate::resilience::deadline::{RecoveryTimer, Step, StepTimer};
use crate::resilience::gate::Class;
use crate::resilience::retry::Attempt;
use crate::time::Moment;

/// The steps of one fetch in time.
#[derive(Debug)]
pub(super) struct StepClock {
    timer: RecoveryTimer,
    step: Step,
    /// When it began.
    since: Moment,
}

impl StepClock {
    /// A fetch that waits from `now` on and has until `deadline`.
    pub fn new(deadline: Moment, now: Moment) -> StepClock {
        StepClock { timer: StepTimer::of_recovery(deadline - now), step: Step::Wait, since: now }
    }

    /// Somebody waits for the fetch from `now` on, and until `deadline`: what was used before took nobody's time.
    pub fn begin_anew(&mut self, deadline: Moment, now: Moment) {
        *self = StepClock { step: self.step, ..StepClock::new(deadline, now) };
    }

    /// Somebody waits for so much longer.
    pub fn extend(&mut self, more: Duration) {
        self.timer.extend(more);
    }

    /// The fetch is at this step now; nothing happens if it was there.
    pub fn enter(&mut self, step: Step, now: Moment) {
        if step != self.step {
            self.timer.on_done(self.step as usize, now - self.since);
            (self.step, self.since) = (step, now);
        }
    }

    /// Its request is kept back where it is carried: until it goes out it has only waited.
    pub fn hold_back(&mut self) {
        self.step = Step::Wait;
    }

    /// When its step has used its share, which is no less than `least`.
    fn limit(&self, least: Duration) -> Moment {
        self.since + self.timer.limit(self.step as usize).max(least)
    }

    /// Its time is over: the step that used most of it, how long, and the one that it was at.
    fn blame(&mut self, now: Moment) -> (Step, Duration, Step) {
        self.timer.on_done(self.step as usize, now - self.since);
        self.since = now;
        let consumer = self.timer.consumer();
        (Step::ALL[consumer], self.timer.used(consumer), self.step)
    }
}

impl Fetcher {
    /// The fetch of a part, if it has one, is at this step now.
    pub(super) fn enter_step(&mut self, number: u64, index: usize, step: Step, now: Moment) {
        if let Some(copy) = self.operations[&number].parts[index].copy {
            self.fetches.get_mut(&copy).expect("a part is of a fetch").clock.enter(step, now);
        }
    }

    /// The time of a fetch that somebody waits for is over: the step that used it is counted and told. What nobody
    /// waits for waits by right.
    pub(super) fn blame(&mut self, copy: CopyId, now: Moment) {
        let fetch = self.fetches.get_mut(&copy).expect("a fetch that has not ended");
        if fetch.order.class == Class::Background {
            return;
        }
        let (consumer, used, at) = fetch.clock.blame(now);
        let (block, source) = (fetch.order.block, fetch.current.map(|candidate| candidate.source));
        self.figures.out_of_time[consumer as usize] += 1;
        self.effects.push_back(FetcherEffect::OutOfTime { copy, block, source, consumer, used, at });
    }

    /// Least time in which an answer is waited for, whatever share it has: what is called silence.
    pub(super) fn least_patience(&self) -> Duration {
        self.settings.stall_wait / PATIENCE_PART
    }

    /// When it is looked at next whether a fetch of an operation that is not answered, and that has another route, has
    /// waited for its share. A fetch is looked at once.
    pub(super) fn next_limit(&self, number: u64, now: Moment) -> Option<Moment> {
        let operation = &self.operations[&number];
        if operation.talk == Talk::Answered {
            return None;
        }
        let fetches = operation.parts.iter().filter_map(|part| Some(&self.fetches[&part.copy?]));
        let others = fetches.filter(|fetch| !fetch.routes.is_empty());
        let looks = |fetch: &Fetch| match fetch.clock.limit(self.least_patience()) {
            limit if limit > now => Some(limit),
            // The answer may be here and not read yet.
            limit if limit > self.heard => Some(now + self.least_patience()),
            _ => None,
        };
        others.filter_map(looks).min()
    }

    /// Fetches that have waited for an answer for their share of the time go on elsewhere, if they may be asked for
    /// once more. An operation that nobody wants any more then is cancelled.
    pub(super) fn leave_silent(&mut self, number: u64, now: Moment) {
        if self.operations[&number].talk != Talk::Asked {
            return;
        }
        let source = self.lines[&self.operations[&number].line].source;
        let mut has_left = false;
        for index in 0..self.operations[&number].parts.len() {
            let Some(copy) = self.operations[&number].parts[index].copy else { continue };
            let fetch = &self.fetches[&copy];
            let is_over = fetch.clock.limit(self.least_patience()) <= self.heard;
            if !is_over || !self.has_route_beside(fetch, &source, now) {
                continue;
            }
            if !self.guard.allow_extra(now) {
                // It waits on, which is better than a miss.
                break;
            }
            self.figures.extra_asks += 1;
            self.figures.left_silent += 1;
            self.fail_part(number, index, Setback::Lost);
            self.fetches.get_mut(&copy).expect("it looks for a route").owes = false;
            has_left = true;
        }
        if has_left {
            self.settle(number);
        }
    }

    /// Whether a fetch could be asked for now at another source than this.
    fn has_route_beside(&self, fetch: &Fetch, source: &SourceStream, now: Moment) -> bool {
        let class = fetch.order.class;
        let mut others = fetch.routes.iter().filter(|route| route.candidate.source != *source);
        let may_try = self.admits() && self.routes(class).allows_after(Attempt(fetch.tried));
        may_try
            && others.any(|route| {
                let other = &route.candidate.source;
                let is_asked = self.is_usable(other) && self.guard.admits(other, class, now);
                is_asked && self.rests_until(route, now).is_none()
            })
    }
}
