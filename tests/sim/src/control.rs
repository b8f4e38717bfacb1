//! A node's control thread, as a model: registration, renewals, the watch, and the mail to the cores.
//!
//! It decides and performs nothing; what it wants done comes back as actions. The two-step by which
//! cores move to a new revision is the production room's.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use orbitkv_shards::coverage::RaiseGate;
use orbitkv_shards::members::{Local, Member, MemberMap};
use orbitkv_shards::time::Moment;
use orbitkv_wire::identity::{ClusterUuid, Incarnation, NodeId, ShardIndex};
use orbitkv_wire::scope::Scope;

use crate::canary::Canary;
use crate::counters::{Counter, Counters};
use crate::mail::Mail;
use crate::registry::RegisterRefusal;

/// Between two attempts at the membership service.
const RETRY: Duration = Duration::from_millis(400);

/// What control asks the membership service.
#[derive(Clone, Debug)]
pub enum Request {
    /// The epoch of this node.
    ReadEpoch,
    /// Write this record.
    Register(Member),
    /// Prolong the lease; sent at this moment.
    Renew(Incarnation, Moment),
    /// Take the record away.
    Leave(Incarnation),
    /// Who is a member.
    ReadMembers,
}

/// What the service answers.
#[derive(Clone, Debug)]
pub enum Reply {
    /// The epoch.
    Epoch(u64),
    /// The record is written, or not.
    Registered(Result<Rc<MemberMap>, RegisterRefusal>),
    /// The lease of a renewal sent at this moment goes on, or there is none.
    Renewed(Incarnation, Moment, bool),
    /// Who is a member.
    Members(Rc<MemberMap>),
}

/// What control reminds itself of.
#[derive(Clone, Copy, Debug)]
pub enum Reminder {
    /// Ask again, if this is still what is waited for.
    Retry(u64),
    /// Renew the lease of this life.
    Renew(Incarnation),
    /// This life's deadline may have passed.
    Deadline(Incarnation),
}

/// What control wants done.
#[derive(Clone, Debug)]
pub enum Action {
    /// Mail to a core.
    Mail(ShardIndex, Mail),
    /// Ask the service.
    Ask(Request),
    /// Come back later.
    Remind(Duration, Reminder),
    /// Watch from after this revision on.
    Watch(u64),
}

/// Where a registration life stands.
#[derive(Clone, Debug)]
enum Standing {
    /// The epoch is being read.
    ReadingEpoch { incarnation: Incarnation },
    /// The record is being written.
    Registering { member: Member, sent: Moment },
    /// A member until the deadline, if nothing renews it.
    Member { local: Local, deadline: Moment },
    /// Fenced; the cores put their residents again.
    Restarting { incarnation: Incarnation, missing: BTreeSet<ShardIndex> },
    /// It has left and stays away.
    Left,
}

/// Control of one process.
pub struct Control {
    cluster: ClusterUuid,
    node: NodeId,
    address: SocketAddr,
    shards: u16,
    lease: Duration,
    standing: Standing,
    gate: RaiseGate,
    attempt: u64,
    scope_generation: u64,
    /// The newest revision that cores were mailed.
    revision: u64,
    canary: Option<Canary>,
}

impl Control {
    /// Control of a process that starts with a life of this name.
    #[must_use]
    pub fn new(
        cluster: ClusterUuid,
        node: NodeId,
        address: SocketAddr,
        shards: u16,
        lease: Duration,
        incarnation: Incarnation,
        canary: Option<Canary>,
    ) -> (Control, Vec<Action>) {
        let mut control = Control {
            cluster,
            node,
            address,
            shards,
            lease,
            standing: Standing::Left,
            gate: RaiseGate::new(shards),
            attempt: 0,
            scope_generation: 1,
            revision: 0,
            canary,
        };
        let actions = control.read_epoch(incarnation);
        (control, actions)
    }

    /// The life that is a member, as far as it knows.
    #[must_use]
    pub fn local(&self) -> Option<&Local> {
        match &self.standing {
            Standing::Member { local, .. } => Some(local),
            _ => None,
        }
    }

    fn mail_all(&self, mail: &Mail) -> impl Iterator<Item = Action> {
        (0..self.shards)
            .map(|core| Action::Mail(ShardIndex(core), mail.clone()))
            .collect::<Vec<_>>()
            .into_iter()
    }

