//! One frame or more of every kind, each made twice: by the code under test and by [`super::plain`].

use super::plain::{Head, frame};
use super::*;
use crate::tests::part::{Part, counting, part};

/// A frame of a kind.
pub struct Sample {
    pub name: &'static str,
    /// Made by the code under test.
    pub bytes: Vec<u8>,
    /// Made by hand.
    pub plain: Vec<u8>,
}

fn sample(name: &'static str, append: impl FnOnce(&mut Vec<u8>), head: Head, parts: Vec<Part>) -> Sample {
    let mut bytes = Vec::new();
    append(&mut bytes);
    Sample { name, bytes, plain: frame(head, parts) }
}

fn text<const N: usize>(text: &str) -> Text<N> {
    Text::new(text).unwrap()
}

const ID: u64 = 0x1122_3344_5566_7788;
const WAIT: u32 = 0x0001_e240;

fn ask(operation: u8, count: u32) -> Head {
    Head { operation, request_id: ID, deadline_ms: WAIT, count, ..Head::default() }
}

fn tell(operation: u8, count: u32) -> Head {
    Head { operation, request_id: ID, count, ..Head::default() }
}

/// A request that has no records.
fn lone(name: &'static str, operation: Operation, body: &impl Fixed, part: Part) -> Sample {
    let head = ask(operation as u8, 0);
    sample(name, |out| append_request::<_, HashRecord>(out, operation, ID, WAIT, body, &[]), head, vec![part])
}

fn bare(name: &'static str, operation: Operation, number: u8) -> Sample {
    sample(name, |out| append_bare_request(out, operation, ID, WAIT), ask(number, 0), vec![])
}

fn done(name: &'static str, operation: Operation, number: u8) -> Sample {
    sample(name, |out| append_done(out, operation, ID), tell(number, 0), vec![])
}

/// Every kind of request.
pub fn requests() -> Vec<Sample> {
    let hello = HelloBody {
        magic: MAGIC,
        version_min: 1,
        version_max: 0x0203,
        layout_hash: 0x0102_0304_0506_0708,
        in_flight: 64,
        previous_connection: 0x1112_1314_1516_1718,
    };
    let hello_plain = part(30)
        .raw(0, b"ORBITKV\x02")
        .u16(8, 1)
        .u16(10, 0x0203)
        .u64(12, 0x0102_0304_0506_0708)
        .u16(20, 64)
        .u64(22, 0x1112_1314_1516_1718);
    let reserve = ReserveBody { namespace: 0xa1a2_a3a4, race: 1 };
    let wanted = [
        ReserveRecord { block: counting(0x10), group: 0x0102, bytes: 65_536 },
        ReserveRecord { block: counting(0x30), group: 0, bytes: 0x0102_0304_0506 },
    ];
    let reservations = ReservationsBody { arena_generation: 0xb1b2_b3b4_b5b6_b7b8 };
    let reserved = [ReservationRecord { reservation: 5 }, ReservationRecord { reservation: u64::MAX - 1 }];
    let evict = EvictBody { namespace: 7, media: 3 };
    let key = KeyRecord { block: counting(0x80), group: 0x0304 };
    let media = |at: usize, size: usize| part(size).raw(0, &counting::<32>(0xc0)).u8(at, 2);
    let lease = LeaseBody { lease: counting(0x40) };
    let lease_plain = || part(16).raw(0, &counting::<16>(0x40));
    vec![
        lone("request hello", Operation::Hello, &hello, hello_plain),
        bare("request ping", Operation::Ping, 2),
        register(),
        sample(
            "request reserve",
            |out| append_request(out, Operation::Reserve, ID, WAIT, &reserve, &wanted),
            ask(4, 2),
            vec![
                part(5).u32(0, 0xa1a2_a3a4).u8(4, 1),
                part(42).raw(0, &counting::<32>(0x10)).u16(32, 0x0102).u64(34, 65_536),
                part(42).raw(0, &counting::<32>(0x30)).u16(32, 0).u64(34, 0x0102_0304_0506),
            ],
        ),
        sample(
            "request commit",
            |out| append_request(out, Operation::Commit, ID, WAIT, &reservations, &reserved),
            ask(5, 2),
            vec![
                part(8).u64(0, 0xb1b2_b3b4_b5b6_b7b8),
                part(8).u64(0, 5),
                part(8).u64(0, 0xffff_ffff_ffff_fffe),
            ],
        ),
        sample(
            "request abort",
            |out| append_request(out, Operation::Abort, ID, WAIT, &reservations, &reserved[..1]),
            ask(6, 1),
            vec![part(8).u64(0, 0xb1b2_b3b4_b5b6_b7b8), part(8).u64(0, 5)],
        ),
        query(),
        acquire(),
        lone("request attach", Operation::Attach, &lease, lease_plain()),
        lone("request release", Operation::Release, &lease, lease_plain()),
        lone("request cancel", Operation::Cancel, &CancelBody { request_id: 9 }, part(8).u64(0, 9)),
        sample(
            "request evict",
            |out| append_request(out, Operation::Evict, ID, WAIT, &evict, &[key]),
            ask(12, 1),
            vec![part(5).u32(0, 7).u8(4, 3), part(34).raw(0, &counting::<32>(0x80)).u16(32, 0x0304)],
        ),
        lone(
            "request clear",
            Operation::Clear,
            &ClearBody { namespace: counting(0xc0), media: 2 },
            media(32, 33),
        ),
        lone(
            "request list",
            Operation::List,
            &ListBody { namespace: counting(0xc0), media: 2, limit: 1_000, cursor: counting(0x55) },
            media(32, 77).u32(33, 1_000).raw(37, &counting::<40>(0x55)),
        ),
        bare("request sync", Operation::Sync, 15),
        bare("request drain", Operation::Drain, 16),
        prefetch(),
    ]
}

