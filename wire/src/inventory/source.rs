//! What a source says: refusals, a snapshot from its offer to its commit, deltas, and signs of life.

use super::changes::Order;
use super::{
    Body, Changes, FrameError, Header, Kind, SequenceBody, TranscriptDigest, check_header, ensure, within,
};
use crate::bounds::{INTERVAL_RECORDS_MAX, INVENTORY_BODY_BYTES_MAX, PAGE_BYTES_MAX};
use crate::identity::{Incarnation, Sequence, SnapshotId};
use crate::layout::{Fixed, Reader, fixed};
use crate::numbered::numbered;

fixed! {
    /// Body of OpenRefused.
    pub struct OpenRefusedBody {
        /// [`OpenRefusal`].
        pub cause: u8,
        /// Membership revision the source judged by.
        pub revision: u64,
        /// The source's epoch.
        pub epoch: u64,
        /// The source's life.
        pub incarnation: [u8; 16],
    }

    /// Body of Resumed.
    pub struct ResumedBody {
        /// The view that goes on.
        pub view: [u8; 16],
        /// The sequence it goes on after.
        pub sequence: u64,
    }

    /// Body of SnapshotQueued.
    pub struct SnapshotQueuedBody {
        /// Snapshots that come first.
        pub position: u32,
    }

    /// Body of SnapshotBegin.
    pub struct SnapshotBeginBody {
        /// The snapshot.
        pub snapshot: [u8; 16],
        /// Head before the scan; the replay begins after it.
        pub after: u64,
        /// Upper bound of the residences that will come.
        pub rows_max: u64,
        /// Bytes of pages that they take about.
        pub bytes: u64,
    }

    /// Body of SnapshotPage; [`NamespaceRecord`](super::NamespaceRecord)s follow, then
    /// [`ChangeRecord`](super::ChangeRecord)s.
    pub struct SnapshotPageBody {
        /// The snapshot.
        pub snapshot: [u8; 16],
        /// Number of the page, from 0.
        pub number: u32,
        /// Namespaces listed.
        pub namespaces: u16,
    }

    /// Body of Delta; [`NamespaceRecord`](super::NamespaceRecord)s follow, then
    /// [`ChangeRecord`](super::ChangeRecord)s.
    pub struct DeltaBody {
        /// Where the interval begins, exclusive.
        pub from: u64,
        /// Where it ends, inclusive.
        pub through: u64,
        /// Namespaces listed.
        pub namespaces: u16,
    }

    /// Body of SnapshotCommit.
    pub struct SnapshotCommitBody {
        /// The snapshot.
        pub snapshot: [u8; 16],
        /// Head that the replay reaches; deltas continue after it.
        pub through: u64,
        /// Pages sent.
        pub pages: u32,
        /// Digest over pages and replay deltas.
        pub digest: [u8; 16],
    }

    /// Body of Liveness: how busy the source's shard is. Evidence for a cost, never a permission.
    pub struct ResourceSummary {
        /// Milliseconds that were measured over.
        pub window_ms: u32,
        /// Payload reads that waited or ran at the end of the window.
        pub reads_queued: u32,
        /// Thousandths of the window in which the SSD was busy, up to 1,000.
        pub ssd_busy_permille: u16,
        /// Thousandths of the egress bound that were used, up to 1,000; 0 without one.
        pub egress_busy_permille: u16,
    }

    /// Body of ResetRequired.
    pub struct ResetRequiredBody {
        /// [`ResetCause`].
        pub cause: u8,
    }
}

impl ResourceSummary {
    /// Whether no more than all of a resource was busy.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        self.ssd_busy_permille <= 1_000 && self.egress_busy_permille <= 1_000
    }
}

numbered! {
    /// Why a session is not to be.
    pub enum OpenRefusal: u8 {
        /// The requester's life is not in the source's map at this revision: try again.
        NotInMap = 0,
        /// A session with this attempt or a later one has been seen.
        StaleAttempt = 1,
        /// The source has another epoch or another life.
        WrongSource = 2,
        /// The source has no such shard, or it is served on another port.
        WrongShard = 3,
        /// The source's own life has been fenced.
        Fenced = 4,
        /// The source has no room for another session: try again.
        Busy = 5,
    }
}

numbered! {
    /// Why what was sent so far cannot be continued. A bootstrap follows in the same session.
    pub enum ResetCause: u8 {
        /// The journal no longer has what comes next.
        HistoryGone = 0,
        /// This subscriber reads too slowly and its queue share is spent.
        SlowSubscriber = 1,
        /// The source's queues are full.
        Overload = 2,
        /// The requester speaks of a view or a sequence that the source does not believe in.
        ViewUnknown = 3,
        /// The snapshot's permit ended before its commit.
        SnapshotExpired = 4,
    }
}

