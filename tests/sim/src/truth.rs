//! What is true: the history of every owner stream, one for all who look at it.
//!
//! The truth is written by the load, never by a room, and answers what was resident at any sequence.
//! Every oracle compares a node's claims with it and with nothing else.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use orbitkv_shards::time::Moment;
use orbitkv_wire::identity::{
    BlockHash, GroupId, Incarnation, KeyHash, Medium, NamespaceDigest, Sequence, ShardIndex, key_hash,
};

/// A block that the load may put, named for the whole simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyId(pub u32);

/// What the name stands for.
#[derive(Clone, Copy, Debug)]
pub struct GlobalKey {
    /// Its namespace.
    pub namespace: NamespaceDigest,
    /// Its layer group.
    pub group: GroupId,
    /// Its hash.
    pub block: BlockHash,
    /// Its place.
    pub hash: KeyHash,
}

/// An owner stream, as the simulation numbers nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamName {
    /// The source.
    pub node: u16,
    /// Its registration life.
    pub incarnation: Incarnation,
    /// Its shard.
    pub shard: ShardIndex,
}

/// A residence, as the truth knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrueResidence {
    /// The put that began it.
    pub sequence: Sequence,
    /// Payload bytes.
    pub bytes: u32,
}

/// One change at its place in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrueChange {
    /// The block.
    pub key: KeyId,
    /// The medium.
    pub medium: Medium,
    /// Payload bytes of a put; 0 is a delete.
    pub bytes: u32,
}

/// Every block there is.
#[derive(Debug, Default)]
pub struct Universe {
    keys: Vec<GlobalKey>,
    /// Names by placement hash. Two blocks of one hash do not occur in a simulation.
    by_hash: HashMap<u64, KeyId, BuildHasherDefault<Fold>>,
}

impl Universe {
    /// A new block.
    pub fn add(&mut self, namespace: NamespaceDigest, group: GroupId, block: BlockHash) -> KeyId {
        let hash = key_hash(&namespace, group, &block);
        let key = KeyId(u32::try_from(self.keys.len()).expect("fewer blocks than numbers"));
        assert!(self.by_hash.insert(hash.0, key).is_none(), "a block is added once");
        self.keys.push(GlobalKey { namespace, group, block, hash });
        key
    }

    /// The name of a block, if it has one.
    #[must_use]
    pub fn find(&self, namespace: &NamespaceDigest, group: GroupId, block: &[u8; 32]) -> Option<KeyId> {
        let hash = key_hash(namespace, group, &BlockHash(*block));
        let key = *self.by_hash.get(&hash.0)?;
        let known = self.get(key);
        let same = known.namespace == *namespace && known.group == group && known.block.0 == *block;
        same.then_some(key)
    }

    /// What a name stands for.
    #[must_use]
    pub fn get(&self, key: KeyId) -> &GlobalKey {
        &self.keys[key.0 as usize]
    }

    /// Blocks there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

/// The history of one owner stream.
#[derive(Debug, Default)]
pub struct StreamTruth {
    changes: Vec<TrueChange>,
    /// Sequences of the changes of one residence key, ascending.
    timelines: HashMap<(u32, u8), Vec<u64>, BuildHasherDefault<Fold>>,
    /// Every block ever put here, in the order of its first put.
    keys: Vec<KeyId>,
    resident: u64,
    /// When each change was made.
    moments: Vec<Moment>,
}

impl StreamTruth {
    /// Notes what the load did; the sequence is the one the journal has to give.
    ///
    /// # Panics
    /// If the load puts what is there or deletes what is not.
    pub fn note(&mut self, change: TrueChange, now: Moment) -> Sequence {
        let head = self.head();
        let was = self.at(change.key, change.medium, head);
        assert_eq!(
            was.is_some(),
            change.bytes == 0,
            "the load puts what is absent and deletes what is there"
        );
        self.resident = if change.bytes == 0 { self.resident - 1 } else { self.resident + 1 };
        if Medium::ALL.iter().all(|&medium| !self.timelines.contains_key(&(change.key.0, medium as u8))) {
            self.keys.push(change.key);
        }
        self.changes.push(change);
        self.moments.push(now);
        self.timelines.entry((change.key.0, change.medium as u8)).or_default().push(head.0 + 1);
        self.head()
    }

    /// Sequence of the newest change.
    #[must_use]
    pub fn head(&self) -> Sequence {
        Sequence(self.changes.len() as u64)
    }

    /// What was resident of (key, medium) once everything through `sequence` had happened.
    #[must_use]
    pub fn at(&self, key: KeyId, medium: Medium, sequence: Sequence) -> Option<TrueResidence> {
        let timeline = self.timelines.get(&(key.0, medium as u8))?;
        let after = timeline.partition_point(|&changed| changed <= sequence.0);
        let changed = *timeline.get(after.checked_sub(1)?)?;
        let bytes = self.change(Sequence(changed)).bytes;
        (bytes > 0).then_some(TrueResidence { sequence: Sequence(changed), bytes })
    }

