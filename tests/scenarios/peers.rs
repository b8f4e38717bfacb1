//! Nodes that tell each other what they hold and bring blocks from each other, as processes on real etcd.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use orbitkv::client::{BlockOutcome, Coverage, Media, Medium, Place, PrefixList, QueryView};
use orbitkv::control::metadata::MetadataPage;
use orbitkv::control::report::PeersReport;
use orbitkv_native::quic::{ConnectionId, NodeKey, Purpose};
use orbitkv_wire::identity::Sequence;
use orbitkv_wire::membership::MemberRecord;
use orbitkv_wire::payload::{
    Attempt, Authorize, Binding, ExactResidence, FromSource, OperationId, Refusal, Transport,
    append_authorize,
};
use rustix::process::Signal;

use crate::faults::orbitkv;
use crate::harness::etcd::free_port;
use crate::harness::saver::{BLOCK_BYTES, GROUP, Saver, block, fresh_key, payload};
use crate::harness::scripted_peer::{Reply, binding, record_of};
use crate::harness::{Etcd, Node, NodeOrder, ScriptedPeer, WAIT, eventually, http_text, soak_or};

pub fn order(name: &str, port: u16, etcd: &Etcd) -> NodeOrder {
    order_by(name, port, &etcd.urls().join(","))
}

/// As [`order`], with etcd at these URLs. What crosses does so over QUIC unless a test asks for shared memory, for all
/// of these nodes are on one host.
pub fn order_by(name: &str, port: u16, urls: &str) -> NodeOrder {
    let address = format!("127.0.0.1:{port}");
    let arguments = ["--cluster", "test", "--peer-addr", &address, "--index-budget", "16mib", "--etcd", urls];
    let order = NodeOrder::default().named(name).in_data_directory();
    let order = order.variable("ORBITKV_TRANSPORTS", "quic");
    arguments.iter().fold(order, |order, argument| order.argument(argument))
}

/// Two nodes of which each has all that the other has.
pub fn pair(etcd: &Etcd, order: impl Fn(NodeOrder) -> NodeOrder) -> (Node, Node) {
    let named = |name| order(self::order(name, free_port(), etcd)).start();
    let (first, second) = (named("a"), named("b"));
    knows_all(&first, 2);
    knows_all(&second, 2);
    (first, second)
}

pub fn knows_all(node: &Node, members: usize) -> MetadataPage {
    let complete = |page: &MetadataPage| {
        page.membership.members.len() == members && page.coverage == "CompleteAtWatermarks"
    };
    node.await_metadata(&format!("it knows all of {members} members"), complete)
}

/// An engine at each.
pub fn savers(nodes: [&Node; 2]) -> [Saver; 2] {
    nodes.map(|node| Saver::connect(&node.socket(), "engine"))
}

pub fn keys(count: usize) -> Vec<u64> {
    (0..count).map(|_| fresh_key()).collect()
}

/// Makes `to` have all that `from` has told by now.
pub fn await_installed(from: &Node, to: &Node) {
    let fence = from.operator("sync", &["--json"]);
    assert_eq!(fence.code, Some(0), "{fence:#?}");
    let file = to.run_dir().join("fence.json");
    std::fs::write(&file, &fence.stdout).expect("room for a fence");
    let file = file.to_str().expect("a plain path");
    let said = to.operator("await", &["--fence", file]);
    assert_eq!(said.code, Some(0), "{said:#?}");
}

pub fn query(saver: &mut Saver, keys: &[u64]) -> QueryView {
    let blocks: Vec<_> = keys.iter().map(|&key| block(key)).collect();
    let lists = [PrefixList { namespace: saver.namespace, group: GROUP, blocks: &blocks }];
    saver.client.query(&lists, false, WAIT).expect("Query is answered")
}

pub fn evict(saver: &mut Saver, keys: &[u64], media: Media) {
    let keys: Vec<_> = keys.iter().map(|&key| (block(key), GROUP)).collect();
    saver.client.evict(saver.namespace, &keys, media, WAIT).expect("Evict is answered");
}

