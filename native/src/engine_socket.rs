//! What the engine channel and peer sockets need of Unix sockets: a name that only one node holds, the peer's
//! identity, and descriptors that travel with bytes.

use crate::ssd_file::{LockFileError, lock_file};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, recvmsg,
    sendmsg, socket_with,
};
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Descriptors that one message may carry. The channel sends one (the arena); the rest is room.
pub const MESSAGE_FDS_MAX: usize = 4;

/// Longest path that fits a socket address, its final zero byte counted out.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

const LISTEN_BACKLOG: i32 = 128;

/// Why an engine socket could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum EngineSocketError {
    /// Another node holds the name.
    #[error(
        "engine socket {} is in use by {}; stop that node or choose another --engine-socket", path.display(),
        holder.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
    )]
    InUse {
        /// The socket.
        path: PathBuf,
        /// The holder's process id, where known.
        holder: Option<u32>,
    },
    /// Something that is no socket has the name.
    #[error("{} exists and is no socket; remove it or choose another --engine-socket", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// A socket address cannot hold the path.
    #[error(
        "engine socket path {} has {} bytes and a socket address holds {SOCKET_PATH_BYTES_MAX}; choose a \
         shorter --engine-socket", path.display(), path.as_os_str().len()
    )]
    PathTooLong {
        /// The path.
        path: PathBuf,
    },
    /// Another user could put a socket of theirs in the place of ours.
    #[error(
        "the directory {} of the engine socket belongs to uid {owner} with mode {mode:04o}, so another user could put \
         another socket in its place; choose an --engine-socket in a directory that belongs to uid {own} or root and \
         that others cannot write (`chmod go-w`), or remove it", path.display()
    )]
    UnsafeDirectory {
        /// The directory, or the symbolic link that leads to it.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Its permission bits.
        mode: u32,
        /// Our own effective user id.
        own: u32,
    },
    /// A step failed for another reason.
    #[error("{step} {} failed: {source}", path.display())]
    System {
        /// What was attempted.
        step: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// Whose engines can reach the socket at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The node's own user.
    OwnUser,
    /// Other users too; the node checks who they are.
    Others,
}

/// A bound, listening engine socket. The name is removed when this is dropped; after a kill it
/// stays and the next bind removes it.
#[derive(Debug)]
pub struct EngineSocket {
    listener: UnixListener,
    path: PathBuf,
    inode: u64,
    /// Held while the name is ours; its file stays beside the socket for good.
    _lock: File,
}

