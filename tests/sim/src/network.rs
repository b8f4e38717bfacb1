//! The network between nodes: connections that carry one ordered stream of bytes each way.
//!
//! A byte sent on a connection arrives once and in order, or not at all because the connection has
//! died; loss is a delay. What may differ from run to run is everything else: how bytes are cut into
//! segments, how long each takes, which of two connections is first, when each end learns that a
//! connection is gone, whether the other end reads, and which direction between two hosts is cut.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use orbitkv_shards::time::Moment;

use crate::random::Random;
use crate::schedule::Schedule;

/// Names a connection for the whole simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionName(pub u64);

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// Who dialled.
    Requester,
    /// Who was dialled.
    Source,
}

impl Side {
    /// The other end.
    #[must_use]
    pub fn other(self) -> Side {
        match self {
            Side::Requester => Side::Source,
            Side::Source => Side::Requester,
        }
    }
}

/// A core of one process: events for a process that is gone find nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The host, which is the number of its node.
    pub node: u16,
    /// Which process of that node, counted.
    pub process: u32,
    /// Its core.
    pub core: u16,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}/{}", self.node, self.process, self.core)
    }
}

/// What the network does by itself later.
#[derive(Clone, Copy, Debug)]
pub enum NetworkEvent {
    /// A dial has reached the host it was for, or nobody.
    Reached(ConnectionName),
    /// The dialler hears that its dial was answered.
    Answered(ConnectionName),
    /// The dialler hears that its dial has failed, or has waited long enough.
    DialFailed(ConnectionName),
    /// The next segment for that end has arrived.
    Segment(ConnectionName, Side),
    /// That end learns that the connection is gone.
    Closed(ConnectionName, Side),
    /// That end may send again.
    Writable(ConnectionName, Side),
    /// Nothing may have passed for the idle time-out: look.
    Idle(ConnectionName),
}

/// How the network behaves.
#[derive(Clone, Debug)]
pub struct Weather {
    /// One way, in microseconds.
    pub latency_us: RangeInclusive<u64>,
    /// Segments in a thousand that are lost and sent again.
    pub loss_permille: u32,
    /// Segments in a thousand that wait ten times as long.
    pub jitter_permille: u32,
    /// Bytes of a segment.
    pub segment_bytes: RangeInclusive<u64>,
    /// Bytes that an end takes for sending before it says stop.
    pub send_bytes: usize,
    /// Bytes that an end keeps for a reader that does not read.
    pub receive_bytes: usize,
}

/// A lost segment is sent again after this, then after twice this.
const RETRANSMIT: Duration = Duration::from_millis(60);
/// A connection on which nothing passes ends (chapter 2.10).
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// A dial that nobody answers ends.
const DIAL_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndState {
    /// The dial has not been answered, or has not arrived.
    Opening,
    Open,
    Closed,
}

struct End {
    place: Place,
    state: EndState,
}

struct Segment {
    bytes: Vec<u8>,
    arrives: Moment,
    /// Its place among all segments that were ever sent.
    number: u64,
}

/// Whether an end may give more to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Yes.
    Writable,
    /// Not before it is told so.
    Blocked,
}

/// Bytes on their way to one end.
struct Pipe {
    flying: VecDeque<Segment>,
    flying_bytes: usize,
    received: Vec<u8>,
    read: usize,
    last_arrival: Moment,
    flow: Flow,
    reads_from: Moment,
}

impl Pipe {
    fn new() -> Pipe {
        Pipe {
            flying: VecDeque::new(),
            flying_bytes: 0,
            received: Vec::new(),
            read: 0,
            last_arrival: Moment(0),
            flow: Flow::Writable,
            reads_from: Moment(0),
        }
    }

    fn unread(&self) -> usize {
        self.received.len() - self.read
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Carries,
    /// What is sent goes nowhere, though its ends do not know yet.
    Dies,
}

struct Connection {
    fate: Fate,
    ends: [End; 2],
    /// By the side that receives.
    pipes: [Pipe; 2],
}

/// What arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Bytes to read.
    Bytes,
    /// Nothing that anybody hears of.
    Nothing,
}

