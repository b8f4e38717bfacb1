//! Awaits: the single instant, what begins anew, and every failure by its name.

use super::*;

const SCOPE: ScopeDigest = ScopeDigest([3; 32]);

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn local() -> Local {
    let (cluster, incarnation) = (ClusterUuid([1; 16]), Incarnation([1; 16]));
    Local { cluster, node: node("self"), epoch: 1, incarnation, shards: 2 }
}

fn members(revision: u64, life: u8, epoch: u64) -> MemberMap {
    let address = "10.0.0.1:7000".parse().unwrap();
    let incarnation = Incarnation([life; 16]);
    let member = crate::members::Member { node: node("a"), epoch, incarnation, shards: 2, address };
    MemberMap::new(revision, vec![member])
}

fn fence(sequences: &[u64]) -> Fence {
    let inventory_sequence = sequences.iter().copied().map(Sequence).collect();
    let (cluster, incarnation) = (ClusterUuid([1; 16]), Incarnation([2; 16]));
    Fence { cluster, node: node("a"), epoch: 5, incarnation, inventory_sequence }
}

fn awaits() -> Awaits {
    let mut awaits = Awaits::new(AwaitSettings::default(), local(), SCOPE);
    awaits.on_members(&members(7, 2, 5));
    awaits
}

fn reading(shard: u16, generation: u64, applied: u64) -> Reading {
    Reading { shard: ShardIndex(shard), generation, applied: Sequence(applied) }
}

/// The round that is asked for, if it is the only effect.
fn asked(awaits: &mut Awaits) -> Option<u64> {
    let effect = awaits.poll_effect()?;
    assert_eq!(awaits.poll_effect(), None);
    match effect {
        AwaitEffect::Read { round, node: of, incarnation, .. } => {
            assert_eq!((of, incarnation), (node("a"), Incarnation([2; 16])));
            Some(round)
        }
        AwaitEffect::Done { .. } => panic!("{effect:?}"),
    }
}

fn outcome(awaits: &mut Awaits) -> Option<Result<(), AwaitFailure>> {
    std::iter::from_fn(|| awaits.poll_effect()).find_map(|effect| match effect {
        AwaitEffect::Done { outcome, .. } => Some(outcome),
        AwaitEffect::Read { .. } => None,
    })
}

/// Both cores answer a round, each with one stream.
fn answer(awaits: &mut Awaits, waiter: WaiterId, round: u64, readings: [Reading; 2]) {
    for (core, reading) in (0..).zip(readings) {
        awaits.on_readings(waiter, round, ShardIndex(core), 7, &[reading], Moment(0));
    }
}

#[test]
fn it_succeeds_when_two_readings_find_the_same_views_far_enough() {
    let mut awaits = awaits();
    let waiter = awaits.begin(fence(&[10, 20]), Some(SCOPE), Moment(0)).unwrap();
    let first = asked(&mut awaits).unwrap();
    answer(&mut awaits, waiter, first, [reading(0, 1, 10), reading(1, 2, 25)]);
    let second = asked(&mut awaits).expect("one reading is not one instant");
    awaits.on_readings(waiter, second, ShardIndex(0), 7, &[reading(0, 1, 12)], Moment(0));
    assert_eq!(awaits.poll_effect(), None, "the other core has not answered");
    // An answer to the first reading is not one to the second, and a core answers once.
    awaits.on_readings(waiter, first, ShardIndex(1), 7, &[reading(1, 2, 25)], Moment(0));
    awaits.on_readings(waiter, second, ShardIndex(0), 7, &[reading(0, 9, 12)], Moment(0));
    assert_eq!(awaits.poll_effect(), None);
    awaits.on_readings(waiter, second, ShardIndex(1), 7, &[reading(1, 2, 25)], Moment(0));
    assert_eq!(outcome(&mut awaits), Some(Ok(())));
    assert!(awaits.is_empty());
}

#[test]
fn it_starts_over_when_a_view_a_revision_or_a_cursor_does_not_hold() {
    let far = [reading(0, 1, 10), reading(1, 2, 20)];
    let near = [reading(0, 1, 10), reading(1, 2, 19)];
    let renewed = [reading(0, 1, 10), reading(1, 3, 20)];
    for (what, rounds) in [
        ("not far enough", vec![near]),
        ("a stream without view", vec![[reading(0, 1, 10), reading(0, 1, 10)]]),
        ("a view was replaced between the readings", vec![far, renewed]),
        ("it fell back between the readings", vec![far, near]),
    ] {
        let mut awaits = awaits();
        let waiter = awaits.begin(fence(&[10, 20]), None, Moment(0)).unwrap();
        for readings in rounds {
            let round = asked(&mut awaits).expect(what);
            answer(&mut awaits, waiter, round, readings);
        }
        assert_eq!(awaits.poll_effect(), None, "{what}: pauses first");
        let due = awaits.next_deadline().unwrap();
        assert_eq!(due, Moment(0) + AwaitSettings::default().pause, "{what}");
        awaits.on_time(due);
        // From the beginning: it takes two more readings.
        for _ in 0..2 {
            let round = asked(&mut awaits).expect(what);
            answer(&mut awaits, waiter, round, far);
        }
        assert_eq!(outcome(&mut awaits), Some(Ok(())), "{what}");
    }
}

