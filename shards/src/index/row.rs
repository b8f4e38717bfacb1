//! One row of the index: what an owner said about one residence, in 52 bytes.
//!
//! Keys are whole. Wider integers are kept as bytes, so that a row needs no alignment beyond two
//! and no padding: a million rows are a million times what is written here.

use orbitkv_wire::identity::{BlockHash, GroupId, Medium, Sequence};

use super::view::ViewId;
use crate::key::{NamespaceId, StateKey};

/// No next row.
const END: u16 = u16::MAX;

/// A row. Its place in its table is a [`RowIndex`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    block: [u8; 32],
    namespace: u16,
    group: u16,
    /// View in the upper 15 bits, medium in the lowest.
    view_and_medium: u16,
    /// The next row of the same key.
    next: u16,
    bytes: [u8; 4],
    sequence: [u8; 8],
}

const _: () = assert!(size_of::<Row>() == 52 && align_of::<Row>() == 2);

/// Place of a row in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowIndex(pub u16);

impl Row {
    /// A row that nothing follows yet.
    pub fn new(key: &StateKey, view: ViewId, medium: Medium, bytes: u32, sequence: Sequence) -> Row {
        Row {
            block: key.block.0,
            namespace: key.namespace.0,
            group: key.group.0,
            view_and_medium: pack(view, medium),
            next: END,
            bytes: bytes.to_le_bytes(),
            sequence: sequence.0.to_le_bytes(),
        }
    }

    pub fn key(&self) -> StateKey {
        StateKey {
            namespace: NamespaceId(self.namespace),
            group: GroupId(self.group),
            block: BlockHash(self.block),
        }
    }

    pub fn is_of(&self, key: &StateKey) -> bool {
        self.block == key.block.0 && self.namespace == key.namespace.0 && self.group == key.group.0
    }

    /// Whether it is what `view` says about `medium`.
    pub fn is_by(&self, view: ViewId, medium: Medium) -> bool {
        self.view_and_medium == pack(view, medium)
    }

    pub fn view(&self) -> ViewId {
        ViewId(self.view_and_medium >> 1)
    }

    pub fn medium(&self) -> Medium {
        if self.view_and_medium & 1 == 0 { Medium::Dram } else { Medium::Ssd }
    }

    pub fn bytes(&self) -> u32 {
        u32::from_le_bytes(self.bytes)
    }

    pub fn sequence(&self) -> Sequence {
        Sequence(u64::from_le_bytes(self.sequence))
    }

    /// A later put of the same residence key: a new residence takes the row over.
    pub fn renew(&mut self, bytes: u32, sequence: Sequence) {
        self.bytes = bytes.to_le_bytes();
        self.sequence = sequence.0.to_le_bytes();
    }

    pub fn next(&self) -> Option<RowIndex> {
        (self.next != END).then_some(RowIndex(self.next))
    }

    pub fn set_next(&mut self, next: Option<RowIndex>) {
        self.next = next.map_or(END, |next| next.0);
    }
}

fn pack(view: ViewId, medium: Medium) -> u16 {
    view.0 << 1 | medium as u16
}
