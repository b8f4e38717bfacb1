//! Snapshots while the table changes, and the permits they need.

use std::time::Duration;

use orbitkv_wire::identity::{Medium, SnapshotId};
use orbitkv_wire::inventory::{FromRequester, ResetCause};
use orbitkv_wire::scope::Scope;

use super::super::*;
use super::receiver::Heard;
use super::rig::{Rig, ample, digest, small};

const MS: Duration = Duration::from_millis(1);

/// A rig whose only session has accepted an offer and has the credit for its first pages.
fn scanning(residents: u16) -> (Rig, ConnectionId) {
    let mut rig = Rig::new(small());
    rig.prompt_acks = false;
    rig.shard.puts(1, 0..residents);
    let id = rig.open(1, &Scope::All);
    rig.settle();
    (rig, id)
}

/// Lets one more frame through.
fn step(rig: &mut Rig, id: ConnectionId) {
    rig.receiver(id).ack(1);
    rig.settle();
}

fn finish(rig: &mut Rig, id: ConnectionId) {
    rig.prompt_acks = true;
    rig.receiver(id).ack(usize::MAX);
    rig.settle();
}

fn pages(heard: &[Heard]) -> usize {
    heard.iter().filter(|heard| matches!(heard, Heard::Page(_))).count()
}

#[test]
fn what_happens_behind_and_ahead_of_the_cursor_is_in_the_view() {
    let (mut rig, id) = scanning(40);
    let sent = pages(&rig.receivers[&id].heard);
    assert!((1..8).contains(&sent), "{sent} pages have left, the scan is in the midst of it");
    rig.shard.put(1, 0, Medium::Ssd); // inserted behind the cursor
    rig.shard.delete(1, 1, Medium::Dram); // deleted after its page
    rig.shard.put(1, 2, Medium::Dram); // reused behind it, again and again
    rig.shard.delete(1, 2, Medium::Dram);
    rig.shard.put(1, 2, Medium::Dram);
    rig.shard.delete(1, 39, Medium::Dram); // deleted ahead of it
    rig.shard.put(1, 38, Medium::Dram); // reused ahead of it
    rig.shard.put(1, 41, Medium::Ssd); // inserted ahead of it
    finish(&mut rig, id);
    let heard = rig.heard(id);
    assert_eq!(rig.watermark(id), Some(48));
    let first_delta = heard.iter().position(|heard| matches!(heard, Heard::Delta { .. })).unwrap();
    let last_page = heard.iter().rposition(|heard| matches!(heard, Heard::Page(_))).unwrap();
    assert!(last_page < first_delta, "all pages come before the replay");
    assert_eq!(
        heard[first_delta..],
        [
            Heard::Delta { from: 40, through: 47, changes: 5 },
            Heard::Delta { from: 47, through: 48, changes: 1 },
            Heard::Commit(48)
        ],
        "coalesced"
    );
}

#[test]
fn a_replay_whose_end_is_not_in_scope_is_whole_all_the_same() {
    let mut rig = Rig::new(small());
    rig.prompt_acks = false;
    rig.shard.puts(1, 0..40);
    let id = rig.open(1, &Scope::namespaces([digest(1)]).unwrap());
    rig.settle();
    rig.shard.put(1, 0, Medium::Ssd);
    for number in 0..20 {
        rig.shard.put(2, number, Medium::Dram);
    }
    finish(&mut rig, id);
    let heard = rig.heard(id);
    let replay: Vec<_> = heard.iter().filter(|heard| matches!(heard, Heard::Delta { .. })).collect();
    assert_eq!(
        replay,
        [
            &Heard::Delta { from: 40, through: 48, changes: 1 },
            &Heard::Delta { from: 48, through: 61, changes: 0 }
        ]
    );
    assert_eq!(heard.last(), Some(&Heard::Commit(61)));
}

#[test]
fn only_subscribed_namespaces_are_scanned_wherever_they_lie() {
    let mut rig = Rig::new(ample());
    for namespace in 1..=9 {
        rig.shard.puts(namespace, 0..300);
    }
    for list in [vec![1], vec![9], vec![3, 4, 8], vec![200], vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 10]] {
        let scope = Scope::namespaces(list.iter().map(|&number| digest(number))).unwrap();
        let id = rig.open(1, &scope);
        rig.settle();
        let rows = rig.receivers[&id].view.as_ref().unwrap().rows.len();
        let held = list.iter().filter(|number| **number < 10).count();
        assert_eq!(rows, held * 300);
        rig.lose(id);
    }
}

