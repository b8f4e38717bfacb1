//! Snapshot permits of a node: how many snapshots are served, or received, at a time.
//!
//! There are fewer permits than shards, so the room lives on shard 0 and is asked by mail (chapter
//! 2.10). First come, first served; who waits is told its place, so that the other end of its session
//! can say why nothing comes. A wish ends exactly once, by being given back, whether it was granted,
//! still waits, or its grant is in the mail.

use std::collections::{BTreeSet, VecDeque};

use orbitkv_wire::identity::ShardIndex;
use thiserror::Error;

use super::PermitTicket;

/// Snapshots that a node serves at a time, and that it receives at a time (chapter 2.10).
pub const SNAPSHOTS_MAX: usize = 2;

/// A wish of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Applicant {
    /// The shard.
    pub shard: ShardIndex,
    /// What it calls the wish.
    pub ticket: PermitTicket,
}

/// What an applicant is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermitEffect {
    /// It holds a permit until it gives it back.
    Granted(Applicant),
    /// It waits.
    Waits {
        /// Who.
        applicant: Applicant,
        /// Its place: 1 is next.
        position: u32,
    },
}

/// The queue is full: the wish comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no room for another wish for a snapshot permit")]
pub struct QueueFull(pub Applicant);

/// The permits and who waits for one.
#[derive(Debug)]
pub struct Permits {
    permits_max: usize,
    queue_max: usize,
    holders: BTreeSet<Applicant>,
    /// Holders that have not been told.
    granted: VecDeque<Applicant>,
    queue: VecDeque<Applicant>,
    /// Places of the queue before this one have been told as they are.
    told: usize,
}

impl Permits {
    /// `permits_max` permits and room for `queue_max` that wait.
    ///
    /// # Panics
    /// If there is no permit at all.
    #[must_use]
    pub fn new(permits_max: usize, queue_max: usize) -> Permits {
        assert!(permits_max > 0, "without a permit nobody is ever served");
        Permits {
            permits_max,
            queue_max,
            holders: BTreeSet::new(),
            granted: VecDeque::new(),
            queue: VecDeque::new(),
            told: 0,
        }
    }

    /// A shard wants a permit.
    ///
    /// # Errors
    /// [`QueueFull`] with the wish.
    ///
    /// # Panics
    /// If it wishes this already.
    pub fn request(&mut self, applicant: Applicant) -> Result<(), QueueFull> {
        let known = self.holders.contains(&applicant) || self.queue.contains(&applicant);
        assert!(!known, "{applicant:?} wishes twice");
        if self.holders.len() < self.permits_max {
            self.grant(applicant);
        } else if self.queue.len() < self.queue_max {
            self.queue.push_back(applicant);
        } else {
            return Err(QueueFull(applicant));
        }
        self.assert_invariants();
        Ok(())
    }

    /// A wish has ended, granted or not.
    ///
    /// # Panics
    /// If there is no such wish.
    pub fn give_back(&mut self, applicant: Applicant) {
        if self.holders.remove(&applicant) {
            self.granted.retain(|other| *other != applicant);
            if let Some(next) = self.queue.pop_front() {
                self.told = 0;
                self.grant(next);
            }
        } else {
            let place = self.queue.iter().position(|other| *other == applicant);
            let place = place.unwrap_or_else(|| panic!("{applicant:?} gives back what it has not"));
            self.queue.remove(place);
            self.told = self.told.min(place);
        }
        self.assert_invariants();
    }

    /// The next thing to tell somebody.
    pub fn poll_effect(&mut self) -> Option<PermitEffect> {
        if let Some(applicant) = self.granted.pop_front() {
            return Some(PermitEffect::Granted(applicant));
        }
        let applicant = *self.queue.get(self.told)?;
        self.told += 1;
        let position = u32::try_from(self.told).expect("the queue is bounded by sessions");
        Some(PermitEffect::Waits { applicant, position })
    }

    /// Permits that are held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.holders.len()
    }

    /// Wishes that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    fn grant(&mut self, applicant: Applicant) {
        self.holders.insert(applicant);
        self.granted.push_back(applicant);
    }

    fn assert_invariants(&self) {
        assert!(self.holders.len() <= self.permits_max, "more permits are held than there are");
        assert!(self.queue.len() <= self.queue_max, "the queue keeps its bound");
        assert!(
            self.queue.is_empty() || self.holders.len() == self.permits_max,
            "nobody waits for a free permit"
        );
        assert!(self.granted.len() <= self.holders.len() && self.told <= self.queue.len());
    }
}

#[cfg(test)]
mod tests;
