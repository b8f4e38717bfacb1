//! What a publisher counts (chapter 2.11).

use std::collections::BTreeMap;
use std::time::Duration;

use orbitkv_wire::inventory::{Body, Kind, OpenRefusal, ResetCause};

/// Frames of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bodies built.
    pub bodies_encoded: u64,
    /// Bytes of bodies built.
    pub bytes_encoded: u64,
    /// Frames that left.
    pub frames_sent: u64,
    /// Bytes that left, headers included.
    pub bytes_sent: u64,
}

/// Counters since the process started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Journal records read: mutations before coalescing.
    pub records_read: u64,
    /// Records left of them: mutations after coalescing, before the scope filter.
    pub records_coalesced: u64,
    /// Frames by what they say.
    pub traffic: BTreeMap<Kind, Traffic>,
    /// Bytes of replay deltas that left, which are among those of deltas.
    pub replay_bytes_sent: u64,
    /// Bytes that came back by acknowledgements.
    pub bytes_acknowledged: u64,
    /// Acknowledgements of frames that never left.
    pub acks_invented: u64,
    /// Acknowledgements that returned nothing.
    pub acks_repeated: u64,
    /// Answers to a snapshot that is no longer offered.
    pub answers_late: u64,
    /// Sessions opened.
    pub sessions_opened: u64,
    /// Sessions that went on where an earlier one was.
    pub sessions_resumed: u64,
    /// Sessions that were not to be, by cause.
    pub refusals: BTreeMap<OpenRefusal, u64>,
    /// Resets by cause.
    pub resets: BTreeMap<ResetCause, u64>,
    /// Connections closed for what the peer sent.
    pub protocol_errors: u64,
    /// Subscribers that gave way while the queue pool was exhausted.
    pub stalled_closed: u64,
    /// Snapshots offered.
    pub snapshots_begun: u64,
    /// Snapshots committed.
    pub snapshots_committed: u64,
    /// Snapshots refused by the receiver.
    pub snapshots_refused: u64,
    /// Snapshots that ended before their commit for another reason.
    pub snapshots_failed: u64,
    /// Intervals that waited for others on purpose, or could have.
    pub exposures: u64,
    /// What they waited together.
    pub intentional_wait: Duration,
    /// The longest such wait.
    pub intentional_wait_max: Duration,
}

/// What a publisher is at now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Connections, those that have not opened a session included.
    pub connections: usize,
    /// Sessions.
    pub sessions: usize,
    /// Sessions that follow the journal.
    pub following: usize,
    /// Sessions that wait for, or get, a snapshot.
    pub bootstrapping: usize,
    /// Records by which the rearmost acknowledged view is behind the journal.
    pub lag_records_max: u64,
    /// Bytes of the queue pool in use.
    pub queue_bytes: u64,
    /// The most that ever was.
    pub queue_bytes_peak: u64,
    /// Intervals kept for subscribers.
    pub intervals: usize,
}

impl Figures {
    pub(super) fn on_encoded(&mut self, body: &Body) {
        let traffic = self.traffic.entry(body.kind).or_default();
        traffic.bodies_encoded += 1;
        traffic.bytes_encoded += body.bytes.len() as u64;
    }

    pub(super) fn on_sent(&mut self, kind: Kind, frame_bytes: usize) {
        let traffic = self.traffic.entry(kind).or_default();
        traffic.frames_sent += 1;
        traffic.bytes_sent += frame_bytes as u64;
    }

    pub(super) fn on_exposed(&mut self, wait: Duration) {
        self.exposures += 1;
        self.intentional_wait += wait;
        self.intentional_wait_max = self.intentional_wait_max.max(wait);
    }

    /// Frames of one kind.
    #[must_use]
    pub fn of(&self, kind: Kind) -> Traffic {
        self.traffic.get(&kind).copied().unwrap_or_default()
    }
}
