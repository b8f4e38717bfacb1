//! The endpoint's turn: datagrams in, timers, datagrams out, and what the protocol's parts tell each other.
//!
//! Whatever touches a connection notes its slot; before anything is sent, each noted connection hands its
//! messages to the protocol's endpoint, gets its timer set, and is queued for sending and for events.

use super::admission::Lane;
use super::connection_names::ConnectionNames;
use super::counters::Counters;
use super::identity::{Fingerprint, NodeKey};
use super::link::{Links, SlotQueue, Stage};
use super::members::MemberMap;
use super::settings::{DATAGRAM_COST_BYTES, EndpointSettings, HANDSHAKE_QUEUE_MAX, HANDSHAKE_QUEUE_SHARE};
use super::socket::{Sent, Socket};
use super::tls::Handshakes;
use super::{Event, Loss, Member, Purpose, close_code};
use bytes::{Bytes, BytesMut};
use quinn_proto as proto;
use ring::{hkdf, hmac};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A blocked socket is tried again after this: time in which a 10 Gb/s port sends half a megabyte.
const BLOCKED_RETRY: Duration = Duration::from_micros(500);

/// First bit of datagrams that begin with a long header: handshakes.
const LONG_HEADER: u8 = 0x80;

/// Why an endpoint could not be made.
#[derive(Debug, thiserror::Error)]
#[error("{step} the UDP socket of a shard failed: {source}")]
pub struct EndpointError {
    /// What was attempted.
    pub step: &'static str,
    /// The system's answer.
    pub source: io::Error,
}

/// What a turn left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// There is work that needs no event: call again soon.
    pub more: bool,
    /// The budget of what is received is used up: datagrams may be left that were not taken in.
    pub is_behind: bool,
    /// Call again then even if the descriptor stays quiet; nanoseconds of the clock the caller passes.
    pub deadline_ns: Option<u64>,
    /// A datagram of a handshake was worked on, at most one: signatures make such a turn longer than others.
    pub shook_hands: bool,
}

/// What a turn has taken in.
#[derive(Default)]
struct Received {
    /// The budget is used up; there may be more.
    more: bool,
    shook_hands: bool,
}

/// An endpoint. See the module for how it is driven.
pub struct Endpoint {
    pub(super) settings: EndpointSettings,
    pub(super) protocol: proto::Endpoint,
    pub(super) handshakes: Handshakes,
    /// For accepted connections, except for the keys that are expected of them.
    pub(super) server: proto::ServerConfig,
    pub(super) members: MemberMap,
    pub(super) socket: Socket,
    pub(super) links: Links,
    pub(super) lanes: [Lane; 2],
    pub(super) counters: Counters,
    /// Connections whose state has changed since the last turn.
    touched: SlotQueue,
    /// Connections that may have something to tell.
    pub(super) eventful: SlotQueue,
    timers: BTreeSet<(Instant, usize)>,
    /// Datagrams of handshakes, in order of arrival.
    waiting: VecDeque<Datagram>,
    /// Keys that were expected where another one was shown.
    pub(super) mismatches: VecDeque<Fingerprint>,
    pub(super) scratch: Vec<u8>,
    /// The time of the last call that had one.
    pub(super) now: Instant,
    origin: Instant,
    origin_ns: u64,
}

/// A datagram that has an allocation of its own.
struct Datagram {
    remote: SocketAddr,
    local_ip: Option<IpAddr>,
    ecn: Option<proto::EcnCodepoint>,
    data: BytesMut,
}

