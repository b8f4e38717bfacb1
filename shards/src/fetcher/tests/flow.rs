//! What is charged while it may still come, and what a rate holds back.

use std::time::Duration;

use super::rig::*;
use crate::fetcher::*;
use crate::flow::pacing::Rate;
use crate::resilience::gate::Class;

const KIB: u64 = 1024;

fn tight() -> Rig {
    tight_for(FetcherSettings::default().stall_wait)
}

/// The same, with another budget of a call.
fn tight_for(stall_wait: Duration) -> Rig {
    let bounds =
        FetcherSettings { bytes_max: 500, source_bytes_max: 300, stall_wait, ..FetcherSettings::default() };
    let mut rig = Rig::with(bounds);
    rig.keeps_cancelled = true;
    rig
}

#[test]
fn what_was_cancelled_is_charged_until_its_stream_has_ended() {
    let mut rig = tight();
    (1..=3).for_each(|copy| rig.begin(copy, &[at("a")]));
    rig.connect();
    let first = rig.operation("a");
    rig.grant_all(first);
    rig.serve(first, 0);
    (2..=3).for_each(|copy| rig.cancel(copy));
    assert_eq!((rig.ending(first), rig.room.bytes_outstanding()), ("cancel", 200));
    assert_eq!(rig.room.figures().bytes_draining, 200);
    // Room for one at that source, and for three in all.
    rig.begin(4, &[at("a")]);
    (6..=9).for_each(|copy| rig.begin(copy, &[at("b")]));
    rig.connect();
    rig.begin(5, &[at("a")]);
    assert_eq!(rig.blocks(rig.operation("a")), [4]);
    assert_eq!(rig.blocks(rig.operation("b")), [6, 7], "the window is full of what may still come");
    rig.pass(5_000);
    assert_eq!(rig.operations("a").len(), 1, "time is no proof");
    rig.end_cancelled(first);
    rig.step();
    assert_eq!((rig.room.bytes_outstanding(), rig.room.figures().bytes_draining), (400, 0));
    assert_eq!(rig.blocks(rig.operations("a")[1]), [5]);
}

#[test]
fn a_source_that_stands_still_keeps_its_credit_until_its_connection_is_over() {
    let mut rig = tight_for(Duration::from_secs(1));
    (1..=3).for_each(|copy| rig.begin(copy, &[at("a"), at("b")]));
    rig.connect();
    let stalled = rig.operation("a");
    rig.pass(1_000);
    assert_eq!((rig.ending(stalled), rig.room.figures().stalled), ("cancel", 1));
    rig.connect();
    assert_eq!(rig.blocks(rig.operation("b")), [1, 2], "the other source has what is left of the window");
    assert_eq!((rig.room.bytes_outstanding(), rig.room.figures().bytes_draining), (500, 300));
    rig.lose("a");
    assert_eq!((rig.room.bytes_outstanding(), rig.room.figures().bytes_draining), (300, 0));
    assert_eq!(rig.blocks(rig.operations("b")[1]), [3]);
    // Its end comes too late to mean anything.
    rig.end_cancelled(stalled);
    rig.step();
    assert_eq!(rig.room.bytes_outstanding(), 300);
}

#[test]
fn a_source_that_never_ends_what_was_cancelled_loses_its_connection_and_that_is_the_proof() {
    let mut rig = tight();
    rig.begin(1, &[at("a")]);
    rig.connect();
    let first = rig.operation("a");
    rig.pass(900);
    rig.cancel(1);
    // It serves others meanwhile: the connection is of use.
    rig.pass(8_100);
    rig.begin(2, &[at("a")]);
    rig.step();
    let second = rig.operation("a");
    rig.grant_all(second);
    rig.serve(second, 0);
    rig.pass(3_000);
    rig.begin(3, &[at("a")]);
    rig.step();
    rig.pass(7_999);
    assert_eq!((rig.room.bytes_outstanding(), rig.room.figures().bytes_draining), (200, 100));
    // What has come and was not read may be the end of it.
    rig.is_behind = true;
    rig.pass(1);
    assert!(rig.closed.is_empty() && rig.room.bytes_outstanding() == 200);
    rig.is_behind = false;
    rig.pass(1_500);
    assert_eq!(rig.closed, [CloseCause::Violation(Violation::Undrained)], "twice the longest grant");
    assert_eq!((rig.room.bytes_outstanding(), rig.room.figures().bytes_draining), (0, 0));
    rig.end_cancelled(first);
    assert_eq!(rig.room.figures().violations, 1, "its end comes too late to mean anything");
}

