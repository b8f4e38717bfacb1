//! Drain: who waits for the node to end, and what they are told meanwhile.
//!
//! A Drain has no end of its own, so it is bounded by hand: one of a connection, one word to control
//! for all of them, and no progress for an engine that has not read the last one.

use orbitkv_shards::leases::ConnectionId;
use orbitkv_wire::engine::answers::{self, DrainAnswer, OutcomeRecord};
use orbitkv_wire::engine::{Operation, Status};

use super::refusal::Refused;
use super::{EngineHub, Errand};

/// Nothing is left: the last word of a Drain.
const NOTHING_LEFT: DrainAnswer = DrainAnswer { reservations: 0, leases: 0, write_backs: 0, transfers: 0 };

impl EngineHub {
    /// An engine wants the node to drain.
    pub(super) fn begin_drain(&mut self, id: ConnectionId, request_id: u64) -> Result<(), Refused> {
        let connection = self.at(id);
        if connection.drain.is_some() {
            let text = "a connection has one unanswered Drain at most: its answers say what is left";
            return Err(Refused::new(Status::TooManyInFlight, 1, text.into()));
        }
        connection.drain = Some(request_id);
        if !std::mem::replace(&mut self.drain_asked, true) {
            self.errands.push_back(Errand::Drain);
        }
        Ok(())
    }

    /// An engine no longer waits for its Drain, if this is one; the node goes on draining.
    pub(super) fn cancel_drain(&mut self, id: ConnectionId, request_id: u64) {
        let connection = self.at(id);
        if connection.drain == Some(request_id) {
            connection.drain = None;
            self.refuse(id, Operation::Drain, request_id, &Refused::stopped(false));
        }
    }

    /// From now on only what finishes old work is done.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Tells those who wait for the node to drain what is left; all zeros is the last word.
    pub fn on_drain_progress(&mut self, left: DrainAnswer) {
        let over = left == NOTHING_LEFT;
        for (&id, connection) in &mut self.connections {
            let Some(request_id) = connection.drain else { continue };
            // Who has not read the last figures needs no newer ones, but the end is told to all.
            if !over && !connection.outbound.is_empty() {
                continue;
            }
            answers::append_answer::<_, OutcomeRecord>(
                &mut connection.outbound,
                Operation::Drain,
                request_id,
                !over,
                &left,
                &[],
            );
            if over {
                connection.drain = None;
                self.trace.answer(id.0, request_id);
            }
            self.dirty.insert(id);
        }
    }
}
