//! etcd hangs, dies, loses its past, its space or its quorum, or is another one.

use std::time::Duration;

use orbitkv_shards::membership::coordinator::Failure;
use orbitkv_shards::membership::{FenceCause, Standing};

use super::node::{LEASE, Node, Told};
use super::server::{Etcd, Relay, free_port};

#[test]
fn a_hung_etcd_fences_at_the_deadline_and_a_new_life_heals() {
    let etcd = Etcd::start();
    let node = Node::start("a", free_port(), etcd.urls());
    let before = node.member(1);
    // Its own record has come by the watch: from here on it knows one member.
    node.knows(&["a"]);
    etcd.pause(0);
    let begun = std::time::Instant::now();
    node.wait("fence", |_| node.fences() == 1);
    assert!(begun.elapsed() < LEASE, "half of the lease, and a renewal more at most");
    assert!(matches!(
        node.told()[..],
        [Told::Registered(_), .., Told::Fenced(_, FenceCause::DeadlinePassed)]
    ));
    // Longer than the lease: the record ends too. Who was known is still known.
    std::thread::sleep(LEASE);
    assert_eq!(node.sight().expect("seen").roster.map().members().len(), 1);
    etcd.resume(0);
    let after = node.member(2);
    assert_eq!((after.epoch, after.cluster), (2, before.cluster));
    assert_ne!(after.incarnation, before.incarnation);
    assert_eq!(node.fences(), 1);
    node.alarmed("does not answer");
}

#[test]
fn a_restart_of_etcd_within_the_deadline_costs_nothing() {
    let mut etcd = Etcd::start();
    let (a, b) = (free_port(), free_port());
    let node = Node::start("a", a, etcd.urls());
    node.member(1);
    etcd.kill(0);
    etcd.launch(0);
    etcd.wait_ready();
    let other = Node::start("b", b, etcd.urls());
    other.member(1);
    node.knows(&["a", "b"]);
    assert_eq!((node.fences(), node.member(1).epoch), (0, 1), "{:?}", node.told());
    assert!(node.sight().expect("seen").figures.watches_ended > 0);
}

#[test]
fn compaction_while_the_watch_is_cut_suspends_until_it_is_repaired() {
    let etcd = Etcd::start();
    let relay = Relay::to(etcd.address(0));
    let node = Node::start("a", free_port(), vec![relay.url()]);
    node.member(1);
    // Its own record comes by the watch, which therefore lives.
    node.knows(&["a"]);
    relay.point(None);
    let other = Node::start("b", free_port(), etcd.urls());
    other.member(1);
    // A watch may still begin with the revision of the compaction itself.
    etcd.ctl(&["put", "/orbitkv/v2/test/config/x", "1"]);
    etcd.ctl(&["compact", &etcd.revision().to_string()]);
    relay.point(Some(etcd.address(0)));
    node.knows(&["a", "b"]);
    // etcd says so some time after it has created the watch.
    let compacted = |told: &Told| matches!(told, Told::Suspended(cause) if cause.contains("compacted"));
    node.wait("suspension", |_| node.told().iter().any(compacted));
    node.wait("the end of it", |sight| sight.standing == Standing::Member);
    assert_eq!(node.fences(), 0);
}

#[test]
fn an_etcd_restored_from_an_old_copy_is_named_and_healed() {
    let mut etcd = Etcd::start();
    let port = free_port();
    Node::start("a", port, etcd.urls()).member(1);
    let copy = etcd.save_copy();
    // What the copy does not know: a second life, and more.
    let node = Node::start("a", port, etcd.urls());
    let lost = node.member(2);
    (0..20).for_each(|number| {
        etcd.ctl(&["put", "/orbitkv/v2/test/config/x", &number.to_string()]);
    });
    let other = Node::start("b", free_port(), etcd.urls());
    other.member(1);
    node.knows(&["a", "b"]);
    etcd.restore(&copy);
    node.alarmed("restored from an old copy");
    let healed = node.member(3);
    assert_eq!(healed.cluster, lost.cluster);
    other.wait("the new life", |sight| sight.roster.map().has(healed.node, healed.incarnation));
    node.knows(&["a", "b"]);
    assert!(node.fences() >= 1 && other.fences() >= 1);
}

