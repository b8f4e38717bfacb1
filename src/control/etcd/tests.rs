//! Membership on real etcd processes, and what becomes of it when they fail.

mod faults;
mod node;
mod places;
mod server;
