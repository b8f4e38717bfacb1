//! SIGTERM and SIGKILL while engines save and acquire.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use orbitkv::client::{
    BlockHash, Client, ClientError, ClientSettings, Namespace, PrefixList, Reserved, SaveKey,
};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open};

use super::keys;
use crate::harness::saver::{BLOCK_BYTES, GROUP, Saver, block, payload, registration};
use crate::harness::{Node, NodeOrder, WAIT, eventually};

/// Engines that save and acquire without pause, whatever becomes of the node, and compare every byte.
struct Load {
    stop: Arc<AtomicBool>,
    counts: Arc<Counts>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Counts {
    saved: AtomicU64,
    compared: AtomicU64,
}

impl Load {
    fn on(node: &Node, engines: u64) -> Load {
        let (stop, counts) = (Arc::new(AtomicBool::new(false)), Arc::new(Counts::default()));
        let threads = (0..engines).map(|engine| {
            let (socket, stop, counts) = (node.socket(), stop.clone(), counts.clone());
            std::thread::spawn(move || drive(engine, socket, &stop, &counts))
        });
        let load = Load { threads: threads.collect(), stop, counts };
        load.goes_on();
        load
    }

    /// Waits until every kind of work has been done again.
    fn goes_on(&self) {
        let (saved, compared) = (self.saved(), self.compared());
        eventually("engines save and compare", || {
            (self.saved() > saved + 200 && self.compared() > compared + 200).then_some(())
        });
    }

    fn saved(&self) -> u64 {
        self.counts.saved.load(Ordering::Relaxed)
    }

    fn compared(&self) -> u64 {
        self.counts.compared.load(Ordering::Relaxed)
    }

    /// Ends it.
    ///
    /// # Panics
    /// If an engine saw wrong bytes.
    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("no engine saw wrong bytes"));
    }
}

fn drive(engine: u64, socket: PathBuf, stop: &AtomicBool, counts: &Counts) {
    let settings =
        ClientSettings { connect_wait: Duration::from_millis(200), ..ClientSettings::new(&socket) };
    let mut client: Option<(Client, Namespace)> = None;
    let mut step = engine * 1_000;
    while !stop.load(Ordering::Relaxed) {
        if client.is_none() {
            let connected = Client::connect(settings.clone()).and_then(|mut client| {
                let namespace = client.register(&registration(&format!("engine-{engine}")), WAIT)?;
                Ok((client, namespace))
            });
            client = connected.ok();
        }
        let Some((connected, namespace)) = &mut client else { continue };
        step += 1;
        // Half of what is acquired was saved long ago, in DRAM or on SSD by now.
        let (new, old) = ((step % 200) * 8, ((step * 7) % 200) * 8);
        let step_keys: Vec<u64> =
            (new..new + 8).chain(old..old + 8).map(|key| (engine % 2) << 20 | key).collect();
        match step_of(connected, *namespace, &step_keys, counts) {
            Ok(()) => {}
            Err(ClientError::Refused { operation, status, text, .. }) => {
                panic!("{operation:?}: {status:?} {text}")
            }
            // The connection was lost, or what was taken on it; the next step connects again.
            Err(_) => {}
        }
    }
}

