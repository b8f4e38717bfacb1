//! What is to be brought, where it may be had, and how far that is.

use std::collections::VecDeque;
use std::time::Duration;

use orbitkv_wire::engine::answers::BlockOutcome;
use orbitkv_wire::identity::{BlockHash, GroupId, Medium, NamespaceDigest, Sequence};
use orbitkv_wire::inventory::SourceStream;
use orbitkv_wire::payload::ExactResidence;

use super::guard::Probe;
use super::lines::LineId;
use super::steps::StepClock;
use crate::planner::TrialOutcome;
use crate::residents::CopyId;
use crate::resilience::gate::Class;
use crate::time::Moment;

/// Candidates of a fetch that are looked at: as many as a lookup lists.
pub const CANDIDATES_MAX: usize = 8;

/// A block to be brought into a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Names the fetch until it is reported, once.
    pub copy: CopyId,
    /// The namespace.
    pub namespace: NamespaceDigest,
    /// The layer group.
    pub group: GroupId,
    /// The block hash.
    pub block: BlockHash,
    /// Where its bytes go in the arena.
    pub arena_offset: u64,
    /// How many they are, at least 1.
    pub bytes: u64,
    /// Demand, or what nobody waits for: that is asked for when nothing else is to be.
    pub class: Class,
}

/// A residence that may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Whose: a shard in one life of a node.
    pub source: SourceStream,
    /// Where it keeps it.
    pub medium: Medium,
    /// Residency sequence.
    pub sequence: Sequence,
    /// Payload bytes.
    pub bytes: u32,
}

/// A candidate, and when it makes sense to ask.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub candidate: Candidate,
    pub not_before: Moment,
}

/// Where a fetch is. It is in one place at a time: that, and nothing else, is why no two operations write
/// into one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It waits for a route.
    Unplaced,
    /// All its routes rest until then.
    Resting(Moment),
    /// It waits to be asked for.
    Queued(LineId),
    /// It is part of an operation.
    Asked {
        /// The operation's number.
        operation: u64,
        /// Its position in it.
        index: u16,
    },
}

/// A candidate that is tried, for whoever compares sources.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    pub candidate: Candidate,
    /// When the fetch joined its source's queue.
    pub since: Moment,
    /// What was to come from there before it.
    pub ahead_bytes: u64,
    /// Whether its source was connected then, and whenever it was tried again.
    pub is_warm: bool,
}

/// A fetch that has not ended.
#[derive(Debug)]
pub(super) struct Fetch {
    pub order: Order,
    /// What has not been tried, best first.
    pub routes: VecDeque<Route>,
    /// What is being tried: in Queued and Asked.
    pub current: Option<Candidate>,
    pub tried: u32,
    pub deadline: Moment,
    /// Grows with every fetch: who came first goes first.
    pub age: u64,
    /// When it began, or somebody came to wait for it.
    pub since: Moment,
    /// Which step it is at.
    pub clock: StepClock,
    pub place: Place,
    /// Whether shared memory has failed it once, so that it goes over QUIC from then on.
    pub needs_quic: bool,
    /// The latest try; of the current route, if there is one.
    pub attempt: Option<Attempt>,
    /// Whether it was given a route before.
    pub was_placed: bool,
    /// Whether a call for it has failed, so that the next one is an extra one.
    pub owes: bool,
    /// The probe that it carries to its source, in Queued.
    pub probe: Option<Probe>,
    worst: Option<Setback>,
}

/// What made a route fail, by how much the engine wants to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Setback {
    Busy,
    Missing,
    /// No answer, or not all of it: what there is to know of the block is not known.
    Lost,
    DeviceError,
    Corrupt,
}

impl From<Setback> for TrialOutcome {
    fn from(setback: Setback) -> TrialOutcome {
        match setback {
            Setback::Busy => TrialOutcome::Busy,
            Setback::Missing | Setback::Lost => TrialOutcome::Missing,
            Setback::DeviceError => TrialOutcome::DeviceError,
            Setback::Corrupt => TrialOutcome::Corrupt,
        }
    }
}

impl Setback {
    /// Whether the call failed, other than by an answer that says where to go on.
    fn is_failure(self) -> bool {
        match self {
            Setback::Busy | Setback::Missing => false,
            Setback::Lost | Setback::DeviceError | Setback::Corrupt => true,
        }
    }
}

/// How long a fetch that has time lets those pass that have less.
const PASSED_FOR: Duration = Duration::from_secs(1);

/// The order in which fetches wait: by class, then by deadline for as long as one may be passed, then by age.
pub(super) type Turn = ((Class, Moment), u64, CopyId);

impl Fetch {
    pub fn new(
        order: Order,
        candidates: &[Candidate],
        deadline: Moment,
        (age, since): (u64, Moment),
    ) -> Fetch {
        let fits = |candidate: &&Candidate| u64::from(candidate.bytes) == order.bytes;
        let route = |candidate: &Candidate| Route { candidate: *candidate, not_before: Moment(0) };
        let routes = candidates.iter().filter(fits).take(CANDIDATES_MAX).map(route).collect();
        let place = Place::Unplaced;
        Fetch {
            order,
            routes,
            current: None,
            tried: 0,
            deadline,
            age,
            since,
            clock: StepClock::new(deadline, since),
            place,
            needs_quic: false,
            attempt: None,
            was_placed: false,
            owes: false,
            probe: None,
            worst: None,
        }
    }

    pub fn turn(&self) -> Turn {
        ((self.order.class, self.deadline.min(self.since + PASSED_FOR)), self.age, self.order.copy)
    }

    /// The current route has failed.
    pub fn fail(&mut self, setback: Setback) {
        self.current = None;
        self.attempt = None;
        self.tried += 1;
        self.owes = setback.is_failure();
        self.worst = self.worst.max(Some(setback));
    }

    /// What to say if nothing is left to try. Busy only if everybody was.
    pub fn outcome(&self) -> BlockOutcome {
        match self.worst {
            Some(Setback::Busy) => BlockOutcome::Busy,
            Some(Setback::DeviceError) => BlockOutcome::DeviceError,
            Some(Setback::Corrupt) => BlockOutcome::Corrupt,
            Some(Setback::Missing | Setback::Lost) | None => BlockOutcome::Missing,
        }
    }

    pub fn residence(&self) -> ExactResidence {
        let Candidate { medium, sequence, .. } = self.current.expect("a fetch that is queued has a route");
        let Order { namespace, group, block, .. } = self.order;
        ExactResidence { namespace, group, block, medium, sequence }
    }
}
