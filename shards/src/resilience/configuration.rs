//! External configuration (chapter 5, row 19): how a node comes by its operator's settings, and what a wrong
//! value or a store that is away can do.
//!
//! A node reads the record at its own pace and keeps what it has when the store does not answer, answers
//! something that is no record, or answers an older one. It starts from its copy on disk if it must. A new
//! value goes to a part of the nodes first, chosen by a hash of the node's name, so that the same nodes are
//! first each time and a wrong value meets few of them. Settings that depend on each other are one value.

use std::time::Duration;

use crate::time::Moment;

/// Time from one reading of the store to the next (chapter 5: 30 s).
pub const REFRESH: Duration = Duration::from_secs(30);

/// Which nodes a new value is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rollout {
    /// All of them.
    AllAtOnce,
    /// Those whose place among `of` is below `admitted`.
    Staged {
        /// Places that have it.
        admitted: u32,
        /// Places there are.
        of: u32,
    },
}

/// Places of a rollout by default, of which the first has a new value first.
const PLACES: u32 = 16;

impl Default for Rollout {
    fn default() -> Self {
        Rollout::Staged { admitted: 1, of: PLACES }
    }
}

impl Rollout {
    /// The place of a node among `of`, from a hash of its name.
    ///
    /// # Panics
    /// If there are no places.
    #[must_use]
    pub fn place(hash: u64, of: u32) -> u32 {
        assert!(of > 0, "a node has a place");
        ((u128::from(hash) * u128::from(of)) >> 64) as u32
    }

    /// Whether a new value is for the node at this place.
    #[must_use]
    pub fn admits(self, place: u32) -> bool {
        match self {
            Rollout::AllAtOnce => true,
            Rollout::Staged { admitted, of } => place < admitted.min(of),
        }
    }
}

/// A record of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published<Value> {
    /// Grows with each record; an older one is never taken after a newer.
    pub version: u64,
    /// What holds for nodes that the candidate is not for.
    pub stable: Value,
    /// A new value and which nodes it is for.
    pub candidate: Option<(Value, Rollout)>,
}

impl<Value> Published<Value> {
    /// A record that is for everybody.
    #[must_use]
    pub fn settled(version: u64, value: Value) -> Published<Value> {
        Published { version, stable: value, candidate: None }
    }

    /// What holds for the node at this place.
    #[must_use]
    pub fn target(&self, place: u32) -> &Value {
        match &self.candidate {
            Some((value, rollout)) if rollout.admits(place) => value,
            _ => &self.stable,
        }
    }
}

/// Why the store gave no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchFault {
    /// It did not answer.
    Unreachable,
    /// What it has does not keep the schema.
    Malformed,
}

/// What a tick did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refresh {
    /// It was not time.
    NotDue,
    /// The record was read and is the one there was.
    Unchanged,
    /// A newer record is in use.
    Changed,
    /// Nothing was read; what there was stays.
    Kept(FetchFault),
    /// The record is older than the one in use, which stays.
    Older,
}

/// What a cache has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefreshCounters {
    /// Times the store was read.
    pub reads: u64,
    /// Times it did not answer.
    pub unreachable: u64,
    /// Times it had no record of the schema.
    pub malformed: u64,
    /// Times its record was older.
    pub older: u64,
}

/// No settings to start with: the store gave none and there is no copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store gave no settings and there is no copy of earlier ones")]
pub struct NoSettings;

/// Where a node's first settings come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The store.
    Store,
    /// The copy on disk: the last ones known to be good.
    Disk,
}

/// What a node starts with: the store's record, else the copy on disk, whichever is newer if both are there.
///
/// # Errors
/// [`NoSettings`].
pub fn first<Value>(
    store: Result<Published<Value>, FetchFault>,
    disk: Option<Published<Value>>,
) -> Result<(Published<Value>, Origin), NoSettings> {
    match (store, disk) {
        (Ok(store), Some(disk)) if disk.version > store.version => Ok((disk, Origin::Disk)),
        (Ok(store), _) => Ok((store, Origin::Store)),
        (Err(_), Some(disk)) => Ok((disk, Origin::Disk)),
        (Err(_), None) => Err(NoSettings),
    }
}

/// The settings of a node.
#[derive(Clone, Debug)]
pub struct SettingsCache<Value> {
    refresh: Duration,
    due: Moment,
    place: u32,
    record: Published<Value>,
    counters: RefreshCounters,
}

impl<Value> SettingsCache<Value> {
    /// The node at `place` has a first record, and reads the store each `refresh` from `due` on.
    ///
    /// # Panics
    /// If the time between two readings is zero.
    #[must_use]
    pub fn new(record: Published<Value>, place: u32, refresh: Duration, due: Moment) -> SettingsCache<Value> {
        assert!(!refresh.is_zero(), "reading takes time");
        SettingsCache { refresh, due, place, record, counters: RefreshCounters::default() }
    }

    /// Reads the store if it is time; readings that were missed are not made up for.
    pub fn tick(
        &mut self,
        now: Moment,
        fetch: impl FnOnce() -> Result<Published<Value>, FetchFault>,
    ) -> Refresh {
        if now < self.due {
            return Refresh::NotDue;
        }
        while self.due <= now {
            self.due = self.due + self.refresh;
        }
        self.counters.reads += 1;
        match fetch() {
            Err(fault) => {
                match fault {
                    FetchFault::Unreachable => self.counters.unreachable += 1,
                    FetchFault::Malformed => self.counters.malformed += 1,
                }
                Refresh::Kept(fault)
            }
            Ok(record) if record.version < self.record.version => {
                self.counters.older += 1;
                Refresh::Older
            }
            Ok(record) if record.version == self.record.version => Refresh::Unchanged,
            Ok(record) => {
                self.record = record;
                Refresh::Changed
            }
        }
    }

    /// The store is said to have changed: it is read at the next tick.
    pub fn hasten(&mut self, now: Moment) {
        self.due = self.due.min(now);
    }

    /// What holds for this node.
    #[must_use]
    pub fn value(&self) -> &Value {
        self.record.target(self.place)
    }

    /// The record in use, to be written to disk after [`Refresh::Changed`].
    #[must_use]
    pub fn record(&self) -> &Published<Value> {
        &self.record
    }

    /// When the store is read next.
    #[must_use]
    pub fn next_deadline(&self) -> Moment {
        self.due
    }

    /// What it has done.
    #[must_use]
    pub fn counters(&self) -> RefreshCounters {
        self.counters
    }
}

/// What polling costs and bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PollingPlan {
    /// Nodes that read.
    pub nodes: f64,
    /// Seconds between two readings of a node.
    pub refresh_s: f64,
}

impl PollingPlan {
    /// Readings of the store a second.
    #[must_use]
    pub fn reads_per_s(&self) -> f64 {
        self.nodes / self.refresh_s
    }

    /// Longest time from a new record to its use, in seconds.
    #[must_use]
    pub fn propagation_s_max(&self) -> f64 {
        self.refresh_s
    }

    /// Most requests that a wrong value answers if it is noticed and taken back after `detection_s`, at
    /// `requests_per_s`.
    #[must_use]
    pub fn faulty_max(&self, requests_per_s: f64, detection_s: f64) -> f64 {
        requests_per_s * (detection_s + self.propagation_s_max())
    }
}

#[cfg(test)]
mod tests;
