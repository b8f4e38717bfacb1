//! Who is expected, who is excluded, and what this node's own troubles do to others' views.

use orbitkv_wire::identity::{Incarnation, NamespaceDigest, Sequence, ShardIndex, SnapshotId};
use orbitkv_wire::inventory::FromSource;
use orbitkv_wire::scope::Scope;

use super::rig::*;
use crate::coverage::{Standing, Unavailable};
use crate::inventory::subscriber::*;
use crate::members::Member;

#[test]
fn streams_are_expected_where_the_placement_puts_them() {
    for (source_shards, cores, core, expected) in [
        (1, 1, 0, vec![0]),
        (4, 2, 1, vec![2, 3]),
        (2, 4, 1, vec![]),
        (2, 4, 2, vec![1]),
        (3, 2, 0, vec![0, 1]),
    ] {
        let own = Local { shards: cores, ..local(1) };
        let mut rig = Rig::new();
        rig.room = Subscriber::new(SETTINGS(), own, ShardIndex(core), Scope::All);
        // This node's own record is in the map as well.
        let members = [Member { shards: source_shards, ..member("a", 1) }, member("self", 1)];
        rig.members(1, &members);
        let owners = rig.room.owners(None, 9, &rig.partition);
        let shards: Vec<_> = owners.map(|owner| (owner.source.node, owner.source.shard.0)).collect();
        let expected: Vec<_> = expected.into_iter().map(|shard| (node("a"), shard)).collect();
        assert_eq!(shards, expected, "{source_shards} on {cores}");
        let none = expected.is_empty();
        assert_eq!(rig.standing() == Standing::NoneExpected, none);
    }
}

#[test]
fn owners_are_listed_page_by_page() {
    let mut rig = Rig::new();
    let members: Vec<_> = (0..7).map(|number| member(&format!("n{number}"), 1)).collect();
    rig.members(1, &members);
    let (mut after, mut seen) = (None, Vec::new());
    loop {
        let page: Vec<_> = rig.room.owners(after, 3, &rig.partition).collect();
        let Some(last) = page.last() else { break };
        after = Some(last.stream);
        seen.extend(page.iter().map(|owner| owner.source.node));
    }
    assert_eq!(seen, members.iter().map(|member| member.node).collect::<Vec<_>>());
    assert_eq!(rig.room.owners(Some(StreamId(u64::MAX)), 3, &rig.partition).count(), 0);
}

#[test]
fn absence_waits_until_every_core_has_heard_of_the_revision() {
    let (mut rig, _) = Rig::live(10, &[put(1, 5)]);
    rig.lower(2, &[member("a", 1)]);
    let coverage = rig.room.coverage(rig.now);
    assert_eq!((coverage.standing, coverage.raised, coverage.revision), (Standing::Complete, false, 2));
    rig.room.on_may_raise(1);
    assert!(!rig.room.coverage(rig.now).raised, "that was for another revision");
    rig.room.on_may_raise(2);
    assert!(rig.room.coverage(rig.now).raised);
    // A map that was overtaken on its way is late.
    rig.lower(1, &[]);
    assert_eq!((rig.room.coverage(rig.now).revision, rig.found(1)), (2, vec![5]));
}

#[test]
fn a_member_that_leaves_is_gone_from_lookups_at_once_and_from_memory_by_and_by() {
    let residences: Vec<_> = (1..=40).map(|key| put(key, key)).collect();
    let (mut rig, connection) = Rig::live(50, &residences);
    let peer = rig.look(1)[0].0;
    rig.lower(2, &[]);
    assert!((1..=40).all(|key| rig.look(key).is_empty()));
    assert_eq!((rig.standing(), rig.applied("a", 1)), (Standing::NoneExpected, None));
    assert!(rig.room.member(crate::index::Owner { peer, shard: ShardIndex(0) }).is_none());
    assert!(rig.turn(), "rows are removed in steps");
    assert!(rig.partition.accounting().rows >= 24);
    assert_eq!(rig.closed(connection), Some("member_gone"));
    rig.run();
    assert_eq!(rig.partition.accounting().rows, 0);
}

#[test]
fn a_life_that_takes_another_place_is_another_member() {
    for (what, other) in [
        ("incarnation", member("a", 2)),
        ("epoch", Member { epoch: 2, ..member("a", 1) }),
        ("shards", Member { shards: 2, ..member("a", 1) }),
    ] {
        let (mut rig, connection) = Rig::live(10, &[put(1, 5)]);
        rig.members(2, &[other]);
        assert_eq!((rig.found(1), rig.closed(connection)), (vec![], Some("member_gone")), "{what}");
        let new = rig.connect();
        assert_eq!(rig.link(new).open.binding.source.epoch, other.epoch, "{what}");
        assert_eq!(rig.link(new).open.resume, None, "{what}");
    }
    // Only its address: the same life elsewhere.
    let (mut rig, connection) = Rig::live(10, &[put(1, 5)]);
    rig.members(2, &[Member { address: "10.0.0.2:7000".parse().unwrap(), ..member("a", 1) }]);
    assert_eq!((rig.found(1), rig.closed(connection)), (vec![5], None));
}

