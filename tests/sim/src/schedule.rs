//! Virtual time: what happens next. Events of one moment happen in the order they were planned.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

use orbitkv_shards::time::Moment;

/// Everything that will happen, and the moment it is now.
pub struct Schedule<E> {
    heap: BinaryHeap<Planned<E>>,
    now: Moment,
    planned: u64,
}

struct Planned<E> {
    at: Moment,
    order: u64,
    event: E,
}

impl<E> Schedule<E> {
    /// Nothing planned; time is zero.
    #[must_use]
    pub fn new() -> Self {
        Schedule { heap: BinaryHeap::new(), now: Moment(0), planned: 0 }
    }

    /// The moment it is.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.now
    }

    /// Plans `event` for `at`, or for now if that has passed.
    pub fn at(&mut self, at: Moment, event: E) {
        self.planned += 1;
        self.heap.push(Planned { at: at.max(self.now), order: self.planned, event });
    }

    /// Plans `event` for after `delay`.
    pub fn after(&mut self, delay: Duration, event: E) {
        self.at(self.now + delay, event);
    }

    /// Moves time to the next event and hands it out.
    pub fn next_event(&mut self) -> Option<E> {
        let planned = self.heap.pop()?;
        assert!(planned.at >= self.now, "time goes forward");
        self.now = planned.at;
        Some(planned.event)
    }
}

impl<E> Default for Schedule<E> {
    fn default() -> Self {
        Schedule::new()
    }
}

impl<E> PartialEq for Planned<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Planned<E> {}

impl<E> PartialOrd for Planned<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Planned<E> {
    /// The earliest is the greatest, so that the heap gives it first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}
