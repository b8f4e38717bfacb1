//! Pacing: how fast metadata leaves a shard, whoever it is for.
//!
//! A token bucket, kept as the moment at which it would be full again: taking bytes moves that moment
//! away, time comes nearer by itself, and nothing has to be refilled.

use std::time::Duration;

use crate::time::Moment;

/// A bucket of `burst_bytes` that fills at `bytes_per_second`.
#[derive(Debug)]
pub struct Pacing {
    bytes_per_second: u64,
    burst: Duration,
    burst_bytes: usize,
    /// When the bucket will be full if nothing more is taken.
    full_at: Moment,
}

impl Pacing {
    /// A full bucket.
    #[must_use]
    pub fn new(bytes_per_second: u64, burst_bytes: usize) -> Pacing {
        let mut pacing =
            Pacing { bytes_per_second, burst: Duration::ZERO, burst_bytes, full_at: Moment::default() };
        pacing.burst = pacing.time_of(burst_bytes);
        pacing
    }

    /// When `bytes` may leave; now or earlier if at once.
    ///
    /// # Panics
    /// If the bucket never holds that much: frames are bounded by the burst.
    #[must_use]
    pub fn ready_at(&self, bytes: usize) -> Moment {
        assert!(bytes <= self.burst_bytes, "a frame of {bytes} bytes is larger than the burst");
        let spare = self.burst - self.time_of(bytes);
        Moment(self.full_at.0.saturating_sub(u64::try_from(spare.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// `bytes` leave. What may not wait is charged as well, and those that can wait pay for it.
    pub fn charge(&mut self, bytes: usize, now: Moment) {
        self.full_at = self.full_at.max(now) + self.time_of(bytes);
    }

    /// The time in which `bytes` fill, rounded up so that rounding never lets more through.
    fn time_of(&self, bytes: usize) -> Duration {
        let nanos = (bytes as u128 * 1_000_000_000).div_ceil(u128::from(self.bytes_per_second));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_leaves_at_once_and_then_the_rate_holds() {
        let mut pacing = Pacing::new(1_000, 100);
        let start = Moment(5_000_000_000);
        for _ in 0..10 {
            assert!(pacing.ready_at(10) <= start);
            pacing.charge(10, start);
        }
        let tenth = Duration::from_millis(10);
        assert_eq!(pacing.ready_at(10), start + tenth, "ten bytes fill in a hundredth of a second");
        assert_eq!(pacing.ready_at(100), start + tenth * 10);
        let mut now = start;
        let mut left = 0;
        while now < start + Duration::from_secs(2) {
            now = now.max(pacing.ready_at(7));
            pacing.charge(7, now);
            left += 7;
        }
        assert!((1_990..=2_010).contains(&left), "{left} bytes in two seconds");
    }

    #[test]
    fn a_rest_never_saves_more_than_the_burst() {
        let mut pacing = Pacing::new(1_000, 100);
        pacing.charge(100, Moment(0));
        let later = Moment(0) + Duration::from_secs(60);
        assert!(pacing.ready_at(100) <= later);
        pacing.charge(100, later);
        assert_eq!(pacing.ready_at(1), later + Duration::from_millis(1));
    }

    #[test]
    fn what_may_not_wait_is_paid_by_those_that_can() {
        let mut pacing = Pacing::new(1_000, 100);
        pacing.charge(250, Moment(0));
        assert_eq!(pacing.ready_at(50), Moment(0) + Duration::from_millis(200));
    }
}
