//! Whether a block that a peer has sent stays in DRAM (chapter 3.7). Its slot is a real reservation; what it costs is
//! what must leave for it.
//!
//! A peer has it, so what is lost with it is a fetch. What is lost with a block of our own is a read, if it is on SSD as well,
//! and else all there is of it here. Both are compared over one horizon: the time for which ours was not used. In it the
//! sent one is expected to be used as often as it was so far, and ours once at most.

use std::time::Duration;

use crate::time::Moment;

/// What it costs to compute a block again, in fetches of one. Prefill takes tens of milliseconds for what a peer sends in
/// one or two.
pub const RECOMPUTE_PRICE: u32 = 32;

/// What becomes of blocks that peers have sent, once they have been used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retention {
    /// They stay and leave like any other.
    Keep,
    /// They stay while there is room, and leave before what would be lost with its last copy here, unless they are used
    /// so often that fetching them again would cost more.
    #[default]
    Weigh,
    /// They leave with their last user.
    Drop,
}

/// How a block was used since it came into DRAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// When it came.
    pub since: Moment,
    /// When it was last of use to anybody.
    pub last: Moment,
    /// Acquires it was given to.
    pub uses: u32,
}

impl Usage {
    /// Of a block that has just come.
    #[must_use]
    pub const fn new(now: Moment) -> Usage {
        Usage { since: now, last: now, uses: 0 }
    }
}

/// A block of our own that is to leave DRAM next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnBlock {
    /// For how long nobody has used it.
    pub idle: Duration,
    /// Whether this node has it on SSD too.
    pub is_safe: bool,
}

/// A block that a peer has sent and that could leave in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchedBlock {
    /// For how long it is here.
    pub age: Duration,
    /// Acquires it was given to after the first.
    pub reuses: u32,
}

/// Which of two blocks leaves DRAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    /// The block of our own.
    Own,
    /// The block that a peer has sent.
    Fetched,
}

impl Retention {
    /// Which of both leaves: ours, which the order of eviction has come to, or the one that a peer has sent.
    #[must_use]
    pub fn leaves(self, own: OwnBlock, fetched: FetchedBlock) -> Leaves {
        let benefit = u128::from(fetched.reuses) * own.idle.as_nanos();
        let cost = u128::from(RECOMPUTE_PRICE) * fetched.age.as_nanos();
        match self {
            Retention::Keep => Leaves::Own,
            Retention::Drop => Leaves::Fetched,
            // A read or a fetch: the order knows best which of them comes sooner.
            Retention::Weigh if own.is_safe || benefit > cost => Leaves::Own,
            Retention::Weigh => Leaves::Fetched,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_is_nowhere_else_outweighs_a_fetch_unless_that_would_be_needed_far_more_often() {
        let own = |idle, is_safe| OwnBlock { idle: SECOND * idle, is_safe };
        let fetched = |age, reuses| FetchedBlock { age: SECOND * age, reuses };
        for (own, fetched, expected) in [
            (own(100, false), fetched(1, 0), Leaves::Fetched),
            (own(0, false), fetched(0, 0), Leaves::Fetched),
            (own(0, true), fetched(0, 0), Leaves::Own),
            (own(1, true), fetched(100, 0), Leaves::Own),
            // Once a second here, against one use in 32 seconds at most that would cost 32 times as much.
            (own(32, false), fetched(10, 10), Leaves::Fetched),
            (own(33, false), fetched(10, 10), Leaves::Own),
            (own(3, false), fetched(10, 100), Leaves::Fetched),
            (own(4, false), fetched(10, 100), Leaves::Own),
        ] {
            assert_eq!(Retention::Weigh.leaves(own, fetched), expected, "{own:?} {fetched:?}");
            assert_eq!(Retention::Keep.leaves(own, fetched), Leaves::Own);
            assert_eq!(Retention::Drop.leaves(own, fetched), Leaves::Fetched);
        }
    }

    #[test]
    fn the_horizon_has_no_overflow() {
        let own = OwnBlock { idle: Duration::MAX, is_safe: false };
        let fetched = FetchedBlock { age: Duration::MAX, reuses: u32::MAX };
        assert_eq!(Retention::Weigh.leaves(own, fetched), Leaves::Own);
    }
}
