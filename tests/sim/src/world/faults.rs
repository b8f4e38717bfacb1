//! What goes wrong, and when it is made good.

use std::time::Duration;

use super::{State, World};
use crate::control::Control;
use crate::counters::Counter;
use crate::event::Event;
use crate::network::{ConnectionName, Side};
use crate::plan::ScopePlan;

/// What can go wrong.
#[derive(Clone, Copy, Debug)]
enum Fault {
    CutBothWays,
    CutOneWay,
    Kill,
    StopReading,
    StopReadingAll,
    Crash,
    PauseShort,
    PauseLong,
    StallCore,
    LoseService,
    WatchGap,
    Leave,
    Expel,
    ChangeScope,
    SwapAddresses,
}

/// Common ones more often.
const FAULTS: &[Fault] = &[
    Fault::CutBothWays,
    Fault::CutOneWay,
    Fault::Kill,
    Fault::Kill,
    Fault::Kill,
    Fault::Kill,
    Fault::StopReading,
    Fault::StopReading,
    Fault::StopReadingAll,
    Fault::Crash,
    Fault::PauseShort,
    Fault::PauseLong,
    Fault::StallCore,
    Fault::StallCore,
    Fault::LoseService,
    Fault::WatchGap,
    Fault::Leave,
    Fault::Expel,
    Fault::ChangeScope,
    Fault::SwapAddresses,
];

impl World {
    pub(crate) fn on_fault(&mut self) {
        let Some(faults) = self.plan.faults.clone() else { return };
        if self.part == super::Part::Liveness {
            return;
        }
        let gap = self.chance.micros(&faults.gap_us);
        self.schedule.after(gap, Event::Fault);
        let fault = *self.chance.pick(FAULTS);
        let nodes = self.nodes.len() as u64;
        let node = self.chance.below(nodes) as u16;
        let other = ((u64::from(node) + 1 + self.chance.below(nodes - 1)) % nodes) as u16;
        self.say(|| format!("fault {fault:?} of node {node}, other {other}"));
        match fault {
            Fault::CutBothWays => {
                self.counters.count(Counter::CutBothWays);
                self.cut(node, other);
                self.cut(other, node);
            }
            Fault::CutOneWay => {
                self.counters.count(Counter::CutOneWay);
                self.cut(node, other);
            }
            Fault::Kill => {
                let open = self.network.open_connections();
                if !open.is_empty() {
                    let name = *self.chance.pick(&open);
                    self.network.kill(name, &mut self.schedule);
                }
            }
            Fault::StopReading => {
                let open = self.network.open_connections();
                if !open.is_empty() {
                    let name = *self.chance.pick(&open);
                    self.stop_reading(name);
                }
            }
            Fault::StopReadingAll => {
                for name in self.network.open_connections() {
                    if self.network.place(name, Side::Source).is_some_and(|place| place.node == node) {
                        self.stop_reading(name);
                    }
                }
            }
            Fault::Crash if !matches!(self.state(node), State::Down) => {
                self.counters.count(Counter::Crash);
                self.crash(node);
                self.start_later(node);
            }
            Fault::PauseShort if self.may_pause(node) => {
                self.counters.count(Counter::PauseShort);
                let pause = self.chance.micros(&(1_000..=1_500_000));
                self.pause_for(node, pause);
            }
            Fault::PauseLong if self.may_pause(node) => {
                self.counters.count(Counter::PauseLong);
                let pause = self.plan.lease + self.chance.micros(&(1_000..=3_000_000));
                self.pause_for(node, pause);
            }
            Fault::StallCore if self.runs(node) => {
                self.counters.count(Counter::CoreStalled);
                let core = self.chance.index(self.nodes[usize::from(node)].cores.len());
                let (now, until) = (self.now(), self.now() + self.chance.micros(&(1_000..=2_000_000)));
                let stalled_until = &mut self.nodes[usize::from(node)].cores[core].stalled_until;
                // Letters that wait for the end of a stall keep their order.
                if *stalled_until <= now {
                    *stalled_until = until;
                }
            }
            Fault::LoseService => {
                self.counters.count(Counter::ServiceUnreachable);
                self.nodes[usize::from(node)].hears_service = false;
                let longest = 2 * self.plan.lease.as_micros() as u64;
                let back = self.chance.micros(&(100_000..=longest));
                self.schedule.after(back, Event::ReachService(node));
            }
            Fault::WatchGap if self.runs(node) => {
                self.counters.count(Counter::WatchGap);
                self.break_watch(node);
            }
            Fault::Leave if self.runs(node) => self.leave(node),
            Fault::Expel => self.expel(node),
            Fault::ChangeScope if self.runs(node) => self.change_scope(node),
            Fault::SwapAddresses => self.swap_addresses(node, other),
            Fault::Crash
            | Fault::PauseShort
            | Fault::PauseLong
            | Fault::StallCore
            | Fault::WatchGap
            | Fault::Leave
            | Fault::ChangeScope => {}
        }
    }

