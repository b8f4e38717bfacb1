//! What frames of a source do. A frame is admitted, then its message has its effect, in the order of the
//! session; whatever is wrong with it ends the session and changes no visible view.

use orbitkv_wire::identity::{Sequence, SnapshotId};
use orbitkv_wire::inventory::{
    Changes, FromRequester, FromSource, Header, Kind, OpenRefusal, Resume, SourceStream, decode_from_source,
    split_frame,
};

use super::batch::{Applying, Part, check_repeated};
use super::close::CloseCause;
use super::links::Ending;
use super::session::{Frame, Phase, Session, Waiting};
use super::snapshot::Commit;
use super::{Index, StreamId, Subscriber, SubscriberEffect};
use crate::inventory::ConnectionId;
use crate::time::Moment;

impl Subscriber {
    /// One whole frame has come on a connection.
    pub fn on_frame(&mut self, connection: ConnectionId, frame: &[u8], index: &mut Index<'_>, now: Moment) {
        let Some(&id) = self.connections.get(&connection) else {
            self.figures.late_frames += 1;
            return;
        };
        self.retire_orphans(index);
        let outcome = self.admit(id, frame, index, now);
        self.conclude(id, outcome, now);
    }

    /// After something was done in a session: ends it if that went wrong.
    fn conclude(&mut self, id: StreamId, outcome: Result<(), CloseCause>, now: Moment) {
        if let Err(cause) = outcome {
            self.end_session(id, Ending::Ours(cause), now);
        }
        self.settle(id);
    }

    fn admit(
        &mut self,
        id: StreamId,
        frame: &[u8],
        index: &mut Index<'_>,
        now: Moment,
    ) -> Result<(), CloseCause> {
        let whole = split_frame(frame, self.settings.frame_bytes_max as usize)?;
        let Some((header, body)) = whole.filter(|(_, body)| body.end == frame.len()) else {
            return Err(CloseCause::NotOneFrame { bytes: frame.len() });
        };
        let body = &frame[body];
        let stream = self.streams.get_mut(&id).expect("a stream that is expected");
        let applied = stream.applied();
        let session = stream.session_mut().expect("a connection has a session");
        if header.tag != session.tag.0 {
            self.figures.late_frames += 1;
            return Ok(());
        }
        session.receive(&header, &self.settings)?;
        if header.kind != Kind::Liveness as u8 {
            session.expect_page(&self.settings, now);
        }
        if let Some(kind) = Kind::from_wire(header.kind) {
            let traffic = self.figures.received.entry(kind).or_default();
            traffic.frames += 1;
            traffic.bytes += u64::from(header.length);
        }
        // A beat moves no cursor and costs no credit: it need not wait for its turn.
        if header.kind == Kind::Liveness as u8 {
            if let FromSource::Liveness { summary } = decode_from_source(&header, body)? {
                stream.summary = Some((summary, now));
            }
            stream.source_head = stream.source_head.max(Sequence(header.head));
            stream.freshness.on_frame(Sequence(header.head), now, applied);
            return Ok(());
        }
        let waits = session.backlog().0 > 0;
        if !waits && self.applying.is_none() && self.membership.is_valid() {
            return self.process(id, Frame { header: &header, body, receipt: now }, index, now);
        }
        if !waits {
            self.ready.push_back(id);
        }
        session.keep(Waiting { header, body: body.to_vec(), receipt: now }, &self.settings)?;
        let (frames, bytes) = session.backlog();
        self.figures.backlog_frames_peak = self.figures.backlog_frames_peak.max(frames as u64);
        self.figures.backlog_bytes_peak = self.figures.backlog_bytes_peak.max(bytes);
        Ok(())
    }

