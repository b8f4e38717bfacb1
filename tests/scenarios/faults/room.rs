//! Input that does not fit: blocks that are too large, and an arena whose every byte is leased.

use std::time::Duration;

use orbitkv::client::{
    BlockOutcome, ClientError, ClientSettings, Group, Lease, Registration, Reserved, Retention, SaveKey,
    Status,
};

use super::{keys, save_through};
use crate::harness::saver::{BLOCK_BYTES, GROUP, Saver, block, fresh_key, payload, registration};
use crate::harness::{Node, NodeOrder, WAIT, eventually};

const MIB: u64 = 1024 * 1024;

/// A registration of blocks of up to `block_bytes`.
fn with_blocks(block_bytes: u64) -> Registration {
    let groups = vec![Group { group: GROUP, retention: Retention::Full, block_bytes }];
    Registration { groups, ..registration("large") }
}

fn reserve_one(saver: &mut Saver, key: u64, bytes: u64) -> Reserved {
    let key = SaveKey { block: block(key), group: GROUP, bytes };
    saver.client.reserve(saver.namespace, &[key], false, WAIT).expect("Reserve is answered").remove(0)
}

#[test]
fn a_save_larger_than_the_arena_allows_is_too_large_and_names_the_limit() {
    let node = Node::start();
    let mut saver = Saver::with(ClientSettings::new(node.socket()), &with_blocks(1 << 40));
    let mut limits = Vec::new();
    for bytes in [64 * MIB + 1, 65 * MIB, 1 << 40] {
        match reserve_one(&mut saver, fresh_key(), bytes) {
            Reserved::TooLarge { limit_bytes } => limits.push(limit_bytes),
            other => panic!("{bytes} bytes: {other:?}"),
        }
    }
    let limit = limits[0];
    assert!(
        limits.iter().all(|other| *other == limit) && (16 * MIB..=64 * MIB).contains(&limit),
        "{limits:?}"
    );
    // The limit is one: a byte more is refused, and a block of this size is saved and comes back.
    let over = reserve_one(&mut saver, fresh_key(), limit + 1);
    assert!(matches!(over, Reserved::TooLarge { limit_bytes } if limit_bytes == limit), "{over:?}");
    let key = fresh_key();
    let Reserved::Slot(mut slot) = reserve_one(&mut saver, key, limit) else { panic!("the limit fits") };
    let bytes = payload(key, 0, limit as usize);
    slot.copy_in(0, &bytes).expect("the slot is ours");
    saver.client.commit(&mut vec![slot], WAIT).expect("Commit is answered");
    let acquired = saver.acquire(&[key]);
    let ready = acquired.blocks[0].as_ref().expect("the block is ready");
    assert!(ready.bytes().expect("under a live lease") == bytes);
    let page = node.metadata();
    assert_eq!(page.shards[0].service.saves_refused.too_large, 4, "{page:#?}");
    let (code, names, words) = super::doctor(&node);
    assert_eq!(code, Some(4), "{words}");
    assert!(names.contains(&"saves-too-large".to_owned()) && words.contains("raise --dram"), "{words}");
}

#[test]
fn a_block_larger_than_registered_is_over_the_limit() {
    let node = Node::start();
    let mut saver = Saver::connect(&node.socket(), "a");
    let key = SaveKey { block: block(fresh_key()), group: GROUP, bytes: BLOCK_BYTES + 1 };
    let refused = saver.client.reserve(saver.namespace, &[key], false, WAIT).expect_err("over the limit");
    let ClientError::Refused { status: Status::OverLimit, detail, text, .. } = &refused else {
        panic!("{refused:?}")
    };
    assert_eq!(*detail, BLOCK_BYTES);
    assert!(text.contains("65537 bytes") && text.contains("1 to 65536, as registered"), "{text}");
    node.await_nothing_held();
    node.assert_serves();
}

#[test]
fn one_connection_leases_at_most_half_the_arena() {
    let node = Node::start();
    let mut saver = Saver::connect(&node.socket(), "a");
    let saved = keys(600);
    saved.chunks(200).for_each(|some| saver.save(some));
    let acquired = saver.acquire(&saved);
    // The head of the prefix is ready, so that what is leased can be used.
    let (head, tail) = acquired.blocks.split_at(512);
    assert!(head.iter().all(Result::is_ok));
    assert!(tail.iter().all(|block| matches!(block, Err(BlockOutcome::Busy))), "{tail:?}");
    assert_eq!(acquired.boundary_blocks, 512);
    assert_eq!(node.held().leased_bytes, 32 * MIB);
    saver.client.release(&acquired.lease.expect("a lease"), WAIT).expect("Release is answered");
    node.await_nothing_held();
    saver.check_ready(&saved[..512]);
}

/// Leases `keys` on a connection of its own.
fn lease_all(node: &Node, instance: &str, keys: &[u64]) -> (Saver, Lease) {
    let mut saver = Saver::connect(&node.socket(), instance);
    let mut lease = None;
    eventually("every key is leased", || {
        let acquired = saver.acquire(keys);
        if acquired.blocks.iter().all(Result::is_ok) {
            lease = acquired.lease;
            return Some(());
        }
        let part = acquired.lease?;
        saver.client.release(&part, WAIT).expect("Release is answered");
        None
    });
    (saver, lease.expect("a lease"))
}

#[test]
fn an_arena_leased_whole_answers_busy_and_recovers_on_release() {
    let node = NodeOrder::default().ssd("256mib").start();
    let mut saver = Saver::connect(&node.socket(), "saver");
    let saved = keys(1_100);
    save_through(&node, &mut saver, &saved);
    let (mut first, first_lease) = lease_all(&node, "first", &saved[..512]);
    let (_second, _second_lease) = lease_all(&node, "second", &saved[512..1_024]);
    assert_eq!(node.held().leased_bytes, 64 * MIB);
    let before = node.metadata().shards[0].service;
    // Not an error, not a wait: an answer.
    let reserved = saver.reserve(&keys(4), false);
    assert!(reserved.iter().all(|outcome| matches!(outcome, Reserved::Busy)), "{reserved:?}");
    let outcomes = saver.check_never_wrong(&saved[1_024..]);
    assert!(outcomes.iter().all(|outcome| *outcome == Some(BlockOutcome::Busy)), "{outcomes:?}");
    let page = node.metadata();
    let after = page.shards[0].service;
    assert_eq!(after.saves_refused.busy - before.saves_refused.busy, 4, "{page:#?}");
    assert_eq!(after.acquires_busy - before.acquires_busy, 76, "{page:#?}");
    assert!(super::doctor(&node).1.contains(&"high-lease-share".to_owned()));
    saver.client.ping(Duration::from_secs(5)).expect("the node answers");
    first.client.release(&first_lease, WAIT).expect("Release is answered");
    saver.check_ready(&saved[1_024..]);
    saver.save(&keys(100));
    saver.check_ready(&saved[..256]);
}
