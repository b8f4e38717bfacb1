//! The engine's side of the engine channel: what vLLM's connector, `orbitkv replay` and the
//! benchmarks use to save blocks in a node and to get them back.
//!
//! One [`Client`] a process and node. It is synchronous and starts no thread: `submit_*` sends a
//! request and returns a [`Ticket`]; [`Client::poll`] returns answers in whatever order they
//! come, block by block where the node answers so; [`Client::fd`] is the one descriptor to wait
//! on. For simple callers every operation also has a blocking form with a bound on its time.
//!
//! Payload bytes never cross the socket. A [`ReservedSlot`] is written and a [`ReadyBlock`] is
//! read in place in the node's arena, which the client maps when it connects.
//!
//! # A node that goes away
//! When the connection ends, every unanswered request completes with
//! [`ClientError::ConnectionLost`]. The next call connects again (jittered backoff, within its
//! own time), registers the same namespaces, and goes on; [`Namespace`] handles stay valid.
//! Slots, blocks and leases of the old connection refuse to be used from then on, so bytes of an
//! earlier arena are never taken for those of a block. If the same node still runs, the client
//! tells it that the lost connection's leases and reservations have no user any more.
//!
//! ```no_run
//! use std::time::Duration;
//! use orbitkv::client::{BlockHash, Client, ClientSettings, Completion, GroupId, PrefixList, Reserved, SaveKey};
//! # fn registration() -> orbitkv::client::Registration { panic!("yours") }
//! # fn main() -> Result<(), orbitkv::client::ClientError> {
//! let wait = Duration::from_secs(5);
//! let mut client = Client::connect(ClientSettings::new("/run/orbitkv/engine.sock"))?;
//! let namespace = client.register(&registration(), wait)?;
//! let (block, group) = (BlockHash([7; 32]), GroupId(0));
//!
//! let mut slots = Vec::new();
//! for reserved in client.reserve(namespace, &[SaveKey { block, group, bytes: 65536 }], false, wait)? {
//!     if let Reserved::Slot(mut slot) = reserved {
//!         slot.bytes_mut()?.fill(42);
//!         slots.push(slot);
//!     }
//! }
//! client.commit(&mut slots, wait)?;
//!
//! let lists = [PrefixList { namespace, group, blocks: &[block] }];
//! let acquired = client.acquire(&lists, None, wait)?;
//! for ready in acquired.blocks.iter().flatten() {
//!     assert!(ready.bytes()?.iter().all(|&byte| byte == 42));
//! }
//! if let Some(lease) = &acquired.lease {
//!     client.release(lease, wait)?;
//! }
//! # Ok(())
//! # }
//! ```

mod blocking;
mod channel;
mod engine;
mod error;
mod link;
mod moments;
mod outcome;
mod requests;
mod session;
mod submit;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use orbitkv_wire::bounds::REQUESTS_IN_FLIGHT_MAX;

pub use engine::Client;
pub use error::ClientError;
pub use link::NodeInfo;
pub use moments::RequestMoments;
pub use outcome::{
    AcquirePart, AcquiredBlock, Acquisition, AttachPart, AttachedBlock, Cleared, Completion, Outcome, Page,
    QueryView, Reserved, Resident, Synced, Ticket,
};
pub use requests::{Group, Media, Namespace, PrefixList, Registration, Retention, SaveKey};
pub use session::{Lease, ReadyBlock, ReservedSlot, SlotBytes};

pub use orbitkv_native::arena::ViewPopulate;
pub use orbitkv_wire::engine::Status;
pub use orbitkv_wire::engine::answers::{
    BlockOutcome, CommitOutcome, Coverage, DrainAnswer, EvictOutcome, PageKindNumber, Place, PrefetchOutcome,
    SyncOutcome,
};
pub use orbitkv_wire::engine::requests::Completion as CompletionTarget;
pub use orbitkv_wire::identity::{BlockHash, GroupId, Medium, NamespaceDigest};

/// Requests in flight unless asked otherwise: what every node promises (chapter 1.3).
const IN_FLIGHT: u16 = 64;

/// How a client connects.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// The node's `--engine-socket`.
    pub socket: PathBuf,
    /// User id that the node may run as beside ours and root: another user's process at the socket is
    /// refused before anything is sent, because its arena would be ours to believe.
    pub node_uid: Option<u32>,
    /// Requests wanted in flight at once, 1 to 255; the node may grant fewer.
    pub in_flight: u16,
    /// How long [`Client::connect`] tries to reach the node.
    pub connect_wait: Duration,
    /// First pause between two attempts to connect; doubles up to `backoff_max`, and each is
    /// drawn anew between half and all of it.
    pub backoff_min: Duration,
    /// Longest pause between two attempts.
    pub backoff_max: Duration,
    /// How much longer than the time given a blocking call waits for the node's own
    /// `DeadlineExceeded` before it gives the node up.
    pub grace: Duration,
    /// When the arena's pages are mapped.
    pub populate: ViewPopulate,
    /// Answered requests whose moments are kept until [`Client::take_moments`]; 0 keeps none.
    pub moments_max: usize,
}

impl ClientSettings {
    /// The defaults for a socket: a node of our own user or root, 64 requests in flight, 5 s to connect, lazily mapped.
    pub fn new(socket: impl Into<PathBuf>) -> ClientSettings {
        ClientSettings {
            socket: socket.into(),
            node_uid: None,
            in_flight: IN_FLIGHT,
            connect_wait: Duration::from_secs(5),
            backoff_min: Duration::from_millis(10),
            backoff_max: Duration::from_millis(500),
            grace: Duration::from_secs(1),
            populate: ViewPopulate::Lazy,
            moments_max: 0,
        }
    }
}

// One more seat than is asked for stays free for Cancel.
const _: () = assert!((IN_FLIGHT as usize) < REQUESTS_IN_FLIGHT_MAX);
