//! One rule after the other, on one or two processes.

use std::time::Duration;

use orbitkv_wire::identity::{ClusterUuid, Incarnation};
use orbitkv_wire::membership::{Format, Key, MemberRecord};

use super::etcd::Etcd;
use super::rig::*;
use crate::membership::coordinator::*;
use crate::membership::*;
use crate::time::Moment;

const START: Moment = Moment(5_000_000_000);

fn member(etcd: &mut Etcd, now: Moment) -> Process {
    let mut process = Process::started("a", 100, 1, now);
    process.settle(etcd, now);
    assert_eq!(process.room.standing(), Standing::Member);
    process
}

fn stored(etcd: &Etcd, name: &str) -> Option<MemberRecord> {
    etcd.value(Key::Member(node(name))).map(|value| MemberRecord::decode(value).expect("a record"))
}

#[test]
fn the_first_node_founds_the_cluster_and_is_told_its_life_before_the_members() {
    let mut etcd = Etcd::new(7);
    let process = member(&mut etcd, START);
    let founded = Format { cluster: ClusterUuid([1; 16]) };
    assert_eq!(etcd.value(Key::Format), Some(founded.encode().as_bytes()));
    assert_eq!(etcd.value(Key::Epoch(node("a"))), Some(&b"1"[..]));
    let registered = process.told.iter().position(|effect| matches!(effect, Effect::Registered(_)));
    let after: Vec<_> = process.told.iter().skip(registered.expect("registered")).collect();
    let half = START + LEASE / 2;
    assert!(matches!(after[1], Effect::Admit { until } if *until == half), "{after:?}");
    assert!(matches!(after.last(), Some(Effect::Members(roster)) if roster.map().members().len() == 1));
    assert!(process.room.admits(START) && !process.room.admits(half));
}

#[test]
fn nothing_is_registered_before_the_shards_are_ready() {
    let mut etcd = Etcd::new(7);
    let mut process = Process::new("a", 100, 1, START);
    process.tick(START);
    process.exchange(&mut etcd, Fate::Answered, START);
    assert_eq!((etcd.revision, process.room.standing()), (1, Standing::Beginning));
    process.begin_life(START);
    process.settle(&mut etcd, START);
    assert_eq!(process.epoch(), Some(1));
}

#[test]
fn a_restart_takes_the_place_of_its_dead_process_at_once() {
    let mut etcd = Etcd::new(7);
    drop(member(&mut etcd, START));
    let mut next = Process::started("a", 100, 2, START);
    next.settle(&mut etcd, START);
    assert_eq!(next.epoch(), Some(2));
    assert_eq!(stored(&etcd, "a").map(|record| record.incarnation), next.room.local().map(|l| l.incarnation));
}

#[test]
fn a_live_name_on_another_address_is_refused_with_holder_and_time_to_live() {
    let mut etcd = Etcd::new(7);
    let first = member(&mut etcd, START);
    let before = etcd.revision;
    let mut second = Process::started("a", 200, 2, START);
    let later = START + seconds(4);
    second.settle(&mut etcd, later);
    let Standing::Refused(Refusal::Held(holder)) = second.room.standing() else {
        panic!("{}", second.room.standing())
    };
    assert_eq!((holder.address.port(), holder.epoch, holder.time_to_live), (100, 1, Some(seconds(6))));
    assert_eq!(etcd.revision, before, "nothing is written");
    assert_eq!(second.alarms().len(), 1);
    // More shards at the same address are other ports.
    let mut wider = Process::with("a", contact(100, 2), 3, 0, START);
    wider.begin_life(START);
    wider.settle(&mut etcd, later);
    assert!(matches!(wider.room.standing(), Standing::Refused(Refusal::Held(_))));
    // It waits until the holder's lease ends, and then takes the name.
    drop(first);
    let mut now = later;
    second.run(&mut etcd, &mut now, seconds(10));
    assert_eq!(second.epoch(), Some(2));
}

#[test]
fn ports_of_another_name_are_refused() {
    let mut etcd = Etcd::new(7);
    drop(member(&mut etcd, START));
    let mut other = Process::started("b", 100, 2, START);
    let mut now = START;
    other.settle(&mut etcd, now);
    assert!(
        matches!(other.room.standing(), Standing::Refused(Refusal::PortsTaken { by, .. }) if by == node("a"))
    );
    other.run(&mut etcd, &mut now, seconds(14));
    assert_eq!(other.epoch(), Some(1));
}

