//! Changes of an inventory inside a frame: read in place by a receiver, written once by a source.
//!
//! A page and a delta carry the same two arrays behind their fixed part: the namespaces that the frame
//! speaks of, strictly ascending, and the changes, which name a namespace by its index. Every listed
//! namespace is named by a change, so the same changes have one spelling only.

use thiserror::Error;

use super::{Body, DeltaBody, FrameError, Kind, NamespaceRecord, SnapshotPageBody, ensure, within};
use crate::bounds::{INTERVAL_RECORDS_MAX, INVENTORY_BODY_BYTES_MAX, NAMESPACES_MAX, PAGE_BYTES_MAX};
use crate::identity::{BlockHash, GroupId, Medium, NamespaceDigest, Sequence, SnapshotId};
use crate::layout::{Fixed, Reader, Records, fixed};
use crate::numbered::numbered;

fixed! {
    /// One change.
    pub struct ChangeRecord {
        /// Index in the frame's namespaces.
        pub namespace: u16,
        /// Layer group.
        pub group: u16,
        /// Block hash.
        pub block: [u8; 32],
        /// [`Effect`].
        pub effect: u8,
        /// Put: payload bytes, at least 1. Delete: 0.
        pub bytes: u32,
        /// Put: the residency sequence that begins. Delete: the sequence of the end.
        pub sequence: u64,
    }
}

numbered! {
    /// What happened to a block, and on which medium.
    pub enum Effect: u8 {
        /// It came into DRAM.
        DramPut = 0,
        /// It came onto SSD.
        SsdPut = 1,
        /// It left DRAM.
        DramDelete = 2,
        /// It left SSD.
        SsdDelete = 3,
    }
}

/// Bytes of one change in a body.
pub const RECORD_BYTES: usize = ChangeRecord::BYTES;

/// Bytes of one namespace in a body.
pub const NAMESPACE_BYTES: usize = NamespaceRecord::BYTES;

/// What a change says about its block on its medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WireChange {
    /// A residence begins.
    Put {
        /// Payload bytes, at least 1.
        bytes: u32,
    },
    /// The residence ends.
    Delete,
}

impl Effect {
    fn new(medium: Medium, change: WireChange) -> (Effect, u32) {
        match (change, medium) {
            (WireChange::Put { bytes }, Medium::Dram) => (Effect::DramPut, bytes),
            (WireChange::Put { bytes }, Medium::Ssd) => (Effect::SsdPut, bytes),
            (WireChange::Delete, Medium::Dram) => (Effect::DramDelete, 0),
            (WireChange::Delete, Medium::Ssd) => (Effect::SsdDelete, 0),
        }
    }

    /// Whether a residence begins.
    #[must_use]
    pub fn is_put(self) -> bool {
        matches!(self, Effect::DramPut | Effect::SsdPut)
    }

    /// Where.
    #[must_use]
    pub fn medium(self) -> Medium {
        match self {
            Effect::DramPut | Effect::DramDelete => Medium::Dram,
            Effect::SsdPut | Effect::SsdDelete => Medium::Ssd,
        }
    }
}

/// One change of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeRef<'a> {
    /// Index in [`Changes::namespaces`].
    pub namespace: u16,
    /// Layer group.
    pub group: GroupId,
    /// Block hash, where it lies in the frame.
    pub block: &'a [u8; 32],
    /// The medium that changed.
    pub medium: Medium,
    /// What happened there.
    pub change: WireChange,
    /// The residency sequence of a put, or the sequence of a delete.
    pub sequence: Sequence,
}

/// The changes of a received frame, validated as a whole and read where they lie.
#[derive(Clone, Copy, Debug)]
pub struct Changes<'a> {
    namespaces: &'a [[u8; NAMESPACE_BYTES]],
    records: Records<'a, ChangeRecord>,
}

/// What besides its own sense is asked of a change.
pub(super) enum Order {
    /// Residences in the order of the source's scan, with sequences up to the source's head.
    Scan { head: Sequence },
    /// Effects in the order of their sequences, which lie after `from` and not after `through`.
    Interval { from: Sequence, through: Sequence },
}

impl<'a> Changes<'a> {
    /// Takes `namespaces` and `count` changes off `reader` and validates them.
    pub(super) fn take(
        reader: &mut Reader<'a>,
        namespaces: u16,
        count: u32,
        order: &Order,
    ) -> Result<Changes<'a>, FrameError> {
        let namespaces = within("namespaces of a frame", usize::from(namespaces), NAMESPACES_MAX)?;
        let (namespaces, _) = reader.take_bytes(namespaces * NAMESPACE_BYTES)?.as_chunks();
        ensure(namespaces.is_sorted_by(|left, right| left < right), "namespaces do not ascend strictly")?;
        let records: Records<'_, ChangeRecord> = reader.take_records(count as usize)?;

