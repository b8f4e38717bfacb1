//! A node of its own for each part of a run: started as a process on its core, asked over HTTP what it
//! did, watched through `/proc`, stopped at the end.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use orbitkv::cli::http_client::HttpClient;
use orbitkv::client::{Client, ClientSettings, ViewPopulate};
use orbitkv::cluster::end_child;
use orbitkv::control::metadata::MetadataPage;
use orbitkv::quantity::ByteSize;
use orbitkv_native::arena::PagePreference;
use tempfile::TempDir;

use super::Context;
use crate::{Failure, processes};

const START_WAIT: Duration = Duration::from_secs(120);
const LOG_BYTES_TOLD: usize = 2_048;

/// A running node; stopped when dropped.
pub struct Node {
    child: Child,
    run: TempDir,
    data: PathBuf,
    http: HttpClient,
}

impl Node {
    /// Starts a node of one shard on the node's core and waits until it serves.
    ///
    /// # Errors
    /// If there is no `orbitkv` beside this program, or the node ends or stays silent; with its own words.
    pub fn start(context: &Context, dram_bytes: u64, ssd_bytes: u64) -> Result<Node, Failure> {
        let program = processes::program()?;
        // The socket's path is short of room, so it does not lie below the data.
        let run = tempfile::Builder::new().prefix("orbitkv-bench-").tempdir()?;
        let data = context.workplace.path().join("node");
        fs::create_dir_all(&data)?;
        let output = File::create(run.path().join("node.log"))?;
        let mut command = Command::new(&program);
        command.args(["node", "--node-id", "bench", "--http", "127.0.0.1:0", "--layout", "shared"]);
        command.args(["--shards", "1", "--cores", &context.node_core.to_string()]);
        command.args([
            "--dram",
            &ByteSize(dram_bytes).to_string(),
            "--ssd",
            &ByteSize(ssd_bytes).to_string(),
        ]);
        command.args(["--ssd-depth", &context.plan.ssd_depth.to_string()]);
        command.arg("--data-dir").arg(&data).arg("--engine-socket").arg(run.path().join("engine.sock"));
        // Settings of the operator's own node must not reach ours.
        let foreign = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ORBITKV_"));
        foreign.for_each(|(name, _)| _ = command.env_remove(name));
        let errors = output.try_clone()?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let child = context.unpinned(|| command.spawn())??;
        let http = HttpClient::new("127.0.0.1:1")?;
        let mut node = Node { child, run, data, http };
        let address = node.await_line("http on ")?;
        node.await_line("ready: ")?;
        node.http = HttpClient::new(&address)?;
        Ok(node)
    }

    /// Waits until the node has said a line that begins so, and gives the rest of it.
    fn await_line(&mut self, beginning: &str) -> Result<String, Failure> {
        let started = Instant::now();
        loop {
            let log = self.log();
            if let Some(rest) = log.lines().find_map(|line| line.strip_prefix(beginning)) {
                return Ok(rest.to_owned());
            }
            let status = self.child.try_wait()?;
            if status.is_some() || started.elapsed() > START_WAIT {
                let told = &log[log.floor_char_boundary(log.len().saturating_sub(LOG_BYTES_TOLD))..];
                let what =
                    status.map_or("does not start".to_owned(), |status| format!("ended with {status}"));
                return Err(format!("the node {what}; it said:\n{}", told.trim_end()).into());
            }
            sleep(Duration::from_millis(5));
        }
    }

    fn log(&self) -> String {
        let bytes = fs::read(self.run.path().join("node.log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A connection, with its view of the arena mapped whole.
    ///
    /// # Errors
    /// As the client says.
    pub fn connect(&self) -> Result<Client, Failure> {
        let settings = ClientSettings::new(self.run.path().join("engine.sock"));
        Ok(Client::connect(ClientSettings { populate: ViewPopulate::AtMap, ..settings })?)
    }

    /// What the node says about itself.
    ///
    /// # Errors
    /// If it gives no answer.
    pub fn metadata(&self) -> Result<MetadataPage, Failure> {
        Ok(self.http.get_as("/cache/metadata")?.0)
    }

    /// The preference that gets another arena the same pages as the node's.
    ///
    /// # Errors
    /// If the node gives no answer.
    pub fn same_pages(&self) -> Result<PagePreference, Failure> {
        match self.metadata()?.identity.arena_pages.as_str() {
            "small" => Ok(PagePreference::Small),
            "thp" => Ok(PagePreference::Thp),
            "hugetlb" => Ok(PagePreference::HugeTlb),
            other => Err(format!("the node names unknown pages: {other}").into()),
        }
    }

    /// Bytes the process has caused to be read from disks so far.
    pub fn disk_read_bytes(&self) -> u64 {
        let text = fs::read_to_string(self.proc().join("io")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("read_bytes: "));
        line.and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Time all of its threads have run so far.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn processor_time(&self) -> Result<Duration, Failure> {
        processes::processor_time(self.child.id())
    }

    fn proc(&self) -> PathBuf {
        Path::new("/proc").join(self.child.id().to_string())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        end_child(&mut self.child);
        let _ = fs::remove_dir_all(&self.data);
    }
}
