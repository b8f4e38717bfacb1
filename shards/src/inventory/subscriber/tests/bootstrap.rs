//! Snapshots: hidden until they are whole, whole or not at all.

use orbitkv_wire::identity::{Sequence, SnapshotId};
use orbitkv_wire::inventory::{Body, FromRequester, FromSource, ResetCause, Transcript, TranscriptDigest};

use super::rig::*;
use crate::coverage::Standing;
use crate::inventory::ConnectionId;

const OTHER: SnapshotId = SnapshotId([8; 16]);

fn opened() -> (Rig, ConnectionId) {
    let mut rig = Rig::new();
    rig.members(1, &[member("a", 1)]);
    let connection = rig.connect();
    (rig, connection)
}

fn accepted(rows_max: u64) -> (Rig, ConnectionId) {
    let (mut rig, connection) = opened();
    rig.offer(connection, SNAPSHOT, 10, rows_max);
    rig.grant();
    (rig, connection)
}

#[test]
fn nothing_is_shown_before_the_commit_and_everything_after_it() {
    let (mut rig, connection) = opened();
    assert_eq!(rig.link(connection).open.resume, None);
    rig.say(connection, 10, &FromSource::SnapshotQueued { position: 3 });
    rig.offer(connection, SNAPSHOT, 10, 3);
    assert!(rig.link(connection).heard.is_empty(), "nothing is said before the permit");
    rig.grant();
    assert_eq!(rig.link(connection).heard, [FromRequester::SnapshotAccept { snapshot: SNAPSHOT }]);
    let bodies = [
        page_body(SNAPSHOT, 0, &[put(1, 4)]),
        page_body(SNAPSHOT, 1, &[put(2, 2), put(3, 11)]),
        delta_body(10, 11, &[put(3, 11)]),
        delta_body(11, 13, &[delete(1, 12), put(4, 13)]),
    ];
    for body in &bodies {
        rig.send(connection, 13, body);
        assert_eq!(rig.standing(), Standing::NoneInstalled);
        assert!((0..9).all(|key| rig.look(key).is_empty()));
        assert_eq!(rig.applied("a", 1), None);
    }
    rig.commit(connection, SNAPSHOT, 13, &bodies);
    assert_eq!((rig.standing(), rig.applied("a", 1)), (Standing::Complete, Some(13)));
    let found: Vec<_> = (0..5).map(|key| rig.found(key)).collect();
    assert_eq!(found, [vec![], vec![], vec![2], vec![11], vec![13]]);
    assert_eq!(rig.returned, rig.wishes, "the permit went back");
    rig.delta(connection, 13, 14, &[delete(4, 14)]);
    assert!(rig.found(4).is_empty());
}

#[test]
fn an_empty_view_is_not_the_same_as_no_answer() {
    let (mut rig, connection) = opened();
    assert_eq!(rig.standing(), Standing::NoneInstalled);
    rig.bootstrap(connection, SNAPSHOT, 10, &[]);
    assert_eq!((rig.standing(), rig.applied("a", 1)), (Standing::Complete, Some(10)));
}

#[test]
fn a_replay_does_not_undo_what_the_scan_saw_later() {
    // Key 1 was put, deleted and put again while the scan ran, which saw the last.
    let (mut rig, connection) = accepted(1);
    let bodies = [
        page_body(SNAPSHOT, 0, &[put(1, 17)]),
        delta_body(10, 14, &[delete(1, 12)]),
        delta_body(14, 17, &[put(1, 17)]),
    ];
    bodies.iter().for_each(|body| rig.send(connection, 17, body));
    rig.commit(connection, SNAPSHOT, 17, &bodies);
    assert_eq!(rig.found(1), [17]);
}