impl Endpoint {
    /// Makes an endpoint of a socket that is bound to the shard's port. Until [`Self::set_members`] it knows
    /// nobody. `now_ns` is of `CLOCK_MONOTONIC`, here and in all calls.
    ///
    /// # Panics
    /// If the settings contradict themselves.
    pub fn new(
        settings: EndpointSettings,
        socket: UdpSocket,
        key: &NodeKey,
        now_ns: u64,
    ) -> Result<Self, EndpointError> {
        settings.assert_valid();
        let failed = |step| move |source| EndpointError { step, source };
        let socket = Socket::new(socket, settings.socket_buffer_bytes).map_err(failed("setting up"))?;
        let port = socket.local_address().map_err(failed("asking the address of"))?.port();
        let handshakes = Handshakes::new(key);

        // Kept over restarts, so that the next process of this node can reset connections of this one.
        let reset_key = hmac::Key::new(hmac::HMAC_SHA256, &key.secret("stateless reset", port));
        let name_secret = key.secret("connection names", port);
        let name_key = u64::from_le_bytes(*name_secret.first_chunk().expect("a secret has 32 bytes"));
        let mut config = proto::EndpointConfig::new(Arc::new(reset_key));
        config
            .max_udp_payload_size(settings.mtu_bytes_max.max(1_472))
            .expect("asserted to be an MTU")
            .cid_generator(move || Box::new(ConnectionNames { key: name_key }));

        let retry_secret = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(&key.secret("retry tokens", port));
        let mut server = proto::ServerConfig::new(handshakes.server(Vec::new()), Arc::new(retry_secret));
        let mut tokens = proto::ValidationTokenConfig::default();
        tokens.sent(0);
        server
            .transport_config(settings.accepted())
            .validation_token_config(tokens)
            .migration(false)
            // Each is decided on at once: none ever waits in the protocol.
            .max_incoming(1)
            .incoming_buffer_size(0)
            .incoming_buffer_size_total(0);

        let may_discover_mtu = !socket.may_fragment();
        let origin = Instant::now();
        Ok(Self {
            protocol: proto::Endpoint::new(
                Arc::new(config),
                Some(Arc::new(server.clone())),
                may_discover_mtu,
                None,
            ),
            settings,
            handshakes,
            server,
            members: MemberMap::default(),
            socket,
            links: Links::default(),
            lanes: Default::default(),
            counters: Counters::default(),
            touched: SlotQueue::default(),
            eventful: SlotQueue::default(),
            timers: BTreeSet::new(),
            waiting: VecDeque::new(),
            mismatches: VecDeque::new(),
            scratch: Vec::new(),
            now: origin,
            origin,
            origin_ns: now_ns,
        })
    }

    /// Readable when there are datagrams: time for a turn.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }

    /// Replaces the members. Who is no longer among them cannot begin anything; connections that exist are the
    /// caller's to close.
    pub fn set_members(&mut self, members: impl IntoIterator<Item = Member>) {
        self.members = MemberMap::new(members);
    }

    /// Takes datagrams in, fires timers and sends, each in bounded amount.
    pub fn turn(&mut self, now_ns: u64) -> Turn {
        self.at(now_ns);
        self.fire_timers();
        let received = self.receive();
        self.finish_turn(received)
    }

    /// Sends what commands since the last turn have caused.
    pub fn flush(&mut self, now_ns: u64) -> Turn {
        self.at(now_ns);
        self.finish_turn(Received::default())
    }

    /// What happened, oldest first for each connection; to be asked until there is nothing.
    pub fn poll_event(&mut self) -> Option<Event> {
        while let Some(slot) = self.eventful.front() {
            if let Some(event) = self.next_event(slot) {
                return Some(event);
            }
            self.eventful.pop();
        }
        None
    }

    /// A member's key that was expected of a peer which showed another one, each once until it is asked for. The
    /// handshake was refused; whether the member is still who it was, its record says.
    pub fn poll_mismatch(&mut self) -> Option<Fingerprint> {
        self.mismatches.pop_front()
    }

    /// Counts, with those of connections that exist.
    pub fn counters(&self) -> Counters {
        let mut counters = self.counters;
        for link in self.links.iter() {
            counters.add(&link.protocol.stats());
            counters.dials_pending_now += u64::from(link.is_dialling());
            counters.handshakes_pending_now += u64::from(link.is_accepting());
        }
        counters.connections_now = self.links.len() as u64;
        counters.receive_charged_now_bytes = self.lanes.each_ref().map(|lane| lane.charged_bytes);
        counters
    }

    /// Notes that a connection's state has changed.
    pub(super) fn touch(&mut self, slot: usize) {
        self.touched.push(slot);
    }

    /// Sets the time; one that went back stands still.
    pub(super) fn at(&mut self, now_ns: u64) {
        let now = self.origin + Duration::from_nanos(now_ns.saturating_sub(self.origin_ns));
        self.now = self.now.max(now);
    }

    fn nanoseconds(&self, at: Instant) -> u64 {
        self.origin_ns + at.saturating_duration_since(self.origin).as_nanos() as u64
    }

