//! When a stream is dialed: after a jittered pause that grows with failures, and never more than a few
//! at a time (chapter 2.10).

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use super::{StreamId, SubscriberSettings};
use crate::resilience::retry::Backoff;

/// Dials that nobody has answered, and streams that wait for their turn.
#[derive(Debug, Default)]
pub(super) struct Dials {
    pending: BTreeSet<StreamId>,
    queue: VecDeque<StreamId>,
}

impl Dials {
    /// A stream wants to be dialed.
    pub fn push(&mut self, stream: StreamId) {
        self.queue.push_back(stream);
    }

    /// The next stream to dial, if another dial may be pending. It may have ended meanwhile.
    pub fn pop(&mut self, dials_max: usize) -> Option<StreamId> {
        if self.pending.len() >= dials_max { None } else { self.queue.pop_front() }
    }

    /// A dial begins.
    pub fn begin(&mut self, stream: StreamId) {
        assert!(self.pending.insert(stream), "a stream is dialed once at a time");
    }

    /// A dial was answered, for a stream that may have ended meanwhile. False if there was none.
    pub fn end(&mut self, stream: StreamId) -> bool {
        self.pending.remove(&stream)
    }

    /// Dials not answered.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Whether a dial could begin now.
    pub fn is_due(&self, dials_max: usize) -> bool {
        !self.queue.is_empty() && self.pending.len() < dials_max
    }
}

/// The pause before a stream is dialed again, after so many failures in a row.
pub(super) fn pause(settings: &SubscriberSettings, failures: u32, jitter: u64) -> Duration {
    let backoff = Backoff { base: settings.redial_min, cap: settings.redial_max };
    backoff.pause_after(failures.saturating_add(1), jitter)
}
