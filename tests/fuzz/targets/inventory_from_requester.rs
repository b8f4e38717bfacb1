//! Any bytes as a requester's message: no panic, and what decodes has exactly one spelling.
#![no_main]

use orbitkv_wire::bounds::{INVENTORY_BODY_BYTES_MAX, INVENTORY_FRAME_BYTES_MAX};
use orbitkv_wire::identity::{BlockHash, NamespaceDigest, Sequence};
use orbitkv_wire::inventory::{
    Body, Changes, ChangesWriter, FromRequester, FromSource, Header, Kind, Open, Tag, append_from_requester,
    append_open, decode_from_requester, header_bytes, source_body, split_frame,
};

#[path = "../../../wire/src/inventory/tests/reencode.rs"]
#[allow(dead_code, reason = "the other targets use the other parts")]
mod reencode;

fn check(bytes: &[u8]) {
    let Ok(Some((header, body))) = split_frame(bytes, INVENTORY_FRAME_BYTES_MAX) else { return };
    if let Ok(message) = decode_from_requester(&header, &bytes[body]) {
        let again = reencode::from_requester(&header, &message);
        assert_eq!(again, bytes[..header.length as usize]);
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    // Once more with the length that a frame of this size has, so that mutations reach the bodies.
    let mut whole = bytes.to_vec();
    if let Some(length) = whole.first_chunk_mut() {
        *length = (bytes.len() as u32).to_le_bytes();
        check(&whole);
    }
});