/// All connections and cuts.
pub struct Network {
    random: Random,
    weather: Weather,
    connections: BTreeMap<ConnectionName, Connection>,
    /// From whom to whom nothing passes.
    cuts: BTreeSet<(u16, u16)>,
    next: u64,
    /// Newest segment that has arrived between two hosts, and on which connection.
    newest: BTreeMap<(u16, u16), (u64, ConnectionName)>,
    segments: u64,
    /// Bytes sent so far.
    pub bytes_sent: u64,
    /// Segments that were lost and sent again.
    pub lost: u64,
    /// Segments that arrived after a later one of another connection.
    pub reordered: u64,
}

impl Network {
    /// No connection, no cut.
    #[must_use]
    pub fn new(random: Random, weather: Weather) -> Network {
        let (connections, cuts) = (BTreeMap::new(), BTreeSet::new());
        Network {
            random,
            weather,
            connections,
            cuts,
            next: 1,
            newest: BTreeMap::new(),
            segments: 0,
            bytes_sent: 0,
            lost: 0,
            reordered: 0,
        }
    }

    /// Nothing is lost or late from now on.
    pub fn calm(&mut self) {
        self.weather.loss_permille = 0;
        self.weather.jitter_permille = 0;
        self.cuts.clear();
        for connection in self.connections.values_mut() {
            connection.pipes.iter_mut().for_each(|pipe| pipe.reads_from = Moment(0));
        }
    }

    /// Stops everything from one host to another, or lets it pass again.
    pub fn cut<E: From<NetworkEvent>>(&mut self, from: u16, to: u16, schedule: &mut Schedule<E>) {
        if from != to && self.cuts.insert((from, to)) {
            for (&name, connection) in &self.connections {
                let hosts = [connection.ends[0].place.node, connection.ends[1].place.node];
                if hosts == [from, to] || hosts == [to, from] {
                    schedule.after(IDLE_TIMEOUT, E::from(NetworkEvent::Idle(name)));
                }
            }
        }
    }

    /// Ends a cut.
    pub fn mend(&mut self, from: u16, to: u16) {
        self.cuts.remove(&(from, to));
    }

    fn is_cut(&self, from: u16, to: u16) -> bool {
        self.cuts.contains(&(from, to))
    }

    fn delay(&mut self) -> Duration {
        let delay = self.random.micros(&self.weather.latency_us);
        if self.random.chance(self.weather.jitter_permille) { delay * 10 } else { delay }
    }

    /// `from` dials a core of the host that `to` names.
    pub fn dial<E: From<NetworkEvent>>(
        &mut self,
        from: Place,
        to: Option<Place>,
        schedule: &mut Schedule<E>,
    ) -> ConnectionName {
        let name = ConnectionName(self.next);
        self.next += 1;
        let reached = self.delay();
        let place = to.unwrap_or(Place { node: u16::MAX, process: 0, core: 0 });
        let end = |place| End { place, state: EndState::Opening };
        let connection = Connection {
            fate: Fate::Carries,
            ends: [end(from), end(place)],
            pipes: [Pipe::new(), Pipe::new()],
        };
        self.connections.insert(name, connection);
        if to.is_some() && !self.is_cut(from.node, place.node) {
            schedule.after(reached, E::from(NetworkEvent::Reached(name)));
        }
        schedule.after(DIAL_TIMEOUT, E::from(NetworkEvent::DialFailed(name)));
        name
    }

    /// The dialled process takes the connection.
    pub fn accept<E: From<NetworkEvent>>(&mut self, name: ConnectionName, schedule: &mut Schedule<E>) {
        let answered = self.delay();
        if let Some(connection) = self.connections.get_mut(&name) {
            connection.ends[Side::Source as usize].state = EndState::Open;
            schedule.after(answered, E::from(NetworkEvent::Answered(name)));
        }
    }

