//! The HTTP API over a real socket, driven by hand-written HTTP/1.1, against a node whose answers the
//! test chooses.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use orbitkv_shards::fence::{AwaitFailure, Fence};
use orbitkv_wire::identity::{Incarnation, Sequence};
use orbitkv_wire::membership::MemberRecord;
use orbitkv_wire::scope::ScopeDigest;
use serde_json::{Value, json};

use orbitkv_shards::membership::{Figures, Roster, Standing};

use super::connections::{BoundedListener, CONNECTIONS_MAX, SILENCE_MAX};
use super::etcd::{Sight, Traffic};
use super::health::answer::{Canary, PathFault, ShardPath, Step};
use super::health::canary::OwnPath;
use super::http::{BODY_BYTES_MAX, HttpSettings, NodePort, PortError, ShardFence, serve};
use super::metadata::{NodeIdentity, Phase};
use super::owners::OwnersPage;
use super::policy::view::ConfigView;
use super::report::{NamespaceRow, PacketsReport, PeersReport, ShardReport};
use super::zones::ZonesReport;
use crate::cli::http_client::{ClientError, HttpClient};
use crate::exit::Exit;
use crate::peers::SamplesAnswer;
use crate::settings::Token;
use crate::turns::recorder::TurnsAnswer;

/// What the fake node answers.
#[derive(Clone, Debug)]
pub(super) struct Answers {
    phase: Phase,
    pub(super) reports: Result<Vec<ShardReport>, PortError>,
    fences: Vec<Result<Vec<ShardFence>, PortError>>,
    silent: bool,
    /// Revisions of the members that are seen one after the other, the last one for good; standalone without.
    pub(super) revisions: Vec<u64>,
    /// Who is in the cluster at each of them.
    pub(super) members: Vec<MemberRecord>,
    /// Whether the cores' lanes are full.
    is_crowded: bool,
    /// Owner streams; none if there is no page of them.
    pub(super) owners: Option<OwnersPage>,
    /// What becomes of a canary on each SSD, and how long that takes; a fault keeps all from being tried.
    canary: Result<Canary, PathFault>,
    canary_takes: Duration,
    /// Canaries that were sent, and for each shard of the last whether it has an SSD.
    canaries: u64,
    has_ssd: Vec<bool>,
}

#[derive(Clone)]
pub(super) struct FakeNode {
    identity: Arc<NodeIdentity>,
    answers: Arc<Mutex<Answers>>,
}

impl NodePort for FakeNode {
    async fn shard_reports(&self) -> Result<Vec<ShardReport>, PortError> {
        let (silent, reports) = {
            let answers = self.answers.lock().expect("not poisoned");
            (answers.silent, answers.reports.clone())
        };
        if silent {
            std::future::pending::<()>().await;
        }
        reports
    }

    async fn flush_fence(&self) -> Result<Vec<ShardFence>, PortError> {
        let mut answers = self.answers.lock().expect("not poisoned");
        match answers.fences.len() {
            1 => answers.fences[0].clone(),
            _ => answers.fences.remove(0),
        }
    }

    async fn namespaces(&self, after: &str, limit: usize) -> Result<Vec<NamespaceRow>, PortError> {
        let all = ["a", "b", "c"].into_iter().filter(|name| *name > after).take(limit);
        Ok(all.map(|name| NamespaceRow { namespace: name.to_owned(), ..NamespaceRow::default() }).collect())
    }

    async fn owners(&self, _after: &str, _limit: usize) -> Result<Option<OwnersPage>, PortError> {
        Ok(self.answers.lock().expect("not poisoned").owners.clone())
    }

    async fn samples(&self, _had: &[(u64, u64)]) -> Result<Option<Vec<SamplesAnswer>>, PortError> {
        Ok(None)
    }

    async fn turns(
        &self,
        _core: u16,
        _after: u64,
        _limit: usize,
        _forget_through: u64,
    ) -> Result<Option<TurnsAnswer>, PortError> {
        Ok(None)
    }

    async fn await_fence(
        &self,
        _fence: Fence,
        _scope: Option<ScopeDigest>,
        _longest: Duration,
    ) -> Result<(), AwaitFailure> {
        Err(AwaitFailure::Standalone)
    }