pub fn peers(node: &Node) -> PeersReport {
    node.metadata().shards[0].peers.clone().expect("a node of a cluster")
}

pub fn await_nothing_lent(node: &Node) {
    node.await_metadata("nothing is lent any more", |page| {
        page.shards[0]
            .peers
            .as_ref()
            .is_some_and(|peers| (peers.lending.pins, peers.lending.operations) == (0, 0))
    });
}

#[test]
fn what_one_saves_the_other_shows_and_what_nobody_has_is_absent() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, |order| order);
    let [mut saver, mut other] = savers([&first, &second]);
    let saved = keys(300);
    saver.save(&saved);
    await_installed(&first, &second);
    let view = query(&mut other, &saved);
    assert_eq!((view.boundary_blocks, view.coverage), (300, Coverage::CompleteAtWatermarks));
    assert!(view.places.iter().all(|place| *place == Place::PeerDram), "{:?}", view.places);
    let view = query(&mut other, &keys(3));
    assert_eq!((view.boundary_blocks, view.coverage), (0, Coverage::CompleteAtWatermarks));
    // What ends there is no longer shown here.
    evict(&mut saver, &saved[..100], Media::ALL);
    await_installed(&first, &second);
    let view = query(&mut other, &saved[100..]);
    assert_eq!(view.boundary_blocks, 200);
    assert_eq!(query(&mut other, &saved[..100]).boundary_blocks, 0);
    let said = orbitkv(&["owners", "--http", second.http()]);
    assert!(said.code == Some(0) && said.stdout.contains("live"), "{said:#?}");
    // After the last one there can be nothing comes, and the node goes on.
    let beyond = http_text(second.http(), &format!("/cache/metadata/owners?after=0.{}", u64::MAX));
    assert_eq!(beyond, r#"{"next":null,"owners":[],"standalone":false}"#);
    let page = second.metadata();
    assert_eq!(page.index.rows, 200, "{page:#?}");
    // Nobody asked etcd for any of it.
    let before = etcd.revision();
    saver.save(&keys(200));
    await_installed(&first, &second);
    assert_eq!(etcd.revision(), before);
}

#[test]
fn blocks_of_a_peer_come_byte_for_byte_from_its_dram_and_its_ssd() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, |order| order.ssd("128mib"));
    let [mut saver, mut other] = savers([&first, &second]);
    let saved = keys(200);
    saver.save(&saved);
    await_installed(&first, &second);
    other.check_ready(&saved);
    let page = second.metadata();
    assert_eq!(page.shards[0].service.peer_hits.dram, 200, "{:#?}", page.shards[0].service);
    // They are residents here now, and peers of ours hear of them.
    await_installed(&second, &first);
    assert_eq!(first.metadata().index.rows, 200);
    // On SSD alone over there: read there by its device, and sent.
    let on_ssd = keys(200);
    saver.save(&on_ssd);
    await_installed(&first, &second);
    evict(&mut saver, &on_ssd, Medium::Dram.into());
    await_installed(&first, &second);
    let reads = first.metadata().shards[0].ssd.reads;
    assert!(query(&mut other, &on_ssd).places.iter().all(|place| *place == Place::PeerSsd));
    other.check_ready(&on_ssd);
    assert_eq!(second.metadata().shards[0].service.peer_hits.ssd, 200);
    assert_eq!(first.metadata().shards[0].ssd.reads - reads, 200);
    let fetching = peers(&second).fetching;
    assert_eq!((fetching.fetched, fetching.bytes), (400, 400 * BLOCK_BYTES), "{fetching:?}");
    assert_eq!((fetching.wrong_checksums, fetching.violations), (0, 0));
    await_nothing_lent(&first);
}

#[test]
fn hundreds_of_operations_on_one_connection_and_a_miss_is_told_at_once() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, |order| order);
    let [mut saver, mut other] = savers([&first, &second]);
    let saved = keys(200);
    saver.save(&saved);
    await_installed(&first, &second);
    // One after the other: more than a connection may have streams at a time.
    saved.iter().for_each(|&key| other.check_ready(&[key]));
    let fetching = peers(&second).fetching;
    assert_eq!((fetching.fetched, fetching.missing), (200, 0), "{fetching:?}");
    assert_eq!(peers(&first).lending.connections, 1);
    // What nobody has costs a lookup and not a wait for somebody to wake the core.
    let begun = Instant::now();
    let absent = keys(20);
    absent.iter().for_each(|&key| assert!(other.check_never_wrong(&[key])[0].is_some()));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?} for 20 misses", begun.elapsed());
}

