//! One frame or more of every kind, each made twice: by the code under test and by hand from
//! `docs/inventory-protocol.md`.

use super::*;
use crate::identity::*;
use crate::scope::{Scope, ScopeDigest};
use crate::tests::part::{Part, counting, part};

/// Who says a frame, and so which decoder takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    Open,
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

/// Tags as another implementation of SHA-256 gave them, of sessions over all namespaces, none and two.
pub const TAG_ALL: u128 = 0xca1c_7b9a_dade_7ccf_7e7d_1b0f_4855_f8fc;
pub const TAG_NONE: u128 = 0xe1d1_2df5_0074_ddad_e6da_0c46_4185_4db0;
pub const TAG_TWO: u128 = 0x9587_0482_e353_9c80_5fae_a5ca_250a_bc4b;

const FRAME: u64 = 0x0a0b_0c0d_0e0f_1011;
pub const HEAD: u64 = 0x2122_2324_2526_2728;
/// A sequence that is not beyond the head.
const CUT: u64 = 0x1122_3344_5566_7788;

pub fn two() -> Scope {
    Scope::namespaces([NamespaceDigest(counting(0x80)), NamespaceDigest(counting(0x20))]).unwrap()
}

pub fn binding(scope: &Scope) -> Binding {
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
        scope: scope.digest(),
        session: SessionId(counting(0x50)),
    }
}

pub fn open(scope: Scope, resume: Option<Resume>) -> Open {
    let binding = binding(&scope);
    Open {
        binding,
        attempt: 0x6162_6364_6566_6768,
        scope,
        window_bytes: 0x0020_0102,
        frame_bytes_max: 0x0008_0029,
        resume,
    }
}

/// What a header says besides its length.
struct Head {
    kind: u8,
    tag: u128,
    frame: u64,
    head: u64,
    count: u32,
}

fn frame(head: Head, parts: Vec<Part>) -> Vec<u8> {
    let body: Vec<u8> = parts.into_iter().flat_map(Part::finish).collect();
    let mut bytes = part(41)
        .u32(0, 41 + body.len() as u32)
        .u8(4, head.kind)
        .raw(5, &head.tag.to_be_bytes())
        .u64(21, head.frame)
        .u64(29, head.head)
        .u32(37, head.count)
        .finish();
    bytes.extend(body);
    bytes
}

fn opens() -> Vec<Sample> {
    let plain = |tag, digest: ScopeDigest, count, kind: u8, resume: u8, view: [u8; 16], sequence: u64| {
        let fixed = part(280)
            .raw(0, &counting::<16>(0x10))
            .text(16, 64, "node-a")
            .u64(82, 0x0102_0304_0506_0708)
            .raw(90, &counting::<16>(0x30))
            .u16(106, 0x0203)
            .text(108, 64, "node-bb")
            .raw(174, &counting::<16>(0x40))
            .raw(190, &digest.0)
            .raw(222, &counting::<16>(0x50))
            .u64(238, 0x6162_6364_6566_6768)
            .u32(246, 0x0020_0102)
            .u32(250, 0x0008_0029)
            .u8(254, kind)
            .u8(255, resume)
            .raw(256, &view)
            .u64(272, sequence);
        let listed =
            [0x20, 0x80].into_iter().take(count).map(|first| part(32).raw(0, &counting::<32>(first)));
        let head = Head { kind: 1, tag, frame: 1, head: 0, count: count as u32 };
        frame(head, std::iter::once(fixed).chain(listed).collect())
    };
    let sample = |name, open: Open, plain| {
        let mut bytes = Vec::new();
        append_open(&mut bytes, &open);
        Sample { name, says: Says::Open, bytes, plain }
    };
    let resume = Resume { view: SnapshotId(counting(0x70)), sequence: Sequence(CUT) };
    let digests = [Scope::All, Scope::none(), two()].map(|scope| scope.digest());
    vec![
        sample("open all", open(Scope::All, None), plain(TAG_ALL, digests[0], 0, 0, 0, [0; 16], 0)),
        sample("open none", open(Scope::none(), None), plain(TAG_NONE, digests[1], 0, 1, 0, [0; 16], 0)),
        sample(
            "open two, resume",
            open(two(), Some(resume)),
            plain(TAG_TWO, digests[2], 2, 1, 1, counting(0x70), CUT),
        ),
    ]
}

