//! The view by itself.

use orbitkv_wire::identity::Incarnation;
use orbitkv_wire::membership::{HASH_VERSION, Key};

use super::rig::{node, record};
use crate::membership::coordinator::*;
use crate::membership::view::{Break, Flaw, OtherHistory, Patch, View};

fn entry(name: &str, port: u16, epoch: u64, revision: u64, version: u64) -> Entry {
    let value = record(name, port, epoch, epoch as u8).encode().into_bytes();
    Entry { key: Key::Member(node(name)), value, revision, version, lease: Some(LeaseId(1)) }
}

fn snapshot(revision: u64, entries: Vec<Entry>) -> Snapshot {
    Snapshot { revision, entries }
}

fn put(name: &str, epoch: u64, life: u8, revision: u64, version: u64) -> Event {
    let value = record(name, 100, epoch, life).encode().into_bytes();
    Event { key: Key::Member(node(name)), revision, put: Some(Put { value, version }) }
}

fn gone(name: &str, revision: u64) -> Event {
    Event { key: Key::Member(node(name)), revision, put: None }
}

fn names(view: &View) -> Vec<String> {
    view.roster().map().members().iter().map(|member| format!("{}@{}", member.node, member.epoch)).collect()
}

fn known() -> View {
    let mut view = View::default();
    let two = vec![entry("a", 100, 3, 8, 1), entry("b", 200, 1, 9, 2)];
    assert_eq!(view.install(&snapshot(10, two)), Ok(Ok(())));
    view
}

#[test]
fn changes_follow_a_snapshot() {
    let mut view = known();
    assert_eq!((names(&view), view.roster().map().revision), (vec!["a@3".into(), "b@1".into()], 10));
    assert_eq!(view.apply(&[gone("a", 12), put("a", 4, 4, 13, 1), put("c", 1, 1, 13, 1)]), Ok(true));
    assert_eq!((names(&view), view.known()), (vec!["a@4".into(), "b@1".into(), "c@1".into()], 13));
    // What is known already is passed over.
    assert_eq!(view.apply(&[gone("a", 12), put("a", 4, 4, 13, 1)]), Ok(false));
    // Another key moves the revision and nothing else.
    let floor = Event { key: Key::EpochFloor, revision: 20, put: None };
    assert_eq!((view.apply(&[floor]), view.known()), (Ok(false), 20));
}

#[test]
fn holes_are_found_by_versions() {
    for events in [
        vec![put("a", 4, 4, 12, 1)],
        vec![put("a", 4, 4, 12, 3)],
        vec![put("c", 1, 1, 12, 2)],
        vec![gone("c", 12)],
        vec![put("a", 4, 4, 13, 2), put("a", 5, 5, 12, 3)],
    ] {
        let mut view = known();
        assert!(matches!(view.apply(&events), Err(Break::Hole { .. })), "{events:?}");
    }
}

#[test]
fn another_history_is_found_by_what_was_known() {
    let same = || vec![entry("a", 100, 3, 8, 1), entry("b", 200, 1, 9, 2)];
    assert_eq!(known().install(&snapshot(11, same())), Ok(Ok(())));
    let mut newer = same();
    newer[0] = entry("a", 100, 4, 11, 2);
    assert_eq!(known().install(&snapshot(11, newer)), Ok(Ok(())));
    assert_eq!(known().install(&snapshot(11, vec![])), Ok(Ok(())), "leases may have ended");
    for at in [7, 9] {
        let mut other = same();
        other[0].revision = at;
        assert_eq!(known().install(&snapshot(11, other)), Err(OtherHistory::Rewritten { at }));
    }
    let mut more = same();
    more.push(entry("c", 300, 1, 10, 1));
    assert_eq!(known().install(&snapshot(11, more)), Err(OtherHistory::Rewritten { at: 10 }));
}

#[test]
fn an_older_snapshot_changes_nothing() {
    let mut view = known();
    assert_eq!(view.apply(&[gone("a", 15)]), Ok(true));
    assert_eq!(view.install(&snapshot(12, vec![entry("a", 100, 3, 8, 1)])), Ok(Ok(())));
    assert_eq!((names(&view), view.known()), (vec!["b@1".into()], 15));
}

