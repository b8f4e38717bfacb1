//! How grants end: by time, by the requester, by a process, a member or our own lease; and what counts as
//! proof that memory is free.

use orbitkv_wire::identity::*;
use orbitkv_wire::payload::*;

use super::super::Effect;
use super::rig::*;
use crate::payload_streams::PayloadConnection;
use crate::shard::tests::rig::{DRAM, KIB};

const BLOCK: u64 = 64 * KIB;

/// A source with a block in DRAM, told of to peer 1 on connection 1.
fn told(transport: Transport) -> (GrantRig, OperationId) {
    let mut rig = GrantRig::small();
    rig.connect(1, requester(1, 1));
    rig.grants.on_reader_joined(reader(1, 1));
    assert!(rig.save(0, 1, BLOCK));
    let here = rig.live(0, 1, Medium::Dram).unwrap();
    let (operation, _) = rig.answers(1, transport, &[here]);
    rig.turn();
    assert_eq!(rig.exposed().count(), 1);
    (rig, operation)
}

fn stops(rig: &GrantRig) -> Vec<StopCause> {
    let stop = |effect: &Effect| match effect {
        Effect::Stop { cause, .. } => Some(*cause),
        _ => None,
    };
    rig.effects.iter().filter_map(stop).collect()
}

/// The block is evicted, and its memory is only free when nothing is pinned.
fn assert_pinned(rig: &mut GrantRig, pinned: bool) {
    rig.evict(0, 1, DRAM);
    rig.assert_kept();
    let bytes = rig.rig.shard.figures().pinned_bytes;
    assert_eq!((bytes > 0, rig.rig.shard.pins() > 0), (pinned, pinned));
    assert_eq!(rig.grants.figures().operations > 0, pinned);
}

#[test]
fn over_quic_every_end_waits_for_the_transport_alone() {
    type End = fn(&mut GrantRig, OperationId);
    let ends: [(End, &[StopCause]); 6] = [
        (
            |rig, operation| {
                rig.on(|grants, shard| grants.on_release(PayloadConnection(1), operation, shard))
            },
            &[],
        ),
        (
            |rig, operation| rig.on(|grants, shard| grants.on_cancel(PayloadConnection(1), operation, shard)),
            &[StopCause::Cancelled],
        ),
        (|rig, _| rig.pass(10_000), &[StopCause::Deadline]),
        (|rig, _| rig.on(|grants, shard| grants.on_disconnected(PayloadConnection(1), shard)), &[]),
        (
            |rig, _| rig.on(|grants, shard| grants.on_requester_gone(requester(1, 1), shard)),
            &[StopCause::Excluded],
        ),
        (|rig, _| rig.on(|grants, shard| grants.on_fence(shard)), &[StopCause::Fenced]),
    ];
    for (end, causes) in ends {
        let (mut rig, operation) = told(Transport::Quic);
        end(&mut rig, operation);
        assert_eq!(stops(&rig), causes);
        rig.pass(60_000);
        assert_eq!((stops(&rig).len(), rig.grants.figures().quarantined_bytes), (causes.len(), 0));
        assert_pinned(&mut rig, true);
        rig.drain_all();
        assert_pinned(&mut rig, false);
    }
}

#[test]
fn over_shared_memory_time_and_a_closed_socket_prove_nothing() {
    let (mut rig, operation) = told(Transport::Shm);
    rig.grants.on_reader_left(&reader(1, 1));
    rig.on(|grants, shard| grants.on_disconnected(PayloadConnection(1), shard));
    assert_eq!(rig.grants.figures().quarantined_bytes, 0, "it may read until its time is over");
    rig.pass(9_999);
    assert_eq!(rig.grants.figures().quarantined_bytes, 0);
    rig.pass(1);
    let figures = rig.grants.figures();
    assert_eq!((figures.quarantined_bytes, figures.quarantines), (BLOCK, 1));
    rig.pass(3_600_000);
    assert_pinned(&mut rig, true);
    // Another boot of the same node says nothing about this one; the same after a reconnect does.
    let other_boot = super::super::Reader { boot: [1; 16], ..reader(1, 7) };
    rig.effects.clear();
    rig.on(|grants, shard| grants.on_released(&other_boot, operation, shard));
    rig.on(|grants, shard| grants.on_released(&reader(2, 1), operation, shard));
    assert_pinned(&mut rig, true);
    rig.released(&reader(1, 9), operation);
    assert_pinned(&mut rig, false);
    assert_eq!(rig.grants.figures().quarantined_bytes, 0);
    let again = rig.effects.len();
    rig.released(&reader(1, 9), operation);
    assert_eq!(rig.effects[again..], [Effect::Drained { reader: reader(1, 9), operation }], "idempotent");
}

#[test]
fn a_dead_reader_reads_nothing() {
    let (mut rig, _) = told(Transport::Shm);
    rig.on(|grants, shard| grants.on_reader_dead(&reader(1, 2), shard));
    assert_pinned(&mut rig, true);
    rig.extents.clear();
    rig.on(|grants, shard| grants.on_reader_dead(&reader(1, 1), shard));
    assert_pinned(&mut rig, false);
}

