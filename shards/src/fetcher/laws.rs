//! What must hold between any two calls.

use std::collections::BTreeSet;

use super::lines::Reach;
use super::operation::Stage;
use super::order::{Fetch, Place};
use super::{Fetcher, Timer};
use crate::resilience::gate::Class;

impl Fetcher {
    /// Counts that must agree; cheap enough for every turn.
    pub(super) fn assert_counts(&self) {
        let figures = &self.figures;
        let failed = figures.missing + figures.busy + figures.corrupt + figures.device_error;
        let ended = figures.fetched + failed + figures.deadline + figures.cancelled;
        assert_eq!(figures.begun, ended + self.fetches.len() as u64, "each fetch ends once");
        let out_of_time: u64 = figures.out_of_time.iter().sum();
        assert!(out_of_time <= figures.deadline + figures.cancelled, "who is out of time is given up");
        assert!(self.fetches.len() <= self.settings.fetches_max, "fetches keep their bound");
        assert!(self.lines.len() <= self.settings.connections_max, "connections keep their bound");
        assert!(self.dials.len() <= self.settings.dials_max, "dials keep their bound");
        assert!(self.to_dial.len() <= self.lines.len(), "who waits for a dial is a line");
    }

    /// Conservation: every fetch is in one place, which knows it; every operation is of a line, and every
    /// byte on its way is charged once.
    ///
    /// # Panics
    /// If any of it does not hold.
    pub fn assert_invariants(&self) {
        self.assert_counts();
        self.assert_places();
        self.assert_operations();
        self.assert_lines();
        self.assert_probes();
    }

    fn assert_places(&self) {
        let is_background = |fetch: &&Fetch| fetch.order.class == Class::Background;
        assert_eq!(self.background, self.fetches.values().filter(is_background).count());
        let (mut unplaced, mut queued, mut asked, mut retries) = (0, 0, 0, 0);
        for (copy, fetch) in &self.fetches {
            assert_eq!(*copy, fetch.order.copy);
            assert!(self.timers.contains(&(fetch.deadline, Timer::Deadline(*copy))), "a deadline is met");
            assert!(fetch.tried <= self.settings.routes_max, "routes keep their bound");
            let has_route = matches!(fetch.place, Place::Queued(_) | Place::Asked { .. });
            assert_eq!(fetch.current.is_some(), has_route, "what is tried is one route");
            match fetch.place {
                Place::Unplaced => {
                    unplaced += 1;
                    assert!(self.unplaced.contains(&fetch.turn()));
                }
                Place::Resting(until) => {
                    retries += 1;
                    assert!(self.timers.contains(&(until, Timer::Retry(*copy))), "who rests is woken");
                }
                Place::Queued(line) => {
                    queued += 1;
                    assert!(self.lines[&line].queue.contains(&fetch.turn()));
                }
                Place::Asked { operation, index } => {
                    asked += 1;
                    assert_eq!(self.operations[&operation].parts[usize::from(index)].copy, Some(*copy));
                }
            }
        }
        assert_eq!(unplaced, self.unplaced.len(), "only fetches look for routes");
        assert_eq!(queued, self.lines.values().map(|line| line.queue.len()).sum::<usize>());
        // Each part names another fetch, for each fetch names its part.
        assert_eq!(asked, self.operations.values().map(|operation| operation.wanted).sum::<usize>());
        let streams = self.operations.len() + self.draining.len();
        let timers = self.fetches.len() + retries + streams + self.lines.len();
        assert_eq!(timers, self.timers.len(), "every timer is somebody's");
    }

