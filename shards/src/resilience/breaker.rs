//! Circuit breaker: a dependency that fails is not asked for a while, so that what it is asked with (slots,
//! time, pins at its end) stays free for others.
//!
//! Closed → open by its rule → half-open when the pause is over → closed by a success, open again by a
//! failure. While half-open **exactly one** call is out: the models let every call through then, and in a
//! model results are known at once; in a node hundreds would go to a peer that is just coming back.

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Moment;

/// Longest window of outcomes, in calls: a byte each, for each peer and device.
pub const WINDOW_CALLS_MAX: u32 = 10_000;
/// Default window, in calls.
pub const WINDOW_CALLS: u32 = 20;
/// Default share of failures in the window that opens.
pub const FAILURE_SHARE: f64 = 0.50;
/// Default pause before the dependency is tried again.
pub const OPEN_FOR: Duration = Duration::from_secs(1);

/// When a closed breaker opens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// So many failures without a success between them.
    Consecutive {
        /// At least 1.
        failures: u32,
    },
    /// This share of the last calls, once there were as many.
    Share {
        /// Calls that are looked back on, 1 to [`WINDOW_CALLS_MAX`].
        window_calls: u32,
        /// Above 0 and at most 1.
        threshold: f64,
    },
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was answered; a typed refusal is an answer, too.
    Success,
    /// It failed or took too long.
    Failure,
}

/// Whether a call may go out.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a call that passes is owed its outcome, or to be abandoned"]
pub enum Admission {
    /// It may; as one of many.
    Pass(Ticket),
    /// It may, as the only one: its outcome decides.
    Probe(Ticket),
    /// It may not.
    Reject {
        /// From when asking again has a prospect; `None` while the outcome of a probe is awaited.
        until: Option<Moment>,
    },
}

/// A call that is out. It is given back with its outcome or abandoned, once.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a call that passes is owed its outcome, or to be abandoned"]
pub struct Ticket {
    /// Period of the breaker in which it went out: what comes back later than its period decides nothing.
    period: u64,
}

/// How a breaker stands at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Calls pass.
    Closed,
    /// One call may go out, or is out: its outcome decides.
    HalfOpen,
    /// No call passes.
    Open,
}

/// What an outcome changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// No calls until this moment.
    Opened {
        /// When a probe may go out.
        until: Moment,
    },
    /// Calls pass again.
    Closed,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    Closed,
    Open { until: Moment },
    HalfOpen { probing: bool },
}

/// Breaker of one dependency.
#[derive(Clone, Debug)]
pub struct Breaker {
    rule: Rule,
    open_for: Duration,
    state: State,
    /// Grows with every change of state, so that outcomes of an earlier one are known as such.
    period: u64,
    /// Last outcomes while closed, oldest first; true is a failure.
    window: VecDeque<bool>,
    /// Failures in the window, or in a row.
    failures: u32,
    opens: u64,
    rejected: u64,
}

impl Default for Rule {
    fn default() -> Rule {
        Rule::Share { window_calls: WINDOW_CALLS, threshold: FAILURE_SHARE }
    }
}

impl Rule {
    /// This percentage of the last calls; none with 0, for what never opens.
    ///
    /// # Panics
    /// If it is more than 100, or the window is none.
    #[must_use]
    pub fn of_percent(failed_percent: u32, window_calls: u32) -> Option<Rule> {
        assert!(failed_percent <= 100, "a percentage");
        assert!((1..=WINDOW_CALLS_MAX).contains(&window_calls), "a window of {window_calls} calls");
        let threshold = f64::from(failed_percent) / 100.0;
        (failed_percent > 0).then_some(Rule::Share { window_calls, threshold })
    }

    /// # Panics
    /// If a number is out of the bounds it states.
    fn assert_valid(self) {
        match self {
            Rule::Consecutive { failures } => assert!(failures > 0, "no call would ever pass"),
            Rule::Share { window_calls, threshold } => {
                assert!((1..=WINDOW_CALLS_MAX).contains(&window_calls), "a window of {window_calls} calls");
                assert!(threshold > 0.0 && threshold <= 1.0, "a share of {threshold}");
            }
        }
    }
}

impl Default for Breaker {
    fn default() -> Breaker {
        Breaker::new(Rule::default(), OPEN_FOR)
    }
}

impl Breaker {
    /// A closed breaker.
    ///
    /// # Panics
    /// If a number of the rule is out of the bounds it states.
    #[must_use]
    pub fn new(rule: Rule, open_for: Duration) -> Breaker {
        rule.assert_valid();
        Breaker {
            rule,
            open_for,
            state: State::Closed,
            period: 0,
            window: VecDeque::new(),
            failures: 0,
            opens: 0,
            rejected: 0,
        }
    }

