//! Who gets in, what strangers and impostors cost, and what is bounded before anybody is known.

use super::*;

#[test]
fn both_ends_learn_whom_they_speak_to_and_for_what() {
    let (mut near, mut far) = (Node::new(), Node::new());
    acquaint(&mut [&mut near, &mut far]);
    let dialled = Purpose::ALL.map(|purpose| near.dial(&far, purpose));
    run(&mut [&mut near, &mut far], |nodes| nodes.iter().all(|node| node.connected().len() == 2));
    for (node, other, origin) in [(&near, &far, Origin::Dialled), (&far, &near, Origin::Accepted)] {
        let mut purposes = Vec::new();
        for event in &node.heard {
            let Event::Connected { peer, address, purpose, origin: found, .. } = event else {
                panic!("{event:?}")
            };
            assert_eq!((*peer, *address, *found), (other.key.fingerprint(), other.address, origin));
            purposes.push(*purpose);
        }
        purposes.sort();
        assert_eq!(purposes, Purpose::ALL);
        assert_eq!((node.counters().handshakes, node.counters().connections_now), (2, 2));
    }
    let of_purpose = |node: &Node, wanted: Purpose| {
        node.heard.iter().find_map(|event| match event {
            Event::Connected { connection, purpose, .. } if *purpose == wanted => Some(*connection),
            _ => None,
        })
    };
    let mut secrets = Vec::new();
    for (purpose, dialled) in Purpose::ALL.into_iter().zip(dialled) {
        let accepted = of_purpose(&far, purpose).unwrap();
        let (ours, theirs) = (
            near.endpoint.shared_secret(dialled, "shm").unwrap(),
            far.endpoint.shared_secret(accepted, "shm").unwrap(),
        );
        assert_eq!(ours, theirs);
        assert_ne!(Some(ours), near.endpoint.shared_secret(dialled, "other"));
        secrets.push(ours);
    }
    assert_ne!(secrets[0], secrets[1]);
}

#[test]
fn a_dialled_node_with_another_key_is_refused() {
    let (mut near, mut far) = (Node::new(), Node::new());
    acquaint(&mut [&mut near, &mut far]);
    let expected = NodeKey::ephemeral().fingerprint();
    let dialled = near.endpoint.dial(far.address, expected, Purpose::Payload, monotonic_ns()).unwrap();
    run(&mut [&mut near, &mut far], |nodes| {
        nodes[0].loss(dialled).is_some() && nodes[1].counters().connections_now == 0
    });
    assert_eq!(near.loss(dialled), Some(Loss::WrongKey));
    assert_eq!((near.counters().wrong_keys, near.counters().handshakes), (1, 0));
    assert_eq!((near.endpoint.poll_mismatch(), near.endpoint.poll_mismatch()), (Some(expected), None));
    assert_eq!((far.heard.len(), far.counters().handshakes_failed), (0, 1));
}

#[test]
fn a_dialler_with_another_key_than_its_address_publishes_is_refused() {
    let (mut near, mut far) = (Node::new(), Node::new());
    acquaint(&mut [&mut near, &mut far]);
    // The key is one of a member, of another address.
    let stolen = member(NodeKey::ephemeral().fingerprint(), near.address);
    let elsewhere = member(near.key.fingerprint(), "127.0.0.1:1".parse().unwrap());
    far.endpoint.set_members([stolen, elsewhere]);
    let dialled = near.dial(&far, Purpose::Inventory);
    run(&mut [&mut near, &mut far], |nodes| {
        nodes[0].loss(dialled).is_some() && nodes[1].counters().handshakes_failed == 1
    });
    assert_eq!(near.loss(dialled), Some(Loss::KeyRefused));
    assert_eq!((far.heard.len(), far.counters().wrong_keys, far.counters().handshakes), (0, 1, 0));
    assert_eq!(far.endpoint.poll_mismatch(), Some(stolen.fingerprint));
}

#[test]
fn the_right_key_without_its_private_half_is_refused() {
    let any = "127.0.0.1:0".parse().unwrap();
    // Who is dialled is the thief.
    let (mut near, victim) = (Node::new(), NodeKey::ephemeral());
    let mut thief = Node::with(settings(), NodeKey::ephemeral().showing(&victim), any);
    acquaint(&mut [&mut near, &mut thief]);
    let dialled = near.dial(&thief, Purpose::Payload);
    run(&mut [&mut near, &mut thief], |nodes| nodes[0].loss(dialled).is_some());
    assert_eq!(near.loss(dialled), Some(Loss::WrongSignature));
    assert_eq!((near.counters().wrong_signatures, near.counters().handshakes), (1, 0));

    // Who dials is the thief.
    let mut far = Node::new();
    let mut thief = Node::with(settings(), NodeKey::ephemeral().showing(&victim), any);
    acquaint(&mut [&mut thief, &mut far]);
    let dialled = thief.dial(&far, Purpose::Payload);
    run(&mut [&mut thief, &mut far], |nodes| {
        nodes[0].loss(dialled).is_some() && nodes[1].counters().handshakes_failed == 1
    });
    assert_eq!(thief.loss(dialled), Some(Loss::KeyRefused));
    assert_eq!((far.heard.len(), far.counters().wrong_signatures, far.counters().handshakes), (0, 1, 0));
}

