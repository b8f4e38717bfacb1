//! Bytes, letters and turns: what the network and the mail bring to rooms, and what rooms want done.

use std::rc::Rc;
use std::time::Duration;

use orbitkv_shards::inventory::permits::{Applicant, PermitEffect};
use orbitkv_shards::inventory::publisher::{CloseCause as SourceClose, PublisherEffect, Source};
use orbitkv_shards::inventory::subscriber::{CloseCause, Index, StreamId, SubscriberEffect};
use orbitkv_shards::inventory::{ConnectionId, PermitTicket};
use orbitkv_shards::members::Local;
use orbitkv_shards::time::Moment;
use orbitkv_wire::bounds::INVENTORY_FRAME_BYTES_MAX;
use orbitkv_wire::identity::{NodeId, Sequence, SessionId, ShardIndex};
use orbitkv_wire::inventory::{
    FromSource, HEADER_BYTES, Header, Kind, decode_from_requester, decode_from_source, decode_open,
    split_frame,
};

use super::World;
use crate::canary::Canary;
use crate::core::{Core, Life};
use crate::counters::Counter;
use crate::event::{Event, Process};
use crate::mail::{Mail, Pool, Reader};
use crate::network::{Arrival, ConnectionName, Flow, NetworkEvent, Place, Side};
use crate::oracle::session::{Session, SourceView};
use crate::oracle::{Oracle, Verdict, Violation, hold};
use crate::truth::StreamName;

pub(crate) use super::tamper::Tampered;

/// A dial that was not answered.
#[derive(Clone, Debug)]
pub(crate) struct Dial {
    from: Place,
    stream: StreamId,
    node: NodeId,
    /// An Open that is sent a second time, by nobody.
    ghost: Option<Rc<[u8]>>,
}

/// A frame of a source as a line of the log.
fn source_line(header: &Header, body: &[u8]) -> String {
    let message = match decode_from_source(header, body) {
        Ok(FromSource::SnapshotPage { snapshot, number, changes }) => {
            format!("page {number} of {snapshot}, {} residences", changes.len())
        }
        Ok(FromSource::Delta { from, through, changes }) => {
            format!("delta ({}, {}], {} changes", from.0, through.0, changes.len())
        }
        Ok(message) => format!("{message:?}"),
        Err(error) => format!("nothing: {error}"),
    };
    format!("frame {}, head {}, {message}", header.frame, header.head)
}

/// A frame of a requester as a line of the log.
fn requester_line(header: &Header, body: &[u8]) -> String {
    if let Ok(open) = decode_open(header, body) {
        let source = open.binding.source;
        return format!(
            "Open {} of {} {} shard {}, resume {:?}",
            open.attempt, source.node, source.incarnation, source.shard.0, open.resume
        );
    }
    match decode_from_requester(header, body) {
        Ok(message) => format!("frame {}, {message:?}", header.frame),
        Err(error) => format!("nothing: {error}"),
    }
}

fn id(name: ConnectionName) -> ConnectionId {
    ConnectionId(name.0)
}

/// Hands out the core at a place, with a place's rooms apart.
macro_rules! core {
    ($world:expr, $place:expr) => {
        &mut $world.nodes[usize::from($place.node)].cores[usize::from($place.core)]
    };
}

impl World {
    pub(crate) fn on_network(&mut self, event: NetworkEvent) -> Verdict {
        match event {
            NetworkEvent::Reached(name) => self.on_reached(name),
            NetworkEvent::Answered(name) => self.on_answered(name),
            NetworkEvent::DialFailed(name) => {
                if self.network.on_dial_failed(name, &mut self.schedule) {
                    self.on_dial_failed(name);
                }
            }
            NetworkEvent::Segment(name, side) => {
                if self.network.on_segment(name, side, &mut self.schedule) == Arrival::Bytes {
                    return self.read_frames(name, side);
                }
            }
            NetworkEvent::Closed(name, side) => self.on_closed(name, side),
            NetworkEvent::Writable(name, side) => {
                self.counters.count(Counter::WriteRelieved);
                if let Some(place) = self.network.place(name, side)
                    && self.canary != Some(Canary::NeverRelieve)
                {
                    core!(self, place).publisher.on_writable(id(name));
                    self.wake(place);
                }
            }
            NetworkEvent::Idle(name) => {
                if self.network.on_idle(name, &mut self.schedule) {
                    self.counters.count(Counter::IdleTimeout);
                }
            }
        }
        Ok(())
    }

