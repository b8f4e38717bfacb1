//! How much is measured: sizes, cadence and thresholds of each profile, fixed before anything runs.

use std::time::Duration;

use orbitkv::quantity::{KIB, MIB};
use serde::{Deserialize, Serialize};

use crate::profile::{FormalProfile, Label};

/// Time between two bursts of the pressure.
pub const BURST_PERIOD: Duration = Duration::from_millis(17);
/// Changes of a burst: half of them puts, half of them deletes of keys put earlier.
pub const BURST_CHANGES: u64 = 64;
/// Keys that the pressure node holds: a key lives for as many bursts as halves of a burst fit in here.
pub const LIVE_KEYS: u64 = 512;
/// Time between two looks at both sides.
pub const SAMPLE_PERIOD: Duration = Duration::from_millis(25);
/// A pair's p99 ratio, and the upper bound of the geometric mean of all pairs, may be this at most.
pub const RATIO_MAX: f64 = 1.05;

/// The least a run of a profile that qualifies has.
pub const ROUNDS_MIN: usize = 1_000;

const _: () =
    assert!(LIVE_KEYS.is_multiple_of(BURST_CHANGES / 2), "keys are put and deleted in whole halves");

/// Sizes of one campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Whose sizes they are.
    pub profile: FormalProfile,
    /// Pairs of runs of each kind and medium.
    pub pairs: usize,
    /// Rounds that are kept and do not count.
    pub warm_up_rounds: usize,
    /// Rounds that count.
    pub rounds: usize,
    /// Time between two intended starts of a round, in milliseconds.
    pub cadence_ms: u64,
    /// Bytes of a block of the foreground.
    pub block_bytes: u64,
    /// Blocks of a round.
    pub blocks: usize,
    /// Bytes of a block of the pressure node: nobody ever asks for them.
    pub pressure_block_bytes: u64,
    /// Arena of either node.
    pub dram_bytes: u64,
    /// SSD file of the foreground's node where the medium is SSD.
    pub ssd_bytes: u64,
    /// Runs of one cell that may fail before the campaign goes on without it.
    pub attempts: usize,
}

impl Plan {
    /// The sizes of a profile, with another number of rounds if one is wanted.
    ///
    /// # Errors
    /// If that is less than the profile needs.
    pub fn of(profile: FormalProfile, rounds: Option<usize>) -> Result<Plan, String> {
        let formal = Plan {
            profile,
            pairs: 5,
            warm_up_rounds: 50,
            rounds: ROUNDS_MIN,
            cadence_ms: 1_000,
            block_bytes: 64 * KIB,
            blocks: 16,
            pressure_block_bytes: 64,
            dram_bytes: 128 * MIB,
            ssd_bytes: 256 * MIB,
            attempts: 3,
        };
        let plan = match profile {
            FormalProfile::Formal => formal,
            FormalProfile::Dense => Plan { cadence_ms: 100, ..formal },
            FormalProfile::Ci => Plan { pairs: 2, warm_up_rounds: 10, rounds: 100, cadence_ms: 25, ..formal },
        };
        match rounds {
            Some(rounds) if rounds < plan.rounds => Err(format!(
                "--rounds {rounds}: a run of the {} profile has {} rounds at least",
                Label::from(profile).name,
                plan.rounds
            )),
            rounds => Ok(Plan { rounds: rounds.unwrap_or(plan.rounds), ..plan }),
        }
    }

    /// Time between two intended starts.
    pub fn cadence(&self) -> Duration {
        Duration::from_millis(self.cadence_ms)
    }

    /// Requests that the engine of a run makes at most: it registers, and a round is eight of them.
    pub fn requests_max(&self) -> usize {
        1 + 8 * (self.warm_up_rounds + self.rounds)
    }

    /// Bytes that a round saves and restores.
    pub fn round_bytes(&self) -> u64 {
        self.blocks as u64 * self.block_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_that_qualify_have_what_the_contract_asks_for() {
        for (profile, cadence_ms) in [(FormalProfile::Formal, 1_000), (FormalProfile::Dense, 100)] {
            let plan = Plan::of(profile, None).expect("its own sizes");
            assert!(Label::from(profile).qualifies);
            assert_eq!((plan.pairs, plan.cadence_ms), (5, cadence_ms));
            assert!(plan.warm_up_rounds >= 50 && plan.rounds >= 1_000);
            assert!(Plan::of(profile, Some(999)).is_err());
            assert_eq!(Plan::of(profile, Some(10_000)).map(|plan| plan.rounds), Ok(10_000));
        }
        assert!(!Label::from(FormalProfile::Ci).qualifies);
    }

    #[test]
    fn what_is_saved_fits_the_nodes() {
        let plan = Plan::of(FormalProfile::Formal, None).expect("its own sizes");
        assert!(plan.round_bytes() * 8 <= plan.dram_bytes.min(plan.ssd_bytes));
        assert!(LIVE_KEYS * 2 <= plan.dram_bytes / (32 * KIB), "a node keeps a block for each 32 KiB");
    }
}
