//! Everything near a good frame that is not one.

use super::samples::{answers, requests};
use super::*;

/// A sample's header and body, to be bent.
fn parts(bytes: &[u8]) -> (Header, Vec<u8>) {
    let (header, body) = split_frame(bytes).unwrap().unwrap();
    (header, bytes[body].to_vec())
}

fn request(name: &str) -> (Header, Vec<u8>) {
    let samples = requests();
    let sample = samples.iter().find(|sample| sample.name.strip_prefix("request ") == Some(name));
    parts(&sample.expect(name).bytes)
}

fn asked(header: &Header, body: &[u8]) -> Result<(), FrameError> {
    decode_request(header, body).map(drop)
}

fn answered(header: &Header, body: &[u8]) -> Result<(), FrameError> {
    decode_answer(header, body).map(drop)
}

fn over(what: &'static str, count: u64, limit: u64) -> Result<(), FrameError> {
    Err(FrameError::OverLimit { what, count, limit })
}

type Decode = fn(&Header, &[u8]) -> Result<(), FrameError>;

/// Every sample with the decoder of its direction.
fn samples() -> Vec<(&'static str, Header, Vec<u8>, Decode)> {
    let asked = requests().into_iter().map(|sample| (sample, asked as Decode));
    let answered = answers().into_iter().map(|sample| (sample, answered as Decode));
    asked
        .chain(answered)
        .map(|(sample, decode)| {
            let (header, body) = parts(&sample.bytes);
            (sample.name, header, body, decode)
        })
        .collect()
}

#[test]
fn a_buffer_shorter_than_its_frame_is_no_frame_yet() {
    for sample in requests().iter().chain(&answers()) {
        for length in 0..sample.bytes.len() {
            assert_eq!(split_frame(&sample.bytes[..length]), Ok(None), "{} at {length}", sample.name);
        }
        let mut two = sample.bytes.repeat(2);
        two.truncate(sample.bytes.len() + 3);
        let (header, body) = split_frame(&two).unwrap().unwrap();
        assert_eq!((header.length as usize, body), (sample.bytes.len(), 24..sample.bytes.len()));
    }
}

#[test]
fn the_length_prefix_is_judged_as_soon_as_it_is_there() {
    let limit = bounds::FRAME_BYTES_MAX as u32;
    for length in (0..24).chain([limit + 1, limit + 2, u32::MAX]) {
        assert_eq!(split_frame(&length.to_le_bytes()), Err(FrameError::Length { length }));
    }
    for length in [24, 25, limit] {
        assert_eq!(split_frame(&length.to_le_bytes()), Ok(None));
    }
    let text = FrameError::Length { length: limit + 1 }.to_string();
    assert!(text.contains("24 to 532480 bytes"), "{text}");
}

#[test]
fn every_truncated_body_is_refused() {
    for (name, header, body, decode) in samples() {
        assert_eq!(decode(&header, &body), Ok(()), "{name}");
        for length in 0..body.len() {
            assert_eq!(decode(&header, &body[..length]), Err(FrameError::Truncated), "{name} at {length}");
        }
    }
}

#[test]
fn bytes_after_the_last_part_are_refused() {
    for (name, header, body, decode) in samples() {
        for extra in [1, 2, 7] {
            let longer = [body.clone(), vec![0; extra]].concat();
            assert_eq!(decode(&header, &longer), Err(FrameError::TrailingBytes), "{name}");
        }
    }
}

#[test]
fn a_count_that_contradicts_the_bytes_is_refused() {
    for (name, header, body, decode) in samples() {
        for count in [header.count + 1, header.count.wrapping_sub(1), 1 << 20, u32::MAX] {
            let bent = Header { count, ..header };
            assert!(decode(&bent, &body).is_err(), "{name}: {count} instead of {}", header.count);
        }
    }
}

#[test]
fn unknown_operations_are_refused_by_number() {
    for (name, header, body, decode) in samples() {
        for number in (0..=u8::MAX).filter(|&number| Operation::from_wire(number).is_none()) {
            let bent = Header { operation: number, ..header };
            assert_eq!(decode(&bent, &body), Err(FrameError::Operation { number }), "{name}");
        }
    }
}

#[test]
fn a_request_has_neither_flags_nor_status() {
    for sample in requests() {
        let (header, body) = parts(&sample.bytes);
        for flags in 1..=u8::MAX {
            assert_eq!(
                asked(&Header { flags, ..header }, &body),
                Err(FrameError::Invalid),
                "{}",
                sample.name
            );
        }
        for status in [1, 2, 16, 17, u16::MAX] {
            assert_eq!(
                asked(&Header { status, ..header }, &body),
                Err(FrameError::Invalid),
                "{}",
                sample.name
            );
        }
    }
}

