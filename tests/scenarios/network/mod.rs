//! Faults of the network between nodes, on real processes: cuts, loss and delay, peers that fall silent, datagrams
//! that come late or from nobody, and what becomes of memory when either end dies.
//!
//! Each node and etcd has a network namespace and keeps its own address; what they say to each other goes through
//! the gate of the test ([`Network`]), which cuts, delays, holds and forges datagrams. etcd stays reachable unless a
//! test says otherwise: the network between nodes is what fails here.
//!
//! This needs root, `ip` and `/dev/net/tun`. Where that is not to be had, these tests fail and say so, unless
//! `SCENARIO_WITHOUT_NAMESPACES` is set.

mod datagrams;
mod paths;
mod silence;
mod slow;

use orbitkv::control::metadata::MetadataPage;

use crate::harness::{Etcd, Network, Node, NodeOrder, Saver};
use crate::peers::knows_all;

/// The port of every node: each has an address of its own.
const PORT: u16 = 7_400;

/// Numbers of the nodes in the network; etcd is before them.
const A: usize = 1;
const B: usize = 2;

/// Nodes `a`, `b` and so on, and their etcd, in a network of their own.
struct Cluster {
    nodes: Vec<Node>,
    // Dropped after the nodes.
    network: Network,
    _etcd: Etcd,
}

impl Cluster {
    /// Each of them knows all that the others have.
    fn of(count: usize, order: impl Fn(NodeOrder) -> NodeOrder) -> Option<Cluster> {
        let network = Network::of(count + 1)?;
        let cluster = Cluster::on(network, order);
        cluster.is_whole();
        Some(cluster)
    }

    /// On a network whose rule is set already.
    fn on(network: Network, order: impl Fn(NodeOrder) -> NodeOrder) -> Cluster {
        let coordinator = network.place(0);
        let etcd = Etcd::placed(1, &[], coordinator.address, coordinator.entry().to_vec());
        let start = |number: usize| {
            let place = network.place(number);
            let address = format!("{}:{PORT}", place.address);
            let arguments =
                ["--cluster", "test", "--peer-addr", &address, "--index-budget", "16mib", "--etcd"];
            let name = char::from(b'a' + number as u8 - 1).to_string();
            let plain = NodeOrder::default().named(&name).in_data_directory().at(place);
            let plain = arguments.iter().fold(plain, |order, argument| order.argument(argument));
            // They are on one host: what is to cross the network may take no other way.
            let plain = plain.variable("ORBITKV_TRANSPORTS", "quic");
            order(plain.argument(etcd.urls().join(","))).start()
        };
        let nodes = (1..network.places()).map(start).collect();
        Cluster { nodes, network, _etcd: etcd }
    }

    fn a(&self) -> &Node {
        &self.nodes[A - 1]
    }

    fn b(&self) -> &Node {
        &self.nodes[B - 1]
    }

    /// An engine at each node.
    fn savers(&self) -> Vec<Saver> {
        self.nodes.iter().map(|node| Saver::connect(&node.socket(), "engine")).collect()
    }

    fn is_whole(&self) -> Vec<MetadataPage> {
        self.nodes.iter().map(|node| knows_all(node, self.nodes.len())).collect()
    }

    /// Memory has stayed within the bill, nothing is quarantined, no byte was wrong, and nobody broke the protocol.
    fn has_kept_its_bounds(&self) {
        for node in &self.nodes {
            node.assert_within_bill();
            let page = node.metadata();
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
