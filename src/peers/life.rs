//! What control tells a core of the node's life and of who else lives.

use std::sync::Arc;

use orbitkv_native::entropy;
use orbitkv_native::quic::{Fingerprint, Member as Endpoint};
use orbitkv_shards::inventory::subscriber::Index;
use orbitkv_shards::members::{Local, Member, MemberMap};
use orbitkv_shards::membership::{LookupDone, Roster};
use orbitkv_shards::shard::Shard;
use orbitkv_shards::time::Moment;
use orbitkv_wire::identity::{Incarnation, NodeId};
use orbitkv_wire::membership::Contact;

use super::Peers;
use super::lookups::LookupQueue;
use crate::core::mail::Answer;

/// A word of control.
#[derive(Clone, Debug)]
pub enum LifeLetter {
    /// This life is registered.
    Registered(Local),
    /// It may speak to others until then, of `CLOCK_BOOTTIME`.
    Admitted(Moment),
    /// Who is a member from now on; answered by [`Answer::Lowered`].
    Members(Neighbours),
    /// Every core stands at this revision.
    MayRaise(u64),
    /// Who is a member is not known until the next map.
    Suspended,
    /// A record that a core waits for has been read; what is new of it was told before.
    LookedUp(LookupDone),
    /// This life is over for good.
    Fenced(Incarnation),
}

/// The members at one revision, and the keys they publish.
#[derive(Clone, Debug, Default)]
pub struct Neighbours {
    /// Who is a member.
    pub map: MemberMap,
    /// In the order of names.
    contacts: Vec<(NodeId, Arc<Contact>)>,
    /// Who stands in the zone that whoever looks prefers, in the order of names.
    preferred: Vec<NodeId>,
}

impl Neighbours {
    /// What cores need to know of a roster.
    #[must_use]
    pub fn of(roster: &Roster) -> Neighbours {
        let contact = |node| roster.contact(node).map(|contact| (node, contact.clone()));
        let contacts = roster.map().members().iter().filter_map(|member| contact(member.node)).collect();
        Neighbours { map: roster.map().clone(), contacts, preferred: Vec::new() }
    }

    /// Zones of all members but one, those without a name among them.
    pub(super) fn zones_beside(&self, own: NodeId) -> impl Iterator<Item = &str> {
        let others = self.contacts.iter().filter(move |(node, _)| *node != own);
        others.map(|(_, contact)| contact.zone.as_str())
    }

    /// Who stands in a zone, in the order of names.
    pub(super) fn in_zone(&self, zone: &str) -> impl Iterator<Item = NodeId> {
        self.contacts.iter().filter(move |(_, contact)| contact.zone == zone).map(|(node, _)| *node)
    }

    /// Prefers whoever stands in a zone, or nobody.
    pub(super) fn prefer(&mut self, zone: Option<&str>) {
        self.preferred = zone.into_iter().flat_map(|zone| self.in_zone(zone)).collect();
    }

    /// Whether a member stands in the preferred zone.
    pub(super) fn is_preferred(&self, node: NodeId) -> bool {
        self.preferred.binary_search(&node).is_ok()
    }

    /// The key that a member publishes.
    pub(super) fn key_of(&self, node: NodeId) -> Option<Fingerprint> {
        Some(Fingerprint(self.contact(node)?.key_fingerprint))
    }

    /// Where a member listens for who shares its memory, if it is on the host of this boot and does.
    pub(super) fn peer_socket(&self, node: NodeId, boot: &[u8; 16]) -> Option<&str> {
        let contact = self.contact(node)?;
        let is_near = contact.boot_id == *boot && !contact.peer_socket.is_empty();
        is_near.then_some(contact.peer_socket.as_str())
    }

    fn contact(&self, node: NodeId) -> Option<&Contact> {
        let place = self.contacts.binary_search_by_key(&node, |(node, _)| *node).ok()?;
        Some(&self.contacts[place].1)
    }

