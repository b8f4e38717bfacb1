//! The fault matrix: one case for each row of the design's list, over both ends of a session.

mod rig;

use std::net::SocketAddr;
use std::time::Duration;

use orbitkv_shards::coverage::Coverage;
use orbitkv_shards::inventory::publisher::CloseCause as SourceClose;
use orbitkv_shards::inventory::subscriber::CloseCause;
use orbitkv_wire::identity::{Medium, Sequence};
use orbitkv_wire::inventory::{
    FrameError, FromSource, HEADER_BYTES, Header, Kind, OpenRefusal, RECORD_BYTES, ResetCause,
    decode_from_source, header_bytes, source_body,
};
use orbitkv_wire::scope::Scope;
use rig::{Key, Rig, Settings, digest, key};

use Medium::{Dram, Ssd};

const SECOND: Duration = Duration::from_secs(1);

/// A source with so many blocks, and a requester that has them all.
fn filled(blocks: u64, settings: Settings) -> Rig {
    let mut rig = Rig::new(settings);
    for block in 0..blocks {
        rig.put(key(block), if block % 3 == 0 { Ssd } else { Dram }, 100 + block as u32);
    }
    rig.converge();
    rig
}

#[test]
fn put_delete_and_reinsert_in_both_media_and_group_zero() {
    for group in [0, 3] {
        let key = |block| Key { namespace: 0, group, block };
        let mut rig = Rig::new(Settings::default());
        let first = rig.put(key(1), Dram, 10);
        rig.put(key(1), Ssd, 11);
        rig.put(key(2), Ssd, 12);
        rig.converge();
        assert_eq!(rig.media(key(1)), [Dram, Ssd]);
        rig.delete(key(1), Dram);
        rig.converge();
        assert_eq!(rig.media(key(1)), [Ssd]);
        let again = rig.put(key(1), Dram, 10);
        assert!(again > first, "equal content after an end is a new residence");
        rig.delete(key(1), Ssd);
        rig.delete(key(2), Ssd);
        rig.converge();
        assert_eq!(rig.lookup(0, key(1)), [(rig.sources[0].local.node, Dram, again, 10)]);
        assert_eq!(rig.media(key(2)), []);
    }
}

#[test]
fn an_interval_that_the_scope_filters_away_still_moves_the_watermark() {
    let scope = Scope::namespaces([digest(1)]).expect("one namespace");
    let mut rig = Rig::new(Settings { scope, ..Settings::default() });
    rig.converge();
    for block in 0..300 {
        rig.put(Key { namespace: 0, group: 0, block }, Dram, 1);
    }
    rig.converge();
    assert_eq!((rig.applied(0), rig.owners(0)[0].rows), (Some(Sequence(300)), 0));
    rig.put(Key { namespace: 1, group: 0, block: 7 }, Dram, 1);
    rig.converge();
    assert_eq!(rig.owners(0)[0].rows, 1);
    assert!(rig.sent(Kind::Progress) > 0, "what is empty is told as progress");
}

#[test]
fn an_owner_with_nothing_in_scope_has_a_committed_empty_view() {
    for scope in
        [Scope::All, Scope::namespaces([]).expect("none"), Scope::namespaces([digest(9)]).expect("one")]
    {
        let mut rig = Rig::new(Settings { scope: scope.clone(), ..Settings::default() });
        if scope != Scope::All {
            rig.put(key(1), Dram, 1);
        }
        assert_eq!(rig.coverage(0), Coverage::CompleteAtWatermarks, "a snapshot of nothing is soon there");
        rig.converge();
        assert_eq!((rig.owners(0)[0].rows, rig.sent(Kind::SnapshotPage)), (0, 0));
    }
    let mut unanswered = Rig::new(Settings::default());
    unanswered.reachable = false;
    unanswered.cut_all();
    unanswered.restart_requester(0);
    unanswered.publish();
    unanswered.advance(SECOND);
    assert_eq!(unanswered.coverage(0), Coverage::Unavailable, "which is not the same as no answer");
}

