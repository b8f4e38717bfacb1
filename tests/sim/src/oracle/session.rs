//! One inventory session as it is seen on the wire: what its source may say next, how much credit is out,
//! and what the requester may believe after what has arrived.
//!
//! Frames are judged as they leave the source, against the truth; a fact about each is kept until it is
//! delivered, and then moves the requester's proof. Bytes are counted here and not by a room.

use std::collections::VecDeque;

use orbitkv_shards::time::Moment;
use orbitkv_wire::identity::{Sequence, SnapshotId};
use orbitkv_wire::inventory::{
    Changes, FromRequester, FromSource, HEADER_BYTES, Header, Kind, Open, ResetCause, Tag, Transcript,
    WireChange, decode_from_source,
};
use orbitkv_wire::scope::Scope;

use super::{Oracle, Verdict, Violation, hold};
use crate::counters::{Counter, Counters};
use crate::network::Place;
use crate::truth::{KeyId, StreamName, StreamTruth, Truth, Universe};

/// What the source is at.
#[derive(Clone, Debug)]
enum Phase {
    /// An Open is on its way or being answered.
    Opened,
    /// A snapshot was offered.
    Offered(Staged),
    /// Its pages are being sent.
    Scanning(Staged),
    /// Its replay is being sent.
    Replaying(Staged),
    /// Everything up to here was said.
    Live(Sequence),
    /// Refused: nothing follows.
    Over,
}

/// A snapshot on its way.
#[derive(Clone, Debug)]
struct Staged {
    snapshot: SnapshotId,
    after: Sequence,
    through: Sequence,
    rows_max: u64,
    rows: u64,
    pages: u32,
    transcript: Transcript,
    accepted: bool,
    last: Option<ScanPlace>,
}

/// Where a scan stands, in the order of its source.
pub type ScanPlace = (u16, u16, [u8; 32], u8);

/// What a frame proves once it is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// Nothing.
    Other,
    /// A refusal: the session is over.
    Refused,
    /// A view goes on.
    Resumed(SnapshotId, Sequence),
    /// An offer.
    Begin(SnapshotId, Sequence),
    /// Residences of a snapshot.
    Page(SnapshotId),
    /// An interval.
    Delta(Sequence, Sequence),
    /// A snapshot is whole.
    Commit(SnapshotId, Sequence),
    /// An empty interval.
    Progress(Sequence),
    /// What was sent cannot be continued.
    Reset,
}

/// What is known of the source when a frame leaves it.
pub struct SourceView<'a> {
    /// Everything true.
    pub truth: &'a Truth,
    /// How its scan orders a namespace.
    pub scan_order: &'a dyn Fn(&orbitkv_wire::identity::NamespaceDigest) -> u16,
}

/// One session.
pub struct Session {
    /// Who asks.
    pub requester: Place,
    /// Whose inventory, as the requester believes.
    pub stream: StreamName,
    /// What was asked.
    pub open: Open,
    tag: Tag,
    phase: Phase,
    frames_sent: u64,
    snapshots: u64,
    head: Sequence,
    /// Frames that cost credit and were not acknowledged: number and bytes.
    unacknowledged: VecDeque<(u64, u64)>,
    /// Bytes of those.
    pub outstanding_bytes: u64,
    consumed: u64,
    facts: VecDeque<(u64, Fact)>,
    delivered: u64,
}

impl Session {
    /// The session that an Open asks for.
    #[must_use]
    pub fn new(requester: Place, stream: StreamName, open: Open) -> Session {
        Session {
            requester,
            stream,
            tag: open.binding.tag(),
            open,
            phase: Phase::Opened,
            frames_sent: 0,
            snapshots: 0,
            head: Sequence(0),
            unacknowledged: VecDeque::new(),
            outstanding_bytes: 0,
            consumed: 0,
            facts: VecDeque::new(),
            delivered: 0,
        }
    }

    /// Whether the source has given the session anything but a refusal.
    #[must_use]
    pub fn is_served(&self) -> bool {
        self.frames_sent > 0
    }

