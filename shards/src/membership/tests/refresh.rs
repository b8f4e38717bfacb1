//! What each policy reads, and when, against etcd as one would explain it: the records that are told must be those that
//! etcd has, and no absence may be claimed on the word of a single one.

use std::collections::BTreeMap;

use orbitkv_wire::identity::{Incarnation, NodeId, ShardIndex};
use orbitkv_wire::membership::{Key, MemberRecord};

use super::etcd::Etcd;
use super::rig::*;
use crate::dice::Dice;
use crate::membership::coordinator::*;
use crate::membership::*;
use crate::time::Moment;

const NOW: Moment = Moment(5_000_000_000);
const NAMES: [&str; 4] = ["b", "c", "d", "e"];

fn put(etcd: &mut Etcd, name: &str, epoch: u64) {
    let port = 200 + u16::from(name.as_bytes()[0]);
    let value = record(name, port, epoch, epoch as u8).encode().into_bytes();
    etcd.write(&[Write::Put(Key::Member(node(name)), value, None)]);
}

fn doubt(name: &str, epoch: u64) -> Doubt {
    let incarnation = Incarnation([epoch as u8; 16]);
    Doubt { node: node(name), incarnation, cause: DoubtCause::Life }
}

/// A member under a policy that knows the four in their first lives and hears nothing of the watch any more.
fn member(refresh: RefreshPolicy, etcd: &mut Etcd) -> Process {
    let mut process = Process::under(refresh, "a", contact(100, 1), 1, 0, NOW);
    process.begin_life(NOW);
    process.settle(etcd, NOW);
    NAMES.iter().for_each(|name| put(etcd, name, 1));
    process.settle(etcd, NOW);
    assert_eq!(process.room.roster().map().members().len(), 5);
    process
}

/// Answers whatever is asked but the watch; how many reads of all, and of one, that were.
fn answer(process: &mut Process, etcd: &mut Etcd) -> (usize, usize) {
    let (mut wholes, mut looks) = (0, 0);
    loop {
        let is_read = matches!(process.question, Some((_, Request::Read)));
        let whole = process.exchange(etcd, Fate::Answered, NOW);
        let look = process.look(etcd, NOW);
        wholes += usize::from(whole && is_read);
        looks += usize::from(look);
        if !whole && !look {
            return (wholes, looks);
        }
    }
}

fn epochs(roster: &Roster) -> BTreeMap<NodeId, u64> {
    roster.map().members().iter().map(|member| (member.node, member.epoch)).collect()
}

/// What etcd has, read off its own map.
fn stored(etcd: &Etcd) -> BTreeMap<NodeId, u64> {
    let members = etcd.snapshot().entries.into_iter().filter(|entry| matches!(entry.key, Key::Member(_)));
    let records = members.map(|entry| MemberRecord::decode(&entry.value).expect("a record"));
    records.map(|record| (record.node, record.epoch)).collect()
}

fn asker(core: u16) -> Asker {
    Asker { core: ShardIndex(core), purpose: LookupPurpose::Payload }
}

fn wish(name: &str, core: u16, ticket: u64) -> LookupWish {
    LookupWish { node: node(name), asker: asker(core), ticket }
}

fn looked(process: &mut Process) -> Vec<LookupDone> {
    let told = std::mem::take(&mut process.told);
    told.into_iter()
        .filter_map(|effect| match effect {
            Effect::LookedUp(done) => Some(done),
            _ => None,
        })
        .collect()
}

