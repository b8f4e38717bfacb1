//! Which engine instances are registered, and with what: one room on core 0.
//!
//! Processes of one instance must agree on what they say about the model; they may differ in rank.
//! An instance is forgotten when the last of its processes is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use orbitkv_shards::leases::{ConnectionId, InstanceId};
use orbitkv_wire::identity::NamespaceDigest;
use thiserror::Error;

/// Registrations the room keeps: more are refused, so that it stays bounded.
pub const REGISTRATIONS_MAX: usize = 16_384;

/// What one process says about itself and its model. Fields are compared by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The connection that registers.
    pub connection: ConnectionId,
    /// Instance name.
    pub instance: String,
    /// Tensor- and pipeline-parallel rank.
    pub rank: (u32, u32),
    /// Namespace derived from all of it.
    pub namespace: NamespaceDigest,
    /// Fields that every rank of an instance shares, by name, in a fixed order.
    pub shared: Vec<(&'static str, String)>,
    /// Fields that only processes of one rank share, by name, in a fixed order.
    pub ranked: Vec<(&'static str, String)>,
}

/// Two registrations of one instance disagree.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Conflict {
    /// A field differs.
    #[error(
        "instance {instance:?} is registered with {field} {registered:?}, not {asked:?}: \
         use another instance id, or end its other processes first"
    )]
    Field {
        /// The instance.
        instance: String,
        /// The field that differs.
        field: &'static str,
        /// What an earlier process said.
        registered: String,
        /// What this one says.
        asked: String,
    },
    /// The room is full.
    #[error(
        "{REGISTRATIONS_MAX} registrations are live, the most there may be: end engines that are not used"
    )]
    Full,
}

