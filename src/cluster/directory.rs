//! Directories that belong to one run and go with it.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, test_kill_process};

use super::ClusterFailure;

/// Beginning of the name; the process id follows, and a number if the process has several in one place.
const PREFIX: &str = "orbitkv-run-";

/// A directory of this process, mode 0700; removed with all that is in it when dropped.
pub(super) struct OwnDirectory {
    path: PathBuf,
    // Locked as long as this process lives, also for those who do not see it: in another container, say.
    _lock: File,
}

impl OwnDirectory {
    /// Makes one below `parent`, and removes those that killed runs left there.
    pub(super) fn below(parent: &Path) -> Result<OwnDirectory, ClusterFailure> {
        let failed = |what, path: &Path, error| ClusterFailure::System { what, path: path.to_owned(), error };
        fs::create_dir_all(parent).map_err(|error| failed("making", parent, error))?;
        for entry in fs::read_dir(parent).map_err(|error| failed("reading", parent, error))?.flatten() {
            let dead = entry.file_name().to_str().and_then(owner).is_some_and(is_dead);
            if dead && lock(&entry.path()).is_ok() {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let path = unused(parent);
        DirBuilder::new().mode(0o700).create(&path).map_err(|error| failed("making", &path, error))?;
        let path = path.canonicalize().map_err(|error| failed("resolving", &path, error))?;
        let lock = lock(&path).map_err(|error| failed("locking", &path, error))?;
        Ok(OwnDirectory { path, _lock: lock })
    }

    /// Makes a directory in it.
    pub(super) fn with(&self, name: &str) -> Result<PathBuf, ClusterFailure> {
        let path = self.path.join(name);
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| ClusterFailure::System { what: "making", path: path.clone(), error })?;
        Ok(path)
    }

    /// The directory of this name in it, made unless it is there.
    pub(super) fn kept(&self, name: &str) -> Result<PathBuf, ClusterFailure> {
        let path = self.path.join(name);
        if path.is_dir() { Ok(path) } else { self.with(name) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for OwnDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// The first name of this process that is not in use: a directory may be of a dead process that had our number, and
/// then goes, or another of ours.
fn unused(parent: &Path) -> PathBuf {
    let own = std::process::id();
    let first = std::iter::once(format!("{PREFIX}{own}"));
    let names = first.chain((2u32..).map(|number| format!("{PREFIX}{own}.{number}")));
    let mut paths = names.map(|name| parent.join(name));
    let is_free = |path: &PathBuf| match lock(path) {
        Ok(_) => fs::remove_dir_all(path).is_ok(),
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    };
    paths.find(is_free).expect("a process has few directories")
}

/// Locks a directory, unless somebody has.
fn lock(path: &Path) -> io::Result<File> {
    let directory = File::open(path)?;
    flock(&directory, FlockOperation::NonBlockingLockExclusive)?;
    Ok(directory)
}

/// The process that a directory of this name belongs to, if it is one of ours.
fn owner(name: &str) -> Option<Pid> {
    let process = name.strip_prefix(PREFIX)?;
    process.split('.').next()?.parse().ok().and_then(Pid::from_raw)
}

fn is_dead(process: Pid) -> bool {
    test_kill_process(process) == Err(rustix::io::Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_dead_runs_left_is_removed_and_nothing_else() {
        let parent = tempfile::tempdir().expect("a directory");
        let make = |name: String| fs::create_dir(parent.path().join(name)).expect("a directory");
        // No process has such numbers: they are beyond the kernel's largest.
        let dead = format!("{PREFIX}{}", i32::MAX);
        let unseen = format!("{PREFIX}{}", i32::MAX - 1);
        let alive = format!("{PREFIX}1");
        let foreign = format!("{PREFIX}mine");
        let second_of_dead = format!("{PREFIX}{}.2", i32::MAX);
        [&dead, &second_of_dead, &unseen, &alive, &foreign].into_iter().for_each(|name| make(name.clone()));
        let _held = lock(&parent.path().join(&unseen)).expect("nobody has it");
        let own = OwnDirectory::below(parent.path()).expect("a directory");
        fs::write(own.with("inner").expect("a directory").join("file"), "x").expect("a file");
        let names = || {
            let entries = fs::read_dir(parent.path()).expect("it is there").flatten();
            let mut names: Vec<_> =
                entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            names
        };
        let mut kept = vec![unseen, alive, foreign, format!("{PREFIX}{}", std::process::id())];
        kept.sort();
        assert_eq!(names(), kept);
        let ours = own.path().file_name().expect("a name").to_string_lossy().into_owned();
        drop(own);
        kept.retain(|name| *name != ours);
        assert_eq!(names(), kept);
    }

    #[test]
    fn a_process_may_have_two_in_one_place() {
        let parent = tempfile::tempdir().expect("a directory");
        let [first, second] = [(); 2].map(|()| OwnDirectory::below(parent.path()).expect("a directory"));
        first.with("node-1").expect("room for it");
        second.with("node-1").expect("room for it in the other");
        drop(first);
        assert!(second.path().join("node-1").is_dir(), "each goes alone");
        let third = OwnDirectory::below(parent.path()).expect("a directory");
        assert_eq!(third.path(), parent.path().join(format!("{PREFIX}{}", std::process::id())));
    }
}