/// Blocks of which a source that sends a MiB a second has some for six seconds.
const MANY: usize = 96;

/// A pair of nodes that send a MiB a second, so that whoever dies can do so in the midst.
fn slow_pair(etcd: &Etcd) -> (Node, Node) {
    pair(etcd, |order| order.variable("ORBITKV_EGRESS_RATE", "1mib"))
}

/// Stops one of two nodes when some of [`MANY`] blocks have come from the other and most wait there.
fn stop_in_the_midst(source: &Node, reader: &Node, stopped: &Node) {
    eventually("some blocks have come, and most of them wait at their source", || {
        let (lent, brought) = (peers(source).lending, peers(reader).fetching);
        let most_wait = lent.egress_waiting_bytes > MANY as u64 * BLOCK_BYTES / 2;
        (brought.fetched > 0 && lent.pins > 0 && most_wait).then_some(())
    });
    stopped.freeze();
}

#[test]
fn a_source_that_dies_in_the_midst_costs_misses_and_nothing_else() {
    let etcd = Etcd::start();
    let (mut first, second) = slow_pair(&etcd);
    let [mut saver, mut other] = savers([&first, &second]);
    let saved = keys(MANY);
    saver.save(&saved);
    await_installed(&first, &second);
    let reader = std::thread::spawn(move || {
        let outcomes = other.check_never_wrong(&saved);
        (other, outcomes)
    });
    stop_in_the_midst(&first, &second, &first);
    // It sends no more, and not all that was asked for has come.
    let brought = peers(&second).fetching;
    assert!(brought.fetched > 0 && brought.outstanding_bytes > 0, "{brought:?}");
    first.kill();
    let (mut other, outcomes) = reader.join().expect("no wrong byte");
    let missed: Vec<_> = outcomes.iter().flatten().collect();
    let came = outcomes.len() - missed.len();
    assert!(outcomes.len() == MANY && came > 0 && !missed.is_empty(), "{outcomes:?}");
    // Its silence may be noticed after their time is over.
    let is_lost =
        |outcome: &BlockOutcome| [BlockOutcome::Missing, BlockOutcome::DeadlineExceeded].contains(outcome);
    assert!(missed.iter().all(|outcome| is_lost(outcome)), "{outcomes:?}");
    // The operator sees what became of them, that a call has failed, and that whoever told of them is gone.
    let brought = peers(&second).fetching;
    let lost = brought.missing + brought.deadline;
    assert_eq!((brought.fetched, lost), (came as u64, missed.len() as u64), "{brought:?}");
    assert_eq!((brought.wrong_checksums, brought.violations), (0, 0), "{brought:?}");
    assert!(brought.calls_failed > 0, "{brought:?}");
    second.await_metadata("its session is lost", |page| {
        let seen = page.shards[0].peers.as_ref().expect("a node of a cluster");
        seen.sessions_lost + seen.streams_excluded > 0
    });
    // It comes back with an empty cache: nothing of the old life is shown as complete.
    first.restart();
    eventually("the new life is known and empty", || {
        let page = second.metadata();
        let new = page.membership.members.iter().any(|member| member.node_id == "a" && member.epoch == 2);
        (new && page.coverage == "CompleteAtWatermarks" && page.index.rows == 0).then_some(())
    });
    let fresh = keys(20);
    Saver::connect(&first.socket(), "again").save(&fresh);
    await_installed(&first, &second);
    other.check_ready(&fresh);
    [&first, &second].into_iter().for_each(Node::assert_within_bill);
}

