//! Everything near a good frame that is not one.

use super::golden::respell;
use super::samples::{Says, authorize, residence, samples, three};
use super::*;
use crate::bounds::{GRANT_KEYS_MAX, GRANT_MS_MAX, PAYLOAD_FRAME_BYTES_MAX};
use crate::identity::Medium;

/// A sample's header and body, to be bent.
fn parts(bytes: &[u8]) -> (Header, Vec<u8>) {
    let (header, body) = split_frame(bytes).unwrap().unwrap();
    (header, bytes[body].to_vec())
}

fn named(name: &str) -> (Says, Header, Vec<u8>) {
    let sample = samples().into_iter().find(|sample| sample.name == name).expect(name);
    let (header, body) = parts(&sample.bytes);
    (sample.says, header, body)
}

fn decode(says: Says, header: &Header, body: &[u8]) -> Result<(), FrameError> {
    match says {
        Says::Authorize => decode_authorize(header, body).map(drop),
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
    let (says, header, mut body) = named(name);
    body[at..at + bytes.len()].copy_from_slice(bytes);
    decode(says, &header, &body)
}

#[test]
fn a_buffer_shorter_than_its_frame_is_no_frame_yet() {
    for sample in samples() {
        for length in 0..sample.bytes.len() {
            assert_eq!(split_frame(&sample.bytes[..length]), Ok(None), "{} at {length}", sample.name);
        }
        let mut two = sample.bytes.repeat(2);
        two.truncate(sample.bytes.len() + 3);
        let (header, body) = split_frame(&two).unwrap().unwrap();
        assert_eq!((header.length as usize, body), (sample.bytes.len(), 41..sample.bytes.len()));
    }
}

#[test]
fn the_length_prefix_is_judged_as_soon_as_it_is_there() {
    let most = PAYLOAD_FRAME_BYTES_MAX as u32;
    for length in (0..41).chain([most + 1, most + 2, u32::MAX]) {
        assert_eq!(split_frame(&length.to_le_bytes()), Err(FrameError::Length { length }));
    }
    for length in [41, 42, most] {
        assert_eq!(split_frame(&length.to_le_bytes()), Ok(None));
    }
    let text = split_frame(&[40, 0, 0, 0]).unwrap_err().to_string();
    assert_eq!(text, "frame of 40 bytes: a frame has 41 to 12288 bytes");
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
fn a_kind_is_known_and_of_its_direction() {
    for sample in samples() {
        let (header, body) = parts(&sample.bytes);
        for number in 0..=u8::MAX {
            for says in [Says::Authorize, Says::Requester, Says::Source] {
                let fits = match number {
                    1 => says == Says::Authorize,
                    2..=4 => says == Says::Requester,
                    16..=22 => says == Says::Source,
                    _ => false,
                };
                let found = decode(says, &Header { kind: number, ..header }, &body);
                let unknown = found == Err(FrameError::Kind { number });
                assert_eq!(unknown, !fits, "{number} as {says:?}: {found:?}");
            }
        }
    }
}

#[test]
fn every_header_has_an_operation_and_counts_what_is_there() {
    for sample in samples() {
        let (header, body) = parts(&sample.bytes);
        let numbered = decode(sample.says, &Header { number: 0, ..header }, &body);
        assert_eq!(numbered, no("operations are numbered from 1"), "{}", sample.name);
        for count in [header.count + 1, header.count.wrapping_sub(1), 1 << 20, u32::MAX] {
            let wrong = Header { count, ..header };
            assert!(decode(sample.says, &wrong, &body).is_err(), "{}: {count}", sample.name);
        }
        if header.count == 0 {
            let counted = decode(sample.says, &Header { count: 1, ..header }, &body);
            assert_eq!(counted, no("a message without records counts some"), "{}", sample.name);
        }
    }
}

#[test]
fn what_outlives_incarnations_is_bound_to_none() {
    for name in ["released", "drained"] {
        let (says, header, body) = named(name);
        let bound = decode(says, &Header { tag: [1; 16], ..header }, &body);
        assert_eq!(bound, no("a message that outlives incarnations is bound to some"), "{name}");
    }
}

#[test]
fn an_authorize_is_bound_to_what_it_spells_out() {
    let other = no("the header's tag is not that of the binding");
    for at in [0, 18, 82, 90, 106, 110, 174] {
        let (_, _, body) = named("authorize one over shm");
        let value = if matches!(at, 18 | 110) { b'x' } else { body[at] ^ 1 };
        assert_eq!(bent("authorize one over shm", at, &[value]), other, "{at}");
    }
    let (_, header, body) = named("authorize one over shm");
    assert_eq!(decode(Says::Authorize, &Header { tag: [0; 16], ..header }, &body), other);
    for at in [18, 110] {
        let illegal = bent("authorize one over shm", at, b"A");
        assert_eq!(illegal, no("a node has no legal name"));
    }
}

#[test]
fn an_authorize_has_a_deadline_a_transport_and_an_attempt() {
    let name = "authorize one over shm";
    for (deadline, fits) in [(0, false), (1, true), (600_000, true), (600_001, false), (u32::MAX, false)] {
        let found = bent(name, 190, &u32::to_le_bytes(deadline));
        let refused = no("an operation has no deadline, or one that is too long");
        assert_eq!(found, if fits { Ok(()) } else { refused }, "{deadline}");
    }
    for transport in 0..=u8::MAX {
        let found = bent(name, 194, &[transport]);
        assert_eq!(found, if transport < 2 { Ok(()) } else { no("there is no such transport") });
    }
    for attempt in 0..=u8::MAX {
        let found = bent(name, 195, &[attempt]);
        assert_eq!(found, if attempt < 3 { Ok(()) } else { no("there is no such attempt") });
    }
}

#[test]
fn an_authorize_names_residences_once_in_listed_namespaces() {
    let name = "authorize three over quic";
    let (namespaces, records) = (198, 198 + 64);
    assert_eq!(bent(name, namespaces, &[0x90]), no("namespaces do not ascend strictly"), "out of order");
    let (_, header, mut body) = named(name);
    body.copy_within(namespaces..namespaces + 32, namespaces + 32);
    let twice = decode(Says::Authorize, &header, &body);
    assert_eq!(twice, no("namespaces do not ascend strictly"));
    assert_eq!(bent(name, records, &[2]), no("a residence is in no listed namespace"));
    assert_eq!(bent(name, records + 45, &[1]), no("a namespace is listed that nothing names"));
    for medium in 2..=u8::MAX {
        assert_eq!(bent(name, records + 36, &[medium]), no("a residence is on no medium"));
    }
    assert_eq!(bent(name, records + 45 + 37, &[0]), no("a residence began before anything"));
    assert_eq!(bent(name, records + 36, &[0]), no("a residence is wanted twice"));
}

#[test]
fn an_authorize_is_bounded() {
    let many =
        |count: u8| (0..count).map(|block| residence(block, 0, block, Medium::Dram, 1)).collect::<Vec<_>>();
    let mut bytes = Vec::new();
    append_authorize(&mut bytes, &authorize(many(128), Transport::Quic));
    assert!(bytes.len() <= PAYLOAD_FRAME_BYTES_MAX, "{}", bytes.len());
    let (header, body) = parts(&bytes);
    assert_eq!(decode_authorize(&header, &body), Ok(authorize(many(128), Transport::Quic)));
    let more = decode(Says::Authorize, &Header { count: 129, ..header }, &body);
    assert_eq!(more, over("residences of an operation", 129, GRANT_KEYS_MAX as u64));
    let none = decode(Says::Authorize, &Header { count: 0, ..header }, &body);
    assert_eq!(none, no("an operation wants nothing"));
    let more = bent("authorize three over quic", 196, &[4]);
    assert_eq!(more, over("namespaces of an operation", 4, 3));
    for wrong in [many(129), vec![], [three(), three()].concat()] {
        let refused = std::panic::catch_unwind(|| {
            append_authorize(&mut Vec::new(), &authorize(wrong, Transport::Quic));
        });
        assert!(refused.is_err(), "our own requests are right");
    }
}

#[test]
fn an_answer_says_only_what_it_means() {
    let surplus = no("an answer says more than it means");
    let record = |index: usize| 16 + 17 * index;
    for (index, kind) in [(0, 0u8), (1, 1), (2, 1), (3, 2), (4, 3)] {
        for (at, field) in [(1, 0u8), (5, 1), (13, 3)] {
            let fits = match kind {
                0 => field == 0,
                1 | 2 => field == 1,
                _ => field == 3,
            };
            let found = bent("answers", record(index) + at, &[0xff]);
            assert_eq!(found, if fits { Ok(()) } else { surplus }, "answer {index}, field at {at}");
        }
        for unknown in 4..=u8::MAX {
            let found = bent("answers", record(index), &[unknown]);
            assert_eq!(found, no("there is no such answer"));
        }
    }
    assert_eq!(bent("answers", record(0) + 1, &[0; 4]), no("a grant of no bytes"));
    for (grant, fits) in [(0, false), (1, true), (GRANT_MS_MAX, true), (GRANT_MS_MAX + 1, false)] {
        let found = bent("answers", 0, &grant.to_le_bytes());
        let refused = no("a grant has no duration, or one too long");
        assert_eq!(found, if fits { Ok(()) } else { refused });
    }
    for at in [12, 14] {
        let busy = |permille: u16| bent("answers", at, &permille.to_le_bytes());
        assert_eq!((busy(1_000), busy(1_001)), (Ok(()), no("more than all of a resource was busy")));
    }
    let (says, header, body) = named("answers");
    let none = decode(says, &Header { count: 0, ..header }, &body[..16]);
    assert_eq!(none, no("an operation is answered by nothing"));
    let more = decode(says, &Header { count: 129, ..header }, &body);
    assert_eq!(more, over("answers", 129, 128));
}

#[test]
fn numbers_in_source_frames_are_known_ones() {
    for value in 0..=u8::MAX {
        let known = |count: u8, what| if value < count { Ok(()) } else { no(what) };
        assert_eq!(bent("repeated", 0, &[value]), known(5, "a refusal has no such cause"));
        assert_eq!(bent("failed", 2, &[value]), known(3, "a failure has no such cause"));
        assert_eq!(bent("stopped", 0, &[value]), known(4, "a stop has no such cause"));
    }
    for at in 1..25 {
        let found = bent("lease expired", at, &[1]);
        assert_eq!(found, no("a refusal names a life without need"));
    }
}

#[test]
fn payload_is_of_a_residence_and_has_bytes() {
    for name in ["bytes", "extent"] {
        assert_eq!(bent(name, 2, &[0; 4]), no("a payload of no bytes"));
        assert_eq!(bent(name, 0, &[128]), over("position of a residence", 128, 127));
    }
    assert_eq!(bent("failed", 0, &[128]), over("position of a residence", 128, 127));
    assert_eq!(bent("extent", 14, &[0xff; 8]), no("an extent ends nowhere"));
}
