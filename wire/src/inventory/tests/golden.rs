//! The bytes of every kind of frame, of tags and of transcripts, written down.
//!
//! `golden.txt` and the constants here may only change together with [`PROTOCOL`].

use super::samples::{Says, TAG_ALL, TAG_NONE, TAG_TWO, binding, samples, two};
use super::*;
use crate::identity::{BlockHash, NamespaceDigest, NodeId, SnapshotId};
use crate::scope::{Scope, ScopeDigest};
use crate::tests::golden::{frames, spell};
use crate::tests::part::counting;

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
            1 => Says::Open,
            2..16 => Says::Requester,
            _ => Says::Source,
        };
        assert_eq!(sample.says, says, "{kind:?}");
    }
}

/// Decodes a frame and spells it again.
pub fn respell(says: Says, bytes: &[u8]) -> Result<Vec<u8>, FrameError> {
    let split = split_frame(bytes, bounds::INVENTORY_FRAME_BYTES_MAX)?;
    let (header, body) = split.ok_or(LayoutError::Truncated)?;
    let body = &bytes[body];
    Ok(match says {
        Says::Open => reencode::open(&decode_open(&header, body)?),
        Says::Requester => reencode::from_requester(&header, &decode_from_requester(&header, body)?),
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
    assert_eq!(layout_hash(), 0x73d5_d3ca_7db6_15f3, "{:#018x}", layout_hash());
    assert_eq!((PROTOCOL, HEADER_BYTES), ("orbitkv/inventory-stream/v4", 41));
    assert_eq!((RECORD_BYTES, NAMESPACE_BYTES), (49, 32));
}

#[test]
fn tags_are_what_another_implementation_gave() {
    for (scope, tag) in [(Scope::All, TAG_ALL), (Scope::none(), TAG_NONE), (two(), TAG_TWO)] {
        assert_eq!(binding(&scope).tag(), Tag(tag.to_be_bytes()), "{scope:?}");
    }
}

#[test]
fn every_part_of_a_binding_changes_its_tag() {
    let base = binding(&Scope::All);
    let changed: [fn(&mut Binding); 9] = [
        |binding| binding.cluster.0[15] ^= 1,
        |binding| binding.source.node = NodeId::new("node-b").unwrap(),
        |binding| binding.source.epoch += 1,
        |binding| binding.source.incarnation.0[0] ^= 1,
        |binding| binding.source.shard.0 += 1,
        |binding| binding.requester.node = NodeId::new("node-b").unwrap(),
        |binding| binding.requester.incarnation.0[7] ^= 1,
        |binding| binding.scope = ScopeDigest([0; 32]),
        |binding| binding.session.0[3] ^= 1,
    ];
    let mut tags = vec![base.tag()];
    for change in changed {
        let mut binding = base;
        change(&mut binding);
        tags.push(binding.tag());
    }
    tags.sort();
    tags.dedup();
    assert_eq!(tags.len(), 10);
    let turned = Binding {
        source: SourceStream { node: base.requester.node, ..base.source },
        requester: Requester { node: base.source.node, ..base.requester },
        ..base
    };
    assert_ne!(turned.tag(), base.tag(), "the two ends are not interchangeable");
}

#[test]
fn transcripts_are_what_another_implementation_gave() {
    let mut transcript = Transcript::new(SnapshotId(counting(0x60)));
    assert_eq!(transcript.digest().to_string(), "606162636465666768696a6b6c6d6e6f");
    let counted: Vec<u8> = (0..1_000u32).map(|index| index as u8).collect();
    for (body, digest) in [
        (&b""[..], "153618936082c1a5b7d24fa695a58a8f"),
        (b"page", "cb7590a032b49b0bde35f5ceeec86e3a"),
        (&[0; 65_536], "558e6271b33e46d6bb1c4b4a27b012ad"),
        (&counted, "d22dc8e99191571aab7c9345dc603f84"),
    ] {
        transcript.absorb(body);
        assert_eq!(transcript.digest().to_string(), digest);
    }
}

#[test]
fn a_transcript_tells_bodies_their_number_and_their_order() {
    let of = |snapshot: u8, bodies: &[&[u8]]| {
        let mut transcript = Transcript::new(SnapshotId([snapshot; 16]));
        bodies.iter().for_each(|body| transcript.absorb(body));
        transcript.digest()
    };
    let mut all = vec![
        of(1, &[]),
        of(2, &[]),
        of(1, &[b"a"]),
        of(1, &[b"a", b"a"]),
        of(1, &[b"aa"]),
        of(1, &[b"a", b"b"]),
        of(1, &[b"b", b"a"]),
        of(1, &[b"ab"]),
        of(1, &[b"a", b"b", b""]),
    ];
    let count = all.len();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), count);
}

#[test]
fn a_shared_body_has_one_header_a_session() {
    let mut writer = ChangesWriter::new(4_096);
    writer.delta(Sequence(4), Sequence(9));
    let namespace = NamespaceDigest([3; 32]);
    let put = WireChange::Put { bytes: 5 };
    let (group, block) = (crate::identity::GroupId(0), BlockHash([8; 32]));
    writer.push(&namespace, group, &block, crate::identity::Medium::Dram, put, Sequence(6)).unwrap();
    let body = writer.finish();
    for (session, frame, head) in [(1, 1, 9), (2, 77, 9), (3, 5, 12)] {
        let mut binding = binding(&Scope::All);
        binding.session.0 = [session; 16];
        let header =
            Header::new(body.kind, binding.tag(), frame, Sequence(head), body.count, body.bytes.len());
        let bytes = [&header_bytes(&header)[..], &body.bytes].concat();
        let (read, range) = split_frame(&bytes, 4_096).unwrap().unwrap();
        assert_eq!((read, &bytes[range.clone()]), (header, &body.bytes[..]));
        let FromSource::Delta { from, through, changes } = decode_from_source(&read, &bytes[range]).unwrap()
        else {
            panic!()
        };
        assert_eq!((from, through, changes.len()), (Sequence(4), Sequence(9), 1));
    }
}
