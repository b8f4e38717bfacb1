//! Whether a source is asked at all, and whether a block is asked for once more: a breaker for each source shard
//! and one budget of extra asks for the room (chapter 5, patterns 2 and 4).
//!
//! A call is an operation: it begins with its Authorize and has failed if its source broke off, was lost, sent
//! wrong bytes, or let nothing come for the budget of a call. A typed answer is a success, a refusal too. What a call
//! came to is judged in the next turn, which has the time for it. Silence counts as far as all that has come was read
//! ([`Fetcher::on_read`]): a core that stood still itself blames nobody for it.
//!
//! A source whose breaker is open is no route: the next candidate is, or the fetch fails at once. Nothing waits for
//! it, and nothing is learned of what it has, so a miss that comes of it is told as one and never as an absence. When
//! its pause is over one fetch is the probe, alone in its operation.
//!
//! State is of a source's life: a later one begins without.

use std::collections::BTreeMap;
use std::time::Duration;

use orbitkv_wire::bounds::GRANT_KEYS_MAX;
use orbitkv_wire::inventory::SourceStream;

use super::effect::FetcherEffect;
use super::operation::Operation;
use super::order::{Fetch, Place};
use super::{Fetcher, Timer};
use crate::residents::CopyId;
use crate::resilience::breaker::{
    self, Admission, Breaker, Change, OPEN_FOR, Outcome, Phase, Rule, Ticket, WINDOW_CALLS_MAX,
};
use crate::resilience::retry::{Attempt, BUDGET_WINDOW, RetryBudget, Span};
use crate::time::Moment;

/// Extra asks that a quiet node may make in a window however few first ones there were: what one call carried goes on
/// elsewhere when its source dies.
pub const EXTRA_ASKS_LEAST: u64 = GRANT_KEYS_MAX as u64;

/// Part of a call's budget in which nothing came before it was given up, after which that is its source's doing: who
/// asked had less time than the budget.
pub(super) const PATIENCE_PART: u32 = 10;

/// When sources are left alone, and how much is asked for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardSettings {
    /// Percentage of the last calls that must have failed for the breaker of a source to open, at most 100. With 0
    /// there are no breakers.
    pub failed_percent: u32,
    /// Calls that are looked back on, 1 to [`WINDOW_CALLS_MAX`].
    pub window_calls: u32,
    /// How long a source is not asked before it is probed.
    pub open_for: Duration,
    /// Asks for blocks whose call has failed, in percent of first asks within 10 s; but for
    /// [`EXTRA_ASKS_LEAST`].
    pub extra_percent: u32,
}

impl Default for GuardSettings {
    fn default() -> GuardSettings {
        GuardSettings {
            failed_percent: 50,
            window_calls: breaker::WINDOW_CALLS,
            open_for: OPEN_FOR,
            extra_percent: 10,
        }
    }
}

impl GuardSettings {
    /// # Panics
    /// If a bound is not kept.
    pub(super) fn assert_valid(&self) {
        assert!(self.failed_percent <= 100, "a percentage");
        assert!((1..=WINDOW_CALLS_MAX).contains(&self.window_calls), "a window of calls");
    }

    fn extra_share(&self) -> f64 {
        f64::from(self.extra_percent) / 100.0
    }

    /// When a breaker opens; none if there are no breakers.
    fn rule(&self) -> Option<Rule> {
        let threshold = f64::from(self.failed_percent) / 100.0;
        (self.failed_percent > 0).then_some(Rule::Share { window_calls: self.window_calls, threshold })
    }
}

/// What a call came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Answered,
    Failed,
    /// Whoever wanted it wants it no more, and nothing that was read has come of it since then.
    GivenUp {
        quiet_since: Moment,
    },
    /// It ended for reasons of ours.
    Ours,
}

/// A probe that waits in its fetch to be asked.
#[derive(Debug)]
pub(super) struct Probe {
    pub ticket: Ticket,
    /// When its fetch joined its source's queue.
    pub since: Moment,
}

/// How the breaker of a source stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerStanding {
    /// The source shard, in one life of its node.
    pub source: SourceStream,
    /// How it stands.
    pub phase: Phase,
    /// How often it has opened.
    pub opens: u64,
}

/// Breakers and budget of one room.
#[derive(Debug)]
pub(super) struct Guard {
    settings: GuardSettings,
    breakers: BTreeMap<SourceStream, Breaker>,
    extra_asks: RetryBudget,
    /// What calls came to since the last turn.
    fates: Vec<(SourceStream, Ticket, Fate)>,
}

