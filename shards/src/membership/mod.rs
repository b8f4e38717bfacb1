//! Membership: a node's registration lives in etcd, and what it knows of the others.
//!
//! Four things go on beside each other and share nothing but the view: *questions* (read, grant, register;
//! one at a time), *renewals* of the lease, the *watch*, and *looks* at single records, which the shipped policy has none of. A failure of one is no failure of another: a
//! broken watch leaves a renewed life alone, and a lost renewal leaves the members known.
//!
//! A life goes this way and never back:
//!
//! | state | becomes | when |
//! | --- | --- | --- |
//! | Awaited | Unregistered | all shards have begun the incarnation |
//! | Unregistered | Claimed | the transaction that registers it is sent |
//! | Claimed | Member | it happened, by its answer or by what is read later |
//! | Claimed, Member | (fenced) Awaited | the deadline passed, the lease ended, the record is gone or another's, or etcd or the cluster is not what it was |
//! | any | Leaving | the node stops |
//!
//! Whoever drives this room hands in moments of `CLOCK_BOOTTIME`, answers each question and renewal at
//! most once, within a time it chooses, and carries out effects in their order.

mod claim;
pub mod coordinator;
pub mod cutover;
mod doubts;
mod join;
mod lease;
mod pace;
mod refresh;
mod roster;
mod standing;
mod view;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use orbitkv_wire::identity::{ClusterUuid, Incarnation, NodeId};
use orbitkv_wire::membership::{Key, MemberRecord};

pub use claim::{Applicant, Holder, NotRetired, Refusal, cluster_of, retire};
pub use doubts::{Doubt, DoubtCause};
pub use pace::PauseBounds;
pub use refresh::{Asker, LookupDone, LookupPurpose, LookupWish, RefreshPolicy};
pub use roster::Roster;
pub use standing::{Alarm, Effect, FenceCause, Figures, Standing, SuspendCause};
pub use view::{Break, Flaw, OtherHistory};

use coordinator::{Event, Failure, Header, LeaseId, News};
use doubts::Doubts;
use join::Question;
use lease::Lease;
use pace::Pace;
use refresh::Lookups;
use view::View;

use crate::members::Local;
use crate::time::Moment;

/// What membership is told once.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What this process brings.
    pub applicant: Applicant,
    /// Length of the lease it asks for.
    pub lease: Duration,
    /// Highest epoch that this node is known to have had, 0 if none is.
    pub epoch_least: u64,
    /// Between tries of the same.
    pub retry: PauseBounds,
    /// Between tries of a node that was refused.
    pub refused_pause: Duration,
    /// Spreads the pauses; another number for each process.
    pub jitter: u64,
    /// What is read when a peer is not what it was taken for.
    pub refresh: RefreshPolicy,
}

/// Where the present life is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Awaited,
    Unregistered(Incarnation),
    /// It may be registered, under this lease.
    Claimed(Incarnation, LeaseId),
    /// It is registered, by a change at this revision.
    Member(Local, u64),
    Leaving,
}

/// Whether the view can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sight {
    /// Nothing was read yet.
    Blind,
    Clear,
    Lost(SuspendCause),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watch {
    Closed,
    Open(u64),
}

/// The room.
pub struct Membership {
    settings: Settings,
    /// etcd's own identity, once it has answered.
    coordinator: Option<u64>,
    cluster: Option<ClusterUuid>,
    /// Largest revision that etcd has answered with.
    revision: u64,
    epoch_least: u64,
    life: Life,
    fenced: Option<Incarnation>,
    lease: Option<Lease>,
    question: Option<Question>,
    questions: Pace,
    /// A snapshot is wanted though the life needs none: to repair the view, or to compare it.
    read_wanted: bool,
    view: View,
    doubts: Doubts,
    lookups: Lookups,
    sight: Sight,
    watch: Watch,
    watches: Pace,
    refusal: Option<Refusal>,
    trouble: Option<Failure>,
    numbers: u64,
    effects: VecDeque<Effect>,
    figures: Figures,
}