#[test]
fn an_address_that_no_member_publishes_is_not_read() {
    let (mut near, mut far) = (Node::new(), Node::new());
    near.endpoint.set_members([far.member()]);
    let dialled = near.dial(&far, Purpose::Inventory);
    run(&mut [&mut near, &mut far], |nodes| nodes[0].loss(dialled).is_some());
    assert_eq!(near.loss(dialled), Some(Loss::HandshakeTimeout));
    let counters = far.counters();
    assert!(counters.dropped_unknown >= 2, "it was sent again: {counters:?}");
    assert_eq!(counters.datagrams_received, counters.dropped_unknown);
    assert_eq!((counters.accepts, counters.datagrams_sent, counters.connections_now), (0, 0, 0));

    // Nor is a handshake of a node that was a member until now, nor its answer to a dial.
    far.endpoint.set_members([near.member()]);
    let dialled = near.dial(&far, Purpose::Inventory);
    near.step();
    near.endpoint.set_members([]);
    run(&mut [&mut near, &mut far], |nodes| nodes[0].loss(dialled).is_some());
    assert!(near.counters().dropped_unknown > 0 && near.connected().is_empty());
}

#[test]
fn one_handshake_datagram_a_turn_and_a_retry_above_eight() {
    let (mut first, mut second, mut far) = (Node::new(), Node::new(), Node::new());
    acquaint(&mut [&mut first, &mut second, &mut far]);
    for node in [&mut first, &mut second] {
        for _ in 0..DIALS_PENDING_MAX {
            node.dial(&far, Purpose::Inventory);
        }
        let refused =
            node.endpoint.dial(far.address, far.key.fingerprint(), Purpose::Inventory, monotonic_ns());
        assert_eq!(refused, Err(DialRefusal::TooManyPending));
        while node.endpoint.flush(monotonic_ns()).more {}
    }
    // The diallers are not driven, so none of the sixteen proves its address.
    for turn in 1..=16 {
        assert!(far.endpoint.turn(monotonic_ns()).shook_hands);
        let counters = far.counters();
        assert_eq!(counters.accepts + counters.retries, turn);
    }
    let counters = far.counters();
    assert_eq!((counters.accepts, counters.retries), (UNVERIFIED_MAX as u64, 16 - UNVERIFIED_MAX as u64));
    assert_eq!(counters.handshakes_pending_now, UNVERIFIED_MAX as u64);
    run(&mut [&mut first, &mut second, &mut far], |nodes| nodes[2].connected().len() == 16);
    assert_eq!([first.counters().handshakes, second.counters().handshakes], [8, 8]);
}

#[test]
fn handshakes_of_peers_that_fall_silent_are_given_up() {
    let (mut near, mut far) = (Node::new(), Node::new());
    acquaint(&mut [&mut near, &mut far]);
    for _ in 0..DIALS_PENDING_MAX {
        near.dial(&far, Purpose::Payload);
    }
    while near.endpoint.flush(monotonic_ns()).more {}
    run(&mut [&mut far], |nodes| nodes[0].counters().accepts == DIALS_PENDING_MAX as u64);
    let silent = near.address;
    drop(near);
    run(&mut [&mut far], |nodes| nodes[0].counters().connections_now == 0);
    let counters = far.counters();
    assert_eq!((counters.handshakes_failed, counters.handshakes), (DIALS_PENDING_MAX as u64, 0));
    assert!(far.heard.is_empty());

    // Nor does a dial wait for one who says nothing.
    let mut near = Node::with(settings(), NodeKey::ephemeral(), silent);
    near.endpoint.set_members([far.member()]);
    let dialled = near.dial(&far, Purpose::Payload);
    run(&mut [&mut near], |nodes| nodes[0].loss(dialled).is_some());
    assert!(matches!(near.loss(dialled), Some(Loss::HandshakeTimeout | Loss::Idle)));
}

#[test]
fn a_turn_takes_in_a_bounded_number_of_datagrams() {
    let mut far = Node::new();
    let flood = UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..400 {
        flood.send_to(b"?", far.address).unwrap();
    }
    let budget = (settings().receive_budget_bytes / 512) as u64;
    assert!(far.endpoint.turn(monotonic_ns()).more);
    let first = far.counters().datagrams_received;
    assert!((budget..budget + 64).contains(&first), "{first} datagrams");
    run(&mut [&mut far], |nodes| nodes[0].counters().dropped_unknown == 400);
}