#[test]
fn other_formats_are_refused_by_name_and_nothing_is_written() {
    let old = b"protocol orbitkv/inventory-stream/v3\ncarrier quic-rkyv/1\ncluster x\n".to_vec();
    let stranger = record("z", 900, 1, 9).encode().into_bytes();
    let found = |etcd: &mut Etcd| {
        let before = etcd.revision;
        let mut process = Process::started("a", 100, 1, START);
        let mut now = START;
        process.run(etcd, &mut now, seconds(30));
        assert_eq!(etcd.revision, before);
        let refused = process.alarms().into_iter().filter(|alarm| matches!(alarm, Alarm::Refused(_)));
        assert_eq!(refused.count(), 1, "said once");
        match process.room.standing() {
            Standing::Refused(refusal) => refusal,
            standing => panic!("{standing}"),
        }
    };
    let mut etcd = Etcd::new(7);
    etcd.write(&[Write::Put(Key::Format, old, None)]);
    let refusal = found(&mut etcd);
    assert!(refusal.to_string().contains("inventory-stream/v3"), "{refusal}");
    let mut etcd = Etcd::new(7);
    etcd.write(&[Write::Put(Key::Member(node("z")), stranger, None)]);
    assert_eq!(found(&mut etcd), Refusal::FormatMissing);
    let mut etcd = Etcd::new(7);
    let format = Format { cluster: ClusterUuid([5; 16]) }.encode().into_bytes();
    etcd.write(&[Write::Put(Key::Format, format, None), Write::Put(Key::EpochFloor, b"x".to_vec(), None)]);
    assert_eq!(found(&mut etcd), Refusal::Epoch("epoch_floor"));
    etcd.write(&[Write::Put(Key::EpochFloor, u64::MAX.to_string().into_bytes(), None)]);
    assert_eq!(found(&mut etcd), Refusal::Epoch("epochs"));
    etcd.write(&[Write::Put(Key::Member(node("a")), b"x".to_vec(), None)]);
    assert_eq!(found(&mut etcd), Refusal::HeldByStranger { node: node("a") });
}

#[test]
fn a_lost_answer_of_a_registration_is_found_out() {
    for fate in [Fate::AnswerLost, Fate::Lost] {
        let mut etcd = Etcd::new(7);
        let mut process = Process::started("a", 100, 1, START);
        // Read, found, read, grant, read.
        (0..5).for_each(|_| assert!(process.exchange(&mut etcd, Fate::Answered, START)));
        assert!(matches!(process.question, Some((_, Request::Transact(_)))));
        process.exchange(&mut etcd, fate, START);
        let mut now = START;
        process.run(&mut etcd, &mut now, seconds(1));
        assert_eq!(process.fences(), Vec::<&FenceCause>::new());
        let epochs = if fate == Fate::AnswerLost { 1 } else { 2 };
        assert_eq!(process.epoch(), Some(epochs), "an epoch that was claimed is not claimed again");
    }
}

#[test]
fn a_claim_that_outlives_its_lease_costs_the_life() {
    let mut etcd = Etcd::new(7);
    let mut process = Process::started("a", 100, 1, START);
    (0..5).for_each(|_| assert!(process.exchange(&mut etcd, Fate::Answered, START)));
    process.exchange(&mut etcd, Fate::Late, START);
    let life = process.lives_made;
    let mut now = START;
    while process.lives_made == life {
        now = process.room.next_deadline().expect("it waits for something");
        process.tick(now);
        process.exchange(&mut etcd, Fate::Lost, now);
        process.renew(&mut etcd, Fate::Lost, now);
        if process.life_awaited {
            process.begin_life(now);
        }
        assert!(now <= START + LEASE, "it ends with the deadline");
    }
    assert_eq!(process.fences(), [&FenceCause::Undecided]);
    // The claim arrives after all, and is replaced by the next life.
    let late = process.late.remove(0);
    assert!(etcd.serve(&late, START).is_ok());
    assert_eq!(stored(&etcd, "a").map(|record| record.epoch), Some(1));
    process.run(&mut etcd, &mut now, seconds(5));
    assert_eq!(process.epoch(), Some(2));
}

#[test]
fn half_of_the_length_counts_from_the_moment_of_sending() {
    let mut etcd = Etcd::new(7);
    let mut process = member(&mut etcd, START);
    let sent = process.room.next_deadline().expect("a renewal is due");
    assert_eq!(sent, START + LEASE / 6);
    process.tick(sent);
    // The answer takes two seconds: they do not count.
    process.renew(&mut etcd, Fate::Answered, sent + seconds(2));
    let until = sent + LEASE / 2;
    assert!(matches!(process.told.back(), Some(Effect::Admit { until: told }) if *told == until));
    assert!(process.room.admits(Moment(until.0 - 1)) && !process.room.admits(until));
}

