//! How connections come to be and end: dials, accepted handshakes, what they are charged with, why they are lost.

use super::endpoint::Endpoint;
use super::identity::Fingerprint;
use super::link::{Link, SlotQueue, Stage};
use super::settings::{DIALS_PENDING_MAX, UNVERIFIED_MAX};
use super::tls::SERVER_NAME;
use super::{ConnectionId, DialRefusal, Event, Loss, Origin, Purpose, close_code};
use bytes::Bytes;
use proto::crypto::rustls::HandshakeData;
use quinn_proto as proto;
use rustls::pki_types::CertificateDer;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// TLS alerts as QUIC carries them: what a verifier says about a key, and about a signature.
const ACCESS_DENIED: u64 = 0x100 + 49;
const DECRYPT_ERROR: u64 = 0x100 + 51;

/// What the connections of one purpose use, and those of them that may have something to send.
#[derive(Debug, Default)]
pub(super) struct Lane {
    /// Connections that have been charged.
    pub(super) connections: usize,
    /// Their receive windows in bytes.
    pub(super) charged_bytes: u64,
    pub(super) sendable: SlotQueue,
}

impl Lane {
    /// A connection that was charged with this much has ended.
    pub(super) fn leave(&mut self, charge: Option<u32>) {
        if let Some(bytes) = charge {
            self.connections -= 1;
            self.charged_bytes -= u64::from(bytes);
        }
    }
}

impl Endpoint {
    /// Begins a connection to the member at `address`, which must hold the key with this fingerprint. Ends with
    /// [`Event::Connected`] or [`Event::Lost`].
    pub fn dial(
        &mut self,
        address: SocketAddr,
        expected: Fingerprint,
        purpose: Purpose,
        now_ns: u64,
    ) -> Result<ConnectionId, DialRefusal> {
        self.at(now_ns);
        if !self.members.contains(address) {
            return Err(DialRefusal::NotAMember);
        }
        if self.links.iter().filter(|link| link.is_dialling()).count() >= DIALS_PENDING_MAX {
            return Err(DialRefusal::TooManyPending);
        }
        let window_bytes = self.settings.of(purpose).receive_window_bytes;
        if self.links.len() >= self.settings.connections_max() || !self.has_room(purpose, window_bytes) {
            return Err(DialRefusal::NoRoom);
        }
        let mut config = proto::ClientConfig::new(self.handshakes.client(expected, purpose));
        config.transport_config(self.settings.dialled(purpose));
        let (handle, protocol) = self
            .protocol
            .connect(self.now, config, address, SERVER_NAME)
            .map_err(|_| DialRefusal::Unreachable)?;
        self.counters.dials += 1;
        let slot = self.insert(handle, protocol, Origin::Dialled, vec![expected], false);
        self.charge(slot, purpose, window_bytes);
        let link = self.links.get_mut(slot).expect("just inserted");
        Ok(link.id)
    }

    /// Ends a connection: what is unsent is dropped, its loans drain, and no event follows. The peer hears
    /// `code`.
    pub fn close(&mut self, connection: ConnectionId, code: u32, now_ns: u64) {
        self.at(now_ns);
        if let Some(slot) = self.links.slot(connection) {
            self.close_slot(slot, code);
        }
    }

    fn close_slot(&mut self, slot: usize, code: u32) {
        let link = self.links.get_mut(slot).expect("closed by its slot");
        if matches!(link.stage, Stage::Handshake { .. }) {
            self.counters.handshakes_failed += 1;
        }
        link.drop_outgoing(code.into());
        link.protocol.close(self.now, code.into(), Bytes::new());
        link.stage = Stage::Closing;
        if !self.remove_if_forgotten(slot) {
            self.touch(slot);
        }
    }

