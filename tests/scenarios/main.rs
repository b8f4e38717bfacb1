//! Scenarios on the real binary: nodes, engines and faults as separate processes, observed from
//! outside through the engine socket and the HTTP API.

mod cluster;
mod engine;
mod faults;
mod harness;
mod local_cluster;
mod peers;
mod sharing;
