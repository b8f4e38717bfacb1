//! Engines that die, stop or go away: what they held comes back when, and only when, nobody can
//! touch it any more.

use std::time::{Duration, Instant};

use orbitkv::client::{BlockHash, ClientSettings, CompletionTarget, PrefixList};
use orbitkv_wire::engine::Operation;
use rustix::process::Signal;

use crate::harness::raw::{hello_body, prefix_request};
use crate::harness::saver::{BLOCK_BYTES, GROUP, block, registration};
use crate::harness::{EngineProcess, Held, Node, NodeOrder, Raw, Saver, WAIT};

/// Long enough for a node to do something it must not do.
const QUIET: Duration = Duration::from_millis(300);

/// Blocks saved first: more than DRAM holds, so that the first ones are on SSD alone.
const SAVED: u64 = 1_400;

/// A node with blocks on SSD.
fn node_with_ssd_blocks() -> Node {
    let node = NodeOrder::default().ssd("256mib").start();
    let mut saver = Saver::connect(&node.socket(), "preparer");
    for chunk in (0..SAVED).collect::<Vec<u64>>().chunks(100) {
        saver.save(chunk);
    }
    saver.client.sync(WAIT).expect("flushed");
    node.await_metadata("the first blocks left DRAM", |page| {
        let shard = &page.shards[0];
        shard.residents.dram < SAVED && shard.residents.ssd > SAVED / 2
    });
    node
}

/// An engine with slots, a lease and a hold.
fn claim(raw: &mut Raw, instance: &str, seed: u64) {
    raw.register(&registration(instance));
    let blocks: Vec<[u8; 32]> = (0..10).map(|key| block(1_000_000 * (seed + 1) + key).0).collect();
    raw.reserve(&blocks, BLOCK_BYTES);
    let newest: Vec<[u8; 32]> = (SAVED - 20..SAVED).map(|key| block(key).0).collect();
    raw.send(&prefix_request(Operation::Acquire, 2000, 0, false, [0; 16], &newest));
    raw.answers_to(2000);
    raw.send(&prefix_request(Operation::Query, 2001, 0, true, [0; 16], &newest));
    raw.answer_to(2001);
}

const CLAIMED: Held = Held {
    connections: 1,
    requests_in_flight: 0,
    reservations: 10,
    leases: 2,
    holds: 1,
    waiting: 0,
    reserved_bytes: 10 * BLOCK_BYTES,
    leased_bytes: 40 * BLOCK_BYTES,
};

#[test]
fn an_engine_killed_with_everything_in_hand_gives_all_of_it_back() {
    let node = node_with_ssd_blocks();
    node.await_held("only this process is left", |held| held.is_nothing());
    let mut deaths = node.metadata().shards[0].engine.process_deaths;
    for round in 0..12 {
        let mut process = EngineProcess::start(&node);
        let mut raw = process.raw();
        claim(&mut raw, "victim", round);
        node.await_held("the engine holds all it asked for", |held| {
            Held { connections: 1, ..*held } == CLAIMED
        });
        // And an Acquire whose blocks are being read from SSD when it dies, sooner or later.
        let wanted: Vec<[u8; 32]> = (round * 20..round * 20 + 150).map(|key| block(key).0).collect();
        raw.send(&prefix_request(Operation::Acquire, 3000, 0, false, [0; 16], &wanted));
        std::thread::sleep(Duration::from_micros(300 * round));
        process.kill();
        node.await_nothing_held();
        let page = node.metadata();
        assert!(page.shards[0].engine.process_deaths > deaths, "the death was seen");
        deaths = page.shards[0].engine.process_deaths;
        node.assert_serves();
    }
    // Once the device is quiet nothing is pinned, and every slot is a resident's.
    let page = node.await_metadata("nothing is pinned", |page| page.shards[0].arena.pinned_bytes == 0);
    assert_eq!(page.shards[0].arena.allocated_bytes, page.shards[0].resident_bytes.dram);
    // Half of the arena may be reserved at once, as on the first day.
    let mut saver = Saver::connect(&node.socket(), "successor");
    let keys: Vec<u64> = (5_000_000..5_000_000 + (32 << 20) / BLOCK_BYTES).collect();
    let mut slots = saver.fill(&keys, 0);
    saver.client.abort(&mut slots, WAIT).expect("given back");
    node.await_nothing_held();
}

