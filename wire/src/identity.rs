//! Identities: what names a block, a shard, a residence and a life of a node.
//!
//! They are plain values with a total order, so that every collection that reaches an
//! output can be iterated deterministically.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64_with_seed;

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

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Incarnation({self})")
    }
}

#[cfg(test)]
mod tests;
