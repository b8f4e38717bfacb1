//! The scan of a snapshot: residences in the order of (key, medium), page by page, while they change.
//!
//! Nothing is held between pages but a cursor. What is inserted behind it is missed, and what is deleted
//! behind it was sent in vain; both happen after the head `after` that was taken before the first page,
//! so the replay that follows the last page sets both right (chapter 2.5).

use orbitkv_wire::identity::{BlockHash, GroupId, Medium, Sequence, SnapshotId};
use orbitkv_wire::inventory::{
    Body, ChangesWriter, NAMESPACE_BYTES, RECORD_BYTES, SnapshotPageBody, Transcript, WireChange,
};
use orbitkv_wire::layout::Fixed;

use super::residences::{Residences, Source};
use super::scopes::Filter;
use crate::key::{NamespaceId, StateKey};

/// A snapshot that is being made.
#[derive(Debug)]
pub struct Scan {
    /// Its id.
    pub snapshot: SnapshotId,
    /// Head before the scan; the replay begins after it.
    pub after: Sequence,
    /// Residences that it may have. A table that grows faster than this allows ends the snapshot, so
    /// that a receiver can believe it.
    pub rows_max: u64,
    /// Pages built.
    pub pages: u32,
    /// Digest over pages and replay deltas.
    pub transcript: Transcript,
    rows: u64,
    cursor: Option<(StateKey, Medium)>,
}

/// Bounds of one page.
#[derive(Clone, Copy, Debug)]
pub struct PageBounds {
    /// Residences.
    pub records_max: usize,
    /// Bytes of its body.
    pub body_bytes_max: usize,
}

/// How a step of the scan ended.
#[derive(Debug)]
pub enum Step {
    /// A page; there may be more.
    Page(Body),
    /// The scan is whole.
    Whole,
    /// There are more residences than were announced.
    Overgrown,
}

impl Scan {
    /// A scan of what `filter` admits.
    #[must_use]
    pub fn new<R: Residences>(snapshot: SnapshotId, filter: &Filter, source: &Source<'_, R>) -> Scan {
        let rows = filter.residents(source.namespaces, source.residences.len_max());
        // What is put while we scan comes on top: a quarter, or a few thousand of a small table; never more
        // than the journal can still replay.
        let growth = (rows / 4).max(4_096).min(source.journal.settings().capacity_records() as u64);
        Scan {
            snapshot,
            after: source.journal.head(),
            rows_max: rows + growth,
            pages: 0,
            transcript: Transcript::new(snapshot),
            rows: 0,
            cursor: None,
        }
    }

    /// Bytes of pages that the announced residences take about.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        self.rows_max * RECORD_BYTES as u64
    }

    /// The next page, built with `writer`. Residences inserted ahead of the cursor are found.
    pub fn step<R: Residences>(
        &mut self,
        filter: &Filter,
        source: &Source<'_, R>,
        bounds: PageBounds,
        writer: &mut ChangesWriter,
    ) -> Step {
        writer.page(self.snapshot, self.pages);
        let mut body_bytes = SnapshotPageBody::BYTES;
        let mut last_namespace = None;
        let mut is_full = false;
        // One round for each stretch of namespaces of the scope: those between are jumped over.
        while !is_full {
            let mut jump = None;
            for residence in source.residences.after(self.cursor) {
                let namespace = residence.key.namespace;
                if !filter.admits(namespace) {
                    jump = filter.next_from(namespace);
                    break;
                }
                body_bytes += RECORD_BYTES;
                body_bytes += if last_namespace == Some(namespace) { 0 } else { NAMESPACE_BYTES };
                is_full = body_bytes > bounds.body_bytes_max || writer.count() == bounds.records_max;
                if is_full {
                    break;
                }
                if self.rows == self.rows_max {
                    return Step::Overgrown;
                }
                let change = WireChange::Put { bytes: residence.bytes };
                let StateKey { group, block, .. } = residence.key;
                let digest = source.namespaces.digest(namespace);
                let pushed = writer.push(digest, group, &block, residence.medium, change, residence.sequence);
                pushed.expect("the page was cut to what fits");
                last_namespace = Some(namespace);
                self.rows += 1;
                self.cursor = Some((residence.key, residence.medium));
            }
            match jump {
                Some(namespace) => self.cursor = Some(just_before(namespace)),
                None => break,
            }
        }
        if writer.count() == 0 {
            return Step::Whole;
        }
        self.pages += 1;
        let body = writer.finish();
        self.transcript.absorb(&body.bytes);
        Step::Page(body)
    }
}

/// The last place before a namespace that is not the first one.
fn just_before(namespace: NamespaceId) -> (StateKey, Medium) {
    let before = namespace.0.checked_sub(1).expect("a jump goes over a namespace");
    let key = StateKey {
        namespace: NamespaceId(before),
        group: GroupId(u16::MAX),
        block: BlockHash([u8::MAX; 32]),
    };
    (key, Medium::Ssd)
}
