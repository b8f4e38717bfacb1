//! The world: nodes, network and membership service under one clock, interpreted event by event.

mod checks;
mod engines;
mod faults;
mod membership;
mod questions;
mod tamper;
mod traffic;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use orbitkv_shards::members::MemberMap;
use orbitkv_shards::time::Moment;
use orbitkv_wire::identity::{ClusterUuid, Incarnation, NodeId, ShardIndex};

use crate::canary::Canary;
use crate::control::Control;
use crate::core::Core;
use crate::counters::{Counter, Counters};
use crate::event::{Event, Process};
use crate::load::Load;
use crate::mail::{Lanes, Reader};
use crate::network::{ConnectionName, Network, NetworkEvent, Place, Side};
use crate::oracle::session::{Proof, Session};
use crate::oracle::{Verdict, Violation};
use crate::plan::{NodePlan, Plan};
use crate::random::{History, Random};
use crate::registry::Registry;
use crate::report::{Log, Report, Visibility};
use crate::schedule::Schedule;
use crate::truth::{StreamName, Truth};

use questions::{Barriers, Question};

/// A process is what runs on a host, or nothing is.
pub(crate) enum State {
    /// Nothing runs.
    Down,
    /// It runs.
    Running,
    /// It stands still; what happens to it is kept.
    Paused(Vec<Event>),
}

/// A node: a name, a host, and what runs there.
pub(crate) struct Node {
    pub name: NodeId,
    pub plan: NodePlan,
    pub address: SocketAddr,
    pub process: u32,
    pub state: State,
    pub cores: Vec<Core>,
    pub control: Option<Control>,
    pub awaits: Option<Barriers>,
    pub lanes: Lanes,
    pub watch: Watch,
    pub hears_service: bool,
    /// Whether it is to be a member in the end.
    pub wanted: bool,
}

/// What of the service's history a node has still to hear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    /// It does not watch.
    Off,
    /// This revision is next, and is not on its way.
    Next(u64),
    /// This revision is on its way.
    Coming(u64),
}

/// What part of a run it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Faults happen; nothing wrong may.
    Safety,
    /// Faults have ended; everything has to become right.
    Liveness,
}

/// Between two looks at everything that a core holds.
const WHOLE_CHECK_EVENTS: u64 = 128;

/// Everything.
pub struct World {
    pub(crate) plan: Plan,
    pub(crate) canary: Option<Canary>,
    pub(crate) cluster: ClusterUuid,
    pub(crate) schedule: Schedule<Event>,
    pub(crate) network: Network,
    pub(crate) registry: Registry,
    pub(crate) nodes: Vec<Node>,
    pub(crate) truth: Truth,
    pub(crate) load: Load,
    pub(crate) chance: Random,
    pub(crate) ids: Random,
    pub(crate) mail_chance: Random,
    pub(crate) counters: Counters,
    pub(crate) log: Log,
    pub(crate) history: History,
    pub(crate) sessions: BTreeMap<ConnectionName, Session>,
    /// Connections of an Open that is heard a second time: nobody is at their requester's end.
    pub(crate) ghosts: BTreeSet<ConnectionName>,
    /// Dials whose answer is not there: which stream of which core.
    pub(crate) dials: BTreeMap<ConnectionName, traffic::Dial>,
    pub(crate) proofs: BTreeMap<(Place, StreamName), Proof>,
    /// The newest session that a source has admitted: of whom, by which attempt, on which connection.
    pub(crate) accepted: BTreeMap<(StreamName, Incarnation), (u64, ConnectionName)>,
    pub(crate) tampered: traffic::Tampered,
    pub(crate) questions: BTreeMap<u64, Question>,
    pub(crate) syncs: BTreeMap<u64, questions::Sync>,
    pub(crate) next_question: u64,
    pub(crate) part: Part,
    pub(crate) events: u64,
    pub(crate) visibility: Visibility,
    pub(crate) frames: u64,
    pub(crate) frame_bytes: u64,
}

impl World {
    /// The world that `plan` describes, before anything has happened.
    #[must_use]
    pub fn new(plan: Plan, canary: Option<Canary>, log: Log) -> World {
        let random = Random::new(plan.seed);
        let mut ids = random.fork("ids");
        let mut schedule = Schedule::new();
        let nodes: Vec<Node> = (plan.nodes.iter().enumerate())
            .map(|(number, node)| {
                schedule.after(node.starts, Event::Start(number as u16));
                Node::new(number as u16, node.clone())
            })
            .collect();
        if let Some(faults) = &plan.faults {
            schedule.after(Duration::from_micros(*faults.gap_us.end()), Event::Fault);
        }
        schedule.after(Duration::from_micros(*plan.query_gap_us.end()), Event::Query);
        schedule.after(Duration::from_micros(*plan.await_gap_us.end()), Event::Barrier);
        World {
            network: Network::new(random.fork("network"), plan.weather.clone()),
            registry: Registry::new(plan.lease),
            load: Load::new(plan.load.clone(), random.fork("load")),
            chance: random.fork("chance"),
            mail_chance: random.fork("mail"),
            cluster: ClusterUuid(ids.bytes()),
            ids,
            plan,
            canary,
            schedule,
            nodes,
            truth: Truth::default(),
            counters: Counters::default(),
            log,
            history: History::default(),
            sessions: BTreeMap::new(),
            ghosts: BTreeSet::new(),
            dials: BTreeMap::new(),
            proofs: BTreeMap::new(),
            accepted: BTreeMap::new(),
            tampered: traffic::Tampered::default(),
            questions: BTreeMap::new(),
            syncs: BTreeMap::new(),
            next_question: 0,
            part: Part::Safety,
            events: 0,
            visibility: Visibility::default(),
            frames: 0,
            frame_bytes: 0,
        }
    }