/// A message of a source, validated; changes are read where they lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromSource<'a> {
    /// The session is not to be.
    OpenRefused {
        /// Why.
        cause: OpenRefusal,
        /// Membership revision the source judged by.
        revision: u64,
        /// The source's epoch.
        epoch: u64,
        /// The source's life.
        incarnation: Incarnation,
    },
    /// The view goes on where it was.
    Resumed {
        /// Which one.
        view: SnapshotId,
        /// The sequence it goes on after.
        sequence: Sequence,
    },
    /// No snapshot permit yet.
    SnapshotQueued {
        /// Snapshots that come first.
        position: u32,
    },
    /// An offer of a snapshot.
    SnapshotBegin {
        /// Its id, under which it will be installed.
        snapshot: SnapshotId,
        /// Head before the scan; the replay begins after it.
        after: Sequence,
        /// Upper bound of the residences that will come.
        rows_max: u64,
        /// Bytes of pages that they take about.
        bytes: u64,
    },
    /// Residences of a snapshot.
    SnapshotPage {
        /// Which one.
        snapshot: SnapshotId,
        /// Number of the page, from 0.
        number: u32,
        /// The residences, all puts, in the order of the scan.
        changes: Changes<'a>,
    },
    /// The final effect per key of a contiguous interval.
    Delta {
        /// Where the interval begins, exclusive.
        from: Sequence,
        /// Where it ends, inclusive.
        through: Sequence,
        /// The effects, in the order of their sequences. There may be none.
        changes: Changes<'a>,
    },
    /// Scan and replay are whole: install.
    SnapshotCommit {
        /// Which one.
        snapshot: SnapshotId,
        /// Head that the replay reached.
        through: Sequence,
        /// Pages sent.
        pages: u32,
        /// Digest over pages and replay deltas, in the order they were sent.
        digest: TranscriptDigest,
    },
    /// Nothing up to here was for this scope.
    Progress {
        /// Inclusive.
        through: Sequence,
    },
    /// Still there.
    Liveness {
        /// How busy.
        summary: ResourceSummary,
    },
    /// What was sent so far cannot be continued.
    ResetRequired {
        /// Why.
        cause: ResetCause,
    },
}

/// Decodes everything a source says. Nothing of the body is copied that lies in an array.
///
/// # Errors
/// [`FrameError`] naming what is wrong.
pub fn decode_from_source<'a>(header: &Header, body: &'a [u8]) -> Result<FromSource<'a>, FrameError> {
    let kind = Kind::from_wire(header.kind).ok_or(FrameError::Kind { number: header.kind })?;
    check_header(header, matches!(kind, Kind::SnapshotPage | Kind::Delta))?;
    within("bytes of a body", body.len(), INVENTORY_BODY_BYTES_MAX)?;
    let mut reader = Reader::new(body);
    let message = match kind {
        Kind::OpenRefused => {
            let OpenRefusedBody { cause, revision, epoch, incarnation } = reader.take()?;
            let cause = known(OpenRefusal::from_wire(cause), "a refusal has no such cause")?;
            FromSource::OpenRefused { cause, revision, epoch, incarnation: Incarnation(incarnation) }
        }
        Kind::Resumed => {
            let ResumedBody { view, sequence } = reader.take()?;
            let sequence = reached(header, sequence)?;
            FromSource::Resumed { view: SnapshotId(view), sequence }
        }
        Kind::SnapshotQueued => {
            let SnapshotQueuedBody { position } = reader.take()?;
            FromSource::SnapshotQueued { position }
        }
        Kind::SnapshotBegin => {
            let SnapshotBeginBody { snapshot, after, rows_max, bytes } = reader.take()?;
            let after = reached(header, after)?;
            FromSource::SnapshotBegin { snapshot: SnapshotId(snapshot), after, rows_max, bytes }
        }
        Kind::SnapshotPage => {
            within("bytes of a page", body.len(), PAGE_BYTES_MAX)?;
            let SnapshotPageBody { snapshot, number, namespaces } = reader.take()?;
            let order = Order::Scan { head: Sequence(header.head) };
            let changes = Changes::take(&mut reader, namespaces, header.count, &order)?;
            FromSource::SnapshotPage { snapshot: SnapshotId(snapshot), number, changes }
        }
        Kind::Delta => {
            within("changes of a delta", header.count as usize, INTERVAL_RECORDS_MAX)?;
            let DeltaBody { from, through, namespaces } = reader.take()?;
            let (from, through) = (Sequence(from), reached(header, through)?);
            ensure(from < through, "a delta covers nothing")?;
            let order = Order::Interval { from, through };
            let changes = Changes::take(&mut reader, namespaces, header.count, &order)?;
            FromSource::Delta { from, through, changes }
        }
        Kind::SnapshotCommit => {
            let SnapshotCommitBody { snapshot, through, pages, digest } = reader.take()?;
            let (snapshot, through) = (SnapshotId(snapshot), reached(header, through)?);
            FromSource::SnapshotCommit { snapshot, through, pages, digest: TranscriptDigest(digest) }
        }
        Kind::Progress => {
            let SequenceBody { sequence } = reader.take()?;
            FromSource::Progress { through: reached(header, sequence)? }
        }
        Kind::Liveness => {
            let summary: ResourceSummary = reader.take()?;
            ensure(summary.is_possible(), "more than all of a resource was busy")?;
            FromSource::Liveness { summary }
        }
        Kind::ResetRequired => {
            let ResetRequiredBody { cause } = reader.take()?;
            let cause = known(ResetCause::from_wire(cause), "a reset has no such cause")?;
            FromSource::ResetRequired { cause }
        }
        Kind::Open | Kind::SnapshotAccept | Kind::SnapshotRefuse | Kind::Ack | Kind::FlushThrough => {
            return Err(FrameError::Kind { number: header.kind });
        }
    };
    reader.finish()?;
    Ok(message)
}

