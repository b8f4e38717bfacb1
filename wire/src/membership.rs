//! What nodes keep in etcd: the keys, and the exact text under them.
//!
//! Records are text so that `etcdctl get --prefix /orbitkv/v2/` shows an operator what is there. Each is a
//! list of lines `name value`, every name exactly once and in the order below, nothing else; so a record
//! has one encoding, and whatever is not exactly that is refused.
//!
//! | key, below `/orbitkv/v2/<cluster>/` | lines |
//! | --- | --- |
//! | `format` | `protocol`, `carrier`, `cluster` |
//! | `epochs/<node>`, `epoch_floor` | a decimal number alone, without line end |
//! | `members/<node>` | `node`, `epoch`, `incarnation`, `address`, `shards`, `hash`, `zone`, `key`, `boot`, `socket`, `capabilities` |
//! | `config/node` | the operator's policy, see [`crate::config`] |
//!
//! `zone`, `socket` and `capabilities` may be empty; the line is then `name` and one space.
//!
//! While the cluster moves from one format to another, `format` is the line `migration <uuid>` alone, which no
//! program takes for its own.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use thiserror::Error;

use crate::bounds::{CAPABILITIES_MAX, MEMBER_RECORD_BYTES_MAX, NODE_ID_BYTES_MAX, PEER_SOCKET_BYTES_MAX};
use crate::identity::{ClusterUuid, Incarnation, NodeId, hexadecimal, parse_uuid};
/// What nodes of this format speak to each other.
pub use crate::inventory::PROTOCOL;

/// Above all clusters. Older and newer programs share it, so that each sees the other's `format`.
pub const PREFIX: &str = "/orbitkv/v2/";
/// How it is carried.
pub const CARRIER: &str = "quic-rkyv/1";
/// Version of the hash that places keys on shards. Nodes of different ones would look for a key at the wrong shard
/// of each other, so they leave each other out.
pub const HASH_VERSION: u16 = 2;

/// Name of the key that says which nodes may join.
pub const FORMAT: &str = "format";
/// What the names of members begin with.
pub const MEMBERS: &str = "members/";
/// What the names of the operator's policy begin with.
pub const CONFIG: &str = "config/";
/// Name of the key of the policy that nodes take while they run.
pub const CONFIG_NODE: &str = "config/node";
const EPOCH_FLOOR: &str = "epoch_floor";
const EPOCHS: &str = "epochs/";

/// A key of a cluster, without the cluster's own part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// Which nodes may join.
    Format,
    /// Largest epoch ever cleaned up.
    EpochFloor,
    /// Largest epoch of a node.
    Epoch(NodeId),
    /// The life of a node.
    Member(NodeId),
    /// The operator's policy.
    Config,
}

impl Key {
    /// The key of this name below the cluster's prefix; none if it is no key of ours.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Key> {
        match name {
            FORMAT => Some(Key::Format),
            EPOCH_FLOOR => Some(Key::EpochFloor),
            CONFIG_NODE => Some(Key::Config),
            _ => match name.strip_prefix(EPOCHS) {
                Some(node) => node.parse().ok().map(Key::Epoch),
                None => name.strip_prefix(MEMBERS)?.parse().ok().map(Key::Member),
            },
        }
    }
}

/// The part of etcd that belongs to one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyspace {
    prefix: String,
}

impl Keyspace {
    /// The keys of the cluster of this name, which follows the rule of node ids.
    ///
    /// # Errors
    /// As [`NodeId::new`].
    pub fn new(cluster: &str) -> Result<Keyspace, crate::identity::NodeIdError> {
        NodeId::new(cluster).map(|name| Keyspace { prefix: format!("{PREFIX}{name}/") })
    }

    /// What every key of the cluster begins with.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// What the key of every member begins with.
    #[must_use]
    pub fn members(&self) -> String {
        format!("{}{MEMBERS}", self.prefix)
    }

    /// The key as etcd knows it.
    #[must_use]
    pub fn path(&self, key: Key) -> String {
        let prefix = &self.prefix;
        match key {
            Key::Format => format!("{prefix}{FORMAT}"),
            Key::EpochFloor => format!("{prefix}{EPOCH_FLOOR}"),
            Key::Epoch(node) => format!("{prefix}{EPOCHS}{node}"),
            Key::Member(node) => format!("{prefix}{MEMBERS}{node}"),
            Key::Config => format!("{prefix}{CONFIG_NODE}"),
        }
    }

    /// The key that etcd knows by this name; none if it is no key of ours.
    #[must_use]
    pub fn parse(&self, path: &[u8]) -> Option<Key> {
        Key::of_name(std::str::from_utf8(path).ok()?.strip_prefix(&self.prefix)?)
    }
}

