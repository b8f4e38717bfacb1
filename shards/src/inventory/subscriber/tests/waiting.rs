//! When there is no room for now: what comes back is waited for, and what stands still for good gives way.

use orbitkv_wire::identity::{Sequence, SnapshotId};
use orbitkv_wire::inventory::{FromRequester, FromSource, ResetCause};
use orbitkv_wire::scope::Scope;

use super::rig::*;
use crate::coverage::Standing;
use crate::inventory::ConnectionId;
use crate::inventory::subscriber::snapshot::planned_bytes;

/// Room for some seven hundred rows, or to plan one snapshot of five hundred.
const BUDGET_BYTES: u64 = 48 << 10;

fn snapshot(number: u8) -> SnapshotId {
    SnapshotId([number; 16])
}

/// Residences with keys of one owner only.
fn rows(owner: u64, count: u64) -> Vec<Said> {
    (1..=count).map(|number| put(owner * 10_000 + number, number)).collect()
}

/// What became of the offers of a connection: how long to wait, or zero for an accepted one.
fn answers(rig: &Rig, connection: ConnectionId) -> Vec<u32> {
    let heard = rig.link(connection).heard.iter();
    let answers = heard.filter_map(|said| match said {
        FromRequester::SnapshotRefuse { retry_after_ms, .. } => Some(*retry_after_ms),
        FromRequester::SnapshotAccept { .. } => Some(0),
        _ => None,
    });
    answers.collect()
}

/// A small index and so many members, all connected.
fn members(names: &[&str]) -> (Rig, Vec<ConnectionId>) {
    let mut rig = Rig::with(SETTINGS(), BUDGET_BYTES, Scope::All);
    rig.members(1, &names.iter().map(|name| member(name, 1)).collect::<Vec<_>>());
    let connections = names.iter().map(|_| rig.connect()).collect();
    (rig, connections)
}

/// Fills an accepted snapshot and commits it.
fn fill(rig: &mut Rig, connection: ConnectionId, snapshot: SnapshotId, residences: &[Said]) {
    let bodies = [page_body(snapshot, 0, residences)];
    rig.send(connection, 500, &bodies[0]);
    rig.commit(connection, snapshot, 500, &bodies);
}

#[test]
fn room_that_another_snapshot_claims_is_waited_for_and_not_refused() {
    let (mut rig, connections) = members(&["a", "b", "c"]);
    let [a, b, c] = connections[..] else { unreachable!() };
    rig.offer(a, snapshot(1), 500, 300);
    rig.grant();
    rig.offer(b, snapshot(2), 500, 300);
    // What would fit now does not overtake what came first.
    rig.offer(c, snapshot(3), 500, 5);
    assert_eq!((answers(&rig, a), answers(&rig, b), answers(&rig, c)), (vec![0], vec![], vec![]));
    assert_eq!((rig.wishes.len(), rig.returned.len()), (1, 0), "who waits takes no permit");
    fill(&mut rig, a, snapshot(1), &rows(1, 300));
    assert_eq!((rig.wishes.len(), rig.returned.len()), (3, 1), "no time has passed");
    for (connection, number, count) in [(b, 2, 300), (c, 3, 5)] {
        rig.room.on_permit(rig.wishes[usize::from(number) - 1], rig.now);
        rig.run();
        assert_eq!(answers(&rig, connection), [0]);
        fill(&mut rig, connection, snapshot(number), &rows(u64::from(number), count));
    }
    assert_eq!(rig.standing(), Standing::Complete);
    let figures = rig.room.figures();
    assert_eq!((figures.snapshots_held, figures.snapshots_refused, figures.views_withdrawn), (2, 0, 0));
}

#[test]
fn whichever_way_the_other_snapshot_ends_its_room_is_given_on() {
    type End = fn(&mut Rig, ConnectionId);
    let table: &[(&str, End)] = &[
        ("its session is lost", |rig, a| rig.room.on_closed(a, 0, rig.now)),
        ("its source has reset it", |rig, a| {
            rig.say(a, 500, &FromSource::ResetRequired { cause: ResetCause::HistoryGone });
        }),
        ("no page of it came", |rig, _| rig.pass(5_000)),
        ("its source has left", |rig, _| rig.members(2, &[member("b", 1)])),
    ];
    for (end, act) in table {
        let (mut rig, connections) = members(&["a", "b"]);
        let [a, b] = connections[..] else { unreachable!() };
        rig.offer(a, snapshot(1), 500, 300);
        rig.grant();
        rig.offer(b, snapshot(2), 500, 300);
        act(&mut rig, a);
        rig.run();
        assert_eq!(rig.wishes.len(), 2, "{end}");
        rig.grant();
        assert_eq!(answers(&rig, b), [0], "{end}");
    }
}