    fn ask(&mut self, request: Request) -> Vec<Action> {
        self.attempt += 1;
        vec![Action::Ask(request), Action::Remind(RETRY, Reminder::Retry(self.attempt))]
    }

    fn read_epoch(&mut self, incarnation: Incarnation) -> Vec<Action> {
        self.standing = Standing::ReadingEpoch { incarnation };
        self.ask(Request::ReadEpoch)
    }

    /// The service answers.
    pub fn on_reply(
        &mut self,
        reply: Reply,
        now: Moment,
        next_life: Incarnation,
        counters: &mut Counters,
    ) -> Vec<Action> {
        match (reply, self.standing.clone()) {
            (Reply::Epoch(epoch), Standing::ReadingEpoch { incarnation }) => {
                let (node, epoch) = (self.node, epoch + 1);
                let member = Member { node, epoch, incarnation, shards: self.shards, address: self.address };
                self.standing = Standing::Registering { member, sent: now };
                self.ask(Request::Register(member))
            }
            (Reply::Registered(Ok(map)), Standing::Registering { member, sent }) => {
                let Member { node, epoch, incarnation, shards, .. } = member;
                let local = Local { cluster: self.cluster, node, epoch, incarnation, shards };
                // Half the lease, from the moment its first request was sent.
                let deadline = sent + self.lease / 2;
                self.standing = Standing::Member { local, deadline };
                let mut actions: Vec<_> = self.mail_all(&Mail::Registered(local, deadline)).collect();
                actions.push(Action::Watch(map.revision));
                actions.push(Action::Ask(Request::Renew(local.incarnation, now)));
                actions.push(Action::Remind(self.lease / 8, Reminder::Renew(local.incarnation)));
                actions.push(Action::Remind(deadline.since(now), Reminder::Deadline(local.incarnation)));
                actions.extend(self.lower(map));
                actions
            }
            (Reply::Registered(Err(refusal)), Standing::Registering { member, .. }) => {
                counters.count(Counter::RegistrationRefused);
                match refusal {
                    // Its record may have been there and be gone again: that life is over.
                    RegisterRefusal::EpochMoved => self.fence(next_life),
                    RegisterRefusal::NameIsHeld | RegisterRefusal::AddressIsHeld => {
                        self.standing = Standing::ReadingEpoch { incarnation: member.incarnation };
                        self.attempt += 1;
                        vec![Action::Remind(RETRY, Reminder::Retry(self.attempt))]
                    }
                }
            }
            (Reply::Renewed(incarnation, sent, held), Standing::Member { local, deadline })
                if incarnation == local.incarnation =>
            {
                if !held {
                    counters.count(Counter::FencedByService);
                    return self.fence(next_life);
                }
                let deadline = deadline.max(sent + self.lease / 2);
                self.standing = Standing::Member { local, deadline };
                self.mail_all(&Mail::Deadline(deadline))
                    .chain([Action::Remind(deadline.since(now), Reminder::Deadline(incarnation))])
                    .collect()
            }
            (Reply::Members(map), Standing::Member { .. }) if map.revision >= self.revision => {
                let watch = Action::Watch(map.revision);
                let mut actions = self.on_map(map, next_life, counters);
                actions.insert(0, watch);
                actions
            }
            _ => Vec::new(),
        }
    }

    /// The watch tells of a revision, or a snapshot was read.
    pub fn on_map(
        &mut self,
        map: Rc<MemberMap>,
        next_life: Incarnation,
        counters: &mut Counters,
    ) -> Vec<Action> {
        let Standing::Member { local, .. } = &self.standing else { return Vec::new() };
        // What was read before something newer was heard of says nothing any more.
        if map.revision < self.revision {
            return Vec::new();
        }
        if !map.has(local.node, local.incarnation) {
            counters.count(Counter::FencedByService);
            return self.fence(next_life);
        }
        self.lower(map)
    }

    fn lower(&mut self, map: Rc<MemberMap>) -> Vec<Action> {
        if !self.gate.lower(map.revision) {
            return Vec::new();
        }
        self.revision = map.revision;
        let mut actions: Vec<_> = self.mail_all(&Mail::Lower(Rc::clone(&map))).collect();
        if self.canary == Some(Canary::RaiseEarly) {
            actions.extend(self.mail_all(&Mail::MayRaise(map.revision)));
        }
        actions
    }

