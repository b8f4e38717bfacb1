//! A peer that the test plays: a key and a UDP port with no node behind them. It speaks with the endpoint and the
//! frames of a real one, and says what a real one never would.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::path::Path;
use std::time::{Duration, Instant};

use orbitkv::peers::socket_path;
use orbitkv_native::clock::monotonic_ns;
use orbitkv_native::entropy;
use orbitkv_native::quic::{
    ConnectionId, Counters, Endpoint, EndpointSettings, Event, Fingerprint, Loss, Member, NodeKey, Priority,
    Purpose, PurposeSettings, ReadError, ReadState, StreamId,
};
use orbitkv_wire::identity::{ClusterUuid, Incarnation, ShardIndex};
use orbitkv_wire::inventory::{Requester, SourceStream};
use orbitkv_wire::membership::{Contact, Format, HASH_VERSION, MemberRecord};
use orbitkv_wire::payload::{Binding, FromSource, Part, Splitter};

use super::peer_socket::{REQUESTER_PROOF, SOURCE_PROOF};
use super::{Etcd, PeerSocket, eventually};

/// Bytes of payload that it lets come before it has read some.
pub const WINDOW_BYTES: u32 = 256 * 1024;

/// The member record of a node of the cluster `test`.
pub fn record_of(etcd: &Etcd, node: &str) -> MemberRecord {
    let text = etcd.value(&format!("/orbitkv/v2/test/members/{node}"));
    let text = text.strip_suffix('\n').expect("etcdctl ends a line");
    MemberRecord::decode(text.as_bytes()).expect("a record")
}

/// The identity of the cluster `test`.
pub fn cluster_of(etcd: &Etcd) -> ClusterUuid {
    let text = etcd.value("/orbitkv/v2/test/format");
    Format::decode(text.strip_suffix('\n').expect("etcdctl ends a line").as_bytes())
        .expect("a format")
        .cluster
}

/// A peer without a node.
pub struct ScriptedPeer {
    endpoint: Endpoint,
    key: Fingerprint,
    port: u16,
    heard: Vec<Event>,
}

/// All that came on one stream of an operation.
#[derive(Debug, Default)]
pub struct Reply {
    pub frames: Vec<FromSource>,
    /// Payload of each residence, as much as has come.
    pub payloads: BTreeMap<u16, Vec<u8>>,
    /// The code with which the stream was broken off.
    pub reset: Option<u64>,
    /// The connection is gone.
    pub is_lost: bool,
}

impl ScriptedPeer {
    /// A peer at a port of its own that shows and signs with `key`.
    pub fn with(key: &NodeKey) -> ScriptedPeer {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let port = socket.local_addr().expect("bound").port();
        let settings = EndpointSettings::default();
        let payload = PurposeSettings {
            receive_window_bytes: WINDOW_BYTES,
            stream_window_bytes: WINDOW_BYTES,
            ..settings.payload
        };
        let settings = EndpointSettings { payload, ..settings };
        let endpoint = Endpoint::new(settings, socket, key, monotonic_ns()).expect("a socket");
        ScriptedPeer { endpoint, key: key.fingerprint(), port, heard: Vec::new() }
    }

    /// What its key is known by.
    pub fn key(&self) -> Fingerprint {
        self.key
    }

    /// Publishes a member record of this name that leads to it; no lease ends it.
    pub fn join(&self, etcd: &Etcd, name: &str) -> Requester {
        self.join_as(etcd, name, self.key)
    }

    /// As [`Self::join`], with a record that names this key.
    pub fn join_as(&self, etcd: &Etcd, name: &str, key: Fingerprint) -> Requester {
        let contact = Contact {
            address: ([127, 0, 0, 1], self.port).into(),
            shards: 1,
            hash_version: HASH_VERSION,
            zone: String::new(),
            key_fingerprint: key.0,
            boot_id: [1; 16],
            peer_socket: String::new(),
            capabilities: Vec::new(),
        };
        let node = name.parse().expect("a name");
        let incarnation = Incarnation(entropy::uuid_v4_bytes());
        let record = MemberRecord { node, epoch: 1, incarnation, contact };
        etcd.ctl(&["put", &format!("/orbitkv/v2/test/members/{name}"), &record.encode()]);
        Requester { node, incarnation }
    }

    /// Knows this member from now on, and nobody else.
    pub fn learn(&mut self, record: &MemberRecord) {
        let Contact { address, shards, key_fingerprint, .. } = record.contact;
        let fingerprint = Fingerprint(key_fingerprint);
        let (address, base_port) = (address.ip(), address.port());
        self.endpoint.set_members([Member { fingerprint, address, base_port, shards }]);
    }

    /// Takes in and sends what is to be.
    pub fn step(&mut self) {
        let mut more = self.endpoint.turn(monotonic_ns()).more;
        while more {
            more = self.endpoint.turn(monotonic_ns()).more;
        }
        self.heard.extend(std::iter::from_fn(|| self.endpoint.poll_event()));
        while self.endpoint.flush(monotonic_ns()).more {}
    }

    /// Lives until `check` gives something.
    pub fn until<T>(&mut self, what: &str, mut check: impl FnMut(&mut ScriptedPeer) -> Option<T>) -> T {
        eventually(what, || {
            self.step();
            check(self)
        })
    }

