//! The operator's policy of a cluster, as it stands in etcd under `config/node` and on each node's disk: versions of
//! settings that nodes take while they run, and for which of the nodes each is.
//!
//! Text like the other records: lines `name value`, in this order, nothing else, so a record has one encoding.
//!
//! | lines | content |
//! | --- | --- |
//! | `schema orbitkv/config/v1` | what this is |
//! | `record N` | grows with each change of the record |
//! | `stable V` and a line for each setting | the version for every node that no other is for; version 0 is what the nodes' flags say |
//! | `staged V`, `share P` and settings | while a version is rolled out: for the nodes whose place is below P, 1 to 99 |
//! | `former V` and settings | what `stable` took the place of, if it can be had back |
//!
//! Settings stand in the order of their names. What they are called and which values they take is not known here.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use thiserror::Error;

use crate::bounds::{
    CONFIG_NAME_BYTES_MAX, CONFIG_NUMBER_MAX, CONFIG_RECORD_BYTES_MAX, CONFIG_SETTINGS_MAX,
    CONFIG_VALUE_BYTES_MAX, NODE_ID_BYTES_MAX,
};
use crate::framed_hash::FramedHash;
use crate::identity::{NodeId, hexadecimal};
use crate::membership::shown;

/// What a record begins with.
pub const SCHEMA: &str = "orbitkv/config/v1";

/// Places that nodes have: a share of them is a percentage.
pub const PLACES: u32 = 100;

/// Names of lines that are no settings.
const WORDS: [&str; 6] = ["schema", "record", "stable", "staged", "share", "former"];

const PLACE_DOMAIN: &str = "orbitkv.config-place";
const SUM_DOMAIN: &str = "orbitkv.config-copy";
const HASH_VERSION: u16 = 1;

/// Settings that hold together, by name, as text.
pub type Texts = BTreeMap<String, String>;

/// One version of the settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// Number of the record that brought it; 0 is what the nodes' flags say, and sets nothing.
    pub number: u64,
    /// What it sets.
    pub settings: Texts,
}

/// A version on its way to the nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staged {
    /// The version.
    pub version: Version,
    /// Places below this one have it, 1 to 99 of [`PLACES`].
    pub share: u32,
}

/// The record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigRecord {
    /// Grows with each change, from 1 to [`CONFIG_NUMBER_MAX`].
    pub number: u64,
    /// For every node that no other version is for.
    pub stable: Version,
    /// What is being rolled out.
    pub staged: Option<Staged>,
    /// What `stable` took the place of, if it can be had back.
    pub former: Option<Version>,
}

/// Why a text is no record.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// It is larger than any record.
    #[error("{bytes} bytes, and a record has at most {CONFIG_RECORD_BYTES_MAX}; set fewer settings")]
    TooLong {
        /// Its bytes.
        bytes: usize,
    },
    /// It is no text.
    #[error("it is not UTF-8")]
    NotText,
    /// A line is not what it has to be.
    #[error("line {line} has to be {wanted}")]
    Line {
        /// Its number, from 1 on.
        line: usize,
        /// What has to stand there.
        wanted: &'static str,
    },
    /// A setting is not written as settings are.
    #[error("line {line}, setting `{name}`: {why}")]
    Setting {
        /// Its number, from 1 on.
        line: usize,
        /// Its name, shortened.
        name: String,
        /// What is wrong.
        why: SettingFlaw,
    },
    /// Its numbers contradict each other.
    #[error("{0}")]
    Numbers(&'static str),
}

/// What is wrong with how a setting is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SettingFlaw {
    /// The name.
    #[error(
        "a name is 1 to {CONFIG_NAME_BYTES_MAX} bytes of a-z, 0-9 and -, and none of the record's own words"
    )]
    Name,
    /// The value.
    #[error("a value is 1 to {CONFIG_VALUE_BYTES_MAX} visible ASCII characters without blanks")]
    Value,
    /// Its place.
    #[error("settings stand in the order of their names, each once")]
    Order,
    /// There are too many.
    #[error("a version sets at most {CONFIG_SETTINGS_MAX} settings")]
    TooMany,
}