    /// Runs both phases; what was found, and what was met.
    pub fn run(mut self) -> Report {
        let verdict = self.safety().and_then(|()| self.liveness());
        self.report(verdict.err())
    }

    fn safety(&mut self) -> Verdict {
        while self.events < self.plan.safety_events {
            self.step()?;
        }
        Ok(())
    }

    /// Moves to the next event.
    pub(crate) fn step(&mut self) -> Verdict {
        let event = self.schedule.next_event().expect("load and renewals never end");
        self.events += 1;
        self.history.note(self.now().0);
        self.happen(event)?;
        if self.events.is_multiple_of(WHOLE_CHECK_EVENTS) && self.plan.faults.is_some() {
            return self.check_some_core();
        }
        Ok(())
    }

    fn report(mut self, violation: Option<Violation>) -> Report {
        self.counters.add(Counter::SegmentLost, self.network.lost);
        self.counters.add(Counter::ReorderedAcrossStreams, self.network.reordered);
        Report {
            seed: self.plan.seed,
            violation,
            events: self.events,
            virtual_time: self.now().since(Moment(0)),
            history: self.history.hash(),
            counters: self.counters,
            frames: self.frames,
            frame_bytes: self.frame_bytes,
            network_bytes: self.network.bytes_sent,
            visibility: self.visibility,
            lines: self.log.into_lines(),
        }
    }

    pub(crate) fn now(&self) -> Moment {
        self.schedule.now()
    }

    pub(crate) fn say(&mut self, line: impl FnOnce() -> String) {
        let now = self.now();
        self.log.say(now, line);
    }

    fn happen(&mut self, event: Event) -> Verdict {
        let Some(event) = self.addressed(event) else { return Ok(()) };
        self.history.note(self.events);
        match event {
            Event::Network(event) => self.on_network(event),
            Event::Mail(process, to, mail) => self.on_mail(process, to, *mail),
            Event::Turn(process, core) => self.on_turn(process, core),
            Event::Request(process, request) => {
                self.on_request(process, request);
                Ok(())
            }
            Event::Reply(process, reply) => self.on_reply(process, reply),
            Event::Watch(process, map) => self.on_watch(process, map),
            Event::Remind(process, reminder) => self.on_reminder(process, reminder),
            Event::Expire => {
                self.on_expire();
                Ok(())
            }
            Event::Load(node) => self.on_load(node),
            Event::Fault => {
                self.on_fault();
                Ok(())
            }
            Event::Start(node) => {
                self.start(node);
                Ok(())
            }
            Event::Exit(process) => {
                if self.process(process.node) == process && !matches!(self.state(process.node), State::Down) {
                    self.crash(process.node);
                }
                Ok(())
            }
            Event::Resume(process) => self.on_resume(process),
            Event::ReachService(node) => {
                self.nodes[usize::from(node)].hears_service = true;
                self.pump_watches();
                Ok(())
            }
            Event::Mend(from, to) => {
                self.network.mend(from, to);
                Ok(())
            }
            Event::Query => self.on_query(),
            Event::Barrier => {
                self.on_barrier();
                Ok(())
            }
            Event::Awaits(process) => self.on_awaits(process),
            Event::Fence(process, fence) => self.on_fence_given(process, *fence),
        }
    }

    /// The event, unless it is for a process that is gone or stands still.
    fn addressed(&mut self, event: Event) -> Option<Event> {
        let process = match &event {
            Event::Mail(process, ..)
            | Event::Turn(process, _)
            | Event::Reply(process, _)
            | Event::Watch(process, _)
            | Event::Remind(process, _)
            | Event::Fence(process, _)
            | Event::Awaits(process) => *process,
            Event::Network(NetworkEvent::Idle(_)) => return Some(event),
            Event::Network(network) => {
                let place = self.place_of(network)?;
                Process { node: place.node, number: place.process }
            }
            Event::Load(node) => Process { node: *node, number: self.nodes[usize::from(*node)].process },
            Event::Request(..)
            | Event::Expire
            | Event::Fault
            | Event::Start(_)
            | Event::Exit(_)
            | Event::Resume(_)
            | Event::ReachService(_)
            | Event::Mend(..)
            | Event::Query
            | Event::Barrier => return Some(event),
        };
        let now = self.now();
        let core = match &event {
            Event::Mail(_, Reader::Core(core), _) => Some(core.0),
            Event::Turn(_, core) => Some(*core),
            Event::Network(network) => self.place_of(network).map(|place| place.core),
            _ => None,
        };
        let node = self.nodes.get_mut(usize::from(process.node))?;
        if node.process != process.number {
            return None;
        }
        match &mut node.state {
            State::Down => None,
            State::Running => {
                let stalled_until =
                    core.and_then(|core| Some(node.cores.get(usize::from(core))?.stalled_until));
                match stalled_until.filter(|until| *until > now) {
                    Some(until) => {
                        self.schedule.at(until, event);
                        None
                    }
                    None => Some(event),
                }
            }
            State::Paused(kept) => {
                kept.push(event);
                None
            }
        }
    }

