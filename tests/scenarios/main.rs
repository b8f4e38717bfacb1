//! Scenarios on the real binary: nodes, engines and faults as separate processes, observed from
//! outside through the engine socket and the HTTP API.

mod cluster;
mod config;
mod coordinator;
mod counted;
mod doctor;
mod doubts;
mod drill;
mod engine;
mod faults;
mod flow;
mod guards;
mod harness;
mod identity;
mod left_out;
mod local_cluster;
mod migrate;
mod mixed;
mod network;
mod peers;
mod prefetch;
mod replays;
mod routing;
mod sharing;
mod shedding;
mod turns;
mod visibility;
