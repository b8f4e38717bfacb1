//! How many of the expected streams have what, kept up with every change of a stream, so that neither coverage
//! nor what an answer leaves out costs a walk over the members.

use std::collections::BTreeMap;

use super::StreamId;
use crate::coverage::Standing;
use crate::resilience::degradation::{Degrader, Have, Part, Served};
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
#[derive(Debug)]
pub(super) struct Census {
    degrader: Degrader,
    holdings: [usize; 3],
    /// Streams with a view, the least fresh first.
    views: BTreeMap<(Moment, StreamId), Holding>,
    lapsed: Lapsed,
}

/// Views that were too old when they were last looked at. Time alone makes none of them young again, so whoever looks
/// later goes on behind them.
#[derive(Clone, Copy, Debug, Default)]
struct Lapsed {
    looked: Moment,
    /// What was fresh before this moment only was too old.
    before: Moment,
    /// Whole ones among them.
    whole: usize,
}

impl Census {
    /// Of no stream. `degrader` says which views are too old to prove absence.
    pub fn new(degrader: Degrader) -> Census {
        Census { degrader, holdings: [0; 3], views: BTreeMap::new(), lapsed: Lapsed::default() }
    }

    /// A stream has changed; `None` is a stream that is not expected.
    pub fn change(&mut self, stream: StreamId, before: Option<Tally>, after: Option<Tally>) {
        if before == after {
            return;
        }
        if let Some(before) = before {
            self.holdings[before.holding as usize] -= 1;
            if before.holding != Holding::Bare {
                let counted = self.views.remove(&(before.fresh_at, stream));
                assert_eq!(counted, Some(before.holding), "what was counted is there");
                self.lapsed.whole -= usize::from(self.has_lapsed(before));
            }
        }
        if let Some(after) = after {
            self.holdings[after.holding as usize] += 1;
            if after.holding != Holding::Bare {
                self.views.insert((after.fresh_at, stream), after.holding);
                self.lapsed.whole += usize::from(self.has_lapsed(after));
            }
        }
    }

    /// Whether a view is among those of which it is known that they are whole and too old.
    fn has_lapsed(&self, tally: Tally) -> bool {
        tally.holding == Holding::Whole && tally.fresh_at < self.lapsed.before
    }

    /// Whether a view that was fresh then is too old now.
    fn is_too_old(&self, fresh_at: Moment, now: Moment) -> bool {
        self.degrader.serve(&Part::hint(Have::Remembered(now - fresh_at))) == Served::Missing
    }

    /// Looks at the views that have become too old since they were looked at last.
    fn look(&self, now: Moment) -> Lapsed {
        let known = if now >= self.lapsed.looked { self.lapsed } else { Lapsed::default() };
        let mut lapsed = Lapsed { looked: now, ..known };
        for (&(fresh_at, _), holding) in self.views.range((known.before, StreamId(0))..) {
            if !self.is_too_old(fresh_at, now) {
                break;
            }
            lapsed.before = Moment(fresh_at.0.saturating_add(1));
            lapsed.whole += usize::from(*holding == Holding::Whole);
        }
        lapsed
    }

    /// Remembers which views are too old by now. Each is looked at once for each time that it was fresh.
    pub fn note_time(&mut self, now: Moment) {
        if now > self.lapsed.looked {
            self.lapsed = self.look(now);
        }
    }

    /// Streams expected.
    pub fn expected(&self) -> usize {
        self.holdings.iter().sum()
    }

    /// When the least fresh view was fresh.
    pub fn oldest(&self) -> Option<Moment> {
        self.views.first_key_value().map(|((fresh_at, _), _)| *fresh_at)
    }

    /// Streams of which an answer can count on nothing but hints, if on anything: there is no view, it is of no single
    /// moment, or it is too old.
    pub fn left_out(&self, now: Moment) -> usize {
        let [bare, stale, _] = self.holdings;
        bare + stale + self.look(now).whole
    }

    /// How far the streams are, with so many left out.
    pub fn standing(&self, left_out: usize) -> Standing {
        match (self.expected(), left_out) {
            (0, _) => Standing::NoneExpected,
            _ if self.views.is_empty() => Standing::NoneInstalled,
            (_, 0) => Standing::Complete,
            _ => Standing::Partial,
        }
    }
}

#[cfg(test)]
mod tests;