#[test]
fn a_snapshot_that_is_not_whole_is_never_installed() {
    struct Claim {
        snapshot: SnapshotId,
        through: u64,
        pages: u32,
        sent: usize,
    }
    let bodies = [
        page_body(SNAPSHOT, 0, &[put(1, 12)]),
        page_body(SNAPSHOT, 1, &[put(2, 3)]),
        delta_body(10, 12, &[]),
    ];
    let whole = Claim { snapshot: SNAPSHOT, through: 12, pages: 2, sent: 3 };
    let table = [
        ("whole", Claim { ..whole }, true),
        ("another", Claim { snapshot: OTHER, ..whole }, false),
        ("a page too many claimed", Claim { pages: 3, ..whole }, false),
        ("the replay ends early", Claim { through: 11, ..whole }, false),
        ("the replay ends late", Claim { through: 13, ..whole }, false),
        ("the replay is not sent, and the scan is newer", Claim { through: 10, sent: 2, ..whole }, false),
        ("a page is not sent", Claim { sent: 1, ..whole }, false),
    ];
    for (what, Claim { snapshot, through, pages, sent }, installs) in table {
        let (mut rig, connection) = accepted(5);
        let mut transcript = Transcript::new(SNAPSHOT);
        for body in &bodies[..sent] {
            rig.send(connection, 20, body);
            transcript.absorb(&body.bytes);
        }
        let (digest, through) = (transcript.digest(), Sequence(through));
        rig.say(connection, 20, &FromSource::SnapshotCommit { snapshot, through, pages, digest });
        assert_eq!(rig.closed(connection), (!installs).then_some("snapshot"), "{what}");
        assert_eq!(rig.applied("a", 1).is_some(), installs, "{what}");
        assert_eq!(rig.partition.accounting().rows, if installs { 2 } else { 0 }, "{what}");
        assert_eq!(rig.returned, rig.wishes, "{what}");
    }
    let (mut rig, connection) = accepted(5);
    bodies.iter().for_each(|body| rig.send(connection, 12, body));
    let (through, digest) = (Sequence(12), TranscriptDigest([0; 16]));
    rig.say(connection, 12, &FromSource::SnapshotCommit { snapshot: SNAPSHOT, through, pages: 2, digest });
    assert_eq!((rig.closed(connection), rig.applied("a", 1)), (Some("snapshot"), None), "another digest");
}

#[test]
fn pages_and_replays_come_once_in_order_and_pages_first() {
    let page = |number, key| page_body(SNAPSHOT, number, &[put(key, key)]);
    let table: Vec<(&str, Vec<Body>, &str)> = vec![
        ("a page is skipped", vec![page(0, 1), page(2, 2)], "snapshot"),
        ("a page repeats", vec![page(0, 1), page(0, 2)], "snapshot"),
        ("a page of another", vec![page_body(OTHER, 0, &[put(1, 1)])], "snapshot"),
        ("a page after the replay", vec![page(0, 1), delta_body(10, 11, &[]), page(1, 2)], "snapshot"),
        (
            "more rows than offered",
            vec![page_body(SNAPSHOT, 0, &(1..8).map(|k| put(k, k)).collect::<Vec<_>>())],
            "snapshot",
        ),
        ("a hole before the replay", vec![page(0, 1), delta_body(11, 12, &[])], "not_contiguous"),
        ("the replay goes back", vec![delta_body(10, 12, &[]), delta_body(11, 13, &[])], "not_contiguous"),
        ("one sequence twice", vec![page(0, 1), page_body(SNAPSHOT, 1, &[put(2, 1)])], "sequence_conflict"),
        ("one residence twice", vec![page(0, 1), page_body(SNAPSHOT, 1, &[put(1, 2)])], "snapshot"),
        (
            "the replay names a scanned sequence otherwise",
            vec![page_body(SNAPSHOT, 0, &[put(1, 11)]), delta_body(10, 12, &[put(2, 11)])],
            "sequence_conflict",
        ),
        (
            "the replay ends what began at its sequence",
            vec![page_body(SNAPSHOT, 0, &[put(1, 11)]), delta_body(10, 12, &[delete(1, 11)])],
            "sequence_conflict",
        ),
    ];
    for (what, bodies, cause) in table {
        let (mut rig, connection) = accepted(5);
        bodies.iter().for_each(|body| rig.send(connection, 20, body));
        assert_eq!(rig.closed(connection), Some(cause), "{what}");
        assert_eq!((rig.partition.accounting().rows, rig.standing()), (0, Standing::NoneInstalled), "{what}");
        assert_eq!(rig.returned, rig.wishes, "{what}");
    }
}

#[test]
fn a_newer_offer_replaces_what_was_offered_or_accepted() {
    for granted in [false, true] {
        let (mut rig, connection) = opened();
        rig.offer(connection, SNAPSHOT, 10, 5);
        if granted {
            rig.grant();
            rig.send(connection, 10, &page_body(SNAPSHOT, 0, &[put(1, 1)]));
        }
        rig.bootstrap(connection, OTHER, 12, &[put(2, 2)]);
        assert_eq!((rig.found(1), rig.found(2)), (vec![], vec![2]));
        assert_eq!((rig.wishes.len(), rig.returned.len()), (2, 2));
        assert_eq!(rig.partition.accounting().rows, 1, "the older staging is gone");
        // A permit for what was replaced comes late.
        rig.room.on_permit(rig.wishes[0], rig.now);
        rig.run();
        assert_eq!(rig.standing(), Standing::Complete);
    }
}

