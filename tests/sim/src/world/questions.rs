//! Lookups over the cores of a node, and barriers between nodes: what engines and operators ask, and what
//! the answers are judged by.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use orbitkv_shards::coverage::{Basis, CoreCoverage, Coverage, Merged, Standing, merge};
use orbitkv_shards::fence::{AwaitEffect, AwaitFailure, AwaitSettings, Awaits, Fence, Reading, WaiterId};
use orbitkv_shards::index::Replicas;
use orbitkv_shards::members::{Local, stream_core};
use orbitkv_shards::time::Moment;
use orbitkv_wire::identity::{
    ClusterUuid, Incarnation, Medium, NamespaceDigest, NodeId, Sequence, ShardIndex,
};
use orbitkv_wire::scope::Scope;

use super::{Part as Phase, World};
use crate::canary::Canary;
use crate::control::Action;
use crate::counters::Counter;
use crate::event::{Event, Process};
use crate::mail::{Mail, Part, Reader};
use crate::network::Place;
use crate::oracle::answers::{Cut, Expected, Shown, judge_key, judge_merge};
use crate::oracle::barrier::Watched;
use crate::oracle::{Oracle, Verdict, Violation, hold};
use crate::truth::{KeyId, StreamName};

/// Longest wait of a barrier here: shorter than a node's, so that some run out of time.
const WAIT_MAX: Duration = Duration::from_secs(4);

/// A lookup under way.
pub(crate) struct Question {
    place: Place,
    keys: Rc<[KeyId]>,
    basis: Basis,
    expected: Vec<Expected>,
    missing: BTreeSet<ShardIndex>,
    parts: Vec<Part>,
}

/// A fence being taken.
pub(crate) struct Sync {
    process: Process,
    to: Process,
    /// Heads when it was asked for: what a fence has to cover.
    heads: Vec<Sequence>,
    found: BTreeMap<ShardIndex, (Incarnation, Sequence)>,
}

/// The barriers of a process.
pub(crate) struct Barriers {
    room: Awaits,
    watched: BTreeMap<WaiterId, Watched>,
    timer: Option<Moment>,
}

impl Barriers {
    pub(crate) fn new(cluster: ClusterUuid, node: NodeId, shards: u16, scope: &Scope) -> Barriers {
        let settings = AwaitSettings { wait_max: WAIT_MAX, ..AwaitSettings::default() };
        let local = Local { cluster, node, epoch: 0, incarnation: Incarnation([0; 16]), shards };
        Barriers { room: Awaits::new(settings, local, scope.digest()), watched: BTreeMap::new(), timer: None }
    }

    pub(crate) fn len(&self) -> usize {
        self.room.len()
    }
}

impl World {
    pub(crate) fn on_query(&mut self) -> Verdict {
        let gap = self.chance.micros(&self.plan.query_gap_us.clone());
        self.schedule.after(gap, Event::Query);
        let running: Vec<u16> = (0..self.nodes.len() as u16).filter(|&node| self.runs(node)).collect();
        if running.is_empty() || self.truth.universe.is_empty() {
            return Ok(());
        }
        let node = *self.chance.pick(&running);
        let index = usize::from(node);
        let core = self.chance.index(self.nodes[index].cores.len()) as u16;
        let place = Place { node, process: self.nodes[index].process, core };
        self.check_deadline(place);
        let keys = self.some_keys();
        let asking = &self.nodes[index].cores[usize::from(core)];
        let (name, shards) = (self.nodes[index].name, asking.local.shards);
        let expected = asking.map.as_ref().map_or(Vec::new(), |map| World::expected(map, name));
        let basis = basis_of(&asking.subscriber.coverage(self.now()));
        let counts: BTreeSet<u16> = if self.canary == Some(Canary::AskOneCore) {
            [shards].into()
        } else {
            expected.iter().map(|member| member.shards).chain([shards]).collect()
        };
        let missing: BTreeSet<ShardIndex> = (keys.iter())
            .flat_map(|&key| {
                let hash = self.truth.universe.get(key).hash;
                counts.iter().map(move |&count| stream_core(hash.shard(count), count, shards))
            })
            .collect();
        self.next_question += 1;
        let number = self.next_question;
        let process = self.process(node);
        let own = ShardIndex(core);
        for &asked in &missing {
            let mail = Mail::Ask(number, own, Rc::clone(&keys));
            self.post(process, Reader::Core(own), Reader::Core(asked), mail);
        }
        let question = Question { place, keys, basis, expected, missing, parts: Vec::new() };
        self.questions.insert(number, question);
        Ok(())
    }

