//! The watermark: what applies, what repeats, what is an error, and what is done in steps.

use orbitkv_wire::identity::{Medium, Sequence};
use orbitkv_wire::inventory::{FromSource, Kind};

use super::rig::*;
use crate::coverage::Standing;

#[test]
fn an_interval_applies_repeats_or_ends_the_session_by_where_it_begins_and_ends() {
    // At watermark 10: (from, through, applied afterwards, cause of the close).
    let table = [
        (10, 12, 12, None),
        (8, 10, 10, None),
        (3, 7, 10, None),
        (9, 11, 10, Some("not_contiguous")),
        (11, 12, 10, Some("not_contiguous")),
        (0, 11, 10, Some("not_contiguous")),
    ];
    for (from, through, applied, closed) in table {
        let (mut rig, connection) = Rig::live(10, &[put(1, 5)]);
        rig.send(connection, through.max(10), &delta_body(from, through, &[]));
        assert_eq!(rig.closed(connection), closed, "({from}, {through}]");
        assert_eq!(rig.applied("a", 1), Some(applied), "({from}, {through}]");
        if closed.is_some() {
            // The view stays for hints, and a later attempt goes on where it stands.
            assert_eq!((rig.standing(), rig.found(1)), (Standing::Partial, vec![5]));
            let again = rig.reconnect();
            let (first, second) = (&rig.link(connection).open, &rig.link(again).open);
            assert!(second.attempt > first.attempt);
            assert_eq!(second.resume.unwrap().sequence, Sequence(10));
        }
    }
}

#[test]
fn changes_of_both_media_and_group_zero_take_effect_in_order() {
    let (mut rig, connection) = Rig::live(10, &[put(1, 5), (1, Medium::Ssd, 101, 6)]);
    rig.delta(connection, 10, 14, &[delete(1, 11), put(2, 12), (2, Medium::Ssd, 7, 13)]);
    assert_eq!(rig.look(1), [(0, Medium::Ssd, 101, 6)]);
    assert_eq!(rig.look(2), [(0, Medium::Dram, 102, 12), (0, Medium::Ssd, 7, 13)]);
    rig.delta(connection, 14, 20, &[put(1, 20)]);
    assert_eq!(rig.look(1), [(0, Medium::Dram, 101, 20), (0, Medium::Ssd, 101, 6)]);
    assert_eq!((rig.standing(), rig.applied("a", 1)), (Standing::Complete, Some(20)));
}

#[test]
fn progress_moves_the_watermark_and_never_back() {
    let (mut rig, connection) = Rig::live(10, &[]);
    for (through, applied) in [(15, 15), (12, 15), (16, 16)] {
        rig.say(connection, 16, &FromSource::Progress { through: Sequence(through) });
        assert_eq!(rig.applied("a", 1), Some(applied));
    }
}

#[test]
fn a_repeated_interval_must_say_what_it_said() {
    for (changes, conflict) in [
        (vec![put(1, 5)], false),
        (vec![put(1, 4)], false),
        (vec![delete(1, 4)], false),
        (vec![(1, Medium::Dram, 999, 5)], true),
        (vec![delete(1, 5)], true),
    ] {
        let (mut rig, connection) = Rig::live(10, &[put(1, 5)]);
        rig.send(connection, 10, &delta_body(3, 8, &changes));
        assert_eq!(rig.closed(connection), conflict.then_some("sequence_conflict"), "{changes:?}");
        assert_eq!(rig.look(1), [(0, Medium::Dram, 101, 5)], "{changes:?}");
    }
}

#[test]
fn a_large_frame_leaves_its_stream_partial_until_its_last_step() {
    let (mut rig, connection) = Rig::live(10, &[]);
    let changes: Vec<_> = (0..10).map(|key| put(key, 11 + key)).collect();
    let bytes = rig.frame(connection, 20, &delta_body(10, 20, &changes));
    rig.send_bytes(connection, &bytes);
    // Four of ten are applied. A small frame behind it waits, even of a stream of its own.
    let next = rig.frame(connection, 21, &delta_body(20, 21, &[delete(0, 21)]));
    rig.send_bytes(connection, &next);
    for _ in 0..2 {
        assert_eq!((rig.standing(), rig.applied("a", 1)), (Standing::Partial, Some(10)));
        assert!(rig.turn());
    }
    assert_eq!((rig.standing(), rig.applied("a", 1)), (Standing::Complete, Some(20)));
    assert_eq!((rig.found(0), rig.found(9)), (vec![11], vec![20]));
    rig.run();
    assert_eq!((rig.found(0), rig.applied("a", 1)), (vec![], Some(21)));
    assert_eq!(rig.room.figures().frames_in_steps, 1);
}

