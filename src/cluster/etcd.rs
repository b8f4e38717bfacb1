//! An etcd of one member on loopback, whose data goes with the run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::child::ChildProcess;
use super::directory::OwnDirectory;
use super::ports::Ports;
use super::{ClusterFailure, Wait};
use crate::cli::http_client::HttpClient;
use crate::control::signals::StopSignals;

/// Time etcd may take until it answers.
const START_WAIT: Duration = Duration::from_secs(60);
/// Longest silence of an etcd that is asked for its health.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
/// The program.
const PROGRAM: &str = "etcd";

/// A running etcd.
pub(super) struct EtcdProcess {
    pub(super) process: ChildProcess,
    client: u16,
    peer: u16,
}

impl EtcdProcess {
    /// Starts it; it does not answer yet.
    pub(super) fn spawn(run: &OwnDirectory, ports: &mut Ports) -> Result<EtcdProcess, ClusterFailure> {
        let (client, peer) = (ports.stream()?, ports.stream()?);
        EtcdProcess::spawn_at(run, client, peer)
    }

    /// Starts one that has ended again, with what it holds.
    pub(super) fn spawn_again(&self, run: &OwnDirectory) -> Result<EtcdProcess, ClusterFailure> {
        EtcdProcess::spawn_at(run, self.client, self.peer)
    }

    fn spawn_at(run: &OwnDirectory, client: u16, peer: u16) -> Result<EtcdProcess, ClusterFailure> {
        let program = program().ok_or(ClusterFailure::NoEtcd)?;
        let [client_url, peer_url] = [client, peer].map(|port| format!("http://127.0.0.1:{port}"));
        let mut command = Command::new(program);
        command.args(["--name", "local", "--data-dir"]).arg(run.kept("etcd")?);
        command.args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url]);
        command.args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url]);
        command.args(["--initial-cluster", &format!("local={peer_url}"), "--log-level", "error"]);
        // Settings of another etcd must not reach ours.
        let foreign = std::env::vars_os().map(|(name, _)| name);
        foreign
            .filter(|name| name.to_string_lossy().starts_with("ETCD_"))
            .for_each(|name| _ = command.env_remove(name));
        let process = ChildProcess::spawn("etcd", command, run.path().join("etcd.log"))?;
        Ok(EtcdProcess { process, client, peer })
    }

    /// Where clients find it.
    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.client)
    }

    /// Waits until it takes writes.
    pub(super) fn await_healthy(&mut self, signals: &StopSignals) -> Result<(), ClusterFailure> {
        let address = format!("127.0.0.1:{}", self.client);
        let client = HttpClient::new(&address).expect("an address with a port").with_patience(ANSWER_WAIT);
        let wait = Wait::new(signals, START_WAIT);
        loop {
            let healthy = client.get("/health").is_ok_and(|health| health["health"] == "true");
            if healthy {
                return Ok(());
            }
            wait.turn(&mut self.process)?;
        }
    }
}

/// The program in `PATH`.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(PROGRAM)).find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}
