//! A plain receiver: a set built from frames alone, held against the truth at every cut.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use orbitkv_wire::identity::{BlockHash, GroupId, Medium, NamespaceDigest, Sequence, SnapshotId};
use orbitkv_wire::inventory::{
    Changes, FromRequester, FromSource, HEADER_BYTES, Open, OpenRefusal, Resume, Tag, Transcript, WireChange,
    append_from_requester, append_open, decode_from_source, split_frame,
};

use super::rig::Shard;

/// A block on a medium, as both ends understand it.
pub type Name = (NamespaceDigest, GroupId, BlockHash, Medium);
/// What is resident, with the residency sequences.
pub type Rows = BTreeMap<Name, Sequence>;

/// A frame as a test likes to see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Refused(OpenRefusal, u64),
    Resumed(u64),
    Queued(u32),
    Begin(SnapshotId),
    Page(usize),
    Delta { from: u64, through: u64, changes: usize },
    Commit(u64),
    Progress(u64),
    Liveness,
    Reset(orbitkv_wire::inventory::ResetCause),
}

#[derive(Debug)]
struct Staging {
    snapshot: SnapshotId,
    accepted: bool,
    rows: Rows,
    rows_max: u64,
    scanned: u64,
    scanned_names: BTreeSet<Name>,
    pages: u32,
    cursor: Sequence,
    transcript: Transcript,
}

#[derive(Clone, Debug)]
pub struct View {
    pub id: SnapshotId,
    pub rows: Rows,
    pub applied: Sequence,
}

/// One session of a receiver.
#[derive(Debug)]
pub struct Receiver {
    pub open: Open,
    pub tag: Tag,
    pub view: Option<View>,
    staging: Option<Staging>,
    /// It refused a snapshot under way: what comes before another offer is nothing to it.
    discards: bool,
    /// Charged frames that were not acknowledged: number and bytes.
    pub unconsumed: VecDeque<(u64, usize)>,
    pub frames_heard: u64,
    pub frames_said: u64,
    pub head_heard: u64,
    pub bytes_heard: usize,
    pub accepts: bool,
    pub heard: Vec<Heard>,
    /// Frames to the source.
    pub says: Vec<Vec<u8>>,
}

impl Receiver {
    /// A session that opens with `open`, going on with `view` if there is one.
    pub fn new(open: Open, view: Option<View>) -> Receiver {
        let mut frame = Vec::new();
        append_open(&mut frame, &open);
        Receiver {
            tag: open.binding.tag(),
            open,
            view,
            staging: None,
            discards: false,
            unconsumed: VecDeque::new(),
            frames_heard: 0,
            frames_said: 1,
            head_heard: 0,
            bytes_heard: 0,
            accepts: true,
            heard: Vec::new(),
            says: vec![frame],
        }
    }

    pub fn say(&mut self, message: FromRequester) {
        self.frames_said += 1;
        let mut frame = Vec::new();
        append_from_requester(&mut frame, self.tag, self.frames_said, &message);
        self.says.push(frame);
    }

    /// Acknowledges the first `frames` charged frames that it has not yet.
    pub fn ack(&mut self, frames: usize) {
        let mut consumed_frame = 0;
        for _ in 0..frames.min(self.unconsumed.len()) {
            consumed_frame = self.unconsumed.pop_front().unwrap().0;
        }
        if consumed_frame > 0 {
            self.say_ack(consumed_frame);
        }
    }

    pub fn say_ack(&mut self, consumed_frame: u64) {
        let (view, applied) =
            self.view.as_ref().map_or((SnapshotId([0; 16]), Sequence(0)), |view| (view.id, view.applied));
        self.say(FromRequester::Ack { consumed_frame, view, applied });
    }

    /// Whether an offer waits for its answer.
    pub fn is_offered(&self) -> bool {
        self.staging.as_ref().is_some_and(|staging| !staging.accepted)
    }

    pub fn accept(&mut self) {
        let staging = self.staging.as_mut().unwrap();
        staging.accepted = true;
        let snapshot = staging.snapshot;
        self.say(FromRequester::SnapshotAccept { snapshot });
    }

    pub fn refuse(&mut self, retry_after_ms: u32) {
        if let Some(staging) = self.staging.take() {
            self.discards = true;
            self.say(FromRequester::SnapshotRefuse { snapshot: staging.snapshot, retry_after_ms });
        }
    }

    /// A refusal of what the source has committed meanwhile: the commit comes after it was said.
    pub fn refuse_committed(&mut self, retry_after_ms: u32) -> SnapshotId {
        let View { id: snapshot, .. } = self.view.take().expect("a commit that crosses the refusal");
        self.discards = true;
        self.say(FromRequester::SnapshotRefuse { snapshot, retry_after_ms });
        snapshot
    }

    pub fn resume(&self) -> Option<Resume> {
        self.view.as_ref().map(|view| Resume { view: view.id, sequence: view.applied })
    }

    pub fn outstanding_bytes(&self) -> usize {
        self.unconsumed.iter().map(|(_, bytes)| bytes).sum()
    }

