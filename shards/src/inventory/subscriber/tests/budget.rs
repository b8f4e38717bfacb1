//! When there is no room: nothing is half done, nothing is tried in a loop.

use orbitkv_wire::identity::{GroupId, Medium, NamespaceDigest, Sequence, SnapshotId};
use orbitkv_wire::inventory::{ChangesWriter, FromRequester, FromSource, ResetCause, WireChange};
use orbitkv_wire::scope::Scope;

use super::rig::*;
use crate::coverage::Standing;
use crate::inventory::ConnectionId;
use crate::inventory::subscriber::snapshot::planned_bytes;

fn snapshot(number: u8) -> SnapshotId {
    SnapshotId([number; 16])
}

fn refusals(rig: &Rig, connection: ConnectionId) -> Vec<u32> {
    let heard = rig.link(connection).heard.iter();
    let waits = heard.filter_map(|said| match said {
        FromRequester::SnapshotRefuse { retry_after_ms, .. } => Some(*retry_after_ms),
        _ => None,
    });
    waits.collect()
}

/// A room whose partition holds one table, with one member connected.
fn small(budget_bytes: u64) -> (Rig, ConnectionId) {
    let mut rig = Rig::with(SETTINGS(), budget_bytes, Scope::All);
    rig.members(1, &[member("a", 1)]);
    let connection = rig.connect();
    (rig, connection)
}

fn rows(count: u64) -> Vec<Said> {
    (1..=count).map(|key| put(key, key)).collect()
}

const BUDGET_BYTES: u64 = 48 << 10;

#[test]
fn what_is_too_large_is_refused_and_not_asked_for_again_in_a_loop() {
    let (mut rig, connection) = small(BUDGET_BYTES);
    rig.offer(connection, snapshot(1), 10, 10_000);
    assert_eq!(refusals(&rig, connection), [30_000]);
    assert!(rig.wishes.is_empty(), "no permit is taken for it");
    // Within thirty seconds even what would fit is put off.
    rig.pass(10_000);
    rig.offer(connection, snapshot(2), 10, 5);
    assert_eq!(refusals(&rig, connection), [30_000, 20_000]);
    // After that, what has not changed is not tried; another estimate is.
    rig.pass(20_000);
    rig.offer(connection, snapshot(3), 10, 10_000);
    assert_eq!(refusals(&rig, connection), [30_000, 20_000, 30_000]);
    rig.bootstrap(connection, snapshot(4), 10, &rows(5));
    assert_eq!(rig.standing(), Standing::Complete);
}

#[test]
fn an_owner_is_withdrawn_and_swept_if_its_successor_fits_only_in_its_place() {
    let (mut rig, connection) = small(BUDGET_BYTES);
    rig.bootstrap(connection, snapshot(1), 400, &rows(300));
    assert_eq!(rig.standing(), Standing::Complete);
    rig.say(connection, 900, &FromSource::ResetRequired { cause: ResetCause::SlowSubscriber });
    assert_eq!(rig.found(7), [7], "hints stay during repair");
    let free_bytes = rig.partition.free_bytes();
    assert!(planned_bytes(400) > free_bytes);
    rig.offer(connection, snapshot(2), 900, 400);
    assert_eq!(refusals(&rig, connection), [100]);
    assert!(rig.found(7).is_empty(), "withdrawn");
    assert_eq!((rig.standing(), rig.applied("a", 1)), (Standing::NoneInstalled, None));
    assert_eq!(rig.partition.accounting().rows, 0, "released before the rebuild");
    // A membership refresh does not make it active again, nor does a reconnect.
    rig.members(2, &[member("a", 1)]);
    assert!(rig.found(7).is_empty());
    rig.room.on_closed(connection, 0, rig.now);
    let connection = rig.reconnect();
    assert_eq!(rig.link(connection).open.resume, None);
    rig.members(3, &[member("a", 1), member("b", 1)]);
    assert_eq!(rig.standing(), Standing::NoneInstalled);
    rig.bootstrap(connection, snapshot(3), 900, &rows(400));
    assert_eq!((rig.found(7), rig.applied("a", 1)), (vec![7], Some(900)));
    assert_eq!(rig.room.figures().views_withdrawn, 1);
}

