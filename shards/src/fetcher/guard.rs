//! Whether a source is asked at all, and whether a block is asked for once more: a breaker for each source shard
//! and this core's part of the node's budget of extra asks (chapter 5, patterns 2 and 4).
//!
//! A call is an operation: it begins with its Authorize and has failed if its source broke off, was lost, sent
//! wrong bytes, or let nothing come for the budget of a call. A typed answer is a success, a refusal too. What a call
//! came to is judged in the next turn, which has the time for it. Silence counts as far as all that has come was read
//! ([`Fetcher::on_read`]): a core that stood still itself blames nobody for it.
//!
//! A source whose breaker is open is no route: the next candidate is, or the fetch fails at once. Nothing waits for
//! it, and nothing is learned of what it has, so a miss that comes of it is told as one and never as an absence. When
//! its pause is over one fetch that somebody waits for is the probe, alone in its operation.
//!
//! State is of a source's life: a later one begins without.

use std::collections::BTreeMap;
use std::time::Duration;

use orbitkv_wire::inventory::SourceStream;

use super::effect::FetcherEffect;
use super::operation::{Operation, Talk};
use super::order::{Fetch, Place};
use super::{Fetcher, Timer};
use crate::residents::CopyId;
use crate::resilience::breaker::{self, Admission, Breaker, Change, OPEN_FOR, Outcome, Phase, Rule, Ticket};
use crate::resilience::gate::Class;
use crate::resilience::retry::{Attempt, BUDGET_WINDOW, EveryWindow, RetryBudget};
use crate::resilience::signature::Ending;
use crate::time::Moment;

/// Extra asks that a node may make in a window however few first ones there were: half of what a call carries at most
/// goes on elsewhere when the only source that a quiet node asks dies, the head of a prefix first.
pub const EXTRA_BURST: u32 = 64;

/// Part of a call's budget in which nothing came before it was given up, after which that is its source's doing: who
/// asked had less time than the budget.
pub(super) const PATIENCE_PART: u32 = 10;

/// The same once it has answered: what it sends may wait there for others. Half of the usual budget is twice the age at
/// which a stream goes before the others.
const SENDING_PATIENCE_PART: u32 = 2;

/// When sources are left alone, and how much is asked for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardSettings {
    /// Percentage of the last calls that must have failed for the breaker of a source to open, at most 100. With 0
    /// there are no breakers.
    pub failed_percent: u32,
    /// Calls that are looked back on, 1 to [`breaker::WINDOW_CALLS_MAX`].
    pub window_calls: u32,
    /// How long a source is not asked before it is probed.
    pub open_for: Duration,
    /// Asks for blocks whose call has failed, in thousandths of the first asks of any window of less than 10 s.
    pub extra_permille: u32,
    /// Such asks in a window of few first ones; with 0 there are none at all. See [`EveryWindow`].
    pub extra_burst: u32,
}

impl Default for GuardSettings {
    fn default() -> GuardSettings {
        GuardSettings {
            failed_percent: 50,
            window_calls: breaker::WINDOW_CALLS,
            open_for: OPEN_FOR,
            extra_permille: 100,
            extra_burst: EXTRA_BURST,
        }
    }
}

impl GuardSettings {
    /// The part of a node's guard that one of its cores keeps.
    ///
    /// No core knows what another asks for, and what is bounded on each is a share or a burst, whichever is more. So that
    /// the sum is the node's share or its burst, whichever is more, and not both together, several cores have
    /// half of each: half of one number and half of another are never more than the greater of the two. The half of the
    /// burst is divided, but for one that each core has at least: the node's burst is that of its cores twice.
    #[must_use]
    pub fn of_core(self, core: u16, cores: u16) -> GuardSettings {
        if cores == 1 {
            return self;
        }
        let (core, cores, half) = (u32::from(core), u32::from(cores), self.extra_burst / 2);
        let part = half / cores + u32::from(core < half % cores);
        let extra_burst = part.max(self.extra_burst.min(1));
        GuardSettings { extra_permille: self.extra_permille / 2, extra_burst, ..self }
    }

    /// When a breaker opens; none if there are no breakers.
    ///
    /// # Panics
    /// If a bound is not kept.
    fn rule(&self) -> Option<Rule> {
        Rule::of_percent(self.failed_percent, self.window_calls)
    }
}

/// What a call came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Answered {
        /// Whether most of what it was asked for was still there.
        is_fresh: bool,
    },
    /// Its source broke it off, or sent what is wrong.
    Broken,
    /// Nothing came for the budget of a call, or nobody answered a dial.
    Silent,
    /// Whoever wanted it wants it no more, and nothing that was read has come of it since then.
    GivenUp {
        quiet_since: Moment,
        /// Whether its source has taken it in.
        has_answered: bool,
    },
    /// It ended for reasons of ours.
    Ours,
}

/// A call that is out, until it is known what it came to.
#[derive(Debug)]
pub(super) struct Call {
    /// Its breaker's; none without breakers.
    ticket: Option<Ticket>,
    asked: Moment,
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
    /// When a breaker opens; none if there are no breakers.
    rule: Option<Rule>,
    open_for: Duration,
    breakers: BTreeMap<SourceStream, Breaker>,
    extra_asks: RetryBudget,
    /// What calls came to since the last turn.
    fates: Vec<(SourceStream, Call, Fate)>,
}

impl Guard {
    pub fn new(settings: GuardSettings) -> Guard {
        let (rule, open_for) = (settings.rule(), settings.open_for);
        let every = EveryWindow::new(settings.extra_permille, settings.extra_burst, BUDGET_WINDOW);
        let extra_asks = RetryBudget::EveryWindow(every);
        Guard { rule, open_for, breakers: BTreeMap::new(), extra_asks, fates: Vec::new() }
    }

