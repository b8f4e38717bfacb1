//! The ledger that makes an operation sent twice happen once (chapters 1.3 and 5, row 15).
//!
//! An operation is known by the sender's key for it. While it runs, a repeat is told so; when it has
//! been answered, a repeat gets the same bytes again. Answers leave the ledger by age and by bytes,
//! oldest first. A repeat that comes after that runs again, and is counted: it is the one case that a
//! bounded ledger cannot suppress, and an operator should see it before it matters.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use orbitkv_wire::bounds::REQUESTS_IN_FLIGHT_MAX;

use crate::time::Moment;

/// Keys of forgotten answers that are kept, so that late repeats can be counted.
pub const FORGOTTEN_KEYS_MAX: usize = 1_024;

/// Bounds of a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerSettings {
    /// Bytes of answers kept, each charged with [`Ledger::ENTRY_BYTES`] beside its own.
    pub bytes_max: usize,
    /// An answer of this age is no longer given; at exactly this age it is over.
    pub age_max: Duration,
    /// Operations that may run at a time.
    pub in_flight_max: usize,
}

impl Default for LedgerSettings {
    fn default() -> Self {
        LedgerSettings {
            bytes_max: 4 * 1024 * 1024,
            age_max: Duration::from_secs(60),
            in_flight_max: REQUESTS_IN_FLIGHT_MAX,
        }
    }
}

/// What to do with an operation that has come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin<'a> {
    /// Run it, then [`Ledger::finish`] or [`Ledger::abandon`] it.
    Fresh,
    /// It is running; its answer will come.
    InFlight,
    /// It was answered with these bytes: send them again.
    Answered(&'a [u8]),
    /// Its key was used for something else: the sender's fault.
    Mismatch,
    /// As many operations run as may.
    Full,
}

/// What the ledger has seen and done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LedgerCounters {
    /// Operations run.
    pub fresh: u64,
    /// Repeats that were told to wait or were answered from the ledger.
    pub suppressed: u64,
    /// Keys used for two different things.
    pub mismatches: u64,
    /// Operations refused because too many ran.
    pub full: u64,
    /// Repeats that came when their answer had been forgotten, and ran again.
    pub expired_hits: u64,
    /// Answers forgotten because of their age.
    pub evicted_by_age: u64,
    /// Answers forgotten because of the bytes.
    pub evicted_by_bytes: u64,
}

/// What an operation is: which one, and of what content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Content {
    operation: u8,
    digest: u64,
}

#[derive(Debug)]
enum Entry {
    InFlight(Content),
    Answered(Content, Box<[u8]>),
}

impl Entry {
    fn content(&self) -> Content {
        match self {
            Entry::InFlight(content) | Entry::Answered(content, _) => *content,
        }
    }
}

/// The operations of one connection or peer, by key: a request id, or whatever tells them apart.
#[derive(Debug)]
pub struct Ledger<Key = u64> {
    settings: LedgerSettings,
    entries: BTreeMap<Key, Entry>,
    /// Answered keys with the moment of their answer, oldest first.
    answered: VecDeque<(Key, Moment)>,
    /// Keys whose answers have left, oldest first, and the same as a set.
    forgotten: VecDeque<Key>,
    forgotten_set: BTreeSet<Key>,
    in_flight: usize,
    bytes: usize,
    bytes_peak: usize,
    counters: LedgerCounters,
}

impl<Key: Copy + Ord> Ledger<Key> {
    /// What an answer is charged beside its bytes: its key in tree and queue, its entry, and the room
    /// that a tree's nodes, at least half full, leave empty.
    pub const ENTRY_BYTES: usize = 2 * (size_of::<Key>() + size_of::<Entry>()) + size_of::<(Key, Moment)>();

    /// An empty ledger.
    ///
    /// # Panics
    /// If nothing may run.
    #[must_use]
    pub fn new(settings: LedgerSettings) -> Self {
        assert!(settings.in_flight_max > 0, "a ledger lets at least one operation run");
        Ledger {
            settings,
            entries: BTreeMap::new(),
            answered: VecDeque::new(),
            forgotten: VecDeque::new(),
            forgotten_set: BTreeSet::new(),
            in_flight: 0,
            bytes: 0,
            bytes_peak: 0,
            counters: LedgerCounters::default(),
        }
    }

    /// The most bytes that a ledger of these settings takes, for the memory bill.
    #[must_use]
    pub fn table_bytes(settings: &LedgerSettings) -> usize {
        settings.bytes_max
            + settings.in_flight_max * Self::ENTRY_BYTES
            + FORGOTTEN_KEYS_MAX * 3 * size_of::<Key>()
    }

