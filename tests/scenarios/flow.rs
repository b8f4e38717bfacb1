//! How fast blocks go between nodes: a source with a bound on what it sends, and what becomes of blocks that nobody
//! waits for any more.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use orbitkv::client::{CompletionTarget, PrefixList};
use orbitkv::control::owners::OwnersPage;
use orbitkv::control::routes::LoadRow;

use crate::faults::orbitkv;
use crate::harness::etcd::free_port;
use crate::harness::saver::{BLOCK_BYTES, GROUP, Saver, block};
use crate::harness::{Etcd, Node, WAIT, eventually, http_text};
use crate::peers::{await_installed, await_nothing_lent, keys, knows_all, order, pair, peers};

const MIB: u64 = 1 << 20;

/// Bytes a second.
const RATE: u64 = 8 * MIB;

/// What goes at once after a rest: 20 ms of the rate.
const BURST: u64 = RATE / 50;

/// Blocks of each reader: more than a second's worth for both.
const BLOCKS: usize = 112;

/// What a source has sent.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// The figure is of a moment between these two.
    asked: Duration,
    answered: Duration,
    sent: u64,
}

fn sample(begun: Instant, source: &Node) -> Sample {
    let asked = begun.elapsed();
    let sent = peers(source).lending.egress_bytes;
    Sample { asked, answered: begun.elapsed(), sent }
}

/// How busy a node has said to another that it is.
fn load_of(at: &Node, owner: &str) -> Option<LoadRow> {
    let page = at.operator("owners", &["--json"]);
    let page: OwnersPage = serde_json::from_str(&page.stdout).expect("a page");
    page.owners.into_iter().find(|row| row.node_id == owner)?.load
}

/// Between any two moments no more goes than the rate and a burst.
fn assert_rate_kept(samples: &[Sample]) {
    for (first, begin) in samples.iter().enumerate() {
        for end in &samples[first + 1..] {
            let time = end.answered - begin.asked;
            let most = BURST + (time.as_nanos() * u128::from(RATE) / 1_000_000_000) as u64;
            let sent = end.sent - begin.sent;
            assert!(sent <= most, "{sent} bytes within {time:?}, and {most} may go");
        }
    }
}

#[test]
fn a_source_sends_no_more_than_its_egress_rate_to_all_together() {
    let etcd = Etcd::start();
    let start = |name: &str| order(name, free_port(), &etcd);
    let source = start("a").argument("--egress-rate").argument("8mib").start();
    let readers = ["b", "c"].map(|name| start(name).start());
    for node in [&source, &readers[0], &readers[1]] {
        knows_all(node, 3);
    }
    let (wanted, later) = ([keys(BLOCKS), keys(BLOCKS)], keys(1));
    let mut saver = Saver::connect(&source.socket(), "engine");
    wanted.iter().chain([&later]).for_each(|keys| saver.save(keys));
    readers.iter().for_each(|reader| await_installed(&source, reader));

    let begun = Instant::now();
    let left = AtomicBool::new(true);
    let mut samples = vec![sample(begun, &source)];
    std::thread::scope(|scope| {
        let threads: Vec<_> = readers
            .iter()
            .zip(&wanted)
            .map(|(reader, keys)| {
                scope.spawn(|| Saver::connect(&reader.socket(), "reader").check_ready(keys))
            })
            .collect();
        let watcher = scope.spawn(|| {
            let mut seen = Vec::new();
            while left.load(Ordering::Relaxed) {
                seen.push(sample(begun, &source));
                std::thread::sleep(Duration::from_millis(20));
            }
            seen
        });
        let ends = threads.into_iter().map(|thread| thread.join());
        let ends: Vec<_> = ends.collect();
        left.store(false, Ordering::Relaxed);
        samples.extend(watcher.join().expect("the nodes answer"));
        ends.into_iter().for_each(|end| end.expect("every byte is right"));
    });
    samples.push(sample(begun, &source));
    // Its next answer is told over a second that was spent sending.
    Saver::connect(&readers[0].socket(), "late reader").check_ready(&later);
    let load = load_of(&readers[0], "a").expect("it has answered");
    assert!(load.egress_permille > 0 && load.window_ms >= 1_000 && load.age_ms <= 5_000, "{load:?}");
    let all = 2 * BLOCKS as u64 * BLOCK_BYTES;
    let last = samples.last().expect("there are some");
    assert!(last.sent >= all, "{last:?}");
    let fetched = readers.each_ref().map(|reader| peers(reader).fetching.bytes);
    assert_eq!(fetched, [all / 2 + BLOCK_BYTES, all / 2], "a later one went to one of them");
    assert_rate_kept(&samples);
    let lending = peers(&source).lending;
    assert_eq!((lending.egress_rate, lending.egress_waiting_bytes), (RATE, 0));
    assert!(lending.egress_paced_us > 0, "{lending:?}");
    assert_eq!(lending.egress_refused(), 0, "all of it could come in time");
    let said = orbitkv(&["status", "--http", source.http()]);
    assert!(said.code == Some(0) && said.stdout.contains("8.00 MiB a second"), "{said:#?}");
    let metrics = http_text(source.http(), "/metrics");
    assert!(metrics.contains("orbitkv_flow_paced_us_total{shard=\"0\",kind=\"send\"}"), "{metrics}");
    await_nothing_lent(&source);
}

