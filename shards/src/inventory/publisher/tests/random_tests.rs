//! Random histories, readers and peers. At every step credit, pool and permits are conserved; at every
//! cut a receiver's set is the truth; in the end everybody has everything.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use orbitkv_wire::identity::{Incarnation, Medium};
use orbitkv_wire::inventory::{FromRequester, HEADER_BYTES, Kind};
use orbitkv_wire::scope::Scope;
use proptest::prelude::*;
use proptest::sample::Index;

use super::super::*;
use super::receiver::Receiver;
use super::rig::{Rig, digest, local, member, node, small};
use crate::members::Member;

/// Members that open sessions: few, so that they replace their own.
const MEMBERS: u8 = 5;

#[derive(Clone, Debug)]
enum Act {
    Put(u8, u16, bool),
    Delete(u8, u16, bool),
    Burst(u8, u16),
    Wipe(u8),
    Pass(u64),
    Turn,
    Grant,
    Deliver(usize),
    Ack(Index, usize),
    InventAck(Index, u64),
    Open(u8, u8, bool),
    Reopen(Index),
    Lose(Index),
    Block(Index),
    Unblock(Index),
    Refuse(Index, u32),
    Accept(Index),
    Flush(Index, u16),
    Garbage(Index, Vec<u8>),
    Corrupt(Index, usize, u8),
    Leave(u8),
    Join(u8),
    NewLife,
}

fn act() -> impl Strategy<Value = Act> {
    let any_one = any::<Index>;
    prop_oneof![
        16 => (1..4u8, 0..24u16, any::<bool>()).prop_map(|(namespace, number, ssd)| Act::Put(namespace, number, ssd)),
        10 => (1..4u8, 0..24u16, any::<bool>()).prop_map(|(namespace, number, ssd)| Act::Delete(namespace, number, ssd)),
        2 => (1..4u8, 1..80u16).prop_map(|(namespace, count)| Act::Burst(namespace, count)),
        1 => (1..4u8).prop_map(Act::Wipe),
        8 => (0..200u64).prop_map(Act::Pass),
        1 => (1_000..7_000u64).prop_map(Act::Pass),
        20 => Just(Act::Turn),
        6 => Just(Act::Grant),
        16 => (1..12usize).prop_map(Act::Deliver),
        16 => (any_one(), 1..6usize).prop_map(|(who, frames)| Act::Ack(who, frames)),
        2 => (any_one(), any::<u64>()).prop_map(|(who, frame)| Act::InventAck(who, frame)),
        6 => (1..=MEMBERS, 0..4u8, any::<bool>()).prop_map(|(who, scope, accepts)| Act::Open(who, scope, accepts)),
        4 => any_one().prop_map(Act::Reopen),
        2 => any_one().prop_map(Act::Lose),
        2 => any_one().prop_map(Act::Block),
        4 => any_one().prop_map(Act::Unblock),
        1 => (any_one(), 0..500u32).prop_map(|(who, rest)| Act::Refuse(who, rest)),
        3 => any_one().prop_map(Act::Accept),
        3 => (any_one(), any::<u16>()).prop_map(|(who, part)| Act::Flush(who, part)),
        1 => (any_one(), prop::collection::vec(any::<u8>(), 0..80)).prop_map(|(who, bytes)| Act::Garbage(who, bytes)),
        1 => (any_one(), 0..60usize, 1..=255u8).prop_map(|(who, at, bits)| Act::Corrupt(who, at, bits)),
        1 => (1..=MEMBERS).prop_map(Act::Leave),
        2 => (1..=MEMBERS).prop_map(Act::Join),
        1 => Just(Act::NewLife),
    ]
}

fn scope(number: u8) -> Scope {
    match number {
        0 | 1 => Scope::All,
        2 => Scope::namespaces([digest(1), digest(3)]).unwrap(),
        _ => Scope::none(),
    }
}

fn medium(ssd: bool) -> Medium {
    if ssd { Medium::Ssd } else { Medium::Dram }
}

/// The rig, and what ended in it.
struct World {
    rig: Rig,
    /// Receivers that lost their session and may come again.
    lost: BTreeMap<ConnectionId, Receiver>,
    /// Connections whose transport takes nothing.
    blocked: Vec<ConnectionId>,
}

impl World {
    fn one(&self, who: &Index) -> Option<ConnectionId> {
        let ids: Vec<_> = self.rig.receivers.keys().copied().collect();
        (!ids.is_empty()).then(|| ids[who.index(ids.len())])
    }

