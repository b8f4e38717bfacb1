//! Bugs that others have had, over both ends of a session: none of them is here.

mod rig;

use std::time::Duration;

use orbitkv_shards::coverage::Coverage;
use orbitkv_wire::identity::{Medium, Sequence};
use orbitkv_wire::inventory::Kind;
use rig::{Key, Rig, Settings, key};

use Medium::{Dram, Ssd};

const SECOND: Duration = Duration::from_secs(1);

fn filled(blocks: u64, settings: Settings) -> Rig {
    let mut rig = Rig::new(settings);
    for block in 0..blocks {
        rig.put(key(block), Dram, 100);
    }
    rig.converge();
    rig
}

#[test]
fn a_dropped_delta_makes_the_owner_not_covered_and_never_absent() {
    let mut rig = filled(5, Settings::default());
    let mut drops = 1;
    rig.forger = Some(Box::new(move |header, frame| {
        if header.kind == Kind::Delta as u8 && drops > 0 {
            drops -= 1;
            return Vec::new();
        }
        vec![frame]
    }));
    rig.put(key(7), Dram, 1);
    rig.settle();
    assert_eq!(rig.applied(0), Some(Sequence(5)), "a watermark stands on what has come");
    rig.reachable = false;
    rig.put(key(8), Dram, 1);
    rig.settle();
    assert_eq!((rig.media(key(7)), rig.media(key(8))), (vec![], vec![]));
    assert_eq!(rig.coverage(0), Coverage::PartialHints, "neither is called absent");
    rig.reachable = true;
    rig.advance(4 * SECOND);
    rig.assert_equal();
}

#[test]
fn a_dropped_delta_that_nothing_follows_makes_the_owner_old() {
    let mut rig = filled(5, Settings::default());
    let mut drops = 1;
    rig.forger = Some(Box::new(move |header, mut frame| {
        if header.kind == Kind::Delta as u8 && drops > 0 {
            drops -= 1;
            return Vec::new();
        }
        // The beats that follow are numbered as if nothing had been lost.
        if drops == 0 {
            let number = (header.frame - 1).to_le_bytes();
            frame[21..29].copy_from_slice(&number);
        }
        vec![frame]
    }));
    rig.put(key(7), Dram, 1);
    rig.advance(7 * SECOND);
    assert_eq!(rig.coverage(0), Coverage::PartialHints, "a source that beats and sends nothing is not fresh");
}

#[test]
fn a_restarted_source_that_counts_from_one_again_erases_the_old_claims_before_the_first_lookup() {
    let mut rig = filled(5, Settings::default());
    rig.delete(key(0), Dram);
    rig.restart_source(0);
    rig.map = orbitkv_shards::members::MemberMap::new(rig.map.revision + 1, rig.members());
    rig.lower(0);
    for block in 0..5 {
        assert_eq!(rig.media(key(block)), [], "before any frame of the new life");
    }
    rig.publish();
    rig.advance(4 * SECOND);
    rig.assert_equal();
    assert_eq!(rig.applied(0), Some(Sequence(4)), "it counts from one again");
}

#[test]
fn a_late_delta_after_a_fence_re_adds_nothing() {
    // The requester is fenced while a delta is on its way.
    let mut rig = filled(5, Settings::default());
    rig.requesters[0].held = true;
    rig.put(key(7), Dram, 1);
    rig.settle();
    assert_eq!(rig.waiting(), 1, "it is on its way");
    rig.fence_requester(0);
    rig.requesters[0].held = false;
    rig.advance(SECOND);
    assert_eq!((rig.media(key(7)), rig.coverage(0)), (vec![], Coverage::Unavailable));

    // The source is, as far as the requester knows.
    let mut rig = filled(5, Settings::default());
    rig.requesters[0].held = true;
    rig.put(key(7), Dram, 1);
    rig.settle();
    let mut members = rig.members();
    members.retain(|member| member.node != rig.sources[0].local.node);
    rig.map = orbitkv_shards::members::MemberMap::new(rig.map.revision + 1, members);
    rig.lower(0);
    rig.requesters[0].held = false;
    rig.advance(SECOND);
    assert_eq!((rig.media(key(7)), rig.media(key(1))), (vec![], vec![]));
}

#[test]
fn a_wipe_reaches_peers_as_such() {
    for journal_records in [1_000, 16] {
        let mut rig = filled(100, Settings { journal_records, ..Settings::default() });
        rig.put(Key { namespace: 1, group: 0, block: 1 }, Dram, 1);
        for block in 0..100 {
            rig.delete(key(block), Dram);
        }
        rig.advance(4 * SECOND);
        rig.assert_equal();
        assert_eq!(rig.owners(0)[0].rows, 1, "what is of another namespace stays");
    }
}

#[test]
fn a_removal_batch_with_an_unknown_key_removes_the_others() {
    let mut rig = filled(5, Settings { coalesce: Duration::from_millis(5), ..Settings::default() });
    let before = rig.sent(Kind::Delta);
    rig.put(key(77), Dram, 1);
    for block in [77, 0, 1, 2] {
        rig.delete(key(block), Dram);
    }
    rig.converge();
    assert_eq!(rig.sent(Kind::Delta), before + 1, "one batch, which ends a residence that was never told");
    assert_eq!(rig.owners(0)[0].rows, 2);
}

#[test]
fn two_media_of_one_key_one_removal_keeps_the_other() {
    for (removed, kept) in [(Dram, Ssd), (Ssd, Dram)] {
        let mut rig = Rig::new(Settings::default());
        rig.put(key(1), Dram, 1);
        rig.put(key(1), Ssd, 1);
        rig.converge();
        rig.delete(key(1), removed);
        rig.converge();
        assert_eq!(rig.media(key(1)), [kept]);
    }
}