/// Whether a setting can stand in a record.
///
/// # Errors
/// What is wrong with its name or its value.
pub fn check_setting(name: &str, value: &str) -> Result<(), SettingFlaw> {
    let is_name = (1..=CONFIG_NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    if !is_name || WORDS.contains(&name) {
        return Err(SettingFlaw::Name);
    }
    let is_value = (1..=CONFIG_VALUE_BYTES_MAX).contains(&value.len())
        && value.bytes().all(|byte| byte.is_ascii_graphic());
    if is_value { Ok(()) } else { Err(SettingFlaw::Value) }
}

impl Version {
    fn check(&self, record: u64) -> Result<(), ConfigError> {
        match self.number {
            0 if !self.settings.is_empty() => Err(ConfigError::Numbers("version 0 sets nothing")),
            number if number > record => {
                Err(ConfigError::Numbers("no version is newer than the record that brought it"))
            }
            _ => Ok(()),
        }
    }

    fn write(&self, text: &mut String) {
        for (name, value) in &self.settings {
            let _ = writeln!(text, "{name} {value}");
        }
    }
}

impl ConfigRecord {
    /// Whether its numbers fit together and everything in it can be written.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.number == 0 {
            return Err(ConfigError::Numbers("the first record is record 1"));
        }
        if self.number > CONFIG_NUMBER_MAX {
            return Err(ConfigError::Numbers("no record has a number above 9223372036854775807"));
        }
        let staged = self.staged.as_ref();
        let versions = [Some(&self.stable), staged.map(|staged| &staged.version), self.former.as_ref()];
        let versions: Vec<&Version> = versions.into_iter().flatten().collect();
        for version in &versions {
            version.check(self.number)?;
            for (name, value) in &version.settings {
                check_setting(name, value).map_err(|why| setting_error(0, name, why))?;
            }
            if version.settings.len() > CONFIG_SETTINGS_MAX {
                return Err(setting_error(0, "", SettingFlaw::TooMany));
            }
        }
        let numbers = versions.iter().enumerate();
        if numbers.clone().any(|(at, one)| versions[..at].iter().any(|other| other.number == one.number)) {
            return Err(ConfigError::Numbers("each version of a record has a number of its own"));
        }
        match staged {
            Some(staged) if staged.version.number == 0 => {
                Err(ConfigError::Numbers("what is staged has a number from 1 on"))
            }
            Some(staged) if !(1..PLACES).contains(&staged.share) => {
                Err(ConfigError::Numbers("what is staged is for 1 to 99 percent of the nodes"))
            }
            _ => Ok(()),
        }
    }

    /// The text under `config/node`.
    ///
    /// # Panics
    /// If the record is none, see [`ConfigRecord::check`].
    #[must_use]
    pub fn encode(&self) -> String {
        assert_eq!(self.check(), Ok(()), "a record nobody would accept: {self:?}");
        let mut text = format!("schema {SCHEMA}\nrecord {}\nstable {}\n", self.number, self.stable.number);
        self.stable.write(&mut text);
        if let Some(Staged { version, share }) = &self.staged {
            let _ = write!(text, "staged {}\nshare {share}\n", version.number);
            version.write(&mut text);
        }
        if let Some(former) = &self.former {
            let _ = writeln!(text, "former {}", former.number);
            former.write(&mut text);
        }
        assert!(text.len() <= CONFIG_RECORD_BYTES_MAX, "the bounds of its parts bound the record");
        text
    }

    /// Reads the text under `config/node`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<ConfigRecord, ConfigError> {
        if bytes.len() > CONFIG_RECORD_BYTES_MAX {
            return Err(ConfigError::TooLong { bytes: bytes.len() });
        }
        let rest = std::str::from_utf8(bytes).map_err(|_| ConfigError::NotText)?;
        let mut lines = Lines { rest, line: 1 };
        lines.take("schema", "`schema orbitkv/config/v1`", |value| (value == SCHEMA).then_some(()))?;
        let number = lines.take("record", "`record` and a number", shown)?;
        let stable = lines.version("stable", "`stable` and a number")?;
        let mut record = ConfigRecord { number, stable, staged: None, former: None };
        if lines.is_next("staged") {
            let number = lines.take("staged", "`staged` and a number", shown)?;
            let share = lines.take("share", "`share` and a number from 1 to 99", shown)?;
            let version = Version { number, settings: lines.settings()? };
            record.staged = Some(Staged { version, share });
        }
        if lines.is_next("former") {
            record.former = Some(lines.version("former", "`former` and a number")?);
        }
        if !lines.rest.is_empty() {
            let wanted = "the end, or `staged` or `former` in this order and each once";
            return Err(ConfigError::Line { line: lines.line, wanted });
        }
        record.check()?;
        Ok(record)
    }
}

fn setting_error(line: usize, name: &str, why: SettingFlaw) -> ConfigError {
    let name = name.chars().take(CONFIG_NAME_BYTES_MAX).collect::<String>().escape_debug().to_string();
    ConfigError::Setting { line, name, why }
}