#[test]
fn a_permit_ends_with_reset_session_and_five_seconds_without_a_page() {
    let (mut rig, connection) = accepted(5);
    rig.say(connection, 10, &FromSource::ResetRequired { cause: ResetCause::Overload });
    assert_eq!((rig.returned.len(), rig.closed(connection)), (1, None));

    let (mut rig, connection) = accepted(5);
    rig.room.on_closed(connection, 0, rig.now);
    rig.run();
    assert_eq!(rig.returned, rig.wishes);

    let (mut rig, connection) = accepted(5);
    for number in 0..3 {
        rig.pass(4_999);
        rig.beat(connection, 10);
        assert_eq!(rig.closed(connection), None);
        rig.send(
            connection,
            10,
            &page_body(SNAPSHOT, number, &[put(u64::from(number) + 1, u64::from(number) + 1)]),
        );
    }
    rig.pass(5_000);
    rig.beat(connection, 10);
    assert_eq!((rig.closed(connection), &rig.returned), (Some("page_timeout"), &rig.wishes));
    assert_eq!(rig.partition.accounting().rows, 0);
    let again = rig.reconnect();
    rig.bootstrap(again, OTHER, 10, &[]);
    assert_eq!(rig.standing(), Standing::Complete);
}

#[test]
fn a_history_gap_keeps_old_rows_for_hints_until_the_new_view_takes_their_place() {
    let (mut rig, connection) = Rig::live(10, &[put(1, 5), put(2, 6)]);
    rig.say(connection, 90, &FromSource::ResetRequired { cause: ResetCause::HistoryGone });
    assert_eq!((rig.standing(), rig.found(1)), (Standing::Partial, vec![5]));
    rig.offer(connection, OTHER, 90, 5);
    rig.grant();
    let bodies = [page_body(OTHER, 0, &[put(2, 6), put(3, 80)]), delta_body(90, 91, &[])];
    bodies.iter().for_each(|body| rig.send(connection, 91, body));
    // The old rows at the old watermark, none of the new.
    assert_eq!((rig.found(1), rig.found(2), rig.found(3)), (vec![5], vec![6], vec![]));
    assert_eq!((rig.standing(), rig.applied("a", 1)), (Standing::Partial, Some(10)));
    rig.commit(connection, OTHER, 91, &bodies);
    assert_eq!((rig.found(1), rig.found(2), rig.found(3)), (vec![], vec![6], vec![80]));
    assert_eq!((rig.standing(), rig.applied("a", 1)), (Standing::Complete, Some(91)));
    let figures = rig.room.figures();
    assert_eq!((figures.bootstraps.count, figures.repairs.count), (1, 1));
    assert_eq!(figures.resets[&ResetCause::HistoryGone], 1);
}

#[test]
fn a_lost_commit_costs_a_new_snapshot_and_shows_nothing_of_the_first() {
    let (mut rig, connection) = accepted(5);
    rig.send(connection, 10, &page_body(SNAPSHOT, 0, &[put(1, 1)]));
    rig.room.on_closed(connection, 0, rig.now);
    let again = rig.reconnect();
    assert_eq!(rig.link(again).open.resume, None);
    assert!(rig.found(1).is_empty());
    rig.bootstrap(again, OTHER, 12, &[put(2, 2)]);
    assert_eq!((rig.found(1), rig.found(2)), (vec![], vec![2]));
}

#[test]
fn replayed_intervals_may_be_empty_of_this_scope() {
    let (mut rig, connection) = accepted(1);
    let page = page_body(SNAPSHOT, 0, &[put(1, 1)]);
    rig.send(connection, 10, &page);
    rig.say(connection, 12, &FromSource::Progress { through: Sequence(12) });
    let replay = delta_body(12, 13, &[put(2, 13)]);
    rig.send(connection, 13, &replay);
    rig.commit(connection, SNAPSHOT, 13, &[page, replay]);
    assert_eq!((rig.found(1), rig.found(2), rig.applied("a", 1)), (vec![1], vec![13], Some(13)));
}
