//! The words in which membership speaks of etcd: what it asks, and what comes back. Keys are already
//! understood and values are still bytes; who carries them is not known here.

use std::time::Duration;

use orbitkv_wire::identity::NodeId;
use orbitkv_wire::membership::Key;
use thiserror::Error;

/// A lease of etcd: what hangs on it is gone when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseId(pub i64);

/// What every answer carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// etcd's identity of its own cluster.
    pub coordinator: u64,
    /// Its revision when it answered; grows by one with each change of anything.
    pub revision: u64,
}

/// A key as it stands at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub key: Key,
    /// What it holds.
    pub value: Vec<u8>,
    /// Revision of its last change.
    pub revision: u64,
    /// Changes since it was last absent, from 1 on.
    pub version: u64,
    /// The lease it hangs on, if it does.
    pub lease: Option<LeaseId>,
}

/// All keys of the cluster at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The revision.
    pub revision: u64,
    /// Every key once, ascending.
    pub entries: Vec<Entry>,
}

impl Snapshot {
    /// The key, if it is there.
    #[must_use]
    pub fn get(&self, key: Key) -> Option<&Entry> {
        self.entries.binary_search_by_key(&key, |entry| entry.key).ok().map(|place| &self.entries[place])
    }

    /// Revision of the key's last change; 0 if it is absent.
    #[must_use]
    pub fn revision_of(&self, key: Key) -> u64 {
        self.get(key).map_or(0, |entry| entry.revision)
    }

    /// The keys of members.
    pub fn members(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| matches!(entry.key, Key::Member(_)))
    }
}

/// A condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The key was last changed at this revision; 0 means that it is absent.
    Revision(Key, u64),
    /// The key holds exactly this.
    Value(Key, Vec<u8>),
    /// There is no member at all.
    NoMembers,
}

/// A change of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// The key holds this from now on, and ends with the lease if one is named.
    Put(Key, Vec<u8>, Option<LeaseId>),
    /// The key is absent from now on.
    Delete(Key),
}

/// All of its changes at one revision, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// What must hold.
    pub compares: Vec<Compare>,
    /// What happens then.
    pub writes: Vec<Write>,
}

/// What membership asks. There is one question at a time: a newer one takes the place of the former,
/// whose answer no longer matters; and beside it at most one [`Request::Lookup`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// All keys of the cluster at one revision, not older than any answered change.
    Read,
    /// The member record of one node, not older than any answered change.
    Lookup(NodeId),
    /// A lease of this length.
    Grant(Duration),
    /// A transaction.
    Transact(Transaction),
    /// How long a lease has still to live.
    TimeToLive(LeaseId),
    /// The end of a lease and of what hangs on it.
    Revoke(LeaseId),
}

/// What etcd answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To [`Request::Read`].
    Read(Snapshot),
    /// To [`Request::Lookup`]; none if there is no record.
    LookedUp(Option<Entry>),
    /// To [`Request::Grant`]: the lease and the length that was granted.
    Granted(LeaseId, Duration),
    /// To [`Request::Transact`]: whether the conditions held, and so whether it happened.
    Transacted(bool),
    /// To [`Request::TimeToLive`]; none if the lease has ended.
    TimeToLive(Option<Duration>),
    /// To [`Request::Revoke`].
    Revoked,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Failure {
    /// Nobody answered in time: the request may have been carried out, or may still be.
    #[error("etcd does not answer: {0}")]
    Unanswered(String),
    /// Refused and not carried out: the lease has ended.
    #[error("the lease has ended")]
    LeaseGone,
    /// Refused and not carried out: etcd has no space left.
    #[error(
        "etcd has no space left (its quota is used up): compact and defragment it, then disarm its alarm"
    )]
    NoSpace,
    /// Refused and not carried out: the user or the certificate may not.
    #[error("etcd refuses this node: {0}; check --etcd-user-file, --etcd-cert and the role of the node")]
    Denied(String),
    /// Refused and not carried out, for another reason.
    #[error("etcd refuses: {0}")]
    Refused(String),
}

/// A change that the watch shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The key.
    pub key: Key,
    /// Revision of the change.
    pub revision: u64,
    /// What it holds now; none if it is absent.
    pub put: Option<Put>,
}

/// What a key holds after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// The bytes.
    pub value: Vec<u8>,
    /// Changes since it was last absent, from 1 on.
    pub version: u64,
}

/// What comes from a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// It is there.
    Created,
    /// Changes, in order of revision, those of one revision together.
    Events(Vec<Event>),
    /// What it should have begun with is no longer kept.
    Compacted,
    /// It has ended and nothing more comes.
    Ended(String),
}
