//! What an engine says about itself and asks for, in its own types; checked against the wire's
//! limits before anything is sent.

use orbitkv_wire::engine::requests::{GroupKindNumber, GroupRecord, RegisterBody};
use orbitkv_wire::identity::{BlockHash, GroupId, Medium};
use orbitkv_wire::text::Text;

use super::error::ClientError;

/// Handle of a registered namespace. It stays valid when the client reconnects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Namespace(pub(super) u32);

/// Everything that makes the bytes of two engines interchangeable, and who says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Names the engine instance; its processes share leases.
    pub instance: String,
    /// Engine and version, for the operator.
    pub engine: String,
    /// Model identity.
    pub model: String,
    /// Weights revision.
    pub weights_revision: String,
    /// Adapter identity; empty if none.
    pub adapter: String,
    /// What else changes the computed values.
    pub computation: String,
    /// Element type of the cache.
    pub dtype: String,
    /// Memory layout of a block.
    pub layout: String,
    /// Algorithm of the block hash.
    pub hash_algorithm: String,
    /// Seed of the block hash.
    pub hash_seed: String,
    /// Bytes of a block hash before zero-extension, 1 to 32.
    pub hash_bytes: u16,
    /// Tokens a block stands for.
    pub block_tokens: u32,
    /// Tensor-parallel rank.
    pub tp_rank: u32,
    /// Tensor-parallel world size.
    pub tp_size: u32,
    /// Pipeline-parallel rank.
    pub pp_rank: u32,
    /// Pipeline-parallel world size.
    pub pp_size: u32,
    /// Whether every tensor-parallel rank holds the same bytes.
    pub rank_invariant: bool,
    /// Layer groups.
    pub groups: Vec<Group>,
}

/// One layer group of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// The group's number.
    pub group: GroupId,
    /// What has to be kept of it.
    pub retention: Retention,
    /// Payload bytes of one block.
    pub block_bytes: u64,
}

/// What a layer group needs of a prefix; all in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// Every block.
    Full,
    /// The blocks of the last tokens.
    Sliding {
        /// Tokens of the window.
        window_tokens: u32,
    },
    /// The state at a multiple of the interval.
    Checkpoint {
        /// Tokens of the interval.
        interval_tokens: u32,
    },
    /// The blocks of the first and of the last tokens.
    SinkSliding {
        /// Tokens of the sink.
        sink_tokens: u32,
        /// Tokens of the window.
        window_tokens: u32,
    },
}

/// The blocks of one group of one namespace, in prefix order.
#[derive(Clone, Copy, Debug)]
pub struct PrefixList<'a> {
    /// From `register`.
    pub namespace: Namespace,
    /// Layer group.
    pub group: GroupId,
    /// Block hashes, zero-extended.
    pub blocks: &'a [BlockHash],
}

/// A block to be saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveKey {
    /// Block hash, zero-extended.
    pub block: BlockHash,
    /// Layer group.
    pub group: GroupId,
    /// Payload bytes.
    pub bytes: u64,
}

/// A set of media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Media(pub(super) u8);

impl Media {
    /// DRAM and SSD.
    pub const ALL: Media = Media(3);
}

impl From<Medium> for Media {
    fn from(medium: Medium) -> Media {
        Media(1 << medium as u8)
    }
}

impl Registration {
    pub(super) fn body(&self) -> Result<RegisterBody, ClientError> {
        Ok(RegisterBody {
            instance: text("instance", &self.instance)?,
            engine: text("engine", &self.engine)?,
            model: text("model", &self.model)?,
            weights_revision: text("weights_revision", &self.weights_revision)?,
            adapter: text("adapter", &self.adapter)?,
            computation: text("computation", &self.computation)?,
            dtype: text("dtype", &self.dtype)?,
            layout: text("layout", &self.layout)?,
            hash_algorithm: text("hash_algorithm", &self.hash_algorithm)?,
            hash_seed: text("hash_seed", &self.hash_seed)?,
            hash_bytes: self.hash_bytes,
            block_tokens: self.block_tokens,
            tp_rank: self.tp_rank,
            tp_size: self.tp_size,
            pp_rank: self.pp_rank,
            pp_size: self.pp_size,
            rank_invariant: u8::from(self.rank_invariant),
        })
    }

    pub(super) fn records(&self) -> Vec<GroupRecord> {
        self.groups.iter().map(Group::record).collect()
    }
}

impl Group {
    fn record(&self) -> GroupRecord {
        let (kind, tokens, sink_tokens) = match self.retention {
            Retention::Full => (GroupKindNumber::Full, 0, 0),
            Retention::Sliding { window_tokens } => (GroupKindNumber::Sliding, window_tokens, 0),
            Retention::Checkpoint { interval_tokens } => (GroupKindNumber::Checkpoint, interval_tokens, 0),
            Retention::SinkSliding { sink_tokens, window_tokens } => {
                (GroupKindNumber::SinkSliding, window_tokens, sink_tokens)
            }
        };
        GroupRecord {
            group: self.group.0,
            kind: kind as u8,
            tokens,
            sink_tokens,
            block_bytes: self.block_bytes,
        }
    }
}

fn text<const N: usize>(field: &'static str, value: &str) -> Result<Text<N>, ClientError> {
    Text::new(value).map_err(|error| ClientError::TextTooLong {
        field,
        bytes: error.length,
        limit: error.limit,
    })
}

pub(super) fn within(what: &'static str, count: usize, limit: usize) -> Result<(), ClientError> {
    if count > limit { Err(ClientError::OverLimit { what, count, limit }) } else { Ok(()) }
}
