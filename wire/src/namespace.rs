//! Namespaces: which engines' bytes are interchangeable, as one digest.
//!
//! Two engines may read each other's blocks only if everything that shapes those bytes is equal.
//! [`NamespaceIdentity`] lists that everything and hashes it to a [`NamespaceDigest`]; the text form
//! is exactly [`PREFIX`] followed by 64 lowercase hex digits.
//!
//! # The hashed encoding, byte for byte
//!
//! SHA-256 over the following, all integers little-endian:
//!
//! | part | bytes |
//! | --- | --- |
//! | domain | `u32` length, then the ASCII bytes of [`DOMAIN`] |
//! | version | `u16` [`ENCODING_VERSION`] |
//! | 16 fields | each: `u8` tag, `u32` length of the value in bytes, the value |
//!
//! Every field is present, in the order of its tag:
//!
//! | tag | field | value |
//! | --- | --- | --- |
//! | 1 | model | UTF-8 |
//! | 2 | weights revision | UTF-8 |
//! | 3 | adapter | UTF-8, empty without one |
//! | 4 | computation | UTF-8 |
//! | 5 | dtype | UTF-8 |
//! | 6 | layout | UTF-8 |
//! | 7 | block tokens | `u32` |
//! | 8 | hash algorithm | UTF-8 |
//! | 9 | hash bytes | `u8` |
//! | 10 | hash seed | bytes |
//! | 11 | rank invariant | `u8`, 0 or 1 |
//! | 12 | tp rank | `u32`, 0 if rank invariant |
//! | 13 | tp size | `u32`, 0 if rank invariant |
//! | 14 | pp rank | `u32` |
//! | 15 | pp size | `u32` |
//! | 16 | groups | `u32` count, then 23 bytes a group |
//!
//! A group is `u16` id, `u8` kind, `u32` window tokens, `u32` sink tokens, `u32` interval tokens,
//! `u64` block bytes; numbers that its kind does not have are 0. Groups are hashed in ascending order
//! of exactly those numbers, so the order in which an engine lists them does not matter.

use std::str::FromStr;

use crate::framed_hash::{FramedHash, length};
use crate::identity::{GroupId, NamespaceDigest};

/// Text before the 64 hex digits of a namespace.
pub const PREFIX: &str = "orbitkv:v2:";

/// Bytes of a namespace in its text form.
pub const TEXT_BYTES: usize = PREFIX.len() + 64;

/// What separates this hash from every other use of SHA-256 in the protocol.
pub const DOMAIN: &str = "orbitkv/namespace";

/// Version of the hashed encoding; it moves together with [`PREFIX`].
pub const ENCODING_VERSION: u16 = 2;

/// Fields of the hashed encoding.
const FIELDS: u8 = 16;

/// How a layer group retains a prefix, in tokens. What that means at a boundary is compiled by
/// the shard's demand (chapter 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GroupKind {
    /// Every block of the prefix.
    Full,
    /// The blocks of the last `window_tokens` before the boundary.
    Sliding {
        /// Tokens that must be there.
        window_tokens: u32,
    },
    /// The state at a multiple of `interval_tokens`.
    Checkpoint {
        /// Distance of two states.
        interval_tokens: u32,
    },
    /// The blocks of the first `sink_tokens` and of the last `window_tokens`.
    SinkSliding {
        /// Tokens at the start of the prefix.
        sink_tokens: u32,
        /// Tokens before the boundary.
        window_tokens: u32,
    },
}

/// [`GroupKind`] as four plain numbers: the form that frames and the namespace hash carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupKindNumbers {
    /// 0 full, 1 sliding, 2 checkpoint, 3 sink and sliding.
    pub kind: u8,
    /// Window in tokens; 0 for a kind without one.
    pub window_tokens: u32,
    /// Sink in tokens; 0 for a kind without one.
    pub sink_tokens: u32,
    /// Interval in tokens; 0 for a kind without one.
    pub interval_tokens: u32,
}

