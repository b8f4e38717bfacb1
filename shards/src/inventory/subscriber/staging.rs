//! What becomes of offered snapshots: room, then a permit, then a hidden view that is filled (chapters 2.4
//! and 2.6).
//!
//! An offer that has to wait for other snapshots is held, unanswered, in the order in which it came. Its
//! source takes it back if that lasts too long, and offers anew.

use orbitkv_wire::identity::{Sequence, SnapshotId};
use orbitkv_wire::inventory::FromRequester;

use super::close::CloseCause;
use super::fit::Fit;
use super::session::Phase;
use super::snapshot::{Bootstrap, Commit, Misfit, Offer, Staging};
use super::stream::OwnerView;
use super::{Index, StreamId, Subscriber, SubscriberEffect};
use crate::index::Owner;
use crate::inventory::PermitTicket;
use crate::time::Moment;

/// Held offers that are looked at in one turn.
const HELD_PER_TURN: usize = 64;

impl Subscriber {
    /// A permit to receive a snapshot is granted.
    pub fn on_permit(&mut self, ticket: PermitTicket, _now: Moment) {
        if self.tickets.contains_key(&ticket) {
            self.granted.push_back(ticket);
        }
    }

    /// The source has reset the stream. Its view stays for hints.
    pub(super) fn begin_bootstrap(&mut self, id: StreamId, now: Moment) {
        let stream = self.streams.get_mut(&id).expect("a stream that is expected");
        stream.lacking_since.get_or_insert(now);
        self.set_phase(id, Phase::Bootstrapping(Bootstrap::Idle));
    }

    /// Leaves the phase a session is in, with what was only of that phase.
    fn set_phase(&mut self, id: StreamId, phase: Phase) {
        let stream = self.streams.get_mut(&id).expect("a stream that is expected");
        let session = stream.session_mut().expect("only sessions have phases");
        if let Phase::Bootstrapping(bootstrap) = std::mem::replace(&mut session.phase, phase) {
            self.drop_bootstrap(id, bootstrap);
        }
    }

    /// Ends a bootstrap that was not installed.
    pub(super) fn drop_bootstrap(&mut self, id: StreamId, bootstrap: Bootstrap) {
        match bootstrap {
            Bootstrap::Idle | Bootstrap::Refused => {}
            Bootstrap::Held(_) => self.held.retain(|held| *held != id),
            Bootstrap::Offered(_, ticket) => {
                self.tickets.remove(&ticket);
                self.has_room_come = true;
                self.effects.push_back(SubscriberEffect::ReturnPermit(ticket));
            }
            Bootstrap::Staging(staging) => {
                self.applying.take_if(|applying| applying.stream == id);
                self.orphans.push(staging.view);
                self.stagings.remove(&id);
                self.has_room_come = true;
                self.effects.push_back(SubscriberEffect::ReturnPermit(staging.ticket));
            }
        }
    }

    /// A snapshot is offered; it replaces whatever was offered or accepted before.
    pub(super) fn on_offer(
        &mut self,
        id: StreamId,
        snapshot: SnapshotId,
        after: Sequence,
        rows_max: u64,
        index: &mut Index<'_>,
        now: Moment,
    ) {
        self.begin_bootstrap(id, now);
        self.retire_orphans(index);
        let offer = Offer { snapshot, after, rows_max };
        let fit = match self.weigh(id, rows_max, index.partition, now) {
            // Others came first.
            Fit::Now | Fit::InsteadOf(_) if !self.held.is_empty() => Fit::Later,
            fit => fit,
        };
        if fit == Fit::Later {
            self.held.push_back(id);
        }
        self.answer(id, offer, fit, index, now);
    }

    /// Does what follows from how an offer fits. One that has to wait is in `held` already.
    fn answer(&mut self, id: StreamId, offer: Offer, fit: Fit, index: &mut Index<'_>, now: Moment) {
        match fit {
            Fit::Now => {
                let ticket = PermitTicket(self.tickets_made);
                self.tickets_made += 1;
                self.tickets.insert(ticket, id);
                self.effects.push_back(SubscriberEffect::WantPermit(ticket));
                self.set_phase(id, Phase::Bootstrapping(Bootstrap::Offered(offer, ticket)));
            }
            Fit::Later => {
                self.figures.snapshots_held += 1;
                self.set_phase(id, Phase::Bootstrapping(Bootstrap::Held(offer)));
            }
            _ => self.refuse(id, offer, fit, index, now),
        }
    }

    /// Looks at held offers again after a snapshot or a wish for one has ended, in the order in which they
    /// came, until one has to wait on.
    pub(super) fn reconsider_held(&mut self, index: &mut Index<'_>, now: Moment) {
        if !std::mem::take(&mut self.has_room_come) {
            return;
        }
        for _ in 0..HELD_PER_TURN {
            let Some(&id) = self.held.front() else { return };
            let session = self.streams[&id].session().expect("an offer is a session's");
            let Phase::Bootstrapping(Bootstrap::Held(offer)) = session.phase else {
                unreachable!("an offer is held")
            };
            let fit = self.weigh(id, offer.rows_max, index.partition, now);
            if fit == Fit::Later {
                return;
            }
            self.begin_bootstrap(id, now);
            self.answer(id, offer, fit, index, now);
            self.settle(id);
        }
        self.has_room_come = true;
    }