    /// Some blocks of one namespace.
    fn some_keys(&mut self) -> Rc<[KeyId]> {
        let known = self.truth.universe.len() as u64;
        let newest = known.saturating_sub(400);
        let mut draw = || KeyId((newest + self.chance.below(known - newest)) as u32);
        let first = draw();
        let namespace = self.truth.universe.get(first).namespace;
        let mut keys: Vec<KeyId> = (0..24).map(|_| draw()).collect();
        keys.retain(|&key| self.truth.universe.get(key).namespace == namespace);
        keys.push(first);
        keys.sort_unstable();
        keys.dedup();
        keys.into()
    }

    /// What one core has of these blocks.
    pub(crate) fn answer(&mut self, place: Place, keys: &[KeyId]) -> Result<Part, Violation> {
        let now = self.now();
        let core = &self.nodes[usize::from(place.node)].cores[usize::from(place.core)];
        let namespace: NamespaceDigest = self.truth.universe.get(keys[0]).namespace;
        let coverage = core.subscriber.coverage_of(&namespace, now);
        let available = !matches!(coverage.standing, Standing::Unavailable(_));
        hold(Oracle::Fenced, !available || self.is_member(place), || {
            format!("{place:?} answers {coverage:?} though its own life is over")
        })?;
        let name_of = |node, incarnation, shard| StreamName { node: self.number(node), incarnation, shard };
        let cuts = (core.subscriber.owners(None, usize::MAX, &core.partition))
            .filter_map(|owner| {
                let stream = name_of(owner.source.node, owner.source.incarnation, owner.source.shard);
                owner.view.map(|(_, applied)| Cut { stream, applied })
            })
            .collect();
        let mut found = Vec::new();
        let mut out = [Replicas::default()];
        for &key in keys {
            let Some(state) = core.state_key(&self.truth, key) else {
                found.push((Vec::new(), false));
                continue;
            };
            core.partition.lookup(&[(state, self.truth.universe.get(key).hash)], &mut out);
            let mut shown = Vec::new();
            for replica in out[0].iter() {
                let member = core.subscriber.member(replica.owner);
                let known = member
                    .is_some_and(|it| core.map.as_ref().is_some_and(|map| map.has(it.node, it.incarnation)));
                hold(Oracle::Fenced, known || !available, || {
                    format!("{place:?} shows {replica:?} of {member:?}, which is no member to it")
                })?;
                if let Some(member) = member {
                    let stream = name_of(member.node, member.incarnation, replica.owner.shard);
                    shown.push(Shown { stream, replica });
                }
            }
            found.push((shown, out[0].truncated));
        }
        Ok(Part { core: ShardIndex(place.core), coverage, found, cuts })
    }

    pub(crate) fn on_answer(&mut self, place: Place, number: u64, part: Part) -> Verdict {
        let Some(question) = self.questions.get_mut(&number).filter(|it| it.place == place) else {
            return Ok(());
        };
        question.missing.remove(&part.core);
        question.parts.push(part);
        if !question.missing.is_empty() {
            return Ok(());
        }
        let question = self.questions.remove(&number).expect("it was just there");
        self.judge_answers(&question)
    }

