//! Leases of one shard: who may read which DRAM copies, and until when.
//!
//! A lease belongs to an engine instance and counts attachments per connection. It ends with the
//! last release or with the proved death of the last attached process, never by a timer. A *hold*
//! is the exception: nobody reads under it, so it may also expire.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hashbrown::HashMap;
use thiserror::Error;

use crate::key::StateKey;
use crate::residents::CopyId;
use crate::time::Moment;

/// Number of an engine connection, unique in the node's process life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// Number of an engine instance, unique in the node's process life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceId(pub u64);

/// Names a lease in every shard that has a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseToken(pub u128);

/// What a lease allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseKind {
    /// Pins what a Query found; nobody reads.
    Hold {
        /// When the pins end by themselves.
        expires: Moment,
    },
    /// Engines read the extents.
    Acquired,
}

/// One block of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeasedBlock {
    /// The pinned copy.
    pub copy: CopyId,
    /// The block's name.
    pub key: StateKey,
    /// Payload bytes.
    pub bytes: u64,
    /// Bytes of its slot: what the lease is charged with, so that bytes bound the number of blocks.
    pub slot_bytes: u64,
    /// Offset in the arena.
    pub offset: u64,
}

/// A share of what a connection may lease, taken for a block before it is read. It becomes a block in
/// [`Leases::add_reserved`] or ends in [`Leases::unreserve`]; with its lease it ends by itself.
#[derive(Debug)]
#[must_use = "a share that is dropped stays taken as long as its lease lives"]
pub struct ReservedShare {
    token: LeaseToken,
    /// Which life of the token.
    birth: u64,
    bytes: u64,
}

impl ReservedShare {
    /// The lease.
    #[must_use]
    pub fn token(&self) -> LeaseToken {
        self.token
    }

    /// Slot bytes of the block it is for.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Why a lease operation was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LeaseError {
    /// No such lease, or this connection has no share of it.
    #[error("no such lease, or it has ended")]
    Unknown,
    /// The lease belongs to another instance.
    #[error("the lease belongs to another engine instance")]
    Foreign,
    /// The connection has as many leases as it may have.
    #[error("the connection holds {limit} leases, the most it may: release some")]
    TooMany {
        /// The bound.
        limit: usize,
    },
}

struct Lease {
    instance: InstanceId,
    kind: LeaseKind,
    charged: ConnectionId,
    attachments: BTreeMap<ConnectionId, u64>,
    blocks: Vec<LeasedBlock>,
    bytes: u64,
    reserved_blocks: usize,
    reserved_bytes: u64,
    birth: u64,
}

#[derive(Default)]
struct Share {
    leases: usize,
    bytes: u64,
    reserved_bytes: u64,
}

/// Bounds of the table.
#[derive(Clone, Copy, Debug)]
pub struct LeaseSettings {
    /// Leases one connection may be charged with.
    pub leases_per_connection_max: usize,
    /// Leased slot bytes one connection may be charged with.
    pub bytes_per_connection_max: u64,
    /// Blocks of one lease, those to come included: an Attach shows them all in one answer.
    pub blocks_per_lease_max: usize,
    /// Life of a hold that is neither acquired nor released.
    pub hold_time: Duration,
}

/// The table.
pub struct Leases {
    settings: LeaseSettings,
    leases: BTreeMap<LeaseToken, Lease>,
    shares: HashMap<ConnectionId, Share>,
    /// Leases that a connection is attached to, so that its end looks at no others.
    attached: HashMap<ConnectionId, BTreeSet<LeaseToken>>,
    hold_expiries: BTreeMap<(Moment, LeaseToken), ()>,
    births: u64,
    blocks: u64,
    bytes: u64,
    reserved_bytes: u64,
    holds_expired: u64,
}

impl Leases {
    /// An empty table.
    #[must_use]
    pub fn new(settings: LeaseSettings) -> Leases {
        Leases {
            settings,
            leases: BTreeMap::new(),
            shares: HashMap::new(),
            attached: HashMap::new(),
            hold_expiries: BTreeMap::new(),
            births: 0,
            blocks: 0,
            bytes: 0,
            reserved_bytes: 0,
            holds_expired: 0,
        }
    }