fn register() -> Sample {
    let body = RegisterBody {
        instance: text("instance-a"),
        engine: text("vllm 0.11"),
        model: text("org/Modèle-8B"),
        weights_revision: text("0f3a"),
        adapter: Text::EMPTY,
        computation: text("flash"),
        dtype: text("bf16"),
        layout: text(&"L".repeat(128)),
        hash_algorithm: text("sha256"),
        hash_seed: text("0"),
        hash_bytes: 8,
        block_tokens: 16,
        tp_rank: 1,
        tp_size: 4,
        pp_rank: 2,
        pp_size: 3,
        rank_invariant: 1,
    };
    let groups = [
        GroupRecord { group: 0, kind: 0, tokens: 0, sink_tokens: 0, block_bytes: 65_536 },
        GroupRecord { group: 0x0201, kind: 3, tokens: 4_096, sink_tokens: 4, block_bytes: 0x0102_0304_0506 },
    ];
    let plain = part(1_195)
        .text(0, 64, "instance-a")
        .text(66, 64, "vllm 0.11")
        .text(132, 256, "org/Modèle-8B")
        .text(390, 128, "0f3a")
        .text(520, 256, "")
        .text(778, 128, "flash")
        .text(908, 32, "bf16")
        .text(942, 128, &"L".repeat(128))
        .text(1_072, 32, "sha256")
        .text(1_106, 64, "0")
        .u16(1_172, 8)
        .u32(1_174, 16)
        .u32(1_178, 1)
        .u32(1_182, 4)
        .u32(1_186, 2)
        .u32(1_190, 3)
        .u8(1_194, 1);
    sample(
        "request register",
        |out| append_request(out, Operation::Register, ID, WAIT, &body, &groups),
        ask(3, 2),
        vec![
            plain,
            part(19).u16(0, 0).u8(2, 0).u32(3, 0).u32(7, 0).u64(11, 65_536),
            part(19).u16(0, 0x0201).u8(2, 3).u32(3, 4_096).u32(7, 4).u64(11, 0x0102_0304_0506),
        ],
    )
}

fn query() -> Sample {
    let body = PrefixBody { lists: 2, completion: 1, hold: 1, lease: [0; 16] };
    let lists = [
        ListRecord { namespace: 0x0102_0304, group: 0, count: 2 },
        ListRecord { namespace: 8, group: 0x0506, count: 1 },
    ];
    let hashes = [0x01, 0x41, 0x81].map(|first| HashRecord { block: counting(first) });
    sample(
        "request query",
        |out| append_prefix_request(out, Operation::Query, ID, WAIT, &body, &lists, &hashes),
        ask(7, 3),
        vec![
            part(22).u32(0, 2).u8(4, 1).u8(5, 1).raw(6, &[0; 16]),
            part(10).u32(0, 0x0102_0304).u16(4, 0).u32(6, 2),
            part(10).u32(0, 8).u16(4, 0x0506).u32(6, 1),
            part(32).raw(0, &counting::<32>(0x01)),
            part(32).raw(0, &counting::<32>(0x41)),
            part(32).raw(0, &counting::<32>(0x81)),
        ],
    )
}

fn acquire() -> Sample {
    let body = PrefixBody { lists: 1, completion: 0, hold: 0, lease: counting(0xe0) };
    let list = ListRecord { namespace: 1, group: 2, count: 1 };
    let hash = HashRecord { block: counting(0x21) };
    sample(
        "request acquire",
        |out| append_prefix_request(out, Operation::Acquire, ID, WAIT, &body, &[list], &[hash]),
        ask(8, 1),
        vec![
            part(22).u32(0, 1).u8(4, 0).u8(5, 0).raw(6, &counting::<16>(0xe0)),
            part(10).u32(0, 1).u16(4, 2).u32(6, 1),
            part(32).raw(0, &counting::<32>(0x21)),
        ],
    )
}

