//! Bytes that cross a process or a host boundary, and the identities they carry.
//!
//! Nothing here performs I/O. Peers' bytes are validated once, at the edge, and the types
//! that come out carry the proof. Every bound that a peer can observe lives in [`bounds`].

pub mod bounds;
pub mod engine;
pub mod identity;
pub mod namespace;
