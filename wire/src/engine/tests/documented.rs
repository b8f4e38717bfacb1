//! `docs/engine-protocol.md` against the code: offsets, sizes, types, numbers and bounds.

use std::collections::BTreeMap;

use super::*;
use crate::tests::document::{
    bounds_of, fixed_types, headings, numbers, numbers_of, pairs, structs, structs_of,
};

const PAGE: &str = include_str!("../../../../docs/engine-protocol.md");

/// Every fixed struct as the compiler has it, in the order of the layout hash.
const TYPES: &[(&str, usize)] = &fixed_types!(
    Header HelloBody RegisterBody GroupRecord ReserveBody ReserveRecord ReservationsBody
    ReservationRecord PrefixBody ListRecord HashRecord LeaseBody CancelBody EvictBody KeyRecord
    ClearBody ListBody HelloAnswer RegisterAnswer SlotRecord OutcomeRecord QueryAnswer PlaceRecord
    AcquireAnswer BlockRecord AttachAnswer AttachedRecord ClearAnswer ListAnswer ResidentRecord
    SyncAnswer SequenceRecord DrainAnswer Refusal
);

#[test]
fn every_offset_size_and_type_is_documented() {
    assert_eq!(structs(PAGE), structs_of(TYPES));
}

#[test]
fn a_wrong_offset_in_the_document_is_noticed() {
    let row = "| 8 | 8 | `u64` | `request_id` |";
    assert!(PAGE.contains(row));
    for wrong in
        ["| 9 | 8 | `u64` | `request_id` |", "| 8 | 4 | `u64` | `request_id` |", "| 8 | 8 | `u64` | `id` |"]
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
        Operation: u8,
        Status: u16,
        GroupKindNumber: u8,
        Completion: u8,
        PageKindNumber: u8,
        SlotOutcome: u8,
        CommitOutcome: u8,
        EvictOutcome: u8,
        PrefetchOutcome: u8,
        Place: u8,
        BlockOutcome: u8,
        Coverage: u8,
        SyncOutcome: u8,
    };
    assert_eq!(numbers(PAGE), expected);
}

#[test]
fn every_operation_has_its_section() {
    let headings = headings(PAGE);
    for operation in Operation::ALL {
        assert!(headings.contains(&format!("{operation:?}")), "{operation:?}");
    }
}

#[test]
fn constants_and_bounds_are_documented() {
    let magic: Vec<String> = MAGIC.iter().map(|byte| format!("{byte:02x}")).collect();
    let constants = [
        ("MAGIC", magic.join(" ")),
        ("VERSION", VERSION.to_string()),
        ("VERSION_MIN", VERSION_MIN.to_string()),
        ("layout_hash", format!("{:#018x}", layout_hash())),
    ];
    assert_eq!(pairs(PAGE, "Constants"), constants.map(|(name, value)| (name.to_string(), value)).into());
    let expected: BTreeMap<String, String> = bounds_of!(
        FRAME_BYTES_MAX QUERY_HASHES_MAX KEYS_PER_REQUEST_MAX QUERY_LISTS_MAX GROUPS_MAX LIST_PAGE_MAX
        REQUESTS_IN_FLIGHT_MAX DEADLINE_MS_MAX BLOCK_HASH_BYTES
    );
    assert_eq!(pairs(PAGE, "Bounds"), expected);
}
