//! Faults of the network between nodes, on real processes: cuts, loss and delay, peers that fall silent, datagrams
//! that come late, and what becomes of memory when either end dies.
//!
//! Each node and etcd has a network namespace and keeps its own address; what they say to each other goes through
//! the gate of the test ([`Network`]), which cuts, delays, holds and forges datagrams. etcd stays reachable unless a
//! test says otherwise: the network between nodes is what fails here.
//!
//! This needs root, `ip` and `/dev/net/tun`. Where that is not to be had, these tests fail and say so, unless
//! `SCENARIO_WITHOUT_NAMESPACES` is set.

use std::time::Duration;

use orbitkv::client::{Coverage, Medium, Place as Found};
use orbitkv::control::metadata::MetadataPage;

use crate::harness::gate::Verdict;
use crate::harness::saver::BLOCK_BYTES;
use crate::harness::{Etcd, Network, Node, NodeOrder};
use crate::peers::{await_installed, evict, keys, knows_all, peers, query, savers};

/// The port of every node: each has an address of its own.
const PORT: u16 = 7_400;

/// Numbers of the nodes in the network.
const A: usize = 1;
const B: usize = 2;

/// Two nodes and their etcd, in a network of their own.
struct Pair {
    network: Network,
    first: Node,
    second: Node,
    // Dropped after the nodes.
    _etcd: Etcd,
}

impl Pair {
    /// Each of them knows all that the other has.
    fn start(order: impl Fn(NodeOrder) -> NodeOrder) -> Option<Pair> {
        let network = Network::of(3)?;
        let etcd = Etcd::at(network.place(0));
        let start = |number: usize, name: &str| {
            let place = network.place(number);
            let address = format!("{}:{PORT}", place.address);
            let arguments =
                ["--cluster", "test", "--peer-addr", &address, "--index-budget", "16mib", "--etcd"];
            let plain = NodeOrder::default().named(name).in_data_directory().at(place);
            let plain = arguments.iter().fold(plain, |order, argument| order.argument(argument));
            order(plain.argument(etcd.urls().join(","))).start()
        };
        let (first, second) = (start(A, "a"), start(B, "b"));
        let pair = Pair { network, first, second, _etcd: etcd };
        pair.is_whole();
        Some(pair)
    }

    fn nodes(&self) -> [&Node; 2] {
        [&self.first, &self.second]
    }

    fn is_whole(&self) -> [MetadataPage; 2] {
        self.nodes().map(|node| knows_all(node, 2))
    }

    /// Memory has stayed within the bill, nothing is quarantined, and nobody broke the protocol.
    fn has_kept_its_bounds(&self) {
        for node in self.nodes() {
            let page = node.metadata();
            let memory = page.memory;
            assert!(memory.rss_peak_bytes > 0 && memory.rss_peak_bytes < memory.bill_bytes, "{memory:?}");
            let seen = page.shards[0].peers.as_ref().expect("a node of a cluster");
            assert_eq!((seen.protocol_errors, seen.fetching.violations), (0, 0), "{seen:#?}");
            assert_eq!((seen.fetching.wrong_checksums, seen.lending.quarantined_bytes), (0, 0), "{seen:#?}");
        }
    }
}

/// Numbers that follow from each other, so that a test that fails fails again.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
}

#[test]
fn loss_and_delay_cost_time_and_no_byte() {
    let Some(pair) = Pair::start(|order| order.ssd("128mib")) else { return };
    let Pair { network, first, second, .. } = &pair;
    let [mut saver, mut other] = savers(pair.nodes());
    let mut draws = Draws(1);
    network.rule(move |_| match draws.next() % 100 {
        0 => Verdict::Drop,
        _ => Verdict::Delay(Duration::from_millis(50)),
    });
    let [in_dram, on_ssd] = [8, 8].map(keys);
    saver.save(&in_dram);
    saver.save(&on_ssd);
    first.await_metadata("all of it is on SSD", |page| page.shards[0].ssd.write_backs_done >= 16);
    evict(&mut saver, &on_ssd, Medium::Dram.into());
    await_installed(first, second);
    for (wanted, place) in [(&in_dram, Found::PeerDram), (&on_ssd, Found::PeerSsd)] {
        let view = query(&mut other, wanted);
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
    pair.is_whole();
    pair.has_kept_its_bounds();
}
