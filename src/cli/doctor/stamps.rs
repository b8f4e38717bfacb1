//! What a cluster shares with others (chapter 5, row 13): its name is a stamp of its own, and whatever another cluster
//! uses as well ties both together again.
//!
//! Only what is seen is told: the members in etcd, which each of them reaches, their hosts by the boots that they name,
//! and the sessions of the node that is asked. What the other clusters share among themselves is theirs to ask.

use std::collections::{BTreeMap, BTreeSet};

use orbitkv_shards::membership::cluster_of;
use orbitkv_shards::membership::coordinator::Snapshot;
use orbitkv_shards::resilience::stamps::{Flow, StampReport};
use orbitkv_wire::membership::{Key, MemberRecord};

use super::{Finding, Severity};
use crate::cli::cluster_keys::{ClusterKeys, Refusal};
use crate::control::etcd::neighbours::Neighbours;
use crate::control::metadata::MetadataPage;
use crate::control::owners::Owner;

/// Components, and clusters of each, that are named in a finding.
const NAMED_MAX: usize = 3;

const ETCD: &str = "etcd";

/// What etcd has of this cluster and of others.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// The members of this one.
    pub members: Vec<MemberRecord>,
    /// The others.
    pub neighbours: Neighbours,
}

/// Looks into etcd; `page` is of a node of the cluster.
///
/// # Errors
/// Why nothing can be said, in words.
pub(super) fn look(keys: &ClusterKeys, page: &MetadataPage) -> Result<Seen, String> {
    let words = |Refusal(_, text): Refusal| text;
    let (mut etcd, snapshot) = keys.open().map_err(words)?;
    is_of_node(&snapshot, page)?;
    let neighbours = etcd.neighbours().map_err(|failure| words(failure.into()))?;
    let records = snapshot.members().filter_map(|entry| MemberRecord::decode(&entry.value).ok());
    Ok(Seen { members: records.collect(), neighbours })
}

/// Another etcd may have a cluster of the same name.
fn is_of_node(snapshot: &Snapshot, page: &MetadataPage) -> Result<(), String> {
    let format = snapshot.get(Key::Format).expect("looked at when it was opened");
    let cluster = cluster_of(format, None).map_err(|refusal| refusal.to_string())?.to_string();
    match page.cluster.as_deref() {
        None => Err("the node is registered in no cluster".to_owned()),
        Some(own) if own != cluster => {
            Err(format!("the node is of cluster {own}, and in this etcd that name has cluster {cluster}"))
        }
        Some(_) => Ok(()),
    }
}

/// The host of a member. Its boot tells it from others; it is named by the address of the first member that runs there.
fn host(member: &MemberRecord, members: &[MemberRecord]) -> String {
    let first =
        members.iter().find(|other| other.contact.boot_id == member.contact.boot_id).unwrap_or(member);
    format!("host {}", first.contact.address.ip())
}

fn flow(name: String, path: Vec<String>) -> Flow {
    Flow { name, load: 1.0, components: path }
}

/// Every member to etcd, and the node that was asked to each peer that it has a live session with; each a load of 1.
fn flows(members: &[MemberRecord], node_id: &str, owners: &[Owner]) -> Vec<Flow> {
    let node = |member: &MemberRecord| format!("node {}", member.node);
    let to_etcd = members.iter().map(|member| {
        flow(format!("{} to etcd", member.node), vec![node(member), host(member, members), ETCD.to_owned()])
    });
    let named = |name: &str| members.iter().find(|member| member.node.to_string() == name);
    let live = owners.iter().filter(|owner| owner.state == "live").map(|owner| owner.node_id.as_str());
    let peers: BTreeSet<&str> = live.filter(|peer| *peer != node_id).collect();
    let sessions = peers.into_iter().filter_map(|peer| Some((named(node_id)?, named(peer)?)));
    let sessions = sessions.map(|(own, peer)| {
        let mut path = vec![node(own), host(own, members), host(peer, members), node(peer)];
        path.dedup();
        flow(format!("{} to {}", own.node, peer.node), path)
    });
    to_etcd.chain(sessions).collect()
}

/// What other clusters use as well, and which.
fn shared(seen: &Seen) -> BTreeMap<String, Vec<&str>> {
    let mut shared: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for neighbour in &seen.neighbours.clusters {
        shared.entry(ETCD.to_owned()).or_default().push(&neighbour.cluster);
        let beside = seen.members.iter().filter(|member| neighbour.boots.contains(&member.contact.boot_id));
        for host in beside.map(|member| host(member, &seen.members)).collect::<BTreeSet<String>>() {
            shared.entry(host).or_default().push(&neighbour.cluster);
        }
    }
    shared
}