    /// The member that publishes a key.
    pub(super) fn holder(&self, key: Fingerprint) -> Option<NodeId> {
        self.contacts.iter().find(|(_, held)| held.key_fingerprint == key.0).map(|(node, _)| *node)
    }

    fn endpoints(&self) -> impl Iterator<Item = Endpoint> {
        let members = self.map.members().iter();
        members.filter_map(|member| {
            let (address, base_port) = (member.address.ip(), member.address.port());
            let fingerprint = self.key_of(member.node)?;
            Some(Endpoint { fingerprint, address, base_port, shards: member.shards })
        })
    }
}

/// Where this node's registration is, as control has told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// There is none, or it is over.
    Unregistered,
    /// Registered, and not admitted yet.
    Registered,
    /// A member until the moment, of `CLOCK_BOOTTIME`.
    Member(Moment),
}

impl Life {
    /// Whether this node may speak to others.
    pub fn is_member(self, boot: Moment) -> bool {
        matches!(self, Life::Member(until) if until > boot)
    }

    /// Whether its time is over and nobody has said so yet.
    pub fn is_overdue(self, boot: Moment) -> bool {
        matches!(self, Life::Member(until) if until <= boot)
    }
}

impl Peers {
    /// What control says. Letters of control come in its order.
    pub fn on_life_letter(&mut self, letter: LifeLetter, shard: &mut Shard, now: Moment) {
        match letter {
            LifeLetter::Registered(local) => {
                assert_eq!(
                    local.incarnation,
                    shard.incarnation(),
                    "a life is registered once shards live it"
                );
                self.local = local;
                self.life = Life::Registered;
                self.is_suspended = true;
                self.publisher.on_registered(local, now);
                self.subscriber.on_registered(local, now);
                self.payload.on_registered(local, shard);
            }
            LifeLetter::Admitted(until) => {
                if self.life != Life::Unregistered {
                    self.life = Life::Member(until);
                }
            }
            LifeLetter::Members(neighbours) => self.on_members(neighbours, shard, now),
            LifeLetter::MayRaise(revision) => self.subscriber.on_may_raise(revision),
            LifeLetter::Suspended => {
                self.is_suspended = true;
                self.publisher.on_membership_invalid();
                self.subscriber.on_membership_invalid(now);
                self.payload.on_membership_invalid();
            }
            LifeLetter::LookedUp(done) => self.on_looked_up(&done, now),
            LifeLetter::Fenced(incarnation) => {
                if self.local.incarnation == incarnation {
                    self.life = Life::Unregistered;
                    for dial in self.record_lookups.as_mut().map(LookupQueue::give_back).unwrap_or_default() {
                        self.subscriber.on_dial_failed(dial.stream, entropy::random_u64(), now);
                    }
                    self.publisher.on_fenced(now);
                    self.subscriber.on_fenced(now);
                    self.payload.on_fenced(shard);
                }
            }
        }
        self.wake();
    }

    fn on_members(&mut self, neighbours: Neighbours, shard: &mut Shard, now: Moment) {
        self.is_suspended = false;
        self.endpoint.set_members(neighbours.endpoints());
        self.doubts.on_members(&neighbours.map);
        let mut index = Index { partition: &mut self.partition, namespaces: shard.namespaces_mut() };
        self.subscriber.on_lower(&neighbours.map, &mut index, now);
        self.publisher.on_members(&neighbours.map, now);
        self.payload.on_members(&neighbours, &mut self.endpoint, shard, now);
        let own = self.local.node;
        shard.seek_peers(neighbours.map.members().iter().any(|member| member.node != own));
        self.answers.push_back(Answer::Lowered(self.shard, neighbours.map.revision));
        // A multiple of our shards cuts our ranges further, and its rows are where their keys are.
        let own = self.local.shards;
        let elsewhere = |member: &Member| !member.shards.is_multiple_of(own);
        self.streams_elsewhere = neighbours.map.members().iter().any(elsewhere);
        self.neighbours = neighbours;
        self.zones.on_members(self.neighbours.zones_beside(self.local.node));
        self.neighbours.prefer(self.zones.preferred());
    }
}
