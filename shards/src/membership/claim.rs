//! Whether a node may register, and by which transaction. Pure: one snapshot in, one decision out.
//!
//! Every transaction names the revisions it was decided on. So of two that were decided on the same
//! snapshot at most one happens, and one whose answer was lost can simply be decided again.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use orbitkv_wire::identity::{ClusterUuid, Incarnation, NodeId};
use orbitkv_wire::membership::{CARRIER, Contact, Format, Key, MemberRecord, PROTOCOL, decode_epoch};
use thiserror::Error;

use super::coordinator::{Compare, Entry, LeaseId, Snapshot, Transaction, Write};

/// What a process brings to its registrations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applicant {
    /// Its node.
    pub node: NodeId,
    /// Ports that it has bound, and the rest of how others find it.
    pub contact: Contact,
    /// Identity of a cluster it would create.
    pub cluster_draft: ClusterUuid,
}

/// Why a node may not register. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The cluster has another format.
    #[error(
        "the cluster's format is `{found}`, and this program speaks {PROTOCOL} over {CARRIER}: use another --cluster, or migrate it"
    )]
    ForeignFormat {
        /// What stands there, shortened.
        found: String,
    },
    /// There are members and no format.
    #[error("the cluster has members and no format: it is of another program; use another --cluster")]
    FormatMissing,
    /// The name stands for another cluster than before.
    #[error(
        "the cluster is {found} now and was {expected}: somebody made it anew; restart this node to join it"
    )]
    ForeignCluster {
        /// What this process joined.
        expected: ClusterUuid,
        /// What stands there.
        found: ClusterUuid,
    },
    /// Another process lives under this node's name.
    #[error("{0}")]
    Held(Box<Holder>),
    /// Under this node's name stands something that is no record.
    #[error("under the name of {node} stands a member record that cannot be read")]
    HeldByStranger {
        /// This node's name.
        node: NodeId,
    },
    /// A member of another name has one of our ports.
    #[error(
        "{by} is a member with ports of {address}, which this process has bound: it must be gone; waiting for its lease to end"
    )]
    PortsTaken {
        /// Who.
        by: NodeId,
        /// Our address.
        address: SocketAddr,
    },
    /// What should be an epoch is none, or there is none left.
    #[error("the value under {0} is no epoch that another could follow")]
    Epoch(&'static str),
}

/// Who lives under this node's name elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// This node's name.
    pub node: NodeId,
    /// Where the other is.
    pub address: SocketAddr,
    /// Its epoch.
    pub epoch: u64,
    /// What its record hangs on.
    pub lease: Option<LeaseId>,
    /// How long it has still to live unless it renews, if that was asked.
    pub time_to_live: Option<Duration>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is alive at {} with epoch {}", self.node, self.address, self.epoch)?;
        if let Some(time) = self.time_to_live {
            write!(f, " and lives {} s more unless it renews", time.as_secs())?;
        }
        f.write_str(": stop it, or give this node another --node-id")
    }
}

/// What to do about registering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nobody was here before: make the format first.
    Found(Transaction),
    /// Claim this epoch. The transaction lacks the lease, which [`claim`] adds.
    Claim {
        /// The epoch.
        epoch: u64,
        /// The cluster.
        cluster: ClusterUuid,
        /// What the claim is decided on.
        compares: Vec<Compare>,
    },
    /// The claim has happened already: its answer was lost.
    Registered {
        /// The epoch it got.
        epoch: u64,
        /// The cluster.
        cluster: ClusterUuid,
        /// The revision at which it happened.
        revision: u64,
    },
    /// Not now.
    Refuse(Refusal),
}

/// The cluster that the snapshot's format names.
///
/// # Errors
/// If it is none of ours, or not `expected`.
pub fn cluster_of(format: &Entry, expected: Option<ClusterUuid>) -> Result<ClusterUuid, Refusal> {
    let found = Format::decode(&format.value).map_err(|_| {
        let text = String::from_utf8_lossy(&format.value[..format.value.len().min(120)]);
        Refusal::ForeignFormat { found: text.trim().escape_debug().to_string() }
    })?;
    match expected {
        Some(expected) if expected != found.cluster => {
            Err(Refusal::ForeignCluster { expected, found: found.cluster })
        }
        _ => Ok(found.cluster),
    }
}