    /// One frame of the source.
    pub fn on_frame(&mut self, bytes: &[u8], shard: &Shard) {
        let (header, body) = split_frame(bytes, self.open.frame_bytes_max as usize).unwrap().unwrap();
        assert_eq!(body.end, bytes.len());
        assert_eq!(header.tag, self.tag.0, "a frame of this session");
        assert_eq!(header.frame, self.frames_heard + 1, "frames are numbered without a gap");
        assert!(header.head >= self.head_heard && header.head <= shard.journal.head().0);
        self.frames_heard = header.frame;
        self.head_heard = header.head;
        self.bytes_heard += bytes.len();
        let body = &bytes[HEADER_BYTES..];
        let message = decode_from_source(&header, body).unwrap();
        if !matches!(message, FromSource::Liveness { .. } | FromSource::OpenRefused { .. }) {
            self.unconsumed.push_back((header.frame, bytes.len()));
            assert!(self.outstanding_bytes() <= self.open.window_bytes as usize, "the window holds");
        }
        match message {
            FromSource::SnapshotBegin { .. } => self.discards = false,
            FromSource::Liveness { .. }
            | FromSource::SnapshotQueued { .. }
            | FromSource::ResetRequired { .. } => {}
            _ if self.discards => return,
            _ => {}
        }
        let heard = self.take(message, body, shard);
        self.heard.push(heard);
    }

    fn take(&mut self, message: FromSource<'_>, body: &[u8], shard: &Shard) -> Heard {
        match message {
            FromSource::OpenRefused { cause, revision, .. } => Heard::Refused(cause, revision),
            FromSource::Resumed { view, sequence } => {
                let own = self.view.as_ref().expect("only a view resumes");
                assert_eq!((own.id, own.applied), (view, sequence));
                Heard::Resumed(sequence.0)
            }
            FromSource::SnapshotQueued { position } => Heard::Queued(position),
            FromSource::SnapshotBegin { snapshot, after, rows_max, .. } => {
                self.staging = Some(Staging {
                    snapshot,
                    accepted: false,
                    rows: Rows::new(),
                    rows_max,
                    scanned: 0,
                    scanned_names: BTreeSet::new(),
                    pages: 0,
                    cursor: after,
                    transcript: Transcript::new(snapshot),
                });
                if self.accepts {
                    self.accept();
                }
                Heard::Begin(snapshot)
            }
            FromSource::SnapshotPage { snapshot, number, changes } => {
                let staging = self.staging.as_mut().expect("a page belongs to an offer");
                assert!(staging.accepted && staging.snapshot == snapshot, "no page before its Accept");
                assert_eq!(number, staging.pages);
                staging.pages += 1;
                staging.transcript.absorb(body);
                staging.scanned += changes.len() as u64;
                assert!(staging.scanned <= staging.rows_max, "the offer bounds the rows");
                for (name, change, sequence) in named(&changes) {
                    assert!(matches!(change, WireChange::Put { .. }));
                    assert!(staging.scanned_names.insert(name), "the scan meets each residence once");
                    assert!(self.open.scope.contains(&name.0), "only subscribed namespaces");
                    staging.rows.insert(name, sequence);
                }
                Heard::Page(changes.len())
            }
            FromSource::Delta { from, through, changes } => {
                if let Some(staging) = self.staging.as_mut().filter(|staging| staging.accepted) {
                    assert_eq!(from, staging.cursor, "the replay is contiguous");
                    staging.transcript.absorb(body);
                    staging.cursor = through;
                    apply(&mut staging.rows, &changes);
                } else {
                    let view = self.view.as_mut().expect("a delta changes a view");
                    assert_eq!(from, view.applied, "deltas are contiguous");
                    view.applied = through;
                    apply(&mut view.rows, &changes);
                    self.compare(shard);
                }
                Heard::Delta { from: from.0, through: through.0, changes: changes.len() }
            }
            FromSource::SnapshotCommit { snapshot, through, pages, digest } => {
                let staging = self.staging.take().expect("a commit belongs to an offer");
                assert!(staging.accepted && staging.snapshot == snapshot);
                assert_eq!((staging.cursor, staging.pages), (through, pages));
                assert_eq!(staging.transcript.digest(), digest);
                self.view = Some(View { id: snapshot, rows: staging.rows, applied: through });
                self.compare(shard);
                Heard::Commit(through.0)
            }
            FromSource::Progress { through } => {
                let view = self.view.as_mut().expect("progress is of a view");
                assert!(through > view.applied, "progress moves the cursor");
                view.applied = through;
                self.compare(shard);
                Heard::Progress(through.0)
            }
            FromSource::Liveness { .. } => Heard::Liveness,
            FromSource::ResetRequired { cause } => {
                self.staging = None;
                Heard::Reset(cause)
            }
        }
    }

    /// The set is the truth at its cut, no more and no less.
    fn compare(&self, shard: &Shard) {
        let view = self.view.as_ref().unwrap();
        let truth = shard.truth(view.applied, &self.open.scope);
        assert_eq!(view.rows, truth, "the view is not the truth at {}", view.applied.0);
    }
}

fn named<'a>(changes: &Changes<'a>) -> impl Iterator<Item = (Name, WireChange, Sequence)> + use<'a> {
    let namespaces: Vec<_> = changes.namespaces().collect();
    changes.iter().map(move |change| {
        let namespace = namespaces[usize::from(change.namespace)];
        let name = (namespace, change.group, BlockHash(*change.block), change.medium);
        (name, change.change, change.sequence)
    })
}

fn apply(rows: &mut Rows, changes: &Changes<'_>) {
    for (name, change, sequence) in named(changes) {
        match change {
            WireChange::Put { .. } => drop(rows.insert(name, sequence)),
            WireChange::Delete => drop(rows.remove(&name)),
        }
    }
}
