//! What peers have of the keys of a Query.

use orbitkv_shards::coverage::{Basis, Standing};
use orbitkv_shards::index::Replicas;
use orbitkv_shards::key::StateKey;
use orbitkv_shards::shard::{PeersPart, Places, Shard};
use orbitkv_shards::time::Moment;
use orbitkv_wire::bounds::QUERY_BATCH_KEYS;
use orbitkv_wire::engine::answers::Place;
use orbitkv_wire::identity::{KeyHash, Medium};

use super::Peers;

/// Kept between lookups and empty then.
#[derive(Default)]
pub(super) struct LookupBuffer {
    /// Positions in the answer.
    positions: Vec<usize>,
    keys: Vec<(StateKey, KeyHash)>,
    replicas: Vec<Replicas>,
}

impl Peers {
    /// What the core that asks has to compare the answers of others with.
    #[must_use]
    pub fn basis(&self) -> Basis {
        let coverage = self.subscriber.coverage(Moment(0));
        Basis { revision: coverage.revision, scope_generation: coverage.scope_generation }
    }

    /// Adds to an answer what peers have of the keys that are not here, and what that is worth.
    pub fn complete(&mut self, places: &mut Places, shard: &Shard, now: Moment, boot: Moment) {
        self.subscriber.note_time(now);
        let coverage = self.coverage_of(&places.namespaces, now, boot);
        places.peers = Some(PeersPart { coverage, view_generation: self.subscriber.view_generation() });
        if matches!(coverage.standing, Standing::Unavailable(_)) {
            return;
        }
        let ids: Vec<_> = places.namespaces.iter().map(|digest| shard.namespaces().get(digest)).collect();
        let mut buffer = std::mem::take(&mut self.lookup);
        for (at, (key, (_, place))) in places.keys.iter().zip(&places.found).enumerate() {
            let id = ids.get(usize::from(key.namespace)).copied().flatten();
            if let (Place::None, Some(namespace)) = (place, id) {
                buffer.positions.push(at);
                buffer.keys.push((StateKey { namespace, group: key.group, block: key.block }, key.hash));
            }
        }
        if buffer.replicas.len() < buffer.keys.len() {
            buffer.replicas.resize_with(buffer.keys.len().max(QUERY_BATCH_KEYS), Replicas::default);
        }
        self.partition.lookup(&buffer.keys, &mut buffer.replicas);
        for (at, replicas) in buffer.positions.drain(..).zip(&buffer.replicas) {
            // The listed replicas begin with those in DRAM.
            if let Some(best) = replicas.iter().next() {
                places.found[at].1 = match best.medium {
                    Medium::Dram => Place::PeerDram,
                    Medium::Ssd => Place::PeerSsd,
                };
            }
        }
        buffer.keys.clear();
        self.lookup = buffer;
    }
}
