//! Events of all cores of a node, joined: each request with its stages in order, and what its core did in any stretch of
//! time.
//!
//! A core does one thing at a time, so a stretch divides into parts of turns, the rest of those turns, and time without a
//! turn, in which the core slept or another process had its processor. That is all a slow request can have waited for.

use std::collections::BTreeMap;
use std::ops::Range;

use orbitkv_shards::leases::ConnectionId;
use orbitkv_wire::engine::Operation;

use super::recorder::Event;
use super::{What, Woken};
use crate::client::RequestMoments;
use crate::engine::EngineHub;

/// A turn that ended so shortly before a request was received may have kept it waiting, in nanoseconds: longer gaps are
/// those of a core that slept.
pub const BEFORE_NS_MAX: u64 = 50_000;

/// What one core recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoreEvents {
    /// The core.
    pub core: u16,
    /// Events without room while these were recorded; with any, nothing is proved.
    pub lost: u64,
    /// In the order in which they were recorded.
    pub events: Vec<Event>,
}

/// A stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Which.
    pub what: What,
    /// When.
    pub at_ns: u64,
    /// The core on which it was.
    pub core: u16,
    /// Blocks or commands of which it is said.
    pub count: u16,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Connection of its engine.
    pub session: u64,
    /// The engine's number.
    pub request: u64,
    /// What it asked; none if the node knows no such operation.
    pub operation: Option<Operation>,
    /// The core that serves its connection.
    pub core: u16,
    /// Its stages in order of time, Receive first.
    pub stages: Vec<Stage>,
    /// When the engine submitted it and had its answer, if the engine kept that.
    pub engine: Option<Range<u64>>,
}

impl Request {
    /// When it came to a stage first.
    #[must_use]
    pub fn first(&self, what: What) -> Option<u64> {
        self.stages.iter().find(|stage| stage.what == what).map(|stage| stage.at_ns)
    }

    /// When it was received, and when its answer had gone out.
    #[must_use]
    pub fn at_node(&self) -> Option<Range<u64>> {
        Some(self.first(What::Receive)?..self.first(What::Respond)?)
    }

    /// How long it took: to its engine if that is known, else at the node; none while it is unanswered.
    #[must_use]
    pub fn took_ns(&self) -> Option<u64> {
        let span = self.engine.clone().or_else(|| self.at_node())?;
        Some(span.end.saturating_sub(span.start))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> String {
        let operation =
            self.operation.map_or_else(|| "unknown".to_owned(), |operation| format!("{operation:?}"));
        format!("{} {}", operation.to_lowercase(), self.request)
    }
}

/// A turn, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// [`What::Turn`] or the part.
    pub what: What,
    /// When it began.
    pub at_ns: u64,
    /// When it was over.
    pub until_ns: u64,
    /// What woke the core, of a turn.
    pub woken: Option<Woken>,
}

/// What a core does at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doing {
    /// A part of a turn.
    Part(What),
    /// In a turn, in parts too short to be told.
    ShortParts,
    /// No turn: it sleeps, or something else has its processor.
    NoTurn,
}

impl Doing {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Doing::Part(what) => what.name(),
            Doing::ShortParts => "short parts of turns",
            Doing::NoTurn => "no turn",
        }
    }
}

/// How long a core did what, in nanoseconds.
pub type Shares = BTreeMap<Doing, u64>;

/// One core's turns and parts of turns, each in order of time.
#[derive(Clone, Debug, Default)]
struct CoreTurns {
    turns: Vec<Slice>,
    parts: Vec<Slice>,
}

/// Everything a node recorded, joined.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    requests: Vec<Request>,
    turns: BTreeMap<u16, CoreTurns>,
    /// Events without room.
    pub lost: u64,
}

impl Timeline {
    /// Joins the events of all cores.
    #[must_use]
    pub fn of(cores: &[CoreEvents]) -> Timeline {
        let mut timeline = Timeline { lost: cores.iter().map(|core| core.lost).sum(), ..Timeline::default() };
        let mut jobs: BTreeMap<(u16, u32), usize> = BTreeMap::new();
        for CoreEvents { core, events, .. } in cores {
            timeline.take_channel(*core, events, &mut jobs);
        }
        for CoreEvents { core, events, .. } in cores {
            for event in events.iter().filter(|event| event.what.is_of_job()) {
                let origin = EngineHub::core_of(ConnectionId(event.session)) as u16;
                let stage = Stage { what: event.what, at_ns: event.at_ns, core: *core, count: event.count };
                if let Some(&at) = jobs.get(&(origin, event.number)) {
                    timeline.requests[at].stages.push(stage);
                }
            }
            timeline.take_turns(*core, events);
        }
        for request in &mut timeline.requests {
            request.stages.sort_by_key(|stage| stage.at_ns);
        }
        timeline
    }

    /// What the engine channel of a core says of requests.
    fn take_channel(&mut self, core: u16, events: &[Event], jobs: &mut BTreeMap<(u16, u32), usize>) {
        // A request number may come again after it was answered: the latest one counts.
        let mut latest: BTreeMap<(u64, u64), usize> = BTreeMap::new();
        for event in events {
            let key = (event.session, event.request);
            match event.what {
                What::Receive => {
                    latest.insert(key, self.requests.len());
                    self.requests.push(Request {
                        session: event.session,
                        request: event.request,
                        operation: u8::try_from(event.count).ok().and_then(Operation::from_wire),
                        core,
                        stages: Vec::new(),
                        engine: None,
                    });
                }
                What::Start | What::Respond => {}
                _ => continue,
            }
            let Some(&at) = latest.get(&key) else { continue };
            let stage = Stage { what: event.what, at_ns: event.at_ns, core, count: 1 };
            self.requests[at].stages.push(stage);
            if event.what == What::Start && event.number != 0 {
                jobs.insert((core, event.number), at);
            }
        }
    }