    /// The message of a frame whose turn it is.
    fn process(
        &mut self,
        id: StreamId,
        frame: Frame<'_>,
        index: &mut Index<'_>,
        now: Moment,
    ) -> Result<(), CloseCause> {
        let message = decode_from_source(frame.header, frame.body)?;
        if is_of_a_view(&message) && self.session(id).discards() {
            self.figures.frames_discarded += 1;
            self.consume(id, frame.header, frame.receipt, now);
            return Ok(());
        }
        match message {
            FromSource::SnapshotPage { snapshot, number, changes } => {
                let staging = self.session(id).staging("a page")?;
                staging.begin_page(snapshot, number, changes.len(), frame.body)?;
                return self.load(id, Part::Page, &changes, frame, index, now);
            }
            FromSource::Delta { from, through, changes } => {
                return self.on_delta(id, (from, through), &changes, frame, index, now);
            }
            FromSource::SnapshotCommit { snapshot, through, pages, digest } => {
                self.on_commit(id, &Commit { snapshot, through, pages, digest }, index, now)?;
            }
            FromSource::Progress { through } => self.on_progress(id, through)?,
            FromSource::Resumed { view, sequence } => self.on_resumed(id, view, sequence)?,
            FromSource::ResetRequired { cause } => {
                *self.figures.resets.entry(cause).or_default() += 1;
                self.begin_bootstrap(id, now);
            }
            FromSource::SnapshotQueued { .. } => self.expect_offer(id, "a queue position")?,
            FromSource::SnapshotBegin { snapshot, after, rows_max, .. } => {
                self.expect_offer(id, "an offer")?;
                self.on_offer(id, snapshot, after, rows_max, index, now);
            }
            FromSource::OpenRefused { cause, incarnation, .. } => {
                *self.figures.refusals.entry(cause).or_default() += 1;
                let asked = self.streams[&id].source;
                if cause == OpenRefusal::WrongSource && incarnation != asked.incarnation {
                    let SourceStream { node, incarnation, .. } = asked;
                    self.effects.push_back(SubscriberEffect::Doubt { node, incarnation });
                }
                return Err(CloseCause::Refused(cause));
            }
            FromSource::Liveness { .. } => unreachable!("beats do not wait"),
        }
        self.consume(id, frame.header, frame.receipt, now);
        Ok(())
    }

    fn on_delta(
        &mut self,
        id: StreamId,
        (from, through): (Sequence, Sequence),
        changes: &Changes<'_>,
        frame: Frame<'_>,
        index: &mut Index<'_>,
        now: Moment,
    ) -> Result<(), CloseCause> {
        let stream = self.streams.get_mut(&id).expect("a stream that is expected");
        let applied = stream.applied();
        let session = stream.session_mut().expect("frames come in sessions");
        if !matches!(session.phase, Phase::Live) {
            session.staging("a delta")?.begin_replay(from, through, frame.body)?;
            return self.load(id, Part::Replay { through }, changes, frame, index, now);
        }
        if from == applied {
            return self.load(id, Part::View { through }, changes, frame, index, now);
        }
        if through > applied {
            return Err(CloseCause::NotContiguous { from, through, applied });
        }
        let view = stream.view.expect("a live session has a view");
        check_repeated(changes, view.id, index)?;
        self.figures.repeated_deltas += 1;
        self.consume(id, frame.header, frame.receipt, now);
        Ok(())
    }

    fn on_progress(&mut self, id: StreamId, through: Sequence) -> Result<(), CloseCause> {
        let stream = self.streams.get_mut(&id).expect("a stream that is expected");
        let session = stream.session_mut().expect("frames come in sessions");
        if !matches!(session.phase, Phase::Live) {
            return session.staging("progress")?.skip_replay(through);
        }
        let view = stream.view.as_mut().expect("a live session has a view");
        view.applied = view.applied.max(through);
        Ok(())
    }

    fn on_resumed(&mut self, id: StreamId, view: SnapshotId, sequence: Sequence) -> Result<(), CloseCause> {
        let session = self.session(id);
        match &session.phase {
            Phase::Resuming(resume) if *resume == (Resume { view, sequence }) => {
                session.phase = Phase::Live;
                self.figures.resumed += 1;
                Ok(())
            }
            _ => Err(CloseCause::Unexpected("an answer to a resume")),
        }
    }

    /// Offers come while a snapshot is wanted or instead of a resume, not out of the blue.
    fn expect_offer(&mut self, id: StreamId, what: &'static str) -> Result<(), CloseCause> {
        match self.session(id).phase {
            Phase::Resuming(_) | Phase::Bootstrapping(_) => Ok(()),
            Phase::Live => Err(CloseCause::Unexpected(what)),
        }
    }

