//! The archive of a migration: one JSON file, written whole before anything is changed, and never overwritten.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use orbitkv_shards::membership::cutover::{Archive, ArchivedKey};
use orbitkv_wire::identity::ClusterUuid;
use orbitkv_wire::membership::FORMAT;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::exit::Exit;

/// Version of the file.
const VERSION: u32 = 1;
/// Longest archive that is written and read: values of some hundred MiB, in hexadecimal digits. The keys of a cluster
/// of this program are a thousandth of that.
const FILE_BYTES_MAX: usize = 256 << 20;

/// Why an archive is not read, or not written.
#[derive(Debug, Error)]
pub enum ArchiveError {
    /// A step failed.
    #[error("--archive {}: {step}: {source}", .file.display())]
    System {
        /// The file.
        file: PathBuf,
        /// What was attempted.
        step: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// What stands in etcd is more than an archive holds.
    #[error(
        "--archive {}: it would have {bytes} bytes, and an archive has at most {most}: nothing was changed; remove the largest \
         keys below the cluster's prefix that no node needs (`etcdctl get --prefix --keys-only` lists them)",
        .file.display()
    )]
    TooLarge {
        /// The file.
        file: PathBuf,
        /// What it would have.
        bytes: usize,
        /// What it may have.
        most: usize,
    },
    /// The file is no archive.
    #[error("--archive {}: {why}; name the file that `orbitkv migrate apply` has written", .file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl ArchiveError {
    /// Exit code of a command that ends with it.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            ArchiveError::System { .. } | ArchiveError::TooLarge { .. } => Exit::Environment,
            ArchiveError::Malformed { .. } => Exit::Usage,
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    /// Version of this file.
    archive: u32,
    migration: String,
    cluster: String,
    revision: u64,
    /// What `format` holds after the migration.
    format_after: String,
    keys: Vec<Row>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    revision: u64,
    /// In hexadecimal digits: values need not be text.
    value_hex: String,
    /// The same for people, if it is text with no other control characters than ends of lines; not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value_text: Option<String>,
}

/// Writes an archive to a file that is not there yet, so that it is there whole or not at all.
///
/// # Errors
/// [`ArchiveError::System`], also if the file is there; [`ArchiveError::TooLarge`] if it could not be read again.
pub fn write(file: &Path, archive: &Archive) -> Result<(), ArchiveError> {
    write_within(file, archive, FILE_BYTES_MAX)
}

fn write_within(file: &Path, archive: &Archive, most: usize) -> Result<(), ArchiveError> {
    let is_plain = |text: &String| !text.chars().any(|c| c.is_control() && c != '\n');
    let keys = archive.keys.iter().map(|key| Row {
        name: key.name.clone(),
        revision: key.revision,
        value_hex: key.value.iter().map(|byte| format!("{byte:02x}")).collect(),
        value_text: String::from_utf8(key.value.clone()).ok().filter(is_plain),
    });
    let document = Document {
        archive: VERSION,
        migration: ClusterUuid(archive.id).to_string(),
        cluster: archive.cluster.clone(),
        revision: archive.revision,
        format_after: String::from_utf8_lossy(&archive.format).into_owned(),
        keys: keys.collect(),
    };
    let text = serde_json::to_string_pretty(&document).expect("an archive is plain data");
    if text.len() > most {
        return Err(ArchiveError::TooLarge { file: file.to_owned(), bytes: text.len(), most });
    }
    let failed = |step| move |source| ArchiveError::System { file: file.to_owned(), step, source };
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = file.with_file_name(name);
    // What is there keeps its mode, or is a link to elsewhere.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(failed("removing what another run left beside it")(error));
        }
        _ => {}
    }
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
    let mut out = opened.map_err(failed("creating it"))?;
    out.write_all(text.as_bytes()).and_then(|()| out.sync_all()).map_err(failed("writing it"))?;
    // A link is not made where there is something, and a rename is.
    let linked = fs::hard_link(&new, file);
    let _ = fs::remove_file(&new);
    linked.map_err(failed("giving it its name"))?;
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = File::open(directory.unwrap_or(Path::new(".")));
    directory.and_then(|directory| directory.sync_all()).map_err(failed("syncing its directory"))
}