    /// Whether a snapshot is between its acceptance and its end.
    #[must_use]
    pub fn serves_snapshot(&self) -> bool {
        matches!(self.phase, Phase::Scanning(_) | Phase::Replaying(_))
    }

    /// Where the scan that is under way stands.
    #[must_use]
    pub fn scan_place(&self) -> Option<ScanPlace> {
        match &self.phase {
            Phase::Scanning(staged) => staged.last,
            _ => None,
        }
    }

    /// Whether the source's scan of this session is not finished.
    #[must_use]
    pub fn scans(&self) -> bool {
        matches!(self.phase, Phase::Scanning(_))
    }

    /// A frame leaves the source.
    ///
    /// # Errors
    /// What it may not say.
    pub fn on_source_sends(
        &mut self,
        header: &Header,
        body: &[u8],
        view: &SourceView<'_>,
        counters: &mut Counters,
    ) -> Verdict {
        let bytes = (HEADER_BYTES + body.len()) as u64;
        self.judge_header(header, bytes, view)?;
        let message = decode_from_source(header, body).map_err(|error| Violation {
            oracle: Oracle::Source,
            what: format!("it sends no frame: {error}"),
        })?;
        let fact = self.judge(&message, body, view, counters)?;
        self.facts.push_back((header.frame, fact));
        let free = matches!(message, FromSource::Liveness { .. });
        if !free {
            self.unacknowledged.push_back((header.frame, bytes));
            self.outstanding_bytes += bytes;
        }
        hold(Oracle::Credits, self.outstanding_bytes <= u64::from(self.open.window_bytes), || {
            let (out, window) = (self.outstanding_bytes, self.open.window_bytes);
            format!("{:?} has {out} bytes out of a window of {window}", self.stream)
        })
    }

    fn judge_header(&mut self, header: &Header, bytes: u64, view: &SourceView<'_>) -> Verdict {
        let source = |holds, what: &str| {
            hold(Oracle::Source, holds, || format!("{what}: {header:?} to {:?}", self.requester))
        };
        source(header.tag == self.tag.0, "a frame has another session's tag")?;
        source(header.frame == self.frames_sent + 1, "frames are numbered without a gap")?;
        source(u64::from(header.length) == bytes, "a frame is as long as it says")?;
        source(!matches!(self.phase, Phase::Over), "nothing follows a refusal")?;
        let head = view.truth.stream(&self.stream).map_or(Sequence(0), StreamTruth::head);
        // A refusal may be about a life whose history is over, so only others speak of a head.
        if Kind::from_wire(header.kind) != Some(Kind::OpenRefused) {
            source(header.head <= head.0, "a head is one the journal has reached")?;
            source(header.head >= self.head.0, "heads do not go back")?;
        }
        self.head = Sequence(header.head);
        self.frames_sent = header.frame;
        let limit = self.open.frame_bytes_max;
        hold(Oracle::Bounds, bytes <= u64::from(limit), || {
            format!("a frame of {bytes} bytes where {limit} were announced")
        })
    }

