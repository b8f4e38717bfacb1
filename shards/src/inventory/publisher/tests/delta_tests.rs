//! What follows a journal hears, when, and who pays for it.

use std::time::Duration;

use orbitkv_wire::identity::Medium;
use orbitkv_wire::inventory::{FromRequester, Kind, ResetCause};
use orbitkv_wire::scope::Scope;

use super::super::*;
use super::receiver::Heard;
use super::rig::{Rig, ample, digest, small};

const MS: Duration = Duration::from_millis(1);

fn flush(rig: &mut Rig, id: ConnectionId, sequence: u64) {
    rig.receiver(id).say(FromRequester::FlushThrough { sequence: Sequence(sequence) });
}

/// A rig with one session that has caught up and was quiet long enough for progress to be due at once.
fn following(settings: PublisherSettings, scope: &Scope) -> (Rig, ConnectionId) {
    let mut rig = Rig::new(settings);
    let id = rig.open(1, scope);
    rig.settle();
    rig.heard(id);
    (rig, id)
}

#[test]
fn coalescing_waits_for_the_window_and_no_longer() {
    for window_ms in [0, 2, 5] {
        let settings = PublisherSettings { coalescing_window: MS * window_ms, ..small() };
        let (mut rig, id) = following(settings, &Scope::All);
        rig.shard.put(1, 1, Medium::Dram);
        rig.settle();
        let (first, more) = (rig.watermark(id), rig.publisher.next_deadline().unwrap() - rig.now);
        assert_eq!(first, Some(u64::from(window_ms == 0)));
        rig.shard.put(1, 1, Medium::Dram);
        rig.pass(more.min(MS * window_ms));
        assert_eq!(rig.watermark(id), Some(2));
        let figures = rig.publisher.figures();
        assert_eq!(figures.intentional_wait_max, MS * window_ms, "and it is reported");
        let coalesced = if window_ms == 0 { 2 } else { 1 };
        assert_eq!((figures.records_read, figures.records_coalesced), (2, coalesced));
    }
}

#[test]
fn a_flush_a_sync_or_a_full_delta_does_not_wait() {
    let settings = PublisherSettings { coalescing_window: MS * 5, ..small() };
    let (mut rig, id) = following(settings, &Scope::All);
    rig.shard.put(1, 1, Medium::Dram);
    flush(&mut rig, id, 1);
    rig.settle();
    assert_eq!(rig.watermark(id), Some(1), "flushed");
    rig.shard.put(1, 2, Medium::Dram);
    rig.publisher.expose();
    rig.settle();
    assert_eq!(rig.watermark(id), Some(2), "synced");
    rig.shard.puts(1, 0..7);
    rig.settle();
    assert_eq!(rig.watermark(id), Some(2));
    rig.shard.puts(1, 7..8);
    rig.settle();
    assert_eq!(rig.watermark(id), Some(10), "eight records fill a delta");
    assert_eq!(rig.publisher.figures().intentional_wait_max, Duration::ZERO);
}

#[test]
fn another_window_is_that_of_changes_that_wait_already() {
    for (before, after) in [(5, 1), (1, 5), (5, 0)] {
        let settings = PublisherSettings { coalescing_window: MS * before, ..small() };
        let (mut rig, id) = following(settings, &Scope::All);
        rig.shard.put(1, 1, Medium::Dram);
        rig.settle();
        rig.publisher.set_coalescing_window(MS * after);
        if after > 0 {
            rig.pass(MS * after - Duration::from_micros(1));
            assert_eq!(rig.watermark(id), Some(0), "{before} ms, then {after} ms");
            rig.pass(Duration::from_micros(1));
        }
        rig.settle();
        assert_eq!(rig.watermark(id), Some(1));
        assert_eq!(rig.publisher.figures().intentional_wait_max, MS * after);
    }
}

#[test]
fn a_window_beyond_five_milliseconds_is_refused() {
    let journal = ample().journal;
    let refused = PublisherSettings::of_node(&NodeBounds::default(), 1, journal, MS * 6);
    assert_eq!(refused, Err(BoundsRefused::Window { window: MS * 6 }));
}

