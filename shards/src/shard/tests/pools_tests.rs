//! The bulkhead: whatever waits, is lent or is brought ahead takes no place of other work, what is refused for it is
//! counted, and what gives places back asks for none.

use orbitkv_wire::engine::answers::{BlockOutcome, CommitOutcome, PrefetchOutcome, SlotOutcome};

use super::super::{Command, Outcome, PoolFigures};
use super::rig::{KIB, Rig, holder, settings};
use crate::leases::ConnectionId;
use crate::resilience::bulkhead::Class;
use crate::time::Moment;

const BLOCK: u64 = 64 * KIB;

fn pool(rig: &Rig, name: &str) -> PoolFigures {
    let pools = rig.shard.figures().pools;
    *pools.iter().find(|pool| pool.name == name).unwrap_or_else(|| panic!("no pool {name}"))
}

/// Places taken in a pool, refusals, and those of them beside neighbours that had room.
fn of(rig: &Rig, name: &str) -> [u64; 3] {
    let account = pool(rig, name).account;
    [account.taken, account.refused, account.refused_beside_idle]
}

fn outcomes(rig: &mut Rig, tag: super::super::Tag) -> Vec<(u32, u8)> {
    rig.collect();
    let mut told: Vec<_> = rig.blocks(tag).0.iter().map(|block| (block.index, block.outcome)).collect();
    told.sort_unstable();
    told
}

#[test]
fn what_waits_for_a_silent_peer_takes_no_place_of_what_the_ssd_serves() {
    let mut bounds = settings(2, 4 * 1024 * KIB);
    (bounds.waiting_max, bounds.waiting_for_peers_max) = (1, 1);
    let mut rig = Rig::new(bounds);
    rig.save_to_ssd(1, BLOCK);
    rig.save_to_ssd(2, BLOCK);
    rig.settle();
    rig.shard.seek_peers(true);
    let silent = rig.submit_acquire(holder(1, 1, 1), &[2, 7]);
    assert_eq!((of(&rig, "peer_waits"), of(&rig, "ssd_waits")), ([1, 0, 0], [0, 0, 0]), "it waits for both");
    let served = rig.submit_acquire(holder(2, 1, 2), &[1, 8]);
    assert_eq!((of(&rig, "peer_waits"), of(&rig, "ssd_waits")), ([1, 1, 1], [1, 0, 0]));
    rig.answer_seeks(Some(BLOCK));
    let joining = rig.submit_acquire(holder(3, 1, 3), &[7]);
    assert_eq!(
        outcomes(&mut rig, joining),
        [(0, BlockOutcome::Busy as u8)],
        "that fetch is for a peer to end"
    );
    assert_eq!((of(&rig, "peer_waits"), of(&rig, "ssd_waits")), ([1, 2, 1], [1, 0, 0]));
    rig.settle();
    let (missing, ready) = (BlockOutcome::Missing as u8, BlockOutcome::Ready as u8);
    assert_eq!(outcomes(&mut rig, served), [(0, ready), (1, missing)]);
    assert_eq!((of(&rig, "peer_waits")[0], of(&rig, "ssd_waits")[0]), (1, 0));
    assert!(matches!(rig.call(Command::Cancel { tag: silent, deadline: false }), Outcome::Done));
    assert_eq!(of(&rig, "peer_waits")[0], 0);
    let classes = ["dram_bytes", "ssd_waits", "peer_bytes", "peer_waits", "background_bytes"]
        .map(|name| pool(&rig, name).class);
    assert_eq!(classes, [Class::Dram, Class::Ssd, Class::Peer, Class::Peer, Class::Background]);
}

#[test]
fn what_gives_places_back_goes_on_when_every_pool_is_full() {
    let mut bounds = settings(2, 4 * 1024 * KIB);
    (bounds.waiting_max, bounds.waiting_for_peers_max) = (1, 1);
    (bounds.reserved_bytes_max, bounds.lent_bytes_max, bounds.prefetch.bytes_max) = (BLOCK, BLOCK, BLOCK);
    let mut rig = Rig::new(bounds);
    rig.save_to_ssd(1, BLOCK);
    rig.save_to_ssd(3, BLOCK);
    rig.save(2, BLOCK);
    rig.settle();
    assert_eq!(rig.acquire(holder(1, 1, 1), &[2])[0].outcome, BlockOutcome::Ready as u8);
    let _lent = rig.shard.lent_pool().take(BLOCK).expect("nothing is lent");
    assert_eq!(rig.prefetch(1, &[1], Moment(1_000_000_000)), [PrefetchOutcome::Taken]);
    let for_device = rig.submit_acquire(holder(2, 1, 1), &[3]);
    rig.shard.seek_peers(true);
    let for_peers = rig.submit_acquire(holder(3, 1, 1), &[7]);
    let slot = rig.reserve(1, 9, BLOCK);
    assert_eq!(slot.outcome, SlotOutcome::Slot as u8);
    for pool in rig.shard.figures().pools {
        assert_eq!(pool.account.taken, pool.account.places, "{} is full", pool.name);
    }
    assert_eq!(rig.reserve(1, 10, BLOCK).outcome, SlotOutcome::Busy as u8);
    assert!(matches!(rig.call(Command::Sync), Outcome::Cancelled), "it waits, and is no control");

    assert!(matches!(rig.release(1, 1), Outcome::Done));
    assert!(matches!(rig.call(Command::Report), Outcome::Figures(_)));
    assert_eq!(rig.commit(1, slot.reservation), CommitOutcome::Committed);
    for tag in [for_device, for_peers] {
        assert!(matches!(rig.call(Command::Cancel { tag, deadline: false }), Outcome::Done));
    }
    let connection = ConnectionId(1);
    assert!(matches!(rig.call(Command::Disconnected { connection }), Outcome::Disconnected { .. }));
    assert!(matches!(rig.call(Command::Gone { connection }), Outcome::Done));
    rig.settle();
    let taken = ["dram_bytes", "ssd_waits", "peer_waits", "background_bytes"].map(|name| of(&rig, name)[0]);
    assert_eq!(taken, [0; 4], "they came back");
}

#[test]
fn a_refused_save_is_counted_apart_while_what_others_may_have_is_idle() {
    let mut bounds = settings(2, 0);
    (bounds.reserved_bytes_max, bounds.lent_bytes_max, bounds.prefetch.bytes_max) = (BLOCK, BLOCK, 0);
    let mut rig = Rig::new(bounds);
    let busy = SlotOutcome::Busy as u8;
    rig.reserve(1, 1, BLOCK);
    assert_eq!((rig.reserve(1, 2, BLOCK).outcome, of(&rig, "dram_bytes")), (busy, [BLOCK, 1, 1]));
    let lent = rig.shard.lent_pool().take(BLOCK);
    assert_eq!((rig.reserve(1, 2, BLOCK).outcome, of(&rig, "dram_bytes")), (busy, [BLOCK, 2, 1]));
    drop(lent);
    assert_eq!((rig.reserve(1, 2, BLOCK).outcome, of(&rig, "dram_bytes")), (busy, [BLOCK, 3, 2]));
}