impl Membership {
    /// A node that has not joined. It waits for its first life.
    ///
    /// # Panics
    /// If the contact is not one that others could use.
    #[must_use]
    pub fn new(settings: Settings, now: Moment) -> Membership {
        assert!(settings.applicant.contact.is_legal(), "settings are checked before a node starts");
        let pace = |salt| Pace::new(settings.retry, settings.jitter ^ salt, now);
        Membership {
            coordinator: None,
            cluster: None,
            revision: 0,
            epoch_least: settings.epoch_least,
            life: Life::Awaited,
            fenced: None,
            lease: None,
            question: None,
            questions: pace(0),
            read_wanted: true,
            view: View::default(),
            doubts: Doubts::default(),
            lookups: Lookups::new(settings.retry, settings.jitter ^ LOOKUPS_SALT, now),
            sight: Sight::Blind,
            watch: Watch::Closed,
            watches: pace(u64::MAX),
            refusal: None,
            trouble: None,
            numbers: 0,
            effects: VecDeque::new(),
            figures: Figures::default(),
            settings,
        }
    }

    /// Every shard lives as this incarnation now: it may be registered.
    ///
    /// # Panics
    /// If no life is awaited, or if it is one that was fenced.
    pub fn on_life_ready(&mut self, incarnation: Incarnation, now: Moment) {
        if self.life == Life::Leaving {
            return;
        }
        assert_eq!(self.life, Life::Awaited, "a life begins when one is awaited");
        assert_ne!(self.fenced, Some(incarnation), "a fenced incarnation never comes back");
        self.life = Life::Unregistered(incarnation);
        self.proceed(now);
    }

    /// The answer to a renewal: the length that was acknowledged, or none if the lease has ended.
    pub fn on_renewed(
        &mut self,
        number: u64,
        result: Result<(Header, Option<Duration>), Failure>,
        now: Moment,
    ) {
        self.check_deadline(now);
        if !self.lease.as_ref().is_some_and(|lease| lease.waits_for(number)) {
            return;
        }
        let result = match result {
            Ok((header, _)) if !self.recognise(header) => Err(Failure::Unanswered(FOREIGN.into())),
            Ok((_, length)) => length.ok_or(Failure::LeaseGone),
            Err(failure) => Err(failure),
        };
        match result {
            Ok(length) => {
                let lease = self.lease.as_mut().expect("it waits");
                lease.on_renewed(number, length);
                let until = lease.deadline();
                self.figures.renewals += 1;
                if matches!(self.trouble, Some(Failure::Unanswered(_))) {
                    self.trouble = None;
                }
                // What comes too late to help is as good as no answer.
                self.check_deadline(now);
                if matches!(self.life, Life::Member(..)) {
                    self.effects.push_back(Effect::Admit { until });
                }
            }
            Err(Failure::LeaseGone) => self.lose_lease(FenceCause::LeaseGone, now),
            Err(failure) => {
                self.figures.unanswered += 1;
                self.lease.as_mut().expect("it waits").on_unanswered(number, now);
                self.note_trouble(failure);
            }
        }
        self.proceed(now);
    }

    /// What a watch says.
    pub fn on_news(&mut self, number: u64, header: Option<Header>, news: News, now: Moment) {
        self.check_deadline(now);
        if self.watch != Watch::Open(number) {
            return;
        }
        let news = match header {
            Some(header) if !self.recognise(header) => News::Ended(FOREIGN.into()),
            _ => news,
        };
        match news {
            News::Created => {
                self.watches.succeed();
                // Whether this is still the history that was read is seen by comparing.
                self.read_wanted = true;
            }
            News::Events(events) => self.on_events(&events, now),
            News::Compacted => self.lose_sight(Break::Compacted { after: self.view.known() }.into()),
            News::Ended(_) => {
                self.figures.watches_ended += 1;
                self.watch = Watch::Closed;
                self.watches.fail(now);
            }
        }
        self.proceed(now);
    }

