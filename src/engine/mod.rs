//! The engine channel of one core: connections, their requests, and the jobs behind them.
//!
//! Synchronous, without a descriptor or a clock of its own: bytes come in through
//! [`EngineHub::on_bytes`], commands for shards go out through [`EngineHub::poll_errand`], shards'
//! replies come back through [`EngineHub::on_reply`], and answers wait in each connection's
//! outbound buffer.

pub mod connection;
mod drain;
pub mod job;
mod leaving;
mod prefetch;
pub mod prefix;
pub mod refusal;
mod registration;
pub mod registry;
mod repeat;
mod requests;
mod views;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use orbitkv_shards::coverage::Basis;
use orbitkv_shards::leases::{ConnectionId, InstanceId};
use orbitkv_shards::ledger::LedgerCounters;
use orbitkv_shards::shard::{Command, Outcome, Reply, Tag};
use orbitkv_shards::time::Moment;
use orbitkv_wire::engine::answers::{self, PageKindNumber, RegisterAnswer};
use orbitkv_wire::engine::requests::decode_request;
use orbitkv_wire::engine::{FrameError, Operation, Status, split_frame};
use orbitkv_wire::identity::{Incarnation, ShardIndex};

pub use connection::{Connection, EngineStream, Phase};
use job::{Collected, Course, Job, Progress};
use leaving::Leaving;
use refusal::Refused;
use registry::{Conflict, Registration};

use crate::turns::recorder::Trace;

/// Connections one core serves, closed ones with a living process included.
pub const CONNECTIONS_MAX: usize = 1_024;

/// Bits of a connection number below its core's index.
const CONNECTION_BITS: u32 = 48;

/// Low bits of the arena generation that the first connection number leaves out: it has one bit
/// less than a number has room for.
const GENERATION_BITS_DROPPED: u32 = u64::BITS - CONNECTION_BITS + 1;

/// How often ledgers that nobody writes to are looked at for answers that have come of age.
const LEDGER_LOOK: Duration = Duration::from_secs(10);

/// Deadlines that are met in one turn, of requests and of ledgers each: an engine may let as many pass at once as it may have
/// requests.
const DEADLINES_PER_TURN: usize = 64;

/// Deadline of an Acquire or Sync that names none.
const DEADLINE_DEFAULT: Duration = Duration::from_secs(30);

/// What the node tells every engine in its Hello.
#[derive(Clone, Copy, Debug)]
pub struct Greeting {
    /// Random per daemon process.
    pub arena_generation: u64,
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// The life the node serves.
    pub incarnation: Incarnation,
    /// Shards of the node.
    pub shards: u16,
    /// Pages behind the arena.
    pub page_kind: PageKindNumber,
}

/// What the hub wants its core to do for it.
#[derive(Debug)]
pub enum Errand {
    /// Send these commands, all of them or none yet.
    Commands(Vec<(ShardIndex, Tag, Command)>),
    /// Ask the registry.
    Register(Tag, Box<Registration>),
    /// Tell the core of `connection` that `process_id` uses nothing of it any more.
    Abandoned {
        /// The lost connection.
        connection: ConnectionId,
        /// The process that says so.
        process_id: u32,
    },
    /// Tell the registry that the process of this connection is gone.
    Unregister(ConnectionId),
    /// Forget a closed connection: its process has nothing left under it.
    Forget(ConnectionId),
    /// An engine asked for the node to drain.
    Drain,
}

/// Counters and levels of the channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // Each name is its own description.
pub struct EngineCounters {
    pub connections: u64,
    pub connections_closed_process_alive: u64,
    pub connections_refused: u64,
    pub requests: u64,
    pub requests_in_flight: u64,
    pub requests_in_flight_peak: u64,
    pub malformed_frames: u64,
    pub stale_generation: u64,
    pub process_deaths: u64,
    pub outbound_bytes_peak: u64,
    pub queries_left_out: u64,
    pub repeats_suppressed: u64,
    pub repeats_too_late: u64,
}

impl EngineCounters {
    /// Adds what a ledger has seen.
    fn take_in(&mut self, ledger: &LedgerCounters) {
        self.repeats_suppressed += ledger.suppressed;
        self.repeats_too_late += ledger.expired_hits;
    }
}

/// The engine channel of one core.
pub struct EngineHub {
    core: ShardIndex,
    greeting: Greeting,
    connections_max: usize,
    connections: BTreeMap<ConnectionId, Connection>,
    next_connection: u64,
    jobs: BTreeMap<u64, Job>,
    next_job: u64,
    deadlines: BTreeSet<(Moment, u64)>,
    ledger_looks: BTreeSet<(Moment, ConnectionId)>,
    errands: VecDeque<Errand>,
    leaving: BTreeMap<u64, Leaving>,
    dirty: BTreeSet<ConnectionId>,
    /// What this core stands at among its peers; none on a standalone node.
    basis: Option<Basis>,
    draining: bool,
    drain_asked: bool,
    /// What becomes of requests when, if anybody asked for it; its core adds what it does.
    pub trace: Trace,
    latest: Moment,
    counters: EngineCounters,
}

