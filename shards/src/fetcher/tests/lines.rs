//! Connections, and who may be asked at all.

use orbitkv_wire::engine::answers::BlockOutcome;
use orbitkv_wire::identity::{Incarnation, Medium, ShardIndex};
use orbitkv_wire::inventory::SourceStream;

use super::rig::*;
use crate::fetcher::*;
use crate::members::MemberMap;

fn small(connections_max: usize) -> Rig {
    Rig::with(FetcherSettings { connections_max, dials_max: 2, ..FetcherSettings::default() })
}

#[test]
fn a_source_is_dialed_when_it_is_of_use_and_once() {
    let mut rig = Rig::new();
    assert!(rig.dials.is_empty());
    rig.begin(1, &[at("a")]);
    rig.begin(2, &[at("a")]);
    rig.step();
    rig.begin(3, &[at("a")]);
    rig.step();
    assert_eq!(rig.dials.len(), 1);
    let other = SourceStream { shard: ShardIndex(1), ..source("a", 1) };
    rig.begin(4, &[Candidate { source: other, ..at("a") }]);
    rig.step();
    assert_eq!(rig.dials.len(), 2, "each shard has a connection of its own");
}

#[test]
fn a_connection_of_no_use_is_closed() {
    let mut rig = Rig::new();
    rig.begin(1, &[at("a")]);
    rig.connect();
    let number = rig.operation("a");
    rig.grant_all(number);
    rig.serve(number, 0);
    rig.pass(5_000);
    rig.begin(2, &[at("a")]);
    rig.step();
    rig.grant_all(rig.operation("a"));
    rig.serve(rig.operation("a"), 0);
    rig.pass(9_999);
    assert!(rig.closed.is_empty());
    rig.pass(1);
    assert_eq!(rig.closed, [CloseCause::Idle]);
    assert_eq!((rig.room.connections(), rig.room.next_deadline()), (0, None));
}

#[test]
fn a_failed_dial_is_a_failed_route_and_a_pause() {
    let mut rig = Rig::new();
    rig.begin(1, &[at("a"), at("b")]);
    rig.begin(2, &[at("a")]);
    rig.step();
    rig.fail_dials();
    assert_eq!(rig.outcome(), Err(BlockOutcome::Missing));
    assert_eq!(rig.dials.values().collect::<Vec<_>>(), [&source("b", 1)]);
    // While it rests it is passed over, or waited for.
    rig.ended.clear();
    rig.begin(3, &[at("a"), at("b")]);
    rig.begin(4, &[at("a")]);
    rig.connect();
    let asked: Vec<_> = rig.operations("b").into_iter().map(|number| rig.blocks(number)).collect();
    assert_eq!(asked, [[1], [3]], "one for the second time");
    assert!(rig.dials.is_empty() && rig.ended.is_empty());
    rig.pass(200);
    assert_eq!(rig.dials.values().collect::<Vec<_>>(), [&source("a", 1)]);
    rig.connect();
    assert_eq!(rig.blocks(rig.operation("a")), [4]);
}

#[test]
fn who_has_less_time_than_a_source_rests_is_out_of_time_and_misses_nothing() {
    let mut rig = Rig::new();
    rig.begin(1, &[at("a")]);
    rig.step();
    rig.fail_dials();
    rig.ended.clear();
    rig.begin_within(order(2, u64::from(BYTES)), &[at("a")], 50);
    rig.pass(49);
    assert!(rig.ended.is_empty());
    rig.pass(1);
    assert_eq!(rig.outcome(), Err(BlockOutcome::DeadlineExceeded));
}

#[test]
fn what_was_not_asked_waits_for_a_lost_source() {
    let mut rig = Rig::with(FetcherSettings { operations_max: 1, ..FetcherSettings::default() });
    rig.begin(1, &[at("a")]);
    rig.connect();
    rig.begin(2, &[at("a")]);
    rig.step();
    rig.lose("a");
    assert_eq!(rig.outcome(), Err(BlockOutcome::Missing), "the first was asked, and had no other");
    rig.pass(200);
    rig.connect();
    assert_eq!(rig.blocks(rig.operation("a")), [2]);
}

#[test]
fn at_most_three_routes_are_tried() {
    let mut rig = Rig::new();
    rig.begin(1, &[at("a"), at("b"), at("c"), at("d")]);
    for _ in 0..3 {
        assert!(rig.ended.is_empty());
        rig.step();
        rig.fail_dials();
    }
    assert_eq!(rig.outcome(), Err(BlockOutcome::Missing));
    assert_eq!((rig.room.figures().dials, rig.room.figures().rerouted), (3, 2));
}

#[test]
fn dials_and_connections_are_bounded() {
    let mut rig = small(3);
    for (copy, name) in (1..).zip(["a", "b", "c", "d"]) {
        rig.begin(copy, &[at(name)]);
    }
    rig.step();
    assert_eq!(rig.dials.len(), 2);
    rig.connect();
    rig.connect();
    assert_eq!((rig.connections.len(), rig.dials.len()), (3, 0), "the fourth waits for a place");
    let number = rig.operation("b");
    rig.grant_all(number);
    rig.serve(number, 0);
    rig.pass(100);
    assert_eq!(rig.closed, [CloseCause::Displaced]);
    rig.connect();
    assert_eq!(rig.blocks(rig.operation("d")), [4]);
    assert!(!rig.sources().contains(&source("b", 1)));
}

