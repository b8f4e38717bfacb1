//! OrbitKV: a node daemon that keeps LLM KV-cache blocks in DRAM and on SSD.

pub mod bill;
pub mod cli;
pub mod control;
pub mod exit;
pub mod quantity;
pub mod settings;
