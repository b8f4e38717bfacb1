//! Credit, pacing, fairness, the queue pool, and the slice of a turn.

use std::time::Duration;

use orbitkv_wire::bounds::INVENTORY_FRAME_BYTES_MAX;
use orbitkv_wire::identity::Medium;
use orbitkv_wire::inventory::{HEADER_BYTES, Kind};
use orbitkv_wire::scope::Scope;

use super::super::*;
use super::rig::{Rig, ample, digest, small};
use crate::journal::JournalSettings;

const MS: Duration = Duration::from_millis(1);

#[test]
fn the_frame_bound_is_the_tightest_of_four_and_a_shard_count_that_leaves_no_room_is_refused() {
    let of = |bounds: &NodeBounds, shards| {
        PublisherSettings::of_node(bounds, shards, JournalSettings::default(), Duration::ZERO)
    };
    let defaults = NodeBounds::default();
    for (shards, frame_bytes_max) in
        [(1, 512 * 1024), (2, 512 * 1024), (3, (1 << 20) / 3), (7, (1 << 20) / 7)]
    {
        assert_eq!(of(&defaults, shards).unwrap().frame_bytes_max, frame_bytes_max, "{shards} shards");
    }
    let refused = of(&defaults, 8).unwrap_err();
    assert_eq!(
        refused,
        BoundsRefused::Shards { shards: 8, bound: "pacing burst", bytes: 131_072, needed: 131_113 }
    );
    assert!(refused.to_string().contains("8 shards") && refused.to_string().contains("pacing burst"));
    let tight = NodeBounds { queue_bytes: 4 << 20, ..defaults };
    assert_eq!(of(&tight, 1).unwrap().frame_bytes_max, (4 << 20) / 8 / 2);
    assert!(matches!(of(&tight, 2), Err(BoundsRefused::Shards { bound: "share of the queue pool", .. })));
    let generous = NodeBounds { stream_bytes: 4 << 20, burst_bytes: 4 << 20, ..defaults };
    assert_eq!(of(&generous, 1).unwrap().frame_bytes_max, INVENTORY_FRAME_BYTES_MAX);
}

#[test]
fn an_acknowledgement_returns_what_was_recorded_once_and_an_invented_one_nothing() {
    let mut rig = Rig::new(small());
    let id = rig.open(1, &Scope::All);
    rig.settle();
    rig.prompt_acks = false;
    rig.shard.puts(1, 0..20);
    rig.settle();
    let bytes: Vec<_> = rig.receivers[&id].unconsumed.iter().copied().collect();
    assert_eq!(bytes.len(), 4);
    let acknowledged = |rig: &Rig| rig.publisher.figures().bytes_acknowledged;
    let before = acknowledged(&rig);
    let mut expected = before;
    let (last, _) = bytes[3];
    for (consumed_frame, returned) in [
        (last + 1, 0),
        (u64::MAX, 0),
        (bytes[0].0 - 1, 0),
        (bytes[1].0, bytes[0].1 + bytes[1].1),
        (bytes[1].0, 0),
        (bytes[0].0, 0),
        (last, bytes[2].1 + bytes[3].1),
        (last, 0),
        (0, 0),
    ] {
        rig.receiver(id).say_ack(consumed_frame);
        rig.settle();
        expected += returned as u64;
        assert_eq!(acknowledged(&rig), expected, "frame {consumed_frame}");
    }
    let figures = rig.publisher.figures();
    assert_eq!((figures.acks_invented, figures.acks_repeated), (2, 5));
    assert_eq!(rig.closed, [], "none of it ends the session");
    rig.receiver(id).unconsumed.clear();
    rig.assert_nothing_left();
}

#[test]
fn a_stalled_subscriber_delays_nobody_and_holds_its_share_at_most() {
    let mut rig = Rig::new(small());
    let (stalled, blocked) = (rig.open(1, &Scope::All), rig.open(2, &Scope::All));
    let healthy: Vec<_> = (3..6).map(|number| rig.open(number, &Scope::All)).collect();
    rig.settle();
    rig.publisher.on_blocked(blocked);
    for round in 0..200 {
        rig.shard.put(1, round, Medium::Dram);
        rig.hear();
        while rig.turn() {}
        for (id, frame) in std::mem::take(&mut rig.transit) {
            let receiver = rig.receivers.get_mut(&id).unwrap();
            receiver.on_frame(&frame, &rig.shard);
            receiver.ack(if id == stalled { 0 } else { 1 });
        }
        for &id in &healthy {
            assert_eq!(rig.watermark(id), Some(u64::from(round) + 1), "each hears each change in its turn");
        }
        assert!(rig.receivers[&stalled].outstanding_bytes() <= 12_000 / 8);
        rig.now = rig.now + MS;
    }
    assert_eq!(rig.receivers[&blocked].heard.len(), 2, "the offer and the commit");
    assert_eq!(rig.closed, []);
    rig.publisher.on_writable(blocked);
    rig.receiver(stalled).ack(usize::MAX);
    rig.settle();
    rig.pass(MS * 200);
    assert_eq!((rig.watermark(stalled), rig.watermark(blocked)), (Some(200), Some(200)), "by a snapshot");
}

