//! How many of the expected streams have what, kept up with every change of a stream, so that coverage
//! costs no walk over the members.

use std::collections::BTreeSet;

use super::StreamId;
use crate::coverage::Standing;
use crate::time::Moment;

/// What a stream has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holding {
    /// No view.
    Bare,
    /// A view that is good for hints only: its stream is broken, repairing, or applying a large frame.
    Stale,
    /// A view that is whole at its watermark, in a live session.
    Whole,
}

/// What of a stream has been counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tally {
    pub holding: Holding,
    /// When its view was fresh.
    pub fresh_at: Moment,
}

/// The counts.
#[derive(Debug, Default)]
pub(super) struct Census {
    holdings: [usize; 3],
    /// Streams with a view, the least fresh first.
    views: BTreeSet<(Moment, StreamId)>,
}

impl Census {
    /// A stream has changed; `None` is a stream that is not expected.
    pub fn change(&mut self, stream: StreamId, before: Option<Tally>, after: Option<Tally>) {
        if before == after {
            return;
        }
        if let Some(before) = before {
            self.holdings[before.holding as usize] -= 1;
            if before.holding != Holding::Bare {
                assert!(self.views.remove(&(before.fresh_at, stream)), "what was counted is there");
            }
        }
        if let Some(after) = after {
            self.holdings[after.holding as usize] += 1;
            if after.holding != Holding::Bare {
                self.views.insert((after.fresh_at, stream));
            }
        }
    }

    /// Streams expected.
    pub fn expected(&self) -> usize {
        self.holdings.iter().sum()
    }

    /// Streams with this holding.
    pub fn count(&self, holding: Holding) -> usize {
        self.holdings[holding as usize]
    }

    /// When the least fresh view was fresh.
    pub fn oldest(&self) -> Option<Moment> {
        self.views.first().map(|(fresh_at, _)| *fresh_at)
    }

    /// How far the streams are; `fresh_since` is when the freshness budget begins.
    pub fn standing(&self, fresh_since: Moment) -> Standing {
        let whole = self.count(Holding::Whole) == self.expected();
        match self.oldest() {
            _ if self.expected() == 0 => Standing::NoneExpected,
            None => Standing::NoneInstalled,
            Some(oldest) if whole && oldest >= fresh_since => Standing::Complete,
            Some(_) => Standing::Partial,
        }
    }
}