#[test]
fn what_is_read_over_shared_memory_is_free_when_reading_stops() {
    let mut rig = tight();
    rig.begin(1, &[at("a")]);
    rig.step();
    rig.connect();
    let over_quic = rig.operation("a");
    rig.share("a", true);
    rig.begin(2, &[at("a")]);
    rig.step();
    let shared = *rig.operations("a").iter().find(|number| **number != over_quic).unwrap();
    rig.cancel(2);
    assert_eq!((rig.released.as_slice(), rig.room.bytes_outstanding()), (&[shared][..], 100));
}

fn paced(rate: u64) -> Rig {
    Rig::with(FetcherSettings { rate: Rate::new(rate), ..FetcherSettings::default() })
}

fn begin_large(rig: &mut Rig, copy: u32, name: &str) {
    let bytes = 64 * KIB;
    rig.begin_within(order(copy, bytes), &[Candidate { bytes: bytes as u32, ..at(name) }], 60_000);
}

#[test]
fn no_more_is_asked_for_than_a_rate_gives() {
    let mut rig = paced(1024 * KIB);
    (1..=16).for_each(|copy| begin_large(&mut rig, copy, "a"));
    rig.connect();
    let asked = |rig: &Rig| {
        let all = rig.asked.values();
        all.map(|asked| asked.authorize.residences.len() as u64).sum::<u64>()
    };
    assert_eq!(asked(&rig), 1, "a burst");
    let begun = rig.now;
    for _ in 0..3 {
        let due = rig.room.next_deadline().expect("there is more");
        rig.now = due;
        rig.step();
        let earned = (due - begun).as_nanos() as u64 * 1024 * KIB / 1_000_000_000;
        assert!(asked(&rig) * 64 * KIB <= 64 * KIB + earned, "{} in {:?}", asked(&rig), due - begun);
    }
    // Each operation asks for what there is; four at a time is the bound of a source.
    assert_eq!(asked(&rig), 4);
    assert!(rig.room.figures().paced >= Duration::from_millis(180), "{:?}", rig.room.figures().paced);
    assert_eq!(rig.room.figures().bytes_queued, 12 * 64 * KIB);
}

#[test]
fn a_rate_holds_nothing_up_that_comes_over_shared_memory() {
    let mut rig = paced(64 * KIB);
    begin_large(&mut rig, 1, "a");
    begin_large(&mut rig, 2, "a");
    begin_large(&mut rig, 3, "b");
    rig.room.turn(rig.now);
    rig.connect();
    let spent = rig.asked.values().map(|asked| asked.authorize.residences.len()).sum::<usize>();
    assert_eq!(spent, 1, "the burst is spent on one of them");
    rig.share("b", true);
    rig.share("a", true);
    rig.step();
    let spent = rig.asked.values().map(|asked| asked.authorize.residences.len()).sum::<usize>();
    assert_eq!(spent, 3);
    assert!(rig.room.figures().paced <= Duration::from_millis(1));
}

#[test]
fn what_nobody_waits_for_keeps_the_rate_and_is_not_counted_as_held_back() {
    let mut rig = paced(1024 * KIB);
    let bytes = 64 * KIB;
    for (copy, name) in [(1, "a"), (2, "b")] {
        let ahead = Order { class: Class::Background, ..order(copy, bytes) };
        rig.begin_within(ahead, &[Candidate { bytes: bytes as u32, ..at(name) }], 60_000);
    }
    rig.connect();
    assert_eq!(rig.room.figures().operations, 1, "a burst");
    rig.pass(100);
    assert_eq!((rig.room.figures().operations, rig.room.figures().paced), (2, Duration::ZERO));
    begin_large(&mut rig, 3, "c");
    rig.connect();
    rig.pass(100);
    assert_eq!(rig.room.figures().operations, 3);
    assert!(rig.room.figures().paced > Duration::from_millis(10), "{:?}", rig.room.figures().paced);
}

#[test]
fn a_block_larger_than_a_burst_is_paid_for_afterwards() {
    let mut rig = paced(64 * KIB);
    let bytes = 320 * KIB;
    for copy in 1..=2 {
        let candidate = Candidate { bytes: bytes as u32, ..at("a") };
        rig.begin_within(order(copy, bytes), &[candidate], 60_000);
    }
    rig.connect();
    assert_eq!(rig.blocks(rig.operation("a")), [1]);
    rig.pass(4_999);
    assert_eq!(rig.room.figures().operations, 1, "four bursts are owed, and one is saved up");
    rig.pass(1);
    assert_eq!(rig.room.figures().operations, 2);
}
