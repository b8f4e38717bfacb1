//! Which blocks were evicted lately: fingerprints in small buckets, each with the time of eviction in
//! evictions. A wrong answer costs one resident a better place than it earned, so 32 bits do.

use orbitkv_wire::identity::KeyHash;

/// Fingerprints of one bucket: a cache line.
const BUCKET_GHOSTS: usize = 8;

#[derive(Clone, Copy, Debug)]
struct Ghost {
    fingerprint: u32,
    /// Low bits of the eviction count when it was evicted.
    evicted_at: u32,
}

/// The last evictions, at most as many as there are seats.
#[derive(Debug)]
pub(super) struct GhostTable {
    ghosts: Vec<Ghost>,
    bucket_mask: usize,
    evictions: u32,
}

/// No eviction has this fingerprint.
const VACANT: u32 = 0;

impl GhostTable {
    /// With seats for at least `ghosts`.
    pub(super) fn new(ghosts: usize) -> GhostTable {
        let buckets = buckets_for(ghosts);
        GhostTable {
            ghosts: vec![Ghost { fingerprint: VACANT, evicted_at: 0 }; buckets * BUCKET_GHOSTS],
            bucket_mask: buckets - 1,
            evictions: 0,
        }
    }

    /// Bytes of a table with seats for so many.
    pub(super) fn table_bytes(ghosts: usize) -> usize {
        buckets_for(ghosts) * BUCKET_GHOSTS * size_of::<Ghost>()
    }

    /// Notes an eviction, in the place of the oldest of its bucket.
    pub(super) fn insert(&mut self, hash: KeyHash) {
        self.evictions = self.evictions.wrapping_add(1);
        let now = self.evictions;
        let fingerprint = fingerprint(hash);
        let place = self
            .bucket(hash)
            .iter_mut()
            .max_by_key(|ghost| match ghost.fingerprint {
                // The block's own older note first, then a vacant seat, then the oldest.
                own if own == fingerprint => (2, 0),
                VACANT => (1, 0),
                _ => (0, now.wrapping_sub(ghost.evicted_at)),
            })
            .expect("a bucket has seats");
        *place = Ghost { fingerprint, evicted_at: now };
    }

    /// Whether the block was among the last `last` evictions; forgets it.
    pub(super) fn take(&mut self, hash: KeyHash, last: usize) -> bool {
        let now = self.evictions;
        let fingerprint = fingerprint(hash);
        let Some(ghost) = self.bucket(hash).iter_mut().find(|ghost| ghost.fingerprint == fingerprint) else {
            return false;
        };
        ghost.fingerprint = VACANT;
        (now.wrapping_sub(ghost.evicted_at) as usize) < last
    }

    fn bucket(&mut self, hash: KeyHash) -> &mut [Ghost] {
        // A shard owns one range of hashes, so the high bits of its keys are all alike.
        let first = (hash.0 as usize & self.bucket_mask) * BUCKET_GHOSTS;
        &mut self.ghosts[first..first + BUCKET_GHOSTS]
    }
}

fn fingerprint(hash: KeyHash) -> u32 {
    // Bits the bucket number does not use, unless there are over 2^24 buckets.
    ((hash.0 >> 24) as u32).max(VACANT + 1)
}

fn buckets_for(ghosts: usize) -> usize {
    ghosts.div_ceil(BUCKET_GHOSTS).next_power_of_two()
}