    fn end(&mut self, id: ConnectionId) {
        self.blocked.retain(|other| *other != id);
        if let Some(mut receiver) = self.rig.receivers.remove(&id) {
            receiver.says.clear();
            self.lost.insert(id, receiver);
        }
    }

    fn act(&mut self, act: Act) {
        let rig = &mut self.rig;
        match act {
            Act::Put(namespace, number, ssd) => {
                rig.shard.put(namespace, number, medium(ssd));
            }
            Act::Delete(namespace, number, ssd) => rig.shard.delete(namespace, number, medium(ssd)),
            Act::Burst(namespace, count) => rig.shard.puts(namespace, 0..count),
            Act::Wipe(namespace) => {
                for number in 0..80 {
                    Medium::ALL.into_iter().for_each(|medium| rig.shard.delete(namespace, number, medium));
                }
            }
            Act::Pass(ms) => rig.now = rig.now + Duration::from_millis(ms),
            Act::Turn => {
                rig.turn();
            }
            Act::Grant => {
                rig.grant();
            }
            Act::Deliver(frames) => {
                let frames: Vec<_> = rig.transit.drain(..frames.min(rig.transit.len())).collect();
                for (id, frame) in frames {
                    if let Some(receiver) = rig.receivers.get_mut(&id) {
                        receiver.on_frame(&frame, &rig.shard);
                    }
                }
            }
            Act::Open(who, number, accepts) => {
                let id = rig.open(who, &scope(number));
                rig.receiver(id).accepts = accepts;
            }
            Act::Reopen(who) => {
                let ids: Vec<_> = self.lost.keys().copied().collect();
                if !ids.is_empty() {
                    let earlier = ids[who.index(ids.len())];
                    let receiver = self.lost.remove(&earlier).unwrap();
                    let name = receiver.open.binding.requester.node;
                    let number = (1..=MEMBERS).find(|number| node(*number) == name).unwrap();
                    rig.receivers.insert(earlier, receiver);
                    rig.reopen(number, earlier);
                }
            }
            Act::Leave(number) => self.change_members(|members| {
                members.retain(|member| member.node != node(number));
            }),
            Act::Join(number) => self.change_members(|members| {
                if members.iter().all(|member| member.node != node(number)) {
                    members.push(member(number, 1));
                }
            }),
            Act::NewLife => self.new_life(),
            other => self.act_on_one(other),
        }
    }

    fn act_on_one(&mut self, act: Act) {
        let (Act::Ack(who, _)
        | Act::InventAck(who, _)
        | Act::Lose(who)
        | Act::Block(who)
        | Act::Unblock(who)
        | Act::Refuse(who, _)
        | Act::Accept(who)
        | Act::Flush(who, _)
        | Act::Garbage(who, _)
        | Act::Corrupt(who, ..)) = &act
        else {
            unreachable!("{act:?} is of nobody")
        };
        let Some(id) = self.one(who) else { return };
        let head = self.rig.shard.journal.head().0;
        let receiver = self.rig.receivers.get_mut(&id).unwrap();
        match act {
            Act::Ack(_, frames) => receiver.ack(frames),
            // It names a frame that never left, or one that came back already.
            Act::InventAck(_, frame) => {
                let first = receiver.unconsumed.front().map_or(receiver.frames_heard, |(frame, _)| frame - 1);
                receiver.say_ack(if frame % 2 == 0 { frame % (first + 1) } else { frame | 1 << 40 });
            }
            Act::Lose(_) => {
                self.rig.lose(id);
                self.end(id);
            }
            Act::Block(_) => {
                self.rig.publisher.on_blocked(id);
                self.blocked.push(id);
            }
            Act::Unblock(_) => {
                self.rig.publisher.on_writable(id);
                self.blocked.retain(|other| *other != id);
            }
            Act::Refuse(_, rest) => receiver.refuse(rest),
            Act::Accept(_) => {
                if receiver.is_offered() {
                    receiver.accept();
                }
            }
            Act::Flush(_, part) => {
                let sequence = Sequence(head * u64::from(part) / u64::from(u16::MAX));
                receiver.say(FromRequester::FlushThrough { sequence });
            }
            Act::Garbage(_, bytes) => receiver.says.push(bytes),
            Act::Corrupt(_, at, bits) => {
                receiver.say_ack(0);
                let frame = receiver.says.last_mut().unwrap();
                let at = at % frame.len();
                frame[at] ^= bits;
            }
            _ => unreachable!("matched above"),
        }
    }

