//! One place of the heap, 52 bytes: a key and the first claim to it, or three further claims to a key.
//!
//! A *claim* is what an owner said about one residence: a row of the index. Most keys have one owner, and
//! some have them all: what every prompt begins with. So a key is kept once, whole, and its further claims
//! follow three to a place.
//!
//! Wider integers are kept as bytes, so that a place needs no alignment beyond two and no padding: a
//! million places are a million times what is written here.

use orbitkv_wire::identity::{Medium, Sequence};

use super::view::{VIEWS_MAX, ViewId};
use crate::key::StateKey;

/// Names a place in its heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlaceIndex(pub u16);

/// What an owner said about a key on a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    /// Medium in the lowest bit, view in the others but the highest.
    view_and_medium: u16,
    bytes: [u8; 4],
    sequence: [u8; 8],
}

const CLAIM_BYTES: usize = size_of::<Claim>();
const _: () = assert!(VIEWS_MAX << 1 <= FURTHER as usize, "a view leaves the highest bit free");

impl Claim {
    pub fn new(view: ViewId, medium: Medium, bytes: u32, sequence: Sequence) -> Claim {
        Claim {
            view_and_medium: view.0 << 1 | medium as u16,
            bytes: bytes.to_le_bytes(),
            sequence: sequence.0.to_le_bytes(),
        }
    }

    pub fn view(self) -> ViewId {
        ViewId(self.view_and_medium >> 1)
    }

    pub fn medium(self) -> Medium {
        if self.view_and_medium & 1 == 0 { Medium::Dram } else { Medium::Ssd }
    }

    pub fn bytes(self) -> u32 {
        u32::from_le_bytes(self.bytes)
    }

    pub fn sequence(self) -> Sequence {
        Sequence(u64::from_le_bytes(self.sequence))
    }

    fn to_bytes(self) -> [u8; CLAIM_BYTES] {
        let mut bytes = [0; CLAIM_BYTES];
        bytes[..2].copy_from_slice(&self.view_and_medium.to_le_bytes());
        bytes[2..6].copy_from_slice(&self.bytes);
        bytes[6..].copy_from_slice(&self.sequence);
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Claim {
        let (view_and_medium, rest) = bytes.split_first_chunk().expect("a claim has fourteen bytes");
        let (bytes, sequence) = rest.split_first_chunk().expect("a claim has fourteen bytes");
        Claim {
            view_and_medium: u16::from_le_bytes(*view_and_medium),
            bytes: *bytes,
            sequence: sequence.try_into().expect("a claim has fourteen bytes"),
        }
    }
}

/// Claims of a place without a key.
pub(super) const FURTHER_CLAIMS: usize = 3;

/// Marks the claim in `claim` of a place without a key.
const FURTHER: u16 = 1 << 15;

/// Where such a place has the count of its claims: behind the second and the third.
const COUNT_AT: usize = 2 * CLAIM_BYTES;

/// No place.
const END: u16 = u16::MAX;

/// A place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The key's block hash. Or the second and the third claim, and the count.
    block: [u8; 32],
    namespace: u16,
    group: u16,
    claim: Claim,
    /// The next place of the same key, or the next free one.
    next: u16,
}

const _: () = assert!(size_of::<Place>() == 52 && align_of::<Place>() == 2);

impl Place {
    /// One that was never used.
    pub const UNUSED: Place = Place {
        block: [0; 32],
        namespace: 0,
        group: 0,
        claim: Claim { view_and_medium: 0, bytes: [0; 4], sequence: [0; 8] },
        next: END,
    };

    /// A key with its first claim.
    pub fn of_key(key: &StateKey, claim: Claim) -> Place {
        let StateKey { namespace, group, block } = key;
        Place { block: block.0, namespace: namespace.0, group: group.0, claim, next: END }
    }

    /// A first further claim, before the place `next`.
    pub fn of_claim(claim: Claim, next: Option<PlaceIndex>) -> Place {
        let mut place = Place::UNUSED;
        place.claim = Claim { view_and_medium: claim.view_and_medium | FURTHER, ..claim };
        place.block[COUNT_AT] = 1;
        place.set_next(next);
        place
    }

    /// Whether it is one of further claims, and none with a key.
    pub fn is_further(&self) -> bool {
        self.claim.view_and_medium & FURTHER != 0
    }

    /// Whether it has this key.
    pub fn is_of(&self, key: &StateKey) -> bool {
        self.block == key.block.0
            && self.namespace == key.namespace.0
            && self.group == key.group.0
            && !self.is_further()
    }

    /// How many claims it has.
    pub fn count(&self) -> usize {
        if self.is_further() { usize::from(self.block[COUNT_AT]) } else { 1 }
    }

    /// One of its claims.
    pub fn claim(&self, at: usize) -> Claim {
        match at {
            0 => Claim { view_and_medium: self.claim.view_and_medium & !FURTHER, ..self.claim },
            _ => Claim::from_bytes(&self.block[(at - 1) * CLAIM_BYTES..at * CLAIM_BYTES]),
        }
    }

    /// All of its claims.
    pub fn claims(&self) -> impl Iterator<Item = Claim> {
        (0..self.count()).map(|at| self.claim(at))
    }

    pub fn set_claim(&mut self, at: usize, claim: Claim) {
        match at {
            0 => {
                let further = self.claim.view_and_medium & FURTHER;
                self.claim = Claim { view_and_medium: claim.view_and_medium | further, ..claim };
            }
            _ => self.block[(at - 1) * CLAIM_BYTES..at * CLAIM_BYTES].copy_from_slice(&claim.to_bytes()),
        }
    }

    /// Whether it has further claims and room for one more.
    pub fn has_room(&self) -> bool {
        self.is_further() && self.count() < FURTHER_CLAIMS
    }

    /// Adds a claim; there must be room.
    pub fn push(&mut self, claim: Claim) {
        let count = self.count();
        self.set_claim(count, claim);
        self.block[COUNT_AT] += 1;
    }

    /// Takes the last of its further claims off.
    pub fn pop(&mut self) -> Claim {
        self.block[COUNT_AT] -= 1;
        self.claim(usize::from(self.block[COUNT_AT]))
    }

    pub fn next(&self) -> Option<PlaceIndex> {
        (self.next != END).then_some(PlaceIndex(self.next))
    }

    pub fn set_next(&mut self, next: Option<PlaceIndex>) {
        self.next = next.map_or(END, |next| next.0);
    }
}
