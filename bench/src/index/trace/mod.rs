//! The index on the conversation trace, beside the indexers of others on the same rows and queries.
//!
//! Each is loaded and asked in a process of its own, so that what the process grows by is the indexer's. The answers
//! differ in kind: the index names up to four owners of every block on each medium, others give a score of every owner
//! that has the first block. Both are what their router begins with.

pub mod driver;
pub mod stream;

use orbitkv_native::huge_pages;
use orbitkv_native::prefetch::prefetch;
use orbitkv_shards::index::{IndexSettings, Owner, Partition, ROW_BYTES_PLANNED, Replicas, ViewId};
use orbitkv_wire::identity::{Medium, Sequence, ShardIndex};
use serde_json::{Value, json};

use super::rows::{Key, PAYLOAD_BYTES, block_of, key_of};
use super::tables::step_changes;
use driver::Indexer;
use stream::Stored;

/// The index under the driver.
pub struct TraceIndex {
    partition: Partition,
    views: Vec<ViewId>,
    /// By owner: changes so far.
    sequences: Vec<u64>,
    found: Vec<Replicas>,
}

impl TraceIndex {
    /// An empty one.
    pub fn new(owners: u32, rows: u64) -> TraceIndex {
        let partition = Partition::new(IndexSettings { budget_bytes: rows * ROW_BYTES_PLANNED });
        let mut partition = partition.with_prefetch(prefetch).with_advice(huge_pages::advise);
        let open = |peer| {
            let view = partition.open_view(Owner { peer, shard: ShardIndex(0) });
            let view = view.expect("there are fewer owners than views");
            partition.install(view);
            view
        };
        let views = (0..owners).map(open).collect();
        TraceIndex { partition, views, sequences: vec![0; owners as usize], found: Vec::new() }
    }
}

impl Indexer for TraceIndex {
    type Event = (u32, Vec<Key>);
    type Query = Vec<Key>;

    fn event(&mut self, stored: Stored, blocks: &[u64]) -> Self::Event {
        let stored_blocks = &blocks[stored.from as usize..];
        (stored.owner, stored_blocks.iter().map(|&block| key_of(block_of(block))).collect())
    }

    fn apply(&mut self, events: Vec<Self::Event>) {
        for (owner, keys) in events {
            let (view, sequence) = (self.views[owner as usize], &mut self.sequences[owner as usize]);
            let reserved = self.partition.reserve(keys.iter().map(|(_, hash)| *hash));
            reserved.expect("the budget is for these rows");
            for keys in keys.chunks(step_changes()) {
                self.partition.prefetch(view, keys.iter().map(|(_, hash)| (*hash, Medium::Dram)));
                for (key, hash) in keys {
                    *sequence += 1;
                    let put = self.partition.put(
                        view,
                        key,
                        *hash,
                        Medium::Dram,
                        PAYLOAD_BYTES,
                        Sequence(*sequence),
                    );
                    put.expect("room was asked for");
                }
            }
        }
    }

    fn query(&mut self, blocks: &[u64]) -> Self::Query {
        if self.found.len() < blocks.len() {
            self.found.resize(blocks.len(), Replicas::default());
        }
        blocks.iter().map(|&block| key_of(block_of(block))).collect()
    }

    fn answer(&mut self, keys: Self::Query) -> u64 {
        self.partition.lookup(&keys, &mut self.found);
        self.found[..keys.len()].iter().filter(|replicas| !replicas.is_empty()).count() as u64
    }

    fn known(&mut self, keys: Self::Query) -> usize {
        self.answer(keys) as usize
    }

    fn account(&self) -> Value {
        let accounting = self.partition.accounting();
        json!({
            "rows": accounting.rows,
            "bytes_a_row": accounting.charged_bytes as f64 / accounting.rows as f64,
        })
    }
}