#[test]
fn a_peer_that_floods_with_handshakes_takes_its_share_of_the_queue() {
    let (mut near, mut far) = (Node::new(), Node::new());
    let flood = UdpSocket::bind("127.0.0.1:0").unwrap();
    let flooder = member(NodeKey::ephemeral().fingerprint(), flood.local_addr().unwrap());
    near.endpoint.set_members([far.member()]);
    far.endpoint.set_members([near.member(), flooder]);
    let mut garbage = noise(1, 1_200).to_vec();
    garbage[0] |= 0xc0;
    for _ in 0..100 {
        flood.send_to(&garbage, far.address).unwrap();
    }
    near.dial(&far, Purpose::Inventory);
    while near.endpoint.flush(monotonic_ns()).more {}
    run(&mut [&mut near, &mut far], |nodes| !nodes[1].connected().is_empty());
    let counters = far.counters();
    assert!(counters.dropped_handshake_queue >= 60, "{counters:?}");
    assert_eq!(counters.accepts, 1);
}

#[test]
fn a_dial_needs_a_member_and_room() {
    let mut narrow = settings();
    narrow.payload.receive_pool_bytes = u64::from(narrow.payload.receive_window_bytes);
    let (mut near, mut far, dialled, _) = pair(narrow, Purpose::Payload);
    let now = monotonic_ns();
    let key = far.key.fingerprint();
    let nobody = "127.0.0.1:1".parse().unwrap();
    assert_eq!(near.endpoint.dial(nobody, key, Purpose::Payload, now), Err(DialRefusal::NotAMember));
    assert_eq!(near.endpoint.dial(far.address, key, Purpose::Payload, now), Err(DialRefusal::NoRoom));
    near.dial(&far, Purpose::Inventory);
    assert_eq!(near.counters().receive_charged_now_bytes, [1 << 20, 4 << 20]);
    near.endpoint.close(dialled, 7, now);
    run(&mut [&mut near, &mut far], |nodes| nodes[0].counters().receive_charged_now_bytes[1] == 0);
    near.dial(&far, Purpose::Payload);
    assert_eq!(
        far.heard
            .iter()
            .filter(|event| matches!(event, Event::Lost { loss, .. } if *loss == Loss::Closed { code: 7 }))
            .count(),
        1
    );
}

#[test]
fn an_accepted_connection_needs_room_too() {
    let any = "127.0.0.1:0".parse().unwrap();
    let mut near = Node::new();
    let mut narrow = settings();
    narrow.payload.connections_max = 1;
    let mut far = Node::with(narrow, NodeKey::ephemeral(), any);
    acquaint(&mut [&mut near, &mut far]);
    let first = near.dial(&far, Purpose::Payload);
    run(&mut [&mut near, &mut far], |nodes| !nodes[1].connected().is_empty());
    let second = near.dial(&far, Purpose::Payload);
    run(&mut [&mut near, &mut far], |nodes| nodes[0].loss(second).is_some());
    assert_eq!(near.loss(second), Some(Loss::Closed { code: u64::from(close_code::NO_ROOM) }));
    assert_eq!((far.connected().len(), far.counters().refused_no_room), (1, 1));
    near.endpoint.close(first, 0, monotonic_ns());
    run(&mut [&mut near, &mut far], |nodes| nodes[1].counters().connections_now == 0);
    near.dial(&far, Purpose::Payload);
    run(&mut [&mut near, &mut far], |nodes| nodes[1].connected().len() == 2);
}

#[test]
fn a_cluster_that_starts_at_once_comes_together() {
    const NODES: usize = 12;
    let mut nodes: Vec<Node> = (0..NODES).map(|_| Node::new()).collect();
    acquaint(&mut nodes.iter_mut().collect::<Vec<_>>());
    let targets: Vec<Member> = nodes.iter().map(Node::member).collect();
    // Every node dials every other one as its bound of pending dials lets it, and again what was lost.
    let mut missing: Vec<Vec<usize>> =
        (0..NODES).map(|own| (0..NODES).filter(|other| *other != own).collect()).collect();
    run(&mut nodes.iter_mut().collect::<Vec<_>>(), |nodes| {
        for (node, missing) in nodes.iter_mut().zip(&mut missing) {
            assert!(node.counters().dials_pending_now <= DIALS_PENDING_MAX as u64);
            missing.retain(|other| {
                let target = &targets[*other];
                let address = SocketAddr::new(target.address, target.base_port);
                let dialled =
                    node.endpoint.dial(address, target.fingerprint, Purpose::Inventory, monotonic_ns());
                dialled.is_err()
            });
        }
        nodes.iter().all(|node| node.connected().len() == 2 * (NODES - 1))
    });
    let retries: u64 = nodes.iter().map(|node| node.counters().retries).sum();
    assert!(nodes.iter().all(|node| node.counters().handshakes_failed == 0));
    assert!(retries > 0, "eleven diallers at once are more than eight");
}
