//! A process with its membership room, and the network between it and etcd.

use std::collections::VecDeque;
use std::time::Duration;

use orbitkv_wire::identity::{ClusterUuid, Incarnation, NodeId};
use orbitkv_wire::membership::{Contact, HASH_VERSION, MemberRecord};

use super::etcd::Etcd;
use crate::membership::coordinator::*;
use crate::membership::*;
use crate::time::Moment;

pub const LEASE: Duration = Duration::from_secs(10);

pub fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub fn node(name: &str) -> NodeId {
    name.parse().expect("legal")
}

pub fn contact(port: u16, shards: u16) -> Contact {
    Contact {
        address: ([10, 0, 0, 1], port).into(),
        shards,
        hash_version: HASH_VERSION,
        zone: String::new(),
        key_fingerprint: [7; 32],
        boot_id: [8; 16],
        peer_socket: String::new(),
        capabilities: Vec::new(),
    }
}

pub fn record(name: &str, port: u16, epoch: u64, life: u8) -> MemberRecord {
    let incarnation = Incarnation([life; 16]);
    MemberRecord { node: node(name), epoch, incarnation, contact: contact(port, 1) }
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Answered,
    /// Carried out, but nobody hears of it.
    AnswerLost,
    /// Never arrives.
    Lost,
    /// Given up, and carried out at some time later.
    Late,
    /// Carried out, and the answer is under way for some time.
    Slow,
}

type Outcome = Result<(Header, Answer), Failure>;

pub struct Process {
    pub room: Membership,
    pub question: Option<(u64, Request)>,
    pub renewal: Option<(u64, LeaseId)>,
    /// A read of one record that was asked for.
    pub look: Option<(u64, Request)>,
    /// Number, and the revision up to which it has told; none before it is created.
    pub watch: Option<(u64, u64, bool)>,
    pub late: Vec<Request>,
    /// Answers under way.
    slow_answer: Option<(u64, Outcome)>,
    slow_renewal: Option<(u64, (Header, Option<Duration>))>,
    /// Effects that are for cores and operators.
    pub told: VecDeque<Effect>,
    pub life_awaited: bool,
    pub lives_made: u8,
    seed: u8,
}

impl Process {
    pub fn new(name: &str, port: u16, seed: u8, now: Moment) -> Process {
        Process::with(name, contact(port, 1), seed, 0, now)
    }

    pub fn with(name: &str, contact: Contact, seed: u8, epoch_least: u64, now: Moment) -> Process {
        Process::under(RefreshPolicy::default(), name, contact, seed, epoch_least, now)
    }

    pub fn under(
        refresh: RefreshPolicy,
        name: &str,
        contact: Contact,
        seed: u8,
        epoch_least: u64,
        now: Moment,
    ) -> Process {
        let settings = Settings {
            applicant: Applicant { node: node(name), contact, cluster_draft: ClusterUuid([seed; 16]) },
            lease: LEASE,
            epoch_least,
            retry: PauseBounds { min: Duration::from_millis(100), max: seconds(3) },
            refused_pause: seconds(2),
            jitter: u64::from(seed),
            refresh,
        };
        Process {
            room: Membership::new(settings, now),
            question: None,
            renewal: None,
            look: None,
            watch: None,
            late: Vec::new(),
            slow_answer: None,
            slow_renewal: None,
            told: VecDeque::new(),
            life_awaited: true,
            lives_made: 0,
            seed,
        }
    }

    /// A process whose shards are ready.
    pub fn started(name: &str, port: u16, seed: u8, now: Moment) -> Process {
        let mut process = Process::new(name, port, seed, now);
        process.begin_life(now);
        process
    }

    pub fn begin_life(&mut self, now: Moment) {
        self.life_awaited = false;
        self.lives_made += 1;
        let mut bytes = [self.seed; 16];
        bytes[0] = self.lives_made;
        self.room.on_life_ready(Incarnation(bytes), now);
        self.pump();
    }

    pub fn pump(&mut self) {
        while let Some(effect) = self.room.poll_effect() {
            match effect {
                Effect::Ask { number, request } => self.question = Some((number, request)),
                Effect::Lookup { number, request } => {
                    assert!(self.look.is_none(), "one at a time");
                    self.look = Some((number, request));
                }
                Effect::Renew { number, lease } => self.renewal = Some((number, lease)),
                Effect::Watch { number, after } => self.watch = Some((number, after, false)),
                Effect::BeginLife => self.life_awaited = true,
                effect => self.told.push_back(effect),
            }
        }
    }

    pub fn tick(&mut self, now: Moment) {
        self.room.on_tick(now);
        self.pump();
    }