    fn finish_turn(&mut self, received: Received) -> Turn {
        self.settle();
        let sent = self.send();
        self.assert_invariants();
        let blocked = sent == Sent::Blocked;
        let unsent = self.lanes.iter().any(|lane| !lane.sendable.is_empty());
        let timer = self.timers.first().map(|(at, _)| *at);
        let retry = blocked.then(|| self.now + BLOCKED_RETRY);
        Turn {
            more: received.more || !self.waiting.is_empty() || (unsent && !blocked),
            is_behind: received.more,
            deadline_ns: timer.into_iter().chain(retry).min().map(|at| self.nanoseconds(at)),
            shook_hands: received.shook_hands,
        }
    }

    fn fire_timers(&mut self) {
        while let Some((at, slot)) = self.timers.first().copied()
            && at <= self.now
        {
            self.timers.pop_first();
            let link = self.links.get_mut(slot).expect("a timer has its connection");
            link.timer = None;
            match link.stage {
                Stage::Handshake { until, .. } if until <= self.now => {
                    link.protocol.close(self.now, close_code::HANDSHAKE_TIMEOUT.into(), Bytes::new());
                    link.stage = Stage::Failed(Loss::HandshakeTimeout);
                }
                _ => link.protocol.handle_timeout(self.now),
            }
            self.touch(slot);
        }
    }

    /// Receives up to the budget, and works on one datagram of a handshake.
    fn receive(&mut self) -> Received {
        let mut received = Received { more: false, shook_hands: self.shake_hands() };
        let mut left_bytes = self.settings.receive_budget_bytes;
        while left_bytes > 0 {
            let (batches, may_be_more) = self.socket.receive(left_bytes, &mut self.counters);
            for index in 0..batches {
                let batch = self.socket.batch(index);
                let is_member = self.members.contains(batch.remote);
                let is_known = is_member || self.links.has_remote(batch.remote);
                for range in batch.datagrams() {
                    left_bytes = left_bytes.saturating_sub(range.len().max(DATAGRAM_COST_BYTES));
                    self.counters.datagrams_received += 1;
                    let data = self.socket.datagram(range);
                    let is_handshake = data.first().is_some_and(|first| first & LONG_HEADER != 0);
                    if !is_known || (is_handshake && !is_member) {
                        self.counters.dropped_unknown += 1;
                        continue;
                    }
                    let data = BytesMut::from(data);
                    let (remote, local_ip, ecn) = (batch.remote, batch.local_ip, batch.ecn);
                    let datagram = Datagram { remote, local_ip, ecn, data };
                    match is_handshake {
                        false => self.on_datagram(datagram),
                        // In order with what follows it, if nothing else waits.
                        true if !std::mem::replace(&mut received.shook_hands, true) => {
                            self.on_datagram(datagram)
                        }
                        true => self.wait(datagram),
                    }
                }
            }
            if !may_be_more {
                return received;
            }
        }
        Received { more: true, ..received }
    }

    /// Works on the handshake datagram that has waited longest; false if none waited.
    fn shake_hands(&mut self) -> bool {
        let datagram = self.waiting.pop_front();
        datagram.map(|datagram| self.on_datagram(datagram)).is_some()
    }

    fn wait(&mut self, datagram: Datagram) {
        let of_this_peer = self.waiting.iter().filter(|other| other.remote == datagram.remote).count();
        if self.waiting.len() == HANDSHAKE_QUEUE_MAX || of_this_peer == HANDSHAKE_QUEUE_SHARE {
            self.counters.dropped_handshake_queue += 1;
        } else {
            self.waiting.push_back(datagram);
        }
    }

    fn on_datagram(&mut self, datagram: Datagram) {
        let Datagram { remote, local_ip, ecn, data } = datagram;
        let has_long_header = data.first().is_some_and(|first| first & LONG_HEADER != 0);
        self.scratch.clear();
        match self.protocol.handle(self.now, remote, local_ip, ecn, data, &mut self.scratch) {
            None => self.counters.dropped_stray += 1,
            Some(proto::DatagramEvent::ConnectionEvent(handle, event)) => {
                let slot =
                    self.links.slot_of_handle(handle).expect("the protocol knows only our connections");
                self.links.get_mut(slot).expect("a handle has its connection").protocol.handle_event(event);
                self.touch(slot);
            }
            Some(proto::DatagramEvent::NewConnection(incoming)) => self.on_incoming(incoming),
            Some(proto::DatagramEvent::Response(transmit)) => {
                match has_long_header {
                    true => self.counters.answers_sent += 1,
                    false => self.counters.resets_sent += 1,
                }
                self.socket.send(transmit, &self.scratch, &mut self.counters);
            }
        }
    }

