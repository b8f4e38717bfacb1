//! A journal that overflows on purpose: whoever stands still meanwhile needs another snapshot of its owner.

use std::time::{Duration, Instant};

use orbitkv::cli::http_client::HttpClient;
use orbitkv::control::metadata::MetadataPage;
use orbitkv::control::signals::StopSignals;

use super::keys::Keys;
use super::owner::Owner;
use super::pause;
use crate::Failure;

/// Changes of a burst: few enough that its blocks find room beside the others.
const BURST_CHANGES: u64 = 512;
/// Bursts between two looks at the journal: a burst is a few milliseconds.
const BURSTS_PER_LOOK: usize = 8;
/// How many times what a journal holds has to have gone on: what is on its way to the one that stands still comes to it
/// without the journal. That is a window of 1 MiB at most, so fewer than 32,768 changes, each with a hash of 32 bytes; the
/// least journal, 1 MiB, has 23,831 records of 44 bytes.
const JOURNALS: u64 = 2;

/// Lets the owner of that number change as fast as it can until its node's journal no longer has what follows `applied`,
/// nor what follows that which may be on its way; whether it came to that in the time. `changed` is told keys and changes after each burst.
///
/// # Errors
/// If the node does not take the changes, or a signal comes.
pub fn until(
    (at, owner): (usize, &mut Owner),
    http: &HttpClient,
    applied: u64,
    longest: Duration,
    mut changed: impl FnMut(&Keys, u64),
    signals: &StopSignals,
) -> Result<bool, Failure> {
    let began = Instant::now();
    while began.elapsed() < longest {
        pause(Duration::ZERO, signals)?;
        for _ in 0..BURSTS_PER_LOOK {
            owner.burst(at, BURST_CHANGES, 0)?;
            changed(owner.keys(), BURST_CHANGES);
        }
        let (page, _): (MetadataPage, _) = http.get_as("/cache/metadata")?;
        if is_gone(&page, applied) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a journal begins that far behind a sequence.
fn is_gone(page: &MetadataPage, applied: u64) -> bool {
    page.shards.iter().any(|shard| {
        let (oldest, head) = (shard.journal.oldest_sequence, shard.journal.head_sequence);
        oldest > applied + 1 + JOURNALS * (head - oldest + 1)
    })
}

#[cfg(test)]
mod tests {
    use orbitkv::control::report::{JournalReport, ShardReport};

    use super::*;

    #[test]
    fn history_is_gone_once_the_next_record_is_even_for_one_with_a_full_window() {
        let page = |oldest_sequence, head_sequence| {
            let journal = JournalReport { oldest_sequence, head_sequence, ..Default::default() };
            MetadataPage { shards: vec![ShardReport { journal, ..Default::default() }], ..Default::default() }
        };
        // It holds 100 records.
        assert!(!is_gone(&page(211, 310), 10), "record 211 is the next one behind 200 on their way");
        assert!(is_gone(&page(212, 311), 10));
        assert!(!is_gone(&page(1, 100), 0));
    }
}
