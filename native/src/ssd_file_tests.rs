//! The data file and the directory's lock on real filesystems, a tmpfs among them.

use super::*;
use crate::testing::directory_on_disk;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::{Command, Stdio};

const MIB: u64 = 1 << 20;

#[test]
fn the_file_is_whole_and_takes_direct_io() {
    let directory = directory_on_disk();
    let lock = DataDirLock::acquire(directory.path()).unwrap();
    let file = SsdFile::create(&lock, "ssd-0", 8 * MIB).unwrap();
    assert_eq!((file.bytes(), file.path()), (8 * MIB, directory.path().join("ssd-0").as_path()));
    let stat = fstat(file.fd()).unwrap();
    assert_eq!(stat.st_size as u64, 8 * MIB);
    assert!(stat.st_blocks as u64 * 512 >= 8 * MIB, "allocated, not sparse");
    assert_eq!(stat.st_mode & 0o777, 0o600);
    let flags = rustix::fs::fcntl_getfl(file.fd()).unwrap();
    assert!(flags.contains(OFlags::DIRECT));
    assert!(rustix::io::fcntl_getfd(file.fd()).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    assert!(matches!(direct_io_align_bytes(file.fd()), None | Some(1..=4_096)));
}

#[test]
fn what_the_last_start_left_is_gone() {
    let directory = directory_on_disk();
    let lock = DataDirLock::acquire(directory.path()).unwrap();
    let path = directory.path().join("ssd-0");
    std::fs::write(&path, vec![7; 3 * MIB as usize]).unwrap();
    let file = SsdFile::create(&lock, "ssd-0", MIB).unwrap();
    let mut bytes = vec![1; MIB as usize];
    File::open(file.path()).unwrap().read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 0));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), MIB);
}

#[test]
fn who_still_reads_the_last_file_reads_what_it_held() {
    let directory = directory_on_disk();
    let lock = DataDirLock::acquire(directory.path()).unwrap();
    let path = directory.path().join("ssd-0");
    std::fs::write(&path, vec![7; MIB as usize]).unwrap();
    let reader = File::open(&path).unwrap();
    let file = SsdFile::create(&lock, "ssd-0", MIB).unwrap();
    File::options().write(true).open(file.path()).unwrap().write_all_at(&[9; 4_096], 0).unwrap();
    let mut bytes = vec![0; MIB as usize];
    reader.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 7), "nothing is cut or written under a reader");
    assert!(!file.is_deleted().unwrap());
}

#[test]
fn a_deleted_file_is_noticed() {
    let directory = directory_on_disk();
    let lock = DataDirLock::acquire(directory.path()).unwrap();
    let file = SsdFile::create(&lock, "ssd-0", MIB).unwrap();
    assert!(!file.is_deleted().unwrap());
    std::fs::remove_file(file.path()).unwrap();
    assert!(file.is_deleted().unwrap());
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let directory = directory_on_disk();
    let lock = DataDirLock::acquire(directory.path()).unwrap();
    for bytes in [0, 1, 4_095, u64::MAX, 1 << 63] {
        assert!(matches!(SsdFile::create(&lock, "ssd-0", bytes), Err(SsdFileError::Size { .. })));
    }
    assert!(!directory.path().join("ssd-0").exists());
}

#[test]
fn no_room_names_path_bytes_and_what_is_there() {
    let directory = directory_on_disk();
    let lock = DataDirLock::acquire(directory.path()).unwrap();
    // Beyond what is free, and beyond what any file may have. Neither may take the room of others
    // even for a moment, so the first is refused before anything is allocated.
    let stat = fstatvfs(std::fs::File::open(directory.path()).unwrap()).unwrap();
    let total = stat.f_blocks * stat.f_frsize;
    let before = blocks_available(directory.path());
    for bytes in [total.next_multiple_of(4_096) + 4_096, 1 << 62] {
        let error = SsdFile::create(&lock, "ssd-0", bytes).unwrap_err();
        let SsdFileError::NoSpace { path, bytes: asked, available_bytes, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!((path.as_path(), *asked), (directory.path().join("ssd-0").as_path(), bytes));
        assert!(*available_bytes > 0 && *available_bytes <= total);
        assert!(error.to_string().contains("--ssd"), "{error}");
        assert_eq!(std::fs::metadata(path).unwrap().len(), 0, "nothing stays taken");
    }
    // Other tests write meanwhile, but not a tenth of the disk.
    assert!(blocks_available(directory.path()) + stat.f_blocks / 10 >= before);
}

fn blocks_available(path: &Path) -> u64 {
    fstatvfs(std::fs::File::open(path).unwrap()).unwrap().f_bavail
}

#[test]
fn memory_is_no_disk() {
    // Every Linux test machine has this tmpfs.
    let Ok(directory) = tempfile::Builder::new().prefix("orbitkv-test-").tempdir_in("/dev/shm") else {
        panic!("/dev/shm must be there for this test")
    };
    let lock = DataDirLock::acquire(directory.path()).unwrap();
    let error = SsdFile::create(&lock, "ssd-0", MIB).unwrap_err();
    let SsdFileError::NoDirectIo { filesystem, .. } = &error else { panic!("{error}") };
    assert_eq!(filesystem, "tmpfs");
    assert!(error.to_string().contains("--data-dir"), "{error}");
}

#[test]
fn a_link_is_not_followed() {
    let directory = directory_on_disk();
    let lock = DataDirLock::acquire(directory.path()).unwrap();
    let target = directory.path().join("precious");
    std::fs::write(&target, b"keep").unwrap();
    std::os::unix::fs::symlink(&target, directory.path().join("ssd-0")).unwrap();
    assert!(matches!(SsdFile::create(&lock, "ssd-0", MIB), Err(SsdFileError::System { .. })));
    assert_eq!(std::fs::read(&target).unwrap(), b"keep");
}

#[test]
fn the_second_lock_is_refused_and_names_the_holder() {
    let directory = directory_on_disk();
    let path = directory.path().join("made").join("deep");
    let lock = DataDirLock::acquire(&path).unwrap();
    assert_eq!(lock.directory(), path);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    let error = DataDirLock::acquire(&path).unwrap_err();
    let own = std::process::id();
    assert!(matches!(error, DataDirError::Held { holder: Some(pid), .. } if pid == own), "{error}");
    assert!(error.to_string().contains(&format!("process {own}")));
    drop(lock);
    DataDirLock::acquire(&path).unwrap();
}

#[test]
fn the_lock_of_a_killed_process_is_free() {
    let directory = directory_on_disk();
    let mut holder = Command::new("flock")
        .args(["--exclusive", "--no-fork"])
        .arg(directory.path().join(LOCK_NAME))
        .args(["sh", "-c", "echo held; exec sleep 600"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("util-linux is there");
    let mut said = [0; 5];
    holder.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    assert_eq!(&said, b"held\n");
    // That program writes no process id into the file, so the holder is not known.
    let error = DataDirLock::acquire(directory.path()).unwrap_err();
    assert!(matches!(error, DataDirError::Held { holder: None, .. }), "{error}");
    holder.kill().unwrap();
    holder.wait().unwrap();
    DataDirLock::acquire(directory.path()).unwrap();
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let directory = directory_on_disk();
    let file = directory.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let error = DataDirLock::acquire(&file.join("data")).unwrap_err();
    assert!(matches!(error, DataDirError::System { .. }));
    assert!(error.to_string().contains("file/data"), "{error}");
}
