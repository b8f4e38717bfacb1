//! The design with blocks in etcd, against an etcd of this machine: what observers have, and what it cost etcd.

use std::collections::HashSet;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use orbitkv_native::clock::monotonic_ns;
use tempfile::TempDir;

use super::publisher::{Batch, Form, Publisher, Seen};
use super::record;
use super::sight::Sight;
use crate::payload::block_hashes;
use crate::streams::coordinator::Coordinator;

const OBSERVERS: u16 = 3;
/// Puts of a first batch, and both kinds of a second.
const FIRST: u64 = 300;
const EACH: u64 = 50;
const WAIT: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(5);

/// An etcd that ends with the test. It does without the signals that a `Cluster` watches: other tests of this process
/// raise some.
struct Etcd {
    child: Child,
    url: String,
    _directory: TempDir,
}

impl Etcd {
    /// Whoever else looks for ports may take one before etcd has it: then others are tried.
    fn start() -> Etcd {
        (0..8).find_map(|_| Etcd::attempt()).expect("an etcd (Debian: etcd-server) that takes two free ports")
    }

    fn attempt() -> Option<Etcd> {
        let directory = tempfile::tempdir().expect("a directory");
        let listeners = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").expect("a port"));
        let [url, peer] =
            listeners.map(|listener| format!("http://{}", listener.local_addr().expect("an address")));
        // It goes with the thread that started it, however that ends.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "etcd", "--name", "alone", "--data-dir"]).arg(directory.path());
        command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("alone={peer}"), "--log-level", "error"]);
        let child =
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("setpriv (util-linux)");
        let mut etcd = Etcd { child, url, _directory: directory };
        let coordinator = Coordinator::at(&etcd.url).expect("a URL");
        let began = Instant::now();
        while began.elapsed() < WAIT {
            if coordinator.revision().is_ok() {
                return Some(etcd);
            }
            if etcd.child.try_wait().expect("a child").is_some() {
                return None;
            }
            sleep(LOOK);
        }
        None
    }

    fn sight(&self) -> Sight {
        Sight::now(&self.url, self.child.id()).expect("it tells its counters")
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.child.kill().expect("it was started here");
        self.child.wait().expect("it was started here");
    }
}

/// Waits until something has come that far at all observers.
fn await_all(publisher: &Publisher, count: u64, so_far: impl Fn() -> u64) {
    let began = Instant::now();
    while so_far() < count * u64::from(OBSERVERS) {
        assert!(!publisher.has_ended(), "the publisher has ended");
        assert!(began.elapsed() < WAIT, "{} of {count} at each of {OBSERVERS}", so_far());
        sleep(LOOK);
    }
}

/// Blocks are put, then others while the first of them end.
fn published(etcd: &Etcd, form: Form, namespace: u8) -> (Seen, Sight) {
    let publisher = Publisher::start(&etcd.url, form, OBSERVERS, 2).expect("a thread");
    await_all(&publisher, 1, || publisher.watching());
    let before = etcd.sight();
    let names = block_hashes(1, u64::from(namespace), 0..FIRST + EACH);
    let (first, second) = names.split_at(FIRST as usize);
    let told = record::changes(namespace, 1, first, &[]);
    publisher.tell(Batch { changes: told, made_ns: None }).expect("it lives");
    await_all(&publisher, FIRST, || publisher.applied());
    let told = record::changes(namespace, FIRST + 1, second, &first[..EACH as usize]);
    publisher.tell(Batch { changes: told, made_ns: Some(monotonic_ns()) }).expect("it lives");
    await_all(&publisher, FIRST + 2 * EACH, || publisher.applied());
    let used = etcd.sight().since(&before);
    (publisher.end().expect("etcd took it all"), used)
}

#[test]
fn every_observer_has_what_is_there_and_a_revision_is_a_request() {
    let etcd = Etcd::start();
    // A request for each change; 300 changes are transactions of 128, 128 and 44, and 100 are one.
    for (form, namespace, revisions) in [(Form::Plain, 2, 400), (Form::Coalesced, 3, 4)] {
        let began_ns = monotonic_ns();
        let (seen, used) = published(&etcd, form, namespace);
        let left = block_hashes(1, u64::from(namespace), EACH..FIRST + EACH);
        let right: HashSet<_> = left.iter().map(|hash| (namespace, hash.0)).collect();
        assert_eq!(seen.tables.len(), usize::from(OBSERVERS));
        assert!(seen.tables.iter().all(|table| *table == right), "{form:?}");
        assert_eq!((used.revision, used.writes), (revisions, 400.0), "{form:?}");
        // At least the values of all puts went to every observer.
        let least = f64::from(OBSERVERS) * 350.0 * 52.0;
        assert!(used.client_bytes > least, "{form:?}: {} bytes", used.client_bytes);
        assert!(used.seconds > 0.0, "{form:?}: {used:?}");
        // Each of them saw the end of the one batch that was awaited.
        let longest = monotonic_ns() - began_ns;
        assert_eq!(seen.latencies_ns.len(), usize::from(OBSERVERS), "{form:?}");
        let is_within = |ns: &u64| (1..longest).contains(ns);
        assert!(seen.latencies_ns.iter().all(is_within), "{form:?}: {:?}", seen.latencies_ns);
    }
}

#[test]
fn an_etcd_that_is_gone_ends_the_publisher_in_words() {
    let publisher = Publisher::start("http://127.0.0.1:1", Form::Plain, 1, 1).expect("a thread");
    let began = Instant::now();
    while !publisher.has_ended() {
        assert!(began.elapsed() < WAIT, "nobody listens there");
        sleep(LOOK);
    }
    let words = publisher.end().err().expect("it says why").to_string();
    assert!(words.starts_with("etcd: "), "{words}");
}
