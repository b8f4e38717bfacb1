//! Failure modes: what a caller can tell about a dependency from its own calls, and about no more. A slow
//! dependency and one that is cut off look the same from here, so they have one name; whether it is a member
//! is shown beside the name and never guessed from it.

use std::collections::VecDeque;

/// Default number of calls that are looked back on.
pub const WINDOW_CALLS: usize = 20;
/// From this share of failures on, all of them errors, nothing works there.
const DOWN_SHARE: f64 = 0.90;
/// From this share of time-outs on, answers do not come through.
const SLOW_SHARE: f64 = 0.50;
/// From this share of failures on, a part does not work. One time-out of twenty is an ordinary day.
const PARTIAL_SHARE: f64 = 0.10;
/// Below this share of fresh answers, what is answered is out of date.
const FRESH_SHARE: f64 = 0.50;

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It was answered.
    Answer {
        /// Whether the answer was from the present state of the dependency.
        fresh: bool,
    },
    /// It failed with an error.
    Error,
    /// It was given up.
    Timeout,
}

/// What a window of calls looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Answers, fresh ones.
    Healthy,
    /// Errors, at once.
    Down,
    /// Time-outs: slow, or cut off; a caller cannot tell.
    SlowOrCut,
    /// Some work, some do not.
    Partial,
    /// Answers that are out of date.
    Stale,
}

/// The last calls to one dependency.
#[derive(Clone, Debug)]
pub struct SignatureWindow {
    calls: VecDeque<(Ending, u64)>,
    capacity: usize,
    sums: Sums,
}

/// Sums over a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Answers.
    pub answers: u64,
    /// Answers that were fresh.
    pub fresh: u64,
    /// Errors.
    pub errors: u64,
    /// Time-outs.
    pub timeouts: u64,
    /// How long calls held what they were made with, in the driver's unit.
    pub held: u64,
}

impl Default for SignatureWindow {
    fn default() -> SignatureWindow {
        SignatureWindow::new(WINDOW_CALLS)
    }
}

impl SignatureWindow {
    /// An empty window of so many calls.
    ///
    /// # Panics
    /// If it holds none.
    #[must_use]
    pub fn new(capacity: usize) -> SignatureWindow {
        assert!(capacity > 0, "a window that holds no call shows nothing");
        SignatureWindow { calls: VecDeque::new(), capacity, sums: Sums::default() }
    }

    /// Takes the end of a call and how long it held its slot; the oldest leaves when the window is full.
    pub fn push(&mut self, ending: Ending, held: u64) {
        if self.calls.len() == self.capacity
            && let Some((oldest, held)) = self.calls.pop_front()
        {
            self.sums = self.sums.without(oldest, held);
        }
        self.calls.push_back((ending, held));
        self.sums = self.sums.with(ending, held);
    }

    /// What there is in the window.
    #[must_use]
    pub const fn sums(&self) -> Sums {
        self.sums
    }

    /// What it looks like; `None` before the window is full, because a few calls are like anything.
    #[must_use]
    pub fn mode(&self) -> Option<Mode> {
        (self.calls.len() == self.capacity).then(|| self.sums.mode())
    }
}

impl Sums {
    fn with(mut self, ending: Ending, held: u64) -> Sums {
        *self.of(ending) += 1;
        self.fresh += u64::from(ending == Ending::Answer { fresh: true });
        self.held += held;
        self
    }

    fn without(mut self, ending: Ending, held: u64) -> Sums {
        *self.of(ending) -= 1;
        self.fresh -= u64::from(ending == Ending::Answer { fresh: true });
        self.held -= held;
        self
    }

    fn of(&mut self, ending: Ending) -> &mut u64 {
        match ending {
            Ending::Answer { .. } => &mut self.answers,
            Ending::Error => &mut self.errors,
            Ending::Timeout => &mut self.timeouts,
        }
    }

    /// Calls of the window.
    #[must_use]
    pub const fn calls(&self) -> u64 {
        self.answers + self.errors + self.timeouts
    }

