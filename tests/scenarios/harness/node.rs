//! A node as a child process with directories of its own, stopped and cleaned away when dropped.
//! What it said is shown if the test fails.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use orbitkv::cli::http_client::HttpClient;
use orbitkv::client::{Client, ClientSettings};
use orbitkv::control::metadata::MetadataPage;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{Held, Place, Raw, Saver, WAIT, eventually};
use crate::faults::{Said, run};

/// What a node is started with. The defaults: 64 MiB of DRAM, no SSD, one shard.
#[derive(Clone, Debug)]
pub struct NodeOrder {
    name: String,
    dram: String,
    ssd: Option<String>,
    keeps_data: bool,
    shards: u16,
    cores: Option<String>,
    arguments: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    data_parent: PathBuf,
    place: Option<Place>,
}

impl Default for NodeOrder {
    fn default() -> NodeOrder {
        NodeOrder {
            name: "scenario".to_owned(),
            dram: "64mib".to_owned(),
            ssd: None,
            keeps_data: false,
            shards: 1,
            cores: None,
            arguments: Vec::new(),
            // Tests that break blocks on SSD say themselves who finds them.
            variables: vec![("ORBITKV_AUDIT".into(), "0s".into())],
            data_parent: PathBuf::from(env!("CARGO_TARGET_TMPDIR")),
            place: None,
        }
    }
}

impl NodeOrder {
    /// Another name than `scenario`.
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.to_owned();
        self
    }

    pub fn dram(mut self, size: &str) -> Self {
        self.dram = size.to_owned();
        self
    }

    /// An SSD tier of this size, in a data directory of its own.
    pub fn ssd(mut self, size: &str) -> Self {
        self.ssd = Some(size.to_owned());
        self
    }

    /// A data directory, although there may be nothing on SSD.
    pub fn in_data_directory(mut self) -> Self {
        self.keeps_data = true;
        self
    }

    /// Two shards, on cores 0 and 1, with DRAM for both.
    pub fn two_shards(mut self) -> Self {
        (self.shards, self.cores) = (2, Some("0,1".to_owned()));
        self.dram("128mib")
    }

    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    pub fn variable(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Directory below which the data directory is made: another file system, for example.
    pub fn data_below(mut self, parent: impl Into<PathBuf>) -> Self {
        self.data_parent = parent.into();
        self
    }

    /// In a network namespace of its own.
    pub fn at(mut self, place: &Place) -> Self {
        self.place = Some(place.clone());
        self
    }

    /// Starts it and waits until it is ready.
    ///
    /// # Panics
    /// If it does not become ready, with its own words.
    pub fn start(self) -> Node {
        self.try_start().unwrap_or_else(|ended| panic!("the node did not start: {ended:#?}"))
    }

    /// Starts it and waits until it is ready or has ended.
    pub fn try_start(self) -> Result<Node, Ended> {
        let run = TempDir::with_prefix("okv-").expect("a directory for the socket");
        fs::create_dir_all(&self.data_parent).expect("a place for data");
        let data = TempDir::with_prefix_in("node-", &self.data_parent).expect("a directory for data");
        self.try_start_in(Arc::new(run), Arc::new(data))
    }

    /// As [`Self::try_start`], in the directories of another node: what it holds is contended.
    pub fn try_start_beside(self, node: &Node) -> Result<Node, Ended> {
        self.try_start_in(node.run.clone(), node.data.clone())
    }

    /// As [`Self::try_start`], in the data directory of another node, with a socket of its own.
    pub fn try_start_in_data_of(self, node: &Node) -> Result<Node, Ended> {
        let run = TempDir::with_prefix("okv-").expect("a directory for the socket");
        self.try_start_in(Arc::new(run), node.data.clone())
    }

    fn try_start_in(self, run: Arc<TempDir>, data: Arc<TempDir>) -> Result<Node, Ended> {
        let mut node =
            Node { order: self, run, data, running: None, log: Log::default(), http: String::new() };
        node.spawn()?;
        Ok(node)
    }
}

/// A node that ended instead of becoming ready.
#[derive(Clone, Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub stderr: String,
}

/// A started node. At most one process at a time; directories outlive a restart.
pub struct Node {
    order: NodeOrder,
    run: Arc<TempDir>,
    data: Arc<TempDir>,
    running: Option<Running>,
    log: Log,
    http: String,
}

