//! Bad input and faults: what the node does when its surroundings fail it, and what its operator
//! sees of that.

mod audit;
mod device;
mod disk;
mod environment;
mod health;
mod http;
mod operator;
mod rest;
mod ring;
mod room;
mod settings;
mod signals;
mod symptoms;

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Instant;

use orbitkv::client::{BlockHash, GroupId, Medium};

use crate::harness::saver::{GROUP, Saver, block, fresh_key};
use crate::harness::{Node, WAIT};

/// What a command said, and how it ended.
#[derive(Clone, Debug)]
pub struct Said {
    /// Exit code; `None` is a signal.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Said {
    /// Panics unless it ended with `code` and named all of `parts` on standard error.
    #[track_caller]
    pub fn refused(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:#?}");
        for part in parts {
            assert!(self.stderr.contains(part), "no word of `{part}`: {self:#?}");
        }
    }
}

/// Runs `orbitkv` with these arguments, in none of our environment's settings.
pub fn orbitkv<S: AsRef<OsStr>>(arguments: &[S]) -> Said {
    run(Command::new(env!("CARGO_BIN_EXE_orbitkv")).args(arguments))
}

/// Runs a command to its end.
///
/// # Panics
/// If it goes on for longer than anything may; it is killed then.
pub fn run(command: &mut Command) -> Said {
    let ours: Vec<OsString> = std::env::vars_os()
        .map(|(name, _)| name)
        .filter(|name| name.as_encoded_bytes().starts_with(b"ORBITKV_"))
        .collect();
    ours.iter().for_each(|name| {
        command.env_remove(name);
    });
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let (mut out, mut err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
    let read = |stream: &mut dyn Read| {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("a pipe can be read");
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (stdout, stderr) =
        (std::thread::spawn(move || read(&mut out)), std::thread::spawn(move || read(&mut err)));
    let until = Instant::now() + WAIT * 6;
    let (status, late) = loop {
        match child.try_wait().expect("our child") {
            Some(status) => break (status, false),
            None if Instant::now() < until => std::thread::sleep(std::time::Duration::from_millis(5)),
            None => {
                child.kill().expect("our child");
                break (child.wait().expect("our child"), true);
            }
        }
    };
    let said = Said {
        code: status.code(),
        stdout: stdout.join().expect("the reader"),
        stderr: stderr.join().expect("the reader"),
    };
    assert!(!late, "the command did not end by itself: {said:#?}");
    said
}

/// So many keys of their own.
pub fn keys(count: usize) -> Vec<u64> {
    (0..count).map(|_| fresh_key()).collect()
}

/// Saves keys and waits until nothing is to be written back any more.
pub fn save_through(node: &Node, saver: &mut Saver, keys: &[u64]) {
    keys.chunks(256).for_each(|some| saver.save(some));
    saver.client.sync(WAIT).expect("Sync is answered");
    node.await_metadata("every write-back has ended", |page| {
        page.shards.iter().all(|shard| shard.ssd.write_backs_queued + shard.ssd.write_backs_in_flight == 0)
    });
}

/// Drops keys from DRAM, so that only their SSD residences are left.
pub fn leave_dram(saver: &mut Saver, keys: &[u64]) {
    for some in keys.chunks(256) {
        saver
            .client
            .evict(saver.namespace, &named(some), Medium::Dram.into(), WAIT)
            .expect("Evict is answered");
    }
}

/// Keys as Evict names them.
pub fn named(keys: &[u64]) -> Vec<(BlockHash, GroupId)> {
    keys.iter().map(|&key| (block(key), GROUP)).collect()
}

/// Saves keys and leaves them on SSD only.
pub fn save_to_ssd(node: &Node, saver: &mut Saver, keys: &[u64]) {
    save_through(node, saver, keys);
    leave_dram(saver, keys);
    let on_ssd = node.metadata().shards.iter().map(|shard| shard.residents.ssd).sum::<u64>();
    assert!(on_ssd >= keys.len() as u64, "{on_ssd} of {} blocks are on SSD", keys.len());
}

/// What `orbitkv doctor` says of a node: its exit code, the names of its findings and its words. Left out is what
/// this machine adds: small pages, and turns that are long because a test machine is busy.
pub fn doctor(node: &Node) -> (Option<i32>, Vec<String>, String) {
    let said = orbitkv(&["doctor", "--http", node.http()]);
    let json = orbitkv(&["doctor", "--json", "--http", node.http()]);
    let page: serde_json::Value =
        serde_json::from_str(&json.stdout).unwrap_or_else(|error| panic!("{error}: {json:#?}"));
    let findings = page["findings"].as_array().expect("a list of findings");
    let names = findings.iter().map(|finding| finding["name"].as_str().expect("a name").to_owned());
    let names = names.filter(|name| !["small-pages", "stalls"].contains(&name.as_str())).collect();
    (said.code, names, said.stdout)
}
