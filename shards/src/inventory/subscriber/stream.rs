//! One owner stream on its requester's core: what is installed of it, and the link over which more comes.

use std::net::SocketAddr;
use std::time::Duration;

use orbitkv_wire::identity::{Sequence, SnapshotId};
use orbitkv_wire::inventory::{ResourceSummary, Resume, SourceStream};

use super::census::{Holding, Tally};
use super::figures::{OwnerDetail, OwnerState};
use super::freshness::Freshness;
use super::session::{Phase, Session};
use super::snapshot::{Bootstrap, Misfit};
use crate::index::{Partition, ViewId};
use crate::inventory::ConnectionId;
use crate::time::Moment;

/// Number of an owner stream on its core, never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

/// What is installed of an owner stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnerView {
    /// Its rows.
    pub id: ViewId,
    /// Its name.
    pub snapshot: SnapshotId,
    /// Which of the core's installs it is.
    pub generation: u64,
    /// Sequence it is applied through.
    pub applied: Sequence,
    /// Where the newest frame ends of which anything was applied. While it is ahead of `applied`, the rows
    /// are those of no single sequence.
    pub begun: Sequence,
}

/// How the source can be reached.
#[derive(Debug)]
pub(super) enum Link {
    /// Not before this moment.
    Resting { due: Moment },
    /// Its dial waits for others to be answered.
    Queued,
    /// Its dial is not answered yet.
    Dialing,
    /// A session.
    Open(Box<Session>),
}

/// An owner stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub source: SourceStream,
    pub peer: u32,
    pub address: SocketAddr,
    pub link: Link,
    pub view: Option<OwnerView>,
    pub misfit: Option<Misfit>,
    pub freshness: Freshness,
    pub source_head: Sequence,
    /// How busy its source said it is, and when that was received.
    pub summary: Option<(ResourceSummary, Moment)>,
    pub attempt: u64,
    pub failures: u32,
    /// Since when its view is missing or beyond repair.
    pub lacking_since: Option<Moment>,
    pub tally: Tally,
    pub deadline: Option<Moment>,
    /// What whoever watches installs knows to be visible.
    pub told: Sequence,
}

impl Stream {
    /// A stream that is to be dialed at once.
    pub fn new(source: SourceStream, peer: u32, address: SocketAddr, now: Moment) -> Stream {
        Stream {
            source,
            peer,
            address,
            link: Link::Resting { due: now },
            view: None,
            misfit: None,
            freshness: Freshness::default(),
            source_head: Sequence(0),
            summary: None,
            attempt: 0,
            failures: 0,
            lacking_since: Some(now),
            tally: Tally { holding: Holding::Bare, fresh_at: Moment(0) },
            deadline: None,
            told: Sequence(0),
        }
    }

    /// The session, if there is one.
    pub fn session(&self) -> Option<&Session> {
        match &self.link {
            Link::Open(session) => Some(session),
            _ => None,
        }
    }

    /// The session, if there is one.
    pub fn session_mut(&mut self) -> Option<&mut Session> {
        match &mut self.link {
            Link::Open(session) => Some(session),
            _ => None,
        }
    }

    /// What the source is asked to continue. After a misfit nothing is: the view would only meet again
    /// what it had no room for.
    pub fn resume(&self) -> Option<Resume> {
        let view = self.view.filter(|_| self.misfit.is_none())?;
        Some(Resume { view: view.snapshot, sequence: view.applied })
    }

    /// Sequence the installed view is applied through; 0 without one.
    pub fn applied(&self) -> Sequence {
        self.view.map_or(Sequence(0), |view| view.applied)
    }

    /// What is to be counted of it.
    pub fn count(&self) -> Tally {
        let live = matches!(self.session().map(|session| &session.phase), Some(Phase::Live));
        let holding = match self.view {
            None => Holding::Bare,
            Some(view) if live && view.applied >= view.begun => Holding::Whole,
            Some(_) => Holding::Stale,
        };
        Tally { holding, fresh_at: self.freshness.fresh_at().unwrap_or_default() }
    }

    /// When something has to be done about it. Nothing is dialed and no page is missed while membership
    /// is not valid.
    pub fn next_deadline(&self, admitting: bool) -> Option<Moment> {
        match &self.link {
            Link::Resting { due } => admitting.then_some(*due),
            Link::Queued | Link::Dialing => None,
            Link::Open(session) => {
                let page_due = match &session.phase {
                    Phase::Bootstrapping(Bootstrap::Staging(staging)) if admitting => Some(staging.page_due),
                    _ => None,
                };
                [session.ack_due(), page_due].into_iter().flatten().min()
            }
        }
    }

    /// How long it has no view and no page of one has come; none while it has one that can be repaired.
    pub fn bootstrap_age(&self, page_wait: Duration, now: Moment) -> Option<Duration> {
        let lacking = now.since(self.lacking_since?);
        let page = match self.session().map(|session| &session.phase) {
            Some(Phase::Bootstrapping(Bootstrap::Staging(staging))) => {
                (now + page_wait).since(staging.page_due)
            }
            _ => lacking,
        };
        Some(page.min(lacking))
    }

    /// Whether it wishes for a permit or has one.
    pub fn holds_ticket(&self) -> bool {
        let phase = self.session().map(|session| &session.phase);
        matches!(phase, Some(Phase::Bootstrapping(Bootstrap::Offered(..) | Bootstrap::Staging(_))))
    }

    /// Its view, if only a complete snapshot can make it whole again.
    pub fn view_beyond_repair(&self) -> Option<OwnerView> {
        let phase = self.session().map(|session| &session.phase);
        let is_broken = self.misfit.is_some() || matches!(phase, Some(Phase::Bootstrapping(_)));
        self.view.filter(|_| is_broken)
    }

    /// The connection of its session.
    pub fn connection(&self) -> Option<ConnectionId> {
        self.session().map(|session| session.connection)
    }

    /// What a listing says of it.
    pub fn detail(&self, id: StreamId, partition: &Partition) -> OwnerDetail {
        let state = match &self.link {
            Link::Resting { .. } => OwnerState::Resting,
            Link::Queued | Link::Dialing => OwnerState::Dialing,
            Link::Open(session) => match &session.phase {
                Phase::Resuming(_) => OwnerState::Resuming,
                Phase::Bootstrapping(Bootstrap::Staging(_)) => OwnerState::Staging,
                Phase::Bootstrapping(_) => OwnerState::Bootstrapping,
                Phase::Live => OwnerState::Live,
            },
        };
        OwnerDetail {
            stream: id,
            source: self.source,
            state,
            view: self.view.map(|view| (view.snapshot, view.applied)),
            rows: self.view.map_or(0, |view| partition.view_rows(view.id)),
            source_head: self.source_head,
            fresh_at: self.freshness.fresh_at(),
            lacking_since: self.lacking_since,
            misfit: self.misfit.is_some(),
            summary: self.summary,
        }
    }
}