#[test]
fn there_is_no_hole_between_snapshot_and_subscription() {
    // A change at every point of a bootstrap: after the offer, each page, each replayed interval, the commit.
    let points = [
        (Kind::SnapshotBegin, 1),
        (Kind::SnapshotPage, 1),
        (Kind::SnapshotPage, 3),
        (Kind::SnapshotPage, 5),
        (Kind::Delta, 1),
        (Kind::SnapshotCommit, 1),
    ];
    for (kind, count) in points {
        let settings =
            Settings { page_records: 4, window_frames: 2, interval_records: 2, ..Settings::default() };
        let mut rig = Rig::new(settings);
        rig.cut_all();
        for block in 0..20 {
            rig.put(key(10 + block), Dram, 1);
        }
        rig.restart_requester(0);
        rig.hold_after = Some((Kind::SnapshotPage, 2));
        rig.publish();
        rig.settle();
        if (kind, count) == (Kind::Delta, 1) {
            rig.put(key(500), Dram, 1);
        }
        if kind != Kind::SnapshotPage || count > 2 {
            let passed = if kind == Kind::SnapshotPage { count - 2 } else { count };
            rig.hold_after = (kind != Kind::SnapshotBegin).then_some((kind, passed));
            rig.requesters[0].held = false;
            rig.settle();
        }
        rig.delete(key(10), Dram);
        rig.delete(key(29), Dram);
        rig.put(key(1), Dram, 1);
        rig.put(key(900), Ssd, 1);
        rig.requesters[0].held = false;
        rig.converge();
    }
}

#[test]
fn adding_and_removing_the_same_set_a_thousand_times_leaves_everything_constant() {
    let mut rig = filled(0, Settings { journal_records: 256, ..Settings::default() });
    let mut sizes = Vec::new();
    for round in 0..1_000u32 {
        for block in 0..32 {
            rig.put(key(block), if block % 2 == 0 { Dram } else { Ssd }, 1 + round);
        }
        rig.advance(Duration::from_millis(20));
        for block in 0..32 {
            rig.delete(key(block), if block % 2 == 0 { Dram } else { Ssd });
        }
        rig.advance(Duration::from_millis(20));
        let index = rig.requesters[0].partition.accounting();
        let standing = rig.sources[0].publisher.standing(rig.sources[0].journal.head());
        sizes.push((
            index.charged_bytes,
            index.rows,
            rig.requesters[0].namespaces.charged_bytes(),
            rig.sources[0].namespaces.charged_bytes(),
            (standing.queue_bytes, standing.intervals, standing.connections, standing.sessions),
            (rig.owners(0).len(), rig.connections().len()),
        ));
    }
    rig.converge();
    assert!(sizes[10..].iter().all(|size| *size == sizes[10]), "{:?} became {:?}", sizes[10], sizes.last());
}

#[test]
fn a_stalled_subscriber_delays_nobody() {
    let mut rig = Rig::of(1, 3, Settings { journal_records: 128, ..Settings::default() });
    rig.converge();
    rig.requesters[0].held = true;
    for block in 0..2_000 {
        rig.put(key(block), Dram, 1);
        rig.advance(Duration::from_millis(1));
        for requester in [1, 2] {
            let view = rig.owners(requester)[0].view.map(|(_, applied)| applied);
            assert_eq!(view, Some(rig.sources[0].journal.head()), "requester {requester} is not delayed");
            assert_eq!(rig.coverage(requester), Coverage::CompleteAtWatermarks);
        }
    }
    assert_ne!(rig.applied(0), Some(rig.sources[0].journal.head()));
    rig.requesters[0].held = false;
    rig.advance(6 * SECOND);
    rig.assert_equal();
}

#[test]
fn a_reconnect_of_the_same_incarnation_keeps_its_state() {
    let mut rig = filled(50, Settings::default());
    let (begun, rows) = (rig.sent(Kind::SnapshotBegin), rig.owners(0)[0].rows);
    for round in 0..5 {
        rig.cut_all();
        assert_eq!((rig.owners(0)[0].rows, rig.media(key(1))), (rows, vec![Dram]), "round {round}");
        rig.advance(4 * SECOND);
        rig.assert_equal();
    }
    assert_eq!((rig.sent(Kind::SnapshotBegin), rig.sent(Kind::Resumed)), (begun, 5));
}

#[test]
fn an_observer_paused_longer_than_a_lease_does_not_expire_everybody_else() {
    let mut rig = Rig::of(3, 1, Settings::default());
    for source in 0..3 {
        rig.sources[source].put(key(source as u64), Dram, 1);
    }
    rig.converge();
    let begun = rig.sent(Kind::SnapshotBegin);
    // It stands still for a minute, finds its own lease over, and lives again.
    rig.now = rig.now + 60 * SECOND;
    rig.fence_requester(0);
    assert_eq!(rig.coverage(0), Coverage::Unavailable, "it is its own lease that is over");
    rig.register_requester(0);
    assert_eq!(rig.requesters[0].subscriber.figures().streams_excluded, 0, "nobody else has expired");
    for source in 0..3 {
        assert_eq!(rig.media(key(source)), [Dram], "what others hold is still a hint");
    }
    rig.advance(4 * SECOND);
    rig.assert_equal();
    assert_eq!(rig.sent(Kind::SnapshotBegin), begun, "and every view goes on");
}
