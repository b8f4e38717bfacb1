//! What one namespace may put into the slots of this shard in time (ADR 0038): what its
//! engines save, and what is brought for them from SSD and from peers. Each such byte takes what others share: the
//! network, the device, and the room of a block that was there. What is in DRAM already is given out whatever the rate.

use orbitkv_wire::bounds::NAMESPACES_MAX;

use super::Shard;
use crate::flow::pacing::Rate;
use crate::key::NamespaceId;
use crate::resilience::gate::{Refill, Throttle};
use crate::time::Moment;

/// A bound for each namespace, of a node or of one shard of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceRate {
    /// Payload bytes a second that are saved or brought.
    pub rate: Rate,
    /// As many at once after a rest. A block that is larger goes when all of it is there, and is paid for afterwards.
    pub burst_bytes: u64,
}

impl NamespaceRate {
    /// What shard `index` of `shards` has of a node's: blocks are spread over shards by their hash, so each has an even
    /// part. `None` if there is not a byte for each.
    ///
    /// # Panics
    /// If there is no such shard.
    #[must_use]
    pub fn share(self, index: u16, shards: u16) -> Option<NamespaceRate> {
        let rate = self.rate.share(index, shards)?;
        Some(NamespaceRate { rate, burst_bytes: self.burst_bytes / u64::from(shards) })
    }
}

/// Bytes of the buckets of so many namespaces, for the memory bill.
#[must_use]
pub fn throttle_bytes(namespaces_max: usize) -> usize {
    namespaces_max * size_of::<Option<Throttle>>()
}

/// The buckets of all namespaces: as many as are interned at most.
pub(super) struct Throttles {
    settings: Option<NamespaceRate>,
    /// By number; one that has never asked has a full one.
    of_namespace: Vec<Option<Throttle>>,
}

/// What a slot is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotPurpose {
    Save,
    Acquire,
    Prefetch,
}

impl Throttles {
    pub fn new(settings: Option<NamespaceRate>) -> Throttles {
        let namespaces_max = settings.map_or(0, |_| NAMESPACES_MAX);
        Throttles { settings, of_namespace: Vec::with_capacity(namespaces_max) }
    }

    fn bucket(&mut self, namespace: NamespaceId, now: Moment) -> Option<&mut Throttle> {
        let NamespaceRate { rate, burst_bytes } = self.settings?;
        let at = usize::from(namespace.0);
        if self.of_namespace.len() <= at {
            self.of_namespace.resize(at + 1, None);
        }
        let refill = Refill::Carrying { rate: rate.bytes_a_second() as f64, burst: burst_bytes as f64 };
        let throttle = self.of_namespace[at].get_or_insert_with(|| Throttle::new(refill, now));
        throttle.tick(now);
        Some(throttle)
    }
}

impl Shard {
    /// Whether a namespace may take a slot for so many payload bytes now; counted if not. Whoever takes one says so with
    /// [`Shard::charge_namespace`], and not before there is one: who finds no room keeps what it may take.
    pub(super) fn admits_namespace(
        &mut self,
        namespace: NamespaceId,
        bytes: u64,
        purpose: SlotPurpose,
    ) -> bool {
        let now = self.now;
        let bucket = self.throttles.bucket(namespace, now);
        if bucket.is_none_or(|bucket| bucket.admits(bytes as f64).is_ok()) {
            return true;
        }
        let counters = &mut self.counters;
        let (blocks, refused_bytes) = match purpose {
            SlotPurpose::Save => (&mut counters.throttled_saves, &mut counters.throttled_save_bytes),
            SlotPurpose::Acquire => (&mut counters.throttled_acquires, &mut counters.throttled_acquire_bytes),
            SlotPurpose::Prefetch => {
                (&mut counters.throttled_prefetches, &mut counters.throttled_prefetch_bytes)
            }
        };
        *blocks += 1;
        *refused_bytes += bytes;
        false
    }

    /// A namespace has taken a slot for so many payload bytes, whatever becomes of it.
    pub(super) fn charge_namespace(&mut self, namespace: NamespaceId, bytes: u64) {
        let now = self.now;
        if let Some(bucket) = self.throttles.bucket(namespace, now) {
            bucket.charge(bytes as f64);
        }
    }
}