    fn stop_reading(&mut self, name: ConnectionName) {
        self.counters.count(Counter::StoppedReading);
        let until = self.now() + self.chance.micros(&(100_000..=6_000_000));
        self.network.stop_reading(name, Side::Requester, until, &mut self.schedule);
    }

    fn cut(&mut self, from: u16, to: u16) {
        self.network.cut(from, to, &mut self.schedule);
        let mended = self.chance.micros(&(50_000..=12_000_000));
        self.schedule.after(mended, Event::Mend(from, to));
    }

    /// A process is not paused while one of its cores is stalled: what waits for either keeps one order.
    fn may_pause(&self, node: u16) -> bool {
        let now = self.now();
        self.runs(node) && self.nodes[usize::from(node)].cores.iter().all(|core| core.stalled_until <= now)
    }

    fn pause_for(&mut self, node: u16, pause: Duration) {
        self.pause(node);
        let process = self.process(node);
        self.schedule.after(pause, Event::Resume(process));
    }

    fn start_later(&mut self, node: u16) {
        // Another process may be given another number of cores; a life has one number.
        if self.chance.chance(250) {
            self.nodes[usize::from(node)].plan.shards = 1 + self.chance.below(4) as u16;
        }
        let back = self.chance.micros(&(10_000..=8_000_000));
        self.schedule.after(back, Event::Start(node));
    }

    /// A node leaves as an operator has it leave, and comes back later.
    fn leave(&mut self, node: u16) {
        let process = self.process(node);
        self.with_control(process, |control: &mut Control, _, _, _| control.leave());
        self.schedule.after(Duration::from_millis(20), Event::Exit(process));
        let back = self.chance.micros(&(100_000..=10_000_000));
        self.schedule.after(back, Event::Start(node));
    }

    fn change_scope(&mut self, node: u16) {
        self.counters.count(Counter::ScopeChanged);
        let plan = ScopePlan::draw(&mut self.chance, self.plan.load.namespaces);
        let scope = self.scope(&plan);
        self.nodes[usize::from(node)].plan.scope = plan;
        let process = self.process(node);
        self.with_control(process, |control: &mut Control, _, _, _| control.subscribe(&scope));
    }

    /// Somebody takes the record of a live member away.
    fn expel(&mut self, node: u16) {
        let name = self.nodes[usize::from(node)].name;
        if let Some(member) = self.registry.newest().get(name) {
            self.counters.count(Counter::Expelled);
            self.registry.leave(&name, member.incarnation);
            self.pump_watches();
        }
    }

    /// Two nodes die, and each comes back where the other was.
    fn swap_addresses(&mut self, node: u16, other: u16) {
        self.counters.count(Counter::EndpointReuse);
        for node in [node, other] {
            if !matches!(self.state(node), State::Down) {
                self.crash(node);
            }
            self.start_later(node);
        }
        let addresses = [node, other].map(|node| self.nodes[usize::from(node)].address);
        self.give_address(node, addresses[1]);
        self.give_address(other, addresses[0]);
    }
}
