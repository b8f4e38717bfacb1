//! What this core hears that contradicts the member records: told to control once for each life, and to the other
//! cores if a life is over.
//!
//! Nothing of it admits anybody. A key that is not the record's may be that of a successor that etcd has not told
//! of yet, or an impostor's; control has the members read once, and the handshake stays refused either way.

use std::collections::{BTreeMap, VecDeque};

use orbitkv_shards::members::MemberMap;
use orbitkv_shards::membership::{Doubt, DoubtCause};
use orbitkv_wire::identity::{Incarnation, NodeId};

use super::Peers;
use super::payload::Heard;
use crate::core::mail::Letter;

/// The doubts of a core about present members.
#[derive(Default)]
pub(super) struct Doubts {
    /// What was said already.
    said: BTreeMap<(NodeId, DoubtCause), Incarnation>,
    unsaid: VecDeque<Doubt>,
}

impl Doubts {
    /// Takes a doubt in, unless it was said before; whether it is new.
    fn add(&mut self, doubt: Doubt) -> bool {
        let before = self.said.insert((doubt.node, doubt.cause), doubt.incarnation);
        let is_new = before != Some(doubt.incarnation);
        if is_new {
            self.unsaid.push_back(doubt);
        }
        is_new
    }

    /// Who is a member has changed: lives that are over may be forgotten.
    pub fn on_members(&mut self, members: &MemberMap) {
        self.said.retain(|(node, _), incarnation| members.has(*node, *incarnation));
    }
}

impl Peers {
    /// The next doubt for control.
    pub fn poll_doubt(&mut self) -> Option<Doubt> {
        self.doubts.unsaid.pop_front()
    }

    /// A life of a node is over, as another core has heard.
    pub fn on_excluded(&mut self, node: NodeId, incarnation: Incarnation) {
        self.payload.on_excluded(node, incarnation);
        self.wake();
    }

    /// Gathers what the endpoint and the payload connections have heard.
    pub(super) fn gather_doubts(&mut self) {
        while let Some(key) = self.endpoint.poll_mismatch() {
            let member = self.neighbours.holder(key).and_then(|node| self.neighbours.map.get(node));
            // One that is no member any more needs no doubt.
            let Some(&member) = member else { continue };
            let (node, incarnation) = (member.node, member.incarnation);
            tracing::debug!(core = self.shard.0, %node, "another key than its record names was shown");
            self.doubts.add(Doubt { node, incarnation, cause: DoubtCause::Key });
        }
        while let Some(heard) = self.payload.poll_heard() {
            match heard {
                Heard::Exclude { node, incarnation } => {
                    let others = (0..self.local.shards).filter(|&core| core != self.shard.0);
                    let letter = || Letter::Excluded(Box::new((node, incarnation)));
                    self.letters.extend(others.map(|core| (usize::from(core), letter())));
                }
                Heard::Doubt { node, incarnation } => self.on_another_life(node, incarnation),
                Heard::Behind { node, incarnation } => self.on_behind(node, incarnation),
            }
        }
    }

    /// Whoever holds a node's key speaks for another life than this one.
    pub(super) fn on_another_life(&mut self, node: NodeId, incarnation: Incarnation) {
        if self.doubts.add(Doubt { node, incarnation, cause: DoubtCause::Life }) {
            tracing::info!(core = self.shard.0, %node, %incarnation, "superseded");
        }
    }

    /// A member believes in a later epoch of this node than its own.
    pub(super) fn on_behind(&mut self, node: NodeId, incarnation: Incarnation) {
        if self.doubts.add(Doubt { node, incarnation, cause: DoubtCause::Life }) {
            tracing::warn!(core = self.shard.0, %node, %incarnation, "a member asks for a later epoch of this node");
        }
    }
}
