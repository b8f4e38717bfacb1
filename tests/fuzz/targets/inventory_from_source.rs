//! Any bytes as a source's message: no panic, what decodes has exactly one spelling, and its changes
//! keep what the decoder promises about them.
#![no_main]

use orbitkv_wire::bounds::{INVENTORY_BODY_BYTES_MAX, INVENTORY_FRAME_BYTES_MAX};
use orbitkv_wire::identity::{BlockHash, NamespaceDigest, Sequence};
use orbitkv_wire::inventory::{
    Body, Changes, ChangesWriter, FromRequester, FromSource, Header, Kind, Open, Tag, WireChange,
    append_from_requester, append_open, decode_from_source, header_bytes, source_body, split_frame,
};

#[path = "../../../wire/src/inventory/tests/reencode.rs"]
#[allow(dead_code, reason = "the other targets use the other parts")]
mod reencode;

fn check(bytes: &[u8]) {
    let Ok(Some((header, body))) = split_frame(bytes, INVENTORY_FRAME_BYTES_MAX) else { return };
    let Ok(message) = decode_from_source(&header, &bytes[body]) else { return };
    let again = reencode::from_source(&header, &message);
    assert_eq!(again, bytes[..header.length as usize]);
    if let FromSource::Delta { from, through, changes } = message {
        assert!(from < through && through.0 <= header.head);
        assert!(changes.namespaces().is_sorted_by(|left, right| left < right));
        let mut last = from;
        for change in changes.iter() {
            assert!(usize::from(change.namespace) < changes.namespaces().len());
            assert!(last < change.sequence && change.sequence <= through);
            assert_ne!(change.change, WireChange::Put { bytes: 0 });
            last = change.sequence;
        }
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    // Once more with the length that a frame of this size has and a head behind all sequences, so that
    // mutations reach the bodies.
    let mut whole = bytes.to_vec();
    if whole.len() >= 41 {
        whole[..4].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        whole[29..37].fill(0xff);
        check(&whole);
    }
});
