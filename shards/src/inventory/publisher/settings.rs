//! What bounds a publisher: the node's bounds split over its shards, and the frame bound that follows.
//!
//! Everything is a parameter, so that tests can shrink it until every branch runs; what a node uses is
//! derived once, at boot, and a shard count under which one record would not fit a frame is refused by
//! name (chapter 2.10).

use std::time::Duration;

use orbitkv_wire::bounds::{
    INTERVAL_RECORDS_MAX, INVENTORY_FRAME_BYTES_MAX, INVENTORY_FRAME_BYTES_MIN, PAGE_BYTES_MAX,
    WINDOW_FRAMES_MIN,
};
use orbitkv_wire::inventory::HEADER_BYTES;
use thiserror::Error;

use crate::journal::JournalSettings;
use crate::resilience::degradation::FRESHNESS_BOUND;

/// Longest intentional wait of a change before it is encoded (chapter 2.3).
pub const COALESCING_WINDOW_MAX: Duration = Duration::from_millis(5);

/// Progress over nothing is told at most this often, but at once for a flush.
pub const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// A session in which nothing else left says that it lives before this much time has passed: two of these fit into the
/// freshness bound, with a second for a beat that is lost and sent again (ADR 35).
pub const LIVENESS_INTERVAL: Duration = Duration::from_secs(2);

/// Time that a beat which is lost and sent again may take.
const BEAT_TRAVEL: Duration = Duration::from_secs(1);

const _: () = assert!(
    2 * LIVENESS_INTERVAL.as_nanos() + BEAT_TRAVEL.as_nanos() <= FRESHNESS_BOUND.as_nanos(),
    "a source that lives and lost one beat is not taken for silent"
);

/// Beats leave at multiples of this on the driver's clock, each at the last one before it is overdue. So the beats of
/// a core leave in one turn, and where nodes share a clock, those of its peers come in together, too: at rest, nearly
/// all that a node spends is waking up (ADR 21).
pub const LIVENESS_STEP: Duration = Duration::from_secs(1);

const _: () =
    assert!(LIVENESS_STEP.as_nanos() * 2 <= LIVENESS_INTERVAL.as_nanos(), "a beat is followed by a rest");

/// A connection says what it wants within this time, or ends.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// A snapshot permit ends after this time without a page.
pub const PERMIT_IDLE: Duration = Duration::from_secs(5);

/// Rest before the first retry of a snapshot that failed; it doubles up to [`RETRY_REST_MAX`].
pub const RETRY_REST_MIN: Duration = Duration::from_millis(100);

/// Longest rest before a snapshot that failed is tried again.
pub const RETRY_REST_MAX: Duration = Duration::from_secs(3);

/// Longest time for which a receiver can put an offer off.
pub const REFUSAL_REST_MAX: Duration = Duration::from_secs(600);

/// While the queue pool is exhausted, a subscriber that has not acknowledged a frame for this long
/// gives way.
pub const STALL_AFTER: Duration = Duration::from_millis(250);

/// One subscriber holds at most this part of the queue pool.
pub const POOL_SHARE: usize = 8;

/// What a node may spend on publishing, before it is split over its shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeBounds {
    /// Bytes of frames that are built and not yet consumed by every receiver, shared ones counted once.
    pub queue_bytes: usize,
    /// The same of one stream.
    pub stream_bytes: usize,
    /// Metadata bytes a second that leave the node.
    pub bytes_per_second: u64,
    /// Bytes that may leave at once after a rest.
    pub burst_bytes: usize,
    /// Bytes of the largest record, for which there must be room in a frame.
    pub record_bytes: usize,
}

impl Default for NodeBounds {
    fn default() -> Self {
        const MIB: usize = 1024 * 1024;
        NodeBounds {
            queue_bytes: 32 * MIB,
            stream_bytes: MIB,
            bytes_per_second: 16 * MIB as u64,
            burst_bytes: MIB,
            record_bytes: 128 * 1024,
        }
    }
}

/// Why a node cannot publish with these bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BoundsRefused {
    /// A frame could not carry one record.
    #[error(
        "{shards} shards leave {bytes} bytes for a metadata frame by the {bound}; one record takes {needed}: \
         use fewer shards"
    )]
    Shards {
        /// The shard count.
        shards: u16,
        /// The bound that is too tight.
        bound: &'static str,
        /// What it leaves for a frame.
        bytes: usize,
        /// What one record takes.
        needed: usize,
    },
    /// The coalescing window is too long.
    #[error("a coalescing window of {window:?} is over the limit of {COALESCING_WINDOW_MAX:?}")]
    Window {
        /// The window asked for.
        window: Duration,
    },
}

