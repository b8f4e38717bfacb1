//! Open: the first frame of a session, which alone spells out everything the session is bound to.

use super::{
    Binding, FrameError, HEADER_BYTES, Header, Kind, Requester, SourceStream, check_requester_header, ensure,
    header_bytes, within,
};
use crate::bounds::{INVENTORY_FRAME_BYTES_MIN, OPEN_BYTES_MAX, SCOPE_NAMESPACES_MAX, WINDOW_FRAMES_MIN};
use crate::identity::{
    ClusterUuid, Incarnation, NamespaceDigest, NodeId, Sequence, SessionId, ShardIndex, SnapshotId,
};
use crate::layout::{Fixed, Reader, fixed};
use crate::numbered::numbered;
use crate::scope::{NamespaceList, Scope, ScopeDigest, ScopeError};
use crate::text::Text;

fixed! {
    /// Body of Open; the [`NamespaceRecord`](super::NamespaceRecord)s of an exact scope follow.
    pub struct OpenBody {
        /// Cluster both belong to.
        pub cluster: [u8; 16],
        /// Node that is asked.
        pub source: Text<64>,
        /// Its epoch.
        pub source_epoch: u64,
        /// Its life.
        pub source_incarnation: [u8; 16],
        /// Its shard.
        pub source_shard: u16,
        /// Node that asks.
        pub requester: Text<64>,
        /// Its life.
        pub requester_incarnation: [u8; 16],
        /// Digest of the scope that follows.
        pub scope_digest: [u8; 32],
        /// Drawn at random for this session.
        pub session: [u8; 16],
        /// Grows with every Open of this requester's life for this stream; the source takes only a higher one.
        pub attempt: u64,
        /// Bytes of unacknowledged frames the requester can take, at least two of the largest frame.
        pub window_bytes: u32,
        /// Largest frame the requester takes, header included.
        pub frame_bytes_max: u32,
        /// [`ScopeKind`].
        pub scope: u8,
        /// 1 to continue from an installed view. Else 0.
        pub resume: u8,
        /// Resume: the view. Else 0.
        pub resume_view: [u8; 16],
        /// Resume: the sequence applied last. Else 0.
        pub resume_sequence: u64,
    }
}

numbered! {
    /// How a scope is given.
    pub enum ScopeKind: u8 {
        /// Every namespace; none is listed.
        All = 0,
        /// Exactly the listed ones, which may be none.
        Namespaces = 1,
    }
}

const _: () = assert!(
    HEADER_BYTES + OpenBody::BYTES + SCOPE_NAMESPACES_MAX * size_of::<NamespaceDigest>() <= OPEN_BYTES_MAX
);

/// Where an installed view stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The view, which is the snapshot it began with.
    pub view: SnapshotId,
    /// Everything up to here has been applied.
    pub sequence: Sequence,
}

/// What a requester asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// What the session is bound to. Its scope is the digest of `scope`.
    pub binding: Binding,
    /// Monotone per requester's life and owner stream: a delayed Open cannot displace its successor.
    pub attempt: u64,
    /// The namespaces subscribed to.
    pub scope: Scope,
    /// Bytes of unacknowledged frames the requester can take.
    pub window_bytes: u32,
    /// Largest frame the requester takes, header included.
    pub frame_bytes_max: u32,
    /// The view to continue, or nothing for a snapshot.
    pub resume: Option<Resume>,
}

/// Appends an Open frame, the first of its direction.
///
/// # Panics
/// If the binding's scope is not the digest of the scope, or the window does not hold two frames.
pub fn append_open(out: &mut Vec<u8>, open: &Open) {
    let Open { binding, attempt, scope, window_bytes, frame_bytes_max, resume } = open;
    assert_eq!(binding.scope, scope.digest(), "a session is bound to the scope it opens with");
    check_window(*window_bytes, *frame_bytes_max).expect("our own window holds two frames");
    let node = |node: &NodeId| Text::new(node.as_str()).expect("a node id fits");
    let (scope, namespaces) = match scope {
        Scope::All => (ScopeKind::All, &[][..]),
        Scope::Namespaces(list) => (ScopeKind::Namespaces, list.as_slice()),
    };
    let body = OpenBody {
        cluster: binding.cluster.0,
        source: node(&binding.source.node),
        source_epoch: binding.source.epoch,
        source_incarnation: binding.source.incarnation.0,
        source_shard: binding.source.shard.0,
        requester: node(&binding.requester.node),
        requester_incarnation: binding.requester.incarnation.0,
        scope_digest: binding.scope.0,
        session: binding.session.0,
        attempt: *attempt,
        window_bytes: *window_bytes,
        frame_bytes_max: *frame_bytes_max,
        scope: scope as u8,
        resume: u8::from(resume.is_some()),
        resume_view: resume.map_or([0; 16], |resume| resume.view.0),
        resume_sequence: resume.map_or(0, |resume| resume.sequence.0),
    };
    let body_bytes = OpenBody::BYTES + size_of_val(namespaces);
    let count = namespaces.len() as u32;
    let header = Header::new(Kind::Open, binding.tag(), 1, Sequence(0), count, body_bytes);
    out.extend_from_slice(&header_bytes(&header));
    body.append_to(out);
    namespaces.iter().for_each(|namespace| out.extend_from_slice(&namespace.0));
}