/// A delta as a forger spells it again.
fn respelled(header: &Header, from: u64, through: u64, frame: &[u8]) -> Vec<u8> {
    let message = decode_from_source(header, &frame[HEADER_BYTES..]).expect("a frame");
    let FromSource::Delta { changes, .. } = message else { panic!("a delta") };
    let body = source_body(&FromSource::Delta { from: Sequence(from), through: Sequence(through), changes });
    [&header_bytes(header)[..], &body.bytes].concat()
}

/// Delivers the next delta as `forge` has it; what became of the session, and that nothing else did.
fn forged(what: &str, forge: impl Fn(&Header, Vec<u8>) -> Vec<Vec<u8>> + 'static) -> Option<CloseCause> {
    forged_beside(what, 10, forge)
}

/// As [`forged`], with the watermark that the frames beside the forged one reach.
fn forged_beside(
    what: &str,
    reached: u64,
    forge: impl Fn(&Header, Vec<u8>) -> Vec<Vec<u8>> + 'static,
) -> Option<CloseCause> {
    let mut rig = filled(10, Settings::default());
    let closed = rig.requesters[0].closed.len();
    let mut done = false;
    rig.forger = Some(Box::new(move |header, frame| {
        if header.kind != Kind::Delta as u8 || done {
            return vec![frame];
        }
        done = true;
        forge(header, frame)
    }));
    rig.reachable = false;
    rig.put(key(100), Dram, 5);
    rig.put(key(101), Ssd, 6);
    rig.settle();
    let cause = rig.requesters[0].closed.get(closed).copied();
    if cause.is_some() {
        assert_eq!(rig.applied(0), Some(Sequence(reached)), "{what}: no watermark moves");
        if reached == 10 {
            assert_eq!(
                (rig.media(key(100)), rig.media(key(101))),
                (vec![], vec![]),
                "{what}: no row appears"
            );
        }
        assert_eq!(rig.coverage(0), Coverage::PartialHints, "{what}: nothing is called absent");
        assert_eq!(rig.media(key(1)), [Dram], "{what}: hints stay");
    }
    rig.reachable = true;
    rig.advance(4 * SECOND);
    rig.assert_equal();
    assert_eq!(rig.sent(Kind::SnapshotBegin), 1, "{what}: the view goes on where it was");
    cause
}

#[test]
fn a_duplicate_interval_is_a_duplicate_and_a_duplicate_frame_is_none() {
    let cause = forged_beside("a duplicate frame", 12, |_, frame| vec![frame.clone(), frame]);
    assert!(matches!(cause, Some(CloseCause::FrameNumber { .. })), "{cause:?}");
    // A second frame with the interval of the first: its changes were applied before.
    let cause = forged("a duplicate interval", |header, frame| {
        let next = Header { frame: header.frame + 1, ..*header };
        let again = [&header_bytes(&next)[..], &frame[HEADER_BYTES..]].concat();
        vec![frame, again]
    });
    assert_eq!(cause, None);
}

#[test]
fn overlap_and_gap_end_the_session_and_the_view_resumes() {
    let overlap = forged("an overlap", |header, frame| vec![respelled(header, 9, 12, &frame)]);
    assert!(matches!(overlap, Some(CloseCause::NotContiguous { .. })), "{overlap:?}");
    let gap = forged("a gap", |header, frame| {
        let message = decode_from_source(header, &frame[HEADER_BYTES..]).expect("a frame");
        let FromSource::Delta { through, changes, .. } = message else { panic!("a delta") };
        assert_eq!((through, changes.len()), (Sequence(12), 2));
        // The last record alone, in an interval that begins after the first.
        let mut body = frame[HEADER_BYTES..].to_vec();
        body.drain(body.len() - 2 * RECORD_BYTES..body.len() - RECORD_BYTES);
        body[..8].copy_from_slice(&11u64.to_le_bytes());
        let length = (HEADER_BYTES + body.len()) as u32;
        vec![[&header_bytes(&Header { count: 1, length, ..*header })[..], &body].concat()]
    });
    assert!(matches!(gap, Some(CloseCause::NotContiguous { .. })), "{gap:?}");
}