#[test]
fn a_stopped_engine_keeps_what_it_has() {
    let node = node_with_ssd_blocks();
    let mut process = EngineProcess::start(&node);
    let mut raw = process.raw();
    claim(&mut raw, "sleeper", 1);
    process.signal(Signal::STOP);
    let until = Instant::now() + QUIET;
    while Instant::now() < until {
        assert_eq!(Held { connections: 1, ..node.held() }, CLAIMED);
        node.assert_serves();
    }
    process.signal(Signal::CONT);
    raw.ping();
    assert_eq!(node.held(), CLAIMED);
    // Even a stopped process can be killed.
    process.signal(Signal::STOP);
    process.kill();
    node.await_nothing_held();
}

#[test]
fn a_closed_socket_gives_back_holds_and_nothing_else() {
    let node = node_with_ssd_blocks();
    let mut process = EngineProcess::start(&node);
    let mut raw = process.raw();
    claim(&mut raw, "leaver", 1);
    drop(raw);
    let kept = Held { connections: 0, leases: 1, holds: 0, leased_bytes: 20 * BLOCK_BYTES, ..CLAIMED };
    node.await_held("the hold ended", |held| *held == kept);
    std::thread::sleep(QUIET);
    assert_eq!(node.held(), kept, "the process lives and may still touch the memory");
    node.assert_serves();
    process.kill();
    node.await_nothing_held();
}

#[test]
fn a_process_that_names_its_lost_connection_gets_rid_of_it() {
    let node = node_with_ssd_blocks();
    let process = EngineProcess::start(&node);
    for round in 0..20 {
        let mut lost = Raw::connect(&process.socket());
        let number = lost.hello(&hello_body(0)).connection;
        claim(&mut lost, "returner", round);
        drop(lost);
        // At once: the node may learn of the new connection before it sees the end of the old one.
        let mut back = Raw::connect(&process.socket());
        back.hello(&hello_body(number));
        node.await_held("the old claims ended", |held| held.is_nothing() && held.connections == 1);
        back.ping();
    }
    node.assert_serves();
}

#[test]
fn nobody_can_end_the_claims_of_another_process() {
    let node = node_with_ssd_blocks();
    let victim = EngineProcess::start(&node);
    let mut raw = Raw::connect(&victim.socket());
    let number = raw.hello(&hello_body(0)).connection;
    claim(&mut raw, "victim", 1);
    let thief = EngineProcess::start(&node);
    let claim_it = || {
        for named in [number, u64::MAX, number + 1_000_000, 9 << 48 | number] {
            let mut raw = Raw::connect(&thief.socket());
            raw.hello(&hello_body(named));
            raw.ping();
        }
    };
    claim_it();
    std::thread::sleep(QUIET);
    node.await_held("the thieves left", |held| *held == CLAIMED);
    raw.ping();
    // Nor after it has closed its socket.
    drop(raw);
    let kept = Held { connections: 0, leases: 1, holds: 0, leased_bytes: 20 * BLOCK_BYTES, ..CLAIMED };
    node.await_held("the hold ended", |held| *held == kept);
    claim_it();
    std::thread::sleep(QUIET);
    node.await_held("the thieves left again", |held| *held == kept);
    node.assert_serves();
}

#[test]
fn the_client_names_its_lost_connection_by_itself() {
    let node = node_with_ssd_blocks();
    let mut process = EngineProcess::start(&node);
    let settings = ClientSettings::new(process.socket());
    let mut saver = Saver::with(settings, &registration("engine"));
    let slots = saver.fill(&[7_000_000], 0);
    let lease = saver.acquire_checked(&[SAVED - 1]);
    node.await_held("a slot and a lease", |held| (held.reservations, held.leases) == (1, 1));
    let blocks: Vec<BlockHash> = (0..200).map(block).collect();
    let lists = [PrefixList { namespace: saver.namespace, group: GROUP, blocks: &blocks }];
    let unanswered = saver.client.submit_acquire(&lists, CompletionTarget::Host, None, WAIT).expect("sent");
    process.cut();
    let lost = crate::harness::eventually("the client sees the end", || {
        saver.client.poll().filter(|completion| completion.ticket == unanswered && completion.last)
    });
    // The answer may have been faster than the cut.
    assert!(lost.result.is_ok() || saver.client.node().is_none(), "{lost:?}");
    saver.check_ready(&[SAVED - 2]);
    node.await_held("the lost connection's claims ended", |held| held.is_nothing());
    assert!(matches!(lease.check(), Err(orbitkv::client::ClientError::Ended)));
    drop(slots);
}
