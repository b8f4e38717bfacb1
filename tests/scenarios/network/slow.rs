//! A peer that answers twenty times as slowly as it did: every call to it takes longer than a call may.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use orbitkv::client::{Coverage, Medium, Place as Found};

use super::{A, B, Cluster};
use crate::harness::gate::{Datagram, Verdict};
use crate::harness::{Saver, eventually, http_text};
use crate::peers::{await_installed, evict, keys, peers, query};

/// A call to a peer may take this long.
const BUDGET: Duration = Duration::from_millis(100);
/// As long is a peer left alone.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the peer is slow.
const SLOW: Duration = Duration::from_secs(6);

#[test]
fn a_peer_slowed_twentyfold_is_left_alone_and_nothing_here_is_refused() {
    let order = |order: crate::harness::NodeOrder| {
        order
            .ssd("128mib")
            .argument("--call-budget")
            .argument("100ms")
            .argument("--breaker-pause")
            .argument("1s")
    };
    let Some(mut cluster) = Cluster::of(2, order) else { return };
    let [saver, other] = &mut cluster.savers()[..] else { unreachable!("two nodes") };
    let (here, on_ssd, there) = (keys(20), keys(20), keys(400));
    saver.save(&here);
    saver.save(&on_ssd);
    cluster.a().await_metadata("all of it is on SSD", |page| page.shards[0].ssd.write_backs_done >= 40);
    other.save(&there);
    await_installed(cluster.b(), cluster.a());
    let begun = Instant::now();
    for key in &there[..30] {
        saver.check_ready(&[*key]);
    }
    let quiet = begun.elapsed() / 30;
    let before = peers(cluster.a()).fetching;
    assert_eq!((before.calls_failed, before.breaker_opens, before.extra_asks), (0, 0, 0), "{before:?}");

    let late = (quiet * 20).clamp(2 * BUDGET, 8 * BUDGET);
    cluster.network.rule(move |datagram| match datagram {
        Datagram { from: B, to: A, .. } => Verdict::Delay(late),
        _ => Verdict::Pass,
    });
    // What is here is wanted all the while by another engine.
    let is_over = Arc::new(AtomicBool::new(false));
    let (stop, socket) = (is_over.clone(), cluster.a().socket());
    let local = std::thread::spawn(move || {
        let mut local = Saver::connect(&socket, "local");
        let mut rounds = 0;
        while !stop.load(Ordering::Relaxed) {
            local.check_ready(&here);
            evict(&mut local, &on_ssd, Medium::Dram.into());
            local.check_ready(&on_ssd);
            rounds += 1;
        }
        rounds
    });
    let begun = Instant::now();
    let (mut failed_at_opening, mut at_once) = (None, Vec::new());
    for key in there[30..].iter().cycle() {
        if begun.elapsed() > SLOW {
            break;
        }
        let asked = Instant::now();
        let outcomes = saver.check_never_wrong(&[*key]);
        assert!(outcomes[0].is_some(), "nothing comes in time: {outcomes:?}");
        if failed_at_opening.is_some() {
            at_once.push(asked.elapsed());
        } else {
            let seen = peers(cluster.a()).fetching;
            failed_at_opening = (seen.breaker_opens > 0).then_some(seen.calls_failed);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let seen = peers(cluster.a());
    is_over.store(true, Ordering::Relaxed);
    assert!(local.join().expect("what is here is there all the while") > 3);
    assert_eq!(cluster.a().metadata().shards[0].service.acquires_busy, 0, "nothing here is refused");
    assert!(failed_at_opening.expect("it is left alone") <= 20, "{seen:#?}");
    assert_eq!(seen.breakers.len(), 1, "{seen:#?}");
    let pauses = SLOW.as_millis().div_ceil(PAUSE.as_millis()) as u64;
    assert!((2..=pauses).contains(&seen.fetching.breaker_probes), "{seen:#?}");
    at_once.sort_unstable();
    assert!(at_once[at_once.len() / 2] < BUDGET, "a miss is one at once: {at_once:?}");
    // What nobody brings is where it is, and no absence.
    let view = query(saver, &there);
    assert!(view.places[30..].iter().all(|place| *place == Found::PeerDram), "{view:?}");
    assert_eq!(view.coverage, Coverage::CompleteAtWatermarks);
    let said = cluster.a().operator("doctor", &["--json"]);
    // The last pause may be over by now.
    let is_named = ["\"peer-left-alone\"", "\"peer-untried\""].iter().any(|name| said.stdout.contains(name));
    assert!(is_named, "{said:#?}");
    let metrics = cluster.network.place(A).within(|| http_text(cluster.a().http(), "/metrics"));
    assert!(metrics.contains("orbitkv_peer_breaker{shard=\"0\",peer=\"b/0\"} "), "{metrics}");
    assert!(cluster.a().stderr().contains("a peer fails too often and is left alone"), "it is in the log");

    cluster.network.heal();
    eventually("a peer that answers is asked again", || {
        (saver.check_never_wrong(&there[there.len() - 1..]) == [None]).then_some(())
    });
    saver.check_ready(&there);
    assert_eq!(peers(cluster.a()).breakers[0].state, "closed");
    // A later life of it begins without that past.
    cluster.nodes[B - 1].kill();
    cluster.nodes[B - 1].restart();
    cluster.is_whole();
    assert_eq!(peers(cluster.a()).breakers, []);
    cluster.has_kept_its_bounds();
}