    /// The end that a network event is for.
    fn place_of(&self, event: &NetworkEvent) -> Option<Place> {
        let (name, side) = match *event {
            NetworkEvent::Reached(name) => (name, Side::Source),
            NetworkEvent::Answered(name) | NetworkEvent::DialFailed(name) => (name, Side::Requester),
            NetworkEvent::Segment(name, side)
            | NetworkEvent::Closed(name, side)
            | NetworkEvent::Writable(name, side) => (name, side),
            NetworkEvent::Idle(_) => return None,
        };
        self.network.place(name, side)
    }

    /// Writes a letter.
    pub(crate) fn post(&mut self, process: Process, from: Reader, to: Reader, mail: crate::mail::Mail) {
        let late = match self.part {
            Part::Safety => self.plan.faults.as_ref().map_or(0, |faults| faults.late_mail_permille),
            Part::Liveness => 0,
        };
        let now = self.now();
        let node = &mut self.nodes[usize::from(process.node)];
        let arrival = node.lanes.arrival(from, to, late, &mut self.mail_chance, now);
        self.schedule.at(arrival, Event::Mail(process, to, Box::new(mail)));
    }

    pub(crate) fn process(&self, node: u16) -> Process {
        Process { node, number: self.nodes[usize::from(node)].process }
    }

    pub(crate) fn state(&self, node: u16) -> &State {
        &self.nodes[usize::from(node)].state
    }

    pub(crate) fn runs(&self, node: u16) -> bool {
        matches!(self.nodes[usize::from(node)].state, State::Running)
    }

    /// Number of the node with this name.
    pub(crate) fn number(&self, name: NodeId) -> u16 {
        number_of(name)
    }

    /// The node that has a process at this address now, and which of its cores listens there.
    pub(crate) fn listener(&self, address: SocketAddr) -> Option<Place> {
        self.nodes.iter().enumerate().find_map(|(number, node)| {
            let core = address.port().checked_sub(node.address.port())?;
            let up = !matches!(node.state, State::Down) && usize::from(core) < node.cores.len();
            (up && node.address.ip() == address.ip()).then_some(Place {
                node: number as u16,
                process: node.process,
                core,
            })
        })
    }

    /// The members that a map names, as the simulation numbers them.
    pub(crate) fn expected(map: &MemberMap, own: NodeId) -> Vec<crate::oracle::answers::Expected> {
        (map.members().iter())
            .filter(|member| member.node != own)
            .map(|member| crate::oracle::answers::Expected {
                node: number_of(member.node),
                incarnation: member.incarnation,
                shards: member.shards,
            })
            .collect()
    }
}

impl Node {
    fn new(number: u16, plan: NodePlan) -> Node {
        let host = Ipv4Addr::new(10, 0, (number >> 8) as u8, number as u8);
        Node {
            name: NodeId::new(&format!("node-{number}")).expect("a legal name"),
            plan,
            address: SocketAddr::new(IpAddr::V4(host), 7_000),
            process: 0,
            state: State::Down,
            cores: Vec::new(),
            control: None,
            awaits: None,
            lanes: Lanes::default(),
            watch: Watch::Off,
            hears_service: true,
            wanted: true,
        }
    }

    pub fn core(&self, shard: ShardIndex) -> &Core {
        &self.cores[usize::from(shard.0)]
    }
}

fn number_of(name: NodeId) -> u16 {
    name.as_str().strip_prefix("node-").and_then(|number| number.parse().ok()).expect("a node of this world")
}

/// Counts what a frame was.
pub(crate) fn counter_of_cause(cause: orbitkv_wire::inventory::OpenRefusal) -> Option<Counter> {
    use orbitkv_wire::inventory::OpenRefusal;
    match cause {
        OpenRefusal::NotInMap => Some(Counter::RefusedNotInMap),
        OpenRefusal::StaleAttempt => Some(Counter::RefusedStaleAttempt),
        OpenRefusal::WrongSource => Some(Counter::RefusedWrongSource),
        OpenRefusal::Fenced => Some(Counter::RefusedFenced),
        OpenRefusal::WrongShard | OpenRefusal::Busy => None,
    }
}
