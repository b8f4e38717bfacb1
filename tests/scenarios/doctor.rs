//! What `orbitkv doctor` says of a node as a member: who is missing, who is refused, and what etcd has to do with it.

use orbitkv::client::Coverage;
use orbitkv_native::quic::NodeKey;
use orbitkv_wire::membership::HASH_VERSION;

use crate::faults::doctor;
use crate::harness::etcd::free_port;
use crate::harness::scripted_peer::record_of;
use crate::harness::{Etcd, Node, ScriptedPeer, eventually};
use crate::peers::{await_installed, keys, knows_all, order, pair, query, savers};

/// Waits until `doctor` has this finding, and gives the words of all.
fn await_finding(node: &Node, finding: &str) -> String {
    eventually(&format!("doctor finds {finding}"), || {
        let is_there = || doctor(node).1.iter().any(|name| name == finding);
        // The words were said before the names.
        is_there().then(|| doctor(node).2)
    })
}

#[test]
fn a_member_that_never_answers_is_named_with_how_long_it_is_missing() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, |order| order);
    for node in [&first, &second] {
        assert_eq!(doctor(node).1, Vec::<String>::new(), "{}", doctor(node).2);
    }
    ScriptedPeer::with(&NodeKey::ephemeral()).join(&etcd, "silent");
    let words = await_finding(&first, "sessions-missing");
    assert!(words.contains("no inventory session: silent shard 0 ("), "{words}");
    assert!(
        words.contains(" s)\n  why     blocks saved there since") && words.contains("  remedy  see that UDP"),
        "{words}"
    );
    assert_eq!(doctor(&first).0, Some(4));
    etcd.ctl(&["del", "/orbitkv/v2/test/members/silent"]);
    knows_all(&first, 2);
    assert_eq!(doctor(&first).1, Vec::<String>::new(), "{}", doctor(&first).2);
}

#[test]
fn a_name_that_is_held_and_an_etcd_that_is_gone_are_told_apart() {
    let etcd = Etcd::start();
    let first = order("a", free_port(), &etcd).start();
    knows_all(&first, 1);
    let other = order("a", free_port(), &etcd).start();
    let words = await_finding(&other, "not-registered");
    assert!(words.contains("this node may not be a member: a is alive at "), "{words}");
    assert_eq!(doctor(&first).1, Vec::<String>::new(), "{}", doctor(&first).2);
    etcd.pause(0);
    let words = await_finding(&first, "lease-expired");
    assert!(words.contains("1 lives of this node ended"), "{words}");
    await_finding(&first, "etcd-unreachable");
    first.assert_serves();
    etcd.resume(0);
    knows_all(&first, 1);
    let (_, names, words) = doctor(&first);
    assert!(!names.iter().any(|name| name == "etcd-unreachable"), "{words}");
}

#[test]
fn what_a_cluster_shares_with_another_is_seen_in_etcd_by_whoever_asks_there() {
    let etcd = Etcd::start();
    let (first, _second) = pair(&etcd, |order| order);
    let look = |cluster: &str| {
        let said = first.operator("doctor", &["--etcd", &etcd.url(0), "--cluster", cluster]);
        assert_ne!(said.code, Some(2), "{said:#?}");
        said.stdout
    };
    let alone = look("test");
    assert!(!alone.contains("others use as well"), "{alone}");
    let beside = record_of(&etcd, "a").encode();
    etcd.ctl(&["put", "/orbitkv/v2/other/members/x", &beside]);
    let shared = look("test");
    let words = "notice 4 of 6 links seen of this cluster cross to what others use as well (1 in this etcd): etcd (with other), host \
                 127.0.0.1 (with other); the farthest reach has host 127.0.0.1, which 100 % of its ways pass\n";
    assert!(shared.contains(words), "{shared}");
    let unseen = look("other");
    assert!(unseen.contains("was not seen: there is no cluster \"other\" in this etcd"), "{unseen}");
    assert!(!doctor(&first).1.iter().any(|name| name.starts_with("stamp")), "by itself it asks no etcd");
}

#[test]
fn a_member_with_another_hash_version_is_named_and_not_asked_and_nothing_is_called_absent() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, |order| order);
    let [mut saver, mut other] = savers([&first, &second]);
    let mut older = record_of(&etcd, "b");
    older.node = "older".parse().expect("a name");
    older.contact.address.set_port(free_port());
    older.contact.hash_version = HASH_VERSION - 1;
    let key = "/orbitkv/v2/test/members/older";
    etcd.ctl(&["put", key, &older.encode()]);
    for node in [&first, &second] {
        let words = await_finding(node, "hash-version");
        let named = format!("by another hash version than this node: older ({})\n", HASH_VERSION - 1);
        assert!(words.contains(&named) && words.contains("  remedy  update the older of the two"), "{words}");
        assert_eq!(doctor(node).0, Some(4));
        let page = node.await_metadata("it claims no absence", |page| page.coverage == "PartialHints");
        assert_eq!((page.membership.members.len(), page.left_out), (2, 0), "{page:#?}");
        assert!(!node.operator("owners", &[]).stdout.contains("older"), "it is not to be asked");
        assert!(node.stderr().contains("older places keys by hash version"), "{}", node.stderr());
    }
    let saved = keys(2);
    saver.save(&saved);
    await_installed(&first, &second);
    // What the others have is found, and what nobody of them has is not called absent.
    for (wanted, found) in [(&saved, 2), (&keys(2), 0)] {
        let view = query(&mut other, wanted);
        assert_eq!((view.boundary_blocks, view.coverage), (found, Coverage::PartialHints));
    }
    other.check_ready(&saved);
    etcd.ctl(&["del", key]);
    knows_all(&second, 2);
    let (_, names, words) = doctor(&second);
    assert!(!names.iter().any(|name| name == "hash-version"), "{words}");
    assert_eq!(query(&mut other, &keys(2)).coverage, Coverage::CompleteAtWatermarks);
}