/// Decodes an Open.
///
/// # Errors
/// [`FrameError`] naming what is wrong; among it a scope that does not have the digest it claims, and a
/// tag that is not the binding's.
pub fn decode_open(header: &Header, body: &[u8]) -> Result<Open, FrameError> {
    if header.kind != Kind::Open as u8 {
        return Err(FrameError::Kind { number: header.kind });
    }
    check_requester_header(header, true)?;
    ensure(header.frame == 1, "an Open is the first frame of its session")?;
    within("bytes of an Open", header.length as usize, OPEN_BYTES_MAX)?;
    let count = within("namespaces of a scope", header.count as usize, SCOPE_NAMESPACES_MAX)?;
    let mut reader = Reader::new(body);
    let open: OpenBody = reader.take()?;
    let (listed, _) = reader.take_bytes(count * size_of::<NamespaceDigest>())?.as_chunks::<32>();
    reader.finish()?;

    let scope = scope(open.scope, listed)?;
    ensure(scope.digest() == ScopeDigest(open.scope_digest), "the scope has another digest than it claims")?;
    check_window(open.window_bytes, open.frame_bytes_max)?;
    let resume = Resume { view: SnapshotId(open.resume_view), sequence: Sequence(open.resume_sequence) };
    let resume = match open.resume {
        0 if resume == (Resume { view: SnapshotId([0; 16]), sequence: Sequence(0) }) => None,
        1 => Some(resume),
        _ => return Err(FrameError::Contradiction { what: "an Open neither resumes nor does not" }),
    };
    let binding = Binding {
        cluster: ClusterUuid(open.cluster),
        source: SourceStream {
            node: node(&open.source)?,
            epoch: open.source_epoch,
            incarnation: Incarnation(open.source_incarnation),
            shard: ShardIndex(open.source_shard),
        },
        requester: Requester {
            node: node(&open.requester)?,
            incarnation: Incarnation(open.requester_incarnation),
        },
        scope: ScopeDigest(open.scope_digest),
        session: SessionId(open.session),
    };
    ensure(binding.tag().0 == header.tag, "the header's tag is not that of the binding")?;
    let (window_bytes, frame_bytes_max) = (open.window_bytes, open.frame_bytes_max);
    Ok(Open { binding, attempt: open.attempt, scope, window_bytes, frame_bytes_max, resume })
}

fn scope(kind: u8, listed: &[[u8; 32]]) -> Result<Scope, FrameError> {
    let kind =
        ScopeKind::from_wire(kind).ok_or(FrameError::Contradiction { what: "no such kind of scope" })?;
    match kind {
        ScopeKind::All => {
            ensure(listed.is_empty(), "a scope of all namespaces lists some")?;
            Ok(Scope::All)
        }
        ScopeKind::Namespaces => {
            let listed = listed.iter().copied().map(NamespaceDigest).collect();
            NamespaceList::from_sorted(listed).map(Scope::Namespaces).map_err(|error| match error {
                ScopeError::TooMany => unreachable!("the count has been checked"),
                ScopeError::Unsorted => {
                    FrameError::Contradiction { what: "a scope does not ascend strictly" }
                }
            })
        }
    }
}

fn node(text: &Text<64>) -> Result<NodeId, FrameError> {
    let named = text.as_str().and_then(|text| NodeId::new(text).ok());
    named.ok_or(FrameError::Contradiction { what: "a node has no legal name" })
}

fn check_window(window_bytes: u32, frame_bytes_max: u32) -> Result<(), FrameError> {
    ensure(
        frame_bytes_max as usize >= INVENTORY_FRAME_BYTES_MIN,
        "the largest frame a requester takes has no room for one change",
    )?;
    ensure(
        window_bytes as usize / WINDOW_FRAMES_MIN >= frame_bytes_max as usize,
        "a requester's window does not hold two of its largest frames",
    )
}