#[test]
fn a_frame_cut_off_in_the_middle_leaves_its_stream_partial_until_it_is_passed() {
    let (mut rig, connection) = Rig::live(10, &[put(1, 5), put(2, 6)]);
    let changes: Vec<_> = (0..10).map(|key| delete(key, 11 + key)).collect();
    let bytes = rig.frame(connection, 20, &delta_body(10, 20, &changes));
    rig.send_bytes(connection, &bytes);
    assert_eq!((rig.found(1), rig.found(2)), (vec![], vec![]));
    rig.room.on_closed(connection, 0, rig.now);
    let connection = rig.reconnect();
    let resume = rig.link(connection).open.resume.unwrap();
    assert_eq!(resume.sequence, Sequence(10));
    rig.say(connection, 20, &FromSource::Resumed { view: resume.view, sequence: resume.sequence });
    // At 10 key 1 is there, so its absence from the rows proves nothing.
    rig.send(connection, 20, &delta_body(10, 15, &changes[..5]));
    assert_eq!((rig.standing(), rig.applied("a", 1)), (Standing::Partial, Some(15)));
    rig.send(connection, 20, &delta_body(15, 20, &changes[5..]));
    assert_eq!((rig.standing(), rig.applied("a", 1)), (Standing::Complete, Some(20)));
}

#[test]
fn the_view_is_as_fresh_as_the_newest_head_it_has_reached() {
    let (mut rig, connection) = Rig::live(10, &[]);
    let age = |rig: &Rig| rig.room.coverage(rig.now).oldest_age.as_millis();
    rig.pass(4_000);
    assert_eq!((rig.standing(), age(&rig)), (Standing::Complete, 4_000));
    rig.beat(connection, 10);
    assert_eq!(age(&rig), 0);
    // The source still beats, but sends nothing of what it has: the encoder is stuck.
    for _ in 0..6 {
        rig.pass(1_000);
        rig.beat(connection, 12);
    }
    assert_eq!((rig.standing(), age(&rig)), (Standing::Partial, 6_000));
    // What comes is as fresh as the first frame whose head it reaches, or as itself if it reaches its own.
    rig.send(connection, 13, &delta_body(10, 12, &[put(1, 12)]));
    assert_eq!((rig.standing(), age(&rig)), (Standing::Complete, 5_000));
    rig.send(connection, 13, &delta_body(12, 13, &[put(1, 13)]));
    assert_eq!((rig.standing(), age(&rig)), (Standing::Complete, 0));
    rig.pass(5_001);
    assert_eq!(rig.standing(), Standing::Partial);
    assert_eq!(rig.found(1), [13], "age takes absence away, not hints");
}

#[test]
fn changes_do_not_reach_a_view_that_waits_for_an_answer() {
    let (mut rig, connection) = Rig::live(10, &[put(1, 5)]);
    rig.room.on_closed(connection, 0, rig.now);
    let connection = rig.reconnect();
    rig.delta(connection, 10, 11, &[delete(1, 11)]);
    assert_eq!(rig.closed(connection), Some("unexpected"));
    assert_eq!(rig.found(1), [5]);
    assert_eq!(rig.room.figures().received[&Kind::Delta].frames, 1);
}

#[test]
fn an_install_is_told_once_its_interval_is_whole_and_only_to_who_watches() {
    let (mut rig, connection) = Rig::live(10, &[put(1, 5)]);
    rig.delta(connection, 10, 12, &[put(2, 11)]);
    assert_eq!(rig.room.poll_install(), None, "nobody watches");
    rig.room.watch_installs();
    let polled = |rig: &mut Rig| {
        let installs = std::iter::from_fn(|| rig.room.poll_install());
        installs.map(|install| (install.from.0, install.through.0)).collect::<Vec<_>>()
    };
    // What was visible before is told with the next interval.
    rig.delta(connection, 12, 14, &[delete(2, 13)]);
    assert_eq!(polled(&mut rig), [(0, 14)]);
    rig.say(connection, 15, &FromSource::Progress { through: Sequence(15) });
    rig.send(connection, 15, &delta_body(12, 14, &[delete(2, 13)]));
    assert_eq!(polled(&mut rig), [(14, 15)], "a repeated interval makes nothing visible");
    // A large frame is visible with its last step.
    let changes: Vec<_> = (0..10).map(|key| put(key, 16 + key)).collect();
    let bytes = rig.frame(connection, 25, &delta_body(15, 25, &changes));
    rig.send_bytes(connection, &bytes);
    while rig.applied("a", 1) != Some(25) {
        assert_eq!(polled(&mut rig), []);
        rig.turn();
    }
    assert_eq!(polled(&mut rig), [(15, 25)]);
}
