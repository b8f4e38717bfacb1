//! An operation: what was asked of a source at once, and how far each residence of it is.

use std::time::Duration;

use orbitkv_wire::bounds::GRANT_MS_MAX;
use orbitkv_wire::identity::Sequence;
use orbitkv_wire::payload::{OperationId, Transport};

use super::effect::{ConnectionId, FetcherEffect};
use super::guard::{Call, Fate, PATIENCE_PART};
use super::lines::LineId;
use super::order::{Place, Route, Setback};
use super::taking_back::Proof;
use super::{Fetcher, Timer};
use crate::residents::CopyId;
use crate::resilience::deadline::Step;
use crate::resilience::gate::Class;
use crate::time::Moment;

/// How far a residence of an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Not answered.
    Asked,
    /// Its bytes, or that they do not come, are due.
    Granted { bytes: u32 },
    /// Its bytes are coming, or are read where the source has them.
    Flowing { bytes: u32, checksum: u64 },
    /// Nothing of it is due any more.
    Over,
}

/// A residence of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Whose it is; nobody's if the fetch was given up, or the part is over.
    pub copy: Option<CopyId>,
    pub sequence: Sequence,
    /// What is charged until it is over.
    pub bytes: u64,
    pub stage: Stage,
}

/// How far the talk with a source about an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Talk {
    /// Whoever carries the request keeps it back.
    HeldBack,
    /// It is asked for.
    Asked,
    /// Its Answers came.
    Answered,
}

/// An operation that has not ended.
#[derive(Debug)]
pub(super) struct Operation {
    pub line: LineId,
    pub connection: ConnectionId,
    /// Until it is known what the call came to.
    pub call: Option<Call>,
    /// Of what it was asked for.
    pub class: Class,
    /// How its bytes come.
    pub transport: Transport,
    /// When it was asked: no grant begins earlier at its source.
    pub asked: Moment,
    /// When its source may say that the time for it is over, and when we stop reading shared memory whatever the source
    /// does then: the time that was named, and from its Answers on the time that was granted.
    pub over_at: Moment,
    /// In the order of the Authorize.
    pub parts: Vec<Part>,
    /// Residences that had ended when they were asked for.
    pub gone: usize,
    pub talk: Talk,
    /// Whether anything was granted.
    pub is_granted: bool,
    /// Parts that are somebody's.
    pub wanted: usize,
    /// Parts that are not over.
    pub open: usize,
    /// When something last came of it.
    pub progressed: Moment,
    /// When its timer looks whether it stands still.
    pub stall_due: Moment,
}

/// Time from its request in which the stream of an operation ends: no grant is longer than half of it, and what is
/// granted no more is sent no more.
pub(super) const STREAM_TIME_MAX: Duration = Duration::from_millis(2 * GRANT_MS_MAX as u64);

/// How an operation ends, other than with its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Release,
    Cancel,
    Forget,
}

impl Fetcher {
    pub(super) fn operation_id(&self, number: u64) -> OperationId {
        OperationId { origin: self.origin, number }
    }

    /// The number of an operation that has not ended, on the connection it began on.
    pub(super) fn number_of(&self, connection: ConnectionId, operation: OperationId) -> Option<u64> {
        let OperationId { origin, number } = operation;
        let known = self.operations.get(&number).filter(|_| origin == self.origin)?;
        (known.connection == connection).then_some(number)
    }

    /// The request of an operation is kept back: until it goes out nothing is held against its source.
    pub fn on_held_back(&mut self, connection: ConnectionId, operation: OperationId) {
        if let Some(number) = self.number_of(connection, operation) {
            let operation = self.operations.get_mut(&number).expect("just found");
            operation.talk = Talk::HeldBack;
            for copy in operation.parts.iter().filter_map(|part| part.copy) {
                self.fetches.get_mut(&copy).expect("a part is of a fetch").clock.hold_back();
            }
        }
    }