    /// A core has something to do soon.
    pub(crate) fn wake(&mut self, place: Place) {
        let delay = self.mail_chance.micros(&(1..=40));
        self.plan_turn(place, self.now() + delay);
    }

    fn plan_turn(&mut self, place: Place, at: Moment) {
        let at = at.max(self.now());
        let core = core!(self, place);
        if core.turn_at.is_none_or(|planned| at < planned) {
            core.turn_at = Some(at);
            let process = Process { node: place.node, number: place.process };
            self.schedule.at(at, Event::Turn(process, place.core));
        }
    }

    fn on_reached(&mut self, name: ConnectionName) {
        let (Some(dial), Some(place)) = (self.dials.get(&name), self.network.place(name, Side::Source)) else {
            return;
        };
        let requester = self.network.place(name, Side::Requester).expect("it has two ends");
        let (expected, ghost) = (self.number(dial.node), dial.ghost.clone());
        let requester_name = self.nodes[usize::from(requester.node)].name;
        if place.node != expected {
            self.counters.count(Counter::DialWrongNode);
            self.network.reject(name, &mut self.schedule);
            return;
        }
        let core = core!(self, place);
        if core.known.as_ref().is_none_or(|map| map.get(requester_name).is_none()) {
            self.counters.count(Counter::DialUnknownRequester);
            return;
        }
        core.connections.insert(name, Side::Source);
        core.publisher.on_connected(id(name), requester_name, self.schedule.now());
        self.network.accept(name, &mut self.schedule);
        if let Some(open) = ghost {
            self.network.send(name, Side::Requester, &[&open], &mut self.schedule);
        }
        self.wake(place);
    }

    fn on_answered(&mut self, name: ConnectionName) {
        if !self.network.on_answered(name) {
            return;
        }
        let Some(dial) = self.dials.remove(&name) else { return };
        if dial.ghost.is_some() {
            return;
        }
        let place = self.network.place(name, Side::Requester).expect("it was answered");
        let (session, now) = (SessionId(self.ids.bytes()), self.now());
        let core = core!(self, place);
        core.connections.insert(name, Side::Requester);
        core.subscriber.on_connected(dial.stream, id(name), session, now);
        self.wake(place);
        self.maybe_delay_open(name, now);
    }

    /// Sometimes an Open is on its way for so long that its requester has given it up.
    fn maybe_delay_open(&mut self, name: ConnectionName, now: Moment) {
        let Some(faults) = self.plan.faults.as_ref().filter(|_| self.part == super::Part::Safety) else { return };
        if self.chance.chance(faults.delayed_open_permille) {
            let until = now + self.chance.micros(&(300_000..=6_000_000));
            self.network.hold_back(name, Side::Source, until);
            let given_up = self.chance.micros(&(50_000..=250_000));
            self.schedule.after(given_up, Event::Network(NetworkEvent::Closed(name, Side::Requester)));
            let noticed = until + self.chance.micros(&(1_000..=2_000_000));
            self.schedule.at(noticed, Event::Network(NetworkEvent::Closed(name, Side::Source)));
            self.counters.count(Counter::OpenDelayed);
        }
    }

    fn on_dial_failed(&mut self, name: ConnectionName) {
        let Some(dial) = self.dials.remove(&name) else { return };
        if dial.ghost.is_some() {
            return;
        }
        let place = dial.from;
        self.counters.count(Counter::DialUnanswered);
        let (jitter, now) = (self.chance.next(), self.now());
        core!(self, place).subscriber.on_dial_failed(dial.stream, jitter, now);
        self.wake(place);
    }

    fn on_closed(&mut self, name: ConnectionName, side: Side) {
        let Some(place) = self.network.place(name, side) else { return };
        if !self.network.unread(name, side).is_empty() {
            self.counters.count(Counter::DiedInsideFrame);
        }
        if !self.network.on_closed(name, side) {
            return;
        }
        let (jitter, now) = (self.chance.next(), self.now());
        if side == Side::Requester {
            if let Some(dial) = self.dials.remove(&name) {
                if dial.ghost.is_none() {
                    core!(self, place).subscriber.on_dial_failed(dial.stream, jitter, now);
                }
            } else if core!(self, place).connections.remove(&name).is_some() {
                let keeps = self.sessions.get(&name).is_some_and(|session| {
                    self.proofs.get(&(place, session.stream)).is_some_and(|proof| proof.installed.is_some())
                });
                self.counters.add(Counter::KeptHints, u64::from(keeps));
                core!(self, place).subscriber.on_closed(id(name), jitter, now);
            }
            self.end_session(name, Side::Requester);
        } else if core!(self, place).connections.remove(&name).is_some() {
            core!(self, place).publisher.on_closed(id(name), now);
            self.end_session(name, Side::Source);
        }
        self.wake(place);
    }

