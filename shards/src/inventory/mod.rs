//! Inventory streams: how a shard tells its peers what it holds, and how a core learns what theirs hold
//! (chapter 2).
//!
//! Two rooms for the two ends of a session, which never see each other: what passes between them is
//! frames. Both are driven by connections that somebody else opens, reads and closes.

pub mod permits;
pub mod publisher;
pub mod subscriber;

/// Number of an inventory connection, unique in the life of the core that owns it. A connection carries
/// one session; a new session has a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// Names one wish for a snapshot permit; unique in the life of the room that wishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PermitTicket(pub u64);