    /// A peer wants a connection: the protocol has read its first datagram and decided nothing.
    pub(super) fn on_incoming(&mut self, incoming: proto::Incoming) {
        let expected = self.members.fingerprints_at(incoming.remote_address());
        let pending = self.links.iter().filter(|link| link.is_accepting()).count();
        let is_full =
            pending >= self.settings.handshakes_max || self.links.len() >= self.settings.connections_max();
        if expected.is_empty() || is_full {
            // No answer: the peer tries again by itself.
            self.counters.dropped_no_room += 1;
            self.protocol.ignore(incoming);
            return;
        }
        let is_verified = incoming.remote_address_validated();
        let is_unverified = |link: &&Link| matches!(link.stage, Stage::Handshake { unverified: true, .. });
        if !is_verified && self.links.iter().filter(is_unverified).count() >= UNVERIFIED_MAX {
            self.counters.retries += 1;
            let transmit = self
                .protocol
                .retry(incoming, &mut self.scratch)
                .expect("an address that has not proved itself may be asked to");
            self.socket.send(transmit, &self.scratch, &mut self.counters);
            return;
        }
        self.counters.accepts += 1;
        let mut server = self.server.clone();
        server.crypto = self.handshakes.server(expected.clone());
        match self.protocol.accept(incoming, self.now, &mut self.scratch, Some(Arc::new(server))) {
            Ok((handle, protocol)) => {
                self.insert(handle, protocol, Origin::Accepted, expected, !is_verified);
            }
            Err(refused) => {
                self.counters.handshakes_failed += 1;
                if let Some(transmit) = refused.response {
                    self.counters.answers_sent += 1;
                    self.socket.send(transmit, &self.scratch, &mut self.counters);
                }
            }
        }
    }

    fn insert(
        &mut self,
        handle: proto::ConnectionHandle,
        protocol: proto::Connection,
        origin: Origin,
        expected: Vec<Fingerprint>,
        unverified: bool,
    ) -> usize {
        let until = self.now + self.settings.handshake_timeout;
        let slot = self.links.insert(|id| Link {
            id,
            remote: protocol.remote_address(),
            protocol,
            handle: Some(handle),
            origin,
            stage: Stage::Handshake { until, unverified },
            lane: Purpose::Inventory,
            expected,
            charge: None,
            outgoing: BTreeMap::new(),
            has_unaccepted: false,
            timer: None,
        });
        self.touch(slot);
        slot
    }

    fn has_room(&self, purpose: Purpose, window_bytes: u32) -> bool {
        let (lane, bounds) = (&self.lanes[purpose as usize], self.settings.of(purpose));
        lane.connections < bounds.connections_max
            && lane.charged_bytes + u64::from(window_bytes) <= bounds.receive_pool_bytes
    }

    fn charge(&mut self, slot: usize, purpose: Purpose, window_bytes: u32) {
        let link = self.links.get_mut(slot).expect("charged by its slot");
        assert!(link.charge.replace(window_bytes).is_none(), "a connection is charged once");
        link.lane = purpose;
        let lane = &mut self.lanes[purpose as usize];
        lane.connections += 1;
        lane.charged_bytes += u64::from(window_bytes);
    }

    /// What a connection has to tell next. The slot may be empty afterwards.
    pub(super) fn next_event(&mut self, slot: usize) -> Option<Event> {
        loop {
            let link = self.links.get_mut(slot)?;
            match link.stage {
                Stage::Failed(loss) => return self.on_lost(slot, loss),
                Stage::Closing => {
                    while link.protocol.poll().is_some() {}
                    return None;
                }
                Stage::Handshake { .. } | Stage::Open => {}
            }
            if link.has_unaccepted
                && let Some(event) = link.accept_stream()
            {
                return Some(event);
            }
            let event = match link.protocol.poll()? {
                proto::Event::Connected => self.on_connected(slot),
                proto::Event::ConnectionLost { reason } => return self.on_lost(slot, loss(reason)),
                proto::Event::Stream(event) => self.on_stream_event(slot, event),
                // Datagrams are off, and what a handshake says is asked for when it is complete.
                proto::Event::HandshakeDataReady
                | proto::Event::DatagramReceived
                | proto::Event::DatagramsUnblocked => None,
            };
            if event.is_some() {
                return event;
            }
        }
    }

