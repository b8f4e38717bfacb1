//! One shared mapping of an arena's memfd: address, length, advice and bounds. The daemon's
//! [`crate::arena::Arena`] and the engine's [`crate::arena::ArenaView`] both stand on it, so
//! that both ends map with the same alignment and the same page kind.

use crate::{memory, procfs};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::NonNull;

/// Bytes of a huge page on the supported architectures: hugetlb's default and THP's PMD size.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Memory is populated this much at a time, so that progress can be told and a thread can
/// be stopped in between.
pub(crate) const POPULATE_STEP_BYTES: usize = 64 << 20;

/// A mapping that is unmapped on drop. The bytes are shared with other processes: reading a
/// range while somebody else writes it gives some mixture of both, never a fault, because the
/// memfd's size is sealed before it is mapped.
#[derive(Debug)]
pub(crate) struct ArenaMap {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is plain memory that outlives every borrow of `self`; it has no thread
// affinity. No safe type expresses "mapped region", hence the pointer and this line.
unsafe impl Send for ArenaMap {}
// SAFETY: as above. Concurrent access to one range is governed by the sharing contract that
// `Arena` and `ArenaView` document (one owner of a slot at a time), as it must be anyway for
// memory which other processes map too.
unsafe impl Sync for ArenaMap {}

impl ArenaMap {
    /// Maps `bytes` (not 0) of `fd` readable, writable and shared, at an address aligned to huge pages:
    /// a mapping that is not aligned cannot use them. Not inherited by `fork`.
    pub(crate) fn map(fd: impl AsFd, bytes: usize) -> Result<Self, Errno> {
        Self::map_as(fd, bytes, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// As [`Self::map`], for reading alone: nothing that writes may be called.
    pub(crate) fn map_read_only(fd: impl AsFd, bytes: usize) -> Result<Self, Errno> {
        Self::map_as(fd, bytes, ProtFlags::READ)
    }

    fn map_as(fd: impl AsFd, bytes: usize, protection: ProtFlags) -> Result<Self, Errno> {
        let reserved_bytes = bytes.checked_add(HUGE_PAGE_BYTES).ok_or(Errno::NOMEM)?;
        // SAFETY: asks the kernel for fresh address space; nothing of ours lies there.
        let reserved = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                reserved_bytes,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let start = reserved as usize;
        let aligned = start.next_multiple_of(HUGE_PAGE_BYTES);
        let end = aligned + bytes.next_multiple_of(memory::page_bytes());
        let unmap = |range: Range<usize>| {
            if !range.is_empty() {
                // SAFETY: the range lies in the address space reserved above and nobody has
                // a reference into it yet.
                unsafe { munmap(range.start as *mut c_void, range.len()) }
                    .expect("unmapping address space we have just reserved");
            }
        };
        // SAFETY: MAP_FIXED replaces only address space reserved above; the memory has no Rust
        // references yet.
        let mapped = unsafe {
            mmap(aligned as *mut c_void, bytes, protection, MapFlags::SHARED | MapFlags::FIXED, fd, 0)
        };
        if let Err(errno) = mapped {
            unmap(start..start + reserved_bytes);
            return Err(errno);
        }
        unmap(start..aligned);
        unmap(end..start + reserved_bytes);
        let map = Self { address: NonNull::new(aligned as *mut u8).expect("not the null page"), bytes };
        map.advise(0, bytes, Advice::LinuxDontFork)?;
        Ok(map)
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// True if `bytes` at `offset` lie inside.
    pub(crate) fn contains(&self, offset: u64, bytes: u64) -> bool {
        offset.checked_add(bytes).is_some_and(|end| end <= self.bytes as u64)
    }

    /// Address of a range for the kernel or for a copy.
    ///
    /// # Panics
    /// If the range is not inside: the caller's bug.
    pub(crate) fn address(&self, offset: u64, bytes: u64) -> *mut u8 {
        assert!(
            self.contains(offset, bytes),
            "range {offset}+{bytes} is outside the arena of {} bytes",
            self.bytes
        );
        // SAFETY: inside the mapping, checked above.
        unsafe { self.address.as_ptr().add(offset as usize) }
    }

    /// Bytes of a range; panics as [`Self::address`] does.
    pub(crate) fn slice(&self, offset: u64, bytes: u64) -> &[u8] {
        let address = self.address(offset, bytes);
        // SAFETY: inside a mapping that lives as long as the borrow and whose size is sealed.
        // That nobody writes the range meanwhile is the documented sharing contract; other
        // processes map the same pages, so no type of this process could prove it. Only plain
        // bytes are read.
        unsafe { std::slice::from_raw_parts(address, bytes as usize) }
    }

    /// Bytes of a range for writing; panics as [`Self::address`] does.
    pub(crate) fn slice_mut(&mut self, offset: u64, bytes: u64) -> &mut [u8] {
        let address = self.address(offset, bytes);
        // SAFETY: as in `slice`, and the exclusive borrow keeps this process from aliasing it.
        unsafe { std::slice::from_raw_parts_mut(address, bytes as usize) }
    }

    /// Copies into the mapping; panics as [`Self::address`] does.
    pub(crate) fn copy_in(&self, offset: u64, source: &[u8]) {
        let address = self.address(offset, source.len() as u64);
        // SAFETY: the target is inside the mapping; a source that lies in the same arena
        // would be in another slot, and `copy` permits overlap anyway.
        unsafe { std::ptr::copy(source.as_ptr(), address, source.len()) }
    }

    /// Copies out of the mapping; panics as [`Self::address`] does.
    pub(crate) fn copy_out(&self, offset: u64, target: &mut [u8]) {
        let address = self.address(offset, target.len() as u64);
        // SAFETY: as in `copy_in`, the other way round.
        unsafe { std::ptr::copy(address, target.as_mut_ptr(), target.len()) }
    }

    /// Asks for huge pages; a kernel without them refuses, which the page kind shows later.
    pub(crate) fn advise_huge(&self) {
        let _ = self.advise(0, self.bytes, Advice::LinuxHugepage);
    }

    /// Asks for small pages even where the machine's setting is `always`.
    pub(crate) fn advise_small(&self) {
        let _ = self.advise(0, self.bytes, Advice::LinuxNoHugepage);
    }

    /// Allocates and maps a range, writable.
    pub(crate) fn populate_write(&self, offset: usize, bytes: usize) -> Result<(), Errno> {
        self.advise_until_done(offset, bytes, Advice::LinuxPopulateWrite)
    }

    /// Allocates and maps a range by huge pages, whatever `shmem_enabled` says except `deny`:
    /// touches one small page of each huge one and collapses, which zeroes each huge page once
    /// and is as fast as populating. `offset` and `bytes` are multiples of huge pages.
    pub(crate) fn populate_huge(&self, offset: usize, bytes: usize) -> Result<(), Errno> {
        for huge in (offset..offset + bytes).step_by(HUGE_PAGE_BYTES) {
            self.populate_write(huge, memory::page_bytes())?;
        }
        let address = self.address(offset as u64, bytes as u64);
        loop {
            // SAFETY: MADV_COLLAPSE changes which pages back the range, not its contents.
            // rustix does not know this advice, hence libc.
            let result = unsafe { libc::madvise(address.cast(), bytes, libc::MADV_COLLAPSE) };
            if result == 0 {
                return Ok(());
            }
            let error = std::io::Error::last_os_error();
            match Errno::from_io_error(&error) {
                Some(Errno::INTR) => {}
                errno => return Err(errno.unwrap_or(Errno::INVAL)),
            }
        }
    }

    /// Bytes that are mapped by transparent huge pages right now.
    pub(crate) fn transparent_huge_bytes(&self) -> u64 {
        procfs::shmem_huge_mapped_bytes(self.address.as_ptr() as usize, self.bytes)
    }

    fn advise_until_done(&self, offset: usize, bytes: usize, advice: Advice) -> Result<(), Errno> {
        loop {
            match self.advise(offset, bytes, advice) {
                Err(Errno::INTR | Errno::AGAIN) => {}
                result => return result,
            }
        }
    }

    fn advise(&self, offset: usize, bytes: usize, advice: Advice) -> Result<(), Errno> {
        let address = self.address(offset as u64, bytes as u64);
        // SAFETY: inside our mapping; every advice used here keeps the contents.
        unsafe { madvise(address.cast(), bytes, advice) }
    }
}

impl Drop for ArenaMap {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and borrows of it cannot outlive `self`.
        unsafe { munmap(self.address.as_ptr().cast(), self.bytes) }.expect("unmapping our own mapping");
    }
}