    /// Lives for a while.
    pub fn live_for(&mut self, time: Duration) {
        let begun = Instant::now();
        self.until("time passes", |_| (begun.elapsed() >= time).then_some(()));
    }

    pub fn counters(&self) -> Counters {
        self.endpoint.counters()
    }

    fn dial(&mut self, to: &MemberRecord, purpose: Purpose) -> ConnectionId {
        let Contact { address, key_fingerprint, .. } = to.contact;
        self.endpoint
            .dial(address, Fingerprint(key_fingerprint), purpose, monotonic_ns())
            .expect("a member with room")
    }

    fn loss_of(&self, connection: ConnectionId) -> Option<Loss> {
        self.heard.iter().find_map(|event| match event {
            Event::Lost { connection: lost, loss } if *lost == connection => Some(*loss),
            _ => None,
        })
    }

    /// Dials, and says how the connection was lost.
    pub fn dial_in_vain(&mut self, to: &MemberRecord, purpose: Purpose) -> Loss {
        let dialled = self.dial(to, purpose);
        self.until("the connection is lost", |peer| peer.loss_of(dialled))
    }

    /// Dials, and has the connection.
    pub fn connect(&mut self, to: &MemberRecord, purpose: Purpose) -> ConnectionId {
        let dialled = self.dial(to, purpose);
        self.until("a connection", |peer| {
            assert_eq!(peer.loss_of(dialled), None, "the dial failed");
            let is_it = |event: &Event| matches!(event, Event::Connected { connection, .. } if *connection == dialled);
            peer.heard.iter().any(is_it).then_some(())
        });
        dialled
    }

    /// Joins the peer socket of shard 0 of the node at the other end, which gives its arena for what this connection
    /// alone can show.
    pub fn share(&mut self, connection: ConnectionId, source: &MemberRecord) -> PeerSocket {
        let [own, theirs] = [REQUESTER_PROOF, SOURCE_PROOF]
            .map(|label| self.endpoint.shared_secret(connection, label).expect("the connection is open"));
        let path = socket_path(Path::new(&source.contact.peer_socket), ShardIndex(0));
        let mut socket = PeerSocket::show(&path, &own);
        self.until("the source shares its arena", |_| {
            // Who has waited too long for the source to know the connection is turned away, and comes again.
            if !socket.hear() {
                socket = PeerSocket::show(&path, &own);
            }
            socket.has_joined(&theirs).then_some(())
        });
        socket
    }

    /// Waits until the connection is lost, and says how.
    pub fn await_loss(&mut self, connection: ConnectionId) -> Loss {
        self.until("the connection is lost", |peer| peer.loss_of(connection))
    }

    /// Sends bytes on a stream of their own.
    pub fn say(&mut self, connection: ConnectionId, bytes: Vec<u8>, priority: Priority) -> StreamId {
        let stream = self.until("a stream", |peer| peer.endpoint.open(connection, priority).ok());
        self.endpoint.write(connection, stream, bytes).expect("an empty stream takes a write");
        self.step();
        stream
    }

    /// Reads a stream to its end, whatever end that is.
    pub fn listen(&mut self, connection: ConnectionId, stream: StreamId) -> Reply {
        let (mut received, mut reply) = (Vec::new(), Reply::default());
        self.until("the stream ends", |peer| {
            let outcome = peer.endpoint.read(connection, stream, usize::MAX, |chunk| {
                received.extend_from_slice(chunk);
                Ok::<(), ()>(())
            });
            match outcome {
                Ok(ReadState::Blocked | ReadState::More) => return None,
                Ok(ReadState::Ended) => {}
                Err(ReadError::Reset { code }) => reply.reset = Some(code),
                Err(_) => reply.is_lost = true,
            }
            Some(())
        });
        // So that the stream is over on our side, too, and another one may begin.
        self.endpoint.abandon(connection, stream, 0);
        self.step();
        reply.take(&received);
        reply
    }

    /// Sends a request on a stream of its own, and reads all that comes of it.
    pub fn ask(&mut self, connection: ConnectionId, request: &[u8]) -> Reply {
        let stream = self.say(connection, request.to_vec(), Priority::Ordinary);
        self.listen(connection, stream)
    }
}

impl Reply {
    fn take(&mut self, mut received: &[u8]) {
        let mut splitter = Splitter::new();
        while let Some(part) = splitter.next(received).expect("the node's frames are valid") {
            let (taken, rest) = received.split_at(part.length());
            match part {
                Part::Frame { message, .. } => self.frames.push(message),
                Part::Payload { index, .. } => {
                    self.payloads.entry(index).or_default().extend_from_slice(taken);
                }
            }
            received = rest;
        }
    }
}

/// Both ends of operations of `requester` with shard 0 of a member.
pub fn binding(etcd: &Etcd, source: &MemberRecord, requester: Requester) -> Binding {
    let MemberRecord { node, epoch, incarnation, .. } = *source;
    let source = SourceStream { node, epoch, incarnation, shard: ShardIndex(0) };
    Binding { cluster: cluster_of(etcd), source, requester }
}
