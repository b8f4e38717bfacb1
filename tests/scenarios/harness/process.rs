//! An engine as a process of its own: this very test program, started again. It connects to the
//! node whenever somebody connects to it, and carries bytes and descriptors in both directions. The node
//! sees that process as its engine, and the test can stop and kill it, while every byte is still the test's.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use orbitkv_native::engine_socket::{recv_with_fds, send_with_fds};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::saver::{BLOCK_BYTES, block, registration};
use super::{Node, Raw, eventually};

/// Where the process finds the node's socket; without it this program is a test run.
const NODE_VARIABLE: &str = "SCENARIO_ENGINE_NODE";

/// Where it listens.
const LISTEN_VARIABLE: &str = "SCENARIO_ENGINE_LISTEN";

/// The test that becomes the process.
const ENTRY: &str = "harness::process::an_engine_process_carries_bytes_and_its_death_is_seen";

/// An engine process.
pub struct EngineProcess {
    child: Child,
    directory: TempDir,
}

impl EngineProcess {
    pub fn start(node: &Node) -> EngineProcess {
        let program = std::env::current_exe().expect("this program has a path");
        EngineProcess::spawn(&node.socket(), Command::new(program))
    }

    /// As another user.
    pub fn start_as(node: &Node, uid: u32) -> EngineProcess {
        EngineProcess::start_as_at(node, uid, &node.socket())
    }

    /// As another user, who connects to this socket. The program is copied to where that user can run it.
    pub fn start_as_at(node: &Node, uid: u32, socket: &Path) -> EngineProcess {
        let program = node.run_dir().join("engine-program");
        let own = std::env::current_exe().expect("this program has a path");
        std::fs::copy(own, &program).expect("room for a copy of this program");
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("our own file");
        let mut command = Command::new(&program);
        command.uid(uid).current_dir("/");
        EngineProcess::spawn(socket, command)
    }

    fn spawn(socket: &Path, mut command: Command) -> EngineProcess {
        let directory = TempDir::with_prefix("okv-engine-").expect("a directory for a socket");
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o777)).expect("our own");
        let listen = directory.path().join("s");
        command.args(["--exact", ENTRY, "--nocapture"]);
        command.env(NODE_VARIABLE, socket).env(LISTEN_VARIABLE, &listen);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let child = command.spawn().expect("this program starts again");
        let process = EngineProcess { child, directory };
        eventually("the engine process listens", || listen.exists().then_some(()));
        process
    }

    /// Connect here to reach the node as this process.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("s")
    }

    /// A connection of this process that has said Hello.
    pub fn raw(&self) -> Raw {
        Raw::greeted(&self.socket())
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a process id");
        kill_process(pid, signal).expect("our child has not been reaped");
    }

    /// Breaks all connections of the process, which lives on.
    pub fn cut(&mut self) {
        self.child.stdin.as_mut().expect("piped").write_all(b"c").expect("the process reads");
    }

    /// SIGKILL, and waits.
    pub fn kill(&mut self) {
        self.child.kill().expect("our child");
        self.child.wait().expect("our child");
    }
}

impl Drop for EngineProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the process does until its parent is gone.
fn carry(node: &Path, listen: &Path) -> ! {
    let carried = Arc::new(Mutex::new(Vec::<UnixStream>::new()));
    let to_cut = carried.clone();
    std::thread::spawn(move || {
        // A byte cuts the connections; the end of the stream is the end of the parent.
        while let Ok(1..) = std::io::stdin().read(&mut [0]) {
            to_cut.lock().unwrap().drain(..).for_each(|stream| _ = stream.shutdown(Shutdown::Both));
        }
        std::process::exit(0);
    });
    // The name appears once it listens.
    let unready = listen.with_extension("unready");
    let listener = UnixListener::bind(&unready).expect("a fresh directory");
    std::fs::rename(&unready, listen).expect("a fresh directory");
    loop {
        let Ok((near, _)) = listener.accept() else { continue };
        // A node that refuses us shows as a connection that ends at once.
        let Ok(far) = UnixStream::connect(node) else { continue };
        let ends = (near.try_clone(), far.try_clone());
        let (Ok(near_again), Ok(far_again)) = ends else { continue };
        carried.lock().unwrap().extend(far.try_clone());
        std::thread::spawn(move || pump(&near, &far));
        std::thread::spawn(move || pump(&far_again, &near_again));
    }
}

fn pump(from: &UnixStream, to: &UnixStream) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok((count @ 1.., fds)) = recv_with_fds(from.as_fd(), &mut buffer) {
        let mut fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let mut sent = 0;
        while sent < count {
            match send_with_fds(to.as_fd(), &buffer[sent..count], &fds) {
                Ok(more) => sent += more,
                Err(_) => break,
            }
            fds.clear();
        }
        if sent < count {
            break;
        }
    }
    // Either end of a broken connection is told.
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

#[test]
fn an_engine_process_carries_bytes_and_its_death_is_seen() {
    if let (Some(node), Some(listen)) = (std::env::var_os(NODE_VARIABLE), std::env::var_os(LISTEN_VARIABLE)) {
        carry(Path::new(&node), Path::new(&listen));
    }
    let node = Node::start();
    let mut process = EngineProcess::start(&node);
    let mut raw = process.raw();
    assert_eq!(raw.fds.len(), 1, "the arena's descriptor came along");
    raw.register(&registration("engine"));
    raw.reserve(&[block(1).0], BLOCK_BYTES);
    node.await_held("one engine is connected", |held| held.connections == 1);
    process.kill();
    raw.expect_end();
    // The end of its socket may be seen before its own.
    node.await_metadata("the process is gone", |page| {
        let engine = page.shards[0].engine;
        engine.connections == 0 && engine.process_deaths == 1
    });
    node.assert_serves();
}
