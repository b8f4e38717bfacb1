//! Authorize: the first frame of an operation, which spells out both ends and every residence it wants.

use super::{
    Binding, FrameError, HEADER_BYTES, Header, Kind, OperationId, check_header, ensure, known, within,
};
use crate::bounds::{DEADLINE_MS_MAX, GRANT_KEYS_MAX, PAYLOAD_FRAME_BYTES_MAX};
use crate::identity::{
    BlockHash, ClusterUuid, GroupId, Incarnation, Medium, NamespaceDigest, NodeId, Sequence, ShardIndex,
};
use crate::inventory::{NamespaceRecord, Requester, SourceStream};
use crate::layout::{Fixed, Reader, fixed};
use crate::numbered::numbered;
use crate::text::Text;

fixed! {
    /// Body of Authorize; `namespaces` [`NamespaceRecord`]s and `count` [`ResidenceRecord`]s follow.
    pub struct AuthorizeBody {
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
        /// Milliseconds from now on in which the bytes are of use.
        pub deadline_ms: u32,
        /// [`Transport`].
        pub transport: u8,
        /// [`Attempt`].
        pub attempt: u8,
        /// Namespaces listed.
        pub namespaces: u16,
    }

    /// One residence that is wanted.
    pub struct ResidenceRecord {
        /// Index in the frame's namespaces.
        pub namespace: u16,
        /// Layer group.
        pub group: u16,
        /// Block hash.
        pub block: [u8; 32],
        /// Medium: 0 DRAM, 1 SSD.
        pub medium: u8,
        /// Residency sequence, at least 1.
        pub sequence: u64,
    }
}

numbered! {
    /// How bytes are to come.
    pub enum Transport: u8 {
        /// On the stream of the operation.
        Quic = 0,
        /// The requester reads them in the source's arena, on the same host.
        Shm = 1,
    }
}

numbered! {
    /// Which ask for its residences a request is. Only a requester asks again: the number is there for a source to see
    /// how much of its work comes of that.
    pub enum Attempt: u8 {
        /// None of them was tried before.
        First = 0,
        /// Each was tried once before, here or elsewhere.
        Second = 1,
        /// Each was tried twice before.
        Third = 2,
    }
}

const _: () = assert!(
    HEADER_BYTES + AuthorizeBody::BYTES + GRANT_KEYS_MAX * (NamespaceRecord::BYTES + ResidenceRecord::BYTES)
        <= PAYLOAD_FRAME_BYTES_MAX
);

/// One exact residence of a shard. With the incarnation and shard of the binding it names bytes that never
/// change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExactResidence {
    /// The namespace.
    pub namespace: NamespaceDigest,
    /// The layer group.
    pub group: GroupId,
    /// The block hash.
    pub block: BlockHash,
    /// The medium.
    pub medium: Medium,
    /// The residency sequence, at least 1.
    pub sequence: Sequence,
}

/// What a requester asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorize {
    /// Both ends.
    pub binding: Binding,
    /// The operation that begins.
    pub operation: OperationId,
    /// Milliseconds from now on in which the bytes are of use, at least 1.
    pub deadline_ms: u32,
    /// How they are to come.
    pub transport: Transport,
    /// Which ask for them it is.
    pub attempt: Attempt,
    /// What is wanted: 1 to [`GRANT_KEYS_MAX`] residences, none twice.
    pub residences: Vec<ExactResidence>,
}

/// Appends an Authorize frame.
///
/// # Panics
/// If there are no residences, too many or one twice, or the deadline is 0 or too long.
pub fn append_authorize(out: &mut Vec<u8>, authorize: &Authorize) {
    let Authorize { binding, operation, deadline_ms, transport, attempt, residences } = authorize;
    assert!((1..=GRANT_KEYS_MAX).contains(&residences.len()), "an operation wants 1 to {GRANT_KEYS_MAX}");
    assert!(is_each_once(residences), "an operation wants each residence once");
    assert!((1..=DEADLINE_MS_MAX).contains(deadline_ms), "an operation has a deadline");
    let mut namespaces: Vec<NamespaceDigest> = residences.iter().map(|wanted| wanted.namespace).collect();
    namespaces.sort_unstable();
    namespaces.dedup();
    let node = |node: &NodeId| Text::new(node.as_str()).expect("a node id fits");
    let body = AuthorizeBody {
        cluster: binding.cluster.0,
        source: node(&binding.source.node),
        source_epoch: binding.source.epoch,
        source_incarnation: binding.source.incarnation.0,
        source_shard: binding.source.shard.0,
        requester: node(&binding.requester.node),
        requester_incarnation: binding.requester.incarnation.0,
        deadline_ms: *deadline_ms,
        transport: *transport as u8,
        attempt: *attempt as u8,
        namespaces: namespaces.len() as u16,
    };
    let body_bytes = AuthorizeBody::BYTES
        + namespaces.len() * NamespaceRecord::BYTES
        + residences.len() * ResidenceRecord::BYTES;
    Header::new(Kind::Authorize, binding.tag(), *operation, residences.len() as u32, body_bytes)
        .append_to(out);
    body.append_to(out);
    namespaces.iter().for_each(|namespace| NamespaceRecord { namespace: namespace.0 }.append_to(out));
    for wanted in residences {
        let namespace = namespaces.binary_search(&wanted.namespace).expect("every namespace is listed");
        let record = ResidenceRecord {
            namespace: namespace as u16,
            group: wanted.group.0,
            block: wanted.block.0,
            medium: wanted.medium as u8,
            sequence: wanted.sequence.0,
        };
        record.append_to(out);
    }
}

