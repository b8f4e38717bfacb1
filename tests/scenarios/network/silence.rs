//! Peers that were spoken to and say nothing more: stopped, unheard, or dead in the midst.

use std::time::{Duration, Instant};

use orbitkv::client::PrefixList;
use rustix::process::Signal;

use super::{A, B, Cluster};
use crate::harness::gate::{Datagram, Verdict};
use crate::harness::saver::{GROUP, Saver, block};
use crate::harness::{Node, WAIT, eventually};
use crate::peers::{await_installed, keys, peers};

/// Whether a datagram begins with a packet of a handshake, by its header.
fn is_handshake(datagram: &Datagram<'_>) -> bool {
    datagram.payload.first().is_some_and(|first| first & 0x80 != 0)
}

/// Acquires all of `keys` without success, and before anybody could call it hanging.
fn misses(saver: &mut Saver, keys: &[u64]) {
    let begun = Instant::now();
    let outcomes = saver.check_never_wrong(keys);
    assert!(outcomes.iter().all(Option::is_some), "{outcomes:?}");
    assert!(begun.elapsed() < WAIT, "{:?}", begun.elapsed());
}

#[test]
fn a_peer_that_shakes_hands_and_says_nothing_costs_a_miss_or_another_source() {
    let Some(cluster) = Cluster::of(3, |order| order) else { return };
    let (network, first, second) = (&cluster.network, cluster.a(), cluster.b());
    let [saver, silent, third] = &mut cluster.savers()[..] else { unreachable!("three nodes") };
    let (alone, twice) = (keys(40), keys(40));
    silent.save(&alone);
    silent.save(&twice);
    third.save(&twice);
    await_installed(second, first);
    await_installed(&cluster.nodes[2], first);
    network.rule(|datagram| match datagram {
        Datagram { from: B, to: A, .. } if !is_handshake(datagram) => Verdict::Drop,
        _ => Verdict::Pass,
    });
    // Whoever is asked first, the other one has it too.
    saver.check_ready(&twice);
    misses(saver, &alone);
    assert!(network.passage().dropped > 0);
    let seen = peers(first).fetching;
    assert!(
        seen.deadline + seen.missing + seen.busy >= 40,
        "the operator sees what became of them: {seen:?}"
    );
    first.assert_serves();
    network.heal();
    cluster.is_whole();
    // A transport that was not heard tries again after about as long, and till then a call takes too long.
    eventually("it is asked again", || (saver.check_never_wrong(&alone[..1]) == [None]).then_some(()));
    saver.check_ready(&alone);
    cluster.has_kept_its_bounds();
}

#[test]
fn a_peer_that_is_stopped_on_an_open_connection_costs_a_miss_and_comes_back() {
    let Some(cluster) = Cluster::of(2, |order| order) else { return };
    let (first, second) = (cluster.a(), cluster.b());
    let [saver, stopped] = &mut cluster.savers()[..] else { unreachable!("two nodes") };
    let saved = keys(100);
    stopped.save(&saved);
    await_installed(second, first);
    // There is a connection, and it works.
    saver.check_ready(&saved[..1]);
    assert_eq!(peers(first).fetching.connections, 1);
    second.freeze();
    misses(saver, &saved[1..]);
    first.assert_serves();
    second.signal(Signal::CONT);
    cluster.is_whole();
    // If its lease has ended meanwhile, all of it is told anew.
    await_installed(second, first);
    saver.check_ready(&saved);
    cluster.has_kept_its_bounds();
}

/// Asks for blocks that are on their way for good, until the source has pinned them.
fn keep_pinned(cluster: &Cluster, saved: &[u64]) {
    let socket = cluster.b().socket();
    let blocks: Vec<_> = saved.iter().map(|&key| block(key)).collect();
    std::thread::spawn(move || {
        let mut saver = Saver::connect(&socket, "reader");
        let lists = [PrefixList { namespace: saver.namespace, group: GROUP, blocks: &blocks }];
        // Its node dies before it can answer.
        let _ = saver.client.acquire(&lists, None, Duration::from_secs(5));
    });
    cluster.a().await_metadata("blocks are pinned for the peer", |page| {
        let lending = page.shards[0].peers.as_ref().expect("a node of a cluster").lending;
        lending.pins > 0 && lending.operations > 0
    });
}

fn has_no_pins(node: &Node, what: &str, members: usize) {
    let page = node.await_metadata(what, |page| {
        let lending = page.shards[0].peers.as_ref().expect("a node of a cluster").lending;
        lending.pins == 0 && lending.operations == 0 && lending.pinned_bytes == 0
    });
    assert_eq!(page.membership.members.len(), members, "{:#?}", page.membership);
}

#[test]
fn pins_of_a_requester_that_dies_in_the_midst_come_back() {
    let Some(mut cluster) = Cluster::of(2, |order| order) else { return };
    let [saver, _] = &mut cluster.savers()[..] else { unreachable!("two nodes") };
    let saved = keys(60);
    saver.save(&saved);
    await_installed(cluster.a(), cluster.b());
    // Answers come through, payload does not: it is sent again and again from the pinned memory.
    let stuck = |datagram: &Datagram<'_>| match datagram {
        Datagram { from: A, to: B, payload } if payload.len() > 700 && !is_handshake(datagram) => {
            Verdict::Drop
        }
        _ => Verdict::Pass,
    };
    cluster.network.rule(stuck);
    keep_pinned(&cluster, &saved);
    cluster.nodes[B - 1].kill();
    // The transport's silence is enough: its record, which outlives it, is still there.
    has_no_pins(cluster.a(), "its connection is given up", 2);
    cluster.network.heal();
    cluster.nodes[B - 1].restart();
    cluster.is_whole();
    await_installed(cluster.a(), cluster.b());
    // Again, and its successor is there before its silence is noticed.
    cluster.network.rule(stuck);
    keep_pinned(&cluster, &saved);
    cluster.nodes[B - 1].kill();
    cluster.nodes[B - 1].restart();
    has_no_pins(cluster.a(), "its successor has taken its place", 2);
    cluster.network.heal();
    cluster.is_whole();
    await_installed(cluster.a(), cluster.b());
    Saver::connect(&cluster.b().socket(), "reader").check_ready(&saved);
    assert!(peers(cluster.a()).lending.cut_off > 0);
    cluster.has_kept_its_bounds();
}
