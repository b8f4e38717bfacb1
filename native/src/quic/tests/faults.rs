//! Peers that vanish, come back as others, send garbage; a network that loses and damages.

use super::*;

/// A network between two nodes: each knows the other by an address of the relay.
struct Relay {
    /// Stands for the far node; the near one sends here.
    near_side: UdpSocket,
    /// Stands for the near node.
    far_side: UdpSocket,
    near: SocketAddr,
    far: SocketAddr,
    forwarded: u64,
}

impl Relay {
    fn between(near: &mut Node, far: &mut Node) -> Self {
        let bind = || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        let (near_side, far_side) = (bind(), bind());
        near.endpoint.set_members([member(far.key.fingerprint(), near_side.local_addr().unwrap())]);
        far.endpoint.set_members([member(near.key.fingerprint(), far_side.local_addr().unwrap())]);
        Self { near_side, far_side, near: near.address, far: far.address, forwarded: 0 }
    }

    /// Forwards what has come; `rule` may change a datagram, and loses it by saying false.
    fn forward(&mut self, mut rule: impl FnMut(&mut Vec<u8>) -> bool) {
        let mut buffer = [0; 65_536];
        for (from, to, address) in
            [(&self.near_side, &self.far_side, self.far), (&self.far_side, &self.near_side, self.near)]
        {
            while let Ok((bytes, _)) = from.recv_from(&mut buffer) {
                let mut datagram = buffer[..bytes].to_vec();
                if rule(&mut datagram) {
                    self.forwarded += 1;
                    let _ = to.send_to(&datagram, address);
                }
            }
        }
    }
}

/// Sends `total` bytes of noise from near to far through the relay and compares them.
fn transfer(near: &mut Node, far: &mut Node, relay: &mut Relay, mut rule: impl FnMut(&mut Vec<u8>) -> bool) {
    let address = relay.near_side.local_addr().unwrap();
    let dialled =
        near.endpoint.dial(address, far.key.fingerprint(), Purpose::Payload, monotonic_ns()).unwrap();
    run(&mut [&mut *near, &mut *far], |nodes| {
        relay.forward(|_| true);
        nodes.iter().all(|node| !node.connected().is_empty())
    });
    let accepted = far.connected()[0];
    let sent = noise(11, 2 << 20);
    let stream = near.endpoint.open(dialled, Priority::Ordinary).unwrap();
    near.endpoint.write(dialled, stream, sent.clone()).unwrap();
    near.endpoint.finish(dialled, stream);
    let mut received = Vec::new();
    run(&mut [near, far], |nodes| {
        relay.forward(&mut rule);
        let Some(stream) = nodes[1].opened(accepted).first().copied() else { return false };
        let (bytes, state) = nodes[1].read((accepted, stream), usize::MAX);
        received.extend(bytes);
        state == ReadState::Ended
    });
    assert!(received == sent, "bytes differ");
}

#[test]
fn nothing_is_lost_on_a_network_that_loses_one_in_a_hundred() {
    let (mut near, mut far) = (Node::new(), Node::new());
    let mut relay = Relay::between(&mut near, &mut far);
    let mut seeded = Seeded(1);
    transfer(&mut near, &mut far, &mut relay, |_| seeded.below(100) > 0);
    assert!(near.counters().packets_lost > 0, "{:?}", near.counters());
    assert!(relay.forwarded > 1_000);
}

#[test]
fn damaged_cut_and_doubled_datagrams_change_nothing() {
    let (mut near, mut far) = (Node::new(), Node::new());
    let mut relay = Relay::between(&mut near, &mut far);
    let mut seeded = Seeded(2);
    transfer(&mut near, &mut far, &mut relay, |datagram| {
        let length = datagram.len() as u64;
        match seeded.below(200) {
            0 => datagram[seeded.below(length) as usize] ^= 1 << seeded.below(8),
            1 => datagram.truncate(seeded.below(length) as usize),
            2 => datagram.extend_from_slice(&datagram.clone()),
            _ => {}
        }
        true
    });
}

#[test]
fn an_idle_connection_is_kept_and_a_silent_peer_is_noticed() {
    for purpose in Purpose::ALL {
        let (mut near, mut far, dialled, accepted) = pair(settings(), purpose);
        run_for(&mut [&mut near, &mut far], 2 * settings().idle_timeout);
        assert_eq!((near.loss(dialled), far.loss(accepted)), (None, None));
        let started = Instant::now();
        run(&mut [&mut near], |nodes| nodes[0].loss(dialled).is_some());
        assert_eq!(near.loss(dialled), Some(Loss::Idle));
        let waited = started.elapsed();
        assert!(waited < 2 * settings().idle_timeout, "{waited:?}");
        assert_eq!((near.counters().idle_timeouts, near.counters().connections_now), (1, 0));
    }
}

