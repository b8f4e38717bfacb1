//! What a session is about, and the tag that ties every frame of it to exactly that.
//!
//! # The tag, byte for byte
//!
//! The first 16 bytes of SHA-256 over the following, all integers little-endian:
//!
//! | part | bytes |
//! | --- | --- |
//! | domain | `u32` length, then the ASCII bytes of [`TAG_DOMAIN`] |
//! | version | `u16` [`TAG_VERSION`] |
//! | 10 fields | each: `u8` tag, `u32` length of the value in bytes, the value |
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
//! | 9 | scope digest | 32 bytes |
//! | 10 | session | 16 bytes |

use std::fmt;

use super::PROTOCOL;
use crate::framed_hash::FramedHash;
use crate::identity::{ClusterUuid, Incarnation, NodeId, SessionId, ShardIndex};
use crate::scope::ScopeDigest;

/// What separates this hash from every other use of SHA-256 in the protocol.
pub const TAG_DOMAIN: &str = "orbitkv/inventory-session";

/// Version of the hashed encoding.
pub const TAG_VERSION: u16 = 1;

/// Fields of the hashed encoding.
const FIELDS: u8 = 10;

/// One owner stream: the journal of one shard in one life of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceStream {
    /// The node.
    pub node: NodeId,
    /// Its epoch, which grows with each of its lives.
    pub epoch: u64,
    /// Its life.
    pub incarnation: Incarnation,
    /// The shard.
    pub shard: ShardIndex,
}

/// Who listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Requester {
    /// The node.
    pub node: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
}

/// Everything a session is bound to. A frame of another binding is never looked into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Binding {
    /// The cluster both belong to.
    pub cluster: ClusterUuid,
    /// Whose inventory.
    pub source: SourceStream,
    /// For whom.
    pub requester: Requester,
    /// Which part of it.
    pub scope: ScopeDigest,
    /// In which session.
    pub session: SessionId,
}

/// A [`Binding`] in 16 bytes, as every header carries it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(pub [u8; 16]);

impl Binding {
    /// The tag, over the encoding that this module's text lays down. Computed once a session.
    #[must_use]
    pub fn tag(&self) -> Tag {
        let Binding { cluster, source, requester, scope, session } = self;
        let mut fields = FramedHash::new(TAG_DOMAIN, TAG_VERSION);
        fields.put(PROTOCOL.as_bytes());
        fields.put(&cluster.0);
        fields.put(source.node.as_str().as_bytes());
        fields.put(&source.epoch.to_le_bytes());
        fields.put(&source.incarnation.0);
        fields.put(&source.shard.0.to_le_bytes());
        fields.put(requester.node.as_str().as_bytes());
        fields.put(&requester.incarnation.0);
        fields.put(&scope.0);
        fields.put(&session.0);
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
