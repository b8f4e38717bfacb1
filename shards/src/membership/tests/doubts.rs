//! What is heard on the wire against a member record: one read, and etcd decides.

use orbitkv_wire::identity::Incarnation;
use orbitkv_wire::membership::Key;

use super::etcd::Etcd;
use super::rig::*;
use crate::membership::coordinator::*;
use crate::membership::*;
use crate::time::Moment;

const NOW: Moment = Moment(5_000_000_000);

fn doubt(incarnation: u8, cause: DoubtCause) -> Doubt {
    Doubt { node: node("b"), incarnation: Incarnation([incarnation; 16]), cause }
}

fn put_peer(etcd: &mut Etcd, epoch: u64, incarnation: u8) {
    let value = record("b", 200, epoch, incarnation).encode().into_bytes();
    etcd.write(&[Write::Put(Key::Member(node("b")), value, None)]);
}

/// A member that knows `b` in its first life.
fn member(etcd: &mut Etcd) -> Process {
    let mut process = Process::started("a", 100, 1, NOW);
    process.settle(etcd, NOW);
    put_peer(etcd, 1, 1);
    process.settle(etcd, NOW);
    assert_eq!(process.room.roster().map().members().len(), 2);
    process
}

/// Hears a doubt; whether a question is asked now that was not before.
fn hear(process: &mut Process, doubt: Doubt) -> bool {
    let before = process.question.as_ref().map(|(number, _)| *number);
    process.room.on_doubt(doubt, NOW);
    process.pump();
    let question = process.question.as_ref();
    assert!(question.is_none_or(|(_, request)| *request == Request::Read));
    question.map(|(number, _)| *number) != before
}

#[test]
fn a_life_that_etcd_confirms_costs_one_read_however_often_it_is_contradicted() {
    let mut etcd = Etcd::new(7);
    let mut process = member(&mut etcd);
    assert!(hear(&mut process, doubt(1, DoubtCause::Key)));
    (0..100).for_each(|_| assert!(!hear(&mut process, doubt(1, DoubtCause::Key)), "one is under way"));
    process.settle(&mut etcd, NOW);
    (0..100).for_each(|_| assert!(!hear(&mut process, doubt(1, DoubtCause::Key)), "etcd has confirmed it"));
    assert_eq!((process.room.figures().rereads, process.room.figures().superseded), (1, 0));
    assert_eq!(process.room.disputed(), [node("b")]);
    // What its key's holder says is another matter, and no dispute about the key.
    assert!(hear(&mut process, doubt(1, DoubtCause::Life)));
    process.settle(&mut etcd, NOW);
    assert!(!hear(&mut process, doubt(1, DoubtCause::Life)));
    assert_eq!((process.room.figures().rereads, process.room.disputed().len()), (2, 1));
    // The watch brings a successor: it was superseded after all.
    put_peer(&mut etcd, 2, 2);
    process.settle(&mut etcd, NOW);
    assert_eq!((process.room.figures().superseded, process.room.disputed().len()), (1, 0));
    // Whoever is late with a doubt about the old life asks for nothing, and counts nothing twice.
    assert!(!hear(&mut process, doubt(1, DoubtCause::Key)));
    assert_eq!((process.room.figures().rereads, process.room.figures().superseded), (2, 1));
    // The new one may be doubted in its turn; and with the record the dispute goes.
    assert!(hear(&mut process, doubt(2, DoubtCause::Key)));
    process.settle(&mut etcd, NOW);
    assert_eq!(process.room.disputed(), [node("b")]);
    // One that is later still does not hide that.
    assert!(!hear(&mut process, doubt(1, DoubtCause::Key)));
    assert!(!hear(&mut process, doubt(2, DoubtCause::Key)), "it is known");
    assert_eq!((process.room.disputed(), process.room.figures().superseded), (vec![node("b")], 1));
    etcd.write(&[Write::Delete(Key::Member(node("b")))]);
    process.settle(&mut etcd, NOW);
    assert_eq!((process.room.figures().superseded, process.room.disputed().len()), (1, 0));
    assert!(!hear(&mut process, doubt(2, DoubtCause::Key)), "nobody is doubted who is no member");
}

#[test]
fn a_read_brings_the_successor_that_the_watch_has_not_told_of() {
    let mut etcd = Etcd::new(7);
    let mut process = member(&mut etcd);
    put_peer(&mut etcd, 2, 2);
    assert!(hear(&mut process, doubt(1, DoubtCause::Key)));
    assert!(process.exchange(&mut etcd, Fate::Answered, NOW));
    let map = process.room.roster().map().clone();
    assert!(map.has(node("b"), Incarnation([2; 16])), "{map:?}");
    assert_eq!((process.room.figures().rereads, process.room.figures().superseded), (1, 1));
    assert!(process.room.disputed().is_empty() && process.question.is_none());
    assert!(process.fences().is_empty(), "a doubt about another ends no life");
}

#[test]
fn a_read_that_was_begun_before_the_doubt_does_not_answer_it() {
    let mut etcd = Etcd::new(7);
    let mut process = member(&mut etcd);
    assert!(hear(&mut process, doubt(1, DoubtCause::Life)));
    // Served before the successor is there, and before anybody has seen another key.
    assert!(process.exchange(&mut etcd, Fate::Slow, NOW));
    put_peer(&mut etcd, 2, 2);
    assert!(!hear(&mut process, doubt(1, DoubtCause::Key)));
    assert!(process.exchange(&mut etcd, Fate::Answered, NOW));
    assert!(process.room.disputed().is_empty());
    assert!(process.exchange(&mut etcd, Fate::Answered, NOW), "the later doubt has a read of its own");
    assert_eq!((process.room.figures().rereads, process.room.figures().superseded), (2, 1));
    assert!(process.room.roster().map().has(node("b"), Incarnation([2; 16])));
}

#[test]
fn a_read_that_nobody_answers_is_asked_again() {
    let mut etcd = Etcd::new(7);
    let mut process = member(&mut etcd);
    assert!(hear(&mut process, doubt(1, DoubtCause::Key)));
    assert!(process.exchange(&mut etcd, Fate::Lost, NOW));
    assert_eq!(process.room.figures().rereads, 0);
    put_peer(&mut etcd, 2, 2);
    let mut now = NOW;
    process.run(&mut etcd, &mut now, seconds(1));
    assert_eq!(process.room.figures().superseded, 1);
    assert!(process.room.disputed().is_empty());
}
