//! Bytes put at offsets, for encoders that are written by hand from the protocol pages.
//!
//! It shares no code with the frames it checks, and it insists that every byte of a part is
//! written exactly once, so that a gap or an overlap in a document cannot hide.

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

    pub fn finish(self) -> Vec<u8> {
        let hole = self.bytes.iter().position(Option::is_none);
        assert_eq!(hole, None, "no field covers this offset");
        self.bytes.into_iter().flatten().collect()
    }
}

/// Sixteen or more different bytes, so that an order mistake shows.
pub fn counting<const N: usize>(first: u8) -> [u8; N] {
    std::array::from_fn(|index| first.wrapping_add(index as u8))
}