fn prefetch() -> Sample {
    let body = PrefixBody { lists: 2, completion: 0, hold: 0, lease: [0; 16] };
    let lists = [
        ListRecord { namespace: 3, group: 0, count: 1 },
        ListRecord { namespace: 3, group: 0x0708, count: 1 },
    ];
    let hashes = [0x11, 0x51].map(|first| HashRecord { block: counting(first) });
    sample(
        "request prefetch",
        |out| append_prefix_request(out, Operation::Prefetch, ID, WAIT, &body, &lists, &hashes),
        ask(17, 2),
        vec![
            part(22).u32(0, 2).u8(4, 0).u8(5, 0).raw(6, &[0; 16]),
            part(10).u32(0, 3).u16(4, 0).u32(6, 1),
            part(10).u32(0, 3).u16(4, 0x0708).u32(6, 1),
            part(32).raw(0, &counting::<32>(0x11)),
            part(32).raw(0, &counting::<32>(0x51)),
        ],
    )
}

/// An answer of one body without records.
fn single(name: &'static str, operation: Operation, body: &impl Fixed, part: Part) -> Sample {
    let append = |out: &mut Vec<u8>| append_answer::<_, PlaceRecord>(out, operation, ID, false, body, &[]);
    sample(name, append, tell(operation as u8, 0), vec![part])
}

fn outcomes(name: &'static str, operation: Operation, numbers: &[u8]) -> Sample {
    let records: Vec<_> = numbers.iter().map(|&outcome| OutcomeRecord { outcome }).collect();
    let parts = numbers.iter().map(|&number| part(1).u8(0, number)).collect();
    let head = tell(operation as u8, numbers.len() as u32);
    sample(name, |out| append_records(out, operation, ID, &records), head, parts)
}

/// Every kind of answer.
pub fn answers() -> Vec<Sample> {
    let place = [PlaceRecord { place: Place::Dram as u8 }, PlaceRecord { place: Place::NotExamined as u8 }];
    let query = QueryAnswer {
        boundary_blocks: 0x0102_0304,
        examined_blocks: 0x0506_0708,
        coverage: Coverage::Unavailable as u8,
        view_generation: 0x1112_1314_1516_1718,
        lease: counting(0x60),
        hint_age_ms: 0x2122_2324,
        left_out: 0x3132_3334,
    };
    let query_plain = part(41)
        .u32(0, 0x0102_0304)
        .u32(4, 0x0506_0708)
        .u8(8, 2)
        .u64(9, 0x1112_1314_1516_1718)
        .raw(17, &counting::<16>(0x60))
        .u32(33, 0x2122_2324)
        .u32(37, 0x3132_3334);
    vec![
        hello_answer(),
        done("answer ping", Operation::Ping, 2),
        single(
            "answer register",
            Operation::Register,
            &RegisterAnswer { namespace: 0x0a0b_0c0d, digest: counting(0x70) },
            part(36).u32(0, 0x0a0b_0c0d).raw(4, &counting::<32>(0x70)),
        ),
        reserve_answer(),
        outcomes("answer commit", Operation::Commit, &[0, 1, 2]),
        outcomes("answer abort", Operation::Abort, &[3]),
        sample(
            "answer query",
            |out| append_answer(out, Operation::Query, ID, false, &query, &place),
            tell(7, 2),
            vec![query_plain, part(1).u8(0, 1), part(1).u8(0, 5)],
        ),
        acquire_answer("answer acquire, more follow", true, 0),
        acquire_answer("answer acquire, last", false, 12),
        attach_answer(),
        done("answer release", Operation::Release, 10),
        done("answer cancel", Operation::Cancel, 11),
        outcomes("answer evict", Operation::Evict, &[0, 1, 2]),
        single(
            "answer clear",
            Operation::Clear,
            &ClearAnswer { removed: 1_000, in_use: 3 },
            part(16).u64(0, 1_000).u64(8, 3),
        ),
        list_answer(),
        sync_answer(),
        drain_answer("answer drain, more follow", true, [1, 2, 3, 4]),
        drain_answer("answer drain, last", false, [0; 4]),
        outcomes("answer prefetch", Operation::Prefetch, &[0, 1, 2, 3, 4, 5]),
        sample(
            "answer refused",
            |out| append_refusal(out, Operation::Query, ID, Status::OverLimit, 16_384, "16385 hashes; split"),
            Head { status: 2, ..tell(7, 0) },
            vec![part(250).u64(0, 16_384).text(8, 240, "16385 hashes; split")],
        ),
    ]
}

