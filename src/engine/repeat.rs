//! Requests that come twice: changes are kept in the connection's ledger, so that a repeat is answered
//! and not done again.

use orbitkv_shards::leases::ConnectionId;
use orbitkv_shards::ledger::Begin;
use orbitkv_shards::time::Moment;
use orbitkv_wire::engine::{Operation, Status, content_digest};

use super::refusal::Refused;
use super::{DEADLINES_PER_TURN, EngineHub, LEDGER_LOOK};

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
                self.trace.answer(id.0, request_id);
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

    /// Sees to it that answers leave a ledger that nobody writes to any more.
    pub(super) fn watch_ledger(&mut self, id: ConnectionId) {
        let connection = self.connections.get_mut(&id).expect("a connection that was just answered");
        if connection.ledger_look_at.is_none() && connection.ledger.answers() > 0 {
            let at = self.latest + LEDGER_LOOK;
            connection.ledger_look_at = Some(at);
            self.ledger_looks.insert((at, id));
        }
    }

    pub(super) fn look_at_ledgers(&mut self, now: Moment) {
        for _ in 0..DEADLINES_PER_TURN {
            let Some(&(at, id)) = self.ledger_looks.first().filter(|(at, _)| *at <= now) else { break };
            self.ledger_looks.remove(&(at, id));
            let connection = self.connections.get_mut(&id).expect("a closed connection is not looked at");
            connection.ledger_look_at = None;
            connection.ledger.expire(now);
            self.watch_ledger(id);
        }
    }
}
