//! Blocks that are announced before they are acquired: from a peer and from SSD.

use orbitkv::client::{Media, Medium, Place, PrefetchOutcome, PrefixList};
use orbitkv::control::metadata::MetadataPage;

use crate::harness::saver::{GROUP, Saver, block};
use crate::harness::{Etcd, Node, NodeOrder, WAIT, http_text};
use crate::peers::{await_installed, await_nothing_lent, evict, keys, pair, peers, savers};

/// Says that these keys will be acquired.
fn announce(saver: &mut Saver, keys: &[u64]) -> Vec<PrefetchOutcome> {
    let blocks: Vec<_> = keys.iter().map(|&key| block(key)).collect();
    let lists = [PrefixList { namespace: saver.namespace, group: GROUP, blocks: &blocks }];
    saver.client.prefetch(&lists, WAIT).expect("Prefetch is answered")
}

fn await_arrived(node: &Node, count: u64) -> MetadataPage {
    node.await_metadata("what was announced is there", |page| {
        page.shards[0].service.prefetch.arrived == count
    })
}

#[test]
fn what_is_announced_at_one_node_and_saved_at_another_is_acquired_from_dram() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, |order| order.ssd("128mib"));
    let [mut saver, mut other] = savers([&first, &second]);
    let saved = keys(100);
    saver.save(&saved);
    await_installed(&first, &second);
    let outcomes = announce(&mut other, &saved);
    assert!(outcomes.iter().all(|outcome| *outcome == PrefetchOutcome::Taken), "{outcomes:?}");
    let page = await_arrived(&second, 100);
    let asked = peers(&second).fetching.first_asks;
    assert_eq!((asked, page.shards[0].service.prefetch.bytes), (100, 100 * 65_536));
    // All of it is here, byte for byte, and no peer is asked again.
    other.check_ready(&saved);
    let service = second.metadata().shards[0].service;
    assert_eq!((service.hits.dram, service.peer_hits.dram), (100, 0), "{service:?}");
    assert_eq!((service.prefetch.used, service.prefetch.bytes), (100, 0), "{service:?}");
    assert_eq!(peers(&second).fetching.first_asks, asked);
    assert!(announce(&mut other, &saved).iter().all(|outcome| *outcome == PrefetchOutcome::Present));
    // What nobody has is taken too: who announces it is not told, and finds nothing.
    let nowhere = keys(3);
    announce(&mut other, &nowhere);
    second.await_metadata("nobody has it", |page| page.shards[0].service.prefetch.missing == 3);
    await_nothing_lent(&first);
    let metrics = http_text(second.http(), "/metrics");
    assert!(metrics.contains("orbitkv_prefetch_blocks_total{shard=\"0\",kind=\"arrived\"} 100"), "{metrics}");
}

#[test]
fn what_is_announced_comes_from_ssd_and_is_given_up_with_its_engine() {
    let node = NodeOrder::default().ssd("256mib").start();
    let mut saver = Saver::connect(&node.socket(), "engine");
    let saved = keys(100);
    saver.save(&saved);
    saver.client.sync(WAIT).expect("Sync is answered");
    evict(&mut saver, &saved, Medium::Dram.into());
    assert!(announce(&mut saver, &saved).iter().all(|outcome| *outcome == PrefetchOutcome::Taken));
    await_arrived(&node, 100);
    let acquired = saver.acquire(&saved);
    assert!(acquired.blocks.iter().flatten().all(|ready| ready.place() == Place::Dram));
    saver.client.release(&acquired.lease.expect("a lease"), WAIT).expect("Release is answered");
    saver.check_ready(&saved);
    evict(&mut saver, &saved, Media::ALL);
    assert!(announce(&mut saver, &saved).iter().all(|outcome| *outcome == PrefetchOutcome::Absent));
    // Turned off, nothing is taken.
    let node = NodeOrder::default().ssd("256mib").argument("--prefetch").argument("0").start();
    let mut saver = Saver::connect(&node.socket(), "engine");
    saver.save(&saved[..1]);
    saver.client.sync(WAIT).expect("Sync is answered");
    evict(&mut saver, &saved[..1], Medium::Dram.into());
    assert_eq!(announce(&mut saver, &saved[..1]), [PrefetchOutcome::Full]);
}
