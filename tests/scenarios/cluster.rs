//! Whole nodes in a cluster: real etcd on loopback, and nodes that register in it.

use std::fs;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use orbitkv::control::metadata::MetadataPage;
use rustix::process::Signal;

use crate::faults::orbitkv;
use crate::harness::etcd::free_port;
use crate::harness::{Etcd, Node, NodeOrder};

fn order(name: &str, port: u16, etcd: &Etcd) -> NodeOrder {
    let arguments =
        ["--cluster", "test", "--zone", "here", "--peer-addr", &format!("127.0.0.1:{port}"), "--etcd"];
    let order =
        arguments.iter().fold(NodeOrder::default().named(name).in_data_directory(), |order, argument| {
            order.argument(argument)
        });
    order.argument(etcd.urls().join(","))
}

/// The lines of the member record of node `a`.
fn record(etcd: &Etcd) -> String {
    etcd.value("/orbitkv/v2/test/members/a")
}

fn names(page: &MetadataPage) -> Vec<&str> {
    page.membership.members.iter().map(|member| member.node_id.as_str()).collect()
}

fn knows(node: &Node, expected: &[&str]) -> MetadataPage {
    let member = |page: &MetadataPage| page.membership.validity == "member" && names(page) == expected;
    node.await_metadata(&format!("the members are {expected:?}"), member)
}

#[test]
fn nodes_register_show_each_other_and_withdraw() {
    let etcd = Etcd::start();
    let mut first = order("a", free_port(), &etcd).start();
    let second = order("b", free_port(), &etcd).start();
    let page = knows(&first, &["a", "b"]);
    assert_eq!((page.standalone, page.epoch), (false, Some(1)));
    let cluster = page.cluster.expect("registered");
    assert!(etcd.value("/orbitkv/v2/test/format").contains(&cluster));
    let row = &page.membership.members[0];
    assert_eq!((row.epoch, row.shards, row.zone.as_str()), (1, 1, "here"));
    assert_eq!(page.membership.incarnation.as_ref(), Some(&row.incarnation));
    assert!(page.membership.etcd_requests > 0 && page.membership.etcd_received_bytes > 0);
    let said = orbitkv(&["status", "--http", first.http()]);
    for part in ["a serving, member with epoch 1", "127.0.0.1:", "here"] {
        assert!(said.stdout.contains(part), "no word of `{part}`: {said:#?}");
    }
    let begun = Instant::now();
    assert!(first.terminate().success());
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(etcd.value("/orbitkv/v2/test/members/a"), "");
    knows(&second, &["b"]);
    first.restart();
    assert_eq!(knows(&first, &["a", "b"]).epoch, Some(2));
    // A process that dies leaves its place to the next one at its ports.
    first.kill();
    first.restart();
    assert_eq!(knows(&first, &["a", "b"]).epoch, Some(3));
    second.assert_serves();
    [&first, &second].into_iter().for_each(Node::assert_within_bill);
}

#[test]
fn an_etcd_outage_costs_a_life_and_no_service() {
    let etcd = Etcd::start();
    let node = order("a", free_port(), &etcd).start();
    let before = knows(&node, &["a"]).membership.incarnation;
    etcd.pause(0);
    let page = node.await_metadata("the life ended", |page| page.membership.fences == 1);
    assert_eq!((page.epoch, page.membership.incarnation), (None, None));
    node.assert_serves();
    let said = orbitkv(&["status", "--http", node.http()]);
    assert!(said.code == Some(0) && said.stdout.contains("joining"), "{said:#?}");
    etcd.resume(0);
    let page = knows(&node, &["a"]);
    assert_eq!(page.epoch, Some(2));
    assert_ne!(page.membership.incarnation, before);
    assert!(node.stderr().contains("could not be renewed in time"), "{}", node.stderr());
    node.assert_within_bill();
}

#[test]
fn a_paused_node_finds_its_life_over() {
    let etcd = Etcd::start();
    let node = order("a", free_port(), &etcd).start();
    let other = order("b", free_port(), &etcd).start();
    knows(&other, &["a", "b"]);
    node.freeze();
    knows(&other, &["b"]);
    node.signal(Signal::CONT);
    let page = knows(&other, &["a", "b"]);
    assert_eq!(page.membership.members[0].epoch, 2);
    assert_eq!(node.metadata().membership.fences, 1);
    [&node, &other].into_iter().for_each(Node::assert_within_bill);
}

