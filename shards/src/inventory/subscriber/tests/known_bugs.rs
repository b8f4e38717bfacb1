//! Bugs that other systems of this kind have had, each with the test that it is not here.

use orbitkv_wire::identity::{Medium, Sequence};
use orbitkv_wire::inventory::FromSource;

use super::rig::*;
use crate::coverage::{Basis, Coverage, Standing, merge};
use crate::inventory::subscriber::*;

fn coverage(rig: &Rig) -> Coverage {
    let part = rig.room.coverage(rig.now);
    merge(Basis { revision: part.revision, scope_generation: part.scope_generation }, &[part]).coverage
}

#[test]
fn a_dropped_delta_makes_the_owner_not_covered_and_never_absent() {
    let (mut rig, connection) = Rig::live(10, &[]);
    assert_eq!(coverage(&rig), Coverage::CompleteAtWatermarks);
    // The delta that puts key 1 is lost; the next one arrives.
    rig.frame(connection, 11, &delta_body(10, 11, &[put(1, 11)]));
    rig.delta(connection, 11, 12, &[put(2, 12)]);
    assert_eq!(coverage(&rig), Coverage::PartialHints, "key 1 is unknown, not absent");
    assert!(rig.found(2).is_empty());
    let again = rig.reconnect();
    assert_eq!(coverage(&rig), Coverage::PartialHints);
    rig.say(again, 12, &FromSource::Resumed { view: SNAPSHOT, sequence: Sequence(10) });
    rig.delta(again, 10, 12, &[put(1, 11), put(2, 12)]);
    assert_eq!((coverage(&rig), rig.found(1)), (Coverage::CompleteAtWatermarks, vec![11]));
}

#[test]
fn a_restarted_source_that_counts_from_one_again_erases_old_claims_before_the_first_lookup() {
    let (mut rig, old) = Rig::live(1_000, &[put(1, 900), put(2, 901)]);
    rig.lower(2, &[member("a", 2)]);
    // Not one turn has passed, not one frame of the new life has come.
    assert!(rig.found(1).is_empty() && rig.found(2).is_empty());
    rig.room.on_may_raise(2);
    assert_eq!(coverage(&rig), Coverage::Unavailable);
    let new = rig.connect();
    rig.bootstrap(new, SNAPSHOT, 1, &[put(2, 1)]);
    assert_eq!((rig.found(1), rig.found(2)), (vec![], vec![1]));
    rig.delta(old, 1_000, 1_001, &[put(1, 1_001)]);
    assert!(rig.found(1).is_empty());
}

#[test]
fn a_late_delta_after_a_fence_re_adds_nothing() {
    let (mut rig, connection) = Rig::live(10, &[put(1, 5)]);
    // The source's life ends; what it had sent is still on its way, some of it received and waiting.
    rig.room.on_membership_invalid(rig.now);
    rig.delta(connection, 10, 11, &[put(2, 11)]);
    let late = rig.frame(connection, 12, &delta_body(11, 12, &[put(3, 12)]));
    rig.members(2, &[]);
    rig.send_bytes(connection, &late);
    rig.run();
    assert!((1..4).all(|key| rig.look(key).is_empty()));
    assert_eq!(rig.partition.accounting().rows, 0);
}

#[test]
fn a_wipe_reaches_the_view_as_such() {
    let residences: Vec<_> = (1..=20).map(|key| put(key, key)).collect();
    let (mut rig, connection) = Rig::live(20, &residences);
    let deletes: Vec<_> = (1..=20).map(|key| delete(key, 20 + key)).collect();
    rig.delta(connection, 20, 40, &deletes);
    assert!((1..=20).all(|key| rig.look(key).is_empty()));
    assert_eq!((coverage(&rig), rig.partition.accounting().rows), (Coverage::CompleteAtWatermarks, 0));
}

#[test]
fn a_removal_batch_with_an_unknown_key_removes_the_others() {
    let (mut rig, connection) = Rig::live(10, &[put(1, 1), put(2, 2), put(3, 3)]);
    rig.delta(connection, 10, 14, &[delete(1, 11), delete(77, 12), delete(2, 13), delete(3, 14)]);
    assert!((1..4).all(|key| rig.look(key).is_empty()));
    assert_eq!((rig.closed(connection), rig.applied("a", 1)), (None, Some(14)));
}

#[test]
fn two_media_of_one_key_one_removal_keeps_the_other() {
    for (gone, left) in [(Medium::Dram, Medium::Ssd), (Medium::Ssd, Medium::Dram)] {
        let (mut rig, connection) = Rig::live(10, &[(1, Medium::Dram, 5, 1), (1, Medium::Ssd, 5, 2)]);
        rig.delta(connection, 10, 11, &[(1, gone, 0, 11)]);
        assert_eq!(rig.look(1).iter().map(|found| found.1).collect::<Vec<_>>(), [left]);
    }
}