impl Guard {
    pub fn new(settings: GuardSettings) -> Guard {
        settings.assert_valid();
        let share = settings.extra_share();
        let extra_asks = RetryBudget::new(share, Span::Sliding(BUDGET_WINDOW)).or_at_least(EXTRA_ASKS_LEAST);
        Guard { settings, breakers: BTreeMap::new(), extra_asks, fates: Vec::new() }
    }

    /// Whether a fetch may be routed to a source.
    pub fn admits(&self, source: &SourceStream, now: Moment) -> bool {
        self.breakers.get(source).is_none_or(|breaker| !breaker.is_open(now))
    }

    /// A fetch is routed to a source that admits it; what it carries there.
    pub fn enter(&mut self, source: &SourceStream, now: Moment) -> Option<Probe> {
        let breaker = self.breakers.get_mut(source)?;
        if breaker.phase(now) == Phase::Closed {
            return None;
        }
        match breaker.admit(now) {
            Admission::Probe(ticket) => Some(Probe { ticket, since: now }),
            admission => panic!("a breaker that is not closed admits a probe, or nobody: {admission:?}"),
        }
    }

    /// A call without a probe goes out; nothing if there are no breakers.
    fn call(&mut self, source: SourceStream, now: Moment) -> Option<Ticket> {
        let (rule, open_for) = (self.settings.rule()?, self.settings.open_for);
        match self.breakers.entry(source).or_insert_with(|| Breaker::new(rule, open_for)).admit(now) {
            Admission::Pass(ticket) | Admission::Probe(ticket) => Some(ticket),
            Admission::Reject { .. } => None,
        }
    }

    /// Other settings from now on. A source that is left alone stays so until its pause is over, unless there are no
    /// breakers any more: then all may be asked.
    fn retune(&mut self, settings: GuardSettings) {
        settings.assert_valid();
        for breaker in self.breakers.values_mut() {
            match settings.rule() {
                Some(rule) => breaker.retune(rule, settings.open_for),
                None => breaker.close(),
            }
        }
        self.extra_asks.set_share(settings.extra_share());
        self.settings = settings;
    }

    pub fn note(&mut self, source: SourceStream, ticket: Ticket, fate: Fate) {
        self.fates.push((source, ticket, fate));
    }

    /// Sources that wait for the word of a probe.
    pub fn probed(&self) -> impl Iterator<Item = &SourceStream> {
        self.breakers.iter().filter(|(_, breaker)| breaker.is_probing()).map(|(source, _)| source)
    }

    /// Whether what a call came to is not judged yet.
    pub fn has_fate_of(&self, source: &SourceStream) -> bool {
        self.fates.iter().any(|(of, ..)| of == source)
    }
}

impl Fetcher {
    /// Other settings from now on, for what is under way, too.
    ///
    /// # Panics
    /// If a bound is not kept.
    pub fn retune(&mut self, stall_wait: Duration, guard: GuardSettings) {
        self.guard.retune(guard);
        if guard.failed_percent == 0 {
            // Nobody is tried alone any more.
            self.fetches.values_mut().for_each(|fetch| fetch.probe = None);
        }
        self.settings.stall_wait = stall_wait;
        self.settings.guard = guard;
        for (&number, operation) in &mut self.operations {
            self.timers.remove(&(operation.stall_due, Timer::Stall(number)));
            operation.stall_due = operation.progressed + stall_wait;
            self.timers.insert((operation.stall_due, Timer::Stall(number)));
        }
        self.is_due = true;
    }

    /// Sources that are left alone or have been.
    pub fn breakers(&self, now: Moment) -> impl Iterator<Item = BreakerStanding> {
        let told = self.guard.breakers.iter().filter(|(_, breaker)| breaker.opens() > 0);
        told.map(move |(source, breaker)| BreakerStanding {
            source: *source,
            phase: breaker.phase(now),
            opens: breaker.opens(),
        })
    }

    /// Whether a fetch may be asked for now: for the first time, again after an answer that says so, or again after a
    /// failure and within the budget.
    pub(super) fn may_ask(&mut self, fetch: &mut Fetch, now: Moment) -> bool {
        if !fetch.was_placed {
            fetch.was_placed = true;
            self.figures.first_asks += 1;
            self.guard.extra_asks.on_call(Attempt(0), now);
        }
        if fetch.owes && !self.guard.extra_asks.allow(now) {
            self.figures.extra_asks_refused += 1;
            return false;
        }
        self.figures.extra_asks += u64::from(fetch.owes);
        fetch.owes = false;
        true
    }

