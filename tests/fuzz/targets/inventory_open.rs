//! Any bytes as an Open: no panic, and what decodes has exactly one spelling. Scope digest and tag are
//! mended first, because nobody guesses a hash, so that what lies behind them is reached.
#![no_main]

use orbitkv_wire::bounds::{INVENTORY_BODY_BYTES_MAX, INVENTORY_FRAME_BYTES_MAX};
use orbitkv_wire::identity::{BlockHash, NamespaceDigest, Sequence};
use orbitkv_wire::identity::{ClusterUuid, Incarnation, NodeId, SessionId, ShardIndex};
use orbitkv_wire::inventory::{
    Binding, Body, Changes, ChangesWriter, FromRequester, FromSource, Header, Kind, Open, Requester,
    SourceStream, Tag, append_from_requester, append_open, decode_open, header_bytes, source_body,
    split_frame,
};
use orbitkv_wire::scope::{NamespaceList, Scope};

#[path = "../../../wire/src/inventory/tests/reencode.rs"]
#[allow(dead_code, reason = "the other targets use the other parts")]
mod reencode;

fn check(bytes: &[u8]) {
    let Ok(Some((header, body))) = split_frame(bytes, INVENTORY_FRAME_BYTES_MAX) else { return };
    if let Ok(open) = decode_open(&header, &bytes[body]) {
        assert_eq!(open.scope.digest(), open.binding.scope);
        assert!(open.window_bytes / 2 >= open.frame_bytes_max);
        assert_eq!(reencode::open(&open), bytes[..header.length as usize]);
    }
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

/// The bytes with the lengths, the scope digest and the tag that their other parts ask for.
fn mended(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut whole = bytes.to_vec();
    let listed = whole.get(41 + 280..)?;
    whole.truncate(41 + 280 + listed.len() / 32 * 32);
    let (listed, _) = whole[41 + 280..].as_chunks::<32>();
    let count = listed.len() as u32;
    let list = listed.iter().copied().map(NamespaceDigest).collect();
    let scope = match at(&whole, 254) {
        [0] => Scope::All,
        _ => Scope::Namespaces(NamespaceList::from_sorted(list).ok()?),
    };
    let binding = Binding {
        cluster: ClusterUuid(at(&whole, 0)),
        source: SourceStream {
            node: node(&whole, 16)?,
            epoch: u64::from_le_bytes(at(&whole, 82)),
            incarnation: Incarnation(at(&whole, 90)),
            shard: ShardIndex(u16::from_le_bytes(at(&whole, 106))),
        },
        requester: Requester { node: node(&whole, 108)?, incarnation: Incarnation(at(&whole, 174)) },
        scope: scope.digest(),
        session: SessionId(at(&whole, 222)),
    };
    let header = Header::new(Kind::Open, binding.tag(), 1, Sequence(0), count, whole.len() - 41);
    whole[..41].copy_from_slice(&header_bytes(&header));
    whole[41 + 190..41 + 222].copy_from_slice(&binding.scope.0);
    Some(whole)
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    if let Some(whole) = mended(bytes) {
        check(&whole);
    }
});
