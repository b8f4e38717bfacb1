//! The `--config` file: the flags of `orbitkv node` as TOML, keys being the flag names.

use std::path::Path;

use clap::{Args, Command};

use super::{NodeArgs, SettingsError};

/// A configuration file has some tens of lines; a larger one is another file given by mistake.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Every setting a file may hold, in the order of the help.
#[must_use]
pub fn setting_names() -> Vec<String> {
    let command = NodeArgs::augment_args(Command::new("node"));
    // What is hidden is for measurements and is given for one run.
    let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
    let names = shown.filter_map(|argument| argument.get_long().map(str::to_owned));
    names.filter(|name| name != "config").collect()
}

/// Number of single-character edits between two keys; `_` and `-` count as equal.
fn distance(left: &str, right: &str) -> usize {
    let normal = |text: &str| -> Vec<char> { text.to_lowercase().replace('_', "-").chars().collect() };
    let (left, right) = (normal(left), normal(right));
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (index, from) in left.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, to) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[right.len()]
}

/// The name that is most like what was written.
pub(super) fn nearest<'a>(written: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    let nearest = names.into_iter().min_by_key(|name| distance(name, written));
    nearest.unwrap_or_default().to_owned()
}

/// Understands the text of a configuration file; `file` only names it in errors.
///
/// # Errors
/// Unknown keys, by name and with the nearest setting; values that are not understood, with their line.
pub fn parse(text: &str, file: &Path) -> Result<NodeArgs, SettingsError> {
    let unreadable = |why: String| SettingsError::ConfigFile { file: file.to_owned(), why };
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| unreadable(error.to_string()))?;
    let names = setting_names();
    for key in table.keys() {
        if key == "config" {
            return Err(unreadable("`config` cannot name another file; put the settings here".to_owned()));
        }
        if !names.contains(key) {
            let nearest = nearest(key, names.iter().map(String::as_str));
            return Err(SettingsError::UnknownKey { file: file.to_owned(), key: key.clone(), nearest });
        }
    }
    toml::from_str(text).map_err(|error| unreadable(error.to_string()))
}

/// Reads and understands a configuration file.
///
/// # Errors
/// As [`parse`], and files that cannot be read or are larger than 1 MiB.
pub fn read(file: &Path) -> Result<NodeArgs, SettingsError> {
    let unreadable = |why: String| SettingsError::ConfigFile { file: file.to_owned(), why };
    let size = std::fs::metadata(file).map_err(|error| unreadable(error.to_string()))?.len();
    if size > FILE_BYTES_MAX {
        return Err(unreadable(format!(
            "it has {size} bytes, more than {FILE_BYTES_MAX}; is it the right file?"
        )));
    }
    let text = std::fs::read_to_string(file).map_err(|error| unreadable(error.to_string()))?;
    parse(&text, file)
}