    /// The dialled process refuses the connection with a reason that the dialler can read.
    pub fn reject<E: From<NetworkEvent>>(&mut self, name: ConnectionName, schedule: &mut Schedule<E>) {
        let answered = self.delay();
        schedule.after(answered, E::from(NetworkEvent::DialFailed(name)));
    }

    /// The dialler hears the answer; false if it no longer waits or the answer cannot pass.
    pub fn on_answered(&mut self, name: ConnectionName) -> bool {
        let Some(connection) = self.connections.get(&name) else { return false };
        let [requester, source] = [connection.ends[0].place.node, connection.ends[1].place.node];
        if self.is_cut(source, requester) {
            return false;
        }
        let connection = self.connections.get_mut(&name).expect("it was just there");
        let waits = connection.ends[0].state == EndState::Opening;
        if waits {
            connection.ends[0].state = EndState::Open;
        }
        waits
    }

    /// The dialler gives up; false if it does not wait any more.
    pub fn on_dial_failed<E: From<NetworkEvent>>(
        &mut self,
        name: ConnectionName,
        schedule: &mut Schedule<E>,
    ) -> bool {
        let waits = self.connections.get(&name).is_some_and(|it| it.ends[0].state == EndState::Opening);
        if waits {
            self.close(name, Side::Requester, schedule);
        }
        waits
    }

    /// Where an end is.
    #[must_use]
    pub fn place(&self, name: ConnectionName, side: Side) -> Option<Place> {
        self.connections.get(&name).map(|connection| connection.ends[side as usize].place)
    }

    /// Whether an end may still send and receive, as far as it knows.
    #[must_use]
    pub fn is_open(&self, name: ConnectionName, side: Side) -> bool {
        self.connections.get(&name).is_some_and(|it| it.ends[side as usize].state == EndState::Open)
    }

    /// `side` sends bytes to the other end.
    pub fn send<E: From<NetworkEvent>>(
        &mut self,
        name: ConnectionName,
        side: Side,
        parts: &[&[u8]],
        schedule: &mut Schedule<E>,
    ) -> Flow {
        let to = side.other();
        if self.connections.get(&name).is_none_or(|connection| connection.fate == Fate::Dies) {
            return Flow::Writable;
        }
        let mut bytes: Vec<u8> = parts.concat();
        self.bytes_sent += bytes.len() as u64;
        while !bytes.is_empty() {
            let wanted = self.random.within(&self.weather.segment_bytes) as usize;
            let rest = bytes.split_off(wanted.clamp(1, bytes.len()));
            let mut delay = self.delay();
            let mut again = RETRANSMIT;
            while self.random.chance(self.weather.loss_permille) {
                delay += again;
                again *= 2;
                self.lost += 1;
            }
            self.segments += 1;
            let number = self.segments;
            let Some(connection) = self.connections.get_mut(&name) else { return Flow::Writable };
            let pipe = &mut connection.pipes[to as usize];
            let arrives = pipe.last_arrival.max(schedule.now() + delay);
            pipe.last_arrival = arrives;
            pipe.flying_bytes += bytes.len();
            pipe.flying.push_back(Segment { bytes, arrives, number });
            schedule.at(arrives, E::from(NetworkEvent::Segment(name, to)));
            bytes = rest;
        }
        let Some(connection) = self.connections.get_mut(&name) else { return Flow::Writable };
        let pipe = &mut connection.pipes[to as usize];
        if pipe.flying_bytes + pipe.unread() > self.weather.send_bytes {
            pipe.flow = Flow::Blocked;
        }
        pipe.flow
    }

    /// Delays everything that has not been sent yet, and what is sent later, to that end.
    pub fn hold_back(&mut self, name: ConnectionName, to: Side, until: Moment) {
        if let Some(connection) = self.connections.get_mut(&name) {
            let pipe = &mut connection.pipes[to as usize];
            pipe.last_arrival = pipe.last_arrival.max(until);
        }
    }

