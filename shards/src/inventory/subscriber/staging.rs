//! Which offered snapshots are taken, and when: bytes, then a permit (chapters 2.4 and 2.6).
//!
//! Old and new are charged together. If the new does not fit beside the old but would instead of it, the
//! old is withdrawn and swept first, and the source is asked to offer again. If it does not fit at all,
//! the old stays for hints, and the like is refused until the budget or the estimate has changed.

use std::time::Duration;

use orbitkv_wire::identity::{Sequence, SnapshotId};
use orbitkv_wire::inventory::FromRequester;

use super::close::CloseCause;
use super::session::Phase;
use super::snapshot::{Bootstrap, Commit, Misfit, Offer, Staging, planned_bytes};
use super::stream::OwnerView;
use super::{Index, StreamId, Subscriber, SubscriberEffect};
use crate::index::{Owner, Partition, ROW_BYTES_LEFT};
use crate::inventory::PermitTicket;
use crate::time::Moment;

/// Why an offer is not taken now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// The like did not fit before, and nothing has changed or not enough time has passed.
    Again { wait: Duration },
    /// It will fit when rows that are being removed are gone.
    Sweeping,
    /// It fits only in place of the present view.
    Instead,
    /// It does not fit.
    TooLarge,
}

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
            Bootstrap::Idle => {}
            Bootstrap::Offered(offer) => {
                self.tickets.remove(&offer.ticket);
                self.effects.push_back(SubscriberEffect::ReturnPermit(offer.ticket));
            }
            Bootstrap::Staging(staging) => {
                self.applying.take_if(|applying| applying.stream == id);
                self.orphans.push(staging.view);
                self.stagings.remove(&id);
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
        let refusal = self.weigh(id, rows_max, index.partition, now);
        if let Err(refusal) = refusal {
            return self.refuse(id, snapshot, rows_max, refusal, index, now);
        }
        let ticket = PermitTicket(self.tickets_made);
        self.tickets_made += 1;
        self.tickets.insert(ticket, id);
        self.effects.push_back(SubscriberEffect::WantPermit(ticket));
        let offer = Offer { snapshot, after, rows_max, ticket };
        self.set_phase(id, Phase::Bootstrapping(Bootstrap::Offered(offer)));
    }

    /// Takes up the offers whose permits have been granted, if they still fit.
    pub(super) fn accept_granted(&mut self, index: &mut Index<'_>, now: Moment) {
        while let Some(ticket) = self.granted.pop_front() {
            let Some(&id) = self.tickets.get(&ticket) else { continue };
            let session = self.streams[&id].session().expect("a wish is a session's");
            let Phase::Bootstrapping(Bootstrap::Offered(offer)) = session.phase else {
                unreachable!("a wish is an offer's")
            };
            let owner = self.owner(id);
            let opened = self
                .weigh(id, offer.rows_max, index.partition, now)
                .and_then(|()| index.partition.open_view(owner).map_err(|_| Refusal::TooLarge));
            match opened {
                Ok(view) => {
                    self.tickets.remove(&ticket);
                    let room_bytes = self.free_bytes(index.partition);
                    let page_due = now + self.settings.page_wait;
                    let staging = Box::new(Staging::new(offer, view, room_bytes, page_due));
                    let session = self.session(id);
                    session.phase = Phase::Bootstrapping(Bootstrap::Staging(staging));
                    self.stagings.insert(id);
                    self.figures.snapshots_accepted += 1;
                    self.say(id, &FromRequester::SnapshotAccept { snapshot: offer.snapshot });
                }
                Err(refusal) => {
                    self.begin_bootstrap(id, now);
                    self.refuse(id, offer.snapshot, offer.rows_max, refusal, index, now);
                }
            }
            self.settle(id);
        }
    }

    /// Whether a snapshot of so many rows may be staged now.
    fn weigh(&self, id: StreamId, rows_max: u64, partition: &Partition, now: Moment) -> Result<(), Refusal> {
        let stream = &self.streams[&id];
        let [free_bytes, swept_bytes, instead_bytes] = self.rooms_bytes(id, partition);
        if let Some(misfit) = &stream.misfit {
            let wait = (misfit.at + self.settings.misfit_wait) - now;
            if !wait.is_zero() {
                return Err(Refusal::Again { wait });
            }
            if misfit.repeats(rows_max, instead_bytes) {
                return Err(Refusal::Again { wait: self.settings.misfit_wait });
            }
        }
        // An estimate may be wrong: what has failed with as much room is not tried with it again.
        let needed_bytes = planned_bytes(rows_max);
        let fits = |room_bytes: u64| {
            needed_bytes <= room_bytes
                && !stream.misfit.is_some_and(|misfit| misfit.repeats(rows_max, room_bytes))
        };
        if fits(free_bytes) {
            Ok(())
        } else if fits(swept_bytes) {
            Err(Refusal::Sweeping)
        } else if fits(instead_bytes) {
            Err(Refusal::Instead)
        } else {
            Err(Refusal::TooLarge)
        }
    }

    /// Index bytes that neither rows nor accepted snapshots have a claim to.
    fn free_bytes(&self, partition: &Partition) -> u64 {
        let claimed_bytes: u64 = self.stagings.iter().map(|id| self.claimed_bytes(*id, partition)).sum();
        partition.free_bytes().saturating_sub(claimed_bytes)
    }

    fn claimed_bytes(&self, id: StreamId, partition: &Partition) -> u64 {
        match self.streams[&id].session().map(|session| &session.phase) {
            Some(Phase::Bootstrapping(Bootstrap::Staging(staging))) => {
                staging.outstanding_bytes(partition.view_rows(staging.view))
            }
            _ => unreachable!("a staging is of a session"),
        }
    }

    /// Index bytes that a stream could have: now, after the sweep, and if its present view went as well.
    fn rooms_bytes(&self, id: StreamId, partition: &Partition) -> [u64; 3] {
        let view_rows = self.streams[&id].view.map_or(0, |view| partition.view_rows(view.id));
        let free_bytes = self.free_bytes(partition);
        let swept_bytes = free_bytes + partition.accounting().retired_rows * ROW_BYTES_LEFT;
        [free_bytes, swept_bytes, swept_bytes + u64::from(view_rows) * ROW_BYTES_LEFT]
    }

    fn refuse(
        &mut self,
        id: StreamId,
        snapshot: SnapshotId,
        rows_max: u64,
        refusal: Refusal,
        index: &mut Index<'_>,
        now: Moment,
    ) {
        let wait = match refusal {
            Refusal::Again { wait } => wait,
            Refusal::Sweeping => self.settings.sweep_wait,
            Refusal::Instead => {
                self.withdraw(id, index);
                self.settings.sweep_wait
            }
            Refusal::TooLarge => {
                let [.., room_bytes] = self.rooms_bytes(id, index.partition);
                self.note_misfit(id, Some((rows_max, room_bytes)), now);
                self.settings.misfit_wait
            }
        };
        self.figures.snapshots_refused += 1;
        let retry_after_ms = wait.as_millis().min(u128::from(u32::MAX)) as u32;
        self.say(id, &FromRequester::SnapshotRefuse { snapshot, retry_after_ms });
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
