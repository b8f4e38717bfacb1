//! The events of one core: a bounded store that is made at start, if at all.
//!
//! What finds it full is not stored, and counted: a run in which that happened proves nothing. Events are numbered from 1,
//! so that a reader can page through them, and forgets what it has to make room for more.
//!
//! Requests are known to the engine channel by (session, request id); shards know them by the number of their job, which
//! the event of their start tells.

use std::collections::VecDeque;

use orbitkv_native::clock::monotonic_ns;
use orbitkv_shards::shard::{Shard, Stage, StageNote, Tag};

use super::{PAGE_EVENTS_MAX, SLICE_NS_MIN, What, Woken};

/// Latest events that a further one is added to if it says the same of another block.
const MERGE_EVENTS: usize = 16;

/// Answers on their way that there is room for from the start.
const ANSWERS_MADE: usize = 1_024;

/// Bits of a session below the index of its core.
const CORE_BITS: u32 = 48;

/// Something that happened at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, in nanoseconds of `CLOCK_MONOTONIC`; of a turn or a slice, when it began.
    pub at_ns: u64,
    /// Connection of the engine. Of what is told by job only its core: the index in the upper 16 bits.
    pub session: u64,
    /// The engine's number of the request.
    pub request: u64,
    /// Of a turn or a slice, how long it took in nanoseconds. Else the number of the job, its lower half; 0 for none.
    pub number: u32,
    /// Receive: the operation. Turn: what woke the core. What is told by job: of how many blocks or commands.
    pub count: u16,
    /// What happened.
    pub what: What,
}

const _: () = assert!(size_of::<Event>() == 32, "half a cache line");

/// What is wanted of a core's events.
#[derive(Clone, Copy, Debug)]
pub struct TurnsQuestion {
    /// Who asks.
    pub tag: Tag,
    /// Number of the last event that the asker has.
    pub after: u64,
    /// Most events, [`PAGE_EVENTS_MAX`] at most.
    pub limit: u32,
    /// Events up to this number may go, and those without room are counted anew; 0 for none.
    pub forget_through: u64,
}

/// A page of a core's events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnsAnswer {
    /// Events that fit.
    pub capacity: usize,
    /// Events there are.
    pub held: usize,
    /// Events that found no room since the core forgot last.
    pub lost: u64,
    /// Number of the first one below, whether or not there is one.
    pub first: u64,
    /// Events from there on.
    pub events: Vec<Event>,
}

/// A core's events, if it records any. Without, each call costs one branch.
#[derive(Debug, Default)]
pub struct Trace(Option<Box<Recorder>>);

impl Trace {
    /// With room for so many events.
    #[must_use]
    pub fn with_room(events: usize) -> Trace {
        Trace(Some(Box::new(Recorder::new(events))))
    }

    /// Bytes of it on one of `shards` cores, for the memory bill.
    #[must_use]
    pub fn table_bytes(shards: u16) -> u64 {
        let events = super::share(shards, 0);
        (events * size_of::<Event>() + ANSWERS_MADE.min(events) * size_of::<(u64, u64)>()) as u64
    }

    /// Whether anything is recorded.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// A turn begins.
    #[inline]
    pub fn begin_turn(&mut self, at_ns: u64) {
        if let Some(recorder) = &mut self.0 {
            recorder.begin_turn(at_ns);
        }
    }

    /// A part of the turn is over; the next one begins.
    #[inline]
    pub fn lap(&mut self, part: What) {
        if let Some(recorder) = &mut self.0 {
            recorder.lap(part, monotonic_ns());
        }
    }

    /// The turn that began at `at_ns` took `ns`.
    #[inline]
    pub fn end_turn(&mut self, at_ns: u64, ns: u64, woken: Woken) {
        if let Some(recorder) = &mut self.0 {
            recorder.end_turn(at_ns, ns, woken);
        }
    }

