//! What a transaction of a migration demands, on a real etcd: each demand alone is enough to stop it.

use etcd_client::ConnectOptions;
use orbitkv_shards::membership::coordinator::Failure;
use orbitkv_shards::membership::cutover::Exchange;
use orbitkv_wire::membership::Keyspace;

use super::server::Etcd;
use crate::control::etcd::EtcdAccess;
use crate::control::etcd::cutover::{CutoverFailure, Keys};

const PREFIX: &str = "/orbitkv/v2/test/";

fn keys(etcd: &Etcd) -> Keys {
    let access = EtcdAccess { endpoints: etcd.urls(), options: ConnectOptions::new() };
    Keys::new(access, Keyspace::new("test").expect("legal")).expect("a runtime")
}

fn put(etcd: &Etcd, name: &str, value: &str) {
    etcd.ctl(&["put", &format!("{PREFIX}{name}"), value]);
}

#[test]
fn each_demand_of_a_transaction_is_made() {
    let etcd = Etcd::start();
    put(&etcd, "format", "old");
    put(&etcd, "a", "1");
    put(&etcd, "b", "2");
    // Neighbours in the order of keys, of other clusters.
    etcd.ctl(&["put", "/orbitkv/v2/test-2/members/x", "1"]);
    etcd.ctl(&["put", "/orbitkv/v2/tes/members/x", "1"]);
    let mut keys = keys(&etcd);
    let stand = keys.read().expect("an answer");
    let names: Vec<&str> = stand.keys.iter().map(|key| key.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "format"]);
    let revision = |name: &str| stand.get(name).expect("there").revision;
    let whole = Exchange {
        format: (b"old".to_vec(), revision("format")),
        unchanged: vec![("a".to_owned(), revision("a")), ("c".to_owned(), 0)],
        nothing_after: Some(stand.revision),
        writes: vec![("a".to_owned(), None), ("c".to_owned(), Some(b"3".to_vec()))],
    };
    let spoil: [fn(&mut Exchange); 5] = [
        |exchange| exchange.format.0 = b"older".to_vec(),
        |exchange| exchange.format.1 -= 1,
        |exchange| exchange.unchanged[0].1 += 1,
        |exchange| exchange.unchanged[1].1 = 1,
        |exchange| exchange.nothing_after = exchange.nothing_after.map(|last| last - 4),
    ];
    for spoil in spoil {
        let mut exchange = whole.clone();
        spoil(&mut exchange);
        assert!(!keys.exchange(&exchange).expect("an answer"), "{exchange:?}");
    }
    put(&etcd, "members/No Name", "anything");
    let mut registered = whole.clone();
    registered.nothing_after = None;
    assert!(!keys.exchange(&registered).expect("an answer"), "somebody is registered");
    etcd.ctl(&["del", &format!("{PREFIX}members/No Name")]);
    assert_eq!(etcd.value(&format!("{PREFIX}a")), "1\n", "nothing has happened so far");
    assert!(keys.exchange(&whole).expect("an answer"));
    assert_eq!(etcd.ctl(&["get", "--prefix", "--keys-only", PREFIX]).split_whitespace().count(), 3);
    assert_eq!(etcd.value(&format!("{PREFIX}c")), "3\n");
    assert_eq!(etcd.value("/orbitkv/v2/test-2/members/x"), "1\n");
}

#[test]
fn an_etcd_that_goes_away_is_waited_for_and_then_named() {
    let mut etcd = Etcd::start();
    put(&etcd, "format", "old");
    let mut keys = keys(&etcd);
    keys.read().expect("an answer");
    etcd.kill(0);
    let failed = keys.read().expect_err("nobody is there");
    assert!(matches!(failed, CutoverFailure::Etcd(Failure::Unanswered(_))), "{failed}");
    etcd.launch(0);
    assert_eq!(keys.read().expect("it is back").keys.len(), 1);
}
