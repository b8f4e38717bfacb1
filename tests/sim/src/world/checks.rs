//! What is looked at after every step, and what has to be true in the end.

use std::time::Duration;

use orbitkv_shards::coverage::Standing;
use orbitkv_shards::inventory::permits::SNAPSHOTS_MAX;
use orbitkv_shards::inventory::subscriber::OwnerState;
use orbitkv_shards::members::stream_core;
use orbitkv_wire::identity::{Sequence, ShardIndex, SnapshotId};
use orbitkv_wire::scope::Scope;

use super::{Part, State, World};
use crate::core::Life;
use crate::counters::Counter;
use crate::event::Event;
use crate::network::Place;
use crate::oracle::rows::{Closeness, Looked};
use crate::oracle::{Oracle, Verdict, Violation, hold};
use crate::truth::{KeyId, StreamName};

/// How long everything may take to become right once faults have ended: what did not fit an index is tried
/// again after 30 seconds.
const CONVERGENCE_MAX: Duration = Duration::from_secs(150);

/// Blocks of a view that are compared when it is installed in a run that is too large for all of them.
const SAMPLE: usize = 256;

impl World {
    /// Compares what has changed at a core with the truth.
    pub(crate) fn check_core(&mut self, place: Place) -> Verdict {
        let index = (usize::from(place.node), usize::from(place.core));
        let core = &self.nodes[index.0].cores[index.1];
        let mut changed = Vec::new();
        for owner in core.subscriber.owners(None, usize::MAX, &core.partition) {
            let seen = core.seen.get(&owner.stream).copied();
            if owner.view != seen {
                changed.push((owner.stream, owner.source, seen, owner.view));
            }
        }
        self.check_freshness(place)?;
        for (id, source, seen, view) in changed {
            let name = StreamName {
                node: self.number(source.node),
                incarnation: source.incarnation,
                shard: source.shard,
            };
            self.check_view(place, name, seen, view)?;
            let core = &mut self.nodes[index.0].cores[index.1];
            match view {
                Some(view) => core.seen.insert(id, view),
                None => core.seen.remove(&id),
            };
        }
        self.look_at_barriers(place.node);
        Ok(())
    }

    /// No view is called fresher than its newest frame that it has caught up with.
    fn check_freshness(&mut self, place: Place) -> Verdict {
        let now = self.now();
        let World { nodes, proofs, .. } = self;
        let core = &nodes[usize::from(place.node)].cores[usize::from(place.core)];
        let complete = core.subscriber.coverage(now).standing == Standing::Complete;
        for owner in core.subscriber.owners(None, usize::MAX, &core.partition) {
            let Some((_, applied)) = owner.view else { continue };
            let stream = StreamName {
                node: super::number_of(owner.source.node),
                incarnation: owner.source.incarnation,
                shard: owner.source.shard,
            };
            let Some(proof) = proofs.get_mut(&(place, stream)) else { continue };
            let fresh_at = proof.fresh_at(applied);
            hold(Oracle::Complete, owner.fresh_at <= fresh_at, || {
                format!("{place} calls {stream:?} fresh at {:?}, it was at {fresh_at:?}", owner.fresh_at)
            })?;
            let old = fresh_at.is_none_or(|fresh_at| now - fresh_at > core.settings.1.freshness);
            hold(Oracle::Complete, !(complete && old), || {
                format!("{place} is complete with {stream:?}, which was fresh at {fresh_at:?}")
            })?;
        }
        Ok(())
    }