    /// A frame that was whole at `received_ns` is looked at.
    #[inline]
    pub fn frame(&mut self, session: u64, request: u64, operation: u8, received_ns: u64) {
        if let Some(recorder) = &mut self.0 {
            let event = Event {
                at_ns: received_ns,
                session,
                request,
                number: 0,
                count: u16::from(operation),
                what: What::Receive,
            };
            recorder.push(event);
            recorder.push(Event { at_ns: monotonic_ns(), count: 0, what: What::Start, ..event });
        }
    }

    /// The request that was just looked at has become a job.
    #[inline]
    pub fn link(&mut self, session: u64, request: u64, job: u64) {
        if let Some(recorder) = &mut self.0 {
            recorder.link(session, request, job);
        }
    }

    /// The last of a request's answer lies with its connection.
    #[inline]
    pub fn answer(&mut self, session: u64, request: u64) {
        if let Some(recorder) = &mut self.0 {
            recorder.answer(session, request);
        }
    }

    /// All that lay with a connection has gone to its socket.
    #[inline]
    pub fn respond(&mut self, session: u64) {
        if let Some(recorder) = &mut self.0 {
            recorder.respond(session, monotonic_ns);
        }
    }

    /// What lies with a connection never goes anywhere.
    #[inline]
    pub fn drop_answers(&mut self, session: u64) {
        if let Some(recorder) = &mut self.0 {
            recorder.answered.retain(|(of, _)| *of != session);
        }
    }

    /// A shard begins a command.
    #[inline]
    pub fn execute(&mut self, tag: Tag) {
        if let Some(recorder) = &mut self.0
            && tag.number != 0
        {
            recorder.push(of_job(What::Execute, tag, monotonic_ns()));
        }
    }

    /// Takes what a shard says of device work for requests.
    #[inline]
    pub fn take_stages(&mut self, shard: &mut Shard) {
        if let Some(recorder) = &mut self.0 {
            recorder.stages(std::iter::from_fn(|| shard.poll_stage()), monotonic_ns);
        }
    }

    /// A page; none if nothing is recorded.
    pub fn page(&mut self, question: &TurnsQuestion) -> Option<TurnsAnswer> {
        let recorder = self.0.as_mut()?;
        recorder.forget(question.forget_through);
        let limit = (question.limit as usize).min(PAGE_EVENTS_MAX);
        let page = recorder.page(question.after, limit);
        if question.forget_through > 0 {
            // Whoever forgets has been told, and begins anew.
            recorder.lost = 0;
        }
        Some(page)
    }
}

fn of_job(what: What, tag: Tag, at_ns: u64) -> Event {
    let session = u64::from(tag.origin.0) << CORE_BITS;
    Event { at_ns, session, request: 0, number: tag.number as u32, count: 1, what }
}

/// The store itself.
#[derive(Debug)]
struct Recorder {
    capacity: usize,
    held: VecDeque<Event>,
    /// Requests whose answers wait for their sockets; each has its place in `held` already.
    answered: Vec<(u64, u64)>,
    forgotten: u64,
    lost: u64,
    lap_ns: u64,
    /// Events there had been when the turn began, lost ones too.
    before_turn: u64,
}

impl Recorder {
    fn new(capacity: usize) -> Recorder {
        let blank = Event { at_ns: 0, session: 0, request: 0, number: 0, count: 0, what: What::Turn };
        // Written once, so that no page of it is first touched in a turn.
        let mut held: VecDeque<Event> = std::iter::repeat_n(blank, capacity).collect();
        held.clear();
        Recorder {
            capacity,
            held,
            answered: Vec::with_capacity(capacity.min(ANSWERS_MADE)),
            forgotten: 0,
            lost: 0,
            lap_ns: 0,
            before_turn: 0,
        }
    }

    fn has_room(&mut self) -> bool {
        let has_room = self.held.len() + self.answered.len() < self.capacity;
        self.lost += u64::from(!has_room);
        has_room
    }

