//! The membership service and the processes: starts, deaths, pauses, and what control is told.

use std::net::SocketAddr;
use std::rc::Rc;

use orbitkv_shards::members::MemberMap;
use orbitkv_wire::identity::{Incarnation, ShardIndex};

use super::{Node, State, Watch, World};
use crate::control::{Action, Control, Reminder, Reply, Request};
use crate::core::Core;
use crate::counters::Counter;
use crate::event::{Event, Process};
use crate::mail::{Lanes, Mail, Reader};
use crate::oracle::Verdict;

impl World {
    /// A process of a node starts, on an empty host.
    pub(crate) fn start(&mut self, node: u16) {
        let incarnation = Incarnation(self.ids.bytes());
        let lease = self.plan.lease;
        let index = usize::from(node);
        if !matches!(self.nodes[index].state, State::Down) {
            return;
        }
        let first = self.nodes[index].process == 0;
        self.counters.count(if first { Counter::Join } else { Counter::Restart });
        let Node { name, address, plan, .. } = &self.nodes[index];
        let (name, address, shards, plan) = (*name, *address, plan.shards, plan.clone());
        let scope = self.scope(&plan.scope);
        let cores = (0..shards)
            .map(|core| {
                let shard = ShardIndex(core);
                let local = orbitkv_shards::members::Local {
                    cluster: self.cluster,
                    node: name,
                    epoch: 0,
                    incarnation,
                    shards,
                };
                Core::new(node, local, shard, &self.plan, &plan, scope.clone(), self.canary, &mut self.truth)
            })
            .collect();
        let (control, actions) =
            Control::new(self.cluster, name, address, shards, lease, incarnation, self.canary);
        let node_state = &mut self.nodes[index];
        node_state.process += 1;
        node_state.state = State::Running;
        node_state.cores = cores;
        node_state.control = Some(control);
        node_state.awaits = Some(super::Barriers::new(self.cluster, name, shards, &scope));
        node_state.lanes = Lanes::default();
        node_state.watch = Watch::Off;
        let process = self.process(node);
        self.say(|| format!("node {node} starts process {} as {incarnation}", process.number));
        self.act(process, actions);
        self.fill(node);
        let gap = self.load.gap();
        self.schedule.after(gap, Event::Load(node));
    }

    /// Everything a process was is gone.
    pub(crate) fn crash(&mut self, node: u16) {
        let process = self.process(node);
        self.say(|| format!("node {node} dies"));
        let gone = &mut self.nodes[usize::from(node)];
        gone.state = State::Down;
        gone.cores.clear();
        gone.control = None;
        gone.awaits = None;
        gone.watch = Watch::Off;
        self.forget_process(process);
        self.network.on_process_gone(node, process.number, &mut self.schedule);
    }

    /// A process stands still until it is continued.
    pub(crate) fn pause(&mut self, node: u16) {
        self.nodes[usize::from(node)].state = State::Paused(Vec::new());
    }

    /// It goes on: it reads its sockets before it looks at a timer.
    pub(crate) fn on_resume(&mut self, process: Process) -> Verdict {
        let node = &mut self.nodes[usize::from(process.node)];
        if node.process != process.number || !matches!(node.state, State::Paused(_)) {
            return Ok(());
        }
        let State::Paused(kept) = std::mem::replace(&mut node.state, State::Running) else {
            unreachable!("it was just paused")
        };
        self.say(|| format!("node {} goes on", process.node));
        let (sockets, rest): (Vec<_>, Vec<_>) =
            kept.into_iter().partition(|event| matches!(event, Event::Network(_)));
        for event in sockets.into_iter().chain(rest) {
            if self.runs(process.node) && self.process(process.node) == process {
                self.happen(event)?;
            }
        }
        Ok(())
    }

