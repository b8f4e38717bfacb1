//! The machine fails the node: no io_uring, too little locked memory, or another daemon in its place.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use orbitkv::cli::http_client::HttpClient;
use orbitkv::control::metadata::MetadataPage;
use tempfile::TempDir;

use super::{Said, orbitkv, ring, run};
use crate::harness::{Node, NodeOrder, Raw, eventually, raw};

/// A user without privileges.
const NOBODY: u32 = 65_534;

/// The directories of an attempt, on a disk.
struct Place {
    run: TempDir,
    data: TempDir,
}

impl Place {
    fn new() -> Place {
        let data = TempDir::with_prefix_in("place-", env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        Place { run: TempDir::with_prefix("okv-").expect("a directory"), data }
    }

    /// The arguments of a small node here.
    fn arguments(&self) -> Vec<String> {
        let text = |path: &Path| path.to_str().expect("test paths are text").to_owned();
        let words =
            ["node", "--node-id", "attempt", "--http", "127.0.0.1:0", "--shards", "1", "--dram", "64mib"];
        let mut words: Vec<String> = words.map(str::to_owned).to_vec();
        words.extend(["--engine-socket".to_owned(), text(&self.run.path().join("engine.sock"))]);
        words.extend(["--ssd".to_owned(), "64mib".to_owned()]);
        words.extend(["--data-dir".to_owned(), text(&self.data.path().join("data"))]);
        words
    }
}

#[test]
fn without_io_uring_a_node_names_what_forbids_it() {
    let place = Place::new();
    for ssd in [true, false] {
        let mut arguments = place.arguments();
        if !ssd {
            arguments.truncate(arguments.len() - 4);
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_orbitkv"));
        let said = run(command.args(&arguments).env("LD_PRELOAD", ring::preload()).env("RING_DENIED", "1"));
        said.refused(3, &["io_uring", "Operation not permitted", "kernel.io_uring_disabled", "seccomp"]);
        assert!(!said.stdout.contains("ready"), "{said:#?}");
        assert!(!place.run.path().join("engine.sock").exists(), "the socket is gone again");
    }
}

#[test]
fn an_unprivileged_node_with_little_locked_memory_names_the_limit() {
    let place = Place::new();
    // To where that user can run it, and write.
    let program = place.run.path().join("orbitkv");
    fs::copy(env!("CARGO_BIN_EXE_orbitkv"), &program).expect("room for a copy");
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("our own file");
    for directory in [&place.run, &place.data] {
        fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).expect("our own directory");
        chown(directory.path(), Some(NOBODY), Some(NOBODY)).expect("tests run as root");
    }
    let mut arguments = place.arguments();
    // Below the build's own directories that user may not reach anything: the data goes beside the socket.
    let data = arguments.last_mut().expect("the data directory");
    *data = place.run.path().join("data").to_str().expect("text").to_owned();
    let unprivileged = |arguments: &[String]| {
        let mut command = Command::new("prlimit");
        command.args(["--memlock=1048576:1048576", "setpriv", "--reuid", "65534", "--regid", "65534"]);
        command.arg("--clear-groups").arg(&program).args(arguments);
        command
    };
    let said = run(&mut unprivileged(&arguments));
    said.refused(3, &["67108864 bytes", "RLIMIT_MEMLOCK is 1048576 bytes", "ulimit -l", "LimitMEMLOCK"]);
    assert!(!place.run.path().join("engine.sock").exists(), "the socket is gone again");
    // Without an SSD tier nothing is registered, and nothing needs to be locked.
    arguments.truncate(arguments.len() - 4);
    let mut child = unprivileged(&arguments).stdout(Stdio::piped()).spawn().expect("the program starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let ready = lines.map_while(Result::ok).any(|line| line.starts_with("ready:"));
    let _ = child.kill();
    child.wait().expect("our child");
    assert!(ready, "in memory alone it starts");
}

/// The node's program under these soft and hard limits of descriptors.
fn with_descriptors(place: &Place, limits: &str) -> Command {
    let mut command = Command::new("prlimit");
    command.arg(format!("--nofile={limits}")).arg(env!("CARGO_BIN_EXE_orbitkv")).args(place.arguments());
    command
}

#[test]
fn with_too_few_descriptors_for_itself_a_node_names_the_limit() {
    let place = Place::new();
    let said = run(&mut with_descriptors(&place, "30:40"));
    said.refused(3, &["may open 40 descriptors", "needs 212", "RLIMIT_NOFILE", "LimitNOFILE", "--shards"]);
    assert!(!place.run.path().join("engine.sock").exists(), "nothing is left behind");
}

#[test]
fn a_node_raises_its_soft_limit_of_descriptors_and_says_how_far_it_goes() {
    let place = Place::new();
    let mut child =
        with_descriptors(&place, "64:1000").stdout(Stdio::piped()).spawn().expect("the program starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let said: Vec<String> = lines.by_ref().take_while(|line| !line.starts_with("ready:")).collect();
    let note = said.iter().find(|line| line.contains("descriptors")).expect("a note");
    assert!(note.contains("may open 1000") && note.contains("198 engine connections"), "{note}");
    let address = said.iter().find_map(|line| line.strip_prefix("http on ")).expect("it says where");
    let http = HttpClient::new(address).expect("an address");
    let socket = place.run.path().join("engine.sock");
    // Far more than the soft limit had room for, each of them served.
    let mut engines: Vec<Raw> = (0..198).map(|_| Raw::greeted(&socket)).collect();
    engines.iter_mut().for_each(Raw::ping);
    // Those beyond are turned away, and the operator still gets through.
    for _ in 0..100 {
        Raw::connect(&socket).expect_end();
    }
    let page: MetadataPage = http.get_as("/cache/metadata").expect("an answer").0;
    assert_eq!(page.shards[0].engine.connections, 198);
    drop(engines);
    let mut last = eventually("a seat is free again", || {
        let mut raw = Raw::connect(&socket);
        raw.next_within(Duration::from_millis(100)).is_none().then_some(raw)
    });
    last.hello(&raw::hello_body(0));
    let _ = child.kill();
    child.wait().expect("our child");
}

/// What a second daemon says, and that the first one does not notice.
fn second(node: &Node, arguments: &[String]) -> Said {
    let mut saver = crate::harness::Saver::connect(&node.socket(), "first");
    let saved = super::keys(64);
    super::save_to_ssd(node, &mut saver, &saved);
    let incarnation = node.metadata().incarnation;
    let said = orbitkv(arguments);
    assert_eq!(node.metadata().incarnation, incarnation);
    // From its SSD file, which is untouched.
    saver.check_ready(&saved);
    node.assert_serves();
    said
}

#[test]
fn a_second_daemon_on_the_socket_is_refused_and_names_the_holder() {
    let node = NodeOrder::default().ssd("64mib").start();
    let place = Place::new();
    let mut arguments = place.arguments();
    let at = arguments.iter().position(|word| word == "--engine-socket").expect("it is given") + 1;
    arguments[at] = node.socket().to_str().expect("text").to_owned();
    let said = second(&node, &arguments);
    let holder = format!("in use by process {}", node.pid());
    said.refused(3, &["engine.sock", &holder, "stop that node or choose another --engine-socket"]);
    assert!(!place.data.path().join("data").exists(), "nothing was made for it");
}

#[test]
fn a_second_daemon_in_the_data_directory_is_refused_and_names_the_holder() {
    let node = NodeOrder::default().ssd("64mib").start();
    let place = Place::new();
    let mut arguments = place.arguments();
    *arguments.last_mut().expect("the data directory") = node.data_dir().to_str().expect("text").to_owned();
    let said = second(&node, &arguments);
    let holder = format!("in use by process {}", node.pid());
    said.refused(3, &["data directory", &holder, "stop that node or choose another --data-dir"]);
    assert!(!place.run.path().join("engine.sock").exists(), "the socket is gone again");
}

#[test]
fn a_second_daemon_in_both_is_refused_as_well() {
    let node = NodeOrder::default().ssd("64mib").start();
    let ended = NodeOrder::default().ssd("64mib").try_start_beside(&node).err().expect("refused");
    assert_eq!(ended.status.code(), Some(3), "{ended:#?}");
    assert!(ended.stderr.contains(&format!("process {}", node.pid())), "{ended:#?}");
    node.assert_serves();
}

#[test]
fn a_file_in_the_place_of_the_socket_is_left_alone() {
    let place = Place::new();
    let socket = place.run.path().join("engine.sock");
    fs::write(&socket, "precious").expect("a file can be made");
    orbitkv(&place.arguments()).refused(3, &["engine.sock", "exists and is no socket", "choose another"]);
    assert_eq!(fs::read_to_string(&socket).expect("it is still there"), "precious");
    assert!(!place.data.path().join("data").exists(), "nothing was made for it");
}

#[test]
fn a_socket_that_somebody_answers_is_refused_and_names_who() {
    let place = Place::new();
    let socket = place.run.path().join("engine.sock");
    let _listener = UnixListener::bind(&socket).expect("a fresh directory");
    let holder = format!("in use by process {}", std::process::id());
    orbitkv(&place.arguments()).refused(3, &["engine.sock", &holder, "choose another --engine-socket"]);
    assert!(socket.exists(), "it is not ours to remove");
}

#[test]
fn a_taken_http_port_is_refused_by_name() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound").to_string();
    let place = Place::new();
    let mut arguments = place.arguments();
    let at = arguments.iter().position(|word| word == "--http").expect("it is given") + 1;
    arguments[at].clone_from(&address);
    orbitkv(&arguments).refused(3, &["--http", &address, "in use", "choose another port", "--http off"]);
    assert!(!place.run.path().join("engine.sock").exists() && !place.data.path().join("data").exists());
}

#[test]
fn more_memory_than_the_machine_has_is_refused_with_the_items_before_anything_is_made() {
    let place = Place::new();
    let mut arguments = place.arguments();
    let at = arguments.iter().position(|word| word == "--dram").expect("it is given") + 1;
    arguments[at] = "200tib".to_owned();
    let said = orbitkv(&arguments);
    said.refused(3, &["memory bill", "200", "is available", "95 %", "largest item is arena", "lower --dram"]);
    for item in ["arena", "journal", "residents", "total"] {
        assert!(said.stdout.lines().any(|line| line.starts_with(item)), "no item {item}: {said:#?}");
    }
    assert!(!place.run.path().join("engine.sock").exists() && !place.data.path().join("data").exists());
}
