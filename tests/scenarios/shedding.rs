//! What is held back or given up so that others are served: a namespace beyond its rate, and what nobody waits for while
//! an engine does.

use std::time::Instant;

use orbitkv::client::{
    BlockOutcome, ClientSettings, CommitOutcome, Medium, PrefetchOutcome, PrefixList, Registration, Reserved,
};
use orbitkv::control::report::ThrottledReport;

use crate::faults::orbitkv;
use crate::harness::etcd::free_port;
use crate::harness::saver::{BLOCK_BYTES, GROUP, Saver, block, payload, registration};
use crate::harness::{Etcd, Node, NodeOrder, WAIT, eventually, http_text};
use crate::peers::{await_installed, evict, keys, knows_all, order, peers};

const MIB: u64 = 1 << 20;

fn throttled(node: &Node) -> ThrottledReport {
    node.metadata().shards[0].service.throttled
}

/// Another namespace than that of [`Saver::connect`].
fn other_namespace(node: &Node) -> Saver {
    let registration = Registration { model: "model-b".to_owned(), ..registration("other") };
    Saver::with(ClientSettings::new(node.socket()), &registration)
}

/// Offers blocks once, and saves those that are taken; which they are.
fn offer(saver: &mut Saver, keys: &[u64]) -> Vec<u64> {
    let reserved = saver.reserve(keys, false);
    let mut slots = Vec::new();
    let mut taken = Vec::new();
    for (&key, reserved) in keys.iter().zip(reserved) {
        match reserved {
            Reserved::Slot(mut slot) => {
                slot.copy_in(0, &payload(key, 0, BLOCK_BYTES as usize)).expect("the slot is ours");
                slots.push(slot);
                taken.push(key);
            }
            Reserved::Busy => {}
            other => panic!("key {key} is {other:?}"),
        }
    }
    let outcomes = saver.client.commit(&mut slots, WAIT).expect("Commit is answered");
    assert!(outcomes.iter().all(|&outcome| outcome == CommitOutcome::Committed), "{outcomes:?}");
    taken
}

#[test]
fn a_namespace_at_full_speed_has_its_rate_and_another_is_not_touched() {
    const RATE: u64 = MIB;
    const BURST: u64 = 2 * MIB;
    let flags = ["--namespace-rate", "1mib", "--namespace-burst", "2mib"];
    let order = NodeOrder::default().ssd("256mib");
    let node = flags.iter().fold(order, |order, flag| order.argument(flag)).start();
    let mut flood = Saver::connect(&node.socket(), "flood");
    let mut other = other_namespace(&node);
    let begun = Instant::now();
    let (mut offered, mut taken, mut others) = (0, Vec::new(), Vec::new());
    for _ in 0..8 {
        let keys = keys(32);
        offered += keys.len();
        taken.extend(offer(&mut flood, &keys));
        others.extend(offer(&mut other, &self::keys(2)));
    }
    let elapsed = begun.elapsed();
    let most = BURST + RATE * (elapsed.as_millis() as u64 + 1) / 1_000;
    let least = BURST / BLOCK_BYTES;
    let bytes = taken.len() as u64 * BLOCK_BYTES;
    assert!(bytes <= most && taken.len() as u64 >= least, "{bytes} bytes in {elapsed:?}, and {most} may go");
    assert!(taken.len() < offered, "256 blocks are sixteen seconds of it");
    assert_eq!(others.len(), 16, "a burst of its own");
    let held_back = throttled(&node);
    let refused = (offered - taken.len()) as u64;
    assert_eq!((held_back.saves, held_back.save_bytes), (refused, refused * BLOCK_BYTES), "{held_back:?}");
    assert_eq!(node.metadata().shards[0].service.saves_refused.busy, refused);
    // What was accepted is there, from DRAM whatever the rate.
    flood.check_ready(&taken);
    other.check_ready(&others);
    // From SSD no more comes back than may: the others are busy, and not absent.
    flood.client.sync(WAIT).expect("Sync is answered");
    evict(&mut flood, &taken, Medium::Dram.into());
    let acquired = flood.acquire(&taken);
    let came = acquired.blocks.iter().filter(|block| block.is_ok()).count() as u64;
    let refused: Vec<BlockOutcome> =
        acquired.blocks.iter().filter_map(|block| block.as_ref().err().copied()).collect();
    assert!(refused.iter().all(|outcome| *outcome == BlockOutcome::Busy), "{refused:?}");
    let most = BURST + RATE * (begun.elapsed().as_millis() as u64 + 1) / 1_000;
    assert!(bytes + came * BLOCK_BYTES <= most, "{came} blocks beside {bytes} bytes, and {most} may go");
    assert_eq!(throttled(&node).acquires, refused.len() as u64);
    if let Some(lease) = &acquired.lease {
        flood.client.release(lease, WAIT).expect("Release is answered");
    }
    // Whoever tries again has all of it in time.
    eventually("all of it has come", || {
        let outcomes = flood.check_never_wrong(&taken);
        outcomes.iter().all(Option::is_none).then_some(())
    });
    let metrics = http_text(node.http(), "/metrics");
    assert!(metrics.contains("orbitkv_throttled_blocks_total{shard=\"0\",kind=\"save\"}"), "{metrics}");
    assert!(metrics.contains("orbitkv_throttled_bytes_total{shard=\"0\",kind=\"acquire\"}"), "{metrics}");
    let said = orbitkv(&["doctor", "--http", node.http()]);
    assert!(said.stdout.contains("used up its rate"), "{said:#?}");
}

#[test]
fn what_was_announced_is_given_up_while_an_engine_waits_which_is_served() {
    let etcd = Etcd::start();
    let source = order("a", free_port(), &etcd).start();
    // A block takes a quarter of a second.
    let reader = order("b", free_port(), &etcd).argument("--receive-rate").argument("256kib").start();
    knows_all(&source, 2);
    knows_all(&reader, 2);
    let (wanted, announced) = (keys(8), keys(64));
    let mut saver = Saver::connect(&source.socket(), "engine");
    saver.save(&wanted);
    saver.save(&announced);
    await_installed(&source, &reader);
    let mut engine = Saver::connect(&reader.socket(), "reader");
    let blocks: Vec<_> = announced.iter().map(|&key| block(key)).collect();
    let lists = [PrefixList { namespace: engine.namespace, group: GROUP, blocks: &blocks }];
    let outcomes = engine.client.prefetch(&lists, WAIT).expect("Prefetch is answered");
    assert!(outcomes.iter().all(|outcome| *outcome == PrefetchOutcome::Taken), "{outcomes:?}");
    eventually("some of it waits to be asked for", || {
        (peers(&reader).fetching.queued_bytes > 0).then_some(())
    });
    // Two seconds of the rate: demand grows old by right, and none of it is given up.
    engine.check_ready(&wanted);
    let fetching = peers(&reader).fetching;
    assert!(fetching.shed_background_age > 0, "{fetching:?}");
    assert_eq!((fetching.shed_demand_length, fetching.shed_background_length), (0, 0), "{fetching:?}");
    let prefetch = reader.metadata().shards[0].service.prefetch;
    assert!(prefetch.failed >= fetching.shed_background_age, "{prefetch:?}");
    // Nothing of it is lost: it comes when it is asked for.
    engine.check_ready(&announced[..4]);
    let metrics = http_text(reader.http(), "/metrics");
    assert!(metrics.contains("orbitkv_shed_total{shard=\"0\",reason=\"background_age\"}"), "{metrics}");
}