/// Decodes an Authorize.
///
/// # Errors
/// [`FrameError`] naming what is wrong; among it a tag that is not the binding's.
pub fn decode_authorize(header: &Header, body: &[u8]) -> Result<Authorize, FrameError> {
    if header.kind != Kind::Authorize as u8 {
        return Err(FrameError::Kind { number: header.kind });
    }
    check_header(header, true)?;
    let count = within("residences of an operation", header.count as usize, GRANT_KEYS_MAX)?;
    ensure(count > 0, "an operation wants nothing")?;
    let mut reader = Reader::new(body);
    let fixed: AuthorizeBody = reader.take()?;
    let listed = within("namespaces of an operation", usize::from(fixed.namespaces), count)?;
    let (namespaces, _) = reader.take_bytes(listed * NamespaceRecord::BYTES)?.as_chunks::<32>();
    let records = reader.take_records::<ResidenceRecord>(count)?;
    reader.finish()?;

    ensure(namespaces.is_sorted_by(|a, b| a < b), "namespaces do not ascend strictly")?;
    let mut named = [false; GRANT_KEYS_MAX];
    let mut residences = Vec::with_capacity(count);
    for record in records.iter() {
        let ResidenceRecord { namespace, group, block, medium, sequence } = record?;
        let index = usize::from(namespace);
        let namespace = known(namespaces.get(index), "a residence is in no listed namespace")?;
        named[index] = true;
        let medium = known(Medium::from_wire(medium), "a residence is on no medium")?;
        ensure(sequence != 0, "a residence began before anything")?;
        residences.push(ExactResidence {
            namespace: NamespaceDigest(*namespace),
            group: GroupId(group),
            block: BlockHash(block),
            medium,
            sequence: Sequence(sequence),
        });
    }
    ensure(
        named.iter().filter(|named| **named).count() == listed,
        "a namespace is listed that nothing names",
    )?;
    ensure(is_each_once(&residences), "a residence is wanted twice")?;
    ensure(
        (1..=DEADLINE_MS_MAX).contains(&fixed.deadline_ms),
        "an operation has no deadline, or one that is too long",
    )?;
    let transport = known(Transport::from_wire(fixed.transport), "there is no such transport")?;
    let attempt = known(Attempt::from_wire(fixed.attempt), "there is no such attempt")?;
    let binding = Binding {
        cluster: ClusterUuid(fixed.cluster),
        source: SourceStream {
            node: node(&fixed.source)?,
            epoch: fixed.source_epoch,
            incarnation: Incarnation(fixed.source_incarnation),
            shard: ShardIndex(fixed.source_shard),
        },
        requester: Requester {
            node: node(&fixed.requester)?,
            incarnation: Incarnation(fixed.requester_incarnation),
        },
    };
    ensure(binding.tag().0 == header.tag, "the header's tag is not that of the binding")?;
    let (operation, deadline_ms) = (header.operation(), fixed.deadline_ms);
    Ok(Authorize { binding, operation, deadline_ms, transport, attempt, residences })
}

/// Whether no block is named twice on one medium: it has one residence there at a time.
fn is_each_once(residences: &[ExactResidence]) -> bool {
    let mut places: Vec<_> = (residences.iter())
        .map(|wanted| (&wanted.namespace, wanted.group, &wanted.block, wanted.medium))
        .collect();
    places.sort_unstable();
    places.windows(2).all(|pair| pair[0] != pair[1])
}

fn node(text: &Text<64>) -> Result<NodeId, FrameError> {
    known(text.as_str().and_then(|text| NodeId::new(text).ok()), "a node has no legal name")
}