    fn end_session(&mut self, name: ConnectionName, side: Side) {
        match side {
            Side::Requester => {
                if let Some(session) = self.sessions.remove(&name)
                    && !self.ghosts.remove(&name)
                    && let Some(proof) = self.proofs.get_mut(&(session.requester, session.stream))
                {
                    proof.on_session_ended();
                }
            }
            Side::Source => {
                if let Some(session) = self.sessions.get_mut(&name) {
                    session.on_source_gone();
                }
                if self.ghosts.remove(&name) {
                    self.sessions.remove(&name);
                }
            }
        }
    }

    /// Nothing of a process that is gone is kept.
    pub(crate) fn forget_process(&mut self, process: Process) {
        let of = |place: &Place| place.node == process.node && place.process == process.number;
        let gone: Vec<_> = (self.sessions.iter())
            .filter(|(_, session)| of(&session.requester))
            .map(|(name, _)| *name)
            .collect();
        for name in gone {
            self.sessions.remove(&name);
            self.ghosts.remove(&name);
        }
        self.proofs.retain(|(place, _), _| !of(place));
        self.dials.retain(|_, dial| !of(&dial.from));
    }

    /// Hands every whole frame that has arrived to the room at that end.
    fn read_frames(&mut self, name: ConnectionName, side: Side) -> Verdict {
        loop {
            if !self.network.is_open(name, side) {
                return Ok(());
            }
            let unread = self.network.unread(name, side);
            let split = split_frame(unread, INVENTORY_FRAME_BYTES_MAX)
                .map_err(|error| Violation { oracle: Oracle::Source, what: format!("no frame: {error}") })?;
            let Some((header, body)) = split else {
                self.counters.add(Counter::FrameInPieces, u64::from(!unread.is_empty()));
                return Ok(());
            };
            let frame = unread[..body.end].to_vec();
            self.network.consume(name, side, frame.len(), &mut self.schedule);
            let place = self.network.place(name, side).expect("it is open");
            self.history.note(name.0 << 1 | side as u64);
            self.history.note_bytes(&frame);
            match side {
                Side::Source => self.deliver_to_source(name, place, &header, &frame)?,
                Side::Requester => self.deliver_to_requester(name, place, &header, frame)?,
            }
            self.wake(place);
        }
    }

    fn deliver_to_source(
        &mut self,
        name: ConnectionName,
        place: Place,
        header: &Header,
        frame: &[u8],
    ) -> Verdict {
        self.check_deadline(place);
        let mut forged = None;
        if Kind::from_wire(header.kind) != Some(Kind::Open) {
            let message = decode_from_requester(header, &frame[HEADER_BYTES..]).map_err(|error| {
                Violation { oracle: Oracle::Source, what: format!("a requester sends no frame: {error}") }
            })?;
            if let Some(session) = self.sessions.get_mut(&name) {
                let delivered = session.delivered();
                session.on_requester_heard(&message, delivered)?;
                forged = self.tamper_ack(name, header, &message);
            }
        }
        let now = self.now();
        let core = core!(self, place);
        let head = core.stock.journal.head();
        core.publisher.on_frame(id(name), forged.as_deref().unwrap_or(frame), head, now);
        Ok(())
    }

    fn deliver_to_requester(
        &mut self,
        name: ConnectionName,
        place: Place,
        header: &Header,
        frame: Vec<u8>,
    ) -> Verdict {
        self.check_deadline(place);
        if self.ghosts.contains(&name) {
            return Ok(());
        }
        let Some(session) = self.sessions.get_mut(&name) else { return Ok(()) };
        let stream = session.stream;
        let fact = session.on_delivered(header)?;
        let now = self.now();
        let proof = self.proofs.entry((place, stream)).or_default();
        proof.on_fact(fact);
        proof.on_head(Sequence(header.head), now);
        let tampered = self.canary.is_some().then(|| self.tamper(name, stream, header, &frame));
        let Some(frame) = tampered.unwrap_or(Some(frame)) else { return Ok(()) };
        let Core { subscriber, partition, namespaces, .. } = core!(self, place);
        subscriber.on_frame(id(name), &frame, &mut Index { partition, namespaces }, now);
        self.check_core(place)
    }

