//! `docs/inventory-protocol.md` against the code: offsets, sizes, types, numbers, bounds and
//! domains.

use std::collections::BTreeMap;

use super::open::*;
use super::*;
use crate::tests::document::{
    bounds_of, fixed_types, headings, numbers, numbers_of, pairs, structs, structs_of,
};

const PAGE: &str = include_str!("../../../../docs/inventory-protocol.md");

/// Every fixed struct as the compiler has it, in the order of the layout hash.
const TYPES: &[(&str, usize)] = &fixed_types!(
    Header SnapshotBody SequenceBody NamespaceRecord OpenBody SnapshotRefuseBody AckBody OpenRefusedBody
    ResumedBody SnapshotQueuedBody SnapshotBeginBody SnapshotPageBody DeltaBody SnapshotCommitBody
    ResourceSummary ResetRequiredBody ChangeRecord
);

#[test]
fn every_offset_size_and_type_is_documented() {
    assert_eq!(structs(PAGE), structs_of(TYPES));
}

#[test]
fn a_wrong_offset_in_the_document_is_noticed() {
    let row = "| 21 | 8 | `u64` | `frame` |";
    assert!(PAGE.contains(row));
    for wrong in ["| 22 | 8 | `u64` | `frame` |", "| 21 | 4 | `u64` | `frame` |", "| 21 | 8 | `u64` | `f` |"]
    {
        assert_ne!(structs(&PAGE.replacen(row, wrong, 1)), structs_of(TYPES));
    }
}

#[test]
fn the_layout_hash_covers_every_documented_struct() {
    let all: String = TYPES.iter().map(|(description, _)| *description).collect();
    assert_eq!(xxhash_rust::xxh3::xxh3_64(all.as_bytes()), layout_hash());
}

#[test]
fn every_number_is_documented() {
    let expected = numbers_of! {
        Kind: u8,
        ScopeKind: u8,
        OpenRefusal: u8,
        ResetCause: u8,
        Effect: u8,
    };
    assert_eq!(numbers(PAGE), expected);
}

#[test]
fn every_kind_has_its_row_in_the_life_of_a_session() {
    assert!(headings(PAGE).contains(&"A session".to_string()));
    let life = PAGE.split("## A session").nth(1).and_then(|rest| rest.split("## Frames").next()).unwrap();
    for kind in Kind::ALL {
        assert!(life.contains(&format!("`{kind:?}`")), "{kind:?}");
    }
}

#[test]
fn constants_and_bounds_are_documented() {
    let constants = [("PROTOCOL", PROTOCOL.to_string()), ("layout_hash", format!("{:#018x}", layout_hash()))];
    assert_eq!(pairs(PAGE, "Constants"), constants.map(|(name, value)| (name.to_string(), value)).into());
    let expected: BTreeMap<String, String> = bounds_of!(
        INVENTORY_HEADER_BYTES INVENTORY_BODY_BYTES_MAX INVENTORY_FRAME_BYTES_MAX INVENTORY_FRAME_BYTES_MIN
        WINDOW_FRAMES_MIN INVENTORY_RECEIVE_BYTES_MAX OPEN_BYTES_MAX SCOPE_NAMESPACES_MAX PAGE_BYTES_MAX
        INTERVAL_RECORDS_MAX NAMESPACES_MAX NODE_ID_BYTES_MAX
    );
    assert_eq!(pairs(PAGE, "Bounds"), expected);
}

#[test]
fn hashed_domains_are_documented() {
    assert_eq!((TAG_VERSION, crate::scope::ENCODING_VERSION), (1, 1));
    for domain in [TAG_DOMAIN, crate::scope::DOMAIN] {
        assert!(PAGE.contains(&format!("`{domain}`")), "{domain}");
    }
}
