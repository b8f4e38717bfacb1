//! The six answers, what they cost, and what is never asked of the shard at all.

use orbitkv_wire::identity::*;
use orbitkv_wire::payload::*;

use super::super::{Effect, Life};
use super::rig::*;
use crate::flow::pacing::Rate;
use crate::shard::ShardSettings;
use crate::shard::tests::rig::{BOTH, DRAM, Fault, KIB, digest, settings};

const BLOCK: u64 = 64 * KIB;

/// A source with one peer on connection 1.
fn source_with_peer() -> GrantRig {
    let mut rig = GrantRig::small();
    rig.connect(1, requester(1, 1));
    rig
}

fn wanted(number: u8, medium: Medium, sequence: u64) -> ExactResidence {
    let (namespace, group, block) = block(0, number);
    ExactResidence { namespace, group, block, medium, sequence: Sequence(sequence) }
}

#[test]
fn every_residence_has_its_own_answer() {
    let mut rig = source_with_peer();
    assert!(rig.save(0, 1, BLOCK) && rig.save(0, 2, BLOCK));
    let [here, gone] = [1, 2].map(|number| rig.live(0, number, Medium::Dram).unwrap());
    rig.evict(0, 2, BOTH);
    let ended = rig.stays[&gone.sequence].ended;
    let head = rig.rig.shard.head();
    let unknown = ExactResidence { namespace: digest(99), ..wanted(1, Medium::Dram, 1) };
    let batch = [
        here,
        gone,
        // Never of this key, never on this medium, never in this journal, never in this namespace.
        wanted(3, Medium::Dram, here.sequence.0),
        wanted(1, Medium::Ssd, here.sequence.0),
        wanted(4, Medium::Dram, head.0 + 1),
        unknown,
    ];
    let (_, answers) = rig.answers(1, Transport::Quic, &batch);
    let never = Answer::NeverHeld { head };
    let granted = Answer::Granted { bytes: BLOCK as u32 };
    assert_eq!(answers, [granted, Answer::Ended { sequence: ended }, never, never, never, never]);
    let figures = rig.grants.figures();
    assert_eq!((figures.granted, figures.ended, figures.never_held, figures.beyond_head), (1, 1, 3, 1));
    let namespaces = rig.rig.shard.figures().namespaces;
    assert_eq!(namespaces, 1, "a peer's request interns nothing");
}

#[test]
fn what_ended_long_ago_is_said_to_have_ended() {
    let mut rig = source_with_peer();
    assert!(rig.save(0, 1, BLOCK));
    let first = rig.live(0, 1, Medium::Dram).unwrap();
    rig.evict(0, 1, BOTH);
    for _ in 0..REMEMBERED {
        assert!(rig.save(0, 2, BLOCK));
        rig.evict(0, 2, BOTH);
    }
    let invented = wanted(9, Medium::Dram, first.sequence.0);
    let (_, answers) = rig.answers(1, Transport::Quic, &[first, invented]);
    assert_eq!(answers, [Answer::Ended { sequence: None }; 2]);
}

#[test]
fn a_batch_is_refused_whole_by_who_may_not_answer_it() {
    let mut rig = source_with_peer();
    assert!(rig.save(0, 1, BLOCK));
    let here = rig.live(0, 1, Medium::Dram).unwrap();
    let successor = Incarnation([8; 16]);
    // And whether it is told that it may be the one who is behind.
    for (life, refusal, behind) in [
        (Life::Fenced, Refusal::LeaseExpired, 0),
        (
            Life::Serving { epoch: EPOCH + 1, incarnation: successor },
            Refusal::StaleEpoch { epoch: EPOCH + 1, incarnation: successor },
            0,
        ),
        (
            Life::Serving { epoch: EPOCH, incarnation: successor },
            Refusal::StaleEpoch { epoch: EPOCH, incarnation: successor },
            0,
        ),
        (
            Life::Serving { epoch: EPOCH - 1, incarnation: successor },
            Refusal::StaleEpoch { epoch: EPOCH - 1, incarnation: successor },
            1,
        ),
    ] {
        rig.life = life;
        rig.effects.clear();
        assert_eq!(rig.ask(1, Transport::Quic, &[here]).1, FromSource::Refused(refusal));
        assert!(matches!(rig.effects.last(), Some(Effect::Finish { .. })));
        let told = Effect::Behind { node: source().node, incarnation: successor };
        assert_eq!(rig.effects.iter().filter(|effect| **effect == told).count(), behind, "{life:?}");
        assert!(rig.effects.len() == 2 + behind, "{:?}", rig.effects);
    }
    rig.life = Life::Serving { epoch: EPOCH, incarnation: source().incarnation };
    let off = FromSource::Refused(Refusal::TransportOff);
    assert_eq!(rig.ask(1, Transport::Shm, &[here]).1, off, "nobody has proved to be on this host");
    assert_eq!(rig.rig.shard.pins(), 0);
    let figures = rig.grants.figures();
    assert_eq!((figures.lease_expired, figures.stale_epoch, figures.transport_off), (1, 3, 1));
}

