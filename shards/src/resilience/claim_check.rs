//! Claim checks (chapter 5, row 17): payload in a store, references in messages, and what goes wrong between
//! the two.
//!
//! Putting a payload and sending its reference are two writes without a common transaction. A sender that
//! ends in between leaves an *orphan*: payload that nobody will ask for. A payload that is gone before its
//! reference was followed the last time leaves it *dangling*. Both are counted as what they are, and the
//! retention decides which of them there can be: what is deleted with the first acknowledgement dangles as soon
//! as a message comes twice, what is kept for a time does not.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::time::Moment;

/// When payload leaves the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// With the first acknowledgement of its message.
    Immediate,
    /// When it has been there this long; at exactly this age it leaves.
    Lifetime(Duration),
}

/// How long payload is kept by default: longer than a message is delivered again.
pub const LIFETIME: Duration = Duration::from_secs(7 * 24 * 3_600);

impl Default for Retention {
    fn default() -> Self {
        Retention::Lifetime(LIFETIME)
    }
}

/// Where payload travels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MessageLayout {
    /// In the message itself.
    Attached,
    /// In the store; the message has a reference.
    #[default]
    Check,
}

/// Bytes of the parts of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageBytes {
    /// What every message has.
    pub event: u64,
    /// The payload.
    pub payload: u64,
    /// A reference to it.
    pub reference: u64,
}

impl MessageLayout {
    /// Bytes that a message takes in a stream.
    #[must_use]
    pub fn message_bytes(self, bytes: MessageBytes) -> u64 {
        match self {
            MessageLayout::Attached => bytes.event + bytes.payload,
            MessageLayout::Check => bytes.event + bytes.reference,
        }
    }
}

/// What a reference leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Its payload, of so many bytes.
    Found {
        /// Bytes.
        bytes: u64,
    },
    /// Nothing.
    Dangling(Dangling),
}

/// Why a reference leads to nothing. Each tells an operator something else (chapter 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dangling {
    /// Its payload was there and has left.
    RangeEnded,
    /// Who had the payload is another by now: the reference is of a life that is over.
    Superseded,
    /// Its payload never was there.
    NeverHeld,
}

/// References that were followed, by what they led to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    found: u64,
    dangling: [u64; 3],
}

impl Claims {
    /// One more was followed.
    pub fn count(&mut self, claim: Claim) {
        match claim {
            Claim::Found { .. } => self.found += 1,
            Claim::Dangling(why) => self.dangling[why as usize] += 1,
        }
    }

    /// Those that led to their payload.
    #[must_use]
    pub fn found(&self) -> u64 {
        self.found
    }

    /// Those that led to nothing for this reason.
    #[must_use]
    pub fn dangling_for(&self, why: Dangling) -> u64 {
        self.dangling[why as usize]
    }

    /// Those that led to nothing.
    #[must_use]
    pub fn dangling(&self) -> u64 {
        self.dangling.iter().sum()
    }
}

/// What the store has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClaimCounters {
    /// Payloads put.
    pub stored: u64,
    /// References followed.
    pub claims: Claims,
    /// Payloads that left by age without ever having been referred to.
    pub orphans_expired: u64,
}

#[derive(Clone, Copy, Debug)]
struct Payload {
    bytes: u64,
    is_referenced: bool,
}

/// Payloads by reference.
#[derive(Debug)]
pub struct ClaimStore<Reference> {
    retention: Retention,
    payloads: BTreeMap<Reference, Payload>,
    /// References with the moment of their payload, the oldest first; some may have left already.
    by_age: VecDeque<(Moment, Reference)>,
    bytes: u64,
    orphans: u64,
    counters: ClaimCounters,
}

impl<Reference: Copy + Ord> ClaimStore<Reference> {
    /// An empty store.
    #[must_use]
    pub fn new(retention: Retention) -> ClaimStore<Reference> {
        ClaimStore {
            retention,
            payloads: BTreeMap::new(),
            by_age: VecDeque::new(),
            bytes: 0,
            orphans: 0,
            counters: ClaimCounters::default(),
        }
    }

    /// A payload is put, before its message is sent. Until [`ClaimStore::on_sent`] it is an orphan.
    ///
    /// # Panics
    /// If the reference is in use, or `now` is before an earlier payload's.
    pub fn put(&mut self, reference: Reference, bytes: u64, now: Moment) {
        self.expire(now);
        let used = self.payloads.insert(reference, Payload { bytes, is_referenced: false });
        assert!(used.is_none(), "a reference is used once");
        if matches!(self.retention, Retention::Lifetime(_)) {
            assert!(self.by_age.back().is_none_or(|(last, _)| *last <= now), "time does not run backwards");
            self.by_age.push_back((now, reference));
        }
        self.bytes += bytes;
        self.orphans += 1;
        self.counters.stored += 1;
        self.assert_invariants();
    }

    /// Its message has been sent: somebody will follow the reference.
    pub fn on_sent(&mut self, reference: Reference) {
        if let Some(payload) = self.payloads.get_mut(&reference).filter(|payload| !payload.is_referenced) {
            payload.is_referenced = true;
            self.orphans -= 1;
        }
    }