#[test]
fn progress_is_told_every_hundred_milliseconds_at_most_and_folded_into_the_next_delta() {
    let scope = Scope::namespaces([digest(1)]).unwrap();
    let (mut rig, id) = following(small(), &scope);
    rig.shard.put(2, 1, Medium::Dram);
    rig.pass(MS * 99);
    assert_eq!(rig.heard(id), []);
    rig.pass(MS);
    assert_eq!(rig.heard(id), [Heard::Progress(1)]);
    for _ in 0..30 {
        rig.shard.put(2, 1, Medium::Dram);
        rig.pass(MS * 10);
    }
    assert_eq!(rig.heard(id), [11, 21, 31].map(Heard::Progress));
    rig.shard.put(2, 1, Medium::Dram);
    rig.settle();
    rig.shard.put(1, 1, Medium::Dram);
    rig.settle();
    assert_eq!(rig.heard(id), [Heard::Delta { from: 31, through: 33, changes: 1 }], "32 held nothing for it");
}

#[test]
fn a_flush_is_told_at_once_though_nothing_is_in_scope() {
    let scope = Scope::namespaces([digest(1)]).unwrap();
    let (mut rig, id) = following(small(), &scope);
    rig.shard.puts(2, 0..30);
    rig.settle();
    assert_eq!(rig.heard(id), []);
    flush(&mut rig, id, 30);
    rig.settle();
    assert_eq!(rig.heard(id), [Heard::Progress(30)], "once, and over more than one interval");
    flush(&mut rig, id, 30);
    flush(&mut rig, id, 7);
    rig.settle();
    assert_eq!(rig.heard(id), [], "a barrier that is reached wants nothing");
}

#[test]
fn liveness_comes_within_two_seconds_without_another_frame_and_costs_no_credit() {
    let (mut rig, id) = following(small(), &Scope::All);
    rig.prompt_acks = false;
    rig.pass(MS * 1_999);
    assert_eq!(rig.heard(id), []);
    rig.pass(MS);
    assert_eq!(rig.heard(id), [Heard::Liveness]);
    rig.pass(MS * 1_000);
    rig.shard.put(1, 1, Medium::Dram);
    rig.pass(MS * 1_999);
    assert!(matches!(rig.heard(id)[..], [Heard::Delta { .. }]), "another frame left");
    // Without any credit it still beats, and its cursor stays.
    rig.shard.puts(1, 0..60);
    rig.pass(MS * 10);
    rig.heard(id);
    let held = rig.receivers[&id].outstanding_bytes();
    let (watermark, head) = (rig.watermark(id), rig.shard.journal.head().0);
    rig.pass(MS * 6_000);
    assert_eq!(rig.heard(id), [Heard::Liveness; 3]);
    assert_eq!(rig.receivers[&id].outstanding_bytes(), held);
    assert!(rig.watermark(id) == watermark && watermark < Some(head));
}

#[test]
fn beats_are_in_step_with_the_clock_and_at_most_two_seconds_apart() {
    for offset_ms in [1, 250, 999, 1_000, 1_730, 1_999] {
        let (mut rig, id) = following(small(), &Scope::All);
        rig.pass(MS * offset_ms);
        rig.shard.put(1, 1, Medium::Dram);
        rig.settle();
        let mut left_at = rig.now;
        rig.heard(id);
        for _ in 0..4 {
            let due = rig.publisher.next_deadline().expect("an idle session beats");
            assert!(due.0.is_multiple_of(1_000_000_000), "{due:?} is no step of the clock");
            let rest = due - left_at;
            assert!(rest > MS * 1_000 && rest <= MS * 2_000, "{rest:?} between signs of life");
            rig.pass(due - rig.now);
            assert_eq!(rig.heard(id), [Heard::Liveness]);
            left_at = due;
        }
    }
}

#[test]
fn the_beats_of_a_core_leave_in_one_turn() {
    let mut rig = Rig::new(small());
    let ids: Vec<_> = (1..5)
        .map(|number| {
            let id = rig.open(number, &Scope::All);
            rig.pass(MS * 60);
            id
        })
        .collect();
    rig.pass(MS * 2_100);
    for &id in &ids {
        assert_eq!(rig.heard(id).pop(), Some(Heard::Liveness));
    }
    let turns: std::collections::BTreeSet<_> =
        rig.publisher.sessions().map(|(_, session)| session.left_at).collect();
    assert_eq!(turns.len(), 1, "they were 60 ms apart and beat together");
}

