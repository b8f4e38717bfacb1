//! Latencies as they are reported and kept: an HDR histogram with its percentiles, and its log for whoever looks closer.

use std::time::{Duration, SystemTime};

use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2Serializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use serde_json::{Value, json};

/// Steps that percentiles take for each halving of what is above them.
const STEPS_PER_HALVING: u32 = 5;

/// Latencies from 1 ns to a minute with three digits.
#[derive(Clone)]
pub struct Distribution {
    /// What they are of, one word.
    pub name: &'static str,
    histogram: Histogram<u64>,
}

impl Distribution {
    /// None yet.
    pub fn of(name: &'static str) -> Distribution {
        let histogram = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("constant bounds");
        Distribution { name, histogram }
    }

    /// Records one, in nanoseconds.
    pub fn record(&mut self, nanoseconds: u64) {
        self.histogram.saturating_record(nanoseconds.max(1));
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.histogram.len()
    }

    /// Value at a quantile, in milliseconds.
    pub fn milliseconds(&self, quantile: f64) -> f64 {
        self.histogram.value_at_quantile(quantile) as f64 / 1e6
    }

    /// The cells of its row in a table: p50, p90, p99, p99.9 and max in milliseconds, and how many there are.
    pub fn cells(&self) -> Vec<String> {
        let at = [0.5, 0.9, 0.99, 0.999, 1.0].map(|quantile| format!("{:.3}", self.milliseconds(quantile)));
        [self.name.to_owned()].into_iter().chain(at).chain([self.len().to_string()]).collect()
    }

    /// For a report: percentiles in microseconds, and the whole histogram, of nanoseconds, as base64 of HDR's V2 form.
    pub fn json(&self) -> Value {
        let micros = |quantile| self.histogram.value_at_quantile(quantile) as f64 / 1e3;
        let percentiles: Vec<_> = (self.histogram.iter_quantiles(STEPS_PER_HALVING))
            .map(|step| {
                json!({
                    "percentile": step.quantile_iterated_to() * 100.0,
                    "value_us": step.value_iterated_to() as f64 / 1e3,
                })
            })
            .collect();
        json!({
            "count": self.len(),
            "p50": micros(0.5),
            "p90": micros(0.9),
            "p99": micros(0.99),
            "p99.9": micros(0.999),
            "max": self.histogram.max() as f64 / 1e3,
            "percentiles": percentiles,
            "hdr_v2_base64": self.base64(),
        })
    }

    fn base64(&self) -> String {
        let log = self.log(SystemTime::UNIX_EPOCH, Duration::ZERO);
        log.trim_end().rsplit(',').next().unwrap_or_default().to_owned()
    }

    /// An HDR interval log with it as the one interval; values are nanoseconds, its own maximum is told in milliseconds.
    pub fn log(&self, began: SystemTime, lasted: Duration) -> String {
        let mut serializer = V2Serializer::new();
        let mut text = Vec::new();
        let mut builder = IntervalLogWriterBuilder::new();
        builder.with_max_value_divisor(1e6);
        if began > SystemTime::UNIX_EPOCH {
            builder.with_start_time(began);
        }
        let mut log = builder.begin_log_with(&mut text, &mut serializer).expect("memory takes it");
        let tag = Tag::new(self.name).expect("names have no commas and no spaces");
        log.write_histogram(&self.histogram, Duration::ZERO, lasted, Some(tag)).expect("memory takes it");
        String::from_utf8(text).expect("a log is text")
    }
}

#[cfg(test)]
mod tests {
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    use super::*;
    use crate::payload::splitmix64;

    /// Seeded values from microseconds to seconds, as latencies are.
    fn values() -> Vec<u64> {
        let mut state = 3;
        (0..20_000)
            .map(|_| 1_000 + splitmix64(&mut state) % (1 << (11 + splitmix64(&mut state) % 20)))
            .collect()
    }

    /// What base64 stands for, by its definition.
    fn bytes_of(base64: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        for four in base64.trim_end_matches('=').as_bytes().chunks(4) {
            let digit = |letter: &u8| match letter {
                b'A'..=b'Z' => letter - b'A',
                b'a'..=b'z' => letter - b'a' + 26,
                b'0'..=b'9' => letter - b'0' + 52,
                b'+' => 62,
                _ => 63,
            };
            let word = four.iter().fold(0u32, |word, letter| word << 6 | u32::from(digit(letter)));
            let whole = word << (6 * (4 - four.len()));
            bytes.extend(&whole.to_be_bytes()[1..four.len()]);
        }
        bytes
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_values() {
        let mut sorted = values();
        let mut distribution = Distribution::of("values");
        sorted.iter().for_each(|value| distribution.record(*value));
        sorted.sort_unstable();
        let json = distribution.json();
        for (name, quantile) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)] {
            let rank = (quantile * sorted.len() as f64).ceil() as usize;
            let right_ms = sorted[rank - 1] as f64 / 1e6;
            let told = [distribution.milliseconds(quantile), json[name].as_f64().expect("a number") / 1e3];
            for told_ms in told {
                assert!((told_ms / right_ms - 1.0).abs() < 2e-3, "{name}: {told_ms} for {right_ms}");
            }
        }
        assert_eq!((distribution.len(), &json["count"]), (20_000, &json!(20_000)));
    }

    #[test]
    fn nothing_is_lost_beyond_the_bounds() {
        let mut distribution = Distribution::of("values");
        [0, u64::MAX].into_iter().for_each(|value| distribution.record(value));
        assert_eq!(distribution.len(), 2);
        assert!(distribution.milliseconds(1.0) >= 60_000.0);
    }

    #[test]
    fn the_log_has_every_value_and_the_report_its_base64() {
        let mut distribution = Distribution::of("publication_install");
        values().into_iter().for_each(|value| distribution.record(value));
        let json = distribution.json();
        let rows = json["percentiles"].as_array().expect("an array");
        let value = |row: &Value| (row["percentile"].as_f64(), row["value_us"].as_f64());
        assert!(rows.len() > 20 && rows.windows(2).all(|pair| value(&pair[0]) <= value(&pair[1])));
        assert_eq!(value(&rows[rows.len() - 1]).0, Some(100.0));

        let log = distribution.log(SystemTime::now(), Duration::from_secs(3));
        let entries = IntervalLogIterator::new(log.as_bytes()).collect::<Result<Vec<_>, _>>().expect("a log");
        let interval = entries.iter().find_map(|entry| match entry {
            LogEntry::Interval(interval) => Some(interval),
            _ => None,
        });
        let interval = interval.expect("one interval");
        assert_eq!(interval.tag().map(|tag| tag.as_str()), Some("publication_install"));
        assert_eq!(json["hdr_v2_base64"], interval.encoded_histogram());
        let encoded = bytes_of(interval.encoded_histogram());
        let read: Histogram<u64> = Deserializer::new().deserialize(&mut &encoded[..]).expect("a histogram");
        let mut right: Histogram<u64> = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds");
        values().into_iter().for_each(|value| right.saturating_record(value));
        assert_eq!(read, right);
    }
}