    /// A core looks at its deadline before it takes anything.
    pub(crate) fn check_deadline(&mut self, place: Place) {
        let now = self.now();
        if core!(self, place).is_overdue(now) && self.canary != Some(Canary::OutliveLease) {
            let incarnation = core!(self, place).local.incarnation;
            self.fence_core(place);
            let process = Process { node: place.node, number: place.process };
            let core = Reader::Core(ShardIndex(place.core));
            self.post(process, core, Reader::Control, Mail::DeadlinePassed(incarnation));
        }
    }

    fn fence_core(&mut self, place: Place) {
        let now = self.now();
        let core = core!(self, place);
        if core.life != Life::Over {
            core.life = Life::Over;
            core.publisher.on_fenced(now);
            core.subscriber.on_fenced(now);
            core.map = None;
            self.wake(place);
        }
    }

    pub(crate) fn on_mail(&mut self, process: Process, to: Reader, mail: Mail) -> Verdict {
        let Reader::Core(shard) = to else { return self.on_control_mail(process, mail) };
        let place = Place { node: process.node, process: process.number, core: shard.0 };
        self.check_deadline(place);
        let own = Reader::Core(shard);
        let now = self.now();
        match mail {
            Mail::Lower(map) => {
                let revision = map.revision;
                let planted = self.canary == Some(Canary::SkipRetire);
                let core = core!(self, place);
                let lost = core.map.as_ref().is_some_and(|before| {
                    before.members().iter().any(|member| !map.has(member.node, member.incarnation))
                });
                let skips = planted && lost;
                if !matches!(core.life, Life::Member { .. }) {
                    return Ok(());
                }
                core.map = Some(Rc::clone(&map));
                core.known = Some(Rc::clone(&map));
                if !skips {
                    let Core { subscriber, partition, namespaces, .. } = core;
                    subscriber.on_lower(&map, &mut Index { partition, namespaces }, now);
                    core.publisher.on_members(&map, now);
                }
                self.post(process, own, Reader::Control, Mail::Lowered(shard, revision));
            }
            Mail::MayRaise(revision) => core!(self, place).subscriber.on_may_raise(revision),
            Mail::MembershipInvalid => core!(self, place).subscriber.on_membership_invalid(now),
            Mail::Scope(scope, generation) => {
                let Core { subscriber, partition, namespaces, scope: own, .. } = core!(self, place);
                *own = scope.clone();
                subscriber.on_scope(scope, generation, &mut Index { partition, namespaces }, now);
            }
            Mail::Fence => self.fence_core(place),
            Mail::NewLife(incarnation) => {
                self.fence_core(place);
                let World { nodes, truth, .. } = self;
                let core = &mut nodes[usize::from(place.node)].cores[usize::from(place.core)];
                core.stock.restart(incarnation, truth);
                core.restarting = Some(incarnation);
            }
            Mail::Registered(local, deadline) => self.on_registered(place, local, deadline),
            Mail::Deadline(deadline) => {
                let core = core!(self, place);
                if let Life::Member { deadline: known } = &mut core.life {
                    *known = deadline.max(*known);
                }
            }
            Mail::Expose(sync) => {
                let core = core!(self, place);
                core.publisher.expose();
                let settled = core.stock.is_settled() && matches!(core.life, Life::Member { .. });
                let head = settled.then(|| (core.local.incarnation, core.stock.journal.head()));
                self.post(process, own, Reader::Control, Mail::Exposed(sync, shard, head));
            }
            Mail::Read(waiter, round, node, incarnation, targets) => {
                let core = core!(self, place);
                core.subscriber.flush_through(node, incarnation, &targets);
                let mut readings = core.subscriber.readings(node, incarnation);
                if self.canary == Some(Canary::ReadAhead) {
                    readings.iter_mut().for_each(|reading| reading.applied.0 += 1);
                }
                let revision = core.subscriber.coverage(now).revision;
                let mail = Mail::Readings(waiter, round, shard, revision, readings);
                self.post(process, own, Reader::Control, mail);
            }
            Mail::Want(pool, core, ticket) => self.on_want(place, pool, core, ticket),
            Mail::Return(pool, core, ticket) => self.on_return(place, pool, core, ticket),
            Mail::Permit(pool, ticket) => match pool {
                Pool::Served => core!(self, place).publisher.on_permit(ticket, now),
                Pool::Received => core!(self, place).subscriber.on_permit(ticket, now),
            },
            Mail::Waits(pool, ticket, position) => {
                if pool == Pool::Served {
                    core!(self, place).publisher.on_permit_waits(ticket, position, now);
                }
            }
            Mail::Ask(question, asking, keys) => {
                let part = self.answer(place, &keys)?;
                self.post(process, own, Reader::Core(asking), Mail::Answer(question, Box::new(part)));
            }
            Mail::Answer(question, part) => return self.on_answer(place, question, *part),
            other => unreachable!("{other:?} is not for a core"),
        }
        self.wake(place);
        self.check_core(place)
    }

