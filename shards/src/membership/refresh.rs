//! How a node finds out that a peer is another life than it takes it for, apart from the watch (chapter 4, *wrong
//! guesses*): what of etcd is read, and when.
//!
//! | policy | before a peer is asked | when something contradicts what is known of it |
//! | --- | --- | --- |
//! | look-up | its record is read | its record is read |
//! | redirect | nothing | its record is read |
//! | hybrid | nothing | all members are read, once for all that is contradicted by then |
//!
//! The hybrid one ships; the others are there to be measured against it. What is read decides under each of them: what
//! a refusal says of a successor admits nobody.

use std::collections::{BTreeMap, VecDeque};

use orbitkv_wire::identity::{NodeId, ShardIndex};

use super::pace::{Pace, PauseBounds};
use crate::time::Moment;

/// Which of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RefreshPolicy {
    /// Look up first.
    Lookup,
    /// Send, and be redirected.
    Redirect,
    /// Cache, and read the whole map again when refused.
    #[default]
    Hybrid,
}

/// What a core asks a peer for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LookupPurpose {
    /// A session of its inventory.
    Inventory,
    /// Blocks.
    Payload,
}

/// Who wants records to be looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Asker {
    /// The core.
    pub core: ShardIndex,
    /// What for.
    pub purpose: LookupPurpose,
}

/// A record that is to be read before its node is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupWish {
    /// The node.
    pub node: NodeId,
    /// Who asks.
    pub asker: Asker,
    /// Number of the asker's wish, ascending.
    pub ticket: u64,
}

/// A record has been read, and what it says is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupDone {
    /// The node.
    pub node: NodeId,
    /// Who waited for it, each with its last wish that was there before the read began.
    pub through: BTreeMap<Asker, u64>,
}

/// A read of one record that is under way.
#[derive(Debug)]
pub(super) struct Lookup {
    pub node: NodeId,
    number: u64,
    /// What etcd had answered with when it began: the answer may not be older.
    pub revision: u64,
    through: BTreeMap<Asker, u64>,
}

/// Reads of single records: one at a time, in the order of wishes, one for all wishes of a node that are there when it
/// begins.
#[derive(Debug)]
pub(super) struct Lookups {
    queue: VecDeque<NodeId>,
    /// Of those in the queue.
    wishes: BTreeMap<NodeId, BTreeMap<Asker, u64>>,
    under_way: Option<Lookup>,
    pace: Pace,
    done: u64,
}

impl Lookups {
    pub fn new(bounds: PauseBounds, jitter: u64, now: Moment) -> Lookups {
        let (queue, wishes) = (VecDeque::new(), BTreeMap::new());
        Lookups { queue, wishes, under_way: None, pace: Pace::new(bounds, jitter, now), done: 0 }
    }

    /// The record of a node is to be read, for whoever asks or for a doubt. A read that is under way may have begun too
    /// early for that.
    pub fn want(&mut self, node: NodeId, wish: Option<(Asker, u64)>) {
        let wishes = self.wishes.entry(node).or_insert_with(|| {
            self.queue.push_back(node);
            BTreeMap::new()
        });
        wishes.extend(wish);
    }

    /// Whether a read could begin, if it is time.
    pub fn is_wanted(&self) -> bool {
        self.under_way.is_none() && !self.queue.is_empty()
    }

    /// When it may.
    pub fn due(&self) -> Moment {
        self.pace.due()
    }

    /// Whether it may now.
    pub fn is_due(&self, now: Moment) -> bool {
        self.is_wanted() && self.pace.is_due(now)
    }

    /// Begins the next read, under this number: of whose record.
    ///
    /// # Panics
    /// If none is wanted.
    pub fn begin(&mut self, number: u64, revision: u64) -> NodeId {
        assert!(self.under_way.is_none(), "one at a time");
        let node = self.queue.pop_front().expect("a read is wanted");
        let through = self.wishes.remove(&node).expect("who is in the queue has wishes");
        self.under_way = Some(Lookup { node, number, revision, through });
        node
    }

    /// The read of this number, if it is the one under way, which it is no more.
    pub fn end(&mut self, number: u64) -> Option<Lookup> {
        self.under_way.take_if(|lookup| lookup.number == number)
    }

    /// It was answered.
    pub fn succeed(&mut self, lookup: Lookup) -> LookupDone {
        self.pace.succeed();
        self.done += 1;
        LookupDone { node: lookup.node, through: lookup.through }
    }

    /// It was not: it is the next one again, after a pause.
    pub fn retry(&mut self, lookup: Lookup, now: Moment) {
        self.pace.fail(now);
        if !self.wishes.contains_key(&lookup.node) {
            self.queue.push_front(lookup.node);
        }
        let wishes = self.wishes.entry(lookup.node).or_default();
        for (asker, ticket) in lookup.through {
            // Later wishes wait for the same read.
            let last = wishes.entry(asker).or_default();
            *last = ticket.max(*last);
        }
    }

    /// Reads that were answered.
    pub fn done(&self) -> u64 {
        self.done
    }

    pub fn assert_invariants(&self) {
        assert_eq!(self.queue.len(), self.wishes.len(), "who has wishes is in the queue, once");
        debug_assert!(self.queue.iter().all(|node| self.wishes.contains_key(node)));
    }
}