#[test]
fn an_interval_is_encoded_once_for_all_of_a_scope_and_cursor_and_counted_once() {
    let mut rig = Rig::new(ample());
    let ids: Vec<_> = (1..6).map(|number| rig.open(number, &Scope::All)).collect();
    let other = rig.open(6, &Scope::namespaces([digest(1)]).unwrap());
    rig.settle();
    rig.prompt_acks = false;
    let held = rig.publisher.outlet.pool.in_use();
    rig.shard.puts(1, 0..100);
    rig.shard.puts(2, 0..100);
    rig.settle();
    let deltas = rig.publisher.figures().of(Kind::Delta);
    assert_eq!((deltas.frames_sent, deltas.bodies_encoded), (6, 2), "one for each scope");
    let mut frames = std::collections::BTreeSet::new();
    for id in ids.iter().chain([&other]) {
        frames.insert(rig.receivers[id].unconsumed[0].1);
    }
    let frames: usize = frames.into_iter().sum();
    assert_eq!(rig.publisher.outlet.pool.in_use() - held, frames as u64, "charged once");
    ids[1..].iter().for_each(|id| rig.receiver(*id).ack(9));
    rig.settle();
    assert_eq!(rig.publisher.outlet.pool.in_use() - held, frames as u64, "one still holds it");
    rig.receiver(ids[0]).ack(9);
    rig.receiver(other).ack(9);
    rig.settle();
    assert_eq!(rig.publisher.outlet.pool.in_use(), held);
}

#[test]
fn a_laggard_of_the_same_scope_gets_the_same_bodies() {
    let mut rig = Rig::new(ample());
    let (fast, slow) = (rig.open(1, &Scope::All), rig.open(2, &Scope::All));
    rig.settle();
    rig.publisher.on_blocked(slow);
    for number in 0..10 {
        rig.shard.put(1, number, Medium::Dram);
        rig.settle();
    }
    assert_eq!((rig.watermark(fast), rig.watermark(slow)), (Some(10), Some(0)));
    rig.publisher.on_writable(slow);
    rig.settle();
    assert_eq!(rig.watermark(slow), Some(10));
    let deltas = rig.publisher.figures().of(Kind::Delta);
    assert_eq!((deltas.frames_sent, deltas.bodies_encoded), (20, 10));
    assert_eq!(rig.publisher.intervals.len(), 0, "nobody comes to them any more");
    // One that is far behind is not waited for: only the newest intervals are kept.
    rig.publisher.on_blocked(slow);
    for number in 0..100 {
        rig.shard.put(1, number, Medium::Dram);
        rig.settle();
    }
    assert_eq!(rig.publisher.intervals.len(), 16);
    rig.publisher.on_writable(slow);
    rig.settle();
    assert_eq!(rig.watermark(slow), Some(110));
}

#[test]
fn a_session_with_a_smaller_frame_bound_gets_smaller_intervals() {
    let mut rig = Rig::new(ample());
    rig.shard.put(1, 0, Medium::Dram);
    let large = rig.open(1, &Scope::All);
    let mut open = rig.opening(2, &Scope::All);
    open.frame_bytes_max = 160;
    let tiny = rig.connect(2, open, None);
    rig.settle();
    rig.shard.puts(1, 0..20);
    rig.settle();
    assert_eq!((rig.watermark(large), rig.watermark(tiny)), (Some(21), Some(21)));
    let deltas = |heard: &[Heard]| heard.iter().filter(|heard| matches!(heard, Heard::Delta { .. })).count();
    assert_eq!((deltas(&rig.heard(large)), deltas(&rig.heard(tiny))), (1, 20), "a change a frame");
}