        let (after, through) = match *order {
            Order::Scan { head } => (Sequence(0), head),
            Order::Interval { from, through } => (from, through),
        };
        let mut last = after;
        let mut named = [0u64; NAMESPACES_MAX.div_ceil(64)];
        for record in records.in_place() {
            let record = record?;
            let index = usize::from(record.namespace.to_native());
            ensure(index < namespaces.len(), "a change is of no listed namespace")?;
            named[index / 64] |= 1 << (index % 64);
            let effect = Effect::from_wire(record.effect)
                .ok_or(FrameError::Contradiction { what: "a change has no such effect" })?;
            ensure(effect.is_put() == (record.bytes != 0), "a put has bytes and a delete has none")?;
            let sequence = Sequence(record.sequence.to_native());
            ensure(after < sequence && sequence <= through, "a change lies outside what its frame covers")?;
            match order {
                Order::Scan { .. } => ensure(effect.is_put(), "a page has puts only")?,
                Order::Interval { .. } => {
                    ensure(sequence > last, "changes are not in the order of their sequences")?;
                    last = sequence;
                }
            }
        }
        let named: usize = named.iter().map(|word| word.count_ones() as usize).sum();
        ensure(named == namespaces.len(), "a listed namespace has no change")?;
        Ok(Changes { namespaces, records })
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The namespaces they are of, strictly ascending; [`ChangeRef::namespace`] counts through them.
    pub fn namespaces(&self) -> impl ExactSizeIterator<Item = NamespaceDigest> + use<'a> {
        self.namespaces.iter().copied().map(NamespaceDigest)
    }

    /// The changes in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = ChangeRef<'a>> + use<'a> {
        self.records.in_place().map(|record| {
            let record = record.expect("validated when taken");
            let effect = Effect::from_wire(record.effect).expect("validated when taken");
            let bytes = record.bytes.to_native();
            ChangeRef {
                namespace: record.namespace.to_native(),
                group: GroupId(record.group.to_native()),
                block: &record.block,
                medium: effect.medium(),
                change: if effect.is_put() { WireChange::Put { bytes } } else { WireChange::Delete },
                sequence: Sequence(record.sequence.to_native()),
            }
        })
    }

    pub(super) fn append_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.namespaces.as_flattened());
        out.extend_from_slice(self.records.as_bytes());
    }

    pub(super) fn namespace_count(&self) -> u16 {
        self.namespaces.len() as u16
    }
}

impl PartialEq for Changes<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.namespaces == other.namespaces && self.records.as_bytes() == other.records.as_bytes()
    }
}

impl Eq for Changes<'_> {}

/// The body has no room for the change. Nothing was written; the body can be finished without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the body has no room for another change")]
pub struct Full;

/// What a [`ChangesWriter`] is at.
#[derive(Clone, Copy, Debug)]
enum Writing {
    Nothing,
    Page { snapshot: SnapshotId, number: u32 },
    Delta { from: Sequence, through: Sequence },
}

/// Builds bodies of pages and deltas, one after the other, in memory that it keeps.
#[derive(Debug)]
pub struct ChangesWriter {
    body_bytes_max: usize,
    writing: Writing,
    body_bytes: usize,
    /// In the order of their first change, by which `records` name them until the body is finished.
    namespaces: Vec<NamespaceDigest>,
    /// Positions in `namespaces`, in the order of the digests.
    sorted: Vec<u16>,
    /// By the first byte of a digest: the position that was found last, of whatever body.
    hints: [u16; 256],
    records: Vec<ChangeRecord>,
}

impl ChangesWriter {
    /// A writer of bodies of at most `body_bytes_max` bytes.
    ///
    /// # Panics
    /// If that has no room for one change, or is beyond [`INVENTORY_BODY_BYTES_MAX`].
    #[must_use]
    pub fn new(body_bytes_max: usize) -> ChangesWriter {
        let one = SnapshotPageBody::BYTES.max(DeltaBody::BYTES) + NAMESPACE_BYTES + RECORD_BYTES;
        assert!(
            (one..=INVENTORY_BODY_BYTES_MAX).contains(&body_bytes_max),
            "a body of {body_bytes_max} bytes has no room for a change or is over the bound"
        );
        ChangesWriter {
            body_bytes_max,
            writing: Writing::Nothing,
            body_bytes: 0,
            namespaces: Vec::new(),
            sorted: Vec::new(),
            hints: [0; 256],
            records: Vec::new(),
        }
    }

    /// Begins a delta over `(from, through]`; what was begun before and not finished is dropped.
    ///
    /// # Panics
    /// If the interval is empty.
    pub fn delta(&mut self, from: Sequence, through: Sequence) {
        assert!(from < through, "a delta covers something");
        self.begin(Writing::Delta { from, through }, DeltaBody::BYTES);
    }