fn hello_answer() -> Sample {
    let body = HelloAnswer {
        version: 1,
        layout_hash: 0x0102_0304_0506_0708,
        arena_generation: 0x1112_1314_1516_1718,
        arena_bytes: 1 << 33,
        connection: 77,
        incarnation: counting(0x90),
        shards: 0x0203,
        in_flight: 256,
        page_kind: PageKindNumber::HugeTlb as u8,
    };
    let plain = part(55)
        .u16(0, 1)
        .u64(2, 0x0102_0304_0506_0708)
        .u64(10, 0x1112_1314_1516_1718)
        .u64(18, 0x0002_0000_0000)
        .u64(26, 77)
        .raw(34, &counting::<16>(0x90))
        .u16(50, 0x0203)
        .u16(52, 256)
        .u8(54, 2);
    single("answer hello", Operation::Hello, &body, plain)
}

fn reserve_answer() -> Sample {
    let slots = [
        SlotRecord { outcome: SlotOutcome::Slot as u8, reservation: 5, offset: 0x10_0000, bytes: 65_536 },
        SlotRecord { outcome: SlotOutcome::TooLarge as u8, reservation: 0, offset: 1 << 20, bytes: 0 },
    ];
    sample(
        "answer reserve",
        |out| append_records(out, Operation::Reserve, ID, &slots),
        tell(4, 2),
        vec![
            part(25).u8(0, 0).u64(1, 5).u64(9, 0x10_0000).u64(17, 65_536),
            part(25).u8(0, 4).u64(1, 0).u64(9, 0x10_0000).u64(17, 0),
        ],
    )
}

fn acquire_answer(name: &'static str, more: bool, boundary_blocks: u32) -> Sample {
    let body = AcquireAnswer { lease: counting(0xa0), boundary_blocks };
    let block = BlockRecord {
        index: 0x0102_0304,
        outcome: BlockOutcome::Ready as u8,
        source: Place::Ssd as u8,
        offset: 0x1112_1314_1516_1718,
        bytes: 65_536,
    };
    sample(
        name,
        |out| append_answer(out, Operation::Acquire, ID, more, &body, &[block]),
        Head { flags: u8::from(more), ..tell(8, 1) },
        vec![
            part(20).raw(0, &counting::<16>(0xa0)).u32(16, boundary_blocks),
            part(22).u32(0, 0x0102_0304).u8(4, 0).u8(5, 2).u64(6, 0x1112_1314_1516_1718).u64(14, 65_536),
        ],
    )
}

fn attach_answer() -> Sample {
    let body = AttachAnswer { lease: counting(0xb0) };
    let block = AttachedRecord { block: counting(0x18), group: 0x0102, offset: 4_096, bytes: 100 };
    sample(
        "answer attach",
        |out| append_answer(out, Operation::Attach, ID, false, &body, &[block]),
        tell(9, 1),
        vec![
            part(16).raw(0, &counting::<16>(0xb0)),
            part(50).raw(0, &counting::<32>(0x18)).u16(32, 0x0102).u64(34, 4_096).u64(42, 100),
        ],
    )
}

fn list_answer() -> Sample {
    let body = ListAnswer { cursor: counting(0x03), done: 1 };
    let resident = ResidentRecord {
        block: counting(0x28),
        group: 4,
        medium: 1,
        shard: 0x0203,
        bytes: 500,
        sequence: 600,
    };
    sample(
        "answer list",
        |out| append_answer(out, Operation::List, ID, false, &body, &[resident]),
        tell(14, 1),
        vec![
            part(41).raw(0, &counting::<40>(0x03)).u8(40, 1),
            part(53)
                .raw(0, &counting::<32>(0x28))
                .u16(32, 4)
                .u8(34, 1)
                .u16(35, 0x0203)
                .u64(37, 500)
                .u64(45, 600),
        ],
    )
}

fn sync_answer() -> Sample {
    let body = SyncAnswer { outcome: SyncOutcome::Fence as u8, incarnation: counting(0xd0) };
    let heads = [SequenceRecord { sequence: 10 }, SequenceRecord { sequence: 0x0102_0304_0506_0708 }];
    sample(
        "answer sync",
        |out| append_answer(out, Operation::Sync, ID, false, &body, &heads),
        tell(15, 2),
        vec![
            part(17).u8(0, 1).raw(1, &counting::<16>(0xd0)),
            part(8).u64(0, 10),
            part(8).u64(0, 0x0102_0304_0506_0708),
        ],
    )
}

fn drain_answer(name: &'static str, more: bool, left: [u64; 4]) -> Sample {
    let [reservations, leases, write_backs, transfers] = left;
    let body = DrainAnswer { reservations, leases, write_backs, transfers };
    sample(
        name,
        |out| append_answer::<_, PlaceRecord>(out, Operation::Drain, ID, more, &body, &[]),
        Head { flags: u8::from(more), ..tell(16, 0) },
        vec![part(32).u64(0, left[0]).u64(8, left[1]).u64(16, left[2]).u64(24, left[3])],
    )
}
