//! What this node knows of the members: a snapshot at one revision, brought forward by the watch, and
//! checked for holes and for a history that was exchanged.
//!
//! A hole shows in the versions of a key: they count by one, and an absent key begins at 1. An exchanged
//! history (etcd restored from an old copy) shows in a revision that went backwards, or in a snapshot
//! that has other revisions where this node had looked already.

use std::collections::BTreeMap;

use orbitkv_wire::bounds::MEMBERS_MAX;
use orbitkv_wire::identity::{Incarnation, NodeId};
use orbitkv_wire::membership::{HASH_VERSION, Key, MemberRecord, RecordError};
use thiserror::Error;

use super::coordinator::{Entry, Event, Snapshot};
use super::roster::Roster;

/// Nodes whose last epoch is remembered; those that are gone are forgotten beyond it.
const REMEMBERED_MAX: usize = 2 * MEMBERS_MAX;

/// Why what is known can no longer be brought forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Break {
    /// The watch left something out.
    #[error("the watch left out a change before revision {at}")]
    Hole {
        /// Revision of the change that does not follow.
        at: u64,
    },
    /// The watch should begin with what etcd no longer keeps.
    #[error("etcd has compacted what follows revision {after}")]
    Compacted {
        /// The last revision known.
        after: u64,
    },
    /// There are more members than are read.
    #[error("the cluster has more than {MEMBERS_MAX} members")]
    TooMany,
}

/// Another history than the one that was read before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OtherHistory {
    /// Revisions only grow, unless etcd was restored from an old copy.
    #[error("etcd's revision went backwards, from {was} to {is}: it was restored from an old copy")]
    Backwards {
        /// The largest revision known when it was asked.
        was: u64,
        /// What it says now.
        is: u64,
    },
    /// Something that was looked at is not what it was at that revision.
    #[error("etcd's revision {at} is not what it was: it was restored from an old copy")]
    Rewritten {
        /// The revision.
        at: u64,
    },
}

/// What is wrong with a member, which is then no member for this node.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Flaw {
    /// The record cannot be read.
    #[error("the member record of {node} is none: {error}")]
    Record {
        /// Whose it should be.
        node: NodeId,
        /// Why.
        error: RecordError,
    },
    /// The record is somebody else's.
    #[error("under the name of {node} stands the member record of {other}")]
    Misplaced {
        /// The key's node.
        node: NodeId,
        /// The record's.
        other: NodeId,
    },
    /// Two incarnations have one epoch: neither is the one.
    #[error("{node} has two lives with epoch {epoch}: both are refused until it has a higher one")]
    EqualEpochs {
        /// The node.
        node: NodeId,
        /// Their epoch.
        epoch: u64,
    },
    /// The epoch is lower than one that was there before.
    #[error("{node} has epoch {epoch} after {highest}: refused")]
    EpochBackwards {
        /// The node.
        node: NodeId,
        /// What the record says.
        epoch: u64,
        /// The highest seen.
        highest: u64,
    },
    /// It places keys on its shards by another hash, so what is told of one of them says nothing of a key.
    #[error(
        "{node} places keys by hash version {version}, and this node by {HASH_VERSION}: it is left out, and no absence is claimed; update the older of the two"
    )]
    ForeignHash {
        /// The node.
        node: NodeId,
        /// Its version.
        version: u16,
    },
}

/// A member's key as it was last seen.
struct Seen {
    revision: u64,
    version: u64,
    record: Option<MemberRecord>,
}

/// The highest epoch of a node, and whose it is; nobody's once two claimed it.
struct Highest {
    epoch: u64,
    life: Option<Incarnation>,
}

/// What a single record was to the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patch {
    /// It is as it was known, or older.
    Known,
    /// It is newer, and in.
    Newer,
    /// It is there no more, and was known: nothing is changed.
    Gone,
}