    /// Begins page `number` of a snapshot, counted from 0; what was begun before and not finished is
    /// dropped.
    pub fn page(&mut self, snapshot: SnapshotId, number: u32) {
        self.begin(Writing::Page { snapshot, number }, SnapshotPageBody::BYTES);
    }

    fn begin(&mut self, writing: Writing, fixed_bytes: usize) {
        self.writing = writing;
        self.body_bytes = fixed_bytes;
        self.namespaces.clear();
        self.sorted.clear();
        self.records.clear();
    }

    /// Adds one change.
    ///
    /// # Errors
    /// [`Full`] if it would make the body larger than it may be; the body is as it was.
    ///
    /// # Panics
    /// If nothing is begun, a put has no bytes, a page gets a delete, or a delta gets a sequence that is not
    /// in its interval and after that of the change before.
    pub fn push(
        &mut self,
        namespace: &NamespaceDigest,
        group: GroupId,
        block: &BlockHash,
        medium: Medium,
        change: WireChange,
        sequence: Sequence,
    ) -> Result<(), Full> {
        assert!(change != WireChange::Put { bytes: 0 }, "a put has bytes");
        let (bytes_max, records_max) = match self.writing {
            Writing::Nothing => panic!("a change belongs to a page or a delta"),
            Writing::Page { .. } => {
                assert!(change != WireChange::Delete && sequence.0 > 0, "a page has residences only");
                (self.body_bytes_max.min(PAGE_BYTES_MAX), usize::MAX)
            }
            Writing::Delta { from, through } => {
                let last = self.records.last().map_or(from, |last| Sequence(last.sequence));
                assert!(last < sequence && sequence <= through, "a delta ascends inside its interval");
                (self.body_bytes_max, INTERVAL_RECORDS_MAX)
            }
        };
        let known = self.find(namespace);
        let body_bytes = self.body_bytes + RECORD_BYTES + if known.is_ok() { 0 } else { NAMESPACE_BYTES };
        if body_bytes > bytes_max || self.records.len() == records_max {
            return Err(Full);
        }
        self.body_bytes = body_bytes;
        let position = known.unwrap_or_else(|place| {
            let position = self.namespaces.len() as u16;
            self.namespaces.push(*namespace);
            self.sorted.insert(place, position);
            position
        });
        self.hints[usize::from(namespace.0[0])] = position;
        let (effect, bytes) = Effect::new(medium, change);
        self.records.push(ChangeRecord {
            namespace: position,
            group: group.0,
            block: block.0,
            effect: effect as u8,
            bytes,
            sequence: sequence.0,
        });
        Ok(())
    }

    /// The position of a namespace, or its place in the order of digests.
    fn find(&self, namespace: &NamespaceDigest) -> Result<u16, usize> {
        let hint = self.hints[usize::from(namespace.0[0])];
        if self.namespaces.get(usize::from(hint)) == Some(namespace) {
            return Ok(hint);
        }
        let digest = |&position: &u16| self.namespaces[usize::from(position)];
        self.sorted.binary_search_by_key(namespace, digest).map(|place| self.sorted[place])
    }

    /// Changes written so far.
    #[must_use]
    pub fn count(&self) -> usize {
        self.records.len()
    }

    /// The body, and the writer ready for the next one.
    ///
    /// # Panics
    /// If nothing is begun.
    pub fn finish(&mut self) -> Body {
        let mut bytes = Vec::with_capacity(self.body_bytes);
        let namespaces = self.namespaces.len() as u16;
        let kind = match std::mem::replace(&mut self.writing, Writing::Nothing) {
            Writing::Nothing => panic!("neither a page nor a delta is begun"),
            Writing::Page { snapshot, number } => {
                SnapshotPageBody { snapshot: snapshot.0, number, namespaces }.append_to(&mut bytes);
                Kind::SnapshotPage
            }
            Writing::Delta { from, through } => {
                DeltaBody { from: from.0, through: through.0, namespaces }.append_to(&mut bytes);
                Kind::Delta
            }
        };
        let mut ranks = vec![0; self.sorted.len()];
        for (rank, &position) in (0u16..).zip(&self.sorted) {
            ranks[usize::from(position)] = rank;
            bytes.extend_from_slice(&self.namespaces[usize::from(position)].0);
        }
        for record in &self.records {
            ChangeRecord { namespace: ranks[usize::from(record.namespace)], ..*record }.append_to(&mut bytes);
        }
        assert_eq!(bytes.len(), self.body_bytes, "a body is as long as was counted");
        Body { kind, count: self.records.len() as u32, bytes }
    }
}