#[test]
fn a_name_that_lives_elsewhere_and_ports_that_are_taken_are_refused_by_name() {
    let etcd = Etcd::start();
    let port = free_port();
    let first = order("a", port, &etcd).start();
    knows(&first, &["a"]);
    let second = order("a", free_port(), &etcd).start();
    let page = second.await_metadata("it is refused", |page| page.membership.validity == "refused");
    assert!(
        page.membership.detail.contains(&format!("a is alive at 127.0.0.1:{port} with epoch 1")),
        "{page:#?}"
    );
    let said = orbitkv(&["status", "--http", second.http()]);
    assert!(said.stdout.contains("refused: a is alive at"), "{said:#?}");
    second.assert_serves();
    let ended = order("c", port, &etcd).try_start().err().expect("the port is taken");
    assert_eq!(ended.status.code(), Some(3), "{ended:#?}");
    assert!(ended.stderr.contains(&format!("--peer-addr 127.0.0.1:{port}")), "{ended:#?}");
    assert_eq!(knows(&first, &["a"]).membership.fences, 0);
    [&first, &second].into_iter().for_each(Node::assert_within_bill);
}

#[test]
fn ports_that_a_dead_process_is_about_to_lose_are_waited_for() {
    let etcd = Etcd::start();
    let held = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let port = held.local_addr().expect("bound").port();
    let holder = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(700));
        drop(held);
    });
    let node = order("a", port, &etcd).start();
    holder.join().expect("no panic");
    knows(&node, &["a"]);
    node.assert_within_bill();
}

#[test]
fn without_etcd_a_node_serves_and_joins_when_it_comes() {
    let mut etcd = Etcd::start();
    etcd.kill(0);
    let node = order("a", free_port(), &etcd).start();
    node.assert_serves();
    let page = node
        .await_metadata("it says what is wrong", |page| page.membership.detail.contains("does not answer"));
    assert_eq!(page.coverage, "Unavailable", "whoever is no member knows of nobody");
    etcd.launch(0);
    etcd.wait_ready();
    assert_eq!(knows(&node, &["a"]).epoch, Some(1));
    node.assert_within_bill();
}

#[test]
fn a_node_keeps_its_key_and_its_epoch() {
    let etcd = Etcd::start();
    let mut node = order("a", free_port(), &etcd).start();
    knows(&node, &["a"]);
    let key = |record: &str| record.lines().find(|line| line.starts_with("key ")).map(str::to_owned);
    let published = key(&record(&etcd)).expect("a fingerprint");
    assert!(!published.contains(&"0".repeat(32)), "{published}");
    let epoch = node.data_dir().join("epoch");
    assert_eq!(fs::read_to_string(&epoch).expect("kept"), "1\n");
    assert!(node.terminate().success());
    // As if etcd were restored from a copy that knows nothing of 41.
    fs::write(&epoch, "41\n").expect("room");
    node.restart();
    assert_eq!(knows(&node, &["a"]).epoch, Some(42));
    assert_eq!(key(&record(&etcd)), Some(published));
    assert_eq!(fs::read_to_string(&epoch).expect("kept"), "42\n");
    // None of the later ones lives.
    node.assert_within_bill();
    assert!(node.terminate().success());
    fs::write(&epoch, "many\n").expect("room");
    let again = || order("a", free_port(), &etcd).try_start_beside(&node).err().expect("refused");
    let ended = again();
    assert_eq!(ended.status.code(), Some(3), "{ended:#?}");
    assert!(ended.stderr.contains("does not hold this node's last epoch"), "{ended:#?}");
    fs::remove_file(&epoch).expect("there");
    fs::write(node.data_dir().join("node.key"), b"no key").expect("room");
    let ended = again();
    assert_eq!(ended.status.code(), Some(3), "{ended:#?}");
    assert!(ended.stderr.contains("is no node key"), "{ended:#?}");
}