struct Running {
    child: Child,
    /// Not later than this.
    started: Instant,
    readers: Vec<JoinHandle<()>>,
}

/// What all processes of this node have said so far.
#[derive(Clone, Default)]
struct Log {
    stdout: Arc<Mutex<String>>,
    stderr: Arc<Mutex<String>>,
}

impl Node {
    /// The default node.
    pub fn start() -> Node {
        NodeOrder::default().start()
    }

    /// The program, where this node is.
    fn program(&self) -> Command {
        let program = env!("CARGO_BIN_EXE_orbitkv");
        self.order.place.as_ref().map_or_else(|| Command::new(program), |place| place.command(program))
    }

    fn spawn(&mut self) -> Result<(), Ended> {
        assert!(self.running.is_none(), "the earlier process has ended");
        let mut command = self.program();
        command.args(["node", "--node-id", &self.order.name, "--http", "127.0.0.1:0"]);
        command.arg("--engine-socket").arg(self.socket());
        command.args(["--dram", &self.order.dram, "--shards", &self.order.shards.to_string()]);
        if let Some(cores) = &self.order.cores {
            command.args(["--cores", cores]);
        }
        if let Some(ssd) = &self.order.ssd {
            command.args(["--ssd", ssd]);
        }
        if self.order.ssd.is_some() || self.order.keeps_data {
            command.arg("--data-dir").arg(self.data_dir());
        }
        command.args(&self.order.arguments);
        for name in ["ORBITKV_CONFIG", "ORBITKV_ETCD", "ORBITKV_HTTP_TOKEN_FILE"] {
            command.env_remove(name);
        }
        command.envs(self.order.variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the node's program starts");
        let started = Instant::now();
        let said = self.log.stdout.lock().unwrap().len();
        let stdout = follow(child.stdout.take().expect("piped"), &self.log.stdout);
        let stderr = follow(child.stderr.take().expect("piped"), &self.log.stderr);
        self.running = Some(Running { child, started, readers: vec![stdout, stderr] });
        let until = Instant::now() + WAIT * 3;
        loop {
            if let Some(status) = self.ended() {
                return Err(Ended { status, stderr: self.stderr() });
            }
            let stdout = self.stdout()[said..].to_owned();
            if stdout.contains("ready:") {
                let http = stdout.lines().find_map(|line| line.strip_prefix("http on "));
                self.http = http.unwrap_or_default().to_owned();
                return Ok(());
            }
            assert!(Instant::now() < until, "the node is not ready; it said: {stdout}\n{}", self.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Starts it again in the same directories, after it has ended.
    pub fn restart(&mut self) {
        self.spawn().unwrap_or_else(|ended| panic!("the node did not start again: {ended:#?}"));
    }

    pub fn socket(&self) -> PathBuf {
        self.socket_dir().join("engine.sock")
    }

    /// The socket's directory, which the node makes.
    pub fn socket_dir(&self) -> PathBuf {
        self.run.path().join("run")
    }

    /// A directory in `/tmp`, whose path is short enough for sockets.
    pub fn run_dir(&self) -> &Path {
        self.run.path()
    }

    pub fn data_dir(&self) -> PathBuf {
        self.data.path().to_owned()
    }

    /// `HOST:PORT` of its HTTP API.
    pub fn http(&self) -> &str {
        &self.http
    }

    pub fn stdout(&self) -> String {
        self.log.stdout.lock().unwrap().clone()
    }

    pub fn stderr(&self) -> String {
        self.log.stderr.lock().unwrap().clone()
    }

    /// Process id, while it runs.
    pub fn pid(&self) -> u32 {
        self.running.as_ref().expect("the node runs").child.id()
    }

    /// The process's status if it has ended by itself or by a signal.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let running = self.running.as_mut()?;
        let status = running.child.try_wait().expect("our child")?;
        let running = self.running.take().expect("it was there");
        running.readers.into_iter().for_each(|reader| reader.join().expect("a reader of output"));
        Some(status)
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid() as i32).expect("a process id");
        kill_process(pid, signal).expect("our child has not been reaped");
    }

    /// SIGSTOP, and waits until no thread of it runs.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.pid());
        let stopped = |stat: &str| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'));
        eventually("every thread stops", || {
            let mut threads = fs::read_dir(&tasks).expect("our child").flatten();
            let all = threads.all(|thread| {
                fs::read_to_string(thread.path().join("stat")).is_ok_and(|stat| stopped(&stat))
            });
            all.then_some(())
        });
    }

    /// SIGKILL, and waits.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        let status = self.await_end();
        assert_eq!(status.signal(), Some(9), "it ended before it was killed: {}", self.stderr());
    }

