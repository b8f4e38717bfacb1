//! The SSD tier's data file and the lock of the data directory.
//!
//! The file is made anew at each start (the tier is empty then), allocated whole, and opened
//! for direct I/O; whatever the filesystem cannot give is refused here with the remedy, not
//! found out later by a transfer.

use orbitkv_wire::bounds::EXTENT_ALIGN_BYTES;
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags, StatxFlags, fallocate, flock, fstat,
    fstatfs, fstatvfs, ftruncate, lstat, open, statx, unlink,
};
use rustix::io::Errno;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

const LOCK_NAME: &str = "lock";

/// Why the data directory could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Another process holds it.
    #[error(
        "data directory {} is in use by {}; stop that node or choose another --data-dir", path.display(),
        holder.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
    )]
    Held {
        /// The directory.
        path: PathBuf,
        /// The holder's process id, if its lock file says one.
        holder: Option<u32>,
    },
    /// The directory or its lock file cannot be made or opened.
    #[error("{step} {} failed: {source}", path.display())]
    System {
        /// What was attempted.
        step: &'static str,
        /// The directory or file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// The exclusive right to a data directory, until dropped or the process ends.
#[derive(Debug)]
pub struct DataDirLock {
    directory: PathBuf,
    _file: File,
}

impl DataDirLock {
    /// Makes `directory` (mode 0700) if it does not exist and locks it.
    pub fn acquire(directory: &Path) -> Result<Self, DataDirError> {
        let system = |step, path: &Path| {
            let path = path.to_owned();
            move |source| DataDirError::System { step, path, source }
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(system("making the data directory", directory))?;
        let path = directory.join(LOCK_NAME);
        let file = lock_file(&path).map_err(|error| match error {
            LockFileError::Held { holder } => DataDirError::Held { path: directory.to_owned(), holder },
            LockFileError::System { source } => system("locking", &path)(source),
        })?;
        Ok(Self { directory: directory.to_owned(), _file: file })
    }

    /// The locked directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

pub(crate) enum LockFileError {
    Held { holder: Option<u32> },
    System { source: io::Error },
}

/// Opens or makes a lock file, locks it and writes our process id into it. The file is never
/// removed: removing it would let two processes lock two files of one name.
pub(crate) fn lock_file(path: &Path) -> Result<File, LockFileError> {
    let system = |errno: Errno| LockFileError::System { source: errno.into() };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut file = File::from(open(path, flags, Mode::RUSR | Mode::WUSR).map_err(system)?);
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let mut text = String::new();
            let _ = file.read_to_string(&mut text);
            return Err(LockFileError::Held { holder: text.trim().parse().ok() });
        }
        Err(errno) => return Err(system(errno)),
    }
    let written =
        file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
    written.map_err(|source| LockFileError::System { source })?;
    Ok(file)
}

/// Why the data file could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SsdFileError {
    /// The size is zero or not a multiple of a page.
    #[error("SSD file size {bytes} must be a positive multiple of {EXTENT_ALIGN_BYTES} bytes")]
    Size {
        /// Asked bytes.
        bytes: u64,
    },
    /// The filesystem has no room, or a quota or file size limit is reached.
    #[error(
        "{} cannot have {bytes} bytes ({source}); its filesystem has {available_bytes} bytes available: lower \
         --ssd, free space, or put --data-dir on a larger filesystem", path.display()
    )]
    NoSpace {
        /// The file.
        path: PathBuf,
        /// Asked bytes.
        bytes: u64,
        /// Bytes an unprivileged process could still take.
        available_bytes: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// The filesystem cannot transfer directly, or not in units of 4,096 bytes.
    #[error(
        "{} is on {filesystem}, {reason}: put --data-dir on a local disk with ext4 or xfs, or run without --ssd",
        path.display()
    )]
    NoDirectIo {
        /// The file.
        path: PathBuf,
        /// Name of the filesystem, as far as known.
        filesystem: String,
        /// What it lacks.
        reason: String,
    },
    /// A step failed for another reason.
    #[error("{step} {} failed: {source}", path.display())]
    System {
        /// What was attempted.
        step: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// The data file: allocated, empty of meaning, open for direct I/O.
#[derive(Debug)]
pub struct SsdFile {
    fd: OwnedFd,
    path: PathBuf,
    bytes: u64,
}

impl SsdFile {
    /// Makes `name` in the locked directory with `bytes` (a positive multiple of 4,096)
    /// allocated. A file of that name loses it first and is never written to: whoever still has it open
    /// keeps what it held.
    pub fn create(lock: &DataDirLock, name: &str, bytes: u64) -> Result<Self, SsdFileError> {
        if bytes == 0 || !bytes.is_multiple_of(EXTENT_ALIGN_BYTES) || i64::try_from(bytes).is_err() {
            return Err(SsdFileError::Size { bytes });
        }
        let path = lock.directory.join(name);
        let system = |step| {
            let path = path.clone();
            move |errno: Errno| SsdFileError::System { step, path, source: errno.into() }
        };
        // Anything but a file is somebody's intention: making ours then fails.
        if lstat(&path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile) {
            unlink(&path).map_err(system("removing the old"))?;
        }
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        // First without O_DIRECT, so that a filesystem that refuses it can be asked its name.
        let made = open(&path, flags | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR);
        let plain = made.map_err(system("making"))?;
        let fd = open(&path, flags | OFlags::DIRECT, Mode::empty()).map_err(|errno| match errno {
            Errno::INVAL | Errno::OPNOTSUPP => no_direct_io(&path, plain.as_fd(), "which has no direct I/O"),
            errno => system("opening for direct I/O")(errno),
        })?;
        // tmpfs of recent kernels takes O_DIRECT and then copies through memory.
        if filesystem(plain.as_fd()) == "tmpfs" {
            return Err(no_direct_io(&path, plain.as_fd(), "which is memory and no disk"));
        }
        if let Some(align) = direct_io_align_bytes(fd.as_fd())
            && !EXTENT_ALIGN_BYTES.is_multiple_of(align)
        {
            let reason = match align {
                0 => {
                    "which has no direct I/O for this file (encrypted, compressed or journalled data?)".into()
                }
                align => format!("whose direct I/O needs an alignment of {align} bytes"),
            };
            return Err(no_direct_io(&path, plain.as_fd(), &reason));
        }
        allocate(fd.as_fd(), bytes).map_err(|errno| match errno {
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => {
                // What fallocate got before it failed must not stay taken.
                let _ = ftruncate(&fd, 0);
                let available_bytes = available_bytes(fd.as_fd()).unwrap_or(0);
                SsdFileError::NoSpace { path: path.clone(), bytes, available_bytes, source: errno.into() }
            }
            Errno::OPNOTSUPP => no_direct_io(&path, plain.as_fd(), "which cannot allocate a file in advance"),
            errno => system("allocating")(errno),
        })?;
        Ok(Self { fd, path, bytes })
    }

    /// Length in bytes as made.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where it was made.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The descriptor, for the ring.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// True if no name leads to the file any more: it still works, and its space is gone when
    /// the process ends, but whoever deleted it wanted the space now.
    pub fn is_deleted(&self) -> io::Result<bool> {
        Ok(fstat(&self.fd)?.st_nlink == 0)
    }
}

/// Allocates the whole file. What is obviously too much is refused before the filesystem
/// tries: it would fill the disk first, and everybody else on it would see that.
fn allocate(fd: BorrowedFd<'_>, bytes: u64) -> Result<(), Errno> {
    if available_bytes(fd).is_some_and(|available| available < bytes) {
        return Err(Errno::NOSPC);
    }
    loop {
        match fallocate(fd, FallocateFlags::empty(), 0, bytes) {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

/// What the filesystem of a file still has for an unprivileged process.
fn available_bytes(fd: BorrowedFd<'_>) -> Option<u64> {
    let stat = fstatvfs(fd).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Alignment of offsets and lengths for direct I/O; 0 is "none possible", `None` "the kernel
/// or filesystem does not say".
fn direct_io_align_bytes(fd: BorrowedFd<'_>) -> Option<u64> {
    let stat = statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let said = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN);
    said.then(|| u64::from(stat.stx_dio_offset_align.max(stat.stx_dio_mem_align)))
}

fn no_direct_io(path: &Path, fd: BorrowedFd<'_>, reason: &str) -> SsdFileError {
    SsdFileError::NoDirectIo { path: path.to_owned(), filesystem: filesystem(fd), reason: reason.to_owned() }
}

fn filesystem(fd: BorrowedFd<'_>) -> String {
    let Ok(stat) = fstatfs(fd) else { return "an unknown filesystem".to_owned() };
    let magic = stat.f_type as u32;
    let names = [
        (0x0102_1994, "tmpfs"),
        (0x8584_58f6, "ramfs"),
        (0x794c_7630, "overlayfs"),
        (0x0000_ef53, "ext4"),
        (0x5846_5342, "xfs"),
        (0x9123_683e, "btrfs"),
        (0x2fc1_2fc1, "zfs"),
        (0x0000_6969, "nfs"),
        (0x6573_5546, "fuse"),
        (0x0102_1997, "9p"),
    ];
    match names.iter().find(|(known, _)| *known == magic) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("a filesystem of type {magic:#x}"),
    }
}

#[cfg(test)]
#[path = "ssd_file_tests.rs"]
mod tests;
