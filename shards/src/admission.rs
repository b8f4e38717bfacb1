//! Admission: bounded pools, from which everything an operation will need is taken before it
//! begins. A permit gives its share back when it is dropped, on every path.

use std::cell::Cell;
use std::rc::Rc;

/// A bounded resource of one shard, counted in bytes or in pieces.
#[derive(Clone, Debug)]
pub struct Pool {
    state: Rc<PoolState>,
}

#[derive(Debug)]
struct PoolState {
    name: &'static str,
    capacity: u64,
    in_use: Cell<u64>,
    peak: Cell<u64>,
    refused: Cell<u64>,
}

/// A share of a [`Pool`], given back on drop.
#[derive(Debug)]
#[must_use = "a permit that is dropped at once reserves nothing"]
pub struct Permit {
    pool: Rc<PoolState>,
    amount: u64,
}

impl Pool {
    /// A pool of `capacity` units; `name` appears in assertions.
    #[must_use]
    pub fn new(name: &'static str, capacity: u64) -> Pool {
        Pool {
            state: Rc::new(PoolState {
                name,
                capacity,
                in_use: Cell::new(0),
                peak: Cell::new(0),
                refused: Cell::new(0),
            }),
        }
    }

    /// Takes `amount`, or nothing at all.
    pub fn take(&self, amount: u64) -> Option<Permit> {
        let state = &self.state;
        let wanted = state.in_use.get().checked_add(amount);
        match wanted.filter(|&wanted| wanted <= state.capacity) {
            Some(wanted) => {
                state.in_use.set(wanted);
                state.peak.set(state.peak.get().max(wanted));
                Some(Permit { pool: Rc::clone(state), amount })
            }
            None => {
                state.refused.set(state.refused.get() + 1);
                None
            }
        }
    }

    /// Units taken now.
    #[must_use]
    pub fn in_use(&self) -> u64 {
        self.state.in_use.get()
    }

    /// Most units ever taken at once.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.state.peak.get()
    }

    /// Units there are.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.state.capacity
    }

    /// Times a share was asked for and refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.state.refused.get()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let in_use = self.pool.in_use.get();
        assert!(in_use >= self.amount, "pool {} gives back more than was taken", self.pool.name);
        self.pool.in_use.set(in_use - self.amount);
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
}
