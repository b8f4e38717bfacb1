//! How much is measured and what is declared of the contended source: fixed before anything runs.

use orbitkv::quantity::{GIB, MIB};
use serde::Serialize;

use crate::profile::Profile;

/// Sizes of one campaign.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Plan {
    /// Whose sizes they are.
    #[serde(skip)]
    pub profile: Profile,
    /// Runs of each policy in each case.
    pub runs: usize,
    /// Requests of a run that are measured, one after the other.
    pub requests: usize,
    /// Requests before those: connections are made, and routes get a price.
    pub warm_up: usize,
    /// Payload of a block.
    pub block_bytes: u64,
    /// Arena of each node: everything that is saved fits it.
    pub dram_bytes: u64,
    /// SSD of each source in the cases that read from it.
    pub ssd_bytes: u64,
    /// What the slow SSD reads in a second.
    pub slow_ssd_bytes_per_second: u64,
    /// What the egress-limited source sends in a second.
    pub egress_bits_per_second: u64,
}

impl Plan {
    /// The sizes of a profile.
    pub fn of(profile: Profile) -> Plan {
        let full = Plan {
            profile,
            runs: 5,
            requests: 200,
            warm_up: 60,
            block_bytes: 64 << 10,
            dram_bytes: 768 * MIB,
            ssd_bytes: GIB,
            slow_ssd_bytes_per_second: 64 * MIB,
            egress_bits_per_second: 200_000_000,
        };
        match profile {
            Profile::Full => full,
            Profile::Ci => Plan { runs: 1, requests: 40, warm_up: 40, ..full },
        }
    }

    /// Requests of a run.
    pub fn all_requests(&self) -> usize {
        self.warm_up + self.requests
    }
}
