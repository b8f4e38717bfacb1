//! Where the files of a run lie: on a disk, locked, and empty before and after.

use std::fs;
use std::path::{Path, PathBuf};

use orbitkv_native::ssd_file::DataDirLock;
use rustix::fs::statfs;

use crate::Failure;

/// `TMPFS_MAGIC` and `RAMFS_MAGIC`.
const MEMORY_FILESYSTEMS: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// A locked directory for one run.
pub struct Workplace {
    lock: DataDirLock,
}

impl Workplace {
    /// Takes `directory`, or the default one beside the build's output.
    ///
    /// # Errors
    /// If it cannot be made, lies in memory, or another run uses it.
    pub fn take(directory: Option<PathBuf>) -> Result<Workplace, Failure> {
        Workplace::named(directory, "local")
    }

    /// The same for another benchmark.
    ///
    /// # Errors
    /// As [`Workplace::take`].
    pub fn named(directory: Option<PathBuf>, benchmark: &str) -> Result<Workplace, Failure> {
        let directory = match directory {
            // A directory of our own inside, since it is emptied.
            Some(directory) => directory.join(format!("orbitkv-bench-{benchmark}")),
            None => {
                let program = std::env::current_exe()?;
                let output = program.parent().and_then(Path::parent);
                let output = output.ok_or("this program lies in no directory; give --dir")?;
                output.join(format!("bench-{benchmark}"))
            }
        };
        fs::create_dir_all(&directory)
            .map_err(|error| format!("--dir {}: {error}; choose another", directory.display()))?;
        let magic = statfs(&directory)?.f_type as u32;
        if MEMORY_FILESYSTEMS.contains(&magic) {
            let directory = directory.display();
            return Err(format!("--dir {directory} lies in memory: choose a directory on a disk").into());
        }
        let workplace = Workplace { lock: DataDirLock::acquire(&directory.canonicalize()?)? };
        // What a killed run left.
        workplace.empty()?;
        Ok(workplace)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.lock.directory()
    }

    fn empty(&self) -> Result<(), Failure> {
        for entry in fs::read_dir(self.path())?.flatten() {
            if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        let _ = self.empty();
    }
}
