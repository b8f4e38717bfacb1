//! The requester's room of peer recovery: brings blocks that peers have into slots of this core's arena
//! (chapters 3.2 and 3.5).
//!
//! A fetch begins with candidates that the index listed, best first. They are hints: the source alone knows
//! what is still there. What waits for one source is asked for together, in operations on one payload
//! connection; what its source refuses, or what is lost on the way, goes on to the next candidate. No
//! failure there is a reason to touch the index.
//!
//! # Who writes into a slot
//! The driver writes payload; it asks [`Fetcher::destination`] for every piece, writes it before it calls
//! anything else of the room, and throws it away if there is none. A fetch is in at most one operation, and
//! an operation that ended or gave a fetch up has no destination for it any more. So at the moment a fetch
//! is reported, or goes on to another candidate, nothing can write into its slot: no proof is needed but that we
//! stop reading.
//!
//! # Who reads in a source's arena
//! Over shared memory the driver is told what to read, and asks for the destination before every step of it:
//! there is none once the grant's time is over. An operation that ended, however it did, is released: from then on
//! the driver reads nothing of it, and owes its source the word that it does not, until the source has answered.

mod answers;
mod asking;
mod background;
mod effect;
mod figures;
mod guard;
mod laws;
mod lines;
mod membership;
mod modes;
mod operation;
mod order;
mod payload;
mod routing;
mod settings;
mod shedding;
mod steps;
mod taking_back;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use orbitkv_wire::engine::answers::BlockOutcome;
use orbitkv_wire::identity::{Incarnation, Medium, NodeId};
use orbitkv_wire::inventory::SourceStream;
use orbitkv_wire::payload::Transport;

use crate::flow::credits::Credits;
use crate::flow::pacing::{PacedTime, Pacer, Rate};
use crate::members::{Local, MemberMap};
use crate::planner::TrialOutcome;
use crate::residents::CopyId;
use crate::resilience::compensation::Workflow;
use crate::resilience::gate::{Class, Shedder};
use crate::time::Moment;

use guard::Guard;
use lines::{Line, LineId};
use modes::Modes;
use operation::Operation;
use order::{Attempt, Fetch, Place, Turn};
use taking_back::Draining;

pub use effect::{CloseCause, ConnectionId, Destination, DialId, FetcherEffect, StreamEnd, Violation};
pub use figures::FetcherFigures;
pub use guard::{BreakerStanding, EXTRA_BURST, GuardSettings};
pub use modes::SourceStanding;
pub use order::{CANDIDATES_MAX, Candidate, Order};
pub use settings::{FETCH_TIME_MAX, FetcherSettings};

/// What is due at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// A fetch has had its time.
    Deadline(CopyId),
    /// A fetch may try a route that rested.
    Retry(CopyId),
    /// An operation may stand still.
    Stall(u64),
    /// The stream of a cancelled operation should have ended.
    Drain(u64),
    /// A connection may be idle.
    Idle(LineId),
}

/// All fetches of one core from peers.
#[derive(Debug)]
pub struct Fetcher {
    settings: FetcherSettings,
    /// The steps of a recovery, in the order in which they are taken back from the end.
    workflow: Arc<Workflow>,
    /// Of operations: drawn at random once for this room.
    origin: u64,
    /// The life this node speaks for, if it has one.
    local: Option<Local>,
    members: MemberMap,
    /// Whether members are known and what is known still holds.
    is_valid: bool,
    /// Lives that their successors told to be over, while members do not show it.
    excluded: BTreeMap<NodeId, Incarnation>,
    doubted: BTreeMap<NodeId, Incarnation>,