#[test]
fn a_successor_with_the_same_key_resets_what_its_predecessor_left() {
    let mut patient = settings();
    patient.idle_timeout = Duration::from_secs(5);
    let (mut near, far, dialled, _) = pair(patient.clone(), Purpose::Inventory);
    let (key, address) = (far.key.clone(), far.address);
    drop(far);
    let mut far = Node::with(patient, key, address);
    acquaint(&mut [&mut near, &mut far]);
    let started = Instant::now();
    run(&mut [&mut near, &mut far], |nodes| nodes[0].loss(dialled).is_some());
    assert_eq!(near.loss(dialled), Some(Loss::Reset));
    assert!(started.elapsed() < Duration::from_secs(2), "the next keep-alive found out");
    assert!(far.counters().resets_sent > 0 && near.counters().resets_received == 1);
    near.dial(&far, Purpose::Inventory);
    run(&mut [&mut near, &mut far], |nodes| !nodes[1].connected().is_empty());
}

#[test]
fn a_successor_with_another_key_cannot_reset_and_is_dialled_by_its_own() {
    let (mut near, far, dialled, _) = pair(settings(), Purpose::Inventory);
    let (old_key, address) = (far.key.clone(), far.address);
    drop(far);
    let mut far = Node::with(settings(), NodeKey::ephemeral(), address);
    far.endpoint.set_members([near.member()]);
    run(&mut [&mut near, &mut far], |nodes| nodes[0].loss(dialled).is_some());
    assert_eq!(near.loss(dialled), Some(Loss::Idle), "its resets prove nothing");
    let stale =
        near.endpoint.dial(address, old_key.fingerprint(), Purpose::Inventory, monotonic_ns()).unwrap();
    run(&mut [&mut near, &mut far], |nodes| nodes[0].loss(stale).is_some());
    assert_eq!(near.loss(stale), Some(Loss::WrongKey));
    near.endpoint.set_members([far.member()]);
    near.dial(&far, Purpose::Inventory);
    run(&mut [&mut near, &mut far], |nodes| !nodes[1].connected().is_empty());
}

#[test]
fn random_bytes_on_the_port_disturb_nobody() {
    let (mut near, mut far, dialled, accepted) = pair(settings(), Purpose::Payload);
    let socket = || UdpSocket::bind("127.0.0.1:0").unwrap();
    let (stranger, traitor) = (socket(), socket());
    let traitor_member = member(NodeKey::ephemeral().fingerprint(), traitor.local_addr().unwrap());
    far.endpoint.set_members([near.member(), traitor_member]);
    let stream = near.endpoint.open(dialled, Priority::Ordinary).unwrap();
    let (mut seeded, mut sent, mut read_bytes) = (Seeded(3), 0, 0);
    let started = Instant::now();
    run(&mut [&mut near, &mut far], |nodes| {
        let target = nodes[1].address;
        for socket in [&stranger, &traitor] {
            let length = seeded.below(1_500) as usize;
            let mut garbage = seeded.bytes(length);
            // Half of it looks like QUIC of version 1.
            if seeded.below(2) == 0 && length > 32 {
                garbage[0] |= 0xc0;
                garbage[1..5].copy_from_slice(&[0, 0, 0, 1]);
                garbage[5] = 8;
                garbage[14] = 8;
            }
            let _ = socket.send_to(&garbage, target);
        }
        sent += 1;
        if sent % 50 == 0 {
            let _ = nodes[0].endpoint.write(dialled, stream, noise(sent, 1_000));
        }
        if let Some(stream) = nodes[1].opened(accepted).first().copied() {
            read_bytes += nodes[1].read((accepted, stream), usize::MAX).0.len();
        }
        started.elapsed() > Duration::from_secs(3)
    });
    let counters = far.counters();
    assert!(sent > 1_000 && read_bytes > 10_000, "{sent} sent, {read_bytes} read");
    assert!(counters.dropped_unknown > 500 && counters.dropped_stray > 100, "{counters:?}");
    assert_eq!(counters.connections_now - counters.handshakes_pending_now, 1);
    assert_eq!((near.loss(dialled), far.loss(accepted)), (None, None));
}
