//! What membership tells whoever drives it: what to do, and what an operator should know.

use orbitkv_wire::identity::Incarnation;
use thiserror::Error;

use super::claim::Refusal;
use super::coordinator::{Failure, LeaseId, Request};
use super::refresh::LookupDone;
use super::roster::Roster;
use super::view::{Break, Flaw, OtherHistory};
use crate::members::Local;
use crate::time::Moment;

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Ask etcd, and hand the answer to [`on_answer`](super::Membership::on_answer) with the number. A
    /// question before it that has no answer yet is given up.
    Ask {
        /// Number of the question.
        number: u64,
        /// The question.
        request: Request,
    },
    /// Ask etcd for one record, beside whatever else is asked, and hand the answer to
    /// [`on_answer`](super::Membership::on_answer) with the number.
    Lookup {
        /// Number of the question.
        number: u64,
        /// The question.
        request: Request,
    },
    /// Ask for more time, and hand the answer to [`on_renewed`](super::Membership::on_renewed).
    Renew {
        /// Number of the renewal.
        number: u64,
        /// The lease.
        lease: LeaseId,
    },
    /// Watch all keys of the cluster, in place of what was watched before. What comes goes to
    /// [`on_news`](super::Membership::on_news).
    Watch {
        /// Number of the watch.
        number: u64,
        /// It begins with the revision after this one.
        after: u64,
    },
    /// This life is over for good: close its sessions, read and grant nothing in its name.
    Fenced {
        /// The life.
        incarnation: Incarnation,
        /// Why.
        cause: FenceCause,
    },
    /// Draw an incarnation, let every shard begin it, and say so with
    /// [`on_life_ready`](super::Membership::on_life_ready).
    BeginLife,
    /// The life is registered: its record is in etcd.
    Registered(Local),
    /// The life may speak to others until then, and not at that moment any more.
    Admit {
        /// `CLOCK_BOOTTIME`.
        until: Moment,
    },
    /// The members, as far as known.
    Members(Roster),
    /// A record that somebody waited for has been read; what is new of it was told before.
    LookedUp(LookupDone),
    /// What is known of the members can no longer be trusted, until the next [`Effect::Members`].
    Suspended(SuspendCause),
    /// An operator should know.
    Alarm(Alarm),
    /// The registration is withdrawn, or nothing can be done about it any more.
    Withdrawn,
}

/// Why a life is over.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FenceCause {
    /// etcd did not acknowledge a renewal in time.
    #[error("the lease could not be renewed in time")]
    DeadlinePassed,
    /// etcd says that the lease has ended.
    #[error("etcd has ended the lease")]
    LeaseGone,
    /// The record has been removed.
    #[error("somebody removed the member record")]
    RecordRemoved,
    /// Another life has the record.
    #[error("{by} with epoch {epoch} has taken the place of this life")]
    Replaced {
        /// The other life.
        by: Incarnation,
        /// Its epoch.
        epoch: u64,
    },
    /// Another life has the same epoch.
    #[error("{other} has the same epoch {epoch}: both are refused")]
    EqualEpoch {
        /// The other life.
        other: Incarnation,
        /// The epoch of both.
        epoch: u64,
    },
    /// A registration was sent whose outcome is not known and may no longer be waited for.
    #[error("whether it was registered is not known")]
    Undecided,
    /// etcd is not what it was.
    #[error("{0}")]
    OtherHistory(OtherHistory),
    /// The cluster is not what it was.
    #[error("{0}")]
    OtherCluster(Refusal),
    /// The node stops.
    #[error("the node stops")]
    Withdrawn,
}

/// Why the members are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SuspendCause {
    /// Something is missing.
    #[error("{0}")]
    Break(#[from] Break),
    /// etcd is not what it was.
    #[error("{0}")]
    OtherHistory(#[from] OtherHistory),
}

/// What an operator should know.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Alarm {
    /// An endpoint belongs to another etcd cluster.
    #[error(
        "etcd's cluster id is {found:x} and was {expected:x}: an endpoint of --etcd belongs to another cluster; it is not believed"
    )]
    ForeignCoordinator {
        /// The id of the first answer.
        expected: u64,
        /// The other.
        found: u64,
    },
    /// etcd is not what it was.
    #[error("{0}; this node begins a new life in it")]
    OtherHistory(OtherHistory),
    /// Somebody is no member for this node.
    #[error("{0}")]
    Flaw(#[from] Flaw),
    /// Two lives of this node have one epoch.
    #[error("{other} has epoch {epoch} of this node too: both are refused")]
    EqualEpoch {
        /// The other life.
        other: Incarnation,
        /// The epoch of both.
        epoch: u64,
    },
    /// The node may not register.
    #[error("not registered: {0}")]
    Refused(#[from] Refusal),
    /// etcd fails.
    #[error("{0}")]
    Trouble(#[from] Failure),
}

/// Where the node stands.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Standing {
    /// Shards begin a life.
    #[error("beginning a life")]
    Beginning,
    /// The life is not registered yet.
    #[error("joining")]
    Joining,
    /// The life may not be registered.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// etcd does not let the life be registered.
    #[error("joining: {0}")]
    Troubled(Failure),
    /// Registered, and the members are known.
    #[error("member")]
    Member,
    /// Registered, and the members are not known.
    #[error("suspended: {0}")]
    Suspended(SuspendCause),
    /// Gone or about to be.
    #[error("leaving")]
    Leaving,
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Lives registered.
    pub registrations: u64,
    /// Lives fenced, withdrawals not counted.
    pub fences: u64,
    /// Renewals acknowledged.
    pub renewals: u64,
    /// Questions and renewals that nobody answered.
    pub unanswered: u64,
    /// Watches that ended.
    pub watches_ended: u64,
    /// Times that the members were no longer known.
    pub suspensions: u64,
    /// Snapshots taken over.
    pub snapshots: u64,
    /// Alarms raised.
    pub alarms: u64,
    /// Members that had another life when somebody at their address showed another key.
    pub superseded: u64,
    /// Reads of all members that a doubt has caused.
    pub rereads: u64,
    /// Reads of a single record.
    pub lookups: u64,
}