#[test]
fn all_owners_move_and_each_policy_reads_what_it_says() {
    // Reads of all members, and of one.
    for (refresh, reads) in
        [(RefreshPolicy::Hybrid, (1, 0)), (RefreshPolicy::Redirect, (0, 4)), (RefreshPolicy::Lookup, (0, 4))]
    {
        let mut etcd = Etcd::new(7);
        let mut process = member(refresh, &mut etcd);
        let before = process.room.figures();
        NAMES.iter().for_each(|name| put(&mut etcd, name, 2));
        // Each is contradicted several times, before the first answer comes.
        for _ in 0..3 {
            NAMES.iter().for_each(|name| process.room.on_doubt(doubt(name, 1), NOW));
        }
        process.pump();
        assert_eq!(answer(&mut process, &mut etcd), reads, "{refresh:?}");
        assert_eq!(epochs(&process.room.roster()), stored(&etcd), "{refresh:?}");
        let after = process.room.figures();
        assert_eq!((after.rereads - before.rereads, after.lookups), (reads.0 as u64, reads.1 as u64));
        // Whoever says it again asks for nothing.
        NAMES.iter().for_each(|name| process.room.on_doubt(doubt(name, 1), NOW));
        process.pump();
        assert_eq!(answer(&mut process, &mut etcd), (0, 0), "{refresh:?}");
        assert!(process.fences().is_empty() && process.alarms().is_empty());
    }
}

#[test]
fn one_record_says_nothing_of_the_others_until_the_watch_or_a_whole_read_does() {
    for whole_read in [false, true] {
        let mut etcd = Etcd::new(7);
        let mut process = member(RefreshPolicy::Redirect, &mut etcd);
        assert!(process.room.roster().is_whole());
        put(&mut etcd, "c", 2);
        put(&mut etcd, "b", 2);
        put(&mut etcd, "d", 2);
        let at = etcd.revision;
        process.room.on_doubt(doubt("b", 1), NOW);
        process.pump();
        assert_eq!(answer(&mut process, &mut etcd), (0, 1));
        let roster = process.room.roster();
        let [b, c, d] = ["b", "c", "d"].map(|name| epochs(&roster)[&node(name)]);
        assert_eq!((b, c, d, roster.is_whole(), roster.map().revision), (2, 1, 1, false, at - 1));
        if whole_read {
            // Whatever the reason: a new watch compares what it was told.
            process.cut(NOW);
            let mut now = NOW;
            process.run(&mut etcd, &mut now, seconds(1));
        } else {
            process.settle(&mut etcd, NOW);
        }
        let roster = process.room.roster();
        assert_eq!((epochs(&roster), roster.is_whole()), (stored(&etcd), true));
        assert_eq!(roster.map().revision, at);
        assert!(process.alarms().is_empty() && process.fences().is_empty(), "{:?}", process.told);
        let told = process.told.iter().rev().find_map(|effect| match effect {
            Effect::Members(roster) => Some(roster.is_whole()),
            _ => None,
        });
        assert_eq!(told, Some(true), "cores are told that it is whole again");
    }
}

#[test]
fn a_snapshot_that_is_older_than_a_record_does_not_take_it_back() {
    let mut etcd = Etcd::new(7);
    let mut process = member(RefreshPolicy::Redirect, &mut etcd);
    process.cut(NOW);
    // The watch is opened again, and then everything is read to compare it; that answer is long under way.
    let mut now = NOW + seconds(1);
    process.tick(now);
    assert!(process.hear(&etcd, now), "it is created");
    assert!(process.exchange(&mut etcd, Fate::Slow, now));
    put(&mut etcd, "b", 2);
    process.room.on_doubt(doubt("b", 1), now);
    process.pump();
    assert!(process.look(&mut etcd, now));
    assert_eq!(epochs(&process.room.roster())[&node("b")], 2);
    now = now + seconds(1);
    assert!(process.exchange(&mut etcd, Fate::Answered, now));
    let roster = process.room.roster();
    assert_eq!((epochs(&roster)[&node("b")], roster.is_whole()), (2, false));
    process.settle(&mut etcd, now);
    assert_eq!((epochs(&process.room.roster()), process.room.roster().is_whole()), (stored(&etcd), true));
    assert!(process.alarms().is_empty() && process.fences().is_empty(), "{:?}", process.told);
}

