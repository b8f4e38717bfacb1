//! The arena: the one block of DRAM that holds every payload of a node, shared with engines.
//!
//! It is a memfd whose size is sealed, so that no process that holds the descriptor can
//! shrink it under the others (a shrunk file would make every reader die of SIGBUS). It is not
//! write-sealed: engines write their blocks into it.
//!
//! # Sharing contract
//! The daemon decides who owns a slot; between Reserve and Commit or Abort the engine writes
//! it, afterwards nobody does until its last lease ends. Code that reads or writes a range
//! here must hold it by that contract. A process that breaks it makes wrong bytes, which the
//! checksum shows, but can make no fault.

use crate::arena_map::{ArenaMap, HUGE_PAGE_BYTES, POPULATE_STEP_BYTES};
use crate::{memory, procfs};
use orbitkv_wire::bounds::EXTENT_ALIGN_BYTES;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

pub use crate::arena_view::{ArenaView, ArenaViewError, RangeError, ViewPopulate};

/// Left free beside the arena, so that populating it does not take the machine's last byte.
const MEMORY_MARGIN_BYTES: u64 = 128 << 20;

const HUGETLB_FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
const HUGETLB_RESERVED: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages";
const SHMEM_ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// Which pages the operator wants behind the arena (`--arena-pages`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PagePreference {
    /// Reserved huge pages if enough are free for all of it, else transparent ones, else small
    /// ones with a warning.
    Auto,
    /// Reserved huge pages (`vm.nr_hugepages`) or an error.
    HugeTlb,
    /// Transparent huge pages or an error.
    Thp,
    /// 4 KiB pages even where huge ones could be had.
    Small,
}

/// Which pages the arena got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageKind {
    /// Reserved 2 MiB pages.
    HugeTlb,
    /// Transparent 2 MiB pages, all whole ones of the arena; the rest of a length that is no
    /// multiple is small.
    Thp,
    /// 4 KiB pages, at least in part.
    Small,
}

impl fmt::Display for PageKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::HugeTlb => "hugetlb (2 MiB)",
            Self::Thp => "thp (2 MiB)",
            Self::Small => "small (4 KiB)",
        })
    }
}

/// What [`Arena::create`] got from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArenaReport {
    /// The pages behind the arena.
    pub page_kind: PageKind,
    /// Under [`PagePreference::Auto`], why the pages are small and what would change that.
    pub warning: Option<String>,
}

/// Why an arena could not be made. Nothing stays allocated.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// The size is zero or not a multiple of a page.
    #[error("arena size {bytes} must be a positive multiple of {EXTENT_ALIGN_BYTES} bytes")]
    Size {
        /// Asked bytes.
        bytes: u64,
    },
    /// More than the machine or our memory cgroup can give now.
    #[error(
        "an arena of {bytes} bytes does not fit: {available_bytes} bytes of memory are available and \
         {MEMORY_MARGIN_BYTES} of them must stay free; lower --dram or free memory"
    )]
    NotEnoughMemory {
        /// Asked bytes.
        bytes: u64,
        /// What is available (the lesser of the machine and the cgroup).
        available_bytes: u64,
    },
    /// Reserved huge pages were asked for and are not there.
    #[error(
        "--arena-pages hugetlb: {reason}; reserve them with `sysctl vm.nr_hugepages={needed_pages}` \
         (plus those that others use), or choose --arena-pages auto"
    )]
    HugeTlbUnavailable {
        /// What is missing.
        reason: String,
        /// 2 MiB pages the arena needs.
        needed_pages: u64,
    },
    /// Transparent huge pages were asked for and the kernel did not give them.
    #[error("--arena-pages thp: {reason}; {THP_REMEDY}, or choose --arena-pages auto")]
    ThpUnavailable {
        /// What the kernel did.
        reason: String,
    },
    /// A system call failed.
    #[error("{step} for an arena of {bytes} bytes failed: {errno}")]
    System {
        /// What was attempted.
        step: &'static str,
        /// Asked bytes.
        bytes: u64,
        /// The kernel's answer.
        errno: Errno,
    },
}

const THP_REMEDY: &str = "allow them with \
     `echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled`, or reserve huge pages \
     with vm.nr_hugepages";

/// The daemon's end of the arena: descriptor and mapping. Clones share both; the mapping goes
/// when the last clone does, so an operation in flight that holds one owns its memory.
#[derive(Clone)]
pub struct Arena {
    shared: Arc<Shared>,
}

struct Shared {
    fd: OwnedFd,
    map: ArenaMap,
    page_kind: PageKind,
}

impl Arena {
    /// Makes an arena of `bytes` (a positive multiple of 4,096), allocates all of it and seals
    /// its size.
    pub fn create(bytes: u64, preference: PagePreference) -> Result<(Self, ArenaReport), ArenaError> {
        Self::create_with_progress(bytes, preference, &mut |_| {})
    }

