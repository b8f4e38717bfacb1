//! Deadlines: how what is left of a request's time is divided over its steps, whose limit ended it, and who
//! used the time up. A step that is given up is cancelled where it is worked on; otherwise its work would
//! go on for nobody.

use std::time::Duration;

/// A length of time. A node counts in nanoseconds; the models count in fractions of a millisecond, because
/// their shares are published that way.
pub trait Spell: Copy + PartialOrd {
    /// No time at all.
    const NONE: Self;
    /// `weight` of `total` of it.
    #[must_use]
    fn portion(self, weight: f64, total: f64) -> Self;
    /// What is left after `other`; never below nothing.
    #[must_use]
    fn less(self, other: Self) -> Self;
    /// Together.
    #[must_use]
    fn plus(self, other: Self) -> Self;
}

impl Spell for Duration {
    const NONE: Duration = Duration::ZERO;

    fn portion(self, weight: f64, total: f64) -> Duration {
        self.mul_f64(weight / total).min(self)
    }

    fn less(self, other: Duration) -> Duration {
        self.saturating_sub(other)
    }

    fn plus(self, other: Duration) -> Duration {
        self.saturating_add(other)
    }
}

impl Spell for f64 {
    const NONE: f64 = 0.0;

    fn portion(self, weight: f64, total: f64) -> f64 {
        self * weight / total
    }

    fn less(self, other: f64) -> f64 {
        (self - other).max(0.0)
    }

    fn plus(self, other: f64) -> f64 {
        self + other
    }
}

/// How time is divided over steps that follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Split {
    /// Every step may take all that is left: nothing is refused early, and the last step pays.
    Greedy,
    /// Every step gets the same.
    Equal,
    /// Every step gets what it typically needs, in proportion.
    #[default]
    Weighted,
}

/// What is done about a step that is given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GivingUp {
    /// It is told to whoever works on it; a node does.
    #[default]
    Cancels,
    /// It is left to itself.
    Abandons,
}

/// Steps of bringing a block from another node, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nobody is asked yet: a route, a connection, or this node's own window is waited for.
    Wait,
    /// The source looks the residences up and pins them.
    Authorize,
    /// The source makes them readable, from SSD if it must.
    Prepare,
    /// Their bytes travel.
    Transfer,
    /// They are checked and shown.
    Install,
}

impl Step {
    /// All of them.
    pub const ALL: [Step; 5] = [Step::Wait, Step::Authorize, Step::Prepare, Step::Transfer, Step::Install];

    /// The step as metrics name it.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Step::Wait => "wait",
            Step::Authorize => "authorize",
            Step::Prepare => "prepare",
            Step::Transfer => "transfer",
            Step::Install => "install",
        }
    }
}

/// Typical share of each [`Step`], in twentieths: a transfer is most of it, a read from SSD the next. Waiting has
/// none: what is waited is lost to the others.
pub const RECOVERY_WEIGHTS: [f64; Step::ALL.len()] = [0.0, 2.0, 5.0, 11.0, 2.0];

/// The time of bringing a block, over its steps.
pub type RecoveryTimer = StepTimer<Duration, { Step::ALL.len() }>;

/// The time of one request, over its steps.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTimer<T, const STEPS: usize> {
    shares: [T; STEPS],
    used: [T; STEPS],
    ended_by_limit: [bool; STEPS],
    remaining: T,
    giving_up: GivingUp,
}

/// What a caller does after a step was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aftermath {
    /// It sends a cancel, which stops reads and frees pins at the other end.
    Cancel,
    /// Nothing; what is worked on is worked on.
    Nothing,
}

impl Split {
    /// The most that each step may take of `remaining`. Weights are what steps typically need, in any unit.
    ///
    /// # Panics
    /// If weights do not add up to anything.
    #[must_use]
    pub fn shares<T: Spell, const STEPS: usize>(self, remaining: T, weights: &[f64; STEPS]) -> [T; STEPS] {
        let total: f64 = weights.iter().sum();
        assert!(total > 0.0, "steps that need nothing have no shares");
        weights.map(|weight| match self {
            Split::Greedy => remaining,
            Split::Equal => remaining.portion(1.0, STEPS as f64),
            Split::Weighted => remaining.portion(weight, total),
        })
    }
}

impl RecoveryTimer {
    /// The time of bringing a block, as a node divides it.
    #[must_use]
    pub fn of_recovery(remaining: Duration) -> RecoveryTimer {
        StepTimer::new(remaining, &RECOVERY_WEIGHTS, Split::default(), GivingUp::default())
    }

    /// There is so much more time than it began with: each step has its share of that, too.
    pub fn extend(&mut self, more: Duration) {
        self.remaining = self.remaining.plus(more);
        self.shares = Split::default().shares(self.elapsed().plus(self.remaining), &RECOVERY_WEIGHTS);
    }
}

