//! One QUIC endpoint of one shard core: node to node, mutually authenticated, on the shard's UDP port.
//!
//! The protocol is quinn-proto, which performs no I/O; datagrams go through quinn-udp; nothing here has a
//! thread or a runtime. An [`Endpoint`] belongs to its core and is driven by turns, like the SSD ring:
//!
//! ```text
//! descriptor readable, or deadline passed:   turn      take datagrams in, fire timers, send
//! then until there is none:                  poll_event
//! after commands of whoever heard them:      flush     send what they caused
//! ```
//!
//! Inventory and payload have connections of their own, told apart by ALPN, so bulk delays no metadata: not
//! behind a lost packet, not in a window, and not in the send queue, where inventory goes first.
//!
//! # What a stranger can cost
//! A datagram from an address that no member publishes is dropped unread. From a member's address, one datagram
//! of a handshake is worked on in a turn; those that wait are bounded, in all and for each address. With eight
//! handshakes of addresses that have not proved themselves, the next gets a Retry. Who gets through must show the
//! key of the member record and sign with it.
//!
//! # What a peer can cost
//! It can make us hold its windows, charged whole to the pool of their purpose; one frame a stream that is to be
//! sent, and the send window; and state for as many streams as it was allowed. Datagrams are allocated one by one,
//! so that a byte that waits for its reader keeps nothing but its own datagram.

mod admission;
mod connection_names;
mod counters;
mod endpoint;
mod frames;
mod identity;
mod link;
mod members;
mod payload;
mod settings;
mod socket;
mod streams;
#[cfg(test)]
mod tests;
mod tls;

pub use counters::Counters;
pub use endpoint::{Endpoint, EndpointError, Turn};
pub use frames::FrameReader;
pub use identity::{Fingerprint, NodeKey, NodeKeyError};
pub use members::Member;
pub use payload::{Payload, Payloads};
pub use settings::{
    DIALS_PENDING_MAX, EndpointSettings, PurposeSettings, UNVERIFIED_MAX, URGENT_WINDOW_BYTES,
};

use bytes::Bytes;
use std::net::SocketAddr;

const ALPN_INVENTORY: &[u8] = b"orbitkv/inventory";
const ALPN_PAYLOAD: &[u8] = b"orbitkv/payload";

/// What a connection is for. It never carries anything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Purpose {
    /// Inventory streams: small, early, never behind bulk.
    Inventory,
    /// Grants and the bytes they permit.
    Payload,
}

impl Purpose {
    /// Both, in the order in which they are served.
    pub const ALL: [Purpose; 2] = [Purpose::Inventory, Purpose::Payload];

    fn alpn(self) -> &'static [u8] {
        match self {
            Purpose::Inventory => ALPN_INVENTORY,
            Purpose::Payload => ALPN_PAYLOAD,
        }
    }

    fn from_alpn(protocol: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|purpose| purpose.alpn() == protocol)
    }
}

/// A connection of this endpoint. Never given twice, so a late command for a lost one reaches nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId {
    slot: u32,
    generation: u32,
}

/// A bidirectional stream of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(u64);

impl StreamId {
    /// Its number, unique on its connection.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }

    /// The stream with a number that [`Self::number`] gave.
    #[must_use]
    pub fn numbered(number: u64) -> StreamId {
        StreamId(number)
    }
}

/// Who began a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// We did.
    Dialled,
    /// The peer did.
    Accepted,
}

/// Which bytes of a connection go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Priority {
    /// In turn with the other ones.
    #[default]
    Ordinary,
    /// Before all ordinary ones, with send window of its own: releases and cancels.
    Urgent,
}

