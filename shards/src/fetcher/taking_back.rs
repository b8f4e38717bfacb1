//! A recovery is a workflow (chapter 5, pattern 16): a slot is reserved, the block is pinned at its source, its bytes
//! come, the copy is shown, and the engine is told. The order is checked when the room is made. What ends early is
//! taken back in reverse: first the pin, then the slot, so that nothing comes for a slot that somebody else has.
//!
//! A slot comes back at once, for whoever writes asks before every piece. A transfer is not taken back: what still comes
//! is thrown away. A pin over QUIC is taken back by a Cancel, and that it has worked is known later, by the end of the
//! stream; until then its bytes are charged to the window and nothing is asked for in their place. That is tried three
//! times: the Cancel is said, said again, and then the connection is closed, which is a proof by itself, so that
//! nothing stays behind on this side. Over shared memory a Released is owed until it is answered; what a source keeps
//! for want of it is in quarantine there ([`crate::grants`]).

use std::sync::Arc;
use std::time::Duration;

use orbitkv_wire::bounds::GRANT_MS_MAX;
use orbitkv_wire::engine::answers::BlockOutcome;

use super::effect::{ConnectionId, FetcherEffect, Violation};
use super::guard::PATIENCE_PART;
use super::lines::LineId;
use super::operation::{STREAM_TIME_MAX, Stage};
use super::order::Place;
use super::{Fetcher, Timer};
use crate::residents::CopyId;
use crate::resilience::compensation::{ATTEMPTS, Attempts, RecoveryStep};
use crate::resilience::gate::Class;
use crate::time::Moment;

/// Time that a Cancel has to work, at least: half of the longest grant, so that one that is said again has it before
/// [`STREAM_TIME_MAX`] is over.
const CANCEL_WAIT: Duration = Duration::from_millis(GRANT_MS_MAX as u64 / 2);

/// An operation that was cancelled, until its source's end of the stream has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draining {
    pub line: LineId,
    pub connection: ConnectionId,
    pub class: Class,
    attempts: Attempts,
    /// When it should have ended by what was tried last.
    due: Moment,
    /// When its timer looks whether it has.
    pub looks: Moment,
}

/// By what a pin that was to be given back is proved to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// Its stream has ended.
    StreamEnd,
    /// Its connection has.
    ConnectionEnd,
}

impl Fetcher {
    /// A fetch ends without its block: what was done of it is taken back, the last step first.
    pub(super) fn fail(&mut self, copy: CopyId, outcome: BlockOutcome) {
        let (workflow, done) = (Arc::clone(&self.workflow), self.steps_done(copy));
        let rollback = workflow.rollback(done, ATTEMPTS, |place| {
            self.take_back(RecoveryStep::ALL[place], copy, outcome);
            true
        });
        self.figures.transfers_left += rollback.uncompensated.len() as u64;
    }

    /// Steps of its workflow that a fetch has begun. One that has brought its block has ended.
    fn steps_done(&self, copy: CopyId) -> usize {
        let last = match self.fetches[&copy].place {
            Place::Unplaced | Place::Resting(_) | Place::Queued(_) => RecoveryStep::Reserve,
            Place::Asked { operation, index } => {
                match self.operations[&operation].parts[usize::from(index)].stage {
                    Stage::Flowing { .. } => RecoveryStep::Transfer,
                    Stage::Asked | Stage::Granted { .. } | Stage::Over => RecoveryStep::Pin,
                }
            }
        };
        last as usize + 1
    }

    fn take_back(&mut self, step: RecoveryStep, copy: CopyId, outcome: BlockOutcome) {
        match step {
            RecoveryStep::Pin => self.leave(copy),
            RecoveryStep::Reserve => {
                self.remove(copy);
                self.report_failure(copy, outcome);
            }
            RecoveryStep::Transfer | RecoveryStep::Install | RecoveryStep::TellEngine => {
                panic!("{step:?} is not taken back here")
            }
        }
    }

    /// A Cancel is said: until its stream has ended what the operation was asked for may still come, and is charged.
    pub(super) fn begin_draining(
        &mut self,
        number: u64,
        (line, connection): (LineId, ConnectionId),
        class: Class,
        asked: Moment,
    ) {
        self.window.expire(number);
        // One that progress has kept for longer than any grant has its time from now on.
        let due = (asked + (STREAM_TIME_MAX - CANCEL_WAIT)).max(self.heard + CANCEL_WAIT);
        let attempts = Attempts::first(ATTEMPTS);
        self.draining.insert(number, Draining { line, connection, class, attempts, due, looks: due });
        self.timers.insert((due, Timer::Drain(number)));
    }

    pub(super) fn end_draining(&mut self, number: u64, proof: Proof) {
        let Draining { line, class, attempts, looks, .. } =
            self.draining.remove(&number).expect("it drains once");
        self.timers.remove(&(looks, Timer::Drain(number)));
        let figures = &mut self.figures;
        *match (proof, attempts.made()) {
            (Proof::ConnectionEnd, _) => &mut figures.cancels_closed,
            (Proof::StreamEnd, 1) => &mut figures.cancels_confirmed,
            (Proof::StreamEnd, _) => &mut figures.cancels_repeated,
        } += 1;
        self.return_credit(number, line, class);
    }

    /// A cancelled operation should be over at its source: who goes on for ever would have a part of the window for
    /// ever. It is said again, and at last the end of the connection is the proof.
    pub(super) fn on_undrained(&mut self, number: u64, now: Moment) {
        let wait = self.settings.stall_wait / PATIENCE_PART;
        let operation = self.operation_id(number);
        let draining = self.draining.get_mut(&number).expect("a timer of an operation that drains");
        let connection = draining.connection;
        if draining.due > self.heard {
            // Its end may be here and not read yet.
            draining.looks = now + wait;
            self.timers.insert((draining.looks, Timer::Drain(number)));
            return;
        }
        assert!(draining.attempts.again(), "the end of the connection is a proof");
        if draining.attempts.is_last() {
            return self.close_broken(connection, Violation::Undrained, now);
        }
        draining.due = draining.due + CANCEL_WAIT;
        draining.looks = draining.due;
        self.timers.insert((draining.looks, Timer::Drain(number)));
        self.effects.push_back(FetcherEffect::CancelAgain { connection, operation });
    }
}
