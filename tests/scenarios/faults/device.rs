//! The device fails the node: reads and writes that end in EIO, and transfers that come short.

use orbitkv::client::{
    BlockOutcome, ClientSettings, Group, Medium, Registration, Reserved, Retention, SaveKey,
};
use orbitkv::control::report::{SsdFault, SsdState};

use super::ring::{Done, Faults, FaultyRing};
use super::{doctor, keys, leave_dram, named, save_through, save_to_ssd};
use crate::harness::saver::{GROUP, Saver, block, payload, registration};
use crate::harness::{Node, NodeOrder, WAIT, eventually};

/// A node that uses its device whatever happens: of many operations at once those that fail come back first, so a third
/// of all may be half of the last twenty.
fn node_and_saver(ring: &FaultyRing) -> (Node, Saver) {
    let node = ring.under(NodeOrder::default()).ssd("256mib").argument("--ssd-breaker").argument("0").start();
    let saver = Saver::connect(&node.socket(), "a");
    (node, saver)
}

#[test]
fn reads_that_fail_are_device_errors_of_their_blocks_and_then_misses() {
    let ring = FaultyRing::new();
    let (node, mut saver) = node_and_saver(&ring);
    let saved = keys(300);
    save_to_ssd(&node, &mut saver, &saved);
    ring.make(Faults { read_every: 3, ..Faults::default() });
    let outcomes = saver.check_never_wrong(&saved);
    let failed: Vec<u64> =
        saved.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_some()).map(|(&key, _)| key).collect();
    assert_eq!(failed.len(), 100, "{outcomes:?}");
    let other = outcomes.iter().flatten().find(|outcome| **outcome != BlockOutcome::DeviceError);
    assert_eq!(other, None);
    assert_eq!(ring.done(), Done { reads_failed: 100, ..Done::default() });
    let page = node.metadata();
    assert_eq!(page.shards[0].ssd.read_errors, 100, "{page:#?}");
    assert_eq!(page.shards[0].residents.ssd, 200, "a residence that cannot be read has ended");
    let (code, names, words) = doctor(&node);
    assert_eq!((code, names), (Some(4), vec!["lost-writes".to_owned(), "ssd-errors".to_owned()]), "{words}");
    assert!(words.contains("100 SSD reads and 0 write-backs"), "{words}");
    let again = saver.check_never_wrong(&failed);
    assert!(again.iter().all(|outcome| *outcome == Some(BlockOutcome::Missing)), "{again:?}");
    // Every read fails: still answers, and still saves.
    ring.make(Faults { read_every: 1, ..Faults::default() });
    leave_dram(&mut saver, &saved);
    let outcomes = saver.check_never_wrong(&saved);
    assert!(outcomes.iter().all(Option::is_some), "{outcomes:?}");
    node.assert_serves();
    // The device recovers: so does the tier.
    ring.make(Faults::default());
    save_to_ssd(&node, &mut saver, &saved);
    saver.check_ready(&saved);
    assert_eq!(node.metadata().shards[0].ssd.state, SsdState::On);
}

/// Blocks on SSD alone, and a device of which all reads are as `faults` says; how the breaker came to be open.
fn left_alone(faults: Faults, arguments: &[&str]) -> (FaultyRing, Node, Saver, Vec<u64>) {
    let ring = FaultyRing::new();
    let order = ring.under(NodeOrder::default()).ssd("256mib");
    let node = arguments.iter().fold(order, |order, word| order.argument(*word)).start();
    let mut saver = Saver::connect(&node.socket(), "a");
    let saved = keys(300);
    save_to_ssd(&node, &mut saver, &saved);
    ring.make(faults);
    let outcomes = saver.check_never_wrong(&saved[..100]);
    assert!(outcomes.contains(&Some(BlockOutcome::Missing)), "{outcomes:?}");
    let page = node.await_metadata("it is left alone", |page| page.shards[0].ssd.breaker.opens == 1);
    let (code, names, words) = doctor(&node);
    assert!(code == Some(4) && names.contains(&"ssd-left-alone".to_owned()), "{words}");
    assert!(page.shards[0].ssd.breaker.barred > 0, "{page:#?}");
    (ring, node, saver, saved)
}

