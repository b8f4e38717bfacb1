//! What the planner is told and what is made of its plans: the blocks that begin to be fetched in one turn are one
//! batch, and whoever is to be asked first goes before the others.

use orbitkv_shards::fetcher::{Candidate, Order};
use orbitkv_shards::index::Replicas;
use orbitkv_shards::key::StateKey;
use orbitkv_shards::planner::{Choice, Load, OwnerEvidence, Preference, Route, Trial, TrialOutcome, Want};
use orbitkv_shards::residents::CopyId;
use orbitkv_shards::shard::{FetchOrder, Shard};
use orbitkv_shards::time::Moment;
use orbitkv_wire::identity::KeyHash;
use orbitkv_wire::inventory::SourceStream;

use super::{Payload, Surroundings};

/// A try as the fetcher tells it.
pub(super) struct Tried {
    pub copy: CopyId,
    pub candidate: Candidate,
    pub ahead_bytes: u64,
    pub since: Moment,
    pub is_warm: bool,
    pub outcome: TrialOutcome,
}

fn route(candidate: &Candidate) -> Route {
    Route::Peer { source: candidate.source, medium: candidate.medium }
}

impl Payload {
    /// Begins to bring blocks, planned together.
    pub(super) fn begin(&mut self, orders: &mut Vec<FetchOrder>, shard: &Shard, around: &Surroundings<'_>) {
        if orders.is_empty() {
            return;
        }
        let keys: Vec<(StateKey, KeyHash)> = orders.iter().map(|order| (order.key, order.hash)).collect();
        let mut replicas = vec![Replicas::default(); keys.len()];
        if around.may_ask {
            around.partition.lookup(&keys, &mut replicas);
        }
        let mut candidates: Vec<Vec<Candidate>> =
            replicas.iter().map(|replicas| candidates(replicas, around)).collect();
        let mut known = Vec::new();
        let choices: Vec<Vec<Choice>> =
            candidates.iter().map(|found| choices(found, &mut known, around)).collect();
        let wants: Vec<Want<'_>> = (orders.iter().zip(&choices))
            .map(|(order, choices)| Want { copy: order.copy, bytes: order.bytes, choices })
            .collect();
        let (planner, fetcher, now) = (&mut self.planner, &mut self.fetcher, around.now);
        let load = |route: &Route| match route {
            Route::Peer { source, .. } => fetcher.load(source, now),
            Route::Local(_) | Route::Recompute => Load::default(),
        };
        let firsts = planner.plan(&wants, load, now);
        for ((order, candidates), first) in orders.drain(..).zip(&mut candidates).zip(firsts) {
            if let Some(first) = first {
                candidates[..=first].rotate_right(1);
            }
            let until = order.until;
            let order = Order {
                copy: order.copy,
                namespace: *shard.namespaces().digest(order.key.namespace),
                group: order.key.group,
                block: order.key.block,
                arena_offset: order.arena_offset,
                bytes: order.bytes,
                class: order.class,
            };
            fetcher.begin(order, candidates, until, now);
        }
    }

    /// A candidate was tried: what was seen of it counts.
    pub(super) fn on_tried(&mut self, tried: &Tried, now: Moment) {
        let &Tried { copy, candidate, ahead_bytes, since, is_warm, outcome } = tried;
        let trial = Trial {
            copy,
            route: route(&candidate),
            bytes: u64::from(candidate.bytes),
            ahead_bytes,
            elapsed: now - since,
            is_comparable: is_warm,
            outcome,
        };
        self.planner.on_trial(&trial, now);
    }
}

/// Who may have a block, as far as the index knows, in the fixed order.
fn candidates(replicas: &Replicas, around: &Surroundings<'_>) -> Vec<Candidate> {
    let mut found: Vec<(Preference, Candidate)> = (replicas.iter())
        .filter_map(|replica| {
            let member = around.subscriber.member(replica.owner)?;
            let source = SourceStream {
                node: member.node,
                epoch: member.epoch,
                incarnation: member.incarnation,
                shard: replica.owner.shard,
            };
            let (medium, sequence, bytes) = (replica.medium, replica.sequence, replica.bytes);
            let age = around.subscriber.age_of(replica.owner, around.now);
            let preference = Preference::new(age, medium, around.neighbours.is_preferred(source.node));
            Some((preference, Candidate { source, medium, sequence, bytes }))
        })
        .collect();
    found.sort_by_key(|(preference, _)| *preference);
    found.into_iter().map(|(_, candidate)| candidate).collect()
}

/// The same as ways, with what their sources have said; `known` is that of the sources of this batch so far.
fn choices(
    candidates: &[Candidate],
    known: &mut Vec<(SourceStream, OwnerEvidence)>,
    around: &Surroundings<'_>,
) -> Vec<Choice> {
    let mut told = |source: SourceStream| match known.iter().find(|(other, _)| *other == source) {
        Some((_, told)) => *told,
        None => {
            let told = OwnerEvidence {
                metadata_age: around.subscriber.view_age(&source, around.now),
                resource: around.subscriber.summary_of(&source, around.now),
            };
            known.push((source, told));
            told
        }
    };
    let choice = |candidate: &Candidate| {
        let bytes = u64::from(candidate.bytes);
        Choice { route: route(candidate), bytes, declared: None, told: told(candidate.source) }
    };
    candidates.iter().map(choice).collect()
}
