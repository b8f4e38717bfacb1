//! The room against a plain model of chapter 2.6: one source whose whole history is known, frames of it
//! in any order, whole and damaged, and after every step the same answer from both.

use std::collections::BTreeMap;

use orbitkv_wire::identity::{Medium, Sequence, SnapshotId};
use orbitkv_wire::inventory::{Body, FromRequester, FromSource, ResetCause, Transcript, TranscriptDigest};
use proptest::prelude::*;

use super::rig::*;
use crate::coverage::Standing;
use crate::inventory::ConnectionId;

const KEYS: u64 = 12;

type Rows = BTreeMap<(u64, Medium), (u32, u64)>;

/// One source: every change it ever made.
#[derive(Default)]
struct Source {
    history: Vec<Said>,
}

impl Source {
    fn head(&self) -> u64 {
        self.history.len() as u64
    }

    fn change(&mut self, key: u64, medium: Medium, bytes: u32) {
        self.history.push((key, medium, bytes, self.head() + 1));
    }

    /// What it holds after its first `through` changes.
    fn at(&self, through: u64) -> Rows {
        let mut rows = Rows::new();
        for &(key, medium, bytes, sequence) in &self.history[..through as usize] {
            match bytes {
                0 => drop(rows.remove(&(key, medium))),
                _ => drop(rows.insert((key, medium), (bytes, sequence))),
            }
        }
        rows
    }

    /// The last effect per residence key in `(from, through]`, by sequence.
    fn coalesced(&self, from: u64, through: u64) -> Vec<Said> {
        let mut last = BTreeMap::new();
        for &said in &self.history[from as usize..through as usize] {
            last.insert((said.0, said.1), said);
        }
        let mut changes: Vec<_> = last.into_values().collect();
        changes.sort_by_key(|said| said.3);
        changes
    }
}

/// What the room must be at, as the chapter says it.
#[derive(Clone, Debug, Default)]
struct Model {
    /// The installed view: its name and watermark. Its rows are the source's at that sequence.
    view: Option<(SnapshotId, u64)>,
    phase: Phase,
}

#[derive(Clone, Debug, Default, PartialEq)]
enum Phase {
    /// No session.
    #[default]
    Closed,
    Resuming,
    Waiting,
    Offered(SnapshotId, u64),
    Staging(Staging),
    Live,
}

#[derive(Clone, Debug, PartialEq)]
struct Staging {
    snapshot: SnapshotId,
    cursor: u64,
    transcript: Transcript,
    pages: u32,
    replaying: bool,
    /// Residences that the scan has yet to send.
    left: Vec<(u64, Medium)>,
    newest: u64,
    /// Head when the scan ended.
    scan_end: u64,
}