/// Kills a source and starts it again at once: its successor answers for nothing of the old life. How long after the
/// kill it was started.
fn kill_and_return() -> Duration {
    let etcd = Etcd::start();
    let (mut first, second) = pair(&etcd, |order| order);
    let [mut saver, mut other] = savers([&first, &second]);
    let (again, gone) = (keys(100), keys(100));
    saver.save(&again);
    saver.save(&gone);
    await_installed(&first, &second);
    // The one block that is read before: there is a payload connection to the old life.
    other.check_ready(&gone[..1]);
    let gone = &gone[1..];
    let held = record_of(&etcd, "a").contact;
    let started = first.kill_and_restart();
    // The same keys, and bytes that the old life never had.
    const SUCCESSOR: u64 = 7;
    let mut saver = Saver::connect(&first.socket(), "successor");
    let mut slots = saver.fill(&again, SUCCESSOR);
    saver.client.commit(&mut slots, WAIT).expect("Commit is answered");
    let is_known = || second.metadata().membership.members.iter().any(|member| member.epoch == 2);
    eventually("the new life is known, and nothing of the old one", || {
        // Asked in this order: who is known to be there then, is known in every later lookup.
        let known = is_known();
        let view = query(&mut other, gone);
        assert!(!known || view.boundary_blocks == 0, "a claim of the old life is shown: {view:?}");
        // Whatever is believed of it, the successor lends nothing in its predecessor's name.
        let acquired = other.acquire(&gone[..10]);
        assert!(acquired.blocks.iter().all(Result::is_err), "bytes of a dead process");
        known.then_some(())
    });
    await_installed(&first, &second);
    assert_eq!(query(&mut other, gone).boundary_blocks, 0);
    assert_eq!(query(&mut other, &again).coverage, Coverage::CompleteAtWatermarks);
    let acquired = other.acquire(&again);
    for (&key, result) in again.iter().zip(&acquired.blocks) {
        let bytes = result.as_ref().expect("the successor has it").bytes().expect("under a live lease");
        assert!(
            bytes == payload(key, SUCCESSOR, BLOCK_BYTES as usize),
            "key {key} has bytes of the old life"
        );
    }
    assert_eq!(second.metadata().index.rows, 100, "rows of the successor and none else");
    assert_eq!(peers(&second).fetching.wrong_checksums, 0);
    // At the very ports that its predecessor had.
    let MemberRecord { epoch, contact, .. } = record_of(&etcd, "a");
    assert_eq!((epoch, contact.address, contact.shards), (2, held.address, held.shards));
    let taken = UdpSocket::bind(held.address).err().map(|error| error.kind());
    assert_eq!(taken, Some(ErrorKind::AddrInUse), "{}", held.address);
    [&first, &second].into_iter().for_each(Node::assert_within_bill);
    started
}

#[test]
fn a_source_that_is_back_at_once_answers_for_nothing_of_its_old_life() {
    const AT_ONCE: Duration = Duration::from_millis(100);
    // Whoever is late is held to the same, but is not the case that is meant: a busy machine has another try.
    let mut late = Vec::new();
    while late.len() < 10 {
        match kill_and_return() {
            started if started <= AT_ONCE => return,
            started => late.push(started),
        }
    }
    panic!("no successor was started within {AT_ONCE:?} of the kill: {late:?}");
}

#[test]
fn a_requester_that_dies_in_the_midst_leaves_no_pins() {
    let etcd = Etcd::start();
    let (first, mut second) = slow_pair(&etcd);
    let [mut saver, mut other] = savers([&first, &second]);
    let saved = keys(MANY);
    saver.save(&saved);
    await_installed(&first, &second);
    let reader = std::thread::spawn(move || {
        let blocks: Vec<_> = saved.iter().map(|&key| block(key)).collect();
        let lists = [PrefixList { namespace: other.namespace, group: GROUP, blocks: &blocks }];
        // Its node dies before it can answer.
        other.client.acquire(&lists, None, WAIT).is_err()
    });
    stop_in_the_midst(&first, &second, &second);
    second.kill();
    // What has not been acknowledged stays pinned until its silence is noticed.
    let lent = peers(&first).lending;
    assert!(lent.pins > 0 && lent.operations > 0 && lent.pinned_bytes > 0, "{lent:?}");
    assert!(reader.join().expect("an answer or a lost connection"), "nobody was there to answer");
    await_nothing_lent(&first);
    let lent = peers(&first).lending;
    assert_eq!((lent.pinned_bytes, lent.quarantined_bytes, lent.egress_waiting_bytes), (0, 0, 0), "{lent:?}");
    assert!(lent.cut_off + lent.expired > 0, "the operator sees that it ended early: {lent:?}");
    first.assert_serves();
    first.assert_within_bill();
}

