//! One operation: what it has pinned, and how far it has come.

use std::collections::BTreeMap;

use orbitkv_wire::inventory::Requester;
use orbitkv_wire::payload::{Tag, Transport};

use super::Reader;
use crate::admission::Permit;
use crate::payload_streams::StreamAt;
use crate::shard::PinId;
use crate::time::Moment;

/// How far an operation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// So many pins are not readable yet.
    Running {
        /// Pins of which nothing has been told.
        untold: usize,
    },
    /// Everything has been told; readers have until the grant's end.
    Sent,
    /// It has ended; readers may not have noticed.
    Ended,
    /// It has ended, its time is over, and nothing proves that nobody reads.
    Quarantined,
}

/// What a pin is to its requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// It does not know where the bytes are: the pin can be given back at any time.
    Awaited,
    /// It may read: the pin is given back by proof alone.
    Told,
}

/// One pin of an operation, with what it is charged to.
pub(super) struct PinUse {
    /// Position of the residence in the request.
    pub index: u16,
    /// Bytes of memory.
    pub slot_bytes: u64,
    /// What it is to its requester.
    pub state: Use,
    /// Shares of every pool that bounds it.
    pub _permits: Vec<Permit>,
}

/// A request of which something is pinned.
pub(super) struct Operation {
    /// Where it travels.
    pub at: StreamAt,
    /// Tag of its frames.
    pub tag: Tag,
    /// Who asked.
    pub requester: Requester,
    /// How the bytes go.
    pub transport: Transport,
    /// Shared memory: who reads.
    pub reader: Option<Reader>,
    /// Its end by time.
    pub expires: Moment,
    /// How far it has come.
    pub progress: Progress,
    /// What it has pinned.
    pub pins: BTreeMap<PinId, PinUse>,
}

impl Operation {
    pub(super) fn slot_bytes(&self) -> u64 {
        self.pins.values().map(|used| used.slot_bytes).sum()
    }
}
