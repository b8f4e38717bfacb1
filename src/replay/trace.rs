//! The trace: Mooncake's JSONL, one request a line, read with bounds and with the line's number in
//! every error; and what an infinite cache would make of it.

use std::collections::HashSet;
use std::io::{self, BufRead, Read};

use orbitkv_wire::bounds::QUERY_HASHES_MAX;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Longest line accepted: several times what [`QUERY_HASHES_MAX`] ids can need.
pub const LINE_BYTES_MAX: usize = 1024 * 1024;

const _: () = assert!(LINE_BYTES_MAX > QUERY_HASHES_MAX * 22 + 4096, "a full request fits a line");

/// Latest arrival accepted, in milliseconds: above it the type does not tell two of them apart, and it is 285,000 years.
const TIMESTAMP_MS_MAX: f64 = (1u64 << 53) as f64;

/// One request of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TraceRequest {
    /// Arrival, in milliseconds since the trace began.
    pub timestamp: f64,
    /// Tokens of the prompt.
    #[serde(default)]
    pub input_length: u64,
    /// Tokens generated.
    #[serde(default)]
    pub output_length: u64,
    /// Numbers of the prompt's blocks, in prefix order. The same number is the same block after
    /// the same blocks.
    pub hash_ids: Vec<u64>,
}

/// Why a trace was not read.
#[derive(Debug, Error)]
pub enum TraceError {
    /// Reading failed.
    #[error("line {line}: {error}")]
    Read {
        /// Line, from 1.
        line: usize,
        /// The kernel's answer.
        error: io::Error,
    },
    /// A line is over the bound.
    #[error("line {line} has more than {LINE_BYTES_MAX} bytes: a trace has one JSON object a line")]
    LineTooLong {
        /// Line, from 1.
        line: usize,
    },
    /// A line is no request.
    #[error(
        "line {line} is no request: {reason}; expected an object like {{\"timestamp\": 0, \"hash_ids\": [0, 1]}}"
    )]
    Malformed {
        /// Line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A request is longer than one Query may be.
    #[error("line {line} names {count} blocks: a request has at most {QUERY_HASHES_MAX}")]
    TooManyBlocks {
        /// Line, from 1.
        line: usize,
        /// Blocks named.
        count: usize,
    },
    /// There is no request.
    #[error("the trace has no request")]
    Empty,
}

/// Reads at most `limit` requests.
///
/// # Errors
/// [`TraceError`] with the line; nothing of a faulty trace is used.
pub fn read_trace(mut input: impl BufRead, limit: usize) -> Result<Vec<TraceRequest>, TraceError> {
    let mut requests = Vec::new();
    let mut bytes = Vec::new();
    for line in 1.. {
        if requests.len() == limit {
            break;
        }
        bytes.clear();
        let bounded = (&mut input).take(LINE_BYTES_MAX as u64 + 1);
        let read = { bounded }.read_until(b'\n', &mut bytes);
        let read = read.map_err(|error| TraceError::Read { line, error })?;
        if read == 0 {
            break;
        }
        if read > LINE_BYTES_MAX {
            return Err(TraceError::LineTooLong { line });
        }
        if !bytes.trim_ascii().is_empty() {
            requests.push(parse(&bytes, line)?);
        }
    }
    if requests.is_empty() { Err(TraceError::Empty) } else { Ok(requests) }
}

fn parse(bytes: &[u8], line: usize) -> Result<TraceRequest, TraceError> {
    let malformed = |reason: String| TraceError::Malformed { line, reason };
    let request: TraceRequest =
        serde_json::from_slice(bytes).map_err(|error| malformed(error.to_string()))?;
    if !(0.0..=TIMESTAMP_MS_MAX).contains(&request.timestamp) {
        return Err(malformed(format!(
            "timestamp {:e} is not a time: it has 0 to 2^53 milliseconds",
            request.timestamp
        )));
    }
    let count = request.hash_ids.len();
    if count > QUERY_HASHES_MAX {
        return Err(TraceError::TooManyBlocks { line, count });
    }
    Ok(request)
}