    fn take_turns(&mut self, core: u16, events: &[Event]) {
        let of_core = self.turns.entry(core).or_default();
        for event in events {
            let until_ns = event.at_ns + u64::from(event.number);
            let slice = Slice { what: event.what, at_ns: event.at_ns, until_ns, woken: None };
            if event.what == What::Turn {
                of_core.turns.push(Slice { woken: Woken::of_code(event.count), ..slice });
            } else if event.what.is_slice() {
                of_core.parts.push(slice);
            }
        }
        of_core.turns.sort_by_key(|turn| turn.at_ns);
        of_core.parts.sort_by_key(|part| part.at_ns);
    }

    /// Lays beside each request when its engine submitted it and had its answer.
    pub fn join(&mut self, moments: &[RequestMoments]) {
        let of: BTreeMap<(u64, u64), &RequestMoments> =
            moments.iter().map(|moments| ((moments.session, moments.request), moments)).collect();
        for request in &mut self.requests {
            let moments = of.get(&(request.session, request.request));
            request.engine = moments.map(|moments| moments.submitted_ns..moments.returned_ns);
        }
    }

    /// All requests, by core and then in the order in which they were received.
    #[must_use]
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Turns of a core that reach into a stretch of time, in order.
    pub fn turns(&self, core: u16, span: &Range<u64>) -> impl Iterator<Item = &Slice> {
        within(self.turns.get(&core).map_or(&[][..], |of| &of.turns[..]), span)
    }

    /// Parts of turns of a core that reach into a stretch of time, in order.
    pub fn parts(&self, core: u16, span: &Range<u64>) -> impl Iterator<Item = &Slice> {
        within(self.turns.get(&core).map_or(&[][..], |of| &of.parts[..]), span)
    }

    /// What a core did in a stretch of time; all together it is as long as that.
    #[must_use]
    pub fn shares(&self, core: u16, span: &Range<u64>) -> Shares {
        let length = span.end.saturating_sub(span.start);
        let clipped =
            |slice: &Slice| slice.until_ns.min(span.end).saturating_sub(slice.at_ns.max(span.start));
        let mut shares = Shares::new();
        let mut told = 0;
        for part in self.parts(core, span) {
            let ns = clipped(part);
            told += ns;
            *shares.entry(Doing::Part(part.what)).or_default() += ns;
        }
        // A turn is stored when it is over, so the parts of one that was cut off may lie outside of all.
        let in_turns = self.turns(core, span).map(clipped).sum::<u64>().max(told);
        let rest = [(Doing::ShortParts, in_turns - told), (Doing::NoTurn, length.saturating_sub(in_turns))];
        shares.extend(rest);
        shares.retain(|_, ns| *ns > 0);
        shares
    }

    /// The stretch before a request was received in which it may have waited already: since its engine submitted it, or if
    /// that is not known, the turn that was over just before.
    #[must_use]
    pub fn before(&self, request: &Request) -> Option<Range<u64>> {
        let received = request.first(What::Receive)?;
        if let Some(engine) = &request.engine {
            return (engine.start < received).then_some(engine.start..received);
        }
        let turns = self.turns.get(&request.core).map_or(&[][..], |of| &of.turns[..]);
        let next = turns.partition_point(|turn| turn.at_ns < received);
        let turn = turns[..next].iter().rev().find(|turn| turn.until_ns <= received)?;
        (received - turn.until_ns <= BEFORE_NS_MAX).then_some(turn.at_ns..received)
    }

    /// The answered requests that took longest, the slowest first. If engines kept their moments, only theirs.
    #[must_use]
    pub fn slowest(&self, count: usize) -> Vec<&Request> {
        let any_engine = self.requests.iter().any(|request| request.engine.is_some());
        let counts = |request: &&Request| request.engine.is_some() || !any_engine;
        let mut all: Vec<(u64, &Request)> = self
            .requests
            .iter()
            .filter(counts)
            .filter(|request| request.at_node().is_some())
            .filter_map(|request| Some((request.took_ns()?, request)))
            .collect();
        all.sort_by_key(|(ns, _)| std::cmp::Reverse(*ns));
        all.into_iter().take(count).map(|(_, request)| request).collect()
    }

    /// What the cores of these requests did meanwhile, over all of them, waiting before they were received included.
    #[must_use]
    pub fn waited_for(&self, requests: &[&Request]) -> Shares {
        let mut all = Shares::new();
        for request in requests {
            let spans = [self.before(request), request.at_node()];
            for span in spans.into_iter().flatten() {
                for (doing, ns) in self.shares(request.core, &span) {
                    *all.entry(doing).or_default() += ns;
                }
            }
        }
        all
    }
}

/// Those of slices in order of time that reach into a stretch. Turns of a core do not overlap, and neither do parts, so
/// the first one may only be the one before the stretch begins.
fn within<'a>(slices: &'a [Slice], span: &Range<u64>) -> impl Iterator<Item = &'a Slice> + use<'a> {
    let first = slices.partition_point(|slice| slice.until_ns <= span.start);
    let end = span.end;
    slices[first..].iter().take_while(move |slice| slice.at_ns < end)
}

#[cfg(test)]
mod tests;
