//! Grants on the real wire, asked for by a peer that plays false with a member's own key: what has been asked once,
//! has ended, belongs to somebody else or was said to another life gives no byte, no place in the arena, and an answer
//! by the protocol.

use std::collections::BTreeMap;
use std::time::Duration;

use orbitkv::client::{CommitOutcome, Medium};
use orbitkv::control::report::LendingReport;
use orbitkv_native::quic::{ConnectionId, Loss, NodeKey, Priority, Purpose};
use orbitkv_wire::identity::{GroupId, NamespaceDigest, Sequence, ShardIndex};
use orbitkv_wire::membership::MemberRecord;
use orbitkv_wire::payload::{
    Answer, Attempt, Authorize, Binding, ExactResidence, FromRequester, FromSource, OperationId, Refusal,
    StopCause, Transport, append_authorize, append_from_requester,
};

use crate::harness::etcd::free_port;
use crate::harness::saver::{BLOCK_BYTES, GROUP, block, fresh_key, payload};
use crate::harness::scripted_peer::{Reply, WINDOW_BYTES, binding, record_of};
use crate::harness::{Etcd, Node, PeerSocket, Saver, ScriptedPeer, WAIT};
use crate::peers::{evict, keys, order, peers};

/// A node that lends, and a member of its cluster that asks.
struct Stage {
    etcd: Etcd,
    node: Node,
    saver: Saver,
    record: MemberRecord,
    namespace: NamespaceDigest,
    peer: ScriptedPeer,
    connection: ConnectionId,
    binding: Binding,
    transport: Transport,
}

impl Stage {
    fn start() -> Stage {
        Stage::over(Transport::Quic, "quic")
    }

    /// A node that shares memory, and a member on its host that asks for that.
    fn sharing() -> Stage {
        Stage::over(Transport::Shm, "shm,quic")
    }

    fn over(transport: Transport, transports: &str) -> Stage {
        let etcd = Etcd::start();
        let node = order("a", free_port(), &etcd).variable("ORBITKV_TRANSPORTS", transports).start();
        let saver = Saver::connect(&node.socket(), "engine");
        let namespace = saver.client.digest(saver.namespace).expect("registered");
        node.await_metadata("it is a member", |page| page.membership.validity == "member");
        let record = record_of(&etcd, "a");
        let (peer, connection, binding) = asker(&etcd, &node, &record, "asker");
        Stage { etcd, node, saver, record, namespace, peer, connection, binding, transport }
    }

    /// The member joins the peer socket with its connection.
    fn share(&mut self) -> PeerSocket {
        self.peer.share(self.connection, &self.record)
    }

    /// Saves a key as `writer`; the residence that it begins.
    fn save(&mut self, key: u64, writer: u64) -> ExactResidence {
        let mut slots = self.saver.fill(&[key], writer);
        let outcomes = self.saver.client.commit(&mut slots, WAIT).expect("Commit is answered");
        assert_eq!(outcomes, [CommitOutcome::Committed]);
        let sequence = Sequence(self.node.metadata().inventory_sequence[0]);
        let namespace = self.namespace;
        ExactResidence { namespace, group: GROUP, block: block(key), medium: Medium::Dram, sequence }
    }

    fn request(&self, number: u64, residences: &[ExactResidence]) -> Vec<u8> {
        request_over(self.transport, self.binding, number, 60_000, residences)
    }

    fn ask(&mut self, number: u64, residences: &[ExactResidence]) -> Reply {
        let request = self.request(number, residences);
        self.peer.ask(self.connection, &request)
    }

    fn lending(&self) -> LendingReport {
        peers(&self.node).lending
    }

    /// Nothing is pinned any more, nothing was quarantined, and the node serves.
    fn nothing_is_lent(&mut self) {
        let (node, peer) = (&self.node, &mut self.peer);
        peer.until("nothing is lent", |_| {
            let lending = peers(node).lending;
            (lending.pins + lending.operations + lending.pinned_bytes == 0).then_some(())
        });
        assert_eq!(self.lending().quarantined_bytes, 0);
        assert_eq!(peers(&self.node).protocol_errors, 0);
        self.node.assert_serves();
        self.node.assert_within_bill();
    }
}