#[test]
fn a_frame_of_another_identity_changes_nothing() {
    let cause = forged("another session's tag", |header, frame| {
        let other = Header { tag: [9; 16], ..*header };
        vec![[&header_bytes(&other)[..], &frame[HEADER_BYTES..]].concat(), frame]
    });
    assert_eq!(cause, None, "it is not even looked into");
}

#[test]
fn a_wrong_enum_ends_the_session() {
    let kind = forged("a kind that is none", |header, frame| {
        vec![[&header_bytes(&Header { kind: 99, ..*header })[..], &frame[HEADER_BYTES..]].concat()]
    });
    assert!(matches!(kind, Some(CloseCause::Frame(FrameError::Kind { number: 99 }))), "{kind:?}");
    let effect = forged("an effect that is none", |_, mut frame| {
        // The effect lies before bytes and sequence at the end of a record.
        let place = frame.len() - 13;
        frame[place] = 77;
        vec![frame]
    });
    assert!(matches!(effect, Some(CloseCause::Frame(FrameError::Contradiction { .. }))), "{effect:?}");
}

#[test]
fn a_wrong_size_ends_the_session() {
    let cut = forged("a frame cut short", |_, mut frame| {
        frame.pop();
        vec![frame]
    });
    assert!(matches!(cut, Some(CloseCause::NotOneFrame { .. })), "{cut:?}");
    let huge = forged("a length beyond the bound", |header, frame| {
        let header = Header { length: u32::MAX, ..*header };
        vec![[&header_bytes(&header)[..], &frame[HEADER_BYTES..]].concat()]
    });
    assert!(matches!(huge, Some(CloseCause::Frame(FrameError::Length { .. }))), "{huge:?}");
    let count = forged("more records than bytes", |header, frame| {
        let header = Header { count: header.count + 1, ..*header };
        vec![[&header_bytes(&header)[..], &frame[HEADER_BYTES..]].concat()]
    });
    assert!(matches!(count, Some(CloseCause::Frame(_))), "{count:?}");
}

#[test]
fn a_coalesced_interval_larger_than_a_frame_is_shortened() {
    let settings =
        Settings { body_bytes: 600, window_frames: 8, interval_records: 1_000, ..Settings::default() };
    let mut rig = filled(2, settings);
    let before = rig.sent(Kind::Delta);
    for block in 0..200 {
        rig.put(key(1_000 + block), Dram, 1);
    }
    for block in 0..200 {
        // Of each third block only the newest state is told.
        if block % 3 == 0 {
            rig.delete(key(1_000 + block), Dram);
            rig.put(key(1_000 + block), Dram, 2);
        }
    }
    rig.converge();
    assert!(rig.sent(Kind::Delta) - before >= 200 / 12, "a frame of 600 bytes has no more than 12 changes");
}

/// A rig whose requester has taken one page of a snapshot of 40 blocks, and no more.
fn scanning(settings: Settings) -> Rig {
    let mut rig = Rig::new(settings);
    rig.cut_all();
    for block in 0..40 {
        rig.put(key(2 * block), Dram, 1);
    }
    rig.restart_requester(0);
    rig.hold_after = Some((Kind::SnapshotPage, 1));
    rig.publish();
    rig.advance(SECOND);
    assert!(rig.requesters[0].held, "a page has come");
    assert_eq!(rig.coverage(0), Coverage::Unavailable, "a staging is hidden");
    rig
}

fn small_pages() -> Settings {
    Settings {
        page_records: 4,
        window_frames: 2,
        body_bytes: 400,
        interval_records: 8,
        ..Settings::default()
    }
}

