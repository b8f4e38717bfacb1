//! The membership service, as a model of etcd: one ordered history of who is a member.
//!
//! It keeps every revision, so that a watcher gets what happened in order, however late. Leases end
//! by its own clock. What a node makes of it is in `control.rs`.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use orbitkv_shards::members::{Member, MemberMap};
use orbitkv_shards::time::Moment;
use orbitkv_wire::identity::{Incarnation, NodeId};

/// A registration that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterRefusal {
    /// A live member of that name has another address.
    NameIsHeld,
    /// A live member of another name has that address.
    AddressIsHeld,
    /// Somebody else registered that node since its epoch was read.
    EpochMoved,
}

struct Lease {
    member: Member,
    ends: Moment,
}

/// The service.
pub struct Registry {
    revision: u64,
    members: BTreeMap<NodeId, Lease>,
    epochs: BTreeMap<NodeId, u64>,
    history: Vec<Rc<MemberMap>>,
    lease: Duration,
}

impl Registry {
    /// An empty cluster whose leases last `lease`.
    #[must_use]
    pub fn new(lease: Duration) -> Registry {
        let empty = Rc::new(MemberMap::default());
        Registry {
            revision: 0,
            members: BTreeMap::new(),
            epochs: BTreeMap::new(),
            history: vec![empty],
            lease,
        }
    }

    /// The epoch of the last registration of `node`; 0 if it never was registered.
    #[must_use]
    pub fn epoch(&self, node: &NodeId) -> u64 {
        self.epochs.get(node).copied().unwrap_or(0)
    }

    /// Writes a member record, replacing an older one of the same name and address. Writing what is
    /// written changes nothing.
    ///
    /// # Errors
    /// [`RegisterRefusal`]; nothing is written.
    pub fn register(&mut self, member: Member, now: Moment) -> Result<Rc<MemberMap>, RegisterRefusal> {
        if self.members.get(&member.node).is_some_and(|lease| lease.member == member) {
            return Ok(self.newest());
        }
        if member.epoch != self.epoch(&member.node) + 1 {
            return Err(RegisterRefusal::EpochMoved);
        }
        let held = self.members.values().map(|lease| &lease.member);
        for other in held {
            match (other.node == member.node, other.address == member.address) {
                (true, false) => return Err(RegisterRefusal::NameIsHeld),
                (false, true) => return Err(RegisterRefusal::AddressIsHeld),
                (true, true) | (false, false) => {}
            }
        }
        self.epochs.insert(member.node, member.epoch);
        self.members.insert(member.node, Lease { member, ends: now + self.lease });
        Ok(self.publish())
    }

    /// Prolongs the lease of exactly that incarnation; false if it has none.
    pub fn renew(&mut self, node: &NodeId, incarnation: Incarnation, now: Moment) -> bool {
        match self.members.get_mut(node) {
            Some(lease) if lease.member.incarnation == incarnation => {
                lease.ends = now + self.lease;
                true
            }
            _ => false,
        }
    }

    /// Takes the record of exactly that incarnation away: a clean leave.
    pub fn leave(&mut self, node: &NodeId, incarnation: Incarnation) -> bool {
        let held = self.members.get(node).is_some_and(|lease| lease.member.incarnation == incarnation);
        if held {
            self.members.remove(node);
            self.publish();
        }
        held
    }

    /// Ends the leases that are due; how many ended.
    pub fn expire(&mut self, now: Moment) -> usize {
        let before = self.members.len();
        self.members.retain(|_, lease| lease.ends > now);
        let expired = before - self.members.len();
        if expired > 0 {
            self.publish();
        }
        expired
    }

    /// When the next lease ends if nobody renews it.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Moment> {
        self.members.values().map(|lease| lease.ends).min()
    }

    /// The newest revision.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Who was a member at `revision`.
    ///
    /// # Panics
    /// If there was no such revision yet.
    #[must_use]
    pub fn at(&self, revision: u64) -> Rc<MemberMap> {
        Rc::clone(&self.history[usize::try_from(revision).expect("a revision there was")])
    }

    /// Who is a member now.
    #[must_use]
    pub fn newest(&self) -> Rc<MemberMap> {
        self.at(self.revision)
    }

    fn publish(&mut self) -> Rc<MemberMap> {
        self.revision += 1;
        let members = self.members.values().map(|lease| lease.member).collect();
        self.history.push(Rc::new(MemberMap::new(self.revision, members)));
        self.newest()
    }
}
