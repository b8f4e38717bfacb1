//! What is asked for together, and in which order.

use std::time::Duration;

use orbitkv_wire::bounds::{DEADLINE_MS_MAX, GRANT_KEYS_MAX};
use orbitkv_wire::engine::answers::BlockOutcome;
use orbitkv_wire::identity::Medium;
use orbitkv_wire::payload::StopCause;

use super::rig::*;
use crate::fetcher::*;
use crate::residents::CopyId;

/// How much more time than a fetch has its source is told.
const GRACE_MS: u32 = 1_000;

#[test]
fn what_begins_before_one_turn_is_asked_for_together() {
    let mut rig = Rig::new();
    for copy in 0..300 {
        rig.begin(copy, &[at(if copy % 2 == 0 { "a" } else { "b" })]);
    }
    rig.connect();
    let sizes = |rig: &Rig, name: &str| {
        rig.operations(name).iter().map(|number| rig.blocks(*number).len()).collect::<Vec<_>>()
    };
    assert_eq!((sizes(&rig, "a"), sizes(&rig, "b")), (vec![GRANT_KEYS_MAX, 22], vec![GRANT_KEYS_MAX, 22]));
}

#[test]
fn operations_of_a_source_are_bounded() {
    let mut rig = Rig::new();
    for copy in 0..600 {
        rig.begin(copy, &[at("a")]);
    }
    rig.connect();
    let operations = rig.operations("a");
    assert_eq!(operations.len(), 4);
    assert_eq!(rig.blocks(operations[1])[0], GRANT_KEYS_MAX as u32, "in the order they began");
    rig.grant_all(operations[0]);
    for index in 0..GRANT_KEYS_MAX as u16 {
        rig.serve(operations[0], index);
    }
    assert_eq!(rig.blocks(*rig.operations("a").last().unwrap()).len(), 600 - 4 * GRANT_KEYS_MAX);
}

#[test]
fn who_has_least_time_goes_first_and_then_who_came_first() {
    let mut rig =
        Rig::with(FetcherSettings { residences_max: 2, operations_max: 1, ..FetcherSettings::default() });
    for (copy, millis) in [(1, 900), (2, 300), (3, 900), (4, 100), (5, 600)] {
        rig.begin_within(order(copy, u64::from(BYTES)), &[at("a")], millis);
    }
    rig.connect();
    for expected in [vec![4, 2], vec![5, 1], vec![3]] {
        let number = rig.operation("a");
        assert_eq!(rig.blocks(number), expected);
        rig.grant_all(number);
        (0..expected.len()).for_each(|index| rig.serve(number, index as u16));
    }
}

#[test]
fn the_source_hears_the_time_of_who_has_most() {
    let mut rig = Rig::new();
    rig.begin_within(order(1, 100), &[at("a")], 30);
    rig.begin_within(order(2, 100), &[at("a")], 700);
    rig.connect();
    assert_eq!(rig.asked[&rig.operation("a")].authorize.deadline_ms, 700 + GRACE_MS);
    rig.begin_within(order(3, 100), &[at("b")], 10 * u64::from(DEADLINE_MS_MAX));
    rig.connect();
    assert_eq!(rig.asked[&rig.operation("b")].authorize.deadline_ms, DEADLINE_MS_MAX);
}

/// A room that asks a source for one block after the other.
fn one_by_one() -> Rig {
    Rig::with(FetcherSettings { residences_max: 1, operations_max: 1, ..FetcherSettings::default() })
}

/// What waits for `a` is asked for and comes in this order.
#[track_caller]
fn are_brought(rig: &mut Rig, copies: [u32; 3]) {
    rig.connect();
    for copy in copies {
        let number = rig.operation("a");
        assert_eq!(rig.blocks(number), [copy]);
        rig.grant_all(number);
        rig.serve(number, 0);
    }
}

#[test]
fn who_has_time_is_passed_for_a_second_and_then_goes_first() {
    let mut rig = one_by_one();
    rig.begin_within(order(1, u64::from(BYTES)), &[at("a")], 60_000);
    rig.pass(500);
    rig.begin_within(order(2, u64::from(BYTES)), &[at("a")], 400);
    rig.begin_within(order(3, u64::from(BYTES)), &[at("a")], 600);
    are_brought(&mut rig, [2, 1, 3]);
}

#[test]
fn who_waits_longer_gives_a_fetch_more_time_wherever_it_is() {
    let after = |rig: &Rig, millis| rig.now + Duration::from_millis(millis);
    // Queued: it goes behind who has less time now.
    let mut rig = one_by_one();
    for (copy, millis) in [(1, 100), (2, 300), (3, 600)] {
        rig.begin_within(order(copy, u64::from(BYTES)), &[at("a")], millis);
    }
    rig.step();
    rig.room.on_awaited(CopyId(1), after(&rig, 400), rig.now);
    rig.room.on_awaited(CopyId(3), after(&rig, 200), rig.now);
    are_brought(&mut rig, [2, 1, 3]);

    // Asked for: its source was told of less, and is asked again when that is over.
    let stall_wait = Duration::from_secs(5);
    let mut rig = Rig::with(FetcherSettings { stall_wait, ..FetcherSettings::default() });
    rig.begin_within(order(1, u64::from(BYTES)), &[at("a")], 200);
    rig.connect();
    let first = rig.operation("a");
    assert_eq!(rig.asked[&first].authorize.deadline_ms, 200 + GRACE_MS);
    rig.room.on_awaited(CopyId(1), after(&rig, 2_000), rig.now);
    rig.pass(200 + u64::from(GRACE_MS));
    assert!(rig.ended.is_empty(), "somebody still waits");
    rig.stream_over(first, StreamEnd::Reset { code: StopCause::Deadline as u64 });
    let again = rig.operation("a");
    assert_eq!((again == first, rig.asked[&again].authorize.deadline_ms), (false, 800 + GRACE_MS));
    assert_eq!(rig.room.figures().calls_failed, 0);
    rig.pass(799);
    assert!(rig.ended.is_empty());
    rig.pass(1);
    assert_eq!(rig.outcome(), Err(BlockOutcome::DeadlineExceeded));
    rig.room.on_awaited(CopyId(1), after(&rig, 500), rig.now);
    rig.step();
}

