//! The deep check of a real node: its canary comes back from DRAM and SSD, and what keeps it from that is named.

use std::time::{Duration, Instant};

use orbitkv::control::health::answer::{Canary, DeepHealth, Step};
use orbitkv::control::metadata::MetadataPage;

use super::orbitkv;
use super::ring::{Faults, FaultyRing};
use crate::harness::etcd::free_port;
use crate::harness::saver::Saver;
use crate::harness::{Etcd, Node, NodeOrder, WAIT, eventually, http_text};
use crate::peers::{knows_all, order};

/// What `/health/deep` says now.
fn deep(node: &Node) -> DeepHealth {
    let asked = Instant::now();
    let found = node.http_client().get_verdict::<DeepHealth>("/health/deep").expect("an answer");
    assert!(asked.elapsed() < Duration::from_secs(8), "a probe must not hang");
    found
}

/// The first answer that is as `condition` says.
fn await_deep(node: &Node, what: &str, condition: impl Fn(&DeepHealth) -> bool) -> DeepHealth {
    eventually(what, || Some(deep(node)).filter(&condition))
}

fn has_passed(canary: &Canary) -> bool {
    matches!(canary, Canary::Passed { took_us } if *took_us > 0)
}

/// Every shard gave its canary back from both media.
fn is_well(found: &DeepHealth, shards: usize) -> bool {
    found.passes
        && found.fault.is_none()
        && found.shards.len() == shards
        && found.shards.iter().all(|path| has_passed(&path.dram) && has_passed(&path.ssd))
}

fn residents(page: &MetadataPage) -> u64 {
    page.shards.iter().map(|shard| shard.residents.dram + shard.residents.ssd).sum()
}

/// `orbitkv doctor --deep` finds an own path broken, and says these words of it.
fn doctor_names(node: &Node, parts: &[&str]) {
    let said = orbitkv(&["doctor", "--deep", "--http", node.http()]);
    assert_eq!(said.code, Some(4), "{said:#?}");
    for part in parts {
        assert!(said.stdout.contains(part), "no word of `{part}`: {said:#?}");
    }
}

#[test]
fn a_healthy_node_gives_its_canary_back_from_each_shard_and_medium_and_keeps_nothing_of_it() {
    let node = NodeOrder::default().two_shards().ssd("256mib").start();
    let mut engine = Saver::connect(&node.socket(), "a");
    let saved = super::keys(64);
    super::save_through(&node, &mut engine, &saved);
    let before = node.metadata();
    let found = deep(&node);
    assert!(is_well(&found, 2), "{found:#?}");
    // However often it is asked, there is one in two seconds.
    let asked = Instant::now();
    while asked.elapsed() < Duration::from_secs(5) {
        assert!(deep(&node).passes);
        std::thread::sleep(Duration::from_millis(20));
    }
    let page = node.metadata();
    let checks = page.deep_checks;
    assert!((2..=4).contains(&checks.passed) && checks.failed == 0, "{checks:?}");
    for (shard, before) in page.shards.iter().zip(&before.shards) {
        let hits = (shard.service.hits, before.service.hits);
        assert_eq!(hits.0.dram - hits.1.dram, checks.passed, "one of each a check: {shard:#?}");
        assert_eq!(hits.0.ssd - hits.1.ssd, checks.passed, "{shard:#?}");
    }
    assert_eq!(residents(&page), residents(&before), "{page:#?}");
    node.await_nothing_held();
    node.await_metadata("the check's connection has ended", |page| {
        page.shards.iter().map(|shard| shard.engine.connections).sum::<u64>() == 1
    });
    let metrics = http_text(node.http(), "/metrics");
    let line = format!("orbitkv_deep_checks_total{{kind=\"passed\"}} {}\n", checks.passed);
    assert!(metrics.contains(&line), "{metrics}");
    engine.check_ready(&saved);
    let said = orbitkv(&["doctor", "--deep", "--json", "--http", node.http()]);
    assert!(!said.stdout.contains("own-path"), "{said:#?}");
}

#[test]
fn a_node_without_an_ssd_is_healthy() {
    let node = Node::start();
    let found = deep(&node);
    assert!(found.passes, "{found:#?}");
    let [path] = &found.shards[..] else { panic!("{found:#?}") };
    assert!(has_passed(&path.dram) && path.ssd == Canary::Off, "{found:#?}");
}

