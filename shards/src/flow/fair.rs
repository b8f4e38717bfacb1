//! Whose bytes go next when there are more than may go.
//!
//! Nodes share what may go: each has a count of what it was served, and only those are in question that are at most a
//! lead ahead of the one that was served least. So none gets more than its share but for that lead, however many
//! streams it has and whatever time it says it has left. Among those in question the stream goes first that has waited
//! beyond an age; then by deadline, by what is left of it, and by arrival. A node that comes, or comes back, begins
//! where the others are: having rested is no credit.

use std::collections::{BTreeMap, BTreeSet};

use orbitkv_wire::identity::NodeId;

use super::PIECE_WAIT;
use crate::payload_streams::StreamAt;
use crate::time::Moment;

/// Pieces that a node may be ahead of the one that was served least: room for deadlines to count across nodes.
pub const LEAD_PIECES: u64 = 2;

/// Deadlines that differ by less than this many nanoseconds, 67 ms, are one: what is left decides.
const DUE_GRAIN_BITS: u32 = 26;

/// A stream that has bytes to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub at: StreamAt,
    /// Who gets them.
    pub node: NodeId,
    /// When they are of no use any more.
    pub due: Moment,
    pub waiting_bytes: u64,
    /// Since when nothing of it went though it could have.
    pub since: Moment,
    /// In order of arrival, unique.
    pub number: u64,
}

/// Order of streams of a node: deadline, what is left, arrival.
type Need = (u64, u64, u64, StreamAt);

/// Order of all streams in question: aged ones by their wait, the others by need.
type Rank = (bool, u64, u64, u64, StreamAt);

#[derive(Debug)]
struct Share {
    served_bytes: u64,
    by_need: BTreeSet<Need>,
    by_wait: BTreeSet<(Moment, u64, StreamAt)>,
}

/// All streams that compete.
#[derive(Debug, Default)]
pub(super) struct Fair {
    shares: BTreeMap<NodeId, Share>,
    /// The least that anybody who competed was served.
    reached_bytes: u64,
}

impl Entry {
    fn need(&self) -> Need {
        (self.due.0 >> DUE_GRAIN_BITS, self.waiting_bytes, self.number, self.at)
    }
}

impl Fair {
    /// A stream competes.
    pub fn insert(&mut self, entry: &Entry) {
        let reached = self.reached_bytes;
        let new = || Share { served_bytes: reached, by_need: BTreeSet::new(), by_wait: BTreeSet::new() };
        let share = self.shares.entry(entry.node).or_insert_with(new);
        if share.by_need.is_empty() {
            share.served_bytes = share.served_bytes.max(reached);
        }
        let is_new = share.by_need.insert(entry.need());
        assert!(is_new && share.by_wait.insert((entry.since, entry.number, entry.at)), "it competes once");
    }

    /// A stream competes no more, or will as another entry.
    pub fn remove(&mut self, entry: &Entry) {
        let share = self.shares.get_mut(&entry.node).expect("who competes has a share");
        let was = share.by_need.remove(&entry.need());
        assert!(was && share.by_wait.remove(&(entry.since, entry.number, entry.at)), "it competes");
    }

    /// Bytes of a node go.
    pub fn on_served(&mut self, node: NodeId, bytes: u64) {
        self.shares.get_mut(&node).expect("who is served has a share").served_bytes += bytes;
    }

    /// Whose piece goes next, and whether because of its age.
    pub fn pick(&mut self, piece_bytes: u64, now: Moment) -> Option<(StreamAt, bool)> {
        let competing = self.shares.values().filter(|share| !share.by_need.is_empty());
        let least = competing.map(|share| share.served_bytes).min()?;
        self.reached_bytes = self.reached_bytes.max(least);
        // Who neither competes nor is ahead would begin where the others are.
        let reached = self.reached_bytes;
        self.shares.retain(|_, share| !share.by_need.is_empty() || share.served_bytes > reached);
        let lead = LEAD_PIECES * piece_bytes;
        let in_question = self.shares.values().filter(|share| share.served_bytes <= least + lead);
        let first = in_question.filter_map(|share| share.first(now)).min()?;
        Some((first.4, !first.0))
    }
}

impl Share {
    fn first(&self, now: Moment) -> Option<Rank> {
        let &(since, number, at) = self.by_wait.first()?;
        if now.since(since) >= PIECE_WAIT {
            return Some((false, since.0, 0, number, at));
        }
        let &(due, left, number, at) = self.by_need.first()?;
        Some((true, due, left, number, at))
    }
}
