//! Everything near a good frame that is not one.

use super::golden::respell;
use super::samples::{HEAD, Says, open, samples, two};
use super::*;
use crate::scope::Scope;
use crate::tests::part::counting;

/// A sample's header and body, to be bent.
fn parts(bytes: &[u8]) -> (Header, Vec<u8>) {
    let (header, body) = split_frame(bytes, bounds::INVENTORY_FRAME_BYTES_MAX).unwrap().unwrap();
    (header, bytes[body].to_vec())
}

fn named(name: &str) -> (Header, Vec<u8>) {
    parts(&samples().into_iter().find(|sample| sample.name == name).expect(name).bytes)
}

fn decode(says: Says, header: &Header, body: &[u8]) -> Result<(), FrameError> {
    match says {
        Says::Open => decode_open(header, body).map(drop),
        Says::Requester => decode_from_requester(header, body).map(drop),
        Says::Source => decode_from_source(header, body).map(drop),
    }
}

fn no(what: &'static str) -> Result<(), FrameError> {
    Err(FrameError::Contradiction { what })
}

fn over(what: &'static str, count: u64, limit: u64) -> Result<(), FrameError> {
    Err(FrameError::OverLimit { what, count, limit })
}

/// Decodes the named sample with `bytes` put at `at` of its body.
fn bent(name: &str, at: usize, bytes: &[u8]) -> Result<(), FrameError> {
    let (header, mut body) = named(name);
    body[at..at + bytes.len()].copy_from_slice(bytes);
    let says = samples().into_iter().find(|sample| sample.name == name).expect(name).says;
    decode(says, &header, &body)
}

#[test]
fn a_buffer_shorter_than_its_frame_is_no_frame_yet() {
    for sample in samples() {
        for length in 0..sample.bytes.len() {
            assert_eq!(split_frame(&sample.bytes[..length], 4_096), Ok(None), "{} at {length}", sample.name);
        }
        let mut two = sample.bytes.repeat(2);
        two.truncate(sample.bytes.len() + 3);
        let (header, body) = split_frame(&two, 4_096).unwrap().unwrap();
        assert_eq!((header.length as usize, body), (sample.bytes.len(), 41..sample.bytes.len()));
    }
}

#[test]
fn the_length_prefix_is_judged_as_soon_as_it_is_there() {
    for limit in [200, 4_096, bounds::INVENTORY_FRAME_BYTES_MAX] {
        let most = limit as u32;
        for length in (0..41).chain([most + 1, most + 2, u32::MAX]) {
            let error = Err(FrameError::Length { length, limit });
            assert_eq!(split_frame(&length.to_le_bytes(), limit), error);
        }
        for length in [41, 42, most] {
            assert_eq!(split_frame(&length.to_le_bytes(), limit), Ok(None));
        }
    }
    let text = split_frame(&[40, 0, 0, 0], 4_096).unwrap_err().to_string();
    assert_eq!(text, "frame of 40 bytes: a frame has 41 to 4096 bytes");
}

#[test]
fn every_truncated_body_is_refused() {
    for sample in samples() {
        let (header, body) = parts(&sample.bytes);
        for length in 0..body.len() {
            let error = Err(FrameError::Layout(LayoutError::Truncated));
            assert_eq!(decode(sample.says, &header, &body[..length]), error, "{} at {length}", sample.name);
        }
    }
}

#[test]
fn bytes_after_the_last_part_are_refused() {
    for sample in samples() {
        let (header, body) = parts(&sample.bytes);
        for extra in [1, 2, 7] {
            let longer = [body.clone(), vec![0; extra]].concat();
            let error = Err(FrameError::Layout(LayoutError::TrailingBytes));
            assert_eq!(decode(sample.says, &header, &longer), error, "{}", sample.name);
        }
    }
}

#[test]
fn every_changed_byte_is_refused_or_says_something_else() {
    for sample in samples() {
        let mut bytes = sample.bytes.clone();
        for at in 4..bytes.len() {
            let good = bytes[at];
            for value in 0..=u8::MAX {
                bytes[at] = value;
                if let Ok(again) = respell(sample.says, &bytes) {
                    assert_eq!(again, bytes, "{} with {value} at {at}", sample.name);
                }
            }
            bytes[at] = good;
        }
    }
}

#[test]
fn a_count_that_contradicts_the_bytes_is_refused() {
    for sample in samples() {
        let (header, body) = parts(&sample.bytes);
        for count in [header.count + 1, header.count.wrapping_sub(1), 1 << 20, u32::MAX] {
            let wrong = Header { count, ..header };
            assert!(decode(sample.says, &wrong, &body).is_err(), "{}: {count}", sample.name);
        }
    }
}