#[test]
fn two_lives_with_one_epoch_are_both_refused() {
    let mut view = known();
    assert_eq!(view.apply(&[put("a", 3, 99, 11, 2)]), Ok(true));
    assert_eq!(view.poll_flaw(), Some(Flaw::EqualEpochs { node: node("a"), epoch: 3 }));
    assert_eq!(names(&view), ["b@1"]);
    // The first one does not come back either.
    assert_eq!(view.apply(&[put("a", 3, 3, 12, 3)]), Ok(true));
    assert_eq!(names(&view), ["b@1"]);
    assert_eq!(view.apply(&[put("a", 4, 99, 13, 4)]), Ok(true));
    assert_eq!(names(&view), ["a@4", "b@1"]);
}

#[test]
fn an_epoch_that_falls_is_refused() {
    let mut view = known();
    assert_eq!(view.apply(&[gone("a", 11), put("a", 2, 2, 12, 1)]), Ok(true));
    let flaw = Flaw::EpochBackwards { node: node("a"), epoch: 2, highest: 3 };
    assert_eq!((view.poll_flaw(), names(&view)), (Some(flaw), vec!["b@1".to_owned()]));
    assert_eq!(view.record(node("a")).map(|record| record.incarnation), Some(Incarnation([2; 16])));
}

#[test]
fn what_is_no_record_is_no_member_and_leaves_the_others_alone() {
    let mut view = known();
    let mut events = [put("a", 4, 4, 11, 2), put("c", 1, 1, 12, 1)];
    events[0].put.as_mut().expect("a put").value = b"nonsense".to_vec();
    events[1].put.as_mut().expect("a put").value = record("d", 100, 1, 1).encode().into_bytes();
    assert_eq!(view.apply(&events), Ok(true));
    assert_eq!(names(&view), ["b@1"]);
    assert!(matches!(view.poll_flaw(), Some(Flaw::Misplaced { .. })));
    assert!(matches!(view.poll_flaw(), Some(Flaw::Record { .. })));
    assert_eq!(view.poll_flaw(), None);
}

#[test]
fn a_member_with_another_hash_version_is_named_and_leaves_the_roster_one_in_part() {
    let mut view = known();
    let mut older = record("c", 300, 1, 1);
    older.contact.hash_version = HASH_VERSION - 1;
    let written = Put { value: older.encode().into_bytes(), version: 1 };
    let joins = Event { key: Key::Member(node("c")), revision: 11, put: Some(written) };
    assert_eq!(view.apply(&[joins]), Ok(true));
    let flaw = Flaw::ForeignHash { node: node("c"), version: HASH_VERSION - 1 };
    assert_eq!((view.poll_flaw(), view.poll_flaw()), (Some(flaw), None));
    assert_eq!(view.foreign_hash().collect::<Vec<_>>(), [(node("c"), HASH_VERSION - 1)]);
    // Nobody asks it, and what it has is not known: what nobody else has is not absent.
    assert_eq!((names(&view), view.roster().is_whole()), (vec!["a@3".into(), "b@1".into()], false));
    assert_eq!(view.apply(&[put("c", 2, 2, 12, 2)]), Ok(true));
    assert_eq!((names(&view).len(), view.roster().is_whole(), view.poll_flaw()), (3, true, None));
    assert_eq!(view.foreign_hash().next(), None);
}

#[test]
fn a_member_that_is_replaced_by_one_with_another_hash_version_is_asked_no_more() {
    let mut view = known();
    let mut other = record("b", 200, 2, 2);
    other.contact.hash_version = HASH_VERSION + 1;
    let value = other.encode().into_bytes();
    let put_anew = Entry { key: Key::Member(node("b")), value, revision: 11, version: 3, lease: None };
    assert_eq!(view.patch(node("b"), Some(&put_anew)), Patch::Newer);
    assert_eq!((names(&view), view.roster().is_whole()), (vec!["a@3".to_owned()], false));
    // A snapshot that has it all the same is no whole roster either.
    assert_eq!(view.install(&snapshot(12, vec![entry("a", 100, 3, 8, 1), put_anew])), Ok(Ok(())));
    assert_eq!((names(&view), view.roster().is_whole()), (vec!["a@3".to_owned()], false));
    assert_eq!(view.install(&snapshot(13, vec![entry("a", 100, 3, 8, 1)])), Ok(Ok(())));
    assert_eq!((names(&view), view.roster().is_whole()), (vec!["a@3".to_owned()], true));
}
