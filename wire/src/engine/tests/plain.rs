//! A second encoder, written by hand from `docs/engine-protocol.md`: bytes put at offsets.
//!
//! It shares no code with the frames it checks, and it insists that every byte of a part is
//! written exactly once, so that a gap or an overlap in the document cannot hide.

/// One fixed body or record under construction.
pub struct Part {
    bytes: Vec<Option<u8>>,
}

/// A part of `size` bytes, none of them written.
pub fn part(size: usize) -> Part {
    Part { bytes: vec![None; size] }
}

impl Part {
    pub fn raw(mut self, at: usize, bytes: &[u8]) -> Part {
        for (slot, &byte) in self.bytes[at..at + bytes.len()].iter_mut().zip(bytes) {
            assert!(slot.replace(byte).is_none(), "a byte near offset {at} is written twice");
        }
        self
    }

    pub fn u8(self, at: usize, value: u8) -> Part {
        self.raw(at, &[value])
    }

    pub fn u16(self, at: usize, value: u16) -> Part {
        self.raw(at, &value.to_le_bytes())
    }

    pub fn u32(self, at: usize, value: u32) -> Part {
        self.raw(at, &value.to_le_bytes())
    }

    pub fn u64(self, at: usize, value: u64) -> Part {
        self.raw(at, &value.to_le_bytes())
    }

    /// A text field that holds at most `limit` bytes: its length, the text, zeros.
    pub fn text(self, at: usize, limit: usize, text: &str) -> Part {
        let padding = vec![0; limit - text.len()];
        self.u16(at, text.len() as u16).raw(at + 2, text.as_bytes()).raw(at + 2 + text.len(), &padding)
    }

    fn finish(self) -> Vec<u8> {
        let hole = self.bytes.iter().position(Option::is_none);
        assert_eq!(hole, None, "no field covers this offset");
        self.bytes.into_iter().flatten().collect()
    }
}

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