#[derive(Clone, Debug)]
enum Step {
    Change(u64, Medium, bool),
    Open,
    Lose,
    Answer(bool),
    Offer,
    Grant,
    Page(usize),
    Commit(Damage),
    Delta { back: i64, length: u64 },
    Progress,
    Beat,
    Damaged(Damage),
    Reset,
    Pass(u64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Damage {
    None,
    Digest,
    Pages,
    Through,
    Cut,
    Kind,
    Number,
    Tag,
}

fn step() -> impl Strategy<Value = Step> {
    let medium = prop_oneof![3 => Just(Medium::Dram), 1 => Just(Medium::Ssd)];
    let commit = prop_oneof![
        12 => Just(Damage::None), 1 => Just(Damage::Digest), 1 => Just(Damage::Pages), 1 => Just(Damage::Through),
    ];
    let damage = prop_oneof![Just(Damage::Cut), Just(Damage::Kind), Just(Damage::Number), Just(Damage::Tag)];
    prop_oneof![
        24 => (0..KEYS, medium, prop::bool::weighted(0.6)).prop_map(|(key, medium, put)| Step::Change(key, medium, put)),
        12 => Just(Step::Open),
        1 => Just(Step::Lose),
        8 => prop::bool::weighted(0.8).prop_map(Step::Answer),
        8 => Just(Step::Offer),
        20 => Just(Step::Grant),
        20 => (3usize..16).prop_map(Step::Page),
        16 => commit.prop_map(Step::Commit),
        24 => (prop_oneof![30 => Just(0), 1 => -9..0i64, 1 => 1..4i64], 1u64..20)
            .prop_map(|(back, length)| Step::Delta { back, length }),
        2 => Just(Step::Progress),
        2 => Just(Step::Beat),
        1 => damage.prop_map(Step::Damaged),
        1 => Just(Step::Reset),
        3 => (1u64..6_000).prop_map(Step::Pass),
    ]
}

/// Both, and how often each rule was met.
struct Run {
    rig: Rig,
    source: Source,
    model: Model,
    connection: ConnectionId,
    /// Whether the session ended from elsewhere.
    lost: bool,
    snapshots: u8,
    met: BTreeMap<&'static str, u64>,
}

impl Run {
    fn new() -> Run {
        let mut rig = Rig::new();
        rig.members(1, &[member("a", 1)]);
        let connection = ConnectionId(0);
        let (source, model) = (Source::default(), Model::default());
        Run { rig, source, model, connection, lost: false, snapshots: 0, met: BTreeMap::new() }
    }

    fn meet(&mut self, what: &'static str) {
        *self.met.entry(what).or_default() += 1;
    }

    fn take(&mut self, step: Step) {
        let head = self.source.head();
        let open = self.model.phase != Phase::Closed;
        match step {
            Step::Change(key, medium, put) => {
                // A source says that something ended only if it was there.
                let there = self.source.at(head).contains_key(&(key, medium));
                if put || there {
                    self.source.change(key, medium, if put { 100 + head as u32 } else { 0 });
                }
            }
            Step::Open if !open => self.open(),
            Step::Lose if open => {
                self.rig.room.on_closed(self.connection, head, self.rig.now);
                self.rig.run();
                self.lost = true;
                self.close("lost");
            }
            Step::Answer(accepts) if open => self.answer(accepts),
            Step::Offer if open => self.offer(),
            Step::Grant => {
                if let Phase::Offered(snapshot, after) = self.model.phase {
                    self.rig.grant();
                    let left = self.source.at(head).into_keys().collect();
                    let transcript = Transcript::new(snapshot);
                    let (cursor, pages) = (after, 0);
                    self.model.phase = Phase::Staging(Staging {
                        snapshot,
                        cursor,
                        transcript,
                        pages,
                        replaying: false,
                        left,
                        newest: 0,
                        scan_end: head,
                    });
                    let accepted = FromRequester::SnapshotAccept { snapshot };
                    assert!(self.rig.link(self.connection).heard.contains(&accepted));
                }
            }
            Step::Page(count) if open => self.page(count),
            Step::Commit(damage) if open => self.commit(damage),
            Step::Delta { back, length } if open => self.delta(back, length),
            Step::Progress if open => {
                // Nothing new is empty of this scope: it may only repeat what is known.
                match &mut self.model.phase {
                    Phase::Live => self.meet("progress"),
                    Phase::Staging(staging) if staging.cursor == 0 => staging.replaying = true,
                    Phase::Staging(_) => return self.progress_before_cursor(),
                    _ if !head.is_multiple_of(16) => return,
                    _ => self.close("unexpected"),
                }
                self.rig.say(self.connection, head, &FromSource::Progress { through: Sequence(0) });
            }
            Step::Beat if open => self.rig.beat(self.connection, head),
            Step::Damaged(damage) if open => self.damaged(damage),
            Step::Reset if open => {
                self.rig.say(
                    self.connection,
                    head,
                    &FromSource::ResetRequired { cause: ResetCause::HistoryGone },
                );
                self.model.phase = Phase::Waiting;
                self.meet("reset");
            }
            Step::Pass(milliseconds) => {
                self.rig.pass(milliseconds);
                self.rig.run();
            }
            _ => {}
        }
    }

    fn progress_before_cursor(&mut self) {
        let head = self.source.head();
        self.rig.say(self.connection, head, &FromSource::Progress { through: Sequence(0) });
        self.close("not contiguous");
    }

    fn close(&mut self, why: &'static str) {
        self.model.phase = Phase::Closed;
        self.meet(why);
    }

    fn open(&mut self) {
        self.connection = self.rig.reconnect();
        self.lost = false;
        let resume = self.rig.link(self.connection).open.resume;
        let expected = self.model.view;
        assert_eq!(resume.map(|resume| (resume.view, resume.sequence.0)), expected);
        self.model.phase = if expected.is_some() { Phase::Resuming } else { Phase::Waiting };
    }

    fn answer(&mut self, accepts: bool) {
        let head = self.source.head();
        let Some((view, applied)) = self.model.view.filter(|_| self.model.phase == Phase::Resuming) else {
            return;
        };
        let sequence = Sequence(applied);
        let message = match accepts {
            true => FromSource::Resumed { view, sequence },
            false => FromSource::ResetRequired { cause: ResetCause::HistoryGone },
        };
        self.rig.say(self.connection, head, &message);
        self.model.phase = if accepts { Phase::Live } else { Phase::Waiting };
        self.meet(if accepts { "resumed" } else { "not resumed" });
    }

    fn offer(&mut self) {
        if self.model.phase == Phase::Live && !self.source.head().is_multiple_of(32) {
            return;
        }
        let (head, rows_max) = (self.source.head(), 2 * KEYS);
        self.snapshots += 1;
        let snapshot = SnapshotId([self.snapshots; 16]);
        self.rig.offer(self.connection, snapshot, head, rows_max);
        match self.model.phase {
            Phase::Live => self.close("offer out of the blue"),
            _ => self.model.phase = Phase::Offered(snapshot, head),
        }
    }

    fn page(&mut self, count: usize) {
        let (head, now) = (self.source.head(), self.source.at(self.source.head()));
        let Phase::Staging(staging) = &mut self.model.phase else { return };
        if staging.replaying {
            return;
        }
        if !staging.left.is_empty() {
            staging.scan_end = head;
        }
        let scanned: Vec<_> = staging.left.drain(..count.min(staging.left.len())).collect();
        let residences: Vec<Said> = scanned
            .into_iter()
            .filter_map(|(key, medium)| now.get(&(key, medium)).map(|row| (key, medium, row.0, row.1)))
            .collect();
        if residences.is_empty() {
            return;
        }
        staging.newest = residences.iter().map(|said| said.3).max().unwrap().max(staging.newest);
        let body = page_body(staging.snapshot, staging.pages, &residences);
        staging.pages += 1;
        staging.transcript.absorb(&body.bytes);
        self.rig.send(self.connection, head, &body);
        self.meet("page");
    }

    fn commit(&mut self, damage: Damage) {
        let head = self.source.head();
        let Phase::Staging(staging) = self.model.phase.clone() else { return };
        let (mut digest, mut pages, mut through) =
            (staging.transcript.digest(), staging.pages, staging.cursor);
        match damage {
            Damage::Digest => digest = TranscriptDigest([0; 16]),
            Damage::Pages => pages += 1,
            Damage::Through if through < head => through += 1,
            _ => {}
        }
        let damaged =
            (digest, pages, through) != (staging.transcript.digest(), staging.pages, staging.cursor);
        let early = staging.newest > staging.cursor;
        // Residences left out and a replay that ends before the scan did can only be known by the source.
        let incomplete = !staging.left.is_empty() || staging.cursor < staging.scan_end;
        if !damaged && !early && incomplete {
            return;
        }
        let (snapshot, through) = (staging.snapshot, Sequence(through));
        self.rig.say(self.connection, head, &FromSource::SnapshotCommit { snapshot, through, pages, digest });
        if damaged || early {
            return self.close("bad commit");
        }
        self.model.view = Some((snapshot, staging.cursor));
        self.model.phase = Phase::Live;
        self.meet("commit");
    }

    fn delta(&mut self, back: i64, length: u64) {
        let head = self.source.head();
        let at = match &self.model.phase {
            Phase::Live => self.model.view.unwrap().1,
            Phase::Staging(staging) if staging.left.is_empty() => staging.cursor,
            Phase::Staging(_) => return,
            _ if back == 0 => return,
            _ => 0,
        };
        let from = at.saturating_add_signed(back);
        let through = (from + length).min(head);
        if from >= through {
            return;
        }
        // Now and then in two frames, of which the second waits for the first.
        let middle = if back == 0 && length.is_multiple_of(3) { from.midpoint(through) } else { from };
        let parts = [(from, middle), (middle, through)].into_iter().filter(|(from, through)| from < through);
        let bodies: Vec<_> = parts
            .map(|(from, through)| delta_body(from, through, &self.source.coalesced(from, through)))
            .collect();
        let frames: Vec<_> = bodies.iter().map(|body| self.rig.frame(self.connection, head, body)).collect();
        frames.iter().for_each(|bytes| self.rig.send_bytes(self.connection, bytes));
        self.rig.run();
        let body = &bodies[0];
        match &mut self.model.phase {
            Phase::Live if from == at => {
                self.model.view.as_mut().unwrap().1 = through;
                self.meet(if body.count > 4 { "delta in steps" } else { "delta" });
            }
            Phase::Live if through <= at => self.meet("repeated"),
            Phase::Staging(staging) if from == at => {
                bodies.iter().for_each(|body| staging.transcript.absorb(&body.bytes));
                (staging.cursor, staging.replaying) = (through, true);
                self.meet("replay");
            }
            Phase::Live | Phase::Staging(_) => self.close("not contiguous"),
            _ => self.close("unexpected"),
        }
    }

    fn damaged(&mut self, damage: Damage) {
        let head = self.source.head();
        let body: Body = delta_body(0, 1, &[put(1, 1)]);
        let mut bytes = self.rig.frame(self.connection, head.max(1), &body);
        match damage {
            Damage::Cut => drop(bytes.pop()),
            Damage::Kind => bytes[4] = 77,
            Damage::Number => bytes[21] ^= 1,
            _ => bytes[5] ^= 1,
        }
        self.rig.send_bytes(self.connection, &bytes);
        self.rig.run();
        if damage == Damage::Tag {
            // As if it had never been: the next frame has its number.
            self.rig.unsend(self.connection);
            self.meet("late");
        } else {
            self.close("damaged");
        }
    }

    fn check(&mut self) {
        if self.model.phase != Phase::Closed && self.rig.closed(self.connection) == Some("page_timeout") {
            assert!(matches!(self.model.phase, Phase::Staging(_)));
            self.close("page timeout");
        }
        if let Some(link) = self.rig.links.get(&self.connection) {
            let closed = link.closed.is_some() || self.lost;
            assert_eq!(closed, self.model.phase == Phase::Closed, "{:?} in {:?}", link.closed, self.model);
        }
        assert_eq!(self.rig.applied("a", 1), self.model.view.map(|(_, applied)| applied));
        let rows = self.model.view.map(|(_, applied)| self.source.at(applied)).unwrap_or_default();
        for key in 0..KEYS {
            let expected = rows.range((key, Medium::Dram)..=(key, Medium::Ssd));
            let expected: Vec<_> =
                expected.map(|(&(_, medium), &(bytes, sequence))| (0, medium, bytes, sequence)).collect();
            assert_eq!(self.rig.look(key), expected, "key {key} in {:?}", self.model);
        }
        let coverage = self.rig.room.coverage(self.rig.now);
        let fresh = coverage.oldest_age.as_millis() <= 5_000;
        let standing = match (&self.model.view, &self.model.phase) {
            (None, _) => Standing::NoneInstalled,
            (Some(_), Phase::Live) if fresh => Standing::Complete,
            _ => Standing::Partial,
        };
        assert_eq!(coverage.standing, standing, "{:?}", self.model);
        let left_out = u32::from(standing != Standing::Complete);
        assert_eq!((coverage.expected, coverage.left_out), (1, left_out), "{:?}", self.model);
        let staging = matches!(self.model.phase, Phase::Staging(_) | Phase::Offered(..));
        assert_eq!(self.rig.wishes.len() - self.rig.returned.len(), usize::from(staging), "permits");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_room_is_where_a_plain_model_is(steps in prop::collection::vec(step(), 1..300)) {
        let mut run = Run::new();
        for step in steps {
            run.take(step);
            run.check();
        }
    }
}

#[test]
fn the_steps_of_the_model_meet_every_rule() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut met = BTreeMap::new();
    for _ in 0..200 {
        let steps = prop::collection::vec(step(), 300).new_tree(&mut runner).unwrap().current();
        let mut run = Run::new();
        for step in steps {
            run.take(step);
            run.check();
        }
        run.met.into_iter().for_each(|(what, count)| *met.entry(what).or_insert(0) += count);
    }
    for what in [
        "bad commit",
        "commit",
        "damaged",
        "delta",
        "delta in steps",
        "late",
        "lost",
        "not contiguous",
        "not resumed",
        "offer out of the blue",
        "page",
        "page timeout",
        "progress",
        "repeated",
        "replay",
        "reset",
        "resumed",
        "unexpected",
    ] {
        assert!(met.get(what).is_some_and(|count| *count >= 3), "{what}: {met:?}");
    }
}
