//! Names, credentials, death of the peer and travelling descriptors, on real sockets.

use super::*;
use crate::arena::{Arena, ArenaView, PagePreference, ViewPopulate};
use crate::testing::directory_on_disk;
use crate::wake::wait_readable;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

fn accept(socket: &EngineSocket) -> UnixStream {
    assert!(wait_readable([socket.listener().as_fd()], Some(Duration::from_secs(20)))[0]);
    socket.listener().accept().unwrap().0
}

fn memory_file(text: &[u8]) -> OwnedFd {
    let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&fd, text).unwrap();
    fd
}

#[test]
fn the_socket_is_private_listens_and_goes_with_its_owner() {
    let directory = directory_on_disk();
    let path = directory.path().join("run").join("engine.sock");
    let socket = EngineSocket::bind(&path, Reach::OwnUser).unwrap();
    assert_eq!(socket.path(), path);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
    let none = socket.listener().accept().unwrap_err();
    assert_eq!(none.kind(), io::ErrorKind::WouldBlock, "nonblocking");
    let client = UnixStream::connect(&path).unwrap();
    let peer = peer_credentials(accept(&socket).as_fd()).unwrap();
    assert_eq!(peer.pid, std::process::id());
    assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
    assert_eq!(peer.gid, rustix::process::getegid().as_raw());
    drop((client, socket));
    assert!(!path.exists());
    EngineSocket::bind(&path, Reach::OwnUser).unwrap();
}

#[test]
fn a_name_in_use_is_refused_and_stays_in_use() {
    let directory = directory_on_disk();
    let path = directory.path().join("engine.sock");
    let socket = EngineSocket::bind(&path, Reach::OwnUser).unwrap();
    let own = std::process::id();
    let error = EngineSocket::bind(&path, Reach::OwnUser).unwrap_err();
    assert!(matches!(error, EngineSocketError::InUse { holder: Some(pid), .. } if pid == own), "{error}");
    // A program that knows nothing of the lock: its listener answers.
    let foreign = directory.path().join("foreign.sock");
    let listener = UnixListener::bind(&foreign).unwrap();
    let error = EngineSocket::bind(&foreign, Reach::OwnUser).unwrap_err();
    assert!(matches!(error, EngineSocketError::InUse { holder: Some(pid), .. } if pid == own), "{error}");
    drop(listener);
    EngineSocket::bind(&foreign, Reach::OwnUser).unwrap();
    UnixStream::connect(&path).unwrap();
    drop(socket);
}

