//! Which blocks an owner has: its own keys in order, the oldest of which end as new ones begin.

use std::ops::Range;

use orbitkv::client::BlockHash;

use crate::payload::block_hash;

/// The live keys of an owner: numbers from the oldest to the newest. A number is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    seed: u64,
    /// Which owner's: the generation of its payload.
    pub owner: u64,
    first: u64,
    next: u64,
}

impl Keys {
    /// No keys of an owner.
    pub fn none(seed: u64, owner: u64) -> Keys {
        Keys { seed, owner, first: 0, next: 0 }
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.next - self.first
    }

    /// Their numbers.
    pub fn live(&self) -> Range<u64> {
        self.first..self.next
    }

    /// The numbers that follow, which are live from now on.
    pub fn begin(&mut self, count: u64) -> Range<u64> {
        self.next += count;
        self.next - count..self.next
    }

    /// The oldest numbers, which are not live any more.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn end(&mut self, count: u64) -> Range<u64> {
        assert!(count <= self.len(), "{count} of {} keys end", self.len());
        self.first += count;
        self.first - count..self.first
    }

    /// The name of the block with a number.
    pub fn name(&self, number: u64) -> BlockHash {
        block_hash(self.seed, self.owner, number)
    }

    /// The names of blocks.
    pub fn names(&self, numbers: Range<u64>) -> Vec<BlockHash> {
        numbers.map(|number| self.name(number)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_end_and_no_number_comes_back() {
        let mut keys = Keys::none(1, 4);
        assert_eq!(keys.begin(3), 0..3);
        assert_eq!(keys.end(2), 0..2);
        assert_eq!(keys.begin(2), 3..5);
        assert_eq!((keys.live(), keys.len()), (2..5, 3));
        let other = Keys::none(1, 5);
        assert!(
            keys.names(0..9).iter().all(|name| !other.names(0..9).contains(name)),
            "keys are their owner's"
        );
    }
}