#[test]
fn who_asks_at_a_rate_gets_all_of_it_and_no_faster() {
    let etcd = Etcd::start();
    let source = order("a", free_port(), &etcd).start();
    let reader = order("b", free_port(), &etcd).argument("--receive-rate").argument("8mib").start();
    knows_all(&source, 2);
    knows_all(&reader, 2);
    let wanted = keys(BLOCKS);
    Saver::connect(&source.socket(), "engine").save(&wanted);
    await_installed(&source, &reader);
    let begun = Instant::now();
    Saver::connect(&reader.socket(), "reader").check_ready(&wanted);
    let least = (BLOCKS as u64 * BLOCK_BYTES - BURST) * 1_000 / RATE;
    assert!(begun.elapsed() >= Duration::from_millis(least), "{:?}, and {least} ms", begun.elapsed());
    let fetching = peers(&reader).fetching;
    assert_eq!((fetching.fetched, fetching.queued_bytes), (BLOCKS as u64, 0), "{fetching:?}");
    assert!(fetching.paced_us > 0, "{fetching:?}");
}

#[test]
fn what_nobody_waits_for_gives_its_credit_back_once_its_source_has_heard_of_it() {
    let etcd = Etcd::start();
    let (source, reader) = pair(&etcd, |order| order.variable("ORBITKV_EGRESS_RATE", "1mib"));
    let wanted = keys(BLOCKS);
    Saver::connect(&source.socket(), "engine").save(&wanted);
    await_installed(&source, &reader);
    let mut impatient = Saver::connect(&reader.socket(), "impatient");
    let blocks: Vec<_> = wanted.iter().map(|&key| block(key)).collect();
    let lists = [PrefixList { namespace: impatient.namespace, group: GROUP, blocks: &blocks }];
    let asked = impatient.client.submit_acquire(&lists, CompletionTarget::Host, None, WAIT);
    asked.expect("it is sent");
    eventually("most of it waits at its source", || {
        let waiting = peers(&source).lending.egress_waiting_bytes;
        (waiting > BLOCKS as u64 * BLOCK_BYTES / 2).then_some(())
    });
    drop(impatient);
    eventually("nothing waits and nothing is charged any more", || {
        let lending = peers(&source).lending;
        let fetching = peers(&reader).fetching;
        let is_over = lending.egress_waiting_bytes == 0 && lending.operations == 0;
        (is_over && fetching.draining_bytes == 0 && fetching.queued_bytes == 0).then_some(())
    });
    let before = peers(&source).lending;
    assert!(before.cancelled > 0, "{before:?}");
    let all = BLOCKS as u64 * BLOCK_BYTES;
    assert!(before.egress_bytes < all, "most of it was never sent: {before:?}");
    // What was not sent has cost nothing: what somebody else asks for is all that goes after it.
    Saver::connect(&reader.socket(), "patient").check_ready(&wanted[BLOCKS - 1..]);
    let after = peers(&source).lending;
    let sent = after.egress_bytes - before.egress_bytes;
    assert!((BLOCK_BYTES..2 * BLOCK_BYTES).contains(&sent), "{sent} bytes for one block: {after:?}");
    assert_eq!(after.egress_waiting_bytes, 0, "{after:?}");
    let fetching = peers(&reader).fetching;
    assert_eq!((fetching.wrong_checksums, fetching.violations), (0, 0), "{fetching:?}");
    await_nothing_lent(&source);
}
