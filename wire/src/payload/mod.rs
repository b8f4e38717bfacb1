//! Frames of the payload protocol: how a node asks another for blocks, and how their bytes come.
//!
//! A requester names exact residences in one *operation*; the source answers each of them, and what it
//! granted follows as it becomes readable. Over QUIC an operation is one bidirectional stream, and payload
//! bytes follow their [`Kind::Bytes`] frame on it; over shared memory a [`Kind::Extent`] frame says where
//! in the source's arena they lie. Both use the same frames otherwise. A frame is a [`Header`] and a body;
//! the header names the operation and is tied by its tag to both ends. All integers are little-endian,
//! nothing is aligned, and no frame carries a pointer. `docs/payload-protocol.md` has the tables.

mod authorize;
mod binding;
mod control;
mod source;
mod stream;

use std::ops::Range;

use thiserror::Error;

use crate::bounds;
use crate::layout::{Fixed, LayoutError, Reader, fixed};
use crate::numbered::numbered;

pub use authorize::{
    Attempt, Authorize, AuthorizeBody, ExactResidence, ResidenceRecord, Transport, append_authorize,
    decode_authorize,
};
pub use binding::{Binding, TAG_DOMAIN, TAG_VERSION, Tag};
pub use control::{FromRequester, append_from_requester, decode_from_requester};
pub use source::{
    Answer, AnswerKind, AnswerRecord, AnswersBody, BytesBody, ExtentBody, FailedBody, FailureCause,
    FromSource, Refusal, RefusalCause, RefusedBody, StopCause, StoppedBody, append_from_source,
    decode_from_source,
};
pub use stream::{Part, Splitter};

/// Name of the protocol. Every frame but [`Kind::Released`] and [`Kind::Drained`] is bound to it by the
/// header's tag; it changes with every change of a byte.
pub const PROTOCOL: &str = "orbitkv/payload/v2";

fixed! {
    /// Starts every frame, in both directions.
    pub struct Header {
        /// Bytes of the whole frame, this header included; payload that follows a frame is not counted.
        pub length: u32,
        /// [`Kind`] number.
        pub kind: u8,
        /// [`Tag`] of the [`Binding`]. Released and Drained, which outlive incarnations: 0.
        pub tag: [u8; 16],
        /// Operation: drawn at random by each core of the requester's process.
        pub origin: u64,
        /// Operation: counts from 1 in its origin; never used again.
        pub number: u64,
        /// Authorize: residences. Answers: answers. Else 0.
        pub count: u32,
    }
}

/// Bytes of a header.
pub const HEADER_BYTES: usize = Header::BYTES;

const _: () = assert!(HEADER_BYTES == bounds::PAYLOAD_HEADER_BYTES, "the bounds are derived from it");

numbered! {
    /// What a frame says.
    pub enum Kind: u8 {
        /// Requester: the residences it wants to read; the first frame of an operation.
        Authorize = 1,
        /// Requester: it has what it wanted; what is not sent need not be.
        Release = 2,
        /// Requester: it wants nothing more of this operation.
        Cancel = 3,
        /// Requester, shared memory: it reads none of the operation's extents any more, and will not again.
        Released = 4,
        /// Source: an answer to each residence.
        Answers = 16,
        /// Source: an answer to the whole operation, of which nothing is granted.
        Refused = 17,
        /// Source: the bytes of one granted residence follow.
        Bytes = 18,
        /// Source, shared memory: where the bytes of one granted residence lie.
        Extent = 19,
        /// Source: one granted residence could not be read after all.
        Failed = 20,
        /// Source: what has not been sent will not be.
        Stopped = 21,
        /// Source: it holds nothing for this operation any more; the answer to Released.
        Drained = 22,
    }
}

/// Names one operation for the life of the requester's process: random where it comes from, counted there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId {
    /// Drawn at random by each core of the requester's process.
    pub origin: u64,
    /// Counts from 1; never used again.
    pub number: u64,
}

