//! What a replay counted, how the counts of several engines become one, and the two forms in which
//! an operator gets them: stable JSON names and a table.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::trace::TraceShape;
use crate::cli::table::Table;
use crate::client::{Place, PrefetchOutcome};

/// Longest latency told apart, in nanoseconds.
const LATENCY_NS_MAX: u64 = 600_000_000_000;

/// `part / whole`, 0 of nothing.
pub(super) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Latencies of one operation.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies(Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("constant bounds are valid"))
    }
}

impl Latencies {
    /// Adds one.
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX).max(1));
    }

    fn add(&mut self, other: &Latencies) {
        self.0.add(&other.0).expect("equal bounds");
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// p50, p90, p99 and the largest, in microseconds.
    #[must_use]
    pub fn microseconds(&self) -> [f64; 4] {
        let at = |quantile| self.0.value_at_quantile(quantile) as f64 / 1e3;
        [at(0.5), at(0.9), at(0.99), self.0.max() as f64 / 1e3]
    }

    fn json(&self) -> Value {
        let [p50, p90, p99, max] = self.microseconds();
        json!({ "p50": p50, "p90": p90, "p99": p99, "max": max })
    }
}

/// Blocks by where they came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// This node's DRAM.
    pub dram: u64,
    /// This node's SSD.
    pub ssd: u64,
    /// A peer's DRAM.
    pub peer_dram: u64,
    /// A peer's SSD.
    pub peer_ssd: u64,
}

impl Hits {
    /// Counts a block; false if the place is none a block can come from.
    pub(super) fn count(&mut self, place: Place) -> bool {
        let counter = match place {
            Place::Dram => &mut self.dram,
            Place::Ssd => &mut self.ssd,
            Place::PeerDram => &mut self.peer_dram,
            Place::PeerSsd => &mut self.peer_ssd,
            Place::None | Place::NotExamined => return false,
        };
        *counter += 1;
        true
    }

    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.dram + self.ssd + self.peer_dram + self.peer_ssd
    }

    fn add(&mut self, other: &Hits) {
        self.dram += other.dram;
        self.ssd += other.ssd;
        self.peer_dram += other.peer_dram;
        self.peer_ssd += other.peer_ssd;
    }
}

/// What became of the blocks that had to be saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Saves {
    /// Published.
    pub committed: u64,
    /// The node had the block already (behind a gap of the prefix, or saved meanwhile).
    pub present: u64,
    /// Another engine was saving the block.
    pub being_saved: u64,
    /// Another writer's value was published first.
    pub lost: u64,
    /// No room until the bound of retries.
    pub refused: u64,
    /// The connection ended, or the node did not know the slot.
    pub failed: u64,
}

impl Saves {
    fn add(&mut self, other: &Saves) {
        self.committed += other.committed;
        self.present += other.present;
        self.being_saved += other.being_saved;
        self.lost += other.lost;
        self.refused += other.refused;
        self.failed += other.failed;
    }
}

/// Blocks of requests that were announced before they came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Announced {
    /// To be brought into DRAM, or on their way there.
    pub taken: u64,
    /// There already.
    pub present: u64,
    /// Neither on the node nor to be looked for.
    pub absent: u64,
    /// Too many at a time.
    pub refused: u64,
}

impl Announced {
    pub(super) fn count(&mut self, outcome: PrefetchOutcome) {
        *match outcome {
            PrefetchOutcome::Taken | PrefetchOutcome::Coming => &mut self.taken,
            PrefetchOutcome::Present => &mut self.present,
            PrefetchOutcome::Absent => &mut self.absent,
            PrefetchOutcome::Full | PrefetchOutcome::NoRoom => &mut self.refused,
        } += 1;
    }

    fn add(&mut self, other: &Announced) {
        self.taken += other.taken;
        self.present += other.present;
        self.absent += other.absent;
        self.refused += other.refused;
    }
}

/// Why a queried block was not read although Query had promised it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BrokenPromises {
    /// Gone between Query and Acquire.
    pub missing: u64,
    /// Seen at a peer by Query, which is a hint only, and not to be had from there.
    pub peer_missing: u64,
    /// No room in the arena or under the lease bound.
    pub busy: u64,
    /// The node found wrong bytes by its checksum and dropped them.
    pub corrupt: u64,
    /// Device error, deadline, cancelled, or the connection ended.
    pub failed: u64,
}

