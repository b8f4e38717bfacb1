//! Pages and deltas as they are written: against a plain model, and exactly up to their bounds.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::identity::*;

const ONE: usize = 22 + NAMESPACE_BYTES + RECORD_BYTES;

fn namespace(number: u16) -> NamespaceDigest {
    // Neither the order of the numbers nor its reverse.
    NamespaceDigest(number.wrapping_mul(0x9e37).to_be_bytes().repeat(16).try_into().unwrap())
}

fn put(writer: &mut ChangesWriter, of: u16, sequence: u64) -> Result<(), Full> {
    let (block, change) = (BlockHash([sequence as u8; 32]), WireChange::Put { bytes: 9 });
    writer.push(&namespace(of), GroupId(1), &block, Medium::Dram, change, Sequence(sequence))
}

/// A change of the model.
#[derive(Clone, Debug)]
struct Change {
    namespace: u16,
    group: u16,
    block: [u8; 32],
    medium: Medium,
    change: WireChange,
    sequence: u64,
}

fn changes(deletes: bool) -> impl Strategy<Value = Vec<Change>> {
    let medium = any::<bool>().prop_map(|ssd| Medium::ALL[usize::from(ssd)]);
    let change = (any::<bool>(), 1u32..).prop_map(move |(delete, bytes)| {
        if delete && deletes { WireChange::Delete } else { WireChange::Put { bytes } }
    });
    let one = (0u16..9, any::<u16>(), any::<[u8; 32]>(), medium, change, 1u64..1_000);
    vec(one, 0..60).prop_map(|changes| {
        let one = |(namespace, group, block, medium, change, sequence)| Change {
            namespace,
            group,
            block,
            medium,
            change,
            sequence,
        };
        changes.into_iter().map(one).collect()
    })
}

/// Writes as many of the changes as fit, and says how many.
fn write(writer: &mut ChangesWriter, changes: &[Change]) -> usize {
    let mut push = |change: &Change| {
        let (namespace, block) = (namespace(change.namespace), BlockHash(change.block));
        let (group, sequence) = (GroupId(change.group), Sequence(change.sequence));
        writer.push(&namespace, group, &block, change.medium, change.change, sequence)
    };
    changes.iter().take_while(|change| push(change).is_ok()).count()
}

/// The model's answer: how many of the changes have room behind `fixed` bytes.
fn fitting(changes: &[Change], fixed: usize, bytes_max: usize) -> usize {
    let bytes = |count: usize| {
        let namespaces: BTreeSet<_> = changes[..count].iter().map(|change| change.namespace).collect();
        fixed + namespaces.len() * 32 + count * 49
    };
    (0..=changes.len()).rev().find(|&count| bytes(count) <= bytes_max).unwrap()
}

fn same(read: Changes<'_>, model: &[Change]) {
    let table: Vec<_> = read.namespaces().collect();
    let expected: BTreeSet<_> = model.iter().map(|change| namespace(change.namespace)).collect();
    assert_eq!(table, expected.into_iter().collect::<Vec<_>>());
    assert_eq!((read.len(), read.is_empty()), (model.len(), model.is_empty()));
    for (read, model) in read.iter().zip(model) {
        assert_eq!(table[usize::from(read.namespace)], namespace(model.namespace));
        assert_eq!((read.group.0, read.block), (model.group, &model.block));
        assert_eq!((read.medium, read.change, read.sequence.0), (model.medium, model.change, model.sequence));
    }
}

fn header(body: &Body) -> Header {
    Header::new(body.kind, Tag([1; 16]), 1, Sequence(2_000), body.count, body.bytes.len())
}

proptest! {
    #[test]
    fn a_page_is_read_as_it_was_written(changes in changes(false), bytes_max in ONE..4_000, number: u32) {
        let mut writer = ChangesWriter::new(bytes_max);
        for _ in 0..2 {
            writer.page(SnapshotId([4; 16]), number);
            let written = write(&mut writer, &changes);
            prop_assert_eq!(written, fitting(&changes, 22, bytes_max));
            prop_assert_eq!(writer.count(), written);
            let body = writer.finish();
            prop_assert!(body.bytes.len() <= bytes_max);
            let read = decode_from_source(&header(&body), &body.bytes).unwrap();
            let FromSource::SnapshotPage { snapshot, number: page, changes: read } = read else { panic!() };
            prop_assert_eq!((snapshot, page), (SnapshotId([4; 16]), number));
            same(read, &changes[..written]);
        }
    }

    #[test]
    fn a_delta_is_read_as_it_was_written(mut changes in changes(true), bytes_max in ONE..4_000, beyond in 0u64..5) {
        changes.sort_by_key(|change| change.sequence);
        changes.dedup_by_key(|change| change.sequence);
        let through = changes.last().map_or(1, |change| change.sequence) + beyond;
        let mut writer = ChangesWriter::new(bytes_max);
        writer.page(SnapshotId([0; 16]), 0);
        put(&mut writer, 30, 7).unwrap();
        // What was begun and not finished leaves nothing behind.
        writer.delta(Sequence(0), Sequence(through));
        let written = write(&mut writer, &changes);
        prop_assert_eq!(written, fitting(&changes, 18, bytes_max));
        let body = writer.finish();
        let read = decode_from_source(&header(&body), &body.bytes).unwrap();
        let FromSource::Delta { from, through: to, changes: read } = read else { panic!() };
        prop_assert_eq!((from, to), (Sequence(0), Sequence(through)));
        same(read, &changes[..written]);
    }
}