    fn check_view(
        &mut self,
        place: Place,
        stream: StreamName,
        seen: Option<(SnapshotId, Sequence)>,
        view: Option<(SnapshotId, Sequence)>,
    ) -> Verdict {
        let Some((snapshot, applied)) = view else {
            self.counters.count(Counter::Withdrawn);
            let core = &mut self.nodes[usize::from(place.node)].cores[usize::from(place.core)];
            core.withdrawn.extend(seen.map(|(snapshot, _)| snapshot));
            return Ok(());
        };
        let core = &self.nodes[usize::from(place.node)].cores[usize::from(place.core)];
        hold(Oracle::Watermark, !core.withdrawn.contains(&snapshot), || {
            format!("{place} shows {snapshot} of {stream:?} again, which it had withdrawn")
        })?;
        let proved = self.proofs.get(&(place, stream)).is_some_and(|proof| proof.covers(snapshot, applied));
        hold(Oracle::Watermark, proved, || {
            let proof = self.proofs.get(&(place, stream));
            format!("{place:?} claims {stream:?} through {applied:?} in {snapshot}, proved is {proof:?}")
        })?;
        let same = seen.filter(|(seen, _)| *seen == snapshot);
        if let Some((_, before)) = same {
            hold(Oracle::Watermark, before <= applied, || {
                format!("{place:?} goes back from {before:?} to {applied:?} of {stream:?}")
            })?;
        } else if seen.is_some() {
            self.counters.count(Counter::Repaired);
        }
        let now = self.now();
        let World { nodes, truth, visibility, plan, chance, .. } = self;
        let core = &nodes[usize::from(place.node)].cores[usize::from(place.core)];
        let history = truth.stream(&stream).expect("a stream with a view has a history");
        let mut keys: Vec<KeyId> = match same {
            Some((_, before)) => {
                for sequence in before.0 + 1..=applied.0 {
                    visibility.note(now - history.moment(Sequence(sequence)));
                }
                (before.0 + 1..=applied.0).map(|at| history.change(Sequence(at)).key).collect()
            }
            None if plan.faults.is_none() && history.keys().len() > SAMPLE => {
                (0..SAMPLE).map(|_| *chance.pick(history.keys())).collect()
            }
            None => history.keys().to_vec(),
        };
        let in_scope = |key: &KeyId| core.scope.contains(&truth.universe.get(*key).namespace);
        keys.retain(in_scope);
        keys.sort_unstable();
        keys.dedup();
        Looked { truth, core, stream, closeness: Closeness::At(applied) }.judge(&keys)
    }

    /// Compares everything that one core of chance holds.
    pub(crate) fn check_some_core(&mut self) -> Verdict {
        let node = self.chance.index(self.nodes.len());
        let cores = self.nodes[node].cores.len() as u64;
        if cores == 0 {
            return Ok(());
        }
        let core = self.chance.below(cores) as u16;
        let place = Place { node: node as u16, process: self.nodes[node].process, core };
        self.check_whole_core(place, Closeness::Mixed)
    }

    /// Compares everything a core holds of every stream.
    pub(crate) fn check_whole_core(&self, place: Place, closeness_of_partial: Closeness) -> Verdict {
        let core = &self.nodes[usize::from(place.node)].cores[usize::from(place.core)];
        let complete = core.subscriber.coverage(self.now()).standing == Standing::Complete;
        for owner in core.subscriber.owners(None, usize::MAX, &core.partition) {
            let stream = StreamName {
                node: self.number(owner.source.node),
                incarnation: owner.source.incarnation,
                shard: owner.source.shard,
            };
            let Some((_, applied)) = owner.view else { continue };
            let Some(history) = self.truth.stream(&stream) else { continue };
            let closeness = if complete { Closeness::At(applied) } else { closeness_of_partial };
            let mut keys = history.keys().to_vec();
            keys.retain(|key| core.scope.contains(&self.truth.universe.get(*key).namespace));
            Looked { truth: &self.truth, core, stream, closeness }.judge(&keys)?;
            if let Closeness::At(applied) = closeness {
                let held = keys.iter().flat_map(|&key| {
                    orbitkv_wire::identity::Medium::ALL.map(|medium| history.at(key, medium, applied))
                });
                let rows = held.flatten().count();
                hold(Oracle::Complete, rows == owner.rows as usize, || {
                    format!("{stream:?} at {applied:?} has {rows} residences and {} rows", owner.rows)
                })?;
            }
        }
        Ok(())
    }

    /// Bounds of chapter 2.10, as far as they can be seen at a core.
    pub(crate) fn check_bounds(&mut self, place: Place) -> Verdict {
        let now = self.now();
        let node = &self.nodes[usize::from(place.node)];
        let core = &node.cores[usize::from(place.core)];
        let bound = |what: &str, value: u64, limit: u64| {
            hold(Oracle::Bounds, value <= limit, || format!("{place:?}: {what} is {value}, allowed {limit}"))
        };
        let (sends, takes) = &core.settings;
        let journal = &core.stock.journal;
        bound("journal bytes", journal.bytes_used() as u64, journal.capacity_bytes() as u64)?;
        let standing = core.publisher.standing(journal.head());
        bound("queued bytes", standing.queue_bytes_peak, sends.queue_bytes_max as u64)?;
        bound("connections", standing.connections as u64, sends.connections_max as u64)?;
        let index = core.partition.accounting();
        bound("index bytes", index.charged_bytes_peak, index.budget_bytes)?;
        bound("dials", core.subscriber.dials_pending() as u64, takes.dials_max as u64)?;
        let backlog = core.subscriber.figures().backlog_bytes_peak;
        bound("bytes that wait", backlog, u64::from(takes.window_bytes) + 64 * 256)?;
        let first = &node.cores[0];
        for out in &first.permits_out {
            bound("snapshot permits", out.len() as u64, SNAPSHOTS_MAX as u64)?;
        }
        let staging =
            node.cores.iter().flat_map(|core| core.subscriber.owners(None, usize::MAX, &core.partition));
        let staging = staging.filter(|owner| owner.state == OwnerState::Staging).count();
        bound("snapshots received", staging as u64, SNAPSHOTS_MAX as u64)?;
        if let Some(awaits) = &node.awaits {
            bound("waiters", awaits.len() as u64, 64)?;
        }
        let coverage = core.subscriber.coverage(now);
        if coverage.standing == Standing::Partial && coverage.oldest_age > takes.freshness {
            self.counters.count(Counter::TooOld);
        }
        Ok(())
    }

