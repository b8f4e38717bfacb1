//! Frames of the inventory stream: what two shard cores say to each other about who holds what.
//!
//! One session is one ordered stream in each direction. A frame is a [`Header`] and a body; the header
//! belongs to one session, the body to whoever may see it, so that a body is encoded once and shared by
//! subscribers. A body is one fixed part and up to two arrays of equal records. All integers are
//! little-endian, nothing is aligned, and no frame carries a pointer. `docs/inventory-protocol.md` has
//! the tables.

mod binding;
mod changes;
mod open;
mod requester;
mod source;
mod transcript;

use std::ops::Range;

use thiserror::Error;

use crate::bounds;
use crate::identity::Sequence;
use crate::layout::{Fixed, LayoutError, Reader, fixed};
use crate::numbered::numbered;

pub use binding::{Binding, Requester, SourceStream, TAG_DOMAIN, TAG_VERSION, Tag};
pub use changes::{
    ChangeRecord, ChangeRef, Changes, ChangesWriter, Effect, Full, NAMESPACE_BYTES, RECORD_BYTES, WireChange,
};
pub use open::{Open, OpenBody, Resume, ScopeKind, append_open, decode_open};
pub use requester::{
    AckBody, FromRequester, SnapshotRefuseBody, append_from_requester, decode_from_requester,
};
pub use source::{
    DeltaBody, FromSource, OpenRefusal, OpenRefusedBody, ResetCause, ResetRequiredBody, ResourceSummary,
    ResumedBody, SnapshotBeginBody, SnapshotCommitBody, SnapshotPageBody, SnapshotQueuedBody,
    decode_from_source, source_body,
};
pub use transcript::{Transcript, TranscriptDigest};

/// Name of the protocol. Every frame of a session is bound to it by the header's tag; it changes with
/// every change of a byte.
pub const PROTOCOL: &str = "orbitkv/inventory-stream/v4";

fixed! {
    /// Starts every frame, in both directions.
    pub struct Header {
        /// Bytes of the whole frame, this header included.
        pub length: u32,
        /// [`Kind`] number.
        pub kind: u8,
        /// [`Tag`] of the session's [`Binding`].
        pub tag: [u8; 16],
        /// Number of the frame in its direction of the session, from 1.
        pub frame: u64,
        /// From a source: its journal's head when the header was built. From a requester: 0.
        pub head: u64,
        /// Open: namespaces of the scope. SnapshotPage and Delta: changes. Else 0.
        pub count: u32,
    }

    /// Body of messages that name one snapshot.
    pub struct SnapshotBody {
        /// The snapshot.
        pub snapshot: [u8; 16],
    }

    /// One namespace of a scope or of a frame's changes.
    pub struct NamespaceRecord {
        /// Namespace digest.
        pub namespace: [u8; 32],
    }

    /// Body of messages that name one sequence.
    pub struct SequenceBody {
        /// The sequence.
        pub sequence: u64,
    }
}

/// Bytes of an archived [`Header`].
pub const HEADER_BYTES: usize = Header::BYTES;

const _: () = assert!(HEADER_BYTES == bounds::INVENTORY_HEADER_BYTES);

numbered! {
    /// What a frame says.
    pub enum Kind: u8 {
        /// Requester: what it is, wants and can take; the first frame of a session.
        Open = 1,
        /// Requester: the offered snapshot may come.
        SnapshotAccept = 2,
        /// Requester: the offered snapshot must not come now.
        SnapshotRefuse = 3,
        /// Requester: credit back, and progress.
        Ack = 4,
        /// Requester: a barrier waits for this sequence.
        FlushThrough = 5,
        /// Source: the session is not to be.
        OpenRefused = 16,
        /// Source: the view goes on where it was.
        Resumed = 17,
        /// Source: no snapshot permit yet.
        SnapshotQueued = 18,
        /// Source: an offer of a snapshot.
        SnapshotBegin = 19,
        /// Source: residences of a snapshot.
        SnapshotPage = 20,
        /// Source: the final effect per key of a contiguous interval.
        Delta = 21,
        /// Source: scan and replay are whole.
        SnapshotCommit = 22,
        /// Source: an interval held nothing for this scope.
        Progress = 23,
        /// Source: still there.
        Liveness = 24,
        /// Source: what was sent so far can no longer be continued.
        ResetRequired = 25,
    }
}

