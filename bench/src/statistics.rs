//! The figures of repeated measurements: ratios of pairs, and latencies.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Repeated figures, in the order they were taken.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Figures(pub Vec<f64>);

impl Figures {
    /// Each figure of `self` over the one of `other` taken in the same turn.
    pub fn over(&self, other: &Figures) -> Figures {
        assert_eq!(self.0.len(), other.0.len(), "figures are compared in pairs");
        Figures(self.0.iter().zip(&other.0).map(|(ours, theirs)| ours / theirs).collect())
    }

    /// The middle one; the mean of the two middle ones of an even number.
    ///
    /// # Panics
    /// If there are none.
    pub fn median(&self) -> f64 {
        let sorted = self.sorted();
        let middle = sorted.len() / 2;
        if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    /// Smallest and largest.
    pub fn range(&self) -> (f64, f64) {
        let sorted = self.sorted();
        (sorted[0], sorted[sorted.len() - 1])
    }

    /// All of it.
    pub fn json(&self) -> Value {
        let (min, max) = self.range();
        json!({ "median": self.median(), "min": min, "max": max, "raw": self.0 })
    }
}

/// Latencies from 1 ns to a minute with three digits.
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// None yet.
    pub fn new() -> Latencies {
        Latencies(Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("constant bounds"))
    }

    /// Records one.
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record((latency.as_nanos() as u64).max(1));
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Value at a quantile, in microseconds.
    pub fn microseconds(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1e3
    }

    /// The percentiles of every report, in microseconds.
    pub fn json(&self) -> Value {
        json!({
            "count": self.0.len(),
            "p50": self.microseconds(0.5),
            "p90": self.microseconds(0.9),
            "p99": self.microseconds(0.99),
            "p99.9": self.microseconds(0.999),
            "max": self.0.max() as f64 / 1e3,
        })
    }
}

/// GB/s, of 10^9 bytes.
pub fn gigabytes_per_second(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1e9 / time.as_secs_f64()
}

/// The value that a share of all values do not exceed: one of them, at the nearest rank.
///
/// # Panics
/// If there are none.
pub fn nearest_rank(values: &[u64], share: f64) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_pairs_and_not_of_medians() {
        let ratios = Figures(vec![1.0, 10.0, 4.0]).over(&Figures(vec![2.0, 10.0, 16.0]));
        assert_eq!(ratios.0, [0.5, 1.0, 0.25]);
        assert_eq!((ratios.median(), ratios.range()), (0.5, (0.25, 1.0)));
        assert_eq!(Figures(vec![3.0, 1.0]).median(), 2.0);
    }

    #[test]
    fn latencies_are_in_microseconds() {
        let mut latencies = Latencies::new();
        (1..=1_000).for_each(|us| latencies.record(Duration::from_micros(us)));
        let p99 = latencies.json()["p99"].as_f64().unwrap();
        assert!((985.0..996.0).contains(&p99), "{p99}");
        assert_eq!(latencies.json()["count"], 1_000);
    }

    #[test]
    fn the_nearest_rank_is_a_value_that_was_there() {
        let thousand: Vec<u64> = (1..=1_000).rev().collect();
        assert_eq!(nearest_rank(&thousand, 0.99), 990);
        assert_eq!(nearest_rank(&thousand, 0.5), 500);
        assert_eq!(nearest_rank(&thousand, 1.0), 1_000);
        assert_eq!(nearest_rank(&[7], 0.99), 7);
        assert_eq!(nearest_rank(&[1, 2, 3], 0.0), 1);
    }
}
