//! What the room wants done, and why it closes connections.

use std::net::SocketAddr;
use std::time::Duration;

use orbitkv_wire::engine::answers::BlockOutcome;
use orbitkv_wire::identity::{BlockHash, Incarnation, Medium, NodeId, Sequence};
use orbitkv_wire::inventory::SourceStream;
use orbitkv_wire::payload::{Authorize, ExactResidence, FrameError, Kind, OperationId};
use thiserror::Error;

use super::order::Candidate;
use crate::planner::TrialOutcome;
use crate::residents::CopyId;
use crate::resilience::breaker::Change;
use crate::resilience::deadline::Step;
use crate::time::Moment;

/// Number of a payload connection that this core dialed; unique in the life of the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// Number of a dial; unique in the life of the room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DialId(pub u64);

/// What the room wants done, in the order of the effects.
///
/// Every Authorize is followed by exactly one of Release, Cancel and Forget for its operation, or by the end
/// of its connection: a Close, or [`super::Fetcher::on_closed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetcherEffect {
    /// Open a payload connection. To be answered once, by [`super::Fetcher::on_connected`],
    /// [`super::Fetcher::on_dial_failed`], which speaks of the source, or [`super::Fetcher::on_dial_given_up`]. A dial
    /// for which the endpoint has no room yet waits with whoever carries it.
    Dial {
        /// The dial.
        dial: DialId,
        /// Who must answer.
        source: SourceStream,
        /// Where that shard listens.
        address: SocketAddr,
    },
    /// Open a bidirectional stream, write the Authorize on it and read the answers from it.
    Authorize {
        /// On which connection.
        connection: ConnectionId,
        /// What to write; it names the operation.
        authorize: Authorize,
    },
    /// Everything granted has come: write a Release on the control stream. The source's end of the
    /// operation's stream follows or is there; nothing that comes on it matters any more.
    Release {
        /// On which connection.
        connection: ConnectionId,
        /// The operation.
        operation: OperationId,
    },
    /// Nothing of the operation is wanted any more: write a Cancel on the control stream. Over QUIC the operation's
    /// stream is read to its end, which is told by [`super::Fetcher::on_stream_over`]; what comes on it is thrown away.
    Cancel {
        /// On which connection.
        connection: ConnectionId,
        /// The operation.
        operation: OperationId,
    },
    /// The stream of a cancelled operation has not ended: write its Cancel again. What is said of the stream is as after
    /// the first.
    CancelAgain {
        /// On which connection.
        connection: ConnectionId,
        /// The operation.
        operation: OperationId,
    },
    /// The source has ended the operation, or granted nothing: there is nothing to write.
    Forget {
        /// On which connection.
        connection: ConnectionId,
        /// The operation.
        operation: OperationId,
    },
    /// Shared memory: copy these bytes of the source's arena to where [`super::Fetcher::destination`] says, asked
    /// before every step, and report [`super::Fetcher::on_bytes`], or [`super::Fetcher::on_unread`].
    Read {
        /// On which connection it was told.
        connection: ConnectionId,
        /// The operation.
        operation: OperationId,
        /// Position of the residence.
        index: u16,
        /// Offset in the source's arena, which may not have it.
        offset: u64,
        /// Payload bytes.
        bytes: u32,
    },
    /// Shared memory: nothing of the operation is read any more, and never will be. The source is owed a
    /// Released until it has answered, whatever becomes of the connection or of either life.
    Released {
        /// Whose.
        source: SourceStream,
        /// The operation.
        operation: OperationId,
    },
    /// Close the connection. The room has forgotten it and everything on it.
    Close {
        /// Which.
        connection: ConnectionId,
        /// Why.
        cause: CloseCause,
    },
    /// The block is in its slot and has the checksum its source told.
    Fetched {
        /// The fetch, which has ended.
        copy: CopyId,
        /// Where the source had it.
        medium: Medium,
        /// `xxh3_64` of the bytes.
        checksum: u64,
    },
    /// The block was not brought, and nothing writes into its slot any more.
    Failed {
        /// The fetch, which has ended.
        copy: CopyId,
        /// Why.
        outcome: BlockOutcome,
    },
    /// A candidate was asked for the block, or the block waited to be asked for there, and what came of it says
    /// something of that candidate: whoever compares sources may want to know it. Nothing is told of a fetch that was
    /// cancelled, nor of one that went on before it was asked for, other than because the dial failed. Comes before
    /// what ends the fetch, if that follows.
    Tried {
        /// The fetch.
        copy: CopyId,
        /// Who was tried.
        candidate: Candidate,
        /// Bytes that were to come from there before it.
        ahead_bytes: u64,
        /// When it joined the queue there.
        since: Moment,
        /// Whether the source was connected then and ever since.
        is_warm: bool,
        /// What became of it.
        outcome: TrialOutcome,
    },
    /// A residence was there when the index was told of it, and has ended since: for the log.
    RangeEnded {
        /// Who said so.
        source: SourceStream,
        /// The residence that was asked for.
        residence: ExactResidence,
        /// Sequence of its end, if the source remembers it.
        ended: Option<Sequence>,
    },
    /// The time of a fetch that somebody waited for is over: for the log. Its Failed follows.
    OutOfTime {
        /// The fetch.
        copy: CopyId,
        /// The block.
        block: BlockHash,
        /// Who was asked or to be asked then, if anybody.
        source: Option<SourceStream>,
        /// The step that used most of the time.
        consumer: Step,
        /// How long that was.
        used: Duration,
        /// The step at which time was over.
        at: Step,
    },
    /// A source is left alone from now on, or asked again: for the log.
    Breaker {
        /// The source shard.
        source: SourceStream,
        /// Which of both.
        change: Change,
        /// Whether a probe decided.
        is_probe: bool,
    },
    /// A source told that this life of a node is over: nothing of it may be used from now on. That alone
    /// admits no successor.
    Exclude {
        /// The node.
        node: NodeId,
        /// Its life that is over.
        incarnation: Incarnation,
    },
    /// What a source says contradicts this life of its node: read membership anew; the room waits for nothing.
    Refresh {
        /// The node.
        node: NodeId,
        /// Its life, as far as known.
        incarnation: Incarnation,
    },
}

