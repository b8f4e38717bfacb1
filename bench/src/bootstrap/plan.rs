//! How often nodes join and what that is held against, fixed before anything runs.

use serde::Serialize;

use crate::profile::FormalProfile;

/// How much longer the p99 may be than that of the earlier commit.
pub const RATIO_MAX: f64 = 1.10;
/// Changes a second of all owners together while nodes join, unless another rate is asked for: the best known system's.
pub const CHURN_RATE: u64 = 4_083;
/// Changes of a burst.
pub const CHURN_CHANGES: u64 = 64;

/// What the owners do while a node joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Case {
    /// Nothing.
    Quiet,
    /// Changes.
    Churn,
}

/// The cases of a run: at a rate of nothing there is no churn.
pub fn cases(changes_per_second: u64) -> &'static [Case] {
    match changes_per_second {
        0 => &[Case::Quiet],
        _ => &[Case::Quiet, Case::Churn],
    }
}

/// Whose nodes join in a leg of a campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The `orbitkv` of this build.
    Ours,
    /// The one that is named as the baseline.
    Baseline,
}

/// The sides in their order, each with a cluster of its own: balanced, so that a machine that slows down or speeds up
/// does so to both.
pub fn legs(has_baseline: bool) -> &'static [Side] {
    match has_baseline {
        true => &[Side::Ours, Side::Baseline, Side::Baseline, Side::Ours],
        false => &[Side::Ours],
    }
}

/// Joins of one leg.
pub fn joins(profile: FormalProfile, legs: usize) -> usize {
    // A p99 is of a hundred at least, so a side has two hundred in the formal profile.
    let of_side: usize = match profile {
        FormalProfile::Ci => 4,
        FormalProfile::Dense => 100,
        FormalProfile::Formal => 200,
    };
    of_side / if legs > 1 { 2 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_are_balanced_in_number_and_in_time() {
        let both = legs(true);
        // The sum of positions is what a steady drift adds to a side.
        let drift = |side| -> usize {
            both.iter().enumerate().filter(|(_, leg)| **leg == side).map(|(at, _)| at).sum()
        };
        assert_eq!(drift(Side::Ours), drift(Side::Baseline));
        assert_eq!(legs(false), [Side::Ours]);
    }

    #[test]
    fn churn_is_a_case_of_its_own_beside_the_quiet_one() {
        assert_eq!(cases(CHURN_RATE), [Case::Quiet, Case::Churn]);
        assert_eq!(cases(0), [Case::Quiet]);
    }

    #[test]
    fn a_side_has_as_many_joins_whether_or_not_there_is_another() {
        for profile in [FormalProfile::Ci, FormalProfile::Dense, FormalProfile::Formal] {
            assert_eq!(2 * joins(profile, 4), joins(profile, 1));
        }
        assert!(joins(FormalProfile::Dense, 1) >= 100);
    }
}