/// The device is well again: one read shows it, and all is as before.
fn comes_back(ring: &FaultyRing, node: &Node, saver: &mut Saver, saved: &[u64]) {
    ring.make(Faults::default());
    eventually("one is read", || saver.check_never_wrong(&saved[299..])[0].is_none().then_some(()));
    saver.check_ready(&saved[100..]);
    let ssd = &node.metadata().shards[0].ssd;
    assert_eq!((ssd.breaker.state.as_str(), &ssd.state), ("closed", &SsdState::On));
    assert!(!doctor(node).1.contains(&"ssd-left-alone".to_owned()));
}

#[test]
fn a_device_that_fails_all_reads_is_left_alone_and_loses_few_blocks() {
    let (ring, node, mut saver, saved) = left_alone(Faults { read_every: 1, ..Faults::default() }, &[]);
    let failed = ring.done().reads_failed;
    assert!(failed < 100, "{failed} of 100 reads failed, the others were not begun");
    let outcomes = saver.check_never_wrong(&saved[100..]);
    assert!(outcomes.iter().all(|outcome| *outcome == Some(BlockOutcome::Missing)), "{outcomes:?}");
    assert!(ring.done().reads_failed <= failed + 1, "one a second tries it");
    comes_back(&ring, &node, &mut saver, &saved);
}

#[test]
fn a_device_that_is_too_slow_is_left_alone_until_it_is_fast_again() {
    let slow = Faults { slow_us: 200_000, ..Faults::default() };
    // On a thread of its own: a core that is slow itself blames nobody for it.
    let arguments = ["--ssd-read-budget", "20ms", "--cores", "1", "--device-cores", "0"];
    let (ring, node, mut saver, saved) = left_alone(slow, &arguments);
    let ssd = node.metadata().shards[0].ssd.clone();
    assert!(ssd.breaker.late_reads >= 10 && ssd.read_errors == 0, "{ssd:#?}");
    assert_eq!(node.metadata().shards[0].residents.ssd, 300, "what comes late is lost to nobody");
    comes_back(&ring, &node, &mut saver, &saved);
}

#[test]
fn writes_that_fail_now_and_then_are_tried_again() {
    let ring = FaultyRing::new();
    let (node, mut saver) = node_and_saver(&ring);
    ring.make(Faults { write_every: 4, ..Faults::default() });
    let saved = keys(256);
    save_through(&node, &mut saver, &saved);
    let page = node.metadata();
    let failed = ring.done().writes_failed;
    assert!(failed >= 64, "{failed} writes failed");
    let ssd = &page.shards[0].ssd;
    // Segment tables may have failed too; they are no blocks.
    assert!((64..=failed).contains(&ssd.write_backs_failed), "{failed} failed: {ssd:#?}");
    assert_eq!(ssd.state, SsdState::On);
    let written = page.shards[0].residents.ssd;
    assert!(written >= 240, "{written} of 256 blocks reached the SSD");
    saver.check_ready(&saved);
    leave_dram(&mut saver, &saved);
    let ready = saver.check_never_wrong(&saved).iter().filter(|outcome| outcome.is_none()).count() as u64;
    assert_eq!(ready, written, "what the node says is on SSD is there");
}