#[test]
fn a_request_is_for_us_and_of_its_connection() {
    let mut rig = source_with_peer();
    assert!(rig.save(0, 1, BLOCK));
    let here = rig.live(0, 1, Medium::Dram).unwrap();
    let good = Binding { cluster: ClusterUuid([3; 16]), source: source(), requester: requester(1, 1) };
    let bends: [fn(&mut Binding); 5] = [
        |binding| binding.cluster.0[0] ^= 1,
        |binding| binding.source.node = node(8),
        |binding| binding.source.shard.0 = 1,
        |binding| binding.requester = requester(2, 1),
        |binding| binding.requester = requester(1, 2),
    ];
    for bend in bends {
        let mut binding = good;
        bend(&mut binding);
        let operation = rig.operation();
        let (deadline_ms, transport, residences) = (5, Transport::Quic, vec![here]);
        let attempt = Attempt::Second;
        let authorize = Authorize { binding, operation, deadline_ms, transport, attempt, residences };
        rig.submit(at(1, 1), &authorize);
        let [.., Effect::Say { message, tag, .. }, Effect::Finish { .. }] = &rig.effects[..] else {
            panic!()
        };
        assert_eq!((message, *tag), (&FromSource::Refused(Refusal::Misdirected), binding.tag()));
    }
    assert_eq!((rig.grants.figures().misdirected, rig.rig.shard.pins()), (5, 0));
    assert_eq!(rig.grants.figures().asked, [0, 5, 0], "what is refused was asked, too");
}

#[test]
fn a_number_is_used_once_and_nothing_of_it_comes_back() {
    let mut rig = source_with_peer();
    rig.connect(2, requester(1, 1));
    rig.connect(3, requester(2, 1));
    assert!(rig.save(0, 1, BLOCK));
    let here = rig.live(0, 1, Medium::Dram).unwrap();
    let (operation, _) = rig.answers(1, Transport::Quic, &[here]);
    let repeat = |rig: &mut GrantRig, connection: u64| {
        rig.effects.clear();
        rig.authorize_as(at(connection, 9), requester(1, 1), operation, Transport::Quic, 10, &[here]);
        let [Effect::Say { message, .. }, Effect::Finish { .. }] = &rig.effects[..] else { panic!() };
        assert_eq!(*message, FromSource::Refused(Refusal::Repeated));
    };
    // While it runs, when all has been sent, when it was released, when it has drained; and elsewhere.
    repeat(&mut rig, 1);
    repeat(&mut rig, 2);
    rig.turn();
    repeat(&mut rig, 1);
    rig.on(|grants, shard| grants.on_release(at(1, 0).connection, operation, shard));
    repeat(&mut rig, 2);
    rig.drain_all();
    repeat(&mut rig, 1);
    // And when the block is gone and there again.
    rig.evict(0, 1, BOTH);
    assert!(rig.save(0, 1, BLOCK));
    repeat(&mut rig, 2);
    let (_, answers) = rig.answers(2, Transport::Quic, &[here]);
    assert!(matches!(answers[..], [Answer::Ended { sequence: Some(_) }]), "another residence: {answers:?}");
    // Another node's number is another number.
    rig.authorize_as(at(3, 1), requester(2, 1), operation, Transport::Quic, 10, &[here]);
    assert!(matches!(
        rig.effects[rig.effects.len() - 2],
        Effect::Say { message: FromSource::Answers { .. }, .. }
    ));
}

#[test]
fn a_copy_without_checksum_is_told_of_when_it_has_one() {
    let mut rig = GrantRig::new(settings(2, 0), grant_settings(2 << 21));
    rig.connect(1, requester(1, 1));
    rig.connect(2, requester(2, 1));
    assert!(rig.save(0, 1, BLOCK));
    let here = rig.live(0, 1, Medium::Dram).unwrap();
    rig.answers(1, Transport::Quic, &[here]);
    rig.answers(2, Transport::Quic, &[here]);
    rig.step();
    assert!(rig.loans.is_empty(), "its bytes are not known to be right");
    rig.turn();
    assert_eq!(rig.loans.len(), 2, "computed once for both");
    rig.answers(1, Transport::Quic, &[here]);
    assert_eq!(rig.rig.shard.poll_checksum(), None, "and never again");
    rig.step();
    assert_eq!(rig.loans.len(), 3);
}

