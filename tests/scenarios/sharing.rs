//! Nodes of one host that read in each other's arenas, as processes: what comes that way, and what becomes of
//! memory whose reader is stopped, killed, or somebody else.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use orbitkv::client::{Media, Medium, PrefixList};
use orbitkv::control::report::{FetchingReport, LendingReport};
use rustix::process::Signal;

use crate::engine::users::{OTHER_UID, may_become_others, open_directories};
use crate::harness::saver::{BLOCK_BYTES, GROUP, block, payload};
use crate::harness::{EngineProcess, Etcd, Node, NodeOrder, Raw, Saver, eventually};
use crate::peers::{
    await_installed, await_nothing_lent, evict, keys, knows_all, order, pair, peers, query, savers,
};

/// Longer than any grant and any lease, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Blocks that a source with the default arena lends over shared memory at once, with room to spare: they take
/// half of the tenth.
const CHUNK: usize = 50;

/// A node that shares memory with its neighbours.
fn sharing(order: NodeOrder) -> NodeOrder {
    order.variable("ORBITKV_TRANSPORTS", "shm,quic")
}

fn lending(node: &Node) -> LendingReport {
    peers(node).lending
}

fn fetching(node: &Node) -> FetchingReport {
    peers(node).fetching
}

/// The peer socket of a node's shard 0.
fn peer_socket(node: &Node) -> PathBuf {
    let mut path = node.socket().into_os_string();
    path.push(".peer.0");
    path.into()
}

/// Reads in small parts, each of which is drained before the next one.
fn read_in_chunks(saver: &mut Saver, source: &Node, keys: &[u64]) {
    for chunk in keys.chunks(CHUNK) {
        saver.check_ready(chunk);
        await_nothing_lent(source);
    }
}

#[test]
fn blocks_of_a_neighbour_come_over_shared_memory_byte_for_byte() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, |order| sharing(order).ssd("128mib"));
    let [mut saver, mut other] = savers([&first, &second]);
    let saved = keys(200);
    saver.save(&saved);
    await_installed(&first, &second);
    read_in_chunks(&mut other, &first, &saved);
    // On SSD alone over there: its device reads them into its arena, and we read there.
    let on_ssd = keys(200);
    saver.save(&on_ssd);
    await_installed(&first, &second);
    evict(&mut saver, &on_ssd, Medium::Dram.into());
    await_installed(&first, &second);
    let reads = first.metadata().shards[0].ssd.reads;
    read_in_chunks(&mut other, &first, &on_ssd);
    assert_eq!(first.metadata().shards[0].ssd.reads - reads, 200);
    let (fetched, lent) = (fetching(&second), lending(&first));
    assert_eq!((fetched.fetched, fetched.fetched_shm), (400, 400), "{fetched:?}");
    assert_eq!((fetched.shm_bytes, lent.lent_shm_bytes), (400 * BLOCK_BYTES, 400 * BLOCK_BYTES), "{lent:?}");
    assert_eq!((fetched.wrong_checksums, fetched.violations, fetched.unread), (0, 0, 0), "{fetched:?}");
    assert_eq!((lent.readers, lent.readers_refused, lent.quarantines), (1, 0, 0), "{lent:?}");
    // More at once than may be lent that way: the rest comes over QUIC, and all of it comes.
    let many = keys(400);
    saver.save(&many);
    await_installed(&first, &second);
    other.check_ready(&many);
    await_nothing_lent(&first);
    let fetched = fetching(&second);
    assert_eq!(fetched.fetched, 800, "{fetched:?}");
    assert!(fetched.fetched_shm > 400, "{fetched:?}");
}

#[test]
fn either_node_may_want_quic_alone() {
    for transports in [["quic", "shm,quic"], ["shm,quic", "quic"]] {
        let etcd = Etcd::start();
        let mut transports = transports.into_iter();
        let mut start = |name| {
            let order = order(name, crate::harness::etcd::free_port(), &etcd).argument("--transports");
            order.argument(transports.next().expect("one for each")).start()
        };
        let (first, second) = (start("a"), start("b"));
        knows_all(&first, 2);
        knows_all(&second, 2);
        let [mut saver, mut other] = savers([&first, &second]);
        let saved = keys(100);
        saver.save(&saved);
        await_installed(&first, &second);
        other.check_ready(&saved);
        let (fetched, lent) = (fetching(&second), lending(&first));
        assert_eq!((fetched.fetched, fetched.fetched_shm), (100, 0), "{fetched:?}");
        assert_eq!((lent.readers, lent.lent_shm_bytes), (0, 0), "{lent:?}");
    }
}

