//! Whom a node asks for blocks that two others have, when one of them has become slow: nodes as processes, one of
//! which is stopped again and again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use orbitkv::control::routes::PlanningReport;
use rustix::process::Signal;

use crate::faults::orbitkv;
use crate::harness::etcd::free_port;
use crate::harness::saver::Saver;
use crate::harness::{Etcd, Node, http_text};
use crate::peers::{await_installed, keys, knows_all, order, peers, savers};

/// More than a route needs before it has a price, for the first comes with a handshake.
const SEEN: usize = 48;

/// Blocks that both have.
const SHARED: usize = 30;

/// How long the slow one is stopped, and how long it runs between.
const STOPPED: Duration = Duration::from_millis(400);
const RUNNING: Duration = Duration::from_millis(100);

struct Three {
    /// Of which two have the same blocks.
    sources: [Node; 2],
    reader: Node,
    _etcd: Etcd,
}

impl Three {
    fn of(policy: &str) -> Three {
        let etcd = Etcd::start();
        let start = |name: &str| order(name, free_port(), &etcd);
        let sources = ["a", "b"].map(|name| start(name).start());
        let reader = start("c").argument("--route-policy").argument(policy).start();
        for node in [&sources[0], &sources[1], &reader] {
            knows_all(node, 3);
        }
        Three { sources, reader, _etcd: etcd }
    }

    fn planning(&self) -> PlanningReport {
        peers(&self.reader).planning
    }

    fn granted(&self) -> [u64; 2] {
        [0, 1].map(|at| peers(&self.sources[at]).lending.granted)
    }
}

/// Runs `work` while a node is stopped most of the time.
fn while_slow<T>(node: &Node, work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stopper = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                node.signal(Signal::STOP);
                std::thread::sleep(STOPPED);
                node.signal(Signal::CONT);
                std::thread::sleep(RUNNING);
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        is_over.store(true, Ordering::Relaxed);
        stopper.join().expect("signals can be sent");
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Brings blocks one by one, each checked byte by byte.
fn bring(saver: &mut Saver, keys: &[u64]) {
    keys.iter().for_each(|&key| saver.check_ready(&[key]));
}

/// What becomes of blocks that both sources have, after the reader has seen that the one it would ask first is slow:
/// how many of them each source lent, the slow one first.
fn shared_out(three: &Three) -> [u64; 2] {
    let mut ends = savers([&three.sources[0], &three.sources[1]]);
    let mut reader = Saver::connect(&three.reader.socket(), "reader");
    let shared = keys(SHARED + 1);
    for (saver, source) in ends.iter_mut().zip(&three.sources) {
        saver.save(&shared);
        await_installed(source, &three.reader);
    }
    // Whoever is asked without evidence is first in the fixed order.
    bring(&mut reader, &shared[..1]);
    let slow = three.granted().iter().position(|granted| *granted == 1).expect("one of them was asked");
    assert_eq!(three.planning().differing, 0, "nothing is known of either");
    for (at, saver) in ends.iter_mut().enumerate() {
        let own = keys(SEEN);
        saver.save(&own);
        await_installed(&three.sources[at], &three.reader);
        match at == slow {
            true => while_slow(&three.sources[slow], || bring(&mut reader, &own)),
            false => bring(&mut reader, &own),
        }
    }
    let before = three.granted();
    while_slow(&three.sources[slow], || bring(&mut reader, &shared[1..]));
    let lent = three.granted();
    assert_eq!(peers(&three.reader).fetching.wrong_checksums, 0);
    [slow, 1 - slow].map(|at| lent[at] - before[at])
}

#[test]
fn a_source_that_was_seen_to_be_slow_is_avoided_where_plans_are_executed() {
    let three = Three::of("executed");
    let [slow, fast] = shared_out(&three);
    let planning = three.planning();
    assert!(
        fast >= SHARED as u64 * 4 / 5,
        "{slow} blocks of the slow one, {fast} of the other: {planning:#?}"
    );
    assert!(planning.followed >= SHARED as u64 * 4 / 5, "{planning:#?}");
    assert_eq!(planning.followed, planning.differing);
    let page = http_text(three.reader.http(), "/cache/routes");
    assert!(page.contains("\"better\"") && page.contains("predicted_us"), "{page}");
    let said = orbitkv(&["routes", "--http", three.reader.http()]);
    assert!(said.code == Some(0) && said.stdout.contains("better"), "{said:#?}");
    let metrics = http_text(three.reader.http(), "/metrics");
    assert!(metrics.contains("orbitkv_plans_differing_total{shard=\"0\",kind=\"followed\"}"), "{metrics}");
}

#[test]
fn in_shadow_the_fixed_order_is_kept_and_what_it_costs_is_counted() {
    let three = Three::of("shadow");
    let [slow, fast] = shared_out(&three);
    let planning = three.planning();
    assert_eq!((slow, fast), (SHARED as u64, 0), "{planning:#?}");
    assert_eq!(planning.followed, 0);
    assert!(planning.differing >= SHARED as u64 * 4 / 5 && planning.regret_us > 0, "{planning:#?}");
}
