//! What is asked for: a trace of conversations, and which blocks each request is the first to have.

use std::collections::BTreeMap;
use std::ops::Range;

use orbitkv::client::BlockHash;
use orbitkv::replay::generate;

use crate::payload::block_hash;

/// Most blocks that are saved at once, and that one request adds.
pub const RUN_BLOCKS_MAX: usize = 32;

/// Consecutive blocks that are saved together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Their numbers.
    pub blocks: Range<u64>,
    /// Which source saves them first, and so is the first in the order of the index: sources take turns.
    pub first: usize,
}

/// A seeded trace.
pub struct Conversations {
    seed: u64,
    /// Of each request, the numbers of all its blocks.
    pub requests: Vec<Vec<u64>>,
    /// Every block is in one.
    pub runs: Vec<Run>,
    /// Of each request, how many of its blocks no earlier one has.
    pub new_blocks: Vec<usize>,
    run_of: BTreeMap<u64, u64>,
}

impl Conversations {
    /// As many requests.
    pub fn new(requests: usize, seed: u64) -> Conversations {
        let requests: Vec<Vec<u64>> =
            generate(requests, seed).into_iter().map(|request| request.hash_ids).collect();
        let (mut runs, mut new_blocks): (Vec<Run>, _) = (Vec::new(), Vec::new());
        let mut run_of = BTreeMap::new();
        for (number, blocks) in requests.iter().enumerate() {
            let new: Vec<u64> = blocks.iter().copied().filter(|block| !run_of.contains_key(block)).collect();
            let first = number % 2;
            for &block in &new {
                match runs.last_mut() {
                    Some(run)
                        if run.first == first
                            && run.blocks.end == block
                            && run.blocks.clone().count() < RUN_BLOCKS_MAX =>
                    {
                        run.blocks.end += 1;
                    }
                    _ => runs.push(Run { blocks: block..block + 1, first }),
                }
                run_of.insert(block, runs.last().expect("just pushed").blocks.start);
            }
            new_blocks.push(new.len());
        }
        Conversations { seed, requests, runs, new_blocks, run_of }
    }

    /// Name of a block.
    pub fn hash(&self, block: u64) -> BlockHash {
        block_hash(self.seed, 0, block)
    }

    /// Where a block lies in its run, which its payload is made from.
    pub fn position(&self, block: u64) -> usize {
        (block - self.run_of[&block]) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_of_every_request_is_in_one_run_and_both_sources_are_first_of_about_half() {
        let trace = Conversations::new(260, 7);
        let mut all: Vec<u64> = trace.requests.concat();
        all.sort_unstable();
        all.dedup();
        let mut saved: Vec<u64> = trace.runs.iter().flat_map(|run| run.blocks.clone()).collect();
        saved.sort_unstable();
        assert_eq!(saved, all);
        assert_eq!(trace.new_blocks.iter().sum::<usize>(), all.len());
        for run in &trace.runs {
            assert!(run.blocks.clone().count() <= RUN_BLOCKS_MAX);
            let positions = run.blocks.clone().map(|block| trace.position(block));
            assert!(positions.eq(0..run.blocks.clone().count()));
        }
        let of_first: usize =
            trace.runs.iter().filter(|run| run.first == 0).map(|run| run.blocks.clone().count()).sum();
        assert!((0.35..0.65).contains(&(of_first as f64 / all.len() as f64)), "{of_first} of {}", all.len());
    }
}
