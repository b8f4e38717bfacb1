use super::*;

fn at(milliseconds: u64) -> Moment {
    Moment(milliseconds * 1_000_000)
}

fn ticket(admission: Admission) -> Ticket {
    match admission {
        Admission::Pass(ticket) | Admission::Probe(ticket) => ticket,
        Admission::Reject { until } => panic!("rejected until {until:?}"),
    }
}

/// Fails a default breaker until it opens, in calls one after the other.
fn opened(now: Moment) -> Breaker {
    let mut breaker = Breaker::default();
    for call in 1..=WINDOW_CALLS {
        let passed = ticket(breaker.admit(now));
        let change = breaker.record(passed, Outcome::Failure, now);
        assert_eq!(change.is_some(), call == WINDOW_CALLS, "call {call}");
    }
    breaker
}

#[test]
fn half_of_twenty_opens_for_a_second() {
    let mut breaker = Breaker::default();
    let mut record = |outcome| {
        let passed = ticket(breaker.admit(at(0)));
        breaker.record(passed, outcome, at(0))
    };
    for _ in 0..9 {
        assert_eq!(record(Outcome::Failure), None);
    }
    for _ in 0..11 {
        assert_eq!(record(Outcome::Success), None, "nine of twenty");
    }
    // Nine failures leave the window before there are ten of them again.
    for _ in 0..9 {
        assert_eq!(record(Outcome::Failure), None);
    }
    assert_eq!(record(Outcome::Failure), Some(Change::Opened { until: at(1000) }));
    assert_eq!(breaker.admit(at(999)), Admission::Reject { until: Some(at(1000)) });
    assert!(breaker.is_open(at(999)) && !breaker.is_open(at(1000)));
    assert!(matches!(breaker.admit(at(1000)), Admission::Probe(_)));
    assert_eq!((breaker.opens(), breaker.rejected()), (1, 1));
}

#[test]
fn exactly_one_probe_is_in_flight() {
    let mut breaker = opened(at(0));
    let probe = ticket(breaker.admit(at(1000)));
    for _ in 0..100 {
        assert_eq!(breaker.admit(at(5000)), Admission::Reject { until: None }, "one is out, however long");
    }
    breaker.abandon(probe);
    let Admission::Probe(probe) = breaker.admit(at(5000)) else { panic!("the abandoned one makes room") };
    assert_eq!(breaker.record(probe, Outcome::Failure, at(5001)), Some(Change::Opened { until: at(6001) }));
    let Admission::Probe(probe) = breaker.admit(at(6001)) else { panic!("a probe after the pause") };
    assert_eq!(breaker.record(probe, Outcome::Success, at(6002)), Some(Change::Closed));
    let both = (breaker.admit(at(6002)), breaker.admit(at(6002)));
    assert!(matches!(both, (Admission::Pass(_), Admission::Pass(_))), "{both:?}");
}

#[test]
fn what_went_out_before_a_change_decides_nothing() {
    let mut breaker = Breaker::new(Rule::Consecutive { failures: 2 }, Duration::from_secs(1));
    let mut calls: Vec<Ticket> = (0..5).map(|_| ticket(breaker.admit(at(0)))).collect();
    let mut fail = |breaker: &mut Breaker, now| {
        let call = calls.pop().expect("a call that is out");
        breaker.record(call, Outcome::Failure, now)
    };
    assert_eq!(fail(&mut breaker, at(1)), None);
    assert_eq!(fail(&mut breaker, at(2)), Some(Change::Opened { until: at(1002) }));
    assert_eq!(fail(&mut breaker, at(500)), None, "it does not stay open longer");
    let probe = ticket(breaker.admit(at(1002)));
    assert_eq!(fail(&mut breaker, at(1003)), None, "a late failure is not the probe's");
    let late = calls.pop().expect("a call that is out");
    breaker.abandon(late);
    assert_eq!(breaker.admit(at(1004)), Admission::Reject { until: None }, "nor does it make room");
    assert_eq!(breaker.record(probe, Outcome::Success, at(1005)), Some(Change::Closed));
}

#[test]
fn a_success_ends_a_row_of_failures() {
    let mut breaker = Breaker::new(Rule::Consecutive { failures: 3 }, Duration::from_secs(1));
    for outcome in [Outcome::Failure, Outcome::Failure, Outcome::Success, Outcome::Failure, Outcome::Failure]
    {
        let passed = ticket(breaker.admit(at(0)));
        assert_eq!(breaker.record(passed, outcome, at(0)), None);
    }
    let passed = ticket(breaker.admit(at(0)));
    assert!(breaker.record(passed, Outcome::Failure, at(0)).is_some());
}

#[test]
fn another_rule_looks_back_anew_and_decides_over_nothing_that_is_out_in_another_period() {
    let rule = |window_calls| Rule::Share { window_calls, threshold: 1.0 };
    let mut breaker = Breaker::new(rule(3), Duration::from_secs(1));
    let fail = |breaker: &mut Breaker| {
        let passed = ticket(breaker.admit(at(0)));
        breaker.record(passed, Outcome::Failure, at(0))
    };
    (0..2).for_each(|_| assert_eq!(fail(&mut breaker), None));
    let out = ticket(breaker.admit(at(0)));
    breaker.retune(rule(2), Duration::from_secs(5));
    assert_eq!(fail(&mut breaker), None, "two failures of before do not count");
    // A call of the same period counts when it comes back.
    assert_eq!(breaker.record(out, Outcome::Failure, at(0)), Some(Change::Opened { until: at(5_000) }));
    breaker.retune(rule(1), Duration::ZERO);
    assert!(breaker.is_open(at(4_999)) && !breaker.is_open(at(5_000)), "the pause has begun");
    let probe = ticket(breaker.admit(at(5_000)));
    breaker.close();
    assert_eq!(breaker.phase(at(5_000)), Phase::Closed);
    assert_eq!(breaker.record(probe, Outcome::Failure, at(5_000)), None, "it was of another period");
    assert!(!breaker.is_open(at(5_000)));
}