impl EngineHub {
    /// A hub without connections, on core `core`, with `connections_max` seats for them, which are
    /// [`CONNECTIONS_MAX`] at most.
    #[must_use]
    pub fn new(core: ShardIndex, greeting: Greeting, connections_max: usize) -> EngineHub {
        EngineHub {
            core,
            greeting,
            connections_max: connections_max.min(CONNECTIONS_MAX),
            connections: BTreeMap::new(),
            // No number of an earlier daemon comes again: engines may name such a number in error.
            next_connection: 1 + (greeting.arena_generation >> GENERATION_BITS_DROPPED),
            jobs: BTreeMap::new(),
            next_job: 1,
            deadlines: BTreeSet::new(),
            ledger_looks: BTreeSet::new(),
            errands: VecDeque::new(),
            leaving: BTreeMap::new(),
            dirty: BTreeSet::new(),
            basis: None,
            draining: false,
            drain_asked: false,
            trace: Trace::default(),
            latest: Moment(0),
            counters: EngineCounters::default(),
        }
    }

    /// Where this core stands among its peers from now on.
    pub fn stand_at(&mut self, basis: Basis) {
        self.basis = Some(basis);
    }

    /// The core that serves a connection.
    #[must_use]
    pub fn core_of(connection: ConnectionId) -> usize {
        (connection.0 >> CONNECTION_BITS) as usize
    }

    /// Takes a connection in; `None` if no seat is free.
    pub fn open(&mut self, process_id: u32) -> Option<ConnectionId> {
        if self.connections.len() >= self.connections_max {
            self.counters.connections_refused += 1;
            return None;
        }
        let id = ConnectionId(u64::from(self.core.0) << CONNECTION_BITS | self.next_connection);
        self.next_connection += 1;
        self.connections.insert(id, Connection::new(id, process_id));
        Some(id)
    }

    /// A connection, if it is known.
    #[must_use]
    pub fn connection(&self, id: ConnectionId) -> Option<&Connection> {
        self.connections.get(&id)
    }

    /// Answer bytes of a connection that wait to be sent.
    pub fn outbound(&mut self, id: ConnectionId) -> Option<&mut Vec<u8>> {
        self.connections.get_mut(&id).map(|connection| &mut connection.outbound)
    }

    /// Connections whose outbound bytes have grown since the last call.
    pub fn take_dirty(&mut self) -> BTreeSet<ConnectionId> {
        std::mem::take(&mut self.dirty)
    }

    /// The next thing to do for the hub.
    pub fn poll_errand(&mut self) -> Option<Errand> {
        self.errands.pop_front()
    }

    /// Puts an errand back that cannot be done yet.
    pub fn postpone(&mut self, errand: Errand) {
        self.errands.push_front(errand);
    }

