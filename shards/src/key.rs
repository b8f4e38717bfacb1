//! What a shard calls a block: the interned form of a StateKey, and its place in tables.

use orbitkv_wire::identity::{BlockHash, GroupId};

/// A namespace as interned by one shard; meaningless outside it. See [`crate::namespaces`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespaceId(pub u16);

/// (namespace, group, block hash): what names one block inside a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateKey {
    /// The interned namespace.
    pub namespace: NamespaceId,
    /// The layer group inside the namespace.
    pub group: GroupId,
    /// The engine's hash of the block.
    pub block: BlockHash,
}

/// Index of a block in its shard's resident table. Dense, reused after the block has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryId(pub u32);