    fn change_members(&mut self, change: impl FnOnce(&mut Vec<Member>)) {
        let mut members = self.rig.members.members().to_vec();
        change(&mut members);
        self.rig.members = MemberMap::new(self.rig.members.revision + 1, members);
        self.rig.publisher.on_members(&self.rig.members, self.rig.now);
    }

    fn new_life(&mut self) {
        self.rig.publisher.on_fenced(self.rig.now);
        self.rig.take_effects();
        self.rig.turn();
        self.rig.shard.restart();
        self.rig.receivers.clear();
        self.rig.transit.clear();
        self.lost.clear();
        let epoch = self.rig.publisher.local.epoch + 1;
        let incarnation = Incarnation([200 + epoch as u8 % 50; 16]);
        self.rig.publisher.on_registered(Local { epoch, incarnation, ..local() }, self.rig.now);
        self.change_members(|members| {
            let own = members.iter_mut().find(|member| member.node == node(0)).unwrap();
            (own.epoch, own.incarnation) = (epoch, incarnation);
        });
    }

    /// What the publisher ended, ends; what peers said is heard.
    fn follow(&mut self) {
        self.rig.hear();
        self.rig.take_effects();
        for (id, _) in std::mem::take(&mut self.rig.closed) {
            self.end(id);
        }
    }

    /// The conservation laws, from the outside as far as possible.
    fn check(&mut self) {
        let mut way: BTreeMap<ConnectionId, usize> = BTreeMap::new();
        for (id, frame) in &self.rig.transit {
            *way.entry(*id).or_default() += if frame[4] == Kind::Liveness as u8 { 0 } else { frame.len() };
        }
        let publisher = &self.rig.publisher;
        let mut bodies = BTreeMap::new();
        let mut tickets = 0;
        for (id, session) in publisher.sessions() {
            let receiver = &self.rig.receivers[&id];
            let built = session.outbox.iter().filter(|frame| frame.header[4] != Kind::Liveness as u8);
            let built: usize = built.map(|frame| HEADER_BYTES + frame.body.len()).sum();
            let expected = receiver.outstanding_bytes() + way.get(&id).copied().unwrap_or(0) + built;
            assert_eq!(session.ledger.outstanding_bytes(), expected, "credit is conserved");
            assert!(expected <= 1_500, "one subscriber holds its share at most");
            bodies.extend(session.ledger.bodies().map(|body| (Rc::as_ptr(body), body.frame_bytes() as u64)));
            tickets += usize::from(session.ticket().is_some());
            assert!(session.outbox.len() <= 64, "nothing piles up");
        }
        bodies.extend(publisher.intervals.bodies().map(|body| (Rc::as_ptr(body), body.frame_bytes() as u64)));
        assert_eq!(publisher.outlet.pool.in_use(), bodies.values().sum::<u64>(), "each body is charged once");
        assert!(publisher.intervals.len() <= 16 * 3, "of each scope, so many at most");
        assert_eq!(
            self.rig.permits.held() + self.rig.permits.waiting(),
            tickets,
            "each permit has a session"
        );
    }

    /// All faults end; whoever has a session has everything soon.
    fn heal(&mut self) {
        self.rig.prompt_acks = true;
        for number in 1..=MEMBERS {
            self.act(Act::Join(number));
        }
        for id in std::mem::take(&mut self.blocked) {
            self.rig.publisher.on_writable(id);
        }
        self.rig.deliver();
        for receiver in self.rig.receivers.values_mut() {
            receiver.ack(usize::MAX);
            if receiver.is_offered() {
                receiver.accept();
            }
            receiver.accepts = true;
        }
        self.rig.pass(Duration::from_secs(10));
        self.follow();
        let head = self.rig.shard.journal.head().0;
        let sessions: Vec<_> = self.rig.publisher.sessions().map(|(id, _)| id).collect();
        for id in sessions {
            assert_eq!(self.rig.watermark(id), Some(head), "{id:?} has everything");
        }
        self.check();
        self.rig.assert_nothing_left();
    }
}

fn run(acts: Vec<Act>, window: Duration) {
    let mut rig = Rig::new(PublisherSettings { coalescing_window: window, ..small() });
    rig.prompt_acks = false;
    let mut world = World { rig, lost: BTreeMap::new(), blocked: Vec::new() };
    for act in acts {
        world.act(act);
        world.follow();
        world.check();
    }
    world.heal();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_set_is_the_truth_at_its_cut_whatever_happens(
        acts in prop::collection::vec(act(), 1..400),
        window_ms in prop::sample::select(vec![0u64, 2, 5]),
    ) {
        run(acts, Duration::from_millis(window_ms));
    }
}