#[test]
fn no_frame_leaves_a_blocked_connection_not_even_one_that_was_built() {
    let mut rig = Rig::new(small());
    let (one, two) = (rig.open(1, &Scope::All), rig.open(2, &Scope::All));
    rig.settle();
    rig.shard.puts(1, 0..8);
    let source = Source {
        journal: &rig.shard.journal,
        residences: &rig.shard.table,
        namespaces: &rig.shard.namespaces,
    };
    rig.publisher.turn(&source, 0, rig.now);
    rig.publisher.on_blocked(one);
    rig.publisher.on_blocked(one);
    rig.settle();
    assert_eq!((rig.watermark(one), rig.watermark(two)), (Some(0), Some(8)));
    rig.shard.puts(1, 8..16);
    rig.pass(MS * 3_000);
    assert_eq!(rig.watermark(one), Some(0), "no change and no beat");
    rig.publisher.on_writable(one);
    rig.publisher.on_writable(one);
    rig.settle();
    assert_eq!(rig.watermark(one), Some(16));
}

#[test]
fn pacing_holds_the_rate_and_is_fair_between_subscribers() {
    // Everybody has a scope of its own, so nothing is shared, and more is due to each than its part of the
    // rate; three times as much to the first.
    let journal = JournalSettings { capacity_bytes: 1 << 20, ..small().journal };
    let settings = PublisherSettings { bytes_per_second: 20_000, burst_bytes: 2_000, journal, ..small() };
    let mut rig = Rig::new(settings);
    let ids: Vec<_> =
        (1..5).map(|number| rig.open(number, &Scope::namespaces([digest(number)]).unwrap())).collect();
    rig.pass(MS * 1_000);
    let sent = |rig: &Rig| rig.publisher.figures().traffic.values().map(|kind| kind.bytes_sent).sum::<u64>();
    let before = sent(&rig);
    let earlier: std::collections::BTreeMap<_, _> =
        ids.iter().map(|&id| (id, rig.receivers[&id].bytes_heard)).collect();
    for round in 0..400 {
        for number in 0..3 {
            rig.shard.put(1, 3 * round + number, Medium::Dram);
        }
        for namespace in 2..5 {
            rig.shard.put(namespace, round, Medium::Dram);
        }
        rig.pass(MS * 5);
    }
    let left = sent(&rig) - before;
    assert!((39_000..=42_000).contains(&left), "{left} bytes in two seconds");
    let heard: Vec<_> = ids.iter().map(|id| rig.receivers[id].bytes_heard - earlier[id]).collect();
    let (fewest, most) = (heard.iter().min().unwrap(), heard.iter().max().unwrap());
    assert!(*fewest * 10 >= *most * 9, "all waited, and got the same: {heard:?}");
    let head = rig.shard.journal.head().0;
    assert!(ids.iter().all(|&id| rig.watermark(id) < Some(head)));
}

#[test]
fn deltas_go_before_snapshots() {
    // The bucket holds one page, or one small delta and less than a page.
    let settings = PublisherSettings { bytes_per_second: 10_000, burst_bytes: 500, ..small() };
    let mut rig = Rig::new(settings);
    let follower = rig.open(1, &Scope::namespaces([digest(2)]).unwrap());
    rig.shard.puts(1, 0..60);
    rig.pass(MS * 500);
    let bootstrapping = rig.open(2, &Scope::namespaces([digest(1)]).unwrap());
    rig.pass(MS * 100);
    assert_eq!(rig.watermark(bootstrapping), None, "its scan is under way");
    for number in 0..3 {
        rig.shard.put(2, number, Medium::Dram);
        rig.now = rig.now + MS * 60;
        rig.turn();
        let left: Vec<_> = rig.transit.iter().map(|(id, _)| *id).collect();
        assert_eq!(left, [follower], "a page waits while a delta does");
        rig.settle();
    }
    rig.pass(MS * 2_000);
    assert!(rig.watermark(bootstrapping).is_some(), "but pages do leave");
}