#[test]
fn a_scan_is_resumed_by_its_cursor_however_often_it_is_interrupted() {
    let (mut rig, id) = scanning(60);
    let mut turns = 0;
    while rig.watermark(id).is_none() {
        rig.shard.put(3, turns % 3, Medium::Ssd);
        rig.shard.delete(3, turns % 3, Medium::Ssd);
        step(&mut rig, id);
        turns += 1;
        assert!(turns < 60);
    }
    assert!(turns > 8);
}

#[test]
fn history_that_is_gone_during_scan_or_replay_means_another_snapshot_after_a_rest() {
    for during_replay in [false, true] {
        let (mut rig, id) = scanning(40);
        if during_replay {
            rig.shard.puts(2, 0..64);
            while !rig.receivers[&id].heard.iter().any(|heard| matches!(heard, Heard::Delta { .. })) {
                step(&mut rig, id);
            }
        }
        rig.heard(id);
        rig.shard.puts(1, 0..65);
        rig.settle();
        finish(&mut rig, id);
        let heard = rig.heard(id);
        assert_eq!(heard.last(), Some(&Heard::Reset(ResetCause::HistoryGone)), "{heard:?}");
        assert_eq!((rig.permits.held(), rig.watermark(id)), (0, None), "never a commit with a hole");
        rig.pass(MS * 99);
        assert_eq!(rig.heard(id), []);
        rig.pass(MS * 30);
        assert_eq!(rig.watermark(id), Some(rig.shard.journal.head().0), "from another S0");
        assert_eq!(rig.publisher.figures().snapshots_failed, 1);
        rig.assert_nothing_left();
    }
}

#[test]
fn the_rest_between_failing_snapshots_grows_and_is_forgotten_with_a_commit() {
    let (mut rig, id) = scanning(40);
    let mut rests = Vec::new();
    for _ in 0..8 {
        rig.shard.puts(1, 0..65);
        rig.receiver(id).ack(usize::MAX);
        rig.settle();
        let failed_at = rig.now;
        rig.receiver(id).ack(usize::MAX);
        let begun = rig.publisher.figures().snapshots_begun;
        while rig.publisher.figures().snapshots_begun == begun {
            rig.now = rig.publisher.next_deadline().unwrap();
            rig.settle();
        }
        rests.push((rig.now - failed_at).as_millis());
    }
    assert_eq!(rests, [100, 200, 400, 800, 1_600, 3_000, 3_000, 3_000]);
    finish(&mut rig, id);
    let (_, session) = rig.publisher.sessions().next().unwrap();
    assert_eq!(session.failures, 0);
}

#[test]
fn two_snapshots_are_served_and_the_third_is_told_its_place() {
    let mut rig = Rig::new(small());
    rig.shard.puts(1, 0..9);
    let ids: Vec<_> = (1..5).map(|number| rig.open(number, &Scope::All)).collect();
    ids.iter().for_each(|id| rig.receiver(*id).accepts = false);
    rig.settle();
    assert_eq!(rig.permits.held(), 2);
    assert!(matches!(rig.heard(ids[0])[..], [Heard::Begin(_)]));
    assert!(matches!(rig.heard(ids[1])[..], [Heard::Begin(_)]));
    assert_eq!(rig.heard(ids[2]), [Heard::Queued(1)]);
    assert_eq!(rig.heard(ids[3]), [Heard::Queued(2)]);
    rig.receiver(ids[1]).accept();
    rig.settle();
    assert_eq!(rig.watermark(ids[1]), Some(9));
    assert!(matches!(rig.heard(ids[2])[..], [Heard::Begin(_)]), "a commit makes room");
    assert_eq!(rig.heard(ids[3]), [Heard::Queued(1)]);
}

