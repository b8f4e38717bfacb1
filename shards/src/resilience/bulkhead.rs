//! Bulkhead: separate pools, so that one class of work that holds its places for long cannot take those of
//! another. A refusal while a neighbour had room is the price, and it is counted.

use thiserror::Error;

/// A pool must have this many times its usual load, or a usual day is refused by the bulkhead alone.
pub const HEADROOM: f64 = 1.3;

/// Classes of work of a node that have places of their own.
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
    pub places: u32,
    /// Places that are taken on a usual day.
    pub usual_load: f64,
}

/// A refusal: the class's pool is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// Places that were free in all other pools at that instant.
    pub idle_elsewhere: u64,
}

/// Pools of places, each for the work that may take nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pools {
    pools: Vec<Pool>,
    refused_beside_idle: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Pool {
    places: u32,
    taken: u32,
    refused: u64,
}

impl Pools {
    /// Pools of these sizes, whatever their load.
    #[must_use]
    pub fn new(places: &[u32]) -> Pools {
        let pool = |places: &u32| Pool { places: *places, taken: 0, refused: 0 };
        Pools { pools: places.iter().map(pool).collect(), refused_beside_idle: 0 }
    }

    /// Pools with room for their usual load and [`HEADROOM`]: what a node is started with.
    ///
    /// # Errors
    /// The first pool that is too small.
    pub fn sized(places: &[u32], usual_loads: &[f64]) -> Result<Pools, TooSmall> {
        for (pool, (places, usual_load)) in places.iter().zip(usual_loads).enumerate() {
            if f64::from(*places) < HEADROOM * usual_load {
                return Err(TooSmall { pool, places: *places, usual_load: *usual_load });
            }
        }
        Ok(Pools::new(places))
    }

    /// Takes a place of a pool.
    ///
    /// # Errors
    /// Says what was idle elsewhere if the pool has none: that is not lent, it is only counted.
    pub fn take(&mut self, pool: usize) -> Result<(), Full> {
        if self.pools[pool].taken < self.pools[pool].places {
            self.pools[pool].taken += 1;
            return Ok(());
        }
        let others = self.pools.iter().enumerate().filter(|(index, _)| *index != pool);
        let idle_elsewhere = others.map(|(_, other)| u64::from(other.places - other.taken)).sum();
        self.pools[pool].refused += 1;
        self.refused_beside_idle += u64::from(idle_elsewhere > 0);
        Err(Full { idle_elsewhere })
    }

    /// Gives a place back.
    ///
    /// # Panics
    /// If none was taken there.
    pub fn give_back(&mut self, pool: usize) {
        let taken = &mut self.pools[pool].taken;
        *taken = taken.checked_sub(1).expect("a place that was taken");
    }

    /// Places taken in all pools.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.pools.iter().map(|pool| u64::from(pool.taken)).sum()
    }

    /// Refusals of a pool.
    #[must_use]
    pub fn refused(&self, pool: usize) -> u64 {
        self.pools[pool].refused
    }

    /// Refusals while another pool had a place free.
    #[must_use]
    pub const fn refused_beside_idle(&self) -> u64 {
        self.refused_beside_idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_pool_takes_nothing_of_its_neighbour() {
        let mut pools = Pools::new(&[1, 2]);
        assert_eq!(pools.take(0), Ok(()));
        assert_eq!(pools.take(0), Err(Full { idle_elsewhere: 2 }));
        assert_eq!((pools.take(1), pools.take(1)), (Ok(()), Ok(())));
        assert_eq!(pools.take(0), Err(Full { idle_elsewhere: 0 }));
        assert_eq!((pools.refused(0), pools.refused_beside_idle(), pools.taken()), (2, 1, 3));
        pools.give_back(0);
        assert_eq!(pools.take(0), Ok(()));
    }

    #[test]
    fn nobody_takes_the_places_of_control() {
        let mut pools = Pools::new(&[1; Class::ALL.len()]);
        for class in Class::ALL.into_iter().filter(|class| *class != Class::Control) {
            assert!(pools.take(class.pool()).is_ok() && pools.take(class.pool()).is_err(), "{class:?}");
        }
        assert_eq!(pools.take(Class::Control.pool()), Ok(()), "however full all others are");
    }

    #[test]
    fn a_pool_without_headroom_is_refused() {
        let error = Pools::sized(&[24, 5], &[16.67, 5.83]).expect_err("fuller than full on a usual day");
        assert_eq!(error, TooSmall { pool: 1, places: 5, usual_load: 5.83 });
        assert!(error.to_string().contains("needs 1.3 times"), "{error}");
        assert!(Pools::sized(&[13], &[10.0]).is_ok() && Pools::sized(&[12], &[10.0]).is_err());
    }
}
