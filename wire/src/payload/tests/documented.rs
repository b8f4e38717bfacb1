//! `docs/payload-protocol.md` against the code: offsets, sizes, types, numbers, bounds and domains.

use std::collections::BTreeMap;

use super::*;
use crate::inventory::{NamespaceRecord, ResourceSummary};
use crate::tests::document::{
    bounds_of, fixed_types, headings, numbers, numbers_of, pairs, structs, structs_of,
};

const PAGE: &str = include_str!("../../../../docs/payload-protocol.md");

/// Every fixed struct as the compiler has it, in the order of the layout hash.
const TYPES: &[(&str, usize)] = &fixed_types!(
    Header AuthorizeBody NamespaceRecord ResidenceRecord AnswersBody ResourceSummary AnswerRecord
    RefusedBody BytesBody ExtentBody FailedBody StoppedBody
);

#[test]
fn every_offset_size_and_type_is_documented() {
    assert_eq!(structs(PAGE), structs_of(TYPES));
}

#[test]
fn a_wrong_offset_in_the_document_is_noticed() {
    let row = "| 21 | 8 | `u64` | `origin` |";
    assert!(PAGE.contains(row));
    for wrong in
        ["| 22 | 8 | `u64` | `origin` |", "| 21 | 4 | `u64` | `origin` |", "| 21 | 8 | `u64` | `o` |"]
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
        Transport: u8,
        Attempt: u8,
        AnswerKind: u8,
        RefusalCause: u8,
        FailureCause: u8,
        StopCause: u8,
    };
    assert_eq!(numbers(PAGE), expected);
}

#[test]
fn every_kind_has_its_row_in_the_life_of_an_operation() {
    assert!(headings(PAGE).contains(&"An operation".to_string()));
    let life = PAGE.split("## An operation").nth(1).and_then(|rest| rest.split("## Frames").next()).unwrap();
    for kind in Kind::ALL {
        assert!(life.contains(&format!("`{kind:?}`")), "{kind:?}");
    }
}

#[test]
fn constants_and_bounds_are_documented() {
    let constants = [("PROTOCOL", PROTOCOL.to_string()), ("layout_hash", format!("{:#018x}", layout_hash()))];
    assert_eq!(pairs(PAGE, "Constants"), constants.map(|(name, value)| (name.to_string(), value)).into());
    let expected: BTreeMap<String, String> = bounds_of!(
        PAYLOAD_HEADER_BYTES PAYLOAD_FRAME_BYTES_MAX GRANT_KEYS_MAX GRANT_MS_MAX DEADLINE_MS_MAX
        REQUESTER_PINS_MAX REQUESTER_BYTES_MAX OPERATION_WINDOW OPERATION_ORIGINS_MAX NODE_ID_BYTES_MAX
    );
    assert_eq!(pairs(PAGE, "Bounds"), expected);
}

#[test]
fn the_hashed_domain_is_documented() {
    assert_eq!(TAG_VERSION, 1);
    assert!(PAGE.contains(&format!("`{TAG_DOMAIN}`")), "{TAG_DOMAIN}");
}
