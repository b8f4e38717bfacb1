//! Which engine instances are registered, and with what: one room on core 0.
//!
//! Processes of one instance must agree on what they say about the model; they may differ in rank.
//! An instance is forgotten when the last of its processes is gone.

use std::collections::BTreeMap;

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

struct Instance {
    id: InstanceId,
    registrations: Vec<Registration>,
}

/// The room.
#[derive(Default)]
pub struct Registry {
    instances: BTreeMap<String, Instance>,
    registrations: usize,
    next: u64,
}

impl Registry {
    /// Registers a process, or finds that it contradicts another one.
    ///
    /// # Errors
    /// [`Conflict`] naming the field that differs.
    pub fn register(&mut self, registration: Registration) -> Result<InstanceId, Conflict> {
        if let Some(instance) = self.instances.get_mut(&registration.instance) {
            for earlier in &instance.registrations {
                let same_rank = earlier.rank == registration.rank;
                let shared = earlier.shared.iter().zip(&registration.shared);
                let ranked = earlier.ranked.iter().zip(&registration.ranked).filter(|_| same_rank);
                if let Some(((field, was), (_, asks))) = shared.chain(ranked).find(|(was, asks)| was != asks)
                {
                    return Err(Conflict::Field {
                        instance: registration.instance.clone(),
                        field,
                        registered: was.clone(),
                        asked: asks.clone(),
                    });
                }
            }
            if instance.registrations.contains(&registration) {
                return Ok(instance.id);
            }
        }
        if self.registrations >= REGISTRATIONS_MAX {
            return Err(Conflict::Full);
        }
        self.registrations += 1;
        let next = &mut self.next;
        let instance = self.instances.entry(registration.instance.clone()).or_insert_with(|| {
            *next += 1;
            Instance { id: InstanceId(*next), registrations: Vec::new() }
        });
        instance.registrations.push(registration);
        Ok(instance.id)
    }

    /// A connection's process is gone.
    pub fn on_gone(&mut self, connection: ConnectionId) {
        let registrations = &mut self.registrations;
        self.instances.retain(|_, instance| {
            let before = instance.registrations.len();
            instance.registrations.retain(|registration| registration.connection != connection);
            *registrations -= before - instance.registrations.len();
            !instance.registrations.is_empty()
        });
    }

    /// Registered namespaces with the fields they stand for, each once, in namespace order.
    #[must_use]
    pub fn namespaces(&self) -> BTreeMap<NamespaceDigest, Vec<(&'static str, String)>> {
        let mut namespaces = BTreeMap::new();
        for registration in self.instances.values().flat_map(|instance| &instance.registrations) {
            namespaces.entry(registration.namespace).or_insert_with(|| {
                let mut fields = registration.shared.clone();
                fields.push(("tp rank", registration.rank.0.to_string()));
                fields.push(("pp rank", registration.rank.1.to_string()));
                fields.extend(registration.ranked.clone());
                fields
            });
        }
        namespaces
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
        assert_eq!((registry.instances(), registry.registrations), (1, 1));
    }
}
