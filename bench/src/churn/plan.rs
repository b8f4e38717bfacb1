//! How much is changed and what that is held against, fixed before anything runs.

use serde::Serialize;

use crate::streams::Profile;

/// Changes a second of the best known system (chapter 6.1), all owners together.
pub const RATE_KNOWN: u64 = 4_083;
/// What the gate asks for, in multiples of it.
pub const RATE_MULTIPLE: u64 = 10;
/// Limit of the p99 of publication to install, in milliseconds.
pub const VISIBILITY_MS_MAX: f64 = 29.5;
/// Most bytes that may ever wait in all nodes' queues at [`RATE_KNOWN`].
pub const QUEUE_BYTES_MAX: f64 = 697_538.0;
/// A little more than is asked for, so that a late burst does not miss it.
const MARGIN_PERCENT: u64 = 102;

/// Bursts of every owner at a steady rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Pressure {
    /// Changes of a burst, half of them puts and half deletes.
    pub changes: u64,
    /// Time between two bursts of an owner, in nanoseconds.
    pub period_ns: u64,
    /// How long it lasts.
    pub seconds: u64,
}

impl Pressure {
    /// The pressure in which so many owners make so many changes a second together.
    pub fn of(rate: u64, owners: usize, changes: u64, seconds: u64) -> Pressure {
        let period_ns = changes * owners as u64 * 1_000_000_000 * 100 / (rate * MARGIN_PERCENT);
        Pressure { changes, period_ns, seconds }
    }

    /// Bursts that an owner makes.
    pub fn bursts(&self) -> u64 {
        self.seconds * 1_000_000_000 / self.period_ns
    }
}

/// Sizes of one run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Plan {
    /// At the rate of the best known system: how much waits in the queues.
    pub known: Pressure,
    /// At the rate of the gate.
    pub sustained: Pressure,
}

impl Plan {
    /// The sizes of a profile.
    pub fn of(profile: Profile, owners: usize) -> Plan {
        let (known, sustained) = match profile {
            Profile::Formal => (20, 60),
            Profile::Dense => (10, 20),
            Profile::Ci => (2, 3),
        };
        // The least that shows anything; the rate is of sixteen owners in any profile that qualifies.
        let rate = match profile {
            Profile::Ci => RATE_KNOWN * owners.min(4) as u64 / 16,
            _ => RATE_KNOWN,
        };
        Plan {
            known: Pressure::of(rate, owners, 64, known),
            sustained: Pressure::of(rate * RATE_MULTIPLE, owners, 128, sustained),
        }
    }

    /// Changes a second that the gate asks for, in this plan.
    pub fn rate_min(&self, owners: usize) -> f64 {
        let Pressure { changes, period_ns, .. } = self.sustained;
        changes as f64 * owners as f64 * 1e9 / period_ns as f64 * 100.0 / MARGIN_PERCENT as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_of_sixteen_owners_asks_for_ten_times_what_is_known() {
        let plan = Plan::of(Profile::Formal, 16);
        assert!((40_829.0..40_832.0).contains(&plan.rate_min(16)), "{}", plan.rate_min(16));
        let planned = |pressure: Pressure| pressure.bursts() * pressure.changes * 16 / pressure.seconds;
        assert!(planned(plan.sustained) >= 41_500, "{}", planned(plan.sustained));
        assert!(planned(plan.known) >= 4_083, "{}", planned(plan.known));
        assert_eq!(plan.sustained.seconds, 60);
        assert!(plan.sustained.period_ns < 100_000_000, "sustained, not in heaps");
    }
}
