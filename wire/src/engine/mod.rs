//! Frames of the engine channel: what an engine and its node say to each other over the
//! Unix socket. Payload bytes never travel here; they lie in the shared arena.
//!
//! A frame is a [`Header`], one fixed body and an array of equal records. All integers are
//! little-endian, nothing is aligned, and no frame carries a pointer.

pub mod answers;
pub mod requests;

use thiserror::Error;

use crate::bounds;
use crate::layout::{Fixed, LayoutError, Reader, fixed};
use crate::numbered::numbered;

/// First bytes of a Hello, so that a stray client is refused by name.
pub const MAGIC: [u8; 8] = *b"ORBITKV\x02";

/// Protocol version spoken by this build.
pub const VERSION: u16 = 3;

/// Oldest protocol version this build still understands: answers to Query have had their layout since then.
pub const VERSION_MIN: u16 = 3;

fixed! {
    /// Starts every frame, in both directions.
    pub struct Header {
        /// Bytes of the whole frame, this header included.
        pub length: u32,
        /// [`Operation`] number; an answer repeats the number of its request.
        pub operation: u8,
        /// Bit 0: more frames of this answer follow. Other bits are 0.
        pub flags: u8,
        /// Answers: a [`Status`] number, 0 is success. Requests: 0.
        pub status: u16,
        /// Chosen by the engine, unique among the connection's requests within the ledger's time.
        pub request_id: u64,
        /// Requests: milliseconds the engine will wait; 0 takes the operation's default. Answers: 0.
        pub deadline_ms: u32,
        /// Records after the fixed body.
        pub count: u32,
    }
}

/// Bytes of an archived [`Header`].
pub const HEADER_BYTES: usize = Header::BYTES;

/// Flag bit: more frames of this answer follow.
pub const FLAG_MORE: u8 = 1;

numbered! {
    /// What a frame asks for.
    pub enum Operation: u8 {
        /// Version, layout and arena agreement; the first frame of a connection.
        Hello = 1,
        /// An empty round trip.
        Ping = 2,
        /// Engine identity in, namespace out.
        Register = 3,
        /// Slots for keys that are to be saved.
        Reserve = 4,
        /// Publishes filled slots as residences.
        Commit = 5,
        /// Gives slots back unpublished.
        Abort = 6,
        /// Which prefix could be recovered, and from where.
        Query = 7,
        /// Makes blocks ready in the arena under a lease.
        Acquire = 8,
        /// Joins a lease that another process of the instance took.
        Attach = 9,
        /// Ends this connection's share of a lease.
        Release = 10,
        /// Stops an unanswered request of this connection.
        Cancel = 11,
        /// Drops keys from a medium.
        Evict = 12,
        /// Drops a whole namespace.
        Clear = 13,
        /// Lists residents in pages.
        List = 14,
        /// Waits for this connection's submitted saves.
        Sync = 15,
        /// Stops the node once everything outstanding has ended.
        Drain = 16,
        /// Brings blocks into DRAM before they are acquired.
        Prefetch = 17,
    }
}

numbered! {
    /// Outcome of a request as a whole. Outcomes of single keys are in the records.
    pub enum Status: u16 {
        /// Done; look at the records.
        Ok = 0,
        /// The frame does not follow the protocol. One that cannot be read at all closes the connection.
        Malformed = 1,
        /// A count or size is over its limit; `detail` is the limit.
        OverLimit = 2,
        /// No common protocol version or another layout; `detail` is the node's version.
        Incompatible = 3,
        /// The namespace handle was never given to this connection.
        UnknownNamespace = 4,
        /// The registration contradicts an earlier one; the text names the field.
        Conflict = 5,
        /// Extents of an earlier daemon or arena.
        StaleGeneration = 6,
        /// No such lease, or it has ended.
        UnknownLease = 7,
        /// The lease belongs to another instance.
        ForeignLease = 8,
        /// The node is draining and takes no new work.
        Draining = 9,
        /// The deadline passed first; nothing more will be done.
        DeadlineExceeded = 10,
        /// Cancelled by the engine.
        Cancelled = 11,
        /// More than the agreed number of requests are unanswered.
        TooManyInFlight = 12,
        /// The request id was used for something else.
        DuplicateRequest = 13,
        /// A bounded resource of the node is full right now; try again.
        Busy = 14,
        /// The first frame was not a Hello, or there was a second one.
        OutOfOrder = 15,
        /// Register first.
        NotRegistered = 16,
    }
}

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The frame ends before its parts do.
    #[error("the frame ends before its parts do")]
    Truncated,
    /// Bytes are left after the last part.
    #[error("bytes are left after the frame's last part")]
    TrailingBytes,
    /// A part has a value its type does not allow.
    #[error("a part of the frame has a value its type does not allow")]
    Invalid,
    /// The length prefix is outside header size and frame bound.
    #[error("frame of {length} bytes: a frame has {HEADER_BYTES} to {} bytes", bounds::FRAME_BYTES_MAX)]
    Length {
        /// The length the peer announced.
        length: u32,
    },
    /// No operation has this number.
    #[error("operation {number} does not exist")]
    Operation {
        /// The number the peer sent.
        number: u8,
    },
    /// A count is over its bound.
    #[error("{what}: {count} is over the limit of {limit}")]
    OverLimit {
        /// The counted thing.
        what: &'static str,
        /// The count the peer sent.
        count: u64,
        /// The bound.
        limit: u64,
    },
}

