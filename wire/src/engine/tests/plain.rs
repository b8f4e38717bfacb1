//! A second encoder, written by hand from `docs/engine-protocol.md`.

use crate::tests::part::{Part, part};

/// What a header says besides its length.
#[derive(Clone, Copy, Default)]
pub struct Head {
    pub operation: u8,
    pub flags: u8,
    pub status: u16,
    pub request_id: u64,
    pub deadline_ms: u32,
    pub count: u32,
}

/// A whole frame.
pub fn frame(head: Head, parts: Vec<Part>) -> Vec<u8> {
    let body: Vec<u8> = parts.into_iter().flat_map(Part::finish).collect();
    let mut bytes = part(24)
        .u32(0, 24 + body.len() as u32)
        .u8(4, head.operation)
        .u8(5, head.flags)
        .u16(6, head.status)
        .u64(8, head.request_id)
        .u32(16, head.deadline_ms)
        .u32(20, head.count)
        .finish();
    bytes.extend(body);
    bytes
}
