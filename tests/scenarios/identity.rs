//! Who may speak to a node on the wire, and who may have a name: whoever is not what the member records say gets
//! no session and no answer, is counted, and changes nothing for anybody else.

use orbitkv::control::metadata::MetadataPage;
use orbitkv::control::report::HandshakesReport;
use orbitkv_native::quic::{Loss, NodeKey, Purpose};

use crate::faults::orbitkv;
use crate::harness::etcd::free_port;
use crate::harness::scripted_peer::record_of;
use crate::harness::{Etcd, Node, NodeOrder, Saver, ScriptedPeer};
use crate::peers::{await_installed, keys, knows_all, order, pair, peers, savers};

fn handshakes(node: &Node) -> HandshakesReport {
    peers(node).handshakes
}

fn knows(node: &Node, name: &str) -> MetadataPage {
    node.await_metadata(&format!("{name} is a member"), |page| {
        page.membership.members.iter().any(|member| member.node_id == name)
    })
}

/// What `/metrics` says of handshakes of one kind.
fn metric(node: &Node, kind: &str) -> u64 {
    let text = crate::harness::http_text(node.http(), "/metrics");
    let name = "orbitkv_peer_handshakes_total{";
    let line = text.lines().find(|line| line.starts_with(name) && line.contains(&format!("\"{kind}\"")));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    value.unwrap_or_else(|| panic!("no {kind} in:\n{text}"))
}

/// Blocks of each are read by the other.
fn assert_blocks_go_round(first: &Node, second: &Node, [saver, other]: &mut [Saver; 2]) {
    let (here, there) = (keys(5), keys(5));
    saver.save(&here);
    other.save(&there);
    await_installed(first, second);
    await_installed(second, first);
    other.check_ready(&here);
    saver.check_ready(&there);
}

#[test]
fn a_stranger_gets_no_session_and_no_answer() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, |order| order);
    let mut savers = savers([&first, &second]);
    let before = peers(&first);
    let record = record_of(&etcd, "a");
    // With a key of its own, and with the very key of a member: the address is none that anybody publishes.
    let member_key = NodeKey::load_or_create(&second.data_dir()).expect("the node made one");
    for key in [NodeKey::ephemeral(), member_key] {
        let mut stranger = ScriptedPeer::with(&key);
        stranger.learn(&record);
        assert_eq!(stranger.dial_in_vain(&record, Purpose::Payload), Loss::HandshakeTimeout);
        assert_eq!(stranger.counters().datagrams_received, 0, "not one datagram came back");
    }
    let after = peers(&first);
    assert!(after.datagrams_dropped >= before.datagrams_dropped + 4, "each was sent again: {after:#?}");
    assert_eq!(after.handshakes, before.handshakes, "nothing of it was worked on");
    assert_eq!((after.connections, after.lending.connections), (before.connections, 0));
    assert_blocks_go_round(&first, &second, &mut savers);
    [&first, &second].into_iter().for_each(Node::assert_within_bill);
}

#[test]
fn a_key_that_is_not_in_the_record_is_refused_in_both_directions() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, |order| order);
    let mut savers = savers([&first, &second]);
    let record = record_of(&etcd, "a");
    let before = handshakes(&first);
    // The record names another key than the one at its address.
    let mut impostor = ScriptedPeer::with(&NodeKey::ephemeral());
    impostor.join_as(&etcd, "c", NodeKey::ephemeral().fingerprint());
    impostor.learn(&record);
    knows(&first, "c");
    for purpose in Purpose::ALL {
        assert_eq!(impostor.dial_in_vain(&record, purpose), Loss::KeyRefused);
    }
    // The node, too, dials whom it takes for a member, and finds the wrong one.
    impostor.until("the node counts both", |_| {
        let HandshakesReport { wrong_keys, failed, .. } = handshakes(&first);
        (wrong_keys >= before.wrong_keys + 3 && failed >= before.failed + 3).then_some(())
    });
    assert_eq!(impostor.counters().handshakes, 2, "its own dials look complete until they are refused");
    let after = peers(&first);
    assert_eq!(after.handshakes.completed, before.completed, "{after:#?}");
    assert_eq!((after.sessions_served, after.lending.connections), (1, 0));
    assert!(metric(&first, "wrong_key") >= 3);
    let page = first.metadata();
    assert_eq!(page.coverage, "PartialHints", "a member of whom nothing is known proves no absence");
    assert_blocks_go_round(&first, &second, &mut savers);
    etcd.ctl(&["del", "/orbitkv/v2/test/members/c"]);
    knows_all(&first, 2);
    [&first, &second].into_iter().for_each(Node::assert_within_bill);
}

