//! Real etcd: one server or three, on loopback or in a network namespace, in a directory of their own, gone when
//! dropped.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A port that nobody has, with a free one behind it; no other call of this process gives either.
///
/// It is below those that the kernel gives to whoever names none: one that a process gives up is still free when its
/// successor wants it.
pub fn free_port() -> u16 {
    const SEARCHED: u32 = 10_000;
    static CALLS: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = std::process::id().wrapping_mul(97).wrapping_add(CALLS.fetch_add(1, Ordering::Relaxed));
        let port = (10_000 + 2 * (number % (SEARCHED / 2))) as u16;
        let is_free = |port| {
            TcpListener::bind(("127.0.0.1", port)).is_ok() && UdpSocket::bind(("127.0.0.1", port)).is_ok()
        };
        if is_free(port) && is_free(port + 1) {
            return port;
        }
    }
}

struct Server {
    name: String,
    client: u16,
    peer: u16,
    directory: PathBuf,
    child: Option<Child>,
}

pub struct Etcd {
    servers: Vec<Server>,
    flags: Vec<String>,
    /// Where its certificates and those of `etcdctl` are, if it wants some.
    certificates: Option<PathBuf>,
    token: String,
    host: Ipv4Addr,
    /// What programs are started with, to be where the servers are; nothing if that is here.
    entry: Vec<String>,
    // Dropped last.
    home: TempDir,
}

impl Etcd {
    pub fn start() -> Etcd {
        Etcd::of(1, &[])
    }

    /// That many servers, with these flags beside the usual.
    pub fn of(count: usize, flags: &[&str]) -> Etcd {
        Etcd::begin(count, flags, None, Ipv4Addr::LOCALHOST, Vec::new())
    }

    /// As many, on the address of a network namespace, which a program enters that is started with `entry`.
    pub fn placed(count: usize, flags: &[&str], host: Ipv4Addr, entry: Vec<String>) -> Etcd {
        Etcd::begin(count, flags, None, host, entry)
    }

    /// One server that wants a certificate of `ca.crt` and shows `etcd.crt`, all of them in this directory; `root.crt`
    /// is that of `etcdctl`.
    pub fn secured(certificates: &Path) -> Etcd {
        let file = |name: &str| certificates.join(name).display().to_string();
        let (certificate, key, authority) = (file("etcd.crt"), file("etcd.key"), file("ca.crt"));
        let flags = ["--cert-file", &certificate, "--key-file", &key, "--trusted-ca-file", &authority];
        let flags = [&flags[..], &["--client-cert-auth"]].concat();
        Etcd::begin(1, &flags, Some(certificates.to_owned()), Ipv4Addr::LOCALHOST, Vec::new())
    }

    fn begin(
        count: usize,
        flags: &[&str],
        certificates: Option<PathBuf>,
        host: Ipv4Addr,
        entry: Vec<String>,
    ) -> Etcd {
        let home = tempfile::tempdir().expect("a directory");
        let servers = (0..count).map(|number| Server {
            name: format!("etcd-{number}"),
            client: free_port(),
            peer: free_port(),
            directory: home.path().join(format!("data-{number}")),
            child: None,
        });
        let mut etcd = Etcd {
            servers: servers.collect(),
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            certificates,
            token: format!("test-{}", free_port()),
            host,
            entry,
            home,
        };
        (0..count).for_each(|server| etcd.launch(server));
        etcd.wait_ready();
        etcd
    }

    /// A program, where the servers are.
    fn command(&self, program: &str) -> Command {
        let mut words = self.entry.iter().map(String::as_str).chain([program]);
        let mut command = Command::new(words.next().expect("the program at least"));
        command.args(words);
        command
    }

    fn initial_cluster(&self) -> String {
        let host = self.host;
        let all = self.servers.iter().map(|server| format!("{}=http://{host}:{}", server.name, server.peer));
        all.collect::<Vec<_>>().join(",")
    }

