//! Looks at all nodes again and again: memory, processor time, queues and sessions, a line of JSON each into a file.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use orbitkv::cli::http_client::HttpClient;
use orbitkv::control::metadata::MetadataPage;
use orbitkv_native::clock::monotonic_ns;
use serde::Serialize;

use super::growth::Point;
use super::load::rest_until;
use super::seats::{Seat, Told, Trouble};
use crate::{Failure, processes};

/// Longest silence of a node that is looked at.
const ANSWER_WAIT: Duration = Duration::from_secs(2);

/// A node at a moment. Figures of a node that is struck, or does not answer, are those of the kernel alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sample {
    /// When, in seconds since the cell began.
    pub at_s: f64,
    /// Which node.
    pub node: usize,
    /// How often it was started again.
    pub life: u32,
    /// Resident bytes.
    pub rss_bytes: u64,
    /// Processor time of its process, in seconds.
    pub processor_s: f64,
    /// What it has said it would take.
    pub bill_bytes: Option<u64>,
    /// Bytes of frames that wait for peers.
    pub queue_bytes: Option<u64>,
    /// Records by which the rearmost peer is behind.
    pub lag_records: Option<u64>,
    /// Inventory sessions, served and received.
    pub sessions: Option<u64>,
    /// Rows of its index.
    pub index_rows: Option<u64>,
    /// Accepted blocks that it found lost, since its process began.
    pub lost_writes: Option<u64>,
    /// Blocks of peers that had another checksum than their source told.
    pub wrong_checksums: Option<u64>,
}

impl Sample {
    /// The point of its memory.
    pub fn point(&self) -> Point {
        Point { life: self.life, at_s: self.at_s, bytes: self.rss_bytes as f64 }
    }
}

/// Looks until everybody is to stop, and once more then.
pub fn watch(
    seats: &[Seat],
    period: Duration,
    file: &Path,
    stop: &AtomicBool,
    trouble: &Trouble,
) -> Vec<Sample> {
    let mut samples = Vec::new();
    if let Err(failure) = write(seats, period, file, stop, trouble, &mut samples) {
        trouble.tell(Told::of(&format!("the sampler, {}", file.display()), &failure));
    }
    samples
}

fn write(
    seats: &[Seat],
    period: Duration,
    file: &Path,
    stop: &AtomicBool,
    trouble: &Trouble,
    samples: &mut Vec<Sample>,
) -> Result<(), Failure> {
    let mut file = BufWriter::new(File::create(file)?);
    let began_ns = monotonic_ns();
    let mut next_ns = began_ns;
    loop {
        let goes_on = rest_until(next_ns, stop, trouble);
        for (node, seat) in seats.iter().enumerate() {
            let at_s = (monotonic_ns() - began_ns) as f64 / 1e9;
            if let Some(sample) = look(node, seat, at_s) {
                serde_json::to_writer(&mut file, &sample)?;
                file.write_all(b"\n")?;
                samples.push(sample);
            }
        }
        file.flush()?;
        if !goes_on {
            return Ok(());
        }
        next_ns = (next_ns + period.as_nanos() as u64).max(monotonic_ns());
    }
}

/// A look at one node; nothing if its process is gone.
fn look(node: usize, seat: &Seat, at_s: f64) -> Option<Sample> {
    let place = seat.place();
    let rss_bytes = processes::resident_bytes(place.process).ok().filter(|bytes| *bytes > 0)?;
    let processor_s = processes::processor_time(place.process).ok()?.as_secs_f64();
    let sample = Sample { at_s, node, life: place.life, rss_bytes, processor_s, ..Sample::default() };
    let page = match seat.is_dark() {
        true => None,
        false => page(&place.http),
    };
    Some(match page {
        Some(page) => told(sample, &page),
        None => sample,
    })
}

fn page(http: &str) -> Option<MetadataPage> {
    let http = HttpClient::new(http).ok()?.with_patience(ANSWER_WAIT);
    http.get_as("/cache/metadata").ok().map(|(page, _)| page)
}

fn told(sample: Sample, page: &MetadataPage) -> Sample {
    let peers = || page.shards.iter().filter_map(|shard| shard.peers.as_ref());
    Sample {
        bill_bytes: Some(page.memory.bill_bytes),
        queue_bytes: Some(peers().map(|peers| peers.queue_bytes).sum()),
        lag_records: Some(peers().map(|peers| peers.lag_records_max).max().unwrap_or(0)),
        sessions: Some(page.sessions),
        index_rows: Some(page.index.rows),
        lost_writes: Some(page.shards.iter().map(|shard| shard.ssd.lost_writes).sum()),
        wrong_checksums: Some(peers().map(|peers| peers.fetching.wrong_checksums).sum()),
        ..sample
    }
}

#[cfg(test)]
mod tests {
    use orbitkv::control::metadata::Memory;
    use orbitkv::control::report::{FetchingReport, PeersReport, ShardReport, SsdReport};

    use super::*;

    #[test]
    fn a_page_is_added_up_over_its_shards() {
        let shard = |queue_bytes, lag_records_max, lost_writes, wrong_checksums| ShardReport {
            ssd: SsdReport { lost_writes, ..Default::default() },
            peers: Some(PeersReport {
                queue_bytes,
                lag_records_max,
                fetching: FetchingReport { wrong_checksums, ..Default::default() },
                ..Default::default()
            }),
            ..Default::default()
        };
        let page = MetadataPage {
            sessions: 4,
            memory: Memory { bill_bytes: 9, ..Default::default() },
            shards: vec![shard(1, 5, 1, 0), shard(2, 3, 1, 2)],
            ..Default::default()
        };
        let sample = told(Sample { rss_bytes: 8, ..Sample::default() }, &page);
        let expected = Sample {
            rss_bytes: 8,
            bill_bytes: Some(9),
            queue_bytes: Some(3),
            lag_records: Some(5),
            sessions: Some(4),
            index_rows: Some(0),
            lost_writes: Some(2),
            wrong_checksums: Some(2),
            ..Sample::default()
        };
        assert_eq!(sample, expected);
    }
}