#[test]
fn a_scan_under_mutation_ends_as_the_source_is() {
    let mut rig = scanning(small_pages());
    let begun = rig.sent(Kind::SnapshotBegin);
    rig.put(key(1), Dram, 9); // inserted behind the cursor
    rig.put(key(2), Ssd, 9); // another medium behind the cursor
    rig.delete(key(0), Dram); // deleted after its page
    rig.delete(key(78), Dram); // deleted ahead of the cursor
    rig.put(key(77), Dram, 9); // inserted ahead of the cursor
    for bytes in 1..=5 {
        // Used again and again, behind the cursor and ahead of it.
        for block in [4, 60] {
            rig.delete(key(block), Dram);
            rig.put(key(block), Dram, bytes);
        }
    }
    rig.requesters[0].held = false;
    rig.converge();
    assert_eq!(rig.sent(Kind::SnapshotBegin), begun, "one snapshot was enough");
    assert_eq!(
        (rig.media(key(0)), rig.media(key(1)), rig.media(key(2))),
        (vec![], vec![Dram], vec![Dram, Ssd])
    );
}

#[test]
fn a_history_overrun_during_the_scan_begins_a_snapshot_again() {
    let mut rig = scanning(Settings { journal_records: 45, ..small_pages() });
    let begun = rig.sent(Kind::SnapshotBegin);
    for round in 0..40 {
        rig.delete(key(0), Dram);
        rig.put(key(0), Dram, 1 + round);
    }
    rig.requesters[0].held = false;
    rig.advance(4 * SECOND);
    rig.assert_equal();
    assert!(rig.sent(Kind::SnapshotBegin) > begun && rig.sent(Kind::ResetRequired) > 0);
    assert!(rig.requesters[0].subscriber.figures().resets[&ResetCause::HistoryGone] > 0);
}

#[test]
fn a_history_overrun_during_the_replay_begins_a_snapshot_again() {
    let mut rig = scanning(Settings { journal_records: 64, ..small_pages() });
    for block in 0..50 {
        rig.put(key(1_001 + 2 * block), Dram, 1);
    }
    rig.hold_after = Some((Kind::Delta, 1));
    rig.requesters[0].held = false;
    rig.advance(SECOND);
    assert!(rig.requesters[0].held, "the replay has begun");
    let (begun, commits) = (rig.sent(Kind::SnapshotBegin), rig.sent(Kind::SnapshotCommit));
    for round in 0..100 {
        rig.delete(key(0), Dram);
        rig.put(key(0), Dram, 1 + round);
    }
    rig.advance(Duration::from_millis(1));
    assert_eq!((rig.sent(Kind::SnapshotCommit), rig.coverage(0)), (commits, Coverage::Unavailable));
    rig.requesters[0].held = false;
    rig.advance(4 * SECOND);
    rig.assert_equal();
    assert!(rig.sent(Kind::SnapshotBegin) > begun, "no hole is committed");
}

#[test]
fn a_lost_commit_ack_costs_nothing() {
    let mut rig = Rig::new(Settings::default());
    rig.cut_all();
    rig.put(key(1), Dram, 1);
    rig.restart_requester(0);
    rig.hold_after = Some((Kind::SnapshotCommit, 1));
    rig.publish();
    rig.settle();
    assert_eq!(rig.coverage(0), Coverage::CompleteAtWatermarks, "committed");
    // The ACK is due in ten milliseconds; the connection is gone before.
    let begun = rig.sent(Kind::SnapshotBegin);
    rig.cut_all();
    rig.requesters[0].held = false;
    rig.put(key(2), Dram, 1);
    rig.advance(4 * SECOND);
    rig.assert_equal();
    assert_eq!(rig.sent(Kind::SnapshotBegin), begun, "the view goes on");
    assert!(rig.sent(Kind::Resumed) > 0);
}

#[test]
fn a_reconnect_resumes_and_a_receiver_restart_bootstraps() {
    let mut rig = filled(20, Settings::default());
    let begun = rig.sent(Kind::SnapshotBegin);
    rig.cut_all();
    assert_eq!((rig.coverage(0), rig.media(key(1))), (Coverage::PartialHints, vec![Dram]), "hints stay");
    rig.delete(key(1), Dram);
    rig.put(key(50), Ssd, 1);
    rig.advance(4 * SECOND);
    rig.assert_equal();
    assert_eq!((rig.sent(Kind::SnapshotBegin), rig.sent(Kind::Resumed)), (begun, 1));
    rig.restart_requester(0);
    rig.publish();
    rig.advance(4 * SECOND);
    rig.assert_equal();
    assert_eq!(rig.sent(Kind::SnapshotBegin), begun + 1);
}