    /// Somebody follows a reference. It was sent after its payload was put, so that one that is not there has left.
    pub fn get(&mut self, reference: Reference, now: Moment) -> Claim {
        self.expire(now);
        let claim = match self.payloads.get(&reference) {
            Some(payload) => Claim::Found { bytes: payload.bytes },
            None => Claim::Dangling(Dangling::RangeEnded),
        };
        self.counters.claims.count(claim);
        claim
    }

    /// What a reference led to has been worked on.
    pub fn on_processed(&mut self, reference: Reference) {
        if self.retention == Retention::Immediate {
            self.remove(reference);
        }
        self.assert_invariants();
    }

    /// Payload that is old enough leaves; `put` and `get` do it by themselves.
    pub fn expire(&mut self, now: Moment) {
        let Retention::Lifetime(lifetime) = self.retention else { return };
        while let Some((_, reference)) = self.by_age.front().filter(|(then, _)| now.since(*then) >= lifetime)
        {
            let reference = *reference;
            self.by_age.pop_front();
            let payload = self.remove(reference);
            self.counters.orphans_expired += u64::from(payload.is_some_and(|payload| !payload.is_referenced));
        }
    }

    /// When the next payload leaves by age.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        let Retention::Lifetime(lifetime) = self.retention else { return None };
        self.by_age.front().map(|(then, _)| *then + lifetime)
    }

    /// Payloads there are.
    #[must_use]
    pub fn payloads(&self) -> usize {
        self.payloads.len()
    }

    /// Bytes of them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Payloads there are that no message refers to.
    #[must_use]
    pub fn orphans(&self) -> u64 {
        self.orphans
    }

    /// What it has seen.
    #[must_use]
    pub fn counters(&self) -> ClaimCounters {
        self.counters
    }

    fn remove(&mut self, reference: Reference) -> Option<Payload> {
        let payload = self.payloads.remove(&reference)?;
        self.bytes -= payload.bytes;
        self.orphans -= u64::from(!payload.is_referenced);
        Some(payload)
    }

    fn assert_invariants(&self) {
        assert!(self.orphans <= self.payloads.len() as u64, "an orphan is there");
        assert!(!self.payloads.is_empty() || self.bytes == 0, "bytes are of payloads");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Moment {
        Moment(second * 1_000_000_000)
    }

    #[test]
    fn what_goes_with_the_first_acknowledgement_dangles_when_its_message_comes_again() {
        let mut store = ClaimStore::new(Retention::Immediate);
        store.put(1_u64, 100, at(0));
        store.on_sent(1);
        assert_eq!(store.get(1, at(1)), Claim::Found { bytes: 100 });
        store.on_processed(1);
        assert_eq!(store.get(1, at(2)), Claim::Dangling(Dangling::RangeEnded));
        let claims = store.counters().claims;
        assert_eq!((store.payloads(), store.bytes(), claims.found(), claims.dangling()), (0, 0, 1, 1));
    }

    #[test]
    fn by_default_a_message_that_comes_again_finds_its_payload() {
        let mut store = ClaimStore::new(Retention::default());
        store.put(1_u64, 100, at(0));
        store.on_sent(1);
        for second in 1..10 {
            assert_eq!(store.get(1, at(second)), Claim::Found { bytes: 100 });
            store.on_processed(1);
        }
        assert_eq!(store.next_deadline(), Some(at(0) + LIFETIME));
        assert_eq!(store.get(1, at(0) + LIFETIME), Claim::Dangling(Dangling::RangeEnded));
        assert_eq!(store.counters().orphans_expired, 0);
    }

    #[test]
    fn payload_whose_message_was_never_sent_is_an_orphan_until_it_leaves() {
        for retention in [Retention::Immediate, Retention::Lifetime(Duration::from_secs(5))] {
            let mut store = ClaimStore::new(retention);
            store.put(1_u64, 100, at(0));
            store.put(2, 50, at(1));
            store.on_sent(2);
            store.on_sent(2);
            assert_eq!((store.orphans(), store.bytes()), (1, 150));
            store.expire(at(5));
            let leaves = retention != Retention::Immediate;
            assert_eq!(store.orphans(), u64::from(!leaves));
            assert_eq!(store.counters().orphans_expired, u64::from(leaves));
        }
    }

    #[test]
    fn a_reference_that_leads_to_nothing_is_counted_for_its_reason() {
        let mut claims = Claims::default();
        let reasons = [Dangling::RangeEnded, Dangling::Superseded, Dangling::NeverHeld];
        for (times, why) in (1..).zip(reasons) {
            (0..times).for_each(|_| claims.count(Claim::Dangling(why)));
        }
        claims.count(Claim::Found { bytes: 1 });
        assert_eq!(reasons.map(|why| claims.dangling_for(why)), [1, 2, 3]);
        assert_eq!((claims.found(), claims.dangling()), (1, 6));
    }

    #[test]
    fn a_reference_is_what_a_stream_carries_by_default() {
        let bytes = MessageBytes { event: 220, payload: 40_000, reference: 64 };
        assert_eq!(MessageLayout::default().message_bytes(bytes), 284);
        assert_eq!(MessageLayout::Attached.message_bytes(bytes), 40_220);
    }
}
