//! The members as cores are told of them: the map, and how to reach whom.

use std::collections::BTreeMap;
use std::sync::Arc;

use orbitkv_wire::identity::NodeId;
use orbitkv_wire::membership::{Contact, MemberRecord};

use crate::members::{Member, MemberMap};

/// All members, each with its contact.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    map: MemberMap,
    contacts: BTreeMap<NodeId, Arc<Contact>>,
    is_partial: bool,
}

impl Roster {
    /// The roster of these lives at `revision`.
    ///
    /// # Panics
    /// If a node occurs twice.
    #[must_use]
    pub fn new<'a>(revision: u64, records: impl Iterator<Item = &'a MemberRecord>) -> Roster {
        let mut contacts = BTreeMap::new();
        let members = records.map(|record| {
            contacts.insert(record.node, Arc::new(record.contact.clone()));
            Member {
                node: record.node,
                epoch: record.epoch,
                incarnation: record.incarnation,
                shards: record.contact.shards,
                address: record.contact.address,
            }
        });
        Roster { map: MemberMap::new(revision, members.collect()), contacts, is_partial: false }
    }

    /// The same, of which some records are as old as an earlier revision, or which leaves out a member of whose blocks
    /// nothing can be said: it says who is spoken to, and not that nobody else is there.
    #[must_use]
    pub fn in_part(self) -> Roster {
        Roster { is_partial: true, ..self }
    }

    /// Whether all of it is as it stands at the map's revision, and nobody is left out.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        !self.is_partial
    }

    /// Who is in the cluster.
    #[must_use]
    pub fn map(&self) -> &MemberMap {
        &self.map
    }

    /// How to reach a member.
    #[must_use]
    pub fn contact(&self, node: NodeId) -> Option<&Arc<Contact>> {
        self.contacts.get(&node)
    }
}
