//! Replays against a model node: what is counted, what is noticed, what is survived.

use super::model_node::{Faults, ModelNode};
use super::*;

const BLOCK_BYTES: u64 = 1000;

fn run(requests: usize, blocks: u64, engines: usize, faults: Faults) -> Report {
    let node = ModelNode::start(blocks, BLOCK_BYTES, faults);
    let settings = ReplaySettings {
        sockets: vec![node.socket()],
        engines,
        block_bytes: BLOCK_BYTES,
        speed: 0.0,
        spread: Spread::Sticky,
        announced: 0,
        connect_wait: Duration::from_secs(5),
    };
    let mut told = 0;
    let report = replay(&generate(requests, 11), &settings, &mut |done| {
        told = done;
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(told, requests as u64);
    assert_eq!(report.unaccounted(), report.tally.unaccounted, "the sums are complete");
    let saves = &report.tally.saves;
    let ended =
        saves.committed + saves.present + saves.being_saved + saves.lost + saves.refused + saves.failed;
    assert_eq!(ended, report.tally.misses, "every miss is saved, or its reason is counted");
    report
}

#[test]
fn a_large_enough_node_reaches_the_bound_exactly() {
    let report = run(300, 8192, 1, Faults::default());
    assert!(report.is_right(), "{}", report.text());
    assert_eq!(report.tally.hits.total(), report.shape.hits_bound);
    assert_eq!(report.tally.saves.committed, report.shape.distinct_blocks);
    assert_eq!(report.tally.verified_bytes, report.shape.hits_bound * BLOCK_BYTES);
    assert_eq!(report.tally.query.count(), 300);
}

#[test]
fn a_small_node_evicts_and_stays_right() {
    let report = run(300, 400, 2, Faults::default());
    assert!(report.is_right(), "{}", report.text());
    assert!(report.tally.hits.total() < report.shape.hits_bound && report.tally.hits.total() > 0);
}

#[test]
fn flipped_bytes_are_counted_and_told() {
    let report = run(200, 8192, 1, Faults { flip_one_of: Some(100), ..Faults::default() });
    // A flip stays in the block, so later reads of it see it too, or see it flipped back.
    assert!(!report.is_right() && report.tally.wrong_bytes > 0);
    assert!(report.text().contains("\nwrong: block ") && report.text().ends_with("see above"));
    assert_eq!(report.unaccounted(), 0, "a wrong block is still a hit");
}

#[test]
fn the_lease_bound_is_worked_in_pieces() {
    let report = run(200, 8192, 1, Faults { lease_blocks_max: Some(3), ..Faults::default() });
    assert!(report.is_right(), "{}", report.text());
    assert_eq!(report.tally.hits.total(), report.shape.hits_bound);
    assert_eq!(report.tally.broken_promises, BrokenPromises::default());
}

#[test]
fn blocks_gone_between_query_and_acquire_are_misses() {
    let report = run(200, 8192, 1, Faults { lose_one_of: Some(10), ..Faults::default() });
    assert!(report.is_right(), "{}", report.text());
    let gone = report.tally.broken_promises.missing;
    assert!(gone > 100, "{gone}");
    assert_eq!(report.tally.hits.total() + gone, report.shape.hits_bound);
    assert_eq!(report.tally.saves.present, gone, "the node had them after all");
}

#[test]
fn a_save_without_room_is_tried_again() {
    let report = run(200, 8192, 1, Faults { busy_one_of: Some(7), ..Faults::default() });
    assert!(report.is_right(), "{}", report.text());
    assert_eq!(report.tally.saves.committed, report.shape.distinct_blocks);
}

#[test]
fn a_save_that_never_finds_room_is_counted() {
    let report = run(1, 16, 1, Faults { always_full: true, ..Faults::default() });
    assert!(report.is_right(), "{}", report.text());
    assert_eq!(report.tally.saves.refused, report.shape.block_references);
}

#[test]
fn nodes_that_know_nothing_of_each_other_reach_their_own_bound_exactly() {
    let nodes = [(); 2].map(|()| ModelNode::start(8192, BLOCK_BYTES, Faults::default()));
    let run = |block_bytes, spread| {
        let settings = ReplaySettings {
            sockets: nodes.iter().map(ModelNode::socket).collect(),
            engines: 1,
            block_bytes,
            speed: 0.0,
            spread,
            announced: 0,
            connect_wait: Duration::from_secs(5),
        };
        replay(&generate(300, 11), &settings, &mut |_| ControlFlow::Continue(())).unwrap()
    };
    let report = run(BLOCK_BYTES, Spread::RoundRobin);
    assert!(report.is_right(), "{}", report.text());
    assert_eq!(report.tally.hits.total(), report.hits_bound_alone);
    // A block is saved where it was missed, and nowhere else.
    assert_eq!(report.tally.saves.committed, report.tally.misses);
    assert!(report.hits_bound_alone < report.shape.hits_bound, "{}", report.text());
    assert!(report.tally.saves.committed > report.shape.distinct_blocks, "both nodes saved what they share");
    let json = report.json();
    assert_eq!(json["details"]["nodes"], 2);
    assert_eq!(json["hit_ratio"], json["details"]["hit_ratio_bound_alone"]);
    assert!(report.text().contains("2 infinite caches without peers"), "{}", report.text());
}

#[test]
fn a_conversation_stays_with_its_node() {
    let trace = generate(300, 11);
    let alone = |spread| hits_bound_alone(&trace, &assign(&trace, 2, spread), 2);
    let shape = TraceShape::of(trace.iter());
    let (sticky, turns) = (alone(Spread::Sticky), alone(Spread::RoundRobin));
    assert!(turns < sticky && sticky < shape.hits_bound, "{turns} {sticky} {shape:?}");
    // Every lane of a node counts: two engines on one node share what it has.
    assert_eq!(hits_bound_alone(&trace, &assign(&trace, 2, Spread::RoundRobin), 1), shape.hits_bound);
}

#[test]
fn what_a_peer_has_and_does_not_give_is_a_miss_and_is_saved_here() {
    let report = run(200, 8192, 1, Faults { hints_unknown: true, ..Faults::default() });
    assert!(report.is_right(), "{}", report.text());
    assert_eq!(report.tally.hits.total(), report.shape.hits_bound);
    assert_eq!(report.tally.broken_promises.peer_missing, report.tally.misses);
    assert_eq!(report.tally.broken_promises.missing, 0, "a hint is no promise");
    assert_eq!(report.tally.saves.committed, report.shape.distinct_blocks);
}

#[test]
fn what_comes_from_a_peer_is_a_hit_of_its_own_kind() {
    let report = run(200, 8192, 1, Faults { from_peer: true, ..Faults::default() });
    assert!(report.is_right(), "{}", report.text());
    let hits = report.tally.hits;
    assert_eq!((hits.dram, hits.peer_ssd), (0, report.shape.hits_bound));
    assert_eq!(report.tally.saves.committed, report.shape.distinct_blocks);
}

#[test]
fn a_replay_that_is_stopped_reports_nothing() {
    let node = ModelNode::start(8192, BLOCK_BYTES, Faults::default());
    let settings = ReplaySettings {
        sockets: vec![node.socket()],
        engines: 1,
        block_bytes: BLOCK_BYTES,
        // Its last request is due in days.
        speed: 1e-4,
        spread: Spread::Sticky,
        announced: 0,
        connect_wait: Duration::from_secs(5),
    };
    let stopped = replay(&generate(100, 1), &settings, &mut |_| ControlFlow::Break(()));
    assert!(matches!(stopped, Err(ReplayError::Stopped)), "{stopped:?}");
}

#[test]
fn lost_connections_are_survived() {
    let report = run(200, 8192, 1, Faults { hang_up_one_of: Some(50), ..Faults::default() });
    assert!(report.is_right(), "{}", report.text());
    assert!(report.tally.connections_lost > 5, "{}", report.tally.connections_lost);
    assert!(report.tally.hits.total() > report.shape.hits_bound / 2);
}

#[test]
fn a_block_without_a_source_is_unaccounted() {
    let report = run(50, 8192, 1, Faults { no_place: true, ..Faults::default() });
    assert!(report.unaccounted() > 0 && !report.is_right());
}

#[test]
fn a_slot_smaller_than_its_block_stops_the_replay() {
    let node = ModelNode::start(16, BLOCK_BYTES, Faults::default());
    let settings = ReplaySettings {
        sockets: vec![node.socket()],
        engines: 1,
        block_bytes: BLOCK_BYTES + 1,
        speed: 0.0,
        spread: Spread::RoundRobin,
        announced: 0,
        connect_wait: Duration::from_secs(5),
    };
    let error = replay(&generate(1, 1), &settings, &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, ReplayError::Client(ClientError::Protocol { .. })), "{error}");
}

#[test]
fn requests_are_due_when_the_trace_says_and_never_backwards() {
    let at = |timestamp| TraceRequest { timestamp, input_length: 0, output_length: 0, hash_ids: vec![] };
    let requests = [at(1000.0), at(1500.0), at(1200.0), at(3000.0)];
    let milliseconds = |speed| -> Vec<u128> {
        intended_starts(&requests, speed).expect("soon").iter().map(Duration::as_millis).collect()
    };
    assert_eq!(milliseconds(1.0), [0, 500, 500, 2000]);
    assert_eq!(milliseconds(10.0), [0, 50, 50, 200]);
    assert!(milliseconds(0.0).is_empty());
    // A pace, or a trace, that nobody has meant.
    for (speed, request) in [(1e-300, 2), (f64::MIN_POSITIVE, 2), (5e-324, 2), (6e-8, 4)] {
        let error = intended_starts(&requests, speed).expect_err("in the far future");
        assert_eq!((error.speed, error.request), (speed, request));
        assert!(error.to_string().contains(&format!("--speed {speed:e}: request {request} ")), "{error}");
    }
    assert_eq!(intended_starts(&[at(0.0), at(1e15)], 1.0).expect_err("late").request, 2);
}

#[test]
fn a_missed_moment_is_told() {
    let stop = AtomicBool::new(false);
    assert!(until(Instant::now() - Duration::from_millis(50), &stop) >= Some(Duration::from_millis(49)));
    let late = until(Instant::now() + Duration::from_millis(5), &stop);
    assert!(late.is_some_and(|late| late < Duration::from_secs(1)));
    stop.store(true, Ordering::Relaxed);
    assert_eq!(until(Instant::now() + Duration::from_secs(600), &stop), None);
}

#[test]
fn every_request_but_the_first_is_announced_once_and_in_time() {
    let lane: Vec<usize> = (0..9).map(|index| 10 + index).collect();
    for announced in [0, 1, 3, 20] {
        let mut told = Vec::new();
        for position in 0..lane.len() {
            told.extend_from_slice(to_announce(&lane, position, announced));
            let expected = if announced == 0 { 0 } else { (position + announced).min(lane.len() - 1) };
            assert_eq!(told, &lane[1..][..expected], "{announced} ahead");
        }
    }
    assert!(to_announce(&[], 0, 3).is_empty());
}