/// Why bytes are no payload frame. Always the peer's fault; nothing of the frame is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// Bytes are missing, left over, or no value of their type.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The length prefix is outside header size and frame bound.
    #[error("frame of {length} bytes: a frame has {HEADER_BYTES} to {limit} bytes", limit = bounds::PAYLOAD_FRAME_BYTES_MAX)]
    Length {
        /// The length the peer announced.
        length: u32,
    },
    /// No message of this direction has this number.
    #[error("message {number} does not exist in this direction")]
    Kind {
        /// The number the peer sent.
        number: u8,
    },
    /// A count or a size is over its bound.
    #[error("{what}: {count} is over the limit of {limit}")]
    OverLimit {
        /// The counted thing.
        what: &'static str,
        /// The count the peer sent.
        count: u64,
        /// The bound.
        limit: u64,
    },
    /// A part contradicts another one or the protocol.
    #[error("{what}")]
    Contradiction {
        /// What is wrong.
        what: &'static str,
    },
}

impl Header {
    /// The header of a frame whose body has `body_bytes` bytes.
    ///
    /// # Panics
    /// If the frame is over [`bounds::PAYLOAD_FRAME_BYTES_MAX`], or the operation has no number.
    #[must_use]
    pub fn new(kind: Kind, tag: Tag, operation: OperationId, count: u32, body_bytes: usize) -> Header {
        let length = HEADER_BYTES + body_bytes;
        assert!(length <= bounds::PAYLOAD_FRAME_BYTES_MAX, "our own frame of {length} bytes is too large");
        let OperationId { origin, number } = operation;
        assert!(number != 0, "our own operations are numbered from 1");
        Header { length: length as u32, kind: kind as u8, tag: tag.0, origin, number, count }
    }

    /// The operation it speaks of.
    #[must_use]
    pub fn operation(&self) -> OperationId {
        OperationId { origin: self.origin, number: self.number }
    }
}

/// Looks at the front of a receive buffer for one whole frame.
///
/// Returns the header and the body's range within `bytes`, or `None` until enough has arrived.
///
/// # Errors
/// [`FrameError::Length`] as soon as the length prefix is out of bounds: the buffer never has to grow
/// beyond [`bounds::PAYLOAD_FRAME_BYTES_MAX`].
pub fn split_frame(bytes: &[u8]) -> Result<Option<(Header, Range<usize>)>, FrameError> {
    let Some(prefix) = bytes.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*prefix);
    let size = length as usize;
    if !(HEADER_BYTES..=bounds::PAYLOAD_FRAME_BYTES_MAX).contains(&size) {
        return Err(FrameError::Length { length });
    }
    if bytes.len() < size {
        return Ok(None);
    }
    let header = Reader::new(bytes).take::<Header>()?;
    Ok(Some((header, HEADER_BYTES..size)))
}

/// Hash over the names, fields and types of every frame struct, in order. It may only change together
/// with [`PROTOCOL`]: its current value is a golden test.
#[must_use]
pub fn layout_hash() -> u64 {
    let descriptions = [
        Header::DESCRIPTION,
        AuthorizeBody::DESCRIPTION,
        crate::inventory::NamespaceRecord::DESCRIPTION,
        ResidenceRecord::DESCRIPTION,
        AnswersBody::DESCRIPTION,
        crate::inventory::ResourceSummary::DESCRIPTION,
        AnswerRecord::DESCRIPTION,
        RefusedBody::DESCRIPTION,
        BytesBody::DESCRIPTION,
        ExtentBody::DESCRIPTION,
        FailedBody::DESCRIPTION,
        StoppedBody::DESCRIPTION,
    ];
    xxhash_rust::xxh3::xxh3_64(descriptions.concat().as_bytes())
}

/// What every header must fulfil: an operation, and records only where there are some.
fn check_header(header: &Header, counted: bool) -> Result<(), FrameError> {
    ensure(header.number != 0, "operations are numbered from 1")?;
    ensure(counted || header.count == 0, "a message without records counts some")
}

fn ensure(holds: bool, what: &'static str) -> Result<(), FrameError> {
    if holds { Ok(()) } else { Err(FrameError::Contradiction { what }) }
}

fn known<T>(value: Option<T>, what: &'static str) -> Result<T, FrameError> {
    value.ok_or(FrameError::Contradiction { what })
}

fn within(what: &'static str, count: usize, limit: usize) -> Result<usize, FrameError> {
    if count > limit {
        return Err(FrameError::OverLimit { what, count: count as u64, limit: limit as u64 });
    }
    Ok(count)
}

#[cfg(test)]
mod tests;