    /// Bytes from an engine. Whole frames are worked on, in order, as long as the connection may have
    /// more requests unanswered.
    pub fn on_bytes(&mut self, id: ConnectionId, bytes: &[u8], now: Moment) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.inbound.extend_from_slice(bytes);
            connection.received = now;
        }
        self.work(id, now);
    }

    /// Works on frames that have arrived but had to wait; whether there were any.
    pub fn work(&mut self, id: ConnectionId, now: Moment) -> bool {
        self.latest = self.latest.max(now);
        let Some(connection) = self.connections.get_mut(&id) else { return false };
        let inbound = std::mem::take(&mut connection.inbound);
        let mut used = 0;
        while self.connections.get(&id).is_some_and(Connection::may_read) {
            match split_frame(&inbound[used..]) {
                Ok(None) => break,
                Ok(Some((header, body))) => {
                    let body = &inbound[used + body.start..used + body.end];
                    used += header.length as usize;
                    self.on_frame(id, &header, body, now);
                }
                Err(error) => {
                    self.break_off(id, Operation::Ping, 0, &error);
                    break;
                }
            }
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            match connection.phase {
                Phase::Greeting | Phase::Open => {
                    connection.inbound = inbound;
                    connection.inbound.drain(..used);
                    connection::give_room_back(&mut connection.inbound);
                }
                Phase::Closing | Phase::Closed => {}
            }
        }
        used > 0
    }

    fn on_frame(
        &mut self,
        id: ConnectionId,
        header: &orbitkv_wire::engine::Header,
        body: &[u8],
        now: Moment,
    ) {
        self.counters.requests += 1;
        let request_id = header.request_id;
        let received = self.connections.get(&id).map_or(now, |connection| connection.received);
        self.trace.frame(id.0, request_id, header.operation, received.0);
        let decoded = decode_request(header, body);
        let operation = Operation::from_wire(header.operation);
        match (decoded, operation) {
            (Ok(request), Some(operation)) => {
                if let Err(refused) = self.begin(id, operation, header, body, request, now) {
                    self.refuse(id, operation, request_id, &refused);
                }
            }
            (Err(error @ FrameError::OverLimit { .. }), Some(operation)) => {
                // The frame's end is known: the connection goes on.
                self.refuse(id, operation, request_id, &Refused::frame(&error));
            }
            (Err(error), operation) => {
                self.break_off(id, operation.unwrap_or(Operation::Ping), request_id, &error);
            }
            (Ok(_), None) => unreachable!("only known operations decode"),
        }
    }

    /// Answers a frame that breaks the protocol, then closes.
    fn break_off(&mut self, id: ConnectionId, operation: Operation, request_id: u64, error: &FrameError) {
        self.counters.malformed_frames += 1;
        self.refuse(id, operation, request_id, &Refused::frame(error));
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.phase = Phase::Closing;
        }
    }

    fn refuse(&mut self, id: ConnectionId, operation: Operation, request_id: u64, refused: &Refused) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        refused.append_to(&mut connection.outbound, operation, request_id);
        self.trace.answer(id.0, request_id);
        self.dirty.insert(id);
    }

    fn start_job(&mut self, job: Job) -> u64 {
        let number = self.next_job;
        self.next_job += 1;
        self.trace.link(job.connection.0, job.request_id, number);
        if let Some(deadline) = job.deadline {
            self.deadlines.insert((deadline, number));
        }
        if let Some(connection) = self.connections.get_mut(&job.connection) {
            connection.requests.insert(job.request_id, number);
            connection.owed_bytes += job.owed_bytes + job.key_bytes;
        }
        self.jobs.insert(number, job);
        let level = self.jobs.len() as u64;
        self.counters.requests_in_flight_peak = self.counters.requests_in_flight_peak.max(level);
        number
    }

    fn tag(&self, number: u64) -> Tag {
        Tag { origin: self.core, number }
    }

    /// A shard has answered a command of this hub.
    pub fn on_reply(&mut self, reply: Reply, now: Moment) {
        self.latest = self.latest.max(now);
        let number = reply.tag.number;
        if let Outcome::Disconnected { claims } = reply.outcome {
            return self.on_disconnected(number, claims);
        }
        // Commands that nobody waits for (Cancel, Gone, ...) have no job.
        let Some(job) = self.jobs.get_mut(&number) else { return };
        // The commands of a job go out together, so no key is left here.
        let sent_bytes = std::mem::take(&mut job.key_bytes);
        if let Some(connection) = self.connections.get_mut(&job.connection).filter(|_| sent_bytes > 0) {
            connection.owed_bytes -= sent_bytes;
            // Frames may have waited for this.
            self.dirty.insert(job.connection);
        }
        match job.on_reply(reply) {
            Progress::Wait => {}
            Progress::Next => self.next_batch(number, now),
            Progress::Tell => {
                if let Some(connection) = self.connections.get_mut(&job.connection)
                    && connection.phase != Phase::Closed
                {
                    job.tell(&mut connection.outbound);
                    self.dirty.insert(job.connection);
                }
            }
            Progress::Finish => self.finish(number, now),
        }
    }

    /// The registry has answered.
    pub fn on_registered(&mut self, tag: Tag, outcome: Result<InstanceId, Conflict>) {
        let Some(job) = self.jobs.remove(&tag.number) else { return };
        let Some(connection) = self.connections.get_mut(&job.connection) else { return };
        connection.requests.remove(&job.request_id);
        connection.owed_bytes -= job.owed_bytes + job.key_bytes;
        connection.registering -= 1;
        if connection.phase == Phase::Closed {
            return;
        }
        let Collected::Registering(registered) = job.collected else {
            panic!("the registry answers registrations")
        };
        let start = connection.outbound.len();
        match outcome {
            Ok(instance) => {
                connection.instance = Some(instance);
                let digest = registered.namespace.0;
                connection.registered.push(*registered);
                let namespace = connection.registered.len() as u32 - 1;
                let body = RegisterAnswer { namespace, digest };
                answers::append_answer::<_, answers::OutcomeRecord>(
                    &mut connection.outbound,
                    Operation::Register,
                    job.request_id,
                    false,
                    &body,
                    &[],
                );
                connection.keep_answer(Operation::Register, job.request_id, start, self.latest);
                self.watch_ledger(job.connection);
            }
            Err(conflict) => {
                if connection.registering == 0 && connection.registered.is_empty() {
                    connection.instance_name = None;
                }
                connection.ledger.abandon(job.request_id);
                let refused = Refused::new(Status::Conflict, 0, conflict.to_string());
                refused.append_to(&mut connection.outbound, Operation::Register, job.request_id);
            }
        }
        self.trace.answer(job.connection.0, job.request_id);
        self.dirty.insert(job.connection);
    }

    fn finish(&mut self, number: u64, now: Moment) {
        let mut job = self.jobs.remove(&number).expect("a job finishes once");
        if let Some(deadline) = job.deadline {
            self.deadlines.remove(&(deadline, number));
        }
        if job.refused.is_some()
            && let Some(token) = job.collected.lease()
        {
            // Some shards may have granted what another one refused: the engine never hears of it.
            let connection = job.connection;
            self.broadcast(&|| Command::Release { token, connection });
        }
        let Some(connection) = self.connections.get_mut(&job.connection) else { return };
        connection.requests.remove(&job.request_id);
        connection.owed_bytes -= job.owed_bytes + job.key_bytes;
        if connection.phase == Phase::Closed {
            return;
        }
        let start = connection.outbound.len();
        job.finish(&mut connection.outbound);
        self.counters.queries_left_out += u64::from(job.leaves_out());
        if job.ledgered {
            match job.refused {
                None => connection.keep_answer(job.operation, job.request_id, start, now),
                Some(_) => connection.ledger.abandon(job.request_id),
            }
        }
        let waiting = connection.outbound.len() as u64;
        self.counters.outbound_bytes_peak = self.counters.outbound_bytes_peak.max(waiting);
        self.trace.answer(job.connection.0, job.request_id);
        self.watch_ledger(job.connection);
        self.dirty.insert(job.connection);
    }

    /// Gives a job up: what waits is cancelled at the shards, and answered by what they say.
    fn give_up(&mut self, number: u64, deadline: bool) {
        let tag = self.tag(number);
        let shards = self.greeting.shards;
        let Some(job) = self.jobs.get_mut(&number) else { return };
        // An engine may cancel as often as it likes; one word to the shards is enough.
        if std::mem::replace(&mut job.course, Course::GivenUp) == Course::GivenUp {
            return;
        }
        // A change is done in one step, so it is never half done: only what takes time can be stopped.
        if matches!(job.operation, Operation::Query | Operation::Sync) {
            job.refuse(Refused::stopped(deadline));
        }
        if job.cancel_command(tag, deadline).is_some() {
            let unanswered = self.unanswered_tag();
            let commands = (0..shards)
                .map(|shard| (ShardIndex(shard), unanswered, Command::Cancel { tag, deadline }))
                .collect();
            self.errands.push_back(Errand::Commands(commands));
        }
    }

    /// A tag whose reply nobody waits for.
    fn unanswered_tag(&self) -> Tag {
        self.tag(0)
    }

    /// Lets time pass: requests whose deadline is over are given up, old answers are forgotten; a bounded part of them,
    /// and [`EngineHub::next_deadline`] stays over while there are more.
    pub fn on_time(&mut self, now: Moment) {
        self.latest = self.latest.max(now);
        self.look_at_ledgers(now);
        for _ in 0..DEADLINES_PER_TURN {
            let Some(&(deadline, number)) = self.deadlines.first().filter(|(at, _)| *at <= now) else {
                break;
            };
            self.deadlines.remove(&(deadline, number));
            self.give_up(number, true);
        }
    }

    /// When [`EngineHub::on_time`] has something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        let deadline = self.deadlines.first().map(|&(deadline, _)| deadline);
        let look = self.ledger_looks.first().map(|&(at, _)| at);
        deadline.into_iter().chain(look).min()
    }

    fn broadcast(&mut self, command: &dyn Fn() -> Command) {
        let tag = self.unanswered_tag();
        let commands = (0..self.greeting.shards).map(|shard| (ShardIndex(shard), tag, command())).collect();
        self.errands.push_back(Errand::Commands(commands));
    }

    /// Its counters.
    #[must_use]
    pub fn counters(&self) -> EngineCounters {
        let closed = self.connections.values().filter(|connection| connection.phase == Phase::Closed);
        let closed = closed.count() as u64;
        let mut counters = EngineCounters {
            connections: self.connections.len() as u64 - closed,
            connections_closed_process_alive: closed,
            requests_in_flight: self.jobs.len() as u64,
            ..self.counters
        };
        self.connections.values().for_each(|connection| counters.take_in(connection.ledger.counters()));
        counters
    }
}

/// The time a request may take, from its header.
fn deadline(header: &orbitkv_wire::engine::Header, now: Moment) -> Moment {
    match header.deadline_ms {
        0 => now + DEADLINE_DEFAULT,
        limit => now + Duration::from_millis(u64::from(limit)),
    }
}

#[cfg(test)]
mod tests;
