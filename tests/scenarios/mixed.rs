//! Nodes of one cluster with other numbers of shards: what is found where, and what is never claimed.

use orbitkv::client::{Coverage, Place};
use orbitkv_wire::identity::{ShardIndex, key_hash};

use crate::faults::doctor;
use crate::harness::Etcd;
use crate::harness::etcd::free_port;
use crate::harness::saver::{GROUP, Saver, block};
use crate::peers::{await_installed, keys, knows_all, order, query, savers};

/// Whether a key lies in the lower of two shards.
fn is_low(saver: &Saver, key: u64) -> bool {
    let digest = saver.client.digest(saver.namespace).expect("registered");
    key_hash(&digest, GROUP, &block(key)).shard(2) == ShardIndex(0)
}

#[test]
fn one_shard_finds_all_of_two_and_two_find_of_one_what_lies_on_the_core_that_is_asked() {
    let etcd = Etcd::start();
    let narrow = order("narrow", free_port(), &etcd).start();
    let wide = order("wide", free_port(), &etcd).two_shards().start();
    knows_all(&narrow, 2);
    knows_all(&wide, 2);
    let [mut of_narrow, mut of_wide] = savers([&narrow, &wide]);
    let (here, there) = (keys(100), keys(100));
    of_narrow.save(&here);
    of_wide.save(&there);
    await_installed(&wide, &narrow);
    await_installed(&narrow, &wide);
    // Two shards cut the range of one further: everything is found, absence is proved, and every byte comes.
    let view = query(&mut of_narrow, &there);
    assert_eq!((view.boundary_blocks, view.coverage), (100, Coverage::CompleteAtWatermarks));
    assert_eq!(query(&mut of_narrow, &keys(3)).coverage, Coverage::CompleteAtWatermarks);
    of_narrow.check_ready(&there);
    // The other way the rows of one stream are on one of two cores. What lies on the other is a miss, and nothing
    // that is missing is claimed to be absent.
    let (low, high): (Vec<u64>, Vec<u64>) = here.iter().partition(|&&key| is_low(&of_wide, key));
    assert!(low.len() > 20 && high.len() > 20, "{} and {}", low.len(), high.len());
    let view = query(&mut of_wide, &low);
    assert_eq!((view.boundary_blocks, view.coverage), (low.len() as u32, Coverage::PartialHints));
    assert!(view.places.iter().all(|place| *place == Place::PeerDram), "{:?}", view.places);
    of_wide.check_ready(&low);
    let view = query(&mut of_wide, &high);
    assert_eq!((view.boundary_blocks, view.coverage), (0, Coverage::PartialHints));
    assert!(of_wide.check_never_wrong(&high).iter().all(Option::is_some));
    // What it saved itself it has, of course; and its operator is told who is not found whole.
    of_wide.check_ready(&there);
    let (_, names, words) = doctor(&wide);
    assert_eq!(names, ["shard-counts"], "{words}");
    assert!(words.contains("narrow (1)") && words.contains("2 shards"), "{words}");
    assert_eq!(doctor(&narrow).1, Vec::<String>::new(), "{}", doctor(&narrow).2);
}
