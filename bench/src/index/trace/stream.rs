//! The rows and queries that every indexer is given, derived from a trace of conversations.
//!
//! The trace is gone through in *rounds* until there are enough rows. Each round stands for another tenant with
//! traffic of the same shape: its blocks are its own. Each request of a round lies on one owner, drawn by the
//! seed; the owner stores what it does not have of the request's blocks yet, which is the end of its chain.
//! A row is one block of one owner. Queries are whole requests of these rounds, drawn by the seed.
//!
//! This file and its neighbour `driver.rs` are compiled into the program that measures indexers of others, too, so
//! that both are given the same.

use std::fs::File;
use std::io::{BufRead, BufReader, Error, ErrorKind, Result};
use std::path::Path;

/// Rounds at most: with few owners the rows of a round are few, too.
const ROUNDS_MAX: u32 = 64;

/// Spreads a number over 64 bits: the finalizer of splitmix64.
pub fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Requests of prefix-chained blocks, numbered densely in order of appearance.
pub struct Trace {
    requests: Vec<Vec<u32>>,
    blocks: usize,
}

impl Trace {
    /// Reads a trace of JSON lines with `hash_ids`.
    ///
    /// # Errors
    /// If it cannot be read or a line is no request.
    pub fn read(path: &Path) -> Result<Trace> {
        Trace::of(BufReader::new(File::open(path)?))
    }

    fn of(lines: impl BufRead) -> Result<Trace> {
        let mut numbers = std::collections::HashMap::new();
        let mut requests = Vec::new();
        for (line, text) in (1..).zip(lines.lines()) {
            let malformed = |why: &str| Error::new(ErrorKind::InvalidData, format!("line {line} {why}"));
            let value: serde_json::Value =
                serde_json::from_str(&text?).map_err(|error| malformed(&error.to_string()))?;
            let ids = value["hash_ids"].as_array().ok_or_else(|| malformed("has no hash_ids"))?;
            let number = |id: &serde_json::Value| {
                let next = numbers.len() as u32;
                Some(*numbers.entry(id.as_u64()?).or_insert(next))
            };
            let blocks: Option<Vec<u32>> = ids.iter().map(number).collect();
            requests.push(blocks.ok_or_else(|| malformed("has a hash_id that is no number"))?);
        }
        requests.retain(|blocks| !blocks.is_empty());
        match requests.is_empty() {
            true => Err(Error::new(ErrorKind::InvalidData, "the trace has no request")),
            false => Ok(Trace { requests, blocks: numbers.len() }),
        }
    }
}

/// A request of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    round: u32,
    number: u32,
}

/// An owner stores the blocks of a request from a position on; what lies before it has already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Number of the owner, from 0.
    pub owner: u32,
    /// The request.
    pub request: Request,
    /// Position of the first block that is stored.
    pub from: u32,
}

/// The rows, in the order in which they are stored.
pub struct Stream<'a> {
    trace: &'a Trace,
    seed: u64,
    rounds: u32,
    /// What is stored.
    pub events: Vec<Stored>,
    /// Rows that this makes.
    pub rows: u64,
}