/// What a trace asks for, and the most any cache could give.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceShape {
    /// Requests.
    pub requests: u64,
    /// Blocks named, each time they are named.
    pub block_references: u64,
    /// Blocks that differ.
    pub distinct_blocks: u64,
    /// References that lie in a request's longest prefix of blocks seen in earlier requests:
    /// what a cache that never forgets would hit.
    pub hits_bound: u64,
}

impl TraceShape {
    /// Counts a trace, in its order.
    #[must_use]
    pub fn of<'a>(requests: impl Iterator<Item = &'a TraceRequest>) -> TraceShape {
        let mut seen = HashSet::new();
        let mut shape = TraceShape::default();
        for request in requests {
            let known = request.hash_ids.iter().take_while(|id| seen.contains(*id)).count();
            shape.requests += 1;
            shape.block_references += request.hash_ids.len() as u64;
            shape.hits_bound += known as u64;
            seen.extend(request.hash_ids.iter().copied());
        }
        shape.distinct_blocks = seen.len() as u64;
        shape
    }

    /// Share of references that an infinite cache would hit.
    #[must_use]
    pub fn hit_ratio_bound(&self) -> f64 {
        super::report::ratio(self.hits_bound, self.block_references)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, limit: usize) -> Result<Vec<TraceRequest>, TraceError> {
        read_trace(text.as_bytes(), limit)
    }

    #[test]
    fn the_public_format_is_read_and_unknown_fields_are_left() {
        let text = "{\"timestamp\": 0, \"input_length\": 9, \"output_length\": 2, \"hash_ids\": [0, 1]}\n\n\
                    {\"hash_ids\": [], \"timestamp\": 1.5, \"session\": {\"x\": [1]}}";
        let requests = read(text, 10).unwrap();
        assert_eq!((requests.len(), requests[0].input_length), (2, 9));
        assert_eq!((&requests[0].hash_ids[..], requests[1].timestamp), (&[0, 1][..], 1.5));
        assert_eq!(read(text, 1).unwrap().len(), 1);
    }

    #[test]
    fn errors_name_the_line() {
        let good = "{\"timestamp\": 0, \"hash_ids\": [1]}\n";
        for (bad, part) in [
            ("{\"timestamp\": 0}", "hash_ids"),
            ("{\"timestamp\": -1, \"hash_ids\": []}", "timestamp -1e0 is not a time"),
            ("{\"timestamp\": 1e300, \"hash_ids\": []}", "timestamp 1e300 is not a time"),
            ("{\"timestamp\": 0, \"hash_ids\": [-1]}", "-1"),
            ("[]", "line 3"),
            ("{\"timestamp\": 0, \"hash_ids\": [1]", "EOF"),
        ] {
            let error = read(&format!("{good}\n{bad}\n{good}"), 10).unwrap_err().to_string();
            assert!(error.starts_with("line 3") && error.contains(part), "{error}");
        }
        assert!(matches!(read("\n\n", 10), Err(TraceError::Empty)));
        let long = format!("{good}{}", " ".repeat(LINE_BYTES_MAX + 1));
        assert!(matches!(read(&long, 10), Err(TraceError::LineTooLong { line: 2 })));
        let many = format!("{{\"timestamp\": 0, \"hash_ids\": {:?}}}", vec![0; QUERY_HASHES_MAX + 1]);
        assert!(matches!(read(&many, 10), Err(TraceError::TooManyBlocks { line: 1, count: 16_385 })));
        let full = format!("{{\"timestamp\": 0, \"hash_ids\": {:?}}}", vec![u64::MAX; QUERY_HASHES_MAX]);
        assert_eq!(read(&full, 10).unwrap()[0].hash_ids.len(), QUERY_HASHES_MAX);
    }

    #[test]
    fn the_bound_is_what_a_prefix_cache_could_hit() {
        let request = |ids: &[u64]| TraceRequest {
            timestamp: 0.0,
            input_length: 0,
            output_length: 0,
            hash_ids: ids.to_vec(),
        };
        let shape = TraceShape::of([request(&[1, 2]), request(&[1, 2, 3]), request(&[9, 2])].iter());
        let expected = TraceShape { requests: 3, block_references: 7, distinct_blocks: 4, hits_bound: 2 };
        assert_eq!(shape, expected, "block 2 behind the unknown 9 is no prefix hit");
    }
}