#[test]
fn a_full_body_is_as_it_was_before() {
    let mut writer = ChangesWriter::new(ONE + RECORD_BYTES);
    writer.page(SnapshotId([1; 16]), 0);
    put(&mut writer, 1, 5).unwrap();
    assert_eq!(put(&mut writer, 2, 6), Err(Full), "a second namespace is too much");
    assert_eq!(put(&mut writer, 1, 6), Ok(()), "a second change of the first is not");
    assert_eq!(put(&mut writer, 1, 7), Err(Full));
    let body = writer.finish();
    assert_eq!((body.count, body.bytes.len()), (2, ONE + RECORD_BYTES));
    assert!(decode_from_source(&header(&body), &body.bytes).is_ok());
}

#[test]
fn a_page_ends_at_64_kib_and_a_delta_at_1024_changes() {
    let mut writer = ChangesWriter::new(bounds::INVENTORY_BODY_BYTES_MAX);
    writer.page(SnapshotId([1; 16]), 0);
    let pushed = (1..).take_while(|&sequence| put(&mut writer, 1, sequence).is_ok()).count();
    assert_eq!(pushed, (64 * 1024 - 22 - 32) / 49);
    assert!(writer.finish().bytes.len() <= bounds::PAGE_BYTES_MAX);
    writer.delta(Sequence(0), Sequence(2_000));
    let pushed =
        (1..2_000).take_while(|&sequence| put(&mut writer, sequence as u16, sequence).is_ok()).count();
    assert_eq!(pushed, 1_024);
    let body = writer.finish();
    assert_eq!(body.bytes.len(), 18 + 1_024 * (32 + 49));
    let FromSource::Delta { changes, .. } = decode_from_source(&header(&body), &body.bytes).unwrap() else {
        panic!()
    };
    for (change, sequence) in changes.iter().zip(1u64..) {
        let named = changes.namespaces().nth(usize::from(change.namespace)).unwrap();
        assert_eq!((named, change.sequence.0), (namespace(sequence as u16), sequence));
    }
}

/// Whether doing this with a fresh writer is our bug, and noticed.
fn broken(act: fn(&mut ChangesWriter)) -> bool {
    std::panic::catch_unwind(|| act(&mut ChangesWriter::new(4_096))).is_err()
}

#[test]
fn what_no_decoder_would_take_is_not_written() {
    let change = |writer: &mut ChangesWriter, change, sequence| {
        writer.push(&namespace(1), GroupId(0), &BlockHash([0; 32]), Medium::Ssd, change, Sequence(sequence))
    };
    assert!(!broken(|writer| writer.delta(Sequence(4), Sequence(5))));
    assert!(broken(|writer| writer.delta(Sequence(5), Sequence(5))));
    assert!(broken(|writer| drop(writer.finish())));
    assert!(broken(|writer| put(writer, 1, 1).unwrap()));
    for sequence in [0, 4, 10] {
        let outside = std::panic::catch_unwind(|| {
            let mut writer = ChangesWriter::new(4_096);
            writer.delta(Sequence(4), Sequence(9));
            put(&mut writer, 1, sequence)
        });
        assert!(outside.is_err(), "{sequence}");
    }
    let cases: [(WireChange, u64, bool); 4] = [
        (WireChange::Put { bytes: 1 }, 1, false),
        (WireChange::Put { bytes: 0 }, 1, true),
        (WireChange::Put { bytes: 1 }, 0, true),
        (WireChange::Delete, 1, true),
    ];
    for (what, sequence, expected) in cases {
        let paged = std::panic::catch_unwind(|| {
            let mut writer = ChangesWriter::new(4_096);
            writer.page(SnapshotId([0; 16]), 0);
            change(&mut writer, what, sequence)
        });
        assert_eq!(paged.is_err(), expected, "{what:?} at {sequence}");
    }
    assert!(std::panic::catch_unwind(|| ChangesWriter::new(ONE - 1)).is_err());
    assert!(std::panic::catch_unwind(|| ChangesWriter::new(ONE)).is_ok());
    assert!(std::panic::catch_unwind(|| ChangesWriter::new(bounds::INVENTORY_BODY_BYTES_MAX + 1)).is_err());
}
