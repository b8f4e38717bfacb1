//! A follower that is told what etcd has, and what it makes of that.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use orbitkv_native::ssd_file::DataDirLock;
use orbitkv_shards::fetcher::GuardSettings;
use orbitkv_shards::planner::Mode;
use orbitkv_wire::config::{Staged, Version};

use super::*;
use crate::settings::PeerGuard;

const MILLISECOND: Duration = Duration::from_millis(1);

fn flags() -> Policy {
    Policy {
        audit_interval: None,
        coalesce: 2 * MILLISECOND,
        routing: Mode::Shadow,
        guard: PeerGuard { call_budget: Duration::from_secs(1), guard: GuardSettings::default() },
        log: None,
    }
}

fn version(number: u64, pairs: &[(&str, &str)]) -> Version {
    let settings = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Version { number, settings }
}

fn record(number: u64, coalesce: &str) -> ConfigRecord {
    let stable = version(number, &[("coalesce", coalesce)]);
    ConfigRecord { number, stable, staged: None, former: None }
}

fn at(second: u64) -> Moment {
    Moment(second * 1_000_000_000)
}

type Told = Arc<Mutex<Vec<(u64, Policy)>>>;

struct Recorder(Told);

impl PolicySink for Recorder {
    fn take(&mut self, version: u64, policy: &Policy) {
        self.0.lock().expect("no panics").push((version, *policy));
    }
}

struct Rig {
    follower: PolicyFollower,
    told: Told,
    sight: latest::Receiver<ConfigView>,
    second: u64,
}

impl Rig {
    fn of(node: &str, file: PolicyFile) -> Rig {
        let told = Told::default();
        let (seen, sight) = latest::channel(ConfigView::default());
        let sink = Box::new(Recorder(Arc::clone(&told)));
        let node = node.parse().expect("legal");
        let follower = PolicyFollower::begin(flags(), node, file, sink, seen, at(0));
        Rig { follower, told, sight, second: 0 }
    }

    /// The next reading brings this; what is seen then.
    fn reads(&mut self, answer: Result<Option<&str>, ()>) -> ConfigView {
        let answer = answer.map(|text| text.map(|text| text.as_bytes().to_vec()));
        let answer = answer.map_err(|()| Failure::Unanswered("silence".to_owned()));
        assert_eq!(self.follower.next_deadline(), at(self.second));
        self.follower.take(answer, at(self.second));
        self.second += 30;
        self.sight.borrow().clone()
    }

    fn told(&self) -> Vec<(u64, Policy)> {
        self.told.lock().expect("no panics").clone()
    }

    /// How long a change may wait, as it was told last.
    fn coalesce(&self) -> Option<(u64, u128)> {
        self.told().last().map(|(version, policy)| (*version, policy.coalesce.as_millis()))
    }
}

fn file() -> (tempfile::TempDir, PolicyFile) {
    let directory = tempfile::tempdir().expect("a directory");
    let lock = DataDirLock::acquire(directory.path()).expect("nobody else's");
    let file = PolicyFile::of(&lock, "prod".parse().expect("legal"));
    (directory, file)
}

#[test]
fn a_record_holds_whole_and_only_a_newer_one_takes_its_place() {
    let (_directory, file) = file();
    let mut rig = Rig::of("a", file.clone());
    assert_eq!((rig.reads(Ok(None)).origin.as_str(), rig.told().len()), ("flags", 0));
    let mut several = record(3, "1ms");
    for (name, value) in [("audit", "5s"), ("breaker", "80"), ("call-budget", "300ms"), ("log", "debug")] {
        several.stable.settings.insert(name.to_owned(), value.to_owned());
    }
    let view = rig.reads(Ok(Some(&several.encode())));
    assert_eq!((view.version, view.record, view.origin.as_str()), (3, 3, "etcd"));
    let told = rig.told();
    assert_eq!(told.len(), 1, "at once, or not at all: {told:?}");
    let expected = Policy {
        audit_interval: Some(Duration::from_secs(5)),
        coalesce: MILLISECOND,
        guard: PeerGuard {
            call_budget: 300 * MILLISECOND,
            guard: GuardSettings { failed_percent: 80, ..GuardSettings::default() },
        },
        log: Some(crate::settings::LogLevel::Debug),
        ..flags()
    };
    assert_eq!(told[0], (3, expected));
    let shown = |view: &ConfigView, name: &str| {
        let found =
            view.settings.iter().find(|setting| setting.name == name).expect("every setting is shown");
        (found.value.clone(), found.flag.clone())
    };
    assert_eq!(shown(&view, "coalesce"), ("1ms".to_owned(), Some("2ms".to_owned())));
    assert_eq!(shown(&view, "retry-percent"), ("10".to_owned(), None));
    // The same again is nothing new, and silence changes nothing.
    rig.reads(Ok(Some(&several.encode())));
    let view = rig.reads(Err(()));
    assert_eq!((view.version, view.unread_ms, view.refused.as_str()), (3, 30_000, ""));
    assert!(view.unread.contains("does not answer"), "{view:?}");
    assert_eq!(rig.told().len(), 1);
    let view = rig.reads(Ok(Some(&record(4, "3ms").encode())));
    assert_eq!((view.version, view.unread.as_str(), view.unread_ms), (4, "", 0));
    assert_eq!(rig.coalesce(), Some((4, 3)));
    assert_eq!(file.read().expect("whole").expect("kept").0, record(4, "3ms"));
}

