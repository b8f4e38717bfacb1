//! Admission: bounded pools, from which everything an operation will need is taken before it
//! begins. A permit gives its share back when it is dropped, on every path.
//!
//! What may be taken, and what a refusal is counted as, is [`Pools`]' to say; here are the handles.

use std::cell::RefCell;
use std::rc::Rc;

use crate::resilience::bulkhead::{Account, Pools};

/// A bounded resource of one shard, counted in bytes or in pieces. Clones are the same pool.
#[derive(Clone, Debug)]
pub struct Pool {
    side_by_side: Rc<SideBySide>,
    index: usize,
}

/// Pools that count the same; none takes anything of another.
#[derive(Debug)]
struct SideBySide {
    names: Vec<&'static str>,
    pools: RefCell<Pools>,
}

/// A share of a [`Pool`], given back on drop.
#[derive(Debug)]
#[must_use = "a permit that is dropped at once reserves nothing"]
pub struct Permit {
    pool: Pool,
    amount: u64,
}

impl Pool {
    /// A pool of `capacity` units that has no neighbour; `name` appears in assertions.
    #[must_use]
    pub fn new(name: &'static str, capacity: u64) -> Pool {
        let [pool] = Pool::side_by_side([(name, capacity)]);
        pool
    }

    /// Neighbours by name and capacity, all of the same unit: a refusal of one knows whether the others had room.
    #[must_use]
    pub fn side_by_side<const N: usize>(pools: [(&'static str, u64); N]) -> [Pool; N] {
        let (names, capacities) = (pools.map(|(name, _)| name), pools.map(|(_, capacity)| capacity));
        let pools = RefCell::new(Pools::new(&capacities));
        let side_by_side = Rc::new(SideBySide { names: names.to_vec(), pools });
        std::array::from_fn(|index| Pool { side_by_side: Rc::clone(&side_by_side), index })
    }

    /// Takes `amount`, or nothing at all.
    pub fn take(&self, amount: u64) -> Option<Permit> {
        let taken = self.side_by_side.pools.borrow_mut().take(self.index, amount);
        taken.ok().map(|()| Permit { pool: self.clone(), amount })
    }

    /// Counts that `amount` was refused by whoever looked at the room first.
    ///
    /// # Panics
    /// If there is room for it.
    pub fn refuse(&self, amount: u64) {
        let _full = self.side_by_side.pools.borrow_mut().refuse(self.index, amount);
    }

    /// What it has, and what has happened in it.
    #[must_use]
    pub fn account(&self) -> Account {
        self.side_by_side.pools.borrow().account(self.index)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.side_by_side.names[self.index]
    }

    /// Units taken now.
    #[must_use]
    pub fn in_use(&self) -> u64 {
        self.account().taken
    }

    /// Units that are free.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.account().free()
    }

    /// Most units ever taken at once.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.account().peak
    }

    /// Units there are.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.account().places
    }

    /// Times a share was asked for and refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.account().refused
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Permit { pool: Pool { side_by_side, index }, amount } = self;
        let mut pools = side_by_side.pools.borrow_mut();
        let in_use = pools.account(*index).taken;
        assert!(in_use >= *amount, "pool {} gives back more than was taken", side_by_side.names[*index]);
        pools.give_back(*index, *amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_never_exceeds_its_capacity_and_gets_everything_back() {
        let pool = Pool::new("test", 10);
        let first = pool.take(6).unwrap();
        assert!(pool.take(5).is_none());
        let second = pool.take(4).unwrap();
        assert_eq!((pool.in_use(), pool.peak(), pool.refused()), (10, 10, 1));
        drop(first);
        assert_eq!(pool.in_use(), 4);
        drop(second);
        assert_eq!((pool.in_use(), pool.peak()), (0, 10));
    }

    #[test]
    fn an_amount_that_overflows_is_refused() {
        let pool = Pool::new("test", u64::MAX);
        let _held = pool.take(1).unwrap();
        assert!(pool.take(u64::MAX).is_none());
    }

    #[test]
    fn neighbours_keep_what_they_have_and_a_refusal_beside_them_is_counted() {
        let [saves, lent] = Pool::side_by_side([("saves", 10), ("lent", 4)]);
        let held = saves.take(8).unwrap();
        assert!(saves.take(3).is_none() && saves.take(9).is_none());
        assert_eq!((saves.refused(), saves.account().refused_beside_idle), (2, 1), "3 of 2 and 4, 9 of 6");
        assert_eq!((lent.in_use(), lent.room(), lent.refused()), (0, 4, 0));
        drop(held);
        saves.refuse(11);
        assert_eq!((saves.in_use(), saves.refused(), saves.account().refused_beside_idle), (0, 3, 2));
    }
}
