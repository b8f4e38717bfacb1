//! The changes of one frame on their way into the index: all checked, all with room, none applied yet.
//!
//! One frame at a time is in here, because the room it was granted is for the frame that comes next.
//! Frames that arrive meanwhile wait in their sessions.

use orbitkv_wire::identity::{BlockHash, GroupId, KeyHash, Medium, NamespaceDigest, Sequence, key_hash};
use orbitkv_wire::inventory::{Changes, Header, WireChange};
use orbitkv_wire::scope::Scope;

use super::close::CloseCause;
use super::snapshot::Staging;
use super::{Index, StreamId};
use crate::index::{Partition, Put, ViewId};
use crate::key::{NamespaceId, StateKey};
use crate::namespaces::NamespacesFull;
use crate::time::Moment;

/// A change, its hash computed.
#[derive(Clone, Copy, Debug)]
struct Change {
    block: BlockHash,
    hash: KeyHash,
    sequence: Sequence,
    change: WireChange,
    namespace: u16,
    group: GroupId,
    medium: Medium,
}

/// A namespace of the frame.
#[derive(Clone, Copy, Debug)]
struct Listed {
    digest: NamespaceDigest,
    /// None if no residence of it was ever heard of: nothing can end in it.
    interned: Option<NamespaceId>,
    has_puts: bool,
}

/// The changes of one frame.
#[derive(Debug, Default)]
pub(super) struct Batch {
    namespaces: Vec<Listed>,
    changes: Vec<Change>,
    next: usize,
}

/// What a frame's changes are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The installed view, which they bring to this sequence.
    View { through: Sequence },
    /// A page of the staging.
    Page,
    /// The staging, which they bring to this sequence.
    Replay { through: Sequence },
}

/// The frame whose changes are in the batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Applying {
    pub stream: StreamId,
    pub view: ViewId,
    pub part: Part,
    pub header: Header,
    pub receipt: Moment,
}

impl Batch {
    /// Takes a frame's changes in, whole or not at all: they are of the scope, their namespaces are
    /// interned, and the index has room for every put.
    pub fn load(
        &mut self,
        changes: &Changes<'_>,
        scope: &Scope,
        index: &mut Index<'_>,
    ) -> Result<(), CloseCause> {
        self.namespaces.clear();
        self.changes.clear();
        self.next = 0;
        for digest in changes.namespaces() {
            if !scope.contains(&digest) {
                return Err(CloseCause::OutOfScope);
            }
            let interned = index.namespaces.get(&digest);
            self.namespaces.push(Listed { digest, interned, has_puts: false });
        }
        for change in changes.iter() {
            let listed = &mut self.namespaces[usize::from(change.namespace)];
            listed.has_puts |= change.change != WireChange::Delete;
            let block = BlockHash(*change.block);
            self.changes.push(Change {
                block,
                hash: key_hash(&listed.digest, change.group, &block),
                sequence: change.sequence,
                change: change.change,
                namespace: change.namespace,
                group: change.group,
                medium: change.medium,
            });
        }
        let new = |listed: &&mut Listed| listed.has_puts && listed.interned.is_none();
        // Half of the table is for what engines of this node save: no peer takes it.
        let room = index.namespaces.room().saturating_sub(index.namespaces.capacity() / 2);
        let limit = index.namespaces.len() + room;
        if self.namespaces.iter_mut().filter(new).count() > room {
            return Err(NamespacesFull { limit }.into());
        }
        let puts = self.changes.iter().filter(|change| change.change != WireChange::Delete);
        index.partition.reserve(puts.map(|change| change.hash))?;
        for listed in self.namespaces.iter_mut().filter(new) {
            listed.interned = Some(index.namespaces.intern(&listed.digest)?);
        }
        Ok(())
    }

    /// Changes not applied yet.
    pub fn left(&self) -> usize {
        self.changes.len() - self.next
    }