#[test]
fn the_right_key_without_its_private_half_is_refused_in_both_directions() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, |order| order);
    let mut savers = savers([&first, &second]);
    let record = record_of(&etcd, "a");
    let before = handshakes(&first);
    let mut thief = ScriptedPeer::with(&NodeKey::ephemeral().showing(&NodeKey::ephemeral()));
    thief.join(&etcd, "c");
    thief.learn(&record);
    knows(&first, "c");
    for purpose in Purpose::ALL {
        assert_eq!(thief.dial_in_vain(&record, purpose), Loss::KeyRefused);
    }
    thief.until("the node counts both", |_| {
        (handshakes(&first).wrong_signatures >= before.wrong_signatures + 3).then_some(())
    });
    let after = peers(&first);
    assert_eq!(after.handshakes.wrong_keys, before.wrong_keys, "the key itself is the right one");
    assert_eq!(after.handshakes.completed, before.completed, "{after:#?}");
    assert_eq!((after.sessions_served, after.lending.connections), (1, 0));
    assert!(metric(&first, "wrong_signature") >= 3);
    assert_blocks_go_round(&first, &second, &mut savers);
    etcd.ctl(&["del", "/orbitkv/v2/test/members/c"]);
    knows_all(&first, 2);
    [&first, &second].into_iter().for_each(Node::assert_within_bill);
}

#[test]
fn a_second_process_of_a_name_is_refused_with_the_holder_and_its_time() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, |order| order);
    let mut savers = savers([&first, &second]);
    let held = record_of(&etcd, "a");
    // In the same directory, at other ports: the directory is locked.
    let ended = order("a", free_port(), &etcd).try_start_in_data_of(&first).err().expect("refused");
    assert_eq!(ended.status.code(), Some(3), "{ended:#?}");
    let directory = first.data_dir().display().to_string();
    assert!(ended.stderr.contains(&format!("data directory {directory} is in use by")), "{ended:#?}");
    // In another directory, at other ports: the name is held.
    let other = order("a", free_port(), &etcd).start();
    let page = other.await_metadata("it is refused", |page| page.membership.validity == "refused");
    let words = format!("a is alive at {} with epoch 1 and lives ", held.contact.address);
    assert!(page.membership.detail.contains(&words), "{page:#?}");
    let left = page.membership.detail.split(&words).nth(1).expect("just seen");
    let seconds: u64 = left.split(' ').next().and_then(|text| text.parse().ok()).expect("seconds");
    assert!(seconds <= 10, "{}", page.membership.detail);
    let said = orbitkv(&["status", "--http", other.http()]);
    assert!(said.stdout.contains("refused: a is alive at"), "{said:#?}");
    assert_eq!(page.coverage, "Unavailable");
    other.assert_serves();
    // Nobody notices: the record is the holder's, and so are the blocks.
    assert_eq!(record_of(&etcd, "a"), held);
    assert_eq!(first.metadata().membership.fences, 0);
    assert_blocks_go_round(&first, &second, &mut savers);
    [&first, &second, &other].into_iter().for_each(Node::assert_within_bill);
}

#[test]
fn only_a_process_at_the_same_ports_takes_a_name_over() {
    let etcd = Etcd::start();
    let port = free_port();
    let mut first = order("a", port, &etcd).start();
    knows_all(&first, 1);
    first.kill();
    let held = record_of(&etcd, "a");
    // From elsewhere, and from the same address with more ports: the record stands until its lease ends.
    let elsewhere = order("a", free_port(), &etcd).start();
    let wider: NodeOrder = order("a", port, &etcd);
    let mut wider = wider.two_shards().start();
    for node in [&elsewhere, &wider] {
        node.await_metadata("it is refused", |page| {
            page.membership.validity == "refused" && page.membership.detail.contains("a is alive at")
        });
    }
    assert_eq!(record_of(&etcd, "a"), held);
    wider.kill();
    // At the same ports, from whatever directory: its predecessor is gone, and it need not wait.
    let successor = order("a", port, &etcd).start();
    let page = knows_all(&successor, 1);
    assert_eq!(page.epoch, Some(2));
    let record = record_of(&etcd, "a");
    assert_eq!(record.contact.address, held.contact.address);
    assert_ne!(record.incarnation, held.incarnation);
    // The other one goes on being refused, now by the new holder.
    elsewhere
        .await_metadata("it names the new holder", |page| page.membership.detail.contains("with epoch 2"));
    assert_eq!(successor.metadata().membership.fences, 0);
    [&elsewhere, &successor].into_iter().for_each(Node::assert_within_bill);
}
