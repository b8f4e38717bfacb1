//! What engines say about their model: agreement shares a namespace, contradiction is named.

use orbitkv::client::{Group, GroupId, Registration, Retention};
use orbitkv_wire::engine::Status;
use orbitkv_wire::engine::answers::Answer;

use crate::harness::raw::words;
use crate::harness::saver::{BLOCK_BYTES, block, registration};
use crate::harness::{EngineProcess, Node, Saver};

type Change = fn(&mut Registration);

/// Every field of an instance that its processes must agree on, by the name a conflict gives it.
const FIELDS: [(&str, Change); 15] = [
    ("engine", |registration| registration.engine = "other".into()),
    ("model", |registration| registration.model = "other".into()),
    ("weights revision", |registration| registration.weights_revision = "other".into()),
    ("adapter", |registration| registration.adapter = "other".into()),
    ("computation", |registration| registration.computation = "other".into()),
    ("dtype", |registration| registration.dtype = "other".into()),
    ("layout", |registration| registration.layout = "other".into()),
    ("block tokens", |registration| registration.block_tokens = 32),
    ("hash algorithm", |registration| registration.hash_algorithm = "other".into()),
    ("hash seed", |registration| registration.hash_seed = "other".into()),
    ("hash bytes", |registration| registration.hash_bytes = 16),
    ("tp size", |registration| registration.tp_size = 2),
    ("pp size", |registration| registration.pp_size = 2),
    ("rank invariant", |registration| registration.rank_invariant = true),
    ("groups", |registration| registration.groups[0].block_bytes = BLOCK_BYTES / 2),
];

#[test]
fn a_contradiction_within_an_instance_is_a_conflict_that_names_the_field() {
    let node = Node::start();
    let mut first = node.raw();
    let digest = first.register(&registration("shared")).digest;
    for (field, change) in FIELDS {
        let mut contradicting = registration("shared");
        change(&mut contradicting);
        let mut second = node.raw();
        let frame = second.try_register(&contradicting);
        let (status, refusal) = frame.refusal();
        assert_eq!(status, Status::Conflict, "{field}");
        assert!(words(&refusal).contains(field), "{field}: {}", words(&refusal));
        // The connection lives on, and may agree after all.
        assert_eq!(second.register(&registration("shared")).digest, digest);
        // Under another instance name the same words are no contradiction.
        contradicting.instance = format!("another {field}");
        // A connection speaks for one instance, because its leases belong to it.
        let (status, refusal) = second.try_register(&contradicting).refusal();
        assert_eq!(status, Status::Conflict);
        assert!(words(&refusal).contains("\"shared\""), "{}", words(&refusal));
        let other = node.raw().register(&contradicting);
        assert_eq!(other.digest == digest, field == "engine", "{field} is part of the namespace");
    }
    node.assert_serves();
}

#[test]
fn agreeing_instances_share_one_namespace_and_its_blocks() {
    let node = Node::start();
    let mut one = Saver::connect(&node.socket(), "instance one");
    let mut two = Saver::connect(&node.socket(), "instance two");
    let digest = |saver: &Saver| saver.client.digest(saver.namespace).expect("registered");
    assert_eq!(digest(&one), digest(&two));
    one.save(&[1, 2, 3]);
    two.check_ready(&[1, 2, 3]);
}

#[test]
fn ranks_of_one_instance_have_namespaces_of_their_own_unless_their_bytes_are_the_same() {
    let node = Node::start();
    let rank = |tp_rank, rank_invariant| Registration {
        tp_rank,
        tp_size: 2,
        rank_invariant,
        ..registration(if rank_invariant { "same bytes" } else { "own bytes" })
    };
    let mut connections = Vec::new();
    let mut digest = |registration: &Registration| {
        let mut raw = node.raw();
        let digest = raw.register(registration).digest;
        connections.push(raw);
        digest
    };
    assert_ne!(digest(&rank(0, false)), digest(&rank(1, false)));
    assert_eq!(digest(&rank(0, true)), digest(&rank(1, true)));
    // Ranks may hold other layers, each rank the same ones in every process.
    let mut layers = rank(1, false);
    layers.instance = "layers".into();
    digest(&Registration { tp_rank: 0, ..layers.clone() });
    layers.groups.push(Group { group: GroupId(1), retention: Retention::Full, block_bytes: BLOCK_BYTES });
    // Kept open: an instance is forgotten with its last connection.
    let mut second = node.raw();
    second.register(&layers);
    let mut third = node.raw();
    let contradicting = Registration { groups: layers.groups[..1].to_vec(), ..layers };
    let frame = third.try_register(&contradicting);
    assert!(words(&frame.refusal().1).contains("groups"));
}

#[test]
fn a_registration_that_makes_no_sense_is_refused() {
    let node = Node::start();
    let changes: [(&str, Change); 7] = [
        ("instance", |registration| registration.instance.clear()),
        ("model", |registration| registration.model.clear()),
        ("rank 3", |registration| registration.tp_rank = 3),
        ("rank 5", |registration| registration.pp_rank = 5),
        ("0 bytes", |registration| registration.groups[0].block_bytes = 0),
        ("", |registration| registration.block_tokens = 0),
        ("", |registration| registration.groups.clear()),
    ];
    for (names, change) in changes {
        let mut senseless = registration("senseless");
        change(&mut senseless);
        let frame = node.raw().try_register(&senseless);
        let (status, refusal) = frame.refusal();
        assert_eq!(status, Status::Malformed, "{senseless:?}");
        assert!(words(&refusal).contains(names), "{}", words(&refusal));
    }
    node.assert_serves();
}

#[test]
fn an_instance_is_free_again_once_its_processes_are_gone() {
    let node = Node::start();
    let mut process = EngineProcess::start(&node);
    let mut raw = process.raw();
    raw.register(&registration("reborn"));
    raw.reserve(&[block(1).0], BLOCK_BYTES);
    drop(raw);
    let mut changed = registration("reborn");
    changed.dtype = "fp8".into();
    // Its socket is closed, and it still has a slot: what it said counts until it is gone.
    node.await_held("the socket is closed", |held| held.connections == 0 && held.reservations == 1);
    let mut second = node.raw();
    assert_eq!(second.try_register(&changed).refusal().0, Status::Conflict);
    process.kill();
    crate::harness::eventually("the name is free", || {
        matches!(second.try_register(&changed).answer(), Answer::Register(_)).then_some(())
    });
}