#[test]
fn bytes_on_their_way_are_bounded_in_all_and_for_each_source() {
    let bounds = FetcherSettings { bytes_max: 500, source_bytes_max: 300, ..FetcherSettings::default() };
    let mut rig = Rig::with(bounds);
    (1..=4).for_each(|copy| rig.begin(copy, &[at("a")]));
    (5..=7).for_each(|copy| rig.begin(copy, &[at("b")]));
    rig.connect();
    assert_eq!(rig.room.bytes_outstanding(), 500);
    assert_eq!(rig.blocks(rig.operation("a")), [1, 2, 3]);
    assert_eq!(rig.blocks(rig.operation("b")), [5, 6]);
    let number = rig.operation("a");
    rig.grant_all(number);
    rig.serve(number, 0);
    assert_eq!(rig.blocks(rig.operations("a")[1]), [4], "room comes back with the bytes");
    rig.serve(number, 1);
    assert_eq!(rig.blocks(rig.operations("b")[1]), [7]);
    assert_eq!(rig.room.figures().bytes_outstanding_peak, 500);
}

#[test]
fn room_that_comes_back_block_by_block_is_asked_for_by_half_a_window() {
    for bounds in [
        FetcherSettings { source_bytes_max: 1_000, ..FetcherSettings::default() },
        FetcherSettings { bytes_max: 1_000, source_bytes_max: 1_000, ..FetcherSettings::default() },
    ] {
        let mut rig = Rig::with(bounds);
        (1..=17).for_each(|copy| rig.begin(copy, &[at("a")]));
        rig.connect();
        let first = rig.operation("a");
        rig.grant_all(first);
        (0..4).for_each(|index| rig.serve(first, index));
        assert_eq!(rig.operations("a").len(), 1, "room for 4 of 7 that wait, and 6 are on their way");
        rig.serve(first, 4);
        assert_eq!(rig.blocks(rig.operations("a")[1]), [11, 12, 13, 14, 15]);
        (5..7).for_each(|index| rig.serve(first, index));
        assert_eq!(rig.blocks(rig.operations("a")[2]), [16, 17], "room for all that wait");
    }
}

#[test]
fn a_block_larger_than_the_window_goes_alone_and_is_not_passed() {
    let bounds = FetcherSettings { bytes_max: 500, source_bytes_max: 500, ..FetcherSettings::default() };
    let mut rig = Rig::with(bounds);
    rig.begin_within(order(1, 100), &[at("a")], 100);
    let large = Candidate { bytes: 600, ..at("b") };
    rig.begin_within(order(2, 600), &[large], 200);
    rig.begin_within(order(3, 100), &[at("a")], 300);
    rig.connect();
    assert_eq!(rig.blocks(rig.operation("a")), [1, 3], "what is asked together is not split for others");
    assert!(rig.operations("b").is_empty());
    rig.begin_within(order(4, 100), &[at("c")], 400);
    rig.connect();
    assert!(rig.operations("c").is_empty(), "smaller ones wait behind it");
    rig.grant_all(rig.operation("a"));
    let number = rig.operation("a");
    rig.serve(number, 0);
    rig.serve(number, 1);
    assert_eq!(rig.blocks(rig.operation("b")), [2]);
    assert!(rig.operations("c").is_empty());
}

#[test]
fn no_block_is_in_one_operation_twice() {
    let mut rig = Rig::new();
    rig.begin(1, &[at("a")]);
    rig.begin_within(Order { copy: CopyId(2), ..order(1, 100) }, &[at("a")], 60_000);
    let on_ssd = Candidate { medium: Medium::Ssd, ..at("a") };
    rig.begin_within(Order { copy: CopyId(3), ..order(1, 100) }, &[on_ssd], 60_000);
    rig.connect();
    let sizes: Vec<_> = rig.operations("a").iter().map(|number| rig.blocks(*number).len()).collect();
    assert_eq!(sizes, [2, 1]);
}

#[test]
fn too_many_fetches_are_busy() {
    let mut rig = Rig::with(FetcherSettings { fetches_max: 2, ..FetcherSettings::default() });
    (1..=3).for_each(|copy| rig.begin(copy, &[at("a")]));
    rig.step();
    assert_eq!(rig.ended, [(CopyId(3), Err(BlockOutcome::Busy))]);
    assert_eq!(rig.room.figures().fetches_peak, 2);
}
