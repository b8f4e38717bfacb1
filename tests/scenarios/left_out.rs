//! What answers say of a peer that falls silent: how old its hints are, and from when on it is left out.

use std::time::{Duration, Instant};

use orbitkv::client::{Coverage, Place, QueryView};
use rustix::process::Signal;

use crate::harness::{Etcd, Node, Saver, WAIT, eventually, http_text};
use crate::peers::{await_installed, keys, knows_all, pair, query, savers};

/// Older than this a view proves no absence, in milliseconds.
const BOUND_MS: u32 = 5_000;

/// A metric of shard 0.
fn metric(node: &Node, name: &str) -> u64 {
    let text = http_text(node.http(), "/metrics");
    let named = format!("{name}{{shard=\"0\"}} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&named));
    line.unwrap_or_else(|| panic!("no {named} in {text}")).parse().expect("a number")
}

/// What is so in every answer of a node with one peer of one shard, whatever the moment.
fn check(view: &QueryView) {
    let expected = match view.left_out {
        0 => Coverage::CompleteAtWatermarks,
        _ => Coverage::PartialHints,
    };
    assert_eq!(view.coverage, expected, "{view:?}");
    assert!(view.left_out <= 1, "one peer, one shard: {view:?}");
    assert!(view.left_out == 1 || view.hint_age_ms <= BOUND_MS, "an old view proves nothing: {view:?}");
}

/// The node asks until `is_seen`, and until then its hints only grow older.
fn ask_until(saver: &mut Saver, asked: &[u64], is_seen: impl Fn(&QueryView) -> bool) -> QueryView {
    let begun = Instant::now();
    let mut before = 0;
    loop {
        let view = query(saver, asked);
        check(&view);
        assert!(view.places.iter().all(|place| *place == Place::PeerDram), "hints stay: {view:?}");
        assert!(view.hint_age_ms >= before, "nobody was heard: {before} ms, then {view:?}");
        if is_seen(&view) {
            return view;
        }
        before = view.hint_age_ms;
        assert!(begun.elapsed() < WAIT, "after {:?} only {view:?}", begun.elapsed());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_peer_that_is_stopped_is_left_out_once_its_view_is_too_old_and_counts_again_when_it_goes_on() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, |order| order);
    let [mut saver, mut other] = savers([&first, &second]);
    let saved = keys(20);
    other.save(&saved);
    await_installed(&second, &first);
    check(&query(&mut saver, &saved));
    assert_eq!(query(&mut saver, &saved).left_out, 0);
    assert_eq!(metric(&first, "orbitkv_queries_left_out_total"), 0);
    second.freeze();
    let begun = Instant::now();
    let young = query(&mut saver, &saved).hint_age_ms;
    let grown = ask_until(&mut saver, &saved, |view| view.hint_age_ms >= young + 1_500);
    assert_eq!(grown.left_out, 0, "within the bound it counts: {grown:?}");
    let silent = ask_until(&mut saver, &saved, |view| view.hint_age_ms > BOUND_MS);
    assert_eq!((silent.left_out, silent.coverage), (1, Coverage::PartialHints));
    assert!(u128::from(silent.hint_age_ms - young) <= begun.elapsed().as_millis() + 1, "{young} {silent:?}");
    // What nobody is known to have may be there all the same.
    let absent = query(&mut saver, &keys(3));
    assert_eq!((absent.boundary_blocks, absent.left_out), (0, 1));
    assert_eq!(first.metadata().left_out, 1);
    assert!(first.operator("status", &[]).stdout.contains("streams left out: 1,"));
    assert_eq!(metric(&first, "orbitkv_streams_left_out"), 1);
    assert!(metric(&first, "orbitkv_hint_age_ms") > u64::from(BOUND_MS));
    assert!(metric(&first, "orbitkv_queries_left_out_total") >= 2);
    second.signal(Signal::CONT);
    knows_all(&second, 2);
    knows_all(&first, 2);
    await_installed(&second, &first);
    let whole =
        eventually("it counts again", || Some(query(&mut saver, &saved)).filter(|view| view.left_out == 0));
    check(&whole);
    assert_eq!((whole.coverage, whole.boundary_blocks), (Coverage::CompleteAtWatermarks, 20));
    assert!(whole.hint_age_ms <= BOUND_MS);
    let told = metric(&first, "orbitkv_queries_left_out_total");
    assert_eq!(query(&mut saver, &saved).left_out, 0);
    assert_eq!(metric(&first, "orbitkv_queries_left_out_total"), told);
    saver.check_ready(&saved);
}

#[test]
fn a_node_without_peers_leaves_nothing_out_and_has_no_hints() {
    let node = Node::start();
    let mut saver = Saver::connect(&node.socket(), "engine");
    let saved = keys(2);
    saver.save(&saved);
    for asked in [saved, keys(2)] {
        let view = query(&mut saver, &asked);
        assert_eq!((view.coverage, view.hint_age_ms, view.left_out), (Coverage::CompleteAtWatermarks, 0, 0));
    }
    assert_eq!((node.metadata().left_out, metric(&node, "orbitkv_queries_left_out_total")), (0, 0));
}