    /// Lets what is asked happen, as `fate` says; whether there was anything.
    pub fn exchange(&mut self, etcd: &mut Etcd, fate: Fate, now: Moment) -> bool {
        if let Some((number, answer)) = self.slow_answer.take() {
            self.room.on_answer(number, answer, now);
            self.pump();
            return true;
        }
        let Some((number, request)) = self.question.take() else { return false };
        let answer = match fate {
            Fate::Slow => {
                self.slow_answer = Some((number, etcd.serve(&request, now)));
                return true;
            }
            Fate::Answered => etcd.serve(&request, now),
            Fate::AnswerLost => {
                let _ = etcd.serve(&request, now);
                Err(Failure::Unanswered("lost".into()))
            }
            Fate::Lost => Err(Failure::Unanswered("lost".into())),
            Fate::Late => {
                self.late.push(request);
                Err(Failure::Unanswered("late".into()))
            }
        };
        self.room.on_answer(number, answer, now);
        self.pump();
        true
    }

    /// Answers the read of one record that is asked for, with what `etcd` has; whether there is one.
    pub fn look(&mut self, etcd: &mut Etcd, now: Moment) -> bool {
        let Some((number, request)) = self.look.take() else { return false };
        let answer = etcd.serve(&request, now);
        self.room.on_answer(number, answer, now);
        self.pump();
        true
    }

    pub fn renew(&mut self, etcd: &mut Etcd, fate: Fate, now: Moment) -> bool {
        if let Some((number, answer)) = self.slow_renewal.take() {
            self.room.on_renewed(number, Ok(answer), now);
            self.pump();
            return true;
        }
        let Some((number, lease)) = self.renewal.take() else { return false };
        let result = match fate {
            Fate::Slow => {
                self.slow_renewal = Some((number, etcd.renew(lease, now)));
                return true;
            }
            Fate::Answered => Ok(etcd.renew(lease, now)),
            Fate::AnswerLost | Fate::Late => {
                let _ = etcd.renew(lease, now);
                Err(Failure::Unanswered("lost".into()))
            }
            Fate::Lost => Err(Failure::Unanswered("lost".into())),
        };
        self.room.on_renewed(number, result, now);
        self.pump();
        true
    }

    /// Whatever the watch has to say.
    pub fn hear(&mut self, etcd: &Etcd, now: Moment) -> bool {
        let Some((number, told, created)) = self.watch else { return false };
        let news = if created { etcd.events_after(told) } else { News::Created };
        match &news {
            News::Created => self.watch = Some((number, told, true)),
            News::Events(events) if events.is_empty() => return false,
            News::Events(_) => self.watch = Some((number, etcd.revision.max(told), true)),
            News::Compacted | News::Ended(_) => self.watch = None,
        }
        self.room.on_news(number, Some(etcd.header()), news, now);
        self.pump();
        true
    }

    pub fn cut(&mut self, now: Moment) {
        if let Some((number, ..)) = self.watch.take() {
            self.room.on_news(number, None, News::Ended("cut".into()), now);
            self.pump();
        }
    }

    /// Everything that is asked is answered, until nothing is asked at this moment.
    pub fn settle(&mut self, etcd: &mut Etcd, now: Moment) {
        self.tick(now);
        for _ in 0..50 {
            let mut moved = self.exchange(etcd, Fate::Answered, now);
            moved |= self.look(etcd, now);
            moved |= self.renew(etcd, Fate::Answered, now);
            moved |= self.hear(etcd, now);
            if self.life_awaited {
                self.begin_life(now);
                moved = true;
            }
            if !moved {
                return;
            }
        }
        panic!("it asks for ever");
    }

    /// As [`Process::settle`], with the moments in between that the room asks for.
    pub fn run(&mut self, etcd: &mut Etcd, now: &mut Moment, time: Duration) {
        let end = *now + time;
        loop {
            etcd.expire(*now);
            self.settle(etcd, *now);
            let next = self.room.next_deadline().unwrap_or(end);
            if next >= end || *now >= end {
                break;
            }
            *now = next.max(*now + Duration::from_millis(1));
        }
        *now = end;
        etcd.expire(*now);
        self.settle(etcd, *now);
    }

    pub fn alarms(&self) -> Vec<&Alarm> {
        self.told
            .iter()
            .filter_map(|effect| match effect {
                Effect::Alarm(alarm) => Some(alarm),
                _ => None,
            })
            .collect()
    }

    pub fn fences(&self) -> Vec<&FenceCause> {
        self.told
            .iter()
            .filter_map(|effect| match effect {
                Effect::Fenced { cause, .. } => Some(cause),
                _ => None,
            })
            .collect()
    }

    pub fn epoch(&self) -> Option<u64> {
        self.room.local().map(|local| local.epoch)
    }
}
