//! What the rooms of a core want done: frames on their way out, judged as they leave, and what else.

use std::rc::Rc;

use orbitkv_shards::inventory::publisher::{CloseCause as SourceClose, PublisherEffect};
use orbitkv_shards::inventory::subscriber::{CloseCause, StreamId, SubscriberEffect};
use orbitkv_wire::bounds::INVENTORY_FRAME_BYTES_MAX;
use orbitkv_wire::identity::ShardIndex;
use orbitkv_wire::inventory::{
    FromSource, HEADER_BYTES, Header, Kind, decode_from_source, decode_open, split_frame,
};

use super::{Dial, id, requester_line, source_line};
use crate::counters::Counter;
use crate::event::{Event, Process};
use crate::mail::{Mail, Pool, Reader};
use crate::network::{ConnectionName, Flow, NetworkEvent, Place, Side};
use crate::oracle::session::{Session, SourceView};
use crate::oracle::{Oracle, Verdict, Violation, hold};
use crate::truth::StreamName;
use crate::world::World;

impl World {
    /// Does what the rooms of a core want done.
    pub(super) fn interpret(&mut self, place: Place) -> Verdict {
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
                        SourceClose::Replaced => self.counters.count(Counter::EndedReplaced),
                        SourceClose::Removed => self.counters.count(Counter::EndedRemoved),
                        SourceClose::Silent => self.counters.count(Counter::EndedSilent),
                        SourceClose::Frame(_) | SourceClose::Protocol(_) | SourceClose::Busy => {
                            hold(Oracle::Source, self.canary.is_some(), || {
                                format!("{place} accuses its requester: {cause}")
                            })?;
                        }
                        SourceClose::Refused(_) | SourceClose::Stalled | SourceClose::Fenced => {}
                    }
                    core!(self, place).connections.remove(&name);
                    self.network.close(name, Side::Source, &mut self.schedule);
                    self.end_session(name, Side::Source);
                }
                // Its control follows a watch that tells everything sooner or later.
                PublisherEffect::Behind { .. } => {}
                PublisherEffect::WantPermit(ticket) => permit(self, Mail::Want(Pool::Served, shard, ticket)),
                PublisherEffect::ReturnPermit(ticket) => {
                    permit(self, Mail::Return(Pool::Served, shard, ticket))
                }
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
                // Its control follows a watch that tells everything sooner or later.
                SubscriberEffect::Doubt { .. } => {}
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

    pub(super) fn send_from_source(
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
    pub(super) fn check_admission(&mut self, place: Place, name: ConnectionName, header: &Header) -> Verdict {
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

    pub(super) fn count_source_frame(&mut self, header: &Header, body: &[u8], place: Place) {
        use orbitkv_wire::inventory::ResetCause;
        let steps = core!(self, place).settings.1.changes_per_step;
        let Ok(message) = decode_from_source(header, body) else { return };
        let counter = match message {
            FromSource::OpenRefused { cause, .. } => crate::world::counter_of_cause(cause),
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

    pub(super) fn send_from_requester(
        &mut self,
        place: Place,
        name: ConnectionName,
        bytes: &[u8],
    ) -> Verdict {
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
    pub(super) fn maybe_duplicate(
        &mut self,
        place: Place,
        name: ConnectionName,
        bytes: &[u8],
        stream: StreamName,
        open: &orbitkv_wire::inventory::Open,
    ) {
        let Some(faults) = self.plan.faults.as_ref().filter(|_| self.part == crate::world::Part::Safety)
        else {
            return;
        };
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
    pub(super) fn judge_close(&self, cause: &CloseCause) -> Verdict {
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
