//! Bulkhead: separate pools, so that one class of work that holds its places for long cannot take those of
//! another. A refusal while the neighbours had room is the price, and it is counted.
//!
//! What a pool counts, its *places*, is the caller's: requests, or bytes. Pools that stand side by side count the same.

use thiserror::Error;

/// A pool must have this many times its usual load, or a usual day is refused by the bulkhead alone.
pub const HEADROOM: f64 = 1.3;

/// Classes of work of a node that have places of their own. Control has all it needs and asks no pool, so that no other
/// class can take anything from it; a pool for it is what a model may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Reads and writes of the arena.
    Dram,
    /// Orders to the SSD.
    Ssd,
    /// Operations at and for other nodes.
    Peer,
    /// Drain copies, audits, prefetch.
    Background,
    /// Releases, acknowledgements, membership: what gives places back. No other class can take these.
    Control,
}

impl Class {
    /// All classes, in the order of their pools.
    pub const ALL: [Class; 5] = [Class::Dram, Class::Ssd, Class::Peer, Class::Background, Class::Control];

    /// The pool of this class where each has its own.
    #[must_use]
    pub const fn pool(self) -> usize {
        self as usize
    }
}

/// A pool that its usual load nearly fills.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error("pool {pool} has {places} places and a usual load of {usual_load}; it needs {HEADROOM} times that")]
pub struct TooSmall {
    /// Which pool.
    pub pool: usize,
    /// Places it has.
    pub places: u64,
    /// Places that are taken on a usual day.
    pub usual_load: f64,
}

/// A refusal: the pool has too few places left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// Places that were free in all other pools at that instant.
    pub idle_elsewhere: u64,
}

/// Pools of places, each for the work that may take nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pools {
    pools: Vec<Account>,
}

/// What one pool has and what has happened in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Places it has.
    pub places: u64,
    /// Places that are taken now.
    pub taken: u64,
    /// Most that were ever taken at once.
    pub peak: u64,
    /// Times it was asked for more than it had left.
    pub refused: u64,
    /// Of those, how often one pool for all would have had room.
    pub refused_beside_idle: u64,
}

impl Account {
    /// Places that are free.
    #[must_use]
    pub const fn free(&self) -> u64 {
        self.places - self.taken
    }
}

impl Pools {
    /// Pools of these sizes, whatever their load.
    #[must_use]
    pub fn new(places: &[u64]) -> Pools {
        let pools = places.iter().map(|&places| Account { places, ..Account::default() });
        Pools { pools: pools.collect() }
    }

    /// Pools with room for their usual load and [`HEADROOM`]: what a node is started with.
    ///
    /// # Errors
    /// The first pool that is too small.
    pub fn sized(places: &[u64], usual_loads: &[f64]) -> Result<Pools, TooSmall> {
        for (pool, (&places, &usual_load)) in places.iter().zip(usual_loads).enumerate() {
            if (places as f64) < HEADROOM * usual_load {
                return Err(TooSmall { pool, places, usual_load });
            }
        }
        Ok(Pools::new(places))
    }

    /// Takes so many places of a pool, or none.
    ///
    /// # Errors
    /// Says what was idle elsewhere if the pool has too few: that is not lent, it is only counted.
    pub fn take(&mut self, pool: usize, amount: u64) -> Result<(), Full> {
        let account = &mut self.pools[pool];
        if amount > account.free() {
            return Err(self.refuse(pool, amount));
        }
        account.taken += amount;
        account.peak = account.peak.max(account.taken);
        Ok(())
    }

    /// Counts that so many places were asked for and not taken, by whoever looked first.
    ///
    /// # Panics
    /// If the pool has them.
    pub fn refuse(&mut self, pool: usize, amount: u64) -> Full {
        let free = self.pools[pool].free();
        assert!(amount > free, "pool {pool} has room for {amount}");
        let others = self.pools.iter().enumerate().filter(|(index, _)| *index != pool);
        let idle_elsewhere = others.map(|(_, other)| other.free()).fold(0, u64::saturating_add);
        let account = &mut self.pools[pool];
        account.refused += 1;
        account.refused_beside_idle += u64::from(idle_elsewhere.saturating_add(free) >= amount);
        Full { idle_elsewhere }
    }

    /// Gives places back.
    ///
    /// # Panics
    /// If fewer were taken there.
    pub fn give_back(&mut self, pool: usize, amount: u64) {
        let taken = &mut self.pools[pool].taken;
        *taken = taken.checked_sub(amount).expect("no more than was taken");
    }

    /// Places taken in all pools.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.pools.iter().map(|account| account.taken).sum()
    }

    /// What a pool has and what has happened in it.
    #[must_use]
    pub fn account(&self, pool: usize) -> Account {
        self.pools[pool]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_pool_takes_nothing_of_its_neighbour() {
        let mut pools = Pools::new(&[1, 2]);
        assert_eq!(pools.take(0, 1), Ok(()));
        assert_eq!(pools.take(0, 1), Err(Full { idle_elsewhere: 2 }));
        assert_eq!((pools.take(1, 1), pools.take(1, 1)), (Ok(()), Ok(())));
        assert_eq!(pools.take(0, 1), Err(Full { idle_elsewhere: 0 }));
        let full = Account { places: 1, taken: 1, peak: 1, refused: 2, refused_beside_idle: 1 };
        assert_eq!((pools.account(0), pools.taken()), (full, 3));
        assert_eq!((pools.account(1).refused, pools.account(1).refused_beside_idle), (0, 0));
        pools.give_back(0, 1);
        assert_eq!((pools.take(0, 1), pools.account(0).peak), (Ok(()), 1));
    }

    #[test]
    fn a_refusal_is_the_price_of_separate_pools_only_if_one_pool_would_have_had_room() {
        let beside = |amount| {
            let mut pools = Pools::new(&[10, 8]);
            assert_eq!((pools.take(0, 7), pools.take(1, 4)), (Ok(()), Ok(())));
            assert_eq!(pools.take(0, amount), Err(Full { idle_elsewhere: 4 }));
            (pools.account(0).refused_beside_idle, pools.account(0).taken)
        };
        assert_eq!((beside(7), beside(8)), ((1, 7), (0, 7)), "3 are free here and 4 there");
        let mut alone = Pools::new(&[u64::MAX]);
        assert_eq!((alone.take(0, 1), alone.take(0, u64::MAX)), (Ok(()), Err(Full { idle_elsewhere: 0 })));
        assert_eq!(alone.account(0).refused_beside_idle, 0, "it has no neighbour");
    }

    #[test]
    fn nobody_takes_the_places_of_control() {
        let mut pools = Pools::new(&[1; Class::ALL.len()]);
        for class in Class::ALL.into_iter().filter(|class| *class != Class::Control) {
            assert!(pools.take(class.pool(), 1).is_ok() && pools.take(class.pool(), 1).is_err(), "{class:?}");
        }
        assert_eq!(pools.take(Class::Control.pool(), 1), Ok(()), "however full all others are");
    }

    #[test]
    fn a_pool_without_headroom_is_refused() {
        let error = Pools::sized(&[24, 5], &[16.67, 5.83]).expect_err("fuller than full on a usual day");
        assert_eq!(error, TooSmall { pool: 1, places: 5, usual_load: 5.83 });
        assert!(error.to_string().contains("needs 1.3 times"), "{error}");
        assert!(Pools::sized(&[13], &[10.0]).is_ok() && Pools::sized(&[12], &[10.0]).is_err());
    }
}