fn from_requester() -> Vec<Sample> {
    let snapshot = SnapshotId(counting(0x90));
    let plain_snapshot = |size| part(size).raw(0, &counting::<16>(0x90));
    let messages = [
        ("accept", 2, FromRequester::SnapshotAccept { snapshot }, plain_snapshot(16)),
        (
            "refuse",
            3,
            FromRequester::SnapshotRefuse { snapshot, retry_after_ms: 30_000 },
            plain_snapshot(20).u32(16, 30_000),
        ),
        (
            "ack",
            4,
            FromRequester::Ack {
                consumed_frame: 0x0304_0506_0708_090a,
                view: snapshot,
                applied: Sequence(CUT),
            },
            part(32).u64(0, 0x0304_0506_0708_090a).raw(8, &counting::<16>(0x90)).u64(24, CUT),
        ),
        ("flush", 5, FromRequester::FlushThrough { sequence: Sequence(CUT) }, part(8).u64(0, CUT)),
    ];
    let sample = |(name, kind, message, body)| {
        let mut bytes = Vec::new();
        append_from_requester(&mut bytes, binding(&two()).tag(), FRAME, &message);
        let plain = frame(Head { kind, tag: TAG_TWO, frame: FRAME, head: 0, count: 0 }, vec![body]);
        Sample { name, says: Says::Requester, bytes, plain }
    };
    messages.into_iter().map(sample).collect()
}

fn source(name: &'static str, kind: u8, body: &Body, parts: Vec<Part>) -> Sample {
    let tag = binding(&two()).tag();
    let header = Header::new(body.kind, tag, FRAME, Sequence(HEAD), body.count, body.bytes.len());
    let bytes = [&header_bytes(&header)[..], &body.bytes].concat();
    let plain = frame(Head { kind, tag: TAG_TWO, frame: FRAME, head: HEAD, count: body.count }, parts);
    Sample { name, says: Says::Source, bytes, plain }
}

fn messages() -> Vec<Sample> {
    let snapshot = SnapshotId(counting(0x90));
    let (after, through) = (Sequence(CUT), Sequence(CUT));
    let summary = ResourceSummary {
        window_ms: 1_000,
        reads_queued: 0x0102_0304,
        ssd_busy_permille: 1_000,
        egress_busy_permille: 0x0102,
    };
    let refused = FromSource::OpenRefused {
        cause: OpenRefusal::WrongSource,
        revision: 0x0506_0708_090a_0b0c,
        epoch: 0x0102_0304_0506_0708,
        incarnation: Incarnation(counting(0x30)),
    };
    let begin = FromSource::SnapshotBegin { snapshot, after, rows_max: 1 << 40, bytes: 1 << 45 };
    let commit = FromSource::SnapshotCommit {
        snapshot,
        through,
        pages: 0x0102_0304,
        digest: TranscriptDigest(counting(0xa0)),
    };
    let plain = [
        (
            "open refused",
            16,
            refused,
            part(33)
                .u8(0, 2)
                .u64(1, 0x0506_0708_090a_0b0c)
                .u64(9, 0x0102_0304_0506_0708)
                .raw(17, &counting::<16>(0x30)),
        ),
        (
            "resumed",
            17,
            FromSource::Resumed { view: snapshot, sequence: through },
            part(24).raw(0, &counting::<16>(0x90)).u64(16, CUT),
        ),
        ("queued", 18, FromSource::SnapshotQueued { position: 0x0102_0304 }, part(4).u32(0, 0x0102_0304)),
        (
            "begin",
            19,
            begin,
            part(40).raw(0, &counting::<16>(0x90)).u64(16, CUT).u64(24, 1 << 40).u64(32, 1 << 45),
        ),
        (
            "commit",
            22,
            commit,
            part(44)
                .raw(0, &counting::<16>(0x90))
                .u64(16, CUT)
                .u32(24, 0x0102_0304)
                .raw(28, &counting::<16>(0xa0)),
        ),
        ("progress", 23, FromSource::Progress { through }, part(8).u64(0, CUT)),
        (
            "liveness",
            24,
            FromSource::Liveness { summary },
            part(12).u32(0, 1_000).u32(4, 0x0102_0304).u16(8, 1_000).u16(10, 0x0102),
        ),
        ("reset", 25, FromSource::ResetRequired { cause: ResetCause::Overload }, part(1).u8(0, 2)),
    ];
    plain
        .into_iter()
        .map(|(name, kind, message, body)| source(name, kind, &source_body(&message), vec![body]))
        .collect()
}