/// A member whose payload connection to the node is open.
fn asker(
    etcd: &Etcd,
    node: &Node,
    record: &MemberRecord,
    name: &str,
) -> (ScriptedPeer, ConnectionId, Binding) {
    let mut peer = ScriptedPeer::with(&NodeKey::ephemeral());
    let requester = peer.join(etcd, name);
    peer.learn(record);
    node.await_metadata("the asker is a member", |page| {
        page.membership.members.iter().any(|member| member.node_id == name)
    });
    let connection = peer.connect(record, Purpose::Payload);
    (peer, connection, binding(etcd, record, requester))
}

fn operation(number: u64) -> OperationId {
    OperationId { origin: 7, number }
}

fn request(binding: Binding, number: u64, deadline_ms: u32, residences: &[ExactResidence]) -> Vec<u8> {
    request_over(Transport::Quic, binding, number, deadline_ms, residences)
}

fn request_over(
    transport: Transport,
    binding: Binding,
    number: u64,
    deadline_ms: u32,
    residences: &[ExactResidence],
) -> Vec<u8> {
    let (operation, residences) = (operation(number), residences.to_vec());
    let mut frame = Vec::new();
    let attempt = Attempt::First;
    let authorize = Authorize { binding, operation, deadline_ms, transport, attempt, residences };
    append_authorize(&mut frame, &authorize);
    frame
}

#[track_caller]
fn granted(reply: &Reply, expected: &[Vec<u8>]) {
    let FromSource::Answers { answers, .. } = &reply.frames[0] else { panic!("{:?}", reply.frames) };
    let all = answers.iter().all(|answer| matches!(answer, Answer::Granted { .. }));
    assert!(all && answers.len() == expected.len() && reply.reset.is_none(), "{:?}", reply.frames);
    for (expected, index) in expected.iter().zip(0..) {
        assert!(reply.payloads[&index] == *expected, "residence {index} has other bytes than saved");
    }
}

/// All is granted, and lies in the arena where it is told to be; no byte of it came. The places.
#[track_caller]
fn lent(reply: &Reply, socket: &PeerSocket, expected: &[Vec<u8>]) -> Vec<u64> {
    let [FromSource::Answers { answers, .. }, told @ ..] = &reply.frames[..] else {
        panic!("{:?}", reply.frames)
    };
    let all = answers.iter().all(|answer| matches!(answer, Answer::Granted { .. }));
    assert!(all && answers.len() == expected.len() && reply.reset.is_none(), "{:?}", reply.frames);
    assert!(told.len() == expected.len() && reply.payloads.is_empty(), "{:?}", reply.frames);
    let places = told.iter().map(|frame| match frame {
        FromSource::Extent { index, offset, .. } => (usize::from(*index), *offset),
        other => panic!("no place: {other:?}"),
    });
    let places: BTreeMap<usize, u64> = places.collect();
    for (index, expected) in expected.iter().enumerate() {
        let lies = socket.read(places[&index], expected.len());
        assert!(lies == *expected, "residence {index} has other bytes than saved");
    }
    places.into_values().collect()
}

/// Says on a peer socket that nothing of an operation is read any more; the source answers in any case.
fn release(peer: &mut ScriptedPeer, socket: &mut PeerSocket, number: u64) {
    socket.say_released(operation(number));
    peer.until("Released is answered", |_| socket.take_drained(operation(number)).then_some(()));
}

/// Names under which nobody has anything: one block's place in the journal under another's name, and blocks of a group,
/// a namespace and a medium where neither is.
fn forged(own: ExactResidence, beside: ExactResidence) -> [ExactResidence; 5] {
    [
        ExactResidence { sequence: beside.sequence, ..own },
        ExactResidence { sequence: own.sequence, ..beside },
        ExactResidence { group: GroupId(1), ..own },
        ExactResidence { namespace: NamespaceDigest([9; 32]), ..own },
        ExactResidence { medium: Medium::Ssd, ..own },
    ]
}

/// No residence is granted, and no byte came.
#[track_caller]
fn none_granted(reply: &Reply) -> Vec<Answer> {
    let [FromSource::Answers { answers, .. }] = &reply.frames[..] else { panic!("{:?}", reply.frames) };
    let any = answers.iter().any(|answer| matches!(answer, Answer::Granted { .. }));
    assert!(!any && reply.payloads.is_empty(), "{:?}", reply.frames);
    answers.clone()
}

#[track_caller]
fn refused(reply: &Reply, refusal: Refusal) {
    assert_eq!(reply.frames, [FromSource::Refused(refusal)]);
    assert!(reply.payloads.is_empty() && reply.reset.is_none());
}