    fn judge(
        &mut self,
        message: &FromSource<'_>,
        body: &[u8],
        view: &SourceView<'_>,
        counters: &mut Counters,
    ) -> Result<Fact, Violation> {
        let truth = view.truth.stream(&self.stream);
        let head = truth.map_or(Sequence(0), StreamTruth::head);
        let fault = |what: String| Violation { oracle: Oracle::Source, what };
        let stream = self.stream;
        let phase = std::mem::replace(&mut self.phase, Phase::Over);
        let fact = match (*message, phase) {
            (FromSource::OpenRefused { .. }, Phase::Opened) => Fact::Refused,
            (FromSource::Resumed { view, sequence }, Phase::Opened) => {
                let asked = self.open.resume.map(|resume| (resume.view, resume.sequence));
                if asked != Some((view, sequence)) || sequence > head {
                    return Err(fault(format!(
                        "resumed {view} at {sequence:?}, asked {asked:?}, head {head:?}"
                    )));
                }
                self.phase = Phase::Live(sequence);
                Fact::Resumed(view, sequence)
            }
            (FromSource::SnapshotQueued { .. }, phase @ (Phase::Opened | Phase::Offered(_))) => {
                self.phase = phase;
                Fact::Other
            }
            (FromSource::SnapshotBegin { snapshot, after, rows_max, .. }, _) => {
                if after > head {
                    return Err(fault(format!("a snapshot begins after {after:?}, the head is {head:?}")));
                }
                counters.add(Counter::SnapshotBegunAgain, u64::from(self.snapshots > 0));
                self.snapshots += 1;
                self.phase = Phase::Offered(Staged {
                    snapshot,
                    after,
                    through: after,
                    rows_max,
                    rows: 0,
                    pages: 0,
                    transcript: Transcript::new(snapshot),
                    accepted: false,
                    last: None,
                });
                Fact::Begin(snapshot, after)
            }
            (
                FromSource::SnapshotPage { snapshot, number, changes },
                Phase::Offered(mut staged) | Phase::Scanning(mut staged),
            ) if staged.snapshot == snapshot => {
                if !staged.accepted || number != staged.pages {
                    let accepted = staged.accepted;
                    return Err(fault(format!("page {number} after {}, accepted: {accepted}", staged.pages)));
                }
                let truth =
                    truth.ok_or_else(|| fault(format!("{stream:?} has no history but residences")))?;
                self.judge_page(&changes, &mut staged, truth, view)?;
                staged.pages += 1;
                staged.transcript.absorb(body);
                self.phase = Phase::Scanning(staged);
                Fact::Page(snapshot)
            }
            (
                FromSource::Delta { from, through, changes },
                Phase::Offered(mut staged) | Phase::Scanning(mut staged) | Phase::Replaying(mut staged),
            ) => {
                if !staged.accepted || from != staged.through || through > head {
                    let at = staged.through;
                    return Err(fault(format!(
                        "replay from {from:?} through {through:?}, it stood at {at:?}"
                    )));
                }
                self.judge_delta(from, through, &changes, view, counters)?;
                counters.count(Counter::Replay);
                staged.through = through;
                staged.transcript.absorb(body);
                self.phase = Phase::Replaying(staged);
                Fact::Delta(from, through)
            }
            (
                FromSource::SnapshotCommit { snapshot, through, pages, digest },
                Phase::Offered(staged) | Phase::Scanning(staged) | Phase::Replaying(staged),
            ) if staged.snapshot == snapshot => {
                let fits = staged.accepted && through == staged.through && pages == staged.pages;
                if !fits || digest != staged.transcript.digest() {
                    return Err(fault(format!(
                        "commit through {through:?} of {pages} pages, sent {staged:?}"
                    )));
                }
                counters.count(Counter::SnapshotCommit);
                counters.add(Counter::SnapshotEmpty, u64::from(staged.rows == 0));
                counters.add(Counter::SnapshotManyPages, u64::from(pages > 1));
                self.phase = Phase::Live(through);
                Fact::Commit(snapshot, through)
            }
            (FromSource::Delta { from, through, changes }, Phase::Live(at)) => {
                if from != at || through > head {
                    return Err(fault(format!(
                        "delta from {from:?} through {through:?}, it stood at {at:?}"
                    )));
                }
                self.judge_delta(from, through, &changes, view, counters)?;
                counters.count(Counter::Delta);
                self.phase = Phase::Live(through);
                Fact::Delta(from, through)
            }
            (FromSource::Progress { through }, Phase::Live(at)) => {
                let missed = truth.is_some_and(|truth| {
                    (at.0 + 1..=through.0)
                        .any(|at| self.in_scope(truth.change(Sequence(at)).key, &view.truth.universe))
                });
                if through < at || through > head || missed {
                    return Err(fault(format!("progress through {through:?} from {at:?} skips a change")));
                }
                self.phase = Phase::Live(through);
                Fact::Progress(through)
            }
            (FromSource::Liveness { .. }, phase) => {
                self.phase = phase;
                Fact::Other
            }
            (FromSource::ResetRequired { cause }, phase) => {
                if cause == ResetCause::HistoryGone {
                    match phase {
                        Phase::Scanning(_) => counters.count(Counter::OverrunInScan),
                        Phase::Replaying(_) => counters.count(Counter::OverrunInReplay),
                        _ => {}
                    }
                }
                self.phase = Phase::Opened;
                Fact::Reset
            }
            (message, phase) => return Err(fault(format!("{message:?} has no place after {phase:?}"))),
        };
        Ok(fact)
    }