    /// Does what control wants.
    pub(crate) fn act(&mut self, process: Process, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Mail(core, mail) => self.post(process, Reader::Control, Reader::Core(core), mail),
                Action::Ask(request) => {
                    if self.nodes[usize::from(process.node)].hears_service {
                        let delay = self.mail_chance.micros(&(100..=3_000));
                        self.schedule.after(delay, Event::Request(process, request));
                    }
                }
                Action::Remind(delay, reminder) => {
                    self.schedule.after(delay, Event::Remind(process, reminder));
                }
                Action::Watch(revision) => {
                    self.nodes[usize::from(process.node)].watch = Watch::Next(revision + 1);
                    self.pump_watches();
                }
            }
        }
    }

    /// A request arrives at the service.
    pub(crate) fn on_request(&mut self, process: Process, request: Request) {
        let now = self.now();
        let name = self.nodes[usize::from(process.node)].name;
        let reply = match request {
            Request::ReadEpoch => Some(Reply::Epoch(self.registry.epoch(&name))),
            Request::Register(member) => {
                let replaces = self.registry.newest().get(name).is_some_and(|old| *old != member);
                let answer = self.registry.register(member, now);
                let wrote = answer.is_ok();
                self.counters.add(Counter::Replace, u64::from(replaces && wrote));
                let revision = self.registry.revision();
                self.say(|| format!("the service writes {member:?}: {wrote}, revision {revision}"));
                Some(Reply::Registered(answer))
            }
            Request::Renew(incarnation, sent) => {
                let held = self.registry.renew(&name, incarnation, now);
                Some(Reply::Renewed(incarnation, sent, held))
            }
            Request::Leave(incarnation) => {
                let left = self.registry.leave(&name, incarnation);
                self.counters.add(Counter::Leave, u64::from(left));
                None
            }
            Request::ReadMembers => Some(Reply::Members(self.registry.newest())),
        };
        if let Some(expiry) = self.registry.next_expiry() {
            self.schedule.at(expiry, Event::Expire);
        }
        self.pump_watches();
        if let Some(reply) = reply
            && self.nodes[usize::from(process.node)].hears_service
        {
            let delay = self.mail_chance.micros(&(100..=3_000));
            self.schedule.after(delay, Event::Reply(process, reply));
        }
    }

    pub(crate) fn on_expire(&mut self) {
        let now = self.now();
        let expired = self.registry.expire(now);
        self.counters.add(Counter::LeaseExpired, expired as u64);
        if expired > 0 {
            let revision = self.registry.revision();
            self.say(|| format!("{expired} leases end, revision {revision}"));
        }
        self.pump_watches();
    }

    /// Sends the next revision to whoever watches and has not got it.
    pub(crate) fn pump_watches(&mut self) {
        for node in 0..self.nodes.len() {
            let process = self.process(node as u16);
            let watcher = &mut self.nodes[node];
            if let Watch::Next(revision) = watcher.watch
                && watcher.hears_service
                && revision <= self.registry.revision()
            {
                watcher.watch = Watch::Coming(revision);
                let slow = self.mail_chance.chance(100);
                let delay = self.mail_chance.micros(&if slow { 3_000..=300_000 } else { 100..=5_000 });
                self.schedule.after(delay, Event::Watch(process, self.registry.at(revision)));
            }
        }
    }

    pub(crate) fn on_watch(&mut self, process: Process, map: Rc<MemberMap>) -> Verdict {
        let watcher = &mut self.nodes[usize::from(process.node)];
        if watcher.watch != Watch::Coming(map.revision) {
            return Ok(());
        }
        watcher.watch = Watch::Next(map.revision + 1);
        if watcher.hears_service {
            self.with_control(process, |control, next_life, counters, _| {
                control.on_map(map, next_life, counters)
            });
        } else {
            watcher.watch = Watch::Next(map.revision);
        }
        self.pump_watches();
        Ok(())
    }

    /// The watch of a node has a gap.
    pub(crate) fn break_watch(&mut self, node: u16) {
        self.nodes[usize::from(node)].watch = Watch::Off;
        let process = self.process(node);
        self.say(|| format!("the watch of node {node} has a gap"));
        self.with_control(process, |control, _, _, _| control.on_watch_broken());
    }

    pub(crate) fn on_reply(&mut self, process: Process, reply: Reply) -> Verdict {
        if self.nodes[usize::from(process.node)].hears_service {
            self.with_control(process, |control, next_life, counters, now| {
                control.on_reply(reply, now, next_life, counters)
            });
        }
        Ok(())
    }

    pub(crate) fn on_reminder(&mut self, process: Process, reminder: Reminder) -> Verdict {
        self.with_control(process, |control, next_life, counters, now| {
            control.on_reminder(reminder, now, next_life, counters)
        });
        Ok(())
    }

    /// Lets control of a process decide, and does what it wants.
    pub(crate) fn with_control(
        &mut self,
        process: Process,
        decide: impl FnOnce(
            &mut Control,
            Incarnation,
            &mut crate::counters::Counters,
            orbitkv_shards::time::Moment,
        ) -> Vec<Action>,
    ) {
        let next_life = Incarnation(self.ids.bytes());
        let now = self.now();
        let node = &mut self.nodes[usize::from(process.node)];
        let Some(control) = &mut node.control else { return };
        let actions = decide(control, next_life, &mut self.counters, now);
        self.barriers_learn(process, &actions);
        self.act(process, actions);
    }

    /// A letter to control.
    pub(crate) fn on_control_mail(&mut self, process: Process, mail: Mail) -> Verdict {
        match mail {
            Mail::Lowered(core, revision) => {
                self.with_control(process, |control, _, _, _| control.on_lowered(core, revision));
            }
            Mail::Restarted(core, incarnation) => {
                self.counters.count(Counter::NewLife);
                self.with_control(process, |control, _, _, _| control.on_restarted(core, incarnation));
            }
            Mail::DeadlinePassed(incarnation) => {
                self.with_control(process, |control, next_life, counters, _| {
                    control.on_core_fenced(incarnation, next_life, counters)
                });
            }
            Mail::Exposed(sync, core, head) => self.on_exposed(process, sync, core, head),
            Mail::Readings(waiter, round, core, revision, readings) => {
                return self.on_readings(process, waiter, round, core, revision, &readings);
            }
            other => unreachable!("{other:?} is not for control"),
        }
        Ok(())
    }

    /// Puts the address of one node into another's hands.
    pub(crate) fn give_address(&mut self, node: u16, address: SocketAddr) {
        self.nodes[usize::from(node)].address = address;
    }
}