/// Why four numbers are not a [`GroupKind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupKindError {
    /// No kind has this number.
    #[error("group kind {0} is unknown; kinds are 0 full, 1 sliding, 2 checkpoint, 3 sink and sliding")]
    UnknownKind(u8),
    /// A number is set that this kind does not have.
    #[error("group kind {kind} has no {field}, but it is set")]
    Stray {
        /// The kind given.
        kind: u8,
        /// The number that must be 0.
        field: &'static str,
    },
}

impl GroupKind {
    /// The kind as plain numbers.
    #[must_use]
    pub fn numbers(self) -> GroupKindNumbers {
        let (kind, window_tokens, sink_tokens, interval_tokens) = match self {
            GroupKind::Full => (0, 0, 0, 0),
            GroupKind::Sliding { window_tokens } => (1, window_tokens, 0, 0),
            GroupKind::Checkpoint { interval_tokens } => (2, 0, 0, interval_tokens),
            GroupKind::SinkSliding { sink_tokens, window_tokens } => (3, window_tokens, sink_tokens, 0),
        };
        GroupKindNumbers { kind, window_tokens, sink_tokens, interval_tokens }
    }
}

impl TryFrom<GroupKindNumbers> for GroupKind {
    type Error = GroupKindError;

    fn try_from(numbers: GroupKindNumbers) -> Result<Self, GroupKindError> {
        let GroupKindNumbers { kind, window_tokens, sink_tokens, interval_tokens } = numbers;
        let result = match kind {
            0 => GroupKind::Full,
            1 => GroupKind::Sliding { window_tokens },
            2 => GroupKind::Checkpoint { interval_tokens },
            3 => GroupKind::SinkSliding { sink_tokens, window_tokens },
            _ => return Err(GroupKindError::UnknownKind(kind)),
        };
        let kept = result.numbers();
        for (field, given, kept) in [
            ("window_tokens", window_tokens, kept.window_tokens),
            ("sink_tokens", sink_tokens, kept.sink_tokens),
            ("interval_tokens", interval_tokens, kept.interval_tokens),
        ] {
            if given != kept {
                return Err(GroupKindError::Stray { kind, field });
            }
        }
        Ok(result)
    }
}

/// One layer group as part of a namespace's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupIdentity {
    /// The group's number inside the namespace.
    pub group: GroupId,
    /// How it retains a prefix.
    pub kind: GroupKind,
    /// Bytes of one block of this group.
    pub block_bytes: u64,
}

/// Everything that makes the bytes of two engines interchangeable.
///
/// Strings are compared byte for byte: whoever fills this in decides what is canonical.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceIdentity<'a> {
    /// The model's name.
    pub model: &'a str,
    /// Revision of the weights.
    pub weights_revision: &'a str,
    /// The adapter (LoRA) in use; empty without one.
    pub adapter: &'a str,
    /// How keys and values are computed, where that changes them.
    pub computation: &'a str,
    /// Element type of the cache.
    pub dtype: &'a str,
    /// Order of the elements inside a block.
    pub layout: &'a str,
    /// Tokens of one block.
    pub block_tokens: u32,
    /// The engine's block hash.
    pub hash_algorithm: &'a str,
    /// Bytes of that hash before zero extension.
    pub hash_bytes: u8,
    /// Seed of that hash, as the engine holds it; empty without one.
    pub hash_seed: &'a [u8],
    /// The bytes do not depend on the tensor-parallel rank; then rank and size are not hashed.
    pub rank_invariant: bool,
    /// Tensor-parallel rank.
    pub tp_rank: u32,
    /// Tensor-parallel world size.
    pub tp_size: u32,
    /// Pipeline-parallel rank.
    pub pp_rank: u32,
    /// Pipeline-parallel world size.
    pub pp_size: u32,
    /// The layer groups, in any order.
    pub groups: &'a [GroupIdentity],
}

