//! Which eviction policy DRAM ships with: replays a trace of prefix-chained blocks through each of
//! them at several capacities, without a node, and compares block-level prefix hits with what a cache
//! that never evicts would have had.

use std::collections::HashMap;
use std::error::Error;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use orbitkv_shards::eviction::{DramPolicy, EvictionPolicy, PolicyKind};
use orbitkv_shards::key::EntryId;
use orbitkv_wire::identity::{BlockHash, GroupId, KeyHash, NamespaceDigest, key_hash};
use serde::{Deserialize, Serialize};

/// Residents one search for a victim may look at; a search without an answer is repeated.
const VICTIM_BUDGET: usize = 64;

/// What to replay.
#[derive(Args)]
pub struct EvictionArgs {
    /// Trace in Mooncake's JSONL: one request a line, with `hash_ids`.
    #[arg(long, value_name = "PATH")]
    trace: PathBuf,
    /// Capacities, in percent of the distinct blocks of the trace.
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = [1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0])]
    capacities: Vec<f64>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// In which order the blocks of one request reach the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Order {
    /// Uses and inserts from the first block to the deepest: the deepest is the most recent.
    FromRoot,
    /// Uses from the deepest hit to the first block, then inserts from the first miss on.
    UsesFromLeaf,
    /// Uses and inserts from the deepest block to the first: the first is the most recent.
    FromLeaf,
}

impl Order {
    const ALL: [Order; 3] = [Order::FromRoot, Order::UsesFromLeaf, Order::FromLeaf];

    fn name(self) -> &'static str {
        match self {
            Order::FromRoot => "from-root",
            Order::UsesFromLeaf => "uses-from-leaf",
            Order::FromLeaf => "from-leaf",
        }
    }
}

#[derive(Deserialize)]
struct Request {
    hash_ids: Vec<u64>,
}

/// A trace with its blocks numbered densely in order of appearance.
struct Trace {
    requests: Vec<Vec<u32>>,
    hashes: Vec<KeyHash>,
    references: u64,
    infinite_hits: u64,
}

#[derive(Serialize)]
struct Row {
    policy: &'static str,
    order: Order,
    capacity_percent: f64,
    capacity_blocks: usize,
    hit_ratio: f64,
    share_of_bound: f64,
    evictions: u64,
    looks_per_eviction: f64,
    ns_per_reference: f64,
}

#[derive(Serialize)]
struct Report {
    requests: usize,
    block_references: u64,
    distinct_blocks: usize,
    infinite_hit_ratio: f64,
    rows: Vec<Row>,
}

/// Replays the trace and prints the table or JSON.
///
/// # Errors
/// If the trace cannot be read or the output not be written, a line is not a request, or a capacity is not
/// in (0, 100].
pub fn run(args: EvictionArgs) -> Result<(), Box<dyn Error>> {
    if let Some(bad) = args.capacities.iter().find(|percent| !(**percent > 0.0 && **percent <= 100.0)) {
        return Err(format!("--capacities {bad}: a capacity is above 0 and at most 100 percent").into());
    }
    let trace = Trace::read(&args.trace)?;
    let mut rows = Vec::new();
    for kind in PolicyKind::ALL {
        for order in Order::ALL {
            for &percent in &args.capacities {
                let blocks = ((trace.hashes.len() as f64 * percent / 100.0).round() as usize).max(1);
                rows.push(replay(&trace, kind, order, percent, blocks));
            }
        }
    }
    let report = Report {
        requests: trace.requests.len(),
        block_references: trace.references,
        distinct_blocks: trace.hashes.len(),
        infinite_hit_ratio: ratio(trace.infinite_hits, trace.references),
        rows,
    };
    let text = if args.json {
        serde_json::to_string_pretty(&report)? + "\n"
    } else {
        table(&report, &args.capacities)
    };
    Ok(io::stdout().write_all(text.as_bytes())?)
}