#[test]
fn of_two_that_wish_and_fit_only_one_by_one_the_second_gives_its_permit_back_and_waits() {
    let (mut rig, connections) = members(&["a", "b"]);
    let [a, b] = connections[..] else { unreachable!() };
    rig.offer(a, snapshot(1), 500, 300);
    rig.offer(b, snapshot(2), 500, 300);
    for ticket in rig.wishes.clone() {
        rig.room.on_permit(ticket, rig.now);
    }
    rig.run();
    assert_eq!((answers(&rig, a), answers(&rig, b)), (vec![0], vec![]));
    assert_eq!((rig.wishes.len(), rig.returned.len()), (2, 1), "a permit is not kept idle");
    fill(&mut rig, a, snapshot(1), &rows(1, 300));
    rig.grant();
    assert_eq!(answers(&rig, b), [0]);
    fill(&mut rig, b, snapshot(2), &rows(2, 300));
    assert_eq!((rig.standing(), rig.returned.len()), (Standing::Complete, 3));
}

#[test]
fn what_is_too_large_for_everything_is_refused_though_another_snapshot_is_on_its_way() {
    let (mut rig, connections) = members(&["a", "b"]);
    let [a, b] = connections[..] else { unreachable!() };
    rig.offer(a, snapshot(1), 500, 300);
    rig.grant();
    rig.offer(b, snapshot(2), 500, BUDGET_BYTES / planned_bytes(1) + 1);
    assert_eq!(answers(&rig, b), [30_000]);
}

#[test]
fn what_waited_and_does_not_fit_in_the_end_is_refused_as_any_other() {
    let (mut rig, connections) = members(&["a", "b"]);
    let [a, b] = connections[..] else { unreachable!() };
    rig.offer(a, snapshot(1), 500, 300);
    rig.grant();
    rig.offer(b, snapshot(2), 500, 400);
    assert!(answers(&rig, b).is_empty());
    fill(&mut rig, a, snapshot(1), &rows(1, 300));
    assert_eq!(answers(&rig, b), [30_000]);
    // That it would fit by now does not matter for thirty seconds.
    let deletes: Vec<_> = (1..=300).map(|number| delete(10_000 + number, 500 + number)).collect();
    rig.delta(a, 500, 800, &deletes);
    rig.pass(29_999);
    rig.offer(b, snapshot(3), 500, 400);
    assert_eq!(answers(&rig, b), [30_000, 1]);
    rig.pass(1);
    rig.offer(b, snapshot(4), 500, 400);
    rig.grant();
    assert_eq!(answers(&rig, b), [30_000, 1, 0]);
}

#[test]
fn an_offer_that_waits_goes_with_its_session_and_its_source() {
    type End = fn(&mut Rig, ConnectionId);
    let table: &[(&str, End)] = &[
        ("session", |rig, b| rig.room.on_closed(b, 0, rig.now)),
        ("reset", |rig, b| {
            rig.say(b, 500, &FromSource::ResetRequired { cause: ResetCause::SnapshotExpired });
        }),
        ("source", |rig, _| rig.members(2, &[member("a", 1)])),
    ];
    for (end, act) in table {
        let (mut rig, connections) = members(&["a", "b"]);
        let [a, b] = connections[..] else { unreachable!() };
        rig.offer(a, snapshot(1), 500, 300);
        rig.grant();
        rig.offer(b, snapshot(2), 500, 300);
        act(&mut rig, b);
        fill(&mut rig, a, snapshot(1), &rows(1, 300));
        assert_eq!((rig.wishes.len(), answers(&rig, b)), (1, vec![]), "{end}");
    }
}

#[test]
fn a_view_is_kept_while_its_successor_may_fit_beside_it_later() {
    let (mut rig, connections) = members(&["a", "b"]);
    let [a, b] = connections[..] else { unreachable!() };
    rig.bootstrap(b, snapshot(1), 500, &rows(2, 100));
    rig.offer(a, snapshot(2), 500, 300);
    rig.grant();
    rig.say(b, 900, &FromSource::ResetRequired { cause: ResetCause::SlowSubscriber });
    rig.offer(b, snapshot(3), 900, 200);
    assert_eq!((answers(&rig, b), rig.found(20_001)), (vec![0], vec![1]), "it would fit instead");
    fill(&mut rig, a, snapshot(2), &rows(1, 50));
    rig.grant();
    assert_eq!((answers(&rig, b), rig.found(20_001)), (vec![0, 0], vec![1]));
}

