//! What a whole snapshot was: one digest over every page and replay delta in the order they were sent.
//!
//! It starts from the snapshot's id; each body makes it `xxh3_128(digest so far ‖ xxh3_128(body))`, both
//! in the canonical byte order of xxHash (big-endian). It catches a lost, repeated, reordered or changed
//! body, whoever lost it; an adversary is kept out by the transport.

use std::fmt;

use xxhash_rust::xxh3::xxh3_128;

use crate::identity::SnapshotId;

/// The digest of a transcript.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TranscriptDigest(pub [u8; 16]);

/// A transcript being written, on either side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transcript(TranscriptDigest);

impl Transcript {
    /// The transcript of a snapshot of which nothing has been sent.
    #[must_use]
    pub fn new(snapshot: SnapshotId) -> Transcript {
        Transcript(TranscriptDigest(snapshot.0))
    }

    /// The next body. Takes as long as hashing it: a page has at most
    /// [`PAGE_BYTES_MAX`](crate::bounds::PAGE_BYTES_MAX).
    pub fn absorb(&mut self, body: &[u8]) {
        let mut link = [0; 32];
        link[..16].copy_from_slice(&self.0.0);
        link[16..].copy_from_slice(&xxh3_128(body).to_be_bytes());
        self.0 = TranscriptDigest(xxh3_128(&link).to_be_bytes());
    }

    /// The digest over everything so far.
    #[must_use]
    pub fn digest(&self) -> TranscriptDigest {
        self.0
    }
}

impl fmt::Display for TranscriptDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TranscriptDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TranscriptDigest({self})")
    }
}
