//! The state machines of one core. Synchronous and sans-IO: no room awaits, reads a clock or
//! draws randomness. Commands are verbs, inputs are `on_*(…, now)`, outputs are `poll_*()`.

pub mod demand;
pub mod drop_memory;
pub mod eviction;
pub mod journal;
pub mod key;
pub mod ledger;
pub mod namespaces;
pub mod segment_log;
pub mod slab;
pub mod admission;
pub mod leases;
pub mod reservations;
pub mod residents;
pub mod shard;
pub mod time;
