//! Why settings were refused: each says setting, value, bound and remedy, so that nobody has to guess.

use std::path::PathBuf;

use thiserror::Error;

/// A refusal at start-up; nothing has been allocated when it is given. Exit code 2.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SettingsError {
    /// A value, or two together, outside its bound.
    #[error("{setting} {value}: {bound}; {remedy}")]
    Refused {
        /// The flag or flags, with dashes.
        setting: String,
        /// The value as given or derived.
        value: String,
        /// What it has to satisfy.
        bound: String,
        /// What to do.
        remedy: String,
    },
    /// A setting whose part is not in this version.
    #[error("--{setting} is not in this version; remove it, it would have no effect")]
    NotInThisVersion {
        /// The flag without dashes.
        setting: &'static str,
    },
    /// A key of the configuration file that is no setting.
    #[error("{file}: `{key}` is not a setting; did you mean `{nearest}`?", file = file.display())]
    UnknownKey {
        /// The file.
        file: PathBuf,
        /// The key as written.
        key: String,
        /// The setting most like it.
        nearest: String,
    },
    /// A configuration file that cannot be read or understood.
    #[error("--config {file}: {why}", file = file.display())]
    ConfigFile {
        /// The file.
        file: PathBuf,
        /// What is wrong with it, with the line where known.
        why: String,
    },
}

/// A refusal of one setting or a combination.
pub(super) fn refused(
    setting: impl Into<String>,
    value: impl ToString,
    bound: impl Into<String>,
    remedy: impl Into<String>,
) -> SettingsError {
    SettingsError::Refused {
        setting: setting.into(),
        value: value.to_string(),
        bound: bound.into(),
        remedy: remedy.into(),
    }
}
