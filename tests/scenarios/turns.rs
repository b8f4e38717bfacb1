//! What a node with `--trace-turns` tells of its requests: every operation from receive to respond, inside turns of its core,
//! with the device's stages where it was needed; and nothing at all without.

use std::collections::BTreeSet;
use std::time::Duration;

use orbitkv::cli::http_client::ClientError;
use orbitkv::cli::turns::{events_of, forget, read_core};
use orbitkv::client::{ClientSettings, Media, Medium, Outcome, PrefixList, RequestMoments};
use orbitkv::control::turns::TurnsPage;
use orbitkv::turns::timeline::{CoreEvents, Request, Timeline};
use orbitkv::turns::{EVENTS_MAX, What};
use orbitkv_wire::engine::Operation;

use crate::harness::saver::{GROUP, block, registration};
use crate::harness::{Node, NodeOrder, Saver, WAIT, eventually};

/// Requests whose moments a client keeps.
const MOMENTS: usize = 10_000;

fn traced(order: NodeOrder) -> Node {
    order.argument("--trace-turns").start()
}

fn following(node: &Node) -> Saver {
    let settings = ClientSettings { moments_max: MOMENTS, ..ClientSettings::new(node.socket()) };
    Saver::with(settings, &registration("engine"))
}

fn pages(node: &Node) -> Vec<Vec<TurnsPage>> {
    let client = node.http_client();
    let of_core = |core| read_core(&client, core, 0).expect("it records turns");
    let first = of_core(0);
    let cores = first[0].cores;
    std::iter::once(first).chain((1..cores).map(of_core)).collect()
}

fn events(node: &Node) -> Vec<CoreEvents> {
    (0..).zip(pages(node)).map(|(core, pages)| events_of(core, &pages)).collect()
}

/// All that the node tells, once the last of these requests has its respond.
fn timeline(node: &Node, moments: &[RequestMoments]) -> Timeline {
    let last = moments.iter().map(|moments| moments.request).max();
    eventually("the last answer is told", || {
        let mut timeline = Timeline::of(&events(node));
        timeline.join(moments);
        let is_told = |request: &Request| Some(request.request) == last && request.at_node().is_some();
        let is_whole = timeline.requests().iter().any(|request| request.engine.is_some() && is_told(request));
        is_whole.then_some(timeline)
    })
}

/// One request of each kind that an engine has, all of them answered.
fn everything(node: &Node, saver: &mut Saver, keys: &[u64]) {
    let blocks: Vec<_> = keys.iter().map(|&key| block(key)).collect();
    let lists = [PrefixList { namespace: saver.namespace, group: GROUP, blocks: &blocks }];
    let digest = saver.client.digest(saver.namespace).expect("registered");
    saver.client.ping(WAIT).expect("Ping is answered");
    let mut unwanted = saver.fill(&[u64::MAX - 1], 0);
    saver.client.abort(&mut unwanted, WAIT).expect("Abort is answered");
    saver.save(keys);
    saver.client.sync(WAIT).expect("Sync is answered");
    saver.client.query(&lists, false, WAIT).expect("Query is answered");
    let pairs: Vec<_> = blocks.iter().map(|&block| (block, GROUP)).collect();
    if node.metadata().shards[0].ssd.capacity_bytes > 0 {
        saver
            .client
            .evict(saver.namespace, &pairs, Media::from(Medium::Dram), WAIT)
            .expect("Evict is answered");
    }
    let lease = saver.acquire_checked(keys);
    saver.client.attach(lease.token(), WAIT).expect("Attach is answered");
    saver.client.prefetch(&lists, WAIT).expect("Prefetch is answered");
    saver.client.release(&lease, WAIT).expect("Release is answered");
    saver.client.list(digest, Media::ALL, 10, None, WAIT).expect("List is answered");
    saver.client.evict(saver.namespace, &pairs[..1], Media::ALL, WAIT).expect("Evict is answered");
    saver.client.clear(digest, Media::ALL, WAIT).expect("Clear is answered");
    // A node that is left with a lease does not end, so its pages can be read.
    saver.save(&keys[..1]);
    let _lease = saver.acquire_checked(&keys[..1]);
    let drain = saver.client.submit_drain(WAIT).expect("Drain is sent");
    saver.client.cancel(drain, WAIT).expect("Cancel is answered");
    eventually("the Drain is answered", || {
        let completion = saver.client.poll()?;
        assert!(!matches!(completion.result, Ok(Outcome::Done)), "it was cancelled");
        completion.last.then_some(())
    });
}