#[test]
fn a_fenced_node_serves_its_engines_and_comes_back_with_its_cache() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, |order| order.ssd("128mib"));
    let [mut saver, mut other] = savers([&first, &second]);
    let saved = keys(100);
    saver.save(&saved);
    await_installed(&first, &second);
    let old = first.metadata().incarnation;
    etcd.pause(0);
    for node in [&first, &second] {
        node.await_metadata("its life is over", |page| page.membership.fences == 1);
    }
    let view = query(&mut other, &saved);
    assert_eq!((view.boundary_blocks, view.coverage), (0, Coverage::Unavailable));
    assert!(other.check_never_wrong(&saved).iter().all(Option::is_some), "nothing is brought");
    saver.check_ready(&saved);
    etcd.resume(0);
    // The same process, another life, the same cache: put again, and read by the peer.
    let page = knows_all(&first, 2);
    knows_all(&second, 2);
    assert_ne!(page.incarnation, old);
    assert_eq!(page.epoch, Some(2));
    await_installed(&first, &second);
    assert_eq!(query(&mut other, &saved).boundary_blocks, 100);
    other.check_ready(&saved);
    saver.check_ready(&saved);
    // What it has on SSD has outlived its life, too: for the peer, and for its own engines.
    evict(&mut other, &saved, Media::ALL);
    evict(&mut saver, &saved, Medium::Dram.into());
    await_installed(&first, &second);
    let reads = || first.metadata().shards[0].ssd.reads;
    let before = reads();
    assert!(query(&mut other, &saved).places.iter().all(|place| *place == Place::PeerSsd));
    other.check_ready(&saved);
    assert_eq!(second.metadata().shards[0].service.peer_hits.ssd, 100);
    assert_eq!(reads() - before, 100);
    await_nothing_lent(&first);
    assert!(query(&mut saver, &saved).places.iter().all(|place| *place == Place::Ssd));
    saver.check_ready(&saved);
    assert_eq!(reads() - before, 200);
    [&first, &second].into_iter().for_each(Node::assert_within_bill);
}

#[test]
fn a_node_that_slept_longer_than_its_lease_lends_nothing_of_its_old_life() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, |order| order);
    let [mut saver, mut other] = savers([&first, &second]);
    let saved = keys(50);
    saver.save(&saved);
    await_installed(&first, &second);
    first.freeze();
    second.await_metadata("the sleeper is no member", |page| page.membership.members.len() == 1);
    assert_eq!(query(&mut other, &saved).boundary_blocks, 0);
    first.signal(Signal::CONT);
    knows_all(&first, 2);
    knows_all(&second, 2);
    await_installed(&first, &second);
    other.check_ready(&saved);
    assert_eq!(first.metadata().membership.fences, 1);
    [&first, &second].into_iter().for_each(Node::assert_within_bill);
}

/// A member that the test plays, and a block that `a` holds in the life that it has when this one joins.
struct Asker {
    peer: ScriptedPeer,
    source: MemberRecord,
    binding: Binding,
    residence: ExactResidence,
    key: u64,
    asked: u64,
}

