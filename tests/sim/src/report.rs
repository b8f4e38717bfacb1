//! What a run says: as it goes, and in the end.

use std::time::Duration;

use orbitkv_shards::time::Moment;

use crate::counters::{Counter, Counters};
use crate::oracle::Violation;

/// Where lines go.
#[derive(Debug)]
pub enum Log {
    /// Nowhere.
    Quiet,
    /// To the terminal.
    Print,
    /// Into memory.
    Keep(Vec<String>),
}

impl Log {
    /// Says a line, if anybody listens.
    pub fn say(&mut self, now: Moment, line: impl FnOnce() -> String) {
        let line = move || format!("{:>13.6} s  {}", now.0 as f64 / 1e9, line());
        match self {
            Log::Quiet => {}
            Log::Print => println!("{}", line()),
            Log::Keep(lines) => lines.push(line()),
        }
    }

    /// The lines that were kept.
    #[must_use]
    pub fn into_lines(self) -> Vec<String> {
        match self {
            Log::Keep(lines) => lines,
            Log::Quiet | Log::Print => Vec::new(),
        }
    }
}

/// How long changes took from their journal to an installed view: modelled time, which meets no gate.
#[derive(Clone, Debug)]
pub struct Visibility {
    /// Changes by the bit length of their microseconds, with two bits of detail.
    counts: Vec<u64>,
}

impl Default for Visibility {
    fn default() -> Self {
        Visibility { counts: vec![0; 4 * 65] }
    }
}

impl Visibility {
    /// A change became visible after so long.
    pub fn note(&mut self, delay: Duration) {
        let micros = (delay.as_micros() as u64).max(4);
        let length = 63 - micros.leading_zeros() as usize;
        let detail = (micros >> (length - 2)) as usize & 3;
        self.counts[4 * length + detail] += 1;
    }

    /// Takes in another run's.
    pub fn absorb(&mut self, other: &Visibility) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
    }

    /// The upper end of the class in which the quantile lies.
    #[must_use]
    pub fn quantile(&self, permille: u64) -> Duration {
        let total: u64 = self.counts.iter().sum();
        let mut left = total * permille / 1_000;
        for (class, &count) in self.counts.iter().enumerate() {
            if left < count {
                let (length, detail) = (class / 4, class as u64 % 4);
                return Duration::from_micros((5 + detail) << (length.max(2) - 2));
            }
            left -= count;
        }
        Duration::ZERO
    }
}

/// What one seed came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// What was found, if anything.
    pub violation: Option<Violation>,
    /// Events.
    pub events: u64,
    /// Time that passed in the world.
    pub virtual_time: Duration,
    /// Hash over what happened.
    pub history: u64,
    /// What was met.
    pub counters: Counters,
    /// Frames that sources sent.
    pub frames: u64,
    /// Bytes of frames, both ways.
    pub frame_bytes: u64,
    /// Bytes given to the network, those of late and lost frames included.
    pub network_bytes: u64,
    /// From change to visible.
    pub visibility: Visibility,
    /// The log, if it was kept.
    pub lines: Vec<String>,
}

impl Report {
    /// The counters as a table, those that are zero marked.
    #[must_use]
    pub fn table(counters: &Counters) -> String {
        let line = |&counter: &Counter| {
            let count = counters.get(counter);
            let mark = if count == 0 { "  <- never" } else { "" };
            format!("  {:<24} {count:>12}{mark}\n", counter.name())
        };
        Counter::ALL.iter().map(line).collect()
    }
}