    fn push(&mut self, event: Event) {
        if self.has_room() {
            self.held.push_back(event);
        }
    }

    fn seen(&self) -> u64 {
        self.forgotten + (self.held.len() + self.answered.len()) as u64 + self.lost
    }

    fn begin_turn(&mut self, at_ns: u64) {
        self.lap_ns = at_ns;
        self.before_turn = self.seen();
    }

    fn lap(&mut self, part: What, now_ns: u64) {
        let began_ns = std::mem::replace(&mut self.lap_ns, now_ns);
        let ns = now_ns.saturating_sub(began_ns);
        if ns >= SLICE_NS_MIN {
            self.push(span(part, began_ns, ns, 0));
        }
    }

    fn end_turn(&mut self, at_ns: u64, ns: u64, woken: Woken) {
        // A turn that found nothing, of which a core that spins has a million a second.
        if ns >= SLICE_NS_MIN || self.seen() > self.before_turn {
            self.push(span(What::Turn, at_ns, ns, woken as u16));
        }
    }

    fn link(&mut self, session: u64, request: u64, job: u64) {
        if let Some(last) = self.held.back_mut()
            && (last.what, last.session, last.request) == (What::Start, session, request)
        {
            last.number = job as u32;
        }
    }

    fn answer(&mut self, session: u64, request: u64) {
        if self.has_room() {
            self.answered.push((session, request));
        }
    }

    fn respond(&mut self, session: u64, now_ns: impl FnOnce() -> u64) {
        if !self.answered.iter().any(|(of, _)| *of == session) {
            return;
        }
        let at_ns = now_ns();
        let held = &mut self.held;
        self.answered.retain(|&(of, request)| {
            if of == session {
                let what = What::Respond;
                held.push_back(Event { at_ns, session, request, number: 0, count: 0, what });
            }
            of != session
        });
    }

    fn stages(&mut self, notes: impl Iterator<Item = StageNote>, now_ns: impl Fn() -> u64) {
        let mut at_ns = None;
        for StageNote { tag, stage } in notes {
            let at_ns = *at_ns.get_or_insert_with(&now_ns);
            let what = match stage {
                Stage::WriteBackQueued => What::WriteBackEnqueue,
                Stage::WriteBackTaken => What::WriteBackDequeue,
                Stage::WriteBackEnded => What::WriteBackComplete,
                Stage::DeviceQueued => What::SsdEnqueue,
                Stage::DeviceTaken => What::SsdDequeue,
                Stage::DeviceEnded => What::SsdComplete,
                Stage::Unfollowed => {
                    self.lost += 1;
                    continue;
                }
            };
            let event = of_job(what, tag, at_ns);
            let is_same = |other: &&mut Event| Event { count: 1, ..**other } == event;
            match self.held.iter_mut().rev().take(MERGE_EVENTS).find(is_same) {
                Some(same) => same.count = same.count.saturating_add(1),
                None => self.push(event),
            }
        }
    }

    fn forget(&mut self, through: u64) {
        let count = through.saturating_sub(self.forgotten).min(self.held.len() as u64);
        self.held.drain(..count as usize);
        self.forgotten += count;
    }

    fn page(&self, after: u64, limit: usize) -> TurnsAnswer {
        let newest = self.forgotten + self.held.len() as u64;
        let known = (after.clamp(self.forgotten, newest) - self.forgotten) as usize;
        TurnsAnswer {
            capacity: self.capacity,
            held: self.held.len(),
            lost: self.lost,
            first: self.forgotten + known as u64 + 1,
            events: self.held.range(known..).take(limit).copied().collect(),
        }
    }
}

fn span(what: What, at_ns: u64, ns: u64, count: u16) -> Event {
    let number = u32::try_from(ns).unwrap_or(u32::MAX);
    Event { at_ns, session: 0, request: 0, number, count, what }
}

#[cfg(test)]
mod tests;
