//! One session as its source sees it: who listens, what it can take, and what is due to it.
//!
//! What state a session is in is one enum. A session always knows what to send next from it and from the
//! journal; nothing is queued ahead for it, so a slow one costs a cursor.

use std::collections::VecDeque;
use std::time::Duration;

use orbitkv_wire::identity::{NodeId, Sequence, SnapshotId};
use orbitkv_wire::inventory::{Binding, ResetCause, Resume, Tag};
use orbitkv_wire::scope::ScopeDigest;

use super::frame::Frame;
use super::ledger::Ledger;
use super::scan::Scan;
use super::settings::{
    LIVENESS_INTERVAL, LIVENESS_STEP, PERMIT_IDLE, PROGRESS_INTERVAL, RETRY_REST_MAX, RETRY_REST_MIN,
};
use crate::inventory::PermitTicket;
use crate::time::Moment;

/// A connection of a peer that proved to have a node's key.
#[derive(Debug)]
pub struct Connection {
    /// That node.
    pub node: NodeId,
    /// Whether the transport takes no bytes for now.
    pub blocked: bool,
    /// How far it is.
    pub state: State,
}

/// How far a connection is.
#[derive(Debug)]
pub enum State {
    /// It has not said what it wants.
    Greeting {
        /// When it ends if it does not.
        until: Moment,
    },
    /// It has a session.
    Open(Box<Session>),
}

/// What the receiver has installed, as far as this session knows.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Its name, which is the snapshot it began with.
    pub id: SnapshotId,
    /// Sent through.
    pub sent: Sequence,
    /// Applied through, as acknowledged.
    pub applied: Sequence,
}

/// What is due to a session.
#[derive(Debug)]
pub enum Phase {
    /// It asked to go on from a view; the journal has not been asked yet.
    Resuming(Resume),
    /// It has a view and gets what changes.
    Following {
        /// It was told everything up to here.
        told: Sequence,
    },
    /// What it has cannot be continued; it has not been told.
    Resetting {
        /// Why.
        cause: ResetCause,
        /// How long to rest before the snapshot that follows.
        rest: Duration,
    },
    /// It rests before it is offered a snapshot.
    Resting {
        /// How long.
        until: Moment,
    },
    /// It waits for a snapshot permit.
    Waiting {
        /// Its wish.
        ticket: PermitTicket,
        /// A place in the queue that it was not told.
        untold: Option<u32>,
    },
    /// It holds a permit.
    Permitted {
        /// What the permit is called.
        ticket: PermitTicket,
        /// When the last page left, or the permit came.
        idle_since: Moment,
        /// How far the snapshot is.
        stage: Stage,
    },
}

/// How far a snapshot is.
#[derive(Debug)]
pub enum Stage {
    /// It has not been begun.
    Granted,
    /// It is offered, and neither accepted nor refused.
    Offered(Box<Scan>),
    /// Its pages leave.
    Scanning(Box<Scan>),
    /// Its pages have left; the history since its beginning follows.
    Replaying {
        /// The scan.
        scan: Box<Scan>,
        /// Replayed through.
        cursor: Sequence,
        /// Head after the last page: the replay ends with the interval that reaches it.
        target: Sequence,
    },
}

/// In which order sessions are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Answers: small, and others wait for them.
    Answers,
    /// Deltas and progress.
    Deltas,
    /// Pages and replays.
    Snapshots,
}

/// One session.
#[derive(Debug)]
pub struct Session {
    /// What it is bound to.
    pub binding: Binding,
    /// The binding as headers carry it.
    pub tag: Tag,
    /// Largest frame for it, header included.
    pub frame_bytes_max: usize,
    /// Number of the last frame that came.
    pub frames_received: u64,
    /// Number of the last frame that was built.
    pub frames_sent: u64,
    /// Frames that left and were not consumed.
    pub ledger: Ledger,
    /// Frames built and not taken yet, at most what one turn builds.
    pub outbox: VecDeque<Frame>,
    /// Whether its outbox is in the publisher's order of service.
    pub is_listed: bool,
    /// Bytes that were sent to it, in the measure of its class's fairness.
    pub served_bytes: u64,
    /// What is due.
    pub phase: Phase,
    /// What it has installed.
    pub view: Option<View>,
    /// A barrier of the receiver wants to be told as soon as this is covered.
    pub flush_through: Option<Sequence>,
    /// A quiet interval ends here of which it is to be told when the time has come.
    pub quiet_through: Option<Sequence>,
    /// When a frame was last built for it.
    pub left_at: Moment,
    /// When its cursor was last moved.
    pub moved_at: Moment,
    /// When its receiver last gave no credit or took no bytes, the history had got so far.
    pub held_through: Sequence,
    /// Snapshots that failed one after the other.
    pub failures: u32,
}

