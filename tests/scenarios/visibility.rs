//! When changes were published and when they were seen, as nodes that are measured tell it: each sample is of one node,
//! life, shard and scope, and of one sequence.

use orbitkv::cli::http_client::ClientError;
use orbitkv::client::Media;
use orbitkv::control::visibility::{ClockPlace, StreamInstalled, VisibilityPage};

use crate::harness::saver::Saver;
use crate::harness::{Etcd, Node, NodeOrder, eventually};
use crate::peers::{await_installed, evict, keys, pair, savers};

const PATH: &str = "/cache/visibility";

fn measured(order: NodeOrder) -> NodeOrder {
    order.argument("--visibility-samples").argument("16")
}

fn page(node: &Node, after: &str) -> VisibilityPage {
    node.http_client().get_as(&format!("{PATH}?after={after}")).expect("it keeps samples").0
}

/// What `at` has seen of `of` through a sequence.
fn seen(at: &Node, of: &str, sequence: u64) -> StreamInstalled {
    eventually("what was published is seen", || {
        let stream = page(at, "").shards[0].installed.iter().find(|stream| stream.node_id == of).cloned();
        stream.filter(|stream| stream.samples.last().is_some_and(|(_, through, _)| *through == sequence))
    })
}

#[test]
fn samples_are_bound_to_who_published_and_to_exact_sequences() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, measured);
    let [mut saver, _other] = savers([&first, &second]);
    let saved = keys(5);
    saver.save(&saved);
    seen(&second, "a", 5);
    evict(&mut saver, &saved[..2], Media::ALL);
    let stream = seen(&second, "a", 7);

    let source = page(&first, "");
    let metadata = first.metadata();
    assert_eq!((source.node_id.as_str(), &source.scope_digest), ("a", &metadata.scope_digest));
    assert!(source.clock.is_shared_with(&ClockPlace::here()), "{:?}", source.clock);
    let life = &source.shards[0].published[0];
    assert_eq!((Some(life.epoch), &life.incarnation), (metadata.epoch, &metadata.incarnation));
    assert_eq!((stream.epoch, &stream.incarnation, stream.shard), (life.epoch, &life.incarnation, 0));
    let published: Vec<u64> = life.samples.iter().map(|(sequence, _)| *sequence).collect();
    assert_eq!(published, [5, 7], "one sample a request that changes the journal");
    // Each interval begins where the one before it ends, and is seen after it was published.
    let mut from = 0;
    for &(begin, through, at_ns) in &stream.samples {
        assert_eq!(begin, from, "{stream:?}");
        from = through;
        if let Some((_, published_ns)) = life.samples.iter().find(|(sequence, _)| *sequence == through) {
            assert!(at_ns > *published_ns, "{through} was seen before it was there");
        }
    }
    // Who has them is told only what came after.
    let (published, installed) = source.shards[0].had();
    let next = page(&first, &format!("{published}.{installed}"));
    assert_eq!((next.shards[0].published_first, next.shards[0].published.len()), (published + 1, 0));
}

#[test]
fn what_is_not_read_in_time_is_dropped_and_that_shows() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, measured);
    let mut saver = Saver::connect(&first.socket(), "engine");
    for key in keys(20) {
        saver.save(&[key]);
    }
    await_installed(&first, &second);
    let shard = &page(&first, "").shards[0];
    assert_eq!((shard.published_first, shard.published[0].samples.len()), (5, 16));
    assert_eq!(shard.published[0].samples.last().map(|sample| sample.0), Some(20));
}

#[test]
fn a_node_that_is_not_measured_keeps_nothing() {
    let standalone = NodeOrder::default().start();
    let etcd = Etcd::start();
    let (member, _) = pair(&etcd, |order| order);
    for node in [&standalone, &member] {
        let refused = node.http_client().get(PATH);
        assert!(matches!(&refused, Err(ClientError::Refused { status: 404, .. })), "{refused:?}");
    }
    match standalone.http_client().get(&format!("{PATH}?after=nonsense")) {
        Err(ClientError::Refused { status: 400, reason, .. }) => {
            assert!(reason.contains("INSTALLED"), "{reason}")
        }
        other => panic!("{other:?}"),
    }
}
