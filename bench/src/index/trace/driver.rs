//! How any indexer is measured on a stream: one way for all.
//!
//! Whatever an indexer is given is made before its time begins, in batches small enough to stay in the caches.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::stream::{Stored, Stream};

/// Events that are made ahead.
const EVENTS_AHEAD: usize = 64;

/// Queries that are made ahead.
const QUERIES_AHEAD: usize = 32;

/// Answers that are checked.
const QUERIES_CHECKED: u64 = 1_000;

/// An index of who has which blocks.
pub trait Indexer {
    /// What it takes for [`Stored`].
    type Event;
    /// What it takes for a query.
    type Query;

    /// Its form of an event, of which all blocks of the request are given.
    fn event(&mut self, stored: Stored, blocks: &[u64]) -> Self::Event;

    /// Applies events and returns when they are applied.
    fn apply(&mut self, events: Vec<Self::Event>);

    /// Its form of a query.
    fn query(&mut self, blocks: &[u64]) -> Self::Query;

    /// Answers a query, and says by a number how much it found, so that nothing of it is left out.
    fn answer(&mut self, query: Self::Query) -> u64;

    /// How many blocks of a query it knows an owner of, as far as its answer tells.
    fn known(&mut self, query: Self::Query) -> usize;

    /// Rows and bytes by its own account, if it keeps one.
    fn account(&self) -> Value {
        Value::Null
    }
}

/// Bytes of this process that are in memory.
///
/// # Panics
/// If the kernel does not say.
pub fn rss_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("a process has a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process has memory");
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().expect("the kernel writes a number");
    kilobytes << 10
}

/// Loads the stream, then asks at most `queries`, for at most `time`.
pub fn measure<I: Indexer>(
    stream: &Stream<'_>,
    make: impl FnOnce() -> I,
    queries: u64,
    time: Duration,
) -> Value {
    let rss_before = rss_bytes();
    let mut indexer = make();
    let mut blocks = Vec::new();
    let mut loading = Duration::ZERO;
    for stored in stream.events.chunks(EVENTS_AHEAD) {
        let made = |&stored: &Stored| {
            stream.blocks(stored.request, &mut blocks);
            indexer.event(stored, &blocks)
        };
        let events: Vec<_> = stored.iter().map(made).collect();
        let started = Instant::now();
        indexer.apply(events);
        loading += started.elapsed();
    }
    let bytes = rss_bytes().saturating_sub(rss_before);

    for number in queries..queries + QUERIES_CHECKED {
        stream.blocks(stream.query(number), &mut blocks);
        let query = indexer.query(&blocks);
        assert_eq!(indexer.known(query), blocks.len(), "one owner has all blocks of a query");
    }

    let (mut asked, mut asked_blocks, mut asking, mut found) = (0, 0, Duration::ZERO, 0u64);
    let mut latencies = Vec::new();
    for (turn, first) in (0..queries).step_by(QUERIES_AHEAD).enumerate() {
        let made: Vec<_> = (first..first + QUERIES_AHEAD as u64)
            .map(|number| {
                stream.blocks(stream.query(number), &mut blocks);
                (indexer.query(&blocks), blocks.len())
            })
            .collect();
        // The rate is taken over whole batches, single queries are timed in turn with them.
        if turn % 2 == 0 {
            asked += made.len() as u64;
            asked_blocks += made.iter().map(|(_, blocks)| *blocks as u64).sum::<u64>();
            let started = Instant::now();
            for (query, _) in made {
                found = found.wrapping_add(indexer.answer(query));
            }
            asking += started.elapsed();
        } else {
            for (query, _) in made {
                let started = Instant::now();
                found = found.wrapping_add(indexer.answer(query));
                latencies.push(started.elapsed().as_nanos() as u64);
            }
        }
        if asking > time && !latencies.is_empty() {
            break;
        }
    }
    std::hint::black_box(found);
    latencies.sort_unstable();
    let quantile = |permille: usize| latencies[(latencies.len() - 1) * permille / 1_000] as f64 / 1e3;
    json!({
        "rows": stream.rows,
        "events": stream.events.len(),
        "load_rows_per_second": stream.rows as f64 / loading.as_secs_f64(),
        "rss_bytes_a_row": bytes as f64 / stream.rows as f64,
        "queries": asked,
        "blocks_a_query": asked_blocks as f64 / asked as f64,
        "queries_per_second": asked as f64 / asking.as_secs_f64(),
        "query_p50_us": quantile(500),
        "query_p99_us": quantile(990),
        "account": indexer.account(),
    })
}
