//! Who gets which place, and who is refused.

use std::time::Duration;

use etcd_client::ConnectOptions;
use orbitkv_shards::membership::coordinator::Failure;
use orbitkv_shards::membership::{Refusal, Standing};
use orbitkv_wire::membership::MemberRecord;

use super::node::Node;
use super::server::{Etcd, free_port};

fn refused(node: &Node) -> Refusal {
    let sight = node.wait("refusal", |sight| matches!(sight.standing, Standing::Refused(_)));
    match sight.standing {
        Standing::Refused(refusal) => refusal,
        standing => panic!("{standing}"),
    }
}

#[test]
fn nodes_find_each_other_withdraw_and_come_back_with_higher_epochs() {
    let etcd = Etcd::start();
    let ports = [free_port(), free_port()];
    let first = Node::start("a", ports[0], etcd.urls());
    let cluster = first.member(1).cluster;
    let second = Node::start("b", ports[1], etcd.urls());
    assert_eq!(second.member(1).cluster, cluster);
    first.knows(&["a", "b"]);
    let roster = second.knows(&["a", "b"]);
    let contact = roster.contact("a".parse().expect("legal")).expect("a member");
    assert_eq!((contact.address.port(), contact.shards, contact.zone.as_str()), (ports[0], 2, "here"));
    // What an operator sees.
    let text = etcd.value("/orbitkv/v2/test/format");
    assert!(
        text.starts_with("protocol orbitkv/inventory-stream/v4\ncarrier quic-rkyv/1\ncluster "),
        "{text}"
    );
    let text = etcd.value("/orbitkv/v2/test/members/a");
    let record = MemberRecord::decode(text.strip_suffix('\n').expect("etcdctl ends a line").as_bytes());
    assert_eq!(record.map(|record| record.epoch), Ok(1));

    let took = first.withdraw();
    assert!(took < Duration::from_millis(420), "{took:?}");
    second.knows(&["b"]);
    let first = Node::start("a", ports[0], etcd.urls());
    assert_eq!(first.member(1).epoch, 2);
    // A process that was killed leaves its record; the next one at its ports does not wait for it.
    let life = first.member(1).incarnation;
    first.kill();
    let first = Node::start("a", ports[0], etcd.urls());
    let next = first.member(1);
    assert_eq!(next.epoch, 3);
    assert_ne!(next.incarnation, life);
    second.wait("the new life", |sight| sight.roster.map().has(next.node, next.incarnation));
    assert_eq!((second.fences(), second.member(1).epoch), (0, 1));
}

#[test]
fn nothing_is_written_while_nothing_changes() {
    let etcd = Etcd::start();
    let node = Node::start("a", free_port(), etcd.urls());
    node.member(1);
    let before = (etcd.revision(), node.sight().expect("seen"));
    node.wait("renewals", |sight| sight.figures.renewals >= before.1.figures.renewals + 3);
    assert_eq!(etcd.revision(), before.0);
    let traffic = node.sight().expect("seen").traffic;
    assert!(traffic.requests > before.1.traffic.requests, "lease traffic is counted");
}

#[test]
fn a_name_that_lives_elsewhere_is_refused_until_its_lease_ends() {
    let etcd = Etcd::start();
    let first = Node::start("a", free_port(), etcd.urls());
    first.member(1);
    let second = Node::start("a", free_port(), etcd.urls());
    let Refusal::Held(holder) = refused(&second) else { panic!("{:?}", second.sight()) };
    assert_eq!(holder.epoch, 1);
    assert!(holder.time_to_live.is_some_and(|left| left <= super::node::LEASE), "{holder:?}");
    second.alarmed("a is alive at 127.0.0.1:");
    first.wait("renewals", |sight| sight.figures.renewals >= 2);
    assert_eq!(first.fences(), 0);
    first.kill();
    assert_eq!(second.member(1).epoch, 2);
}

#[test]
fn a_foreign_format_is_refused_by_name_and_nothing_is_written() {
    let etcd = Etcd::start();
    let old = "protocol orbitkv/inventory-stream/v3\ncarrier tcp-bincode/2\ncluster x\n";
    etcd.ctl(&["put", "/orbitkv/v2/test/format", old]);
    let before = etcd.revision();
    let node = Node::start("a", free_port(), etcd.urls());
    assert!(refused(&node).to_string().contains("orbitkv/inventory-stream/v3"));
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(etcd.revision(), before);
    // Members without a format are another program's too.
    etcd.ctl(&["put", "/orbitkv/v2/test/members/z", "{}"]);
    etcd.ctl(&["del", "/orbitkv/v2/test/format"]);
    node.wait("refusal", |sight| sight.standing == Standing::Refused(Refusal::FormatMissing));
}

#[test]
fn a_user_without_the_role_is_denied_and_one_with_it_joins() {
    let etcd = Etcd::start();
    for arguments in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "node"],
        &["role", "grant-permission", "--prefix=true", "node", "readwrite", "/orbitkv/v2/test/"],
        &["user", "add", "node:word"],
        &["user", "grant-role", "node", "node"],
        &["user", "add", "stranger:word"],
        &["auth", "enable"],
    ] {
        etcd.ctl(arguments);
    }
    let denied = |node: &Node| {
        node.wait("denial", |sight| matches!(sight.standing, Standing::Troubled(Failure::Denied(_))));
    };
    denied(&Node::start("a", free_port(), etcd.urls()));
    let user = |name: &str, password: &str| {
        let options = ConnectOptions::new().with_user(name, password);
        Node::with("a", free_port(), etcd.urls(), options)
    };
    denied(&user("stranger", "word"));
    denied(&user("node", "wrong"));
    user("node", "word").member(1);
}