#[test]
fn a_kind_is_known_and_of_its_direction() {
    for sample in samples() {
        let (header, body) = parts(&sample.bytes);
        for number in 0..=u8::MAX {
            for says in [Says::Open, Says::Requester, Says::Source] {
                let fits = match number {
                    1 => says == Says::Open,
                    2..=5 => says == Says::Requester,
                    16..=25 => says == Says::Source,
                    _ => false,
                };
                let found = decode(says, &Header { kind: number, head: 0, count: 0, ..header }, &body);
                let unknown = found == Err(FrameError::Kind { number });
                assert_eq!(unknown, !fits, "{number} as {says:?}: {found:?}");
            }
        }
    }
}

#[test]
fn every_header_has_a_number_and_only_a_source_has_a_head() {
    for sample in samples() {
        let (header, body) = parts(&sample.bytes);
        let numbered = decode(sample.says, &Header { frame: 0, ..header }, &body);
        assert_eq!(numbered, no("frames are numbered from 1"), "{}", sample.name);
        if sample.says != Says::Source {
            let headed = decode(sample.says, &Header { head: 1, ..header }, &body);
            assert_eq!(headed, no("a requester has no journal, but names a head"), "{}", sample.name);
        }
    }
    let (header, body) = named("open all");
    for frame in [2, u64::MAX] {
        let late = decode_open(&Header { frame, ..header }, &body).map(drop);
        assert_eq!(late, no("an Open is the first frame of its session"));
    }
}

#[test]
fn only_messages_with_records_count_some() {
    for sample in samples().iter().filter(|sample| !matches!(sample.bytes[4], 1 | 20 | 21)) {
        let (header, body) = parts(&sample.bytes);
        let counted = decode(sample.says, &Header { count: 1, ..header }, &body);
        assert_eq!(counted, no("a message without records counts some"), "{}", sample.name);
    }
}

#[test]
fn no_frame_speaks_of_a_sequence_beyond_the_head() {
    for sample in samples().iter().filter(|sample| matches!(sample.bytes[4], 17 | 19 | 21 | 22 | 23)) {
        let (header, body) = parts(&sample.bytes);
        let cut = 0x1122_3344_5566_7788;
        assert_eq!(decode(Says::Source, &Header { head: cut, ..header }, &body), Ok(()));
        let beyond = decode(Says::Source, &Header { head: cut - 1, ..header }, &body);
        assert_eq!(beyond, no("a frame speaks of a sequence beyond the source's head"), "{}", sample.name);
    }
    let (header, body) = named("page");
    let beyond = decode_from_source(&Header { head: HEAD - 1, ..header }, &body).map(drop);
    assert_eq!(beyond, no("a change lies outside what its frame covers"));
}

#[test]
fn numbers_in_source_frames_are_known_ones() {
    for value in 0..=u8::MAX {
        let known = |count: u8, what| if value < count { Ok(()) } else { no(what) };
        assert_eq!(bent("open refused", 0, &[value]), known(6, "a refusal has no such cause"));
        assert_eq!(bent("reset", 0, &[value]), known(5, "a reset has no such cause"));
    }
    for at in [8, 10] {
        assert_eq!(bent("liveness", at, &1_000u16.to_le_bytes()), Ok(()));
        let more = bent("liveness", at, &1_001u16.to_le_bytes());
        assert_eq!(more, no("more than all of a resource was busy"));
    }
}

/// An Open whose tag fits whatever else is wrong with its body.
fn opened(name: &str, bend: impl FnOnce(&mut Header, &mut Vec<u8>)) -> Result<(), FrameError> {
    let (mut header, mut body) = named(name);
    bend(&mut header, &mut body);
    decode_open(&header, &body).map(drop)
}

#[test]
fn an_open_says_plainly_whether_it_resumes() {
    let neither = no("an Open neither resumes nor does not");
    assert_eq!(opened("open two, resume", |_, body| body[255] = 0), neither);
    assert_eq!(opened("open all", |_, body| body[255] = 1), Ok(()), "from the start of a view");
    for value in 2..=u8::MAX {
        assert_eq!(opened("open all", |_, body| body[255] = value), neither);
    }
    for at in 256..280 {
        assert_eq!(opened("open all", |_, body| body[at] = 1), neither, "{at}");
    }
}

