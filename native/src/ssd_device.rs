//! The SSD as a shard core sees it: the ring on its own core, or behind a device thread. Both
//! take the same operations, so that a layout is a choice at boot and nothing else.

use crate::device_thread::DeviceThread;
use crate::ssd_ring::SsdRing;
use crate::ssd_transfer::{AlignedBuffer, Completed, Transfer, Turn};
use std::os::fd::BorrowedFd;

/// An SSD device of either layout.
#[expect(clippy::large_enum_variant, reason = "there is one a core, and a box would cost each call a hop")]
pub enum SsdDevice {
    /// The ring runs in the shard core's own turns.
    Inline(SsdRing),
    /// The ring runs on a pinned thread of its own.
    Thread(DeviceThread),
}

impl SsdDevice {
    /// As [`SsdRing::submit`].
    pub fn submit(&mut self, transfer: Transfer) -> Result<(), Transfer> {
        match self {
            Self::Inline(ring) => ring.submit(transfer),
            Self::Thread(thread) => thread.submit(transfer),
        }
    }

    /// As [`SsdRing::submit_buffer`].
    pub fn submit_buffer(
        &mut self,
        id: u64,
        buffer: AlignedBuffer,
        file_offset: u64,
    ) -> Result<(), AlignedBuffer> {
        match self {
            Self::Inline(ring) => ring.submit_buffer(id, buffer, file_offset),
            Self::Thread(thread) => thread.submit_buffer(id, buffer, file_offset),
        }
    }

    /// As [`SsdRing::turn`]; a thread ignores the budget, its checksums hold no shard core.
    pub fn turn(&mut self, out: &mut Vec<Completed>, checksum_budget_bytes: u64) -> Turn {
        match self {
            Self::Inline(ring) => ring.turn(out, checksum_budget_bytes),
            Self::Thread(thread) => thread.turn(out),
        }
    }

    /// Readable when a turn would find something.
    pub fn completion_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Inline(ring) => ring.completion_fd(),
            Self::Thread(thread) => thread.completion_fd(),
        }
    }

    /// Operations accepted and not yet handed out as completed.
    pub fn in_flight(&self) -> u32 {
        match self {
            Self::Inline(ring) => ring.in_flight(),
            Self::Thread(thread) => thread.in_flight(),
        }
    }

    /// Operations that may be in flight.
    pub fn depth(&self) -> u32 {
        match self {
            Self::Inline(ring) => ring.depth(),
            Self::Thread(thread) => thread.depth(),
        }
    }
}