/// Whether an operation is work for a shard or the registry.
fn is_executed(operation: Operation) -> bool {
    !matches!(operation, Operation::Hello | Operation::Ping | Operation::Cancel | Operation::Drain)
}

/// That a request went its whole way in order, within what its engine saw and within turns.
fn assert_followed(timeline: &Timeline, request: &Request) {
    let name = request.name();
    let at = |what: What| {
        request.first(what).unwrap_or_else(|| panic!("{name} has no {}: {request:#?}", what.name()))
    };
    let mut moments = vec![at(What::Receive), at(What::Start)];
    if is_executed(request.operation.expect("a known operation")) {
        moments.push(at(What::Execute));
    }
    moments.push(at(What::Respond));
    assert!(moments.is_sorted(), "{name}: {moments:?}");
    let engine = request.engine.clone().expect("our engine asked for it");
    assert!(engine.start <= moments[0], "{name} was received before it was submitted");
    assert!(moments[moments.len() - 2] <= engine.end, "{name} was answered before it was worked on");
    for stage in &request.stages {
        let span = stage.at_ns..stage.at_ns + 1;
        let is_within = timeline.turns(stage.core, &span).next().is_some();
        assert!(is_within, "{name}: {} is in no turn of core {}", stage.what.name(), stage.core);
    }
    let whole = request.at_node().expect("answered");
    let shares: u64 = timeline.shares(request.core, &whole).values().sum();
    assert_eq!(shares, whole.end - whole.start, "{name}: its core did something all the time");
}

/// That the device's stages of a request are in order, for so many blocks.
fn assert_stages(request: &Request, stages: [What; 3], blocks: usize) {
    let of = |what: What| request.stages.iter().filter(move |stage| stage.what == what);
    let counts = stages.map(|what| of(what).map(|stage| usize::from(stage.count)).sum::<usize>());
    assert_eq!(counts, [blocks; 3], "{stages:?} of {request:#?}");
    let first = stages.map(|what| of(what).next().map(|stage| stage.at_ns));
    assert!(first.is_sorted(), "{request:#?}");
}

fn follow_everything(order: NodeOrder, ssd: bool) {
    let node = traced(order);
    let mut saver = following(&node);
    let keys: Vec<u64> = (0..40).collect();
    everything(&node, &mut saver, &keys);
    let (moments, lost) = saver.client.take_moments();
    assert_eq!(lost, 0);
    let timeline = timeline(&node, &moments);
    assert_eq!(timeline.lost, 0);
    let session = saver.client.node().expect("connected").connection;
    let ours: Vec<&Request> = timeline.requests().iter().filter(|request| request.engine.is_some()).collect();
    assert_eq!(ours.len(), moments.len(), "each request that was answered is told, and once");
    let mut seen = BTreeSet::new();
    for request in ours {
        assert_eq!(request.session, session);
        let asked = moments.iter().find(|moments| moments.request == request.request).expect("ours");
        assert_eq!(request.operation, Some(asked.operation));
        assert_followed(&timeline, request);
        seen.insert(asked.operation as u8);
    }
    // The Hello comes before the client's own numbering, so it has no moments.
    let hello = timeline.requests().iter().find(|request| request.operation == Some(Operation::Hello));
    assert!(hello.is_some_and(|hello| hello.session == session && hello.at_node().is_some()), "{hello:?}");
    let all: BTreeSet<u8> = (Operation::Ping as u8..=Operation::Prefetch as u8).collect();
    assert_eq!(seen, all, "every operation was used");

    let first = |operation| {
        let mut of = timeline.requests().iter().filter(move |request| request.operation == Some(operation));
        of.next().expect("it was used")
    };
    if ssd {
        let write_back = [What::WriteBackEnqueue, What::WriteBackDequeue, What::WriteBackComplete];
        let device = [What::SsdEnqueue, What::SsdDequeue, What::SsdComplete];
        let commit = first(Operation::Commit);
        assert_stages(commit, write_back, keys.len());
        assert_stages(commit, device, keys.len());
        let acquire = first(Operation::Acquire);
        assert_stages(acquire, device, keys.len());
        // What waits for the device is answered after it.
        let read = acquire.stages.iter().rev().find(|stage| stage.what == What::SsdComplete);
        assert!(read.map(|read| read.at_ns) <= acquire.first(What::Respond), "{acquire:#?}");
        // A Sync waits for the write-backs before it.
        assert!(commit.first(What::WriteBackComplete) <= first(Operation::Sync).first(What::Respond));
    }
    let text = node.operator("turns", &["--slowest", "2"]);
    assert!(
        text.stdout.contains("requests answered") && text.stdout.contains("slowest waited for"),
        "{text:?}"
    );
}

