//! How much is changed and what that is held against, fixed before anything runs.

use serde::Serialize;

use crate::profile::FormalProfile;

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

    /// Bursts that an owner makes: as many as begin in that time, and the one that ends it.
    pub fn bursts(&self) -> u64 {
        (self.seconds * 1_000_000_000).div_ceil(self.period_ns) + 1
    }
}

/// Sizes of one run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Plan {
    /// At the rate of the best known system: how much waits in the queues.
    pub known: Pressure,
    /// At the rate of the gate.
    pub sustained: Pressure,
    /// Changes a second that the gate asks for.
    pub rate_min: u64,
}

impl Plan {
    /// The sizes of a profile.
    pub fn of(profile: FormalProfile, owners: usize) -> Plan {
        let (known, sustained) = match profile {
            FormalProfile::Formal => (20, 60),
            FormalProfile::Dense => (10, 20),
            FormalProfile::Ci => (2, 3),
        };
        // The least that shows anything; the rate is of sixteen owners in any profile that qualifies.
        let rate = match profile {
            FormalProfile::Ci => RATE_KNOWN * owners.min(4) as u64 / 16,
            _ => RATE_KNOWN,
        };
        Plan {
            known: Pressure::of(rate, owners, 64, known),
            sustained: Pressure::of(rate * RATE_MULTIPLE, owners, 128, sustained),
            rate_min: rate * RATE_MULTIPLE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The moments of all bursts, counted one by one.
    fn made(pressure: Pressure, owners: u64) -> (u64, u64) {
        let began: Vec<u64> = (0..pressure.bursts()).map(|number| number * pressure.period_ns).collect();
        let lasts_ns = began.last().expect("there is one") - began[0];
        (owners * pressure.changes * began.len() as u64, lasts_ns)
    }

    #[test]
    fn sixteen_owners_make_ten_times_what_is_known_for_a_minute() {
        let plan = Plan::of(FormalProfile::Formal, 16);
        assert_eq!(plan.rate_min, 40_830);
        let (changes, lasts_ns) = made(plan.sustained, 16);
        assert!(lasts_ns >= 60_000_000_000, "{lasts_ns}");
        // Two in a hundred may come late, but no more than is asked for is made on purpose.
        let rate = changes as f64 * 1e9 / lasts_ns as f64;
        assert!((41_640.0..41_700.0).contains(&rate), "{rate}");
        let (changes, lasts_ns) = made(plan.known, 16);
        let rate = changes as f64 * 1e9 / lasts_ns as f64;
        assert!((4_164.0..4_260.0).contains(&rate), "{rate}");
        assert!(plan.sustained.period_ns < 100_000_000, "sustained, not in heaps");
    }

    #[test]
    fn the_rate_is_of_all_owners_together_whatever_their_number() {
        for owners in [2, 4, 16, 64] {
            let plan = Plan::of(FormalProfile::Dense, owners);
            let (changes, lasts_ns) = made(plan.sustained, owners as u64);
            let rate = changes as f64 * 1e9 / lasts_ns as f64;
            assert!((41_500.0..43_000.0).contains(&rate), "{owners}: {rate}");
            assert_eq!(plan.rate_min, 40_830);
        }
        let rates = [2, 4, 16].map(|owners| Plan::of(FormalProfile::Ci, owners).rate_min);
        assert_eq!(rates, [5_100, 10_200, 10_200], "ci asks for what a debug build makes");
    }
}