/// Three owners, each with a view of two hundred rows which its source has reset; the first is the least
/// fresh. No snapshot of three hundred rows fits, not even in place of its owner's view.
fn full_of_broken_views() -> (Rig, Vec<ConnectionId>) {
    let (mut rig, connections) = members(&["a", "b", "c"]);
    for (owner, &connection) in (1..).zip(&connections) {
        rig.bootstrap(connection, snapshot(owner as u8), 500, &rows(owner, 200));
        rig.pass(100);
    }
    assert_eq!(rig.standing(), Standing::Complete);
    for &connection in &connections {
        rig.say(connection, 900, &FromSource::ResetRequired { cause: ResetCause::HistoryGone });
    }
    assert!(planned_bytes(300) > rig.partition.free_bytes_without(200));
    (rig, connections)
}

fn hints(rig: &Rig) -> Vec<bool> {
    (1..=3).map(|owner| !rig.found(owner * 10_000 + 1).is_empty()).collect()
}

#[test]
fn an_index_full_of_broken_views_gives_the_least_fresh_up_and_does_not_stand_still() {
    let (mut rig, connections) = full_of_broken_views();
    let [a, b, c] = connections[..] else { unreachable!() };
    rig.offer(b, snapshot(11), 900, 300);
    assert_eq!((answers(&rig, b), hints(&rig)), (vec![0, 30_000], vec![true; 3]));
    rig.pass(29_999);
    rig.offer(b, snapshot(12), 900, 300);
    assert_eq!((answers(&rig, b), hints(&rig)), (vec![0, 30_000, 1], vec![true; 3]));
    rig.pass(1);
    rig.offer(b, snapshot(13), 900, 300);
    assert_eq!((answers(&rig, b)[3], hints(&rig)), (100, vec![false, true, true]));
    // With that room and its own it fits.
    rig.offer(b, snapshot(14), 900, 300);
    assert_eq!((answers(&rig, b)[4], hints(&rig)), (100, vec![false, false, true]));
    rig.bootstrap(b, snapshot(15), 900, &rows(2, 300));
    assert_eq!((hints(&rig), rig.room.figures().views_withdrawn), (vec![false, true, true], 2));
    // What was withdrawn comes back by a complete snapshot only, here in place of the last broken one.
    assert_eq!((rig.applied("a", 1), rig.applied("b", 1), rig.applied("c", 1)), (None, Some(900), Some(500)));
    rig.room.on_closed(a, 0, rig.now);
    let a = rig.reconnect();
    assert_eq!(rig.link(a).open.resume, None);
    rig.offer(a, snapshot(16), 900, 300);
    rig.pass(30_000);
    rig.offer(a, snapshot(17), 900, 300);
    assert_eq!((answers(&rig, a), hints(&rig)), (vec![30_000, 100], vec![false, true, false]));
    rig.bootstrap(a, snapshot(18), 900, &rows(1, 300));
    // There is no broken one left: who is too many waits, and no whole view goes for it.
    for number in 20..25 {
        rig.offer(c, snapshot(number), 900, 300);
        rig.pass(30_000);
    }
    assert_eq!(answers(&rig, c), [0, 30_000, 30_000, 30_000, 30_000, 30_000]);
    assert_eq!((hints(&rig), rig.room.figures().views_withdrawn), (vec![true, true, false], 3));
}

#[test]
fn nothing_is_given_up_for_what_would_not_fit_even_then() {
    let (mut rig, connections) = full_of_broken_views();
    for number in 11..14 {
        rig.offer(connections[1], snapshot(number), 900, BUDGET_BYTES / planned_bytes(1) + 1);
        rig.pass(30_000);
    }
    assert_eq!(
        (answers(&rig, connections[1]), hints(&rig)),
        (vec![0, 30_000, 30_000, 30_000], vec![true; 3])
    );
}

