//! Letters between the cores of a node: what they bring, and the pools of permits on core 0.

use std::rc::Rc;

use orbitkv_shards::inventory::PermitTicket;
use orbitkv_shards::inventory::permits::{Applicant, PermitEffect};
use orbitkv_shards::inventory::subscriber::Index;
use orbitkv_shards::members::Local;
use orbitkv_shards::time::Moment;
use orbitkv_wire::identity::ShardIndex;

use crate::canary::Canary;
use crate::core::{Core, Life};
use crate::event::Process;
use crate::mail::{Mail, Pool, Reader};
use crate::network::Place;
use crate::oracle::Verdict;
use crate::world::World;

impl World {
    /// A core looks at its deadline before it takes anything.
    pub(crate) fn check_deadline(&mut self, place: Place) {
        let now = self.now();
        let core = &self.nodes[usize::from(place.node)].cores[usize::from(place.core)];
        if core.is_overdue(now) && self.canary != Some(Canary::OutliveLease) {
            let incarnation = core!(self, place).local.incarnation;
            self.fence_core(place);
            let process = Process { node: place.node, number: place.process };
            let core = Reader::Core(ShardIndex(place.core));
            self.post(process, core, Reader::Control, Mail::DeadlinePassed(incarnation));
        }
    }

    pub(super) fn fence_core(&mut self, place: Place) {
        let now = self.now();
        let core = core!(self, place);
        if core.life != Life::Over {
            core.life = Life::Over;
            core.publisher.on_fenced(now);
            core.subscriber.on_fenced(now);
            core.map = None;
            self.wake(place);
        }
    }

    pub(crate) fn on_mail(&mut self, process: Process, to: Reader, mail: Mail) -> Verdict {
        let Reader::Core(shard) = to else { return self.on_control_mail(process, mail) };
        let place = Place { node: process.node, process: process.number, core: shard.0 };
        self.check_deadline(place);
        let own = Reader::Core(shard);
        let now = self.now();
        match mail {
            Mail::Lower(map) => {
                let revision = map.revision;
                let planted = self.canary == Some(Canary::SkipRetire);
                let core = core!(self, place);
                let lost = core.map.as_ref().is_some_and(|before| {
                    before.members().iter().any(|member| !map.has(member.node, member.incarnation))
                });
                let skips = planted && lost;
                if !matches!(core.life, Life::Member { .. }) {
                    return Ok(());
                }
                core.map = Some(Rc::clone(&map));
                core.known = Some(Rc::clone(&map));
                if !skips {
                    let Core { subscriber, partition, namespaces, .. } = core;
                    subscriber.on_lower(&map, &mut Index { partition, namespaces }, now);
                    core.publisher.on_members(&map, now);
                }
                self.post(process, own, Reader::Control, Mail::Lowered(shard, revision));
            }
            Mail::MayRaise(revision) => core!(self, place).subscriber.on_may_raise(revision),
            Mail::MembershipInvalid => core!(self, place).subscriber.on_membership_invalid(now),
            Mail::Scope(scope, generation) => {
                let Core { subscriber, partition, namespaces, scope: own, .. } = core!(self, place);
                *own = scope.clone();
                subscriber.on_scope(scope, generation, &mut Index { partition, namespaces }, now);
            }
            Mail::Fence => self.fence_core(place),
            Mail::NewLife(incarnation) => {
                self.fence_core(place);
                let World { nodes, truth, .. } = self;
                let core = &mut nodes[usize::from(place.node)].cores[usize::from(place.core)];
                core.stock.restart(incarnation, truth);
                core.restarting = Some(incarnation);
            }
            Mail::Registered(local, deadline) => self.on_registered(place, local, deadline),
            Mail::Deadline(deadline) => {
                let core = core!(self, place);
                if let Life::Member { deadline: known } = &mut core.life {
                    *known = deadline.max(*known);
                }
            }
            Mail::Expose(sync) => {
                let core = core!(self, place);
                core.publisher.expose();
                let settled = core.stock.is_settled() && matches!(core.life, Life::Member { .. });
                let head = settled.then(|| (core.local.incarnation, core.stock.journal.head()));
                self.post(process, own, Reader::Control, Mail::Exposed(sync, shard, head));
            }
            Mail::Read(waiter, round, node, incarnation, targets) => {
                let core = core!(self, place);
                core.subscriber.flush_through(node, incarnation, &targets);
                let mut readings = core.subscriber.readings(node, incarnation);
                if self.canary == Some(Canary::ReadAhead) {
                    readings.iter_mut().for_each(|reading| reading.applied.0 += 1);
                }
                let revision = core.subscriber.coverage(now).revision;
                let mail = Mail::Readings(waiter, round, shard, revision, readings);
                self.post(process, own, Reader::Control, mail);
            }
            Mail::Want(pool, core, ticket) => self.on_want(place, pool, core, ticket),
            Mail::Return(pool, core, ticket) => self.on_return(place, pool, core, ticket),
            Mail::Permit(pool, ticket) => match pool {
                Pool::Served => core!(self, place).publisher.on_permit(ticket, now),
                Pool::Received => core!(self, place).subscriber.on_permit(ticket, now),
            },
            Mail::Waits(pool, ticket, position) => {
                if pool == Pool::Served {
                    core!(self, place).publisher.on_permit_waits(ticket, position, now);
                }
            }
            Mail::Ask(question, asking, keys) => {
                let part = self.answer(place, &keys)?;
                self.post(process, own, Reader::Core(asking), Mail::Answer(question, Box::new(part)));
            }
            Mail::Answer(question, part) => return self.on_answer(place, question, *part),
            other => unreachable!("{other:?} is not for a core"),
        }
        self.wake(place);
        self.check_core(place)
    }

