//! A shard core: one pinned thread that owns a shard, its engine connections and its device, and
//! runs them in turns. It holds rooms and moves what they say between them; it decides nothing.

mod connections;
pub mod device;
mod errands;
pub mod mail;
mod peers;
mod policy;
mod reactor;
pub mod report;
pub mod sockets;
mod wakes;

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use orbitkv_native::arena::Arena;
use orbitkv_native::clock::{boottime_ns, monotonic_ns};
use orbitkv_native::engine_socket::EngineSocket;
use orbitkv_native::ssd_file::SsdFile;
use orbitkv_native::wake::Wake;
use orbitkv_shards::resilience::breaker::Change;
use orbitkv_shards::segment_log::BlockName;
use orbitkv_shards::shard::{Command, Shard, Tag};
use orbitkv_shards::time::Moment;
use rustix::time::{TimerfdClockId, TimerfdFlags};

use crate::engine::EngineHub;
use crate::engine::registry::Registry;
use crate::peers::Peers;
use crate::turns::What;
use device::DeviceDriver;
use mail::{Answer, Incoming, LETTERS_PER_TURN, Letter, Mail};
use report::{CoreReport, TurnCounters};
use sockets::Sockets;

pub use reactor::run;
pub use wakes::{Interest, Next, Ready, Watch};

/// Bytes received at once from one engine; whatever is left waits for the next turn.
const RECEIVE_BYTES: usize = 256 * 1024;

/// Keys that commands of one turn may name before the rest waits: at some 100 ns a key, the slice bound
/// of chapter 2.10. A single command runs whole; requests of many keys are rare, and are counted as stalls.
const UNITS_PER_TURN: usize = 1_024;

/// What letters of other cores leave of a turn to this core's own engines.
const UNITS_FOR_OWN_ENGINES: usize = UNITS_PER_TURN / 2;

/// Acquires, Syncs and Clears that may wait in one shard.
pub const WAITING_MAX: u64 = 8_192;

/// Of those, what may wait for the SSD and for other nodes. A member has half for each, so that however many wait for nodes
/// that are silent, as many are served by its SSD; a standalone node waits for nobody.
#[must_use]
pub const fn waits_max(is_member: bool) -> [u64; 2] {
    let peers = if is_member { WAITING_MAX / 2 } else { 0 };
    [WAITING_MAX - peers, peers]
}

/// Rounds of errands and replies in one turn. A Query goes one batch of 128 keys a round, so a turn
/// stays near the slice bound of chapter 2.10.
const ROUNDS_PER_TURN: usize = 8;

/// Descriptors of a core beside those of its connections: rings, doorbells, timer, watches, device thread.
pub const DESCRIPTORS_PER_CORE: u64 = 16;

/// How long accepting pauses when the process has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Engines accepted in one turn.
const ACCEPTS_PER_TURN: usize = 16;

/// Where in its life a core is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Serving,
    Stopping,
    Ended,
}

/// What a core is made of.
pub struct CoreParts {
    /// Its shard.
    pub shard: Shard,
    /// Its engine channel.
    pub hub: EngineHub,
    /// Its mail. Participants are the cores in order, then control.
    pub mail: Mail,
    /// The arena, to be passed to engines.
    pub arena: Arena,
    /// Its device, with an SSD tier.
    pub device: Option<DeviceDriver>,
    /// The SSD file, to see whether it still has its name.
    pub file: Option<std::sync::Arc<SsdFile>>,
    /// The engine socket, on core 0.
    pub listener: Option<EngineSocket>,
    /// Users whose engines are let in.
    pub engine_uids: Vec<u32>,
    /// What it has to do with peers, in a cluster.
    pub peers: Option<Box<Peers>>,
    /// Whether an idle core spins.
    pub spins: bool,
}