#[test]
fn what_is_no_record_changes_nothing_and_is_named_until_a_good_one_comes() {
    let (_directory, file) = file();
    let mut rig = Rig::of("a", file.clone());
    rig.reads(Ok(Some(&record(3, "1ms").encode())));
    let good = record(4, "3ms").encode();
    let same_number = record(3, "4ms").encode();
    for (bad, part) in [
        (good.replace("/v1", "/v2"), "line 1 has to be"),
        (good.replace("coalesce 3ms", "coalesce 6ms"), "coalesce 6ms: must be at most 5ms; use coalesce=2ms"),
        (
            good.replace("coalesce 3ms", "coalesce 3000us"),
            "coalesce 3000us: is written in another way; write 3ms",
        ),
        (good.replace("coalesce 3ms", "dram 1gib"), "dram needs a restart"),
        (
            good.replace("coalesce", "coalescing"),
            "coalescing is no setting of this version; did you mean coalesce?",
        ),
        (format!("{good}former 1\nbreaker 101\n"), "breaker 101: must be 0 to 100 percent; use breaker=50"),
        (same_number, "is not the record 3 that is in use"),
        (record(2, "1ms").encode(), "record 2 is older than record 3"),
    ] {
        let view = rig.reads(Ok(Some(&bad)));
        assert!(view.refused.contains(part), "{bad}: {}", view.refused);
        // Silence does not make it good.
        assert_eq!(rig.reads(Err(())).refused, view.refused);
        assert_eq!((rig.coalesce(), rig.told().len()), (Some((3, 1)), 1));
        assert_eq!(
            file.read().expect("whole").expect("kept").0,
            record(3, "1ms"),
            "the good one stays on disk"
        );
    }
    assert!(rig.reads(Ok(None)).refused.contains("there is none any more, and record 3"));
    let view = rig.reads(Ok(Some(&record(3, "1ms").encode())));
    assert_eq!((view.refused.as_str(), view.version), ("", 3));
    assert_eq!((view.malformed, view.older, view.unreachable), (7, 2, 8));
}

#[test]
fn a_start_without_etcd_is_from_the_copy_and_a_damaged_copy_is_not_used() {
    let (directory, file) = file();
    let mut rig = Rig::of("a", file.clone());
    rig.reads(Ok(Some(&record(3, "1ms").encode())));
    drop(rig);
    let mut rig = Rig::of("a", file.clone());
    assert_eq!(rig.coalesce(), Some((3, 1)), "before etcd was asked");
    assert_eq!(rig.reads(Err(())).origin, "disk");
    // An etcd that lost its past has an older one.
    let view = rig.reads(Ok(Some(&record(2, "4ms").encode())));
    assert_eq!((view.origin.as_str(), view.version), ("disk", 3));
    assert!(view.refused.contains("record 2 is older"), "{view:?}");
    assert_eq!(rig.reads(Ok(Some(&record(3, "1ms").encode()))).origin, "etcd");
    drop(rig);
    let path = directory.path().join("config");
    let damaged = std::fs::read_to_string(&path).expect("kept").replace("1ms", "4ms");
    std::fs::write(&path, damaged).expect("ours");
    let mut rig = Rig::of("a", file.clone());
    assert_eq!(rig.told(), []);
    let view = rig.reads(Err(()));
    assert_eq!((view.version, view.origin.as_str()), (0, "flags"));
    assert!(view.copy.contains("/config: its sum is not that of its text, so it is damaged"), "{view:?}");
    let view = rig.reads(Ok(Some(&record(3, "1ms").encode())));
    assert_eq!((view.version, view.copy.as_str()), (3, ""));
    assert_eq!(file.read().expect("whole").expect("kept").0, record(3, "1ms"));
}

