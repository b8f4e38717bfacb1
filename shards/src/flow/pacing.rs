//! A rate that is kept: tokens that come back with time, up to a burst.
//!
//! Whoever takes no more than there is sends in any span of time at most its rate times that span and one burst. The
//! arithmetic is in whole tokens of a nanosecond's worth of a byte, so that nothing is rounded in anybody's favour.

use std::num::NonZeroU64;
use std::time::Duration;

use crate::time::Moment;

/// Time in which a bucket refills: less than a core may be late costs throughput, more is a longer burst.
const BURST_TIME: Duration = Duration::from_millis(20);

/// Least burst in bytes, whatever the rate: one piece of the largest size goes at once.
pub const BURST_BYTES_MIN: u64 = 64 * 1024;

/// Least rate of a core in bytes a second: below it a piece of the smallest size takes longer than a peer waits for a
/// word.
pub const RATE_BYTES_PER_SECOND_MIN: u64 = 64 * 1024;

const NANOS: u128 = 1_000_000_000;

/// Bytes a second, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(NonZeroU64);

impl Rate {
    /// So many bytes a second; none is no rate.
    #[must_use]
    pub const fn new(bytes_a_second: u64) -> Option<Rate> {
        match NonZeroU64::new(bytes_a_second) {
            Some(rate) => Some(Rate(rate)),
            None => None,
        }
    }

    /// In bytes a second.
    #[must_use]
    pub const fn bytes_a_second(self) -> u64 {
        self.0.get()
    }

    /// What part `index` of `parts` has of it. The shares add up to the whole; `None` if there is not a byte for each.
    ///
    /// # Panics
    /// If there is no such part.
    #[must_use]
    pub fn share(self, index: u16, parts: u16) -> Option<Rate> {
        assert!(index < parts, "part {index} of {parts}");
        let (whole, parts, index) = (self.0.get(), u64::from(parts), u64::from(index));
        Rate::new(whole / parts + u64::from(index < whole % parts))
    }

    /// Bytes that may go at once after a rest.
    #[must_use]
    pub fn burst_bytes(self) -> u64 {
        self.bytes_in(BURST_TIME).max(BURST_BYTES_MIN)
    }

    /// Whole bytes in a span of time.
    #[must_use]
    pub fn bytes_in(self, time: Duration) -> u64 {
        u64::try_from(time.as_nanos().saturating_mul(u128::from(self.0.get())) / NANOS).unwrap_or(u64::MAX)
    }

    /// The time that bytes take.
    #[must_use]
    pub fn time_for(self, bytes: u64) -> Duration {
        let nanos = (u128::from(bytes) * NANOS).div_ceil(u128::from(self.0.get()));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Tokens of one rate.
#[derive(Clone, Debug)]
pub struct Pacer {
    rate: Rate,
    burst_bytes: u64,
    /// Tokens at `at`, a billion to a byte; below zero after something larger than a burst.
    tokens: i128,
    at: Moment,
}

impl Pacer {
    /// A full bucket.
    #[must_use]
    pub fn new(rate: Rate) -> Pacer {
        let burst_bytes = rate.burst_bytes();
        Pacer { rate, burst_bytes, tokens: tokens_of(burst_bytes), at: Moment(0) }
    }

    /// The rate that it keeps.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Bytes that may go at once after a rest.
    #[must_use]
    pub fn burst_bytes(&self) -> u64 {
        self.burst_bytes
    }

    /// Bytes that may go now.
    #[must_use]
    pub fn room(&self, now: Moment) -> u64 {
        let bytes = self.tokens_at(now).max(0).unsigned_abs() / NANOS;
        u64::try_from(bytes).expect("no more than a burst")
    }

    /// Bytes go. More than there is room for puts the bucket in debt, which is paid before anything else goes.
    pub fn take(&mut self, bytes: u64, now: Moment) {
        self.tokens = self.tokens_at(now) - tokens_of(bytes);
        self.at = self.at.max(now);
        assert!(self.tokens <= tokens_of(self.burst_bytes), "a bucket holds a burst");
    }

    /// When there is room for so many bytes, or for a burst if they are more.
    #[must_use]
    pub fn ready_at(&self, bytes: u64) -> Moment {
        let lacking = tokens_of(bytes.min(self.burst_bytes)) - self.tokens;
        let nanos = lacking.max(0).unsigned_abs().div_ceil(u128::from(self.rate.bytes_a_second()));
        self.at + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn tokens_at(&self, now: Moment) -> i128 {
        let nanos = i128::from(now.0.saturating_sub(self.at.0));
        let earned = nanos * i128::from(self.rate.bytes_a_second());
        (self.tokens + earned).min(tokens_of(self.burst_bytes))
    }
}

fn tokens_of(bytes: u64) -> i128 {
    i128::from(bytes) * NANOS.cast_signed()
}

/// The time in which something could have gone but for a rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacedTime {
    since: Option<Moment>,
    total: Duration,
}

impl PacedTime {
    /// Something waits for tokens alone.
    pub fn begin(&mut self, now: Moment) {
        self.since.get_or_insert(now);
    }

    /// Nothing does any more.
    pub fn end(&mut self, now: Moment) {
        if let Some(since) = self.since.take() {
            self.total += now.since(since);
        }
    }

    /// In all, up to the last end.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.total
    }
}
