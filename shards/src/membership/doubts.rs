//! Doubts about members: what is heard on the wire and is not what etcd says of them.
//!
//! A doubt admits nobody and excludes nobody here. All it may do is have the members read once: whoever has
//! another life by then was superseded, and about whoever has not, etcd is right and the wire is wrong. A life is
//! doubted once for each cause, however often somebody contradicts its record.

use std::collections::BTreeMap;

use orbitkv_wire::identity::{Incarnation, NodeId};

use super::view::View;

/// What contradicts the record of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DoubtCause {
    /// Somebody at its address has shown another key.
    Key,
    /// Whoever holds its key answers as another life, or as another node.
    Life,
}

/// A life of a node that may not be the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// The node.
    pub node: NodeId,
    /// Its life, as far as known.
    pub incarnation: Incarnation,
    /// What contradicts it.
    pub cause: DoubtCause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No read that was begun since could show a successor.
    Noted,
    /// A read was begun.
    Asked,
    /// A read showed the same life.
    Confirmed,
    /// Another life has its place.
    Superseded,
}

/// The doubts there are, of nodes that have a record.
#[derive(Default)]
pub(super) struct Doubts {
    lives: BTreeMap<(NodeId, DoubtCause), (Incarnation, Stage)>,
    /// Lives whose key was not the one at their address, and that had a successor.
    superseded: u64,
    /// Reads of all members that a doubt has caused.
    reads: u64,
}

impl Doubts {
    /// Takes a doubt in.
    pub fn note(&mut self, doubt: Doubt, view: &View) {
        let Doubt { node, incarnation, cause } = doubt;
        let Some(record) = view.record(node) else { return };
        let known = self.lives.get(&(node, cause)).map(|life| life.0);
        // A doubt about an older life is late, and what is known of the present one stays.
        if known == Some(incarnation) || known == Some(record.incarnation) {
            return;
        }
        self.lives.insert((node, cause), (incarnation, Stage::Noted));
        // The watch may have been faster.
        self.settle(view);
    }

    /// Whether there is a doubt that no read was begun for.
    pub fn wants_read(&self) -> bool {
        self.lives.values().any(|(_, stage)| *stage == Stage::Noted)
    }

    /// Whether one of them is of this node.
    pub fn wants_read_of(&self, node: NodeId) -> bool {
        self.lives.iter().any(|((of, _), (_, stage))| *of == node && *stage == Stage::Noted)
    }

    /// A read is begun, for all of them.
    pub fn on_asked(&mut self) {
        self.advance(Stage::Noted, Stage::Asked, |_| true);
    }

    /// A read of one record is begun.
    pub fn on_asked_of(&mut self, node: NodeId) {
        self.advance(Stage::Noted, Stage::Asked, |of| of == node);
    }

    /// A read has been answered and is in the view.
    pub fn on_read(&mut self, view: &View) {
        self.reads += u64::from(self.lives.values().any(|(_, stage)| *stage == Stage::Asked));
        self.settle(view);
        self.advance(Stage::Asked, Stage::Confirmed, |_| true);
    }

    /// A read of one record has been answered and is in the view.
    pub fn on_read_of(&mut self, node: NodeId, view: &View) {
        self.settle(view);
        self.advance(Stage::Asked, Stage::Confirmed, |of| of == node);
    }

    /// The view has changed.
    pub fn settle(&mut self, view: &View) {
        self.lives.retain(|(node, _), _| view.record(*node).is_some());
        for (&(node, cause), (incarnation, stage)) in &mut self.lives {
            let is_present = view.record(node).is_some_and(|record| record.incarnation == *incarnation);
            if *stage != Stage::Superseded && !is_present {
                *stage = Stage::Superseded;
                self.superseded += u64::from(cause == DoubtCause::Key);
            }
        }
    }

    /// Lives whose key was not the one at their address, and that had a successor.
    pub fn superseded(&self) -> u64 {
        self.superseded
    }

    /// Reads of all members that a doubt has caused.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// Members at whose address somebody has shown another key than etcd confirms.
    pub fn disputed(&self) -> impl Iterator<Item = NodeId> {
        let is_disputed = |cause, stage| cause == DoubtCause::Key && stage == Stage::Confirmed;
        let disputed = self.lives.iter().filter(move |((_, cause), (_, stage))| is_disputed(*cause, *stage));
        disputed.map(|((node, _), _)| *node)
    }

    fn advance(&mut self, from: Stage, to: Stage, includes: impl Fn(NodeId) -> bool) {
        let those = self.lives.iter_mut().filter(|((node, _), (_, stage))| includes(*node) && *stage == from);
        those.for_each(|(_, (_, stage))| *stage = to);
    }
}