/// The first of a list, and how many more there are.
fn first_of<T: AsRef<str>>(names: &[T]) -> String {
    let first: Vec<&str> = names.iter().take(NAMED_MAX).map(AsRef::as_ref).collect();
    match names.len() - first.len() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// What ties this cluster to others; nothing if it stands alone.
pub(super) fn findings(seen: &Seen, node_id: &str, owners: &[Owner]) -> Option<Finding> {
    let users = shared(seen);
    let stamps = 1 + seen.neighbours.clusters.len() as u64;
    let components = users.keys().cloned().collect();
    let report = StampReport::new(flows(&seen.members, node_id, owners), components, stamps);
    let (farthest, radius) = report.farthest_shared()?;
    let named: Vec<String> =
        users.iter().map(|(name, by)| format!("{name} (with {})", first_of(by))).collect();
    let least = if seen.neighbours.cut_short { "at least " } else { "" };
    Some(Finding {
        severity: Severity::Notice,
        name: "stamp-shared",
        what: format!(
            "{} of {} links seen of this cluster cross to what others use as well ({least}{} in this etcd): {}; the farthest \
             reach has {farthest}, which {:.0} % of its ways pass",
            report.crossing_links(),
            report.links(),
            stamps - 1,
            first_of(&named),
            radius.affected_pct,
        ),
        why: "its name keeps blocks and members apart; what fails or is overloaded there still reaches several clusters at once",
        remedy: "give a cluster that must not fail with others an etcd and hosts of its own".to_owned(),
    })
}

/// etcd was to be looked into, and nothing came of it.
pub(super) fn unseen(why: &str) -> Finding {
    Finding {
        severity: Severity::Notice,
        name: "stamp-unseen",
        what: format!("what other clusters use as well was not seen: {why}"),
        why: "nothing is said of it, neither that it is shared nor that it is not",
        remedy: "see --etcd and --cluster, and that this user of etcd may read below /orbitkv/v2/".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use orbitkv_wire::identity::Incarnation;
    use orbitkv_wire::membership::{Contact, HASH_VERSION};

    use super::*;
    use crate::cli::doctor::tests::check_sentences;
    use crate::control::etcd::neighbours::Neighbour;

    fn member(name: &str, host: u8) -> MemberRecord {
        let contact = Contact {
            address: std::net::SocketAddr::from(([10, 0, 0, host], 7_000)),
            shards: 1,
            hash_version: HASH_VERSION,
            zone: String::new(),
            key_fingerprint: [1; 32],
            boot_id: [host; 16],
            peer_socket: String::new(),
            capabilities: Vec::new(),
        };
        let node = name.parse().expect("a name");
        MemberRecord { node, epoch: 1, incarnation: Incarnation([1; 16]), contact }
    }

    fn seen(neighbours: &[(&str, &[u8])]) -> Seen {
        let of = |&(cluster, hosts): &(&str, &[u8])| Neighbour {
            cluster: cluster.to_owned(),
            boots: hosts.iter().map(|host| [*host; 16]).collect(),
        };
        let neighbours = Neighbours { clusters: neighbours.iter().map(of).collect(), cut_short: false };
        let mut members = vec![member("a", 1), member("b", 2), member("c", 2)];
        // A host may have several addresses.
        members[2].contact.address = std::net::SocketAddr::from(([10, 0, 1, 2], 7_000));
        Seen { members, neighbours }
    }

    fn owner(name: &str, state: &str) -> Owner {
        Owner { node_id: name.to_owned(), state: state.to_owned(), ..Owner::default() }
    }

    fn what(seen: &Seen, owners: &[Owner]) -> Option<String> {
        let found = findings(seen, "a", owners);
        check_sentences(found.as_slice());
        assert!(found.iter().all(|found| (found.name, found.severity) == ("stamp-shared", Severity::Notice)));
        found.map(|found| found.what)
    }

    #[test]
    fn a_stamp_that_stands_alone_has_no_finding() {
        assert_eq!(what(&seen(&[]), &[owner("b", "live")]), None);
        assert_eq!(what(&Seen::default(), &[]), None);
    }

    #[test]
    fn links_to_an_etcd_that_others_use_cross_and_sessions_do_not() {
        let alone = what(&seen(&[("test", &[9])]), &[]).expect("shared");
        assert_eq!(
            alone,
            "3 of 6 links seen of this cluster cross to what others use as well (1 in this etcd): etcd (with test); the farthest \
             reach has etcd, which 100 % of its ways pass"
        );
        // A session each with b and c, of b two shards; none with d.
        let owners = [
            owner("b", "live"),
            owner("b", "live"),
            owner("c", "live"),
            owner("d", "dialing"),
            owner("a", "live"),
        ];
        let with = what(&seen(&[("test", &[9])]), &owners).expect("shared");
        assert!(
            with.starts_with("3 of 12 links") && with.ends_with("etcd, which 60 % of its ways pass"),
            "{with}"
        );
    }

    #[test]
    fn a_host_that_others_use_is_named_and_may_have_the_farthest_reach() {
        let neighbours: &[(&str, &[u8])] = &[("p", &[2]), ("q", &[]), ("r", &[]), ("s", &[2, 7])];
        let owners = [owner("b", "live"), owner("c", "live")];
        let found = what(&seen(neighbours), &owners).expect("shared");
        // To etcd: a's second link, and the first ones of b and c; of the sessions host 1 to 2, and 2 to the node.
        assert_eq!(
            found,
            "7 of 12 links seen of this cluster cross to what others use as well (4 in this etcd): etcd (with p, q, r and 1 more), \
             host 10.0.0.2 (with p, s); the farthest reach has host 10.0.0.2, which 80 % of its ways pass"
        );
    }

    #[test]
    fn another_etcd_with_a_cluster_of_that_name_is_not_the_nodes() {
        use orbitkv_shards::membership::coordinator::Entry;
        use orbitkv_wire::identity::ClusterUuid;
        use orbitkv_wire::membership::Format;

        let cluster = ClusterUuid([7; 16]);
        let value = Format { cluster }.encode().into_bytes();
        let entry = Entry { key: Key::Format, value, revision: 1, version: 1, lease: None };
        let snapshot = Snapshot { revision: 1, entries: vec![entry] };
        let of = |cluster: Option<String>| {
            is_of_node(&snapshot, &MetadataPage { cluster, ..MetadataPage::default() })
        };
        assert_eq!(of(Some(cluster.to_string())), Ok(()));
        let refused = of(Some(ClusterUuid([8; 16]).to_string())).expect_err("of another cluster");
        assert!(refused.contains(&cluster.to_string()), "{refused}");
        assert!(of(None).is_err());
        check_sentences(&[unseen(&refused)]);
    }
}
