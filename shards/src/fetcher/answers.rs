//! What sources answer, and what follows from each answer (chapter 3.2). Each is counted on its own, for each
//! tells an operator something else.

use std::time::Duration;

use orbitkv_wire::identity::Sequence;
use orbitkv_wire::inventory::SourceStream;
use orbitkv_wire::payload::{
    Answer, FailureCause, FromSource, Kind, OperationId, Refusal, StopCause, Transport,
};

use super::Fetcher;
use super::effect::{ConnectionId, FetcherEffect, StreamEnd, Violation};
use super::guard::Fate;
use super::operation::{Ending, Stage, Talk};
use super::order::{Candidate, Route, Setback};
use crate::planner::TrialOutcome;
use crate::residents::CopyId;
use crate::resilience::claim_check::{Claim, Dangling};
use crate::resilience::deadline::Step;
use crate::time::Moment;

impl Fetcher {
    /// A source says something on the stream of an operation, whose tag and number the frame has. Payload
    /// that follows a Bytes goes where [`Fetcher::destination`] says.
    pub fn on_message(
        &mut self,
        connection: ConnectionId,
        operation: OperationId,
        message: &FromSource,
        now: Moment,
    ) {
        let Some(number) = self.number_of(connection, operation) else {
            self.figures.late += 1;
            return;
        };
        self.operations.get_mut(&number).expect("just found").progressed = now;
        let done = match message {
            FromSource::Answers { answers, grant_ms, .. } => self.on_answers(number, answers, *grant_ms, now),
            FromSource::Refused(refusal) => self.on_refused(number, *refusal, now),
            FromSource::Bytes { index, bytes, checksum } if self.comes_over(number, Transport::Quic) => {
                self.on_bytes_due(number, *index, *bytes, *checksum, now)
            }
            FromSource::Extent { index, bytes, checksum, offset }
                if self.comes_over(number, Transport::Shm) =>
            {
                self.on_extent(number, *index, *bytes, *checksum, *offset, now)
            }
            FromSource::Failed { index, cause } => self.on_failed(number, *index, *cause),
            FromSource::Bytes { .. }
            | FromSource::Extent { .. }
            | FromSource::Stopped { .. }
            | FromSource::Drained => Err(Violation::Unexpected(message.kind())),
        };
        if let Err(violation) = done {
            self.close_broken(connection, violation, now);
        }
    }

    fn comes_over(&self, number: u64, transport: Transport) -> bool {
        self.operations[&number].transport == transport
    }

    fn on_answers(
        &mut self,
        number: u64,
        answers: &[Answer],
        grant_ms: u32,
        now: Moment,
    ) -> Result<(), Violation> {
        let operation = self.operations.get_mut(&number).expect("just found");
        let (asked, answered) = (operation.parts.len(), answers.len());
        if operation.talk == Talk::Answered {
            return Err(Violation::Unexpected(Kind::Answers));
        }
        if asked != answered {
            return Err(Violation::AnswerCount { asked, answered });
        }
        operation.talk = Talk::Answered;
        // The source counts from when it took the request, which was not before we wrote it.
        operation.over_at = operation.asked + Duration::from_millis(u64::from(grant_ms));
        self.lines.get_mut(&operation.line).expect("an operation has its line").failures = 0;
        for (index, answer) in answers.iter().enumerate() {
            match *answer {
                Answer::Granted { bytes } => {
                    self.enter_step(number, index, Step::Prepare, now);
                    self.on_granted(number, index, bytes);
                }
                Answer::Ended { sequence } => {
                    self.figures.ended += 1;
                    self.count_dangling(Dangling::RangeEnded, 1);
                    self.tell_ended(number, index, sequence);
                    self.note_gone(number);
                    self.close_part(number, index);
                    self.fail_part(number, index, Setback::Missing);
                }
                Answer::NeverHeld { head } => {
                    self.figures.never_held += 1;
                    self.count_dangling(Dangling::NeverHeld, 1);
                    self.note_gone(number);
                    let asked = self.operations[&number].parts[index].sequence;
                    self.figures.beyond_head += u64::from(asked > head);
                    self.close_part(number, index);
                    self.fail_part(number, index, Setback::Missing);
                }
                Answer::Busy { retry_after_ms } => {
                    self.figures.answered_busy += 1;
                    self.close_part(number, index);
                    if self.comes_over(number, Transport::Shm) {
                        // A source lends less over shared memory than over QUIC.
                        self.ask_over_quic(number, index);
                        continue;
                    }
                    let wait = Duration::from_millis(u64::from(retry_after_ms));
                    self.on_busy(number, index, now + wait);
                }
            }
        }
        self.settle(number);
        Ok(())
    }

