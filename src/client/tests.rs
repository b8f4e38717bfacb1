//! The client against a scripted node on a real socket with a real arena. Both ends run on one
//! thread after the handshake, so that every order of events is chosen by the test.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use orbitkv_native::arena::{Arena, PagePreference};
use orbitkv_native::engine_socket::send_with_fds;
use orbitkv_wire::engine::answers::*;
use orbitkv_wire::engine::requests::{Request, decode_request};
use orbitkv_wire::engine::{Header, Operation, Status, VERSION, VERSION_MIN, layout_hash, split_frame};
use proptest::prelude::*;

use super::*;

const WAIT: Duration = Duration::from_secs(5);
const ARENA_BYTES: u64 = 1 << 20;

struct Node {
    directory: tempfile::TempDir,
    listener: UnixListener,
    arena: Arena,
    generation: u64,
    version: u16,
}

/// The node's end of one connection.
struct Peer {
    stream: UnixStream,
    received: Vec<u8>,
}

impl Node {
    fn new(generation: u64) -> Node {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("engine.sock")).unwrap();
        let (arena, _) = Arena::create(ARENA_BYTES, PagePreference::Small).unwrap();
        Node { directory, listener, arena, generation, version: VERSION }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("engine.sock")
    }

    /// Accepts one connection and answers its Hello; returns the previous connection it names.
    fn accept(&self, connection: u64, in_flight: u16) -> (Peer, u64) {
        let (stream, _) = self.listener.accept().unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        let mut peer = Peer { stream, received: Vec::new() };
        let (header, body) = peer.next();
        let Request::Hello(hello) = decode_request(&header, &body).unwrap() else { panic!("no Hello first") };
        let answer = HelloAnswer {
            version: self.version,
            layout_hash: layout_hash(),
            arena_generation: self.generation,
            arena_bytes: ARENA_BYTES,
            connection,
            incarnation: [1; 16],
            shards: 1,
            in_flight,
            page_kind: 0,
        };
        let mut out = Vec::new();
        append_answer::<_, HelloAnswer>(&mut out, Operation::Hello, header.request_id, false, &answer, &[]);
        send_with_fds(peer.stream.as_fd(), &out, &[self.arena.fd()]).unwrap();
        (peer, hello.previous_connection)
    }

    /// A connected client and its peer.
    fn connect(&self, in_flight: u16) -> (Client, Peer) {
        std::thread::scope(|scope| {
            let peer = scope.spawn(|| self.accept(7, in_flight).0);
            let client = Client::connect(ClientSettings::new(self.socket())).unwrap();
            (client, peer.join().unwrap())
        })
    }
}

impl Peer {
    fn next(&mut self) -> (Header, Vec<u8>) {
        loop {
            if let Some((header, body)) = split_frame(&self.received).unwrap() {
                let bytes = self.received[body].to_vec();
                self.received.drain(..header.length as usize);
                return (header, bytes);
            }
            let mut chunk = [0; 4096];
            let count = self.stream.read(&mut chunk).expect("a frame was due");
            assert!(count > 0, "the client closed");
            self.received.extend_from_slice(&chunk[..count]);
        }
    }

