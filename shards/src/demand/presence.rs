//! Which blocks of a prefix are present, one bit a block, searched by words.

use std::ops::Range;

/// A set of block positions `0..positions`; all absent at first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PresenceBits {
    words: Vec<u64>,
    positions: u32,
}

impl PresenceBits {
    /// A set over `positions` blocks, none present.
    #[must_use]
    pub fn new(positions: u32) -> Self {
        let mut bits = PresenceBits::default();
        bits.reset(positions);
        bits
    }

    /// Makes it a set over `positions` blocks, none present, keeping its memory.
    pub fn reset(&mut self, positions: u32) {
        self.words.clear();
        self.words.resize(positions.div_ceil(64) as usize, 0);
        self.positions = positions;
    }

    /// Blocks it speaks of.
    #[must_use]
    pub fn positions(&self) -> u32 {
        self.positions
    }

    /// The block at `position` is present.
    ///
    /// # Panics
    /// If it does not speak of that block.
    pub fn set(&mut self, position: u32) {
        assert!(position < self.positions, "a block of the prefix");
        self.words[(position / 64) as usize] |= 1 << (position % 64);
    }

    /// The block at `position` is not present (any more).
    ///
    /// # Panics
    /// If it does not speak of that block.
    pub fn clear(&mut self, position: u32) {
        assert!(position < self.positions, "a block of the prefix");
        self.words[(position / 64) as usize] &= !(1 << (position % 64));
    }

    /// Whether the block at `position` is present.
    ///
    /// # Panics
    /// If it does not speak of that block.
    #[must_use]
    pub fn get(&self, position: u32) -> bool {
        assert!(position < self.positions, "a block of the prefix");
        self.words[(position / 64) as usize] >> (position % 64) & 1 == 1
    }

    /// Blocks present.
    #[must_use]
    pub fn present(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// The first block of `range` that is not present.
    ///
    /// # Panics
    /// If it does not speak of all of the range.
    #[must_use]
    pub fn first_missing(&self, range: Range<u32>) -> Option<u32> {
        self.missing_words(range)
            .find(|(_, missing)| *missing != 0)
            .map(|(first, missing)| first + missing.trailing_zeros())
    }

    /// The last block of `range` that is not present.
    ///
    /// # Panics
    /// If it does not speak of all of the range.
    #[must_use]
    pub fn last_missing(&self, range: Range<u32>) -> Option<u32> {
        self.missing_words(range)
            .rev()
            .find(|(_, missing)| *missing != 0)
            .map(|(first, missing)| first + 63 - missing.leading_zeros())
    }

    /// For each word that `range` touches: the position of its first bit, and its blocks in `range`
    /// that are not present.
    fn missing_words(&self, range: Range<u32>) -> impl DoubleEndedIterator<Item = (u32, u64)> {
        assert!(range.end <= self.positions, "blocks of the prefix");
        let words = if range.is_empty() { 0..0 } else { range.start / 64..range.end.div_ceil(64) };
        words.map(move |word| {
            let first = word * 64;
            let mut missing = !self.words[word as usize];
            if range.start > first {
                missing &= u64::MAX << (range.start - first);
            }
            if range.end - first < 64 {
                missing &= (1 << (range.end - first)) - 1;
            }
            (first, missing)
        })
    }
}
