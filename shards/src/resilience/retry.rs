//! Retries: how often a request may be tried again, how long it waits before, and how many extra calls all
//! requests together may make. Retries of several layers multiply, so a node has one place that retries and
//! one budget; the number of the attempt travels with the request, so that nobody below retries as well.

mod every_window;

use std::time::Duration;

use crate::time::Moment;

pub use every_window::EveryWindow;

/// Calls that may be made for one request of a node: the first plan and two more.
pub const CALLS: u32 = 3;
/// Extra calls of a node for each first call.
pub const EXTRA_SHARE: f64 = 0.10;
/// How far back a node's budget looks.
pub const BUDGET_WINDOW: Duration = Duration::from_secs(10);
/// Ceiling of a node's first pause.
pub const PAUSE_BASE: Duration = Duration::from_millis(2);
/// Ceiling of any pause.
pub const PAUSE_CAP: Duration = Duration::from_millis(100);
/// Parts that a sliding window is kept in: what is older leaves a part at a time.
const WINDOW_PARTS: usize = 10;

/// The number of a call for a request: 0 is the first. It travels with the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempt(pub u32);

/// How many calls may be made for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance(pub u32);

/// Exponential pauses with full jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Ceiling of the pause after the first call.
    pub base: Duration,
    /// Ceiling of every pause.
    pub cap: Duration,
}

/// How far back calls count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// From the beginning; an extra call counts when it is made (the models').
    Whole,
    /// A sliding window; an extra call counts from when it is allowed, so that many failures in one instant
    /// are not all told that there is room.
    Sliding(Duration),
}

/// Extra calls against first calls.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryBudget {
    extra_share: f64,
    span: Span,
    parts: [Part; WINDOW_PARTS],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Part {
    /// Which part of time it counts, in multiples of a part's length.
    number: u64,
    first: u64,
    extra: u64,
}

/// What becomes of a request whose call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is tried again, after [`Retries::pause`].
    Again(Attempt),
    /// It has had all calls that it may have.
    AllowanceSpent,
    /// All requests together have had all extra calls that they may have.
    BudgetSpent,
}

/// Allowance, budget and pauses of one place that retries.
#[derive(Clone, Debug, PartialEq)]
pub struct Retries {
    allowance: Allowance,
    backoff: Backoff,
    budget: Option<RetryBudget>,
}

impl Allowance {
    /// What layers that each make up to `tries` calls come to, one under the other.
    #[must_use]
    pub const fn of_layers(tries: u32, layers: u32) -> Allowance {
        Allowance(tries.saturating_pow(layers))
    }

    /// Whether a call may follow this one.
    #[must_use]
    pub const fn allows_after(self, attempt: Attempt) -> bool {
        attempt.0 + 1 < self.0
    }
}

impl Backoff {
    /// Most that is waited after this call.
    #[must_use]
    pub fn ceiling(&self, attempt: Attempt) -> Duration {
        1u32.checked_shl(attempt.0)
            .and_then(|factor| self.base.checked_mul(factor))
            .unwrap_or(self.cap)
            .min(self.cap)
    }

    /// The pause after this call for a draw from [0, 1): whole nanoseconds, below the ceiling.
    #[must_use]
    pub fn pause(&self, attempt: Attempt, draw: f64) -> Duration {
        Duration::from_nanos((draw * self.ceiling(attempt).as_nanos() as f64) as u64)
    }
}

impl RetryBudget {
    /// A budget of so many extra calls for each first call.
    #[must_use]
    pub fn new(extra_share: f64, span: Span) -> RetryBudget {
        RetryBudget { extra_share, span, parts: [Part::default(); WINDOW_PARTS] }
    }

    fn part(&mut self, now: Moment) -> &mut Part {
        let number = match self.span {
            Span::Whole => 0,
            Span::Sliding(window) => {
                now.0 / u64::try_from(window.as_nanos() / WINDOW_PARTS as u128).unwrap_or(u64::MAX).max(1)
            }
        };
        for part in &mut self.parts {
            if number.saturating_sub(part.number) >= WINDOW_PARTS as u64 {
                *part = Part::default();
            }
        }
        let part = &mut self.parts[(number % WINDOW_PARTS as u64) as usize];
        if part.number != number {
            *part = Part { number, ..Part::default() };
        }
        part
    }

    fn totals(&self) -> (u64, u64) {
        self.parts.iter().fold((0, 0), |(first, extra), part| (first + part.first, extra + part.extra))
    }

    /// Takes a call that is being made.
    pub fn on_call(&mut self, attempt: Attempt, now: Moment) {
        let counts_extra = self.span == Span::Whole;
        let part = self.part(now);
        match attempt {
            Attempt(0) => part.first += 1,
            _ if counts_extra => part.extra += 1,
            _ => {}
        }
    }

    /// Whether an extra call may follow; in a sliding window it is counted with that.
    pub fn allow(&mut self, now: Moment) -> bool {
        self.part(now);
        let (first, extra) = self.totals();
        let room = self.extra_share * first as f64;
        match self.span {
            Span::Whole => extra as f64 <= room,
            Span::Sliding(_) => {
                let fits = (extra + 1) as f64 <= room;
                self.part(now).extra += u64::from(fits);
                fits
            }
        }
    }
}

