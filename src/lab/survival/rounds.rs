//! Rounds of a schedule: what fails from which round to which, both included.

use serde::{Deserialize, Serialize};

use crate::lab::refusal::{Refusal, holds, within};

/// Most rounds that a model of this group runs.
pub const ROUNDS_MAX: u32 = 100_000;

/// First and last round of each time that something is so.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rounds(Vec<[u32; 2]>);

impl Rounds {
    /// Refuses a first round behind the last one, and more than 64 times.
    pub fn check(&self, name: &str) -> Result<(), Refusal> {
        within(&format!("{name} (entries)"), self.0.len(), 0..=64)?;
        let ordered = |[first, last]: &[u32; 2]| first <= last;
        holds(self.0.iter().all(ordered), name, "is of pairs of a first and a last round", "swap them")
    }

    /// Whether it is so in this round.
    pub fn contain(&self, round: u32) -> bool {
        self.0.iter().any(|[first, last]| (*first..=*last).contains(&round))
    }

    /// Rounds from 1 to `rounds` in which it is so.
    pub fn count(&self, rounds: u32) -> usize {
        (1..=rounds).filter(|round| self.contain(*round)).count()
    }

    /// The first round of the first time.
    pub fn first(&self) -> Option<u32> {
        self.0.first().map(|[first, _]| *first)
    }
}