    /// Lets the protocol's parts talk, and queues what they may have to send and to tell.
    fn settle(&mut self) {
        while let Some(slot) = self.touched.pop() {
            if self.converse(slot) {
                let lane = self.links.get_mut(slot).expect("it has just been there").lane;
                self.lanes[lane as usize].sendable.push(slot);
                self.eventful.push(slot);
            }
        }
    }

    /// Carries messages between a connection and the protocol's endpoint and sets its timer; false if the
    /// connection is no more.
    fn converse(&mut self, slot: usize) -> bool {
        let Some(link) = self.links.get_mut(slot) else { return false };
        let mut has_ended = false;
        while let Some(handle) = link.handle
            && let Some(message) = link.protocol.poll_endpoint_events()
        {
            has_ended = message.is_drained();
            if let Some(answer) = self.protocol.handle_event(handle, message) {
                link.protocol.handle_event(answer);
            }
            if has_ended {
                break;
            }
        }
        if has_ended {
            self.links.forget_handle(slot);
            if self.remove_if_forgotten(slot) {
                return false;
            }
        }
        self.set_timer(slot);
        true
    }

    fn set_timer(&mut self, slot: usize) {
        let Some(link) = self.links.get_mut(slot) else { return };
        let patience = match link.stage {
            Stage::Handshake { until, .. } => Some(until),
            _ => None,
        };
        let timer = link.protocol.poll_timeout().into_iter().chain(patience).min();
        let before = std::mem::replace(&mut link.timer, timer);
        if before != timer {
            before.map(|at| self.timers.remove(&(at, slot)));
            timer.map(|at| self.timers.insert((at, slot)));
        }
    }

    /// Removes a connection that nobody uses and the protocol has forgotten.
    pub(super) fn remove_if_forgotten(&mut self, slot: usize) -> bool {
        let link = self.links.get_mut(slot).expect("asked of a connection that exists");
        let is_forgotten = link.handle.is_none();
        let is_told = link.stage == Stage::Closing;
        if is_forgotten && is_told {
            let link = self.links.remove(slot);
            link.timer.map(|at| self.timers.remove(&(at, slot)));
            self.counters.add(&link.protocol.stats());
            self.lanes[link.lane as usize].leave(link.charge);
        }
        is_forgotten && is_told
    }

    /// Sends up to the budget, inventory first and connections in turn.
    fn send(&mut self) -> Sent {
        if self.socket.send_unsent(&mut self.counters) == Sent::Blocked {
            return Sent::Blocked;
        }
        let mut left_bytes = self.settings.send_budget_bytes;
        for purpose in Purpose::ALL {
            while left_bytes > 0
                && let Some(slot) = self.lanes[purpose as usize].sendable.pop()
            {
                let Some(link) = self.links.get_mut(slot) else { continue };
                let datagrams_max = self.socket.datagrams_max(usize::from(link.protocol.current_mtu()));
                self.scratch.clear();
                let transmit = link.protocol.poll_transmit(self.now, datagrams_max, &mut self.scratch);
                self.set_timer(slot);
                let Some(transmit) = transmit else { continue };
                left_bytes = left_bytes.saturating_sub(transmit.size.max(DATAGRAM_COST_BYTES));
                self.lanes[purpose as usize].sendable.push(slot);
                if self.socket.send(transmit, &self.scratch, &mut self.counters) == Sent::Blocked {
                    return Sent::Blocked;
                }
            }
        }
        Sent::Done
    }

    fn assert_invariants(&self) {
        assert!(self.links.len() <= self.settings.connections_max(), "connections are bounded");
        assert!(self.waiting.len() <= HANDSHAKE_QUEUE_MAX, "handshakes that wait are bounded");
        if cfg!(debug_assertions) {
            for purpose in Purpose::ALL {
                let lane = &self.lanes[purpose as usize];
                let charges =
                    || self.links.iter().filter(|link| link.lane == purpose).filter_map(|link| link.charge);
                assert_eq!(lane.connections, charges().count(), "{purpose:?} connections");
                assert_eq!(lane.charged_bytes, charges().map(u64::from).sum::<u64>(), "{purpose:?} windows");
                assert!(lane.connections <= self.settings.of(purpose).connections_max);
                assert!(lane.charged_bytes <= self.settings.of(purpose).receive_pool_bytes);
            }
            assert_eq!(self.timers.len(), self.links.iter().filter(|link| link.timer.is_some()).count());
        }
    }
}