impl EngineSocket {
    /// Binds `path` and listens, nonblocking. For our own user alone the socket has mode 0600, and a
    /// parent directory that does not exist yet is made with 0700; `Others` opens both as far as
    /// connecting needs, and leaves it to the caller to check each peer's uid. A socket left by a dead
    /// node is removed: only with the lock beside it held, and only if nobody answers.
    ///
    /// The directory must be ours or root's and not for others to write, unless it is sticky: who could
    /// rename our socket could serve our engines. Directories above it are not looked at.
    pub fn bind(path: &Path, reach: Reach) -> Result<Self, EngineSocketError> {
        let (directory_mode, socket_mode) = match reach {
            Reach::OwnUser => (0o700, 0o600),
            Reach::Others => (0o711, 0o666),
        };
        let system = |step| {
            let path = path.to_owned();
            move |source: io::Error| EngineSocketError::System { step, path, source }
        };
        if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            return Err(EngineSocketError::PathTooLong { path: path.to_owned() });
        }
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            DirBuilder::new()
                .recursive(true)
                .mode(directory_mode)
                .create(parent)
                .map_err(system("making the directory of engine socket"))?;
            check_directory(parent, rustix::process::geteuid().as_raw())?;
        }
        let lock = lock_file(&lock_path(path)).map_err(|error| match error {
            LockFileError::Held { holder } => EngineSocketError::InUse { path: path.to_owned(), holder },
            LockFileError::System { source } => system("locking the name of engine socket")(source),
        })?;
        remove_stale(path)?;
        let errno = |step| move |errno: Errno| system(step)(errno.into());
        let address = SocketAddrUnix::new(path).map_err(errno("naming engine socket"))?;
        let socket = stream_socket().map_err(errno("making engine socket"))?;
        bind(&socket, &address).map_err(errno("binding engine socket"))?;
        // Nobody can connect between bind and listen, so the mode is right before anybody could.
        fs::set_permissions(path, Permissions::from_mode(socket_mode))
            .map_err(system("setting the mode of engine socket"))?;
        listen(&socket, LISTEN_BACKLOG).map_err(errno("listening on engine socket"))?;
        let inode = fs::symlink_metadata(path).map_err(system("looking at engine socket"))?.ino();
        Ok(Self { listener: UnixListener::from(socket), path: path.to_owned(), inode, _lock: lock })
    }

    /// The listener, nonblocking; a reactor takes `listener().try_clone()`.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Where it is bound.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for EngineSocket {
    fn drop(&mut self) {
        // Whoever replaced the name keeps it.
        if fs::symlink_metadata(&self.path).is_ok_and(|metadata| metadata.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

/// Refuses a directory in which a user other than `own` and root could replace our socket. A link that
/// leads to it must be as trustworthy as the directory: it may have been there before us.
fn check_directory(path: &Path, own: u32) -> Result<(), EngineSocketError> {
    let system = |source| EngineSocketError::System {
        step: "looking at the directory of engine socket",
        path: path.to_owned(),
        source,
    };
    let refuse = |metadata: &fs::Metadata| EngineSocketError::UnsafeDirectory {
        path: path.to_owned(),
        owner: metadata.uid(),
        mode: metadata.mode() & 0o7777,
        own,
    };
    let is_trusted = |metadata: &fs::Metadata| metadata.uid() == own || metadata.uid() == 0;
    let link = fs::symlink_metadata(path).map_err(system)?;
    if !is_trusted(&link) {
        return Err(refuse(&link));
    }
    let directory = fs::metadata(path).map_err(system)?;
    let others_write = directory.mode() & 0o022 != 0 && directory.mode() & 0o1000 == 0;
    if !is_trusted(&directory) || others_write {
        return Err(refuse(&directory));
    }
    Ok(())
}

fn stream_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Connects to a socket of another node on this host, nonblocking; it is there at once or not at all.
///
/// # Errors
/// If nobody listens there, or those who wait are too many.
pub fn connect_to(path: &Path) -> io::Result<OwnedFd> {
    let socket = stream_socket()?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Removes a socket that nobody listens on. The caller holds the lock beside it.
fn remove_stale(path: &Path) -> Result<(), EngineSocketError> {
    let system = |step| {
        let path = path.to_owned();
        move |source: io::Error| EngineSocketError::System { step, path, source }
    };
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(system("looking at engine socket")(error)),
    };
    if !metadata.file_type().is_socket() {
        return Err(EngineSocketError::NotASocket { path: path.to_owned() });
    }
    let errno = |step| move |errno: Errno| system(step)(errno.into());
    let address = SocketAddrUnix::new(path).map_err(errno("naming engine socket"))?;
    let probe = stream_socket().map_err(errno("making a socket to probe"))?;
    match connect(&probe, &address) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(system("removing stale engine socket")),
        // A killed node's listener may outlive it for a moment: a ring that polled it holds it until the
        // kernel has taken the ring down.
        Ok(()) if peer_is_gone(&probe) => {
            fs::remove_file(path).map_err(system("removing stale engine socket"))
        }
        // A full backlog (AGAIN) is somebody, too.
        Ok(()) | Err(Errno::AGAIN) => {
            let holder = peer_credentials(probe.as_fd()).ok().map(|peer| peer.pid).filter(|&pid| pid != 0);
            Err(EngineSocketError::InUse { path: path.to_owned(), holder })
        }
        Err(other) => Err(errno("probing engine socket")(other)),
    }
}

/// Whether the process that listens has ended already.
fn peer_is_gone(probe: &OwnedFd) -> bool {
    match peer_pidfd(probe.as_fd()) {
        Ok(process) => has_exited(&process),
        // Older kernels have no descriptor for a process that has been reaped.
        Err(error) => matches!(Errno::from_io_error(&error), Some(Errno::SRCH | Errno::INVAL)),
    }
}

/// Who is at the other end, as the kernel recorded it at connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Process id in our pid namespace; 0 for a process that our namespace does not see. May be another process by now: prove death by
    /// [`peer_pidfd`], never by this number.
    pub pid: u32,
}

/// Credentials of a connected Unix socket's peer.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<PeerCredentials> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `peer`, both live. The safe wrapper takes
    // the pid for nonzero, which it is not for a process of a pid namespace that we cannot see.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(PeerCredentials { uid: peer.uid, gid: peer.gid, pid: peer.pid as u32 })
}

/// A pidfd of the peer process (Linux 6.5 and later): readable once the process has ended,
/// immune to reuse of its number. Fails if the peer is gone and reaped already on kernels that
/// keep no record of it.
pub fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `fd`, both live. rustix does not
    // know this option, hence libc.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that the kernel has just made for us (close-on-exec) and that
    // nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends bytes, and with the first of them the descriptors (at most [`MESSAGE_FDS_MAX`]).
/// Returns how many bytes went; if that is less than all, the rest goes without descriptors.
/// A closed peer is an error, never a signal.
pub fn send_with_fds(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    assert!(fds.len() <= MESSAGE_FDS_MAX, "a message carries at most {MESSAGE_FDS_MAX} descriptors");
    assert!(!bytes.is_empty(), "descriptors travel with at least one byte");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)), "the space is for as many");
    }
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Receives bytes and the descriptors that came with them, all close-on-exec. 0 bytes is the
/// end of the stream. More than [`MESSAGE_FDS_MAX`] descriptors are an error, and all are closed.
pub fn recv_with_fds(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let message = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
    let mut fds = Vec::new();
    for ancillary in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = ancillary {
            fds.extend(received);
        }
    }
    // The padding of the space may have let one more through than was meant.
    if message.flags.contains(ReturnFlags::CTRUNC) || fds.len() > MESSAGE_FDS_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("the peer sent more than {MESSAGE_FDS_MAX} descriptors in one message"),
        ));
    }
    Ok((message.bytes, fds))
}

/// True once the process of a pidfd has ended.
pub fn has_exited(pidfd: &OwnedFd) -> bool {
    crate::wake::wait_readable([pidfd.as_fd()], Some(std::time::Duration::ZERO))[0]
}

#[cfg(test)]
#[path = "engine_socket_tests.rs"]
mod tests;
