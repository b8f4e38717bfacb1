//! What nodes hear on the wire against the member records: etcd is asked once, and who is refused stays refused until
//! etcd names him.

use std::time::{Duration, Instant};

use orbitkv::client::BlockOutcome;
use orbitkv::control::metadata::MetadataPage;
use orbitkv_native::quic::{NodeKey, Purpose};
use orbitkv_wire::identity::{ShardIndex, key_hash};

use crate::counted::messages;
use crate::faults::{doctor, orbitkv};
use crate::harness::etcd::{Relay, free_port};
use crate::harness::saver::{GROUP, block};
use crate::harness::scripted_peer::record_of;
use crate::harness::{Etcd, Node, Saver, ScriptedPeer, eventually};
use crate::peers::{await_installed, keys, knows_all, order, order_by, pair, peers, savers};

/// How often etcd was asked to read keys, as itself counts, without the readings of the settings by these nodes.
fn reads(etcd: &Etcd, nodes: [&Node; 2]) -> u64 {
    let all = messages(etcd).get("Range").copied().unwrap_or_default();
    all - nodes.map(|node| node.metadata().config.reads).iter().sum::<u64>()
}

fn disputes(page: &MetadataPage, name: &str) -> bool {
    page.membership.disputed == [name]
}

fn knows_life(page: &MetadataPage, name: &str, epoch: u64) -> bool {
    page.membership.members.iter().any(|member| (member.node_id.as_str(), member.epoch) == (name, epoch))
}

#[test]
fn another_key_costs_one_read_of_etcd_and_is_refused_until_the_record_names_it() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, |order| order);
    let record = record_of(&etcd, "a");
    let mut impostor = ScriptedPeer::with(&NodeKey::ephemeral());
    impostor.join_as(&etcd, "c", NodeKey::ephemeral().fingerprint());
    impostor.learn(&record);
    first.await_metadata("c is a member", |page| page.membership.members.len() == 3);
    second.await_metadata("c is a member", |page| page.membership.members.len() == 3);
    let before = reads(&etcd, [&first, &second]);
    // The first dials it, again and again, and it dials the first.
    for _ in 0..20 {
        impostor.dial_in_vain(&record, Purpose::Payload);
    }
    impostor.until("it has asked etcd, and more has been refused since", |_| {
        let page = first.metadata();
        let asked = page.membership.rereads > 0 && disputes(&page, "c");
        (asked && peers(&first).handshakes.wrong_keys >= 23).then_some(())
    });
    impostor.live_for(Duration::from_secs(1));
    assert_eq!(
        reads(&etcd, [&first, &second]),
        before + 1,
        "etcd is asked once, however often the key is wrong"
    );
    let membership = first.metadata().membership;
    assert_eq!((membership.rereads, membership.superseded, membership.fences), (1, 0, 0));
    assert_eq!(second.metadata().membership.rereads, 0, "nobody has shown it any key");
    assert_eq!(peers(&first).lending.connections, 0);
    let (code, names, words) = doctor(&first);
    assert!(code == Some(4) && names.contains(&"wrong-key".to_owned()), "{words}");
    assert!(words.contains("at the address of c somebody shows another key"), "{words}");
    // Only etcd admits it: with a record that names its key it is the successor, and was never an impostor.
    let mut successor = record_of(&etcd, "c");
    (successor.epoch, successor.incarnation.0) = (2, [9; 16]);
    successor.contact.key_fingerprint = impostor.key().0;
    etcd.ctl(&["put", "/orbitkv/v2/test/members/c", &successor.encode()]);
    first.await_metadata("it was superseded", |page| {
        page.membership.disputed.is_empty() && page.membership.superseded == 1
    });
    impostor.connect(&record, Purpose::Payload);
    assert_eq!(reads(&etcd, [&first, &second]), before + 2, "the test itself has read once");
}

#[test]
fn a_node_that_comes_back_with_another_key_is_superseded_and_is_read_from() {
    let etcd = Etcd::start();
    let relay = Relay::to(etcd.address(0));
    let mut first = order("a", free_port(), &etcd).start();
    let second = order_by("b", free_port(), &relay.url()).start();
    knows_all(&first, 2);
    knows_all(&second, 2);
    let mut other = Saver::connect(&second.socket(), "engine");
    first.kill();
    std::fs::remove_file(first.data_dir().join("node.key")).expect("it had one");
    // The other one hears nothing of etcd for a while, so it meets the new key before it is told of it.
    relay.point(None);
    first.restart();
    eventually("the other one meets another key", || {
        let refused = peers(&second).handshakes.wrong_keys;
        assert_eq!(second.metadata().membership.fences, 0, "before its own lease ends");
        (refused > 0).then_some(())
    });
    relay.point(Some(etcd.address(0)));
    let page = second.await_metadata("etcd has told it", |page| knows_life(page, "a", 2));
    let membership = &page.membership;
    assert_eq!((membership.superseded, membership.disputed.len()), (1, 0), "{membership:#?}");
    assert!(membership.rereads <= 1, "{membership:#?}");
    knows_all(&second, 2);
    let saved = keys(10);
    Saver::connect(&first.socket(), "again").save(&saved);
    await_installed(&first, &second);
    other.check_ready(&saved);
}

/// Keys of one shard of two.
fn keys_of(saver: &Saver, shard: u16) -> Vec<u64> {
    let digest = saver.client.digest(saver.namespace).expect("registered");
    let mut all = keys(100);
    all.retain(|&key| key_hash(&digest, GROUP, &block(key)).shard(2) == ShardIndex(shard));
    all
}

