//! Identities: what names a block, a shard, a residence and a life of a node.
//!
//! They are plain values with a total order, so that every collection that reaches an
//! output can be iterated deterministically.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::bounds::NODE_ID_BYTES_MAX;

/// Seed of the shard hash. Fixed for protocol v2; changing it moves every key.
pub const SHARD_HASH_SEED: u64 = 0x6f72_6269_746b_7632;

/// SHA-256 of everything that makes the bytes of two engines interchangeable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespaceDigest(pub [u8; 32]);

/// The engine's hash of a block and its prefix. Shorter hashes are zero-extended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(pub [u8; 32]);

/// A layer group inside a namespace. Group 0 is a real group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u16);

/// Where a residence lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Medium {
    /// Host memory, in the arena.
    Dram = 0,
    /// The node's SSD file.
    Ssd = 1,
}

/// Position in a shard's journal. The first change of an incarnation has sequence 1;
/// 0 means "before anything".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sequence(pub u64);

/// Random 128-bit identity (UUID v4) of one registration life of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Incarnation(pub [u8; 16]);

/// Random 128-bit identity (UUID v4) of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterUuid(pub [u8; 16]);

/// Name of a node: 1 to [`NODE_ID_BYTES_MAX`] bytes of `[a-z0-9-]`. In the order of its text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId {
    /// The name, then zeros: compared first, so that the order is that of the text.
    bytes: [u8; NODE_ID_BYTES_MAX],
    length: u8,
}

/// Random 128-bit identity of one inventory session, drawn by the requester.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub [u8; 16]);

/// Random 128-bit identity of one snapshot, drawn by the source. Once the snapshot is installed it names
/// the view.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SnapshotId(pub [u8; 16]);

/// Index of a shard inside its node, `0..shards`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardIndex(pub u16);

/// 64-bit placement hash of a state key; see [`key_hash`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyHash(pub u64);

/// `xxh3_64(namespace digest ‖ group (little-endian) ‖ block hash)` with [`SHARD_HASH_SEED`].
#[must_use]
pub fn key_hash(namespace: &NamespaceDigest, group: GroupId, block: &BlockHash) -> KeyHash {
    let mut bytes = [0u8; 66];
    bytes[..32].copy_from_slice(&namespace.0);
    bytes[32..34].copy_from_slice(&group.0.to_le_bytes());
    bytes[34..].copy_from_slice(&block.0);
    KeyHash(xxh3_64_with_seed(&bytes, SHARD_HASH_SEED))
}

impl KeyHash {
    /// The shard that owns a key with this hash: `(h · S) >> 64`.
    ///
    /// # Panics
    /// If `shards` is 0.
    #[must_use]
    pub fn shard(self, shards: u16) -> ShardIndex {
        assert!(shards > 0, "a node has at least one shard");
        ShardIndex(((u128::from(self.0) * u128::from(shards)) >> 64) as u16)
    }
}

impl Medium {
    /// Both media, in their wire order.
    pub const ALL: [Medium; 2] = [Medium::Dram, Medium::Ssd];

    /// The medium with this wire number, if there is one.
    #[must_use]
    pub fn from_wire(number: u8) -> Option<Medium> {
        match number {
            0 => Some(Medium::Dram),
            1 => Some(Medium::Ssd),
            _ => None,
        }
    }
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Medium::Dram => "dram",
            Medium::Ssd => "ssd",
        })
    }
}

fn hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

impl fmt::Display for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockHash({self})")
    }
}

impl fmt::Display for NamespaceDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(crate::namespace::PREFIX)?;
        hex(&self.0, f)
    }
}

impl fmt::Debug for NamespaceDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NamespaceDigest({self})")
    }
}

fn uuid(bytes: &[u8; 16], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (index, part) in
        [&bytes[..4], &bytes[4..6], &bytes[6..8], &bytes[8..10], &bytes[10..]].iter().enumerate()
    {
        f.write_str(if index == 0 { "" } else { "-" })?;
        hex(part, f)?;
    }
    Ok(())
}

/// Shows 16 random bytes: as a UUID where they are one, else as plain hexadecimal digits.
macro_rules! shown {
    ($($name:ident as $form:ident,)*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $form(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }
    )*};
}

shown! {
    ClusterUuid as uuid,
    Incarnation as uuid,
    SessionId as hex,
    SnapshotId as hex,
}

/// A text is no UUID in lowercase digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a UUID is 32 lowercase hexadecimal digits in groups of 8, 4, 4, 4 and 12")]
pub struct UuidError;

/// Lower-case hexadecimal digits, two a byte.
pub(crate) fn hexadecimal<const BYTES: usize>(text: &str) -> Option<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    let legal = text.len() == 2 * BYTES && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(legal.then(|| &text[2 * index..2 * index + 2])?, 16).ok()?;
    }
    Some(bytes)
}

/// The bytes of a UUID as [`ClusterUuid`] and [`Incarnation`] print it.
pub(crate) fn parse_uuid(text: &str) -> Result<[u8; 16], UuidError> {
    let bytes = hexadecimal(&text.replace('-', "")).ok_or(UuidError)?;
    (Incarnation(bytes).to_string() == text).then_some(bytes).ok_or(UuidError)
}

impl FromStr for ClusterUuid {
    type Err = UuidError;

    fn from_str(text: &str) -> Result<ClusterUuid, UuidError> {
        parse_uuid(text).map(ClusterUuid)
    }
}

impl FromStr for Incarnation {
    type Err = UuidError;

    fn from_str(text: &str) -> Result<Incarnation, UuidError> {
        parse_uuid(text).map(Incarnation)
    }
}

/// Why a text names no node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NodeIdError {
    /// It is empty or too long.
    #[error("a node id has 1 to {NODE_ID_BYTES_MAX} bytes, not {bytes}")]
    Length {
        /// Bytes given.
        bytes: usize,
    },
    /// A byte is not allowed.
    #[error("byte {at} of the node id is not one of a-z, 0-9 and -")]
    Character {
        /// Its offset.
        at: usize,
    },
}

impl NodeId {
    /// The node with this name.
    ///
    /// # Errors
    /// [`NodeIdError`] saying what is wrong with it.
    pub fn new(text: &str) -> Result<NodeId, NodeIdError> {
        let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let mut bytes = [0; NODE_ID_BYTES_MAX];
        let named = bytes.get_mut(..text.len()).filter(|named| !named.is_empty());
        named.ok_or(NodeIdError::Length { bytes: text.len() })?.copy_from_slice(text.as_bytes());
        match text.bytes().position(|byte| !legal(byte)) {
            Some(at) => Err(NodeIdError::Character { at }),
            None => Ok(NodeId { bytes, length: text.len() as u8 }),
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).expect("legal bytes are ASCII")
    }
}

impl FromStr for NodeId {
    type Err = NodeIdError;

    fn from_str(text: &str) -> Result<NodeId, NodeIdError> {
        NodeId::new(text)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeId({self})")
    }
}

#[cfg(test)]
mod tests;