#[test]
fn a_turn_reads_a_bounded_slice_and_says_that_more_is_due() {
    let mut rig = Rig::new(ample());
    let id = rig.open(1, &Scope::All);
    rig.settle();
    for number in 0..5_000 {
        rig.shard.put(1, number, Medium::Dram);
    }
    let mut turns = 0;
    loop {
        let before = rig.publisher.figures().records_read;
        let more = rig.turn();
        turns += 1;
        assert!(rig.publisher.figures().records_read - before <= 512, "a slice, and one interval more");
        rig.deliver();
        rig.hear();
        if !more {
            break;
        }
    }
    assert!(turns >= 5_000 / 512);
    assert_eq!(rig.watermark(id), Some(5_000));
    // The same for a scope that holds nothing: reading is bounded, not only encoding.
    let none = rig.open(2, &Scope::none());
    rig.settle();
    rig.shard.puts(1, 0..5_000);
    rig.lose(id);
    let before = rig.publisher.figures().records_read;
    assert!(rig.turn());
    assert!(rig.publisher.figures().records_read - before <= 512);
    rig.pass(MS * 200);
    assert_eq!(rig.watermark(none), Some(10_000));
}

#[test]
fn an_exhausted_pool_makes_the_one_that_held_it_longest_give_way() {
    // Twelve stall at different cursors with all they may hold; one is healthy.
    let journal = JournalSettings { capacity_bytes: 1 << 20, ..small().journal };
    let settings = PublisherSettings { connections_max: 16, sessions_max: 16, journal, ..small() };
    let mut rig = Rig::new(settings);
    let mut ids = Vec::new();
    for number in 1..14 {
        let id = rig.open(number, &Scope::namespaces([digest(number)]).unwrap());
        rig.pass(MS * 20);
        ids.push(id);
    }
    rig.prompt_acks = false;
    let healthy = ids[12];
    for round in 0..30 {
        for number in 1..13 {
            rig.shard.put(number, round, Medium::Dram);
        }
        rig.settle();
        rig.receiver(healthy).ack(usize::MAX);
        rig.pass(MS * 10);
    }
    assert!(rig.publisher.outlet.pool.peak() > 12_000 - 500, "the pool was full");
    rig.shard.put(13, 1, Medium::Dram);
    let stalled: Vec<_> = rig.closed.iter().map(|(id, cause)| (*id, *cause)).collect();
    assert!(stalled.iter().all(|(id, cause)| *id != healthy && *cause == CloseCause::Stalled));
    rig.settle();
    rig.receiver(healthy).ack(usize::MAX);
    rig.pass(MS * 300);
    assert!(rig.closed.iter().all(|(id, _)| *id != healthy));
    assert_eq!(rig.watermark(healthy), Some(rig.shard.journal.head().0), "it got its change");
    assert_eq!(rig.publisher.figures().stalled_closed, rig.closed.len() as u64);
    rig.assert_nothing_left();
}

#[test]
fn the_number_of_unacknowledged_frames_is_bounded_too() {
    let settings = PublisherSettings { stream_frames_max: 4, ..small() };
    let mut rig = Rig::new(settings);
    let id = rig.open(1, &Scope::All);
    rig.settle();
    rig.prompt_acks = false;
    for number in 0..10 {
        rig.shard.put(1, number, Medium::Dram);
        rig.settle();
    }
    assert_eq!(rig.receivers[&id].unconsumed.len(), 4, "of 140 bytes each, in a window of 1,500");
    rig.receiver(id).ack(4);
    rig.settle();
    assert_eq!(rig.watermark(id), Some(10));
}

#[test]
fn what_is_counted_is_what_left() {
    let mut rig = Rig::new(small());
    let ids = [rig.open(1, &Scope::All), rig.open(2, &Scope::All)];
    rig.settle();
    rig.shard.put(1, 1, Medium::Dram);
    rig.shard.put(1, 1, Medium::Dram);
    rig.settle();
    let figures = rig.publisher.figures();
    let delta = figures.of(Kind::Delta);
    let body = delta.bytes_encoded;
    assert_eq!((delta.bodies_encoded, delta.frames_sent), (1, 2));
    assert_eq!(delta.bytes_sent, 2 * (body + HEADER_BYTES as u64));
    assert_eq!((figures.records_read, figures.records_coalesced), (2, 1));
    assert_eq!((figures.sessions_opened, figures.snapshots_committed), (2, 2));
    let standing = rig.publisher.standing(rig.shard.journal.head());
    assert_eq!((standing.sessions, standing.following, standing.lag_records_max), (2, 2, 0));
    assert!(standing.queue_bytes_peak > 0 && standing.queue_bytes == 0);
    rig.prompt_acks = false;
    rig.shard.put(1, 1, Medium::Dram);
    rig.settle();
    rig.receiver(ids[0]).ack(1);
    rig.settle();
    assert_eq!(rig.publisher.standing(rig.shard.journal.head()).lag_records_max, 1, "by the rearmost");
}