    /// That end does not read until then.
    pub fn stop_reading<E: From<NetworkEvent>>(
        &mut self,
        name: ConnectionName,
        side: Side,
        until: Moment,
        schedule: &mut Schedule<E>,
    ) {
        if let Some(connection) = self.connections.get_mut(&name) {
            connection.pipes[side as usize].reads_from = until;
            schedule.at(until, E::from(NetworkEvent::Segment(name, side)));
        }
    }

    /// A segment is due at that end.
    pub fn on_segment<E: From<NetworkEvent>>(
        &mut self,
        name: ConnectionName,
        side: Side,
        schedule: &mut Schedule<E>,
    ) -> Arrival {
        let now = schedule.now();
        let Some(connection) = self.connections.get(&name) else { return Arrival::Nothing };
        let (from, to) =
            (connection.ends[side.other() as usize].place.node, connection.ends[side as usize].place.node);
        let cut = self.is_cut(from, to);
        let receive_bytes = self.weather.receive_bytes;
        let connection = self.connections.get_mut(&name).expect("it was just there");
        let opening = connection.ends[side as usize].state == EndState::Opening;
        let pipe = &mut connection.pipes[side as usize];
        while let Some(segment) = pipe.flying.front() {
            if segment.arrives > now {
                break;
            }
            if cut || opening {
                schedule.after(RETRANSMIT, E::from(NetworkEvent::Segment(name, side)));
                return Arrival::Nothing;
            }
            // What finds no room waits for a reader that does not read.
            if pipe.unread() > receive_bytes && pipe.reads_from > now {
                break;
            }
            let segment = pipe.flying.pop_front().expect("it was just there");
            pipe.flying_bytes -= segment.bytes.len();
            pipe.received.extend_from_slice(&segment.bytes);
            let newest = self.newest.entry((from, to)).or_insert((0, name));
            if newest.0 > segment.number && newest.1 != name {
                self.reordered += 1;
            }
            *newest = (*newest).max((segment.number, name));
        }
        if pipe.unread() > 0 && pipe.reads_from <= now { Arrival::Bytes } else { Arrival::Nothing }
    }

    /// What that end can read.
    #[must_use]
    pub fn unread(&self, name: ConnectionName, side: Side) -> &[u8] {
        self.connections.get(&name).map_or(&[], |connection| {
            let pipe = &connection.pipes[side as usize];
            &pipe.received[pipe.read..]
        })
    }

    /// That end has read so much; the other one may be able to send again.
    pub fn consume<E: From<NetworkEvent>>(
        &mut self,
        name: ConnectionName,
        side: Side,
        bytes: usize,
        schedule: &mut Schedule<E>,
    ) {
        let relief = self.delay();
        let Some(connection) = self.connections.get_mut(&name) else { return };
        let pipe = &mut connection.pipes[side as usize];
        pipe.read += bytes;
        if pipe.read == pipe.received.len() {
            pipe.received.clear();
            pipe.read = 0;
        }
        if pipe.flying.front().is_some_and(|segment| segment.arrives <= schedule.now()) {
            schedule.after(Duration::ZERO, E::from(NetworkEvent::Segment(name, side)));
        }
        let relieved =
            pipe.flow == Flow::Blocked && pipe.flying_bytes + pipe.unread() <= self.weather.send_bytes / 2;
        if relieved {
            pipe.flow = Flow::Writable;
            schedule.after(relief, E::from(NetworkEvent::Writable(name, side.other())));
        }
    }