#[test]
fn a_checksum_that_nobody_wants_any_more_is_not_computed() {
    let mut rig = GrantRig::new(settings(2, 0), grant_settings(2 << 21));
    rig.connect(1, requester(1, 1));
    assert!(rig.save(0, 1, BLOCK));
    let here = rig.live(0, 1, Medium::Dram).unwrap();
    let cancel = |rig: &mut GrantRig, operation| {
        rig.on(|grants, shard| grants.on_cancel(at(1, 0).connection, operation, shard));
    };
    let (first, _) = rig.answers(1, Transport::Quic, &[here]);
    cancel(&mut rig, first);
    assert_eq!(rig.rig.shard.poll_checksum(), None, "it had not begun");
    let (second, _) = rig.answers(1, Transport::Quic, &[here]);
    let order = rig.rig.shard.poll_checksum().expect("the second asks for it");
    cancel(&mut rig, second);
    assert!(!rig.rig.shard.is_checksum_wanted(order.id));
    rig.evict(0, 1, DRAM);
    let pinned = rig.rig.shard.figures().pinned_bytes;
    assert_eq!(pinned, BLOCK, "its bytes stay while they are read");
    rig.rig.shard.on_checksum_dropped(order.id);
    assert_eq!(rig.rig.shard.figures().allocated_bytes, 0);
}

#[test]
fn a_block_on_ssd_is_read_for_a_peer_and_not_kept() {
    let mut rig = source_with_peer();
    rig.connect(2, requester(2, 1));
    assert!(rig.save(0, 1, BLOCK));
    rig.settle();
    rig.evict(0, 1, DRAM);
    let on_ssd = rig.live(0, 1, Medium::Ssd).unwrap();
    let head = rig.rig.shard.head();
    for connection in [1, 2] {
        let (_, answers) = rig.answers(connection, Transport::Quic, &[on_ssd]);
        assert_eq!(answers, [Answer::Granted { bytes: BLOCK as u32 }]);
    }
    rig.rig.start_all();
    assert_eq!(rig.rig.flights.len(), 1, "one read for both");
    rig.rig.complete(0, Fault::None);
    rig.step();
    assert_eq!(rig.loans.len(), 2);
    assert_eq!((rig.rig.shard.head(), rig.live(0, 1, Medium::Dram)), (head, None), "no residence began");
    rig.drain_all();
    assert_eq!(rig.rig.shard.figures().allocated_bytes, 0, "and its slot is free again");
}

#[test]
fn a_read_that_fails_is_told_and_ends_the_residence() {
    for (fault, cause) in [(Fault::Error, FailureCause::DeviceError), (Fault::Flipped, FailureCause::Corrupt)]
    {
        let mut rig = source_with_peer();
        assert!(rig.save(0, 1, BLOCK));
        rig.settle();
        rig.evict(0, 1, DRAM);
        let on_ssd = rig.live(0, 1, Medium::Ssd).unwrap();
        rig.answers(1, Transport::Quic, &[on_ssd]);
        rig.rig.start_all();
        rig.rig.complete(0, fault);
        rig.step();
        let [.., Effect::Say { message, .. }, Effect::Finish { .. }] = &rig.effects[..] else { panic!() };
        assert_eq!(*message, FromSource::Failed { index: 0, cause });
        assert!(rig.stays[&on_ssd.sequence].ended.is_some());
        assert_eq!((rig.rig.shard.pins(), rig.rig.shard.figures().allocated_bytes), (0, 0));
    }
}

#[test]
fn a_read_that_has_not_begun_does_not_begin_after_the_end() {
    let mut rig = source_with_peer();
    assert!(rig.save(0, 1, BLOCK));
    rig.settle();
    rig.evict(0, 1, DRAM);
    let on_ssd = rig.live(0, 1, Medium::Ssd).unwrap();
    rig.answers(1, Transport::Quic, &[on_ssd]);
    rig.pass(10_000);
    assert!(!rig.rig.start_one(), "its time is over");
    assert_eq!(rig.rig.shard.figures().allocated_bytes, 0);
    let stop = |effect: &Effect| matches!(effect, Effect::Stop { cause: StopCause::Deadline, .. });
    assert_eq!(rig.effects.iter().filter(|effect| stop(effect)).count(), 1);
}