impl<T: Spell, const STEPS: usize> StepTimer<T, STEPS> {
    /// A timer over as many steps as there are weights.
    #[must_use]
    pub fn new(
        remaining: T,
        weights: &[f64; STEPS],
        split: Split,
        giving_up: GivingUp,
    ) -> StepTimer<T, STEPS> {
        StepTimer {
            shares: split.shares(remaining, weights),
            used: [T::NONE; STEPS],
            ended_by_limit: [false; STEPS],
            remaining,
            giving_up,
        }
    }

    /// The most that this step may take now: its share, and no more than is left. Nothing means that it is
    /// not worth beginning.
    #[must_use]
    pub fn limit(&self, step: usize) -> T {
        let share = self.shares[step];
        if share < self.remaining { share } else { self.remaining }
    }

    /// The step was done in that time.
    pub fn on_done(&mut self, step: usize, elapsed: T) {
        self.used[step] = self.used[step].plus(elapsed);
        self.remaining = self.remaining.less(elapsed);
    }

    /// The step's limit ended it: all of the limit is used up.
    pub fn on_limit(&mut self, step: usize) -> Aftermath {
        let begun = self.limit(step) > T::NONE;
        self.on_done(step, self.limit(step));
        self.ended_by_limit[step] = true;
        match self.giving_up {
            GivingUp::Cancels if begun => Aftermath::Cancel,
            _ => Aftermath::Nothing,
        }
    }

    /// Whether the step's own limit ended it.
    #[must_use]
    pub fn is_ended_by_limit(&self, step: usize) -> bool {
        self.ended_by_limit[step]
    }

    /// Time used by a step.
    #[must_use]
    pub fn used(&self, step: usize) -> T {
        self.used[step]
    }

    /// Time used by all steps.
    #[must_use]
    pub fn elapsed(&self) -> T {
        self.used.iter().fold(T::NONE, |sum, used| sum.plus(*used))
    }

    /// The step that used most of the time, which need not be the one that was ended: it is the one to blame.
    #[must_use]
    pub fn consumer(&self) -> usize {
        let longest = |best: usize, step: usize| if self.used[step] > self.used[best] { step } else { best };
        (1..STEPS).fold(0, longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn shares_of_the_three_splits() {
        assert_eq!(Split::Greedy.shares(180.0, &[6.0, 12.0]), [180.0, 180.0]);
        assert_eq!(Split::Equal.shares(180.0, &[6.0, 12.0]), [90.0, 90.0]);
        assert_eq!(Split::default().shares(180.0, &[6.0, 12.0]), [60.0, 120.0]);
        let shares = Split::Weighted.shares(200 * MS, &RECOVERY_WEIGHTS);
        assert_eq!(shares, [Duration::ZERO, 20 * MS, 50 * MS, 110 * MS, 20 * MS]);
    }

    #[test]
    fn a_node_cancels_what_it_gives_up() {
        let mut timer = StepTimer::of_recovery(200 * MS);
        assert_eq!(timer.on_limit(Step::Authorize as usize), Aftermath::Cancel);
        assert!(timer.is_ended_by_limit(1) && !timer.is_ended_by_limit(2));
        assert_eq!(timer.on_limit(Step::Wait as usize), Aftermath::Nothing, "it has no share");
        let mut model = StepTimer::new(10.0, &[1.0], Split::Greedy, GivingUp::Abandons);
        assert_eq!(model.on_limit(0), Aftermath::Nothing);
    }

    #[test]
    fn more_time_is_everybodys() {
        let mut timer = StepTimer::of_recovery(200 * MS);
        timer.on_done(Step::Authorize as usize, 15 * MS);
        timer.extend(800 * MS);
        assert_eq!(timer.limit(Step::Transfer as usize), 550 * MS);
        timer.on_done(Step::Prepare as usize, 900 * MS);
        assert_eq!(timer.limit(Step::Transfer as usize), 85 * MS, "of a second, in all");
    }

    #[test]
    fn who_took_the_time_is_told_apart_from_who_was_ended() {
        let mut timer = StepTimer::new(100 * MS, &[1.0, 1.0], Split::Greedy, GivingUp::Cancels);
        timer.on_done(0, 90 * MS);
        assert_eq!(timer.limit(1), 10 * MS);
        assert_eq!(timer.on_limit(1), Aftermath::Cancel);
        assert!(timer.is_ended_by_limit(1));
        assert_eq!((timer.consumer(), timer.used(0), timer.elapsed()), (0, 90 * MS, 100 * MS));
        assert_eq!(timer.limit(0), Duration::ZERO);
        assert_eq!(timer.on_limit(0), Aftermath::Nothing, "what was not begun is not cancelled");
    }
}