    /// From now on it has another rule and another pause. A closed one begins to look back anew; how it stands stays,
    /// and so does a pause that has begun.
    ///
    /// # Panics
    /// As [`Breaker::new`].
    pub fn retune(&mut self, rule: Rule, open_for: Duration) {
        rule.assert_valid();
        (self.rule, self.open_for) = (rule, open_for);
        self.window.clear();
        self.failures = 0;
    }

    /// Lets every call pass again, whatever it has seen: what calls come to that are out decides nothing.
    pub fn close(&mut self) {
        self.enter(State::Closed);
    }

    /// Whether a call may go out now.
    pub fn admit(&mut self, now: Moment) -> Admission {
        if let State::Open { until } = self.state
            && now >= until
        {
            self.enter(State::HalfOpen { probing: false });
        }
        let ticket = Ticket { period: self.period };
        match &mut self.state {
            State::Closed => Admission::Pass(ticket),
            State::HalfOpen { probing } if !*probing => {
                *probing = true;
                Admission::Probe(ticket)
            }
            State::HalfOpen { .. } => self.reject(None),
            State::Open { until } => {
                let until = *until;
                self.reject(Some(until))
            }
        }
    }

    /// Takes the outcome of a call that passed. One that went out before the last change of state says
    /// nothing about the dependency as it is, and changes nothing.
    pub fn record(&mut self, ticket: Ticket, outcome: Outcome, now: Moment) -> Option<Change> {
        if ticket.period != self.period {
            return None;
        }
        match (&self.state, outcome) {
            (State::Closed, _) => {
                self.remember(outcome);
                self.is_over_threshold().then(|| self.open(now))
            }
            (State::HalfOpen { .. }, Outcome::Success) => {
                self.enter(State::Closed);
                Some(Change::Closed)
            }
            (State::HalfOpen { .. }, Outcome::Failure) => Some(self.open(now)),
            (State::Open { .. }, _) => unreachable!("no call goes out in an open period"),
        }
    }

    /// Takes back a call that passed and was not made after all: it decides nothing, and if it was the
    /// probe another may be.
    pub fn abandon(&mut self, ticket: Ticket) {
        if ticket.period == self.period
            && let State::HalfOpen { probing } = &mut self.state
        {
            *probing = false;
        }
    }

    /// Whether calls are rejected at `now`, were one made.
    #[must_use]
    pub fn is_open(&self, now: Moment) -> bool {
        match self.state {
            State::Closed => false,
            State::Open { until } => now < until,
            State::HalfOpen { probing } => probing,
        }
    }

    /// How it stands at `now`: an open one whose pause is over is half-open.
    #[must_use]
    pub fn phase(&self, now: Moment) -> Phase {
        match self.state {
            State::Closed => Phase::Closed,
            State::Open { until } if now < until => Phase::Open,
            State::Open { .. } | State::HalfOpen { .. } => Phase::HalfOpen,
        }
    }

    /// Whether a probe is out: its ticket is with somebody.
    #[must_use]
    pub const fn is_probing(&self) -> bool {
        matches!(self.state, State::HalfOpen { probing: true })
    }

    /// How often it opened.
    #[must_use]
    pub const fn opens(&self) -> u64 {
        self.opens
    }

    /// How many calls it rejected.
    #[must_use]
    pub const fn rejected(&self) -> u64 {
        self.rejected
    }

    fn reject(&mut self, until: Option<Moment>) -> Admission {
        self.rejected += 1;
        Admission::Reject { until }
    }

    fn remember(&mut self, outcome: Outcome) {
        let failed = outcome == Outcome::Failure;
        match self.rule {
            Rule::Consecutive { .. } => self.failures = if failed { self.failures + 1 } else { 0 },
            Rule::Share { window_calls, .. } => {
                self.window.push_back(failed);
                self.failures += u32::from(failed);
                if self.window.len() > window_calls as usize {
                    self.failures -= u32::from(self.window.pop_front() == Some(true));
                }
            }
        }
    }

    fn is_over_threshold(&self) -> bool {
        match self.rule {
            Rule::Consecutive { failures } => self.failures >= failures,
            Rule::Share { window_calls, threshold } => {
                self.window.len() == window_calls as usize
                    && f64::from(self.failures) / f64::from(window_calls) >= threshold
            }
        }
    }

    fn open(&mut self, now: Moment) -> Change {
        let until = now + self.open_for;
        self.opens += 1;
        self.enter(State::Open { until });
        Change::Opened { until }
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.period += 1;
        self.window.clear();
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests;