/// Why a text is no record.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RecordError {
    /// It is larger than any record.
    #[error("{bytes} bytes, and a record has at most {MEMBER_RECORD_BYTES_MAX}")]
    TooLong {
        /// Its bytes.
        bytes: usize,
    },
    /// It is no text.
    #[error("not UTF-8")]
    NotText,
    /// A line is missing, stands elsewhere, or its value is none.
    #[error("no line `{name}` with a legal value where it has to be")]
    Line {
        /// The line that should be there.
        name: &'static str,
    },
    /// More follows.
    #[error("more lines than the record has")]
    Longer,
}

/// The lines of a record, taken one by one.
struct Lines<'a> {
    rest: &'a str,
}

impl<'a> Lines<'a> {
    fn of(bytes: &'a [u8]) -> Result<Lines<'a>, RecordError> {
        if bytes.len() > MEMBER_RECORD_BYTES_MAX {
            return Err(RecordError::TooLong { bytes: bytes.len() });
        }
        std::str::from_utf8(bytes).map(|rest| Lines { rest }).map_err(|_| RecordError::NotText)
    }

    /// The next line, which must be this one, as `read` understands its value.
    fn take<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&'a str) -> Option<T>,
    ) -> Result<T, RecordError> {
        let wrong = RecordError::Line { name };
        let (line, rest) = self.rest.split_once('\n').ok_or(wrong.clone())?;
        let value = line.strip_prefix(name).and_then(|rest| rest.strip_prefix(' ')).ok_or(wrong.clone())?;
        self.rest = rest;
        read(value).ok_or(wrong)
    }

    fn end(self) -> Result<(), RecordError> {
        if self.rest.is_empty() { Ok(()) } else { Err(RecordError::Longer) }
    }
}

/// A value that is written exactly as it is shown: no sign, no leading zeros, no capital letters.
pub(crate) fn shown<T: FromStr + fmt::Display>(text: &str) -> Option<T> {
    text.parse::<T>().ok().filter(|value| value.to_string() == text)
}

fn uuid(text: &str) -> Option<[u8; 16]> {
    parse_uuid(text).ok()
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Who may join a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Identity of the cluster, drawn by whoever created it.
    pub cluster: ClusterUuid,
}

impl Format {
    /// The text under `format`.
    #[must_use]
    pub fn encode(&self) -> String {
        format!("protocol {PROTOCOL}\ncarrier {CARRIER}\ncluster {}\n", self.cluster)
    }

    /// Reads the text under `format`.
    ///
    /// # Errors
    /// Whatever is not exactly this program's format, older and newer ones alike.
    pub fn decode(bytes: &[u8]) -> Result<Format, RecordError> {
        let mut lines = Lines::of(bytes)?;
        lines.take("protocol", |value| (value == PROTOCOL).then_some(()))?;
        lines.take("carrier", |value| (value == CARRIER).then_some(()))?;
        let cluster = lines.take("cluster", uuid).map(ClusterUuid)?;
        lines.end()?;
        Ok(Format { cluster })
    }
}

/// The text under `format` while the migration of this identity is under way.
#[must_use]
pub fn migration_mark(migration: [u8; 16]) -> String {
    format!("migration {}\n", ClusterUuid(migration))
}

/// The cluster's identity in a format of whatever program, if a line of it says one.
#[must_use]
pub fn cluster_of_any(format: &[u8]) -> Option<ClusterUuid> {
    let text = std::str::from_utf8(format).ok()?;
    text.lines().find_map(|line| uuid(line.strip_prefix("cluster ")?)).map(ClusterUuid)
}

/// Reads an epoch, as it stands under `epochs/<node>` and `epoch_floor`.
#[must_use]
pub fn decode_epoch(bytes: &[u8]) -> Option<u64> {
    std::str::from_utf8(bytes).ok().and_then(shown)
}

/// How others find a process, and what it can do. Fixed while the process lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contact {
    /// Where shard 0 listens; shard `s` listens `s` ports further.
    pub address: SocketAddr,
    /// Shard cores, at least 1.
    pub shards: u16,
    /// Version of the hash that places keys on them.
    pub hash_version: u16,
    /// Failure zone of the host; empty if none is named.
    pub zone: String,
    /// SHA-256 of the node's public key.
    pub key_fingerprint: [u8; 32],
    /// Identity of the host's boot: processes with the same one can share memory.
    pub boot_id: [u8; 16],
    /// Path of the socket for processes on the same host; empty if there is none.
    pub peer_socket: String,
    /// What it can do beyond what everybody can, such as transports, ascending.
    pub capabilities: Vec<String>,
}

