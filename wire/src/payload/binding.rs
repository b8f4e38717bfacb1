//! Between whom payload travels, and the tag that ties every frame to exactly them.
//!
//! # The tag, byte for byte
//!
//! The first 16 bytes of SHA-256 over the following, all integers little-endian:
//!
//! | part | bytes |
//! | --- | --- |
//! | domain | `u32` length, then the ASCII bytes of [`TAG_DOMAIN`] |
//! | version | `u16` [`TAG_VERSION`] |
//! | 8 fields | each: `u8` tag, `u32` length of the value in bytes, the value |
//!
//! | tag | field | value |
//! | --- | --- | --- |
//! | 1 | protocol | ASCII |
//! | 2 | cluster | 16 bytes |
//! | 3 | source node | ASCII |
//! | 4 | source epoch | `u64` |
//! | 5 | source incarnation | 16 bytes |
//! | 6 | source shard | `u16` |
//! | 7 | requester node | ASCII |
//! | 8 | requester incarnation | 16 bytes |

use std::fmt;

use super::PROTOCOL;
use crate::framed_hash::FramedHash;
use crate::identity::ClusterUuid;
use crate::inventory::{Requester, SourceStream};

/// What separates this hash from every other use of SHA-256 in the protocol.
pub const TAG_DOMAIN: &str = "orbitkv/payload";

/// Version of the hashed encoding.
pub const TAG_VERSION: u16 = 1;

/// Fields of the hashed encoding.
const FIELDS: u8 = 8;

/// The two ends of an operation, as the requester believes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Binding {
    /// The cluster both belong to.
    pub cluster: ClusterUuid,
    /// Whose blocks.
    pub source: SourceStream,
    /// For whom.
    pub requester: Requester,
}

/// A [`Binding`] in 16 bytes, as headers carry it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(pub [u8; 16]);

impl Tag {
    /// The tag of frames that are bound to no incarnation.
    pub const NONE: Tag = Tag([0; 16]);
}

impl Binding {
    /// The tag, over the encoding that this module's text lays down. A requester computes it once a
    /// connection, a source once an operation.
    #[must_use]
    pub fn tag(&self) -> Tag {
        let Binding { cluster, source, requester } = self;
        let mut fields = FramedHash::new(TAG_DOMAIN, TAG_VERSION);
        fields.put(PROTOCOL.as_bytes());
        fields.put(&cluster.0);
        fields.put(source.node.as_str().as_bytes());
        fields.put(&source.epoch.to_le_bytes());
        fields.put(&source.incarnation.0);
        fields.put(&source.shard.0.to_le_bytes());
        fields.put(requester.node.as_str().as_bytes());
        fields.put(&requester.incarnation.0);
        let digest = fields.finish(FIELDS);
        Tag(*digest.first_chunk().expect("a digest has 32 bytes"))
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tag({self})")
    }
}
