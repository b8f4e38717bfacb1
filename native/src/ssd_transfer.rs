//! What is asked of an SSD device and what comes back: the words that the inline ring and the
//! device thread share.

use orbitkv_wire::bounds::EXTENT_ALIGN_BYTES;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Registered regions of the arena: the kernel's limit for one registered buffer. A transfer
/// never crosses a multiple of this, counted from the start of the arena.
pub const REGION_BYTES: u64 = 1 << 30;

/// Direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransferKind {
    /// From the file into the arena.
    Read,
    /// From the arena into the file.
    Write,
}

/// Where the checksum of a transfer comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChecksumPolicy {
    /// Over the payload in the arena: of a read after the data arrived, of a write while the
    /// device takes it.
    Compute,
    /// A write whose payload's checksum is known; it is handed back unchanged. A read cannot say this.
    Known(u64),
}

/// One transfer between arena and file. It owns its arena range until it has completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// The caller's name for it, handed back in [`Completed`].
    pub id: u64,
    /// Direction.
    pub kind: TransferKind,
    /// First byte in the arena; a multiple of 4,096.
    pub arena_offset: u64,
    /// First byte in the file; a multiple of 4,096.
    pub file_offset: u64,
    /// Bytes moved: the payload padded to a positive multiple of 4,096.
    pub bytes: u64,
    /// Bytes that the checksum covers; at most `bytes`.
    pub payload_bytes: u64,
    /// Where the checksum comes from.
    pub checksum: ChecksumPolicy,
}

impl Transfer {
    /// Panics unless all of it is as the fields document: a wrong transfer is our bug.
    pub(crate) fn assert_well_formed(&self) {
        assert_aligned("arena offset", self.arena_offset);
        assert_aligned("file offset", self.file_offset);
        assert_aligned("length", self.bytes);
        assert!(self.bytes > 0, "a transfer moves something");
        assert!(self.payload_bytes <= self.bytes, "the payload is part of what is moved");
        assert_eq!(
            self.arena_offset / REGION_BYTES,
            (self.arena_offset + self.bytes - 1) / REGION_BYTES,
            "transfer {}+{} crosses a region of {REGION_BYTES} bytes",
            self.arena_offset,
            self.bytes
        );
        if let (TransferKind::Read, ChecksumPolicy::Known(_)) = (self.kind, self.checksum) {
            panic!("the checksum of a read is computed, never taken on trust");
        }
    }
}

pub(crate) fn assert_aligned(what: &str, value: u64) {
    assert!(
        value.is_multiple_of(EXTENT_ALIGN_BYTES),
        "{what} {value} is not a multiple of {EXTENT_ALIGN_BYTES}"
    );
}

/// A transfer that did not do all of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the device did {done} bytes, then: {}", std::io::Error::from_raw_os_error(*errno))]
pub struct DeviceError {
    /// The kernel's error; `EIO` also where it moved nothing more and gave no reason (the file
    /// ends too early).
    pub errno: i32,
    /// Bytes that were done, over all parts of the transfer.
    pub done: u64,
}

/// The one answer to each accepted submission.
#[derive(Debug)]
pub struct Completed {
    /// The caller's name.
    pub id: u64,
    /// `xxh3_64` of the payload, or why not all bytes were done. 0 for a buffer: those carry
    /// their own checksum.
    pub outcome: Result<u64, DeviceError>,
    /// The buffer of a [`submit_buffer`](crate::ssd_ring::SsdRing::submit_buffer), for reuse.
    pub buffer: Option<AlignedBuffer>,
}

/// What a turn left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// There is work that needs no event: call again soon. Otherwise sleep on `completion_fd`.
    pub more: bool,
}

/// Heap bytes that O_DIRECT takes: address and length are multiples of 4,096.
pub struct AlignedBuffer {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an owned allocation like `Box<[u8]>`; only the alignment keeps it from being one.
unsafe impl Send for AlignedBuffer {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// Zeroed bytes.
    ///
    /// # Panics
    /// If `bytes` is not a positive multiple of 4,096.
    pub fn zeroed(bytes: usize) -> Self {
        assert!(bytes > 0, "a buffer holds something");
        assert_aligned("buffer length", bytes as u64);
        let layout = Self::layout(bytes);
        // SAFETY: the layout has a size, checked above.
        let address = unsafe { alloc_zeroed(layout) };
        let Some(address) = NonNull::new(address) else { handle_alloc_error(layout) };
        Self { address, bytes }
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, EXTENT_ALIGN_BYTES as usize).expect("a length that fits memory")
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: our own allocation of this length, initialised when it was made.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.bytes) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.bytes) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout and freed once.
        unsafe { dealloc(self.address.as_ptr(), Self::layout(self.bytes)) }
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("AlignedBuffer").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer() -> Transfer {
        Transfer {
            id: 1,
            kind: TransferKind::Write,
            arena_offset: 4_096,
            file_offset: 8_192,
            bytes: 4_096,
            payload_bytes: 10,
            checksum: ChecksumPolicy::Known(1),
        }
    }

    fn refused(change: impl FnOnce(&mut Transfer)) -> bool {
        let mut transfer = transfer();
        change(&mut transfer);
        std::panic::catch_unwind(|| transfer.assert_well_formed()).is_err()
    }

    #[test]
    fn only_well_formed_transfers_pass() {
        assert!(!refused(|_| {}));
        assert!(!refused(|transfer| transfer.payload_bytes = 0));
        assert!(!refused(|transfer| transfer.arena_offset = REGION_BYTES - 4_096));
        assert!(refused(|transfer| transfer.arena_offset = 1));
        assert!(refused(|transfer| transfer.file_offset = 512));
        assert!(refused(|transfer| transfer.bytes = 0));
        assert!(refused(|transfer| transfer.bytes = 4_097));
        assert!(refused(|transfer| transfer.payload_bytes = 4_097));
        assert!(refused(|transfer| transfer.kind = TransferKind::Read));
        assert!(refused(|transfer| {
            transfer.arena_offset = REGION_BYTES - 4_096;
            transfer.bytes = 8_192;
        }));
    }

    #[test]
    fn buffers_are_aligned_and_writable() {
        let mut buffer = AlignedBuffer::zeroed(12_288);
        assert!((buffer[..].as_ptr() as usize).is_multiple_of(4_096));
        assert!(buffer.iter().all(|&byte| byte == 0));
        buffer[12_287] = 7;
        assert_eq!((buffer.len(), buffer[12_287]), (12_288, 7));
        assert!(std::panic::catch_unwind(|| AlignedBuffer::zeroed(0)).is_err());
        assert!(std::panic::catch_unwind(|| AlignedBuffer::zeroed(100)).is_err());
    }
}