/// Why bytes are no inventory frame. Always the peer's fault; nothing of the frame is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// Bytes are missing, left over, or no value of their type.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The length prefix is outside header size and frame bound.
    #[error("frame of {length} bytes: a frame has {HEADER_BYTES} to {limit} bytes")]
    Length {
        /// The length the peer announced.
        length: u32,
        /// The frame bound.
        limit: usize,
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

/// A body that has been built: what its headers have to say, and the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    /// What it is.
    pub kind: Kind,
    /// Changes in it.
    pub count: u32,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl Header {
    /// The header of a frame whose body has `body_bytes` bytes.
    ///
    /// # Panics
    /// If the body is over [`bounds::INVENTORY_BODY_BYTES_MAX`].
    #[must_use]
    pub fn new(kind: Kind, tag: Tag, frame: u64, head: Sequence, count: u32, body_bytes: usize) -> Header {
        assert!(
            body_bytes <= bounds::INVENTORY_BODY_BYTES_MAX,
            "our own body of {body_bytes} bytes is too large"
        );
        let length = (HEADER_BYTES + body_bytes) as u32;
        Header { length, kind: kind as u8, tag: tag.0, frame, head: head.0, count }
    }
}

/// The bytes of a header.
#[must_use]
pub fn header_bytes(header: &Header) -> [u8; HEADER_BYTES] {
    let mut bytes = Vec::with_capacity(HEADER_BYTES);
    header.append_to(&mut bytes);
    bytes.try_into().expect("a header has a fixed size")
}

/// Looks at the front of a receive buffer for one whole frame.
///
/// Returns the header and the body's range within `bytes`, or `None` until enough has arrived.
///
/// # Errors
/// [`FrameError::Length`] as soon as the length prefix is out of bounds: the buffer never has to
/// grow beyond `frame_bytes_max`.
pub fn split_frame(
    bytes: &[u8],
    frame_bytes_max: usize,
) -> Result<Option<(Header, Range<usize>)>, FrameError> {
    let Some(prefix) = bytes.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*prefix);
    let size = length as usize;
    if !(HEADER_BYTES..=frame_bytes_max).contains(&size) {
        return Err(FrameError::Length { length, limit: frame_bytes_max });
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
        SnapshotBody::DESCRIPTION,
        SequenceBody::DESCRIPTION,
        NamespaceRecord::DESCRIPTION,
        OpenBody::DESCRIPTION,
        SnapshotRefuseBody::DESCRIPTION,
        AckBody::DESCRIPTION,
        OpenRefusedBody::DESCRIPTION,
        ResumedBody::DESCRIPTION,
        SnapshotQueuedBody::DESCRIPTION,
        SnapshotBeginBody::DESCRIPTION,
        SnapshotPageBody::DESCRIPTION,
        DeltaBody::DESCRIPTION,
        SnapshotCommitBody::DESCRIPTION,
        ResourceSummary::DESCRIPTION,
        ResetRequiredBody::DESCRIPTION,
        ChangeRecord::DESCRIPTION,
    ];
    xxhash_rust::xxh3::xxh3_64(descriptions.concat().as_bytes())
}

/// What every header must fulfil: a number, and records only where there are some.
fn check_header(header: &Header, counted: bool) -> Result<(), FrameError> {
    ensure(header.frame != 0, "frames are numbered from 1")?;
    ensure(counted || header.count == 0, "a message without records counts some")
}

/// What every header of a requester must fulfil besides.
fn check_requester_header(header: &Header, counted: bool) -> Result<(), FrameError> {
    check_header(header, counted)?;
    ensure(header.head == 0, "a requester has no journal, but names a head")
}

fn ensure(holds: bool, what: &'static str) -> Result<(), FrameError> {
    if holds { Ok(()) } else { Err(FrameError::Contradiction { what }) }
}

fn within(what: &'static str, count: usize, limit: usize) -> Result<usize, FrameError> {
    if count > limit {
        return Err(FrameError::OverLimit { what, count: count as u64, limit: limit as u64 });
    }
    Ok(count)
}

#[cfg(test)]
mod tests;