#[test]
fn an_answer_has_known_flags_a_known_status_and_no_deadline() {
    for sample in answers() {
        let (header, body) = parts(&sample.bytes);
        let operation = Operation::from_wire(header.operation).unwrap();
        let name = sample.name;
        for flags in 0..=u8::MAX {
            let streams = operation.may_stream() && header.status == 0;
            let expected =
                if flags == 0 || (flags == 1 && streams) { Ok(()) } else { Err(FrameError::Invalid) };
            assert_eq!(answered(&Header { flags, ..header }, &body), expected, "{name} with {flags}");
        }
        for status in [17, 18, 0x0100, u16::MAX] {
            assert_eq!(answered(&Header { status, ..header }, &body), Err(FrameError::Invalid), "{name}");
        }
        assert_eq!(answered(&Header { deadline_ms: 1, ..header }, &body), Err(FrameError::Invalid), "{name}");
    }
}

#[test]
fn any_operation_may_be_refused_with_any_reason() {
    for &operation in Operation::ALL {
        for &status in &Status::ALL[1..] {
            let mut bytes = Vec::new();
            append_refusal(&mut bytes, operation, 9, status, 4, "no");
            let (header, body) = parts(&bytes);
            let Answer::Refused(said, refusal) = decode_answer(&header, &body).unwrap() else { panic!() };
            assert_eq!((said, refusal.detail, refusal.text.as_str()), (status, 4, Some("no")));
        }
    }
}

#[test]
fn a_long_refusal_is_cut_between_characters() {
    let mut bytes = Vec::new();
    append_refusal(&mut bytes, Operation::Ping, 1, Status::Busy, 0, &"é".repeat(200).replacen('é', "x", 1));
    let (header, body) = parts(&bytes);
    let Answer::Refused(_, refusal) = decode_answer(&header, &body).unwrap() else { panic!() };
    assert_eq!(refusal.text.as_str().map(str::len), Some(239));
}

#[test]
fn a_deadline_beyond_its_limit_names_the_limit() {
    for sample in requests() {
        let (header, body) = parts(&sample.bytes);
        assert_eq!(asked(&Header { deadline_ms: 600_000, ..header }, &body), Ok(()));
        let late = asked(&Header { deadline_ms: 600_001, ..header }, &body);
        assert_eq!(late, over("deadline in milliseconds", 600_001, 600_000), "{}", sample.name);
    }
}

/// A request with `count` zeroed records of `record` bytes behind the sample's fixed body.
fn filled(name: &str, fixed: usize, record: usize, count: usize) -> (Header, Vec<u8>) {
    let (header, mut body) = request(name);
    body.truncate(fixed);
    body.resize(fixed + record * count, 0);
    (Header { count: count as u32, ..header }, body)
}

#[test]
fn every_key_list_has_its_bound() {
    for (name, fixed, record) in [("reserve", 5, 42), ("commit", 8, 8), ("abort", 8, 8), ("evict", 5, 34)] {
        let (header, body) = filled(name, fixed, record, 4_096);
        assert_eq!(asked(&header, &body), Ok(()), "{name}");
        let (header, body) = filled(name, fixed, record, 4_097);
        assert_eq!(asked(&header, &body), over("keys in a request", 4_097, 4_096), "{name}");
        let (header, body) = filled(name, fixed, record, 0);
        assert_eq!(asked(&header, &body), Ok(()), "{name} of nothing");
    }
    let (header, body) = filled("register", 1_195, 19, 64);
    assert_eq!(asked(&header, &body), Ok(()));
    let (header, body) = filled("register", 1_195, 19, 65);
    assert_eq!(asked(&header, &body), over("layer groups in a registration", 65, 64));
}

/// A prefix request of one list, or of `lists` lists that share the hashes.
fn prefix(operation: Operation, lists: usize, hashes: usize) -> Vec<u8> {
    let body = PrefixBody { lists: lists as u32, completion: 0, hold: 0, lease: [0; 16] };
    let share = |index: usize| (hashes / lists + usize::from(index < hashes % lists)) as u32;
    let lists: Vec<_> =
        (0..lists).map(|index| ListRecord { namespace: 1, group: 0, count: share(index) }).collect();
    let mut bytes = Vec::new();
    let hashes = vec![HashRecord { block: [7; 32] }; hashes];
    append_prefix_request(&mut bytes, operation, 1, 0, &body, &lists, &hashes);
    bytes
}

#[test]
fn a_prefix_has_bounds_on_hashes_and_lists() {
    for (operation, limit) in
        [(Operation::Query, 16_384), (Operation::Acquire, 4_096), (Operation::Prefetch, 4_096)]
    {
        let (header, body) = parts(&prefix(operation, 64, limit));
        assert_eq!(asked(&header, &body), Ok(()));
        let (header, body) = parts(&prefix(operation, 1, limit + 1));
        let limit = limit as u64;
        assert_eq!(asked(&header, &body), over("block hashes in a request", limit + 1, limit));
        let (header, body) = parts(&prefix(operation, 65, 65));
        assert_eq!(asked(&header, &body), over("lists in a request", 65, 64));
    }
}

#[test]
fn the_limit_is_in_the_message() {
    let (header, body) = parts(&prefix(Operation::Query, 1, 16_385));
    let text = asked(&header, &body).unwrap_err().to_string();
    assert_eq!(text, "block hashes in a request: 16385 is over the limit of 16384");
}

