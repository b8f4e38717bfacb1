//! What a core may ask a shard, and what the shard answers. Commands own their data, so that
//! they can travel by mail to another core; the answer names the request by its tag.

use orbitkv_wire::engine::answers::{
    BlockRecord, CommitOutcome, EvictOutcome, Place, PrefetchOutcome, SlotRecord,
};
use orbitkv_wire::identity::ShardIndex;
use orbitkv_wire::identity::{BlockHash, GroupId, Incarnation, KeyHash, Medium, NamespaceDigest, Sequence};

use crate::coverage::CoreCoverage;
use crate::leases::{ConnectionId, InstanceId, LeaseError, LeaseToken};
use crate::reservations::ReservationId;
use crate::time::Moment;

/// Names an unanswered command: the core that sent it and that core's own number for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag {
    /// The core to answer.
    pub origin: ShardIndex,
    /// That core's number.
    pub number: u64,
}

/// One key of a command, with its position in the engine's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Position in the engine's request.
    pub index: u32,
    /// Index into the command's namespaces.
    pub namespace: u16,
    /// Layer group.
    pub group: GroupId,
    /// Block hash.
    pub block: BlockHash,
    /// Placement hash; the shard owns it.
    pub hash: KeyHash,
}

/// Which media an operation speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Media(u8);

impl Media {
    /// Media by wire mask: bit 0 DRAM, bit 1 SSD.
    #[must_use]
    pub fn from_mask(mask: u8) -> Media {
        Media(mask & 3)
    }

    /// Whether `medium` is among them.
    #[must_use]
    pub fn contains(self, medium: Medium) -> bool {
        self.0 & (1 << medium as u8) != 0
    }
}

/// Who pins what a Query finds.
#[derive(Clone, Copy, Debug)]
pub struct Holder {
    /// Token of the hold.
    pub token: LeaseToken,
    /// Whose it is.
    pub instance: InstanceId,
    /// Which connection is charged.
    pub connection: ConnectionId,
}

/// A command.
#[derive(Debug)]
pub enum Command {
    /// Where are these keys?
    Query {
        /// Namespaces the keys refer to.
        namespaces: Vec<NamespaceDigest>,
        /// The keys.
        keys: Vec<Key>,
        /// Pins local hits, if given and the shard is not draining.
        hold: Option<Holder>,
    },
    /// Slots for these keys.
    Reserve {
        /// Whose reservations.
        connection: ConnectionId,
        /// Their namespace.
        namespace: NamespaceDigest,
        /// Give a slot although another connection is saving the key.
        race: bool,
        /// Keys and payload bytes.
        keys: Vec<(Key, u64)>,
    },
    /// Publish these reservations.
    Commit {
        /// Whose reservations.
        connection: ConnectionId,
        /// Position in the request, and the reservation.
        reservations: Vec<(u32, ReservationId)>,
    },
    /// Give these reservations back.
    Abort {
        /// Whose reservations.
        connection: ConnectionId,
        /// Position in the request, and the reservation.
        reservations: Vec<(u32, ReservationId)>,
    },
    /// Make these keys ready under a lease.
    Acquire {
        /// The lease: a new token, or that of a hold to be taken over.
        holder: Holder,
        /// Namespaces the keys refer to.
        namespaces: Vec<NamespaceDigest>,
        /// The keys.
        keys: Vec<Key>,
        /// When its engine waits no longer: whoever brings a block of a peer has no more time.
        until: Moment,
    },
    /// Bring these keys into DRAM before they are acquired, as far as nobody is in the way. Answered at once.
    Prefetch {
        /// Who will want them: with its end they are wanted no more.
        connection: ConnectionId,
        /// Namespaces the keys refer to.
        namespaces: Vec<NamespaceDigest>,
        /// The keys.
        keys: Vec<Key>,
        /// When they will have been acquired.
        until: Moment,
    },
    /// Stop an Acquire or a Sync; it is answered by what had not come yet.
    Cancel {
        /// The command to stop.
        tag: Tag,
        /// Whether its deadline passed (else: the engine asked).
        deadline: bool,
    },
    /// Join a lease.
    Attach {
        /// The lease, the joining connection and its instance.
        holder: Holder,
    },
    /// Leave a lease.
    Release {
        /// The lease.
        token: LeaseToken,
        /// Who leaves.
        connection: ConnectionId,
    },
    /// Drop keys.
    Evict {
        /// Their namespace.
        namespace: NamespaceDigest,
        /// From where.
        media: Media,
        /// The keys.
        keys: Vec<Key>,
    },
    /// Drop a namespace. Answered once, when [`Shard::step`](crate::shard::Shard::step) has gone through it.
    Clear {
        /// The namespace.
        namespace: NamespaceDigest,
        /// From where.
        media: Media,
    },
    /// A page of residents.
    List {
        /// The namespace.
        namespace: NamespaceDigest,
        /// Of which media.
        media: Media,
        /// Where to go on: group and block of the last entry.
        after: Option<(GroupId, BlockHash)>,
        /// Entries wanted.
        limit: u32,
    },
    /// Wait until everything committed so far is on SSD, as far as it will ever be.
    Sync,
    /// The connection's socket is closed.
    Disconnected {
        /// The connection.
        connection: ConnectionId,
    },
    /// The connection's process is gone or declared it unused.
    Gone {
        /// The connection.
        connection: ConnectionId,
    },
    /// Take no new work.
    Drain,
    /// Serve a new registration life: the journal begins again, and every resident is put again. Answered
    /// once, when [`Shard::step`](crate::shard::Shard::step) has gone through them, by LifeBegun; or by
    /// Cancelled, when another life takes its place before that.
    BeginLife(Incarnation),
    /// Figures for the operator.
    Report,
}