    /// Whether a fetch of this class may be routed to a source. What nobody waits for is no probe: it would wait behind
    /// all that somebody does, which is turned away meanwhile.
    pub fn admits(&self, source: &SourceStream, class: Class, now: Moment) -> bool {
        self.breakers.get(source).is_none_or(|breaker| match class {
            Class::Background => breaker.phase(now) == Phase::Closed,
            Class::Release | Class::Demand => !breaker.is_open(now),
        })
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
        let (rule, open_for) = (self.rule?, self.open_for);
        match self.breakers.entry(source).or_insert_with(|| Breaker::new(rule, open_for)).admit(now) {
            Admission::Pass(ticket) | Admission::Probe(ticket) => Some(ticket),
            Admission::Reject { .. } => None,
        }
    }

    /// Other settings from now on. A source that is left alone stays so until its pause is over, unless there are no
    /// breakers any more: then all may be asked.
    fn retune(&mut self, settings: GuardSettings) {
        (self.rule, self.open_for) = (settings.rule(), settings.open_for);
        for breaker in self.breakers.values_mut() {
            match self.rule {
                Some(rule) => breaker.retune(rule, settings.open_for),
                None => breaker.close(),
            }
        }
        self.extra_asks.set_share(settings.extra_permille);
    }

    pub fn note(&mut self, source: SourceStream, call: Call, fate: Fate) {
        self.fates.push((source, call, fate));
    }

    /// Whether a block may be asked for once more; then it is counted.
    pub fn allow_extra(&mut self, now: Moment) -> bool {
        self.extra_asks.allow(now)
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
            // Somebody's share may be over earlier: then that is when it looks first.
            operation.stall_due = (operation.progressed + stall_wait).min(operation.stall_due);
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
            self.guard.extra_asks.on_call(Attempt::default());
        }
        if fetch.owes && !self.guard.allow_extra(now) {
            self.figures.extra_asks_refused += 1;
            return false;
        }
        self.figures.extra_asks += u64::from(fetch.owes);
        fetch.owes = false;
        true
    }

    /// A call that goes out now: the probe, if a fetch of it carries one.
    pub(super) fn call(&mut self, source: SourceStream, probe: Option<Probe>, now: Moment) -> Call {
        self.figures.breaker_probes += u64::from(probe.is_some());
        let ticket = probe.map(|probe| probe.ticket).or_else(|| self.guard.call(source, now));
        Call { ticket, asked: now }
    }

    /// Notes what a call came to; only the first word about it counts.
    pub(super) fn judge(&mut self, number: u64, fate: Fate) {
        let Some(Operation { line, call, talk, .. }) = self.operations.get_mut(&number) else { return };
        let Some(call) = call.take() else { return };
        let fate = if *talk == Talk::HeldBack { Fate::Ours } else { fate };
        let source = self.lines[line].source;
        self.guard.note(source, call, fate);
        self.is_due = true;
    }

    /// A fetch leaves the queue of its source without having been asked for: if it was the probe, that has its fate.
    pub(super) fn end_probe(&mut self, copy: CopyId, fate: impl Fn(&Probe) -> Fate) {
        let fetch = self.fetches.get_mut(&copy).expect("a queued fetch");
        let Some(probe) = fetch.probe.take() else { return };
        let source = fetch.current.expect("a fetch that is queued has a route").source;
        let fate = fate(&probe);
        let Probe { ticket, since } = probe;
        self.guard.note(source, Call { ticket: Some(ticket), asked: since }, fate);
        self.is_due = true;
    }

    /// A source could not be dialed: a call that failed, whatever waited for it.
    pub(super) fn on_unreachable(&mut self, source: SourceStream, now: Moment) {
        let ticket = self.guard.call(source, now);
        // The probe that waited for the dial has been noted.
        if ticket.is_some() || !self.guard.has_fate_of(&source) {
            self.guard.note(source, Call { ticket, asked: now }, Fate::Silent);
        }
    }

    /// Judges the calls that have ended. What waits at a source that is left alone from now on goes on elsewhere.
    pub(super) fn settle_calls(&mut self, now: Moment) {
        let (heard, budget) = (self.heard, self.settings.stall_wait);
        let is_patient = |quiet_since: Moment, has_answered: bool| {
            let part = if has_answered { SENDING_PATIENCE_PART } else { PATIENCE_PART };
            heard.since(quiet_since) >= budget / part
        };
        for (source, Call { ticket, asked }, fate) in std::mem::take(&mut self.guard.fates) {
            let ending = fate.ending(is_patient);
            let outcome = ending.map(|ending| match ending {
                Ending::Answer { .. } => Outcome::Success,
                Ending::Error | Ending::Timeout => Outcome::Failure,
            });
            // Unless its life is over.
            if let Some(ending) = ending.filter(|_| self.is_usable(&source)) {
                self.modes.push(source, ending, asked, now);
                self.figures.calls_answered += u64::from(outcome == Some(Outcome::Success));
                self.figures.calls_failed += u64::from(outcome == Some(Outcome::Failure));
            }
            let Some((breaker, ticket)) = self.guard.breakers.get_mut(&source).zip(ticket) else { continue };
            let Some(outcome) = outcome else {
                breaker.abandon(ticket);
                continue;
            };
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
        let mut modes = std::mem::take(&mut self.modes);
        modes.retain(|source| self.is_usable(source));
        self.modes = modes;
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
