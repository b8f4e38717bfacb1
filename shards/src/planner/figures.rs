//! What the room can say of itself.

use super::told::AgeFigures;

/// Counters since the core began, and what is so now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlannerFigures {
    /// Batches.
    pub batches: u64,
    /// Blocks of those.
    pub blocks: u64,
    /// Batches of which no block had two ways.
    pub one_route: u64,
    /// Batches that stayed as they were because too little was seen of a route.
    pub few_successes: u64,
    /// Batches larger than what their routes were seen to do.
    pub beyond_reach: u64,
    /// Batches with more plans than are priced.
    pub exhausted: u64,
    /// Batches of which no plan was better by more than uncertainty and hysteresis.
    pub not_better: u64,
    /// Batches that stayed with the plan that the last one with these routes had changed to.
    pub kept: u64,
    /// Batches of which another plan was better by more than that.
    pub changed: u64,
    /// Batches of which the plan was another one than the fixed one.
    pub differing: u64,
    /// Of those, batches that went as planned.
    pub followed: u64,
    /// Of the differing: by how much the plan was predicted to be faster than the fixed one, in microseconds.
    pub predicted_gain_us: u64,
    /// Of the differing that were not followed: by how much what came took longer than was predicted of the plan.
    pub regret_us: u64,
    /// Batches that came whole and whose time had been predicted.
    pub judged: u64,
    /// Of those: batches that took no longer than predicted with its margin.
    pub within_margin: u64,
    /// Outcomes taken in.
    pub outcomes: u64,
    /// Of those, failures and timeouts.
    pub failures: u64,
    /// Routes of which something is remembered now.
    pub routes: u64,
    /// What the age of what owners said came to.
    pub ages: AgeFigures,
}