    fn on_events(&mut self, events: &[Event], now: Moment) {
        match self.view.apply(events) {
            Ok(changed) => {
                self.revision = self.revision.max(self.view.known());
                // The guard of the cluster itself has changed.
                self.read_wanted |= events.iter().any(|event| event.key == Key::Format);
                self.tell_flaws();
                if changed {
                    self.tell_members();
                    self.check_own_record(now);
                }
            }
            Err(cause) => self.lose_sight(cause.into()),
        }
    }

    /// Somebody contradicts what is known of a member: it is read anew, as the policy says.
    pub fn on_doubt(&mut self, doubt: Doubt, now: Moment) {
        self.check_deadline(now);
        self.doubts.note(doubt, &self.view);
        // Whether its own life is over a node sees in all that there is.
        let reads_all =
            self.settings.refresh == RefreshPolicy::Hybrid || doubt.node == self.settings.applicant.node;
        if self.doubts.wants_read_of(doubt.node) {
            match reads_all {
                true => self.read_wanted = true,
                false => self.lookups.want(doubt.node, None),
            }
        }
        self.proceed(now);
    }

    /// The record of a node is to be read before it is asked for something; [`Effect::LookedUp`] says that it is.
    pub fn on_lookup(&mut self, LookupWish { node, asker, ticket }: LookupWish, now: Moment) {
        self.check_deadline(now);
        self.lookups.want(node, Some((asker, ticket)));
        self.proceed(now);
    }

    /// Time has passed.
    pub fn on_tick(&mut self, now: Moment) {
        self.proceed(now);
    }

    /// The node stops: nothing is admitted any more, and the record goes if etcd can be reached.
    pub fn withdraw(&mut self, now: Moment) {
        match std::mem::replace(&mut self.life, Life::Leaving) {
            Life::Leaving => return,
            Life::Claimed(incarnation, _) => self.tell_fenced(incarnation, FenceCause::Withdrawn),
            Life::Member(local, _) => self.tell_fenced(local.incarnation, FenceCause::Withdrawn),
            Life::Awaited | Life::Unregistered(_) => {}
        }
        self.watch = Watch::Closed;
        match self.lease.take() {
            Some(lease) => self.ask_revoke(lease.id(), now),
            None => {
                self.question = None;
                self.effects.push_back(Effect::Withdrawn);
            }
        }
        self.assert_invariants();
    }