    fetches: BTreeMap<CopyId, Fetch>,
    fetches_made: u64,
    unplaced: BTreeSet<Turn>,
    lines: BTreeMap<LineId, Line>,
    lines_made: u64,
    by_source: BTreeMap<SourceStream, LineId>,
    by_connection: BTreeMap<ConnectionId, LineId>,
    /// Dials that nobody has answered, for lines that may be gone.
    dials: BTreeMap<DialId, LineId>,
    dials_made: u64,
    /// Lines to be dialed, in the order of their wishes.
    to_dial: VecDeque<LineId>,
    operations: BTreeMap<u64, Operation>,
    operations_made: u64,
    /// Operations that nobody wants and whose streams have not ended: what they were asked for may still come.
    draining: BTreeMap<u64, Draining>,
    /// Bytes that are asked for and may still come, by operation.
    window: Credits<u64>,
    /// What may be asked for in time, if a rate is kept.
    pacer: Option<Pacer>,
    paced: PacedTime,
    /// When what waits for the rate may be asked for.
    paced_until: Option<Moment>,
    /// Of those, bytes for which nobody waited.
    background_bytes: u64,
    /// Fetches that have not ended and for which nobody waits.
    background: usize,
    shedder: Shedder,
    /// When what nobody waits for has waited behind demand for too long.
    sheds_at: Option<Moment>,
    guard: Guard,
    modes: Modes,

    /// Until when it is known what sources have said: what came later may not be read yet.
    heard: Moment,
    /// Since when more has come than was read, if not all of it is.
    behind_since: Option<Moment>,

    timers: BTreeSet<(Moment, Timer)>,
    /// Whether a turn has something to do whatever the time is.
    is_due: bool,
    effects: VecDeque<FetcherEffect>,
    figures: FetcherFigures,
}

impl Fetcher {
    /// A core without a life: what begins before [`Fetcher::on_registered`] and [`Fetcher::on_members`]
    /// fails. `origin` is drawn at random.
    ///
    /// # Panics
    /// If a bound leaves no room for anything, or a step of a recovery stands before what it needs.
    #[must_use]
    pub fn new(settings: FetcherSettings, origin: u64) -> Fetcher {
        settings.assert_valid();
        Fetcher {
            settings,
            workflow: Arc::new(Workflow::recovery()),
            origin,
            local: None,
            members: MemberMap::default(),
            is_valid: false,
            excluded: BTreeMap::new(),
            doubted: BTreeMap::new(),
            fetches: BTreeMap::new(),
            fetches_made: 0,
            unplaced: BTreeSet::new(),
            lines: BTreeMap::new(),
            lines_made: 0,
            by_source: BTreeMap::new(),
            by_connection: BTreeMap::new(),
            dials: BTreeMap::new(),
            dials_made: 0,
            to_dial: VecDeque::new(),
            operations: BTreeMap::new(),
            operations_made: 0,
            draining: BTreeMap::new(),
            window: Credits::new(settings.bytes_max),
            pacer: settings.rate.map(Pacer::new),
            paced: PacedTime::default(),
            paced_until: None,
            background_bytes: 0,
            background: 0,
            shedder: Shedder::with_deadlines(settings.fetches_max as u64),
            sheds_at: None,
            guard: Guard::new(settings.guard),
            modes: Modes::default(),
            heard: Moment(0),
            behind_since: None,
            timers: BTreeSet::new(),
            is_due: false,
            effects: VecDeque::new(),
            figures: FetcherFigures::default(),
        }
    }

    /// Begins to bring a block, until `deadline`. It ends with one Fetched or Failed, not before the next
    /// turn. Of the candidates, best first, those with another length are no candidates, and at most
    /// [`CANDIDATES_MAX`] are looked at. It fails as busy if too many have not ended ([`FetcherSettings::fetches_max`]).
    ///
    /// # Panics
    /// If the copy is being fetched, or has no bytes.
    pub fn begin(&mut self, order: Order, candidates: &[Candidate], deadline: Moment, now: Moment) {
        assert!(order.bytes > 0, "a block has bytes");
        assert!(!self.fetches.contains_key(&order.copy), "a copy is fetched once at a time");
        self.figures.begun += 1;
        self.is_due = true;
        let is_background = order.class == Class::Background;
        self.figures.begun_background += u64::from(is_background);
        let is_too_large = is_background && order.bytes > self.settings.background_bytes_max;
        if self.is_shed(order.class) || is_too_large {
            self.report_failure(order.copy, BlockOutcome::Busy);
            return;
        }
        self.fetches_made += 1;
        let fetch = Fetch::new(order, candidates, deadline, (self.fetches_made, now));
        self.timers.insert((deadline, Timer::Deadline(order.copy)));
        self.unplaced.insert(fetch.turn());
        self.fetches.insert(order.copy, fetch);
        self.background += usize::from(is_background);
        self.figures.fetches_peak = self.figures.fetches_peak.max(self.fetches.len() as u64);
    }