    fn on_registered(&mut self, place: Place, local: Local, deadline: Moment) {
        let now = self.now();
        let core = core!(self, place);
        core.local = local;
        core.life = Life::Member { deadline };
        core.publisher.on_registered(local, now);
        core.subscriber.on_registered(local, now);
    }

    fn on_want(&mut self, place: Place, pool: Pool, shard: ShardIndex, ticket: PermitTicket) {
        let applicant = Applicant { shard, ticket };
        let third = self.canary == Some(Canary::ThirdPermit);
        let core = core!(self, place);
        if third {
            core.permits_out[pool as usize].push(applicant);
            self.post_permit(place, pool, applicant);
            return;
        }
        let pools = core.pools.as_mut().expect("core 0 has the pools");
        pools[pool as usize].request(applicant).expect("the queue holds every stream of the node");
        self.poll_pool(place, pool);
    }

    fn on_return(&mut self, place: Place, pool: Pool, shard: ShardIndex, ticket: PermitTicket) {
        let loses = self.canary == Some(Canary::LoseReturn) && self.part == super::Part::Liveness;
        if loses && self.tampered.lose_return(place.node) {
            return;
        }
        let applicant = Applicant { shard, ticket };
        let third = self.canary == Some(Canary::ThirdPermit);
        let core = core!(self, place);
        core.permits_out[pool as usize].retain(|out| *out != applicant);
        if !third {
            core.pools.as_mut().expect("core 0 has the pools")[pool as usize].give_back(applicant);
            self.poll_pool(place, pool);
        }
    }

    fn poll_pool(&mut self, place: Place, pool: Pool) {
        let process = Process { node: place.node, number: place.process };
        while let Some(effect) =
            core!(self, place).pools.as_mut().expect("core 0 has the pools")[pool as usize].poll_effect()
        {
            match effect {
                PermitEffect::Granted(applicant) => {
                    core!(self, place).permits_out[pool as usize].push(applicant);
                    self.post_permit(place, pool, applicant);
                }
                PermitEffect::Waits { applicant, position } => {
                    let mail = Mail::Waits(pool, applicant.ticket, position);
                    self.post(process, Reader::Core(ShardIndex(0)), Reader::Core(applicant.shard), mail);
                }
            }
        }
    }

    fn post_permit(&mut self, place: Place, pool: Pool, applicant: Applicant) {
        let process = Process { node: place.node, number: place.process };
        let mail = Mail::Permit(pool, applicant.ticket);
        self.post(process, Reader::Core(ShardIndex(0)), Reader::Core(applicant.shard), mail);
    }

