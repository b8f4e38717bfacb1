//! Fence and await: a source's own statement of how far its journals had come, and the proof that this
//! node has all of it (chapter 2.9).
//!
//! Views live on many cores and there is no moment at which all can be read together. An await reads
//! them twice: if every stream has come far enough in both rounds under one view and one revision, then
//! all of them had between the rounds, because a view's watermark only grows.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use orbitkv_wire::identity::{ClusterUuid, Incarnation, NodeId, Sequence, ShardIndex};
use orbitkv_wire::scope::ScopeDigest;
use thiserror::Error;

use crate::members::{Local, MemberMap};
use crate::time::Moment;

/// How far the journals of one life of a node had come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The node's cluster.
    pub cluster: ClusterUuid,
    /// The node.
    pub node: NodeId,
    /// Its epoch.
    pub epoch: u64,
    /// Its life.
    pub incarnation: Incarnation,
    /// Journal head of each shard: every put whose Commit was answered before is at or below it.
    pub inventory_sequence: Vec<Sequence>,
}

/// What one core has of one owner stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The source's shard.
    pub shard: ShardIndex,
    /// Which of the core's installs the view is; another one is another view.
    pub generation: u64,
    /// Sequence it is applied through.
    pub applied: Sequence,
}

/// Why an await does not succeed, or not any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AwaitFailure {
    /// There are no peers.
    #[error("this node is standalone: it has no peers whose inventory it could await")]
    Standalone,
    /// The fence is this node's own.
    #[error("the fence is this node's own: await it at another node")]
    OwnFence,
    /// This node's lease has expired.
    #[error("this node has been fenced: its own lease has expired")]
    Fenced,
    /// The fence is of another cluster.
    #[error("the fence is of cluster {given}, this node is of cluster {own}")]
    AnotherCluster {
        /// The fence's.
        given: ClusterUuid,
        /// This node's.
        own: ClusterUuid,
    },
    /// The caller means another scope than this node subscribes to.
    #[error("this node subscribes to another scope")]
    AnotherScope,
    /// The node lives another life now.
    #[error("the fence is of incarnation {given}, but the member is {known} now: take a new fence")]
    AnotherIncarnation {
        /// The fence's.
        given: Incarnation,
        /// The member's.
        known: Incarnation,
    },
    /// The node is not a member.
    #[error("the node is not a member at revision {revision}")]
    NotAMember {
        /// The revision.
        revision: u64,
    },
    /// The fence has another number of shards than the member.
    #[error("the fence has {given} sequences, but the member has {shards} shards")]
    VectorLength {
        /// Sequences of the fence.
        given: usize,
        /// Shards of the member.
        shards: u16,
    },
    /// Time ran out before all views were far enough.
    #[error("the views were not far enough in time")]
    TimedOut,
    /// There are as many waiters as there may be.
    #[error("{limit} waiters await fences, the most there may be: try again")]
    TooMany {
        /// The bound.
        limit: usize,
    },
}

/// Names one await.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaiterId(pub u64);

/// What the table wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AwaitEffect {
    /// Ask every core for its readings of this life, and to flush up to the fence.
    Read {
        /// For whom.
        waiter: WaiterId,
        /// Which reading of the waiter it is; an answer repeats it.
        round: u64,
        /// The source.
        node: NodeId,
        /// Its life.
        incarnation: Incarnation,
    },
    /// The await has ended.
    Done {
        /// Whose.
        waiter: WaiterId,
        /// How.
        outcome: Result<(), AwaitFailure>,
    },
}

/// Bounds of the table.
#[derive(Clone, Copy, Debug)]
pub struct AwaitSettings {
    /// Waiters at a time.
    pub waiters_max: usize,
    /// Longest wait.
    pub wait_max: Duration,
    /// Pause before cores are read again when views were not far enough.
    pub pause: Duration,
}

impl Default for AwaitSettings {
    fn default() -> Self {
        AwaitSettings { waiters_max: 64, wait_max: Duration::from_secs(30), pause: Duration::from_millis(10) }
    }
}

