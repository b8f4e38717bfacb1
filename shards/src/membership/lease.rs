//! The lease of this node: until when it may speak for itself, and when it asks for more time.
//!
//! Half of the acknowledged length counts, from the moment the request was *sent*: etcd began to count
//! later than that, and the other half is what clocks and pauses may be wrong by. At exactly the
//! deadline the lease is over.

use std::time::Duration;

use super::coordinator::LeaseId;
use crate::time::Moment;

/// A renewal is asked for after this part of the acknowledged length: twice more fit before the deadline.
const RENEWALS_PER_LENGTH: u32 = 6;

enum Renewal {
    Due(Moment),
    Sent { number: u64, sent: Moment },
}

/// A lease that etcd has granted.
pub(super) struct Lease {
    id: LeaseId,
    length: Duration,
    deadline: Moment,
    renewal: Renewal,
}

impl Lease {
    /// The lease whose request was sent at `sent`.
    pub fn granted(id: LeaseId, length: Duration, sent: Moment) -> Lease {
        let due = sent + length / RENEWALS_PER_LENGTH;
        Lease { id, length, deadline: sent + length / 2, renewal: Renewal::Due(due) }
    }

    pub fn id(&self) -> LeaseId {
        self.id
    }

    /// First moment at which it is over.
    pub fn deadline(&self) -> Moment {
        self.deadline
    }

    pub fn is_over(&self, now: Moment) -> bool {
        now >= self.deadline
    }

    /// When something is to be done.
    pub fn next_deadline(&self) -> Moment {
        match self.renewal {
            Renewal::Due(due) => due.min(self.deadline),
            Renewal::Sent { .. } => self.deadline,
        }
    }

    /// Whether a renewal is to be sent now; if so it counts as sent.
    pub fn renew(&mut self, number: u64, now: Moment) -> bool {
        let is_due = matches!(self.renewal, Renewal::Due(due) if now >= due);
        if is_due {
            self.renewal = Renewal::Sent { number, sent: now };
        }
        is_due
    }

    /// A renewal was acknowledged; whether it was one that is waited for.
    pub fn on_renewed(&mut self, number: u64, length: Duration) -> bool {
        let Renewal::Sent { number: waited, sent } = self.renewal else { return false };
        if waited != number {
            return false;
        }
        self.length = length;
        self.deadline = self.deadline.max(sent + length / 2);
        self.renewal = Renewal::Due(sent + length / RENEWALS_PER_LENGTH);
        true
    }

    /// A renewal got no answer: another one soon.
    pub fn on_unanswered(&mut self, number: u64, now: Moment) {
        if matches!(self.renewal, Renewal::Sent { number: waited, .. } if waited == number) {
            self.renewal = Renewal::Due(now + self.length / (4 * RENEWALS_PER_LENGTH));
        }
    }

    /// Whether this renewal is waited for.
    pub fn waits_for(&self, number: u64) -> bool {
        matches!(self.renewal, Renewal::Sent { number: waited, .. } if waited == number)
    }
}