#[test]
fn every_operation_is_followed_from_receive_to_respond_and_to_the_device_and_back() {
    follow_everything(NodeOrder::default().ssd("64mib"), true);
}

#[test]
fn requests_that_other_cores_work_on_are_followed_there() {
    follow_everything(NodeOrder::default().two_shards(), false);
    let node = traced(NodeOrder::default().two_shards());
    let mut saver = following(&node);
    saver.save(&(0..40).collect::<Vec<_>>());
    let (moments, _) = saver.client.take_moments();
    let timeline = timeline(&node, &moments);
    let commit = timeline.requests().iter().find(|request| request.operation == Some(Operation::Commit));
    let commit = commit.expect("it saved");
    let cores: BTreeSet<u16> =
        commit.stages.iter().filter(|stage| stage.what == What::Execute).map(|stage| stage.core).collect();
    assert_eq!(cores, BTreeSet::from([0, 1]), "{commit:#?}");
    let room: usize = pages(&node).iter().map(|pages| pages[0].capacity).sum();
    assert_eq!(room, EVENTS_MAX as usize, "both cores together");
}

#[test]
fn a_full_store_takes_no_more_and_says_so_until_it_may_forget() {
    let node = traced(NodeOrder::default());
    let mut saver = following(&node);
    let client = node.http_client();
    let newest = |client: &_| read_core(client, 0, 0).expect("it records turns");
    let full = eventually("the store is full", || {
        for _ in 0..1_000 {
            saver.client.ping(Duration::from_secs(5)).expect("Ping is answered");
        }
        let pages = newest(&client);
        let page = pages.last().expect("there is one");
        assert!(page.held <= page.capacity, "{} events", page.held);
        (page.lost > 0).then(|| page.clone())
    });
    assert_eq!((full.held, full.capacity), (EVENTS_MAX as usize, EVENTS_MAX as usize));
    let text = node.operator("turns", &[]).stdout;
    assert!(text.contains("NOT VALID") && text.contains("found no room"), "{text}");

    assert!(forget(&client, 0, u64::from(EVENTS_MAX)).expect("it forgets") > 0);
    saver.client.take_moments();
    saver.client.ping(WAIT).expect("Ping is answered");
    let (moments, _) = saver.client.take_moments();
    let timeline = timeline(&node, &moments);
    let pinged: Vec<_> = timeline.requests().iter().filter(|request| request.engine.is_some()).collect();
    assert_eq!((pinged.len(), timeline.lost), (1, 0));
    let said = node.operator("turns", &["--forget"]);
    assert!(!said.stdout.contains("NOT VALID"), "{said:?}");
}

#[test]
fn a_node_that_is_not_told_to_records_nothing_and_says_how_to() {
    let node = Node::start();
    node.assert_serves();
    match node.http_client().get("/cache/turns") {
        Err(ClientError::Refused { status: 404, reason, .. }) => {
            assert!(reason.contains("--trace-turns"), "{reason}")
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(forget(&node.http_client(), 0, 1), Err(ClientError::Refused { status: 404, .. })));
    let said = node.operator("turns", &[]);
    assert!(said.stderr.contains("--trace-turns"), "{said:?}");
    assert!(!node.stdout().contains("recorded turns"), "nothing is billed for it: {}", node.stdout());
}

#[test]
fn what_is_no_page_is_refused_by_name() {
    let node = traced(NodeOrder::default());
    assert!(node.stdout().contains("recorded turns"), "it is on the bill: {}", node.stdout());
    let refused = [
        ("core=1", "core is"),
        ("core=x", "core is"),
        ("after=x", "after is"),
        ("limit=0", "limit is"),
        ("limit=2049", "limit is"),
        ("after=1&after=2", "each once"),
    ];
    for (query, named) in refused {
        match node.http_client().get(&format!("/cache/turns?{query}")) {
            Err(ClientError::Refused { status: 400, reason, .. }) => {
                assert!(reason.contains(named), "{query}: {reason}")
            }
            other => panic!("{query}: {other:?}"),
        }
    }
    let refused = forget(&node.http_client(), 7, 1);
    assert!(matches!(&refused, Err(ClientError::Refused { status: 400, .. })), "{refused:?}");
}
