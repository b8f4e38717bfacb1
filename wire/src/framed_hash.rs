//! SHA-256 over named, counted and length-framed fields: the one way identities are hashed here.
//!
//! The hashed bytes are, all integers little-endian: `u32` length of the domain, the domain; `u16`
//! version; then each field as `u8` tag counting up from 1, `u32` length of the value in bytes, the
//! value. So no two lists of fields have the same bytes, and no two uses of the hash either.

use sha2::{Digest, Sha256};

/// The fields on their way into the hash.
pub(crate) struct FramedHash {
    hash: Sha256,
    tag: u8,
}

impl FramedHash {
    /// Begins with what tells this use from every other.
    pub(crate) fn new(domain: &str, version: u16) -> Self {
        let mut hash = Sha256::new();
        hash.update(length(domain.len()));
        hash.update(domain);
        hash.update(version.to_le_bytes());
        FramedHash { hash, tag: 0 }
    }

    /// Adds the next field.
    pub(crate) fn put(&mut self, value: &[u8]) {
        self.tag += 1;
        self.hash.update([self.tag]);
        self.hash.update(length(value.len()));
        self.hash.update(value);
    }

    /// The hash of exactly `fields` fields.
    ///
    /// # Panics
    /// If another number of fields was put.
    pub(crate) fn finish(self, fields: u8) -> [u8; 32] {
        assert_eq!(self.tag, fields, "every field of an identity is hashed");
        self.hash.finalize().into()
    }
}

/// A length or a count as it is hashed.
///
/// # Panics
/// At 4 GiB and beyond.
pub(crate) fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).expect("a part of an identity is below 4 GiB").to_le_bytes()
}
