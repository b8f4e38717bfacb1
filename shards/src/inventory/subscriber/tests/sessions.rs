//! Dials, numbers, the window, ACKs, and frames that nobody should look into.

use std::time::Duration;

use orbitkv_wire::bounds::INVENTORY_FRAME_BYTES_MIN;
use orbitkv_wire::identity::{Incarnation, Sequence, ShardIndex, SnapshotId};
use orbitkv_wire::inventory::{
    FromRequester, FromSource, OpenRefusal, ResetCause, ResourceSummary, SourceStream,
};
use orbitkv_wire::scope::Scope;

use super::rig::*;
use crate::coverage::{Standing, Unavailable};
use crate::flow::pressure::UNMEASURED;
use crate::inventory::subscriber::dialing::pause;
use crate::inventory::subscriber::*;
use crate::members::Member;

#[test]
fn pauses_grow_with_failures_between_their_bounds_and_are_spread() {
    let settings = SubscriberSettings::default();
    let of = |failures, jitter| pause(&settings, failures, jitter).as_millis();
    assert_eq!((of(0, 0), of(0, 50_000_000), of(0, 100_000_000)), (100, 150, 200));
    for failures in 0..40 {
        for jitter in [0, 1, u64::MAX / 2, u64::MAX] {
            assert!((100..=3_000).contains(&of(failures, jitter)));
        }
    }
    assert_eq!(of(39, 2_900_000_000), 3_000);
}

#[test]
fn at_most_eight_dials_are_pending_and_each_answer_lets_another_go() {
    let mut rig = Rig::new();
    let members: Vec<_> = (0..20).map(|number| member(&format!("n{number:02}"), 1)).collect();
    rig.members(1, &members);
    assert_eq!((rig.dials.len(), rig.room.dials_pending()), (8, 8));
    let failed = rig.dials.remove(0);
    rig.room.on_dial_failed(failed, 0, rig.now);
    rig.connect();
    rig.run();
    assert_eq!((rig.dials.len(), rig.room.dials_pending()), (8, 8));
    // An answer for a member that has left counts, too, and its connection is not wanted.
    rig.members(2, &members[..1]);
    assert!(rig.room.dials_pending() == 8);
    let stream = *rig.dials.last().unwrap();
    rig.room.on_connected(stream, ConnectionId(99), orbitkv_wire::identity::SessionId([0; 16]), rig.now);
    assert_eq!(rig.room.dials_pending(), 7);
    let close = SubscriberEffect::Close { connection: ConnectionId(99), cause: CloseCause::NotWanted };
    assert_eq!(rig.room.poll_effect(), Some(close));
}

#[test]
fn a_stream_is_dialed_again_after_its_pause_and_not_before() {
    let mut rig = Rig::new();
    rig.members(1, &[member("a", 1)]);
    let stream = rig.dials.remove(0);
    rig.room.on_dial_failed(stream, 0, rig.now);
    rig.run();
    assert_eq!(rig.room.next_deadline(), Some(rig.now + Duration::from_millis(100)));
    rig.pass(99);
    rig.run();
    assert!(rig.dials.is_empty());
    rig.pass(1);
    rig.run();
    assert_eq!(rig.dials, [stream]);
}

#[test]
fn frames_are_numbered_one_by_one() {
    for skipped in [0, 2] {
        let (mut rig, connection) = Rig::live(10, &[]);
        let bytes = rig.frame(connection, 11, &delta_body(10, 11, &[put(1, 11)]));
        if skipped == 0 {
            rig.send_bytes(connection, &bytes);
            rig.send_bytes(connection, &bytes);
            assert_eq!(rig.applied("a", 1), Some(11));
        } else {
            rig.frame(connection, 11, &delta_body(10, 11, &[]));
            rig.delta(connection, 10, 11, &[put(1, 11)]);
            assert_eq!(rig.applied("a", 1), Some(10));
        }
        assert_eq!(rig.closed(connection), Some("frame_number"));
    }
}

#[test]
fn a_frame_of_another_session_changes_nothing() {
    let (mut rig, old) = Rig::live(10, &[put(1, 5)]);
    let late = rig.frame(old, 11, &delta_body(10, 11, &[delete(1, 11)]));
    rig.room.on_closed(old, 0, rig.now);
    let new = rig.reconnect();
    // Late on its own connection, and in the wrong place on the new one.
    for connection in [old, new] {
        rig.send_bytes(connection, &late);
        assert_eq!((rig.found(1), rig.applied("a", 1)), (vec![5], Some(10)));
    }
    assert_eq!(rig.closed(new), None);
    assert_eq!(rig.room.figures().late_frames, 2);
    let resume = rig.link(new).open.resume.unwrap();
    rig.say(new, 10, &FromSource::Resumed { view: resume.view, sequence: resume.sequence });
    assert_eq!(rig.standing(), Standing::Complete, "the new session goes on");
}