    fn assert_operations(&self) {
        for (number, operation) in &self.operations {
            let line = &self.lines[&operation.line];
            assert!(line.operations.contains(number), "a line knows its operations");
            assert_eq!(
                line.reach,
                Reach::Open(operation.connection),
                "an operation ends with its connection"
            );
            assert!(operation.parts.len() <= self.settings.residences_max);
            let wanted = operation.parts.iter().filter(|part| part.copy.is_some());
            assert_eq!(operation.wanted, wanted.clone().count());
            assert!(wanted.clone().all(|part| part.stage != Stage::Over), "what is over is nobody's");
            let open = operation.parts.iter().filter(|part| part.stage != Stage::Over).count();
            assert_eq!(operation.open, open);
            assert!(open > 0 && operation.wanted > 0, "an operation of no use has ended");
            assert!(self.timers.contains(&(operation.stall_due, Timer::Stall(*number))));
        }
    }

    fn assert_background(&self) {
        let background = self.operations.values().filter(|operation| operation.class == Class::Background);
        let lines: BTreeSet<_> = background.clone().map(|operation| operation.line).collect();
        assert_eq!(lines.len(), background.clone().count(), "one operation a source that nobody waits for");
        let open = background.flat_map(|operation| &operation.parts).filter(|part| part.stage != Stage::Over);
        let drains = self.draining.iter().filter(|(_, of)| of.class == Class::Background);
        let drains: u64 = drains.map(|(number, _)| self.window.held_by(*number)).sum();
        assert_eq!(self.background_bytes, open.map(|part| part.bytes).sum::<u64>() + drains);
        assert!(self.background_bytes <= self.settings.background_bytes_max, "they keep their share");
    }

    fn assert_lines(&self) {
        let mut bytes = 0;
        for (id, line) in &self.lines {
            assert_eq!(self.by_source[&line.source], *id);
            assert!(self.is_usable(&line.source), "a line leads to a member");
            assert!(line.operations.len() <= self.settings.operations_max, "operations keep their bound");
            let parts = line.operations.iter().flat_map(|number| &self.operations[number].parts);
            let open: Vec<u64> =
                parts.filter(|part| part.stage != Stage::Over).map(|part| part.bytes).collect();
            let draining = self.draining.iter().filter(|(_, of)| of.line == *id);
            let drains: u64 = draining.clone().map(|(number, _)| self.window.held_by(*number)).sum();
            assert_eq!(
                line.bytes,
                open.iter().sum::<u64>() + drains,
                "every byte on its way is charged once"
            );
            let is_alone = open.len() + draining.clone().count() == 1;
            assert!(line.bytes <= self.settings.source_bytes_max || is_alone, "a large block goes alone");
            bytes += line.bytes;
            let queued: u64 = line.queue.iter().map(|turn| self.bytes_of(*turn)).sum();
            assert_eq!(line.queued_bytes, queued, "every byte that waits is counted once");
            match line.reach {
                Reach::Closed(_) => assert!(line.is_idle(), "nothing waits for what is not dialed"),
                Reach::Wanted => assert!(self.to_dial.contains(id)),
                Reach::Dialing(dial) => assert_eq!(self.dials[&dial], *id),
                Reach::Open(connection) => assert_eq!(self.by_connection[&connection], *id),
            }
        }
        assert_eq!(self.by_source.len(), self.lines.len());
        let open = self.lines.values().filter(|line| matches!(line.reach, Reach::Open(_))).count();
        assert_eq!(self.by_connection.len(), open);
        assert_eq!(self.to_dial.iter().collect::<BTreeSet<_>>().len(), self.to_dial.len());
        let operations = self.lines.values().map(|line| line.operations.len()).sum::<usize>();
        assert_eq!(self.operations.len(), operations, "every operation is of a line");
        assert_eq!(self.window.in_use_bytes(), bytes, "every byte on its way is charged once");
        let holders = self.operations.len() + self.draining.len();
        assert_eq!(self.window.holders(), holders, "who holds a credit was asked and has not ended");
        for (number, of) in &self.draining {
            assert!(!self.operations.contains_key(number), "what drains has ended");
            assert!(self.timers.contains(&(of.looks, Timer::Drain(*number))), "and is looked for");
        }
        self.assert_background();
        assert!(bytes <= self.settings.bytes_max || holders == 1, "a large block goes alone");
    }
}
