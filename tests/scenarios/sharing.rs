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
use crate::faults::doctor;
use crate::harness::saver::{BLOCK_BYTES, GROUP, block, payload};
use crate::harness::{EngineProcess, Etcd, Node, NodeOrder, Raw, Saver, eventually, http_text};
use crate::peers::{
    await_installed, await_nothing_lent, evict, keys, knows_all, order, pair, peers, query, savers,
};

/// Longer than any grant and any lease, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Blocks that a source with the default arena lends over shared memory at once, with room to spare: they take
/// half of the tenth.
const CHUNK: usize = 50;

/// Blocks of a read that is stopped in its midst.
const LONG: usize = 300;

/// The default arena.
const ARENA_BYTES: u64 = 64 * 1024 * 1024;

/// A node that shares memory with its neighbours.
fn sharing(order: NodeOrder) -> NodeOrder {
    order.variable("ORBITKV_TRANSPORTS", "shm,quic")
}

/// As [`sharing`], with a node that asks a source for 2 MiB at a time: a third of what a source with the default arena
/// lends over shared memory. So no source is ever too busy for that way, nothing is asked for over QUIC instead, and a
/// long read goes on in many steps.
fn sharing_in_steps(order: NodeOrder) -> NodeOrder {
    sharing(order).argument("--receive-budget").argument("8mib")
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

/// Acquires keys with the patience of somebody whose node stands still; every block that comes is right. How many did
/// not come.
fn read_on_a_thread(mut saver: Saver, keys: Vec<u64>) -> JoinHandle<(Saver, usize)> {
    std::thread::spawn(move || {
        let blocks: Vec<_> = keys.iter().map(|&key| block(key)).collect();
        let lists = [PrefixList { namespace: saver.namespace, group: GROUP, blocks: &blocks }];
        // The node may be killed meanwhile.
        let Ok(acquired) = saver.client.acquire(&lists, None, 2 * PATIENCE) else {
            return (saver, keys.len());
        };
        let mut missed = 0;
        for (&key, result) in keys.iter().zip(&acquired.blocks) {
            let Ok(ready) = result else {
                missed += 1;
                continue;
            };
            let bytes = ready.bytes().expect("under a live lease");
            assert!(bytes == payload(key, 0, BLOCK_BYTES as usize), "key {key} has wrong bytes");
        }
        if let Some(lease) = &acquired.lease {
            saver.client.release(lease, PATIENCE).expect("Release is answered");
        }
        (saver, missed)
    })
}

/// Whether something is pinned, and all of it is memory that a reader of this host was told where to find. Nothing was
/// pinned `before`, and every block granted since then has been told of as a place in the arena: no pin is QUIC's.
fn lends_memory_alone(before: &LendingReport, now: &LendingReport) -> bool {
    let granted_bytes = (now.granted - before.granted) * BLOCK_BYTES;
    now.pins > 0 && now.lent_shm_bytes - before.lent_shm_bytes == granted_bytes
}

/// A read that stands still in its midst.
struct Midst {
    /// What is read.
    saved: Vec<u64>,
    /// What its node had fetched before.
    fetched: FetchingReport,
    /// Who waits for it.
    reader: JoinHandle<(Saver, usize)>,
}

/// Stops `second` while it reads in the arena of `first`, which has been told nothing that ends it, and before it has
/// asked for the last of what it wants. Both are [`sharing_in_steps`].
fn stop_while_reading(first: &Node, second: &Node, saver: &mut Saver, mut other: Saver) -> Midst {
    for attempt in 0..100u64 {
        let saved = keys(LONG);
        saver.save(&saved);
        await_installed(first, second);
        await_nothing_lent(first);
        let (before, fetched) = (lending(first), fetching(second));
        let reader = read_on_a_thread(other, saved.clone());
        // Into the midst of it, sooner or later.
        sleep(Duration::from_micros(500 * (attempt % 40)));
        second.freeze();
        // What it has asked for is told, and what it has said is heard.
        sleep(Duration::from_millis(200));
        let lent = lending(first);
        let is_unfinished = lent.granted - before.granted < LONG as u64;
        if lends_memory_alone(&before, &lent) && is_unfinished && lent.quarantined_bytes == 0 {
            return Midst { saved, fetched, reader };
        }
        second.signal(Signal::CONT);
        (other, _) = reader.join().expect("no wrong byte");
        evict(&mut other, &saved, Media::ALL);
        evict(saver, &saved, Media::ALL);
    }
    panic!("it was never stopped in the midst of a read");
}

/// What an operator sees of memory that is lent and overdue: whether `doctor` finds it, and the bytes of the metric.
fn overdue(node: &Node) -> (bool, u64) {
    let (_, names, words) = doctor(node);
    let is_found = names.iter().any(|name| name == "quarantine");
    let told = "of shard 0 was lent over shared memory, is overdue, and is not proved free";
    assert_eq!(words.contains(told), is_found, "{words}");
    let metrics = http_text(node.http(), "/metrics");
    let named = "orbitkv_lent{shard=\"0\",kind=\"quarantined_bytes\"} ";
    let line = metrics.lines().find_map(|line| line.strip_prefix(named));
    (is_found, line.unwrap_or_else(|| panic!("no {named} in {metrics}")).parse().expect("a number"))
}

#[test]
fn a_reader_that_is_stopped_past_its_time_reads_nothing_recycled_and_the_memory_waits_for_it() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, sharing_in_steps);
    let [mut saver, other] = savers([&first, &second]);
    assert_eq!(overdue(&first), (false, 0));
    let Midst { saved, reader, .. } = stop_while_reading(&first, &second, &mut saver, other);
    // Its grants and its membership end; its memory does not come back.
    let began = Instant::now();
    let held = loop {
        let held = lending(&first);
        if held.quarantined_bytes > 0 && held.quarantined_bytes == held.pinned_bytes {
            break held;
        }
        assert!(began.elapsed() < PATIENCE, "what is overdue is not quarantined: {held:?}");
        sleep(Duration::from_millis(50));
    };
    assert!(held.pins > 0 && held.quarantines > 0, "{held:?}");
    assert_eq!(overdue(&first), (true, held.quarantined_bytes));
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
    let (mut other, _) = reader.join().expect("no recycled byte is shown");
    // It says that it reads no more, whatever has become of its life.
    await_nothing_lent(&first);
    assert_eq!(lending(&first).quarantined_bytes, 0);
    assert_eq!(overdue(&first), (false, 0));
    assert_eq!(fetching(&second).wrong_checksums, 0, "it has read what it was granted or nothing");
    knows_all(&first, 2);
    knows_all(&second, 2);
    let fresh = keys(20);
    saver.save(&fresh);
    await_installed(&first, &second);
    let before = fetching(&second).fetched_shm;
    other.check_ready(&fresh);
    assert_eq!(fetching(&second).fetched_shm - before, 20);
    first.assert_within_bill();
    second.assert_within_bill_with_mapped(ARENA_BYTES);
}

