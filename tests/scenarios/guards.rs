//! Guards of a node on processes: which of two sources is asked first, what is asked again when that one is stopped,
//! and what an operator sees of it.

use std::time::Instant;

use orbitkv_shards::resilience::retry::BUDGET_WINDOW;
use rustix::process::Signal;

use crate::faults::{doctor, orbitkv};
use crate::harness::etcd::free_port;
use crate::harness::{Etcd, Node, NodeOrder, Saver, WAIT, eventually, http_text};
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
fn a_zone_that_was_silent_is_asked_first_again_once_the_operator_says_so() {
    let zoned = Zoned::of("a", &["--failover-checks", "1"], |order| order);
    let shared = zoned.shared(3);
    let mut engine = Saver::connect(&zoned.reader.socket(), "engine");
    let mut asked_for = |key| {
        let firsts = || [&zoned.near, &zoned.far].map(|source| asked(source)[0]);
        let before = firsts();
        engine.check_ready(&[key]);
        let after = firsts();
        [after[0] - before[0], after[1] - before[1]]
    };
    assert_eq!(asked_for(shared[0]), [1, 0]);

    zoned.near.signal(Signal::STOP);
    eventually("another zone is preferred", || {
        (peers(&zoned.reader).zones.preferred.as_deref() == Some("west")).then_some(())
    });
    zoned.near.signal(Signal::CONT);
    knows_all(&zoned.reader, 3);
    await_installed(&zoned.near, &zoned.reader);
    assert_eq!(asked_for(shared[1]), [0, 1], "it is back, and as fresh as the other");
    let has_left = || doctor(&zoned.reader).1.contains(&"zone-left".to_owned());
    assert!(has_left());
    let metrics = http_text(zoned.reader.http(), "/metrics");
    for line in [
        r#"orbitkv_preferred_zone{shard="0",zone="east"} 0"#,
        r#"orbitkv_preferred_zone{shard="0",zone="west"} 1"#,
        r#"orbitkv_zone_changes_total{shard="0",kind="failover"} 1"#,
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }

    let said = zoned.reader.operator("failback", &[]);
    assert!(said.code == Some(0) && said.stdout.contains("zone east are asked first"), "{said:#?}");
    assert_eq!(asked_for(shared[2]), [1, 0]);
    assert!(!has_left());
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
    engines[0].client.release(&first, WAIT).expect("Release is answered");
    assert!(!lacks());
    engines[1].client.release(&second, WAIT).expect("Release is answered");
}

/// What is first asked for and asked for again by a node, over its cores.
#[derive(Debug)]
struct Look {
    /// The figures are of a moment between these two.
    asked: Instant,
    answered: Instant,
    first: u64,
    extra: u64,
    refused: u64,
}

fn look(node: &Node) -> Look {
    let asked = Instant::now();
    let page = node.metadata();
    let fetching: Vec<_> =
        page.shards.iter().map(|shard| shard.peers.as_ref().expect("of a cluster").fetching).collect();
    Look {
        asked,
        answered: Instant::now(),
        first: fetching.iter().map(|of| of.first_asks).sum(),
        extra: fetching.iter().map(|of| of.extra_asks).sum(),
        refused: fetching.iter().map(|of| of.extra_asks_refused).sum(),
    }
}

#[test]
fn an_outage_adds_a_tenth_in_every_window_of_a_node_of_two_cores() {
    let arguments = ["--call-budget", "20ms", "--breaker", "0"];
    let zoned = Zoned::of("a", &arguments, NodeOrder::two_shards);
    let shared = zoned.shared(1_200);
    let mut engine = Saver::connect(&zoned.reader.socket(), "engine");
    engine.check_never_wrong(&shared[..100]);
    let mut looks = vec![look(&zoned.reader)];
    zoned.near.signal(Signal::STOP);
    let began = Instant::now();
    let mut batches = shared[100..].chunks(50).cycle();
    let is_used_up = |looks: &[Look]| {
        let (first, last) = (&looks[0], &looks[looks.len() - 1]);
        last.extra - first.extra >= 20 && last.refused > first.refused
    };
    while !is_used_up(&looks) {
        assert!(began.elapsed() < WAIT, "the budget is used and holds something back: {looks:?}");
        engine.check_never_wrong(batches.next().expect("they go round"));
        looks.push(look(&zoned.reader));
    }
    zoned.near.signal(Signal::CONT);
    for (at, from) in looks.iter().enumerate() {
        // Whatever lies between two looks lies within a window of the budget.
        let windows = looks[at..].iter().take_while(|to| to.answered - from.asked < BUDGET_WINDOW);
        for to in windows {
            let (first, extra) = (to.first - from.first, to.extra - from.extra);
            assert!(10 * extra <= first.max(640), "{extra} extra asks for {first}: {looks:?}");
        }
    }
}