    /// `side` closes; the other end learns it later, after what arrives before.
    pub fn close<E: From<NetworkEvent>>(
        &mut self,
        name: ConnectionName,
        side: Side,
        schedule: &mut Schedule<E>,
    ) {
        let delay = self.delay();
        let Some(connection) = self.connections.get(&name) else { return };
        let cut = self.is_cut(
            connection.ends[side as usize].place.node,
            connection.ends[side.other() as usize].place.node,
        );
        let connection = self.connections.get_mut(&name).expect("it was just there");
        if connection.ends[side as usize].state == EndState::Closed {
            return;
        }
        connection.ends[side as usize].state = EndState::Closed;
        if connection.ends[side.other() as usize].state == EndState::Closed {
            self.connections.remove(&name);
            return;
        }
        let hears = if cut { IDLE_TIMEOUT } else { delay };
        let not_before = connection.pipes[side.other() as usize].last_arrival;
        let at = not_before.max(schedule.now() + hears).min(schedule.now() + IDLE_TIMEOUT);
        schedule.at(at, E::from(NetworkEvent::Closed(name, side.other())));
    }

    /// The connection dies under both ends, which learn it when they learn it; bytes that would
    /// arrive later never do.
    pub fn kill<E: From<NetworkEvent>>(&mut self, name: ConnectionName, schedule: &mut Schedule<E>) {
        for side in [Side::Requester, Side::Source] {
            let late = Duration::from_micros(self.random.below(300_000));
            if let Some(connection) = self.connections.get_mut(&name) {
                connection.fate = Fate::Dies;
                let pipe = &mut connection.pipes[side as usize];
                let keep = self.random.index(pipe.flying.len() + 1);
                pipe.flying.truncate(keep);
                if let Some(last) = pipe.flying.back_mut() {
                    let part = 1 + self.random.index(last.bytes.len());
                    last.bytes.truncate(part);
                }
                pipe.flying_bytes = pipe.flying.iter().map(|segment| segment.bytes.len()).sum();
                schedule.after(late, E::from(NetworkEvent::Closed(name, side)));
            }
        }
    }

    /// That end learns that the connection is gone; false if it knew.
    pub fn on_closed(&mut self, name: ConnectionName, side: Side) -> bool {
        let Some(connection) = self.connections.get_mut(&name) else { return false };
        let knew = connection.ends[side as usize].state == EndState::Closed;
        connection.ends[side as usize].state = EndState::Closed;
        if connection.ends.iter().all(|end| end.state == EndState::Closed) {
            self.connections.remove(&name);
        }
        !knew
    }

    /// Both ends notice that nothing passes any more, if it is so.
    pub fn on_idle<E: From<NetworkEvent>>(
        &mut self,
        name: ConnectionName,
        schedule: &mut Schedule<E>,
    ) -> bool {
        let Some(connection) = self.connections.get(&name) else { return false };
        let [requester, source] = [connection.ends[0].place.node, connection.ends[1].place.node];
        let dead = self.is_cut(requester, source) || self.is_cut(source, requester);
        if dead {
            schedule.after(Duration::ZERO, E::from(NetworkEvent::Closed(name, Side::Requester)));
            schedule.after(Duration::ZERO, E::from(NetworkEvent::Closed(name, Side::Source)));
        }
        dead
    }

    /// A process has died without a word: its ends are gone, the others learn it later.
    pub fn on_process_gone<E: From<NetworkEvent>>(
        &mut self,
        node: u16,
        process: u32,
        schedule: &mut Schedule<E>,
    ) {
        let names: Vec<_> = self.connections.keys().copied().collect();
        for name in names {
            for side in [Side::Requester, Side::Source] {
                let place = self.place(name, side);
                if place.is_some_and(|place| (place.node, place.process) == (node, process)) {
                    self.close(name, side, schedule);
                }
            }
        }
    }

    /// Every connection that both ends believe open.
    #[must_use]
    pub fn open_connections(&self) -> Vec<ConnectionName> {
        let both = |connection: &Connection| connection.ends.iter().all(|end| end.state == EndState::Open);
        self.connections.iter().filter(|(_, connection)| both(connection)).map(|(&name, _)| name).collect()
    }
}
