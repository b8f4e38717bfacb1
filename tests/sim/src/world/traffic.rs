//! Bytes and turns: what the network brings to rooms, and when rooms get their turn.

use std::rc::Rc;
use std::time::Duration;

use orbitkv_shards::inventory::ConnectionId;
use orbitkv_shards::inventory::publisher::Source;
use orbitkv_shards::inventory::subscriber::{Index, StreamId};
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
use crate::mail::{Mail, Reader};
use crate::network::{Arrival, ConnectionName, NetworkEvent, Place, Side};
use crate::oracle::{Oracle, Verdict, Violation};

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

mod effects;
mod letters;

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
        let (Some(dial), Some(place)) = (self.dials.get(&name), self.network.place(name, Side::Source))
        else {
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
        let Some(faults) = self.plan.faults.as_ref().filter(|_| self.part == super::Part::Safety) else {
            return;
        };
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
        let (jitter, now) = (self.chance.word(), self.now());
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
        let (jitter, now) = (self.chance.word(), self.now());
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
}
