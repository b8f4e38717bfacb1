//! What a core says of its peers when control asks.

use std::time::Duration;

use orbitkv_native::quic;
use orbitkv_shards::coverage::CoreCoverage;
use orbitkv_shards::fence::{Reading, WaiterId};
use orbitkv_shards::index::IndexAccounting;
use orbitkv_shards::inventory::publisher;
use orbitkv_shards::inventory::subscriber::{OwnerDetail, StreamId, SubscriberFigures};
use orbitkv_shards::planner::ZoneStanding;
use orbitkv_shards::resilience::signature::Mode;
use orbitkv_shards::shard::Tag;
use orbitkv_shards::time::Moment;
use orbitkv_wire::identity::{Incarnation, NodeId, Sequence, ShardIndex};
use orbitkv_wire::inventory::ResourceSummary;

use super::links::Side;
use super::{PayloadReport, Peers};

/// Figures of a core's part in the cluster.
#[derive(Clone, Debug)]
pub struct PeersReport {
    /// How far its owner streams are.
    pub coverage: CoreCoverage,
    /// Its index partition.
    pub index: IndexAccounting,
    /// Sessions in which peers subscribe to this core.
    pub sessions_served: usize,
    /// Sessions in which this core subscribes to peers.
    pub sessions_received: usize,
    /// The source's end.
    pub publisher: publisher::Figures,
    /// What the source's end is at.
    pub publishing: publisher::Standing,
    /// The requester's end.
    pub subscriber: SubscriberFigures,
    /// The endpoint.
    pub endpoint: quic::Counters,
    /// What is lent and fetched.
    pub payload: PayloadReport,
    /// Whose zone is asked first.
    pub zones: ZoneStanding,
    /// Turns in which a handshake was worked on: signatures make them long.
    pub handshake_turns: u64,
    /// How long no page came of the bootstrap that waits longest; none if every stream has its view.
    pub bootstrap_age: Option<Duration>,
}

/// Which owner streams of a core are wanted.
#[derive(Clone, Copy, Debug)]
pub struct OwnersPage {
    /// Who asks.
    pub tag: Tag,
    /// Number of the stream before the first wanted.
    pub after: Option<StreamId>,
    /// Most of them.
    pub limit: usize,
}

/// One owner stream, as told to an operator.
#[derive(Clone, Copy, Debug)]
pub struct OwnerRow {
    /// What its room says.
    pub detail: OwnerDetail,
    /// Time since its view was fresh, by receipt.
    pub age: Option<Duration>,
    /// Time since its view is missing or beyond repair.
    pub lacking: Option<Duration>,
    /// What the last calls for its blocks look like, if there were enough.
    pub mode: Option<Mode>,
    /// How busy it said that it is, and how long ago, if it did lately.
    pub load: Option<(ResourceSummary, Duration)>,
}

/// What control asks for a waiter that awaits a fence.
#[derive(Clone, Debug)]
pub struct ReadingsQuestion {
    /// For whom.
    pub waiter: WaiterId,
    /// Which reading of the waiter it is.
    pub round: u64,
    /// The source.
    pub node: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
    /// What the waiter waits for, one sequence a shard of the source.
    pub targets: Vec<Sequence>,
}

/// What a core has of the streams that a waiter waits for.
#[derive(Clone, Debug)]
pub struct ReadingsAnswer {
    /// For whom.
    pub waiter: WaiterId,
    /// Which reading of the waiter it is.
    pub round: u64,
    /// Who answers.
    pub core: ShardIndex,
    /// The membership revision it stands at.
    pub revision: u64,
    /// What it has.
    pub readings: Vec<Reading>,
}

impl Peers {
    /// Figures for control.
    #[must_use]
    pub fn report(&self, head: Sequence, now: Moment, boot: Moment) -> PeersReport {
        PeersReport {
            coverage: self.coverage(now, boot),
            index: self.partition.accounting(),
            sessions_served: self.links.count(Side::Source),
            sessions_received: self.links.count(Side::Requester),
            publisher: self.publisher.figures().clone(),
            publishing: self.publisher.standing(head),
            subscriber: self.subscriber.figures().clone(),
            endpoint: self.endpoint.counters(),
            payload: self.payload.report(now),
            zones: self.zones.standing(),
            handshake_turns: self.handshake_turns,
            bootstrap_age: self.subscriber.bootstrap_age(now),
        }
    }

    /// A page of owner streams.
    #[must_use]
    pub fn owners(&self, page: OwnersPage, now: Moment) -> Vec<OwnerRow> {
        let details = self.subscriber.owners(page.after, page.limit, &self.partition);
        let since = |at: Option<Moment>| at.map(|at| now.since(at));
        let row = |detail: OwnerDetail| OwnerRow {
            age: since(detail.fresh_at),
            load: self.subscriber.summary_of(&detail.source, now),
            lacking: since(detail.lacking_since),
            mode: self.payload.mode_of(&detail.source),
            detail,
        };
        details.map(row).collect()
    }

    /// What this core has for a waiter; sources are asked not to hold back what it waits for.
    pub fn readings(&mut self, question: &ReadingsQuestion, now: Moment) -> ReadingsAnswer {
        let ReadingsQuestion { waiter, round, node, incarnation, ref targets } = *question;
        self.subscriber.flush_through(node, incarnation, targets);
        self.wake();
        ReadingsAnswer {
            waiter,
            round,
            core: self.shard,
            revision: self.subscriber.coverage(now).revision,
            readings: self.subscriber.readings(node, incarnation),
        }
    }
}