#[test]
fn a_view_that_may_go_on_where_it_was_is_not_given_up() {
    let (mut rig, connections) = full_of_broken_views();
    let [a, b, c] = connections[..] else { unreachable!() };
    // Of these two no more is known than that they are unreachable.
    for (number, connection) in [(21, a), (22, c)] {
        rig.bootstrap(connection, snapshot(number), 900, &rows(u64::from(number) - 20, 100));
        rig.room.on_closed(connection, 0, rig.now);
    }
    let needed_bytes = planned_bytes(420);
    assert!(rig.partition.free_bytes_without(200) < needed_bytes);
    assert!(needed_bytes < rig.partition.free_bytes_without(400));
    for number in 11..14 {
        rig.offer(b, snapshot(number), 900, 420);
        rig.pass(30_000);
    }
    assert_eq!(answers(&rig, b), [0, 30_000, 30_000, 30_000]);
    assert_eq!(rig.room.figures().views_withdrawn, 0);
}

#[test]
fn nothing_is_given_up_while_a_snapshot_is_on_its_way() {
    let (mut rig, connections) = full_of_broken_views();
    let [_, b, c] = connections[..] else { unreachable!() };
    rig.offer(b, snapshot(11), 900, 300);
    rig.pass(30_000);
    // A wish first, then what was wished for.
    rig.offer(c, snapshot(12), 500, 20);
    rig.offer(b, snapshot(13), 900, 300);
    assert_eq!((answers(&rig, b), hints(&rig)), (vec![0, 30_000], vec![true; 3]));
    rig.grant();
    assert_eq!((answers(&rig, b), hints(&rig)), (vec![0, 30_000], vec![true; 3]));
    fill(&mut rig, c, snapshot(12), &rows(3, 20));
    // With the room that came back it fits in place of its own view.
    assert_eq!((answers(&rig, b), hints(&rig)), (vec![0, 30_000, 100], vec![true, false, true]));
    rig.bootstrap(b, snapshot(14), 900, &rows(2, 300));
    assert_eq!((hints(&rig), rig.room.figures().views_withdrawn), (vec![true; 3], 1));
}

/// A session whose offer was refused, and whose source sends all of it nevertheless.
fn refused_and_sent() -> (Rig, ConnectionId) {
    let (mut rig, connections) = members(&["a"]);
    let a = connections[0];
    rig.offer(a, snapshot(1), 500, 10_000);
    assert_eq!(answers(&rig, a), [30_000]);
    let bodies = [page_body(snapshot(1), 0, &rows(1, 5)), delta_body(500, 510, &[put(10_050, 505)])];
    bodies.iter().for_each(|body| rig.send(a, 510, body));
    rig.say(a, 520, &FromSource::Progress { through: Sequence(520) });
    rig.commit(a, snapshot(1), 520, &bodies);
    rig.delta(a, 520, 521, &[put(10_051, 521)]);
    rig.pass(10);
    rig.run();
    let mut credit = rig.link(a).heard.iter().filter_map(|said| match said {
        FromRequester::Ack { consumed_frame, view, applied } => Some((*consumed_frame, *view, applied.0)),
        _ => None,
    });
    assert_eq!(credit.next_back(), Some((6, SnapshotId([0; 16]), 0)), "its credit is given back");
    assert_eq!((rig.closed(a), rig.room.figures().frames_discarded), (None, 5), "the session goes on");
    assert_eq!((rig.standing(), rig.partition.accounting().rows), (Standing::NoneInstalled, 0));
    assert_eq!(rig.namespaces.len(), 0);
    (rig, a)
}

#[test]
fn what_comes_of_a_refused_snapshot_is_discarded_until_the_next_offer() {
    let (mut rig, a) = refused_and_sent();
    rig.pass(30_000);
    rig.bootstrap(a, snapshot(2), 521, &rows(1, 5));
    assert_eq!((rig.standing(), rig.found(10_001), rig.found(10_050)), (Standing::Complete, vec![1], vec![]));
    rig.delta(a, 521, 522, &[put(10_052, 522)]);
    assert_eq!((rig.found(10_052), rig.room.figures().frames_discarded), (vec![522], 5));
}

#[test]
fn what_comes_after_a_reset_belongs_to_no_refused_snapshot() {
    let (mut rig, a) = refused_and_sent();
    rig.say(a, 521, &FromSource::ResetRequired { cause: ResetCause::HistoryGone });
    rig.send(a, 521, &page_body(snapshot(1), 0, &rows(1, 5)));
    assert_eq!((rig.closed(a), rig.partition.accounting().rows), (Some("unexpected"), 0));
}