    fn on_connected(&mut self, slot: usize) -> Option<Event> {
        let link = self.links.get_mut(slot).expect("an event has its connection");
        let session = link.protocol.crypto_session();
        let data = session.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
        let keys =
            session.peer_identity().and_then(|keys| keys.downcast::<Vec<CertificateDer<'static>>>().ok());
        let purpose = data.and_then(|data| Purpose::from_alpn(data.protocol.as_deref()?));
        let peer = keys.and_then(|keys| Some(Fingerprint::of(keys.first()?)));
        let Some((purpose, peer)) = purpose.zip(peer) else {
            self.close_slot(slot, close_code::NO_PURPOSE);
            return None;
        };
        let (connection, address, origin) = (link.id, link.remote, link.origin);
        if origin == Origin::Accepted {
            let window_bytes = self.settings.accepted_window_bytes;
            if !self.has_room(purpose, window_bytes) {
                self.counters.refused_no_room += 1;
                self.close_slot(slot, close_code::NO_ROOM);
                return None;
            }
            self.charge(slot, purpose, window_bytes);
            let window_bytes = self.settings.of(purpose).send_window_bytes;
            self.links.get_mut(slot).expect("just charged").protocol.set_send_window(window_bytes);
        }
        self.counters.handshakes += 1;
        let link = self.links.get_mut(slot).expect("just connected");
        (link.stage, link.expected) = (Stage::Open, Vec::new());
        Some(Event::Connected { connection, peer, address, purpose, origin })
    }

    /// The connection is gone. Nobody is told of an accepted one that was never open.
    fn on_lost(&mut self, slot: usize, loss: Loss) -> Option<Event> {
        let link = self.links.get_mut(slot).expect("an event has its connection");
        let was_open = link.is_open();
        let is_told = was_open || link.origin == Origin::Dialled;
        let connection = link.id;
        link.drop_outgoing(0u32.into());
        link.stage = Stage::Closing;
        let expected = std::mem::take(&mut link.expected);
        let counters = &mut self.counters;
        counters.handshakes_failed += u64::from(!was_open);
        match loss {
            Loss::WrongKey => {
                counters.wrong_keys += 1;
                let unknown = expected.into_iter().filter(|key| !self.mismatches.contains(key));
                self.mismatches.extend(unknown.collect::<Vec<_>>());
            }
            Loss::WrongSignature => counters.wrong_signatures += 1,
            Loss::Idle => counters.idle_timeouts += 1,
            Loss::Reset => counters.resets_received += 1,
            _ => {}
        }
        if !self.remove_if_forgotten(slot) {
            self.touch(slot);
        }
        is_told.then_some(Event::Lost { connection, loss })
    }
}

/// What the protocol's reason means to us.
fn loss(reason: proto::ConnectionError) -> Loss {
    match reason {
        proto::ConnectionError::TransportError(error) => match u64::from(error.code) {
            ACCESS_DENIED => Loss::WrongKey,
            DECRYPT_ERROR => Loss::WrongSignature,
            code => Loss::Violation { code },
        },
        proto::ConnectionError::ConnectionClosed(close) => match u64::from(close.error_code) {
            ACCESS_DENIED | DECRYPT_ERROR => Loss::KeyRefused,
            code => Loss::Aborted { code },
        },
        proto::ConnectionError::ApplicationClosed(close) => {
            Loss::Closed { code: close.error_code.into_inner() }
        }
        proto::ConnectionError::Reset => Loss::Reset,
        proto::ConnectionError::TimedOut => Loss::Idle,
        proto::ConnectionError::VersionMismatch => {
            Loss::Violation { code: proto::TransportErrorCode::PROTOCOL_VIOLATION.into() }
        }
        proto::ConnectionError::LocallyClosed | proto::ConnectionError::CidsExhausted => {
            Loss::Aborted { code: proto::TransportErrorCode::INTERNAL_ERROR.into() }
        }
    }
}