    /// Starts a server that does not run.
    pub fn launch(&mut self, server: usize) {
        let cluster = self.initial_cluster();
        let Server { name, client, peer, directory, .. } = &self.servers[server];
        let (client, peer) = (self.client_url(*client), format!("http://{}:{peer}", self.host));
        let child = self
            .command("etcd")
            .args(["--name", name, "--data-dir"])
            .arg(directory)
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &cluster, "--initial-cluster-token", &self.token])
            .args(["--log-level", "error"])
            .args(&self.flags)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd (Debian: etcd-server) is installed");
        self.servers[server].child = Some(child);
    }

    /// Waits until it answers reads that need a quorum.
    pub fn wait_ready(&self) {
        let begun = Instant::now();
        while self.ctl_result(&["get", "x"]).is_none() {
            assert!(begun.elapsed() < Duration::from_secs(60), "etcd does not answer");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn client_url(&self, port: u16) -> String {
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        format!("{scheme}://{}:{port}", self.host)
    }

    pub fn url(&self, server: usize) -> String {
        self.client_url(self.servers[server].client)
    }

    pub fn urls(&self) -> Vec<String> {
        (0..self.servers.len()).map(|server| self.url(server)).collect()
    }

    pub fn address(&self, server: usize) -> SocketAddr {
        (self.host, self.servers[server].client).into()
    }

    /// The answer of `etcdctl`, or none if it failed.
    pub fn ctl_result(&self, arguments: &[&str]) -> Option<String> {
        let mut command = self.command("etcdctl");
        if let Some(certificates) = &self.certificates {
            let files = [("--cacert", "ca.crt"), ("--cert", "root.crt"), ("--key", "root.key")];
            for (flag, file) in files {
                command.arg(flag).arg(certificates.join(file));
            }
        }
        let output = command
            .env("ETCDCTL_API", "3")
            .args(["--command-timeout=3s", "--endpoints", &self.urls().join(",")])
            .args(arguments)
            .output()
            .expect("etcdctl (Debian: etcd-client) is installed");
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    pub fn ctl(&self, arguments: &[&str]) -> String {
        self.ctl_result(arguments).unwrap_or_else(|| panic!("etcdctl {arguments:?} failed"))
    }

    pub fn value(&self, key: &str) -> String {
        self.ctl(&["get", "--print-value-only", key])
    }

    pub fn revision(&self) -> u64 {
        let text = self.ctl(&["get", "x", "--write-out=json"]);
        let answer: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        answer["header"]["revision"].as_u64().expect("a revision")
    }

    fn signal(&self, server: usize, signal: rustix::process::Signal) {
        let child = self.servers[server].child.as_ref().expect("it runs");
        let process = rustix::process::Pid::from_child(child);
        rustix::process::kill_process(process, signal).expect("our child");
    }

    pub fn runs(&self, server: usize) -> bool {
        self.servers[server].child.is_some()
    }

    pub fn pause(&self, server: usize) {
        self.signal(server, rustix::process::Signal::STOP);
    }

    pub fn resume(&self, server: usize) {
        self.signal(server, rustix::process::Signal::CONT);
    }

    pub fn kill(&mut self, server: usize) {
        if let Some(mut child) = self.servers[server].child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// The number of the server that leads.
    pub fn leader(&self) -> usize {
        (0..self.servers.len())
            .find(|&server| {
                let output = self
                    .command("etcdctl")
                    .env("ETCDCTL_API", "3")
                    .args(["--endpoints", &self.url(server), "endpoint", "status", "--write-out=json"])
                    .output()
                    .expect("etcdctl");
                let all: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
                let status = &all[0]["Status"];
                status["leader"] == status["header"]["member_id"]
            })
            .expect("one of them leads")
    }

    /// Keeps a copy of what it holds now.
    pub fn save_copy(&self) -> PathBuf {
        let file = self.home.path().join("copy.db");
        self.ctl(&["snapshot", "save", &file.display().to_string()]);
        file
    }

    /// Stops its one server and starts it from the copy, with the same identity.
    pub fn restore(&mut self, copy: &Path) {
        self.kill(0);
        let directory = self.home.path().join(format!("restored-{}", free_port()));
        let Server { name, peer, .. } = &self.servers[0];
        let peer = format!("http://{}:{peer}", self.host);
        let status = self
            .command("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["snapshot", "restore"])
            .arg(copy)
            .args(["--name", name, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &self.initial_cluster(), "--initial-cluster-token", &self.token])
            .arg("--data-dir")
            .arg(&directory)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        assert!(status.expect("etcdctl").success());
        self.servers[0].directory = directory;
        self.launch(0);
        self.wait_ready();
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        (0..self.servers.len()).for_each(|server| self.kill(server));
    }
}

/// A TCP relay that can be cut and pointed elsewhere.
pub struct Relay {
    pub port: u16,
    state: Arc<Mutex<RelayState>>,
}

struct RelayState {
    target: Option<SocketAddr>,
    streams: Vec<TcpStream>,
}

impl Relay {
    pub fn to(target: SocketAddr) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let state = Arc::new(Mutex::new(RelayState { target: Some(target), streams: Vec::new() }));
        let shared = Arc::clone(&state);
        // Ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut state = shared.lock().expect("no panics");
                let Some(target) = state.target else { continue };
                let Ok(far) = TcpStream::connect(target) else { continue };
                for (mut from, mut to) in [(&stream, &far), (&far, &stream)].map(|(from, to)| {
                    (from.try_clone().expect("descriptors"), to.try_clone().expect("descriptors"))
                }) {
                    std::thread::spawn(move || {
                        let mut bytes = [0; 16 * 1024];
                        while let Ok(read @ 1..) = from.read(&mut bytes) {
                            if to.write_all(&bytes[..read]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                state.streams.extend([stream, far]);
            }
        });
        Relay { port, state }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Ends every connection, and from now on leads there, or nowhere.
    pub fn point(&self, target: Option<SocketAddr>) {
        let mut state = self.state.lock().expect("no panics");
        state.target = target;
        state.streams.drain(..).for_each(|stream| {
            let _ = stream.shutdown(Shutdown::Both);
        });
    }
}