impl NamespaceIdentity<'_> {
    /// The namespace: SHA-256 over the encoding that this module's text lays down.
    #[must_use]
    pub fn digest(&self) -> NamespaceDigest {
        let (tp_rank, tp_size) = if self.rank_invariant { (0, 0) } else { (self.tp_rank, self.tp_size) };
        let mut fields = FramedHash::new(DOMAIN, ENCODING_VERSION);
        fields.put(self.model.as_bytes());
        fields.put(self.weights_revision.as_bytes());
        fields.put(self.adapter.as_bytes());
        fields.put(self.computation.as_bytes());
        fields.put(self.dtype.as_bytes());
        fields.put(self.layout.as_bytes());
        fields.put(&self.block_tokens.to_le_bytes());
        fields.put(self.hash_algorithm.as_bytes());
        fields.put(&[self.hash_bytes]);
        fields.put(self.hash_seed);
        fields.put(&[u8::from(self.rank_invariant)]);
        fields.put(&tp_rank.to_le_bytes());
        fields.put(&tp_size.to_le_bytes());
        fields.put(&self.pp_rank.to_le_bytes());
        fields.put(&self.pp_size.to_le_bytes());
        fields.put(&encode_groups(self.groups));
        NamespaceDigest(fields.finish(FIELDS))
    }
}

fn encode_groups(groups: &[GroupIdentity]) -> Vec<u8> {
    let mut sorted: Vec<(GroupId, GroupKindNumbers, u64)> =
        groups.iter().map(|group| (group.group, group.kind.numbers(), group.block_bytes)).collect();
    sorted.sort_unstable();
    let mut bytes = length(sorted.len()).to_vec();
    for (group, numbers, block_bytes) in sorted {
        bytes.extend_from_slice(&group.0.to_le_bytes());
        bytes.push(numbers.kind);
        bytes.extend_from_slice(&numbers.window_tokens.to_le_bytes());
        bytes.extend_from_slice(&numbers.sink_tokens.to_le_bytes());
        bytes.extend_from_slice(&numbers.interval_tokens.to_le_bytes());
        bytes.extend_from_slice(&block_bytes.to_le_bytes());
    }
    bytes
}

/// What is wrong with a text that should name a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseNamespaceError {
    /// It does not begin with [`PREFIX`].
    #[error("a namespace begins with `orbitkv:v2:`")]
    Prefix,
    /// It has not 64 digits after the prefix.
    #[error("a namespace has 64 hex digits after `orbitkv:v2:`, not {digits_bytes} bytes")]
    Length {
        /// Bytes after the prefix.
        digits_bytes: usize,
    },
    /// A byte is not a lowercase hex digit.
    #[error("byte {at} of the namespace is not one of 0-9a-f (uppercase is not accepted)")]
    Digit {
        /// Its offset in the whole text.
        at: usize,
    },
}

impl TryFrom<&str> for NamespaceDigest {
    type Error = ParseNamespaceError;

    fn try_from(text: &str) -> Result<Self, ParseNamespaceError> {
        let digits = text.strip_prefix(PREFIX).ok_or(ParseNamespaceError::Prefix)?.as_bytes();
        if digits.len() != 64 {
            return Err(ParseNamespaceError::Length { digits_bytes: digits.len() });
        }
        let mut digest = [0u8; 32];
        for (index, byte) in digits.iter().enumerate() {
            let value = match byte {
                b'0'..=b'9' => byte - b'0',
                b'a'..=b'f' => byte - b'a' + 10,
                _ => return Err(ParseNamespaceError::Digit { at: PREFIX.len() + index }),
            };
            digest[index / 2] = digest[index / 2] << 4 | value;
        }
        Ok(NamespaceDigest(digest))
    }
}

impl FromStr for NamespaceDigest {
    type Err = ParseNamespaceError;

    fn from_str(text: &str) -> Result<Self, ParseNamespaceError> {
        NamespaceDigest::try_from(text)
    }
}

#[cfg(test)]
mod tests;
