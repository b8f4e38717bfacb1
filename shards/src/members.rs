//! Who is in the cluster, as control read it from etcd at one revision, and which core of a requester
//! a source's shard is streamed to.
//!
//! A map is a plain value that control mails to every core. Cores learn of a member at different
//! times, so whatever is derived from a map says the revision it was derived from.

use std::net::SocketAddr;

use orbitkv_wire::identity::{ClusterUuid, Incarnation, NodeId, ShardIndex};

/// One registration life of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The operator's name of the node.
    pub node: NodeId,
    /// Grows by one at each registration of this node.
    pub epoch: u64,
    /// Random identity of this registration.
    pub incarnation: Incarnation,
    /// Shard cores, at least 1; fixed for the incarnation.
    pub shards: u16,
    /// Where shard 0 listens; shard `s` listens `s` ports further.
    pub address: SocketAddr,
}

impl Member {
    /// Where a shard's core listens. Ports beyond the last one wrap; such a record is refused when it
    /// is registered.
    #[must_use]
    pub fn shard_address(&self, shard: ShardIndex) -> SocketAddr {
        let mut address = self.address;
        address.set_port(address.port().wrapping_add(shard.0));
        address
    }
}

/// All members at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberMap {
    /// etcd's revision of this state; grows with every change.
    pub revision: u64,
    /// Every node once, in the order of their names.
    members: Vec<Member>,
}

impl MemberMap {
    /// The map of `members` at `revision`.
    ///
    /// # Panics
    /// If a node occurs twice or a member has no shards: whoever reads member records refuses those.
    #[must_use]
    pub fn new(revision: u64, mut members: Vec<Member>) -> MemberMap {
        members.sort_by_key(|member| member.node);
        assert!(members.is_sorted_by(|left, right| left.node < right.node), "a node is a member once");
        assert!(members.iter().all(|member| member.shards > 0), "a member has at least one shard");
        MemberMap { revision, members }
    }

    /// Every member, in the order of their names.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The member of this name, whichever its incarnation.
    #[must_use]
    pub fn get(&self, node: NodeId) -> Option<&Member> {
        let place = self.members.binary_search_by(|member| member.node.cmp(&node)).ok()?;
        Some(&self.members[place])
    }

    /// Whether this very incarnation of the node is a member.
    #[must_use]
    pub fn has(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.get(node).is_some_and(|member| member.incarnation == incarnation)
    }
}

/// The life of this node that a core speaks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// The cluster it joined.
    pub cluster: ClusterUuid,
    /// Its name.
    pub node: NodeId,
    /// The epoch of its registration.
    pub epoch: u64,
    /// The identity of its registration.
    pub incarnation: Incarnation,
    /// Its shard cores.
    pub shards: u16,
}

/// The requester's core on which a source's shard is streamed and its rows live: `⌊s · S_req / S_src⌋`.
/// Shards are ranges of one hash, so with equal counts it is the core that owns the same keys locally.
///
/// # Panics
/// If the source has no such shard.
#[must_use]
pub fn stream_core(source_shard: ShardIndex, source_shards: u16, own_shards: u16) -> ShardIndex {
    assert!(source_shard.0 < source_shards, "shard {} of {source_shards}", source_shard.0);
    let core = u32::from(source_shard.0) * u32::from(own_shards) / u32::from(source_shards);
    ShardIndex(core as u16)
}

#[cfg(test)]
mod tests;
