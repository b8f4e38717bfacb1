//! What can go wrong between an engine and its node, each with the input, the limit and the
//! remedy. A refusal by the node keeps the node's own words.

use std::path::PathBuf;
use std::time::Duration;

use orbitkv_native::arena::ArenaViewError;
use orbitkv_wire::engine::{FrameError, Operation, Status};
use orbitkv_wire::layout::LayoutError;
use rustix::io::Errno;
use thiserror::Error;

/// Why a call of [`super::Client`] gave no result.
#[derive(Debug, Error)]
pub enum ClientError {
    /// Nobody answered in time, with backoff in between.
    #[error(
        "no node answers at {socket:?} within {waited:?}: {reason}; is `orbitkv node` running with this \
         --engine-socket?"
    )]
    Unreachable {
        /// The engine socket.
        socket: PathBuf,
        /// How long connecting was tried.
        waited: Duration,
        /// The last attempt's failure.
        reason: String,
    },
    /// The process at the socket belongs to a user whose bytes are not to be believed.
    #[error(
        "the engine socket {socket:?} is served by a process of uid {uid}, which is neither ours ({own}) nor root: check \
         the path; if the node runs as that user, run as it too or name it in `ClientSettings::node_uid`"
    )]
    UntrustedNode {
        /// The engine socket.
        socket: PathBuf,
        /// User id of whoever listens there.
        uid: u32,
        /// Our own effective user id.
        own: u32,
    },
    /// The connection ended before the answer came. Whether the node did the work is unknown; the
    /// next call connects again.
    #[error(
        "the connection to the node ended before the answer to {operation:?} came; call again to reconnect"
    )]
    ConnectionLost {
        /// The request without an answer.
        operation: Operation,
    },
    /// As many requests as the node granted have no delivered answer yet.
    #[error(
        "{in_flight} requests are unanswered or undelivered, as many as agreed: poll before submitting more"
    )]
    Full {
        /// Requests that may be in flight.
        in_flight: usize,
    },
    /// A slot, block or lease of another arena than the one in use.
    #[error(
        "it belongs to arena generation {held:016x}, the node now serves {current:016x}: the bytes are of an earlier \
         daemon; query and acquire anew"
    )]
    StaleGeneration {
        /// Generation the slot, block or lease came from.
        held: u64,
        /// Generation of the connection that replaced it.
        current: u64,
    },
    /// A slot, block or lease whose lease was released, or whose connection was lost and replaced.
    #[error(
        "it was released or its connection was replaced, so its bytes may be reused: acquire or reserve anew"
    )]
    Ended,
    /// The node refused the request as a whole.
    #[error("the node refused {operation:?} ({status:?}, {detail}): {text}")]
    Refused {
        /// The refused request.
        operation: Operation,
        /// Why.
        status: Status,
        /// The limit, version or other number the status speaks of.
        detail: u64,
        /// The node's explanation.
        text: String,
    },
    /// No answer within the time given and a grace period: the node hangs or is stopped.
    #[error("{operation:?} has no answer after {wait:?} and the request was abandoned; is the node stopped?")]
    DeadlineExceeded {
        /// The request.
        operation: Operation,
        /// The time given.
        wait: Duration,
    },
    /// More items than one request may carry.
    #[error("{count} {what} are over the limit of {limit} in one request: split the request")]
    OverLimit {
        /// What was counted.
        what: &'static str,
        /// How many were given.
        count: usize,
        /// How many one request carries.
        limit: usize,
    },
    /// A text of a registration does not fit.
    #[error("{field} has {bytes} bytes, its limit is {limit}: shorten it or use a digest")]
    TextTooLong {
        /// Field of the registration.
        field: &'static str,
        /// Bytes given.
        bytes: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// A namespace handle that this client did not give out.
    #[error("namespace handle {handle} was not given by this client: register first")]
    UnknownNamespace {
        /// The handle.
        handle: u32,
    },
    /// The node's bytes do not follow the protocol; the connection was closed.
    #[error("the node broke the protocol: {reason}; do client and node have the same version?")]
    Protocol {
        /// What was wrong.
        reason: String,
    },
    /// The arena's descriptor was not acceptable.
    #[error("the node's arena cannot be used: {0}")]
    Arena(#[from] ArenaViewError),
    /// A system call on our side failed.
    #[error("{step} failed: {errno}")]
    System {
        /// What was attempted.
        step: &'static str,
        /// The kernel's answer.
        errno: Errno,
    },
}

impl ClientError {
    /// The node's status, if the node refused.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        match self {
            ClientError::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether a later call may succeed by itself, because the connection was at fault.
    #[must_use]
    pub fn is_connection(&self) -> bool {
        matches!(self, ClientError::ConnectionLost { .. } | ClientError::Unreachable { .. })
    }

    pub(super) fn protocol(reason: impl Into<String>) -> ClientError {
        ClientError::Protocol { reason: reason.into() }
    }
}

impl From<LayoutError> for ClientError {
    fn from(error: LayoutError) -> ClientError {
        FrameError::from(error).into()
    }
}

impl From<FrameError> for ClientError {
    fn from(error: FrameError) -> ClientError {
        ClientError::protocol(error.to_string())
    }
}
