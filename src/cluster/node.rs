//! A node as a process of ours, with directories and addresses of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use super::child::ChildProcess;
use super::directory::OwnDirectory;
use super::{ClusterFailure, ClusterOrder, Wait};
use crate::cli::http_client::HttpClient;
use crate::control::metadata::MetadataPage;
use crate::control::signals::StopSignals;
use crate::quantity::ByteSize;
use crate::settings::CoreList;

/// Time a node may take to allocate its arena and its SSD file.
const START_WAIT: Duration = Duration::from_secs(120);
/// Longest silence of a node that is asked what it does.
const ANSWER_WAIT: Duration = Duration::from_secs(2);
/// The one variable of the operator's own node that reaches ours.
const LOG_VARIABLE: &str = "ORBITKV_LOG";

/// What a node gets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeOrder {
    /// Its name.
    pub name: String,
    /// Host memory for blocks.
    pub dram: ByteSize,
    /// SSD space for blocks; 0 for none.
    pub ssd: ByteSize,
    /// Shards; none for the node's own default.
    pub shards: Option<u16>,
    /// Cores of the shards, which device I/O then shares; none for the node's own choice.
    pub cores: Option<CoreList>,
    /// Its bounds as a member; none if it is standalone.
    pub member: Option<MemberOrder>,
    /// Further flags of `orbitkv node`, for a measurement.
    pub flags: Vec<String>,
}

/// What a node of a cluster gets beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberOrder {
    /// Change journal.
    pub journal: ByteSize,
    /// Index of peers' blocks.
    pub index: ByteSize,
    /// Receive windows.
    pub receive: ByteSize,
    /// Whether it shares memory with the other nodes of this machine.
    pub shares_memory: bool,
}

/// Where a member finds the others, and they find it.
pub(super) struct Seat<'a> {
    pub(super) etcd: &'a str,
    pub(super) cluster: &'a str,
    /// UDP port of its shard 0.
    pub(super) port: u16,
}

/// A started node.
pub struct NodeProcess {
    pub(super) process: ChildProcess,
    socket: PathBuf,
    http: Option<HttpClient>,
    http_address: String,
    /// Whether its end was told, or was on purpose.
    pub(super) told: bool,
}

impl NodeProcess {
    pub(super) fn spawn(
        whole: &ClusterOrder,
        order: &NodeOrder,
        seat: Option<Seat<'_>>,
        run: &OwnDirectory,
        data: Option<&OwnDirectory>,
    ) -> Result<NodeProcess, ClusterFailure> {
        let failed = |error| ClusterFailure::System {
            what: "finding the program",
            path: PathBuf::from("orbitkv"),
            error,
        };
        let program = whole.program.clone().map_or_else(std::env::current_exe, Ok).map_err(failed)?;
        // The socket's path is short of room, so it does not lie below the data.
        let own = run.kept(&order.name)?;
        let socket = own.join("engine.sock");
        let mut command = Command::new(program);
        command.args(["node", "--node-id", &order.name, "--http", "127.0.0.1:0"]);
        command.arg("--engine-socket").arg(&socket);
        command.args(["--dram", &order.dram.to_string(), "--ssd", &order.ssd.to_string()]);
        match data.filter(|_| order.ssd.0 > 0) {
            Some(data) => _ = command.arg("--data-dir").arg(data.kept(&order.name)?),
            // Its key and its epoch do not need a real disk.
            None if order.member.is_some() => _ = command.arg("--data-dir").arg(own.join("data")),
            None => {}
        }
        if let Some(shards) = order.shards {
            command.args(["--shards", &shards.to_string()]);
        }
        if let Some(cores) = &order.cores {
            command.args(["--cores", &cores.to_string(), "--layout", "shared"]);
        }
        if let (Some(member), Some(seat)) = (&order.member, seat) {
            command.args(["--etcd", seat.etcd, "--cluster", seat.cluster]);
            command.args(["--peer-addr", &format!("127.0.0.1:{}", seat.port)]);
            command.args(["--journal", &member.journal.to_string()]);
            command.args(["--index-budget", &member.index.to_string()]);
            command.args(["--receive-budget", &member.receive.to_string()]);
            command.args(["--transports", if member.shares_memory { "shm,quic" } else { "quic" }]);
        }
        command.args(&order.flags);
        let foreign = std::env::vars_os().map(|(name, _)| name);
        foreign
            .filter(|name| name.to_string_lossy().starts_with("ORBITKV_") && name != LOG_VARIABLE)
            .for_each(|name| _ = command.env_remove(name));
        let log = run.path().join(format!("{}.log", order.name));
        let process = ChildProcess::spawn(&order.name, command, log)?;
        Ok(NodeProcess { process, socket, http: None, http_address: String::new(), told: false })
    }

    /// Waits until it serves.
    pub(super) fn await_ready(&mut self, signals: &StopSignals) -> Result<(), ClusterFailure> {
        let wait = Wait::new(signals, START_WAIT);
        while self.process.line("ready: ").is_none() {
            wait.turn(&mut self.process)?;
        }
        // It says so before it is ready.
        self.http_address = self.process.line("http on ").unwrap_or_default();
        self.http = HttpClient::new(&self.http_address).ok().map(|http| http.with_patience(ANSWER_WAIT));
        Ok(())
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.process.name()
    }

    /// Number of its process.
    #[must_use]
    pub fn process_id(&self) -> u32 {
        self.process.id()
    }

    /// Its engine socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// `HOST:PORT` of its HTTP API.
    #[must_use]
    pub fn http_address(&self) -> &str {
        &self.http_address
    }

    /// Its status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.ended()
    }

    /// That it has ended, with its last words; once.
    pub fn obituary(&mut self) -> Option<String> {
        let status = self.process.ended().filter(|_| !self.told)?;
        self.told = true;
        Some(super::obituary(self.name(), status, &self.process.last_words()))
    }

    /// What it says about itself; nothing if it does not answer soon.
    #[must_use]
    pub fn page(&self) -> Option<MetadataPage> {
        self.http.as_ref()?.get_as("/cache/metadata").ok().map(|(page, _)| page)
    }
}