    /// SIGKILL, and a successor in the same directories; how long after the kill that one was started.
    pub fn kill_and_restart(&mut self) -> Duration {
        let killed = Instant::now();
        self.kill();
        self.restart();
        self.running.as_ref().expect("just started").started - killed
    }

    /// SIGTERM, and waits for the end it chooses.
    pub fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.await_end()
    }

    pub fn await_end(&mut self) -> ExitStatus {
        eventually("the node ends", || self.ended())
    }

    pub fn http_client(&self) -> HttpClient {
        HttpClient::new(&self.http).expect("the node printed its address")
    }

    /// `/cache/metadata`.
    pub fn metadata(&self) -> MetadataPage {
        let client = self.http_client();
        let ask = || eventually("/cache/metadata answers", || client.get_as("/cache/metadata").ok()).0;
        self.order.place.as_ref().map_or_else(ask, |place| place.within(ask))
    }

    /// Runs a command of the operator on its host: `orbitkv COMMAND --http ITS-ADDRESS MORE`.
    pub fn operator(&self, command: &str, more: &[&str]) -> Said {
        run(self.program().args([command, "--http", self.http()]).args(more))
    }

    /// `/cache/metadata` once it satisfies `condition`.
    ///
    /// # Panics
    /// If it does not in time; with the last page.
    pub fn await_metadata(&self, what: &str, condition: impl Fn(&MetadataPage) -> bool) -> MetadataPage {
        let until = Instant::now() + WAIT;
        loop {
            let page = self.metadata();
            if condition(&page) {
                return page;
            }
            assert!(Instant::now() < until, "/cache/metadata never showed that {what}: {page:#?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What engines hold now.
    pub fn held(&self) -> Held {
        Held::of(&self.metadata())
    }

    /// Waits until engines hold what `condition` says.
    pub fn await_held(&self, what: &str, condition: impl Fn(&Held) -> bool) -> Held {
        Held::of(&self.await_metadata(what, |page| condition(&Held::of(page))))
    }

    /// Waits until no engine has any claim on memory or a request.
    pub fn await_nothing_held(&self) {
        self.await_held("nothing is held", Held::is_nothing);
    }

    /// Resident bytes of the process, arena included.
    pub fn resident_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("the node runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a resident size");
        line.split_whitespace().next().and_then(|text| text.parse::<u64>().ok()).expect("a number") * 1024
    }

    /// Its resident memory has never been more than its bill.
    pub fn assert_within_bill(&self) {
        self.assert_within_bill_with_mapped(0);
    }

    /// As [`Self::assert_within_bill`], for a node that has mapped so much of other nodes' arenas: what it has read
    /// there is resident here, too, and on their bills.
    pub fn assert_within_bill_with_mapped(&self, mapped_bytes: u64) {
        let memory = self.metadata().memory;
        let most_bytes = memory.bill_bytes + mapped_bytes;
        let is_within = (1..=most_bytes).contains(&memory.rss_peak_bytes);
        assert!(is_within, "{} with {mapped_bytes} bytes mapped: {memory:?}", self.order.name);
    }

    /// An engine's client of this very process.
    pub fn client(&self) -> Client {
        Client::connect(ClientSettings::new(self.socket())).expect("the node lets us in")
    }

    /// A connection that has said Hello.
    pub fn raw(&self) -> Raw {
        Raw::greeted(&self.socket())
    }

    /// Proves that the node serves others: a fresh engine saves a block and gets its bytes back.
    pub fn assert_serves(&self) {
        let mut saver = Saver::connect(&self.socket(), "bystander");
        let key = saver::fresh_key();
        saver.save(&[key]);
        saver.check_ready(&[key]);
    }
}

use super::saver;

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(running) = &mut self.running {
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- the node said:\n{}--- and on stderr:\n{}---", self.stdout(), self.stderr());
        }
    }
}

fn follow(stream: impl std::io::Read + Send + 'static, log: &Arc<Mutex<String>>) -> JoinHandle<()> {
    let log = log.clone();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            let mut log = log.lock().unwrap();
            log.push_str(&String::from_utf8_lossy(&line));
            log.push('\n');
        }
    })
}
