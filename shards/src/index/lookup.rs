//! Which owners have a key: a few replicas of each medium.

use orbitkv_wire::identity::{KeyHash, Medium, Sequence};

use super::directory::{Mark, Wanted};
use super::view::Owner;
use super::{BATCH, Partition, Walk};
use crate::key::StateKey;

/// Replicas of one medium that a lookup returns (chapter 2.10).
pub const REPLICAS_MAX: usize = 4;

/// One replica that a lookup found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Whose.
    pub owner: Owner,
    /// Where.
    pub medium: Medium,
    /// Payload bytes.
    pub bytes: u32,
    /// Residency sequence, for the owner to check.
    pub sequence: Sequence,
}

/// What a lookup found of one key. Truncated lists are still positive evidence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replicas {
    found: [Option<Replica>; 2 * REPLICAS_MAX],
    counts: [u8; 2],
    /// Whether any medium has more replicas than are listed.
    pub truncated: bool,
}

impl Replicas {
    /// The listed replicas, DRAM first.
    pub fn iter(&self) -> impl Iterator<Item = Replica> + '_ {
        self.found.iter().flatten().copied()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts == [0, 0]
    }

    fn clear(&mut self) {
        for (found, count) in self.found.chunks_exact_mut(REPLICAS_MAX).zip(self.counts) {
            found[..usize::from(count)].fill(None);
        }
        self.counts = [0, 0];
        self.truncated = false;
    }

    /// Adds a replica; false if there is no place left, so that no more of its medium are wanted.
    fn add(&mut self, replica: Replica) -> bool {
        let medium = replica.medium as usize;
        let count = usize::from(self.counts[medium]);
        if count == REPLICAS_MAX {
            self.truncated = true;
            return false;
        }
        self.found[medium * REPLICAS_MAX + count] = Some(replica);
        self.counts[medium] += 1;
        true
    }
}

impl Partition {
    /// Looks keys up, each into its place of `out`. Rows of installed views only.
    ///
    /// # Panics
    /// If `out` is shorter than `keys`.
    pub fn lookup(&self, keys: &[(StateKey, KeyHash)], out: &mut [Replicas]) {
        assert!(out.len() >= keys.len(), "every key has its place");
        let mut walks = Vec::with_capacity(2 * keys.len().min(BATCH));
        for (keys, out) in keys.chunks(BATCH).zip(out.chunks_mut(BATCH)) {
            for &(_, hash) in keys {
                let mark = Mark::new(hash, Medium::Dram);
                self.directories[self.directory_of(hash)].prefetch(mark, self.prefetch);
            }
            for ((position, &(_, hash)), replicas) in (0..).zip(keys).zip(&mut *out) {
                replicas.clear();
                let mark = Mark::new(hash, Medium::Dram);
                self.begin_walks(position, hash, mark, Wanted::EitherMedium, &mut walks);
            }
            while !walks.is_empty() {
                self.step_walks(keys, &mut walks, out);
            }
        }
    }

    /// Looks at one place of each walk and goes on to the next, until nothing is left or wanted.
    fn step_walks(&self, keys: &[(StateKey, KeyHash)], walks: &mut Vec<Walk>, out: &mut [Replicas]) {
        walks.retain_mut(|walk| {
            let place = self.heaps[usize::from(walk.heap)].place(walk.place);
            let position = usize::from(walk.position);
            if !place.is_further() && !place.is_of(&keys[position].0) {
                return false;
            }
            for claim in place.claims() {
                let Some(owner) = self.views.installed_owner(claim.view()) else { continue };
                let (medium, bytes, sequence) = (claim.medium(), claim.bytes(), claim.sequence());
                if !out[position].add(Replica { owner, medium, bytes, sequence }) {
                    return false;
                }
            }
            self.step(walk, place.next())
        });
    }
}