#[test]
fn who_looks_up_first_waits_for_a_read_that_began_after_it_wanted_one() {
    let mut etcd = Etcd::new(7);
    let mut process = member(RefreshPolicy::Lookup, &mut etcd);
    process.told.clear();
    process.room.on_lookup(wish("b", 0, 1), NOW);
    process.pump();
    // Two more while it is under way: one read for both, and for the later wish of the same core.
    for (core, ticket) in [(0, 2), (1, 1), (0, 3)] {
        process.room.on_lookup(wish("b", core, ticket), NOW);
    }
    process.room.on_lookup(wish("c", 0, 4), NOW);
    process.pump();
    let first = process.look.take().expect("a read");
    let answered = etcd.serve(&first.1, NOW);
    put(&mut etcd, "b", 2);
    process.room.on_answer(first.0, answered, NOW);
    process.pump();
    let of = |name, through: &[(u16, u64)]| LookupDone {
        node: node(name),
        through: through.iter().map(|&(core, ticket)| (asker(core), ticket)).collect(),
    };
    assert_eq!(looked(&mut process), [of("b", &[(0, 1)])]);
    assert_eq!(epochs(&process.room.roster())[&node("b")], 1, "what it was when that read began");
    assert_eq!(answer(&mut process, &mut etcd), (0, 2));
    let members = process.told.iter().position(|effect| matches!(effect, Effect::Members(_)));
    let told = process.told.iter().position(|effect| matches!(effect, Effect::LookedUp(_)));
    assert!(
        members.is_some() && members < told,
        "the new life is told before anybody goes on: {:?}",
        process.told
    );
    assert_eq!(looked(&mut process), [of("b", &[(0, 3), (1, 1)]), of("c", &[(0, 4)])]);
    assert_eq!(epochs(&process.room.roster())[&node("b")], 2);
}

#[test]
fn a_read_that_fails_or_is_of_another_history_is_repeated_and_forgets_nobody() {
    let mut etcd = Etcd::new(7);
    let mut process = member(RefreshPolicy::Lookup, &mut etcd);
    process.told.clear();
    process.room.on_lookup(wish("b", 0, 1), NOW);
    process.pump();
    let (number, _) = process.look.take().expect("a read");
    process.room.on_answer(number, Err(Failure::Unanswered("lost".into())), NOW);
    process.room.on_lookup(wish("b", 1, 9), NOW);
    process.room.on_lookup(wish("c", 1, 10), NOW);
    process.pump();
    assert!(process.look.is_none() && looked(&mut process).is_empty(), "after a pause");
    assert!(process.room.next_deadline().is_some_and(|due| due > NOW));
    let now = NOW + seconds(3);
    process.settle(&mut etcd, now);
    let through: Vec<_> =
        looked(&mut process).into_iter().map(|looked| (looked.node, looked.through)).collect();
    let both = BTreeMap::from([(asker(0), 1), (asker(1), 9)]);
    assert_eq!(through, [(node("b"), both), (node("c"), BTreeMap::from([(asker(1), 10)]))]);
    // What is older than something known is believed by nobody, and all is read to find out.
    let reads = process.room.figures().snapshots;
    process.room.on_lookup(wish("b", 0, 2), now);
    process.pump();
    let (number, _) = process.look.take().expect("a read");
    let old = Header { coordinator: 7, revision: etcd.revision - 1 };
    process.room.on_answer(number, Ok((old, Answer::LookedUp(None))), now);
    process.pump();
    assert!(looked(&mut process).is_empty());
    process.run(&mut etcd, &mut now.clone(), seconds(3));
    assert_eq!(process.room.figures().snapshots, reads + 1);
    assert_eq!(looked(&mut process).len(), 1);
    assert_eq!(process.room.roster().map().members().len(), 5);
}

#[test]
fn a_record_that_is_gone_removes_nobody_by_itself() {
    let mut etcd = Etcd::new(7);
    let mut process = member(RefreshPolicy::Redirect, &mut etcd);
    etcd.write(&[Write::Delete(Key::Member(node("b"))), Write::Delete(Key::Member(node("c")))]);
    process.room.on_doubt(doubt("b", 1), NOW);
    process.pump();
    assert!(process.look(&mut etcd, NOW));
    assert_eq!(process.room.roster().map().members().len(), 5);
    assert_eq!(answer(&mut process, &mut etcd), (1, 0), "all are read");
    assert_eq!((epochs(&process.room.roster()), process.room.roster().is_whole()), (stored(&etcd), true));
}