#[test]
fn a_paused_process_finds_its_deadline_before_its_late_answer() {
    let mut etcd = Etcd::new(7);
    let mut process = member(&mut etcd, START);
    let sent = process.room.next_deadline().expect("a renewal is due");
    process.tick(sent);
    process.renew(&mut etcd, Fate::Answered, START + LEASE / 2);
    assert_eq!(process.fences(), [&FenceCause::DeadlinePassed]);
    assert!(process.life_awaited && !process.room.admits(START + LEASE / 2));
}

#[test]
fn a_registration_that_is_answered_at_its_deadline_is_none() {
    let mut etcd = Etcd::new(7);
    let mut process = Process::started("a", 100, 1, START);
    (0..5).for_each(|_| assert!(process.exchange(&mut etcd, Fate::Answered, START)));
    process.exchange(&mut etcd, Fate::Slow, START);
    process.exchange(&mut etcd, Fate::Answered, START + LEASE / 2);
    assert_eq!(process.fences(), [&FenceCause::Undecided]);
    assert!(!process.told.iter().any(|effect| matches!(effect, Effect::Registered(_))));
}

#[test]
fn an_outage_costs_one_life_and_the_cache_nothing() {
    let mut etcd = Etcd::new(7);
    let mut process = member(&mut etcd, START);
    let mut now = START;
    for _ in 0..1_000 {
        let next = process.room.next_deadline().unwrap_or(now);
        now = next.max(now + Duration::from_millis(1));
        process.tick(now);
        process.exchange(&mut etcd, Fate::Lost, now);
        process.renew(&mut etcd, Fate::Lost, now);
        if process.life_awaited {
            process.begin_life(now);
        }
    }
    assert!(now > START + seconds(600), "it does not try all the time");
    assert_eq!(process.fences(), [&FenceCause::DeadlinePassed]);
    assert_eq!(process.room.roster().map().members().len(), 1, "who was known is not forgotten");
    assert_eq!(process.alarms().len(), 1, "said once");
    process.run(&mut etcd, &mut now, seconds(5));
    assert_eq!((process.epoch(), process.lives_made), (Some(2), 2));
}

#[test]
fn a_broken_watch_is_no_reason_to_doubt_a_membership() {
    let mut etcd = Etcd::new(7);
    let mut process = member(&mut etcd, START);
    let mut now = START;
    for _ in 0..20 {
        process.cut(now);
        process.run(&mut etcd, &mut now, seconds(5));
        assert!(process.room.admits(now));
    }
    assert_eq!((process.fences().len(), process.alarms().len()), (0, 0));
    assert!(!process.told.iter().any(|effect| matches!(effect, Effect::Suspended(_))));
}

#[test]
fn compaction_under_a_cut_watch_suspends_until_a_snapshot_repairs() {
    let mut etcd = Etcd::new(7);
    let mut process = member(&mut etcd, START);
    process.cut(START);
    etcd.write(&[Write::Put(Key::Member(node("b")), record("b", 200, 1, 9).encode().into_bytes(), None)]);
    etcd.write(&[Write::Put(Key::EpochFloor, b"1".to_vec(), None)]);
    etcd.compacted = etcd.revision;
    let now = START + seconds(1);
    process.tick(now);
    // The watch is created, then says that it cannot begin there; the question of before is still open.
    process.hear(&etcd, now);
    process.hear(&etcd, now);
    assert!(matches!(
        process.room.standing(),
        Standing::Suspended(SuspendCause::Break(Break::Compacted { .. }))
    ));
    assert!(!process.room.admits(now));
    process.settle(&mut etcd, now);
    assert!(process.room.admits(now));
    assert_eq!(process.room.roster().map().members().len(), 2);
    assert!(process.fences().is_empty());
}