#[test]
fn shards_read_in_the_shards_of_their_neighbours() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, |order| sharing(order).two_shards());
    let [mut saver, mut other] = savers([&first, &second]);
    let saved = keys(300);
    saver.save(&saved);
    await_installed(&first, &second);
    saved.chunks(CHUNK).for_each(|chunk| other.check_ready(chunk));
    let of = |node: &Node| node.metadata().shards.into_iter().filter_map(|shard| shard.peers);
    assert_eq!(of(&first).map(|peers| peers.lending.readers).collect::<Vec<_>>(), [1, 1]);
    assert!(of(&second).all(|peers| peers.fetching.fetched_shm > 0));
    assert_eq!(of(&second).map(|peers| peers.fetching.fetched).sum::<u64>(), 300);
}

/// Acquires keys with the patience of somebody whose node stands still; every block that comes is right.
fn read_on_a_thread(mut saver: Saver, keys: Vec<u64>) -> JoinHandle<Saver> {
    std::thread::spawn(move || {
        let blocks: Vec<_> = keys.iter().map(|&key| block(key)).collect();
        let lists = [PrefixList { namespace: saver.namespace, group: GROUP, blocks: &blocks }];
        // The node may be killed meanwhile.
        let Ok(acquired) = saver.client.acquire(&lists, None, 2 * PATIENCE) else { return saver };
        for (&key, result) in keys.iter().zip(&acquired.blocks) {
            if let Ok(ready) = result {
                let bytes = ready.bytes().expect("under a live lease");
                assert!(bytes == payload(key, 0, BLOCK_BYTES as usize), "key {key} has wrong bytes");
            }
        }
        if let Some(lease) = &acquired.lease {
            saver.client.release(lease, PATIENCE).expect("Release is answered");
        }
        saver
    })
}

/// Stops `second` while it reads in the arena of `first`, which has been told nothing that ends it. What it was
/// to read, and who waits for it.
fn stop_while_reading(
    first: &Node,
    second: &Node,
    saver: &mut Saver,
    mut other: Saver,
) -> (Vec<u64>, JoinHandle<Saver>) {
    for attempt in 0..100u64 {
        let saved = keys(300);
        saver.save(&saved);
        await_installed(first, second);
        let before = fetching(second).fetched_shm;
        let reader = read_on_a_thread(other, saved.clone());
        // Into the midst of it, sooner or later.
        sleep(Duration::from_micros(500 * (attempt % 40)));
        second.freeze();
        // What is on its way over QUIC drains or is given up without a word of the other side; this does not.
        sleep(Duration::from_millis(200));
        let lent = lending(first);
        if lent.pins > 0 && lent.lent_shm_bytes > 0 && lent.quarantined_bytes == 0 {
            return (saved, reader);
        }
        second.signal(Signal::CONT);
        other = reader.join().expect("no wrong byte");
        assert!(fetching(second).fetched_shm >= before);
        evict(&mut other, &saved, Media::ALL);
        evict(saver, &saved, Media::ALL);
    }
    panic!("it was never stopped in the midst of a read");
}

#[test]
fn a_reader_that_is_stopped_past_its_time_reads_nothing_recycled_and_the_memory_waits_for_it() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, sharing);
    let [mut saver, other] = savers([&first, &second]);
    let (saved, reader) = stop_while_reading(&first, &second, &mut saver, other);
    // Its grant and its membership end; its memory does not come back.
    let began = Instant::now();
    while lending(&first).quarantined_bytes == 0 {
        assert!(began.elapsed() < PATIENCE, "nothing is quarantined: {:?}", lending(&first));
        sleep(Duration::from_millis(50));
    }
    let held = lending(&first);
    assert!(held.pins > 0 && held.quarantines > 0, "{held:?}");
    // Everything else is used again, several times over.
    evict(&mut saver, &saved, Media::ALL);
    for _ in 0..4 {
        let others = keys(600);
        saver.save(&others);
        saver.check_ready(&others[500..]);
        evict(&mut saver, &others, Media::ALL);
    }
    let after = lending(&first);
    assert_eq!((after.pins, after.quarantined_bytes), (held.pins, held.quarantined_bytes), "{after:?}");
    second.signal(Signal::CONT);
    let mut other = reader.join().expect("no recycled byte is shown");
    // It says that it reads no more, whatever has become of its life.
    await_nothing_lent(&first);
    assert_eq!(lending(&first).quarantined_bytes, 0);
    assert_eq!(fetching(&second).wrong_checksums, 0, "it has read what it was granted or nothing");
    knows_all(&first, 2);
    knows_all(&second, 2);
    let fresh = keys(20);
    saver.save(&fresh);
    await_installed(&first, &second);
    let before = fetching(&second).fetched_shm;
    other.check_ready(&fresh);
    assert_eq!(fetching(&second).fetched_shm - before, 20);
}

