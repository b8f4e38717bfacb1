//! A segment's table: what a sealed segment says about itself, so that a later process can
//! take its blocks over. It ends where the segment ends; its last bytes say how long it is.
//!
//! Layout, all little-endian: a header of [`HEADER_BYTES`], the namespace digests, one entry of
//! [`ENTRY_BYTES`] a block, zeros, a trailer of [`TRAILER_BYTES`]. The CRC covers all but itself.

use orbitkv_wire::bounds::EXTENT_ALIGN_BYTES;
use orbitkv_wire::identity::{BlockHash, GroupId, Incarnation, NamespaceDigest, Sequence, ShardIndex};

use super::crc64::crc64;
use super::geometry::padded_bytes;

/// Version of the layout. Another one is not read.
pub const TABLE_VERSION: u32 = 1;

const HEADER_MAGIC: [u8; 8] = *b"orbkvseg";
const TRAILER_MAGIC: [u8; 8] = *b"orbkvend";
/// Magic 8, version 4, shard 2, zero 2, incarnation 16, segment 4, generation 4,
/// segment offset 8, segment bytes 8, blocks 4, namespaces 4.
const HEADER_BYTES: usize = 64;
const DIGEST_BYTES: usize = 32;
/// Namespace 4, group 2, zero 2, first page 4, payload bytes 4, sequence 8, checksum 8, hash 32.
const ENTRY_BYTES: usize = 64;
/// Table bytes 4, zero 4, CRC 8, magic 8.
const TRAILER_BYTES: usize = 24;

/// A block as a table names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableBlock {
    /// The namespace's digest.
    pub namespace: NamespaceDigest,
    /// The layer group.
    pub group: GroupId,
    /// The engine's hash of the block.
    pub block: BlockHash,
    /// Residency sequence of the block on SSD.
    pub sequence: Sequence,
    /// Absolute file offset of the payload, 4,096-aligned.
    pub offset: u64,
    /// Payload bytes, without padding.
    pub payload_bytes: u32,
    /// Checksum of the payload.
    pub checksum: u64,
}

/// A segment's table, decoded. Its blocks lie inside the segment, in order, without overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentTable {
    /// The life of the node that wrote it.
    pub incarnation: Incarnation,
    /// The shard that wrote it.
    pub shard: ShardIndex,
    /// The segment's number in the shard's part.
    pub segment: u32,
    /// How many times the segment had been opened in that process.
    pub generation: u32,
    /// Absolute file offset of the segment.
    pub segment_offset: u64,
    /// Bytes of the segment.
    pub segment_bytes: u64,
    /// The blocks that were readable when the table was written.
    pub blocks: Vec<TableBlock>,
}

/// Why bytes are not a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Too short, or not whole pages.
    #[error("{bytes} bytes are not whole pages of 4096 bytes")]
    Length {
        /// Bytes given.
        bytes: usize,
    },
    /// There is no table here.
    #[error("no segment table: the magic is missing")]
    Magic,
    /// The trailer's length is impossible.
    #[error("segment table says it has {bytes} bytes")]
    TableLength {
        /// Bytes that the trailer claims.
        bytes: u32,
    },
    /// The bytes changed since they were written.
    #[error("segment table fails its checksum")]
    Checksum,
    /// Another layout.
    #[error("segment table has version {version}, this build reads {TABLE_VERSION}")]
    Version {
        /// The version found.
        version: u32,
    },
    /// The checksum holds, but what it says is impossible.
    #[error("segment table contradicts itself: {what}")]
    Contradiction {
        /// What is wrong.
        what: &'static str,
    },
}

/// Bytes of a table with this many blocks and namespaces, in whole pages.
pub(super) fn table_bytes(blocks: u64, namespaces: u64) -> u64 {
    padded_bytes(
        (HEADER_BYTES + TRAILER_BYTES) as u64
            + blocks * ENTRY_BYTES as u64
            + namespaces * DIGEST_BYTES as u64,
    )
}

/// An entry to encode; the namespace is an index into the digests given.
pub(super) struct TableEntry {
    pub namespace: u32,
    pub group: GroupId,
    pub block: BlockHash,
    pub sequence: Sequence,
    pub first_page: u32,
    pub payload_bytes: u32,
    pub checksum: u64,
}

/// What a table says about its segment.
pub(super) struct TableHeader {
    pub incarnation: Incarnation,
    pub shard: ShardIndex,
    pub segment: u32,
    pub generation: u32,
    pub segment_offset: u64,
    pub segment_bytes: u64,
}