/// Why the room closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CloseCause {
    /// Nothing was asked for a while.
    #[error("nothing was asked for a while")]
    Idle,
    /// Another source needs its place.
    #[error("another source needs the connection's place")]
    Displaced,
    /// The source's life is no longer a member.
    #[error("the source is no longer a member")]
    MemberGone,
    /// This node's own lease has expired.
    #[error("this node is fenced")]
    Fenced,
    /// A connection was made that nobody wants any more.
    #[error("the connection is not wanted any more")]
    NotWanted,
    /// The source broke the protocol.
    #[error(transparent)]
    Violation(#[from] Violation),
}

impl CloseCause {
    /// The cause as metrics name it.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            CloseCause::Idle => "idle",
            CloseCause::Displaced => "displaced",
            CloseCause::MemberGone => "member_gone",
            CloseCause::Fenced => "fenced",
            CloseCause::NotWanted => "not_wanted",
            CloseCause::Violation(_) => "violation",
        }
    }
}

/// How a source broke the protocol. Nothing of the message was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Violation {
    /// Bytes are no frame, or one with another tag or operation than the stream's.
    #[error("bad frame: {0}")]
    Frame(#[from] FrameError),
    /// A message does not belong where the operation is.
    #[error("{0:?} does not belong here")]
    Unexpected(Kind),
    /// Not every residence has an answer, or more have one.
    #[error("{answered} answers to {asked} residences")]
    AnswerCount {
        /// Residences asked for.
        asked: usize,
        /// Answers that came.
        answered: usize,
    },
    /// Bytes or a failure of something that was not granted, or a second time.
    #[error("position {index} is not granted, or was served before")]
    NotGranted {
        /// The position.
        index: u16,
    },
    /// The stream of an operation that was cancelled goes on beyond all grants.
    #[error("the stream of a cancelled operation has not ended though its grant has")]
    Undrained,
    /// Another length than was granted.
    #[error("{sent} bytes at position {index}, where {granted} are granted")]
    Length {
        /// The position.
        index: u16,
        /// Bytes granted.
        granted: u32,
        /// Bytes announced.
        sent: u32,
    },
    /// The source says it has another life, and names the one that was asked.
    #[error("the source refuses its own life as stale")]
    OwnLife,
}

/// How a source's end of an operation's stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// With its end.
    Finished,
    /// Broken off with a code: a [`orbitkv_wire::payload::StopCause`].
    Reset {
        /// The code.
        code: u64,
    },
}

/// A place for payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Offset of the payload's first byte in the arena.
    pub arena_offset: u64,
    /// Bytes of the payload.
    pub bytes: u32,
}