/// What happened on the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A handshake is complete on our side. A dialler hears it before the other end has checked its key, so
    /// [`Event::Lost`] may still say that the key was refused.
    Connected {
        /// The new connection.
        connection: ConnectionId,
        /// The key that the peer holds.
        peer: Fingerprint,
        /// The peer's address.
        address: SocketAddr,
        /// What the dialler wants it for.
        purpose: Purpose,
        /// Who began it.
        origin: Origin,
    },
    /// A connection is gone, or a dial has failed. Nothing more is heard of it.
    Lost {
        /// The former connection.
        connection: ConnectionId,
        /// Why.
        loss: Loss,
    },
    /// The peer has begun a stream; there may be bytes to read already.
    StreamOpened {
        /// The connection.
        connection: ConnectionId,
        /// The new stream.
        stream: StreamId,
    },
    /// A stream that was read until it was blocked has bytes, its end, or an error.
    Readable {
        /// The connection.
        connection: ConnectionId,
        /// The stream.
        stream: StreamId,
    },
    /// A stream that refused a write takes one again.
    Writable {
        /// The connection.
        connection: ConnectionId,
        /// The stream.
        stream: StreamId,
    },
    /// The peer has acknowledged all bytes and the end of a finished stream.
    Delivered {
        /// The connection.
        connection: ConnectionId,
        /// The stream.
        stream: StreamId,
    },
    /// The peer wants no more bytes of a stream; what was unsent is dropped.
    Stopped {
        /// The connection.
        connection: ConnectionId,
        /// The stream.
        stream: StreamId,
        /// The peer's reason.
        code: u64,
    },
    /// The peer allows more streams than before.
    StreamsAvailable {
        /// The connection.
        connection: ConnectionId,
    },
}

/// Why a connection is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The peer showed another key than was expected: superseded, or an impostor.
    WrongKey,
    /// The peer showed the expected key and does not hold it.
    WrongSignature,
    /// The peer did not accept our key.
    KeyRefused,
    /// The handshake took too long.
    HandshakeTimeout,
    /// Nothing came for the idle time-out.
    Idle,
    /// The peer has forgotten the connection: it is another process.
    Reset,
    /// The peer closed it with a code of ours.
    Closed {
        /// The code.
        code: u64,
    },
    /// The peer's transport refused or gave up.
    Aborted {
        /// A transport error code of RFC 9000.
        code: u64,
    },
    /// The peer broke the protocol.
    Violation {
        /// A transport error code of RFC 9000.
        code: u64,
    },
}

/// Codes with which the endpoint itself closes; those of callers are below them.
pub mod close_code {
    /// The pool or the connections of the purpose are used up: come again later.
    pub const NO_ROOM: u32 = 0xffff_0001;
    /// The handshake took too long.
    pub const HANDSHAKE_TIMEOUT: u32 = 0xffff_0002;
    /// The handshake did not say what the connection is for.
    pub const NO_PURPOSE: u32 = 0xffff_0003;
}

/// Why a dial was not begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DialRefusal {
    /// No member publishes the address.
    #[error("no member publishes the address")]
    NotAMember,
    /// [`DIALS_PENDING_MAX`] dials have not ended.
    #[error("{DIALS_PENDING_MAX} dials are pending")]
    TooManyPending,
    /// The connections or the receive pool of the purpose are used up.
    #[error("no room for a connection of this purpose")]
    NoRoom,
    /// The address has no port or cannot be reached from the endpoint's socket.
    #[error("nothing can be sent to the address")]
    Unreachable,
}

/// Why a stream could not be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenRefusal {
    /// The peer allows no more now; [`Event::StreamsAvailable`] follows.
    #[error("the peer allows no more streams")]
    NoneLeft,
    /// The connection is not open.
    #[error("the connection is not open")]
    Closed,
}

/// Why a write was not taken. Nothing of it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteRefusal {
    /// An earlier write has not gone out; [`Event::Writable`] follows.
    #[error("the stream is blocked")]
    Blocked(
        /// The refused bytes.
        Bytes,
    ),
    /// The stream or its connection takes no more bytes.
    #[error("the stream is closed")]
    Closed,
}

/// How far a read came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadState {
    /// All that has come in was read; [`Event::Readable`] follows.
    Blocked,
    /// The budget is used up; there may be more.
    More,
    /// The stream has ended.
    Ended,
}

/// Why a read gave no more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError<E> {
    /// The peer broke the stream off.
    #[error("the peer broke the stream off with code {code}")]
    Reset {
        /// The peer's reason.
        code: u64,
    },
    /// The stream or its connection is not there.
    #[error("the stream is closed")]
    Closed,
    /// The reader refused what it was given.
    #[error(transparent)]
    Reader(E),
}
