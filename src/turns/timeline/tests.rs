//! Requests and stretches of time made by hand, and shares against a count of every nanosecond.

use super::*;

const CORE_BITS: u32 = 48;

fn of_request(what: What, at_ns: u64, request: u64, number: u32, count: u16) -> Event {
    Event { at_ns, session: 9, request, number, count, what }
}

fn of_job(what: What, at_ns: u64, origin: u64, number: u32, count: u16) -> Event {
    Event { at_ns, session: origin << CORE_BITS, request: 0, number, count, what }
}

fn slice(what: What, at_ns: u64, ns: u32) -> Event {
    Event { at_ns, session: 0, request: 0, number: ns, count: Woken::Engine as u16, what }
}

fn acquire() -> Vec<CoreEvents> {
    let first = vec![
        of_request(What::Receive, 100, 7, 0, Operation::Acquire as u16),
        of_request(What::Start, 110, 7, 41, 0),
        of_job(What::Execute, 120, 0, 41, 1),
        of_job(What::SsdEnqueue, 125, 0, 41, 3),
        slice(What::Wake, 100, 30),
        slice(What::Turn, 100, 60),
        of_job(What::SsdComplete, 300, 0, 41, 3),
        of_request(What::Respond, 340, 7, 0, 0),
        slice(What::Device, 290, 30),
        slice(What::Turn, 290, 60),
    ];
    let second = vec![
        of_job(What::SsdDequeue, 130, 0, 41, 1),
        // Another core's job of the same number is another one.
        of_job(What::Execute, 131, 1, 41, 1),
        slice(What::Turn, 125, 20),
    ];
    vec![CoreEvents { core: 0, lost: 0, events: first }, CoreEvents { core: 1, lost: 2, events: second }]
}

#[test]
fn stages_of_all_cores_come_together_under_their_request() {
    let timeline = Timeline::of(&acquire());
    let [request] = timeline.requests() else { panic!("{:?}", timeline.requests()) };
    assert_eq!((request.session, request.request, request.operation), (9, 7, Some(Operation::Acquire)));
    let stages: Vec<_> = request.stages.iter().map(|stage| (stage.what, stage.at_ns, stage.core)).collect();
    let expected = [
        (What::Receive, 100, 0),
        (What::Start, 110, 0),
        (What::Execute, 120, 0),
        (What::SsdEnqueue, 125, 0),
        (What::SsdDequeue, 130, 1),
        (What::SsdComplete, 300, 0),
        (What::Respond, 340, 0),
    ];
    assert_eq!((stages, timeline.lost), (expected.to_vec(), 2));
    assert_eq!((request.at_node(), request.took_ns()), (Some(100..340), Some(240)));
}

#[test]
fn a_number_that_comes_again_is_another_request() {
    let mut events = Vec::new();
    for at in [100, 200] {
        events.push(of_request(What::Receive, at, 0, 0, Operation::Ping as u16));
        events.push(of_request(What::Start, at + 1, 0, 0, 0));
        events.push(of_request(What::Respond, at + 5, 0, 0, 0));
    }
    // An answer to what was not recorded.
    events.push(of_request(What::Respond, 300, 99, 0, 0));
    let timeline = Timeline::of(&[CoreEvents { core: 0, lost: 0, events }]);
    let spans: Vec<_> = timeline.requests().iter().map(Request::at_node).collect();
    assert_eq!(spans, [Some(100..105), Some(200..205)]);
    assert!(timeline.requests().iter().all(|request| request.stages.len() == 3));
}

#[test]
fn a_core_did_something_at_every_nanosecond() {
    let timeline = Timeline::of(&acquire());
    let parts: Vec<Slice> = timeline.parts(0, &(0..u64::MAX)).copied().collect();
    let turns: Vec<Slice> = timeline.turns(0, &(0..u64::MAX)).copied().collect();
    let has = |slices: &[Slice], at: u64| {
        slices.iter().find(|slice| (slice.at_ns..slice.until_ns).contains(&at)).map(|slice| slice.what)
    };
    for span in [100..340, 0..400, 115..135, 160..290, 130..300, 350..351, 200..200] {
        let mut counted = Shares::new();
        for at in span.clone() {
            let doing = match (has(&parts, at), has(&turns, at)) {
                (Some(what), _) => Doing::Part(what),
                (None, Some(_)) => Doing::ShortParts,
                (None, None) => Doing::NoTurn,
            };
            *counted.entry(doing).or_default() += 1;
        }
        assert_eq!(timeline.shares(0, &span), counted, "{span:?}");
    }
}

#[test]
fn what_was_before_is_since_the_engine_asked_or_the_turn_just_before() {
    let mut cores = acquire();
    cores[0].events.insert(0, slice(What::Turn, 20, 70));
    let mut timeline = Timeline::of(&cores);
    assert_eq!(timeline.before(&timeline.requests()[0]), Some(20..100), "a turn ended 10 ns before");
    let moments = |request, submitted_ns, returned_ns| RequestMoments {
        session: 9,
        request,
        operation: Operation::Acquire,
        submitted_ns,
        returned_ns,
    };
    timeline.join(&[moments(7, 60, 500), moments(8, 1, 2)]);
    assert_eq!(timeline.before(&timeline.requests()[0]), Some(60..100));
    assert_eq!(timeline.requests()[0].took_ns(), Some(440));
    let waited = timeline.waited_for(&timeline.slowest(5));
    let expected =
        [("taking in", 30), ("device", 30), ("short parts of turns", 30 + 30 + 20), ("no turn", 10 + 130)];
    let named: Vec<_> = waited.iter().map(|(doing, ns)| (doing.name(), *ns)).collect();
    assert_eq!(named, expected);

    cores[0].events[0] = slice(What::Turn, 0, 10);
    for event in &mut cores[0].events[1..] {
        event.at_ns += BEFORE_NS_MAX;
    }
    let timeline = Timeline::of(&cores);
    assert_eq!(timeline.before(&timeline.requests()[0]), None, "the core had slept");
}

#[test]
fn the_slowest_are_first_and_unanswered_ones_are_not_among_them() {
    let mut events = Vec::new();
    for (request, ns) in [(1, 50), (2, 90), (3, 70)] {
        events.push(of_request(What::Receive, 1_000 * request, request, 0, 2));
        events.push(of_request(What::Respond, 1_000 * request + ns, request, 0, 0));
    }
    events.push(of_request(What::Receive, 9_000, 4, 0, 2));
    let mut timeline = Timeline::of(&[CoreEvents { core: 0, lost: 0, events }]);
    let order = |timeline: &Timeline, count| -> Vec<u64> {
        timeline.slowest(count).into_iter().map(|request| request.request).collect()
    };
    assert_eq!((order(&timeline, 2), order(&timeline, 9)), (vec![2, 3], vec![2, 3, 1]));
    // To its engine the first took longest; of the others nothing is known.
    let operation = Operation::Ping;
    timeline.join(&[RequestMoments {
        session: 9,
        request: 1,
        operation,
        submitted_ns: 900,
        returned_ns: 1_900,
    }]);
    assert_eq!(order(&timeline, 9), [1]);
}
