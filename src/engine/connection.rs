//! One engine connection: its bytes in and out, what it registered, and what it waits for.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use orbitkv_shards::leases::{ConnectionId, InstanceId};
use orbitkv_shards::ledger::{Ledger, LedgerSettings};
use orbitkv_wire::bounds;
use orbitkv_wire::identity::{GroupId, NamespaceDigest};
use orbitkv_wire::namespace::GroupKind;

/// Answer bytes that may wait for the engine to read them; above it, its requests wait too.
pub const OUTBOUND_PAUSE_BYTES: usize = 1024 * 1024;

/// Answer bytes that may wait or be owed; above it, further requests wait. A page of a List is a
/// small question with a large answer: without this bound, 256 of them would be 100 MiB.
pub const OWED_PAUSE_BYTES: usize = 2 * OUTBOUND_PAUSE_BYTES;

/// Bytes of answers one connection's ledger keeps for repeated requests.
const LEDGER_BYTES: usize = 256 * 1024;

/// Registrations one connection may make: one per rank it speaks for.
pub const REGISTRATIONS_PER_CONNECTION_MAX: usize = 64;

/// Where a connection's process was met: what the accepting core hands on.
#[derive(Debug)]
pub struct EngineStream {
    /// The socket, nonblocking.
    pub socket: UnixStream,
    /// Readable once the process is gone.
    pub process: OwnedFd,
    /// Process id, for the operator.
    pub process_id: u32,
    /// User id, already admitted.
    pub user_id: u32,
}

/// What a connection registered.
#[derive(Clone, Debug)]
pub struct Registered {
    /// The derived namespace.
    pub namespace: NamespaceDigest,
    /// Tokens a block stands for.
    pub block_tokens: u32,
    /// Its layer groups.
    pub groups: Vec<(GroupId, GroupKind, u64)>,
}

/// Where in its life a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing said yet.
    Greeting,
    /// Hello has been agreed.
    Open,
    /// Answers what it has and then closes: the peer broke the protocol.
    Closing,
    /// The socket is closed; the process may still use its leases and reservations.
    Closed,
}

/// One engine connection.
pub struct Connection {
    /// Its number.
    pub id: ConnectionId,
    /// Process id, for the operator and for the check of a lost connection.
    pub process_id: u32,
    /// Where in its life it is.
    pub phase: Phase,
    /// Instance, once registered.
    pub instance: Option<InstanceId>,
    /// Registrations by handle.
    pub registered: Vec<Registered>,
    /// Bytes received and not yet understood: at most one frame.
    pub inbound: Vec<u8>,
    /// Bytes to be sent.
    pub outbound: Vec<u8>,
    /// Bytes that answers still to come may have.
    pub owed_bytes: usize,
    /// Unanswered requests: request id to job number.
    pub requests: BTreeMap<u64, u64>,
    /// Answers that a repeated request gets again.
    pub ledger: Ledger,
    /// Requests that may be unanswered.
    pub in_flight_max: usize,
}

impl Connection {
    /// A connection that has said nothing yet.
    #[must_use]
    pub fn new(id: ConnectionId, process_id: u32) -> Connection {
        let ledger = LedgerSettings { bytes_max: LEDGER_BYTES, ..LedgerSettings::default() };
        Connection {
            id,
            process_id,
            phase: Phase::Greeting,
            instance: None,
            registered: Vec::new(),
            inbound: Vec::new(),
            outbound: Vec::new(),
            owed_bytes: 0,
            requests: BTreeMap::new(),
            ledger: Ledger::new(ledger),
            in_flight_max: bounds::REQUESTS_IN_FLIGHT_MAX,
        }
    }

    /// Bytes one connection takes at most, for the memory bill: a frame coming in, answers going
    /// out (paused above a bound, what is owed included), and the ledger.
    #[must_use]
    pub fn table_bytes() -> u64 {
        let ledger = LedgerSettings { bytes_max: LEDGER_BYTES, ..LedgerSettings::default() };
        (bounds::FRAME_BYTES_MAX + OWED_PAUSE_BYTES + Ledger::<u64>::table_bytes(&ledger)) as u64
    }

    /// Whether another request may be read now.
    #[must_use]
    pub fn may_read(&self) -> bool {
        match self.phase {
            Phase::Greeting | Phase::Open => {
                self.outbound.len() < OUTBOUND_PAUSE_BYTES
                    && self.outbound.len() + self.owed_bytes < OWED_PAUSE_BYTES
            }
            Phase::Closing | Phase::Closed => false,
        }
    }
}