fn bytes_of(key: u64, writer: u64) -> Vec<u8> {
    payload(key, writer, BLOCK_BYTES as usize)
}

#[test]
fn a_request_is_served_once_whoever_repeats_it() {
    let mut stage = Stage::start();
    let key = fresh_key();
    let residence = stage.save(key, 0);
    let first = stage.request(1, &[residence]);
    let reply = stage.peer.ask(stage.connection, &first);
    granted(&reply, &[bytes_of(key, 0)]);
    // Again on another stream, after its release, and on another connection of the same member.
    refused(&stage.peer.ask(stage.connection, &first), Refusal::Repeated);
    let mut release = Vec::new();
    append_from_requester(&mut release, stage.binding.tag(), FromRequester::Release(operation(1)));
    stage.peer.say(stage.connection, release, Priority::Urgent);
    refused(&stage.peer.ask(stage.connection, &first), Refusal::Repeated);
    let another = stage.peer.connect(&stage.record, Purpose::Payload);
    refused(&stage.peer.ask(another, &first), Refusal::Repeated);
    // A cancel that comes before its request burns the number.
    let mut cancel = Vec::new();
    append_from_requester(&mut cancel, stage.binding.tag(), FromRequester::Cancel(operation(2)));
    stage.peer.say(another, cancel, Priority::Urgent);
    stage.peer.live_for(Duration::from_millis(300));
    let second = stage.request(2, &[residence]);
    refused(&stage.peer.ask(another, &second), Refusal::Repeated);
    // Another member has heard it: its words are worth nothing in that mouth, its own are.
    let (mut eavesdropper, heard_on, own) = asker(&stage.etcd, &stage.node, &stage.record, "eavesdropper");
    refused(&eavesdropper.ask(heard_on, &first), Refusal::Misdirected);
    let unused = stage.request(3, &[residence]);
    refused(&eavesdropper.ask(heard_on, &unused), Refusal::Misdirected);
    granted(&eavesdropper.ask(heard_on, &request(own, 1, 60_000, &[residence])), &[bytes_of(key, 0)]);
    // What it said in another's name has used up nothing of theirs.
    granted(&stage.ask(3, &[residence]), &[bytes_of(key, 0)]);
    let lending = stage.lending();
    assert_eq!((lending.repeated, lending.misdirected, lending.granted), (4, 2, 3), "{lending:#?}");
    assert_eq!(lending.lent_bytes, 3 * BLOCK_BYTES);
    stage.nothing_is_lent();
}

#[test]
fn a_residence_that_ended_is_not_the_one_that_came_after_it() {
    let mut stage = Stage::start();
    let (key, neighbour) = (fresh_key(), fresh_key());
    let old = stage.save(key, 0);
    let beside = stage.save(neighbour, 0);
    granted(&stage.ask(1, &[old, beside]), &[bytes_of(key, 0), bytes_of(neighbour, 0)]);
    evict(&mut stage.saver, &[key], Medium::Dram.into());
    let ended = none_granted(&stage.ask(2, &[old]));
    assert_eq!(ended, [Answer::Ended { sequence: Some(Sequence(3)) }], "it was the third change");
    // Saved again, in other words: the old name gives nothing of the new bytes.
    let new = stage.save(key, 9);
    assert!(new.sequence > old.sequence);
    let ended = none_granted(&stage.ask(3, &[old]));
    assert_eq!(ended, [Answer::Ended { sequence: Some(Sequence(3)) }]);
    granted(&stage.ask(4, &[new]), &[bytes_of(key, 9)]);
    // A neighbour's extent under our name, and ours under a neighbour's: nothing of either.
    let forged = forged(new, beside);
    assert_eq!(none_granted(&stage.ask(5, &forged)).len(), forged.len());
    let before = stage.lending();
    let beyond = ExactResidence { sequence: Sequence(u64::MAX), ..new };
    let answers = none_granted(&stage.ask(6, &[beyond]));
    assert_eq!(answers, [Answer::NeverHeld { head: new.sequence }]);
    assert_eq!(stage.lending().beyond_head, before.beyond_head + 1, "an alarm of its own");
    // Another shard's, another cluster's, another node's.
    let own = stage.binding;
    let mut other_shard = own;
    other_shard.source.shard = ShardIndex(1);
    let mut other_node = own;
    other_node.source.node = "b".parse().expect("a name");
    let mut other_cluster = own;
    other_cluster.cluster.0[0] ^= 1;
    for binding in [other_shard, other_node, other_cluster] {
        refused(
            &stage.peer.ask(stage.connection, &request(binding, 7, 60_000, &[new])),
            Refusal::Misdirected,
        );
    }
    granted(&stage.ask(7, &[new, beside]), &[bytes_of(key, 9), bytes_of(neighbour, 0)]);
    stage.nothing_is_lent();
}

