//! Claims that are counted: what etcd is spared, however much changes and is looked up; what an exit amid everything
//! leaves; and how far a save is seen.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use orbitkv::cli::http_client::HttpClient;
use orbitkv::client::{
    ClientSettings, CommitOutcome, Group, Media, Place, PrefixList, Registration, Reserved, Retention,
    SaveKey,
};
use orbitkv::control::metadata::MetadataPage;
use orbitkv::control::report::PeersReport;
use rustix::process::Signal;

use crate::config::KEY as CONFIG_KEY;
use crate::faults::orbitkv;
use crate::harness::saver::{BLOCK_BYTES, GROUP, Saver, block, fresh_key, registration};
use crate::harness::{Etcd, Node, WAIT, eventually, http_text, is_soak};
use crate::local_cluster::{Place as Directory, Running, is_complete};
use crate::peers::{await_installed, evict, keys, knows_all, pair, peers, query, savers};

/// Longest time from SIGTERM to the end of a node with active streams.
const EXIT_MAX: Duration = Duration::from_millis(420);

/// Keys of one request.
const BATCH: usize = 128;

/// Messages that etcd has taken in, by method, as itself counts them.
pub fn messages(etcd: &Etcd) -> BTreeMap<String, u64> {
    let text = http_text(&etcd.address(0).to_string(), "/metrics");
    let lines = text.lines().filter(|line| line.starts_with("grpc_server_msg_received_total{"));
    let mut methods = BTreeMap::new();
    for line in lines {
        let method = line.split("grpc_method=\"").nth(1).and_then(|rest| rest.split('"').next());
        let count = line.rsplit(' ').next().and_then(|text| text.parse::<f64>().ok());
        let (method, count) = method.zip(count).unwrap_or_else(|| panic!("what is {line}?"));
        *methods.entry(method.to_owned()).or_default() += count as u64;
    }
    assert!(methods.values().sum::<u64>() > 0, "etcd counts nothing: {text}");
    methods
}

/// Saves and drops tiny blocks: two changes each.
fn churn(saver: &mut Saver, rounds: usize) {
    for _ in 0..rounds {
        let blocks: Vec<_> = (0..BATCH).map(|_| block(fresh_key())).collect();
        let save = |&block: &_| SaveKey { block, group: GROUP, bytes: 64 };
        let wanted: Vec<SaveKey> = blocks.iter().map(save).collect();
        let reserved =
            saver.client.reserve(saver.namespace, &wanted, false, WAIT).expect("Reserve is answered");
        let mut slots: Vec<_> = (reserved.into_iter())
            .map(|reserved| match reserved {
                Reserved::Slot(slot) => slot,
                other => panic!("no slot: {other:?}"),
            })
            .collect();
        let outcomes = saver.client.commit(&mut slots, WAIT).expect("Commit is answered");
        assert!(outcomes.iter().all(|&outcome| outcome == CommitOutcome::Committed), "{outcomes:?}");
        let named: Vec<_> = blocks.iter().map(|&block| (block, GROUP)).collect();
        saver.client.evict(saver.namespace, &named, Media::ALL, WAIT).expect("Evict is answered");
    }
}

#[test]
fn etcd_hears_nothing_of_block_changes() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, |order| order);
    let tiny = Group { group: GROUP, retention: Retention::Full, block_bytes: 64 };
    let registration = Registration { groups: vec![tiny], ..registration("tiny") };
    let mut saver = Saver::with(ClientSettings::new(first.socket()), &registration);
    let rounds = if is_soak() { 1_000_000usize.div_ceil(2 * BATCH) } else { 200 };
    let (page, revision, begun) = (first.metadata(), etcd.revision(), Instant::now());
    churn(&mut saver, rounds);
    await_installed(&first, &second);
    let after = first.metadata();
    let changes = after.inventory_sequence[0] - page.inventory_sequence[0];
    assert_eq!(changes, 2 * (BATCH * rounds) as u64, "every change is in the journal");
    println!("{changes} changes in {:.1} s", begun.elapsed().as_secs_f64());
    assert_eq!(etcd.revision(), revision, "{changes} changes");
    let sent = after.membership.etcd_sent_bytes - page.membership.etcd_sent_bytes;
    let (name, reads) = (CONFIG_KEY.len() as u64, after.config.reads - page.config.reads);
    // One may be under way.
    assert!(
        sent.is_multiple_of(name) && (sent / name).abs_diff(reads) <= 1,
        "{sent} bytes went to etcd, and {reads} times the name of the settings"
    );
    assert!(reads as f64 <= begun.elapsed().as_secs_f64() / 30.0 + 1.0, "{reads} readings of the settings");
    assert_eq!((after.membership.registrations, after.membership.fences), (1, 0));
    // The peer has heard of them all, and holds nothing of what has ended.
    let applied = peers(&second).changes_applied + peers(&second).changes_staged;
    assert!(applied > 0, "{:#?}", peers(&second));
    assert_eq!(second.metadata().index.rows, 0);
}

