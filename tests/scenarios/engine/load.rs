//! Lookups do not starve saves: queries by the ten thousand while every save needs an eviction.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use orbitkv_wire::engine::Operation;
use orbitkv_wire::engine::answers::Answer;

use crate::harness::raw::{Frame, prefix_request};
use crate::harness::saver::{block, registration};
use crate::harness::{Node, Saver};

/// Queries that each of two connections sends in a second.
const RATE: u64 = 5_000;
const LASTS: Duration = Duration::from_secs(4);
/// Sent as one piece, so that the sender wakes 100 times a second and not 5,000 times.
const PIECE: u64 = RATE / 100;

#[test]
fn saves_are_accepted_while_ten_thousand_queries_a_second_come_in() {
    let node = Node::start();
    let mut saver = Saver::connect(&node.socket(), "saver");
    // Full, so that each further save has to evict.
    for chunk in (0..1_200).collect::<Vec<u64>>().chunks(100) {
        saver.save(chunk);
    }
    let evictions = |node: &Node| node.metadata().shards[0].evictions.dram;
    let evicted_before = evictions(&node);
    assert!(evicted_before > 0, "the arena is full");

    let over = Arc::new(AtomicBool::new(false));
    let answered = Arc::new(AtomicU64::new(0));
    let asking: Vec<_> = (0..2)
        .map(|asker| {
            let (over, answered) = (over.clone(), answered.clone());
            let mut raw = node.raw();
            raw.register(&registration("asker"));
            std::thread::spawn(move || {
                let hashes: Vec<[u8; 32]> = (0..32).map(|key| block(1_000 + asker * 50 + key).0).collect();
                let start = Instant::now();
                let mut sent = 0;
                while !over.load(Ordering::Relaxed) {
                    let due = start.elapsed().as_micros() as u64 * RATE / 1_000_000;
                    if sent + PIECE > due {
                        std::thread::sleep(Duration::from_millis(2));
                        continue;
                    }
                    let ids = sent + 1_000..sent + 1_000 + PIECE;
                    let frames: Vec<u8> = ids
                        .flat_map(|id| prefix_request(Operation::Query, id, 0, false, [0; 16], &hashes))
                        .collect();
                    raw.send(&frames);
                    for _ in 0..PIECE {
                        let frame: Frame = raw.next().expect("every query is answered");
                        assert!(matches!(frame.answer(), Answer::Query(..)), "{frame:?}");
                    }
                    sent += PIECE;
                    answered.fetch_add(PIECE, Ordering::Relaxed);
                }
            })
        })
        .collect();

    let start = Instant::now();
    let (mut saved, mut longest) = (0, Duration::ZERO);
    while start.elapsed() < LASTS {
        let keys: Vec<u64> = (saved..saved + 4).map(|index| 1_000_000 + index).collect();
        let began = Instant::now();
        saver.save(&keys);
        longest = longest.max(began.elapsed());
        saved += keys.len() as u64;
        std::thread::sleep(Duration::from_millis(5));
    }
    over.store(true, Ordering::Relaxed);
    asking.into_iter().for_each(|asker| asker.join().expect("every query was answered"));
    let (answered, evicted) = (answered.load(Ordering::Relaxed), evictions(&node) - evicted_before);
    eprintln!(
        "{answered} queries answered in {LASTS:?}, {saved} saves, the slowest {longest:?}, {evicted} evictions"
    );
    assert!(answered >= RATE, "only {answered} queries were answered: no load at all");
    assert!(saved >= 200, "only {saved} saves in {LASTS:?} beside {answered} queries");
    assert!(longest < Duration::from_secs(2), "a save took {longest:?}");
    assert!(evicted + 100 >= saved, "saves made room for themselves: {evicted} evictions, {saved} saves");
    node.await_nothing_held();
    node.assert_serves();
}
