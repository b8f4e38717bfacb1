//! How long and how much, fixed before anything runs.

use std::time::Duration;

use clap::ValueEnum;
use orbitkv::quantity::{KIB, MIB};
use serde::Serialize;

use crate::profile::FormalProfile;

/// Which part of a soak is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Saving and restoring on DRAM and SSD, every byte compared.
    Live,
    /// Load and faults.
    Faults,
    /// Both, one after the other.
    Both,
}

/// Most of its bill that a node may take.
pub const RSS_SHARE_MAX: f64 = 1.0;
/// Most that a node may grow in the second half, as a share of its bill.
pub const GROWTH_SHARE_MAX: f64 = 0.02;

/// Sizes of the live cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Live {
    /// Nodes: one whose blocks are in DRAM, one whose blocks are on SSD, and those that change their inventory.
    pub nodes: u16,
    /// How long it lasts.
    pub seconds: u64,
    /// Time between two rounds of a foreground.
    pub cadence_ms: u64,
    /// Blocks of a round.
    pub blocks: usize,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Rounds whose blocks are kept, to be restored again.
    pub window: usize,
    /// Arena of a node.
    pub dram_bytes: u64,
    /// SSD of the one that has it.
    pub ssd_bytes: u64,
}

/// Sizes of the cell of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Faults {
    /// Nodes, all of them owners and observers.
    pub nodes: u16,
    /// Residences of each owner.
    pub residences: u64,
    /// Time after which no further fault begins; the first round of all kinds is made in any case.
    pub seconds: u64,
    /// Rest with load between two faults, from and until, in milliseconds.
    pub calm_ms: (u64, u64),
}

/// Sizes of a soak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The live cell.
    pub live: Live,
    /// The cell of faults.
    pub faults: Faults,
    /// Changes of a burst of each owner.
    pub burst_changes: u64,
    /// Time between two of them.
    pub burst_period_ms: u64,
    /// Time between two samples of memory, queues and sessions.
    pub sample_ms: u64,
    /// Time of a process that is left out when its growth is taken: it has to fill what it has first.
    pub settle_seconds: u64,
}

impl Plan {
    /// The sizes of a profile.
    pub fn of(profile: FormalProfile) -> Plan {
        let (live_seconds, cadence_ms, live_nodes) = match profile {
            FormalProfile::Ci => (15, 250, 3),
            FormalProfile::Dense => (5 * 60, 200, 3),
            FormalProfile::Formal => (30 * 60, 250, 4),
        };
        let (fault_seconds, fault_nodes, calm_ms) = match profile {
            FormalProfile::Ci => (0, 3, (500, 1_000)),
            FormalProfile::Dense => (14 * 60, 4, (4_000, 8_000)),
            FormalProfile::Formal => (2 * 60 * 60, 6, (10_000, 30_000)),
        };
        let (sample_ms, settle_seconds) = match profile {
            FormalProfile::Ci => (500, 3),
            FormalProfile::Dense => (1_000, 20),
            FormalProfile::Formal => (5_000, 60),
        };
        Plan {
            live: Live {
                nodes: live_nodes,
                seconds: live_seconds,
                cadence_ms,
                blocks: 16,
                block_bytes: 64 * KIB,
                window: 16,
                dram_bytes: 128 * MIB,
                ssd_bytes: 512 * MIB,
            },
            faults: Faults { nodes: fault_nodes, residences: 512, seconds: fault_seconds, calm_ms },
            burst_changes: 32,
            burst_period_ms: if profile == FormalProfile::Ci { 128 } else { 64 },
            sample_ms,
            settle_seconds,
        }
    }
}

impl Live {
    /// Time between two rounds.
    pub fn cadence(&self) -> Duration {
        Duration::from_millis(self.cadence_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formal_profile_is_half_an_hour_and_two_hours() {
        let plan = Plan::of(FormalProfile::Formal);
        assert_eq!((plan.live.seconds, plan.faults.seconds), (1_800, 7_200));
    }

    #[test]
    fn blocks_that_are_kept_fit_memory_and_ssd() {
        for profile in [FormalProfile::Ci, FormalProfile::Dense, FormalProfile::Formal] {
            let live = Plan::of(profile).live;
            let kept = (live.window as u64 + 2) * live.blocks as u64 * live.block_bytes;
            // Engines may fill half of an arena, and no node evicts on its own before it is full.
            assert!(2 * kept <= live.dram_bytes && 2 * kept <= live.ssd_bytes, "{live:?}");
            assert!(live.nodes >= 3 && live.seconds > 0);
        }
    }
}
