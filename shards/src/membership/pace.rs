//! How long to wait before trying again: longer with each failure in a row, and never all nodes at once.

use std::time::Duration;

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
        let most =
            self.bounds.min.saturating_mul(2u32.saturating_pow(self.failures + 1)).min(self.bounds.max);
        self.failures = (self.failures + 1).min(31);
        self.rest(self.bounds.min, most, now);
    }

    /// Waits for about as long as it makes sense to, from half of `most` on.
    pub fn wait(&mut self, most: Duration, now: Moment) {
        self.rest(most / 2, most, now);
    }

    fn rest(&mut self, least: Duration, most: Duration, now: Moment) {
        // SplitMix64: every seed gives another sequence.
        self.jitter = self.jitter.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.jitter;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let span = most.saturating_sub(least).as_nanos() as u64;
        self.due = now + least + Duration::from_nanos(mixed % (span + 1));
    }
}
