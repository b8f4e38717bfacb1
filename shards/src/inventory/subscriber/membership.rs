//! Who is expected: what changes of membership, of this node's own life and of its scope do to streams.

use orbitkv_wire::identity::ShardIndex;
use orbitkv_wire::inventory::SourceStream;
use orbitkv_wire::scope::Scope;

use super::close::CloseCause;
use super::links::Ending;
use super::stream::{Link, Stream};
use super::{Index, Peer, StreamId, Subscriber};
use crate::members::{Local, Member, MemberMap, stream_core};
use crate::time::Moment;

/// What the core knows of membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Membership {
    /// No valid snapshot: sessions stay, but what they say waits.
    Invalid,
    /// This node's own lease has expired.
    Fenced,
    /// At a revision that other cores may not have reached.
    Lowered,
    /// At a revision that all cores of this node have reached.
    Raised,
}

impl Membership {
    /// Whether peers may be dialed and their frames admitted.
    pub fn is_valid(self) -> bool {
        matches!(self, Membership::Lowered | Membership::Raised)
    }
}

impl Subscriber {
    /// Control's `lower(revision)`: excludes at once who is no longer a member, expects who is one now, and
    /// proves no absence before [`Subscriber::on_may_raise`]. A map that is older than the last one is
    /// late and changes nothing.
    pub fn on_lower(&mut self, members: &MemberMap, index: &mut Index<'_>, now: Moment) {
        if members.revision < self.revision {
            return;
        }
        let same = |member: &Member| {
            let other = members.get(member.node);
            other.is_some_and(|other| Member { address: member.address, ..*other } == *member)
        };
        let gone: Vec<_> =
            self.peers.iter().filter(|(_, peer)| !same(&peer.member)).map(|(node, _)| *node).collect();
        for node in gone {
            let peer = self.peers.remove(&node).expect("it was just there");
            self.numbers.remove(&peer.number);
            peer.streams.iter().for_each(|&id| self.exclude(id, index, now));
        }
        let own = self.local.node;
        members
            .members()
            .iter()
            .filter(|member| member.node != own)
            .for_each(|member| self.expect(member, now));
        for id in &self.stagings {
            // Nobody was waited for while membership was not valid.
            let stream = self.streams.get_mut(id).expect("a staging is of an expected stream");
            stream.session_mut().expect("a staging is of a session").expect_page(&self.settings, now);
        }
        self.revision = members.revision;
        // Fenced stays fenced: only a new life ends it.
        if self.membership != Membership::Fenced {
            self.membership = Membership::Lowered;
        }
        self.settle_all();
        self.assert_invariants();
    }

    fn expect(&mut self, member: &Member, now: Moment) {
        if let Some(peer) = self.peers.get_mut(&member.node) {
            peer.member.address = member.address;
            for id in &peer.streams {
                let stream = self.streams.get_mut(id).expect("a peer's streams are expected");
                stream.address = member.shard_address(stream.source.shard);
            }
            return;
        }
        let number = self.numbers_made;
        self.numbers_made = number.checked_add(1).expect("fewer lives than there are numbers");
        let placed = |shard: &ShardIndex| stream_core(*shard, member.shards, self.local.shards) == self.core;
        let mut streams = Vec::new();
        for shard in (0..member.shards).map(ShardIndex).filter(placed) {
            let Member { node, epoch, incarnation, .. } = *member;
            let source = SourceStream { node, epoch, incarnation, shard };
            let id = StreamId(self.streams_made);
            self.streams_made += 1;
            let stream = Stream::new(source, number, member.shard_address(shard), now);
            self.census.change(id, None, Some(stream.tally));
            self.streams.insert(id, stream);
            streams.push(id);
        }
        self.numbers.insert(number, member.node);
        self.peers.insert(member.node, Peer { member: *member, number, streams });
    }

    /// Excludes a stream: its rows are gone from lookups at once, and from memory as the sweep gets to them.
    fn exclude(&mut self, id: StreamId, index: &mut Index<'_>, now: Moment) {
        self.end_session(id, Ending::Ours(CloseCause::MemberGone), now);
        let stream = self.streams.remove(&id).expect("a peer's streams are expected");
        if let Some(view) = stream.view {
            index.partition.retire(view.id);
        }
        self.census.change(id, Some(stream.tally), None);
        if let Some(deadline) = stream.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        self.figures.streams_excluded += 1;
    }

    /// Control's `may raise(revision)`: every core of this node has been lowered to it.
    pub fn on_may_raise(&mut self, revision: u64) {
        if self.membership == Membership::Lowered && self.revision == revision {
            self.membership = Membership::Raised;
        }
    }

    /// The membership snapshot is invalid until the next [`Subscriber::on_lower`]. Rows stay, but none is
    /// offered; sessions stay, but what they say waits.
    pub fn on_membership_invalid(&mut self, _now: Moment) {
        if self.membership != Membership::Fenced {
            self.membership = Membership::Invalid;
        }
        self.settle_all();
    }

    /// This node's own lease has expired: no session outlives it. Rows stay: that this node was away says
    /// nothing about others.
    pub fn on_fenced(&mut self, now: Moment) {
        self.membership = Membership::Fenced;
        self.end_sessions(CloseCause::Fenced, now);
    }

    /// This node lives again. Its views go on in sessions of the new life once members are known.
    ///
    /// # Panics
    /// If the new life has another name or another number of cores.
    pub fn on_registered(&mut self, local: Local, now: Moment) {
        assert_eq!((local.node, local.shards), (self.local.node, self.local.shards), "a life of this node");
        self.end_sessions(CloseCause::Fenced, now);
        self.local = local;
        // An etcd restored from an old copy counts anew.
        self.revision = 0;
        self.membership = Membership::Invalid;
        self.settle_all();
    }

    /// This node subscribes to something else. Views of the former scope answer for nothing, so they are
    /// given up.
    pub fn on_scope(&mut self, scope: Scope, generation: u64, index: &mut Index<'_>, now: Moment) {
        self.end_sessions(CloseCause::ScopeChanged, now);
        self.scope_digest = scope.digest();
        self.scope = scope;
        self.scope_generation = generation;
        for (_, stream) in self.streams.iter_mut() {
            if let Some(view) = stream.view.take() {
                index.partition.retire(view.id);
            }
            stream.misfit = None;
            stream.lacking_since = Some(now);
            if let Link::Resting { due } = &mut stream.link {
                *due = now;
            }
        }
        self.settle_all();
    }

    fn end_sessions(&mut self, cause: CloseCause, now: Moment) {
        for id in self.connections.values().copied().collect::<Vec<_>>() {
            self.end_session(id, Ending::Ours(cause), now);
        }
        self.settle_all();
    }
}
