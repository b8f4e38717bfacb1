//! Fetches that nobody waits for: they go when nothing else is to be asked for, one operation a source at a time, within
//! a share of the bytes that may be on their way, and have one route. When somebody comes to wait for one it is
//! demand from then on (chapter 3.7), with the time of who waits for it longest, the wish among them.

use super::lines::Line;
use super::order::{Place, Turn};
use super::{Fetcher, Timer};
use crate::residents::CopyId;
use crate::resilience::gate::Class;
use crate::resilience::retry::Allowance;
use crate::time::Moment;

pub(super) fn is_background(turn: Turn) -> bool {
    turn.0.0 == Class::Background
}

impl Fetcher {
    /// Somebody waits for a fetch from now on, until `deadline` at least: one that nobody waited for is demand, and one
    /// that was waited for less long has more time. Nothing happens if it has ended.
    pub fn on_awaited(&mut self, copy: CopyId, deadline: Moment, now: Moment) {
        let Some(fetch) = self.fetches.get_mut(&copy) else { return };
        let is_promoted = fetch.order.class == Class::Background;
        if !is_promoted && deadline <= fetch.deadline {
            return;
        }
        let (before, late) = (fetch.turn(), fetch.deadline);
        fetch.deadline = late.max(deadline);
        if is_promoted {
            fetch.order.class = Class::Demand;
            fetch.since = now;
            fetch.clock.begin_anew(fetch.deadline, now);
            self.background -= 1;
            self.figures.promoted += 1;
        } else {
            fetch.clock.extend(fetch.deadline - late);
        }
        let (after, place, due) = (fetch.turn(), fetch.place, fetch.deadline);
        self.timers.remove(&(late, Timer::Deadline(copy)));
        self.timers.insert((due, Timer::Deadline(copy)));
        let queue = match place {
            Place::Unplaced => &mut self.unplaced,
            Place::Queued(line) => &mut self.lines.get_mut(&line).expect("a queue has its line").queue,
            Place::Resting(_) | Place::Asked { .. } => return,
        };
        assert!(queue.remove(&before), "a fetch is where it says");
        queue.insert(after);
        self.is_due = true;
    }

    /// Routes that a fetch of this class tries: what nobody waits for is not asked for twice.
    pub(super) fn routes(&self, class: Class) -> Allowance {
        Allowance(if class == Class::Background { 1 } else { self.settings.routes_max })
    }

    /// Whether the first of a queue, which nobody waits for, may be asked for.
    pub(super) fn may_ask_background(&self, line: &Line, first: Turn) -> bool {
        let is_one = !line.operations.iter().any(|number| self.operations[number].class == Class::Background);
        let bytes = self.background_bytes.saturating_add(self.bytes_of(first));
        is_one && bytes <= self.settings.background_bytes_max && !self.demand_waits()
    }

    /// Whether anything that somebody waits for has not been asked for.
    pub(super) fn demand_waits(&self) -> bool {
        let waits = |turn: &Turn| !is_background(*turn);
        self.unplaced.first().is_some_and(waits)
            || self.lines.values().any(|line| line.queue.first().is_some_and(waits))
    }

    /// Bytes that somebody waits for in a queue: what nobody waits for stands at its end.
    pub(super) fn demanded_bytes(&self, line: &Line) -> u64 {
        let others = line.queue.iter().rev().take_while(|turn| is_background(**turn));
        line.queued_bytes - others.map(|turn| self.bytes_of(*turn)).sum::<u64>()
    }
}