#[test]
fn a_hole_between_snapshot_and_subscription_is_not_covered() {
    // The scan began at 10; what happened until the subscription at 12 is neither in it nor replayed.
    let mut rig = Rig::new();
    rig.members(1, &[member("a", 1)]);
    let connection = rig.connect();
    rig.offer(connection, SNAPSHOT, 10, 3);
    rig.grant();
    let page = page_body(SNAPSHOT, 0, &[put(1, 1)]);
    rig.send(connection, 12, &page);
    rig.commit(connection, SNAPSHOT, 12, &[page]);
    assert_eq!((rig.closed(connection), coverage(&rig)), (Some("snapshot"), Coverage::Unavailable));
    // The same at the other end: deltas do not begin where the commit ended.
    let (mut rig, connection) = Rig::live(10, &[]);
    rig.delta(connection, 11, 13, &[put(1, 13)]);
    assert_eq!((rig.closed(connection), coverage(&rig)), (Some("not_contiguous"), Coverage::PartialHints));
}

#[test]
fn a_reconnect_of_the_same_incarnation_keeps_its_state() {
    let (mut rig, connection) = Rig::live(10, &[put(1, 5)]);
    rig.delta(connection, 10, 11, &[put(2, 11)]);
    let before = rig.room.readings(node("a"), member("a", 1).incarnation);
    rig.room.on_closed(connection, 0, rig.now);
    rig.run();
    assert_eq!((rig.found(1), rig.found(2)), (vec![5], vec![11]), "hints while it is away");
    assert_eq!(coverage(&rig), Coverage::PartialHints);
    let again = rig.reconnect();
    assert_eq!(rig.link(again).open.resume.unwrap().sequence, Sequence(11));
    rig.say(again, 11, &FromSource::Resumed { view: SNAPSHOT, sequence: Sequence(11) });
    assert_eq!(coverage(&rig), Coverage::CompleteAtWatermarks);
    assert_eq!(rig.room.readings(node("a"), member("a", 1).incarnation), before, "the same view");
    assert_eq!(rig.room.figures().snapshots_installed, 1, "no second snapshot");
}

#[test]
fn an_observer_paused_longer_than_a_lease_does_not_expire_everybody_else() {
    let mut rig = Rig::new();
    rig.members(1, &[member("a", 1), member("b", 1)]);
    for number in 1..=2 {
        let connection = rig.connect();
        rig.bootstrap(connection, SNAPSHOT, 10, &[put(number, 5)]);
    }
    rig.pass(120_000);
    rig.run();
    assert_eq!((rig.found(1), rig.found(2)), (vec![5], vec![5]));
    assert_eq!(coverage(&rig), Coverage::PartialHints, "old, but nobody is gone");
    assert!(rig.links.values().all(|link| link.closed.is_none()));
    // It learns that it was away itself. Its view of the others goes on in its new life.
    rig.room.on_fenced(rig.now);
    rig.room.on_registered(local(2), rig.now);
    rig.members(2, &[member("a", 1), member("b", 1)]);
    for number in 1..=2 {
        let connection = rig.reconnect();
        assert!(rig.link(connection).open.resume.is_some());
        rig.say(connection, 10, &FromSource::Resumed { view: SNAPSHOT, sequence: Sequence(10) });
        assert_eq!(rig.found(number), [5]);
    }
    assert_eq!((coverage(&rig), rig.standing()), (Coverage::CompleteAtWatermarks, Standing::Complete));
}

#[test]
fn a_thousand_lives_of_a_member_leave_memory_and_counts_constant() {
    let mut rig = Rig::new();
    rig.members(1, &[]);
    let empty = (rig.partition.accounting().charged_bytes, rig.namespaces.len());
    for life in 0..1_000u64 {
        rig.members(2 + 2 * life, &[Member { epoch: life, ..member("a", (life % 200) as u8) }]);
        let connection = rig.reconnect();
        rig.bootstrap(connection, SNAPSHOT, 10, &[put(1, 1), put(2, 2)]);
        rig.members(3 + 2 * life, &[]);
        rig.links.clear();
    }
    assert_eq!(rig.standing(), Standing::NoneExpected);
    assert_eq!(rig.partition.accounting().rows, 0);
    assert!(rig.partition.accounting().charged_bytes <= empty.0 + 1_024, "one free view and no row");
    assert_eq!((rig.namespaces.len(), rig.room.next_deadline()), (empty.1 + 1, None));
}