#[test]
fn an_expired_grant_sends_no_more_and_cannot_be_renewed() {
    let mut stage = Stage::start();
    let blocks = keys(2 * (WINDOW_BYTES as usize) / BLOCK_BYTES as usize);
    let residences: Vec<_> = blocks.iter().map(|&key| stage.save(key, 0)).collect();
    // More than it lets come, and it reads nothing until the grant is over.
    let asked = request(stage.binding, 1, 1_500, &residences);
    let stream = stage.peer.say(stage.connection, asked.clone(), Priority::Ordinary);
    let (node, peer) = (&stage.node, &mut stage.peer);
    peer.until("it is pinned", |_| (peers(node).lending.pins == blocks.len() as u64).then_some(()));
    peer.until("the grant expires", |_| (peers(node).lending.expired == 1).then_some(()));
    let reply = peer.listen(stage.connection, stream);
    assert_eq!(reply.reset, Some(StopCause::Deadline as u64), "{:?}", reply.frames);
    let come: usize = reply.payloads.values().map(Vec::len).sum();
    assert!(come <= WINDOW_BYTES as usize, "{come} bytes came");
    // What came before the end is what was granted.
    for (&index, bytes) in &reply.payloads {
        let expected = bytes_of(blocks[usize::from(index)], 0);
        assert!(expected.starts_with(bytes), "residence {index} has other bytes than saved");
    }
    stage.nothing_is_lent();
    refused(&stage.peer.ask(stage.connection, &asked), Refusal::Repeated);
    let last = residences.len() - 1;
    granted(&stage.ask(2, &residences[last..]), &[bytes_of(blocks[last], 0)]);
    stage.nothing_is_lent();
}

#[test]
fn words_to_a_life_that_is_over_are_answered_with_the_present_one() {
    let mut stage = Stage::start();
    let key = fresh_key();
    let residence = stage.save(key, 0);
    let said_then = stage.request(1, &[residence]);
    granted(&stage.peer.ask(stage.connection, &said_then), &[bytes_of(key, 0)]);
    stage.node.kill();
    stage.node.restart();
    stage.node.await_metadata("it lives again and knows the asker", |page| {
        page.membership.validity == "member" && page.membership.members.len() == 2
    });
    stage.record = record_of(&stage.etcd, "a");
    let MemberRecord { epoch, incarnation, .. } = stage.record;
    assert_eq!(epoch, 2);
    stage.saver = Saver::connect(&stage.node.socket(), "engine");
    // The same key begins the journal of the new life, with other bytes under the same number.
    let again = stage.save(key, 9);
    assert_eq!(again, residence);
    stage.connection = stage.peer.connect(&stage.record, Purpose::Payload);
    let stale = Refusal::StaleEpoch { epoch, incarnation };
    refused(&stage.peer.ask(stage.connection, &said_then), stale);
    let future = |binding: &mut Binding| binding.source.epoch += 1;
    stage.binding.source.incarnation = incarnation;
    stage.binding.source.epoch = epoch;
    let mut ahead = stage.binding;
    future(&mut ahead);
    refused(&stage.peer.ask(stage.connection, &request(ahead, 2, 60_000, &[again])), stale);
    granted(&stage.ask(3, &[again]), &[bytes_of(key, 9)]);
    assert_eq!(stage.lending().stale_epoch, 2);
    // Nor does a requester outlive its own record.
    stage.etcd.ctl(&["del", "/orbitkv/v2/test/members/asker"]);
    assert!(matches!(stage.peer.await_loss(stage.connection), Loss::Closed { .. }));
    assert_eq!(stage.peer.dial_in_vain(&stage.record, Purpose::Payload), Loss::HandshakeTimeout);
    stage.nothing_is_lent();
}

