//! Who gets a session, who does not, and what ends one.

use std::time::Duration;

use orbitkv_wire::identity::{ClusterUuid, Incarnation, Medium, SnapshotId};
use orbitkv_wire::inventory::{FromRequester, Open, ResetCause, Resume, append_from_requester};
use orbitkv_wire::scope::Scope;

use super::super::*;
use super::receiver::Heard;
use super::rig::{Rig, ample, digest, local, member, node, small};
use crate::members::Member;

fn refused(rig: &mut Rig, id: ConnectionId) -> Option<(OpenRefusal, u64)> {
    match rig.heard(id)[..] {
        [Heard::Refused(cause, revision)] => {
            assert_eq!(rig.closed.pop(), Some((id, CloseCause::Refused(cause))), "and the connection ends");
            Some((cause, revision))
        }
        _ => None,
    }
}

#[test]
fn a_session_gets_a_snapshot_and_then_what_changes() {
    let mut rig = Rig::new(ample());
    rig.shard.puts(1, 0..600);
    let id = rig.open(1, &Scope::All);
    rig.settle();
    let heard = rig.heard(id);
    assert!(matches!(heard[0], Heard::Begin(_)), "{heard:?}");
    assert_eq!(heard[1..], [Heard::Page(256), Heard::Page(256), Heard::Page(88), Heard::Commit(600)]);
    rig.shard.put(1, 7, Medium::Ssd);
    rig.shard.delete(1, 7, Medium::Dram);
    rig.settle();
    assert_eq!(rig.heard(id), [Heard::Delta { from: 600, through: 602, changes: 2 }]);
    rig.assert_nothing_left();
}

#[test]
fn an_owner_with_nothing_in_scope_sends_a_committed_empty_view() {
    let mut rig = Rig::new(ample());
    rig.shard.puts(1, 0..9);
    let ids = [rig.open(1, &Scope::none()), rig.open(2, &Scope::namespaces([digest(200)]).unwrap())];
    rig.settle();
    for id in ids {
        assert!(matches!(rig.heard(id)[..], [Heard::Begin(_), Heard::Commit(9)]));
    }
}

#[test]
fn what_is_not_for_this_source_or_from_no_member_is_refused_by_name() {
    type Change = fn(&mut Open, &mut Rig);
    let table: &[(Change, OpenRefusal)] = &[
        (|open, _| open.binding.source.epoch -= 1, OpenRefusal::WrongSource),
        (|open, _| open.binding.source.incarnation = Incarnation([3; 16]), OpenRefusal::WrongSource),
        (|open, _| open.binding.source.node = node(3), OpenRefusal::WrongSource),
        (|open, _| open.binding.source.shard = ShardIndex(1), OpenRefusal::WrongShard),
        (|open, _| open.binding.requester.incarnation = Incarnation([3; 16]), OpenRefusal::NotInMap),
        (|_, rig| without(rig, 0), OpenRefusal::NotInMap),
        (|_, rig| rig.publisher.on_fenced(rig.now), OpenRefusal::Fenced),
        (beside_its_life, OpenRefusal::Fenced),
        (|open, _| open.attempt = 0, OpenRefusal::StaleAttempt),
    ];
    for (change, expected) in table {
        let mut rig = Rig::new(small());
        let mut known = rig.opening(1, &Scope::All);
        known.attempt = 0;
        rig.connect(1, known, None);
        rig.settle();
        let mut open = rig.opening(1, &Scope::All);
        change(&mut open, &mut rig);
        let id = rig.connect(1, open, None);
        rig.settle();
        assert_eq!(refused(&mut rig, id), Some((*expected, rig.members.revision)));
        assert_eq!(rig.publisher.figures().refusals[expected], 1);
        assert_eq!(rig.publisher.figures().protocol_errors, 0);
        assert_eq!(rig.behind, 0);
    }
}

