//! The bucket against the promise itself: every span of time is looked at.

use std::time::Duration;

use super::Sendings;
use crate::dice::Dice;
use crate::flow::pacing::*;
use crate::time::Moment;

fn rate(bytes: u64) -> Rate {
    Rate::new(bytes).unwrap()
}

#[test]
fn shares_of_a_rate_add_up_to_it() {
    let mut dice = Dice(1);
    for _ in 0..2_000 {
        let parts = 1 + dice.roll(64) as u16;
        let whole = 1 + dice.size(41);
        let shares = (0..parts).map(|index| rate(whole).share(index, parts));
        let bytes: Vec<u64> = shares.map(|share| share.map_or(0, Rate::bytes_a_second)).collect();
        assert_eq!(bytes.iter().sum::<u64>(), whole, "{bytes:?}");
        assert!(bytes.iter().max().unwrap() - bytes.iter().min().unwrap() <= 1, "{bytes:?}");
    }
}

#[test]
fn no_span_of_time_has_more_than_its_rate_and_a_burst() {
    for seed in 0..60 {
        let mut dice = Dice(seed);
        let bytes = RATE_BYTES_PER_SECOND_MIN + dice.size(37);
        let mut pacer = Pacer::new(rate(bytes));
        let burst = rate(bytes).burst_bytes();
        let (mut now, mut sent) = (dice.roll(1 << 40), Sendings::default());
        for _ in 0..400 {
            // Short waits, long ones, and a clock that does not go on.
            now += dice.size(31);
            let room = pacer.room(Moment(now));
            assert!(room <= burst);
            let wanted = match dice.roll(3) {
                0 => room,
                _ => dice.roll(room + 1),
            };
            pacer.take(wanted, Moment(now));
            sent.note(now, wanted);
        }
        sent.assert_kept(bytes, burst);
    }
}

#[test]
fn who_takes_what_there_is_gets_all_of_the_rate() {
    for (seed, bytes) in [(1, RATE_BYTES_PER_SECOND_MIN), (2, 8 << 20), (3, 1_234_567), (4, 12_500_000_000)] {
        let mut dice = Dice(seed);
        let mut pacer = Pacer::new(rate(bytes));
        let burst = rate(bytes).burst_bytes();
        pacer.take(burst, Moment(0));
        let (mut now, mut sent) = (Moment(0), 0);
        while now < Moment(3_000_000_000) {
            let wanted = 1 + dice.roll(burst);
            let ready = pacer.ready_at(wanted);
            assert!(pacer.room(ready) >= wanted, "what was said to be ready is");
            assert!(ready.0 == 0 || pacer.room(Moment(ready.0 - 1)) < wanted, "and was not before");
            now = ready;
            pacer.take(wanted, now);
            sent += wanted;
        }
        let earned = rate(bytes).bytes_in(now - Moment(0));
        // What a nanosecond earns may not have been asked for yet.
        assert!(earned - sent <= bytes.div_ceil(1_000_000_000), "{sent} of {earned} bytes");
    }
}

#[test]
fn a_debt_is_paid_first() {
    let mut pacer = Pacer::new(rate(1 << 20));
    pacer.take(3 << 20, Moment(0));
    let due = pacer.ready_at(1);
    assert_eq!(pacer.room(Moment(due.0 - 1)), 0);
    let debt = (3 << 20) - rate(1 << 20).burst_bytes();
    assert_eq!(due.since(Moment(0)), rate(1 << 20).time_for(debt + 1));
    // More than a burst is never saved up.
    let burst = pacer.burst_bytes();
    assert_eq!(pacer.ready_at(u64::MAX), pacer.ready_at(burst));
    assert_eq!(pacer.room(Moment(u64::MAX)), burst);
}

#[test]
fn paced_time_is_the_time_between() {
    let mut time = PacedTime::default();
    time.end(Moment(5));
    time.begin(Moment(10));
    time.begin(Moment(20));
    time.end(Moment(40));
    time.end(Moment(50));
    assert_eq!(time.total(), Duration::from_nanos(30));
}