    /// An operation has come in. `digest` is of its content, so that a key used twice is not taken for
    /// a repeat; 0 for an operation without content.
    pub fn begin(&mut self, key: Key, operation: u8, digest: u64, now: Moment) -> Begin<'_> {
        self.expire(now);
        let content = Content { operation, digest };
        if self.entries.contains_key(&key) {
            let entry = &self.entries[&key];
            if entry.content() != content {
                self.counters.mismatches += 1;
                return Begin::Mismatch;
            }
            self.counters.suppressed += 1;
            return match entry {
                Entry::InFlight(_) => Begin::InFlight,
                Entry::Answered(_, answer) => Begin::Answered(answer),
            };
        }
        if self.in_flight == self.settings.in_flight_max {
            self.counters.full += 1;
            return Begin::Full;
        }
        self.counters.fresh += 1;
        if self.forgotten_set.contains(&key) {
            self.counters.expired_hits += 1;
        }
        self.entries.insert(key, Entry::InFlight(content));
        self.in_flight += 1;
        self.assert_invariants();
        Begin::Fresh
    }

    /// A running operation was answered with these bytes.
    ///
    /// # Panics
    /// If it is not running, or `now` is before an earlier answer.
    pub fn finish(&mut self, key: Key, answer: &[u8], now: Moment) {
        self.expire(now);
        let entry = self.entries.get_mut(&key).expect("only what runs is finished");
        assert!(matches!(entry, Entry::InFlight(_)), "an operation is finished once");
        assert!(self.answered.back().is_none_or(|(_, last)| *last <= now), "time does not run backwards");
        *entry = Entry::Answered(entry.content(), answer.into());
        self.in_flight -= 1;
        self.bytes += answer.len() + Self::ENTRY_BYTES;
        self.answered.push_back((key, now));
        while self.bytes > self.settings.bytes_max {
            self.forget_oldest();
            self.counters.evicted_by_bytes += 1;
        }
        self.bytes_peak = self.bytes_peak.max(self.bytes);
        self.assert_invariants();
    }

    /// A running operation ended without an answer worth repeating (cancelled, or refused as busy):
    /// sent again, it runs again.
    ///
    /// # Panics
    /// If it is not running.
    pub fn abandon(&mut self, key: Key) {
        let entry = self.entries.remove(&key);
        assert!(matches!(entry, Some(Entry::InFlight(_))), "only what runs is abandoned");
        self.in_flight -= 1;
        self.assert_invariants();
    }

    /// Forgets answers that have come of age; `begin` and `finish` do it by themselves.
    pub fn expire(&mut self, now: Moment) {
        while (self.answered.front()).is_some_and(|(_, then)| now.since(*then) >= self.settings.age_max) {
            self.forget_oldest();
            self.counters.evicted_by_age += 1;
        }
    }

    /// When the next answer comes of age.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        self.answered.front().map(|(_, then)| *then + self.settings.age_max)
    }

    /// Operations running.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Answers kept.
    #[must_use]
    pub fn answers(&self) -> usize {
        self.answered.len()
    }

    /// Bytes charged for the answers kept.
    #[must_use]
    pub fn bytes_used(&self) -> usize {
        self.bytes
    }

    /// The most bytes that were ever charged.
    #[must_use]
    pub fn bytes_peak(&self) -> usize {
        self.bytes_peak
    }

    /// What it has seen and done.
    #[must_use]
    pub fn counters(&self) -> &LedgerCounters {
        &self.counters
    }

    fn forget_oldest(&mut self) {
        let (key, _) = self.answered.pop_front().expect("bytes are of answers");
        match self.entries.remove(&key) {
            Some(Entry::Answered(_, answer)) => self.bytes -= answer.len() + Self::ENTRY_BYTES,
            _ => unreachable!("what is queued as answered is answered"),
        }
        if self.forgotten_set.insert(key) {
            self.forgotten.push_back(key);
            if self.forgotten.len() > FORGOTTEN_KEYS_MAX {
                let oldest = self.forgotten.pop_front().expect("not empty");
                self.forgotten_set.remove(&oldest);
            }
        }
    }

    fn assert_invariants(&self) {
        assert!(self.in_flight <= self.settings.in_flight_max, "what runs keeps its bound");
        assert!(self.bytes <= self.settings.bytes_max, "answers keep their bound");
        assert_eq!(self.entries.len(), self.in_flight + self.answered.len(), "each runs or is answered");
        assert_eq!(self.forgotten.len(), self.forgotten_set.len(), "forgotten once");
        if cfg!(debug_assertions) && self.entries.len() <= 64 {
            let charged: usize = (self.entries.values())
                .map(|entry| match entry {
                    Entry::InFlight(_) => 0,
                    Entry::Answered(_, answer) => answer.len() + Self::ENTRY_BYTES,
                })
                .sum();
            assert_eq!(charged, self.bytes, "bytes are conserved");
        }
    }
}

#[cfg(test)]
mod tests;