/// The view.
#[derive(Default)]
pub struct View {
    /// Everything up to here is in; 0 before the first snapshot.
    known: u64,
    /// Revisions of records that were read by themselves and are newer than that.
    patched: BTreeMap<NodeId, u64>,
    seen: BTreeMap<NodeId, Seen>,
    highest: BTreeMap<NodeId, Highest>,
    flaws: Vec<Flaw>,
}

impl View {
    /// The revision up to which everything is in; 0 if nothing was read yet.
    pub fn known(&self) -> u64 {
        self.known
    }

    /// Forgets everything: what follows is another history.
    pub fn reset(&mut self) {
        *self = View::default();
    }

    /// The next flaw that was found.
    pub fn poll_flaw(&mut self) -> Option<Flaw> {
        self.flaws.pop()
    }

    /// The record under a node's name; none if there is none that can be read.
    pub fn record(&self, node: NodeId) -> Option<&MemberRecord> {
        self.seen.get(&node)?.record.as_ref()
    }

    /// Takes a snapshot over. An older one than what is known changes nothing.
    pub fn install(&mut self, snapshot: &Snapshot) -> Result<Result<(), Break>, OtherHistory> {
        if snapshot.revision < self.known {
            return Ok(Ok(()));
        }
        self.check_history(snapshot)?;
        if snapshot.members().count() > MEMBERS_MAX {
            return Ok(Err(Break::TooMany));
        }
        let present: BTreeMap<NodeId, _> = snapshot
            .members()
            .filter_map(|entry| match entry.key {
                Key::Member(node) => Some((node, entry)),
                _ => None,
            })
            .collect();
        // What was read by itself may be newer than the snapshot, whichever was asked for first.
        self.patched.retain(|_, revision| *revision > snapshot.revision);
        let patched = &self.patched;
        self.seen.retain(|node, _| present.contains_key(node) || patched.contains_key(node));
        for (node, entry) in present {
            let is_patched = self.patched.contains_key(&node);
            if !is_patched && self.seen.get(&node).is_none_or(|seen| seen.revision != entry.revision) {
                self.see(node, entry.revision, entry.version, &entry.value);
            }
        }
        self.known = snapshot.revision;
        Ok(Ok(()))
    }

    /// Takes over one record as it stands. Nothing else is brought forward by it.
    pub fn patch(&mut self, node: NodeId, entry: Option<&Entry>) -> Patch {
        let seen = self.seen.get(&node);
        let Some(entry) = entry else { return if seen.is_some() { Patch::Gone } else { Patch::Known } };
        let is_new = seen.is_none();
        let is_known =
            entry.revision <= self.known || seen.is_some_and(|seen| seen.revision >= entry.revision);
        if is_known || (is_new && self.seen.len() >= MEMBERS_MAX) {
            return Patch::Known;
        }
        self.see(node, entry.revision, entry.version, &entry.value);
        self.patched.insert(node, entry.revision);
        Patch::Newer
    }

    /// Whatever changed last at a revision that is known must be known as it stands.
    fn check_history(&self, snapshot: &Snapshot) -> Result<(), OtherHistory> {
        if self.known == 0 {
            return Ok(());
        }
        for entry in snapshot.members().filter(|entry| entry.revision <= self.known) {
            let Key::Member(node) = entry.key else { continue };
            if self.patched.contains_key(&node) {
                continue;
            }
            let same = |seen: &Seen| (seen.revision, seen.version) == (entry.revision, entry.version);
            if !self.seen.get(&node).is_some_and(same) {
                return Err(OtherHistory::Rewritten { at: entry.revision });
            }
        }
        Ok(())
    }

