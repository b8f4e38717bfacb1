//! `docs/engine-protocol.md` against the code: offsets, sizes, types, numbers and bounds.

use std::collections::BTreeMap;

use super::*;

const DOCUMENT: &str = include_str!("../../../../docs/engine-protocol.md");

/// A heading of the document and the cells of the table rows under it, back ticks removed.
type Section = (String, Vec<Vec<String>>);

fn sections(document: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for line in document.lines() {
        if line.starts_with('#') {
            sections.push((line.trim_start_matches('#').trim().replace('`', ""), Vec::new()));
        } else if let Some(row) = line.strip_prefix('|').and_then(|line| line.strip_suffix('|')) {
            let cells = row.split('|').map(|cell| cell.trim().replace('`', "")).collect();
            sections.last_mut().expect("a table has a heading").1.push(cells);
        }
    }
    // Of each table the first two rows are its head and the line under it.
    sections.iter_mut().for_each(|(_, rows)| drop(rows.drain(..rows.len().min(2))));
    sections
}

/// Every fixed struct as the compiler has it: description and archived size, in the order of the
/// layout hash.
macro_rules! fixed_types {
    ($($name:ident)*) => { vec![$((<$name as Fixed>::DESCRIPTION, <$name as Fixed>::BYTES)),*] };
}

fn fixed_types() -> Vec<(&'static str, usize)> {
    fixed_types!(
        Header HelloBody RegisterBody GroupRecord ReserveBody ReserveRecord ReservationsBody
        ReservationRecord PrefixBody ListRecord HashRecord LeaseBody CancelBody EvictBody KeyRecord
        ClearBody ListBody HelloAnswer RegisterAnswer SlotRecord OutcomeRecord QueryAnswer PlaceRecord
        AcquireAnswer BlockRecord AttachAnswer AttachedRecord ClearAnswer ListAnswer ResidentRecord
        SyncAnswer SequenceRecord DrainAnswer Refusal
    )
}

fn size_of_type(kind: &str) -> usize {
    let number = |prefix: &str, suffix: &str| -> Option<usize> {
        kind.strip_prefix(prefix)?.strip_suffix(suffix)?.parse().ok()
    };
    number("[u8; ", "]")
        .or_else(|| number("Text<", ">").map(|bytes| bytes + 2))
        .or_else(|| number("u", "").map(|bits| bits / 8))
        .unwrap_or_else(|| panic!("no size is known for {kind}"))
}

/// The document's sections that describe structs, as the code would write them.
fn expected_structs() -> BTreeMap<String, Vec<[String; 4]>> {
    let mut expected = BTreeMap::new();
    for (description, bytes) in fixed_types() {
        let (name, fields) = description.strip_suffix('}').unwrap().split_once('{').unwrap();
        let mut offset = 0;
        let mut rows = Vec::new();
        for field in fields.split_terminator(';').fold(Vec::<String>::new(), join_arrays) {
            let (field, kind) = field.split_once(':').unwrap();
            let size = size_of_type(kind);
            rows.push([offset.to_string(), size.to_string(), kind.to_string(), field.to_string()]);
            offset += size;
        }
        assert_eq!(offset, bytes, "{name} has bytes that no field explains");
        expected.insert(format!("{name}, {bytes} bytes"), rows);
    }
    expected
}

/// `[u8; 8]` has the separator of fields inside it: puts such a type together again.
fn join_arrays(mut fields: Vec<String>, piece: &str) -> Vec<String> {
    match fields.last_mut() {
        Some(open) if open.contains('[') && !open.contains(']') => *open = format!("{open};{piece}"),
        _ => fields.push(piece.to_string()),
    }
    fields
}

fn documented_structs(document: &str) -> BTreeMap<String, Vec<[String; 4]>> {
    let sections = sections(document).into_iter().filter(|(heading, _)| heading.ends_with(" bytes"));
    let rows = |rows: Vec<Vec<String>>| {
        rows.into_iter().map(|cells| std::array::from_fn(|column| cells[column].clone())).collect()
    };
    sections.map(|(heading, cells)| (heading, rows(cells))).collect()
}

#[test]
fn every_offset_size_and_type_is_documented() {
    assert_eq!(documented_structs(DOCUMENT), expected_structs());
}

#[test]
fn a_wrong_offset_in_the_document_is_noticed() {
    let row = "| 8 | 8 | `u64` | `request_id` |";
    assert!(DOCUMENT.contains(row));
    for wrong in
        ["| 9 | 8 | `u64` | `request_id` |", "| 8 | 4 | `u64` | `request_id` |", "| 8 | 8 | `u64` | `id` |"]
    {
        assert_ne!(documented_structs(&DOCUMENT.replacen(row, wrong, 1)), expected_structs());
    }
}

#[test]
fn the_layout_hash_covers_every_documented_struct() {
    let all: String = fixed_types().iter().map(|(description, _)| *description).collect();
    assert_eq!(xxhash_rust::xxh3::xxh3_64(all.as_bytes()), layout_hash());
}

#[test]
fn every_number_is_documented() {
    let documented: BTreeMap<String, Vec<String>> = sections(DOCUMENT)
        .into_iter()
        .filter(|(heading, _)| heading.ends_with(", u8") || heading.ends_with(", u16"))
        .map(|(heading, rows)| (heading, rows.iter().map(|cells| cells[..2].join(" ")).collect()))
        .collect();
    let mut expected = BTreeMap::new();
    macro_rules! expect {
        ($($name:ident: $number:ty,)*) => {$(
            let rows = $name::ALL.iter().map(|&value| format!("{} {value:?}", value as $number)).collect();
            expected.insert(format!("{}, {}", stringify!($name), stringify!($number)), rows);
            for &value in $name::ALL {
                assert_eq!($name::from_wire(value as $number), Some(value));
            }
            assert_eq!($name::from_wire(<$number>::MAX), None);
        )*};
    }
    expect! {
        Operation: u8,
        Status: u16,
        GroupKindNumber: u8,
        Completion: u8,
        PageKindNumber: u8,
        SlotOutcome: u8,
        CommitOutcome: u8,
        EvictOutcome: u8,
        Place: u8,
        BlockOutcome: u8,
        Coverage: u8,
        SyncOutcome: u8,
    }
    assert_eq!(documented, expected);
}

#[test]
fn every_operation_has_its_section() {
    let headings: Vec<String> = sections(DOCUMENT).into_iter().map(|(heading, _)| heading).collect();
    for operation in Operation::ALL {
        assert!(headings.contains(&format!("{operation:?}")), "{operation:?}");
    }
}

/// First two cells of every row under a heading.
fn pairs(wanted: &str) -> BTreeMap<String, String> {
    let (_, rows) = sections(DOCUMENT).into_iter().find(|(heading, _)| heading == wanted).unwrap();
    rows.into_iter().map(|cells| (cells[0].clone(), cells[1].clone())).collect()
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
    assert_eq!(pairs("Constants"), constants.map(|(name, value)| (name.to_string(), value)).into());
    macro_rules! values {
        ($($name:ident)*) => { [$((stringify!($name).to_string(), bounds::$name.to_string())),*].into() };
    }
    let expected: BTreeMap<String, String> = values!(
        FRAME_BYTES_MAX QUERY_HASHES_MAX KEYS_PER_REQUEST_MAX QUERY_LISTS_MAX GROUPS_MAX LIST_PAGE_MAX
        REQUESTS_IN_FLIGHT_MAX DEADLINE_MS_MAX BLOCK_HASH_BYTES
    );
    assert_eq!(pairs("Bounds"), expected);
}