    /// When the residence that began at `put` ended, if it has.
    #[must_use]
    pub fn ended(&self, put: Sequence) -> Option<Sequence> {
        let change = self.change(put);
        let timeline = &self.timelines[&(change.key.0, change.medium as u8)];
        timeline.get(timeline.partition_point(|&changed| changed <= put.0)).map(|&ended| Sequence(ended))
    }

    /// The change at `sequence`.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn change(&self, sequence: Sequence) -> &TrueChange {
        &self.changes[usize::try_from(sequence.0).expect("a place in the history") - 1]
    }

    /// The change at `sequence`, if the history has come so far.
    #[must_use]
    pub fn try_change(&self, sequence: Sequence) -> Option<&TrueChange> {
        self.changes.get(usize::try_from(sequence.0).ok()?.checked_sub(1)?)
    }

    /// The newest change of each residence key in `(after, through]`, in the order of sequences.
    #[must_use]
    pub fn coalesced(&self, after: Sequence, through: Sequence) -> Vec<(Sequence, TrueChange)> {
        let newest_in = |sequence: u64, change: &TrueChange| {
            let timeline = &self.timelines[&(change.key.0, change.medium as u8)];
            let next = timeline.partition_point(|&changed| changed <= sequence);
            timeline.get(next).is_none_or(|&next| next > through.0)
        };
        (after.0 + 1..=through.0)
            .map(|sequence| (sequence, *self.change(Sequence(sequence))))
            .filter(|(sequence, change)| newest_in(*sequence, change))
            .map(|(sequence, change)| (Sequence(sequence), change))
            .collect()
    }

    /// When the change at `sequence` was made.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn moment(&self, sequence: Sequence) -> Moment {
        self.moments[usize::try_from(sequence.0).expect("a place in the history") - 1]
    }

    /// Every block that ever was here, in the order of its first put.
    #[must_use]
    pub fn keys(&self) -> &[KeyId] {
        &self.keys
    }

    /// Residences now.
    #[must_use]
    pub fn resident(&self) -> u64 {
        self.resident
    }
}

/// Multiplies and folds: names are small numbers, and iteration order never reaches an output.
#[derive(Debug, Default)]
pub struct Fold(u64);

impl Hasher for Fold {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u8(&mut self, word: u8) {
        self.write_u64(u64::from(word));
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        let mixed = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

/// All histories.
#[derive(Debug, Default)]
pub struct Truth {
    /// Every block there is.
    pub universe: Universe,
    streams: HashMap<StreamName, StreamTruth, BuildHasherDefault<Fold>>,
}

impl Truth {
    /// The history of a stream, begun if it has none.
    pub fn begin(&mut self, stream: StreamName) -> &mut StreamTruth {
        self.streams.entry(stream).or_default()
    }

    /// The history of a stream.
    #[must_use]
    pub fn stream(&self, stream: &StreamName) -> Option<&StreamTruth> {
        self.streams.get(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn truth() -> (StreamTruth, KeyId, KeyId) {
        (StreamTruth::default(), KeyId(1), KeyId(2))
    }

    fn put(key: KeyId, medium: Medium, bytes: u32) -> TrueChange {
        TrueChange { key, medium, bytes }
    }

    #[test]
    fn residences_are_told_apart_by_sequence_and_medium() {
        let (mut truth, a, b) = truth();
        truth.note(put(a, Medium::Dram, 10), Moment(0));
        truth.note(put(a, Medium::Ssd, 11), Moment(0));
        truth.note(put(b, Medium::Dram, 12), Moment(0));
        truth.note(put(a, Medium::Dram, 0), Moment(0));
        truth.note(put(a, Medium::Dram, 13), Moment(0));
        let at = |key, medium, sequence| truth.at(key, medium, Sequence(sequence));
        let is = |sequence, bytes| Some(TrueResidence { sequence: Sequence(sequence), bytes });
        assert_eq!(at(a, Medium::Dram, 0), None);
        assert_eq!(at(a, Medium::Dram, 3), is(1, 10));
        assert_eq!(at(a, Medium::Dram, 4), None);
        assert_eq!(at(a, Medium::Dram, 5), is(5, 13));
        assert_eq!(at(a, Medium::Ssd, 5), is(2, 11));
        assert_eq!(truth.ended(Sequence(1)), Some(Sequence(4)));
        assert_eq!(truth.ended(Sequence(5)), None);
        assert_eq!(truth.keys(), [a, b]);
        assert_eq!(truth.resident(), 3);
    }

    #[test]
    fn coalescing_keeps_the_newest_of_each_medium_and_the_last_delete() {
        let (mut truth, a, b) = truth();
        for change in [(a, 1), (b, 2), (a, 0), (a, 3), (b, 0)] {
            truth.note(put(change.0, Medium::Dram, change.1), Moment(0));
        }
        let sequences = |after, through| -> Vec<u64> {
            let records = truth.coalesced(Sequence(after), Sequence(through));
            records.iter().map(|(sequence, _)| sequence.0).collect()
        };
        assert_eq!(sequences(0, 5), [4, 5]);
        assert_eq!(sequences(0, 3), [2, 3]);
        assert_eq!(sequences(2, 3), [3]);
        assert!(sequences(5, 5).is_empty());
    }
}