    fn fail_back(&self) -> bool {
        !self.answers.lock().expect("not poisoned").is_crowded
    }

    fn identity(&self) -> &NodeIdentity {
        &self.identity
    }

    fn phase(&self) -> Phase {
        self.answers.lock().expect("not poisoned").phase
    }

    fn config(&self) -> ConfigView {
        ConfigView::default()
    }

    fn membership(&self) -> Option<Sight> {
        let mut answers = self.answers.lock().expect("not poisoned");
        let revision = match answers.revisions.len() {
            0 => return None,
            1 => answers.revisions[0],
            _ => answers.revisions.remove(0),
        };
        Some(Sight {
            standing: Standing::Member,
            local: None,
            roster: Roster::new(revision, answers.members.iter()),
            figures: Figures::default(),
            disputed: Vec::new(),
            foreign_hash: Vec::new(),
            traffic: Traffic::default(),
        })
    }
}

impl OwnPath for FakeNode {
    fn try_out(&mut self, has_ssd: &[bool]) -> Result<Vec<ShardPath>, PathFault> {
        let (found, takes) = {
            let mut answers = self.answers.lock().expect("not poisoned");
            answers.canaries += 1;
            answers.has_ssd = has_ssd.to_vec();
            (answers.canary.clone(), answers.canary_takes)
        };
        std::thread::sleep(takes);
        let ssd = found?;
        let path = |shard| ShardPath { shard, dram: Canary::Passed { took_us: 7 }, ssd: ssd.clone() };
        Ok((0u16..).zip(has_ssd).map(|(shard, _)| path(shard)).collect())
    }
}

