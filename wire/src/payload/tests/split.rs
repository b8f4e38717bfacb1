//! A whole stream of a source, cut anywhere.

use proptest::prelude::*;

use super::samples::{OPERATION, binding, idle};
use super::*;

/// A stream with payload of the given sizes, and the payloads.
fn stream(sizes: &[u32]) -> (Vec<u8>, Vec<Vec<u8>>) {
    let (tag, mut bytes, mut payloads) = (binding().tag(), Vec::new(), Vec::new());
    let answers = sizes.iter().map(|&bytes| Answer::Granted { bytes }).collect();
    append_from_source(
        &mut bytes,
        tag,
        OPERATION,
        &FromSource::Answers { grant_ms: 5, summary: idle(), answers },
    );
    for (index, &size) in sizes.iter().enumerate().rev() {
        // Payload that looks like a frame must not be taken for one.
        let payload: Vec<u8> = std::iter::repeat_n([41u8, 0, 0, 0, 22], size as usize).flatten().collect();
        let payload = payload[..size as usize].to_vec();
        let message = FromSource::Bytes { index: index as u16, bytes: size, checksum: u64::from(size) };
        append_from_source(&mut bytes, tag, OPERATION, &message);
        bytes.extend(&payload);
        payloads.push(payload);
    }
    let failed = FromSource::Failed { index: 9, cause: FailureCause::DeviceError };
    append_from_source(&mut bytes, tag, OPERATION, &failed);
    payloads.reverse();
    (bytes, payloads)
}

/// Reads a stream that comes in pieces ending at `cuts`; every payload as it was put together.
fn read(bytes: &[u8], cuts: &[usize], count: usize) -> (Vec<FromSource>, Vec<Vec<u8>>) {
    let (mut splitter, mut at, mut messages) = (Splitter::new(), 0, Vec::new());
    let mut payloads = vec![Vec::new(); count];
    for &cut in cuts.iter().chain([&bytes.len()]) {
        while let Some(part) = splitter.next(&bytes[at..cut]).unwrap() {
            let length = part.length();
            assert!(length > 0 && at + length <= cut);
            match part {
                Part::Frame { header, message, .. } => {
                    assert_eq!(header.operation(), OPERATION);
                    messages.push(message);
                }
                Part::Payload { index, range, is_last } => {
                    let payload: &mut Vec<u8> = &mut payloads[usize::from(index)];
                    assert_eq!(payload.len(), range.start as usize);
                    payload.extend(&bytes[at..at + length]);
                    assert_eq!(payload.len(), range.end as usize);
                    assert_eq!(splitter.may_end(), is_last);
                }
            }
            at += length;
        }
    }
    assert_eq!(at, bytes.len());
    assert!(splitter.may_end());
    (messages, payloads)
}

proptest! {
    #[test]
    fn a_stream_is_read_however_it_is_cut(
        sizes in proptest::collection::vec(1u32..300, 1..5),
        mut cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..12)
    ) {
        let (bytes, payloads) = stream(&sizes);
        let mut ends: Vec<usize> = cuts.drain(..).map(|cut| cut.index(bytes.len() + 1)).collect();
        ends.sort_unstable();
        let (messages, found) = read(&bytes, &ends, sizes.len());
        prop_assert_eq!(found, payloads);
        prop_assert_eq!(messages.len(), sizes.len() + 2);
    }
}

#[test]
fn a_stream_is_read_byte_by_byte() {
    let (bytes, payloads) = stream(&[1, 41, 7]);
    let cuts: Vec<usize> = (1..bytes.len()).collect();
    assert_eq!(read(&bytes, &cuts, 3).1, payloads);
}

#[test]
fn a_stream_does_not_end_within_a_payload() {
    let (bytes, _) = stream(&[10]);
    let mut splitter = Splitter::new();
    let answers = splitter.next(&bytes).unwrap().unwrap().length();
    let frame = splitter.next(&bytes[answers..]).unwrap().unwrap().length();
    assert!(!splitter.may_end());
    assert_eq!(splitter.next(&[]), Ok(None));
    let at = answers + frame;
    let part = splitter.next(&bytes[at..at + 9]).unwrap().unwrap();
    assert_eq!(part, Part::Payload { index: 0, range: 0..9, is_last: false });
    assert!(!splitter.may_end());
    let last = splitter.next(&bytes[at + 9..]).unwrap().unwrap();
    assert_eq!(last, Part::Payload { index: 0, range: 9..10, is_last: true });
    assert!(splitter.may_end());
}

#[test]
fn a_frame_that_is_none_ends_the_stream() {
    let (mut bytes, _) = stream(&[10]);
    bytes[4] = 1;
    assert_eq!(Splitter::new().next(&bytes), Err(FrameError::Kind { number: 1 }));
    assert_eq!(Splitter::new().next(&[0, 0, 0, 1]), Err(FrameError::Length { length: 1 << 24 }));
}