/// In any order of moves, doubts, looks, answers and news: nobody is shown in a life that etcd never had or goes back to
/// an earlier one, a whole roster is exactly what etcd had at its revision, and in the end all is known.
#[test]
fn random_orders_of_answers_and_news_never_mix_two_histories() {
    for seed in 0..400 {
        let mut dice = Dice(seed);
        let policies = [RefreshPolicy::Lookup, RefreshPolicy::Redirect, RefreshPolicy::Hybrid];
        let refresh = policies[dice.roll(3) as usize];
        let mut etcd = Etcd::new(7);
        let mut process = member(refresh, &mut etcd);
        let mut states = BTreeMap::from([(etcd.revision, stored(&etcd))]);
        let (mut highest, mut tickets, mut now) = (BTreeMap::new(), 0, NOW);
        for _ in 0..120 {
            let name = NAMES[dice.roll(4) as usize];
            let epoch = stored(&etcd)[&node(name)];
            now = now + std::time::Duration::from_millis(dice.roll(3));
            match dice.roll(8) {
                0 | 1 => {
                    put(&mut etcd, name, epoch + 1);
                    states.insert(etcd.revision, stored(&etcd));
                }
                2 => process.room.on_doubt(doubt(name, epochs(&process.room.roster())[&node(name)]), now),
                3 => {
                    tickets += 1;
                    process.room.on_lookup(wish(name, 0, tickets), now);
                }
                4 => _ = process.look(&mut etcd, now),
                5 => _ = process.exchange(&mut etcd, Fate::Slow, now),
                6 => _ = process.exchange(&mut etcd, Fate::Answered, now),
                _ => _ = process.hear(&etcd, now),
            }
            process.pump();
            process.tick(now);
            let roster = process.room.roster();
            for (name, epoch) in epochs(&roster) {
                let last = highest.entry(name).or_insert(epoch);
                assert!(epoch >= *last, "seed {seed}: {name} goes back to {epoch}");
                *last = epoch;
            }
            if roster.is_whole() {
                assert_eq!(epochs(&roster), states[&roster.map().revision], "seed {seed}");
            }
        }
        process.run(&mut etcd, &mut now, seconds(4));
        let roster = process.room.roster();
        assert_eq!((epochs(&roster), roster.is_whole()), (stored(&etcd), true), "seed {seed}");
        assert!(
            process.alarms().is_empty() && process.fences().is_empty(),
            "seed {seed}: {:?}",
            process.told
        );
    }
}

#[test]
fn a_node_that_hears_of_a_later_epoch_of_its_own_reads_all_and_ends_if_etcd_has_one() {
    for refresh in [RefreshPolicy::Hybrid, RefreshPolicy::Redirect, RefreshPolicy::Lookup] {
        for is_replaced in [false, true] {
            let mut etcd = Etcd::new(7);
            let mut process = member(refresh, &mut etcd);
            let incarnation = process.room.local().expect("a member").incarnation;
            let by = Incarnation([9; 16]);
            if is_replaced {
                let value = record("a", 100, 5, 9).encode().into_bytes();
                etcd.write(&[Write::Put(Key::Member(node("a")), value, None)]);
            }
            let own = Doubt { node: node("a"), incarnation, cause: DoubtCause::Life };
            for _ in 0..3 {
                process.room.on_doubt(own, NOW);
            }
            process.pump();
            assert!(
                process.fences().is_empty() && process.look.is_none(),
                "it is heard, and decides nothing"
            );
            assert!(process.exchange(&mut etcd, Fate::Answered, NOW));
            let replaced = FenceCause::Replaced { by, epoch: 5 };
            assert_eq!(process.fences(), vec![&replaced; usize::from(is_replaced)], "{refresh:?}");
            assert_eq!(process.room.figures().rereads, 1);
            process.room.on_doubt(own, NOW);
            process.pump();
            assert!(is_replaced || process.question.is_none(), "etcd has said what it is");
        }
    }
}