    /// Takes up the offers whose permits have been granted, if they still fit.
    pub(super) fn accept_granted(&mut self, index: &mut Index<'_>, now: Moment) {
        while let Some(ticket) = self.granted.pop_front() {
            let Some(&id) = self.tickets.get(&ticket) else { continue };
            let session = self.streams[&id].session().expect("a wish is a session's");
            let Phase::Bootstrapping(Bootstrap::Offered(offer, _)) = session.phase else {
                unreachable!("a wish is an offer's")
            };
            let owner = self.owner(id);
            let fit = self.weigh(id, offer.rows_max, index.partition, now);
            let opened = match fit {
                Fit::Now => index.partition.open_view(owner).map_err(|_| Fit::TooLarge),
                _ => Err(fit),
            };
            match opened {
                Ok(view) => {
                    self.tickets.remove(&ticket);
                    let room_bytes = self.free_bytes(index.partition);
                    let page_due = now + self.settings.page_wait;
                    let staging = Box::new(Staging::new(offer, view, ticket, room_bytes, page_due));
                    let session = self.session(id);
                    session.phase = Phase::Bootstrapping(Bootstrap::Staging(staging));
                    self.stagings.insert(id);
                    self.figures.snapshots_accepted += 1;
                    self.say(id, &FromRequester::SnapshotAccept { snapshot: offer.snapshot });
                }
                Err(fit) => {
                    self.begin_bootstrap(id, now);
                    if fit == Fit::Later {
                        // It has waited for its permit while those in `held` came.
                        self.held.push_front(id);
                    }
                    self.answer(id, offer, fit, index, now);
                }
            }
            self.settle(id);
        }
    }

    fn refuse(&mut self, id: StreamId, offer: Offer, fit: Fit, index: &mut Index<'_>, now: Moment) {
        let wait = match fit {
            Fit::Now | Fit::Later => unreachable!("what fits is not refused"),
            Fit::Again { wait } => wait,
            Fit::Sweeping => self.settings.sweep_wait,
            Fit::Instead => {
                self.withdraw(id, index);
                self.settings.sweep_wait
            }
            Fit::InsteadOf(other) => {
                self.withdraw(other, index);
                self.settle(other);
                self.settings.sweep_wait
            }
            Fit::TooLarge => {
                let room_bytes = self.room_bytes(id, index.partition);
                self.note_misfit(id, Some((offer.rows_max, room_bytes)), now);
                self.settings.misfit_wait
            }
        };
        self.set_phase(id, Phase::Bootstrapping(Bootstrap::Refused));
        self.figures.snapshots_refused += 1;
        let retry_after_ms = wait.as_millis().min(u128::from(u32::MAX)) as u32;
        self.say(id, &FromRequester::SnapshotRefuse { snapshot: offer.snapshot, retry_after_ms });
    }

    /// Gives a view up. Only a complete snapshot makes its owner active again.
    fn withdraw(&mut self, id: StreamId, index: &mut Index<'_>) {
        let stream = self.streams.get_mut(&id).expect("a stream that is expected");
        if let Some(view) = stream.view.take() {
            index.partition.retire(view.id);
            self.figures.views_withdrawn += 1;
        }
    }

    /// Remembers that there was no room, so that it is not tried again in vain.
    pub(super) fn note_misfit(&mut self, id: StreamId, snapshot: Option<(u64, u64)>, now: Moment) {
        let stream = self.streams.get_mut(&id).expect("a stream that is expected");
        stream.misfit = Some(Misfit { snapshot, at: now });
        stream.lacking_since.get_or_insert(now);
    }

    /// Scan and replay are said to be whole. If they are, the new view takes the old one's place at once.
    pub(super) fn on_commit(
        &mut self,
        id: StreamId,
        commit: &Commit,
        index: &mut Index<'_>,
        now: Moment,
    ) -> Result<(), CloseCause> {
        let stream = self.streams.get_mut(&id).expect("a stream that is expected");
        let session = stream.session_mut().expect("frames come in sessions");
        let Phase::Bootstrapping(Bootstrap::Staging(staging)) = &session.phase else {
            return Err(CloseCause::Unexpected("a commit"));
        };
        staging.check(commit)?;
        let (snapshot, applied) = (commit.snapshot, commit.through);
        let (new, ticket) = (staging.view, staging.ticket);
        session.phase = Phase::Live;
        self.generations += 1;
        index.partition.install(new);
        let generation = self.generations;
        let view = OwnerView { id: new, snapshot, generation, applied, begun: applied };
        let old = stream.view.replace(view);
        let lacking = stream.lacking_since.take().map(|since| now - since).unwrap_or_default();
        match old {
            Some(old) => {
                index.partition.retire(old.id);
                self.figures.repairs.add(lacking);
            }
            None => self.figures.bootstraps.add(lacking),
        }
        stream.misfit = None;
        stream.failures = 0;
        self.stagings.remove(&id);
        self.has_room_come = true;
        self.effects.push_back(SubscriberEffect::ReturnPermit(ticket));
        self.figures.snapshots_installed += 1;
        Ok(())
    }

    fn owner(&self, id: StreamId) -> Owner {
        let stream = &self.streams[&id];
        Owner { peer: stream.peer, shard: stream.source.shard }
    }

    /// Hands hidden views that nobody fills any more to the sweep.
    pub(super) fn retire_orphans(&mut self, index: &mut Index<'_>) {
        self.orphans.drain(..).for_each(|view| index.partition.retire(view));
    }
}