#[test]
fn a_dial_that_nobody_waits_for_any_more_still_counts() {
    let mut rig = small(1);
    rig.begin(1, &[at("a")]);
    rig.step();
    rig.members(vec![member("b", 1)]);
    rig.begin(2, &[at("b")]);
    rig.step();
    assert_eq!(rig.dials.values().collect::<Vec<_>>(), [&source("a", 1)]);
    rig.connect();
    assert_eq!(rig.closed, [CloseCause::NotWanted]);
    rig.pass(100);
    assert_eq!(rig.dials.values().collect::<Vec<_>>(), [&source("b", 1)]);
}

#[test]
fn only_members_in_the_told_life_are_asked() {
    let mut rig = Rig::new();
    let older = Candidate { source: source("a", 0), ..at("a") };
    let no_shard = Candidate { source: SourceStream { shard: ShardIndex(2), ..source("a", 1) }, ..at("a") };
    let longer = Candidate { bytes: BYTES + 1, ..at("a") };
    rig.begin(1, &[older, at("z"), no_shard, longer]);
    rig.step();
    assert_eq!(rig.outcome(), Err(BlockOutcome::Missing));
    assert_eq!(rig.room.figures().dials, 0);
}

#[test]
fn who_leaves_or_is_replaced_is_closed_at_once() {
    for members in [vec![member("b", 1)], vec![member("a", 2), member("b", 1)]] {
        let mut rig = Rig::new();
        rig.begin(1, &[at("a"), at("b")]);
        rig.connect();
        let number = rig.operation("a");
        rig.grant_all(number);
        rig.announce(number, 0);
        rig.members(members);
        assert_eq!((rig.closed.as_slice(), rig.ending(number)), (&[CloseCause::MemberGone][..], "none"));
        rig.connect();
        assert_eq!(rig.blocks(rig.operation("b")), [1]);
        // A map from before is late.
        rig.room.on_members(&MemberMap::new(1, vec![member("a", 1)]));
        rig.step();
        assert!(rig.sources().contains(&source("b", 1)));
    }
}

#[test]
fn what_another_core_heard_excludes_here_too() {
    let mut rig = Rig::new();
    rig.begin(1, &[at("a"), at("b")]);
    rig.connect();
    rig.room.on_excluded(node("a"), Incarnation([1; 16]));
    rig.step();
    assert_eq!((rig.closed.as_slice(), rig.excluded.len()), (&[CloseCause::MemberGone][..], 0));
    rig.connect();
    assert_eq!(rig.blocks(rig.operation("b")), [1]);
}

#[test]
fn a_fence_ends_everything() {
    let mut rig = Rig::with(FetcherSettings { operations_max: 1, ..FetcherSettings::default() });
    rig.begin(1, &[at("a")]);
    rig.connect();
    rig.grant_all(rig.operation("a"));
    rig.begin(2, &[at("a")]);
    rig.begin(3, &[at("b")]);
    rig.step();
    rig.room.on_fenced();
    rig.step();
    assert_eq!(rig.ended.iter().filter(|(_, how)| *how == Err(BlockOutcome::Missing)).count(), 3);
    assert_eq!((rig.closed.as_slice(), rig.room.fetches()), (&[CloseCause::Fenced][..], 0));
    rig.connect();
    assert_eq!(rig.closed[1], CloseCause::NotWanted, "a dial that was on its way");
    rig.ended.clear();
    rig.begin(4, &[at("a")]);
    rig.step();
    assert_eq!(rig.outcome(), Err(BlockOutcome::Missing));
    rig.ended.clear();
    rig.room.on_registered(local());
    rig.members(vec![member("a", 1)]);
    rig.begin(5, &[at("a")]);
    rig.connect();
    rig.grant_all(rig.operation("a"));
    rig.serve(rig.operation("a"), 0);
    assert_eq!(rig.outcome(), Ok(Medium::Dram));
}

#[test]
fn nobody_is_asked_while_membership_does_not_hold() {
    let mut rig = Rig::with(FetcherSettings { operations_max: 1, ..FetcherSettings::default() });
    rig.begin(1, &[at("a")]);
    rig.connect();
    rig.begin(2, &[at("a")]);
    rig.step();
    rig.room.on_membership_invalid();
    rig.step();
    assert_eq!(rig.outcome(), Err(BlockOutcome::Missing), "what was not asked");
    rig.ended.clear();
    rig.grant_all(rig.operation("a"));
    rig.serve(rig.operation("a"), 0);
    assert_eq!(rig.outcome(), Ok(Medium::Dram), "what was asked goes on");
}

#[test]
fn bytes_that_are_no_frame_close_the_connection() {
    let mut rig = Rig::new();
    rig.begin(1, &[at("a"), at("b")]);
    rig.connect();
    let frame = Violation::Frame(orbitkv_wire::payload::FrameError::Length { length: 3 });
    rig.room.on_bad_frame(rig.connection("a"), frame, rig.now);
    rig.step();
    assert_eq!(rig.closed, [CloseCause::Violation(frame)]);
    rig.connect();
    assert_eq!(rig.blocks(rig.operation("b")), [1]);
}
