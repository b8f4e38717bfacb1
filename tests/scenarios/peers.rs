//! Nodes that tell each other what they hold and bring blocks from each other, as processes on real etcd.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use orbitkv::client::{Coverage, Media, Medium, Place, PrefixList, QueryView};
use orbitkv::control::metadata::MetadataPage;
use orbitkv::control::report::PeersReport;
use rustix::process::Signal;

use crate::faults::orbitkv;
use crate::harness::etcd::free_port;
use crate::harness::saver::{BLOCK_BYTES, GROUP, Saver, block, fresh_key, payload};
use crate::harness::{Etcd, Node, NodeOrder, WAIT, eventually, http_text, soak_or};

pub fn order(name: &str, port: u16, etcd: &Etcd) -> NodeOrder {
    order_by(name, port, &etcd.urls().join(","))
}

/// As [`order`], with etcd at these URLs. What crosses does so over QUIC unless a test asks for shared memory, for all
/// of these nodes are on one host.
pub fn order_by(name: &str, port: u16, urls: &str) -> NodeOrder {
    let address = format!("127.0.0.1:{port}");
    let arguments = ["--cluster", "test", "--peer-addr", &address, "--index-budget", "16mib", "--etcd", urls];
    let order = NodeOrder::default().named(name).in_data_directory();
    let order = order.variable("ORBITKV_TRANSPORTS", "quic");
    arguments.iter().fold(order, |order, argument| order.argument(argument))
}

/// Two nodes of which each has all that the other has.
pub fn pair(etcd: &Etcd, order: impl Fn(NodeOrder) -> NodeOrder) -> (Node, Node) {
    let named = |name| order(self::order(name, free_port(), etcd)).start();
    let (first, second) = (named("a"), named("b"));
    knows_all(&first, 2);
    knows_all(&second, 2);
    (first, second)
}

pub fn knows_all(node: &Node, members: usize) -> MetadataPage {
    let complete = |page: &MetadataPage| {
        page.membership.members.len() == members && page.coverage == "CompleteAtWatermarks"
    };
    node.await_metadata(&format!("it knows all of {members} members"), complete)
}

/// An engine at each.
pub fn savers(nodes: [&Node; 2]) -> [Saver; 2] {
    nodes.map(|node| Saver::connect(&node.socket(), "engine"))
}

pub fn keys(count: usize) -> Vec<u64> {
    (0..count).map(|_| fresh_key()).collect()
}

/// Makes `to` have all that `from` has told by now.
pub fn await_installed(from: &Node, to: &Node) {
    let fence = from.operator("sync", &["--json"]);
    assert_eq!(fence.code, Some(0), "{fence:#?}");
    let file = to.run_dir().join("fence.json");
    std::fs::write(&file, &fence.stdout).expect("room for a fence");
    let file = file.to_str().expect("a plain path");
    let said = to.operator("await", &["--fence", file]);
    assert_eq!(said.code, Some(0), "{said:#?}");
}

pub fn query(saver: &mut Saver, keys: &[u64]) -> QueryView {
    let blocks: Vec<_> = keys.iter().map(|&key| block(key)).collect();
    let lists = [PrefixList { namespace: saver.namespace, group: GROUP, blocks: &blocks }];
    saver.client.query(&lists, false, WAIT).expect("Query is answered")
}

pub fn evict(saver: &mut Saver, keys: &[u64], media: Media) {
    let keys: Vec<_> = keys.iter().map(|&key| (block(key), GROUP)).collect();
    saver.client.evict(saver.namespace, &keys, media, WAIT).expect("Evict is answered");
}

pub fn peers(node: &Node) -> PeersReport {
    node.metadata().shards[0].peers.clone().expect("a node of a cluster")
}

pub fn await_nothing_lent(node: &Node) {
    node.await_metadata("nothing is lent any more", |page| {
        page.shards[0]
            .peers
            .as_ref()
            .is_some_and(|peers| (peers.lending.pins, peers.lending.operations) == (0, 0))
    });
}

