//! What is said of a core against what it did, moment by moment.

use std::time::Duration;

use crate::dice::Dice;
use crate::flow::pacing::Rate;
use crate::flow::pressure::*;
use crate::time::Moment;

const MS: u64 = 1_000_000;

#[test]
fn a_summary_is_what_a_core_did_in_its_window() {
    let mut windows = 0;
    for seed in 0..50 {
        let mut dice = Dice(seed);
        let rate = 1_000_000 + dice.roll(10_000_000);
        let begun = dice.roll(1 << 40);
        let mut pressure = Pressure::new(Rate::new(rate), Moment(begun));
        // The world, a millisecond at a time: when the SSD had something, and what was sent in which.
        let (mut busy, mut sent, mut first) = (Vec::new(), Vec::new(), 0);
        let mut told = 0;
        let (mut is_busy, mut total) = (false, 0);
        for at in 0..8_000u64 {
            // A core that rests now and then looks when it wakes; nothing changes while it rests.
            if dice.one_in(4) {
                is_busy = dice.one_in(3);
                let bytes = dice.roll(rate / 200);
                total += bytes;
                sent.push(bytes);
                let level = Level {
                    device_operations: if is_busy { 1 + dice.roll(9) } else { 0 },
                    reads: at,
                    sent_bytes: total,
                };
                if let Some(summary) = pressure.look(level, Moment(begun + at * MS)) {
                    let window = at - first;
                    assert!(window >= 1_000, "{window} ms");
                    assert_eq!((u64::from(summary.window_ms), u64::from(summary.reads_queued)), (window, at));
                    let busy_ms = busy[first as usize..at as usize].iter().filter(|busy| **busy).count();
                    let expected = busy_ms as u64 * 1_000 / window;
                    assert_eq!(u64::from(summary.ssd_busy_permille), expected, "{busy_ms} of {window} ms");
                    let bytes: u64 = sent[told..].iter().sum();
                    let expected = (bytes * 1_000 / (rate * window / 1_000)).min(1_000);
                    assert_eq!(
                        u64::from(summary.egress_busy_permille),
                        expected,
                        "{bytes} of {rate} a second"
                    );
                    (first, told, windows) = (at, sent.len(), windows + 1);
                }
            }
            busy.push(is_busy);
        }
    }
    assert!(windows > 300, "{windows} windows");
}

#[test]
fn without_a_bound_there_is_nothing_to_use_up_and_a_burst_is_no_more_than_all() {
    let level = Level { device_operations: 1, reads: 0, sent_bytes: 10_000 };
    let second = Moment(1_000 * MS);
    let mut unbound = Pressure::new(None, Moment(0));
    assert_eq!(unbound.look(level, second).unwrap().egress_busy_permille, 0);
    let mut bound = Pressure::new(Rate::new(9_000), Moment(0));
    assert_eq!(bound.look(level, second).unwrap().egress_busy_permille, 1_000);
    // The next window begins where this one ended.
    assert_eq!(bound.look(level, second + Duration::from_millis(999)), None);
    let next = bound.look(level, second + Duration::from_millis(1_000)).unwrap();
    assert_eq!((next.egress_busy_permille, next.ssd_busy_permille), (0, 1_000));
}