#[test]
fn an_open_lists_its_scope_once_and_in_order() {
    let unsorted = no("a scope does not ascend strictly");
    let swap = |_: &mut Header, body: &mut Vec<u8>| body[280..].rotate_left(32);
    assert_eq!(opened("open two, resume", swap), unsorted);
    let twice = |_: &mut Header, body: &mut Vec<u8>| body.copy_within(280..312, 312);
    assert_eq!(opened("open two, resume", twice), unsorted);
    let listed = opened("open two, resume", |_, body| body[254] = 0);
    assert_eq!(listed, no("a scope of all namespaces lists some"));
    for value in 2..=u8::MAX {
        assert_eq!(opened("open none", |_, body| body[254] = value), no("no such kind of scope"));
    }
    let other = no("the scope has another digest than it claims");
    assert_eq!(opened("open two, resume", |_, body| body[280] = 0), other, "another namespace");
    assert_eq!(opened("open all", |_, body| body[254] = 1), other, "none is not all");
    assert_eq!(opened("open none", |_, body| body[254] = 0), other, "all is not none");
    assert_eq!(opened("open none", |_, body| body[190] ^= 1), other, "another digest");
    let dropped = |header: &mut Header, body: &mut Vec<u8>| {
        header.count = 1;
        body.truncate(312);
    };
    assert_eq!(opened("open two, resume", dropped), other, "one of two");
}

#[test]
fn a_scope_over_its_bound_is_refused_and_not_cut() {
    let listed = |count: usize| {
        let namespaces = (0..count).map(|index| {
            let mut namespace = [0; 32];
            namespace[..2].copy_from_slice(&(index as u16).to_be_bytes());
            crate::identity::NamespaceDigest(namespace)
        });
        namespaces.collect::<Vec<_>>()
    };
    let mut bytes = Vec::new();
    append_open(&mut bytes, &open(Scope::namespaces(listed(256)).unwrap(), None));
    assert_eq!(bytes.len(), 41 + 280 + 256 * 32);
    let (header, mut body) = parts(&bytes);
    assert_eq!(decode_open(&header, &body).map(drop), Ok(()));
    body.extend_from_slice(&[0xff; 32]);
    let (length, count) = (header.length + 32, header.count + 1);
    let longer = decode_open(&Header { length, count, ..header }, &body).map(drop);
    assert_eq!(longer, over("namespaces of a scope", 257, 256));
}

#[test]
fn an_open_has_at_most_64_kib() {
    let (header, mut body) = named("open all");
    body.resize(64 * 1024 - 40, 0);
    let longer = decode_open(&Header { length: 64 * 1024 + 1, ..header }, &body).map(drop);
    assert_eq!(longer, over("bytes of an Open", 65_537, 65_536));
}

#[test]
fn a_window_holds_two_of_the_largest_frames_and_a_frame_one_change() {
    let windowed = |window_bytes: u32, frame_bytes_max: u32| {
        opened("open all", |_, body| {
            body[246..250].copy_from_slice(&window_bytes.to_le_bytes());
            body[250..254].copy_from_slice(&frame_bytes_max.to_le_bytes());
        })
    };
    let narrow = no("a requester's window does not hold two of its largest frames");
    let small = no("the largest frame a requester takes has no room for one change");
    for (window_bytes, frame_bytes_max, expected) in [
        (320, 160, Ok(())),
        (319, 160, narrow),
        (320, 161, narrow),
        (u32::MAX, u32::MAX / 2, Ok(())),
        (u32::MAX, u32::MAX / 2 + 1, narrow),
        (0, u32::MAX, narrow),
        (u32::MAX, 159, small),
        (0, 0, small),
    ] {
        assert_eq!(windowed(window_bytes, frame_bytes_max), expected, "{window_bytes} {frame_bytes_max}");
    }
}

#[test]
fn the_smallest_frame_bound_has_room_for_what_cannot_be_cut() {
    let sizes = [
        SnapshotPageBody::BYTES + NAMESPACE_BYTES + RECORD_BYTES,
        DeltaBody::BYTES + NAMESPACE_BYTES + RECORD_BYTES,
        SnapshotCommitBody::BYTES,
        SnapshotBeginBody::BYTES,
        OpenRefusedBody::BYTES,
        ResumedBody::BYTES,
        ResourceSummary::BYTES,
    ];
    let largest = HEADER_BYTES + sizes.into_iter().max().unwrap();
    assert!(largest <= bounds::INVENTORY_FRAME_BYTES_MIN, "{largest}");
}

