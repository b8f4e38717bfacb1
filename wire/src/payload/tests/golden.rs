//! The bytes of every kind of frame, and of the tag, written down.
//!
//! `golden.txt` and the constants here may only change together with [`PROTOCOL`].

use super::samples::{Says, TAG, binding, samples};
use super::*;
use crate::identity::NodeId;
use crate::inventory::{Requester, SourceStream};
use crate::tests::golden::{frames, spell};

const GOLDEN: &str = include_str!("golden.txt");

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
fn samples_cover_every_kind() {
    for &kind in Kind::ALL {
        let sample = samples().into_iter().find(|sample| sample.bytes[4] == kind as u8).expect("a sample");
        let says = match kind as u8 {
            1 => Says::Authorize,
            2..16 => Says::Requester,
            _ => Says::Source,
        };
        assert_eq!(sample.says, says, "{kind:?}");
    }
}

/// Decodes a frame and spells it again.
pub fn respell(says: Says, bytes: &[u8]) -> Result<Vec<u8>, FrameError> {
    let (header, body) = split_frame(bytes)?.ok_or(LayoutError::Truncated)?;
    let body = &bytes[body];
    Ok(match says {
        Says::Authorize => reencode::authorize(&decode_authorize(&header, body)?),
        Says::Requester => reencode::from_requester(&header, decode_from_requester(&header, body)?),
        Says::Source => reencode::from_source(&header, &decode_from_source(&header, body)?),
    })
}

#[test]
fn every_frame_decodes_to_what_spells_it_again_at_any_address() {
    for sample in samples() {
        for shift in 0..8 {
            let moved = [vec![0xee; shift], sample.bytes.clone()].concat();
            let again = respell(sample.says, &moved[shift..]).expect(sample.name);
            assert_eq!(again, sample.bytes, "{} moved by {shift}", sample.name);
        }
    }
}

#[test]
fn the_layout_hash_belongs_to_the_protocol() {
    assert_eq!(layout_hash(), 0x4321_677a_713c_ec56, "{:#018x}", layout_hash());
    assert_eq!((PROTOCOL, HEADER_BYTES), ("orbitkv/payload/v2", 41));
}

#[test]
fn the_tag_is_what_another_implementation_gave() {
    assert_eq!(binding().tag(), Tag(TAG.to_be_bytes()));
}

#[test]
fn every_part_of_a_binding_changes_its_tag() {
    let base = binding();
    let changed: [fn(&mut Binding); 7] = [
        |binding| binding.cluster.0[15] ^= 1,
        |binding| binding.source.node = NodeId::new("node-b").unwrap(),
        |binding| binding.source.epoch += 1,
        |binding| binding.source.incarnation.0[0] ^= 1,
        |binding| binding.source.shard.0 += 1,
        |binding| binding.requester.node = NodeId::new("node-b").unwrap(),
        |binding| binding.requester.incarnation.0[7] ^= 1,
    ];
    let mut tags = vec![base.tag()];
    for change in changed {
        let mut binding = base;
        change(&mut binding);
        tags.push(binding.tag());
    }
    tags.sort();
    tags.dedup();
    assert_eq!(tags.len(), 8);
    let turned = Binding {
        source: SourceStream { node: base.requester.node, ..base.source },
        requester: Requester { node: base.source.node, ..base.requester },
        ..base
    };
    assert_ne!(turned.tag(), base.tag(), "the two ends are not interchangeable");
}