#[test]
fn whoever_believes_in_a_later_epoch_is_refused_and_has_the_source_look_at_itself() {
    type Change = fn(&mut Open, &mut Rig);
    let table: &[(Change, u32)] = &[
        (|_, _| {}, 1),
        // Of another node; of the epoch it is in, of an earlier one; and by one whose life is over.
        (|open, _| open.binding.source.node = node(3), 0),
        (|open, _| open.binding.source.epoch -= 1, 0),
        (|open, _| open.binding.source.epoch -= 2, 0),
        (|_, rig| rig.publisher.on_fenced(rig.now), 0),
    ];
    for (number, (change, behind)) in table.iter().enumerate() {
        let mut rig = Rig::new(small());
        let mut open = rig.opening(1, &Scope::All);
        open.binding.source.epoch += 1;
        open.binding.source.incarnation = Incarnation([3; 16]);
        change(&mut open, &mut rig);
        let id = rig.connect(1, open, None);
        rig.settle();
        assert!(refused(&mut rig, id).is_some());
        assert_eq!(rig.behind, *behind, "{number}");
    }
}

/// An Open for a cluster that the source does not know: it has no life in one yet.
fn beside_its_life(open: &mut Open, rig: &mut Rig) {
    rig.publisher.on_fenced(rig.now);
    open.binding.cluster = ClusterUuid([0; 16]);
}

/// Takes a member off the map.
fn without(rig: &mut Rig, number: u8) {
    let left = rig.members.members().iter().filter(|member| member.node != node(number)).copied().collect();
    rig.members = MemberMap::new(rig.members.revision + 1, left);
    rig.publisher.on_members(&rig.members, rig.now);
}

/// Gives a member another life.
fn reborn(rig: &mut Rig, number: u8) {
    let mut members = rig.members.members().to_vec();
    members.retain(|other| other.node != node(number));
    members.push(member(number, 2));
    rig.members = MemberMap::new(rig.members.revision + 1, members);
    rig.publisher.on_members(&rig.members, rig.now);
}

#[test]
fn a_life_that_is_not_in_the_map_yet_is_let_in_once_it_is() {
    let mut rig = Rig::new(small());
    let mut open = rig.opening(1, &Scope::All);
    open.binding.requester.incarnation = member(1, 2).incarnation;
    let id = rig.connect(1, open.clone(), None);
    rig.settle();
    assert_eq!(refused(&mut rig, id), Some((OpenRefusal::NotInMap, 1)));
    reborn(&mut rig, 1);
    let id = rig.connect(1, open, None);
    rig.settle();
    assert_eq!(rig.watermark(id), Some(0), "the refused attempt was not counted");
}

#[test]
fn a_delayed_open_cannot_evict_its_successor_and_a_successor_does_its_predecessor() {
    let mut rig = Rig::new(small());
    let delayed = rig.opening(1, &Scope::All);
    let first = rig.open(1, &Scope::All);
    rig.settle();
    let stale = rig.connect(1, delayed, None);
    let same = rig.receivers[&first].open.clone();
    let same = rig.connect(1, same, None);
    rig.settle();
    assert_eq!(refused(&mut rig, same).unwrap().0, OpenRefusal::StaleAttempt);
    assert_eq!(refused(&mut rig, stale).unwrap().0, OpenRefusal::StaleAttempt);
    let second = rig.open(1, &Scope::All);
    rig.settle();
    assert_eq!(rig.closed, [(first, CloseCause::Replaced)]);
    assert_eq!(rig.watermark(second), Some(0));
    // What the replaced one still says changes nothing, be it right or wrong.
    rig.receiver(first).say_ack(1);
    rig.receiver(first).say_ack(u64::MAX);
    let before = rig.publisher.figures().clone();
    rig.settle();
    assert_eq!(rig.publisher.figures(), &before);
    assert_eq!(rig.closed.len(), 1);
}

#[test]
fn attempts_are_kept_as_long_as_their_life_is_a_member() {
    let mut rig = Rig::new(small());
    let first = rig.open(1, &Scope::All);
    rig.settle();
    rig.lose(first);
    let mut again = rig.receivers[&first].open.clone();
    let id = rig.connect(1, again.clone(), None);
    rig.settle();
    assert_eq!(refused(&mut rig, id).unwrap().0, OpenRefusal::StaleAttempt, "though its session has ended");
    reborn(&mut rig, 1);
    again.binding.requester.incarnation = member(1, 2).incarnation;
    let id = rig.connect(1, again, None);
    rig.settle();
    assert_eq!(rig.watermark(id), Some(0), "another life counts anew");
}