    /// Gives a fetch up: it fails as cancelled, at once. Nothing happens if it has ended already. Whoever
    /// cancels asks before whether it is wanted again meanwhile ([`crate::shard::Shard::is_wanted`]).
    pub fn cancel(&mut self, copy: CopyId) {
        if self.fetches.contains_key(&copy) {
            self.fail(copy, BlockOutcome::Cancelled);
        }
    }

    /// As [`Fetcher::cancel`], because the time of the last who waited for it is over: the step that used it is told.
    pub fn expire(&mut self, copy: CopyId, now: Moment) {
        if self.fetches.contains_key(&copy) {
            self.run_out(copy, BlockOutcome::Cancelled, now);
        }
    }

    /// The time of a fetch is over. It counts against its source only if that had some.
    fn run_out(&mut self, copy: CopyId, outcome: BlockOutcome, now: Moment) {
        let since = self.fetches[&copy].attempt.map(|attempt| attempt.since);
        if since.is_some_and(|since| now.since(since) >= self.least_patience()) {
            self.report_trial(copy, TrialOutcome::TimedOut);
        }
        self.blame(copy, now);
        self.fail(copy, outcome);
    }

    /// Told before every turn: whether all that sources have sent is with the room. While it is not, nobody is
    /// blamed for silence, but for the budget of a call at most: who never gets to the end of it waits no longer.
    pub fn on_read(&mut self, is_all: bool, now: Moment) {
        let since = *self.behind_since.get_or_insert(now);
        if is_all || now.since(since) >= self.settings.stall_wait {
            self.heard = now;
            self.behind_since = None;
        }
    }

    /// One bounded slice of what is due: deadlines, routes for what waits, dials, and new operations. True
    /// if more is due now. Due after every input: fetches that begin before one turn are asked for
    /// together.
    pub fn turn(&mut self, now: Moment) -> bool {
        self.fire_timers(now);
        self.settle_calls(now);
        self.place(now);
        self.dial(now);
        let more = self.ask(now) | self.shed_waiting(now);
        self.is_due = more || !self.unplaced.is_empty() || self.has_fired(now);
        self.assert_counts();
        self.is_due
    }

    /// The next thing to do outside.
    pub fn poll_effect(&mut self) -> Option<FetcherEffect> {
        self.effects.pop_front()
    }