impl Asker {
    /// `node` is `a`, and has saved nothing before.
    fn of(etcd: &Etcd, node: &Node) -> Asker {
        node.await_metadata("it is a member", |page| page.membership.validity == "member");
        let mut saver = Saver::connect(&node.socket(), "engine");
        let key = fresh_key();
        saver.save(&[key]);
        let namespace = saver.client.digest(saver.namespace).expect("registered");
        let sequence = Sequence(node.metadata().inventory_sequence[0]);
        let (block, medium) = (block(key), Medium::Dram);
        let residence = ExactResidence { namespace, group: GROUP, block, medium, sequence };
        let source = record_of(etcd, "a");
        let mut peer = ScriptedPeer::with(&NodeKey::ephemeral());
        let requester = peer.join(etcd, "asker");
        peer.learn(&source);
        node.await_metadata("the asker is a member", |page| {
            page.membership.members.iter().any(|member| member.node_id == "asker")
        });
        let binding = binding(etcd, &source, requester);
        Asker { peer, source, binding, residence, key, asked: 0 }
    }

    fn connect(&mut self) -> ConnectionId {
        self.peer.connect(&self.source, Purpose::Payload)
    }

    /// Asks for the block by its old name, under a number that was not used before.
    fn ask(&mut self, connection: ConnectionId) -> Reply {
        self.asked += 1;
        let operation = OperationId { origin: 7, number: self.asked };
        let authorize = Authorize {
            binding: self.binding,
            operation,
            deadline_ms: 10_000,
            transport: Transport::Quic,
            attempt: Attempt::First,
            residences: vec![self.residence],
        };
        let mut frame = Vec::new();
        append_authorize(&mut frame, &authorize);
        self.peer.ask(connection, &frame)
    }

    /// Gets the block, as long as the life lasts in which it was saved.
    fn gets_it(&mut self, connection: ConnectionId) {
        let reply = self.ask(connection);
        let bytes = reply.payloads.get(&0).unwrap_or_else(|| panic!("nothing came: {:?}", reply.frames));
        assert!(*bytes == payload(self.key, 0, BLOCK_BYTES as usize), "other bytes than saved");
    }

    /// Is refused, and gets nothing.
    fn refusal(&mut self, connection: ConnectionId) -> Refusal {
        let reply = self.ask(connection);
        let [FromSource::Refused(refusal)] = &reply.frames[..] else { panic!("{:?}", reply.frames) };
        assert!(reply.payloads.is_empty(), "bytes of a life that is over");
        *refusal
    }

    /// Asks on and on until it hears of the life that comes next; how often it heard before that there is none.
    fn stays_refused_until_the_next_life(&mut self, connection: ConnectionId) -> u64 {
        let begun = Instant::now();
        let mut expired = 0;
        loop {
            match self.refusal(connection) {
                Refusal::LeaseExpired => expired += 1,
                Refusal::StaleEpoch { epoch: 2, incarnation } => {
                    assert_ne!(incarnation, self.source.incarnation);
                    return expired;
                }
                other => panic!("refused otherwise: {other:?}"),
            }
            assert!(begun.elapsed() < WAIT, "there is no next life");
        }
    }
}

/// What `a` has granted was one block, before its life was over; and it serves.
fn has_lent_nothing_since(node: &Node, expired: u64) {
    let page = node.await_metadata("it lives again", |page| page.membership.validity == "member");
    assert_eq!((page.membership.fences, page.epoch), (1, Some(2)), "{:#?}", page.membership);
    let lent = peers(node).lending;
    assert_eq!((lent.granted, lent.lent_bytes), (1, BLOCK_BYTES), "{lent:?}");
    assert_eq!((lent.lease_expired, lent.stale_epoch), (expired, 1), "{lent:?}");
    let metrics = http_text(node.http(), "/metrics");
    let shown = format!("orbitkv_grants_total{{shard=\"0\",kind=\"lease_expired\"}} {expired}\n");
    assert!(metrics.contains(&shown), "no {shown} in {metrics}");
    node.assert_serves();
    node.assert_within_bill();
}

#[test]
fn the_first_request_to_a_node_that_slept_longer_than_its_lease_is_refused() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, |order| order);
    let mut asker = Asker::of(&etcd, &first);
    let connection = asker.connect();
    asker.gets_it(connection);
    first.freeze();
    second.await_metadata("the sleeper is no member", |page| {
        page.membership.members.iter().all(|member| member.node_id != "a")
    });
    first.signal(Signal::CONT);
    // Who was a member when it fell asleep is let in. What is asked before it knows that its life is over waits
    // until it does; etcd is there, so the next life is not far, and the first answer may be of that one.
    let connection = asker.connect();
    let expired = asker.stays_refused_until_the_next_life(connection);
    has_lent_nothing_since(&first, expired);
    second.assert_within_bill();
}

