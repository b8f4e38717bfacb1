//! How much is measured in each profile, fixed before anything runs.

use std::time::Duration;

use orbitkv::quantity::{KIB, MIB};
use serde::Serialize;

use crate::profile::FormalProfile;
use crate::resampling::PAIRS_MAX;

/// Runs of which the interval of a mean says something.
pub const RUNS_MIN: usize = 5;

/// Time between two bursts of changes.
pub const PERIOD: Duration = Duration::from_millis(17);
/// Window in which the design with etcd waits for others, as the streams do.
pub const ETCD_WINDOW: Duration = Duration::from_millis(2);
/// Changes of one transaction: what etcd takes as it is installed.
pub const TRANSACTION_CHANGES: usize = 128;
/// Requests of one change each that are in flight at once.
pub const PLAIN_IN_FLIGHT: usize = 64;

/// Sizes of one run of any ablation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Bursts of a source, of its four namespaces in turn.
    pub bursts: usize,
    /// How long a node at rest is watched, in milliseconds.
    pub rest_ms: u64,
    /// Round trips of either kind.
    pub round_trips: usize,
    /// Batches of blocks that each engine saves and brings back.
    pub batches: usize,
    /// Bursts that a fence is awaited behind.
    pub fences: usize,
    /// Bytes of a pass over the device in blocks of 1 MiB.
    pub device_bytes: u64,
    /// Bytes of a pass in blocks of 64 KiB.
    pub device_small_bytes: u64,
    /// Pairs of passes in a run over QUIC, the middle one of which is the run's.
    pub quic_pairs: usize,
}

/// Transfers in flight at the device.
pub const DEVICE_DEPTH: u32 = 32;
/// The large and the small block of the device.
pub const DEVICE_BLOCKS: [u64; 2] = [MIB, 64 * KIB];

impl Plan {
    /// The sizes of a profile.
    pub fn of(profile: FormalProfile) -> Plan {
        let formal = Plan {
            bursts: 1_800,
            rest_ms: 10_000,
            round_trips: 20_000,
            batches: 2_000,
            fences: 300,
            device_bytes: 1_024 * MIB,
            device_small_bytes: 256 * MIB,
            quic_pairs: 3,
        };
        match profile {
            FormalProfile::Formal => formal,
            FormalProfile::Dense => Plan {
                bursts: 600,
                rest_ms: 3_000,
                round_trips: 10_000,
                batches: 1_000,
                fences: 150,
                device_bytes: 512 * MIB,
                ..formal
            },
            FormalProfile::Ci => Plan {
                bursts: 40,
                rest_ms: 500,
                round_trips: 300,
                batches: 20,
                fences: 10,
                device_bytes: 64 * MIB,
                device_small_bytes: 16 * MIB,
                quic_pairs: 1,
            },
        }
    }
}

/// How many runs there are: as many as are asked for, or the profile's own number.
///
/// # Errors
/// In words, if so few say nothing or of so many not every drawing can be counted.
pub fn runs(asked: Option<usize>, profile: FormalProfile) -> Result<usize, String> {
    let (least, own) = match profile {
        FormalProfile::Ci => (1, 1),
        FormalProfile::Dense => (RUNS_MIN, RUNS_MIN),
        FormalProfile::Formal => (RUNS_MIN, PAIRS_MAX),
    };
    match asked.unwrap_or(own) {
        runs if runs < least => Err(format!(
            "--runs {runs}: an interval takes at least {least} runs; fewer are for --profile ci, which qualifies nothing"
        )),
        runs if runs > PAIRS_MAX => {
            Err(format!("--runs {runs}: every drawing of at most {PAIRS_MAX} runs is counted; leave it out"))
        }
        runs => Ok(runs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_qualifies_has_five_runs_or_more() {
        assert_eq!(runs(None, FormalProfile::Ci), Ok(1));
        assert_eq!(runs(None, FormalProfile::Dense), Ok(5));
        assert_eq!(runs(None, FormalProfile::Formal), Ok(7));
        assert_eq!(runs(Some(6), FormalProfile::Dense), Ok(6));
        assert_eq!(runs(Some(2), FormalProfile::Ci), Ok(2));
        for (asked, profile) in
            [(4, FormalProfile::Dense), (0, FormalProfile::Ci), (8, FormalProfile::Formal)]
        {
            let refused = runs(Some(asked), profile).expect_err("refused");
            assert!(refused.starts_with(&format!("--runs {asked}:")), "{refused}");
        }
    }

    #[test]
    fn passes_are_whole_numbers_of_blocks_and_bursts_meet_every_namespace_alike() {
        for profile in [FormalProfile::Ci, FormalProfile::Dense, FormalProfile::Formal] {
            let plan = Plan::of(profile);
            assert_eq!(plan.device_bytes % DEVICE_BLOCKS[0] + plan.device_small_bytes % DEVICE_BLOCKS[1], 0);
            assert!(plan.device_small_bytes / DEVICE_BLOCKS[1] >= u64::from(DEVICE_DEPTH));
            assert_eq!(plan.bursts % 4, 0);
        }
    }
}