#[test]
fn an_etcd_restored_from_an_old_copy_is_refused_and_a_new_life_begins_above_the_old() {
    let mut etcd = Etcd::new(7);
    let copy = etcd.clone();
    drop(member(&mut etcd, START));
    let mut process = Process::started("a", 100, 2, START);
    process.settle(&mut etcd, START);
    assert_eq!(process.epoch(), Some(2));
    let mut etcd = copy;
    process.cut(START);
    let mut now = START;
    process.run(&mut etcd, &mut now, seconds(4));
    let backwards = |alarm: &&Alarm| matches!(alarm, Alarm::OtherHistory(OtherHistory::Backwards { .. }));
    assert!(process.alarms().iter().any(backwards), "{:?}", process.alarms());
    assert!(
        process.told.iter().any(|effect| matches!(effect, Effect::Suspended(SuspendCause::OtherHistory(_))))
    );
    assert!(
        matches!(process.room.standing(), Standing::Refused(Refusal::ForeignCluster { .. })),
        "the copy is older than the cluster"
    );
    // A copy with the format, in which the node had a lower epoch.
    let mut etcd = Etcd::new(7);
    drop(member(&mut etcd, START));
    let copy = etcd.clone();
    let mut process = Process::started("a", 100, 2, START);
    process.settle(&mut etcd, START);
    etcd.write(&[Write::Put(Key::EpochFloor, b"0".to_vec(), None)]);
    process.settle(&mut etcd, START);
    let mut etcd = copy;
    process.cut(START);
    let mut now = START;
    process.run(&mut etcd, &mut now, seconds(4));
    assert_eq!((process.epoch(), process.fences().len()), (Some(3), 1));
    assert!(process.room.admits(now));
}

#[test]
fn a_restored_etcd_that_still_has_the_lease_and_the_record_is_found_when_the_watch_comes_back() {
    let mut etcd = Etcd::new(7);
    let mut process = member(&mut etcd, START);
    let mut copy = etcd.clone();
    etcd.write(&[Write::Put(Key::EpochFloor, b"0".to_vec(), None)]);
    process.settle(&mut etcd, START);
    process.cut(START);
    let mut now = START;
    process.run(&mut copy, &mut now, seconds(1));
    let cause =
        FenceCause::OtherHistory(OtherHistory::Backwards { was: etcd.revision, is: copy.revision - 1 });
    assert_eq!(process.fences(), [&cause]);
    assert_eq!(process.epoch(), Some(2));
}

#[test]
fn a_restored_etcd_that_has_grown_past_what_was_known_is_found_by_what_it_says_of_the_past() {
    let mut etcd = Etcd::new(7);
    let copy = etcd.clone();
    let mut process = member(&mut etcd, START);
    let mut etcd = copy;
    let format = Format { cluster: ClusterUuid([1; 16]) }.encode().into_bytes();
    etcd.write(&[Write::Put(Key::Format, format, None)]);
    for epoch in 1..20 {
        let value = record("b", 200, epoch, epoch as u8).encode().into_bytes();
        etcd.write(&[Write::Put(Key::Member(node("b")), value, None)]);
        if epoch == 1 {
            etcd.write(&[Write::Put(
                Key::Member(node("c")),
                record("c", 300, 1, 77).encode().into_bytes(),
                None,
            )]);
        }
    }
    process.cut(START);
    let mut now = START;
    process.run(&mut etcd, &mut now, seconds(4));
    assert_eq!(process.fences().len(), 1);
    assert_eq!(process.epoch(), Some(2));
}

#[test]
fn another_etcd_cluster_is_not_believed() {
    let mut etcd = Etcd::new(7);
    let mut process = member(&mut etcd, START);
    let mut foreign = Etcd::new(8);
    let sent = process.room.next_deadline().expect("a renewal is due");
    process.tick(sent);
    // It knows no such lease; that says nothing about ours.
    process.renew(&mut foreign, Fate::Answered, sent);
    assert!(process.fences().is_empty() && process.room.admits(sent));
    assert!(matches!(process.alarms()[..], [Alarm::ForeignCoordinator { expected: 7, found: 8 }, ..]));
    process.cut(sent);
    process.tick(sent + seconds(1));
    assert!(process.hear(&foreign, sent + seconds(1)));
    let mut now = sent + seconds(1);
    process.watch = None;
    process.run(&mut etcd, &mut now, seconds(3));
    assert!(process.room.admits(now));
}

