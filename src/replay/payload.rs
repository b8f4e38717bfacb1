//! What the bytes of a block are: a function of the block's number alone, so that any run, on any
//! node, can say of any block whether it came back as it was saved.
//!
//! The first 16 bytes name the block; the rest is a stream of words in which every word depends
//! on the block and on its place, so that another block's bytes, shifted bytes and stale bytes
//! all differ. The stream has no chain from word to word: it is written and compared as fast as
//! memory goes, in place.

use orbitkv_wire::identity::BlockHash;

/// Generation of this payload's definition, in the first word of every block.
pub const PAYLOAD_GENERATION: u64 = 1;

/// The least a block can be: its generation and its number.
pub const PAYLOAD_BYTES_MIN: u64 = 16;

/// Odd, so that the words of a block are all different.
const WORD_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A bijection that spreads every input bit over the word.
pub(super) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The hash an engine would have for the block with this number in the trace.
#[must_use]
pub fn block_hash(number: u64) -> BlockHash {
    let mut hash = [0; 32];
    for (part, bytes) in hash.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *bytes = mix(number.wrapping_mul(4).wrapping_add(part as u64 + 1)).to_le_bytes();
    }
    BlockHash(hash)
}

fn seed(number: u64) -> u64 {
    mix(number ^ mix(PAYLOAD_GENERATION))
}

#[inline(always)]
fn word(seed: u64, index: u64) -> u64 {
    let stepped = seed.wrapping_add(index.wrapping_mul(WORD_STEP));
    stepped ^ (stepped >> 29)
}

/// Writes the payload of a block over all of `target`.
///
/// # Panics
/// If `target` is shorter than [`PAYLOAD_BYTES_MIN`].
pub fn fill(number: u64, target: &mut [u8]) {
    let seed = seed(number);
    let (head, stream) = target.split_at_mut(PAYLOAD_BYTES_MIN as usize);
    head[..8].copy_from_slice(&PAYLOAD_GENERATION.to_le_bytes());
    head[8..].copy_from_slice(&number.to_le_bytes());
    let (words, tail) = stream.as_chunks_mut::<8>();
    let count = words.len() as u64;
    for (index, bytes) in words.iter_mut().enumerate() {
        *bytes = word(seed, index as u64).to_le_bytes();
    }
    tail.copy_from_slice(&word(seed, count).to_le_bytes()[..tail.len()]);
}

/// How many of the bytes are not those [`fill`] wrote for the block.
#[must_use]
pub fn wrong_bytes(number: u64, found: &[u8]) -> u64 {
    let Some((head, stream)) = found.split_at_checked(PAYLOAD_BYTES_MIN as usize) else {
        return found.len() as u64;
    };
    let seed = seed(number);
    let (words, tail) = stream.as_chunks::<8>();
    let mut difference = 0;
    for (index, bytes) in words.iter().enumerate() {
        difference |= u64::from_le_bytes(*bytes) ^ word(seed, index as u64);
    }
    let head_is_right = head[..8] == PAYLOAD_GENERATION.to_le_bytes() && head[8..] == number.to_le_bytes();
    let tail_is_right = *tail == word(seed, words.len() as u64).to_le_bytes()[..tail.len()];
    if difference == 0 && head_is_right && tail_is_right {
        return 0;
    }
    let mut expected = vec![0; found.len()];
    fill(number, &mut expected);
    expected.iter().zip(found).filter(|(expected, found)| expected != found).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_single_wrong_byte_is_seen() {
        for length in [16, 17, 24, 100, 4096] {
            let mut block = vec![0; length];
            fill(9, &mut block);
            assert_eq!(wrong_bytes(9, &block), 0);
            for at in 0..length {
                block[at] ^= 0x10;
                assert_eq!(wrong_bytes(9, &block), 1, "byte {at} of {length}");
                block[at] ^= 0x10;
            }
        }
    }

    #[test]
    fn another_block_a_shift_and_a_short_block_are_wrong_almost_everywhere() {
        let (mut block, mut other) = (vec![0; 65_536], vec![0; 65_536]);
        fill(1, &mut block);
        fill(2, &mut other);
        assert!(wrong_bytes(1, &other) > 60_000);
        let mut shifted = block.clone();
        shifted.copy_within(16..65_528, 24);
        assert!(wrong_bytes(1, &shifted) > 60_000);
        assert_eq!(wrong_bytes(1, &block[..8]), 8);
        let page: Vec<u8> = block[..4096].to_vec();
        block[8192..12_288].copy_from_slice(&page);
        assert!(wrong_bytes(1, &block) > 3_500, "a page in another page's place");
    }

    #[test]
    fn hashes_of_neighbours_share_nothing() {
        let (first, second) = (block_hash(0), block_hash(1));
        assert!(first.0.chunks(8).zip(second.0.chunks(8)).all(|(first, second)| first != second));
        assert_ne!(first, block_hash(u64::MAX));
    }
}
