//! What the grants of a shard say of themselves.

use orbitkv_wire::payload::Refusal;

use crate::flow::egress::Urgency;
use crate::shard::GrantOutcome;

/// Counters of a shard's life, and the levels of now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrantFigures {
    /// Residences asked for the first time, the second and the third.
    pub asked: [u64; 3],
    /// Residences granted.
    pub granted: u64,
    /// Answered: was here and ended.
    pub ended: u64,
    /// Answered: provably never here.
    pub never_held: u64,
    /// Of a sequence that this journal has not reached: an alarm.
    pub beyond_head: u64,
    /// Answered: busy.
    pub busy: u64,
    /// Of those, residences that the egress rate would not have sent in time, by how soon they were due.
    pub busy_for_egress: [u64; Urgency::ALL.len()],
    /// Requests for an epoch or life that is not ours.
    pub stale_epoch: u64,
    /// Requests while this node may not serve.
    pub lease_expired: u64,
    /// Requests over a transport that is off for their node.
    pub transport_off: u64,
    /// Requests with a used number.
    pub repeated: u64,
    /// Requests that are not for us, or not of the connection they came on.
    pub misdirected: u64,
    /// Residences whose bytes could not be read after they were granted.
    pub failed: u64,
    /// Payload bytes that peers were told of.
    pub lent_bytes: u64,
    /// Of those, bytes that peers read over shared memory.
    pub lent_shm_bytes: u64,
    /// Operations that peers released.
    pub released: u64,
    /// Operations that peers cancelled.
    pub cancelled: u64,
    /// Operations that ended by time.
    pub expired: u64,
    /// Operations that ended with a connection, a member or our own lease.
    pub cut_off: u64,
    /// Operations that ever came into quarantine.
    pub quarantines: u64,
    /// Operations now, those included that only wait to drain.
    pub operations: u64,
    /// Pins now.
    pub pins: u64,
    /// Slot bytes of those pins.
    pub pinned_bytes: u64,
    /// Of those, slot bytes in quarantine.
    pub quarantined_bytes: u64,
    /// Nodes to which shared memory is off because of what they have in quarantine.
    pub nodes_without_shm: u64,
}

impl GrantFigures {
    pub(super) fn on_answer(&mut self, outcome: GrantOutcome) {
        match outcome {
            GrantOutcome::Pinned { .. } => self.granted += 1,
            GrantOutcome::Ended(_) => self.ended += 1,
            GrantOutcome::NeverHeld => self.never_held += 1,
            GrantOutcome::BeyondHead => self.beyond_head += 1,
            GrantOutcome::Busy | GrantOutcome::BeyondAllowance { .. } | GrantOutcome::DeviceRests(_) => {
                self.busy += 1;
            }
        }
    }

    pub(super) fn on_refused(&mut self, refusal: Refusal) {
        match refusal {
            Refusal::StaleEpoch { .. } => self.stale_epoch += 1,
            Refusal::LeaseExpired => self.lease_expired += 1,
            Refusal::TransportOff => self.transport_off += 1,
            Refusal::Repeated => self.repeated += 1,
            Refusal::Misdirected => self.misdirected += 1,
        }
    }
}