#[test]
fn a_reader_that_is_killed_in_the_midst_gives_its_pins_back_by_its_death() {
    let etcd = Etcd::start();
    let (first, mut second) = pair(&etcd, sharing_in_steps);
    let [mut saver, other] = savers([&first, &second]);
    let Midst { reader, .. } = stop_while_reading(&first, &second, &mut saver, other);
    let held = lending(&first);
    second.kill();
    // All pins are for shared memory, so that no end of a connection frees them. It was stopped and says no Released,
    // and what time ends is quarantined: it is its process that is watched.
    await_nothing_lent(&first);
    let lent = lending(&first);
    assert_eq!((lent.readers, lent.quarantined_bytes, lent.quarantines), (0, 0, 0), "{lent:?}");
    assert!(lent.cut_off > held.cut_off && lent.expired == held.expired, "{held:?}, then {lent:?}");
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
    first.assert_within_bill();
    second.assert_within_bill_with_mapped(ARENA_BYTES);
}

#[test]
fn a_source_that_is_killed_in_the_midst_costs_misses_and_nothing_else() {
    let etcd = Etcd::start();
    let (mut first, second) = pair(&etcd, sharing_in_steps);
    let [mut saver, other] = savers([&first, &second]);
    let Midst { fetched: before, reader, .. } = stop_while_reading(&first, &second, &mut saver, other);
    first.kill();
    second.signal(Signal::CONT);
    let (mut other, missed) = reader.join().expect("no wrong byte");
    // What it had not asked for nobody else has. That is counted where it was missed, and as nothing worse.
    assert!(missed > 0, "all of it came from the dead");
    let seen = fetching(&second);
    let lost = |of: &FetchingReport| of.missing + of.busy + of.deadline;
    assert!(lost(&seen) > lost(&before), "{missed} were missed: {before:?}, then {seen:?}");
    assert_eq!((seen.wrong_checksums, seen.corrupt, seen.violations), (0, 0, 0), "{seen:?}");
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
    first.assert_within_bill();
    second.assert_within_bill_with_mapped(ARENA_BYTES);
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
    first.assert_within_bill();
    second.assert_within_bill_with_mapped(ARENA_BYTES);
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
    first.assert_within_bill();
    second.assert_within_bill_with_mapped(ARENA_BYTES);
}
