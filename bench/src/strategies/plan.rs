//! What is compared, and how much of it: fixed before anything runs.

use std::time::Duration;

use serde::Serialize;

use crate::profile::FormalProfile;

/// How long a reader's watch is held back: longer than any trial, so that a reader learns from what it reads itself.
const WATCH_LAG: &str = "300s";
/// Reads of etcd that a move may cost the hybrid, however many owners move: one for what is refused first, and one or two
/// for owners that were not back yet by then.
pub const HYBRID_READS_MAX: f64 = 4.0;
/// What the hybrid may take until all is quiet, in times of the quicker of the others.
pub const HYBRID_QUIET_MAX: f64 = 2.0;

/// How a reader finds out that an owner is another life than it takes it for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// Look up first.
    Lookup,
    /// Send and be redirected.
    Redirect,
    /// Cache; when refused, read the whole map again once.
    Hybrid,
    /// The hybrid as it ships: etcd's watch tells it, too.
    Watched,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Strategy; 4] =
        [Strategy::Lookup, Strategy::Redirect, Strategy::Hybrid, Strategy::Watched];

    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Strategy::Lookup => "look up first",
            Strategy::Redirect => "send and be redirected",
            Strategy::Hybrid => "hybrid",
            Strategy::Watched => "hybrid with its watch",
        }
    }

    /// Flags of a node that reads so.
    pub fn flags(self) -> Vec<String> {
        let (policy, lag) = match self {
            Strategy::Lookup => ("lookup", WATCH_LAG),
            Strategy::Redirect => ("redirect", WATCH_LAG),
            Strategy::Hybrid => ("hybrid", WATCH_LAG),
            Strategy::Watched => ("hybrid", "0s"),
        };
        ["--refresh-policy", policy, "--watch-lag", lag].map(str::to_owned).to_vec()
    }
}

/// Sizes of one run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Plan {
    /// Trials of each strategy and each move.
    pub repeats: usize,
    /// Time after the last moved owner is back in which all must be quiet, in milliseconds.
    pub settle_ms: u64,
    /// Time between two requests to an owner, in milliseconds.
    pub period_ms: u64,
    /// Blocks of a request.
    pub blocks: u64,
}

impl Plan {
    /// The sizes of a profile.
    pub fn of(profile: FormalProfile) -> Plan {
        let (repeats, settle_ms) = match profile {
            FormalProfile::Formal => (5, 12_000),
            FormalProfile::Dense => (3, 10_000),
            FormalProfile::Ci => (1, 8_000),
        };
        Plan { repeats, settle_ms, period_ms: 50, blocks: 8 }
    }

    /// See the field.
    pub fn settle(&self) -> Duration {
        Duration::from_millis(self.settle_ms)
    }

    /// See the field.
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.period_ms)
    }
}

/// How many of so many owners move at a time: one, eight, and all.
pub fn moves(owners: usize) -> Vec<usize> {
    let mut moves: Vec<usize> = [1, 8].into_iter().filter(|&moved| moved < owners).collect();
    moves.push(owners);
    moves
}

/// The strategies in the order of a repeat: each comes first in its turn, so that none is always measured on a cluster
/// that has just been started.
pub fn order(seed: u64, repeat: usize) -> Vec<Strategy> {
    let mut order = Strategy::ALL.to_vec();
    let shift = (seed % 4) as usize + repeat;
    order.rotate_left(shift % 4);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_eight_and_all_owners_move() {
        for (owners, expected) in
            [(16, vec![1, 8, 16]), (9, vec![1, 8, 9]), (8, vec![1, 8]), (3, vec![1, 3]), (2, vec![1, 2])]
        {
            assert_eq!(moves(owners), expected);
        }
    }

    #[test]
    fn each_strategy_comes_first_in_its_turn_and_none_twice() {
        let firsts: Vec<Strategy> = (0..4).map(|repeat| order(7, repeat)[0]).collect();
        let mut all = firsts.clone();
        all.sort();
        assert_eq!(all, Strategy::ALL);
        for repeat in 0..4 {
            let mut all = order(9, repeat);
            all.sort();
            assert_eq!(all, Strategy::ALL);
        }
    }

    #[test]
    fn only_the_shipped_one_is_told_by_the_watch() {
        for strategy in Strategy::ALL {
            assert_eq!(strategy.flags().contains(&"0s".to_owned()), strategy == Strategy::Watched);
        }
    }
}