    /// The watch has lost its place: nothing is believed until a snapshot was read.
    pub fn on_watch_broken(&mut self) -> Vec<Action> {
        if self.local().is_none() {
            return Vec::new();
        }
        self.gate = RaiseGate::new(self.shards);
        let mut actions: Vec<_> = self.mail_all(&Mail::MembershipInvalid).collect();
        actions.extend(self.ask(Request::ReadMembers));
        actions
    }

    /// A core stands at a revision.
    pub fn on_lowered(&mut self, core: ShardIndex, revision: u64) -> Vec<Action> {
        match self.gate.on_lowered(core, revision) {
            Some(revision) => self.mail_all(&Mail::MayRaise(revision)).collect(),
            None => Vec::new(),
        }
    }

    /// A core has put its residents again.
    pub fn on_restarted(&mut self, core: ShardIndex, of: Incarnation) -> Vec<Action> {
        match &mut self.standing {
            Standing::Restarting { incarnation, missing } if *incarnation == of => {
                missing.remove(&core);
                let incarnation = *incarnation;
                if missing.is_empty() { self.read_epoch(incarnation) } else { Vec::new() }
            }
            _ => Vec::new(),
        }
    }

    /// A core has found the deadline passed.
    pub fn on_core_fenced(
        &mut self,
        of: Incarnation,
        next_life: Incarnation,
        counters: &mut Counters,
    ) -> Vec<Action> {
        match &self.standing {
            Standing::Member { local, .. } if local.incarnation == of => {
                counters.count(Counter::FencedByDeadline);
                self.fence(next_life)
            }
            _ => Vec::new(),
        }
    }

    fn fence(&mut self, next_life: Incarnation) -> Vec<Action> {
        let missing = (0..self.shards).map(ShardIndex).collect();
        self.standing = Standing::Restarting { incarnation: next_life, missing };
        self.gate = RaiseGate::new(self.shards);
        self.mail_all(&Mail::Fence).chain(self.mail_all(&Mail::NewLife(next_life))).collect()
    }

    /// The operator subscribes to something else.
    #[must_use]
    pub fn subscribe(&mut self, scope: &Scope) -> Vec<Action> {
        self.scope_generation += 1;
        self.mail_all(&Mail::Scope(scope.clone(), self.scope_generation)).collect()
    }

    /// The operator wants the node to leave.
    pub fn leave(&mut self) -> Vec<Action> {
        let Standing::Member { local, .. } = std::mem::replace(&mut self.standing, Standing::Left) else {
            return Vec::new();
        };
        self.mail_all(&Mail::Fence).chain([Action::Ask(Request::Leave(local.incarnation))]).collect()
    }

    /// A reminder is due.
    pub fn on_reminder(
        &mut self,
        reminder: Reminder,
        now: Moment,
        next_life: Incarnation,
        counters: &mut Counters,
    ) -> Vec<Action> {
        match (reminder, self.standing.clone()) {
            (Reminder::Retry(attempt), _) if attempt != self.attempt => Vec::new(),
            (Reminder::Retry(_), Standing::ReadingEpoch { incarnation }) => self.read_epoch(incarnation),
            // The record may have been written and only its answer lost: the same one is written again.
            (Reminder::Retry(_), Standing::Registering { member, .. }) => self.ask(Request::Register(member)),
            (Reminder::Retry(_), Standing::Member { .. }) if self.gate.revision().is_none() => {
                self.ask(Request::ReadMembers)
            }
            (Reminder::Renew(incarnation), Standing::Member { local, .. })
                if incarnation == local.incarnation =>
            {
                vec![
                    Action::Ask(Request::Renew(incarnation, now)),
                    Action::Remind(self.lease / 8, Reminder::Renew(incarnation)),
                ]
            }
            (Reminder::Deadline(incarnation), Standing::Member { local, deadline })
                if incarnation == local.incarnation
                    && now >= deadline
                    && self.canary != Some(Canary::OutliveLease) =>
            {
                counters.count(Counter::FencedByDeadline);
                self.fence(next_life)
            }
            _ => Vec::new(),
        }
    }
}
