//! What one turn may do before it yields the core (chapter 2.10).

/// Work that is left to a turn. It may be overdrawn by one piece of work.
#[derive(Debug)]
pub struct Slice {
    records: usize,
    bytes: usize,
}

impl Slice {
    /// So many records to read and bytes to encode.
    #[must_use]
    pub fn new(records: usize, bytes: usize) -> Slice {
        Slice { records, bytes }
    }

    /// Whether the turn should end.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.records == 0 || self.bytes == 0
    }

    /// Records were read.
    pub fn charge_records(&mut self, records: usize) {
        self.records = self.records.saturating_sub(records);
    }

    /// Bytes were encoded.
    pub fn charge_bytes(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}
