//! `orbitkv cluster` and `orbitkv replay --managers`: whole clusters that one command starts, shows, drives, and
//! leaves nothing of.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::faults::run;
use crate::harness::{WAIT, eventually};

/// Where a command and its processes work, and what must not be left of them.
pub struct Place {
    temporary: TempDir,
    data: TempDir,
}

impl Place {
    pub fn new() -> Place {
        let data = TempDir::with_prefix_in("cluster-", env!("CARGO_TARGET_TMPDIR"));
        Place {
            temporary: TempDir::with_prefix("okv-").expect("a directory"),
            data: data.expect("a directory for data"),
        }
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_orbitkv"));
        command.args(words).arg("--data-dir").arg(self.data.path());
        command.env("TMPDIR", self.temporary.path());
        command
    }

    /// A file among its temporary ones.
    pub fn file(&self, name: &str) -> PathBuf {
        self.temporary.path().join(name)
    }

    /// Processes whose command line names our directory: nodes by their sockets, etcd by its data.
    fn processes(&self) -> Vec<(Pid, String)> {
        let place = self.temporary.path().to_str().expect("text");
        let entries = fs::read_dir("/proc").expect("it is there").flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        numbers
            .filter_map(|number| {
                let line = fs::read(format!("/proc/{number}/cmdline")).ok()?;
                let line = String::from_utf8_lossy(&line).replace('\0', " ");
                line.contains(place).then(|| (Pid::from_raw(number).expect("a process"), line))
            })
            .collect()
    }

    #[track_caller]
    pub fn is_clean(&self) {
        let processes = self.processes();
        assert!(processes.is_empty(), "processes are left: {processes:?}");
        for directory in [&self.temporary, &self.data] {
            let left: Vec<_> = fs::read_dir(directory.path()).expect("ours").flatten().collect();
            assert!(left.is_empty(), "directories are left: {left:?}");
        }
    }
}

/// A command that runs, and the lines of JSON it has said.
pub struct Running {
    pub child: Child,
    lines: Receiver<Value>,
}