impl From<LayoutError> for FrameError {
    fn from(error: LayoutError) -> FrameError {
        match error {
            LayoutError::Truncated => FrameError::Truncated,
            LayoutError::TrailingBytes => FrameError::TrailingBytes,
            LayoutError::Invalid => FrameError::Invalid,
        }
    }
}

/// Looks at the front of a receive buffer for one whole frame.
///
/// Returns the header and the body's range within `bytes`, or `None` until enough has arrived.
///
/// # Errors
/// [`FrameError::Length`] as soon as the length prefix is out of bounds: the buffer never has to
/// grow beyond [`bounds::FRAME_BYTES_MAX`].
pub fn split_frame(bytes: &[u8]) -> Result<Option<(Header, std::ops::Range<usize>)>, FrameError> {
    let Some(prefix) = bytes.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*prefix);
    let size = length as usize;
    if !(HEADER_BYTES..=bounds::FRAME_BYTES_MAX).contains(&size) {
        return Err(FrameError::Length { length });
    }
    if bytes.len() < size {
        return Ok(None);
    }
    let header = Reader::new(bytes).take::<Header>()?;
    Ok(Some((header, HEADER_BYTES..size)))
}

/// Appends a frame to `out`: reserves the header, lets `body` append, then writes the header
/// with the final length. `body` returns the number of records.
pub fn append_frame(
    out: &mut Vec<u8>,
    operation: Operation,
    flags: u8,
    status: Status,
    request_id: u64,
    deadline_ms: u32,
    body: impl FnOnce(&mut Vec<u8>) -> u32,
) {
    let start = out.len();
    out.resize(start + HEADER_BYTES, 0);
    let count = body(out);
    let length = out.len() - start;
    assert!(length <= bounds::FRAME_BYTES_MAX, "our own frame of {length} bytes is over the bound");
    let header = Header {
        length: length as u32,
        operation: operation as u8,
        flags,
        status: status as u16,
        request_id,
        deadline_ms,
        count,
    };
    let mut bytes = Vec::with_capacity(HEADER_BYTES);
    header.append_to(&mut bytes);
    out[start..start + HEADER_BYTES].copy_from_slice(&bytes);
}

/// Hash over the names, fields and types of every frame struct, in order: two builds with the
/// same value read each other's bytes. Its current value is a golden test.
#[must_use]
pub fn layout_hash() -> u64 {
    use answers as a;
    use requests as r;
    let descriptions = [
        Header::DESCRIPTION,
        r::HelloBody::DESCRIPTION,
        r::RegisterBody::DESCRIPTION,
        r::GroupRecord::DESCRIPTION,
        r::ReserveBody::DESCRIPTION,
        r::ReserveRecord::DESCRIPTION,
        r::ReservationsBody::DESCRIPTION,
        r::ReservationRecord::DESCRIPTION,
        r::PrefixBody::DESCRIPTION,
        r::ListRecord::DESCRIPTION,
        r::HashRecord::DESCRIPTION,
        r::LeaseBody::DESCRIPTION,
        r::CancelBody::DESCRIPTION,
        r::EvictBody::DESCRIPTION,
        r::KeyRecord::DESCRIPTION,
        r::ClearBody::DESCRIPTION,
        r::ListBody::DESCRIPTION,
        a::HelloAnswer::DESCRIPTION,
        a::RegisterAnswer::DESCRIPTION,
        a::SlotRecord::DESCRIPTION,
        a::OutcomeRecord::DESCRIPTION,
        a::QueryAnswer::DESCRIPTION,
        a::PlaceRecord::DESCRIPTION,
        a::AcquireAnswer::DESCRIPTION,
        a::BlockRecord::DESCRIPTION,
        a::AttachAnswer::DESCRIPTION,
        a::AttachedRecord::DESCRIPTION,
        a::ClearAnswer::DESCRIPTION,
        a::ListAnswer::DESCRIPTION,
        a::ResidentRecord::DESCRIPTION,
        a::SyncAnswer::DESCRIPTION,
        a::SequenceRecord::DESCRIPTION,
        a::DrainAnswer::DESCRIPTION,
        a::Refusal::DESCRIPTION,
    ];
    xxhash_rust::xxh3::xxh3_64(descriptions.concat().as_bytes())
}

/// Digest of a request's body, to tell a repeat from another request of the same id.
#[must_use]
pub fn content_digest(body: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(body)
}

#[cfg(test)]
mod tests;
