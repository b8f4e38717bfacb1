//! Numbers for tests: they look random and are the same in every run.

use crate::resilience::retry::{SCATTER_STEP, scatter};

/// Dice of one seed (splitmix64).
pub struct Dice(pub u64);

impl Dice {
    /// One of the sides, from 0 on.
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(SCATTER_STEP);
        scatter(self.0) % sides
    }

    /// Of any size with fewer than so many bits.
    pub fn size(&mut self, bits: u64) -> u64 {
        let bits = self.roll(bits);
        self.roll(1 << bits)
    }

    /// True once in so many.
    pub fn one_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }

    /// One of these, if there are any.
    pub fn pick<T>(&mut self, of: impl IntoIterator<Item = T>) -> Option<T> {
        let mut all: Vec<T> = of.into_iter().collect();
        (!all.is_empty()).then(|| all.swap_remove(self.roll(all.len() as u64) as usize))
    }
}
