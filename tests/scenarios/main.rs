//! Scenarios on the real binary: nodes, engines and faults as separate processes, observed from
//! outside through the engine socket and the HTTP API.

mod cluster;
mod coordinator;
mod counted;
mod doctor;
mod doubts;
mod drill;
mod engine;
mod faults;
mod guards;
mod harness;
mod identity;
mod local_cluster;
mod migrate;
mod mixed;
mod network;
mod peers;
mod replays;
mod routing;
mod sharing;
mod visibility;