impl Trace {
    fn read(path: &Path) -> Result<Trace, Box<dyn Error>> {
        let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut numbers = HashMap::new();
        let mut trace = Trace { requests: Vec::new(), hashes: Vec::new(), references: 0, infinite_hits: 0 };
        for (index, line) in BufReader::new(file).lines().enumerate() {
            let place = || format!("{}:{}", path.display(), index + 1);
            let line = line.map_err(|error| format!("{}: {error}", place()))?;
            let request: Request =
                serde_json::from_str(&line).map_err(|error| format!("{}: {error}", place()))?;
            let known = trace.hashes.len() as u32;
            let blocks: Vec<u32> = request
                .hash_ids
                .iter()
                .map(|id| {
                    *numbers.entry(*id).or_insert_with(|| {
                        trace.hashes.push(hash_of(*id));
                        trace.hashes.len() as u32 - 1
                    })
                })
                .collect();
            trace.references += blocks.len() as u64;
            trace.infinite_hits += blocks.iter().take_while(|block| **block < known).count() as u64;
            trace.requests.push(blocks);
        }
        if trace.references == 0 {
            return Err(format!("{}: no block references", path.display()).into());
        }
        Ok(trace)
    }
}

fn hash_of(id: u64) -> KeyHash {
    let mut block = [0; 32];
    block[..8].copy_from_slice(&id.to_le_bytes());
    key_hash(&NamespaceDigest([0; 32]), GroupId(0), &BlockHash(block))
}

/// DRAM as one policy sees it: which block has which entry.
struct Dram<'a> {
    trace: &'a Trace,
    policy: Box<dyn EvictionPolicy>,
    entry_of: Vec<Option<EntryId>>,
    block_of: Vec<u32>,
    /// The last request that used an entry: what the current one uses is pinned by its lease.
    used_by: Vec<usize>,
    vacant: Vec<EntryId>,
    evictions: u64,
    looks: u64,
}

impl Dram<'_> {
    fn present(&self, block: u32) -> bool {
        self.entry_of[block as usize].is_some()
    }

    /// Touches the block if it is present, inserts it if not.
    fn use_block(&mut self, request: usize, block: u32) {
        if let Some(entry) = self.entry_of[block as usize] {
            self.used_by[entry.0 as usize] = request;
            self.policy.touch(entry);
            return;
        }
        // A request larger than DRAM keeps what fits.
        let Some(entry) = self.vacant.pop().or_else(|| self.evict(request)) else { return };
        self.entry_of[block as usize] = Some(entry);
        self.block_of[entry.0 as usize] = block;
        self.used_by[entry.0 as usize] = request;
        self.policy.insert(entry, self.trace.hashes[block as usize]);
    }

    fn evict(&mut self, request: usize) -> Option<EntryId> {
        // What `EvictionPolicy::victim` promises: after so many searches nothing may go.
        let searches = 2 * self.policy.len().div_ceil(VICTIM_BUDGET) + 1;
        let (used_by, looks) = (&self.used_by, &mut self.looks);
        let victim = (0..searches).find_map(|_| {
            self.policy.victim(VICTIM_BUDGET, &mut |entry| {
                *looks += 1;
                used_by[entry.0 as usize] != request
            })
        })?;
        self.policy.remove(victim);
        self.entry_of[self.block_of[victim.0 as usize] as usize] = None;
        self.evictions += 1;
        Some(victim)
    }
}

