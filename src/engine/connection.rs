//! One engine connection: its bytes in and out, what it registered, and what it waits for.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use orbitkv_shards::leases::{ConnectionId, InstanceId};
use orbitkv_shards::ledger::{Ledger, LedgerSettings};
use orbitkv_shards::time::Moment;
use orbitkv_wire::bounds;
use orbitkv_wire::engine::Operation;
use orbitkv_wire::identity::{GroupId, NamespaceDigest};
use orbitkv_wire::namespace::GroupKind;

use super::refusal::Refused;

/// Answer bytes that may wait for the engine to read them; above it, its requests wait too.
pub const OUTBOUND_PAUSE_BYTES: usize = 1024 * 1024;

/// Answer bytes that wait or are owed, and bytes kept of unanswered requests; above it, further
/// requests wait. A page of a List is a small question with a large answer, and a Query keeps its
/// hashes: without this bound, 256 of them would be 100 MiB.
pub const OWED_PAUSE_BYTES: usize = 2 * OUTBOUND_PAUSE_BYTES;

/// Room that a buffer keeps when less waits in it: a connection that has sent one large frame, or read one
/// large answer, is not to hold the room of it for the rest of its life.
const BUFFER_KEEP_BYTES: usize = 16 * 1024;

/// Bytes of answers one connection's ledger keeps for repeated requests.
const LEDGER_BYTES: usize = 256 * 1024;

/// An answer above this is not kept: a single one must not push all others out of the ledger.
pub const LEDGER_ANSWER_BYTES_MAX: usize = LEDGER_BYTES / 2;

/// Unanswered requests at which further ones wait: the agreed ones, and as many Releases, which pass
/// that limit. So the ledger has a seat for every Release that is read.
pub const UNANSWERED_PAUSE: usize = 2 * bounds::REQUESTS_IN_FLIGHT_MAX;

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
    /// Name of that instance, from the first Register on that was not refused.
    pub instance_name: Option<String>,
    /// Registrations that the registry has not answered yet.
    pub registering: usize,
    /// Registrations by handle.
    pub registered: Vec<Registered>,
    /// Bytes received and not yet understood: at most one frame.
    pub inbound: Vec<u8>,
    /// When the last of them came: the turn that took them in.
    pub received: Moment,
    /// Bytes to be sent.
    pub outbound: Vec<u8>,
    /// Bytes that answers still to come may have, and bytes kept of their requests.
    pub owed_bytes: usize,
    /// Unanswered requests: request id to job number.
    pub requests: BTreeMap<u64, u64>,
    /// Request id of a Drain that waits for the node.
    pub drain: Option<u64>,
    /// Answers that a repeated request gets again.
    pub ledger: Ledger,
    /// When the ledger is looked at for answers that have come of age, while it has any.
    pub ledger_look_at: Option<Moment>,
    /// Requests that may be unanswered.
    pub in_flight_max: usize,
}

impl Connection {
    /// A connection that has said nothing yet.
    #[must_use]
    pub fn new(id: ConnectionId, process_id: u32) -> Connection {
        Connection {
            id,
            process_id,
            phase: Phase::Greeting,
            instance: None,
            instance_name: None,
            registering: 0,
            registered: Vec::new(),
            inbound: Vec::new(),
            received: Moment(0),
            outbound: Vec::new(),
            owed_bytes: 0,
            requests: BTreeMap::new(),
            drain: None,
            ledger: Ledger::new(ledger_settings()),
            ledger_look_at: None,
            in_flight_max: bounds::REQUESTS_IN_FLIGHT_MAX,
        }
    }

    /// Bytes one connection takes at most, for the memory bill: a frame coming in, requests in work and
    /// answers going out (paused above a bound, what is owed included), and the ledger.
    #[must_use]
    pub fn table_bytes() -> u64 {
        let ledger = Ledger::<u64>::table_bytes(&ledger_settings());
        (bounds::FRAME_BYTES_MAX + OWED_PAUSE_BYTES + ledger) as u64
    }

    /// The socket is closed. Its process may live and have claims for long, so nothing stays that only a
    /// reader of answers could want.
    pub fn close(&mut self) {
        self.phase = Phase::Closed;
        self.inbound = Vec::new();
        self.outbound = Vec::new();
        self.drain = None;
        self.ledger = Ledger::new(ledger_settings());
    }

    /// Requests without a last answer.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.requests.len() + usize::from(self.drain.is_some())
    }

    /// Whether the request with this id has no last answer yet.
    #[must_use]
    pub fn is_unanswered(&self, request_id: u64) -> bool {
        self.requests.contains_key(&request_id) || self.drain == Some(request_id)
    }

    /// Keeps the answer that begins at `start` of the outbound bytes, for a repeat of its request.
    pub fn keep_answer(&mut self, operation: Operation, request_id: u64, start: usize, now: Moment) {
        let answer = &self.outbound[start..];
        // The offsets that an Acquire gave are worth nothing once its lease is released, so a repeat
        // must not be told them again.
        if operation != Operation::Acquire && answer.len() <= LEDGER_ANSWER_BYTES_MAX {
            return self.ledger.finish(request_id, answer, now);
        }
        let mut refusal = Vec::new();
        Refused::answered_before(request_id).append_to(&mut refusal, operation, request_id);
        self.ledger.finish(request_id, &refusal, now);
    }

    /// Whether another request may be read now.
    #[must_use]
    pub fn may_read(&self) -> bool {
        match self.phase {
            Phase::Greeting | Phase::Open => {
                self.requests.len() < UNANSWERED_PAUSE
                    && self.outbound.len() < OUTBOUND_PAUSE_BYTES
                    && self.outbound.len() + self.owed_bytes < OWED_PAUSE_BYTES
            }
            Phase::Closing | Phase::Closed => false,
        }
    }
}

/// Gives back the room that a buffer no longer needs.
pub fn give_room_back(buffer: &mut Vec<u8>) {
    if buffer.len() <= BUFFER_KEEP_BYTES {
        buffer.shrink_to(BUFFER_KEEP_BYTES);
    }
}

fn ledger_settings() -> LedgerSettings {
    LedgerSettings { bytes_max: LEDGER_BYTES, in_flight_max: UNANSWERED_PAUSE, ..LedgerSettings::default() }
}