    /// As [`Self::create`]; calls `progress` with the bytes allocated so far, at most every
    /// 64 MiB. The count starts anew if one kind of page is given up for another.
    pub fn create_with_progress(
        bytes: u64,
        preference: PagePreference,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(Self, ArenaReport), ArenaError> {
        let length = usize::try_from(bytes).unwrap_or(0);
        if length == 0 || !bytes.is_multiple_of(EXTENT_ALIGN_BYTES) {
            return Err(ArenaError::Size { bytes });
        }
        if matches!(preference, PagePreference::HugeTlb | PagePreference::Auto) {
            match Self::create_hugetlb(bytes, progress) {
                Ok(arena) => return Ok((arena, ArenaReport { page_kind: PageKind::HugeTlb, warning: None })),
                Err(error) if preference == PagePreference::HugeTlb => return Err(error),
                Err(_) => {}
            }
        }
        Self::create_in_shmem(bytes, preference, progress)
    }

    fn create_hugetlb(bytes: u64, progress: &mut dyn FnMut(u64)) -> Result<Self, ArenaError> {
        let needed_pages = bytes.div_ceil(HUGE_PAGE_BYTES as u64);
        let unavailable = |reason: String| ArenaError::HugeTlbUnavailable { reason, needed_pages };
        if !bytes.is_multiple_of(HUGE_PAGE_BYTES as u64) {
            return Err(unavailable(format!("{bytes} bytes are not a multiple of 2 MiB")));
        }
        let free = procfs::number(HUGETLB_FREE)
            .zip(procfs::number(HUGETLB_RESERVED))
            .map_or(0, |(free, reserved)| free.saturating_sub(reserved));
        if free < needed_pages {
            return Err(unavailable(format!("{needed_pages} pages of 2 MiB are needed and {free} are free")));
        }
        let (fd, map) = sealed_map(bytes, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB)
            // Somebody else took the pages after we had counted them.
            .map_err(|error| unavailable(error.to_string()))?;
        populate(&map, bytes, progress)
            .map_err(|errno| unavailable(format!("populating failed: {errno}")))?;
        Ok(Self::new(fd, map, PageKind::HugeTlb))
    }

    fn create_in_shmem(
        bytes: u64,
        preference: PagePreference,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(Self, ArenaReport), ArenaError> {
        if let Some(available_bytes) = memory::available_bytes()
            && bytes.saturating_add(MEMORY_MARGIN_BYTES) > available_bytes
        {
            return Err(ArenaError::NotEnoughMemory { bytes, available_bytes });
        }
        let (fd, map) = sealed_map(bytes, MemfdFlags::empty())?;
        let mut warning = None;
        if preference == PagePreference::Small {
            map.advise_small();
        } else {
            match populate_thp(&map, bytes, progress) {
                Ok(()) => {
                    let arena = Self::new(fd, map, PageKind::Thp);
                    return Ok((arena, ArenaReport { page_kind: PageKind::Thp, warning: None }));
                }
                Err(reason) if preference == PagePreference::Thp => {
                    return Err(ArenaError::ThpUnavailable { reason });
                }
                Err(reason) => {
                    warning = Some(format!(
                        "the arena has 4 KiB pages ({reason}), which makes SSD transfers slower; {THP_REMEDY}"
                    ));
                }
            }
        }
        populate(&map, bytes, progress).map_err(|errno| ArenaError::System {
            step: "populating",
            bytes,
            errno,
        })?;
        Ok((Self::new(fd, map, PageKind::Small), ArenaReport { page_kind: PageKind::Small, warning }))
    }

    fn new(fd: OwnedFd, map: ArenaMap, page_kind: PageKind) -> Self {
        Self { shared: Arc::new(Shared { fd, map, page_kind }) }
    }

    /// The sealed memfd, to be passed to engines.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shared.fd.as_fd()
    }

    /// The memfd opened anew for reading alone, to be passed to other nodes: a descriptor that is passed on
    /// keeps the rights it was opened with.
    ///
    /// # Errors
    /// If `/proc` is not there, or the process has no descriptor left.
    pub fn read_only_fd(&self) -> io::Result<OwnedFd> {
        Ok(File::open(format!("/proc/self/fd/{}", self.shared.fd.as_raw_fd()))?.into())
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.shared.map.bytes() as u64
    }

    /// The pages behind it.
    pub fn page_kind(&self) -> PageKind {
        self.shared.page_kind
    }

    /// Copies `source` to `offset`, under the sharing contract.
    ///
    /// # Panics
    /// If the range is not inside the arena.
    pub fn copy_in(&self, offset: u64, source: &[u8]) {
        self.shared.map.copy_in(offset, source);
    }

    /// Copies from `offset` into `target`, under the sharing contract.
    ///
    /// # Panics
    /// If the range is not inside the arena.
    pub fn copy_out(&self, offset: u64, target: &mut [u8]) {
        self.shared.map.copy_out(offset, target);
    }

    /// `xxh3_64` of a range in one go; [`Checksum`] gives the same value in steps.
    ///
    /// # Panics
    /// If the range is not inside the arena.
    pub fn checksum(&self, offset: u64, bytes: u64) -> u64 {
        xxh3_64(self.shared.map.slice(offset, bytes))
    }

    /// Bytes of a range, under the sharing contract; panics if it is not inside.
    pub(crate) fn slice(&self, offset: u64, bytes: u64) -> &[u8] {
        self.shared.map.slice(offset, bytes)
    }

    /// Address of a range, for the ring; panics if it is not inside.
    pub(crate) fn address(&self, offset: u64, bytes: u64) -> *mut u8 {
        self.shared.map.address(offset, bytes)
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Arena")
            .field("bytes", &self.bytes())
            .field("page_kind", &self.shared.page_kind)
            .finish_non_exhaustive()
    }
}

/// A checksum that is computed in steps, so that a large payload never holds a core.
#[derive(Clone)]
pub struct Checksum {
    hash: Xxh3,
    next_offset: u64,
    end_offset: u64,
}

impl Checksum {
    /// Begins the checksum of `bytes` at `offset`; nothing is read yet.
    pub fn new(offset: u64, bytes: u64) -> Self {
        let end_offset = offset.checked_add(bytes).expect("a range of the arena does not overflow");
        Self { hash: Xxh3::new(), next_offset: offset, end_offset }
    }