    fn expect(&mut self, operation: Operation) -> (u64, Vec<u8>) {
        let (header, body) = self.next();
        decode_request(&header, &body).expect("the client's frames are valid");
        assert_eq!(header.operation, operation as u8);
        (header.request_id, body)
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Answers a Register with `handle`.
    fn registered(&mut self, handle: u32) {
        let (id, _) = self.expect(Operation::Register);
        let mut out = Vec::new();
        let answer = RegisterAnswer { namespace: handle, digest: [5; 32] };
        append_answer::<_, RegisterAnswer>(&mut out, Operation::Register, id, false, &answer, &[]);
        self.send(&out);
    }

    fn done(&mut self, operation: Operation) {
        let (id, _) = self.expect(operation);
        let mut out = Vec::new();
        append_done(&mut out, operation, id);
        self.send(&out);
    }
}

fn registration() -> Registration {
    Registration {
        instance: "test".into(),
        engine: "test".into(),
        model: "model".into(),
        weights_revision: "1".into(),
        adapter: String::new(),
        computation: String::new(),
        dtype: "u8".into(),
        layout: "flat".into(),
        hash_algorithm: "id".into(),
        hash_seed: String::new(),
        hash_bytes: 32,
        block_tokens: 512,
        tp_rank: 0,
        tp_size: 1,
        pp_rank: 0,
        pp_size: 1,
        rank_invariant: false,
        groups: vec![Group { group: GroupId(0), retention: Retention::Full, block_bytes: 4096 }],
    }
}

fn register(client: &mut Client, peer: &mut Peer, handle: u32) -> Namespace {
    let ticket = client.submit_register(&registration(), WAIT).unwrap();
    peer.registered(handle);
    match client.poll() {
        Some(Completion { ticket: answered, result: Ok(Outcome::Registered(namespace)), .. }) => {
            assert_eq!(answered, ticket);
            namespace
        }
        other => panic!("{other:?}"),
    }
}

fn block_record(index: u32, offset: u64) -> BlockRecord {
    BlockRecord { index, outcome: BlockOutcome::Ready as u8, source: Place::Ssd as u8, offset, bytes: 4096 }
}

fn acquire_frame(id: u64, more: bool, lease: u8, boundary: u32, blocks: &[BlockRecord]) -> Vec<u8> {
    let mut out = Vec::new();
    let answer = AcquireAnswer { lease: [lease; 16], boundary_blocks: boundary };
    append_answer(&mut out, Operation::Acquire, id, more, &answer, blocks);
    out
}

fn query_frame(id: u64, boundary: u32, places: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let answer = QueryAnswer {
        boundary_blocks: boundary,
        examined_blocks: places as u32,
        coverage: 0,
        view_generation: 1,
        lease: [0; 16],
        hint_age_ms: 0,
        left_out: 0,
    };
    let places = vec![PlaceRecord { place: Place::Dram as u8 }; places];
    append_answer(&mut out, Operation::Query, id, false, &answer, &places);
    out
}

#[test]
fn an_answer_split_at_every_byte_is_one_answer() {
    let node = Node::new(1);
    let (mut client, mut peer) = node.connect(64);
    let namespace = register(&mut client, &mut peer, 3);
    let blocks = [BlockHash([1; 32]), BlockHash([2; 32])];
    let lists = [PrefixList { namespace, group: GroupId(0), blocks: &blocks }];
    for split in 1..query_frame(0, 0, 2).len() {
        let ticket = client.submit_query(&lists, CompletionTarget::Host, false, WAIT).unwrap();
        let (id, _) = peer.expect(Operation::Query);
        let bytes = query_frame(id, split as u32 % 3, 2);
        peer.send(&bytes[..split]);
        assert!(client.poll().is_none());
        peer.send(&bytes[split..]);
        let completion = client.poll().expect("whole now");
        assert!(completion.last && completion.ticket == ticket);
        let Ok(Outcome::Query(view)) = completion.result else { panic!("{completion:?}") };
        assert_eq!((view.boundary_blocks, view.places.len()), (split as u32 % 3, 2));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever the order of the answers and wherever the stream is cut, every request gets its
    /// own answer, once.
    #[test]
    fn each_request_gets_its_own_answer(
        order in Just((0..20u32).collect::<Vec<_>>()).prop_shuffle(),
        cuts in prop::collection::vec(1usize..200, 1..40),
    ) {
        let node = Node::new(1);
        let (mut client, mut peer) = node.connect(64);
        let namespace = register(&mut client, &mut peer, 3);
        let blocks = vec![BlockHash([1; 32]); 20];
        let mut asked = Vec::new();
        for count in 0..20 {
            let lists = [PrefixList { namespace, group: GroupId(0), blocks: &blocks[..count + 1] }];
            let ticket = client.submit_query(&lists, CompletionTarget::Host, false, WAIT).unwrap();
            asked.push((ticket, peer.expect(Operation::Query).0));
        }
        let stream: Vec<u8> =
            order.iter().flat_map(|&at| query_frame(asked[at as usize].1, at, at as usize + 1)).collect();
        let mut answered = Vec::new();
        let mut rest = &stream[..];
        for cut in cuts.iter().cycle() {
            let (now, later) = rest.split_at((*cut).min(rest.len()));
            peer.send(now);
            rest = later;
            while let Some(completion) = client.poll() {
                let Ok(Outcome::Query(view)) = completion.result else { panic!("{:?}", completion.result) };
                answered.push((completion.ticket, view.boundary_blocks));
            }
            if rest.is_empty() {
                break;
            }
        }
        let expected: Vec<_> = order.iter().map(|&at| (asked[at as usize].0, at)).collect();
        prop_assert_eq!(answered, expected);
    }
}

#[test]
fn blocks_come_frame_by_frame_and_are_read_in_place() {
    let node = Node::new(1);
    let (mut client, mut peer) = node.connect(64);
    let namespace = register(&mut client, &mut peer, 3);
    node.arena.copy_in(8192, &[9; 4096]);
    let blocks = [BlockHash([1; 32]), BlockHash([2; 32])];
    let lists = [PrefixList { namespace, group: GroupId(0), blocks: &blocks }];
    let ticket = client.submit_acquire(&lists, CompletionTarget::Host, None, WAIT).unwrap();
    let (id, _) = peer.expect(Operation::Acquire);
    peer.send(&acquire_frame(id, true, 4, 0, &[block_record(1, 8192)]));
    let first = client.poll().expect("the first frame alone is a completion");
    assert!(!first.last && first.ticket == ticket);
    let Ok(Outcome::Acquire(first)) = first.result else { panic!("{first:?}") };
    let [AcquiredBlock { index: 1, result: Ok(ready) }] = &first.blocks[..] else { panic!("{first:?}") };
    assert_eq!((ready.bytes().unwrap(), ready.place()), (&[9; 4096][..], Place::Ssd));

    let missing =
        BlockRecord { index: 0, outcome: BlockOutcome::Missing as u8, source: 0, offset: 0, bytes: 0 };
    peer.send(&acquire_frame(id, false, 0, 0, &[missing]));
    let last = client.poll().unwrap();
    assert!(last.last);
    assert!(client.poll().is_none());

    let lease = first.lease.clone().unwrap();
    client.submit_release(&lease, WAIT).unwrap();
    assert!(matches!(ready.bytes(), Err(ClientError::Ended)), "released bytes may be another block's");
    peer.done(Operation::Release);
    assert!(matches!(client.poll(), Some(Completion { result: Ok(Outcome::Done), last: true, .. })));
}

#[test]
fn a_slot_is_filled_in_place_and_committed_under_its_generation() {
    let node = Node::new(77);
    let (mut client, mut peer) = node.connect(64);
    let namespace = register(&mut client, &mut peer, 3);
    let key = SaveKey { block: BlockHash([1; 32]), group: GroupId(0), bytes: 4096 };
    client.submit_reserve(namespace, &[key, key], false, WAIT).unwrap();
    let (id, _) = peer.expect(Operation::Reserve);
    let record = |outcome, offset| SlotRecord { outcome, reservation: 5, offset, bytes: 4096 };
    let mut out = Vec::new();
    append_records(&mut out, Operation::Reserve, id, &[record(0, 12288), record(4, 99)]);
    peer.send(&out);
    let Some(Completion { result: Ok(Outcome::Reserved(reserved)), .. }) = client.poll() else { panic!() };
    let mut reserved = reserved.into_iter();
    let Some(Reserved::Slot(mut slot)) = reserved.next() else { panic!() };
    assert!(matches!(reserved.next(), Some(Reserved::TooLarge { limit_bytes: 99 })));
    slot.bytes_mut().unwrap().fill(6);
    slot.copy_in(4095, &[8]).unwrap();
    assert!(matches!(slot.copy_in(4095, &[8, 8]), Err(ClientError::OverLimit { limit: 4096, .. })));
    let mut seen = [0; 4096];
    node.arena.copy_out(12288, &mut seen);
    assert!(seen[..4095].iter().all(|&byte| byte == 6) && seen[4095] == 8);

    let mut slots = vec![slot];
    client.submit_commit(&mut slots, WAIT).unwrap();
    assert!(slots.is_empty());
    let (header, body) = peer.next();
    let Request::Commit(commit, records) = decode_request(&header, &body).unwrap() else { panic!() };
    assert_eq!((commit.arena_generation, records.to_vec().unwrap()[0].reservation), (77, 5));
}

#[test]
fn extents_outside_the_arena_are_a_broken_protocol() {
    let node = Node::new(1);
    let (mut client, mut peer) = node.connect(64);
    let namespace = register(&mut client, &mut peer, 3);
    let lists = [PrefixList { namespace, group: GroupId(0), blocks: &[BlockHash([1; 32])] }];
    client.submit_acquire(&lists, CompletionTarget::Host, None, WAIT).unwrap();
    let (id, _) = peer.expect(Operation::Acquire);
    peer.send(&acquire_frame(id, false, 4, 1, &[block_record(0, ARENA_BYTES - 4095)]));
    let completion = client.poll().unwrap();
    assert!(matches!(completion.result, Err(ClientError::Protocol { .. })), "{completion:?}");
    assert!(client.node().is_none(), "the connection is closed");
}

#[test]
fn a_restarted_node_ends_everything_old_and_keeps_the_namespace() {
    let mut node = Node::new(1);
    let (mut client, mut peer) = node.connect(64);
    let namespace = register(&mut client, &mut peer, 3);
    node.arena.copy_in(0, &[1; 4096]);
    let lists = [PrefixList { namespace, group: GroupId(0), blocks: &[BlockHash([1; 32])] }];
    client.submit_acquire(&lists, CompletionTarget::Host, None, WAIT).unwrap();
    let (id, _) = peer.expect(Operation::Acquire);
    peer.send(&acquire_frame(id, false, 4, 1, &[block_record(0, 0)]));
    let Some(Completion { result: Ok(Outcome::Acquire(part)), .. }) = client.poll() else { panic!() };
    let ready = part.blocks[0].result.as_ref().unwrap().clone();
    client
        .submit_reserve(
            namespace,
            &[SaveKey { block: BlockHash([2; 32]), group: GroupId(0), bytes: 4096 }],
            false,
            WAIT,
        )
        .unwrap();
    let (id, _) = peer.expect(Operation::Reserve);
    let mut out = Vec::new();
    append_records(
        &mut out,
        Operation::Reserve,
        id,
        &[SlotRecord { outcome: 0, reservation: 5, offset: 8192, bytes: 4096 }],
    );
    peer.send(&out);
    let Some(Completion { result: Ok(Outcome::Reserved(mut reserved)), .. }) = client.poll() else {
        panic!()
    };
    let Some(Reserved::Slot(slot)) = reserved.pop() else { panic!() };

    let unanswered = client.submit_ping(WAIT).unwrap();
    peer.expect(Operation::Ping);
    drop(peer);
    let lost = client.poll().unwrap();
    assert!(lost.last && lost.ticket == unanswered);
    assert!(matches!(lost.result, Err(ClientError::ConnectionLost { operation: Operation::Ping })));
    assert_eq!(ready.bytes().unwrap()[0], 1, "the old mapping lives as long as its blocks");

    node.generation = 2;
    let (arena, _) = Arena::create(ARENA_BYTES, PagePreference::Small).unwrap();
    node.arena = arena;
    let mut slots = vec![slot];
    std::thread::scope(|scope| {
        let peer = scope.spawn(|| {
            let (mut peer, previous) = node.accept(7, 64);
            assert_eq!(previous, 0, "another daemon's connection numbers mean nothing");
            peer.registered(12);
            peer.done(Operation::Ping);
            peer
        });
        client.ping(WAIT).unwrap();
        let mut peer = peer.join().unwrap();
        assert!(matches!(ready.bytes(), Err(ClientError::StaleGeneration { held: 1, current: 2 })));
        assert!(matches!(slots[0].bytes_mut().err(), Some(ClientError::StaleGeneration { .. })));
        let refused = client.submit_commit(&mut slots, WAIT);
        assert!(matches!(refused, Err(ClientError::StaleGeneration { held: 1, current: 2 })));
        let released = client.submit_release(part.lease.as_ref().unwrap(), WAIT).unwrap();
        let released = (released, client.poll().unwrap());
        assert!(released.0 == released.1.ticket && released.1.result.is_ok(), "its end is its release");
        // The same handle, now under the number the new daemon gave.
        let lists = [PrefixList { namespace, group: GroupId(0), blocks: &[BlockHash([1; 32])] }];
        client.submit_query(&lists, CompletionTarget::Host, false, WAIT).unwrap();
        let (header, body) = peer.next();
        let Request::Query(_, lists, _) = decode_request(&header, &body).unwrap() else { panic!() };
        assert_eq!(lists[0].namespace, 12);
    });
}

#[test]
fn the_same_node_is_told_which_connection_was_lost() {
    let node = Node::new(1);
    let (mut client, peer) = node.connect(64);
    drop(peer);
    std::thread::scope(|scope| {
        let peer = scope.spawn(|| {
            let (probe, previous) = node.accept(8, 64);
            assert_eq!(previous, 0);
            drop(probe);
            let (mut peer, previous) = node.accept(9, 64);
            assert_eq!(previous, 7, "now that the generation proved it to be the same daemon");
            peer.done(Operation::Ping);
        });
        // The loss is found by this very call, and costs its caller nothing.
        client.ping(WAIT).unwrap();
        peer.join().unwrap();
    });
}

#[test]
fn one_more_than_agreed_is_refused_and_cancel_has_its_own_seat() {
    let node = Node::new(1);
    let (mut client, mut peer) = node.connect(4);
    assert_eq!(client.in_flight_max(), 3);
    let tickets: Vec<Ticket> = (0..3).map(|_| client.submit_ping(WAIT).unwrap()).collect();
    assert!(matches!(client.submit_ping(WAIT), Err(ClientError::Full { in_flight: 3 })));
    client.submit_cancel(tickets[1], WAIT).unwrap();
    assert!(matches!(client.submit_cancel(tickets[0], WAIT), Err(ClientError::Full { .. })));
    peer.done(Operation::Ping);
    let answered = client.poll().unwrap();
    assert_eq!(answered.ticket, tickets[0]);
    peer.expect(Operation::Ping);
    peer.expect(Operation::Ping);
    peer.done(Operation::Cancel);
    assert!(client.poll().is_some());
    client.submit_ping(WAIT).unwrap();
    assert_eq!(peer.expect(Operation::Ping).0, 5, "what was refused was not sent");
}

#[test]
fn what_a_late_answer_brings_is_given_back() {
    let node = Node::new(1);
    let (mut client, mut peer) = node.connect(64);
    client.settings.grace = Duration::ZERO;
    let namespace = register(&mut client, &mut peer, 3);
    let lists = [PrefixList { namespace, group: GroupId(0), blocks: &[BlockHash([1; 32])] }];
    let started = Instant::now();
    let late = client.acquire(&lists, None, Duration::from_millis(20));
    assert!(matches!(late, Err(ClientError::DeadlineExceeded { operation: Operation::Acquire, .. })));
    assert!(started.elapsed() < WAIT);
    let (id, _) = peer.expect(Operation::Acquire);
    peer.done(Operation::Cancel);
    peer.send(&acquire_frame(id, false, 4, 1, &[block_record(0, 0)]));
    assert!(client.poll().is_none(), "nobody waits for it");
    let (_, body) = peer.expect(Operation::Release);
    assert_eq!(body, [4; 16]);

    let key = SaveKey { block: BlockHash([2; 32]), group: GroupId(0), bytes: 4096 };
    assert!(client.reserve(namespace, &[key], false, Duration::from_millis(20)).is_err());
    let (id, _) = peer.expect(Operation::Reserve);
    let mut out = Vec::new();
    append_records(
        &mut out,
        Operation::Reserve,
        id,
        &[SlotRecord { outcome: 0, reservation: 5, offset: 8192, bytes: 4096 }],
    );
    peer.send(&out);
    assert!(client.poll().is_none());
    peer.expect(Operation::Cancel);
    peer.expect(Operation::Abort);
}

#[test]
fn a_refusal_keeps_the_words_of_the_node() {
    let node = Node::new(1);
    let (mut client, mut peer) = node.connect(64);
    client.submit_ping(WAIT).unwrap();
    let (id, _) = peer.expect(Operation::Ping);
    let mut out = Vec::new();
    append_refusal(&mut out, Operation::Ping, id, Status::Draining, 3, "the node is draining");
    peer.send(&out);
    let completion = client.poll().unwrap();
    let error = completion.result.unwrap_err();
    assert!(completion.last && error.status() == Some(Status::Draining));
    assert!(error.to_string().contains("the node is draining"), "{error}");
}

#[test]
fn limits_are_named_before_anything_is_sent() {
    let node = Node::new(1);
    let (mut client, mut peer) = node.connect(64);
    let namespace = register(&mut client, &mut peer, 3);
    let blocks = vec![BlockHash([1; 32]); 16_385];
    let lists = [PrefixList { namespace, group: GroupId(0), blocks: &blocks }];
    let error = client.submit_query(&lists, CompletionTarget::Host, false, WAIT).unwrap_err();
    assert!(error.to_string().contains("16385 block hashes are over the limit of 16384"), "{error}");
    let error = client.ping(Duration::from_secs(601)).unwrap_err();
    assert!(matches!(error, ClientError::OverLimit { limit: 600_000, .. }), "{error}");
    let long = Registration { model: "x".repeat(257), ..registration() };
    let error = client.submit_register(&long, WAIT).unwrap_err();
    assert!(matches!(error, ClientError::TextTooLong { field: "model", bytes: 257, limit: 256 }), "{error}");
    let other = PrefixList { namespace: Namespace(9), group: GroupId(0), blocks: &blocks[..1] };
    let error = client.submit_query(&[other], CompletionTarget::Host, false, WAIT).unwrap_err();
    assert!(matches!(error, ClientError::UnknownNamespace { handle: 9 }));
    client.submit_ping(WAIT).unwrap();
    peer.expect(Operation::Ping);
}

#[test]
fn a_node_that_does_not_read_never_blocks_the_client() {
    let node = Node::new(1);
    let (mut client, mut peer) = node.connect(256);
    let namespace = register(&mut client, &mut peer, 3);
    let blocks = vec![BlockHash([1; 32]); 16_384];
    let lists = [PrefixList { namespace, group: GroupId(0), blocks: &blocks }];
    let started = Instant::now();
    let mut submitted = 0;
    while client.submit_query(&lists, CompletionTarget::Host, false, WAIT).is_ok() {
        submitted += 1;
        assert!(submitted < 255, "the bound of unsent bytes comes before the last seat");
    }
    assert!(submitted >= 2 && started.elapsed() < WAIT, "{submitted} in {:?}", started.elapsed());
    for _ in 0..submitted {
        // Room for a largest query at a time: what was unsent leaves as the node reads.
        while split_frame(&peer.received).unwrap().is_none() {
            client.poll();
            let mut chunk = vec![0; 1 << 16];
            let count = peer.stream.read(&mut chunk).unwrap();
            peer.received.extend_from_slice(&chunk[..count]);
        }
        peer.expect(Operation::Query);
    }
}

#[test]
fn nobody_there_is_told_in_time() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("engine.sock");
    let settings =
        ClientSettings { connect_wait: Duration::from_millis(100), ..ClientSettings::new(&socket) };
    let started = Instant::now();
    let error = Client::connect(settings).err().unwrap();
    assert!(started.elapsed() < WAIT);
    assert!(error.to_string().contains("engine.sock") && error.is_connection(), "{error}");
}

#[test]
fn the_descriptor_wakes_when_an_answer_is_there() {
    let node = Node::new(1);
    let (mut client, mut peer) = node.connect(64);
    client.submit_ping(WAIT).unwrap();
    let readable = |client: &Client| {
        let fd = client.fd();
        let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap() == 1
    };
    assert!(!readable(&client));
    peer.done(Operation::Ping);
    assert!(readable(&client));
    assert!(client.poll().is_some());
    assert!(!readable(&client));
}

#[test]
fn a_node_is_ours_roots_or_as_configured() {
    for (uid, own, node_uid, is_trusted) in [
        (1_000, 1_000, None, true),
        (0, 1_000, None, true),
        (1_001, 1_000, None, false),
        (1_001, 1_000, Some(1_001), true),
        (1_001, 1_000, Some(1_002), false),
        (1_001, 0, None, false),
    ] {
        assert_eq!(link::is_trusted(uid, own, node_uid), is_trusted, "{uid} {own} {node_uid:?}");
    }
}

#[test]
fn another_users_socket_is_refused_before_anything_is_sent() {
    const OTHER_UID: u32 = 65_534;
    if !rustix::process::geteuid().is_root() {
        eprintln!("only root can have another user listen: nothing to show here");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(directory.path(), Some(OTHER_UID), None).unwrap();
    let socket = directory.path().join("engine.sock");
    // Says at the end how many bytes it was sent.
    let listen = "import socket,sys; s=socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); \
                  c=s.accept()[0]; print(len(c.recv(4096)))";
    let listener = std::os::unix::process::CommandExt::uid(
        std::process::Command::new("python3").args(["-c", listen]).arg(&socket),
        OTHER_UID,
    )
    .stdout(std::process::Stdio::piped())
    .spawn()
    .unwrap();
    let error = Client::connect(ClientSettings::new(&socket)).err().unwrap();
    assert!(matches!(error, ClientError::UntrustedNode { uid: OTHER_UID, own: 0, .. }), "{error}");
    assert!(error.to_string().contains("node_uid") && !error.is_connection(), "{error}");
    assert_eq!(listener.wait_with_output().unwrap().stdout, b"0\n");
}

#[test]
fn an_announcement_is_answered_for_each_block() {
    let blocks = [BlockHash([1; 32]), BlockHash([2; 32])];
    let node = Node::new(1);
    let (mut client, mut peer) = node.connect(64);
    let namespace = std::thread::scope(|scope| {
        scope.spawn(|| peer.registered(3));
        client.register(&registration(), WAIT).unwrap()
    });
    let lists = [PrefixList { namespace, group: GroupId(0), blocks: &blocks }];
    let outcomes = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (id, _) = peer.expect(Operation::Prefetch);
            let records = [PrefetchOutcome::Taken, PrefetchOutcome::NoRoom]
                .map(|outcome| OutcomeRecord { outcome: outcome as u8 });
            let mut out = Vec::new();
            append_records(&mut out, Operation::Prefetch, id, &records);
            peer.send(&out);
        });
        client.prefetch(&lists, WAIT).unwrap()
    });
    assert_eq!(outcomes, [PrefetchOutcome::Taken, PrefetchOutcome::NoRoom]);
}

#[test]
fn a_node_that_agrees_on_a_version_that_was_not_offered_is_not_used() {
    let node = Node { version: VERSION_MIN - 1, ..Node::new(1) };
    std::thread::scope(|scope| {
        scope.spawn(|| node.accept(7, 64));
        let error = Client::connect(ClientSettings::new(node.socket())).err().unwrap();
        assert!(error.to_string().contains("was not offered"), "{error}");
    });
}
