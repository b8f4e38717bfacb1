//! What follows from outcomes.

use std::time::Duration;

use super::rig::*;
use crate::planner::evidence::Evidence;
use crate::planner::*;
use crate::residents::CopyId;
use crate::time::Moment;

fn trial(work_bytes: u64, micros: u64, outcome: TrialOutcome) -> Trial {
    Trial {
        copy: CopyId(0),
        route: dram(0),
        bytes: 1,
        ahead_bytes: work_bytes - 1,
        elapsed: Duration::from_micros(micros),
        is_comparable: true,
        outcome,
    }
}

fn seen(trials: impl IntoIterator<Item = Trial>) -> Evidence {
    let mut evidence = Evidence::default();
    trials.into_iter().for_each(|trial| evidence.take(&trial, &PlannerSettings::default(), Moment(5)));
    evidence
}

fn price(evidence: &Evidence) -> Option<crate::planner::evidence::Price> {
    evidence.price(&PlannerSettings::default(), Moment(5)).ok()
}

fn is_near(value: f64, expected: f64) -> bool {
    (value - expected).abs() <= expected.abs() * 1e-6 + 1e-3
}

#[test]
fn time_is_a_line_over_work() {
    let line = |at: u64| trial(1_000 * at, 300 + 2 * at, TrialOutcome::Usable);
    let price = price(&seen((1..=40).map(line))).expect("enough");
    assert!(is_near(price.base_ns, 300_000.0) && is_near(price.byte_ns, 2.0), "{price:?}");
    assert!(price.margin_ns < 1.0, "{price:?}");
    assert_eq!((price.successes, price.reach_bytes), (40, 80_000));
}

#[test]
fn work_of_one_size_is_scaled_and_more_work_never_takes_less() {
    let same = price(&seen((0..40).map(|_| trial(1_000, 500, TrialOutcome::Usable)))).expect("enough");
    assert!(is_near(same.base_ns, 0.0) && is_near(same.byte_ns, 500.0), "{same:?}");
    let falling = |at: u64| trial(1_000 * at, 1_000 - 10 * at, TrialOutcome::Usable);
    let falling = price(&seen((1..=40).map(falling))).expect("enough");
    assert!(is_near(falling.byte_ns, 0.0) && falling.base_ns > 0.0, "{falling:?}");
}

#[test]
fn the_margin_is_a_quantile_of_what_took_longer_than_was_predicted() {
    // One in eight takes ten times as long: more than one in ten.
    let often = |at: u64| trial(1_000, if at % 8 == 7 { 5_000 } else { 500 }, TrialOutcome::Usable);
    let often = price(&seen((0..64).map(often))).expect("enough");
    assert!(often.margin_ns > 3_000_000.0, "{often:?}");
    // One in twenty is beyond it.
    let seldom = |at: u64| trial(1_000, if at % 20 == 19 { 5_000 } else { 500 }, TrialOutcome::Usable);
    let seldom = price(&seen((0..64).map(seldom))).expect("enough");
    assert!(seldom.margin_ns < 500_000.0, "{seldom:?}");
}

#[test]
fn failures_cost_what_they_took_as_often_as_they_come() {
    let half = |at: u64| match at % 2 {
        0 => trial(1_000, 500, TrialOutcome::Usable),
        _ => trial(1_000, 2_000, TrialOutcome::Busy),
    };
    let half = price(&seen((0..64).map(half))).expect("32 of them are successes");
    assert!(is_near(half.base_ns, 2_000_000.0), "one failure before each success: {half:?}");
    assert!(half.margin_ns >= 2_000_000.0, "{half:?}");
    // However many fail, successes that are lately enough keep it a known one.
    let late = (0..32).map(|_| trial(1_000, 500, TrialOutcome::Usable));
    let late = price(&seen(late.chain((0..200).map(|_| trial(1_000, 900, TrialOutcome::Missing)))));
    assert!(late.expect("still known").base_ns > 50_000_000.0);
}

#[test]
fn a_success_with_a_handshake_in_it_compares_with_none_and_a_failure_does() {
    let cold = |outcome| Trial { is_comparable: false, ..trial(1_000, 500, outcome) };
    let evidence = seen((0..40).map(|_| cold(TrialOutcome::Usable)));
    assert!(evidence.len() == 0 && price(&evidence).is_none());
    let warm = (0..40).map(|_| trial(1_000, 500, TrialOutcome::Usable));
    let evidence = seen(warm.chain((0..10).map(|_| cold(TrialOutcome::Missing))));
    assert!(price(&evidence).expect("enough").base_ns > 0.0);
}