    fn in_scope(&self, key: KeyId, universe: &Universe) -> bool {
        match &self.open.scope {
            Scope::All => true,
            Scope::Namespaces(list) => list.as_slice().binary_search(&universe.get(key).namespace).is_ok(),
        }
    }

    fn judge_page(
        &self,
        changes: &Changes<'_>,
        staged: &mut Staged,
        truth: &StreamTruth,
        view: &SourceView<'_>,
    ) -> Verdict {
        let namespaces: Vec<_> = changes.namespaces().collect();
        for change in changes.iter() {
            let namespace = namespaces[usize::from(change.namespace)];
            let place = ((view.scan_order)(&namespace), change.group.0, *change.block, change.medium as u8);
            let key = view.truth.universe.find(&namespace, change.group, change.block);
            let is = key.and_then(|key| {
                let known = truth.try_change(change.sequence)?;
                let put = WireChange::Put { bytes: known.bytes };
                (known.key == key && known.medium == change.medium && put == change.change).then_some(key)
            });
            // A scan may meet what was put after it began, but nothing that had ended by then.
            let alive = is.is_some() && truth.ended(change.sequence).is_none_or(|end| end > staged.after);
            let ordered = staged.last.is_none_or(|last| last < place);
            let wanted = is.is_some_and(|key| self.in_scope(key, &view.truth.universe));
            hold(Oracle::Source, alive && ordered && wanted, || {
                let at = change.sequence;
                format!("a page has {at:?}: residence {alive}, in order {ordered}, in scope {wanted}")
            })?;
            staged.last = Some(place);
            staged.rows += 1;
        }
        hold(Oracle::Source, staged.rows <= staged.rows_max, || {
            format!("a snapshot of {} rows was offered with {}", staged.rows, staged.rows_max)
        })
    }

    fn judge_delta(
        &self,
        from: Sequence,
        through: Sequence,
        changes: &Changes<'_>,
        view: &SourceView<'_>,
        counters: &mut Counters,
    ) -> Verdict {
        let truth = view.truth.stream(&self.stream).expect("an interval has a history");
        let universe = &view.truth.universe;
        let mut expected = truth.coalesced(from, through);
        expected.retain(|(_, change)| self.in_scope(change.key, universe));
        let covered = through.0 - from.0;
        counters.add(Counter::DeltaCoalesced, u64::from((changes.len() as u64) < covered));
        counters.add(Counter::DeltaEmpty, u64::from(changes.is_empty()));
        hold(Oracle::Source, changes.len() == expected.len(), || {
            let (sent, wanted) = (changes.len(), expected.len());
            format!("({from:?}, {through:?}] has {wanted} final effects, the delta has {sent}")
        })?;
        let namespaces: Vec<_> = changes.namespaces().collect();
        for (change, (sequence, wanted)) in changes.iter().zip(&expected) {
            let namespace = &namespaces[usize::from(change.namespace)];
            let bytes = match change.change {
                WireChange::Put { bytes } => bytes,
                WireChange::Delete => 0,
            };
            let key = universe.find(namespace, change.group, change.block);
            let same = key == Some(wanted.key) && change.medium == wanted.medium && bytes == wanted.bytes;
            hold(Oracle::Source, same && change.sequence == *sequence, || {
                format!("({from:?}, {through:?}] has {wanted:?} at {sequence:?}, the delta {change:?}")
            })?;
        }
        Ok(())
    }

