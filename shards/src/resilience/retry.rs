//! Retries: how often a request may be tried again, how long it waits before, and how many extra calls all
//! requests together may make. Retries of several layers multiply, so a node has one place that retries and
//! one budget; the number of the attempt travels with the request, so that nobody below retries as well.

mod every_window;

use std::time::Duration;

use crate::time::Moment;

pub use every_window::EveryWindow;

/// Calls that may be made for one request of a node: the first plan and two more.
pub const CALLS: u32 = 3;
/// How far back a node's budget looks.
pub const BUDGET_WINDOW: Duration = Duration::from_secs(10);

/// The number of a call for a request: 0 is the first. It travels with the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempt(pub u32);

/// How many calls may be made for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance(pub u32);

/// Exponential pauses with jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Ceiling of the pause after the first call.
    pub base: Duration,
    /// Ceiling of every pause.
    pub cap: Duration,
}

/// Extra calls against first calls.
#[derive(Clone, Debug)]
pub enum RetryBudget {
    /// A share of all from the beginning; an extra call counts when it is made (the models').
    Whole {
        /// Extra calls for each first call.
        extra_share: f64,
        /// First calls made.
        first: u64,
        /// Extra calls made.
        extra: u64,
    },
    /// In every window (a node's); an extra call counts from when it is allowed, so that many failures in one
    /// instant are not all told that there is room.
    EveryWindow(EveryWindow),
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
#[derive(Clone, Debug)]
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

    /// Whether this call may be made.
    #[must_use]
    pub const fn allows(self, attempt: Attempt) -> bool {
        attempt.0 < self.0
    }

    /// Whether a call may follow this one.
    #[must_use]
    pub const fn allows_after(self, attempt: Attempt) -> bool {
        self.allows(Attempt(attempt.0 + 1))
    }
}

/// Another number for each, that looks random (the end of SplitMix64).
#[must_use]
pub const fn scatter(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// What a sequence that is scattered goes on by.
pub const SCATTER_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Backoff {
    /// Most that is waited after this call.
    #[must_use]
    pub fn ceiling(&self, attempt: Attempt) -> Duration {
        1u32.checked_shl(attempt.0)
            .and_then(|factor| self.base.checked_mul(factor))
            .unwrap_or(self.cap)
            .min(self.cap)
    }

    /// The pause after this call for a draw from [0, 1), with full jitter: whole nanoseconds, below the ceiling.
    #[must_use]
    pub fn pause(&self, attempt: Attempt, draw: f64) -> Duration {
        Duration::from_nanos((draw * self.ceiling(attempt).as_nanos() as f64) as u64)
    }

    /// The pause of whoever is not to come back at once, after so many failures in a row and for any random number: from
    /// the base to twice that after the first, and so on up to the cap.
    #[must_use]
    pub fn pause_after(&self, failures: u32, random: u64) -> Duration {
        let span = self.ceiling(Attempt(failures)).saturating_sub(self.base).as_nanos() as u64;
        self.base + Duration::from_nanos(random % (span + 1))
    }
}

impl RetryBudget {
    /// A budget of so many extra calls for each first call, from the beginning.
    #[must_use]
    pub const fn whole(extra_share: f64) -> RetryBudget {
        RetryBudget::Whole { extra_share, first: 0, extra: 0 }
    }

    /// Another share from now on, in thousandths.
    pub fn set_share(&mut self, permille: u32) {
        match self {
            RetryBudget::Whole { extra_share, .. } => *extra_share = f64::from(permille) / 1_000.0,
            RetryBudget::EveryWindow(budget) => budget.set_share(permille),
        }
    }

    /// Takes a call that is being made.
    pub fn on_call(&mut self, attempt: Attempt) {
        match (self, attempt) {
            (RetryBudget::Whole { first, .. }, Attempt(0)) => *first += 1,
            (RetryBudget::Whole { extra, .. }, _) => *extra += 1,
            (RetryBudget::EveryWindow(budget), Attempt(0)) => budget.on_first(),
            (RetryBudget::EveryWindow(_), _) => {}
        }
    }

    /// Whether an extra call may follow; in every window it is counted with that.
    pub fn allow(&mut self, now: Moment) -> bool {
        match self {
            RetryBudget::Whole { extra_share, first, extra } => *extra as f64 <= *extra_share * *first as f64,
            RetryBudget::EveryWindow(budget) => budget.allow(now),
        }
    }
}

impl Retries {
    /// With this allowance, these pauses and this budget, or none.
    #[must_use]
    pub const fn new(allowance: Allowance, backoff: Backoff, budget: Option<RetryBudget>) -> Retries {
        Retries { allowance, backoff, budget }
    }

    /// Takes a call that is being made.
    pub fn on_call(&mut self, attempt: Attempt) {
        if let Some(budget) = &mut self.budget {
            budget.on_call(attempt);
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Moment {
        Moment(milliseconds * 1_000_000)
    }

    fn of_a_node() -> Retries {
        let backoff = Backoff { base: Duration::from_millis(2), cap: Duration::from_millis(100) };
        let budget = RetryBudget::EveryWindow(EveryWindow::new(100, 10, BUDGET_WINDOW));
        Retries::new(Allowance(CALLS), backoff, Some(budget))
    }

    #[test]
    fn a_node_makes_two_more_calls() {
        let mut retries = of_a_node();
        (0..100).for_each(|_| retries.on_call(Attempt(0)));
        assert_eq!(retries.on_failure(Attempt(0), at(0)), Verdict::Again(Attempt(1)));
        assert_eq!(retries.on_failure(Attempt(1), at(0)), Verdict::Again(Attempt(2)));
        assert_eq!(retries.on_failure(Attempt(2), at(0)), Verdict::AllowanceSpent);
        let allowance = Allowance(CALLS);
        assert_eq!([2, 3].map(|number| allowance.allows(Attempt(number))), [true, false]);
    }

    #[test]
    fn a_tenth_of_the_first_calls_and_not_one_more() {
        let mut retries = of_a_node();
        (0..100).for_each(|_| retries.on_call(Attempt(0)));
        // All fail in one instant, before any extra call is made.
        let again = |retries: &mut Retries| retries.on_failure(Attempt(0), at(1)) != Verdict::BudgetSpent;
        assert_eq!((0..100).filter(|_| again(&mut retries)).count(), 10);
        retries.on_call(Attempt(1));
        assert_eq!(retries.on_failure(Attempt(0), at(9_000)), Verdict::BudgetSpent, "the window is open");
    }

    #[test]
    fn the_models_budget_counts_from_the_beginning() {
        let mut budget = RetryBudget::whole(0.5);
        budget.on_call(Attempt(0));
        assert!(budget.allow(at(0)) && budget.allow(at(0)), "nothing is counted before it is made");
        budget.on_call(Attempt(1));
        assert!(!budget.allow(at(1_000_000)));
        budget.on_call(Attempt(0));
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
        let after = |failures, random| backoff.pause_after(failures, random).as_nanos();
        assert_eq!([0, 1, 2, 3].map(|random| after(1, random)), [2, 3, 4, 2]);
        assert_eq!((after(0, u64::MAX), after(u32::MAX, 30), after(9, 31)), (2, 32, 2));
        let narrow = Backoff { cap: Duration::from_nanos(1), ..backoff };
        assert_eq!(narrow.pause_after(5, 77), narrow.base);
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
