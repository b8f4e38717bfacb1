//! Which owners have a key: a few replicas of each medium.

use orbitkv_wire::identity::{KeyHash, Medium, Sequence, ShardIndex};

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

const NOTHING: Replica = Replica {
    owner: Owner { peer: 0, shard: ShardIndex(0) },
    medium: Medium::Dram,
    bytes: 0,
    sequence: Sequence(0),
};

/// What a lookup found of one key. Truncated lists are still positive evidence.
///
/// Most keys have one replica: it lies beside the counts, so that a lookup touches one line a key here.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Replicas {
    /// How many of each medium are listed.
    counts: [u8; 2],
    /// Whether any medium may have more replicas than are listed; if not, it has not.
    pub truncated: bool,
    /// As they were found, whatever the medium.
    found: [Replica; 2 * REPLICAS_MAX],
}

impl Default for Replicas {
    fn default() -> Replicas {
        Replicas { counts: [0, 0], truncated: false, found: [NOTHING; 2 * REPLICAS_MAX] }
    }
}

impl PartialEq for Replicas {
    fn eq(&self, other: &Replicas) -> bool {
        self.truncated == other.truncated && self.iter().eq(other.iter())
    }
}

impl Replicas {
    fn len(&self) -> usize {
        self.counts.iter().map(|&count| usize::from(count)).sum()
    }

    /// The listed replicas, DRAM first.
    pub fn iter(&self) -> impl Iterator<Item = Replica> + '_ {
        let of =
            |medium| self.found[..self.len()].iter().copied().filter(move |replica| replica.medium == medium);
        of(Medium::Dram).chain(of(Medium::Ssd))
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts == [0, 0]
    }

    fn clear(&mut self) {
        self.counts = [0, 0];
        self.truncated = false;
    }

    /// Whether as many of a medium are listed as may be.
    fn is_full(&self, medium: Medium) -> bool {
        usize::from(self.counts[medium as usize]) == REPLICAS_MAX
    }

    /// Adds a replica of which the medium is not full.
    fn add(&mut self, replica: Replica) {
        let at = self.len();
        self.found[at] = replica;
        self.counts[replica.medium as usize] += 1;
    }
}

impl Partition {
    /// Looks keys up, each into its place of `out`. Rows of installed views only.
    ///
    /// # Panics
    /// If `out` is shorter than `keys`.
    pub fn lookup(&self, keys: &[(StateKey, KeyHash)], out: &mut [Replicas]) {
        assert!(out.len() >= keys.len(), "every key has its place");
        let mut walks = self.walks.borrow_mut();
        for (keys, out) in keys.chunks(BATCH).zip(out.chunks_mut(BATCH)) {
            for &(_, hash) in keys {
                self.prefetch_slot(hash, Mark::new(hash, Medium::Dram));
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
            let place = self.place_of(walk);
            let position = usize::from(walk.position);
            if !place.is_further() && !place.is_of(&keys[position].0) {
                return false;
            }
            let (replicas, next) = (&mut out[position], place.next());
            for (number, claim) in place.claims().enumerate() {
                let Some(owner) = self.views.installed_owner(claim.view()) else { continue };
                let (medium, bytes, sequence) = (claim.medium(), claim.bytes(), claim.sequence());
                replicas.add(Replica { owner, medium, bytes, sequence });
                if replicas.is_full(medium) {
                    // Whether the others are of installed views would take going there.
                    replicas.truncated |= number + 1 < place.count() || next.is_some();
                    return false;
                }
            }
            self.step(walk, next)
        });
    }
}
