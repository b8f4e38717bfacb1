//! Endpoints against each other over real loopback sockets, driven by one thread in turns.

mod faults;
mod handshakes;
mod streams;

use super::*;
use crate::clock::monotonic_ns;
use crate::testing::Seeded;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// A node of one shard: its endpoint and what it has heard.
pub(super) struct Node {
    pub(super) endpoint: Endpoint,
    pub(super) key: NodeKey,
    pub(super) address: SocketAddr,
    pub(super) heard: Vec<Event>,
}

/// Small bounds and short times, so that tests run into them.
pub(super) fn settings() -> EndpointSettings {
    let mut settings = EndpointSettings {
        handshake_timeout: Duration::from_millis(1_200),
        idle_timeout: Duration::from_millis(1_200),
        ..EndpointSettings::default()
    };
    settings.inventory.keep_alive = Duration::from_millis(300);
    settings.payload.keep_alive = Duration::from_millis(300);
    settings
}

impl Node {
    pub(super) fn new() -> Self {
        Self::with(settings(), NodeKey::ephemeral(), "127.0.0.1:0".parse().unwrap())
    }

    pub(super) fn with(settings: EndpointSettings, key: NodeKey, address: SocketAddr) -> Self {
        let socket = UdpSocket::bind(address).unwrap();
        let address = socket.local_addr().unwrap();
        let endpoint = Endpoint::new(settings, socket, &key, monotonic_ns()).unwrap();
        Self { endpoint, key, address, heard: Vec::new() }
    }

    pub(super) fn member(&self) -> Member {
        member(self.key.fingerprint(), self.address)
    }

    /// One turn; true if anything happened or is left to do.
    pub(super) fn step(&mut self) -> bool {
        let turn = self.endpoint.turn(monotonic_ns());
        let before = self.heard.len();
        self.heard.extend(std::iter::from_fn(|| self.endpoint.poll_event()));
        let flushed = self.endpoint.flush(monotonic_ns());
        turn.more || flushed.more || self.heard.len() > before
    }

    pub(super) fn dial(&mut self, to: &Node, purpose: Purpose) -> ConnectionId {
        self.endpoint.dial(to.address, to.key.fingerprint(), purpose, monotonic_ns()).unwrap()
    }

    pub(super) fn loss(&self, wanted: ConnectionId) -> Option<Loss> {
        self.heard.iter().find_map(|event| match event {
            Event::Lost { connection, loss } if *connection == wanted => Some(*loss),
            _ => None,
        })
    }

    pub(super) fn connected(&self) -> Vec<ConnectionId> {
        let connected = |event: &Event| match event {
            Event::Connected { connection, .. } => Some(*connection),
            _ => None,
        };
        self.heard.iter().filter_map(connected).collect()
    }

    pub(super) fn opened(&self, wanted: ConnectionId) -> Vec<StreamId> {
        let opened = |event: &Event| match event {
            Event::StreamOpened { connection, stream } if *connection == wanted => Some(*stream),
            _ => None,
        };
        self.heard.iter().filter_map(opened).collect()
    }

    pub(super) fn counters(&self) -> Counters {
        self.endpoint.counters()
    }

    /// Reads what is there, at most `budget_bytes`.
    pub(super) fn read(&mut self, at: (ConnectionId, StreamId), budget_bytes: usize) -> (Vec<u8>, ReadState) {
        let mut bytes = Vec::new();
        let state = self.endpoint.read(at.0, at.1, budget_bytes, |chunk| {
            bytes.extend_from_slice(chunk);
            Ok::<(), ()>(())
        });
        (bytes, state.unwrap())
    }
}

pub(super) fn member(fingerprint: Fingerprint, address: SocketAddr) -> Member {
    Member { fingerprint, address: address.ip(), base_port: address.port(), shards: 1 }
}

/// Gives every node the records of all.
pub(super) fn acquaint(nodes: &mut [&mut Node]) {
    let members: Vec<Member> = nodes.iter().map(|node| node.member()).collect();
    for node in nodes {
        node.endpoint.set_members(members.clone());
    }
}

/// Drives the nodes until `done`, with `also` in each round.
///
/// # Panics
/// If that takes thirty seconds.
pub(super) fn run(nodes: &mut [&mut Node], mut done: impl FnMut(&mut [&mut Node]) -> bool) {
    let started = Instant::now();
    while !done(nodes) {
        assert!(started.elapsed() < Duration::from_secs(30), "nothing came of it");
        let moved = nodes.iter_mut().fold(false, |moved, node| node.step() | moved);
        if !moved {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// Drives the nodes for a while.
pub(super) fn run_for(nodes: &mut [&mut Node], time: Duration) {
    let started = Instant::now();
    run(nodes, |_| started.elapsed() >= time);
}

/// Two nodes with a connection from the first to the second: its ids on either side.
pub(super) fn pair(settings: EndpointSettings, purpose: Purpose) -> (Node, Node, ConnectionId, ConnectionId) {
    let any = "127.0.0.1:0".parse().unwrap();
    let mut near = Node::with(settings.clone(), NodeKey::ephemeral(), any);
    let mut far = Node::with(settings, NodeKey::ephemeral(), any);
    acquaint(&mut [&mut near, &mut far]);
    let dialled = near.dial(&far, purpose);
    run(&mut [&mut near, &mut far], |nodes| nodes.iter().all(|node| !node.connected().is_empty()));
    let accepted = far.connected()[0];
    (near, far, dialled, accepted)
}

pub(super) fn noise(seed: u64, length: usize) -> Bytes {
    Seeded(seed).bytes(length).into()
}
