//! One frame or more of every kind, each made twice: by the code under test and by hand from
//! `docs/payload-protocol.md`.

use super::*;
use crate::identity::*;
use crate::inventory::{Requester, ResourceSummary, SourceStream};
use crate::tests::part::{Part, counting, part};

/// Who says a frame, and so which decoder takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    Authorize,
    Requester,
    Source,
}

/// A frame of a kind.
pub struct Sample {
    pub name: &'static str,
    pub says: Says,
    /// Made by the code under test.
    pub bytes: Vec<u8>,
    /// Made by hand.
    pub plain: Vec<u8>,
}

/// The tag of [`binding`] as another implementation of SHA-256 gave it.
pub const TAG: u128 = 0xc2ef_98f3_343d_0a44_1e84_ff24_14a6_07ae;

pub const OPERATION: OperationId =
    OperationId { origin: 0x0a0b_0c0d_0e0f_1011, number: 0x2122_2324_2526_2728 };

pub fn binding() -> Binding {
    Binding {
        cluster: ClusterUuid(counting(0x10)),
        source: SourceStream {
            node: NodeId::new("node-a").unwrap(),
            epoch: 0x0102_0304_0506_0708,
            incarnation: Incarnation(counting(0x30)),
            shard: ShardIndex(0x0203),
        },
        requester: Requester {
            node: NodeId::new("node-bb").unwrap(),
            incarnation: Incarnation(counting(0x40)),
        },
    }
}

/// A residence in the namespace that begins with `namespace`.
pub fn residence(namespace: u8, group: u16, block: u8, medium: Medium, sequence: u64) -> ExactResidence {
    ExactResidence {
        namespace: NamespaceDigest(counting(namespace)),
        group: GroupId(group),
        block: BlockHash(counting(block)),
        medium,
        sequence: Sequence(sequence),
    }
}

/// The residences come in another order than their namespaces.
/// A source that does nothing.
pub fn idle() -> ResourceSummary {
    ResourceSummary { window_ms: 1_000, reads_queued: 0, ssd_busy_permille: 0, egress_busy_permille: 0 }
}

pub fn three() -> Vec<ExactResidence> {
    vec![
        residence(0x80, 0x0506, 0x01, Medium::Ssd, 0x1122_3344_5566_7788),
        residence(0x20, 0, 0x41, Medium::Dram, 7),
        residence(0x80, 0x0506, 0x01, Medium::Dram, 1),
    ]
}

pub fn authorize(residences: Vec<ExactResidence>, transport: Transport) -> Authorize {
    let attempt = if transport == Transport::Shm { Attempt::Third } else { Attempt::First };
    let deadline_ms = 0x0001_0203;
    Authorize { binding: binding(), operation: OPERATION, deadline_ms, transport, attempt, residences }
}

fn frame(kind: u8, tag: u128, count: u32, parts: Vec<Part>) -> Vec<u8> {
    let body: Vec<u8> = parts.into_iter().flat_map(Part::finish).collect();
    let mut bytes = part(41)
        .u32(0, 41 + body.len() as u32)
        .u8(4, kind)
        .raw(5, &tag.to_be_bytes())
        .u64(21, 0x0a0b_0c0d_0e0f_1011)
        .u64(29, 0x2122_2324_2526_2728)
        .u32(37, count)
        .finish();
    bytes.extend(body);
    bytes
}

fn record(namespace: u16, group: u16, block: u8, medium: u8, sequence: u64) -> Part {
    part(45).u16(0, namespace).u16(2, group).raw(4, &counting::<32>(block)).u8(36, medium).u64(37, sequence)
}

fn authorizes() -> Vec<Sample> {
    let fixed = |transport: u8, attempt: u8, namespaces: u16| {
        part(198)
            .raw(0, &counting::<16>(0x10))
            .text(16, 64, "node-a")
            .u64(82, 0x0102_0304_0506_0708)
            .raw(90, &counting::<16>(0x30))
            .u16(106, 0x0203)
            .text(108, 64, "node-bb")
            .raw(174, &counting::<16>(0x40))
            .u32(190, 0x0001_0203)
            .u8(194, transport)
            .u8(195, attempt)
            .u16(196, namespaces)
    };
    let sample = |name, authorize: Authorize, plain| {
        let mut bytes = Vec::new();
        append_authorize(&mut bytes, &authorize);
        Sample { name, says: Says::Authorize, bytes, plain }
    };
    let namespace = |first| part(32).raw(0, &counting::<32>(first));
    let one = vec![residence(0x20, 1, 0x61, Medium::Dram, 9)];
    vec![
        sample(
            "authorize three over quic",
            authorize(three(), Transport::Quic),
            frame(
                1,
                TAG,
                3,
                vec![
                    fixed(0, 0, 2),
                    namespace(0x20),
                    namespace(0x80),
                    record(1, 0x0506, 0x01, 1, 0x1122_3344_5566_7788),
                    record(0, 0, 0x41, 0, 7),
                    record(1, 0x0506, 0x01, 0, 1),
                ],
            ),
        ),
        sample(
            "authorize one over shm",
            authorize(one, Transport::Shm),
            frame(1, TAG, 1, vec![fixed(1, 2, 1), namespace(0x20), record(0, 1, 0x61, 0, 9)]),
        ),
    ]
}

