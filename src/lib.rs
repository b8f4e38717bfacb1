//! OrbitKV: a node daemon that keeps LLM KV-cache blocks in DRAM and on SSD.

pub mod client;
