//! Keys of the ledger (chapter 5, row 15): what makes two deliveries the same one.
//!
//! The [`Ledger`] suppresses what comes twice under one key. A key that says too
//! little suppresses work that is new; a key that says more than the sender repeats suppresses nothing. What a
//! key has is therefore a decision of its own, made here once, and it is the narrowest one by default: who is
//! acted on, on which medium, and which residence of it, with who asked and as what.

use std::time::Duration;

use crate::ledger::{Begin, Ledger, LedgerSettings};
use crate::time::Moment;

/// What tells two deliveries apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyScope {
    /// What is acted on alone: everything after the first thing done to it is taken for a repeat.
    Subject,
    /// And the state that it is brought into: a state that is entered twice is taken for a repeat.
    State,
    /// And the occurrence: only a second delivery of the very same thing is one.
    #[default]
    Occurrence,
}

/// The parts of an operation's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity<Subject> {
    /// What is acted on: a state key of a sender's life.
    pub subject: Subject,
    /// The state it is brought into: the operation and the medium.
    pub state: u32,
    /// Which time: the sequence of the residence, or the sender's own number.
    pub occurrence: u64,
}

/// A key of a [`Ledger`]: an [`Identity`] as far as a [`KeyScope`] looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopedKey<Subject> {
    subject: Subject,
    state: Option<u32>,
    occurrence: Option<u64>,
}

impl KeyScope {
    /// Every scope, the widest first.
    pub const ALL: [KeyScope; 3] = [KeyScope::Subject, KeyScope::State, KeyScope::Occurrence];

    /// The key of an operation.
    #[must_use]
    pub fn key<Subject>(self, identity: Identity<Subject>) -> ScopedKey<Subject> {
        ScopedKey {
            subject: identity.subject,
            state: (self >= KeyScope::State).then_some(identity.state),
            occurrence: (self >= KeyScope::Occurrence).then_some(identity.occurrence),
        }
    }
}

/// What to do with a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// It is the first: do it.
    Process,
    /// It has been done.
    Suppress,
}

/// Suppresses deliveries that come twice and are done at once when they come: a [`Ledger`] that keeps keys
/// and no answers.
#[derive(Debug)]
pub struct Processor<Subject: Copy + Ord> {
    scope: KeyScope,
    ledger: Ledger<ScopedKey<Subject>>,
}

impl<Subject: Copy + Ord> Processor<Subject> {
    /// Nothing has been delivered.
    #[must_use]
    pub fn new(scope: KeyScope, settings: LedgerSettings) -> Processor<Subject> {
        Processor { scope, ledger: Ledger::new(settings) }
    }

    /// One of these deliveries has come.
    pub fn on_delivery(&mut self, identity: Identity<Subject>, now: Moment) -> Delivery {
        let key = self.scope.key(identity);
        match self.ledger.begin(key, 0, 0, now) {
            Begin::Fresh => {
                self.ledger.finish(key, &[], now);
                Delivery::Process
            }
            Begin::Answered(_) => Delivery::Suppress,
            other => unreachable!("each is finished before the next, and none has content: {other:?}"),
        }
    }

    /// The ledger, for its figures.
    #[must_use]
    pub fn ledger(&self) -> &Ledger<ScopedKey<Subject>> {
        &self.ledger
    }
}

/// Bounds that never forget: for counting, not for a service.
#[must_use]
pub fn unbounded() -> LedgerSettings {
    LedgerSettings { bytes_max: usize::MAX, age_max: Duration::MAX, ..LedgerSettings::default() }
}

/// What a ledger of keys takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LedgerPrice {
    /// Keyed operations a day.
    pub keys_per_day: f64,
    /// Hours that a key is kept.
    pub window_h: f64,
    /// Bytes of a record.
    pub record_bytes: f64,
}

impl LedgerPrice {
    /// Records at any time.
    #[must_use]
    pub fn records(&self) -> f64 {
        self.keys_per_day * self.window_h / 24.0
    }

