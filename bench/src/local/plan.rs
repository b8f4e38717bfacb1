//! How much is measured: sizes and repetitions of each profile, fixed before anything runs.

use orbitkv::quantity::{GIB, KIB, MIB};
use serde::Serialize;

use crate::profile::Profile;

/// Sizes of one run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Plan {
    /// Whose sizes they are.
    #[serde(skip)]
    pub profile: Profile,
    /// Alternated repetitions of DRAM path and SSD.
    pub pairs: usize,
    /// Blocks of a batch.
    pub batch_blocks: usize,
    /// The block of the gates.
    pub block_bytes: u64,
    /// DRAM path: the node's arena, and the memfd it is compared with.
    pub dram_bytes: u64,
    /// DRAM path: bytes saved and acquired in one repetition.
    pub dram_pass_bytes: u64,
    /// SSD: bytes written and read in one repetition.
    pub ssd_pass_bytes: u64,
    /// SSD: transfers in flight.
    pub ssd_depth: u32,
    /// SSD, small blocks for the details: block, bytes of a repetition.
    pub ssd_small_block_bytes: u64,
    /// See `ssd_small_block_bytes`.
    pub ssd_small_pass_bytes: u64,
    /// SSD, small blocks: repetitions.
    pub ssd_small_pairs: usize,
    /// Queries, and as many empty round trips.
    pub queries: usize,
    /// Resident keys of a query.
    pub query_keys: usize,
    /// Time between two intended starts, in nanoseconds.
    pub query_interval_ns: u64,
    /// How long a node at rest is watched, in milliseconds.
    pub rest_ms: u64,
}

impl Plan {
    /// The sizes of a profile.
    pub fn of(profile: Profile) -> Plan {
        let full = Plan {
            profile,
            pairs: 7,
            batch_blocks: 32,
            block_bytes: MIB,
            dram_bytes: GIB + 256 * MIB,
            dram_pass_bytes: 2 * GIB,
            ssd_pass_bytes: 2 * GIB,
            ssd_depth: 32,
            ssd_small_block_bytes: 64 * KIB,
            ssd_small_pass_bytes: 512 * MIB,
            ssd_small_pairs: 3,
            queries: 20_000,
            query_keys: 128,
            query_interval_ns: 200_000,
            rest_ms: 5_000,
        };
        match profile {
            Profile::Full => full,
            Profile::Ci => Plan {
                pairs: 2,
                dram_bytes: 192 * MIB,
                dram_pass_bytes: 256 * MIB,
                ssd_pass_bytes: 128 * MIB,
                ssd_small_pass_bytes: 32 * MIB,
                ssd_small_pairs: 1,
                queries: 1_000,
                rest_ms: 1_000,
                ..full
            },
        }
    }
}
