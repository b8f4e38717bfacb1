//! The UDP socket of an endpoint: batches of datagrams each way, as large as the kernel takes them.

use super::counters::Counters;
use super::settings::{DATAGRAM_COST_BYTES, SEND_BYTES_MAX};
use quinn_proto::{EcnCodepoint, Transmit};
use quinn_udp::{BATCH_SIZE, RecvMeta, UdpSockRef, UdpSocketState};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

/// A receive with GRO gives at most this much, and a datagram cannot have more.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// A socket and the batch last received.
pub(super) struct Socket {
    socket: UdpSocket,
    state: UdpSocketState,
    /// Room for a batch. Only what is received into is ever touched.
    buffer: Box<[u8]>,
    metas: [RecvMeta; BATCH_SIZE],
    /// Bytes of a message lately, on average: how many fit a budget.
    message_bytes: usize,
    /// What the kernel had no room for.
    unsent: Option<Unsent>,
    /// Buffer of the last `unsent`, to be used again.
    spare: Vec<u8>,
}

struct Unsent {
    transmit: Transmit,
    contents: Vec<u8>,
}

/// Datagrams that came together from one address.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batch {
    pub(super) remote: SocketAddr,
    pub(super) local_ip: Option<IpAddr>,
    pub(super) ecn: Option<EcnCodepoint>,
    start: usize,
    bytes: usize,
    datagram_bytes: usize,
}

impl Batch {
    /// Ranges of its datagrams, for [`Socket::datagram`].
    pub(super) fn datagrams(self) -> impl Iterator<Item = std::ops::Range<usize>> {
        let end = self.start + self.bytes;
        (self.start..end)
            .step_by(self.datagram_bytes.max(1))
            .map(move |start| start..(start + self.datagram_bytes).min(end))
    }
}

/// Whether the kernel takes more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// Taken, or refused for good.
    Done,
    /// Kept; nothing more can be sent before it has gone.
    Blocked,
}

impl Socket {
    pub(super) fn new(socket: UdpSocket, buffer_bytes: usize) -> io::Result<Self> {
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        state.set_recv_buffer_size(UdpSockRef::from(&socket), buffer_bytes)?;
        state.set_send_buffer_size(UdpSockRef::from(&socket), buffer_bytes)?;
        Ok(Self {
            socket,
            state,
            buffer: vec![0; BATCH_SIZE * MESSAGE_BYTES_MAX].into(),
            metas: [RecvMeta::default(); BATCH_SIZE],
            message_bytes: 1_200,
            unsent: None,
            spare: Vec::new(),
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn local_address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Whether the network might cut our datagrams, which path discovery cannot have.
    pub(super) fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    /// Receives about `budget_bytes`; the number of batches, and whether there may be more.
    pub(super) fn receive(&mut self, budget_bytes: usize, counters: &mut Counters) -> (usize, bool) {
        let messages = (budget_bytes / self.message_bytes.max(DATAGRAM_COST_BYTES)).clamp(1, BATCH_SIZE);
        let mut parts = self.buffer.chunks_exact_mut(MESSAGE_BYTES_MAX);
        let mut buffers: [IoSliceMut<'_>; BATCH_SIZE] =
            std::array::from_fn(|_| IoSliceMut::new(parts.next().expect("a part for each message")));
        let socket = UdpSockRef::from(&self.socket);
        let count = match self.state.recv(socket, &mut buffers[..messages], &mut self.metas[..messages]) {
            Ok(count) => count,
            Err(error) => {
                counters.receives_failed += u64::from(error.kind() != io::ErrorKind::WouldBlock);
                return (0, false);
            }
        };
        let bytes: usize = self.metas[..count].iter().map(|meta| meta.len).sum();
        self.message_bytes = (self.message_bytes * 7 + bytes / count.max(1)) / 8;
        counters.receives += 1;
        counters.bytes_received += bytes as u64;
        (count, count == messages)
    }

    /// A batch of the last receive.
    pub(super) fn batch(&self, index: usize) -> Batch {
        let meta = &self.metas[index];
        Batch {
            remote: meta.addr,
            local_ip: meta.dst_ip,
            ecn: meta.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8)),
            start: index * MESSAGE_BYTES_MAX,
            bytes: meta.len,
            datagram_bytes: meta.stride,
        }
    }

    /// Bytes of a datagram of the last receive.
    pub(super) fn datagram(&self, range: std::ops::Range<usize>) -> &[u8] {
        &self.buffer[range]
    }

    /// How many datagrams of `datagram_bytes` one send may carry.
    pub(super) fn datagrams_max(&self, datagram_bytes: usize) -> usize {
        self.state.max_gso_segments().min(SEND_BYTES_MAX / datagram_bytes.max(1)).max(1)
    }

    /// Gives the kernel what it had no room for before.
    pub(super) fn send_unsent(&mut self, counters: &mut Counters) -> Sent {
        let Some(unsent) = self.unsent.take() else { return Sent::Done };
        let sent = self.send(unsent.transmit, &unsent.contents, counters);
        self.spare = unsent.contents;
        sent
    }

    /// Sends; a datagram that finds no room is kept, and the caller sends nothing more until
    /// [`Self::send_unsent`] is done.
    pub(super) fn send(&mut self, transmit: Transmit, contents: &[u8], counters: &mut Counters) -> Sent {
        if self.unsent.is_some() {
            // Answers without a connection come while the socket is blocked: lost, as on any network.
            counters.sends_failed += 1;
            return Sent::Blocked;
        }
        let contents = &contents[..transmit.size];
        let outgoing = quinn_udp::Transmit {
            destination: transmit.destination,
            ecn: transmit.ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
            contents,
            segment_size: transmit.segment_size,
            src_ip: transmit.src_ip,
        };
        let datagrams = transmit.segment_size.map_or(1, |bytes| contents.len().div_ceil(bytes.max(1)));
        match self.state.try_send(UdpSockRef::from(&self.socket), &outgoing) {
            Ok(()) => {
                counters.sends += 1;
                counters.datagrams_sent += datagrams as u64;
                counters.bytes_sent += contents.len() as u64;
                Sent::Done
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                counters.sends_blocked += 1;
                let mut kept = std::mem::take(&mut self.spare);
                kept.clear();
                kept.extend_from_slice(contents);
                self.unsent = Some(Unsent { transmit, contents: kept });
                Sent::Blocked
            }
            // A probe over the path's MTU, an address without a route: the protocol sees a lost packet.
            Err(_) => {
                counters.sends_failed += 1;
                Sent::Done
            }
        }
    }
}