    /// Opens a lease, or takes over the hold of the same token. Blocks that the hold had pinned are
    /// returned through `ended`, to be unpinned after the new pins are in place.
    ///
    /// # Errors
    /// [`LeaseError::Foreign`] for another instance's hold, [`LeaseError::TooMany`] at the bound.
    pub fn open(
        &mut self,
        token: LeaseToken,
        instance: InstanceId,
        connection: ConnectionId,
        ended: &mut Vec<LeasedBlock>,
    ) -> Result<(), LeaseError> {
        if let Some(lease) = self.leases.get(&token) {
            if lease.instance != instance {
                return Err(LeaseError::Foreign);
            }
            match lease.kind {
                LeaseKind::Acquired => return self.attach(token, instance, connection).map(|_| ()),
                // Refused before the hold ends: a refusal changes nothing.
                LeaseKind::Hold { .. } if lease.charged != connection => self.may_create(connection)?,
                LeaseKind::Hold { .. } => {}
            }
            self.end(token, ended);
        }
        self.create(token, instance, connection, LeaseKind::Acquired)
    }

    /// Opens a hold.
    ///
    /// # Errors
    /// [`LeaseError::TooMany`] at the bound; [`LeaseError::Unknown`] if the token is in use.
    pub fn hold(
        &mut self,
        token: LeaseToken,
        instance: InstanceId,
        connection: ConnectionId,
        now: Moment,
    ) -> Result<(), LeaseError> {
        match self.leases.get(&token) {
            // A query works in batches: later ones add to the hold of the first.
            Some(lease) if matches!(lease.kind, LeaseKind::Hold { .. }) && lease.charged == connection => {
                Ok(())
            }
            Some(_) => Err(LeaseError::Unknown),
            None => {
                let expires = now + self.settings.hold_time;
                self.create(token, instance, connection, LeaseKind::Hold { expires })
            }
        }
    }

    fn create(
        &mut self,
        token: LeaseToken,
        instance: InstanceId,
        connection: ConnectionId,
        kind: LeaseKind,
    ) -> Result<(), LeaseError> {
        self.may_create(connection)?;
        self.shares.entry(connection).or_default().leases += 1;
        if let LeaseKind::Hold { expires } = kind {
            self.hold_expiries.insert((expires, token), ());
        }
        self.births += 1;
        let lease = Lease {
            instance,
            kind,
            charged: connection,
            attachments: BTreeMap::from([(connection, 1)]),
            blocks: Vec::new(),
            bytes: 0,
            reserved_blocks: 0,
            reserved_bytes: 0,
            birth: self.births,
        };
        self.leases.insert(token, lease);
        self.attached.entry(connection).or_default().insert(token);
        Ok(())
    }

    fn may_create(&self, connection: ConnectionId) -> Result<(), LeaseError> {
        let limit = self.settings.leases_per_connection_max;
        let leases = self.shares.get(&connection).map_or(0, |share| share.leases);
        if leases < limit { Ok(()) } else { Err(LeaseError::TooMany { limit }) }
    }

    /// Whether a lease goes on.
    #[must_use]
    pub fn contains(&self, token: LeaseToken) -> bool {
        self.leases.contains_key(&token)
    }

    /// Whether another slot of `slot_bytes` fits the lease and what its connection may be charged with, beside
    /// what it has and what is reserved.
    #[must_use]
    pub fn fits(&self, token: LeaseToken, slot_bytes: u64) -> bool {
        self.leases.get(&token).is_some_and(|lease| {
            let share = &self.shares[&lease.charged];
            let charged = share.bytes + share.reserved_bytes;
            charged.saturating_add(slot_bytes) <= self.settings.bytes_per_connection_max
                && lease.blocks.len() + lease.reserved_blocks < self.settings.blocks_per_lease_max
        })
    }

    /// Takes the share of a block that will be read; `None` if it does not fit.
    pub fn reserve(&mut self, token: LeaseToken, slot_bytes: u64) -> Option<ReservedShare> {
        if !self.fits(token, slot_bytes) {
            return None;
        }
        let lease = self.leases.get_mut(&token).expect("it fits");
        lease.reserved_blocks += 1;
        lease.reserved_bytes += slot_bytes;
        let share = self.shares.get_mut(&lease.charged).expect("a charged connection has a share");
        share.reserved_bytes += slot_bytes;
        self.reserved_bytes += slot_bytes;
        let birth = lease.birth;
        self.assert_invariants();
        Some(ReservedShare { token, birth, bytes: slot_bytes })
    }

