//! Membership on real etcd processes, and what becomes of it when they fail.

mod cutover;
mod faults;
mod neighbours;
mod node;
mod places;
// The scenarios of whole nodes start the same servers, and use all of it.
#[allow(dead_code)]
#[path = "../../../tests/scenarios/harness/etcd.rs"]
mod server;
