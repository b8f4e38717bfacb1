//! Devices and sockets of OrbitKV: everything that touches the kernel directly.
//!
//! A caller never handles a raw pointer or a raw descriptor: the arena, the SSD ring, the
//! engine socket and the QUIC endpoint wrap them, and `unsafe` stays in this crate.

pub mod affinity;
pub mod arena;
mod arena_map;
mod arena_view;
pub mod bare_ring;
pub mod child;
pub mod clock;
pub mod descriptors;
pub mod device_thread;
pub mod engine_socket;
pub mod entropy;
pub mod huge_pages;
pub mod memory;
pub mod peer_arena;
pub mod prefetch;
mod procfs;
pub mod quic;
pub mod ssd_device;
pub mod ssd_file;
mod ssd_parts;
pub mod ssd_ring;
pub mod ssd_transfer;
#[cfg(test)]
mod testing;
pub mod wake;
