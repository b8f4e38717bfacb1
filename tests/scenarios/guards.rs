//! Guards of a node on processes: which of two sources is asked first, what is asked again when that one is stopped,
//! and what an operator sees of it.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::faults::{doctor, orbitkv};
use crate::harness::etcd::free_port;
use crate::harness::{Etcd, Node, NodeOrder, Saver, http_text};
use crate::peers::{await_installed, keys, knows_all, order, peers};

/// Calls that are looked back on.
const WINDOW: usize = 20;

/// A reader, and two sources that have the same blocks, of which one is in its zone.
struct Zoned {
    near: Node,
    far: Node,
    reader: Node,
    _etcd: Etcd,
}

impl Zoned {
    /// With the near source under this name, `a` or `b`.
    fn of(near: &str, reader: &[&str], shape: impl Fn(NodeOrder) -> NodeOrder) -> Zoned {
        let etcd = Etcd::start();
        let start = |name: &str, zone: &str, more: &[&str]| {
            let order = shape(order(name, free_port(), &etcd)).argument("--zone").argument(zone);
            more.iter().fold(order, |order, word| order.argument(*word)).start()
        };
        let far = if near == "a" { "b" } else { "a" };
        let [near, far] = [(near, "east"), (far, "west")].map(|(name, zone)| start(name, zone, &[]));
        let reader = start("c", "east", &[&["--route-policy", "fixed"], reader].concat());
        for node in [&near, &far, &reader] {
            knows_all(node, 3);
        }
        Zoned { near, far, reader, _etcd: etcd }
    }

    /// Blocks that both sources have, and the reader knows of.
    fn shared(&self, count: usize) -> Vec<u64> {
        let shared = keys(count);
        for source in [&self.near, &self.far] {
            Saver::connect(&source.socket(), "engine").save(&shared);
            await_installed(source, &self.reader);
        }
        shared
    }
}

fn asked(source: &Node) -> [u64; 3] {
    peers(source).lending.asked
}

/// Whatever the index lists first.
#[test]
fn the_same_zone_is_asked_first_and_the_other_hears_that_it_is_the_second() {
    for near in ["a", "b"] {
        let zoned = Zoned::of(near, &["--call-budget", "300ms"], |order| order);
        let shared = zoned.shared(2 * WINDOW);
        let mut engine = Saver::connect(&zoned.reader.socket(), "engine");
        let (quiet, failing) = shared.split_at(WINDOW);
        quiet.iter().for_each(|&key| engine.check_ready(&[key]));
        assert_eq!([asked(&zoned.near), asked(&zoned.far)], [[WINDOW as u64, 0, 0], [0; 3]]);
        let modes = || -> Vec<(String, String)> {
            let sources = peers(&zoned.reader).sources.into_iter();
            sources.map(|source| (source.node_id, source.mode)).collect()
        };
        assert_eq!(modes(), [(near.to_owned(), "healthy".to_owned())]);

        zoned.near.signal(Signal::STOP);
        failing.iter().for_each(|&key| engine.check_ready(&[key]));
        let seen = peers(&zoned.reader);
        let extra = seen.fetching.extra_asks;
        assert!(extra >= WINDOW as u64 / 2, "half of the calls open the breaker: {seen:#?}");
        assert_eq!(asked(&zoned.far), [WINDOW as u64 - extra, extra, 0], "{seen:#?}");
        assert!(modes().contains(&(near.to_owned(), "slow-or-cut".to_owned())), "{seen:#?}");
        for command in ["owners", "status"] {
            let said = orbitkv(&[command, "--http", zoned.reader.http()]);
            assert!(said.code == Some(0) && said.stdout.contains("slow-or-cut"), "{said:#?}");
        }
        let (_, names, words) = doctor(&zoned.reader);
        assert!(
            names.iter().any(|name| ["peer-left-alone", "peer-untried"].contains(&name.as_str())),
            "{words}"
        );
        let metrics = http_text(zoned.reader.http(), "/metrics");
        let mode = format!("orbitkv_peer_mode{{shard=\"0\",peer=\"{near}/0\"}} 3");
        assert!(metrics.contains(&mode), "{metrics}");
        let metrics = http_text(zoned.far.http(), "/metrics");
        let second = format!("orbitkv_grants_asked_total{{shard=\"0\",attempt=\"second\"}} {extra}");
        assert!(metrics.contains(&second), "{metrics}");
        zoned.near.signal(Signal::CONT);
    }
}

#[test]
fn a_node_that_uses_more_than_the_other_zones_could_carry_says_so() {
    let zoned = Zoned::of("a", &[], |order| order);
    let lacks = || doctor(&zoned.reader).1.contains(&"zone-headroom".to_owned());
    // An engine may lease half of the arena; half of it, and no more, is what one of two zones leaves.
    let held = keys(600);
    let mut engines = ["x", "y"].map(|instance| Saver::connect(&zoned.reader.socket(), instance));
    engines[0].save(&held);
    let first = engines[0].acquire_checked(&held[..300]);
    assert!(!lacks(), "18 of 64 MiB");
    let second = engines[1].acquire_checked(&held[300..]);
    assert!(lacks(), "37 of 64 MiB");
    engines[0].client.release(&first, crate::harness::WAIT).expect("Release is answered");
    assert!(!lacks());
    engines[1].client.release(&second, crate::harness::WAIT).expect("Release is answered");
}

/// What is first asked for and asked for again by a node, over its cores.
fn asks(node: &Node) -> (u64, u64, u64) {
    let page = node.metadata();
    let fetching = page.shards.iter().map(|shard| shard.peers.as_ref().expect("of a cluster").fetching);
    fetching.fold((0, 0, 0), |(first, extra, refused), of| {
        (first + of.first_asks, extra + of.extra_asks, refused + of.extra_asks_refused)
    })
}

#[test]
fn an_outage_of_a_second_adds_a_tenth_in_every_window_of_a_node_of_two_cores() {
    let arguments = ["--call-budget", "20ms", "--breaker", "0"];
    let zoned = Zoned::of("a", &arguments, NodeOrder::two_shards);
    let shared = zoned.shared(1_200);
    let mut engine = Saver::connect(&zoned.reader.socket(), "engine");
    engine.check_never_wrong(&shared[..100]);
    let mut looks = vec![asks(&zoned.reader)];
    zoned.near.signal(Signal::STOP);
    let began = Instant::now();
    for batch in shared[100..].chunks(50).cycle() {
        if began.elapsed() > Duration::from_secs(1) {
            break;
        }
        engine.check_never_wrong(batch);
        looks.push(asks(&zoned.reader));
    }
    zoned.near.signal(Signal::CONT);
    for (at, (from_first, from_extra, _)) in looks.iter().enumerate() {
        for (first, extra, _) in &looks[at..] {
            let (first, extra) = (first - from_first, extra - from_extra);
            assert!(10 * extra <= first.max(640), "{extra} extra asks for {first}: {looks:?}");
        }
    }
    let [(_, extra_before, refused_before), .., (_, extra, refused)] = looks[..] else { panic!("{looks:?}") };
    assert!(extra - extra_before >= 20, "the budget is used: {looks:?}");
    assert!(refused > refused_before, "and holds something back: {looks:?}");
}
