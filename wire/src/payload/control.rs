//! What a requester says of an operation that has begun. Each is a header and nothing else.
//!
//! Release and Cancel travel on the connection's control stream, which is more urgent than any payload and
//! may overtake the Authorize they speak of. Released travels on the peer socket and is bound to the
//! requester's node and boot alone: it is true whatever became of either side's incarnation.

use super::{FrameError, Header, Kind, OperationId, Tag, check_header, ensure};
use crate::layout::{Fixed, LayoutError};

/// A message of a requester, validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromRequester {
    /// It has what it wanted.
    Release(OperationId),
    /// It wants nothing more.
    Cancel(OperationId),
    /// It reads none of the operation's extents any more.
    Released(OperationId),
}

/// Decodes everything a requester says except Authorize. Whether the tag of a Release or Cancel is the
/// connection's is the caller's to compare.
///
/// # Errors
/// [`FrameError`] naming what is wrong.
pub fn decode_from_requester(header: &Header, body: &[u8]) -> Result<FromRequester, FrameError> {
    let operation = header.operation();
    let message = match Kind::from_wire(header.kind) {
        Some(Kind::Release) => FromRequester::Release(operation),
        Some(Kind::Cancel) => FromRequester::Cancel(operation),
        Some(Kind::Released) => FromRequester::Released(operation),
        _ => return Err(FrameError::Kind { number: header.kind }),
    };
    check_header(header, false)?;
    let is_bound = !matches!(message, FromRequester::Released(_));
    ensure(is_bound || header.tag == Tag::NONE.0, "a message that outlives incarnations is bound to some")?;
    if body.is_empty() { Ok(message) } else { Err(LayoutError::TrailingBytes.into()) }
}

/// Appends a frame of a requester. `tag` is that of the binding; a Released does not have it.
pub fn append_from_requester(out: &mut Vec<u8>, tag: Tag, message: FromRequester) {
    let (kind, tag, operation) = match message {
        FromRequester::Release(operation) => (Kind::Release, tag, operation),
        FromRequester::Cancel(operation) => (Kind::Cancel, tag, operation),
        FromRequester::Released(operation) => (Kind::Released, Tag::NONE, operation),
    };
    Header::new(kind, tag, operation, 0, 0).append_to(out);
}
