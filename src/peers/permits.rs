//! Snapshot permits over the cores of a node: the pools are on core 0, and wishes travel by mail.

use orbitkv_shards::inventory::PermitTicket;
use orbitkv_shards::inventory::permits::{Applicant, PermitEffect, Permits, SNAPSHOTS_MAX};
use orbitkv_shards::time::Moment;

use super::Peers;
use crate::core::mail::Letter;

/// Which of the two pools of permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// Snapshots that the node serves.
    Served,
    /// Snapshots that it receives.
    Received,
}

/// What cores say to each other about permits.
#[derive(Clone, Copy, Debug)]
pub enum PermitLetter {
    /// To core 0: somebody wants one.
    Want(Pool, Applicant),
    /// To core 0: a wish has ended.
    Return(Pool, Applicant),
    /// From core 0: it is granted.
    Granted(Pool, PermitTicket),
    /// From core 0: it waits at this place; 1 is next.
    Waits(Pool, PermitTicket, u32),
}

/// The pools of a node whose cores wish for at most so many at a time.
pub(super) fn pools(wishes_max: usize) -> [Permits; 2] {
    [(); 2].map(|()| Permits::new(SNAPSHOTS_MAX, wishes_max))
}

impl Peers {
    pub(super) fn ask_permit(&mut self, pool: Pool, ticket: PermitTicket, wants: bool, now: Moment) {
        let applicant = Applicant { shard: self.shard, ticket };
        let letter = match wants {
            true => PermitLetter::Want(pool, applicant),
            false => PermitLetter::Return(pool, applicant),
        };
        match self.pools {
            Some(_) => self.on_permit_letter(letter, now),
            None => self.letters.push_back((0, Letter::Permit(letter))),
        }
    }

    /// What another core says about permits.
    pub fn on_permit_letter(&mut self, letter: PermitLetter, now: Moment) {
        match letter {
            PermitLetter::Want(pool, applicant) => {
                self.pool(pool).request(applicant).expect("the queue holds every session of the node");
                self.poll_pool(pool, now);
            }
            PermitLetter::Return(pool, applicant) => {
                self.pool(pool).give_back(applicant);
                self.poll_pool(pool, now);
            }
            PermitLetter::Granted(Pool::Served, ticket) => self.publisher.on_permit(ticket, now),
            PermitLetter::Granted(Pool::Received, ticket) => self.subscriber.on_permit(ticket, now),
            PermitLetter::Waits(Pool::Served, ticket, place) => {
                self.publisher.on_permit_waits(ticket, place, now);
            }
            // A requester tells nobody how long it waits for itself.
            PermitLetter::Waits(Pool::Received, ..) => {}
        }
        self.wake();
    }

    fn pool(&mut self, pool: Pool) -> &mut Permits {
        &mut self.pools.as_mut().expect("wishes go to core 0")[pool as usize]
    }

    fn poll_pool(&mut self, pool: Pool, now: Moment) {
        while let Some(effect) = self.pool(pool).poll_effect() {
            let (to, letter) = match effect {
                PermitEffect::Granted(Applicant { shard, ticket }) => {
                    (shard, PermitLetter::Granted(pool, ticket))
                }
                PermitEffect::Waits { applicant: Applicant { shard, ticket }, position } => {
                    (shard, PermitLetter::Waits(pool, ticket, position))
                }
            };
            match to == self.shard {
                true => self.on_permit_letter(letter, now),
                false => self.letters.push_back((usize::from(to.0), Letter::Permit(letter))),
            }
        }
    }
}
