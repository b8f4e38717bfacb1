//! Bytes that cross a process or a host boundary, and the identities they carry.
//!
//! Nothing here performs I/O. Peers' bytes are validated once, at the edge, and the types
//! that come out carry the proof. Every bound that a peer can observe lives in [`bounds`].

pub mod bounds;
pub mod config;
pub mod engine;
mod framed_hash;
pub mod identity;
pub mod inventory;
pub mod layout;
pub mod membership;
pub mod namespace;
mod numbered;
pub mod payload;
pub mod scope;
pub mod text;

#[cfg(test)]
mod tests;