/// Encodes into exactly `table_bytes` bytes, which must do.
pub(super) fn encode_table(
    header: &TableHeader,
    digests: &[NamespaceDigest],
    entries: impl Iterator<Item = TableEntry>,
    table_bytes: u64,
) -> Vec<u8> {
    let length = usize::try_from(table_bytes).expect("a table is below 4 GiB");
    let mut bytes = Vec::with_capacity(length);
    bytes.extend_from_slice(&HEADER_MAGIC);
    bytes.extend_from_slice(&TABLE_VERSION.to_le_bytes());
    bytes.extend_from_slice(&header.shard.0.to_le_bytes());
    bytes.extend_from_slice(&[0; 2]);
    bytes.extend_from_slice(&header.incarnation.0);
    bytes.extend_from_slice(&header.segment.to_le_bytes());
    bytes.extend_from_slice(&header.generation.to_le_bytes());
    bytes.extend_from_slice(&header.segment_offset.to_le_bytes());
    bytes.extend_from_slice(&header.segment_bytes.to_le_bytes());
    let blocks_at = bytes.len();
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&u32::try_from(digests.len()).expect("fewer than blocks").to_le_bytes());
    assert_eq!(bytes.len(), HEADER_BYTES);
    for digest in digests {
        bytes.extend_from_slice(&digest.0);
    }
    let mut blocks = 0u32;
    for entry in entries {
        bytes.extend_from_slice(&entry.namespace.to_le_bytes());
        bytes.extend_from_slice(&entry.group.0.to_le_bytes());
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(&entry.first_page.to_le_bytes());
        bytes.extend_from_slice(&entry.payload_bytes.to_le_bytes());
        bytes.extend_from_slice(&entry.sequence.0.to_le_bytes());
        bytes.extend_from_slice(&entry.checksum.to_le_bytes());
        bytes.extend_from_slice(&entry.block.0);
        blocks += 1;
    }
    bytes[blocks_at..blocks_at + 4].copy_from_slice(&blocks.to_le_bytes());
    assert!(bytes.len() + TRAILER_BYTES <= length, "the room reserved for a table holds it");
    bytes.resize(length - TRAILER_BYTES, 0);
    bytes.extend_from_slice(&u32::try_from(length).expect("checked above").to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    let crc = table_crc(&bytes, &TRAILER_MAGIC);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes.extend_from_slice(&TRAILER_MAGIC);
    bytes
}

/// The CRC covers what lies before it and the magic behind it.
fn table_crc(before: &[u8], magic: &[u8]) -> u64 {
    crc64(crc64(0, before), magic)
}

/// Reads little-endian fields off the front of bytes whose length was checked.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk::<N>().expect("the length was checked");
        self.0 = rest;
        *field
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

/// Decodes the table that ends where `bytes` ends: whole pages, the table or more before it.
///
/// # Errors
/// A [`TableError`]; nothing of a table that fails is trusted.
pub fn decode_table(bytes: &[u8]) -> Result<SegmentTable, TableError> {
    if bytes.is_empty() || !bytes.len().is_multiple_of(EXTENT_ALIGN_BYTES as usize) {
        return Err(TableError::Length { bytes: bytes.len() });
    }
    let mut trailer = Fields(&bytes[bytes.len() - TRAILER_BYTES..]);
    let length = trailer.u32();
    let _zero: [u8; 4] = trailer.take();
    let crc = trailer.u64();
    let magic: [u8; 8] = trailer.take();
    if magic != TRAILER_MAGIC {
        return Err(TableError::Magic);
    }
    let table_length = length as usize;
    if table_length == 0
        || !table_length.is_multiple_of(EXTENT_ALIGN_BYTES as usize)
        || table_length > bytes.len()
    {
        return Err(TableError::TableLength { bytes: length });
    }
    let table = &bytes[bytes.len() - table_length..];
    if !table.starts_with(&HEADER_MAGIC) {
        return Err(TableError::Magic);
    }
    let (body, _) = table.split_at(table_length - 16);
    if table_crc(body, &TRAILER_MAGIC) != crc {
        return Err(TableError::Checksum);
    }
    decode_body(&table[..table_length - TRAILER_BYTES])
}

fn decode_body(body: &[u8]) -> Result<SegmentTable, TableError> {
    let contradiction = |what| Err(TableError::Contradiction { what });
    let mut fields = Fields(body);
    let _magic: [u8; 8] = fields.take();
    let version = fields.u32();
    if version != TABLE_VERSION {
        return Err(TableError::Version { version });
    }
    let shard = ShardIndex(fields.u16());
    let _zero: [u8; 2] = fields.take();
    let incarnation = Incarnation(fields.take());
    let segment = fields.u32();
    let generation = fields.u32();
    let segment_offset = fields.u64();
    let segment_bytes = fields.u64();
    let blocks = fields.u32() as usize;
    let namespaces = fields.u32() as usize;

    let needed = (blocks as u64) * ENTRY_BYTES as u64 + (namespaces as u64) * DIGEST_BYTES as u64;
    if needed > fields.0.len() as u64 {
        return contradiction("more blocks than bytes");
    }
    let table_end = segment_offset.checked_add(segment_bytes);
    let Some(data_end) = table_end.and_then(|end| end.checked_sub((body.len() + TRAILER_BYTES) as u64))
    else {
        return contradiction("the segment is smaller than its table");
    };
    let digests: Vec<NamespaceDigest> = (0..namespaces).map(|_| NamespaceDigest(fields.take())).collect();
    let mut listed = Vec::with_capacity(blocks);
    let mut used_to = segment_offset;
    for _ in 0..blocks {
        let namespace = fields.u32();
        let group = GroupId(fields.u16());
        let _zero: [u8; 2] = fields.take();
        let first_page = fields.u32();
        let payload_bytes = fields.u32();
        let sequence = Sequence(fields.u64());
        let checksum = fields.u64();
        let block = BlockHash(fields.take());
        let Some(&namespace) = digests.get(namespace as usize) else {
            return contradiction("a block of a namespace that is not listed");
        };
        let offset = segment_offset.checked_add(u64::from(first_page) * EXTENT_ALIGN_BYTES);
        let end = offset.and_then(|offset| offset.checked_add(padded_bytes(u64::from(payload_bytes))));
        match (offset, end) {
            (Some(offset), Some(end)) if offset >= used_to && end <= data_end && payload_bytes > 0 => {
                used_to = end;
                listed.push(TableBlock {
                    namespace,
                    group,
                    block,
                    sequence,
                    offset,
                    payload_bytes,
                    checksum,
                });
            }
            _ => return contradiction("a block outside its place"),
        }
    }
    Ok(SegmentTable {
        incarnation,
        shard,
        segment,
        generation,
        segment_offset,
        segment_bytes,
        blocks: listed,
    })
}
