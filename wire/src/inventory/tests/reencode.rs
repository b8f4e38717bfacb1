//! Turns a decoded frame back into bytes. What the decoders accept has one spelling only, so the
//! result must equal the input; the fuzz targets include this file too.

use super::{BlockHash, INVENTORY_BODY_BYTES_MAX, NamespaceDigest, Sequence};
use super::{Body, Changes, ChangesWriter, FromRequester, FromSource, Header, Kind, Open, Tag};
use super::{append_from_requester, append_open, header_bytes, source_body};

/// The bytes of an Open.
pub fn open(open: &Open) -> Vec<u8> {
    let mut out = Vec::new();
    append_open(&mut out, open);
    out
}

/// The bytes of another message of a requester.
pub fn from_requester(header: &Header, message: &FromRequester) -> Vec<u8> {
    let mut out = Vec::new();
    append_from_requester(&mut out, Tag(header.tag), header.frame, message);
    out
}

/// The bytes of a message of a source. Changes are written once more, one by one.
pub fn from_source(header: &Header, message: &FromSource<'_>) -> Vec<u8> {
    let body = source_body(message);
    match message {
        FromSource::SnapshotPage { snapshot, number, changes } => {
            assert_eq!(written(changes, |writer| writer.page(*snapshot, *number)), body);
        }
        FromSource::Delta { from, through, changes } => {
            assert_eq!(written(changes, |writer| writer.delta(*from, *through)), body);
        }
        _ => {}
    }
    let kind = Kind::from_wire(header.kind).expect("it decoded");
    assert_eq!(kind, body.kind);
    let head = Sequence(header.head);
    let header = Header::new(kind, Tag(header.tag), header.frame, head, body.count, body.bytes.len());
    [&header_bytes(&header)[..], &body.bytes].concat()
}

fn written(changes: &Changes<'_>, begin: impl FnOnce(&mut ChangesWriter)) -> Body {
    let mut writer = ChangesWriter::new(INVENTORY_BODY_BYTES_MAX);
    begin(&mut writer);
    let namespaces: Vec<NamespaceDigest> = changes.namespaces().collect();
    for change in changes.iter() {
        let namespace = &namespaces[usize::from(change.namespace)];
        let block = BlockHash(*change.block);
        let pushed =
            writer.push(namespace, change.group, &block, change.medium, change.change, change.sequence);
        pushed.expect("it was in a frame before");
    }
    writer.finish()
}
