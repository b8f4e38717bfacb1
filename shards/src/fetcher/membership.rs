//! Who may be asked: members in the very life that the index told of, while this node has a life of its own.

use orbitkv_wire::engine::answers::BlockOutcome;
use orbitkv_wire::identity::{Incarnation, NodeId};
use orbitkv_wire::inventory::SourceStream;

use super::Fetcher;
use super::effect::{CloseCause, FetcherEffect};
use super::lines::LineId;
use crate::members::{Local, MemberMap};

impl Fetcher {
    /// Who is a member. Connections to lives that are none any more are closed; what was asked there goes on
    /// elsewhere. A map that is older than the last one is late and changes nothing.
    pub fn on_members(&mut self, members: &MemberMap) {
        if members.revision < self.members.revision {
            return;
        }
        self.members = members.clone();
        self.is_valid = true;
        self.excluded.retain(|node, incarnation| members.has(*node, *incarnation));
        self.doubted.retain(|node, incarnation| members.has(*node, *incarnation));
        self.drop_unusable();
        self.is_due = true;
    }

    /// What is known of members does not hold until the next [`Fetcher::on_members`]: nobody is asked.
    /// What has been asked goes on.
    pub fn on_membership_invalid(&mut self) {
        self.is_valid = false;
        self.is_due = true;
        for id in self.lines.keys().copied().collect::<Vec<_>>() {
            for turn in self.take_queue(id) {
                self.put_back(turn);
            }
        }
    }

    /// A life of a node is over, as whoever heard its successor says.
    pub fn on_excluded(&mut self, node: NodeId, incarnation: Incarnation) {
        if self.members.has(node, incarnation) && self.excluded.insert(node, incarnation) != Some(incarnation)
        {
            self.drop_unusable();
        }
    }

    /// This node's own lease has expired: everything ends, and every connection is closed.
    pub fn on_fenced(&mut self) {
        self.local = None;
        self.is_valid = false;
        for id in self.lines.keys().copied().collect::<Vec<_>>() {
            self.drop_line(id, CloseCause::Fenced);
        }
        for copy in self.fetches.keys().copied().collect::<Vec<_>>() {
            self.fail(copy, BlockOutcome::Missing);
        }
    }

    /// This node lives again. Fetches find somebody to ask once members are known.
    pub fn on_registered(&mut self, local: Local) {
        assert!(self.lines.is_empty(), "no connection outlives a life");
        self.local = Some(local);
        self.is_valid = false;
        // An etcd restored from an old copy counts anew.
        self.members = MemberMap::default();
    }

    /// A source has told that a life of its node is over.
    pub(super) fn exclude(&mut self, node: NodeId, incarnation: Incarnation) {
        if self.members.has(node, incarnation) && self.excluded.get(&node) != Some(&incarnation) {
            self.effects.push_back(FetcherEffect::Exclude { node, incarnation });
            self.on_excluded(node, incarnation);
        }
    }

    /// Wishes to read membership anew, because this source is not what it is taken for: once for each life.
    pub(super) fn refresh(&mut self, SourceStream { node, incarnation, .. }: SourceStream) {
        if self.doubted.insert(node, incarnation) != Some(incarnation) {
            self.effects.push_back(FetcherEffect::Refresh { node, incarnation });
        }
    }

    fn drop_unusable(&mut self) {
        let unusable = self.lines.iter().filter(|(_, line)| !self.is_usable(&line.source));
        for id in unusable.map(|(id, _)| *id).collect::<Vec<LineId>>() {
            self.drop_line(id, CloseCause::MemberGone);
        }
        self.forget_breakers();
    }
}