#[test]
fn bounds_are_answered_with_busy() {
    let mut rig = GrantRig::small();
    rig.grants.settings.pins_per_node_max = 3;
    rig.grants.settings.bytes_per_node_max = 4 * BLOCK;
    rig.connect(1, requester(1, 1));
    rig.connect(2, requester(2, 1));
    for number in 0..6 {
        assert!(rig.save(0, number, if number == 0 { 3 * BLOCK } else { BLOCK }));
    }
    let here: Vec<ExactResidence> = (0..6).map(|number| rig.live(0, number, Medium::Dram).unwrap()).collect();
    let busy = Answer::Busy { retry_after_ms: rig.grants.settings.retry_after_ms };
    let is_busy = |answers: &[Answer]| answers.iter().map(|answer| *answer == busy).collect::<Vec<_>>();
    let (_, answers) = rig.answers(1, Transport::Quic, &here[1..5]);
    assert_eq!(is_busy(&answers), [false, false, false, true], "three pins");
    let (_, answers) = rig.answers(2, Transport::Quic, &here[..4]);
    assert_eq!(
        is_busy(&answers),
        [false, false, true, true],
        "four blocks' bytes, and another node's are its own"
    );
    rig.turn();
    rig.drain_all();
    let (_, answers) = rig.answers(1, Transport::Quic, &here[1..4]);
    assert_eq!(is_busy(&answers), [false; 3], "what has drained can be lent again");
}

#[test]
fn what_a_rate_would_not_send_in_time_is_busy_and_each_node_has_its_share() {
    let mut rig = GrantRig::small();
    // Eight blocks' bytes in ten seconds.
    rig.grants.settings.egress = Rate::new(BLOCK * 8 / 10 + 1);
    rig.connect(1, requester(1, 1));
    rig.connect(2, requester(2, 1));
    for number in 0..12 {
        assert!(rig.save(0, number, BLOCK));
    }
    let here: Vec<ExactResidence> =
        (0..12).map(|number| rig.live(0, number, Medium::Dram).unwrap()).collect();
    let granted =
        |answers: &[Answer]| answers.iter().filter(|answer| matches!(answer, Answer::Granted { .. })).count();
    let (_, answers) = rig.answers(1, Transport::Quic, &here);
    assert_eq!(granted(&answers), 8, "{answers:?}");
    let Some(Answer::Busy { retry_after_ms }) = answers.last() else { panic!("{answers:?}") };
    assert!((9_900..=10_000).contains(retry_after_ms), "{retry_after_ms} ms");
    assert_eq!(rig.grants.figures().busy_for_egress, [0, 0, 4]);
    let (_, answers) = rig.answers(2, Transport::Quic, &here);
    assert_eq!(granted(&answers), 4, "half of the rate is the other node's: {answers:?}");
    // Nothing is sent of what is read over shared memory.
    rig.on(|grants, _| grants.on_reader_joined(reader(2, 1)));
    let (_, answers) = rig.answers(2, Transport::Shm, &here[..2]);
    assert_eq!(granted(&answers), 2);
    rig.turn();
    rig.drain_all();
    let (_, answers) = rig.answers(1, Transport::Quic, &here[..6]);
    assert_eq!(granted(&answers), 6, "what has gone is no one's backlog");
}

#[test]
fn what_the_shard_may_not_lend_is_counted_by_its_pool_and_a_nodes_own_share_is_not() {
    let mut bounds = grant_settings(2 << 21);
    bounds.bytes_per_node_max = 2 * BLOCK;
    let mut rig = GrantRig::new(ShardSettings { lent_bytes_max: 3 * BLOCK, ..settings(2, 0) }, bounds);
    rig.connect(1, requester(1, 1));
    rig.connect(2, requester(2, 1));
    let here = [1, 2, 3].map(|number| {
        assert!(rig.save(0, number, BLOCK));
        rig.live(0, number, Medium::Dram).unwrap()
    });
    let lent = |rig: &GrantRig| {
        let account = rig.rig.shard.lent_pool().account();
        (account.taken, account.refused, account.refused_beside_idle)
    };
    let (_, answers) = rig.answers(1, Transport::Quic, &here);
    assert!(matches!(answers[..], [Answer::Granted { .. }, Answer::Granted { .. }, Answer::Busy { .. }]));
    assert_eq!(lent(&rig), (2 * BLOCK, 0, 0), "that node has its share");
    let (_, answers) = rig.answers(2, Transport::Quic, &here[..2]);
    assert!(matches!(answers[..], [Answer::Granted { .. }, Answer::Busy { .. }]));
    assert_eq!(lent(&rig), (3 * BLOCK, 1, 1));
    assert_eq!(rig.grants.figures().busy, 2);
}
