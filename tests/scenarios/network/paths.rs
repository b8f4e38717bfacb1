//! The path between two nodes is bad, or gone in one direction or both.

use std::time::{Duration, Instant};

use orbitkv::client::{Coverage, Medium, Place as Found};
use orbitkv::control::metadata::MetadataPage;

use super::{A, B, Cluster, Draws};
use crate::harness::gate::{Datagram, Verdict};
use crate::harness::saver::{BLOCK_BYTES, fresh_key};
use crate::harness::{Saver, WAIT, eventually};
use crate::peers::{await_installed, evict, keys, peers, query};

/// Older than this, what a node knows of another proves no absence; with slack for a machine that is slow to read
/// what has come.
const FRESHNESS: Duration = Duration::from_secs(5 + 2);

/// Longer than a transport takes to give up a silent connection, whichever end gives up first.
const CUT: Duration = Duration::from_secs(12);

#[test]
fn loss_and_delay_cost_time_and_no_byte() {
    let Some(cluster) = Cluster::of(2, |order| order.ssd("128mib")) else { return };
    let (network, first, second) = (&cluster.network, cluster.a(), cluster.b());
    let [saver, other] = &mut cluster.savers()[..] else { unreachable!("two nodes") };
    let mut draws = Draws(1);
    network.rule(move |_| match draws.next() % 100 {
        0 => Verdict::Drop,
        _ => Verdict::Delay(Duration::from_millis(50)),
    });
    let [in_dram, on_ssd] = [8, 8].map(keys);
    saver.save(&in_dram);
    saver.save(&on_ssd);
    first.await_metadata("all of it is on SSD", |page| page.shards[0].ssd.write_backs_done >= 16);
    evict(saver, &on_ssd, Medium::Dram.into());
    await_installed(first, second);
    for (wanted, place) in [(&in_dram, Found::PeerDram), (&on_ssd, Found::PeerSsd)] {
        let view = query(other, wanted);
        assert_eq!(view.coverage, Coverage::CompleteAtWatermarks);
        assert!(view.places.iter().all(|found| *found == place), "{:?}", view.places);
        wanted.chunks(4).for_each(|some| other.check_ready(some));
    }
    let hits = second.metadata().shards[0].service.peer_hits;
    assert_eq!((hits.dram, hits.ssd), (8, 8));
    assert_eq!(peers(second).fetching.bytes, 16 * BLOCK_BYTES);
    // What came here is told there, over the same network.
    await_installed(second, first);
    assert_eq!(first.metadata().index.rows, 16);
    let passage = network.passage();
    assert!(passage.dropped > 0 && passage.passed == 0 && passage.delayed > 700, "{passage:?}");
    // Whoever operates the nodes sees it: some of what they sent was lost, and most of it was not.
    let packets = eventually("a node counts what was lost", || {
        let packets = [first, second].map(|node| peers(node).packets);
        packets.iter().any(|seen| seen.lost > 0).then_some(packets)
    });
    for (node, seen) in [first, second].into_iter().zip(packets) {
        assert!(seen.sent > 2 * seen.lost, "{packets:?}");
        let said = node.operator("status", &[]).stdout;
        assert!(said.contains(" sent to peers, "), "{said}");
    }
    cluster.is_whole();
    cluster.has_kept_its_bounds();
}

#[test]
fn a_cut_in_one_direction_is_seen_by_both_and_heals_by_itself() {
    is_cut_and_heals(|datagram| datagram.from == A && datagram.to == B);
}

#[test]
fn a_cut_in_both_directions_is_seen_and_heals_by_itself() {
    is_cut_and_heals(|datagram| [datagram.from, datagram.to].iter().all(|end| [A, B].contains(end)));
}

/// Saves at each node, and gets it back there.
fn serves(savers: &mut [Saver]) {
    for saver in savers {
        let key = [fresh_key()];
        saver.save(&key);
        saver.check_ready(&key);
    }
}

fn is_partial(page: &MetadataPage) -> bool {
    page.membership.validity == "member" && page.coverage == "PartialHints"
}

fn is_cut_and_heals(is_cut: impl Fn(&Datagram<'_>) -> bool + Send + 'static) {
    let Some(cluster) = Cluster::of(2, |order| order) else { return };
    let network = &cluster.network;
    let mut savers = cluster.savers();
    // What a node had told, and what it saves while nobody hears it.
    let before: [Vec<u64>; 2] = std::array::from_fn(|_| keys(10));
    savers.iter_mut().zip(&before).for_each(|(saver, keys)| saver.save(keys));
    await_installed(cluster.a(), cluster.b());
    await_installed(cluster.b(), cluster.a());
    network.rule(move |datagram| if is_cut(datagram) { Verdict::Drop } else { Verdict::Pass });
    let begun = Instant::now();
    let during: [Vec<u64>; 2] = std::array::from_fn(|_| keys(10));
    savers.iter_mut().zip(&during).for_each(|(saver, keys)| saver.save(keys));
    let mut were_partial = [false; 2];
    while begun.elapsed() < CUT || were_partial != [true; 2] {
        serves(&mut savers);
        for (at, node) in cluster.nodes.iter().enumerate() {
            were_partial[at] |= is_partial(&node.metadata());
            let (elsewhere, asked) = (&during[1 - at], begun.elapsed());
            let view = query(&mut savers[at], elsewhere);
            let is_absent = view.coverage == Coverage::CompleteAtWatermarks && view.boundary_blocks < 10;
            assert!(!is_absent || asked < FRESHNESS, "a wrong absence {asked:?} after the cut: {view:?}");
            assert_ne!(view.coverage, Coverage::Unavailable, "etcd is there, and hints are");
        }
        assert!(begun.elapsed() < CUT + WAIT, "within {:?} only {were_partial:?}", begun.elapsed());
        std::thread::sleep(Duration::from_millis(100));
    }
    // What was told is a hint still. It costs a miss within the deadline, and nothing hangs.
    assert_eq!(query(&mut savers[1], &before[0]).boundary_blocks, 10);
    assert!(savers[1].check_never_wrong(&before[0]).iter().all(Option::is_some));
    for (node, other) in cluster.nodes.iter().zip(["b", "a"]) {
        let said = node.operator("owners", &[]);
        let row = said.stdout.lines().find(|line| line.starts_with(other)).expect("a row for the other");
        assert!(!row.contains("live"), "a stream that nobody hears: {said:#?}");
        assert!(node.operator("status", &[]).stdout.contains("PartialHints"));
        assert!(peers(node).sessions_lost > 0);
    }
    serves(&mut savers);
    let dropped = network.passage().dropped;
    assert!(dropped > 0, "nothing was cut");
    network.heal();
    cluster.is_whole();
    await_installed(cluster.a(), cluster.b());
    await_installed(cluster.b(), cluster.a());
    for (at, saver) in savers.iter_mut().enumerate() {
        saver.check_ready(&before[1 - at]);
        saver.check_ready(&during[1 - at]);
    }
    for node in &cluster.nodes {
        assert!(node.operator("owners", &[]).stdout.contains("live"));
        assert_eq!(node.metadata().membership.fences, 0, "nobody's life ended by that");
    }
    cluster.has_kept_its_bounds();
}