    /// The request of an operation goes out; of interest if it was kept back.
    pub fn on_sent(&mut self, connection: ConnectionId, operation: OperationId, now: Moment) {
        let Some(number) = self.number_of(connection, operation) else { return };
        let operation = self.operations.get_mut(&number).expect("just found");
        if operation.talk == Talk::HeldBack {
            (operation.talk, operation.progressed) = (Talk::Asked, now);
            for copy in operation.parts.iter().filter_map(|part| part.copy) {
                let fetch = self.fetches.get_mut(&copy).expect("a part is of a fetch");
                fetch.clock.enter(Step::Authorize, now);
            }
        }
    }

    /// Takes a part from its fetch, which is nowhere until the caller has placed or ended it.
    pub(super) fn detach(&mut self, number: u64, index: usize) -> Option<CopyId> {
        let operation = self.operations.get_mut(&number).expect("an operation that has not ended");
        let copy = operation.parts[index].copy.take()?;
        operation.wanted -= 1;
        self.fetches.get_mut(&copy).expect("a part is of a fetch").place = Place::Unplaced;
        Some(copy)
    }

    /// Nothing of a part is due any more.
    pub(super) fn close_part(&mut self, number: u64, index: usize) {
        let operation = self.operations.get_mut(&number).expect("an operation that has not ended");
        let part = &mut operation.parts[index];
        assert!(part.stage != Stage::Over, "a part is over once");
        part.stage = Stage::Over;
        operation.open -= 1;
        let (line, class, bytes) = (operation.line, operation.class, part.bytes);
        self.window.on_spent(number, bytes);
        self.discharge_background(class, bytes);
        self.lines.get_mut(&line).expect("an operation has its line").bytes -= bytes;
        // The window has room again.
        self.is_due = true;
    }

    /// Nothing more can come of an operation: what it was asked for is free again.
    pub(super) fn return_credit(&mut self, number: u64, line: LineId, class: Class) {
        let bytes = self.window.on_proved(number);
        self.discharge_background(class, bytes);
        self.lines.get_mut(&line).expect("an operation has its line").bytes -= bytes;
        self.is_due = true;
    }

    fn discharge_background(&mut self, class: Class, bytes: u64) {
        if class == Class::Background {
            self.background_bytes -= bytes;
        }
    }

    /// The stream of a cancelled operation has ended.
    pub(super) fn on_drained(&mut self, connection: ConnectionId, operation: OperationId) {
        let OperationId { origin, number } = operation;
        let known = self.draining.get(&number).filter(|_| origin == self.origin);
        if known.is_some_and(|known| known.connection == connection) {
            self.end_draining(number, Proof::StreamEnd);
        }
    }

    /// Bytes of a cancelled operation have come and were thrown away. None of them opens the window: what is still to
    /// come of it is known by its end alone.
    pub fn on_discarded(&mut self, bytes: u64) {
        self.figures.bytes_wasted += bytes;
    }

    /// The route of a part has failed: its fetch looks for another one.
    pub(super) fn fail_part(&mut self, number: u64, index: usize, setback: Setback) {
        if let Some(copy) = self.detach(number, index) {
            self.report_trial(copy, setback.into());
            self.fetches.get_mut(&copy).expect("a part is of a fetch").fail(setback);
            self.unplace(copy);
        }
    }

    /// The way of a part has failed, not its source: its fetch asks the same source over QUIC.
    pub(super) fn ask_over_quic(&mut self, number: u64, index: usize) {
        let Some(copy) = self.detach(number, index) else { return };
        let fetch = self.fetches.get_mut(&copy).expect("a part is of a fetch");
        fetch.needs_quic = true;
        let candidate = fetch.current.take().expect("what was asked was a route");
        fetch.routes.push_front(Route { candidate, not_before: Moment(0) });
        self.unplace(copy);
    }

    /// A fetch wants its part no more. It is thrown away when it comes, if anything else of the operation
    /// is wanted.
    pub(super) fn give_up(&mut self, number: u64, index: u16) {
        self.detach(number, usize::from(index));
        self.settle(number);
    }