    /// One turn of a core: one slice of each room, then what they want done.
    pub(crate) fn on_turn(&mut self, process: Process, core: u16) -> Verdict {
        let place = Place { node: process.node, process: process.number, core };
        let now = self.now();
        if core!(self, place).turn_at.is_none_or(|planned| planned > now) {
            return Ok(());
        }
        core!(self, place).turn_at = None;
        self.check_deadline(place);
        self.settle_stock(place);
        let draw = self.ids.draw();
        let World { nodes, .. } = self;
        let core = &mut nodes[usize::from(place.node)].cores[usize::from(place.core)];
        let Core { publisher, subscriber, partition, namespaces, stock, .. } = core;
        let source = Source { journal: &stock.journal, residences: &*stock, namespaces: &*namespaces };
        let more_to_send = publisher.turn(&source, draw, now);
        let more_to_take = subscriber.turn(&mut Index { partition, namespaces }, now);
        self.interpret(place)?;
        let core = core!(self, place);
        let deadlines = [core.publisher.next_deadline(), core.subscriber.next_deadline()];
        let more = more_to_send || more_to_take || core.restarting.is_some();
        let lease = match core.life {
            Life::Member { deadline } => Some(deadline),
            Life::Unregistered | Life::Over => None,
        };
        let slice = now + Duration::from_micros(20);
        let next = deadlines.into_iter().flatten().chain(lease).chain(more.then_some(slice)).min();
        if let Some(next) = next {
            self.plan_turn(place, next.max(slice));
        }
        self.check_core(place)?;
        self.check_bounds(place)
    }

    /// A core that puts its residents again does so in slices, and tells control at the end.
    fn settle_stock(&mut self, place: Place) {
        let World { nodes, truth, counters, schedule, .. } = self;
        let core = &mut nodes[usize::from(place.node)].cores[usize::from(place.core)];
        let Some(incarnation) = core.restarting else { return };
        core.stock.settle(16, truth, counters, schedule.now());
        if core.stock.is_settled() {
            core.restarting = None;
            let process = Process { node: place.node, number: place.process };
            let own = Reader::Core(ShardIndex(place.core));
            self.post(process, own, Reader::Control, Mail::Restarted(ShardIndex(place.core), incarnation));
        }
    }

    /// Does what the rooms of a core want done.
    fn interpret(&mut self, place: Place) -> Verdict {
        let process = Process { node: place.node, number: place.process };
        let shard = ShardIndex(place.core);
        let permit = |world: &mut World, mail| {
            world.post(process, Reader::Core(shard), Reader::Core(ShardIndex(0)), mail);
        };
        while let Some(effect) = core!(self, place).publisher.poll_effect() {
            match effect {
                PublisherEffect::Send { connection, header, body } => {
                    self.send_from_source(place, ConnectionName(connection.0), &header, &body)?;
                }
                PublisherEffect::Close { connection, cause } => {
                    let name = ConnectionName(connection.0);
                    self.say(|| format!("source {place} closes {}: {cause}", name.0));
                    match cause {
                        SourceClose::Stalled => self.counters.count(Counter::EndedStalled),
                        SourceClose::Replaced => self.counters.count(Counter::EndedReplaced),
                        SourceClose::Removed => self.counters.count(Counter::EndedRemoved),
                        SourceClose::Silent => self.counters.count(Counter::EndedSilent),
                        SourceClose::Frame(_) | SourceClose::Protocol(_) | SourceClose::Busy => {
                            hold(Oracle::Source, self.canary.is_some(), || {
                                format!("{place} accuses its requester: {cause}")
                            })?;
                        }
                        SourceClose::Refused(_) | SourceClose::Fenced => {}
                    }
                    core!(self, place).connections.remove(&name);
                    self.network.close(name, Side::Source, &mut self.schedule);
                    self.end_session(name, Side::Source);
                }
                PublisherEffect::WantPermit(ticket) => permit(self, Mail::Want(Pool::Served, shard, ticket)),
                PublisherEffect::ReturnPermit(ticket) => permit(self, Mail::Return(Pool::Served, shard, ticket)),
            }
        }
        while let Some(effect) = core!(self, place).subscriber.poll_effect() {
            match effect {
                SubscriberEffect::Dial { stream, address, node, .. } => {
                    let to = self.listener(address);
                    let name = self.network.dial(place, to, &mut self.schedule);
                    self.dials.insert(name, Dial { from: place, stream, node, ghost: None });
                }
                SubscriberEffect::Send { connection, bytes } => {
                    self.send_from_requester(place, ConnectionName(connection.0), &bytes)?;
                }
                SubscriberEffect::Close { connection, cause } => {
                    let name = ConnectionName(connection.0);
                    self.say(|| format!("requester {place} closes {}: {cause}", name.0));
                    match cause {
                        CloseCause::PageTimeout => self.counters.count(Counter::PageTimedOut),
                        CloseCause::Budget(_) => self.counters.count(Counter::BudgetExceeded),
                        _ => {}
                    }
                    core!(self, place).connections.remove(&name);
                    self.network.close(name, Side::Requester, &mut self.schedule);
                    self.end_session(name, Side::Requester);
                    self.judge_close(&cause)?;
                }
                SubscriberEffect::WantPermit(ticket) => {
                    permit(self, Mail::Want(Pool::Received, shard, ticket));
                }
                SubscriberEffect::ReturnPermit(ticket) => {
                    permit(self, Mail::Return(Pool::Received, shard, ticket));
                }
            }
        }
        Ok(())
    }

