//! What a core's receiving end can say of itself (chapter 2.11).

use std::collections::BTreeMap;
use std::time::Duration;

use orbitkv_wire::identity::{Sequence, SnapshotId};
use orbitkv_wire::inventory::{Kind, OpenRefusal, ResetCause, ResourceSummary, SourceStream};

use super::StreamId;
use crate::time::Moment;

/// Durations of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    /// How many.
    pub count: u64,
    /// All of them together.
    pub total: Duration,
    /// The longest.
    pub longest: Duration,
}

impl Spans {
    pub(super) fn add(&mut self, span: Duration) {
        self.count += 1;
        self.total += span;
        self.longest = self.longest.max(span);
    }
}

/// Frames and bytes of one kind, headers included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// How many.
    pub frames: u64,
    /// How long.
    pub bytes: u64,
}

/// Counters since the core began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubscriberFigures {
    /// What was received, by kind.
    pub received: BTreeMap<Kind, Traffic>,
    /// ACKs sent.
    pub acks: u64,
    /// Frames of replaced sessions and of connections that are no more; they changed nothing.
    pub late_frames: u64,
    /// Deltas that had been applied before.
    pub repeated_deltas: u64,
    /// Changes applied to installed views.
    pub changes_applied: u64,
    /// Changes applied to staging.
    pub changes_staged: u64,
    /// Frames that were applied in steps.
    pub frames_in_steps: u64,
    /// Most frames that waited in one session.
    pub backlog_frames_peak: u64,
    /// Most bytes that waited in one session.
    pub backlog_bytes_peak: u64,
    /// Sessions opened.
    pub sessions_opened: u64,
    /// Sessions this end closed, by the label of their cause.
    pub sessions_closed: BTreeMap<&'static str, u64>,
    /// Sessions that ended from elsewhere.
    pub sessions_lost: u64,
    /// Resets that sources asked for, by cause.
    pub resets: BTreeMap<ResetCause, u64>,
    /// Sessions that sources refused, by cause; a wrong source is one that has been replaced.
    pub refusals: BTreeMap<OpenRefusal, u64>,
    /// Views that went on after a reconnect.
    pub resumed: u64,
    /// Snapshots accepted.
    pub snapshots_accepted: u64,
    /// Snapshots installed.
    pub snapshots_installed: u64,
    /// Offers that had to wait until other snapshots gave their room back.
    pub snapshots_held: u64,
    /// Offers refused because the index had no room at the time.
    pub snapshots_refused: u64,
    /// Frames of refused snapshots; they changed nothing.
    pub frames_discarded: u64,
    /// Views given up to make room for a snapshot, of the same owner or of another.
    pub views_withdrawn: u64,
    /// Owner streams excluded because their source left or was replaced.
    pub streams_excluded: u64,
    /// From a stream's beginning to its first view.
    pub bootstraps: Spans,
    /// From a reset to the next view.
    pub repairs: Spans,
}

/// What an owner stream is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerState {
    /// Waits before it is dialed.
    Resting,
    /// Is being dialed, or waits for its turn.
    Dialing,
    /// Has asked to go on.
    Resuming,
    /// Waits for a snapshot.
    Bootstrapping,
    /// Fills a staging.
    Staging,
    /// Follows the journal.
    Live,
}

/// One owner stream, for a paginated listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerDetail {
    /// Its number; a listing continues after it.
    pub stream: StreamId,
    /// Whose.
    pub source: SourceStream,
    /// What it is at.
    pub state: OwnerState,
    /// The installed view and its watermark.
    pub view: Option<(SnapshotId, Sequence)>,
    /// Rows of the installed view.
    pub rows: u32,
    /// The newest head the source named.
    pub source_head: Sequence,
    /// When the view was fresh.
    pub fresh_at: Option<Moment>,
    /// Since when its view is missing or beyond repair.
    pub lacking_since: Option<Moment>,
    /// Whether there was no room for what the source has.
    pub misfit: bool,
    /// How busy the source said it is, and when that was received.
    pub summary: Option<(ResourceSummary, Moment)>,
}
