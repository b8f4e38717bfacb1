//! Which resident leaves DRAM next. Three policies behind one small trait, because the choice between
//! them is a measurement (`orbitkv-bench eviction`, ADR 0003), not an opinion; the node uses
//! [`DramPolicy`] by its concrete type.
//!
//! Prefix caches add one thing to the textbook: a block without its parents is useless. The caller
//! decides the order in which it inserts and touches the blocks of a request; ADR 0003 says which.

mod ghost;
mod lru;
mod queue;
mod s3_fifo;
mod sieve;
#[cfg(test)]
mod tests;

pub use lru::Lru;
pub use s3_fifo::S3Fifo;
pub use sieve::Sieve;

use orbitkv_wire::identity::KeyHash;

use crate::key::EntryId;

/// The policy a node ships with; ADR 0003 has the measurement.
pub type DramPolicy = Lru;

/// An order of eviction over the residents of one shard. It holds ids only, in tables indexed by id
/// that grow with the highest id seen; below that, no call allocates.
pub trait EvictionPolicy {
    /// A block became resident. `hash` recognises it if it comes back after an eviction.
    ///
    /// # Panics
    /// If the id is already in.
    fn insert(&mut self, id: EntryId, hash: KeyHash);

    /// A resident was used.
    ///
    /// # Panics
    /// If the id is not in.
    fn touch(&mut self, id: EntryId);

    /// A resident left, as a victim or for any other reason.
    ///
    /// # Panics
    /// If the id is not in.
    fn remove(&mut self, id: EntryId);

    /// The next victim among the residents that `evictable` allows, after looking at no more than
    /// `budget` of them. It stays in until [`remove`](Self::remove).
    ///
    /// None only if none of the residents looked at is evictable. The next call looks at others, so
    /// that pinned residents are not looked at again before everything else has been, and calls
    /// without an answer are bounded by twice the number of residents over the budget, however many
    /// touches lie between them.
    fn victim(&mut self, budget: usize, evictable: &mut dyn FnMut(EntryId) -> bool) -> Option<EntryId>;

    /// Residents in the order.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether this resident is in.
    fn contains(&self, id: EntryId) -> bool;
}

/// The policies there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// Least recently used.
    Lru,
    /// SIEVE (NSDI '24).
    Sieve,
    /// S3-FIFO (SOSP '23).
    S3Fifo,
}

impl PolicyKind {
    /// Every policy, in the order tables list them.
    pub const ALL: [PolicyKind; 3] = [PolicyKind::Lru, PolicyKind::Sieve, PolicyKind::S3Fifo];

    /// The name in tables and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Lru => "lru",
            PolicyKind::Sieve => "sieve",
            PolicyKind::S3Fifo => "s3-fifo",
        }
    }

    /// An empty policy with tables for ids below `entries`.
    #[must_use]
    pub fn build(self, entries: usize) -> Box<dyn EvictionPolicy> {
        match self {
            PolicyKind::Lru => Box::new(Lru::new(entries)),
            PolicyKind::Sieve => Box::new(Sieve::new(entries)),
            PolicyKind::S3Fifo => Box::new(S3Fifo::new(entries)),
        }
    }
}