#[test]
fn a_place_in_the_arena_is_told_once_whoever_repeats_the_request() {
    let mut stage = Stage::sharing();
    let mut socket = stage.share();
    let key = fresh_key();
    let residence = stage.save(key, 0);
    let bytes = [bytes_of(key, 0)];
    let first = stage.request(1, &[residence]);
    lent(&stage.peer.ask(stage.connection, &first), &socket, &bytes);
    assert_eq!(stage.lending().pins, 1, "until its reader lets go");
    // Again on another stream, and on another connection of the same member; before its release and after it.
    let another = stage.peer.connect(&stage.record, Purpose::Payload);
    for _ in 0..2 {
        refused(&stage.peer.ask(stage.connection, &first), Refusal::Repeated);
        refused(&stage.peer.ask(another, &first), Refusal::Repeated);
        release(&mut stage.peer, &mut socket, 1);
        assert_eq!(stage.lending().pins, 0);
    }
    // A release that comes before its request burns the number.
    release(&mut stage.peer, &mut socket, 2);
    refused(&stage.ask(2, &[residence]), Refusal::Repeated);
    // It is a process that reads, whichever connection of its node it asks on.
    let third = stage.request(3, &[residence]);
    lent(&stage.peer.ask(another, &third), &socket, &bytes);
    // Another member has heard it. It has not joined: what it asks for itself is off, and what it repeats is not its.
    let (mut neighbour, heard_on, own) = asker(&stage.etcd, &stage.node, &stage.record, "neighbour");
    let own = |number| request_over(Transport::Shm, own, number, 60_000, &[residence]);
    refused(&neighbour.ask(heard_on, &own(1)), Refusal::TransportOff);
    refused(&neighbour.ask(heard_on, &third), Refusal::Misdirected);
    // Nor is it once it has joined, and what it lets go of is its own.
    let mut its_socket = neighbour.share(heard_on, &stage.record);
    refused(&neighbour.ask(heard_on, &third), Refusal::Misdirected);
    release(&mut neighbour, &mut its_socket, 3);
    assert_eq!(stage.lending().pins, 1, "another's word frees nothing");
    lent(&neighbour.ask(heard_on, &own(2)), &its_socket, &bytes);
    assert_eq!((stage.lending().pins, stage.lending().readers), (2, 2));
    release(&mut neighbour, &mut its_socket, 2);
    release(&mut stage.peer, &mut socket, 3);
    let lending = stage.lending();
    assert_eq!((lending.repeated, lending.misdirected, lending.granted), (5, 2, 3), "{lending:#?}");
    assert_eq!((lending.lent_bytes, lending.lent_shm_bytes), (3 * BLOCK_BYTES, 3 * BLOCK_BYTES));
    stage.nothing_is_lent();
}

#[test]
fn the_place_of_a_residence_that_ended_is_told_to_nobody_and_used_for_nothing_while_it_is_read() {
    let mut stage = Stage::sharing();
    let mut socket = stage.share();
    let (key, neighbour) = (fresh_key(), fresh_key());
    let old = stage.save(key, 0);
    let beside = stage.save(neighbour, 0);
    let places = lent(&stage.ask(1, &[old, beside]), &socket, &[bytes_of(key, 0), bytes_of(neighbour, 0)]);
    evict(&mut stage.saver, &[key], Medium::Dram.into());
    let ended = [Answer::Ended { sequence: Some(Sequence(3)) }];
    assert_eq!(none_granted(&stage.ask(2, &[old])), ended, "it was the third change");
    // Saved again, in other words: the old name gives no place of the new bytes, and they lie elsewhere.
    let new = stage.save(key, 9);
    assert!(new.sequence > old.sequence);
    assert_eq!(none_granted(&stage.ask(3, &[old])), ended);
    let again = lent(&stage.ask(4, &[new]), &socket, &[bytes_of(key, 9)]);
    assert!(!places.contains(&again[0]), "{places:?}, then {again:?}");
    assert!(
        socket.read(places[0], BLOCK_BYTES as usize) == bytes_of(key, 0),
        "it is read, and was used again"
    );
    // A neighbour's place under our name, ours under a neighbour's, and what never was.
    let forged = forged(new, beside);
    assert_eq!(none_granted(&stage.ask(5, &forged)).len(), forged.len());
    let before = stage.lending();
    assert_eq!(before.ended + before.never_held, 2 + forged.len() as u64, "{before:#?}");
    let beyond = ExactResidence { sequence: Sequence(u64::MAX), ..new };
    assert_eq!(none_granted(&stage.ask(6, &[beyond])), [Answer::NeverHeld { head: new.sequence }]);
    let lending = stage.lending();
    assert_eq!((lending.beyond_head, lending.pins), (before.beyond_head + 1, 3), "{lending:#?}");
    release(&mut stage.peer, &mut socket, 1);
    release(&mut stage.peer, &mut socket, 4);
    refused(&stage.ask(1, &[new]), Refusal::Repeated);
    assert_eq!(none_granted(&stage.ask(7, &[old])), ended);
    let lending = stage.lending();
    assert_eq!((lending.granted, lending.lent_shm_bytes), (3, 3 * BLOCK_BYTES), "{lending:#?}");
    stage.nothing_is_lent();
}