    /// Brings the view forward by what the watch shows; whether a member changed. What is known already
    /// is passed over: a watch that was opened again may repeat it.
    pub fn apply(&mut self, events: &[Event]) -> Result<bool, Break> {
        let known = self.known;
        let mut changed = false;
        for event in events.iter().filter(|event| event.revision > known) {
            let (Key::Member(node), at) = (event.key, event.revision) else {
                self.known = self.known.max(event.revision);
                continue;
            };
            if at < self.known {
                return Err(Break::Hole { at });
            }
            if self.patched.get(&node).is_some_and(|&revision| at <= revision) {
                // It was read before the watch has told of it.
                self.known = at;
                continue;
            }
            match &event.put {
                Some(put) => {
                    let before = self.seen.get(&node).map_or(0, |seen| seen.version);
                    // A key that was deleted and put again within one revision is not possible.
                    if put.version != before + 1 {
                        return Err(Break::Hole { at });
                    }
                    if self.seen.len() >= MEMBERS_MAX && before == 0 {
                        return Err(Break::TooMany);
                    }
                    self.see(node, at, put.version, &put.value);
                }
                None => {
                    self.seen.remove(&node).ok_or(Break::Hole { at })?;
                }
            }
            self.known = at;
            changed = true;
        }
        let before = self.patched.len();
        self.patched.retain(|_, revision| *revision > self.known);
        // With the last of them the view is whole again, which is worth telling.
        Ok(changed || (before > 0 && self.patched.is_empty()))
    }

    fn see(&mut self, node: NodeId, revision: u64, version: u64, value: &[u8]) {
        let record = match MemberRecord::decode(value) {
            Ok(record) if record.node == node => {
                self.judge(&record);
                if !record.contact.places_alike() {
                    self.flaws.push(Flaw::ForeignHash { node, version: record.contact.hash_version });
                }
                Some(record)
            }
            Ok(record) => {
                self.flaws.push(Flaw::Misplaced { node, other: record.node });
                None
            }
            Err(error) => {
                self.flaws.push(Flaw::Record { node, error });
                None
            }
        };
        self.seen.insert(node, Seen { revision, version, record });
    }

    /// Holds a record's epoch against the highest that this node ever had.
    fn judge(&mut self, record: &MemberRecord) {
        let MemberRecord { node, epoch, incarnation, .. } = *record;
        if self.highest.len() >= REMEMBERED_MAX {
            self.highest.retain(|node, _| self.seen.contains_key(node));
        }
        let fresh = Highest { epoch, life: Some(incarnation) };
        let Some(highest) = self.highest.get_mut(&node).filter(|highest| highest.epoch >= epoch) else {
            self.highest.insert(node, fresh);
            return;
        };
        if highest.epoch > epoch {
            self.flaws.push(Flaw::EpochBackwards { node, epoch, highest: highest.epoch });
        } else if highest.life != fresh.life {
            highest.life = None;
            self.flaws.push(Flaw::EqualEpochs { node, epoch });
        }
    }

    /// Members that place keys otherwise than this program, with the version of their hash, in order of name.
    pub fn foreign_hash(&self) -> impl Iterator<Item = (NodeId, u16)> {
        let foreign = self.present().filter(|record| !record.contact.places_alike());
        foreign.map(|record| (record.node, record.contact.hash_version))
    }

    /// Records of the latest life that is known of their node.
    fn present(&self) -> impl Iterator<Item = &MemberRecord> {
        let records = self.seen.values().filter_map(|seen| seen.record.as_ref());
        records.filter(|record| {
            let highest = self.highest.get(&record.node);
            highest.is_some_and(|highest| {
                (highest.epoch, highest.life) == (record.epoch, Some(record.incarnation))
            })
        })
    }

    /// Everybody who may be spoken to. Whoever places keys otherwise may not, and has blocks all the same: the roster
    /// is then one in part.
    pub fn roster(&self) -> Roster {
        let newest = self.patched.values().copied().max();
        let (alike, foreign): (Vec<&MemberRecord>, Vec<&MemberRecord>) =
            self.present().partition(|record| record.contact.places_alike());
        let roster = Roster::new(newest.unwrap_or(self.known), alike.into_iter());
        if newest.is_some() || !foreign.is_empty() { roster.in_part() } else { roster }
    }

    /// The highest epoch known of a node.
    pub fn epoch_of(&self, node: NodeId) -> u64 {
        self.highest.get(&node).map_or(0, |highest| highest.epoch)
    }
}