#[test]
fn an_owner_whose_successor_fits_in_no_case_keeps_its_hints() {
    let (mut rig, connection) = small(BUDGET_BYTES);
    rig.bootstrap(connection, snapshot(1), 400, &rows(300));
    rig.say(connection, 900, &FromSource::ResetRequired { cause: ResetCause::SlowSubscriber });
    rig.offer(connection, snapshot(2), 900, 10_000);
    assert_eq!((refusals(&rig, connection), rig.found(7)), (vec![30_000], vec![7]));
    assert_eq!(rig.standing(), Standing::Partial);
}

#[test]
fn a_delta_without_room_applies_nothing_and_the_view_stays_for_hints() {
    let (mut rig, connection) = small(BUDGET_BYTES);
    rig.bootstrap(connection, snapshot(1), 300, &rows(300));
    let mut sequence = 300;
    while rig.closed(connection).is_none() {
        assert!(sequence < 2_000);
        let changes: Vec<_> = (1..=20).map(|number| put(sequence + number, sequence + number)).collect();
        rig.delta(connection, sequence, sequence + 20, &changes);
        sequence += 20;
    }
    assert_eq!(rig.closed(connection), Some("budget"));
    sequence -= 20;
    assert_eq!((rig.applied("a", 1), rig.standing()), (Some(sequence), Standing::Partial));
    assert_eq!(rig.partition.accounting().rows, sequence);
    assert!((1..=sequence).all(|key| rig.found(key) == [key]), "hints");
    assert!((1..=20).all(|number| rig.found(sequence + number).is_empty()), "nothing of the frame");
    // It is not asked to go on into the same wall, and its snapshot is put off.
    let again = rig.reconnect();
    assert_eq!(rig.link(again).open.resume, None);
    rig.offer(again, snapshot(2), sequence + 20, sequence + 20);
    assert!(refusals(&rig, again)[0] > 20_000);
    assert_eq!(rig.found(1), [1]);
    // After that its successor, smaller by now, takes its place.
    rig.pass(30_000);
    rig.offer(again, snapshot(3), sequence + 30, 200);
    assert_eq!((refusals(&rig, again)[1], rig.found(1)), (100, vec![]));
    rig.bootstrap(again, snapshot(4), sequence + 30, &rows(200));
    assert_eq!((rig.standing(), rig.found(200), rig.found(201)), (Standing::Complete, vec![200], vec![]));
}

#[test]
fn what_failed_beside_the_old_view_is_tried_in_its_place_and_not_beside_it_again() {
    let (mut rig, connection) = small(BUDGET_BYTES);
    rig.bootstrap(connection, snapshot(1), 600, &rows(300));
    rig.members(2, &[member("a", 1), member("b", 1)]);
    let other = rig.connect();
    rig.bootstrap(other, snapshot(2), 0, &[]);
    let free_rows = rig.partition.free_bytes() / planned_bytes(1);
    rig.say(connection, 900, &FromSource::ResetRequired { cause: ResetCause::SlowSubscriber });
    // By the estimate it fits, but then the other takes the room.
    rig.offer(connection, snapshot(3), 900, free_rows);
    rig.grant();
    let mut sequence = 0;
    while rig.partition.free_bytes() > 12_000 {
        let changes: Vec<_> = (1..=10).map(|step| put(2_000 + sequence + step, sequence + step)).collect();
        rig.delta(other, sequence, sequence + 10, &changes);
        sequence += 10;
    }
    rig.send(connection, 900, &page_body(snapshot(3), 0, &rows(free_rows)));
    assert_eq!((rig.closed(connection), rig.found(1)), (Some("budget"), vec![1]));
    // The room is there again, no more than before.
    let deletes: Vec<_> = (1..=sequence).map(|step| delete(2_000 + step, sequence + step)).collect();
    rig.delta(other, sequence, 2 * sequence, &deletes);
    let connection = rig.reconnect();
    rig.pass(30_000);
    rig.offer(connection, snapshot(4), 900, free_rows);
    assert_eq!((refusals(&rig, connection), rig.found(1)), (vec![100], vec![]), "the old view made room");
    rig.bootstrap(connection, snapshot(5), 900, &rows(free_rows));
    assert_eq!((rig.found(1), rig.applied("a", 1)), (vec![1], Some(900)));
}

