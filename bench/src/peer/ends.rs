//! The two ends of what is measured, and what they have used.

use std::time::Duration;

use serde::Serialize;

/// Something of the process that has the bytes, and of the one that wants them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ends<T> {
    /// Where the bytes are.
    pub source: T,
    /// Where they are read.
    pub reader: T,
}

impl Ends<Duration> {
    /// What came to it since `before`.
    pub fn since(&self, before: &Ends<Duration>) -> Ends<Duration> {
        Ends {
            source: self.source.saturating_sub(before.source),
            reader: self.reader.saturating_sub(before.reader),
        }
    }

    /// Adds another pass.
    pub fn add(&mut self, other: &Ends<Duration>) {
        self.source += other.source;
        self.reader += other.reader;
    }

    /// Processor seconds a GiB.
    pub fn per_gib(&self, bytes: u64) -> Ends<f64> {
        let gib = bytes as f64 / f64::from(1 << 30);
        Ends { source: self.source.as_secs_f64() / gib, reader: self.reader.as_secs_f64() / gib }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_told_a_gib() {
        let of = |source, reader| Ends {
            source: Duration::from_millis(source),
            reader: Duration::from_millis(reader),
        };
        let mut used = of(1_500, 900).since(&of(1_000, 700));
        assert_eq!(used, of(500, 200));
        used.add(&of(500, 100));
        assert_eq!(used.per_gib(2 << 30), Ends { source: 0.5, reader: 0.15 });
    }
}