#[test]
fn it_starts_over_when_the_revision_changes_or_a_core_is_at_another() {
    let mut awaits = awaits();
    let waiter = awaits.begin(fence(&[10, 20]), None, Moment(0)).unwrap();
    let first = asked(&mut awaits).unwrap();
    answer(&mut awaits, waiter, first, [reading(0, 1, 10), reading(1, 2, 20)]);
    let second = asked(&mut awaits).unwrap();
    awaits.on_members(&members(8, 2, 5));
    let third = asked(&mut awaits).expect("a new revision begins anew");
    answer(&mut awaits, waiter, second, [reading(0, 1, 10), reading(1, 2, 20)]);
    assert_eq!(awaits.poll_effect(), None, "late answers count for nothing");
    // One core has not heard of revision 8 yet.
    awaits.on_readings(waiter, third, ShardIndex(0), 7, &[reading(0, 1, 10)], Moment(0));
    awaits.on_readings(waiter, third, ShardIndex(1), 8, &[reading(1, 2, 20)], Moment(0));
    assert_eq!(awaits.poll_effect(), None);
    assert!(awaits.next_deadline().unwrap() < Moment(1_000_000_000));
}

#[test]
fn what_cannot_succeed_fails_by_name() {
    let mut awaits = awaits();
    let given = Incarnation([2; 16]);
    let known = Incarnation([9; 16]);
    let other = ClusterUuid([8; 16]);
    let table = [
        (
            Fence { cluster: other, ..fence(&[1, 1]) },
            None,
            AwaitFailure::AnotherCluster { given: other, own: ClusterUuid([1; 16]) },
        ),
        (Fence { node: node("self"), ..fence(&[1, 1]) }, None, AwaitFailure::OwnFence),
        (fence(&[1, 1, 1]), None, AwaitFailure::VectorLength { given: 3, shards: 2 }),
        (fence(&[]), None, AwaitFailure::VectorLength { given: 0, shards: 2 }),
        (
            Fence { incarnation: known, ..fence(&[1, 1]) },
            None,
            AwaitFailure::AnotherIncarnation { given: known, known: given },
        ),
        (fence(&[1, 1]), Some(ScopeDigest([4; 32])), AwaitFailure::AnotherScope),
    ];
    for (fence, scope, failure) in table {
        assert_eq!(awaits.begin(fence, scope, Moment(0)), Err(failure));
    }
    for (change, failure) in [
        (
            Box::new(|awaits: &mut Awaits| awaits.on_fenced()) as Box<dyn Fn(&mut Awaits)>,
            AwaitFailure::Fenced,
        ),
        (
            Box::new(|awaits: &mut Awaits| awaits.on_members(&members(8, 9, 6))),
            AwaitFailure::AnotherIncarnation { given, known },
        ),
    ] {
        let mut awaits = self::awaits();
        awaits.begin(fence(&[1, 1]), None, Moment(0)).unwrap();
        change(&mut awaits);
        assert_eq!(outcome(&mut awaits), Some(Err(failure)));
        assert_eq!(awaits.begin(fence(&[1, 1]), None, Moment(0)), Err(failure));
    }
}

#[test]
fn a_life_that_has_not_been_heard_of_is_waited_for_until_time_runs_out() {
    let mut awaits = Awaits::new(AwaitSettings::default(), local(), SCOPE);
    awaits.on_members(&members(6, 9, 4));
    for sequences in [&[1, 1][..], &[]] {
        let waiter = awaits.begin(fence(sequences), None, Moment(0)).unwrap();
        let round = asked(&mut awaits).unwrap();
        for core in 0..2 {
            awaits.on_readings(waiter, round, ShardIndex(core), 6, &[], Moment(0));
        }
        assert_eq!(awaits.poll_effect(), None, "no view of it, no success");
    }
    let end = Moment(0) + AwaitSettings::default().wait_max;
    awaits.on_time(end);
    assert_eq!(outcome(&mut awaits), Some(Err(AwaitFailure::NotAMember { revision: 6 })));
    // A member that is merely slow is something else.
    let mut awaits = self::awaits();
    awaits.begin(fence(&[1, 1]), None, Moment(0)).unwrap();
    assert_eq!(awaits.next_deadline(), Some(end));
    awaits.on_time(end);
    assert_eq!(outcome(&mut awaits), Some(Err(AwaitFailure::TimedOut)));
}

#[test]
fn waiters_have_a_bound() {
    let mut awaits = awaits();
    let waiters: Vec<_> = (0..64).map(|_| awaits.begin(fence(&[1, 1]), None, Moment(0)).unwrap()).collect();
    assert_eq!(awaits.begin(fence(&[1, 1]), None, Moment(0)), Err(AwaitFailure::TooMany { limit: 64 }));
    awaits.cancel(waiters[3]);
    assert_eq!(awaits.len(), 63);
    awaits.begin(fence(&[1, 1]), None, Moment(0)).unwrap();
}