#[test]
fn released_is_true_whatever_became_of_incarnations() {
    let (mut rig, operation) = told(Transport::Shm);
    rig.connect(2, requester(1, 2));
    let quarantined = rig.grants.figures().quarantined_bytes;
    assert_eq!(quarantined, BLOCK, "its life has a successor: nobody answers for it");
    rig.on(|grants, shard| grants.on_fence(shard));
    rig.released(&reader(1, 1), operation);
    assert_pinned(&mut rig, false);
}

#[test]
fn quarantine_turns_the_transport_off_for_its_node_alone() {
    let mut rig = GrantRig::small();
    rig.grants.settings.bytes_per_node_max = 10 * BLOCK;
    for peer in [1, 2] {
        rig.connect(u64::from(peer), requester(peer, 1));
        rig.grants.on_reader_joined(reader(peer, 1));
    }
    assert!(rig.save(0, 1, BLOCK));
    let here = rig.live(0, 1, Medium::Dram).unwrap();
    let (lost, _) = rig.answers(1, Transport::Shm, &[here]);
    rig.turn();
    rig.pass(10_000);
    let off = FromSource::Refused(Refusal::TransportOff);
    assert_eq!(rig.ask(1, Transport::Shm, &[here]).1, off, "a tenth of what it may have");
    assert_eq!(rig.grants.figures().nodes_without_shm, 1);
    assert!(matches!(rig.ask(1, Transport::Quic, &[here]).1, FromSource::Answers { .. }));
    assert!(matches!(rig.ask(2, Transport::Shm, &[here]).1, FromSource::Answers { .. }));
    rig.released(&reader(1, 1), lost);
    assert!(matches!(rig.ask(1, Transport::Shm, &[here]).1, FromSource::Answers { .. }), "and on again");
}

#[test]
fn nobody_ends_the_operation_of_another() {
    let (mut rig, operation) = told(Transport::Quic);
    rig.connect(2, requester(1, 1));
    rig.connect(3, requester(2, 1));
    for connection in [2, 3] {
        rig.on(|grants, shard| grants.on_release(PayloadConnection(connection), operation, shard));
        rig.on(|grants, shard| grants.on_cancel(PayloadConnection(connection), operation, shard));
    }
    rig.on(|grants, shard| grants.on_released(&reader(1, 1), operation, shard));
    rig.on(|grants, shard| grants.on_released(&reader(2, 1), operation, shard));
    assert_eq!((stops(&rig).len(), rig.grants.figures().pins), (0, 1), "over QUIC nobody's word frees it");
}

#[test]
fn a_cancel_that_overtakes_its_request_prevents_it() {
    let (mut rig, _) = told(Transport::Quic);
    let here = rig.live(0, 1, Medium::Dram).unwrap();
    let operation = rig.operation();
    rig.on(|grants, shard| grants.on_cancel(PayloadConnection(1), operation, shard));
    rig.authorize_as(at(1, 5), requester(1, 1), operation, Transport::Quic, 10, &[here]);
    let [.., Effect::Say { message, .. }, Effect::Finish { .. }] = &rig.effects[..] else { panic!() };
    assert_eq!(*message, FromSource::Refused(Refusal::Repeated));
}

#[test]
fn a_life_that_is_gone_is_granted_nothing_on_connections_it_still_has() {
    let (mut rig, _) = told(Transport::Quic);
    let here = rig.live(0, 1, Medium::Dram).unwrap();
    rig.on(|grants, shard| grants.on_requester_gone(requester(1, 1), shard));
    assert_eq!(rig.ask(1, Transport::Quic, &[here]).1, FromSource::Refused(Refusal::Misdirected));
    rig.on(|grants, shard| grants.on_disconnected(PayloadConnection(1), shard));
    assert_eq!(rig.grants.accounts.len(), 1, "its loan has not drained");
    rig.drain_all();
    assert!(rig.grants.accounts.is_empty());
}

#[test]
fn a_grant_lasts_as_long_as_was_asked_and_ten_seconds_at_most() {
    for (deadline_ms, lasts) in [(1, 1), (2_500, 2_500), (10_000, 10_000), (600_000, 10_000)] {
        let (mut rig, _) = told(Transport::Quic);
        rig.drain_all();
        let here = rig.live(0, 1, Medium::Dram).unwrap();
        let operation = rig.operation();
        rig.effects.clear();
        rig.authorize_as(at(1, 5), requester(1, 1), operation, Transport::Quic, deadline_ms, &[here]);
        let Effect::Say { message: FromSource::Answers { grant_ms, .. }, .. } = &rig.effects[0] else {
            panic!()
        };
        assert_eq!(u64::from(*grant_ms), lasts);
        rig.pass(lasts - 1);
        assert!(stops(&rig).is_empty());
        rig.pass(1);
        assert_eq!(stops(&rig), [StopCause::Deadline]);
    }
}
