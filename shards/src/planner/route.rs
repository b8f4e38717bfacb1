//! What is chosen between: the ways in which a block can become usable.

use std::time::Duration;

use orbitkv_wire::identity::Medium;
use orbitkv_wire::inventory::SourceStream;

use super::told::OwnerEvidence;
use crate::residents::CopyId;

/// A way in which blocks become usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Route {
    /// This node has it.
    Local(Medium),
    /// A shard of another node has it, in one life of that node.
    Peer {
        /// Whose.
        source: SourceStream,
        /// Where it keeps it.
        medium: Medium,
    },
    /// The engine makes it again, at a cost that it has measured and declared.
    Recompute,
}

/// What serves one block after the other. Different queues work at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Queue {
    Device(Medium),
    /// Both media of a source share its connection.
    Source(SourceStream),
    Engine,
}

impl Route {
    pub(super) fn queue(self) -> Queue {
        match self {
            Route::Local(medium) => Queue::Device(medium),
            Route::Peer { source, .. } => Queue::Source(source),
            Route::Recompute => Queue::Engine,
        }
    }
}

/// A route of one block. It was looked up by the block's own key, whose hash names the prefix up to its end: so it
/// satisfies the same demand at the same boundary, if it has as many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Which way.
    pub route: Route,
    /// Bytes that come.
    pub bytes: u64,
    /// What the engine says that it costs: of Recompute alone, which without it is no choice.
    pub declared: Option<Duration>,
    /// What its owner has said. It decides nothing.
    pub told: OwnerEvidence,
}

/// A block of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Want<'a> {
    /// Names it until it is reported.
    pub copy: CopyId,
    /// Its bytes, at least 1.
    pub bytes: u64,
    /// Where it may come from, in the fixed order.
    pub choices: &'a [Choice],
}

/// What a route has to do already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Bytes that are asked for, or wait to be, and have not come.
    pub ahead_bytes: u64,
    /// Whether it is not to be asked now: it was lost, and is left alone for a while.
    pub rests: bool,
}

/// How it went when a block was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// The block.
    pub copy: CopyId,
    /// Who was asked.
    pub route: Route,
    /// Bytes of the block.
    pub bytes: u64,
    /// Bytes that were ahead of it in the route's queue when it joined.
    pub ahead_bytes: u64,
    /// From when it joined the queue to when this was known.
    pub elapsed: Duration,
    /// Whether nothing was in the time that is of no route, such as a handshake. Of failures it does not matter.
    pub is_comparable: bool,
    /// What became of it.
    pub outcome: TrialOutcome,
}

/// What became of a block that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TrialOutcome {
    /// It is in its slot.
    Usable,
    /// The source had no room to lend.
    Busy,
    /// The source has it no more, or could not be reached.
    Missing,
    /// The source could not read it.
    DeviceError,
    /// What came were other bytes.
    Corrupt,
    /// Its time was over first.
    TimedOut,
}
