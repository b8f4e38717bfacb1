//! Backpressure: "my successor is full" travels back link by link. How far it travels decides what becomes of
//! what does not fit: inside the chain it is lost, at the boundary it is refused. Only a refusal can be
//! answered, so a node's signal goes all the way: a save is not accepted rather than accepted and lost.

use std::collections::VecDeque;

/// A bounded queue before a link.
#[derive(Clone, Debug)]
pub struct Stage<T> {
    queue: VecDeque<T>,
    /// `None` is what only a model may have.
    capacity: Option<usize>,
}

/// What became of something offered to a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offer<T> {
    /// It is queued.
    Taken,
    /// It is given back, with nothing done: whoever offers it may wait, or say no in turn.
    Refused(T),
    /// It is gone, because the boundary does not hear that the chain is full.
    Lost(T),
}

/// What a link did in a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advance<T> {
    /// What left the chain at its end.
    pub done: Vec<T>,
    /// What the next link had no room for and nobody waited with.
    pub lost: Vec<T>,
    /// Whether it stopped, because the next link is full.
    pub paused: bool,
}

/// Links one after the other, and how far back being full is heard.
#[derive(Clone, Debug)]
pub struct Chain<T> {
    stages: Vec<Stage<T>>,
    depth: usize,
}

impl<T> Stage<T> {
    /// An empty queue.
    #[must_use]
    pub const fn new(capacity: Option<usize>) -> Stage<T> {
        Stage { queue: VecDeque::new(), capacity }
    }

    /// Queues something.
    ///
    /// # Errors
    /// Gives it back if the queue is full.
    pub fn offer(&mut self, item: T) -> Result<(), T> {
        match self.has_room() {
            true => {
                self.queue.push_back(item);
                Ok(())
            }
            false => Err(item),
        }
    }

    fn has_room(&self) -> bool {
        self.capacity.is_none_or(|capacity| self.queue.len() < capacity)
    }
}

impl<T> Chain<T> {
    /// A chain whose signal reaches its boundary: what a node has. Every queue is bounded.
    #[must_use]
    pub fn to_the_boundary(capacities: &[usize]) -> Chain<T> {
        let bounded: Vec<Option<usize>> = capacities.iter().map(|capacity| Some(*capacity)).collect();
        Chain::with_depth(&bounded, capacities.len())
    }

    /// A chain in which the last `depth` links hear of a full successor. From as many as there are links on,
    /// the boundary hears of a full first link.
    #[must_use]
    pub fn with_depth(capacities: &[Option<usize>], depth: usize) -> Chain<T> {
        Chain { stages: capacities.iter().map(|capacity| Stage::new(*capacity)).collect(), depth }
    }

    /// Whether a link stops for its successor; the last has none.
    #[must_use]
    pub fn heeds(&self, link: usize) -> bool {
        self.depth + link + 1 >= self.stages.len()
    }

    /// Whether what does not fit is refused at the boundary.
    #[must_use]
    pub fn refuses(&self) -> bool {
        self.depth >= self.stages.len()
    }

    /// Offers something at the boundary.
    pub fn offer(&mut self, item: T) -> Offer<T> {
        match self.stages[0].offer(item) {
            Ok(()) => Offer::Taken,
            Err(item) if self.refuses() => Offer::Refused(item),
            Err(item) => Offer::Lost(item),
        }
    }

    /// Lets a link work on at most `budget` of what is queued before it.
    pub fn advance(&mut self, link: usize, budget: usize) -> Advance<T> {
        let mut advance = Advance { done: Vec::new(), lost: Vec::new(), paused: false };
        let heeds = self.heeds(link);
        let (before, after) = self.stages.split_at_mut(link + 1);
        let queue = &mut before[link].queue;
        for _ in 0..budget.min(queue.len()) {
            match after.first_mut() {
                None => advance.done.extend(queue.pop_front()),
                Some(next) if next.has_room() => next.queue.extend(queue.pop_front()),
                Some(_) if heeds => {
                    advance.paused = true;
                    break;
                }
                Some(_) => advance.lost.extend(queue.pop_front()),
            }
        }
        advance
    }

    /// How much is queued in the whole chain.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.stages.iter().map(|stage| stage.queue.len()).sum()
    }

    /// All that is queued.
    pub fn queued(&self) -> impl Iterator<Item = &T> {
        self.stages.iter().flat_map(|stage| &stage.queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_refuses_and_loses_nothing() {
        let mut chain = Chain::to_the_boundary(&[2, 1]);
        assert_eq!(
            (chain.offer(1), chain.offer(2), chain.offer(3)),
            (Offer::Taken, Offer::Taken, Offer::Refused(3))
        );
        assert_eq!(
            chain.advance(0, 9),
            Advance { done: vec![], lost: vec![], paused: true },
            "one fits, two wait"
        );
        assert_eq!((chain.offer(4), chain.offer(5)), (Offer::Taken, Offer::Refused(5)));
        assert_eq!(chain.advance(1, 9).done, [1]);
        assert_eq!(chain.queued().copied().collect::<Vec<_>>(), [2, 4]);
    }

    #[test]
    fn a_shorter_signal_loses_where_it_ends() {
        for (depth, lost, paused) in [(0, vec![2], false), (1, vec![], true)] {
            let mut chain = Chain::with_depth(&[Some(2), Some(1)], depth);
            assert_eq!(
                (chain.offer(1), chain.offer(2), chain.offer(3)),
                (Offer::Taken, Offer::Taken, Offer::Lost(3))
            );
            assert_eq!(chain.advance(0, 9), Advance { done: vec![], lost, paused }, "depth {depth}");
        }
    }

    #[test]
    fn a_budget_is_used_up_by_what_moves() {
        let mut chain = Chain::with_depth(&[None, None], 0);
        (0..5).for_each(|item| assert_eq!(chain.offer(item), Offer::Taken));
        assert_eq!(chain.advance(0, 3), Advance { done: vec![], lost: vec![], paused: false });
        assert_eq!((chain.advance(1, 2).done, chain.backlog()), (vec![0, 1], 3));
    }
}