#[test]
fn an_open_is_bound_to_everything_it_says() {
    let tag = no("the header's tag is not that of the binding");
    for at in [0, 82, 90, 106, 174, 222] {
        assert_eq!(opened("open all", |_, body| body[at] ^= 1), tag, "another binding at {at}");
    }
    for (at, letter) in [(18, b'm'), (110, b'm')] {
        assert_eq!(opened("open all", |_, body| body[at] = letter), tag, "another node at {at}");
    }
    for byte in 0..16 {
        assert_eq!(opened("open all", |header, _| header.tag[byte] ^= 1), tag, "another tag");
    }
    let (of_two, _) = named("open two, resume");
    assert_eq!(opened("open all", |header, _| header.tag = of_two.tag), tag, "another session's tag");
}

#[test]
fn a_node_has_a_legal_name() {
    let illegal = no("a node has no legal name");
    for at in [16, 108] {
        for (length, letters) in [
            (0, &b""[..]),
            (2, b"A"),
            (3, b"a_b"),
            (65, b""),
            (6, b"node-\0"),
            (4, b"node-"),
            (2, b"\xc3\xa9"),
        ] {
            let name = [&u16::to_le_bytes(length)[..], letters].concat();
            let named = opened("open all", |_, body| body[at..at + name.len()].copy_from_slice(&name));
            assert_eq!(named, illegal, "{letters:?} at {at}");
        }
        // Something behind the end of the name.
        assert_eq!(opened("open all", |_, body| body[at + 65] = b'x'), illegal);
    }
}

/// Where the records of the delta sample begin, and of the page sample.
const DELTA_RECORDS: usize = 18 + 32;
const PAGE_RECORDS: usize = 22 + 64;
const CUT: u64 = 0x1122_3344_5566_7788;

#[test]
fn a_change_names_a_listed_namespace_and_every_listed_one_is_named() {
    let unlisted = no("a change is of no listed namespace");
    for index in [1u16, 2, 0x0100, u16::MAX] {
        assert_eq!(bent("delta", DELTA_RECORDS + 49, &index.to_le_bytes()), unlisted, "{index}");
    }
    assert_eq!(bent("page", PAGE_RECORDS, &2u16.to_le_bytes()), unlisted);
    assert_eq!(bent("page", PAGE_RECORDS + 49, &1u16.to_le_bytes()), no("a listed namespace has no change"));
    let order = no("namespaces do not ascend strictly");
    assert_eq!(bent("page", 22, &counting::<32>(0x81)), order);
    assert_eq!(bent("page", 22, &counting::<32>(0x80)), order, "twice");
    let (header, mut body) = named("delta of nothing");
    body[16] = 1;
    body.extend_from_slice(&[7; 32]);
    let unnamed = decode_from_source(&header, &body).map(drop);
    assert_eq!(unnamed, no("a listed namespace has no change"));
}

#[test]
fn a_namespace_table_has_its_bound() {
    let (header, mut body) = named("delta of nothing");
    body[16..18].copy_from_slice(&4_097u16.to_le_bytes());
    body.resize(18 + 4_097 * 32, 0);
    let many = decode_from_source(&header, &body).map(drop);
    assert_eq!(many, over("namespaces of a frame", 4_097, 4_096));
}

#[test]
fn a_change_has_a_known_effect_and_bytes_exactly_if_it_is_a_put() {
    let bytes = no("a put has bytes and a delete has none");
    for value in 0..=u8::MAX {
        // The first record of the delta is a delete without bytes, the second a put with some.
        let (delete, put) = match value {
            0 | 1 => (bytes, Ok(())),
            2 | 3 => (Ok(()), bytes),
            _ => (no("a change has no such effect"), no("a change has no such effect")),
        };
        assert_eq!(bent("delta", DELTA_RECORDS + 36, &[value]), delete, "{value}");
        assert_eq!(bent("delta", DELTA_RECORDS + 49 + 36, &[value]), put, "{value}");
    }
    assert_eq!(bent("delta", DELTA_RECORDS + 37, &1u32.to_le_bytes()), bytes);
    assert_eq!(bent("delta", DELTA_RECORDS + 49 + 37, &0u32.to_le_bytes()), bytes);
    assert_eq!(bent("page", PAGE_RECORDS + 37, &0u32.to_le_bytes()), bytes);
    let delete = |at: usize| {
        let (header, mut body) = named("page");
        body[at + 36..at + 41].copy_from_slice(&[2, 0, 0, 0, 0]);
        decode_from_source(&header, &body).map(drop)
    };
    assert_eq!(delete(PAGE_RECORDS), no("a page has puts only"));
}

