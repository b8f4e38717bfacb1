//! A standalone node around a replay: started as a child of this very program, stopped and cleaned
//! away afterwards.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use thiserror::Error;

use crate::client::{Client, ClientError, ClientSettings};
use crate::quantity::ByteSize;

/// Time a node may take to allocate its arena and its SSD file.
const START_WAIT: Duration = Duration::from_secs(120);
/// Time a node may take to stop after SIGTERM.
const STOP_WAIT: Duration = Duration::from_secs(60);
/// One attempt to connect while the node starts.
const CONNECT_WAIT: Duration = Duration::from_millis(200);
/// What is shown of the node's own words if it fails.
const LOG_BYTES_TOLD: usize = 4096;
/// Settings of the operator's own node that must not reach ours.
const FOREIGN_VARIABLES: [&str; 3] = ["ORBITKV_CONFIG", "ORBITKV_ETCD", "ORBITKV_HTTP_TOKEN_FILE"];
/// Below this a node cannot have several shards: it gets one.
const ONE_SHARD_BYTES: u64 = 1 << 30;

/// What the node gets.
#[derive(Clone, Debug)]
pub struct NodeOrder {
    /// Host memory for blocks.
    pub dram: ByteSize,
    /// SSD space for blocks; 0 for none.
    pub ssd: ByteSize,
    /// Directory below which a temporary one is made for the SSD file.
    pub data_parent: PathBuf,
}

/// Why there is no node.
#[derive(Debug, Error)]
pub enum NodeFailure {
    /// A directory or the program could not be had.
    #[error("{what} {path:?}: {error}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The kernel's answer.
        error: io::Error,
    },
    /// It ended by itself.
    #[error("the node ended with {status} instead of starting; it said:\n{log}")]
    Ended {
        /// How.
        status: ExitStatus,
        /// The end of its output.
        log: String,
    },
    /// It runs and does not answer.
    #[error("the node did not answer within {START_WAIT:?}; it said:\n{log}")]
    Silent {
        /// The end of its output.
        log: String,
    },
    /// It answers and cannot be used.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// A running node; stopped when dropped.
pub struct ChildNode {
    child: Child,
    socket: PathBuf,
    run_directory: PathBuf,
    data_directory: PathBuf,
}

impl ChildNode {
    /// Starts a node and waits until it answers.
    ///
    /// # Errors
    /// [`NodeFailure`], with the node's own words; nothing is left behind.
    pub fn start(order: &NodeOrder) -> Result<ChildNode, NodeFailure> {
        // The socket's path is short of room, so it does not lie below the data.
        let run_directory = own_directory(&std::env::temp_dir())?;
        let data_directory = own_directory(&order.data_parent).inspect_err(|_| {
            let _ = fs::remove_dir_all(&run_directory);
        })?;
        let socket = run_directory.join("engine.sock");
        let spawned = spawn(order, &run_directory, &data_directory, &socket);
        let child = spawned.inspect_err(|_| {
            let _ = fs::remove_dir_all(&run_directory);
            let _ = fs::remove_dir_all(&data_directory);
        })?;
        let mut node = ChildNode { child, socket, run_directory, data_directory };
        node.await_answer()?;
        Ok(node)
    }

    /// Its engine socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    fn await_answer(&mut self) -> Result<(), NodeFailure> {
        let started = Instant::now();
        loop {
            let settings = ClientSettings { connect_wait: CONNECT_WAIT, ..ClientSettings::new(&self.socket) };
            match Client::connect(settings) {
                Ok(_) => return Ok(()),
                Err(ClientError::Unreachable { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(NodeFailure::Ended { status, log: self.log() });
            }
            if started.elapsed() > START_WAIT {
                return Err(NodeFailure::Silent { log: self.log() });
            }
        }
    }

    fn log(&self) -> String {
        let log = fs::read(log_path(&self.run_directory)).unwrap_or_default();
        let told = &log[log.len().saturating_sub(LOG_BYTES_TOLD)..];
        String::from_utf8_lossy(told).trim_end().to_owned()
    }
}

impl Drop for ChildNode {
    fn drop(&mut self) {
        end_child(&mut self.child);
        let _ = fs::remove_dir_all(&self.run_directory);
        let _ = fs::remove_dir_all(&self.data_directory);
    }
}

/// Asks a node that we started to end, and waits; the last resort after a minute is SIGKILL.
pub fn end_child(child: &mut Child) {
    if matches!(child.try_wait(), Ok(Some(_))) {
        return;
    }
    let id = Pid::from_raw(child.id() as i32).expect("a child has a process id");
    // It is our unreaped child, so the number is still its own.
    let _ = kill_process(id, Signal::TERM);
    let until = Instant::now() + STOP_WAIT;
    while Instant::now() < until {
        if matches!(child.try_wait(), Ok(Some(_))) {
            return;
        }
        sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
}

fn log_path(run_directory: &Path) -> PathBuf {
    run_directory.join("node.log")
}

/// Makes a directory of this process below `parent`, and removes those that killed runs left.
fn own_directory(parent: &Path) -> Result<PathBuf, NodeFailure> {
    const PREFIX: &str = "orbitkv-replay-";
    let failed = |what, path: &Path, error| NodeFailure::System { what, path: path.to_owned(), error };
    fs::create_dir_all(parent).map_err(|error| failed("making", parent, error))?;
    for entry in fs::read_dir(parent).map_err(|error| failed("reading", parent, error))?.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)).and_then(|id| id.parse().ok());
        if let Some(owner) = owner.and_then(Pid::from_raw)
            && rustix::process::test_kill_process(owner) == Err(rustix::io::Errno::SRCH)
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let path = parent.join(format!("{PREFIX}{}", std::process::id()));
    // A directory of that name is of a dead process that had our number.
    let _ = fs::remove_dir_all(&path);
    DirBuilder::new().mode(0o700).create(&path).map_err(|error| failed("making", &path, error))?;
    path.canonicalize().map_err(|error| failed("resolving", &path, error))
}

fn spawn(order: &NodeOrder, run: &Path, data: &Path, socket: &Path) -> Result<Child, NodeFailure> {
    let program = std::env::current_exe().map_err(|error| NodeFailure::System {
        what: "finding the program",
        path: PathBuf::from("orbitkv"),
        error,
    })?;
    let log = log_path(run);
    let failed = |error| NodeFailure::System { what: "starting", path: program.clone(), error };
    let output = File::create(&log).map_err(failed)?;
    let mut command = Command::new(&program);
    command.args(["node", "--node-id", "replay", "--http", "off"]);
    command.arg("--engine-socket").arg(socket).arg("--data-dir").arg(data);
    command.args(["--dram", &order.dram.to_string(), "--ssd", &order.ssd.to_string()]);
    let smallest = if order.ssd.0 == 0 { order.dram } else { order.dram.min(order.ssd) };
    if smallest.0 < ONE_SHARD_BYTES {
        command.args(["--shards", "1"]);
    }
    FOREIGN_VARIABLES.iter().for_each(|name| _ = command.env_remove(name));
    let errors = output.try_clone().map_err(failed)?;
    command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn().map_err(failed)
}
