//! How much is measured and what it is held against, fixed before anything runs.

use std::time::Duration;

use serde::Serialize;

use crate::profile::FormalProfile;

/// Time between two bursts of a rotation (chapter 6.3).
pub const PERIOD: Duration = Duration::from_millis(17);
/// Changes of a burst, half of them puts and half deletes.
pub const CHANGES: u64 = 64;

/// Sizes of one run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Plan {
    /// Rotations before those that count.
    pub warm_up_rotations: usize,
    /// Bursts that count, at least: they are whole rotations.
    bursts_min: usize,
    /// Bursts behind which observers wait one after the other, and as many behind which they wait at once.
    pub barriers: usize,
}

impl Plan {
    /// The sizes of a profile.
    pub fn of(profile: FormalProfile) -> Plan {
        // A minute.
        let formal = Plan { warm_up_rotations: 2, bursts_min: 3_520, barriers: 64 };
        match profile {
            FormalProfile::Formal => formal,
            FormalProfile::Dense => Plan { bursts_min: 1_170, barriers: 32, ..formal },
            FormalProfile::Ci => Plan { bursts_min: 48, barriers: 4, ..formal },
        }
    }

    /// Bursts that count.
    pub fn bursts(&self, owners: usize) -> usize {
        self.bursts_min.next_multiple_of(owners)
    }

    /// Bursts that do not.
    pub fn warm_up_bursts(&self, owners: usize) -> usize {
        self.warm_up_rotations * owners
    }
}

/// The gate that so many nodes are held against: its stable name and its limit in milliseconds (chapter 6.1).
pub fn gate(managers: usize) -> (&'static str, f64) {
    match managers {
        16 => ("visibility_16", 4.3),
        64 => ("visibility_64", 10.0),
        // No limit is named for other sizes: they get the next larger one's.
        2..16 => ("visibility", 4.3),
        _ => ("visibility", 10.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_measured_equally_often_and_a_formal_run_takes_a_minute() {
        for profile in [FormalProfile::Ci, FormalProfile::Dense, FormalProfile::Formal] {
            for owners in [2, 3, 16, 64] {
                let plan = Plan::of(profile);
                let bursts = plan.bursts(owners);
                assert!(bursts.is_multiple_of(owners) && bursts >= plan.bursts_min);
            }
        }
        let minute = Plan::of(FormalProfile::Formal).bursts(64) as u32 * PERIOD;
        assert!((59.0..61.0).contains(&minute.as_secs_f64()), "{minute:?}");
    }

    #[test]
    fn the_gates_of_the_design_have_their_names() {
        assert_eq!(gate(16), ("visibility_16", 4.3));
        assert_eq!(gate(64), ("visibility_64", 10.0));
        assert_eq!((gate(4), gate(32)), (("visibility", 4.3), ("visibility", 10.0)));
    }
}