    /// Takes a frame's changes in and applies the first step of them.
    fn load(
        &mut self,
        id: StreamId,
        part: Part,
        changes: &Changes<'_>,
        frame: Frame<'_>,
        index: &mut Index<'_>,
        now: Moment,
    ) -> Result<(), CloseCause> {
        assert!(self.applying.is_none(), "one frame at a time");
        if let Err(cause) = self.batch.load(changes, &self.scope, index) {
            if matches!(cause, CloseCause::Budget(_) | CloseCause::Namespaces(_)) {
                let snapshot = match part {
                    Part::View { .. } => None,
                    Part::Page | Part::Replay { .. } => Some(self.session(id).staging("changes")?.estimate()),
                };
                self.note_misfit(id, snapshot, now);
            }
            return Err(cause);
        }
        let stream = self.streams.get_mut(&id).expect("a stream that is expected");
        let view = match part {
            Part::View { through } => {
                let view = stream.view.as_mut().expect("a live session has a view");
                view.begun = view.begun.max(through);
                view.id
            }
            Part::Page | Part::Replay { .. } => {
                stream.session_mut().expect("frames come in sessions").staging("changes")?.view
            }
        };
        if self.batch.left() > self.settings.changes_per_step {
            self.figures.frames_in_steps += 1;
        }
        let Frame { header: &header, receipt, .. } = frame;
        self.applying = Some(Applying { stream: id, view, part, header, receipt });
        self.step(index, now)
    }

    /// One step of the frame that is being applied; with the last one the cursor follows.
    fn step(&mut self, index: &mut Index<'_>, now: Moment) -> Result<(), CloseCause> {
        let Some(Applying { stream: id, view, part, header, receipt }) = self.applying else { return Ok(()) };
        let (count, partition) = (self.settings.changes_per_step, &mut *index.partition);
        let stream = self.streams.get_mut(&id).expect("a stream that is expected");
        let before = self.batch.left();
        match part {
            Part::View { .. } => self.batch.apply(view, partition, count),
            Part::Page => {
                let session = stream.session_mut().expect("a staging is of a session");
                self.batch.stage_page(session.staging("changes")?, partition, count)?;
            }
            Part::Replay { .. } => {
                let session = stream.session_mut().expect("a staging is of a session");
                self.batch.stage_replay(session.staging("changes")?, partition, count)?;
            }
        }
        let applied = (before - self.batch.left()) as u64;
        match part {
            Part::View { .. } => self.figures.changes_applied += applied,
            Part::Page | Part::Replay { .. } => self.figures.changes_staged += applied,
        }
        if self.batch.left() > 0 {
            return Ok(());
        }
        self.applying = None;
        match part {
            Part::View { through } => stream.view.as_mut().expect("it was applied to").applied = through,
            Part::Page => {}
            Part::Replay { through } => self.session(id).staging("changes")?.finish_replay(through),
        }
        self.consume(id, &header, receipt, now);
        Ok(())
    }

    /// Goes on with the frame that is being applied, or takes the next one that waits.
    pub(super) fn advance(&mut self, index: &mut Index<'_>, now: Moment) {
        if let Some(applying) = self.applying {
            let outcome = self.step(index, now);
            return self.conclude(applying.stream, outcome, now);
        }
        while self.membership.is_valid() {
            let Some(id) = self.ready.pop_front() else { return };
            let session = self.streams.get_mut(&id).and_then(|stream| stream.session_mut());
            // A stream or session that has ended took its frames along.
            let Some(session) = session else { continue };
            let Some(Waiting { header, body, receipt }) = session.take_kept() else { continue };
            if session.backlog().0 > 0 {
                self.ready.push_back(id);
            }
            let frame = Frame { header: &header, body: &body, receipt };
            let outcome = self.process(id, frame, index, now);
            return self.conclude(id, outcome, now);
        }
    }

    /// A frame has had its effect: freshness, credit, and perhaps an ACK.
    fn consume(&mut self, id: StreamId, header: &Header, receipt: Moment, now: Moment) {
        let stream = self.streams.get_mut(&id).expect("a stream that is expected");
        let (head, applied) = (Sequence(header.head), stream.applied());
        stream.source_head = stream.source_head.max(head);
        stream.freshness.on_frame(head, receipt, applied);
        let session = stream.session_mut().expect("frames come in sessions");
        if session.consume(header, &self.settings, now) {
            self.acknowledge(id, now);
        }
    }

    pub(super) fn session(&mut self, id: StreamId) -> &mut Session {
        let stream = self.streams.get_mut(&id).expect("a stream that is expected");
        stream.session_mut().expect("frames come in sessions")
    }

    /// Sends a message in a session.
    pub(super) fn say(&mut self, id: StreamId, message: &FromRequester) {
        let session = self.session(id);
        let (connection, bytes) = (session.connection, session.say(message));
        self.effects.push_back(SubscriberEffect::Send { connection, bytes });
    }
}

/// Whether a message fills a view, follows one, or makes one visible.
fn is_of_a_view(message: &FromSource<'_>) -> bool {
    matches!(
        message,
        FromSource::SnapshotPage { .. }
            | FromSource::Delta { .. }
            | FromSource::SnapshotCommit { .. }
            | FromSource::Progress { .. }
    )
}