/// The body of a message of a source, to be put behind the header of each session that gets it. Pages and
/// deltas are built by a [`ChangesWriter`](super::ChangesWriter); here they are spelled again.
#[must_use]
pub fn source_body(message: &FromSource<'_>) -> Body {
    match *message {
        FromSource::OpenRefused { cause, revision, epoch, incarnation } => {
            let cause = cause as u8;
            plain(Kind::OpenRefused, &OpenRefusedBody { cause, revision, epoch, incarnation: incarnation.0 })
        }
        FromSource::Resumed { view, sequence } => {
            plain(Kind::Resumed, &ResumedBody { view: view.0, sequence: sequence.0 })
        }
        FromSource::SnapshotQueued { position } => {
            plain(Kind::SnapshotQueued, &SnapshotQueuedBody { position })
        }
        FromSource::SnapshotBegin { snapshot, after, rows_max, bytes } => {
            let body = SnapshotBeginBody { snapshot: snapshot.0, after: after.0, rows_max, bytes };
            plain(Kind::SnapshotBegin, &body)
        }
        FromSource::SnapshotPage { snapshot, number, changes } => {
            let namespaces = changes.namespace_count();
            let body = SnapshotPageBody { snapshot: snapshot.0, number, namespaces };
            with_changes(Kind::SnapshotPage, &body, &changes)
        }
        FromSource::Delta { from, through, changes } => {
            let namespaces = changes.namespace_count();
            let body = DeltaBody { from: from.0, through: through.0, namespaces };
            with_changes(Kind::Delta, &body, &changes)
        }
        FromSource::SnapshotCommit { snapshot, through, pages, digest } => {
            let (snapshot, digest) = (snapshot.0, digest.0);
            plain(Kind::SnapshotCommit, &SnapshotCommitBody { snapshot, through: through.0, pages, digest })
        }
        FromSource::Progress { through } => plain(Kind::Progress, &SequenceBody { sequence: through.0 }),
        FromSource::Liveness { summary } => plain(Kind::Liveness, &summary),
        FromSource::ResetRequired { cause } => {
            plain(Kind::ResetRequired, &ResetRequiredBody { cause: cause as u8 })
        }
    }
}

fn plain<B: Fixed>(kind: Kind, fixed: &B) -> Body {
    let mut bytes = Vec::with_capacity(B::BYTES);
    fixed.append_to(&mut bytes);
    Body { kind, count: 0, bytes }
}

fn with_changes<B: Fixed>(kind: Kind, fixed: &B, changes: &Changes<'_>) -> Body {
    let mut body = plain(kind, fixed);
    changes.append_to(&mut body.bytes);
    body.count = changes.len() as u32;
    body
}

/// A sequence that the source can speak of because its journal has got there.
fn reached(header: &Header, sequence: u64) -> Result<Sequence, FrameError> {
    ensure(sequence <= header.head, "a frame speaks of a sequence beyond the source's head")?;
    Ok(Sequence(sequence))
}

fn known<T>(value: Option<T>, what: &'static str) -> Result<T, FrameError> {
    value.ok_or(FrameError::Contradiction { what })
}
