//! How busy a shard is, over windows of a second: what its signs of life and its answers say of it, so that others
//! can tell what it would cost to ask it. Evidence, and never a permission: whoever is told that a source is idle may
//! be refused by it, and whoever is told that it is busy may ask.

use std::time::Duration;

use orbitkv_wire::inventory::ResourceSummary;

use super::pacing::Rate;
use crate::resilience::degradation::FRESHNESS_BOUND;
use crate::time::Moment;

/// Shortest time that is measured over.
pub const WINDOW: Duration = Duration::from_secs(1);

/// Age beyond which a summary says nothing any more: a source that lives says something more often. It is a hint like
/// any other.
pub const SUMMARY_AGE_MAX: Duration = FRESHNESS_BOUND;

/// Nothing was measured.
pub const UNMEASURED: ResourceSummary =
    ResourceSummary { window_ms: 0, reads_queued: 0, ssd_busy_permille: 0, egress_busy_permille: 0 };

/// What a core shows at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Operations that its SSD has.
    pub device_operations: u64,
    /// Blocks that other nodes read, or wait to read.
    pub reads: u64,
    /// Bytes that it has sent to other nodes so far.
    pub sent_bytes: u64,
}

/// The measurement of one core.
#[derive(Clone, Debug)]
pub struct Pressure {
    egress: Option<Rate>,
    begun: Moment,
    sent_bytes_begun: u64,
    looked: Moment,
    is_ssd_busy: bool,
    ssd_busy: Duration,
}

impl Pressure {
    /// A window that begins now, of a core that may send so much.
    #[must_use]
    pub fn new(egress: Option<Rate>, now: Moment) -> Pressure {
        Pressure {
            egress,
            begun: now,
            sent_bytes_begun: 0,
            looked: now,
            is_ssd_busy: false,
            ssd_busy: Duration::ZERO,
        }
    }

    /// What is so now; from one look to the next the SSD is as busy as it was at the first. A summary if a window has
    /// ended by that.
    pub fn look(&mut self, level: Level, now: Moment) -> Option<ResourceSummary> {
        if self.is_ssd_busy {
            self.ssd_busy += now.since(self.looked);
        }
        self.looked = now;
        self.is_ssd_busy = level.device_operations > 0;
        let window = now.since(self.begun);
        if window < WINDOW {
            return None;
        }
        let sent_bytes = level.sent_bytes - self.sent_bytes_begun;
        let summary = ResourceSummary {
            window_ms: u32::try_from(window.as_millis()).unwrap_or(u32::MAX),
            reads_queued: u32::try_from(level.reads).unwrap_or(u32::MAX),
            ssd_busy_permille: permille(self.ssd_busy.as_nanos(), window.as_nanos()),
            egress_busy_permille: self
                .egress
                .map_or(0, |rate| permille(u128::from(sent_bytes), u128::from(rate.bytes_in(window)))),
        };
        self.begun = now;
        self.sent_bytes_begun = level.sent_bytes;
        self.ssd_busy = Duration::ZERO;
        Some(summary)
    }
}

/// Thousandths, no more than all of them: a burst may go beside a rate.
fn permille(part: u128, whole: u128) -> u16 {
    (part * 1_000 / whole.max(1)).min(1_000) as u16
}