#[test]
fn while_membership_is_invalid_nothing_is_offered_or_admitted_and_nothing_is_lost() {
    let (mut rig, connection) = Rig::live(10, &[put(1, 5)]);
    rig.members(2, &[member("a", 1), member("b", 1)]);
    let dialed = rig.dials.remove(0);
    rig.room.on_membership_invalid(rig.now);
    assert_eq!(rig.standing(), Standing::Unavailable(Unavailable::MembershipInvalid));
    rig.delta(connection, 10, 11, &[delete(1, 11)]);
    assert_eq!((rig.applied("a", 1), rig.closed(connection)), (Some(10), None));
    rig.room.on_connected(dialed, ConnectionId(77), orbitkv_wire::identity::SessionId([7; 16]), rig.now);
    rig.pass(60_000);
    rig.run();
    assert!(rig.dials.is_empty());
    // Read again, at the same revision.
    rig.members(2, &[member("a", 1), member("b", 1)]);
    assert_eq!((rig.applied("a", 1), rig.found(1)), (Some(11), vec![]));
    assert_eq!((rig.dials.len(), rig.standing()), (1, Standing::Partial));
}

#[test]
fn a_fence_ends_sessions_and_a_new_life_goes_on_with_the_views() {
    let (mut rig, connection) = Rig::live(10, &[put(1, 5)]);
    rig.room.on_fenced(rig.now);
    rig.run();
    assert_eq!(rig.closed(connection), Some("fenced"));
    assert_eq!(rig.standing(), Standing::Unavailable(Unavailable::LeaseExpired));
    // Neither a membership refresh nor its failure ends a fence.
    rig.room.on_membership_invalid(rig.now);
    assert_eq!(rig.standing(), Standing::Unavailable(Unavailable::LeaseExpired));
    rig.members(2, &[member("a", 1), member("b", 1)]);
    assert_eq!(rig.standing(), Standing::Unavailable(Unavailable::LeaseExpired));
    rig.pass(60_000);
    rig.run();
    assert!(rig.dials.is_empty(), "a fenced node dials nobody");
    rig.room.on_registered(local(2), rig.now);
    rig.members(3, &[member("a", 1)]);
    assert_eq!((rig.found(1), rig.standing()), (vec![5], Standing::Partial));
    let again = rig.connect();
    let open = rig.link(again).open.clone();
    assert_eq!(open.binding.requester.incarnation, Incarnation([2; 16]));
    let resume = open.resume.unwrap();
    assert_eq!((resume.view, resume.sequence), (SNAPSHOT, Sequence(10)));
    rig.say(again, 10, &FromSource::Resumed { view: SNAPSHOT, sequence: Sequence(10) });
    assert_eq!(rig.standing(), Standing::Complete);
}

#[test]
fn a_namespace_out_of_scope_is_neither_answered_for_nor_accepted() {
    let scope = Scope::namespaces([NAMESPACE]).unwrap();
    let mut rig = Rig::with(SETTINGS(), 4 << 20, scope);
    rig.members(1, &[member("a", 1)]);
    let connection = rig.connect();
    rig.bootstrap(connection, SNAPSHOT, 10, &[put(1, 5)]);
    let other = NamespaceDigest([8; 32]);
    assert_eq!(rig.room.coverage_of(&NAMESPACE, rig.now).standing, Standing::Complete);
    let outside = Standing::Unavailable(Unavailable::OutOfScope);
    assert_eq!(rig.room.coverage_of(&other, rig.now).standing, outside);
    let body = changes_body(|writer| writer.delta(Sequence(10), Sequence(11)), other, &[put(1, 11)]);
    rig.send(connection, 11, &body);
    assert_eq!((rig.closed(connection), rig.applied("a", 1)), (Some("out_of_scope"), Some(10)));
    // Explicitly nothing is a scope, too.
    let mut rig = Rig::with(SETTINGS(), 4 << 20, Scope::none());
    rig.members(1, &[member("a", 1)]);
    let connection = rig.connect();
    rig.bootstrap(connection, SNAPSHOT, 10, &[]);
    assert_eq!(rig.standing(), Standing::Complete);
    assert_eq!(rig.room.coverage_of(&NAMESPACE, rig.now).standing, outside);
}

#[test]
fn another_scope_begins_from_nothing() {
    let (mut rig, connection) = Rig::live(10, &[put(1, 5)]);
    let now = rig.now;
    let (room, mut index) = rig.index();
    room.on_scope(Scope::namespaces([NAMESPACE]).unwrap(), 2, &mut index, now);
    rig.run();
    assert_eq!((rig.closed(connection), rig.found(1)), (Some("scope_changed"), vec![]));
    assert_eq!(rig.room.coverage(rig.now).scope_generation, 2);
    let again = rig.reconnect();
    let open = &rig.link(again).open;
    assert_ne!(open.binding.scope, rig.link(connection).open.binding.scope);
    assert_eq!(open.resume, None);
    rig.bootstrap(again, SnapshotId([8; 16]), 10, &[put(1, 5)]);
    assert_eq!(rig.standing(), Standing::Complete);
}