#[test]
fn what_breaks_the_protocol_ends_the_connection_and_changes_nothing() {
    type Say = fn(&mut Rig, ConnectionId);
    fn raw(rig: &mut Rig, id: ConnectionId, change: impl Fn(&mut Vec<u8>)) {
        let receiver = rig.receiver(id);
        receiver.say(FromRequester::FlushThrough { sequence: Sequence(1) });
        change(receiver.says.last_mut().unwrap());
    }
    let table: &[(&str, Say)] = &[
        ("not one whole frame", |rig, id| raw(rig, id, |frame| frame.push(0))),
        ("not one whole frame", |rig, id| raw(rig, id, |frame| frame.truncate(frame.len() - 1))),
        ("frame 9 where", |rig, id| raw(rig, id, |frame| frame[21] = 9)),
        ("frame 1 where", |rig, id| raw(rig, id, |frame| frame[21] = 1)),
        ("another session", |rig, id| raw(rig, id, |frame| frame[5] ^= 1)),
        ("does not exist in this direction", |rig, id| raw(rig, id, |frame| frame[4] = 22)),
        ("frame of 3 bytes", |rig, id| raw(rig, id, |frame| frame[..4].copy_from_slice(&[3, 0, 0, 0]))),
        ("names a head", |rig, id| raw(rig, id, |frame| frame[29] = 1)),
        ("sequence 5 is beyond the head 4", |rig, id| {
            rig.receiver(id).say(FromRequester::FlushThrough { sequence: Sequence(5) });
        }),
        ("sequence 5 is acknowledged, but only 4 was sent", |rig, id| {
            let view = rig.receivers[&id].view.as_ref().unwrap().id;
            let ack = FromRequester::Ack { consumed_frame: 1, view, applied: Sequence(5) };
            rig.receiver(id).say(ack);
        }),
    ];
    for (expected, say) in table {
        let mut rig = Rig::new(small());
        rig.shard.puts(1, 0..4);
        let id = rig.open(1, &Scope::All);
        rig.settle();
        say(&mut rig, id);
        rig.settle();
        let [(closed, cause)] = rig.closed[..] else { panic!("{expected}: {:?}", rig.closed) };
        assert!(closed == id && cause.to_string().contains(expected), "{expected}: {cause}");
        assert_eq!(rig.publisher.figures().protocol_errors, 1);
        rig.assert_nothing_left();
    }
}

#[test]
fn an_open_that_no_honest_requester_sends_gets_no_answer() {
    type Change = fn(&mut Open);
    let table: &[(&str, Change)] = &[
        ("another cluster", |open| open.binding.cluster = ClusterUuid([1; 16])),
        ("the name of another node", |open| open.binding.requester.node = node(2)),
        ("sequence 1 is beyond the head 0", |open| {
            open.resume = Some(Resume { view: SnapshotId([1; 16]), sequence: Sequence(1) });
        }),
    ];
    for (expected, change) in table {
        let mut rig = Rig::new(small());
        let mut open = rig.opening(1, &Scope::All);
        change(&mut open);
        let id = rig.connect(1, open, None);
        rig.settle();
        let [(closed, cause)] = rig.closed[..] else { panic!("{expected}: {:?}", rig.closed) };
        assert!(closed == id && cause.to_string().contains(expected), "{expected}: {cause}");
        assert_eq!(rig.heard(id), []);
    }
    // Anything but an Open, and bytes that are none.
    let mut rig = Rig::new(small());
    for bytes in [ack_frame(), vec![], vec![0xff; 60]] {
        let open = rig.opening(1, &Scope::All);
        let id = rig.connect(1, open, None);
        rig.receiver(id).says = vec![bytes];
        rig.settle();
        assert_eq!(rig.closed.pop().unwrap().0, id);
    }
}

fn ack_frame() -> Vec<u8> {
    let mut frame = Vec::new();
    let view = SnapshotId([0; 16]);
    let ack = FromRequester::Ack { consumed_frame: 0, view, applied: Sequence(0) };
    append_from_requester(&mut frame, orbitkv_wire::inventory::Tag([0; 16]), 1, &ack);
    frame
}

#[test]
fn sessions_end_with_the_membership_of_either_end() {
    let mut rig = Rig::new(small());
    let ids: Vec<_> = (1..4).map(|number| rig.open(number, &Scope::All)).collect();
    rig.settle();
    without(&mut rig, 1);
    reborn(&mut rig, 2);
    rig.take_effects();
    assert_eq!(rig.closed, [(ids[0], CloseCause::Removed), (ids[1], CloseCause::Removed)], "at once");
    let older = MemberMap::new(1, Vec::new());
    rig.publisher.on_members(&older, rig.now);
    rig.settle();
    assert_eq!(rig.closed.len(), 2, "an older map changes nothing");
    without(&mut rig, 0);
    rig.take_effects();
    assert_eq!(rig.closed.last(), Some(&(ids[2], CloseCause::Fenced)), "our own life is not a member's");
    rig.assert_nothing_left();
}

