//! A trace of our own for when no public one is at hand: conversations of several turns under a
//! few system prompts, so that prefixes repeat at all distances. Deterministic for a seed.

use super::payload::mix;
use super::trace::TraceRequest;

/// Tokens a block stands for, as in the public traces.
const BLOCK_TOKENS: u64 = 512;
/// Prompts that conversations start with.
const SYSTEM_PROMPTS: u64 = 4;
/// Blocks of a system prompt behind the block that all share.
const SYSTEM_BLOCKS: u64 = 3;
/// Conversations that may go on; older ones have ended.
const CONVERSATIONS_OPEN: usize = 256;
/// A conversation ends before it gets longer than this, in blocks.
const CONVERSATION_BLOCKS_MAX: usize = 200;
/// Of 100 requests, how many begin a conversation.
const BEGINNING_OF_100: u64 = 35;
/// Requests arrive up to this far apart, in milliseconds.
const GAP_MS_MAX: u64 = 600;

/// A small generator of numbers; its whole state is a counter.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform in `low..=high`.
    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }
}

/// Makes `requests` requests.
#[must_use]
pub fn generate(requests: usize, seed: u64) -> Vec<TraceRequest> {
    let mut numbers = Numbers(mix(seed));
    let mut next_block = 1 + SYSTEM_PROMPTS * SYSTEM_BLOCKS;
    let mut open: Vec<Vec<u64>> = Vec::new();
    let mut timestamp = 0;
    let mut trace = Vec::with_capacity(requests);
    for _ in 0..requests {
        let begins = open.is_empty() || numbers.between(1, 100) <= BEGINNING_OF_100;
        let mut blocks = if begins {
            let prompt = numbers.between(0, SYSTEM_PROMPTS - 1);
            let first = 1 + prompt * SYSTEM_BLOCKS;
            std::iter::once(0).chain(first..first + SYSTEM_BLOCKS).collect()
        } else {
            // The product of two draws prefers recent conversations without forgetting old ones.
            let newest = open.len() as u64 - 1;
            let back = numbers.between(0, newest) * numbers.between(0, newest) / newest.max(1);
            open.remove((newest - back) as usize)
        };
        let added = if begins { numbers.between(3, 24) } else { numbers.between(1, 10) };
        blocks.extend(next_block..next_block + added);
        next_block += added;
        let output_length = numbers.between(10, 800);
        trace.push(TraceRequest {
            timestamp: timestamp as f64,
            input_length: blocks.len() as u64 * BLOCK_TOKENS - numbers.between(0, BLOCK_TOKENS - 1),
            output_length,
            hash_ids: blocks.clone(),
        });
        timestamp += numbers.between(0, GAP_MS_MAX);
        if blocks.len() < CONVERSATION_BLOCKS_MAX {
            open.push(blocks);
        }
        if open.len() > CONVERSATIONS_OPEN {
            open.remove(0);
        }
    }
    trace
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::replay::trace::{TraceShape, read_trace};

    #[test]
    fn the_same_seed_is_the_same_trace_and_it_is_prefix_chained() {
        let trace = generate(500, 7);
        assert_eq!(trace, generate(500, 7));
        assert_ne!(trace, generate(500, 8));
        let mut before = HashMap::new();
        for request in &trace {
            for pair in request.hash_ids.windows(2) {
                assert_eq!(*before.entry(pair[1]).or_insert(pair[0]), pair[0], "block {}", pair[1]);
            }
        }
        assert!(trace.windows(2).all(|pair| pair[0].timestamp <= pair[1].timestamp));
        let shape = TraceShape::of(trace.iter());
        assert!((0.3..0.9).contains(&shape.hit_ratio_bound()), "{shape:?}");
    }

    #[test]
    fn it_is_written_as_the_public_format() {
        let trace = generate(20, 1);
        let text: String =
            trace.iter().map(|request| serde_json::to_string(request).unwrap() + "\n").collect();
        assert_eq!(read_trace(text.as_bytes(), 100).unwrap(), trace);
    }
}