    fn send_from_source(
        &mut self,
        place: Place,
        name: ConnectionName,
        header: &[u8; HEADER_BYTES],
        body: &Rc<[u8]>,
    ) -> Verdict {
        if !self.network.is_open(name, Side::Source) {
            return Ok(());
        }
        let split = split_frame(&[&header[..], body].concat(), INVENTORY_FRAME_BYTES_MAX);
        let Ok(Some((parsed, _))) = split else {
            let what = format!("{place:?} sends no whole frame: {split:?}");
            return Err(Violation { oracle: Oracle::Source, what });
        };
        self.frames += 1;
        self.frame_bytes += (HEADER_BYTES + body.len()) as u64;
        self.say(|| format!("{place} says on {}: {}", name.0, source_line(&parsed, body)));
        self.check_admission(place, name, &parsed)?;
        let World { sessions, counters, truth, nodes, .. } = self;
        if let Some(session) = sessions.get_mut(&name) {
            let namespaces = &nodes[usize::from(place.node)].cores[usize::from(place.core)].namespaces;
            let scan_order = |digest: &_| namespaces.get(digest).map_or(u16::MAX, |id| id.0);
            let view = SourceView { truth, scan_order: &scan_order };
            session.on_source_sends(&parsed, body, &view, counters)?;
        }
        self.count_source_frame(&parsed, body, place);
        self.counters.add(Counter::BodyShared, u64::from(Rc::strong_count(body) > 2));
        if self.network.send(name, Side::Source, &[header, body], &mut self.schedule) == Flow::Blocked {
            self.counters.count(Counter::WriteBlocked);
            core!(self, place).publisher.on_blocked(id(name));
        }
        Ok(())
    }

    /// A source speaks to members only, as one itself, and only in the newest session it has admitted.
    fn check_admission(&mut self, place: Place, name: ConnectionName, header: &Header) -> Verdict {
        let Some(session) = self.sessions.get(&name) else { return Ok(()) };
        if Kind::from_wire(header.kind) == Some(Kind::OpenRefused) {
            return Ok(());
        }
        let (stream, requester) = (session.stream, session.open.binding.requester);
        let (attempt, is_first) = (session.open.attempt, !session.is_served());
        let core = core!(self, place);
        let known = core.map.as_ref().is_some_and(|map| map.has(requester.node, requester.incarnation));
        let own = core.stock.stream() == stream;
        hold(Oracle::Fenced, known && own && self.is_member(place), || {
            let core = &self.nodes[usize::from(place.node)].cores[usize::from(place.core)];
            let (map, life) = (&core.map, core.life);
            format!("{place} serves {requester:?}: a member {known}, of this life {own}: {life:?}, {map:?}")
        })?;
        let newest = self.accepted.entry((stream, requester.incarnation)).or_insert((0, name));
        if is_first {
            hold(Oracle::Source, attempt > newest.0, || {
                format!("{place} admits attempt {attempt} of {requester:?} after {}", newest.0)
            })?;
            *newest = (attempt, name);
        }
        hold(Oracle::Source, newest.1 == name, || format!("{place} serves a session that was replaced"))
    }