#[test]
fn what_one_saves_the_other_shows_and_what_nobody_has_is_absent() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, |order| order);
    let [mut saver, mut other] = savers([&first, &second]);
    let saved = keys(300);
    saver.save(&saved);
    await_installed(&first, &second);
    let view = query(&mut other, &saved);
    assert_eq!((view.boundary_blocks, view.coverage), (300, Coverage::CompleteAtWatermarks));
    assert!(view.places.iter().all(|place| *place == Place::PeerDram), "{:?}", view.places);
    let view = query(&mut other, &keys(3));
    assert_eq!((view.boundary_blocks, view.coverage), (0, Coverage::CompleteAtWatermarks));
    // What ends there is no longer shown here.
    evict(&mut saver, &saved[..100], Media::ALL);
    await_installed(&first, &second);
    let view = query(&mut other, &saved[100..]);
    assert_eq!(view.boundary_blocks, 200);
    assert_eq!(query(&mut other, &saved[..100]).boundary_blocks, 0);
    let said = orbitkv(&["owners", "--http", second.http()]);
    assert!(said.code == Some(0) && said.stdout.contains("live"), "{said:#?}");
    // After the last one there can be nothing comes, and the node goes on.
    let beyond = http_text(second.http(), &format!("/cache/metadata/owners?after=0.{}", u64::MAX));
    assert_eq!(beyond, r#"{"next":null,"owners":[],"standalone":false}"#);
    let page = second.metadata();
    assert_eq!(page.index.rows, 200, "{page:#?}");
    // Nobody asked etcd for any of it.
    let before = etcd.revision();
    saver.save(&keys(200));
    await_installed(&first, &second);
    assert_eq!(etcd.revision(), before);
}

#[test]
fn blocks_of_a_peer_come_byte_for_byte_from_its_dram_and_its_ssd() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, |order| order.ssd("128mib"));
    let [mut saver, mut other] = savers([&first, &second]);
    let saved = keys(200);
    saver.save(&saved);
    await_installed(&first, &second);
    other.check_ready(&saved);
    let page = second.metadata();
    assert_eq!(page.shards[0].service.peer_hits.dram, 200, "{:#?}", page.shards[0].service);
    // They are residents here now, and peers of ours hear of them.
    await_installed(&second, &first);
    assert_eq!(first.metadata().index.rows, 200);
    // On SSD alone over there: read there by its device, and sent.
    let on_ssd = keys(200);
    saver.save(&on_ssd);
    await_installed(&first, &second);
    evict(&mut saver, &on_ssd, Medium::Dram.into());
    await_installed(&first, &second);
    let reads = first.metadata().shards[0].ssd.reads;
    assert!(query(&mut other, &on_ssd).places.iter().all(|place| *place == Place::PeerSsd));
    other.check_ready(&on_ssd);
    assert_eq!(second.metadata().shards[0].service.peer_hits.ssd, 200);
    assert_eq!(first.metadata().shards[0].ssd.reads - reads, 200);
    let fetching = peers(&second).fetching;
    assert_eq!((fetching.fetched, fetching.bytes), (400, 400 * BLOCK_BYTES), "{fetching:?}");
    assert_eq!((fetching.wrong_checksums, fetching.violations), (0, 0));
    await_nothing_lent(&first);
}

#[test]
fn hundreds_of_operations_on_one_connection_and_a_miss_is_told_at_once() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, |order| order);
    let [mut saver, mut other] = savers([&first, &second]);
    let saved = keys(200);
    saver.save(&saved);
    await_installed(&first, &second);
    // One after the other: more than a connection may have streams at a time.
    saved.iter().for_each(|&key| other.check_ready(&[key]));
    let fetching = peers(&second).fetching;
    assert_eq!((fetching.fetched, fetching.missing), (200, 0), "{fetching:?}");
    assert_eq!(peers(&first).lending.connections, 1);
    // What nobody has costs a lookup and not a wait for somebody to wake the core.
    let begun = Instant::now();
    let absent = keys(20);
    absent.iter().for_each(|&key| assert!(other.check_never_wrong(&[key])[0].is_some()));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?} for 20 misses", begun.elapsed());
}