/// An API on a thread of its own, as in a node.
pub(super) struct Running {
    address: SocketAddr,
    node: FakeNode,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

pub(super) struct Start {
    bind: &'static str,
    token: Option<Token>,
    connections_max: usize,
    silence_max: Duration,
}

impl Default for Start {
    fn default() -> Start {
        Start { bind: "127.0.0.1:0", token: None, connections_max: CONNECTIONS_MAX, silence_max: SILENCE_MAX }
    }
}

fn report(shard: u16, incarnation: &str, head: u64) -> ShardReport {
    let mut report = ShardReport { shard, incarnation: incarnation.to_owned(), ..ShardReport::default() };
    report.journal.head_sequence = head;
    report.service.hits.ssd = 5;
    report.service.saves_refused.too_large = 3;
    report.turns.whole.counts[4] = 7;
    report.turns.whole.counts[15] = 1;
    report.turns.whole.sum_ns = 1_500_000_000;
    report
}

fn fence(life: u8, sequence: u64) -> ShardFence {
    ShardFence { incarnation: Incarnation([life; 16]), sequence: Sequence(sequence) }
}

impl Running {
    pub(super) fn start(start: Start) -> Running {
        let identity = NodeIdentity {
            node_id: "fake".to_owned(),
            arena_pages: "thp".to_owned(),
            ..NodeIdentity::default()
        };
        let answers = Answers {
            phase: Phase::Serving,
            reports: Ok(vec![report(1, "life", 9), report(0, "life", 7)]),
            fences: vec![Ok(vec![fence(1, 7), fence(1, 9)])],
            silent: false,
            revisions: Vec::new(),
            canary: Ok(Canary::Passed { took_us: 9 }),
            canary_takes: Duration::ZERO,
            canaries: 0,
            has_ssd: Vec::new(),
            members: Vec::new(),
            owners: None,
            is_crowded: false,
        };
        let node = FakeNode { identity: Arc::new(identity), answers: Arc::new(Mutex::new(answers)) };
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let port = node.clone();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::bind(start.bind).await.expect("bound");
                tell.send(listener.local_addr().expect("an address")).expect("told");
                let listener =
                    BoundedListener::with_bounds(listener, start.connections_max, start.silence_max);
                let settings = HttpSettings { host_name: "node-host".to_owned(), token: start.token };
                let stop = async {
                    let _ = stopped.await;
                };
                let own_path = port.clone();
                serve(listener, settings, port, own_path, stop).await.expect("served");
            });
        });
        let bound: SocketAddr = told.recv().expect("an address");
        let address = SocketAddr::from(([127, 0, 0, 1], bound.port()));
        Running { address, node, stop: Some(stop), thread: Some(thread) }
    }

    pub(super) fn answers(&self, change: impl FnOnce(&mut Answers)) {
        change(&mut self.node.answers.lock().expect("not poisoned"));
    }

    /// Sends bytes and reads until the server closes: status line and headers, then body.
    pub(super) fn raw(&self, request: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(self.address).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("answered");
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head in {text:?}"));
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        (status, head.to_owned(), body.to_owned())
    }

    pub(super) fn get(&self, path: &str) -> (u16, String) {
        let (status, _, body) =
            self.raw(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
        (status, body)
    }

    fn post(&self, path: &str, headers: &str, body: &str) -> (u16, Value) {
        let (status, _, text) = self.raw(&format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n{body}",
            body.len()
        ));
        (status, serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    fn client(&self) -> HttpClient {
        HttpClient::new(&self.address.to_string()).expect("a client")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().expect("running").join().expect("the API ended well");
    }
}

const JSON: &str = "Content-Type: application/json\r\n";

#[test]
fn health_and_readiness_differ() {
    let api = Running::start(Start::default());
    assert_eq!((api.get("/health").0, api.get("/ready").0), (200, 200));
    for phase in [Phase::Starting, Phase::Draining] {
        api.answers(|answers| answers.phase = phase);
        assert_eq!((api.get("/health").0, api.get("/ready").0), (200, 503));
    }
    api.answers(|answers| (answers.phase, answers.silent) = (Phase::Serving, true));
    let begun = Instant::now();
    let (status, body) = api.get("/ready");
    assert!(status == 503 && body.contains("silent"), "{status} {body}");
    assert!(begun.elapsed() < Duration::from_secs(10), "a silent core must not hang the probe");
    assert_eq!(api.get("/health").0, 200);
}

/// The answer of a deep check, and how many canaries were sent up to it.
fn deep(api: &Running) -> (u16, Value, u64) {
    let (status, body) = api.get("/health/deep");
    let canaries = api.node.answers.lock().expect("not poisoned").canaries;
    (status, serde_json::from_str(&body).expect("JSON"), canaries)
}

/// The answer of the next check that is made.
fn next_deep(api: &Running) -> (u16, Value) {
    let before = deep(api).1["age_ms"].as_u64().expect("an age");
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let (status, answer, _) = deep(api);
        if answer["age_ms"].as_u64().expect("an age") < before.max(1) {
            return (status, answer);
        }
        assert!(Instant::now() < until, "no other check was made: {answer}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn broken(step: Step) -> PathFault {
    PathFault { step, error: "it is broken".to_owned(), remedy: "mend it".to_owned(), late: false }
}

#[test]
fn however_many_ask_a_deep_check_is_made_once_in_its_interval() {
    let api = Running::start(Start::default());
    api.answers(|answers| {
        answers.canary_takes = Duration::from_millis(100);
        answers.reports.as_mut().expect("reports")[1].ssd.state = super::report::SsdState::On;
    });
    // The first ones wait for the check that is under way.
    let answers = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..8).map(|_| scope.spawn(|| deep(&api))).collect();
        asked.into_iter().map(|asked| asked.join().expect("answered")).collect::<Vec<_>>()
    });
    for (status, answer, canaries) in &answers {
        assert_eq!((*status, answer["passes"].as_bool(), *canaries), (200, Some(true), 1), "{answer}");
        assert_eq!(answer["shards"][1]["dram"], serde_json::json!({"outcome": "passed", "took_us": 7}));
        assert!(answer["took_ms"].as_u64() >= Some(100), "{answer}");
    }
    // In order of shard: the first report is that of shard 1.
    assert_eq!(api.node.answers.lock().expect("not poisoned").has_ssd, [true, false]);
    std::thread::sleep(Duration::from_millis(50));
    let (status, aged, canaries) = deep(&api);
    assert_eq!((status, canaries), (200, 1));
    assert!(aged["age_ms"].as_u64() >= Some(50), "{aged}");
    api.answers(|answers| answers.canary = Ok(Canary::Failed(broken(Step::SsdRead))));
    assert_eq!(deep(&api).0, 200, "what was found holds until the next check");
    let (status, answer) = next_deep(&api);
    assert_eq!((status, answer["passes"].as_bool()), (503, Some(false)), "{answer}");
    let ssd = &answer["shards"][0]["ssd"];
    assert_eq!((ssd["step"].as_str(), ssd["remedy"].as_str()), (Some("ssd-read"), Some("mend it")));
    let metrics = api.get("/metrics").1;
    for line in
        ["orbitkv_deep_checks_total{kind=\"passed\"} 1", "orbitkv_deep_checks_total{kind=\"failed\"} 1"]
    {
        assert!(metrics.lines().any(|seen| seen == line), "`{line}` is not in\n{metrics}");
    }
    assert_eq!(api.get("/ready").0, 200, "readiness does not look that deep");
}

