//! Bounds of the room.

use std::time::Duration;

use super::guard::GuardSettings;
use crate::flow::pacing::Rate;
use crate::resilience::retry::CALLS;
use orbitkv_wire::bounds::{GRANT_KEYS_MAX, GRANT_MS_MAX};

/// Longest that a block is brought from when somebody last came to wait for it: what takes longer than any grant is
/// given up.
pub const FETCH_TIME_MAX: Duration = Duration::from_millis(GRANT_MS_MAX as u64);

/// How much later than here its time is over at a source: until then it has heard what has become of it.
pub(super) const SOURCE_GRACE: Duration = Duration::from_secs(1);

/// Bounds of the room, for one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetcherSettings {
    /// Fetches begun and not ended; one more fails as busy, and what nobody waits for at half of it.
    pub fetches_max: usize,
    /// Payload connections, dialed ones included (chapter 2.10).
    pub connections_max: usize,
    /// Dials not answered at a time.
    pub dials_max: usize,
    /// Residences of an operation, at most [`GRANT_KEYS_MAX`].
    pub residences_max: usize,
    /// Operations of one source that have not ended.
    pub operations_max: usize,
    /// Payload bytes that are asked for and have not come, of all sources: the core's in-flight window
    /// (chapter 3.6). A block that is larger goes alone.
    pub bytes_max: u64,
    /// As much of one source, so that one that stands still leaves the others room.
    pub source_bytes_max: u64,
    /// What may be asked for over the network; as fast as sources answer if none.
    pub rate: Option<Rate>,
    /// As much of what nobody waits for, of all sources; a block that is larger is not asked for so.
    pub background_bytes_max: u64,
    /// Routes tried of one fetch: the first and at most two others (chapter 3.5).
    pub routes_max: u32,
    /// Time without a request after which a connection is closed (chapter 2.10).
    pub idle_wait: Duration,
    /// Shortest pause before a source that was lost is dialed again.
    pub redial_min: Duration,
    /// Longest such pause.
    pub redial_max: Duration,
    /// Time in which nothing comes of an operation after which it is given up: the budget of a call. No grant
    /// lasts longer than its default.
    pub stall_wait: Duration,
    /// When sources are left alone, and how much is asked for again.
    pub guard: GuardSettings,
    /// How long a source that has said that shared memory is off is asked over QUIC alone.
    pub sharing_pause: Duration,
    /// Fetches given a route in one turn, and timers that fire in one.
    pub placed_per_turn: usize,
    /// Operations begun in one turn.
    pub operations_per_turn: usize,
}

impl Default for FetcherSettings {
    fn default() -> Self {
        FetcherSettings {
            fetches_max: 4_096,
            connections_max: 256,
            dials_max: 4,
            residences_max: GRANT_KEYS_MAX,
            operations_max: 4,
            bytes_max: 32 << 20,
            source_bytes_max: 16 << 20,
            rate: None,
            background_bytes_max: 8 << 20,
            routes_max: CALLS,
            idle_wait: Duration::from_secs(10),
            redial_min: Duration::from_millis(100),
            redial_max: Duration::from_secs(3),
            stall_wait: Duration::from_millis(GRANT_MS_MAX as u64),
            guard: GuardSettings::default(),
            sharing_pause: Duration::from_secs(1),
            placed_per_turn: 256,
            operations_per_turn: 2,
        }
    }
}

impl FetcherSettings {
    /// # Panics
    /// If a bound leaves no room for anything.
    pub(super) fn assert_valid(&self) {
        assert!(self.fetches_max > 0 && self.connections_max > 0 && self.dials_max > 0, "a queue has room");
        assert!(
            (1..=GRANT_KEYS_MAX).contains(&self.residences_max),
            "an operation wants 1 to {GRANT_KEYS_MAX}"
        );
        assert!(self.operations_max > 0, "something is tried");
        assert!((1..=CALLS).contains(&self.routes_max), "a block is asked for once to {CALLS} times");
        assert!(self.source_bytes_max <= self.bytes_max, "a source has a share");
        assert!(self.redial_min <= self.redial_max, "pauses grow");
        assert!(self.placed_per_turn > 0 && self.operations_per_turn > 0, "a turn does something");
    }
}