/// One await.
#[derive(Debug)]
struct Await {
    fence: Fence,
    deadline: Moment,
    /// Readings so far of this await; names the one that is under way.
    round: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Reads again when it is time.
    Pausing { until: Moment },
    /// Collects the answers of one reading. `before` is what an earlier one found far enough.
    Reading { before: Option<Vec<u64>>, found: Vec<Option<Reading>>, missing: BTreeSet<ShardIndex> },
}

impl Await {
    fn next_deadline(&self) -> Moment {
        match self.state {
            State::Pausing { until } => until.min(self.deadline),
            State::Reading { .. } => self.deadline,
        }
    }
}

/// All awaits of a node.
#[derive(Debug)]
pub struct Awaits {
    settings: AwaitSettings,
    local: Local,
    scope: ScopeDigest,
    fenced: bool,
    members: MemberMap,
    waiters: BTreeMap<WaiterId, Await>,
    waiters_made: u64,
    effects: VecDeque<AwaitEffect>,
}

impl Awaits {
    /// No waiters yet; no member is known.
    #[must_use]
    pub fn new(settings: AwaitSettings, local: Local, scope: ScopeDigest) -> Awaits {
        Awaits {
            settings,
            local,
            scope,
            fenced: false,
            members: MemberMap::default(),
            waiters: BTreeMap::new(),
            waiters_made: 0,
            effects: VecDeque::new(),
        }
    }

    /// Begins an await; `scope` is what the caller believes this node subscribes to, if it says so.
    ///
    /// # Errors
    /// [`AwaitFailure`] if it is clear that it cannot succeed.
    pub fn begin(
        &mut self,
        fence: Fence,
        scope: Option<ScopeDigest>,
        now: Moment,
    ) -> Result<WaiterId, AwaitFailure> {
        let limit = self.settings.waiters_max;
        if self.waiters.len() >= limit {
            return Err(AwaitFailure::TooMany { limit });
        }
        if scope.is_some_and(|scope| scope != self.scope) {
            return Err(AwaitFailure::AnotherScope);
        }
        if let Some(failure) = self.failure(&fence) {
            return Err(failure);
        }
        let waiter = WaiterId(self.waiters_made);
        self.waiters_made += 1;
        let deadline = now + self.settings.wait_max;
        self.waiters
            .insert(waiter, Await { fence, deadline, round: 0, state: State::Pausing { until: now } });
        self.read(waiter, None);
        Ok(waiter)
    }

    /// The caller has gone.
    pub fn cancel(&mut self, waiter: WaiterId) {
        self.waiters.remove(&waiter);
    }

    /// A new membership: whatever was read under another revision counts no more.
    pub fn on_members(&mut self, members: &MemberMap) {
        if members.revision <= self.members.revision {
            return;
        }
        self.members = members.clone();
        self.recheck();
    }

    /// This node's own lease has expired: nothing can be awaited.
    pub fn on_fenced(&mut self) {
        self.fenced = true;
        self.recheck();
    }

    /// This node lives again.
    pub fn on_registered(&mut self, local: Local) {
        self.local = local;
        self.fenced = false;
        // An etcd restored from an old copy counts anew.
        self.members = MemberMap::default();
    }

    /// A core's answer to a [`AwaitEffect::Read`]: what it has of the fence's owner streams, and the
    /// membership revision it stands at.
    pub fn on_readings(
        &mut self,
        waiter: WaiterId,
        round: u64,
        core: ShardIndex,
        revision: u64,
        readings: &[Reading],
        now: Moment,
    ) {
        let pause = State::Pausing { until: now + self.settings.pause };
        let Some(waiting) = self.waiters.get_mut(&waiter).filter(|waiting| waiting.round == round) else {
            return;
        };
        let State::Reading { before, found, missing } = &mut waiting.state else { return };
        if !missing.remove(&core) {
            return;
        }
        let member = self.members.has(waiting.fence.node, waiting.fence.incarnation);
        if !member || revision != self.members.revision {
            waiting.state = pause;
            return;
        }
        for reading in readings {
            if let Some(place) = found.get_mut(usize::from(reading.shard.0)) {
                *place = Some(*reading);
            }
        }
        if !missing.is_empty() {
            return;
        }
        let targets = &waiting.fence.inventory_sequence;
        let enough = found.iter().zip(targets).map(|(found, target)| {
            found.filter(|reading| reading.applied >= *target).map(|reading| reading.generation)
        });
        match (enough.collect::<Option<Vec<u64>>>(), before.take()) {
            (Some(generations), Some(before)) if generations == before => self.end(waiter, Ok(())),
            (Some(generations), None) => self.read(waiter, Some(generations)),
            _ => waiting.state = pause,
        }
    }