impl Running {
    pub fn of(mut command: Command) -> Running {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = tell.send(serde_json::from_str(&line).expect("each line is JSON"));
            }
        });
        Running { child, lines }
    }

    /// The first line from now on that satisfies `condition`.
    pub fn line(&self, condition: impl Fn(&Value) -> bool) -> Value {
        loop {
            let line = self.lines.recv_timeout(WAIT * 2).expect("another line");
            if condition(&line) {
                return line;
            }
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("our child");
    }

    /// Its exit code and what it said on standard error.
    fn end(mut self) -> (Option<i32>, String) {
        let stderr = std::io::read_to_string(self.child.stderr.take().expect("piped")).expect("a pipe");
        (self.child.wait().expect("our child").code(), stderr)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Its processes end with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn is_complete(line: &Value) -> bool {
    line["complete"] == true
}

#[test]
fn a_cluster_becomes_complete_and_nothing_is_left_of_it() {
    let place = Place::new();
    let words = ["cluster", "--managers", "2", "--dram", "64mib", "--ssd", "64mib", "--json"];
    let said = run(place.command(&words).args(["--until-complete", "--for", "60s"]));
    assert_eq!(said.code, Some(0), "{said:#?}");
    let last = said.stdout.lines().last().expect("a line");
    let last: Value = serde_json::from_str(last).expect("JSON");
    assert!(is_complete(&last), "{said:#?}");
    let nodes = last["nodes"].as_array().expect("rows");
    let names: Vec<&str> = nodes.iter().filter_map(|node| node["node"].as_str()).collect();
    assert_eq!(names, ["node-1", "node-2"]);
    for node in nodes {
        assert_eq!(
            (&node["state"], &node["epoch"], &node["members"]),
            (&"member".into(), &1.into(), &2.into())
        );
        assert_eq!(node["sessions_received"], 1, "{said:#?}");
        assert!(node["rss_bytes"].as_u64() < node["bill_bytes"].as_u64(), "{said:#?}");
    }
    // What was divided is what the nodes bill.
    let billed: u64 = nodes.iter().filter_map(|node| node["bill_bytes"].as_u64()).sum();
    assert_eq!(last["bill_bytes"], billed, "{said:#?}");
    for part in ["metadata queues", "2 nodes", "75 %", "node-2: engine socket", "stopped"] {
        assert!(said.stderr.contains(part), "no word of `{part}`: {said:#?}");
    }
    place.is_clean();
}

#[test]
fn a_node_that_dies_is_named_and_the_others_go_on() {
    let place = Place::new();
    let running = Running::of(place.command(&["cluster", "--managers", "2", "--dram", "64mib", "--json"]));
    running.line(is_complete);
    let processes = place.processes();
    assert_eq!(processes.len(), 3, "two nodes and etcd: {processes:?}");
    let (victim, _) = processes.iter().find(|(_, line)| line.contains("--node-id node-2")).expect("it runs");
    kill_process(*victim, Signal::KILL).expect("it runs");
    let line =
        running.line(|line| line["nodes"][1]["state"].as_str().is_some_and(|state| state.contains("ended")));
    assert!(line["nodes"][1]["state"].as_str().is_some_and(|state| state.contains('9')), "{line}");
    assert_eq!((&line["nodes"][0]["state"], &line["complete"]), (&"member".into(), &false.into()));
    running.signal(Signal::TERM);
    let (code, stderr) = running.end();
    assert_eq!(code, Some(4), "{stderr}");
    for part in ["node-2 ended with signal: 9", "ready:", "stopping: SIGTERM"] {
        assert!(stderr.contains(part), "no word of `{part}`: {stderr}");
    }
    place.is_clean();
}

#[test]
fn not_even_a_killed_command_leaves_processes_behind() {
    let place = Place::new();
    let mut running =
        Running::of(place.command(&["cluster", "--managers", "1", "--dram", "64mib", "--json"]));
    running.line(is_complete);
    running.signal(Signal::KILL);
    assert_eq!(running.child.wait().expect("our child").signal(), Some(Signal::KILL.as_raw()));
    eventually("every process has ended", || place.processes().is_empty().then_some(()));
}

#[test]
fn what_a_cluster_cannot_start_without_is_refused_by_name() {
    let place = Place::new();
    let cluster = |count| place.command(&["cluster", "--managers", count, "--dram", "64mib"]);
    let nowhere = place.temporary.path().join("bin");
    run(cluster("1").env("PATH", &nowhere)).refused(3, &["no `etcd` in PATH", "etcd-server", "--etcd URL"]);
    run(cluster("0").arg("--json")).refused(2, &["--managers"]);
    run(cluster("1").args(["--cluster", "No Name"])).refused(2, &["--cluster \"No Name\""]);
    let said = run(&mut place.command(&["cluster", "--managers", "2", "--dram", "100tib"]));
    said.refused(3, &["2 nodes need at least", "75 %", "lower --dram"]);
    place.is_clean();
}

#[test]
fn a_replay_over_two_nodes_starts_them_and_accounts_for_every_block() {
    let place = Place::new();
    let words = ["replay", "--generate", "120", "--managers", "2", "--spread", "round-robin", "--json"];
    let said = run(place.command(&words).args(["--block-bytes", "16kib", "--dram", "64mib", "--ssd", "0"]));
    assert_eq!(said.code, Some(0), "{said:#?}");
    let report: Value = serde_json::from_str(&said.stdout).expect("JSON");
    assert_eq!((&report["wrong_bytes"], &report["unaccounted"]), (&0.into(), &0.into()), "{report}");
    let number = |value: &Value| value.as_f64().expect("a number");
    // Everything fits, so what a node saw before it has; at most what anybody saw before.
    let (ratio, alone) = (number(&report["hit_ratio"]), number(&report["details"]["hit_ratio_bound_alone"]));
    assert!(alone < ratio && ratio <= number(&report["hit_ratio_bound"]), "{report}");
    assert!(number(&report["hits"]["peer_dram"]) > 0.0, "{report}");
    assert_eq!(report["details"]["nodes"], 2);
    place.is_clean();
}