    /// The ticket of a call that goes out now: that of the probe, if a fetch of it carries one.
    pub(super) fn ticket_of(
        &mut self,
        source: SourceStream,
        probe: Option<Probe>,
        now: Moment,
    ) -> Option<Ticket> {
        self.figures.breaker_probes += u64::from(probe.is_some());
        probe.map(|probe| probe.ticket).or_else(|| self.guard.call(source, now))
    }

    /// Notes what a call came to; only the first word about it counts.
    pub(super) fn judge(&mut self, number: u64, fate: Fate) {
        let Some(Operation { line, call, .. }) = self.operations.get_mut(&number) else { return };
        let Some(ticket) = call.take() else { return };
        let source = self.lines[line].source;
        self.guard.note(source, ticket, fate);
        self.is_due = true;
    }

    /// A fetch leaves the queue of its source without having been asked for: if it was the probe, that has its fate.
    pub(super) fn end_probe(&mut self, copy: CopyId, fate: impl Fn(&Probe) -> Fate) {
        let fetch = self.fetches.get_mut(&copy).expect("a queued fetch");
        let Some(probe) = fetch.probe.take() else { return };
        let source = fetch.current.expect("a fetch that is queued has a route").source;
        let fate = fate(&probe);
        self.guard.note(source, probe.ticket, fate);
        self.is_due = true;
    }

    /// A source could not be dialed: a call that failed, whatever waited for it.
    pub(super) fn on_unreachable(&mut self, source: SourceStream, now: Moment) {
        if let Some(ticket) = self.guard.call(source, now) {
            self.guard.note(source, ticket, Fate::Failed);
        }
    }

    /// Judges the calls that have ended. What waits at a source that is left alone from now on goes on elsewhere.
    pub(super) fn settle_calls(&mut self, now: Moment) {
        for (source, ticket, fate) in std::mem::take(&mut self.guard.fates) {
            // Its life is over.
            let Some(breaker) = self.guard.breakers.get_mut(&source) else { continue };
            let patience = self.settings.stall_wait / PATIENCE_PART;
            let outcome = match fate {
                Fate::Answered => Outcome::Success,
                Fate::Failed => Outcome::Failure,
                Fate::GivenUp { quiet_since } if self.heard.since(quiet_since) >= patience => {
                    Outcome::Failure
                }
                Fate::GivenUp { .. } | Fate::Ours => {
                    breaker.abandon(ticket);
                    continue;
                }
            };
            self.figures.calls_answered += u64::from(outcome == Outcome::Success);
            self.figures.calls_failed += u64::from(outcome == Outcome::Failure);
            let is_probe = breaker.phase(now) != Phase::Closed;
            let Some(change) = breaker.record(ticket, outcome, now) else { continue };
            if matches!(change, Change::Opened { .. }) {
                self.figures.breaker_opens += 1;
                self.clear_queue(&source);
            }
            self.effects.push_back(FetcherEffect::Breaker { source, change, is_probe });
        }
    }

    /// Forgets sources that are no members any more.
    pub(super) fn forget_breakers(&mut self) {
        let sources = self.guard.breakers.keys().filter(|source| !self.is_usable(source));
        for source in sources.copied().collect::<Vec<_>>() {
            self.guard.breakers.remove(&source);
        }
    }

    fn clear_queue(&mut self, source: &SourceStream) {
        let Some(&line) = self.by_source.get(source) else { return };
        for turn in self.take_queue(line) {
            self.put_back(turn);
        }
    }

    /// A probe is out exactly where a breaker waits for one.
    pub(super) fn assert_probes(&self) {
        for source in self.guard.probed() {
            let waits = self.fetches.values().any(|fetch| {
                fetch.probe.is_some() && fetch.current.is_some_and(|current| current.source == *source)
            });
            let is_out = self
                .operations
                .values()
                .any(|operation| operation.call.is_some() && self.lines[&operation.line].source == *source);
            assert!(waits || is_out || self.guard.has_fate_of(source), "a probe is somewhere");
        }
        let probes = self.fetches.values().filter(|fetch| fetch.probe.is_some());
        assert!(
            probes.clone().all(|fetch| matches!(fetch.place, Place::Queued(_))),
            "a probe waits in a queue"
        );
        for fetch in probes {
            let source = fetch.current.expect("it is queued").source;
            let line = &self.lines[&self.by_source[&source]];
            assert_eq!(line.queue.len(), 1, "a probe goes alone");
        }
    }
}