#[test]
fn an_expired_place_is_not_told_again_and_keeps_its_bytes_until_its_reader_lets_go() {
    let mut stage = Stage::sharing();
    let mut socket = stage.share();
    let key = fresh_key();
    let residence = stage.save(key, 0);
    let asked = request_over(Transport::Shm, stage.binding, 1, 4_000, &[residence]);
    let places = lent(&stage.peer.ask(stage.connection, &asked), &socket, &[bytes_of(key, 0)]);
    let (node, peer) = (&stage.node, &mut stage.peer);
    peer.until("the grant expires", |_| (peers(node).lending.expired == 1).then_some(()));
    let lending = stage.lending();
    assert_eq!((lending.quarantined_bytes, lending.quarantines, lending.pins), (BLOCK_BYTES, 1, 1));
    refused(&stage.peer.ask(stage.connection, &asked), Refusal::Repeated);
    let another = stage.peer.connect(&stage.record, Purpose::Payload);
    refused(&stage.peer.ask(another, &asked), Refusal::Repeated);
    // The block itself is lent as before, and evicted; its memory is nobody else's.
    lent(&stage.ask(2, &[residence]), &socket, &[bytes_of(key, 0)]);
    release(&mut stage.peer, &mut socket, 2);
    evict(&mut stage.saver, &[key], Medium::Dram.into());
    assert_eq!(stage.lending().quarantined_bytes, BLOCK_BYTES);
    let new = stage.save(key, 9);
    let again = lent(&stage.ask(3, &[new]), &socket, &[bytes_of(key, 9)]);
    assert_ne!(again, places);
    assert!(socket.read(places[0], BLOCK_BYTES as usize) == bytes_of(key, 0), "it was used again");
    // Whenever it says so, and however often: the memory comes back by its word.
    for number in [3, 1, 1] {
        release(&mut stage.peer, &mut socket, number);
    }
    stage.nothing_is_lent();
    refused(&stage.peer.ask(stage.connection, &asked), Refusal::Repeated);
    assert_eq!(stage.lending().repeated, 3);
}

#[test]
fn who_has_left_the_peer_socket_is_told_no_place_and_keeps_what_it_was_told_until_it_says_so() {
    let mut stage = Stage::sharing();
    let key = fresh_key();
    let residence = stage.save(key, 0);
    refused(&stage.ask(1, &[residence]), Refusal::TransportOff);
    let socket = stage.share();
    let places = lent(&stage.ask(2, &[residence]), &socket, &[bytes_of(key, 0)]);
    drop(socket);
    let (node, peer) = (&stage.node, &mut stage.peer);
    peer.until("it has left", |_| (peers(node).lending.readers == 0).then_some(()));
    refused(&stage.ask(3, &[residence]), Refusal::TransportOff);
    refused(&stage.ask(2, &[residence]), Refusal::Repeated);
    assert_eq!(stage.lending().pins, 1, "a closed socket proves nothing");
    // The same connection proves it once more, and neither refused number is of use now.
    let mut socket = stage.share();
    refused(&stage.ask(1, &[residence]), Refusal::Repeated);
    refused(&stage.ask(3, &[residence]), Refusal::Repeated);
    assert_eq!(lent(&stage.ask(4, &[residence]), &socket, &[bytes_of(key, 0)]), places);
    assert_eq!(stage.lending().pins, 2);
    release(&mut stage.peer, &mut socket, 2);
    release(&mut stage.peer, &mut socket, 4);
    let lending = stage.lending();
    assert_eq!((lending.granted, lending.lent_shm_bytes), (2, 2 * BLOCK_BYTES), "{lending:#?}");
    assert_eq!((lending.repeated, lending.readers), (3, 1), "{lending:#?}");
    stage.nothing_is_lent();
}
