//! Processes of three nodes, some under one name, in a world where everything is lost, late or paused.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use orbitkv_wire::identity::{Incarnation, NodeId};
use orbitkv_wire::membership::{Key, decode_epoch};
use proptest::prelude::*;

use super::etcd::Etcd;
use super::rig::{Fate, Process, node};
use crate::membership::Effect;
use crate::time::Moment;

const NAMES: [&str; 3] = ["a", "b", "c"];
/// Two addresses for each name: whoever starts at the same one finds the ports free.
const SEATS: usize = 6;

#[derive(Clone, Debug)]
enum Action {
    Pass(u64),
    Exchange(usize, Fate),
    Renew(usize, Fate),
    Hear(usize),
    Cut(usize),
    LateArrives(usize),
    ShardsReady(usize),
    Start(usize),
    Kill(usize),
    Pause(usize),
    Resume(usize),
    Withdraw(usize),
    Compact,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => Just(Fate::Answered),
        1 => Just(Fate::AnswerLost),
        1 => Just(Fate::Lost),
        1 => Just(Fate::Late),
        1 => Just(Fate::Slow),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    let seat = || 0..SEATS;
    prop_oneof![
        8 => (1u64..2_500).prop_map(Action::Pass),
        1 => (2_500u64..15_000).prop_map(Action::Pass),
        16 => (seat(), fate()).prop_map(|(seat, fate)| Action::Exchange(seat, fate)),
        6 => (seat(), fate()).prop_map(|(seat, fate)| Action::Renew(seat, fate)),
        6 => seat().prop_map(Action::Hear),
        1 => seat().prop_map(Action::Cut),
        2 => seat().prop_map(Action::LateArrives),
        6 => seat().prop_map(Action::ShardsReady),
        4 => seat().prop_map(Action::Start),
        1 => seat().prop_map(Action::Kill),
        1 => seat().prop_map(Action::Pause),
        2 => seat().prop_map(Action::Resume),
        1 => seat().prop_map(Action::Withdraw),
        1 => Just(Action::Compact),
    ]
}

struct Seat {
    process: Process,
    paused: bool,
}

struct World {
    etcd: Etcd,
    now: Moment,
    seats: Vec<Option<Seat>>,
    /// Requests of dead processes that are still on their way.
    orphans: Vec<crate::membership::coordinator::Request>,
    started: u8,
    epochs: BTreeMap<NodeId, u64>,
    registered: BTreeMap<NodeId, u64>,
    fenced: BTreeSet<Incarnation>,
    rosters: Vec<BTreeMap<NodeId, u64>>,
}

impl World {
    fn new() -> World {
        World {
            etcd: Etcd::new(77),
            now: Moment(1),
            seats: (0..SEATS).map(|_| None).collect(),
            orphans: Vec::new(),
            started: 0,
            epochs: BTreeMap::new(),
            registered: BTreeMap::new(),
            fenced: BTreeSet::new(),
            rosters: vec![BTreeMap::new(); SEATS],
        }
    }

    fn running(&mut self, seat: usize) -> Option<&mut Process> {
        self.seats[seat].as_mut().filter(|seat| !seat.paused).map(|seat| &mut seat.process)
    }

    fn act(&mut self, action: &Action) {
        let now = self.now;
        match *action {
            Action::Pass(milliseconds) => {
                self.now = now + Duration::from_millis(milliseconds);
                self.etcd.expire(self.now);
                let now = self.now;
                (0..SEATS).for_each(|seat| {
                    if let Some(process) = self.running(seat) {
                        process.tick(now);
                    }
                });
            }
            Action::Start(seat) => {
                if self.seats[seat].is_none() {
                    self.started += 1;
                    let port = 1_000 * (1 + seat as u16);
                    let process = Process::new(NAMES[seat % 3], port, self.started, now);
                    self.rosters[seat].clear();
                    self.seats[seat] = Some(Seat { process, paused: false });
                }
            }
            Action::Kill(seat) => {
                if let Some(seat) = self.seats[seat].take() {
                    self.orphans.extend(seat.process.late);
                    self.orphans.extend(seat.process.question.map(|(_, request)| request));
                }
            }
            Action::Pause(seat) => self.seats[seat].iter_mut().for_each(|seat| seat.paused = true),
            Action::Resume(seat) => self.seats[seat].iter_mut().for_each(|seat| seat.paused = false),
            Action::Compact => self.etcd.compacted = self.etcd.revision,
            Action::LateArrives(seat) => {
                let late = match &mut self.seats[seat] {
                    Some(seat) => &mut seat.process.late,
                    None => &mut self.orphans,
                };
                if !late.is_empty() {
                    let request = late.remove(0);
                    let _ = self.etcd.serve(&request, now);
                }
            }
            Action::ShardsReady(seat) => {
                if let Some(process) = self.running(seat).filter(|process| process.life_awaited) {
                    process.begin_life(now);
                }
            }
            Action::Exchange(seat, fate) => self.with(seat, |process, etcd| {
                process.exchange(etcd, fate, now);
            }),
            Action::Renew(seat, fate) => self.with(seat, |process, etcd| {
                process.renew(etcd, fate, now);
            }),
            Action::Hear(seat) => self.with(seat, |process, etcd| {
                process.hear(etcd, now);
            }),
            Action::Cut(seat) => self.with(seat, |process, _| process.cut(now)),
            Action::Withdraw(seat) => self.with(seat, |process, _| {
                process.room.withdraw(now);
                process.pump();
            }),
        }
    }