#[test]
fn each_end_of_a_snapshot_gives_its_permit_back_once() {
    type End = fn(&mut Rig, ConnectionId);
    let table: &[(&str, End)] = &[
        ("commit", |rig, id| {
            rig.receiver(id).accept();
            rig.settle();
        }),
        ("refuse", |rig, id| rig.receiver(id).refuse(60_000)),
        ("session end", |rig, id| rig.lose(id)),
        ("removal", |rig, _| rig.publisher.on_members(&MemberMap::new(2, Vec::new()), rig.now)),
        ("fence", |rig, _| rig.publisher.on_fenced(rig.now)),
        ("five seconds without an answer", |rig, _| {
            rig.now = rig.now + MS * 5_000;
            rig.turn();
        }),
        ("five seconds without a page", |rig, id| {
            rig.prompt_acks = false;
            rig.shard.puts(1, 0..50);
            rig.receiver(id).accept();
            rig.settle();
            assert_eq!(rig.watermark(id), None, "it has no credit for more pages");
            rig.now = rig.now + MS * 5_000;
            rig.turn();
        }),
        ("grant that crosses the end", |rig, id| {
            let waiting = rig.open(2, &Scope::All);
            rig.open(3, &Scope::All);
            rig.hear();
            rig.turn();
            // The end of the first grants the third, whose session ends before it hears of that.
            rig.lose(id);
            rig.lose(waiting);
            rig.take_effects();
            rig.grant();
            rig.publisher.on_fenced(rig.now);
        }),
    ];
    for (end, act) in table {
        let mut rig = Rig::new(small());
        let id = rig.open(1, &Scope::All);
        rig.receiver(id).accepts = false;
        rig.settle();
        assert_eq!(rig.permits.held(), 1);
        act(&mut rig, id);
        rig.hear();
        rig.take_effects();
        assert_eq!((rig.permits.held(), rig.permits.waiting()), (0, 0), "{end}");
        rig.assert_nothing_left();
    }
}

#[test]
fn a_permit_that_expired_means_a_reset_and_another_offer() {
    let mut rig = Rig::new(small());
    let id = rig.open(1, &Scope::All);
    rig.receiver(id).accepts = false;
    rig.settle();
    let Heard::Begin(first) = rig.heard(id)[0] else { panic!("an offer") };
    rig.pass(MS * 5_000);
    assert_eq!(rig.heard(id).last(), Some(&Heard::Reset(ResetCause::SnapshotExpired)));
    rig.pass(MS * 100);
    let Heard::Begin(second) = rig.heard(id)[0] else { panic!("another offer") };
    assert_ne!(first, second);
    rig.receiver(id).say(FromRequester::SnapshotAccept { snapshot: first });
    rig.settle();
    assert_eq!(rig.watermark(id), None, "an answer to the first one changes nothing");
    assert_eq!(rig.publisher.figures().answers_late, 1);
    rig.receiver(id).accept();
    rig.settle();
    assert_eq!(rig.receivers[&id].view.as_ref().unwrap().id, second);
}

#[test]
fn a_refused_offer_is_repeated_when_the_receiver_said_within_bounds() {
    for (said_ms, rest_ms) in [(0, 100), (2_000, 2_000), (u32::MAX, 600_000)] {
        let mut rig = Rig::new(small());
        let id = rig.open(1, &Scope::All);
        rig.receiver(id).accepts = false;
        rig.settle();
        rig.receiver(id).refuse(said_ms);
        rig.pass(MS * (rest_ms - 1));
        assert_eq!(rig.publisher.figures().snapshots_begun, 1);
        rig.receiver(id).accepts = true;
        rig.pass(MS);
        assert_eq!(rig.watermark(id), Some(0));
    }
}

#[test]
fn a_refusal_that_crosses_the_commit_is_taken_and_another_offer_follows() {
    let (mut rig, id) = scanning(40);
    finish(&mut rig, id);
    assert_eq!((rig.watermark(id), rig.permits.held()), (Some(40), 0));
    rig.heard(id);
    let refused = rig.receiver(id).refuse_committed(2_000);
    rig.settle();
    rig.shard.puts(1, 40..50);
    rig.pass(MS * 1_999);
    let figures = rig.publisher.figures();
    assert_eq!((figures.snapshots_refused, figures.answers_late, figures.snapshots_begun), (1, 0, 1));
    let beats_only = rig.heard(id).iter().all(|heard| *heard == Heard::Liveness);
    assert!(beats_only && rig.permits.held() == 0, "nothing goes on from what is not there");
    rig.pass(MS);
    let next = rig.heard(id).into_iter().find_map(|heard| match heard {
        Heard::Begin(snapshot) => Some(snapshot),
        _ => None,
    });
    assert!(next.is_some_and(|next| next != refused), "another offer");
    assert_eq!(rig.watermark(id), Some(50));
    // The same once more is late: that view is gone.
    rig.receiver(id).say(FromRequester::SnapshotRefuse { snapshot: refused, retry_after_ms: 1 });
    rig.shard.puts(1, 50..55);
    rig.settle();
    assert_eq!((rig.watermark(id), rig.publisher.figures().answers_late), (Some(55), 1));
}

