//! What is compared and what that is held against, fixed before anything runs.

use std::time::Duration;

use serde::Serialize;

use crate::profile::FormalProfile;

/// The window of the gate, against none (chapter 6.1).
pub const WINDOW: Duration = Duration::from_millis(2);
/// The windows that are compared, unless another one is asked for (chapter 6.8).
const WINDOWS: [Duration; 3] = [Duration::ZERO, WINDOW, Duration::from_millis(5)];
/// Share of the bytes that waiting spares at least.
pub const SPARED_MIN: f64 = 0.8;
/// Time between two bursts.
pub const PERIOD: Duration = Duration::from_millis(17);

/// Sizes of one cluster's run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Plan {
    /// Bursts of all owners together.
    pub bursts: usize,
    /// Blocks that a burst saves and drops.
    pub blocks: u64,
    /// How often it does so.
    pub rounds: u64,
}

impl Plan {
    /// The sizes of a profile.
    pub fn of(profile: FormalProfile) -> Plan {
        let bursts = match profile {
            FormalProfile::Ci => 60,
            FormalProfile::Dense => 600,
            FormalProfile::Formal => 1_800,
        };
        Plan { bursts, blocks: 8, rounds: 16 }
    }

    /// Changes of all bursts: each block is saved and dropped in each round.
    pub fn changes(&self) -> u64 {
        self.bursts as u64 * self.blocks * self.rounds * 2
    }
}

/// The windows of a run: none first, which the others are held against.
///
/// # Errors
/// If the one that is asked for is none.
pub fn windows(asked: Option<Duration>) -> Result<Vec<Duration>, String> {
    match asked {
        None => Ok(WINDOWS.to_vec()),
        Some(Duration::ZERO) => {
            Err("--coalesce 0ms: a window is compared with none; name one up to 5ms, or leave it out"
                .to_owned())
        }
        Some(window) => Ok(vec![Duration::ZERO, window]),
    }
}

/// The stable name of what a window spares: the gate is of one window only.
pub fn gate(window: Duration) -> &'static str {
    if window == WINDOW { "coalescing_2ms" } else { "coalescing" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_held_against_none() {
        let ms = Duration::from_millis;
        assert_eq!(windows(None), Ok(vec![ms(0), ms(2), ms(5)]));
        assert_eq!(windows(Some(ms(1))), Ok(vec![ms(0), ms(1)]));
        let refused = windows(Some(ms(0))).expect_err("none against none");
        assert!(refused.contains("--coalesce 0ms"), "{refused}");
        assert_eq!([ms(2), ms(5)].map(gate), ["coalescing_2ms", "coalescing"]);
    }

    #[test]
    fn changes_are_counted_one_by_one() {
        let plan = Plan::of(FormalProfile::Ci);
        let mut changes = 0;
        for _ in 0..plan.bursts {
            for _ in 0..plan.rounds {
                for _ in 0..plan.blocks {
                    changes += ["put", "delete"].len() as u64;
                }
            }
        }
        assert_eq!((changes, plan.changes()), (15_360, 15_360));
    }
}