#[test]
fn a_delta_ascends_inside_its_interval() {
    let sequence = |record: usize, sequence: u64| {
        bent("delta", DELTA_RECORDS + 49 * record + 41, &sequence.to_le_bytes())
    };
    let outside = no("a change lies outside what its frame covers");
    let order = no("changes are not in the order of their sequences");
    // The records have CUT - 19, CUT - 8 and CUT, in the interval after CUT - 20.
    for (record, value, expected) in [
        (0, CUT - 20, outside),
        (0, 0, outside),
        (0, CUT - 9, Ok(())),
        (0, CUT - 8, order),
        (1, CUT - 18, Ok(())),
        (1, CUT - 19, order),
        (2, CUT - 8, order),
        (2, CUT - 7, Ok(())),
        (2, CUT + 1, outside),
        (2, u64::MAX, outside),
    ] {
        assert_eq!(sequence(record, value), expected, "{value} in {record}");
    }
}

#[test]
fn a_delta_covers_something() {
    for from in [CUT, CUT + 1, u64::MAX] {
        assert_eq!(bent("delta of nothing", 0, &from.to_le_bytes()), no("a delta covers nothing"));
    }
    assert_eq!(bent("delta of nothing", 0, &(CUT - 1).to_le_bytes()), Ok(()));
    assert_eq!(
        bent("delta", 0, &(CUT - 19).to_le_bytes()),
        no("a change lies outside what its frame covers")
    );
}

#[test]
fn a_page_may_be_in_any_order_of_sequences_but_0_is_none() {
    for value in [1, CUT, HEAD] {
        assert_eq!(bent("page", PAGE_RECORDS + 41, &u64::to_le_bytes(value)), Ok(()));
    }
    let outside = no("a change lies outside what its frame covers");
    assert_eq!(bent("page", PAGE_RECORDS + 41, &0u64.to_le_bytes()), outside);
}

/// A body of `kind` with `count` puts of one namespace, sequences from 1.
fn many(kind: Kind, count: usize) -> (Header, Vec<u8>) {
    let mut body = Vec::new();
    match kind {
        Kind::Delta => DeltaBody { from: 0, through: HEAD, namespaces: 1 }.append_to(&mut body),
        _ => SnapshotPageBody { snapshot: [1; 16], number: 0, namespaces: 1 }.append_to(&mut body),
    }
    body.extend_from_slice(&[9; 32]);
    for sequence in 1..=count as u64 {
        ChangeRecord { namespace: 0, group: 0, block: [5; 32], effect: 0, bytes: 1, sequence }
            .append_to(&mut body);
    }
    let length = (HEADER_BYTES + body.len()) as u32;
    let count = count as u32;
    (Header { length, kind: kind as u8, tag: [0; 16], frame: 1, head: HEAD, count }, body)
}

#[test]
fn deltas_pages_and_bodies_have_their_bounds() {
    let taken = |kind, count| {
        let (header, body) = many(kind, count);
        decode_from_source(&header, &body).map(drop)
    };
    assert_eq!(taken(Kind::Delta, 1_024), Ok(()));
    assert_eq!(taken(Kind::Delta, 1_025), over("changes of a delta", 1_025, 1_024));
    let fits = (64 * 1024 - 22 - 32) / 49;
    assert_eq!(taken(Kind::SnapshotPage, fits), Ok(()));
    let bytes = (22 + 32 + 49 * (fits + 1)) as u64;
    assert_eq!(taken(Kind::SnapshotPage, fits + 1), over("bytes of a page", bytes, 65_536));
    let (header, mut body) = many(Kind::Delta, 0);
    body.resize(512 * 1024 + 1, 0);
    let large = decode_from_source(&header, &body).map(drop);
    assert_eq!(large, over("bytes of a body", 524_289, 524_288));
    assert_eq!(large.unwrap_err().to_string(), "bytes of a body: 524289 is over the limit of 524288");
}

#[test]
fn our_own_open_is_consistent() {
    let broken = |bend: fn(&mut Open)| {
        let mut open = open(two(), None);
        bend(&mut open);
        std::panic::catch_unwind(|| append_open(&mut Vec::new(), &open)).is_err()
    };
    assert!(!broken(|_| {}));
    assert!(broken(|open| open.scope = Scope::All), "another scope than the binding's");
    assert!(broken(|open| open.window_bytes = open.frame_bytes_max * 2 - 1), "a window of one frame");
    assert!(broken(|open| open.frame_bytes_max = 100), "a frame without room for a change");
}
