//! One inventory session as its requester sees it: numbers, the window, what was received and not yet
//! looked into, and when an ACK is due (chapter 2.4).

use std::collections::VecDeque;

use orbitkv_wire::identity::{Sequence, SnapshotId};
use orbitkv_wire::inventory::{FromRequester, Header, Kind, Resume, Tag, append_from_requester};

use super::SubscriberSettings;
use super::close::CloseCause;
use super::snapshot::{Bootstrap, Staging};
use crate::inventory::ConnectionId;
use crate::time::Moment;

/// Where a session is.
#[derive(Debug)]
pub(super) enum Phase {
    /// The source has not answered whether the view goes on.
    Resuming(Resume),
    /// A snapshot is to come.
    Bootstrapping(Bootstrap),
    /// The view follows the journal.
    Live,
}

/// A frame as it was received.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame<'a> {
    pub header: &'a Header,
    pub body: &'a [u8],
    pub receipt: Moment,
}

/// A frame that waits until the ones before it are applied.
#[derive(Debug)]
pub(super) struct Waiting {
    pub header: Header,
    pub body: Vec<u8>,
    pub receipt: Moment,
}

/// A session.
#[derive(Debug)]
pub(super) struct Session {
    pub connection: ConnectionId,
    pub tag: Tag,
    pub opened: Moment,
    pub phase: Phase,
    backlog: VecDeque<Waiting>,
    backlog_bytes: u64,
    received_frame: u64,
    consumed_frame: u64,
    /// Bytes of pages and deltas that were received and not acknowledged.
    outstanding_bytes: u32,
    /// Those of them that were consumed.
    consumed_bytes: u32,
    ack_due: Option<Moment>,
    /// Before which no other ACK leaves unless enough credit has gathered.
    ack_rests_until: Moment,
    sent_frame: u64,
}

impl Session {
    /// A session whose Open is being sent.
    pub fn new(connection: ConnectionId, tag: Tag, phase: Phase, now: Moment) -> Session {
        Session {
            connection,
            tag,
            opened: now,
            phase,
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            received_frame: 0,
            consumed_frame: 0,
            outstanding_bytes: 0,
            consumed_bytes: 0,
            ack_due: None,
            ack_rests_until: now,
            sent_frame: 1,
        }
    }

    /// A frame of this session has come: its number, and whether the window has room for it.
    pub fn receive(&mut self, header: &Header, settings: &SubscriberSettings) -> Result<(), CloseCause> {
        let expected = self.received_frame + 1;
        if header.frame != expected {
            return Err(CloseCause::FrameNumber { expected, found: header.frame });
        }
        self.received_frame = expected;
        let outstanding = self.outstanding_bytes.saturating_add(credit_bytes(header));
        if outstanding > settings.window_bytes {
            return Err(CloseCause::WindowExceeded { window_bytes: settings.window_bytes });
        }
        self.outstanding_bytes = outstanding;
        Ok(())
    }

    /// Keeps a frame for later.
    pub fn keep(&mut self, waiting: Waiting, settings: &SubscriberSettings) -> Result<(), CloseCause> {
        if self.backlog.len() >= settings.backlog_frames_max {
            return Err(CloseCause::BacklogFull { limit: settings.backlog_frames_max });
        }
        self.backlog_bytes += u64::from(waiting.header.length);
        self.backlog.push_back(waiting);
        Ok(())
    }

    /// The frame whose turn it is.
    pub fn take_kept(&mut self) -> Option<Waiting> {
        let waiting = self.backlog.pop_front()?;
        self.backlog_bytes -= u64::from(waiting.header.length);
        Some(waiting)
    }

    /// Frames and bytes that wait.
    pub fn backlog(&self) -> (usize, u64) {
        (self.backlog.len(), self.backlog_bytes)
    }

    /// Gives the source of a staging time for its next frame.
    pub fn expect_page(&mut self, settings: &SubscriberSettings, now: Moment) {
        if let Phase::Bootstrapping(Bootstrap::Staging(staging)) = &mut self.phase {
            staging.page_due = now + settings.page_wait;
        }
    }

    /// The staging, which `what` belongs to.
    pub fn staging(&mut self, what: &'static str) -> Result<&mut Staging, CloseCause> {
        match &mut self.phase {
            Phase::Bootstrapping(Bootstrap::Staging(staging)) => Ok(staging),
            _ => Err(CloseCause::Unexpected(what)),
        }
    }

    /// Whether it has refused a snapshot, and has not heard since what comes instead.
    pub fn discards(&self) -> bool {
        matches!(self.phase, Phase::Bootstrapping(Bootstrap::Refused))
    }

    /// A frame has had its effect. Says whether enough credit has gathered for an ACK at once.
    pub fn consume(&mut self, header: &Header, settings: &SubscriberSettings, now: Moment) -> bool {
        assert!(header.frame > self.consumed_frame, "frames are consumed in order");
        self.consumed_frame = header.frame;
        self.consumed_bytes += credit_bytes(header);
        assert!(self.consumed_bytes <= self.outstanding_bytes, "what is consumed was received");
        let due = if brings_content(header) {
            // At once if none has left lately: it travels with the transport's own acknowledgement of the frame.
            now.max(self.ack_rests_until)
        } else {
            now + settings.ack_wait
        };
        self.ack_due = Some(self.ack_due.map_or(due, |before| before.min(due)));
        self.consumed_bytes >= settings.ack_bytes
    }

    /// When an ACK has to leave.
    pub fn ack_due(&self) -> Option<Moment> {
        self.ack_due
    }

    /// The ACK of everything consumed; but for credit, the next one rests until `next_at`.
    pub fn acknowledge(&mut self, view: SnapshotId, applied: Sequence, next_at: Moment) -> Vec<u8> {
        self.ack_rests_until = next_at;
        self.outstanding_bytes -= std::mem::take(&mut self.consumed_bytes);
        self.ack_due = None;
        let consumed_frame = self.consumed_frame;
        self.say(&FromRequester::Ack { consumed_frame, view, applied })
    }

    /// The bytes of a message, which must be sent in this order.
    pub fn say(&mut self, message: &FromRequester) -> Vec<u8> {
        self.sent_frame += 1;
        let mut bytes = Vec::new();
        append_from_requester(&mut bytes, self.tag, self.sent_frame, message);
        bytes
    }
}

/// Whether a frame carries a part of a view or moves its cursor.
fn brings_content(header: &Header) -> bool {
    matches!(
        Kind::from_wire(header.kind),
        Some(Kind::SnapshotPage | Kind::Delta | Kind::SnapshotCommit | Kind::Progress)
    )
}

/// Bytes that a frame takes of the window. Small frames are not held against a source: their number is
/// bounded by the backlog.
fn credit_bytes(header: &Header) -> u32 {
    match Kind::from_wire(header.kind) {
        Some(Kind::SnapshotPage | Kind::Delta) => header.length,
        _ => 0,
    }
}