#[test]
fn an_etcd_without_space_is_named_and_members_live_on() {
    let etcd = Etcd::of(1, &["--quota-backend-bytes=4194304"]);
    let member = Node::start("a", free_port(), etcd.urls());
    member.member(1);
    let megabyte = "x".repeat(100_000);
    let mut number = 0;
    while etcd.ctl_result(&["put", &format!("/other/{number}"), &megabyte]).is_some() {
        number += 1;
        assert!(number < 200, "the quota is small");
    }
    let node = Node::start("b", free_port(), etcd.urls());
    node.wait("trouble", |sight| sight.standing == Standing::Troubled(Failure::NoSpace));
    node.alarmed("no space left");
    let renewals = member.sight().expect("seen").figures.renewals;
    member.wait("renewals", |sight| sight.figures.renewals >= renewals + 3);
    assert_eq!(member.fences(), 0);
    etcd.ctl(&["del", "--prefix", "/other/"]);
    etcd.ctl(&["compact", &etcd.revision().to_string()]);
    etcd.ctl(&["--command-timeout=30s", "defrag"]);
    etcd.ctl(&["alarm", "disarm"]);
    node.member(1);
}

#[test]
fn another_etcd_cluster_is_not_believed() {
    let (etcd, other) = (Etcd::start(), Etcd::start());
    let relay = Relay::to(etcd.address(0));
    let node = Node::start("a", free_port(), vec![relay.url()]);
    node.member(1);
    relay.point(Some(other.address(0)));
    node.alarmed("belongs to another cluster");
    node.wait("fence", |_| node.fences() == 1);
    assert_eq!(other.value("/orbitkv/v2/test/format"), "", "nothing is written there");
    let fence = node.told().into_iter().find(|told| matches!(told, Told::Fenced(..)));
    assert!(
        matches!(fence, Some(Told::Fenced(_, FenceCause::DeadlinePassed))),
        "its word on leases counts nothing"
    );
    relay.point(Some(etcd.address(0)));
    node.member(2);
}

#[test]
fn one_endpoint_of_another_cluster_does_not_hold_a_node_that_has_a_second_one() {
    let (etcd, foreign) = (Etcd::start(), Etcd::start());
    let relays = [Relay::to(etcd.address(0)), Relay::to(etcd.address(0))];
    let node = Node::start("a", free_port(), relays.iter().map(Relay::url).collect());
    node.member(1);
    node.knows(&["a"]);
    relays[0].point(Some(foreign.address(0)));
    node.wait("another watch", |sight| sight.figures.watches_ended > 0);
    // Every connection ends once more: the first endpoint is next, and leads astray.
    relays[1].point(Some(etcd.address(0)));
    node.alarmed("belongs to another cluster");
    let other = Node::start("b", free_port(), etcd.urls());
    other.member(1);
    node.knows(&["a", "b"]);
    let renewals = node.sight().expect("seen").figures.renewals;
    node.wait("renewals", |sight| sight.figures.renewals >= renewals + 4);
    assert_eq!((node.fences(), node.member(1).epoch), (0, 1), "{:?}", node.told());
    assert_eq!(foreign.value("/orbitkv/v2/test/format"), "", "nothing is written there");
}

#[test]
fn one_dead_endpoint_of_two_costs_nothing() {
    let etcd = Etcd::start();
    let dead = format!("http://127.0.0.1:{}", free_port());
    let node = Node::start("a", free_port(), vec![dead, etcd.url(0)]);
    node.member(1);
    // Its own record comes by the watch.
    node.knows(&["a"]);
    assert_eq!(node.sight().expect("seen").figures.watches_ended, 1, "the second endpoint was tried next");
}

#[test]
fn endpoints_that_are_gone_or_hung_are_passed_over() {
    let mut etcd = Etcd::of(3, &[]);
    let mut urls = vec![format!("http://127.0.0.1:{}", free_port())];
    urls.extend(etcd.urls());
    let node = Node::start("a", free_port(), urls);
    node.member(1);
    // The one it speaks to hangs, and the others elect a leader if it led.
    etcd.pause(0);
    let other = Node::start("b", free_port(), vec![etcd.url(2)]);
    other.member(1);
    node.knows(&["a", "b"]);
    etcd.resume(0);
    let leader = etcd.leader();
    etcd.kill(leader);
    std::thread::sleep(LEASE / 2);
    node.wait("membership", |sight| sight.standing == Standing::Member);
    assert!(node.wait("renewals", |sight| sight.figures.renewals > 3).figures.registrations <= 2);
}

#[test]
fn a_lost_quorum_fences_and_its_return_heals() {
    let mut etcd = Etcd::of(3, &[]);
    let node = Node::start("a", free_port(), etcd.urls());
    let before = node.member(1);
    etcd.kill(1);
    etcd.kill(2);
    node.wait("fence", |_| node.fences() == 1);
    std::thread::sleep(Duration::from_secs(3));
    assert!(node.sight().expect("seen").local.is_none());
    etcd.launch(1);
    etcd.wait_ready();
    let after = node.member(before.epoch + 1);
    assert_ne!(after.incarnation, before.incarnation);
    etcd.launch(2);
}