/// Decides on one snapshot. `claimed` is the life that an earlier claim may have registered, with its
/// lease; `epoch_least` is what this process knows of its node's epochs.
#[must_use]
pub fn decide(
    applicant: &Applicant,
    expected: Option<ClusterUuid>,
    claimed: Option<(Incarnation, LeaseId)>,
    epoch_least: u64,
    snapshot: &Snapshot,
) -> Decision {
    let Some(format) = snapshot.get(Key::Format) else {
        if snapshot.members().next().is_some() {
            return Decision::Refuse(Refusal::FormatMissing);
        }
        if let Some(expected) = expected {
            let found = applicant.cluster_draft;
            return Decision::Refuse(Refusal::ForeignCluster { expected, found });
        }
        return Decision::Found(Transaction {
            compares: vec![Compare::Revision(Key::Format, 0), Compare::NoMembers],
            writes: vec![Write::Put(
                Key::Format,
                Format { cluster: applicant.cluster_draft }.encode().into_bytes(),
                None,
            )],
        });
    };
    let cluster = match cluster_of(format, expected) {
        Ok(cluster) => cluster,
        Err(refusal) => return Decision::Refuse(refusal),
    };
    let node = applicant.node;
    let member = Key::Member(node);
    let mut epoch_held = 0;
    if let Some(entry) = snapshot.get(member) {
        let Ok(record) = MemberRecord::decode(&entry.value) else {
            return Decision::Refuse(Refusal::HeldByStranger { node });
        };
        epoch_held = record.epoch;
        let is_claimed = |(life, lease)| record.incarnation == life && entry.lease == Some(lease);
        if claimed.is_some_and(is_claimed) {
            return Decision::Registered { epoch: record.epoch, cluster, revision: entry.revision };
        }
        // Its ports are ours now, so its process is gone.
        if !record.contact.has_ports_of(&applicant.contact) {
            let MemberRecord { epoch, contact, .. } = record;
            let (address, lease) = (contact.address, entry.lease);
            let holder = Holder { node, address, epoch, lease, time_to_live: None };
            return Decision::Refuse(Refusal::Held(Box::new(holder)));
        }
    }
    if let Some(by) = port_holder(applicant, snapshot) {
        return Decision::Refuse(Refusal::PortsTaken { by, address: applicant.contact.address });
    }
    let mut highest = epoch_least.max(epoch_held);
    for (key, name) in [(Key::Epoch(node), "epochs"), (Key::EpochFloor, "epoch_floor")] {
        match snapshot.get(key).map(|entry| decode_epoch(&entry.value)) {
            None => {}
            Some(Some(epoch)) => highest = highest.max(epoch),
            Some(None) => return Decision::Refuse(Refusal::Epoch(name)),
        }
    }
    let Some(epoch) = highest.checked_add(1) else {
        return Decision::Refuse(Refusal::Epoch("epochs"));
    };
    let unchanged = [Key::Format, Key::Epoch(node), member, Key::EpochFloor];
    let mut compares = vec![Compare::Value(Key::Format, format.value.clone())];
    compares.extend(unchanged.map(|key| Compare::Revision(key, snapshot.revision_of(key))));
    Decision::Claim { epoch, cluster, compares }
}

/// The transaction that registers a life under a lease.
#[must_use]
pub fn claim(
    applicant: &Applicant,
    incarnation: Incarnation,
    epoch: u64,
    lease: LeaseId,
    compares: Vec<Compare>,
) -> Transaction {
    let (node, contact) = (applicant.node, applicant.contact.clone());
    let record = MemberRecord { node, epoch, incarnation, contact };
    let writes = vec![
        Write::Put(Key::Epoch(node), epoch.to_string().into_bytes(), None),
        Write::Put(Key::Member(node), record.encode().into_bytes(), Some(lease)),
    ];
    Transaction { compares, writes }
}

/// A member of another name on one of our ports.
fn port_holder(applicant: &Applicant, snapshot: &Snapshot) -> Option<NodeId> {
    let records = snapshot.members().filter_map(|entry| MemberRecord::decode(&entry.value).ok());
    let mut others = records.filter(|record| record.node != applicant.node);
    others.find(|record| record.contact.overlaps(&applicant.contact)).map(|record| record.node)
}

/// Why the epoch of a node cannot be cleaned up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NotRetired {
    /// It is a member.
    #[error("{0} is a member: stop it first")]
    Alive(NodeId),
    /// There is nothing to clean up.
    #[error("{0} has no epoch: it never joined, or was cleaned up before")]
    Unknown(NodeId),
    /// What stands there is no epoch.
    #[error("the value under {0} is no epoch: nothing was changed")]
    Epoch(&'static str),
}

/// The transaction that cleans up after a node that will not come back: its epoch goes, and the floor
/// from which new nodes start rises to it.
///
/// # Errors
/// If there is nothing to clean up, or the node is a member.
pub fn retire(node: NodeId, snapshot: &Snapshot) -> Result<Transaction, NotRetired> {
    let (epoch, member) = (Key::Epoch(node), Key::Member(node));
    if snapshot.get(member).is_some() {
        return Err(NotRetired::Alive(node));
    }
    let last = snapshot.get(epoch).ok_or(NotRetired::Unknown(node))?;
    let last = decode_epoch(&last.value).ok_or(NotRetired::Epoch("epochs"))?;
    let floor = match snapshot.get(Key::EpochFloor) {
        None => 0,
        Some(entry) => decode_epoch(&entry.value).ok_or(NotRetired::Epoch("epoch_floor"))?,
    };
    let unchanged = [epoch, member, Key::EpochFloor];
    Ok(Transaction {
        compares: unchanged.map(|key| Compare::Revision(key, snapshot.revision_of(key))).into(),
        writes: vec![
            Write::Put(Key::EpochFloor, last.max(floor).to_string().into_bytes(), None),
            Write::Delete(epoch),
        ],
    })
}