    fn judge_answers(&mut self, question: &Question) -> Verdict {
        let answers: Vec<CoreCoverage> = question.parts.iter().map(|part| part.coverage).collect();
        let mut merged = merge(question.basis, &answers);
        if self.canary == Some(Canary::MergeBlindly) {
            let whole =
                answers.iter().all(|it| matches!(it.standing, Standing::NoneExpected | Standing::Complete));
            if whole {
                merged = Merged { coverage: Coverage::CompleteAtWatermarks, ..merged };
            }
        }
        judge_merge(question.basis, &answers, &merged)?;
        let mixed = answers.iter().any(|answer| answer.revision != question.basis.revision);
        self.counters.add(Counter::MixedRevisions, u64::from(mixed));
        let mixed = answers.iter().any(|answer| answer.scope_generation != question.basis.scope_generation);
        self.counters.add(Counter::MixedScopes, u64::from(mixed));
        let truncated = question.parts.iter().flat_map(|part| &part.found).any(|(_, truncated)| *truncated);
        self.counters.add(Counter::ReplicasTruncated, u64::from(truncated));
        match merged.coverage {
            Coverage::Unavailable => self.counters.count(Counter::MergedUnavailable),
            Coverage::PartialHints => self.counters.count(Counter::MergedPartial),
            Coverage::CompleteAtWatermarks => {
                self.counters.count(Counter::MergedComplete);
                self.judge_complete(question)?;
            }
        }
        Ok(())
    }

    fn judge_complete(&mut self, question: &Question) -> Verdict {
        let node = &self.nodes[usize::from(question.place.node)];
        let revision = question.basis.revision;
        for core in &node.cores {
            // A core that was fenced meanwhile has no map and says so itself.
            let behind = core.map.as_ref().is_some_and(|map| map.revision < revision);
            hold(Oracle::Merge, !behind, || {
                let stands = core.map.as_ref().map(|map| map.revision);
                format!("complete at revision {revision}, but core {:?} stands at {stands:?}", core.shard)
            })?;
        }
        let shards = node.core(ShardIndex(question.place.core)).local.shards;
        for (position, &key) in question.keys.iter().enumerate() {
            let mut present = false;
            for member in &question.expected {
                let stream = member.stream_of(&self.truth, key);
                let core = stream_core(stream.shard, member.shards, shards);
                let part = question.parts.iter().find(|part| part.core == core);
                let cut = part.and_then(|part| part.cuts.iter().find(|cut| cut.stream == stream));
                let (Some(part), Some(cut)) = (part, cut) else {
                    let what = format!("{key:?} is called complete without asking {core:?} about {stream:?}");
                    return Err(Violation { oracle: Oracle::Absence, what });
                };
                let (shown, truncated) = &part.found[position];
                for medium in Medium::ALL {
                    judge_key(&self.truth, key, medium, cut, shown, *truncated)?;
                }
                present |= !shown.is_empty();
            }
            self.counters.count(if present { Counter::PresenceProved } else { Counter::AbsenceProved });
        }
        Ok(())
    }

    pub(crate) fn on_barrier(&mut self) {
        if self.part == Phase::Liveness {
            return;
        }
        let gap = self.chance.micros(&self.plan.await_gap_us.clone());
        self.schedule.after(gap, Event::Barrier);
        let running: Vec<u16> = (0..self.nodes.len() as u16).filter(|&node| self.runs(node)).collect();
        if running.len() >= 2 {
            let from = *self.chance.pick(&running);
            let to = *self.chance.pick(&running);
            self.take_fence(from, to);
        }
    }

    /// `from` states how far it is, for `to` to await.
    pub(crate) fn take_fence(&mut self, from: u16, to: u16) {
        self.next_question += 1;
        let number = self.next_question;
        let (process, to) = (self.process(from), self.process(to));
        let node = &self.nodes[usize::from(from)];
        let heads = node.cores.iter().map(|core| core.stock.journal.head()).collect();
        let cores = node.cores.len() as u16;
        self.syncs.insert(number, Sync { process, to, heads, found: BTreeMap::new() });
        for core in 0..cores {
            self.post(process, Reader::Control, Reader::Core(ShardIndex(core)), Mail::Expose(number));
        }
    }