    /// A frame of the requester has reached the source.
    ///
    /// # Errors
    /// An acknowledgement of what was never delivered.
    pub fn on_requester_heard(&mut self, message: &FromRequester, delivered: u64) -> Verdict {
        match *message {
            FromRequester::SnapshotAccept { snapshot } => match &mut self.phase {
                Phase::Offered(staged) if staged.snapshot == snapshot => staged.accepted = true,
                _ => {}
            },
            FromRequester::Ack { consumed_frame, .. } => {
                hold(Oracle::Credits, consumed_frame <= delivered, || {
                    format!("frame {consumed_frame} is acknowledged, {delivered} were delivered")
                })?;
                hold(Oracle::Bounds, consumed_frame > self.consumed, || {
                    format!("an idle session acknowledges frame {consumed_frame} again")
                })?;
                self.consumed = consumed_frame;
                while let Some(&(frame, bytes)) = self.unacknowledged.front()
                    && frame <= self.consumed
                {
                    self.unacknowledged.pop_front();
                    self.outstanding_bytes -= bytes;
                }
            }
            FromRequester::SnapshotRefuse { .. } | FromRequester::FlushThrough { .. } => {}
        }
        Ok(())
    }

    /// The source's end is gone: it serves nothing here any more.
    pub fn on_source_gone(&mut self) {
        self.phase = Phase::Over;
    }

    /// The next frame is delivered to the requester: what it proves.
    ///
    /// # Errors
    /// A frame that was never sent.
    pub fn on_delivered(&mut self, header: &Header) -> Result<Fact, Violation> {
        let (frame, fact) = self.facts.pop_front().unwrap_or((0, Fact::Other));
        let sent = frame == header.frame;
        hold(Oracle::Source, sent, || format!("frame {} is delivered, {frame} was next", header.frame))?;
        self.delivered = frame;
        Ok(fact)
    }

    /// The newest frame that was sent.
    #[must_use]
    pub fn frames_sent(&self) -> u64 {
        self.frames_sent
    }

    /// The newest frame that was delivered.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.delivered
    }
}

/// What a requester may believe of one owner stream after all that has arrived.
#[derive(Clone, Debug, Default)]
pub struct Proof {
    /// The view that is whole, and how far it is known.
    pub installed: Option<(SnapshotId, Sequence)>,
    staging: Option<(SnapshotId, Sequence)>,
    /// Heads that frames have named and that are not known to be reached, with their receipt.
    heads: VecDeque<(Sequence, Moment)>,
    fresh_at: Option<Moment>,
}

impl Proof {
    /// A frame has arrived. What it proves assumes that the requester took it.
    pub fn on_fact(&mut self, fact: Fact) {
        match fact {
            Fact::Begin(snapshot, after) => self.staging = Some((snapshot, after)),
            Fact::Delta(from, through) => {
                if let Some((_, at)) = self.staging.as_mut().or(self.installed.as_mut())
                    && from <= *at
                {
                    *at = through.max(*at);
                }
            }
            Fact::Commit(snapshot, through) => {
                if self.staging == Some((snapshot, through)) {
                    self.installed = self.staging.take();
                }
            }
            Fact::Progress(through) => {
                if let (Some((_, at)), None) = (&mut self.installed, self.staging) {
                    *at = through.max(*at);
                }
            }
            Fact::Resumed(view, sequence) => {
                if let Some((installed, at)) = &mut self.installed
                    && *installed == view
                {
                    *at = sequence.max(*at);
                }
            }
            Fact::Reset => self.staging = None,
            Fact::Page(_) | Fact::Refused | Fact::Other => {}
        }
    }

    /// A frame with this head has been received.
    pub fn on_head(&mut self, head: Sequence, receipt: Moment) {
        if self.heads.back().is_some_and(|(last, _)| *last == head) {
            self.heads.pop_back();
        }
        self.heads.push_back((head, receipt));
    }

    /// When the newest frame was received whose head is reached by a view applied through `applied`.
    pub fn fresh_at(&mut self, applied: Sequence) -> Option<Moment> {
        while let Some(&(_, receipt)) = self.heads.front().filter(|(head, _)| *head <= applied) {
            self.fresh_at = self.fresh_at.max(Some(receipt));
            self.heads.pop_front();
        }
        self.fresh_at
    }

    /// A session has ended: a snapshot does not go on in the next.
    pub fn on_session_ended(&mut self) {
        self.staging = None;
    }

    /// Whether a view may stand at `applied`.
    #[must_use]
    pub fn covers(&self, view: SnapshotId, applied: Sequence) -> bool {
        self.installed.is_some_and(|(installed, at)| installed == view && applied <= at)
    }
}
