//! What is saved: seeded bytes behind a stamp of generation and block index, so that a wrong
//! generation shows; and the name of each block.

use std::fmt;
use std::ops::Range;

use orbitkv::client::{BlockHash, Group, GroupId, Registration, Reserved, ReservedSlot, Retention};
use orbitkv_native::ssd_transfer::AlignedBuffer;

use crate::Failure;

/// The one layer group of the benchmark.
pub const GROUP: GroupId = GroupId(0);

/// Bytes of a stamp.
pub const STAMP_BYTES: usize = 16;

/// Registers as the engine of this run; runs with another block size are another namespace.
pub fn registration(block_bytes: u64) -> Registration {
    Registration {
        instance: format!("bench-{}", std::process::id()),
        engine: concat!("orbitkv-bench ", env!("CARGO_PKG_VERSION")).into(),
        model: "bench".into(),
        weights_revision: "1".into(),
        adapter: String::new(),
        computation: "stamped".into(),
        dtype: "u8".into(),
        layout: format!("flat-{block_bytes}"),
        hash_algorithm: "bench-id".into(),
        hash_seed: "0".into(),
        hash_bytes: 32,
        block_tokens: 16,
        tp_rank: 0,
        tp_size: 1,
        pp_rank: 0,
        pp_size: 1,
        rank_invariant: false,
        groups: vec![Group { group: GROUP, retention: Retention::Full, block_bytes }],
    }
}

/// Name of a block.
pub fn block_hash(seed: u64, generation: u64, index: u64) -> BlockHash {
    let mut hash = [0; 32];
    for (bytes, value) in hash.chunks_exact_mut(8).zip([seed, generation, index]) {
        bytes.copy_from_slice(&value.to_le_bytes());
    }
    BlockHash(hash)
}

/// Names of consecutive blocks of one generation.
pub fn block_hashes(seed: u64, generation: u64, indices: Range<u64>) -> Vec<BlockHash> {
    indices.map(|index| block_hash(seed, generation, index)).collect()
}

/// The slot of a key, which a node with room always gives.
///
/// # Errors
/// If it gave none.
pub fn slot(reserved: Reserved) -> Result<ReservedSlot, Failure> {
    match reserved {
        Reserved::Slot(slot) => Ok(slot),
        other => Err(format!("a new block got no slot: {other:?}").into()),
    }
}

/// Blocks that saves are copied from: seeded once, stamped anew for each generation.
pub struct Source {
    bytes: AlignedBuffer,
    block_bytes: usize,
}

impl Source {
    /// `blocks` of seeded bytes.
    pub fn seeded(seed: u64, blocks: usize, block_bytes: u64) -> Source {
        let block_bytes = block_bytes as usize;
        let mut bytes = AlignedBuffer::zeroed(blocks * block_bytes);
        let mut state = seed;
        for word in bytes.chunks_exact_mut(8) {
            word.copy_from_slice(&splitmix64(&mut state).to_le_bytes());
        }
        Source { bytes, block_bytes }
    }

    /// Stamps all blocks; the first gets `first_index`.
    pub fn stamp(&mut self, generation: u64, first_index: u64) {
        for (index, block) in (first_index..).zip(self.bytes.chunks_exact_mut(self.block_bytes)) {
            block[..STAMP_BYTES].copy_from_slice(&stamp(generation, index));
        }
    }

    /// Stamps one block.
    pub fn stamp_one(&mut self, position: usize, generation: u64, index: u64) {
        self.bytes[position * self.block_bytes..][..STAMP_BYTES].copy_from_slice(&stamp(generation, index));
    }

    /// One block.
    pub fn block(&self, position: usize) -> &[u8] {
        &self.bytes[position * self.block_bytes..][..self.block_bytes]
    }

    /// Refuses `bytes` unless they are what the block at `position` was when it was stamped so.
    pub fn require(
        &self,
        position: usize,
        generation: u64,
        index: u64,
        bytes: &[u8],
    ) -> Result<(), WrongBytes> {
        require_stamp(bytes, generation, index)?;
        let right =
            bytes.len() == self.block_bytes && bytes[STAMP_BYTES..] == self.block(position)[STAMP_BYTES..];
        if right { Ok(()) } else { Err(WrongBytes { generation, index }) }
    }
}

/// The first bytes of a block.
pub fn stamp(generation: u64, index: u64) -> [u8; STAMP_BYTES] {
    let mut stamp = [0; STAMP_BYTES];
    stamp[..8].copy_from_slice(&generation.to_le_bytes());
    stamp[8..].copy_from_slice(&index.to_le_bytes());
    stamp
}

/// Whether a block begins with this stamp.
pub fn is_stamped(bytes: &[u8], generation: u64, index: u64) -> bool {
    bytes.get(..STAMP_BYTES) == Some(&stamp(generation, index)[..])
}

/// A block came back with other bytes than were saved: nothing measured so far counts.
#[derive(Debug)]
pub struct WrongBytes {
    generation: u64,
    index: u64,
}

impl WrongBytes {
    /// Of this block.
    pub fn of(generation: u64, index: u64) -> WrongBytes {
        WrongBytes { generation, index }
    }
}

impl fmt::Display for WrongBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "wrong bytes: block {} of generation {}", self.index, self.generation)
    }
}

impl std::error::Error for WrongBytes {}

/// Refuses a block that came back wrong.
pub fn require_stamp(bytes: &[u8], generation: u64, index: u64) -> Result<(), WrongBytes> {
    if is_stamped(bytes, generation, index) { Ok(()) } else { Err(WrongBytes { generation, index }) }
}

/// The next number of a seeded row.
pub fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut value = *state;
    value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_has_a_name_and_a_stamp_of_its_own() {
        let mut names: Vec<_> =
            (0..3).flat_map(|generation| block_hashes(7, generation, 0..9)).map(|hash| hash.0).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 27);

        let mut source = Source::seeded(7, 3, 4_096);
        source.stamp(5, 100);
        let saved = source.block(1).to_vec();
        source.stamp(6, 200);
        assert!(source.require(1, 5, 101, &saved).is_ok());
        assert!(source.require(1, 5, 100, &saved).is_err(), "another index");
        assert!(source.require(1, 6, 101, &saved).is_err(), "another generation");
        assert!(source.require(2, 5, 101, &saved).is_err(), "another content");
        assert!(require_stamp(&saved, 6, 101).is_err());
    }
}
