//! What nobody waits for: behind all that somebody does, within its share, one operation a source, and on one route.

use std::time::Duration;

use orbitkv_wire::engine::answers::BlockOutcome;
use orbitkv_wire::identity::Medium;
use orbitkv_wire::payload::{Answer, StopCause};

use super::rig::*;
use crate::fetcher::*;
use crate::residents::CopyId;
use crate::resilience::gate::Class;

/// A source stops what it was granted no longer.
const TIME_OVER: StreamEnd = StreamEnd::Reset { code: StopCause::Deadline as u64 };

fn ahead(copy: u32) -> Order {
    Order { class: Class::Background, ..order(copy, u64::from(BYTES)) }
}

fn begin(rig: &mut Rig, copies: impl IntoIterator<Item = u32>, name: &str) {
    copies.into_iter().for_each(|copy| rig.begin_within(ahead(copy), &[at(name)], 60_000));
}

/// A rig whose share is so many blocks.
fn rig(blocks: u64) -> Rig {
    let background_bytes_max = blocks * u64::from(BYTES);
    Rig::with(FetcherSettings { background_bytes_max, ..FetcherSettings::default() })
}

#[test]
fn demand_is_asked_for_first_and_apart_however_late_it_comes() {
    let mut rig = rig(8);
    begin(&mut rig, [1, 2], "a");
    rig.begin(3, &[at("a")]);
    rig.begin(4, &[at("b")]);
    rig.connect();
    let blocks: Vec<_> = rig.operations("a").iter().map(|number| rig.blocks(*number)).collect();
    assert_eq!(blocks, [vec![3], vec![1, 2]]);
}

#[test]
fn demand_that_waits_for_a_line_holds_back_what_nobody_waits_for() {
    let mut rig = rig(8);
    rig.begin(1, &[at("a")]);
    rig.connect();
    let first = rig.operation("a");
    rig.grant_all(first);
    rig.serve(first, 0);
    // To b there is no connection yet.
    rig.begin(2, &[at("b")]);
    begin(&mut rig, [3], "a");
    rig.step();
    assert_eq!(rig.operations("a").len(), 0);
    rig.connect();
    assert_eq!((rig.operations("a").len(), rig.operations("b").len()), (1, 1));
}

#[test]
fn a_source_has_one_such_operation_and_all_have_their_share() {
    let mut rig = rig(3);
    begin(&mut rig, 1..=5, "a");
    begin(&mut rig, 11..=15, "b");
    rig.connect();
    let asked = |rig: &Rig| -> usize {
        let of = |name: &str| -> usize {
            assert!(rig.operations(name).len() <= 1);
            rig.operations(name).iter().map(|number| rig.blocks(*number).len()).sum()
        };
        of("a") + of("b")
    };
    assert_eq!(asked(&rig), 3);
    let first = rig.operation("a");
    rig.grant_all(first);
    (0..3).for_each(|index| rig.serve_if_due(first, index));
    assert_eq!(asked(&rig), 3, "as bytes come others are asked for");
    assert_eq!(rig.room.figures().background_bytes_peak, 3 * u64::from(BYTES));
    // Demand has all the room there is beside them.
    rig.begin(20, &[at("a")]);
    rig.step();
    assert!(rig.operations("a").iter().any(|number| rig.blocks(*number) == [20]));
}

#[test]
fn somebody_comes_to_wait_while_it_is_queued_and_while_it_is_asked_for() {
    let mut rig = rig(1);
    begin(&mut rig, [1, 2, 3], "a");
    rig.connect();
    assert_eq!(rig.blocks(rig.operation("a")), [1]);
    let later = rig.now + std::time::Duration::from_secs(5);
    rig.room.on_awaited(CopyId(3), later, rig.now);
    rig.room.on_awaited(CopyId(1), later, rig.now);
    rig.room.on_awaited(CopyId(1), later, rig.now);
    rig.step();
    let blocks: Vec<_> = rig.operations("a").iter().map(|number| rig.blocks(*number)).collect();
    assert_eq!(blocks, [vec![1], vec![3]], "demand waits for nothing");
    assert_eq!((rig.room.figures().begun_background, rig.room.figures().promoted), (3, 2));
    // One that was promoted has routes as any other.
    let mut rig = self::rig(1);
    rig.begin_within(ahead(1), &[at("a"), at("b")], 60_000);
    rig.connect();
    rig.room.on_awaited(CopyId(1), later, rig.now);
    rig.answer(rig.operation("a"), &[Answer::Ended { sequence: None }]);
    rig.connect();
    assert_eq!(rig.blocks(rig.operation("b")), [1]);
}