#[test]
fn a_reader_that_is_killed_in_the_midst_gives_its_pins_back_by_its_death() {
    let etcd = Etcd::start();
    let (first, mut second) = pair(&etcd, sharing);
    let [mut saver, other] = savers([&first, &second]);
    let (_, reader) = stop_while_reading(&first, &second, &mut saver, other);
    second.kill();
    await_nothing_lent(&first);
    let lent = lending(&first);
    assert_eq!((lent.readers, lent.quarantined_bytes, lent.quarantines), (0, 0, 0), "{lent:?}");
    drop(reader.join().expect("no wrong byte"));
    first.assert_serves();
    // Its next process reads again.
    second.restart();
    knows_all(&second, 2);
    knows_all(&first, 2);
    let saved = keys(20);
    saver.save(&saved);
    await_installed(&first, &second);
    Saver::connect(&second.socket(), "again").check_ready(&saved);
    assert_eq!(fetching(&second).fetched_shm, 20);
}

#[test]
fn a_source_that_is_killed_in_the_midst_costs_misses_and_nothing_else() {
    let etcd = Etcd::start();
    let (mut first, second) = pair(&etcd, sharing);
    let [mut saver, other] = savers([&first, &second]);
    let (_, reader) = stop_while_reading(&first, &second, &mut saver, other);
    first.kill();
    second.signal(Signal::CONT);
    let mut other = reader.join().expect("no wrong byte");
    first.restart();
    eventually("the new life is known and empty", || {
        let page = second.metadata();
        let new = page.membership.members.iter().any(|member| member.node_id == "a" && member.epoch == 2);
        (new && page.coverage == "CompleteAtWatermarks" && page.index.rows == 0).then_some(())
    });
    knows_all(&first, 2);
    let fresh = keys(20);
    Saver::connect(&first.socket(), "again").save(&fresh);
    await_installed(&first, &second);
    let before = fetching(&second).fetched_shm;
    other.check_ready(&fresh);
    assert_eq!(fetching(&second).fetched_shm - before, 20);
    await_nothing_lent(&first);
}

#[test]
fn whoever_cannot_prove_who_he_is_gets_no_arena() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, sharing);
    let [mut saver, mut other] = savers([&first, &second]);
    let mut read = |count: u64| {
        let saved = keys(20);
        saver.save(&saved);
        await_installed(&first, &second);
        assert_eq!(query(&mut other, &saved).boundary_blocks, 20);
        other.check_ready(&saved);
        assert_eq!((lending(&first).readers, fetching(&second).fetched_shm), (1, count));
    };
    // There is a payload connection that somebody could say he is at the other end of.
    read(20);
    let connect = || UnixStream::connect(peer_socket(&first)).expect("it listens");
    let (mut wrong, mut silent) = (connect(), connect());
    wrong.write_all(&[0; 32]).expect("taken");
    for stranger in [&mut wrong, &mut silent] {
        stranger.set_read_timeout(Some(PATIENCE)).expect("a socket");
        // No byte, and so no descriptor.
        assert_eq!(stranger.read(&mut [0; 64]).expect("it is closed"), 0);
    }
    let lent = lending(&first);
    assert_eq!((lent.readers, lent.readers_refused), (1, 2), "{lent:?}");
    read(40);
}

#[test]
fn another_user_gets_no_arena_from_a_peer_socket_though_he_reaches_it() {
    if !may_become_others() {
        return;
    }
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, sharing);
    let [mut saver, mut other] = savers([&first, &second]);
    open_directories(&first);
    fs::set_permissions(peer_socket(&first), Permissions::from_mode(0o666)).expect("our own socket");
    let process = EngineProcess::start_as_at(&first, OTHER_UID, &peer_socket(&first));
    let mut stranger = Raw::connect(&process.socket());
    stranger.expect_end();
    assert!(stranger.fds.is_empty(), "another user got the arena");
    let seen = first.await_metadata("he is counted", |page| {
        page.shards[0].peers.as_ref().is_some_and(|peers| peers.lending.readers_refused > 0)
    });
    assert_eq!(seen.shards[0].peers.as_ref().map(|peers| peers.lending.readers), Some(0));
    // The node's own user is let in as before.
    let saved = keys(20);
    saver.save(&saved);
    await_installed(&first, &second);
    other.check_ready(&saved);
    assert_eq!((fetching(&second).fetched_shm, lending(&first).readers), (20, 1));
}
