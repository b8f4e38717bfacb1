//! The last record known to be good, in the data directory: what a node starts from while etcd does not answer.

use std::path::PathBuf;

use orbitkv_native::ssd_file::DataDirLock;
use orbitkv_wire::config::{ConfigRecord, CopyError, SEALED_BYTES_MAX, seal, unseal};
use orbitkv_wire::identity::NodeId;
use thiserror::Error;

use crate::control::kept_file::{self, KeptFileError};
use crate::settings::{PolicyError, Rollouts, rollouts};

const NAME: &str = "config";

/// Why the copy is not used, or not kept.
#[derive(Debug, Error)]
pub enum PolicyFileError {
    /// The file.
    #[error(transparent)]
    File(#[from] KeptFileError),
    /// What it holds is not what was written, or was written for another cluster.
    #[error("{}: {why}", path.display())]
    Copy {
        /// The file.
        path: PathBuf,
        /// Why.
        why: CopyError,
    },
    /// It is whole, and of another version of this program.
    #[error("{}: {why}", path.display())]
    Policy {
        /// The file.
        path: PathBuf,
        /// Why.
        why: PolicyError,
    },
}

/// Where the copy is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyFile {
    directory: PathBuf,
    cluster: NodeId,
}

impl PolicyFile {
    /// The file of a locked data directory, for a node of the cluster of this name.
    #[must_use]
    pub fn of(lock: &DataDirLock, cluster: NodeId) -> PolicyFile {
        PolicyFile { directory: lock.directory().to_owned(), cluster }
    }

    /// The record as it was last known to be good; none if there was none yet.
    ///
    /// # Errors
    /// [`PolicyFileError`]; the file is left as it is.
    pub fn read(&self) -> Result<Option<(ConfigRecord, Rollouts)>, PolicyFileError> {
        let path = self.directory.join(NAME);
        let Some(bytes) = kept_file::read(&path, SEALED_BYTES_MAX)? else { return Ok(None) };
        let record =
            unseal(&bytes, self.cluster).map_err(|why| PolicyFileError::Copy { path: path.clone(), why })?;
        let understood = rollouts(&record).map_err(|why| PolicyFileError::Policy { path, why })?;
        Ok(Some((record, understood)))
    }

    /// Keeps a record: after a crash the file holds this one or the one before, whole.
    ///
    /// # Errors
    /// [`PolicyFileError::File`].
    pub fn write(&self, record: &ConfigRecord) -> Result<(), PolicyFileError> {
        Ok(kept_file::write(&self.directory, NAME, seal(record, self.cluster).as_bytes())?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use orbitkv_wire::config::Version;

    use super::*;

    fn record(number: u64, coalesce: &str) -> ConfigRecord {
        let settings = [("coalesce".to_owned(), coalesce.to_owned())].into();
        ConfigRecord { number, stable: Version { number, settings }, staged: None, former: None }
    }

    fn cluster(name: &str) -> NodeId {
        name.parse().expect("legal")
    }

    #[test]
    fn a_copy_is_kept_replaced_and_read_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let lock = DataDirLock::acquire(directory.path()).expect("nobody else's");
        let file = PolicyFile::of(&lock, cluster("prod"));
        assert!(file.read().expect("none yet").is_none());
        for number in 1..3 {
            fs::write(directory.path().join("config.new"), b"half").expect("our own");
            file.write(&record(number, "3ms")).expect("room");
            let (read, understood) = file.read().expect("whole").expect("there");
            assert_eq!((read, understood.version), (record(number, "3ms"), number));
        }
        let mode = fs::metadata(directory.path().join(NAME)).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_copy_that_is_damaged_or_of_others_is_named_and_left_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let lock = DataDirLock::acquire(directory.path()).expect("nobody else's");
        let (file, path) = (PolicyFile::of(&lock, cluster("prod")), directory.path().join(NAME));
        file.write(&record(1, "3ms")).expect("room");
        let good = fs::read_to_string(&path).expect("ours");
        // Another value, and still a record.
        let other = good.replace("3ms", "4ms");
        let long = good.clone() + &"x".repeat(SEALED_BYTES_MAX);
        for bad in ["", &other, &good[..good.len() - 1], &long] {
            fs::write(&path, bad).expect("our own");
            let error = file.read().expect_err("damaged").to_string();
            assert!(error.contains("/config: its sum is not that of its text"), "{error}");
            assert_eq!(fs::read_to_string(&path).expect("ours"), bad);
        }
        // Whole, and written by a program that knows more.
        let mut later = record(2, "3ms");
        later.stable.settings.insert("dram".to_owned(), "1gib".to_owned());
        file.write(&later).expect("room");
        let error = file.read().expect_err("not ours").to_string();
        assert!(error.contains("/config: dram needs a restart"), "{error}");
        file.write(&record(3, "3ms")).expect("room");
        let error = PolicyFile::of(&lock, cluster("other")).read().expect_err("not of ours").to_string();
        assert!(
            error.contains("/config: it is of the cluster prod, and this node is started for other"),
            "{error}"
        );
        fs::set_permissions(&path, fs::Permissions::from_mode(0o620)).expect("ours");
        assert!(file.read().expect_err("others'").to_string().contains("has mode 0620"));
    }
}