/// The lines of a record, taken one by one.
struct Lines<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Lines<'a> {
    /// Name and value of the next line, and what follows.
    fn peek(&self) -> Option<(&'a str, &'a str, &'a str)> {
        let (line, rest) = self.rest.split_once('\n')?;
        line.split_once(' ').map(|(name, value)| (name, value, rest))
    }

    fn is_next(&self, word: &str) -> bool {
        self.peek().is_some_and(|(name, ..)| name == word)
    }

    fn take<T>(
        &mut self,
        word: &str,
        wanted: &'static str,
        read: impl FnOnce(&'a str) -> Option<T>,
    ) -> Result<T, ConfigError> {
        let wrong = ConfigError::Line { line: self.line, wanted };
        let (name, value, rest) = self.peek().ok_or(wrong.clone())?;
        let read = read(value).filter(|_| name == word).ok_or(wrong)?;
        self.advance(rest);
        Ok(read)
    }

    fn advance(&mut self, rest: &'a str) {
        self.rest = rest;
        self.line += 1;
    }

    fn version(&mut self, word: &str, wanted: &'static str) -> Result<Version, ConfigError> {
        let number = self.take(word, wanted, shown)?;
        Ok(Version { number, settings: self.settings()? })
    }

    fn settings(&mut self) -> Result<Texts, ConfigError> {
        let mut settings = Texts::new();
        while let Some((name, value, rest)) = self.peek().filter(|(name, ..)| !WORDS.contains(name)) {
            let flaw = |why| setting_error(self.line, name, why);
            check_setting(name, value).map_err(flaw)?;
            if settings.last_key_value().is_some_and(|(last, _)| last.as_str() >= name) {
                return Err(flaw(SettingFlaw::Order));
            }
            if settings.len() == CONFIG_SETTINGS_MAX {
                return Err(flaw(SettingFlaw::TooMany));
            }
            settings.insert(name.to_owned(), value.to_owned());
            self.advance(rest);
        }
        Ok(settings)
    }
}

/// The hash that says where among the others a node has its place: from its name alone, so that the same nodes are
/// first each time.
#[must_use]
pub fn place_hash(node: NodeId) -> u64 {
    let mut hash = FramedHash::new(PLACE_DOMAIN, HASH_VERSION);
    hash.put(node.as_str().as_bytes());
    let first = hash.finish(1);
    u64::from_le_bytes(first[..8].try_into().expect("eight of 32 bytes"))
}

fn sum(text: &[u8]) -> String {
    let mut hash = FramedHash::new(SUM_DOMAIN, HASH_VERSION);
    hash.put(text);
    hash.finish(1).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A record as a node keeps it on its disk: a line with the sum of what follows, by which damage shows, a line with the
/// name of the cluster that it is of, which keeps to the rule of node ids, and its text.
#[must_use]
pub fn seal(record: &ConfigRecord, cluster: NodeId) -> String {
    let text = format!("{CLUSTER_WORD}{cluster}\n{}", record.encode());
    format!("{SUM_WORD}{}\n{text}", sum(text.as_bytes()))
}

/// Why a copy of a record is not trusted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CopyError {
    /// It does not begin with the sum of what follows, or that with a cluster.
    #[error("its sum is not that of its text, so it is damaged")]
    Damaged,
    /// It is whole, and of somebody else.
    #[error("it is of the cluster {}, and this node is started for {}", .names[0], .names[1])]
    Cluster {
        /// As it says, and whose it should be.
        names: Box<[NodeId; 2]>,
    },
    /// What it says is no record.
    #[error(transparent)]
    Record(#[from] ConfigError),
}

const SUM_WORD: &str = "sum ";
const CLUSTER_WORD: &str = "cluster ";
/// The word, 64 digits, an end of line.
const SUM_LINE_BYTES: usize = SUM_WORD.len() + 64 + 1;
/// Most bytes of a sealed record.
pub const SEALED_BYTES_MAX: usize =
    SUM_LINE_BYTES + CLUSTER_WORD.len() + NODE_ID_BYTES_MAX + 1 + CONFIG_RECORD_BYTES_MAX;

/// Reads what [`seal`] has written for the same cluster.
///
/// # Errors
/// [`CopyError`].
pub fn unseal(bytes: &[u8], cluster: NodeId) -> Result<ConfigRecord, CopyError> {
    let (line, text) = bytes.split_at_checked(SUM_LINE_BYTES).ok_or(CopyError::Damaged)?;
    let line = std::str::from_utf8(line).map_err(|_| CopyError::Damaged)?;
    let written = line.strip_prefix(SUM_WORD).and_then(|line| line.strip_suffix('\n'));
    let written = written.filter(|text| hexadecimal::<32>(text).is_some()).ok_or(CopyError::Damaged)?;
    if written != sum(text) {
        return Err(CopyError::Damaged);
    }
    let end = text.iter().position(|&byte| byte == b'\n').ok_or(CopyError::Damaged)?;
    let name = std::str::from_utf8(&text[..end]).ok().and_then(|line| line.strip_prefix(CLUSTER_WORD));
    let theirs: NodeId = name.and_then(|name| name.parse().ok()).ok_or(CopyError::Damaged)?;
    if theirs != cluster {
        return Err(CopyError::Cluster { names: Box::new([theirs, cluster]) });
    }
    Ok(ConfigRecord::decode(&text[end + 1..])?)
}

const _: () = assert!(
    3 * CONFIG_SETTINGS_MAX * (CONFIG_NAME_BYTES_MAX + CONFIG_VALUE_BYTES_MAX + 2) + 200
        <= CONFIG_RECORD_BYTES_MAX
);

#[cfg(test)]
mod tests;