    /// Ends what has run out of time and reads again what is due.
    pub fn on_time(&mut self, now: Moment) {
        let due: Vec<WaiterId> = self.due(now).collect();
        for waiter in due {
            if self.waiters[&waiter].deadline <= now {
                let (fence, revision) = (&self.waiters[&waiter].fence, self.members.revision);
                let known = self.members.has(fence.node, fence.incarnation);
                let failure =
                    if known { AwaitFailure::TimedOut } else { AwaitFailure::NotAMember { revision } };
                self.end(waiter, Err(failure));
            } else {
                self.read(waiter, None);
            }
        }
    }

    fn due(&self, now: Moment) -> impl Iterator<Item = WaiterId> {
        self.waiters.iter().filter(move |(_, waiting)| waiting.next_deadline() <= now).map(|(id, _)| *id)
    }

    /// The next thing to do.
    pub fn poll_effect(&mut self) -> Option<AwaitEffect> {
        self.effects.pop_front()
    }

    /// When [`Awaits::on_time`] has something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        self.waiters.values().map(Await::next_deadline).min()
    }

    /// Waiters now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Why the fence cannot be reached any more. A life that this node has not heard of yet, because its
    /// epoch is newer or its record has not arrived, is waited for.
    fn failure(&self, fence: &Fence) -> Option<AwaitFailure> {
        let (given, own) = (fence.cluster, self.local.cluster);
        if self.fenced {
            return Some(AwaitFailure::Fenced);
        }
        if given != own {
            return Some(AwaitFailure::AnotherCluster { given, own });
        }
        if fence.node == self.local.node {
            return Some(AwaitFailure::OwnFence);
        }
        let member = self.members.get(fence.node)?;
        let (given, known) = (fence.incarnation, member.incarnation);
        if known != given {
            let gone = member.epoch >= fence.epoch;
            return gone.then_some(AwaitFailure::AnotherIncarnation { given, known });
        }
        let (given, shards) = (fence.inventory_sequence.len(), member.shards);
        (given != usize::from(shards)).then_some(AwaitFailure::VectorLength { given, shards })
    }

    fn recheck(&mut self) {
        for waiter in self.waiters.keys().copied().collect::<Vec<_>>() {
            match self.failure(&self.waiters[&waiter].fence) {
                Some(failure) => self.end(waiter, Err(failure)),
                None => self.read(waiter, None),
            }
        }
    }

    fn read(&mut self, waiter: WaiterId, before: Option<Vec<u64>>) {
        let cores = self.local.shards;
        let waiting = self.waiters.get_mut(&waiter).expect("reads for a waiter that is there");
        waiting.round += 1;
        let (round, Fence { node, incarnation, inventory_sequence, .. }) = (waiting.round, &waiting.fence);
        let found = vec![None; inventory_sequence.len()];
        waiting.state = State::Reading { before, found, missing: (0..cores).map(ShardIndex).collect() };
        let (node, incarnation) = (*node, *incarnation);
        self.effects.push_back(AwaitEffect::Read { waiter, round, node, incarnation });
    }

    fn end(&mut self, waiter: WaiterId, outcome: Result<(), AwaitFailure>) {
        self.waiters.remove(&waiter);
        self.effects.push_back(AwaitEffect::Done { waiter, outcome });
    }
}

#[cfg(test)]
mod tests;