#[test]
fn a_record_that_is_gone_or_anothers_fences() {
    let gone = |writes: &[Write]| {
        let mut etcd = Etcd::new(7);
        let mut process = member(&mut etcd, START);
        process.settle(&mut etcd, START);
        etcd.write(writes);
        process.hear(&etcd, START);
        assert!(!process.room.admits(START));
        let cause = process.fences()[0].clone();
        process.settle(&mut etcd, START);
        (cause, process.epoch(), process.alarms().len())
    };
    let key = Key::Member(node("a"));
    assert_eq!(gone(&[Write::Delete(key)]), (FenceCause::RecordRemoved, Some(2), 0));
    let put = |epoch| [Write::Put(key, record("a", 100, epoch, 99).encode().into_bytes(), None)];
    let by = Incarnation([99; 16]);
    assert_eq!(gone(&put(5)), (FenceCause::Replaced { by, epoch: 5 }, Some(6), 0));
    // The flaw of the view, and the alarm of the life.
    assert_eq!(gone(&put(1)), (FenceCause::EqualEpoch { other: by, epoch: 1 }, Some(2), 2));
}

#[test]
fn a_cluster_made_anew_ends_the_life_and_is_refused() {
    let mut etcd = Etcd::new(7);
    let mut process = member(&mut etcd, START);
    process.settle(&mut etcd, START);
    let format = Format { cluster: ClusterUuid([66; 16]) }.encode().into_bytes();
    etcd.write(&[Write::Put(Key::Format, format, None)]);
    process.settle(&mut etcd, START);
    assert!(matches!(process.fences()[..], [FenceCause::OtherCluster(Refusal::ForeignCluster { .. })]));
    assert!(matches!(process.room.standing(), Standing::Refused(Refusal::ForeignCluster { .. })));
}

#[test]
fn a_full_etcd_is_named_and_renewals_go_on() {
    let mut etcd = Etcd::new(7);
    let mut process = member(&mut etcd, START);
    let mut other = Process::started("b", 200, 2, START);
    etcd.full = true;
    let mut now = START;
    other.run(&mut etcd, &mut now, seconds(3));
    assert_eq!(other.room.standing(), Standing::Troubled(Failure::NoSpace));
    assert_eq!(other.alarms(), [&Alarm::Trouble(Failure::NoSpace)]);
    let mut then = START;
    process.run(&mut etcd, &mut then, seconds(3));
    assert!(process.room.admits(then));
    etcd.full = false;
    other.run(&mut etcd, &mut now, seconds(4));
    assert_eq!(other.room.standing(), Standing::Member);
}

#[test]
fn a_node_that_stops_withdraws() {
    let mut etcd = Etcd::new(7);
    let mut process = member(&mut etcd, START);
    process.room.withdraw(START);
    process.pump();
    assert!(!process.room.admits(START));
    assert_eq!(process.fences(), [&FenceCause::Withdrawn]);
    process.exchange(&mut etcd, Fate::Answered, START);
    assert_eq!(process.told.back(), Some(&Effect::Withdrawn));
    assert_eq!((stored(&etcd, "a"), process.life_awaited), (None, false));
    assert_eq!(process.room.next_deadline(), None);
    // Without a lease there is nothing to withdraw.
    let mut process = Process::started("b", 200, 1, START);
    process.room.withdraw(START);
    process.pump();
    assert_eq!(process.told.back(), Some(&Effect::Withdrawn));
}

#[test]
fn epochs_of_retired_nodes_raise_the_floor() {
    let mut etcd = Etcd::new(7);
    let mut process = member(&mut etcd, START);
    assert_eq!(retire(node("a"), &etcd.snapshot()), Err(NotRetired::Alive(node("a"))));
    assert_eq!(retire(node("b"), &etcd.snapshot()), Err(NotRetired::Unknown(node("b"))));
    etcd.write(&[Write::Put(Key::Epoch(node("a")), b"41".to_vec(), None)]);
    process.room.withdraw(START);
    process.pump();
    process.exchange(&mut etcd, Fate::Answered, START);
    let decided = retire(node("a"), &etcd.snapshot()).expect("gone");
    // A life that comes in between is not cleaned away.
    let before = etcd.clone();
    let mut back = Process::started("a", 100, 2, START);
    back.settle(&mut etcd, START);
    assert_eq!(back.epoch(), Some(42));
    assert!(matches!(
        etcd.serve(&Request::Transact(decided.clone()), START),
        Ok((_, Answer::Transacted(false)))
    ));
    etcd = before;
    assert!(matches!(etcd.serve(&Request::Transact(decided), START), Ok((_, Answer::Transacted(true)))));
    assert_eq!((etcd.value(Key::Epoch(node("a"))), etcd.value(Key::EpochFloor)), (None, Some(&b"41"[..])));
    let mut fresh = Process::started("b", 200, 3, START);
    fresh.settle(&mut etcd, START);
    assert_eq!(fresh.epoch(), Some(42), "new nodes start above the floor");
}