#[test]
fn a_copy_that_could_not_be_written_is_written_once_that_can_be() {
    let (directory, file) = file();
    let mut rig = Rig::of("a", file.clone());
    rig.reads(Ok(Some(&record(2, "2ms").encode())));
    let in_the_way = directory.path().join("config.new");
    std::fs::create_dir(&in_the_way).expect("ours");
    for _ in 0..2 {
        let view = rig.reads(Ok(Some(&record(3, "1ms").encode())));
        assert!(view.version == 3 && view.copy.contains("/config.new failed"), "{view:?}");
        assert_eq!(file.read().expect("whole").expect("kept").0, record(2, "2ms"));
    }
    std::fs::remove_dir(&in_the_way).expect("ours");
    assert!(!rig.reads(Err(())).copy.is_empty(), "nothing was read");
    let view = rig.reads(Ok(Some(&record(3, "1ms").encode())));
    assert_eq!((view.version, view.copy.as_str()), (3, ""));
    assert_eq!(file.read().expect("whole").expect("kept").0, record(3, "1ms"));
}

#[test]
fn the_copy_of_another_cluster_is_not_used() {
    let (directory, file) = file();
    let mut rig = Rig::of("a", file);
    rig.reads(Ok(Some(&record(30, "1ms").encode())));
    drop(rig);
    let lock = DataDirLock::acquire(directory.path()).expect("nobody else's");
    let file = PolicyFile::of(&lock, "other".parse().expect("legal"));
    let mut rig = Rig::of("a", file.clone());
    let view = rig.reads(Err(()));
    assert_eq!((rig.told(), view.origin.as_str(), view.record), (vec![], "flags", 0));
    assert!(view.copy.contains("it is of the cluster prod, and this node is started for other"), "{view:?}");
    // Its numbers say nothing of the other's.
    let view = rig.reads(Ok(Some(&record(2, "3ms").encode())));
    assert_eq!((view.version, view.refused.as_str(), view.copy.as_str()), (2, "", ""));
    assert_eq!(file.read().expect("whole").expect("kept").0, record(2, "3ms"));
}

#[test]
fn a_stage_is_for_those_below_it_and_raising_it_reaches_the_others() {
    let staged = |number: u64, share: u32| {
        let (stable, version) = (version(1, &[("coalesce", "1ms")]), version(2, &[("coalesce", "3ms")]));
        ConfigRecord { number, stable, staged: Some(Staged { version, share }), former: None }.encode()
    };
    for name in ["a", "b", "host-7", "x"] {
        let (_directory, file) = file();
        let mut rig = Rig::of(name, file);
        let place = Rollout::place(place_hash(name.parse().expect("legal")), 100);
        for (number, share) in [(2, 1), (3, 40), (4, 41), (5, 99)] {
            let view = rig.reads(Ok(Some(&staged(number, share))));
            let is_here = place < share;
            let seen = view
                .staged
                .as_ref()
                .map(|staged| (staged.version, staged.share, staged.place, staged.is_here));
            assert_eq!(seen, Some((2, share, place, is_here)));
            assert_eq!((view.version, view.record), (if is_here { 2 } else { 1 }, number));
            assert_eq!(rig.coalesce(), Some(if is_here { (2, 3) } else { (1, 1) }), "{name} at {share} %");
        }
        let settled = ConfigRecord { number: 6, ..record(2, "3ms") }.encode();
        let view = rig.reads(Ok(Some(&settled)));
        assert_eq!((view.version, view.staged), (2, None));
        assert!(
            rig.told().len() <= 2,
            "promotion tells only those who have something else: {:?}",
            rig.told()
        );
    }
}

#[test]
fn a_change_that_the_watch_shows_is_read_at_once() {
    let (_directory, file) = file();
    let mut rig = Rig::of("a", file);
    rig.reads(Ok(None));
    rig.follower.hasten(at(7));
    assert_eq!(rig.follower.next_deadline(), at(7));
    rig.second = 7;
    assert_eq!(rig.reads(Ok(Some(&record(1, "1ms").encode()))).version, 1);
}