impl Contact {
    /// Whether others could reach it and its record fits: what a node checks of itself before it joins.
    #[must_use]
    pub fn is_legal(&self) -> bool {
        let word = |text: &String| NodeId::new(text).is_ok() && text.len() <= 16;
        self.shards > 0
            && self.address.port().checked_add(self.shards - 1).is_some()
            && self.address.port() > 0
            && !self.address.ip().is_unspecified()
            && !self.address.ip().is_multicast()
            && (self.zone.is_empty() || NodeId::new(&self.zone).is_ok())
            && self.peer_socket.len() <= PEER_SOCKET_BYTES_MAX
            && !self.peer_socket.contains(char::is_control)
            && self.capabilities.len() <= CAPABILITIES_MAX
            && self.capabilities.is_sorted_by(|left, right| left < right)
            && self.capabilities.iter().all(word)
    }

    /// Whether it places keys on its shards as this program does: else nothing can be said of where its keys are.
    #[must_use]
    pub fn places_alike(&self) -> bool {
        self.hash_version == HASH_VERSION
    }

    /// Whether a port of one is a port of the other.
    #[must_use]
    pub fn overlaps(&self, other: &Contact) -> bool {
        let (own, others) = (u32::from(self.address.port()), u32::from(other.address.port()));
        self.address.ip() == other.address.ip()
            && own < others + u32::from(other.shards)
            && others < own + u32::from(self.shards)
    }

    /// Whether it has exactly the ports of the other.
    #[must_use]
    pub fn has_ports_of(&self, other: &Contact) -> bool {
        (self.address, self.shards) == (other.address, other.shards)
    }
}

/// One registration life of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberRecord {
    /// The operator's name of the node.
    pub node: NodeId,
    /// Grows at each registration of this node, from 1 on.
    pub epoch: u64,
    /// Random identity of this registration.
    pub incarnation: Incarnation,
    /// The process that lives it.
    pub contact: Contact,
}

impl MemberRecord {
    /// The text under `members/<node>`.
    ///
    /// # Panics
    /// If the contact is not legal.
    #[must_use]
    pub fn encode(&self) -> String {
        let Contact { address, shards, hash_version, zone, peer_socket, .. } = &self.contact;
        assert!(self.contact.is_legal() && self.epoch > 0, "a record nobody would accept: {self:?}");
        let text = format!(
            "node {}\nepoch {}\nincarnation {}\naddress {address}\nshards {shards}\nhash {hash_version}\nzone {zone}\n\
             key {}\nboot {}\nsocket {peer_socket}\ncapabilities {}\n",
            self.node,
            self.epoch,
            self.incarnation,
            digits(&self.contact.key_fingerprint),
            Incarnation(self.contact.boot_id),
            self.contact.capabilities.join(",")
        );
        assert!(text.len() <= MEMBER_RECORD_BYTES_MAX, "the bounds of its parts bound the record");
        text
    }

    /// Reads the text under `members/<node>`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<MemberRecord, RecordError> {
        let mut lines = Lines::of(bytes)?;
        let node = lines.take("node", shown)?;
        let epoch = lines.take("epoch", |value| shown(value).filter(|&epoch: &u64| epoch > 0))?;
        let incarnation = lines.take("incarnation", uuid).map(Incarnation)?;
        let words = |text: &str| text.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect();
        let contact = Contact {
            address: lines.take("address", shown)?,
            shards: lines.take("shards", shown)?,
            hash_version: lines.take("hash", shown)?,
            zone: lines.take("zone", |value| Some(value.to_owned()))?,
            key_fingerprint: lines.take("key", hexadecimal)?,
            boot_id: lines.take("boot", uuid)?,
            peer_socket: lines.take("socket", |value| Some(value.to_owned()))?,
            capabilities: lines.take("capabilities", |value| Some(words(value)))?,
        };
        lines.end()?;
        let record = MemberRecord { node, epoch, incarnation, contact };
        // What cannot be written again as it stands is not the one encoding of a record.
        let exact = record.contact.is_legal() && record.encode().as_bytes() == bytes;
        exact.then_some(record).ok_or(RecordError::Line { name: "address … capabilities" })
    }
}

const _: () = assert!(
    NODE_ID_BYTES_MAX * 2 + PEER_SOCKET_BYTES_MAX + CAPABILITIES_MAX * 17 + 460 <= MEMBER_RECORD_BYTES_MAX
);

#[cfg(test)]
mod tests;