#[test]
fn a_fence_ends_everything_until_a_new_life_counts_from_one_again() {
    let mut rig = Rig::new(small());
    rig.shard.puts(1, 0..40);
    let (follower, scanned) = (rig.open(1, &Scope::All), rig.open(2, &Scope::All));
    rig.receiver(scanned).accepts = false;
    rig.settle();
    rig.publisher.on_fenced(rig.now);
    rig.take_effects();
    assert_eq!(rig.closed, [(follower, CloseCause::Fenced), (scanned, CloseCause::Fenced)]);
    assert_eq!((rig.permits.held(), rig.publisher.outlet.pool.in_use()), (0, 0));
    rig.shard.restart();
    assert!(!rig.turn(), "a fenced source does nothing");

    let life = Local { epoch: 2, incarnation: Incarnation([77; 16]), ..local() };
    rig.publisher.on_registered(life, rig.now);
    let late = rig.opening(1, &Scope::All);
    let late = rig.connect(1, late, None);
    rig.settle();
    assert_eq!(refused(&mut rig, late).unwrap().0, OpenRefusal::WrongSource, "it does not know the epoch");
    let mut members = rig.members.members().to_vec();
    members[0] = Member { epoch: 2, incarnation: Incarnation([77; 16]), ..members[0] };
    rig.members = MemberMap::new(2, members);
    rig.publisher.on_members(&rig.members, rig.now);
    let mut open = rig.opening(1, &Scope::All);
    open.binding.source.epoch = 2;
    let id = rig.connect(1, open, None);
    rig.settle();
    assert_eq!(rig.watermark(id), Some(40));
}

#[test]
fn a_connection_that_asks_nothing_ends_and_too_many_are_not_taken() {
    let mut rig = Rig::new(small());
    let silent: Vec<_> = (0..8)
        .map(|number| {
            let open = rig.opening(number, &Scope::All);
            let id = rig.connect(number, open, None);
            rig.receiver(id).says.clear();
            id
        })
        .collect();
    let ninth = rig.open(9, &Scope::All);
    rig.take_effects();
    assert_eq!(rig.closed, [(ninth, CloseCause::Busy)]);
    rig.pass(Duration::from_millis(4_999));
    assert_eq!(rig.closed.len(), 1);
    rig.pass(Duration::from_millis(1));
    let ended: Vec<_> = rig.closed[1..].to_vec();
    assert_eq!(ended, silent.iter().map(|&id| (id, CloseCause::Silent)).collect::<Vec<_>>());
    for number in 1..8 {
        rig.open(number, &Scope::All);
    }
    rig.settle();
    assert_eq!(rig.publisher.figures().refusals[&OpenRefusal::Busy], 1, "six sessions of seven");
    assert_eq!(rig.publisher.standing(Sequence(0)).sessions, 6);
}

#[test]
fn a_session_goes_on_from_its_view_while_the_history_is_there() {
    let mut rig = Rig::new(small());
    rig.shard.puts(1, 0..40);
    let first = rig.open(1, &Scope::All);
    rig.settle();
    rig.lose(first);
    rig.shard.puts(1, 30..94);
    assert_eq!(rig.shard.journal.oldest().0, 41, "the ring holds 64: the cursor 40 is just inside");
    let second = rig.reopen(1, first);
    rig.settle();
    assert_eq!(rig.heard(second)[0], Heard::Resumed(40));
    assert_eq!(rig.watermark(second), Some(104));
    assert_eq!(rig.publisher.figures().snapshots_begun, 1);
    rig.lose(second);
    rig.shard.puts(2, 0..65);
    let third = rig.reopen(1, second);
    rig.settle();
    let heard = rig.heard(third);
    assert_eq!(heard[0], Heard::Reset(ResetCause::HistoryGone), "one record too many");
    assert!(matches!(heard[1], Heard::Begin(_)), "and the bootstrap follows in the same session");
    assert_eq!(rig.watermark(third), Some(169));
    rig.assert_nothing_left();
}
