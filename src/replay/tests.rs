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
        connect_wait: Duration::from_secs(5),
    };
    let mut told = 0;
    let report = replay(&generate(requests, 11), &settings, &mut |done| told = done).unwrap();
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
        connect_wait: Duration::from_secs(5),
    };
    let error = replay(&generate(1, 1), &settings, &mut |_| ()).unwrap_err();
    assert!(matches!(error, ClientError::Protocol { .. }), "{error}");
}

#[test]
fn requests_are_due_when_the_trace_says_and_never_backwards() {
    let at = |timestamp| TraceRequest { timestamp, input_length: 0, output_length: 0, hash_ids: vec![] };
    let requests = [at(1000.0), at(1500.0), at(1200.0), at(3000.0)];
    let milliseconds =
        |speed| -> Vec<u128> { intended_starts(&requests, speed).iter().map(Duration::as_millis).collect() };
    assert_eq!(milliseconds(1.0), [0, 500, 500, 2000]);
    assert_eq!(milliseconds(10.0), [0, 50, 50, 200]);
    assert!(milliseconds(0.0).is_empty());
}

#[test]
fn a_missed_moment_is_told() {
    assert!(until(Instant::now() - Duration::from_millis(50)) >= Duration::from_millis(49));
    assert!(until(Instant::now() + Duration::from_millis(5)) < Duration::from_secs(1));
}