    /// The next changes for a view, up to `count`, each with its key. Deletes in a namespace of which
    /// nothing was ever heard end nothing.
    fn take(
        &mut self,
        count: usize,
        view: ViewId,
        partition: &Partition,
    ) -> impl Iterator<Item = (StateKey, &Change)> + use<'_> {
        let from = self.next;
        self.next = (from + count).min(self.changes.len());
        partition
            .prefetch(view, self.changes[from..self.next].iter().map(|change| (change.hash, change.medium)));
        let namespaces = &self.namespaces;
        self.changes[from..self.next].iter().filter_map(|change| {
            let namespace = namespaces[usize::from(change.namespace)].interned?;
            Some((StateKey { namespace, group: change.group, block: change.block }, change))
        })
    }

    /// Applies the next changes to an installed view.
    pub fn apply(&mut self, view: ViewId, partition: &mut Partition, count: usize) {
        for (key, change) in self.take(count, view, partition) {
            apply(partition, view, &key, change);
        }
    }

    /// Applies the next residences of a page to the staging.
    pub fn stage_page(
        &mut self,
        staging: &mut Staging,
        partition: &mut Partition,
        count: usize,
    ) -> Result<(), CloseCause> {
        for (key, change) in self.take(count, staging.view, partition) {
            staging.scan(change.sequence)?;
            if apply(partition, staging.view, &key, change) == Some(Put::Renewed) {
                return Err(CloseCause::Snapshot("a residence was scanned twice"));
            }
        }
        Ok(())
    }

    /// Applies the next changes of the replay to the staging. The scan may have seen a residence that
    /// began after the interval: what is older than it changes nothing.
    pub fn stage_replay(
        &mut self,
        staging: &Staging,
        partition: &mut Partition,
        count: usize,
    ) -> Result<(), CloseCause> {
        for (key, change) in self.take(count, staging.view, partition) {
            let row = partition.row(staging.view, &key, change.hash, change.medium);
            if staging.has_scanned(change.sequence) {
                same(change, row)?;
            } else if row.is_none_or(|(_, sequence)| sequence < change.sequence) {
                apply(partition, staging.view, &key, change);
            }
        }
        Ok(())
    }
}

/// Compares changes that have been applied before with what they left. Nothing is applied.
pub(super) fn check_repeated(
    changes: &Changes<'_>,
    view: ViewId,
    index: &Index<'_>,
) -> Result<(), CloseCause> {
    let listed: Vec<_> = changes.namespaces().collect();
    for change in changes.iter() {
        let digest = &listed[usize::from(change.namespace)];
        let Some(namespace) = index.namespaces.get(digest) else { continue };
        let key = StateKey { namespace, group: change.group, block: BlockHash(*change.block) };
        let hash = key_hash(digest, key.group, &key.block);
        let row = index.partition.row(view, &key, hash, change.medium);
        let expected = match change.change {
            WireChange::Put { bytes } => Some((bytes, change.sequence)),
            WireChange::Delete => None,
        };
        if row.is_some_and(|(_, sequence)| sequence == change.sequence) && row != expected {
            return Err(CloseCause::SequenceConflict { sequence: change.sequence });
        }
    }
    Ok(())
}

/// One change. Its room was reserved, so it cannot be refused.
fn apply(partition: &mut Partition, view: ViewId, key: &StateKey, change: &Change) -> Option<Put> {
    match change.change {
        WireChange::Put { bytes } => {
            let put = partition.put(view, key, change.hash, change.medium, bytes, change.sequence);
            Some(put.expect("the frame's room was reserved"))
        }
        WireChange::Delete => {
            partition.delete(view, key, change.hash, change.medium);
            None
        }
    }
}

/// Whether a replayed change is the very residence that the scan saw at its sequence.
fn same(change: &Change, row: Option<(u32, Sequence)>) -> Result<(), CloseCause> {
    match (change.change, row) {
        (WireChange::Put { bytes }, Some(row)) if row == (bytes, change.sequence) => Ok(()),
        _ => Err(CloseCause::SequenceConflict { sequence: change.sequence }),
    }
}