fn stale_answers(node: &Node) -> Vec<u64> {
    let shards = node.metadata().shards.into_iter();
    shards.map(|shard| shard.peers.expect("of a cluster").fetching.stale_epoch).collect()
}

#[test]
fn what_one_core_hears_of_a_successor_no_other_core_asks_again() {
    let etcd = Etcd::start();
    let relay = Relay::to(etcd.address(0));
    let mut first = order("a", free_port(), &etcd).two_shards().start();
    let second = order_by("b", free_port(), &relay.url()).two_shards().start();
    knows_all(&first, 2);
    knows_all(&second, 2);
    let [mut saver, mut other] = savers([&first, &second]);
    let [here, there] = [0, 1].map(|shard| keys_of(&saver, shard));
    saver.save(&[&here[..], &there].concat());
    await_installed(&first, &second);
    let rereads = second.metadata().membership.rereads;
    // From now on it hears nothing of etcd, and the other one begins another life.
    relay.point(None);
    let cut = Instant::now();
    first.kill();
    first.restart();
    first.await_metadata("it is a member again", |page| page.epoch == Some(2));
    let missed = |outcomes: Vec<Option<BlockOutcome>>| outcomes.iter().all(Option::is_some);
    eventually("one core hears of the successor", || {
        assert!(missed(other.check_never_wrong(&here[..1])));
        (stale_answers(&second)[0] > 0).then_some(())
    });
    let heard = stale_answers(&second);
    // The other core has been told, and asks the old life for nothing.
    assert!(missed(other.check_never_wrong(&there)) && missed(other.check_never_wrong(&here)));
    assert_eq!(stale_answers(&second), [heard[0], 0]);
    let page = second.metadata();
    assert_eq!(page.membership.fences, 0, "all of it within its lease: {:?}", cut.elapsed());
    assert!(knows_life(&page, "a", 1), "{:#?}", page.membership);
    // One read is all that either core may start, and etcd alone admits the successor.
    relay.point(Some(etcd.address(0)));
    let page = second.await_metadata("etcd has told it", |page| knows_life(page, "a", 2));
    assert!(page.membership.rereads <= rereads + 1, "{page:#?}");
    let said = orbitkv(&["status", "--http", second.http()]);
    assert_eq!(said.code, Some(0), "{said:#?}");
    saver = Saver::connect(&first.socket(), "successor");
    saver.save(&there);
    knows_all(&second, 2);
    await_installed(&first, &second);
    other.check_ready(&there);
}

#[test]
fn each_refresh_policy_finds_a_successor_that_the_watch_is_late_to_tell_of() {
    for policy in ["hybrid", "redirect", "lookup"] {
        let etcd = Etcd::start();
        let mut first = order("a", free_port(), &etcd).start();
        knows_all(&first, 1);
        let flags = ["--refresh-policy", policy, "--watch-lag", "300s"];
        let second = order("b", free_port(), &etcd);
        let second = flags.iter().fold(second, |order, flag| order.argument(flag)).start();
        knows_all(&first, 2);
        knows_all(&second, 2);
        let [mut saver, mut other] = savers([&first, &second]);
        let saved = keys(20);
        saver.save(&saved);
        await_installed(&first, &second);
        other.check_ready(&saved[..10]);
        let before = second.metadata().membership;
        first.kill();
        first.restart();
        Saver::connect(&first.socket(), "again").save(&saved);
        eventually("the successor's blocks come", || {
            other.check_never_wrong(&saved[10..]).iter().all(Option::is_none).then_some(())
        });
        let page = second.metadata();
        assert!(knows_life(&page, "a", 2), "{policy}: {:#?}", page.membership);
        let rereads = page.membership.rereads - before.rereads;
        let lookups = page.membership.lookups - before.lookups;
        assert_eq!((page.membership.alarms, page.membership.fences), (0, 0), "{policy}");
        match policy {
            "hybrid" => {
                assert_eq!((rereads, lookups), (1, 0));
                knows_all(&second, 2);
            }
            // What was read is one record: of who else there is it says nothing, so nothing is called absent.
            "redirect" => assert_eq!((rereads, lookups, page.coverage.as_str()), (0, 1, "PartialHints")),
            _ => assert!(
                rereads == 0 && lookups > 1 && page.coverage == "PartialHints",
                "{rereads} {lookups} {}",
                page.coverage
            ),
        }
    }
}

#[test]
fn a_node_that_is_asked_for_a_later_epoch_of_its_own_reads_etcd_and_begins_another_life() {
    let etcd = Etcd::start();
    let second = order("b", free_port(), &etcd).start();
    knows_all(&second, 1);
    // Of etcd it hears nothing by its watch.
    let first = order("a", free_port(), &etcd).argument("--watch-lag").argument("300s").start();
    knows_all(&first, 2);
    knows_all(&second, 2);
    let mut record = record_of(&etcd, "a");
    (record.epoch, record.incarnation.0) = (9, [9; 16]);
    etcd.ctl(&["put", "/orbitkv/v2/test/members/a", &record.encode()]);
    let page = first.await_metadata("it has another life", |page| page.epoch == Some(10));
    assert_eq!((page.membership.fences, page.membership.rereads), (1, 1), "{:#?}", page.membership);
    let told = "a member asks for a later epoch of this node";
    assert_eq!(first.stderr().matches(told).count(), 1, "{}", first.stderr());
    assert!(!second.stderr().contains(told));
    knows_all(&second, 2);
    let [mut saver, mut other] = savers([&first, &second]);
    let saved = keys(10);
    saver.save(&saved);
    await_installed(&first, &second);
    other.check_ready(&saved);
}