#[test]
fn lookups_ask_etcd_nothing() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, |order| order);
    let [mut saver, mut other] = savers([&first, &second]);
    let saved = keys(100);
    saver.save(&saved);
    await_installed(&first, &second);
    let absent = keys(100);
    let (before, begun) = (messages(&etcd), Instant::now());
    let requests = |node: &Node| node.metadata().membership.etcd_requests;
    let asked_before = requests(&first) + requests(&second);
    for number in 0..10_000 {
        let key = [saved[number % 100], absent[number % 100]];
        let view = query(&mut other, &key);
        assert_eq!((view.boundary_blocks, view.places[0]), (1, Place::PeerDram));
    }
    let asked = requests(&first) + requests(&second) - asked_before;
    let elapsed = begun.elapsed();
    let mut told: BTreeMap<String, u64> = messages(&etcd);
    for (method, count) in &before {
        *told.get_mut(method).expect("counters stay") -= count;
    }
    // A node renews six times in ten seconds, asks for a sign of life every one and a half, and reads the settings
    // every thirty.
    let periods = [("LeaseKeepAlive", 1.5), ("Watch", 1.5), ("Range", 30.0)];
    let living = periods.map(|(method, _)| told.remove(method).unwrap_or(0));
    assert_eq!(told.values().sum::<u64>(), 0, "{told:?}");
    let seconds = elapsed.as_secs_f64();
    println!(
        "10000 queries in {seconds:.1} s; etcd took in {living:?} messages of leases, watches and reads"
    );
    for ((method, period), count) in periods.into_iter().zip(living) {
        let most = 2.0 * (seconds / period + if method == "Range" { 1.0 } else { 2.0 });
        assert!(count as f64 <= most, "{count} of {method} in {seconds} s");
    }
    assert!(living.iter().sum::<u64>().abs_diff(asked) <= 4, "the nodes count {asked}, etcd {living:?}");
}

#[test]
fn an_exit_amid_streams_and_reads_is_one_and_the_next_life_is_the_next_epoch() {
    let etcd = Etcd::start();
    let (mut first, second) = pair(&etcd, |order| order);
    let [mut saver, mut other] = savers([&first, &second]);
    let saved = keys(200);
    saver.save(&saved);
    await_installed(&first, &second);
    let is_over = Arc::new(AtomicBool::new(false));
    // One engine saves and drops at the source for as long as it lives: the streams are busy.
    let writer = std::thread::spawn(move || {
        loop {
            let key = fresh_key();
            let wanted = [SaveKey { block: block(key), group: GROUP, bytes: BLOCK_BYTES }];
            let Ok(reserved) = saver.client.reserve(saver.namespace, &wanted, false, WAIT) else { return };
            for reserved in reserved {
                if let Reserved::Slot(slot) = reserved
                    && saver.client.commit(&mut vec![slot], WAIT).is_err()
                {
                    return;
                }
            }
            if saver.client.evict(saver.namespace, &[(block(key), GROUP)], Media::ALL, WAIT).is_err() {
                return;
            }
        }
    });
    // Another reads the same blocks from its peer again and again.
    let over = Arc::clone(&is_over);
    let read = saved.clone();
    let reader = std::thread::spawn(move || {
        while !over.load(Ordering::Relaxed) {
            for keys in read.chunks(50) {
                other.check_never_wrong(keys);
                evict(&mut other, keys, Media::ALL);
            }
        }
        other
    });
    let lent = peers(&first).lending.granted;
    eventually("payload flows", || (peers(&first).lending.granted >= lent + 400).then_some(()));
    let told = peers(&first).frames_sent.frames;
    eventually("changes flow", || (peers(&first).frames_sent.frames > told + 10).then_some(()));
    let begun = Instant::now();
    assert!(first.terminate().success(), "{}", first.stderr());
    let took = begun.elapsed();
    println!("exit after {took:?}");
    // The promise is one of release builds.
    if !cfg!(debug_assertions) {
        assert!(took <= EXIT_MAX, "the exit took {took:?}");
    }
    assert_eq!(etcd.value("/orbitkv/v2/test/members/a"), "", "it has withdrawn");
    writer.join().expect("it noticed");
    second.await_metadata("the leaver is no member, and nothing of it is shown", |page| {
        page.membership.members.len() == 1 && page.index.rows == 0
    });
    is_over.store(true, Ordering::Relaxed);
    let mut other = reader.join().expect("no wrong byte");
    assert!(other.check_never_wrong(&saved).iter().all(Option::is_some), "nobody has them now");
    first.restart();
    assert_eq!(knows_all(&first, 2).epoch, Some(2));
    knows_all(&second, 2);
    let fresh = keys(20);
    Saver::connect(&first.socket(), "again").save(&fresh);
    await_installed(&first, &second);
    other.check_ready(&fresh);
}