    /// What is to be done next.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When [`Membership::on_tick`] is to be called at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        let lease = self.lease.as_ref().map(Lease::next_deadline);
        let question = self.wants_question().then(|| self.questions.due());
        let watch = self.wants_watch().then(|| self.watches.due());
        let lookup = (self.may_look_up() && self.lookups.is_wanted()).then(|| self.lookups.due());
        [lease, question, watch, lookup].into_iter().flatten().min()
    }

    /// Whether this life may speak to others at this moment.
    #[must_use]
    pub fn admits(&self, now: Moment) -> bool {
        let lives = matches!(self.life, Life::Member(..)) && self.sight == Sight::Clear;
        lives && self.lease.as_ref().is_some_and(|lease| !lease.is_over(now))
    }

    /// The registered life, if there is one.
    #[must_use]
    pub fn local(&self) -> Option<Local> {
        match self.life {
            Life::Member(local, _) => Some(local),
            _ => None,
        }
    }

    /// The members as last known.
    #[must_use]
    pub fn roster(&self) -> Roster {
        self.view.roster()
    }

    /// Where the node stands.
    #[must_use]
    pub fn standing(&self) -> Standing {
        match (&self.life, self.sight, &self.refusal, &self.trouble) {
            (Life::Leaving, ..) => Standing::Leaving,
            (Life::Member(..), Sight::Lost(cause), ..) => Standing::Suspended(cause),
            (Life::Member(..), ..) => Standing::Member,
            (Life::Awaited, ..) => Standing::Beginning,
            (_, _, Some(refusal), _) => Standing::Refused(refusal.clone()),
            (_, _, None, Some(trouble)) => Standing::Troubled(trouble.clone()),
            (_, _, None, None) => Standing::Joining,
        }
    }

    /// What happened so far.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let (superseded, rereads) = (self.doubts.superseded(), self.doubts.reads());
        Figures { superseded, rereads, lookups: self.lookups.done(), ..self.figures }
    }

    /// Members at whose address somebody has shown another key than their record names, in order of name.
    #[must_use]
    pub fn disputed(&self) -> Vec<NodeId> {
        self.doubts.disputed().collect()
    }

    /// Members that are left out because they place keys on shards otherwise than this program, with the version of
    /// their hash, in order of name.
    #[must_use]
    pub fn foreign_hash(&self) -> Vec<(NodeId, u16)> {
        self.view.foreign_hash().collect()
    }

    /// Ends what has passed its deadline, before anything else is looked at: a process that was paused
    /// finds late answers before it finds its timer.
    fn check_deadline(&mut self, now: Moment) {
        if self.lease.as_ref().is_some_and(|lease| lease.is_over(now)) {
            self.lose_lease(FenceCause::DeadlinePassed, now);
        }
    }

    /// Everything that can be begun now.
    fn proceed(&mut self, now: Moment) {
        self.check_deadline(now);
        let number = self.numbers + 1;
        if let Some(lease) = self.lease.as_mut().filter(|_| self.life != Life::Leaving)
            && lease.renew(number, now)
        {
            self.numbers = number;
            self.effects.push_back(Effect::Renew { number, lease: lease.id() });
        }
        if self.wants_watch() && self.watches.is_due(now) {
            let number = self.draw_number();
            self.watch = Watch::Open(number);
            self.effects.push_back(Effect::Watch { number, after: self.view.known() });
        }
        if self.wants_question() && self.questions.is_due(now) {
            self.ask_read(now);
        }
        if self.may_look_up() && self.lookups.is_due(now) {
            self.ask_look();
        }
        self.assert_invariants();
    }

    fn wants_watch(&self) -> bool {
        self.watch == Watch::Closed && self.sight == Sight::Clear && self.life != Life::Leaving
    }

    fn wants_question(&self) -> bool {
        let joins = matches!(self.life, Life::Unregistered(_) | Life::Claimed(..));
        self.question.is_none() && (joins || (self.read_wanted && self.life != Life::Leaving))
    }

    /// Whether one record more or less can be of use: beside all the others.
    fn may_look_up(&self) -> bool {
        self.sight == Sight::Clear && self.life != Life::Leaving
    }

    fn draw_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Whether this is the etcd that answered first.
    fn recognise(&mut self, header: Header) -> bool {
        let expected = *self.coordinator.get_or_insert(header.coordinator);
        if expected != header.coordinator {
            self.raise(Alarm::ForeignCoordinator { expected, found: header.coordinator });
        }
        expected == header.coordinator
    }

    fn lose_lease(&mut self, cause: FenceCause, now: Moment) {
        self.lease = None;
        match self.life {
            Life::Member(..) => self.fence(cause, now),
            // What was granted before the claim was sent is of no use without its lease.
            Life::Claimed(..) => self.fence(FenceCause::Undecided, now),
            Life::Awaited | Life::Unregistered(_) | Life::Leaving => {}
        }
    }

    /// Ends the life for good and asks for another.
    fn fence(&mut self, cause: FenceCause, _now: Moment) {
        let incarnation = match self.life {
            Life::Claimed(incarnation, _) => incarnation,
            Life::Member(local, _) => local.incarnation,
            Life::Awaited | Life::Unregistered(_) | Life::Leaving => return,
        };
        self.figures.fences += 1;
        self.lease = None;
        self.life = Life::Awaited;
        // Questions were asked in the name of the old life.
        self.question = None;
        self.tell_fenced(incarnation, cause);
        self.effects.push_back(Effect::BeginLife);
    }

    fn tell_fenced(&mut self, incarnation: Incarnation, cause: FenceCause) {
        self.fenced = Some(incarnation);
        self.effects.push_back(Effect::Fenced { incarnation, cause });
    }

    /// Remote admission ends until a snapshot repairs the view.
    fn lose_sight(&mut self, cause: SuspendCause) {
        self.watch = Watch::Closed;
        self.read_wanted = true;
        if self.sight == Sight::Clear {
            self.figures.suspensions += 1;
            self.effects.push_back(Effect::Suspended(cause));
        }
        self.sight = Sight::Lost(cause);
    }

    /// etcd was restored from an old copy: nothing that was read before counts, and neither does a life
    /// that was registered in what is lost.
    fn on_other_history(&mut self, cause: OtherHistory, now: Moment) {
        self.raise(Alarm::OtherHistory(cause));
        self.epoch_least = self.epoch_least.max(self.view.epoch_of(self.settings.applicant.node));
        self.lose_sight(cause.into());
        self.view.reset();
        self.revision = 0;
        self.fence(FenceCause::OtherHistory(cause), now);
    }

    /// The registered life must be the one that the view shows, once the view has come that far.
    fn check_own_record(&mut self, now: Moment) {
        let Life::Member(local, registered) = self.life else { return };
        if self.view.known() < registered {
            return;
        }
        let cause = match self.view.record(local.node) {
            None => FenceCause::RecordRemoved,
            Some(MemberRecord { incarnation, .. }) if *incarnation == local.incarnation => return,
            Some(&MemberRecord { incarnation: other, epoch, .. }) if epoch == local.epoch => {
                self.raise(Alarm::EqualEpoch { other, epoch });
                FenceCause::EqualEpoch { other, epoch }
            }
            Some(&MemberRecord { incarnation: by, epoch, .. }) => FenceCause::Replaced { by, epoch },
        };
        self.fence(cause, now);
    }

    fn tell_members(&mut self) {
        self.doubts.settle(&self.view);
        let roster = self.view.roster();
        match self.effects.back_mut() {
            Some(Effect::Members(last)) => *last = roster,
            _ => self.effects.push_back(Effect::Members(roster)),
        }
    }

    fn tell_flaws(&mut self) {
        while let Some(flaw) = self.view.poll_flaw() {
            self.raise(flaw.into());
        }
    }

    fn raise(&mut self, alarm: Alarm) {
        self.figures.alarms += 1;
        self.effects.push_back(Effect::Alarm(alarm));
    }

    /// Raises what is new about etcd's failing.
    fn note_trouble(&mut self, failure: Failure) {
        let same = |before: &Failure| std::mem::discriminant(before) == std::mem::discriminant(&failure);
        if !self.trouble.as_ref().is_some_and(same) {
            self.raise(failure.clone().into());
        }
        self.trouble = Some(failure);
    }

    fn assert_invariants(&self) {
        self.lookups.assert_invariants();
        if let Life::Member(local, _) = self.life {
            assert!(self.lease.is_some(), "a member has a lease");
            assert_ne!(self.fenced, Some(local.incarnation), "a fenced life is over");
            assert!(self.cluster == Some(local.cluster) && local.epoch <= self.epoch_least);
        }
        if let Life::Claimed(_, lease) = self.life {
            assert_eq!(self.lease.as_ref().map(Lease::id), Some(lease), "a claim lives as long as its lease");
        }
        assert!(self.sight != Sight::Clear || self.view.known() > 0, "nothing is known before it is read");
        assert!(
            self.watch == Watch::Closed || self.sight == Sight::Clear,
            "a watch brings a known view forward"
        );
    }
}

/// Sets the pauses of single reads apart from those of questions and of the watch.
const LOOKUPS_SALT: u64 = 1 << 63;

/// What an answer of another etcd cluster is worth.
const FOREIGN: &str = "another etcd cluster has answered";