/// Bounds of one shard's publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublisherSettings {
    /// How long a change may wait for others before it is encoded.
    pub coalescing_window: Duration,
    /// Bounds of the journal that is read; intervals are scratch of this size.
    pub journal: JournalSettings,
    /// Input records of one delta. A delta of the default of 256 applies whole at the receiver.
    pub delta_records_max: usize,
    /// Records of one snapshot page.
    pub page_records_max: usize,
    /// Bytes of one snapshot page's body.
    pub page_bytes_max: usize,
    /// Largest frame, header included, whatever a receiver takes.
    pub frame_bytes_max: usize,
    /// Bytes that one subscriber holds of the queue pool.
    pub stream_bytes_max: usize,
    /// Frames that one subscriber leaves unacknowledged.
    pub stream_frames_max: usize,
    /// Bytes of the queue pool.
    pub queue_bytes_max: usize,
    /// Bytes a second that leave.
    pub bytes_per_second: u64,
    /// Bytes that may leave at once after a rest.
    pub burst_bytes: usize,
    /// Connections at a time, greeting ones included.
    pub connections_max: usize,
    /// Sessions at a time.
    pub sessions_max: usize,
    /// Records that one turn reads or scans before it yields.
    pub slice_records: usize,
    /// Bytes that one turn encodes before it yields.
    pub slice_bytes: usize,
}

impl PublisherSettings {
    /// The share of one of `shards` shards in the bounds of a node whose shards have such a journal.
    ///
    /// # Errors
    /// [`BoundsRefused`] naming the shard count or the window that is too large.
    ///
    /// # Panics
    /// If there are no shards.
    pub fn of_node(
        bounds: &NodeBounds,
        shards: u16,
        journal: JournalSettings,
        coalescing_window: Duration,
    ) -> Result<PublisherSettings, BoundsRefused> {
        if coalescing_window > COALESCING_WINDOW_MAX {
            return Err(BoundsRefused::Window { window: coalescing_window });
        }
        let split = usize::from(shards);
        let queue_bytes_max = bounds.queue_bytes / split;
        let burst_bytes = bounds.burst_bytes / split;
        let stream_bytes_max = bounds.stream_bytes.min(queue_bytes_max / POOL_SHARE);
        let derived = [
            ("frame bound", INVENTORY_FRAME_BYTES_MAX),
            ("pacing burst", burst_bytes),
            ("share of the queue pool", stream_bytes_max / WINDOW_FRAMES_MIN),
        ];
        let (bound, frame_bytes_max) = derived.into_iter().min_by_key(|(_, bytes)| *bytes).expect("three");
        let needed = bounds.record_bytes + HEADER_BYTES;
        if frame_bytes_max < needed {
            return Err(BoundsRefused::Shards { shards, bound, bytes: frame_bytes_max, needed });
        }
        let settings = PublisherSettings {
            coalescing_window,
            journal,
            delta_records_max: 256.min(journal.input_records_max()),
            page_records_max: 256,
            page_bytes_max: PAGE_BYTES_MAX.min(frame_bytes_max - HEADER_BYTES),
            frame_bytes_max,
            stream_bytes_max,
            stream_frames_max: 1_024,
            queue_bytes_max,
            bytes_per_second: bounds.bytes_per_second / u64::from(shards),
            burst_bytes,
            connections_max: 256,
            sessions_max: 128,
            slice_records: 256,
            slice_bytes: 64 * 1024,
        };
        settings.assert_consistent();
        Ok(settings)
    }

    /// # Panics
    /// If the bounds contradict each other, so that some frame could never leave.
    pub(super) fn assert_consistent(&self) {
        assert!(self.coalescing_window <= COALESCING_WINDOW_MAX);
        assert!(self.frame_bytes_max >= INVENTORY_FRAME_BYTES_MIN, "one record fits a frame");
        assert!(self.frame_bytes_max <= INVENTORY_FRAME_BYTES_MAX);
        assert!(self.frame_bytes_max <= self.burst_bytes, "every frame can be paced");
        assert!(self.frame_bytes_max * WINDOW_FRAMES_MIN <= self.stream_bytes_max, "two frames fit a stream");
        assert!(self.stream_bytes_max * POOL_SHARE <= self.queue_bytes_max, "one has an eighth of the pool");
        assert!(HEADER_BYTES + self.page_bytes_max <= self.frame_bytes_max, "a page fits a frame");
        assert!(self.page_bytes_max <= PAGE_BYTES_MAX);
        assert!(self.delta_records_max <= INTERVAL_RECORDS_MAX, "a delta has a bound of its own");
        assert!(self.delta_records_max > 0 && self.page_records_max > 0 && self.stream_frames_max >= 2);
        assert!(self.slice_records > 0 && self.slice_bytes > 0 && self.sessions_max > 0);
        assert!(self.sessions_max <= self.connections_max);
        assert!(self.bytes_per_second > 0);
    }
}
