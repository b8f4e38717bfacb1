//! What the hub of a core wants done: by its own shard, or by other cores through their lanes.

use orbitkv_shards::shard::{Command, Tag};
use orbitkv_shards::time::Moment;
use orbitkv_wire::identity::ShardIndex;

use super::Core;
use super::mail::{Answer, Letter};
use crate::engine::{EngineHub, Errand};

impl Core {
    /// Runs the hub's errands until this turn has done enough or a lane is full; returns whether any
    /// was done, and whether this turn has done enough. Whoever takes from the full lane rings.
    pub(super) fn run_errands(&mut self, now: Moment) -> (bool, bool) {
        let mut worked = false;
        while self.units_left > 0 {
            let Some(errand) = self.parts.hub.poll_errand() else { return (worked, false) };
            if let Errand::Commands(commands) = &errand {
                let units: usize = commands.iter().map(|(_, _, command)| command.units()).sum();
                self.units_left = self.units_left.saturating_sub(units);
            }
            if let Some(errand) = self.run_errand(errand, now) {
                self.parts.hub.postpone(errand);
                return (worked, false);
            }
            worked = true;
        }
        (worked, true)
    }

    /// Runs an errand, or gives it back whole if a lane has no room for it.
    fn run_errand(&mut self, errand: Errand, now: Moment) -> Option<Errand> {
        let me = self.index();
        match errand {
            Errand::Commands(commands) => {
                let room = |&(ShardIndex(to), ..): &(ShardIndex, Tag, Command)| {
                    usize::from(to) == me || self.parts.mail.has_room(usize::from(to), 1)
                };
                // At most one command of a group goes to a core, so one seat in each lane is enough.
                if !commands.iter().all(room) {
                    return Some(Errand::Commands(commands));
                }
                for (ShardIndex(to), tag, command) in commands {
                    if usize::from(to) == me {
                        self.execute(tag, command, now);
                    } else {
                        self.post(usize::from(to), Letter::Command(Box::new((tag, command))));
                    }
                }
            }
            Errand::Register(tag, registration) if me == 0 => {
                self.parts.hub.trace.execute(tag);
                let outcome = self.registry.register(*registration);
                self.parts.hub.on_registered(tag, outcome);
            }
            Errand::Register(tag, registration) => {
                if !self.parts.mail.has_room(0, 1) {
                    return Some(Errand::Register(tag, registration));
                }
                self.post(0, Letter::Register(Box::new((tag, *registration))));
            }
            Errand::Abandoned { connection, process_id } => {
                let core = EngineHub::core_of(connection);
                let cores = self.control();
                if core == me {
                    self.on_abandoned(connection, process_id);
                } else if core < cores {
                    if !self.parts.mail.has_room(core, 1) {
                        return Some(Errand::Abandoned { connection, process_id });
                    }
                    self.post(core, Letter::Abandoned { connection, process: process_id });
                }
            }
            Errand::Unregister(connection) if me == 0 => self.registry.on_gone(connection),
            Errand::Unregister(connection) => {
                if !self.parts.mail.has_room(0, 1) {
                    return Some(Errand::Unregister(connection));
                }
                self.post(0, Letter::Unregister(connection));
            }
            Errand::Forget(connection) => {
                if self.parts.hub.forget(connection) {
                    self.sockets.remove(connection);
                }
            }
            Errand::Drain => self.parts.mail.answer(self.control(), Answer::DrainRequested),
        }
        None
    }

    fn post(&mut self, to: usize, letter: Letter) {
        let sent = self.parts.mail.send(to, letter);
        assert!(sent.is_ok(), "asked for room before");
    }
}