#[test]
fn a_node_that_cannot_renew_its_lease_says_that_it_has_expired() {
    let etcd = Etcd::start();
    let node = order("a", free_port(), &etcd).start();
    let mut asker = Asker::of(&etcd, &node);
    let connection = asker.connect();
    asker.gets_it(connection);
    etcd.pause(0);
    node.await_metadata("its life is over", |page| page.membership.fences == 1);
    // It knows its members as before, so a handshake succeeds; there is just no life in whose name it could lend.
    let connection = asker.connect();
    for expired in 1..=3 {
        assert_eq!(asker.refusal(connection), Refusal::LeaseExpired);
        let lent = peers(&node).lending;
        assert_eq!((lent.lease_expired, lent.stale_epoch, lent.granted), (expired, 0, 1), "{lent:?}");
    }
    etcd.resume(0);
    let expired = 3 + asker.stays_refused_until_the_next_life(connection);
    has_lent_nothing_since(&node, expired);
}

#[test]
fn noise_on_the_ports_changes_nothing() {
    let etcd = Etcd::start();
    let port = free_port();
    let first = order("a", port, &etcd).start();
    let second = order("b", free_port(), &etcd).start();
    knows_all(&first, 2);
    let noise = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let begun = Instant::now();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    while begun.elapsed() < soak_or(Duration::from_secs(2)) {
        let bytes: Vec<u8> = (0..1_200)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        let _ = noise.send_to(&bytes, ("127.0.0.1", port));
    }
    let saved = keys(50);
    Saver::connect(&first.socket(), "a").save(&saved);
    await_installed(&first, &second);
    Saver::connect(&second.socket(), "b").check_ready(&saved);
    let seen = peers(&first);
    assert!(seen.datagrams_dropped > 0, "{seen:#?}");
    assert_eq!(seen.protocol_errors, 0);
    [&first, &second].into_iter().for_each(Node::assert_within_bill);
}

#[test]
fn fences_that_cannot_be_awaited_are_refused_by_name() {
    let etcd = Etcd::start();
    let (first, second) = pair(&etcd, |order| order);
    let fence = orbitkv(&["sync", "--http", first.http(), "--json"]).stdout;
    let await_at = |node: &Node, fence: &str, more: &[&str]| {
        let file = node.run_dir().join("fence.json");
        std::fs::write(&file, fence).expect("room for a fence");
        let file = file.to_str().expect("a plain path").to_owned();
        orbitkv(&[&["await", "--http", node.http(), "--fence", &file], more].concat())
    };
    assert_eq!(await_at(&second, &fence, &[]).code, Some(0));
    let zeros = "0".repeat(64);
    let mut broken: serde_json::Value = serde_json::from_str(&fence).expect("JSON");
    broken["inventory_sequence"] = serde_json::json!([1, 2]);
    let two = broken.to_string();
    broken["inventory_sequence"] = serde_json::json!([u64::MAX]);
    let far = broken.to_string();
    broken["incarnation"] = serde_json::json!("00000000-0000-4000-8000-000000000000");
    let other_life = broken.to_string();
    broken["cluster_uuid"] = serde_json::json!("00000000-0000-4000-8000-000000000000");
    let other_cluster = broken.to_string();
    for (node, fence, more, name) in [
        (&first, &fence, &[][..], "own-fence"),
        (&second, &fence, &["--scope-digest", &zeros][..], "another-scope"),
        (&second, &two, &[], "vector-length"),
        (&second, &far, &["--timeout", "100ms"], "timeout"),
        (&second, &other_life, &[], "another-incarnation"),
        (&second, &other_cluster, &[], "another-cluster"),
    ] {
        let said = await_at(node, fence, more);
        assert_ne!(said.code, Some(0), "{said:#?}");
        assert!(said.stderr.contains(name), "no {name} in {said:#?}");
    }
}