#[test]
fn an_ssd_that_cannot_be_read_fails_the_check_though_the_node_is_ready() {
    let ring = FaultyRing::new();
    let node = ring.under(NodeOrder::default()).ssd("256mib").start();
    assert!(is_well(&deep(&node), 1));
    ring.make(Faults { read_every: 1, ..Faults::default() });
    let found = await_deep(&node, "the next check fails", |found| !found.passes);
    let path = &found.shards[0];
    assert!(has_passed(&path.dram), "{found:#?}");
    let fault = path.ssd.fault().expect("a fault");
    assert_eq!(fault.step, Step::SsdRead, "{found:#?}");
    assert!(fault.error.contains("the device failed to read it"), "{found:#?}");
    assert!(fault.remedy.contains("kernel's log"), "{found:#?}");
    node.http_client().get("/ready").expect("it is ready");
    doctor_names(&node, &["a canary failed at step ssd-read of shard 0", "remedy  look at the kernel's log"]);
    ring.make(Faults::default());
    await_deep(&node, "the check passes again", |found| is_well(found, 1));
}

#[test]
fn an_ssd_that_takes_no_writes_is_named_with_its_breaker() {
    let ring = FaultyRing::new();
    let node = ring.under(NodeOrder::default()).ssd("256mib").start();
    assert!(is_well(&deep(&node), 1));
    ring.make(Faults { write_every: 1, ..Faults::default() });
    let found = await_deep(&node, "the next check fails", |found| !found.passes);
    assert_eq!(found.shards[0].ssd.fault().map(|fault| fault.step), Some(Step::SsdWrite), "{found:#?}");
    assert!(found.took_ms < 2_000, "{found:#?}");
    // Engines' saves fail, too, and open the breaker.
    let mut engine = Saver::connect(&node.socket(), "a");
    engine.save(&super::keys(40));
    let is_alone = |found: &DeepHealth| {
        let fault = found.shards.first().and_then(|path| path.ssd.fault());
        fault.is_some_and(|fault| fault.error.contains("is left alone"))
    };
    let found = await_deep(&node, "the breaker is named", is_alone);
    assert!(!found.passes && has_passed(&found.shards[0].dram), "{found:#?}");
    ring.make(Faults::default());
    await_deep(&node, "the check passes again", |found| is_well(found, 1));
    node.await_nothing_held();
}

#[test]
fn an_etcd_that_is_gone_is_not_in_it() {
    let mut etcd = Etcd::start();
    let node = order("a", free_port(), &etcd).ssd("256mib").start();
    knows_all(&node, 1);
    assert!(is_well(&deep(&node), 1));
    etcd.kill(0);
    node.await_metadata("it is no member any more", |page| page.membership.validity != "member");
    let checks = node.metadata().deep_checks.passed;
    let found = await_deep(&node, "another check passes", |found| {
        is_well(found, 1) && node.metadata().deep_checks.passed > checks
    });
    assert_eq!(node.metadata().deep_checks.failed, 0, "{found:#?}");
}

#[test]
fn a_full_node_and_one_without_its_socket_say_so() {
    // Nothing can be evicted: it is all reserved or leased.
    let node = Node::start();
    let mut engines: Vec<Saver> = Vec::new();
    let mut held = Vec::new();
    while node.held().leased_bytes < 64 * 1024 * 1024 {
        let mut engine = Saver::connect(&node.socket(), &format!("engine-{}", engines.len()));
        let keys = super::keys(512);
        keys.chunks(128).for_each(|some| engine.save(some));
        held.extend(engine.acquire(&keys).lease);
        engines.push(engine);
        assert!(engines.len() < 8, "{:#?}", node.held());
    }
    let found = deep(&node);
    let fault = found.shards[0].dram.fault().expect("no room");
    assert_eq!((found.passes, fault.step), (false, Step::Reserve), "{found:#?}");
    assert!(fault.error.contains("there was no room") && fault.remedy.contains("raise --dram"), "{found:#?}");
    for (engine, lease) in engines.iter_mut().zip(&held) {
        engine.client.release(lease, WAIT).expect("Release is answered");
    }
    await_deep(&node, "there is room again", |found| found.passes);
    // Whoever removes the socket keeps engines out, and the canary with them.
    std::fs::remove_file(node.socket()).expect("the socket is there");
    let found = await_deep(&node, "engines are kept out", |found| !found.passes);
    assert_eq!(found.fault.as_ref().map(|fault| fault.step), Some(Step::Connect), "{found:#?}");
    doctor_names(&node, &["a canary failed at step connect", "restart the node if others have removed"]);
}