/// Counts of one engine, or of all.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Requests served.
    pub requests: u64,
    /// Block references of these requests.
    pub block_references: u64,
    /// Blocks that came back.
    pub hits: Hits,
    /// Blocks that did not.
    pub misses: u64,
    /// References that are neither; must be 0.
    pub unaccounted: u64,
    /// Bytes that came back different from what was saved; must be 0.
    pub wrong_bytes: u64,
    /// The first blocks with wrong bytes, for the operator.
    pub wrong_blocks: Vec<String>,
    /// Payload bytes compared.
    pub verified_bytes: u64,
    /// Payload bytes written and published.
    pub saved_bytes: u64,
    /// What became of saves.
    pub saves: Saves,
    /// Blocks announced before their request came.
    pub announced: Announced,
    /// Acquires that did not deliver what Query showed.
    pub broken_promises: BrokenPromises,
    /// Times the connection was lost.
    pub connections_lost: u64,
    /// Query, from the intended start where requests have one.
    pub query: Latencies,
    /// Acquire until the last block is ready.
    pub acquire: Latencies,
    /// Reserve, fill and commit of a request's missing blocks.
    pub save: Latencies,
    /// Time spent comparing.
    pub verifying: Duration,
    /// Time spent writing payload.
    pub filling: Duration,
}

/// Wrong blocks that are described.
pub(super) const WRONG_BLOCKS_TOLD: usize = 8;

impl Tally {
    /// Adds another engine's.
    pub fn add(&mut self, other: &Tally) {
        self.requests += other.requests;
        self.block_references += other.block_references;
        self.hits.add(&other.hits);
        self.misses += other.misses;
        self.unaccounted += other.unaccounted;
        self.wrong_bytes += other.wrong_bytes;
        let room = WRONG_BLOCKS_TOLD.saturating_sub(self.wrong_blocks.len());
        self.wrong_blocks.extend(other.wrong_blocks.iter().take(room).cloned());
        self.verified_bytes += other.verified_bytes;
        self.saved_bytes += other.saved_bytes;
        self.saves.add(&other.saves);
        self.announced.add(&other.announced);
        self.broken_promises.missing += other.broken_promises.missing;
        self.broken_promises.peer_missing += other.broken_promises.peer_missing;
        self.broken_promises.busy += other.broken_promises.busy;
        self.broken_promises.corrupt += other.broken_promises.corrupt;
        self.broken_promises.failed += other.broken_promises.failed;
        self.connections_lost += other.connections_lost;
        self.query.add(&other.query);
        self.acquire.add(&other.acquire);
        self.save.add(&other.save);
        self.verifying += other.verifying;
        self.filling += other.filling;
    }
}

/// A finished replay.
#[derive(Clone, Debug)]
pub struct Report {
    /// The trace, counted apart from the replay.
    pub shape: TraceShape,
    /// Nodes driven.
    pub nodes: usize,
    /// References that nodes would hit that never forget and know nothing of each other.
    pub hits_bound_alone: u64,
    /// Payload bytes of a block.
    pub block_bytes: u64,
    /// All engines together.
    pub tally: Tally,
    /// First request to last.
    pub elapsed: Duration,
    /// The final Sync: until what was saved is where the node keeps it.
    pub syncing: Duration,
}

impl Report {
    /// References that ended as neither hit nor miss, or that were never served.
    #[must_use]
    pub fn unaccounted(&self) -> u64 {
        let ended = self.tally.hits.total() + self.tally.misses;
        self.tally.unaccounted.max(self.shape.block_references.abs_diff(ended))
    }

