//! How long a batch takes if each of its blocks goes a given way: the critical path over the queues.
//!
//! A queue serves one block after the other, behind what it has to do already; queues work at the same time. So the
//! time of a batch is that of the queue that ends last, and nothing that overlaps is summed.

use std::time::Duration;

use super::evidence::Price;
use super::route::{Choice, Load, Queue, Route, Want};

/// What a block costs on a route.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cost {
    /// As was seen.
    Seen(Price),
    /// As its engine has declared: so long a block.
    Declared(Duration),
}

/// A route that some block of the batch may go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    pub route: Route,
    /// Position of its queue.
    pub queue: usize,
    /// None if too little was seen of it.
    pub cost: Option<Cost>,
}

/// A way of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    /// Position of the choice in what was given.
    pub choice: usize,
    /// Position of the lane.
    pub lane: usize,
}

/// A block of the batch and its eligible ways, in the fixed order.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub bytes: u64,
    pub ways: Vec<Way>,
    /// Whether it may leave its first way: that one has a price, and another one has.
    pub is_movable: bool,
}

/// A batch in numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Problem {
    pub blocks: Vec<Block>,
    pub lanes: Vec<Lane>,
    queues: Vec<(Queue, u64)>,
    /// Whether some way has no price.
    pub has_unpriced: bool,
}

/// Which of its ways each block goes; of a block without any it means nothing.
pub(super) type Assignment = Vec<u8>;

/// When the last block of a batch is usable.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Time {
    pub predicted_ns: f64,
    /// The same with the margins of its routes.
    pub upper_ns: f64,
}

/// What a batch has given its queues so far.
#[derive(Clone, Debug)]
pub(super) struct Progress {
    queues: Vec<Given>,
    time: Time,
}

#[derive(Clone, Copy, Debug)]
struct Given {
    /// Bytes whose time is that of who comes after them.
    ahead_bytes: u64,
    bytes: u64,
    busy_ns: f64,
}

impl Problem {
    /// `is_eligible` says who may be asked at all, `cost` what is known of a route.
    pub fn new(
        wants: &[Want<'_>],
        load: impl Fn(&Route) -> Load,
        is_eligible: impl Fn(&Choice) -> bool,
        mut cost: impl FnMut(&Choice) -> Option<Cost>,
    ) -> Problem {
        let mut problem = Problem::default();
        let mut resting = Vec::new();
        for want in wants {
            let mut ways = Vec::new();
            for (at, choice) in want.choices.iter().enumerate() {
                if choice.bytes != want.bytes || !is_eligible(choice) {
                    continue;
                }
                if let Some(lane) = problem.lane_of(choice.route, &load, &mut resting, || cost(choice)) {
                    ways.push(Way { choice: at, lane });
                }
            }
            let priced = |way: &&Way| problem.lanes[way.lane].cost.is_some();
            let is_movable =
                ways.first().is_some_and(|first| priced(&first)) && ways.iter().filter(priced).count() > 1;
            problem.has_unpriced |= ways.len() > 1 && ways.iter().filter(priced).count() < ways.len();
            problem.blocks.push(Block { bytes: want.bytes, ways, is_movable });
        }
        problem
    }

    /// The lane of a route; none while it rests.
    fn lane_of(
        &mut self,
        route: Route,
        load: impl Fn(&Route) -> Load,
        resting: &mut Vec<Route>,
        cost: impl FnOnce() -> Option<Cost>,
    ) -> Option<usize> {
        if let Some(lane) = self.lanes.iter().position(|lane| lane.route == route) {
            return Some(lane);
        }
        if resting.contains(&route) {
            return None;
        }
        let Load { ahead_bytes, rests } = load(&route);
        if rests {
            resting.push(route);
            return None;
        }
        let queue = route.queue();
        let queue = self.queues.iter().position(|(known, _)| *known == queue).unwrap_or_else(|| {
            self.queues.push((queue, ahead_bytes));
            self.queues.len() - 1
        });
        self.lanes.push(Lane { route, queue, cost: cost() });
        Some(self.lanes.len() - 1)
    }

    /// Nothing is given yet.
    pub fn begin(&self) -> Progress {
        let given = |&(_, ahead_bytes): &(Queue, u64)| Given { ahead_bytes, bytes: 0, busy_ns: 0.0 };
        Progress { queues: self.queues.iter().map(given).collect(), time: Time::default() }
    }

    /// When a block is usable that goes a way now. None if its lane was never seen to do so much, or has no price.
    pub fn finish(&self, progress: &Progress, block: &Block, way: Way) -> Option<Time> {
        let lane = &self.lanes[way.lane];
        let given = &progress.queues[lane.queue];
        match lane.cost? {
            Cost::Declared(time) => {
                let predicted_ns = given.busy_ns + time.as_nanos() as f64;
                Some(Time { predicted_ns, upper_ns: predicted_ns })
            }
            Cost::Seen(price) => {
                let work_bytes = given.ahead_bytes.saturating_add(given.bytes).saturating_add(block.bytes);
                if work_bytes > price.reach_bytes {
                    return None;
                }
                let ahead_ns = price.byte_ns * given.ahead_bytes as f64 + given.busy_ns;
                let predicted_ns = price.base_ns + ahead_ns + price.byte_ns * block.bytes as f64;
                Some(Time { predicted_ns, upper_ns: predicted_ns + price.margin_ns })
            }
        }
    }

    /// Lets a block go a way. None as of [`Problem::finish`], but for a block that stays on a way without a price:
    /// it is the same in every plan, and its bytes are ahead of what comes after it.
    pub fn give(&self, progress: &mut Progress, block: &Block, way: Way) -> Option<()> {
        let lane = &self.lanes[way.lane];
        let Some(cost) = lane.cost else {
            progress.queues[lane.queue].ahead_bytes += block.bytes;
            return Some(());
        };
        let time = self.finish(progress, block, way)?;
        let given = &mut progress.queues[lane.queue];
        given.bytes += block.bytes;
        given.busy_ns += match cost {
            Cost::Declared(time) => time.as_nanos() as f64,
            Cost::Seen(price) => price.byte_ns * block.bytes as f64,
        };
        progress.time.predicted_ns = progress.time.predicted_ns.max(time.predicted_ns);
        progress.time.upper_ns = progress.time.upper_ns.max(time.upper_ns);
        Some(())
    }

    /// The time of a whole plan; none if some route is not good for it.
    pub fn time(&self, assignment: &[u8]) -> Option<Time> {
        let mut progress = self.begin();
        for (block, &way) in self.blocks.iter().zip(assignment) {
            if let Some(&way) = block.ways.get(usize::from(way)) {
                self.give(&mut progress, block, way)?;
            }
        }
        Some(progress.time)
    }
}