    /// Reads at most `step_bytes` more; the checksum once the last byte is in.
    ///
    /// # Panics
    /// If the range is not inside the arena.
    pub fn step(&mut self, arena: &Arena, step_bytes: u64) -> Option<u64> {
        let bytes = step_bytes.min(self.remaining_bytes());
        self.hash.update(arena.shared.map.slice(self.next_offset, bytes));
        self.next_offset += bytes;
        (self.next_offset == self.end_offset).then(|| self.hash.digest())
    }

    /// Bytes not yet read.
    pub fn remaining_bytes(&self) -> u64 {
        self.end_offset - self.next_offset
    }
}

/// A memfd of exactly `bytes` with its size sealed, and its mapping.
fn sealed_map(bytes: u64, flags: MemfdFlags) -> Result<(OwnedFd, ArenaMap), ArenaError> {
    let system = |step| move |errno| ArenaError::System { step, bytes, errno };
    let fd = memfd_create("orbitkv-arena", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | flags)
        .map_err(system("memfd_create"))?;
    ftruncate(&fd, bytes).map_err(system("ftruncate"))?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).map_err(system("sealing"))?;
    let map = ArenaMap::map(&fd, bytes as usize).map_err(system("mmap"))?;
    Ok((fd, map))
}

fn populate(map: &ArenaMap, bytes: u64, progress: &mut dyn FnMut(u64)) -> Result<(), Errno> {
    for offset in (0..bytes as usize).step_by(POPULATE_STEP_BYTES) {
        let step = POPULATE_STEP_BYTES.min(bytes as usize - offset);
        map.populate_write(offset, step)?;
        progress((offset + step) as u64);
    }
    Ok(())
}

/// Populates by transparent huge pages and verifies in smaps that all whole ones are mapped as
/// such; the reason if the kernel does not give them.
fn populate_thp(map: &ArenaMap, bytes: u64, progress: &mut dyn FnMut(u64)) -> Result<(), String> {
    let whole_bytes = bytes as usize / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if whole_bytes == 0 {
        return Err("it is smaller than a huge page".into());
    }
    let setting = procfs::chosen_word(SHMEM_ENABLED).unwrap_or_else(|| "absent".into());
    if setting == "deny" {
        return Err("shmem_enabled is `deny`".into());
    }
    map.advise_huge();
    for offset in (0..whole_bytes).step_by(POPULATE_STEP_BYTES) {
        let step = POPULATE_STEP_BYTES.min(whole_bytes - offset);
        map.populate_huge(offset, step)
            .map_err(|errno| format!("MADV_COLLAPSE failed with `{errno}`, shmem_enabled is `{setting}`"))?;
        progress((offset + step) as u64);
    }
    if whole_bytes < bytes as usize {
        map.populate_write(whole_bytes, bytes as usize - whole_bytes)
            .map_err(|errno| format!("populating the tail failed with `{errno}`"))?;
        progress(bytes);
    }
    let huge_bytes = map.transparent_huge_bytes();
    if huge_bytes < whole_bytes as u64 {
        return Err(format!(
            "only {huge_bytes} of {bytes} bytes are mapped by huge pages, shmem_enabled is `{setting}`"
        ));
    }
    Ok(())
}

#[cfg(test)]
#[path = "arena_tests.rs"]
mod tests;
