//! The last epoch of this node, beside its key in the data directory: an etcd that was restored from an old
//! copy knows a lower one, and a node must not be given an epoch that it had before.

use std::path::PathBuf;

use orbitkv_native::ssd_file::DataDirLock;
use thiserror::Error;

use super::kept_file::{self, KeptFileError};

const NAME: &str = "epoch";

/// The largest epoch has 20 digits, and there is an end of line.
const FILE_BYTES_MAX: usize = 21;

/// Why the last epoch is not known, or not kept.
#[derive(Debug, Error)]
pub enum EpochFileError {
    /// Others could have changed it.
    #[error("{0}; if nobody has, `chmod 600` it")]
    Permissions(KeptFileError),
    /// It does not say an epoch.
    #[error(
        "{} does not hold this node's last epoch, a decimal number; restore it, or remove it: the node then \
         believes what etcd says", path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
    },
    /// A step failed.
    #[error(transparent)]
    System(KeptFileError),
}

impl From<KeptFileError> for EpochFileError {
    fn from(error: KeptFileError) -> EpochFileError {
        match error {
            KeptFileError::Permissions { .. } => EpochFileError::Permissions(error),
            KeptFileError::NoFile { path } => EpochFileError::Malformed { path },
            KeptFileError::System { .. } => EpochFileError::System(error),
        }
    }
}

/// Where the last epoch is kept. Only the holder of the directory's lock writes there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochFile {
    directory: PathBuf,
}

impl EpochFile {
    /// The file of a locked data directory.
    #[must_use]
    pub fn of(lock: &DataDirLock) -> EpochFile {
        EpochFile { directory: lock.directory().to_owned() }
    }

    /// The last epoch; 0 if none was kept yet.
    ///
    /// # Errors
    /// [`EpochFileError`]; the file is left as it is.
    pub fn read(&self) -> Result<u64, EpochFileError> {
        let path = self.directory.join(NAME);
        match kept_file::read(&path, FILE_BYTES_MAX)? {
            None => Ok(0),
            Some(text) => decode(&text).ok_or(EpochFileError::Malformed { path }),
        }
    }

    /// Keeps an epoch: after a crash the file holds this one or the one before, whole.
    ///
    /// # Errors
    /// [`EpochFileError::System`].
    pub fn write(&self, epoch: u64) -> Result<(), EpochFileError> {
        Ok(kept_file::write(&self.directory, NAME, format!("{epoch}\n").as_bytes())?)
    }
}

/// Digits without a leading zero, and an end of line.
fn decode(text: &[u8]) -> Option<u64> {
    let digits = text.strip_suffix(b"\n").filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    let epoch: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    (epoch > 0 && digits[0] != b'0').then_some(epoch)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const NEW_NAME: &str = "epoch.new";

    fn file() -> (tempfile::TempDir, EpochFile) {
        let directory = tempfile::tempdir().expect("a directory");
        let lock = DataDirLock::acquire(directory.path()).expect("nobody else's");
        let file = EpochFile::of(&lock);
        (directory, file)
    }

    #[test]
    fn an_epoch_is_kept_and_replaced() {
        let (directory, file) = file();
        assert_eq!(file.read().expect("none yet"), 0);
        for epoch in [1, 41, u64::MAX] {
            fs::write(directory.path().join(NEW_NAME), b"half").expect("our own");
            file.write(epoch).expect("room");
            assert_eq!(file.read().expect("just written"), epoch);
        }
        let path = directory.path().join(NAME);
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o7777, 0o600);
        assert_eq!(fs::read(&path).expect("ours"), b"18446744073709551615\n");
        assert!(!directory.path().join(NEW_NAME).exists());
    }

    #[test]
    fn what_is_no_epoch_is_refused_by_name_and_left_alone() {
        let (directory, file) = file();
        file.write(1).expect("room");
        let path = directory.path().join(NAME);
        let contents: [&[u8]; 11] = [
            b"",
            b"\n",
            b"0\n",
            b"07\n",
            b"7",
            b"+7\n",
            b"7\n\n",
            b"seven\n",
            b"18446744073709551616\n",
            b"\xff\n",
            &[b'1'; 4_096],
        ];
        for content in contents {
            fs::write(&path, content).expect("our own");
            let error = file.read().expect_err("no epoch").to_string();
            assert!(error.contains("/epoch does not hold") && error.contains("remove it"), "{error}");
            assert_eq!(fs::read(&path).expect("ours"), content);
        }
        fs::remove_file(&path).expect("ours");
        fs::create_dir(&path).expect("room");
        assert!(matches!(file.read(), Err(EpochFileError::Malformed { .. })));
        assert!(matches!(
            file.write(2),
            Err(EpochFileError::System(KeptFileError::System { step: "renaming", .. }))
        ));
    }

    #[test]
    fn an_epoch_that_others_can_change_is_refused() {
        let (directory, file) = file();
        file.write(7).expect("room");
        let path = directory.path().join(NAME);
        for mode in [0o620, 0o602, 0o644] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("ours");
            let error = file.read().expect_err("refused").to_string();
            assert!(error.contains(&format!("mode {mode:04o}")) && error.contains("chmod 600"), "{error}");
        }
    }
}
