//! What a simulated shard holds: a plain ordered table, and the journal and the truth kept in step with
//! it. It stands for the residency rooms, whose place in a node is elsewhere.

use std::collections::{BTreeMap, VecDeque};

use orbitkv_shards::inventory::publisher::{Residence, Residences};
use orbitkv_shards::journal::{Journal, JournalSettings};
use orbitkv_shards::key::StateKey;
use orbitkv_shards::namespaces::Namespaces;
use orbitkv_shards::time::Moment;
use orbitkv_wire::identity::{Incarnation, Medium, NamespaceDigest, Sequence, ShardIndex};

use crate::canary::Canary;
use crate::counters::{Counter, Counters};
use crate::random::Random;
use crate::truth::{KeyId, StreamName, TrueChange, Truth};

/// Residents that are walked to find one of chance: every seed without a scale has fewer.
const WALKED_MAX: usize = 4_096;

/// Puts that are looked at for one that has not ended, before the table is walked after all.
const VICTIM_TRIES: usize = 32;

#[derive(Clone, Copy, Debug)]
struct Held {
    name: KeyId,
    bytes: u32,
    /// Nothing while a new life has not put it again.
    sequence: Option<Sequence>,
}

/// The residents of one shard, with their history.
pub struct Stock {
    stream: StreamName,
    held: BTreeMap<(StateKey, Medium), Held>,
    /// In the order of their puts, some ended already.
    oldest: VecDeque<(StateKey, Medium)>,
    /// Residents that a new life has to put again.
    again: VecDeque<(StateKey, Medium)>,
    /// The history.
    pub journal: Journal,
    canary: Option<Canary>,
}

impl Stock {
    /// An empty shard in the life of this name.
    #[must_use]
    pub fn new(
        node: u16,
        incarnation: Incarnation,
        shard: ShardIndex,
        journal: JournalSettings,
        canary: Option<Canary>,
        truth: &mut Truth,
    ) -> Stock {
        let stream = StreamName { node, incarnation, shard };
        truth.begin(stream);
        let (held, oldest, again) = (BTreeMap::new(), VecDeque::new(), VecDeque::new());
        Stock { stream, held, oldest, again, journal: Journal::new(journal), canary }
    }

    /// The stream that its journal is.
    #[must_use]
    pub fn stream(&self) -> StreamName {
        self.stream
    }