    fn with(&mut self, seat: usize, act: impl FnOnce(&mut Process, &mut Etcd)) {
        if let Some(seat) = self.seats[seat].as_mut().filter(|seat| !seat.paused) {
            act(&mut seat.process, &mut self.etcd);
        }
    }

    fn check(&mut self) {
        for name in NAMES.map(node) {
            let epoch = self.etcd.value(Key::Epoch(name)).map(|value| decode_epoch(value).expect("an epoch"));
            let before = self.epochs.insert(name, epoch.unwrap_or(0)).unwrap_or(0);
            assert!(epoch.unwrap_or(0) >= before, "the epoch of {name} fell");
        }
        for (place, seat) in self.seats.iter_mut().enumerate() {
            let Some(Seat { process, .. }) = seat else { continue };
            while let Some(effect) = process.told.pop_front() {
                match effect {
                    Effect::Registered(local) => {
                        let before = self.registered.insert(local.node, local.epoch).unwrap_or(0);
                        assert!(
                            local.epoch > before,
                            "epoch {} of {} after {before}",
                            local.epoch,
                            local.node
                        );
                        assert!(!self.fenced.contains(&local.incarnation), "a fenced life was registered");
                    }
                    Effect::Fenced { incarnation, .. } => {
                        assert!(self.fenced.insert(incarnation), "a life is fenced once");
                    }
                    Effect::Admit { until } => {
                        let local = process.room.local();
                        assert!(local.is_none_or(|local| !self.fenced.contains(&local.incarnation)));
                        assert!(until.0 > 0);
                    }
                    Effect::Members(roster) => {
                        let seen = &mut self.rosters[place];
                        for member in roster.map().members() {
                            let before = seen.insert(member.node, member.epoch).unwrap_or(0);
                            assert!(member.epoch >= before, "an old life came back");
                        }
                    }
                    _ => {}
                }
            }
        }
        for name in NAMES {
            // A paused process counts too: it decides by its clock, and finds the same moment on it.
            let admitted = (0..SEATS).filter(|seat| NAMES[seat % 3] == name).filter(|&seat| {
                self.seats[seat].as_ref().is_some_and(|seat| seat.process.room.admits(self.now))
            });
            assert!(admitted.count() <= 1, "two live members named {name}");
        }
    }

    /// Nothing fails any more: whoever runs becomes a member, or is refused by who is.
    fn calm_down(&mut self) {
        for seat in 0..SEATS {
            self.act(&Action::Resume(seat));
        }
        for _ in 0..400 {
            self.act(&Action::Pass(100));
            for seat in 0..SEATS {
                self.act(&Action::ShardsReady(seat));
                for _ in 0..4 {
                    self.act(&Action::Exchange(seat, Fate::Answered));
                    self.act(&Action::Hear(seat));
                }
                self.act(&Action::Renew(seat, Fate::Answered));
            }
            self.check();
        }
        let mut members = BTreeSet::new();
        for (place, seat) in self.seats.iter().enumerate() {
            let Some(Seat { process, .. }) = seat else { continue };
            let leaving = process.room.standing() == crate::membership::Standing::Leaving;
            if process.room.admits(self.now) {
                assert!(!leaving && members.insert(place % 3));
            }
        }
        let running = self.seats.iter().enumerate().filter(|(_, seat)| {
            let stays = |seat: &Seat| seat.process.room.standing() != crate::membership::Standing::Leaving;
            seat.as_ref().is_some_and(stays)
        });
        for (place, seat) in running {
            let process = &seat.as_ref().expect("just seen").process;
            assert!(
                members.contains(&(place % 3)),
                "nobody is {}: {}",
                NAMES[place % 3],
                process.room.standing()
            );
            let known: Vec<_> =
                process.room.roster().map().members().iter().map(|member| member.node).collect();
            let names: Vec<_> = members.iter().map(|&name| node(NAMES[name])).collect();
            assert_eq!(known, names, "what {place} knows");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Never two live members of one name, epochs strictly grow, no fenced life comes back; and once
    /// nothing fails any more, everybody finds their place.
    #[test]
    fn one_life_at_a_time(actions in prop::collection::vec(action(), 50..400)) {
        let mut world = World::new();
        world.act(&Action::Start(0));
        for action in &actions {
            world.act(action);
            world.check();
        }
        world.calm_down();
    }
}