impl Stream<'_> {
    /// Goes through the trace until at least `rows` are stored, and finishes that round.
    pub fn derive(trace: &Trace, owners: u32, rows: u64, seed: u64) -> Stream<'_> {
        let mut stream = Stream { trace, seed, rounds: 0, events: Vec::new(), rows: 0 };
        // One bit for each owner and block: in one piece, which goes back to the kernel before anything is measured.
        let mut held = vec![0u64; (owners as usize * trace.blocks).div_ceil(64)];
        while stream.rows < rows && stream.rounds < ROUNDS_MAX {
            held.fill(0);
            for (number, blocks) in (0..).zip(&trace.requests) {
                let request = Request { round: stream.rounds, number };
                let owner = stream.draw(request) % owners;
                let bit = |block: u32| owner as usize * trace.blocks + block as usize;
                let is_new = |&block: &u32| held[bit(block) / 64] >> (bit(block) % 64) & 1 == 0;
                let Some(from) = blocks.iter().position(is_new) else { continue };
                for &block in &blocks[from..] {
                    held[bit(block) / 64] |= 1 << (bit(block) % 64);
                }
                stream.rows += (blocks.len() - from) as u64;
                stream.events.push(Stored { owner, request, from: from as u32 });
            }
            stream.rounds += 1;
        }
        stream
    }

    fn draw(&self, request: Request) -> u32 {
        (mix(self.seed ^ mix(u64::from(request.round) << 32 | u64::from(request.number))) >> 32) as u32
    }

    /// The query of a number.
    pub fn query(&self, number: u64) -> Request {
        let drawn = mix(!self.seed ^ mix(number));
        Request {
            round: (drawn >> 32) as u32 % self.rounds,
            number: drawn as u32 % self.trace.requests.len() as u32,
        }
    }

    /// Blocks of a request, in prefix order, each as one number that stands for the block and all before it.
    pub fn blocks(&self, request: Request, out: &mut Vec<u64>) {
        let salt = mix(self.seed ^ u64::from(request.round) << 32);
        out.clear();
        out.extend(
            self.trace.requests[request.number as usize].iter().map(|&block| mix(salt ^ u64::from(block))),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn trace() -> Trace {
        let lines = (0..40).map(|request: u64| {
            let ids: Vec<_> =
                (0..1 + request % 7).map(|at| if at < 2 { at } else { 100 * request + at }).collect();
            format!("{{\"timestamp\": 0, \"hash_ids\": {ids:?}}}\n")
        });
        Trace::of(lines.collect::<String>().as_bytes()).unwrap()
    }

    #[test]
    fn rows_are_the_distinct_blocks_of_each_owner() {
        let trace = trace();
        for owners in [1, 3, 40] {
            let stream = Stream::derive(&trace, owners, 500, 9);
            let (mut blocks, mut held, mut rows) = (Vec::new(), BTreeSet::new(), 0);
            for event in &stream.events {
                stream.blocks(event.request, &mut blocks);
                let (before, stored) = blocks.split_at(event.from as usize);
                assert!(
                    before.iter().all(|&block| held.contains(&(event.owner, block))),
                    "a chain has a beginning"
                );
                for &block in stored {
                    assert!(held.insert((event.owner, block)), "a row is stored once");
                    rows += 1;
                }
            }
            assert_eq!(stream.rows, rows);
            assert!(rows >= 500 && event_owners(&stream) <= owners as usize);
        }
    }

    fn event_owners(stream: &Stream<'_>) -> usize {
        stream.events.iter().map(|event| event.owner).collect::<BTreeSet<_>>().len()
    }

    #[test]
    fn every_query_is_held_by_one_owner_to_its_end() {
        let trace = trace();
        let stream = Stream::derive(&trace, 5, 500, 2);
        let (mut blocks, mut held) = (Vec::new(), vec![BTreeSet::new(); 5]);
        for event in &stream.events {
            stream.blocks(event.request, &mut blocks);
            held[event.owner as usize].extend(blocks.iter().copied());
        }
        for number in 0..200 {
            stream.blocks(stream.query(number), &mut blocks);
            assert!(held.iter().any(|held| blocks.iter().all(|block| held.contains(block))));
        }
    }

    #[test]
    fn the_seed_decides() {
        let trace = trace();
        let events = |seed| Stream::derive(&trace, 5, 500, seed).events;
        assert_eq!(events(4), events(4));
        assert_ne!(events(4), events(5));
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        for text in ["", "{}\n", "{\"hash_ids\": [\"a\"]}\n", "no\n", "{\"hash_ids\": []}\n"] {
            assert!(Trace::of(text.as_bytes()).is_err(), "{text}");
        }
    }
}