    /// Shares of answers, errors and time-outs; zeros of an empty window.
    #[must_use]
    pub fn shares(&self) -> [f64; 3] {
        let calls = self.calls().max(1) as f64;
        [self.answers, self.errors, self.timeouts].map(|count| count as f64 / calls)
    }

    /// How long a call held its slot on average.
    #[must_use]
    pub fn held_mean(&self) -> f64 {
        self.held as f64 / self.calls().max(1) as f64
    }

    /// Share of fresh answers among answers; `None` if there are none.
    #[must_use]
    pub fn fresh_share(&self) -> Option<f64> {
        (self.answers > 0).then(|| self.fresh as f64 / self.answers as f64)
    }

    /// Whether the ends of calls alone do not tell the two apart.
    #[must_use]
    pub fn ends_alike(&self, other: &Sums, tolerance: f64) -> bool {
        let pairs = self.shares().into_iter().zip(other.shares());
        pairs.into_iter().all(|(a, b)| (a - b).abs() < tolerance)
    }

    /// Whether what was answered tells them apart. Having no answers is unlike any freshness.
    #[must_use]
    pub fn content_separates(&self, other: &Sums, tolerance: f64) -> bool {
        let of = |sums: &Sums| sums.fresh_share().unwrap_or(-1.0);
        (of(self) - of(other)).abs() >= tolerance
    }

    fn mode(&self) -> Mode {
        let [_, errors, timeouts] = self.shares();
        if errors >= DOWN_SHARE {
            Mode::Down
        } else if timeouts >= SLOW_SHARE {
            Mode::SlowOrCut
        } else if errors + timeouts >= PARTIAL_SHARE {
            Mode::Partial
        } else if self.fresh_share().is_some_and(|share| share < FRESH_SHARE) {
            Mode::Stale
        } else {
            Mode::Healthy
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRESH: Ending = Ending::Answer { fresh: true };
    const OLD: Ending = Ending::Answer { fresh: false };

    fn after(calls: &[(Ending, usize)]) -> SignatureWindow {
        let mut window = SignatureWindow::default();
        for (ending, count) in calls {
            (0..*count).for_each(|_| window.push(*ending, 2));
        }
        window
    }

    #[test]
    fn twenty_calls_have_a_name() {
        for (calls, mode) in [
            (&[(FRESH, 20)][..], Mode::Healthy),
            (&[(FRESH, 19), (Ending::Timeout, 1)], Mode::Healthy),
            (&[(FRESH, 18), (Ending::Error, 2)], Mode::Partial),
            (&[(Ending::Error, 20)], Mode::Down),
            (&[(Ending::Error, 17), (FRESH, 3)], Mode::Partial),
            (&[(Ending::Timeout, 10), (FRESH, 10)], Mode::SlowOrCut),
            (&[(OLD, 11), (FRESH, 9)], Mode::Stale),
        ] {
            assert_eq!(after(calls).mode(), Some(mode), "{calls:?}");
        }
        assert_eq!(after(&[(Ending::Error, 19)]).mode(), None, "one call too few to say");
    }

    #[test]
    fn what_left_the_window_does_not_count() {
        let mut window = after(&[(Ending::Error, 20)]);
        (0..20).for_each(|_| window.push(FRESH, 3));
        assert_eq!(window.mode(), Some(Mode::Healthy));
        assert_eq!(window.sums(), Sums { answers: 20, fresh: 20, held: 60, ..Sums::default() });
    }

    #[test]
    fn slow_and_cut_off_look_the_same() {
        let (healthy, stale) = (after(&[(FRESH, 20)]).sums(), after(&[(OLD, 20)]).sums());
        assert!(healthy.ends_alike(&stale, 0.02) && healthy.content_separates(&stale, 0.02));
        let cut = after(&[(Ending::Timeout, 20)]).sums();
        assert!(cut.ends_alike(&cut, 0.02) && !cut.content_separates(&cut, 0.02));
        assert!(!cut.ends_alike(&healthy, 0.02) && cut.content_separates(&stale, 0.02));
    }
}