fn from_requester() -> Vec<Sample> {
    let messages = [
        ("release", 2, TAG, FromRequester::Release(OPERATION)),
        ("cancel", 3, TAG, FromRequester::Cancel(OPERATION)),
        ("released", 4, 0, FromRequester::Released(OPERATION)),
    ];
    let sample = |(name, kind, tag, message)| {
        let mut bytes = Vec::new();
        append_from_requester(&mut bytes, binding().tag(), message);
        Sample { name, says: Says::Requester, bytes, plain: frame(kind, tag, 0, vec![]) }
    };
    messages.into_iter().map(sample).collect()
}

fn from_source() -> Vec<Sample> {
    let answer = |kind: u8, bytes: u32, sequence: u64, retry_after_ms: u32| {
        part(17).u8(0, kind).u32(1, bytes).u64(5, sequence).u32(13, retry_after_ms)
    };
    let answers = vec![
        Answer::Granted { bytes: 0x0405_0607 },
        Answer::Ended { sequence: Some(Sequence(0x1122_3344_5566_7788)) },
        Answer::Ended { sequence: None },
        Answer::NeverHeld { head: Sequence(0x3132_3334_3536_3738) },
        Answer::Busy { retry_after_ms: 0x0102_0304 },
    ];
    let summary = ResourceSummary {
        window_ms: 0x0a0b_0c0d,
        reads_queued: 0x1112_1314,
        ssd_busy_permille: 1_000,
        egress_busy_permille: 0x0102,
    };
    let stale = Refusal::StaleEpoch { epoch: 0x0506, incarnation: Incarnation(counting(0x50)) };
    let refused = |cause: u8| part(25).u8(0, cause).u64(1, 0).raw(9, &[0; 16]);
    let (index, bytes, checksum) = (0x007f, 0x0010_0203, 0x4142_4344_4546_4748);
    let payload = |size| part(size).u16(0, 0x007f).u32(2, 0x0010_0203).u64(6, 0x4142_4344_4546_4748);
    let messages = [
        (
            "answers",
            16,
            FromSource::Answers { grant_ms: 10_000, summary, answers },
            vec![
                part(4).u32(0, 10_000),
                part(12).u32(0, 0x0a0b_0c0d).u32(4, 0x1112_1314).u16(8, 1_000).u16(10, 0x0102),
                answer(0, 0x0405_0607, 0, 0),
                answer(1, 0, 0x1122_3344_5566_7788, 0),
                answer(1, 0, 0, 0),
                answer(2, 0, 0x3132_3334_3536_3738, 0),
                answer(3, 0, 0, 0x0102_0304),
            ],
        ),
        (
            "stale epoch",
            17,
            FromSource::Refused(stale),
            vec![part(25).u8(0, 0).u64(1, 0x0506).raw(9, &counting::<16>(0x50))],
        ),
        ("lease expired", 17, FromSource::Refused(Refusal::LeaseExpired), vec![refused(1)]),
        ("transport off", 17, FromSource::Refused(Refusal::TransportOff), vec![refused(2)]),
        ("repeated", 17, FromSource::Refused(Refusal::Repeated), vec![refused(3)]),
        ("misdirected", 17, FromSource::Refused(Refusal::Misdirected), vec![refused(4)]),
        ("bytes", 18, FromSource::Bytes { index, bytes, checksum }, vec![payload(14)]),
        (
            "extent",
            19,
            FromSource::Extent { index, bytes, checksum, offset: 1 << 40 },
            vec![payload(22).u64(14, 1 << 40)],
        ),
        (
            "failed",
            20,
            FromSource::Failed { index, cause: FailureCause::Corrupt },
            vec![part(3).u16(0, 0x007f).u8(2, 1)],
        ),
        ("stopped", 21, FromSource::Stopped { cause: StopCause::Fenced }, vec![part(1).u8(0, 2)]),
        ("drained", 22, FromSource::Drained, vec![]),
    ];
    let sample = |(name, kind, message, parts)| {
        let mut bytes = Vec::new();
        append_from_source(&mut bytes, binding().tag(), OPERATION, &message);
        let (tag, count) = (if kind == 22 { 0 } else { TAG }, if kind == 16 { 5 } else { 0 });
        Sample { name, says: Says::Source, bytes, plain: frame(kind, tag, count, parts) }
    };
    messages.into_iter().map(sample).collect()
}

/// Every kind of frame.
pub fn samples() -> Vec<Sample> {
    [authorizes(), from_requester(), from_source()].into_iter().flatten().collect()
}