    /// Gives a reserved share back. Returns whether its lease goes on.
    pub fn unreserve(&mut self, share: ReservedShare) -> bool {
        let ReservedShare { token, birth, bytes } = share;
        let Some(lease) = self.leases.get_mut(&token).filter(|lease| lease.birth == birth) else {
            return false;
        };
        let charged = self.shares.get_mut(&lease.charged).expect("a charged connection has a share");
        assert!(lease.reserved_bytes >= bytes, "a share is given back once");
        lease.reserved_blocks -= 1;
        lease.reserved_bytes -= bytes;
        charged.reserved_bytes -= bytes;
        self.reserved_bytes -= bytes;
        self.assert_invariants();
        true
    }

    /// Adds a pinned block under the share that was reserved for it. Returns whether the lease goes on;
    /// if not, nothing was added and the block must not be pinned for it.
    ///
    /// # Panics
    /// If the block is larger than its share.
    pub fn add_reserved(&mut self, share: ReservedShare, block: LeasedBlock) -> bool {
        assert_eq!(share.bytes, block.slot_bytes, "a share is that of its block");
        let token = share.token;
        let goes_on = self.unreserve(share);
        if goes_on {
            self.add(token, block);
        }
        goes_on
    }

    /// Adds a pinned block.
    ///
    /// # Panics
    /// If the lease does not exist or the block does not fit: ask [`Leases::fits`] first.
    pub fn add(&mut self, token: LeaseToken, block: LeasedBlock) {
        assert!(self.fits(token, block.slot_bytes), "asked before");
        let lease = self.leases.get_mut(&token).expect("asked before");
        let share = self.shares.get_mut(&lease.charged).expect("a charged connection has a share");
        share.bytes += block.slot_bytes;
        lease.bytes += block.slot_bytes;
        lease.blocks.push(block);
        self.blocks += 1;
        self.bytes += block.slot_bytes;
        self.assert_invariants();
    }

    /// Adds an attachment of another connection of the same instance and shows the blocks.
    ///
    /// # Errors
    /// [`LeaseError::Unknown`] for no or a hold's token, [`LeaseError::Foreign`] for another instance.
    pub fn attach(
        &mut self,
        token: LeaseToken,
        instance: InstanceId,
        connection: ConnectionId,
    ) -> Result<&[LeasedBlock], LeaseError> {
        let lease = self.leases.get_mut(&token).ok_or(LeaseError::Unknown)?;
        if lease.instance != instance {
            return Err(LeaseError::Foreign);
        }
        if lease.kind != LeaseKind::Acquired {
            return Err(LeaseError::Unknown);
        }
        *lease.attachments.entry(connection).or_insert(0) += 1;
        self.attached.entry(connection).or_default().insert(token);
        Ok(&lease.blocks)
    }

    /// Ends one attachment of `connection`; with the last one the blocks are returned through `ended`.
    ///
    /// # Errors
    /// [`LeaseError::Unknown`] if the connection has no share of such a lease.
    pub fn release(
        &mut self,
        token: LeaseToken,
        connection: ConnectionId,
        ended: &mut Vec<LeasedBlock>,
    ) -> Result<(), LeaseError> {
        let lease = self.leases.get_mut(&token).ok_or(LeaseError::Unknown)?;
        let count = lease.attachments.get_mut(&connection).ok_or(LeaseError::Unknown)?;
        *count -= 1;
        if *count == 0 {
            self.detach(token, connection, ended);
        }
        Ok(())
    }

    /// The connection's socket is closed, its process may live: holds end, leases stay.
    pub fn on_disconnected(&mut self, connection: ConnectionId, ended: &mut Vec<LeasedBlock>) {
        // Nobody attaches to a hold but the connection that is charged with it.
        let tokens = self.attached.get(&connection).into_iter().flatten().copied();
        let is_hold = |token: &LeaseToken| matches!(self.leases[token].kind, LeaseKind::Hold { .. });
        let holds: Vec<LeaseToken> = tokens.filter(is_hold).collect();
        holds.into_iter().for_each(|token| self.end(token, ended));
    }

