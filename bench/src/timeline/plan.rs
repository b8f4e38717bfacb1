//! How much is measured and what it may cost, fixed before anything runs.

use serde::{Deserialize, Serialize};

use crate::isolation::plan::Plan as RoundsPlan;
use crate::profile::FormalProfile;

/// The median with the timeline on, of that without, may be this at most.
pub const P50_RATIO_MAX: f64 = 1.05;
/// The 99th percentile may be later by this at most, in milliseconds.
pub const P99_LATER_MS_MAX: f64 = 0.25;
/// The node's processor time with it, of that without, may be this at most.
pub const PROCESSOR_RATIO_MAX: f64 = 1.15;

/// Rounds of a run: as many as the events of a node have room for without anybody reading meanwhile.
const ROUNDS: usize = 800;

/// Which of the two a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// Without the timeline.
    Off,
    /// With it.
    On,
}

impl Side {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Side::Off => "off",
            Side::On => "on",
        }
    }
}

/// Sizes of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Pairs of runs.
    pub pairs: usize,
    /// What the engine does.
    pub rounds: RoundsPlan,
}

impl Plan {
    /// The sizes of a profile.
    pub fn of(profile: FormalProfile) -> Plan {
        let (pairs, count, cadence_ms, warm_up_rounds) = match profile {
            FormalProfile::Formal => (5, ROUNDS, 1_000, 50),
            FormalProfile::Dense => (5, ROUNDS, 100, 50),
            FormalProfile::Ci => (2, 100, 25, 10),
        };
        let sizes = RoundsPlan::of(profile, None).expect("its own sizes");
        Plan { pairs, rounds: RoundsPlan { rounds: count, warm_up_rounds, cadence_ms, ..sizes } }
    }

    /// How long a run takes.
    pub fn seconds(&self) -> f64 {
        let rounds = &self.rounds;
        (rounds.warm_up_rounds + rounds.rounds) as f64 * rounds.cadence().as_secs_f64()
    }
}

/// The runs of all pairs: off and on come first by turns, as A B, B A, B A, A B and so on.
pub fn order(pairs: usize) -> Vec<Side> {
    let of_pair = |pair: usize| match pair % 4 {
        0 | 3 => [Side::Off, Side::On],
        _ => [Side::On, Side::Off],
    };
    (0..pairs).flat_map(of_pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_whole_and_neither_side_is_always_first() {
        let order = order(4);
        for pair in order.chunks(2) {
            assert!(pair.contains(&Side::On) && pair.contains(&Side::Off));
        }
        let first = order.iter().step_by(2).filter(|side| **side == Side::On).count();
        assert_eq!((order.len(), first), (8, 2));
    }

    #[test]
    fn no_run_makes_more_requests_than_there_is_room_for_what_is_told_of_them() {
        for profile in [FormalProfile::Ci, FormalProfile::Dense, FormalProfile::Formal] {
            let plan = Plan::of(profile);
            // Four stages, and more than two slices or turns, of six requests a round and eight at most.
            let events = 7 * plan.rounds.requests_max();
            assert!(events < orbitkv::turns::EVENTS_MAX as usize, "{events}");
        }
    }
}