    /// Faults end, everything comes back, and then everything has to become right.
    pub(crate) fn liveness(&mut self) -> Verdict {
        self.part = Part::Liveness;
        self.say(|| "faults end".into());
        self.network.calm();
        self.come_back()?;
        let end = self.now() + CONVERGENCE_MAX;
        // Lives that could not be prolonged in time end first.
        let mut next_look = self.now() + self.plan.lease;
        loop {
            while self.now() < next_look {
                self.step()?;
            }
            match self.converged() {
                Ok(()) => break,
                Err(violation) if self.now() >= end => return Err(violation),
                Err(_) => next_look = self.now() + Duration::from_millis(250),
            }
        }
        let virtual_time = self.now();
        self.say(|| format!("everything is the same everywhere at {virtual_time:?}"));
        self.last_barriers()?;
        self.nothing_left_over()
    }

    /// Every node that is to be a member runs and hears everybody.
    fn come_back(&mut self) -> Verdict {
        for node in 0..self.nodes.len() as u16 {
            let index = usize::from(node);
            self.nodes[index].hears_service = true;
            match self.nodes[index].state {
                State::Down if self.nodes[index].wanted => {
                    self.schedule.after(Duration::ZERO, Event::Start(node))
                }
                State::Paused(_) => {
                    let process = self.process(node);
                    self.on_resume(process)?;
                }
                State::Down | State::Running => {}
            }
        }
        self.shrink_to_fit();
        self.pump_watches();
        Ok(())
    }

    /// Why it is not yet the same everywhere, if so.
    fn converged(&mut self) -> Verdict {
        let wrong = |what: String| Violation { oracle: Oracle::Convergence, what };
        let newest = self.registry.newest();
        let now = self.now();
        for (number, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.wanted) {
            let member = newest.get(node.name).copied();
            let local = node.control.as_ref().and_then(|control| control.local().copied());
            let registered = member.map(|member| member.incarnation) == local.map(|local| local.incarnation);
            if member.is_none() || !registered {
                return Err(wrong(format!(
                    "node {number} is registered as {member:?} and believes {local:?}"
                )));
            }
            for core in &node.cores {
                let place = Place { node: number as u16, process: node.process, core: core.shard.0 };
                let coverage = core.subscriber.coverage(now);
                let expected =
                    newest.members().iter().filter(|member| member.node != node.name).any(|member| {
                        (0..member.shards).any(|shard| {
                            stream_core(ShardIndex(shard), member.shards, core.local.shards) == core.shard
                        })
                    });
                let standing = if expected { Standing::Complete } else { Standing::NoneExpected };
                if coverage.revision != newest.revision || !coverage.raised || coverage.standing != standing {
                    let owners: Vec<_> = core.subscriber.owners(None, usize::MAX, &core.partition).collect();
                    return Err(wrong(format!(
                        "{place} is at {coverage:?}, the service at {}; {:?}: {owners:?}",
                        newest.revision,
                        core.partition.accounting()
                    )));
                }
                for owner in core.subscriber.owners(None, usize::MAX, &core.partition) {
                    let stream = StreamName {
                        node: self.number(owner.source.node),
                        incarnation: owner.source.incarnation,
                        shard: owner.source.shard,
                    };
                    let head = self.truth.stream(&stream).expect("it is a member").head();
                    let applied = owner.view.map(|(_, applied)| applied);
                    if applied != Some(head) {
                        return Err(wrong(format!(
                            "{place:?} has {stream:?} through {applied:?} of {head:?}"
                        )));
                    }
                }
            }
        }
        for number in 0..self.nodes.len() {
            for core in 0..self.nodes[number].cores.len() as u16 {
                let place = Place { node: number as u16, process: self.nodes[number].process, core };
                self.check_whole_core(place, Closeness::Mixed)?;
                self.count_rows(place)?;
            }
        }
        Ok(())
    }