#[test]
fn bytes_that_are_no_frame_end_the_session_and_change_nothing() {
    let good = |rig: &mut Rig, connection| rig.frame(connection, 11, &delta_body(10, 11, &[delete(1, 11)]));
    type Damage<'a> = &'a dyn Fn(&mut Vec<u8>);
    let table: [(&str, Damage<'_>); 5] = [
        ("cut", &|bytes| bytes.truncate(bytes.len() - 1)),
        ("longer", &|bytes| bytes.push(0)),
        ("kind", &|bytes| bytes[4] = 99),
        ("effect", &|bytes| *bytes.iter_mut().nth_back(12).unwrap() = 9),
        ("length", &|bytes| bytes[..4].copy_from_slice(&u32::MAX.to_le_bytes())),
    ];
    for (what, damage) in table {
        let (mut rig, connection) = Rig::live(10, &[put(1, 5)]);
        let mut bytes = good(&mut rig, connection);
        damage(&mut bytes);
        rig.send_bytes(connection, &bytes);
        assert_eq!(rig.closed(connection), Some("bad_frame"), "{what}");
        assert_eq!((rig.found(1), rig.applied("a", 1)), (vec![5], Some(10)), "{what}");
    }
}

#[test]
fn an_ack_leaves_at_once_but_not_twice_in_ten_milliseconds_and_an_idle_session_sends_none() {
    let (mut rig, connection) = Rig::live(10, &[put(1, 5)]);
    rig.pass(20);
    rig.run();
    let acks = |rig: &Rig| {
        let heard = rig.link(connection).heard.iter();
        heard.filter(|said| matches!(said, FromRequester::Ack { .. })).copied().collect::<Vec<_>>()
    };
    let none = SnapshotId([0; 16]);
    let page = FromRequester::Ack { consumed_frame: 2, view: none, applied: Sequence(0) };
    let commit = FromRequester::Ack { consumed_frame: 3, view: SNAPSHOT, applied: Sequence(10) };
    assert_eq!(acks(&rig), [page, commit], "the offer with the page, the commit after a rest");
    rig.pass(10);
    rig.delta(connection, 10, 11, &[put(2, 11)]);
    rig.run();
    assert_eq!(
        acks(&rig)[2],
        FromRequester::Ack { consumed_frame: 4, view: SNAPSHOT, applied: Sequence(11) }
    );
    // What follows closely waits, and all of it goes together.
    let rests_until = rig.now + Duration::from_millis(10);
    rig.pass(4);
    rig.delta(connection, 11, 12, &[put(3, 12)]);
    rig.beat(connection, 12);
    assert_eq!(rig.room.next_deadline(), Some(rests_until));
    rig.delta(connection, 12, 13, &[put(4, 13)]);
    rig.pass(5);
    rig.run();
    assert_eq!(acks(&rig).len(), 3);
    rig.pass(1);
    rig.run();
    assert_eq!(
        acks(&rig)[3],
        FromRequester::Ack { consumed_frame: 7, view: SNAPSHOT, applied: Sequence(13) }
    );
    for _ in 0..10 {
        rig.pass(1_000);
        rig.beat(connection, 13);
    }
    assert_eq!(acks(&rig).len(), 4, "a beat is no progress");
    assert_eq!(rig.room.next_deadline(), None);
}

#[test]
fn a_member_is_heard_while_a_view_of_it_is_fresh_or_on_its_way() {
    let mut rig = Rig::new();
    let hears = |rig: &Rig, name| rig.room.hears(node(name), rig.now);
    rig.members(1, &[member("a", 1)]);
    assert!(!hears(&rig, "a"), "nobody has answered yet");
    let connection = rig.connect();
    rig.pass(20_000);
    assert!(hears(&rig, "a"), "there is no view yet, and somebody who is to send it");
    rig.bootstrap(connection, SNAPSHOT, 10, &[put(1, 5)]);
    rig.pass(5_000);
    assert!(hears(&rig, "a"));
    rig.pass(1);
    assert!(!hears(&rig, "a"), "as old as proves no absence");
    rig.beat(connection, 10);
    assert!(hears(&rig, "a"));
    assert!(!hears(&rig, "b"), "no member");
}

#[test]
fn what_a_source_says_of_how_busy_it_is_counts_for_its_life_and_for_five_seconds() {
    let (mut rig, connection) = Rig::live(10, &[put(1, 5)]);
    let summary = |reads_queued| ResourceSummary { reads_queued, window_ms: 1_000, ..UNMEASURED };
    let seconds = |seconds| Duration::from_secs(seconds);
    let of = |life| {
        let Member { node, epoch, incarnation, .. } = member("a", life);
        SourceStream { node, epoch, incarnation, shard: ShardIndex(0) }
    };
    rig.say(connection, 10, &FromSource::Liveness { summary: UNMEASURED });
    assert_eq!(rig.room.summary_of(&of(1), rig.now), None);
    rig.say(connection, 10, &FromSource::Liveness { summary: summary(3) });
    rig.pass(2_000);
    assert_eq!(rig.room.summary_of(&of(1), rig.now), Some((summary(3), seconds(2))));
    assert_eq!(rig.room.view_age(&of(1), rig.now), Some(seconds(2)));
    // It says so elsewhere, too; of other lives and shards nothing is known, whatever is said of them.
    rig.room.on_summary(&of(1), summary(4), rig.now);
    for stranger in [of(2), SourceStream { shard: ShardIndex(1), ..of(1) }] {
        rig.room.on_summary(&stranger, summary(5), rig.now);
        assert_eq!(
            (rig.room.summary_of(&stranger, rig.now), rig.room.view_age(&stranger, rig.now)),
            (None, None)
        );
    }
    rig.pass(5_000);
    assert_eq!(rig.room.summary_of(&of(1), rig.now), Some((summary(4), seconds(5))));
    assert_eq!(rig.room.view_age(&of(1), rig.now), Some(seconds(7)), "that was no word of its inventory");
    rig.pass(1);
    assert_eq!(rig.room.summary_of(&of(1), rig.now), None, "too long ago to say anything");
    rig.members(2, &[member("a", 2)]);
    rig.room.on_summary(&of(1), summary(6), rig.now);
    assert_eq!(rig.room.summary_of(&of(1), rig.now), None);
    assert_eq!(rig.room.summary_of(&of(2), rig.now), None, "another life begins with nothing");
}

fn narrow() -> SubscriberSettings {
    let frame_bytes_max = INVENTORY_FRAME_BYTES_MIN as u32;
    let settings = SETTINGS();
    SubscriberSettings { frame_bytes_max, window_bytes: 3 * frame_bytes_max, ack_bytes: 200, ..settings }
}

#[test]
fn gathered_credit_is_given_back_at_once() {
    let mut rig = Rig::with(narrow(), 4 << 20, Scope::All);
    rig.members(1, &[member("a", 1)]);
    let connection = rig.connect();
    rig.bootstrap(connection, SNAPSHOT, 10, &[]);
    for sequence in 11..31 {
        rig.delta(connection, sequence - 1, sequence, &[put(sequence, sequence)]);
    }
    assert_eq!(rig.closed(connection), None);
    assert_eq!(rig.room.figures().acks, 11, "with the page, then with every second frame of 140 bytes");
}

#[test]
fn a_source_that_exceeds_the_window_is_closed() {
    let settings = SubscriberSettings { ack_bytes: u32::MAX, ..narrow() };
    let mut rig = Rig::with(settings, 4 << 20, Scope::All);
    rig.members(1, &[member("a", 1)]);
    let connection = rig.connect();
    rig.bootstrap(connection, SNAPSHOT, 10, &[]);
    for sequence in 11..14 {
        assert_eq!(rig.closed(connection), None);
        rig.delta(connection, sequence - 1, sequence, &[put(1, sequence)]);
    }
    rig.delta(connection, 13, 14, &[put(1, 14)]);
    assert_eq!(rig.closed(connection), Some("window_exceeded"));
    assert_eq!(rig.applied("a", 1), Some(13));
}

#[test]
fn frames_that_wait_have_a_bound() {
    let settings = SubscriberSettings { backlog_frames_max: 3, ..SETTINGS() };
    let mut rig = Rig::with(settings, 4 << 20, Scope::All);
    rig.members(1, &[member("a", 1)]);
    let connection = rig.connect();
    rig.bootstrap(connection, SNAPSHOT, 10, &[]);
    rig.room.on_membership_invalid(rig.now);
    assert_eq!(rig.standing(), Standing::Unavailable(Unavailable::MembershipInvalid));
    for sequence in 11..14 {
        rig.delta(connection, sequence - 1, sequence, &[]);
        rig.beat(connection, sequence);
    }
    assert_eq!((rig.closed(connection), rig.applied("a", 1)), (None, Some(10)));
    rig.delta(connection, 13, 14, &[]);
    assert_eq!(rig.closed(connection), Some("backlog_full"));
}

#[test]
fn a_refused_open_is_tried_again_with_a_later_attempt() {
    for cause in [OpenRefusal::NotInMap, OpenRefusal::StaleAttempt, OpenRefusal::Busy, OpenRefusal::Fenced] {
        let mut rig = Rig::new();
        rig.members(1, &[member("a", 1)]);
        let first = rig.connect();
        let (revision, epoch, incarnation) = (1, 1, Incarnation([1; 16]));
        rig.say(first, 0, &FromSource::OpenRefused { cause, revision, epoch, incarnation });
        assert_eq!(rig.closed(first), Some("refused"));
        assert!(rig.dials.is_empty(), "not at once");
        let second = rig.reconnect();
        assert_eq!((rig.link(first).open.attempt, rig.link(second).open.attempt), (1, 2));
    }
}

#[test]
fn a_source_that_is_another_life_is_doubted_and_nobody_is_excluded_or_admitted() {
    for (cause, epoch, life, doubts) in [
        (OpenRefusal::WrongSource, 2, 2, 1),
        // It is behind, or another node.
        (OpenRefusal::WrongSource, 1, 9, 1),
        // It names the life that was asked: that says nothing.
        (OpenRefusal::WrongSource, 1, 1, 0),
        (OpenRefusal::NotInMap, 2, 2, 0),
    ] {
        let mut rig = Rig::new();
        rig.members(1, &[member("a", 1)]);
        let connection = rig.connect();
        let incarnation = Incarnation([life; 16]);
        rig.say(connection, 0, &FromSource::OpenRefused { cause, revision: 1, epoch, incarnation });
        assert_eq!(rig.closed(connection), Some("refused"));
        let asked = (member("a", 1).node, Incarnation([1; 16]));
        assert_eq!(rig.doubts, vec![asked; doubts], "{cause:?} {life}");
        // It is still the life that members name which is asked.
        let again = rig.reconnect();
        assert_eq!(rig.link(again).open.binding.source.incarnation, Incarnation([1; 16]));
    }
}

#[test]
fn messages_out_of_place_end_the_session() {
    let zero = SnapshotId([0; 16]);
    let resumed = FromSource::Resumed { view: zero, sequence: Sequence(0) };
    let offer = FromSource::SnapshotBegin { snapshot: zero, after: Sequence(0), rows_max: 0, bytes: 0 };
    let mut commit = Rig::new();
    commit.members(1, &[member("a", 1)]);
    let connection = commit.connect();
    commit.commit(connection, SNAPSHOT, 0, &[]);
    assert_eq!(commit.closed(connection), Some("unexpected"));
    for (message, live) in [
        (&resumed, true),
        (&resumed, false),
        (&offer, true),
        (&FromSource::SnapshotQueued { position: 1 }, true),
        (&FromSource::Progress { through: Sequence(0) }, false),
    ] {
        let (mut rig, mut connection) = Rig::live(10, &[]);
        if !live {
            rig.room.on_closed(connection, 0, rig.now);
            connection = rig.reconnect();
            rig.say(connection, 10, &FromSource::ResetRequired { cause: ResetCause::HistoryGone });
        }
        rig.say(connection, 10, message);
        assert_eq!(rig.closed(connection), Some("unexpected"), "{message:?}");
    }
}

#[test]
fn a_barrier_asks_only_those_that_are_behind() {
    let (mut rig, connection) = Rig::live(10, &[]);
    let (source, incarnation) = (node("a"), Incarnation([1; 16]));
    rig.room.flush_through(source, incarnation, &[Sequence(10)]);
    rig.room.flush_through(source, Incarnation([2; 16]), &[Sequence(99)]);
    rig.room.flush_through(source, incarnation, &[Sequence(12)]);
    rig.run();
    let asked = FromRequester::FlushThrough { sequence: Sequence(12) };
    let heard = &rig.link(connection).heard;
    let flushes = heard.iter().filter(|said| matches!(said, FromRequester::FlushThrough { .. }));
    assert_eq!(flushes.collect::<Vec<_>>(), [&asked]);
}