#[test]
fn a_staging_without_room_is_dropped_whole() {
    let (mut rig, connection) = small(BUDGET_BYTES);
    // Planned with 88 bytes a row it fits, but the other's deltas take the room.
    rig.offer(connection, snapshot(1), 10, 400);
    rig.grant();
    rig.members(2, &[member("a", 1), member("b", 1)]);
    let other = rig.connect();
    rig.bootstrap(other, snapshot(2), 10, &[]);
    for number in 0..20 {
        let first = 1_000 + number * 20;
        let changes: Vec<_> = (0..20).map(|step| put(first + step, 11 + number * 20 + step)).collect();
        rig.delta(other, 10 + number * 20, 30 + number * 20, &changes);
    }
    assert_eq!(rig.closed(other), None);
    let mut number = 0;
    while rig.closed(connection).is_none() {
        let first = u64::from(number) * 20 + 1;
        let page: Vec<_> = (first..first + 20).map(|key| put(key, key)).collect();
        rig.send(connection, 500, &page_body(snapshot(1), number, &page));
        number += 1;
    }
    assert_eq!(rig.closed(connection), Some("budget"));
    assert_eq!(rig.partition.accounting().rows, 400, "the other's rows only");
    assert_eq!(rig.returned.len(), rig.wishes.len());
    assert_eq!(rig.standing(), Standing::Partial);
}

#[test]
fn a_namespace_too_many_is_refused_by_name_and_nothing_of_its_frame_is_applied() {
    let (mut rig, connection) = Rig::live(10, &[put(1, 5)]);
    let namespace = |number: u8| NamespaceDigest([100 + number; 32]);
    let said = |sequence| vec![put(1, sequence)];
    let body = |number: u64, changes: &[Said]| {
        changes_body(
            |writer| writer.delta(Sequence(10 + number), Sequence(11 + number)),
            namespace(number as u8),
            changes,
        )
    };
    for number in 0..3 {
        rig.send(connection, 20, &body(number, &said(11 + number)));
    }
    // The other half of the table is for what this node's own engines save.
    assert_eq!((rig.namespaces.room(), rig.applied("a", 1)), (4, Some(13)));
    // What ends in a namespace of which nothing was heard needs no number.
    rig.send(connection, 20, &body(3, &[delete(1, 14)]));
    assert_eq!((rig.closed(connection), rig.applied("a", 1)), (None, Some(14)));
    rig.send(connection, 20, &body(4, &said(15)));
    assert_eq!(rig.closed(connection), Some("namespaces"));
    assert_eq!((rig.applied("a", 1), rig.standing(), rig.found(1)), (Some(14), Standing::Partial, vec![5]));
}

#[test]
fn namespaces_of_a_frame_are_interned_all_or_none() {
    let (mut rig, connection) = Rig::live(10, &[]);
    let mut writer = ChangesWriter::new(1 << 16);
    writer.delta(Sequence(10), Sequence(19));
    for number in 1..=9u8 {
        let (namespace, change) = (NamespaceDigest([number; 32]), WireChange::Put { bytes: 1 });
        let sequence = Sequence(10 + u64::from(number));
        writer.push(&namespace, GroupId(0), &block(1), Medium::Dram, change, sequence).unwrap();
    }
    rig.send(connection, 19, &writer.finish());
    assert_eq!((rig.closed(connection), rig.namespaces.len()), (Some("namespaces"), 0));
    assert_eq!(rig.partition.accounting().rows, 0);
}
