//! OrbitKV: a node daemon that keeps LLM KV-cache blocks in DRAM and on SSD.

pub mod bill;
pub mod cli;
pub mod client;
pub mod cluster;
mod console;
pub mod control;
pub mod core;
pub mod drill;
pub mod engine;
pub mod exit;
pub mod lab;
pub mod node;
pub mod peers;
pub mod quantity;
pub mod replay;
pub mod settings;
pub mod turns;