fn replay(trace: &Trace, kind: PolicyKind, order: Order, percent: f64, blocks: usize) -> Row {
    let mut dram = Dram {
        trace,
        policy: kind.build(blocks),
        entry_of: vec![None; trace.hashes.len()],
        block_of: vec![0; blocks],
        used_by: vec![usize::MAX; blocks],
        vacant: (0..blocks as u32).rev().map(EntryId).collect(),
        evictions: 0,
        looks: 0,
    };
    let mut hits = 0;
    let begin = Instant::now();
    for (number, request) in trace.requests.iter().enumerate() {
        let prefix = request.iter().take_while(|block| dram.present(**block)).count();
        hits += prefix as u64;
        let (used, rest) = request.split_at(prefix);
        match order {
            Order::FromRoot => request.iter().for_each(|block| dram.use_block(number, *block)),
            Order::UsesFromLeaf => {
                used.iter().rev().chain(rest).for_each(|block| dram.use_block(number, *block))
            }
            Order::FromLeaf => request.iter().rev().for_each(|block| dram.use_block(number, *block)),
        }
    }
    let elapsed = begin.elapsed();
    assert!(dram.policy.len() <= blocks, "DRAM is never over its capacity");
    let hit_ratio = ratio(hits, trace.references);
    Row {
        policy: kind.name(),
        order,
        capacity_percent: percent,
        capacity_blocks: blocks,
        hit_ratio,
        share_of_bound: hit_ratio / ratio(trace.infinite_hits, trace.references),
        evictions: dram.evictions,
        looks_per_eviction: ratio(dram.looks, dram.evictions.max(1)),
        ns_per_reference: elapsed.as_nanos() as f64 / trace.references as f64,
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

fn table(report: &Report, capacities: &[f64]) -> String {
    let heads: String =
        capacities.iter().map(|percent| format!(" {:>7} |", format!("{percent} %"))).collect();
    let mut lines = vec![
        format!(
            "{} requests, {} block references, {} distinct blocks; infinite cache {:.4}",
            report.requests, report.block_references, report.distinct_blocks, report.infinite_hit_ratio
        ),
        "block-level prefix hit ratio by DRAM capacity; ns a block reference, all of the replay".into(),
        String::new(),
        format!("| {:<8} | {:<15} |{heads} ns/ref | looks/evict |", "policy", "order"),
        format!(
            "| -------- | --------------- |{} -----: | ----------: |",
            " ------: |".repeat(capacities.len())
        ),
    ];
    for rows in report.rows.chunk_by(|a, b| a.policy == b.policy && a.order == b.order) {
        let ratios: String = rows.iter().map(|row| format!(" {:>7.4} |", row.hit_ratio)).collect();
        let mean = |value: fn(&Row) -> f64| rows.iter().map(value).sum::<f64>() / rows.len() as f64;
        lines.push(format!(
            "| {:<8} | {:<15} |{ratios} {:>6.0} | {:>11.2} |",
            rows[0].policy,
            rows[0].order.name(),
            mean(|row| row.ns_per_reference),
            mean(|row| row.looks_per_eviction),
        ));
    }
    let ships = std::any::type_name::<DramPolicy>().rsplit("::").next().unwrap_or_default();
    lines.extend([String::new(), format!("ships: {ships}"), String::new()]);
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(requests: &[&[u64]]) -> Trace {
        let mut file = tempfile::NamedTempFile::new().expect("a file for the trace");
        for hash_ids in requests {
            writeln!(file, "{}", serde_json::json!({ "timestamp": 0, "hash_ids": hash_ids }))
                .expect("a line");
        }
        Trace::read(file.path()).expect("a trace")
    }

    #[test]
    fn with_room_for_everything_every_policy_reaches_the_bound() {
        let trace = trace(&[&[7, 1, 2], &[7, 1, 3], &[7, 4], &[7, 1, 2, 5], &[7, 1, 2, 5, 6]]);
        assert_eq!((trace.references, trace.infinite_hits, trace.hashes.len()), (17, 2 + 1 + 3 + 4, 7));
        for kind in PolicyKind::ALL {
            for order in Order::ALL {
                let row = replay(&trace, kind, order, 100.0, 7);
                assert_eq!((row.share_of_bound, row.evictions), (1.0, 0), "{} {}", row.policy, order.name());
            }
        }
    }

    #[test]
    fn a_block_behind_a_missing_one_is_no_hit_and_order_decides_which_is_missing() {
        // Room for three: one of 1, 2, 3 goes when 9 comes.
        let trace = trace(&[&[1, 2, 3], &[9], &[1, 2, 3]]);
        let hits = |order| (replay(&trace, PolicyKind::Lru, order, 0.0, 3).hit_ratio * 7.0).round();
        assert_eq!(hits(Order::FromRoot), 0.0, "the root went, its children are useless");
        assert_eq!(hits(Order::FromLeaf), 2.0, "the deepest went");
    }

    #[test]
    fn a_request_larger_than_dram_ends() {
        let trace = trace(&[&[1, 2, 3, 4, 5], &[1, 2, 3, 4, 5]]);
        for kind in PolicyKind::ALL {
            let row = replay(&trace, kind, Order::FromRoot, 0.0, 2);
            assert!((row.hit_ratio - 0.2).abs() < 1e-9, "{}: the two that fit are hits", row.policy);
        }
    }
}