    pub(super) fn on_registered(&mut self, place: Place, local: Local, deadline: Moment) {
        let now = self.now();
        let core = core!(self, place);
        core.local = local;
        core.life = Life::Member { deadline };
        core.publisher.on_registered(local, now);
        core.subscriber.on_registered(local, now);
    }

    pub(super) fn on_want(&mut self, place: Place, pool: Pool, shard: ShardIndex, ticket: PermitTicket) {
        let applicant = Applicant { shard, ticket };
        let third = self.canary == Some(Canary::ThirdPermit);
        let core = core!(self, place);
        if third {
            core.permits_out[pool as usize].push(applicant);
            self.post_permit(place, pool, applicant);
            return;
        }
        let pools = core.pools.as_mut().expect("core 0 has the pools");
        pools[pool as usize].request(applicant).expect("the queue holds every stream of the node");
        self.poll_pool(place, pool);
    }

    pub(super) fn on_return(&mut self, place: Place, pool: Pool, shard: ShardIndex, ticket: PermitTicket) {
        let loses = self.canary == Some(Canary::LoseReturn) && self.part == crate::world::Part::Liveness;
        if loses && self.tampered.lose_return(place.node) {
            return;
        }
        let applicant = Applicant { shard, ticket };
        let third = self.canary == Some(Canary::ThirdPermit);
        let core = core!(self, place);
        core.permits_out[pool as usize].retain(|out| *out != applicant);
        if !third {
            core.pools.as_mut().expect("core 0 has the pools")[pool as usize].give_back(applicant);
            self.poll_pool(place, pool);
        }
    }

    pub(super) fn poll_pool(&mut self, place: Place, pool: Pool) {
        let process = Process { node: place.node, number: place.process };
        while let Some(effect) =
            core!(self, place).pools.as_mut().expect("core 0 has the pools")[pool as usize].poll_effect()
        {
            match effect {
                PermitEffect::Granted(applicant) => {
                    core!(self, place).permits_out[pool as usize].push(applicant);
                    self.post_permit(place, pool, applicant);
                }
                PermitEffect::Waits { applicant, position } => {
                    let mail = Mail::Waits(pool, applicant.ticket, position);
                    self.post(process, Reader::Core(ShardIndex(0)), Reader::Core(applicant.shard), mail);
                }
            }
        }
    }

    pub(super) fn post_permit(&mut self, place: Place, pool: Pool, applicant: Applicant) {
        let process = Process { node: place.node, number: place.process };
        let mail = Mail::Permit(pool, applicant.ticket);
        self.post(process, Reader::Core(ShardIndex(0)), Reader::Core(applicant.shard), mail);
    }
}