    /// The index was behind: for the log.
    fn tell_ended(&mut self, number: u64, index: usize, ended: Option<Sequence>) {
        let operation = &self.operations[&number];
        let source = self.lines[&operation.line].source;
        let Some(fetch) = operation.parts[index].copy.map(|copy| &self.fetches[&copy]) else { return };
        let residence = fetch.residence();
        self.effects.push_back(FetcherEffect::RangeEnded { source, residence, ended });
    }

    /// So many residences of the index led to nothing.
    fn count_dangling(&mut self, why: Dangling, residences: usize) {
        (0..residences).for_each(|_| self.figures.claims.count(Claim::Dangling(why)));
    }

    fn note_gone(&mut self, number: u64) {
        self.operations.get_mut(&number).expect("just found").gone += 1;
    }

    fn on_granted(&mut self, number: u64, index: usize, bytes: u32) {
        self.figures.granted += 1;
        let operation = self.operations.get_mut(&number).expect("just found");
        operation.is_granted = true;
        let part = &mut operation.parts[index];
        part.stage = Stage::Granted { bytes };
        if u64::from(bytes) != part.bytes {
            // The bytes of a residence never change: the index was told something else of it.
            self.figures.wrong_lengths += 1;
            self.fail_part(number, index, Setback::Missing);
        }
    }

    /// The next route; the busy one is the last.
    fn on_busy(&mut self, number: u64, index: usize, not_before: Moment) {
        let Some((copy, candidate)) = self.turn_away(number, index) else { return };
        let fetch = self.fetches.get_mut(&copy).expect("just turned away");
        fetch.routes.push_back(Route { candidate, not_before });
        self.unplace(copy);
    }

    /// A source gave a part less time than its fetch has: that asks there again, as often as anybody may.
    fn ask_again(&mut self, number: u64, index: usize) {
        let Some((copy, candidate)) = self.turn_away(number, index) else { return };
        let fetch = self.fetches.get_mut(&copy).expect("just turned away");
        fetch.routes.push_front(Route { candidate, not_before: Moment(0) });
        self.unplace(copy);
    }

    /// Takes a part from its fetch because its source had no time for it.
    fn turn_away(&mut self, number: u64, index: usize) -> Option<(CopyId, Candidate)> {
        let copy = self.detach(number, index)?;
        self.report_trial(copy, TrialOutcome::Busy);
        let fetch = self.fetches.get_mut(&copy).expect("a part is of a fetch");
        let candidate = fetch.current.expect("what was asked was a route");
        fetch.fail(Setback::Busy);
        Some((copy, candidate))
    }

    fn on_refused(&mut self, number: u64, refusal: Refusal, now: Moment) -> Result<(), Violation> {
        let operation = &self.operations[&number];
        let source = self.lines[&operation.line].source;
        if operation.talk == Talk::Answered {
            return Err(Violation::Unexpected(Kind::Refused));
        }
        if matches!(refusal, Refusal::StaleEpoch { incarnation, .. } if incarnation == source.incarnation) {
            return Err(Violation::OwnLife);
        }
        if refusal == Refusal::TransportOff && self.comes_over(number, Transport::Shm) {
            let line = self.operations[&number].line;
            let line = self.lines.get_mut(&line).expect("an operation has its line");
            line.shares_from = now + self.settings.sharing_pause;
            (0..self.operations[&number].parts.len()).for_each(|index| self.ask_over_quic(number, index));
        }
        if matches!(refusal, Refusal::StaleEpoch { .. }) {
            self.count_dangling(Dangling::Superseded, self.operations[&number].parts.len());
        }
        self.judge(number, Fate::Answered { is_fresh: true });
        self.fail_parts(number, Setback::Missing);
        self.finish(number, Ending::Forget);
        let figures = &mut self.figures;
        match refusal {
            Refusal::StaleEpoch { epoch, .. } => self.on_stale(source, epoch),
            Refusal::LeaseExpired => figures.lease_expired += 1,
            Refusal::TransportOff => figures.transport_off += 1,
            Refusal::Repeated => figures.repeated += 1,
            Refusal::Misdirected => {
                figures.misdirected += 1;
                self.refresh(source);
            }
        }
        Ok(())
    }

    /// What answers is another life than was asked. A later one proves that the asked one is over; an
    /// earlier one, or one of the same epoch, proves nothing about it. Nothing of this admits anybody.
    fn on_stale(&mut self, source: SourceStream, epoch: u64) {
        self.figures.stale_epoch += 1;
        self.figures.epoch_conflicts += u64::from(epoch == source.epoch);
        if epoch > source.epoch {
            self.exclude(source.node, source.incarnation);
        }
        self.refresh(source);
    }