impl Default for Retries {
    fn default() -> Retries {
        let backoff = Backoff { base: PAUSE_BASE, cap: PAUSE_CAP };
        Retries::new(
            Allowance(CALLS),
            backoff,
            Some(RetryBudget::new(EXTRA_SHARE, Span::Sliding(BUDGET_WINDOW))),
        )
    }
}

impl Retries {
    /// With this allowance, these pauses and this budget, or none.
    #[must_use]
    pub const fn new(allowance: Allowance, backoff: Backoff, budget: Option<RetryBudget>) -> Retries {
        Retries { allowance, backoff, budget }
    }

    /// Takes a call that is being made.
    pub fn on_call(&mut self, attempt: Attempt, now: Moment) {
        if let Some(budget) = &mut self.budget {
            budget.on_call(attempt, now);
        }
    }

    /// What becomes of a request after this call of it failed. Asked before jitter is drawn: what is given
    /// up draws nothing.
    pub fn on_failure(&mut self, attempt: Attempt, now: Moment) -> Verdict {
        if !self.allowance.allows_after(attempt) {
            return Verdict::AllowanceSpent;
        }
        match self.budget.as_mut().is_none_or(|budget| budget.allow(now)) {
            true => Verdict::Again(Attempt(attempt.0 + 1)),
            false => Verdict::BudgetSpent,
        }
    }

    /// The pause after this call for a draw from [0, 1).
    #[must_use]
    pub fn pause(&self, attempt: Attempt, draw: f64) -> Duration {
        self.backoff.pause(attempt, draw)
    }

    /// When the next call is due after this one failed; `None` if that would be past the first deadline,
    /// which no retry moves.
    #[must_use]
    pub fn due(&self, attempt: Attempt, draw: f64, now: Moment, deadline: Moment) -> Option<Moment> {
        Some(now + self.pause(attempt, draw)).filter(|due| *due < deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Moment {
        Moment(milliseconds * 1_000_000)
    }

    #[test]
    fn a_node_makes_two_more_calls_within_the_first_deadline() {
        let mut retries = Retries::default();
        (0..100).for_each(|_| retries.on_call(Attempt(0), at(0)));
        assert_eq!(retries.on_failure(Attempt(0), at(0)), Verdict::Again(Attempt(1)));
        assert_eq!(retries.on_failure(Attempt(1), at(0)), Verdict::Again(Attempt(2)));
        assert_eq!(retries.on_failure(Attempt(2), at(0)), Verdict::AllowanceSpent);
        assert_eq!(retries.due(Attempt(0), 0.5, at(10), at(12)), Some(at(11)));
        assert_eq!(
            retries.due(Attempt(0), 0.5, at(11), at(12)),
            None,
            "the deadline is that of the first call"
        );
    }

    #[test]
    fn a_tenth_of_the_first_calls_and_not_one_more() {
        let mut retries = Retries::default();
        (0..100).for_each(|_| retries.on_call(Attempt(0), at(0)));
        let again = |retries: &mut Retries, now| retries.on_failure(Attempt(0), now) != Verdict::BudgetSpent;
        // All fail in one instant, before any extra call is made.
        assert_eq!((0..100).filter(|_| again(&mut retries, at(1))).count(), 10);
        retries.on_call(Attempt(1), at(2));
        assert!(!again(&mut retries, at(9_000)), "the window has not moved on");
        (0..10).for_each(|_| retries.on_call(Attempt(0), at(12_000)));
        assert!(
            again(&mut retries, at(12_000)) && !again(&mut retries, at(12_000)),
            "old calls are forgotten"
        );
    }

    #[test]
    fn the_models_budget_counts_from_the_beginning() {
        let mut budget = RetryBudget::new(0.5, Span::Whole);
        budget.on_call(Attempt(0), at(0));
        assert!(budget.allow(at(0)) && budget.allow(at(0)), "nothing is counted before it is made");
        budget.on_call(Attempt(1), at(0));
        assert!(!budget.allow(at(1_000_000)));
        budget.on_call(Attempt(0), at(2_000_000));
        assert!(budget.allow(at(3_000_000)));
    }

    #[test]
    fn pauses_double_up_to_their_cap() {
        let backoff = Backoff { base: Duration::from_nanos(2), cap: Duration::from_nanos(32) };
        let ceilings: Vec<u128> = (0..7).map(|n| backoff.ceiling(Attempt(n)).as_nanos()).collect();
        assert_eq!(ceilings, [2, 4, 8, 16, 32, 32, 32]);
        assert_eq!(backoff.ceiling(Attempt(1_000)), backoff.cap);
        assert_eq!(backoff.pause(Attempt(3), 0.99), Duration::from_nanos(15));
        assert_eq!(backoff.pause(Attempt(3), 0.0), Duration::ZERO);
    }

    #[test]
    fn layers_multiply() {
        assert_eq!(
            (1..5).map(|layers| Allowance::of_layers(3, layers).0).collect::<Vec<_>>(),
            [3, 9, 27, 81]
        );
        assert_eq!(Allowance::of_layers(1_000, 9).0, u32::MAX);
    }
}
