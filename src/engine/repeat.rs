//! Requests that come twice: changes are kept in the connection's ledger, so that a repeat is answered
//! and not done again.

use orbitkv_shards::leases::ConnectionId;
use orbitkv_shards::ledger::Begin;
use orbitkv_shards::time::Moment;
use orbitkv_wire::engine::{Operation, Status, content_digest};

use super::EngineHub;
use super::refusal::Refused;

/// What becomes of a request that the ledger was asked about.
pub(super) enum Repeat {
    /// It is new: do it.
    Fresh,
    /// It is answered, or will be.
    Handled,
    /// Its id cannot be used.
    Refused(Refused),
}

/// Whether an operation changes something, so that it must happen once.
pub(super) fn is_ledgered(operation: Operation) -> bool {
    match operation {
        Operation::Register
        | Operation::Reserve
        | Operation::Commit
        | Operation::Abort
        | Operation::Acquire
        | Operation::Attach
        | Operation::Release
        | Operation::Evict
        | Operation::Clear
        | Operation::Sync => true,
        Operation::Hello
        | Operation::Ping
        | Operation::Query
        | Operation::Cancel
        | Operation::List
        | Operation::Drain
        // Wanting a block twice is wanting it once.
        | Operation::Prefetch => false,
    }
}

impl EngineHub {
    pub(super) fn repeat(
        &mut self,
        id: ConnectionId,
        operation: Operation,
        request_id: u64,
        body: &[u8],
        now: Moment,
    ) -> Repeat {
        let connection = self.connections.get_mut(&id).expect("frames come from live connections");
        let job = connection.requests.get(&request_id).map(|job| &self.jobs[job]);
        // Parts of an Acquire's answer may be out already, so a repeat cannot have them all.
        let streams = operation == Operation::Acquire;
        if connection.drain == Some(request_id) || job.is_some_and(|job| !job.ledgered || streams) {
            return Repeat::Refused(Refused::duplicate(request_id));
        }
        match connection.ledger.begin(request_id, operation as u8, content_digest(body), now) {
            Begin::Fresh => Repeat::Fresh,
            Begin::InFlight => Repeat::Handled,
            Begin::Answered(answer) => {
                connection.outbound.extend_from_slice(answer);
                self.dirty.insert(id);
                Repeat::Handled
            }
            Begin::Mismatch => Repeat::Refused(Refused::duplicate(request_id)),
            Begin::Full => {
                let text = "too many changes are unanswered: wait for answers".to_owned();
                Repeat::Refused(Refused::new(Status::TooManyInFlight, 0, text))
            }
        }
    }
}
