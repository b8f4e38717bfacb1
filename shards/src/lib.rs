//! The state machines of one core. Synchronous and sans-IO: no room awaits, reads a clock or
//! draws randomness. Commands are verbs, inputs are `on_*(…, now)`, outputs are `poll_*()`.

pub mod admission;
pub mod coverage;
pub mod demand;
#[cfg(test)]
mod dice;
pub mod drop_memory;
pub mod eviction;
pub mod fence;
pub mod fetcher;
pub mod flow;
pub mod grants;
pub mod index;
pub mod inventory;
pub mod journal;
pub mod key;
pub mod leases;
pub mod ledger;
pub mod members;
pub mod membership;
pub mod namespaces;
pub mod payload_streams;
pub mod planner;
pub mod reservations;
pub mod residents;
pub mod resilience;
pub mod retention;
pub mod segment_log;
pub mod shard;
pub mod slab;
pub mod time;