#[test]
fn a_source_that_dies_in_the_midst_costs_misses_and_nothing_else() {
    let etcd = Etcd::start();
    let (mut first, second) = pair(&etcd, |order| order);
    let [mut saver, mut other] = savers([&first, &second]);
    let saved = keys(600);
    saver.save(&saved);
    await_installed(&first, &second);
    let reader = std::thread::spawn(move || {
        let outcomes: Vec<_> = saved.chunks(100).flat_map(|keys| other.check_never_wrong(keys)).collect();
        (other, outcomes)
    });
    std::thread::sleep(Duration::from_millis(30));
    first.kill();
    let (mut other, outcomes) = reader.join().expect("no wrong byte");
    assert_eq!(outcomes.len(), 600);
    // It comes back within its lease with an empty cache: nothing of the old life is shown as complete.
    first.restart();
    eventually("the new life is known and empty", || {
        let page = second.metadata();
        let new = page.membership.members.iter().any(|member| member.node_id == "a" && member.epoch == 2);
        (new && page.coverage == "CompleteAtWatermarks" && page.index.rows == 0).then_some(())
    });
    let fresh = keys(20);
    Saver::connect(&first.socket(), "again").save(&fresh);
    await_installed(&first, &second);
    other.check_ready(&fresh);
}

#[test]
fn a_source_that_is_back_at_once_answers_for_nothing_of_its_old_life() {
    let etcd = Etcd::start();
    let (mut first, second) = pair(&etcd, |order| order);
    let [mut saver, mut other] = savers([&first, &second]);
    let (again, gone) = (keys(100), keys(100));
    saver.save(&again);
    saver.save(&gone);
    await_installed(&first, &second);
    // The one block that is read before: there is a payload connection to the old life.
    other.check_ready(&gone[..1]);
    let gone = &gone[1..];
    first.kill();
    first.restart();
    // The same keys, and bytes that the old life never had.
    const SUCCESSOR: u64 = 7;
    let mut saver = Saver::connect(&first.socket(), "successor");
    let mut slots = saver.fill(&again, SUCCESSOR);
    saver.client.commit(&mut slots, WAIT).expect("Commit is answered");
    let is_known = || second.metadata().membership.members.iter().any(|member| member.epoch == 2);
    eventually("the new life is known, and nothing of the old one", || {
        // Asked in this order: who is known to be there then, is known in every later lookup.
        let known = is_known();
        let view = query(&mut other, gone);
        assert!(!known || view.boundary_blocks == 0, "a claim of the old life is shown: {view:?}");
        // Whatever is believed of it, the successor lends nothing in its predecessor's name.
        let acquired = other.acquire(&gone[..10]);
        assert!(acquired.blocks.iter().all(Result::is_err), "bytes of a dead process");
        known.then_some(())
    });
    await_installed(&first, &second);
    assert_eq!(query(&mut other, gone).boundary_blocks, 0);
    assert_eq!(query(&mut other, &again).coverage, Coverage::CompleteAtWatermarks);
    let acquired = other.acquire(&again);
    for (&key, result) in again.iter().zip(&acquired.blocks) {
        let bytes = result.as_ref().expect("the successor has it").bytes().expect("under a live lease");
        assert!(
            bytes == payload(key, SUCCESSOR, BLOCK_BYTES as usize),
            "key {key} has bytes of the old life"
        );
    }
    assert_eq!(second.metadata().index.rows, 100, "rows of the successor and none else");
    assert_eq!(peers(&second).fetching.wrong_checksums, 0);
}

#[test]
fn a_requester_that_dies_in_the_midst_leaves_no_pins() {
    let etcd = Etcd::start();
    let (first, mut second) = pair(&etcd, |order| order);
    let [mut saver, mut other] = savers([&first, &second]);
    let saved = keys(600);
    saver.save(&saved);
    await_installed(&first, &second);
    let reader = std::thread::spawn(move || {
        let blocks: Vec<_> = saved.iter().map(|&key| block(key)).collect();
        let lists = [PrefixList { namespace: other.namespace, group: GROUP, blocks: &blocks }];
        // It may be answered, or the node may be gone before.
        let _ = other.client.acquire(&lists, None, Duration::from_secs(2));
    });
    std::thread::sleep(Duration::from_millis(20));
    second.kill();
    reader.join().expect("an answer or a lost connection");
    await_nothing_lent(&first);
    assert_eq!(peers(&first).lending.quarantined_bytes, 0);
    first.assert_serves();
}

