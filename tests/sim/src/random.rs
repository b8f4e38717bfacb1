//! The one source of chance of a simulation: a small generator that a seed decides completely.
//!
//! Parts of the world draw from forks of their own, so that a change in one part does not shift the
//! luck of all others and a failing seed stays close to what it was.

use std::ops::RangeInclusive;
use std::time::Duration;

/// A stream of chance.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream that `seed` decides.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// A stream of its own for the part of the world called `name`.
    #[must_use]
    pub fn fork(&self, name: &str) -> Random {
        let mixed = name.bytes().fold(self.0 ^ 0x6a09_e667_f3bc_c908, |state, byte| {
            (state ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23)
        });
        let mut forked = Random(mixed);
        forked.word();
        forked
    }

    /// 64 random bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// A number below `bound`; 0 if the bound is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }

    /// An index below `length`.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// A number of `range`.
    pub fn within(&mut self, range: &RangeInclusive<u64>) -> u64 {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    /// True `permille` times in a thousand.
    pub fn chance(&mut self, permille: u32) -> bool {
        self.below(1_000) < u64::from(permille)
    }

    /// A duration of `range`, in microseconds.
    pub fn micros(&mut self, range: &RangeInclusive<u64>) -> Duration {
        Duration::from_nanos(self.within(&(range.start() * 1_000..=range.end() * 1_000)))
    }

    /// One of `all`.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.index(all.len())]
    }

    /// 128 random bits.
    pub fn draw(&mut self) -> u128 {
        u128::from(self.word()) << 64 | u128::from(self.word())
    }

    /// 16 random bytes.
    pub fn bytes(&mut self) -> [u8; 16] {
        self.draw().to_le_bytes()
    }
}

/// A running hash over what happened: equal for equal runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct History(u64);

impl History {
    /// One more number of the history.
    pub fn note(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 29;
    }

    /// Bytes of the history.
    pub fn note_bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.note(u64::from_le_bytes(*word));
        }
        for byte in rest {
            self.note(u64::from(*byte));
        }
        self.note(bytes.len() as u64);
    }

    /// The hash of all of it.
    #[must_use]
    pub fn hash(self) -> u64 {
        self.0
    }
}
