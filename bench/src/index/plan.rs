//! How much is measured: sizes and repetitions of each profile, fixed before anything runs.

use serde::Serialize;

use crate::profile::Profile;

/// Sizes of one run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Plan {
    /// How many owners the rows have, one measurement each.
    pub owners: &'static [u32],
    /// Rows of a full table.
    pub rows: u64,
    /// Changes of a frame.
    pub frame_changes: u64,
    /// Loads of each table, in turn.
    pub loads: usize,
    /// Alternated passes over each loaded table.
    pub pairs: usize,
    /// Changes of a pass.
    pub pass_changes: u64,
    /// Keys of a pass.
    pub pass_keys: u64,
    /// Retirements of half of the rows.
    pub retirements: usize,
    /// Lookups of a window, of which the 99th percentile is taken.
    pub window_lookups: usize,
    /// Frames that are written, checked and applied.
    pub frames: usize,
    /// Repetitions of each indexer and number of owners on the trace.
    pub trace_turns: usize,
    /// Queries of a repetition, unless they take longer than `query_ms`.
    pub queries: u64,
    /// See `queries`.
    pub query_ms: u64,
}

/// The most changes a delta may have.
const FRAME_CHANGES: u64 = orbitkv_wire::bounds::INTERVAL_RECORDS_MAX as u64;

impl Plan {
    /// The sizes of a profile.
    pub fn of(profile: Profile) -> Plan {
        let full = Plan {
            owners: &[8, 64, 256, 1_000],
            rows: 2_000_000,
            frame_changes: FRAME_CHANGES,
            loads: 3,
            pairs: 7,
            pass_changes: 1 << 19,
            pass_keys: 1 << 20,
            retirements: 6,
            window_lookups: 400,
            frames: 2_000,
            trace_turns: 3,
            queries: 400_000,
            query_ms: 700,
        };
        match profile {
            Profile::Full => full,
            Profile::Ci => Plan {
                owners: &[64, 1_000],
                rows: 200_000,
                // So that a thousand owners have rows in every frame.
                frame_changes: 128,
                loads: 2,
                pairs: 2,
                pass_changes: 1 << 16,
                pass_keys: 1 << 17,
                retirements: 2,
                window_lookups: 50,
                frames: 50,
                trace_turns: 1,
                queries: 2_000,
                ..full
            },
        }
    }
}