#[test]
fn list_counts_must_add_up_to_the_header() {
    for counts in [[1, 1], [3, 1], [0, 0], [u32::MAX, 4], [u32::MAX, u32::MAX]] {
        let (header, mut body) = request("query");
        body[22 + 6..22 + 10].copy_from_slice(&counts[0].to_le_bytes());
        body[32 + 6..32 + 10].copy_from_slice(&counts[1].to_le_bytes());
        assert_eq!(asked(&header, &body), Err(FrameError::Invalid), "{counts:?}");
    }
}

/// Puts each value at `at` in the named request and expects Invalid except for `good`.
fn byte_rule(name: &str, at: usize, good: std::ops::RangeInclusive<u8>) {
    for value in 0..=u8::MAX {
        let (header, mut body) = request(name);
        body[at] = value;
        let expected = if good.contains(&value) { Ok(()) } else { Err(FrameError::Invalid) };
        assert_eq!(asked(&header, &body), expected, "{name}: {value} at {at}");
    }
}

#[test]
fn numbers_and_flags_in_requests_are_known_ones() {
    byte_rule("register", 1_194, 0..=1);
    byte_rule("register", 1_195 + 2, 0..=3);
    byte_rule("register", 1_195 + 19 + 2, 0..=3);
    byte_rule("reserve", 4, 0..=1);
    byte_rule("query", 4, 0..=1);
    byte_rule("query", 5, 0..=1);
    byte_rule("acquire", 4, 0..=1);
    byte_rule("prefetch", 4, 0..=1);
    // Nothing is pinned, whatever a Query may ask for with the same bytes.
    (5..22).for_each(|at| byte_rule("prefetch", at, 0..=0));
    byte_rule("evict", 4, 1..=3);
    byte_rule("clear", 32, 1..=3);
    byte_rule("list", 32, 1..=3);
    for (at, byte) in MAGIC.into_iter().enumerate() {
        byte_rule("hello", at, byte..=byte);
    }
}

#[test]
fn sizes_in_requests_have_bounds() {
    for (limit, expected) in [
        (0, Err(FrameError::Invalid)),
        (1, Ok(())),
        (4_096, Ok(())),
        (4_097, over("residents in a page", 4_097, 4_096)),
    ] {
        let (header, mut body) = request("list");
        body[33..37].copy_from_slice(&u32::to_le_bytes(limit));
        assert_eq!(asked(&header, &body), expected);
    }
    for (width, expected) in [
        (0, Err(FrameError::Invalid)),
        (1, Ok(())),
        (32, Ok(())),
        (33, over("bytes of a block hash", 33, 32)),
        (u16::MAX, over("bytes of a block hash", 65_535, 32)),
    ] {
        let (header, mut body) = request("register");
        body[1_172..1_174].copy_from_slice(&width.to_le_bytes());
        assert_eq!(asked(&header, &body), expected);
    }
}

/// Offset and size of every text field of a registration.
const TEXTS: [(usize, usize); 10] = [
    (0, 64),
    (66, 64),
    (132, 256),
    (390, 128),
    (520, 256),
    (778, 128),
    (908, 32),
    (942, 128),
    (1_072, 32),
    (1_106, 64),
];

/// The registration with `length` and `content` in the text field at `at`, zeros behind.
fn with_text(at: usize, limit: usize, length: u16, content: &[u8]) -> Result<(), FrameError> {
    let (header, mut body) = request("register");
    body[at..at + 2].copy_from_slice(&length.to_le_bytes());
    body[at + 2..at + 2 + limit].fill(0);
    body[at + 2..at + 2 + content.len()].copy_from_slice(content);
    asked(&header, &body)
}

#[test]
fn a_text_is_utf8_within_its_field_and_padded_with_zeros() {
    for (at, limit) in TEXTS {
        let full = vec![b'x'; limit];
        let width = limit as u16;
        for (length, content, expected) in [
            (0, &b""[..], Ok(())),
            (3, b"abc", Ok(())),
            (width, &full, Ok(())),
            (2, b"abc", Err(FrameError::Invalid)),
            (0, b"\0\0x", Err(FrameError::Invalid)),
            (width - 1, &full, Err(FrameError::Invalid)),
            (width + 1, &full, Err(FrameError::Invalid)),
            (u16::MAX, &full, Err(FrameError::Invalid)),
            (2, b"\xff\xfe", Err(FrameError::Invalid)),
            (1, b"\xc3", Err(FrameError::Invalid)),
            (2, b"\xc3\xa9", Ok(())),
            (3, b"\xed\xa0\x80", Err(FrameError::Invalid)),
        ] {
            assert_eq!(with_text(at, limit, length, content), expected, "{length} {content:?} at {at}");
        }
    }
}

#[test]
fn a_refusal_has_a_well_formed_text() {
    let mut bytes = Vec::new();
    append_refusal(&mut bytes, Operation::Ping, 1, Status::Busy, 0, "abc");
    let (header, body) = parts(&bytes);
    for (at, value) in [(8, 2), (9, 1), (10, 0xff), (8 + 2 + 239, 1)] {
        let mut bent = body.clone();
        bent[at] = value;
        assert_eq!(answered(&header, &bent), Err(FrameError::Invalid), "{value} at {at}");
    }
}