/// A record by hand.
fn record(namespace: u16, group: u16, block: u8, effect: u8, bytes: u32, sequence: u64) -> Part {
    part(49)
        .u16(0, namespace)
        .u16(2, group)
        .raw(4, &counting::<32>(block))
        .u8(36, effect)
        .u32(37, bytes)
        .u64(41, sequence)
}

fn with_changes() -> Vec<Sample> {
    let [low, high] = [0x20, 0x80].map(|first| NamespaceDigest(counting(first)));
    let block = |first| BlockHash(counting(first));
    let put = |bytes| WireChange::Put { bytes };
    let (dram, ssd) = (Medium::Dram, Medium::Ssd);
    let mut writer = ChangesWriter::new(4_096);

    writer.page(SnapshotId(counting(0x90)), 0x0102_0304);
    // The namespace that comes second in the table comes first in the scan.
    writer.push(&high, GroupId(0x0506), &block(0x01), ssd, put(0x0a0b_0c0d), Sequence(HEAD)).unwrap();
    writer.push(&low, GroupId(0), &block(0x41), dram, put(65_536), Sequence(7)).unwrap();
    writer.push(&high, GroupId(1), &block(0x81), dram, put(1), Sequence(CUT)).unwrap();
    let page = writer.finish();
    let page_parts = vec![
        part(22).raw(0, &counting::<16>(0x90)).u32(16, 0x0102_0304).u16(20, 2),
        part(32).raw(0, &counting::<32>(0x20)),
        part(32).raw(0, &counting::<32>(0x80)),
        record(1, 0x0506, 0x01, 1, 0x0a0b_0c0d, HEAD),
        record(0, 0, 0x41, 0, 65_536, 7),
        record(1, 1, 0x81, 0, 1, CUT),
    ];

    writer.delta(Sequence(CUT - 20), Sequence(CUT));
    writer.push(&low, GroupId(0), &block(0x01), dram, WireChange::Delete, Sequence(CUT - 19)).unwrap();
    writer.push(&low, GroupId(0), &block(0x01), ssd, put(65_536), Sequence(CUT - 8)).unwrap();
    writer.push(&low, GroupId(0x0708), &block(0x41), ssd, WireChange::Delete, Sequence(CUT)).unwrap();
    let delta = writer.finish();
    let delta_parts = vec![
        part(18).u64(0, CUT - 20).u64(8, CUT).u16(16, 1),
        part(32).raw(0, &counting::<32>(0x20)),
        record(0, 0, 0x01, 2, 0, CUT - 19),
        record(0, 0, 0x01, 1, 65_536, CUT - 8),
        record(0, 0x0708, 0x41, 3, 0, CUT),
    ];

    writer.delta(Sequence(0), Sequence(CUT));
    let empty = writer.finish();
    let empty_parts = vec![part(18).u64(0, 0).u64(8, CUT).u16(16, 0)];
    vec![
        source("page", 20, &page, page_parts),
        source("delta", 21, &delta, delta_parts),
        source("delta of nothing", 21, &empty, empty_parts),
    ]
}

/// Every kind of frame.
pub fn samples() -> Vec<Sample> {
    [opens(), from_requester(), messages(), with_changes()].into_iter().flatten().collect()
}