    fn count_source_frame(&mut self, header: &Header, body: &[u8], place: Place) {
        use orbitkv_wire::inventory::ResetCause;
        let steps = core!(self, place).settings.1.changes_per_step;
        let Ok(message) = decode_from_source(header, body) else { return };
        let counter = match message {
            FromSource::OpenRefused { cause, .. } => super::counter_of_cause(cause),
            FromSource::Resumed { .. } => Some(Counter::Resumed),
            FromSource::SnapshotQueued { .. } => Some(Counter::SnapshotQueued),
            FromSource::SnapshotBegin { .. } => Some(Counter::SnapshotBegin),
            FromSource::Delta { changes, .. } if changes.len() > steps => Some(Counter::DeltaLarge),
            FromSource::Progress { .. } => Some(Counter::Progress),
            FromSource::Liveness { .. } => Some(Counter::Liveness),
            FromSource::ResetRequired { cause: ResetCause::HistoryGone } => Some(Counter::ResetHistoryGone),
            FromSource::ResetRequired { cause: ResetCause::SlowSubscriber } => {
                Some(Counter::ResetSlowSubscriber)
            }
            FromSource::ResetRequired { cause: ResetCause::SnapshotExpired } => {
                Some(Counter::ResetSnapshotExpired)
            }
            _ => None,
        };
        if let Some(counter) = counter {
            self.counters.count(counter);
        }
    }

    fn send_from_requester(&mut self, place: Place, name: ConnectionName, bytes: &[u8]) -> Verdict {
        if !self.network.is_open(name, Side::Requester) {
            return Ok(());
        }
        let split = split_frame(bytes, INVENTORY_FRAME_BYTES_MAX);
        let Ok(Some((header, body))) = split else {
            let what = format!("{place:?} sends no whole frame: {split:?}");
            return Err(Violation { oracle: Oracle::Source, what });
        };
        let kind = Kind::from_wire(header.kind);
        self.frame_bytes += bytes.len() as u64;
        self.say(|| format!("{place} says on {}: {}", name.0, requester_line(&header, &bytes[body.clone()])));
        match kind {
            Some(Kind::Open) => {
                let open = decode_open(&header, &bytes[body]).map_err(|error| Violation {
                    oracle: Oracle::Source,
                    what: format!("{place:?} sends no Open: {error}"),
                })?;
                let source = open.binding.source;
                let stream = StreamName {
                    node: self.number(source.node),
                    incarnation: source.incarnation,
                    shard: source.shard,
                };
                self.maybe_duplicate(place, name, bytes, stream, &open);
                self.sessions.insert(name, Session::new(place, stream, open));
            }
            Some(Kind::Ack) => self.counters.count(Counter::Ack),
            Some(Kind::SnapshotAccept) => self.counters.count(Counter::SnapshotAccept),
            Some(Kind::SnapshotRefuse) => self.counters.count(Counter::SnapshotRefuse),
            Some(Kind::FlushThrough) => self.counters.count(Counter::FlushThrough),
            _ => {}
        }
        let flow = self.network.send(name, Side::Requester, &[bytes], &mut self.schedule);
        // A requester says little; if its peer does not even take that, it stays in the transport.
        let _ = flow;
        Ok(())
    }

    /// Sometimes an Open is heard a second time, on a connection at whose other end is nobody.
    fn maybe_duplicate(
        &mut self,
        place: Place,
        name: ConnectionName,
        bytes: &[u8],
        stream: StreamName,
        open: &orbitkv_wire::inventory::Open,
    ) {
        let Some(faults) = self.plan.faults.as_ref().filter(|_| self.part == super::Part::Safety) else { return };
        if !self.chance.chance(faults.duplicated_open_permille) {
            return;
        }
        let to = self.network.place(name, Side::Source);
        let ghost = self.network.dial(place, to, &mut self.schedule);
        let node = open.binding.source.node;
        let dial = Dial { from: place, stream: StreamId(u64::MAX), node, ghost: Some(bytes.into()) };
        self.dials.insert(ghost, dial);
        self.ghosts.insert(ghost);
        self.sessions.insert(ghost, Session::new(place, stream, open.clone()));
        for side in [Side::Requester, Side::Source] {
            let gone = self.chance.micros(&(1_500_000..=6_000_000));
            self.schedule.after(gone, Event::Network(NetworkEvent::Closed(ghost, side)));
        }
        self.counters.count(Counter::OpenDuplicated);
    }

    /// A requester that ends a session because its source broke the protocol accuses our own source.
    fn judge_close(&self, cause: &CloseCause) -> Verdict {
        let innocent = matches!(
            cause,
            CloseCause::PageTimeout
                | CloseCause::Refused(_)
                | CloseCause::MemberGone
                | CloseCause::Fenced
                | CloseCause::ScopeChanged
                | CloseCause::NotWanted
                | CloseCause::Budget(_)
        );
        hold(Oracle::Source, innocent || self.canary.is_some(), || format!("a requester accuses: {cause}"))
    }
}
