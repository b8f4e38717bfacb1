//! Turns a decoded frame back into bytes. What the decoders accept has one spelling only, so the
//! result must equal the input; the fuzz targets include this file too.

use super::{Authorize, FromRequester, FromSource, Header, Tag};
use super::{append_authorize, append_from_requester, append_from_source};

/// The bytes of an Authorize.
pub fn authorize(authorize: &Authorize) -> Vec<u8> {
    let mut out = Vec::new();
    append_authorize(&mut out, authorize);
    out
}

/// The bytes of another message of a requester.
pub fn from_requester(header: &Header, message: FromRequester) -> Vec<u8> {
    let mut out = Vec::new();
    append_from_requester(&mut out, Tag(header.tag), message);
    out
}

/// The bytes of a message of a source.
pub fn from_source(header: &Header, message: &FromSource) -> Vec<u8> {
    let mut out = Vec::new();
    append_from_source(&mut out, Tag(header.tag), header.operation(), message);
    out
}