/// A shard core.
pub struct Core {
    parts: CoreParts,
    registry: Registry,
    sockets: Sockets,
    buffer: Vec<u8>,
    again: Wake,
    /// Whether it has been rung and not drained.
    is_rung: bool,
    timer: OwnedFd,
    timer_at: Option<Moment>,
    watches: Vec<Watch>,
    next_core: usize,
    /// When accepting goes on, while it has to wait.
    accept_again_at: Option<Moment>,
    /// Units of work this turn may still begin.
    units_left: usize,
    life: Life,
    turns: TurnCounters,
    /// Version of the settings that hold; 0 is what the flags say.
    policy_version: u64,
}

impl Core {
    /// A core that serves.
    ///
    /// # Errors
    /// If the process has no descriptors left.
    pub fn new(parts: CoreParts) -> io::Result<Core> {
        let timer_flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, timer_flags)?;
        let mut core = Core {
            parts,
            registry: Registry::default(),
            sockets: Sockets::new()?,
            buffer: vec![0; RECEIVE_BYTES],
            again: Wake::new()?,
            is_rung: false,
            timer,
            timer_at: None,
            watches: Vec::new(),
            next_core: 0,
            accept_again_at: None,
            units_left: 0,
            life: Life::Serving,
            turns: TurnCounters::default(),
            policy_version: 0,
        };
        core.watch_own()?;
        Ok(core)
    }

    /// Bytes a core takes beside its rooms, for the memory bill.
    #[must_use]
    pub fn table_bytes() -> u64 {
        RECEIVE_BYTES as u64
    }

    /// Whether the core has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.life == Life::Ended
    }

    fn index(&self) -> usize {
        usize::from(self.parts.shard.index().0)
    }

    /// One turn: takes in what is ready, lets the rooms work, sends what they say.
    pub fn on_ready(&mut self, ready: Ready) -> Next {
        let start = monotonic_ns();
        let now = Moment(start);
        self.parts.hub.trace.begin_turn(start);
        let next = self.take_in(ready, now);
        self.lap(What::Wake);
        self.turn(now);
        let ns = monotonic_ns().saturating_sub(start);
        self.turns.record(ns);
        self.parts.hub.trace.end_turn(start, ns, ready.woken());
        next
    }

    fn take_in(&mut self, ready: Ready, now: Moment) -> Next {
        match ready {
            Ready::Mail => {
                self.parts.mail.wake().drain();
            }
            Ready::Again => {
                self.again.drain();
                self.is_rung = false;
            }
            Ready::Timer => {
                let mut expirations = [0; 8];
                let _ = rustix::io::read(&self.timer, &mut expirations);
                self.timer_at = None;
                self.parts.shard.on_time(now);
                self.parts.hub.on_time(now);
                self.resume_accepting(now);
            }
            Ready::Device => {}
            Ready::Datagrams => self.wake_peers(),
            Ready::PeerSockets => self.wake_peer_sockets(),
            Ready::Listener => return self.accept_some(now),
            Ready::Processes => {
                for id in self.sockets.take_deaths() {
                    self.sockets.remove(id);
                    self.parts.hub.on_process_gone(id);
                }
            }
            Ready::Receive(id) => return self.receive(id, now),
            Ready::Send(id) => {
                if let Some(stream) = self.sockets.get_mut(id) {
                    stream.watched = stream.watched.without(Interest::Write);
                }
                self.flush(id, now);
                return Next::Stop;
            }
        }
        Next::Again
    }

    fn turn(&mut self, now: Moment) {
        self.units_left = UNITS_PER_TURN;
        self.parts.shard.hear(now);
        let mut left_over = self.read_mail(now);
        self.lap(What::Mail);
        if self.parts.shard.has_work() {
            self.parts.shard.step();
            self.lap(What::Steps);
        }
        let stopping = self.life != Life::Serving;
        // What completes makes answers: it waits while others have not gone out, but not for ever.
        let answers_wait = self.parts.mail.owes_answers() && !stopping;
        if let Some(driver) = self.parts.device.as_mut().filter(|_| !answers_wait) {
            left_over |= driver.step(&mut self.parts.shard, &mut self.parts.hub.trace, stopping);
        }
        self.tell_lost();
        self.lap(What::Device);
        self.tell_device_changes();
        let mut rounds = 0;
        loop {
            let (worked, cut_short) = self.run_errands(now);
            let busy = worked | self.deliver_replies(now);
            left_over |= cut_short;
            if !busy {
                break;
            }
            rounds += 1;
            if rounds == ROUNDS_PER_TURN {
                left_over = true;
                break;
            }
        }
        self.lap(What::Rounds);
        if rounds > 0
            && let Some(driver) = self.parts.device.as_mut().filter(|_| !answers_wait)
        {
            left_over |= driver.step_again(&mut self.parts.shard, &mut self.parts.hub.trace, stopping);
            left_over |= self.deliver_replies(now);
            self.lap(What::Device);
        }
        for id in self.parts.hub.take_dirty() {
            self.flush(id, now);
        }
        self.lap(What::Sockets);
        left_over |= !stopping && self.turn_peers(now);
        // What peers have decided is told in the next turn, which comes at once.
        left_over |= !stopping && self.parts.shard.has_replies();
        left_over |= self.parts.mail.flush() | (!stopping && self.parts.shard.has_work());
        self.arm_timer();
        self.end_if_quiet();
        if (left_over || self.parts.spins) && self.life != Life::Ended {
            self.ring_again();
        }
        self.lap(What::Close);
    }

    fn lap(&mut self, part: What) {
        self.parts.hub.trace.lap(part);
    }

    /// Names accepted blocks that were found lost, for whoever looks after the device.
    fn tell_lost(&mut self) {
        while let Some(lost) = self.parts.shard.poll_lost() {
            let BlockName { namespace, group, block } = lost.block;
            let (sequence, cause, finder) = (lost.sequence.0, lost.cause, lost.finder);
            tracing::error!(core = self.index(), %namespace, group = group.0, %block, sequence, ?cause, ?finder, "lost write");
        }
    }

    /// Says when the device is left alone and when it is used again.
    fn tell_device_changes(&mut self) {
        while let Some(change) = self.parts.shard.poll_device_change() {
            let core = self.index();
            match change {
                Change::Opened { .. } => {
                    tracing::warn!(core, "the SSD fails or is too slow: it is left alone");
                }
                Change::Closed => tracing::info!(core, "the SSD answers again"),
            }
        }
    }

    fn read_mail(&mut self, now: Moment) -> bool {
        for _ in 0..LETTERS_PER_TURN {
            if self.units_left <= UNITS_FOR_OWN_ENGINES {
                return true;
            }
            match self.parts.mail.receive() {
                None => return false,
                Some(Incoming::Answer(answer)) => self.on_answer(answer, now),
                Some(Incoming::Letter(from, letter)) => {
                    if let Letter::Command(command) = &letter {
                        self.units_left = self.units_left.saturating_sub(command.1.units());
                    }
                    self.on_letter(from, letter, now);
                }
            }
        }
        true
    }

    fn on_letter(&mut self, from: usize, letter: Letter, now: Moment) {
        match letter {
            Letter::Command(command) => {
                let (tag, command) = *command;
                self.execute(tag, command, now);
            }
            Letter::Register(question) => {
                let (tag, registration) = *question;
                self.parts.hub.trace.execute(tag);
                let outcome = Box::new(self.registry.register(registration));
                self.parts.mail.answer(from, Answer::Registered(tag, outcome));
            }
            Letter::Unregister(connection) => self.registry.on_gone(connection),
            Letter::Connection(stream) => self.serve(*stream),
            Letter::Abandoned { connection, process } => self.on_abandoned(connection, process),
            Letter::Report(tag) => {
                let report = Box::new(self.report(now));
                self.parts.mail.answer(from, Answer::Report(tag, report));
            }
            Letter::Namespaces(page) => {
                let namespaces = Box::new(self.registry.namespaces(&page.after, page.limit));
                self.parts.mail.answer(from, Answer::Namespaces(page.tag, namespaces));
            }
            Letter::Drain => {
                self.parts.hub.drain();
                self.parts.shard.execute(self.own_tag(), Command::Drain, now);
            }
            Letter::DrainProgress(left) => self.parts.hub.on_drain_progress(*left),
            Letter::Life(..)
            | Letter::Permit(..)
            | Letter::Excluded(..)
            | Letter::Owners(..)
            | Letter::Readings(..)
            | Letter::Samples(..)
            | Letter::FailBack => {
                self.on_peers_letter(from, letter, now);
            }
            Letter::Turns(question) => {
                let page = Box::new(self.parts.hub.trace.page(&question));
                self.parts.mail.answer(from, Answer::Turns(question.tag, self.parts.shard.index(), page));
            }
            Letter::Policy(policy) => self.take_policy(*policy, now),
            Letter::Stop => {
                self.life = Life::Stopping;
                self.parts.listener = None;
            }
        }
    }

    fn on_answer(&mut self, answer: Answer, now: Moment) {
        match answer {
            Answer::Reply(reply) => self.parts.hub.on_reply(*reply, now),
            Answer::Registered(tag, outcome) => self.parts.hub.on_registered(tag, *outcome),
            Answer::Report(..)
            | Answer::Namespaces(..)
            | Answer::Owners(..)
            | Answer::Readings(..)
            | Answer::Samples(..)
            | Answer::Turns(..)
            | Answer::Lowered(..)
            | Answer::Doubted(..)
            | Answer::Lookup(..)
            | Answer::Stopped
            | Answer::DrainRequested => panic!("cores send these to control only"),
        }
    }

    /// Carries a command out on this core's shard.
    fn execute(&mut self, tag: Tag, command: Command, now: Moment) {
        let CoreParts { shard, hub, .. } = &mut self.parts;
        hub.trace.execute(tag);
        shard.execute(tag, command, now);
        hub.trace.take_stages(shard);
        self.note_head();
    }

    /// A tag whose reply nobody waits for.
    fn own_tag(&self) -> Tag {
        Tag { origin: self.parts.shard.index(), number: 0 }
    }

    fn report(&self, now: Moment) -> CoreReport {
        let head = self.parts.shard.head();
        let peers = self.parts.peers.as_ref();
        CoreReport {
            figures: self.parts.shard.figures(),
            engine: self.parts.hub.counters(),
            turns: self.turns,
            policy_version: self.policy_version,
            mail: self.parts.mail.peaks(),
            device_peak: self.parts.device.as_ref().map_or(0, |driver| u64::from(driver.peak())),
            file_deleted: self.parts.file.as_ref().is_some_and(|file| file.is_deleted().unwrap_or(false)),
            peers: peers.map(|peers| peers.report(head, now, Moment(boottime_ns()))),
        }
    }

    /// Control's number among the participants: the one after the last core.
    fn control(&self) -> usize {
        self.parts.mail.participants() - 1
    }

    fn deliver_replies(&mut self, now: Moment) -> bool {
        let mut delivered = false;
        while let Some(mut reply) = self.parts.shard.poll_reply() {
            delivered = true;
            self.add_peers(&mut reply, now);
            let origin = usize::from(reply.tag.origin.0);
            if reply.tag.number == 0 {
                continue;
            } else if origin == self.index() {
                self.parts.hub.on_reply(reply, now);
            } else {
                self.parts.mail.answer(origin, Answer::Reply(Box::new(reply)));
            }
        }
        delivered
    }

    /// A stopping core ends once its device has nothing in flight: operations own their buffers.
    fn end_if_quiet(&mut self) {
        if self.life != Life::Stopping {
            return;
        }
        let in_flight = self.parts.device.as_ref().map_or(0, |driver| driver.device().in_flight());
        if in_flight == 0 {
            self.life = Life::Ended;
            self.sockets.open().into_iter().for_each(|id| self.sockets.close(id));
            let control = self.control();
            self.parts.mail.answer(control, Answer::Stopped);
            self.parts.mail.flush();
            // The main task watches the doorbell: ring it, so that it sees the end.
            self.parts.mail.wake().ring();
        }
    }
}
