//! Why the requester's end closes a session. The stream goes on: it is dialed again under backoff,
//! unless its source is no longer expected.

use orbitkv_wire::identity::Sequence;
use orbitkv_wire::inventory::{FrameError, OpenRefusal};
use thiserror::Error;

use crate::index::IndexFull;
use crate::namespaces::NamespacesFull;

/// Why a session is closed. Nothing of the frame that led to it was applied to a visible view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CloseCause {
    /// Bytes are no frame.
    #[error("bad frame: {0}")]
    Frame(#[from] FrameError),
    /// A frame is cut short or has bytes behind it.
    #[error("{bytes} bytes are not one whole frame")]
    NotOneFrame {
        /// Bytes that were handed in.
        bytes: usize,
    },
    /// Frames are not numbered one by one.
    #[error("frame {found} came where {expected} was due")]
    FrameNumber {
        /// The number that was due.
        expected: u64,
        /// The number that came.
        found: u64,
    },
    /// More than the window was sent.
    #[error("the source sent more than the window of {window_bytes} bytes")]
    WindowExceeded {
        /// The window.
        window_bytes: u32,
    },
    /// Too many frames wait.
    #[error("{limit} frames wait, the most that may")]
    BacklogFull {
        /// The bound.
        limit: usize,
    },
    /// A message does not belong where the session is.
    #[error("{0} does not belong here")]
    Unexpected(&'static str),
    /// An interval does not continue where the view stands.
    #[error("the interval ({}, {}] does not continue {}", from.0, through.0, applied.0)]
    NotContiguous {
        /// Where it begins, exclusive.
        from: Sequence,
        /// Where it ends.
        through: Sequence,
        /// Where the view stands.
        applied: Sequence,
    },
    /// Two different records have one sequence.
    #[error("two different records have sequence {}", sequence.0)]
    SequenceConflict {
        /// The sequence.
        sequence: Sequence,
    },
    /// A change is of a namespace that was not asked for.
    #[error("a change is of a namespace outside the scope")]
    OutOfScope,
    /// A snapshot is not whole.
    #[error("the snapshot is not whole: {0}")]
    Snapshot(&'static str),
    /// The index has no room for a frame.
    #[error(transparent)]
    Budget(#[from] IndexFull),
    /// The namespaces of a frame do not fit.
    #[error(transparent)]
    Namespaces(#[from] NamespacesFull),
    /// No page came in time.
    #[error("no page came in time")]
    PageTimeout,
    /// The source does not want the session.
    #[error("the source refused the session: {0:?}")]
    Refused(OpenRefusal),
    /// The source's life is no longer a member.
    #[error("the source is no longer a member")]
    MemberGone,
    /// This node's own lease has expired.
    #[error("this node is fenced")]
    Fenced,
    /// This node subscribes to another scope now.
    #[error("the scope has changed")]
    ScopeChanged,
    /// A connection was made that nobody wants any more.
    #[error("the connection is not wanted any more")]
    NotWanted,
}

impl CloseCause {
    /// The cause as metrics name it.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            CloseCause::Frame(_) | CloseCause::NotOneFrame { .. } => "bad_frame",
            CloseCause::FrameNumber { .. } => "frame_number",
            CloseCause::WindowExceeded { .. } => "window_exceeded",
            CloseCause::BacklogFull { .. } => "backlog_full",
            CloseCause::Unexpected(_) => "unexpected",
            CloseCause::NotContiguous { .. } => "not_contiguous",
            CloseCause::SequenceConflict { .. } => "sequence_conflict",
            CloseCause::OutOfScope => "out_of_scope",
            CloseCause::Snapshot(_) => "snapshot",
            CloseCause::Budget(_) => "budget",
            CloseCause::Namespaces(_) => "namespaces",
            CloseCause::PageTimeout => "page_timeout",
            CloseCause::Refused(_) => "refused",
            CloseCause::MemberGone => "member_gone",
            CloseCause::Fenced => "fenced",
            CloseCause::ScopeChanged => "scope_changed",
            CloseCause::NotWanted => "not_wanted",
        }
    }
}