    fn on_bytes_due(
        &mut self,
        number: u64,
        index: u16,
        bytes: u32,
        checksum: u64,
        now: Moment,
    ) -> Result<(), Violation> {
        let granted = self.granted(number, index)?;
        if bytes != granted {
            return Err(Violation::Length { index, granted, sent: bytes });
        }
        let operation = self.operations.get_mut(&number).expect("just found");
        operation.parts[usize::from(index)].stage = Stage::Flowing { bytes, checksum };
        self.enter_step(number, usize::from(index), Step::Transfer, now);
        self.figures.claims.count(Claim::Found { bytes: u64::from(bytes) });
        Ok(())
    }

    fn on_extent(
        &mut self,
        number: u64,
        index: u16,
        bytes: u32,
        checksum: u64,
        offset: u64,
        now: Moment,
    ) -> Result<(), Violation> {
        self.on_bytes_due(number, index, bytes, checksum, now)?;
        let (connection, operation) = (self.operations[&number].connection, self.operation_id(number));
        self.effects.push_back(FetcherEffect::Read { connection, operation, index, offset, bytes });
        Ok(())
    }

    fn on_failed(&mut self, number: u64, index: u16, cause: FailureCause) -> Result<(), Violation> {
        self.granted(number, index)?;
        self.figures.failed_reads += 1;
        let setback = match cause {
            FailureCause::DeviceError => Setback::DeviceError,
            FailureCause::Corrupt => Setback::Corrupt,
            FailureCause::Ended => {
                // Granted, and gone before it was read.
                self.count_dangling(Dangling::RangeEnded, 1);
                Setback::Missing
            }
        };
        self.close_part(number, usize::from(index));
        self.fail_part(number, usize::from(index), setback);
        self.settle(number);
        Ok(())
    }

    /// The granted bytes of a part of which nothing was said since.
    fn granted(&self, number: u64, index: u16) -> Result<u32, Violation> {
        match self.operations[&number].parts.get(usize::from(index)).map(|part| part.stage) {
            Some(Stage::Granted { bytes }) => Ok(bytes),
            _ => Err(Violation::NotGranted { index }),
        }
    }

    /// The source's end of an operation's stream has come. Nothing of it is read or written any more.
    pub fn on_stream_over(
        &mut self,
        connection: ConnectionId,
        operation: OperationId,
        end: StreamEnd,
        now: Moment,
    ) {
        // An operation that ended before is expected to come here.
        let Some(number) = self.number_of(connection, operation) else {
            return self.on_drained(connection, operation);
        };
        if self.comes_over(number, Transport::Shm) {
            return self.on_telling_over(number, end, now);
        }
        self.on_broken_off(number, end, 0..self.operations[&number].parts.len(), now);
        self.finish(number, Ending::Forget);
    }

    /// A stream has ended before these parts had come. That its source's time for them is over is no failure of it, if it
    /// is over: who says so of time that it granted breaks off.
    fn on_broken_off(
        &mut self,
        number: u64,
        end: StreamEnd,
        parts: impl IntoIterator<Item = usize>,
        now: Moment,
    ) {
        match end {
            StreamEnd::Finished => self.figures.cut_short += 1,
            StreamEnd::Reset { .. } => self.figures.reset += 1,
        }
        let says_so = end == StreamEnd::Reset { code: StopCause::Deadline as u64 };
        let is_time_over = says_so && self.operations[&number].over_at <= now;
        self.judge(number, if is_time_over { Fate::Ours } else { Fate::Broken });
        for index in parts {
            match is_time_over {
                true => self.ask_again(number, index),
                false => self.fail_part(number, index, Setback::Lost),
            }
        }
    }

    /// Over shared memory the stream carries what is told and not the bytes: what has been told is read on.
    fn on_telling_over(&mut self, number: u64, end: StreamEnd, now: Moment) {
        let is_untold = |stage: &Stage| matches!(stage, Stage::Asked | Stage::Granted { .. });
        let parts = self.operations[&number].parts.iter().enumerate();
        let untold: Vec<usize> =
            parts.filter(|(_, part)| is_untold(&part.stage)).map(|(index, _)| index).collect();
        if untold.is_empty() {
            return;
        }
        untold.iter().for_each(|&index| self.close_part(number, index));
        self.on_broken_off(number, end, untold, now);
        self.settle(number);
    }
}