#[test]
fn what_keeps_a_canary_from_being_sent_is_named() {
    type Change = fn(&mut Answers);
    let table: [(Change, &str); 4] = [
        (|answers| answers.phase = Phase::Draining, "serve"),
        (|answers| answers.silent = true, "cores"),
        (|answers| answers.reports = Err(PortError::Busy), "cores"),
        (|answers| answers.canary = Err(broken(Step::Connect)), "connect"),
    ];
    for (change, step) in table {
        let api = Running::start(Start::default());
        api.answers(change);
        let begun = Instant::now();
        let (status, answer, canaries) = deep(&api);
        assert_eq!((status, answer["fault"]["step"].as_str()), (503, Some(step)), "{answer}");
        assert!(answer["fault"]["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty()), "{answer}");
        assert_eq!((canaries, &answer["shards"]), (u64::from(step == "connect"), &serde_json::json!([])));
        assert!(begun.elapsed() < Duration::from_secs(10), "a probe must not hang");
    }
}

#[test]
fn a_check_goes_on_though_whoever_asked_for_it_has_gone() {
    let api = Running::start(Start::default());
    api.answers(|answers| answers.canary_takes = Duration::from_millis(300));
    let mut gone = TcpStream::connect(api.address).expect("connected");
    gone.write_all(b"GET /health/deep HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
    while api.node.answers.lock().expect("not poisoned").canaries == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(gone);
    let (status, answer, canaries) = deep(&api);
    assert_eq!((status, canaries), (200, 1), "the next one is told what it found: {answer}");
}

#[test]
fn the_metadata_page_is_merged_in_order_of_shard() {
    let api = Running::start(Start::default());
    let (status, body) = api.get("/cache/metadata");
    let page: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(status, 200);
    assert_eq!(page["inventory_sequence"], serde_json::json!([7, 9]));
    assert_eq!((page["standalone"].as_bool(), page["incarnation"].as_str()), (Some(true), Some("life")));
    assert_eq!((page["identity"]["node_id"].as_str(), page["scope_digest"].is_null()), (Some("fake"), true));
    assert_eq!(
        (page["sessions"].as_u64(), page["coverage"].as_str()),
        (Some(0), Some("CompleteAtWatermarks"))
    );
    assert!(page["memory"]["rss_bytes"].as_u64() > Some(1 << 20), "{}", page["memory"]);
    assert_eq!(page["shards"][1]["service"]["hits"]["ssd"], 5);
    assert_eq!(page["shards"][0]["ssd"]["state"]["state"], "off");

    api.answers(|answers| answers.reports = Ok(vec![report(0, "old", 1), report(1, "new", 1)]));
    let (status, body) = api.get("/cache/metadata");
    assert!(status == 503 && body.contains("new-incarnation"), "{status} {body}");
    api.answers(|answers| answers.reports = Err(PortError::Busy));
    assert_eq!(api.get("/cache/metadata").0, 503);
}

#[test]
fn a_page_speaks_of_the_members_that_its_coverage_is_about() {
    let api = Running::start(Start::default());
    // Before and after each time that the shards are asked.
    api.answers(|answers| answers.revisions = vec![1, 2, 2, 3, 3]);
    let (status, page) = api.get("/cache/metadata");
    let page: serde_json::Value = serde_json::from_str(&page).expect("JSON");
    assert_eq!((status, page["membership"]["revision"].as_u64()), (200, Some(3)), "{page}");
    api.answers(|answers| answers.revisions = vec![1, 2, 2, 3, 3, 4]);
    let (status, page) = api.get("/cache/metadata");
    assert!(status == 503 && page.contains("members-changing"), "{status} {page}");
}

#[test]
fn metrics_are_text_with_bounded_labels() {
    let api = Running::start(Start::default());
    let (status, head, text) =
        api.raw("GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
    assert!(
        status == 200 && head.to_lowercase().contains("content-type: application/openmetrics-text"),
        "{head}"
    );
    for line in [
        "orbitkv_hits_total{shard=\"1\",medium=\"ssd\"} 5",
        "orbitkv_saves_refused_total{shard=\"0\",reason=\"too_large\"} 3",
        "orbitkv_journal_head_sequence{shard=\"1\"} 9",
        "orbitkv_serving 1",
        "# TYPE orbitkv_turn_seconds histogram",
        "orbitkv_turn_seconds_bucket{le=\"0.00005\",shard=\"1\",part=\"whole\"} 0",
        "orbitkv_turn_seconds_bucket{le=\"0.0001\",shard=\"1\",part=\"whole\"} 7",
        "orbitkv_turn_seconds_bucket{le=\"0.2\",shard=\"1\",part=\"whole\"} 7",
        "orbitkv_turn_seconds_bucket{le=\"+Inf\",shard=\"0\",part=\"whole\"} 8",
        "orbitkv_turn_seconds_sum{shard=\"0\",part=\"whole\"} 1.5",
        "orbitkv_turn_seconds_count{shard=\"0\",part=\"whole\"} 8",
        "# EOF",
    ] {
        assert!(text.lines().any(|seen| seen == line), "`{line}` is not in\n{text}");
    }
    assert!(!text.contains("life"), "no label carries an incarnation");
    assert!(text.lines().all(|line| line.starts_with("# ") || line.starts_with("orbitkv_")), "{text}");
}

#[test]
fn packets_to_peers_are_counted_with_what_was_lost_of_them() {
    let api = Running::start(Start::default());
    let packets = PacketsReport { sent: 900, lost: 9, congestion_events: 2 };
    let peers = Some(PeersReport { packets, ..PeersReport::default() });
    api.answers(|answers| answers.reports = Ok(vec![ShardReport { peers, ..report(0, "life", 7) }]));
    let text = api.get("/metrics").1;
    for line in [
        "orbitkv_peer_packets_total{shard=\"0\",kind=\"sent\"} 900",
        "orbitkv_peer_packets_total{shard=\"0\",kind=\"lost\"} 9",
        "orbitkv_peer_congestion_events_total{shard=\"0\"} 2",
    ] {
        assert!(text.lines().any(|seen| seen == line), "`{line}` is not in\n{text}");
    }
    let page: Value = serde_json::from_str(&api.get("/cache/metadata").1).expect("JSON");
    assert_eq!(page["shards"][0]["peers"]["packets"]["lost"], 9);
}

#[test]
fn sync_answers_with_the_fence_of_one_incarnation() {
    let api = Running::start(Start::default());
    let mixed = Ok(vec![fence(1, 7), fence(2, 1)]);
    api.answers(|answers| answers.fences = vec![mixed.clone(), Ok(vec![fence(2, 3), fence(2, 4)])]);
    let (status, fence) = api.post("/cache/sync", JSON, "{}");
    assert_eq!(status, 200);
    assert_eq!(
        (fence["standalone"].as_bool(), fence["local_flush_complete"].as_bool()),
        (Some(true), Some(true))
    );
    assert_eq!(fence["incarnation"], "02020202-0202-0202-0202-020202020202");
    assert_eq!(fence["inventory_sequence"], serde_json::json!([3, 4]));
    api.answers(|answers| answers.fences = vec![mixed]);
    assert_eq!(api.post("/cache/sync", JSON, "").0, 503);
    api.answers(|answers| answers.fences = vec![Err(PortError::Stopping)]);
    assert_eq!(api.post("/cache/sync", JSON, "").1["error"], "stopping");
}

#[test]
fn going_back_to_the_own_zone_is_answered_with_what_each_core_prefers() {
    let api = Running::start(Start::default());
    let (status, body) = api.post("/zones/failback", JSON, "{}");
    assert_eq!((status, body["error"].as_str()), (409, Some("standalone")));
    let own = || "east".to_owned();
    let core = |shard, preferred| {
        let zones = ZonesReport { own: own(), preferred, ..ZonesReport::default() };
        let peers = Some(PeersReport { zones, ..PeersReport::default() });
        ShardReport { peers, ..report(shard, "life", 9) }
    };
    let reports = Ok(vec![core(1, None), core(0, Some(own()))]);
    api.answers(|answers| (answers.reports, answers.revisions) = (reports, vec![3]));
    let said = api.post("/zones/failback", JSON, "");
    assert_eq!(said, (200, json!({"own": "east", "preferred": ["east", null]})));
    api.answers(|answers| answers.is_crowded = true);
    let (status, body) = api.post("/zones/failback", JSON, "{}");
    assert_eq!((status, body["error"].as_str()), (503, Some("busy")));
}

#[test]
fn standalone_says_so_by_name() {
    let api = Running::start(Start::default());
    let (status, body) = api.post("/cache/metadata/await", JSON, "{\"fence\":{}}");
    assert_eq!((status, body["error"].as_str()), (409, Some("standalone")));
    assert_eq!(
        api.get("/cache/metadata/owners?limit=5"),
        (200, r#"{"next":null,"owners":[],"standalone":true}"#.to_owned())
    );
    for query in ["limit=0", "limit=1001", "limit=x"] {
        assert_eq!(api.get(&format!("/cache/metadata/owners?{query}")).0, 400, "{query}");
    }
}

#[test]
fn namespaces_come_in_pages() {
    let api = Running::start(Start::default());
    let page = |path| serde_json::from_str::<Value>(&api.get(path).1).expect("JSON");
    let first = page("/cache/namespaces?limit=2");
    assert_eq!(
        (first["namespaces"][1]["namespace"].as_str(), first["next"].as_str()),
        (Some("b"), Some("b"))
    );
    let last = page("/cache/namespaces?limit=2&after=b");
    assert_eq!((last["namespaces"][0]["namespace"].as_str(), last["next"].as_str()), (Some("c"), None));
}

#[test]
fn the_host_header_guards_against_rebound_names() {
    let api = Running::start(Start::default());
    let status =
        |headers: &str| api.raw(&format!("GET /health HTTP/1.1\r\n{headers}Connection: close\r\n\r\n")).0;
    for host in
        ["127.0.0.1", "10.1.2.3:80", "[::1]:7070", "localhost:1", "LOCALHOST", "node-host", "Node-Host:7070"]
    {
        assert_eq!(status(&format!("Host: {host}\r\n")), 200, "{host}");
    }
    for host in
        ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:7070", "[::1", "localhost:x"]
    {
        assert_eq!(status(&format!("Host: {host}\r\n")), 403, "{host}");
    }
    assert_eq!(status(""), 400);
    assert_eq!(status("Host: localhost\r\nHost: evil.example\r\n"), 400);
    let absolute = "GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(api.raw(absolute).0, 403);
}

#[test]
fn bodies_are_json_objects_of_bounded_size() {
    let api = Running::start(Start::default());
    for (headers, body, status) in [
        ("", "{}", 415),
        ("Content-Type: text/plain\r\n", "{}", 415),
        ("Content-Type: application/jsonp\r\n", "{}", 415),
        ("Content-Type: Application/JSON; charset=utf-8\r\n", "{}", 200),
        (JSON, "[]", 400),
        (JSON, "{", 400),
    ] {
        assert_eq!(api.post("/cache/sync", headers, body).0, status, "{headers:?} {body}");
    }
    let padded = |bytes: usize| format!("{{{}}}", " ".repeat(bytes - 2));
    assert_eq!(api.post("/cache/sync", JSON, &padded(BODY_BYTES_MAX)).0, 200);
    // Only the head is sent: the refusal must not wait for a body of that length.
    let (status, _, _) = api.raw(&format!(
        "POST /cache/sync HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{JSON}Content-Length: {}\r\n\r\n",
        BODY_BYTES_MAX + 1
    ));
    assert_eq!(status, 413);
    // Without an announced length the bound acts while the body is read.
    let chunk = "x".repeat(BODY_BYTES_MAX + 1);
    let (status, _, _) = api.raw(&format!(
        "POST /cache/sync HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{JSON}Transfer-Encoding: chunked\r\n\r\n\
         {:x}\r\n{chunk}\r\n0\r\n\r\n",
        chunk.len()
    ));
    assert_eq!(status, 413);
}

#[test]
fn unknown_pages_and_methods_are_named() {
    let api = Running::start(Start::default());
    assert_eq!(api.get("/nothing").0, 404);
    assert_eq!(api.get("/cache/sync").0, 405);
    assert_eq!(api.post("/cache/metadata", JSON, "{}").1["error"], "method");
    let (_, head, _) = api.raw("GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(head.to_lowercase().contains("cache-control: no-store"), "{head}");
}

fn token() -> Token {
    use std::os::unix::fs::PermissionsExt;
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "0123456789abcdef0123").expect("written");
    std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o600)).expect("mode set");
    Token::read(file.path()).expect("a token")
}

#[test]
fn beyond_loopback_changes_need_a_token() {
    let open = Running::start(Start { bind: "0.0.0.0:0", ..Start::default() });
    let (status, body) = open.post("/cache/sync", JSON, "{}");
    assert!(
        status == 403 && body["reason"].as_str().is_some_and(|reason| reason.contains("--http-token-file"))
    );
    assert_eq!(open.get("/cache/metadata").0, 200);

    let api = Running::start(Start { bind: "0.0.0.0:0", token: Some(token()), ..Start::default() });
    let with = |authorization: &str| api.post("/cache/sync", &format!("{JSON}{authorization}"), "{}").0;
    for authorization in [
        "",
        "Authorization: Bearer 0123456789abcdef0124\r\n",
        "Authorization: Bearer 0123456789abcdef\r\n",
        "Authorization: Basic 0123456789abcdef0123\r\n",
        "Authorization: Bearer\r\n",
    ] {
        assert_eq!(with(authorization), 401, "{authorization}");
    }
    assert_eq!(with("Authorization: Bearer 0123456789abcdef0123\r\n"), 200);
    assert!(api.client().with_token(Some(token())).post("/cache/sync", &serde_json::json!({})).is_ok());
}

#[test]
fn the_command_line_client_understands_answers_and_refusals() {
    let api = Running::start(Start::default());
    let client = api.client();
    let (page, _) = client.get_as::<super::metadata::MetadataPage>("/cache/metadata").expect("a page");
    assert_eq!((page.inventory_sequence.as_slice(), page.phase), ([7, 9].as_slice(), Phase::Serving));
    let screen = crate::cli::status::screen(&page);
    for part in ["fake serving, standalone", "10 from ssd", "shard  sequence"] {
        assert!(screen.contains(part), "{screen}");
    }
    let refused = client.post("/cache/metadata/await", &serde_json::json!({})).expect_err("standalone");
    assert_eq!(refused.exit(), Exit::Unmet);
    assert!(
        matches!(&refused, ClientError::Refused { status: 409, name, .. } if name == "standalone"),
        "{refused}"
    );
    let unknown = client.get("/nothing").expect_err("unknown");
    assert_eq!(unknown.exit(), Exit::Unreachable);
}

#[test]
fn silent_connections_give_up_their_seats() {
    let silence_max = Duration::from_millis(300);
    let api = Running::start(Start { connections_max: 2, silence_max, ..Start::default() });
    let idle: Vec<TcpStream> = (0..2).map(|_| TcpStream::connect(api.address).expect("connected")).collect();
    let begun = Instant::now();
    assert_eq!(api.get("/health").0, 200, "the third connection is served once a silent one has ended");
    assert!(begun.elapsed() >= silence_max / 2, "both seats were taken, yet a third was served at once");
    drop(idle);
}