#[test]
fn a_slow_subscriber_falls_to_a_snapshot() {
    let mut rig = filled(20, Settings { journal_records: 64, ..Settings::default() });
    rig.requesters[0].held = true;
    for block in 0..500 {
        rig.put(key(1_000 + block), Dram, 1);
        rig.settle();
    }
    assert!(rig.waiting() <= 64, "frames in flight are bounded by credit");
    rig.requesters[0].held = false;
    rig.advance(6 * SECOND);
    rig.assert_equal();
    assert!(rig.requesters[0].subscriber.figures().resets.values().sum::<u64>() > 0);
}

#[test]
fn blocked_writes_wait_and_go_on() {
    let mut rig = Rig::new(Settings { body_bytes: 400, window_frames: 64, ..Settings::default() });
    rig.requesters[0].transport_bytes = 500;
    for block in 0..300 {
        rig.put(key(block), Dram, 1);
    }
    rig.requesters[0].held = true;
    rig.advance(Duration::from_millis(50));
    assert!(rig.waiting() <= 3, "a blocked transport is given nothing");
    rig.requesters[0].held = false;
    rig.converge();
}

#[test]
fn decode_pressure_is_taken_in_steps() {
    let settings = Settings {
        step_records: 3,
        interval_records: 64,
        coalesce: Duration::from_millis(5),
        ..Settings::default()
    };
    let mut rig = filled(20, settings);
    for round in 1..=20 {
        for block in 0..20 {
            rig.delete(key(block), if block % 3 == 0 { Ssd } else { Dram });
            rig.put(key(block), if block % 3 == 0 { Ssd } else { Dram }, round);
        }
        rig.advance(Duration::from_millis(7));
    }
    rig.converge();
    assert!(rig.requesters[0].subscriber.figures().frames_in_steps > 0);
}

#[test]
fn what_does_not_fit_beside_the_old_view_takes_its_place() {
    let settings = Settings { journal_records: 32, index_bytes: 15_000, ..Settings::default() };
    let mut rig = filled(100, settings);
    // A hundred rows take 6.4 kB; a snapshot is planned with 88 bytes a row and 32 rows to grow by.
    // A history gap asks for a snapshot, for which there is no room beside what is shown.
    rig.cut_all();
    for round in 1..=32 {
        rig.delete(key(1), Dram);
        rig.put(key(1), Dram, round);
    }
    rig.advance(60 * SECOND);
    rig.assert_equal();
    let index = rig.requesters[0].partition.accounting();
    assert!(index.charged_bytes_peak <= index.budget_bytes, "{index:?}");
    assert!(rig.requesters[0].subscriber.figures().views_withdrawn > 0, "old and new are charged together");
}

#[test]
fn what_fits_in_no_case_is_not_asked_for_in_a_loop() {
    let settings = Settings { journal_records: 32, index_bytes: 10_000, ..Settings::default() };
    let mut rig = Rig::new(settings);
    for block in 0..500 {
        rig.put(key(block), Dram, 1);
    }
    rig.advance(20 * SECOND);
    let offers = rig.sent(Kind::SnapshotBegin);
    assert_ne!(rig.coverage(0), Coverage::CompleteAtWatermarks, "it does not fit");
    rig.advance(100 * SECOND);
    assert!(rig.sent(Kind::SnapshotBegin) - offers <= 4, "it is offered again every thirty seconds at most");
    for block in 10..500 {
        rig.delete(key(block), Dram);
    }
    rig.advance(70 * SECOND);
    rig.assert_equal();
}

