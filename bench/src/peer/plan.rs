//! How much is measured: sizes and repetitions of each profile, fixed before anything runs.

use orbitkv::quantity::{GIB, MIB};
use serde::Serialize;

use crate::profile::Profile;

/// Sizes of one run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Plan {
    /// Whose sizes they are.
    #[serde(skip)]
    pub profile: Profile,
    /// Alternated repetitions.
    pub pairs: usize,
    /// The block of the gate.
    pub block_bytes: u64,
    /// Blocks that either side brings over in one repetition.
    pub blocks: usize,
    /// Blocks of one request to the node that reads.
    pub batch_blocks: usize,
    /// Requests in flight there.
    pub requests: usize,
    /// Arena of each node. A connection may have half of it in leases, and peers a quarter on loan.
    pub dram_bytes: u64,
}

impl Plan {
    /// The sizes of a profile.
    pub fn of(profile: Profile) -> Plan {
        let full = Plan {
            profile,
            pairs: 7,
            block_bytes: MIB,
            blocks: 512,
            batch_blocks: 16,
            requests: 4,
            dram_bytes: GIB + 256 * MIB,
        };
        match profile {
            Profile::Full => full,
            Profile::Ci => Plan { pairs: 2, blocks: 64, dram_bytes: 192 * MIB, ..full },
        }
    }

    /// Bytes of one repetition.
    pub fn pass_bytes(&self) -> u64 {
        self.blocks as u64 * self.block_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_fits_the_bounds_of_a_node() {
        for profile in [Profile::Ci, Profile::Full] {
            let plan = Plan::of(profile);
            assert!(plan.pass_bytes() <= plan.dram_bytes / 2, "all leases of a pass are held at once");
            let asked = (plan.batch_blocks * plan.requests) as u64 * plan.block_bytes;
            assert!(asked <= plan.pass_bytes(), "as many requests are in flight as are said");
            assert!(plan.pairs >= 2 && plan.pairs * plan.blocks > 0);
        }
    }
}
