//! What a node costs: at rest, at its fullest, and in its other layouts.

use std::fs;
use std::time::Duration;

use orbitkv::client::{Reserved, SaveKey};
use serde_json::Value;

use super::{keys, orbitkv, save_through};
use crate::harness::saver::{GROUP, Saver, block, payload};
use crate::harness::{Node, NodeOrder, WAIT, eventually};

/// CPU time of a node so far, in clock ticks of 10 ms.
fn ticks(node: &Node) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", node.pid())).expect("the node runs");
    // After the name, which may hold blanks: state is the first field, user and system time are 12th and 13th.
    let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    fields[11].parse::<u64>().expect("a number") + fields[12].parse::<u64>().expect("a number")
}

/// Clock ticks a node takes over `time`.
fn ticks_over(node: &Node, time: Duration) -> u64 {
    let before = ticks(node);
    std::thread::sleep(time);
    ticks(node) - before
}

/// Replays a small trace on a node.
fn replay(node: &Node) -> Value {
    let socket = node.socket();
    let socket = socket.to_str().expect("text");
    let said =
        orbitkv(&["replay", "--generate", "160", "--block-bytes", "256kib", "--socket", socket, "--json"]);
    assert_eq!(said.code, Some(0), "{said:#?}");
    let report: Value =
        serde_json::from_str(&said.stdout).unwrap_or_else(|error| panic!("{error}: {said:#?}"));
    assert_eq!(
        (report["wrong_bytes"].as_u64(), report["unaccounted"].as_u64()),
        (Some(0), Some(0)),
        "{report}"
    );
    assert!(report["hits"]["dram"].as_u64() > Some(0), "{report}");
    report
}

#[test]
fn a_node_at_rest_takes_next_to_nothing() {
    for order in [NodeOrder::default().ssd("128mib"), NodeOrder::default().two_shards()] {
        let node = order.start();
        let mut saver = Saver::connect(&node.socket(), "a");
        save_through(&node, &mut saver, &keys(100));
        // With an engine connected and a lease held: nothing polls for them.
        let saved = keys(50);
        saver.save(&saved);
        let _lease = saver.acquire_checked(&saved);
        std::thread::sleep(Duration::from_millis(300));
        // 5 % of a core; the benchmark has the gate of 1 %.
        let taken = ticks_over(&node, Duration::from_secs(3));
        assert!(taken <= 15, "{taken} ticks of 10 ms in 3 s");
    }
}

#[test]
fn a_full_node_stays_within_the_bill_it_printed() {
    let node = NodeOrder::default().ssd("256mib").start();
    let mut saver = Saver::connect(&node.socket(), "a");
    for _ in 0..10 {
        save_through(&node, &mut saver, &keys(512));
    }
    let page = node.metadata();
    assert!(page.shards[0].evictions.dram > 0 && page.shards[0].evictions.ssd > 0, "{page:#?}");
    let (bill, resident) = (page.memory.bill_bytes, node.resident_bytes());
    assert!(resident >= 64 << 20, "the arena alone is more than {resident}");
    assert!(resident <= bill && page.memory.rss_peak_bytes <= bill, "{resident} of {bill}: {page:#?}");
    let total = orbitkv::quantity::ByteSize(bill).rounded();
    let stdout = node.stdout();
    let line = stdout.lines().find(|line| line.starts_with("total")).expect("a printed bill");
    assert!(line.ends_with(&total), "{line} is not {total}");
}

#[test]
fn small_blocks_and_many_connections_stay_within_the_bill() {
    const SMALL_BYTES: u64 = 4_096;
    let node = NodeOrder::default().ssd("128mib").start();
    let mut savers: Vec<Saver> =
        (0..100).map(|index| Saver::connect(&node.socket(), &format!("engine {index}"))).collect();
    // In all more than twice what DRAM holds in the smallest slots there are.
    let mut leases = Vec::new();
    for turn in 0..8_000 {
        let count = savers.len();
        let saver = &mut savers[turn % count];
        let saved: Vec<u64> = keys(5);
        let mut left = saved.clone();
        eventually("every small block is saved", || {
            let wanted: Vec<SaveKey> = left
                .iter()
                .map(|&key| SaveKey { block: block(key), group: GROUP, bytes: SMALL_BYTES })
                .collect();
            let reserved = saver.client.reserve(saver.namespace, &wanted, false, WAIT).expect("an answer");
            let (mut slots, mut again) = (Vec::new(), Vec::new());
            for (&key, reserved) in left.iter().zip(reserved) {
                match reserved {
                    Reserved::Slot(mut slot) => {
                        slot.copy_in(0, &payload(key, 0, SMALL_BYTES as usize)).expect("the slot is ours");
                        slots.push(slot);
                    }
                    _ => again.push(key),
                }
            }
            saver.client.commit(&mut slots, WAIT).expect("an answer");
            left = again;
            left.is_empty().then_some(())
        });
        if turn < count {
            leases.extend(saver.acquire(&saved).lease);
        }
    }
    assert_eq!(leases.len(), 100, "each connection holds a lease");
    let page = node.metadata();
    assert_eq!(page.shards[0].engine.connections, 100);
    assert!(page.shards[0].evictions.dram > 0, "{page:#?}");
    let (bill, resident) = (page.memory.bill_bytes, node.resident_bytes());
    assert!(resident <= bill && page.memory.rss_peak_bytes <= bill, "{resident} of {bill}: {page:#?}");
}

#[test]
fn a_dedicated_device_core_serves_the_same_bytes() {
    let node = NodeOrder::default()
        .ssd("512mib")
        .argument("--cores=0")
        .argument("--device-cores=1")
        .argument("--layout=dedicated")
        .start();
    assert!(node.metadata().identity.placement.contains("dedicated on core 1"));
    let report = replay(&node);
    assert!(report["hits"]["ssd"].as_u64() > Some(0), "{report}");
    let ssd = &node.metadata().shards[0].ssd;
    assert_eq!((ssd.read_errors, ssd.checksum_failures, ssd.write_backs_failed), (0, 0, 0), "{ssd:#?}");
    std::thread::sleep(Duration::from_millis(300));
    let taken = ticks_over(&node, Duration::from_secs(2));
    assert!(taken <= 10, "{taken} ticks of 10 ms in 2 s at rest");
}

#[test]
fn two_shards_serve_the_same_bytes() {
    let node = NodeOrder::default().two_shards().ssd("512mib").start();
    let report = replay(&node);
    assert!(report["hits"]["ssd"].as_u64() > Some(0), "{report}");
    assert!(
        node.metadata().shards.iter().all(|shard| shard.service.saves_committed > 0 && shard.ssd.reads > 0)
    );
}

#[test]
fn a_spinning_node_serves_the_same_bytes_and_takes_its_core() {
    let mut node = NodeOrder::default()
        .ssd("512mib")
        .argument("--cores=1")
        .argument("--idle=spin")
        .argument("--layout=shared")
        .start();
    replay(&node);
    // A fifth of a core: others may be on it as well. A parked node takes a hundredth.
    eventually("a spinning node takes its core", || {
        (ticks_over(&node, Duration::from_secs(1)) >= 20).then_some(())
    });
    // It answers HTTP, and ends, beside its spinning core.
    assert_eq!(orbitkv(&["status", "--http", node.http()]).code, Some(0));
    assert_eq!(node.terminate().code(), Some(0));
}