    /// Bytes of them.
    #[must_use]
    pub fn bytes(&self) -> f64 {
        self.records() * self.record_bytes
    }
}

/// What asking a ledger does to a store: each keyed write is a read before and a second row after.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StoreLoad {
    /// Writes a second.
    pub writes: f64,
    /// Reads a second.
    pub reads: f64,
}

impl StoreLoad {
    /// The same with a ledger in front of the writes.
    #[must_use]
    pub fn with_ledger(&self) -> StoreLoad {
        StoreLoad { writes: self.writes + self.writes, reads: self.reads + self.writes }
    }

    /// Writes for each read.
    #[must_use]
    pub fn writes_per_read(&self) -> f64 {
        self.writes / self.reads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(state: u32, occurrence: u64) -> Identity<u8> {
        Identity { subject: 7, state, occurrence }
    }

    #[test]
    fn a_scope_too_wide_suppresses_what_is_new() {
        let deliveries = [(1, 1), (2, 2), (2, 3), (3, 4), (3, 4)];
        let processed = |scope| {
            let mut processor = Processor::new(scope, LedgerSettings::default());
            let mut done = deliveries.iter().filter(|(state, occurrence)| {
                processor.on_delivery(identity(*state, *occurrence), Moment(0)) == Delivery::Process
            });
            done.by_ref().count()
        };
        assert_eq!(processed(KeyScope::Subject), 1);
        assert_eq!(processed(KeyScope::State), 3);
        assert_eq!(processed(KeyScope::default()), 4);
    }

    #[test]
    fn subjects_do_not_get_into_each_others_way() {
        let mut processor = Processor::new(KeyScope::Subject, LedgerSettings::default());
        let of = |subject| Identity { subject, state: 1, occurrence: 1 };
        assert_eq!(processor.on_delivery(of(1_u8), Moment(0)), Delivery::Process);
        assert_eq!(processor.on_delivery(of(2), Moment(0)), Delivery::Process);
        assert_eq!(processor.on_delivery(of(1), Moment(0)), Delivery::Suppress);
    }

    #[test]
    fn the_default_forgets_by_age_and_bytes_and_counts_who_comes_too_late() {
        let settings = LedgerSettings::default();
        let mut processor = Processor::new(KeyScope::default(), settings);
        processor.on_delivery(identity(1, 0), Moment(0));
        let late = Moment(0) + settings.age_max;
        assert_eq!(processor.on_delivery(identity(1, 0), late), Delivery::Process);
        assert_eq!(processor.ledger().counters().expired_hits, 1);
        for occurrence in 0..200_000 {
            processor.on_delivery(identity(2, occurrence), late);
        }
        assert!(processor.ledger().bytes_used() <= settings.bytes_max);
        assert!(processor.ledger().counters().evicted_by_bytes > 0);
    }

    #[test]
    fn without_bounds_nothing_is_forgotten() {
        let mut processor = Processor::new(KeyScope::default(), unbounded());
        for occurrence in 0..50_000 {
            processor.on_delivery(identity(1, occurrence), Moment(0));
        }
        assert_eq!(processor.on_delivery(identity(1, 0), Moment(u64::MAX)), Delivery::Suppress);
        assert_eq!(processor.ledger().answers(), 50_000);
    }

    #[test]
    fn a_ledger_costs_its_window_and_a_row_for_each_write() {
        let price = LedgerPrice { keys_per_day: 2_400.0, window_h: 12.0, record_bytes: 72.0 };
        assert_eq!((price.records(), price.bytes()), (1_200.0, 86_400.0));
        let load = StoreLoad { writes: 4.0, reads: 2.0 };
        assert_eq!(load.with_ledger(), StoreLoad { writes: 8.0, reads: 6.0 });
        assert_eq!(load.writes_per_read(), 2.0);
    }
}