#[test]
fn a_device_that_takes_no_writes_turns_the_tier_off_and_blocks_stay_in_dram() {
    let ring = FaultyRing::new();
    // The breaker lets out one write a pause: of 64 that have to fail, so as not to be long about it.
    let order = ring.under(NodeOrder::default()).ssd("256mib");
    let node = order.argument("--ssd-breaker-pause").argument("10ms").start();
    let mut saver = Saver::connect(&node.socket(), "a");
    let early = keys(64);
    save_to_ssd(&node, &mut saver, &early);
    ring.make(Faults { write_every: 1, ..Faults::default() });
    let saved = keys(256);
    save_through(&node, &mut saver, &saved);
    let page = node.await_metadata("the tier is off", |page| page.shards[0].ssd.state != SsdState::On);
    let ssd = &page.shards[0].ssd;
    let SsdState::Degraded { fault: SsdFault::WriteErrors, detail } = &ssd.state else { panic!("{ssd:#?}") };
    assert!(detail.contains("in a row"), "{detail}");
    assert!(ssd.write_backs_failed >= 64 && ssd.breaker.opens > 1, "{ssd:#?}");
    assert_eq!(page.shards[0].residents.ssd, 64, "{page:#?}");
    saver.check_ready(&saved);
    // What was written before is still read, once one of it has shown that reads do not fail.
    eventually("one is read", || saver.check_never_wrong(&early[..1])[0].is_none().then_some(()));
    saver.check_ready(&early);
    assert!(node.metadata().shards[0].ssd.reads >= 64);
    let (code, names, words) = doctor(&node);
    assert_eq!((code, names), (Some(4), vec!["ssd-degraded".to_owned(), "ssd-errors".to_owned()]), "{words}");
    assert!(words.contains("writes fail") && words.contains("kernel's log"), "{words}");
    // More than DRAM holds: saves and eviction go on, and Sync does not wait for what cannot come.
    let tried = ring.done();
    let more = keys(1_500);
    save_through(&node, &mut saver, &more);
    saver.check_ready(&more[1_300..]);
    assert_eq!(ring.done(), tried, "nothing is written any more");
}

#[test]
fn transfers_that_come_short_go_on_where_they_ended() {
    let ring = FaultyRing::new();
    let (node, mut saver) = node_and_saver(&ring);
    ring.make(Faults { short_every: 2, ..Faults::default() });
    let saved = keys(256);
    save_to_ssd(&node, &mut saver, &saved);
    let written_short = ring.done().transfers_cut;
    assert!(written_short >= 128, "{written_short} writes were cut");
    // What is read finds other bytes in its slot than its own.
    ring.make(Faults::default());
    let others = keys(1_100);
    save_through(&node, &mut saver, &others);
    leave_dram(&mut saver, &others);
    let before = node.metadata().shards[0].ssd.reads;
    // Each rest may be cut again.
    ring.make(Faults { short_every: 1, ..Faults::default() });
    saver.check_ready(&saved);
    let read_short = ring.done().transfers_cut - written_short;
    assert!(read_short >= 256, "{read_short} reads were cut");
    let ssd = &node.metadata().shards[0].ssd;
    assert_eq!((ssd.read_errors, ssd.write_backs_failed, ssd.checksum_failures), (0, 0, 0), "{ssd:#?}");
    assert_eq!((ssd.reads - before, &ssd.state), (256, &SsdState::On), "{ssd:#?}");
    assert_eq!(doctor(&node).0, Some(0));
}

#[test]
fn a_node_killed_while_it_writes_back_starts_again_with_an_empty_tier() {
    let ring = FaultyRing::new();
    let (mut node, mut saver) = node_and_saver(&ring);
    ring.make(Faults { slow_us: 20_000, ..Faults::default() });
    let saved = keys(512);
    saver.save(&saved);
    eventually("a write-back is in flight", || {
        (node.metadata().shards[0].ssd.write_backs_in_flight > 0).then_some(())
    });
    node.kill();
    ring.make(Faults::default());
    node.restart();
    let page = node.metadata();
    assert_eq!((page.shards[0].residents.dram, page.shards[0].residents.ssd), (0, 0), "{page:#?}");
    let mut saver = Saver::connect(&node.socket(), "a");
    let outcomes = saver.check_never_wrong(&saved);
    assert!(outcomes.iter().all(|outcome| *outcome == Some(BlockOutcome::Missing)), "{outcomes:?}");
    save_to_ssd(&node, &mut saver, &saved);
    saver.check_ready(&saved);
}

/// Blocks of several parts on small pages.
const LARGE_BYTES: u64 = 3 * 1024 * 1024 + 5;