#[test]
fn it_has_one_route_and_its_time() {
    let mut rig = rig(8);
    rig.begin_within(ahead(1), &[at("a"), at("b")], 60_000);
    rig.connect();
    rig.answer(rig.operation("a"), &[Answer::Ended { sequence: None }]);
    assert_eq!(rig.outcome(), Err(BlockOutcome::Missing), "an Acquire may ask the others");
    assert!(rig.dials.is_empty());
    let mut rig = self::rig(8);
    rig.begin_within(ahead(1), &[at("a")], 50);
    rig.pass(50);
    assert_eq!(rig.outcome(), Err(BlockOutcome::DeadlineExceeded));
    // A block larger than the share.
    let mut rig = self::rig(0);
    begin(&mut rig, [1], "a");
    rig.step();
    assert_eq!(rig.outcome(), Err(BlockOutcome::Busy));
}

#[test]
fn it_names_no_less_time_than_what_somebody_waits_for_and_ends_in_its_own() {
    let mut rig = rig(8);
    rig.begin_within(ahead(1), &[at("a")], 100);
    rig.begin_within(order(2, u64::from(BYTES)), &[at("a")], 10_000);
    rig.now = rig.now + Duration::from_micros(400);
    rig.connect();
    let asked: Vec<_> = (rig.operations("a").into_iter())
        .map(|number| (rig.blocks(number), rig.asked[&number].authorize.deadline_ms))
        .collect();
    // No source ends it before we do.
    assert_eq!(asked, [(vec![2], 11_000), (vec![1], 11_000)]);
    rig.pass(100);
    assert_eq!(rig.ended, [(CopyId(1), Err(BlockOutcome::DeadlineExceeded))]);
}

#[test]
fn a_source_that_stops_at_its_deadline_has_not_failed_and_who_has_time_asks_it_again() {
    for is_shared in [false, true] {
        let begun = || {
            let mut rig = rig(8);
            rig.begin_within(order(100, u64::from(BYTES)), &[at("a")], 300);
            rig.connect();
            rig.grant_all(rig.operation("a"));
            rig.serve(rig.operation("a"), 0);
            rig.ended.clear();
            rig.share("a", is_shared);
            rig.begin_within(ahead(1), &[at("a")], 300);
            rig.step();
            let number = rig.operation("a");
            rig.grant_ms = 250;
            rig.grant_all(number);
            (rig, number)
        };
        let (mut rig, number) = begun();
        rig.pass(250);
        rig.stream_over(number, TIME_OVER);
        rig.step();
        assert_eq!((rig.room.figures().calls_failed, rig.outcome()), (0, Err(BlockOutcome::Busy)));

        let (mut rig, number) = begun();
        rig.pass(250);
        rig.room.on_awaited(CopyId(1), rig.now + Duration::from_secs(5), rig.now);
        rig.step();
        rig.stream_over(number, TIME_OVER);
        let again = rig.operation("a");
        assert_eq!((again == number, rig.blocks(again)), (false, vec![1]));
        rig.grant_all(again);
        match is_shared {
            true => {
                rig.tell(again, 0);
                rig.arrive(again, 0, 4711);
            }
            false => rig.serve(again, 0),
        }
        assert_eq!((rig.room.figures().calls_failed, rig.outcome()), (0, Ok(Medium::Dram)));

        // One whose time is over each time is asked as often as anybody.
        let (mut rig, _) = begun();
        rig.room.on_awaited(CopyId(1), rig.now + Duration::from_secs(5), rig.now);
        for round in 0..FetcherSettings::default().routes_max {
            assert!(rig.ended.is_empty());
            if round > 0 {
                rig.grant_all(rig.operation("a"));
            }
            rig.pass(250);
            rig.stream_over(rig.operation("a"), TIME_OVER);
        }
        let figures = rig.room.figures();
        assert_eq!((figures.calls_failed, figures.extra_asks), (0, 0));
        assert_eq!(rig.outcome(), Err(BlockOutcome::Busy));

        // One that says so of time which it has granted, or which was named and it has not answered yet, has failed.
        for is_answered in [true, false] {
            let (mut rig, mut number) = begun();
            if !is_answered {
                rig.begin_within(order(2, u64::from(BYTES)), &[at("a")], 300);
                rig.step();
                number = rig.operations("a").into_iter().find(|other| *other != number).unwrap();
            }
            rig.pass(249);
            rig.stream_over(number, TIME_OVER);
            assert_eq!((rig.room.figures().calls_failed, rig.ended.len()), (1, 1), "{is_answered}");
        }
    }
}