    /// Ends an operation of which nothing is due, or nothing is wanted.
    pub(super) fn settle(&mut self, number: u64) {
        let operation = &self.operations[&number];
        let (quiet_since, has_answered) = (operation.progressed, operation.talk == Talk::Answered);
        let given_up = Fate::GivenUp { quiet_since, has_answered };
        let answered = Fate::Answered { is_fresh: 2 * operation.gone <= operation.parts.len() };
        let (ending, fate) = match operation {
            operation if operation.open == 0 && operation.is_granted => (Ending::Release, answered),
            operation if operation.open == 0 => (Ending::Forget, answered),
            operation if operation.wanted == 0 => (Ending::Cancel, given_up),
            _ => return,
        };
        self.judge(number, fate);
        self.finish(number, ending);
    }

    /// Everything of an operation that is not over goes on elsewhere.
    pub(super) fn fail_parts(&mut self, number: u64, setback: Setback) {
        for index in 0..self.operations[&number].parts.len() {
            self.fail_part(number, index, setback);
        }
    }

    /// Ends an operation. What was somebody's of it has been taken from it before.
    pub(super) fn finish(&mut self, number: u64, ending: Ending) {
        let Operation { transport, line, class, asked, .. } = self.operations[&number];
        let connection = self.forget_operation(number);
        let operation = self.operation_id(number);
        if (transport, ending) == (Transport::Quic, Ending::Cancel) {
            // Its source may send on until it has heard of it: nothing of that is free before the stream has ended.
            self.begin_draining(number, (line, connection), class, asked);
        } else {
            self.return_credit(number, line, class);
        }
        self.effects.push_back(match (transport, ending) {
            (Transport::Quic, Ending::Release) => FetcherEffect::Release { connection, operation },
            (Transport::Quic, Ending::Cancel) => FetcherEffect::Cancel { connection, operation },
            // The Released that has been said means as much as either.
            (Transport::Shm, _) | (_, Ending::Forget) => FetcherEffect::Forget { connection, operation },
        });
    }

    fn forget_operation(&mut self, number: u64) -> ConnectionId {
        self.judge(number, Fate::Ours);
        let operation = self.operations.remove(&number).expect("an operation ends once");
        assert_eq!(operation.wanted, 0, "nothing of an operation that ends is somebody's");
        self.timers.remove(&(operation.stall_due, Timer::Stall(number)));
        let line = self.lines.get_mut(&operation.line).expect("an operation has its line");
        assert!(line.operations.remove(&number), "a line knows its operations");
        if operation.transport == Transport::Shm {
            // However it ended, it has no destination any more: nothing of it is read from here on.
            let (source, operation) = (line.source, self.operation_id(number));
            self.effects.push_back(FetcherEffect::Released { source, operation });
        }
        self.is_due = true;
        operation.connection
    }

    /// The connection of a line is gone, and all operations on it with it.
    pub(super) fn end_operations(&mut self, id: LineId) {
        for number in self.lines[&id].operations.clone() {
            let class = self.operations[&number].class;
            self.fail_parts(number, Setback::Lost);
            self.forget_operation(number);
            self.return_credit(number, id, class);
        }
        let drained: Vec<u64> =
            self.draining.iter().filter(|(_, of)| of.line == id).map(|(number, _)| *number).collect();
        drained.into_iter().for_each(|number| self.end_draining(number, Proof::ConnectionEnd));
    }

    /// An operation may stand still: then it is given up. While it may still be answered, whoever has another route and
    /// no time left for that goes.
    pub(super) fn on_stall(&mut self, number: u64, now: Moment) {
        let mut due = self.operations[&number].progressed + self.settings.stall_wait;
        if due > now {
            self.leave_silent(number, now);
            if !self.operations.contains_key(&number) {
                return;
            }
            due = self.next_limit(number, now).map_or(due, |limit| limit.min(due));
        } else if due > self.heard {
            // What it has said since may be here and not read yet.
            due = now + self.settings.stall_wait / PATIENCE_PART;
        }
        if due > now {
            self.operations.get_mut(&number).expect("just seen").stall_due = due;
            self.timers.insert((due, Timer::Stall(number)));
            return;
        }
        self.figures.stalled += 1;
        self.judge(number, Fate::Silent);
        self.fail_parts(number, Setback::Lost);
        self.finish(number, Ending::Cancel);
    }
}