#[test]
fn answers_to_a_snapshot_that_is_none_change_nothing() {
    let (mut rig, id) = scanning(40);
    let invented = SnapshotId([0xee; 16]);
    rig.receiver(id).say(FromRequester::SnapshotAccept { snapshot: invented });
    rig.receiver(id).say(FromRequester::SnapshotRefuse { snapshot: invented, retry_after_ms: 1 });
    let Some(&Heard::Begin(own)) = rig.receivers[&id].heard.first() else { panic!("an offer") };
    rig.receiver(id).say(FromRequester::SnapshotAccept { snapshot: own });
    finish(&mut rig, id);
    assert_eq!((rig.watermark(id), rig.publisher.figures().answers_late), (Some(40), 3));
}

#[test]
fn a_table_that_outgrows_its_offer_ends_the_snapshot() {
    // A ring of a million, so that the offer's margin of 4,096 is what ends it.
    let mut rig = Rig::new(ample());
    rig.prompt_acks = false;
    rig.shard.puts(1, 0..10);
    let id = rig.open(1, &Scope::All);
    rig.receiver(id).accepts = false;
    rig.settle();
    rig.shard.puts(2, 0..4_200);
    rig.receiver(id).accept();
    rig.receiver(id).accepts = true;
    rig.prompt_acks = true;
    rig.settle();
    assert_eq!(rig.heard(id).last(), Some(&Heard::Reset(ResetCause::Overload)));
    rig.pass(MS * 600);
    assert_eq!(rig.watermark(id), Some(4_210));
}

#[test]
fn the_residents_of_a_shard_are_scanned_in_order_and_only_what_is_a_residence() {
    use crate::key::{NamespaceId, StateKey};
    use crate::residents::{Dram, Residents, Ssd};
    use crate::segment_log::{Placement, SegmentId};
    use crate::slab::{Slot, SlotId};
    use orbitkv_wire::identity::{BlockHash, GroupId, KeyHash};

    let placement = Placement { segment: SegmentId(0), generation: 0, ordinal: 0, offset: 0, bytes: 4_096 };
    let slot = Slot { id: SlotId(0), offset: 0, bytes: 4_096 };
    let key = |number: u8| StateKey {
        namespace: NamespaceId(u16::from(number / 4)),
        group: GroupId(0),
        block: BlockHash([number; 32]),
    };
    let mut residents = Residents::new();
    for number in (0..8).rev() {
        let id = residents.insert(key(number), KeyHash(u64::from(number)), 7);
        let copy = residents.insert_copy(slot, Some(id));
        let sequence = Sequence(u64::from(number));
        let entry = residents.entry_mut(id);
        (entry.dram, entry.ssd) = match number % 4 {
            0 => (Dram::Resident { copy, sequence }, Ssd::Queued),
            1 => (Dram::Filling(copy), Ssd::Resident { placement, sequence }),
            2 => (Dram::Resident { copy, sequence }, Ssd::Moving { placement, sequence, target: placement }),
            _ => (Dram::Absent, Ssd::Writing(placement)),
        };
    }
    let all: Vec<_> = residents.after(None).collect();
    let named: Vec<_> = all.iter().map(|residence| (residence.key.block.0[0], residence.medium)).collect();
    use Medium::{Dram as D, Ssd as S};
    assert_eq!(named, [(0, D), (1, S), (2, D), (2, S), (4, D), (5, S), (6, D), (6, S)]);
    for (place, residence) in all.iter().enumerate() {
        let rest: Vec<_> = residents.after(Some((residence.key, residence.medium))).collect();
        assert_eq!(rest, all[place + 1..]);
        let sequence = Sequence(u64::from(residence.key.block.0[0]));
        assert_eq!((residence.bytes, residence.sequence), (7, sequence));
    }
    assert!(residents.len_max() >= all.len() as u64);
}