    /// When the next turn has something to do; the beginning of time if it is now.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        let timer = self.timers.first().map(|(due, _)| *due);
        if self.is_due {
            Some(Moment(0))
        } else {
            timer.into_iter().chain(self.paced_until).chain(self.sheds_at).min()
        }
    }

    /// Fetches that have not ended.
    #[must_use]
    pub fn fetches(&self) -> usize {
        self.fetches.len()
    }

    /// Payload connections that are open or dialed.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.by_connection.len() + self.dials.len()
    }

    /// Payload bytes that are asked for and may still come, wanted or not.
    #[must_use]
    pub fn bytes_outstanding(&self) -> u64 {
        self.window.in_use_bytes()
    }

    /// What the room has counted, and what is so now.
    #[must_use]
    pub fn figures(&self) -> FetcherFigures {
        FetcherFigures {
            rate: self.settings.rate.map_or(0, Rate::bytes_a_second),
            bytes_window: self.settings.bytes_max,
            bytes_outstanding: self.window.in_use_bytes(),
            bytes_queued: self.lines.values().map(|line| line.queued_bytes).sum(),
            bytes_draining: self.window.expired_bytes(),
            paced: self.paced.total(),
            ..self.figures
        }
    }

    fn has_fired(&self, now: Moment) -> bool {
        self.timers.first().is_some_and(|(due, _)| *due <= now)
    }

    fn fire_timers(&mut self, now: Moment) {
        for _ in 0..self.settings.placed_per_turn {
            if !self.has_fired(now) {
                return;
            }
            let (_, timer) = self.timers.pop_first().expect("one has fired");
            match timer {
                Timer::Deadline(copy) => self.run_out(copy, BlockOutcome::DeadlineExceeded, now),
                Timer::Retry(copy) => self.unplace(copy),
                Timer::Stall(number) => self.on_stall(number, now),
                Timer::Drain(number) => self.on_undrained(number, now),
                Timer::Idle(line) => self.on_idle(line, now),
            }
        }
    }

    /// A fetch has brought its block.
    fn succeed(&mut self, copy: CopyId, checksum: u64, transport: Transport) {
        let (medium, bytes) = {
            let fetch = &self.fetches[&copy];
            (fetch.current.map_or(Medium::Dram, |candidate| candidate.medium), fetch.order.bytes)
        };
        self.report_trial(copy, TrialOutcome::Usable);
        self.remove(copy);
        self.figures.fetched += 1;
        self.figures.bytes_fetched += bytes;
        if transport == Transport::Shm {
            self.figures.fetched_shm += 1;
            self.figures.bytes_fetched_shm += bytes;
        }
        self.effects.push_back(FetcherEffect::Fetched { copy, medium, checksum });
    }

    /// The current route of a fetch has ended, if it has one.
    fn report_trial(&mut self, copy: CopyId, outcome: TrialOutcome) {
        let fetch = &self.fetches[&copy];
        let Some(attempt) = fetch.attempt.filter(|_| fetch.current.is_some()) else { return };
        let Attempt { candidate, since, ahead_bytes, is_warm } = attempt;
        let tried = FetcherEffect::Tried { copy, candidate, ahead_bytes, since, is_warm, outcome };
        self.effects.push_back(tried);
    }

    fn report_failure(&mut self, copy: CopyId, outcome: BlockOutcome) {
        let figures = &mut self.figures;
        *match outcome {
            BlockOutcome::Busy => &mut figures.busy,
            BlockOutcome::Corrupt => &mut figures.corrupt,
            BlockOutcome::DeviceError => &mut figures.device_error,
            BlockOutcome::DeadlineExceeded => &mut figures.deadline,
            BlockOutcome::Cancelled => &mut figures.cancelled,
            BlockOutcome::Missing | BlockOutcome::Ready => &mut figures.missing,
        } += 1;
        self.effects.push_back(FetcherEffect::Failed { copy, outcome });
    }

    /// Takes a fetch from wherever it is. What was asked for it is thrown away when it comes.
    fn remove(&mut self, copy: CopyId) {
        self.leave(copy);
        let fetch = self.fetches.remove(&copy).expect("a fetch ends once");
        self.background -= usize::from(fetch.order.class == Class::Background);
        self.timers.remove(&(fetch.deadline, Timer::Deadline(copy)));
        self.is_due = true;
    }

    /// Takes a fetch from its place; whoever calls gives it another one, or ends it.
    fn leave(&mut self, copy: CopyId) {
        let fetch = &self.fetches[&copy];
        let turn = fetch.turn();
        match fetch.place {
            Place::Unplaced => drop(self.unplaced.remove(&turn)),
            Place::Resting(until) => drop(self.timers.remove(&(until, Timer::Retry(copy)))),
            Place::Queued(line) => self.leave_queue(line, turn),
            Place::Asked { operation, index } => self.give_up(operation, index),
        }
    }

    /// Lets a fetch look for a route.
    fn unplace(&mut self, copy: CopyId) {
        let fetch = self.fetches.get_mut(&copy).expect("a fetch that looks for a route");
        fetch.place = Place::Unplaced;
        self.unplaced.insert(fetch.turn());
        self.is_due = true;
    }
}