fn save_large(saver: &mut Saver, key: u64) {
    let name = SaveKey { block: block(key), group: GROUP, bytes: LARGE_BYTES };
    let slot = eventually("there is room", || {
        match saver.client.reserve(saver.namespace, &[name], false, WAIT).expect("answered").remove(0) {
            Reserved::Slot(slot) => Some(slot),
            Reserved::Busy => None,
            other => panic!("{other:?}"),
        }
    });
    let mut slots = vec![slot];
    slots[0].copy_in(0, &payload(key, 0, LARGE_BYTES as usize)).expect("the slot is ours");
    saver.client.commit(&mut slots, WAIT).expect("Commit is answered");
}

/// What became of each key; what is ready has its bytes.
fn acquire_large(saver: &mut Saver, keys: &[u64]) -> Vec<Option<BlockOutcome>> {
    let acquired = saver.acquire(keys);
    let outcomes = keys.iter().zip(&acquired.blocks).map(|(&key, block)| match block {
        Ok(ready) => {
            let bytes = ready.bytes().expect("under a live lease");
            assert!(bytes == payload(key, 0, LARGE_BYTES as usize), "key {key} has wrong bytes");
            None
        }
        Err(outcome) => Some(*outcome),
    });
    let outcomes = outcomes.collect();
    if let Some(lease) = &acquired.lease {
        saver.client.release(lease, WAIT).expect("Release is answered");
    }
    outcomes
}

#[test]
fn parts_that_fail_and_come_short_at_depth_one_never_show_wrong_bytes() {
    let large = Registration {
        groups: vec![Group { group: GROUP, retention: Retention::Full, block_bytes: LARGE_BYTES }],
        ..registration("large")
    };
    let layouts: [&[&str]; 2] = [&["--cores", "1"], &["--cores", "1", "--device-cores", "0"]];
    for layout in layouts {
        let ring = FaultyRing::new();
        let order = ["--arena-pages", "small", "--ssd-depth", "1"].iter().chain(layout);
        let order =
            order.fold(ring.under(NodeOrder::default()).ssd("256mib"), |order, word| order.argument(*word));
        let node = order.start();
        let mut saver = Saver::with(ClientSettings::new(node.socket()), &large);
        let saved = keys(10);
        ring.make(Faults { short_every: 2, ..Faults::default() });
        saved.iter().for_each(|&key| save_large(&mut saver, key));
        saver.client.sync(WAIT).expect("Sync is answered");
        let leave = |saver: &mut Saver| {
            let dram = Medium::Dram.into();
            saver.client.evict(saver.namespace, &named(&saved), dram, WAIT).expect("Evict is answered");
        };
        leave(&mut saver);
        assert_eq!(acquire_large(&mut saver, &saved), vec![None; 10], "short transfers are continued");
        assert!(ring.done().transfers_cut > 20, "{:?}", ring.done());
        leave(&mut saver);
        ring.make(Faults { short_every: 3, read_every: 7, ..Faults::default() });
        let outcomes = acquire_large(&mut saver, &saved);
        let failed = outcomes.iter().flatten().count();
        assert!(failed > 0, "a part of some block failed: {:?}", ring.done());
        let other = outcomes.iter().flatten().find(|outcome| **outcome != BlockOutcome::DeviceError);
        assert_eq!(other, None);
        // Writes of which some parts fail are tried again, or their blocks stay in DRAM.
        ring.make(Faults { short_every: 3, write_every: 9, ..Faults::default() });
        let more = keys(6);
        more.iter().for_each(|&key| save_large(&mut saver, key));
        saver.client.sync(WAIT).expect("Sync is answered");
        assert!(ring.done().writes_failed > 0);
        ring.make(Faults::default());
        assert_eq!(acquire_large(&mut saver, &more), vec![None; 6]);
        let page = node.metadata();
        let ssd = &page.shards[0].ssd;
        assert_eq!((&ssd.state, ssd.checksum_failures), (&SsdState::On, 0));
        assert_eq!(page.shards[0].queue_peaks.ssd_requests, 2, "as many as a depth of one admits");
        node.await_nothing_held();
        node.assert_serves();
    }
}