    /// No row is there beyond those of expected streams.
    fn count_rows(&self, place: Place) -> Verdict {
        let core = &self.nodes[usize::from(place.node)].cores[usize::from(place.core)];
        let accounting = core.partition.accounting();
        let installed: u64 = (core.subscriber.owners(None, usize::MAX, &core.partition))
            .map(|owner| u64::from(owner.rows))
            .sum();
        let rest = accounting.rows - accounting.retired_rows;
        hold(Oracle::Conservation, rest == installed, || {
            format!("{place:?} has {rest} rows, its views have {installed}")
        })
    }

    /// Once everything is the same and quiet, nothing is left of what it took.
    fn nothing_left_over(&mut self) -> Verdict {
        let end = self.now() + Duration::from_secs(12);
        while self.now() < end {
            self.step()?;
        }
        let left = |holds: bool, what: String| hold(Oracle::Conservation, holds, || what);
        let mut streams = 0;
        for (number, node) in self.nodes.iter().enumerate() {
            for core in &node.cores {
                let place = (number, core.shard.0);
                let owners: Vec<_> = core.subscriber.owners(None, usize::MAX, &core.partition).collect();
                let wanted = owners.iter().filter(|owner| !owner.misfit).count();
                streams += wanted;
                let live = owners.iter().filter(|owner| owner.state == OwnerState::Live).count();
                left(live == wanted, format!("{place:?} has {live} live streams of {wanted}"))?;
                let mut held = 0;
                for other in &self.nodes {
                    for core_there in &other.cores {
                        held += (core_there.connections.iter())
                            .filter(|(name, side)| {
                                **side == crate::network::Side::Requester
                                    && core.connections.get(name) == Some(&crate::network::Side::Source)
                            })
                            .count();
                    }
                }
                let standing = core.publisher.standing(core.stock.journal.head());
                left(
                    standing.sessions == held && standing.connections == held,
                    format!("{place:?} publishes on {standing:?}, {held} connections are real"),
                )?;
                left(
                    standing.queue_bytes == 0 && standing.lag_records_max == 0,
                    format!("{place:?} still queues or lags: {standing:?}"),
                )?;
                let index = core.partition.accounting();
                left(index.retired_rows == 0, format!("{place:?} has rows of nobody: {index:?}"))?;
                left(core.subscriber.dials_pending() == 0, format!("{place:?} still dials"))?;
            }
            if let Some(core) = node.cores.first() {
                let out: Vec<_> = core.permits_out.iter().map(Vec::len).collect();
                left(out == [0, 0], format!("node {number} has permits out: {out:?}"))?;
                if let Some(pools) = &core.pools {
                    let held: Vec<_> = pools.iter().map(|pool| pool.held() + pool.waiting()).collect();
                    left(held == [0, 0], format!("node {number} has permits held: {held:?}"))?;
                }
            }
        }
        self.sessions.retain(|name, _| !self.ghosts.contains(name));
        let outstanding: u64 = self.sessions.values().map(|session| session.outstanding_bytes).sum();
        left(outstanding == 0, format!("{outstanding} bytes were never acknowledged"))?;
        let open = self.network.open_connections().len();
        left(open == streams, format!("{open} connections for {streams} streams"))?;
        let awaits: usize = self.nodes.iter().filter_map(|node| Some(node.awaits.as_ref()?.len())).sum();
        left(awaits == 0, format!("{awaits} barriers are left"))
    }

    /// The scope of a plan.
    pub(crate) fn scope(&self, plan: &crate::plan::ScopePlan) -> Scope {
        use crate::plan::ScopePlan;
        let named = |numbers: &[usize]| {
            let digests = numbers.iter().map(|&number| self.load.namespaces()[number]);
            Scope::namespaces(digests).expect("few namespaces")
        };
        match plan {
            ScopePlan::All => Scope::All,
            ScopePlan::Some(numbers) => named(numbers),
            ScopePlan::None => named(&[]),
        }
    }

    /// Whether a core is a member by its own clock.
    pub(crate) fn is_member(&self, place: Place) -> bool {
        let core = &self.nodes[usize::from(place.node)].cores[usize::from(place.core)];
        matches!(core.life, Life::Member { deadline } if deadline > self.now())
    }
}