fn step_of(
    client: &mut Client,
    namespace: Namespace,
    keys: &[u64],
    counts: &Counts,
) -> Result<(), ClientError> {
    let wait = Duration::from_secs(5);
    let wanted: Vec<SaveKey> = keys[..8]
        .iter()
        .map(|&key| SaveKey { block: block(key), group: GROUP, bytes: BLOCK_BYTES })
        .collect();
    let mut slots = Vec::new();
    for (&key, reserved) in keys.iter().zip(client.reserve(namespace, &wanted, false, wait)?) {
        if let Reserved::Slot(mut slot) = reserved {
            slot.copy_in(0, &payload(key, 0, BLOCK_BYTES as usize))?;
            slots.push(slot);
        }
    }
    let saved = slots.len() as u64;
    client.commit(&mut slots, wait)?;
    counts.saved.fetch_add(saved, Ordering::Relaxed);
    for keys in [&keys[..8], &keys[8..]] {
        let blocks: Vec<BlockHash> = keys.iter().map(|&key| block(key)).collect();
        let acquired =
            client.acquire(&[PrefixList { namespace, group: GROUP, blocks: &blocks }], None, wait)?;
        for (&key, ready) in keys.iter().zip(&acquired.blocks) {
            let Ok(ready) = ready else { continue };
            assert!(ready.bytes()? == payload(key, 0, BLOCK_BYTES as usize), "key {key} has wrong bytes");
            counts.compared.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(lease) = &acquired.lease {
            client.release(lease, wait)?;
        }
    }
    // So that the keys are saved anew some day, and the next node has them to save as well.
    if keys[0].is_multiple_of(64) {
        let evicted: Vec<_> = keys[..8].iter().map(|&key| (block(key), GROUP)).collect();
        client.evict(namespace, &evicted, orbitkv::client::Media::ALL, wait)?;
    }
    Ok(())
}

fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

#[test]
fn sigterm_under_load_ends_soon_and_cleanly_and_the_next_start_works() {
    for order in [NodeOrder::default().ssd("192mib"), NodeOrder::default().two_shards().ssd("192mib")] {
        let mut node = order.start();
        let load = Load::on(&node, 3);
        let before = Instant::now();
        let status = node.terminate();
        let took = before.elapsed();
        assert_eq!(status.code(), Some(0), "{}", node.stderr());
        assert!(took < Duration::from_secs(10), "it took {took:?}");
        assert!(!exists(&node.socket()), "the socket's file is gone");
        assert!(node.stdout().contains("stopping: SIGTERM") && node.stdout().trim_end().ends_with("stopped"));
        node.restart();
        // The very engines go on, by themselves.
        load.goes_on();
        assert_eq!(node.held().connections, 3);
        load.end();
        let status = node.terminate();
        assert_eq!(status.code(), Some(0), "{}", node.stderr());
    }
}

#[test]
fn sigkill_under_load_leaves_a_stale_socket_that_the_next_node_replaces() {
    let mut node = NodeOrder::default().ssd("192mib").start();
    let load = Load::on(&node, 3);
    for _ in 0..3 {
        let incarnation = node.metadata().incarnation;
        node.kill();
        assert!(exists(&node.socket()), "a killed node cannot remove its socket");
        node.restart();
        assert_ne!(node.metadata().incarnation, incarnation);
        load.goes_on();
    }
    assert_eq!(node.held().connections, 3);
    load.end();
    let page = node.metadata();
    let ssd = &page.shards[0].ssd;
    assert_eq!((ssd.checksum_failures, ssd.read_errors, ssd.write_backs_failed), (0, 0, 0), "{ssd:#?}");
    node.await_nothing_held();
}

#[test]
fn a_killed_node_has_nothing_on_ssd_when_it_starts_again() {
    let mut node = NodeOrder::default().ssd("192mib").start();
    let mut saver = Saver::connect(&node.socket(), "a");
    let saved = keys(512);
    super::save_to_ssd(&node, &mut saver, &saved);
    node.kill();
    node.restart();
    let page = node.metadata();
    let shard = &page.shards[0];
    assert_eq!((shard.residents.dram, shard.residents.ssd, shard.ssd.live_bytes), (0, 0, 0), "{page:#?}");
    let mut saver = Saver::connect(&node.socket(), "a");
    assert!(saver.check_never_wrong(&saved).iter().all(Option::is_some));
    super::save_to_ssd(&node, &mut saver, &saved);
    saver.check_ready(&saved);
}

/// Duplicates of the sockets that a node listens on, and of what else it has in its table as a socket.
fn sockets_of(node: &Node) -> Vec<OwnedFd> {
    let pid = Pid::from_raw(node.pid() as i32).expect("a process id");
    let process = pidfd_open(pid, PidfdFlags::empty()).expect("our child");
    let directory = fs::read_dir(format!("/proc/{}/fd", node.pid())).expect("the node runs");
    let names = directory.map(|entry| entry.expect("a descriptor").path());
    let sockets = names.filter(|name| {
        fs::read_link(name).is_ok_and(|target| target.as_os_str().as_encoded_bytes().starts_with(b"socket:"))
    });
    sockets
        .map(|name| {
            let number = name.file_name().and_then(|name| name.to_str()?.parse().ok()).expect("a number");
            pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).expect("tests run as root")
        })
        .collect()
}

#[test]
fn a_listener_that_outlives_its_killed_node_keeps_nobody_out() {
    let mut node = Node::start();
    // As a ring that polled it does until the kernel has taken the ring down: it can still be connected to.
    let kept = sockets_of(&node);
    assert!(!kept.is_empty());
    node.kill();
    UnixStream::connect(node.socket()).expect("somebody seems to listen");
    node.restart();
    node.assert_serves();
    drop(kept);
    node.assert_serves();
}

#[test]
fn sigint_and_a_second_sigterm_end_it_the_same_way() {
    let mut node = NodeOrder::default().ssd("128mib").start();
    let mut saver = Saver::connect(&node.socket(), "a");
    saver.save(&keys(400));
    node.signal(Signal::INT);
    node.signal(Signal::TERM);
    let status = node.await_end();
    assert_eq!(status.code(), Some(0), "{}", node.stderr());
    assert!(!exists(&node.socket()));
}
