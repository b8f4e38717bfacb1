//! What is found of other clusters in a real etcd.

use std::time::Duration;

use etcd_client::ConnectOptions;
use orbitkv_wire::identity::Incarnation;
use orbitkv_wire::membership::{Contact, HASH_VERSION, Keyspace, MemberRecord};

use super::server::Etcd;
use crate::control::etcd::EtcdAccess;
use crate::control::etcd::neighbours::{Neighbour, Neighbours};
use crate::control::etcd::operator::OperatorKeys;

fn member(name: &str, boot: u8) -> String {
    let contact = Contact {
        address: "10.0.0.1:7000".parse().expect("an address"),
        shards: 1,
        hash_version: HASH_VERSION,
        zone: String::new(),
        key_fingerprint: [1; 32],
        boot_id: [boot; 16],
        peer_socket: String::new(),
        capabilities: Vec::new(),
    };
    let incarnation = Incarnation([2; 16]);
    MemberRecord { node: name.parse().expect("a name"), epoch: 1, incarnation, contact }.encode()
}

#[test]
fn clusters_with_members_are_found_and_this_one_is_none_of_them() {
    let etcd = Etcd::start();
    let access = EtcdAccess { endpoints: etcd.urls(), options: ConnectOptions::new() };
    let space = Keyspace::new("test").expect("legal");
    let mut keys = OperatorKeys::new(access, space, Duration::from_secs(5)).expect("a runtime");
    assert_eq!(keys.neighbours().expect("an answer"), Neighbours::default());
    for (key, value) in [
        ("/orbitkv/v2/test/members/a", member("a", 1)),
        // Before and after it in the order of keys.
        ("/orbitkv/v2/test-2/members/x", member("x", 2)),
        ("/orbitkv/v2/test-2/members/y", member("y", 2)),
        ("/orbitkv/v2/test0/members/z", "of another program".to_owned()),
        ("/orbitkv/v2/tes/format", "nobody runs".to_owned()),
        ("/orbitkv/v20/members/z", member("z", 3)),
        ("/other", String::new()),
    ] {
        etcd.ctl(&["put", key, &value]);
    }
    let neighbour = |cluster: &str, boots: &[u8]| Neighbour {
        cluster: cluster.to_owned(),
        boots: boots.iter().map(|boot| [*boot; 16]).collect(),
    };
    let clusters = vec![neighbour("test-2", &[2]), neighbour("test0", &[])];
    assert_eq!(keys.neighbours().expect("an answer"), Neighbours { clusters, cut_short: false });
}
