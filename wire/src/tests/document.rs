//! Protocol pages as data: what their tables say, and what the code would write there.

use std::collections::BTreeMap;

/// A heading of a page and the cells of the table rows under it, back ticks removed.
type Section = (String, Vec<Vec<String>>);

/// The rows of a struct's table: offset, size, type and field.
pub type Structs = BTreeMap<String, Vec<[String; 4]>>;

fn sections(page: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for line in page.lines() {
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

/// Every heading.
pub fn headings(page: &str) -> Vec<String> {
    sections(page).into_iter().map(|(heading, _)| heading).collect()
}

/// The page's sections that describe structs.
pub fn structs(page: &str) -> Structs {
    let sections = sections(page).into_iter().filter(|(heading, _)| heading.ends_with(" bytes"));
    let rows = |rows: Vec<Vec<String>>| {
        rows.into_iter().map(|cells| std::array::from_fn(|column| cells[column].clone())).collect()
    };
    sections.map(|(heading, cells)| (heading, rows(cells))).collect()
}

/// The same for structs as the compiler has them: description and archived size.
pub fn structs_of(types: &[(&str, usize)]) -> Structs {
    let mut expected = BTreeMap::new();
    for &(description, bytes) in types {
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

fn size_of_type(kind: &str) -> usize {
    let number = |prefix: &str, suffix: &str| -> Option<usize> {
        kind.strip_prefix(prefix)?.strip_suffix(suffix)?.parse().ok()
    };
    number("[u8; ", "]")
        .or_else(|| number("Text<", ">").map(|bytes| bytes + 2))
        .or_else(|| number("u", "").map(|bits| bits / 8))
        .unwrap_or_else(|| panic!("no size is known for {kind}"))
}

/// `[u8; 8]` has the separator of fields inside it: puts such a type together again.
fn join_arrays(mut fields: Vec<String>, piece: &str) -> Vec<String> {
    match fields.last_mut() {
        Some(open) if open.contains('[') && !open.contains(']') => *open = format!("{open};{piece}"),
        _ => fields.push(piece.to_string()),
    }
    fields
}

/// The page's sections that describe enums: number and name of each variant.
pub fn numbers(page: &str) -> BTreeMap<String, Vec<String>> {
    let sections = sections(page).into_iter();
    let enums = sections.filter(|(heading, _)| heading.ends_with(", u8") || heading.ends_with(", u16"));
    enums.map(|(heading, rows)| (heading, rows.iter().map(|cells| cells[..2].join(" ")).collect())).collect()
}

/// First two cells of every row under a heading.
pub fn pairs(page: &str, wanted: &str) -> BTreeMap<String, String> {
    let (_, rows) = sections(page).into_iter().find(|(heading, _)| heading == wanted).expect(wanted);
    rows.into_iter().map(|cells| (cells[0].clone(), cells[1].clone())).collect()
}

/// Description and archived size of every named struct.
macro_rules! fixed_types {
    ($($name:ident)*) => { [$((<$name as Fixed>::DESCRIPTION, <$name as Fixed>::BYTES)),*] };
}

/// What a page has to say about every named enum, after checking that its numbers lead back to it.
macro_rules! numbers_of {
    ($($name:ident: $number:ty,)*) => { std::collections::BTreeMap::from([$({
        for &value in $name::ALL {
            assert_eq!($name::from_wire(value as $number), Some(value));
        }
        assert_eq!($name::from_wire(<$number>::MAX), None);
        let rows = $name::ALL.iter().map(|&value| format!("{} {value:?}", value as $number)).collect();
        (format!("{}, {}", stringify!($name), stringify!($number)), rows)
    }),*]) };
}

/// What a page has to say about every named bound.
macro_rules! bounds_of {
    ($($name:ident)*) => {
        [$((stringify!($name).to_string(), $crate::bounds::$name.to_string())),*].into()
    };
}

pub(crate) use {bounds_of, fixed_types, numbers_of};
