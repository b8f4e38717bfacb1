//! The engine's end of the arena: a mapping of a descriptor that came over a socket.
//!
//! The descriptor is not believed: a file that is shorter than announced, or that can still be
//! shrunk, would kill this process by SIGBUS at some later access, so size and seals are checked
//! before anything is mapped. The sharing contract is that of [`crate::arena`].

use crate::arena_map::{ArenaMap, POPULATE_STEP_BYTES};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// When the pages of the view are mapped. They exist already (the daemon allocated them); this
/// is about the page faults of the first touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ViewPopulate {
    /// At the first touch of each page.
    Lazy,
    /// Before [`ArenaView::map`] returns.
    AtMap,
    /// On a thread of its own, which ends early if the view is dropped.
    Background,
}

/// Why a descriptor was refused as an arena.
#[derive(Debug, thiserror::Error)]
pub enum ArenaViewError {
    /// Not a memfd, or one without sealing.
    #[error("the arena descriptor cannot carry seals ({errno}): it is no memfd of a node")]
    NotSealable {
        /// The kernel's answer.
        errno: Errno,
    },
    /// The size could change under us, or writing is sealed off.
    #[error("the arena descriptor has seals {found:?}; wanted are exactly {wanted:?}")]
    Seals {
        /// The seals it has.
        found: SealFlags,
        /// The seals it must have.
        wanted: SealFlags,
    },
    /// Another size than the daemon announced.
    #[error("the arena descriptor has {found_bytes} bytes where {expected_bytes} were announced")]
    Size {
        /// Bytes of the file.
        found_bytes: u64,
        /// Announced bytes.
        expected_bytes: u64,
    },
    /// A system call failed.
    #[error("{step} for an arena view of {bytes} bytes failed: {errno}")]
    System {
        /// What was attempted.
        step: &'static str,
        /// Announced bytes.
        bytes: u64,
        /// The kernel's answer.
        errno: Errno,
    },
}

/// A range that is not inside the arena: an extent of another arena or a daemon's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("range {offset}+{bytes} is outside the arena of {arena_bytes} bytes")]
pub struct RangeError {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Length of the arena in bytes.
    pub arena_bytes: u64,
}

const WANTED_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Length of a memfd whose size is sealed.
pub(crate) fn sealed_bytes(fd: &OwnedFd) -> Result<u64, ArenaViewError> {
    let found = fcntl_get_seals(fd).map_err(|errno| ArenaViewError::NotSealable { errno })?;
    // F_SEAL_EXEC says nothing about size or contents and may be set by the machine's policy.
    if found - SealFlags::EXEC != WANTED_SEALS {
        return Err(ArenaViewError::Seals { found, wanted: WANTED_SEALS });
    }
    // Only now, with the size sealed, does the answer stay true.
    let status = fstat(fd).map_err(|errno| ArenaViewError::System { step: "fstat", bytes: 0, errno })?;
    Ok(status.st_size as u64)
}

/// A mapped arena. The descriptor is closed once mapped; a fork does not inherit the mapping.
#[derive(Debug)]
pub struct ArenaView {
    map: Arc<ArenaMap>,
    background: Option<Background>,
}

#[derive(Debug)]
struct Background {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl ArenaView {
    /// Checks that `fd` is a size-sealed memfd of `expected_bytes` and maps it.
    pub fn map(fd: OwnedFd, expected_bytes: u64, populate: ViewPopulate) -> Result<Self, ArenaViewError> {
        let system = |step| move |errno| ArenaViewError::System { step, bytes: expected_bytes, errno };
        let found_bytes = sealed_bytes(&fd)?;
        if found_bytes != expected_bytes || expected_bytes == 0 {
            return Err(ArenaViewError::Size { found_bytes, expected_bytes });
        }
        let length = usize::try_from(expected_bytes).map_err(|_| system("mmap")(Errno::NOMEM))?;
        let map = Arc::new(ArenaMap::map(&fd, length).map_err(system("mmap"))?);
        map.advise_huge();
        let background = match populate {
            ViewPopulate::Lazy => None,
            ViewPopulate::AtMap => {
                populate_steps(&map, &AtomicBool::new(false)).map_err(system("populating"))?;
                None
            }
            ViewPopulate::Background => Some(Background::start(map.clone()).map_err(system("thread"))?),
        };
        Ok(Self { map, background })
    }

    /// Length in bytes.
    pub fn bytes_total(&self) -> u64 {
        self.map.bytes() as u64
    }

    /// Bytes this process maps by transparent huge pages now; walks the page tables, so not for hot paths.
    pub fn transparent_huge_bytes(&self) -> u64 {
        self.map.transparent_huge_bytes()
    }

    /// Copies `source` to `offset`, which the caller must have reserved.
    pub fn copy_in(&self, offset: u64, source: &[u8]) -> Result<(), RangeError> {
        self.check(offset, source.len() as u64)?;
        self.map.copy_in(offset, source);
        Ok(())
    }

    /// Copies from `offset`, on which the caller must have a lease, into `target`.
    pub fn copy_out(&self, offset: u64, target: &mut [u8]) -> Result<(), RangeError> {
        self.check(offset, target.len() as u64)?;
        self.map.copy_out(offset, target);
        Ok(())
    }

    /// The bytes in place. The caller must have a lease on them for as long as it looks: without
    /// one they may change under the reference.
    pub fn bytes(&self, offset: u64, bytes: u64) -> Result<&[u8], RangeError> {
        self.check(offset, bytes)?;
        Ok(self.map.slice(offset, bytes))
    }

    /// The bytes in place for writing; the caller must have reserved them. For several threads
    /// writing at once there is [`Self::copy_in`]. Waits for a background population to stop,
    /// as that shares the mapping.
    pub fn bytes_mut(&mut self, offset: u64, bytes: u64) -> Result<&mut [u8], RangeError> {
        self.check(offset, bytes)?;
        self.stop_background();
        let map = Arc::get_mut(&mut self.map).expect("nobody but the background thread shares the mapping");
        Ok(map.slice_mut(offset, bytes))
    }

    fn check(&self, offset: u64, bytes: u64) -> Result<(), RangeError> {
        if self.map.contains(offset, bytes) {
            return Ok(());
        }
        Err(RangeError { offset, bytes, arena_bytes: self.bytes_total() })
    }

    fn stop_background(&mut self) {
        if let Some(background) = self.background.take() {
            background.stop.store(true, Ordering::Relaxed);
            background.thread.join().expect("the populating thread does not panic");
        }
    }
}

impl Drop for ArenaView {
    fn drop(&mut self) {
        self.stop_background();
    }
}

impl Background {
    fn start(map: Arc<ArenaMap>) -> Result<Self, Errno> {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let thread = std::thread::Builder::new()
            .name("arena-populate".into())
            .spawn(move || {
                // A page that cannot be populated now is mapped at its first touch instead.
                let _ = populate_steps(&map, &seen);
            })
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        Ok(Self { stop, thread })
    }
}

/// Writable at once: a page mapped for reading would fault again at the first store.
fn populate_steps(map: &ArenaMap, stop: &AtomicBool) -> Result<(), Errno> {
    for offset in (0..map.bytes()).step_by(POPULATE_STEP_BYTES) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        map.populate_write(offset, POPULATE_STEP_BYTES.min(map.bytes() - offset))?;
    }
    Ok(())
}
