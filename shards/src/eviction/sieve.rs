//! SIEVE: residents stay in order of arrival, a use only sets a mark, and a hand goes from old to new,
//! clears marks and takes the first resident without one. The hand stays where it stopped, so a pinned
//! resident costs one step a round.

use orbitkv_wire::identity::KeyHash;

use super::EvictionPolicy;
use super::queue::{Links, Queue};
use crate::key::EntryId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Absent,
    Unused,
    Used,
}

/// Residents by arrival, with a mark each and a hand.
#[derive(Debug)]
pub struct Sieve {
    links: Links,
    arrival: Queue,
    marks: Vec<Mark>,
    /// The resident to look at next; none stands for the oldest.
    hand: Option<EntryId>,
}

impl Sieve {
    /// Empty, with tables for ids below `entries`.
    #[must_use]
    pub fn new(entries: usize) -> Sieve {
        Sieve {
            links: Links::new(entries),
            arrival: Queue::new(),
            marks: vec![Mark::Absent; entries],
            hand: None,
        }
    }

    /// Bytes of the tables for ids below `entries`.
    #[must_use]
    pub const fn table_bytes(entries: usize) -> usize {
        entries * (Links::BYTES_PER_ENTRY + size_of::<Mark>())
    }
}

impl EvictionPolicy for Sieve {
    fn insert(&mut self, id: EntryId, _hash: KeyHash) {
        self.links.cover(id);
        if id.0 as usize >= self.marks.len() {
            self.marks.resize(id.0 as usize + 1, Mark::Absent);
        }
        assert!(!self.contains(id), "an entry is inserted once");
        self.marks[id.0 as usize] = Mark::Unused;
        self.arrival.push(&mut self.links, id);
    }

    fn touch(&mut self, id: EntryId) {
        assert!(self.contains(id), "only residents are touched");
        self.marks[id.0 as usize] = Mark::Used;
    }

    fn remove(&mut self, id: EntryId) {
        assert!(self.contains(id), "only residents are removed");
        if self.hand == Some(id) {
            self.hand = self.links.newer(id);
        }
        self.marks[id.0 as usize] = Mark::Absent;
        self.arrival.remove(&mut self.links, id);
    }

    fn victim(&mut self, budget: usize, evictable: &mut dyn FnMut(EntryId) -> bool) -> Option<EntryId> {
        // If everything is used again faster than the hand comes round, the first that may go does.
        let mut used = None;
        for _ in 0..budget.min(2 * self.len()) {
            let id = self.hand.or(self.arrival.oldest())?;
            let mark = &mut self.marks[id.0 as usize];
            if *mark == Mark::Unused {
                if evictable(id) {
                    self.hand = Some(id);
                    return Some(id);
                }
            } else {
                *mark = Mark::Unused;
                if used.is_none() && evictable(id) {
                    used = Some(id);
                }
            }
            self.hand = self.links.newer(id);
        }
        used
    }

    fn len(&self) -> usize {
        self.arrival.len()
    }

    fn contains(&self, id: EntryId) -> bool {
        self.marks.get(id.0 as usize).is_some_and(|mark| *mark != Mark::Absent)
    }
}
