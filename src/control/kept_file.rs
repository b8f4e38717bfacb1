//! Small files that a node keeps in its data directory: read whole and bounded, replaced whole. Only the holder of
//! the directory's lock writes there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a kept file cannot be read, or replaced.
#[derive(Debug, Error)]
pub enum KeptFileError {
    /// Others could have changed it.
    #[error("{} has mode {mode:04o}, so other users can get at it", path.display())]
    Permissions {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// What stands there is no file.
    #[error("{} is no file", path.display())]
    NoFile {
        /// Its name.
        path: PathBuf,
    },
    /// A step failed.
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

/// What a file holds, one byte more than `bytes_max` at most, by which one that is too long shows; none if it is not
/// there.
///
/// # Errors
/// [`KeptFileError`]; the file is left as it is.
pub(super) fn read(path: &Path, bytes_max: usize) -> Result<Option<Vec<u8>>, KeptFileError> {
    let path = path.to_owned();
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(system("opening", &path, source)),
    };
    let metadata = file.metadata().map_err(|source| system("looking at", &path, source))?;
    if !metadata.is_file() {
        return Err(KeptFileError::NoFile { path });
    }
    let mode = metadata.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(KeptFileError::Permissions { path, mode });
    }
    let mut bytes = Vec::new();
    let read = file.take(bytes_max as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|source| system("reading", &path, source))?;
    Ok(Some(bytes))
}

/// Replaces a file: after a crash it holds these bytes or those before, whole.
///
/// # Errors
/// [`KeptFileError::System`].
pub(super) fn write(directory: &Path, name: &str, bytes: &[u8]) -> Result<(), KeptFileError> {
    let (path, new) = (directory.join(name), directory.join(format!("{name}.new")));
    match fs::remove_file(&new) {
        // A crash left a half-written one.
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(source) => return Err(system("removing a left-over of", &new, source)),
    }
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
    let mut file = made.map_err(|source| system("creating", &new, source))?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    written.map_err(|source| system("writing", &new, source))?;
    fs::rename(&new, &path).map_err(|source| system("renaming", &new, source))?;
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|source| system("syncing the directory of", &path, source))
}

fn system(step: &'static str, path: &Path, source: io::Error) -> KeptFileError {
    KeptFileError::System { step, path: path.to_owned(), source }
}