/// Processes of one rank: they agree on everything.
struct Rank {
    ranked: Vec<(&'static str, String)>,
    namespace: NamespaceDigest,
    connections: BTreeSet<ConnectionId>,
}

struct Instance {
    id: InstanceId,
    shared: Vec<(&'static str, String)>,
    ranks: BTreeMap<(u32, u32), Rank>,
}

/// A registered rank: instance name, tensor- and pipeline-parallel rank.
type RankName = (String, (u32, u32));

/// A registered namespace with the fields it stands for.
pub type NamespaceFields = (NamespaceDigest, Vec<(&'static str, String)>);

/// The room. A registration is looked up and ended in the logarithm of what is registered.
#[derive(Default)]
pub struct Registry {
    instances: BTreeMap<String, Instance>,
    /// What each connection has registered.
    connections: BTreeMap<ConnectionId, BTreeSet<RankName>>,
    /// Registered namespaces by their text, with the ranks that registered them.
    namespaces: BTreeMap<String, BTreeSet<RankName>>,
    registrations: usize,
    next: u64,
}

impl Registry {
    /// Registers a process, or finds that it contradicts another one.
    ///
    /// # Errors
    /// [`Conflict`] naming the field that differs.
    pub fn register(&mut self, registration: Registration) -> Result<InstanceId, Conflict> {
        let Registration { connection, instance: name, rank, namespace, shared, ranked } = registration;
        if let Some(instance) = self.instances.get(&name) {
            let same_rank = instance.ranks.get(&rank);
            let earlier = instance.shared.iter().chain(same_rank.into_iter().flat_map(|rank| &rank.ranked));
            let asked = shared.iter().chain(&ranked);
            if let Some(((field, was), (_, asks))) = earlier.zip(asked).find(|(was, asks)| was != asks) {
                return Err(Conflict::Field {
                    instance: name,
                    field,
                    registered: was.clone(),
                    asked: asks.clone(),
                });
            }
            if same_rank.is_some_and(|rank| rank.connections.contains(&connection)) {
                return Ok(instance.id);
            }
        }
        if self.registrations >= REGISTRATIONS_MAX {
            return Err(Conflict::Full);
        }
        self.registrations += 1;
        let next = &mut self.next;
        let instance = self.instances.entry(name.clone()).or_insert_with(|| {
            *next += 1;
            Instance { id: InstanceId(*next), shared, ranks: BTreeMap::new() }
        });
        let of_rank = instance.ranks.entry(rank).or_insert_with(|| Rank {
            ranked,
            namespace,
            connections: BTreeSet::new(),
        });
        of_rank.connections.insert(connection);
        self.namespaces.entry(of_rank.namespace.to_string()).or_default().insert((name.clone(), rank));
        self.connections.entry(connection).or_default().insert((name, rank));
        Ok(instance.id)
    }

    /// A connection's process is gone.
    pub fn on_gone(&mut self, connection: ConnectionId) {
        for (name, rank) in self.connections.remove(&connection).unwrap_or_default() {
            self.registrations -= 1;
            let instance = self.instances.get_mut(&name).expect("a connection's instances are registered");
            let of_rank = instance.ranks.get_mut(&rank).expect("and their ranks");
            assert!(of_rank.connections.remove(&connection), "and its registrations");
            if !of_rank.connections.is_empty() {
                continue;
            }
            let namespace = of_rank.namespace.to_string();
            instance.ranks.remove(&rank);
            if instance.ranks.is_empty() {
                self.instances.remove(&name);
            }
            let ranks = self.namespaces.get_mut(&namespace).expect("a registered rank has its namespace");
            ranks.remove(&(name, rank));
            if ranks.is_empty() {
                self.namespaces.remove(&namespace);
            }
        }
    }

    /// At most `limit` registered namespaces after the text `after` (empty: from the first), each once, with
    /// the fields it stands for.
    #[must_use]
    pub fn namespaces(&self, after: &str, limit: usize) -> Vec<NamespaceFields> {
        let later = self.namespaces.range::<str, _>((Bound::Excluded(after), Bound::Unbounded));
        let page = later.take(limit).map(|(_, ranks)| {
            let (name, rank) = ranks.first().expect("a namespace without ranks is forgotten");
            let instance = &self.instances[name];
            let of_rank = &instance.ranks[rank];
            let mut fields = instance.shared.clone();
            fields.push(("tp rank", rank.0.to_string()));
            fields.push(("pp rank", rank.1.to_string()));
            fields.extend(of_rank.ranked.clone());
            (of_rank.namespace, fields)
        });
        page.collect()
    }

    /// Live instances.
    #[must_use]
    pub fn instances(&self) -> usize {
        self.instances.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registration(connection: u64, rank: u32, dtype: &str, groups: &str) -> Registration {
        Registration {
            connection: ConnectionId(connection),
            instance: "a".into(),
            rank: (rank, 0),
            namespace: NamespaceDigest([rank as u8; 32]),
            shared: vec![("dtype", dtype.into())],
            ranked: vec![("groups", groups.into())],
        }
    }

    #[test]
    fn a_conflict_names_the_field_that_differs() {
        let mut registry = Registry::default();
        let id = registry.register(registration(1, 0, "bf16", "full")).unwrap();
        assert_eq!(registry.register(registration(2, 1, "bf16", "other layers")), Ok(id));
        let conflict = registry.register(registration(3, 1, "fp8", "other layers")).unwrap_err();
        assert!(matches!(conflict, Conflict::Field { field: "dtype", .. }));
        let conflict = registry.register(registration(3, 1, "bf16", "full")).unwrap_err();
        assert!(matches!(conflict, Conflict::Field { field: "groups", .. }));
    }

    #[test]
    fn an_instance_is_forgotten_with_its_last_process() {
        let mut registry = Registry::default();
        registry.register(registration(1, 0, "bf16", "full")).unwrap();
        registry.register(registration(2, 0, "bf16", "full")).unwrap();
        registry.on_gone(ConnectionId(1));
        assert!(registry.register(registration(3, 0, "fp8", "full")).is_err());
        registry.on_gone(ConnectionId(2));
        assert!(registry.register(registration(3, 0, "fp8", "full")).is_ok());
        assert_eq!((registry.instances(), registry.registrations, registry.connections.len()), (1, 1, 1));
    }

    #[test]
    fn namespaces_are_listed_by_pages_while_a_rank_of_theirs_lives() {
        let mut registry = Registry::default();
        for (connection, rank) in [(1, 3), (2, 1), (3, 2), (4, 1)] {
            registry.register(registration(connection, rank, "bf16", "full")).unwrap();
        }
        let page = |registry: &Registry, after: &str, limit| {
            let rows = registry.namespaces(after, limit).into_iter();
            rows.map(|(namespace, fields)| {
                assert!(fields.contains(&("tp rank", namespace.0[0].to_string())), "{fields:?}");
                namespace.0[0]
            })
            .collect::<Vec<_>>()
        };
        let text = |rank| NamespaceDigest([rank; 32]).to_string();
        assert_eq!(page(&registry, "", 2), [1, 2]);
        assert_eq!(page(&registry, &text(2), 2), [3]);
        registry.on_gone(ConnectionId(2));
        registry.on_gone(ConnectionId(1));
        assert_eq!(page(&registry, "", 9), [1, 2], "another process of rank 1 lives");
        for connection in [3, 4] {
            registry.on_gone(ConnectionId(connection));
        }
        assert_eq!((page(&registry, "", 9), registry.registrations), (Vec::new(), 0));
        assert!(registry.instances.is_empty() && registry.connections.is_empty());
    }
}