    /// Whether every byte came back right and every reference is accounted for.
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.tally.wrong_bytes == 0 && self.unaccounted() == 0
    }

    fn hit_ratio(&self) -> f64 {
        ratio(self.tally.hits.total(), self.shape.block_references)
    }

    fn hit_ratio_bound_alone(&self) -> f64 {
        ratio(self.hits_bound_alone, self.shape.block_references)
    }

    fn bytes(&self) -> u64 {
        self.tally.verified_bytes + self.tally.saved_bytes
    }

    /// The stable names of chapter 1.5, and under `details` what has no promised name.
    #[must_use]
    pub fn json(&self) -> Value {
        let (tally, saves, broken) = (&self.tally, &self.tally.saves, &self.tally.broken_promises);
        let hits = &tally.hits;
        json!({
            "requests": tally.requests,
            "block_references": self.shape.block_references,
            "distinct_blocks": self.shape.distinct_blocks,
            "hits": {
                "dram": hits.dram, "ssd": hits.ssd, "peer_dram": hits.peer_dram, "peer_ssd": hits.peer_ssd,
            },
            "misses": tally.misses,
            "hit_ratio": self.hit_ratio(),
            "hit_ratio_bound": self.shape.hit_ratio_bound(),
            "wrong_bytes": tally.wrong_bytes,
            "unaccounted": self.unaccounted(),
            "bytes": self.bytes(),
            "seconds": self.elapsed.as_secs_f64(),
            "latency_us": {
                "query": tally.query.json(), "acquire": tally.acquire.json(), "save": tally.save.json(),
            },
            "details": {
                "nodes": self.nodes,
                "hit_ratio_bound_alone": self.hit_ratio_bound_alone(),
                "block_bytes": self.block_bytes,
                "verified_bytes": tally.verified_bytes,
                "saved_bytes": tally.saved_bytes,
                "saves": {
                    "committed": saves.committed, "present": saves.present, "being_saved": saves.being_saved,
                    "lost": saves.lost, "refused": saves.refused, "failed": saves.failed,
                },
                "acquired_less": {
                    "missing": broken.missing, "peer_missing": broken.peer_missing, "busy": broken.busy,
                    "corrupt": broken.corrupt, "failed": broken.failed,
                },
                "announced": {
                    "taken": tally.announced.taken, "present": tally.announced.present,
                    "absent": tally.announced.absent, "refused": tally.announced.refused,
                },
                "connections_lost": tally.connections_lost,
                "wrong_blocks": tally.wrong_blocks,
                "sync_seconds": self.syncing.as_secs_f64(),
                "verify_seconds": tally.verifying.as_secs_f64(),
                "fill_seconds": tally.filling.as_secs_f64(),
            },
        })
    }

    /// The table for people, with the verdict in its last line.
    #[must_use]
    pub fn text(&self) -> String {
        let (tally, saves, broken) = (&self.tally, &self.tally.saves, &self.tally.broken_promises);
        let references = self.shape.block_references;
        let mut blocks = Table::new(["blocks", "count", "share"]);
        let mut row = |name: &str, count: u64| {
            blocks.row([
                name.to_owned(),
                count.to_string(),
                format!("{:.2} %", 100.0 * ratio(count, references)),
            ]);
        };
        row("dram", tally.hits.dram);
        row("ssd", tally.hits.ssd);
        if self.nodes > 1 || tally.hits.peer_dram + tally.hits.peer_ssd > 0 {
            row("peer dram", tally.hits.peer_dram);
            row("peer ssd", tally.hits.peer_ssd);
        }
        row("miss", tally.misses);
        let mut latencies = Table::new(["latency, µs", "count", "p50", "p90", "p99", "max"]);
        for (name, of) in [("query", &tally.query), ("acquire", &tally.acquire), ("save", &tally.save)] {
            let figures = of.microseconds().map(|figure| format!("{figure:.0}"));
            latencies.row([name.to_owned(), of.count().to_string()].into_iter().chain(figures));
        }
        let of_bound = match self.shape.hits_bound {
            0 => String::new(),
            bound => format!(" ({:.2} % of it)", 100.0 * ratio(tally.hits.total(), bound)),
        };
        let alone = match self.nodes {
            ..=1 => String::new(),
            nodes => format!("; {nodes} infinite caches without peers {:.4}", self.hit_ratio_bound_alone()),
        };
        let seconds = self.elapsed.as_secs_f64();
        let mut lines = vec![
            format!(
                "{} requests, {references} block references, {} distinct blocks of {}",
                tally.requests,
                self.shape.distinct_blocks,
                crate::quantity::ByteSize(self.block_bytes)
            ),
            String::new(),
            blocks.to_string(),
            String::new(),
            format!(
                "hit ratio {:.4}, infinite cache {:.4}{of_bound}{alone}",
                self.hit_ratio(),
                self.shape.hit_ratio_bound()
            ),
            String::new(),
            latencies.to_string(),
            String::new(),
            format!(
                "moved {:.2} GB in {seconds:.1} s, {:.2} GB/s ({:.2} GB compared, {:.2} GB saved); sync {:.1} s",
                self.bytes() as f64 / 1e9,
                self.bytes() as f64 / 1e9 / seconds.max(1e-9),
                tally.verified_bytes as f64 / 1e9,
                tally.saved_bytes as f64 / 1e9,
                self.syncing.as_secs_f64()
            ),
            format!(
                "saves: {} committed, {} already there, {} being saved, {} lost the race, {} refused for room, \
                 {} failed",
                saves.committed, saves.present, saves.being_saved, saves.lost, saves.refused, saves.failed
            ),
        ];
        let Announced { taken, present, absent, refused } = tally.announced;
        if tally.announced != Announced::default() {
            lines.push(format!(
                "announced ahead: {taken} blocks to be brought, {present} in DRAM already, {absent} nowhere, {refused} refused"
            ));
        }
        if *broken != BrokenPromises::default() {
            lines.push(format!(
                "shown by query, not acquired: {} gone meanwhile, {} not to be had from a peer, {} no room, {} failed their \
                 checksum, {} failed",
                broken.missing, broken.peer_missing, broken.busy, broken.corrupt, broken.failed
            ));
        }
        if tally.connections_lost > 0 {
            lines.push(format!("connections lost: {}", tally.connections_lost));
        }
        lines.extend(tally.wrong_blocks.iter().map(|block| format!("wrong: {block}")));
        lines.push(format!("wrong bytes {}, unaccounted blocks {}", tally.wrong_bytes, self.unaccounted()));
        lines.push(String::new());
        lines.push(match self.is_right() {
            true => "OK: every block that came back is byte for byte what was saved".to_owned(),
            false => "FAILED: blocks came back wrong or are unaccounted for, see above".to_owned(),
        });
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut tally = Tally { requests: 2, block_references: 10, misses: 6, ..Tally::default() };
        assert!(tally.hits.count(Place::Dram) && tally.hits.count(Place::Ssd));
        assert!(!tally.hits.count(Place::NotExamined));
        let mut other = Tally { misses: 1, verified_bytes: 4096, ..Tally::default() };
        other.hits.count(Place::Ssd);
        other.query.record(Duration::from_micros(250));
        tally.add(&other);
        Report {
            shape: TraceShape { requests: 2, block_references: 10, distinct_blocks: 7, hits_bound: 3 },
            nodes: 1,
            hits_bound_alone: 3,
            block_bytes: 4096,
            tally,
            elapsed: Duration::from_secs(2),
            syncing: Duration::ZERO,
        }
    }

    #[test]
    fn the_stable_names_are_there() {
        let report = report();
        let json = report.json();
        assert_eq!(json["hits"], json!({ "dram": 1, "ssd": 2, "peer_dram": 0, "peer_ssd": 0 }));
        for (name, value) in [
            ("requests", json!(2)),
            ("block_references", json!(10)),
            ("distinct_blocks", json!(7)),
            ("misses", json!(7)),
            ("hit_ratio", json!(0.3)),
            ("hit_ratio_bound", json!(0.3)),
            ("wrong_bytes", json!(0)),
            ("unaccounted", json!(0)),
            ("bytes", json!(4096)),
            ("seconds", json!(2.0)),
        ] {
            assert_eq!(json[name], value, "{name}");
        }
        for operation in ["query", "acquire", "save"] {
            for quantile in ["p50", "p90", "p99", "max"] {
                assert!(json["latency_us"][operation][quantile].is_number(), "{operation} {quantile}");
            }
        }
        let p50 = json["latency_us"]["query"]["p50"].as_f64().unwrap();
        assert!((249.0..252.0).contains(&p50), "{p50}");
    }

    #[test]
    fn a_reference_that_nobody_counted_is_unaccounted() {
        let mut report = report();
        assert!(report.is_right() && report.text().contains("\nwrong bytes 0, unaccounted blocks 0\n"));
        report.tally.misses -= 1;
        assert_eq!((report.unaccounted(), report.is_right()), (1, false));
        assert!(report.text().ends_with("see above"));
        report.tally.misses += 1;
        report.tally.wrong_bytes = 1;
        assert!(!report.is_right());
    }
}
