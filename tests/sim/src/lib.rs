//! The project's instrument for correctness: whole clusters in one thread, under virtual time, decided by
//! one seed.
//!
//! A simulated node is made of the production rooms; the world is another interpreter of their effects.
//! Faults of network, processes and membership service, the load, and every delay come from the seed.
//! What nodes claim is compared with the truth after every step by oracles that ask no room.
//!
//! A run has a *safety* part, in which things go wrong and nothing false may be said, and a *liveness*
//! part, in which nothing goes wrong any more and everything has to become equal everywhere.

pub mod canary;
mod control;
mod core;
pub mod counters;
mod event;
mod load;
mod mail;
mod network;
pub mod oracle;
pub mod plan;
pub mod random;
mod registry;
pub mod report;
mod schedule;
mod stock;
mod truth;
mod world;

pub use canary::Canary;
pub use plan::Plan;
pub use report::{Log, Report};
pub use world::World;