#[test]
fn a_put_a_delete_and_a_put_again_in_both_media_and_in_group_zero() {
    let (mut rig, id) = following(small(), &Scope::All);
    for number in [0, 1] {
        for medium in Medium::ALL {
            rig.shard.put(1, number, medium);
        }
    }
    rig.settle();
    rig.shard.delete(1, 0, Medium::Dram);
    rig.settle();
    assert_eq!(
        rig.receivers[&id].view.as_ref().unwrap().rows.len(),
        3,
        "the SSD one and the other group stay"
    );
    rig.shard.put(1, 0, Medium::Dram);
    rig.shard.delete(1, 0, Medium::Dram);
    rig.shard.put(1, 0, Medium::Dram);
    rig.settle();
    assert_eq!(rig.heard(id).pop(), Some(Heard::Delta { from: 5, through: 8, changes: 1 }));
    rig.shard.put(1, 9, Medium::Ssd);
    rig.shard.delete(1, 9, Medium::Ssd);
    rig.settle();
    assert_eq!(
        rig.heard(id),
        [Heard::Delta { from: 8, through: 10, changes: 1 }],
        "a last delete is sent though nobody saw the put"
    );
}

#[test]
fn a_wipe_reaches_peers_as_such_and_one_that_overruns_the_ring_as_a_snapshot() {
    let (mut rig, id) = following(small(), &Scope::All);
    for (count, begun) in [(30, 1), (80, 2)] {
        for chunk in 0..count / 10 {
            rig.shard.puts(1, chunk * 10..chunk * 10 + 10);
            rig.settle();
        }
        (0..count).for_each(|number| rig.shard.delete(1, number, Medium::Dram));
        rig.settle();
        let view = rig.receivers[&id].view.as_ref().unwrap();
        assert!(view.rows.is_empty(), "the view is empty, and complete");
        assert_eq!(view.applied, rig.shard.journal.head());
        assert_eq!(rig.publisher.figures().snapshots_committed, begun);
    }
}

#[test]
fn adding_and_removing_the_same_set_a_thousand_times_leaves_memory_constant() {
    let mut rig = Rig::new(small());
    let ids = [rig.open(1, &Scope::All), rig.open(2, &Scope::namespaces([digest(1)]).unwrap())];
    rig.settle();
    let measure = |rig: &Rig| {
        let publisher = &rig.publisher;
        let outboxes: usize = publisher.sessions().map(|(_, session)| session.outbox.len()).sum();
        let order = publisher.outlet.order.capacity();
        (
            publisher.outlet.pool.in_use(),
            publisher.intervals.len(),
            outboxes,
            order,
            publisher.scopes.sessions(),
        )
    };
    let mut after_ten = None;
    for round in 0..1_000 {
        rig.shard.puts(1, 0..8);
        rig.pass(MS * 2);
        (0..8).for_each(|number| rig.shard.delete(1, number, Medium::Dram));
        rig.pass(MS * 2);
        if round == 10 {
            after_ten = Some(measure(&rig));
        }
    }
    assert_eq!(Some(measure(&rig)), after_ten);
    for id in ids {
        assert_eq!(rig.watermark(id), Some(16_000));
    }
}

#[test]
fn a_reader_that_fell_behind_the_ring_is_reset_in_its_session_by_its_cause() {
    // Held back by its credit, by its transport, or not at all: then the journal was too fast for us.
    for (blocks, acks, expected) in [
        (false, false, ResetCause::SlowSubscriber),
        (true, true, ResetCause::SlowSubscriber),
        (false, true, ResetCause::HistoryGone),
    ] {
        let (mut rig, id) = following(small(), &Scope::All);
        rig.prompt_acks = acks;
        if blocks {
            rig.publisher.on_blocked(id);
        }
        if !acks || blocks {
            for _ in 0..14 {
                rig.shard.puts(1, 0..8);
                rig.settle();
            }
        } else {
            rig.shard.puts(1, 0..112);
        }
        assert!(rig.watermark(id) < Some(112));
        rig.prompt_acks = true;
        rig.publisher.on_writable(id);
        rig.receiver(id).ack(usize::MAX);
        rig.settle();
        assert!(rig.heard(id).contains(&Heard::Reset(expected)), "{expected:?}");
        assert_eq!(rig.watermark(id), Some(112));
        assert_eq!(rig.publisher.figures().resets[&expected], 1);
        assert_eq!(rig.closed, []);
    }
}