/// Reads an archive.
///
/// # Errors
/// [`ArchiveError`].
pub fn read(file: &Path) -> Result<Archive, ArchiveError> {
    let failed = |step| move |source| ArchiveError::System { file: file.to_owned(), step, source };
    let malformed = |why: String| ArchiveError::Malformed { file: file.to_owned(), why };
    let opened = File::open(file).map_err(failed("opening it"))?;
    let mut text = String::new();
    opened.take(FILE_BYTES_MAX as u64).read_to_string(&mut text).map_err(failed("reading it"))?;
    let document: Document = serde_json::from_str(&text).map_err(|error| malformed(error.to_string()))?;
    if document.archive != VERSION {
        return Err(malformed(format!("it has version {}, not {VERSION}", document.archive)));
    }
    let id: ClusterUuid =
        document.migration.parse().map_err(|_| malformed("`migration` is no UUID".to_owned()))?;
    let keys = document.keys.into_iter().map(|row| {
        let value = bytes(&row.value_hex)
            .ok_or_else(|| malformed(format!("the value of `{}` is no hexadecimal text", row.name)))?;
        Ok(ArchivedKey { name: row.name, value, revision: row.revision })
    });
    let keys = keys.collect::<Result<Vec<_>, ArchiveError>>()?;
    if !keys.is_sorted_by(|left, right| left.name < right.name) || !keys.iter().any(|key| key.name == FORMAT)
    {
        return Err(malformed("its keys are not in order, or `format` is not among them".to_owned()));
    }
    Ok(Archive {
        id: id.0,
        cluster: document.cluster,
        revision: document.revision,
        format: document.format_after.into_bytes(),
        keys,
    })
}

fn bytes(digits: &str) -> Option<Vec<u8>> {
    let is_even = digits.len().is_multiple_of(2) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).ok();
    if is_even { (0..digits.len()).step_by(2).map(byte).collect() } else { None }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn archive() -> Archive {
        let key = |name: &str, value: &[u8]| ArchivedKey {
            name: name.to_owned(),
            value: value.to_vec(),
            revision: 7,
        };
        Archive {
            id: [9; 16],
            cluster: "test".to_owned(),
            revision: 41,
            format: b"protocol x\n".to_vec(),
            keys: vec![key("epochs/a", b"5"), key(FORMAT, b"old\n"), key("odd", &[0, 0xff, 0x80])],
        }
    }

    #[test]
    fn it_is_read_as_it_was_written_and_never_overwritten() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("archive.json");
        write(&file, &archive()).expect("room");
        assert_eq!(read(&file).expect("whole"), archive());
        let error =
            write(&file, &Archive { cluster: "other".to_owned(), ..archive() }).expect_err("it is there");
        assert_eq!(error.exit(), Exit::Environment, "{error}");
        assert_eq!(read(&file).expect("as before"), archive());
        assert_eq!(fs::read_dir(directory.path()).expect("ours").count(), 1, "nothing else is left");
    }

    #[test]
    fn what_could_not_be_read_again_is_not_written() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("archive.json");
        write(&file, &archive()).expect("room");
        let text = fs::read_to_string(&file).expect("text");
        assert!(text.contains(r#""value_text": "old\n""#), "{text}");
        let other = directory.path().join("other.json");
        let error = write_within(&other, &archive(), text.len() - 1).expect_err("a byte too long");
        assert_eq!(error.exit(), Exit::Environment);
        for part in ["other.json", &text.len().to_string(), "nothing was changed", "remove"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        assert_eq!(fs::read_dir(directory.path()).expect("ours").count(), 1, "nothing was begun");
        write_within(&other, &archive(), text.len()).expect("room");
        // As text it would be six times as long.
        let mut odd = archive();
        odd.keys[0].value = vec![0; 1_000];
        let third = directory.path().join("third.json");
        write(&third, &odd).expect("room");
        assert_eq!(read(&third).expect("whole"), odd);
        assert!(fs::metadata(&third).expect("it is there").len() < text.len() as u64 + 2_000);
    }

    #[test]
    fn what_lies_where_it_is_begun_is_neither_kept_nor_followed() {
        let directory = tempfile::tempdir().expect("a directory");
        let (file, new) = (directory.path().join("archive.json"), directory.path().join("archive.json.new"));
        fs::write(&new, "half of one").expect("room");
        fs::set_permissions(&new, Permissions::from_mode(0o644)).expect("ours");
        write(&file, &archive()).expect("room");
        assert_eq!(file.metadata().expect("it is there").permissions().mode() & 0o777, 0o600);

        let (other, elsewhere) = (directory.path().join("other.json"), directory.path().join("elsewhere"));
        fs::write(&elsewhere, "somebody's").expect("room");
        symlink(&elsewhere, directory.path().join("other.json.new")).expect("room");
        write(&other, &archive()).expect("room");
        assert_eq!(fs::read_to_string(&elsewhere).expect("text"), "somebody's");
        assert!(other.symlink_metadata().expect("it is there").is_file());
        assert_eq!(read(&other).expect("whole"), archive());
    }

    #[test]
    fn what_is_no_archive_is_refused_by_name() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("archive.json");
        write(&file, &archive()).expect("room");
        let whole = fs::read_to_string(&file).expect("text");
        let spoiled = [
            whole[..whole.len() / 2].to_owned(),
            whole.replace("\"archive\": 1", "\"archive\": 2"),
            whole.replace("00ff80", "00ff8"),
            whole.replace("\"format\"", "\"formal\""),
            whole.replace("epochs/a", "zzz"),
        ];
        for text in spoiled {
            fs::write(&file, &text).expect("room");
            let error = read(&file).expect_err("no archive");
            assert_eq!(error.exit(), Exit::Usage, "{error}");
            assert!(error.to_string().contains("archive.json"), "{error}");
        }
    }
}