impl Command {
    /// How much work it is, in keys: what a driver budgets its turns by.
    #[must_use]
    pub fn units(&self) -> usize {
        match self {
            Command::Query { keys, .. } | Command::Acquire { keys, .. } | Command::Evict { keys, .. } => {
                keys.len()
            }
            Command::Prefetch { keys, .. } => keys.len(),
            Command::Reserve { keys, .. } => keys.len(),
            Command::Commit { reservations, .. } | Command::Abort { reservations, .. } => reservations.len(),
            Command::List { limit, .. } => *limit as usize,
            _ => 1,
        }
    }
}

/// One listed residence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Layer group.
    pub group: GroupId,
    /// Block hash.
    pub block: BlockHash,
    /// Medium.
    pub medium: Medium,
    /// Payload bytes.
    pub bytes: u64,
    /// Residency sequence.
    pub sequence: Sequence,
}

/// One block of a lease, as shown to a joining process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Layer group.
    pub group: GroupId,
    /// Block hash.
    pub block: BlockHash,
    /// Offset in the arena.
    pub offset: u64,
    /// Payload bytes.
    pub bytes: u64,
}

/// Where the keys of a Query are. A shard says what is here; whoever knows of peers adds to that what they
/// have of the keys that are not.
#[derive(Debug)]
pub struct Places {
    /// Best place of each key, by its position in the engine's request.
    pub found: Vec<(u32, Place)>,
    /// Namespaces the keys refer to: those of the command.
    pub namespaces: Vec<NamespaceDigest>,
    /// The keys, in the order of the places.
    pub keys: Vec<Key>,
    /// What is known of peers; none if there are none to know of.
    pub peers: Option<PeersPart>,
}

/// What one core knows of peers, for one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeersPart {
    /// How far its owner streams are, for the worst of the namespaces.
    pub coverage: CoreCoverage,
    /// Grows with every view that is installed or ends: equal numbers, equal views.
    pub view_generation: u64,
}

/// What a shard answers.
#[derive(Debug)]
pub enum Outcome {
    /// Query: place of each key.
    Places(Places),
    /// Reserve: slot of each key.
    Slots(Vec<(u32, SlotRecord)>),
    /// Commit and Abort.
    Committed(Vec<(u32, CommitOutcome)>),
    /// Acquire: blocks decided since the last answer; `done` with the last.
    Blocks {
        /// The blocks.
        blocks: Vec<BlockRecord>,
        /// Whether every key of the command has been answered.
        done: bool,
    },
    /// Prefetch: what is done about each key.
    Prefetched(Vec<(u32, PrefetchOutcome)>),
    /// Acquire, Attach, Release or a holding Query could not be done.
    LeaseRefused(LeaseError),
    /// Attach: this shard's blocks of the lease.
    Attached(Vec<Attached>),
    /// Release, Cancel, Gone, Drain.
    Done,
    /// Disconnected: whether the connection's process still has slots or leases here.
    Disconnected {
        /// It does, until it is gone.
        claims: bool,
    },
    /// Evict.
    Evicted(Vec<(u32, EvictOutcome)>),
    /// Clear.
    Cleared {
        /// Residences ended.
        removed: u64,
        /// Of those, with memory still in use.
        in_use: u64,
    },
    /// List.
    Listed {
        /// Residences in key order.
        residents: Vec<Resident>,
        /// Where to go on; `None` after the last.
        next: Option<(GroupId, BlockHash)>,
    },
    /// Sync: head of the journal.
    Synced(Sequence),
    /// BeginLife: every resident has a sequence of the new life.
    LifeBegun,
    /// Sync or the like was cancelled.
    Cancelled,
    /// New work is refused while draining.
    Draining,
    /// The node knows as many namespaces as it may.
    NamespacesFull,
    /// Report.
    Figures(Box<crate::shard::Figures>),
}

/// An answer on its way to the asking core.
#[derive(Debug)]
pub struct Reply {
    /// What is answered.
    pub tag: Tag,
    /// Which shard answers.
    pub shard: ShardIndex,
    /// The life it speaks for.
    pub incarnation: Incarnation,
    /// The answer.
    pub outcome: Outcome,
}