#[test]
fn a_fenced_node_serves_its_engines_and_comes_back_with_its_cache() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, |order| order.ssd("128mib"));
    let [mut saver, mut other] = savers([&first, &second]);
    let saved = keys(100);
    saver.save(&saved);
    await_installed(&first, &second);
    let old = first.metadata().incarnation;
    etcd.pause(0);
    for node in [&first, &second] {
        node.await_metadata("its life is over", |page| page.membership.fences == 1);
    }
    let view = query(&mut other, &saved);
    assert_eq!((view.boundary_blocks, view.coverage), (0, Coverage::Unavailable));
    assert!(other.check_never_wrong(&saved).iter().all(Option::is_some), "nothing is brought");
    saver.check_ready(&saved);
    etcd.resume(0);
    // The same process, another life, the same cache: put again, and read by the peer.
    let page = knows_all(&first, 2);
    knows_all(&second, 2);
    assert_ne!(page.incarnation, old);
    assert_eq!(page.epoch, Some(2));
    await_installed(&first, &second);
    assert_eq!(query(&mut other, &saved).boundary_blocks, 100);
    other.check_ready(&saved);
    saver.check_ready(&saved);
}

#[test]
fn a_node_that_slept_longer_than_its_lease_lends_nothing_of_its_old_life() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, |order| order);
    let [mut saver, mut other] = savers([&first, &second]);
    let saved = keys(50);
    saver.save(&saved);
    await_installed(&first, &second);
    first.freeze();
    second.await_metadata("the sleeper is no member", |page| page.membership.members.len() == 1);
    assert_eq!(query(&mut other, &saved).boundary_blocks, 0);
    first.signal(Signal::CONT);
    knows_all(&first, 2);
    knows_all(&second, 2);
    await_installed(&first, &second);
    other.check_ready(&saved);
    assert_eq!(first.metadata().membership.fences, 1);
}

#[test]
fn noise_on_the_ports_changes_nothing() {
    let etcd = Etcd::start();
    let port = free_port();
    let first = order("a", port, &etcd).start();
    let second = order("b", free_port(), &etcd).start();
    knows_all(&first, 2);
    let noise = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let begun = Instant::now();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    while begun.elapsed() < soak_or(Duration::from_secs(2)) {
        let bytes: Vec<u8> = (0..1_200)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        let _ = noise.send_to(&bytes, ("127.0.0.1", port));
    }
    let saved = keys(50);
    Saver::connect(&first.socket(), "a").save(&saved);
    await_installed(&first, &second);
    Saver::connect(&second.socket(), "b").check_ready(&saved);
    let seen = peers(&first);
    assert!(seen.datagrams_dropped > 0, "{seen:#?}");
    assert_eq!(seen.protocol_errors, 0);
}

#[test]
fn fences_that_cannot_be_awaited_are_refused_by_name() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, |order| order);
    let fence = orbitkv(&["sync", "--http", first.http(), "--json"]).stdout;
    let await_at = |node: &Node, fence: &str, more: &[&str]| {
        let file = node.run_dir().join("fence.json");
        std::fs::write(&file, fence).expect("room for a fence");
        let file = file.to_str().expect("a plain path").to_owned();
        orbitkv(&[&["await", "--http", node.http(), "--fence", &file], more].concat())
    };
    assert_eq!(await_at(&second, &fence, &[]).code, Some(0));
    let zeros = "0".repeat(64);
    let mut broken: serde_json::Value = serde_json::from_str(&fence).expect("JSON");
    broken["inventory_sequence"] = serde_json::json!([1, 2]);
    let two = broken.to_string();
    broken["inventory_sequence"] = serde_json::json!([u64::MAX]);
    let far = broken.to_string();
    broken["incarnation"] = serde_json::json!("00000000-0000-4000-8000-000000000000");
    let other_life = broken.to_string();
    broken["cluster_uuid"] = serde_json::json!("00000000-0000-4000-8000-000000000000");
    let other_cluster = broken.to_string();
    for (node, fence, more, name) in [
        (&first, &fence, &[][..], "own-fence"),
        (&second, &fence, &["--scope-digest", &zeros][..], "another-scope"),
        (&second, &two, &[], "vector-length"),
        (&second, &far, &["--timeout", "100ms"], "timeout"),
        (&second, &other_life, &[], "another-incarnation"),
        (&second, &other_cluster, &[], "another-cluster"),
    ] {
        let said = await_at(node, fence, more);
        assert_ne!(said.code, Some(0), "{said:#?}");
        assert!(said.stderr.contains(name), "no {name} in {said:#?}");
    }
}