#[test]
fn a_stale_socket_is_replaced_and_anything_else_is_not() {
    let directory = directory_on_disk();
    let path = directory.path().join("engine.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "a listener leaves its name behind");
    let socket = EngineSocket::bind(&path, Reach::OwnUser).unwrap();
    UnixStream::connect(&path).unwrap();
    // Whoever replaces our name keeps it when we go.
    fs::remove_file(&path).unwrap();
    fs::write(&path, b"somebody else's").unwrap();
    drop(socket);
    assert_eq!(fs::read(&path).unwrap(), b"somebody else's");
    assert!(matches!(EngineSocket::bind(&path, Reach::OwnUser), Err(EngineSocketError::NotASocket { .. })));
    assert_eq!(fs::read(&path).unwrap(), b"somebody else's");
}

#[test]
fn a_path_that_fits_no_address_is_named() {
    let directory = directory_on_disk();
    let path = directory.path().join("x".repeat(108));
    let error = EngineSocket::bind(&path, Reach::OwnUser).unwrap_err();
    assert!(matches!(error, EngineSocketError::PathTooLong { .. }), "{error}");
}

#[test]
fn a_directory_that_others_may_change_is_refused() {
    let directory = directory_on_disk();
    let parent = directory.path().join("run");
    fs::create_dir(&parent).unwrap();
    let path = parent.join("engine.sock");
    for (mode, is_taken) in
        [(0o700, true), (0o755, true), (0o1777, true), (0o777, false), (0o770, false), (0o702, false)]
    {
        fs::set_permissions(&parent, Permissions::from_mode(mode)).unwrap();
        match EngineSocket::bind(&path, Reach::OwnUser) {
            Ok(_) => assert!(is_taken, "{mode:o}"),
            Err(EngineSocketError::UnsafeDirectory { path, mode: found, .. }) => {
                assert!(!is_taken, "{mode:o}");
                assert_eq!((path.as_path(), found), (parent.as_path(), mode));
            }
            Err(other) => panic!("{mode:o}: {other}"),
        }
        let lock = lock_path(&path);
        assert_eq!(lock.exists(), is_taken, "a refused directory gets nothing");
        let _ = fs::remove_file(lock);
    }
}

#[test]
fn a_directory_or_link_of_another_user_is_refused() {
    let directory = directory_on_disk();
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(directory.path(), &link).unwrap();
    let own = fs::metadata(directory.path()).unwrap().uid();
    check_directory(&link, own).unwrap();
    if own == 0 {
        // Root's are taken by everybody; somebody else's by nobody but them.
        check_directory(directory.path(), 1_000).unwrap();
        std::os::unix::fs::lchown(&link, Some(1_000), None).unwrap();
        check_directory(&link, 1_000).unwrap();
        let error = check_directory(&link, 1_001).unwrap_err();
        assert!(
            matches!(error, EngineSocketError::UnsafeDirectory { owner: 1_000, own: 1_001, .. }),
            "{error}"
        );
    } else {
        let error = check_directory(directory.path(), own + 1).unwrap_err();
        assert!(matches!(error, EngineSocketError::UnsafeDirectory { owner, .. } if owner == own), "{error}");
    }
}

#[test]
fn descriptors_travel_with_bytes() {
    let (left, right) = UnixStream::pair().unwrap();
    let (arena, _) = Arena::create(1 << 20, PagePreference::Small).unwrap();
    arena.copy_in(100, b"shared");
    assert_eq!(send_with_fds(left.as_fd(), b"hello", &[arena.fd()]).unwrap(), 5);
    let mut buffer = [0; 16];
    let (bytes, mut fds) = recv_with_fds(right.as_fd(), &mut buffer).unwrap();
    assert_eq!((&buffer[..bytes], fds.len()), (&b"hello"[..], 1));
    assert!(rustix::io::fcntl_getfd(&fds[0]).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    let view = ArenaView::map(fds.pop().unwrap(), 1 << 20, ViewPopulate::Lazy).unwrap();
    assert_eq!(view.bytes(100, 6).unwrap(), b"shared");
    // Without descriptors, then the end of the stream.
    assert_eq!(send_with_fds(left.as_fd(), b"plain", &[]).unwrap(), 5);
    let (bytes, fds) = recv_with_fds(right.as_fd(), &mut buffer).unwrap();
    assert_eq!((&buffer[..bytes], fds.len()), (&b"plain"[..], 0));
    drop(left);
    assert_eq!(recv_with_fds(right.as_fd(), &mut buffer).unwrap().0, 0);
    let gone = send_with_fds(right.as_fd(), b"x", &[]).unwrap_err();
    assert_eq!(gone.kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn a_nonblocking_socket_says_so() {
    let (left, right) = UnixStream::pair().unwrap();
    right.set_nonblocking(true).unwrap();
    let error = recv_with_fds(right.as_fd(), &mut [0; 4]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    left.set_nonblocking(true).unwrap();
    let big = vec![0; 1 << 20];
    let sent = send_with_fds(left.as_fd(), &big, &[]).unwrap();
    assert!(sent > 0 && sent < big.len(), "a full socket takes a part: {sent}");
    let full = loop {
        if let Err(error) = send_with_fds(left.as_fd(), &big, &[]) {
            break error;
        }
    };
    assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn too_many_descriptors_are_an_error_and_none_leaks() {
    let (left, right) = UnixStream::pair().unwrap();
    let file = memory_file(b"x");
    for count in [MESSAGE_FDS_MAX, MESSAGE_FDS_MAX + 1, MESSAGE_FDS_MAX + 2, 64] {
        // A peer that is not bound by our own sending function.
        let fds = vec![file.as_fd(); count];
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(&left, &[IoSlice::new(b"y")], &mut control, SendFlags::empty()).unwrap();
        let received = recv_with_fds(right.as_fd(), &mut [0; 4]);
        match received {
            Ok((1, fds)) => assert_eq!((count, fds.len()), (MESSAGE_FDS_MAX, MESSAGE_FDS_MAX)),
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                assert!(count > MESSAGE_FDS_MAX);
                assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            }
        }
        // All copies are closed: only our own descriptor refers to this file. Other tests
        // of this process have descriptors too, but none of this inode.
        assert_eq!(descriptors_of(&file), 1, "{count} sent");
    }
}

fn descriptors_of(file: &OwnedFd) -> usize {
    let wanted = rustix::fs::fstat(file).unwrap();
    fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| fs::metadata(entry.ok()?.path()).ok())
        .filter(|found| (found.dev(), found.ino()) == (wanted.st_dev, wanted.st_ino))
        .count()
}

#[test]
fn the_pidfd_tells_the_peers_death_and_nothing_before() {
    let directory = directory_on_disk();
    let path = directory.path().join("engine.sock");
    let socket = EngineSocket::bind(&path, Reach::OwnUser).unwrap();
    // The child connects and keeps the connection: python is on every machine that tests us,
    // and this process cannot fork safely with its threads.
    let mut child = Command::new("python3")
        .args(["-c", "import socket,sys,time; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); time.sleep(600)"])
        .arg(&path)
        .spawn()
        .expect("python3 is there");
    let connection = accept(&socket);
    assert_eq!(peer_credentials(connection.as_fd()).unwrap().pid, child.id());
    let pidfd = peer_pidfd(connection.as_fd()).unwrap();
    assert!(!has_exited(&pidfd));
    assert!(!wait_readable([pidfd.as_fd()], Some(Duration::from_millis(30)))[0]);
    assert!(rustix::io::fcntl_getfd(&pidfd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    child.kill().unwrap();
    assert!(wait_readable([pidfd.as_fd()], Some(Duration::from_secs(20)))[0]);
    assert!(has_exited(&pidfd));
    child.wait().unwrap();
    assert!(has_exited(&pidfd), "still after the number may be used again");
}

#[test]
fn a_closed_connection_of_a_living_peer_is_no_death() {
    let directory = directory_on_disk();
    let socket = EngineSocket::bind(&directory.path().join("engine.sock"), Reach::OwnUser).unwrap();
    let client = UnixStream::connect(socket.path()).unwrap();
    let connection = accept(&socket);
    let pidfd = peer_pidfd(connection.as_fd()).unwrap();
    drop(client);
    assert!(wait_readable([connection.as_fd()], Some(Duration::from_secs(20)))[0]);
    assert!(!has_exited(&pidfd), "this process lives");
}
