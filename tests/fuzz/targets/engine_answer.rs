//! Any bytes as an answer: no panic, and what decodes has exactly one spelling.
#![no_main]

use orbitkv_wire::engine::answers::{
    Answer, PlaceRecord, append_answer, append_done, append_records, append_refusal, decode_answer,
};
use orbitkv_wire::engine::requests::{
    HashRecord, Request, append_bare_request, append_prefix_request, append_request,
};
use orbitkv_wire::engine::{FrameError, Header, Operation, Status, split_frame};
use orbitkv_wire::layout::{Fixed, Records};

#[path = "../../../wire/src/engine/tests/reencode.rs"]
#[allow(dead_code, reason = "the other target uses the other half")]
mod reencode;

fn check(bytes: &[u8]) {
    let Ok(Some((header, body))) = split_frame(bytes) else { return };
    if let Ok(answer) = decode_answer(&header, &bytes[body]) {
        let again = reencode::answer(&header, &answer).expect("fixed records have no invalid bytes");
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