    pub(crate) fn on_exposed(
        &mut self,
        process: Process,
        number: u64,
        core: ShardIndex,
        head: Option<(Incarnation, Sequence)>,
    ) {
        let Some(sync) = self.syncs.get_mut(&number).filter(|sync| sync.process == process) else { return };
        // A shard that puts again gives no fence.
        let Some(head) = head else {
            self.syncs.remove(&number);
            return;
        };
        sync.found.insert(core, head);
        if sync.found.len() < sync.heads.len() {
            return;
        }
        let Sync { to, heads, found, .. } = self.syncs.remove(&number).expect("it was just there");
        let node = &self.nodes[usize::from(process.node)];
        let Some(local) = node.control.as_ref().and_then(|control| control.local()).copied() else { return };
        if found.values().any(|(incarnation, _)| *incarnation != local.incarnation) {
            return;
        }
        let inventory_sequence: Vec<Sequence> = found.into_values().map(|(_, head)| head).collect();
        let covers = heads.iter().zip(&inventory_sequence).all(|(before, head)| before <= head);
        if !covers {
            // Another life has begun meanwhile, and has not come so far again.
            return;
        }
        self.counters.count(Counter::FenceGiven);
        let (cluster, epoch, incarnation) = (local.cluster, local.epoch, local.incarnation);
        let fence = Fence { cluster, node: local.node, epoch, incarnation, inventory_sequence };
        let delay = self.chance.micros(&(100..=50_000));
        self.schedule.after(delay, Event::Fence(to, Box::new(fence)));
    }

    pub(crate) fn on_fence_given(&mut self, process: Process, fence: Fence) -> Verdict {
        let now = self.now();
        let Some(barriers) = &mut self.nodes[usize::from(process.node)].awaits else { return Ok(()) };
        match barriers.room.begin(fence.clone(), None, now) {
            Ok(waiter) => {
                barriers.watched.insert(waiter, Watched::new(fence, now));
                self.look_at_barriers(process.node);
            }
            Err(_) => self.counters.count(Counter::AwaitRefused),
        }
        self.drive_barriers(process)
    }

    /// What control has just mailed is news for the table of barriers too.
    pub(crate) fn barriers_learn(&mut self, process: Process, actions: &[Action]) {
        let now = self.now();
        let Some(barriers) = &mut self.nodes[usize::from(process.node)].awaits else { return };
        for action in actions {
            match action {
                Action::Mail(ShardIndex(0), Mail::Lower(map)) => barriers.room.on_members(map),
                Action::Mail(ShardIndex(0), Mail::Fence) => barriers.room.on_fenced(),
                Action::Mail(ShardIndex(0), Mail::Registered(local, _)) => {
                    barriers.room.on_registered(*local)
                }
                _ => {}
            }
        }
        if !barriers.room.is_empty() {
            self.schedule.at(now, Event::Awaits(process));
        }
    }

    pub(crate) fn on_awaits(&mut self, process: Process) -> Verdict {
        let now = self.now();
        let Some(barriers) = &mut self.nodes[usize::from(process.node)].awaits else { return Ok(()) };
        barriers.timer.take_if(|timer| *timer <= now);
        barriers.room.on_time(now);
        self.drive_barriers(process)
    }

    pub(crate) fn on_readings(
        &mut self,
        process: Process,
        waiter: WaiterId,
        round: u64,
        core: ShardIndex,
        revision: u64,
        readings: &[Reading],
    ) -> Verdict {
        let now = self.now();
        let Some(barriers) = &mut self.nodes[usize::from(process.node)].awaits else { return Ok(()) };
        barriers.room.on_readings(waiter, round, core, revision, readings, now);
        self.drive_barriers(process)
    }

