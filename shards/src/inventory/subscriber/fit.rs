//! Whether an offered snapshot fits the index: now, later, or instead of what (chapter 2.6).
//!
//! Old and new are charged together. Room that other snapshots only claim for the moment is waited for. If
//! the new fits only in place of the old, the old is withdrawn and swept first, and the source is asked to
//! offer again. If it does not fit at all, the old stays for hints, and the like is refused until the budget
//! or the estimate has changed.
//!
//! If nothing changes, an index full of views that only snapshots can repair would stay as it is for good. So
//! what still does not fit when its time has come again, while nothing is under way, takes the place of the
//! view among these that is least fresh. Each of them is given up once, so that this ends.

use std::time::Duration;

use super::session::Phase;
use super::snapshot::{Bootstrap, planned_bytes};
use super::{StreamId, Subscriber};
use crate::index::Partition;
use crate::time::Moment;

/// How an offered snapshot fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// It does.
    Now,
    /// It may when snapshots that are on their way have ended.
    Later,
    /// It will when rows that are being removed are gone.
    Sweeping,
    /// Only in place of the present view.
    Instead,
    /// Only in place of views that cannot be repaired for want of room; this one goes first.
    InsteadOf(StreamId),
    /// The like did not fit before, and nothing has changed or not enough time has passed.
    Again { wait: Duration },
    /// It does not.
    TooLarge,
}

impl Subscriber {
    /// How a snapshot of so many rows fits.
    pub(super) fn weigh(&self, id: StreamId, rows_max: u64, partition: &Partition, now: Moment) -> Fit {
        let misfit = self.streams[&id].misfit;
        let wait = misfit.map_or(Duration::ZERO, |misfit| (misfit.at + self.settings.misfit_wait) - now);
        if !wait.is_zero() {
            return Fit::Again { wait };
        }
        // An estimate may be wrong: what has failed with as much room is not tried with it again.
        let fits = |room_bytes: u64| {
            planned_bytes(rows_max) <= room_bytes
                && !misfit.is_some_and(|misfit| misfit.repeats(rows_max, room_bytes))
        };
        let claimed_bytes = self.claimed_bytes(partition);
        let without = |rows: u64| partition.free_bytes_without(rows).saturating_sub(claimed_bytes);
        let retired_rows = partition.accounting().retired_rows;
        let own_rows = self.own_rows(id, partition);
        let others_bytes =
            |rows: u64| partition.free_bytes_without(retired_rows + self.passing_rows(partition) + rows);
        if fits(without(0)) {
            Fit::Now
        } else if fits(without(retired_rows)) {
            Fit::Sweeping
        } else if fits(others_bytes(0)) {
            Fit::Later
        } else if fits(without(retired_rows + own_rows)) {
            Fit::Instead
        } else if fits(others_bytes(own_rows)) {
            Fit::Later
        } else if misfit.is_some() && fits(without(retired_rows + self.broken_rows(partition))) {
            let wished = self.tickets.values().any(|other| *other != id);
            match self.least_fresh_broken(partition) {
                _ if wished || !self.stagings.is_empty() => Fit::Later,
                _ if retired_rows > 0 => Fit::Sweeping,
                Some(other) => Fit::InsteadOf(other),
                None => unreachable!("it is their rows that made it fit"),
            }
        } else if misfit.is_some_and(|misfit| misfit.repeats(rows_max, without(retired_rows + own_rows))) {
            Fit::Again { wait: self.settings.misfit_wait }
        } else {
            Fit::TooLarge
        }
    }

    /// Index bytes that neither rows nor accepted snapshots have a claim to.
    pub(super) fn free_bytes(&self, partition: &Partition) -> u64 {
        partition.free_bytes().saturating_sub(self.claimed_bytes(partition))
    }

    /// Index bytes that a stream can have if everything is swept and its present view goes.
    pub(super) fn room_bytes(&self, id: StreamId, partition: &Partition) -> u64 {
        let rows = partition.accounting().retired_rows + self.own_rows(id, partition);
        partition.free_bytes_without(rows).saturating_sub(self.claimed_bytes(partition))
    }

    /// Index bytes that accepted snapshots may still take.
    fn claimed_bytes(&self, partition: &Partition) -> u64 {
        let claims = self.stagings.iter().map(|id| match self.streams[id].session().map(|s| &s.phase) {
            Some(Phase::Bootstrapping(Bootstrap::Staging(staging))) => {
                staging.outstanding_bytes(partition.view_rows(staging.view))
            }
            _ => unreachable!("a staging is of a session"),
        });
        claims.sum()
    }

    /// Rows that may go when the accepted snapshots end, whichever way they do.
    fn passing_rows(&self, partition: &Partition) -> u64 {
        let rows = self.stagings.iter().map(|id| match self.streams[id].session().map(|s| &s.phase) {
            Some(Phase::Bootstrapping(Bootstrap::Staging(staging))) => {
                u64::from(partition.view_rows(staging.view)) + self.own_rows(*id, partition)
            }
            _ => unreachable!("a staging is of a session"),
        });
        rows.sum()
    }

    /// Rows of a stream's present view.
    fn own_rows(&self, id: StreamId, partition: &Partition) -> u64 {
        self.streams[&id].view.map_or(0, |view| u64::from(partition.view_rows(view.id)))
    }

    /// Rows of views that only snapshots can repair.
    fn broken_rows(&self, partition: &Partition) -> u64 {
        let broken = self.streams.values().filter_map(|stream| stream.view_beyond_repair());
        broken.map(|view| u64::from(partition.view_rows(view.id))).sum()
    }

    /// The stream whose view is the least fresh of those that have rows.
    fn least_fresh_broken(&self, partition: &Partition) -> Option<StreamId> {
        let broken = self.streams.iter().filter(|(_, stream)| {
            stream.view_beyond_repair().is_some_and(|view| partition.view_rows(view.id) > 0)
        });
        broken.min_by_key(|(id, stream)| (stream.freshness.fresh_at(), **id)).map(|(id, _)| *id)
    }
}
