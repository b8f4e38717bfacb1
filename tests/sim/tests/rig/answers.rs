//! What a rig answers: what requesters show of what sources hold, and that both are equal.

use orbitkv_shards::coverage::{Basis, Coverage, merge};
use orbitkv_shards::index::Replicas;
use orbitkv_shards::inventory::subscriber::OwnerDetail;
use orbitkv_shards::key::StateKey;
use orbitkv_wire::identity::{GroupId, Medium, NodeId, Sequence, key_hash};
use orbitkv_wire::inventory::Kind;

use super::{Key, Rig, digest};

impl Rig {
    /// Frames of this kind that sources have sent.
    pub fn sent(&self, kind: Kind) -> u64 {
        self.sent.get(&(kind as u8)).copied().unwrap_or(0)
    }

    /// What a requester shows of a block, by owner, medium, sequence and bytes.
    pub fn lookup(&self, requester: usize, key: Key) -> Vec<(NodeId, Medium, Sequence, u32)> {
        let end = &self.requesters[requester];
        let Some(namespace) = end.namespaces.get(&digest(key.namespace)) else { return Vec::new() };
        let state = StateKey { namespace, group: GroupId(key.group), block: key.hash() };
        let hash = key_hash(&digest(key.namespace), GroupId(key.group), &key.hash());
        let mut out = [Replicas::default()];
        end.partition.lookup(&[(state, hash)], &mut out);
        (out[0].iter())
            .map(|replica| {
                let member = end.subscriber.member(replica.owner).expect("a row is of a member");
                (member.node, replica.medium, replica.sequence, replica.bytes)
            })
            .collect()
    }

    /// The media on which the first requester shows a block of the first source.
    pub fn media(&self, key: Key) -> Vec<Medium> {
        self.lookup(0, key).into_iter().map(|(_, medium, ..)| medium).collect()
    }

    /// What an answer of a requester is worth.
    pub fn coverage(&self, requester: usize) -> Coverage {
        let coverage = self.requesters[requester].subscriber.coverage(self.now);
        let basis = Basis { revision: self.map.revision, scope_generation: coverage.scope_generation };
        merge(basis, &[coverage]).coverage
    }

    /// Owner streams of a requester.
    pub fn owners(&self, requester: usize) -> Vec<OwnerDetail> {
        let end = &self.requesters[requester];
        end.subscriber.owners(None, usize::MAX, &end.partition).collect()
    }

    /// How far the first requester has followed a source.
    pub fn applied(&self, source: usize) -> Option<Sequence> {
        let name = self.sources[source].local.node;
        let owners = self.owners(0);
        owners.iter().find(|owner| owner.source.node == name)?.view.map(|(_, applied)| applied)
    }

    /// Whatever a requester claims to be complete equals the truth, whatever it shows was put.
    pub fn assert_equal(&self) {
        for requester in 0..self.requesters.len() {
            assert_eq!(
                self.coverage(requester),
                Coverage::CompleteAtWatermarks,
                "{:?}",
                self.owners(requester)
            );
            let end = &self.requesters[requester];
            for source in &self.sources {
                let owners = self.owners(requester);
                let owner = owners.iter().find(|owner| owner.source.node == source.local.node);
                let owner = owner.expect("every source is followed");
                let in_scope = |key: &Key| end.settings.scope.contains(&digest(key.namespace));
                assert_eq!(owner.view.map(|(_, applied)| applied), Some(source.journal.head()));
                let wanted = source.truth.keys().filter(|(key, _)| in_scope(key)).count();
                assert_eq!(owner.rows as usize, wanted, "rows of {}", source.local.node);
                for (&(key, medium), &(sequence, bytes)) in source.truth.iter().filter(|it| in_scope(&it.0.0))
                {
                    let shown = self.lookup(requester, key);
                    let row = (source.local.node, medium, sequence, bytes);
                    assert!(shown.contains(&row), "{key:?} on {medium}: {shown:?} without {row:?}");
                }
            }
        }
    }
}