    fn drive_barriers(&mut self, process: Process) -> Verdict {
        let index = usize::from(process.node);
        let cores = self.nodes[index].cores.len() as u16;
        loop {
            let Some(barriers) = &mut self.nodes[index].awaits else { return Ok(()) };
            match barriers.room.poll_effect() {
                Some(AwaitEffect::Read { waiter, round, node, incarnation }) => {
                    // Two rounds are the least that a barrier takes.
                    self.counters.add(Counter::AwaitStartedOver, u64::from(round > 2));
                    let targets = barriers.watched.get(&waiter);
                    let targets: Rc<[Sequence]> =
                        targets.map_or(Rc::from([]), |it| it.fence.inventory_sequence.clone().into());
                    for core in (0..cores).map(ShardIndex) {
                        let mail = Mail::Read(waiter, round, node, incarnation, Rc::clone(&targets));
                        self.post(process, Reader::Control, Reader::Core(core), mail);
                    }
                }
                Some(AwaitEffect::Done { waiter, outcome }) => {
                    let watched = barriers.watched.remove(&waiter).expect("every waiter is watched");
                    match outcome {
                        Ok(()) => {
                            self.counters.count(Counter::AwaitReached);
                            watched.judge()?;
                        }
                        Err(AwaitFailure::TimedOut) => self.counters.count(Counter::AwaitTimedOut),
                        Err(_) => self.counters.count(Counter::AwaitRefused),
                    }
                }
                None => break,
            }
        }
        let Some(barriers) = &mut self.nodes[index].awaits else { return Ok(()) };
        if let Some(due) = barriers.room.next_deadline()
            && barriers.timer.is_none_or(|timer| due < timer)
        {
            barriers.timer = Some(due);
            self.schedule.at(due, Event::Awaits(process));
        }
        Ok(())
    }

    /// Looks whether the barriers of a node are reached right now, without asking for readings.
    pub(crate) fn look_at_barriers(&mut self, number: u16) {
        let now = self.schedule.now();
        let node = &mut self.nodes[usize::from(number)];
        let Some(barriers) = &mut node.awaits else { return };
        for watched in barriers.watched.values_mut() {
            let Fence { node: source, incarnation, inventory_sequence, .. } = &watched.fence;
            let far_enough = inventory_sequence.iter().zip(0..).all(|(target, shard)| {
                let mut owners = node
                    .cores
                    .iter()
                    .flat_map(|core| core.subscriber.owners(None, usize::MAX, &core.partition));
                owners.any(|owner| {
                    let same = owner.source.node == *source && owner.source.incarnation == *incarnation;
                    let view = owner.view.filter(|_| same && owner.source.shard == ShardIndex(shard));
                    view.is_some_and(|(_, applied)| applied >= *target)
                })
            });
            watched.look(far_enough, now);
        }
    }

    /// Every node states how far it is, and every other one has to get there.
    pub(crate) fn last_barriers(&mut self) -> Verdict {
        let nodes: Vec<u16> = (0..self.nodes.len() as u16).filter(|&node| self.runs(node)).collect();
        let before = self.counters.get(Counter::AwaitReached);
        let mut wanted = 0;
        for &from in &nodes {
            self.touch_a_little(from);
            for &to in &nodes {
                let near = nodes.len() <= 8 || to == (from + 1) % nodes.len() as u16;
                if from != to && near {
                    self.take_fence(from, to);
                    wanted += 1;
                }
            }
        }
        let end = self.now() + Duration::from_secs(10);
        while self.counters.get(Counter::AwaitReached) < before + wanted {
            if self.now() >= end {
                let reached = self.counters.get(Counter::AwaitReached) - before;
                let what = format!("{reached} of {wanted} barriers were reached in the end");
                return Err(Violation { oracle: Oracle::Convergence, what });
            }
            self.step()?;
        }
        Ok(())
    }
}

fn basis_of(coverage: &CoreCoverage) -> Basis {
    Basis { revision: coverage.revision, scope_generation: coverage.scope_generation }
}
