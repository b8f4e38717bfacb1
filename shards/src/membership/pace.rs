//! How long to wait before trying again: longer with each failure in a row, and never all nodes at once.

use std::time::Duration;

use crate::resilience::retry::{Backoff, SCATTER_STEP, scatter};
use crate::time::Moment;

/// Bounds of a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseBounds {
    /// The shortest.
    pub min: Duration,
    /// The longest.
    pub max: Duration,
}

/// A sequence of tries.
#[derive(Debug)]
pub(super) struct Pace {
    bounds: PauseBounds,
    failures: u32,
    /// Nothing is tried before.
    due: Moment,
    /// State of the sequence that spreads the pauses.
    jitter: u64,
}

impl Pace {
    pub fn new(bounds: PauseBounds, jitter: u64, now: Moment) -> Pace {
        Pace { bounds, failures: 0, due: now, jitter }
    }

    /// Whether the next try may begin.
    pub fn is_due(&self, now: Moment) -> bool {
        now >= self.due
    }

    /// When it may begin.
    pub fn due(&self) -> Moment {
        self.due
    }

    /// A try went well.
    pub fn succeed(&mut self) {
        self.failures = 0;
    }

    /// A try failed: the next one waits between the shortest pause and one that doubles each time.
    pub fn fail(&mut self, now: Moment) {
        self.failures = self.failures.saturating_add(1);
        let backoff = Backoff { base: self.bounds.min, cap: self.bounds.max };
        let pause = backoff.pause_after(self.failures, self.random());
        self.due = now + pause;
    }

    /// Waits for about as long as it makes sense to, from half of `most` on.
    pub fn wait(&mut self, most: Duration, now: Moment) {
        let backoff = Backoff { base: most / 2, cap: most };
        let pause = backoff.pause_after(1, self.random());
        self.due = now + pause;
    }

    /// The next number of its sequence.
    fn random(&mut self) -> u64 {
        self.jitter = self.jitter.wrapping_add(SCATTER_STEP);
        scatter(self.jitter)
    }
}