impl Session {
    /// A session that begins with `phase`.
    #[must_use]
    pub fn new(
        binding: Binding,
        frame_bytes_max: usize,
        ledger: Ledger,
        phase: Phase,
        now: Moment,
    ) -> Session {
        Session {
            tag: binding.tag(),
            binding,
            frame_bytes_max,
            frames_received: 1,
            frames_sent: 0,
            ledger,
            outbox: VecDeque::new(),
            is_listed: false,
            served_bytes: 0,
            phase,
            view: None,
            flush_through: None,
            quiet_through: None,
            left_at: now,
            moved_at: now,
            held_through: Sequence(0),
            failures: 0,
        }
    }

    /// Its scope.
    #[must_use]
    pub fn scope(&self) -> ScopeDigest {
        self.binding.scope
    }

    /// In which class it is to be served if anything is due to it, given the history through `exposed`.
    #[must_use]
    pub fn class(&self, exposed: Sequence) -> Option<Class> {
        match &self.phase {
            Phase::Resuming(_) | Phase::Resetting { .. } | Phase::Waiting { untold: Some(_), .. } => {
                Some(Class::Answers)
            }
            Phase::Permitted { stage: Stage::Granted, .. } => Some(Class::Answers),
            Phase::Following { told } if *told < exposed => Some(Class::Deltas),
            Phase::Permitted { stage: Stage::Scanning(_) | Stage::Replaying { .. }, .. } => {
                Some(Class::Snapshots)
            }
            Phase::Following { .. }
            | Phase::Resting { .. }
            | Phase::Waiting { untold: None, .. }
            | Phase::Permitted { stage: Stage::Offered(_), .. } => None,
        }
    }

    /// The permit it wishes for or holds.
    #[must_use]
    pub fn ticket(&self) -> Option<PermitTicket> {
        match self.phase {
            Phase::Waiting { ticket, .. } | Phase::Permitted { ticket, .. } => Some(ticket),
            Phase::Resuming(_)
            | Phase::Following { .. }
            | Phase::Resetting { .. }
            | Phase::Resting { .. } => None,
        }
    }

    /// Where it walks along the intervals of its scope.
    #[must_use]
    pub fn place(&self) -> Option<Sequence> {
        match self.phase {
            Phase::Following { told } => Some(told),
            Phase::Permitted { stage: Stage::Replaying { cursor, .. }, .. } => Some(cursor),
            _ => None,
        }
    }

    /// The scan of this snapshot, if it is the one that is offered or under way.
    #[must_use]
    pub fn scans(&self, snapshot: SnapshotId) -> bool {
        let Phase::Permitted { stage, .. } = &self.phase else { return false };
        match stage {
            Stage::Granted => false,
            Stage::Offered(scan) | Stage::Scanning(scan) | Stage::Replaying { scan, .. } => {
                scan.snapshot == snapshot
            }
        }
    }

    /// From here on it gets what changes after `told`.
    pub fn follow(&mut self, told: Sequence, now: Moment) {
        self.phase = Phase::Following { told };
        self.told(told, now);
    }

    /// Its cursor was moved to `through` by a frame that has left.
    pub fn tell(&mut self, through: Sequence, now: Moment) {
        self.phase = Phase::Following { told: through };
        if let Some(view) = &mut self.view {
            view.sent = through;
        }
        self.told(through, now);
    }

    fn told(&mut self, through: Sequence, now: Moment) {
        self.moved_at = now;
        self.quiet_through = None;
        self.flush_through = self.flush_through.filter(|wanted| *wanted > through);
    }

    /// How long to rest before the next try of a snapshot; longer with each failure.
    #[must_use]
    pub fn rest(&self) -> Duration {
        RETRY_REST_MIN.saturating_mul(1 << self.failures.min(16)).min(RETRY_REST_MAX)
    }

    /// Whether a quiet interval is to be told of now.
    #[must_use]
    pub fn is_progress_due(&self, through: Sequence, now: Moment) -> bool {
        self.flush_through.is_some_and(|wanted| wanted <= through) || now >= self.moved_at + PROGRESS_INTERVAL
    }

    /// When it says that it lives if nothing else leaves before.
    #[must_use]
    pub fn beat_at(&self) -> Moment {
        let (overdue, step) = (self.left_at + LIVENESS_INTERVAL, LIVENESS_STEP.as_nanos() as u64);
        Moment(overdue.0 / step * step)
    }

    /// When it wants a turn if nothing happens to it.
    #[must_use]
    pub fn next_deadline(&self, blocked: bool) -> Option<Moment> {
        let liveness = (!blocked).then(|| self.beat_at());
        let phase = match self.phase {
            Phase::Resting { until } => Some(until),
            Phase::Permitted { idle_since, .. } => Some(idle_since + PERMIT_IDLE),
            Phase::Following { .. } if !blocked => {
                self.quiet_through.map(|_| self.moved_at + PROGRESS_INTERVAL)
            }
            _ => None,
        };
        [liveness, phase].into_iter().flatten().min()
    }
}
