//! A node as far as membership goes, on a thread of its own, and what it was told.

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use etcd_client::ConnectOptions;
use orbitkv_native::entropy;
use orbitkv_shards::members::Local;
use orbitkv_shards::membership::{
    Alarm, Applicant, FenceCause, PauseBounds, RefreshPolicy, Roster, Settings,
};
use orbitkv_shards::time::Moment;
use orbitkv_wire::identity::{ClusterUuid, Incarnation};
use orbitkv_wire::membership::{Contact, HASH_VERSION, Keyspace};
use tokio::sync::{oneshot, watch};

use crate::control::etcd::{EtcdAccess, Lives, Ready, Registrar, Sight, run};

/// Long enough for a busy machine, short enough for a test: a life is fenced after half of it.
pub const LEASE: Duration = Duration::from_secs(6);

#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    Fenced(Incarnation, FenceCause),
    Registered(Local),
    Suspended(String),
    Alarm(String),
}

#[derive(Clone, Default)]
struct Recorder {
    told: Arc<Mutex<Vec<Told>>>,
}

impl Recorder {
    fn note(&self, told: Told) {
        self.told.lock().expect("no panics").push(told);
    }
}

impl Lives for Recorder {
    fn begin(&mut self, _incarnation: Incarnation) -> Ready {
        Box::pin(async {})
    }

    fn on_fenced(&mut self, incarnation: Incarnation, cause: &FenceCause) {
        self.note(Told::Fenced(incarnation, cause.clone()));
    }

    fn on_registered(&mut self, local: Local) {
        self.note(Told::Registered(local));
    }

    fn on_admitted(&mut self, _until: Moment) {}

    fn on_members(&mut self, _roster: &Roster) {}

    fn on_suspended(&mut self, cause: &str) {
        self.note(Told::Suspended(cause.to_owned()));
    }

    fn on_alarm(&mut self, alarm: &Alarm) {
        self.note(Told::Alarm(alarm.to_string()));
    }
}

pub struct Node {
    pub name: String,
    sight: watch::Receiver<Option<Sight>>,
    recorder: Recorder,
    stop: Option<oneshot::Sender<End>>,
    thread: Option<JoinHandle<()>>,
}

enum End {
    Withdrawn,
    Killed,
}

impl Node {
    /// A node of this name at this port, of the cluster `test`.
    pub fn start(name: &str, port: u16, endpoints: Vec<String>) -> Node {
        Node::with(name, port, endpoints, ConnectOptions::new().with_require_leader(true))
    }

    pub fn with(name: &str, port: u16, endpoints: Vec<String>, options: ConnectOptions) -> Node {
        let contact = Contact {
            address: ([127, 0, 0, 1], port).into(),
            shards: 2,
            hash_version: HASH_VERSION,
            zone: "here".into(),
            key_fingerprint: [1; 32],
            boot_id: [2; 16],
            peer_socket: String::new(),
            capabilities: Vec::new(),
        };
        let cluster_draft = ClusterUuid(entropy::uuid_v4_bytes());
        let node = name.parse().expect("legal");
        let settings = Settings {
            applicant: Applicant { node, contact, cluster_draft },
            lease: LEASE,
            epoch_least: 0,
            retry: PauseBounds { min: Duration::from_millis(100), max: Duration::from_secs(3) },
            refused_pause: Duration::from_secs(1),
            // Begins with the first endpoint.
            jitter: 0,
            refresh: RefreshPolicy::default(),
        };
        let registrar = Registrar {
            settings,
            access: EtcdAccess { endpoints, options },
            space: Keyspace::new("test").expect("legal"),
            incarnation: Incarnation(entropy::uuid_v4_bytes()),
            watch_lag: Duration::ZERO,
        };
        let (seen, sight) = watch::channel(None);
        let (stop, stopped) = oneshot::channel();
        let recorder = Recorder::default();
        let lives = recorder.clone();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            let (withdraw, withdrawn) = oneshot::channel::<()>();
            let (_, doubted) = tokio::sync::mpsc::unbounded_channel();
            let membership = run(registrar, lives, None, doubted, seen, async {
                let _ = withdrawn.await;
            });
            runtime.block_on(async {
                tokio::pin!(membership);
                tokio::select! {
                    () = &mut membership => {}
                    end = stopped => {
                        if let Ok(End::Withdrawn) = end {
                            let _ = withdraw.send(());
                            membership.await;
                        }
                    }
                }
            });
        });
        Node { name: name.to_owned(), sight, recorder, stop: Some(stop), thread: Some(thread) }
    }

    pub fn sight(&self) -> Option<Sight> {
        self.sight.borrow().clone()
    }

    /// Waits until what is seen satisfies `condition`.
    pub fn wait(&self, what: &str, condition: impl Fn(&Sight) -> bool) -> Sight {
        let begun = Instant::now();
        loop {
            if let Some(sight) = self.sight().filter(&condition) {
                return sight;
            }
            assert!(
                begun.elapsed() < Duration::from_secs(40),
                "{}: no {what}: {:?}, told {:?}",
                self.name,
                self.sight(),
                self.told()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until it is a member with at least this epoch, and gives the epoch.
    pub fn member(&self, epoch_least: u64) -> Local {
        let is = |local: &Local| local.epoch >= epoch_least;
        let sight = self.wait("membership", |sight| sight.local.as_ref().is_some_and(is));
        sight.local.expect("just seen")
    }

    /// Waits until it knows exactly these members.
    pub fn knows(&self, names: &[&str]) -> Roster {
        let same = |sight: &Sight| {
            sight
                .roster
                .map()
                .members()
                .iter()
                .map(|member| member.node.to_string())
                .eq(names.iter().copied())
        };
        self.wait("members", same).roster
    }

    pub fn told(&self) -> Vec<Told> {
        self.recorder.told.lock().expect("no panics").clone()
    }

    pub fn fences(&self) -> usize {
        self.told().iter().filter(|told| matches!(told, Told::Fenced(..))).count()
    }

    /// Waits until an alarm says so.
    pub fn alarmed(&self, text: &str) {
        let alarmed = |told: &Told| matches!(told, Told::Alarm(alarm) if alarm.contains(text));
        self.wait(text, |_| self.told().iter().any(alarmed));
    }

    /// Stops it as SIGTERM does; how long that took.
    pub fn withdraw(mut self) -> Duration {
        let begun = Instant::now();
        self.end(End::Withdrawn);
        begun.elapsed()
    }

    /// Ends it as SIGKILL does.
    pub fn kill(mut self) {
        self.end(End::Killed);
    }

    fn end(&mut self, end: End) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(end);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end(End::Killed);
    }
}
