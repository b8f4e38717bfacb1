//! An engine that saves blocks and gets them back, with bytes that follow from the key.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use orbitkv::client::{
    Acquisition, BlockHash, BlockOutcome, Client, ClientSettings, CommitOutcome, Group, GroupId, Lease,
    Namespace, PrefixList, Registration, Reserved, ReservedSlot, Retention, SaveKey,
};

use super::{WAIT, eventually};

/// Bytes of a block.
pub const BLOCK_BYTES: u64 = 64 * 1024;

/// Layer group of all of them.
pub const GROUP: GroupId = GroupId(0);

/// A registration whose engines share one namespace; instances by name.
pub fn registration(instance: &str) -> Registration {
    Registration {
        instance: instance.to_owned(),
        engine: "scenario 1".to_owned(),
        model: "model-a".to_owned(),
        weights_revision: "r1".to_owned(),
        adapter: String::new(),
        computation: "plain".to_owned(),
        dtype: "bf16".to_owned(),
        layout: "rows".to_owned(),
        hash_algorithm: "sha256".to_owned(),
        hash_seed: "seed".to_owned(),
        hash_bytes: 32,
        block_tokens: 16,
        tp_rank: 0,
        tp_size: 1,
        pp_rank: 0,
        pp_size: 1,
        rank_invariant: false,
        groups: vec![Group { group: GROUP, retention: Retention::Full, block_bytes: BLOCK_BYTES }],
    }
}

/// A key that no other call of this process gives.
pub fn fresh_key() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 32);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The block hash of a key.
pub fn block(key: u64) -> BlockHash {
    let mut hash = [0; 32];
    // Spread over all bytes, so that no part of a hash is constant.
    for (index, chunk) in hash.chunks_exact_mut(8).enumerate() {
        let word = (key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 + 2 * index as u64);
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    BlockHash(hash)
}

/// The payload of a key as `writer` would save it: whose bytes they are shows in every word.
pub fn payload(key: u64, writer: u64, bytes: usize) -> Vec<u8> {
    let word = |index: u64| {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ writer.rotate_left(32)).wrapping_add(index).to_le_bytes()
    };
    (0..bytes.div_ceil(8) as u64).flat_map(word).take(bytes).collect()
}

/// A client with one namespace.
pub struct Saver {
    pub client: Client,
    pub namespace: Namespace,
}

impl Saver {
    /// Connects and registers as `instance`.
    pub fn connect(socket: &Path, instance: &str) -> Saver {
        Saver::with(ClientSettings::new(socket), &registration(instance))
    }

    pub fn with(settings: ClientSettings, registration: &Registration) -> Saver {
        let mut client = Client::connect(settings).expect("the node lets us in");
        let namespace = client.register(registration, WAIT).expect("the registration is accepted");
        Saver { client, namespace }
    }

    /// Reserves slots for `keys`, outcomes as they come.
    pub fn reserve(&mut self, keys: &[u64], race: bool) -> Vec<Reserved> {
        let keys: Vec<SaveKey> =
            keys.iter().map(|&key| SaveKey { block: block(key), group: GROUP, bytes: BLOCK_BYTES }).collect();
        self.client.reserve(self.namespace, &keys, race, WAIT).expect("Reserve is answered")
    }

    /// Reserves and fills slots for `keys`, all of which must get one.
    pub fn fill(&mut self, keys: &[u64], writer: u64) -> Vec<ReservedSlot> {
        let reserved = self.reserve(keys, false);
        let slots = keys.iter().zip(reserved).map(|(&key, reserved)| match reserved {
            Reserved::Slot(mut slot) => {
                slot.copy_in(0, &payload(key, writer, BLOCK_BYTES as usize)).expect("the slot is ours");
                slot
            }
            other => panic!("key {key} got no slot: {other:?}"),
        });
        slots.collect()
    }

    /// Saves `keys`, trying again while the node is busy; present ones stay as they are.
    pub fn save(&mut self, keys: &[u64]) {
        let mut left = keys.to_vec();
        eventually("every key is saved", || {
            let reserved = self.reserve(&left, false);
            let mut slots = Vec::new();
            let mut again = Vec::new();
            for (&key, reserved) in left.iter().zip(reserved) {
                match reserved {
                    Reserved::Slot(mut slot) => {
                        slot.copy_in(0, &payload(key, 0, BLOCK_BYTES as usize)).expect("the slot is ours");
                        slots.push(slot);
                    }
                    Reserved::Present => {}
                    Reserved::Busy | Reserved::BeingSaved => again.push(key),
                    Reserved::TooLarge { limit_bytes } => panic!("a slot has at most {limit_bytes} bytes"),
                }
            }
            let outcomes = self.client.commit(&mut slots, WAIT).expect("Commit is answered");
            assert!(outcomes.iter().all(|&outcome| outcome == CommitOutcome::Committed), "{outcomes:?}");
            left = again;
            left.is_empty().then_some(())
        });
    }

    pub fn acquire(&mut self, keys: &[u64]) -> Acquisition {
        let blocks: Vec<BlockHash> = keys.iter().map(|&key| block(key)).collect();
        let lists = [PrefixList { namespace: self.namespace, group: GROUP, blocks: &blocks }];
        self.client.acquire(&lists, None, WAIT).expect("Acquire is answered")
    }

    /// Acquires `keys`, compares every byte with what writer 0 saves, and keeps the lease.
    pub fn acquire_checked(&mut self, keys: &[u64]) -> Lease {
        let acquired = self.acquire(keys);
        for (&key, result) in keys.iter().zip(&acquired.blocks) {
            let ready = result.as_ref().unwrap_or_else(|outcome| panic!("key {key} is {outcome:?}"));
            let bytes = ready.bytes().expect("under a live lease");
            assert!(bytes == payload(key, 0, BLOCK_BYTES as usize), "key {key} has other bytes than saved");
        }
        acquired.lease.expect("ready blocks have a lease")
    }

    /// Acquires `keys`, compares every byte, and releases.
    pub fn check_ready(&mut self, keys: &[u64]) {
        let lease = self.acquire_checked(keys);
        self.client.release(&lease, WAIT).expect("Release is answered");
    }

    /// Acquires and releases, whatever comes: ready blocks have the right bytes, all others an outcome.
    pub fn check_never_wrong(&mut self, keys: &[u64]) -> Vec<Option<BlockOutcome>> {
        let acquired = self.acquire(keys);
        let outcomes = keys.iter().zip(&acquired.blocks).map(|(&key, result)| match result {
            Ok(ready) => {
                let bytes = ready.bytes().expect("under a live lease");
                assert!(bytes == payload(key, 0, BLOCK_BYTES as usize), "key {key} has wrong bytes");
                None
            }
            Err(outcome) => Some(*outcome),
        });
        let outcomes = outcomes.collect();
        if let Some(lease) = &acquired.lease {
            self.client.release(lease, WAIT).expect("Release is answered");
        }
        outcomes
    }
}
