//! The indexers of `dynamo-kv-router`. Each is given a block by its own number and by the rolling hash of its chain
//! that the crate defines, and a block's own number only when it is asked; an owner is a worker. Its answer is a score
//! of every worker that has the first block of a query.

use dynamo_kv_router::indexer::positional::{LevelIndex, PositionalIndexer};
use dynamo_kv_router::indexer::{SyncIndexer, ThreadPoolIndexer};
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheStoreData, KvCacheStoredBlockData,
    LocalBlockHash, OverlapScores, RouterEvent, WorkerWithDpRank, compute_seq_hash_for_block,
};
use dynamo_kv_router::{ConcurrentRadixTreeCompressed, RadixTree};
use rustc_hash::FxHashMap;

use crate::driver::Indexer;
use crate::stream::Stored;

/// Positions between two looks of the positional indexer: what its documentation gives as an example.
const JUMP_POSITIONS: usize = 32;

/// Tokens of a block of the trace.
const BLOCK_TOKENS: u32 = 512;

fn local(blocks: &[u64]) -> Vec<LocalBlockHash> {
    blocks.iter().copied().map(LocalBlockHash).collect()
}

/// Events, numbered.
#[derive(Default)]
struct Events(u64);

impl Events {
    fn next(&mut self, stored: Stored, blocks: &[u64]) -> RouterEvent {
        let local = local(blocks);
        let chain: Vec<_> =
            compute_seq_hash_for_block(&local).into_iter().map(ExternalSequenceBlockHash).collect();
        let from = stored.from as usize;
        let block = |(&tokens_hash, &block_hash): (&LocalBlockHash, &ExternalSequenceBlockHash)| {
            KvCacheStoredBlockData { block_hash, tokens_hash, mm_extra_info: None }
        };
        let data = KvCacheEventData::Stored(KvCacheStoreData {
            parent_hash: from.checked_sub(1).map(|parent| chain[parent]),
            start_position: None,
            blocks: local.iter().zip(&chain).skip(from).map(block).collect(),
        });
        self.0 += 1;
        RouterEvent::new(u64::from(stored.owner), KvCacheEvent { event_id: self.0, data, dp_rank: 0 })
    }
}

fn longest(scores: &OverlapScores) -> usize {
    scores.scores.values().max().map_or(0, |&blocks| blocks as usize)
}

/// The compressed radix tree that many threads may read, as it is used: behind a thread for events.
pub struct ConcurrentRadix {
    events: Events,
    pool: ThreadPoolIndexer<ConcurrentRadixTreeCompressed>,
    runtime: tokio::runtime::Runtime,
}

impl ConcurrentRadix {
    /// An empty one.
    pub fn new() -> ConcurrentRadix {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        ConcurrentRadix {
            events: Events::default(),
            pool: ThreadPoolIndexer::new(ConcurrentRadixTreeCompressed::new(), 1, BLOCK_TOKENS),
            runtime: runtime.expect("a runtime without drivers needs nothing"),
        }
    }
}

impl Indexer for ConcurrentRadix {
    type Event = RouterEvent;
    type Query = Vec<LocalBlockHash>;

    fn event(&mut self, stored: Stored, blocks: &[u64]) -> RouterEvent {
        self.events.next(stored, blocks)
    }

    fn apply(&mut self, events: Vec<RouterEvent>) {
        events.into_iter().for_each(|event| self.pool.enqueue_event(event).expect("its thread runs"));
        self.runtime.block_on(self.pool.flush_and_wait()).expect("its thread runs");
    }

    fn query(&mut self, blocks: &[u64]) -> Vec<LocalBlockHash> {
        local(blocks)
    }

    fn answer(&mut self, query: Vec<LocalBlockHash>) -> u64 {
        self.pool.backend().find_matches(&query, false).scores.len() as u64
    }

    fn known(&mut self, query: Vec<LocalBlockHash>) -> usize {
        longest(&self.pool.backend().find_matches(&query, false))
    }
}

/// The index by position.
pub struct Positional {
    events: Events,
    index: PositionalIndexer,
    blocks: FxHashMap<WorkerWithDpRank, LevelIndex>,
}

impl Positional {
    /// An empty one.
    pub fn new() -> Positional {
        Positional {
            events: Events::default(),
            index: PositionalIndexer::new(JUMP_POSITIONS),
            blocks: FxHashMap::default(),
        }
    }
}

impl Indexer for Positional {
    type Event = RouterEvent;
    type Query = Vec<LocalBlockHash>;

    fn event(&mut self, stored: Stored, blocks: &[u64]) -> RouterEvent {
        self.events.next(stored, blocks)
    }

    fn apply(&mut self, events: Vec<RouterEvent>) {
        for event in events {
            self.index
                .apply_event(&mut self.blocks, event, None)
                .expect("a chain is stored from its beginning");
        }
    }

    fn query(&mut self, blocks: &[u64]) -> Vec<LocalBlockHash> {
        local(blocks)
    }

    fn answer(&mut self, query: Vec<LocalBlockHash>) -> u64 {
        self.index.find_matches(&query, false).scores.len() as u64
    }

    fn known(&mut self, query: Vec<LocalBlockHash>) -> usize {
        longest(&self.index.find_matches(&query, false))
    }
}

/// The radix tree of one thread.
pub struct Radix {
    events: Events,
    tree: RadixTree,
}

impl Radix {
    /// An empty one.
    pub fn new() -> Radix {
        Radix { events: Events::default(), tree: RadixTree::new() }
    }
}

impl Indexer for Radix {
    type Event = RouterEvent;
    type Query = Vec<LocalBlockHash>;

    fn event(&mut self, stored: Stored, blocks: &[u64]) -> RouterEvent {
        self.events.next(stored, blocks)
    }

    fn apply(&mut self, events: Vec<RouterEvent>) {
        for event in events {
            self.tree.apply_event(event).expect("a chain is stored from its beginning");
        }
    }

    fn query(&mut self, blocks: &[u64]) -> Vec<LocalBlockHash> {
        local(blocks)
    }

    fn answer(&mut self, query: Vec<LocalBlockHash>) -> u64 {
        self.tree.find_matches(query, false).scores.len() as u64
    }

    fn known(&mut self, query: Vec<LocalBlockHash>) -> usize {
        longest(&self.tree.find_matches(query, false))
    }
}
