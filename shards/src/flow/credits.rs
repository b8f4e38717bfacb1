//! A window of bytes, lent to holders by name.
//!
//! A holder spends what it has when its bytes come: that capacity is there again at once. What it does not spend comes
//! back by proof alone: it was returned, or nothing can come of it any more because its stream, its connection or its
//! life is over. Time is no proof. A credit that has expired is wanted by nobody, but its holder may still spend it: it
//! stays charged until the proof is there. Or else every time-out would open the window once more for bytes that still
//! come.

use std::collections::BTreeMap;
use std::fmt::Debug;

/// Whether anybody wants what a holder may spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Wanted,
    Expired,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    bytes: u64,
    standing: Standing,
}

/// Credits of one window.
#[derive(Clone, Debug)]
pub struct Credits<H> {
    capacity_bytes: u64,
    held: BTreeMap<H, Held>,
    in_use_bytes: u64,
    expired_bytes: u64,
}

impl<H: Copy + Debug + Ord> Credits<H> {
    /// A window of so many bytes, all of it free.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> Credits<H> {
        Credits { capacity_bytes, held: BTreeMap::new(), in_use_bytes: 0, expired_bytes: 0 }
    }

    /// Whether so many bytes may be lent beside what is in use. More than the whole window goes alone.
    #[must_use]
    pub fn fits(&self, bytes: u64) -> bool {
        self.in_use_bytes == 0 || self.in_use_bytes.saturating_add(bytes) <= self.capacity_bytes
    }

    /// Lends bytes to a holder that has none.
    ///
    /// # Panics
    /// If they do not fit, or it has some.
    pub fn issue(&mut self, holder: H, bytes: u64) {
        assert!(self.fits(bytes), "{bytes} bytes beside {} of {}", self.in_use_bytes, self.capacity_bytes);
        let held = self.held.insert(holder, Held { bytes, standing: Standing::Wanted });
        assert!(held.is_none(), "{holder:?} holds one credit");
        self.in_use_bytes += bytes;
        self.assert_invariants();
    }

    /// Bytes of a holder have come, or its source has said that they never will.
    ///
    /// # Panics
    /// If it has not so many.
    pub fn on_spent(&mut self, holder: H, bytes: u64) {
        let held = self.held.get_mut(&holder).expect("who spends has a credit");
        held.bytes = held.bytes.checked_sub(bytes).expect("nobody spends more than it has");
        if held.standing == Standing::Expired {
            self.expired_bytes -= bytes;
        }
        self.in_use_bytes -= bytes;
        self.assert_invariants();
    }

    /// Nobody wants what a holder may spend any more. No capacity comes back by that.
    ///
    /// # Panics
    /// If it has no credit, or it has expired before.
    pub fn expire(&mut self, holder: H) {
        let held = self.held.get_mut(&holder).expect("what expires was lent");
        assert_eq!(held.standing, Standing::Wanted, "a credit expires once");
        held.standing = Standing::Expired;
        self.expired_bytes += held.bytes;
        self.assert_invariants();
    }

    /// It is proved that a holder spends nothing any more. How many bytes it had left; they are free again.
    ///
    /// # Panics
    /// If it has no credit.
    pub fn on_proved(&mut self, holder: H) -> u64 {
        let Held { bytes, standing } = self.held.remove(&holder).expect("a credit ends once");
        if standing == Standing::Expired {
            self.expired_bytes -= bytes;
        }
        self.in_use_bytes -= bytes;
        self.assert_invariants();
        bytes
    }

    /// Bytes that a holder may still spend.
    #[must_use]
    pub fn held_by(&self, holder: H) -> u64 {
        self.held.get(&holder).map_or(0, |held| held.bytes)
    }

    /// Bytes lent.
    #[must_use]
    pub fn in_use_bytes(&self) -> u64 {
        self.in_use_bytes
    }

    /// Of those, bytes that nobody wants.
    #[must_use]
    pub fn expired_bytes(&self) -> u64 {
        self.expired_bytes
    }

    /// Holders.
    #[must_use]
    pub fn holders(&self) -> usize {
        self.held.len()
    }

    fn assert_invariants(&self) {
        assert!(self.expired_bytes <= self.in_use_bytes, "what has expired is in use");
        if cfg!(debug_assertions) {
            let sum = |of: fn(&Held) -> u64| self.held.values().map(of).sum::<u64>();
            let expired = |held: &Held| if held.standing == Standing::Expired { held.bytes } else { 0 };
            assert_eq!(sum(|held| held.bytes), self.in_use_bytes, "every byte is lent once");
            assert_eq!(sum(expired), self.expired_bytes, "what has expired is counted once");
            let whole = self.held.values().filter(|held| held.bytes > 0).count() <= 1;
            assert!(self.in_use_bytes <= self.capacity_bytes || whole, "the window is kept");
        }
    }
}