#[test]
fn a_member_that_joins_is_followed_and_one_that_leaves_is_gone_at_once() {
    let mut rig = filled(10, Settings::default());
    let address = SocketAddr::from(([10, 0, 0, 9], 7_000));
    let joined = rig.add_source("source-9", address, Settings::default());
    rig.sources[joined].put(key(3), Ssd, 4);
    rig.publish();
    rig.converge();
    assert_eq!(rig.lookup(0, key(3)).len(), 2, "two owners");
    let mut members = rig.members();
    members.retain(|member| member.address != address);
    rig.map = orbitkv_shards::members::MemberMap::new(rig.map.revision + 1, members);
    rig.lower(0);
    assert_eq!(rig.lookup(0, key(3)).len(), 1, "before any turn");
    rig.settle();
    rig.sources.pop();
    rig.advance(SECOND);
    assert_eq!(rig.requesters[0].partition.accounting().retired_rows, 0, "and from memory soon after");
}

#[test]
fn a_reused_endpoint_is_another_member() {
    let mut rig = filled(10, Settings::default());
    let address = rig.sources[0].address;
    // Another node listens where the first one was, and nobody has heard of it.
    rig.cut_all();
    let gone = rig.sources.remove(0);
    let new = rig.add_source("source-5", address, Settings::default());
    rig.sources[new].put(key(1), Dram, 77);
    rig.advance(3 * SECOND);
    assert_eq!(rig.connections(), [], "a dial for the one is not answered by the other");
    assert_eq!(rig.lookup(0, key(1)), [(gone.local.node, Dram, Sequence(2), 101)], "old hints stay hints");
    assert_eq!(rig.coverage(0), Coverage::PartialHints);
    rig.publish();
    rig.advance(4 * SECOND);
    rig.assert_equal();
    assert_eq!(rig.lookup(0, key(1)), [(rig.sources[0].local.node, Dram, Sequence(1), 77)]);
}

#[test]
fn a_restarted_source_begins_anew() {
    let mut rig = filled(10, Settings::default());
    rig.restart_source(0);
    rig.put(key(200), Dram, 1);
    rig.advance(3 * SECOND);
    assert_eq!(rig.coverage(0), Coverage::PartialHints, "the old life is not answered for by the new one");
    rig.publish();
    rig.advance(4 * SECOND);
    rig.assert_equal();
}

#[test]
fn an_open_into_a_life_that_is_over_is_refused_as_that() {
    let mut rig = filled(10, Settings::default());
    // The source is fenced and its journal restarts; another life is not registered yet.
    let now = rig.now;
    rig.sources[0].publisher.on_fenced(now);
    rig.sources[0].journal.restart();
    rig.advance(2 * SECOND);
    assert_eq!(rig.coverage(0), Coverage::PartialHints);
    let refused = |cause: &SourceClose| matches!(cause, SourceClose::Refused(OpenRefusal::Fenced));
    let ends: Vec<_> =
        rig.sources[0].closed.iter().filter(|cause| !matches!(cause, SourceClose::Fenced)).collect();
    assert!(
        !ends.is_empty() && ends.iter().all(|cause| refused(cause)),
        "nobody broke the protocol: {ends:?}"
    );
}

#[test]
fn mixed_namespaces_keep_apart() {
    for scope in [Scope::All, Scope::namespaces([digest(1), digest(3)]).expect("two")] {
        let mut rig =
            Rig::new(Settings { scope, page_records: 7, interval_records: 16, ..Settings::default() });
        let named = |namespace, block| Key { namespace, group: u16::from(namespace), block };
        for block in 0..60 {
            for namespace in 0..5 {
                rig.put(named(namespace, block), if block % 2 == 0 { Dram } else { Ssd }, 1);
            }
        }
        rig.converge();
        for block in 0..60 {
            for namespace in [4, 1, 0] {
                rig.delete(named(namespace, block), if block % 2 == 0 { Dram } else { Ssd });
            }
        }
        rig.put(named(1, 999), Dram, 1);
        rig.converge();
        rig.restart_requester(0);
        rig.publish();
        rig.converge();
    }
}