    /// Residences.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Whether every resident has been put in this life.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.again.is_empty()
    }

    /// Whether the block is there.
    #[must_use]
    pub fn holds(&self, key: &StateKey, medium: Medium) -> bool {
        self.held.contains_key(&(*key, medium))
    }

    /// Puts a block that is not there.
    #[expect(clippy::too_many_arguments, reason = "each is another thing, and there is one caller or two")]
    pub fn put(
        &mut self,
        key: StateKey,
        name: KeyId,
        medium: Medium,
        bytes: u32,
        namespaces: &mut Namespaces,
        truth: &mut Truth,
        counters: &mut Counters,
        now: Moment,
    ) {
        namespaces.retain(key.namespace);
        let sequence = self.append_put(key, name, medium, bytes, truth, counters, now);
        let held = Held { name, bytes, sequence: Some(sequence) };
        assert!(self.held.insert((key, medium), held).is_none(), "a block is put where it is absent");
        self.oldest.push_back((key, medium));
    }

    #[expect(clippy::too_many_arguments, reason = "each is another thing, and there is one caller or two")]
    fn append_put(
        &mut self,
        key: StateKey,
        name: KeyId,
        medium: Medium,
        bytes: u32,
        truth: &mut Truth,
        counters: &mut Counters,
        now: Moment,
    ) -> Sequence {
        let sequence = self.journal.append_put(key, medium, bytes);
        let noted = truth.begin(self.stream).note(TrueChange { key: name, medium, bytes }, now);
        assert_eq!(sequence, noted, "journal and truth count alike");
        counters.count(match medium {
            Medium::Dram => Counter::PutDram,
            Medium::Ssd => Counter::PutSsd,
        });
        counters.add(Counter::GroupZero, u64::from(key.group.0 == 0));
        sequence
    }

    /// Ends a residence, if it is there.
    pub fn delete(
        &mut self,
        key: StateKey,
        medium: Medium,
        namespaces: &mut Namespaces,
        truth: &mut Truth,
        counters: &mut Counters,
        now: Moment,
    ) -> bool {
        let Some(held) = self.held.remove(&(key, medium)) else { return false };
        namespaces.release(key.namespace);
        if held.sequence.is_some() {
            let sequence = self.journal.append_delete(key, medium);
            let noted = truth.begin(self.stream).note(TrueChange { key: held.name, medium, bytes: 0 }, now);
            assert_eq!(sequence, noted, "journal and truth count alike");
            counters.count(Counter::Delete);
        }
        true
    }

    /// The residence that has been there longest, or one of chance.
    pub fn victim(&mut self, random: &mut Random) -> Option<(StateKey, Medium)> {
        if random.chance(500) {
            while let Some(oldest) = self.oldest.pop_front() {
                if self.held.contains_key(&oldest) {
                    return Some(oldest);
                }
            }
        }
        if self.held.len() > WALKED_MAX {
            // By its put, and not by its place in the table, which would be walked.
            for _ in 0..VICTIM_TRIES {
                let chosen = self.oldest[random.index(self.oldest.len())];
                if self.held.contains_key(&chosen) {
                    return Some(chosen);
                }
            }
        }
        let skip = random.index(self.held.len());
        self.held.keys().nth(skip).copied()
    }

    /// Every residence of a namespace.
    #[must_use]
    pub fn of_namespace(&self, digest: &NamespaceDigest, namespaces: &Namespaces) -> Vec<(StateKey, Medium)> {
        let Some(id) = namespaces.get(digest) else { return Vec::new() };
        self.held.keys().filter(|(key, _)| key.namespace == id).copied().collect()
    }

    /// A new life: the history is empty, and everything has to be put again.
    pub fn restart(&mut self, incarnation: Incarnation, truth: &mut Truth) {
        self.journal.restart();
        self.stream.incarnation = incarnation;
        truth.begin(self.stream);
        self.again = self.held.keys().copied().collect();
        self.held.values_mut().for_each(|held| held.sequence = None);
    }

    /// Puts some residents again.
    pub fn settle(&mut self, slice: usize, truth: &mut Truth, counters: &mut Counters, now: Moment) {
        for _ in 0..slice {
            let Some((key, medium)) = self.again.pop_front() else { break };
            // What ended before its turn needs no delete.
            let Some(&Held { name, bytes, sequence: None }) = self.held.get(&(key, medium)) else { continue };
            let sequence = self.append_put(key, name, medium, bytes, truth, counters, now);
            self.held.get_mut(&(key, medium)).expect("it was just there").sequence = Some(sequence);
            counters.count(Counter::PutAgain);
        }
    }
}

impl Residences for Stock {
    fn after(&self, cursor: Option<(StateKey, Medium)>) -> impl Iterator<Item = Residence> {
        use std::ops::Bound::{Excluded, Unbounded};
        let (skips, lies) = (self.canary == Some(Canary::ScanSkips), self.canary == Some(Canary::ScanLies));
        let from = cursor.map_or(Unbounded, Excluded);
        self.held.range((from, Unbounded)).filter_map(move |(&(key, medium), held)| {
            let sequence = held.sequence?;
            let wrong = sequence.0 % 7 == 3;
            let sequence = if lies && wrong { Sequence(sequence.0 - 1) } else { sequence };
            (!(skips && wrong)).then_some(Residence { key, medium, bytes: held.bytes, sequence })
        })
    }

    fn len_max(&self) -> u64 {
        self.held.len() as u64
    }
}