    /// The connection's process is gone, or declared that it uses nothing any more: every
    /// attachment of the connection ends.
    pub fn on_gone(&mut self, connection: ConnectionId, ended: &mut Vec<LeasedBlock>) {
        let tokens = self.attached.get(&connection).cloned().unwrap_or_default();
        tokens.into_iter().for_each(|token| self.detach(token, connection, ended));
    }

    /// Ends every attachment of a connection to a lease, and the lease with its last one.
    fn detach(&mut self, token: LeaseToken, connection: ConnectionId, ended: &mut Vec<LeasedBlock>) {
        let lease = self.leases.get_mut(&token).expect("attached to live leases only");
        assert!(lease.attachments.remove(&connection).is_some(), "the index knows the attached");
        let is_last = lease.attachments.is_empty();
        self.forget_attached(token, connection);
        if is_last {
            self.end(token, ended);
        }
    }

    fn forget_attached(&mut self, token: LeaseToken, connection: ConnectionId) {
        let tokens = self.attached.get_mut(&connection).expect("every attachment is in the index");
        assert!(tokens.remove(&token), "every attachment is in the index");
        if tokens.is_empty() {
            self.attached.remove(&connection);
        }
    }

    /// Whether the connection has a share of any lease.
    #[must_use]
    pub fn has_share(&self, connection: ConnectionId) -> bool {
        self.attached.contains_key(&connection)
    }

    /// Ends the holds whose time is over.
    pub fn on_time(&mut self, now: Moment, ended: &mut Vec<LeasedBlock>) {
        while let Some(&(expires, token)) = self.hold_expiries.keys().next() {
            if expires > now {
                break;
            }
            self.holds_expired += 1;
            self.end(token, ended);
        }
    }

    /// When the next hold ends by itself.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        self.hold_expiries.keys().next().map(|&(expires, _)| expires)
    }

    fn end(&mut self, token: LeaseToken, ended: &mut Vec<LeasedBlock>) {
        let lease = self.leases.remove(&token).expect("only live leases are ended");
        if let LeaseKind::Hold { expires } = lease.kind {
            self.hold_expiries.remove(&(expires, token));
        }
        lease.attachments.keys().for_each(|&connection| self.forget_attached(token, connection));
        let share = self.shares.get_mut(&lease.charged).expect("a charged connection has a share");
        share.leases -= 1;
        share.bytes -= lease.bytes;
        share.reserved_bytes -= lease.reserved_bytes;
        if share.leases == 0 {
            assert_eq!((share.bytes, share.reserved_bytes), (0, 0), "bytes are charged by leases alone");
            self.shares.remove(&lease.charged);
        }
        self.blocks -= lease.blocks.len() as u64;
        self.bytes -= lease.bytes;
        self.reserved_bytes -= lease.reserved_bytes;
        ended.extend(lease.blocks);
        self.assert_invariants();
    }

    /// What is charged and reserved is so with somebody, and nobody exceeds the bound.
    fn assert_invariants(&self) {
        if cfg!(debug_assertions) {
            let shares = self.shares.values();
            let sum = shares.fold((0, 0), |(bytes, reserved), share| {
                let bound = self.settings.bytes_per_connection_max;
                assert!(share.bytes + share.reserved_bytes <= bound, "a connection keeps its bound");
                (bytes + share.bytes, reserved + share.reserved_bytes)
            });
            assert_eq!(sum, (self.bytes, self.reserved_bytes), "leased bytes are conserved");
        }
    }

    /// Leases now, holds included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Holds now.
    #[must_use]
    pub fn holds(&self) -> usize {
        self.hold_expiries.len()
    }

    /// Holds that ended by time so far.
    #[must_use]
    pub fn holds_expired(&self) -> u64 {
        self.holds_expired
    }

    /// Pins that leases have now.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Slot bytes under leases now; a block under two leases counts twice.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Slot bytes reserved for blocks that are still to come.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }
}

#[cfg(test)]
mod tests;
