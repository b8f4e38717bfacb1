//! The bytes of every kind of frame, written down.
//!
//! `golden.txt` may only change together with [`VERSION`]: it is what engines in other languages
//! were tested against.

use super::samples::{Sample, answers, requests};
use super::*;
use crate::tests::golden::{frames, spell};

const GOLDEN: &str = include_str!("golden.txt");

fn samples() -> Vec<Sample> {
    requests().into_iter().chain(answers()).collect()
}

#[test]
fn every_frame_has_its_golden_bytes() {
    let (samples, golden) = (samples(), frames(GOLDEN));
    let built: String = samples.iter().map(|sample| spell(sample.name, &sample.bytes)).collect();
    for (sample, (name, bytes)) in samples.iter().zip(&golden) {
        assert_eq!(sample.name, *name);
        assert_eq!(sample.bytes, *bytes, "{name}; built:\n{built}");
    }
    assert_eq!(samples.len(), golden.len(), "built:\n{built}");
}

#[test]
fn every_frame_equals_its_hand_written_spelling() {
    for sample in samples() {
        assert_eq!(sample.bytes, sample.plain, "{}", sample.name);
    }
}

#[test]
fn samples_cover_every_operation_in_both_directions() {
    for samples in [requests(), answers()] {
        for &operation in Operation::ALL {
            assert!(samples.iter().any(|sample| sample.bytes[4] == operation as u8), "{operation:?}");
        }
    }
}

#[test]
fn every_frame_decodes_to_what_spells_it_again() {
    for sample in requests() {
        let (header, body) = split_frame(&sample.bytes).unwrap().unwrap();
        let request = decode_request(&header, &sample.bytes[body]).expect(sample.name);
        assert_eq!(reencode::request(&header, &request).unwrap(), sample.bytes, "{}", sample.name);
    }
    for sample in answers() {
        let (header, body) = split_frame(&sample.bytes).unwrap().unwrap();
        let answer = decode_answer(&header, &sample.bytes[body]).expect(sample.name);
        assert_eq!(reencode::answer(&header, &answer).unwrap(), sample.bytes, "{}", sample.name);
    }
}

#[test]
fn a_frame_decodes_at_any_address() {
    for shift in 0..8 {
        for (sample, is_request) in
            requests().iter().map(|s| (s, true)).chain(answers().iter().map(|s| (s, false)))
        {
            let mut moved = vec![0xee; shift];
            moved.extend_from_slice(&sample.bytes);
            let bytes = &moved[shift..];
            let (header, body) = split_frame(bytes).unwrap().unwrap();
            let again = if is_request {
                reencode::request(&header, &decode_request(&header, &bytes[body]).unwrap())
            } else {
                reencode::answer(&header, &decode_answer(&header, &bytes[body]).unwrap())
            };
            assert_eq!(again.unwrap(), sample.bytes, "{} moved by {shift}", sample.name);
        }
    }
}

#[test]
fn the_layout_hash_is_what_engines_were_built_with() {
    assert_eq!(layout_hash(), 0x4c31_95cc_74e7_f618, "{:#018x}", layout_hash());
    assert_eq!((HEADER_BYTES, VERSION, VERSION_MIN, &MAGIC), (24, 3, 3, b"ORBITKV\x02"));
}
