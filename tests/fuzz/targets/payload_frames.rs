//! Any bytes as a frame of either side, and as a source's stream: no panic, and what decodes has exactly one
//! spelling. The tag of an Authorize is mended, because nobody guesses a hash, so that what lies behind it is
//! reached.
#![no_main]

use orbitkv_wire::identity::{ClusterUuid, Incarnation, NodeId, ShardIndex};
use orbitkv_wire::inventory::{Requester, SourceStream};
use orbitkv_wire::payload::{
    Authorize, Binding, FromRequester, FromSource, Header, Splitter, Tag, append_authorize,
    append_from_requester, append_from_source, decode_authorize, decode_from_requester, decode_from_source,
    split_frame,
};

#[path = "../../../wire/src/payload/tests/reencode.rs"]
mod reencode;

fn check(bytes: &[u8]) {
    let Ok(Some((header, body))) = split_frame(bytes) else { return };
    let whole = &bytes[..header.length as usize];
    let body = &bytes[body];
    if let Ok(authorize) = decode_authorize(&header, body) {
        assert_eq!(reencode::authorize(&authorize), whole);
    }
    if let Ok(message) = decode_from_requester(&header, body) {
        assert_eq!(reencode::from_requester(&header, message), whole);
    }
    if let Ok(message) = decode_from_source(&header, body) {
        assert_eq!(reencode::from_source(&header, &message), whole);
    }
}

/// The parts of a stream, whose lengths add up.
fn stream(bytes: &[u8]) {
    let (mut splitter, mut at) = (Splitter::new(), 0);
    while let Ok(Some(part)) = splitter.next(&bytes[at..]) {
        assert!(part.length() > 0);
        at += part.length();
    }
    assert!(at <= bytes.len());
}

/// Bytes of the body at an offset.
fn at<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    *bytes[41 + offset..].first_chunk().expect("the fixed part is there")
}

/// A node's name at an offset, if it is one.
fn node(bytes: &[u8], offset: usize) -> Option<NodeId> {
    let length = usize::from(u16::from_le_bytes(at(bytes, offset)));
    let text = bytes[41 + offset + 2..][..64].get(..length)?;
    NodeId::new(std::str::from_utf8(text).ok()?).ok()
}

/// The bytes with the length, the count and the tag of an Authorize that their other parts ask for.
fn mended(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut whole = bytes.to_vec();
    let listed = 32 * usize::from(u16::from_le_bytes(bytes.get(41 + 196..41 + 198)?.try_into().ok()?));
    let records = whole.len().checked_sub(41 + 198 + listed)? / 45;
    whole.truncate(41 + 198 + listed + records * 45);
    let binding = Binding {
        cluster: ClusterUuid(at(&whole, 0)),
        source: SourceStream {
            node: node(&whole, 16)?,
            epoch: u64::from_le_bytes(at(&whole, 82)),
            incarnation: Incarnation(at(&whole, 90)),
            shard: ShardIndex(u16::from_le_bytes(at(&whole, 106))),
        },
        requester: Requester { node: node(&whole, 108)?, incarnation: Incarnation(at(&whole, 174)) },
    };
    let length = whole.len() as u32;
    whole[..4].copy_from_slice(&length.to_le_bytes());
    whole[4] = 1;
    whole[5..21].copy_from_slice(&binding.tag().0);
    whole[37..41].copy_from_slice(&(records as u32).to_le_bytes());
    Some(whole)
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    stream(bytes);
    // Once more with the length that a frame of this size has, so that mutations reach the bodies.
    let mut whole = bytes.to_vec();
    if let Some(length) = whole.first_chunk_mut() {
        *length = (bytes.len() as u32).to_le_bytes();
        check(&whole);
    }
    if let Some(whole) = mended(bytes) {
        check(&whole);
    }
});