/// Waits until each core of these nodes has one session with each other node in each direction.
///
/// # Panics
/// If they do not come to that, or if a session was opened beside one that lived.
fn have_one_session_each(nodes: &[(String, String)]) {
    let others = nodes.len() as u64 - 1;
    let of_node = |(_, http): &(String, String)| {
        let client = HttpClient::new(http).expect("an address");
        let (page, _) = client.get_as::<MetadataPage>("/cache/metadata").ok()?;
        page.shards.into_iter().map(|shard| shard.peers).collect::<Option<Vec<PeersReport>>>()
    };
    let is_one =
        |report: &PeersReport| (report.sessions_served, report.sessions_received) == (others, others);
    let cores = eventually("each core has one session for each other node and direction", || {
        let cores = nodes.iter().map(of_node).collect::<Option<Vec<Vec<PeersReport>>>>()?.concat();
        cores.iter().all(is_one).then_some(cores)
    });
    let sum = |of: fn(&PeersReport) -> u64| cores.iter().map(of).sum::<u64>();
    let (opened, lost) = (sum(|core| core.sessions_opened), sum(|core| core.sessions_lost));
    // By a source that did not know the requester yet, for one.
    let refused = sum(|core| core.sessions_refused.values().sum());
    let wanted = others * cores.len() as u64;
    println!("{wanted} sessions: {opened} opened, {refused} of them refused and {lost} lost");
    // Those that their requesters gave up are counted nowhere, and there are none where a core has time for all.
    let given_up = if is_soak() { wanted } else { 0 };
    assert!(
        opened <= wanted + refused + lost + given_up,
        "{opened} opened for {wanted}, {refused} refused and {lost} lost"
    );
}

#[test]
fn what_one_of_a_whole_cluster_saves_all_others_show() {
    let managers = if is_soak() { 64 } else { 4 };
    let directory = Directory::new();
    let count = managers.to_string();
    let words = ["cluster", "--managers", &count, "--dram", "64mib", "--ssd", "0", "--json"];
    let begun = Instant::now();
    let mut running = Running::of(directory.command(&words));
    running.line(is_complete);
    println!("{managers} nodes know each other after {:.1} s", begun.elapsed().as_secs_f64());
    let stderr = BufReader::new(running.child.stderr.take().expect("piped"));
    let nodes: Vec<(String, String)> = (stderr.lines().map_while(Result::ok))
        .filter_map(|line| {
            let (_, rest) = line.split_once(": engine socket ")?;
            rest.split_once(", http on ").map(|(socket, http)| (socket.to_owned(), http.to_owned()))
        })
        .take(managers)
        .collect();
    assert_eq!(nodes.len(), managers);
    have_one_session_each(&nodes);
    let (socket, http) = &nodes[0];
    let mut saver = Saver::connect(socket.as_ref(), "engine");
    let saved = keys(10);
    saver.save(&saved);
    let fence = directory.file("fence.json");
    let said = orbitkv(&["sync", "--http", http, "--json"]);
    assert_eq!(said.code, Some(0), "{said:#?}");
    std::fs::write(&fence, said.stdout).expect("room for a fence");
    let begun = Instant::now();
    for (socket, http) in &nodes[1..] {
        let fence = fence.to_str().expect("a plain path");
        let said = orbitkv(&["await", "--http", http, "--fence", fence, "--timeout", "30s"]);
        assert_eq!(said.code, Some(0), "{said:#?}");
        let mut other = Saver::connect(socket.as_ref(), "engine");
        let blocks: Vec<_> = saved.iter().map(|&key| block(key)).collect();
        let lists = [PrefixList { namespace: other.namespace, group: GROUP, blocks: &blocks }];
        let view = other.client.query(&lists, false, WAIT).expect("Query is answered");
        assert!(view.places.iter().all(|place| *place == Place::PeerDram), "{socket}: {:?}", view.places);
    }
    println!("{} others show it; all asked within {:.1} s", managers - 1, begun.elapsed().as_secs_f64());
    // The last one has the bytes, too.
    Saver::connect(nodes[managers - 1].0.as_ref(), "reader").check_ready(&saved);
    drop(saver);
    std::fs::remove_file(&fence).expect("ours");
    running.signal(Signal::TERM);
    let status = eventually("the command ends", || running.child.try_wait().expect("our child"));
    assert!(status.success(), "{status}");
    directory.is_clean();
}
